"""The cost of viewers of the dashboard to the nodes, and to single PUTs beside them.

    python -m bench.viewers [--json] [--viewers 20] [--rounds 5] [--rate 300]

One cluster of three nodes. Single PUTs come at a fixed rate, to the node whose dashboard is looked at. Rounds with and
without viewers take turns. A viewer does what a browser with a page of the dashboard does: it reads the event stream
to the end of the round, and loads what the page loads, as often; its pages were opened at different times. A third of
the viewers each has Overview, Cluster and Telemetry open.

The cost is the CPU time of all nodes in rounds with viewers beyond that in rounds without, for each viewer.
"""

from __future__ import annotations

import http.client
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import click

from bench.figures import Figure, Target, machine, report
from bench.loadgen import Phase, Result
from bench.nodes import THREE_NODES, BenchFailed, LoadProcess, Nodes
from isthmus.node.services.history_series import SERIES, Scope
from isthmus.repl.model.errors import IsthmusError

COST: Final = Target(1, "% of a core a viewer", at_least=False)
LATENCY: Final = Target(1.1, "× the p99 without", at_least=False)

TOPOLOGY: Final = THREE_NODES.replace("partitions = 1\n", "partitions = 12\n")
WATCHED: Final = "n1"
CONNECTIONS: Final = 8
ROUND_S: Final = 10.0
SETTLE_S: Final = 1.0
"""Before each round, so that streams have opened or ended."""
TIMEOUT_S: Final = 30.0
READ_BYTES: Final = 65_536

CHARTED: Final = [name for name, series in SERIES.items() if series.scope is Scope.BUCKET_TYPE][:52]
"""As many series as the page Telemetry has in its charts."""


class Page(NamedTuple):
    """The paths that a page loads, and how often."""

    paths: tuple[str, ...]
    every_s: float


PAGES: Final = (
    Page(("/admin/lag", "/admin/sink/nodes", "/admin/fullsync/nodes"), 5.0),
    Page(("/admin/nodes", "/admin/leaders", "/admin/moves", "/admin/partitions"), 5.0),
    Page((f"/admin/history?range=hour&node=cluster&series={','.join(CHARTED)}",), 60.0),
)
"""Overview, Cluster, Telemetry, as their modules in node/dashboard/static/pages say."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--viewers", default=20, show_default=True, type=click.IntRange(1, 60), help="Open pages.")
@click.option(
    "--rounds", default=5, show_default=True, type=click.IntRange(1), help="Rounds with, and as many without."
)
@click.option("--rate", default=300.0, show_default=True, help="PUTs a second.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory of the data; its disk determines the cost of an fsync.",
)
def main(as_json: bool, viewers: int, rounds: int, rate: float, directory: Path | None) -> None:
    """Measure single PUTs with and without viewers, and what a viewer costs the nodes."""
    try:
        where = machine()
        with Nodes(TOPOLOGY, directory) as nodes, LoadProcess(nodes.http[WATCHED]) as load:
            nodes.leader()
            measurement = _Measurement(nodes, load, rate)
            measurement.round(0)  # caches, connections between nodes
            alone: list[_Round] = []
            beside: list[_Round] = []
            for _ in range(rounds):
                alone.append(measurement.round(0))
                beside.append(measurement.round(viewers))
        report("viewers", where, _figures(alone, beside, viewers, rate), as_json, [])
    except (BenchFailed, IsthmusError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from error


class _Round(NamedTuple):
    """One round: what the clients saw, the CPU seconds of all nodes, and what the viewers got."""

    puts: Result
    node_s: float
    lasted_s: float
    events: int
    answers: int


class _Measurement:
    def __init__(self, nodes: Nodes, load: LoadProcess, rate: float) -> None:
        self._nodes = nodes
        self._load = load
        self._rate = rate
        self._first = 0

    def round(self, viewers: int) -> _Round:
        """Fresh keys for ROUND_S, beside so many viewers."""
        count = round(self._rate * ROUND_S)
        phase = Phase("put", self._first, count, 0, CONNECTIONS, 1, self._rate, TIMEOUT_S)
        self._first += count
        admin = self._nodes.admin_urls[WATCHED]
        opened = [_Viewer(admin, PAGES[n % len(PAGES)], n / viewers) for n in range(viewers)]
        results: list[Result] = []
        try:
            for viewer in opened:
                viewer.start()
            time.sleep(SETTLE_S)
            began_s = time.perf_counter()
            cpu = self._nodes.measured(lambda: results.append(self._load.run(phase)))
            lasted_s = time.perf_counter() - began_s
        finally:
            for viewer in opened:
                viewer.stop()
        (puts,) = results
        if puts.failed:
            raise BenchFailed(f"PUTs failed: {puts.failed}")
        node_s = sum(used.total for name, used in cpu.items() if name in self._nodes.http)
        failed = [viewer.failure for viewer in opened if viewer.failure]
        if failed:
            raise BenchFailed(f"{len(failed)} of {viewers} viewers failed: {failed[0]}")
        for number, viewer in enumerate(opened):
            if viewer.events < ROUND_S / 4 or (viewer.first_s < ROUND_S and not viewer.answers):
                raise BenchFailed(f"viewer {number} got {viewer.events} events and {viewer.answers} answers")
        events, answers = sum(each.events for each in opened), sum(each.answers for each in opened)
        return _Round(puts, node_s, lasted_s, events, answers)


class _Viewer:
    """A page that is open: one thread reads the stream, another loads again and again."""

    def __init__(self, url: str, page: Page, place_in_turn: float) -> None:
        """`place_in_turn`: the share of `page.every_s` after which the page loads first."""
        address = urlsplit(url)
        assert address.hostname is not None
        self._host, self._port = address.hostname, address.port
        self._page = page
        self.first_s = place_in_turn * page.every_s
        self._stopping = threading.Event()
        self._stream = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._load)]
        self.events = 0
        self.answers = 0
        self.failure = ""

    def start(self) -> None:
        """Open the page."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Close it."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _read(self) -> None:
        try:
            self._stream.request("GET", "/admin/live")
            answer = self._stream.getresponse()
            if answer.status != http.client.OK:
                self.failure = f"/admin/live: {answer.status}"
                return
            rest = b""
            while not self._stopping.is_set():  # a sample comes each 2 s
                read = answer.read1(READ_BYTES)
                if not read:
                    self.failure = "/admin/live: the stream ended"
                    return
                *lines, rest = (rest + read).split(b"\n")
                self.events += sum(line.startswith(b"event: ") for line in lines)
        except (OSError, http.client.HTTPException) as error:
            self.failure = f"/admin/live: {error or type(error).__name__}"
        finally:
            self._stream.close()

    def _load(self) -> None:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        wait_s = self.first_s
        path = ""
        try:
            while not self._stopping.wait(wait_s):
                for path in self._page.paths:
                    connection.request("GET", path)
                    answer = connection.getresponse()
                    answer.read()
                    if answer.status != http.client.OK:
                        self.failure = f"{path[:60]}: {answer.status}"
                        return
                    self.answers += 1
                wait_s = self._page.every_s
        except (OSError, http.client.HTTPException) as error:
            self.failure = f"{path[:60]}: {error or type(error).__name__}"
        finally:
            connection.close()


def _figures(alone: list[_Round], beside: list[_Round], viewers: int, rate: float) -> list[Figure]:
    found = []
    for work, rounds in (("without viewers", alone), (f"beside {viewers} viewers", beside)):
        lasted_s = sum(each.lasted_s for each in rounds)
        found.append(
            Figure(
                f"PUT at {rate:,.0f}/s, {work}",
                "fresh keys",
                sum(each.puts.objects for each in rounds),
                lasted_s,
                values={
                    "p50_ms": statistics.median(each.puts.p50_ms for each in rounds),
                    "p99_ms": statistics.median(each.puts.p99_ms for each in rounds),
                    "max_ms": max(each.puts.max_ms for each in rounds),
                    "nodes_percent_of_a_core": 100 * sum(each.node_s for each in rounds) / lasted_s,
                },
            )
        )
    without, with_viewers = (figure.values for figure in found)
    found[1].target = LATENCY
    found[1].measured = with_viewers["p99_ms"] / without["p99_ms"]
    more = with_viewers["nodes_percent_of_a_core"] - without["nodes_percent_of_a_core"]
    values = {
        "events_per_s": sum(each.events for each in beside) / found[1].seconds,
        "answers_per_s": sum(each.answers for each in beside) / found[1].seconds,
    }
    cost = Figure(f"CPU of all nodes for each of {viewers} viewers", "", values=values, target=COST)
    cost.measured = more / viewers
    return [*found, cost]


if __name__ == "__main__":
    main()
