"""Objects that go back and forth between an Isthmus and a Riak, by random histories of both."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.objects import (
    TOMBSTONE,
    Content,
    Object,
    Sibling,
    decode_object,
    encode_object,
    pushed,
    written,
)
from isthmus.repl.model.properties import Properties
from isthmus.repl.model.vclock import Clock, actor_of, descends
from isthmus.repl.riak.objects import SiblingsWithoutDots, decode_riak_object, encode_riak_object
from isthmus.repl.riak.queue_answers import decode_queue_answer, encode_queue_answer
from tests.support.riak_decoder import decode_answer
from tests.support.riak_model import Bucket, RiakModel, change_in, encoded
from tests.support.samples import share

ACTOR = actor_of(b"\x02" * 16, 3)
EXAMPLES = settings(max_examples=share(300), deadline=None, derandomize=True)

names = st.text("abcdef-_", min_size=1, max_size=6).map(str.encode)
texts = st.binary(max_size=9)
index_rows = st.one_of(
    st.tuples(names.map(lambda name: name + b"_int"), st.integers(-(10**39) + 1, 10**39 - 1).map(lambda n: b"%d" % n)),
    st.tuples(names.map(lambda name: name + b"_int"), st.sampled_from([b"007", b"-0", b"+1", b"x", b""])),
    st.tuples(names.map(lambda name: name + b"_bin"), texts),
)
content_types = st.sampled_from(
    [b"", b"text/plain", b"text/plain; charset=utf-8", b"text/plain;charset=utf-8", b'a/b; charset="x"; q=1', b"\xff"]
)
dots = st.tuples(st.just(ACTOR), st.integers(1, 1 << 60))
ours = st.builds(
    Sibling,
    dots,
    st.integers(0, (1 << 52) - 1),
    st.just(False),
    st.binary(max_size=40),
    content_types,
    st.sampled_from([b"", b"gzip"]),
    st.lists(st.tuples(names, texts), max_size=3).map(tuple),
    st.lists(st.tuples(texts, texts, texts), max_size=2).map(tuple),
    st.lists(index_rows, max_size=3).map(tuple),
)


@EXAMPLES
@given(st.lists(ours, min_size=1, max_size=3, unique_by=lambda one: one.dot))
def test_an_object_of_isthmus_comes_back_from_a_riak_as_it_was(siblings: list[Sibling]) -> None:
    """Byte by byte: two clusters, of which one has it from the other and one from a Riak between them, are equal."""
    stored = Object(((ACTOR, 1 << 60, 63_000_000_000),), tuple(sorted(siblings)))
    again = decode_riak_object(encode_riak_object(stored))
    assert encode_object(again) == encode_object(stored)


class Cluster:
    """An Isthmus cluster with one key in mind: the rules of its writes and pushes, and its queue for the Riak."""

    def __init__(self, properties: Properties) -> None:
        self.properties = properties
        self.objects: dict[bytes, Object] = {}
        self.queue: deque[bytes] = deque()
        self.refused: set[bytes] = set()
        self._counter = 1 << 44

    def dot(self) -> tuple[bytes, int]:
        self._counter += 1
        return ACTOR, self._counter

    def put(self, key: bytes, value: bytes | None, context: Clock, now_ms: int) -> None:
        content = TOMBSTONE if value is None else Content(value, b"text/plain")
        self.objects[key] = written(self.objects.get(key), context, content, self.dot(), now_ms, self.properties)
        self.queue.append(key)

    def push(self, answer: bytes, now_ms: int) -> None:
        change = decode_queue_answer(answer, 1 << 20)
        if change is None:
            return
        assert change.encoded is not None
        try:
            theirs = decode_riak_object(change.encoded)
        except SiblingsWithoutDots:
            self.refused.add(change.key)
            return
        assert encode_riak_object(theirs) == change.encoded or len(theirs.siblings) > 1
        current = self.objects.get(change.key)
        if current is not None and descends(current.clock, theirs.clock):
            return
        stored = theirs if current is None else pushed(current, theirs, self.dot(), now_ms, self.properties)
        self.objects[change.key] = decode_object(encode_object(stored))
        if stored.clock != theirs.clock:
            self.queue.append(change.key)

    def answer(self, key: bytes) -> bytes:
        return encode_queue_answer(b"default", b"b", key, self.objects[key], hashes=False)


KEYS = (b"k1", b"k2", b"k3")


class Run:
    """Random writes on both sides, with and without what the writer has seen; changes arrive late."""

    def __init__(self, seed: int, bucket: Bucket) -> None:
        self.random = Random(seed)
        self.riak = RiakModel(bucket)
        self.cluster = Cluster(Properties(allow_mult=bucket.allow_mult))
        self.now_us = 1_795_821_631_000_000
        self.seen: dict[bytes, set[bytes]] = {key: set() for key in KEYS}
        """Values that a later write has seen, or could have."""
        self.alive: dict[bytes, set[bytes]] = {key: set() for key in KEYS}

    def step(self, number: int) -> None:
        self.now_us += self.random.randrange(200_000) + 1
        key = self.random.choice(KEYS)
        act = self.random.random()
        if act < 0.35:
            self.write_riak(key, b"r%d" % number)
        elif act < 0.7:
            self.write_ours(key, b"i%d" % number)
        elif act < 0.85:
            self.to_ours()
        else:
            self.to_riak()

    def write_riak(self, key: bytes, value: bytes) -> None:
        current = self.riak.get(key)
        knows = current is not None and self.random.random() < 0.6
        shown = current.values if current is not None and knows else []
        delete = knows and self.random.random() < 0.3
        gone = {b"" if current is None else v for v in shown}
        self.noted(key, gone, None if delete else value)
        context = dict(current.clock) if current is not None and knows else {}
        self.riak.put(key, None if delete else value, context, self.now_us)

    def write_ours(self, key: bytes, value: bytes) -> None:
        current = self.cluster.objects.get(key)
        knows = current is not None and self.random.random() < 0.6
        shown = {one.value for one in current.live} if current is not None and knows else set()
        delete = knows and self.random.random() < 0.3
        self.noted(key, shown, None if delete else value)
        context = current.clock if current is not None and knows else ()
        self.cluster.put(key, None if delete else value, context, self.now_us // 1000)

    def noted(self, key: bytes, seen: set[bytes], value: bytes | None) -> None:
        self.alive[key] -= seen
        if value is not None:
            self.alive[key].add(value)

    def to_ours(self) -> bool:
        answer = self.riak.take()
        self.cluster.push(answer, self.now_us // 1000)
        return answer != b"\0"

    def to_riak(self) -> bool:
        if not self.cluster.queue:
            return False
        found = change_in(self.cluster.answer(self.cluster.queue.popleft()))
        assert found is not None
        self.riak.push(*found)
        return True

    def settle(self) -> None:
        """Deliver everything, then compare as full-sync does: keys whose clocks differ are sent both ways."""
        for _ in range(20):
            while self.to_ours() | self.to_riak():
                pass
            differ = [key for key in KEYS if self.clock_of_riak(key) != self.clock_of_ours(key)]
            if not differ:
                return
            self.riak.queue += [key for key in differ if self.riak.get(key)]
            self.cluster.queue += [key for key in differ if key in self.cluster.objects]
        raise AssertionError(f"never in sync: {differ}")

    def clock_of_riak(self, key: bytes) -> list[tuple[bytes, int]]:
        found = self.riak.get(key)
        return [] if found is None else sorted((actor, counter) for actor, (counter, _) in found.clock.items())

    def clock_of_ours(self, key: bytes) -> list[tuple[bytes, int]]:
        found = self.cluster.objects.get(key)
        return [] if found is None else [entry[:2] for entry in found.clock]

    def values(self, key: bytes) -> tuple[list[bytes], list[bytes]]:
        theirs, mine = self.riak.get(key), self.cluster.objects.get(key)
        return [] if theirs is None else theirs.values, [] if mine is None else sorted(s.value for s in mine.live)


@pytest.mark.parametrize("seed", range(share(200)))
def test_with_dots_nothing_is_lost_and_nothing_stands_twice(seed: int) -> None:
    """Siblings kept, dots on: once all has arrived, both have equal clocks, and exactly the values that no later write
    had seen, each once."""
    run = Run(seed, Bucket())
    for number in range(60):
        run.step(number)
    run.settle()
    for key in KEYS:
        theirs, mine = run.values(key)
        assert theirs == mine
        assert len(set(mine)) == len(mine)
        assert run.alive[key] <= set(mine)
    assert not run.cluster.refused


@pytest.mark.parametrize("seed", range(share(200)))
@pytest.mark.parametrize("dvv_enabled", [True, False])
def test_where_one_sibling_is_kept_both_end_with_the_same(seed: int, dvv_enabled: bool) -> None:
    """Riak's default for untyped buckets has no dots; the value modified last stays on both sides."""
    run = Run(seed, Bucket(allow_mult=False, dvv_enabled=dvv_enabled))
    for number in range(60):
        run.step(number)
    run.settle()
    for key in KEYS:
        theirs, mine = run.values(key)
        assert theirs == mine
        assert len(mine) <= 1
    assert not run.cluster.refused


@pytest.mark.parametrize("seed", range(share(100)))
def test_siblings_without_dots_are_never_taken_by_a_guess(seed: int) -> None:
    """Siblings kept, dots off: every key that the cluster could not take is named, the others are equal."""
    run = Run(seed, Bucket(dvv_enabled=False))
    for number in range(40):
        run.step(number)
    try:
        run.settle()
    except AssertionError:
        assert run.cluster.refused
    for key in set(KEYS) - run.cluster.refused:
        theirs, mine = run.values(key)
        assert theirs == mine


def test_a_malformed_carried_part_is_refused() -> None:
    """Bytes that a cluster pushed under the hidden name, which no Riak has written."""
    sibling = Sibling((ACTOR, 1), 1, False, b"v", metadata=((b"\0riak", b"\1short"),))
    with pytest.raises(CodecError, match="too early"):
        encode_riak_object(Object(((ACTOR, 1, 1),), (sibling,)))


def test_the_model_sends_what_the_decoder_of_the_tests_reads() -> None:
    """Two readers of Riak's formats that share no code."""
    riak = RiakModel(Bucket())
    riak.put(b"k", b"v", {}, 1_795_821_631_000_001)
    found = decode_answer(riak.take(b"k"))
    assert found is not None
    assert [one.value for one in found.siblings] == [b"v"]
    assert found.siblings[0].last_modified == (1795, 821631, 1)
    assert encoded(riak.objects[b"k"])
