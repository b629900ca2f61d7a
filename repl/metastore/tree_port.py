"""The interface of a tree of znodes as one session sees it, on which `repl.metastore.metastore` is built.

Implemented by `repl.metastore.zookeeper_session` (ZooKeeper) and `tests.support.memory_metastore`. Both keep
ZooKeeper's order: answers, watch events and the end of the session arrive on one connection in the order of the changes
themselves, so a client gets the event of a change before it can read any later state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Stat(NamedTuple):
    """The stat of a znode: its version, creation zxid, and owner session (0 if it is not ephemeral)."""

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
    """The tree in the current session. Reads raise Unavailable, LocalFault; writes also VersionConflict and Ambiguous.
    Reads return None if there is nothing. An `armed` read sets a watch: one hint follows when its result has
    changed."""

    def session(self) -> int:
        """The session's id. Raises Unavailable if there is no connection."""

    async def sync(self) -> None:
        """Returns once the events of all changes confirmed before the call have arrived."""

    async def read(self, path: str, *, armed: bool, sync: bool = True) -> tuple[bytes, Stat] | None:
        """The value at `path`; with `sync` not older than the call."""

    async def stat(self, path: str, *, armed: bool) -> Stat | None:
        """The stat at `path`, not older than the call; the only read that also watches a missing path."""

    async def children(self, path: str, *, sync: bool = True) -> list[str] | None:
        """The names below `path`, watched; with `sync` not older than the call."""

    async def confirm(self, path: str, version: int) -> bool:
        """True if a majority of the ensemble confirms that `version` was stored at some time after the call. If False,
        a read on this connection is not older than the call either."""

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> Stat:
        """Create `path`, which must not exist; missing parents are made."""

    async def set(self, path: str, value: bytes, version: int) -> Stat:
        """Write if `version` is the stored one."""

    async def delete(self, path: str, version: int) -> None:
        """Delete if `version` is the stored one and there are no children."""

    async def ensure(self, path: str) -> None:
        """Create `path` and its parents if they are missing."""

    async def commit(self, what: str, ops: Sequence[Op]) -> list[Stat | None]:
        """All or nothing; the new stat of each Set, None for the others. `what` names it in errors."""


class ZnodeSession(ZnodeClient, Protocol):
    """A `ZnodeClient` with its life: a session that is renewed after each expiry until `stop`."""

    @property
    def rolled_back(self) -> str:
        """Why there is no connection, if the servers are known to have lost what this process has seen; "" otherwise
        (docs/protocol.md H32)."""

    @property
    def why_no_tls(self) -> str:
        """Why the last TLS handshake failed, as the end of a sentence; "" if none did."""

    def start(self) -> None:
        """Begin to connect; returns at once."""

    async def stop(self) -> None:
        """End the session: its ephemerals are deleted at once if there is a connection."""


async def gather_all(*calls: Coroutine[Any, Any, T]) -> list[T]:
    """The results of all calls; once all have ended, the first error is raised."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
