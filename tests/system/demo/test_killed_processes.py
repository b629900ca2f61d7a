"""kill -9 of any process of the demo, at any moment: every acknowledged write is there, and both clusters end equal.

Real processes: two nodes, two ZooKeepers, the supervisor that starts them again, writes over HTTP.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from isthmus.node.demo.live_view import DemoProgress
from isthmus.node.demo.run import Demo, DemoOptions, run_demo

PROCESSES = ("east-1", "west-1", "zookeeper-east", "zookeeper-west")


class ProcessKiller:
    """A view without output that kills one process at each of the given moments (a share of the replay)."""

    def __init__(self, moments: list[tuple[float, str]]) -> None:
        self._moments = sorted(moments)
        self._last_pid: dict[str, int] = {}
        self.killed: list[str] = []
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)

    def update(self, progress: DemoProgress) -> None:
        if progress.phase != "replay" or not self._moments:
            return
        moment, name = self._moments[0]
        if progress.done < moment * progress.total:
            return
        pid = next((p.pid for p in progress.snapshot.processes if p.name == name), None)
        if pid is None or pid == self._last_pid.get(name):
            return  # not back yet from the last time
        os.kill(pid, signal.SIGKILL)
        self._last_pid[name] = pid
        self._moments.pop(0)
        self.killed.append(name)
        self.lines.append(f"killed {name} ({pid}) at {progress.done} of {progress.total}")

    def close(self) -> None:
        """Nothing to close."""


def repository_of_single_writes(path: Path, count: int) -> Path:
    """A repository whose one commit adds `count` files: each is one acknowledged write that nothing repeats later."""
    subprocess.run(["git", "init", "-q", "-b", "main", str(path)], check=True)
    script = [b"commit refs/heads/main", b"committer a <a@b.example> 0 +0000", b"data 1", b"x"]
    for number in range(count):
        content = b"file %d, %d" % (number, number * number)
        script += [b"M 100644 inline once/%d" % number, b"data %d" % len(content), content]
    subprocess.run(["git", "-C", str(path), "fast-import", "--quiet"], input=b"\n".join(script) + b"\n", check=True)
    return path


def killed_demo(tmp_path: Path, moments: list[tuple[float, str]], once: int, options: dict[str, object]) -> Demo:
    """A demo in which each process is killed at a set moment; asserts all its guarantees."""
    git = repository_of_single_writes(tmp_path / "repo", once)
    view = ProcessKiller(moments)
    own: dict[str, object] = {"git": git, "directory": tmp_path / "clusters", "breaks": False}  # the view kills instead
    demo = run_demo(DemoOptions(**own, **options), view)  # type: ignore[arg-type]
    log = "\n".join(view.lines)
    outcome = demo.outcome
    assert sorted(view.killed) == sorted(name for _, name in moments), log
    assert outcome.equal, f"{outcome.verdict.differences}\n{outcome.outstanding}\n{log}"
    assert outcome.verdict.keys_compared >= once
    assert sum(outcome.retries.values()) > 0, f"no request met a dead node\n{log}"
    for name in PROCESSES:
        assert outcome.restarts[name] >= view.killed.count(name), log
    return demo


@pytest.mark.timeout(150)
def test_each_process_killed_once_and_nothing_is_lost(tmp_path: Path) -> None:
    """Both nodes and both ZooKeepers die once during a short replay; the comparison of every key ends equal."""
    shares = random.Random(11)
    order = list(PROCESSES)
    shares.shuffle(order)
    moments = [(0.1 + 0.2 * number + 0.1 * shares.random(), name) for number, name in enumerate(order)]
    killed_demo(tmp_path, moments, 300, {"rate": 40.0, "seed": 11, "made_count": 300})


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_processes_killed_at_random_again_and_again(tmp_path: Path, seed: int) -> None:
    """A dozen kills at random moments of a replay of a minute, several of them of the same process in a row."""
    chance = random.Random(seed)
    moments = [(chance.uniform(0.02, 0.95), chance.choice(PROCESSES)) for _ in range(12)]
    killed_demo(tmp_path, moments, 2_000, {"rate": 70.0, "seed": seed, "made_count": 2_500})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nodes_killed_at_full_speed(tmp_path: Path) -> None:
    """Both nodes die twice while the replay runs as fast as it can, with writes always under way."""
    moments = [(0.2, "east-1"), (0.4, "west-1"), (0.6, "east-1"), (0.8, "west-1")]
    killed_demo(tmp_path, moments, 3_000, {"rate": 0.0, "seed": 5, "made_count": 6_000})
