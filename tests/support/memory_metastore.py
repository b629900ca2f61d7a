"""The metastore's memory twin: one tree of values in this process, with faults on request.

`MemoryEnsemble` is the tree that several clients share, as ZooKeeper's servers would hold it: values, versions, zxids,
ephemerals of sessions, listeners of changes. It keeps ZooKeeper's rules as far as `repl.metastore.metastore` rests on
them; one contract suite checks that on both. Each `MemoryMetastore` on it is one node's client with its own session.
The rules above the tree are the real ones (`repl.metastore.metastore`). It adds a real ensemble's behaviour under
faults: `disconnect`, `expire`, `hold`, and writes that lose their request or their answer, or arrive late. No thread,
no clock: hints and session events go through the running loop, never inside the call that caused them.
`tests.simulation.world.ensemble` has the same tree behind sessions in virtual time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar, assert_never

from isthmus.repl.metastore.metastore import LISTED_PATHS, TreeMetastore
from isthmus.repl.metastore.port import Ambiguous, SessionState, Unavailable, VersionConflict
from isthmus.repl.metastore.tree_port import Create, Op, Set, Stat, VersionCheck


@dataclass(slots=True)
class _Znode:
    value: bytes
    version: int
    czxid: int
    owner: int = 0

    def stat(self) -> Stat:
        return Stat(self.version, self.czxid, self.owner)


ChangeListener = Callable[[str, str, tuple[bytes, Stat] | None], None]


class MemoryEnsemble:
    """The tree. Writes raise Conflict where ZooKeeper would refuse them. Listeners are notified of each write before
    the call that made it returns."""

    def __init__(self) -> None:
        self.zxid = 0
        self._sessions = 0
        self._open: set[int] = set()
        self._listeners: list[ChangeListener] = []
        self._nodes: dict[str, _Znode] = {}

    def listen(self, listener: ChangeListener) -> None:
        """Call `listener(path, parent, before)` after each change of the value at `path`, which was `before`; `parent`
        is the path whose names below changed with it, "" if the value was only written."""
        self._listeners.append(listener)

    def new_session(self) -> int:
        """Open a session; its id was never given before."""
        self.zxid += 1
        self._sessions += 1
        self._open.add(self._sessions)
        return self._sessions

    def end_session(self, session: int) -> None:
        """End it and remove its ephemerals."""
        self._open.discard(session)
        for path in [path for path, node in self._nodes.items() if node.owner == session]:
            self._remove(path)

    def read(self, path: str) -> tuple[bytes, Stat] | None:
        """The value at `path`."""
        node = self._nodes.get(path)
        return None if node is None else (node.value, node.stat())

    def children(self, path: str) -> list[str] | None:
        """Names directly below `path`; None when it is not there."""
        if path and path not in self._nodes:
            return None
        below = path + "/"
        return [name for other in self._nodes if other.startswith(below) and "/" not in (name := other[len(below) :])]

    def create(self, path: str, value: bytes, owner: int = 0) -> Stat:
        """Create a node that must not exist, and its parents; for the session `owner` when it is not 0."""
        if path in self._nodes:
            raise VersionConflict(f"{path} exists")
        if owner and owner not in self._open:
            raise VersionConflict(f"the session that would create {path} has ended")
        self.ensure(path.rpartition("/")[0])
        return self._insert(path, value, owner)

    def ensure(self, path: str) -> None:
        """Make `path` and its parents where they are missing."""
        if path and path not in self._nodes:
            self.ensure(path.rpartition("/")[0])
            self._insert(path, b"", 0)

    def set(self, path: str, value: bytes, version: int) -> Stat:
        """Write where `version` is the stored one."""
        node = self._at(path, version)
        before = node.value, node.stat()
        self.zxid += 1
        node.value, node.version = value, version + 1
        self._notify(path, "", before)
        return node.stat()

    def delete(self, path: str, version: int) -> None:
        """Delete where `version` is the stored one and nothing lies below."""
        self._at(path, version)
        if self.children(path):
            raise VersionConflict(f"{path} has children")
        self._remove(path)

    def commit(self, ops: Sequence[Op]) -> list[Stat | None]:
        """All or nothing. (Ops of one commit are about different paths.)"""
        for op in ops:
            match op:
                case VersionCheck() | Set():
                    self._at(op.path, op.version)
                case Create():
                    parent = op.path.rpartition("/")[0]
                    if op.path in self._nodes or (parent and parent not in self._nodes):
                        raise VersionConflict(f"{op.path} exists, or {parent} does not")
                case _:
                    assert_never(op)
        done: list[Stat | None] = []
        for op in ops:
            done.append(self.set(op.path, op.value, op.version) if isinstance(op, Set) else None)
            if isinstance(op, Create):
                self._insert(op.path, op.value, 0)
        return done

    def copied(self) -> MemoryEnsemble:
        """A copy of the present tree, for `go_back`."""
        copy = MemoryEnsemble()
        copy.zxid, copy._open = self.zxid, set(self._open)
        copy._nodes = {path: replace(node) for path, node in self._nodes.items()}
        return copy

    def go_back(self, copy: MemoryEnsemble) -> None:
        """Return to the state that `copied` gave: all later changes and sessions are lost without a notification, as
        when an ensemble is restored from a backup. Ids of sessions are not given again."""
        self.zxid, self._open = copy.zxid, set(copy._open)
        self._nodes = {path: replace(node) for path, node in copy._nodes.items()}

    def _at(self, path: str, version: int) -> _Znode:
        node = self._nodes.get(path)
        if node is None or node.version != version:
            raise VersionConflict(f"{path}: version is {node.version if node else 'none'}, not {version}")
        return node

    def _insert(self, path: str, value: bytes, owner: int) -> Stat:
        self.zxid += 1
        node = self._nodes[path] = _Znode(value, 0, self.zxid, owner)
        self._notify(path, path.rpartition("/")[0], None)
        return node.stat()

    def _remove(self, path: str) -> None:
        self.zxid += 1
        node = self._nodes.pop(path)
        self._notify(path, path.rpartition("/")[0], (node.value, node.stat()))

    def _notify(self, path: str, parent: str, before: tuple[bytes, Stat] | None) -> None:
        for listener in self._listeners:
            listener(path, parent, before)


T = TypeVar("T")


class WriteFault(StrEnum):
    """How the next write ends; each raises Ambiguous."""

    REQUEST_LOST = "request-lost"
    """The write does not take effect."""
    ANSWER_LOST = "answer-lost"
    """The write has taken effect."""
    LATE = "late"
    """The write takes effect at `deliver_late()`, if its version still fits then."""


class MemoryMetastore(TreeMetastore):
    """`repl.metastore.port.Metastore` on a MemoryEnsemble, as one node sees it."""

    def __init__(self, ensemble: MemoryEnsemble | None = None) -> None:
        super().__init__("")
        self._memory = MemoryTree(ensemble or MemoryEnsemble(), self._changed)
        self._on_session: Callable[[SessionState], None] | None = None

    async def start(self, on_session: Callable[[SessionState], None]) -> None:
        """See the port."""
        self._on_session = on_session
        self._attach(self._memory)
        self._memory.begin_session()
        for path in LISTED_PATHS:
            self._memory.ensemble.ensure(path)
        self._memory.connect()
        on_session(SessionState.CONNECTED)

    @property
    def rolled_back(self) -> str:
        """See the port: only its records show that a memory tree went back."""
        return ""

    async def stop(self) -> None:
        """See the port."""
        self._memory.connected = False
        self._memory.ensemble.end_session(self._memory.current)

    # --- faults ---

    def disconnect(self) -> None:
        """Cut the connection; calls are Unavailable until `reconnect` or `expire`. The session lives on."""
        self._memory.connected = False
        self._notify(SessionState.SUSPENDED)

    def reconnect(self) -> None:
        """Restore the connection; every path that was read and not hinted since is hinted now."""
        if self._memory.connect():
            self._notify(SessionState.CONNECTED)
            self._memory.hint_all()

    def expire(self) -> None:
        """End the session and, as the driver does, begin a new one."""
        self._memory.connected = False
        self._memory.ensemble.end_session(self._memory.current)
        self._notify(SessionState.EXPIRED)
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
        """Release held calls."""
        self._memory.open.set()

    def _notify(self, state: SessionState) -> None:
        assert self._on_session is not None, "start() comes first"
        asyncio.get_running_loop().call_soon(self._session_event, state)

    def _session_event(self, state: SessionState) -> None:
        assert self._on_session is not None
        self._invalidate_caches(state)
        self._on_session(state)


class MemoryTree:
    """`repl.metastore.tree_port.ZnodeClient` on a MemoryEnsemble: one connection and its session."""

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
        ensemble.listen(self._on_changes)

    def begin_session(self) -> None:
        """A new session, not connected yet."""
        self.current = self.ensemble.new_session()

    def connect(self) -> bool:
        """Connect, unless the ensemble's state is older than this client has seen (H32)."""
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
            except VersionConflict:
                continue  # overtaken: the fate of a late copy
        return done

    # --- news ---

    def hint_all(self) -> None:
        """Watches do not survive a connection: all that was armed may have changed."""
        self._hint(set(self._armed))

    def _on_changes(self, path: str, parent: str, before: object) -> None:
        if self.connected:  # a lost connection delivers nothing; reconnecting makes up for it
            only_written = before is not None and self.ensemble.read(path) is not None  # then `parent` is no path
            self._hint(self._armed.intersection((path,) if only_written else (path, parent)))

    def _hint(self, paths: set[str]) -> None:
        self._armed -= paths
        for path in sorted(paths):
            asyncio.get_running_loop().call_soon(self._on_change, path)

    # --- the tree ---

    def session(self) -> int:
        """See `repl.metastore.tree_port`."""
        if not self.connected:
            raise Unavailable("no connection to the metastore")
        return self.current

    async def sync(self) -> None:
        """See `repl.metastore.tree_port`. Hints that are under way come first, by their place in the loop."""
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
        sync: bool = True,
    ) -> tuple[bytes, Stat] | None:
        """See `repl.metastore.tree_port`."""
        await self._turn()
        if armed:
            self._armed.add(path)
        found = self.ensemble.read(path)
        await asyncio.sleep(0)  # hints of changes before this state come first
        return found

    async def stat(self, path: str, *, armed: bool) -> Stat | None:
        """See `repl.metastore.tree_port`."""
        found = await self.read(path, armed=armed)
        return None if found is None else found[1]

    async def children(self, path: str, *, sync: bool = True) -> list[str] | None:
        """See `repl.metastore.tree_port`."""
        await self._turn()
        self._armed.add(path)
        found = self.ensemble.children(path)
        await asyncio.sleep(0)  # as in `read`
        return found

    async def confirm(self, path: str, version: int) -> bool:
        """See `repl.metastore.tree_port`."""
        found = await self.stat(path, armed=False)
        return found is not None and found.version == version

    async def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> Stat:
        """See `repl.metastore.tree_port`."""
        owner = self.current if ephemeral else 0
        return await self._write(lambda: self.ensemble.create(path, value, owner))

    async def set(self, path: str, value: bytes, version: int) -> Stat:
        """See `repl.metastore.tree_port`."""
        return await self._write(lambda: self.ensemble.set(path, value, version))

    async def delete(self, path: str, version: int) -> None:
        """See `repl.metastore.tree_port`."""
        await self._write(lambda: self.ensemble.delete(path, version))

    async def ensure(self, path: str) -> None:
        """See `repl.metastore.tree_port`."""
        await self._turn()
        self.ensemble.ensure(path)

    async def commit(self, what: str, ops: Sequence[Op]) -> list[Stat | None]:
        """See `repl.metastore.tree_port`."""
        return await self._write(lambda: self.ensemble.commit(ops))
