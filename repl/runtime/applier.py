"""Apply: committed entries into the store, in offset order, by one writer; and checkpoints of the store.

A batch is *prepared* on the event loop and *written* in a thread: plyvel releases the interpreter for every row that it
takes, so a thread that fills a batch beside a busy loop waits a switch interval every few rows, while the write itself
is one long call without the interpreter. One batch is being written at a time; entries that are committed meanwhile
wait and make the next one. The loop does not wait for the store: a saturated LevelDB may block a write for seconds. The
replicas' windows bound how much waits in memory.

A few entries that the store can take without blocking (`Store.takes_at_once`) are written on the loop itself, in its
next turn: that is cheaper than waking the thread and being woken by it, and they are answered sooner.

Entries that are no longer in memory (after a restart, or because the store is slow) are read back from the log and
written by the thread alone, a part at a time; partitions take turns, so that a long backlog of one does not delay the
others. Checkpoints run in a thread of their own, beside the writes.

A partition whose next rows cannot be made, since an exception came that no rule foresaw, waits and is tried again after
growing pauses, while the others go on. After the last one its copy stops, so that another node can lead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import structlog

from isthmus.repl.log_limit import LogLimit
from isthmus.repl.machine import RunningThread, ThreadQueue, machine
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.errors import IsthmusError, LocalFault, StorageShort
from isthmus.repl.replog.port import Replog
from isthmus.repl.shortage import lacks_descriptors
from isthmus.repl.store.port import PartitionStep, Prepared, Store
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

STEP_ENTRIES_MAX: Final = 2_000
"""Most entries in one store batch: bounds how long the loop prepares one (about 15 ms)."""

STEP_BYTES_MAX: Final = 8_000_000
"""Most bytes read back from the log for one store batch."""

LOOP_ENTRIES_MAX: Final = 64
"""Most entries that are written on the loop: some 5 us each."""

RETRY_PAUSES_S: Final = (0.1, 0.4, 1.6)
"""Pauses before a partition's next rows are made again after an unforeseen exception; then its copy stops. A guess:
what passes, such as a lack of memory, is over in two seconds, and a client's request waits longer than that."""

SOFT_CURSOR_INTERVAL_MS: Final = 1_000
"""Soft cursors that found no apply batch to travel with are written alone after this long."""


def call_threadsafe(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    """Call `function` in the loop's next turn, from another thread; nothing happens once the loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _ended(thread: RunningThread | None, timeout_s: float) -> bool:
    """Wait for the thread's end; True when it has none to wait for any more."""
    if thread is None:
        return True
    thread.join(timeout_s)
    return not thread.is_alive()


@dataclass(slots=True)
class ApplyJob:
    """Entries [start, end) of a partition, known to be committed since `committed_ms`; `entries` is None when they must
    be read from the log."""

    partition: int
    start: int
    end: int
    entries: Sequence[Entry] | None
    committed_ms: int


@dataclass(slots=True)
class _Work:
    """The thread's next task: write a prepared batch, read a job's entries and write them, or run `aside`."""

    steps: list[PartitionStep]
    prepared: Prepared | None
    committed_ms: int = 0
    read: ApplyJob | None = None
    aside: Callable[[], None] | None = None
    soft: Mapping[bytes, bytes] = field(default_factory=dict)


class ApplyEvents(Protocol):
    """Results of the applier, on the event loop."""

    def on_written(self, steps: list[PartitionStep], committed_ms: int, read_back: bool) -> None:
        """`steps` are in the store; the receiver calls `Applier.written`. `committed_ms`: when the oldest of their
        entries was committed, 0 without entries. `read_back`: entries came from the log."""

    def fail(self, error: Exception) -> None:
        """A write failed; nothing is written any more."""

    def not_applied(self, partition: int, bug: Exception) -> None:
        """The rows of a partition's next entries could not be made, after all retries: nothing of it is written any
        more, and its copy must stop. The other partitions go on."""


class Applier:
    """The store's writer. All methods but `stop` belong to the event loop."""

    def __init__(self, store: Store, log: Replog, events: ApplyEvents, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._log = log
        self._events = events
        self._loop = loop
        self._stopping = machine().lock()
        """Held while the loop writes, and while `stop` forbids it to."""
        self._stopped = False
        self._jobs: dict[int, deque[ApplyJob]] = {}
        """Partition -> its jobs, never empty; partitions take turns."""
        self._soft: dict[int, dict[bytes, bytes]] = {}
        self._asides: deque[Callable[[], None]] = deque()
        self._busy = False
        self._work: ThreadQueue[_Work | None] = machine().queue()
        """The thread's next task, at most one at a time; None ends it."""
        self._rest: ApplyJob | None = None
        """Remainder of the job that was read back last."""
        self._alone: deque[tuple[PartitionStep, int]] = deque()
        """Steps of a batch that could not be made, with their time of commit: each is tried alone."""
        self._ended: set[int] = set()
        """Partitions of which nothing more is written, as their copies have stopped until this process ends: a step
        that is left out would be a hole."""
        self._held: dict[int, deque[ApplyJob]] = {}
        """Partition -> its jobs, never empty, while it waits to be tried again."""
        self._retries: dict[int, int] = {}
        """Partition -> how often its next step was put off."""
        self.steps_written = 0
        self.entries_written = 0
        self._thread: RunningThread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = machine().thread(self._run, "apply")

    def submit(self, jobs: Sequence[ApplyJob]) -> None:
        """Take jobs; a partition's jobs follow on each other. Never blocks."""
        for job in jobs:
            if job.partition in self._ended:
                continue
            waiting = self._held.get(job.partition) or self._jobs.get(job.partition)
            if waiting is None:
                self._jobs[job.partition] = deque((job,))
            elif job.entries is None and waiting[-1].entries is None:
                waiting[-1].end = job.end
            else:
                waiting.append(job)
        if not self._busy and self._jobs:
            self._next()

    def aside(self, work: Callable[[], None]) -> None:
        """Run `work`, which must not raise, in the thread between two batches, when no prepared batch is unwritten.
        Never blocks."""
        self._asides.append(work)
        if not self._busy:
            self._next()

    def soft_cursor(self, partition: int, queue: bytes, payload: bytes) -> None:
        """Write a soft cursor with the partition's next step; it replaces an older one of the queue."""
        self._soft.setdefault(partition, {})[queue] = payload

    def flush_soft_cursors(self) -> None:
        """Write waiting soft cursors alone, unless a batch is being written or waits."""
        if self._soft and not self._busy and not self._jobs:
            soft, self._soft = self._soft, {}
            self._write_steps([PartitionStep(partition, (), cursors) for partition, cursors in soft.items()], 0, 0)

    def written(self, steps: Sequence[PartitionStep]) -> None:
        """`steps` were written: begin the next batch, if anything waits."""
        if self._retries:
            for step in steps:
                if step.entries:  # soft cursors are written alone while the entries wait
                    self._retries.pop(step.partition, None)
        self.steps_written += bool(steps)
        self.entries_written += sum([len(step.entries) for step in steps])
        self._busy = False
        rest, self._rest = self._rest, None
        if rest is not None:
            self._jobs[rest.partition] = deque((rest, *self._jobs.pop(rest.partition, ())))
        if self._jobs or self._asides or self._alone:
            self._next()

    @property
    def idle(self) -> bool:
        """True when nothing waits and nothing is being written (soft cursors aside)."""
        return not self._busy and not self._jobs and not self._held and not self._asides and not self._alone

    def stop(self, timeout_s: float) -> bool:
        """End the thread and write the last soft cursors; False when it did not end within `timeout_s`. Blocks;
        call when `idle`, from any thread, with the loop no longer using this."""
        with self._stopping:
            self._stopped = True
        self._work.put(None)
        if not _ended(self._thread, timeout_s):
            return False
        if self._soft and not self._busy:
            steps = [PartitionStep(p, (), cursors) for p, cursors in self._soft.items()]
            with suppress(StorageShort):  # they only save work of the next process
                self._store.commit(self._store.prepare(steps), patient=False)
            self._soft = {}
        return True

    def _next(self) -> None:
        """Make the next batch of the waiting jobs: one step per partition, up to the limits."""
        while self._alone and not self._busy:
            step, committed_ms = self._alone.popleft()
            self._write_steps([step], len(step.entries), committed_ms)
        if self._busy:
            return
        if self._asides:
            self._give(_Work([], None, aside=self._asides.popleft()))
            return
        if not self._jobs:
            return
        first = next(iter(self._jobs))
        if self._jobs[first][0].entries is None:
            self._give(_Work([], None, read=self._take(first), soft=self._soft.pop(first, {})))
            return
        steps = []
        committed_ms = self._jobs[first][0].committed_ms
        entries_left = STEP_ENTRIES_MAX
        for partition in list(self._jobs):
            if entries_left <= 0:
                break
            waiting = self._jobs[partition]
            parts: list[Sequence[Entry]] = []
            while waiting and entries_left > 0 and (entries := waiting[0].entries) is not None:
                committed_ms = min(committed_ms, waiting.popleft().committed_ms)
                parts.append(entries)
                entries_left -= len(entries)
            if not parts:
                continue
            del self._jobs[partition]
            if waiting:
                self._jobs[partition] = waiting  # for its next turn
            joined = parts[0] if len(parts) == 1 else [entry for part in parts for entry in part]
            cursors = self._soft.pop(partition, None) if self._soft else None
            steps.append(
                PartitionStep(partition, joined) if cursors is None else PartitionStep(partition, joined, cursors)
            )
        self._write_steps(steps, STEP_ENTRIES_MAX - entries_left, committed_ms)

    def _take(self, partition: int) -> ApplyJob:
        """The partition's next job; its other jobs wait for its next turn."""
        waiting = self._jobs.pop(partition)
        job = waiting.popleft()
        if waiting:
            self._jobs[partition] = waiting
        return job

    def _write_steps(self, steps: list[PartitionStep], entry_count: int, committed_ms: int) -> None:
        if self._stopped:
            return  # the thread's last result came after the stop, and the store may be closed
        try:
            prepared = self._store.prepare(steps)
        except StorageShort:  # the store is being opened again
            self._busy = True
            self._loop.call_later(PREPARE_PAUSE_S, self._write_again, steps, entry_count, committed_ms)
            return
        except LocalFault as error:
            self._events.fail(error)
            return
        except Exception as bug:  # noqa: BLE001 - see `_split`
            self._split(steps, committed_ms, bug)
            return
        if entry_count <= LOOP_ENTRIES_MAX and self._store.takes_at_once(prepared):
            self._busy = True
            self._loop.call_soon(self._write_on_loop, steps, prepared, committed_ms)
        else:
            self._give(_Work(steps, prepared, committed_ms))

    def _write_again(self, steps: list[PartitionStep], entry_count: int, committed_ms: int) -> None:
        self._busy = False
        self._write_steps(steps, entry_count, committed_ms)

    def _split(self, steps: list[PartitionStep], committed_ms: int, bug: Exception) -> None:
        """A batch could not be made. Each of its steps is tried alone; a partition whose own step fails is held."""
        if len(steps) > 1:
            self._alone.extend((step, committed_ms) for step in steps)
            self._loop.call_soon(self._go_on)
            return
        (step,) = steps
        if step.entries:
            start, end = step.entries[0].offset, step.entries[-1].offset + 1
            job = ApplyJob(step.partition, start, end, step.entries, committed_ms)
            self._hold(job, step.soft_cursors, bug)
        else:  # soft cursors alone: they are written again when they move
            unforeseen.exception("apply.cursors_failed", bug, partition=step.partition)

    def _hold(self, job: ApplyJob, soft: Mapping[bytes, bytes], bug: Exception) -> None:
        """Try a partition's failed job again after a pause, before its other jobs; end the partition after the last."""
        partition, retries = job.partition, self._retries.get(job.partition, 0)
        if retries == len(RETRY_PAUSES_S):
            self._end_partition(partition, bug)
            return
        unforeseen.exception("apply.step_failed", bug, partition=partition, pause_s=RETRY_PAUSES_S[retries])
        self._retries[partition] = retries + 1
        self._held[partition] = deque((job, *self._jobs.pop(partition, ())))
        if soft:  # newer ones may have come meanwhile
            self._soft[partition] = {**soft, **self._soft.get(partition, {})}
        self._loop.call_later(RETRY_PAUSES_S[retries], self._resume, partition)
        self._loop.call_soon(self._go_on)

    def _resume(self, partition: int) -> None:
        self._jobs[partition] = self._held.pop(partition)
        self._go_on()

    def _end_partition(self, partition: int, bug: Exception) -> None:
        """Write nothing more of a partition. Its copy is told of it in the loop's next turn: its core may be what
        calls."""
        self._ended.add(partition)
        self._jobs.pop(partition, None)
        self._loop.call_soon(self._events.not_applied, partition, bug)
        self._loop.call_soon(self._go_on)

    def _not_read(self, job: ApplyJob, soft: Mapping[bytes, bytes], bug: Exception) -> None:
        """The thread could not read a partition's entries back, or make their rows."""
        self._busy = False
        self._hold(job, soft, bug)

    def _go_on(self) -> None:
        if not self._busy and (self._jobs or self._asides or self._alone):
            self._next()

    def _write_on_loop(self, steps: list[PartitionStep], prepared: Prepared, committed_ms: int) -> None:
        try:
            with self._stopping:
                if self._stopped:
                    return
                self._store.commit(prepared, patient=False)
        except StorageShort:
            self._give(_Work(steps, prepared, committed_ms))  # the thread can wait
            return
        except Exception as error:  # noqa: BLE001 - as in the thread
            self._events.fail(error)
            return
        self._events.on_written(steps, committed_ms, False)

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
                    call_threadsafe(self._loop, self._events.on_written, [], 0, False)
                else:
                    assert work.prepared is not None
                    self._store.commit(work.prepared)
                    call_threadsafe(self._loop, self._events.on_written, work.steps, work.committed_ms, False)
        except Exception as error:  # noqa: BLE001 - whatever it was, the process must not go on
            call_threadsafe(self._loop, self._events.fail, error)

    def _patiently(self, act: Callable[[], Result]) -> Result:
        """The result of `act`, tried again while it raises StorageShort. For the thread."""
        while True:
            try:
                return act()
            except StorageShort:
                if self._stopped:
                    raise
                machine().sleep(SHORT_PAUSE_S)

    def _write_read_back(self, job: ApplyJob, soft: Mapping[bytes, bytes]) -> None:
        """Read a bounded part of a job's entries from the log and write it; `written` submits the rest."""
        try:
            entries = self._patiently(lambda: self._log.read(job.partition, job.start, job.end, STEP_BYTES_MAX))
            assert entries[0].offset == job.start
            steps = [PartitionStep(job.partition, entries, soft)]
            prepared = self._patiently(lambda: self._store.prepare(steps))
        except IsthmusError:
            raise
        except Exception as bug:  # noqa: BLE001 -- as in `_split`
            call_threadsafe(self._loop, self._not_read, job, soft, bug)
            return
        self._store.commit(prepared)
        reached = entries[-1].offset + 1
        self._rest = ApplyJob(job.partition, reached, job.end, None, job.committed_ms) if reached < job.end else None
        call_threadsafe(self._loop, self._events.on_written, steps, job.committed_ms, True)


SHORT_PAUSE_S: Final = 1.0
"""Pause before something is tried again that found no descriptor, inode or space."""

PREPARE_PAUSE_S: Final = 0.1
"""Pause before a batch is prepared again, while the store is being opened again."""

EARLY_PAUSE_S: Final = 0.1
"""Least time between two checkpoints, also while the log is above its size: a checkpoint makes several syncs, and the
log's own syncs wait for them. Little is written within this time, compared with any log outside of tests."""


IDLE_SHARE: Final = 0.02
"""A process that used less than this share of a core since the last checkpoint counts as idle; an idle node uses 0.8 %
of a slow core. Below it clients can make 300 reads a second, whose tables then come from the disk once."""


class CheckpointSource(Protocol):
    """Input of the checkpointer, read from its thread."""

    @property
    def pins(self) -> Mapping[int, int]:
        """Partition -> offset from which a follower needs the log."""

    def partition_ids(self) -> Sequence[int]:
        """The partitions of this node."""

    def checkpoint_failed(self, error: Exception) -> None:
        """A checkpoint or a trim failed, and the thread ends."""


class Checkpointer:
    """Checkpoints the store and then trims the log, in its own thread: every `interval_ms`, and soon after `soon`."""

    def __init__(self, store: Store, log: Replog, source: CheckpointSource, interval_ms: int) -> None:
        self._store = store
        self._log = log
        self._source = source
        self._interval_s = interval_ms / 1000
        self._applied: Mapping[int, int] = {}
        """Applied offsets at the last checkpoint."""
        self._compacted_at: Mapping[int, int] = {}
        """Applied offsets at the last compaction."""
        self._idle_at: Mapping[int, int] = {}
        """Applied offsets at the last compaction of an idle process: one after each load, however often clients
        read."""
        self._measured_at_s = self._cpu_s = 0.0
        self._log_limit = LogLimit()
        self._stop = machine().event()
        self._wanted = machine().event()
        self._thread: RunningThread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = machine().thread(self._run, "checkpoint")

    def soon(self) -> None:
        """Checkpoint before the interval ends, since the log is above its size. From any thread; never blocks."""
        self._wanted.set()

    def stop(self, timeout_s: float) -> bool:
        """End the thread after the checkpoint under way; False when it did not end within `timeout_s`."""
        self._stop.set()
        self._wanted.set()
        return _ended(self._thread, timeout_s)

    def _is_idle(self) -> bool:
        """Whether this process used next to no processor time since the last call."""
        measured_at_s, cpu_s = self._measured_at_s, self._cpu_s
        self._measured_at_s, self._cpu_s = machine().monotonic_s(), machine().process_cpu_s()
        return self._cpu_s - cpu_s < IDLE_SHARE * (self._measured_at_s - measured_at_s)

    def run_once(self) -> None:
        """Checkpoint, compact the store if nothing was applied, trim the log. For the thread. Raises LocalFault."""
        before = self._applied
        self._applied = dict(self._store.applied_offsets())
        self._store.checkpoint()
        idle = self._is_idle()
        if before == self._applied and (before != self._compacted_at or (idle and before != self._idle_at)):
            self._compacted_at = before
            self._idle_at = before if idle else self._idle_at
            self._store.compact_when_idle(idle=idle)
        floors = {p: self._store.durable_floor(p) for p in self._source.partition_ids()}
        self._log.trim(floors, self._source.pins)

    def _run(self) -> None:
        self._is_idle()
        pause_s = min(EARLY_PAUSE_S, self._interval_s)
        while not self._stop.wait(pause_s):
            self._wanted.wait(self._interval_s - pause_s)
            if self._stop.is_set():
                return
            self._wanted.clear()
            try:
                self.run_once()
            except Exception as error:  # noqa: BLE001 - a failed sync must end the process (docs/protocol.md H34)
                if not (isinstance(error, StorageShort) or lacks_descriptors(error)):
                    self._source.checkpoint_failed(error)
                    return
                # no sync was tried, or none failed: the floors stay, and so does the log
                if (suppressed := self._log_limit.due()) is not None:
                    log.warning("storage.short", error=str(error), suppressed=suppressed)
                self._stop.wait(SHORT_PAUSE_S)
                self._wanted.set()
