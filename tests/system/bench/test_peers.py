"""The comparison with other systems as `make bench-peers` runs it, with one node a side and little load."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import psutil
import pytest

CHECKOUT: Final = Path(__file__).parents[3]
UP_TIMEOUT_S: Final = 120.0


def started(directory: Path) -> subprocess.Popen[str]:
    """The benchmark with its data in `directory`."""
    options = ["--only", "isthmus-1", "--seconds", "0.3", "--rounds", "1", "--json", "--dir", str(directory)]
    return subprocess.Popen(
        [sys.executable, "-m", "bench.peers", *options],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def servers_in(directory: Path) -> list[str]:
    """Command lines of processes that name the directory, the benchmark itself left out."""
    lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [" ".join(line) for line in lines if "bench.peers" not in line and str(directory) in " ".join(line)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_clusters_are_measured_and_nothing_is_left(tmp_path: Path) -> None:
    """Every load writes objects and has the CPU seconds of both clusters; servers end, and their data is removed."""
    bench = started(tmp_path)
    printed, errors = bench.communicate()
    assert bench.returncode == 0, errors
    document = json.loads(printed)
    assert document["clients"] == "leader"
    figures = {figure["work"]: figure for figure in document["figures"]}
    loads = ("PUT, 32 clients", "PUT, 128 clients", "PUT, 512 clients", "batches of 100, 8 clients")
    assert list(figures) == [f"Isthmus 1 + 1, 12 partitions: {load}" for load in loads]
    for figure in figures.values():
        assert figure["objects"] > 0
        assert not figure["failed"]
        assert figure["values"]["requests_forwarded"] == 0
        assert figure["cpu"].keys() == {"cluster A", "cluster B", "ZooKeeper", "load generator"}
        assert figure["cpu"]["cluster A"]["total"] > 0
        both = figure["cpu_per_100k"]["cluster A"]["total"] + figure["cpu_per_100k"]["cluster B"]["total"]
        assert figure["measured"] == pytest.approx(both, abs=0.01)
    assert not servers_in(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_terminated_comparison_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM while the nodes run: they end, and their data is removed."""
    bench = started(tmp_path)
    deadline_s = time.monotonic() + UP_TIMEOUT_S
    while not any("node run" in line for line in servers_in(tmp_path)):
        assert bench.poll() is None, bench.stderr
        assert time.monotonic() < deadline_s, "no node came up"
        time.sleep(0.05)
    bench.send_signal(signal.SIGTERM)
    _, errors = bench.communicate()
    assert bench.returncode == 128 + signal.SIGTERM, errors
    assert not servers_in(tmp_path)
    assert not list(tmp_path.iterdir())
