"""The newest events of this node's log that concern operators.

They tell of more than one request.
A step of the log's chain (`logs.configure`) hands each event over; of those of KINDS the newest EVENTS_MAX are kept in
memory. Acts of operators are left out: the audit log has them, on disk. Events below the log's level never come here.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from isthmus.node.observability.redaction import Redactor
from isthmus.repl.machine import machine, one_per_process

EVENTS_MAX: Final = 2_000
"""Events that are kept: hours of a quiet cluster, and the whole story of a bad one; at most 1 MB."""

TEXT_MAX: Final = 400
"""Longest text of an event; the log has the rest."""

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

HIDDEN: Final = frozenset(("event", "node", "level", "timestamp", "exception", "exc_info", "stack"))
"""Fields that an event's text does not repeat."""


_FORMS: Final = Redactor()
"""Removes what looks like a secret before a text is cut; what is known as one is removed from answers."""


class RecentEvent(NamedTuple):
    """One event. `number` counts the events of this process; numbers may come out of order."""

    number: int
    at_ms: int
    kind: str
    event: str
    level: str
    text: str


class RecentEvents:
    """The newest events of this process; `keep` is called by all threads that log."""

    def __init__(self, limit_count: int = EVENTS_MAX) -> None:
        self._events: deque[RecentEvent] = deque(maxlen=limit_count)
        self._numbers = itertools.count(1)
        self.began_ms = machine().wall_ns() // 1_000_000
        """Begin of the process: with it the number of an event is unique over restarts."""

    def keep(self, _logger: Any, method: str, event: Any) -> Any:
        """A step of the log's chain: keeps the event if it is one for operators, and passes it on. Never raises."""
        name = str(event.get("event", ""))
        kind = KINDS.get(name.partition(".")[0])
        if kind is not None and method != "debug" and not _is_quiet(name, event):
            at_ms = machine().wall_ns() // 1_000_000
            self._events.append(RecentEvent(next(self._numbers), at_ms, kind, name, method, _text(event)))
        return event

    def since(self, at_ms: int, limit: int, kind: str | None = None) -> list[RecentEvent]:
        """The newest events (of a kind) from `at_ms` on, `limit` at most, the oldest first."""
        found = [each for each in list(self._events) if each.at_ms >= at_ms and kind in (None, each.kind)]
        return found[-limit:] if limit else []


def _is_quiet(name: str, event: Mapping[str, Any]) -> bool:
    """True for acts, for events of QUIET, and for the steps of an election but its last, the new leader's."""
    return name in QUIET or "by" in event or (name == "isr.role" and event.get("role") != "leader")


def _text(event: Mapping[str, Any]) -> str:
    """The fields of an event without secrets; of fields that cannot be shown, why."""
    try:
        told = {key: value for key, value in event.items() if key not in HIDDEN and value not in ("", None)}
        return ", ".join(f"{key} {value}" for key, value in _FORMS.document(told).items())[:TEXT_MAX]
    except Exception as error:  # noqa: BLE001 -- an event's values are anything, and its line is to be written
        return f"(fields that cannot be shown: {type(error).__name__})"


recent: Final = one_per_process(RecentEvents)
"""This process's events."""
