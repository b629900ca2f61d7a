"""The demo as `make demo` runs it, shorter: six real nodes, one of them killed and brought back, a ZooKeeper killed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from isthmus.node.demo.live_view import DemoProgress
from isthmus.node.demo.run import DemoOptions, run_demo


class RecordingView:
    """A view that records its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)

    def update(self, progress: DemoProgress) -> None:
        """Progress is not looked at."""

    def close(self) -> None:
        """Nothing to close."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_leader_returns_and_both_clusters_match_the_history(tmp_path: Path) -> None:
    """The output shows leaders that move and replicas that fall out of sync and return; at the end every replica is in
    sync and no key differs on either cluster."""
    git = tmp_path / "repo"
    subprocess.run(["git", "init", "-q", "-b", "main", str(git)], check=True)
    script = b"commit refs/heads/main\ncommitter a <a@b.example> 0 +0000\ndata 1\nx\nM 100644 inline f\ndata 1\nx\n"
    subprocess.run(["git", "-C", str(git), "fast-import", "--quiet"], input=script, check=True)
    view = RecordingView()
    options = DemoOptions(git=git, rate=30.0, seed=4, directory=tmp_path / "clusters", made_count=1_500)
    outcome = run_demo(options, view).outcome
    log = "\n".join(view.lines)
    assert outcome.equal, f"{outcome.verdict.differences}\n{outcome.outstanding}\n{log}"
    assert outcome.in_sync == {"east": "36 of 36", "west": "36 of 36"}, log
    told = [sentence.split()[0] for sentence in outcome.breaks]
    assert told == ["killed", "started", f"{outcome.breaks[0].split()[1]}:", "killed"], log
    assert "the others lead its partitions" in outcome.breaks[1]
    victim = outcome.breaks[0].split()[1]
    assert f"{victim} 0" in log
    assert "24 of 36 replicas in sync" in log
    assert outcome.longest_pause_seconds < 30, log
    assert outcome.retries, "no request met the dead node"
