"""What operators and other parts may do with source queues on this node: each act written, then taken in here at once.

Other nodes learn of an act by the metastore. Gaps of partitions led elsewhere are closed there: `close_gaps` answers
for this node. The rules of the acts stand in `queues.queue_documents` and `queues.queue_documents`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple

import structlog

from isthmus.config.text import quantity
from isthmus.queues.explain import explained, explained_lower
from isthmus.queues.filters import offers_of
from isthmus.queues.gaps import QueueGap
from isthmus.queues.lag import TIMEOUT_S, lags
from isthmus.queues.object_reader import backfilled, sound_changes
from isthmus.queues.queue_documents import (
    CLEARED,
    PUBLISHING,
    SERVING,
    AppliedOffsets,
    AuditInfo,
    LostReferences,
    Positions,
    checked_settings,
)
from isthmus.queues.queue_server import QueueServer
from isthmus.queues.rate_limit import Rates
from isthmus.queues.service import RIAK_CLUSTER, RIAK_NAME, QueueService
from isthmus.queues.status import ledger, reason
from isthmus.queues.window_rules import LOWER, PRIORITIES, Item
from isthmus.queues.wire import OFF, SUSPENDED, ObjectReply, ObjectRequest, OwnedByOther
from isthmus.repl.model.entry import EntryKind
from isthmus.repl.model.errors import BadInput, NotReady
from isthmus.repl.model.keys import Key
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.store.port import Change, Store

log = structlog.get_logger(__name__)

PEEK_ROWS: Final = 4_096
"""Rows of the change index read in one partition to show what is not in memory."""

SECOND_MS: Final = 1_000
"""Time marks of the store are a second apart: what is cleared by time ends with the second of the act."""


_TO_FETCH: Final = int(ReferenceKind.TO_FETCH)
_LEAVING: Final = int(ReferenceKind.LEAVING)
_DATA: Final = int(EntryKind.DATA)


class GapChoice(NamedTuple):
    """Which gaps a full-sync has closed: by their ids, or all of a bucket type (None: any) that lie wholly between two
    wall-clock times. One that is named must not reach beyond `upto_ms` either: it keeps its id when it grows."""

    ids: tuple[str, ...] | None = None
    bucket_type: bytes | None = None
    from_ms: int = 0
    upto_ms: int = 1 << 62

    def takes(self, gap_id: str, bucket_type: bytes | None, from_ms: int, upto_ms: int) -> bool:
        """True when a gap is one of them."""
        if self.ids is not None:
            return gap_id in self.ids and upto_ms <= self.upto_ms
        right_type = bucket_type is None or self.bucket_type in (None, bucket_type)
        return right_type and self.from_ms <= from_ms and upto_ms <= self.upto_ms


class QueueActs:
    """See the module's text. All acts raise UnknownQueue, BadInput, NotReady."""

    def __init__(self, queues: QueueService, store: Store, pool: Executor) -> None:
        self._queues = queues
        self._store = store
        self._pool = pool

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
        """See `QueueStore.register`. With `now` it begins with what was not applied then."""
        if now is not None:
            start_ms, positions = now.earliest_ms, now.positions
        await self._queues.steering.register(name, values, start_ms, act, positions, by_time=now is not None)
        await self._queues.follow_definitions()
        log.info("queue.registered", queue=name, by=act.by, reason=act.reason, start_ms=start_ms)

    async def place(self, name: str, positions: Positions, act: AuditInfo) -> None:
        """See `QueueStore.place`."""
        stands = self._queues.named(name).machine.newest_command_version()
        await self._queues.steering.place(name, positions, act, stands=stands)
        await self._queues.refresh(name)
        log.info("queue.placed", queue=name, by=act.by, reason=act.reason, partitions=len(positions))

    async def delist(self, name: str, act: AuditInfo) -> None:
        """See `QueueStore.delist`."""
        self._queues.named(name)
        await self._queues.steering.delist(name, act)
        await self._queues.follow_definitions()
        log.info("queue.delisted", queue=name, by=act.by, reason=act.reason)

    async def suspend(self, name: str, what: str | Sequence[str], node: str | None, act: AuditInfo) -> None:
        """Give nothing out (SERVING), make no references (PUBLISHING), or both, over restarts, too."""
        whats = self._checked(name, what)
        await self._queues.steering.suspend(name, whats, node, act)
        await self._queues.refresh(name)
        log.info("queue.suspended", queue=name, what=whats, only_node=node, by=act.by, reason=act.reason)

    async def resume(self, name: str, what: str | Sequence[str], node: str | None, act: AuditInfo) -> None:
        """End that."""
        whats = self._checked(name, what)
        await self._queues.steering.resume(name, whats, node)
        await self._queues.refresh(name)
        log.info("queue.resumed", queue=name, what=whats, only_node=node, by=act.by, reason=act.reason)

    def applied(self) -> AppliedOffsets:
        """What this node has applied of the partitions that it leads."""
        wall_ms = self._queues.time.wall_ms()
        return AppliedOffsets(tuple(sorted(self._queues.applied_upto().items())), wall_ms, wall_ms)

    async def clear(self, name: str, act: AuditInfo, now: AppliedOffsets | None = None) -> None:
        """Give up what waits, at every priority and on all nodes: gaps. What waits is what was applied `now` (None: on
        this node), told by offsets, so that no node's clock decides; where no leader answered, it is what was made up
        to the latest of the clocks."""
        stands = self._queues.named(name).machine.newest_command_version()
        positions, _, latest_ms = self.applied() if now is None else now
        start_ms = (latest_ms // SECOND_MS + 1) * SECOND_MS
        await self._queues.steering.decree(name, CLEARED, start_ms, act, positions, stands=stands, by_time=True)
        await self._queues.refresh(name)
        log.info("queue.cleared", queue=name, by=act.by, reason=act.reason)

    async def release(self, name: str, start_ms: int, act: AuditInfo, now: AppliedOffsets | None = None) -> None:
        """See `QueueStore.release`. With `now` the next owner begins with what was not applied then."""
        stands = self._queues.named(name).machine.newest_command_version()
        start_ms, positions = (start_ms, ()) if now is None else (now.earliest_ms, now.positions)
        by_time = now is not None
        await self._queues.steering.release(name, start_ms, act, positions, stands=stands, by_time=by_time)
        await self._queues.refresh(name)
        log.info("queue.released", queue=name, by=act.by, reason=act.reason, start_ms=start_ms)

    async def throttle(self, name: str, rates: Rates | None, act: AuditInfo) -> None:
        """See `QueueStore.set_rates`."""
        self._queues.named(name)
        await self._queues.steering.set_rates(name, rates, act)
        await self._queues.refresh(name)
        log.info("queue.throttled", queue=name, rates=rates, by=act.by, reason=act.reason)

    async def change_settings(
        self, name: str, values: Mapping[str, Any], act: AuditInfo, *, default: bool = False, again: bool = False
    ) -> None:
        """Set fields of a queue's settings while it runs, on all nodes: "filter", "cascade"
        (`QueueStore.change_offer`), and `decrees.LIMITS`; `default`: all that was set so is the definition's or the
        file's again. `again`: everything is offered once more."""
        queue = self._queues.named(name)
        offer: dict[str, Any] = {key: values[key] for key in ("filter", "cascade") if key in values}
        changed = queue.word.decree.change if queue.word.decree is not None else None
        if default and changed is not None and (changed.filter, changed.cascade) != (None, None):
            offer = {"filter": None, "cascade": None}
        limits = {key: value for key, value in values.items() if key not in offer}
        checked_settings(name, {key: value for key, value in values.items() if value is not None})
        steering, stands = self._queues.steering, queue.machine.newest_command_version()
        if limits or default:
            await steering.set_limits(name, limits, act, default=default)
        if offer or again:
            await steering.change_offer(name, queue.settings, offer, act, again=again, stands=stands)
        await self._queues.refresh(name)
        log.info("queue.set", queue=name, values=dict(values), default=default, again=again, by=act.by)

    def rates(self, name: str) -> Rates:
        """The limits in force on this node: what an operator set, or else the config file's."""
        return self._queues.named(name).throttle.rates

    def _checked(self, name: str, what: str | Sequence[str]) -> tuple[str, ...]:
        self._queues.named(name)
        whats = (what,) if isinstance(what, str) else tuple(dict.fromkeys(what))
        for one in whats:
            if one not in (SERVING, PUBLISHING):
                raise BadInput(f"{one!r} of a queue cannot be suspended; {SERVING!r} and {PUBLISHING!r} can")
        if not whats:
            raise BadInput(f"say what: {SERVING!r}, {PUBLISHING!r}, or both")
        return whats

    # ---------------------------------------------------------------- lower priorities

    async def push(self, name: str, keys: Sequence[Key], priority: int, wait_ms: int) -> int:
        """Queue references at a lower priority on this node, waiting for room at most so long; returns how many of the
        first were taken in: the others are to be offered again. Filters do not count: who pushes names the queue."""
        queue = self._queues.named(name)
        if priority not in LOWER:
            raise BadInput(f"priority {priority} takes no references; {LOWER[0]} (full-sync) and {LOWER[1]} (fold) do")
        return await queue.push(keys, priority, self._queues.time.now_ms() + wait_ms)

    async def lengths(self, name: str) -> tuple[int, int, int | None]:
        """What waits on this node at the fold, full-sync and real-time priority; None: not known."""
        queue = self._queues.named(name)
        full_sync, fold = (lower.waiting_count for lower in queue.machine.bulk_queues)
        return fold, full_sync, (await self._queues.waiting(queue)).changes

    # ---------------------------------------------------------------- one object

    async def object_of(self, name: str, wanted: ObjectRequest) -> ObjectReply:
        """The object of a key as its leader has it, for the cluster that owns the queue; no place of the queue moves.
        Raises OwnedByOther, and what reading raises."""
        queue = self._queues.named(name)
        owner = queue.word.owner
        if owner is None or owner.cluster != wanted.cluster:
            whose = "nobody" if owner is None or not owner.cluster else f"cluster {owner.name} ({owner.cluster.hex()})"
            raise OwnedByOther(f"queue {name} belongs to {whose}, not to cluster {wanted.cluster_name}")
        if queue.state in (OFF, SUSPENDED):
            raise NotReady(f"queue {name} gives nothing out now: {reason(queue, self._queues.time.now_ms())}")
        return ObjectReply(*self._queues.cluster, await queue.object_of(wanted.key))

    def link(self, name: str) -> dict[str, Any]:
        """What a sink would want to know of a queue before it fetches (`node.services.link_check`)."""
        queue, queues = self._queues.named(name), self._queues
        owner, digests = queue.word.owner, queues.digests()
        owned = None if owner is None or not owner.cluster else {"cluster": owner.name, "uuid": owner.cluster.hex()}
        if queue.settings.riak_fetch:
            owned = {"cluster": RIAK_NAME, "uuid": RIAK_CLUSTER.hex()}
        off = queue.state == OFF
        places = queues.places()
        types = {
            bucket_type.decode(errors="backslashreplace"): {
                "digest": digests[bucket_type].hex() if bucket_type in digests else None,
                "offered": offers_of(queue.filter, bucket_type),
            }
            for bucket_type in sorted(queues.bucket_types())
        }
        return {
            "cluster": queues.cluster[1],
            "cluster_uuid": queues.cluster[0].hex(),
            "queue": name,
            "owner": owned,
            "filter": str(queue.filter),
            "blocked": queue.filter.blocks,
            "serving": "off" if off else "running" if queue.suspension is None else "suspended",
            "publishing": "off" if off else "running" if queue.machine.publishing_suspended is None else "suspended",
            "bucket_types": types,
            "places": None
            if places is None
            else {
                bucket_type.decode(errors="backslashreplace"): {name.hex(): one.hex() for name, one in found.items()}
                for bucket_type, found in places.items()
            },
            "wall_ms": queues.time.wall_ms(),
        }

    # ---------------------------------------------------------------- looking

    async def listing(self) -> list[dict[str, Any]]:
        """See `queues.status`."""
        return await self._queues.listing()

    def test_filter(self, name: str, bucket_type: bytes, bucket: bytes) -> dict[str, Any]:
        """Whether changes of a bucket are offered, and by which rule."""
        queue = self._queues.named(name)
        decision = queue.filter.decide(bucket_type, bucket)
        rule = None if decision.rule is None else str(decision.rule)
        return {"queue": name, "filter": str(queue.filter), "offered": decision.offered, "rule": rule,
                "reason": decision.reason()}  # fmt: skip

    async def peek(self, name: str, count: int) -> list[Item]:
        """The next references of this node's share, at most `count`, without taking them: real time first, each
        partition in its order."""
        queue = self._queues.named(name)
        found: list[Item] = []
        loop = asyncio.get_running_loop()
        for window in list(queue.machine.windows.values()):
            found += window.peek(count - len(found))
            if len(found) < count and not window.contiguous:
                rows = await loop.run_in_executor(
                    self._pool, sound_changes, self._store, window, window.scan, PEEK_ROWS
                )
                ahead = window.rows_in_memory()
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
                    if row.offset >= window.scan and row.offset not in ahead and window.offers_row(row)
                ][: count - len(found)]
        for lower in queue.machine.bulk_queues:
            found += lower.peek(count - len(found))
        return found

    async def lags(self) -> list[dict[str, Any]]:
        """How far every queue is behind in the partitions led here: {"queue", "cluster", "uuid", "partitions"}, see
        `queues.lag`. What takes too long to read is None, and the reason says so."""
        rows = []
        by_s = asyncio.get_running_loop().time() + TIMEOUT_S
        for name in self._queues.machines():
            queue = self._queues.named(name)
            owner = queue.word.owner
            shown = await lags(queue, self._store, self._pool, self._queues.time.wall_ms(), by_s)
            told = [reason(queue, self._queues.time.now_ms())]
            if shown.late:
                told.append(
                    f"{quantity(shown.late, 'partition')} could not be read within {TIMEOUT_S} s: the node is busy"
                )
            owned = (None, None) if owner is None or not owner.cluster else (owner.name, owner.cluster.hex())
            rows.append(
                {
                    "queue": name,
                    "cluster": owned[0],
                    "uuid": owned[1],
                    "reason": "; ".join(filter(None, told)),
                    "partitions": shown.partitions,
                }
            )
        return rows

    def explain(self, key: Key, partition: int | None, change: Change | None) -> dict[str, Any]:
        """{"queues", "lower"}: what every queue says of a key, see `queues.explain`; `partition` None: led
        elsewhere, then the lower priorities alone have a word. `change`: the key's row of the change index."""
        found = [self._queues.named(name) for name in self._queues.machines()]
        lower = [row for queue in found for row in explained_lower(queue, key)]
        if partition is None:
            return {"queues": [], "lower": lower}
        told = [explained(queue, partition, key, self._offered(queue, partition, change)) for queue in found]
        return {"queues": told, "lower": lower}

    def _offered(self, queue: QueueServer, partition: int, change: Change | None) -> Change | None:
        """The key's row as the queue takes it: with our origin where it is backfilled."""
        window = queue.machine.windows.get(partition)
        return change if change is None or window is None else backfilled(self._store, window, [change])[0]

    async def ledger(self, name: str) -> dict[str, Any]:
        """The queue's ledger on this node, checked against the change index: `lost` are offsets of rows there that
        neither wait nor are under lease nor settled. The index is read twice, so that what goes meanwhile is not taken
        for lost."""
        queue = self._queues.named(name)
        lost = await self._unexplained(queue)
        if lost:
            again = await self._unexplained(queue)
            lost = {p: [offset for offset in found if offset in again.get(p, ())] for p, found in lost.items()}
            lost = {p: found for p, found in lost.items() if found}
        shown = ledger(queue)
        # Nobody reads a queue that no cluster fetches from: what waits there is counted in the change index.
        backlog = None if shown["fetched"] else (await self._queues.waiting(queue)).changes
        return {**shown, "backlog": backlog, "lost": lost}

    def owners(self) -> dict[str, str]:
        """Uuid of each cluster that owns a queue -> its name."""
        words = [self._queues.named(name).word.owner for name in self.names()]
        return {owner.cluster.hex(): owner.name for owner in words if owner is not None and owner.cluster}

    def names(self) -> list[str]:
        """Of all queues."""
        return list(self._queues.machines())

    async def _unexplained(self, queue: QueueServer) -> dict[int, list[int]]:
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
        """What was given up and no full-sync has closed: of partitions led here, and of lower priorities of any node.
        {"queue", "id", "partition", "from_offset", "upto_offset", "from_ms", "upto_ms", "count_at_least",
        "count_at_most", "what", "by", "reason", "node", "priority"}; null where a word does not apply, or is not known
        yet."""
        names = self._queues.machines() if name is None else (name,)
        rows = []
        for one in names:
            queue = self._queues.named(one)
            place = {"queue": one, "node": self._queues.node, "priority": max(PRIORITIES)}
            for partition, window in queue.machine.windows.items():
                rows += [{**place, **gap.shown(partition)} for gap in window.state.gaps]
            rows += [_lost_shown(one, lost) for lost in queue.word.lost]
        return rows

    async def close_gaps(self, name: str, choice: GapChoice, act: AuditInfo) -> int:
        """A full-sync has found equal, or repaired, what these gaps left out; returns how many are closed. Gaps that
        still grow stay. Raises Retryable, OutcomeUnknown, too: then it may be done again."""
        queue = self._queues.named(name)
        proven: dict[int, list[QueueGap]] = {}
        for partition, window in queue.machine.windows.items():
            for gap in window.state.gaps:
                gap_id = f"{partition}:{gap.start}"
                if not gap.is_open and choice.takes(gap_id, window.bucket_type, gap.from_ms, gap.upto_ms):
                    proven.setdefault(partition, []).append(gap)
        closed = await self._queues.close_gaps(queue, proven)
        fits = [one for one in queue.word.lost if choice.takes(_lost_id(one), None, one.from_ms, one.upto_ms)]
        if fits:
            closed += await self._queues.steering.forget_lost(name, lambda one: one in fits)
            await self._queues.refresh(name)
        log.info("queue.gaps_closed", queue=name, count=closed, by=act.by, reason=act.reason)
        return closed


def _lost_id(lost: LostReferences) -> str:
    return f"{lost.node}:{lost.priority}:{lost.at_ms}"


def _lost_shown(queue: str, lost: LostReferences) -> dict[str, Any]:
    return {
        "queue": queue,
        "node": lost.node,
        "priority": lost.priority,
        "id": _lost_id(lost),
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
    }
