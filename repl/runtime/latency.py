"""How long entries take, by bucket type and kind, and how many fail.

    replicate    from the append at a leader until the entry is committed and applied there
    apply        its last part, on every replica: from the commit until the entry is in the store
    failures     entries that a leader refused to append, whose leadership ended before they were committed, or whose
                 clients got an unknown outcome because they were not committed in time

`repl.runtime.runtime` calls this once for each batch that is appended, and once for each apply step; all entries of a
batch or step count with its longest time. Durations go into fixed buckets, which only rise, as Prometheus expects;
rate, average and maximum of the recent past come from two alternating windows. Pure: `now_ms` comes in. Metric names
are in `repl.telemetry`; sums over a cluster in `node.services.telemetry`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from isthmus.repl.histogram import Histogram
from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.model.entry import Entry, EntryKind
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.telemetry import Sample
from isthmus.repl.unforeseen import observes

BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
"""Inclusive upper bounds of the buckets: from one fsync to the longest that a client waits."""

WINDOW_MS: Final = 30_000
"""The recent past covers one to two windows: two or three scrapes of Prometheus."""


class RateWindow(NamedTuple):
    """Count and durations of the recent past, and its length `span_ms`."""

    added: int = 0
    total_ms: int = 0
    max_ms: int = 0
    span_ms: int = 0

    @property
    def per_s(self) -> float:
        """Rate."""
        return 1000 * self.added / self.span_ms if self.span_ms else 0.0


class Durations:
    """Durations of one kind: `count` and `histogram` cover all that was ever added, `recent` the recent past."""

    __slots__ = (
        "_previous",
        "_window_count",
        "_window_max_ms",
        "_window_ms",
        "_window_since_ms",
        "count",
        "histogram",
    )

    def __init__(self, now_ms: int) -> None:
        self.count = 0
        self.histogram = Histogram(BOUNDS_MS)
        self._window_since_ms = now_ms
        self._window_count = self._window_ms = self._window_max_ms = 0
        self._previous = RateWindow()

    def add(self, duration_ms: int, count: int, now_ms: int) -> None:
        """Add `count` durations of `duration_ms` each."""
        if now_ms - self._window_since_ms >= WINDOW_MS:
            self._start_window(now_ms)
        self.count += count
        self.histogram.add(duration_ms, count)
        self._window_count += count
        self._window_ms += duration_ms * count
        if duration_ms > self._window_max_ms:
            self._window_max_ms = duration_ms

    def recent(self, now_ms: int) -> RateWindow:
        """The last WINDOW_MS to 2 * WINDOW_MS, or less where this is younger."""
        if now_ms - self._window_since_ms >= WINDOW_MS:
            self._start_window(now_ms)
        previous = self._previous
        return RateWindow(
            self._window_count + previous.added,
            self._window_ms + previous.total_ms,
            max(self._window_max_ms, previous.max_ms),
            max(1, now_ms - self._window_since_ms + previous.span_ms),
        )

    def _start_window(self, now_ms: int) -> None:
        """Begin a new window. The full one becomes the previous one, or is forgotten if a whole window has passed since
        its end."""
        windows = (now_ms - self._window_since_ms) // WINDOW_MS
        if windows == 1:
            self._previous = RateWindow(self._window_count, self._window_ms, self._window_max_ms, WINDOW_MS)
        else:
            self._previous = RateWindow(span_ms=WINDOW_MS)
        self._window_count = self._window_ms = self._window_max_ms = 0
        self._window_since_ms += windows * WINDOW_MS


LOST: Final = "leadership-lost"
"""Failure reason of entries whose leader lost leadership before they were committed. Their clients get an unknown
outcome; the next leader may hold the entries and commit them."""

TIMED_OUT: Final = "timed-out"
"""Failure reason of writes that were answered 504 before their entries were committed, such as below min-ISR. They may
be committed later; if leadership ends before that, they count as LOST, too."""

_KIND_OF: Final = itemgetter(0)

KIND_NAMES: Final = {int(kind): "write" if kind is EntryKind.DATA else kind.name.lower() for kind in EntryKind}
"""EntryKind -> its name in metrics."""


class KindTimes(NamedTuple):
    """Durations of one kind of entry: how many since the node started and their sum, and the recent past."""

    entries: int
    recent: RateWindow
    total_ms: int


class ReplicationLatency:
    """Replicate and apply durations and failures of one node."""

    def __init__(self) -> None:
        self._replicated: dict[tuple[bytes, int], Durations] = {}
        self._applied: dict[tuple[bytes, int], Durations] = {}
        self._failures: dict[tuple[bytes, int, str], Durations] = {}
        """Only counts and rates matter; the durations are 0."""
        self.batches = 0
        """Batches appended here as a leader or candidate, and applied."""

    # -- events -------------------------------------------------------------------------------------------

    @observes("metrics.bug")
    def appended(self, partition: Partition, kind: int, count: int, now_ms: int) -> None:
        """A leader or candidate appended `count` entries of a kind."""
        partition.timestamps.appended(partition.replica.leo, kind, count, now_ms)

    @observes("metrics.bug")
    def refused(self, partition: Partition, entries: Sequence[Entry], reason: str, now_ms: int) -> None:
        """A leader refused to append entries."""
        for kind, count in Counter(map(_KIND_OF, entries)).items():
            self._fail(partition, kind, reason, count, now_ms)

    @observes("metrics.bug")
    def timed_out(self, partition: Partition, count: int, now_ms: int) -> None:
        """`count` writes timed out before they were committed."""
        self._fail(partition, EntryKind.DATA, TIMED_OUT, count, now_ms)

    def _fail(self, partition: Partition, kind: int, reason: str, count: int, now_ms: int) -> None:
        key = (partition.bucket_type, int(kind), reason)
        durations = self._failures.get(key)
        if durations is None:
            # One window back: a single failure must not look like a high rate.
            durations = self._failures[key] = Durations(now_ms - WINDOW_MS)
        durations.add(0, count, now_ms)

    @observes("metrics.bug")
    def role_changed(self, partition: Partition, role: ReplicaRole, now_ms: int) -> None:
        """Count uncommitted entries as lost when leadership or candidacy ends."""
        if role in (ReplicaRole.CANDIDATE, ReplicaRole.LEADER, ReplicaRole.RESIGNING):
            return
        for lost in partition.timestamps.remove_appended_above(partition.replica.high_watermark):
            self._fail(partition, lost.kind, LOST, lost.entries, now_ms)

    @observes("metrics.bug")
    def applied(self, steps: Iterable[tuple[Partition, Sequence[Entry]]], since_ms: int, now_ms: int) -> None:
        """An apply step is in the store; the oldest of its entries was committed at `since_ms`."""
        kinds: dict[bytes, list[int]] = {}
        replicated: dict[tuple[bytes, int, int], int] = {}
        for partition, entries in steps:
            bucket_type = partition.bucket_type
            kinds.setdefault(bucket_type, []).extend(map(_KIND_OF, entries))
            for _, at_ms, kind, count in partition.timestamps.applied(entries[-1].offset + 1):
                self.batches += 1
                batch = bucket_type, kind, at_ms
                replicated[batch] = replicated.get(batch, 0) + count
        for bucket_type, of_entries in kinds.items():
            for kind, count in Counter(of_entries).items():
                self._add(self._applied, (bucket_type, kind), now_ms - since_ms, count, now_ms)
        for (bucket_type, kind, at_ms), count in replicated.items():
            self._add(self._replicated, (bucket_type, kind), now_ms - at_ms, count, now_ms)

    @staticmethod
    def _add(
        of: dict[tuple[bytes, int], Durations], key: tuple[bytes, int], duration_ms: int, count: int, now_ms: int
    ) -> None:
        durations = of.get(key)
        if durations is None:
            durations = of[key] = Durations(now_ms - duration_ms)
        durations.add(duration_ms, count, now_ms)

    # -- results ------------------------------------------------------------------------------------------

    def replicated_times(self, now_ms: int) -> dict[tuple[bytes, str], KindTimes]:
        """Replicate durations by (bucket type, name of the kind)."""
        return _by_kind_name(self._replicated, now_ms)

    def applied_times(self, now_ms: int) -> dict[tuple[bytes, str], KindTimes]:
        """Apply durations by (bucket type, name of the kind)."""
        return _by_kind_name(self._applied, now_ms)

    def failures(self) -> dict[tuple[bytes, str, str], int]:
        """Failed entries by (bucket type, name of the kind, reason)."""
        return {(of, KIND_NAMES[kind], reason): each.count for (of, kind, reason), each in self._failures.items()}

    def recent_failures(self, now_ms: int) -> dict[tuple[bytes, str, str], RateWindow]:
        """Failed entries of the recent past, by (bucket type, name of the kind, reason)."""
        return {
            (of, KIND_NAMES[kind], reason): each.recent(now_ms) for (of, kind, reason), each in self._failures.items()
        }

    def metrics(self) -> Iterator[Sample]:
        """Samples of durations and failures."""
        yield "isthmus_replicate_batches_total", {}, self.batches
        for name, by in (
            ("isthmus_replicate_duration_seconds", self._replicated),
            ("isthmus_apply_duration_seconds", self._applied),
        ):
            for (bucket_type, kind), durations in by.items():
                labels = {"bucket_type": bucket_type.decode(), "kind": KIND_NAMES[kind]}
                yield from durations.histogram.samples(name, labels, per_second=1000)
        for (of, kind_name, reason), count in self.failures().items():
            labels = {"bucket_type": of.decode(), "kind": kind_name, "reason": reason}
            yield "isthmus_replicate_failures_total", labels, count


def _by_kind_name(of: dict[tuple[bytes, int], Durations], now_ms: int) -> dict[tuple[bytes, str], KindTimes]:
    return {
        (bucket_type, KIND_NAMES[kind]): KindTimes(durations.count, durations.recent(now_ms), durations.histogram.total)
        for (bucket_type, kind), durations in of.items()
    }
