"""Histories that a demo replays, directories that it refuses, and its output."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.demo import run
from isthmus.node.demo.history import GitHistory, HistoryFault, MadeHistory
from isthmus.node.demo.live_view import DemoProgress, PlainView
from isthmus.node.demo.outcome import DemoOutcome
from isthmus.node.demo.run import Demo, DemoOptions, choose_histories, curl_lines, dashboard_lines, run_demo
from isthmus.node.demo.verify import VerifyResult
from isthmus.node.demo.watch import ClusterSnapshot, DemoSnapshot
from isthmus.node.local.clusters import LocalClusters
from isthmus.repl.model.errors import LocalFault


class RecordingView:
    """A view that records its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)

    def update(self, progress: DemoProgress) -> None:
        self.lines.append(str(progress))

    def close(self) -> None:
        """Nothing to close."""


def repository(path: Path, files: int) -> Path:
    subprocess.run(["git", "init", "-q", "-b", "main", str(path)], check=True)
    script = [b"commit refs/heads/main", b"committer a <a@b.example> 0 +0000", b"data 1", b"x"]
    for number in range(files):
        script += [b"M 100644 inline %d" % number, b"data 1", b"x"]
    subprocess.run(["git", "-C", str(path), "fast-import", "--quiet"], input=b"\n".join(script) + b"\n", check=True)
    return path


def test_a_short_repository_is_followed_by_a_made_history(tmp_path: Path) -> None:
    """Below the least number of changes both are replayed, in different buckets, and the seed is shown."""
    view = RecordingView()
    histories = choose_histories(DemoOptions(git=repository(tmp_path / "r", 3), seed=17), view)
    assert [type(history) for history in histories] == [GitHistory, MadeHistory]
    assert len({history.bucket for history in histories}) == 2
    assert len(histories[1].operations) == run.MADE_COUNT
    assert any("--seed 17" in line for line in view.lines)


def test_a_long_repository_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With enough changes nothing is made up."""
    monkeypatch.setattr(run, "CHANGES_MIN", 3)
    (history,) = choose_histories(DemoOptions(git=repository(tmp_path / "r", 3)), RecordingView())
    assert isinstance(history, GitHistory)


def test_without_git_a_made_history_serves_but_not_for_a_named_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without git the demo uses a generated history with a seed of its own; a repository named by the user must be
    readable."""
    monkeypatch.setenv("PATH", str(tmp_path))
    view = RecordingView()
    (history,) = choose_histories(DemoOptions(), view)
    assert isinstance(history, MadeHistory)
    assert any("no git history" in line for line in view.lines)
    with pytest.raises(HistoryFault, match="git is not installed"):
        choose_histories(DemoOptions(git=tmp_path), view)


def test_a_directory_that_holds_anything_is_refused(tmp_path: Path) -> None:
    """The demo starts from an empty directory: leftovers would look like differences."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").touch()
    options = DemoOptions(git=repository(tmp_path / "r", 1), directory=tmp_path / "data")
    with pytest.raises(LocalFault, match="not empty"):
        run_demo(options, RecordingView())


def test_started_clusters_are_stopped_although_the_output_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C at `isthmus demo | tee log` ends tee, too: clusters are still stopped and their directory is removed."""
    done: list[str] = []

    class FailingView(RecordingView):
        def note(self, line: str) -> None:
            if line.startswith(("interrupted", "stopp")):
                raise BrokenPipeError
            super().note(line)

    class Interrupted(LocalClusters):
        def up(self, *_: object) -> dict[str, Any]:
            self.directory.joinpath("data").touch()
            raise KeyboardInterrupt

        def down(self) -> bool:
            done.append(str(self.directory))
            return True

    monkeypatch.setattr(run, "LocalClusters", Interrupted)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        run_demo(DemoOptions(git=repository(tmp_path / "r", 1)), FailingView())
    assert len(done) == 1
    assert not Path(done[0]).exists()


def test_an_outcome_is_equal_only_without_differences_and_outstanding_changes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A difference, or changes that never arrived, make the outcome unequal; the JSON carries both."""
    assert DemoOutcome(verdict=VerifyResult(keys_compared=1)).equal
    assert not DemoOutcome().equal, "nothing is compared yet"
    assert not DemoOutcome(outstanding="east's queue has 3 changes outstanding", verdict=VerifyResult(1)).equal
    verdict = VerifyResult(keys_compared=1)
    verdict.differs("west", b"git", b"a\xff\n", "is missing")
    different = DemoOutcome(puts=2, deletes=1, verdict=verdict)
    assert not different.equal
    different.show("json", {"directory": "d"})
    shown = json.loads(capsys.readouterr().out)
    assert shown["operations"] == 3
    assert shown["differences"] == ["west: git/'a\\\\xff\\n': is missing"]
    different.show("table", {})
    assert "differences" in capsys.readouterr().out


def test_kept_clusters_are_explained_with_encoded_paths(tmp_path: Path) -> None:
    """The printed addresses and commands name both clusters, encode the key, and say how to stop."""
    clusters = {
        name: {"nodes": [{"http": f"http://{name}:1", "admin": f"http://{name}:2"}]} for name in ("east", "west")
    }
    demo = Demo(DemoOutcome(), tmp_path / "with space", clusters, (b"git", b"docs/a b.md"))
    assert [line.split()[0] for line in dashboard_lines(demo)] == ["http://east:2/", "http://west:2/"]
    lines = curl_lines(demo)
    assert any("'http://east:1/buckets/git/keys/docs%2Fa%20b.md'" in line for line in lines)
    assert any("'http://west:1/" in line for line in lines)
    assert f"local down --dir '{tmp_path}/with space'" in lines[-1]


def test_plain_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal many updates make one line, with progress, queues and retries."""
    import sys

    view = PlainView(sys.stdout)
    sight = DemoSnapshot(0, clusters=(ClusterSnapshot("east", queue="to-west", waiting=1200),))
    for done in range(50):
        view.update(DemoProgress("replay", "operations", done, 100, 1.0, 3, sight))
    (line,) = capsys.readouterr().out.splitlines()
    assert "replay 0 of 100 operations" in line
    assert "east/to-west: 1,200 waiting, unknown in flight" in line
    assert "retries 3" in line
