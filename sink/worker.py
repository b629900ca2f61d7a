"""One cycle of a slot: fetch, push, remember what to acknowledge. Runs on the event loop.

Nothing is handed between threads on this way: a change of one's own would pay for that alone what all the rest costs.
Only what waits for a disk beside the log (dead letters) is done in a thread.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import structlog

from isthmus.config.text import clause, quantity
from isthmus.queues.leases import Session
from isthmus.queues.window_rules import REAL_TIME
from isthmus.queues.wire import BatchAck, FetchReply
from isthmus.repl.model.errors import IsthmusError, LocalFault, OutcomeUnknown, Retryable
from isthmus.repl.model.ports import KeyValue, TimeSource
from isthmus.repl.model.requests import PushOutcome, PushResult
from isthmus.repl.property_digests import PropertyDifference, differences
from isthmus.sink.backoff import CycleResult
from isthmus.sink.conflicts import Conflicts
from isthmus.sink.dead_letters import DeadLetters
from isthmus.sink.discovery import LinkTarget
from isthmus.sink.fetch import Fetcher, FetchOptions
from isthmus.sink.lag_histogram import Lag
from isthmus.sink.push import SourceCounters, conflicts_of, dead_letters, failed_indexes, outcomes_of, pushes
from isthmus.sink.scheduler import LinkName

log = structlog.get_logger(__name__)

ENDS: Final = (PushOutcome.APPLIED, PushOutcome.MERGED, PushOutcome.SUPERSEDED, PushOutcome.REJECTED)
"""Outcomes that end a change's way, in the order in which an acknowledgement tells them."""

PUSH_TIMEOUT_S: Final = 120.0
"""How long a batch may take to be stored; beyond it nothing of it is acknowledged and it comes again. Above the
request time-out of the write path, which decides first."""


TYPE_LACKING: Final = "unknown-bucket-type"
"""The reason of what cannot be stored since this cluster has no such bucket type."""

OVERDUE_MS: Final = 5_000
"""How much later than it should an answer may come before the link tells so: well above a busy source's pauses, well
below `sink.request_timeout`, after which the fetch has failed."""


class LeaseOver(Retryable):
    """A batch is older than its lease: it was not pushed, and comes again."""

    reason = "lease-over"


class Link:
    """What all slots of one (queue, peer) share: numbers, the last error, and which cluster must answer."""

    def __init__(self, name: LinkName, aim: LinkTarget, expected_name: str, since_ms: int) -> None:
        self.name = name
        self.seed = aim.seed
        self.cluster = aim.cluster
        """The uuid of the cluster that must answer, once somebody has answered or told it."""
        self.expected_name = expected_name
        self.since_ms = since_ms
        self.tally: SourceCounters | None = None
        self.outcomes: Counter[PushOutcome] = Counter()
        self.lag = Lag()
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
        self.properties_differ: tuple[PropertyDifference, ...] = ()
        """Properties that are not those of the source."""
        self.held: Mapping[bytes, int] | None = None
        """Bucket types that the source holds back since this cluster lacks them, with the time of the oldest change of
        each; None: the source is of a version that holds none back."""
        self.under_way: dict[int, tuple[int, int]] = {}
        """Slot (by identity) -> since when it asks, and when the answer is due, in wall-clock ms."""

    def unanswered_ms(self, now_ms: int) -> int:
        """How long the source has been silent to a fetch whose answer is overdue; 0 while none is."""
        late = [since_ms for since_ms, due_ms in self.under_way.values() if now_ms >= due_ms + OVERDUE_MS]
        return now_ms - min(late) if late else 0


class SinkContext(NamedTuple):
    """What all slots of a node share: the cluster to push into, the time, where dead letters go, and who counts per
    source cluster."""

    kv: KeyValue
    time: TimeSource
    letters: DeadLetters
    conflicts: Conflicts
    tally_of: Callable[[bytes, str, str], SourceCounters]
    stopping: asyncio.Event


class Slot:
    """One slot of a link: its own connection, its own acknowledgement."""

    def __init__(self, link: Link, fetcher: Fetcher, shop: SinkContext) -> None:
        self.link = link
        self.fetcher = fetcher
        self.pushing = False
        self._shop = shop

    async def cycle(self, asked: FetchOptions, fetched: Callable[[int, int], None]) -> tuple[CycleResult, int]:
        """(result, how long the source held the fetch in ms). `fetched(changes, bytes)` is called when there are some,
        before they are pushed."""
        link, time = self.link, self._shop.time
        asked_ms, wall_ms = time.now_ms(), time.wall_ms()
        link.under_way[id(self)] = wall_ms, wall_ms + asked.wait_ms
        try:
            reply = await self.fetcher.fetch(asked, link.cluster, link.expected_name)
        except IsthmusError as error:
            self._failed(error)
            return CycleResult.ERROR, 0
        finally:
            del link.under_way[id(self)]
        came_ms = time.now_ms()
        waited_ms = came_ms - asked_ms
        link.fetches += 1
        link.cluster = reply.cluster
        link.source_cluster = reply.cluster_name
        link.source_state = reply.state
        link.held = reply.held
        link.properties_differ = differences(asked.properties, reply.properties, asked.places, reply.places)
        link.last_answer_ms = time.wall_ms()
        link.last_error = link.last_error_reason = ""
        if not reply.items or self._shop.stopping.is_set():
            # A batch that arrives while stopping is left unacknowledged: it comes again to whoever fetches next.
            return CycleResult.EMPTY, waited_ms
        self.pushing = True
        try:
            fetched(len(reply.items), self.fetcher.answer_bytes)
            # The source took the batch no earlier than this, by durations alone; one that does not tell how long it
            # waited before that is believed to have answered at once.
            taken_ms = came_ms if reply.waited_ms is None else asked_ms + reply.waited_ms
            return await self._taken_in(reply, taken_ms), waited_ms
        finally:
            self.pushing = False

    async def acknowledge(self) -> bool:
        """Send what is still to be acknowledged, since the next fetch may be far. False when the source failed."""
        name = self.link.name
        try:
            await self.fetcher.acknowledge()
        except IsthmusError as error:
            log.info("sink.ack_unanswered", queue=name.queue, peer=name.peer, error=str(error))
            self._failed(error)
            return False
        return True

    async def _taken_in(self, reply: FetchReply, taken_ms: int) -> CycleResult:
        """Push a batch that the source took at `taken_ms` at the earliest, and note what became of it."""
        link, time = self.link, self._shop.time
        tally = self._shop.tally_of(reply.cluster, reply.cluster_name, link.name.queue)
        tally.fetched(len(reply.items), self.fetcher.answer_bytes)
        results = await self._push(reply, taken_ms)
        outcomes = outcomes_of(results)
        given_up: tuple[int, ...] = ()
        if PushOutcome.REJECTED in outcomes:
            if reply.held is not None:
                results = [held_back(result) for result in results]
            results, given_up = await self._kept(reply, results)
            outcomes = outcomes_of(results)
        now_ms = time.wall_ms()
        if PushOutcome.MERGED in outcomes:
            self._note_conflicts(reply, results, now_ms)
        times = [item[7] for item in reply.items]
        failed: tuple[int, ...] = ()
        if PushOutcome.FAILED in outcomes:
            failed = failed_indexes(results)
            again = set(failed)
            times = [time_ms for n, time_ms in enumerate(times) if n not in again]
        applied, merged, superseded, rejected = [outcomes.get(outcome, 0) for outcome in ENDS]
        counts = (applied, merged, superseded, rejected)
        self.fetcher.ack = BatchAck(reply.batch, reply.owner_version, failed, counts, given_up)
        tally.pushed(outcomes, now_ms)
        link.batches += 1
        link.last_batch_ms = now_ms
        for outcome, count in outcomes.items():
            link.outcomes[outcome] += count
        if reply.priority == REAL_TIME:
            link.lag.note(times, now_ms)
        if failed:
            why = results[failed[0]].error
            self._failed(why or OutcomeUnknown(f"{clause(len(failed), 'change', 'was', 'were')} not stored"))
            return CycleResult.FAILED
        return CycleResult.ITEMS

    def _note_conflicts(self, reply: FetchReply, results: Sequence[PushResult], now_ms: int) -> None:
        """Name the changes that met others which they had not seen."""
        name = self.link.name
        found = conflicts_of(name, reply.cluster, reply.cluster_name, reply.items, results, now_ms)
        if found:
            self._shop.conflicts.note(found)
            first = [part.decode("utf-8", "backslashreplace") for part in found[0].key]
            log.info("sink.conflicts", queue=name.queue, peer=name.peer, count=len(found), first_key=first)

    async def _push(self, reply: FetchReply, taken_ms: int) -> Sequence[PushResult]:
        """The outcome of each item; all FAILED when the cluster gave no answer in time, and when the lease is over: the
        source may have given the changes to another worker since, and tombstones of their keys may have been reaped,
        which an old value must not meet (docs/protocol.md R-REAP)."""
        items = reply.items
        age_ms = self._shop.time.now_ms() - taken_ms
        if age_ms >= reply.lease_ms:
            over = LeaseOver(
                f"a batch of {quantity(len(items), 'change')} ({self.fetcher.answer_bytes} bytes) was "
                f"{age_ms / 1000:g} s on its way, its lease is {reply.lease_ms / 1000:g} s: it is not pushed, and "
                "comes again; if that goes on, raise lease of the queue, or lower sink.batch_size here"
            )
            return [PushResult(PushOutcome.FAILED, over)] * len(items)
        try:
            async with asyncio.timeout(PUSH_TIMEOUT_S):
                return await self._shop.kv.push(pushes(items, reply.cluster))
        except IsthmusError as error:
            return [PushResult(PushOutcome.FAILED, error)] * len(items)
        except TimeoutError:
            late = OutcomeUnknown(f"this cluster gave no answer to a push within {PUSH_TIMEOUT_S:g} s")
            return [PushResult(PushOutcome.FAILED, late)] * len(items)
        except Exception as error:
            # A bug must neither lose a batch nor silence a link: it is told, and the batch comes again.
            log.exception("sink.push_bug", queue=self.link.name.queue, peer=self.link.name.peer)
            return [PushResult(PushOutcome.FAILED, OutcomeUnknown(f"a fault in this program: {error!r}"))] * len(items)

    async def _kept(
        self, reply: FetchReply, results: Sequence[PushResult]
    ) -> tuple[Sequence[PushResult], tuple[int, ...]]:
        """The results, once what was rejected is kept on disk, and the indexes of those for which there is no room,
        which become a gap at the source; when nothing can be kept now, it has failed and comes again."""
        now_ms = self._shop.time.wall_ms()
        name = self.link.name
        letters = dead_letters(name, reply.cluster, reply.cluster_name, reply.items, results, now_ms)
        try:
            left_out = set(await asyncio.to_thread(self._shop.letters.add, letters)) if letters else set()
        except LocalFault as error:
            refused = PushResult(PushOutcome.FAILED, error)
            return [refused if r.outcome is PushOutcome.REJECTED else r for r in results], ()
        rejected = [at for at, r in enumerate(results) if r.outcome is PushOutcome.REJECTED and r.error is not None]
        return results, tuple(at for number, at in enumerate(rejected) if number in left_out)

    def _failed(self, error: IsthmusError) -> None:
        link = self.link
        link.errors += 1
        link.last_error = str(error)
        link.last_error_reason = error.reason
        link.last_error_ms = self._shop.time.wall_ms()


def held_back(result: PushResult) -> PushResult:
    """What becomes of a push: of a bucket type that this cluster lacks nothing is refused for good. The source holds it
    back once it knows, and offers it again when the type is made here."""
    if result.outcome is PushOutcome.REJECTED and result.error is not None and result.error.reason == TYPE_LACKING:
        return PushResult(PushOutcome.FAILED, result.error)
    return result


def slot_session(cluster_uuid: bytes, node: str, incarnation: bytes, number: int) -> Session:
    """The session under which a slot fetches; `number` is unique in the process."""
    return Session(cluster_uuid, node, incarnation, number)
