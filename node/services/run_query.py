"""Runs of Spark jobs in the directories of all nodes (`reconcile.runs_dir`).

The documents are small, but the directory is often on another machine's disk, which may hang: one thread at a time
reads it, a daemon, so that neither the event loop nor the end of the process waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from isthmus.aae.run_listing import RunKind, list_runs, show_run
from isthmus.node.services.cluster_query import EmptyBody, JsonBody, Query
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import NotReady
from isthmus.repl.model.ports import TimeSource

LIST_METHOD: Final = "reconcile-runs"
SHOW_METHOD: Final = "reconcile-run"

READ_S: Final = 1.5
"""How long a node may read, below the time-out of a query: some hundred small files take some 50 ms."""

FRESH_MS: Final = 2_000
"""Age up to which a listing answers again: several viewers cost as much as one."""

R = TypeVar("R")


class NodeRuns(msgspec.Struct, frozen=True):
    """The runs that one node sees. `directory` None: its file names none, and the rest is void."""

    directory: str | None
    runs: list[dict[str, Any]] = []
    left_out: int = 0
    cut: bool = False


class ShowRun(msgspec.Struct, frozen=True):
    """One run."""

    kind: RunKind
    run: str


RUNS: Final[Query[None, NodeRuns]] = Query(LIST_METHOD, EmptyBody(), JsonBody(LIST_METHOD, NodeRuns))
RUN: Final[Query[ShowRun, dict[str, Any] | None]] = Query(
    SHOW_METHOD, JsonBody(SHOW_METHOD, ShowRun), JsonBody(SHOW_METHOD, dict[str, Any] | None)
)
"""The answer: the run as `run_listing.show_run` shows it; None if this node has none of that name."""


class RunReader:
    """Reads this node's directory of runs, off the event loop."""

    def __init__(self, directory: Path | None, time: TimeSource) -> None:
        self.directory = directory
        self._time = time
        self._reading: asyncio.Future[Any] | None = None
        """The newest reading; one that hangs is never cancelled, and no other begins beside it."""
        self._newest: tuple[int, NodeRuns] | None = None

    async def runs(self) -> NodeRuns:
        """The runs, at most FRESH_MS old. Raises LocalFault, NotReady."""
        directory = self.directory
        if directory is None:
            return NodeRuns(None)
        if (fresh := self._fresh()) is not None:
            return fresh
        try:
            async with asyncio.timeout(READ_S):
                await self._idle()
                if (fresh := self._fresh()) is not None:  # read for another viewer meanwhile
                    return fresh
                now_ms = self._time.wall_ms()
                found = await self._begin(lambda: list_runs(directory, now_ms))
        except TimeoutError as error:
            raise _slow(directory) from error
        answer = NodeRuns(str(directory), found.runs, found.left_out, found.cut)
        self._newest = now_ms, answer
        return answer

    def _fresh(self) -> NodeRuns | None:
        """The newest listing; None: there is none that is fresh."""
        newest = self._newest
        return newest[1] if newest is not None and 0 <= self._time.wall_ms() - newest[0] < FRESH_MS else None

    async def run(self, kind: RunKind, run_id: str) -> dict[str, Any] | None:
        """One run; None if there is none. Raises NotReady."""
        directory, now_ms = self.directory, self._time.wall_ms()
        if directory is None:
            return None
        try:
            async with asyncio.timeout(READ_S):
                await self._idle()
                return await self._begin(lambda: show_run(directory, kind, run_id, now_ms))
        except TimeoutError as error:
            raise _slow(directory) from error

    async def _idle(self) -> None:
        """Wait until no reading is under way."""
        while self._reading is not None and not self._reading.done():
            await asyncio.wait([self._reading])

    async def _begin(self, call: Callable[[], R]) -> R:
        self._reading = reading = in_daemon_thread(call)
        return await asyncio.shield(reading)


def _slow(directory: Path) -> NotReady:
    return NotReady(f"{directory} (reconcile.runs_dir) could not be read within {READ_S} s")


def in_daemon_thread(call: Callable[[], R]) -> asyncio.Future[R]:
    """Call in a new thread, for which the end of the process does not wait."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()

    def finish(result: R | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)
            future.exception()  # nobody waits for it after a time-out

    def work() -> None:
        found: R | None = None
        error: Exception | None = None
        try:
            found = call()
        except Exception as raised:  # noqa: BLE001 -- raised where it is awaited
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(finish, found, error)

    machine().thread(work, "runs")
    return future


class RunsResponder:
    """Answers RUNS."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader

    async def respond(self, _request: None) -> NodeRuns:
        """See Responder."""
        return await self._reader.runs()


class RunResponder:
    """Answers RUN."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader

    async def respond(self, request: ShowRun) -> dict[str, Any] | None:
        """See Responder."""
        return await self._reader.run(request.kind, request.run)


def joined(answers: Mapping[str, NodeRuns | None]) -> list[dict[str, Any]]:
    """The runs of all nodes, the newest first, each once, with the `nodes` that see it. Directories that are shared
    have the same runs: of the same kind and name, begun at the same moment."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for node, answer in answers.items():
        for row in _rows(answer):
            key = (row.get("kind"), row.get("run"), row.get("started_ms"))
            found.setdefault(key, {**row, "nodes": []})["nodes"].append(node)
    return sorted(found.values(), key=_newest_first)


def _rows(answer: NodeRuns | None) -> Iterable[dict[str, Any]]:
    return () if answer is None else answer.runs


def _newest_first(row: Mapping[str, Any]) -> tuple[int, str]:
    started = row.get("started_ms")
    return -started if isinstance(started, int) else 0, str(row.get("run"))
