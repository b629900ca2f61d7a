"""One object of a queue, asked for by its key: bodies of `POST /queues/NAME/object`, in msgpack.

What a sink asks whose dead letter has not kept the object. Nothing is leased and nothing acknowledged: the queue's
places stay as they are.

    request   v, cluster (16 bytes: who asks), name (its name), bucket_type, bucket, key
    answer    v, cluster, name (the source), payload: the object in canonical bytes as its leader has it now, nil: the
              key is not there any more

Versions and unknown fields are as in `queues.wire`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgpack

from queues.bounded import UNREADABLE, unpacked
from queues.wire import MAP_MAX, NAME_MAX, WIRE_VERSION, UnknownVersion
from repl.model.errors import CodecError
from repl.model.keys import Key

ASKING_BYTES_MAX: Final = 200_000
"""Largest request: the longest names that any node takes."""

ANSWER_HEAD_BYTES: Final = 1_000
"""What an answer has beside the payload, at most."""

PART_BYTES_MAX: Final = 65_536
"""Longest part of a key; the node's own limit is lower."""


@dataclass(frozen=True, slots=True)
class ObjectRequest:
    """`cluster`, called `cluster_name`, wants the object of `key`."""

    cluster: bytes
    cluster_name: str
    key: Key


@dataclass(frozen=True, slots=True)
class ObjectReply:
    """What the source cluster has: canonical bytes, or None."""

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
        raise CodecError("answer with an object: its payload is no bytes")
    return ObjectReply(*_cluster(fields), payload)


def _fields(body: bytes, what: str) -> dict[str, Any]:
    try:
        fields = unpacked(body, 0, MAP_MAX)
    except UNREADABLE as error:
        raise CodecError(f"not a {what}: {error}") from error
    if type(fields) is not dict:
        raise CodecError(f"not a {what}: no map at the top")
    if fields.get("v") != WIRE_VERSION:
        raise UnknownVersion(f"{what} of version {fields.get('v')!r:.40}, this program speaks {WIRE_VERSION}")
    return fields


def _cluster(fields: dict[str, Any]) -> tuple[bytes, str]:
    cluster, name = fields.get("cluster"), fields.get("name")
    if type(cluster) is not bytes or len(cluster) != 16 or type(name) is not str or len(name) > NAME_MAX:
        raise CodecError("an object asked for: it names no cluster")
    return cluster, name
