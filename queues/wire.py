"""Wire format of fetches: request and answer bodies in msgpack, and the errors of a fetch.

`POST /queues/NAME/fetch`: the request, a map:

    v            1
    cluster      16 bytes: uuid of the cluster that fetches       name         its name, text
    node         the fetching node's name, text                   incarnation  8 bytes, new with each process
    link         int: which of the process's links to this queue
    acks         [[batch id, owner version, failed], ...]: failed is the list of indexes to come again, nil for all
    holding      batch ids that this link still processes; leases of all its other batches end at once. nil: unknown
    max_count    most changes to send, 0: acknowledge only        max_bytes    most payload bytes to send
    wait_ms      how long the source may wait for a change to send
    outcomes     for each of acks [applied, merged, superseded, rejected], nil: unknown. Absent: unknown
    compress     "zstd": items may be compressed. Absent: they are not
    properties   {bucket type: digest of the properties that must agree, 8 bytes}. Absent: unknown
    given_up     for each of acks the indexes that were refused for good and are not kept as dead letters. Absent: none
    types        [bucket type, ...]: all that the fetching cluster has. nil or absent: unknown
    places       {bucket type: {bucket: digest}}: 2 bytes for each property that must agree, in a fixed order, of each
                 bucket whose values are not its bucket type's and, with an empty name as the bucket, of each bucket
                 type whose values are not the defaults. Absent: unknown
    share        {bucket type: [number of its partitions, bits]}: the partitions that the fetching node leads in its
                 cluster, number i in bit i % 8 of byte i // 8; changes of others are sent to it only if their own node
                 does not fetch them. A bucket type that is not named, or has another number of partitions at the
                 source: changes of all its partitions. Absent: of all partitions

The answer, a map:

    v, cluster, name                the source cluster
    owner_version                   goes back with the acknowledgement
    batch                           id, empty when there are no items
    lease_ms, now_ms                how long the batch is held; the source's wall clock
    waited_ms                       how long the source held the request before it took the batch. Absent: unknown
    state                           serving, suspended, starting, throttled, off
    items        [[kind, partition, offset, bucket type, bucket, key, origin, time ms, payload], ...]
    zstd         instead of `items`: their msgpack in one zstd frame that declares its size. Only if requested
    priority     of all items of the batch: 3 real time, 2 full-sync, 1 fold. Absent: 3
    properties   as in the request, of the source cluster
    places       as in the request, of the source cluster
    traces       {index of an item: context}: W3C `traceparent` of those items whose write is traced. Absent: of none
    held         {bucket type: since when its changes wait, ms}: bucket types that the source holds back because the
                 fetching cluster lacks them. Present: the source reads given_up and types. Absent: it does not

An item's payload is the whole object in canonical bytes, opaque to both sides of a fetch. At priorities 2 and 1,
partition and offset only identify an item within its batch, and the time is when the reference was queued. Optional
fields may be absent and unknown fields are ignored, so neighbouring versions of the program share one version number;
any other version number is refused (`UnknownFetchVersion`). `queues.service` serves fetches, `sink.fetch` sends them.

`POST /queues/NAME/object`: one object, by its key. A sink sends it for a dead letter that did not keep its object.
Nothing is leased or acknowledged, and no cursor moves.

    request   v, cluster (16 bytes: the asking cluster), name (its name), bucket_type, bucket, key
    answer    v, cluster, name (the source), payload: the leader's current object in canonical bytes, nil: no such key

Decoding untrusted bodies. The caller bounds the length of a body, and the memory that decoding takes is bounded by that
length; a decoder raises CodecError for any malformed body. msgpack allocates a list when it reads the declared length,
so a few bytes that nest lists of ten thousand elements would take 80 KB each; and an empty map is one byte on the wire
and sixty in memory. So a small message is skipped through once before it is decoded, which allocates nothing. A large
one is decoded element by element, each of an expected type (`Pieces`). These decoders are written by hand, since a body
of another version is refused by its version whatever its other fields are.

Frequent bodies are decoded in one step, by types that bound the length of every list before it is allocated: those with
the fields that this version writes, of the usual types (`_UsualRequest`, `_UsualReply`). All others, malformed bodies
included, go to the decoders above, which accept the usual ones too, with the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgpack
import msgspec
import zstandard
from msgspec import UNSET, Meta, Struct, UnsetType

from isthmus.queues.leases import Session
from isthmus.queues.sink_shares import Share, TypeShare
from isthmus.queues.window_rules import PRIORITIES, REAL_TIME, Item
from isthmus.repl.model.errors import BadInput, CodecError, TooLarge
from isthmus.repl.model.keys import Key
from isthmus.repl.property_digests import (
    SCOPE_DIGEST_BYTES_MAX,
    SCOPES_BYTES_MAX,
    SCOPES_MAX,
    VALUE_BYTES,
    ScopeDigests,
    within_bounds,
)
from isthmus.repl.traces import TRACEPARENT_BYTES

UNREADABLE: Final = (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError)
"""Exceptions of msgpack for malformed input."""

UNUSUAL: Final = (msgspec.DecodeError, ValueError, RecursionError, CodecError)
"""Exceptions for a body that is not of the usual form."""


def unpacked(body: bytes, list_max: int, map_max: int) -> Any:
    """The one value in `body`, with lists of at most `list_max` elements as tuples. For small messages: allocates up to
    70 times the length of `body`. Raises the exceptions in UNREADABLE."""
    walker = msgpack.Unpacker(max_buffer_size=len(body))
    walker.feed(body)
    walker.skip()  # fails unless every declared element is present, so no list is larger than the body
    return msgpack.unpackb(body, use_list=False, max_ext_len=0, max_array_len=list_max, max_map_len=map_max)


def unzipped(frame: object, limit_bytes: int) -> bytes:
    """The content of a zstd frame, whose declared size is checked before anything is allocated. Raises CodecError."""
    try:
        if type(frame) is not bytes or not 0 < zstandard.frame_content_size(frame) <= limit_bytes:
            raise CodecError(f"not a zstd frame with a declared size of at most {limit_bytes} bytes")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=limit_bytes)
    except (ValueError, zstandard.ZstdError) as error:
        raise CodecError(f"what is compressed cannot be read: {error}") from error


class Pieces:
    """Reads a large message of known shape. Lists inside of lists must be rows: tuples of exactly the types of `row`;
    a map is read by `entries` only. Raises CodecError, and what UNREADABLE names."""

    def __init__(self, body: bytes, row: tuple[type, ...]) -> None:
        def checked(values: tuple[Any, ...]) -> tuple[Any, ...]:
            if tuple(map(type, values)) != row:
                raise CodecError("fetch answer: an item has a wrong shape")
            return values

        self._length = len(body)
        self._unpacker = msgpack.Unpacker(
            use_list=False,
            max_buffer_size=max(1, len(body)),
            max_array_len=len(row),
            max_map_len=0,
            max_ext_len=0,
            list_hook=checked,
            object_hook=_no_map,
        )
        self._unpacker.feed(body)
        self.value: Callable[[], Any] = self._unpacker.unpack
        """The next value: a number, a text, bytes, nil, or a row."""
        self.skip: Callable[[], None] = self._unpacker.skip
        """Skip the next value."""

    def entries(self, limit: int) -> int:
        """A map of so many entries begins, at most `limit`: a name and a value each."""
        count: int = self._unpacker.read_map_header()
        if count > limit:
            raise CodecError(f"a map of {count} entries, at most {limit}")
        return count

    def rows(self, limit: int) -> tuple[Any, ...]:
        """A list of at most `limit` values; what is no row among them is left to the caller."""
        count: int = self._unpacker.read_array_header()
        if count > limit:
            raise CodecError(f"a list of {count} elements, at most {limit}")
        value = self.value
        return tuple([value() for _ in range(count)])

    def end(self) -> None:
        """Nothing may follow."""
        if self._unpacker.tell() != self._length:
            raise CodecError("there are bytes behind its end")


def _no_map(_found: object) -> object:
    raise CodecError("a map where none may be")


WIRE_VERSION: Final = 1

REQUEST_BYTES_MAX: Final = 800_000
"""Largest fetch request: enough for 10,000 failed indexes, 1,024 bucket types, named twice, and the digests in
`places`; a larger one is refused with 413."""

COUNT_MAX: Final = 10_000
"""Most changes in one batch, whatever `max_count` is: bounds the work between two awaits."""

BYTES_MAX: Final = 64_000_000
"""Most payload bytes in one batch, whatever `max_bytes` is; a single larger object is still sent."""

WAIT_MS_MAX: Final = 30_000
"""Longest long poll, whatever `wait_ms` is: below the time-outs of usual proxies."""

ACKS_MAX: Final = 64
"""Most batches acknowledged or held in one request: as many as the source gives out at once."""

NAME_MAX: Final = 255
"""Longest cluster or node name, and batch id."""

MEDIA_TYPE: Final = "application/msgpack"

SERVING: Final = "serving"
SUSPENDED: Final = "suspended"
STARTING: Final = "starting"
"""`state` when no partition has executed the queue's owner version yet."""

THROTTLED: Final = "throttled"
"""`state` when changes wait but a rate limit of the queue holds them back."""

OFF: Final = "off"
"""`state` when the whole source is switched off on the node."""

ZSTD: Final = "zstd"

ZSTD_LEVEL: Final = 1
"""The fastest of zstd's usual levels: the aim is to save bandwidth at little CPU, not the best ratio."""

ZSTD_FROM_BYTES: Final = 512
"""Smaller batches are not compressed: nothing is gained."""

OFF_LOOP_FROM_BYTES: Final = 65_536
"""Payloads from here on are compressed and unpacked in a thread: 64 KB take 0.2 ms, which the loop can spare."""

MAP_MAX: Final = 1_024
"""Most entries of any map of a message: fields at the top, bucket types of `properties`."""

UNPACKED_MAX: Final = 300_000_000
"""Largest decompressed answer: above the sum of `BYTES_MAX`, one large object and the names of `COUNT_MAX` changes. A
frame that declares more, or no size, is refused before anything is allocated."""

TYPES_MAX: Final = 1_024
"""Most bucket types in `properties`."""

SHARE_TYPES_MAX: Final = 256
"""Most bucket types in `share`; a node that has more sends none, and may get every change. With the longest names and
`SHARE_PARTITIONS_MAX` they come to 101 KB of the request."""

SHARE_PARTITIONS_MAX: Final = 1_024
"""Most partitions of a bucket type in `share`: as many as one may have."""

DIGEST_BYTES: Final = 8

_encode: Final = msgspec.msgpack.Encoder().encode
"""The same bytes as msgpack's, in half the time. It keeps no buffer between calls, so threads may share it."""

_new: Final = tuple.__new__
"""Makes a named tuple of all its fields, in order, at half the cost of its own constructor."""

OUTCOME_FIELDS: Final = 4
"""Applied, merged, superseded, rejected."""


class UnknownFetchVersion(CodecError):
    """The message is of a protocol version that this program does not speak."""

    reason = "unknown-version"


class UnknownQueue(BadInput):
    """No queue of that name is configured here (404)."""

    reason = "unknown-queue"


class OwnedByOther(BadInput):
    """The queue belongs to another sink cluster, named in the message (409): two on one queue would each get half."""

    reason = "owned-by-other"


class OwnCluster(BadInput):
    """The fetch came from the cluster that owns the data (409): a sink's peer points at its own cluster."""

    reason = "own-cluster"


NO_PROPERTIES: Final[Mapping[bytes, bytes]] = {}


class BatchAck(NamedTuple):
    """Acknowledgement of a batch.

    `failed`: indexes of items to be sent again, None: all. `outcomes`: how many of the others were applied, merged,
    superseded, rejected; None: unknown."""

    batch: bytes
    owner_version: int
    failed: tuple[int, ...] | None = ()
    outcomes: tuple[int, int, int, int] | None = None
    given_up: tuple[int, ...] = ()
    """Indexes that were refused for good and of which the sink keeps nothing: they are missing there."""


class FetchRequest(NamedTuple):
    """See the module's text."""

    session: Session
    cluster_name: str
    acks: tuple[BatchAck, ...] = ()
    holding: tuple[bytes, ...] | None = None
    max_count: int = 512
    max_bytes: int = 4_000_000
    wait_ms: int = 0
    compress: str = ""
    properties: Mapping[bytes, bytes] = NO_PROPERTIES
    types: frozenset[bytes] | None = None
    scopes: ScopeDigests | None = None
    share: Share | None = None


class FetchReply(NamedTuple):
    """See the module's text."""

    cluster: bytes
    cluster_name: str
    owner_version: int
    batch: bytes
    lease_ms: int
    now_ms: int
    state: str
    items: Sequence[Item]
    priority: int = REAL_TIME
    properties: Mapping[bytes, bytes] = NO_PROPERTIES
    waited_ms: int | None = None
    held: Mapping[bytes, int] | None = None
    """None: the source runs a version that holds no bucket type back."""
    scopes: ScopeDigests | None = None
    traces: Mapping[int, str] | None = None
    """Contexts of traced changes, by index; None: there are none."""


def encode_request(request: FetchRequest) -> bytes:
    """The request's body."""
    session = request.session
    return _encode(
        {
            "v": WIRE_VERSION,
            "cluster": session.cluster,
            "name": request.cluster_name,
            "node": session.node,
            "incarnation": session.incarnation,
            "link": session.link,
            "acks": [(ack.batch, ack.owner_version, ack.failed) for ack in request.acks],
            "holding": request.holding,
            "max_count": request.max_count,
            "max_bytes": request.max_bytes,
            "wait_ms": request.wait_ms,
            "outcomes": [ack.outcomes for ack in request.acks],
            "compress": request.compress,
            "properties": request.properties,
            "given_up": [ack.given_up for ack in request.acks],
            "types": None if request.types is None else sorted(request.types),
            **({} if request.scopes is None else {"places": request.scopes}),
            **({} if request.share is None else {"share": _packed_share(request.share)}),
        }
    )


_Number = Annotated[int, Meta(ge=0)]
_Text = Annotated[str, Meta(max_length=NAME_MAX)]
_Name = Annotated[bytes, Meta(max_length=NAME_MAX)]
_Cluster = Annotated[bytes, Meta(min_length=16, max_length=16)]
_Properties = Annotated[
    dict[_Name, Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]], Meta(max_length=TYPES_MAX)
]
_Scopes = Annotated[
    dict[bytes, Annotated[dict[bytes, bytes], Meta(max_length=SCOPES_MAX)]], Meta(max_length=SCOPES_MAX)
]
_Traces = Annotated[dict[_Number, Annotated[str, Meta(max_length=TRACEPARENT_BYTES)]], Meta(max_length=COUNT_MAX)]
_Indexes = Annotated[tuple[int, ...], Meta(max_length=COUNT_MAX)]
_Refused = Annotated[tuple[_Number, ...], Meta(max_length=COUNT_MAX)]
_PerAck = Meta(max_length=ACKS_MAX)


class _UsualRequest(Struct, forbid_unknown_fields=True, gc=False):
    """A request with the fields that `encode_request` writes."""

    v: Literal[1]
    cluster: _Cluster
    name: _Text
    node: _Text
    incarnation: Annotated[bytes, Meta(min_length=8, max_length=8)]
    link: _Number
    acks: Annotated[tuple[tuple[_Name, int, _Indexes | None], ...], _PerAck]
    holding: Annotated[tuple[bytes, ...], _PerAck] | None
    max_count: _Number
    max_bytes: _Number
    wait_ms: _Number
    outcomes: Annotated[tuple[tuple[_Number, _Number, _Number, _Number] | None, ...], _PerAck]
    compress: _Text
    properties: _Properties
    given_up: Annotated[tuple[_Refused, ...], _PerAck]
    types: Annotated[frozenset[_Name], Meta(max_length=TYPES_MAX)] | None
    places: _Scopes | None = None
    share: Annotated[dict[_Name, tuple[int, bytes]], Meta(max_length=SHARE_TYPES_MAX)] | None = None


_USUAL_REQUEST: Final = msgspec.msgpack.Decoder(_UsualRequest)


def _usual_request(body: bytes) -> FetchRequest | None:
    """The request in `body`, as `decode_request` returns it; None if it is not a usual one."""
    try:
        usual = _USUAL_REQUEST.decode(body)
        places = _checked_places(usual.places) if usual.places else usual.places
        share = {name: _type_share(one) for name, one in usual.share.items()} if usual.share else usual.share
    except UNUSUAL:
        return None
    acks: tuple[BatchAck, ...] = ()
    if usual.acks or usual.outcomes or usual.given_up:
        if not len(usual.acks) == len(usual.outcomes) == len(usual.given_up):
            return None
        rows = zip(usual.acks, usual.outcomes, usual.given_up, strict=True)
        acks = tuple([_new(BatchAck, (*ack, outcomes, given_up)) for ack, outcomes, given_up in rows])
    session = _new(Session, (usual.cluster, usual.node, usual.incarnation, usual.link))
    request = (
        session,
        usual.name,
        acks,
        usual.holding,
        min(usual.max_count, COUNT_MAX),
        min(usual.max_bytes, BYTES_MAX),
        min(usual.wait_ms, WAIT_MS_MAX),
        usual.compress,
        usual.properties,
        usual.types,
        places,
        share,
    )
    return _new(FetchRequest, request)


def decode_request(body: bytes) -> FetchRequest:
    """The request in `body`, with its counts reduced to this module's limits. Raises TooLarge, CodecError."""
    if len(body) > REQUEST_BYTES_MAX:
        raise TooLarge(f"fetch request of {len(body)} bytes, at most {REQUEST_BYTES_MAX}")
    return _usual_request(body) or _any_request(body)


def _any_request(body: bytes) -> FetchRequest:
    fields = _unpack(body, "fetch request")
    session = Session(
        _bytes(fields, "cluster", 16),
        _text(fields, "node"),
        _bytes(fields, "incarnation", 8),
        _number(fields, "link"),
    )
    acks, holding = fields.get("acks"), fields.get("holding")
    if type(acks) is not tuple or len(acks) > ACKS_MAX:
        raise CodecError(f"fetch request: acks is not a list of at most {ACKS_MAX}")
    if holding is not None and (
        type(holding) is not tuple or len(holding) > ACKS_MAX or not all(type(x) is bytes for x in holding)
    ):
        raise CodecError(f"fetch request: holding is not a list of at most {ACKS_MAX} batch ids")
    return FetchRequest(
        session,
        _text(fields, "name"),
        tuple(map(_ack, acks, _outcomes(fields, len(acks)), _given_up(fields, len(acks)))),
        holding,
        min(_number(fields, "max_count"), COUNT_MAX),
        min(_number(fields, "max_bytes"), BYTES_MAX),
        min(_number(fields, "wait_ms"), WAIT_MS_MAX),
        _text(fields, "compress") if "compress" in fields else "",
        _properties(fields),
        _types(fields),
        _places(fields),
        _share(fields),
    )


def encode_reply(reply: FetchReply, compress: str = "") -> bytes:
    """The answer's body. Items are compressed if `compress` is ZSTD and they are large enough; call it in a thread
    then, because compressing takes milliseconds a megabyte."""
    if compress == ZSTD and reply.items:
        plain = _encode(reply.items)
        if len(plain) >= ZSTD_FROM_BYTES:
            return _packed(reply, "zstd", zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(plain))
    return _packed(reply, "items", reply.items)


def _packed(reply: FetchReply, name: str, items: Any) -> bytes:
    return _encode(
        {
            "v": WIRE_VERSION,
            "cluster": reply.cluster,
            "name": reply.cluster_name,
            "owner_version": reply.owner_version,
            "batch": reply.batch,
            "lease_ms": reply.lease_ms,
            "now_ms": reply.now_ms,
            "state": reply.state,
            name: items,
            "priority": reply.priority,
            "properties": reply.properties,
            **({} if reply.held is None else {"held": reply.held}),
            **({} if reply.scopes is None else {"places": reply.scopes}),
        }
        | ({} if reply.waited_ms is None else {"waited_ms": reply.waited_ms})
        | ({} if reply.traces is None else {"traces": reply.traces})
    )


_ITEM_TYPES: Final = (int, int, int, bytes, bytes, bytes, bytes, int, bytes)


class _UsualReply(Struct, forbid_unknown_fields=True, gc=False):
    """An answer with the fields that `encode_reply` writes, its items not compressed."""

    v: Literal[1]
    cluster: _Cluster
    name: _Text
    owner_version: _Number
    batch: _Name
    lease_ms: _Number
    now_ms: _Number
    state: _Text
    items: Annotated[tuple[Item, ...], Meta(max_length=COUNT_MAX)]
    priority: Literal[1, 2, 3]
    properties: _Properties
    held: Annotated[dict[_Name, int], Meta(max_length=TYPES_MAX)] | UnsetType = UNSET
    places: _Scopes | UnsetType = UNSET
    waited_ms: _Number | UnsetType = UNSET
    traces: _Traces | UnsetType = UNSET


_USUAL_REPLY: Final = msgspec.msgpack.Decoder(_UsualReply)


def _usual_reply(body: bytes) -> FetchReply | None:
    """The answer in `body`, as `decode_reply` returns it; None if it is not a usual one."""
    try:
        usual = _USUAL_REPLY.decode(body)
        places = _checked_places(usual.places) if usual.places else usual.places
    except UNUSUAL:
        return None
    if bool(usual.items) != bool(usual.batch):
        return None
    reply = (
        usual.cluster,
        usual.name,
        usual.owner_version,
        usual.batch,
        usual.lease_ms,
        usual.now_ms,
        usual.state,
        usual.items,
        usual.priority,
        usual.properties,
        None if usual.waited_ms is UNSET else usual.waited_ms,
        None if usual.held is UNSET else usual.held,
        None if places is UNSET else places,
        None if usual.traces is UNSET else usual.traces,
    )
    return _new(FetchReply, reply)


def decode_reply(body: bytes) -> FetchReply:
    """The answer in `body`. Raises CodecError for anything that `encode_reply` would not write."""
    return _usual_reply(body) or _any_reply(body)


def _any_reply(body: bytes) -> FetchReply:
    try:
        fields = _reply_fields(Pieces(body, _ITEM_TYPES))
        items = _unzipped(fields["zstd"]) if "zstd" in fields else fields.get("items")
    except UNREADABLE as error:
        raise CodecError(f"not a fetch answer: {error}") from error
    batch, priority = fields.get("batch"), fields.get("priority", REAL_TIME)
    if priority not in PRIORITIES:
        raise CodecError("fetch answer: an unknown priority")
    if type(items) is not tuple or type(batch) is not bytes or len(batch) > NAME_MAX or bool(items) != bool(batch):
        raise CodecError("fetch answer: no items, or no batch id for them")
    return FetchReply(
        _bytes(fields, "cluster", 16),
        _text(fields, "name"),
        _number(fields, "owner_version"),
        batch,
        _number(fields, "lease_ms"),
        _number(fields, "now_ms"),
        _text(fields, "state"),
        items,
        priority,
        _properties(fields),
        _number(fields, "waited_ms") if "waited_ms" in fields else None,
        _held(fields),
        _places(fields),
        _traces(fields),
    )


_REPLY_VALUES: Final = frozenset(
    {"v", "cluster", "name", "owner_version", "batch", "lease_ms", "now_ms", "state", "zstd", "priority", "waited_ms"}
)


def _reply_fields(pieces: Pieces) -> dict[str, Any]:
    """The known fields of an answer, each decoded by its type; others are skipped."""
    fields: dict[str, Any] = {"v": None}
    for _ in range(pieces.entries(MAP_MAX)):
        name = pieces.value()
        if name == "items":
            fields["items"] = _items(pieces)
        elif name in ("properties", "held"):
            fields[name] = {pieces.value(): pieces.value() for _ in range(pieces.entries(TYPES_MAX))}
        elif name == "traces":
            fields[name] = {pieces.value(): pieces.value() for _ in range(pieces.entries(COUNT_MAX))}
        elif name == "places":
            fields[name] = _nested(pieces)
        elif type(name) is str and name in _REPLY_VALUES:
            fields[name] = pieces.value()
            if name == "v":
                _check_version(fields, "fetch answer")
        else:
            pieces.skip()
    pieces.end()
    _check_version(fields, "fetch answer")
    return fields


def _items(pieces: Pieces) -> tuple[Item, ...]:
    items = pieces.rows(COUNT_MAX)
    if not all(type(item) is tuple for item in items):
        raise CodecError("fetch answer: an item has a wrong shape")
    return items


def _traces(fields: dict[str, Any]) -> dict[int, str] | None:
    """The contexts of traced changes."""
    found: dict[int, str] | None = fields.get("traces")
    for index, context in (found or {}).items():
        if type(index) is not int or index < 0 or type(context) is not str or len(context) > TRACEPARENT_BYTES:
            raise CodecError("fetch answer: traces is not a map of item numbers to trace contexts")
    return found


def _unzipped(frame: object) -> tuple[Item, ...]:
    """The items of a compressed answer."""
    pieces = Pieces(unzipped(frame, UNPACKED_MAX), _ITEM_TYPES)
    items = _items(pieces)
    pieces.end()
    return items


def _unpack(body: bytes, what: str) -> dict[str, Any]:
    try:
        raw = unpacked(body, COUNT_MAX, MAP_MAX)
    except UNREADABLE as error:
        raise CodecError(f"not a {what}: {str(error) or type(error).__name__}") from error
    if type(raw) is not dict:
        raise CodecError(f"not a {what}: no map at the top")
    _check_version(raw, what)
    return raw


def _check_version(fields: Mapping[str, Any], what: str) -> None:
    version = fields.get("v")
    if version != WIRE_VERSION:
        raise UnknownFetchVersion(f"{what} of version {version!r:.40}, this program speaks {WIRE_VERSION}")


def _outcomes(fields: dict[str, Any], count: int) -> tuple[tuple[int, int, int, int] | None, ...]:
    """The outcomes of each acknowledged batch."""
    raw = fields.get("outcomes", (None,) * count)
    if type(raw) is not tuple or len(raw) != count:
        raise CodecError("fetch request: outcomes do not fit acks")
    for one in raw:
        if one is None:
            continue
        if type(one) is not tuple or len(one) != OUTCOME_FIELDS or not all(type(n) is int and n >= 0 for n in one):
            raise CodecError("fetch request: the outcomes of a batch are not four numbers from 0 up")
    return raw


def _properties(fields: dict[str, Any]) -> dict[bytes, bytes]:
    raw = fields.get("properties", {})
    if type(raw) is not dict or len(raw) > TYPES_MAX:
        raise CodecError(f"fetch: properties is not a map of at most {TYPES_MAX} bucket types")
    for name, digest in raw.items():
        if type(name) is not bytes or len(name) > NAME_MAX or type(digest) is not bytes or len(digest) != DIGEST_BYTES:
            raise CodecError("fetch: properties have a wrong shape")
    return raw


def _nested(pieces: Pieces) -> dict[Any, dict[Any, Any]]:
    """The `places` of an answer; too many entries are refused before any is allocated."""
    found: dict[Any, dict[Any, Any]] = {}
    left = SCOPES_MAX
    for _ in range(pieces.entries(SCOPES_MAX)):
        kind, count = pieces.value(), pieces.entries(left)
        left -= count
        found[kind] = {pieces.value(): pieces.value() for _ in range(count)}
    return found


def _places(fields: dict[str, Any]) -> ScopeDigests | None:
    raw = fields.get("places")
    return None if raw is None else _checked_places(raw)


def _checked_places(raw: Any) -> ScopeDigests:
    if type(raw) is not dict or len(raw) > SCOPES_MAX or not all(type(buckets) is dict for buckets in raw.values()):
        raise CodecError("fetch: places is not a map of maps")
    for kind, buckets in raw.items():
        names_and_digests = all(type(bucket) is bytes and _is_scope_digest(one) for bucket, one in buckets.items())
        if type(kind) is not bytes or len(kind) > NAME_MAX or not names_and_digests:
            raise CodecError("fetch: places have a wrong shape")
    if not within_bounds(raw):
        raise CodecError(f"fetch: places are more than {SCOPES_MAX}, or more than {SCOPES_BYTES_MAX} bytes")
    found: ScopeDigests = raw
    return found


def _is_scope_digest(raw: object) -> bool:
    return type(raw) is bytes and 0 < len(raw) <= SCOPE_DIGEST_BYTES_MAX and len(raw) % VALUE_BYTES == 0


def _given_up(fields: dict[str, Any], count: int) -> tuple[tuple[int, ...], ...]:
    raw = fields.get("given_up", ((),) * count)
    if type(raw) is not tuple or len(raw) != count:
        raise CodecError("fetch request: given_up does not fit acks")
    for one in raw:
        if type(one) is not tuple or not all(type(n) is int and n >= 0 for n in one):
            raise CodecError("fetch request: given_up is not a list of lists of numbers")
    return raw


def _types(fields: dict[str, Any]) -> frozenset[bytes] | None:
    raw = fields.get("types")
    if raw is None:
        return None
    if type(raw) is not tuple or len(raw) > TYPES_MAX or not all(type(n) is bytes and len(n) <= NAME_MAX for n in raw):
        raise CodecError(f"fetch request: types is not a list of at most {TYPES_MAX} bucket types")
    return frozenset(raw)


def _packed_share(share: Share) -> dict[bytes, tuple[int, bytes]]:
    return {name: (total, led.to_bytes(_bitmap_bytes(total), "little")) for name, (total, led) in share.items()}


def _bitmap_bytes(total: int) -> int:
    return -(-total // 8)


def _share(fields: dict[str, Any]) -> Share | None:
    raw = fields.get("share")
    if raw is None:
        return None
    if type(raw) is not dict or len(raw) > SHARE_TYPES_MAX:
        raise CodecError(f"fetch request: share is not a map of at most {SHARE_TYPES_MAX} bucket types")
    if not all(type(name) is bytes and len(name) <= NAME_MAX for name in raw):
        raise CodecError("fetch request: share has a wrong shape")
    return {name: _type_share(one) for name, one in raw.items()}


def _type_share(raw: object) -> TypeShare:
    if type(raw) is not tuple or len(raw) != len(TypeShare._fields):
        raise CodecError("fetch request: share has a wrong shape")
    total, bits = raw
    if type(total) is not int or not 0 < total <= SHARE_PARTITIONS_MAX:
        raise CodecError(f"fetch request: a share of a bucket type without 1 to {SHARE_PARTITIONS_MAX} partitions")
    if type(bits) is not bytes or len(bits) != _bitmap_bytes(total):
        raise CodecError("fetch request: the bits of a share do not fit its number of partitions")
    led = int.from_bytes(bits, "little")
    if led >> total:
        raise CodecError("fetch request: a share has a partition that its bucket type lacks")
    return TypeShare(total, led)


def _held(fields: dict[str, Any]) -> dict[bytes, int] | None:
    raw = fields.get("held")
    if raw is None:
        return None
    if type(raw) is not dict or len(raw) > TYPES_MAX:
        raise CodecError(f"fetch answer: held is not a map of at most {TYPES_MAX} bucket types")
    for name, since_ms in raw.items():
        if type(name) is not bytes or len(name) > NAME_MAX or type(since_ms) is not int:
            raise CodecError("fetch answer: held has a wrong shape")
    return raw


def _ack(raw: object, outcomes: tuple[int, int, int, int] | None, given_up: tuple[int, ...]) -> BatchAck:
    if type(raw) is not tuple or len(raw) != 3:
        raise CodecError("fetch request: an acknowledgement has a wrong shape")
    batch, version, failed = raw
    if type(batch) is not bytes or len(batch) > NAME_MAX or type(version) is not int:
        raise CodecError("fetch request: an acknowledgement has a wrong shape")
    if failed is not None and (type(failed) is not tuple or not all(type(i) is int for i in failed)):
        raise CodecError("fetch request: the failed indexes are not a list of numbers")
    return BatchAck(batch, version, failed, outcomes, given_up)


def _bytes(fields: dict[str, Any], name: str, length: int) -> bytes:
    value = fields.get(name)
    if type(value) is not bytes or len(value) != length:
        raise CodecError(f"fetch: {name} is not {length} bytes")
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if type(value) is not str or len(value) > NAME_MAX:
        raise CodecError(f"fetch: {name} is not text of at most {NAME_MAX} characters")
    return value


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or value < 0:
        raise CodecError(f"fetch: {name} is not a number from 0 up")
    return value


ASKING_BYTES_MAX: Final = 200_000
"""Largest request: with the longest names that any node accepts."""

ANSWER_HEAD_BYTES: Final = 1_000
"""Most bytes of an answer beside its payload."""

PART_BYTES_MAX: Final = 65_536
"""Longest part of a key; the node's own limit is lower."""


@dataclass(frozen=True, slots=True)
class ObjectRequest:
    """A request of `cluster`, named `cluster_name`, for the object of `key`."""

    cluster: bytes
    cluster_name: str
    key: Key


@dataclass(frozen=True, slots=True)
class ObjectReply:
    """The source cluster's object of a key, in canonical bytes; None: no such key."""

    cluster: bytes
    cluster_name: str
    payload: bytes | None


def encode_asking(request: ObjectRequest) -> bytes:
    """The request's body."""
    packed: bytes = msgpack.packb(
        {"v": WIRE_VERSION, "cluster": request.cluster, "name": request.cluster_name, **request.key._asdict()}
    )
    return packed


def decode_asking(body: bytes) -> ObjectRequest:
    """Raises CodecError."""
    fields = _fields(body, "request for an object")
    parts: list[Any] = [fields.get(name) for name in Key._fields]
    if not all(type(part) is bytes and 0 < len(part) <= PART_BYTES_MAX for part in parts):
        raise CodecError("request for an object: it names no key")
    return ObjectRequest(*_cluster(fields), Key(*parts))


def encode_object_reply(reply: ObjectReply) -> bytes:
    """The answer's body."""
    packed: bytes = msgpack.packb(
        {"v": WIRE_VERSION, "cluster": reply.cluster, "name": reply.cluster_name, "payload": reply.payload}
    )
    return packed


def decode_object_reply(body: bytes) -> ObjectReply:
    """Raises CodecError."""
    fields = _fields(body, "answer with an object")
    payload = fields.get("payload")
    if payload is not None and type(payload) is not bytes:
        raise CodecError("answer with an object: its payload is not bytes")
    return ObjectReply(*_cluster(fields), payload)


def _fields(body: bytes, what: str) -> dict[str, Any]:
    try:
        fields = unpacked(body, 0, MAP_MAX)
    except UNREADABLE as error:
        raise CodecError(f"not a {what}: {error}") from error
    if type(fields) is not dict:
        raise CodecError(f"not a {what}: no map at the top")
    if fields.get("v") != WIRE_VERSION:
        raise UnknownFetchVersion(f"{what} of version {fields.get('v')!r:.40}, this program speaks {WIRE_VERSION}")
    return fields


def _cluster(fields: dict[str, Any]) -> tuple[bytes, str]:
    cluster, name = fields.get("cluster"), fields.get("name")
    if type(cluster) is not bytes or len(cluster) != 16 or type(name) is not str or len(name) > NAME_MAX:
        raise CodecError("an object asked for: it names no cluster")
    return cluster, name
