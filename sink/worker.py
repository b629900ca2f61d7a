"""One cycle of a slot: fetch a batch, push it, keep the acknowledgement for the next fetch. Runs on the event loop.

A batch is not handed to another thread: for a single change that would cost as much as everything else. Only dead
letters, which wait for a disk, are written in a thread.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import structlog

from isthmus.config.text import clause, quantity
from isthmus.queues.filters import Filter
from isthmus.queues.leases import Session
from isthmus.queues.window_rules import REAL_TIME, Item
from isthmus.queues.wire import BatchAck, FetchReply
from isthmus.repl.clock_offsets import ClockOffsets
from isthmus.repl.coordinator.routing import UnknownBucketType
from isthmus.repl.model.errors import IsthmusError, LocalFault, OutcomeUnknown, Retryable, TooLarge
from isthmus.repl.model.ports import KeyValue, TimeSource
from isthmus.repl.model.requests import PushOutcome, PushResult
from isthmus.repl.property_digests import PropertyDifference, differences
from isthmus.repl.unforeseen import unforeseen
from isthmus.sink.backoff import CycleResult
from isthmus.sink.conflicts import Conflicts
from isthmus.sink.counter_exchange import CounterExchange
from isthmus.sink.dead_letter_retry import NOT_STORED
from isthmus.sink.dead_letters import DeadLetters
from isthmus.sink.discovery import LinkTarget
from isthmus.sink.fetch import ChangeFetcher, FetchOptions
from isthmus.sink.lag import Lag
from isthmus.sink.push import SourceCounters, conflicts_of, dead_letters, failed_indexes, outcomes_of, pushes
from isthmus.sink.riak_fetch import RiakCounts, RiakFetcher
from isthmus.sink.scheduler import LinkName
from isthmus.sink.traces import SinkTraces

log = structlog.get_logger(__name__)

ENDS: Final = (PushOutcome.APPLIED, PushOutcome.MERGED, PushOutcome.SUPERSEDED, PushOutcome.REJECTED)
"""Final outcomes, in the order of an acknowledgement."""

PUSH_TIMEOUT_S: Final = 120.0
"""How long a batch may take to be stored; beyond it nothing is acknowledged and the batch comes again. Above the
request time-out of the write path, which ends first."""

TYPE_LACKING: Final = "unknown-bucket-type"
"""Reason of a push that is refused because this cluster lacks the bucket type."""

OVERDUE_MS: Final = 5_000
"""How long an answer may be overdue before the link reports it: well above a busy source's pauses, well below
`sink.request_timeout`, after which the fetch fails."""


class LeaseOver(Retryable):
    """A batch is older than its lease: it is not pushed, and comes again."""

    reason = "lease-over"


class NotStored(OutcomeUnknown):
    """A change of a Riak that this cluster had not stored when the node had to let go of it."""

    reason = NOT_STORED


class SourceRegistry(Protocol):
    """Counters per source cluster; `sink.service.Sink`."""

    def counters_of(self, cluster: bytes, cluster_name: str, queue: str) -> SourceCounters:
        """The counters of a source cluster's queue."""


class Link:
    """State shared by all slots of one queue at one peer: counters, the last error, and which cluster must answer."""

    def __init__(self, name: LinkName, target: LinkTarget, expected_name: str, since_ms: int) -> None:
        self.name = name
        self.seed = target.seed
        self.cluster = target.cluster
        """Uuid of the cluster that must answer; None until it is known."""
        self.expected_name = expected_name
        self.since_ms = since_ms
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
        """Properties that differ from those of the source."""
        self.held: Mapping[bytes, int] | None = None
        """Bucket types that the source holds back because this cluster lacks them, with the time of the oldest change
        of each; None: the source's version holds none back."""
        self.counters_due_ms = 0
        """When counters are exchanged with the source again; 0 at the beginning, and after each failure."""
        self.counters_passes = -1
        """Passes of the held counters at the last exchange."""
        self.source_filter: Filter | None = None
        """The filter of the source's queue, sent with its counters; None: not sent, as by an older source."""
        self.riak: RiakCounts | None = None
        """What of a Riak's changes did not arrive; None: the source is a cluster of Isthmus."""
        self.open_fetches: dict[int, tuple[int, int]] = {}
        """Slot (by identity) -> when its fetch began, and when the answer is due, in wall-clock ms."""

    def unanswered_ms(self, now_ms: int) -> int:
        """How long a fetch whose answer is overdue has waited; 0 for none."""
        late = [since_ms for since_ms, due_ms in self.open_fetches.values() if now_ms >= due_ms + OVERDUE_MS]
        return now_ms - min(late) if late else 0


class SinkContext(NamedTuple):
    """Collaborators shared by all slots of a node."""

    kv: KeyValue
    time: TimeSource
    letters: DeadLetters
    conflicts: Conflicts
    sources: SourceRegistry
    stopping: asyncio.Event
    clocks: ClockOffsets
    """By the address of the peer."""
    traces: SinkTraces | None = None
    """None: traces are off."""
    counters: CounterExchange | None = None
    """None: no counters are exchanged."""


class Slot:
    """One slot of a link, with a connection and an acknowledgement of its own."""

    def __init__(self, link: Link, fetcher: ChangeFetcher, context: SinkContext) -> None:
        self.link = link
        self.fetcher = fetcher
        self.pushing = False
        self.items: Sequence[Item] = ()
        """The changes that are being pushed."""
        self._context = context

    async def cycle(self, options: FetchOptions, on_fetched: Callable[[int, int], None]) -> tuple[CycleResult, int]:
        """Run a cycle: (result, how long the source held the fetch in ms). `on_fetched(changes, bytes)` is called when
        there are changes, before they are pushed."""
        link, time = self.link, self._context.time
        asked_ms, wall_ms = time.now_ms(), time.wall_ms()
        link.open_fetches[id(self)] = wall_ms, wall_ms + options.wait_ms
        counters = self._context.counters
        try:
            if counters is not None and link.riak is None and counters.due(link):
                await counters.run(link, self.fetcher)
                asked_ms = time.now_ms()
            reply = await self.fetcher.fetch(options, link.cluster, link.expected_name)
        except IsthmusError as error:
            self._failed(error)
            return CycleResult.ERROR, 0
        finally:
            del link.open_fetches[id(self)]
        came_ms = time.now_ms()
        waited_ms = came_ms - asked_ms
        link.fetches += 1
        link.cluster = reply.cluster
        link.source_cluster = reply.cluster_name
        link.source_state = reply.state
        if link.riak is None:
            self._context.clocks.answered(link.name.peer, reply.now_ms, waited_ms - (reply.waited_ms or 0))
            link.held = reply.held
            link.properties_differ = differences(options.properties, reply.properties, options.scopes, reply.scopes)
        link.last_answer_ms = time.wall_ms()
        link.last_error = link.last_error_reason = ""
        if not reply.items or (self._context.stopping.is_set() and not self.fetcher.hand):
            # A batch that arrives while stopping is left unacknowledged: the next fetch of any worker gets it again,
            # unless the source is a Riak, which has forgotten it.
            return CycleResult.EMPTY, waited_ms
        self.pushing = True
        self.items = reply.items
        try:
            on_fetched(len(reply.items), self.fetcher.answer_bytes)
            # The source took the batch no earlier than this, by durations only; a source that does not send how long it
            # waited before is assumed to have answered at once.
            taken_ms = came_ms if reply.waited_ms is None else asked_ms + reply.waited_ms
            return await self._push_batch(reply, taken_ms), waited_ms
        finally:
            self.pushing = False
            self.items = ()

    @property
    def owes(self) -> bool:
        """Whether something of its last batch is still to be done: an acknowledgement, or changes in hand."""
        return self.fetcher.ack is not None or self.fetcher.hand

    @property
    def taking(self) -> bool:
        """Whether it waits for an answer whose change comes from nowhere else again."""
        return isinstance(self.fetcher, RiakFetcher) and self.fetcher.taking

    async def acknowledge(self) -> bool:
        """Send the acknowledgement without a fetch, or push what is in hand. Returns False when the source failed, or
        this cluster did not store it."""
        name = self.link.name
        if isinstance(self.fetcher, RiakFetcher):
            return await self._push_hand(self.fetcher)
        try:
            await self.fetcher.acknowledge()
        except IsthmusError as error:
            log.info("sink.ack_unanswered", queue=name.queue, peer=name.peer, error=str(error))
            self._failed(error)
            return False
        return True

    async def _push_hand(self, fetcher: RiakFetcher) -> bool:
        if not fetcher.hand or self.pushing:
            return True
        reply = fetcher.held()
        self.pushing = True
        self.items = reply.items
        try:
            return await self._push_batch(reply, self._context.time.now_ms()) is CycleResult.ITEMS
        finally:
            self.pushing = False
            self.items = ()

    async def keep_hand(self, why: str) -> int:
        """Make dead letters of the changes in hand, which nothing else has; how many there were. Those that cannot be
        kept are lost, counted and logged."""
        fetcher, name = self.fetcher, self.link.name
        if not isinstance(fetcher, RiakFetcher) or not fetcher.hand:
            return 0
        reply = fetcher.held()
        error = NotStored(f"{why}; the next start of this node tries again")
        results = [PushResult(PushOutcome.REJECTED, fetcher.refused.get(at, error)) for at in range(len(reply.items))]
        now_ms = self._context.time.wall_ms()
        letters = dead_letters(name, reply.cluster, reply.cluster_name, reply.items, results, now_ms)
        try:
            left_out = await asyncio.to_thread(self._context.letters.add, letters)
        except Exception as failed:  # noqa: BLE001 -- the stop goes on, and tells what is lost
            fetcher.lost(reply.items, f"dead letters cannot be written: {failed}")
        else:
            if left_out:
                fetcher.lost([reply.items[at] for at in left_out], "there are too many dead letters")
        fetcher.drop()
        return len(letters)

    async def _push_batch(self, reply: FetchReply, taken_ms: int) -> CycleResult:
        """Push a batch that the source took at `taken_ms` at the earliest, and set its acknowledgement."""
        link, time = self.link, self._context.time
        counters = self._context.sources.counters_of(reply.cluster, reply.cluster_name, link.name.queue)
        counters.fetched(len(reply.items), self.fetcher.answer_bytes)
        traces = self._context.traces
        if traces is None or reply.traces is None:
            results = await self._push_right(reply, taken_ms)
        else:
            taken_ns = (time.wall_ms() - (time.now_ms() - taken_ms)) * 1_000_000
            pushes_traced = traces.fetched(link.name, reply.traces, reply.items, taken_ns) or ()
            results = await self._push_right(reply, taken_ms)
            traces.pushed(pushes_traced, results)
        if link.riak is not None:
            results = [with_remedy(result, item) for result, item in zip(results, reply.items, strict=True)]
        outcomes = outcomes_of(results)
        given_up: tuple[int, ...] = ()
        if PushOutcome.REJECTED in outcomes:
            if reply.held is not None:
                results = [retried_if_type_lacks(result) for result in results]
            results, given_up = await self._keep_rejected(reply, results)
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
        self.fetcher.settled(BatchAck(reply.batch, reply.owner_version, failed, counts, given_up))
        counters.pushed(outcomes, now_ms)
        link.batches += 1
        link.last_batch_ms = now_ms
        for outcome, count in outcomes.items():
            link.outcomes[outcome] += count
        if link.riak is not None:  # older changes are sent by a seed or a full-sync: their age is no lag
            times = [time_ms for time_ms in times if time_ms >= link.since_ms]
        if reply.priority == REAL_TIME and times:
            link.lag.note(times, now_ms)
        if failed:
            why = results[failed[0]].error
            self._failed(why or OutcomeUnknown(f"{clause(len(failed), 'change', 'was', 'were')} not stored"))
            return CycleResult.FAILED
        return CycleResult.ITEMS

    def _note_conflicts(self, reply: FetchReply, results: Sequence[PushResult], now_ms: int) -> None:
        """Record the changes that were concurrent with others here."""
        name = self.link.name
        found = conflicts_of(name, reply.cluster, reply.cluster_name, reply.items, results, now_ms)
        if found:
            self._context.conflicts.add(found)
            first = [part.decode("utf-8", "backslashreplace") for part in found[0].key]
            log.info("sink.conflicts", queue=name.queue, peer=name.peer, count=len(found), first_key=first)

    async def _push_right(self, reply: FetchReply, taken_ms: int) -> Sequence[PushResult]:
        """As `_push`; a change that cannot be right is REJECTED without being pushed."""
        refused = self.fetcher.refused
        if not refused:
            return await self._push(reply, taken_ms)
        right = [item for at, item in enumerate(reply.items) if at not in refused]
        pushed = iter(await self._push(reply._replace(items=right), taken_ms) if right else ())
        return [
            PushResult(PushOutcome.REJECTED, refused[at]) if at in refused else next(pushed)
            for at in range(len(reply.items))
        ]

    async def _push(self, reply: FetchReply, taken_ms: int) -> Sequence[PushResult]:
        """The outcome of each item; all FAILED when the cluster does not answer in time, and when the lease is over:
        another worker may have fetched the changes since, and tombstones of their keys may have been reaped, after
        which an old value must not be pushed (docs/protocol.md R-REAP)."""
        items = reply.items
        age_ms = self._context.time.now_ms() - taken_ms
        if age_ms >= reply.lease_ms:
            over = LeaseOver(
                f"a batch of {quantity(len(items), 'change')} ({self.fetcher.answer_bytes} bytes) was "
                f"{age_ms / 1000:g} s on its way, its lease is {reply.lease_ms / 1000:g} s: it is not pushed, and "
                "comes again; if that goes on, raise lease of the queue, or lower sink.batch_size here"
            )
            return [PushResult(PushOutcome.FAILED, over)] * len(items)
        try:
            async with asyncio.timeout(PUSH_TIMEOUT_S):
                return await self._context.kv.push(pushes(items, reply.cluster))
        except IsthmusError as error:
            return [PushResult(PushOutcome.FAILED, error)] * len(items)
        except TimeoutError:
            late = OutcomeUnknown(f"this cluster gave no answer to a push within {PUSH_TIMEOUT_S:g} s")
            return [PushResult(PushOutcome.FAILED, late)] * len(items)
        except Exception as error:  # noqa: BLE001 -- it must neither lose a batch nor stop a link
            name = self.link.name
            bug = unforeseen.exception("sink.push_bug", error, queue=name.queue, peer=name.peer, changes=len(items))
            if len(items) == 1:
                return [PushResult(PushOutcome.FAILED, OutcomeUnknown(str(bug)))]
            return await self._push_halves(reply, taken_ms)

    async def _push_halves(self, reply: FetchReply, taken_ms: int) -> Sequence[PushResult]:
        """Push a batch that failed for a reason that nobody foresaw in two halves: so the one item that has the reason
        is the only one that fails. What an earlier try stored is stored once, as of every batch that comes again.
        Ends with the lease at the latest."""
        items, middle = reply.items, len(reply.items) // 2
        first = await self._push(reply._replace(items=items[:middle]), taken_ms)
        return [*first, *await self._push(reply._replace(items=items[middle:]), taken_ms)]

    async def _keep_rejected(
        self, reply: FetchReply, results: Sequence[PushResult]
    ) -> tuple[Sequence[PushResult], tuple[int, ...]]:
        """Write rejected changes to the dead letters: (results, indexes of changes for which there is no space). Those
        become a gap at the source. If the file cannot be written, rejected changes have FAILED and come again."""
        now_ms = self._context.time.wall_ms()
        name = self.link.name
        letters = dead_letters(name, reply.cluster, reply.cluster_name, reply.items, results, now_ms)
        try:
            left_out = set(await asyncio.to_thread(self._context.letters.add, letters)) if letters else set()
        except Exception as error:  # noqa: BLE001 -- the other changes of the batch are acknowledged all the same
            if not isinstance(error, LocalFault):
                error = unforeseen.exception("sink.dead_letters_bug", error, queue=name.queue, peer=name.peer)
            refused = PushResult(PushOutcome.FAILED, error)
            return [refused if r.outcome is PushOutcome.REJECTED else r for r in results], ()
        rejected = [at for at, r in enumerate(results) if r.outcome is PushOutcome.REJECTED and r.error is not None]
        return results, tuple(at for number, at in enumerate(rejected) if number in left_out)

    def _failed(self, error: IsthmusError) -> None:
        link = self.link
        link.errors += 1
        link.counters_due_ms = 0
        link.last_error = str(error)
        link.last_error_reason = error.reason
        link.last_error_ms = self._context.time.wall_ms()


def retried_if_type_lacks(result: PushResult) -> PushResult:
    """`result`, FAILED instead of REJECTED where this cluster lacks the bucket type: the source holds such changes back
    once it knows, and sends them when the type exists here."""
    if result.outcome is PushOutcome.REJECTED and result.error is not None and result.error.reason == TYPE_LACKING:
        return PushResult(PushOutcome.FAILED, result.error)
    return result


def with_remedy(result: PushResult, item: Item) -> PushResult:
    """`result` of a change of a Riak, which sends nothing again by itself, with what to do about a refusal."""
    error = result.error
    if result.outcome is not PushOutcome.REJECTED or error is None:
        return result
    if error.reason == TYPE_LACKING:
        name = item[3].decode("utf-8", "backslashreplace")
        error = UnknownBucketType(f"{error}; isthmus bucket-type create {name}, {_RETRY}")
    elif isinstance(error, TooLarge):
        error = TooLarge(f"{error}; make it smaller there, or raise the limit here, {_RETRY}")
    return PushResult(result.outcome, error)


_RETRY: Final = "then isthmus sink dead-letters retry"


def slot_session(cluster_uuid: bytes, node: str, incarnation: bytes, number: int) -> Session:
    """The session under which a slot fetches; `number` is unique in the process."""
    return Session(cluster_uuid, node, incarnation, number)
