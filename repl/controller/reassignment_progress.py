"""Progress of ordered reassignments, and the records to write next. Pure.

An order is an operator's request for some partitions, stored in the metastore (`repl.controller.reassignment_orders`).
The stage of each of its moves follows from the partition's record alone, so the next controller continues where another
left off:

    waiting    the record is as before; the move begins when its turn has come and nothing is in the way
    copying    a replica in `adding` is not in sync
    in-sync    all in `adding` are; the leader ends the change
    removing   nothing is to be added any more; the leader asks the replicas that stay, and then removes
    done       the replicas are the wanted ones
    returning  the order was cancelled: the added replicas go
    cancelled  the replicas are as before
    refused    the partition is gone, or its replicas were changed by another order

A record is written to begin a move, to turn it back, and to redirect it; only leaders remove replicas
(`repl.isr.reassignment`, docs/protocol.md R-RF). `reassignment_plan.py` plans.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from isthmus.repl.controller.reassignment_plan import AssignmentDraft, PlanRefused, ReplicaMove, Sites
from isthmus.repl.isr.membership import too_few_in_sync
from isthmus.repl.model.record import PartitionRecord, PartitionStatus, Registration

Records = Mapping[int, PartitionRecord]
Registrations = Mapping[str, Registration]


class ReassignmentKind(StrEnum):
    """The kind of an order."""

    FILE = "file"
    SPREAD = "spread"
    REPLACE = "replace"
    DRAIN = "drain"
    FACTOR = "replication-factor"


class ReassignmentStage(StrEnum):
    """The stage of a move; the module's docstring lists them."""

    WAITING = "waiting"
    COPYING = "copying"
    IN_SYNC = "in-sync"
    REMOVING = "removing"
    DONE = "done"
    RETURNING = "returning"
    CANCELLED = "cancelled"
    REFUSED = "refused"


UNDER_WAY = frozenset(
    {ReassignmentStage.COPYING, ReassignmentStage.IN_SYNC, ReassignmentStage.REMOVING, ReassignmentStage.RETURNING}
)
OVER = frozenset({ReassignmentStage.DONE, ReassignmentStage.CANCELLED, ReassignmentStage.REFUSED})


@dataclass(frozen=True, slots=True)
class ReassignmentOrder:
    """An operator's order. `title` has it in words; `cancelled_by` is "" while it is not cancelled; `at_ms` is
    wall-clock time, for people."""

    number: int
    kind: ReassignmentKind
    title: str
    by: str
    at_ms: int
    moves: tuple[ReplicaMove, ...]
    cancelled_by: str = ""

    def target(self, move: ReplicaMove) -> tuple[str, ...]:
        """The replicas that the order wants for the partition now."""
        return move.before if self.cancelled_by else move.after


class ReassignmentProgress(NamedTuple):
    """The stage of one move, and why it is not further."""

    stage: ReassignmentStage
    reason: str


def progress(
    order: ReassignmentOrder, move: ReplicaMove, records: Records, registrations: Registrations
) -> ReassignmentProgress:
    """How far a move of an order is, by what the metastore says."""
    record = records.get(move.partition)
    if record is None:
        return ReassignmentProgress(ReassignmentStage.REFUSED, "there is no such partition")
    here = set(record.replicas)
    if not record.adding and not record.removing:
        if here == set(move.after):
            return ReassignmentProgress(ReassignmentStage.DONE, "")
        if here != set(move.before):
            return ReassignmentProgress(
                ReassignmentStage.REFUSED, f"its replicas are {', '.join(record.replicas)}, as this order does not know"
            )
        if order.cancelled_by:
            return ReassignmentProgress(ReassignmentStage.CANCELLED, "")
        return ReassignmentProgress(
            ReassignmentStage.WAITING, obstacle(record, move, registrations) or "waits for its turn"
        )
    if order.cancelled_by:
        return ReassignmentProgress(ReassignmentStage.RETURNING, record.reason)
    in_sync = {member.node for member in record.isr}
    late = [node for node in record.adding if node not in in_sync]
    if late:
        gone = [node for node in late if node not in registrations]
        what = f"{', '.join(gone)} is gone" if gone else f"{', '.join(late)} catches up"
        return ReassignmentProgress(ReassignmentStage.COPYING, what)
    if record.adding:
        return ReassignmentProgress(ReassignmentStage.IN_SYNC, "the leader ends it")
    return ReassignmentProgress(ReassignmentStage.REMOVING, f"the leader removes {', '.join(record.removing)}")


def obstacle(record: PartitionRecord, move: ReplicaMove, registrations: Registrations) -> str:
    """Why a waiting move may not begin now; "" if it may."""
    if record.status is not PartitionStatus.ONLINE:
        return f"the partition is {record.status.value}: {record.reason}"
    if record.elr or too_few_in_sync(record):
        return "the partition has too few replicas in sync"
    for node in move.adds:
        found = registrations.get(node)
        if found is None:
            return f"waits for {node}, which is gone"
        if not found.active:
            return f"waits for {node}, which is leaving"
    return ""


def elected(record: PartitionRecord) -> bool:
    """Whether an election of the partition is under way."""
    return record.status in (PartitionStatus.ELECTION, PartitionStatus.CANDIDATE_FOUND)


def paused(records: Records, overdue: Collection[int] = ()) -> str:
    """Why no move may begin at all; "" if some may. Moves wait for elections, which are short and could be disturbed,
    except for those of `overdue`, which do not end."""
    for partition, record in sorted(records.items()):
        if elected(record) and partition not in overdue:
            return f"partition {partition} is being elected"
    return ""


def wanted(record: PartitionRecord, target: Sequence[str], why: str) -> PartitionRecord:
    """The record that orders its leader to reach the replicas `target`, from any stage of a change. A node that was no
    replica when the change began counts as added until the change ends, even if it was to be removed again."""
    before = record.replicas_before
    replicas = record.replicas + tuple(node for node in target if node not in record.replicas)
    adding = tuple(node for node in replicas if node in target and node not in before)
    removing = tuple(node for node in replicas if node not in target)
    implied = tuple(node for node in replicas if node not in adding)
    kept = () if set(before) == set(implied) else before
    return replace(record, replicas=replicas, adding=adding, removing=removing, before=kept, reason=why)


def due(
    orders: Sequence[ReassignmentOrder],
    records: Records,
    registrations: Registrations,
    at_once: int,
    overdue: Collection[int] = (),
) -> Iterator[PartitionRecord]:
    """The records to be written now: what is to turn back or to go elsewhere at once, and as many new moves as leave no
    more than `at_once` under way. `overdue`: as in `paused`."""
    begun = 0
    waiting: list[tuple[ReassignmentOrder, ReplicaMove, PartitionRecord]] = []
    for order in orders:
        for move in order.moves:
            stage, _ = progress(order, move, records, registrations)
            record = records.get(move.partition)
            if record is None:
                continue
            if stage in UNDER_WAY:
                begun += 1
                if set(record.staying) != set(order.target(move)):
                    yield wanted(record, order.target(move), _why(order))
            elif stage is ReassignmentStage.WAITING and not obstacle(record, move, registrations):
                waiting.append((order, move, record))
    if paused(records, overdue):
        return
    for order, move, record in waiting[: max(0, at_once - begun)]:
        yield wanted(record, move.after, _why(order))


def _why(order: ReassignmentOrder) -> str:
    return f"order {order.number} cancelled by {order.cancelled_by}" if order.cancelled_by else f"order {order.number}"


def outcome(order: ReassignmentOrder, records: Records, registrations: Registrations) -> str:
    """How a finished order ended: "done", "cancelled" or "refused"; "" while it is open."""
    stages = {progress(order, move, records, registrations).stage for move in order.moves}
    if not stages <= OVER:
        return ""
    if order.cancelled_by:
        return "cancelled"
    return "refused" if ReassignmentStage.REFUSED in stages else "done"


def replanned(
    order: ReassignmentOrder, records: Records, registrations: Registrations, sites: Sites, gone: Collection[str]
) -> ReassignmentOrder:
    """An order whose places we chose, with others for those that are on the nodes `gone`; what an operator named stays.
    The same when nothing can be better."""
    if order.kind in (ReassignmentKind.FILE, ReassignmentKind.REPLACE) or order.cancelled_by:
        return order
    moves = list(order.moves)
    for number, move in enumerate(moves):
        record = records.get(move.partition)
        lost = [node for node in move.adds if node in gone]
        if record is None or not lost or progress(order, move, records, registrations).stage in OVER:
            continue
        if {member.node for member in record.isr} & set(lost):
            continue
        kind = [other for other in records.values() if other.bucket_type == record.bucket_type]
        settled = {each.partition: each.after for each in moves}
        try:
            board = AssignmentDraft(kind, sites, pending=settled)
            board.vacate_of(move.partition, lost)
        except PlanRefused:
            continue
        found = next((each.after for each in board.moves() if each.partition == move.partition), move.after)
        moves[number] = ReplicaMove(move.partition, move.before, found)
    return replace(order, moves=tuple(moves))
