"""What a leader knows of one follower, and what it sends next.

A follower that said FollowRequest is sent on from where the logs agree: entries as they are appended while it keeps up
(the live lane), batches with a pause for the acknowledgement while it catches up (the catch-up lane). What was sent and
not acknowledged for a while is sent again, since messages may be lost; a follower that has everything is sent
nothing. Who is in sync is `leader.py`'s to judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from isthmus.repl.isr.effects import Replicate, Send
from isthmus.repl.isr.epochs import epoch_at
from isthmus.repl.isr.messages import AppendAck, AppendEntries, AppendRejected
from isthmus.repl.isr.replica_state import ReplicaState
from isthmus.repl.model.record import Member

LIVE_ENTRIES: Final = 1_024
"""Most entries of one Forward in the live lane: bounds one turn of the follower's loop (about 10 ms)."""

LIVE_AHEAD: Final = 8_192
"""Most entries under way to a follower in the live lane. With more it would not be keeping up; what it may owe at all
is bounded by the window."""

CATCH_UP_ENTRIES: Final = 256
"""Most entries of one Forward in the catch-up lane, read from the log's files as a rule."""

CATCH_UP_AHEAD: Final = 2 * CATCH_UP_ENTRIES
"""Most entries under way in the catch-up lane: one batch is on its way while the one before is written."""

RESEND_MS: Final = 2_000
"""Without any progress for this long, what is not acknowledged is sent again. Longer than a slow sync, since on a
standing connection nothing is lost; a broken one is told at once, and the follower begins anew."""

NEWS_MS: Final = 100
"""A follower that has everything hears of a moved hw this much later, so that a busy leader's next entries carry the
news for nothing."""


class FollowerStatus(NamedTuple):
    """A follower as its leader sees it: offsets that it has reported, whether it is in the confirmed ISR, and whether
    messages reach it as far as is known."""

    node: str
    gen: int
    leo: int
    durable: int
    hw: int
    in_sync: bool
    linked: bool


@dataclass(slots=True)
class FollowerProgress:
    """One follower of this epoch. `next`: first offset that was not sent. `leo`, `hw`: as it reported (hw -1: not
    yet). `seq`: of the last AppendEntries, `acked_seq`: of the last that it has handled. `told_hw`: the hw in the last
    AppendEntries."""

    member: Member
    next: int
    leo: int
    hw: int = -1
    seq: int = 0
    acked_seq: int = 0
    told_hw: int = 0
    rewound_seq: int = 0
    """Complaints about Forwards up to this one have been heeded."""
    linked: bool = True
    again_at_ms: int | None = None
    """When something is to be sent that nothing else triggers."""

    def acknowledged(self, ack: AppendAck, standing: ReplicaState, now_ms: int) -> None:
        """Take an AppendAck of this follower's gen; of several out of order, the one of the greatest `seq` counts."""
        self.linked = True
        self.hw = max(self.hw, ack.hw)
        if ack.seq < self.acked_seq:
            return
        self.acked_seq = ack.seq
        self.leo = ack.leo
        self.next = max(self.next, ack.leo)
        if ack.seq >= self.seq and ack.leo < self.next:
            self.next = ack.leo  # it has handled all that was sent, and something was missing
        self._settle(standing, ack.durable, now_ms)

    def _settle(self, standing: ReplicaState, durable: int, now_ms: int) -> None:
        progress = standing.progress
        if durable >= progress.leo and self.hw >= progress.hw:
            self.again_at_ms = None
        elif durable >= progress.leo and self.told_hw < progress.hw:
            self.news(now_ms)
        else:
            self.again_at_ms = now_ms + RESEND_MS

    def missed(self, nack: AppendRejected) -> None:
        """An AppendEntries did not fit its log: go on from where that ends, once for all that was under way."""
        self.linked = True
        if nack.seq > self.rewound_seq:
            self.rewound_seq = self.seq
            self.next = self.leo = min(self.next, nack.leo)

    def news(self, now_ms: int) -> None:
        """hw has moved: let it be told soon if nothing else is sent."""
        soon = now_ms + NEWS_MS
        if self.again_at_ms is None or self.again_at_ms > soon:
            self.again_at_ms = soon

    def pump(self, standing: ReplicaState, epoch: int, in_sync: bool, now_ms: int) -> None:
        """Send what it lacks, as far as its window and the log let."""
        leo = standing.progress.leo
        while self.linked and standing.log_start <= self.next < leo:
            live = in_sync or leo - self.next <= LIVE_ENTRIES
            ahead, most = (LIVE_AHEAD, LIVE_ENTRIES) if live else (CATCH_UP_AHEAD, CATCH_UP_ENTRIES)
            if self.next - self.leo >= ahead:
                return
            self._forward(standing, epoch, min(leo, self.next + most), live, now_ms)

    def again(self, standing: ReplicaState, epoch: int, in_sync: bool, now_ms: int) -> None:
        """The time has come: send again from what it reported, or the news alone. Where messages do not arrive, or the
        log was trimmed under what it reported, only the news, until something is heard."""
        if self.linked and self.next > self.leo and self.acked_seq < self.seq:
            self.next = self.leo
        before = self.seq
        self.pump(standing, epoch, in_sync, now_ms)
        if self.seq == before:
            self._forward(standing, epoch, self.next, True, now_ms)

    def _forward(self, standing: ReplicaState, epoch: int, end: int, live: bool, now_ms: int) -> None:
        progress, record = standing.progress, standing.known
        self.seq += 1
        before = epoch_at(standing.table, self.next - 1) if self.next else 0
        isr = tuple(sorted(member.node for member in record.isr))
        head = AppendEntries(epoch, self.seq, self.next, before, progress.hw, progress.leo, record.version, isr)
        if end > self.next:
            standing.effects.append(Replicate(self.member.node, head, end, live))
        else:
            standing.effects.append(Send(self.member.node, head))
        self.next = end
        self.told_hw = progress.hw
        self.again_at_ms = now_ms + RESEND_MS


def views(
    peers: Iterator[FollowerProgress], durable: dict[Member, int], isr: frozenset[Member]
) -> list[FollowerStatus]:
    """The followers for people, by name."""
    return [
        FollowerStatus(
            p.member.node, p.member.gen, p.leo, durable.get(p.member, 0), max(0, p.hw), p.member in isr, p.linked
        )
        for p in sorted(peers, key=lambda p: p.member.node)
    ]
