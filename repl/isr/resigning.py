"""The leader that is to go: at a stop, when asked to hand over, or when its own disk is too slow.

It is a leader (`leader.py`) in all but this: it appends nothing new, and once all is applied, and so answered, has
itself taken out of the record. While that write is undecided it commits and repeats.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from repl.isr.effects import Role
from repl.isr.leader import Leadership
from repl.isr.reassigning import HandOver
from repl.isr.standing import Standing
from repl.model.record import PartitionRecord, PartitionStatus


@dataclass(slots=True)
class Resigning(Leadership):
    """It is to go: appends nothing new, drains, and then has itself taken out of the record. `target`, a member in
    sync, takes over if it can; `deadline_at_ms` ends the attempt and it leads on, None for a process that leaves: then
    whoever is closest will do as well."""

    role: ClassVar[Role] = Role.RESIGNING

    target: str | None = None
    deadline_at_ms: int | None = None
    why: str = "resigned"

    def want(self, standing: Standing, now_ms: int) -> HandOver | None:
        """The record without a leader, once everything that was appended is applied, and so answered, and on the
        target; before that whatever a leader wants, since draining may need it."""
        progress, record = standing.progress, standing.known
        target = self.target if self.deadline_at_ms is not None else self._heir(record, standing.member.node)
        held = target is None or any(m.node == target and self.acked.get(m, 0) == progress.leo for m in record.isr)
        if self.pending is not None or progress.applied != progress.leo or not held:
            return Leadership.want(self, standing, now_ms)
        gone = replace(
            record,
            status=PartitionStatus.ELECTION,
            leader=None,
            candidate=None,
            tried=frozenset(),
            preferred=target,
            reason=f"{standing.member.node} {self.why}",
        )
        self.write(gone, standing, now_ms)
        return None

    def _heir(self, record: PartitionRecord, node: str) -> str | None:
        """The target if nobody is closer, or else who is."""
        return closest(self, record, node, self.target)

    @property
    def given_up(self) -> bool:
        """True once the record without this leader has been sent: it may be decided at any time."""
        return self.pending is not None and self.pending.record.leader is None

    def deadline_ms(self, standing: Standing) -> int | None:
        """See Leadership; and the end of the attempt."""
        due_ms = Leadership.deadline_ms(self, standing)
        if self.deadline_at_ms is not None and not self.given_up:
            return self.deadline_at_ms if due_ms is None else min(due_ms, self.deadline_at_ms)
        return due_ms


def closest(leadership: Leadership, record: PartitionRecord, node: str, wish: str | None = None) -> str | None:
    """The member in sync, other than `node`, that is not to go and has acknowledged most, among equals the one that is
    wished for; None when there is none."""
    others = [m for m in record.isr if m.node != node and m in leadership.acked]
    if not others:
        return None
    return max(others, key=lambda m: (m.node not in record.removing, leadership.acked[m], m.node == wish, m.node)).node
