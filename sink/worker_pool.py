"""The workers of a node's sink, and the links that they fetch from.

A worker is a task of the event loop: it takes a turn from the scheduler, runs that slot's cycle, reports the result,
and ends when there is no further turn. Every event that may create a turn (a cycle that ended or returned changes, a
delay that is over, a link or a limit that changed) starts a worker per turn. A slot without a turn (another slot waits
at the source, the rate is used up, the link is suspended) sends its acknowledgement in a request of its own. A link
that is removed ends with its last cycle, after its acknowledgements are sent. `sink.service` decides about links and
limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import structlog

from isthmus.config.settings import SinkSettings
from isthmus.queues.rate_limit import Rates, Throttle
from isthmus.queues.sink_shares import Share
from isthmus.queues.window_rules import Item
from isthmus.repl.http.async_client import AsyncHttpPeer
from isthmus.repl.http.client import PeerCredentials
from isthmus.repl.machine import machine
from isthmus.repl.ordered_set import OrderedSet
from isthmus.repl.property_digests import ScopeDigests
from isthmus.repl.timers import DeadlineTimer
from isthmus.repl.unforeseen import unforeseen
from isthmus.sink.backoff import CycleResult, Delays
from isthmus.sink.discovery import LinkTarget
from isthmus.sink.fetch import ChangeFetcher, Fetcher, FetchOptions, LocalCluster
from isthmus.sink.riak_fetch import RiakCounts, RiakFetcher, RiakLink
from isthmus.sink.scheduler import FetchScheduler, LinkName, Turn
from isthmus.sink.worker import Link, SinkContext, Slot, slot_session

log = structlog.get_logger(__name__)

SLOTS: Final = 2
"""Slots of a link unless `sink.peer_limit` asks for more: one fetches while the other pushes. More of them only make
batches smaller, except over links on which an answer takes long."""

IN_FLIGHT_COUNT: Final = 1_024
"""Changes of a link in flight at once where batches are small (`sink.batch`) and full: enough slots for that many are
active, since more slots do not make full batches smaller, and changes that are pushed together share their syncs."""

SLOTS_FULL_MAX: Final = 8
"""Most slots of a link whose batches are full, unless `sink.peer_limit` is set: with one change a fetch, eight changes
share a sync; the source leases 64 batches in total."""

SLOTS_MAX: Final = 16
"""Most slots of a link."""

IDLE_WAIT_S: Final = 1.0
"""Longest time until the pool checks again whether a slot is due."""

ACK_DELAY_S: Final = 0.25
"""About how long a slot without a turn delays its acknowledgement; `IDLE_WAIT_S` at most. Usually its turn comes at
once, and the next fetch carries it; a newer change of a key waits at the source until the older one is acknowledged."""

STOP_ACK_S: Final = 5.0
"""How long a stop waits for the last acknowledgements; batches without one come again, which changes nothing."""

SHORT_POLL_MS: Final = 32
"""How long a fetch waits at the source while workers are needed elsewhere: as long as eight tries of 4 ms of Riak's
source."""


class SinkCluster(Protocol):
    """Facts of this cluster that fetches send."""

    def property_digests(self) -> Mapping[bytes, bytes]:
        """Digests of the properties that must agree between clusters, by bucket type."""

    def scope_digests(self) -> ScopeDigests | None:
        """Digests by bucket and bucket type; None where they are not sent."""

    def known_types(self) -> frozenset[bytes] | None:
        """The bucket types; None where there may be others."""

    def led_share(self) -> Share | None:
        """The partitions that this node leads and serves now, by bucket type; None: not known."""

    def name_is_taken(self) -> bool:
        """Whether another process is registered as this node: this one reaches no leader, and can store nothing."""


class LinkSuspensions(Protocol):
    """Which links are suspended; `sink.service.Sink`."""

    def is_suspended(self, name: LinkName) -> bool:
        """Whether an operator has suspended the link, on this node or on all."""


class Seed(NamedTuple):
    """A peer of the config: the name of its cluster ("": any), and the credentials. `riak`: it is a node of a Riak;
    None: of a cluster of Isthmus."""

    cluster_name: str
    access: PeerCredentials
    riak: RiakLink | None = None


class WorkerPool:
    """The workers and links of one node. Belongs to the event loop; `incarnation` is new with each process."""

    def __init__(
        self,
        settings: SinkSettings,
        context: SinkContext,
        local: LocalCluster,
        *,
        seeds: Mapping[LinkName, Seed],
        node: str,
        incarnation: bytes,
        rates: Rates,
        cluster: SinkCluster,
    ) -> None:
        self._settings = settings
        self._context = context
        self._local = local
        self._cluster = cluster
        self._seeds = seeds
        self._node = node
        self._incarnation = incarnation
        slots = min(SLOTS_MAX, max(SLOTS, settings.peer_limit_count))
        extra = 0
        if not settings.peer_limit_count:
            extra = max(0, min(SLOTS_FULL_MAX, -(-IN_FLIGHT_COUNT // settings.batch_count)) - slots)
        self._slot_count = slots + extra
        self._sessions = 0
        self._workers: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._ack_tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()
        """Acknowledgements in requests of their own; each ends with its request's time-out at the latest."""
        self._alarm = DeadlineTimer(self._on_alarm)
        self._peers: dict[LinkName, AsyncHttpPeer] = {}
        self._slots: dict[LinkName, list[Slot]] = {}
        self.links: dict[LinkName, Link] = {}
        self.scheduler = FetchScheduler(
            slots,
            Delays(
                settings.delay_min_ms,
                settings.delay_max_ms,
                settings.empty_delay_min_ms,
                settings.empty_delay_max_ms,
                settings.delay_factor,
            ),
            machine().random(),
            workers=settings.workers,
            peer_limit=settings.peer_limit_count,
            extra=extra,
        )
        self._throttle = Throttle(rates, context.time.now_ms())
        self._running = False

    # ---------------------------------------------------------------- links

    def set_links(self, wanted: Mapping[LinkName, LinkTarget], suspensions: LinkSuspensions) -> None:
        """Add and remove links so that they are those of `wanted`."""
        for name in [name for name in self.links if name not in wanted]:
            if not self.scheduler.ending(name):
                self.scheduler.leave(name)
                log.info("sink.link_leaves", queue=name.queue, peer=name.peer)
        self._start_acks()
        self._remove_ended()
        for name, target in wanted.items():
            if name not in self.links:
                self._add(name, target)
            elif target.cluster is not None and self.links[name].cluster is None:
                self.links[name].cluster = target.cluster
            self.scheduler.add(name)
            self.scheduler.suspend(name, suspensions.is_suspended(name))
        self._start_workers()

    def _add(self, name: LinkName, target: LinkTarget) -> None:
        expected_name, access, riak = self._seeds[target.seed]
        link = Link(name, target, expected_name, self._context.time.wall_ms())
        peer = AsyncHttpPeer(name.peer, access)
        if riak is not None:
            link.riak, link.cluster, link.source_cluster = RiakCounts(), riak.source, riak.settings.name
        slots = [Slot(link, self._fetcher(link, peer, riak), self._context) for _ in range(self._slot_count)]
        self.links[name], self._peers[name], self._slots[name] = link, peer, slots
        log.info("sink.link_begins", queue=name.queue, peer=name.peer)

    def _fetcher(self, link: Link, peer: AsyncHttpPeer, riak: RiakLink | None) -> ChangeFetcher:
        context, timeout_ms = self._context, self._settings.request_timeout_ms
        if riak is not None and link.riak is not None:
            return RiakFetcher(
                peer, riak, link.riak, time=context.time, stopping=context.stopping, timeout_ms=timeout_ms
            )
        session = slot_session(self._local.cluster, self._node, self._incarnation, self._sessions)
        self._sessions += 1
        return Fetcher(peer, link.name.queue, session, self._local, self._settings)

    def peers_of(self, queue: str, cluster: bytes, best: str) -> list[AsyncHttpPeer]:
        """Nodes of a cluster that a queue is fetched from, the one at URL `best` first."""
        names = [n for n, link in self.links.items() if n.queue == queue and link.cluster == cluster]
        return [self._peers[name] for name in sorted(names, key=lambda name: name.peer != best)]

    def _remove_ended(self) -> None:
        in_hand = {name for name, slots in self._slots.items() if any(slot.fetcher.hand for slot in slots)}
        for name in self.scheduler.gone(in_hand):
            del self.links[name], self._slots[name]
            self._peers.pop(name).abort()

    def retry_now(self, peers: Collection[str]) -> None:
        """Fetch at once from peers that are listed as live again, whatever their delays."""
        for peer in peers:
            self.scheduler.retry_now(peer)
        self._start_workers()

    def suspend(self, suspensions: LinkSuspensions) -> None:
        """Apply suspensions to all links."""
        for name in self.links:
            self.scheduler.suspend(name, suspensions.is_suspended(name))
        self._start_workers()

    # ---------------------------------------------------------------- limits

    def limit_queues(self, workers: Mapping[str, int]) -> None:
        """Set the most workers of each queue; a queue that is not named has no limit of its own."""
        self.scheduler.queue_limits = dict(workers)
        self._start_workers()

    def limit(self, workers: int, peer_limit: int, rates: Rates) -> None:
        """Set limits; running cycles finish."""
        self.scheduler.workers, self.scheduler.configured_peer_limit = workers, peer_limit
        if rates != self._throttle.rates:
            self._throttle.change(rates, self._context.time.now_ms())
        self._start_workers()

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Start workers for the links."""
        self._running = True
        self._start_workers()

    def stop_fetching(self) -> None:
        """Begin no new cycle; running ones go on."""
        self._context.stopping.set()
        self._running = False
        self._alarm.cancel()

    def batches(self, name: LinkName) -> list[Sequence[Item]]:
        """The batches of a link that are being pushed."""
        return [slot.items for slot in self._slots[name] if slot.items]

    def pushing(self) -> bool:
        """Whether a batch is being pushed, or a Riak's answer is awaited: it would be lost."""
        return any(slot.pushing or slot.taking for slots in self._slots.values() for slot in slots)

    async def wait_for_pushes(self, timeout_s: float) -> None:
        """Wait until the batches that are being pushed are stored, or for `timeout_s`."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self.pushing() and (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            tasks = [*self._workers, *self._ack_tasks]
            await asyncio.wait(tasks, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    async def stop(self) -> None:
        """Send the acknowledgements of idle slots within STOP_ACK_S, concurrently: a source that does not answer would
        delay each for as long as a request may take. Then abort fetches that wait at a source."""
        loop = asyncio.get_running_loop()
        for name, slots in self._slots.items():
            running = self.scheduler.running_slots(name)
            for number, slot in enumerate(slots):
                if number not in running and slot.owes:
                    self._ack_tasks.add(loop.create_task(self._last_ack(slot)))
        ack_tasks = list(self._ack_tasks)
        if ack_tasks:
            await asyncio.wait(ack_tasks, timeout=STOP_ACK_S)
        for peer in self._peers.values():
            peer.abort()
        for task in (*self._workers, *ack_tasks):
            task.cancel()
        await asyncio.gather(*self._workers, *ack_tasks, return_exceptions=True)
        kept = [
            await slot.keep_hand("the node stopped before this cluster stored it")
            for slots in self._slots.values()
            for slot in slots
        ]
        if sum(kept):
            log.warning("sink.riak_changes_kept", count=sum(kept))

    @staticmethod
    async def _last_ack(slot: Slot) -> None:
        await slot.acknowledge()

    @property
    def workers(self) -> int:
        """Workers in a cycle."""
        return len(self._workers)

    # ---------------------------------------------------------------- work

    def _start_workers(self) -> None:
        """Start a worker for each turn that there is now."""
        while (turn := self._next_turn()) is not None:
            worker = asyncio.get_running_loop().create_task(self._run(turn))
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _run(self, turn: Turn | None) -> None:
        while turn is not None:
            slot = self._slots[turn.name][turn.slot]
            await self._work(turn)
            turn = self._next_turn()
            if turn is not None:
                self._start_workers()
            elif slot.owes:
                self._alarm.call_within(ACK_DELAY_S)

    def _next_turn(self) -> Turn | None:
        """The next turn; without one, sets the alarm for when a slot will be due."""
        if not self._running or self._context.stopping.is_set():
            return None
        if self._cluster.name_is_taken():
            self._alarm.call_within(IDLE_WAIT_S)
            return None
        now_ms = self._context.time.now_ms()
        try:
            held_ms = self._throttle.wait_ms(now_ms)
            turn = None if held_ms else self.scheduler.take(now_ms)
        except Exception as error:  # the alarm rings again: without it no link would be fetched from any more
            unforeseen.exception("sink.turn_bug", error)
            held_ms, turn = round(1000 * IDLE_WAIT_S), None
        if turn is None:
            due_ms = self.scheduler.next_due_ms()
            wait_s = IDLE_WAIT_S if due_ms is None else max(due_ms - now_ms, held_ms, 1) / 1000
            self._alarm.call_within(min(IDLE_WAIT_S, wait_s))
        return turn

    def _on_alarm(self) -> None:
        self._start_workers()
        self._start_acks()

    def _start_acks(self) -> None:
        """Send the acknowledgements of slots that got no turn."""
        if not self._running:
            return
        now_ms = self._context.time.now_ms()
        for name, slots in self._slots.items():
            for number, slot in enumerate(slots):
                try:
                    due = slot.owes and self.scheduler.begin_ack(name, number, now_ms)
                except Exception as error:
                    unforeseen.exception("sink.turn_bug", error, queue=name.queue, peer=name.peer)
                    continue
                if due:
                    task = asyncio.get_running_loop().create_task(self._acknowledge(name, number, slot))
                    self._ack_tasks.add(task)
                    task.add_done_callback(self._ack_tasks.discard)

    async def _acknowledge(self, name: LinkName, number: int, slot: Slot) -> None:
        done = False
        try:
            done = await slot.acknowledge()
        except Exception as error:
            unforeseen.exception("sink.bug", error, queue=name.queue, peer=name.peer)  # as in `_work`
        self.scheduler.ack_done(name, number, done, self._context.time.now_ms())
        self._remove_ended()
        self._start_workers()

    async def _work(self, turn: Turn) -> None:
        name, number, may_wait = turn
        settings = self._settings
        slot = self._slots[name][number]
        result, waited_ms = CycleResult.ERROR, 0
        try:
            now_ms = self._context.time.now_ms()
            count, size = self._throttle.allowance(settings.batch_count, settings.batch_bytes, now_ms)
            poll_ms = settings.poll_ms if may_wait else min(settings.poll_ms, SHORT_POLL_MS)
            cluster = self._cluster
            options = FetchOptions(
                count,
                size,
                poll_ms,
                cluster.property_digests(),
                cluster.known_types(),
                cluster.scope_digests(),
                cluster.led_share(),
            )
            result, waited_ms = await slot.cycle(options, lambda *found: self._fetched(name, number, *found))
            if self.scheduler.suspended(name) or self.scheduler.ending(name):
                await slot.acknowledge()
        except Exception as error:
            # A bug must neither stop a link for good nor keep its worker: it is logged, counted, and delays the link.
            unforeseen.exception("sink.bug", error, queue=name.queue, peer=name.peer)
            slot.link.last_error, slot.link.last_error_reason = f"a fault in this program: {error!r}", "internal"
        self.scheduler.report(name, number, result, self._context.time.now_ms(), waited_ms)
        self._remove_ended()

    def _fetched(self, name: LinkName, number: int, count: int, size: int) -> None:
        self._throttle.spend(count, size, self._context.time.now_ms())
        full = count >= self._settings.batch_count or self._slots[name][number].fetcher.more
        self.scheduler.fetched(name, number, full=full)
        self._start_workers()

    # ---------------------------------------------------------------- status

    def throttled(self) -> dict[str, Any]:
        """See Throttle.as_dict."""
        return self._throttle.as_dict(self._context.time.now_ms())
