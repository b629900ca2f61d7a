"""A tree of znodes as one session sees it: what `repl.metastore.metastore` asks of whoever keeps the tree.

Two keep one: `repl.metastore.zookeeper_session` (ZooKeeper) and `tests.support.memory_metastore`. Both hold ZooKeeper's
order: what one connection is told (answers, changes of what it read armed, the end of its session) comes in the order
of the changes themselves, so nobody sees a state before having heard that what was read before it is old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Stat(NamedTuple):
    """What is told of a znode: its version, creation zxid, and owner session (0 when not ephemeral)."""

    version: int
    czxid: int
    owner: int


@dataclass(frozen=True, slots=True)
class VersionCheck:
    """Part of a commit: `path` must exist in this version."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Set:
    """Part of a commit: write `value` where `version` is the stored one."""

    path: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Part of a commit: create `path`, which must not exist; its parent must."""

    path: str
    value: bytes


Op = VersionCheck | Set | Create


class ZnodeClient(Protocol):
    """The tree in the current session. Reads raise Unavailable, LocalFault; writes VersionConflict and Ambiguous
    besides. None where nothing is. An `armed` read is followed by one hint when what was read has changed."""

    def session(self) -> int:
        """The session's id. Raises Unavailable when there is no connection."""

    async def sync(self) -> None:
        """When it returns, all that was confirmed to anybody before the call has been heard of."""

    async def read(self, path: str, *, armed: bool, sync: bool = True) -> tuple[bytes, Stat] | None:
        """The value at `path`; with `sync` not older than the call."""

    async def stat(self, path: str, *, armed: bool) -> Stat | None:
        """The stat at `path`, not older than the call; the only read that also arms what is not there."""

    async def children(self, path: str, *, sync: bool = True) -> list[str] | None:
        """The names below `path`, armed; with `sync` not older than the call."""

    async def confirm(self, path: str, version: int) -> bool:
        """True when `version` was the stored one at some time after the call, and a majority of the ensemble says so.
        When False, a read on this connection is not older than the call either."""

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> Stat:
        """Create what must not exist; missing parents are made."""

    async def set(self, path: str, value: bytes, version: int) -> Stat:
        """Write where `version` is the stored one."""

    async def delete(self, path: str, version: int) -> None:
        """Delete where `version` is the stored one and nothing lies below."""

    async def ensure(self, path: str) -> None:
        """Make `path` and its parents where they are missing."""

    async def commit(self, what: str, ops: Sequence[Op]) -> list[Stat | None]:
        """All or nothing; the new stat of each Set, None for the others. `what` names it in errors."""


async def gather_all(*calls: Coroutine[Any, Any, T]) -> list[T]:
    """The results of all calls; the first error among them once all have ended, so that none goes unheard."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
