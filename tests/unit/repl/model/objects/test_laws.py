"""Laws of clocks and objects, by Hypothesis: merges form a semilattice, and no sibling is lost or false.

Histories are made as a real cluster pair makes them: each actor issues rising counters, replicas exchange
states, clients write with contexts that they read somewhere.
"""

from __future__ import annotations

import random
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.model import vclock
from isthmus.repl.model.objects import (
    TOMBSTONE,
    Content,
    Object,
    decode_object,
    encode_object,
    encode_with_summary,
    merge,
    summarize_encoded,
    write,
)
from isthmus.repl.model.vclock import Clock, Dot
from tests.support.samples import share

ACTORS = [bytes([n]) * 20 for n in (1, 2, 3)]

clocks = st.dictionaries(st.sampled_from(ACTORS), st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=3).map(
    lambda d: tuple((a, c, t) for a, (c, t) in sorted(d.items()))
)


class KeyReplicas:
    """A few replicas of one key, each with its own actor, and an oracle that records which writes have seen which."""

    def __init__(self, rng: random.Random, actors: int = 3) -> None:
        self.rng = rng
        self.states: list[Object | None] = [None] * actors
        self.counter = 0
        self.values: dict[Dot, bytes] = {}
        self.seen_by: dict[Dot, frozenset[Dot]] = {}
        self.history: list[frozenset[Dot]] = [frozenset()] * actors
        self.contexts: list[tuple[Clock, frozenset[Dot]]] = [((), frozenset())]

    def step(self) -> None:
        rng = self.rng
        at = rng.randrange(len(self.states))
        state = self.states[at]
        choice = rng.random()
        if choice < 0.3:
            self.contexts.append((state.clock if state else (), self.history[at]))
        elif choice < 0.7:
            context, seen = rng.choice(self.contexts)
            self.counter += 1
            dot = (ACTORS[at], self.counter)
            content = TOMBSTONE if rng.random() < 0.2 else Content(bytes([self.counter % 251]) * 3)
            if state is not None and not context and state.deleted:
                seen = self.history[at]
            self.seen_by[dot] = seen
            self.values[dot] = content.value
            self.states[at] = write(state, context, content, dot, 1000 + self.counter)
            self.history[at] = self.history[at] | seen | {dot}
        else:
            other = rng.randrange(len(self.states))
            theirs = self.states[other]
            if theirs is not None:
                self.states[at] = theirs if state is None else merge(state, theirs)
                self.history[at] = self.history[at] | self.history[other]

    def expected(self, at: int) -> set[Dot]:
        """The dots that must be siblings: known here, and not covered by any known write."""
        heard = self.history[at] & self.values.keys()
        replaced = {old for dot in heard for old in self.seen_by[dot]}
        return {dot for dot in heard if dot not in replaced}


@given(st.integers(0, 10_000))
@settings(max_examples=share(150))
def test_no_sibling_is_lost_and_none_is_false(seed: int) -> None:
    """I-NO-LOST, I-SIB: after any history the siblings are exactly the writes that no later write had seen."""
    replicas = KeyReplicas(random.Random(seed))
    for _ in range(25):
        replicas.step()
        for at, state in enumerate(replicas.states):
            if state is not None:
                assert {s.dot for s in state.siblings} == replicas.expected(at)
                assert all(s.value == replicas.values[s.dot] for s in state.siblings)


@given(st.integers(0, 10_000))
@settings(max_examples=share(100))
def test_any_order_and_repetition_of_pushes_gives_the_same_object(seed: int) -> None:
    """I-COMM: merging the same states in any order, with repeats, gives byte-equal objects."""
    replicas = KeyReplicas(random.Random(seed))
    states: list[Object] = []
    for _ in range(20):
        replicas.step()
        states += [s for s in replicas.states if s is not None and replicas.rng.random() < 0.2]
    states = states[:4]
    results = set()
    for order in permutations(states):
        merged = order[0] if order else None
        for state in (*order[1:], *order[:1]):
            assert merged is not None
            merged = merge(merged, state)
        if merged is not None:
            results.add(encode_object(merged))
    assert len(results) <= 1


@given(clocks, clocks, clocks)
def test_clock_merge_is_a_semilattice(a: Clock, b: Clock, c: Clock) -> None:
    """Clock merge is commutative, associative, idempotent, and descends both of its parts (H42)."""
    assert vclock.merge(a, b) == vclock.merge(b, a)
    assert vclock.merge(a, vclock.merge(b, c)) == vclock.merge(vclock.merge(a, b), c)
    assert vclock.merge(a, a) == a
    both = vclock.merge(a, b)
    assert vclock.descends(both, a)
    assert vclock.descends(both, b)


@given(clocks, clocks)
def test_descends_agrees_with_its_definition(a: Clock, b: Clock) -> None:
    """a descends b exactly when every entry of b is covered by a; exactly one relation holds for counters."""
    by_hand = all(vclock.covers(a, (actor, counter)) for actor, counter, _ in b)
    assert vclock.descends(a, b) == by_hand
    relations = [
        vclock.descends(a, b) and vclock.descends(b, a),
        vclock.descends(a, b) and not vclock.descends(b, a),
        vclock.descends(b, a) and not vclock.descends(a, b),
        not vclock.descends(a, b) and not vclock.descends(b, a),
    ]
    assert relations.count(True) == 1


@given(clocks, st.sampled_from(ACTORS), st.integers(6, 9))
def test_increment_dominates_and_covers_its_dot(clock: Clock, actor: bytes, counter: int) -> None:
    """A new dot is covered by the clock that took it, and that clock dominates the old one."""
    after = vclock.increment(clock, actor, counter, 7)
    assert vclock.covers(after, (actor, counter))
    assert vclock.descends(after, clock)
    assert not vclock.descends(clock, after)
    assert vclock.decode_clock(vclock.encode_clock(after)) == after


def test_a_write_without_context_over_a_tombstone_takes_its_clock() -> None:
    """A deleted key can be written again without a context, and the tombstone does not stay as a sibling."""
    a = ACTORS[0]
    first = write(None, (), Content(b"x"), (a, 1), 1000)
    deleted = write(first, first.clock, TOMBSTONE, (a, 2), 2000)
    assert deleted.deleted
    again = write(deleted, (), Content(b"y"), (a, 3), 3000)
    assert [s.value for s in again.siblings] == [b"y"]
    assert vclock.descends(again.clock, deleted.clock)
    assert again.clock != deleted.clock


def test_a_write_without_context_over_a_value_makes_a_sibling() -> None:
    """A blind write never hides a value that its writer had not seen."""
    first = write(None, (), Content(b"x"), (ACTORS[0], 1), 1000)
    second = write(first, (), Content(b"y"), (ACTORS[0], 2), 2000)
    assert sorted(s.value for s in second.siblings) == [b"x", b"y"]


def test_counters_pack_epoch_and_offset_in_log_order() -> None:
    """R-DOT: counters rise in log order, hold both numbers, and fit 64 bits (H41)."""
    pairs = [(1, 0), (1, vclock.MAX_OFFSET), (2, 0), (vclock.MAX_EPOCH, vclock.MAX_OFFSET)]
    packed = [vclock.pack_counter(*pair) for pair in pairs]
    assert packed == sorted(packed)
    assert [(c >> vclock.OFFSET_BITS, c & vclock.MAX_OFFSET) for c in packed] == pairs
    assert packed[-1] < 1 << 64


@given(st.integers(0, 10_000))
@settings(max_examples=share(60))
def test_summary_from_bytes_equals_summary_of_the_object(seed: int) -> None:
    """A push's summary, taken from bytes alone, is the one the leader would have made."""
    replicas = KeyReplicas(random.Random(seed))
    for _ in range(15):
        replicas.step()
    for state in replicas.states:
        if state is not None:
            encoded, summary = encode_with_summary(state)
            assert encoded == encode_object(state)
            assert summarize_encoded(encoded) == summary
            assert decode_object(encoded) == state
