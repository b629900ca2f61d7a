"""What one replica knows whatever its role: its log's ends, its record, its session.

One object, shared by the roles' rooms (`follower.py`, `leader.py`, `candidate.py`) and owned by `replica.py`, which
alone changes roles. Effects are put into `effects` in the order in which they are to be carried out.

How far one replica's log is appended, durable, committed and applied.

Four offsets, each the first that is not yet so: `applied <= hw <= durable <= leo`. Only `Replica` moves them,
each by one event. `hw` and `applied` never fall; a follower's `leo` and `durable` fall when it drops what
contradicts its leader, and never below `hw`.

The core's numbers that an operator may set, with their defaults; `config/settings.py` says what each is for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from isthmus.repl.isr.effects import Apply, Effect, RefreshRecord
from isthmus.repl.isr.epochs import EpochTable, epoch_at
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord


@dataclass(slots=True)
class LogProgress:
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


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """Of all replicas of a node. `window_entries` bounds what is appended and not applied."""

    window_entries: int = 10_000
    max_time_lag_ms: int = 3_000
    max_record_lag: int = 10_000
    max_near_sync_message_lag: int = 20_000
    far_min_transfer_rounds: int = 2


HINT_PAUSE_MS = 200
"""Least time between two hints to read the record: messages of another epoch come in swarms."""


@dataclass(slots=True)
class StateTransfer:
    """A copy that is far (docs/protocol.md R-FAR): it has the rows below `position`; `busy` while its shell is at work.
    `end` and `after`: see TransferRequest. `since`: the nonce of the first question for what is awaited now.
    `round_end`: where the round ends, 0 before anything came."""

    position: int
    epoch: int
    whole: bool
    busy: bool = False
    end: int = 0
    after: bytes = b""
    since: int = 0
    round_end: int = 0


@dataclass(slots=True)
class ReplicaState:
    """`epoch_wanted` is the highest epoch heard of, `epoch_owner` who leads or stands in it, None while that is not
    known; `epoch_seen` is the highest that is durable here. `truncating`
    counts Truncate effects that are not answered: reports of durability are about the log as it was until then."""

    partition: int
    member: Member
    progress: LogProgress
    table: EpochTable
    log_start: int
    options: ReplicaOptions
    epoch_seen: int
    epoch_wanted: int
    nonce: int
    epoch_owner: Incarnation | None = None
    record: PartitionRecord | None = None
    inc: int | None = None
    truncating: int = 0
    far: StateTransfer | None = None
    far_rounds: int = 0
    """Transfer rounds that were finished since this copy last followed."""
    found: tuple[int, int] | None = None
    """(epoch, end) of what the store was found to have applied, where its rows must be replayed up to there (H36)."""
    effects: list[Effect] = field(default_factory=list)
    doubted: bool = False
    """This log holds less than it acknowledged, as its leader said, and the metastore has no other gen for it yet."""
    _hinted_at_ms: int = -HINT_PAUSE_MS
    _replayed: bool = False

    @property
    def known(self) -> PartitionRecord:
        """The record, where the role says that there is one."""
        assert self.record is not None
        return self.record

    @property
    def me(self) -> Incarnation | None:
        """Who this process is to the metastore."""
        return None if self.inc is None else Incarnation(self.member.node, self.inc)

    def next_nonce(self) -> int:
        """A nonce that was never used by this node."""
        self.nonce += 1
        return self.nonce

    def renewed(self, gen: int) -> None:
        """This copy goes by another gen from now on: nobody counts on what it acknowledged before."""
        self.member, self.doubted = Member(self.member.node, gen), False

    def commit(self, end: int) -> None:
        """All below `end` is committed: apply it. No news is no effect."""
        if end > self.progress.hw:
            self.progress.hw = end
            self.effects.append(Apply(end))

    def replay(self) -> None:
        """What was committed when this process found it needs nobody's word to be applied: ask for it, once."""
        if not self._replayed and self.far is None and self.progress.applied < self.progress.hw:
            self.effects.append(Apply(self.progress.hw))
        self._replayed = True

    def applied_to(self, end: int) -> None:
        """All below `end` is applied; what was found to be is of no account any more once the log's own entries are."""
        self.progress.applied_to(end)
        if self.found is not None and not self.replays and not self.unfounded:
            self.found = None

    @property
    def replays(self) -> bool:
        """The store is not through with what it was found to have applied: rows of it may be missing."""
        return self.found is not None and self.progress.applied < self.found[1]

    @property
    def unfounded(self) -> bool:
        """The store has rows of entries that this log does not hold: a power loss took these (H36)."""
        if self.found is None:
            return False
        epoch, end = self.found
        return end > self.progress.leo or epoch_at(self.table, end - 1) != epoch

    def hint(self, now_ms: int) -> None:
        """Somebody knows a newer record."""
        if now_ms - self._hinted_at_ms >= HINT_PAUSE_MS:
            self._hinted_at_ms = now_ms
            self.effects.append(RefreshRecord())
