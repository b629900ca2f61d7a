"""Giving way: a leader that reaches the metastore but none of its followers lets another member lead.

Its session lasts, so nobody replaces it; below min-ISR it takes no write, though the others may be well and in touch.
State and decision; `leader.py` asks for the write. Safety rests on epochs and on the guard, which stays as it is. How
often leaderships may change because of it is bounded by the two limits below (docs/protocol.md R-GIVE-WAY).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from isthmus.repl.isr.membership import guard, too_few_in_sync
from isthmus.repl.model.record import Member, PartitionRecord, PartitionStatus

CHECK_MS: Final = 1_000
"""Pause between two looks at whether any follower was heard of. A pause of this process counts as one look."""

GIVE_WAY_CHECKS: Final = 10
"""After so many looks (10 s) without a word of any follower, below min-ISR, a leader that had been in touch gives way:
longer than a restart of a follower and the time-outs of connections, short against an operator's way to a keyboard."""

GIVE_WAY_AGAIN_CHECKS: Final = 60
"""A leader that has heard of nobody in its whole epoch waits so long (1 min), and so does one whose last attempt found
nobody registered: where no node reaches any other, leaderships change once a minute at most."""


class GiveWay(NamedTuple):
    """Let `to` lead with this record, if it is registered as what it is."""

    record: PartitionRecord
    to: Member


@dataclass(slots=True)
class Solitude:
    """What a leader knows of being alone. `look_at_ms` is None while enough members are in sync."""

    look_at_ms: int | None = None
    heard: bool = False
    was_heard: bool = False
    looks: int = 0
    attempts: int = 0

    def hear(self) -> None:
        """A follower acknowledged something, or asked for rows after it was answered."""
        self.heard = self.was_heard = True

    def look(
        self, record: PartitionRecord, me: Member, acked: Mapping[Member, int], *, keeps_up: bool, now_ms: int
    ) -> GiveWay | None:
        """Look whether it is time, when a look is due. `keeps_up`: a connected follower has all there is."""
        if not too_few_in_sync(record):
            self.look_at_ms, self.looks = None, 0
            return None
        if self.look_at_ms is None or now_ms < self.look_at_ms:
            self.look_at_ms = self.look_at_ms or now_ms + CHECK_MS
            return None
        self.look_at_ms = now_ms + CHECK_MS
        self.looks = 0 if self.heard or keeps_up else self.looks + 1
        self.heard = False
        others = sorted(guard(record) - {me}, key=lambda m: (m.node in record.removing, -acked.get(m, 0), m))
        patient = self.attempts > 0 or not self.was_heard
        if not others or self.looks < (GIVE_WAY_AGAIN_CHECKS if patient else GIVE_WAY_CHECKS):
            return None
        to = others[self.attempts % len(others)]
        self.attempts += 1
        self.looks = 0
        return GiveWay(
            replace(
                record,
                status=PartitionStatus.ELECTION,
                leader=None,
                candidate=None,
                isr=frozenset(),
                elr=guard(record),
                tried=frozenset({me.node}),
                preferred=to.node,
                reason=f"{me.node} gives way to {to.node}: it reaches none of its followers",
            ),
            to,
        )
