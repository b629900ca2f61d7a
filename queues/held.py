"""What a node holds at a queue's lower priorities, as it stands in the metastore (pure; docs/protocol.md R-HELD).

References of full-sync, folds and operators are in the memory of one node (`queues.lower`) and go with it. So before a
node takes any in, a mark says so: at most so many, queued since when. A mark whose node has died becomes a record of
what may be lost (`queues.steering.Lost`), which a full-sync closes. Marks are raised in few large steps, so they cost
few writes, and what they say is a bound. The story goes on in `queues.holding`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Final

from queues.ownership import json_object
from repl.model.errors import CodecError

FIRST_STEP: Final = 256
"""Least bound of a mark: a push of an operator costs one write."""

STEP_FACTOR: Final = 8
"""Each bound is so many times the one below: five writes lead to 300,000 references, and the bound that a crash leaves
says more than an eighth of the truth."""

HELD_MAX: Final = 512
"""Marks of one queue: two a node. Beyond it a node takes nothing in."""


@dataclass(frozen=True, slots=True)
class Held:
    """`node` holds at most `at_most` references at `priority`, none queued before `since_ms` (wall clock)."""

    node: str
    priority: int
    at_most: int
    since_ms: int


def bound_for(count: int, limit: int) -> int:
    """The least bound that covers `count`, of those below `limit`, which covers all."""
    bound = FIRST_STEP
    while bound < count:
        bound *= STEP_FACTOR
    return min(bound, limit)


def of_node(marks: Iterable[Held], node: str) -> tuple[Held, ...]:
    """Those of one node."""
    return tuple(mark for mark in marks if mark.node == node)


def encode_held(marks: Iterable[Held]) -> bytes:
    """JSON."""
    return json.dumps({"held": [asdict(one) for one in marks]}).encode()


def decode_held(value: bytes | None) -> tuple[Held, ...]:
    """Raises CodecError."""
    if value is None:
        return ()
    raw = json_object(value, "list of what nodes hold of a queue")
    try:
        found = tuple(Held(**{field.name: row[field.name] for field in fields(Held)}) for row in raw["held"])
    except (KeyError, TypeError) as error:
        raise CodecError(f"not a list of what nodes hold of a queue: {error}") from error
    for one in found:
        if type(one.node) is not str or not all(type(n) is int for n in (one.priority, one.at_most, one.since_ms)):
            raise CodecError("not a list of what nodes hold of a queue: a field is of another type")
    return found
