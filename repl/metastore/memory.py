"""The metastore's memory twin: one tree of values in this process, with faults at will.

A `repl.metastore.memory_tree.MemoryEnsemble` is the tree; each `MemoryMetastore` on it is one node's client with its
own session. The rules above the tree are the real ones (`repl.metastore.tree`). It adds what a real ensemble does
only when hurt: `disconnect`, `expire`, `hold`, and writes that lose their request or their answer, or arrive late.
No thread, no clock: hints and session events go through the running loop, never inside the call that caused them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TypeVar

from repl.metastore.memory_tree import MemoryEnsemble
from repl.metastore.port import Ambiguous, Conflict, SessionState, Unavailable
from repl.metastore.tree import GROUND, TreeMetastore
from repl.metastore.znodes import Op, Stat

__all__ = ["MemoryEnsemble", "MemoryMetastore", "WriteFault"]

T = TypeVar("T")


class WriteFault(StrEnum):
    """How the next write ends; each raises Ambiguous."""

    REQUEST_LOST = "request-lost"
    """It never happens."""
    ANSWER_LOST = "answer-lost"
    """It has happened."""
    LATE = "late"
    """It happens at `deliver_late()`, if its version still fits then."""


class MemoryMetastore(TreeMetastore):
    """`repl.metastore.port.Metastore` on a MemoryEnsemble, as one node sees it."""

    def __init__(self, ensemble: MemoryEnsemble | None = None) -> None:
        super().__init__("")
        self._memory = MemoryTree(ensemble or MemoryEnsemble(), self._changed)
        self._on_session: Callable[[SessionState], None] | None = None

    async def start(self, on_session: Callable[[SessionState], None]) -> None:
        """See the port."""
        self._on_session = on_session
        self._settle(self._memory)
        self._memory.begin_session()
        for path in GROUND:
            self._memory.ensemble.ensure(path)
        self._memory.connect()
        on_session(SessionState.CONNECTED)

    @property
    def trouble(self) -> str:
        """See the port: a memory tree that went back is told by its records alone."""
        return ""

    async def stop(self) -> None:
        """See the port."""
        self._memory.connected = False
        self._memory.ensemble.end_session(self._memory.current)

    # --- faults ---

    def disconnect(self) -> None:
        """Cut the connection; calls are Unavailable until `reconnect` or `expire`. The session lives on."""
        self._memory.connected = False
        self._tell(SessionState.SUSPENDED)

    def reconnect(self) -> None:
        """Mend the connection; every path that was read and not hinted since is hinted now."""
        if self._memory.connect():
            self._tell(SessionState.CONNECTED)
            self._memory.hint_all()

    def expire(self) -> None:
        """End the session and, as the driver does, begin a new one."""
        self._memory.connected = False
        self._memory.ensemble.end_session(self._memory.current)
        self._tell(SessionState.EXPIRED)
        self._memory.begin_session()
        self.reconnect()

    def spoil(self, *faults: WriteFault) -> None:
        """The next writes end so, one after the other."""
        self._memory.faults.extend(faults)

    def deliver_late(self) -> int:
        """Let the LATE writes happen now, in order; how many did."""
        return self._memory.deliver_late()

    def hold(self) -> None:
        """Calls begun from now on wait until `release`."""
        self._memory.open.clear()

    def release(self) -> None:
        """Let calls go on."""
        self._memory.open.set()

    def _tell(self, state: SessionState) -> None:
        assert self._on_session is not None, "start() comes first"
        asyncio.get_running_loop().call_soon(self._session_event, state)

    def _session_event(self, state: SessionState) -> None:
        assert self._on_session is not None
        self._session_told(state)
        self._on_session(state)


class MemoryTree:
    """`repl.metastore.znodes.Tree` on a MemoryEnsemble: one connection and its session."""

    def __init__(self, ensemble: MemoryEnsemble, on_change: Callable[[str], None]) -> None:
        self.ensemble = ensemble
        self.current = 0
        self.connected = False
        self.open = asyncio.Event()
        self.open.set()
        self.faults: deque[WriteFault] = deque()
        self._seen_zxid = 0
        self._on_change = on_change
        self._late: list[Callable[[], object]] = []
        self._armed: set[str] = set()
        ensemble.listen(self._heard)

    def begin_session(self) -> None:
        """A new session, not connected yet."""
        self.current = self.ensemble.new_session()

    def connect(self) -> bool:
        """Connect, unless the ensemble knows less than this client has seen (H32)."""
        self.connected = self.ensemble.zxid >= self._seen_zxid
        return self.connected

    def deliver_late(self) -> int:
        """Let the late writes happen; how many did."""
        done = 0
        late, self._late = self._late, []
        for write in late:
            try:
                write()
                done += 1
            except Conflict:
                continue  # overtaken: the fate of a late copy
        return done

    # --- news ---

    def hint_all(self) -> None:
        """Watches do not survive a connection: all that was armed may have changed."""
        self._hint(set(self._armed))

    def _heard(self, paths: Sequence[str]) -> None:
        if self.connected:  # a lost connection delivers nothing; reconnecting makes up for it
            self._hint(self._armed.intersection(paths))

    def _hint(self, paths: set[str]) -> None:
        self._armed -= paths
        for path in sorted(paths):
            asyncio.get_running_loop().call_soon(self._on_change, path)

    # --- the tree ---

    def session(self) -> int:
        """See `repl.metastore.znodes`."""
        if not self.connected:
            raise Unavailable("no connection to the metastore")
        return self.current

    async def sync(self) -> None:
        """See `repl.metastore.znodes`. Hints that are under way come first, by their place in the loop."""
        await self._turn()
        await asyncio.sleep(0)
        self.session()

    async def _turn(self) -> None:
        await self.open.wait()
        self.session()
        self._seen_zxid = self.ensemble.zxid

    async def _write(self, write: Callable[[], T]) -> T:
        await self._turn()
        match self.faults.popleft() if self.faults else None:
            case None:
                written = write()
                self._seen_zxid = self.ensemble.zxid
                return written
            case WriteFault.ANSWER_LOST:
                write()
            case WriteFault.LATE:
                self._late.append(write)
            case WriteFault.REQUEST_LOST:
                pass
        raise Ambiguous("the answer to a write is missing")

    async def read(
        self,
        path: str,
        *,
        armed: bool,
        sync: bool = True,  # noqa: ARG002 - the newest is at hand
    ) -> tuple[bytes, Stat] | None:
        """See `repl.metastore.znodes`."""
        await self._turn()
        if armed:
            self._armed.add(path)
        return self.ensemble.read(path)

    async def stat(self, path: str, *, armed: bool) -> Stat | None:
        """See `repl.metastore.znodes`."""
        found = await self.read(path, armed=armed)
        return None if found is None else found[1]

    async def children(self, path: str, *, sync: bool = True) -> list[str] | None:  # noqa: ARG002 - as in `read`
        """See `repl.metastore.znodes`."""
        await self._turn()
        self._armed.add(path)
        return self.ensemble.children(path)

    async def confirm(self, path: str, version: int) -> bool:
        """See `repl.metastore.znodes`."""
        found = await self.stat(path, armed=False)
        return found is not None and found.version == version

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> Stat:
        """See `repl.metastore.znodes`."""
        owner = self.current if ephemeral else 0
        return await self._write(lambda: self.ensemble.create(path, value, owner))

    async def set(self, path: str, value: bytes, version: int) -> Stat:
        """See `repl.metastore.znodes`."""
        return await self._write(lambda: self.ensemble.set(path, value, version))

    async def delete(self, path: str, version: int) -> None:
        """See `repl.metastore.znodes`."""
        await self._write(lambda: self.ensemble.delete(path, version))

    async def ensure(self, path: str) -> None:
        """See `repl.metastore.znodes`."""
        await self._turn()
        self.ensemble.ensure(path)

    async def commit(self, what: str, ops: Sequence[Op]) -> list[Stat | None]:  # noqa: ARG002 - a path says it
        """See `repl.metastore.znodes`."""
        return await self._write(lambda: self.ensemble.commit(ops))
