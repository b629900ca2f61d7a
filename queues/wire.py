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
length: every list and map has its type and its largest length, which are checked before it is allocated, and an unknown
field is skipped without being decoded. A decoder raises CodecError for any malformed body. A body of another version is
refused by its version whatever its other fields are (`_refusal`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import zstandard
from msgspec import UNSET, Meta, Struct, UnsetType

from isthmus.queues.leases import Session
from isthmus.queues.sink_shares import Share, TypeShare
from isthmus.queues.window_rules import REAL_TIME, Item
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

_MALFORMED: Final = (ValueError, RecursionError)
"""Exceptions of msgspec for a body that is no message."""


def unzipped(frame: bytes, limit_bytes: int) -> bytes:
    """The content of a zstd frame, whose declared size is checked before anything is allocated. Raises CodecError."""
    try:
        if not 0 < zstandard.frame_content_size(frame) <= limit_bytes:
            raise CodecError(f"not a zstd frame with a declared size of at most {limit_bytes} bytes")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=limit_bytes)
    except (ValueError, zstandard.ZstdError) as error:
        raise CodecError(f"what is compressed cannot be read: {error}") from error


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
_ScopeDigest = Annotated[bytes, Meta(min_length=1, max_length=SCOPE_DIGEST_BYTES_MAX)]
_Scopes = Annotated[
    dict[_Name, Annotated[dict[bytes, _ScopeDigest], Meta(max_length=SCOPES_MAX)]], Meta(max_length=SCOPES_MAX)
]
_Outcomes = tuple[_Number, _Number, _Number, _Number] | None
_TypeShare = tuple[Annotated[int, Meta(ge=1, le=SHARE_PARTITIONS_MAX)], bytes]
_Traces = Annotated[dict[_Number, Annotated[str, Meta(max_length=TRACEPARENT_BYTES)]], Meta(max_length=COUNT_MAX)]
_Indexes = Annotated[tuple[int, ...], Meta(max_length=COUNT_MAX)]
_Refused = Annotated[tuple[_Number, ...], Meta(max_length=COUNT_MAX)]
_PerAck = Meta(max_length=ACKS_MAX)


class _AnyVersion(Struct):
    """What is read of a body that is no message of this version."""

    v: int | str | None = None


_ANY_VERSION: Final = msgspec.msgpack.Decoder(_AnyVersion)


def _refusal(body: bytes, what: str, error: Exception) -> CodecError:
    """Why a body is refused that could not be decoded."""
    try:
        version = _ANY_VERSION.decode(body).v
    except _MALFORMED:
        version = WIRE_VERSION
    if version != WIRE_VERSION:
        return UnknownFetchVersion(f"{what} of version {version!r:.40}, this program speaks {WIRE_VERSION}")
    return CodecError(f"not a {what}: {str(error) or type(error).__name__}")


class _Request(Struct, gc=False):
    """The fields of a request. UNSET: it is of a version that lacks the field."""

    v: Literal[1]
    cluster: _Cluster
    name: _Text
    node: _Text
    incarnation: Annotated[bytes, Meta(min_length=8, max_length=8)]
    link: _Number
    acks: Annotated[tuple[tuple[_Name, int, _Indexes | None], ...], _PerAck]
    max_count: _Number
    max_bytes: _Number
    wait_ms: _Number
    holding: Annotated[tuple[bytes, ...], _PerAck] | None = None
    outcomes: Annotated[tuple[_Outcomes, ...], _PerAck] | UnsetType = UNSET
    compress: _Text = ""
    properties: _Properties = {}
    given_up: Annotated[tuple[_Refused, ...], _PerAck] | UnsetType = UNSET
    types: Annotated[frozenset[_Name], Meta(max_length=TYPES_MAX)] | None = None
    places: _Scopes | None = None
    share: Annotated[dict[_Name, _TypeShare], Meta(max_length=SHARE_TYPES_MAX)] | None = None


_REQUEST: Final = msgspec.msgpack.Decoder(_Request)


def decode_request(body: bytes) -> FetchRequest:
    """The request in `body`, with its counts reduced to this module's limits. Raises TooLarge, CodecError."""
    if len(body) > REQUEST_BYTES_MAX:
        raise TooLarge(f"fetch request of {len(body)} bytes, at most {REQUEST_BYTES_MAX}")
    try:
        found = _REQUEST.decode(body)
    except _MALFORMED as error:
        raise _refusal(body, "fetch request", error) from error
    session = _new(Session, (found.cluster, found.node, found.incarnation, found.link))
    request = (
        session,
        found.name,
        _acks(found) if found.acks or found.outcomes or found.given_up else (),
        found.holding,
        min(found.max_count, COUNT_MAX),
        min(found.max_bytes, BYTES_MAX),
        min(found.wait_ms, WAIT_MS_MAX),
        found.compress,
        found.properties,
        found.types,
        _checked_places(found.places) if found.places else found.places,
        {name: _type_share(*one) for name, one in found.share.items()} if found.share else found.share,
    )
    return _new(FetchRequest, request)


def _acks(found: _Request) -> tuple[BatchAck, ...]:
    """The acknowledgements of a request. Raises CodecError."""
    count = len(found.acks)
    outcomes = (None,) * count if found.outcomes is UNSET else found.outcomes
    given_up = ((),) * count if found.given_up is UNSET else found.given_up
    if not count == len(outcomes) == len(given_up):
        raise CodecError("fetch request: outcomes or given_up do not fit acks")
    rows = zip(found.acks, outcomes, given_up, strict=True)
    return tuple([_new(BatchAck, (*ack, results, refused)) for ack, results, refused in rows])


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


_Items = Annotated[tuple[Item, ...], Meta(max_length=COUNT_MAX)]


class _Reply(Struct, gc=False):
    """The fields of an answer. UNSET: it has none, or is of a version that lacks the field."""

    v: Literal[1]
    cluster: _Cluster
    name: _Text
    owner_version: _Number
    batch: _Name
    lease_ms: _Number
    now_ms: _Number
    state: _Text
    items: _Items | UnsetType = UNSET
    zstd: bytes | UnsetType = UNSET
    priority: Literal[1, 2, 3] = REAL_TIME
    properties: _Properties = {}
    held: Annotated[dict[_Name, int], Meta(max_length=TYPES_MAX)] | UnsetType = UNSET
    places: _Scopes | UnsetType = UNSET
    waited_ms: _Number | UnsetType = UNSET
    traces: _Traces | UnsetType = UNSET


_REPLY: Final = msgspec.msgpack.Decoder(_Reply)
_ITEMS: Final = msgspec.msgpack.Decoder(_Items)


def decode_reply(body: bytes) -> FetchReply:
    """The answer in `body`. Raises CodecError for anything that `encode_reply` would not write."""
    try:
        found = _REPLY.decode(body)
        items = found.items if found.zstd is UNSET else _ITEMS.decode(unzipped(found.zstd, UNPACKED_MAX))
    except _MALFORMED as error:
        raise _refusal(body, "fetch answer", error) from error
    if items is UNSET or bool(items) != bool(found.batch):
        raise CodecError("fetch answer: no items, or no batch id for them")
    reply = (
        found.cluster,
        found.name,
        found.owner_version,
        found.batch,
        found.lease_ms,
        found.now_ms,
        found.state,
        items,
        found.priority,
        found.properties,
        None if found.waited_ms is UNSET else found.waited_ms,
        None if found.held is UNSET else found.held,
        None if found.places is UNSET else _checked_places(found.places),
        None if found.traces is UNSET else found.traces,
    )
    return _new(FetchReply, reply)


def _checked_places(places: dict[bytes, dict[bytes, bytes]]) -> ScopeDigests:
    if any(len(digest) % VALUE_BYTES for buckets in places.values() for digest in buckets.values()):
        raise CodecError(f"fetch: a digest in places has not {VALUE_BYTES} bytes for each property")
    if not within_bounds(places):
        raise CodecError(f"fetch: places are more than {SCOPES_MAX}, or more than {SCOPES_BYTES_MAX} bytes")
    return places


def _packed_share(share: Share) -> dict[bytes, tuple[int, bytes]]:
    return {name: (total, led.to_bytes(_bitmap_bytes(total), "little")) for name, (total, led) in share.items()}


def _bitmap_bytes(total: int) -> int:
    return -(-total // 8)


def _type_share(total: int, bits: bytes) -> TypeShare:
    if len(bits) != _bitmap_bytes(total):
        raise CodecError("fetch request: the bits of a share do not fit its number of partitions")
    led = int.from_bytes(bits, "little")
    if led >> total:
        raise CodecError("fetch request: a share has a partition that its bucket type lacks")
    return TypeShare(total, led)


ASKING_BYTES_MAX: Final = 200_000
"""Largest request: with the longest names that any node accepts."""

ANSWER_HEAD_BYTES: Final = 1_000
"""Most bytes of an answer beside its payload."""

PART_BYTES_MAX: Final = 65_536
"""Longest part of a key; the node's own limit is lower."""

_Part = Annotated[bytes, Meta(min_length=1, max_length=PART_BYTES_MAX)]


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


class _Asking(Struct):
    v: Literal[1]
    cluster: _Cluster
    name: _Text
    bucket_type: _Part
    bucket: _Part
    key: _Part


class _Payload(Struct):
    v: Literal[1]
    cluster: _Cluster
    name: _Text
    payload: bytes | None = None


_ASKING: Final = msgspec.msgpack.Decoder(_Asking)
_PAYLOAD: Final = msgspec.msgpack.Decoder(_Payload)


def encode_asking(request: ObjectRequest) -> bytes:
    """The request's body."""
    return _encode(_Asking(WIRE_VERSION, request.cluster, request.cluster_name, *request.key))


def decode_asking(body: bytes) -> ObjectRequest:
    """Raises CodecError."""
    try:
        found = _ASKING.decode(body)
    except _MALFORMED as error:
        raise _refusal(body, "request for an object", error) from error
    return ObjectRequest(found.cluster, found.name, Key(found.bucket_type, found.bucket, found.key))


def encode_object_reply(reply: ObjectReply) -> bytes:
    """The answer's body."""
    return _encode(_Payload(WIRE_VERSION, reply.cluster, reply.cluster_name, reply.payload))


def decode_object_reply(body: bytes) -> ObjectReply:
    """Raises CodecError."""
    try:
        found = _PAYLOAD.decode(body)
    except _MALFORMED as error:
        raise _refusal(body, "answer with an object", error) from error
    return ObjectReply(found.cluster, found.name, found.payload)
