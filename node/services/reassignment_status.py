"""Reassignments for operators: orders, the progress of each partition and its reason, and the effect of a plan.

Pure: from the metastore's documents and the replicas' facts (`node.services.replica_query`). The progress is computed
by `repl.controller.reassignment_progress`; `node.admin_api.reassignments` shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from isthmus.node.services.replica_query import NodeReplicaFacts
from isthmus.repl.controller.reassignment_orders import Placement
from isthmus.repl.controller.reassignment_plan import ReplicaMove
from isthmus.repl.controller.reassignment_progress import (
    OVER,
    UNDER_WAY,
    ReassignmentOrder,
    ReassignmentStage,
    Records,
    Registrations,
    paused,
    progress,
)
from isthmus.repl.controller.reassignments import ReassignmentPlan
from isthmus.repl.model.record import PartitionRecord

Gathered = Mapping[str, NodeReplicaFacts | None]


def plan_shown(plan: ReassignmentPlan, records: Records, outcome: str, order: int | None) -> dict[str, Any]:
    """A plan as JSON, before or after it is ordered."""
    return {
        "outcome": outcome,
        "order": order,
        "title": plan.request.title,
        "plan": plan.digest,
        "partitions": [_move(move, records.get(move.partition)) for move in plan.moves],
        "copies": sum(len(move.adds) for move in plan.moves),
        "nodes": [{"node": n, "replicas": count, "then": plan.after.get(n, 0)} for n, count in plan.before.items()],
        "notes": list(plan.notes),
    }


def _move(move: ReplicaMove, record: PartitionRecord | None) -> dict[str, Any]:
    return {
        "partition": move.partition,
        "bucket_type": None if record is None else record.bucket_type,
        "index": None if record is None else record.index,
        "from": list(move.before),
        "to": list(move.after),
        "adds": list(move.adds),
        "removes": list(move.removes),
    }


def moves_shown(
    placement: Placement,
    records: Records,
    registrations: Registrations,
    gathered: Gathered,
    *,
    wall_ms: int,
    at_once: int,
    overdue: Collection[int] = (),
) -> dict[str, Any]:
    """All orders, the newest first: those under way with every partition, finished ones with their outcome."""
    pause = paused(records, overdue) if placement.orders else ""
    if placement.orders and not at_once:
        pause = "placement.moves.at.once is 0"
    return {
        "at_once": at_once,
        "paused": pause,
        "orders": [_order(order, records, registrations, gathered, wall_ms) for order in placement.orders],
        "ended": [
            {
                "order": each.number,
                "kind": each.kind.value,
                "title": each.title,
                "by": each.by,
                "at_ms": each.at_ms,
                "ended_ms": each.ended_ms,
                "outcome": each.outcome,
                "done": each.moved,
                "total": each.partition_count,
            }
            for each in reversed(placement.ended)
        ],
        "drained": [
            {"node": node, "by": each.by, "at_ms": each.at_ms} for node, each in sorted(placement.drained.items())
        ],
    }


def _order(
    order: ReassignmentOrder, records: Records, registrations: Registrations, gathered: Gathered, wall_ms: int
) -> dict[str, Any]:
    rows = [_row(order, move, records, registrations, gathered) for move in order.moves]
    stages = Counter(row["stage"] for row in rows)
    over = sum(stages[stage] for stage in OVER)
    return {
        "order": order.number,
        "kind": order.kind.value,
        "title": order.title,
        "by": order.by,
        "at_ms": order.at_ms,
        "cancelled_by": order.cancelled_by,
        "done": over,
        "total": len(rows),
        "stages": dict(sorted(stages.items())),
        "estimate_ms": _estimate_ms(over, len(rows), wall_ms - order.at_ms),
        "partitions": rows,
    }


def _estimate_ms(over: int, total: int, passed_ms: int) -> int | None:
    """The time that is left at the speed so far; unknown before the first move is done, or where clocks differ."""
    if not over or passed_ms < 0:
        return None
    return passed_ms * (total - over) // over


def _row(
    order: ReassignmentOrder, move: ReplicaMove, records: Records, registrations: Registrations, gathered: Gathered
) -> dict[str, Any]:
    record = records.get(move.partition)
    stage, reason = progress(order, move, records, registrations)
    shown = _move(move, record) | {"stage": stage.value, "reason": reason, "copies": []}
    if record is None or stage not in UNDER_WAY:
        return shown
    leader = None if record.leader is None else record.leader.node
    lead = _facts_of(gathered, leader, move.partition)
    if lead is not None and lead.changing:
        shown["reason"] = lead.changing
    in_sync = {member.node for member in record.isr}
    for node in record.adding:
        reported = _facts_of(gathered, node, move.partition)
        shown["copies"].append(
            {
                "node": node,
                "in_sync": node in in_sync,
                "leo": None if reported is None else reported.leo,
                "lag": None if reported is None or lead is None else max(0, lead.leo - reported.leo),
                "reason": "" if reported is None else reported.reason,
            }
        )
    if stage is ReassignmentStage.COPYING:
        words = [f"{each['node']}: {each['reason']}" for each in shown["copies"] if each["reason"]]
        shown["reason"] = "; ".join([*words]) or shown["reason"]
    return shown


def _facts_of(gathered: Gathered, node: str | None, partition: int) -> Any:
    facts = None if node is None else gathered.get(node)
    return None if facts is None else facts.get(partition)


def summary_of(placement: Placement, records: Records, registrations: Registrations) -> dict[str, Any]:
    """The reassignments in one line, for the status of the whole cluster."""
    stages = Counter(
        progress(order, move, records, registrations).stage for order in placement.orders for move in order.moves
    )
    total, over = sum(stages.values()), sum(stages[stage] for stage in OVER)
    under_way = sum(stages[stage] for stage in UNDER_WAY)
    reason = f"{over} of {total} partitions done, {under_way} under way" if total else ""
    return {"orders": len(placement.orders), "done": over, "under_way": under_way, "total": total, "reason": reason}
