"""The messages between the coordinators of one cluster: forwarded items, and the answer to each. Pure.

    kv.write  writes                                 -> one answer each
    kv.push   changes of another cluster             -> one answer each
    kv.get    isolation, keys                        -> one answer each; LATER from where the answer is full
    kv.list   partition, bucket or none, after what; for an ordered page also prefix, most names, most bytes
                                                     -> names, and where to continue

A body is msgpack `[version, head, [item, ...]]`, an answer `[version, [[0, ...] | [1, kind, reason, sentence, leader] |
[2], ...]]`: the value, an error, or LATER. Decoding is strict: the bytes come from a node of the same cluster, but
perhaps of another release. An error keeps its class if this release has it, and its kind otherwise. Usual bodies and
answers are decoded in one step by their types, all others item by item, with the same result.
`repl.coordinator.forwarding` sends the requests, `repl.coordinator.forwarded_requests` answers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, cast

import msgpack
import msgspec
from msgspec import Meta

from isthmus.repl.model.conditions import Condition
from isthmus.repl.model.errors import (
    BadInput,
    CodecError,
    IsthmusError,
    LocalFault,
    NotLeader,
    OutcomeUnknown,
    PeerFault,
    Retryable,
)
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.requests import (
    Isolation,
    MergedWith,
    PushItem,
    PushOutcome,
    PushResult,
    WriteRequest,
    WriteResult,
)
from isthmus.repl.model.vclock import decode_clock, encode_clock

VERSION: Final = 1

WRITE: Final = "kv.write"
PUSH: Final = "kv.push"
GET: Final = "kv.get"
LIST: Final = "kv.list"

ITEMS_MAX: Final = 10_000
"""Most items of one body: the receiver refuses more. The sender stays far below it
(`repl.coordinator.forwarding`)."""

KINDS: Final[dict[str, type[IsthmusError]]] = {
    "bad-input": BadInput,
    "retry": Retryable,
    "outcome-unknown": OutcomeUnknown,
    "peer-fault": PeerFault,
    "local-fault": LocalFault,
}
"""Caller's reaction to an error (`repl.model.errors`): how an error of an unknown reason is understood."""

Item = TypeVar("Item")

_pack: Final = msgspec.msgpack.Encoder().encode
"""The same bytes as msgpack's, in half the time."""

_new: Final = tuple.__new__
"""Makes a named tuple of all its fields, in order, at half the cost of its own constructor."""


class Later:
    """The answer to an item that did not fit: ask again for it."""


LATER: Final = Later()


ListPosition = tuple[bytes, bytes | None]
"""(bucket, key) behind which a listing goes on; a key of None: behind all keys of the bucket."""


class ListAsk(NamedTuple):
    """A page of a listing: names in `partition` behind `after`: keys of `bucket`; None: buckets.

    With a `limit` it is a page of an ordered listing: names that begin with `prefix`, at most about `limit` and
    `page_bytes`. Without one, it is a page that nodes of all versions answer."""

    partition: int
    bucket: bytes | None
    after: ListPosition | None
    prefix: bytes = b""
    limit: int = 0
    page_bytes: int = 0


class ListPage(NamedTuple):
    """Live names of a page, and where the next one begins; None after the last."""

    names: list[bytes]
    after: ListPosition | None


# -- items ----------------------------------------------------------------------------------------------------


def encode_write(request: WriteRequest) -> bytes:
    """A write as an item of a body."""
    content = request.content
    clock = encode_clock(request.context) if request.context else None
    row = (*request.key, *content, clock, request.request_id, request.payload_wanted)
    return _pack(row if request.condition is None else (*row, _condition_row(request.condition)))


def _condition_row(condition: Condition) -> tuple[Any, ...]:
    return (*condition[:4], None if condition.clock is None else encode_clock(condition.clock))


def _condition(raw: Any) -> Condition:
    """The condition in an item. Raises CodecError."""
    match raw:
        case (
            (tuple() | None) as match, (tuple() | None) as none_match, (int() | None) as unmodified_s,
            (int() | None) as modified_s, (bytes() | None) as clock,
        ) if all(type(tag) is str for tag in (*(match or ()), *(none_match or ()))):  # fmt: skip
            return Condition(
                match, none_match, unmodified_s, modified_s, None if clock is None else decode_clock(clock)
            )
    raise CodecError("not the condition of a forwarded write")


def decode_write(raw: Any) -> WriteRequest:
    """The write in an item. Raises CodecError."""
    match raw:
        case (
            bytes(), bytes(), bytes(), bytes(), bytes(), bytes(), tuple(metadata), tuple(links), tuple(indexes),
            bool(), (bytes() | None) as clock, bytes(request_id), bool(wanted), *more,
        ) if len(more) < 2 and (not (metadata or links or indexes) or _all_rows(metadata, links, indexes)):  # fmt: skip
            context = None if clock is None else decode_clock(clock)
            condition = _condition(more[0]) if more else None
            key, content = _new(Key, raw[:3]), _new(Content, raw[3:10])
            return _new(WriteRequest, (key, content, context, request_id, wanted, condition))
    raise CodecError("not a forwarded write")


def _all_rows(metadata: tuple[Any, ...], links: tuple[Any, ...], indexes: tuple[Any, ...]) -> bool:
    return _all_bytes(metadata, 2) and _all_bytes(links, 3) and _all_bytes(indexes, 2)


def _all_bytes(rows: tuple[Any, ...], width: int) -> bool:
    return all(type(row) is tuple and len(row) == width and all(type(cell) is bytes for cell in row) for row in rows)


def encode_push(item: PushItem) -> bytes:
    """A push as an item of a body."""
    plain = (*item.key, item.origin, item.payload)
    return _pack((*plain, True) if item.leaving else plain)


def decode_push(raw: Any) -> PushItem:
    """The push in an item. Raises CodecError."""
    match raw:
        case (bytes(), bytes(), bytes(), bytes(origin), bytes(payload)):
            return PushItem(Key(*raw[:3]), origin, payload)
        case (bytes(), bytes(), bytes(), bytes(origin), bytes(payload), True):
            return PushItem(Key(*raw[:3]), origin, payload, True)
    raise CodecError("not a forwarded push")


def encode_key(key: Key) -> bytes:
    """A key as an item of a body."""
    return _pack(key)


def decode_key(raw: Any) -> Key:
    """The key in an item. Raises CodecError."""
    match raw:
        case (bytes(), bytes(), bytes()):
            return Key(*raw)
    raise CodecError("not a forwarded read")


# -- bodies ---------------------------------------------------------------------------------------------------


def encode_body(head: Any, items: Sequence[bytes]) -> bytes:
    """A body of encoded items; `head` is the isolation of a read, nil otherwise."""
    return b"".join((b"\x93", _pack(VERSION), _pack(head), _list_head(len(items)), *items))


def decode_body(body: bytes, decode_item: Callable[[Any], Item]) -> tuple[Any, list[Item]]:
    """(head, items) of a body. Raises CodecError."""
    match _unpacked(body):
        case (_, head, tuple(items)) if len(items) <= ITEMS_MAX:
            return head, [decode_item(item) for item in items]
    raise CodecError("not a forwarded request: no version, head and items, or too many of them")


_ITEMS: Final = Meta(max_length=ITEMS_MAX)
"""Bound of every list of a usual body, which is checked before the list is allocated."""

_Pairs = Annotated[tuple[tuple[bytes, bytes], ...], _ITEMS]
_Links = Annotated[tuple[tuple[bytes, bytes, bytes], ...], _ITEMS]
_UsualPush = tuple[bytes, bytes, bytes, bytes, bytes]
_UsualWrite = tuple[
    bytes, bytes, bytes, bytes, bytes, bytes, _Pairs, _Links, _Pairs, bool, bytes | None, bytes, bool,
]  # fmt: skip
_USUAL_PUSHES: Final = msgspec.msgpack.Decoder(tuple[Literal[1], None, Annotated[tuple[_UsualPush, ...], _ITEMS]])
_USUAL_WRITES: Final = msgspec.msgpack.Decoder(tuple[Literal[1], None, Annotated[tuple[_UsualWrite, ...], _ITEMS]])
_UNUSUAL: Final = (msgspec.DecodeError, ValueError, RecursionError)
"""Exceptions for bytes that are not of the usual form."""


def decode_pushes(body: bytes) -> list[PushItem]:
    """The pushes of a body. Raises CodecError."""
    try:
        items = _USUAL_PUSHES.decode(body)[2]
    except _UNUSUAL:
        return decode_body(body, decode_push)[1]
    return [_new(PushItem, (_new(Key, item[:3]), item[3], item[4], False)) for item in items]


def decode_writes(body: bytes) -> list[WriteRequest]:
    """The writes of a body. Raises CodecError."""
    try:
        items = _USUAL_WRITES.decode(body)[2]
    except _UNUSUAL:
        return decode_body(body, decode_write)[1]
    return [_usual_write(item) for item in items]


def _usual_write(item: _UsualWrite) -> WriteRequest:
    clock = item[10]
    context = None if clock is None else decode_clock(clock)
    return _new(WriteRequest, (_new(Key, item[:3]), _new(Content, item[3:10]), context, item[11], item[12], None))


def _list_head(count: int) -> bytes:
    """The msgpack head of a list of at most ITEMS_MAX items."""
    return bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def decode_isolation(head: Any) -> Isolation:
    """The isolation in a read's head. Raises CodecError."""
    try:
        return Isolation(head)
    except ValueError:
        raise CodecError("a forwarded read without a known isolation") from None


def _unpacked(data: bytes) -> Any:
    try:
        raw = msgpack.unpackb(data, use_list=False, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise CodecError(f"not a forwarded request or its answer: {error}") from error
    if type(raw) is not tuple or not raw or raw[0] != VERSION:
        raise CodecError(f"not a forwarded request or its answer of version {VERSION}")
    return raw


# -- answers --------------------------------------------------------------------------------------------------


def encode_answers(answers: Sequence[object], encode_value: Callable[[Any], tuple[Any, ...]]) -> bytes:
    """One answer per item: a value, an error or LATER."""
    rows = [
        _error_row(a) if isinstance(a, IsthmusError) else (2,) if a is LATER else (0, *encode_value(a)) for a in answers
    ]
    return _pack((VERSION, rows))


def encode_write_answers(results: Sequence[object]) -> bytes:
    """The answers to writes."""
    if {*map(type, results)} == {WriteResult}:
        return _pack((VERSION, [(0, *result[:5]) for result in cast(Sequence[WriteResult], results)]))
    return encode_answers(results, written_row)


def encode_push_answers(results: Sequence[object]) -> bytes:
    """The answers to pushes."""
    count = len(results)
    return _all_applied(count) if results.count(_APPLIED) == count else encode_answers(results, pushed_row)


_APPLIED: Final = PushResult(PushOutcome.APPLIED)
_APPLIED_ROW: Final = _pack((0, PushOutcome.APPLIED.value))


def _all_applied(count: int) -> bytes:
    """The answer to `count` pushes that are all applied."""
    return b"\x92" + _pack(VERSION) + _list_head(count) + _APPLIED_ROW * count


def decode_answers(answer: bytes, count: int, decode_value: Callable[[tuple[Any, ...]], object]) -> list[object]:
    """The `count` answers in an answer. Raises CodecError."""
    match _unpacked(answer):
        case (_, tuple(rows)) if len(rows) == count:
            return list(_answers(rows, decode_value))
    raise CodecError(f"an answer to other than the {count} items that were asked")


_USUAL_WRITTEN: Final = msgspec.msgpack.Decoder(
    tuple[Literal[1], Annotated[tuple[tuple[Literal[0], bytes, bytes, int, bool, bool], ...], _ITEMS]]
)


def decode_write_answers(answer: bytes, count: int, leader: str) -> list[object]:
    """The `count` answers of node `leader` to writes. Raises CodecError."""
    try:
        rows = _USUAL_WRITTEN.decode(answer)[1]
    except _UNUSUAL:
        rows = ()
    if not count or len(rows) != count:
        return decode_answers(answer, count, partial(decode_written, leader=leader))
    return [_new(WriteResult, (*row[1:], leader)) for row in rows]


def decode_push_answers(answer: bytes, count: int) -> list[object]:
    """The `count` answers to pushes. Raises CodecError."""
    return [_APPLIED] * count if answer == _all_applied(count) else decode_answers(answer, count, decode_pushed)


def decode_read_answers(answer: bytes, count: int) -> list[object]:
    """The `count` answers to reads. Raises CodecError."""
    return decode_answers(answer, count, decode_read)


def _answers(rows: tuple[Any, ...], decode_value: Callable[[tuple[Any, ...]], object]) -> Iterator[object]:
    for row in rows:
        match row:
            case (0, *_):
                yield decode_value(row[1:])
            case (1, str(kind), str(reason), str(sentence), (str() | None) as leader) if kind in KINDS:
                yield _error(kind, reason, sentence, leader)
            case (2,):
                yield LATER
            case _:
                raise CodecError("an answer that is neither value nor error")


def written_row(written: WriteResult) -> tuple[Any, ...]:
    """A write's answer; the asking node knows the leader."""
    return written[:5]


def decode_written(row: tuple[Any, ...], leader: str = "") -> WriteResult:
    """The answer of a write by node `leader`. Raises CodecError."""
    match row:
        case (bytes(), bytes(), int(), bool(), bool()):
            return _new(WriteResult, (*row, leader))
    raise CodecError("not the answer to a write")


def pushed_row(result: PushResult) -> tuple[Any, ...]:
    """A push's answer; an error is encoded as one. The version that a merge met follows. A node of an earlier release
    takes that for a malformed answer and pushes the batch again; then all of it is superseded."""
    return (result.outcome.value,) if result.met is None else (result.outcome.value, *result.met)


def decode_pushed(row: tuple[Any, ...]) -> PushResult:
    """The answer of a push. Raises CodecError."""
    match row:
        case (PushOutcome.APPLIED | PushOutcome.MERGED | PushOutcome.SUPERSEDED,):
            return PushResult(PushOutcome(row[0]))
        case (PushOutcome.MERGED, bytes() as clock, int() as siblings):
            return PushResult(PushOutcome.MERGED, None, MergedWith(clock, siblings))
    raise CodecError("not the answer to a push")


def read_row(payload: bytes | None) -> tuple[Any, ...]:
    """A read's answer."""
    return (payload,)


def decode_read(row: tuple[Any, ...]) -> bytes | None:
    """The answer of a read. Raises CodecError."""
    match row:
        case ((bytes() | None) as payload,):
            return payload
    raise CodecError("not the answer to a read")


def _error_row(error: IsthmusError) -> tuple[Any, ...]:
    kind = next((name for name, base in KINDS.items() if isinstance(error, base)), "local-fault")
    return 1, kind, error.reason, str(error), error.leader if isinstance(error, NotLeader) else None


def _error(kind: str, reason: str, sentence: str, leader: str | None) -> IsthmusError:
    for found in _family(KINDS[kind]):
        if found.reason == reason:
            return NotLeader(sentence, leader) if issubclass(found, NotLeader) else found(sentence)
    error = KINDS[kind](sentence)
    error.reason = reason
    return error


def _family(base: type[IsthmusError]) -> Iterator[type[IsthmusError]]:
    yield base
    for sub in base.__subclasses__():
        yield from _family(sub)


# -- listings -------------------------------------------------------------------------------------------------


def encode_list_ask(ask: ListAsk) -> bytes:
    """The body of kv.list."""
    return bytes(msgpack.packb((VERSION, *(ask if ask.limit else ask[:3]))))


def decode_list_ask(body: bytes) -> ListAsk:
    """The request in a body of kv.list. Raises CodecError."""
    match _unpacked(body):
        case (_, int(partition), (bytes() | None) as bucket, ((bytes(), bytes()) | None) as after):
            return ListAsk(partition, bucket, after)
        case (
            _, int(partition), (bytes() | None) as bucket, ((bytes(), bytes() | None) | None) as after, bytes(prefix),
            int(limit), int(page_bytes),
        ) if limit > 0 and page_bytes > 0:  # fmt: skip
            return ListAsk(partition, bucket, after, prefix, limit, page_bytes)
    raise CodecError("not a request for a page of a listing")


def encode_list_page(page: ListPage) -> bytes:
    """The answer of kv.list."""
    return bytes(msgpack.packb((VERSION, *page)))


def decode_list_page(answer: bytes) -> ListPage:
    """The page in an answer. Raises CodecError."""
    match _unpacked(answer):
        case (_, tuple(names), ((bytes(), bytes() | None) | None) as after) if all(
            type(name) is bytes for name in names
        ):
            return ListPage(list(names), after)
    raise CodecError("not a page of a listing")
