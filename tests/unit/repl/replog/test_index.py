"""The index against a model that records, entry by entry, the position of its newest copy."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.replog import index as index_module
from isthmus.repl.replog.index import LogIndex, PartitionIndex
from tests.support.log_history import Listener, entries, open_log
from tests.support.memory_disk import MemoryDisk
from tests.support.samples import share

STRIDE = 40


@settings(max_examples=share(150), deadline=None)
@given(st.data())
def test_the_index_leads_to_the_newest_copy_of_every_entry(data: st.DataObject) -> None:
    """After any appends, truncations, trims and copies, each entry is looked for in its file, not far before it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "INDEX_STRIDE_BYTES", STRIDE)
        index = PartitionIndex()
        where: dict[int, tuple[int, int, bool]] = {}
        sequence, position, epoch = 1, 100, 1
        for _ in range(data.draw(st.integers(1, 25))):
            position += data.draw(st.integers(1, 60))
            match data.draw(st.sampled_from(["add", "add", "add", "truncate", "trim", "copy", "file"])):
                case "file":
                    sequence, position = sequence + 1, 100
                case "add":
                    count = data.draw(st.integers(1, 4))
                    index.add(sequence, position, epoch, index.leo, count)
                    where |= dict.fromkeys(range(index.leo - count, index.leo), (sequence, position, False))
                case "truncate":
                    to_offset = data.draw(st.integers(index.start, index.leo))
                    epoch += 1
                    index.truncate(to_offset)
                    where = {offset: place for offset, place in where.items() if offset < to_offset}
                case "trim":
                    index.trim(data.draw(st.integers(index.start, index.leo)))
                    where = {offset: place for offset, place in where.items() if offset >= index.start}
                case "copy":
                    first = data.draw(st.integers(max(0, index.start - 2), index.leo))
                    end = data.draw(st.integers(first, index.leo + 2))
                    index.copy(sequence, position, first, end)
                    where |= {offset: (sequence, position, True) for offset in where if first <= offset < end}
        assert sorted(where) == list(range(index.start, index.leo))
        assert index.first_gap() == index.leo
        ends = [extent.end for extent in index.extents]
        assert [extent.first for extent in index.extents] == [index.start, *ends[:-1]][: len(ends)]
        for offset, (at_sequence, at_position, copied) in where.items():
            place = index.locate(offset)
            assert (place.sequence, place.copied) == (at_sequence, copied)
            assert place.position <= at_position < place.position + STRIDE
            assert offset < place.end
        for number in range(1, sequence + 1):
            held = {offset for first, end in index.spans_in(number) for offset in range(first, end)}
            assert held == {offset for offset, place in where.items() if place[0] == number}


def test_the_index_is_small_whatever_the_number_of_entries() -> None:
    """Ten thousand small batches in one file take positions by the stride of bytes, not by the batch."""
    index = LogIndex().partition(3)
    for batch in range(10_000):
        index.add(1, 100 + 200 * batch, 1, batch, 1)
    (extent,) = index.extents
    assert len(extent._positions) <= 200 * 10_000 // index_module.INDEX_STRIDE_BYTES + 1


def test_reading_across_many_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are found from noted positions in between, not only from the first of a file."""
    monkeypatch.setattr(index_module, "INDEX_STRIDE_BYTES", 300)
    log = open_log(MemoryDisk(), file_bytes=1 << 20)
    listener = Listener(log)
    for offset in range(60):
        log.append(offset % 2, entries(1, offset // 2, 1, tag=offset % 2))
        assert listener.wait({offset % 2: offset // 2 + 1})
    assert len(log._index.partitions[0].extents[0]._positions) > 5
    for partition in (0, 1):
        for first in range(30):
            assert log.read(partition, first, first + 2, 1 << 20) == entries(
                1, first, min(2, 30 - first), tag=partition
            )
    log.close()
