"""The records and registrations that this node cannot read: logged once each, counted, and left out of decisions.

An unreadable record stops the decisions about its own partition, and no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import structlog

from isthmus.repl.metastore.codecs import encode_record
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.telemetry import Sample

log = structlog.get_logger(__name__)


class UnreadableDocuments:
    """The unreadable records and registrations, as of the last read."""

    def __init__(self) -> None:
        self.why: Mapping[str, str] = {}
        """Path -> why it cannot be read."""
        self.partitions: frozenset[int] = frozenset()
        """Partitions whose record is unreadable: the controller decides nothing about them."""

    def learn(self, found: Mapping[str, str], records: Mapping[int, PartitionRecord]) -> None:
        """Take over what is unreadable now. The log line has the record's last readable bytes, which an operator may
        write again."""
        if found == self.why:
            return
        for path, why in found.items():
            if self.why.get(path) != why:
                last = next((record for p, record in records.items() if path == f"/p/{p}"), None)
                fields = {} if last is None else {"last": encode_record(last).decode(), "last_version": last.version}
                log.error("controller.document_unreadable", path=path, error=why, **fields)
        for path in sorted(self.why.keys() - found.keys()):
            log.info("controller.document_readable", path=path)
        self.why = dict(found)
        numbers = [path.removeprefix("/p/") for path in found if path.startswith("/p/")]
        self.partitions = frozenset(int(number) for number in numbers if number.isascii() and number.isdigit())

    def without(self, records: Mapping[int, PartitionRecord]) -> Mapping[int, PartitionRecord]:
        """The records without the unreadable ones, of which only an older version is known."""
        if not self.partitions:
            return records
        return {partition: record for partition, record in records.items() if partition not in self.partitions}

    def samples(self) -> Iterator[Sample]:
        """How many there are, on every node."""
        yield "isthmus_metastore_unreadable_documents", {}, len(self.why)
