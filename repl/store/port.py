"""Interface of the node's store.

One store holds the rows of all partitions of a node (docs/formats.md): objects, key rows, change rows, time marks,
cursors, and each partition's applied position. One writer calls `write` and `checkpoint`; reads come from any thread.
`repl.store.leveldb.LevelStore` implements it, and `tests.support.memory_store.MemoryStore` for tests; one contract
suite runs on both.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from isthmus.repl.model.entry import Entry
from isthmus.repl.model.errors import DamagedRow

REAPED: Final = b"\0reaped"
"""Name of the row, among the cursors, that holds the offset of the partition's last REAP entry; no queue has such a
name. State transfers include it with the cursors."""


class AppliedPosition(NamedTuple):
    """Applied position of a partition: all entries below `offset`, the last of them in `epoch`."""

    epoch: int
    offset: int


_NO_CURSORS: Final[Mapping[bytes, bytes]] = MappingProxyType({})


class PartitionStep(NamedTuple):
    """Changes of one apply step in one partition: entries in offset order, and soft cursors (queue -> encoded state).
    Either may be empty."""

    partition: int
    entries: Sequence[Entry]
    soft_cursors: Mapping[bytes, bytes] = _NO_CURSORS


class Change(NamedTuple):
    """A change row: the latest change of one key. `kind` is an EntryKind."""

    offset: int
    kind: int
    key_hash: int
    origin: bytes
    time_ms: int
    bucket: bytes
    key: bytes


class Cursor(NamedTuple):
    """A queue's cursor rows in one partition: `entry` is the payload of the last CURSOR entry
    (with its offset), `soft` the last soft state; either may be None."""

    entry_offset: int
    entry: bytes | None
    soft: bytes | None


ListedName = tuple[bytes, bytes | None]
"""(bucket, key) of a listing; a key of None is behind all keys of the bucket."""


class ListedKey(NamedTuple):
    """One row of a listing in key order."""

    bucket: bytes
    key: bytes
    row: bytes


Prepared = Any
"""A batch from `Store.prepare` for `Store.commit`; opaque to callers."""


class TransferMark(NamedTuple):
    """State of a transfer (docs/protocol.md R-FAR): the copy has the rows whose latest change is below `position`; the
    entry just below it is of `epoch` (0: unknown). `whole`: the rows are the effect of exactly all entries below."""

    position: int
    epoch: int
    whole: bool


class TransferChunk(NamedTuple):
    """Change rows [from, upto) of a snapshot, with their keys and objects, as bytes of `repl.store.row_codec`."""

    rows: bytes
    upto: int
    row_count: int


class StateChunk(NamedTuple):
    """Metadata rows in the order of names, up to `last`; `done`: there are no more."""

    rows: bytes
    last: bytes
    done: bool


class Snapshot(Protocol):
    """A snapshot of one partition's rows; used by one thread at a time, and closed before the store."""

    end: AppliedPosition
    """Its applied position."""

    def rows(self, from_offset: int, limit_bytes: int) -> TransferChunk:
        """The rows whose latest change is at `from_offset` or later, in that order: at least one, if any, then until
        `limit_bytes` are passed, or one is damaged; `upto` is `end.offset` when there are no more. Raises DamagedRow
        where the first one is damaged, DamagedChange where its change row cannot be decoded."""

    def damaged_changes(self, from_offset: int, limit: int) -> tuple[Mapping[int, bytes], int | None]:
        """The undecodable rows, by offset, among the first `limit` change rows at `from_offset` or later; and the
        offset behind these `limit` rows, None if there are no more."""

    def state(self, after: bytes, limit_bytes: int) -> StateChunk:
        """Cursors, soft cursors, request ids and time marks, behind the name `after`, in the same way."""

    def key_rows(self, from_segment: int, to_segment: int) -> Iterator[tuple[int, bytes, bytes, bytes]]:
        """(segment, bucket, key, encoded key row) for segments [from, to), in segment order. Close the iterator when
        done early."""

    def segments(self, ranges: Iterable[tuple[int, int]]) -> Generator[list[tuple[bytes, bytes]], None, None]:
        """For each range [from, to) of segments, none of which begins before the last one's end: its (name, encoded key
        row), in segment order, names as in `key_pages`. For few rows at many places. Close the generator when done
        early."""

    def object(self, bucket: bytes, key: bytes) -> bytes | None:
        """The canonical object bytes, or None."""

    def key_pages(
        self, start: bytes, to_segment: int, limit_rows: int, limit_bytes: int
    ) -> Generator[tuple[list[bytes], list[bytes]], None, None]:
        """(names, encoded key rows), page by page, in segment order; a name is the row's behind the partition: segment,
        bucket and its end, key (`rows`). From the name `start` to the end of the segments below `to_segment`; a page
        ends at `limit_rows`, or soon after `limit_bytes`. For who reads many: nothing is split or decoded. Close the
        generator when done early."""

    def named_key_row(self, name: bytes) -> bytes | None:
        """The encoded key row of such a name, or None."""

    def named_object(self, tail: bytes) -> bytes | None:
        """The canonical object bytes of such a name without its segment, or None."""

    def close(self) -> None:
        """Release the snapshot; idempotent."""


class DamagedChange(DamagedRow):
    """The change row at `offset` cannot be decoded. `before`: the sound rows that were read before it."""

    def __init__(self, sentence: str, offset: int, before: Sequence[Change] = ()) -> None:
        super().__init__(sentence)
        self.offset = offset
        self.before = before


class TransferStore(Protocol):
    """State transfers to and from this store. Calls for one partition come from one thread at a time, with no write of
    the partition under way. All raise LocalFault when the disk fails."""

    def marks(self) -> Mapping[int, TransferMark]:
        """Partition -> its mark, of partitions in a transfer."""

    def begin(self, partition: int, *, empty: bool) -> TransferMark:
        """Mark the partition, durably. With `empty`, or where rows may be missing (a replay is not finished), delete
        all of its rows, durably. The partition has no applied position until `finish`."""

    def install_rows(self, partition: int, chunk: bytes, upto: int, epoch: int) -> TransferMark:
        """Write the rows of a TransferChunk over existing ones, with the new mark, in one batch. Raises DamagedChunk
        for bytes that `row_codec` did not encode, and DamagedRow for an unreadable own row; then nothing is written."""

    def install_state(self, partition: int, chunk: bytes, *, first: bool) -> TransferMark:
        """Write the rows of a StateChunk; with `first` all earlier ones are deleted. Raises DamagedChunk."""

    def sync(self) -> None:
        """Make all installed rows durable."""

    def finish(self, partition: int, end: AppliedPosition) -> None:
        """End the transfer with the applied position `end`, durably."""

    def remove(self, partition: int) -> Iterator[int]:
        """Delete a partition with its mark and floor. Each step deletes some thousand rows and yields their number;
        after the last step the deletion is durable. Close the iterator when done early, and begin again after a crash.
        Nothing else of the partition is under way."""

    def snapshot(self, partition: int) -> Snapshot:
        """A snapshot of the partition's rows, which the caller closes."""

    def mend(self, partition: int, chunk: bytes, seen: bytes | None, upto: int) -> bool:
        """Write the rows of one key, the only ones of `chunk` (as `TransferChunk.rows`), over damaged ones; False when
        they are not what they should be any more, and nothing was written. `seen` is the damaged key row, None where
        there is none; `upto` the offset to which the copy was applied that the rows are from: a key whose row is still
        `seen` has not changed since, and one without a row only if this copy is no further. Between two writes of the
        partition (`Store.commit`), never during a transfer. Raises Corruption for a chunk of another shape."""

    def drop_change(self, partition: int, offset: int, seen: bytes) -> bool:
        """Delete a change row that cannot be decoded and to whose offset no key row of the partition points: the key
        has changed since, or is there no more. False when it is not `seen` any more, and nothing was deleted. Called as
        `mend` is."""


class Store(Protocol):
    """The node's store. A reader sees whole steps only."""

    before_floors: Callable[[], None]
    """Called by a checkpoint, in its thread, between taking the written positions and making them the floors: makes the
    log durable, which the floors depend on. May raise LocalFault."""

    @property
    def transfers(self) -> TransferStore:
        """State transfers: rows given to other nodes and taken from them."""

    def applied_offsets(self) -> Mapping[int, int]:
        """The applied offset of every partition that has rows here."""

    def applied(self, partition: int) -> AppliedPosition:
        """The applied position of the partition; AppliedPosition(0, 0) when nothing is applied."""

    def reach(self, partition: int) -> int:
        """Readers have seen entries below this offset only; sometimes a little above `applied`."""

    def durable_floor(self, partition: int) -> int:
        """Offset up to which the rows are known to be on disk (the last finished checkpoint)."""

    def needs_replay(self) -> bool:
        """True when the machine was restarted since the store was last open (boot id changed) without
        a clean stop: rows between floor and applied may be missing (docs/protocol.md H36), so replay
        starts at the floors and nothing may be served before it has passed `applied`."""

    def lacks_rows(self, partition: int) -> bool:
        """True while rows of this partition between its floor and the applied offset found at open may be missing: its
        own replay has not passed them. Others may still be below theirs."""

    def replay_finished(self) -> None:
        """Replay has passed every applied offset found at open: checkpoint, then note the boot id. Does nothing while
        some partition is below its own, such as one whose copy is not open yet."""

    def write(self, steps: Sequence[PartitionStep]) -> None:
        """Apply the steps in one LevelDB batch: `commit(prepare(steps))`. Raises LocalFault when the disk refuses."""

    def prepare(self, steps: Sequence[PartitionStep]) -> Prepared:
        """The batch that applies the steps. Each prepared batch must be committed, in order. Raises StorageShort, and
        the same may be prepared later."""

    def takes_at_once(self, prepared: Prepared) -> bool:
        """Whether `commit` would probably not block, so that the event loop may call it."""

    def commit(self, prepared: Prepared, *, patient: bool = True) -> None:
        """Write a prepared batch; readers see all of it or nothing. Raises LocalFault. While the store is short of
        something it waits. If not `patient` it waits for nothing, a thread that writes included, and raises
        StorageShort instead: the batch is then to be committed again before any other."""

    shortage: str
    """Why the last write waited, or waits, as a clause for operators; "" once it was written."""

    def checkpoint(self) -> None:
        """Note the applied offsets, call `before_floors`, sync the logs and the directory, persist the noted offsets as
        the durable floors. Runs beside `write` in the writer thread or between writes."""

    def compact_when_idle(self, *, idle: bool) -> None:
        """Give back memory for writing, since nothing was written for a while. `idle`: the node did nothing else
        either, so memory for reading is given back, too. Runs as `checkpoint` does."""

    def key_row(self, partition: int, key_hash: int, bucket: bytes, key: bytes) -> bytes | None:
        """The encoded key row, or None."""

    def object(self, partition: int, bucket: bytes, key: bytes) -> bytes | None:
        """The canonical object bytes, or None."""

    def changes(self, partition: int, from_offset: int, limit: int) -> list[Change]:
        """Up to `limit` change rows at offsets >= `from_offset`, in offset order. Raises DamagedChange at one that
        cannot be decoded, which has those before it."""

    def cursor(self, partition: int, queue: bytes) -> Cursor:
        """The queue's cursor rows in this partition."""

    def request_offset(self, partition: int, key_hash: int, request_id: bytes) -> int | None:
        """The offset of the entry by which the request `request_id` changed the key of that hash, if it is among the
        partition's last offsets (the store's request window); None otherwise. The entry is committed, and applied
        once the partition's applied offset is above it. From memory; never blocks."""

    def reaped_clocks(self, partition: int) -> Mapping[tuple[bytes, bytes], bytes]:
        """(bucket, key) -> encoded clock of its last tombstone, of the keys that the partition's last REAP entries
        removed (`repl.store.reaped_keys`), whatever was written since; applied or about to be. From memory; never
        blocks."""

    def offset_at(self, partition: int, time_ms: int) -> int:
        """The offset from which changes at or after `time_ms` (leader's wall clock) are found, by the time
        marks; 0 when before the first mark, the applied offset when after the last change."""

    def seconds_around(self, partition: int, offset: int) -> tuple[int | None, int | None]:
        """(second of the last time mark at or below `offset`, second of the first one at or above it), None where there
        is none. The entry at `offset`, if it is a write, was made in or after the first (before the next mark), by the
        leaders' clocks; what is above was made in or after the second, if the clocks only rose."""

    def list_keys(
        self, partition: int, bucket: bytes | None, after: ListedName | None, prefix: bytes = b""
    ) -> Iterator[ListedKey]:
        """Keys of a bucket (or all), in (bucket, key) order, tombstones included, from one snapshot; `after` resumes
        behind a name. With `prefix` only keys that begin with it; without a bucket, keys of such buckets. Close the
        iterator when done early."""

    def key_rows(
        self, partition: int, from_segment: int, to_segment: int
    ) -> Generator[tuple[int, bytes, bytes, bytes], None, None]:
        """(segment, bucket, key, encoded key row) for segments [from, to), in segment order, from
        one snapshot. Close the generator when done early."""

    def size_bytes(self) -> int:
        """Approximate size on disk."""

    def close(self) -> None:
        """Checkpoint and close; idempotent. Blocks."""
