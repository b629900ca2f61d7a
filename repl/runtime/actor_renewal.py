"""Begins a new actor for a partition whose log lacks writes of this cluster that another cluster holds (R-ACTOR).

A partition that was put back to an earlier state without a command, as by the snapshots of its machines, would give
dots again, and replace what it does not know. Other clusters tell the highest counters that they hold of this cluster's
actors (`HeldCounters` there). A counter that the leader's log does not explain shows the loss: the leader takes no more
writes under that actor, and writes its record with another incarnation, so that an ordinary election follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Final, NamedTuple

import structlog

from isthmus.repl.isr.epochs import EpochTable, epoch_at
from isthmus.repl.log_limit import LogLimit
from isthmus.repl.metastore.counters import ID_MARGIN, PARTITIONS_COUNTER, StoredCounter, new_incarnation
from isthmus.repl.metastore.port import Ambiguous, Metastore, Unavailable, VersionConflict
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.ports import AppliedEntries, TimeSource
from isthmus.repl.model.record import PartitionRecord, PartitionStatus
from isthmus.repl.model.vclock import OFFSET_BITS, offset_of, parts_of
from isthmus.repl.runtime.held_counters import HeldCounters
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.telemetry import Sample
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

PAUSE_MS: Final = 60_000
"""Least time between two renewals of one partition on one node: whoever names counters that were never given can cause
an election a minute, not more. Within the pause such counters are refused as forged (R-FORGED)."""

ATTEMPT_S: Final = 1.0
"""Pause between two attempts to write the record."""

PARTITION_ID_LIMIT: Final = (1 << 32) - 2 * ID_MARGIN
"""Ids from here on are not believed to be of lost partitions: raised above them, the counter would have no id left for
the next bucket types. Whoever may write in another cluster can forge a clock that names one."""

KEPT_MAX: Final = 64
"""Renewals that are kept for findings."""


def explained(counter: int, epoch: int, table: EpochTable, log_start: int, leo: int) -> bool:
    """True if the log of a leader in `epoch` has the entry of `counter`, or begins above it.

    A counter of a higher epoch is not explained: whether a successor made it is for the caller to find out."""
    made_in, offset = counter >> OFFSET_BITS, offset_of(counter)
    if made_in > epoch or offset >= leo:
        return False
    return offset < log_start or epoch_at(table, offset) == made_in


def renewed(record: PartitionRecord, incarnation: int, reason: str) -> PartitionRecord:
    """The record with another incarnation, in an election that its leader should win. The lineage stays: it counts
    what operators went on without, and this election loses nothing."""
    return replace(
        record,
        status=PartitionStatus.ELECTION,
        leader=None,
        candidate=None,
        tried=frozenset(),
        preferred=None if record.leader is None else record.leader.node,
        incarnation=incarnation,
        reason=reason,
    )


class Renewal(NamedTuple):
    """A partition that took another actor at `at_ms` (wall clock): `cluster` holds a write of `epoch` at `offset` that
    its log lacks."""

    partition: int
    cluster: str
    epoch: int
    offset: int
    at_ms: int


class ActorRenewal:
    """What other clusters hold of this cluster's actors, and the renewals that follow. Belongs to the loop."""

    def __init__(self, runtime: Runtime, metastore: Metastore, time: TimeSource) -> None:
        self._runtime = runtime
        self._metastore = metastore
        self._time = time
        self._held: dict[int, tuple[bytes, int, str]] = {}
        """Partition -> its actor when it was learned, the highest counter of it, and the cluster that holds it. What is
        of another actor, or of a partition without a copy here, is sent again within a minute of the exchange."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._renewed_ms: dict[int, int] = {}
        self._counter_task: asyncio.Task[None] | None = None
        self._log_limit = LogLimit()
        self.renewals: list[Renewal] = []
        """The newest renewals by this node."""
        self.count = 0

    async def stop(self) -> None:
        """End renewals under way; another leader, or the next start, begins them again."""
        tasks = [*self._tasks.values(), *([self._counter_task] if self._counter_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def learn(self, counters: Mapping[bytes, int], cluster: str) -> None:
        """Another cluster holds these counters. Those of other clusters' actors are ignored."""
        unknown = -1
        for actor, counter in counters.items():
            parts = parts_of(actor)
            if parts is None or parts.cluster_uuid != self._runtime.cluster_uuid:
                continue
            place = self._runtime.partitions.get(parts.partition)
            if place is None and parts.partition < PARTITION_ID_LIMIT:
                unknown = max(unknown, parts.partition)
            if place is not None and place.actor == actor:
                before = self._held.get(parts.partition)
                if before is None or before[0] != actor or counter > before[1]:
                    self._held[parts.partition] = actor, counter, cluster
                self._look(place)
        if unknown >= 0 and (self._counter_task is None or self._counter_task.done()):
            self._counter_task = asyncio.get_running_loop().create_task(self._raise_counter(unknown, cluster))

    def pushed(self, place: Partition, counter: int) -> bool:
        """A push holds `counter` of the partition's current actor, which the log does not explain. True if a renewal
        follows, so that the push may come again; False if one was made just now, so that it is forged."""
        if place.id in self._tasks:
            return True
        self.learn({place.actor: counter}, "a cluster that pushes")
        return place.id in self._tasks

    # -- see ApplyListener ------------------------------------------------------------------------------

    def applied(self, applied: Sequence[AppliedEntries]) -> None:
        """Entries change nothing that was learned before."""

    def leadership(self, partition: int, leading: bool, _applied_offset: int) -> None:
        """A partition that this node leads now is compared with what was learned before."""
        place = self._runtime.partitions.get(partition)
        if leading and place is not None:
            self._look(place)

    # -- renewal ----------------------------------------------------------------------------------------

    def _unexplained(self, place: Partition) -> tuple[int, str] | None:
        """The counter held elsewhere that the leader's log lacks, and who holds it."""
        held = self._held.get(place.id)
        replica = place.replica
        if held is None or held[0] != place.actor or not replica.ready:
            return None
        log_start, leo = place.log_start, replica.leo
        return None if explained(held[1], replica.epoch, replica.epoch_table, log_start, leo) else held[1:]

    def _look(self, place: Partition) -> None:
        found = self._unexplained(place)
        if found is None or place.id in self._tasks:
            return
        before_ms = self._renewed_ms.get(place.id)
        if before_ms is not None and self._time.now_ms() - before_ms < PAUSE_MS:
            return
        task = asyncio.get_running_loop().create_task(self._renew(place, *found))
        self._tasks[place.id] = task
        task.add_done_callback(lambda done: self._ended(place.id, done))

    def _ended(self, partition: int, task: asyncio.Task[None]) -> None:
        if self._tasks.get(partition) is task:  # cancelled before it began
            del self._tasks[partition]
        if not task.cancelled() and (bug := task.exception()) is not None:
            unforeseen.exception("actor.renewal_bug", bug, partition=partition)

    async def _renew(self, place: Partition, counter: int, cluster: str) -> None:
        """Write the record with another incarnation, as long as this node leads and its log lacks `counter`. Where the
        record names another leader, it is asked again until this node knows that, too, or leads again."""
        place.overtaken_actor = actor = place.actor
        incarnation = new_incarnation()
        at, of = counter >> OFFSET_BITS, offset_of(counter)
        reason = f"{cluster} holds a write of epoch {at} at offset {of} that this log lacks: a new actor"
        try:
            while place.actor == actor:
                try:
                    await self._runtime.committed(place)
                    if place.actor != actor or self._unexplained(place) is None:
                        break
                    record = await self._metastore.synced_record(place.id)
                    leader = record.leader
                    if leader is not None and leader.node == self._runtime.node and record.epoch == place.replica.epoch:
                        await self._metastore.write_record(renewed(record, incarnation, reason), ())
                        self._note(place.id, counter, cluster)
                        return
                except VersionConflict:
                    continue  # another change of the record was first: look again
                except (IsthmusError, Unavailable, Ambiguous, LookupError) as error:
                    if (suppressed := self._log_limit.due(place.id)) is not None:
                        log.warning("actor.not_renewed", partition=place.id, error=str(error), suppressed=suppressed)
                if not place.leads:
                    break
                await asyncio.sleep(ATTEMPT_S)
            if place.replica.record is not None and place.replica.record.incarnation == incarnation:
                self._note(place.id, counter, cluster)  # the outcome of the write was unknown: it was done
        finally:
            del self._tasks[place.id]
            if place.overtaken_actor == actor == place.actor and self._unexplained(place) is None:
                place.overtaken_actor = b""

    def _note(self, partition: int, counter: int, cluster: str) -> None:
        self.count += 1
        self._renewed_ms[partition] = self._time.now_ms()
        made = Renewal(partition, cluster, counter >> OFFSET_BITS, offset_of(counter), self._time.wall_ms())
        self.renewals = [*self.renewals[1 - KEPT_MAX :], made]
        log.error(
            "actor.renewed",
            partition=partition,
            cluster=cluster,
            epoch=made.epoch,
            offset=made.offset,
            advice="this cluster went back to an earlier state: compare both ways, isthmus fullsync run all --wait",
        )

    async def _raise_counter(self, partition: int, cluster: str) -> None:
        """Partitions are known elsewhere that this node lacks: their ids are not given again (R-DOT)."""
        try:
            if (await PARTITIONS_COUNTER.read(self._metastore)).next > partition:
                return

            def above(found: StoredCounter) -> StoredCounter:
                return found if found.next > partition else found._replace(next=partition + 1 + ID_MARGIN)

            await PARTITIONS_COUNTER.change(self._metastore, above)
            log.error("partition_ids.raised", cluster=cluster, known_partition=partition)
        except (IsthmusError, Unavailable, Ambiguous, VersionConflict) as error:
            log.warning("partition_ids.not_raised", cluster=cluster, known_partition=partition, error=str(error))

    def samples(self) -> list[Sample]:
        """For Prometheus."""
        return [("isthmus_actors_renewed_total", {}, self.count)]


class ClusterWitness:
    """Both directions of what this node exchanges with other clusters about actors; listens to applied entries."""

    def __init__(self, runtime: Runtime, metastore: Metastore, time: TimeSource, pool: Executor) -> None:
        """`pool` reads the rows that were stored before."""
        self.held_counters = HeldCounters(runtime.store, runtime.cluster_uuid, pool)
        self.renewal = ActorRenewal(runtime, metastore, time)
        runtime.listeners.add(self.held_counters)
        runtime.listeners.add(self.renewal)
        self.learn = self.renewal.learn
        self.held = self.held_counters.of

    def start(self) -> None:
        """Begin to count what is stored."""
        self.held_counters.start()

    async def stop(self) -> None:
        """End all tasks."""
        await self.held_counters.stop()
        await self.renewal.stop()
