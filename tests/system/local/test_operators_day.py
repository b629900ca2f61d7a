"""An operator's day on two clusters of real nodes: a lag alarm, its cause, the remedy and the proof, by commands alone.

Each test breaks replication in a realistic way (a forgotten suspension, a cut link), and follows the text output of
`isthmus status` and `isthmus explain`: it must name the cause with its node or queue, and the remedy that it prints is
run as printed. The topology is that of `tests.system.fullsync.clusters`, with a proxy on the way from west's sinks to
east's nodes.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from isthmus.node.local import supervisor_client
from tests.system.faults.proxy import Proxy
from tests.system.fullsync.clusters import FULLSYNC, Clusters, topology

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PROXY_HOST: Final = "127.0.0.77"
"""The address at which west finds east's nodes, with their own ports."""

UNTOUCHED: Final = b"\0no connection begins with this\0"
"""The proxy passes everything on unchanged."""

ALARM_S: Final = 90.0
"""How long the alarm may take to come: the limit of `isthmus check lag` is 30 s."""

CALM_S: Final = 90.0

FIRST_PEER: Final = '[[clusters.west.sink.peers]]\ncluster = "east"\nqueue = "to-west"\n'


@dataclass
class Printed:
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str


class Operator:
    """A person at a terminal of their own, with a context of both clusters."""

    def __init__(self, directory: Path, clusters: Clusters) -> None:
        self.clusters = clusters
        self._variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ISTHMUS_")},
            "ISTHMUS_CONTEXTS": str(directory / "contexts.toml"),
            "USER": "olga",
        }
        for cluster in ("east", "west"):
            admins = ",".join(row["admin"] for name, row in clusters.nodes.items() if name.startswith(cluster))
            self.done(f"context add pair --cluster {cluster} --admin {admins}")
        self.done("context use pair --cluster east")

    def types(self, line: str) -> Printed:
        """Run `isthmus LINE`."""
        ran = subprocess.run(
            [sys.executable, "-m", "isthmus.node.cli.main", *shlex.split(line)],
            cwd=supervisor_client.PACKAGE_ROOT, env=self._variables, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        return Printed(ran.returncode, ran.stdout, ran.stderr)

    def done(self, line: str) -> str:
        """The output of a command that must succeed."""
        ran = self.types(line)
        assert ran.code == 0, (line, ran)
        return ran.out

    def sees(self, line: str, right: Callable[[Printed], object], what: str, seconds: float) -> str:
        """The output of a command once it is `right`; it is typed again until then."""
        deadline = time.monotonic() + seconds
        while not right(ran := self.types(line)):
            assert time.monotonic() < deadline, f"{what}: {line}: {ran}"
            time.sleep(1)
        return ran.out

    def writes(self, what: str, count: int = 24) -> list[str]:
        """Keys that east acknowledged, in all its partitions."""
        keys = [f"{what}-{number}" for number in range(count)]
        for number, key in enumerate(keys):
            self.clusters.put("east", "towns", key, f"value of {key}", node=1 + number % 3)
        return keys

    def alarm(self, *told: str) -> str:
        """The status screen once it has the alarm of a lag, and these patterns."""
        probe = self.sees("check lag", lambda ran: ran.code in (1, 2), "the alarm comes", ALARM_S)
        assert re.match(r"(LAG )?(WARNING|CRITICAL)", probe), probe
        assert "to-west" in probe
        lag = r"^! east: queue to-west, bucket type default: .* behind, keys that wait: \d+"

        def shows(ran: Printed) -> bool:
            return ran.code == 1 and all(re.search(each, ran.out, re.M) for each in (lag, *told))

        return self.sees("status", shows, f"the alarm, and {told}", CALM_S)

    def explains_one_that_waits(self, keys: list[str]) -> str:
        """The output of `isthmus explain` for the first key that is missing in west."""
        late = next(key for key in keys if self.clusters.read("west", "towns", key) is None)
        return self.done(f"explain towns {late}")

    def runs_what_ends_it(self, screen: str) -> None:
        """Run the only command that the screen names to end an act, as printed, at the cluster that it names."""
        found = re.findall(r"\(to end it, at (\S+): isthmus (.*)\)$", screen, re.M)
        assert len(found) == 1, screen
        ((cluster, command),) = found
        self.done(f"{command} --cluster {cluster}")

    def proves_equality(self, keys: list[str]) -> None:
        """The lag ends, full-sync proves both sides equal, and status is healthy and shows the time of that proof."""
        self.sees("check lag -w 1s", lambda ran: ran.code == 0, "what waited is sent", CALM_S)
        for cluster in ("east", "west"):
            assert "in-sync" in self.done(f"fullsync run all --wait --cluster {cluster}")
        row = re.compile(r"✓  east → west  to-west  0\.0 ms  0        equal \d[\d.]* \S+ ago$", re.M)
        screen = self.sees("status", lambda ran: ran.code == 0 and row.search(ran.out), "all is well", CALM_S)
        assert "SET BY OPERATORS" not in screen
        assert screen.rstrip().endswith("✓ all is well")
        proven = {
            (row["from"], row["to"]): row["proven_ms"] for row in json.loads(self.done("status -o json"))["links"]
        }
        assert all(proven.values()), proven
        for key in keys:
            assert self.clusters.read("west", "towns", key) == self.clusters.read("east", "towns", key) != None, key  # noqa: E711


class Line:
    """The line between the clusters' machines, for west's sinks; a test can cut and restore it."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._proxy: Proxy | None = None

    def mend(self) -> None:
        """Make it pass everything."""
        self._proxy = Proxy(PROXY_HOST, "127.0.0.1", self._ports, UNTOUCHED)
        self._proxy.__enter__()

    def cut(self) -> None:
        """End its connections and refuse new ones."""
        if self._proxy is not None:
            self._proxy.__exit__(None, None, None)
            self._proxy = None


@dataclass
class Day:
    """Both clusters, the line between them and the operator."""

    operator: Operator
    line: Line
    sources: list[str]
    """URLs of east's nodes as west's sinks have them."""


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    """Two clusters that replicate both ways and were proven equal once."""
    directory = tmp_path_factory.mktemp("day")
    text = topology() + FULLSYNC.format(here="west", there="east", both="false")
    assert FIRST_PEER in text
    text = text.replace(FIRST_PEER, "") + "[clusters.west.sink]\ndiscover = false\n"
    line = None
    try:
        clusters = Clusters(directory, text)
        ports = [urlsplit(row["http"]).port or 0 for name, row in clusters.nodes.items() if name.startswith("east")]
        line = Line(ports)
        line.mend()
        operator = Operator(directory, clusters)
        sources = [f"http://{PROXY_HOST}:{port}" for port in ports]
        for url in sources:
            operator.done(f"sink add-peer {url} to-west --peer-cluster east --cluster west")
        keys = operator.writes("first")
        clusters.put("west", "towns", "from the other side", "value")
        operator.proves_equality(keys)
        line.cut()
        yield Day(operator, line, sources)
    finally:
        if line is not None:
            line.cut()
        supervisor_client.stop(directory)


@pytest.fixture(autouse=True)
def line(day: Day) -> Iterator[None]:
    """The line is intact at the start of each test; its threads end with the test."""
    day.line.mend()
    yield
    day.line.cut()


def test_a_forgotten_suspension_of_the_sinks(day: Day) -> None:
    """An operator forgot a suspension of west's sinks: status at both clusters names the act with who and why, explain
    points to west's sinks, and the command that status prints resolves it."""
    operator = day.operator
    operator.done("sink suspend --by night@shift --reason 'upgrade of the switch' --cluster west")
    keys = operator.writes("night", 60)
    screen = operator.alarm(
        r"east → west: at west \(2 nodes\): suspended: by night@shift: upgrade of the switch",
        r"^! west: sink: fetches suspended, by night@shift, .*: upgrade of the switch \(",
    )
    told = operator.explains_one_that_waits(keys)
    assert re.search(r"^queue to-west: (waiting|not-read).*no node of west asks for changes here", told, re.M)
    assert "next: queue to-west: a sink must fetch: isthmus sink list at cluster west shows why none does" in told
    listed = operator.done("sink list --cluster west")
    assert "night@shift: upgrade of the switch" in listed
    operator.runs_what_ends_it(screen)
    operator.proves_equality(keys)


def test_a_queue_that_was_suspended_on_one_node(day: Day) -> None:
    """The queue is suspended on east-2 alone: status names node, queue, who and why; explain of a key that waits there
    names the command; the command that status prints ends it on that node."""
    operator = day.operator
    operator.done("queue suspend to-west --node east-2 --by moving@racks --reason 'rack 7 moves'")
    keys = operator.writes("rack", 60)
    screen = operator.alarm(
        r"east → west: node east-2: serving suspended: rack 7 moves",
        r"^! east: queue to-west: serving suspended on east-2, by moving@racks, .*rack 7 moves \(",
    )
    told = operator.explains_one_that_waits(keys)
    assert "led by east-2" in told
    assert "serving is suspended by moving@racks: rack 7 moves" in told
    assert "next: queue to-west: isthmus queue resume to-west" in told
    operator.runs_what_ends_it(screen)
    operator.proves_equality(keys)


def test_a_cut_line_between_the_clusters(day: Day) -> None:
    """West's sinks reach no node of east: status names the nodes that fail and the address that they do not reach. The
    operator suspends the sinks while the line is repaired, verifies the repair with `sink check`, resumes, and proves
    equality."""
    operator = day.operator
    day.line.cut()
    keys = operator.writes("cut", 60)
    operator.alarm(
        rf"^  east → west: at west \(2 nodes\): failing.*{re.escape(PROXY_HOST)}",
        r"Connection refused",
    )
    told = operator.explains_one_that_waits(keys)
    assert "isthmus sink list at cluster west shows why none does" in told
    assert operator.types(f"sink check {day.sources[0]} to-west --cluster west").code != 0
    operator.done("sink suspend --reason 'line to east is down, ticket 4711' --cluster west")
    held = operator.types("status")
    assert re.search(r"^! west: sink: fetches suspended, by olga@.*ticket 4711 \(", held.out, re.M), held.out
    day.line.mend()
    operator.done(f"sink check {day.sources[0]} to-west --cluster west")
    operator.runs_what_ends_it(held.out)
    operator.proves_equality(keys)
