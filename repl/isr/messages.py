"""Messages between the replicas of one partition.

Each message carries the epoch in which it was sent, and the receiver handles it only in exactly this epoch
(docs/protocol.md R-FENCE). A follower's messages also carry the id of its log (R-GEN), and answers the nonce of the
request (R-NONCE). Messages may be lost, repeated, reordered and late. The transport adds partition, sender and cluster
(`repl.transport`).

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
    """A follower asks to follow: its log end, its durable end, and its whole epoch table (H2).

    `rounds`: transfer rounds finished since it last followed (R-FAR).
    """

    epoch: int
    log_id: int
    nonce: int
    leo: int
    durable: int
    table: EpochTable
    rounds: int = 0


class FollowAccepted(NamedTuple):
    """The leader accepts: the logs agree below `common`; the follower drops the rest and receives entries from there.

    `hw` and `leo` are the leader's.
    """

    epoch: int
    nonce: int
    common: int
    hw: int
    leo: int


class FollowRejection(StrEnum):
    """Why a leader does not accept a follower."""

    REGRESSED = "regressed"
    """Its log ends below what it acknowledged durably in this epoch (H39): it must take another log id."""

    BEYOND_LOG = "beyond-log"
    """The leader's log no longer reaches back to where the logs agree, or the follower is too far behind for it."""

    AHEAD = "ahead"
    """The follower has rows of a later state than this leader can apply without it: it must begin with no rows."""

    DIVERGED = "diverged"
    """Entries that the follower has applied contradict the leader's log."""


class FollowRejected(NamedTuple):
    """The leader cannot accept now; `log_start` is where the leader's log begins."""

    epoch: int
    nonce: int
    refusal: FollowRejection
    log_start: int


class AppendEntries(NamedTuple):
    """Entries from `start` on; without any, only the leader's ends.

    `before`: epoch of the entry below `start` (0: none). `seq` rises with each message to this follower in this epoch.
    `hw`, `leo`, `isr` and the record's `version` are the leader's at the time of sending.
    """

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
    """A follower's ends: log end, durable end, high watermark. `seq`: the greatest of a handled AppendEntries."""

    epoch: int
    log_id: int
    seq: int
    leo: int
    durable: int
    hw: int


class AppendRejected(NamedTuple):
    """An AppendEntries left a gap: the log ends at `leo`, continue from there."""

    epoch: int
    log_id: int
    seq: int
    leo: int


class LeadershipCheck(NamedTuple):
    """A leader asks whether a higher epoch exists.

    It confirms committed reads that arrived before (R-READ), or, before a replica is removed, that a remaining copy is
    durable (R-RF).
    """

    epoch: int
    nonce: int


class LeadershipCheckOk(NamedTuple):
    """This replica knows of no higher epoch.

    `durable`: end below which its log is durable and known to be the leader's; 0 while it does not follow.
    """

    epoch: int
    log_id: int
    nonce: int
    durable: int = 0


class StaleEpoch(NamedTuple):
    """Answer to a message of a lower epoch: `epoch` is the highest known here. Only a hint to read the record."""

    epoch: int


class TransferRequest(NamedTuple):
    """A follower under state transfer requests the next chunk (R-FAR).

    The follower has all rows whose latest change is below `position`; `position_epoch` is the epoch of the entry just
    below (0: not known). `whole` is 1 while its rows are the effect of exactly all entries below. `end` is 0 while it
    requests rows. Once it has all rows of a round, `end` is that round's end, and `after` the last name of the metadata
    that it has.
    """

    epoch: int
    log_id: int
    nonce: int
    position: int
    position_epoch: int
    whole: int
    end: int
    after: bytes


class TransferRows(NamedTuple):
    """All rows whose latest change lies in [start, upto), from a snapshot at `end`.

    `upto_epoch`: epoch of the entry just below `upto` (0: not known). `rows`: bytes of `repl.store.row_codec`.
    """

    epoch: int
    nonce: int
    start: int
    upto: int
    upto_epoch: int
    end: int
    rows: bytes


class TransferMetadata(NamedTuple):
    """Everything but rows at `end`, in the order of names: behind `after`, up to `last`.

    With `done` (1) the round is complete, and `table` is the epoch table of a log that ends at `end`. Empty `rows`: the
    follower's metadata is right.
    """

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
