"""The error tree: one class for each way in which a caller can react to a failure.

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
      LocalFault           this machine's disk, data or configuration is faulty: an operator must act
        Corruption         stored bytes fail their checksum or contradict each other
          Unreadable       one document of the metastore; only what it controls stops
          DamagedRow       one row of a copy; the others of the partition can be read
            DamagedChange  a row of the change index (`repl.store.port`)
          DamagedChunk     rows from another node that differ from what it made
        InternalError      a defect of this program ended one item                               (500)
        WrongIdentity      a data directory or metastore of another cluster or node
        StorageShort       descriptors, inodes or space are short; nothing was done, it can be done later
      BadConfig            a setting is wrong (all faults at once: see `config.loader`)

Bugs are assertions, not members of this tree; `repl.unforeseen` makes an InternalError of what an item's work raised.
Each error carries a `reason` code, stable over releases: it goes into HTTP answers, logs and `REASON` columns.
"""

from __future__ import annotations

from typing import TypeVar

Raised = TypeVar("Raised", bound=BaseException)


class IsthmusError(Exception):
    """Base of all errors of Isthmus; never raised itself. `reason` is a stable code in kebab case."""

    reason: str = "internal"

    needs_confirmation: bool = False
    """The refusal is right only while the process that made it leads. It is answered after a committed read would be
    (docs/protocol.md R-READ), and replaced by that read's error otherwise."""

    leader: str | None = None
    """The node that leads the partition of the refused item, if it is another one and known."""


class BadInput(IsthmusError):
    """The request is wrong; repeating it cannot help."""

    reason = "bad-input"


class TooLarge(BadInput):
    """A size is over a named limit; the message names the limit and its value."""

    reason = "too-large"


class CodecError(BadInput):
    """Bytes are not a valid encoding of the expected type."""

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
    """An epoch or a metastore version was overtaken between decision and action."""

    reason = "fenced"


class TooFewInSync(Retryable):
    """Fewer replicas are in sync than the effective min-ISR."""

    reason = "not-enough-replicas"


class Overloaded(Retryable):
    """A bounded window, queue or batch is full; back off and retry."""

    reason = "overloaded"


class OutOfStorage(Retryable):
    """The disk refused an append; reads go on."""

    reason = "out-of-storage"


class NotReady(Retryable):
    """The partition has no serving leader yet: recovery or election is in progress."""

    reason = "not-ready"


class TimedOut(Retryable):
    """A read or listing exceeded its client's time limit; or a conditional write's refusal was not confirmed in time,
    and nothing was written."""

    reason = "timeout"


class OutcomeUnknown(IsthmusError):
    """The write was appended, but whether it takes effect is unknown here."""

    reason = "outcome-unknown"


class PeerFault(IsthmusError):
    """A node of another cluster is unreachable, too slow, or answers wrongly."""

    reason = "peer-fault"


class LocalFault(IsthmusError):
    """This machine's disk, data or configuration is faulty; an operator must act."""

    reason = "local-fault"


class StorageShort(LocalFault):
    """The machine is short of something that a file needs: descriptors, inodes, space (`repl.shortage`). Nothing was
    written or synced, so the same may be done again later; a caller that cannot wait takes it for a LocalFault."""

    reason = "out-of-storage"


class InternalError(LocalFault):
    """An exception that nobody foresaw ended the work on one item; for a write, before anything was appended. Made by
    `repl.unforeseen` alone."""

    reason = "internal"


class Corruption(LocalFault):
    """Stored bytes fail a checksum, or two durable facts contradict each other."""

    reason = "corruption"


class Unreadable(Corruption):
    """A metastore document is damaged, or of a form unknown to this version.

    The message names its path. Only what the document controls stops, until an operator repairs it.
    """


class DamagedRow(Corruption):
    """One row of a copy is missing or unreadable; all others of the partition can be read.

    `segment`: the row's segment, None when unknown.
    """

    def __init__(self, sentence: str, segment: int | None = None) -> None:
        super().__init__(sentence)
        self.segment = segment


class DamagedChunk(Corruption):
    """A chunk of rows differs from what its sender made; nothing that is stored here is damaged."""


class WrongIdentity(LocalFault):
    """A data directory or metastore belongs to another cluster or node (docs/protocol.md H33)."""

    reason = "wrong-identity"


class BadConfig(IsthmusError):
    """A setting is wrong; the message names the key path, the line and what would be right."""

    reason = "bad-config"


def clear_traceback(error: Raised) -> Raised:
    """Drop the traceback of an error and its causes, and return the error.

    An error kept among the answers of a call that it passed through forms a reference cycle, which the collector finds
    late (`node.daemon`); until then the bodies of refused writes would fill the memory.
    """
    found: BaseException | None = error
    while found is not None:
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
    return error
