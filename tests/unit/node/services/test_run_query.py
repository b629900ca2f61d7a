"""Reading the directory of runs off the event loop: a disk that hangs is named, and holds one thread."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from isthmus.aae.run_directory import RunDirectory
from isthmus.aae.run_listing import RunKind, RunListing
from isthmus.node.services import run_query
from isthmus.node.services.run_query import FRESH_MS, NodeRuns, RunReader, joined
from isthmus.repl.model.errors import LocalFault, NotReady
from tests.support.waiting import PATIENCE_S, eventually


class SetTime:
    """A wall clock that is set."""

    now = 1_000_000

    def wall_ms(self) -> int:
        """See TimeSource."""
        return self.now


def reader_of(directory: Path | None) -> tuple[RunReader, SetTime]:
    """A reader, and its clock."""
    time: Any = SetTime()
    return RunReader(directory, time), time


async def test_a_node_without_a_directory_has_no_runs() -> None:
    """It reports that, and finds no run by name."""
    reader, _ = reader_of(None)
    assert await reader.runs() == NodeRuns(None)
    assert await reader.run(RunKind.COMPARISON, "one") is None


async def test_a_listing_answers_for_a_while(tmp_path: Path) -> None:
    """Requests of several viewers read once; after that time, or when the clock is set back, it is read again."""
    reader, time = reader_of(tmp_path)
    assert (await reader.runs()).runs == []
    RunDirectory(str(tmp_path), "one").write("run.json", {})
    assert (await reader.runs()).runs == []
    time.now += FRESH_MS
    assert [row["run"] for row in (await reader.runs()).runs] == ["one"]
    RunDirectory(str(tmp_path), "two").write("run.json", {})
    time.now -= 1
    assert len((await reader.runs()).runs) == 2
    shown = await reader.run(RunKind.COMPARISON, "one")
    assert (shown is not None, await reader.run(RunKind.SEED, "one")) == (True, None)


async def test_viewers_that_wait_for_one_reading_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waited uses the result of the reading that it waited for."""
    reader, _ = reader_of(tmp_path)
    begun = []

    def read(directory: Path, _now_ms: int) -> RunListing:
        begun.append(directory)
        threading.Event().wait(0.05)
        return RunListing([], 0, False)

    monkeypatch.setattr(run_query, "list_runs", read)
    await asyncio.gather(*(reader.runs() for _ in range(4)))
    assert len(begun) == 1


async def test_a_directory_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The error of the thread is raised where it is awaited, and the next request reads again."""
    reader, _ = reader_of(tmp_path / "later")
    with pytest.raises(LocalFault, match="later cannot be read"):
        await reader.runs()
    (tmp_path / "later").mkdir()
    assert (await reader.runs()).runs == []


async def test_a_disk_that_hangs_holds_one_thread_and_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests end with the name of the directory; none starts a second thread; when the disk recovers, they are
    answered."""
    go_on, begun = threading.Event(), []

    def hang(directory: Path, _now_ms: int) -> RunListing:
        begun.append(directory)
        go_on.wait(60)
        return RunListing([], 0, cut=False)

    monkeypatch.setattr(run_query, "list_runs", hang)
    monkeypatch.setattr(run_query, "READ_S", 0.05)
    reader, _ = reader_of(tmp_path)
    refused = await asyncio.gather(reader.runs(), reader.run(RunKind.SEED, "x"), reader.runs(), return_exceptions=True)
    assert [type(one) for one in refused] == [NotReady] * 3
    assert f"{tmp_path} (reconcile.runs_dir)" in str(refused[0])
    await eventually(lambda: begun)
    assert len(begun) == 1
    assert sum(thread.name == "runs" for thread in threading.enumerate()) == 1
    go_on.set()
    monkeypatch.setattr(run_query, "READ_S", PATIENCE_S)
    assert (await reader.runs()).runs == []
    assert len(begun) == 2
    while any(thread.name == "runs" for thread in threading.enumerate()):
        await asyncio.sleep(0.01)


def test_a_shared_run_is_listed_once() -> None:
    """It has the nodes that see it; runs of one name in two directories are two, since they began at different times.
    The newest comes first, and unreadable ones last."""

    def row(name: str, started_ms: int | None) -> dict[str, Any]:
        return {"kind": "comparison", "run": name, "started_ms": started_ms}

    answers = {
        "n1": NodeRuns("/shared", [row("may", 5), row("june", 9), row("bad", None)]),
        "n2": NodeRuns("/shared", [row("june", 9), row("may", 6)]),
        "n3": NodeRuns(None),
        "n4": None,
    }
    found = [(one["run"], one["nodes"]) for one in joined(answers)]
    assert found == [("june", ["n1", "n2"]), ("may", ["n2"]), ("may", ["n1"]), ("bad", ["n1"])]
