"""Reassigning: how a leader ends a change of its partition's replicas, and what such a change waits for (R-RF).

The record names who is to join (`adding`) and who is to go (`removing`); newcomers catch up and join the ISR as any
other replica does, which is `leader.py`'s affair. Here is the rest, from one step to the next:

    waits          somebody who is to join is not in sync; the ELR is not empty; too few of those who stay are in sync;
                   this epoch's barrier is not committed
    hands over     the leader itself is to go: a member that stays and is in sync takes over, and ends the change
    asks           every member that stays and is in sync says, in this epoch, that it is the copy that is meant and
                   holds durably all that was committed when it was asked
    writes         one conditional write: those who go are out of replicas and ISR, and the metastore finds every
                   member that stays registered with the same gen

Whatever changes the record begins this anew. Nobody else ever removes a replica, and a member that is silent is waited
for, since the copy that goes may be the last honest one (H21).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from isthmus.repl.isr.effects import Send
from isthmus.repl.isr.messages import LeadershipCheck, LeadershipCheckOk
from isthmus.repl.isr.replica_state import ReplicaState
from isthmus.repl.model.record import Member, PartitionRecord

ASK_AGAIN_MS: Final = 200
"""A member that has not answered for this long is asked again: its answer may be lost. Long against a round trip."""

REFUSED_PAUSE_MS: Final = 2_000
"""Pause after the metastore did not find a member that stays registered: a node that restarts takes some seconds."""

HAND_OVER_MS: Final = 5_000
"""How long a leader that is to go drains for its successor before it leads on: as long as in balancing."""

HAND_OVER_PAUSE_MS: Final = 10_000
"""Pause before it tries that again: each try is felt by writers."""


class LeaderHandOver(NamedTuple):
    """The leader is to go: let this member take over."""

    target: str


class ReassignmentFinished(NamedTuple):
    """The change is over with this record, if `needs` are registered as what they are."""

    record: PartitionRecord
    needs: tuple[Member, ...]


@dataclass(slots=True)
class DurabilityCheck:
    """Asked of those who stay, of one record: what was committed then must be durable on each."""

    nonce: int
    version: int
    floor: int
    missing: set[Member]
    repeat_at_ms: int


@dataclass(slots=True)
class Reassignment:
    """What a leader remembers of it within its epoch. `resume_at_ms`: nothing is tried before."""

    question: DurabilityCheck | None = None
    resume_at_ms: int = 0

    def next(
        self, standing: ReplicaState, epoch: int, barrier: int, acked: Mapping[Member, int], now_ms: int
    ) -> LeaderHandOver | ReassignmentFinished | None:
        """The next step of a change that the known record asks for, when no write is under way; None while it waits."""
        record = standing.known
        stay = stayers(record)
        if obstacle(record, stay) or standing.progress.hw <= barrier or now_ms < self.resume_at_ms:
            self.question = None
            return None
        if standing.member.node in record.removing:
            self.resume_at_ms = now_ms + HAND_OVER_MS + HAND_OVER_PAUSE_MS
            return LeaderHandOver(max(stay, key=lambda m: (acked.get(m, 0), m.node)).node)
        if not record.removing:
            return _done(record, stay, ())
        if self.question is None or self.question.version != record.version:
            missing = {member for member in stay if member != standing.member}
            hw = standing.progress.hw
            self.question = DurabilityCheck(standing.next_nonce(), record.version, hw, missing, now_ms + ASK_AGAIN_MS)
            self._ask(standing, epoch)
        if self.question.missing:
            return None
        self.question = None
        return _done(record, stay, stay)

    def _ask(self, standing: ReplicaState, epoch: int) -> None:
        assert self.question is not None
        for member in sorted(self.question.missing):
            standing.effects.append(Send(member.node, LeadershipCheck(epoch, self.question.nonce)))

    def answered(self, node: str, ok: LeadershipCheckOk) -> bool:
        """True when this was the last answer that was waited for."""
        question = self.question
        if question is None or ok.nonce != question.nonce or ok.durable < question.floor:
            return False
        question.missing.discard(Member(node, ok.gen))
        return not question.missing

    def refused(self, now_ms: int) -> None:
        """The metastore did not find somebody who stays as what it is."""
        self.resume_at_ms = now_ms + REFUSED_PAUSE_MS

    def deadline_ms(self, ticked_ms: int) -> int | None:
        """When something is due that nothing else triggers."""
        if self.question is not None:
            return self.question.repeat_at_ms
        return self.resume_at_ms if self.resume_at_ms > ticked_ms else None

    def tick(self, standing: ReplicaState, epoch: int, now_ms: int) -> None:
        """Ask the silent again."""
        if self.question is not None and self.question.repeat_at_ms <= now_ms:
            self.question.repeat_at_ms = now_ms + ASK_AGAIN_MS
            self._ask(standing, epoch)


def stayers(record: PartitionRecord) -> tuple[Member, ...]:
    """The members in sync that a change leaves where they are, by name."""
    return tuple(sorted(member for member in record.isr if member.node not in record.removing))


def obstacle(record: PartitionRecord, stay: tuple[Member, ...]) -> str:
    """What in the record keeps a change from its end, but for newcomers that are not in sync "newcomers"; "" for
    nothing."""
    if record.adding and not {*record.adding} <= {member.node for member in record.isr}:
        return "newcomers"
    if record.elr:
        return f"waits until the metastore confirms that {_names(record.elr)} need not be elected"
    needed = max(1, min(record.min_isr, len(record.staying)))
    if len(stay) < needed:
        others = sorted({*record.staying} - {member.node for member in stay})
        return f"waits for {', '.join(others)}: {len(stay)} in sync stay, min-ISR is {needed} then"
    return ""


def _done(record: PartitionRecord, stay: tuple[Member, ...], needs: tuple[Member, ...]) -> ReassignmentFinished:
    gone = f"{', '.join(record.removing)} removed" if record.removing else "all replicas are in sync"
    after = replace(record, replicas=record.staying, isr=frozenset(stay), adding=(), removing=(), before=())
    after = replace(after, reason=gone)
    return ReassignmentFinished(after, needs)


def _names(members: frozenset[Member]) -> str:
    return ", ".join(sorted(member.node for member in members))


def waits_for(standing: ReplicaState, reassignment: Reassignment, behind: Mapping[str, str], *, writing: bool) -> str:
    """What a change waits for, for people; "" when none is under way. `behind`: how far replicas are that are not in
    sync; `writing`: a write is under way."""
    record = standing.known
    if not record.adding and not record.removing:
        return ""
    steps = [f"{verb} {', '.join(nodes)}" for verb, nodes in (("adds", record.adding), ("removes", record.removing))]
    what = " and ".join(step for step, nodes in zip(steps, (record.adding, record.removing), strict=True) if nodes)
    return f"{what}: {_waits_for(standing, reassignment, behind, writing)}"


def _waits_for(standing: ReplicaState, reassignment: Reassignment, behind: Mapping[str, str], writing: bool) -> str:
    record, question = standing.known, reassignment.question
    stay = stayers(record)
    why = obstacle(record, stay)
    if why == "newcomers":
        in_sync = {member.node for member in record.isr}
        late = [node for node in record.adding if node not in in_sync]
        return "waits for " + "; ".join(f"{node}: {behind.get(node, 'has not asked to follow yet')}" for node in late)
    if why:
        return why
    if writing:
        return "waits until the metastore confirms a write"
    if question is not None:
        asked = ", ".join(sorted(member.node for member in question.missing))
        return f"waits for {asked} to confirm that all below {question.floor:,} is durable there"
    if standing.member.node in record.removing:
        return f"{standing.member.node} is to hand over to one of {', '.join(member.node for member in stay)} first"
    return "waits until this epoch's barrier is committed, or a pause is over"
