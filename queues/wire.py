"""Bodies of a fetch, `POST /queues/NAME/fetch`, in msgpack, and the refusals that belong to it.

Request, a map:

    v            1
    cluster      16 bytes: uuid of the cluster that fetches       name         its name, text
    node         the fetching node's name, text                   incarnation  8 bytes, new with each process
    link         int: which of the process's links to this queue
    acks         [[batch id, owner version, failed], ...]: failed is the list of indexes to come again, nil for all
    holding      batch ids that this link still works on; what it holds no longer comes back at once. nil: not told
    max_count    changes wanted, 0: acknowledge only              max_bytes    payload bytes wanted
    wait_ms      how long the source may wait for something to give

Answer, a map:

    v, cluster, name                the source cluster
    owner_version                   goes back with the acknowledgement
    batch                           id, empty when there are no items
    lease_ms, now_ms                how long the batch is held; the source's wall clock
    state                           serving, suspended, starting
    items        [[kind, partition, offset, bucket type, bucket, key, origin, time ms, payload], ...]

An item's payload is the whole object in canonical bytes, kept as opaque bytes on both sides. Every length is
bounded by that of the body, which the caller bounds before reading; a decoder answers hostile bytes with
CodecError. The story goes on in `queues.registry` (source) and `sink.fetch` (sink).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from queues.batches import Session
from queues.rules import Item
from repl.model.errors import BadInput, CodecError, TooLarge

WIRE_VERSION: Final = 1

REQUEST_BYTES_MAX: Final = 64_000
"""Largest fetch request: room for 10,000 failed indexes; a larger one is refused with 413."""

COUNT_MAX: Final = 10_000
"""Most changes in one batch, whatever is asked for: bounds the work between two awaits."""

BYTES_MAX: Final = 64_000_000
"""Most payload bytes in one batch, whatever is asked for; a single larger object still goes."""

WAIT_MS_MAX: Final = 30_000
"""Longest long poll, whatever is asked for: below the time-outs of usual proxies."""

ACKS_MAX: Final = 64
"""Most batches acknowledged or held in one request: as many as the source gives out at once."""

NAME_MAX: Final = 255
"""Longest cluster or node name, and batch id."""

MEDIA_TYPE: Final = "application/msgpack"

SERVING: Final = "serving"
SUSPENDED: Final = "suspended"
STARTING: Final = "starting"
"""`state` when no partition stands under the queue's owner version yet."""


class UnknownQueue(BadInput):
    """No queue of that name is configured here (404)."""

    reason = "unknown-queue"


class OwnedByOther(BadInput):
    """The queue belongs to another sink cluster, named in the message (409): two on one queue would each get half."""

    reason = "owned-by-other"


class OwnCluster(BadInput):
    """The fetch came from the cluster that owns the data (409): a sink's peer points at its own cluster."""

    reason = "own-cluster"


@dataclass(frozen=True, slots=True)
class Ack:
    """What became of a batch; `failed` indexes must come again, None means all."""

    batch: bytes
    owner_version: int
    failed: tuple[int, ...] | None = ()


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """See the module's text."""

    session: Session
    cluster_name: str
    acks: tuple[Ack, ...] = ()
    holding: tuple[bytes, ...] | None = None
    max_count: int = 512
    max_bytes: int = 4_000_000
    wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class FetchReply:
    """See the module's text."""

    cluster: bytes
    cluster_name: str
    owner_version: int
    batch: bytes
    lease_ms: int
    now_ms: int
    state: str
    items: Sequence[Item]


def encode_request(request: FetchRequest) -> bytes:
    """The request's body."""
    session = request.session
    packed: bytes = msgpack.packb(
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
        }
    )
    return packed


def decode_request(body: bytes) -> FetchRequest:
    """The request in `body`, what it asks for cut to this module's limits. Raises TooLarge, CodecError."""
    if len(body) > REQUEST_BYTES_MAX:
        raise TooLarge(f"fetch request of {len(body)} bytes, at most {REQUEST_BYTES_MAX}")
    fields = _unpack(body, "fetch request")
    session = Session(
        _bytes(fields, "cluster", 16),
        _text(fields, "node"),
        _bytes(fields, "incarnation", 8),
        _number(fields, "link"),
    )
    acks, holding = fields.get("acks"), fields.get("holding")
    if type(acks) is not tuple or len(acks) > ACKS_MAX:
        raise CodecError(f"fetch request: acks is no list of at most {ACKS_MAX}")
    if holding is not None and (
        type(holding) is not tuple or len(holding) > ACKS_MAX or not all(type(x) is bytes for x in holding)
    ):
        raise CodecError(f"fetch request: holding is no list of at most {ACKS_MAX} batch ids")
    return FetchRequest(
        session,
        _text(fields, "name"),
        tuple(_ack(ack) for ack in acks),
        holding,
        min(_number(fields, "max_count"), COUNT_MAX),
        min(_number(fields, "max_bytes"), BYTES_MAX),
        min(_number(fields, "wait_ms"), WAIT_MS_MAX),
    )


def encode_reply(reply: FetchReply) -> bytes:
    """The answer's body."""
    packed: bytes = msgpack.packb(
        {
            "v": WIRE_VERSION,
            "cluster": reply.cluster,
            "name": reply.cluster_name,
            "owner_version": reply.owner_version,
            "batch": reply.batch,
            "lease_ms": reply.lease_ms,
            "now_ms": reply.now_ms,
            "state": reply.state,
            "items": reply.items,
        }
    )
    return packed


_ITEM_TYPES: Final = (int, int, int, bytes, bytes, bytes, bytes, int, bytes)


def decode_reply(body: bytes) -> FetchReply:
    """The answer in `body`. Raises CodecError for anything that `encode_reply` would not write."""
    fields = _unpack(body, "fetch answer")
    items, batch = fields.get("items"), fields.get("batch")
    if type(items) is not tuple or type(batch) is not bytes or len(batch) > NAME_MAX or bool(items) != bool(batch):
        raise CodecError("fetch answer: no items, or no batch id for them")
    for item in items:
        if type(item) is not tuple or tuple(map(type, item)) != _ITEM_TYPES:
            raise CodecError("fetch answer: an item has a wrong shape")
    return FetchReply(
        _bytes(fields, "cluster", 16),
        _text(fields, "name"),
        _number(fields, "owner_version"),
        batch,
        _number(fields, "lease_ms"),
        _number(fields, "now_ms"),
        _text(fields, "state"),
        items,
    )


def _unpack(body: bytes, what: str) -> dict[str, Any]:
    try:
        raw = msgpack.unpackb(body, use_list=False, max_ext_len=0)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise CodecError(f"not a {what}: {error}") from error
    if type(raw) is not dict:
        raise CodecError(f"not a {what}: no map at the top")
    if raw.get("v") != WIRE_VERSION:
        raise CodecError(f"{what} of version {raw.get('v')!r}, this program speaks {WIRE_VERSION}")
    return raw


def _ack(raw: object) -> Ack:
    if type(raw) is not tuple or len(raw) != 3:
        raise CodecError("fetch request: an acknowledgement has a wrong shape")
    batch, version, failed = raw
    if type(batch) is not bytes or len(batch) > NAME_MAX or type(version) is not int:
        raise CodecError("fetch request: an acknowledgement has a wrong shape")
    if failed is not None and (type(failed) is not tuple or not all(type(i) is int for i in failed)):
        raise CodecError("fetch request: failed indexes are no list of numbers")
    return Ack(batch, version, failed)


def _bytes(fields: dict[str, Any], name: str, length: int) -> bytes:
    value = fields.get(name)
    if type(value) is not bytes or len(value) != length:
        raise CodecError(f"fetch: {name} is not {length} bytes")
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if type(value) is not str or len(value) > NAME_MAX:
        raise CodecError(f"fetch: {name} is no text of at most {NAME_MAX} characters")
    return value


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or value < 0:
        raise CodecError(f"fetch: {name} is no number from 0 up")
    return value
