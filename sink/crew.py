"""The worker threads of a node's sink, and the links they work on.

A thread asks the roster whose turn it is, runs that slot's cycle, and reports. All of the roster, the throttle and the
list of links is under one lock, held for moments only. Threads come and go with the number of workers; a link that
leaves ends with its last cycle, and what it has to acknowledge is sent first. Who decides about links and limits is
`sink.actor`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from random import SystemRandom
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from config.settings import SinkSettings
from queues.throttle import Rates, Throttle
from repl.model.errors import IsthmusError
from repl.transport.http_client import Access, HttpPeer
from sink.backoff import Delays, Result
from sink.discovery import Aim
from sink.fetch import Asked, Fetcher, Home
from sink.roster import LinkName, Roster, Turn
from sink.worker import Link, Shop, Slot, slot_session

log = structlog.get_logger(__name__)

T = TypeVar("T")

SLOTS: Final = 2
"""Slots of a link unless `sink.peer_limit` asks for more: one fetches while the other pushes. More of them only make
batches smaller, except over links on which an answer takes long."""

SLOTS_MAX: Final = 16
"""Most slots of a link."""

IDLE_WAIT_S: Final = 1.0
"""How long a worker without a due slot sleeps at most before it looks again."""

SHORT_POLL_MS: Final = 32
"""How long a fetch waits at the source while workers are wanted elsewhere: what Riak's source does in eight tries of
4 ms."""


Properties = Callable[[], Mapping[bytes, bytes]]
"""Digests of the properties that must agree between clusters, by bucket type."""


class Seed(NamedTuple):
    """What the config says of a peer: the name of its cluster ("": any), and how to come in."""

    cluster_name: str
    access: Access


class Crew:
    """See the module's text. Safe for several threads; `incarnation` is new with each process."""

    def __init__(
        self,
        settings: SinkSettings,
        shop: Shop,
        home: Home,
        *,
        seeds: Mapping[LinkName, Seed],
        node: str,
        incarnation: bytes,
        rates: Rates,
        properties: Properties,
    ) -> None:
        self._settings = settings
        self._shop = shop
        self._home = home
        self._properties = properties
        self._seeds = seeds
        self._node = node
        self._incarnation = incarnation
        self._slot_count = min(SLOTS_MAX, max(SLOTS, settings.peer_limit_count))
        self._sessions = 0
        self._changed = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._numbered = 0
        self._peers: dict[LinkName, HttpPeer] = {}
        self._slots: dict[LinkName, list[Slot]] = {}
        self.links: dict[LinkName, Link] = {}
        """Those that are shown; belongs to the lock, read freely."""
        self.roster = Roster(
            self._slot_count,
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
        )
        self._throttle = Throttle(rates, shop.time.now_ms())
        self._running = False

    # ---------------------------------------------------------------- links

    def set_links(self, wanted: Mapping[LinkName, Aim], suspended: Callable[[LinkName], bool]) -> None:
        """Begin and end links so that there are those in `wanted`."""
        with self._changed:
            for name in [name for name in self.links if name not in wanted]:
                if not self.roster.leaving(name):
                    self.roster.leave(name)
                    log.info("sink.link_leaves", queue=name.queue, peer=name.peer)
            self._forget()
            for name, aim in wanted.items():
                if name not in self.links:
                    self._add(name, aim)
                elif aim.cluster is not None and self.links[name].cluster is None:
                    self.links[name].cluster = aim.cluster
                self.roster.add(name)
                self.roster.suspend(name, suspended(name))
            self._hire()
            self._changed.notify_all()

    def _add(self, name: LinkName, aim: Aim) -> None:
        expected_name, access = self._seeds[aim.seed]
        link = Link(name, aim, expected_name, self._shop.time.wall_ms())
        peer = HttpPeer(name.peer, self._slot_count, access)
        slots = []
        for _ in range(self._slot_count):
            session = slot_session(self._home.cluster, self._node, self._incarnation, self._sessions)
            self._sessions += 1
            slots.append(Slot(link, Fetcher(peer, name.queue, session, self._home, self._settings), self._shop))
        self.links[name], self._peers[name], self._slots[name] = link, peer, slots
        log.info("sink.link_begins", queue=name.queue, peer=name.peer)

    def _forget(self) -> None:
        for name in self.roster.gone():
            del self.links[name], self._slots[name]
            self._peers.pop(name).cut()

    def hurry(self, peers: Collection[str]) -> None:
        """These peers are listed as live again: try them at once."""
        with self._changed:
            for peer in peers:
                self.roster.hurry(peer)
            self._changed.notify_all()

    def suspend(self, suspended: Callable[[LinkName], bool]) -> None:
        """Say again of every link whether it is suspended."""
        with self._changed:
            for name in self.links:
                self.roster.suspend(name, suspended(name))
            self._changed.notify_all()

    # ---------------------------------------------------------------- limits

    def limit(self, workers: int, peer_limit: int, rates: Rates) -> None:
        """Other limits from now on; cycles that run are finished."""
        with self._changed:
            self.roster.workers, self.roster.peer_limit_set = workers, peer_limit
            if rates != self._throttle.rates:
                self._throttle.change(rates, self._shop.time.now_ms())
            self._hire()
            self._changed.notify_all()

    def _hire(self) -> None:
        """As many threads as there may be workers, and no more than slots for them to take."""
        if not self._running:
            return
        while len(self._threads) < self._head_count():
            self._numbered += 1
            thread = threading.Thread(target=self._run, name=f"sink-{self._numbered}", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _head_count(self) -> int:
        return min(self.roster.workers, len(self.links) * self._slot_count)

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Begin to work on the links that there are."""
        with self._changed:
            self._running = True
            self._hire()

    def stop_taking(self) -> None:
        """No new cycle begins; those under way go on."""
        self._shop.stopping.set()
        with self._changed:
            self._running = False
            self._changed.notify_all()

    def pushing(self) -> bool:
        """True while a batch is being pushed."""
        with self._changed:
            return any(slot.pushing for slots in self._slots.values() for slot in slots)

    def end_connections(self) -> None:
        """Send what slots at rest have still to acknowledge, then cut what waits at a source; it comes again."""
        for name, slots in list(self._slots.items()):
            with self._changed:
                running = self.roster.running_slots(name)
            for number, slot in enumerate(slots):
                if number not in running:
                    _acknowledge(slot)
        for peer in list(self._peers.values()):
            peer.cut()

    def threads(self) -> list[threading.Thread]:
        """The workers that there are."""
        with self._changed:
            return list(self._threads)

    # ---------------------------------------------------------------- work

    def _run(self) -> None:
        try:
            while (turn := self._next_turn()) is not None:
                self._work(turn)
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())

    def _next_turn(self) -> Turn | None:
        """The next slot to work on, once there is one; None when this thread is to end."""
        time = self._shop.time
        with self._changed:
            while not self._shop.stopping.is_set() and len(self._threads) <= self._head_count():
                now_ms = time.now_ms()
                held_ms = self._throttle.wait_ms(now_ms)
                turn = None if held_ms else self.roster.take(now_ms)
                if turn is not None:
                    return turn
                due_ms = self.roster.next_due_ms()
                wait_s = IDLE_WAIT_S if due_ms is None else (due_ms - now_ms) / 1000
                self._changed.wait(min(IDLE_WAIT_S, max(0.001, wait_s, held_ms / 1000)))
            self._threads.discard(threading.current_thread())
            return None

    def _work(self, turn: Turn) -> None:
        name, number, may_wait = turn
        settings = self._settings
        slot = self._slots[name][number]
        with self._changed:
            count, size = self._throttle.room(settings.batch_count, settings.batch_bytes, self._shop.time.now_ms())
        poll_ms = settings.poll_ms if may_wait else min(settings.poll_ms, SHORT_POLL_MS)
        asked = Asked(count, size, poll_ms, self._properties())
        result, waited_ms = Result.ERROR, 0
        try:
            result, waited_ms = slot.cycle(asked, lambda *what: self._fetched(name, number, *what))
        except Exception as error:
            # A bug must not silence a link for good: it is told, counted and backed off from.
            log.exception("sink.bug", queue=name.queue, peer=name.peer)
            slot.link.last_error, slot.link.last_error_reason = f"a fault in this program: {error!r}", "internal"
        with self._changed:
            ends = self.roster.suspended(name) or self.roster.leaving(name)
        if ends:
            _acknowledge(slot)
        with self._changed:
            self.roster.report(name, number, result, self._shop.time.now_ms(), waited_ms)
            self._forget()
            self._changed.notify()

    def _fetched(self, name: LinkName, number: int, count: int, size: int) -> None:
        with self._changed:
            self._throttle.spent(count, size, self._shop.time.now_ms())
            self.roster.fetched(name, number)
            self._changed.notify()

    # ---------------------------------------------------------------- what is shown

    def each(self, work: Callable[[LinkName, Link], T]) -> list[T]:
        """What `work` makes of each link; none goes meanwhile."""
        with self._changed:
            return [work(name, link) for name, link in self.links.items()]

    def shown(self) -> dict[str, Any]:
        """Workers and throttle, for listings."""
        with self._changed:
            return {
                "workers": {
                    "count": self.roster.workers,
                    "busy": self.roster.running_count(),
                    "threads": len(self._threads),
                    "peer_limit": self.roster.peer_limit(),
                },
                "throttle": self._throttle.shown(self._shop.time.now_ms()),
            }


def _acknowledge(slot: Slot) -> None:
    """Send what a slot has still to acknowledge, since its next fetch may be far; lost, it comes again."""
    name = slot.link.name
    try:
        slot.fetcher.acknowledge()
    except IsthmusError as error:
        log.info("sink.last_ack_lost", queue=name.queue, peer=name.peer, error=str(error))
