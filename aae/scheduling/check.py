"""One check of one bucket type with one peer: an exchange whose differences become references of a queue.

Keys that are ahead here, or changed on both sides, go into the peer's queue at full-sync's priority and a limited rate;
the object is read from its leader when the reference is served. Keys that are ahead there are counted only, unless the
settings allow a request to the other cluster. Corrupt keys are logged: sending them again would change nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from itertools import islice
from random import Random
from typing import Final, NamedTuple, Protocol

import structlog

from isthmus.aae.exchange.compare import BehindSide, ComparedRow, DifferenceKind, KeyDifference
from isthmus.aae.exchange.exchange import PROVING, ExchangeVerdict, Findings
from isthmus.aae.exchange.remote import PeerTrees
from isthmus.aae.exchange.run import ExchangeActions, ExchangeEnd, ExchangeOutcome, ExchangeScope, run
from isthmus.aae.scheduling.history import DifferingKeys
from isthmus.aae.scheduling.schedule import CheckKind, TimeRange
from isthmus.config.settings import FullSyncSettings
from isthmus.config.text import clause
from isthmus.repl.model.errors import CodecError, IsthmusError, Overloaded
from isthmus.repl.model.keys import Key
from isthmus.repl.model.vclock import decode_clock, parts_of

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

INEFFECTIVE_AFTER: Final = 2
"""Checks that queued a key before it counts as a repair without effect: the references of both were taken, and a later
check finds both rows as they were. One may have been lost with its node."""

LEARNED_MAX: Final = 100_000
"""Modification times of repaired keys collected during a check, to derive the next range from."""


SHOWN: Final = 3
"""Keys that a reason names; `fullsync status` names more."""


class SentRepair(NamedTuple):
    """A key that checks in a row have queued, and its rows in both clusters, which have not changed since."""

    source: ComparedRow | None
    sink: ComparedRow | None
    times: int


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

    async def recall(self, keys: Sequence[Key]) -> Collection[Key]:
        """Write the tombstones of reaped keys of this cluster once more, where their clocks are remembered; returns
        those that were written, and so can be pushed."""

    def waiting(self, queue: str) -> int:
        """References of full-sync on this node that are not acknowledged."""

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
        self,
        settings: FullSyncSettings,
        *,
        source: ExchangeEnd,
        sink: PeerTrees,
        repairs: Repairs,
        random: Random,
        own: bytes = b"",
    ) -> None:
        """`own`: this cluster's uuid."""
        self._settings = settings
        self._own = own
        self._source = source
        self._sink = sink
        self._repairs = repairs
        self._random = random
        self.modified_ms: list[int] = []
        """Modification times of the keys that the newest check enqueued, LEARNED_MAX at most."""
        self.buckets: set[bytes] = set()
        """Buckets of these keys."""
        self.unsent: list[tuple[bytes, bytes]] = []
        """Keys that are reaped here and that the newest check could not send, since their tombstones were not written
        again."""
        self.named: dict[bytes, DifferingKeys] = {}
        """Bucket type -> differing keys of its newest check; with those known before if that one was inconclusive."""
        self._refused: dict[bytes, int] = {}
        """Bucket type -> `Repairs.refused_count` when its newest check began."""
        self.sent: dict[bytes, dict[tuple[bytes, bytes], SentRepair]] = {}
        """Bucket type -> keys that its newest check queued, NAMED_MAX at most."""

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
        self.modified_ms, self.buckets, self.unsent = [], set(), []
        bucket_type = check.bucket_type.encode()
        try:
            key_filter = self._repairs.key_filter(settings.queue, bucket_type)
        except IsthmusError as error:
            return ExchangeOutcome(ExchangeVerdict.ERROR, f"queue {settings.queue}: {error}", findings, retryable=True)
        refused = self._newly_refused(bucket_type)
        actions = _CheckActions(self, bucket_type, findings, settled=not self._waiting())
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
            ours=self.only_ours,
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
        self._judge(outcome, actions)
        if actions.corrupt > CORRUPT_LOGGED:
            log.error(
                "fullsync.corrupt_keys", bucket_type=check.bucket_type, count=actions.corrupt, named=CORRUPT_LOGGED
            )
        self._remember(check, outcome, actions)
        return outcome

    def _waiting(self) -> int:
        try:
            return self._repairs.waiting(self._settings.queue)
        except IsthmusError:
            return 0  # no such queue, which the check reports

    def _judge(self, outcome: ExchangeOutcome, actions: _CheckActions) -> None:
        """Name what could not be sent, repairs that have no effect, and keys whose delete this cluster may have
        forgotten: the verdict is not `repaired` for what cannot be repaired so."""
        words = [outcome.reason]
        if self.unsent:
            words.append(unsent_words(self.unsent))
        if actions.ineffective:
            outcome.refused = max(outcome.refused, len(actions.ineffective))
            if outcome.verdict is ExchangeVerdict.REPAIRED:
                outcome.verdict = ExchangeVerdict.DIFFERING
            words.append(ineffective_words(actions.ineffective))
        if actions.forgotten:
            words.append(forgotten_words(actions.forgotten))
        outcome.reason = "; ".join(filter(None, words))

    def ineffective_of(self, key: Key) -> str:
        """What explains that the key still differs: its repairs have no effect; "" where that is not known."""
        sent = self.sent.get(key.bucket_type, {}).get((key.bucket, key.key))
        return ineffective_words([key[1:]]) if sent is not None and sent.times > INEFFECTIVE_AFTER else ""

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

    def _remember(self, check: PeerCheck, outcome: ExchangeOutcome, actions: _CheckActions) -> None:
        bucket_type, findings, keys = check.bucket_type.encode(), outcome.findings, actions.keys
        conclusive = outcome.verdict in CONCLUSIVE
        before = self.named.get(bucket_type)
        if not conclusive and before is not None:
            keys = dict(islice({**before.keys, **keys}.items(), NAMED_MAX))
        whole = conclusive and check.times is None and not findings.segments_unexplained
        sent = actions.sent if whole else {**self.sent.get(bucket_type, {}), **actions.sent}
        self.sent[bucket_type] = dict(islice(sent.items(), NAMED_MAX))
        unnamed = findings.segments_unexplained or findings.segments_ahead
        every = conclusive and len(keys) >= findings.differences and not unnamed
        self.named[bucket_type] = DifferingKeys(check.began_ms, keys, every)

    async def wait_between_comparisons(self) -> None:
        """The pause of the settings, give or take a half."""
        await asyncio.sleep(self._settings.pause_ms / 1000 * (0.5 + self._random.random()))

    def only_ours(self, row: ComparedRow) -> bool:
        """Whether a row of the other cluster has seen writes of this one alone."""
        try:
            parts = [parts_of(actor) for actor, _, _ in decode_clock(row.clock)]
        except CodecError:
            return False
        return bool(parts) and all(each is not None and each.cluster_uuid == self._own for each in parts)

    def repairs(self, difference: KeyDifference) -> bool:
        """Whether a check queues the key, here or at the other cluster."""
        if difference.side is BehindSide.SOURCE:
            return self._settings.bidirectional
        return difference.kind is not DifferenceKind.CORRUPT

    async def enqueue(self, bucket_type: bytes, differences: Sequence[KeyDifference]) -> AsyncGenerator[int, None]:
        """Enqueue the keys that can be repaired, in groups; yields how many of each group were taken."""
        queued = [d for d in differences if self.repairs(d)]
        ours = [d for d in queued if d.side is not BehindSide.SOURCE]
        theirs = [d for d in queued if d.side is BehindSide.SOURCE]
        for part in _parts(ours):
            sent = await self._recalled(bucket_type, part)
            yield await self._repairs.push(self._settings.queue, [Key(bucket_type, d.bucket, d.key) for d in sent])
            self._learn(sent)
            await self._keep_rate(len(part))
        for part in _parts(theirs):
            names = [(d.bucket, d.key) for d in part]
            yield await self._sink.repair(self._settings.peer_queue, bucket_type, names)
            await self._keep_rate(len(part))

    async def _recalled(self, bucket_type: bytes, part: Sequence[KeyDifference]) -> Sequence[KeyDifference]:
        """The differences of `part` that can be sent: those of keys that are reaped here once their tombstones are
        written again (R-REAP)."""
        reaped = [Key(bucket_type, d.bucket, d.key) for d in part if d.source is not None and d.source.reaped]
        if not reaped:
            return part
        missing = {key[1:] for key in set(reaped).difference(await self._repairs.recall(reaped))}
        self.unsent += sorted(missing)
        return [d for d in part if d[:2] not in missing]

    def _learn(self, part: Sequence[KeyDifference]) -> None:
        room = LEARNED_MAX - len(self.modified_ms)
        self.modified_ms += [d.source.modified_ms for d in part[:room] if d.source is not None and not d.source.reaped]
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

    def __init__(self, checker: PeerChecker, bucket_type: bytes, findings: Findings, *, settled: bool) -> None:
        """`settled`: no reference of an earlier check waits on this node."""
        self._checker = checker
        self._before = checker.sent.get(bucket_type, {})
        self._settled = settled
        self._bucket_type = bucket_type
        self._findings = findings
        self.keys: dict[tuple[bytes, bytes], str] = {}
        """(bucket, key) -> difference, such as "missing@sink"; NAMED_MAX at most."""
        self.corrupt = 0
        """Number of corrupt keys."""
        self.sent: dict[tuple[bytes, bytes], SentRepair] = {}
        self.ineffective: list[tuple[bytes, bytes]] = []
        """Keys that INEFFECTIVE_AFTER checks in a row queued before, and that differ as they did."""
        self.forgotten: list[tuple[bytes, bytes]] = []
        """Keys that only the other cluster has, as this cluster wrote them."""

    async def repair(self, differences: Sequence[KeyDifference]) -> int:
        """See ExchangeActions. References that were taken before an error or a cancellation count in `findings`."""
        for d in differences[: NAMED_MAX - len(self.keys)]:
            self.keys[d.bucket, d.key] = f"{d.kind.value}@{d.side.value}"
        for d in differences:
            self._note(d)
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
            for name in self._checker.unsent:  # its repair was not without effect: there was none
                self.sent.pop(name, None)
        return queued

    def _note(self, d: KeyDifference) -> None:
        """Note a key that is about to be queued, or that only the other cluster has."""
        name = (d.bucket, d.key)
        if d.kind is DifferenceKind.MISSING and d.side is BehindSide.SOURCE and d.sink is not None:
            self.forgotten += [name] * self._checker.only_ours(d.sink)
        if not self._checker.repairs(d) or len(self.sent) >= NAMED_MAX:
            return
        before = self._before.get(name)
        times = before.times if before is not None and (before.source, before.sink) == (d.source, d.sink) else 0
        if times >= INEFFECTIVE_AFTER and self._settled:
            self.ineffective.append(name)
        self.sent[name] = SentRepair(d.source, d.sink, times + 1)

    async def pause(self) -> None:
        """See ExchangeActions."""
        await self._checker.wait_between_comparisons()


def ineffective_words(names: Sequence[tuple[bytes, bytes]]) -> str:
    """That repairs of these keys have no effect, and what helps."""
    return (
        f"{clause(len(names), 'key', 'was', 'were')} queued by {INEFFECTIVE_AFTER} checks before and did not change "
        f"({_shown(names)}): the receiving cluster takes what is sent for known, or drops it; write or delete "
        f"{'it' if len(names) == 1 else 'them'} again on either side"
    )


def unsent_words(names: Sequence[tuple[bytes, bytes]]) -> str:
    """That these keys are deleted here, could not be sent, and what helps."""
    one = len(names) == 1
    return (
        f"{clause(len(names), 'key', 'is', 'are')} deleted here and could not be sent ({_shown(names)}): "
        f"{'its tombstone was' if one else 'their tombstones were'} reaped, and not written again now; if that stays, "
        f"delete {'it' if one else 'them'} on the other side"
    )


def forgotten_words(names: Sequence[tuple[bytes, bytes]]) -> str:
    """That these keys were written here once and are gone, and what that means."""
    return (
        f"{clause(len(names), 'key', 'is', 'are')} missing here, and as this cluster wrote "
        f"{'it' if len(names) == 1 else 'them'} there ({_shown(names)}): lost here, or deleted and reaped so long ago "
        "that it is forgotten; the other side's full-sync brings back what is not deleted there first"
    )


def _shown(names: Sequence[tuple[bytes, bytes]]) -> str:
    first = ", ".join(f"{bucket!r}/{key!r}" for bucket, key in names[:SHOWN])
    return f"{first} and {len(names) - SHOWN} more" if len(names) > SHOWN else first


def rest_s(late_s: float) -> float:
    """Pause of repairs after the event loop was late by `late_s`."""
    return min(REST_S_MAX, REST_FACTOR * late_s) if late_s > LATE_FREE_S else 0.0


def _parts(differences: Sequence[KeyDifference]) -> list[Sequence[KeyDifference]]:
    return [differences[at : at + REPAIRS_AT_ONCE] for at in range(0, len(differences), REPAIRS_AT_ONCE)]
