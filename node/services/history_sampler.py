"""The sampler: reads this node's components every 2 s and adds what they say to the history.

It counts nothing by itself: the numbers are those of the metrics and of `isthmus cluster telemetry`. Once
sources, or queues, have taken TURN_S, the event loop may run, so that requests wait little longer; files are read in a
thread. Nodes read at different moments of their places, so that nodes of one machine do not all read at once.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from zlib import crc32

import structlog

from isthmus.node.http.durations import RequestDurations
from isthmus.node.services.history import HOUR, History, Reading
from isthmus.node.services.history_series import (
    ALL_TYPES,
    COLUMNS,
    TIMED_METHODS,
    TIMED_SHARES,
    HistoryColumn,
    Scope,
    worst_value,
)
from isthmus.queues.service import QueueService
from isthmus.repl.histogram import Histogram
from isthmus.repl.machine import machine
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.replog.port import Replog
from isthmus.repl.runtime.metrics import led_records, oldest_waits_ms, replog_sizes, under_replicated, worst_isr
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.shortage import is_shortage
from isthmus.repl.store.port import Store
from isthmus.repl.telemetry import Family, Sample
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

FILES_EVERY_MS: Final = 30_000
"""How often sizes of files are read: a large store has thousands of them."""

DURATION_SAMPLES: Final = 30
"""Samples, one each 2 s, over which durations of requests are taken together: a minute. Few requests come in 2 s."""

FIRST_MS: Final = 50
SPREAD_MS: Final = 950
"""Samples are taken in the first half of their place, each node at a moment of its own; no timer is FIRST_MS early."""

TURN_S: Final = 0.001
"""Time of the event loop after which the reading of further sources waits for its next turn: two large queues. A source
that takes longer by itself is read whole."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_history_bytes": Family("Memory that the columns of the history take.", "bytes", "history"),
    "isthmus_history_left_out": Family(
        "Columns that the history does not keep because its memory is at its limit.", "columns", "history"
    ),
    "isthmus_history_samples_total": Family("Samples taken for the history.", "samples", "history"),
    "isthmus_history_sampling_seconds_total": Family(
        "Time that the event loop spent on these samples.", "seconds", "history"
    ),
}
"""Name -> metric definition (see repl.telemetry)."""


class HistorySource(Protocol):
    """A component whose numbers are kept. Belongs to the event loop."""

    def readings(self) -> Iterable[Reading | None]:
        """Its numbers now; None where the event loop may run, if it is time."""


class RuntimeSource:
    """Replication by bucket type: logs, durations, failures, ISRs."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def readings(self) -> Iterator[Reading]:
        """See HistorySource."""
        runtime = self._runtime
        now_ms, partitions = runtime.time.now_ms(), runtime.partitions.values()
        for (bucket_type, part), sizes in replog_sizes(partitions, runtime.replog).items():
            label = bucket_type.decode()
            for name, size in zip(_SIZES, sizes, strict=True):
                yield COLUMNS[f"replog.{part}.{name}"], label, size
        led = led_records(partitions)
        yield COLUMNS["partitions.led"], ALL_TYPES, sum(map(len, led.values()))
        yield COLUMNS["partitions.under_replicated"], ALL_TYPES, under_replicated(led)
        for bucket_type, records in led.items():
            worst = worst_isr(records)
            assert worst is not None
            yield COLUMNS["isr.worst"], bucket_type.decode(), worst_value(worst)
        for bucket_type, waits_ms in oldest_waits_ms(partitions, now_ms).items():
            yield COLUMNS["replicate.oldest_ms"], bucket_type.decode(), waits_ms


_SIZES: Final = ("replicas", "entries", "entries_max", "unapplied", "unapplied_max")
"""Columns of the fields of ReplogSizes."""


class LatencySource:
    """Times and failures of entries by bucket type."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def readings(self) -> Iterator[Reading]:
        """See HistorySource. Maxima are those of the recent past, and unknown when nothing happened in it."""
        now_ms, latency = self._runtime.time.now_ms(), self._runtime.latency
        for (bucket_type, kind), times in latency.replicated_times(now_ms).items():
            label, name = bucket_type.decode(), f"replicate.{kind}"
            yield COLUMNS[f"{name}.per_s"], label, times.entries
            yield COLUMNS[f"{name}.ms_per_s"], label, times.total_ms
            if times.recent.added:
                yield COLUMNS[f"{name}.max_ms"], label, times.recent.max_ms
        longest: dict[str, int] = {}
        for (bucket_type, kind), times in latency.applied_times(now_ms).items():
            label = bucket_type.decode()
            for prefix in ("apply", f"apply.{kind}"):
                yield COLUMNS[f"{prefix}.per_s"], label, times.entries
                yield COLUMNS[f"{prefix}.ms_per_s"], label, times.total_ms
            if times.recent.added:
                yield COLUMNS[f"apply.{kind}.max_ms"], label, times.recent.max_ms
                longest[label] = max(times.recent.max_ms, longest.get(label, 0))
        for label, max_ms in longest.items():
            yield COLUMNS["apply.max_ms"], label, max_ms
        for (bucket_type, kind, _), count in latency.failures().items():
            yield COLUMNS[f"replicate.{kind}.failures_per_s"], bucket_type.decode(), count


class FileSizes(NamedTuple):
    """Sizes that are read from the file system."""

    free_bytes: int
    total_bytes: int
    store_bytes: int


class ProcessSource:
    """The process, its disk, its store and its log. Sizes of files are read in a thread, and unknown until then: a disk
    that hangs must not stop the node."""

    def __init__(self, directory: Path, store: Store, replog: Replog, time: TimeSource, pool: Executor) -> None:
        self._directory = directory
        self._store = store
        self._replog = replog
        self._time = time
        self._pool = pool
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._reading: asyncio.Future[FileSizes] | None = None
        self._read_ms: int | None = None
        self._sizes: FileSizes | None = None

    def readings(self) -> Iterator[Reading]:
        """See HistorySource."""
        yield COLUMNS["process.cpu_percent"], ALL_TYPES, 100 * machine().process_cpu_s()
        resident = Path("/proc/self/statm").read_bytes().split()[1]
        yield COLUMNS["process.rss_bytes"], ALL_TYPES, int(resident) * self._page_bytes
        stats = self._replog.stats()
        yield COLUMNS["log.size_bytes"], ALL_TYPES, stats.size_bytes
        yield COLUMNS["log.syncs_per_s"], ALL_TYPES, stats.fsync_count
        yield COLUMNS["log.sync_ms_per_s"], ALL_TYPES, 1000 * stats.fsync_seconds
        self._read_files()
        if self._sizes is not None:
            yield COLUMNS["disk.free_bytes"], ALL_TYPES, self._sizes.free_bytes
            yield COLUMNS["disk.total_bytes"], ALL_TYPES, self._sizes.total_bytes
            yield COLUMNS["store.size_bytes"], ALL_TYPES, self._sizes.store_bytes

    def _read_files(self) -> None:
        """Take what the thread has read, and let it read again when it is time. One reading at a time."""
        now_ms = self._time.now_ms()
        if self._reading is not None and self._reading.done():
            failed = self._reading.cancelled() or self._reading.exception() is not None
            self._sizes = None if failed else self._reading.result()
            self._reading = None
        if self._read_ms is not None and now_ms - self._read_ms < FILES_EVERY_MS:
            return
        if self._reading is not None:
            self._sizes = None  # it hangs
            return
        self._read_ms = now_ms
        self._reading = asyncio.get_running_loop().run_in_executor(self._pool, self._sizes_now)

    def _sizes_now(self) -> FileSizes:
        numbers = os.statvfs(self._directory)
        block = numbers.f_frsize
        return FileSizes(numbers.f_bavail * block, numbers.f_blocks * block, self._store.size_bytes())


class Pick(NamedTuple):
    """Where the samples of a metric go: into `column` times `factor`, those alone whose labels have `only`."""

    column: str
    factor: float = 1.0
    only: tuple[str, str] | None = None


PICKS: Final[Mapping[str, Sequence[Pick]]] = {
    "isthmus_requests_total": (Pick("requests.per_s"),),
    "isthmus_refusals_total": (Pick("refusals.per_s"),),
    "isthmus_queue_waiting_in_memory": (Pick("queue.waiting"),),
    "isthmus_queue_lower_waiting": (Pick("queue.bulk_waiting"),),
    "isthmus_queue_in_flight": (Pick("queue.in_flight"),),
    "isthmus_queue_oldest_age_seconds": (Pick("queue.oldest_age_ms", 1000),),
    "isthmus_queue_served_total": (Pick("queue.served_per_s"),),
    "isthmus_queue_acknowledged_total": (Pick("queue.acknowledged_per_s"),),
    "isthmus_queue_redelivered_total": (Pick("queue.redelivered_per_s"),),
    "isthmus_queue_given_up_total": (Pick("queue.given_up_per_s"),),
    "isthmus_queue_gaps": (Pick("queue.gaps"),),
    "isthmus_queue_suspended": (Pick("queue.suspended"),),
    "isthmus_queue_throttled_seconds_total": (Pick("queue.throttled_percent", 100),),
    "isthmus_sink_changes_total": (
        Pick("sink.changes_per_s"),
        Pick("sink.refused_per_s", only=("outcome", "rejected")),
    ),
    "isthmus_sink_errors_total": (Pick("sink.errors_per_s"),),
    "isthmus_sink_delay_seconds": (Pick("sink.delay_ms", 1000),),
    "isthmus_sink_suspended": (Pick("sink.suspended"),),
    "isthmus_sink_lag_seconds": (
        Pick("sink.lag_p50_ms", 1000, ("quantile", "0.5")),
        Pick("sink.lag_p99_ms", 1000, ("quantile", "0.99")),
    ),
    "isthmus_sink_workers": (Pick("sink.workers"),),
    "isthmus_sink_workers_busy": (Pick("sink.workers_busy"),),
    "isthmus_sink_dead_letters": (Pick("sink.dead_letters"),),
}
"""Metric -> the columns that are made of it."""


class MetricsSource:
    """A component's samples for Prometheus, as far as they are in PICKS."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples

    def readings(self) -> Iterator[Reading]:
        """See HistorySource."""
        return _picked(self._samples())


class QueuesSource:
    """As MetricsSource, for queues: a node with many partitions reads one in half a millisecond."""

    def __init__(self, queues: QueueService) -> None:
        self._queues = queues

    def readings(self) -> Iterator[Reading | None]:
        """See HistorySource."""
        for samples in self._queues.metrics_by_queue():
            yield from _picked(samples)
            yield None


def _picked(samples: Iterable[Sample]) -> Iterator[Reading]:
    """The readings that samples for Prometheus are, as far as they are in PICKS."""
    for name, labels, value in samples:
        for column, factor, only in PICKS.get(name, ()):
            if only is None or labels[only[0]] == only[1]:
                yield COLUMNS[column], _label_of(COLUMNS[column], labels), value * factor


def _label_of(column: HistoryColumn, labels: Mapping[str, str]) -> str:
    match column.scope:
        case Scope.LINK:
            return f"{labels['queue']}@{labels['peer']}"
        case Scope.QUEUE:
            return labels["queue"]
        case Scope.REQUEST:
            return labels["kind"]
        case _:
            return ALL_TYPES


class DurationSource:
    """Percentiles of the durations of GET and PUT of one object, of the last minute."""

    def __init__(self, durations: RequestDurations, route: str) -> None:
        """`route`: that of one object."""
        self._durations = durations
        self._route = route
        self._before = {method: deque[Histogram[float]](maxlen=DURATION_SAMPLES) for method in TIMED_METHODS}

    def readings(self) -> Iterator[Reading]:
        """See HistorySource. Nothing where no request was answered in that time."""
        for method, before in self._before.items():
            now = self._durations.of_all_statuses(self._route, method.upper())
            if before:
                recent = now.since(before[0])
                for name, share in TIMED_SHARES.items():
                    duration_s = recent.interpolated_quantile(share)
                    if duration_s is not None:
                        yield COLUMNS[f"http.{method}.{name}_ms"], ALL_TYPES, 1000 * duration_s
            before.append(now)


class HistorySampler:
    """Takes a sample in each place of the hour while it runs."""

    def __init__(self, node: str, history: History, sources: Sequence[HistorySource], time: TimeSource) -> None:
        self._history = history
        self._sources = list(sources)
        self._time = time
        self._offset_ms = FIRST_MS + crc32(node.encode()) % SPREAD_MS
        self._task: asyncio.Task[None] | None = None
        self._failing: set[HistorySource] = set()
        self._samples = 0
        self._spent_s = 0.0

    def start(self) -> None:
        """Begin to sample."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Take no more samples; also when it never began."""
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self.sample()
            past_ms = (self._time.wall_ms() - self._offset_ms) % HOUR.step_ms
            wait_ms = HOUR.step_ms - past_ms
            if wait_ms < HOUR.step_ms // 2:
                wait_ms += HOUR.step_ms  # the timer was early, or this is the start: rates need time between samples
            await asyncio.sleep(wait_ms / 1000)

    async def sample(self) -> None:
        """Read all sources, and add what they say to the history. A source that fails is logged and left out."""
        readings: list[Reading] = []
        began_s = machine().perf_s()
        for source in self._sources:
            try:
                for reading in source.readings():
                    if reading is not None:
                        readings.append(reading)
                    elif machine().perf_s() - began_s >= TURN_S:
                        began_s = await self._next_turn(began_s)
            except Exception as error:
                if source not in self._failing:
                    name = type(source).__name__
                    if is_shortage(error):  # /proc is files, too
                        log.warning("history.source_short", source=name, error=str(error))
                    else:
                        unforeseen.exception("history.source_failed", error, source=name)
                    self._failing.add(source)
            else:
                self._failing.discard(source)
            if machine().perf_s() - began_s >= TURN_S:
                began_s = await self._next_turn(began_s)
        self._history.add(readings, self._time.now_ms(), self._time.wall_ms())
        self._spent_s += machine().perf_s() - began_s
        self._samples += 1

    async def _next_turn(self, began_s: float) -> float:
        """Let the event loop run; when it has."""
        self._spent_s += machine().perf_s() - began_s
        await asyncio.sleep(0)
        return machine().perf_s()

    def samples(self) -> Iterator[Sample]:
        """Samples for Prometheus."""
        yield "isthmus_history_bytes", {}, self._history.size_bytes()
        yield "isthmus_history_left_out", {}, self._history.left_out
        yield "isthmus_history_samples_total", {}, self._samples
        yield "isthmus_history_sampling_seconds_total", {}, self._spent_s


def node_sources(
    runtime: Runtime, process: ProcessSource, queues: QueueService, *samples: Callable[[], Iterable[Sample]]
) -> list[HistorySource]:
    """All sources of a node; `samples` are its other components' samples for Prometheus."""
    others = [MetricsSource(each) for each in samples]
    return [RuntimeSource(runtime), LatencySource(runtime), process, QueuesSource(queues), *others]
