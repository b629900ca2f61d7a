"""Which links an operator has suspended: kept in the metastore, so that it survives a restart and says who and when.

A suspension names a queue, a peer, both or neither (all). A link is suspended while any of them fits it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from repl.metastore.port import Ambiguous, Conflict, Metastore, Unavailable
from repl.model.errors import BadInput, CodecError, Overloaded
from sink.roster import LinkName

PATH: Final = "/sink/suspensions"

SUSPENSIONS_MAX: Final = 256
"""Most suspensions kept; one more is refused. An operator has a handful."""

TRIES: Final = 5
"""How often a conditional write is tried against other writers before the operator is told to try again."""


@dataclass(frozen=True, slots=True)
class Suspension:
    """One act of an operator; None means every queue, every peer."""

    queue: str | None
    peer: str | None
    by: str
    at_ms: int
    reason: str

    def fits(self, name: LinkName) -> bool:
        """True when it suspends this link."""
        return self.queue in (None, name.queue) and self.peer in (None, name.peer)


def decode(value: bytes) -> tuple[Suspension, ...]:
    """The suspensions in a metastore value. Raises CodecError."""
    try:
        return tuple(
            Suspension(
                None if row["queue"] is None else str(row["queue"]),
                None if row["peer"] is None else str(row["peer"]),
                str(row["by"]),
                int(row["at_ms"]),
                str(row["reason"]),
            )
            for row in json.loads(value)
        )
    except (ValueError, TypeError, KeyError) as error:
        raise CodecError(f"{PATH} in the metastore is not a list of suspensions: {error}") from error


def encode(suspensions: Sequence[Suspension]) -> bytes:
    """A metastore value."""
    return json.dumps([asdict(s) for s in suspensions]).encode()


async def read(metastore: Metastore) -> tuple[Suspension, ...]:
    """What is suspended now. Raises Unavailable, CodecError."""
    found = await metastore.get(PATH)
    return () if found is None else decode(found.value)


def added(before: Sequence[Suspension], new: Suspension) -> tuple[Suspension, ...]:
    """`before` with `new`, which replaces one of the same queue and peer. Raises BadInput at the limit."""
    kept = [s for s in before if (s.queue, s.peer) != (new.queue, new.peer)]
    if len(kept) >= SUSPENSIONS_MAX:
        raise BadInput(f"{SUSPENSIONS_MAX} suspensions are kept at most: resume some first")
    return (*kept, new)


def without(before: Sequence[Suspension], queue: str | None, peer: str | None) -> tuple[Suspension, ...]:
    """`before` without those that the request covers: resuming all ends every one. Raises BadInput when another one
    would keep all of what was named suspended, or when only such that it does not cover hold any of it."""
    covered = [s for s in before if queue in (None, s.queue) and peer in (None, s.peer)]
    kept = tuple(s for s in before if s not in covered)
    held = [s for s in kept if s.queue in (None, queue) and s.peer in (None, peer)]
    if not covered:
        held += [
            s for s in kept if (queue is None or s.queue in (None, queue)) and (peer is None or s.peer in (None, peer))
        ]
    if held:
        what = " and ".join(f"{k} {v}" for k, v in (("queue", held[0].queue), ("peer", held[0].peer)) if v)
        raise BadInput(f"still suspended as part of {what or 'all sinks'} (by {held[0].by}): resume that")
    return kept


async def change(
    metastore: Metastore, new: Suspension | None, queue: str | None, peer: str | None
) -> tuple[Suspension, ...]:
    """Add `new`, or when it is None take away what (queue, peer) covers; returns what stands then. Raises BadInput,
    Overloaded when other writers or an outage were in the way throughout."""
    for _ in range(TRIES):
        try:
            found = await metastore.get(PATH)
            before = () if found is None else decode(found.value)
            after = without(before, queue, peer) if new is None else added(before, new)
            if after != before:
                await metastore.put(PATH, encode(after), None if found is None else found.version)
        except (Conflict, Ambiguous):
            continue
        except Unavailable as error:
            raise Overloaded(f"the metastore cannot be reached, nothing was changed: {error}") from error
        return after
    raise Overloaded("the suspension could not be written: try again")
