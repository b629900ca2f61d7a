"""Laws of buckets that keep one sibling, by Hypothesis: wall clocks run against causality, and no merge keeps nothing.

Clusters write, delete and push to each other as products do: a push is judged by its clock first, and what a cluster
writes or merges is sent to all others, which do not forward it. Each write's last-modified time is off by up to the
drawn skew, as after each hand-over of leadership to a node whose clock is behind.
"""

from __future__ import annotations

import random
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.model.objects import (
    TOMBSTONE,
    Content,
    Object,
    Sibling,
    decode_object,
    encode_object,
    merge,
    pushed,
    written,
)
from isthmus.repl.model.properties import DEFAULTS, Properties
from isthmus.repl.model.vclock import covers, descends
from tests.support.samples import share

ACTORS = [bytes([n]) * 20 for n in (1, 2, 3)]
ONE = DEFAULTS._replace(allow_mult=False)
LAST = DEFAULTS._replace(last_write_wins=True)

MESSAGES_MAX = 400
"""Pushes after the last write until all must be quiet; most histories need fewer than ten."""

drawn_properties = st.one_of(
    st.sampled_from([[ONE] * 3, [LAST] * 3]), st.lists(st.sampled_from([ONE, LAST, DEFAULTS]), min_size=3, max_size=3)
)


class OneKey:
    """One key in some clusters, and the pushes that are under way between each two."""

    def __init__(self, rng: random.Random, properties: list[Properties], skew_ms: int) -> None:
        self.rng = rng
        self.properties = properties
        self.skew_ms = skew_ms
        self.objects: list[Object | None] = [None] * len(properties)
        self.counters = [0] * len(properties)
        self.pushes: list[deque[Object]] = [deque() for _ in properties]
        """To each cluster."""
        self.now_ms = 1_000_000
        self.chosen = 0
        """Merges that kept nothing."""

    def dot(self, at: int) -> tuple[bytes, int]:
        self.counters[at] += 1
        return ACTORS[at], self.counters[at]

    def wall_ms(self) -> int:
        return self.now_ms + self.rng.randint(-self.skew_ms, self.skew_ms)

    def store(self, at: int, obj: Object, *, made: bool) -> None:
        """`made`: the object is this cluster's, and is sent to the others."""
        alone = made and not self.properties[at].allow_mult
        assert len(obj.siblings) == 1 if alone else obj.siblings, "one sibling, and never none"
        assert decode_object(encode_object(obj)) == obj, "the object can be stored and sent"
        before = self.objects[at]
        assert before is None or (descends(obj.clock, before.clock) and obj.clock != before.clock)
        self.objects[at] = obj
        if made:
            for to in range(len(self.objects)):
                if to != at:
                    self.pushes[to].append(obj)

    def write(self, at: int) -> None:
        """A client that has read, or has not."""
        current = self.objects[at]
        context = () if current is None or self.rng.random() < 0.3 else current.clock
        content = TOMBSTONE if context and self.rng.random() < 0.2 else Content(b"%d" % self.counters[at])
        self.store(at, written(current, context, content, self.dot(at), self.wall_ms(), self.properties[at]), made=True)

    def receive(self, at: int) -> None:
        """The oldest push that is under way, or any one, arrives."""
        waiting = self.pushes[at]
        if self.rng.random() < 0.3:
            waiting.rotate(self.rng.randrange(len(waiting)))
        theirs, current = waiting.popleft(), self.objects[at]
        if current is None:
            self.store(at, theirs, made=False)
        elif theirs.clock == current.clock:
            assert theirs == current, "equal clocks over different siblings"
        elif descends(current.clock, theirs.clock):
            pass
        elif descends(theirs.clock, current.clock):
            self.store(at, theirs, made=False)
        else:
            self.chosen += not merge(current, theirs).siblings
            dot = self.dot(at)
            made = pushed(current, theirs, dot, self.wall_ms(), self.properties[at])
            self.store(at, made, made=True)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now_ms += 10
            at = self.rng.randrange(len(self.objects))
            if self.pushes[at] and self.rng.random() < 0.5:
                self.receive(at)
            else:
                self.write(at)

    def deliver_all(self) -> int:
        """Deliver until nothing is under way: how many pushes that took."""
        delivered = 0
        while any(self.pushes):
            delivered += 1
            assert delivered <= MESSAGES_MAX, "the clusters answer each other for ever"
            self.now_ms += 10
            self.receive(self.rng.choice([at for at, waiting in enumerate(self.pushes) if waiting]))
        return delivered


@given(st.integers(0, 1 << 32), st.integers(2, 3), drawn_properties, st.sampled_from([0, 20, 100, 10_000]))
@settings(max_examples=share(4_000))
def test_clusters_that_keep_the_newest_agree_whatever_their_wall_clocks_say(
    seed: int, clusters: int, properties: list[Properties], skew_ms: int
) -> None:
    """R-KEEP: no merge leaves an object without siblings, equal clocks stand for equal objects, and once all pushes
    have arrived no cluster sends another one, and all hold the same object."""
    key = OneKey(random.Random(seed), properties[:clusters], skew_ms)
    key.run(25)
    key.deliver_all()
    assert len(set(key.objects)) == 1


def test_the_histories_above_contain_merges_that_keep_nothing() -> None:
    """With two and with three clusters, wherever time goes back; and none where it never does."""
    found = {}
    for clusters in (2, 3):
        for skew_ms in (0, 100):
            keys = [OneKey(random.Random(seed), [ONE] * clusters, skew_ms) for seed in range(150)]
            for key in keys:
                key.run(25)
                key.deliver_all()
            found[clusters, skew_ms] = sum(key.chosen for key in keys)
    assert found[2, 0] == found[3, 0] == 0
    assert min(found[2, 100], found[3, 100]) > 3


def sibling(dot: tuple[bytes, int], modified_ms: int) -> Sibling:
    return Sibling(dot, modified_ms, False, b"v", b"text/plain")


X = Object(((ACTORS[0], 10, 1_000), (ACTORS[1], 3, 1_000)), (sibling((ACTORS[1], 3), 1_000_202),))
"""The first cluster kept a value of the second, in a merge of its own."""

Y = Object(((ACTORS[0], 7, 1_000), (ACTORS[1], 5, 1_000)), (sibling((ACTORS[0], 7), 1_000_173),))
"""The second cluster kept a value of the first, in a merge of its own."""


def test_where_each_clock_covers_the_other_siblings_the_newest_is_kept_as_a_write() -> None:
    """The newest sibling of both objects stays under a dot of the cluster that merges, whichever came first, and
    whatever the bucket's properties are; its content and its time do not change."""
    assert not merge(X, Y).siblings
    for properties in (ONE, LAST, DEFAULTS):
        made = pushed(X, Y, (ACTORS[2], 1), 1_000_500, properties)
        assert made == pushed(Y, X, (ACTORS[2], 1), 1_000_500, properties)
        assert made.siblings == (sibling((ACTORS[2], 1), 1_000_202),)
        assert all(covers(made.clock, each.dot) for obj in (X, Y, made) for each in obj.siblings)
        assert descends(made.clock, X.clock)
        assert descends(made.clock, Y.clock)
