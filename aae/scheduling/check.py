"""One check of one bucket type with one peer: an exchange whose differences become references of a queue.

Keys that are ahead here, or changed on both sides, go into the peer's queue at full-sync's priority and a limited rate;
the object is read from its leader when the reference is served. Keys that are ahead there are counted only, unless the
settings allow a request to the other cluster. Corrupt keys are logged: sending them again would change nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import islice
from random import Random
from typing import Final, NamedTuple, Protocol

import structlog

from isthmus.aae.exchange.compare import BehindSide, DifferenceKind, KeyDifference
from isthmus.aae.exchange.exchange import PROVING, ExchangeVerdict, Findings
from isthmus.aae.exchange.remote import PeerTrees
from isthmus.aae.exchange.run import ExchangeActions, ExchangeEnd, ExchangeOutcome, ExchangeScope, run
from isthmus.aae.scheduling.history import DifferingKeys
from isthmus.aae.scheduling.schedule import CheckKind, TimeRange
from isthmus.config.settings import FullSyncSettings
from isthmus.repl.model.errors import IsthmusError, Overloaded
from isthmus.repl.model.keys import Key

log = structlog.get_logger(__name__)

REPAIRS_AT_ONCE: Final = 500
"""Keys enqueued in one call; the rate limit is kept between calls."""

PROBE_S: Final = 0.002
"""Length of a sleep that measures how late the event loop is: the delay of every request."""

LATE_FREE_S: Final = 0.020
"""Lateness that does not slow repairs down: a group commit takes as long."""

REST_FACTOR: Final = 10.0
"""Pause per second of lateness: 50 ms of lateness pause for half a second, so 1,000 keys per second. A guess."""

REST_S_MAX: Final = 2.0
"""Longest pause: repairs go on at 250 keys per second however busy the node is."""

NAMED_MAX: Final = 10_000
"""Differing keys remembered of the newest check of a bucket type: some 2 MB."""

CONCLUSIVE: Final = frozenset(
    {ExchangeVerdict.IN_SYNC, ExchangeVerdict.UP_TO_DATE, ExchangeVerdict.REPAIRED, ExchangeVerdict.DIFFERING}
)
"""Verdicts of checks that compared all differing segments, except those of a range without `DifferingKeys.every`."""

CORRUPT_LOGGED: Final = 20
"""Corrupt keys that a check logs one by one. The line at its end has their number, and the peer's listing their names.
Each check finds them until they are written again."""

LEARNED_MAX: Final = 100_000
"""Modification times of repaired keys collected during a check, to derive the next range from."""


class QueueFull(Overloaded):
    """A queue took `taken` of the references and has no capacity for more."""

    def __init__(self, message: str, taken: int) -> None:
        super().__init__(message)
        self.taken = taken


class Repairs(Protocol):
    """The source queues, as full-sync uses them. All methods raise BadInput for an unknown queue."""

    async def push(self, queue: str, keys: Sequence[Key]) -> int:
        """Enqueue references at full-sync's priority, waiting for capacity; returns how many were taken. Keys that the
        queue's filter leaves out are not taken. Raises QueueFull, Retryable."""

    def refused_count(self, queue: str) -> int:
        """References of full-sync from this node, since its start, that the other cluster has refused for good."""

    def key_filter(self, queue: str, bucket_type: bytes) -> Callable[[bytes, bytes], bool] | None:
        """The queue's filter as a function of (bucket, key); None: it lets all keys through."""


class PeerCheck(NamedTuple):
    """One check. `times` None: all. `began_ms`: wall clock."""

    bucket_type: str
    kind: CheckKind
    times: TimeRange | None
    by: str
    began_ms: int


class PeerChecker:
    """Runs the checks of one peer, one at a time."""

    def __init__(
        self, settings: FullSyncSettings, *, source: ExchangeEnd, sink: PeerTrees, repairs: Repairs, random: Random
    ) -> None:
        self._settings = settings
        self._source = source
        self._sink = sink
        self._repairs = repairs
        self._random = random
        self.modified_ms: list[int] = []
        """Modification times of the keys that the newest check enqueued, LEARNED_MAX at most."""
        self.buckets: set[bytes] = set()
        """Buckets of these keys."""
        self.named: dict[bytes, DifferingKeys] = {}
        """Bucket type -> differing keys of its newest check; with those known before if that one was inconclusive."""
        self._refused: dict[bytes, int] = {}
        """Bucket type -> `Repairs.refused_count` when its newest check began."""

    @property
    def cluster(self) -> bytes | None:
        """The uuid of the other cluster; None before its first response."""
        return self._sink.cluster

    def close(self) -> None:
        """Abort running requests."""
        self._sink.close()

    async def check(self, check: PeerCheck, findings: Findings) -> ExchangeOutcome:
        """Run a check; `findings` is updated meanwhile. Raises nothing but cancellation."""
        settings = self._settings
        self.modified_ms, self.buckets = [], set()
        bucket_type = check.bucket_type.encode()
        try:
            key_filter = self._repairs.key_filter(settings.queue, bucket_type)
        except IsthmusError as error:
            return ExchangeOutcome(ExchangeVerdict.ERROR, f"queue {settings.queue}: {error}", findings, retryable=True)
        refused = self._newly_refused(bucket_type)
        actions = _CheckActions(self, bucket_type, findings)
        times = check.times or TimeRange(0, 0)
        scope = ExchangeScope(
            bucket_type,
            since_ms=times.since_ms,
            before_ms=times.before_ms,
            key_filter=key_filter,
            bucket=times.bucket,
            segment_limit=settings.segment_limit_count,
            start=self._random.randrange(1 << 20),
            both_ways=settings.bidirectional,
        )
        outcome = await run(
            self._source,
            self._sink,
            scope,
            findings=findings,
            actions=actions,
            timeout_s=settings.run_timeout_ms / 1000,
        )
        if refused > 0 and outcome.verdict not in PROVING:
            words = (
                f"{refused} of the repairs before were refused there for good (isthmus sink dead-letters list there)"
            )
            outcome.reason, outcome.refused = "; ".join(filter(None, (outcome.reason, words))), refused
        if actions.corrupt > CORRUPT_LOGGED:
            log.error(
                "fullsync.corrupt_keys", bucket_type=check.bucket_type, count=actions.corrupt, named=CORRUPT_LOGGED
            )
        self._remember(check, outcome, actions.keys)
        return outcome

    def counts(self, key: Key) -> bool:
        """False if the queue's filter leaves the key out."""
        try:
            key_filter = self._repairs.key_filter(self._settings.queue, key.bucket_type)
        except IsthmusError:
            return True  # no such queue, which each check reports
        return key_filter is None or key_filter(key.bucket, key.key)

    def _newly_refused(self, bucket_type: bytes) -> int:
        """Repairs refused for good since the newest check of this bucket type."""
        try:
            count = self._repairs.refused_count(self._settings.queue)
        except IsthmusError:
            count = 0  # no such queue, which the check reports
        before = self._refused.get(bucket_type, count)
        self._refused[bucket_type] = count
        return count - before

    def _remember(self, check: PeerCheck, outcome: ExchangeOutcome, keys: dict[tuple[bytes, bytes], str]) -> None:
        bucket_type, findings = check.bucket_type.encode(), outcome.findings
        conclusive = outcome.verdict in CONCLUSIVE
        before = self.named.get(bucket_type)
        if not conclusive and before is not None:
            keys = dict(islice({**before.keys, **keys}.items(), NAMED_MAX))
        unnamed = findings.segments_unexplained or findings.segments_ahead
        every = conclusive and len(keys) >= findings.differences and not unnamed
        self.named[bucket_type] = DifferingKeys(check.began_ms, keys, every)

    async def wait_between_comparisons(self) -> None:
        """The pause of the settings, give or take a half."""
        await asyncio.sleep(self._settings.pause_ms / 1000 * (0.5 + self._random.random()))

    async def enqueue(self, bucket_type: bytes, differences: Sequence[KeyDifference]) -> AsyncGenerator[int, None]:
        """Enqueue the keys that can be repaired, in groups; yields how many of each group were taken."""
        ours = [d for d in differences if d.side is not BehindSide.SOURCE and d.kind is not DifferenceKind.CORRUPT]
        theirs = [d for d in differences if d.side is BehindSide.SOURCE] if self._settings.bidirectional else []
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
        """Sleep after a group of `count` keys: by the rate limit, and longer while the event loop is late."""
        rate = self._settings.repair_rate_limit_count
        if rate:
            await asyncio.sleep(count / rate)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await asyncio.sleep(PROBE_S)
        await asyncio.sleep(rest_s(loop.time() - began_s - PROBE_S))


class _CheckActions(ExchangeActions):
    """The repairs of one running check."""

    def __init__(self, checker: PeerChecker, bucket_type: bytes, findings: Findings) -> None:
        self._checker = checker
        self._bucket_type = bucket_type
        self._findings = findings
        self.keys: dict[tuple[bytes, bytes], str] = {}
        """(bucket, key) -> difference, such as "missing@sink"; NAMED_MAX at most."""
        self.corrupt = 0
        """Number of corrupt keys."""

    async def repair(self, differences: Sequence[KeyDifference]) -> int:
        """See ExchangeActions. References that were taken before an error or a cancellation count in `findings`."""
        for d in differences[: NAMED_MAX - len(self.keys)]:
            self.keys[d.bucket, d.key] = f"{d.kind.value}@{d.side.value}"
        for corrupt in (d for d in differences if d.kind is DifferenceKind.CORRUPT):
            self.corrupt += 1
            if self.corrupt <= CORRUPT_LOGGED:
                log.error("fullsync.corrupt", bucket=str(corrupt.bucket), key=str(corrupt.key))
        queued = 0
        try:
            async for taken in self._checker.enqueue(self._bucket_type, differences):
                queued += taken
                self._findings.queuing = queued
        except BaseException as end:
            self._findings.queued += queued + (end.taken if isinstance(end, QueueFull) else 0)
            raise
        finally:
            self._findings.queuing = 0
        return queued

    async def pause(self) -> None:
        """See ExchangeActions."""
        await self._checker.wait_between_comparisons()


def rest_s(late_s: float) -> float:
    """Pause of repairs after the event loop was late by `late_s`."""
    return min(REST_S_MAX, REST_FACTOR * late_s) if late_s > LATE_FREE_S else 0.0


def _parts(differences: Sequence[KeyDifference]) -> list[Sequence[KeyDifference]]:
    return [differences[at : at + REPAIRS_AT_ONCE] for at in range(0, len(differences), REPAIRS_AT_ONCE)]
