"""What a shell may read of a replica, at any time; nothing here changes anything. `replica.py` is the rest of it."""

from __future__ import annotations

from repl.isr import far
from repl.isr.candidate import Candidate
from repl.isr.effects import Role
from repl.isr.epochs import EpochTable
from repl.isr.follower import Follower
from repl.isr.leader import Leader, Leadership
from repl.isr.options import Options
from repl.isr.peers import FollowerView, views
from repl.isr.reasons import why, why_reassigning
from repl.isr.standing import Standing
from repl.isr.states import Failed, Idle, Quarantined, State
from repl.model.record import Member, PartitionRecord


class View:
    """The readable half of `Replica`."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._state: State = Idle()

    @property
    def partition(self) -> int:
        """The partition's id."""
        return self._standing.partition

    @property
    def member(self) -> Member:
        """This copy, as ISR and ELR name it."""
        return self._standing.member

    @property
    def options(self) -> Options:
        """The numbers that it goes by."""
        return self._standing.options

    @property
    def record(self) -> PartitionRecord | None:
        """The newest record that was believed; None before the first one of a session."""
        return self._standing.record

    @property
    def epoch_seen(self) -> int:
        """The highest epoch that is durable here."""
        return self._standing.epoch_seen

    @property
    def epoch_table(self) -> EpochTable:
        """Where each epoch begins in the log, appended entries included."""
        return self._standing.table

    @property
    def role(self) -> Role:
        """What the replica is."""
        return self._state.role

    @property
    def epoch(self) -> int:
        """The epoch that it leads, stands or follows in; otherwise the highest one it has heard of."""
        state = self._state
        return self._standing.epoch_wanted if isinstance(state, Idle | Quarantined | Failed) else state.epoch

    @property
    def leo(self) -> int:
        """First free offset of the log."""
        return self._standing.progress.leo

    @property
    def durable(self) -> int:
        """First offset that is not known to be durable."""
        return self._standing.progress.durable

    @property
    def hw(self) -> int:
        """First offset that is not known to be committed."""
        return self._standing.progress.hw

    @property
    def applied(self) -> int:
        """First offset that is not applied."""
        return self._standing.progress.applied

    @property
    def ready(self) -> bool:
        """True while client writes and committed reads are served."""
        return isinstance(self._state, Leader) and self._state.ready

    @property
    def confirms_alone(self) -> bool:
        """True when a Read would be answered in the same step: nobody else may be elected, and all that is committed
        is applied."""
        state, standing = self._state, self._standing
        if not isinstance(state, Leader) or not state.ready or standing.progress.applied < standing.progress.hw:
            return False
        record = standing.known
        alone = len(record.isr) == 1 and standing.member in record.isr and not record.elr
        return alone and state.reads.round is None and (state.pending is None or not state.pending.adds)

    @property
    def following(self) -> bool:
        """True while it takes what its leader sends."""
        return isinstance(self._state, Follower) and self._state.following

    @property
    def reason(self) -> str:
        """Why the state is what it is: "code: sentence"."""
        standing = self._standing
        if standing.far is not None and isinstance(self._state, Follower) and not self._state.diverged:
            return far.why(standing.far, self._state.leader, standing.far_rounds)
        return why(self._state, standing)

    @property
    def reassigning(self) -> str:
        """What a change of this partition's replicas waits for, as its leader knows; "" when none is under way here."""
        state = self._state
        return why_reassigning(state, self._standing) if isinstance(state, Leadership) else ""

    @property
    def far_position(self) -> int | None:
        """Below which offset rows are here, of a copy that is far; None of any other."""
        copy = self._standing.far
        return None if copy is None else copy.position

    @property
    def unfounded(self) -> bool:
        """Its store has rows of entries that its log does not hold (H36)."""
        return self._standing.unfounded

    def why_out(self, now_ms: int) -> dict[str, str]:
        """Why replicas are out of the ISR and what they wait for, as this leader knows; empty when it does not lead."""
        state, standing = self._state, self._standing
        if not isinstance(state, Leadership):
            return {}
        in_sync = {member.node for member in standing.known.isr}
        found = {node: state.pauses.why(node, now_ms) for node in standing.known.replicas if node not in in_sync}
        return {node: why for node, why in found.items() if why}

    def taken_out(self, node: str) -> str:
        """The code of the reason for which this leader took a node out of the ISR; "" when it did not."""
        state = self._state
        return state.pauses.reasons.get(node, ("", 0))[0] if isinstance(state, Leadership) else ""

    def followers(self) -> list[FollowerView]:
        """The followers as this leader sees them; empty when it does not lead."""
        state = self._state
        if not isinstance(state, Leadership):
            return []
        return views(iter(state.peers.values()), state.acked, self._standing.known.isr)

    def deadline_ms(self) -> int | None:
        """When the next Tick is due, on the clock of `now_ms`; None while nothing is timed."""
        match self._state:
            case Leadership() as leadership:
                return leadership.deadline_ms(self._standing)
            case Follower() as follower:
                return follower.deadline_ms()
            case Candidate(announce_at_ms=announce_at_ms):
                return announce_at_ms
            case _:
                return None
