"""Run random faults against a cluster of real processes.

`python -m tests.system.faults --kills 200 [--nemesis kill,cut]`

Prints one line per act, then the totals. Ends with 0 only when every history is linearizable, nothing acknowledged is
lost, and every event is explained by a fault; otherwise prints the timeline, a command that repeats the run, and the
directory with the nodes' logs and data.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.system.faults.campaign import Campaign, fault_context
from tests.system.faults.nemeses import NEMESES, lacking


def main() -> int:
    """See the top of the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="how many acts")
    parser.add_argument(
        "--nemesis", default="", help=f"which, by comma; all that this machine can make: {', '.join(NEMESES)}"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--timeline", action="store_true", help="print everything that is done, as it is done")
    parser.add_argument("--dir", type=Path, help="where nodes live; kept then")
    options = parser.parse_args()
    chosen = [name for name in options.nemesis.split(",") if name]
    if unknown := set(chosen) - set(NEMESES):
        parser.error(f"no such nemesis: {', '.join(sorted(unknown))}")
    left_out = {name: why for name in chosen or NEMESES if (why := lacking(name, options.nodes))}
    for name, why in left_out.items():
        print(f"left out: {name}, {why}")
    names = [name for name in chosen or NEMESES if name not in left_out]
    if not names or (chosen and left_out):
        return 2
    words = f"--kills {options.kills} --nemesis {','.join(names)} --seed {options.seed} --nodes {options.nodes}"
    replay = f"python -m tests.system.faults {words} --clients {options.clients}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # namespaces and mounts are removed on every way out
    directory = options.dir or Path(tempfile.mkdtemp(prefix="isthmus-faults-"))
    print(f"{replay}\nin {directory}", flush=True)
    try:
        run(options, names, directory)
    except AssertionError as error:
        print(f"\nNOT CLEAN: {error}", *getattr(error, "__notes__", ()), sep="\n")
        print(f"again: {replay}\nlogs and data: {directory}")
        return 1
    if options.dir is None:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


def run(options: argparse.Namespace, names: list[str], directory: Path) -> None:
    """Run all acts. Raises AssertionError at the first failed check."""
    began_s = time.monotonic()
    with fault_context(directory, names, nodes=options.nodes, seed=options.seed, show=options.timeline) as context:
        campaign = Campaign(context, clients=options.clients)
        for _ in range(options.kills):
            result = campaign.run_fault(context.chance.choice(names))
            print(result.line(), flush=True)
        campaign.finish()
    results = campaign.results
    written, unknown, reads = (
        sum(of) for of in zip(*((a.acknowledged, a.unknown, a.reads) for a in results), strict=True)
    )
    rate = written / sum(result.seconds for result in results)
    print(
        f"clean: {len(results)} acts in {time.monotonic() - began_s:.0f} s, {written} acknowledged writes "
        f"({rate:.0f} a second of load), {unknown} unknown, {reads} reads"
    )
    for name in names:
        of_kind = [result for result in results if result.nemesis == name]
        if of_kind:
            gap_s, key_gap_s, well_s = (
                max(of) for of in zip(*((a.gap_s, a.key_gap_s, a.well_s) for a in of_kind), strict=True)
            )
            print(
                f"  {name:<22} {len(of_kind):>4} acts; at most {gap_s:5.1f} s without any write, {key_gap_s:5.1f} s "
                f"without one to some key; well after at most {well_s:5.1f} s"
            )


if __name__ == "__main__":
    sys.exit(main())
