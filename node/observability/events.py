"""The events of this node's log that concern operators: more than one request, and no act, which has its own line.

A step of the log's chain (`logs.configure`) hands each event over; of those of KINDS the newest EVENTS_MAX are kept in
memory, from where `journal` writes them to the disk. Events below the log's level never come here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from isthmus.node.observability.redaction import Redactor
from isthmus.repl.log_limit import LogLimit
from isthmus.repl.machine import MemoryLock, machine, monotonic_s, one_per_process

EVENTS_MAX: Final = 2_000
"""Events in memory, at most 6 MB and mostly below 1 MB: hours of a quiet cluster. As many may wait for a disk that is
full or hangs; of more, the oldest are not written."""

TEXT_MAX: Final = 400
"""Longest text of an event; the log has the rest."""

KEPT_MAX: Final = TEXT_MAX + 1_024
"""Longest text in memory: a known secret, which `journal` removes before it cuts at TEXT_MAX, is whole if it begins
before that; no token that is accepted is longer than the difference."""

REPEATS_MAX: Final = 10
"""Events of one name and subject that are written to the disk in REPEATS_S. A link that fails once a second for a day
takes 400 KB of the journal instead of 20 MB."""

STORM_MAX: Final = 1_000
"""Events of one name, whatever their subjects, that are written in this time: an election has one for each partition.
At most 40 MB a day for each name; a guess."""

REPEATS_S: Final = 600.0

KINDS: Final[Mapping[str, str]] = {
    "controller": "election",
    "balancing": "election",
    "isr": "replica",
    "transfer": "replica",
    "attaching": "replica",
    "clearing": "replica",
    "identity": "replica",
    "log": "replica",
    "store": "replica",
    "node": "node",
    "metastore": "node",
    "transport": "node",
    "listener": "node",
    "placement": "order",
    "properties": "option",
    "storage": "disk",
    "queue": "link",
    "sink": "link",
    "fullsync": "check",
    "trees": "check",
    "security": "security",
    "files": "security",
    "runtime": "problem",
    "audit": "problem",
    "journal": "problem",
}
"""First part of an event's name -> kind."""

QUIET: Final = frozenset(
    (
        "trees.built",
        "transport.dial.failed",
        "fullsync.skipped",
        "queue.made",
        "transfer.takes",
        "transfer.round_begins",
    )
)
"""Events of these kinds that are no news to an operator, or come by the hundred."""

SUBJECT: Final = ("partition", "peer", "queue", "path", "reason", "listener", "bucket_type", "child", "exception_type")
"""Fields that say what an event is about; events that agree in them repeat each other."""

HIDDEN: Final = frozenset(("event", "node", "level", "timestamp", "exception", "exc_info", "stack"))
"""Fields that an event's text does not repeat."""


_FORMS: Final = Redactor()
"""Removes what looks like a secret; what is known as one is removed by `journal`."""


class RecentEvent(NamedTuple):
    """One event. `number` counts the events of this process, from 1 on."""

    number: int
    at_ms: int
    kind: str
    event: str
    level: str
    subject: str
    """What it is about: its fields of SUBJECT."""
    text: str
    """All its fields."""
    suppressed: int | None
    """How many events that it repeats were left out of the files before it; None: so is this one."""


class RecentEvents:
    """The newest events of this process; `keep` is called by all threads that log."""

    def __init__(self, limit_count: int = EVENTS_MAX) -> None:
        self._events: deque[RecentEvent] = deque(maxlen=limit_count)
        self._lock = MemoryLock()
        self._repeats = LogLimit(burst=REPEATS_MAX, interval_s=REPEATS_S)
        self._storms = LogLimit(burst=STORM_MAX, interval_s=REPEATS_S)
        self.newest = 0
        """Number of the newest event."""
        self.began_ms = machine().wall_ns() // 1_000_000
        """Begin of the process: with it the number of an event is unique over restarts."""
        self._began_s = monotonic_s()
        self.listener: Callable[[], None] | None = None
        """Called after each event, in the thread that logs; must neither block nor raise."""

    def keep(self, _logger: Any, method: str, event: Any) -> Any:
        """A step of the log's chain: keeps the event if it is one for operators, and passes it on. Never raises."""
        name = str(event.get("event", ""))
        kind = KINDS.get(name.partition(".")[0])
        if kind is not None and method != "debug" and not _is_quiet(name, event):
            name = name[:TEXT_MAX]
            subject, text = _texts(event)
            suppressed = self._suppressed_before(name, subject)
            at_ms = machine().wall_ns() // 1_000_000
            with self._lock:
                self.newest += 1
                self._events.append(RecentEvent(self.newest, at_ms, kind, name, method, subject, text, suppressed))
            listener = self.listener  # another thread may take it away
            if listener is not None:
                listener()
        return event

    def complete_from_ms(self) -> int:
        """Since when no event is missing here, by the clock as it is now: it may have been set since the process began,
        as often after the start of a machine."""
        began_ms = machine().wall_ns() // 1_000_000 - int(1000 * (monotonic_s() - self._began_s))
        with self._lock:
            oldest = self._events[0] if self._events else None
        return began_ms if oldest is None or oldest.number == 1 else max(began_ms, oldest.at_ms)

    def all(self) -> list[RecentEvent]:
        """All that are kept, the oldest first."""
        with self._lock:
            return list(self._events)

    def after(self, number: int, limit: int) -> list[RecentEvent]:
        """The oldest events that are kept with a higher number, `limit` at most."""
        with self._lock:
            start = max(0, number + 1 - self._events[0].number) if self._events else 0
            return list(islice(self._events, start, start + limit))

    def _suppressed_before(self, name: str, subject: str) -> int | None:
        """See `RecentEvent.suppressed`."""
        of_subject = self._repeats.due((name, subject))
        of_name = None if of_subject is None else self._storms.due(name)
        return None if of_subject is None or of_name is None else of_subject + of_name


def _is_quiet(name: str, event: Mapping[str, Any]) -> bool:
    """True for acts, for events of QUIET, and for the steps of an election but its last, the new leader's."""
    return name in QUIET or "by" in event or (name == "isr.role" and event.get("role") != "leader")


def _texts(event: Mapping[str, Any]) -> tuple[str, str]:
    """Subject and text of an event, without secrets; of fields that cannot be shown, why."""
    try:
        shown = {key: value for key, value in event.items() if key not in HIDDEN and value not in ("", None)}
        clean = _FORMS.document(shown)
        subject = ", ".join(f"{key} {clean[key]}" for key in SUBJECT if key in clean)
        return subject[:KEPT_MAX], ", ".join(f"{key} {value}" for key, value in clean.items())[:KEPT_MAX]
    except Exception as error:  # noqa: BLE001 -- an event's values are anything, and its line is to be written
        return "", f"(fields that cannot be shown: {type(error).__name__})"


recent: Final = one_per_process(RecentEvents)
"""This process's events."""
