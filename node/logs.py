"""Logs are structured events on standard error: one line each, JSON for machines or text for people.

A line that cannot be written, since the disk is full or its reader has gone, is counted and left out: nothing fails
because it cannot be told.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any, Final

import structlog

from config.settings import LogSettings
from repl.telemetry import Sample

HELP: Final[Mapping[str, str]] = {
    "isthmus_log_failures_total": "Lines that could not be written to standard error when they came.",
}
"""Name -> what it counts (see repl.telemetry)."""


class Lines:
    """Writes whole lines to standard error, from any thread; what goes wrong there stays there."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.failures = 0

    def msg(self, line: str) -> None:
        """Write a line; a failure is counted."""
        with self._lock:
            try:
                print(line, file=sys.stderr, flush=True)
            except (OSError, ValueError):  # ValueError: the file is closed
                self.failures += 1

    debug = info = warning = error = critical = msg

    def samples(self) -> Iterator[Sample]:
        """What Prometheus is shown."""
        yield "isthmus_log_failures_total", {}, self.failures


lines: Final = Lines()
"""This process's log."""


def configure(settings: LogSettings, node: str) -> None:
    """Set up structlog for this process, and let libraries' warnings through the same door."""
    level = getattr(logging, settings.level.upper())
    as_json = settings.format == "json" or (settings.format == "auto" and not sys.stderr.isatty())

    def named(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """Events of all threads bear the node's name; those about a node say of which."""
        event.setdefault("node", node)
        return event

    shared: list[Any] = [
        named,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    renderer: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
