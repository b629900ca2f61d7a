"""The leaders of a cluster's keys as a client knows them: the answer of GET /cluster/routes, and corrections.

For programs that send requests to nodes from outside (`isthmus kv`, sources of load). A wrong guess costs a forward and
nothing else, so this never fails: an unknown leader is None, and the request goes to any node. docs/http.md describes
the document for clients in other languages. Opens no connection.
"""

from __future__ import annotations

import json
from typing import Any, Final

from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.keys import key_hash, partition_index

PATH: Final = "/cluster/routes"
LEADER: Final = "X-Isthmus-Leader"
"""The header of an answer to a forwarded request: HOST:PORT of the leader's client listener."""

VERSION: Final = 1
HASH: Final = "xxh64-42"
"""The hash of keys: xxh64 with seed 42 (`repl.model.keys`)."""

ROUTES_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest document that a client reads: a quarter of a million partitions with names of nodes of 60 bytes."""

PARTITIONS_MAX: Final = 1 << 20
"""Most partitions of a bucket type: each holds a segment at least."""


class Routes:
    """The routes of one cluster. Addresses are HOST:PORT."""

    def __init__(
        self,
        version: int = 0,
        types: dict[bytes, list[str | None]] | None = None,
        nodes: tuple[str, ...] = (),
        cluster_uuid: str = "",
    ) -> None:
        self.version = version
        self.cluster_uuid = cluster_uuid
        self.nodes = nodes
        """The addresses of all live nodes."""
        self._types = types or {}

    def leader(self, bucket_type: bytes, bucket: bytes, key: bytes) -> str | None:
        """The address of the key's leader; None when unknown."""
        leaders = self._types.get(bucket_type)
        return leaders[partition_index(key_hash(bucket, key), len(leaders))] if leaders else None

    def learn(self, bucket_type: bytes, bucket: bytes, key: bytes, address: str) -> None:
        """Take over the leader that an answer about the key named."""
        leaders = self._types.get(bucket_type)
        if leaders:
            leaders[partition_index(key_hash(bucket, key), len(leaders))] = address

    def forget(self, address: str) -> None:
        """Take a node that does not answer for the leader of nothing."""
        for leaders in self._types.values():
            leaders[:] = [None if leader == address else leader for leader in leaders]


def parse_routes(document: bytes) -> Routes:
    """The routes in an answer. Raises CodecError, also for a form or hash of another version."""
    try:
        raw: Any = json.loads(document)
        if raw["v"] != VERSION or raw["hash"] != HASH:
            raise CodecError(f"routes of version {raw['v']!r} with hash {raw['hash']!r}")
        nodes = {str(node): str(address) for node, address in raw["nodes"].items()}
        types = {
            str(name).encode(): [None if node is None else nodes.get(str(node)) for node in leaders]
            for name, leaders in raw["bucket_types"].items()
        }
        if any(not 0 < len(leaders) <= PARTITIONS_MAX for leaders in types.values()):
            raise CodecError(f"a bucket type with no partition, or more than {PARTITIONS_MAX}")
        return Routes(int(raw["version"]), types, tuple(nodes.values()), str(raw["cluster_uuid"]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise CodecError(f"not the answer of {PATH}: {type(error).__name__}: {error}") from error
