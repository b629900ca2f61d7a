"""What is asked of a cluster and what it answers: the nouns between the faces and the coordinator.

The HTTP face, the sink and the folds build these; `repl.coordinator` answers them. An answer for one item is
a value or an error of the tree in `repl.model.errors`; one bad item never disturbs the others.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from repl.model.errors import IsthmusError
from repl.model.keys import Key
from repl.model.objects import Content
from repl.model.vclock import Clock


class WriteRequest(NamedTuple):
    """A client's write (a delete when `content.tombstone`). `context` is the clock that the client read;
    None or empty means without context; a delete without context deletes what is there now."""

    key: Key
    content: Content
    context: Clock | None = None


class Written(NamedTuple):
    """A durable, applied write: the canonical bytes of the object as it stands and its encoded clock. `created`
    is False when a delete found nothing to delete (nothing was written, `payload` is empty)."""

    payload: bytes
    clock: bytes
    sibling_count: int
    created: bool = True


class PushItem(NamedTuple):
    """A change from another cluster: `payload` is canonical object bytes, kept as they are; `origin` the
    16-byte uuid of the cluster that made it."""

    key: Key
    origin: bytes
    payload: bytes


class PushOutcome(StrEnum):
    """What became of a push; words of the sink's counters."""

    APPLIED = "applied"
    """The push dominated what was there (or nothing was): stored as it came."""
    MERGED = "merged"
    """Concurrent: both are kept as siblings, and the result counts as ours."""
    SUPERSEDED = "superseded"
    """What is there has seen the push already; nothing was written."""
    REJECTED = "rejected"
    """Refused for good (malformed, too large); see the error."""
    FAILED = "failed"
    """Not done or not known; it must be pushed again; see the error."""


class PushResult(NamedTuple):
    """The outcome of one push; `error` says why for REJECTED and FAILED."""

    outcome: PushOutcome
    error: IsthmusError | None = None
