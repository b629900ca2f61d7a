"""What is kept of each copy's tree, as plain values: the copy, its tree and state, who waits for an offset, alarms.

Changed by `aae.keeping` alone; others read.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from aae.building import Build
from aae.tree import Hashes, Tree
from repl.model.keys import SEGMENT_COUNT


class State(StrEnum):
    """Of one copy's tree. Only `ready` answers."""

    READY = "ready"
    REBUILDING = "rebuilding"
    WAITING = "waiting"


class Copy(NamedTuple):
    """A copy on this node as the runtime has it. Not `whole`: rows are still to come from the leader, or are written
    again after a power loss; then it has no tree."""

    partition: int
    bucket_type: bytes
    gen: int
    applied: int
    whole: bool
    segments: tuple[int, int] = (0, SEGMENT_COUNT)
    """Those of its partition: [first, end)."""


class Mismatch(NamedTuple):
    """An alarm: a tree that was not what it should be, found at `wall_ms`. `against`: `key store`, or the node whose
    tree was another one at the same offset."""

    partition: int
    segment: int
    offset: int
    against: str
    wall_ms: int


class Capture(NamedTuple):
    """Somebody wants to know the tree at an offset that is still to come."""

    offset: int
    number: int
    branch: int | None
    future: asyncio.Future[Hashes | None]


@dataclass(slots=True)
class Kept:
    """One copy's tree. `tree` is of the rows below `offset`; None when there is none that could be believed."""

    bucket_type: bytes
    gen: int
    tree: Tree | None
    offset: int
    build: Build | None = None
    captures: list[Capture] = field(default_factory=list)
    reason: str = ""
    retry_at_ms: int = 0
    failures: int = 0
    """Builds that failed since one succeeded."""
    failed_by: str = ""
    """Why the newest of them did."""
    built_ms: int | None = None
    """Wall clock of the newest build; None: never, it was empty or saved."""
    again_at_ms: int | None = None
    """When it is built anew by itself; None: not known yet."""
    segments: tuple[int, int] = (0, SEGMENT_COUNT)

    @property
    def state(self) -> State:
        """Ready also while a successor is built."""
        if self.tree is not None:
            return State.READY
        return State.REBUILDING if self.build is not None else State.WAITING
