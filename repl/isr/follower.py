"""The follower: shakes hands with the leader of its epoch, drops what contradicts it, appends what it sends.

    asks       FollowRequest goes out, again and again, until the leader of this epoch answers with this FollowRequest's
               nonce
    follows    the log is a prefix of the leader's: AppendEntries are appended, and acknowledged once durable
    is far     rows of the leader's store come instead of entries (`state_transfer.py`); then it asks again

A broken connection, an AppendEntries that contradicts the log, or a refusal leads back to asking. State and decisions;
`replica.py` makes it and takes it away, with the record. Rules that are cited by name stand in docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from isthmus.repl.isr import state_transfer
from isthmus.repl.isr.effects import BeginTransfer, NewLogIdentity, Persist, ReplicaRole, Send, Truncate
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

HELLO_REPEAT_MS: Final = 500
"""Pause between two Hellos without an answer. A connection that comes back is told at once (LinkUp), so this only
matters where a message was lost or the leader was not yet leading."""

REFUSED_REPEAT_MS: Final = 10_000
"""Pause after a leader that refused this log's gen: another one has to be registered first."""

FAR_REPEAT_MS: Final = 5_000
"""A chunk of rows that did not come for this long is asked for again: it may be lost, or the leader is not as far as
this copy yet. Long against a chunk (1 MB) in a lane that is shared; a broken connection is told at once."""


SILENT_MS: Final = 5_000
"""A copy that the record does not count in sync, and that has heard nothing from its leader for so long, asks anew: the
leader may have seen their connection break, and this side not (R-HEARD). Long against what it takes to be counted."""


@dataclass(slots=True)
class Follower:
    """It follows `leader` in `epoch`. `seq` is the greatest AppendEntries that was handled, `leader_hw` and
    `leader_leo` the greatest ends that were heard, `in_sync` whether the leader last counted this node among the ISR;
    `waits` says why it does not follow, in "code: sentence"."""

    role: ClassVar[ReplicaRole] = ReplicaRole.FOLLOWER

    epoch: int
    leader: str
    nonce: int = 0
    hello_at_ms: int = 0
    following: bool = False
    seq: int = 0
    leader_hw: int = 0
    leader_leo: int = 0
    in_sync: bool = True
    added: bool = False
    """The record is adding this copy."""
    outside: bool = False
    """The record does not count it in sync."""
    heard_ms: int = 0
    """When it last asked, heard of its leader, or came to stand outside."""
    waits: str = ""
    baseless: bool = False
    """Rows here are of entries that neither this log nor its leader's holds."""
    diverged: str = ""
    """Why this copy must not be touched any more: it holds something committed that its leader does not."""

    def ask(self, standing: ReplicaState, now_ms: int) -> None:
        """Send a FollowRequest with a new nonce: answers to older ones count no more (R-NONCE). A copy that is far, or
        whose log ends below what is applied, asks for rows."""
        progress = standing.progress
        self.following = False
        self.nonce = standing.next_nonce()
        self.hello_at_ms = now_ms + HELLO_REPEAT_MS
        self.heard_ms = now_ms
        self.outside = standing.member not in standing.known.isr
        if standing.far is None and standing.found is not None and self.baseless:
            self._give_up_rows(standing, now_ms)
        elif standing.far is None and progress.applied > progress.leo:
            self._go_far(standing, "its log ends below what its store has applied")
        elif standing.far is None:
            hello = FollowRequest(
                self.epoch,
                standing.member.gen,
                self.nonce,
                progress.leo,
                progress.durable,
                standing.table,
                standing.far_rounds,
            )
            standing.effects.append(Send(self.leader, hello))
        elif not standing.far.busy:
            self.hello_at_ms = now_ms + FAR_REPEAT_MS
            standing.effects.append(Send(self.leader, state_transfer.ask(standing, self.epoch, self.nonce)))

    def _go_far(self, standing: ReplicaState, reason: str, *, empty: bool = False) -> None:
        """Have this copy marked as far, unless something of its log is still on its way."""
        if not standing.truncating:
            standing.far = StateTransfer(standing.progress.applied, 0, whole=False, busy=True)
            standing.effects.append(BeginTransfer(empty, reason, again=standing.far_rounds > 0))

    def _is_baseless(self, standing: ReplicaState) -> bool:
        """Whether the store has rows of entries that this leader never had, or has lost, too. What was applied was
        committed: a leader without that very entry was forced (R-FORCE). While too few are in sync it stays, for
        writes."""
        if standing.found is None or too_few_in_sync(standing.known):
            return False
        _, end = standing.found
        return self.leader_leo < end or (standing.progress.leo >= end and standing.unfounded)

    def _give_up_rows(self, standing: ReplicaState, now_ms: int) -> None:
        """Begin anew with the leader's rows; who may be elected first takes another gen (R-FAR)."""
        self.waits = f"asking: has rows of entries that {self.leader} does not have, and takes its rows instead"
        self.hello_at_ms = now_ms + REFUSED_REPEAT_MS
        if standing.member in guard(standing.known):
            standing.effects.append(NewLogIdentity("its store has rows of entries that are in no log"))
        else:
            self._go_far(standing, f"its store has rows of entries that {self.leader} does not have", empty=True)

    def named(self, record: PartitionRecord, standing: ReplicaState, now_ms: int) -> bool:
        """Whether `record` wants it to follow this leader still. A copy that is being added anew was removed before,
        though that record was not seen here, and its leader has forgotten it: it asks to follow."""
        node = standing.member.node
        led_elsewhere = record.leader is None or record.leader.node != self.leader
        if record.epoch != self.epoch or led_elsewhere or node not in record.replicas:
            return False
        outside = standing.member not in record.isr
        if outside and not self.outside:
            self.heard_ms = now_ms
        self.outside = outside
        anew = node in record.adding and not self.added
        self.added = node in record.adding
        if anew and self.following:
            self.ask(standing, now_ms)
        return True

    def deadline_ms(self) -> int | None:
        """When `tick` is due."""
        if not self.following:
            return self.hello_at_ms
        return self.heard_ms + SILENT_MS if self.outside else None

    def tick(self, standing: ReplicaState, now_ms: int) -> None:
        """Ask again when the answer is late, or the leader silent though it should catch up."""
        due_ms = self.deadline_ms()
        if due_ms is not None and due_ms <= now_ms:
            self.ask(standing, now_ms)

    def link(self, up: bool, standing: ReplicaState, now_ms: int) -> None:
        """The connection with the leader came or went: what was under way may be lost."""
        if up:
            self.ask(standing, now_ms)
        elif self.following:
            self.following = False
            self.nonce = standing.next_nonce()  # a late copy of the answer that was taken counts no more
            self.hello_at_ms = now_ms + HELLO_REPEAT_MS
            self.waits = f"reconnecting: the connection to {self.leader} broke"

    def accepted(self, message: FollowAccepted, standing: ReplicaState) -> None:
        """The leader takes this replica: drop what contradicts it, and follow. What is committed is never dropped: a
        leader that does not have it is not to be believed (R-TRUNC, I-TRUNC-SAFE)."""
        if self.following or standing.far is not None or message.nonce != self.nonce:
            return
        progress, common = standing.progress, message.common
        if common > progress.leo:
            return
        least = max(progress.hw, progress.applied, standing.log_start)
        if common < least:
            self.diverged = (
                f"committed-divergence: {self.leader} agrees with this log only below {common}, but all below {least} "
                "is committed here; nothing is dropped, an operator must compare the copies"
            )
            return
        if common < progress.leo:
            progress.truncated(common)
            standing.table = cut(standing.table, common)
            standing.truncating += 1
            standing.effects.append(Truncate(common, self.epoch))
        self.following = True
        standing.far_rounds = 0
        self.waits = ""
        self.seq = 0
        self.leader_hw = max(self.leader_hw, message.hw)
        self.leader_leo = max(self.leader_leo, message.leo)
        self._advance(standing)
        self.acknowledge(standing)

    def refused(self, message: FollowRejected, standing: ReplicaState, now_ms: int) -> None:
        """The leader does not take it now; say why, and ask again later."""
        if self.following or message.nonce != self.nonce:
            return
        match message.refusal:
            case FollowRejection.REGRESSED:
                self.waits = f"regressed: {self.leader} was told of more than this log holds; it takes another gen"
                self.hello_at_ms = now_ms + REFUSED_REPEAT_MS
                standing.doubted = True
                standing.effects.append(NewLogIdentity(f"{self.leader} was acknowledged more than this log holds"))
            case FollowRejection.BEYOND_LOG if standing.far is None:
                self._go_far(standing, state_transfer.why_rows(self.leader, standing))
            case FollowRejection.AHEAD if standing.far is not None and not standing.far.busy:
                standing.far.busy = True
                standing.effects.append(BeginTransfer(True, state_transfer.why_from_nothing(self.leader), again=True))
            case FollowRejection.DIVERGED if standing.far is not None:
                self.diverged = (
                    f"committed-divergence: {self.leader} contradicts what is applied here, below "
                    f"{standing.far.position}; nothing is changed, an operator must compare the copies"
                )
            case _:
                pass

    def take(self, message: AppendEntries, standing: ReplicaState, now_ms: int) -> None:
        """Append what is new of it; anything that does not fit the log's end is answered, not stored (R-FENCE)."""
        if not self.following:
            return
        self.heard_ms = now_ms
        if standing.found is not None and self._is_baseless(standing):
            self.baseless = True
            self.ask(standing, now_ms)
            return
        progress, start = standing.progress, message.start
        if message.version > standing.known.version:
            standing.hint(now_ms)
        if start > progress.leo:
            nack = AppendRejected(self.epoch, standing.member.gen, message.seq, progress.leo)
            standing.effects.append(Send(self.leader, nack))
            return
        known = min(progress.leo - start, len(message.entries))
        fits = start == 0 or epoch_at(standing.table, start - 1) == message.before
        if not fits or any(epoch_at(standing.table, e.offset) != e.epoch for e in message.entries[:known]):
            self.waits = f"asking: a message of {self.leader} contradicts this log"
            self.ask(standing, now_ms)
            return
        fresh = message.entries[known:] if known else message.entries
        if message.seq >= self.seq:
            self.seq, self.in_sync = message.seq, standing.member.node in message.isr
        self.leader_hw = max(self.leader_hw, message.hw)
        self.leader_leo = max(self.leader_leo, message.leo)
        if not fresh:
            self._advance(standing)
            self.acknowledge(standing)
            if start == progress.leo < message.leo:
                self.waits = f"asking: {self.leader} has more and cannot send on from {start}"
                self.ask(standing, now_ms)
            return
        if fresh[-1].epoch != last_epoch(standing.table):
            if not _epochs_rise(last_epoch(standing.table), fresh, self.epoch):
                return
            standing.table = with_entries(standing.table, fresh)
        progress.leo += len(fresh)
        standing.effects.append(Persist(fresh))
        self._advance(standing)

    def state(self, standing: ReplicaState) -> str:
        """How it follows, for people: "code: sentence". Beyond the near horizon it is served as far as the leader's log
        reaches, and that may end."""
        if not self.following:
            return self.waits or f"asking: has asked {self.leader} where the logs agree"
        behind = max(0, self.leader_leo - standing.progress.leo)
        near = standing.options.max_near_sync_message_lag
        if behind > near:
            return (
                f"catches-up: {behind} entries behind {self.leader}, more than replication.max.near.sync.message.lag "
                f"({near}): served as far as its log reaches"
            )
        if not self.in_sync:
            return f"catches-up: {behind} entries behind {self.leader}, not in sync yet"
        return f"follows: {self.leader} in epoch {self.epoch}"

    def persisted(self, standing: ReplicaState) -> None:
        """More of the log is durable: tell the leader, and apply what it said is committed."""
        self._advance(standing)
        if self.following:
            self.acknowledge(standing)

    def acknowledge(self, standing: ReplicaState) -> None:
        """Tell the leader how far this log is. Only a log that follows is known to be a prefix of the leader's."""
        progress = standing.progress
        ack = AppendAck(self.epoch, standing.member.gen, self.seq, progress.leo, progress.durable, progress.hw)
        standing.effects.append(Send(self.leader, ack))

    def _advance(self, standing: ReplicaState) -> None:
        if self.following:
            standing.commit(min(self.leader_hw, standing.progress.durable))


def _epochs_rise(last: int, entries: tuple[Entry, ...], most: int) -> bool:
    """True when the entries' epochs do not fall, from `last` up to `most`: what a leader of epoch `most` may send."""
    for entry in entries:
        if not last <= entry.epoch <= most:
            return False
        last = entry.epoch
    return True
