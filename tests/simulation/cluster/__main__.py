"""Run seeds of the simulator.

`python -m tests.simulation.cluster --seeds A:B [--reaps | --queues] [--story] [--go-on]`

Prints what happened how often; at a violation the seed, the story before it, and the line that replays it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.simulation.cluster.queues import QueueWorld
from tests.simulation.cluster.reaps import RowWorld
from tests.simulation.cluster.simulator import World, run_seed


def main() -> int:
    """0 when all seeds passed, 1 when one did not."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.cluster", description=__doc__)
    parser.add_argument("--seeds", default="0:300", help="A:B, from A up to but without B")
    parser.add_argument("--story", action="store_true", help="print every seed's story")
    parser.add_argument("--reaps", action="store_true", help="with real rows, deletes, reaps and another cluster")
    parser.add_argument("--queues", action="store_true", help="with the product's promises, source queues and sinks")
    parser.add_argument("--go-on", action="store_true", help="one line for each seed that fails, and on to the next")
    options = parser.parse_args()
    world_class = QueueWorld if options.queues else RowWorld if options.reaps else World
    first, last = (int(part) for part in options.seeds.split(":"))
    total: Counter[str] = Counter()
    failed = 0
    began_s = time.process_time()
    for seed in range(first, last):
        try:
            world = run_seed(seed, whole_story=options.story, world_class=world_class)
        except AssertionError as error:
            if not options.go_on:
                print(*getattr(error, "__notes__", ()), sep="\n")
                return 1
            failed += 1
            print(f"seed {seed}: {error}", flush=True)
            continue
        total += world.counts
        if options.story:
            print(f"seed {seed}\n{world.narrate()}\n")
    for name, count in sorted(total.items()):
        print(f"{count:>9} {name}")
    verdict = f"{failed} with a violation" if failed else "no violation"
    print(f"{last - first} seeds, {verdict}, {time.process_time() - began_s:.1f} CPU seconds")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
