"""Messages about trees between nodes and between clusters: msgpack lists that begin with a version.

The same requests go to a node (for the partitions that it leads) and to a cluster (for a bucket type). A node's
response lists its partitions, so that the sum over the nodes counts each once. Sizes are checked before anything is
used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgpack
import zstandard

from isthmus.aae.exchange.compare import ComparedRow
from isthmus.aae.trees.tree import BRANCH_BITS, BRANCH_COUNT, SIZE_BITS_MIN, Hashes, hashes_from_wire, hashes_to_wire
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.keys import SEGMENT_BITS

VERSION: Final = 1

PARTITIONS_MAX: Final = 65_536
"""Partitions in one response."""

ROWS_MAX: Final = 1_000_000
"""Rows of one response that are decoded. A response ends with the segment in which it exceeds the requested rows."""

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest response; larger ones are refused unread."""

REASON_MAX: Final = 300

CLUSTER_BYTES: Final = 16

MEDIA_TYPE: Final = "application/msgpack"

PATHS: Final = ("/trees/roots", "/trees/leaves", "/trees/clocks", "/trees/repair")
"""HTTP paths of requests from another cluster: roots, leaves, clocks, repair."""

REPAIRS_MAX: Final = 10_000
"""Keys of one repair request."""

REQUEST_BYTES_MAX: Final = 1024 * 1024
"""Largest request: 2^17 segments, several times what an exchange requests at once."""


class UnknownExchangeVersion(CodecError):
    """A message of another version of this program."""

    reason = "unknown-version"


class TreeReadiness(NamedTuple):
    """A partition that the responding node leads: `ready`, or why its tree is not."""

    partition: int
    ready: bool
    reason: str


class RootsRequest(NamedTuple):
    """Request the hashes of all branches of a bucket type."""

    bucket_type: bytes


class LeavesRequest(NamedTuple):
    """Request the leaves of some branches in the tree of 2^size_bits segments."""

    bucket_type: bytes
    branches: tuple[int, ...]
    size_bits: int


class ClocksRequest(NamedTuple):
    """Request the rows of some segments of 2^size_bits, ascending, changed in [since_ms, before_ms) (0: no bound); the
    response ends with the segment in which it exceeds `rows`."""

    bucket_type: bytes
    segments: tuple[int, ...]
    size_bits: int
    since_ms: int
    before_ms: int
    rows: int


class PartitionHistory(NamedTuple):
    """Which course of a partition its offsets belong to: its record's lineage, which counts elections by force, and the
    incarnation of its actor, which is random and new after each return to an earlier state."""

    lineage: int
    incarnation: int


class AppliedTree(NamedTuple):
    """A leader's ready tree: it covers all changes of `history` below `offset`. `epoch`: of the leadership."""

    partition: int
    history: PartitionHistory
    epoch: int
    offset: int


class HashesResponse(NamedTuple):
    """The XOR of the hashes of all ready partitions in `readiness`."""

    readiness: tuple[TreeReadiness, ...]
    hashes: Hashes


class RowsResponse(NamedTuple):
    """The rows of the first `covered` of the requested segments."""

    readiness: tuple[TreeReadiness, ...]
    covered: int
    rows: list[ComparedRow]


def encode_roots_request(request: RootsRequest) -> bytes:
    return _pack([VERSION, request.bucket_type])


def decode_roots_request(data: bytes) -> RootsRequest:
    """Raises CodecError."""
    match _unpack(data, "a question for roots"):
        case [bytes(bucket_type)]:
            return RootsRequest(bucket_type)
    raise CodecError("not a question for roots")


def encode_leaves_request(request: LeavesRequest) -> bytes:
    return _pack([VERSION, request.bucket_type, request.branches, request.size_bits])


def decode_leaves_request(data: bytes) -> LeavesRequest:
    """Raises CodecError."""
    match _unpack(data, "a question for leaves"):
        case [bytes(bucket_type), list(branches), int(size_bits)] if (
            SIZE_BITS_MIN <= size_bits <= SEGMENT_BITS and len(branches) > 0 and _ascending(branches, BRANCH_COUNT)
        ):
            return LeavesRequest(bucket_type, tuple(branches), size_bits)
    raise CodecError("not a question for leaves: type, ascending branches, a size of 12 to 20 bits")


def encode_clocks_request(request: ClocksRequest) -> bytes:
    """Its bytes."""
    return _pack([VERSION, *request])


def decode_clocks_request(data: bytes) -> ClocksRequest:
    """Raises CodecError."""
    match _unpack(data, "a question for clocks"):
        case [bytes(bucket_type), list(segments), int(size_bits), int(since_ms), int(before_ms), int(rows)] if (
            SIZE_BITS_MIN <= size_bits <= SEGMENT_BITS
            and len(segments) > 0
            and _ascending(segments, 1 << size_bits)
            and min(since_ms, before_ms) >= 0
            and 0 < rows <= ROWS_MAX
        ):
            return ClocksRequest(bucket_type, tuple(segments), size_bits, since_ms, before_ms, rows)
    raise CodecError("not a question for clocks: type, ascending segments, size, time range, a number of rows")


def encode_applied(trees: Sequence[AppliedTree]) -> bytes:
    """Its bytes."""
    return _pack([VERSION, [[one.partition, *one.history, one.epoch, one.offset] for one in trees]])


def decode_applied(data: bytes) -> list[AppliedTree]:
    """Raises CodecError."""
    match _unpack(data, "applied offsets"):
        case [list(trees)] if len(trees) <= PARTITIONS_MAX:
            return [_applied_tree(raw) for raw in trees]
    raise CodecError(f"not applied offsets of at most {PARTITIONS_MAX} trees")


def _applied_tree(raw: object) -> AppliedTree:
    if type(raw) is list and list(map(type, raw)) == [int] * 5 and min(raw) >= 0:
        partition, lineage, incarnation, epoch, offset = raw
        return AppliedTree(partition, PartitionHistory(lineage, incarnation), epoch, offset)
    raise CodecError("not a tree: partition, lineage, incarnation, epoch, offset")


def encode_hashes(response: HashesResponse) -> bytes:
    """Its bytes."""
    return _pack([VERSION, _encode_readiness(response.readiness), hashes_to_wire(response.hashes)])


def decode_hashes(data: bytes, count: int) -> HashesResponse:
    """Decode a response of `count` hashes. Raises CodecError."""
    match _unpack(data, "tree hashes"):
        case [list(readiness), bytes(hashes)]:
            return HashesResponse(_decode_readiness(readiness), hashes_from_wire(hashes, count))
    raise CodecError("not tree hashes")


ZSTD: Final = "zstd"
"""The only value of the parameter `?compress=`; nodes that do not know the parameter send uncompressed bodies."""

ZSTD_LEVEL: Final = 1
"""The fastest level: the aim is to spare the link."""

ZSTD_FROM_BYTES: Final = 512
"""Smaller bodies are not compressed: there is nothing to gain."""


CLOCK: Final = "clock"
"""The parameter `?clock=1` asks for the wall clock in the answer; nodes that do not know it leave it out."""


class PeerResponse(NamedTuple):
    """A response to another cluster: the responding cluster's uuid and name, the body, and the node's wall clock when
    it was sent (None: not sent)."""

    cluster: bytes
    cluster_name: str
    body: bytes
    wall_ms: int | None = None


def encode_peer_response(response: PeerResponse, compress: str = "") -> bytes:
    """With ZSTD the body becomes one zstd frame with its size, and ZSTD is appended to the list; then the wall clock,
    if there is one. Compressing takes milliseconds per megabyte: run it off the event loop."""
    parts: list[Any] = [VERSION, *response[:3]]
    if compress == ZSTD and len(response.body) >= ZSTD_FROM_BYTES:
        parts[3:] = [zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(response.body), ZSTD]
    return _pack(parts if response.wall_ms is None else [*parts, response.wall_ms])


def decode_peer_response(data: bytes) -> PeerResponse:
    """Raises CodecError."""
    parts = _unpack(data, "an answer about trees")
    wall_ms = parts.pop() if parts and type(parts[-1]) is int and parts[-1] >= 0 else None
    match parts:
        case [bytes(cluster), str(name), bytes(body)] if len(cluster) == CLUSTER_BYTES:
            return PeerResponse(cluster, name, body, wall_ms)
        case [bytes(cluster), str(name), bytes(frame), "zstd"] if len(cluster) == CLUSTER_BYTES:
            return PeerResponse(cluster, name, _unzipped(frame), wall_ms)
    raise CodecError("not an answer about trees: cluster, its name, and the answer")


def _unzipped(frame: bytes) -> bytes:
    try:
        if not 0 < zstandard.frame_content_size(frame) <= MESSAGE_BYTES_MAX:
            raise CodecError(f"not a zstd frame with a declared size of at most {MESSAGE_BYTES_MAX} bytes")
        plain: bytes = zstandard.ZstdDecompressor().decompress(frame, max_output_size=MESSAGE_BYTES_MAX)
    except zstandard.ZstdError as error:
        raise CodecError(f"not an answer about trees: {error}") from error
    return plain


class RepairRequest(NamedTuple):
    """Enqueue references to these (bucket, key), which are ahead at the receiver, in its `queue` at full-sync's
    priority."""

    queue: str
    bucket_type: bytes
    names: tuple[tuple[bytes, bytes], ...]


def encode_repair_request(request: RepairRequest) -> bytes:
    """Its bytes."""
    return _pack([VERSION, *request])


def decode_repair_request(data: bytes) -> RepairRequest:
    """Raises CodecError."""
    match _unpack(data, "a request to repair"):
        case [str(queue), bytes(bucket_type), list(names)] if len(names) <= REPAIRS_MAX and all(map(_is_name, names)):
            return RepairRequest(queue, bucket_type, tuple((bucket, key) for bucket, key in names))
    raise CodecError(f"not a request to repair: queue, bucket type, up to {REPAIRS_MAX} pairs of bucket and key")


def encode_repair_response(count: int) -> bytes:
    """Encode how many references were enqueued."""
    return _pack([VERSION, count])


def decode_repair_response(data: bytes) -> int:
    """Raises CodecError."""
    match _unpack(data, "an answer to a repair"):
        case [int(count)] if 0 <= count <= REPAIRS_MAX:
            return count
    raise CodecError("not an answer to a repair")


def _is_name(raw: object) -> bool:
    match raw:
        case [bytes(bucket), bytes(key)]:
            return bool(bucket and key)
    return False


def leaf_count(request: LeavesRequest) -> int:
    """Number of hashes in the response."""
    return len(request.branches) << (request.size_bits - BRANCH_BITS)


def encode_rows(response: RowsResponse) -> bytes:
    """Its bytes."""
    return _pack([VERSION, _encode_readiness(response.readiness), response.covered, response.rows])


def decode_rows(data: bytes, request: ClocksRequest) -> RowsResponse:
    """Decode the response to `request`. Raises CodecError."""
    match _unpack(data, "rows"):
        case [list(readiness), int(covered), list(rows)] if 1 <= covered <= len(request.segments):
            return RowsResponse(_decode_readiness(readiness), covered, [_row(raw) for raw in rows])
    raise CodecError("not rows of segments, or of none")


_ROW_TYPES: Final = [bytes, bytes, bytes, int, int, bool]


def _row(raw: object) -> ComparedRow:
    if type(raw) is list and list(map(type, raw)) == _ROW_TYPES:
        row = ComparedRow._make(raw)
        if row.bucket and row.key and 0 <= row.hash64 < 1 << 64 and row.modified_ms >= 0:
            return row
    raise CodecError("not a row: bucket, key, clock, hash, last modified, tombstone")


def _encode_readiness(readiness: Sequence[TreeReadiness]) -> list[TreeReadiness]:
    return [standing._replace(reason=standing.reason[:REASON_MAX]) for standing in readiness]


def _decode_readiness(raw: Sequence[object]) -> tuple[TreeReadiness, ...]:
    found: list[TreeReadiness] = []
    if len(raw) > PARTITIONS_MAX:
        raise CodecError(f"readiness of {len(raw)} partitions, at most {PARTITIONS_MAX} are read")
    for one in raw:
        match one:
            case [int(partition), bool(ready), str(reason)] if partition >= 0:
                found.append(TreeReadiness(partition, ready, reason[:REASON_MAX]))
            case _:
                raise CodecError("not the standing of a partition")
    return tuple(found)


def _ascending(numbers: Sequence[object], limit: int) -> bool:
    last = -1
    for number in numbers:
        if type(number) is not int or not last < number < limit:
            return False
        last = number
    return True


def _pack(parts: Sequence[Any]) -> bytes:
    packed: bytes = msgpack.packb(parts)
    return packed


def _unpack(data: bytes, what: str) -> list[Any]:
    if len(data) > MESSAGE_BYTES_MAX:
        raise CodecError(f"{what} of {len(data)} bytes, at most {MESSAGE_BYTES_MAX} are read")
    try:
        raw = msgpack.unpackb(data, max_array_len=ROWS_MAX, max_str_len=4 * REASON_MAX, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise CodecError(f"not {what}: {error}") from error
    if not isinstance(raw, list) or not raw or type(raw[0]) is not int:
        raise CodecError(f"not {what}: no list with a version")
    if raw[0] != VERSION:
        raise UnknownExchangeVersion(
            f"{what} in form {raw[0]}, this program knows form {VERSION}: update the older side"
        )
    return raw[1:]
