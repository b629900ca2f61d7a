"""Codec of the messages between replicas. Pure; bytes are described in `docs/formats.md`.

A message is one flat msgpack list: partition, kind, its fields in the order of `repl.isr.messages`. Entries travel as
the bytes that their leader encoded (`Entry.wire`), concatenated behind their lengths, and are decoded here; an epoch
table as pairs of 8 bytes each; the partitions that a stream's message names as 4 bytes each, since two nodes may share
more partitions than a list of a frame has items. The runs of a stream are those of the log. Anything that `Encoder`
would not have written is a CodecError: types, ranges, names, an entry that does not verify or does not follow the one
before it. The core checks whether a message makes sense.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import pack as struct_pack
from struct import unpack as struct_unpack
from typing import Any, Final

import msgpack

from isthmus.repl.isr.epochs import EpochTable
from isthmus.repl.isr.messages import (
    AppendAck,
    AppendEntries,
    AppendRejected,
    FollowAccepted,
    FollowRejected,
    FollowRejection,
    FollowRequest,
    LeadershipCheck,
    LeadershipCheckOk,
    StaleEpoch,
    TransferMetadata,
    TransferRequest,
    TransferRows,
)
from isthmus.repl.isr.pair_stream import StreamAck, StreamGroup, StreamRun
from isthmus.repl.model.entry import Entry, decode_entry
from isthmus.repl.model.errors import CodecError, Corruption
from isthmus.repl.model.vclock import MAX_EPOCH, MAX_OFFSET
from isthmus.repl.replog.frames import RUN_HEADER_BYTES, decode_new_entries
from isthmus.repl.transport.frames import Parts, bin_head, list_head
from isthmus.repl.transport.port import NO_CURSORS, Delivery, LinkMessage

NAME_LENGTH_MAX: Final = 64
"""Longest name of a node, in characters, as in the configuration."""

PARTITION_MAX: Final = (1 << 32) - 1
_NUMBER_MAX: Final = (1 << 64) - 1
"""Greatest gen, nonce, sequence number and record version: the greatest integer of msgpack."""

FROM_FOLLOWER: Final = frozenset(
    (FollowRequest, AppendAck, AppendRejected, LeadershipCheckOk, TransferRequest, StreamAck)
)
"""Messages to a leader, over the connection that the follower dialled."""

FROM_LEADER: Final = frozenset(
    (FollowAccepted, FollowRejected, AppendEntries, LeadershipCheck, TransferRows, TransferMetadata, StreamGroup)
)
"""Messages to a follower, over the same connection. StaleEpoch may go either way."""

_pack: Final = msgpack.Packer().pack  # one for all: see repl.model.vclock

_KIND_OF: Final[Mapping[type, int]] = {
    FollowRequest: 1,
    FollowAccepted: 2,
    FollowRejected: 3,
    AppendEntries: 4,
    AppendAck: 5,
    AppendRejected: 6,
    LeadershipCheck: 7,
    LeadershipCheckOk: 8,
    StaleEpoch: 9,
    TransferRequest: 10,
    TransferRows: 11,
    TransferMetadata: 12,
    StreamGroup: 13,
    StreamAck: 14,
}

_NUMBERS: Final[Mapping[int, tuple[type[Any], tuple[int, ...]]]] = {
    2: (FollowAccepted, (MAX_EPOCH, _NUMBER_MAX, MAX_OFFSET, MAX_OFFSET, MAX_OFFSET)),
    5: (AppendAck, (MAX_EPOCH, _NUMBER_MAX, _NUMBER_MAX, MAX_OFFSET, MAX_OFFSET, MAX_OFFSET)),
    6: (AppendRejected, (MAX_EPOCH, _NUMBER_MAX, _NUMBER_MAX, MAX_OFFSET)),
    7: (LeadershipCheck, (MAX_EPOCH, _NUMBER_MAX)),
    8: (LeadershipCheckOk, (MAX_EPOCH, _NUMBER_MAX, _NUMBER_MAX, MAX_OFFSET)),
    9: (StaleEpoch, (MAX_EPOCH,)),
}
"""Kinds with integer fields only -> the class, and the greatest value of each field."""

_FOLLOW_LIMITS: Final = (MAX_EPOCH, _NUMBER_MAX, _NUMBER_MAX, MAX_OFFSET, MAX_OFFSET)
_TRANSFER_REQUEST_LIMITS: Final = (MAX_EPOCH, _NUMBER_MAX, _NUMBER_MAX, MAX_OFFSET, MAX_EPOCH, 1, MAX_OFFSET)
_TRANSFER_ROWS_LIMITS: Final = (MAX_EPOCH, _NUMBER_MAX, MAX_OFFSET, MAX_OFFSET, MAX_EPOCH, MAX_OFFSET)
_TRANSFER_METADATA_LIMITS: Final = (MAX_EPOCH, _NUMBER_MAX, MAX_OFFSET)
_REJECTED_LIMITS: Final = (MAX_EPOCH, _NUMBER_MAX)
_APPEND_LIMITS: Final = (MAX_EPOCH, _NUMBER_MAX, MAX_OFFSET, MAX_EPOCH, MAX_OFFSET, MAX_OFFSET, _NUMBER_MAX)
_STREAM_LIMITS: Final = (_NUMBER_MAX, _NUMBER_MAX, _NUMBER_MAX)
_GROUP, _STREAM_ACK = _KIND_OF[StreamGroup], _KIND_OF[StreamAck]
_GROUP_FIELDS: Final = 8
_GROUP_HEAD: Final = list_head(_GROUP_FIELDS)
_FOLLOW, _REJECTED, _APPEND = _KIND_OF[FollowRequest], _KIND_OF[FollowRejected], _KIND_OF[AppendEntries]
_TRANSFER: Final = frozenset((_KIND_OF[TransferRequest], _KIND_OF[TransferRows], _KIND_OF[TransferMetadata]))
_APPEND_FIELDS: Final = 13
_APPEND_HEAD: Final = list_head(_APPEND_FIELDS)
_REJECTIONS: Final = {refusal.value: refusal for refusal in FollowRejection}
_NO_ENTRIES: Final = bin_head(0) * 2
_NO_CURSORS: Final = b"\x80"


class Encoder:
    """Encodes messages as items of a frame. Entries for several followers are encoded once in a turn of the loop."""

    def __init__(self) -> None:
        self._encoded: dict[tuple[int, int, int], tuple[tuple[Entry, ...], Parts]] = {}

    def forget(self) -> None:
        """Forget encoded entries: the turn of the loop is over."""
        self._encoded.clear()

    def item(self, partition: int, message: LinkMessage, cursors: Mapping[bytes, bytes] = NO_CURSORS) -> Parts:
        """`message` as an item, in parts. `cursors` travel with an AppendEntries."""
        kind = _KIND_OF[type(message)]
        if kind in _NUMBERS:
            return (_pack((partition, kind, *message)),)
        match message:
            case AppendEntries():
                head = _APPEND_HEAD + _pack((partition, kind, *message[:8]))[1:]
                tail = _pack(dict(cursors)) if cursors else _NO_CURSORS
                if not message.entries:
                    return (head + _NO_ENTRIES + tail,)
                return (head, *self._entries(message.entries), tail)
            case FollowRequest():
                return (_pack((partition, kind, *message[:5], _table_bytes(message.table), message.rounds)),)
            case TransferRequest():
                return (_pack((partition, kind, *message)),)
            case TransferRows(rows=rows):
                head = list_head(9) + _pack((partition, kind, *message[:6]))[1:]
                return (head + bin_head(len(rows)), rows)
            case TransferMetadata(epoch, nonce, end, after, last, done, table, rows):
                fields = (partition, kind, epoch, nonce, end, after, last, done, _table_bytes(table))
                return (list_head(10) + _pack(fields)[1:] + bin_head(len(rows)), rows)
            case FollowRejected(epoch, nonce, refusal, log_start):
                return (_pack((partition, kind, epoch, nonce, refusal.value, log_start)),)
            case StreamGroup(stream, number, committed, held, runs):
                bodies = [run.encoded for run in runs]
                packed = _pack((partition, kind, stream, number, committed, _partition_bytes(held), len(runs)))
                head = _GROUP_HEAD + packed[1:] + bin_head(sum(map(len, bodies)))
                return (head, *bodies)
            case StreamAck(stream, ack, number, left):
                return (_pack((partition, kind, stream, ack, number, _partition_bytes(left))),)
            case _:
                raise AssertionError(f"no message: {message!r}")

    def _entries(self, entries: tuple[Entry, ...]) -> Parts:
        # Entries of one log with the same first and last object are the same. They are kept alive until `forget`, so an
        # id belongs to one object; an offset that was written again is another object.
        name = (id(entries[0]), id(entries[-1]), len(entries))
        made = self._encoded.get(name)
        if made is None:
            wires = [entry.wire for entry in entries]
            lengths = struct_pack(f"<{len(wires)}I", *map(len, wires))
            joined = b"".join(wires)
            parts = (bin_head(len(lengths)) + lengths + bin_head(len(joined)), joined)
            made = self._encoded[name] = (entries, parts)
        return made[1]


def decode_item(raw: Any) -> Delivery:
    """Decode one item of a frame. Raises CodecError."""
    if type(raw) is not tuple or len(raw) < 3:
        raise CodecError("a message that is not a list of at least three fields")
    partition, kind = raw[:2]
    if type(partition) is not int or not 0 <= partition <= PARTITION_MAX:
        raise CodecError("a message without a partition")
    if type(kind) is not int:
        raise CodecError("a message without a kind")
    known = _NUMBERS.get(kind)
    if known is not None:
        cls, limits = known
        fields = raw[2:]
        _check_numbers(cls.__name__, fields, limits)
        return Delivery(partition, cls._make(fields))
    if kind == _APPEND:
        return _append_entries(partition, raw)
    if kind == _GROUP:
        return Delivery(partition, _stream_group(raw))
    if kind == _STREAM_ACK:
        return Delivery(partition, _stream_ack(raw))
    if kind == _FOLLOW:
        return Delivery(partition, _follow_request(raw))
    if kind == _REJECTED:
        return Delivery(partition, _follow_rejected(raw))
    if kind in _TRANSFER:
        return _transfer(partition, kind, raw)
    raise CodecError(f"a message of unknown kind {kind}")


def _check_numbers(what: str, fields: tuple[Any, ...], limits: tuple[int, ...]) -> None:
    if len(fields) != len(limits):
        raise CodecError(f"{what} of {len(fields)} fields, it has {len(limits)}")
    for value, limit in zip(fields, limits):  # noqa: B905 - of one length
        if type(value) is not int or not 0 <= value <= limit:
            raise CodecError(f"{what} with a field that is not a number within its range")


def _follow_request(raw: tuple[Any, ...]) -> FollowRequest:
    if len(raw) != 9:
        raise CodecError("FollowRequest with a wrong number of fields")
    _check_numbers("FollowRequest", (*raw[2:7], raw[8]), (*_FOLLOW_LIMITS, _NUMBER_MAX))
    return FollowRequest._make((*raw[2:7], _table(raw[7]), raw[8]))


def _table_bytes(table: EpochTable) -> bytes:
    flat = [number for row in table for number in row]
    return struct_pack(f"<{len(flat)}Q", *flat)


def _transfer(partition: int, kind: int, raw: tuple[Any, ...]) -> Delivery:
    """A message of a state transfer; the store verifies its chunk."""
    match kind, raw[2:]:
        case 10, (*numbers, bytes(after)):
            _check_numbers("TransferRequest", tuple(numbers), _TRANSFER_REQUEST_LIMITS)
            return Delivery(partition, TransferRequest._make((*numbers, after)))
        case 11, (*numbers, bytes(rows)):
            _check_numbers("TransferRows", tuple(numbers), _TRANSFER_ROWS_LIMITS)
            return Delivery(partition, TransferRows._make((*numbers, rows)))
        case 12, (epoch, nonce, end, bytes(after), bytes(last), int(done), table, bytes(rows)) if done in (0, 1):
            _check_numbers("TransferMetadata", (epoch, nonce, end), _TRANSFER_METADATA_LIMITS)
            return Delivery(partition, TransferMetadata(epoch, nonce, end, after, last, int(done), _table(table), rows))
    raise CodecError("a message of a transfer round with wrong fields")


def _table(raw: Any) -> EpochTable:
    if type(raw) is not bytes or len(raw) % 16:
        raise CodecError("an epoch table that does not consist of pairs")
    flat = struct_unpack(f"<{len(raw) // 8}Q", raw)
    table = tuple(zip(flat[::2], flat[1::2], strict=True))
    epoch_before, offset_before = 0, -1
    for epoch, offset in table:
        if not epoch_before < epoch <= MAX_EPOCH or not offset_before < offset <= MAX_OFFSET:
            raise CodecError("an epoch table that does not rise")
        epoch_before, offset_before = epoch, offset
    return table


def _follow_rejected(raw: tuple[Any, ...]) -> FollowRejected:
    if len(raw) != 6:
        raise CodecError("FollowRejected with a wrong number of fields")
    _, _, epoch, nonce, refusal, log_start = raw
    _check_numbers("FollowRejected", (epoch, nonce), _REJECTED_LIMITS)
    _check_numbers("FollowRejected", (log_start,), (MAX_OFFSET,))
    if type(refusal) is not str or refusal not in _REJECTIONS:
        raise CodecError("FollowRejected without a known reason")
    return FollowRejected(epoch, nonce, _REJECTIONS[refusal], log_start)


def _append_entries(partition: int, raw: tuple[Any, ...]) -> Delivery:
    if len(raw) != _APPEND_FIELDS:
        raise CodecError("AppendEntries with a wrong number of fields")
    isr, lengths, joined, cursors = raw[9:]
    numbers = raw[2:9]
    _check_numbers("AppendEntries", numbers, _APPEND_LIMITS)
    if type(isr) is not tuple or not all(type(name) is str and 0 < len(name) <= NAME_LENGTH_MAX for name in isr):
        raise CodecError("AppendEntries with an ISR that is not a list of names")
    if type(lengths) is not bytes or len(lengths) % 4 or type(joined) is not bytes or type(cursors) is not dict:
        raise CodecError("AppendEntries with entries or cursors of a wrong type")
    for name, state in cursors.items():
        if type(name) is not bytes or type(state) is not bytes:
            raise CodecError("AppendEntries with a cursor that is not bytes")
    epoch, _, start, before = numbers[:4]
    entries = _entries_of(lengths, joined, start, before, epoch) if lengths or joined else ()
    return Delivery(partition, AppendEntries._make((*numbers, isr, entries)), cursors or NO_CURSORS)


def _stream_group(raw: tuple[Any, ...]) -> StreamGroup:
    """A group; its runs are checked here, their entries when they are applied."""
    if len(raw) != _GROUP_FIELDS:
        raise CodecError("StreamGroup with a wrong number of fields")
    held, run_count, body = raw[5:]
    _check_numbers("StreamGroup", raw[2:5], _STREAM_LIMITS)
    _check_numbers("StreamGroup", (run_count,), (PARTITION_MAX,))
    if type(body) is not bytes or run_count * RUN_HEADER_BYTES > len(body):
        raise CodecError("StreamGroup whose runs do not fit into its body")
    runs: list[StreamRun] = []
    try:
        for partition, epoch, start, count, encoded, wires in decode_new_entries(body, run_count):
            if not 0 < epoch <= MAX_EPOCH:
                raise CodecError("StreamGroup with an epoch out of range")
            if start + count > MAX_OFFSET:
                raise CodecError("StreamGroup with an offset out of range")
            runs.append(StreamRun(partition, epoch, start, count, encoded, wires))
    except Corruption as error:
        raise CodecError(f"StreamGroup: {error}") from error
    return StreamGroup(*raw[2:5], _partitions("StreamGroup", held), tuple(runs))


def _stream_ack(raw: tuple[Any, ...]) -> StreamAck:
    if len(raw) != 6:
        raise CodecError("StreamAck with a wrong number of fields")
    _check_numbers("StreamAck", raw[2:5], _STREAM_LIMITS)
    return StreamAck(*raw[2:5], _partitions("StreamAck", raw[5]))


def _partition_bytes(partitions: tuple[int, ...]) -> bytes:
    return struct_pack(f"<{len(partitions)}I", *partitions)


def _partitions(what: str, raw: Any) -> tuple[int, ...]:
    if type(raw) is not bytes or len(raw) % 4:
        raise CodecError(f"{what} with partitions that are not numbers of 4 bytes each")
    return struct_unpack(f"<{len(raw) // 4}I", raw)


def _entries_of(lengths: bytes, joined: bytes, start: int, before: int, epoch: int) -> tuple[Entry, ...]:
    """The entries of an AppendEntries: offsets from `start` on without a gap, epochs that do not fall, none above
    `epoch`."""
    entries: list[Entry] = []
    at, offset, epoch_before = 0, start, before
    for length in struct_unpack(f"<{len(lengths) // 4}I", lengths):
        entry = decode_entry(joined[at : at + length])
        if entry.offset != offset:
            raise CodecError(f"AppendEntries with an entry of offset {entry.offset} in place of {offset}")
        if not epoch_before <= entry.epoch <= epoch:
            raise CodecError("AppendEntries with entries whose epochs fall, or rise above its own")
        entries.append(entry)
        at += length
        offset += 1
        epoch_before = entry.epoch
    if at != len(joined):
        raise CodecError("AppendEntries with bytes that belong to no entry")
    return tuple(entries)
