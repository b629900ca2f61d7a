"""Entries about tombstones: a REAP removes one, a restatement writes it once more, a recall one that was removed.

`repl.coordinator.tombstone_reaper` and `repl.coordinator.tombstone_recall` decide when; both append what is made here.
"""

from __future__ import annotations

from isthmus.repl.coordinator.reads import another_actor
from isthmus.repl.coordinator.write_batch import CurrentVersion, WriteBatch, WriteLimits
from isthmus.repl.model.entry import EntryKind, KeyRow
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import TOMBSTONE, Object, Summary, encode_with_summary, written
from isthmus.repl.model.properties import PropertySource
from isthmus.repl.model.vclock import increment, of_partition, pack_counter
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.store.reaped_pushes import reap_entry


class ReapBatch:
    """Entries about tombstones: REAP removes one, a restatement writes it once more, a recall one that was removed."""

    def __init__(self, batch: WriteBatch) -> None:
        """The entries are added to `batch`."""
        self.batch = batch

    def reap(self, key: Key, hash64: int, offset: int) -> bool:
        """Remove the tombstone that was written at `offset`; False if it is no longer the key's current version."""
        row, batch = self._tombstone(key, hash64, offset), self.batch
        if row is None:
            return False
        batch.add(reap_entry(batch.header(), batch.cluster_uuid, key, hash64, offset, Summary(*row[:-1])))
        return True

    def restate(self, key: Key, hash64: int, offset: int, *, leaving: bool = False) -> bool:
        """Write the tombstone once more as a change of this cluster, so that every queue offers it; False as in `reap`.

        It gets a dot of this partition if it has none: a cluster whose dot it has stores it no more once it is reaped
        there, so that tombstones do not circulate in a mesh."""
        row, batch = self._tombstone(key, hash64, offset), self.batch
        if row is None:
            return False
        current, actor = CurrentVersion(row, None), batch.partition.actor
        obj = batch.read_object(current, key)
        if not of_partition(obj.clock, batch.partition.actor_prefix):
            clock = increment(obj.clock, actor, pack_counter(batch.epoch, batch.next_offset), batch.now_ms // 1000)
            obj = Object(clock, obj.siblings)
        encoded, summary = encode_with_summary(obj)
        kind = EntryKind.LEAVING if leaving else EntryKind.DATA
        batch.add_object(key, hash64, current, encoded, summary, batch.cluster_uuid, b"", kind)
        return True

    def recall(self, key: Key, hash64: int) -> bool:
        """Write the tombstone of a reaped key once more, under its remembered clock and a dot of this partition.

        Every queue offers it then: another cluster still holds a value that it had seen. False if the key is here, or
        its clock is forgotten. Raises TooLarge."""
        batch = self.batch
        if batch.current(hash64, key.bucket, key.key) is not None:
            return False
        last = batch.reaped_clock((key.bucket, key.key))
        if not last:
            return False
        properties = batch.properties.of(key.bucket)
        dot = (batch.partition.actor, pack_counter(batch.epoch, batch.next_offset))
        obj = written(Object(last, ()), last, TOMBSTONE, dot, batch.now_ms, properties)
        encoded, summary = encode_with_summary(obj)
        kind = EntryKind.LEAVING if properties.repl_reap else EntryKind.DATA
        batch.add_object(key, hash64, None, encoded, summary, batch.cluster_uuid, b"", kind)
        return True

    def _tombstone(self, key: Key, hash64: int, offset: int) -> KeyRow | None:
        """The key's row, if it is the tombstone written at `offset`, and applied."""
        current = self.batch.current(hash64, key.bucket, key.key)
        if current is None or current.pending is not None:
            return None
        return current.row if current.row.tombstone and current.row.offset == offset else None


class TombstoneWrites:
    """Makes batches of such entries for partitions that this node leads, and appends them."""

    def __init__(self, runtime: Runtime, limits: WriteLimits, properties: PropertySource) -> None:
        self._runtime = runtime
        self._limits = limits
        self.properties = properties

    def batch(self, partition: Partition) -> ReapBatch:
        """An empty batch for a partition."""
        runtime = self._runtime
        kind = self.properties.of_type(partition.bucket_type)
        now_ms = runtime.time.wall_ms()
        return ReapBatch(WriteBatch(partition, runtime.store, runtime.cluster_uuid, self._limits, kind, now_ms, {}))

    def append(self, partition: Partition, batch: WriteBatch) -> None:
        """Append the entries. Raises Retryable when nothing was appended."""
        if not batch.entries:
            return
        if partition.overtaken_actor == partition.actor:
            raise another_actor(partition)  # a tombstone, too, would claim to have seen what was lost
        refused = self._runtime.append(partition, batch.entries, self._runtime.time.now_ms())
        if refused is not None:
            raise refused
        partition.unapplied.add_pending_rows(batch.new_rows)
