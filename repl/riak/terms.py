"""Terms of Erlang's external term format, of the kinds in which Riak keeps clocks and metadata. Pure.

    integer     int             bytes of a binary   bytes           tuple       tuple
    list        list            atom                Atom            text        ErlangText, a list of characters

The decoder takes no other kind: no float, map, function, process, reference, compressed or shared term. Each length is
checked against the bytes that are left before anything is made.

The format: Erlang's "External Term Format".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from isthmus.repl.model.errors import CodecError

TERM_DEPTH_MAX: Final = 16
"""Terms within terms. An index entry of an object's metadata is the deepest that a Riak sends, with 4."""

TERM_ELEMENTS_MAX: Final = 262_144
"""Elements of lists and tuples in one term. A clock has at most 4,096 entries with 5 terms each."""

INTEGER_BYTES_MAX: Final = 255
"""Bytes of an integer: the short form of a big one. A counter has 8, an index value of 39 digits 17."""

VERSION: Final = b"\x83"
SMALL_INTEGER: Final = b"\x61"
INTEGER: Final = b"\x62"
TUPLE: Final = b"\x68"
NIL: Final = b"\x6a"
STRING: Final = b"\x6b"
LIST: Final = b"\x6c"
BINARY: Final = b"\x6d"
SMALL_BIG: Final = b"\x6e"

_ATOM_LENGTH_BYTES: Final = {0x64: 2, 0x73: 1, 0x76: 2, 0x77: 1}
"""Kinds of atoms, and the bytes in which each has its length: old and new forms, long and short."""

_STRING_BYTES_MAX: Final = 65_535
"""Longest list of characters in Erlang's short form, whose length has two bytes."""


class ErlangText(bytes):
    """A list of characters, each of one byte."""


class Atom(NamedTuple):
    """An atom, as its name: there is no table of atoms that foreign bytes could fill."""

    name: bytes


def integer(number: int) -> bytes:
    """The bytes of an integer of at most INTEGER_BYTES_MAX bytes."""
    if 0 <= number <= 0xFF:
        return SMALL_INTEGER + bytes([number])
    if -(1 << 31) <= number < 1 << 31:
        return INTEGER + number.to_bytes(4, "big", signed=True)
    length = (abs(number).bit_length() + 7) // 8
    return SMALL_BIG + bytes([length, number < 0]) + abs(number).to_bytes(length, "little")


def binary(data: bytes) -> bytes:
    """The bytes of a binary."""
    return BINARY + sized(data)


def tuple_of(*terms: bytes) -> bytes:
    """The bytes of a tuple of at most 255 encoded terms."""
    return TUPLE + bytes([len(terms)]) + b"".join(terms)


def list_of(terms: Iterable[bytes]) -> bytes:
    """The bytes of a list of encoded terms."""
    found = list(terms)
    return LIST + len(found).to_bytes(4, "big") + b"".join(found) + NIL if found else NIL


def text(characters: bytes) -> bytes:
    """The bytes of a list of characters."""
    if 0 < len(characters) <= _STRING_BYTES_MAX:
        return STRING + len(characters).to_bytes(2, "big") + characters
    return list_of(integer(character) for character in characters)


def sized(data: bytes) -> bytes:
    """`data` behind its length in four bytes, as in Riak's formats and in Erlang's binaries."""
    return len(data).to_bytes(4, "big") + data


class TermReader:
    """Takes bytes from the front of `data`; `what` is for errors."""

    __slots__ = ("_at", "_data", "_elements_left", "_what")

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self._at = 0
        self._elements_left = TERM_ELEMENTS_MAX

    @property
    def left(self) -> int:
        """Bytes that were not taken yet."""
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        """The next `count` bytes. Raises CodecError when fewer are left."""
        at = self._at
        if count > len(self._data) - at:
            raise self.refused(f"it ends {count - self.left} bytes too early")
        self._at = at + count
        return self._data[at : at + count]

    def number(self, count: int = 4) -> int:
        """The next `count` bytes as a number. Raises CodecError."""
        return int.from_bytes(self.take(count), "big")

    def sized(self) -> bytes:
        """Bytes behind their length. Raises CodecError."""
        return self.take(self.number())

    def rest(self) -> bytes:
        """All bytes that are left."""
        return self.take(self.left)

    def end(self) -> None:
        """Check that nothing is left. Raises CodecError."""
        if self.left:
            raise self.refused(f"{self.left} bytes follow its end")

    def refused(self, why: str) -> CodecError:
        """The error with `why` the bytes are not what they should be."""
        return CodecError(f"not {self._what} of a Riak: {why}")

    def term(self) -> Any:
        """The next term, without the byte of the format's version. Raises CodecError."""
        return self._term(TERM_DEPTH_MAX)

    def _term(self, depth: int) -> Any:
        tag = self.number(1)
        if tag == SMALL_INTEGER[0]:
            return self.number(1)
        if tag == INTEGER[0]:
            return int.from_bytes(self.take(4), "big", signed=True)
        if tag == BINARY[0]:
            return self.sized()
        if tag == STRING[0]:
            return ErlangText(self.take(self.number(2)))
        if tag == NIL[0]:
            return []
        if tag == SMALL_BIG[0]:
            length, negative = self.number(1), self.number(1)
            size = int.from_bytes(self.take(length), "little")
            return -size if negative else size
        if tag in _ATOM_LENGTH_BYTES:
            return Atom(self.take(self.number(_ATOM_LENGTH_BYTES[tag])))
        if tag == TUPLE[0]:
            return tuple(self._terms(self.number(1), depth))
        if tag == LIST[0]:
            return self._list(depth)
        raise self.refused(f"a term of kind {tag}, which no Riak sends")

    def _list(self, depth: int) -> Any:
        found = self._terms(self.number(), depth)
        if self.number(1) != NIL[0]:
            raise self.refused("a list does not end")
        if found and all(type(one) is int and 0 <= one <= 0xFF for one in found):
            return ErlangText(bytes(found))
        return found

    def _terms(self, count: int, depth: int) -> list[Any]:
        if not depth:
            raise self.refused(f"terms are nested more than {TERM_DEPTH_MAX} deep")
        self._elements_left -= count
        if count > self.left or self._elements_left < 0:
            raise self.refused(f"more elements than its bytes hold, or than {TERM_ELEMENTS_MAX:,}")
        return [self._term(depth - 1) for _ in range(count)]


def decode_term(data: bytes, what: str) -> Any:
    """The term in `data`, `what` for errors. Raises CodecError."""
    reader = TermReader(data, what)
    if reader.take(1) != VERSION:
        raise reader.refused("no term of Erlang's format")
    found = reader.term()
    reader.end()
    return found
