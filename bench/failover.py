"""How long a partition takes no write after its leader was killed, or frozen.

    python -m bench.failover [--json] [--kills 20] [--freezes 2] [--gathered]

Three nodes, three partitions, and one client at a node that lives, which writes fresh keys of one partition that the
victim leads, one after the other, and tries again at once. Every second victim is the controller's node. Measured from
`kill -9` of the leader to the answer of the first write that was sent after it and succeeded. Then the killed node is
started again. Before each kill all replicas are in sync, every node leads, and all sessions are old enough to be
suspected (docs/protocol.md R-SUSPECT). A frozen leader (SIGSTOP) refuses no connection, so it is replaced when its
session ends.

With `--gathered` one node leads all of twelve partitions, as it does while the load is low (docs/decisions.md 95), a
client writes to each of them, and the time is that until the last of them takes a write.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from bench.figures import Figure, Target, machine, report
from bench.kept_connection import KeptConnection
from bench.nodes import THREE_NODES, BenchFailed, Nodes
from isthmus.node.cli.exit_codes import CommandFailed
from isthmus.node.local import directory as places
from isthmus.repl.controller.suspicion import HOLD_MIN_MS
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.keys import key_hash, partition_index

MEDIAN: Final = Target(500, "ms, the median", at_least=False)
WORST: Final = Target(1_000, "ms, the worst", at_least=False)

PARTITIONS: Final = 3
TOPOLOGY: Final = THREE_NODES.replace("partitions = 1\n", f"partitions = {PARTITIONS}\nbalance = false\n")
"""Leaderships move only on request, and not during a measurement."""

GATHERED_PARTITIONS: Final = 12
GATHERED: Final = THREE_NODES.replace("partitions = 1\n", f"partitions = {GATHERED_PARTITIONS}\n")

BUCKET: Final = "failover"

SETTLE_S: Final = HOLD_MIN_MS / 1000 + 3.0
"""Pause before a kill: the process that was started last has been registered for longer than the shortest hold."""

TIMEOUT_S: Final = 120.0
TRY_TIMEOUT_S: Final = 1.0
"""Time-out of one write; then the client tries again."""

AGAIN_S: Final = 0.002
"""Pause before a refused write is tried again."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--kills", default=20, show_default=True, help="How many leaders are killed.")
@click.option("--freezes", default=2, show_default=True, help="How many leaders are frozen.")
@click.option("--gathered", is_flag=True, help="One node leads all partitions; until the last of them takes a write.")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="Where data lies; decides what an fsync costs."
)
def main(as_json: bool, kills: int, freezes: int, gathered: bool, directory: Path | None) -> None:
    """Fail-over after a killed and after a frozen leader."""
    try:
        where = machine()
        with Nodes(GATHERED if gathered else TOPOLOGY, directory) as nodes:
            runs = _FailOvers(nodes, gathered=gathered)
            killed = [runs.once(signal.SIGKILL, controls=n % 2 == 0) for n in range(kills)]
            frozen = [runs.once(signal.SIGSTOP, controls=False)[0] for _ in range(freezes)]
        figures, what = [], "leader of all partitions" if gathered else "leader"
        if killed:
            every = [ms for ms, _ in killed]
            figures.append(_figure(f"{what} killed to the next acknowledged write", every, MEDIAN, _median(every)))
            figures.append(_figure("the worst of them", every, WORST, max(every)))
            for both, of in ((True, "the controller's node"), (False, "another node")):
                some = [ms for ms, controls in killed if controls is both]
                if some:
                    figures.append(_figure(f"of them: the leader was {of}", some))
        if frozen:
            figures.append(_figure(f"{what} frozen to the next acknowledged write", frozen))
        report("failover", where, figures, as_json, [])
    except (BenchFailed, IsthmusError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from error


class _FailOvers:
    def __init__(self, nodes: Nodes, *, gathered: bool) -> None:
        self._nodes = nodes
        self._gathered = gathered
        self._count = GATHERED_PARTITIONS if gathered else PARTITIONS
        self._turn = 0

    def once(self, how: signal.Signals, *, controls: bool) -> tuple[float, bool]:
        """Milliseconds without a write after `how` was sent to a leader, which `controls` or does not; whether it did:
        a leader of all partitions is the controller, or is not, as it comes."""
        self._settle()
        leaders: dict[str, list[int]] = {}
        for row in self._partitions():
            leaders.setdefault(row["leader"], []).append(row["partition"])
        controller = self._ask("/admin/cluster")["controller"]
        if self._gathered:
            (victim,) = leaders
            controls = victim == controller
        else:
            victim = controller if controls else next(name for name in sorted(leaders) if name != controller)
        other = next(name for name in sorted(self._nodes.admin) if name not in (victim, controller))
        self._turn += 1
        url, written = self._nodes.http[other], leaders[victim] if self._gathered else leaders[victim][:1]
        writers = [_Writer(url, partition, self._count, f"turn{self._turn}") for partition in written]
        for writer in writers:
            writer.start()
        time.sleep(1.0)
        pid = self._nodes.pids[victim]
        sent_s = time.perf_counter()
        os.kill(pid, how)
        try:
            for writer in writers:
                writer.look_since(sent_s)
            answered_s = max(writer.first() for writer in writers)
        finally:
            if how is signal.SIGSTOP:
                os.kill(pid, signal.SIGCONT)
            for writer in writers:
                writer.stop()
            if how is signal.SIGKILL:
                places.stop_node(self._nodes.directory, victim, kill=True)
                places.start_node(self._nodes.directory, victim, None)
        return 1000 * (answered_s - sent_s), controls

    def _settle(self) -> None:
        """Wait until all replicas are in sync, every node leads a partition, and no session is young."""
        deadline_s = time.perf_counter() + TIMEOUT_S
        while True:
            if time.perf_counter() > deadline_s:
                raise BenchFailed(f"not every node leads with all replicas in sync after {TIMEOUT_S:.0f} s")
            rows = self._partitions()
            leading = 1 if self._gathered else PARTITIONS
            if len(rows) == self._count and all(row["leader"] and len(row["isr"]) == 3 for row in rows):
                if len({row["leader"] for row in rows}) == leading:
                    break
                if not self._gathered and self._ask("/admin/leaders")["state"] == "uneven":
                    self._ask("/admin/leaders/balance", {"by": "bench"})
            time.sleep(0.2)
        time.sleep(SETTLE_S)
        self._nodes.refresh()

    def _partitions(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._ask("/admin/partitions")["partitions"]
        return rows

    def _ask(self, path: str, wish: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer of any node. Raises BenchFailed when none answers in time."""
        deadline_s = time.perf_counter() + TIMEOUT_S
        while time.perf_counter() < deadline_s:
            for admin in self._nodes.admin.values():
                try:
                    answer: dict[str, Any] = admin.get(path) if wish is None else admin.post(path, wish)
                except CommandFailed:
                    continue
                return answer
            time.sleep(0.1)
        raise BenchFailed(f"no node answers {path}")


class _Writer(threading.Thread):
    """Writes fresh keys of one partition, one write after the other."""

    def __init__(self, url: str, partition: int, count: int, prefix: str) -> None:
        super().__init__(daemon=True)
        self._connection = KeptConnection(url, TRY_TIMEOUT_S)
        self._keys = _keys(partition, count, prefix)
        self._stopped = threading.Event()
        self._answered = threading.Condition()
        self._since_s: float | None = None
        self._answered_s: float | None = None
        """When the first write that was sent after `_since_s` was answered."""

    def look_since(self, since_s: float) -> None:
        """Look for a write that was sent after `since_s`."""
        with self._answered:
            self._since_s = since_s

    def first(self) -> float:
        """When the first such write was acknowledged. Raises BenchFailed after TIMEOUT_S."""
        with self._answered:
            self._answered.wait_for(lambda: self._answered_s is not None, TIMEOUT_S)
            if self._answered_s is None:
                raise BenchFailed(f"no write was acknowledged within {TIMEOUT_S:.0f} s")
            return self._answered_s

    def stop(self) -> None:
        """End."""
        self._stopped.set()
        self.join(TIMEOUT_S)

    def run(self) -> None:
        while not self._stopped.is_set():
            sent_s = time.perf_counter()
            path = f"/buckets/{BUCKET}/keys/{next(self._keys)}"
            if self._connection.send("PUT", path, b"x", {"Content-Type": "text/plain"}).status == 204:
                self._acknowledged(sent_s)
            else:
                time.sleep(AGAIN_S)
        self._connection.close()

    def _acknowledged(self, sent_s: float) -> None:
        with self._answered:
            if self._since_s is not None and self._answered_s is None and sent_s > self._since_s:
                self._answered_s = time.perf_counter()
                self._answered.notify_all()


def _keys(partition: int, count: int, prefix: str) -> Iterator[str]:
    """Fresh keys of one of `count` partitions."""
    number = 0
    while True:
        number += 1
        name = f"{prefix}-{number}"
        if partition_index(key_hash(BUCKET.encode(), name.encode()), count) == partition:
            yield name


def _median(found: list[float]) -> float:
    return sorted(found)[len(found) // 2]


def _figure(work: str, found: list[float], target: Target | None = None, measured: float | None = None) -> Figure:
    values = {"times": float(len(found)), "min_ms": min(found), "median_ms": _median(found), "max_ms": max(found)}
    return Figure(work, "fresh keys", values=values, target=target, measured=measured)


if __name__ == "__main__":
    main()
