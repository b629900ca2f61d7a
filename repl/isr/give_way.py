"""Giving way: an isolated leader lets another member lead (docs/protocol.md R-GIVE-WAY).

Such a leader reaches the metastore but none of its followers. Its session lasts, so no controller replaces it, and it
can commit nothing, although the followers may reach each other. That is so below min-ISR, and before, while nothing is
written and nobody lags: clients of the other nodes reach it as little as the followers do. Safety rests on epochs and
on the guard, which does not change. The limits below bound how often leadership moves because of this rule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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


GIVES_WAY: Final = "gives way to"
"""In the reason of the record that lets another one lead; `gave_way` finds it there."""


def gave_way(record: PartitionRecord) -> str | None:
    """The node that has just given way, by a record that is not decided upon yet; None for any other record."""
    if record.status is not PartitionStatus.ELECTION or len(record.tried) != 1:
        return None
    (node,) = record.tried
    return node if record.reason.startswith(f"{node} {GIVES_WAY} ") else None


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
        unlinked: bool = False,
        reached: Collection[str] = (),
    ) -> GiveWay | None:
        """Return the record that gives leadership away when a check is due and its limit is reached, else None.

        `powerless`: below min-ISR, or without a connected follower where one's own copy is not enough to commit.
        `keeps_up`: a connected follower has the whole log, and so has nothing to acknowledge. `unlinked`: no follower
        is connected. `reached`: nodes with which a connection is open that this node dialled. Where one of the guard is
        reached and none is connected, they cannot dial this node, and it need not wait for them as for dead ones."""
        if not powerless:
            self.check_at_ms, self.silent_checks = None, 0
            return None
        if self.check_at_ms is None or now_ms < self.check_at_ms:
            self.check_at_ms = self.check_at_ms or now_ms + CHECK_MS
            return None
        self.check_at_ms = now_ms + CHECK_MS
        self.silent_checks = 0 if self.contact or keeps_up else self.silent_checks + 1
        self.contact = False

        def rank(m: Member) -> tuple[bool, bool, int, Member]:
            return m.node in record.removing, m.node not in reached, -acked.get(m, 0), m

        others = sorted(guard(record) - {me}, key=rank)
        one_way = unlinked and any(m.node in reached for m in others)
        patient = self.attempts > 0 or not (self.had_contact or one_way)
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
                reason=f"{me.node} {GIVES_WAY} {to.node}: it reaches none of its followers",
            ),
            to,
        )
