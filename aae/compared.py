"""One other cluster as the manager of full-sync keeps it, and the check that runs now.

Changed by `aae.manager` alone; others read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aae.check import Checker
from aae.exchange import Findings
from aae.memory import Remembered
from aae.operators import Entry
from aae.retries import Retry
from aae.schedule import Kind, Plan, Window
from config.fullsync import FullSyncSettings

SKIPPED_KEPT: Final = 50
"""Newest slots of a peer that were left out, shown to operators."""


class Skipped(NamedTuple):
    """A slot that was left out, and why."""

    at_ms: int
    kind: Kind
    reason: str


@dataclass(slots=True)
class Peer:
    """One other cluster, as the manager keeps it."""

    settings: FullSyncSettings
    place: int
    checker: Checker
    remembered: Remembered
    window: Window
    types: Callable[[], Sequence[str]]
    """What its `bucket_types` come to now: those that are named, or all that there are."""
    plan: Plan | None = None
    entries: tuple[Entry, ...] = ()
    """What operators want of it that its settings come from."""
    slot: int = -1
    """The newest slot of the plan that has had its turn."""
    from_ms: int = 0
    """When (wall clock) the plan began to count here: earlier moments have gone by."""
    seen_ms: int = 0
    """The latest time (wall clock) at which it was looked what is due."""
    retry: Retry | None = None
    """What was due and could not look is tried again."""
    unseen: str = ""
    """Why the newest check could not look at everything that soon may be; "" when it could."""
    waits: str = ""
    """Why no check that is due begins: this cluster has nothing to compare yet."""
    skipped: deque[Skipped] = field(default_factory=lambda: deque(maxlen=SKIPPED_KEPT))

    @property
    def bucket_types(self) -> list[str]:
        """Bucket types that are compared now."""
        return list(self.types())


class Running(NamedTuple):
    """The check that runs now."""

    peer: str
    kind: Kind
    bucket_type: str
    began_ms: int
    by: str
    findings: Findings
