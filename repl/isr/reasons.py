"""Reasons: why a replica is in its state, one "code: sentence" for people.

The codes are stable over releases (logs, REASON columns); a sentence names what the replica waits for. No decision
depends on these texts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from isthmus.repl.isr.candidate import Candidate
from isthmus.repl.isr.follower import Follower
from isthmus.repl.isr.leader import Leader, ResigningLeader
from isthmus.repl.isr.membership import too_few_in_sync
from isthmus.repl.isr.reassignment import waits_for
from isthmus.repl.isr.replica_state import ReplicaState
from isthmus.repl.isr.state_transfer import progress_text
from isthmus.repl.isr.states import Failed, Idle, Quarantined, RoleState
from isthmus.repl.model.record import Incarnation, PartitionRecord, PartitionStatus


def rolled_back(record_epoch: int, epoch_seen: int) -> str:
    """The record is older than what this replica has durably seen (docs/protocol.md H32)."""
    return (
        f"metastore-rollback: the record is at epoch {record_epoch}, this replica has seen epoch {epoch_seen}: "
        "the metastore lost what it had confirmed, or was restored from an older copy"
    )


def used_before(record_epoch: int, epoch_been: int) -> str:
    """The record nominates this very session in an epoch that is not new (H32)."""
    return (
        f"metastore-rollback: nominated in epoch {record_epoch}, but this replica has been in epoch {epoch_been}: "
        "the metastore lost what it had confirmed, or was restored from an older copy"
    )


def another_leader(epoch: int, noted: Incarnation, named: Incarnation) -> str:
    """The record gives an epoch to another process than before; each epoch belongs to one (H32)."""
    return (
        f"metastore-rollback: the record gives epoch {epoch} to {named.node} (session {named.session_id}), it was "
        f"that of {noted.node} (session {noted.session_id}): the metastore lost what it had confirmed, or was "
        "restored from an older copy"
    )


def older_version(record: PartitionRecord, version: int) -> str:
    """A synced read returned an older record than was known when it began (H32)."""
    return (
        f"metastore-rollback: the record is at version {record.version}, this replica has seen version {version}: "
        "the metastore lost what it had confirmed, or was restored from an older copy"
    )


def overtaken(record: PartitionRecord, epoch: int, node: str) -> PartitionRecord:
    """Return `record`, to which the metastore went back, as overtaken by a replica on `node` that was in `epoch` (H32).

    The partition has no leader, and no controller elects one until an operator rewrites it: its ISR is outdated, and
    replicas that do not know this would accept a nomination."""
    return replace(
        record,
        status=PartitionStatus.OFFLINE,
        leader=None,
        candidate=None,
        tried=frozenset(),
        overtaken=epoch,
        reason=f"metastore-rollback: {node} has been in epoch {epoch}, the metastore went back to {record.epoch}: "
        "isthmus cluster reseed",
    )


def why_idle(record: PartitionRecord | None, me: Incarnation | None, node: str) -> str:
    """Why a replica is neither leader nor candidate; `me` is None without a session."""
    if me is None:
        return "no-session: not registered in the metastore"
    if record is None:
        return "no-record: the partition's record has not been read yet"
    match record.status:
        case PartitionStatus.ONLINE:
            assert record.leader is not None
            if record.leader.node == node:
                return (
                    f"earlier-session: the record names session {record.leader.session_id} of this node as leader, "
                    f"this one is {me.session_id}; leadership needs a new epoch (R-INC)"
                )
            if node not in record.replicas:
                return f"removed: this node is no longer a replica; {record.leader.node} leads in epoch {record.epoch}"
            return f"led-elsewhere: {record.leader.node} leads in epoch {record.epoch}"
        case PartitionStatus.CANDIDATE_FOUND:
            assert record.candidate is not None
            if record.candidate == me:
                return f"nominated: waits until epoch {record.epoch} is durable here"
            return f"candidate-found: {record.candidate.node} is to lead in epoch {record.epoch}"
        case PartitionStatus.ELECTION:
            return f"election: {record.reason or 'a leader is being chosen'}"
        case PartitionStatus.OFFLINE:
            if record.overtaken:
                return record.reason
            return f"offline: {record.reason or 'no member of the guard can be elected'}"
        case _:
            assert_never(record.status)


def why(role_state: RoleState, state: ReplicaState) -> str:
    """Why the replica is in `role_state`."""
    record = state.record
    match role_state:
        case Idle(objection=objection):
            return objection or why_idle(record, state.incarnation, state.member.node)
        case Follower() as follower:
            if state.transfer is not None and not follower.diverged:
                return progress_text(state.transfer, follower.leader, state.transfer_rounds)
            return follower.reason(state)
        case Candidate(epoch=epoch, announce_at_ms=None):
            return f"candidate: makes the barrier of epoch {epoch} durable"
        case Candidate(epoch=epoch):
            return f"promoted: announced in epoch {epoch}, waits for a controller to confirm"
        case Leader() as leader:
            return _why_leader(leader, state)
        case ResigningLeader(gave_up=True):
            return "resigning: waits until the metastore confirms"
        case ResigningLeader():
            return "resigning: drains what was appended"
        case Quarantined(reason=reason) | Failed(reason=reason):
            return reason
        case _:
            assert_never(role_state)


def why_reassigning(leader: Leader, state: ReplicaState) -> str:
    """The reason why a change of the partition's replicas waits; "" when none is under way."""
    behind = leader.lag_texts(state.progress.leo)
    return waits_for(state, leader.reassignment, behind, writing=leader.pending_write is not None)


def _why_leader(leader: Leader, state: ReplicaState) -> str:
    record = state.known_record
    if too_few_in_sync(record):
        names = ", ".join(sorted({*record.replicas} - {member.node for member in record.isr}))
        return f"stalled: below min-ISR ({len(record.isr)} of {record.effective_min_isr} in sync; waits for {names})"
    if record.elr:
        names = ", ".join(sorted(member.node for member in record.elr))
        return f"stalled: waits until the metastore confirms that {names} need not be elected"
    if not leader.ready:
        return f"not-ready: applies its log up to the barrier of epoch {leader.epoch}"
    moves = why_reassigning(leader, state)
    return f"leads: epoch {leader.epoch}{'; ' if moves else ''}{moves}"
