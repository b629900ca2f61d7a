"""Answers of a Riak's queue: what is read of those that cannot be right."""

from __future__ import annotations

from zlib import compress, crc32

import pytest

from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import encode_object
from isthmus.repl.riak.objects import encode_riak_object
from isthmus.repl.riak.queue_answers import encode_queue_answer
from isthmus.repl.riak.terms import sized
from isthmus.sink.riak_answers import RAW_ANSWER, clock_of_letter, is_unnamed, raw_answer, read_answer
from tests.support.riak_pair import captured, key, value

LIMIT = 1 << 20
K = key(b"k")
PLAIN = encode_queue_answer(*K, value(b"v"), hashes=False)


def test_a_right_answer_is_a_key_and_an_object() -> None:
    """And an empty queue, or a reap, is nothing."""
    found = read_answer(PLAIN, LIMIT)
    assert found is not None
    assert (found.key, found.stored, found.fault) == (K, value(b"v"), None)
    assert read_answer(b"\x00", LIMIT) is None


@pytest.mark.parametrize("at", [-1, -20, len(PLAIN) // 2])
def test_a_damaged_answer_keeps_its_key_and_clock_where_they_can_be_read(at: int) -> None:
    """So that the letter is named, a retry can ask for the key, and it goes once a newer object is here."""
    damaged = bytearray(PLAIN)
    damaged[at] ^= 0xFF
    found = read_answer(bytes(damaged), LIMIT)
    assert found is not None
    assert found.stored is None
    assert found.fault is not None
    assert found.fault.reason == "malformed"
    assert found.key == K
    assert "asks the Riak for the key again" in str(found.fault)
    assert raw_answer(RAW_ANSWER + bytes(damaged)) == bytes(damaged)


def test_the_clock_of_a_letter_is_that_of_its_object_or_answer() -> None:
    """Also of a compressed answer, and of siblings without dots."""
    assert clock_of_letter(encode_object(value(b"v", 7))) == value(b"v", 7).clock
    assert clock_of_letter(RAW_ANSWER + PLAIN) == value(b"v").clock
    change = b"\x18" + sized(b"") + sized(b"b") + sized(b"k") + compress(encode_riak_object(value(b"v")))
    packed = b"\x01\x00" + crc32(change).to_bytes(4, "big") + change
    assert clock_of_letter(RAW_ANSWER + packed) == value(b"v").clock
    dotless = captured("nodot_sibling2")
    found = read_answer(dotless, LIMIT)
    assert found is not None
    assert found.fault is not None
    assert found.fault.reason == "siblings-without-dots"
    assert "dvv_enabled = true" in str(found.fault)
    assert len(clock_of_letter(RAW_ANSWER + dotless)) >= 1
    for wrong in (b"", b"\x01", PLAIN[:12], PLAIN[:40]):
        with pytest.raises(CodecError):
            clock_of_letter(RAW_ANSWER + wrong)


@pytest.mark.parametrize("body", [b"", b"\x01", b"\x07nonsense", PLAIN[:9]])
def test_bytes_without_a_key_get_a_name_of_their_own(body: bytes) -> None:
    """Equal bytes have one, so a letter is there once."""
    found, again = read_answer(body, LIMIT), read_answer(body, LIMIT)
    assert found is not None
    assert again is not None
    assert is_unnamed(found.key)
    assert found.key == again.key
    assert not is_unnamed(Key(b"default", b"b", found.key.key))
