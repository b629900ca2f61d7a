"""The follower: agrees with the leader on a common prefix, drops what contradicts it, and appends what it receives.

    asks       sends FollowRequests until the leader of this epoch answers with the nonce of the last one
    follows    its log is a prefix of the leader's: appends AppendEntries, and acknowledges them once durable
    transfers  store rows arrive instead of entries (`state_transfer.py`); then it asks again

A broken connection, an AppendEntries that contradicts the log, or a rejection leads back to asking. State and rules;
`replica.py` makes the transitions with the record. The rule names (R-TRUNC) are defined in docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from isthmus.repl.isr import state_transfer
from isthmus.repl.isr.effects import BeginTransfer, Effects, NewLogIdentity, Persist, ReplicaRole, Truncate
from isthmus.repl.isr.epochs import cut, epoch_at, last_epoch, with_entries
from isthmus.repl.isr.membership import guard, too_few_in_sync
from isthmus.repl.isr.messages import (
    AppendAck,
    AppendEntries,
    AppendRejected,
    FollowAccepted,
    FollowRejected,
    FollowRejection,
    FollowRequest,
)
from isthmus.repl.isr.replica_state import ReplicaState, StateTransfer
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.record import PartitionRecord

REQUEST_REPEAT_MS: Final = 500
"""Interval between two unanswered FollowRequests. A connection that comes back triggers one at once (LinkUp), so this
only matters where a message was lost or the leader did not lead yet."""

REJECTED_REPEAT_MS: Final = 10_000
"""Pause after a leader rejected this log's id: another id must be registered first."""

TRANSFER_REPEAT_MS: Final = 5_000
"""A chunk of rows is requested again after this long: it may be lost, or the leader may have applied less than this
copy. Long against a chunk (1 MB) in a shared lane; a broken connection triggers a request at once."""

SILENT_MS: Final = 5_000
"""A copy outside the ISR sends a new FollowRequest after this long without a message of its leader: the leader may have
seen their connection break, and this side not (R-HEARD). Long against the time it takes to join the ISR."""


@dataclass(slots=True)
class Follower:
    """A follower of `leader` in `epoch`; `following` while the leader accepts it.

    `seq`: greatest number of a handled AppendEntries. `leader_hw`, `leader_leo`: the greatest ends received.
    `in_sync`: the last AppendEntries named this node in the ISR. `waits`: why it does not follow, "code: sentence".
    """

    role: ClassVar[ReplicaRole] = ReplicaRole.FOLLOWER

    epoch: int
    leader: str
    nonce: int = 0
    request_at_ms: int = 0
    following: bool = False
    seq: int = 0
    leader_hw: int = 0
    leader_leo: int = 0
    in_sync: bool = True
    being_added: bool = False
    """The record's reassignment adds this copy."""
    outside_isr: bool = False
    """The record does not name this copy in the ISR."""
    contact_ms: int = 0
    """Time of its last request, of the leader's last entries, or since when it is outside the ISR."""
    waits: str = ""
    rows_unfounded: bool = False
    """The store has rows of entries that neither this log nor the leader's holds."""
    stream_from: int | None = None
    """Entries from this offset to the log's end came by the stream after the last AppendEntries, and the stream alone
    acknowledges them; None: there are none. After an AppendEntries the follower acknowledges by itself, too, since the
    leader may have ended the join under which the entries came."""
    diverged: str = ""
    """Why this copy must not be changed any more: it holds committed entries that its leader lacks."""

    def send_request(self, state: ReplicaState, effects: Effects, now_ms: int) -> None:
        """Send a FollowRequest with a new nonce, which invalidates answers to older ones (R-NONCE).

        A copy under transfer, or one whose log ends below what is applied, requests rows instead."""
        progress = state.progress
        self.following = False
        self.stream_from = None
        self.nonce = state.next_nonce()
        self.request_at_ms = now_ms + REQUEST_REPEAT_MS
        self.contact_ms = now_ms
        self.outside_isr = state.member not in state.known_record.isr
        transfer = state.transfer
        if transfer is None and state.store_end is not None and self.rows_unfounded:
            self._replace_rows(state, effects, now_ms)
        elif transfer is None and progress.applied > progress.leo:
            self._begin_transfer(state, effects, "its log ends below what its store has applied")
        elif transfer is None:
            request = FollowRequest(
                self.epoch,
                state.member.log_id,
                self.nonce,
                progress.leo,
                progress.durable,
                state.epoch_table,
                state.transfer_rounds,
            )
            effects.send(self.leader, request)
        elif not transfer.busy:
            self.request_at_ms = now_ms + TRANSFER_REPEAT_MS
            effects.send(self.leader, state_transfer.next_request(state, self.epoch, self.nonce))

    def _begin_transfer(self, state: ReplicaState, effects: Effects, reason: str, *, empty: bool = False) -> None:
        """Mark this copy as under transfer, unless a truncation of its log is in progress."""
        if not state.pending_truncations:
            state.transfer = StateTransfer(state.progress.applied, 0, whole=False, busy=True)
            effects.append(BeginTransfer(empty, reason, again=state.transfer_rounds > 0))

    def _has_unfounded_rows(self, state: ReplicaState) -> bool:
        """True when the store has rows of entries that this leader never had, or has lost.

        Applied entries were committed, so a leader without them was forced (R-FORCE). While too few members are in
        sync the copy stays, so that writes go on."""
        if state.store_end is None or too_few_in_sync(state.known_record):
            return False
        _, end = state.store_end
        return self.leader_leo < end or (state.progress.leo >= end and state.store_beyond_log)

    def _replace_rows(self, state: ReplicaState, effects: Effects, now_ms: int) -> None:
        """Replace all rows with the leader's; an electable member takes another log id first (R-FAR)."""
        self.waits = f"asking: has rows of entries that {self.leader} does not have, and takes its rows instead"
        self.request_at_ms = now_ms + REJECTED_REPEAT_MS
        if state.member in guard(state.known_record):
            effects.append(NewLogIdentity("its store has rows of entries that are in no log"))
        else:
            reason = f"its store has rows of entries that {self.leader} does not have"
            self._begin_transfer(state, effects, reason, empty=True)

    def continues_under(self, record: PartitionRecord, state: ReplicaState, effects: Effects, now_ms: int) -> bool:
        """True when `record` still assigns this copy to this leader in this epoch.

        A copy that the record adds again was removed before, by a record that was not seen here. Its leader has dropped
        it, so it sends a new FollowRequest."""
        node = state.member.node
        led_elsewhere = record.leader is None or record.leader.node != self.leader
        if record.epoch != self.epoch or led_elsewhere or node not in record.replicas:
            return False
        outside_isr = state.member not in record.isr
        if outside_isr and not self.outside_isr:
            self.contact_ms = now_ms
        self.outside_isr = outside_isr
        added_again = node in record.adding and not self.being_added
        self.being_added = node in record.adding
        if added_again and self.following:
            self.send_request(state, effects, now_ms)
        return True

    def deadline_ms(self) -> int | None:
        """When `tick` is due."""
        if not self.following:
            return self.request_at_ms
        return self.contact_ms + SILENT_MS if self.outside_isr else None

    def tick(self, state: ReplicaState, effects: Effects, now_ms: int) -> None:
        """Ask again when the answer is late, or the leader is silent though this copy should catch up."""
        due_ms = self.deadline_ms()
        if due_ms is not None and due_ms <= now_ms:
            self.send_request(state, effects, now_ms)

    def link_down(self, state: ReplicaState, now_ms: int) -> None:
        """Stop following, and ask again in a while: messages in flight may be lost."""
        if self.following:
            self.following = False
            self.stream_from = None
            self.nonce = state.next_nonce()  # invalidates late copies of the answer
            self.request_at_ms = now_ms + REQUEST_REPEAT_MS
            self.waits = f"reconnecting: the connection to {self.leader} broke"

    def on_follow_accepted(self, message: FollowAccepted, state: ReplicaState, effects: Effects) -> None:
        """Truncate the log to the common prefix, and follow.

        Committed entries are never dropped: a leader that lacks them is wrong, and this copy has diverged (R-TRUNC,
        I-TRUNC-SAFE)."""
        if self.following or state.transfer is not None or message.nonce != self.nonce:
            return
        progress, common = state.progress, message.common
        if common > progress.leo:
            return
        least = max(progress.hw, progress.applied, state.log_start)
        if common < least:
            self.diverged = (
                f"committed-divergence: {self.leader} agrees with this log only below {common}, but all below {least} "
                "is committed here; nothing is dropped, an operator must compare the copies"
            )
            return
        if common < progress.leo:
            progress.truncated(common)
            state.epoch_table = cut(state.epoch_table, common)
            state.pending_truncations += 1
            effects.append(Truncate(common, self.epoch))
        self.following = True
        state.transfer_rounds = 0
        self.waits = ""
        self.seq = 0
        self.leader_hw = max(self.leader_hw, message.hw)
        self.leader_leo = max(self.leader_leo, message.leo)
        effects.apply(self.advance(state))
        self.acknowledge(state, effects)

    def on_follow_rejected(self, message: FollowRejected, state: ReplicaState, effects: Effects, now_ms: int) -> None:
        """Act on the leader's reason: take another log id, request rows, or stop as diverged."""
        if self.following or message.nonce != self.nonce:
            return
        transfer = state.transfer
        match message.refusal:
            case FollowRejection.REGRESSED:
                self.waits = (
                    f"regressed: {self.leader} has acknowledgements for more than this log holds; it takes another gen"
                )
                self.request_at_ms = now_ms + REJECTED_REPEAT_MS
                state.log_regressed = True
                effects.append(NewLogIdentity(f"{self.leader} was acknowledged more than this log holds"))
            case FollowRejection.BEYOND_LOG if transfer is None:
                self._begin_transfer(state, effects, state_transfer.why_rows(self.leader, state))
            case FollowRejection.AHEAD if transfer is not None and not transfer.busy:
                transfer.busy = True
                effects.append(BeginTransfer(True, state_transfer.why_from_nothing(self.leader), again=True))
            case FollowRejection.DIVERGED if transfer is not None:
                self.diverged = (
                    f"committed-divergence: {self.leader} contradicts what is applied here, below "
                    f"{transfer.position}; nothing is changed, an operator must compare the copies"
                )
            case _:
                pass

    def on_append_entries(self, message: AppendEntries, state: ReplicaState, effects: Effects, now_ms: int) -> None:
        """Append the new entries of a message; answer one that does not fit the log's end (R-FENCE)."""
        if not self.following:
            return
        self.contact_ms = now_ms
        if state.store_end is not None and self._has_unfounded_rows(state):
            self.rows_unfounded = True
            self.send_request(state, effects, now_ms)
            return
        progress, start = state.progress, message.start
        if message.version > state.known_record.version:
            state.refresh_record(effects, now_ms)
        if start > progress.leo:
            effects.send(self.leader, AppendRejected(self.epoch, state.member.log_id, message.seq, progress.leo))
            return
        known = min(progress.leo - start, len(message.entries))
        fits = start == 0 or epoch_at(state.epoch_table, start - 1) == message.before
        if not fits or any(epoch_at(state.epoch_table, e.offset) != e.epoch for e in message.entries[:known]):
            self.waits = f"asking: a message of {self.leader} contradicts this log"
            self.send_request(state, effects, now_ms)
            return
        self.stream_from = None  # the leader may have ended the join
        fresh = message.entries[known:] if known else message.entries
        if message.seq >= self.seq:
            self.seq, self.in_sync = message.seq, state.member.node in message.isr
        self.leader_hw = max(self.leader_hw, message.hw)
        self.leader_leo = max(self.leader_leo, message.leo)
        if not fresh:
            effects.apply(self.advance(state))
            self.acknowledge(state, effects)
            if start == progress.leo < message.leo:
                self.waits = f"asking: {self.leader} has more and cannot send on from {start}"
                self.send_request(state, effects, now_ms)
            return
        if fresh[-1].epoch != last_epoch(state.epoch_table):
            if not _epochs_rise(last_epoch(state.epoch_table), fresh, self.epoch):
                return
            state.epoch_table = with_entries(state.epoch_table, fresh)
        progress.leo += len(fresh)
        effects.append(Persist(fresh))
        effects.apply(self.advance(state))

    def on_stream_run(self, epoch: int, start: int, count: int, state: ReplicaState, now_ms: int) -> bool:
        """Take a run of the stream at the log's end; False when it does not fit, or something else comes first
        (R-STREAM)."""
        progress = state.progress
        if not self.following or epoch != self.epoch or start != progress.leo or not count:
            return False
        if epoch != last_epoch(state.epoch_table) or state.store_end is not None or state.transfer is not None:
            return False
        self.contact_ms = now_ms
        if self.stream_from is None:
            self.stream_from = start
        progress.leo += count
        if progress.leo > self.leader_leo:
            self.leader_leo = progress.leo
        return True

    def learn_commit(self, end: int, state: ReplicaState) -> int:
        """All below `end` is committed, as the stream announced; returns the end below which entries are to be applied
        now, 0 for none."""
        if end > self.leader_hw:
            self.leader_hw = end
        return self.advance(state)

    def reason(self, state: ReplicaState) -> str:
        """How it follows, for people: "code: sentence".

        Beyond the near horizon the leader serves it as far as its log reaches, which may end."""
        if not self.following:
            return self.waits or f"asking: has asked {self.leader} where the logs agree"
        behind = max(0, self.leader_leo - state.progress.leo)
        near = state.options.max_near_sync_message_lag
        if behind > near:
            return (
                f"catches-up: {behind} entries behind {self.leader}, more than replication.max.near.sync.message.lag "
                f"({near}): served as far as its log reaches"
            )
        if not self.in_sync:
            return f"catches-up: {behind} entries behind {self.leader}, not in sync yet"
        return f"follows: {self.leader} in epoch {self.epoch}"

    def persisted(self, before: int, state: ReplicaState, effects: Effects) -> None:
        """Apply newly durable entries that the leader reported as committed, and acknowledge them, unless the stream
        does. `before`: the durable end until now."""
        effects.apply(self.advance(state))
        if self.following and (self.stream_from is None or before < self.stream_from):
            self.acknowledge(state, effects)

    def acknowledge(self, state: ReplicaState, effects: Effects) -> None:
        """Send the log's ends to the leader; only while following, when the log is a prefix of the leader's."""
        progress = state.progress
        ack = AppendAck(self.epoch, state.member.log_id, self.seq, progress.leo, progress.durable, progress.hw)
        effects.send(self.leader, ack)

    def advance(self, state: ReplicaState) -> int:
        """Commit what is durable and reported as committed; returns the end below which entries are to be applied now,
        0 for none."""
        return state.commit(min(self.leader_hw, state.progress.durable)) if self.following else 0


def _epochs_rise(last: int, entries: tuple[Entry, ...], most: int) -> bool:
    """True when the entries' epochs do not fall below `last` or each other, nor rise above `most`."""
    for entry in entries:
        if not last <= entry.epoch <= most:
            return False
        last = entry.epoch
    return True
