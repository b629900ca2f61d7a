"""The workers of a node's sink, and the links they work on.

A worker is a task of the event loop: it asks the roster whose turn it is, runs that slot's cycle, reports, and ends
when there is no turn for it. Whatever may give somebody a turn (a cycle that ended or found something, a delay that is
over, a link or a limit that changed) looks for one and begins a worker for each. A slot that gets no turn (another one
waits at the source for all, the rate is used up, the link is suspended) acknowledges by itself. A link that leaves ends
with its last cycle, and what it has to acknowledge is sent first. Who decides about links and limits is `sink.service`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from random import SystemRandom
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from isthmus.config.settings import SinkSettings
from isthmus.queues.rate_limit import Rates, Throttle
from isthmus.repl.http.async_client import AsyncHttpPeer
from isthmus.repl.http.client import PeerCredentials
from isthmus.repl.property_digests import PlaceDigests
from isthmus.repl.timers import DeadlineTimer
from isthmus.sink.backoff import CycleResult, Delays
from isthmus.sink.discovery import LinkTarget
from isthmus.sink.fetch import Fetcher, FetchOptions, LocalCluster
from isthmus.sink.scheduler import FetchScheduler, LinkName, Turn
from isthmus.sink.worker import Link, SinkContext, Slot, slot_session

log = structlog.get_logger(__name__)

T = TypeVar("T")

SLOTS: Final = 2
"""Slots of a link unless `sink.peer_limit` asks for more: one fetches while the other pushes. More of them only make
batches smaller, except over links on which an answer takes long."""

UNDER_WAY_COUNT: Final = 1_024
"""Changes of a link that are under way at once where batches are small (`sink.batch`) and full: enough slots for that
many work, since full batches get no smaller by more of them, and what is pushed at once shares its syncs."""

SLOTS_FULL_MAX: Final = 8
"""Most slots of a link whose batches are full, unless `sink.peer_limit` says it: one change a fetch then shares a sync
with seven others; the source has 64 batches to give to all."""

SLOTS_MAX: Final = 16
"""Most slots of a link."""

IDLE_WAIT_S: Final = 1.0
"""How long it takes at most until somebody looks again whether a slot is due."""

TELL_S: Final = 0.25
"""How long a slot without a turn keeps an acknowledgement to itself, about; `IDLE_WAIT_S` at most. Its turn brings the
next fetch along, as a rule at once; a newer change of a key waits at the source until the older one is acknowledged."""

TELL_MOST_S: Final = 5.0
"""How long a stop waits until what is stored is acknowledged; what is not by then comes again, and changes nothing."""

SHORT_POLL_MS: Final = 32
"""How long a fetch waits at the source while workers are wanted elsewhere: what Riak's source does in eight tries of
4 ms."""


Properties = Callable[[], Mapping[bytes, bytes]]
"""Digests of the properties that must agree between clusters, by bucket type."""


Places = Callable[[], PlaceDigests | None]
"""The same by bucket and bucket type; None where they are not told."""


Types = Callable[[], frozenset[bytes] | None]
"""The bucket types of this cluster; None where it is not known whether there are more."""


class Seed(NamedTuple):
    """What the config says of a peer: the name of its cluster ("": any), and how to come in."""

    cluster_name: str
    access: PeerCredentials


class WorkerPool:
    """See the module's text. Belongs to the event loop; `incarnation` is new with each process."""

    def __init__(
        self,
        settings: SinkSettings,
        shop: SinkContext,
        home: LocalCluster,
        *,
        seeds: Mapping[LinkName, Seed],
        node: str,
        incarnation: bytes,
        rates: Rates,
        properties: Properties,
        types: Types,
        places: Places,
    ) -> None:
        self._settings = settings
        self._shop = shop
        self._home = home
        self._properties = properties
        self._types = types
        self._places = places
        self._seeds = seeds
        self._node = node
        self._incarnation = incarnation
        usual = min(SLOTS_MAX, max(SLOTS, settings.peer_limit_count))
        more = 0
        if not settings.peer_limit_count:
            more = max(0, min(SLOTS_FULL_MAX, -(-UNDER_WAY_COUNT // settings.batch_count)) - usual)
        self._slot_count = usual + more
        self._sessions = 0
        self._workers: set[asyncio.Task[None]] = set()
        self._tellers: set[asyncio.Task[None]] = set()
        """Acknowledge by themselves; each ends with its request's time-out at the latest."""
        self._alarm = DeadlineTimer(self._look)
        self._peers: dict[LinkName, AsyncHttpPeer] = {}
        self._slots: dict[LinkName, list[Slot]] = {}
        self.links: dict[LinkName, Link] = {}
        """Those that are shown."""
        self.roster = FetchScheduler(
            usual,
            Delays(
                settings.delay_min_ms,
                settings.delay_max_ms,
                settings.empty_delay_min_ms,
                settings.empty_delay_max_ms,
                settings.delay_factor,
            ),
            SystemRandom(),
            workers=settings.workers,
            peer_limit=settings.peer_limit_count,
            more=more,
        )
        self._throttle = Throttle(rates, shop.time.now_ms())
        self._running = False

    # ---------------------------------------------------------------- links

    def set_links(self, wanted: Mapping[LinkName, LinkTarget], suspended: Callable[[LinkName], bool]) -> None:
        """Begin and end links so that there are those in `wanted`."""
        for name in [name for name in self.links if name not in wanted]:
            if not self.roster.leaving(name):
                self.roster.leave(name)
                log.info("sink.link_leaves", queue=name.queue, peer=name.peer)
        self._tell()
        self._forget()
        for name, aim in wanted.items():
            if name not in self.links:
                self._add(name, aim)
            elif aim.cluster is not None and self.links[name].cluster is None:
                self.links[name].cluster = aim.cluster
            self.roster.add(name)
            self.roster.suspend(name, suspended(name))
        self._start_workers()

    def _add(self, name: LinkName, aim: LinkTarget) -> None:
        expected_name, access = self._seeds[aim.seed]
        link = Link(name, aim, expected_name, self._shop.time.wall_ms())
        peer = AsyncHttpPeer(name.peer, access)
        slots = []
        for _ in range(self._slot_count):
            session = slot_session(self._home.cluster, self._node, self._incarnation, self._sessions)
            self._sessions += 1
            slots.append(Slot(link, Fetcher(peer, name.queue, session, self._home, self._settings), self._shop))
        self.links[name], self._peers[name], self._slots[name] = link, peer, slots
        log.info("sink.link_begins", queue=name.queue, peer=name.peer)

    def peers_of(self, queue: str, cluster: bytes, best: str) -> list[AsyncHttpPeer]:
        """Nodes of a cluster that a queue is fetched from, that at `best` first."""
        names = [n for n, link in self.links.items() if n.queue == queue and link.cluster == cluster]
        return [self._peers[name] for name in sorted(names, key=lambda name: name.peer != best)]

    def _forget(self) -> None:
        for name in self.roster.gone():
            del self.links[name], self._slots[name]
            self._peers.pop(name).abort()

    def retry_now(self, peers: Collection[str]) -> None:
        """These peers are listed as live again: try them at once."""
        for peer in peers:
            self.roster.retry_now(peer)
        self._start_workers()

    def suspend(self, suspended: Callable[[LinkName], bool]) -> None:
        """Say again of every link whether it is suspended."""
        for name in self.links:
            self.roster.suspend(name, suspended(name))
        self._start_workers()

    # ---------------------------------------------------------------- limits

    def limit_queues(self, workers: Mapping[str, int]) -> None:
        """Most workers of each queue from now on; one that is not named has no limit of its own."""
        self.roster.queue_limits = dict(workers)
        self._start_workers()

    def limit(self, workers: int, peer_limit: int, rates: Rates) -> None:
        """Other limits from now on; cycles that run are finished."""
        self.roster.workers, self.roster.peer_limit_set = workers, peer_limit
        if rates != self._throttle.rates:
            self._throttle.change(rates, self._shop.time.now_ms())
        self._start_workers()

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Begin to work on the links that there are."""
        self._running = True
        self._start_workers()

    def stop_taking(self) -> None:
        """No new cycle begins; those under way go on."""
        self._shop.stopping.set()
        self._running = False
        self._alarm.cancel()

    def pushing(self) -> bool:
        """True while a batch is being pushed."""
        return any(slot.pushing for slots in self._slots.values() for slot in slots)

    async def pushed(self, timeout_s: float) -> None:
        """Wait until the batches that are being pushed now are stored, or for `timeout_s`."""
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self.pushing() and (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._workers, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    async def end(self) -> None:
        """Have said, within TELL_MOST_S, what slots at rest have still to acknowledge, all at once: a source that has
        gone silent would hold each of them up for as long as a request may take. Then cut what waits at a source; it
        comes again."""
        loop = asyncio.get_running_loop()
        for name, slots in self._slots.items():
            running = self.roster.running_slots(name)
            for number, slot in enumerate(slots):
                if number not in running and slot.fetcher.ack is not None:
                    self._tellers.add(loop.create_task(self._told_at_last(slot)))
        tellers = set(self._tellers)
        if tellers:
            await asyncio.wait(tellers, timeout=TELL_MOST_S)
        for peer in self._peers.values():
            peer.abort()
        for task in (*self._workers, *tellers):
            task.cancel()
        await asyncio.gather(*self._workers, *tellers, return_exceptions=True)

    @staticmethod
    async def _told_at_last(slot: Slot) -> None:
        await slot.acknowledge()

    @property
    def workers(self) -> int:
        """Those that are in a cycle."""
        return len(self._workers)

    # ---------------------------------------------------------------- work

    def _start_workers(self) -> None:
        """Begin a worker for each turn that there is now."""
        while (turn := self._next_turn()) is not None:
            worker = asyncio.get_running_loop().create_task(self._run(turn))
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _run(self, turn: Turn | None) -> None:
        while turn is not None:
            slot = self._slots[turn.name][turn.slot]
            await self._work(turn)
            turn = self._next_turn()
            self._start_workers()
            if turn is None and slot.fetcher.ack is not None:
                self._alarm.call_within(TELL_S)

    def _next_turn(self) -> Turn | None:
        """The next slot to work on, if one is due; else somebody looks again when one will be."""
        if not self._running or self._shop.stopping.is_set():
            return None
        now_ms = self._shop.time.now_ms()
        held_ms = self._throttle.wait_ms(now_ms)
        turn = None if held_ms else self.roster.take(now_ms)
        if turn is None:
            due_ms = self.roster.next_due_ms()
            wait_s = IDLE_WAIT_S if due_ms is None else max(due_ms - now_ms, held_ms, 1) / 1000
            self._alarm.call_within(min(IDLE_WAIT_S, wait_s))
        return turn

    def _look(self) -> None:
        self._start_workers()
        self._tell()

    def _tell(self) -> None:
        """Let slots that got no turn say what they have to acknowledge."""
        if not self._running:
            return
        now_ms = self._shop.time.now_ms()
        for name, slots in self._slots.items():
            for number, slot in enumerate(slots):
                if slot.fetcher.ack is not None and self.roster.begin_ack(name, number, now_ms):
                    teller = asyncio.get_running_loop().create_task(self._told(name, number, slot))
                    self._tellers.add(teller)
                    teller.add_done_callback(self._tellers.discard)

    async def _told(self, name: LinkName, number: int, slot: Slot) -> None:
        done = False
        try:
            done = await slot.acknowledge()
        except Exception:
            log.exception("sink.bug", queue=name.queue, peer=name.peer)  # as in `_work`
        self.roster.ack_done(name, number, done, self._shop.time.now_ms())
        self._forget()
        self._start_workers()

    async def _work(self, turn: Turn) -> None:
        name, number, may_wait = turn
        settings = self._settings
        slot = self._slots[name][number]
        result, waited_ms = CycleResult.ERROR, 0
        try:
            count, size = self._throttle.room(settings.batch_count, settings.batch_bytes, self._shop.time.now_ms())
            poll_ms = settings.poll_ms if may_wait else min(settings.poll_ms, SHORT_POLL_MS)
            asked = FetchOptions(count, size, poll_ms, self._properties(), self._types(), self._places())
            result, waited_ms = await slot.cycle(asked, lambda *what: self._fetched(name, number, *what))
            if self.roster.suspended(name) or self.roster.leaving(name):
                await slot.acknowledge()
        except Exception as error:
            # A bug must neither silence a link for good nor keep its worker: it is told, counted and backed off from.
            log.exception("sink.bug", queue=name.queue, peer=name.peer)
            slot.link.last_error, slot.link.last_error_reason = f"a fault in this program: {error!r}", "internal"
        self.roster.report(name, number, result, self._shop.time.now_ms(), waited_ms)
        self._forget()

    def _fetched(self, name: LinkName, number: int, count: int, size: int) -> None:
        self._throttle.spent(count, size, self._shop.time.now_ms())
        self.roster.fetched(name, number, full=count >= self._settings.batch_count)
        self._start_workers()

    # ---------------------------------------------------------------- what is shown

    def each(self, work: Callable[[LinkName, Link], T]) -> list[T]:
        """What `work` makes of each link."""
        return [work(name, link) for name, link in self.links.items()]

    def shown(self) -> dict[str, Any]:
        """Workers and throttle, for listings."""
        return {
            "workers": {
                "count": self.roster.workers,
                "busy": self.roster.running_count(),
                "peer_limit": self.roster.peer_limit(),
                "queue_limits": dict(self.roster.queue_limits),
            },
            "throttle": self._throttle.shown(self._shop.time.now_ms()),
        }
