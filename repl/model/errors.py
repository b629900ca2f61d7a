"""The error tree: one class for each thing that a caller can do about a failure.

    IsthmusError
      BadInput             the caller sent something wrong; sending it again changes nothing  (400, 413, ...)
        TooLarge           a size is over a named limit
        CodecError         bytes that are not what they claim to be
      Retryable            a definite refusal: nothing took effect, try again                 (503)
        NotLeader          this node does not lead the partition (a hint says who does)
        Fenced             an epoch or version was overtaken
        TooFewInSync       the in-sync replicas are below min-ISR
        Overloaded         a bounded window or queue is full
        OutOfStorage       the disk refuses appends
        NotReady           recovery or election has not finished
        TimedOut           a read took longer than its client waits
      OutcomeUnknown       the write may or may not take effect                               (504)
      PeerFault            a node of another cluster answered wrongly or not at all
      LocalFault           this machine's disk, data or set-up is at fault: an operator must act
        Corruption         stored bytes fail their checksum or contradict each other
          Unreadable       one document of the metastore; it stops what it is about and nothing else
          DamagedRow       one row of a copy; the others of the partition can be read
            DamagedChange  of the change index (`repl.store.port`)
          DamagedChunk     rows that came from another node and are not what that made
        WrongIdentity      a data directory or metastore of another cluster or node
      BadConfig            a setting is wrong (all faults at once: see `config.loader`)

Bugs are assertions, not members of this tree. Each error carries a `reason` code, stable over
releases: it goes into HTTP answers, logs and `REASON` columns.
"""

from __future__ import annotations

from typing import TypeVar

Raised = TypeVar("Raised", bound=BaseException)


class IsthmusError(Exception):
    """Base of all of ours; never raised itself. `reason` is a stable code in kebab case."""

    reason: str = "internal"

    needs_confirmation: bool = False
    """The refusal is right only while the process that made it leads: it is answered once a committed read would be
    (docs/protocol.md R-READ), and becomes that read's error otherwise."""


class BadInput(IsthmusError):
    """The request is wrong as it stands; repeating it cannot help."""

    reason = "bad-input"


class TooLarge(BadInput):
    """A size is over a named limit; the message names the limit and its value."""

    reason = "too-large"


class CodecError(BadInput):
    """Bytes that are not a valid encoding of the noun they were said to be."""

    reason = "malformed"


class Retryable(IsthmusError):
    """A definite refusal before anything was appended: the write never takes effect."""

    reason = "retry"


class NotLeader(Retryable):
    """This node does not lead the partition. `leader` names the node that does, if known."""

    reason = "not-leader"

    def __init__(self, message: str, leader: str | None = None) -> None:
        super().__init__(message)
        self.leader = leader


class Fenced(Retryable):
    """An epoch or a metastore version was overtaken between decision and act."""

    reason = "fenced"


class TooFewInSync(Retryable):
    """The confirmed in-sync replicas are fewer than the effective min-ISR."""

    reason = "not-enough-replicas"


class Overloaded(Retryable):
    """A bounded window, queue or batch is full; back off and retry."""

    reason = "overloaded"


class OutOfStorage(Retryable):
    """The disk refused an append; reads go on."""

    reason = "out-of-storage"


class NotReady(Retryable):
    """The partition has no serving leader yet: recovery or election is under way."""

    reason = "not-ready"


class TimedOut(Retryable):
    """A read or listing was not done within the time that its client gave it; or nobody confirmed in time what the
    condition of a write was judged against, and nothing was written."""

    reason = "timeout"


class OutcomeUnknown(IsthmusError):
    """The write was appended but its fate is not known here; it may yet take effect."""

    reason = "outcome-unknown"


class PeerFault(IsthmusError):
    """A node of another cluster is unreachable, too slow or answers wrongly."""

    reason = "peer-fault"


class LocalFault(IsthmusError):
    """This machine's disk, data or set-up is at fault; an operator must act."""

    reason = "local-fault"


class Corruption(LocalFault):
    """Stored bytes fail a checksum, or two durable facts contradict each other."""

    reason = "corruption"


class Unreadable(Corruption):
    """One document of the metastore is damaged, or of a form that this program does not know. The message names its
    path; what it is about stands still until an operator mends it, and nothing else does."""


class DamagedRow(Corruption):
    """One row of a copy is missing or cannot be read; all others of the partition can. `segment`: where it is, None
    where the row does not say."""

    def __init__(self, sentence: str, segment: int | None = None) -> None:
        super().__init__(sentence)
        self.segment = segment


class DamagedChunk(Corruption):
    """A chunk of rows is not what the node that sent it made; nothing that is stored here is damaged."""


class WrongIdentity(LocalFault):
    """A data directory or metastore that belongs to another cluster or node (docs/protocol.md H33)."""

    reason = "wrong-identity"


class BadConfig(IsthmusError):
    """A setting is wrong; the message names the key path, the line and what would be right."""

    reason = "bad-config"


def clear_traceback(error: Raised) -> Raised:
    """The error itself, which holds nothing more of the calls that it came through. Where one is kept among answers in
    a call that it went through, the two make a ring, which the collector finds late (`node.daemon`): until then
    the bodies of refused writes would fill the memory."""
    found: BaseException | None = error
    while found is not None:
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
    return error
