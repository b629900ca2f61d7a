"""The sink of a node: its threads, its suspensions, its numbers.

Without peers there is no thread and it says `idle: not configured`. A stop lets a batch that is being pushed finish and
acknowledges it; a long poll is cut off, since what it would bring comes again.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from random import SystemRandom
from typing import Any, Final

import structlog

from config.settings import SinkSettings
from repl.metastore.port import Metastore, Unavailable
from repl.model.errors import BadInput, CodecError, IsthmusError
from repl.model.ports import KeyValue, TimeSource
from repl.telemetry import Sample
from repl.transport.http_client import HttpPeer
from sink import listing, suspensions
from sink.backoff import Result
from sink.fetch import Fetcher
from sink.push import DEAD_LETTERS_MAX, DeadLetter, Outcomes
from sink.roster import LinkName, Roster
from sink.suspensions import Suspension
from sink.worker import WORKING, Link, Slot, slot_session

log = structlog.get_logger(__name__)

SLOTS: Final = 2
"""Slots of a link: one waits at the source while the other pushes. More of them only make batches smaller."""

STOP_PUSH_S: Final = 10.0
"""How long a stop waits for batches that are being pushed; what is not done by then comes again."""

IDLE_WAIT_S: Final = 1.0
"""How long a worker without a due slot sleeps at most before it looks again."""

WATCH_INTERVAL_S: Final = 5.0
"""How often suspensions made at another node are read again, beside the metastore's hints."""


class Sink:
    """The actor. Its methods belong to the event loop; the workers are threads of its own."""

    def __init__(
        self,
        settings: SinkSettings,
        *,
        kv: KeyValue,
        loop: asyncio.AbstractEventLoop,
        cluster_uuid: bytes,
        cluster_name: str,
        node_name: str,
        metastore: Metastore,
        time: TimeSource,
    ) -> None:
        self._metastore = metastore
        self._time = time
        self._letters: deque[DeadLetter] = deque(maxlen=DEAD_LETTERS_MAX)
        names = [LinkName(peer.queue, peer.url) for peer in settings.peers]
        self._roster = Roster(names, SLOTS, settings.delay_min_ms, settings.delay_max_ms, SystemRandom())
        self._links = {name: Link(name, Outcomes(name.queue, name.peer, self._letters)) for name in names}
        incarnation = secrets.token_bytes(8)
        self._slots: dict[tuple[LinkName, int], Slot] = {}
        self._peers = {name: HttpPeer(name.peer, SLOTS) for name in names}
        for name in names:
            for slot in range(SLOTS):
                session = slot_session(cluster_uuid, node_name, incarnation, len(self._slots))
                fetcher = Fetcher(self._peers[name], name.queue, session, cluster_name, settings)
                self._slots[name, slot] = Slot(self._links[name], fetcher, kv, loop, time)
        self._suspensions: tuple[Suspension, ...] = ()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._working = threading.Semaphore(WORKING)
        count = min(settings.workers, len(self._slots))
        self._threads = [threading.Thread(target=self._run, name=f"sink-{n}", daemon=True) for n in range(count)]
        self._watch: asyncio.Task[None] | None = None
        self._started = False

    async def start(self) -> None:
        """Read the suspensions and start the workers."""
        self._started = True
        if not self._links:
            return
        await self._read_suspensions()
        for thread in self._threads:
            thread.start()
        self._watch = asyncio.get_running_loop().create_task(self._watch_suspensions())

    async def stop(self) -> None:
        """Start no new fetch, let pushes finish (bounded), send their acknowledgements."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if not self._started:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_PUSH_S
        while any(slot.pushing for slot in self._slots.values()) and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the workers are threads: nobody is there to set an asyncio event
        await loop.run_in_executor(None, self._end_connections)

    def _end_connections(self) -> None:
        for (name, number), slot in self._slots.items():
            if not self._in_cycle(name, number):
                self._acknowledge(name, slot)
        for peer in self._peers.values():
            peer.cut()

    def _acknowledge(self, name: LinkName, slot: Slot) -> None:
        """Send what a slot has still to acknowledge, since its next fetch may be far; lost, it comes again."""
        try:
            slot.fetcher.acknowledge()
        except IsthmusError as error:
            log.info("sink.last_ack_lost", queue=name.queue, peer=name.peer, error=str(error))

    def _in_cycle(self, name: LinkName, slot: int) -> bool:
        with self._changed:
            return slot in self._roster.running_slots(name)

    # -- workers ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._changed:
                taken = self._roster.take(self._time.now_ms())
                if taken is None:
                    due_ms = self._roster.next_due_ms()
                    wait_s = IDLE_WAIT_S if due_ms is None else (due_ms - self._time.now_ms()) / 1000
                    self._changed.wait(min(IDLE_WAIT_S, max(0.001, wait_s)))
                    continue
            name, number = taken
            slot = self._slots[name, number]
            result, waited_ms = Result.ERROR, 0
            try:
                result, waited_ms = slot.cycle(self._working, self._stopping)
            except Exception as error:
                # A bug must not silence a link for good: it is told, counted and backed off from.
                log.exception("sink.bug", queue=name.queue, peer=name.peer)
                slot.link.last_error = f"a fault in this program: {error!r}"
            if self._roster.suspended(name):
                self._acknowledge(name, slot)
            with self._changed:
                self._roster.report(name, number, result, self._time.now_ms(), waited_ms)
                self._changed.notify()

    # -- suspensions --------------------------------------------------------------------------------------

    async def suspend(self, queue: str | None, peer: str | None, by: str, reason: str) -> None:
        """Start no new fetch of what is named (None: every); running ones finish. Raises BadInput, Overloaded."""
        self._check_named(queue, peer)
        new = Suspension(queue, peer, by, self._time.wall_ms(), reason)
        self._adopt(await suspensions.change(self._metastore, new, queue, peer))
        log.info("sink.suspended", queue=queue, peer=peer, by=by, reason=reason)

    async def resume(self, queue: str | None, peer: str | None) -> None:
        """End suspensions of what is named. Raises BadInput, Overloaded."""
        self._check_named(queue, peer)
        self._adopt(await suspensions.change(self._metastore, None, queue, peer))
        log.info("sink.resumed", queue=queue, peer=peer)

    def _check_named(self, queue: str | None, peer: str | None) -> None:
        for what, value, known in (
            ("queue", queue, {n.queue for n in self._links}),
            ("peer", peer, {n.peer for n in self._links}),
        ):
            if value is not None and value not in known:
                names = ", ".join(sorted(known)) or "none"
                raise BadInput(f"this node fetches from no {what} {value!r}; configured: {names}")

    def _adopt(self, found: tuple[Suspension, ...]) -> None:
        self._suspensions = found
        with self._changed:
            for name in self._links:
                self._roster.suspend(name, any(s.fits(name) for s in found))
            self._changed.notify_all()

    async def _read_suspensions(self) -> None:
        try:
            self._adopt(await suspensions.read(self._metastore))
        except Unavailable as error:
            log.warning("sink.suspensions_unread", error=str(error))
        except CodecError as error:
            log.error("sink.suspensions_malformed", error=str(error))

    async def _watch_suspensions(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            await self._read_suspensions()

    # -- numbers ------------------------------------------------------------------------------------------

    def status(self) -> dict[str, str]:
        """What this actor does: {"actor", "state", "reason"}."""
        if not self._links:
            return {"actor": "sink", "state": "idle", "reason": "not configured"}
        if not self._started:
            return {"actor": "sink", "state": "idle", "reason": "not started"}
        suspended = sum(any(s.fits(name) for s in self._suspensions) for name in self._links)
        if suspended == len(self._links):
            return {"actor": "sink", "state": "suspended", "reason": f"by {self._suspensions[0].by}"}
        return {"actor": "sink", "state": "running", "reason": f"{suspended} links suspended" if suspended else ""}

    def listing(self) -> list[dict[str, Any]]:
        """One row a link."""
        now_ms = self._time.wall_ms()
        return [listing.row(link, self._roster, self._suspensions, now_ms) for link in self._links.values()]

    def dead_letters(self) -> list[Mapping[str, Any]]:
        """What was refused for good, oldest first; bounded, in memory."""
        return [
            {**asdict(letter), "key": [part.decode("utf-8", "backslashreplace") for part in letter.key]}
            for letter in list(self._letters)
        ]

    def metrics(self) -> list[Sample]:
        """Samples of every link; their help lines are `sink.listing.HELP`."""
        now_ms = self._time.wall_ms()
        result: list[Sample] = []
        for link in self._links.values():
            result += listing.samples(link, self._roster, self._suspensions, now_ms)
        return result
