"""Handshake of a connection: the first frame each way, and refusals. Pure; bytes are described in `docs/formats.md`.

The dialling node sends who it is and which node it expects; the other side accepts, or refuses with one sentence. Both
check the cluster's uuid and both names, since an address may meanwhile belong to another node or cluster
(docs/protocol.md H33). Nothing else is sent before the handshake has succeeded. `dialer` decides when to dial again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgpack

from isthmus.repl.model.errors import CodecError, PeerFault
from isthmus.repl.transport.codec import NAME_LENGTH_MAX
from isthmus.repl.transport.frames import unpacked

WIRE_VERSION: Final = 2
"""Version of all bytes between the nodes of a cluster. Another version is refused with its own reason."""

SENTENCE_LENGTH_MAX: Final = 400
"""Longest sentence of a refusal, in characters; the sender cuts longer ones."""

BODY_BYTES_MAX: Final = (1 << 32) - 1
"""Greatest body limit that a node may announce."""


class Handshake(NamedTuple):
    """Content of a greeting and of a welcome: sender, expected receiver, and the largest body (bytes) that it takes."""

    cluster_uuid: bytes
    cluster: str
    node: str
    to: str
    body_limit: int


class HandshakeRefusal(StrEnum):
    """Why a connection is refused."""

    VERSION = "version"
    WRONG_CLUSTER = "wrong-cluster"
    WRONG_NODE = "wrong-node"
    TOO_MANY = "too-many"
    CERTIFICATE = "wrong-certificate"


class ConnectionRefused(PeerFault):
    """A connection was refused by one of its ends. `reason` is a HandshakeRefusal's code."""

    def __init__(self, refusal: HandshakeRefusal, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = refusal.value


def encode_handshake(handshake: Handshake) -> bytes:
    """The body of a GREETING or WELCOME."""
    packed: bytes = msgpack.packb((WIRE_VERSION, *handshake))
    return packed


def decode_handshake(body: bytes | memoryview) -> Handshake:
    """Decode a GREETING or WELCOME. Raises CodecError, or ConnectionRefused for another version, of which only the
    number is read."""
    raw = unpacked(body)
    if not raw or type(raw[0]) is not int:
        raise CodecError("a handshake without a version")
    if raw[0] != WIRE_VERSION:
        raise ConnectionRefused(
            HandshakeRefusal.VERSION, f"one end speaks version {raw[0]}, the other version {WIRE_VERSION}"
        )
    if tuple(map(type, raw)) != (int, bytes, str, str, str, int):
        raise CodecError("a handshake with fields of a wrong type or number")
    found = Handshake(*raw[1:])
    if len(found.cluster_uuid) != 16 or not 0 < found.body_limit <= BODY_BYTES_MAX:
        raise CodecError("a handshake with a field out of range")
    for name in found[1:4]:
        if not 0 < len(name) <= NAME_LENGTH_MAX or not name.isascii() or not name.isprintable():
            raise CodecError("a handshake with an invalid name")
    return found


def check_handshake(theirs: Handshake, ours: Handshake, expected: str | None) -> None:
    """Raises ConnectionRefused when the peer (`theirs`) is of another cluster, expects another node, or (`expected`) is
    not the node that was dialled."""
    if theirs.cluster_uuid != ours.cluster_uuid:
        raise ConnectionRefused(
            HandshakeRefusal.WRONG_CLUSTER,
            f"node {ours.node} is of cluster {ours.cluster} ({ours.cluster_uuid.hex()}), "
            f"node {theirs.node} of cluster {theirs.cluster} ({theirs.cluster_uuid.hex()})",
        )
    if theirs.to != ours.node:
        raise ConnectionRefused(
            HandshakeRefusal.WRONG_NODE, f"this is node {ours.node}, node {theirs.node} expects node {theirs.to}"
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
    """Decode a REFUSAL, of any version. Raises CodecError."""
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
