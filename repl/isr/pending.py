"""A conditional write whose fate is not known: kept, and repeated, until the record's version has moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from repl.model.record import Member, PartitionRecord

WRITE_REPEAT_MS: Final = 200
"""Pause before a write that came back undecided is repeated: long enough not to flood a metastore that is
electing its own leader, short against a session (seconds)."""

WRITE_ANSWER_MS: Final = 2_000
"""A write without any answer for this long is repeated, too: the answer may have been lost on its way here.
Far above a healthy round trip (about 10 ms); a needless repeat is refused by its version."""


@dataclass(slots=True)
class PendingWrite:
    """A conditional write that is not decided. It is repeated verbatim until the record's version has moved,
    whatever the answers say (R-AMBIG, H14). `needs` are the members whose registration it depends on; `adds` whom this
    write, or a refused one before it on the same version, may have added to the ISR (R-MAX)."""

    record: PartitionRecord
    repeat_at_ms: int
    needs: tuple[Member, ...] = ()
    adds: frozenset[Member] = frozenset()

    @property
    def base_version(self) -> int:
        """The version on which the write is conditional."""
        return self.record.version
