"""A document of the metastore as the controller's room of every node keeps it: read once, and again when a watch fires.

A document that cannot be read changes nothing, and stops no election but, where it is a partition's record, that
partition's. What the documents say is `repl.controller.dynamic_options`' and `repl.controller.reassignment_orders`'
affair.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Generic, TypeVar

import structlog

from isthmus.repl.metastore.codecs import encode_record
from isthmus.repl.metastore.port import Ambiguous, Metastore, Unavailable, VersionConflict
from isthmus.repl.model.errors import LocalFault
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.telemetry import Sample

log = structlog.get_logger(__name__)

T = TypeVar("T")


class WatchedDocument(Generic[T]):
    """One of them. `value` is what it said last."""

    def __init__(
        self, path: str, read: Callable[[Metastore], Awaitable[T]], value: T, on_read: Callable[[T], None]
    ) -> None:
        self.path = path
        self.value = value
        self.was_read = False
        """False until it could be read once: `value` says nothing of what stands there before."""
        self.readable = True
        """False while `value` is older than what stands there, which cannot be read."""
        self._read = read
        self._on_read = on_read
        self._known = False

    def hinted(self, path: str) -> None:
        """A watch fired."""
        self._known = self._known and path != self.path

    def forget(self) -> None:
        """No watch has fired for so long that it is read again."""
        self._known = False

    async def refresh(self, metastore: Metastore) -> None:
        """Read it unless it is known. Raises what the metastore raises."""
        if self._known:
            return
        self._known = True
        try:
            self.value = await self._read(metastore)
        except LocalFault as error:  # damaged, or ZooKeeper refuses to read it out
            self.readable = False
            log.error("controller.document_unreadable", path=self.path, error=str(error))
        except (Unavailable, Ambiguous, VersionConflict):
            self._known = False
            raise
        else:
            self.was_read = self.readable = True
            self._on_read(self.value)


class UnreadableDocuments:
    """The records and registrations that cannot be read, as of the last look; each is told once in the log."""

    def __init__(self) -> None:
        self.why: Mapping[str, str] = {}
        """Path -> why."""
        self.partitions: frozenset[int] = frozenset()
        """Those of records; nothing is decided of them."""

    def learn(self, found: Mapping[str, str], records: Mapping[int, PartitionRecord]) -> None:
        """Take what is unreadable now. What a record said last is told with it: an operator may write that again."""
        if found == self.why:
            return
        for path, why in found.items():
            if self.why.get(path) != why:
                last = next((record for p, record in records.items() if path == f"/p/{p}"), None)
                said = {} if last is None else {"last": encode_record(last).decode(), "last_version": last.version}
                log.error("controller.document_unreadable", path=path, error=why, **said)
        for path in self.why.keys() - found.keys():
            log.info("controller.document_readable", path=path)
        self.why = dict(found)
        numbers = [path.removeprefix("/p/") for path in found if path.startswith("/p/")]
        self.partitions = frozenset(int(number) for number in numbers if number.isascii() and number.isdigit())

    def without(self, records: Mapping[int, PartitionRecord]) -> Mapping[int, PartitionRecord]:
        """The records but those that are only known as they were."""
        if not self.partitions:
            return records
        return {partition: record for partition, record in records.items() if partition not in self.partitions}

    def samples(self) -> Iterator[Sample]:
        """How many there are, on every node."""
        yield "isthmus_metastore_unreadable_documents", {}, len(self.why)
