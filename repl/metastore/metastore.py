"""The metastore as a tree of znodes: the paths, and the rules for writing them.

Below one base lie `/uuid`, `/gen` (a counter), `/p/ID` (partition records, never deleted), `/nodes`, `/replicas`,
`/node-ids`, `/ids` and `/joined-readers` (`repl.metastore.liveness`) and the values of `put` and `claim`. Nothing
here decides about partitions: the caller repeats or recomputes an undecided or refused write.
`repl.metastore.zookeeper` provides the tree, or `tests.support.memory_metastore` with injected faults;
`repl.metastore.codecs` has the bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from isthmus.repl.machine import machine
from isthmus.repl.metastore.codecs import (
    COMMIT_BYTES_MAX,
    OP_BYTES,
    RECORD_BYTES_MAX,
    decode_at,
    decode_record,
    decode_registration,
    encode_record,
)
from isthmus.repl.metastore.liveness import ATTEMPTS_LIMIT, Liveness
from isthmus.repl.metastore.port import (
    Ambiguous,
    ConditionalWrite,
    Precondition,
    SessionState,
    Unavailable,
    VersionConflict,
    Versioned,
)
from isthmus.repl.metastore.tree_port import Create, Op, Set, Stat, VersionCheck, ZnodeClient
from isthmus.repl.metastore.watch_cache import WatchCache
from isthmus.repl.model.errors import TooLarge, Unreadable
from isthmus.repl.model.record import Member, PartitionRecord, Registration
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

COUNTER_ATTEMPTS_MAX: Final = 32
"""Attempts to raise the counter of log ids before Unavailable. Every node of a new cluster raises it as it starts, so
that all but one of those that try at a time lose: without pauses as many attempts would be needed as there are
nodes."""

COUNTER_AT_ONCE: Final = 3
"""Attempts without a pause: enough for a handful of nodes."""

COUNTER_PAUSE_S: Final = 0.01
COUNTER_PAUSE_MAX_S: Final = 1.0
"""Longest pause before an attempt: the first, and what it doubles to. How much of it is waited is chance, so that
hundreds of nodes spread out over about as many round trips."""

LISTED_PATHS: Final = ("/p", "/nodes")
"""Paths that every node lists, so they must exist to be watched."""


class TreeMetastore:
    """Implements `repl.metastore.port.Metastore` except for `start` and `stop`.

    A read of the registrations may follow a read of the records without repeating either (H29): the read of the records
    begins with a sync on the one connection, whose answer comes after the events of every change that was confirmed
    before it, and the answer to each read comes after the events of every change before the state that it shows. So a
    session whose end was confirmed before a record's write became visible, or before the call, is known to be over when
    `registrations(sync=False)` returns. If ZooKeeper's sync is answered by a deposed leader (it asks no majority), both
    reads return the same older state, still in order: a connection never goes back, and a server that knows less
    refuses a new one. `synced_record` does ask a majority.
    """

    def __init__(self, base: str) -> None:
        """All paths lie below `base`, "" or an absolute path."""
        self._base = base
        self._client: ZnodeClient | None = None
        self._on_change: list[Callable[[str], None]] = []
        self._versions: dict[str, int] = {}

    def _attach(self, client: ZnodeClient) -> None:
        self._client = client
        self._liveness = Liveness(client, self._base)
        self._records: WatchCache[PartitionRecord] = WatchCache(client, f"{self._base}/p", self._seen_record, keep=True)
        self._registrations: WatchCache[Registration] = WatchCache(
            client, f"{self._base}/nodes", _registration, keep=False
        )

    @property
    def _tree(self) -> ZnodeClient:
        assert self._client is not None, "start() comes first"
        return self._client

    # --- events of the session ---

    def watch(self, on_change: Callable[[str], None]) -> None:
        """See the port. Paths are below the base: "/p/3" for a record, "/p" for the set of records, "/nodes" for the
        registrations, else the path that was read. After a disconnection every path that was read since its last hint
        is reported again."""
        self._on_change.append(on_change)

    def _changed(self, full: str) -> None:
        """The value at `full`, read with a watch, has changed."""
        self._records.changed(full)
        self._registrations.changed(full)
        path = full.removeprefix(self._base)
        hint = "/nodes" if path.startswith("/nodes/") else path
        for on_change in self._on_change:
            try:
                on_change(hint)
            except Exception as error:  # a lost hint would leave the others with what they have read
                unforeseen.exception("metastore.observer_bug", error, path=hint)

    def _invalidate_caches(self, state: SessionState) -> None:
        """Invalidate the caches: watches do not survive a connection."""
        log.debug("metastore.session", state=str(state))
        self._records.broken()
        self._registrations.broken()

    # --- identity ---

    async def cluster_uuid(self, proposed: bytes) -> bytes:
        """See the port. Stored as hex text."""
        assert len(proposed) == 16
        path = f"{self._base}/uuid"
        for _ in range(ATTEMPTS_LIMIT):
            found = await self._tree.read(path, armed=False)
            if found is not None:
                return decode_at(path, found[0], _uuid)
            try:
                await self._tree.create(path, proposed.hex().encode())
            except (VersionConflict, Ambiguous) as error:
                log.debug("metastore.uuid_retried", error=repr(error))
        raise Unavailable(f"{path} could not be agreed on")

    async def allocate_log_id(self) -> int:
        """See the port. An id that an undecided write may have taken is skipped, and never given twice."""
        path = f"{self._base}/gen"
        for attempt in range(COUNTER_ATTEMPTS_MAX):
            if attempt >= COUNTER_AT_ONCE:
                await asyncio.sleep(_counter_pause_s(attempt - COUNTER_AT_ONCE))
            found = await self._tree.read(path, armed=False)
            try:
                if found is None:
                    await self._tree.create(path, b"1")
                    return 1
                log_id = decode_at(path, found[0], _parse_log_id) + 1
                await self._tree.set(path, str(log_id).encode(), found[1].version)
            except (VersionConflict, Ambiguous) as error:
                log.debug("metastore.gen_retried", error=repr(error))
            else:
                return log_id
        raise Unavailable(f"{path} could not be raised")

    async def register(self, registration: Registration, takes: Collection[int] | None = None) -> int:
        """See the port."""
        return await self._liveness.register(registration, takes)

    async def claim(self, path: str, value: bytes) -> bool:
        """See the port. `on_change(path)` follows when it goes or changes; `delete(path, 0)` gives it up."""
        return await self._liveness.claim(path, value)

    async def end_registration(self, node: str, session_id: int, claims: Collection[str] = ()) -> bool:
        """See the port."""
        return await self._liveness.end(node, session_id, claims)

    async def registrations(self, *, sync: bool = True) -> Mapping[str, Registration]:
        """See the port. A caller that also reads records reads them first (H29)."""
        return await self._registrations.look(sync=sync)

    async def all_read_joined(self) -> bool:
        """See the port."""
        return await self._liveness.all_read_joined()

    # --- records ---

    async def records(self) -> Mapping[int, PartitionRecord]:
        """See the port."""
        return {record.partition: record for record in (await self._records.look()).values()}

    @property
    def unreadable(self) -> Mapping[str, str]:
        """See the port."""
        found = {f"/p/{name}": why for name, why in self._records.unreadable.items()}
        return found | {f"/nodes/{name}": why for name, why in self._registrations.unreadable.items()}

    async def synced_record(self, partition: int) -> PartitionRecord:
        """See the port. A majority of the ensemble confirms the version; a sync alone may be answered by a deposed
        leader."""
        path = f"{self._base}/p/{partition}"
        found = await self._tree.read(path, armed=False, sync=False)
        held = await self._tree.confirm(path, 0 if found is None else found[1].version)
        if found is None or not held:
            found = await self._tree.read(path, armed=False, sync=False)
        if found is None:
            raise LookupError(f"there is no partition {partition}")
        return self._record(str(partition), path, *found)

    async def create_records(
        self,
        records: list[PartitionRecord],
        with_values: Collection[ConditionalWrite] = (),
        unmoved: Collection[Precondition] = (),
    ) -> bool:
        """See the port. One commit; raises TooLarge above its limit, Ambiguous, Unavailable."""
        ops: list[Op] = [Create(f"{self._base}/p/{record.partition}", encode_record(record)) for record in records]
        ops += [*map(self._write_of, with_values), *self._checks(unmoved)]
        if (size_bytes := _size_bytes(ops)) > COMMIT_BYTES_MAX:
            raise TooLarge(
                f"{len(records)} records made at once: {size_bytes} bytes, the metastore takes {COMMIT_BYTES_MAX} in "
                "one write; fewer partitions, fewer replicas or shorter names of nodes are smaller"
            )
        await self._ensure_parents(with_values)
        try:
            await self._tree.commit(f"creating {len(records)} records", ops)
        except VersionConflict:
            return False
        return True

    async def write_record(
        self, record: PartitionRecord, needs: Collection[Member] = (), unmoved: Collection[Precondition] = ()
    ) -> PartitionRecord:
        """See the port."""
        path, value = f"/p/{record.partition}", encode_record(record)
        if not needs:
            return replace(record, version=await self.put(path, value, record.version, unmoved))
        ops: list[Op] = [*await self._liveness.checks(record.partition, needs), *self._checks(unmoved)]
        ops.append(Set(self._base + path, value, record.version))
        written = (await self._tree.commit(f"writing {path}", ops))[-1]
        assert written is not None
        return replace(record, version=written.version)

    def _seen_record(self, name: str, path: str, data: bytes, stat: Stat) -> PartitionRecord:
        """The record at `path`. Raises Unreadable for one that went back, of which the last version stays: nothing is
        decided about its partition, and the other records are read."""
        record, newest = self._record(name, path, data, stat), self._versions.get(name, -1)
        if record.version < newest:
            raise Unreadable(
                f"metastore-rollback: {path} is at version {record.version}, this process has seen version {newest}: "
                "the metastore lost what it had confirmed, or the record was deleted by hand"
            )
        self._versions[name] = record.version
        return record

    def _record(self, name: str, path: str, data: bytes, stat: Stat) -> PartitionRecord:
        record = decode_at(path, data, partial(decode_record, version=stat.version))
        if name != str(record.partition):
            raise Unreadable(f"{path} in the metastore holds the record of partition {record.partition}")
        return record

    # --- small values ---

    def _write_of(self, planned: ConditionalWrite) -> Op:
        full = self._base + planned.path
        if planned.version is None:
            return Create(full, planned.value)
        return Set(full, planned.value, planned.version)

    async def _ensure_parents(self, writes: Collection[ConditionalWrite]) -> None:
        """Make the parents of values that are to be created: a commit needs them."""
        parents = {self._base + planned.path.rpartition("/")[0] for planned in writes if planned.version is None}
        for parent in sorted(parents - {self._base}):
            await self._tree.ensure(parent)

    async def get(self, path: str) -> Versioned | None:
        """See the port."""
        full = self._base + path
        for _ in range(ATTEMPTS_LIMIT):
            found = await self._tree.read(full, armed=True)
            if found is not None:
                return Versioned(found[0], found[1].version)
            if await self._tree.stat(full, armed=True) is None:
                return None
        raise Unavailable(f"{full} comes and goes")

    def _checks(self, unmoved: Collection[Precondition]) -> list[VersionCheck]:
        return [VersionCheck(self._base + each.path, each.version) for each in unmoved]

    async def put(self, path: str, value: bytes, version: int | None, unmoved: Collection[Precondition] = ()) -> int:
        """See the port."""
        _check_size(path, len(value))
        assert version is None or version >= 0, "a conditional write needs the version on which it is based"
        full = self._base + path
        if unmoved:
            if version is None:
                await self._tree.ensure(full.rpartition("/")[0])
            write: Op = Create(full, value) if version is None else Set(full, value, version)
            stat = (await self._tree.commit(f"writing {path}", [write, *self._checks(unmoved)]))[0]
            return 0 if stat is None else stat.version
        if version is None:
            return (await self._tree.create(full, value)).version
        return (await self._tree.set(full, value, version)).version

    async def put_all(self, writes: Collection[ConditionalWrite], unmoved: Collection[Precondition] = ()) -> None:
        """See the port. One commit."""
        what = ", ".join(planned.path for planned in writes)
        for planned in writes:
            _check_size(planned.path, len(planned.value))
        ops = [*map(self._write_of, writes), *self._checks(unmoved)]
        if (size_bytes := _size_bytes(ops)) > COMMIT_BYTES_MAX:
            raise TooLarge(f"{what}: {size_bytes} bytes, the metastore takes {COMMIT_BYTES_MAX} in one write")
        await self._ensure_parents(writes)
        await self._tree.commit(f"writing {what}", ops)

    async def delete(self, path: str, version: int) -> None:
        """See the port."""
        assert version >= 0, "a conditional delete needs the version on which it is based"
        await self._tree.delete(self._base + path, version)

    async def children(self, path: str) -> list[str]:
        """See the port."""
        full = self._base + path
        for _ in range(ATTEMPTS_LIMIT):
            found = await self._tree.children(full)
            if found is not None:
                return sorted(found)
            if await self._tree.stat(full, armed=True) is None:
                return []
        raise Unavailable(f"{full} comes and goes")


def _registration(name: str, path: str, data: bytes, stat: Stat) -> Registration:
    found = decode_at(path, data, partial(decode_registration, node=name, session_id=stat.czxid))
    return replace(found, owner=stat.owner)


def _uuid(text: bytes) -> bytes:
    found = bytes.fromhex(text.decode("ascii"))
    if len(found) != 16:
        raise ValueError(f"{len(found)} bytes where a uuid has 16")
    return found


def _counter_pause_s(pauses: int) -> float:
    return min(COUNTER_PAUSE_MAX_S, COUNTER_PAUSE_S * 2.0**pauses) * machine().random().random()


def _parse_log_id(text: bytes) -> int:
    if not text.strip().isdigit():
        raise ValueError(f"{text!r:.80} is not a whole number: write one above every gen that was ever allocated")
    return int(text)


def _check_size(what: str, size_bytes: int) -> None:
    if size_bytes > RECORD_BYTES_MAX:
        raise TooLarge(f"{what}: {size_bytes} bytes, the metastore takes {RECORD_BYTES_MAX}")


def _size_bytes(ops: Collection[Op]) -> int:
    """Size of a commit."""
    return sum(OP_BYTES + len(op.path.encode()) + (len(op.value) if isinstance(op, Create | Set) else 0) for op in ops)
