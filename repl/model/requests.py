"""Requests to a cluster and their results, exchanged with `repl.coordinator.coordinator`.

The HTTP API, sinks and folds build requests. The answer for one item is a value or an error of `repl.model.errors`; a
bad item does not affect the others.
"""

from __future__ import annotations

from collections.abc import Coroutine
from enum import StrEnum
from typing import Any, Final, NamedTuple

from isthmus.repl.model.conditions import Condition
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.vclock import Clock

REQUEST_ID_BYTES_MAX: Final = 64
"""Maximum length of a request id: a UUID in any spelling and a sequence number fit. Each id takes a row of the store
while it is remembered."""


class Isolation(StrEnum):
    """Isolation of a read."""

    COMMITTED = "committed"
    """Only entries that no change of leader can undo: linearizable per partition (docs/protocol.md R-READ)."""
    UNCOMMITTED = "uncommitted"
    """The newest entry of the leader's log, which may still be dropped."""


class WriteRequest(NamedTuple):
    """A client's write (a delete when `content.tombstone`).

    `context`: the clock that the client read; None or empty for none. A delete without context deletes the current
    siblings. `request_id` (at most REQUEST_ID_BYTES_MAX bytes; empty: none): of all writes of the key under one id, the
    first takes effect and the others are answered as `repeated`, while the dedup window remembers the id.
    `payload_wanted` False omits the object from the result. `condition` must hold when the leader handles the write, or
    ConditionFailed.
    """

    key: Key
    content: Content
    context: Clock | None = None
    request_id: bytes = b""
    payload_wanted: bool = True
    condition: Condition | None = None


class WriteResult(NamedTuple):
    """A durable, applied write: canonical bytes and encoded clock of the object now stored.

    `created` is False for a delete of an absent key (nothing was written, `payload` is empty). `repeated`: the request
    id was known, nothing was written, and the object is the current one; for a key reaped since, `payload` is empty and
    `clock` is its tombstone's (empty once that is forgotten). `payload` is also empty when it was not wanted, or is too
    large to come from another node. `leader`: the node that the write was forwarded to; empty for none.
    """

    payload: bytes
    clock: bytes
    sibling_count: int
    created: bool = True
    repeated: bool = False
    leader: str = ""


class ForwardedRead(NamedTuple):
    """The answer to a read that was forwarded to node `leader`: as KeyValue.get returns it."""

    payload: bytes | None
    leader: str


PendingRead = Coroutine[Any, Any, bytes | ForwardedRead | None]
"""A read that waits: for its confirmation, for a leader, or for another node. Awaited, it returns as KeyValue.read."""


class PushItem(NamedTuple):
    """A change of another cluster: `payload` is canonical object bytes, stored unchanged.

    `origin`: 16-byte uuid of the cluster that made it. `leaving`: a tombstone that is about to be reaped there.
    """

    key: Key
    origin: bytes
    payload: bytes
    leaving: bool = False


class PushOutcome(StrEnum):
    """The outcome of a push, also a label of the sink's counters."""

    APPLIED = "applied"
    """The push dominated the stored object, or there was none: stored unchanged."""
    MERGED = "merged"
    """Concurrent with the stored object: both are kept as siblings, and the result is a change of this cluster."""
    SUPERSEDED = "superseded"
    """The stored object has seen the push; nothing was written."""
    REJECTED = "rejected"
    """Refused for good (malformed, too large); see the error."""
    FAILED = "failed"
    """Not done, or not known; it must be pushed again; see the error."""


class MergedWith(NamedTuple):
    """The object that a merged push met: its encoded clock before, its number of siblings after."""

    clock: bytes
    siblings: int


class PushResult(NamedTuple):
    """The outcome of one push; `error` for REJECTED and FAILED, `met` for MERGED."""

    outcome: PushOutcome
    error: IsthmusError | None = None
    met: MergedWith | None = None
