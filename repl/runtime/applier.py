"""Apply: committed entries into the store, in offset order, by one writer.

The batch is *prepared* on the event loop and *written* in a thread: plyvel lets go of the interpreter for every row
that it takes, so a thread that fills a batch beside a busy loop waits a switch interval every few rows, while
the write itself is one long call without the interpreter. One batch is being written at a time; what is
committed meanwhile waits and makes the next one. The loop does not wait for the store: a saturated LevelDB
may hold a write for a second and more. What waits in memory is bounded by the replicas' windows.

A few entries that the store would take at once (`Store.takes_at_once`) are written on the loop itself, in its next
turn: that costs it less than waking the thread and being woken by it, and they are applied and answered sooner.

Entries that are no longer in memory (after a restart, or because the store is slow) are read back from the log and
written by the thread alone, a part at a time; the partitions take turns, so that one that has much to catch up does not
hold up the others.
Checkpoints run in a thread of their own, beside the writes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

from isthmus.repl.model.entry import Entry
from isthmus.repl.model.errors import LocalFault
from isthmus.repl.replog.port import Replog
from isthmus.repl.store.port import PartitionStep, Prepared, Store

STEP_ENTRIES_MAX: Final = 2_000
"""Most entries in one store batch: bounds how long the loop prepares one (about 15 ms)."""

STEP_BYTES_MAX: Final = 8_000_000
"""Most bytes read back from the log for one store batch."""

HERE_ENTRIES_MAX: Final = 64
"""Most entries that are written on the loop: some 5 us each."""

SOFT_CURSOR_INTERVAL_MS: Final = 1_000
"""Soft cursors that found no apply batch to travel with are written alone after this long."""


@dataclass(slots=True)
class ApplyJob:
    """Entries [start, end) of a partition; `entries` is None when they must be read from the log."""

    partition: int
    start: int
    end: int
    entries: Sequence[Entry] | None


@dataclass(slots=True)
class _Work:
    """What the thread does next: write a prepared batch, or read a job's entries and write them."""

    steps: list[PartitionStep]
    prepared: Prepared | None
    read: ApplyJob | None = None
    aside: Callable[[], None] | None = None
    soft: Mapping[bytes, bytes] = field(default_factory=dict)


class Applier:
    """The store's writer. All methods belong to the event loop, and so do the calls of `on_written(steps, read_back)`,
    whose receiver calls `written`, and `on_failure(error)`. `read_back`: the entries came from the log, not from a job.
    `soon` has something called in the loop's next turn, `from_thread` likewise from the thread."""

    def __init__(
        self,
        store: Store,
        log: Replog,
        on_written: Callable[[list[PartitionStep], bool], None],
        on_failure: Callable[[Exception], None],
        *,
        soon: Callable[..., object],
        from_thread: Callable[..., object],
    ) -> None:
        self._store = store
        self._log = log
        self._on_written = on_written
        self._on_failure = on_failure
        self._soon = soon
        self._from_thread = from_thread
        self._stopping = threading.Lock()
        """Held by who writes on the loop, and by who says that nothing is written there any more."""
        self._stopped = False
        self._jobs: dict[int, deque[ApplyJob]] = {}
        """By partition, whose turns go round; a partition without jobs is not in it."""
        self._soft: dict[int, dict[bytes, bytes]] = {}
        self._asides: deque[Callable[[], None]] = deque()
        self._busy = False
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        """What the thread is to do, at most one at a time; None ends it."""
        self._rest: ApplyJob | None = None
        self.steps_written = 0
        self.entries_written = 0
        self._thread = threading.Thread(target=self._run, name="apply", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, jobs: Sequence[ApplyJob]) -> None:
        """Take jobs; a partition's jobs follow on each other. Never blocks."""
        for job in jobs:
            waiting = self._jobs.get(job.partition)
            if waiting is None:
                self._jobs[job.partition] = deque((job,))
            elif job.entries is None and waiting[-1].entries is None:
                waiting[-1].end = job.end
            else:
                waiting.append(job)
        if not self._busy and self._jobs:
            self._next()

    def aside(self, work: Callable[[], None]) -> None:
        """Let the thread do `work`, which raises nothing, between two batches: all that was prepared is written then,
        and nothing else is being written. Never blocks."""
        self._asides.append(work)
        if not self._busy:
            self._next()

    def soft_cursor(self, partition: int, queue: bytes, payload: bytes) -> None:
        """Let a soft cursor travel with the partition's next step; a newer one replaces an older."""
        self._soft.setdefault(partition, {})[queue] = payload

    def flush_soft_cursors(self) -> None:
        """Write soft cursors that still wait, by themselves, if nothing else is being written."""
        if self._soft and not self._busy and not self._jobs:
            soft, self._soft = self._soft, {}
            self._hand_over([PartitionStep(partition, (), cursors) for partition, cursors in soft.items()])

    def written(self, steps: Sequence[PartitionStep]) -> None:
        """The thread has written `steps`: begin the next batch, if anything waits."""
        self.steps_written += bool(steps)
        self.entries_written += sum(len(step.entries) for step in steps)
        self._busy = False
        rest, self._rest = self._rest, None
        if rest is not None:
            self._jobs[rest.partition] = deque((rest, *self._jobs.pop(rest.partition, ())))
        if self._jobs or self._asides:
            self._next()

    @property
    def idle(self) -> bool:
        """True when nothing waits and nothing is being written (soft cursors aside)."""
        return not self._busy and not self._jobs and not self._asides

    def stop(self, timeout_s: float) -> bool:
        """End the thread and write the last soft cursors; False when it did not end within `timeout_s`. Blocks;
        call when `idle`, from any thread, with the loop no longer using this."""
        with self._stopping:
            self._stopped = True
        self._work.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if self._soft and not self._busy:
            self._store.write([PartitionStep(p, (), cursors) for p, cursors in self._soft.items()])
            self._soft = {}
        return True

    def _next(self) -> None:
        """Make the next batch of what waits: one step a partition, up to the limits."""
        if self._asides:
            self._give(_Work([], None, aside=self._asides.popleft()))
            return
        first = next(iter(self._jobs))
        if self._jobs[first][0].entries is None:
            self._give(_Work([], None, self._take(first), soft=self._soft.pop(first, {})))
            return
        steps = []
        room = STEP_ENTRIES_MAX
        for partition in list(self._jobs):
            if room <= 0:
                break
            parts: list[Sequence[Entry]] = []
            while room > 0 and partition in self._jobs:
                entries = self._jobs[partition][0].entries
                if entries is None:
                    break
                self._take(partition)
                parts.append(entries)
                room -= len(entries)
            if parts:
                joined = parts[0] if len(parts) == 1 else [entry for part in parts for entry in part]
                cursors = self._soft.pop(partition, None)
                steps.append(
                    PartitionStep(partition, joined) if cursors is None else PartitionStep(partition, joined, cursors)
                )
        self._hand_over(steps)

    def _take(self, partition: int) -> ApplyJob:
        """The partition's next job; what it has besides waits for its next turn."""
        waiting = self._jobs.pop(partition)
        job = waiting.popleft()
        if waiting:
            self._jobs[partition] = waiting
        return job

    def _hand_over(self, steps: list[PartitionStep]) -> None:
        if self._stopped:
            return  # the thread's last report came after the stop, and the store may be closed
        try:
            prepared = self._store.prepare(steps)
        except LocalFault as error:
            self._on_failure(error)
            return
        if sum(len(step.entries) for step in steps) <= HERE_ENTRIES_MAX and self._store.takes_at_once(prepared):
            self._busy = True
            self._soon(self._write_here, steps, prepared)
        else:
            self._give(_Work(steps, prepared))

    def _write_here(self, steps: list[PartitionStep], prepared: Prepared) -> None:
        try:
            with self._stopping:
                if self._stopped:
                    return
                self._store.commit(prepared)
        except Exception as error:  # noqa: BLE001 - as in the thread
            self._on_failure(error)
            return
        self._on_written(steps, False)

    def _give(self, work: _Work) -> None:
        self._busy = True
        self._work.put(work)

    def _run(self) -> None:
        try:
            while (work := self._work.get()) is not None:
                if work.read is not None:
                    self._write_read_back(work.read, work.soft)
                elif work.aside is not None:
                    work.aside()
                    self._from_thread(self._on_written, [], False)
                else:
                    assert work.prepared is not None
                    self._store.commit(work.prepared)
                    self._from_thread(self._on_written, work.steps, False)
        except Exception as error:  # noqa: BLE001 - whatever it was, the process must not go on
            self._from_thread(self._on_failure, error)

    def _write_read_back(self, job: ApplyJob, soft: Mapping[bytes, bytes]) -> None:
        """Read a bounded part of a job's entries from the log and write it; the loop asks for the rest."""
        entries = self._log.read(job.partition, job.start, job.end, STEP_BYTES_MAX)
        assert entries[0].offset == job.start
        steps = [PartitionStep(job.partition, entries, soft)]
        self._store.write(steps)
        reached = entries[-1].offset + 1
        self._rest = ApplyJob(job.partition, reached, job.end, None) if reached < job.end else None
        self._from_thread(self._on_written, steps, True)


EARLY_PAUSE_S: Final = 0.1
"""Least time between two checkpoints, also while the log is above its size: a checkpoint is several syncs on the disk
that the log's own syncs wait for. What is written in it is a small part of any log but a test's."""


IDLE_SHARE: Final = 0.02
"""A process that used less of a core since the last checkpoint has nothing to do; being there costs 0.8 % where a core
is slow. Below it a client could make 300 reads a second, whose tables then come from the disk once."""


class Checkpointer:
    """Checkpoints the store and then trims the log, every `interval_ms` and when `soon` was called, in its own thread.
    `pins`: partition -> offset from which somebody needs the log; asked from the thread."""

    def __init__(
        self,
        store: Store,
        log: Replog,
        partitions: Callable[[], Sequence[int]],
        pins: Callable[[], Mapping[int, int]],
        interval_ms: int,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._store = store
        self._log = log
        self._partitions = partitions
        self._pins = pins
        self._interval_s = interval_ms / 1000
        self._on_failure = on_failure
        self._applied: Mapping[int, int] = {}
        """Where the partitions were at the last checkpoint."""
        self._rested_at: Mapping[int, int] = {}
        """Where the partitions were when the store was last told to rest."""
        self._idle_at: Mapping[int, int] = {}
        """Where they were when it was last told that all is idle: once after each load, however often clients read."""
        self._looked_at_s = self._cpu_s = 0.0
        self._stop = threading.Event()
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def soon(self) -> None:
        """Do not wait for the interval's end: the log is above its size. From any thread; never blocks."""
        self._wanted.set()

    def stop(self, timeout_s: float) -> bool:
        """End after the checkpoint under way; False when it did not within `timeout_s`."""
        self._stop.set()
        self._wanted.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _is_idle(self) -> bool:
        """Whether this process did next to nothing since it was last asked."""
        looked_at_s, cpu_s = self._looked_at_s, self._cpu_s
        self._looked_at_s, self._cpu_s = time.monotonic(), time.process_time()
        return self._cpu_s - cpu_s < IDLE_SHARE * (self._looked_at_s - looked_at_s)

    def look(self) -> None:
        """Checkpoint, let the store rest if it is time, trim. For the thread. Raises LocalFault."""
        before = self._applied
        self._applied = dict(self._store.applied_offsets())
        self._store.checkpoint()
        idle = self._is_idle()
        if before == self._applied and (before != self._rested_at or (idle and before != self._idle_at)):
            self._rested_at = before
            self._idle_at = before if idle else self._idle_at
            self._store.compact_when_idle(idle=idle)
        self._log.trim({p: self._store.durable_floor(p) for p in self._partitions()}, self._pins())

    def _run(self) -> None:
        self._is_idle()
        pause_s = min(EARLY_PAUSE_S, self._interval_s)
        while not self._stop.wait(pause_s):
            self._wanted.wait(self._interval_s - pause_s)
            if self._stop.is_set():
                return
            self._wanted.clear()
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - a failed sync must end the process (docs/protocol.md H34)
                self._on_failure(error)
                return
