"""Which links an operator has suspended: kept in the metastore, so that it survives a restart and says who and when.

A suspension names a queue, a peer, both or neither (all), on one node or on all. A link is suspended while any of
them fits it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import structlog

from isthmus.repl.metastore.port import Ambiguous, Metastore, Unavailable, VersionConflict
from isthmus.repl.model.errors import BadInput, CodecError, Overloaded
from isthmus.sink.scheduler import LinkName

log = structlog.get_logger(__name__)

PATH: Final = "/sink/suspensions"

SUSPENSIONS_MAX: Final = 256
"""Most suspensions kept; one more is refused. An operator has a handful."""

TRIES: Final = 5
"""How often a conditional write is tried against other writers before the operator is told to try again."""


@dataclass(frozen=True, slots=True)
class SinkSuspension:
    """One act of an operator; None means every queue, every peer, every node."""

    queue: str | None
    peer: str | None
    by: str
    at_ms: int
    reason: str
    node: str | None = None

    def fits(self, name: LinkName, node: str) -> bool:
        """True when it suspends this link of `node`."""
        return self.queue in (None, name.queue) and self.peer in (None, name.peer) and self.node in (None, node)

    def shown(self) -> dict[str, Any]:
        """For listings."""
        return asdict(self)


def unread(at_ms: int) -> SinkSuspension:
    """Stands, since `at_ms` (wall clock), where nobody could read yet what is suspended: it may be all."""
    return SinkSuspension(None, None, "?", at_ms, f"what operators have suspended cannot be read (metastore: {PATH})")


def decode(value: bytes) -> tuple[SinkSuspension, ...]:
    """The suspensions in a metastore value. Raises CodecError."""
    try:
        return tuple(
            SinkSuspension(
                None if row["queue"] is None else str(row["queue"]),
                None if row["peer"] is None else str(row["peer"]),
                str(row["by"]),
                int(row["at_ms"]),
                str(row["reason"]),
                None if row.get("node") is None else str(row["node"]),
            )
            for row in json.loads(value)
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CodecError(f"{PATH} in the metastore is not a list of suspensions: {error}") from error


def encode(suspensions: Sequence[SinkSuspension]) -> bytes:
    """A metastore value."""
    return json.dumps([asdict(s) for s in suspensions]).encode()


async def read(metastore: Metastore) -> tuple[SinkSuspension, ...]:
    """What is suspended now. Raises Unavailable, CodecError."""
    found = await metastore.get(PATH)
    return () if found is None else decode(found.value)


def added(before: Sequence[SinkSuspension], new: SinkSuspension) -> tuple[SinkSuspension, ...]:
    """`before` with `new`, which replaces one of the same queue, peer and node. Raises BadInput at the limit."""
    kept = [s for s in before if (s.queue, s.peer, s.node) != (new.queue, new.peer, new.node)]
    if len(kept) >= SUSPENSIONS_MAX:
        raise BadInput(f"{SUSPENSIONS_MAX} suspensions are kept at most: resume some first")
    return (*kept, new)


def without(
    before: Sequence[SinkSuspension], queue: str | None, peer: str | None, node: str | None = None
) -> tuple[SinkSuspension, ...]:
    """`before` without those that the request covers: resuming all ends every one. Raises BadInput when another one
    would keep all of what was named suspended, or when only such that it does not cover hold any of it."""
    wish = (queue, peer, node)
    covered = [s for s in before if all(w in (None, has) for w, has in zip(wish, _named(s), strict=True))]
    kept = tuple(s for s in before if s not in covered)
    held = [s for s in kept if all(has in (None, w) for w, has in zip(wish, _named(s), strict=True))]
    if not covered:
        held += [s for s in kept if all(w is None or has in (None, w) for w, has in zip(wish, _named(s), strict=True))]
    if held:
        named = zip(("queue", "peer", "node"), _named(held[0]), strict=True)
        what = " and ".join(f"{kind} {value}" for kind, value in named if value)
        raise BadInput(f"still suspended as part of {what or 'all sinks'} (by {held[0].by}): resume that")
    return kept


def _named(suspension: SinkSuspension) -> tuple[str | None, str | None, str | None]:
    return suspension.queue, suspension.peer, suspension.node


def _to_change(value: bytes, *, anew: bool) -> tuple[SinkSuspension, ...] | None:
    """What stands there, for who changes it; None, with `anew`, for what cannot be read. Raises BadInput."""
    try:
        return decode(value)
    except CodecError as error:
        if not anew:
            raise BadInput(
                f"what is suspended cannot be read ({error}): isthmus sink resume, with nothing named, ends all of it; "
                "then suspend what is to be suspended"
            ) from error
        log.warning("sink.unreadable_suspensions_ended", value=repr(value)[:200])
        return None


async def change(
    metastore: Metastore, new: SinkSuspension | None, queue: str | None, peer: str | None, node: str | None = None
) -> tuple[SinkSuspension, ...]:
    """Add `new`, or when it is None take away what (queue, peer, node) covers, and where nothing is named what cannot
    be read, too; returns what stands then. Raises BadInput, Overloaded when other writers or an outage were in the way
    throughout."""
    anew = (new, queue, peer, node) == (None, None, None, None)
    for _ in range(TRIES):
        try:
            found = await metastore.get(PATH)
            before = () if found is None else _to_change(found.value, anew=anew)
            known = before or ()
            after = without(known, queue, peer, node) if new is None else added(known, new)
            if after != before:
                await metastore.put(PATH, encode(after), None if found is None else found.version)
        except (VersionConflict, Ambiguous):
            continue
        except Unavailable as error:
            raise Overloaded(f"the metastore cannot be reached, nothing was changed: {error}") from error
        return after
    raise Overloaded("the suspension could not be written: try again")
