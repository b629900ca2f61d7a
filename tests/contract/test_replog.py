"""The contract of every Replog, tested on the memory log, on files in memory and on real files, in both durability
modes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from isthmus.repl.model.errors import LocalFault, OutOfStorage
from isthmus.repl.replog.files import SystemFiles
from isthmus.repl.replog.log import FileLog
from isthmus.repl.replog.port import Replog
from tests.support.log_history import CLUSTER, Listener, entries, open_log
from tests.support.memory_disk import MemoryDisk
from tests.support.memory_log import MemoryLog
from tests.support.waiting import wait_until


class FullableFiles(SystemFiles):
    """Real files on a disk whose free space a test can set."""

    free: int | None = None

    def free_bytes(self, directory: Path) -> int:
        return super().free_bytes(directory) if self.free is None else self.free


class Subject:
    """A log under test, and how to fill its disk."""

    def __init__(self, log: Replog, set_free: Callable[[int], None]) -> None:
        self.log = log
        self.set_free = set_free


@pytest.fixture(params=["memory", "memory files", "real files, fsync", "real files, async"])
def subject(request: pytest.FixtureRequest, tmp_path: Path):
    """Each kind of log, with small files and a size limit of 10,000 bytes."""
    match request.param:
        case "memory":
            memory = MemoryLog(size_limit_bytes=10_000, capacity_bytes=1 << 30)

            def set_capacity(free: int) -> None:
                memory._capacity_bytes = memory._size_bytes + free

            made = Subject(memory, set_capacity)
        case "memory files":
            disk = MemoryDisk()
            made = Subject(open_log(disk, size_limit_bytes=10_000), lambda free: setattr(disk, "free", free))
        case kind:
            io = FullableFiles()
            log = FileLog.open(
                tmp_path / "log",
                cluster_uuid=CLUSTER,
                durability=kind.split()[-1],
                size_limit_bytes=10_000,
                file_bytes=1000,
                batch_bytes=500,
                reserve_bytes=1000,
                io=io,
            )
            made = Subject(log, lambda free: setattr(io, "free", free))
    yield made
    made.log.close()


def test_entries_come_back_as_they_were_appended(subject: Subject) -> None:
    """Durable entries are read back equal, field by field, for every part of the range."""
    log = subject.log
    listener = Listener(log)
    appended = entries(3, 0, 9, size=70)
    log.append(5, appended[:4])
    log.append(5, appended[4:])
    assert log.leo(5) == 9
    assert listener.wait({5: 9})
    for start in range(10):
        for end in range(start, 11):
            assert log.read(5, start, end, 1 << 20) == appended[start:end]
    assert log.read(6, 0, 5, 100) == []


def test_read_stops_before_its_byte_limit_but_gives_one(subject: Subject) -> None:
    """`read` never passes `max_bytes`, except that the first entry always comes."""
    log = subject.log
    listener = Listener(log)
    appended = entries(1, 0, 6, size=100)
    log.append(0, appended)
    assert listener.wait({0: 6})
    length = len(appended[0].wire)
    assert log.read(0, 1, 6, 1) == appended[1:2]
    assert log.read(0, 1, 6, 3 * length) == appended[1:4]
    assert log.read(0, 1, 6, 3 * length - 1) == appended[1:3]


def test_partitions_have_their_own_offsets_and_epochs(subject: Subject) -> None:
    """Each partition counts from 0 and keeps its own epoch table."""
    log = subject.log
    listener = Listener(log)
    for partition in range(4):
        log.append(partition, entries(partition + 1, 0, partition + 1, tag=partition))
    log.append(2, entries(7, 3, 2, tag=2))
    log.append(2, entries(7, 5, 1, tag=2) + entries(8, 6, 2, tag=2) + entries(9, 8, 1, tag=2))
    assert listener.wait({0: 1, 1: 2, 2: 9, 3: 4})
    assert [log.leo(partition) for partition in range(5)] == [1, 2, 9, 4, 0]
    assert log.epoch_table(2) == ((3, 0), (7, 3), (8, 6), (9, 8))
    assert log.epoch_table(4) == ()
    assert [entry.epoch for entry in log.read(2, 0, 9, 1 << 20)] == [3, 3, 3, 7, 7, 7, 8, 8, 9]


def test_entries_queued_together_are_committed_together(subject: Subject) -> None:
    """Inside `grouped` nothing is reported; at its end the entries of all partitions become durable in one group
    commit."""
    log = subject.log
    listener = Listener(log)
    before = log.stats().batches_written
    with log.grouped():
        for partition in range(3):
            log.append(partition, entries(1, 0, 1, size=20))
        assert listener.durable == {}
        assert log.leo(2) == 1
    assert listener.wait({0: 1, 1: 1, 2: 1})
    assert log.stats().batches_written == before + 1


def test_another_log_takes_the_runs_of_an_append_byte_for_byte(subject: Subject) -> None:
    """The runs of a batch name their partition, epoch and offsets, without gaps and with one epoch each. Another log
    that appends them has the same entries, ends and epochs, and reports them durable."""
    log = subject.log
    listener = Listener(log)
    batch = entries(1, 0, 9, size=90) + entries(2, 9, 3)
    runs = [*log.append(0, batch[:5]), *log.append(0, batch[5:]), *log.append(1, entries(4, 0, 1, tag=1))]
    at = {0: 0, 1: 0}
    for run in runs:
        assert run.base == at[run.partition]
        at[run.partition] += run.entry_count
        assert run.size_bytes == len(b"".join(run.buffers))
    assert at == {0: 12, 1: 1}
    assert {run.epoch for run in runs if run.base < 9 and run.partition == 0} == {1}
    assert log.append(0, []) == []
    for other in (MemoryLog(size_limit_bytes=10_000, capacity_bytes=1 << 30), open_log(MemoryDisk())):
        hearing = Listener(other)
        other.append_encoded([run._replace(buffers=(b"".join(run.buffers),)) for run in runs])
        assert (other.leo(0), other.leo(1), other.epoch_table(0)) == (12, 1, ((1, 0), (2, 9)))
        assert hearing.wait({0: 12, 1: 1})
        assert other.read(0, 0, 12, 1 << 20) == batch
        assert other.stats().entries_written == 13
        other.close()
    assert listener.wait({0: 12, 1: 1})


def test_encoded_runs_are_taken_like_entries(subject: Subject) -> None:
    """They continue the log, entries and truncations can follow them, and they are read back equal, also after the
    lengths of several runs."""
    donor = MemoryLog(size_limit_bytes=10_000, capacity_bytes=1 << 30)
    Listener(donor)
    first, second, third = entries(1, 0, 3), entries(1, 3, 4, size=200), entries(1, 7, 2)
    runs = [donor.append(0, batch) for batch in (first, second, third)]
    log = subject.log
    listener = Listener(log)
    log.append(0, first)
    log.append_encoded([*runs[1], *runs[2]])
    assert log.leo(0) == 9
    log.truncate(0, 8, 2)
    log.append(0, entries(2, 8, 2))
    assert listener.wait({0: 10})
    assert log.read(0, 0, 10, 1 << 20) == first + second + third[:1] + entries(2, 8, 2)
    assert log.epoch_table(0) == ((1, 0), (2, 8))


def test_encoded_runs_must_follow(subject: Subject) -> None:
    """A run that begins above or below the log's end is a bug of the caller, as for entries."""
    donor = MemoryLog(size_limit_bytes=10_000, capacity_bytes=1 << 30)
    Listener(donor)
    runs = [*donor.append(0, entries(1, 0, 2)), *donor.append(0, entries(1, 2, 1))]
    log = subject.log
    Listener(log)
    with pytest.raises(AssertionError):
        log.append_encoded(runs[1:])
    log.append_encoded(runs[:1])
    with pytest.raises(AssertionError):
        log.append_encoded(runs[:1])
    assert log.leo(0) == 2


def test_a_full_disk_refuses_encoded_runs(subject: Subject) -> None:
    """It raises OutOfStorage and appends nothing of any run."""
    donor = MemoryLog(size_limit_bytes=10_000, capacity_bytes=1 << 30)
    Listener(donor)
    runs = [*donor.append(0, entries(1, 0, 2, size=300)), *donor.append(1, entries(1, 0, 2, size=300))]
    log = subject.log
    Listener(log)
    log.append(2, entries(1, 0, 1))
    subject.set_free(0)
    log.refresh_free_space()
    wait_until(lambda: not log.has_space(1), "the disk is known to be full")
    with pytest.raises(OutOfStorage):
        log.append_encoded(runs)
    assert (log.leo(0), log.leo(1)) == (0, 0)


def test_truncation_drops_the_end_and_offsets_are_taken_again(subject: Subject) -> None:
    """After a truncation the dropped entries are gone, and new entries take their offsets."""
    log = subject.log
    listener = Listener(log)
    log.append(0, entries(1, 0, 4) + entries(2, 4, 3))
    log.append(1, entries(1, 0, 2, tag=1))
    log.truncate(0, 2, 3)
    assert (log.leo(0), log.epoch_table(0)) == (2, ((1, 0),))
    log.append(0, entries(3, 2, 2))
    log.truncate(0, 3, 4)
    log.append(0, entries(4, 3, 2))
    assert listener.wait({0: 5, 1: 2})
    assert log.epoch_table(0) == ((1, 0), (3, 2), (4, 3))
    assert log.read(0, 0, 9, 1 << 20) == entries(1, 0, 2) + entries(3, 2, 1) + entries(4, 3, 2)
    assert log.read(1, 0, 9, 1 << 20) == entries(1, 0, 2, tag=1)
    log.truncate(0, 0, 5)
    assert listener.wait({0: 0})
    assert (log.leo(0), log.epoch_table(0), log.read(0, 0, 4, 100)) == (0, (), [])


def test_truncation_to_the_end_is_reported_too(subject: Subject) -> None:
    """A truncation that drops nothing is still reported once it is durable."""
    log = subject.log
    listener = Listener(log)
    log.append(0, entries(1, 0, 2))
    assert listener.wait({0: 2})
    told = len(listener.reports)
    log.truncate(0, 2, 2)
    wait_until(lambda: len(listener.reports) > told, "the truncation is reported")
    assert listener.reports[-1] == {0: 2}
    log.append(0, entries(2, 2, 1))
    assert listener.wait({0: 3})
    assert log.read(0, 1, 3, 1 << 20) == entries(1, 1, 1) + entries(2, 2, 1)


def test_truncations_are_reported_in_order_with_appends(subject: Subject) -> None:
    """Each truncation has a report of its own for its partition. Entries appended before it were reported earlier, and
    the end in its own report counts entries appended after it."""
    log = subject.log
    listener = Listener(log)
    for round_ in range(20):
        log.append(0, entries(round_ + 1, 2 * round_, 5))
        log.append(1, entries(round_ + 1, round_, 1, tag=1))
        log.truncate(0, 2 * round_ + 3, round_ + 1)
        log.truncate(0, 2 * round_ + 2, round_ + 1)
    assert listener.wait({0: 40, 1: 20})
    ends = [(report.get(0), cut.get(0)) for report, cut in zip(listener.reports, listener.truncated, strict=True)]
    cuts = [cut for _, cut in ends if cut is not None]
    assert cuts == [offset for round_ in range(20) for offset in (2 * round_ + 3, 2 * round_ + 2)]
    assert all(1 not in cut for cut in listener.truncated)
    for (before, _), (end, cut) in pairwise([(end, cut) for end, cut in ends if end is not None]):
        if cut is not None:
            assert before is not None
            assert before >= cut, "a truncation was told before what it cut"
            assert end is not None
            assert end >= cut


def test_a_log_restarts_at_the_given_offset(subject: Subject) -> None:
    """R-FAR: a restart drops all entries of the partition, also those at higher offsets, and the log continues at the
    given offset. Other partitions are unchanged."""
    log = subject.log
    listener = Listener(log)
    other = entries(1, 0, 5)
    log.append(1, other)
    log.append(0, entries(1, 0, 30))
    for at, table in ((20, ((1, 0), (4, 12))), (90, ((4, 12), (7, 40))), (50, ((5, 50 - 9),))):
        log.restart(0, at, table)
        wait_until(lambda at=at: log.start_of(0) == at, "the log")
        assert (log.leo(0), log.epoch_table(0)[-1]) == (at, table[-1])
        assert log.read(0, at, at + 9, 1 << 20) == []
        more = entries(8, at, 4)
        log.append(0, more)
        wait_until(lambda at=at: len(log.read(0, at, at + 4, 1 << 20)) == 4, "the log")
        assert log.read(0, at, at + 4, 1 << 20) == more
        with pytest.raises(LookupError):
            log.read(0, at - 1, at + 4, 1 << 20)
    assert log.read(1, 0, 5, 1 << 20) == other
    assert [cut[0] for cut in listener.truncated if 0 in cut] == [20, 90, 50]


@pytest.mark.parametrize("at", [20, 90])
def test_a_new_beginning_survives_the_next_opening(at: int) -> None:
    """After reopening, the dropped entries stay dropped, no damage is reported, and the epoch table is the one given to
    `restart`."""
    disk = MemoryDisk()
    log = open_log(disk, size_limit_bytes=10_000)
    Listener(log)
    log.append(0, entries(1, 0, 30))
    log.restart(0, at, ((1, 0), (4, 12)))
    more = entries(8, at, 4)
    log.append(0, more)
    log.close()
    found = open_log(disk, size_limit_bytes=10_000).recovered()[0]
    assert (found.start, found.leo, found.epoch_table, found.damage) == (at, at + 4, ((4, 12), (8, at)), "")


def test_pins_keep_the_log_within_twice_its_size(subject: Subject) -> None:
    """Entries that a follower needs stay while the log is at most twice its size limit; above that they are trimmed."""
    log = subject.log
    Listener(log)
    log.append(0, entries(1, 0, 90, size=60))
    wait_until(lambda: log.read(0, 89, 90, 1 << 20) != [], "the log")
    log.trim({0: 85}, {0: 10})
    log.append(0, entries(1, 90, 300, size=60))
    wait_until(lambda: log.read(0, 389, 390, 1 << 20) != [], "the log")
    assert log.start_of(0) <= 10
    log.trim({0: 380}, {0: 10})
    wait_until(lambda: log.start_of(0) > 10, "the log")


def test_a_dropped_partition_log_keeps_no_file(subject: Subject) -> None:
    """Its entries go with their files although no floor passes them; its end stays known, and it takes no entry before
    it is restarted."""
    log = subject.log
    listener = Listener(log)
    log.append(1, entries(1, 0, 30, size=60))
    log.abandon(1)
    log.abandon(7)
    log.append(0, entries(1, 0, 90, size=60))
    assert listener.wait({0: 90, 1: 30})

    def small_enough() -> bool:
        log.trim({0: 90})
        return log.stats().size_bytes <= 10_000 and log.start_of(1) == 30

    wait_until(small_enough, "the log is trimmed")
    assert (log.leo(1), log.epoch_table(1)) == (30, ((1, 0),))
    log.restart(1, 12, ((1, 0), (4, 8)))
    log.append(1, entries(4, 12, 3))
    assert listener.wait({1: 15})
    assert log.read(1, 12, 15, 1 << 20) == entries(4, 12, 3)


def test_a_log_reports_that_it_is_above_its_limit(subject: Subject) -> None:
    """It reports nothing below the limit, and repeated reports while it grows above it."""
    log = subject.log
    told: list[int] = []
    listener = Listener(log, lambda: told.append(log.stats().size_bytes))
    for first in range(0, 300, 10):
        log.append(0, entries(1, first, 10, size=60))
        assert listener.wait({0: first + 10})
    assert len(told) > 5
    assert min(told) > 10_000


def test_an_empty_partition_can_be_truncated(subject: Subject) -> None:
    """A partition that the log holds nothing of is truncated to 0 like any other, as a new follower does."""
    log = subject.log
    listener = Listener(log)
    log.truncate(3, 0, 1)
    assert listener.wait({3: 0})
    assert (log.leo(3), log.epoch_table(3)) == (0, ())
    log.append(3, entries(1, 0, 1))
    assert listener.wait({3: 1})


def test_offsets_and_epochs_must_follow(subject: Subject) -> None:
    """A gap, a repeated offset, a falling epoch or a truncation above the end is a bug of the caller."""
    log = subject.log
    Listener(log)
    log.append(0, entries(2, 0, 2))
    for wrong in (entries(2, 3, 1), entries(2, 1, 1), entries(1, 2, 1), entries(2, 2, 1) + entries(2, 4, 1)):
        with pytest.raises(AssertionError):
            log.append(0, wrong)
    with pytest.raises(AssertionError):
        log.truncate(0, 3, 2)
    log.append(0, [])
    assert log.leo(0) == 2


def test_trimming_keeps_what_is_above_the_floors(subject: Subject) -> None:
    """Over its size the log drops entries below the floors only; below its start a read raises LookupError."""
    log = subject.log
    listener = Listener(log)
    log.append(1, entries(1, 0, 2, tag=1))
    for first in range(0, 120, 4):
        log.append(0, entries(1 + first // 40, first, 4, size=60))
        assert listener.wait({0: first + 4})
    size = log.stats().size_bytes
    assert size > 12_000
    log.trim({})

    def small_enough() -> bool:
        log.trim({0: 110, 1: 1})
        return log.stats().size_bytes <= 10_000

    wait_until(small_enough, "the log is trimmed")
    assert log.read(0, 110, 120, 1 << 20) == entries(3, 110, 10, size=60)
    assert log.read(1, 1, 2, 1 << 20) == entries(1, 1, 1, tag=1)
    with pytest.raises(LookupError):
        log.read(0, 0, 120, 1 << 20)
    assert log.leo(0) == 120
    assert log.epoch_table(0)[-1] == (3, 80)
    assert log.epoch_table(0)[0][1] <= 110
    log.append(0, entries(3, 120, 1))
    assert listener.wait({0: 121})


def test_a_log_within_its_size_is_not_trimmed(subject: Subject) -> None:
    """While the log is within its size limit, trimming changes nothing, so that slightly lagging followers can still
    read it."""
    log = subject.log
    listener = Listener(log)
    log.append(0, entries(1, 0, 5))
    assert listener.wait({0: 5})
    log.trim({0: 5})
    log.append(0, entries(1, 5, 1))
    assert listener.wait({0: 6})
    assert log.read(0, 0, 6, 1 << 20) == entries(1, 0, 6)


def test_a_disk_that_others_fill_is_noticed_without_a_write(subject: Subject) -> None:
    """`refresh_free_space` updates `has_space` shortly after, also if nothing was written for a long time. Frequent
    calls cost one check at a time."""
    log = subject.log
    listener = Listener(log)
    log.append(0, entries(1, 0, 2))
    assert listener.wait({0: 2})
    for free, room in ((0, False), (1 << 30, True)):
        subject.set_free(free)
        for _ in range(100):
            log.refresh_free_space()
        wait_until(lambda room=room: log.has_space(1) is room, "the space is noticed")
    assert not listener.failures


def test_a_full_disk_refuses_and_recovers(subject: Subject) -> None:
    """Without space appends raise OutOfStorage and change nothing, and reads continue; with space again appends
    succeed."""
    log = subject.log
    listener = Listener(log)
    log.append(0, entries(1, 0, 2))
    assert listener.wait({0: 2})
    assert log.has_space(100)
    subject.set_free(0)
    assert not log.has_space(1 << 50)  # starts a check of the free space

    def refused() -> bool:
        try:
            log.append(0, entries(1, log.leo(0), 1, size=40_000))
        except OutOfStorage:
            return True
        return False

    wait_until(lambda: not log.has_space(1), "the full disk is noticed")
    assert refused()
    leo = log.leo(0)
    assert log.read(0, 0, 2, 1 << 20) == entries(1, 0, 2)
    subject.set_free(1 << 30)
    wait_until(lambda: log.has_space(100), "the free space is noticed")
    log.append(0, entries(1, leo, 1))
    assert listener.wait({0: leo + 1})
    assert not listener.failures


def test_stats_count(subject: Subject) -> None:
    """Entries and batches are counted, and nothing is pending once all is durable."""
    log = subject.log
    listener = Listener(log)
    for offset in range(5):
        log.append(0, entries(1, offset, 1))
    assert listener.wait({0: 5})
    stats = log.stats()
    assert stats.entries_written == 5
    assert 1 <= stats.batches_written <= 5
    assert stats.size_bytes >= sum(len(entry.wire) for entry in entries(1, 0, 5))
    assert stats.file_count >= 1


def test_close_makes_everything_durable_and_may_be_repeated(subject: Subject) -> None:
    """`close` returns when all that was queued is durable and reported; then appends are refused."""
    log = subject.log
    listener = Listener(log)
    for offset in range(50):
        log.append(offset % 2, entries(1, offset // 2, 1, tag=offset % 2))
    log.close()
    assert listener.durable == {0: 25, 1: 25}
    log.close()
    with pytest.raises(LocalFault):
        log.append(0, entries(1, 25, 1))
    with pytest.raises(LocalFault):
        log.truncate(0, 0, 1)


def test_reads_from_other_threads_see_only_what_is_durable(subject: Subject) -> None:
    """While one thread appends, another reads a growing, gapless prefix, never more than is durable."""
    log = subject.log
    listener = Listener(log)
    total = 120
    wrong: list[object] = []

    def reads() -> None:
        seen = 0
        while seen < total:
            durable = listener.durable.get(0, 0)
            found = log.read(0, seen, total, 2000)
            if found != entries(1, seen, len(found)) or (durable > seen and not found):
                wrong.append((seen, found))
                return
            seen += len(found)

    reader = threading.Thread(target=reads)
    reader.start()
    for offset in range(0, total, 3):
        log.append(0, entries(1, offset, 3))
    reader.join(20)
    assert not reader.is_alive()
    assert not wrong


def test_writing_before_start_is_a_bug(subject: Subject) -> None:
    """An append without a listener fails an assertion."""
    with pytest.raises(AssertionError):
        subject.log.append(0, entries(1, 0, 1))
