"""Two clusters under load and faults for a chosen time: `python -m tests.system.replication --minutes 60`.

Prints one line per act, then the totals. Ends with 0 only when all that `tests.system.replication.endurance` names
holds; else with the timeline of events, and the directory with the nodes' logs and data.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.system.replication.endurance import endure


def main() -> int:
    """See the top of the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.replication", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long load and acts go on")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two writes of each of six clients")
    parser.add_argument("--timeline", action="store_true", help="print everything that is done, as it is done")
    parser.add_argument("--dir", type=Path, help="where nodes live; kept then")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # namespaces and mounts are removed on every way out
    directory = options.dir or Path(tempfile.mkdtemp(prefix="isthmus-endurance-"))
    again = (
        f"python -m tests.system.replication --minutes {options.minutes:g} --seed {options.seed}"
        f" --pause {options.pause:g}"
    )
    print(f"{again}\nin {directory}", flush=True)
    try:
        report = endure(
            directory,
            options.minutes * 60,
            options.seed,
            pause_s=options.pause,
            show=options.timeline,
            tell=lambda line: print(line, flush=True),
        )
    except AssertionError as error:
        print(f"\nNOT CLEAN: {error}", *getattr(error, "__notes__", ()), sep="\n")
        print(f"again: {again}\nlogs and data: {directory}")
        return 1
    print("clean", *report.lines(), sep="\n")
    if options.dir is None:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
