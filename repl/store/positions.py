"""Positions of each partition in the store: prepared, written, applied, durable. Pure.

Four positions a partition, each at or behind the one before it:

    next      where the next entry must begin; moves when a batch is prepared
    written   the end of the database's rows; moves when the batch is written
    floor     the end of the rows known to be durable; moves when a checkpoint has finished
    applied   the position that readers and the applied row show; equal to written except in a replay

After a restart of the machine the applied row may be above missing rows (docs/protocol.md H36). Then the partition
*replays*: next and written start again at the floor, the applied row stays as found, and the entries below it are
written once more, in order, until they have reached it:

    trusted -> replaying   at open, when the boot id changed without a clean stop and floor < applied
    replaying -> trusted   when a prepared batch reaches the applied offset found

No file or clock is read here; `repl.store.leveldb` and `tests.support.memory_store` hold one table each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from isthmus.repl.model.errors import Corruption
from isthmus.repl.store.port import AppliedPosition
from isthmus.repl.store.rows import START, StoredPosition


class End(NamedTuple):
    """A partition's position behind a prepared batch; `moves_applied` is False below a replay's end."""

    partition: int
    position: StoredPosition
    moves_applied: bool


class PositionTable:
    """The positions of all partitions of one store.

    `prepared` belongs to the thread that prepares, `wrote` to the one that writes; any thread may call the others,
    which read or replace whole values.
    """

    def __init__(
        self, found: Mapping[int, StoredPosition], floors: Mapping[int, StoredPosition], *, trusted: bool
    ) -> None:
        """`found` are the applied rows, `floors` the last checkpoint's; without `trusted`, partitions whose floor
        is below what was found replay. Raises Corruption when a floor is above what was found."""
        for partition, floor in floors.items():
            if found.get(partition, START).offset < floor.offset:
                raise Corruption(
                    f"partition {partition} is on disk up to offset {floor.offset} but applied only to "
                    f"{found.get(partition, START).offset}"
                )
        self._applied = dict(found)
        self._floors = dict(floors)
        self._replaying: dict[int, StoredPosition] = {}
        self._next = dict(found)
        if not trusted:
            for partition, position in found.items():
                floor = floors.get(partition, START)
                if floor.offset < position.offset:
                    self._replaying[partition] = position
                    self._next[partition] = floor
        self._written = dict(self._next)
        self.replayed_ranges = [(p, self._next[p].offset, found.offset) for p, found in self._replaying.items()]
        """(partition, from, to) of the replayed offsets."""

    def next(self, partition: int) -> StoredPosition:
        """Where the partition's next entry must begin."""
        return self._next.get(partition, START)

    def replaying(self) -> bool:
        """True while some partition is below the applied offset found at open."""
        return bool(self._replaying)

    def prepared(self, partition: int, first_offset: int, end: StoredPosition) -> End:
        """A batch with the partition's entries [first_offset, end.offset) was prepared.

        They follow the last ones, also in a replay (asserted): otherwise a partition would hold older rows than its
        floor promises. Epochs do not fall."""
        start = self.next(partition)
        assert first_offset == start.offset, (partition, first_offset, start)
        assert end.epoch >= start.epoch, (partition, end, start)
        found = self._replaying.get(partition)
        moves_applied = found is None or end.offset >= found.offset
        if found is not None and moves_applied:
            del self._replaying[partition]
        self._next[partition] = end
        return End(partition, end, moves_applied)

    def positions_of(self, partitions: Iterable[int]) -> dict[int, tuple[StoredPosition | None, StoredPosition | None]]:
        """What `prepared` may change of these partitions, for `take_back`."""
        return {partition: (self._next.get(partition), self._replaying.get(partition)) for partition in partitions}

    def take_back(self, before: Mapping[int, tuple[StoredPosition | None, StoredPosition | None]]) -> None:
        """The batches that were prepared since `positions_of` will not be written."""
        for partition, found in before.items():
            for positions, position in zip((self._next, self._replaying), found, strict=True):
                if position is None:
                    positions.pop(partition, None)
                else:
                    positions[partition] = position

    def wrote(self, ends: Iterable[End]) -> None:
        """The batch of these ends is in the database."""
        for partition, position, moves_applied in ends:
            self._written[partition] = position
            if moves_applied:
                self._applied[partition] = position

    def written(self) -> dict[int, StoredPosition]:
        """The written positions, which a checkpoint takes before it syncs."""
        return dict(self._written)

    def checkpointed(self, noted: Mapping[int, StoredPosition]) -> None:
        """A checkpoint that began with these positions has finished."""
        self._floors = dict(noted)

    def is_replaying(self, partition: int) -> bool:
        """True while rows of this partition may be missing."""
        return partition in self._replaying

    def replayed(self, partition: int) -> StoredPosition | None:
        """The written position of the partition's replay; None without one. From any thread: the batch that ends the
        replay may be prepared and not written yet."""
        applied = self._applied.get(partition, START)
        written = self._written.get(partition, START)
        return written if written.offset < applied.offset else None

    def forget(self, partition: int) -> None:
        """Drop a partition whose rows are no longer the effect of a range of entries."""
        for positions in (self._next, self._written, self._applied, self._replaying, self._floors):
            positions.pop(partition, None)

    def install(self, partition: int, position: StoredPosition) -> None:
        """Set all positions: the rows are the effect of exactly all entries below `position`."""
        self._next[partition] = self._written[partition] = self._applied[partition] = position

    def applied(self, partition: int) -> AppliedPosition:
        """The position in the applied row."""
        epoch, offset, _ = self._applied.get(partition, START)
        return AppliedPosition(epoch, offset)

    def applied_offsets(self) -> dict[int, int]:
        """The applied offset of every partition that has an applied row."""
        return {partition: position.offset for partition, position in dict(self._applied).items()}

    def newest_mark_s(self, partition: int) -> int:
        """Second of the partition's newest written time mark, or NO_MARK."""
        return self._written.get(partition, START).newest_mark_s

    def floor(self, partition: int) -> int:
        """The offset up to which rows are known to be durable."""
        return self._floors.get(partition, START).offset
