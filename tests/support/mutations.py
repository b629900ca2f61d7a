"""Mutants of valid input, from a seeded source of chance: of bytes as such, and of the values that they encode."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from enum import Enum
from random import Random
from typing import Any, Final

import msgpack

BYTES_MAX: Final = 16_384
"""Longest mutant: most sizes that decoders check are within; long input would only make the run slow."""

CHANGES_MAX: Final = 4
"""Most changes of one mutant: many end at the first check of a decoder."""

EDGES: Final = (0, 1, 2, 7, 8, 15, 16, 31, 32, 127, 128, 143, 159, 191, 192, 193, 196, 198, 202, 203, 207, 211, 217)
EDGES_HIGH: Final = (219, 220, 221, 222, 223, 224, 254, 255)
"""Bytes with a meaning in msgpack, and ends of ranges."""

NUMBERS: Final = (
    0, 1, -1, 127, 128, 255, 256, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 44) - 1,
    1 << 44, (1 << 53), (1 << 63) - 1, -(1 << 63), (1 << 64) - 1,
)  # fmt: skip

FLOATS: Final = (0.5, -0.0, 1e308, float("inf"), float("-inf"), float("nan"))

TEXTS: Final = ("", "a", "\x00", "é", "\ud7ff", "no", "true", "0", "-1", "[::1]:0", "http://h:99999", "%zz", "x" * 300)

TOKENS: Final = (
    b"\r\n", b"\r\n\r\n", b"\n", b"\r", b" ", b"\t", b"\x00", b":", b";", b",", b"=", b'"', b"%", b"%2", b"%00",
    b"\xff",
    b"\xc3", b"[", b"]", b"{", b"}", b"[[", b"]]", b"null", b"true", b"-", b"1e999", b"NaN", b"Infinity", b"\\ud800",
    b"0x", b"99999999999999999999", b"HTTP/1.1", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n",
    b"ffff\r\n",
    b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: websocket\r\n",
    b"#", b"'''",
)  # fmt: skip
"""Pieces of texts and of HTTP."""


class Encoding(Enum):
    """The format that a sample's bytes encode."""

    OPAQUE = "opaque"
    TEXT = "text"
    MSGPACK = "msgpack"
    JSON = "json"


def mutant(chance: Random, samples: Sequence[bytes], encoding: Encoding) -> bytes:
    """A mutant of one of `samples`."""
    data = samples[chance.randrange(len(samples))]
    if encoding in (Encoding.MSGPACK, Encoding.JSON) and chance.random() < 0.5:
        data = _another_value(chance, data, encoding)
        if chance.random() < 0.7:
            return data[:BYTES_MAX]
    for _ in range(1 + chance.randrange(CHANGES_MAX)):
        data = _CHANGES[chance.randrange(len(_CHANGES))](chance, data, samples)
    return data[:BYTES_MAX]


# -- bytes -------------------------------------------------------------------------------------------------


def _place(chance: Random, data: bytes) -> int:
    return chance.randrange(len(data) + 1)


def _flip(chance: Random, data: bytes, _samples: Sequence[bytes]) -> bytes:
    if not data:
        return b"\x00"
    at = chance.randrange(len(data))
    return data[:at] + bytes((data[at] ^ 1 << chance.randrange(8),)) + data[at + 1 :]


def _edge(chance: Random, data: bytes, _samples: Sequence[bytes]) -> bytes:
    at = _place(chance, data)
    return data[:at] + bytes((chance.choice(EDGES + EDGES_HIGH),)) + data[at + chance.randrange(2) :]


def _number(chance: Random, data: bytes, _samples: Sequence[bytes]) -> bytes:
    """Overwrite 2, 4 or 8 bytes with a number in either byte order."""
    at, width = _place(chance, data), chance.choice((2, 4, 8))
    number = chance.choice(NUMBERS) & ((1 << 8 * width) - 1)
    return data[:at] + number.to_bytes(width, chance.choice(("big", "little"))) + data[at + width :]


def _cut(chance: Random, data: bytes, _samples: Sequence[bytes]) -> bytes:
    return data[: _place(chance, data)]


def _drop(chance: Random, data: bytes, _samples: Sequence[bytes]) -> bytes:
    at = _place(chance, data)
    return data[:at] + data[at + 1 + chance.randrange(12) :]


def _repeat(chance: Random, data: bytes, _samples: Sequence[bytes]) -> bytes:
    at, length = _place(chance, data), 1 + chance.randrange(40)
    return data[:at] + data[at : at + length] * (1 + chance.randrange(8)) + data[at:]


def _insert(chance: Random, data: bytes, _samples: Sequence[bytes]) -> bytes:
    at = _place(chance, data)
    return data[:at] + chance.randbytes(1 + chance.randrange(12)) + data[at:]


def _token(chance: Random, data: bytes, _samples: Sequence[bytes]) -> bytes:
    at = _place(chance, data)
    return data[:at] + chance.choice(TOKENS) + data[at + chance.randrange(6) :]


def _splice(chance: Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    """The beginning of one sample, and the end of another."""
    other = chance.choice(samples)
    return data[: _place(chance, data)] + other[_place(chance, other) :]


_CHANGES: Final[tuple[Callable[[Random, bytes, Sequence[bytes]], bytes], ...]] = (
    _flip, _flip, _edge, _edge, _number, _cut, _drop, _repeat, _insert, _token, _token, _splice,
)  # fmt: skip


# -- values ------------------------------------------------------------------------------------------------


def _another_value(chance: Random, data: bytes, encoding: Encoding) -> bytes:
    """The encoding of the value in `data`, with one or two of its parts replaced, left out or repeated."""
    binary = encoding is Encoding.MSGPACK
    value = msgpack.unpackb(data, strict_map_key=False) if binary else json.loads(data)
    for _ in range(1 + chance.randrange(2)):
        value = _changed(chance, value, binary)
    try:
        return bytes(msgpack.packb(value)) if binary else json.dumps(value).encode(errors="surrogatepass")
    except (ValueError, OverflowError):  # a number of more than 64 bits
        return data


def _odd(chance: Random, binary: bool) -> Any:
    """A value of any kind."""
    match chance.randrange(9 if binary else 8):
        case 0:
            return None
        case 1:
            return chance.random() < 0.5
        case 2 | 3:
            return chance.choice(NUMBERS)
        case 4:
            return chance.choice(FLOATS)
        case 5:
            return chance.choice(TEXTS)
        case 6:
            return [_odd(chance, binary) for _ in range(chance.randrange(4))]
        case 7:
            return {chance.choice(TEXTS): _odd(chance, binary) for _ in range(chance.randrange(3))}
        case _:
            return chance.randbytes(chance.choice((0, 1, 8, 16, 20)))


def _changed(chance: Random, value: Any, binary: bool) -> Any:
    """`value` with one part of it, or itself, changed."""
    if not value or not isinstance(value, list | dict) or chance.random() < 0.1:
        return _near(chance, value) if chance.random() < 0.3 else _odd(chance, binary)
    if isinstance(value, list):
        at = chance.randrange(len(value))
        match chance.randrange(8):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value, value[at]]
            case 2:
                return [*value[:at], _odd(chance, binary), *value[at:]]
            case _:
                return [*value[:at], _changed(chance, value[at], binary), *value[at + 1 :]]
    name = chance.choice(list(value))
    match chance.randrange(8):
        case 0:
            return {key: each for key, each in value.items() if key != name}
        case 1:
            return {**value, chance.choice(TEXTS): _odd(chance, binary)}
        case _:
            return {**value, name: _changed(chance, value[name], binary)}


def _near(chance: Random, value: Any) -> Any:
    """A value of the same kind."""
    match value:
        case bool():
            return not value
        case int():
            return value + chance.choice((-1, 1, 1 << 32))
        case str():
            return value + chance.choice(TEXTS)
        case bytes():
            return value[: len(value) // 2] if chance.random() < 0.5 else value + b"\x00"
        case _:
            return value
