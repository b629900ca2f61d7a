"""Deliberate defects between parts of the product, each of which the world must find.

Each is a function that puts the defect in by patching the product's class; its first line names the wrong behaviour and
the rule that it breaks. `MUTANTS` says which oracles may find it, and within how many seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from isthmus.aae.scheduling import gap_healing
from isthmus.node.admin_api import unsafe_recovery
from isthmus.queues.source_queue import SourceQueue
from isthmus.queues.tombstone_barrier import TombstoneBarrier
from isthmus.repl.coordinator import write_batch
from isthmus.repl.coordinator.tombstone_reaper import Reaper
from isthmus.repl.coordinator.write_batch import WriteBatch
from isthmus.repl.isr.leader import Leader
from isthmus.repl.model import objects
from isthmus.repl.model.objects import Object
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.replog.tail import LogTail
from isthmus.repl.runtime import actor_renewal
from isthmus.sink import worker
from isthmus.sink.counter_exchange import CounterExchange
from isthmus.sink.worker import Slot

Patch = pytest.MonkeyPatch

# -- versions -----------------------------------------------------------------------------------------------------------


def merges_may_be_empty(patch: Patch) -> None:
    """A push of a concurrent object leaves nothing where each clock covers the other's siblings (against R-KEEP)."""

    def pushed(current: Object, theirs: Object, dot: Any, now_ms: int, properties: Any) -> Object:
        merged = objects.merge(current, theirs)
        if len(merged.siblings) <= 1 or (properties.allow_mult and not properties.last_write_wins):
            return merged
        return objects._newest_alone(Object(objects.increment(merged.clock, *dot, now_ms // 1000), merged.siblings))

    patch.setattr(write_batch, "pushed", pushed)


def pushes_replace(patch: Patch) -> None:
    """A push replaces the stored object, whatever its author had seen."""
    patch.setattr(write_batch, "pushed", lambda current, theirs, *_: theirs)


def keeps_the_oldest_of_siblings(patch: Patch) -> None:
    """Without allow_mult the oldest sibling stays in place of the newest."""
    patch.setattr(
        objects,
        "_newest_alone",
        lambda obj: obj if len(obj.siblings) == 1 else Object(obj.clock, (min(obj.siblings, key=objects._age),)),
    )


def writes_replace_what_they_have_not_seen(patch: Patch) -> None:
    """A client's write drops siblings that its context does not cover."""
    sound = objects.write

    def write(current: Object | None, context: Any, content: Any, dot: Any, now_ms: int) -> Object:
        made = sound(current, context, content, dot, now_ms)
        return Object(made.clock, made.siblings[-1:])

    patch.setattr(objects, "write", write)


def forgets_requests(patch: Patch) -> None:
    """A request that is sent again is done again (against exactly-once by request id)."""
    patch.setattr(WriteBatch, "_request_offset", lambda self, request_id, hash64: None)


def ignores_conditions(patch: Patch) -> None:
    """A conditional write is done whether its condition holds or not."""
    patch.setattr(WriteBatch, "_failed_condition", lambda self, condition, current, key: None)


def keeps_its_actor_when_a_leader_is_forced(patch: Patch) -> None:
    """A partition whose leader was forced, or that other clusters saw ahead, goes on with its old actor (against
    R-ACTOR)."""
    patch.setattr(unsafe_recovery, "new_incarnation", lambda: 0)
    patch.setattr(actor_renewal, "new_incarnation", lambda: 0)
    patch.setattr(CounterExchange, "due", lambda self, link: False)


# -- inside a cluster ---------------------------------------------------------------------------------------------------


def acknowledges_what_is_not_on_disk(patch: Patch) -> None:
    """The log reports entries as durable before they are synced (against H34)."""
    sound = LogTail.write

    def write(self: LogTail, runs: Any, count: int, *, synced: bool) -> Any:
        return sound(self, runs, count, synced=False)

    patch.setattr(LogTail, "write", write)


def commits_what_is_durable_here(patch: Patch) -> None:
    """A leader commits what it has on disk, without its followers."""
    patch.setattr(Leader, "committed_end", lambda self, record, durable: durable)


def commits_without_proposed_members(patch: Patch) -> None:
    """A leader does not wait for a member that may be in the ISR already (against maximal ISR)."""

    def maximal(self: Leader, record: PartitionRecord) -> Any:
        return record.isr

    patch.setattr(Leader, "maximal", maximal)


# -- between clusters ---------------------------------------------------------------------------------------------------


def acknowledges_failed_pushes(patch: Patch) -> None:
    """A sink acknowledges changes that its cluster did not store."""
    patch.setattr(worker, "failed_indexes", lambda results: ())


def drops_rejected_changes(patch: Patch) -> None:
    """A change that is refused for good leaves no dead letter."""

    async def keep(self: Slot, reply: Any, results: Any) -> Any:
        return results, ()

    patch.setattr(Slot, "_keep_rejected", keep)


def leaves_out_a_change_of_a_batch(patch: Patch) -> None:
    """The first change of a batch of several is acknowledged and never pushed."""
    sound = worker.pushes
    patch.setattr(worker, "pushes", lambda items, cluster: sound(items[-1:] * len(items), cluster))


def begins_at_the_end_when_it_leads(patch: Patch) -> None:
    """A queue of a new leader begins behind what was applied, not at its cursor."""
    sound = SourceQueue.lead

    def lead(self: SourceQueue, partition: int, kind: bytes, position: Any, applied: int, *more: Any) -> None:
        sound(self, partition, kind, position._replace(cursor=applied), applied, *more)

    patch.setattr(SourceQueue, "lead", lead)


def includes_what_its_filter_does_not(patch: Patch) -> None:
    """A queue offers what its filter leaves out."""
    patch.setattr(SourceQueue, "includes", lambda self, bucket_type, bucket: True)


def reaps_before_it_is_acknowledged(patch: Patch) -> None:
    """A tombstone is reaped although a queue still waits to offer it (against R-REAP)."""
    patch.setattr(TombstoneBarrier, "blocked_by", lambda self, *_: "")


def recalls_nothing(patch: Patch) -> None:
    """A delete that was reaped before the other cluster got it is never sent again (against R-REAP)."""

    async def recall(self: Reaper, keys: Any) -> set[Any]:
        return set()

    patch.setattr(Reaper, "recall", recall)


def closes_gaps_without_proof(patch: Patch) -> None:
    """Every gap is closed by any comparison (against R-PROOF)."""
    patch.setattr(gap_healing, "is_proven", lambda gap, proofs: True)


class Mutant(NamedTuple):
    """A defect, and how the world finds it."""

    put_in: Callable[[Patch], None]
    seeds: tuple[int, ...]
    """The first of these that shows it is enough."""
    quick: bool = False
    """Also in quick runs."""


MUTANTS: tuple[Mutant, ...] = ()
