"""A process's disk writers: one for the log and one for the store, each one batch at a time.

The log's writer writes the requests of all partitions in order, syncs, and only then reports durability (in `async`
simulations: after the write). A process that lost the directory's lock gets errors from the disk; a killed one leaves
its current write done, half done, or not done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from isthmus.repl.isr import events as ev
from isthmus.repl.isr.epochs import EpochTable
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.record import Incarnation

if TYPE_CHECKING:
    from tests.simulation.cluster.disk import Disk
    from tests.simulation.cluster.process import Process


class Start(NamedTuple):
    """Let the log begin and end at `at_offset`."""

    at_offset: int
    table: EpochTable


Job = tuple[Entry, ...] | int | Start
"""Entries to append, or the offset to truncate to, or a new beginning."""


class Writer:
    """Shared by both writers: the disk serves only the process that holds the directory."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.simulation = process.simulation

    @property
    def disk(self) -> Disk:
        """The machine's."""
        return self.process.node.disk

    def disk_ms(self, low: int, high: int) -> int:
        """Duration of an operation on the disk."""
        return self.simulation.rng.randint(low, high) * self.disk.slow

    def obeyed(self) -> bool:
        """True when the disk carries out this process's request; otherwise an error is reported."""
        process = self.process
        if process.alive and not process.holds_directory():
            self.simulation.counts["stale_handle"] += 1
            process.disk_error("the directory has another owner")
        return process.holds_directory()


class LogWriter(Writer):
    """Appends and truncations, in order; and the highest epoch seen."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.unwritten: list[tuple[int, Job]] = []
        self._busy = False
        self._epochs_in_flight: dict[int, tuple[int, Incarnation | None]] = {}

    def ask(self, partition: int, job: Job) -> None:
        """Queue a job for the next batch."""
        self.unwritten.append((partition, job))
        self._go_on()

    def sync_recovered(self, ends: dict[int, int]) -> None:
        """Make durable the entries that recovery found written and not synced."""
        self._busy = True
        self.simulation.after(self.disk_ms(1, 25), self._sync, [], ends)

    def note_epoch(self, partition: int, epoch: int, owner: Incarnation | None) -> None:
        """Make `epoch` durable as the highest seen."""
        self._epochs_in_flight[partition] = (epoch, owner)
        self.simulation.after(self.disk_ms(2, 20), self._epoch_written, partition, epoch, owner)

    def truncates(self, partition: int) -> bool:
        """True while a truncation of the partition's log, or a new beginning, waits to be written."""
        return any(who == partition and isinstance(job, int | Start) for who, job in self.unwritten)

    def asked(self, partition: int) -> bool:
        """True while something of the partition waits to be written or synced."""
        return self._busy or any(who == partition for who, _ in self.unwritten) or partition in self._epochs_in_flight

    def leave_behind(self) -> None:
        """The process ends during its work."""
        rng, disk = self.simulation.rng, self.disk
        jobs = self.unwritten
        if jobs:
            done = rng.randint(0, len(jobs))
            for partition, job in jobs[:done]:
                self._write_job(partition, job)
            if done < len(jobs):
                partition, job = jobs[done]
                if not isinstance(job, int | Start) and len(job) > 1:
                    self._write_job(partition, job[: rng.randint(1, len(job) - 1)])
        for partition, (epoch, owner) in self._epochs_in_flight.items():
            if rng.random() < 0.5:
                disk.note_epoch(partition, epoch, owner)

    def _go_on(self) -> None:
        if self.unwritten and not self._busy:
            self._busy = True
            self.simulation.after(self.disk_ms(0, 2), self._write)

    def _write(self) -> None:
        if not self.obeyed():
            return
        batch, self.unwritten = self.unwritten, []
        for partition, job in batch:
            self._write_job(partition, job)
        if self.simulation.plan.asynchronous:
            for partition, job in batch:
                if isinstance(job, Start):
                    self.disk.logs[partition].sync()
            self._busy = False
            self.report_durable(batch, {})
            self._go_on()
        else:
            self.simulation.after(self.disk_ms(1, 20), self._sync, batch, {})

    def _write_job(self, partition: int, job: Job) -> None:
        log = self.disk.logs[partition]
        if isinstance(job, int):
            log.truncate(job)
        elif isinstance(job, Start):
            log.restart(*job)
        else:
            log.append(job)

    def _sync(self, batch: list[tuple[int, Job]], ends: dict[int, int]) -> None:
        disk = self.disk
        if not self.obeyed():
            return
        if disk.fails:
            disk.fails = False
            self.simulation.counts["sync_failed"] += 1
            self.process.disk_error("EIO")
            return
        for log in disk.logs.values():
            log.sync()
        self._busy = False
        self._go_on()
        self.report_durable(batch, ends)

    def report_durable(self, batch: list[tuple[int, Job]], ends: dict[int, int]) -> None:
        """Report the durable offset to each partition's core, in the order of their requests."""
        facts: dict[int, list[ev.Event]] = {partition: [ev.Persisted(end)] for partition, end in ends.items()}
        for partition, job in batch:
            told = facts.setdefault(partition, [])
            if isinstance(job, Start):
                self.simulation.after(0, self.process.transfers.log_restarted, partition)
            elif isinstance(job, int):
                told.append(ev.Truncated(job))
            else:
                if told and isinstance(told[-1], ev.Persisted):
                    told.pop()
                told.append(ev.Persisted(job[-1].offset + 1))
        for partition, told in facts.items():
            for fact in told:
                self.process.post(partition, fact)

    def _epoch_written(self, partition: int, epoch: int, owner: Incarnation | None) -> None:
        if not self.obeyed():
            return
        self._epochs_in_flight.pop(partition, None)
        self.disk.note_epoch(partition, epoch, owner)
        self.process.post(partition, ev.EpochPersisted(epoch))


class StoreWriter(Writer):
    """Applies committed entries."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._asked: dict[int, int] = {}
        self._amid: dict[int, int] | None = None

    def ask(self, partition: int, end: int) -> None:
        """Queue entries below `end` for the next batch."""
        self._asked[partition] = max(end, self._asked.get(partition, 0))
        self._go_on()

    def asked(self, partition: int) -> bool:
        """True while something of the partition waits to be applied."""
        return partition in self._asked or (self._amid is not None and partition in self._amid)

    def leave_behind(self) -> None:
        """The process ends during its work."""
        if self._amid is not None and self.simulation.rng.random() < 0.5:
            self._apply(self._amid)

    def _go_on(self) -> None:
        if self._amid is None and self._asked:
            self._amid, self._asked = self._asked, {}
            self.simulation.after(self.disk_ms(0, 6), self._write)

    def _write(self) -> None:
        if not self.obeyed():
            return
        jobs, self._amid = self._amid, None
        assert jobs is not None
        self._apply(jobs)
        for partition, end in jobs.items():
            self.process.post(partition, ev.AppliedTo(end))
        self._go_on()

    def _apply(self, jobs: dict[int, int]) -> None:
        process = self.process
        for partition, end in jobs.items():
            store = self.disk.stores[partition]
            if end > store.applied:
                entries = process.read_log(partition, store.applied, end)
                self.simulation.checkers.applied(process, partition, entries)
                store.write(entries)
            process.forget_tail(partition, end)
