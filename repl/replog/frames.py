"""The log's binary format: file headers, frames and the runs in them. Pure; `docs/formats.md` describes it.

A log file is a header followed by frames. One frame is one group commit; its body is a sequence of runs, each of one
partition. A frame's checksums are seeded with its file's random salt and its own position, so neither the remains of
another file nor a frame stored as a value is taken for one. The bytes of an entry (`Entry.wire`) pass through
unchanged.

Decoders raise Corruption for anything that the encoders would not write, and trust no size before it is checked.
`repl.replog.reader` finds frames in files.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import pairwise
from struct import Struct, error, pack, unpack_from
from typing import Final, NamedTuple

from xxhash import xxh64_intdigest

from isthmus.repl.model.errors import Corruption, LocalFault
from isthmus.repl.replog.port import EpochTable

FORMAT_VERSION: Final = 1
"""Version of files and frames. A reader refuses any other; any change of a layout below raises it."""

FILE_MAGIC: Final = b"ISTHMLOG"
FRAME_MAGIC: Final = b"\xb1sTh"
"""Begins each frame. Not entirely ASCII, so that text values rarely contain it; the checksum decides anyway."""

MAX_BODY_BYTES: Final = (1 << 30) - 1
"""Maximum length of a frame's body. Far above a batch (4 MB) and the largest object (50 MB): a larger claim is corrupt,
and a larger entry is refused as too large."""

_FILE_HEADER: Final = Struct("<8sII16sQQQ")
_FRAME_HEADER: Final = Struct("<4sBBHIIQQQQ")
_FRAME_HEAD: Final = Struct("<4sBBHIIQQQ")
"""The frame header without its checksum."""
_RUN_HEADER: Final = Struct("<IBBHIIQII")
_STATE_ROW: Final = Struct("<IQ")
_U64: Final = Struct("<Q")

FILE_HEADER_BYTES: Final = _FILE_HEADER.size
FRAME_HEADER_BYTES: Final = _FRAME_HEADER.size
RUN_HEADER_BYTES: Final = _RUN_HEADER.size

_CHECKSUM_BYTES: Final = 8
_LENGTH_BYTES: Final = 4
_COMPLETE: Final = 1
_U64_MASK: Final = (1 << 64) - 1


class LogPosition(NamedTuple):
    """A position in the log: file sequence number and byte in that file. Ordered as the log."""

    sequence: int
    position: int


class FileHeader(NamedTuple):
    """The header of a log file. `salt` seeds the checksums of its frames."""

    cluster_uuid: bytes
    sequence: int
    salt: int


class FrameHeader(NamedTuple):
    """A frame's header.

    `durable`: everything before it was known to be on disk when the frame was written. `complete`: the runs are the
    STATE of every partition of the log.
    """

    complete: bool
    body_bytes: int
    run_count: int
    durable: LogPosition
    body_hash: int


class EntryRunKind(IntEnum):
    """The kinds of runs."""

    ENTRIES = 1
    """New entries [base, base + count) of one epoch; `previous_epoch` is that of the entry below base."""
    COPIED = 2
    """Entries copied from an older file before its deletion; they replace nothing and are not new."""
    TRUNCATE = 3
    """Entries from base on are dropped; `previous_epoch` as above, `epoch` is the leader's."""
    STATE = 4
    """The state of the partition's log: base is its start; the payload its LEO and epoch table."""
    START = 5
    """All entries are dropped: the log begins and ends at base; payload as for STATE."""


_KINDS: Final = {kind.value: kind for kind in EntryRunKind}
_ENTRIES: Final = int(EntryRunKind.ENTRIES)


class EntryRun(NamedTuple):
    """One run of a frame's body; its payload is body[payload_from:payload_to]."""

    partition: int
    kind: EntryRunKind
    epoch: int
    previous_epoch: int
    base: int
    item_count: int
    payload_from: int
    payload_to: int


def encode_file_header(header: FileHeader) -> bytes:
    """Return the first bytes of a log file."""
    head = _FILE_HEADER.pack(FILE_MAGIC, FORMAT_VERSION, 0, header.cluster_uuid, header.sequence, header.salt, 0)
    head = head[:-_CHECKSUM_BYTES]
    return head + _U64.pack(xxh64_intdigest(head))


def decode_file_header(data: bytes) -> FileHeader:
    """Return the file header in `data`. Raises Corruption, or LocalFault for another version."""
    if len(data) != FILE_HEADER_BYTES:
        raise Corruption("the file is shorter than its header")
    magic, version, reserved, cluster_uuid, sequence, salt, digest = _FILE_HEADER.unpack(data)
    if magic != FILE_MAGIC or digest != xxh64_intdigest(data[:-_CHECKSUM_BYTES]):
        raise Corruption("the file header fails its checksum")
    if version != FORMAT_VERSION or reserved:
        raise LocalFault(f"the file is of format version {version}, this program reads {FORMAT_VERSION}")
    return FileHeader(cluster_uuid, sequence, salt)


def frame_seed(salt: int, position: int) -> int:
    """Return the seed of the checksums of the frame at byte `position` of the file with `salt`."""
    return (salt + position) & _U64_MASK


def encode_frame_header(body: bytes, run_count: int, *, durable: LogPosition, complete: bool, seed: int) -> bytes:
    """Return the header of a frame with `body`."""
    assert len(body) <= MAX_BODY_BYTES
    flags = _COMPLETE if complete else 0
    sequence, position = durable
    head = _FRAME_HEAD.pack(
        FRAME_MAGIC,
        FORMAT_VERSION,
        flags,
        0,
        len(body),
        run_count,
        sequence,
        position,
        xxh64_intdigest(body, seed),
    )
    return head + _U64.pack(xxh64_intdigest(head, seed))


def decode_frame_header(data: bytes, seed: int) -> FrameHeader:
    """Return the frame header in `data`. Raises Corruption, or LocalFault for another version."""
    if len(data) != FRAME_HEADER_BYTES:
        raise Corruption("a frame header is cut short")
    magic, version, flags, reserved, body_bytes, run_count, sequence, position, body_hash, digest = (
        _FRAME_HEADER.unpack(data)
    )
    if magic != FRAME_MAGIC or digest != xxh64_intdigest(data[:-_CHECKSUM_BYTES], seed):
        raise Corruption("a frame header fails its checksum")
    if version != FORMAT_VERSION or reserved or flags & ~_COMPLETE:
        raise LocalFault(f"a frame is of format version {version}, this program reads {FORMAT_VERSION}")
    if body_bytes > MAX_BODY_BYTES or run_count * RUN_HEADER_BYTES > body_bytes:
        raise Corruption("a frame header contradicts itself")
    return FrameHeader(bool(flags), body_bytes, run_count, LogPosition(sequence, position), body_hash)


def encode_entries(
    kind: EntryRunKind,
    partition: int,
    epoch: int,
    previous_epoch: int,
    base: int,
    wires: Sequence[bytes],
    lengths: Sequence[int],
) -> list[bytes]:
    """Return a run of entries as buffers to write one after another: header, lengths, then the entries' bytes."""
    count = len(wires)
    payload = count * _LENGTH_BYTES + sum(lengths)
    return [
        _RUN_HEADER.pack(partition, kind, 0, 0, epoch, previous_epoch, base, count, payload),
        pack(f"<{count}I", *lengths),
        *wires,
    ]


def encode_truncate(partition: int, epoch: int, previous_epoch: int, to_offset: int) -> bytes:
    """Return a run that drops the partition's entries from `to_offset` on."""
    return _RUN_HEADER.pack(partition, EntryRunKind.TRUNCATE, 0, 0, epoch, previous_epoch, to_offset, 0, 0)


def encode_state(
    partition: int, start: int, leo: int, table: EpochTable, kind: EntryRunKind = EntryRunKind.STATE
) -> bytes:
    """Return a run with the state of the partition's log; of kind START, with its new start."""
    rows = b"".join(_STATE_ROW.pack(*row) for row in table)
    head = _RUN_HEADER.pack(partition, kind, 0, 0, 0, 0, start, len(table), _U64.size + len(rows))
    return head + _U64.pack(leo) + rows


def decode_runs(body: bytes, run_count: int) -> list[EntryRun]:
    """Return the runs of a frame's body. Raises Corruption when they do not add up."""
    runs: list[EntryRun] = []
    at = 0
    for _ in range(run_count):
        try:
            partition, number, spare, reserved, epoch, previous_epoch, base, count, length = _RUN_HEADER.unpack_from(
                body, at
            )
        except error as short:
            raise Corruption("a run header is cut short") from short
        payload_from = at + RUN_HEADER_BYTES
        at = payload_from + length
        kind = _KINDS.get(number)
        if kind is None or spare or reserved or at > len(body):
            raise Corruption("a run contradicts its frame")
        match kind:
            case EntryRunKind.ENTRIES | EntryRunKind.COPIED:
                fine = count > 0 and length >= count * _LENGTH_BYTES and epoch >= previous_epoch
            case EntryRunKind.TRUNCATE:
                fine = count == 0 and length == 0
            case EntryRunKind.STATE | EntryRunKind.START:
                fine = length == _U64.size + count * _STATE_ROW.size
        if not fine:
            raise Corruption(f"a run of kind {kind.name} contradicts itself")
        runs.append(EntryRun(partition, kind, epoch, previous_epoch, base, count, payload_from, at))
    if at != len(body):
        raise Corruption("a frame has bytes after its last run")
    return runs


def decode_wires(body: bytes, run: EntryRun, from_offset: int, to_offset: int) -> list[bytes]:
    """Return the bytes of entries [from, to) of a run. Raises Corruption when the lengths do not add up."""
    lengths: tuple[int, ...] = unpack_from(f"<{run.item_count}I", body, run.payload_from)
    at = run.payload_from + run.item_count * _LENGTH_BYTES
    if at + sum(lengths) != run.payload_to:
        raise Corruption("the lengths of a run's entries do not add up")
    first = from_offset - run.base
    at += sum(lengths[:first])
    wires: list[bytes] = []
    for length in lengths[first : to_offset - run.base]:
        wires.append(body[at : at + length])
        at += length
    return wires


def decode_new_entries(body: bytes, run_count: int) -> list[tuple[int, int, int, int, bytes, list[bytes]]]:
    """Return (partition, epoch, base, count, the run as it is in the body, its entries' bytes) of each run of a body.

    As `decode_runs` and `decode_wires`, for runs of new entries whose epoch is that of the entry below them: for them
    only. Raises Corruption."""
    found: list[tuple[int, int, int, int, bytes, list[bytes]]] = []
    at, end = 0, len(body)
    for _ in range(run_count):
        if at + RUN_HEADER_BYTES > end:
            raise Corruption("a run header is cut short")
        partition, kind, spare, reserved, epoch, previous_epoch, base, count, length = _RUN_HEADER.unpack_from(body, at)
        if kind not in _KINDS or spare or reserved:
            raise Corruption("a run contradicts its frame")
        if kind != _ENTRIES or epoch != previous_epoch:
            raise Corruption("a run that does not consist of new entries of one epoch")
        run_from, at = at, at + RUN_HEADER_BYTES
        run_to = at + length
        if run_to > end or not 0 < count <= length // _LENGTH_BYTES:
            raise Corruption("a run contradicts its frame")
        lengths: tuple[int, ...] = unpack_from(f"<{count}I", body, at)
        at += count * _LENGTH_BYTES
        wires: list[bytes] = []
        for each in lengths:
            wires.append(body[at : at + each])
            at += each
        if at != run_to:
            raise Corruption("the lengths of a run's entries do not add up")
        found.append((partition, epoch, base, count, body[run_from:run_to], wires))
    if at != end:
        raise Corruption("a frame has bytes after its last run")
    return found


def decode_state(body: bytes, run: EntryRun) -> tuple[int, EpochTable]:
    """Return (LEO, epoch table) of a STATE or START run. Raises Corruption when they contradict each other."""
    (leo,) = _U64.unpack_from(body, run.payload_from)
    rows = _STATE_ROW.iter_unpack(body[run.payload_from + _U64.size : run.payload_to])
    table: EpochTable = tuple((epoch, first) for epoch, first in rows)
    ascending = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(table))
    if leo < run.base or not ascending or (run.kind is EntryRunKind.START and leo != run.base):
        raise Corruption(f"a {run.kind.name} run contradicts itself")
    return leo, table
