"""Successors for the partitions that a stopping node leads, spread evenly over the remaining nodes. Pure.

Leader balancing (`leader_balance_plan.py`) evens out a cluster over time. A node that stops gives up all its partitions
at once, and each of them alone would choose the same successor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from isthmus.repl.model.record import PartitionRecord


def successors(
    records: Mapping[int, PartitionRecord], node: str, reached: Collection[str] | None = None
) -> dict[int, str]:
    """Return partition -> the ISR member that should take over from `node`, for the partitions that it leads.

    Partitions without another ISR member are left out. Those with the fewest members choose first, and each goes to the
    member that leads least by then. Members that a reassignment removes are chosen only where there is no other, and
    so are those that are not `reached` (None: unknown), whom their followers may not reach either (R-REACHED).
    `records` are all of the cluster's.
    """
    loads = Counter(record.leader.node for record in records.values() if record.leader is not None)
    heirs: dict[int, list[str]] = {}
    for partition, record in records.items():
        if record.leader is not None and record.leader.node == node:
            others = sorted({member.node for member in record.isr} - {node})
            if reached is not None:
                others = [other for other in others if other in reached] or others
            staying = [other for other in others if other not in record.removing]
            if others:
                heirs[partition] = staying or others
    chosen: dict[int, str] = {}
    for partition in sorted(heirs, key=lambda each: (len(heirs[each]), each)):
        heir = min(heirs[partition], key=lambda other: (loads[other], other))
        loads[heir] += 1
        chosen[partition] = heir
    return chosen
