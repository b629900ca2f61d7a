"""Decode answers to Riak's fetch; written from Riak's formats, independently of the encoder."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple


class Text(bytes):
    """A list of characters, as Erlang has texts; not a binary."""


class RiakSibling(NamedTuple):
    value: bytes
    last_modified: tuple[int, int, int]
    vtag: bytes
    deleted: bool
    metadata: dict[bytes, Any]


class Answer(NamedTuple):
    tombstone: bool
    tombstone_clock: Any
    bucket_type: bytes
    bucket: bytes
    key: bytes
    clock: Any
    siblings: list[RiakSibling]


class Reader:
    """Takes bytes from the front."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        assert self.at + count <= len(self.data), "cut short"
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, count: int = 4) -> int:
        return int.from_bytes(self.take(count), "big")

    def sized(self) -> bytes:
        return self.take(self.number())

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.at)

    def term(self) -> Any:
        tag = self.number(1)
        if tag == 97:
            return self.number(1)
        if tag == 98:
            return int.from_bytes(self.take(4), "big", signed=True)
        if tag == 104:
            return tuple(self.term() for _ in range(self.number(1)))
        if tag == 106:
            return []
        if tag == 107:
            return Text(self.take(self.number(2)))
        if tag == 108:
            found = [self.term() for _ in range(self.number())]
            assert self.number(1) == 106, "a list ends with nil"
            return Text(bytes(found)) if all(type(one) is int for one in found) else found
        if tag == 109:
            return self.sized()
        assert tag == 110, tag
        length, sign = self.number(1), self.number(1)
        size = int.from_bytes(self.take(length), "little")
        return -size if sign else size


def decode_term(data: bytes) -> Any:
    reader = Reader(data)
    assert reader.number(1) == 131
    found = reader.term()
    assert not reader.rest()
    return found


def decode_tagged(data: bytes) -> Any:
    return data[1:] if data[0] == 1 else decode_term(data[1:])


def decode_answer(body: bytes) -> Answer | None:
    """The decoded answer; None for an empty queue."""
    if body == b"\0":
        return None
    reader = Reader(body)
    assert reader.number(1) == 1
    tombstone = reader.number(1) == 1
    clock = decode_term(reader.sized()) if tombstone else None
    checksum, change = reader.number(), reader.rest()
    assert zlib.crc32(change) == checksum
    reader = Reader(change)
    assert reader.number(1) == 0x10
    bucket_type, bucket, key = reader.sized(), reader.sized(), reader.sized()
    assert reader.take(2) == bytes([53, 1])
    object_clock = decode_term(reader.sized())
    siblings = []
    for _ in range(reader.number()):
        value, about = decode_tagged(reader.sized()), Reader(reader.sized())
        modified = (about.number(), about.number(), about.number())
        vtag, deleted, metadata = about.take(about.number(1)), about.number(1) == 1, {}
        while about.at < len(about.data):
            name = decode_tagged(about.sized())
            metadata[name] = decode_tagged(about.sized())
        siblings.append(RiakSibling(value, modified, vtag, deleted, metadata))
    assert not reader.rest()
    return Answer(tombstone, clock, bucket_type, bucket, key, object_clock, siblings)
