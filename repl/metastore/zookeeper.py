"""ZooKeeper as the metastore: what lies where, and the rules for writing it.

Below ROOT/CLUSTER lie `/uuid`, `/gen` (a counter), `/p/<id>` (partition records, never deleted), `/nodes/<name>`
(ephemeral; its creation zxid is the inc) and whatever `put` keeps. Decides nothing about partitions: an undecided or
refused write is the caller's to repeat or to recompute. Sessions, requests and errors are `repl.metastore.link`'s,
the bytes `repl.metastore.records`'; the twin with faults at will is `repl.metastore.memory`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import structlog

from repl.metastore.link import RECONNECT_DELAY_FIRST_S, Stat, ZooKeeperLink, gather_all
from repl.metastore.port import Ambiguous, Conflict, SessionState, Unavailable, Versioned
from repl.metastore.records import (
    RECORD_BYTES_MAX,
    decode_record,
    decode_registration,
    encode_record,
    encode_registration,
)
from repl.model.errors import CodecError, Corruption, LocalFault, TooLarge
from repl.model.record import PartitionRecord, Registration

T = TypeVar("T")

log = structlog.get_logger(__name__)

ATTEMPTS_LIMIT: Final = 8
"""Rounds of read and conditional write within one call before it gives up as Unavailable. Each round lost means that
somebody else won one; eight in a row do not happen among a handful of nodes."""


class ZooKeeperMetastore:
    """`repl.metastore.port.Metastore` on a ZooKeeper ensemble."""

    def __init__(
        self, hosts: str, root: str, cluster: str, *, session_timeout_ms: int, connect_timeout_ms: int
    ) -> None:
        """`hosts` is "host:port,host:port"; everything lies below `root`/`cluster`."""
        self._hosts = hosts
        self._base = f"/{root.strip('/')}/{cluster}" if root.strip("/") else f"/{cluster}"
        self._session_timeout_ms = session_timeout_ms
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._started: ZooKeeperLink | None = None
        self._state = SessionState.SUSPENDED
        self._connected = asyncio.Event()
        self._on_session: Callable[[SessionState], None] | None = None
        self._on_change: list[Callable[[str], None]] = []

    @property
    def _link(self) -> ZooKeeperLink:
        assert self._started is not None, "start() comes first"
        return self._started

    async def start(self, on_session: Callable[[SessionState], None]) -> None:
        """See the port. `on_session` hears its first state just before this returns."""
        self._started = ZooKeeperLink(self._hosts, self._session_timeout_ms, self._session_event, self._changed)
        self._started.start()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._make_ground()
        except TimeoutError as error:
            await self.stop()
            raise LocalFault(
                f"no ZooKeeper answers at {self._hosts} within {self._connect_timeout_s:g} s; "
                f"check that it runs and that [metastore] hosts is right"
            ) from error
        except LocalFault:
            await self.stop()
            raise
        self._on_session = on_session
        on_session(self._state)

    async def _make_ground(self) -> None:
        while True:
            await self._connected.wait()
            try:
                for path in ("/p", "/nodes"):
                    await self._link.ensure(self._base + path)
            except (Conflict, Ambiguous, Unavailable) as error:
                log.warning("metastore.start_retried", hosts=self._hosts, error=repr(error))
                await asyncio.sleep(RECONNECT_DELAY_FIRST_S)
            else:
                return

    async def stop(self) -> None:
        """See the port."""
        if self._started is not None:
            await self._started.stop()

    def _session_event(self, state: SessionState) -> None:
        self._state = state
        if state is SessionState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        if self._on_session is not None:
            self._on_session(state)

    def watch(self, on_change: Callable[[str], None]) -> None:
        """See the port. Paths are below ROOT/CLUSTER: "/p/3" a record, "/p" the set of records, "/nodes" the
        registrations, else the path that was read. After a disconnection every path that was read since its last
        hint is named again."""
        self._on_change.append(on_change)

    def _changed(self, full: str) -> None:
        path = full.removeprefix(self._base)
        hint = "/nodes" if path.startswith("/nodes/") else path
        for on_change in self._on_change:
            on_change(hint)

    # --- identity ---

    async def cluster_uuid(self, proposed: bytes) -> bytes:
        """See the port. Kept as hex text."""
        assert len(proposed) == 16
        path = f"{self._base}/uuid"
        for _ in range(ATTEMPTS_LIMIT):
            found = await self._link.read(path, armed=False)
            if found is not None:
                return _parse(path, found[0], _uuid)
            try:
                await self._link.create(path, proposed.hex().encode())
            except (Conflict, Ambiguous) as error:
                log.debug("metastore.uuid_retried", error=repr(error))
        raise Unavailable(f"{path} could not be agreed on")

    async def allocate_gen(self) -> int:
        """See the port. One that was taken by an undecided write is skipped, never given twice."""
        path = f"{self._base}/gen"
        for _ in range(ATTEMPTS_LIMIT):
            found = await self._link.read(path, armed=False)
            try:
                if found is None:
                    await self._link.create(path, b"1")
                    return 1
                gen = _parse(path, found[0], int) + 1
                await self._link.set(path, str(gen).encode(), found[1].version)
            except (Conflict, Ambiguous) as error:
                log.debug("metastore.gen_retried", error=repr(error))
            else:
                return gen
        raise Unavailable(f"{path} could not be raised")

    async def register(self, registration: Registration) -> int:
        """See the port. In the same session it renews the data and keeps the inc. Raises Unavailable when the session
        changed meanwhile: a registration made for one session is not left in another (H28)."""
        link, session = self._link, self._link.session()
        path, data = f"{self._base}/nodes/{registration.node}", encode_registration(registration)
        for _ in range(ATTEMPTS_LIMIT):
            found = await link.stat(path, armed=False)
            if link.session() != session:
                raise Unavailable("the session ended while registering")
            try:
                if found is None:
                    made = await link.create(path, data, ephemeral=True)
                    if made.owner == session:
                        return made.czxid
                    await link.delete(path, made.version)
                elif found.owner == session:
                    await link.set(path, data, found.version)
                    return found.czxid
                else:
                    log.info("metastore.stale_registration", node=registration.node, owner=found.owner)
                    await link.delete(path, found.version)
            except (Conflict, Ambiguous) as error:
                log.debug("metastore.register_retried", error=repr(error))
        raise Unavailable(f"{path} could not be registered")

    async def registrations(self) -> Mapping[str, Registration]:
        """See the port. A caller that also reads records reads them first (H29)."""
        found = {}
        for name, path, data, stat in await self._values("/nodes"):
            found[name] = _parse(path, data, partial(decode_registration, node=name, inc=stat.czxid))
        return found

    # --- records ---

    async def records(self) -> Mapping[int, PartitionRecord]:
        """See the port."""
        found = {}
        for name, path, data, stat in await self._values("/p"):
            record = _parse(path, data, partial(decode_record, version=stat.version))
            if name != str(record.partition):
                raise Corruption(f"{path} in ZooKeeper holds the record of partition {record.partition}")
            found[record.partition] = record
        return found

    async def create_records(self, records: list[PartitionRecord]) -> bool:
        """See the port. Raises Ambiguous, Unavailable."""
        values = {f"{self._base}/p/{record.partition}": encode_record(record) for record in records}
        _check_size("the records made at once", sum(map(len, values.values())))
        try:
            await self._link.create_all(values)
        except Conflict:
            return False
        return True

    async def write_record(self, record: PartitionRecord) -> PartitionRecord:
        """See the port."""
        return replace(record, version=await self.put(f"/p/{record.partition}", encode_record(record), record.version))

    # --- small values ---

    async def get(self, path: str) -> Versioned | None:
        """See the port."""
        full = self._base + path
        for _ in range(ATTEMPTS_LIMIT):
            found = await self._link.read(full, armed=True)
            if found is not None:
                return Versioned(found[0], found[1].version)
            if await self._link.stat(full, armed=True) is None:
                return None
        raise Unavailable(f"{full} comes and goes")

    async def put(self, path: str, value: bytes, version: int | None) -> int:
        """See the port. Parents are made as needed."""
        _check_size(path, len(value))
        assert version is None or version >= 0, "a conditional write needs the version on which it is based"
        full = self._base + path
        if version is None:
            return (await self._link.create(full, value)).version
        return (await self._link.set(full, value, version)).version

    async def delete(self, path: str, version: int) -> None:
        """See the port."""
        assert version >= 0, "a conditional delete needs the version on which it is based"
        await self._link.delete(self._base + path, version)

    async def children(self, path: str) -> list[str]:
        """See the port."""
        full = self._base + path
        for _ in range(ATTEMPTS_LIMIT):
            found = await self._link.children(full)
            if found is not None:
                return sorted(found)
            if await self._link.stat(full, armed=True) is None:
                return []
        raise Unavailable(f"{full} comes and goes")

    async def _values(self, parent: str) -> list[tuple[str, str, bytes, Stat]]:
        """(name, full path, value, stat) of all that lies directly below `parent`; what goes meanwhile is left out."""

        async def value(name: str) -> tuple[str, str, bytes, Stat] | None:
            full = f"{self._base}{parent}/{name}"
            found = await self._link.read(full, armed=True, sync=False)  # `children` has just synced
            return None if found is None else (name, full, *found)

        calls = [value(name) for name in await self.children(parent)]
        return [found for found in await gather_all(*calls) if found is not None]


def _uuid(text: bytes) -> bytes:
    found = bytes.fromhex(text.decode("ascii"))
    if len(found) != 16:
        raise ValueError(f"{len(found)} bytes where a uuid has 16")
    return found


def _parse(path: str, data: bytes, parse: Callable[[bytes], T]) -> T:
    try:
        return parse(data)
    except (ValueError, CodecError) as error:
        raise Corruption(f"{path} in ZooKeeper: {error}") from error


def _check_size(what: str, size_bytes: int) -> None:
    if size_bytes > RECORD_BYTES_MAX:
        raise TooLarge(f"{what}: {size_bytes} bytes, the metastore takes {RECORD_BYTES_MAX}")
