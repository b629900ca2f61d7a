"""A proposal about tombstones that may go: they are removed, or written once more. Who decides is `repl.reaping`."""

from __future__ import annotations

from repl.model.entry import EntryKind, KeyRow
from repl.model.keys import Key
from repl.model.objects import Object, Summary, seal
from repl.model.vclock import counter_of, increment, pack_counter
from repl.proposal import Current, Proposal
from repl.reaped_pushes import reap_entry


class ReapProposal(Proposal):
    """See the module's text."""

    def reap(self, key: Key, hash64: int, offset: int) -> bool:
        """Remove the tombstone that the key has had since `offset`; False when that is not what it has any more."""
        current = self._tombstone(key, hash64, offset)
        if current is None:
            return False
        self._take(reap_entry(self._stamp(), self._own, key, hash64, offset, Summary(*current[:-1])))
        return True

    def restate(self, key: Key, hash64: int, offset: int, *, leaving: bool = False) -> bool:
        """Write that tombstone once more as a change of ours, so that every queue offers it; False as in `reap`. It
        gets a dot of ours if it has none: whose dot it has takes it no more once it is reaped there, so that tombstones
        do not go round in a mesh."""
        row = self._tombstone(key, hash64, offset)
        if row is None:
            return False
        current, actor = Current(row, None), self._partition.actor
        obj = self._object(current, key)
        if not counter_of(obj.clock, actor):
            clock = increment(obj.clock, actor, pack_counter(self._epoch, self._next), self._now_ms // 1000)
            obj = Object(clock, obj.siblings)
        encoded, summary = seal(obj)
        kind = EntryKind.LEAVING if leaving else EntryKind.DATA
        self._append(key, hash64, current, encoded, summary, self._own, b"", kind)
        return True

    def _tombstone(self, key: Key, hash64: int, offset: int) -> KeyRow | None:
        """The key's row, if it is the tombstone of that offset, and applied."""
        current = self._current(hash64, key.bucket, key.key)
        if current is None or current.pending is not None:
            return None
        return current.row if current.row.tombstone and current.row.offset == offset else None
