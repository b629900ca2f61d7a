"""A new cluster is filled from one that is written to, by a driver that is killed: afterwards both are the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from isthmus.aae.run_directory import SEED, RunDirectory
from isthmus.node.cli.admin_client import AdminClient
from tests.spark.engine import environment
from tests.support.reconcile_pairs import up

TOPOLOGY = """
[clusters.east.replication]
factor = 2
partitions = 4
[[clusters.east.nodes]]
name = "east-1"
[[clusters.east.nodes]]
name = "east-2"
[[clusters.east.queues]]
name = "to-west"
[clusters.west.replication]
partitions = 3
[[clusters.west.nodes]]
name = "west-1"
[[clusters.west.sink.peers]]
cluster = "east"
queue = "to-west"
"""

KEYS = 4_000

PATIENCE_S = 900.0
"""Timeout of a command whose Spark runs at a low priority: beside other tests it gets a tenth of a processor."""


def put(url: str, keys: list[bytes], values: list[bytes | None]) -> int:
    """Write or delete as a client does; how many were taken."""
    items = [
        [b"default", b"b", key, value, "text/plain", None, None, os.urandom(8).hex()]
        for key, value in zip(keys, values, strict=True)
    ]
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/batch/put", msgpack.packb(items)), timeout=60
    ) as response:
        return sum(one[0] in (204, 404) for one in msgpack.unpackb(response.read()))


class Writer(threading.Thread):
    """Writes, overwrites and deletes keys until it is stopped."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._over = threading.Event()
        self.written = 0

    def run(self) -> None:
        """Ten batches a second."""
        chance = random.Random(7)
        while not self._over.wait(0.1):
            numbers = chance.sample(range(KEYS + KEYS // 4), 10)
            values = [None if chance.random() < 0.3 else os.urandom(20) for _ in numbers]
            self.written += put(self._url, [b"k%05d" % n for n in numbers], values)

    def end(self) -> None:
        """Stop writing."""
        self._over.set()
        self.join()


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """East with objects and tombstones and without the queue that west fetches from; west empty."""
    with up(tmp_path, TOPOLOGY) as described:
        east = described["clusters"]["east"]["nodes"][0]
        AdminClient(east["admin"]).post("/admin/queues/to-west/delist", {"by": "test"})
        for start in range(0, KEYS, 500):
            numbers = range(start, start + 500)
            values = [None if n % 10 == 0 else b"first" for n in numbers]
            assert put(east["http"], [b"k%05d" % n for n in numbers], values) == 500
        yield described["clusters"]


class Commands:
    """`isthmus reconcile ...` commands, each in a group of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, stderr: int | None = None) -> subprocess.Popen[bytes]:
        """A command, under way."""
        process = subprocess.Popen(
            [sys.executable, "-m", "isthmus.node.cli.main", "reconcile", *words, "--master", "local[2]", "-o", "json"],
            env=environment(), cwd=self._directory, start_new_session=True, stdout=subprocess.PIPE, stderr=stderr,
        )  # fmt: skip
        self._started.append(process)
        return process

    def kill(self) -> None:
        """Kill all that still run."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    """Commands in this test's directory; none outlives the test."""
    made = Commands(tmp_path)
    yield made
    made.kill()


@pytest.mark.slow
@pytest.mark.timeout(3_000)
def test_a_seed_under_writes_with_a_killed_driver_loses_nothing(
    clusters: dict[str, Any], commands: Commands, tmp_path: Path
) -> None:
    """The driver is killed with SIGKILL during the copy while clients write and delete. The same run id does the rest,
    hands over and finds both clusters equal; so does a full comparison after the writes. A further call does nothing,
    and another seed into a target that is no longer empty is refused before Spark starts."""
    east, west = (clusters[name]["nodes"][0] for name in ("east", "west"))
    directory = RunDirectory(str(tmp_path / "runs"), "fill", SEED)
    words = [
        "seed", "--source", east["http"], "--target", west["http"], "--queue", "to-west", "--admin", east["admin"],
        "--dir", str(tmp_path / "runs"), "--settle", "3s",
    ]  # fmt: skip
    writer = Writer(east["http"])
    writer.start()
    try:
        first = commands.start(*words, "--run-id", "fill", "--rate", "200")
        deadline = time.monotonic() + PATIENCE_S
        while not list((directory.path / "work").glob("*.json")):
            assert first.poll() is None
            assert time.monotonic() < deadline, "never: a wave is done"
            time.sleep(0.05)
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
        assert directory.read("summary.json") is None
        held = AdminClient(east["admin"]).get("/admin/queues")["queues"]
        assert [(one["name"], one["serving"]) for one in held] == [("to-west", "suspended")]
        done_before = {one["chunk"] for one in (directory.read("work/00000.json") or {})["done"]}
        second = commands.start(*words, "--run-id", "fill")
        told = json.loads(second.communicate(timeout=PATIENCE_S)[0])
        assert (second.returncode, told["outcome"], told["queue_state"]) == (0, "equal", "handed over"), told
    finally:
        writer.end()
    later = [json.loads(path.read_text())["done"] for path in sorted((directory.path / "work").glob("*.json"))[1:]]
    assert done_before.isdisjoint(one["chunk"] for wave in later for one in wave)
    assert told["objects"] >= KEYS
    assert writer.written > 0
    full = commands.start(
        "run", "--left", east["http"], "--right", west["http"], "--dir", str(tmp_path / "runs"),
        "--run-id", "proof", "--full", "--settle", "5s",
    )  # fmt: skip
    found = json.loads(full.communicate(timeout=PATIENCE_S)[0])
    assert (full.returncode, found["outcome"]) == (0, "equal"), found
    assert found["keys"] >= KEYS
    again = commands.start(*words, "--run-id", "fill")
    assert json.loads(again.communicate(timeout=PATIENCE_S)[0])["at_ms"] == told["at_ms"]
    refused = commands.start(*words, "--run-id", "other", stderr=subprocess.PIPE)
    assert "--into-nonempty" in json.loads(refused.communicate(timeout=100)[1])["error"]
    assert refused.returncode == 2
