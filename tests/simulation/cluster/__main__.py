"""Run seeds of the simulator.

`python -m tests.simulation.cluster --seeds A:B [--reaps | --queues [--no-shares] | --streams | --suspicions |
--full-disks] [--trace] [--go-on]`

Prints counts of events; at a violation or an error, the seed, the trace before it, and the command that replays it.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.simulation.cluster.full_disks import FullDiskSimulation
from tests.simulation.cluster.pair_streams import StreamSimulation
from tests.simulation.cluster.queues import QueueSimulation, UnsharedQueueSimulation
from tests.simulation.cluster.reaps import RowSimulation
from tests.simulation.cluster.simulator import ClusterSimulation, description, run_seed
from tests.simulation.cluster.suspicions import SuspicionSimulation


def main() -> int:
    """0 when all seeds passed, 1 when one did not."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.cluster", description=__doc__)
    parser.add_argument("--seeds", default="0:300", help="A:B, from A up to but without B")
    parser.add_argument("--trace", action="store_true", help="print every seed's trace")
    parser.add_argument("--reaps", action="store_true", help="with real rows, deletes, reaps and another cluster")
    parser.add_argument("--queues", action="store_true", help="with the product's promises, source queues and sinks")
    parser.add_argument("--streams", action="store_true", help="with replication streams between pairs of nodes")
    parser.add_argument("--suspicions", action="store_true", help="with nodes that suspect each other, also falsely")
    parser.add_argument("--full-disks", action="store_true", help="with disks that fill up and are freed")
    parser.add_argument("--no-shares", action="store_true", help="with --queues: sinks of one node, without shares")
    parser.add_argument("--go-on", action="store_true", help="one line for each seed that fails, and on to the next")
    options = parser.parse_args()
    chosen = (
        (options.queues and options.no_shares, UnsharedQueueSimulation),
        (options.queues, QueueSimulation),
        (options.reaps, RowSimulation),
        (options.streams, StreamSimulation),
        (options.suspicions, SuspicionSimulation),
        (options.full_disks, FullDiskSimulation),
    )
    simulation_class = next((each for wanted, each in chosen if wanted), ClusterSimulation)
    first, last = (int(part) for part in options.seeds.split(":"))
    total: Counter[str] = Counter()
    failed = 0
    began_s = time.process_time()
    for seed in range(first, last):
        try:
            simulation = run_seed(seed, whole_trace=options.trace, simulation_class=simulation_class)
        except Exception as error:  # noqa: BLE001 - whatever the error is, the seed is needed
            if not options.go_on:
                if not isinstance(error, AssertionError):
                    traceback.print_tb(error.__traceback__, file=sys.stdout)
                print(*getattr(error, "__notes__", (f"seed {seed}: {description(error)}",)), sep="\n")
                return 1
            failed += 1
            print(f"seed {seed}: {description(error)}", flush=True)
            continue
        total += simulation.counts
        if options.trace:
            print(f"seed {seed}\n{simulation.rendered_trace()}\n")
    for name, count in sorted(total.items()):
        print(f"{count:>9} {name}")
    verdict = f"{failed} with a violation or an error" if failed else "no violation"
    print(f"{last - first} seeds, {verdict}, {time.process_time() - began_s:.1f} CPU seconds")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
