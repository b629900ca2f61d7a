"""Worlds whose disks are short of everything in turn, in the middle of what is being written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from isthmus.repl.model.errors import StorageShort
from isthmus.repl.replog.tail import LogTail
from isthmus.repl.store.leveldb import LevelStore
from tests.simulation.world.plan import drawn
from tests.simulation.world.run import run
from tests.simulation.world.steps import KINDS, StepKind
from tests.support.samples import seeds


@pytest.mark.parametrize("seed", seeds(range(0, 24, 2)))
def test_no_node_ends_for_a_shortage(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Space, inodes, descriptors, a quota, memory or write access are short in the middle of writes and syncs of log
    and store: no process ends by it, and once all is healed every oracle is content. Logs were mended, and databases
    broken and opened again (R-SHORT)."""
    met: Counter[str] = Counter()
    mend, breaks = LogTail.mend, LevelStore._breaks

    def mends(tail: LogTail) -> None:
        met["mend"] += 1
        mend(tail)

    def broken(store: LevelStore, why: str) -> StorageShort:
        met["broken"] += 1
        return breaks(store, why)

    patched: tuple[tuple[type, str, Callable[..., object]], ...] = (
        (LogTail, "mend", mends), (LevelStore, "_breaks", broken)
    )  # fmt: skip
    for owner, name, replacement in patched:
        monkeypatch.setattr(owner, name, replacement)
    outcome = run(drawn(seed, among=[*KINDS[StepKind.OPERATION], "shortage"], acts=14))
    assert outcome.failures == ()
    assert met["mend"] + met["broken"] > 0
