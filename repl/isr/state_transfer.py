"""State transfer, the rules of both sides: store rows instead of log entries.

A follower requests rows when its leader's log no longer reaches back to it, or when its own log or store is lost. It
requests one chunk at a time, in the order of the keys' latest changes (docs/protocol.md R-FAR):

    marking    the copy is being marked durably as under transfer; its log is not replayed from then on
    rows       requests rows from `position` on, until the leader has no more below the round's end
    metadata   requests everything but rows (cursors, request ids, time marks), in the order of its names
    ending     writes a START into its log, then notes the round's end in the store: applied, hw and both ends of the
               log are the round's end. Then it sends a FollowRequest

The leader's runtime serves a round from one snapshot (`repl.runtime.transfer_sender`). A chunk that is requested again
is therefore the same, and after a break the next round continues from the same position. The leader's core keeps no
state of a transfer but its progress.
"""

from __future__ import annotations

from typing import Final

from isthmus.repl.isr.effects import Effects, FinishTransfer, InstallMetadata, InstallRows, SendTransferChunk
from isthmus.repl.isr.epochs import cut, epoch_at
from isthmus.repl.isr.events import TransferFinished, TransferStored
from isthmus.repl.isr.membership import too_few_in_sync
from isthmus.repl.isr.messages import FollowRejection, TransferMetadata, TransferRequest, TransferRows
from isthmus.repl.isr.replica_state import ReplicaState, StateTransfer

TRANSFER_ROUNDS_MAX: Final = 8
"""After so many rounds, a follower that the log reaches follows from the log, however far behind it is: each round only
sends what changed during the one before."""


# -- the follower -------------------------------------------------------------------------------


def next_request(state: ReplicaState, epoch: int, nonce: int) -> TransferRequest:
    """Return the next request of a follower that is not busy.

    Answers to earlier requests for the same chunk count, too, or a slow lane would never deliver one in time. After
    the first round the rows are never reported as whole, so the leader sends rows in any case."""
    transfer = state.transfer
    assert transfer is not None
    assert not transfer.busy
    transfer.since = transfer.since or nonce
    whole = int(transfer.whole and not state.transfer_rounds)
    member = state.member
    return TransferRequest(
        epoch, member.log_id, nonce, transfer.position, transfer.epoch, whole, transfer.end, transfer.after
    )


def on_chunk(message: TransferRows | TransferMetadata, state: ReplicaState, effects: Effects) -> None:
    """Install a chunk if it is the next one."""
    transfer = state.transfer
    if transfer is None or transfer.busy or message.nonce < transfer.since:
        return
    if isinstance(message, TransferRows):
        _install_rows(transfer, message, effects)
    else:
        _install_metadata(transfer, message, effects)


def _install_rows(transfer: StateTransfer, message: TransferRows, effects: Effects) -> None:
    if not transfer.position == message.start <= message.upto <= message.end:
        return
    transfer.busy = True
    transfer.round_end = message.end
    transfer.end = message.end if message.upto == message.end else 0
    transfer.after = b""
    effects.append(InstallRows(message.rows, message.upto, message.upto_epoch, message.end))


def _install_metadata(transfer: StateTransfer, message: TransferMetadata, effects: Effects) -> None:
    needs_none = transfer.whole and not message.rows
    awaited = needs_none or message.end == transfer.end
    if message.after != transfer.after or message.end != transfer.position or not awaited:
        return
    transfer.busy = True
    if message.done:
        effects.append(FinishTransfer(message.end, transfer.epoch, message.table, message.rows, message.after))
    else:
        effects.append(InstallMetadata(message.rows, message.after, message.last))


def on_stored(state: ReplicaState, event: TransferStored | TransferFinished) -> None:
    """Record the stored transfer mark, or the end of the round: the log begins and ends there, and the mark is gone."""
    match event:
        case TransferStored(position, epoch, whole, after):
            before = state.transfer
            assert before is not None
            state.transfer = StateTransfer(position, epoch, whole, False, before.end, after, 0, before.round_end)
            state.store_end = None
        case TransferFinished(end, table):
            progress = state.progress
            progress.leo = progress.durable = progress.hw = progress.applied = end
            state.log_start, state.epoch_table, state.transfer = end, table, None
            state.transfer_rounds += 1


# -- the leader ---------------------------------------------------------------------------------


def log_rejection(electable: bool, common: int, rounds: int, state: ReplicaState) -> FollowRejection | None:
    """Why a follower whose log agrees below `common` cannot follow from the leader's log; None when it can.

    An electable member never takes rows: a log that should hold everything committed and does not has lost entries.
    While too few members are in sync, the log is the faster way to another one."""
    if electable:
        return FollowRejection.REGRESSED if common < state.log_start else None
    options = state.options
    behind = state.progress.leo - common > options.max_near_sync_message_lag and rounds < TRANSFER_ROUNDS_MAX
    another_round = 0 < rounds < options.min_transfer_rounds
    prefers_rows = (behind or another_round) and not too_few_in_sync(state.known_record)
    return FollowRejection.BEYOND_LOG if common < state.log_start or prefers_rows else None


def serve(
    node: str, request: TransferRequest, electable: bool, state: ReplicaState, *, later: bool = False
) -> SendTransferChunk | FollowRejection | None:
    """Return the effect that sends the requested chunk, or the rejection, or None for no answer.

    Applied entries were committed, so the entry just below the follower's position is in this log, too, and by
    I-LOG-MATCH so are all below; this cannot be checked where this log's epoch table begins later. A follower whose
    rows are whole needs none if this log reaches back to them. A leader that has applied less than the follower sends
    no answer until it has caught up, unless it can commit nothing without this very follower. `later`: rows of an
    earlier leader may be of a later state than what is applied here, below the barrier; keys that changed in between
    would be missing."""
    if electable:
        return FollowRejection.REGRESSED
    position, table, leo = request.position, state.epoch_table, state.progress.leo
    known = bool(request.position_epoch and table and table[0][1] < position <= leo)
    if known and epoch_at(table, position - 1) != request.position_epoch:
        return FollowRejection.DIVERGED
    near = leo - position <= state.options.max_near_sync_message_lag or position > state.progress.applied
    if known and request.whole and near and state.log_start <= position:
        return SendTransferChunk(node, request, cut(table, position))
    if position <= state.progress.applied and not (later and position and not request.whole):
        return SendTransferChunk(node, request, None)
    if too_few_in_sync(state.known_record) and not request.whole:
        return FollowRejection.AHEAD
    return None


# -- texts for people ---------------------------------------------------------------------------


def progress_text(transfer: StateTransfer, leader: str, rounds: int) -> str:
    """How far the transfer is: "code: sentence"."""
    if transfer.round_end <= transfer.position or not transfer.round_end:
        what = "prepares its copy" if transfer.busy else f"has the rows below {transfer.position}, asks for more"
        return f"transfer: {what}; round {rounds + 1} from {leader}"
    position, end = transfer.position, transfer.round_end
    percent = 100 * position // end
    return f"transfer: round {rounds + 1} from {leader}: has the rows below {position} of {end} ({percent} %)"


def why_rows(leader: str, state: ReplicaState) -> str:
    """Why the leader's log does not serve this follower, and after a round, which options to raise."""
    near, least = state.options.max_near_sync_message_lag, state.options.min_transfer_rounds
    rounds = state.transfer_rounds
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
    """Why a copy drops its rows and begins with none, and what makes that rarer."""
    return (
        f"begins from nothing again: its rows are of a later state than {leader} has applied, since the leader changed "
        "during the transfer, and too few are in sync without this copy; a larger option replication.catch.up.rate "
        "makes transfers shorter"
    )
