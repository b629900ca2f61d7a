"""Fetches changes from a queue of a Riak, one a request, for one slot of a link.

A Riak forgets a change when it answers, so what was fetched is in the fetcher's hand until this cluster has stored it,
or it is a dead letter: `fetch` gives what is in hand again before it asks for more. An answer that cannot be decoded is
a refused change, whose dead letter keeps the answer's bytes. An answer that did not come whole may have been a change:
it is counted, and the link tells it.

Must not schedule or push: `sink.worker` does, as for queues of other clusters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from isthmus.config.settings import ALL_TYPES, RiakPeerSettings
from isthmus.queues.counters_wire import HeldCountersMessage
from isthmus.queues.rate_limit import Rates, Throttle
from isthmus.queues.riak_origin import origin_of, riak_source
from isthmus.queues.window_rules import FOLD, REAL_TIME, Item
from isthmus.queues.wire import OFF_LOOP_FROM_BYTES, SERVING, BatchAck, FetchReply
from isthmus.repl.http.async_client import AsyncHttpPeer
from isthmus.repl.http.client import AnswerLost, HttpRefused
from isthmus.repl.model.errors import CodecError, IsthmusError, PeerFault
from isthmus.repl.model.objects import encode_object
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.riak.queue_answers import EMPTY_QUEUE
from isthmus.sink.fetch import FetchOptions
from isthmus.sink.riak_answers import RAW_ANSWER, is_unnamed, read_answer
from isthmus.sink.riak_requests import NO_KEYS, lengths_in, queue_path

log = structlog.get_logger(__name__)

LEASE_MS: Final = 1 << 53
"""What is in hand is nobody else's: its lease never ends."""

RATE_WAIT_MS: Final = 250
"""Longest wait of one cycle for a peer's rate, so that a suspension is noticed soon: as long as the longest delay after
empty answers by default."""


LATELY_MS: Final = 86_400_000
"""How long a loss is a finding: a day, in which somebody looks, and a daily full-sync of the Riak has run."""


LOOK_INTERVAL_MS: Final = 5_000
"""Time between two looks at the length of a node's queue, for all slots of a link."""

LOOK_TIMEOUT_MS: Final = 1_000
"""How long a fetch is held up by a Riak that does not tell the length."""

LOOK_BYTES_MAX: Final = 10_000


class RiakCounts:
    """What is known of the changes of one link that did not arrive here."""

    def __init__(self) -> None:
        self.left_out = 0
        """Changes of bucket types that the peer's settings leave out, and reaps: they are dropped."""
        self.answers_lost = 0
        """Answers that did not come whole; each may have had a change."""
        self.lost = 0
        """Changes that were fetched, and neither stored nor kept as dead letters."""
        self.waiting: int | None = None
        """Changes that waited in the node's queue at the last look; None: not known."""
        self.look_due_ms = 0
        self.last_lost_ms: int | None = None
        """When an answer or a change was last lost (wall clock)."""

    def lost_lately(self, now_ms: int) -> bool:
        """Whether an answer or a change was lost within LATELY_MS."""
        return self.last_lost_ms is not None and now_ms - self.last_lost_ms < LATELY_MS


@dataclass
class RiakLink:
    """What the slots of all links to one Riak share."""

    settings: RiakPeerSettings
    throttle: Throttle
    answer_limit_bytes: int
    gather_ms: int
    source: bytes = b""
    seeding: bool = False
    """While all keys are queued there by a seed, the age of a change is no lag."""
    types: frozenset[bytes] | None = field(default=None)
    """Bucket types that are taken; None: all."""

    def __post_init__(self) -> None:
        self.source = riak_source(self.settings.name)
        if self.settings.bucket_types != ALL_TYPES:
            self.types = frozenset(name.encode() for name in self.settings.bucket_types.split(","))


def riak_link(settings: RiakPeerSettings, *, answer_limit_bytes: int, gather_ms: int, now_ms: int) -> RiakLink:
    """What the links to a Riak share, with its rates."""
    rates = Rates(settings.rate_limit_bytes, settings.object_rate_limit_count)
    return RiakLink(settings, Throttle(rates, now_ms), answer_limit_bytes, gather_ms)


class _Fetched(NamedTuple):
    """A change in hand: `fault` is why it cannot be stored, None if it can."""

    item: Item
    fault: IsthmusError | None


class RiakFetcher:
    """Fetches one queue from one node of a Riak, for one slot; `peer` and `link` may be shared by slots."""

    ack: BatchAck | None = None
    """None: a Riak gets no acknowledgement."""

    def __init__(
        self,
        peer: AsyncHttpPeer,
        link: RiakLink,
        counts: RiakCounts,
        *,
        time: TimeSource,
        stopping: asyncio.Event,
        timeout_ms: int,
    ) -> None:
        self._peer = peer
        self._link = link
        self._counts = counts
        self._time = time
        self._stopping = stopping
        self._timeout_ms = timeout_ms
        self._path = f"{queue_path(link.settings.queue)}?object_format=internal"
        self._hand: list[_Fetched] = []
        self._ask = 1
        """Changes that the next fetch may take: one after an empty answer, since the Riak holds an empty answer back
        for some time, and twice as many after each fetch that did not meet one."""
        self.answer_bytes = 0
        """Size of the answers with changes of the last fetch."""
        self.taking = False
        """A request is under way, whose answer may be a change."""
        self.refused: Mapping[int, IsthmusError] = {}
        """Changes of the last batch that cannot be right, by index, with the reason."""
        self.more = False
        """The last fetch ended before the queue was empty."""

    @property
    def hand(self) -> bool:
        """Whether changes were fetched that are neither stored nor kept."""
        return bool(self._hand)

    async def fetch(self, options: FetchOptions, _expected: bytes | None, _expected_name: str) -> FetchReply:
        """The changes in hand; if there are none, those that the queue has now, within the limits of `options`. Raises
        PeerFault when the first request failed."""
        self.answer_bytes = 0
        if not self._hand:
            if self._time.now_ms() >= self._counts.look_due_ms:
                await self._look()
            self.taking = True
            try:
                await self._gather(options)
            finally:
                self.taking = False
        return self.held()

    def held(self) -> FetchReply:
        """The changes in hand, as a batch."""
        link = self._link
        items = [fetched.item for fetched in self._hand]
        self.refused = {at: one.fault for at, one in enumerate(self._hand) if one.fault is not None}
        priority = FOLD if link.seeding else REAL_TIME
        return FetchReply(link.source, link.settings.name, 0, b"", LEASE_MS, 0, SERVING, items, priority)

    def settled(self, ack: BatchAck) -> None:
        """Keep in hand what failed of the batch. What was refused and could not be kept is lost."""
        failed = range(len(self._hand)) if ack.failed is None else ack.failed
        left = [self._hand[at] for at in failed]
        gone = [self._hand[at].item for at in ack.given_up]
        self._hand = left
        if gone:
            self.lost(gone, "there are too many dead letters (sink.dead_letters)")

    def lost(self, items: Sequence[Item], why: str) -> None:
        """Count changes that are neither stored nor kept."""
        self._counts.lost += len(items)
        self._counts.last_lost_ms = self._time.wall_ms()
        first = [part.decode("utf-8", "backslashreplace") for part in items[0][3:6]]
        settings = self._link.settings
        log.error("sink.riak_changes_lost", riak=settings.name, count=len(items), first_key=first, reason=why)

    def drop(self) -> None:
        """Forget what is in hand; the caller has kept it, or counted it as lost."""
        self._hand = []

    async def acknowledge(self) -> None:
        """Nothing: the Riak forgot the changes when it sent them."""

    async def exchange(self, _held: HeldCountersMessage) -> HeldCountersMessage:
        """Raises PeerFault: a Riak does not exchange counters."""
        raise PeerFault(f"{self._peer.url} is a Riak: it exchanges no counters")

    # ---------------------------------------------------------------- requests

    async def _gather(self, options: FetchOptions) -> None:
        """Fetch into the hand until the queue is empty or a limit is reached."""
        link, throttle = self._link, self._link.throttle
        self.more = False
        wait_ms = throttle.wait_ms(self._time.now_ms())
        if wait_ms:
            await asyncio.sleep(min(wait_ms, RATE_WAIT_MS) / 1000)
            return
        count, size = throttle.allowance(min(self._ask, options.changes), options.size, self._time.now_ms())
        until_ms = self._time.now_ms() + link.gather_ms
        taken = 0
        while True:
            try:
                body = await self._pop()
            except IsthmusError:
                if not self._hand:
                    raise
                return  # the next fetch meets the error again, unless it is over
            if body == EMPTY_QUEUE:
                self._ask = 1
                if self._counts.waiting is not None:  # a queue that does not exist answers the same
                    self._counts.waiting = 0
                return
            taken += 1
            self.answer_bytes += len(body)
            throttle.spend(1, len(body), self._time.now_ms())
            await self._keep(body)
            if taken >= count or self.answer_bytes >= size or self._time.now_ms() >= until_ms:
                self._ask = min(2 * taken, options.changes)
                self.more = True
                return
            if self._stopping.is_set():
                return

    async def _look(self) -> None:
        """Ask how much waits in the queue; a Riak that does not tell is fetched from all the same."""
        counts = self._counts
        counts.look_due_ms = self._time.now_ms() + LOOK_INTERVAL_MS
        try:
            answer = await self._peer.post(
                queue_path(self._link.settings.queue),
                NO_KEYS,
                media_type="application/json",
                timeout_ms=min(self._timeout_ms, LOOK_TIMEOUT_MS),
                limit_bytes=LOOK_BYTES_MAX,
            )
            found = lengths_in(answer)
        except (PeerFault, CodecError) as error:
            log.debug("sink.riak_lengths_unknown", peer=self._peer.url, error=str(error))
            counts.waiting = None
        else:
            counts.waiting = None if found is None else sum(found)

    async def _pop(self) -> bytes:
        """One answer of the queue. Raises PeerFault."""
        link = self._link
        try:
            return await self._peer.get(
                self._path, timeout_ms=self._timeout_ms, limit_bytes=link.answer_limit_bytes, repeatable=False
            )
        except AnswerLost as error:
            self._counts.answers_lost += 1
            self._counts.last_lost_ms = self._time.wall_ms()
            log.warning("sink.riak_answer_lost", riak=link.settings.name, peer=self._peer.url, error=str(error))
            raise AnswerLost(f"{error}; a change that it may have had is lost here") from error
        except HttpRefused as error:
            if error.status in (401, 403):
                words = f"{error} (the user and the password_file of Riak {link.settings.name}, or its source there)"
                raise HttpRefused(words, error.status, error.reason) from error
            raise

    async def _keep(self, body: bytes) -> None:
        """Put the change of an answer into the hand, or why it cannot be stored."""
        large = len(body) >= OFF_LOOP_FROM_BYTES
        limit_bytes = self._link.answer_limit_bytes
        found = await asyncio.to_thread(read_answer, body, limit_bytes) if large else read_answer(body, limit_bytes)
        if found is None:
            self._counts.left_out += 1
            return
        key, stored, fault = found
        if self._link.types is not None and key.bucket_type not in self._link.types and not is_unnamed(key):
            self._counts.left_out += 1
            return
        if stored is None:
            time_ms, payload = self._time.wall_ms(), RAW_ANSWER + body
        else:
            time_ms = max((sibling.last_modified_ms for sibling in stored.siblings), default=0)
            payload = encode_object(stored)
        kind, origin = int(ReferenceKind.OBJECT), origin_of(self._link.source)
        self._hand.append(_Fetched((kind, 0, 0, *key, origin, time_ms, payload), fault))
