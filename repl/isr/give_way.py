"""Giving way: an isolated leader lets another member lead (docs/protocol.md R-GIVE-WAY).

Such a leader reaches the metastore but none of its followers. Its session lasts, so no controller replaces it, and it
can commit nothing, although the followers may reach each other. That is so below min-ISR, and before, while nothing is
written and nobody lags: clients of the other nodes reach it as little as the followers do. Safety rests on epochs and
on the guard, which does not change. The limits below bound how often leadership moves because of this rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from isthmus.repl.isr.membership import guard
from isthmus.repl.model.record import Member, PartitionRecord, PartitionStatus

CHECK_MS: Final = 1_000
"""Interval between two checks for contact with followers. A pause of this process counts as one check."""

GIVE_WAY_CHECKS: Final = 10
"""A leader that can commit nothing and had contact gives way after so many checks (10 s) without any: longer than a
follower's restart and the connections' time-outs, short against an operator's reaction."""

GIVE_WAY_AGAIN_CHECKS: Final = 60
"""Checks (1 min) for a leader without any contact in its epoch, and after an attempt whose target was not registered:
where no node reaches any other, leadership changes once a minute at most."""


class GiveWay(NamedTuple):
    """The record that lets `to` lead, conditional on the registration of `to`."""

    record: PartitionRecord
    to: Member


@dataclass(slots=True)
class IsolationCheck:
    """Detects that no follower is in contact. `check_at_ms` is None while this leader can commit."""

    check_at_ms: int | None = None
    contact: bool = False
    """A follower was in contact since the last check."""
    had_contact: bool = False
    silent_checks: int = 0
    attempts: int = 0

    def contacted(self) -> None:
        """A follower acknowledged entries, or requested rows after an answer."""
        self.contact = self.had_contact = True

    def check(
        self,
        record: PartitionRecord,
        me: Member,
        acked: Mapping[Member, int],
        *,
        powerless: bool,
        keeps_up: bool,
        now_ms: int,
    ) -> GiveWay | None:
        """Return the record that gives leadership away when a check is due and its limit is reached, else None.

        `powerless`: below min-ISR, or without a connected follower where one's own copy is not enough to commit.
        `keeps_up`: a connected follower has the whole log, and so has nothing to acknowledge."""
        if not powerless:
            self.check_at_ms, self.silent_checks = None, 0
            return None
        if self.check_at_ms is None or now_ms < self.check_at_ms:
            self.check_at_ms = self.check_at_ms or now_ms + CHECK_MS
            return None
        self.check_at_ms = now_ms + CHECK_MS
        self.silent_checks = 0 if self.contact or keeps_up else self.silent_checks + 1
        self.contact = False
        others = sorted(guard(record) - {me}, key=lambda m: (m.node in record.removing, -acked.get(m, 0), m))
        patient = self.attempts > 0 or not self.had_contact
        if not others or self.silent_checks < (GIVE_WAY_AGAIN_CHECKS if patient else GIVE_WAY_CHECKS):
            return None
        to = others[self.attempts % len(others)]
        self.attempts += 1
        self.silent_checks = 0
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
