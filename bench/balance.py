"""CPU time of planning balanced leadership for many partitions on many nodes.

    python -m bench.balance [--partitions 1000] [--nodes 50] [--factor 3] [--json]

Measures one call of `repl.controller.leader_balance_plan.plan` in one process: the best and the worst of five seeds.
Two initial states: `restarted`, where a fifth of the nodes lead nothing, and `crowded`, where the eligible node with
the lowest number leads each partition.
"""

from __future__ import annotations

import argparse
import json
import time
from random import Random

from isthmus.repl.controller.leader_balance_plan import LeaderAssignment, imbalance, loads, plan

SEEDS = 5
"""Measurements per initial state."""


def initial_assignments(kind: str, partitions: int, nodes: int, factor: int, seed: int) -> dict[int, LeaderAssignment]:
    """Leader assignments of an initial state, drawn with `seed`."""
    random = Random(seed)
    names = [f"n{number:03}" for number in range(nodes)]
    found: dict[int, LeaderAssignment] = {}
    for partition in range(partitions):
        eligible = sorted(random.sample(names, factor))
        active = [name for name in eligible if int(name[1:]) >= nodes // 5] or eligible
        leader = eligible[0] if kind == "crowded" else random.choice(active)
        found[partition] = LeaderAssignment(leader, frozenset(eligible))
    return found


def main() -> None:
    """Measure both initial states and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1000, help="number of partitions")
    parser.add_argument("--nodes", type=int, default=50, help="number of nodes")
    parser.add_argument("--factor", type=int, default=3, help="replicas per partition")
    parser.add_argument("--json", action="store_true", help="print one JSON object per initial state")
    given = parser.parse_args()
    for kind in ("restarted", "crowded"):
        seconds, moves, before = [], [], []
        for seed in range(SEEDS):
            assignments = initial_assignments(kind, given.partitions, given.nodes, given.factor, seed)
            began = time.process_time()
            planned = plan(assignments)
            seconds.append(time.process_time() - began)
            moves.append(len(planned))
            before.append(imbalance(loads(assignments)))
        figures = {
            "bench": "balance",
            "beginning": kind,
            "partitions": given.partitions,
            "nodes": given.nodes,
            "factor": given.factor,
            "imbalance_before": max(before),
            "moves": max(moves),
            "plan_cpu_s_best": round(min(seconds), 4),
            "plan_cpu_s_worst": round(max(seconds), 4),
        }
        print(json.dumps(figures) if given.json else "  ".join(f"{name} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
