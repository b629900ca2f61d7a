"""The leaders of a cluster's keys, from `GET /cluster/routes` (docs/http.md). Pure.

A wrong leader costs a forward between nodes and nothing else, so an unknown one is None and never an error.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

from xxhash import xxh64_intdigest

from isthmus.client.errors import ServerFault
from isthmus.client.names import Key

PATH: Final = b"/cluster/routes"
LEADER_HEADER: Final = "x-isthmus-leader"
VERSION: Final = 1
HASH: Final = "xxh64-42"

PARTITIONS_MAX: Final = 1 << 20
"""Most partitions of a bucket type: each holds a segment at least."""

NODES_MAX: Final = 10_000
"""Most nodes of a cluster that a client takes from routes. A guess, far above any cluster."""

_SEED: Final = 42
_SEGMENT_BITS: Final = 20
_LENGTH: Final = struct.Struct(">I")


def partition_index(bucket: bytes, key: bytes, partitions: int) -> int:
    """The index of a key's partition: the top 20 bits of its hash, spread over the partitions."""
    joined = _LENGTH.pack(len(bucket)) + bucket + _LENGTH.pack(len(key)) + key
    return (xxh64_intdigest(joined, _SEED) >> (64 - _SEGMENT_BITS)) * partitions >> _SEGMENT_BITS


class Routes:
    """Leaders by partition, as HOST:PORT. One document, corrected by `learn` until the next one."""

    def __init__(self, cluster_uuid: str, version: int, nodes: tuple[str, ...], types: dict[bytes, list[str | None]]):
        self.cluster_uuid = cluster_uuid
        self.version = version
        self.nodes = nodes
        """The addresses of all live nodes."""
        self._types = types

    def leader(self, key: Key) -> str | None:
        """The address of a key's leader; None when unknown."""
        leaders = self._types.get(key.bucket_type)
        return leaders[partition_index(key.bucket, key.key, len(leaders))] if leaders else None

    def learn(self, key: Key, address: str) -> bool:
        """Take over the leader that an answer about the key named; True when it is another one than before."""
        leaders = self._types.get(key.bucket_type)
        if not leaders:
            return False
        index = partition_index(key.bucket, key.key, len(leaders))
        changed = leaders[index] != address
        leaders[index] = address
        return changed


def parse_routes(body: bytes) -> Routes | None:
    """The routes in an answer; None for a version or hash that this client does not know. Raises ServerFault."""
    try:
        raw: Any = json.loads(body)
        if raw["v"] != VERSION or raw["hash"] != HASH:
            return None
        nodes = {str(name): str(address) for name, address in raw["nodes"].items()}
        types = {
            str(name).encode("utf-8", "surrogatepass"): [
                None if node is None else nodes.get(str(node)) for node in leaders
            ]
            for name, leaders in raw["bucket_types"].items()
        }
        if len(nodes) > NODES_MAX or any(not 0 < len(leaders) <= PARTITIONS_MAX for leaders in types.values()):
            raise ValueError(f"more than {NODES_MAX} nodes, or a bucket type with a wrong number of partitions")
        return Routes(str(raw["cluster_uuid"]), int(raw["version"]), tuple(nodes.values()), types)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ServerFault(
            f"the answer of {PATH.decode()} is not understood: {type(error).__name__}: {error}", reason="bad-answer"
        ) from error
