"""One check of one peer: a run over a bucket type, whose differences become references of a queue.

Where this side is ahead, or both changed, the key goes into the queue of the settings, at full-sync's priority, and is
read from its leader when it is served; how fast is bounded. Where the other side is ahead the key is counted and left
alone, unless the settings let the other cluster be told. What is corrupt is named: pushing it would change nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import islice
from random import Random
from typing import Final, NamedTuple, Protocol

import structlog

from isthmus.aae.exchange.compare import BehindSide, DifferenceKind, KeyDifference
from isthmus.aae.exchange.exchange import ExchangeVerdict, Findings
from isthmus.aae.exchange.remote import PeerTrees
from isthmus.aae.exchange.run import ExchangeEnd as Cluster
from isthmus.aae.exchange.run import ExchangeOutcome, ExchangeScope, run
from isthmus.aae.scheduling.history import DifferingKeys
from isthmus.aae.scheduling.schedule import CheckKind as CheckKind
from isthmus.aae.scheduling.schedule import TimeRange
from isthmus.config.settings import FullSyncSettings
from isthmus.repl.model.errors import IsthmusError, Overloaded
from isthmus.repl.model.keys import Key

log = structlog.get_logger(__name__)

REPAIRS_AT_ONCE: Final = 500
"""Keys that are queued together; between two such groups the rate is kept."""

PROBE_S: Final = 0.002
"""A sleep whose end tells how late the event loop is: the time that every request waits, too."""

LATE_FREE_S: Final = 0.020
"""Lateness that is nobody's concern: a group commit is as long."""

REST_FACTOR: Final = 10.0
"""Rest for each second that the loop was late: at 50 ms half a second, so a thousand keys a second at most. A guess."""

REST_S_MAX: Final = 2.0
"""Repairs go on, however busy the node is: 250 keys a second."""

NAMED_MAX: Final = 10_000
"""Keys that differed in the newest check of a bucket type, remembered to be told of: some 2 MB."""

LOOKED: Final = frozenset({ExchangeVerdict.IN_SYNC, ExchangeVerdict.REPAIRED, ExchangeVerdict.DIFFERING})
"""Checks that looked at all that differs, but for those of a range whose keys are not `every` one."""

CORRUPT_LOGGED: Final = 20
"""Corrupt keys that a check names in the log, enough to see what they have in common; how many there are, the line at
its end says, and which, `named`. They are found again at every check until they are written again."""

LEARNED_MAX: Final = 100_000
"""Times of repaired keys that are remembered during a check, to learn a range from."""


class NoRoom(Overloaded):
    """A queue took some of the references that it was brought, `taken` of them, and has no room for more."""

    def __init__(self, message: str, taken: int) -> None:
        super().__init__(message)
        self.taken = taken


class Repairs(Protocol):
    """The source queues, as full-sync needs them."""

    async def push(self, queue: str, keys: Sequence[Key]) -> int:
        """Put references to the keys into a queue at full-sync's priority, waiting for room; how many it took: keys
        that its filter leaves out are not among them. Raises BadInput for an unknown queue, NoRoom, Retryable."""

    def refused(self, queue: str) -> int:
        """References of full-sync from this node whose objects the other cluster has refused for good, since the node
        began. Raises BadInput for an unknown queue."""

    def wanted(self, queue: str, bucket_type: bytes) -> Callable[[bytes, bytes], bool] | None:
        """Which (bucket, key) the queue's filter lets through; None: all. Raises BadInput for an unknown queue."""


class PeerCheck(NamedTuple):
    """What is to be checked. `times` None: all. `began_ms`: wall clock."""

    bucket_type: str
    kind: CheckKind
    times: TimeRange | None
    by: str
    began_ms: int


class PeerChecker:
    """Runs the checks of one peer, one at a time."""

    def __init__(
        self, settings: FullSyncSettings, *, source: Cluster, sink: PeerTrees, repairs: Repairs, chance: Random
    ) -> None:
        self._settings = settings
        self._source = source
        self._sink = sink
        self._repairs = repairs
        self._chance = chance
        self.modified_ms: list[int] = []
        """Last changes of the keys that the last check queued, as far as LEARNED_MAX lets."""
        self.buckets: set[bytes] = set()
        """Their buckets."""
        self.named: dict[bytes, DifferingKeys] = {}
        """Bucket type -> what differed in its newest check, and what is known from before if that one was not whole."""
        self._corrupt = 0
        """Keys of the running check that are."""
        self._refused: dict[bytes, int] = {}
        """Bucket type -> what had been refused for good when its newest check began, of all types of the queue."""

    @property
    def cluster(self) -> bytes | None:
        """The uuid of the cluster that answered; None until one has."""
        return self._sink.cluster

    def close(self) -> None:
        """End what is under way."""
        self._sink.close()

    async def check(self, check: PeerCheck, findings: Findings) -> ExchangeOutcome:
        """Run it; `findings` fill meanwhile. Raises nothing but cancellation."""
        settings = self._settings
        self.modified_ms, self.buckets, self._corrupt = [], set(), 0
        bucket_type = check.bucket_type.encode()
        times = check.times
        try:
            wanted = self._repairs.wanted(settings.queue, bucket_type)
        except IsthmusError as error:
            return ExchangeOutcome(ExchangeVerdict.ERROR, f"queue {settings.queue}: {error}", findings, unseen=True)

        by_now = self._refused_by_now()
        refused = by_now - self._refused.get(bucket_type, by_now)
        self._refused[bucket_type] = by_now

        keys: dict[tuple[bytes, bytes], str] = {}

        async def repair(differences: Sequence[KeyDifference]) -> int:
            for d in differences[: NAMED_MAX - len(keys)]:
                keys[d.bucket, d.key] = f"{d.kind.value}@{d.side.value}"
            queued = 0
            try:
                async for taken in self._queued(bucket_type, differences):
                    queued += taken
            except BaseException as end:  # of the run, and what lies in the queue by now does so all the same
                findings.queued += queued + (end.taken if isinstance(end, NoRoom) else 0)
                raise
            return queued

        scope = ExchangeScope(
            bucket_type,
            since_ms=0 if times is None else times.since_ms,
            before_ms=0 if times is None else times.before_ms,
            wanted=wanted,
            bucket=None if times is None else times.bucket,
            segment_limit=settings.segment_limit_count,
            start=self._chance.randrange(1 << 20),
        )
        outcome = await run(
            self._source,
            self._sink,
            scope,
            findings=findings,
            repair=repair,
            pause=self._pause,
            timeout_s=settings.run_timeout_ms / 1000,
        )
        if refused > 0 and outcome.verdict is not ExchangeVerdict.IN_SYNC:
            words = (
                f"{refused} of the repairs before were refused there for good (isthmus sink dead-letters list there)"
            )
            outcome.reason, outcome.refused = "; ".join(filter(None, (outcome.reason, words))), refused
        if self._corrupt > CORRUPT_LOGGED:
            log.error("fullsync.corrupt_keys", bucket_type=check.bucket_type, count=self._corrupt, named=CORRUPT_LOGGED)
        looked = outcome.verdict in LOOKED
        before = self.named.get(bucket_type)
        if not looked and before is not None:
            keys = dict(islice({**before.keys, **keys}.items(), NAMED_MAX))
        every = looked and len(keys) >= findings.differences and not findings.segments_unexplained
        self.named[bucket_type] = DifferingKeys(check.began_ms, keys, every)
        return outcome

    def _refused_by_now(self) -> int:
        try:
            return self._repairs.refused(self._settings.queue)
        except IsthmusError:
            return 0  # no such queue: the check says so

    def counts(self, key: Key) -> bool:
        """False when the queue's filter leaves the key out."""
        try:
            wanted = self._repairs.wanted(self._settings.queue, key.bucket_type)
        except IsthmusError:
            return True  # no such queue: nothing is left out, and each check says so
        return wanted is None or wanted(key.bucket, key.key)

    async def _pause(self) -> None:
        await asyncio.sleep(self._settings.pause_ms / 1000 * (0.5 + self._chance.random()))

    async def _queued(self, bucket_type: bytes, differences: Sequence[KeyDifference]) -> AsyncGenerator[int, None]:
        """Queue what can be repaired, group by group: how many of each were taken."""
        ours = [d for d in differences if d.side is not BehindSide.SOURCE and d.kind is not DifferenceKind.CORRUPT]
        theirs = [d for d in differences if d.side is BehindSide.SOURCE] if self._settings.bidirectional else []
        for corrupt in (d for d in differences if d.kind is DifferenceKind.CORRUPT):
            self._corrupt += 1
            if self._corrupt <= CORRUPT_LOGGED:
                log.error("fullsync.corrupt", bucket=str(corrupt.bucket), key=str(corrupt.key))
        for part in _parts(ours):
            yield await self._repairs.push(self._settings.queue, [Key(bucket_type, d.bucket, d.key) for d in part])
            self._learn(part)
            await self._keep_rate(len(part))
        for part in _parts(theirs):
            names = [(d.bucket, d.key) for d in part]
            yield await self._sink.repair(self._settings.peer_queue, bucket_type, names)
            await self._keep_rate(len(part))

    def _learn(self, part: Sequence[KeyDifference]) -> None:
        room = LEARNED_MAX - len(self.modified_ms)
        self.modified_ms += [d.source.modified_ms for d in part[:room] if d.source is not None]
        self.buckets |= {d.bucket for d in part[:room]}
        if self._settings.repair_log:
            for d in part:
                log.info("fullsync.queued", bucket=str(d.bucket), key=str(d.key), kind=d.kind.value, side=d.side.value)

    async def _keep_rate(self, count: int) -> None:
        """Rest after a group of `count`: as the settings want it, and for longer where the event loop is late, since
        then users wait."""
        rate = self._settings.repair_rate_limit_count
        if rate:
            await asyncio.sleep(count / rate)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await asyncio.sleep(PROBE_S)
        await asyncio.sleep(rest_s(loop.time() - began_s - PROBE_S))


def rest_s(late_s: float) -> float:
    """How long repairs rest when the event loop was late by `late_s`."""
    return min(REST_S_MAX, REST_FACTOR * late_s) if late_s > LATE_FREE_S else 0.0


def _parts(differences: Sequence[KeyDifference]) -> list[Sequence[KeyDifference]]:
    return [differences[at : at + REPAIRS_AT_ONCE] for at in range(0, len(differences), REPAIRS_AT_ONCE)]
