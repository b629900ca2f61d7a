"""The controller: reads records and registrations, lets the pure rules decide, writes conditionally.

Every node runs one and hands on what it reads. Only the one whose session holds the claim `/controller` decides; when
the session ends, another takes it. That is for economy, not for safety: no decision rests on memory but on how long a
nomination has been seen and which promotions were heard, and a stale one is refused by the record's version
(docs/protocol.md H30). Records are always read before registrations (H29). Rules: `repl.controller.election`; how far
logs go: `repl.controller.log_positions`; promotions: `repl.controller.promotions`; new bucket types:
`repl.controller.bucket_types`; what operators have set: `repl.controller.dynamic_options`; changes of placement that
they ordered: `repl.controller.reassigner`. A record that cannot be read stops what is decided of its partition, and
nothing else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

import structlog

from isthmus.config.dynamic_options import MOVES_AT_ONCE
from isthmus.repl.controller.bucket_types import DEFAULT_TYPE, Assigner, DefaultType, DefaultTypeCreation, assign
from isthmus.repl.controller.dynamic_options import OPTIONS_DOCUMENT, OptionSettings
from isthmus.repl.controller.election import (
    Decision,
    ElectionTimer,
    NoAction,
    ProposeRecord,
    WaitUntil,
    asked,
    elect,
    watched,
)
from isthmus.repl.controller.leader_balancer import LeaderBalancer
from isthmus.repl.controller.log_positions import METHOD as STATUS
from isthmus.repl.controller.log_positions import LogPositions, Position, RequestLinks
from isthmus.repl.controller.placement import ReplicaMap
from isthmus.repl.controller.promotions import METHOD as PROMOTED
from isthmus.repl.controller.promotions import Promotions
from isthmus.repl.controller.reassigner import Reassigner
from isthmus.repl.controller.reassignment_orders import ORDERS_DOCUMENT, ORDERS_PATH, Placement
from isthmus.repl.controller.unreadable_documents import UnreadableDocuments
from isthmus.repl.isr import effects as fx
from isthmus.repl.log_limit import LogLimit
from isthmus.repl.metastore.port import Ambiguous, Metastore, Precondition, Unavailable, VersionConflict
from isthmus.repl.metastore.watched_document import DocumentEvents, WatchedDocument
from isthmus.repl.model.errors import BadInput, Corruption, IsthmusError
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.model.record import PartitionRecord, PartitionStatus, Registration

log = structlog.get_logger(__name__)

CLAIM_PATH: Final = "/controller"
"""Ephemeral; its value is the name of the node that decides."""

POLL_MS: Final = 2_000
"""Longest time between two looks: bounds the delay were every watch lost."""

RETRY_MS: Final = 200
"""Pause after the metastore could not be reached, and after a write whose fate is unknown."""

GATHER_MS: Final = 2
"""What changes within this time is looked at together: a node that dies changes all its partitions at once."""

WRITES_AT_ONCE: Final = 64
"""Record writes under way; the metastore orders them anyway, and a queue in its driver has no end of its own."""

DOCUMENT_EVENTS: Final = DocumentEvents("controller.document_unreadable")

Handler = Callable[[str, bytes], Awaitable[bytes]]
"""(node that asks, body) -> the answer's body; raises IsthmusError."""


class Controller:
    """One node's controller. `on_registrations` and then `on_records` get every reading, on the event loop."""

    def __init__(
        self,
        metastore: Metastore,
        *,
        node: str,
        time: TimeSource,
        links: RequestLinks,
        position_of: Callable[[int], Position | None],
        default_type: DefaultType,
        on_records: Callable[[Mapping[int, PartitionRecord]], None],
        on_registrations: Callable[[Mapping[str, Registration]], None],
    ) -> None:
        """`links` are never asked to reach `node` itself. `position_of` returns the (last epoch, LEO) of this node's
        copy of a partition, None when it has none."""
        self.metastore = metastore
        self._node = node
        self._time = time
        self._default_type = default_type
        self._on_records = on_records
        self._on_registrations = on_registrations
        self._wake = asyncio.Event()
        self._unavailable = LogLimit()
        self._watches: dict[int, ElectionTimer] = {}
        self._positions = LogPositions(node=node, links=links, position_of=position_of, on_answer=self.wake)
        self._announcements = Promotions(node=node, links=links, on_heard=self.wake)
        self._founding = DefaultTypeCreation(default_type, node)
        self._writing = asyncio.Semaphore(WRITES_AT_ONCE)
        self._task: asyncio.Task[None] | None = None
        self._resigned = False
        self._claiming = asyncio.Lock()
        self._claim_known = False
        self._options = WatchedDocument(
            metastore, OPTIONS_DOCUMENT, OptionSettings(), DOCUMENT_EVENTS, lambda found: self.on_options(found)
        )
        self._placement = WatchedDocument(metastore, ORDERS_DOCUMENT, Placement(), DOCUMENT_EVENTS)
        self.unread = UnreadableDocuments()
        self.moving = Reassigner(metastore, self.unread)
        self.on_options: Callable[[OptionSettings], None] = lambda _options: None
        """Gets what is set of the dynamic options, whenever it was read anew, before the records read after it."""
        self.registered: Callable[[], bool] = lambda: True
        """Whether this process is its node to the others: one that is not decides nothing, since what they send to the
        node that decides goes by the node's name."""
        self.balancing: LeaderBalancer | None = None
        """Spreads leaderships while this node decides; None: nobody does. Set before `start`."""
        self.decides = False
        """True while this node's session holds the claim, as far as it knows."""
        self.controller: str | None = None
        """The node that decides, as this one last read it; None when there is none."""
        self.records: Mapping[int, PartitionRecord] = {}
        self.registrations: Mapping[str, Registration] = {}
        self.read_at_ms: int | None = None
        """When both were read last (wall clock); None before the first time."""

    @property
    def options(self) -> OptionSettings:
        """What is set, as this node last read it."""
        return self._options.value

    @property
    def placement(self) -> Placement:
        """What is ordered of placements, as this node last read it."""
        return self._placement.value

    @property
    def waiting(self) -> str:
        """Why there is no `default` bucket type yet; "" when there is one."""
        return self._founding.reason

    def request_handlers(self) -> dict[str, Handler]:
        """What other nodes may ask of this one, by method."""
        return {STATUS: self._positions.answer, PROMOTED: self._announcements.receive}

    def start(self) -> None:
        """Begin to look; call once this node is registered."""
        self.metastore.watch(self._hinted)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def resign(self) -> None:
        """Decide no more and let another node take over at once; readings are still handed on. For a node that is
        about to hand over its leaderships: somebody must elect their successors."""
        self._resigned, self.decides = True, False
        async with self._claiming:
            await self._give_up_claim()

    async def _give_up_claim(self) -> None:
        try:
            found = await self.metastore.get(CLAIM_PATH)
            if found is not None and found.value == self._node.encode():
                await self.metastore.delete(CLAIM_PATH, found.version)
        except (VersionConflict, Ambiguous, Unavailable) as error:
            log.warning("controller.claim_kept", error=str(error))  # it goes with the session

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self.resign()
        if self.balancing is not None:
            await self.balancing.stop()
        await self._positions.stop()
        await self._announcements.stop()

    def wake(self) -> None:
        """Something may have changed: look soon."""
        self._wake.set()

    def promoted(self, partition: int, effect: fx.Promoted) -> None:
        """A candidate on this node says that its barrier is durable."""
        self._announcements.announce(partition, effect)

    def _hinted(self, path: str) -> None:
        if path == CLAIM_PATH:
            self._claim_known = False
        self._options.on_hint(path)
        self._placement.on_hint(path)
        self.wake()

    # -- looking ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                pause_ms = await self._look()
            except (Unavailable, Ambiguous, VersionConflict) as error:
                if (left_out := self._unavailable.due()) is not None:
                    log.warning("controller.metastore_unavailable", error=str(error), left_out=left_out)
                pause_ms = RETRY_MS
            except IsthmusError as error:
                log.error("controller.cannot_decide", reason=error.reason, error=str(error))
                pause_ms = POLL_MS
            except Exception:
                # A node that neither decides nor lets go of the claim would leave its cluster without elections.
                log.exception("controller.bug")
                pause_ms = POLL_MS
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                if pause_ms >= POLL_MS:
                    self._claim_known = False
                    self._options.expire()
                    self._placement.expire()
            else:
                await asyncio.sleep(GATHER_MS / 1000)

    async def _look(self) -> int:
        """Read, decide and write once; returns the milliseconds until the next look is due."""
        await self._read()
        if self.decides and not self.registered():
            async with self._claiming:
                await self._give_up_claim()
            self._claim_known = False
        if not self._claim_known:
            async with self._claiming:
                await self._claim()
        self._announcements.learn(self.controller, self.records.keys())
        pause_ms = min(await self._found(), self.moving.see(self.records, self._time.now_ms()))
        if not self.decides:
            self.moving.rest()
            if self.balancing is not None:
                self.balancing.rest()
            return pause_ms
        writes, until_ms = self._decide()
        rests_on: tuple[Precondition, ...] = ()
        self._positions.send()
        if not writes and self._placement.readable:
            writes, rests_on, moves_ms = await self._move()
            until_ms = min(until_ms, moves_ms)
        if self.balancing is not None:
            now_ms, drained = self._time.now_ms(), self.placement.drained.keys()
            busy = bool(writes) or not self._placement.was_read  # who is drained is not known then
            records = self.unread.without(self.records)
            balance_ms = self.balancing.look(records, self.registrations, now_ms, busy=busy, drained=drained)
            until_ms = min(until_ms, balance_ms)
        if not writes:
            return min(pause_ms, until_ms)
        decided = await asyncio.gather(*(self._write(record, rests_on) for record in writes))
        return GATHER_MS if all(decided) else RETRY_MS

    async def _move(self) -> tuple[list[PartitionRecord], tuple[Precondition, ...], int]:
        """What to write now of what is ordered (late, it must not begin what was cancelled), and when more is due."""
        seen = (self.placement, self.records, self.registrations)
        until_ms = await self.moving.look(*seen, self._time.now_ms(), self._time.wall_ms())
        writes, version = self.moving.writes(*seen, self.options.number(MOVES_AT_ONCE)), seen[0].version
        return writes, () if version is None else (Precondition(ORDERS_PATH, version),), until_ms

    async def _read(self) -> None:
        await self._options.refresh()
        await self._placement.refresh()
        records = await self.metastore.records()
        registrations = await self.metastore.registrations()
        self.records, self.registrations = records, registrations
        self.read_at_ms = self._time.wall_ms()
        self.unread.learn(self.metastore.unreadable, records)
        self._on_registrations(registrations)
        self._on_records(records)

    async def _claim(self) -> None:
        """Find out who decides; it is this node when nobody else does. Known until a watch fires."""
        self._claim_known = True
        try:
            may = not self._resigned and self.registered()
            won = may and await self.metastore.claim(CLAIM_PATH, self._node.encode())
            found = await self.metastore.get(CLAIM_PATH)
        except (Unavailable, Ambiguous, VersionConflict):
            self._claim_known = False
            raise
        self.controller = None if found is None else found.value.decode(errors="replace")
        decides = won and found is not None and not self._resigned
        if found is None:
            self._claim_known = not may
            if may:
                self.wake()
        if decides != self.decides:
            log.info("controller.took_over" if decides else "controller.lost", controller=self.controller)
            self._watches.clear()
        self.decides = decides

    async def _found(self) -> int:
        """Create the `default` bucket type when it is due and this node decides; milliseconds until the next look."""
        if any(record.bucket_type == DEFAULT_TYPE for record in self.records.values()):
            self._founding.reason = ""
            return POLL_MS
        wait_ms = self._founding.look(self.registrations, self._time.now_ms(), self.placement.drained)
        if wait_ms is None:
            return POLL_MS
        if wait_ms or not self.decides:
            return min(POLL_MS, wait_ms or POLL_MS)
        try:
            created = await self._founding.found(self.metastore, self.registrations, self._time.wall_ms())
        except (BadInput, Corruption) as error:
            self._founding.reason = f"placement is refused: {error}"
            return POLL_MS
        return 0 if created else RETRY_MS

    # -- deciding -----------------------------------------------------------------------------------------

    def _decide(self) -> tuple[list[PartitionRecord], int]:
        """The records to write now, and the milliseconds until the next one may be due."""
        now_ms = self._time.now_ms()
        pause_ms = POLL_MS
        writes: list[PartitionRecord] = []
        leaderships = Counter(_leads(record) for record in self.records.values())
        for partition in [each for each in self._watches if each not in self.records]:
            del self._watches[partition]
        for partition, record in sorted(self.unread.without(self.records).items()):
            decision = self._decision(record, now_ms, leaderships)
            match decision:
                case ProposeRecord():
                    writes.append(decision.record)
                    leaderships[_leads(record)] -= 1
                    leaderships[_leads(decision.record)] += 1
                case WaitUntil():
                    pause_ms = min(pause_ms, max(1, decision.until_ms - now_ms))
                case NoAction():
                    pass
            if record.status in (PartitionStatus.ONLINE, PartitionStatus.OFFLINE):
                self._positions.forget(partition)
        return writes, pause_ms

    def _decision(self, record: PartitionRecord, now_ms: int, leaderships: Mapping[str, int]) -> Decision:
        partition = record.partition
        watch = self._watches[partition] = watched(self._watches.get(partition), record, now_ms)
        self._positions.want(partition, asked(record, self.registrations))
        decision = elect(
            record,
            self.registrations,
            now_ms,
            watch.since_ms,
            self._announcements.heard(partition),
            attempt=watch.attempt,
            reported=self._positions.of(partition),
            leaderships=leaderships,
            timers=self.options.timers(),
        )
        return decision if isinstance(decision, ProposeRecord) else self._with_min_isr(record, decision)

    def _with_min_isr(self, record: PartitionRecord, decision: Decision) -> Decision:
        """Where nothing else is to be written: the record gets the min-ISR that is set, if that is known. It changes
        that alone, so nobody leaves the ELR by it (docs/protocol.md H22)."""
        wanted = self.options.min_isr(record.bucket_type, record.factor) if self._options.was_read else record.min_isr
        return decision if wanted == record.min_isr else ProposeRecord(replace(record, min_isr=wanted))

    async def _write(self, record: PartitionRecord, rests_on: tuple[Precondition, ...]) -> bool:
        """Write one decision; False when its fate is unknown (the next look reads what became of it)."""
        try:
            async with self._writing:
                written = await self.metastore.write_record(record, unmoved=rests_on)
        except VersionConflict:
            self._placement.expire()  # the write may have rested on it
            return True
        except (Ambiguous, Unavailable):
            return False
        log.info(
            "controller.decided",
            partition=written.partition,
            status=written.status.value,
            epoch=written.epoch,
            reason=written.reason,
        )
        return True

    # -- operators ----------------------------------------------------------------------------------------

    async def assign(self, bucket_type: str, replica_map: ReplicaMap, *, validate_only: bool) -> str:
        """See `repl.controller.bucket_types`."""
        who = Assigner(self.metastore, self._node, self._default_type.min_isr, self._time.wall_ms())
        return await assign(who, bucket_type, replica_map, validate_only=validate_only)


def _leads(record: PartitionRecord) -> str:
    """The node that leads or is about to, "" for none."""
    who = record.leader or record.candidate
    return "" if who is None else who.node
