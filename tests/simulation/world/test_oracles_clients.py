"""Claims about the oracles of clients: they accept every history of sound clusters, and refuse each defect.

Histories are made by the product's rules for objects (`isthmus.repl.model.objects`) in two model clusters of one key
each, with clients whose answers are late or lost, and pushes in any order. A defect changes one rule.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from random import Random
from typing import Final

import pytest

from isthmus.repl.model.objects import TOMBSTONE, Content, Object, pushed, written
from isthmus.repl.model.properties import DEFAULTS, Properties
from isthmus.repl.model.vclock import EMPTY, Clock, actor_of, descends, pack_counter
from tests.simulation.world.history import (
    DeclaredLoss,
    History,
    Key,
    Kind,
    Listing,
    Operation,
    Outcome,
    Rules,
    Scope,
    Surprise,
    VectorClock,
)
from tests.simulation.world.oracles_clients import (
    KeyHistory,
    State,
    declared,
    listing_failures,
    lost,
    read_failures,
    surprises,
)

KEY: Final = Key("default", "b", "k")
UUIDS: Final = {"east": b"e" * 16, "west": b"w" * 16}
RECEIVERS: Final = {"east": ("west",), "west": ("east",)}
SEEDS: Final = 60
OPERATIONS: Final = 24


def plain(clock: Clock) -> VectorClock:
    """A clock as histories have it."""
    return {actor: counter for actor, counter, _ in clock}


class ModelCluster:
    """One cluster's object."""

    def __init__(self, name: str, properties: Properties) -> None:
        self.name = name
        self.properties = properties
        self.object: Object | None = None
        self.before: Object | None = None
        """The object before the newest change."""
        self.offset = 0

    def dot(self) -> tuple[bytes, int]:
        """The next write's dot."""
        self.offset += 1
        return actor_of(UUIDS[self.name], 0), pack_counter(1, self.offset)

    def change(self, made: Object) -> None:
        """Take a new object."""
        self.before, self.object = self.object, made

    @property
    def clock(self) -> Clock | None:
        """The object's clock."""
        return None if self.object is None else self.object.clock

    @property
    def values(self) -> tuple[str, ...]:
        """What a read shows."""
        return () if self.object is None else tuple(each.value.decode() for each in self.object.live)


class Model:
    """Two clusters of one key, and their clients. Subclasses have one defect each."""

    def __init__(self, seed: int, properties: Properties = DEFAULTS) -> None:
        self.chance = Random(seed)
        self.clusters = [ModelCluster(name, properties) for name in ("east", "west")]
        self.rules = Rules(always_single=True, overwrites=True)
        self.rules.note(properties)
        self.operations: list[Operation] = []
        self.contexts: dict[str, Clock] = {}
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.now_ns = 0

    def at(self, delay_ns: int, act: Callable[[], None]) -> None:
        """`act` is done later."""
        heapq.heappush(self._events, (self.now_ns + delay_ns, next(self._numbers), act))

    def run(self) -> Model:
        """Live through all operations, then let both clusters have everything of each other."""
        for _ in range(OPERATIONS):
            self.at(self.chance.randrange(1, 1_000), self._operation)
            self.at(self.chance.randrange(1, 1_000), self._push)
        while self._events:
            self.now_ns, _, act = heapq.heappop(self._events)
            act()
        east, west = self.clusters
        for source, sink in ((east, west), (west, east), (east, west)):
            if source.object is not None:
                self.receive(sink, source.object)
        self.now_ns += 1
        for cluster in self.clusters:
            self._read(cluster, self.now_ns, self.now_ns + 1)
        return self

    def _operation(self) -> None:
        chance = self.chance
        cluster = chance.choice(self.clusters)
        session = f"{cluster.name}-{chance.randrange(2)}"
        called_ns = self.now_ns
        kind = chance.choice((Kind.READ, Kind.READ, Kind.PUT, Kind.PUT, Kind.PUT, Kind.DELETE))
        answer_ns = chance.randrange(2, 40)
        if kind is Kind.READ:
            at_ns = chance.randrange(1, answer_ns)
            self.at(at_ns, lambda: self._read(cluster, called_ns, called_ns + answer_ns, session))
            return
        context = self.contexts.get(session, EMPTY) if chance.random() < 0.7 else EMPTY
        if chance.random() < 0.1:
            context = next(iter(self.contexts.values()), EMPTY)
        operation = Operation(kind, session, cluster.name, KEY, called_ns)
        operation.value = f"v{len(self.operations)}" if kind is Kind.PUT else ""
        operation.context = plain(context) if context else None
        operation.replaces_all = kind is Kind.DELETE and not context
        operation.if_absent = kind is Kind.PUT and not context and chance.random() < 0.5
        self.operations.append(operation)
        fate = chance.random()
        if fate < 0.08:  # refused
            operation.outcome, operation.answered_ns = Outcome.REFUSED, called_ns + answer_ns
            self.refused(cluster, operation)
        elif fate < 0.12:  # its request is lost
            operation.answered_ns = called_ns + answer_ns
        else:
            lost_answer = fate < 0.25
            repeated = fate > 0.9
            at_ns = chance.randrange(1, 200 if lost_answer else answer_ns)
            self.at(at_ns, lambda: self._write(cluster, operation, context, answer_ns, lost_answer, repeated))

    def _write(
        self,
        cluster: ModelCluster,
        operation: Operation,
        context: Clock,
        answer_ns: int,
        lost_answer: bool,
        repeated: bool,
    ) -> None:
        operation.answered_ns = max(self.now_ns + 1, operation.called_ns + answer_ns)
        if operation.if_absent and cluster.values and self.judges_conditions():
            operation.outcome = Outcome.UNKNOWN if lost_answer else Outcome.REFUSED
            return
        if operation.kind is Kind.DELETE and not cluster.values:
            operation.kind, operation.outcome = Kind.READ, Outcome.OK
            operation.clock = None if cluster.clock is None else plain(cluster.clock)
            return
        seen = context
        if operation.replaces_all:
            seen = cluster.clock or EMPTY
        self.write(cluster, operation, seen)
        if lost_answer:
            operation.answered_ns = operation.called_ns + 1
            return
        operation.outcome = Outcome.OK
        operation.repeated = repeated
        assert cluster.clock is not None
        operation.clock = plain(cluster.clock)
        self.contexts[operation.session] = cluster.clock

    def write(self, cluster: ModelCluster, operation: Operation, seen: Clock) -> None:
        """Apply a write."""
        content = Content(operation.value.encode()) if operation.value else TOMBSTONE
        cluster.change(
            written(cluster.object, seen, content, cluster.dot(), self.chance.randrange(1_000), cluster.properties)
        )

    def refused(self, cluster: ModelCluster, operation: Operation) -> None:
        """A write was refused."""

    def judges_conditions(self) -> bool:
        """Whether If-None-Match counts."""
        return True

    def shown(self, cluster: ModelCluster) -> tuple[VectorClock | None, tuple[str, ...]]:
        """What a read shows."""
        return None if cluster.clock is None else plain(cluster.clock), cluster.values

    def _read(self, cluster: ModelCluster, called_ns: int, answered_ns: int, session: str = "") -> None:
        clock, values = self.shown(cluster)
        self.operations.append(
            Operation(
                Kind.READ,
                session or f"final-{cluster.name}",
                cluster.name,
                KEY,
                called_ns,
                answered_ns,
                Outcome.OK,
                clock=clock,
                values=values,
            )
        )
        if session and cluster.clock is not None:
            self.contexts[session] = cluster.clock

    def _push(self) -> None:
        source, sink = self.chance.sample(self.clusters, 2)
        if source.object is not None:
            carried = source.object
            self.at(self.chance.randrange(1, 300), lambda: self.receive(sink, carried))

    def receive(self, sink: ModelCluster, theirs: Object) -> None:
        """A push arrives."""
        ours = sink.object
        if ours is None or (descends(theirs.clock, ours.clock) and theirs.clock != ours.clock):
            sink.change(theirs)
        elif not descends(ours.clock, theirs.clock):
            sink.change(pushed(ours, theirs, sink.dot(), self.chance.randrange(1_000), sink.properties))

    def failures(self) -> list[str]:
        """What the oracles find."""
        keys = KeyHistory(KEY, self.operations, self.rules, UUIDS)
        finals = {
            op.cluster: State(op.clock, op.values, op.answered_ns)
            for op in self.operations
            if op.session.startswith("final")
        }
        return [*read_failures(keys), *lost(keys, finals, RECEIVERS, lambda _write, _cluster: "")]


@pytest.mark.parametrize(
    "properties",
    [DEFAULTS, DEFAULTS._replace(allow_mult=False), DEFAULTS._replace(last_write_wins=True)],
    ids=("siblings", "newest", "last"),
)
def test_histories_of_sound_clusters_are_accepted(properties: Properties) -> None:
    """Whatever clients do, in whichever order pushes arrive and answers are lost, sound clusters have no failure."""
    for seed in range(SEEDS):
        found = Model(seed, properties).run().failures()
        assert not found, f"seed {seed}: {found[0]}"


class LosesAcknowledged(Model):
    """A write is acknowledged and not applied."""

    def write(self, cluster: ModelCluster, operation: Operation, seen: Clock) -> None:
        before, older = cluster.object, cluster.before
        super().write(cluster, operation, seen)
        if before is not None and self.chance.random() < 0.2:
            self.at(60, lambda: self._undo(cluster, before))
            cluster.before = older

    def _undo(self, cluster: ModelCluster, before: Object) -> None:
        cluster.object = before


class DropsSiblings(Model):
    """A merge keeps the newest sibling alone, although the bucket keeps all."""

    def receive(self, sink: ModelCluster, theirs: Object) -> None:
        super().receive(sink, theirs)
        if sink.object is not None and len(sink.object.siblings) > 1:
            sink.change(Object(sink.object.clock, sink.object.siblings[-1:]))


class WritesReplaceAll(Model):
    """A write replaces what its author had not seen."""

    def write(self, cluster: ModelCluster, operation: Operation, seen: Clock) -> None:
        super().write(cluster, operation, cluster.clock or seen)


class ReadsOld(Model):
    """A read shows the state before the newest."""

    def shown(self, cluster: ModelCluster) -> tuple[VectorClock | None, tuple[str, ...]]:
        if cluster.before is None or self.chance.random() < 0.7:
            return super().shown(cluster)
        return plain(cluster.before.clock), tuple(each.value.decode() for each in cluster.before.live)


class BringsBack(Model):
    """A push that is known brings its siblings back."""

    def receive(self, sink: ModelCluster, theirs: Object) -> None:
        ours = sink.object
        if ours is not None and descends(ours.clock, theirs.clock) and ours != theirs:
            more = [each for each in theirs.siblings if each.dot not in {one.dot for one in ours.siblings}]
            sink.change(Object(ours.clock, tuple(sorted((*ours.siblings, *more)))))
        else:
            super().receive(sink, theirs)


class AppliesRefused(Model):
    """A refused write takes effect."""

    def refused(self, cluster: ModelCluster, operation: Operation) -> None:
        self.write(cluster, operation, EMPTY)


class IgnoresConditions(Model):
    """If-None-Match is ignored."""

    def judges_conditions(self) -> bool:
        return False


class LosesPushes(Model):
    """Every push of the west is lost."""

    def receive(self, sink: ModelCluster, theirs: Object) -> None:
        if sink.name == "west":
            super().receive(sink, theirs)


class AppliesTwice(Model):
    """A write takes effect twice."""

    def write(self, cluster: ModelCluster, operation: Operation, seen: Clock) -> None:
        super().write(cluster, operation, seen)
        if self.chance.random() < 0.3:
            super().write(cluster, operation, EMPTY)


class ForgetsClocks(Model):
    """A write does not keep what the object had seen."""

    def write(self, cluster: ModelCluster, operation: Operation, seen: Clock) -> None:
        cluster.object = None
        super().write(cluster, operation, EMPTY)


class DeletesNothing(Model):
    """A delete is acknowledged, and leaves the values there."""

    def write(self, cluster: ModelCluster, operation: Operation, seen: Clock) -> None:
        before = cluster.object
        super().write(cluster, operation, seen)
        if operation.kind is Kind.DELETE and before is not None:
            assert cluster.object is not None
            cluster.object = Object(cluster.object.clock, before.siblings)


@pytest.mark.parametrize(
    "defect",
    [
        LosesAcknowledged,
        DropsSiblings,
        WritesReplaceAll,
        ReadsOld,
        BringsBack,
        AppliesRefused,
        IgnoresConditions,
        LosesPushes,
        AppliesTwice,
        ForgetsClocks,
        DeletesNothing,
    ],
)
def test_each_defect_is_found(defect: type[Model]) -> None:
    """A defect of the rules is found in one of ten histories at least."""
    found = sum(bool(defect(seed).run().failures()) for seed in range(SEEDS))
    assert found >= SEEDS / 10, f"{found} of {SEEDS}"


def an_operation(kind: Kind, called_ns: int, answered_ns: int, **more: object) -> Operation:
    """An operation in the east."""
    made = Operation(kind, "c", "east", KEY, called_ns, answered_ns, Outcome.OK)
    for name, value in more.items():
        setattr(made, name, value)
    return made


EAST: Final = actor_of(UUIDS["east"], 0)
WEST: Final = actor_of(UUIDS["west"], 0)


def test_a_write_that_is_gone_may_be_named() -> None:
    """A write that its own cluster has and a receiver lacks is lost, unless something names it; other clusters need
    not have it."""
    write = an_operation(Kind.PUT, 1, 2, value="v", clock={EAST: 1})
    keys = KeyHistory(KEY, [write], Rules(), UUIDS)
    finals = {"east": State({EAST: 1}, ("v",), 9), "west": State(None, (), 9)}
    assert len(list(lost(keys, finals, RECEIVERS, lambda _write, _cluster: ""))) == 1
    assert not list(lost(keys, finals, RECEIVERS, lambda _write, cluster: f"a gap of {cluster}"))
    assert not list(lost(keys, finals, {"east": ()}, lambda _write, _cluster: ""))


def test_a_reaped_delete_takes_nothing_from_what_others_wrote() -> None:
    """A key that was written, deleted and reaped in one cluster need not be known where others wrote it: unless what
    was deleted is still there, or the tombstone, which full-sync would send."""
    write = an_operation(Kind.PUT, 1, 2, value="v", clock={EAST: 1})
    delete = an_operation(Kind.DELETE, 3, 4, context={EAST: 1}, clock={EAST: 2})
    other = an_operation(Kind.PUT, 5, 6, value="w", clock={WEST: 1}, cluster="west")
    keys = KeyHistory(KEY, [write, delete, other], Rules(reaps=True), UUIDS)

    def found(east: State, *values: str) -> int:
        west = State({WEST: 1}, values, 9)
        return len(list(lost(keys, {"east": east, "west": west}, {"east": ("west",), "west": ()}, lambda *_: "")))

    assert found(State(None, (), 9), "w") == 0
    assert found(State({EAST: 2}, (), 9), "w") == 2
    assert found(State(None, (), 9), "v", "w") > 0


def test_a_write_that_is_gone_everywhere_is_lost_in_its_own_cluster() -> None:
    """Where no cluster has a write, its own cluster lost it; where it was deleted there, no other need know it."""
    write = an_operation(Kind.PUT, 1, 2, value="v", clock={EAST: 1})
    finals = {name: State(None, (), 9) for name in UUIDS}
    (what,) = lost(KeyHistory(KEY, [write], Rules(), UUIDS), finals, RECEIVERS, lambda _write, _cluster: "")
    assert "in east: the key is not there, and no delete had seen it" in what
    delete = an_operation(Kind.DELETE, 3, 4, context={EAST: 1}, clock={EAST: 2})
    finals["east"] = State({EAST: 2}, (), 9)
    keys = KeyHistory(KEY, [write, delete], Rules(), UUIDS)
    assert not list(lost(keys, finals, RECEIVERS, lambda _write, _cluster: ""))


def test_a_declared_loss_concerns_what_was_called_before_its_end() -> None:
    """A queue's loss excuses the other cluster alone, a cluster's loss every cluster; neither what came later."""
    early, late = an_operation(Kind.PUT, 1, 2), an_operation(Kind.PUT, 8, 9)
    queue = DeclaredLoss(Scope.QUEUE, "east", "clear", queue="west", from_ns=3, until_ns=5)
    cluster = DeclaredLoss(Scope.CLUSTER, "west", "restore", from_ns=3, until_ns=5)
    assert declared([queue], early, "west")
    assert not declared([queue], early, "east")
    assert not declared([queue], late, "west")
    assert declared([cluster], early, "west")
    assert not declared([cluster], late, "west")
    assert not declared([queue, cluster], early, "east")


def test_a_state_that_went_back_by_a_declared_loss_is_another_history() -> None:
    """Reads need not agree over a declared loss; without one they must."""
    operations = [
        an_operation(Kind.PUT, 1, 2, value="v", clock={EAST: 1}),
        an_operation(Kind.READ, 8, 9),
    ]
    assert list(read_failures(KeyHistory(KEY, operations, Rules(), UUIDS)))
    loss = DeclaredLoss(Scope.CLUSTER, "east", "restore", from_ns=3, until_ns=5)
    assert not list(read_failures(KeyHistory(KEY, operations, Rules(), UUIDS, [loss])))


def test_a_listing_without_a_key_that_was_there_is_refused() -> None:
    """A key that is acknowledged before a listing, and never deleted, is in it."""
    write = an_operation(Kind.PUT, 1, 2, value="v", clock={EAST: 1})
    keys = {KEY: KeyHistory(KEY, [write], Rules(), UUIDS)}
    history = History()
    history.listings.append(Listing("east", "default", "b", 3, 4, frozenset(("k",))))
    assert not list(listing_failures(history, keys))
    history.listings.append(Listing("east", "default", "b", 3, 4, frozenset(("other",))))
    assert len(list(listing_failures(history, keys))) == 1


def test_surprises_are_failures_but_for_those_after_a_loss() -> None:
    """An internal error is always a failure; a forged clock only if no cluster's state went back."""
    history = History()
    history.surprises.append(Surprise(5, "east", "forged-clock", "a forged clock"))
    history.surprises.append(Surprise(5, "east", "internal", "a defect"))
    assert list(surprises(history)) == ["a forged clock", "a defect"]
    history.losses.append(DeclaredLoss(Scope.CLUSTER, "east", "restore", from_ns=3))
    assert list(surprises(history)) == ["a defect"]
