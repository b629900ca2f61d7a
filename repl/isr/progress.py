"""How far one replica's log is appended, durable, committed and applied.

Four offsets, each the first that is not yet so: `applied <= hw <= durable <= leo`. Only `Replica` moves them,
each by one event. `hw` and `applied` never fall; a follower's `leo` and `durable` fall when it drops what
contradicts its leader, and never below `hw`.
"""

from __future__ import annotations

from dataclasses import dataclass

from repl.model.entry import Entry


@dataclass(slots=True)
class Progress:
    """`leo`: first free offset. `durable`: first that a power loss may take. `hw`: first not known to be
    committed. `applied`: first that is not in the store.

    `applied` above `leo` is a log that lost entries; such a replica has a new gen and is never elected.
    """

    leo: int
    durable: int
    hw: int
    applied: int

    def follows(self, epoch: int, entries: tuple[Entry, ...]) -> bool:
        """True when `entries` were made in `epoch` for exactly the place where the log ends (first and last
        are looked at; the log asserts the rest)."""
        first, last = entries[0], entries[-1]
        return (
            first.offset == self.leo
            and last.offset == self.leo + len(entries) - 1
            and first.epoch == epoch
            and last.epoch == epoch
        )

    def persisted(self, end: int) -> None:
        """Entries below `end` are durable."""
        assert end <= self.leo, f"durable up to {end}, but the log ends at {self.leo}"
        if end > self.durable:
            self.durable = end

    def truncated(self, to_offset: int) -> None:
        """The log ends at `to_offset`; nothing that is committed goes."""
        assert max(self.hw, self.applied) <= to_offset <= self.leo
        self.leo = to_offset
        self.durable = min(self.durable, to_offset)

    def applied_to(self, end: int) -> None:
        """Entries below `end` are applied."""
        assert end <= self.hw, f"applied up to {end}, but committed only up to {self.hw}"
        if end > self.applied:
            self.applied = end
