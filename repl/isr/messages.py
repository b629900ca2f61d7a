"""What replicas of one partition say to each other.

Each message carries the epoch in which it was said; the receiver takes it only in exactly that epoch
(docs/protocol.md R-FENCE). What a follower says also carries the gen of its log (R-GEN), what answers a question
its nonce (R-NONCE). Messages may be lost, repeated, reordered and late; the core sorts that out. Partition,
sender and cluster are the transport's to add (`repl.transport`).

    follower -> leader   FollowRequest, AppendAck, AppendRejected, LeadershipCheckOk, TransferRequest
    leader -> follower   FollowAccepted, FollowRejected, AppendEntries, LeadershipCheck, TransferRows, TransferMetadata
    either way           StaleEpoch
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from isthmus.repl.isr.epochs import EpochTable
from isthmus.repl.model.entry import Entry


class FollowRequest(NamedTuple):
    """A follower asks to follow: where its log ends, what of it is durable, its whole epoch table (H2); how many
    transfer rounds it has finished since it last followed (R-FAR)."""

    epoch: int
    log_id: int
    nonce: int
    leo: int
    durable: int
    table: EpochTable
    rounds: int = 0


class FollowAccepted(NamedTuple):
    """The leader takes it: the logs agree below `common`; the follower drops the rest and is sent on from there.
    `hw` and `leo` are the leader's."""

    epoch: int
    nonce: int
    common: int
    hw: int
    leo: int


class FollowRejection(StrEnum):
    """Why a leader does not take a follower."""

    REGRESSED = "regressed"
    """Its log ends below what it acknowledged durably in this epoch (H39): it must take another gen."""

    BEYOND_LOG = "beyond-log"
    """The leader's log no longer reaches back to where the logs agree, or the follower is too far behind for it."""

    AHEAD = "ahead"
    """The follower has part of a later state than this leader can apply without it: it must begin with no rows."""

    DIVERGED = "diverged"
    """What the follower has applied contradicts the leader's log."""


class FollowRejected(NamedTuple):
    """The leader cannot take it now; `log_start` is where the leader's log begins."""

    epoch: int
    nonce: int
    refusal: FollowRejection
    log_start: int


class AppendEntries(NamedTuple):
    """Entries from `start` on, none for news alone. `before` is the epoch of the entry below `start` (0: none);
    `seq` rises with each that is sent to this follower in this epoch; `hw`, `leo`, `isr` and the record's `version`
    are the leader's at the time of sending."""

    epoch: int
    seq: int
    start: int
    before: int
    hw: int
    leo: int
    version: int
    isr: tuple[str, ...]
    entries: tuple[Entry, ...] = ()


class AppendAck(NamedTuple):
    """What a follower has: log end, durable end, hw. `seq` is the greatest of the AppendEntries that it has handled."""

    epoch: int
    log_id: int
    seq: int
    leo: int
    durable: int
    hw: int


class AppendRejected(NamedTuple):
    """An AppendEntries did not fit: the log ends at `leo`, go on from there."""

    epoch: int
    log_id: int
    seq: int
    leo: int


class LeadershipCheck(NamedTuple):
    """A leader asks whether it still leads, for the committed reads that came before (R-READ); or whether a copy is
    still what it counts on, before it removes another one (R-RF)."""

    epoch: int
    nonce: int


class LeadershipCheckOk(NamedTuple):
    """This replica has not heard of a higher epoch. `durable`: how far its log is durable and known to be the
    leader's; 0 while it does not follow."""

    epoch: int
    log_id: int
    nonce: int
    durable: int = 0


class StaleEpoch(NamedTuple):
    """An answer to a message of another epoch: `epoch` is the highest heard of here. Only a hint to read the record."""

    epoch: int


class TransferRequest(NamedTuple):
    """A follower that is far asks for the next chunk (R-FAR): it has all rows whose latest change is below `position`;
    `position_epoch` is the epoch of the entry just below it (0: not known). `whole` is 1 while its rows are the effect
    of exactly all below. `end` is 0 while it asks for rows; once it has all of a round's, that round's end, and then
    `after` is the last name of the state that it has."""

    epoch: int
    log_id: int
    nonce: int
    position: int
    position_epoch: int
    whole: int
    end: int
    after: bytes


class TransferRows(NamedTuple):
    """All rows whose latest change lies in [start, upto), of a snapshot at `end`; `upto_epoch` is the epoch of the
    entry just below `upto` (0: not known). `rows` are bytes of `repl.store.row_codec`."""

    epoch: int
    nonce: int
    start: int
    upto: int
    upto_epoch: int
    end: int
    rows: bytes


class TransferMetadata(NamedTuple):
    """What is not rows at `end`, in the order of names: behind `after`, up to `last`. With `done` (1) the round is
    whole, and `table` is the epoch table of a log that ends at `end`. Empty `rows`: what the follower has is right."""

    epoch: int
    nonce: int
    end: int
    after: bytes
    last: bytes
    done: int
    table: EpochTable
    rows: bytes


Message = (
    FollowRequest
    | FollowAccepted
    | FollowRejected
    | AppendEntries
    | AppendAck
    | AppendRejected
    | LeadershipCheck
    | LeadershipCheckOk
    | StaleEpoch
    | TransferRequest
    | TransferRows
    | TransferMetadata
)
