"""The controller: reads records and registrations, applies the pure rules, and writes their decisions conditionally.

Every node runs one, and passes on what it reads. Only the node whose session holds the claim `/controller` decides;
when the session ends, another node takes the claim. The claim is for economy, not for safety: a decision depends on
memory only for the age of a nomination and the promotions received, and the record's version refuses a stale one
(docs/protocol.md H30). Records are always read before registrations (H29). A record that cannot be read stops the
decisions about its partition, and no others.

Elections: `repl.controller.election`, with `log_positions` and `promotions`; new bucket types: `bucket_types`; options:
`dynamic_options`; ordered changes of placement: `reassigner`; leaderships: `leader_balancer`; dead nodes: `suspicion`;
reports of other parts of the node: `inbox`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

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
from isthmus.repl.controller.inbox import ControllerInbox
from isthmus.repl.controller.leader_balancer import LeaderBalancer
from isthmus.repl.controller.log_positions import METHOD as STATUS
from isthmus.repl.controller.log_positions import LocalPositions, LogPositions, RequestLinks
from isthmus.repl.controller.placement import ReplicaMap
from isthmus.repl.controller.promotions import METHOD as PROMOTED
from isthmus.repl.controller.reachability import Reachability
from isthmus.repl.controller.reassigner import Reassigner
from isthmus.repl.controller.reassignment_orders import ORDERS_DOCUMENT, ORDERS_PATH, Placement
from isthmus.repl.controller.unreadable_documents import UnreadableDocuments
from isthmus.repl.log_limit import LogLimit
from isthmus.repl.metastore.port import Ambiguous, Metastore, Precondition, Unavailable, VersionConflict
from isthmus.repl.metastore.watched_document import DocumentEvents, WatchedDocument
from isthmus.repl.model.errors import BadInput, Corruption, IsthmusError
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.model.record import PartitionRecord, PartitionStatus, Registration
from isthmus.repl.telemetry import Sample
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

CLAIM_PATH: Final = "/controller"
"""Ephemeral; its value is the name of the node that decides."""

POLL_MS: Final = 2_000
"""Longest time between two reads: bounds the delay if every watch event is lost."""

RETRY_MS: Final = 200
"""Pause after the metastore could not be reached, and after a write whose outcome is unknown."""

WRITTEN_MS: Final = 2
"""Longest pause after decisions were written: the event of a write that changed something comes before its answer, and
ends the pause."""

WRITES_AT_ONCE: Final = 64
"""Record writes under way. The metastore orders them in any case, and its driver's queue is unbounded."""

DOCUMENT_EVENTS: Final = DocumentEvents("controller.document_unreadable")

Handler = Callable[[str, bytes], Awaitable[bytes]]
"""(node that asks, body) -> the answer's body; raises IsthmusError."""


class ClusterObserver(Protocol):
    """Gets every read of the controller, on the event loop: options, then registrations, then records."""

    def on_options(self, options: OptionSettings, /) -> None:
        """The dynamic options after a read or change of them, before the records that are read after it."""

    def on_registrations(self, registrations: Mapping[str, Registration], /) -> None:
        """All registrations, by node."""

    def on_records(self, records: Mapping[int, PartitionRecord], unread: Collection[int], /) -> None:
        """All readable partition records, by partition, and the partitions of which no record could be read."""


class ControllerLinks(RequestLinks, Protocol):
    """What the controller needs of the connections of its node (`repl.transport.port.Links`)."""

    def dialled_nodes(self) -> Collection[str]:
        """See Links."""

    def dialled_by(self) -> Collection[str]:
        """See Links."""


class OwnRegistration(Protocol):
    """The registration of this process (`repl.runtime.registration.Registrar`)."""

    @property
    def registered(self) -> bool:
        """Whether this process is registered under its node's name."""


@dataclass(frozen=True)
class OwnNode:
    """The node of a controller."""

    name: str
    links: ControllerLinks
    """Never asked to reach the node itself."""
    positions: LocalPositions
    """Those of its replicas."""
    registration: OwnRegistration
    """Without it a node decides nothing, since other nodes address the deciding node by its name."""


class Controller:
    """One node's controller."""

    def __init__(
        self,
        metastore: Metastore,
        own: OwnNode,
        inbox: ControllerInbox,
        *,
        time: TimeSource,
        default_type: DefaultType,
        observer: ClusterObserver,
        balancer: LeaderBalancer,
    ) -> None:
        """`balancer` spreads leaderships while this node decides."""
        self.metastore = metastore
        node = self._node = own.name
        self._time = time
        self._default_type = default_type
        self._observer = observer
        self._registration = own.registration
        self._wake_up = inbox.wake_up
        self._peers = inbox.peers
        self._promotions = inbox.promotions
        self._balancer = balancer
        self._poll_at_ms = 0
        """When the next read is due in any case."""
        self._unavailable = LogLimit()
        self._timers: dict[int, ElectionTimer] = {}
        self._positions = LogPositions(node=node, links=own.links, own=own.positions, on_answer=self._wake_up.decide)
        self._default_creation = DefaultTypeCreation(default_type, node)
        self._writing = asyncio.Semaphore(WRITES_AT_ONCE)
        self._task: asyncio.Task[None] | None = None
        self._resigned = False
        self._claiming = asyncio.Lock()
        self._claim_known = False
        self._options = WatchedDocument(
            metastore, OPTIONS_DOCUMENT, OptionSettings(), DOCUMENT_EVENTS, observer.on_options
        )
        self._placement = WatchedDocument(metastore, ORDERS_DOCUMENT, Placement(), DOCUMENT_EVENTS)
        self.unread = UnreadableDocuments()
        self._links = own.links
        self._reachability = Reachability(node)
        self.moving = Reassigner(metastore, self.unread)
        self.decides = False
        """True while this node's session holds the claim, as far as it knows."""
        self.controller: str | None = None
        """The node that decides, as of the last read; None if there is none."""
        self.records: Mapping[int, PartitionRecord] = {}
        self.registrations: Mapping[str, Registration] = {}
        self.read_at_ms: int | None = None
        """Wall-clock time of the last read of both; None before the first."""
        self.outdated_why = ""
        """Why what is known is of before, though the metastore answers; "" once it was read again."""

    @property
    def options(self) -> OptionSettings:
        """The dynamic options, as of the last read."""
        return self._options.value

    @property
    def placement(self) -> Placement:
        """The orders that change placements, as of the last read."""
        return self._placement.value

    @property
    def waiting(self) -> str:
        """Why there is no `default` bucket type yet; "" if there is one."""
        return self._default_creation.reason

    def request_handlers(self) -> dict[str, Handler]:
        """Handlers of requests from other nodes, by method."""
        return {STATUS: self._positions.answer, PROMOTED: self._promotions.receive}

    def start(self) -> None:
        """Start the task that reads and decides; call once this node is registered."""
        self.metastore.watch(self._on_hint)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def resign(self) -> None:
        """Stop deciding and release the claim at once; reads are still passed on. For a node that is about to hand over
        its leaderships, whose successors another node must elect."""
        self._resigned, self.decides = True, False
        async with self._claiming:
            await self._give_up_claim()

    async def _give_up_claim(self) -> None:
        try:
            found = await self.metastore.get(CLAIM_PATH)
            if found is not None and found.value == self._node.encode():
                await self.metastore.delete(CLAIM_PATH, found.version)
        except (VersionConflict, Ambiguous, Unavailable) as error:
            log.warning("controller.claim_kept", error=str(error))  # the claim ends with the session

    async def stop(self) -> None:
        """End the task and release the claim."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self.resign()
        await self._balancer.stop()
        await self._positions.stop()
        await self._promotions.stop()

    def wake(self) -> None:
        """Read soon: something may have changed."""
        self._wake_up.read()

    def unreached(self) -> frozenset[str]:
        """The registered nodes that could not lead, as far as this node's connections show (R-REACHED)."""
        now_ms, links = self._time.now_ms(), self._links
        self._reachability.learn(self.registrations.keys(), links.dialled_nodes(), links.dialled_by(), now_ms)
        return self._reachability.unreached(now_ms)

    def _on_hint(self, path: str) -> None:
        if path == CLAIM_PATH:
            self._claim_known = False
        self._options.on_hint(path)
        self._placement.on_hint(path)
        self.wake()

    # -- looking ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._wake_up.clear()
            try:
                pause_ms = await self._look()
            except (Unavailable, Ambiguous, VersionConflict) as error:
                if (suppressed := self._unavailable.due()) is not None:
                    log.warning("controller.metastore_unavailable", error=str(error), suppressed=suppressed)
                pause_ms = RETRY_MS
            except IsthmusError as error:
                log.error("controller.cannot_decide", reason=error.reason, error=str(error))
                self.outdated_why = str(error) if self._wake_up.read_due else ""
                pause_ms = POLL_MS
            except Exception as error:
                # A node that keeps the claim and does not decide would leave its cluster without elections.
                unforeseen.exception("controller.bug", error)
                pause_ms = POLL_MS
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await self._wake_up.wait()
            except TimeoutError:
                self._wake_up.read_next()
                if pause_ms >= POLL_MS:
                    self._claim_known = False
                    self._options.expire()
                    self._placement.expire()

    async def _look(self) -> int:
        """Read, decide and write once; returns the milliseconds until the next read is due.

        Reports of other nodes, which are not in the metastore, are decided upon with what was read last."""
        if self._wake_up.read_due or self._time.now_ms() >= self._poll_at_ms:
            await self._read()
        if await self._end_suspected_sessions():
            self._claim_known = False
            await self._read()
        if self.decides and (self._is_alone() or not self._takes_part()):
            await self._let_another_decide()
        if not self._claim_known:
            async with self._claiming:
                await self._claim()
        self._promotions.learn(self.controller, self.records.keys())
        pause_ms = min(await self._create_default_type(), self.moving.see(self.records, self._time.now_ms()))
        if not self.decides:
            self.moving.rest()
            self._balancer.rest()
            return pause_ms
        writes, until_ms = self._decide()
        preconditions: tuple[Precondition, ...] = ()
        self._positions.send()
        if not writes and self._placement.readable:
            try:
                writes, preconditions, moves_ms = await self._move()
                until_ms = min(until_ms, moves_ms)
            except (Unavailable, Ambiguous, VersionConflict, IsthmusError):
                raise
            except Exception as error:  # leaders are elected and balanced all the same
                unforeseen.exception("controller.moves_bug", error)
        now_ms, drained = self._time.now_ms(), self.placement.drained.keys()
        busy = bool(writes) or not self._placement.was_read  # it is not known which nodes are drained
        records = self.unread.without(self.records)
        try:
            balance_ms = self._balancer.look(records, self.registrations, now_ms, busy=busy, drained=drained)
            until_ms = min(until_ms, balance_ms)
        except Exception as error:
            unforeseen.exception("controller.balance_bug", error)
        if not writes:
            return min(pause_ms, until_ms)
        self._wake_up.read_next()
        decided = await asyncio.gather(*(self._write_alone(record, preconditions) for record in writes))
        return WRITTEN_MS if all(decided) else RETRY_MS

    async def _move(self) -> tuple[list[PartitionRecord], tuple[Precondition, ...], int]:
        """The records to write for orders, the preconditions (a late write must not begin a cancelled move), and the
        milliseconds until more is due."""
        seen = (self.placement, self.records, self.registrations)
        until_ms = await self.moving.look(*seen, self._time.now_ms(), self._time.wall_ms())
        writes, version = self.moving.writes(*seen, self.options.number(MOVES_AT_ONCE)), seen[0].version
        return writes, () if version is None else (Precondition(ORDERS_PATH, version),), until_ms

    async def _read(self) -> None:
        self._wake_up.read_begins()
        self._poll_at_ms = self._time.now_ms() + POLL_MS
        try:
            await self._options.refresh()
            await self._placement.refresh()
            records = await self.metastore.records()
            registrations = await self.metastore.registrations(sync=False)
        except BaseException:
            self._wake_up.read_next()
            raise
        self.records, self.registrations = records, registrations
        self.read_at_ms = self._time.wall_ms()
        self.outdated_why = ""
        self.unread.learn(self.metastore.unreadable, records)
        self._peers.contact.learn(registrations, self._links.dialled_by(), self._time.now_ms())
        self.unreached()
        if self._peers.suspicions is not None:
            self._peers.suspicions.learn(registrations, self._time.now_ms())
        try:
            self._observer.on_registrations(registrations)
        except Exception as error:  # the observers learn of the next reading; elections must not wait for that
            unforeseen.exception("controller.observer_bug", error)
        try:
            self._observer.on_records(records, self.unread.partitions - records.keys())
        except Exception as error:
            unforeseen.exception("controller.observer_bug", error)

    def _is_alone(self) -> bool:
        """Whether this node has been without contact for too long to decide (R-CONTACT)."""
        now_ms = self._time.now_ms()
        self._peers.contact.learn(self.registrations.keys(), self._links.dialled_by(), now_ms)
        return self._peers.contact.alone(now_ms)

    def _takes_part(self) -> bool:
        """True if this process is registered, also by the last read: its registration may have been ended (R-SUSPECT),
        and then no candidate could report to it."""
        return self._registration.registered and self._node in self.registrations

    async def _let_another_decide(self) -> None:
        """Give up the claim: this node takes no part, or has no contact with another one (R-CONTACT)."""
        if self._is_alone():
            reason = "no other registered node has dialled this one: another one is to decide"
            log.warning("controller.alone", reason=reason)
            self._peers.contact.gave_up(self._time.now_ms())
        async with self._claiming:
            await self._give_up_claim()
        self._claim_known = False

    async def _end_suspected_sessions(self) -> bool:
        """End the registrations of nodes that are dead as far as this node can tell, and the claim of one that decided
        (R-SUSPECT); True if one is over. Every registered node does so, since the one that decides may be the dead
        one."""
        if self._peers.suspicions is None or self._resigned or not self._takes_part():
            return False
        suspects = self._peers.suspicions.suspects()
        for suspect in suspects:
            ended = await self.metastore.end_registration(suspect.node, suspect.session_id, (CLAIM_PATH,))
            self._peers.suspicions.ended(suspect, here=ended)
            if ended:
                log.warning(
                    "controller.node_suspected",
                    peer=suspect.node,
                    session_id=suspect.session_id,
                    reason="its connection broke and its address refuses connections",
                )
        return bool(suspects)

    async def _claim(self) -> None:
        """Take the claim if it is free, and read who has it; valid until a watch event."""
        self._claim_known = True
        try:
            may = not self._resigned and self._takes_part() and self._peers.contact.may_claim(self._time.now_ms())
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
            if decides:
                self._peers.contact.took(self._time.now_ms())
            log.info("controller.took_over" if decides else "controller.lost", controller=self.controller)
            self._timers.clear()
        self.decides = decides

    async def _create_default_type(self) -> int:
        """Create the `default` bucket type if it is due and this node decides; returns the milliseconds until the next
        try."""
        if any(record.bucket_type == DEFAULT_TYPE for record in self.records.values()):
            self._default_creation.reason = ""
            return POLL_MS
        wait_ms = self._default_creation.look(self.registrations, self._time.now_ms(), self.placement.drained)
        if wait_ms is None:
            return POLL_MS
        if wait_ms or not self.decides:
            return min(POLL_MS, wait_ms or POLL_MS)
        try:
            created = await self._default_creation.found(self.metastore, self.registrations, self._time.wall_ms())
        except (BadInput, Corruption) as error:
            self._default_creation.reason = f"placement is refused: {error}"
            return POLL_MS
        return 0 if created else RETRY_MS

    # -- deciding -----------------------------------------------------------------------------------------

    def _decide(self) -> tuple[list[PartitionRecord], int]:
        """The records to write now, and the milliseconds until the next one may be due."""
        now_ms = self._time.now_ms()
        pause_ms = POLL_MS
        writes: list[PartitionRecord] = []
        leaderships = Counter(_leads(record) for record in self.records.values())
        for partition in [each for each in self._timers if each not in self.records]:
            del self._timers[partition]
        for partition, record in sorted(self.unread.without(self.records).items()):
            try:
                decision = self._decision(record, now_ms, leaderships)
            except Exception as error:  # the other partitions are decided upon all the same
                unforeseen.exception("controller.partition_bug", error, partition=partition)
                continue
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
        watch = self._timers[partition] = watched(self._timers.get(partition), record, now_ms)
        self._positions.want(partition, asked(record, self.registrations))
        decision = elect(
            record,
            self.registrations,
            now_ms,
            watch.since_ms,
            self._promotions.newest(partition),
            attempt=watch.attempt,
            reported=self._positions.of(partition),
            leaderships=leaderships,
            timers=self.options.timers(),
            suspected={} if self._peers.suspicions is None else self._peers.suspicions.over,
            unreached=self.unreached(),
        )
        return decision if isinstance(decision, ProposeRecord) else self._with_min_isr(record, decision)

    def _with_min_isr(self, record: PartitionRecord, decision: Decision) -> Decision:
        """If there is no other decision: write the configured min-ISR into the record, if it is known. The write
        changes nothing else, so no member leaves the ELR by it (docs/protocol.md H22)."""
        wanted = self.options.min_isr(record.bucket_type, record.factor) if self._options.was_read else record.min_isr
        return decision if wanted == record.min_isr else ProposeRecord(replace(record, min_isr=wanted))

    async def _write_alone(self, record: PartitionRecord, preconditions: tuple[Precondition, ...]) -> bool:
        """`_write`; what nobody foresaw costs this record its turn."""
        try:
            return await self._write(record, preconditions)
        except IsthmusError:
            raise
        except Exception as error:
            unforeseen.exception("controller.partition_bug", error, partition=record.partition)
            return False

    async def _write(self, record: PartitionRecord, preconditions: tuple[Precondition, ...]) -> bool:
        """Write one decision; False if its outcome is unknown (the next read shows it)."""
        try:
            async with self._writing:
                written = await self.metastore.write_record(record, unmoved=preconditions)
        except VersionConflict:
            self._placement.expire()  # it may have been a precondition of the write
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

    def samples(self) -> Iterator[Sample]:
        """Samples of the whole cluster as this node knows it: unreadable documents, partitions that are not online, and
        this node's suspicions."""
        yield from self.unread.samples()
        offline = sum(record.status is not PartitionStatus.ONLINE for record in self.records.values())
        yield "isthmus_partitions_offline", {}, offline
        if self._peers.suspicions is not None:
            yield from self._peers.suspicions.samples()

    # -- operators ----------------------------------------------------------------------------------------

    async def assign(self, bucket_type: str, replica_map: ReplicaMap, *, validate_only: bool) -> str:
        """See `repl.controller.bucket_types`."""
        who = Assigner(self.metastore, self._node, self._default_type.min_isr, self._time.wall_ms())
        return await assign(who, bucket_type, replica_map, validate_only=validate_only)


def _leads(record: PartitionRecord) -> str:
    """The node that leads or is a candidate, "" for none."""
    who = record.leader or record.candidate
    return "" if who is None else who.node
