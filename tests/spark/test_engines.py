"""`spark-submit` and a standalone master with two workers: the same findings as anywhere, whichever process is killed
meanwhile.

The workers' interpreter has no Isthmus: all the code that they run comes from --py-files.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.aae.run_directory import RunDirectory
from tests.spark.engine import REPOSITORY, StandaloneSpark, bare, ended, standalone, submitted, wait_until, worker_zip
from tests.support.reconcile_pairs import TRUTH, ClusterPair, fill, findings_by_key, up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_500)]

APPLICATION = REPOSITORY / "aae" / "reconcile" / "application.py"
EQUAL = 20_000
SMALL_CHUNKS = """\
import sys
from isthmus.aae.reconcile import application, segment_plan
segment_plan.CHUNK_ROWS = 1_000
sys.exit(application.main())
"""
"""The application, with chunks so small that there are several waves of them."""

FOUND = TRUTH | {b"k": ("diverged", "missing", "sink")}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterPair]:
    """The truth among enough equal keys that a rate limit makes a run last."""
    with up(tmp_path_factory.mktemp("pair")) as described:
        found = ClusterPair(described)
        fill(found, EQUAL)
        yield found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for packages and engines."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def engine(place: Path) -> Iterator[StandaloneSpark]:
    """A standalone master with two workers."""
    with standalone(place, bare(place)) as made:
        yield made


class SubmittedRuns:
    """Applications submitted for one pair."""

    def __init__(self, pair: ClusterPair, engine: StandaloneSpark, place: Path, output: Path) -> None:
        self.pair, self.engine, self.output = pair, engine, output
        self._files = worker_zip(place)
        self._python = bare(place)
        self.application = output / "application.py"
        self.application.write_bytes(APPLICATION.read_bytes())

    def begun(self, run_id: str, *more: str) -> subprocess.Popen[str]:
        """A run, under way."""
        arguments = [
            "--py-files", str(self._files), str(self.application), "--left", self.pair.left, "--right", self.pair.right,
            "--dir", str(self.output), "--run-id", run_id, "--settle", "500ms", *more,
        ]  # fmt: skip
        env = {"PYSPARK_PYTHON": str(self._python), "PYTHONPATH": str(REPOSITORY)}
        return submitted(self.engine.master, arguments, self.output, PYSPARK_DRIVER_PYTHON=sys.executable, **env)

    def finished(self, run_id: str, process: subprocess.Popen[str]) -> dict[str, Any]:
        """The summary of a run that has found everything."""
        code, out, err = ended(process)
        assert code == 1, out + err[-4_000:]
        summary: dict[str, Any] = json.loads(out.splitlines()[-1])
        assert summary["exit_code"] == 1
        assert summary == RunDirectory(str(self.output), run_id).read("summary.json")
        assert findings_by_key(self.output, run_id) == FOUND
        assert summary["verdicts"] == {
            "match": EQUAL + 1, "transient": 0, "waiting": 0, "diverged": len(FOUND), "filtered": 0, "unreachable": 0
        }  # fmt: skip
        assert summary["coverage"]["segments"] == 1 << 20
        return summary


@pytest.fixture
def runs(pair: ClusterPair, engine: StandaloneSpark, place: Path, tmp_path: Path) -> SubmittedRuns:
    """Into a directory of this test."""
    return SubmittedRuns(pair, engine, place, tmp_path)


def test_an_executor_that_is_killed_changes_nothing(runs: SubmittedRuns) -> None:
    """Workers have only the zip. One is killed during the run; findings, totals and exit code equal those of an
    undisturbed run."""
    process = runs.begun("killed", "--full", "--rate-limit", "4000")
    work = RunDirectory(str(runs.output), "killed").path / "work"
    try:
        wait_until("an executor works", lambda: any(work.glob("00000/_temporary")), process=process)
        time.sleep(1)
        victims = runs.engine.executors()
        assert victims
        os.kill(victims[0], signal.SIGKILL)
    finally:
        runs.finished("killed", process)


def test_a_driver_that_is_killed_goes_on_under_its_run_id(runs: SubmittedRuns) -> None:
    """A driver is killed after a wave; the same run id does the remaining work only, and the total is complete."""
    directory = RunDirectory(str(runs.output), "resumed")
    runs.application.write_text(SMALL_CHUNKS, encoding="utf-8")
    process = runs.begun("resumed", "--full", "--rate-limit", "3000")
    try:
        first = directory.path / "work" / "00000.json"
        wait_until("a wave is done", first.exists, process=process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    done = {path.name: path.read_bytes() for path in (directory.path / "work").glob("[0-9]*.json")}
    assert directory.read("summary.json") is None
    runs.finished("resumed", runs.begun("resumed", "--full"))
    assert {name: (directory.path / "work" / name).read_bytes() for name in done} == done
    looked = [one.chunk for wave in directory.waves() if wave.look == "first" for one in wave.done]
    assert len(looked) == len(set(looked)) > len(next(iter(directory.waves())).done)


def test_the_wheel_is_enough_for_driver_and_workers(pair: ClusterPair, place: Path, tmp_path: Path) -> None:
    """With the wheel of `make wheel` no interpreter needs an installed Isthmus; the archive contains the application,
    too."""
    subprocess.run(["make", "-s", "wheel"], cwd=REPOSITORY, check=True, capture_output=True, timeout=300)
    python = bare(place)
    application = tmp_path / "reconcile.py"
    application.write_bytes(
        subprocess.run(
            ["unzip", "-p", str(REPOSITORY / "dist" / "isthmus.zip"), "isthmus/aae/reconcile/application.py"],
            check=True, capture_output=True,
        ).stdout
    )  # fmt: skip
    arguments = [
        "--py-files", str(REPOSITORY / "dist" / "isthmus.zip"), str(application),
        "--left", pair.left, "--right", pair.right, "--dir", str(tmp_path), "--run-id", "wheel", "--settle", "500ms",
    ]  # fmt: skip
    env = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "PYTHONPATH": ""}
    code, out, err = ended(submitted("local[2]", arguments, tmp_path, **env))
    assert code == 1, out + err[-4_000:]
    assert json.loads(out.splitlines()[-1])["mode"] == "trees"
    assert findings_by_key(tmp_path, "wheel") == FOUND
    code, out, _ = ended(submitted("local[2]", [*arguments, "--sample", "2"], tmp_path, **env))
    assert code == 2
    assert "a part above 0" in out
