"""Acts on source queues: operators' and other components' changes, and reports of this node.

Each act is written to the metastore (`queues.queue_store`) and applied on this node at once; other nodes learn of it by
a watch. Gaps of partitions led elsewhere are closed there: `close_gaps` closes those of this node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple, Protocol

import structlog

from isthmus.queues.counters_wire import HeldCountersMessage
from isthmus.queues.explain import explained, explained_bulk
from isthmus.queues.gaps import QueueGap
from isthmus.queues.lag import LagMemory, LagReadings, QueueLag
from isthmus.queues.object_reader import backfilled, sound_changes
from isthmus.queues.queue_documents import (
    CLEARED,
    PUBLISHING,
    SERVING,
    AppliedOffsets,
    AuditInfo,
    LostReferences,
    Positions,
)
from isthmus.queues.queue_server import QueueServer
from isthmus.queues.rate_limit import Rates
from isthmus.queues.riak_origin import RIAK_CLUSTER, RIAK_NAME
from isthmus.queues.service import QueueService
from isthmus.queues.status import held_reasons, ledger, reason
from isthmus.queues.window_rules import BULK_PRIORITIES, FOLD, FULL_SYNC, PRIORITIES, Item
from isthmus.queues.wire import OFF, SUSPENDED, ObjectReply, ObjectRequest, OwnedByOther
from isthmus.repl.model.entry import EntryKind
from isthmus.repl.model.errors import BadInput, NotReady
from isthmus.repl.model.keys import Key
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.store.port import Change, Store
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

PEEK_ROWS: Final = 4_096
"""Rows of the change index read in one partition for references that are not in memory."""

SECOND_MS: Final = 1_000
"""Time marks of the store are a second apart: a clear by time ends with the second of the act."""

_TO_FETCH: Final = int(ReferenceKind.TO_FETCH)
_LEAVING: Final = int(ReferenceKind.LEAVING)
_DATA: Final = int(EntryKind.DATA)


class GapProof(NamedTuple):
    """What a full-sync has proven: changes of a partition below an offset of its present history, and losses of bulk
    references by their marks."""

    offsets: Mapping[int, int]
    losses: frozenset[str]


class GapChoice(NamedTuple):
    """Gaps to close: those of `ids`, or all of a bucket type (None: any) that lie wholly between two wall-clock times.
    A gap of `ids` must not reach beyond `upto_ms` either: it keeps its id when it grows. `proof`: what a full-sync has
    proven of them, and no time counts; None: somebody else vouches for them."""

    ids: tuple[str, ...] | None = None
    bucket_type: bytes | None = None
    from_ms: int = 0
    upto_ms: int = 1 << 62
    proof: GapProof | None = None

    def includes_gap(self, partition: int, bucket_type: bytes, gap: QueueGap) -> bool:
        """Whether a gap of a partition is one of them."""
        gap_id = f"{partition}:{gap.start}"
        if self.proof is not None:
            return gap_id in (self.ids or ()) and gap.end <= self.proof.offsets.get(partition, -1)
        return self._includes(gap_id, (bucket_type.decode(),), gap.from_ms, gap.upto_ms)

    def includes_loss(self, lost: LostReferences) -> bool:
        """Whether a recorded loss of bulk references is one of them."""
        if self.proof is not None:
            return _lost_id(lost) in (self.ids or ()) and loss_mark(lost) in self.proof.losses
        return self._includes(_lost_id(lost), lost.bucket_types, lost.from_ms, lost.upto_ms)

    def _includes(self, gap_id: str, bucket_types: tuple[str, ...], from_ms: int, upto_ms: int) -> bool:
        if self.ids is not None:
            return gap_id in self.ids and upto_ms <= self.upto_ms
        right_type = self.bucket_type is None or {*bucket_types} <= {self.bucket_type.decode()}
        return right_type and self.from_ms <= from_ms and upto_ms <= self.upto_ms


class ActorWitness(Protocol):
    """What clusters hold of each other's actors (`repl.runtime.actor_renewal`, `repl.runtime.held_counters`)."""

    def learn(self, counters: Mapping[bytes, int], cluster: str, /) -> None:
        """A cluster holds these counters of our actors."""

    def held(self, cluster_uuid: bytes, /) -> Mapping[bytes, int]:
        """The counters that this node holds of a cluster's actors."""


class QueueActs:
    """Acts on the queues of one node. All raise UnknownQueue, BadInput, NotReady."""

    def __init__(self, queues: QueueService, store: Store, pool: Executor, witness: ActorWitness | None = None) -> None:
        """`witness`: see ActorWitness; None: no counters are exchanged."""
        self._queues = queues
        self._store = store
        self._pool = pool
        self._witness = witness
        self._lag_memory = LagMemory()
        self._lag_readings = LagReadings(self._read_lags)

    # ---------------------------------------------------------------- acts that hold on all nodes

    async def register(
        self,
        name: str,
        values: Mapping[str, Any],
        start_ms: int,
        act: AuditInfo,
        positions: Positions = (),
        *,
        now: AppliedOffsets | None = None,
    ) -> None:
        """See `QueueStore.register`. With `now` the queue begins with changes that were not applied then."""
        if now is not None:
            start_ms, positions = now.earliest_ms, now.positions
        await self._queues.queue_store.register(name, values, start_ms, act, positions, by_time=now is not None)
        await self._queues.follow_definitions()
        log.info("queue.registered", queue=name, by=act.by, reason=act.reason, start_ms=start_ms)

    async def place(self, name: str, positions: Positions, act: AuditInfo) -> None:
        """See `QueueStore.place`."""
        seen = self._queues.named(name).machine.newest_command_version()
        await self._queues.queue_store.place(name, positions, act, seen=seen)
        await self._queues.refresh(name)
        log.info("queue.placed", queue=name, by=act.by, reason=act.reason, partitions=len(positions))

    async def delist(self, name: str, act: AuditInfo) -> None:
        """See `QueueStore.delist`."""
        self._queues.named(name)
        await self._queues.queue_store.delist(name, act)
        await self._queues.follow_definitions()
        log.info("queue.delisted", queue=name, by=act.by, reason=act.reason)

    async def suspend(self, name: str, what: str | Sequence[str], node: str | None, act: AuditInfo) -> None:
        """Suspend SERVING (nothing is served), PUBLISHING (no references are made), or both; it outlasts restarts."""
        whats = self._checked(name, what)
        await self._queues.queue_store.suspend(name, whats, node, act)
        await self._queues.refresh(name)
        log.info("queue.suspended", queue=name, what=whats, only_node=node, by=act.by, reason=act.reason)

    async def resume(self, name: str, what: str | Sequence[str], node: str | None, act: AuditInfo) -> None:
        """End suspensions; see `suspend`."""
        whats = self._checked(name, what)
        await self._queues.queue_store.resume(name, whats, node)
        await self._queues.refresh(name)
        log.info("queue.resumed", queue=name, what=whats, only_node=node, by=act.by, reason=act.reason)

    def applied(self) -> AppliedOffsets:
        """Applied offsets of the partitions that this node leads."""
        wall_ms = self._queues.time.wall_ms()
        return AppliedOffsets(tuple(sorted(self._queues.applied_upto().items())), wall_ms, wall_ms)

    async def clear(self, name: str, act: AuditInfo, now: AppliedOffsets | None = None) -> None:
        """Discard what waits, at every priority and on all nodes, into gaps. Waiting changes were applied at `now`
        (None: on this node), by offsets, so that no node's clock decides; where no leader answered, it was made up to
        the latest of the clocks."""
        seen = self._queues.named(name).machine.newest_command_version()
        positions, _, latest_ms = self.applied() if now is None else now
        start_ms = (latest_ms // SECOND_MS + 1) * SECOND_MS
        await self._queues.queue_store.command(name, CLEARED, start_ms, act, positions, seen=seen, by_time=True)
        await self._queues.refresh(name)
        log.info("queue.cleared", queue=name, by=act.by, reason=act.reason)

    async def release(self, name: str, start_ms: int, act: AuditInfo, now: AppliedOffsets | None = None) -> None:
        """See `QueueStore.release`. With `now` the next owner begins with changes that were not applied then."""
        seen = self._queues.named(name).machine.newest_command_version()
        start_ms, positions = (start_ms, ()) if now is None else (now.earliest_ms, now.positions)
        by_time = now is not None
        await self._queues.queue_store.release(name, start_ms, act, positions, seen=seen, by_time=by_time)
        await self._queues.refresh(name)
        log.info("queue.released", queue=name, by=act.by, reason=act.reason, start_ms=start_ms)

    async def throttle(self, name: str, rates: Rates | None, act: AuditInfo) -> None:
        """See `QueueStore.set_rates`."""
        self._queues.named(name)
        await self._queues.queue_store.set_rates(name, rates, act)
        await self._queues.refresh(name)
        log.info("queue.throttled", queue=name, rates=rates, by=act.by, reason=act.reason)

    async def change_settings(
        self, name: str, values: Mapping[str, Any], act: AuditInfo, *, default: bool = False, again: bool = False
    ) -> None:
        """Change settings of a queue while it runs, on all nodes; see `QueueStore.change_settings`."""
        queue = self._queues.named(name)
        seen = queue.machine.newest_command_version()
        await self._queues.queue_store.change_settings(
            name, queue.settings, values, act, default=default, again=again, seen=seen
        )
        await self._queues.refresh(name)
        log.info("queue.set", queue=name, values=dict(values), default=default, again=again, by=act.by)

    def rates(self, name: str) -> Rates:
        """The rate limits in effect on this node: set by an operator, or else by the config file."""
        return self._queues.named(name).throttle.rates

    def _checked(self, name: str, what: str | Sequence[str]) -> tuple[str, ...]:
        self._queues.named(name)
        whats = (what,) if isinstance(what, str) else tuple(dict.fromkeys(what))
        for one in whats:
            if one not in (SERVING, PUBLISHING):
                raise BadInput(f"{one!r} of a queue cannot be suspended; {SERVING!r} and {PUBLISHING!r} can")
        if not whats:
            raise BadInput(f"give {SERVING!r}, {PUBLISHING!r}, or both")
        return whats

    # ---------------------------------------------------------------- bulk references

    async def push(self, name: str, keys: Sequence[Key], priority: int, wait_ms: int) -> int:
        """Queue bulk references on this node, waiting for space for `wait_ms` at most; returns how many of the first
        were accepted: the caller repeats the others. Filters do not apply: the caller has chosen the queue."""
        queue = self._queues.named(name)
        if priority not in BULK_PRIORITIES:
            raise BadInput(f"priority {priority} takes no references; {FULL_SYNC} (full-sync) and {FOLD} (fold) do")
        return await queue.push(keys, priority, self._queues.time.now_ms() + wait_ms)

    async def lengths(self, name: str) -> tuple[int, int, int | None]:
        """References that wait on this node at the fold, full-sync and real-time priority; None: unknown."""
        queue = self._queues.named(name)
        full_sync, fold = (bulk.waiting_count for bulk in queue.machine.bulk_queues)
        return fold, full_sync, (await self._queues.backlog(queue)).changes

    # ---------------------------------------------------------------- one object

    async def object_of(self, name: str, wanted: ObjectRequest) -> ObjectReply:
        """The object of a key as its leader has it, for the cluster that owns the queue; the queue does not change.
        Raises OwnedByOther, and what the read raises."""
        queue = self._owned(name, wanted.cluster, wanted.cluster_name)
        if queue.state in (OFF, SUSPENDED):
            raise NotReady(f"queue {name} gives nothing out now: {reason(queue, self._queues.time.now_ms())}")
        return ObjectReply(self._queues.cluster_uuid, self._queues.cluster_name, await queue.object_of(wanted.key))

    def counters(self, name: str, message: HeldCountersMessage) -> HeldCountersMessage:
        """Hand on what the cluster that owns the queue holds of this cluster's actors; what this node holds of its own,
        and the queue's filter. Raises UnknownQueue, OwnedByOther."""
        queue = self._owned(name, message.cluster, message.name)
        held: Mapping[bytes, int] = {}
        if self._witness is not None:
            self._witness.learn(message.counters, message.name)
            held = self._witness.held(message.cluster)
        return HeldCountersMessage(self._queues.cluster_uuid, self._queues.cluster_name, held, str(queue.filter))

    def _owned(self, name: str, cluster: bytes, cluster_name: str) -> QueueServer:
        """The queue, if it belongs to that cluster. Raises UnknownQueue, OwnedByOther."""
        queue = self._queues.named(name)
        owner = queue.stored.owner
        if owner is None or owner.cluster != cluster:
            whose = (
                "no cluster" if owner is None or not owner.cluster else f"cluster {owner.name} ({owner.cluster.hex()})"
            )
            raise OwnedByOther(f"queue {name} belongs to {whose}, not to cluster {cluster_name}")
        return queue

    def link(self, name: str) -> dict[str, Any]:
        """Facts that a sink checks before it fetches from a queue (`node.services.link_check`)."""
        queue, queues = self._queues.named(name), self._queues
        owner, digests = queue.stored.owner, queues.cluster.property_digests()
        owned = None if owner is None or not owner.cluster else {"cluster": owner.name, "uuid": owner.cluster.hex()}
        if queue.settings.riak_fetch:
            owned = {"cluster": RIAK_NAME, "uuid": RIAK_CLUSTER.hex()}
        off = queue.state == OFF
        scopes = queues.cluster.scope_digests()
        types = {
            bucket_type.decode(errors="backslashreplace"): {
                "digest": digests[bucket_type].hex() if bucket_type in digests else None,
                "offered": queue.filter.accepts_some_repairs(bucket_type),
            }
            for bucket_type in sorted(queues.cluster.bucket_types())
        }
        return {
            "cluster": queues.cluster_name,
            "cluster_uuid": queues.cluster_uuid.hex(),
            "queue": name,
            "owner": owned,
            "filter": str(queue.filter),
            "blocked": queue.filter.blocks,
            "serving": "off" if off else "running" if queue.serving_suspension is None else "suspended",
            "publishing": "off" if off else "running" if queue.machine.publishing_suspended is None else "suspended",
            "bucket_types": types,
            "places": None
            if scopes is None
            else {
                bucket_type.decode(errors="backslashreplace"): {name.hex(): one.hex() for name, one in found.items()}
                for bucket_type, found in scopes.items()
            },
            "wall_ms": queues.time.wall_ms(),
        }

    # ---------------------------------------------------------------- reports

    def test_filter(self, name: str, bucket_type: bytes, bucket: bytes) -> dict[str, Any]:
        """Whether changes of a bucket are offered, and by which rule."""
        queue = self._queues.named(name)
        decision = queue.filter.decide(bucket_type, bucket)
        rule = None if decision.rule is None else str(decision.rule)
        return {"queue": name, "filter": str(queue.filter), "offered": decision.included, "rule": rule,
                "reason": decision.reason()}  # fmt: skip

    async def peek(self, name: str, count: int) -> list[Item]:
        """The next references on this node, at most `count`, without taking them: real time first, each partition in
        its order."""
        queue = self._queues.named(name)
        found: list[Item] = []
        loop = asyncio.get_running_loop()
        for window in list(queue.machine.windows.values()):
            found += window.peek(count - len(found))
            if len(found) < count and not window.contiguous:
                rows = await loop.run_in_executor(
                    self._pool, sound_changes, self._store, window, window.scan, PEEK_ROWS
                )
                in_memory = window.rows_in_memory()
                found += [
                    (
                        _TO_FETCH if row.kind == _DATA else _LEAVING,
                        window.partition,
                        row.offset,
                        window.bucket_type,
                        row.bucket,
                        row.key,
                        row.origin,
                        row.time_ms,
                        b"",
                    )
                    for row in rows
                    if row.offset >= window.scan and row.offset not in in_memory and window.offers_row(row)
                ][: count - len(found)]
        for bulk in queue.machine.bulk_queues:
            found += bulk.peek(count - len(found))
        return found

    async def lags(self, fresh_ms: int = 0) -> list[QueueLag]:
        """Lag of every queue in the partitions led here, see `queues.lag`. Values that take too long to read are None,
        and the reason says so; seconds come first. `fresh_ms`: numbers of a reading that began so long ago will do."""
        return await self._lag_readings.read(fresh_ms)

    async def stop_lags(self) -> None:
        """End the readings of lags; the store is closed next."""
        await self._lag_readings.stop()

    async def _read_lags(self, by_s: float) -> list[QueueLag]:
        """`by_s`: the loop's time at which what is not read stays unknown."""
        rows = []
        queues = {name: self._queues.named(name) for name in self._queues.machines()}
        found = await self._lag_memory.read(queues, self._store, self._pool, self._queues.time.wall_ms(), by_s)
        for name, queue in queues.items():
            owner, shown = queue.stored.owner, found[name]
            owned = None if owner is None or not owner.cluster else owner
            because, held = _reasons(name, queue, self._queues.time.now_ms())
            rows.append(
                QueueLag(
                    queue=name,
                    cluster=None if owned is None else owned.name,
                    uuid=None if owned is None else owned.cluster.hex(),
                    reason="; ".join(filter(None, [because, *shown.why_unread()])),
                    held=held,
                    ledger_off=queue.ledger_off,
                    partitions=shown.partitions,
                )
            )
        return rows

    def explain(self, key: Key, partition: int | None, change: Change | None) -> dict[str, Any]:
        """{"queues", "lower"}: the state of a key in every queue, see `queues.explain`; `partition` None: led
        elsewhere, then only bulk references are reported. `change`: the key's row of the change index."""
        found = [self._queues.named(name) for name in self._queues.machines()]
        bulk = [row for queue in found for row in explained_bulk(queue, key)]
        if partition is None:
            return {"queues": [], "lower": bulk}
        rows = [explained(queue, partition, key, change, self._offered(queue, partition, change)) for queue in found]
        return {"queues": rows, "lower": bulk}

    def _offered(self, queue: QueueServer, partition: int, change: Change | None) -> Change | None:
        """The key's row as the queue reads it; see `backfilled`."""
        window = queue.machine.windows.get(partition)
        return change if change is None or window is None else backfilled(self._store, window, [change])[0]

    async def ledger(self, name: str) -> dict[str, Any]:
        """The queue's ledger on this node, checked against the change index: "lost" are offsets of rows that neither
        wait nor are in flight nor settled. The index is read twice, so that rows replaced meanwhile do not count as
        lost."""
        queue = self._queues.named(name)
        lost = await self._find_lost(queue)
        if lost:
            again = await self._find_lost(queue)
            lost = {p: [offset for offset in found if offset in again.get(p, ())] for p, found in lost.items()}
            lost = {p: found for p, found in lost.items() if found}
        shown = ledger(queue)
        # A queue that no cluster fetches from has no window in memory: its backlog is counted in the change index.
        backlog = None if shown["fetched"] else (await self._queues.backlog(queue)).changes
        return {**shown, "backlog": backlog, "lost": lost}

    def owners(self) -> dict[str, str]:
        """Uuid of each cluster that owns a queue -> its name."""
        owners = [self._queues.named(name).stored.owner for name in self.names()]
        return {owner.cluster.hex(): owner.name for owner in owners if owner is not None and owner.cluster}

    def names(self) -> list[str]:
        """Names of all queues."""
        return list(self._queues.machines())

    async def _find_lost(self, queue: QueueServer) -> dict[int, list[int]]:
        loop = asyncio.get_running_loop()
        found = {}
        for window in list(queue.machine.windows.values()):
            if window.contiguous and window.cursor < window.scan:
                rows = await loop.run_in_executor(
                    self._pool, sound_changes, self._store, window, window.cursor, PEEK_ROWS
                )
                offsets = window.find_lost(rows)
                if offsets:
                    found[window.partition] = offsets
        return found

    # ---------------------------------------------------------------- gaps

    def gaps(self, name: str | None = None) -> list[dict[str, Any]]:
        """Gaps that no full-sync has closed: of partitions led here, and losses of bulk references of any node:
        {"queue", "id", "partition", "from_offset", "upto_offset", "from_ms", "upto_ms", "count_at_least",
        "count_at_most", "what", "by", "reason", "node", "priority", "bucket_types"}, and of a loss its "mark"; null
        where a field does not apply, or is not known yet. "bucket_types" null: each type that the queue accepts."""
        names = self._queues.machines() if name is None else (name,)
        rows = []
        for one in names:
            queue = self._queues.named(one)
            place = {"queue": one, "node": self._queues.node, "priority": max(PRIORITIES)}
            for partition, window in queue.machine.windows.items():
                types = {"bucket_types": [window.bucket_type.decode()]}
                rows += [{**place, **gap.as_dict(partition), **types} for gap in window.state.gaps]
            rows += [_lost_row(one, lost) for lost in queue.stored.lost]
        return rows

    async def close_gaps(self, name: str, choice: GapChoice, act: AuditInfo) -> int:
        """Close gaps whose changes a full-sync has found equal, or repaired; returns how many. Gaps that still grow
        stay. Raises Retryable, OutcomeUnknown, too: the call may then be repeated."""
        queue = self._queues.named(name)
        proven: dict[int, list[QueueGap]] = {}
        for partition, window in queue.machine.windows.items():
            for gap in window.state.gaps:
                if not gap.is_open and choice.includes_gap(partition, window.bucket_type, gap):
                    proven.setdefault(partition, []).append(gap)
        closed = await self._queues.close_gaps(queue, proven)
        fits = [one for one in queue.stored.lost if choice.includes_loss(one)]
        if fits:
            closed += await self._queues.queue_store.forget_lost(name, fits)
            await self._queues.refresh(name)
        log.info("queue.gaps_closed", queue=name, count=closed, by=act.by, reason=act.reason)
        return closed


def _reasons(name: str, queue: QueueServer, now_ms: int) -> tuple[str, dict[str, str]]:
    """Why a queue does not serve everything, and bucket type -> why changes of it alone wait. A defect is its reason,
    and hides no other queue's lag."""
    try:
        return reason(queue, now_ms, with_types=False), held_reasons(queue)
    except Exception as error:  # noqa: BLE001 -- logged as unforeseen
        return str(unforeseen.exception("queue.reason_failed", error, queue=name)), {}


def _lost_id(lost: LostReferences) -> str:
    return f"{lost.node}:{lost.priority}:{lost.at_ms}"


def loss_mark(lost: LostReferences) -> str:
    """All of a loss record that changes when another loss is merged into it: two with the same mark are one."""
    return f"{_lost_id(lost)}:{lost.left_out}:{lost.at_most}:{lost.from_ms}:{lost.upto_ms}"


def _lost_row(queue: str, lost: LostReferences) -> dict[str, Any]:
    return {
        "queue": queue,
        "node": lost.node,
        "priority": lost.priority,
        "id": _lost_id(lost),
        "mark": loss_mark(lost),
        "partition": None,
        "from_offset": None,
        "upto_offset": None,
        "from_ms": lost.from_ms,
        "upto_ms": lost.upto_ms,
        "count_at_least": lost.left_out,
        "count_at_most": lost.left_out if lost.at_most is None else lost.at_most,
        "what": lost.what,
        "by": lost.by,
        "reason": "",
        "bucket_types": list(lost.bucket_types) or None,
    }
