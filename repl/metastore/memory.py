"""The metastore's memory twin: one tree of values in this process, with faults at will.

A `MemoryEnsemble` is the tree; each `MemoryMetastore` on it is one node's client with its own session. It keeps
the rules of `repl.metastore.zookeeper` (zxids, versions, ephemerals of a session, one-shot hints), which one contract
suite checks on both, and adds what a real ensemble does only when hurt: `disconnect`, `expire`, `hold`, and writes
that lose their request or their answer, or arrive late. No thread, no clock: hints and session events go through
the running loop, never inside the call that caused them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from repl.metastore.port import Ambiguous, Conflict, SessionState, Unavailable, Versioned
from repl.metastore.records import (
    RECORD_BYTES_MAX,
    decode_record,
    decode_registration,
    encode_record,
    encode_registration,
)
from repl.model.errors import TooLarge
from repl.model.record import PartitionRecord, Registration

T = TypeVar("T")


class WriteFault(StrEnum):
    """How the next write ends; each raises Ambiguous."""

    REQUEST_LOST = "request-lost"
    """It never happens."""
    ANSWER_LOST = "answer-lost"
    """It has happened."""
    LATE = "late"
    """It happens at `deliver_late()`, if its version still fits then."""


@dataclass(slots=True)
class _Znode:
    value: bytes
    version: int
    czxid: int
    owner: int = 0


class MemoryEnsemble:
    """The tree that the clients share. Paths as in the port, without ROOT/CLUSTER: one ensemble, one cluster."""

    def __init__(self) -> None:
        self._zxid = 0
        self._sessions = 0
        self._clients: list[MemoryMetastore] = []
        self._nodes: dict[str, _Znode] = {}
        for path in ("/p", "/nodes"):
            self.create(path, b"")

    def join(self, client: MemoryMetastore) -> None:
        """`client` will hear of changes to what it read."""
        self._clients.append(client)

    def new_session(self) -> int:
        """A session id that was never given before."""
        self._sessions += 1
        return self._sessions

    def end_session(self, session: int) -> None:
        """Remove the ephemerals of `session`."""
        for path in [path for path, node in self._nodes.items() if node.owner == session]:
            self._remove(path)

    def read(self, path: str) -> _Znode | None:
        """What lies at `path` (a copy of it, as sent over a wire)."""
        node = self._nodes.get(path)
        return None if node is None else replace(node)

    def children(self, path: str) -> list[str]:
        """Names directly below `path`, sorted."""
        below = path.rstrip("/") + "/"
        return sorted(other[len(below) :] for other in self._nodes if other.startswith(below) and "/" not in
                      other[len(below) :])  # fmt: skip

    def create(self, path: str, value: bytes, owner: int = 0) -> _Znode:
        """Create what must not exist (Conflict), and its parents."""
        if path in self._nodes:
            raise Conflict(f"{path} exists")
        parent = path.rpartition("/")[0]
        if parent and parent not in self._nodes:
            self.create(parent, b"")
        self._zxid += 1
        node = self._nodes[path] = _Znode(value, 0, self._zxid, owner)
        self._tell(path, parent)
        return replace(node)

    def set(self, path: str, value: bytes, version: int) -> int:
        """Write where `version` is the stored one (else Conflict); the new version."""
        node = self._at(path, version)
        self._zxid += 1
        node.value, node.version = value, version + 1
        self._tell(path)
        return node.version

    def delete(self, path: str, version: int) -> None:
        """Delete where `version` is the stored one and nothing lies below (else Conflict)."""
        self._at(path, version)
        if self.children(path):
            raise Conflict(f"{path} has children")
        self._remove(path)

    def create_all(self, values: Mapping[str, bytes]) -> None:
        """Create all or none (Conflict)."""
        for path in values:
            if path in self._nodes:
                raise Conflict(f"{path} exists")
        for path, value in values.items():
            self.create(path, value)

    def _at(self, path: str, version: int) -> _Znode:
        node = self._nodes.get(path)
        if node is None or node.version != version:
            raise Conflict(f"{path}: version is {node.version if node else 'none'}, not {version}")
        return node

    def _remove(self, path: str) -> None:
        self._zxid += 1
        del self._nodes[path]
        self._tell(path, path.rpartition("/")[0])

    def _tell(self, *paths: str) -> None:
        for client in self._clients:
            client.changed(paths)


class MemoryMetastore:
    """`repl.metastore.port.Metastore` on a MemoryEnsemble, as one node sees it."""

    def __init__(self, ensemble: MemoryEnsemble | None = None) -> None:
        self._ensemble = ensemble or MemoryEnsemble()
        self._session = 0
        self._connected = False
        self._open = asyncio.Event()
        self._open.set()
        self._faults: deque[WriteFault] = deque()
        self._late: list[Callable[[], object]] = []
        self._armed: set[str] = set()
        self._on_session: Callable[[SessionState], None] | None = None
        self._on_change: list[Callable[[str], None]] = []
        self._ensemble.join(self)

    # --- faults ---

    def disconnect(self) -> None:
        """Cut the connection; calls are Unavailable until `reconnect` or `expire`. The session lives on."""
        self._connected = False
        self._tell(SessionState.SUSPENDED)

    def reconnect(self) -> None:
        """Mend the connection; every path that was read and not hinted since is hinted now."""
        self._connected = True
        self._tell(SessionState.CONNECTED)
        self._hint(set(self._armed))

    def expire(self) -> None:
        """End the session and, as the driver does, begin a new one."""
        self._ensemble.end_session(self._session)
        self._tell(SessionState.EXPIRED)
        self._session = self._ensemble.new_session()
        self.reconnect()

    def spoil(self, *faults: WriteFault) -> None:
        """The next writes end so, one after the other."""
        self._faults.extend(faults)

    def deliver_late(self) -> int:
        """Let the LATE writes happen now, in order; how many did."""
        done = 0
        late, self._late = self._late, []
        for write in late:
            try:
                write()
                done += 1
            except Conflict:
                continue  # overtaken: the fate of a late copy
        return done

    def hold(self) -> None:
        """Calls begun from now on wait until `release`."""
        self._open.clear()

    def release(self) -> None:
        """Let calls go on."""
        self._open.set()

    # --- events ---

    def changed(self, paths: tuple[str, ...]) -> None:
        """Called by the ensemble. A lost connection delivers nothing; reconnecting makes up for it."""
        if self._connected:
            self._hint(self._armed.intersection(paths))

    def _hint(self, paths: set[str]) -> None:
        self._armed -= paths
        for path in sorted(paths):
            hint = "/nodes" if path.startswith("/nodes/") else path
            for on_change in self._on_change:
                asyncio.get_running_loop().call_soon(on_change, hint)

    def _tell(self, state: SessionState) -> None:
        assert self._on_session is not None, "start() comes first"
        asyncio.get_running_loop().call_soon(self._on_session, state)

    # --- the port ---

    async def start(self, on_session: Callable[[SessionState], None]) -> None:
        """See the port."""
        self._on_session = on_session
        self._session = self._ensemble.new_session()
        self._connected = True
        on_session(SessionState.CONNECTED)

    async def stop(self) -> None:
        """See the port."""
        self._connected = False
        self._ensemble.end_session(self._session)

    async def _ready(self) -> None:
        await self._open.wait()
        if not self._connected:
            raise Unavailable("no connection to the metastore")

    async def _write(self, write: Callable[[], T]) -> T:
        await self._ready()
        match self._faults.popleft() if self._faults else None:
            case None:
                return write()
            case WriteFault.ANSWER_LOST:
                write()
            case WriteFault.LATE:
                self._late.append(write)
            case WriteFault.REQUEST_LOST:
                pass
        raise Ambiguous("the answer to a write is missing")

    async def cluster_uuid(self, proposed: bytes) -> bytes:
        """See the port."""
        assert len(proposed) == 16
        await self._ready()
        found = self._ensemble.read("/uuid") or self._ensemble.create("/uuid", proposed.hex().encode())
        return bytes.fromhex(found.value.decode())

    async def allocate_gen(self) -> int:
        """See the port."""
        await self._ready()
        found = self._ensemble.read("/gen") or self._ensemble.create("/gen", b"0")
        gen = int(found.value) + 1
        self._ensemble.set("/gen", str(gen).encode(), found.version)
        return gen

    async def register(self, registration: Registration) -> int:
        """See the port."""
        await self._ready()
        path, data = f"/nodes/{registration.node}", encode_registration(registration)
        found = self._ensemble.read(path)
        if found is not None and found.owner == self._session:
            self._ensemble.set(path, data, found.version)
            return found.czxid
        if found is not None:
            self._ensemble.delete(path, found.version)
        return self._ensemble.create(path, data, self._session).czxid

    async def registrations(self) -> Mapping[str, Registration]:
        """See the port."""
        return {name: decode_registration(node.value, name, node.czxid) for name, node in await self._values("/nodes")}

    async def records(self) -> Mapping[int, PartitionRecord]:
        """See the port."""
        return {int(name): decode_record(node.value, node.version) for name, node in await self._values("/p")}

    async def create_records(self, records: list[PartitionRecord]) -> bool:
        """See the port."""
        values = {f"/p/{record.partition}": encode_record(record) for record in records}
        _check_size(sum(map(len, values.values())))
        try:
            await self._write(lambda: self._ensemble.create_all(values))
        except Conflict:
            return False
        return True

    async def write_record(self, record: PartitionRecord) -> PartitionRecord:
        """See the port."""
        return replace(record, version=await self.put(f"/p/{record.partition}", encode_record(record), record.version))

    async def get(self, path: str) -> Versioned | None:
        """See the port."""
        await self._ready()
        self._armed.add(path)
        found = self._ensemble.read(path)
        return None if found is None else Versioned(found.value, found.version)

    async def put(self, path: str, value: bytes, version: int | None) -> int:
        """See the port."""
        _check_size(len(value))
        if version is None:
            return (await self._write(lambda: self._ensemble.create(path, value))).version
        return await self._write(lambda: self._ensemble.set(path, value, version))

    async def delete(self, path: str, version: int) -> None:
        """See the port."""
        await self._write(lambda: self._ensemble.delete(path, version))

    async def children(self, path: str) -> list[str]:
        """See the port."""
        await self._ready()
        self._armed.add(path)
        return self._ensemble.children(path)

    def watch(self, on_change: Callable[[str], None]) -> None:
        """See the port; paths as in `repl.metastore.zookeeper`."""
        self._on_change.append(on_change)

    async def _values(self, parent: str) -> list[tuple[str, _Znode]]:
        names = await self.children(parent)
        self._armed.update(f"{parent}/{name}" for name in names)
        nodes = ((name, self._ensemble.read(f"{parent}/{name}")) for name in names)
        return [(name, node) for name, node in nodes if node is not None]


def _check_size(size_bytes: int) -> None:
    if size_bytes > RECORD_BYTES_MAX:
        raise TooLarge(f"{size_bytes} bytes, the metastore takes {RECORD_BYTES_MAX}")
