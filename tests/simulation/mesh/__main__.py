"""Run seeds of the mesh: `python -m tests.simulation.mesh --seeds A:B [--scenarios NAME,...] [--list]`.

Prints a line for each seed that fails, then how many seeds of each scenario failed. A scenario is named as `--list`
shows it, or by a prefix. A nightly run is `--seeds 0:4000`: about 2 CPU minutes a scenario, 45 in all.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.mesh.scenarios import SCENARIOS

MESSAGE_CHARACTERS = 400
"""The text of an error in one line."""


def main() -> int:
    """0 when all seeds passed, 1 when one did not."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mesh", description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="A:B, from A up to but without B")
    parser.add_argument("--scenarios", default="", help="names or beginnings, separated by commas; all when left out")
    parser.add_argument("--list", action="store_true", help="print the names of the scenarios")
    options = parser.parse_args()
    first, last = (int(part) for part in options.seeds.split(":"))
    wanted = tuple(options.scenarios.split(","))
    chosen = [name for name in SCENARIOS if name.startswith(wanted)]
    if not chosen:
        parser.error(f"no scenario begins with {options.scenarios!r}; there are: {', '.join(SCENARIOS)}")
    if options.list:
        print(*chosen, sep="\n")
        return 0
    failed = 0
    for name in chosen:
        began_s, bad = time.process_time(), 0
        for seed in range(first, last):
            try:
                SCENARIOS[name](seed)
            except AssertionError as error:
                bad += 1
                told = " ".join(str(error).split())[:MESSAGE_CHARACTERS]
                print(f"{name}, seed {seed}: {told or 'an assertion without words'}", flush=True)
        took_s = time.process_time() - began_s
        print(f"{name}: {last - first} seeds, {bad} failed, {took_s:.1f} CPU seconds", flush=True)
        failed += bad
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
