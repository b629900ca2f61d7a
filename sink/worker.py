"""One cycle of a slot: fetch, push, remember what to acknowledge. Runs in a worker thread.

Many workers may wait in a long poll; at most WORKING of them decode and push at once, since they share the
interpreter with the event loop (four busy threads cost a foreground PUT 4 ms at p99, one costs nothing).
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from queues.batches import Session
from queues.rules import REAL_TIME, Item
from queues.wire import Ack, FetchReply
from repl.model.errors import IsthmusError, LocalFault, OutcomeUnknown
from repl.model.ports import KeyValue, TimeSource
from repl.model.requests import PushOutcome, PushResult
from sink.backoff import Result
from sink.dead_letters import DeadLetters
from sink.discovery import Aim
from sink.fetch import Asked, Fetcher
from sink.lag import Lag
from sink.push import Tally, dead_letters, failed_indexes, pushes
from sink.roster import LinkName

log = structlog.get_logger(__name__)

WORKING: Final = 2
"""Workers of a node that decode or push at the same time."""

ENDS: Final = (PushOutcome.APPLIED, PushOutcome.MERGED, PushOutcome.SUPERSEDED, PushOutcome.REJECTED)
"""Outcomes that end a change's way, in the order in which an acknowledgement tells them."""

PUSH_TIMEOUT_S: Final = 120.0
"""How long a batch may take to be stored; beyond it nothing of it is acknowledged and it comes again. Above the
request time-out of the write path, which decides first."""


class Link:
    """What all slots of one (queue, peer) share: numbers, the last error, and which cluster must answer."""

    def __init__(self, name: LinkName, aim: Aim, expected_name: str, since_ms: int) -> None:
        self.name = name
        self.seed = aim.seed
        self.cluster = aim.cluster
        """The uuid of the cluster that must answer, once somebody has answered or told it."""
        self.expected_name = expected_name
        self.since_ms = since_ms
        self.tally: Tally | None = None
        self.outcomes: Counter[PushOutcome] = Counter()
        self.lag = Lag()
        self.lock = threading.Lock()
        self.fetches = 0
        self.batches = 0
        self.errors = 0
        self.last_error = ""
        self.last_error_reason = ""
        self.last_error_ms: int | None = None
        self.last_batch_ms: int | None = None
        self.last_answer_ms: int | None = None
        self.source_cluster = ""
        self.source_state = ""
        self.properties_differ: tuple[str, ...] = ()
        """Bucket types whose properties are not those of the source."""


class Shop(NamedTuple):
    """What all slots of a node share: the cluster to push into, its loop, the time, where dead letters go, who counts
    per source cluster, and how many may work at once."""

    kv: KeyValue
    loop: asyncio.AbstractEventLoop
    time: TimeSource
    letters: DeadLetters
    tally_of: Callable[[bytes, str, str], Tally]
    working: threading.Semaphore
    stopping: threading.Event


class Slot:
    """One slot of a link: its own connection, its own acknowledgement."""

    def __init__(self, link: Link, fetcher: Fetcher, shop: Shop) -> None:
        self.link = link
        self.fetcher = fetcher
        self.pushing = False
        self._shop = shop

    def cycle(self, asked: Asked, fetched: Callable[[int, int], None]) -> tuple[Result, int]:
        """(result, how long the source held the fetch in ms). `fetched(changes, bytes)` is called when there are some,
        before they are pushed."""
        link, time = self.link, self._shop.time
        began_ms = time.now_ms()
        try:
            reply = self.fetcher.fetch(asked, link.cluster, link.expected_name)
        except IsthmusError as error:
            self._failed(error)
            return Result.ERROR, 0
        waited_ms = time.now_ms() - began_ms
        with link.lock:
            link.fetches += 1
            link.cluster = reply.cluster
            link.source_cluster = reply.cluster_name
            link.source_state = reply.state
            link.properties_differ = _differing(asked.properties, reply.properties)
            link.last_answer_ms = time.wall_ms()
            link.last_error = link.last_error_reason = ""
        if not reply.items or self._shop.stopping.is_set():
            # A batch that arrives while stopping is left unacknowledged: it comes again to whoever fetches next.
            return Result.EMPTY, waited_ms
        self.pushing = True
        try:
            fetched(len(reply.items), self.fetcher.answer_bytes)
            return self._taken_in(reply), waited_ms
        finally:
            self.pushing = False

    def _taken_in(self, reply: FetchReply) -> Result:
        """Push a batch and note what became of it."""
        link, time = self.link, self._shop.time
        tally = self._shop.tally_of(reply.cluster, reply.cluster_name, link.name.queue)
        tally.fetched(len(reply.items), self.fetcher.answer_bytes)
        with self._shop.working:
            results = self._kept(reply, self._push(reply.items, reply.cluster))
        now_ms = time.wall_ms()
        failed = failed_indexes(results)
        times = [item[7] for item in reply.items]
        if failed:
            again = set(failed)
            times = [time_ms for n, time_ms in enumerate(times) if n not in again]
        outcomes = Counter([result.outcome for result in results])
        applied, merged, superseded, rejected = (outcomes[outcome] for outcome in ENDS)
        self.fetcher.ack = Ack(reply.batch, reply.owner_version, failed, (applied, merged, superseded, rejected))
        tally.pushed(outcomes, now_ms)
        with link.lock:
            link.batches += 1
            link.last_batch_ms = now_ms
            link.outcomes.update(outcomes)
            if reply.priority == REAL_TIME:
                link.lag.note(times, now_ms)
        if failed:
            why = results[failed[0]].error
            self._failed(why or OutcomeUnknown(f"{len(failed)} changes were not stored"))
            return Result.FAILED
        return Result.ITEMS

    def _push(self, items: Sequence[Item], source: bytes) -> Sequence[PushResult]:
        """The outcome of each item; all FAILED when the cluster gave no answer in time."""
        future = asyncio.run_coroutine_threadsafe(self._shop.kv.push(pushes(items, source)), self._shop.loop)
        try:
            return future.result(PUSH_TIMEOUT_S)
        except IsthmusError as error:
            return [PushResult(PushOutcome.FAILED, error)] * len(items)
        except TimeoutError:
            future.cancel()
            late = OutcomeUnknown(f"this cluster gave no answer to a push within {PUSH_TIMEOUT_S:g} s")
            return [PushResult(PushOutcome.FAILED, late)] * len(items)
        except Exception as error:
            # A bug must neither lose a batch nor silence a link: it is told, and the batch comes again.
            log.exception("sink.push_bug", queue=self.link.name.queue, peer=self.link.name.peer)
            return [PushResult(PushOutcome.FAILED, OutcomeUnknown(f"a fault in this program: {error!r}"))] * len(items)

    def _kept(self, reply: FetchReply, results: Sequence[PushResult]) -> Sequence[PushResult]:
        """The results, once what was rejected is kept on disk; when that cannot be, it has failed and comes again."""
        now_ms = self._shop.time.wall_ms()
        name = self.link.name
        letters = dead_letters(name, reply.cluster, reply.cluster_name, reply.items, results, now_ms)
        if not letters:
            return results
        try:
            self._shop.letters.add(letters)
        except LocalFault as error:
            refused = PushResult(PushOutcome.FAILED, error)
            return [refused if r.outcome is PushOutcome.REJECTED else r for r in results]
        return results

    def _failed(self, error: IsthmusError) -> None:
        link = self.link
        with link.lock:
            link.errors += 1
            link.last_error = str(error)
            link.last_error_reason = error.reason
            link.last_error_ms = self._shop.time.wall_ms()


def _differing(ours: Mapping[bytes, bytes], theirs: Mapping[bytes, bytes]) -> tuple[str, ...]:
    """Bucket types whose digests are not the same on both sides; one that is not told is the default on that side."""
    if ours == theirs:
        return ()
    names = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    return tuple(name.decode("utf-8", "backslashreplace") for name in names)


def slot_session(cluster_uuid: bytes, node: str, incarnation: bytes, number: int) -> Session:
    """The session under which a slot fetches; `number` is unique in the process."""
    return Session(cluster_uuid, node, incarnation, number)
