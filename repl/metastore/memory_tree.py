"""The tree of the memory twin: values, versions, zxids, ephemerals of sessions, one-shot news of changes.

A `MemoryEnsemble` is what several `repl.metastore.memory.MemoryMetastore` share in one process, as ZooKeeper's
servers would. It keeps ZooKeeper's rules as far as `repl.metastore.tree` rests on them; one contract suite checks
that on both. No thread, no clock, no faults: those are the clients'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from repl.metastore.port import Conflict
from repl.metastore.znodes import Check, Create, Op, Set, Stat


@dataclass(slots=True)
class _Znode:
    value: bytes
    version: int
    czxid: int
    owner: int = 0

    def stat(self) -> Stat:
        return Stat(self.version, self.czxid, self.owner)


class MemoryEnsemble:
    """The tree. Writes raise Conflict where ZooKeeper would refuse them. Each write is told to everybody who
    listens, before the call that made it returns."""

    def __init__(self) -> None:
        self.zxid = 0
        self._sessions = 0
        self._open: set[int] = set()
        self._listeners: list[Callable[[Sequence[str]], None]] = []
        self._nodes: dict[str, _Znode] = {}

    def listen(self, listener: Callable[[Sequence[str]], None]) -> None:
        """`listener(paths)` is told of each change."""
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
        """Create what must not exist, and its parents; for the session `owner` when it is not 0."""
        if path in self._nodes:
            raise Conflict(f"{path} exists")
        if owner and owner not in self._open:
            raise Conflict(f"the session that would create {path} has ended")
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
        self.zxid += 1
        node.value, node.version = value, version + 1
        self._tell(path)
        return node.stat()

    def delete(self, path: str, version: int) -> None:
        """Delete where `version` is the stored one and nothing lies below."""
        self._at(path, version)
        if self.children(path):
            raise Conflict(f"{path} has children")
        self._remove(path)

    def commit(self, ops: Sequence[Op]) -> list[Stat | None]:
        """All or nothing. (Ops of one commit are about different paths.)"""
        for op in ops:
            match op:
                case Check() | Set():
                    self._at(op.path, op.version)
                case Create():
                    parent = op.path.rpartition("/")[0]
                    if op.path in self._nodes or (parent and parent not in self._nodes):
                        raise Conflict(f"{op.path} exists, or {parent} does not")
                case _:
                    assert_never(op)
        done: list[Stat | None] = []
        for op in ops:
            done.append(self.set(op.path, op.value, op.version) if isinstance(op, Set) else None)
            if isinstance(op, Create):
                self._insert(op.path, op.value, 0)
        return done

    def copied(self) -> MemoryEnsemble:
        """The tree as it is now, for `go_back`."""
        copy = MemoryEnsemble()
        copy.zxid = self.zxid
        copy._nodes = {path: replace(node) for path, node in self._nodes.items()}
        return copy

    def go_back(self, copy: MemoryEnsemble) -> None:
        """Be what `copied` gave: everything since is lost, unheard, as when an ensemble is restored from a backup."""
        self.zxid = copy.zxid
        self._nodes = {path: replace(node) for path, node in copy._nodes.items()}

    def _at(self, path: str, version: int) -> _Znode:
        node = self._nodes.get(path)
        if node is None or node.version != version:
            raise Conflict(f"{path}: version is {node.version if node else 'none'}, not {version}")
        return node

    def _insert(self, path: str, value: bytes, owner: int) -> Stat:
        self.zxid += 1
        node = self._nodes[path] = _Znode(value, 0, self.zxid, owner)
        self._tell(path, path.rpartition("/")[0])
        return node.stat()

    def _remove(self, path: str) -> None:
        self.zxid += 1
        del self._nodes[path]
        self._tell(path, path.rpartition("/")[0])

    def _tell(self, *paths: str) -> None:
        for listener in self._listeners:
            listener(paths)
