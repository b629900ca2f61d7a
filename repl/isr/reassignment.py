"""Reassignment: how a leader finishes a change of its partition's replicas (docs/protocol.md R-RF).

The record names the nodes to add (`adding`) and to remove (`removing`). Added replicas catch up and join the ISR like
any other (`leader.py`). The rest is here, one step after the other:

    waits          an added node is not in sync; the ELR is not empty; too few of the remaining members are in sync;
                   this epoch's barrier is not committed
    hands over     the leader itself is to be removed: a remaining member in sync takes over, and finishes the change
    asks           each remaining member in sync confirms, in this epoch and under its log id, that everything that was
                   committed at the time of the question is durable there
    writes         one conditional write takes the removed nodes out of replicas and ISR, on condition that each
                   remaining member is registered under the same log id

Any change of the record restarts these steps. Only a leader removes replicas, and it waits for silent members, since a
removed copy may be the last intact one (H21).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from isthmus.repl.isr.effects import Effects
from isthmus.repl.isr.messages import LeadershipCheck, LeadershipCheckOk
from isthmus.repl.isr.replica_state import ReplicaState
from isthmus.repl.model.record import Member, PartitionRecord

ASK_AGAIN_MS: Final = 200
"""A silent member is asked again after this long, since its answer may be lost. Long against a round trip."""

REFUSED_PAUSE_MS: Final = 2_000
"""Pause after the metastore did not find a remaining member registered: a restart of a node takes some seconds."""

HAND_OVER_MS: Final = 5_000
"""How long a leader that is to be removed drains before it leads on: as long as in leader balancing."""

HAND_OVER_PAUSE_MS: Final = 10_000
"""Pause before the next such attempt: each one delays writes."""


class LeaderHandOver(NamedTuple):
    """The leader is to be removed: `target` must take over first."""

    target: str


class ReassignmentFinished(NamedTuple):
    """The record that finishes the change, conditional on the registrations of `needs`."""

    record: PartitionRecord
    needs: tuple[Member, ...]


@dataclass(slots=True)
class DurabilityCheck:
    """A question to the remaining members: is everything below `floor` durable? `missing`: those without an answer.

    `version` is that of the record it belongs to."""

    nonce: int
    version: int
    floor: int
    missing: set[Member]
    repeat_at_ms: int


@dataclass(slots=True)
class Reassignment:
    """A leader's progress with the reassignment in its record. Nothing is attempted before `resume_at_ms`."""

    check: DurabilityCheck | None = None
    resume_at_ms: int = 0

    def next(
        self,
        state: ReplicaState,
        effects: Effects,
        epoch: int,
        barrier: int,
        acked: Mapping[Member, int],
        now_ms: int,
    ) -> LeaderHandOver | ReassignmentFinished | None:
        """Return the next step of the change that the known record asks for; None while it waits.

        Called while no write is pending."""
        record = state.known_record
        remaining = remaining_members(record)
        if obstacle(record, remaining) or state.progress.hw <= barrier or now_ms < self.resume_at_ms:
            self.check = None
            return None
        if state.member.node in record.removing:
            self.resume_at_ms = now_ms + HAND_OVER_MS + HAND_OVER_PAUSE_MS
            return LeaderHandOver(max(remaining, key=lambda m: (acked.get(m, 0), m.node)).node)
        if not record.removing:
            return _finished(record, remaining, ())
        if self.check is None or self.check.version != record.version:
            missing = {member for member in remaining if member != state.member}
            hw = state.progress.hw
            self.check = DurabilityCheck(state.next_nonce(), record.version, hw, missing, now_ms + ASK_AGAIN_MS)
            self._send_checks(self.check, effects, epoch)
        if self.check.missing:
            return None
        self.check = None
        return _finished(record, remaining, remaining)

    def _send_checks(self, check: DurabilityCheck, effects: Effects, epoch: int) -> None:
        for member in sorted(check.missing):
            effects.send(member.node, LeadershipCheck(epoch, check.nonce))

    def on_check_ok(self, node: str, ok: LeadershipCheckOk) -> bool:
        """Count an answer; True when it was the last missing one."""
        check = self.check
        if check is None or ok.nonce != check.nonce or ok.durable < check.floor:
            return False
        check.missing.discard(Member(node, ok.log_id))
        return not check.missing

    def write_refused(self, now_ms: int) -> None:
        """Pause: the metastore did not find a remaining member registered under its log id."""
        self.resume_at_ms = now_ms + REFUSED_PAUSE_MS

    def deadline_ms(self, ticked_ms: int) -> int | None:
        """When something is due that no event triggers."""
        if self.check is not None:
            return self.check.repeat_at_ms
        return self.resume_at_ms if self.resume_at_ms > ticked_ms else None

    def tick(self, effects: Effects, epoch: int, now_ms: int) -> None:
        """Ask silent members again when due."""
        check = self.check
        if check is not None and check.repeat_at_ms <= now_ms:
            check.repeat_at_ms = now_ms + ASK_AGAIN_MS
            self._send_checks(check, effects, epoch)


def remaining_members(record: PartitionRecord) -> tuple[Member, ...]:
    """The ISR members that the change does not remove, by name."""
    return tuple(sorted(member for member in record.isr if member.node not in record.removing))


def obstacle(record: PartitionRecord, remaining: tuple[Member, ...]) -> str:
    """The state of the record that keeps the change from finishing: "newcomers" for added nodes that are not in sync,
    else a text for people; "" for nothing. `remaining`: see `remaining_members`."""
    if record.adding and not {*record.adding} <= {member.node for member in record.isr}:
        return "newcomers"
    if record.elr:
        return f"waits until the metastore confirms that {_names(record.elr)} need not be elected"
    needed = max(1, min(record.min_isr, len(record.staying)))
    if len(remaining) < needed:
        others = sorted({*record.staying} - {member.node for member in remaining})
        return f"waits for {', '.join(others)}: {len(remaining)} in sync stay, min-ISR is {needed} then"
    return ""


def _finished(
    record: PartitionRecord, remaining: tuple[Member, ...], needs: tuple[Member, ...]
) -> ReassignmentFinished:
    gone = f"{', '.join(record.removing)} removed" if record.removing else "all replicas are in sync"
    after = replace(record, replicas=record.staying, isr=frozenset(remaining), adding=(), removing=(), before=())
    after = replace(after, reason=gone)
    return ReassignmentFinished(after, needs)


def _names(members: frozenset[Member]) -> str:
    return ", ".join(sorted(member.node for member in members))


def waits_for(state: ReplicaState, reassignment: Reassignment, behind: Mapping[str, str], *, writing: bool) -> str:
    """The reason why the change waits, as text; "" when none is in progress.

    `behind`: node -> how far it lags, of replicas that are not in sync; `writing`: a write is pending."""
    record = state.known_record
    if not record.adding and not record.removing:
        return ""
    steps = [f"{verb} {', '.join(nodes)}" for verb, nodes in (("adds", record.adding), ("removes", record.removing))]
    what = " and ".join(step for step, nodes in zip(steps, (record.adding, record.removing), strict=True) if nodes)
    return f"{what}: {_waits_for(state, reassignment, behind, writing)}"


def _waits_for(state: ReplicaState, reassignment: Reassignment, behind: Mapping[str, str], writing: bool) -> str:
    record, check = state.known_record, reassignment.check
    remaining = remaining_members(record)
    why = obstacle(record, remaining)
    if why == "newcomers":
        in_sync = {member.node for member in record.isr}
        late = [node for node in record.adding if node not in in_sync]
        return "waits for " + "; ".join(f"{node}: {behind.get(node, 'has not asked to follow yet')}" for node in late)
    if why:
        return why
    if writing:
        return "waits until the metastore confirms a write"
    if check is not None:
        asked = ", ".join(sorted(member.node for member in check.missing))
        return f"waits for {asked} to confirm that all below {check.floor:,} is durable there"
    if state.member.node in record.removing:
        return f"{state.member.node} is to hand over to one of {', '.join(member.node for member in remaining)} first"
    return "waits until this epoch's barrier is committed, or a pause is over"
