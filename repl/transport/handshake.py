"""Who is at the other end: the first frame each way, and what is refused. Pure; `docs/wire.md` describes the same.

The dialler says who it is and whom it believes to reach; the other side welcomes it or says in one sentence why not.
Both ends check the cluster's uuid and both names: an address may belong to another node or another cluster by now
(docs/protocol.md H33). Nothing else is sent before the welcome. When to dial again is for `dialer`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgpack

from isthmus.repl.model.errors import CodecError, PeerFault
from isthmus.repl.transport.codec import NAME_LENGTH_MAX
from isthmus.repl.transport.frames import unpacked

WIRE_VERSION: Final = 2
"""Of everything between the nodes of a cluster. Another one is refused by name."""

SENTENCE_LENGTH_MAX: Final = 400
"""Longest sentence of a refusal, in characters; more is cut off by who says it."""

BODY_BYTES_MAX: Final = (1 << 32) - 1
"""Largest limit that a node may name."""


class Handshake(NamedTuple):
    """What a greeting and a welcome say: who speaks, to whom, and the largest body (bytes) that the speaker takes."""

    cluster_uuid: bytes
    cluster: str
    node: str
    to: str
    body_limit: int


class HandshakeRefusal(StrEnum):
    """Why a connection is not taken."""

    VERSION = "version"
    WRONG_CLUSTER = "wrong-cluster"
    WRONG_NODE = "wrong-node"
    TOO_MANY = "too-many"
    CERTIFICATE = "wrong-certificate"


class ConnectionRefused(PeerFault):
    """A connection that one of its ends does not take. `reason` is a Refusal's code."""

    def __init__(self, refusal: HandshakeRefusal, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = refusal.value


def encode_introduction(introduction: Handshake) -> bytes:
    """The body of a GREETING or WELCOME."""
    packed: bytes = msgpack.packb((WIRE_VERSION, *introduction))
    return packed


def decode_introduction(body: bytes | memoryview) -> Handshake:
    """Raises CodecError, or Refused for another version, of which no more than its number is believed."""
    raw = unpacked(body)
    if not raw or type(raw[0]) is not int:
        raise CodecError("an introduction without a version")
    if raw[0] != WIRE_VERSION:
        raise ConnectionRefused(
            HandshakeRefusal.VERSION, f"one end speaks version {raw[0]}, the other version {WIRE_VERSION}"
        )
    if tuple(map(type, raw)) != (int, bytes, str, str, str, int):
        raise CodecError("an introduction with fields of a wrong type or number")
    found = Handshake(*raw[1:])
    if len(found.cluster_uuid) != 16 or not 0 < found.body_limit <= BODY_BYTES_MAX:
        raise CodecError("an introduction with a field out of range")
    for name in found[1:4]:
        if not 0 < len(name) <= NAME_LENGTH_MAX or not name.isascii() or not name.isprintable():
            raise CodecError("an introduction with something that is no name")
    return found


def check_introduction(theirs: Handshake, ours: Handshake, expected: str | None) -> None:
    """Raises Refused when who speaks (`theirs`) is of another cluster, takes us for another node, or (`expected`) is
    not the node that we dialled."""
    if theirs.cluster_uuid != ours.cluster_uuid:
        raise ConnectionRefused(
            HandshakeRefusal.WRONG_CLUSTER,
            f"node {ours.node} is of cluster {ours.cluster} ({ours.cluster_uuid.hex()}), "
            f"node {theirs.node} of cluster {theirs.cluster} ({theirs.cluster_uuid.hex()})",
        )
    if theirs.to != ours.node:
        raise ConnectionRefused(
            HandshakeRefusal.WRONG_NODE, f"this is node {ours.node}, node {theirs.node} wants node {theirs.to}"
        )
    if expected is not None and theirs.node != expected:
        raise ConnectionRefused(
            HandshakeRefusal.WRONG_NODE, f"node {theirs.node} answers where node {expected} was dialled"
        )
    if theirs.node == ours.node:
        raise ConnectionRefused(HandshakeRefusal.WRONG_NODE, f"both ends call themselves node {ours.node}")


def encode_refusal(refused: ConnectionRefused) -> bytes:
    """The body of a REFUSAL."""
    packed: bytes = msgpack.packb((WIRE_VERSION, refused.reason, str(refused)[:SENTENCE_LENGTH_MAX]))
    return packed


def decode_refusal(body: bytes | memoryview) -> ConnectionRefused:
    """What the other end refuses with; raises CodecError when it is not said as we say it. Of whatever version."""
    raw: tuple[Any, ...] = unpacked(body)
    if tuple(map(type, raw[:3])) != (int, str, str):
        raise CodecError("a refusal with fields of a wrong type or number")
    _, code, sentence = raw[:3]
    if (
        code not in HandshakeRefusal._value2member_map_
        or len(sentence) > SENTENCE_LENGTH_MAX
        or not sentence.isprintable()
    ):
        raise CodecError("a refusal that is not known")
    return ConnectionRefused(HandshakeRefusal(code), sentence)
