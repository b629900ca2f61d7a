"""What nodes and clusters ask each other about trees: msgpack, each message with the version of its form.

The same three questions go to a node (about the partitions that it leads) and to a cluster (about all of a bucket
type); an answer says for which partitions it speaks, so that whoever adds them up sees that each was counted once.
Sizes are checked before anything is believed. Who asks and answers: `aae.exchange.local`, `aae.exchange.cluster`,
`aae.exchange.remote`.
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
"""Partitions that one answer may speak for."""

ROWS_MAX: Final = 1_000_000
"""Rows of one answer that are read. An answer ends with the segment in which it passed the rows asked for."""

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest answer; larger ones are refused unread."""

REASON_MAX: Final = 300

CLUSTER_BYTES: Final = 16

MEDIA_TYPE: Final = "application/msgpack"

PATHS: Final = ("/trees/roots", "/trees/leaves", "/trees/clocks", "/trees/repair")
"""Where a cluster answers another one: roots, leaves, clocks, and takes keys to repair."""

REPAIRS_MAX: Final = 10_000
"""Keys of one request to repair."""

QUESTION_BYTES_MAX: Final = 1024 * 1024
"""Largest question: 2^17 segments, several times what is asked for at once."""


class UnknownExchangeVersion(CodecError):
    """A message of another version of this program."""

    reason = "unknown-version"


class TreeReadiness(NamedTuple):
    """What a node says of one partition that it leads: `ready`, or why its tree cannot answer."""

    partition: int
    ready: bool
    reason: str


class RootsAsked(NamedTuple):
    """The hashes of all branches of a bucket type."""

    bucket_type: bytes


class LeavesAsked(NamedTuple):
    """The leaves of some branches, in the tree of 2^size_bits segments."""

    bucket_type: bytes
    branches: tuple[int, ...]
    size_bits: int


class ClocksAsked(NamedTuple):
    """The rows of some segments of 2^size_bits, in ascending order, changed in [since_ms, before_ms) (0: no bound);
    until `rows` are passed."""

    bucket_type: bytes
    segments: tuple[int, ...]
    size_bits: int
    since_ms: int
    before_ms: int
    rows: int


class HashesTold(NamedTuple):
    """The XOR of what each ready partition of `standings` has."""

    standings: tuple[TreeReadiness, ...]
    hashes: Hashes


class RowsTold(NamedTuple):
    """The rows of the first `covered` segments that were asked for."""

    standings: tuple[TreeReadiness, ...]
    covered: int
    rows: list[ComparedRow]


def encode_roots_asked(asked: RootsAsked) -> bytes:
    """Its bytes."""
    return _pack([VERSION, asked.bucket_type])


def decode_roots_asked(data: bytes) -> RootsAsked:
    """Raises CodecError."""
    match _unpack(data, "a question for roots"):
        case [bytes(bucket_type)]:
            return RootsAsked(bucket_type)
    raise CodecError("not a question for roots")


def encode_leaves_asked(asked: LeavesAsked) -> bytes:
    """Its bytes."""
    return _pack([VERSION, asked.bucket_type, asked.branches, asked.size_bits])


def decode_leaves_asked(data: bytes) -> LeavesAsked:
    """Raises CodecError."""
    match _unpack(data, "a question for leaves"):
        case [bytes(bucket_type), list(branches), int(size_bits)] if (
            SIZE_BITS_MIN <= size_bits <= SEGMENT_BITS and len(branches) > 0 and _ascending(branches, BRANCH_COUNT)
        ):
            return LeavesAsked(bucket_type, tuple(branches), size_bits)
    raise CodecError("not a question for leaves: type, ascending branches, a size of 12 to 20 bits")


def encode_clocks_asked(asked: ClocksAsked) -> bytes:
    """Its bytes."""
    return _pack([VERSION, *asked])


def decode_clocks_asked(data: bytes) -> ClocksAsked:
    """Raises CodecError."""
    match _unpack(data, "a question for clocks"):
        case [bytes(bucket_type), list(segments), int(size_bits), int(since_ms), int(before_ms), int(rows)] if (
            SIZE_BITS_MIN <= size_bits <= SEGMENT_BITS
            and len(segments) > 0
            and _ascending(segments, 1 << size_bits)
            and min(since_ms, before_ms) >= 0
            and 0 < rows <= ROWS_MAX
        ):
            return ClocksAsked(bucket_type, tuple(segments), size_bits, since_ms, before_ms, rows)
    raise CodecError("not a question for clocks: type, ascending segments, size, time range, a number of rows")


def encode_hashes(told: HashesTold) -> bytes:
    """Its bytes."""
    return _pack([VERSION, _standings(told.standings), hashes_to_wire(told.hashes)])


def decode_hashes(data: bytes, count: int) -> HashesTold:
    """An answer of `count` hashes. Raises CodecError."""
    match _unpack(data, "tree hashes"):
        case [list(standings), bytes(hashes)]:
            return HashesTold(_decoded_standings(standings), hashes_from_wire(hashes, count))
    raise CodecError("not tree hashes")


ZSTD: Final = "zstd"
"""The one word that `?compress=` knows; a node that does not know the parameter answers without."""

ZSTD_LEVEL: Final = 1
"""The fastest: a link is to be spared, not an archive made."""

ZSTD_FROM_BYTES: Final = 512
"""Smaller answers are not compressed: nothing is gained."""


class RepairAccepted(NamedTuple):
    """An answer to another cluster: who answers, and the answer's bytes."""

    cluster: bytes
    cluster_name: str
    body: bytes


def encode_told(told: RepairAccepted, compress: str = "") -> bytes:
    """Its bytes; with ZSTD the answer's are one zstd frame that tells its size, and the word stands behind. Then beside
    the event loop: compressing takes milliseconds a megabyte."""
    if compress == ZSTD and len(told.body) >= ZSTD_FROM_BYTES:
        frame = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(told.body)
        return _pack([VERSION, told.cluster, told.cluster_name, frame, ZSTD])
    return _pack([VERSION, *told])


def decode_told(data: bytes) -> RepairAccepted:
    """Raises CodecError."""
    match _unpack(data, "an answer about trees"):
        case [bytes(cluster), str(name), bytes(body)] if len(cluster) == CLUSTER_BYTES:
            return RepairAccepted(cluster, name, body)
        case [bytes(cluster), str(name), bytes(frame), "zstd"] if len(cluster) == CLUSTER_BYTES:
            return RepairAccepted(cluster, name, _unzipped(frame))
    raise CodecError("not an answer about trees: cluster, its name, and the answer")


def _unzipped(frame: bytes) -> bytes:
    try:
        if not 0 < zstandard.frame_content_size(frame) <= MESSAGE_BYTES_MAX:
            raise CodecError(f"no zstd frame that says its size, of at most {MESSAGE_BYTES_MAX} bytes")
        plain: bytes = zstandard.ZstdDecompressor().decompress(frame, max_output_size=MESSAGE_BYTES_MAX)
    except zstandard.ZstdError as error:
        raise CodecError(f"not an answer about trees: {error}") from error
    return plain


class RepairAsked(NamedTuple):
    """Put references to these (bucket, key) into `queue`, at full-sync's priority: what is ahead here."""

    queue: str
    bucket_type: bytes
    names: tuple[tuple[bytes, bytes], ...]


def encode_repair_asked(asked: RepairAsked) -> bytes:
    """Its bytes."""
    return _pack([VERSION, *asked])


def decode_repair_asked(data: bytes) -> RepairAsked:
    """Raises CodecError."""
    match _unpack(data, "a request to repair"):
        case [str(queue), bytes(bucket_type), list(names)] if len(names) <= REPAIRS_MAX and all(map(_is_name, names)):
            return RepairAsked(queue, bucket_type, tuple((bucket, key) for bucket, key in names))
    raise CodecError(f"not a request to repair: queue, bucket type, up to {REPAIRS_MAX} pairs of bucket and key")


def encode_repaired(count: int) -> bytes:
    """The answer: how many were queued."""
    return _pack([VERSION, count])


def decode_repaired(data: bytes) -> int:
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


def leaf_count(asked: LeavesAsked) -> int:
    """Hashes of the answer."""
    return len(asked.branches) << (asked.size_bits - BRANCH_BITS)


def encode_rows(told: RowsTold) -> bytes:
    """Its bytes."""
    return _pack([VERSION, _standings(told.standings), told.covered, told.rows])


def decode_rows(data: bytes, asked: ClocksAsked) -> RowsTold:
    """The answer to `asked`. Raises CodecError."""
    match _unpack(data, "rows"):
        case [list(standings), int(covered), list(rows)] if 1 <= covered <= len(asked.segments):
            return RowsTold(_decoded_standings(standings), covered, [_row(raw) for raw in rows])
    raise CodecError("not rows of segments, or of none")


_ROW_TYPES: Final = [bytes, bytes, bytes, int, int, bool]


def _row(raw: object) -> ComparedRow:
    if type(raw) is list and list(map(type, raw)) == _ROW_TYPES:
        row = ComparedRow._make(raw)
        if row.bucket and row.key and 0 <= row.hash64 < 1 << 64 and row.modified_ms >= 0:
            return row
    raise CodecError("not a row: bucket, key, clock, hash, last modified, tombstone")


def _standings(standings: Sequence[TreeReadiness]) -> list[TreeReadiness]:
    return [standing._replace(reason=standing.reason[:REASON_MAX]) for standing in standings]


def _decoded_standings(raw: Sequence[object]) -> tuple[TreeReadiness, ...]:
    found: list[TreeReadiness] = []
    if len(raw) > PARTITIONS_MAX:
        raise CodecError(f"standings of {len(raw)} partitions, at most {PARTITIONS_MAX} are read")
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
