"""Run seeds of the world: `python -m tests.simulation.world --seeds A:B [--jobs N] [--story] [--shrink [--keep NAME]]`.

Prints a line for each seed that fails, then how many seeds and virtual days were run, and what they cost. `--story`
prints everything that happened in the worlds of the seeds, `--shrink` looks for the fewest steps that still fail and
prints them; with `--keep NAME` they become a test, as `tests/simulation/world/kept/NAME.json`. A night is `--seeds
0:100000`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.simulation.world.kept import KEPT, text_of
from tests.simulation.world.plan import Plan, drawn
from tests.simulation.world.run import Outcome, Told, run, told_of
from tests.simulation.world.shrinking import shrunk

LINE_CHARACTERS = 300
"""The text of a failure in one line."""

DAY_S = 86_400.0


def kind_of(failure: str) -> str:
    """What two failures of one cause mostly have in common: the oracle, and the first words."""
    return " ".join(failure.split()[:4])


def main() -> int:
    """0 when all seeds passed, 1 when one did not."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.world", description=__doc__)
    parser.add_argument("--seeds", default="0:20", help="A:B, from A up to but without B; or one seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that run seeds")
    parser.add_argument("--story", action="store_true", help="print what happened")
    parser.add_argument("--shrink", action="store_true", help="look for the fewest steps that still fail")
    parser.add_argument("--keep", default="", metavar="NAME", help="with --shrink: write the plan among the kept ones")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no further seed after this time")
    options = parser.parse_args()
    if options.keep and not (options.shrink and re.fullmatch("[a-z0-9-]+", options.keep)):
        parser.error("--keep NAME: small letters, digits and dashes; it needs --shrink")
    if options.keep and (KEPT / f"{options.keep}.json").exists():
        parser.error(f"--keep {options.keep}: a plan of this name is kept already")
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last) if last else int(first) + 1)
    if options.story or options.shrink:
        if options.keep and len(seeds) != 1:
            parser.error("--keep NAME: one seed, since one plan is kept")
        return max(_at_length(seed, options) for seed in seeds)
    began_s = time.monotonic()
    count, bad, virtual_s, cpu_s = 0, 0, 0.0, 0.0
    kinds: Counter[str] = Counter()
    for told in _outcomes(seeds, options.jobs):
        count += 1
        virtual_s += told.virtual_s
        cpu_s += told.cpu_s
        if told.failures:
            bad += 1
            kinds.update({kind_of(failure) for failure in told.failures})
            shown = " ".join(told.failures[0].split())[:LINE_CHARACTERS]
            more = f" (and {len(told.failures) - 1} more)" if len(told.failures) > 1 else ""
            print(f"seed {told.seed}: {shown}{more}", flush=True)
        if options.seconds and time.monotonic() - began_s > options.seconds:
            break
    for kind, times in kinds.most_common():
        print(f"{times:6} seeds: {kind}")
    memory_mb = resource.getrusage(resource.RUSAGE_CHILDREN if options.jobs > 1 else resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{count} seeds, {bad} failed; {virtual_s / DAY_S:.2f} virtual days, {cpu_s / max(1, count):.2f} CPU seconds a "
        f"seed, {memory_mb // 1024} MB at most"
    )
    return 1 if bad else 0


def _outcomes(seeds: range, jobs: int) -> Iterator[Told]:
    if jobs <= 1:
        yield from map(told_of, seeds)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(told_of, seeds)


def _shrunk(plan: Plan, wanted: str) -> Plan:
    """The plan with the fewest steps that fail in the same way; tells how far it has come."""
    runs = 0

    def fails(tried: Plan) -> bool:
        nonlocal runs
        runs += 1
        found = any(kind_of(failure) == wanted for failure in run(tried).failures)
        if found or runs % 20 == 0:
            print(f"after {runs} runs: {len(tried.steps)} steps{'' if found else ' do not fail'}", file=sys.stderr)
        return found

    return shrunk(plan, fails)


def _at_length(seed: int, options: argparse.Namespace) -> int:
    plan = drawn(seed)
    outcome: Outcome = run(plan)
    if options.shrink and outcome.failures:
        plan = _shrunk(plan, kind_of(outcome.failures[0]))
        outcome = run(plan)
    if options.story:
        print(*outcome.story, sep="\n")
    print(f"seed {seed}: {len(plan.steps)} steps, {outcome.virtual_s:.0f} virtual s, digest {outcome.digest}")
    for failure in outcome.failures:
        print(f"  {failure}")
    if options.shrink and outcome.failures:
        print(text_of(plan))
        if options.keep:
            file = KEPT / f"{options.keep}.json"
            file.write_text(text_of(plan, outcome.failures[0]) + "\n")
            print(f"{file}: say in `found` what it found; it passes once that is mended")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
