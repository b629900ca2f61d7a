"""Links that operators have suspended. They are in the metastore (`sink.operator_settings`) and outlast restarts.

A suspension names a queue, a peer, both or neither (all), on one node or on all. A link is suspended while any of them
matches it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog
from msgspec import Struct

from isthmus.queues.json_document import decode_json, encode_json, json_document
from isthmus.repl.metastore.watched_document import Document
from isthmus.repl.model.errors import BadInput, CodecError
from isthmus.sink.scheduler import LinkName

log = structlog.get_logger(__name__)

SETTINGS_PATH: Final = "/sink/settings"
"""Where suspensions, limits and peers are one document."""

PATH: Final = "/sink/suspensions"

SUSPENSIONS_MAX: Final = 256
"""Most suspensions; one more is refused. An operator has a handful."""


class SinkSuspension(Struct, frozen=True):
    """One act of an operator; None means every queue, every peer, every node."""

    queue: str | None
    peer: str | None
    by: str
    at_ms: int
    reason: str
    node: str | None = None

    def matches(self, name: LinkName, node: str) -> bool:
        """Whether it suspends this link of `node`."""
        return self.queue in (None, name.queue) and self.peer in (None, name.peer) and self.node in (None, node)


Suspensions = tuple[SinkSuspension, ...]


def decode(value: bytes) -> Suspensions:
    """The suspensions in a metastore value. Raises CodecError."""
    return decode_json(value, Suspensions, "list of suspensions")


DOCUMENT: Final[Document[Suspensions]] = json_document(PATH, decode, encode_json, ())


def unread(at_ms: int) -> SinkSuspension:
    """Placeholder that suspends all links, since `at_ms` (wall clock), while the suspensions have not been read."""
    why = f"what operators have suspended cannot be read (metastore: {PATH}, or suspensions in {SETTINGS_PATH})"
    return SinkSuspension(None, None, "?", at_ms, why)


def added(before: Sequence[SinkSuspension], new: SinkSuspension) -> Suspensions:
    """`before` with `new`, which replaces one of the same queue, peer and node. Raises BadInput at the limit."""
    kept = [s for s in before if (s.queue, s.peer, s.node) != (new.queue, new.peer, new.node)]
    if len(kept) >= SUSPENSIONS_MAX:
        raise BadInput(f"{SUSPENSIONS_MAX} suspensions are kept at most: resume some first")
    return (*kept, new)


def without(
    before: Sequence[SinkSuspension], queue: str | None, peer: str | None, node: str | None = None
) -> Suspensions:
    """`before` without the suspensions that the request covers: to resume all ends every one. Raises BadInput when
    another one would keep everything that was named suspended, or when only others suspend any of it."""
    wanted = (queue, peer, node)
    covered = [s for s in before if all(w in (None, has) for w, has in zip(wanted, _scope(s), strict=True))]
    kept = tuple(s for s in before if s not in covered)
    held = [s for s in kept if all(has in (None, w) for w, has in zip(wanted, _scope(s), strict=True))]
    if not covered:
        held += [
            s for s in kept if all(w is None or has in (None, w) for w, has in zip(wanted, _scope(s), strict=True))
        ]
    if held:
        named = zip(("queue", "peer", "node"), _scope(held[0]), strict=True)
        what = " and ".join(f"{kind} {value}" for kind, value in named if value)
        raise BadInput(f"still suspended as part of {what or 'all sinks'} (by {held[0].by}): resume that")
    return kept


def _scope(suspension: SinkSuspension) -> tuple[str | None, str | None, str | None]:
    return suspension.queue, suspension.peer, suspension.node


def replace_unreadable(error: CodecError, *, all_resumed: bool) -> Suspensions:
    """The value to change where the document cannot be decoded: none, if `all_resumed`, else raises BadInput."""
    if not all_resumed:
        raise BadInput(
            f"what is suspended cannot be read ({error}): isthmus sink resume, with nothing named, ends all of it; "
            "then suspend what is to be suspended"
        ) from error
    log.warning("sink.unreadable_suspensions_ended", value=str(error)[:200])
    return ()
