"""External terms and clocks: what comes back, and what is refused."""

from __future__ import annotations

import zlib
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.repl.model.errors import CodecError
from isthmus.repl.riak.clocks import (
    GREGORIAN_EPOCH_S,
    clock_text,
    decode_clock_term,
    encode_clock_term,
    parse_clock_text,
)
from isthmus.repl.riak.terms import (
    TERM_DEPTH_MAX,
    Atom,
    ErlangText,
    binary,
    decode_term,
    integer,
    list_of,
    text,
    tuple_of,
)

actors = st.binary(min_size=1, max_size=255)
times = st.integers(GREGORIAN_EPOCH_S, (1 << 64) - 1)
clocks = st.dictionaries(actors, st.tuples(st.integers(1, (1 << 64) - 1), times), max_size=6).map(
    lambda found: tuple(sorted((actor, *rest) for actor, rest in found.items()))
)


@given(clocks)
def test_clocks_come_back_from_terms_and_texts(clock: tuple[tuple[bytes, int, int], ...]) -> None:
    """Actors, counters and timestamps of a Riak are exact, in base64 and in the list of its character codes."""
    assert decode_clock_term(encode_clock_term(clock)) == clock
    given_text = clock_text(clock)
    assert parse_clock_text(given_text) == clock
    assert parse_clock_text(list(given_text.encode())) == clock


def test_a_clock_in_any_order_is_sorted() -> None:
    """A Riak sorts by its own rule."""
    terms = [tuple_of(binary(actor), tuple_of(integer(1), integer(GREGORIAN_EPOCH_S))) for actor in (b"b", b"a")]
    assert [actor for actor, _, _ in decode_clock_term(b"\x83" + list_of(terms))] == [b"a", b"b"]


@given(st.integers(-(1 << 200), 1 << 200))
def test_integers_come_back(number: int) -> None:
    """Small, of 32 bits, and big ones of either sign."""
    assert decode_term(b"\x83" + integer(number), "a number") == number


@pytest.mark.parametrize("characters", [b"", b"a", b"x" * 65_535, b"y" * 65_536])
def test_texts_come_back(characters: bytes) -> None:
    """In the short and in the long form; an empty one is the empty list."""
    found = decode_term(b"\x83" + text(characters), "a text")
    assert found == (characters or [])
    assert type(found) is ErlangText or not characters


@pytest.mark.parametrize("data", [b"\x64\0\2ab", b"\x73\2ab", b"\x76\0\2ab", b"\x77\2ab"])
def test_atoms_are_their_names(data: bytes) -> None:
    """Of all four forms."""
    assert decode_term(b"\x83" + data, "an atom") == Atom(b"ab")


NESTED = b"\x68\1" * (TERM_DEPTH_MAX + 1) + b"\x6a"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "too early"),
        (b"\x82\x6a", "no term"),
        (b"\x83\x6a\x6a", "follow its end"),
        (b"\x83\x6d\xff\xff\xff\xffab", "too early"),
        (b"\x83\x6c\xff\xff\xff\xff\x6a", "more elements"),
        (b"\x83\x6c\0\0\0\1\x61\1\x61\2", "does not end"),
        (b"\x83\x46" + bytes(8), "kind 70"),
        (b"\x83\x50\0\0\0\1x", "kind 80"),
        (b"\x83\x74\0\0\0\0", "kind 116"),
        (b"\x83" + NESTED, "nested"),
    ],
)
def test_what_no_riak_sends_is_refused(data: bytes, why: str) -> None:
    """Lengths beyond the bytes, deep terms, floats, compressed terms and maps; the error says why."""
    with pytest.raises(CodecError, match=why):
        decode_term(data, "a term")


def deflated(data: bytes) -> str:
    deflate = zlib.compressobj(wbits=-15)
    return b64encode(deflate.compress(data) + deflate.flush()).decode()


@pytest.mark.parametrize(
    "given_clock",
    [
        None,
        7,
        "not base64!",
        "é",
        [104, 300],
        [True],
        ["a"],
        b64encode(b"no deflate").decode(),
        deflated(b"\x83\x61\1"),
        deflated(b"\x83" + list_of([tuple_of(binary(b"a"), integer(1))])),
        deflated(b"\x83" + list_of([tuple_of(binary(b""), tuple_of(integer(1), integer(1)))])),
        deflated(b"\x83" + list_of([tuple_of(binary(b"a"), tuple_of(integer(0), integer(1)))])),
        deflated(encode_clock_term(((b"a", 1, 1),)))[:-4],
        deflated(bytes(4_000_000)),
    ],
)
def test_texts_that_are_no_clock_are_refused(given_clock: object) -> None:
    """Neither a text nor codes, no deflated term, no clock in it, cut short, or a bomb."""
    with pytest.raises(CodecError, match=r"not a (vector )?clock"):
        parse_clock_text(given_clock)
