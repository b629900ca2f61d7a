"""What becomes of entries, by bucket type and kind: how long replication and apply took, and what failed.

    replicate    from the append at a leader until it is committed and applied there
    apply        its last part, on every replica: from the word that it is committed until it is in the store
    failures     entries that a leader refused to append, whose leadership ended before they were committed, or whose
                 clients were told that the outcome is unknown, since they were not committed in time

Called by `repl.runtime.runtime` once a batch; all entries of a batch count with its longest time. Nothing is decided
here. Names of metrics are `repl.telemetry`'s; what a cluster makes of these numbers is `node.services.telemetry`'s.

A node's log, store and replicas in numbers: the samples of `repl.telemetry.HELP` that `repl.runtime.runtime` knows.

A replica's part in its partition is one of three: `leader`, `isr` (a follower that the record has in sync, under its
gen) or `osr` (any other).

How long many things took, at a cost that a write does not feel: counts in fixed buckets, and the recent past.

Pure: `now_ms` comes in. Adding is a few additions for a whole batch. Buckets and sum only rise, as Prometheus wants
them; rate, average and maximum of the recent past, as people want them, come from two windows that take turns.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import itemgetter
from typing import Final, NamedTuple

from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.model.entry import Entry, EntryKind
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.replog.port import Replog
from isthmus.repl.runtime.metastore_effects import ROLLED_BACK
from isthmus.repl.runtime.partition import Appended, Partition
from isthmus.repl.store.port import Store
from isthmus.repl.telemetry import Sample

LEADER: Final = "leader"
ISR: Final = "isr"
OSR: Final = "osr"
PARTS: Final = (LEADER, ISR, OSR)
"""What a replica is to its partition, by the names that metrics and `isthmus cluster telemetry` show."""


class ReplogSizes(NamedTuple):
    """The logs of some replicas: entries that they hold, and entries that are not applied; sums and maxima."""

    replicas: int = 0
    entries: int = 0
    entries_max: int = 0
    unapplied: int = 0
    unapplied_max: int = 0

    def merged(self, other: ReplogSizes) -> ReplogSizes:
        """Of all that both have measured."""
        return ReplogSizes(
            self.replicas + other.replicas,
            self.entries + other.entries,
            max(self.entries_max, other.entries_max),
            self.unapplied + other.unapplied,
            max(self.unapplied_max, other.unapplied_max),
        )


def part_of(partition: Partition) -> str:
    """One of PARTS."""
    replica = partition.replica
    if partition.leads:
        return LEADER
    return ISR if replica.record is not None and replica.member in replica.record.isr else OSR


def replog_sizes(partitions: Iterable[Partition], replog: Replog) -> dict[tuple[bytes, str], ReplogSizes]:
    """By bucket type and part."""
    found: dict[tuple[bytes, str], ReplogSizes] = {}
    for partition in partitions:
        key = (partition.bucket_type, part_of(partition))
        leo = partition.replica.leo
        held = max(0, leo - replog.start_of(partition.id))
        unapplied = max(0, leo - partition.replica.applied)
        found[key] = found.get(key, ReplogSizes()).merged(ReplogSizes(1, held, held, unapplied, unapplied))
    return found


def worst_isr(records: Iterable[PartitionRecord]) -> PartitionRecord | None:
    """The partition that is closest to losing its min-ISR, and of those the one with the fewest in sync."""
    return min(records, key=lambda r: (len(r.isr) - r.effective_min_isr, len(r.isr), r.partition), default=None)


def _replica_samples(partitions: Collection[Partition]) -> list[Sample]:
    """Of the replicas here, by role, and how safe those are that this node leads."""
    replicas = [partition.replica for partition in partitions]
    samples: list[Sample] = [
        ("isthmus_partitions", {"role": role.value}, sum(r.role is role for r in replicas)) for role in ReplicaRole
    ]
    samples += [
        ("isthmus_partitions_ready", {}, sum(r.ready for r in replicas)),
        ("isthmus_partitions_following", {}, sum(r.following for r in replicas)),
        ("isthmus_partitions_far", {}, sum(r.far_position is not None for r in replicas)),
        ("isthmus_partitions_rolled_back", {}, sum(r.reason.startswith(ROLLED_BACK) for r in replicas)),
    ]
    led: dict[bytes, list[PartitionRecord]] = {}
    for partition in partitions:
        if partition.leads and partition.replica.record is not None:
            led.setdefault(partition.bucket_type, []).append(partition.replica.record)
    under = sum(len(r.isr) < len(r.replicas) for records in led.values() for r in records)
    samples.append(("isthmus_partitions_under_replicated", {}, under))
    samples.append(("isthmus_unclean_elections", {}, sum(r.lineage for records in led.values() for r in records)))
    for bucket_type, records in led.items():
        worst = worst_isr(records)
        assert worst is not None
        labels = {"bucket_type": bucket_type.decode()}
        samples.append(("isthmus_isr_worst_members", labels, len(worst.isr)))
        samples.append(("isthmus_isr_worst_min_isr", labels, worst.effective_min_isr))
    return samples


def _replog_samples(partitions: Collection[Partition], replog: Replog, now_ms: int) -> list[Sample]:
    """Of the logs of the replicas here, by bucket type and part."""
    samples: list[Sample] = []
    for (bucket_type, part), sizes in replog_sizes(partitions, replog).items():
        labels = {"bucket_type": bucket_type.decode(), "part": part}
        samples += [
            ("isthmus_replog_replicas", labels, sizes.replicas),
            ("isthmus_replog_entries_average", labels, sizes.entries / sizes.replicas),
            ("isthmus_replog_entries_max", labels, sizes.entries_max),
            ("isthmus_replog_unapplied_entries_average", labels, sizes.unapplied / sizes.replicas),
            ("isthmus_replog_unapplied_entries_max", labels, sizes.unapplied_max),
        ]
    oldest: dict[bytes, int] = {}
    for partition in partitions:
        if partition.leads:
            waits_ms = now_ms - partition.appended[0].at_ms if partition.appended else 0
            oldest[partition.bucket_type] = max(waits_ms, oldest.get(partition.bucket_type, 0))
    samples += [
        ("isthmus_replicate_oldest_seconds", {"bucket_type": bucket_type.decode()}, waits_ms / 1000)
        for bucket_type, waits_ms in oldest.items()
    ]
    return samples


def _storage_samples(replog: Replog, store: Store) -> list[Sample]:
    """Of log and store."""
    stats = replog.stats()
    return [
        ("isthmus_replog_size_bytes", {}, stats.size_bytes),
        ("isthmus_replog_files", {}, stats.file_count),
        ("isthmus_replog_written_entries_total", {}, stats.entries_written),
        ("isthmus_replog_batches_total", {}, stats.batches_written),
        ("isthmus_replog_fsyncs_total", {}, stats.fsync_count),
        ("isthmus_replog_fsync_seconds_total", {}, stats.fsync_seconds),
        ("isthmus_store_size_bytes", {}, store.size_bytes()),
    ]


def samples(partitions: Collection[Partition], replog: Replog, store: Store, now_ms: int) -> list[Sample]:
    """All of the above."""
    return [
        *_replica_samples(partitions),
        *_replog_samples(partitions, replog, now_ms),
        *_storage_samples(replog, store),
    ]


BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
"""Upper bounds of the buckets, included: from what one fsync takes to what a client waits for at most."""

WINDOW_MS: Final = 30_000
"""The recent past is this long at least, and twice as long at most: two or three scrapes of Prometheus."""


class RateWindow(NamedTuple):
    """What was added lately: how many things, their times, and for how long "lately" reaches back."""

    things: int = 0
    total_ms: int = 0
    max_ms: int = 0
    span_ms: int = 0

    @property
    def per_s(self) -> float:
        """How many a second."""
        return 1000 * self.things / self.span_ms if self.span_ms else 0.0


class Histogram:
    """Of one kind of thing. `count` and `total_ms` are of all that was ever added."""

    __slots__ = ("_before", "_buckets", "_here_count", "_here_max_ms", "_here_ms", "_since_ms", "count", "total_ms")

    def __init__(self, now_ms: int) -> None:
        self.count = 0
        self.total_ms = 0
        self._buckets = [0] * (len(BOUNDS_MS) + 1)
        self._since_ms = now_ms
        self._here_count = self._here_ms = self._here_max_ms = 0
        self._before = RateWindow()

    def add(self, duration_ms: int, count: int, now_ms: int) -> None:
        """`count` things took `duration_ms` each."""
        if now_ms - self._since_ms >= WINDOW_MS:
            self._turn(now_ms)
        self.count += count
        self.total_ms += duration_ms * count
        self._buckets[bisect_left(BOUNDS_MS, duration_ms)] += count
        self._here_count += count
        self._here_ms += duration_ms * count
        if duration_ms > self._here_max_ms:
            self._here_max_ms = duration_ms

    def recent(self, now_ms: int) -> RateWindow:
        """The last WINDOW_MS to 2 * WINDOW_MS, or less when there was no more."""
        if now_ms - self._since_ms >= WINDOW_MS:
            self._turn(now_ms)
        before = self._before
        return RateWindow(
            self._here_count + before.things,
            self._here_ms + before.total_ms,
            max(self._here_max_ms, before.max_ms),
            max(1, now_ms - self._since_ms + before.span_ms),
        )

    def _turn(self, now_ms: int) -> None:
        """The window is full: what is in it came within its time, however late that is noticed. What was before it is
        forgotten; after a silence of a whole window it is, too."""
        windows = (now_ms - self._since_ms) // WINDOW_MS
        if windows == 1:
            self._before = RateWindow(self._here_count, self._here_ms, self._here_max_ms, WINDOW_MS)
        else:
            self._before = RateWindow(span_ms=WINDOW_MS)
        self._here_count = self._here_ms = self._here_max_ms = 0
        self._since_ms += windows * WINDOW_MS

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound in seconds, how many took at most that long), the last bound "+Inf"."""
        bounds = [f"{bound / 1000:g}" for bound in BOUNDS_MS]
        return list(zip([*bounds, "+Inf"], accumulate(self._buckets), strict=True))


LOST: Final = "leadership-lost"
"""Reason of the entries that were appended by a leader which ended before they were committed. Their clients are told
that the outcome is unknown; the next leader may hold them, and commit them."""

TIMED_OUT: Final = "timed-out"
"""Reason of the writes that were answered 504 while their entries were not committed, such as below min-ISR. They may
be committed later, and where leadership ends before that they count as LOST, too."""

COMMITTED_MAX: Final = 1_000
"""Times of commits kept a partition until they are applied; a store that is so far behind counts with older times."""

_KIND_OF: Final = itemgetter(0)

KIND_NAMES: Final = {int(kind): "write" if kind is EntryKind.DATA else kind.name.lower() for kind in EntryKind}
"""EntryKind -> its name in metrics."""


class KindTimes(NamedTuple):
    """One kind's, for those who show it: since the node began, and lately."""

    entries: int
    recent: RateWindow


class ReplicationLatency:
    """Of one node."""

    def __init__(self) -> None:
        self._replicated: dict[tuple[bytes, int], Histogram] = {}
        self._applied: dict[tuple[bytes, int], Histogram] = {}
        self._failures: dict[tuple[bytes, int, str], Histogram] = {}
        """Their times are of no account: counts and rates are."""
        self.batches = 0
        """Batches that were appended here as a leader and applied."""

    # -- what happens -----------------------------------------------------------------------------------

    def appended(self, partition: Partition, kind: int, count: int, now_ms: int) -> None:
        """A leader's or candidate's entries went to the log's end."""
        partition.appended.append(Appended(partition.replica.leo, now_ms, kind, count))

    def refused(self, partition: Partition, entries: Sequence[Entry], reason: str, now_ms: int) -> None:
        """A leader's entries were not appended."""
        for kind, count in Counter(map(_KIND_OF, entries)).items():
            self._fail(partition, kind, reason, count, now_ms)

    def timed_out(self, partition: Partition, count: int, now_ms: int) -> None:
        """So many writes were given up by their clients' requests, and are not committed."""
        self._fail(partition, EntryKind.DATA, TIMED_OUT, count, now_ms)

    def _fail(self, partition: Partition, kind: int, reason: str, count: int, now_ms: int) -> None:
        key = (partition.bucket_type, int(kind), reason)
        durations = self._failures.get(key)
        if durations is None:
            durations = self._failures[key] = Histogram(now_ms - WINDOW_MS)  # or the first one would be a great rate
        durations.add(0, count, now_ms)

    def role_changed(self, partition: Partition, role: ReplicaRole, now_ms: int) -> None:
        """Where leadership, or candidacy, is over, what is not committed is lost to it."""
        if role in (ReplicaRole.CANDIDATE, ReplicaRole.LEADER, ReplicaRole.RESIGNING):
            return
        hw = partition.replica.high_watermark
        while partition.appended and partition.appended[-1].end > hw:
            lost = partition.appended.pop()
            self._fail(partition, lost.kind, LOST, lost.entries, now_ms)

    def committed(self, partition: Partition, end: int, now_ms: int) -> None:
        """All below `end` may be applied."""
        waiting = partition.committed
        if waiting and (waiting[-1][1] == now_ms or len(waiting) >= COMMITTED_MAX):
            now_ms = waiting.pop()[1]
        waiting.append((end, now_ms))

    def applied(self, partition: Partition, entries: Sequence[Entry], now_ms: int) -> None:
        """These are in the store."""
        end = entries[-1].offset + 1
        bucket_type = partition.bucket_type
        waiting = partition.committed
        since_ms = waiting[0][1] if waiting else now_ms
        while waiting and waiting[0][0] <= end:
            waiting.popleft()
        kinds = list(map(_KIND_OF, entries))
        alike = kinds.count(kinds[0]) == len(kinds)
        for kind, count in ((kinds[0], len(kinds)),) if alike else Counter(kinds).items():
            self._add(self._applied, (bucket_type, kind), now_ms - since_ms, count, now_ms)
        appended = partition.appended
        while appended and appended[0].end <= end:
            done = appended.popleft()
            self.batches += 1
            self._add(self._replicated, (bucket_type, done.kind), now_ms - done.at_ms, done.entries, now_ms)

    @staticmethod
    def _add(
        of: dict[tuple[bytes, int], Histogram], key: tuple[bytes, int], duration_ms: int, count: int, now_ms: int
    ) -> None:
        durations = of.get(key)
        if durations is None:
            durations = of[key] = Histogram(now_ms - duration_ms)
        durations.add(duration_ms, count, now_ms)

    # -- what it came to --------------------------------------------------------------------------------

    def replicated_times(self, now_ms: int) -> dict[tuple[bytes, str], KindTimes]:
        """By bucket type and name of the kind."""
        return _shown(self._replicated, now_ms)

    def applied_times(self, now_ms: int) -> dict[tuple[bytes, str], KindTimes]:
        """The same of apply."""
        return _shown(self._applied, now_ms)

    def failures(self) -> dict[tuple[bytes, str, str], int]:
        """Entries by bucket type, name of the kind, and reason."""
        return {(of, KIND_NAMES[kind], reason): each.count for (of, kind, reason), each in self._failures.items()}

    def recent_failures(self, now_ms: int) -> dict[tuple[bytes, str, str], RateWindow]:
        """The same of the recent past."""
        return {
            (of, KIND_NAMES[kind], reason): each.recent(now_ms) for (of, kind, reason), each in self._failures.items()
        }

    def metrics(self) -> Iterator[Sample]:
        """See `repl.telemetry`."""
        yield "isthmus_replicate_batches_total", {}, self.batches
        for name, by in (
            ("isthmus_replicate_duration_seconds", self._replicated),
            ("isthmus_apply_duration_seconds", self._applied),
        ):
            for (bucket_type, kind), durations in by.items():
                labels = {"bucket_type": bucket_type.decode(), "kind": KIND_NAMES[kind]}
                for bound, count in durations.cumulative():
                    yield f"{name}_bucket", {**labels, "le": bound}, count
                yield f"{name}_count", labels, durations.count
                yield f"{name}_sum", labels, durations.total_ms / 1000
        for (of, kind_name, reason), count in self.failures().items():
            labels = {"bucket_type": of.decode(), "kind": kind_name, "reason": reason}
            yield "isthmus_replicate_failures_total", labels, count


def _shown(of: dict[tuple[bytes, int], Histogram], now_ms: int) -> dict[tuple[bytes, str], KindTimes]:
    return {
        (bucket_type, KIND_NAMES[kind]): KindTimes(durations.count, durations.recent(now_ms))
        for (bucket_type, kind), durations in of.items()
    }
