"""What nodes log while a test runs: an error that the test did not cause fails it.

Nodes in this process log through structlog, whose processors are watched here, and through the logger `asyncio`, which
has exceptions of callbacks and tasks that nobody retrieved. Nodes that are processes write files, which are read once
the test is over. A test names the errors that it causes by the marker `logs_errors`, as does a module by `pytestmark`:

    @pytest.mark.logs_errors("storage.full", "isr.role")
"""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import structlog
import structlog.testing

MARKER: Final = "logs_errors"

LEVELS: Final = frozenset(("error", "critical"))

NEVER_RETRIEVED: Final = "asyncio"
"""The event under which what the event loop reports is listed: an exception of a callback or a task."""


FAULTS: Final = ("tests/system/", "tests/spark/")
"""Tests of processes that are killed, cut off, or out of disk, at random and together: all errors that have a name of
their own are caused by that. Unforeseen exceptions fail these tests, too."""


class LoggedError(NamedTuple):
    """An error in a node's log. `unforeseen`: nothing but its exception says what went wrong."""

    event: str
    unforeseen: bool
    text: str


def error_in(event: Mapping[str, Any]) -> LoggedError | None:
    """The error that an event tells of; None for any other event."""
    level = event.get("level", event.get("log_level"))
    raised = bool(event.get("exc_info") or event.get("exception"))
    if level not in LEVELS and not raised:
        return None
    name = str(event.get("event"))
    if name == "library.message" and event.get("library") == NEVER_RETRIEVED:
        name = NEVER_RETRIEVED
    told = {key: value for key, value in event.items() if key not in ("exception", "exc_info")}
    why = event.get("exception") or event.get("exc_info") or ""
    return LoggedError(name, raised, f"{told} {why!r:.2000}" if raised else f"{told}")


class LogWatch:
    """Collects the errors of nodes in this process."""

    def __init__(self) -> None:
        self.errors: list[LoggedError] = []

    def step(self, _logger: object, method: str, event: Any) -> Any:
        """A step of structlog's chain."""
        found = error_in({"level": method, **event})
        if found is not None:
            self.errors.append(found)
        return event

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this lasts, errors are collected."""
        configured = structlog.get_config()["processors"]
        structlog.configure(processors=[self.step, *configured])
        _watching.append(self)
        handler = _LoopErrors(self.errors)
        logging.getLogger("asyncio").addHandler(handler)
        try:
            yield
        finally:
            gc.collect()  # a task that nobody awaited tells of its exception when it is freed
            logging.getLogger("asyncio").removeHandler(handler)
            structlog.configure(processors=configured)
            _watching.remove(self)


_watching: Final[list[LogWatch]] = []


@contextmanager
def captured() -> Iterator[list[Any]]:
    """As structlog's `capture_logs`, for a whole test: the events go into the list, and errors are still collected."""
    with structlog.testing.capture_logs() as events:
        try:
            yield events
        finally:
            for watch in _watching:
                watch.errors += [found for event in events if (found := error_in(event)) is not None]


class _LoopErrors(logging.Handler):
    """Collects what the event loop reports."""

    def __init__(self, errors: list[LoggedError]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        why = record.exc_info[1] if record.exc_info else ""
        self._errors.append(LoggedError(NEVER_RETRIEVED, True, f"{record.getMessage()} {why!r}"))


class LogFiles:
    """The logs of nodes that are processes, below one folder: what was added since the last reading."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def errors(self) -> list[LoggedError]:
        """The errors in lines that were added, in JSON; other lines are not a node's."""
        found: list[LoggedError] = []
        for path in sorted(self._folder.rglob("*.log")):
            if path.stem.isdigit() or not path.is_file():  # a file of a log of entries, or of LevelDB
                continue
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                added = file.read()
            self._read[path] = self._read.get(path, 0) + len(added)
            for line in added.splitlines():
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                error = error_in(event) if isinstance(event, dict) else None
                if error is not None:
                    found.append(error._replace(text=f"{path.name}: {error.text}"))
        return found


def allowed_of(item: pytest.Item) -> set[str]:
    """The events that a test names, patterns of the shell among them."""
    named = {str(name) for marker in item.iter_markers(MARKER) for name in marker.args}
    return named | ({"*"} if item.nodeid.startswith(FAULTS) else set())


def unexpected(errors: list[LoggedError], allowed: set[str]) -> list[LoggedError]:
    """Those that `allowed` does not name; a pattern names no unforeseen exception."""

    def named(error: LoggedError) -> bool:
        return error.event in allowed or (
            not error.unforeseen and any(fnmatchcase(error.event, pattern) for pattern in allowed)
        )

    return [each for each in errors if not named(each)]
