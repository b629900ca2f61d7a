"""Full-sync repairs deletes that another cluster never got, also once their tombstones are reaped (R-REAP)."""

from __future__ import annotations

from random import Random

import pytest

from isthmus.aae.exchange.compare import BehindSide, DifferenceKind
from isthmus.queues.cursors import CursorState
from isthmus.repl.model.objects import TOMBSTONE, Content
from isthmus.repl.model.requests import PushOutcome
from isthmus.repl.model.vclock import Clock, Dot, covers, decode_clock
from isthmus.repl.model.vclock import merge as merge_clocks
from isthmus.repl.store import reaped_keys
from tests.simulation.mesh.cluster import BUCKET, KEYS, Cluster, Link, P
from tests.simulation.mesh.fullsync import full_sync, push, recall, settle
from tests.simulation.mesh.scenarios import both_ways
from tests.simulation.mesh.simulator import MeshSimulation
from tests.support.samples import seeds

KEY = KEYS[0]


class Pair:
    """Two clusters without queues, as after `queue delist`: tombstones are reaped as soon as an operator asks."""

    def __init__(self, names: str = "ab") -> None:
        self.clusters = [Cluster(name, number, [], lambda *_: None) for number, name in enumerate(names, 1)]
        for cluster in self.clusters:
            cluster.start(lambda _: b"")
        self.a, self.b = self.clusters[:2]

    def put(self, cluster: Cluster, value: bytes, *, key: bytes = KEY, seen: bool = True) -> None:
        """A client's write; `seen`: of what the cluster holds."""
        current = cluster.get(key)
        cluster.put(key, Content(value), current.clock if seen and current is not None else ())
        settle(cluster)

    def delete_and_reap(self, cluster: Cluster, key: bytes = KEY) -> None:
        """A client deletes what the cluster holds, and an operator has the tombstone removed."""
        current = cluster.get(key)
        assert current is not None
        cluster.delete(key, current.clock)
        settle(cluster)
        assert cluster.reap(key) == ""
        settle(cluster)
        assert cluster.get(key) is None

    def values(self, key: bytes = KEY) -> list[list[bytes]]:
        """The values that a reader gets, of each cluster."""
        found = [cluster.get(key) for cluster in self.clusters]
        return [[] if one is None else sorted(s.value for s in one.siblings if not s.tombstone) for one in found]

    def shown(self, cluster: Cluster) -> set[Dot]:
        """The writes whose values a reader of the cluster gets."""
        current = cluster.get(KEY)
        return set() if current is None else {s.dot for s in current.siblings if not s.tombstone}

    def seen_by(self, cluster: Cluster, context: Clock, content: Content) -> Clock:
        """What a write with this context has seen: a delete without one, and a write over a deleted key, have seen what
        the cluster knows of the key."""
        current = cluster.get(KEY)
        if current is None:
            last = cluster.store.reaped_clocks(P).get((BUCKET, KEY))
            return context if last is None else merge_clocks(decode_clock(last), context)
        return current.clock if not context and (content.tombstone or current.deleted) else context

    def sync(self, rounds: int = 4) -> int:
        """Full-sync in both directions until neither finds anything; returns the rounds that found something."""
        for done in range(rounds):
            if not full_sync(self.a, self.b) + full_sync(self.b, self.a):
                return done
        raise AssertionError("the clusters never get equal")


def test_a_delete_that_went_with_its_queue_is_sent_again() -> None:
    """A tombstone waits for a sink that is away; the queue is delisted, the tombstone reaped, and the queue registered
    again from now on. Each side compares: the one that remembers is ahead, and sends the tombstone. Both end equal, and
    the queue replicates on."""
    link = Link("a", "b")
    simulation = MeshSimulation(1, both_ways(("a", "b")), faults=False, reaps=True)
    a, b = simulation.clusters["a"], simulation.clusters["b"]
    simulation.note(a, KEY, (), a.put(KEY, Content(b"v"), ()))
    simulation.drain()
    assert b.get(KEY) is not None
    current = a.get(KEY)
    assert current is not None
    owner = simulation.owner_of("a", "b")
    del a.queues["b"]
    simulation.note(a, KEY, current.clock, a.delete(KEY, current.clock))
    settle(a)
    assert a.reap(KEY) == ""
    settle(a)
    a._make_queue(link, owner)
    a.claim(link.queue, CursorState(a.replica.leo, 1, owner))
    settle(a)
    assert a.get(KEY) is None
    assert b.get(KEY) is not None
    (found,) = full_sync(b, a)
    assert (found.kind, found.side) == (DifferenceKind.BEHIND, BehindSide.SOURCE), "b does not call it repaired"
    (found,) = full_sync(a, b)
    assert (found.kind, found.side) == (DifferenceKind.BEHIND, BehindSide.SINK)
    assert full_sync(a, b) == full_sync(b, a) == []
    assert all(obj.deleted for cluster in (a, b) for obj in simulation.objects_of(cluster))
    simulation.drain()
    simulation.equal()
    simulation.reap_all()
    simulation.equal()


@pytest.mark.parametrize("deleted_at_both", [False, True])
def test_siblings_that_the_tombstone_had_seen_go_and_others_stay(deleted_at_both: bool) -> None:
    """The other side has several siblings, of which the removed tombstone had seen some; the rest was written there
    since, without knowing of the delete, and stays on both sides."""
    pair = Pair()
    pair.put(pair.a, b"one")
    push(pair.a, pair.b, KEY)
    pair.put(pair.b, b"two", seen=False)
    push(pair.b, pair.a, KEY)
    assert pair.values() == [[b"one", b"two"]] * 2
    pair.delete_and_reap(pair.a)
    if deleted_at_both:
        assert pair.sync() == 1
        assert pair.values() == [[], []]
    else:
        pair.put(pair.b, b"three", seen=False)
        pair.sync()
        assert pair.values() == [[b"three"]] * 2


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_key_that_was_written_again_after_its_reap_replaces_what_the_other_side_kept(first: str) -> None:
    """The new write has seen the tombstone: it is ahead of the old value, with or without a tombstone in between."""
    pair = Pair()
    pair.put(pair.a, b"old")
    push(pair.a, pair.b, KEY)
    pair.delete_and_reap(pair.a)
    pair.put(pair.a, b"new")
    if first == "b":
        full_sync(pair.b, pair.a)
    pair.sync()
    assert pair.values() == [[b"new"]] * 2
    assert not recall(pair.a, KEY), "it is here: nothing is recalled"


def test_where_both_sides_deleted_and_reaped_nothing_is_sent() -> None:
    """Both remember, each another clock: they are equal, and no tombstone is written again."""
    pair = Pair()
    pair.put(pair.a, b"v")
    push(pair.a, pair.b, KEY)
    for cluster in pair.clusters:
        pair.delete_and_reap(cluster)
    before = [cluster.replica.leo for cluster in pair.clusters]
    assert pair.sync() == 0
    assert [cluster.replica.leo for cluster in pair.clusters] == before


def test_a_third_cluster_that_reaped_the_key_too_does_not_let_the_tombstone_circulate() -> None:
    """The recalled tombstone has a new dot; a cluster that reaped the key remembers it instead of storing it."""
    pair = Pair("abc")
    c = pair.clusters[2]
    pair.put(pair.a, b"v")
    for other in (pair.b, c):
        push(pair.a, other, KEY)
    pair.put(c, b"mine")
    push(c, pair.a, KEY)
    pair.delete_and_reap(pair.a)
    pair.delete_and_reap(c)
    full_sync(pair.a, pair.b)
    assert pair.values() == [[], [], []]
    assert push(pair.a, c, KEY) is PushOutcome.SUPERSEDED
    assert c.get(KEY) is None
    assert full_sync(pair.a, c) == full_sync(c, pair.b) == full_sync(pair.b, c) == []


def test_beyond_the_memory_the_key_is_missing_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reap that is forgotten is no difference of this side's: the value is missing here, with a write of this cluster
    in its clock, and the other side's full-sync brings it back (`aae.scheduling.check.forgotten_words`)."""
    monkeypatch.setattr(reaped_keys, "REMEMBERED_MAX", 1)
    pair = Pair()
    for key in KEYS[:2]:
        pair.put(pair.a, b"v", key=key)
        push(pair.a, pair.b, key)
        pair.delete_and_reap(pair.a, key)
    assert set(pair.a.store.reaped_clocks(P)) == {(BUCKET, KEYS[1])}
    forgotten, remembered = full_sync(pair.a, pair.b)
    assert (forgotten.key, forgotten.kind, forgotten.side) == (KEYS[0], DifferenceKind.MISSING, BehindSide.SOURCE)
    assert (remembered.key, remembered.kind, remembered.side) == (KEYS[1], DifferenceKind.BEHIND, BehindSide.SINK)
    pair.sync()
    assert pair.values(KEYS[0]) == [[b"v"], [b"v"]]
    assert pair.values(KEYS[1]) == [[], []]


@pytest.mark.parametrize("one_way", [False, True])
@pytest.mark.parametrize("seed", seeds(range(400)))
def test_after_random_deletes_and_reaps_full_sync_makes_both_sides_equal(seed: int, one_way: bool) -> None:
    """Random writes, deletes with what was read before, lost and late pushes, reaps at any moment: then full-sync in
    both directions finds nothing more after some rounds, both sides show the same values, and they are exactly the
    writes that no later write or delete had seen. `one_way`: only one cluster ever pushes before that."""
    rng = Random(seed)
    pair = Pair()
    read: list[tuple[Cluster, Clock]] = [(cluster, ()) for cluster in pair.clusters]
    made: list[tuple[Dot, Clock, bool]] = []
    late: list[tuple[Cluster, Cluster, bytes]] = []
    for number in range(rng.randint(3, 25)):
        cluster = rng.choice(pair.clusters)
        match rng.randrange(6):
            case 0 | 1:
                _, context = rng.choice([one for one in read if one[0] is cluster] or read[:1])
                content = TOMBSTONE if rng.random() < 0.5 else Content(b"%d" % number)
                seen = pair.seen_by(cluster, context, content)
                dot = cluster.put(KEY, content, context)
                if dot is not None:
                    made.append((dot, seen, content.tombstone))
            case 2:
                current = cluster.get(KEY)
                read.append((cluster, () if current is None else current.clock))
            case 3:
                cluster.reap(KEY)
            case _ if cluster is pair.a or not one_way:
                payload = cluster.store.object(P, BUCKET, KEY)
                other = pair.b if cluster is pair.a else pair.a
                if payload is not None:
                    late.append((cluster, other, payload))
                if late and rng.random() < 0.7:
                    source, sink, payload = late.pop(rng.randrange(len(late)))
                    sink.push([(KEY, payload, False)], source.uuid)
            case _:
                pass
        for each in pair.clusters:
            settle(each)
    pair.sync(rounds=6)
    first, second = (pair.shown(cluster) for cluster in pair.clusters)
    assert first == second
    replaced = {dot for dot, _, _ in made for other, context, _ in made if other != dot and covers(context, dot)}
    assert first == {dot for dot, _, gone in made if not gone} - replaced
