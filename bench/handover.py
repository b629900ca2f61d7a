"""How long writes to a partition wait during a planned hand-over of its leadership.

    python -m bench.handover [--json] [--moves 6] [--stops 3]

Three nodes and four partitions. One client per partition writes one key, and sends the next write when the last one is
answered. The clients connect to a node that stays up. A move is a leadership that balancing moves after a node was away
(`isthmus leader balance`); a stop is a normal stop of a node that leads. The figure is the longest time between two
acknowledged writes of a partition whose leader changed, the client's own time included.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from bench.figures import Figure, Target, machine, report
from bench.kept_connection import KeptConnection
from bench.nodes import THREE_NODES, BenchFailed, Nodes
from isthmus.node.cli.exit_codes import CommandFailed
from isthmus.node.local import directory as places
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.keys import key_hash, partition_index

HAND_OVER: Final = Target(50, "ms median without a write", at_least=False)

PARTITIONS: Final = 4
TOPOLOGY: Final = THREE_NODES.replace("partitions = 1\n", f"partitions = {PARTITIONS}\nbalance = false\n")
"""Leaderships move only on request."""

BUCKET: Final = "handover"
TIMEOUT_S: Final = 120.0
REQUEST_TIMEOUT_S: Final = 30.0
RETRY_PAUSE_S: Final = 0.002
"""Pause before a refused write is retried: the only delay that a client adds."""

WRITES_MIN: Final = 20
"""Fewer writes per client are no measurement."""

STEADY_S: Final = 1.0
"""Duration of the load before and after a hand-over."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--moves", default=6, show_default=True, help="Minimum number of leaderships that balancing moves.")
@click.option("--stops", default=3, show_default=True, help="Minimum number of nodes that are stopped.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory of the data; its disk determines the cost of an fsync.",
)
def main(as_json: bool, moves: int, stops: int, directory: Path | None) -> None:
    """Measure planned hand-overs, by balancing and by stopping nodes."""
    try:
        where = machine()
        with Nodes(TOPOLOGY, directory) as nodes:
            figures = _Measurement(nodes).all(moves, stops)
        report("handover", where, figures, as_json, [])
    except (BenchFailed, IsthmusError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from error


class _Measurement:
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._turn = 0
        self._acts = 0

    def all(self, moves: int, stops: int) -> list[Figure]:
        """Stop and start nodes in turn, and balance after each, until there are enough hand-overs of both kinds."""
        by_stop: list[float] = []
        by_balance: list[float] = []
        self._wait_in_sync()
        while len(by_balance) < moves or self._turn < stops:
            stopped = sorted(self._nodes.admin)[self._turn % 3]
            self._turn += 1
            by_stop += self._gaps(stopped, lambda name=stopped: places.stop_node(self._nodes.directory, name))  # type: ignore[misc]
            places.start_node(self._nodes.directory, stopped, None)
            self._wait_in_sync()
            by_balance += self._gaps(stopped, self._balance)
            if self._turn > moves + stops:
                raise BenchFailed(f"{self._turn} nodes were stopped, and balancing moved {len(by_balance)} leaderships")
        return [
            _figure("leadership moved by balancing", by_balance, HAND_OVER),
            _figure("leader stopped", by_stop, HAND_OVER),
        ]

    def _gaps(self, away: str, act: Callable[[], None]) -> list[float]:
        """Seconds without an acknowledged write, for each partition whose leader `act` changed."""
        before = self._leaders()
        at = next(name for name in sorted(self._nodes.admin) if name != away)
        self._acts += 1
        clients = [_Client(self._nodes.http[at], partition, f"act{self._acts}") for partition in range(PARTITIONS)]
        for client in clients:
            client.start()
        try:
            time.sleep(STEADY_S)
            act()
            time.sleep(STEADY_S)
        finally:
            for client in clients:
                client.stop()
        idle = [client.partition for client in clients if client.written < WRITES_MIN]
        if idle:
            raise BenchFailed(f"partitions {idle} had fewer than {WRITES_MIN} acknowledged writes")
        after = self._leaders(away)
        return [client.longest_s for client in clients if before[client.partition] != after[client.partition]]

    def _balance(self) -> None:
        deadline_s = time.perf_counter() + TIMEOUT_S
        self._request("/admin/leaders/balance", {"by": "bench"})
        while time.perf_counter() < deadline_s:
            status = self._request("/admin/leaders")
            if not status["plan"] and status["state"] != "leadership-balancing":
                return
            if status["state"] == "uneven":
                self._request("/admin/leaders/balance", {"by": "bench"})
            time.sleep(0.1)
        raise BenchFailed(f"leaderships are not even after {TIMEOUT_S:.0f} s: {status['reason']}")

    def _request(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        error: CommandFailed | None = None
        deadline_s = time.perf_counter() + TIMEOUT_S
        while time.perf_counter() < deadline_s:
            for admin in self._nodes.admin.values():
                try:
                    answer: dict[str, Any] = admin.get(path) if body is None else admin.post(path, body)
                except CommandFailed as failure:
                    error = failure
                else:
                    return answer
            time.sleep(0.1)
        raise BenchFailed(f"no node answers {path}: {error}")

    def _leaders(self, away: str = "") -> dict[int, str]:
        """Wait until every partition has a leader, and return them."""
        deadline_s = time.perf_counter() + TIMEOUT_S
        while time.perf_counter() < deadline_s:
            rows = self._request("/admin/partitions")["partitions"]
            leaders = {row["partition"]: row["leader"] for row in rows}
            if len(leaders) == PARTITIONS and None not in leaders.values():
                return leaders
            time.sleep(0.05)
        raise BenchFailed(
            f"after {TIMEOUT_S:.0f} s not every partition has a leader: {leaders}; node away: {away or 'none'}"
        )

    def _wait_in_sync(self) -> None:
        """Wait until every replica is in sync."""
        deadline_s = time.perf_counter() + TIMEOUT_S
        while time.perf_counter() < deadline_s:
            rows = self._request("/admin/partitions")["partitions"]
            if len(rows) == PARTITIONS and all(row["leader"] and len(row["isr"]) == 3 for row in rows):
                self._nodes.refresh()
                return
            time.sleep(0.1)
        raise BenchFailed(f"not all replicas are in sync after {TIMEOUT_S:.0f} s")


class _Client(threading.Thread):
    """A client that writes one key of one partition, one write at a time."""

    def __init__(self, url: str, partition: int, prefix: str) -> None:
        super().__init__(daemon=True)
        self.partition = partition
        self.longest_s = 0.0
        self.written = 0
        self._connection = KeptConnection(url, REQUEST_TIMEOUT_S)
        names = (f"{prefix}-{number}" for number in range(1_000_000))
        key = next(n for n in names if partition_index(key_hash(BUCKET.encode(), n.encode()), PARTITIONS) == partition)
        self._path = f"/buckets/{BUCKET}/keys/{key}"
        self._ending = threading.Event()

    def stop(self) -> None:
        """Stop after the current write."""
        self._ending.set()
        self.join(TIMEOUT_S)

    def run(self) -> None:
        """Write until stopped; each write carries the context of the previous one."""
        clock: dict[str, str] = {}
        last_s = time.perf_counter()
        while not self._ending.is_set():
            headers = {"Content-Type": "text/plain", **clock}
            answer = self._connection.send("PUT", f"{self._path}?returnbody=true", b"x", headers)
            if answer.status == 200:
                clock = {"X-Riak-Vclock": answer.headers["X-Riak-Vclock"]}
                now_s = time.perf_counter()
                self.written += 1
                self.longest_s, last_s = max(self.longest_s, now_s - last_s), now_s
            else:
                time.sleep(RETRY_PAUSE_S)
        self._connection.close()


def _figure(work: str, gaps_s: list[float], target: Target) -> Figure:
    found = sorted(1000 * gap for gap in gaps_s)
    if not found:
        return Figure(work, f"{PARTITIONS} keys", values={"handovers": 0.0})
    median = found[len(found) // 2]
    values = {"handovers": float(len(found)), "min_ms": found[0], "median_ms": median, "max_ms": found[-1]}
    return Figure(work, f"{PARTITIONS} keys", values=values, target=target, measured=median)


if __name__ == "__main__":
    main()
