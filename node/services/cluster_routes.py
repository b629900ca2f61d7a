"""The routes of the cluster for clients: the leader of each partition, and the addresses at which nodes serve clients.

Made from the partition records and registrations as this node last read them, once after each change that somebody asks
for. `node.client_api.cluster_routes` serves them; docs/http.md describes the document.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from xxhash import xxh64_hexdigest

from isthmus.config.settings import Settings
from isthmus.repl.http.routes import HASH, VERSION
from isthmus.repl.model.record import PartitionRecord, Registration

_UNREAD: Final = ("", b"")


class ClusterRoutes:
    """See `node.client_api.cluster_routes`: RouteDocument and ClientAddresses."""

    def __init__(self, settings: Settings, cluster_uuid: bytes) -> None:
        self._records: Mapping[int, PartitionRecord] = {}
        self._settings = settings
        self._cluster_uuid = cluster_uuid
        self._current = _UNREAD
        self._content: Mapping[str, Any] = {}
        self._version = 0
        self._addresses: dict[str, str] = {}

    def records_changed(self, records: Mapping[int, PartitionRecord]) -> None:
        """The partition records were read again."""
        self._records = records
        self._current = _UNREAD

    def registrations_changed(self, registrations: Mapping[str, Registration]) -> None:
        """The registrations were read again."""
        self._addresses = {r.node: urlsplit(r.http_url).netloc for r in registrations.values() if r.http_url}
        self._current = _UNREAD

    def address(self, node: str) -> str:
        """See ClientAddresses."""
        return self._addresses.get(node, "")

    def current(self) -> tuple[str, bytes]:
        """See RouteDocument."""
        if self._current is _UNREAD:
            records = self._records
            content = {"nodes": self._addresses, "bucket_types": leaders_of(records)}
            if content != self._content:
                # The sum rises with each change of a record, so that versions of different nodes can be compared.
                total = sum(max(record.version, 0) + 1 for record in records.values())
                self._version, self._content = max(self._version + 1, total), content
            document = {
                "v": VERSION,
                "cluster": self._settings.node.cluster,
                "cluster_uuid": self._cluster_uuid.hex(),
                "tls": self._settings.tls.mode("http"),
                "version": self._version,
                "hash": HASH,
                **content,
            }
            body = json.dumps(document, separators=(",", ":")).encode() + b"\n"
            self._current = xxh64_hexdigest(body), body
        return self._current


def leaders_of(records: Mapping[int, PartitionRecord]) -> dict[str, list[str | None]]:
    """Bucket type -> the leaders of its partitions by index, None where none is known. A bucket type whose records
    contradict each other is left out."""
    types: dict[str, list[PartitionRecord]] = {}
    for record in records.values():
        types.setdefault(record.bucket_type, []).append(record)
    leaders: dict[str, list[str | None]] = {}
    for name, found in sorted(types.items()):
        by_index = {r.index: None if r.leader is None else r.leader.node for r in found}
        counts = {r.partition_count for r in found}
        if len(counts) == 1 and len(by_index) == len(found):
            leaders[name] = [by_index.get(index) for index in range(*counts)]
    return leaders
