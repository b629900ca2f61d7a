"""The state of one replica that does not depend on its role: log offsets, record, session, state transfer.

`Replica` owns one `ReplicaState` and passes it to the rules of its role (`leader.py`, `follower.py`, `candidate.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from isthmus.repl.isr.effects import Apply, Effects, RefreshRecord
from isthmus.repl.isr.epochs import EpochTable, epoch_at
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord

REFRESH_PAUSE_MS: Final = 200
"""Minimum interval between two RefreshRecord effects: messages of another epoch arrive in bursts."""


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """The protocol's settings, shared by all replicas of a node; `config/settings.py` documents each.

    `window_entries` limits how many entries are appended and not applied.
    """

    window_entries: int = 10_000
    max_time_lag_ms: int = 3_000
    max_record_lag: int = 10_000
    max_near_sync_message_lag: int = 20_000
    min_transfer_rounds: int = 2


@dataclass(slots=True)
class LogProgress:
    """How far the log is appended, durable, committed and applied: `applied <= hw <= durable <= leo`.

    `leo`: first free offset. `durable`: first offset that a power loss may take. `hw` (high watermark): first offset
    not known to be committed. `applied`: first offset that is not in the store.

    `hw` and `applied` never fall. `leo` and `durable` of a follower fall when it truncates its log, but never below
    `hw`. `applied` above `leo` means that the log lost entries; such a replica has a new log id and is never elected.
    """

    leo: int
    durable: int
    hw: int
    applied: int

    def follows(self, epoch: int, entries: tuple[Entry, ...]) -> bool:
        """True when `entries` are of `epoch` and continue the log at its end.

        Only the first and last entry are checked; the log asserts the rest."""
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
        """The log ends at `to_offset`; no committed entry is dropped."""
        assert max(self.hw, self.applied) <= to_offset <= self.leo
        self.leo = to_offset
        self.durable = min(self.durable, to_offset)

    def applied_to(self, end: int) -> None:
        """Entries below `end` are applied."""
        assert end <= self.hw, f"applied up to {end}, but committed only up to {self.hw}"
        if end > self.applied:
            self.applied = end


@dataclass(slots=True)
class StateTransfer:
    """A copy under state transfer (docs/protocol.md R-FAR): it has the rows below `position`.

    `busy` while the runtime works on a chunk. `epoch`, `whole`, `end` and `after`: see TransferRequest. `since`: nonce
    of the first request for the awaited chunk. `round_end`: end of the current round, 0 before its first chunk.
    """

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
    """Everything a replica knows in any role.

    `highest_epoch` is the highest epoch received, `epoch_owner` its leader or candidate (None while unknown);
    `epoch_seen` is the highest epoch that is durable here.
    """

    partition: int
    member: Member
    progress: LogProgress
    epoch_table: EpochTable
    log_start: int
    options: ReplicaOptions
    epoch_seen: int
    highest_epoch: int
    nonce: int
    epoch_owner: Incarnation | None = None
    record: PartitionRecord | None = None
    session_id: int | None = None
    pending_truncations: int = 0
    """Truncate effects without an answer; until the last one is answered, reports of durability mean the old log."""
    transfer: StateTransfer | None = None
    transfer_rounds: int = 0
    """Transfer rounds finished since this copy last followed from the log."""
    store_end: tuple[int, int] | None = None
    """(epoch, end) up to which the recovered store had applied, while its rows must be replayed up to there (H36)."""
    log_regressed: bool = False
    """The log holds less than it acknowledged, according to its leader, and its new log id is not registered yet."""
    disk_full: bool = False
    """The disk does not take a barrier, so that this replica cannot lead (docs/protocol.md H38)."""
    reached: frozenset[str] = frozenset()
    """Nodes with which a connection is open that this node dialled, as far as the runtime has said (R-REACHED)."""
    stream_nodes: set[str] = field(default_factory=set)
    """Nodes to which a stream is open (`pair_stream.py`)."""
    _refreshed_at_ms: int = -REFRESH_PAUSE_MS
    _reapplied: bool = False

    @property
    def known_record(self) -> PartitionRecord:
        """The record; only for roles that have one."""
        assert self.record is not None
        return self.record

    @property
    def incarnation(self) -> Incarnation | None:
        """This process as records name it; None without a session."""
        return None if self.session_id is None else Incarnation(self.member.node, self.session_id)

    def next_nonce(self) -> int:
        """Return a nonce that this node never used before."""
        self.nonce += 1
        return self.nonce

    def take_log_id(self, log_id: int) -> None:
        """Use another log id from now on: acknowledgements under the old one no longer count."""
        self.member, self.log_regressed = Member(self.member.node, log_id), False

    def commit(self, end: int) -> int:
        """Commit all entries below `end`, which must be applied then; returns `end`, or 0 when it is not above the high
        watermark."""
        progress = self.progress
        if end <= progress.hw:
            return 0
        progress.hw = end
        return end

    def reapply_committed(self, effects: Effects) -> None:
        """Once per process: apply the entries that recovery found committed; no leader has to confirm these."""
        if not self._reapplied and self.transfer is None and self.progress.applied < self.progress.hw:
            effects.append(Apply(self.progress.hw))
        self._reapplied = True

    def applied_to(self, end: int) -> None:
        """All below `end` is applied; forget `store_end` once the log's own entries cover it."""
        self.progress.applied_to(end)
        if self.store_end is not None and not self.replaying and not self.store_beyond_log:
            self.store_end = None

    @property
    def replaying(self) -> bool:
        """True while the store may lack rows of entries that it had applied before the restart."""
        return self.store_end is not None and self.progress.applied < self.store_end[1]

    @property
    def store_beyond_log(self) -> bool:
        """True while the store has rows of entries that this log lost in a power failure (H36)."""
        if self.store_end is None:
            return False
        epoch, end = self.store_end
        return end > self.progress.leo or epoch_at(self.epoch_table, end - 1) != epoch

    def refresh_record(self, effects: Effects, now_ms: int) -> None:
        """Request a read of the record, since a newer one exists."""
        if now_ms - self._refreshed_at_ms >= REFRESH_PAUSE_MS:
            self._refreshed_at_ms = now_ms
            effects.append(RefreshRecord())
