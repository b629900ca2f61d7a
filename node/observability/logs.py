"""Logs: structured events on standard error, one line each, JSON for machines or text for people.

A line that cannot be written, since the disk is full or its reader has ended, is counted and dropped; the caller never
fails.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from time import monotonic
from typing import Any, Final

import structlog

from isthmus.config.settings import LogSettings
from isthmus.node.observability.events import recent
from isthmus.repl.telemetry import Family, Sample

log = structlog.get_logger(__name__)

LIBRARY_INTERVAL_S: Final = 10.0
"""Least time between two lines of one message of a library, which may repeat it without end."""

LIBRARY_MESSAGES_MAX: Final = 256
"""Messages of libraries that are remembered; with more, some are repeated sooner."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_log_failures_total": Family(
        "Lines that could not be written to standard error when they came.", "lines", "logs and store"
    ),
}
"""Name -> metric definition (see repl.telemetry)."""


LAST_BYTES_MAX: Final = 256_000
"""Characters of the last lines that are kept for support bundles: some thousand lines."""

LINE_KEPT_MAX: Final = 8_000
"""Longest line that is kept whole; of a longer one, such as a traceback, the begin."""


class LineSink:
    """Writes whole lines to standard error, from any thread; never raises. Keeps the last ones."""

    def __init__(self, last_bytes: int = LAST_BYTES_MAX) -> None:
        self._lock = Lock()
        self.failures = 0
        self._last: deque[str] = deque()
        self._last_bytes = last_bytes
        self._kept_bytes = 0

    def last(self) -> list[str]:
        """The last lines, the oldest first."""
        with self._lock:
            return list(self._last)

    def msg(self, line: str) -> None:
        """Write a line; a failure is counted."""
        with self._lock:
            self._last.append(line[:LINE_KEPT_MAX])
            self._kept_bytes += len(self._last[-1])
            while self._kept_bytes > self._last_bytes:
                self._kept_bytes -= len(self._last.popleft())
            try:
                print(line, file=sys.stderr, flush=True)
            except (OSError, ValueError):  # ValueError: the file is closed
                self.failures += 1

    debug = info = warning = error = critical = msg

    def samples(self) -> Iterator[Sample]:
        """Samples for Prometheus."""
        yield "isthmus_log_failures_total", {}, self.failures


lines: Final = LineSink()
"""This process's log."""


class NodeLogger(structlog.make_filtering_bound_logger(logging.DEBUG)):  # type: ignore[misc]
    """The logger of all modules. A suppressed event costs one call; see `set_level`."""


def set_level(level: str) -> None:
    """Log events of `level` and above from now on, also in loggers that exist already."""
    for name, method in vars(structlog.make_filtering_bound_logger(getattr(logging, level.upper()))).items():
        if callable(method) and not name.startswith("__"):
            setattr(NodeLogger, name, method)


class LibraryLines(logging.Handler):
    """Logs the messages of libraries as events (`library.message`), each message of a logger once in
    LIBRARY_INTERVAL_S."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._next_s: dict[tuple[str, str], float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        now_s, key = self._clock(), (record.name, str(record.msg))
        if now_s < self._next_s.get(key, now_s):
            return
        if len(self._next_s) >= LIBRARY_MESSAGES_MAX:
            self._next_s.clear()
        self._next_s[key] = now_s + LIBRARY_INTERVAL_S
        say = log.error if record.levelno >= logging.ERROR else log.warning
        more = {"exc_info": record.exc_info} if record.exc_info else {}
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # its arguments do not fit
            message = str(record.msg)
        say("library.message", library=record.name, message=message, **more)


def configure(settings: LogSettings, node: str) -> None:
    """Set up structlog for this process, with libraries' warnings."""
    as_json = settings.format == "json" or (settings.format == "auto" and not sys.stderr.isatty())

    def named(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """`node` is the node that writes, in events of all threads; another node is `peer`."""
        event["node"] = node
        return event

    shared: list[Any] = [
        named,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        recent.keep,
        structlog.processors.format_exc_info,
    ]
    renderer: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    set_level(settings.level)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=NodeLogger,
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, handlers=[LibraryLines()], force=True)
