"""How long a plan for balanced leadership takes: many partitions, many nodes, from uneven beginnings.

    python -m bench.balance [--partitions 1000] [--nodes 50] [--factor 3] [--json]

CPU seconds of one call of `repl.controller.leader_balance_plan.plan`, in one process, best and worst of some seeds.
`restarted`: a fifth of the nodes lead nothing; `crowded`: each partition is led by the eligible node with the lowest
number.
"""

from __future__ import annotations

import argparse
import json
import time
from random import Random

from isthmus.repl.controller.leader_balance_plan import LeaderAssignment, imbalance, loads, plan

SEEDS = 5


def beginnings(kind: str, partitions: int, nodes: int, factor: int, seed: int) -> dict[int, LeaderAssignment]:
    """Seats of one kind, from a seed."""
    random = Random(seed)
    names = [f"n{number:03}" for number in range(nodes)]
    found: dict[int, LeaderAssignment] = {}
    for partition in range(partitions):
        eligible = sorted(random.sample(names, factor))
        awake = [name for name in eligible if int(name[1:]) >= nodes // 5] or eligible
        leader = eligible[0] if kind == "crowded" else random.choice(awake)
        found[partition] = LeaderAssignment(leader, frozenset(eligible))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--factor", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for kind in ("restarted", "crowded"):
        seconds, moves, before = [], [], []
        for seed in range(SEEDS):
            found = beginnings(kind, given.partitions, given.nodes, given.factor, seed)
            began = time.process_time()
            planned = plan(found)
            seconds.append(time.process_time() - began)
            moves.append(len(planned))
            before.append(imbalance(loads(found)))
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
