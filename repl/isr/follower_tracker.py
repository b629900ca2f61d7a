"""A leader's view of one follower's progress, and what to send it next (etcd: tracker.Progress).

After its FollowRequest, a follower receives entries from where the logs agree. While it keeps up, entries go out as
they are appended (the live lane). While it catches up, batches wait for acknowledgements (the catch-up lane). Entries
that stay unacknowledged are sent again, since messages may be lost. A follower that has everything receives nothing.
`leader.py` decides who is in sync.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from isthmus.repl.isr.effects import Effects, Replicate
from isthmus.repl.isr.epochs import epoch_at
from isthmus.repl.isr.messages import AppendAck, AppendEntries, AppendRejected
from isthmus.repl.isr.replica_state import ReplicaState
from isthmus.repl.model.record import Member

LIVE_ENTRIES: Final = 1_024
"""Limit of entries in one AppendEntries of the live lane: bounds one turn of the follower's loop (about 10 ms)."""

LIVE_AHEAD: Final = 8_192
"""Limit of entries in flight to a follower in the live lane. With more it would not be keeping up; the window bounds
its whole backlog."""

CATCH_UP_ENTRIES: Final = 256
"""Limit of entries in one AppendEntries of the catch-up lane, which usually come from the log's files."""

CATCH_UP_AHEAD: Final = 2 * CATCH_UP_ENTRIES
"""Limit of entries in flight in the catch-up lane: one batch travels while the follower writes the one before."""

RESEND_MS: Final = 2_000
"""Unacknowledged entries are sent again after this long without progress. Longer than a slow sync: a standing
connection loses nothing, and a broken one is reported at once and ends in a new FollowRequest."""

ANNOUNCE_MS: Final = 100
"""Delay before a moved high watermark is sent alone: the next entries of a busy leader carry it for free."""


class FollowerStatus(NamedTuple):
    """A follower as its leader sees it: reported offsets, membership of the confirmed ISR, and whether messages reach
    it as far as is known."""

    node: str
    log_id: int
    leo: int
    durable: int
    hw: int
    in_sync: bool
    linked: bool


@dataclass(slots=True)
class FollowerProgress:
    """One follower in this epoch.

    `next`: first offset that was not sent. `leo`, `hw`: as reported (hw -1: not yet). `seq`: number of the last
    AppendEntries sent, `acked_seq`: of the last one that the follower handled. `sent_hw`: the high watermark in the
    last AppendEntries. `rewound_seq`: an AppendRejected up to this number was acted on.
    """

    member: Member
    next: int
    leo: int
    hw: int = -1
    seq: int = 0
    acked_seq: int = 0
    sent_hw: int = 0
    rewound_seq: int = 0
    linked: bool = True
    resend_at_ms: int | None = None
    """When to send something that no event triggers."""
    join: int = 0
    """Under this id the follower takes the stream to its node; 0: it does not, and gets AppendEntries."""
    join_from: int = 0
    """It may join (again) once it has all entries below this offset."""
    held: bool = False
    """The stream does not announce commits of this partition: AppendEntries do."""

    def on_append_ack(self, ack: AppendAck, state: ReplicaState, now_ms: int) -> None:
        """Record an AppendAck; of several out of order, the one with the greatest `seq` counts."""
        self.linked = True
        self.hw = max(self.hw, ack.hw)
        if ack.seq < self.acked_seq:
            return
        self.acked_seq = ack.seq
        if self.join:
            self.leo = max(self.leo, ack.leo)
            return
        self.leo = ack.leo
        self.next = max(self.next, ack.leo)
        if ack.seq >= self.seq and ack.leo < self.next:
            self.next = ack.leo  # the follower handled all messages, and some entries were missing
        self._schedule(state, ack.durable, now_ms)

    def _schedule(self, state: ReplicaState, durable: int, now_ms: int) -> None:
        progress = state.progress
        if durable >= progress.leo and self.hw >= progress.hw:
            self.resend_at_ms = None
        elif durable >= progress.leo and self.sent_hw < progress.hw:
            self.schedule_hw(now_ms)
        else:
            self.resend_at_ms = now_ms + RESEND_MS

    def on_append_rejected(self, rejected: AppendRejected) -> None:
        """Go back to the end of the follower's log, once for all messages in flight."""
        self.linked = True
        if rejected.seq > self.rewound_seq:
            self.rewound_seq = self.seq
            self.next = self.leo = min(self.next, rejected.leo)

    # -- the stream -----------------------------------------------------------------------------

    def joins(self, state: ReplicaState, start: int, first: int) -> bool:
        """True when new entries from `start` on may go into the stream: the follower joins it, or has joined.

        It was sent everything below, and has acknowledged `first` (the barrier) and what it lacked when it left."""
        if self.join:
            return self.next == start and start - self.leo < LIVE_AHEAD
        if not self.linked or self.next != start or self.leo < self.join_from or self.leo <= first:
            return False
        self.join = state.next_nonce()
        self.held = False
        self.resend_at_ms = None
        return True

    def leave(self, leo: int, now_ms: int) -> None:
        """Leave the stream: what was not acknowledged is sent again by AppendEntries."""
        if self.join:
            self.join = 0
            self.join_from = leo
            self.next = min(self.next, self.leo)
            self.resend_at_ms = now_ms

    def stream_durable(self, end: int) -> None:
        """The follower has all entries below `end`, which came by the stream."""
        self.linked = True
        if end > self.leo:
            self.leo = end

    def schedule_hw(self, now_ms: int) -> None:
        """Schedule the moved high watermark, in case no entries carry it before."""
        soon = now_ms + ANNOUNCE_MS
        if self.resend_at_ms is None or self.resend_at_ms > soon:
            self.resend_at_ms = soon

    def send_entries(self, state: ReplicaState, effects: Effects, epoch: int, in_sync: bool, now_ms: int) -> None:
        """Send missing entries, as far as the lane's limits and the log allow."""
        leo = state.progress.leo
        while self.linked and state.log_start <= self.next < leo:
            live = in_sync or leo - self.next <= LIVE_ENTRIES
            ahead, most = (LIVE_AHEAD, LIVE_ENTRIES) if live else (CATCH_UP_AHEAD, CATCH_UP_ENTRIES)
            if self.next - self.leo >= ahead:
                return
            self._send(state, effects, epoch, min(leo, self.next + most), live, now_ms)

    def resend(self, state: ReplicaState, effects: Effects, epoch: int, in_sync: bool, now_ms: int) -> None:
        """Send again from the reported end, or the high watermark alone.

        Without any acknowledgement, or with the log trimmed beyond the reported end, only the high watermark is
        sent until the follower answers."""
        if self.join:
            # Entries of the stream may be on their way: the message is about those that were acknowledged.
            effects.send(self.member.node, self.head(state, epoch, self.leo, self.leo))
            self.resend_at_ms = None
            return
        if self.linked and self.next > self.leo and self.acked_seq < self.seq:
            self.next = self.leo
        before = self.seq
        self.send_entries(state, effects, epoch, in_sync, now_ms)
        if self.seq == before:
            self._send(state, effects, epoch, self.next, True, now_ms)

    def _send(self, state: ReplicaState, effects: Effects, epoch: int, end: int, live: bool, now_ms: int) -> None:
        head = self.head(state, epoch, self.next, state.progress.leo)
        if end > self.next:
            effects.append(Replicate(self.member.node, head, end, live))
        else:
            effects.send(self.member.node, head)
        self.next = end
        self.resend_at_ms = now_ms + RESEND_MS

    def head(self, state: ReplicaState, epoch: int, start: int, leo: int) -> AppendEntries:
        """The next AppendEntries from `start` on, of a log that ends at `leo`; without entries."""
        record, hw = state.known_record, state.progress.hw
        self.seq += 1
        self.sent_hw = hw
        before = epoch_at(state.epoch_table, start - 1) if start else 0
        isr = tuple(sorted(member.node for member in record.isr))
        return AppendEntries(epoch, self.seq, start, before, hw, leo, record.version, isr)


def follower_statuses(
    followers: Iterator[FollowerProgress], durable: dict[Member, int], isr: frozenset[Member]
) -> list[FollowerStatus]:
    """Return the status of each follower, by name."""
    return [
        FollowerStatus(
            p.member.node, p.member.log_id, p.leo, durable.get(p.member, 0), max(0, p.hw), p.member in isr, p.linked
        )
        for p in sorted(followers, key=lambda p: p.member.node)
    ]
