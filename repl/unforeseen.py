"""Unforeseen exceptions: what one item's work raised though no rule names it. The item ends, the others go on.

Whoever works on many items (writes of a batch, partitions of a turn, peers, queues, rows of a check) catches around
each of them, and hands what it caught to `unforeseen`. It is logged with its traceback, again at most once in
`repl.log_limit.INTERVAL_S` for each place; counted; and kept for the node's findings, since a defect that only a log
names is seen by nobody. The item itself gets the InternalError that `exception` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from types import TracebackType
from typing import Final, NamedTuple, ParamSpec, TypeVar

import structlog

from isthmus.repl.log_limit import LogLimit
from isthmus.repl.machine import MemoryLock, machine, one_per_process
from isthmus.repl.model.errors import InternalError
from isthmus.repl.telemetry import Family, Sample

log = structlog.get_logger(__name__)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

KEPT_MAX: Final = 32
"""Places that are kept for findings: a defect has one or a few. With more, the oldest are forgotten."""

FINDING_MS: Final = 24 * 3_600_000
"""How long after its last occurrence a defect is a finding: a day, so that somebody sees it at work. The log and the
metric have it longer."""

TEXT_MAX: Final = 200
"""Longest text of an exception in a finding; the log has the rest."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_unforeseen_errors_total": Family(
        "Exceptions that no rule foresaw, by the event under which the node's log has them. Each ended one item, such "
        "as a write, a push, a read, or one turn of a queue, partition, peer or check; the others went on.",
        "errors",
        "logs and store",
        ("event",),
    ),
}
"""Name -> metric definition (see repl.telemetry)."""


class Defect(NamedTuple):
    """Unforeseen exceptions of one place in the code."""

    event: str
    place: str
    """Innermost frame that is ours, as FILE:LINE."""
    kind: str
    text: str
    times: int
    first_ms: int
    last_ms: int

    @property
    def sentence(self) -> str:
        """For an operator: what ended, how often, where."""
        often = "once" if self.times == 1 else f"{self.times} times"
        return f"a defect of this program ended {self.event} {often}, in {self.place}: {self.text or self.kind}"


class UnforeseenErrors:
    """Logs, counts and keeps unforeseen exceptions. May be used by all threads; never raises."""

    def __init__(self, limit: LogLimit | None = None) -> None:
        self._limit = limit or LogLimit()
        self._lock = MemoryLock()
        self._defects: dict[tuple[str, str, str], Defect] = {}
        """By event, place and kind; that of the newest occurrence last."""
        self._counts: dict[str, int] = {}

    def exception(self, event: str, error: BaseException, /, **fields: object) -> InternalError:
        """Take note of what ended an item. `event` names the item's work, `fields` the item. Returns the item's answer,
        which refers to no frame of `error`."""
        kind, place, text = type(error).__name__, _place(error.__traceback__), _text(error)
        now_ms = machine().wall_ns() // 1_000_000
        with self._lock:
            self._counts[event] = self._counts.get(event, 0) + 1
            found = self._defects.pop((event, place, kind), None)
            first_ms, count = (now_ms, 0) if found is None else (found.first_ms, found.times)
            self._defects[event, place, kind] = Defect(event, place, kind, text, count + 1, first_ms, now_ms)
            if len(self._defects) > KEPT_MAX:
                del self._defects[next(iter(self._defects))]
        if (suppressed := self._limit.due((event, place, kind))) is not None:
            log.error(event, exc_info=error, suppressed=suppressed, **fields)
        return InternalError(f"a defect of this program: {kind} in {place}; the node's log has more ({event})")

    def recent(self) -> list[Defect]:
        """Defects that occurred within FINDING_MS, the oldest first."""
        since_ms = machine().wall_ns() // 1_000_000 - FINDING_MS
        with self._lock:
            return [each for each in self._defects.values() if each.last_ms >= since_ms]

    def samples(self) -> Iterator[Sample]:
        """See `repl.telemetry`."""
        with self._lock:
            counts = list(self._counts.items())
        for event, count in counts:
            yield "isthmus_unforeseen_errors_total", {"event": event}, count


def _text(error: BaseException) -> str:
    try:
        return " ".join(str(error).split())[:TEXT_MAX]
    except Exception:  # noqa: BLE001 -- what an exception says about itself may raise, too
        return ""


def _place(traceback: TracebackType | None) -> str:
    """FILE:LINE of the innermost frame, the file by its path in the package."""
    if traceback is None:
        return "an unknown place"
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    parts = traceback.tb_frame.f_code.co_filename.split("/")
    return f"{'/'.join(parts[-3:])}:{traceback.tb_lineno}"


unforeseen: Final = one_per_process(UnforeseenErrors)
"""This process's unforeseen exceptions."""


def observes(event: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result | None]]:
    """Decorates a function that only looks on, such as a step of a trace: what it raises is unforeseen, and it returns
    None, so that its caller goes on."""

    def decorated(function: Callable[Arguments, Result]) -> Callable[Arguments, Result | None]:
        @wraps(function)
        def looks_on(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result | None:
            try:
                return function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 -- logged as unforeseen
                unforeseen.exception(event, error)
                return None

        return looks_on

    return decorated
