"""Succession: who should lead what a node gives up when it leaves, so that those who stay share it evenly. Pure.

Of one node's partitions at one moment, where balancing (`leader_balance_plan.py`) evens out what a cluster has and may
take its time: a node that stops gives up everything at once, and each partition alone would choose the same successor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from isthmus.repl.model.record import PartitionRecord


def successors(records: Mapping[int, PartitionRecord], node: str) -> dict[int, str]:
    """Partition -> the member in sync that should take over from `node`, of those that it leads and that have another
    member. Each goes to whoever leads least by then, those with the fewest members first; members that are to be no
    replicas any more only where there is no other. `records` are all of the cluster's."""
    loads = Counter(record.leader.node for record in records.values() if record.leader is not None)
    heirs: dict[int, list[str]] = {}
    for partition, record in records.items():
        if record.leader is not None and record.leader.node == node:
            others = sorted({member.node for member in record.isr} - {node})
            staying = [other for other in others if other not in record.removing]
            if others:
                heirs[partition] = staying or others
    chosen: dict[int, str] = {}
    for partition in sorted(heirs, key=lambda each: (len(heirs[each]), each)):
        heir = min(heirs[partition], key=lambda other: (loads[other], other))
        loads[heir] += 1
        chosen[partition] = heir
    return chosen
