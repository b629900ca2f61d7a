"""What is asked of a cluster and what it answers: the nouns between the faces and the coordinator.

The HTTP face, the sink and the folds build these; `repl.coordinator.coordinator` answers them. An answer for one item
is a value or an error of the tree in `repl.model.errors`; one bad item never disturbs the others.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from isthmus.repl.model.conditions import Condition
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.vclock import Clock

REQUEST_ID_BYTES_MAX: Final = 64
"""Longest request id: a UUID in any spelling and a sequence number fit. Each one takes a row of the store for as long
as it is remembered."""


class Isolation(StrEnum):
    """What a read may see."""

    COMMITTED = "committed"
    """What no change of leader can take back: linearizable per partition (docs/protocol.md R-READ)."""
    UNCOMMITTED = "uncommitted"
    """The newest entry of the leader's log, which may yet be dropped, and then was never there."""


class WriteRequest(NamedTuple):
    """A client's write (a delete when `content.tombstone`). `context` is the clock that the client read;
    None or empty means without context; a delete without context deletes what is there now.

    `request_id` (at most REQUEST_ID_BYTES_MAX bytes; empty: none) names it: of all writes of the key under one id, the
    first takes effect and the others are answered as `repeated`, as long as the dedup window remembers it.
    `payload_wanted` False spares the way back of the object. `condition` must hold when the leader takes the write up,
    else ConditionFailed.
    """

    key: Key
    content: Content
    context: Clock | None = None
    request_id: bytes = b""
    payload_wanted: bool = True
    condition: Condition | None = None


class WriteResult(NamedTuple):
    """A durable, applied write: the canonical bytes of the object as it stands and its encoded clock. `created`
    is False when a delete found nothing to delete (nothing was written, `payload` is empty). `repeated`: its request
    id was known, so nothing was written now, and this is what the key holds; of a key that was reaped since, `payload`
    is empty, and `clock` is what its tombstone had seen (empty once that is forgotten). `payload` is empty, too, when
    it was not wanted, and when it is too large to come from another node."""

    payload: bytes
    clock: bytes
    sibling_count: int
    created: bool = True
    repeated: bool = False


class PushItem(NamedTuple):
    """A change from another cluster: `payload` is canonical object bytes, kept as they are; `origin` the
    16-byte uuid of the cluster that made it. `leaving`: it is a tombstone that is about to be reaped there."""

    key: Key
    origin: bytes
    payload: bytes
    leaving: bool = False


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


class Met(NamedTuple):
    """What a merged push met: the encoded clock that the key had, and how many siblings it has since."""

    clock: bytes
    siblings: int


class PushResult(NamedTuple):
    """The outcome of one push; `error` says why for REJECTED and FAILED, `met` what MERGED was concurrent with."""

    outcome: PushOutcome
    error: IsthmusError | None = None
    met: Met | None = None
