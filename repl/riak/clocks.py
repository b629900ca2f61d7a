"""Clocks as Riak has them: a list of {actor, {counter, timestamp}}, in binary and in JSON. Pure.

Timestamps are seconds since the year 0, where those of Isthmus are seconds since 1970. A timestamp that came from a
Riak stays as it came, and is told from ours by its size; both are written as Riak's.

The forms: Riak's `riak_object` (`encode_vclock`) and Erlang's "External Term Format".
"""

from __future__ import annotations

import zlib
from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from typing import Any, Final

from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.vclock import ACTOR_BYTES_MAX, CLOCK_ENTRIES_MAX, Clock, check_clock
from isthmus.repl.riak.terms import VERSION, binary, decode_term, integer, list_of, tuple_of

GREGORIAN_EPOCH_S: Final = 62_167_219_200
"""1970 in seconds since the year 0. A timestamp of a clock from here on came from a Riak and stays as it is."""

_ENTRY_BYTES_MAX: Final = ACTOR_BYTES_MAX + 32
CLOCK_BYTES_MAX: Final = CLOCK_ENTRIES_MAX * _ENTRY_BYTES_MAX
"""Longest term of a clock that is inflated, about a megabyte."""

_TEXT_BYTES_MAX: Final = CLOCK_BYTES_MAX * 4 // 3 + 4

_RAW_DEFLATE: Final = -zlib.MAX_WBITS


def gregorian(time_s: int) -> int:
    """A timestamp of a clock, in seconds since the year 0."""
    return time_s if time_s >= GREGORIAN_EPOCH_S else time_s + GREGORIAN_EPOCH_S


def encode_clock_term(clock: Clock) -> bytes:
    """A vector clock as an external term."""
    return VERSION + list_of(
        tuple_of(binary(actor), tuple_of(integer(counter), integer(gregorian(time_s))))
        for actor, counter, time_s in clock
    )


def decode_clock_term(data: bytes) -> Clock:
    """The vector clock in an external term. Raises CodecError."""
    return clock_of(decode_term(data, "a clock"))


def clock_of(term: Any) -> Clock:
    """The vector clock that a decoded term is; actors of Riak are in any order. Raises CodecError."""
    if type(term) is not list:
        raise CodecError("not a clock of a Riak: no list of {actor, {counter, timestamp}}")
    clock = tuple(sorted(_entry(one) for one in term))
    check_clock(clock)
    return clock


def _entry(term: Any) -> tuple[bytes, int, int]:
    match term:
        case (bytes(actor), (int(counter), int(time_s))) if type(term) is tuple:
            return actor, counter, time_s
    raise CodecError("not a clock of a Riak: an entry is not {actor, {counter, timestamp}}")


def clock_text(clock: Clock) -> str:
    """A clock as Riak's JSON has it: base64 of the deflated term, without zlib's head."""
    deflate = zlib.compressobj(wbits=_RAW_DEFLATE)
    return b2a_base64(deflate.compress(encode_clock_term(clock)) + deflate.flush(), newline=False).decode()


def parse_clock_text(given: object) -> Clock:
    """The clock in a text of `clock_text`, or in the list of its character codes, which Riak's own JSON has. Raises
    CodecError."""
    if isinstance(given, list):
        if len(given) > _TEXT_BYTES_MAX or not all(type(code) is int and 0 <= code < 0x80 for code in given):
            raise CodecError("not a clock of a Riak: a list that is not one of character codes")
        encoded = bytes(given)
    elif isinstance(given, str) and len(given) <= _TEXT_BYTES_MAX and given.isascii():
        encoded = given.encode()
    else:
        raise CodecError("not a clock of a Riak: neither base64 nor a list of its character codes")
    try:
        deflated = a2b_base64(encoded, strict_mode=True)
        inflate = zlib.decompressobj(wbits=_RAW_DEFLATE)
        term = inflate.decompress(deflated, CLOCK_BYTES_MAX)
    except (NotBase64, zlib.error) as error:
        raise CodecError(f"not a clock of a Riak: {error}") from error
    if not inflate.eof or inflate.unused_data:
        raise CodecError(f"not a clock of a Riak: cut short, or longer than {CLOCK_BYTES_MAX:,} bytes")
    return decode_clock_term(term)
