"""Unclean elections: an operator's choice of a leader, when the rules elect none or the records are lost.

A forced leader is a copy outside the guard, or whose rivals are gone: whatever it lacks is lost. A re-seeded record is
one that the metastore forgot (docs/protocol.md H32): it is written again, above everything that any replica has seen.
Both are one conditional write: a new epoch, one more lineage, a new incarnation, a guard of exactly one copy, and that
copy as the candidate; the rest is an ordinary election. The caller gathers the copies; nothing here happens by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from isthmus.repl.metastore.counters import GEN_PATH, ID_MARGIN, PARTITIONS_COUNTER, StoredCounter
from isthmus.repl.metastore.port import Ambiguous, Metastore, Unavailable, VersionConflict, Versioned
from isthmus.repl.model.errors import Fenced, NotReady, OutcomeUnknown
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration
from isthmus.repl.model.vclock import MAX_EPOCH

log = structlog.get_logger(__name__)

ATTEMPTS_MAX: Final = 8
"""Attempts to raise a counter that others raise at the same time."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """A replica as its node reports it: the highest epoch that it knows, its log's last epoch and end, what it knows to
    be committed, what it has applied, its log id. `transfers`: it receives rows (R-FAR), and the rest of its log does
    not count. `failed`: it takes part in nothing."""

    node: str
    epoch: int
    log_epoch: int
    leo: int
    hw: int
    applied: int
    log_id: int
    transfers: bool = False
    failed: bool = False

    @property
    def reach(self) -> tuple[int, int]:
        """The order of copies: a log with a higher last epoch holds all that was committed before; of logs with the
        same last epoch the shorter is a prefix of the longer (H12)."""
        return (0, 0) if self.transfers else (self.log_epoch, self.leo)

    @property
    def committed(self) -> int:
        """The offset below which it knows that all is committed."""
        return max(self.hw, self.applied)


def most_complete(copies: Iterable[ReplicaReport]) -> ReplicaReport:
    """The copy that lacks least; of equals the one that knows most to be committed, then by name."""
    return max(copies, key=lambda copy: (not copy.transfers, copy.reach, copy.committed, copy.node))


def data_loss(chosen: ReplicaReport, copies: Collection[ReplicaReport], silent: Collection[str]) -> list[str]:
    """One sentence for each loss that is possible if `chosen` leads; empty if no answering replica has more."""
    losses = []
    for copy in sorted(copies, key=lambda each: each.node):
        if copy.node == chosen.node:
            continue
        if copy.committed > chosen.leo:
            losses.append(
                f"{copy.node} knows that all below {copy.committed} is committed, {chosen.node} ends at {chosen.leo}: "
                f"{copy.committed - chosen.leo} acknowledged entries, at least, would be lost"
            )
        elif copy.reach > chosen.reach:
            losses.append(
                f"{copy.node} ends at {copy.leo} in epoch {copy.log_epoch}, {chosen.node} at {chosen.leo} in epoch "
                f"{chosen.log_epoch}: what lies beyond would be lost, acknowledged or not"
            )
    if silent:
        losses.append(f"{', '.join(sorted(silent))} did not answer: entries that only they hold would be lost")
    return losses


def forced(
    record: PartitionRecord,
    chosen: ReplicaReport,
    who: Incarnation,
    epochs: Iterable[int],
    incarnation: int,
    reason: str,
) -> PartitionRecord:
    """The record by which `chosen` alone is elected, in an epoch above all known ones, with `incarnation` as a new one.

    What `chosen` lacks may be held by other clusters, under the actor that wrote it. Its next writes have not seen
    that, so they name another actor (R-ACTOR). Raises Fenced if there is no epoch left."""
    epoch = max([record.epoch, *epochs]) + 1
    if epoch > MAX_EPOCH:
        raise Fenced(f"partition {record.partition} has used up its {MAX_EPOCH} epochs")
    return replace(
        record,
        epoch=epoch,
        status=PartitionStatus.CANDIDATE_FOUND,
        leader=None,
        candidate=who,
        isr=frozenset({Member(chosen.node, chosen.log_id)}),
        elr=frozenset(),
        tried=frozenset({chosen.node}),
        preferred=None,
        lineage=record.lineage + 1,
        incarnation=incarnation,
        overtaken=0,
        reason=reason,
    )


async def order(metastore: Metastore, record: PartitionRecord, by: str, why: str) -> PartitionRecord:
    """Write a `forced` record, if nothing has changed since its base was read, and its copy is registered as before.
    Raises Fenced if something has, NotReady if nothing was written, OutcomeUnknown."""
    assert record.candidate is not None
    (member,) = record.isr
    log.error(
        "UNCLEAN_ELECTION",
        partition=record.partition,
        leader=member.node,
        gen=member.log_id,
        epoch=record.epoch,
        lineage=record.lineage,
        by=by,
        why=why,
    )
    try:
        return await metastore.write_record(record, (member,))
    except VersionConflict as error:
        raise Fenced(f"partition {record.partition} has changed meanwhile, nothing was written: look again") from error
    except Unavailable as error:
        raise NotReady(f"the metastore cannot be reached, nothing was written: {error}") from error
    except Ambiguous as error:
        raise OutcomeUnknown(f"partition {record.partition} may have been written: {error}; look again") from error


def disqualification(registration: Registration | None, partition: int, copy: ReplicaReport) -> str:
    """Why a copy cannot be the candidate; "" if it can."""
    if registration is None:
        return f"{copy.node} is not registered"
    if not registration.active:
        return f"{copy.node} is leaving"
    registered = registration.log_id_of(partition)
    if registered != copy.log_id:
        return f"{copy.node} has not registered its copy yet: gen {copy.log_id}, not {registered}"
    if copy.transfers:
        return f"the copy of {copy.node} is in a state transfer, and not complete: it would not become a candidate"
    if copy.failed:
        return f"the copy of {copy.node} takes part in nothing until its process is started again: do that first"
    if copy.applied > copy.leo:
        return f"the log of {copy.node} ends at {copy.leo}, below what it has applied ({copy.applied})"
    return ""


# -- counters ---------------------------------------------------------------------------------------


async def raise_counters(metastore: Metastore, log_id: int, next_partition: int) -> None:
    """Raise the counters of log ids and partition ids by a margin above `log_id` and `next_partition`, the highest that
    any node knows: a metastore that went back has forgotten some, and so may the nodes (R-GEN, R-DOT). A counter that
    is above these is left, unless it is within the margin. Raises NotReady, Corruption."""
    log_id += ID_MARGIN
    next_id = StoredCounter(next_partition + ID_MARGIN)
    await _raise(metastore, GEN_PATH, lambda found: int(found.value) >= log_id, str(log_id).encode())
    await _raise(
        metastore,
        PARTITIONS_COUNTER.path,
        lambda found: PARTITIONS_COUNTER.decode(found).next >= next_id.next,
        PARTITIONS_COUNTER.encode(next_id),
    )


async def _raise(metastore: Metastore, path: str, suffices: Callable[[Versioned], bool], raised: bytes) -> None:
    try:
        for _ in range(ATTEMPTS_MAX):
            found = await metastore.get(path)
            if found is not None and suffices(found):
                return
            try:
                await metastore.put(path, raised, None if found is None else found.version)
            except (VersionConflict, Ambiguous) as error:
                log.debug("unclean.counter_retried", path=path, error=repr(error))
    except Unavailable as error:
        raise NotReady(f"the metastore cannot be reached, {path} was not raised: {error}") from error
    raise NotReady(f"{path} in the metastore could not be raised: do it again")
