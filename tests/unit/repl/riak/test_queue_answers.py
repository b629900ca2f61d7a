"""Messages captured from an OpenRiak, decoded and encoded again."""

from __future__ import annotations

from pathlib import Path
from random import Random
from zlib import crc32

import pytest

from isthmus.repl.model.errors import CodecError, TooLarge
from isthmus.repl.model.objects import Object, Sibling, decode_object, encode_object
from isthmus.repl.riak.clocks import decode_clock_term
from isthmus.repl.riak.objects import SiblingsWithoutDots, decode_riak_object, encode_riak_object
from isthmus.repl.riak.queue_answers import QueueChange, decode_queue_answer, encode_queue_answer
from isthmus.repl.riak.tree_hash import leaf_hash, phash2_of_clock, segment_id

CAPTURES = Path(__file__).with_name("captures")
OF_FORM_AAEHASH = ("plain_aaehash", "dvv_2")
LIMIT = 1 << 20


def captured(name: str) -> bytes:
    return bytes.fromhex((CAPTURES / f"{name}.hex").read_text().replace("\n", ""))


def fetched(name: str) -> bytes:
    """An answer of form "internal"; the hashes of the other form are left out."""
    body = captured(f"http_fetch_{name}")
    return body[:2] + body[10:] if name in OF_FORM_AAEHASH else body


def change_of(body: bytes) -> QueueChange:
    found = decode_queue_answer(body, LIMIT)
    assert found is not None
    return found


def object_of(name: str) -> Object:
    encoded = change_of(fetched(name)).encoded
    assert encoded is not None
    return decode_riak_object(encoded)


def answer_with(change: bytes) -> bytes:
    return b"\1\0" + crc32(change).to_bytes(4, "big") + change


WITH_OBJECT = (
    "plain", "plain_aaehash", "full", "tombstone", "binary_key", "nodot_sibling1", "dvv_1", "dvv_2", "map",
    "empty_value",
)  # fmt: skip


@pytest.mark.parametrize("name", WITH_OBJECT)
def test_what_came_from_a_riak_goes_back_byte_by_byte(name: str) -> None:
    """Stored as an object of ours in between: tag, microseconds, empty entries and missing dots are as they came."""
    bucket_type, bucket, key, encoded, _ = change_of(fetched(name))
    stored = decode_object(encode_object(object_of(name)))
    assert encode_riak_object(stored) == encoded
    hashes = name in OF_FORM_AAEHASH
    body = encode_queue_answer(bucket_type, bucket, key, stored, hashes=hashes)
    assert body == captured(f"http_fetch_{name}")


def test_an_empty_queue_gives_no_change() -> None:
    """One byte."""
    assert decode_queue_answer(captured("http_fetch_empty"), LIMIT) is None


def test_all_that_clients_are_shown_is_understood() -> None:
    """Charset, metadata, indexes, links and encoding, in the forms of Isthmus; what the Riak keeps for itself is not
    shown."""
    (sibling,) = object_of("full").siblings
    assert sibling.content_type == b"application/json; charset=utf-8"
    assert sibling.content_encoding == b"gzip"
    assert sibling.shown_metadata == ((b"by", b"eve"),)
    assert sibling.indexes == ((b"age_int", b"42"), (b"name_bin", b"eve"))
    assert sibling.links == ((b"cap", b"plain", b"next"),)
    assert (sibling.value, sibling.last_modified_ms) == (b"zz", 1_795_821_631_535)
    assert [name for name, _ in sibling.metadata if name not in (b"by",)] == [b"\0riak"]


def test_siblings_have_the_dots_of_their_writes() -> None:
    """In a bucket with `dvv_enabled`; the actor is the vnode's."""
    stored = object_of("dvv_2")
    ((actor, _, _),) = stored.clock
    assert [(one.dot, one.value) for one in stored.siblings] == [((actor, 1), b"one"), ((actor, 2), b"two")]


def test_a_lone_sibling_without_a_dot_gets_that_of_the_newest_write() -> None:
    """In a bucket without `dvv_enabled`, and for data types."""
    for name in ("plain_aaehash", "map"):
        stored = object_of(name)
        ((actor, counter, _),) = stored.clock
        assert stored.siblings[0].dot == (actor, counter)


def test_several_siblings_without_dots_are_refused_with_the_remedy() -> None:
    """Nothing says which write made which value, so a guess could lose one."""
    encoded = change_of(fetched("nodot_sibling2")).encoded
    assert encoded is not None
    with pytest.raises(SiblingsWithoutDots, match="dvv_enabled = true"):
        decode_riak_object(encoded)


def test_a_tombstone_is_one() -> None:
    """Its clock is that of the object."""
    stored = object_of("tombstone")
    assert stored.deleted
    assert [counter for _, counter, _ in stored.clock] == [3]


def test_a_compressed_object_is_the_one_that_is_not() -> None:
    """Up to the limit; of a longer one no more than the limit is inflated."""
    change = captured("internal_compressed")
    encoded = change_of(answer_with(change)).encoded
    assert encoded == change_of(fetched("full")).encoded
    assert encoded is not None
    with pytest.raises(TooLarge, match="more than"):
        decode_queue_answer(answer_with(change), len(encoded) - 1)


def test_a_reap_has_the_clock_of_its_tombstone_and_no_object() -> None:
    """The time of the reap is passed over."""
    found = change_of(answer_with(captured("internal_reap")))
    assert (found.bucket, found.key, found.encoded) == (b"cap", b"plain", None)
    assert [counter for _, counter, _ in found.clock] == [1]


@pytest.mark.parametrize("name", OF_FORM_AAEHASH)
def test_segment_and_hash_are_those_that_the_riak_sent(name: str) -> None:
    """In the answers of form "internal_aaehash"."""
    sent = captured(f"http_fetch_{name}")[2:10]
    bucket_type, bucket, key, _, _ = change_of(fetched(name))
    clock = object_of(name).clock
    assert segment_id(bucket_type, bucket, key) == int.from_bytes(sent[:4], "big")
    assert leaf_hash(bucket_type, bucket, key, clock) == int.from_bytes(sent[4:], "big")


def test_phash2_of_clocks_is_erlangs() -> None:
    """300 clocks: actors of up to 29 bytes, counters of up to 64 bits, 0 to 4 entries."""
    lines = (CAPTURES / "phash2_clocks.txt").read_text().splitlines()
    vectors = [line.split() for line in lines if not line.startswith("#")]
    assert len(vectors) == 300
    for term, expected in vectors:
        assert phash2_of_clock(decode_clock_term(bytes.fromhex(term))) == int(expected)


def test_a_rewritten_sibling_is_no_longer_told_as_the_riak_had_it() -> None:
    """Its dot is another one than the carried metadata have: a Riak would take it for a sibling that it has seen."""
    stored = object_of("dvv_1")
    dot = (b"c" * 20, 9)
    moved = stored.siblings[0]._replace(dot=dot)
    again = decode_riak_object(encode_riak_object(Object((*stored.clock, (*dot, 1)), (moved,))))
    assert [one.dot for one in again.siblings] == [dot]


@pytest.mark.parametrize("name", WITH_OBJECT)
def test_no_cut_or_changed_answer_is_taken(name: str) -> None:
    """A byte less, a byte changed under a checksum of its own: CodecError, or an object that can be stored."""
    body = fetched(name)
    for length in range(2, len(body)):
        with pytest.raises(CodecError):
            decode_queue_answer(body[:length], LIMIT)
    change = body[6:] if body[1] == 0 else b""
    for at in range(len(change)):
        taken_or_refused(change[:at] + bytes([change[at] ^ 0x55]) + change[at + 1 :])


def taken_or_refused(change: bytes) -> None:
    """A change of any bytes is refused, or can be stored, sent on and read again."""
    try:
        found = change_of(answer_with(change))
        if found.encoded is not None:
            stored = decode_riak_object(found.encoded)
            assert isinstance(stored.siblings[0], Sibling)
            assert decode_object(encode_object(stored)) == stored
            again = decode_riak_object(encode_riak_object(stored)).clock
            assert [entry[:2] for entry in again] == [entry[:2] for entry in stored.clock]
    except CodecError:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_OBJECT)
def test_no_mutant_of_an_answer_is_more_than_refused(name: str) -> None:
    """10,000 mutants of each message: bytes changed, cut out, doubled, lengths made large, parts of other messages put
    in. Nothing but CodecError, within bounded memory: a length is checked before anything is made of it."""
    random, others = Random(name), [change for each in WITH_OBJECT if (change := fetched(each)[6:])]
    change = fetched(name)[6:]
    for _ in range(10_000):
        mutant = bytearray(change)
        for _ in range(random.randrange(1, 4)):
            at, size = random.randrange(len(mutant)), random.randrange(1, 9)
            match random.randrange(5):
                case 0:
                    mutant[at] = random.randrange(256)
                case 1:
                    del mutant[at : at + size]
                case 2:
                    mutant[at:at] = mutant[at : at + size]
                case 3:
                    mutant[at : at + 4] = random.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0"))
                case _:
                    other = random.choice(others)
                    start = random.randrange(len(other))
                    mutant[at:at] = other[start : start + random.randrange(1, 40)]
            if not mutant:
                break
        taken_or_refused(bytes(mutant))
