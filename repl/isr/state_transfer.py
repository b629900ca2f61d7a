"""Far-horizon catch-up, as both sides decide it: rows of the store instead of entries of the log.

A follower that its leader's log does not reach any more, or whose own log or store is lost, asks for rows, a chunk at a
time, in the order of their latest change (docs/protocol.md R-FAR):

    marking    its copy is being marked as far, durably; nothing of its log is replayed from then on
    rows       asks for rows from `position` on, until the leader says that there are no more below the round's end
    state      asks for what is not rows (cursors, request ids, time marks), in the order of its names
    ending     a START in its log, then the store: applied, hw and both ends of the log are the round's end; says
               FollowRequest

What a leader serves a chunk from is its shell's affair (`repl.runtime.catchup_sender`): one snapshot a round, so a
chunk that is asked for again is the same, and after a break the next round goes on from the same position. The leader
keeps nothing of it here.
"""

from __future__ import annotations

from typing import Final

from isthmus.repl.isr.effects import FinishTransfer, InstallMetadata, InstallRows, SendTransferChunk
from isthmus.repl.isr.epochs import cut, epoch_at
from isthmus.repl.isr.events import TransferFinished, TransferStored
from isthmus.repl.isr.membership import too_few_in_sync
from isthmus.repl.isr.messages import FollowRejection, TransferMetadata, TransferRequest, TransferRows
from isthmus.repl.isr.replica_state import ReplicaState, StateTransfer

FAR_ROUNDS_MAX: Final = 8
"""After so many rounds a follower that the log reaches goes on from it, however far behind it is: each round only
sends what changed during the one before."""


def ask(standing: ReplicaState, epoch: int, nonce: int) -> TransferRequest:
    """The next question of a follower that is not busy. An answer to an earlier one for the same will do as well, or a
    lane that is slow would never bring one in time. After the first round it asks for rows in any case."""
    far = standing.far
    assert far is not None
    assert not far.busy
    far.since = far.since or nonce
    whole = int(far.whole and not standing.far_rounds)
    return TransferRequest(epoch, standing.member.gen, nonce, far.position, far.epoch, whole, far.end, far.after)


def came(message: TransferRows | TransferMetadata, standing: ReplicaState) -> None:
    """Take a chunk, if it is the next one."""
    far = standing.far
    if far is not None and not far.busy and message.nonce >= far.since:
        _take_rows(far, message, standing) if isinstance(message, TransferRows) else _take_state(far, message, standing)


def _take_rows(far: StateTransfer, message: TransferRows, standing: ReplicaState) -> None:
    if not far.position == message.start <= message.upto <= message.end:
        return
    far.busy = True
    far.round_end = message.end
    far.end = message.end if message.upto == message.end else 0
    far.after = b""
    standing.effects.append(InstallRows(message.rows, message.upto, message.upto_epoch, message.end))


def _take_state(far: StateTransfer, message: TransferMetadata, standing: ReplicaState) -> None:
    needs_none = far.whole and not message.rows
    if message.after != far.after or message.end != far.position or not (needs_none or message.end == far.end):
        return
    far.busy = True
    if message.done:
        standing.effects.append(FinishTransfer(message.end, far.epoch, message.table, message.rows, message.after))
    else:
        standing.effects.append(InstallMetadata(message.rows, message.after, message.last))


def told(standing: ReplicaState, event: TransferStored | TransferFinished) -> None:
    """The far mark says so now; or the copy is the effect of all below the round's end, its log begins and ends there,
    and nothing is marked any more."""
    match event:
        case TransferStored(position, epoch, whole, after):
            assert standing.far is not None
            standing.far = StateTransfer(
                position, epoch, whole, False, standing.far.end, after, 0, standing.far.round_end
            )
            standing.found = None
        case TransferFinished(end, table):
            progress = standing.progress
            progress.leo = progress.durable = progress.hw = progress.applied = end
            standing.log_start, standing.table, standing.far = end, table, None
            standing.far_rounds += 1


def why(copy: StateTransfer, leader: str, rounds: int) -> str:
    """How far a copy is that takes rows: "code: sentence"."""
    if copy.round_end <= copy.position or not copy.round_end:
        what = "prepares its copy" if copy.busy else f"has the rows below {copy.position}, asks for more"
        return f"far: {what}; round {rounds + 1} from {leader}"
    percent = 100 * copy.position // copy.round_end
    return (
        f"far: round {rounds + 1} from {leader}: has the rows below {copy.position} of {copy.round_end} ({percent} %)"
    )


def why_rows(leader: str, standing: ReplicaState) -> str:
    """Why a follower that its leader's log does not serve takes rows, and what to raise where it took some already."""
    near, least, rounds = (
        standing.options.max_near_sync_message_lag,
        standing.options.far_min_transfer_rounds,
        standing.far_rounds,
    )
    if 0 < rounds < least:
        return f"round {rounds + 1} of at least {least} (replication.far.horizon.min.transfer.rounds)"
    missing = (
        f"entries that it lacks are missing from the log of {leader}, or are more than "
        f"replication.max.near.sync.message.lag ({near:,})"
    )
    if not rounds:
        return missing
    return (
        f"after {rounds} transfer round{'s' * (rounds > 1)} {missing}: raise the option "
        "replication.far.horizon.min.transfer.rounds, or replication.catch.up.rate where the transfer is slow"
    )


def why_from_nothing(leader: str) -> str:
    """Why a copy that has rows gives them up and begins with none, and what makes that rarer."""
    return (
        f"begins from nothing again: its rows are of a later state than {leader} has applied, since the leader changed "
        "during the transfer, and too few are in sync without this copy; a larger option replication.catch.up.rate "
        "makes transfers shorter"
    )


def horizon(electable: bool, common: int, rounds: int, standing: ReplicaState) -> FollowRejection | None:
    """Why a leader cannot send a follower that agrees below `common` on from its log, None when it can. Who may be
    elected never takes rows: a log that should hold all that is committed and does not is not that log any more. While
    too few are in sync the log is the shorter way to one more."""
    if electable:
        return FollowRejection.REGRESSED if common < standing.log_start else None
    options = standing.options
    behind = standing.progress.leo - common > options.max_near_sync_message_lag and rounds < FAR_ROUNDS_MAX
    more = 0 < rounds < options.far_min_transfer_rounds
    rather_rows = (behind or more) and not too_few_in_sync(standing.known)
    return FollowRejection.BEYOND_LOG if common < standing.log_start or rather_rows else None


def serve(
    node: str, asked: TransferRequest, electable: bool, standing: ReplicaState, *, later: bool = False
) -> FollowRejection | None:
    """Let the shell send the next chunk to `node`, or say why not.

    What a copy has applied was committed, so the entry just below its position is in this log, too (I-LOG-MATCH: then
    all below is); where this log's table does not reach back so far, that cannot be told. Where its rows are whole and
    this log reaches back to them, it needs none. A leader that has not applied as much says nothing: it will, unless
    it can commit nothing without this very follower. `later`: rows of an earlier leader may be of a later state than
    what is applied here, below the barrier; keys that changed in between would be missing."""
    if electable:
        return FollowRejection.REGRESSED
    position, table, leo = asked.position, standing.table, standing.progress.leo
    known = bool(asked.position_epoch and table and table[0][1] < position <= leo)
    if known and epoch_at(table, position - 1) != asked.position_epoch:
        return FollowRejection.DIVERGED
    near = leo - position <= standing.options.max_near_sync_message_lag or position > standing.progress.applied
    if known and asked.whole and near and standing.log_start <= position:
        standing.effects.append(SendTransferChunk(node, asked, cut(table, position)))
    elif position <= standing.progress.applied and not (later and position and not asked.whole):
        standing.effects.append(SendTransferChunk(node, asked, None))
    elif too_few_in_sync(standing.known) and not asked.whole:
        return FollowRejection.AHEAD
    return None
