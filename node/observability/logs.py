"""Logs: structured events on standard error, one line each, JSON for machines or text for people. The output
of libraries and the interpreter comes as events, too.

A line that cannot be written, since the disk is full or its reader has ended, is counted and dropped. An event that
cannot be made a line, whatever its fields are, is replaced by a short line that says so (`logging.line_failed`). The
caller never fails.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, TextIO

import structlog

from isthmus.config.settings import LogSettings
from isthmus.node.observability.events import SUBJECT, recent
from isthmus.repl.log_limit import LogLimit
from isthmus.repl.machine import MemoryLock, machine, monotonic_s, one_per_process, utc_now
from isthmus.repl.telemetry import Family, Sample

log = structlog.get_logger(__name__)

BURST_SUBJECT: Final = 10
"""Lines of one event about one subject, such as a partition or a peer, in `repl.log_limit.INTERVAL_S`: a link that
comes and goes stays readable. Events whose cause may last log less often by a limit of their own."""

BURST_EVENT: Final = 1_000
"""Lines of one event, whatever its subjects, in this time: an election logs one line for each partition."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_log_failures_total": Family(
        "Lines that could not be written to standard error when they came.", "lines", "logs and store"
    ),
    "isthmus_log_lines_replaced_total": Family(
        "Events that could not be made a line, or only a too long one, and were replaced by a short line "
        "(`logging.line_failed`, `logging.line_cut`).",
        "lines",
        "logs and store",
    ),
    "isthmus_log_suppressed_total": Family(
        "Lines that were not written because the same event was logged too often; the next line of the event has their "
        "number (`suppressed`).",
        "lines",
        "logs and store",
    ),
}
"""Name -> metric definition (see repl.telemetry)."""


LAST_BYTES_MAX: Final = 256_000
"""Characters of the last lines that are kept for support bundles: some thousand lines."""

LINE_KEPT_MAX: Final = 8_000
"""Longest line that is kept whole; of a longer one, such as a traceback, the begin."""


LINE_MAX: Final = 256_000
"""Longest line that is written whole: a traceback is shorter by far, and readers of logs refuse longer ones."""


class LineSink:
    """Writes whole lines to standard error, from any thread; never raises. Keeps the last ones."""

    def __init__(self, last_bytes: int = LAST_BYTES_MAX) -> None:
        self._lock = machine().lock()
        self.failures = 0
        self.suppressed = 0
        """Lines that RepeatLimit held back."""
        self.replaced = 0
        """Events that became a short line."""
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
            except Exception:  # noqa: BLE001 -- no space, no reader, or the file is closed: the caller goes on
                self.failures += 1

    debug = info = warning = error = critical = msg

    def samples(self) -> Iterator[Sample]:
        """Samples for Prometheus."""
        yield "isthmus_log_failures_total", {}, self.failures
        yield "isthmus_log_suppressed_total", {}, self.suppressed
        yield "isthmus_log_lines_replaced_total", {}, self.replaced


lines: Final = one_per_process(LineSink)
"""This process's log."""


class NodeLogger(structlog.make_filtering_bound_logger(logging.DEBUG)):  # type: ignore[misc]
    """The logger of all modules. A suppressed event costs one call; see `set_level`."""


def set_level(level: str) -> None:
    """Log events of `level` and above from now on, also in loggers that exist already."""
    for name, method in vars(structlog.make_filtering_bound_logger(getattr(logging, level.upper()))).items():
        if callable(method) and not name.startswith("__"):
            setattr(NodeLogger, name, method)


class RepeatLimit:
    """A step of the log's chain: drops lines that repeat, and adds their number to the next one (`suppressed`).

    Debug events pass: who turns them on wants them all.
    """

    def __init__(self, sink: LineSink, clock: Callable[[], float] = monotonic_s) -> None:
        self._sink = sink
        self._subjects = one_per_process(lambda: LogLimit(clock, BURST_SUBJECT))
        self._events = one_per_process(lambda: LogLimit(clock, BURST_EVENT))

    def __call__(self, _logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """See structlog's processors. Raises DropEvent."""
        if method == "debug":
            return event
        name = str(event.get("event"))
        before = self._subjects.due((name, *(str(event.get(field)) for field in SUBJECT)))
        of_event = None if before is None else self._events.due(name)
        if before is None or of_event is None:
            with _counting:
                self._sink.suppressed += 1
            raise structlog.DropEvent
        if before + of_event:
            event["suppressed"] = event.get("suppressed", 0) + before + of_event
        return event


_counting: Final = MemoryLock()


class LogChain:
    """All steps from an event to its line, as the one processor of structlog: whatever a step raises, no caller does.

    A step is one of structlog's processors; the last one makes the line."""

    def __init__(self, steps: Sequence[Callable[[Any, str, Any], Any]], sink: LineSink, node: str) -> None:
        self._steps = steps
        self._sink = sink
        self._node = node
        self._limit = one_per_process(lambda: LogLimit(burst=BURST_SUBJECT))
        """Of short lines, which no other step limits."""

    def __call__(self, logger: Any, method: str, event: structlog.typing.EventDict) -> str:
        """The line of an event. Raises DropEvent."""
        found: Any = event
        name = event.get("event")
        for step in self._steps:
            try:
                found = step(logger, method, found)
            except structlog.DropEvent:
                raise
            except Exception as error:  # noqa: BLE001 -- a line must not end what it tells of
                return self._short(
                    method, "logging.line_failed", name, f"{type(error).__name__} in {_name_of(step)}", ""
                )
        line = str(found)
        if len(line) <= LINE_MAX:
            return line
        return self._short(method, "logging.line_cut", name, f"{len(line)} characters", line[:LINE_KEPT_MAX])

    def _short(self, level: str, event: str, of: object, why: str, begin: str) -> str:
        of = of if type(of) is str else type(of).__name__
        suppressed = self._limit.due((event, of))
        with _counting:
            self._sink.replaced += 1
            self._sink.suppressed += suppressed is None
        if suppressed is None:
            raise structlog.DropEvent
        fields = {"event": event, "of": of, "why": why, "begin": begin, "suppressed": suppressed}
        fields |= {"level": level, "node": self._node, "timestamp": utc_now().isoformat()}
        return json.dumps({name: value for name, value in fields.items() if value})


def _name_of(step: Callable[..., Any]) -> str:
    return getattr(step, "__qualname__", type(step).__name__)


class LibraryLines(logging.Handler):
    """Logs the messages of libraries as events (`library.message`), each message of a logger once in an interval."""

    def __init__(self, clock: Callable[[], float] = monotonic_s) -> None:
        super().__init__()
        self._limit = one_per_process(lambda: LogLimit(clock))

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler. Never raises."""
        subject = _shown(record.msg)
        suppressed = self._limit.due((record.name, subject))
        if suppressed is None:
            return
        say = log.error if record.levelno >= logging.ERROR else log.warning
        more = {"exc_info": record.exc_info} if record.exc_info else {}
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 -- its arguments do not fit, or cannot be shown
            message = subject
        say("library.message", library=record.name, message=message, suppressed=suppressed, **more)


def _shown(value: object) -> str:
    """The value as text, whatever its own methods raise."""
    try:
        return str(value)
    except Exception:  # noqa: BLE001 -- see above
        return f"(a {type(value).__name__} that cannot be shown)"


class PythonLines:
    """Logs what the interpreter would print: warnings, and exceptions that nothing caught, of any thread."""

    def __init__(self) -> None:
        self._limit = one_per_process(LogLimit)

    def install(self) -> None:
        """Replace the interpreter's hooks."""
        warnings.showwarning = self.warned
        sys.excepthook = self.uncaught
        threading.excepthook = lambda args: self.uncaught(
            args.exc_type, args.exc_value, args.exc_traceback, args.thread
        )
        sys.unraisablehook = lambda args: self.uncaught(
            args.exc_type, args.exc_value, args.exc_traceback, where=args.err_msg or _shown(args.object)
        )

    def warned(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """See warnings.showwarning."""
        del file, line
        place = f"{filename}:{lineno}"
        if (suppressed := self._limit.due((place, category))) is not None:
            log.warning(
                "python.warning",
                category=category.__name__,
                message=_shown(message),
                place=place,
                suppressed=suppressed,
            )

    def uncaught(
        self,
        kind: type[BaseException],
        error: BaseException | None,
        traceback: TracebackType | None,
        thread: threading.Thread | None = None,
        where: str = "",
    ) -> None:
        """See sys.excepthook."""
        name = thread.name if thread is not None else ""
        if (suppressed := self._limit.due((kind, name, where))) is not None:
            error = kind() if error is None else error
            log.critical(
                "python.uncaught",
                exception_type=kind.__name__,
                thread=name,
                where=where,
                suppressed=suppressed,
                exc_info=(kind, error, traceback),
            )


class _Names:
    """Which node a process runs."""

    node = ""


names: Final = one_per_process(_Names)


def is_json(settings: LogSettings) -> bool:
    """Whether lines are JSON."""
    return settings.format == "json" or (settings.format == "auto" and not sys.stderr.isatty())


def configure(settings: LogSettings, node: str) -> None:
    """Set up structlog for this process, with what libraries and the interpreter write: every line on standard error is
    an event."""

    def named(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """`node` is the node that writes, in events of all threads; another node is `peer`."""
        event["node"] = names.node
        return event

    def stamped(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event["timestamp"] = utc_now().isoformat().replace("+00:00", "Z")
        return event

    def kept(logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        found: structlog.typing.EventDict = recent.keep(logger, method, event)
        return found

    names.node = node
    steps: list[Any] = [
        RepeatLimit(lines),
        named,
        structlog.processors.add_log_level,
        stamped,
        kept,
        structlog.processors.format_exc_info,
    ]
    renderer: Any = structlog.processors.JSONRenderer() if is_json(settings) else structlog.dev.ConsoleRenderer()
    set_level(settings.level)
    structlog.configure(
        processors=[LogChain([*steps, renderer], lines, node)],
        wrapper_class=NodeLogger,
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, handlers=[LibraryLines()], force=True)
    PythonLines().install()
