"""Oracles about what clients were told: nothing acknowledged is lost unnamed, and committed reads are linearizable.

Both judge by vector clocks. The answers for one key in one cluster have clocks of the object's states, of which each
has seen the one before; so reads are linearizable if their clocks form a chain that agrees with the times of calls and
answers, and if each shows exactly the values that no write in its clock has seen (docs/protocol.md, R-READ; objects are
dotted version vector sets).

The event of a write (its dot) is not in its answer, but it lies in a known interval (`Event`). So the judges ask of a
clock whether it has surely, or only possibly, seen a write, and report only what no possibility explains.

A write that is not visible any more, in a state that has seen it, was replaced by a write whose author had seen it.
That one is visible itself, or was replaced in turn by one with a context that had seen both, since a context is the
clock of a whole object. So one visible value, or a delete, always explains it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from isthmus.repl.model.keys import Key as StoredKey
from tests.simulation.world.history import (
    DeclaredLoss,
    History,
    Key,
    Kind,
    Operation,
    Outcome,
    Rules,
    Scope,
    VectorClock,
    descends,
    shown,
)
from tests.simulation.world.node_state import reaped_of, running, uuid_of
from tests.simulation.world.sessions import RawSession
from tests.simulation.world.workload import note_rules

if TYPE_CHECKING:
    from tests.simulation.world.clusters import WorldCluster
    from tests.simulation.world.world import World

FAILURES_MAX = 5
"""Most failures that one oracle reports of one world."""

FINAL_READ_S = 30.0
"""Within this time a quiet cluster answers the last reads."""


class Event:
    """Where the event of one write lies in clocks: above `floor` and at most at `upto`, of an actor of its cluster."""

    __slots__ = ("_exact", "_floor", "_prefix", "_upto")

    def __init__(self, prefix: bytes, floor: VectorClock, upto: VectorClock | None, *, exact: bool) -> None:
        """`prefix`: of the actors of its cluster. `floor`: what the cluster had seen of the key before the write was
        called. `upto`: a clock that has seen the write; None: none is known. `exact`: that of the write's own answer,
        so that the event is the newest in it."""
        self._prefix = prefix
        self._floor = floor
        self._upto: dict[bytes, int] | None = None
        if upto is not None:
            self._upto = dict(self._new(upto)) or None
        self._exact = exact

    @property
    def known(self) -> bool:
        """Some clock is known that has surely seen it."""
        return self._upto is not None

    def surely_in(self, clock: VectorClock) -> bool:
        """Whether the clock has seen the write, whichever its event is."""
        return self._upto is not None and all(clock.get(actor, 0) >= counter for actor, counter in self._upto.items())

    def possibly_in(self, clock: VectorClock) -> bool:
        """Whether the clock may have seen the write."""
        if self._upto is None:
            return any(True for _ in self._new(clock))
        if self._exact:
            return any(clock.get(actor, 0) >= counter for actor, counter in self._upto.items())
        return any(actor in self._upto for actor, _ in self._new(clock))

    def _new(self, clock: VectorClock) -> Iterator[tuple[bytes, int]]:
        return (
            (actor, counter)
            for actor, counter in clock.items()
            if actor.startswith(self._prefix) and counter > self._floor.get(actor, 0)
        )


class State(NamedTuple):
    """What a read showed."""

    clock: VectorClock | None
    values: tuple[str, ...]
    answered_ns: int
    hidden: bool = False
    """There may be a clock that the client does not show."""


class KeyHistory:
    """The operations on one key, with what follows from them."""

    def __init__(
        self,
        key: Key,
        operations: Sequence[Operation],
        rules: Rules,
        uuids: Mapping[str, bytes],
        losses: Sequence[DeclaredLoss] = (),
    ) -> None:
        """`uuids`: of the clusters, by name."""
        self.key = key
        self.rules = rules
        self.operations = sorted(operations, key=lambda op: (op.called_ns, op.answered_ns))
        self.writes = [op for op in self.operations if op.writes and op.outcome is not Outcome.REFUSED]
        self.refused = {op.value: op for op in self.operations if op.value and op.outcome is Outcome.REFUSED}
        self.by_value = {op.value: op for op in self.writes if op.value}
        self._losses = [loss for loss in losses if loss.scope is Scope.CLUSTER]
        self._shown = self._first_shown()
        self.events = {id(op): self._event(op, uuids[op.cluster]) for op in self.writes}

    # Time

    def era(self, operation: Operation) -> int | None:
        """How many declared losses of its cluster's state were over before an operation; None if it was called or
        answered while one was going on."""
        era = 0
        for loss in self._losses:
            if loss.cluster != operation.cluster or operation.answered_ns < loss.from_ns:
                continue
            if operation.called_ns < loss.until_ns:
                return None
            era += 1
        return era

    def promised(self, write: Operation) -> bool:
        """Whether no later loss of its cluster's state may have taken a write."""
        return all(loss.cluster != write.cluster or write.called_ns >= loss.until_ns for loss in self._losses)

    def seen_before(self, operation: Operation) -> VectorClock:
        """What the operation's cluster had surely seen of the key when it was called."""
        era = self.era(operation)
        seen: dict[bytes, int] = {}
        for other in self.operations:
            if other.called_ns >= operation.called_ns:
                break
            if (
                other.clock is not None
                and other.cluster == operation.cluster
                and other.answered_ns < operation.called_ns
                and self.era(other) == era is not None
            ):
                for actor, counter in other.clock.items():
                    if seen.get(actor, 0) < counter:
                        seen[actor] = counter
        return seen

    # Events

    def _first_shown(self) -> dict[str, VectorClock]:
        """Value -> the least clock of a read in its writer's cluster that showed it."""
        found: dict[str, VectorClock] = {}
        for op in self.operations:
            if op.kind is Kind.READ and op.clock is not None:
                for value in op.values:
                    before = found.get(value)
                    if before is None or sum(op.clock.values()) < sum(before.values()):
                        found[value] = op.clock
        return found

    def _event(self, write: Operation, prefix: bytes) -> Event:
        floor = dict(self.seen_before(write))
        for actor, counter in (write.context or {}).items():
            if floor.get(actor, 0) < counter:
                floor[actor] = counter
        own = write.clock if write.outcome is Outcome.OK and not write.repeated else None
        if own is not None:
            return Event(prefix, floor, own, exact=True)
        bounds = [clock for clock in (write.clock, self._shown.get(write.value)) if clock is not None]
        return Event(prefix, floor, min(bounds, key=lambda clock: sum(clock.values()), default=None), exact=False)

    def event(self, write: Operation) -> Event:
        """The event of a write of this key."""
        return self.events[id(write)]

    # Replacing

    def may_replace(self, newer: Operation, older: Operation) -> bool:
        """Whether a write may have been made having seen another."""
        if newer is older:
            return False
        event = self.event(older)
        if newer.replaces_all or self.rules.overwrites:
            if newer.clock is None:
                return older.called_ns < newer.answered_ns or newer.outcome is Outcome.UNKNOWN
            return event.possibly_in(newer.clock)
        return newer.context is not None and event.possibly_in(newer.context)

    def surely_replaces(self, newer: Operation, older: Operation) -> bool:
        """Whether a write, if it took effect, has surely replaced another."""
        if newer is older or self.rules.single or self.rules.unseen:
            return False
        event = self.event(older)
        if newer.context is not None:
            return event.surely_in(newer.context)
        own = newer.outcome is Outcome.OK and not newer.repeated and newer.clock is not None
        return own and newer.replaces_all and event.surely_in(newer.clock or {})

    def explained(self, write: Operation, state: State) -> bool:
        """Whether something that the state shows may have replaced a write that it does not show."""
        if self.rules.single and (state.values or any(op.kind is Kind.DELETE for op in self.writes)):
            return True
        for value in state.values:
            newer = self.by_value.get(value)
            if newer is not None and self.may_replace(newer, write):
                return True
        return any(
            op.kind is Kind.DELETE
            and self.may_replace(op, write)
            and op.called_ns < state.answered_ns
            and (state.clock is None or self.event(op).possibly_in(state.clock))
            for op in self.writes
        )

    # Judgements of one state

    def unsound(self, state: State) -> Iterator[str]:
        """What is wrong with the values of a state, whoever reads it."""
        if len(set(state.values)) != len(state.values) and not self._losses:
            yield f"a write took effect twice: {state.values}"
        if len(state.values) > 1 and self.rules.always_single and not self._losses:
            yield f"siblings, where only the newest is kept: {state.values}"
        for value in state.values:
            write = self.by_value.get(value)
            if write is None:
                known = self.refused.get(value)
                yield (
                    "a value that nobody wrote: " + value if known is None else f"a refused write took effect: {known}"
                )
                continue
            if write.called_ns > state.answered_ns:
                yield f"{value} was read before it was written"
            if state.clock is None or not self.promised(write):
                continue
            if self.event(write).known and not self.event(write).possibly_in(state.clock):
                yield f"{value} is there under a clock that has not seen it: {shown(state.clock)}"
            for newer in self.writes:
                if (
                    self.surely_replaces(newer, write)
                    and self.promised(newer)
                    and self.event(newer).surely_in(state.clock)
                ):
                    yield f"{value} is there beside what has replaced it: {newer}"

    def missing(self, write: Operation, state: State) -> str:
        """Why a write is missing from a state that must have seen it; "" if it is not."""
        if write.kind is Kind.PUT and write.value in state.values:
            return ""
        event = self.event(write)
        if state.clock is not None:
            if not event.possibly_in(state.clock):
                return f"it is not there, and the key's clock has not seen it: {shown(state.clock)}"
            if write.kind is Kind.PUT and not self.explained(write, state):
                return f"no value in {state.values} and no delete replaced it, under {shown(state.clock)}"
            return ""
        if write.kind is Kind.DELETE:
            return ""
        if not self.explained(write, state):
            return "the key is not there, and no delete had seen it"
        if not (state.hidden or self.rules.reaps):
            return "the key is not there, not even deleted, and its tombstones are kept"
        return ""


# -- (c) committed reads ---------------------------------------------------------------------------------------------


def read_failures(keys: KeyHistory) -> Iterator[str]:
    """What contradicts linearizability in the history of one key."""
    clusters: dict[str, list[Operation]] = {}
    for op in keys.operations:
        if op.outcome is Outcome.OK and keys.era(op) is not None:
            clusters.setdefault(op.cluster, []).append(op)
    for cluster, operations in clusters.items():
        for what in _reads_of(keys, operations):
            yield f"{keys.key} in {cluster}: {what}"


def _reads_of(keys: KeyHistory, operations: Sequence[Operation]) -> Iterator[str]:
    for op in operations:
        if op.kind is Kind.READ:
            yield from (f"{what}\n  {op}" for what in _read(keys, op, operations))
        elif not op.repeated:
            yield from (f"{what}\n  {op}" for what in _acknowledged(keys, op))
    yield from _chain(keys, operations)


def _read(keys: KeyHistory, read: Operation, operations: Sequence[Operation]) -> Iterator[str]:
    state = State(read.clock, read.values, read.answered_ns, read.clock_hidden)
    yield from keys.unsound(state)
    seen = keys.seen_before(read)
    if read.clock is not None and not descends(read.clock, seen):
        yield f"it has not seen what an earlier answer had: {shown(seen)}"
    for write in keys.writes:
        if not keys.promised(write):
            continue
        event = keys.event(write)
        if read.clock is not None:
            if event.surely_in(read.clock) and (why := keys.missing(write, state)):
                yield f"{write.value or 'a delete'} is missing: {why}\n  {write}"
        elif write in operations and write.answered_ns < read.called_ns and (why := keys.missing(write, state)):
            yield f"{write.value} is missing: {why}\n  {write}"
    yield from _contents(keys, read)


def _contents(keys: KeyHistory, read: Operation) -> Iterator[str]:
    for value, content in zip(read.values, read.contents, strict=False):
        write = keys.by_value.get(value)
        if write is not None and write.content is not None and write.content != content:
            yield f"{value} was written with {write.content}, and is there with {content}"


def _acknowledged(keys: KeyHistory, write: Operation) -> Iterator[str]:
    if write.clock is None:
        return
    seen = keys.seen_before(write)
    if not descends(write.clock, seen):
        yield f"its clock has not seen what an earlier answer had: {shown(seen)}"
    elif not keys.event(write).known:
        yield f"its clock has no new event: {shown(seen)} before"
    if not write.if_absent or keys.rules.single:
        return
    for other in keys.writes:
        if (
            other is not write
            and other.kind is Kind.PUT
            and keys.promised(other)
            and keys.event(other).surely_in(write.clock)
            and not any(
                keys.may_replace(newer, other) and keys.event(newer).possibly_in(write.clock)
                for newer in keys.writes
                if newer is not write
            )
        ):
            yield f"the key was to be absent, and had a value\n  {other}"


def _chain(keys: KeyHistory, operations: Sequence[Operation]) -> Iterator[str]:
    """States of one cluster follow one another; two answers under one clock show the same."""
    eras: dict[int | None, list[Operation]] = {}
    for op in operations:
        if op.clock is not None and not op.repeated:
            eras.setdefault(keys.era(op), []).append(op)
    for found in eras.values():
        found.sort(key=lambda op: sum((op.clock or {}).values()))
        for older, newer in pairwise(found):
            assert older.clock is not None
            assert newer.clock is not None
            if not descends(newer.clock, older.clock):
                yield f"two states of which neither follows the other\n  {older}\n  {newer}"
            elif (
                older.clock == newer.clock
                and older.kind is newer.kind is Kind.READ
                and set(older.values) != set(newer.values)
            ):
                yield f"two values under one clock\n  {older}\n  {newer}"
            elif older.clock == newer.clock and older.writes and newer.writes:
                yield f"two writes with one event\n  {older}\n  {newer}"


def listing_failures(history: History, keys: Mapping[Key, KeyHistory]) -> Iterator[str]:
    """Keys that were there all the time, and are missing from a listing."""
    for listing in history.listings:
        for key, found in keys.items():
            if key[:2] != (listing.bucket_type, listing.bucket) or key.key in listing.keys:
                continue
            there = [
                op
                for op in found.writes
                if op.kind is Kind.PUT
                and op.cluster == listing.cluster
                and op.outcome is Outcome.OK
                and op.answered_ns < listing.called_ns
                and found.promised(op)
            ]
            deleted = any(op.kind is Kind.DELETE and op.called_ns < listing.answered_ns for op in found.writes)
            if there and not deleted:
                yield f"{key} in {listing.cluster}: a listing at {listing.called_ns / 1e9:.6f} s lacks it\n  {there[0]}"


# -- (a) nothing lost unnamed ----------------------------------------------------------------------------------------


def _nothing_is_left(keys: KeyHistory, cluster: str, home: State, state: State) -> bool:
    """Whether a key that is deleted in its cluster has nothing to bring to another, whatever that has seen: it is
    absent or a tombstone there, too; or it is reaped at home, and the other has no value that was written there."""
    if home.values:
        return False
    reaped = home.clock is None and not home.hidden
    return not state.values or (
        reaped and not any(op.value in state.values for op in keys.writes if op.cluster == cluster)
    )


Named = Callable[[Operation, str], str]
"""How the loss of a write in a cluster is named; "" if it is not."""


def lost(
    keys: KeyHistory, finals: Mapping[str, State], receivers: Mapping[str, Sequence[str]], named: Named
) -> Iterator[str]:
    """Acknowledged writes of one key that some cluster that must have them does not have, by nothing that names it.
    `finals`: what each cluster shows at the end. `receivers`: the clusters to which the changes of a cluster go."""
    for write in keys.writes:
        if write.outcome is not Outcome.OK:
            continue
        for cluster in (write.cluster, *receivers[write.cluster]):
            state, home = finals.get(cluster), finals.get(write.cluster)
            if state is None or (
                state is not home and home is not None and _nothing_is_left(keys, write.cluster, home, state)
            ):
                continue
            why = keys.missing(write, state)
            if why and not named(write, cluster):
                yield f"{keys.key} in {cluster}: {why}\n  {write}"
    for cluster, state in finals.items():
        yield from (f"{keys.key} in {cluster}, at the end: {what}" for what in keys.unsound(state))


def declared(losses: Sequence[DeclaredLoss], write: Operation, cluster: str) -> str:
    """The declared loss by which a write may be missing in a cluster; "" if there is none."""
    for loss in losses:
        if write.called_ns >= loss.until_ns or loss.bucket_type not in ("", write.key.bucket_type):
            continue
        concerns = (
            loss.cluster in (write.cluster, cluster)
            if loss.scope is Scope.CLUSTER
            else loss.cluster == write.cluster != cluster and loss.queue in ("", cluster)
        )
        if concerns:
            return f"{loss.what} of {loss.cluster}"
    return ""


# -- surprises -------------------------------------------------------------------------------------------------------

AFTER_LOSS = frozenset(("forged-clock", "bad-vclock", "unknown-bucket-type", "repeated"))
"""Refusals that a client may get from a cluster whose state went back."""


def surprises(history: History) -> Iterator[str]:
    """Answers that a sound cluster does not give."""
    for found in history.surprises:
        went_back = any(loss.scope is Scope.CLUSTER and loss.from_ns <= found.at_ns for loss in history.losses)
        if not (went_back and found.reason in AFTER_LOSS):
            yield found.what


# -- of a world ------------------------------------------------------------------------------------------------------


class NothingLost:
    """Each acknowledged write is visible in every cluster that must have it, or something names its loss (a)."""

    name = "nothing-lost"

    def look(self, _world: World) -> list[str]:
        return []

    def judge(self, world: World) -> list[str]:
        finals = read_finally(world)
        found = [
            what
            for key, keys in histories(world).items()
            for what in lost(keys, finals.get(key, {}), receivers_of(world, key), functools.partial(_named, world))
        ]
        return found[:FAILURES_MAX]


class CommittedReads:
    """Committed reads are linearizable for each key and cluster, and show what was stored (c)."""

    name = "committed-reads"

    def look(self, world: World) -> list[str]:
        for cluster in world.clusters.values():
            note_rules(world.history, cluster)  # a metastore that returns to an older state notifies nobody
        return []

    def judge(self, world: World) -> list[str]:
        keys = histories(world)
        found = [what for each in keys.values() for what in read_failures(each)]
        found += listing_failures(world.history, keys)
        found += surprises(world.history)
        return found[:FAILURES_MAX]


def histories(world: World) -> dict[Key, KeyHistory]:
    """The history of each key."""
    uuids = {name: uuid_of(cluster) for name, cluster in world.clusters.items()}
    history = world.history
    for cluster in world.clusters.values():
        for bucket_type, reaped in reaped_of(cluster).items():
            if reaped:  # also by an operator's order
                history.rules_of(bucket_type).reaps = True
    return {
        key: KeyHistory(
            key,
            [*operations, *(each.of(key) for each in history.erasures)],
            history.rules_of(key.bucket_type),
            uuids,
            history.losses,
        )
        for key, operations in history.keys.items()
    }


def read_finally(world: World) -> dict[Key, dict[str, State]]:
    """What every cluster shows of every key at the end, read over HTTP and recorded as any read. Raises AssertionError
    if a cluster does not answer."""
    keys = list(world.history.keys)
    found: dict[Key, dict[str, State]] = {key: {} for key in keys}
    for cluster in world.clusters.values():
        session = RawSession(
            f"final-{cluster.name}",
            cluster,
            world.clients,
            world.history,
            Random(0),
            identified=False,
            routing=False,
            timeout_s=FINAL_READ_S,
        )
        reading = world.clients.loop.create_task(session.batch_get(keys))
        world.run_until(reading.done, FINAL_READ_S + 1.0, f"{cluster.name} answers the last reads")
        reading.result()
        for key in keys:
            read = world.history.keys[key][-1]
            assert read.outcome is Outcome.OK, f"the last read: {read} ({read.reason})"
            found[key][cluster.name] = State(read.clock, read.values, read.answered_ns)
    return found


def receivers_of(world: World, key: Key) -> dict[str, list[str]]:
    """The clusters that each cluster promises a key's changes: by its queue's filter, or by what is compared and
    repaired."""
    return {
        name: [
            each.name
            for each in world.clusters.values()
            if name in each.receives_from and _promises(world.clusters[name], each.name, key)
        ]
        for name in world.clusters
    }


def _promises(source: WorldCluster, queue: str, key: Key) -> bool:
    kind, bucket, _ = (part.encode() for part in key)
    for services in running(source).values():
        if queue in services.queues.machines():
            rules = services.queues.named(queue).filter
            if rules.includes(kind, bucket):
                return True
            peers = services.fullsync.scheduler.peers.values()
            if rules.accepts_repairs(kind, bucket) and any(
                key.bucket_type in services.fullsync_status.compared(peer).get(queue, ()) for peer in peers
            ):
                return True
    return False


def _named(world: World, write: Operation, cluster: str) -> str:
    """How the loss of a write in a cluster is named."""
    found = declared(world.history.losses, write, cluster)
    if found or cluster == write.cluster:
        return found
    kind, bucket, key = (part.encode() for part in write.key)
    for services in running(world.clusters[write.cluster]).values():
        queues = services.queues
        if cluster not in queues.machines():
            continue
        for partition, window in queues.named(cluster).machine.windows.items():
            if window.state.gaps and services.runtime.partitions[partition].bucket_type == kind:
                return f"a gap of queue {cluster}"
    for services in running(world.clusters[cluster]).values():
        if services.sink._letters.of_key(StoredKey(kind, bucket, key)):
            return "a dead letter"
    return ""
