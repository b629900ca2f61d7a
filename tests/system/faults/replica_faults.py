"""Faults of whole replicas: a node away for too long, disks that are new, old or damaged, a node at another address.

Logs are short in most of these (`tests.system.faults.campaign`), so that a node that was away takes rows from its
leaders' stores (R-FAR). Collected by `tests.system.faults.nemeses`.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.system.faults.cluster import ClusterNode
from tests.system.faults.nemesis import FAULT, SESSION_S, STORAGE_FAILED, FaultContext, Nemesis

RATE: Final = "replication.catch.up.rate"
MIN_ISR: Final = "replication.min.isr"
FILL_MB: Final = 4
"""Four times the data that a log holds; a transfer at SLOW_RATE takes some seconds."""

SLOW_RATE: Final = "1MB"
AWAY_TIMEOUT_S: Final = 30.0
COMMAND_TIMEOUT_S: Final = 60.0


def beyond_the_log(context: FaultContext) -> None:
    """kill -9 of one node, which is back when the others' logs begin long after it ended."""
    node = context.victim()
    node.kill()
    context.timeline.note(f"killed {node.name}")
    context.fill(FILL_MB)
    _started(context, node)
    wait_rounds(context, node)


def replaced_disk(context: FaultContext) -> None:
    """kill -9 of one node, whose disk comes back empty when all logs have been trimmed."""
    node = context.victim()
    context.fill(FILL_MB)
    node.kill()
    context.empty(node)
    _started(context, node)
    wait_rounds(context, node)


def cut_transfers(context: FaultContext) -> None:
    """While a node with an empty disk takes rows, slowly, it or its leader is killed or paused, again and again."""
    node = context.victim()
    context.fill(FILL_MB)
    context.request_admin(f"/admin/options/{RATE}/set", {"value": SLOW_RATE, "by": "tests"})
    node.kill()
    context.empty(node)
    _started(context, node)
    for _ in range(context.chance.randrange(3, 7)):
        context.wait(0.1, 3.0)
        hurt = node if context.chance.random() < 0.6 else context.chance.choice(context.others(node))
        if context.chance.random() < 0.3:
            hurt.send(signal.SIGSTOP)
            context.wait(0.1, 1.0)
            hurt.send(signal.SIGCONT)
            context.timeline.note(f"paused {hurt.name} for a moment")
        else:
            hurt.kill()
            _started(context, hurt)
    if context.chance.random() < 0.5:
        context.fill(2)  # the log moves on below it, as far as its pin lets it
    context.request_admin(f"/admin/options/{RATE}/unset", {"by": "tests"})


def old_disk(context: FaultContext) -> None:
    """One node's disk is replaced by an empty one, on which it catches up; then the old disk replaces that one."""
    node = context.victim()
    old = node.directory / "old-disk"
    node.kill()
    _moved(node.data_dir, old)
    context.timeline.note(f"killed {node.name}, took its disk out")
    context.fill(FILL_MB)  # before it is back: while the others' logs begin at 0, an empty disk needs no rows
    _started(context, node)
    wait_rounds(context, node)
    context.wait(0.0, 3.0)
    node.kill()
    context.empty(node)
    _moved(old, node.data_dir)
    context.timeline.note(f"killed {node.name}, put its old disk back")
    _started(context, node)


def backup(context: FaultContext) -> None:
    """One node's directory is restored from a backup, which its operator declares (`isthmus node new-identity`)."""
    node = context.victim()
    kept = node.directory / "backup"
    node.kill()
    shutil.copytree(node.data_dir, kept, dirs_exist_ok=True)  # an earlier backup's directory there is empty
    _started(context, node)
    context.fill(context.chance.choice([0, FILL_MB]))
    context.cluster.wait_until_healthy(100)
    node.kill()
    context.empty(node)
    _moved(kept, node.data_dir)
    command = [sys.executable, "-m", "isthmus.node.cli.main", "node", "new-identity", str(node.config)]
    subprocess.run(command, env=node.environ, check=True, capture_output=True, timeout=COMMAND_TIMEOUT_S)
    context.timeline.note(f"killed {node.name}, restored a backup under a new identity")
    _started(context, node)


def damaged_store(context: FaultContext) -> None:
    """kill -9 of one node, and a byte in the middle of its store's largest table changes before it is back. Its
    operator moves the store away, as the node's message asks."""
    node = context.victim()
    context.fill(FILL_MB)
    node.kill()
    rows = node.data_dir / "store" / "rows"
    largest = max(rows.glob("*.ldb"), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    place = context.chance.randrange(len(data) // 4, len(data) // 2)
    data[place] ^= 1 << context.chance.randrange(8)
    largest.write_bytes(data)
    context.timeline.note(f"killed {node.name}, and changed byte {place} of {len(data)} in {largest.name}")
    _started(context, node)
    context.wait(SESSION_S / 2, SESSION_S)
    node.kill()
    context.empty(node, "store")
    _started(context, node)


def readdressed(context: FaultContext) -> None:
    """One node comes back at another address, while a node of another cluster has taken its former one."""
    node = context.victim()
    node.kill()
    stranger = context.cluster.foreign_node(node)
    stranger.start()
    context.timeline.note(f"killed {node.name}; a node of another cluster listens at its address")
    try:
        context.wait(1.0, SESSION_S)
        context.cluster.readdress(node)
        context.timeline.note(f"{node.name} lives at {node.address} now")
        _started(context, node)
        context.wait(1.0, 3.0)
    finally:
        stranger.kill()


def stop_and_kill(context: FaultContext) -> None:
    """Stop one node gracefully, and kill it while it hands over its leaderships; then kill another one."""
    for _ in range(2):
        node = context.victim()
        node.wanted = False
        node.send(signal.SIGTERM)
        context.wait(0.0, 0.4)
        node.kill()
        context.timeline.note(f"told {node.name} to stop, and killed it")
        context.wait(0.0, 1.0)
        _started(context, node)


def min_isr(context: FaultContext) -> None:
    """min-ISR goes up to all replicas and down to one, while nodes are killed."""
    for value in (str(len(context.cluster.nodes)), "1"):
        context.request_admin(f"/admin/options/{MIN_ISR}/set", {"value": value, "by": "tests"})
        node = context.victim()
        node.kill()
        context.timeline.note(f"killed {node.name}")
        context.wait(0.0, SESSION_S * 1.5)
        _started(context, node)
    context.cluster.wait_until_healthy(100)
    context.request_admin(f"/admin/options/{MIN_ISR}/unset", {"by": "tests"})


def _started(context: FaultContext, node: ClusterNode) -> None:
    context.cluster.start(node)
    context.timeline.note(f"started {node.name}")


def _moved(source: Path, target: Path) -> None:
    """All that is in a directory; the directory itself may be where a disk is mounted."""
    target.mkdir(exist_ok=True)
    for path in source.iterdir():
        if path.name != "lost+found":
            shutil.move(path, target / path.name)


def wait_rounds(context: FaultContext, node: ClusterNode) -> None:
    """Return once a node has taken rows since it was started. Raises AssertionError: it was not far, then."""
    deadline = time.monotonic() + AWAY_TIMEOUT_S
    while not node.metric("isthmus_far_rounds_taken_total"):
        assert time.monotonic() < deadline, f"{node.name} took no rows"
        time.sleep(0.1)
    context.timeline.note(f"{node.name} took rows")


COPIES: Final[Mapping[str, Nemesis]] = {
    "beyond-the-log": Nemesis(beyond_the_log, nodes=3, far=True),
    "replaced-disk": Nemesis(replaced_disk, nodes=3, far=True),
    "cut-transfers": Nemesis(cut_transfers, nodes=3, far=True),
    "old-disk": Nemesis(old_disk, nodes=3, far=True),
    "backup": Nemesis(backup, nodes=3, far=True),
    "damaged-store": Nemesis(
        damaged_store, nodes=3, far=True, exits=(STORAGE_FAILED, FAULT), excuses=("500 local-fault",)
    ),
    "readdressed": Nemesis(readdressed, nodes=3),
    "stop-and-kill": Nemesis(stop_and_kill),
    "min-isr": Nemesis(min_isr, nodes=3),
}
"""Nemeses by their names on the command line."""
