"""What operators decide of a queue as a whole, as values: definitions, decrees, suspensions (pure).

All are small JSON values in the metastore, changed by conditional writes only (`queues.ownership.change_value`):

    /queue-definitions          {name: {"filter", "cascade", ..., "by", "at_ms", "reason"} or {"delisted": true, ...}}
    /queues/NAME/decree         the newest act that moves cursors: registered, placed, cleared, released
    /queues/NAME/suspension     {"suspensions": [{"what", "node", "by", "at_ms", "reason"}]}
    /queues/NAME/rates          {"bytes_per_second", "objects_per_second", "by", "at_ms", "reason"}
    /queues/NAME/lost           {"lost": [gaps of the lower priorities]}
    /queues/NAME/held           {"held": [what each node holds of the lower priorities]}: `queues.held`

A decree has a rising version. Each partition's leader obeys it by a CURSOR entry that carries that version, whenever it
comes to it, so that an act reaches every partition however nodes fail meanwhile (docs/protocol.md R-DECREE). The story
goes on in `queues.steering`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

import structlog

from config.settings import QueueSettings
from queues.cursors import CursorState
from queues.gaps import Gap, below, growing, with_gap
from queues.ownership import json_object, path_of
from repl.model.errors import BadInput, CodecError

log = structlog.get_logger(__name__)

DEFINITIONS_PATH: Final = "/queue-definitions"

DEFINITIONS_MAX: Final = 256
"""Most queues registered or delisted at run time: each is asked for every change that is applied."""

SUSPENSIONS_MAX: Final = 256
"""Most suspensions of one queue: two a node."""

SERVING: Final = "serving"
PUBLISHING: Final = "publishing"

NOW: Final = "now"
ALL: Final = "0"

REGISTERED: Final = "registered"
PLACED: Final = "placed"
CLEARED: Final = "cleared"
RELEASED: Final = "released"


POSITIONS_MAX: Final = 32_768
"""Positions of one decree: with the longest numbers 0.7 MB, below what the metastore takes for one value."""

Positions = tuple[tuple[int, int], ...]
"""(partition, offset): all changes below the offset are at the sink cluster already, by another way than the queue."""


@dataclass(frozen=True, slots=True)
class Decree:
    """One act that moves cursors of a queue. `start_ms` (wall clock): from the changes of that time on; 0: from the
    first change of all. With `positions` only the cursors of these partitions move, each to its own; a partition where
    the queue never stood begins at 0."""

    version: int
    what: str
    start_ms: int
    by: str
    at_ms: int
    reason: str
    positions: Positions = ()

    def shown(self) -> dict[str, Any]:
        """For listings; of positions how many."""
        return {**asdict(self), "positions": len(self.positions)}


@dataclass(frozen=True, slots=True)
class Definition:
    """A queue that was registered at run time (`settings`), or delisted (None)."""

    settings: QueueSettings | None
    by: str
    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class QueueSuspension:
    """`what` of a queue (SERVING or PUBLISHING) an operator has suspended, on one node or (None) on all."""

    what: str
    node: str | None
    by: str
    at_ms: int
    reason: str

    def shown(self) -> dict[str, Any]:
        """For listings."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class UnreadSuspension(QueueSuspension):
    """Stands where nobody has read yet what operators have suspended: until that is known nothing is given out, nothing
    pushed is taken, and gaps neither begin nor end. It is never written."""


def unread(queue: str, at_ms: int) -> tuple[QueueSuspension, ...]:
    """Of `queue`, since `at_ms` (wall clock)."""
    why = f"what operators have suspended cannot be read (metastore: {path_of(queue, 'suspension')})"
    return tuple(UnreadSuspension(what, None, "?", at_ms, why) for what in (SERVING, PUBLISHING))


def obeyed(state: CursorState, cursor: int, decree: Decree, start: int, upto_ms: int, since_ms: int = 0) -> CursorState:
    """What `decree` makes of a partition's state whose cursor stands at `cursor`. It asks for all from `start` on, the
    changes of `upto_ms` and later; what a queue that is not new passes over is a gap, unless it is placed: then it was
    brought by other means. `since_ms`: when the first of that was made, 0 where nobody knows."""
    if decree.what == REGISTERED:
        grown = tuple(gap for gap in state.gaps if gap.is_open)
        return replace(state, cursor=start, decree=decree.version, gaps=grown)
    gaps = below(state.gaps, start)
    if start > cursor and decree.what != PLACED:
        grows = growing(gaps)  # from there on all is left out already
        end = start if grows is None else min(start, grows.start)
        from_ms = since_ms or max((gap.upto_ms for gap in gaps if gap.end <= cursor), default=0)
        gap = Gap(cursor, end, from_ms, upto_ms, 0, decree.what, decree.by, decree.reason)
        gaps = with_gap(gaps, gap)
    return replace(state, cursor=start, decree=decree.version, gaps=gaps)


def encode_decree(decree: Decree) -> bytes:
    """JSON."""
    return json.dumps(asdict(decree)).encode()


def decode_decree(value: bytes) -> Decree:
    """Raises CodecError."""
    raw = json_object(value, "decree of a queue")
    try:
        plain = {field.name: raw[field.name] for field in fields(Decree) if field.name != "positions"}
        positions = tuple((partition, offset) for partition, offset in raw.get("positions", ()))
        decree = Decree(**plain, positions=positions)
    except KeyError as error:
        raise CodecError(f"not a decree of a queue: {error} is missing") from error
    except (TypeError, ValueError) as error:
        raise CodecError(f"not a decree of a queue: {error}") from error
    numbers = (decree.version, decree.start_ms, decree.at_ms, *(number for one in positions for number in one))
    if not all(type(n) is int and n >= 0 for n in numbers) or decree.version < 1 or not isinstance(decree.what, str):
        raise CodecError("not a decree of a queue: a field is out of range")
    return decree


SETTABLE: Final = tuple(field.name for field in fields(QueueSettings) if field.name != "name")
"""Fields of a definition."""


def encode_definitions(definitions: Mapping[str, Definition]) -> bytes:
    """JSON."""
    found = {}
    for name, one in definitions.items():
        act = {"by": one.by, "at_ms": one.at_ms, "reason": one.reason}
        values = {"delisted": True} if one.settings is None else {f: getattr(one.settings, f) for f in SETTABLE}
        found[name] = values | act
    return json.dumps(found).encode()


def decode_definitions(value: bytes | None) -> dict[str, Definition]:
    """Raises CodecError. An unknown field is passed over, one that is missing has its default."""
    if value is None:
        return {}
    found = {}
    for name, raw in json_object(value, "list of queue definitions").items():
        if not isinstance(raw, dict):
            raise CodecError(f"queue definition of {name!r}: no object")
        default = QueueSettings(name)
        values = {f: raw[f] for f in SETTABLE if f in raw}
        if any(type(value) is not type(getattr(default, f)) for f, value in values.items()):
            raise CodecError(f"queue definition of {name!r}: a field has a wrong type")
        settings = None if raw.get("delisted") else replace(default, **values)
        at_ms = raw.get("at_ms")
        act = (str(raw.get("by", "")), at_ms if type(at_ms) is int else 0, str(raw.get("reason", "")))
        found[name] = Definition(settings, *act)
    return found


def in_force(config: Mapping[str, QueueSettings], definitions: Mapping[str, Definition]) -> dict[str, QueueSettings]:
    """The queues there are: what was registered or delisted at run time comes before the config file."""
    found = {name: settings for name, settings in config.items() if name not in definitions}
    found |= {name: one.settings for name, one in definitions.items() if one.settings is not None}
    return found


def encode_suspensions(suspensions: tuple[QueueSuspension, ...]) -> bytes:
    """JSON."""
    return json.dumps({"suspensions": [asdict(one) for one in suspensions]}).encode()


def decode_suspensions(value: bytes | None) -> tuple[QueueSuspension, ...]:
    """Raises CodecError. Before there were several, the object itself was one, of serving, on all nodes."""
    if value is None:
        return ()
    raw = json_object(value, "list of a queue's suspensions")
    rows = raw["suspensions"] if "suspensions" in raw else [raw | {"what": SERVING, "node": None}] if raw else []
    try:
        return tuple(
            QueueSuspension(
                str(row["what"]),
                None if row["node"] is None else str(row["node"]),
                str(row["by"]),
                int(row["at_ms"]),
                str(row["reason"]),
            )
            for row in rows
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"not a list of a queue's suspensions: {error}") from error


def suspensions_to_change(value: bytes | None, queue: str, *, anew: bool) -> tuple[QueueSuspension, ...]:
    """`decode_suspensions` for who changes them: what cannot be read is none with `anew`. Raises BadInput."""
    try:
        return decode_suspensions(value)
    except CodecError as error:
        if not anew:
            raise BadInput(
                f"what is suspended of queue {queue} cannot be read ({error}): isthmus queue resume {queue} on all "
                "nodes ends all of it; then suspend what is to be suspended"
            ) from error
        log.warning("queue.unreadable_suspensions_ended", queue=queue, value=repr(value)[:200])
        return ()


def resumed(found: tuple[QueueSuspension, ...], what: str, node: str | None, queue: str) -> tuple[QueueSuspension, ...]:
    """`found` without the suspensions of `what` on `node`, or (None) on any. Raises BadInput where one on all nodes
    would keep that node suspended all the same."""
    everywhere = next((one for one in found if one.what == what and one.node is None), None)
    if node is not None and everywhere is not None:
        flag = "" if what == SERVING else f" --{what}"
        raise BadInput(
            f"{what} of queue {queue} is suspended on all nodes (by {everywhere.by}), {node} among them: "
            f"isthmus queue resume {queue}{flag}, and suspend those that are to stay so by --node"
        )
    return tuple(one for one in found if one.what != what or node not in (None, one.node))


def suspension_of(suspensions: tuple[QueueSuspension, ...], what: str, node: str) -> QueueSuspension | None:
    """The first that suspends `what` on `node`."""
    return next((one for one in suspensions if one.what == what and one.node in (None, node)), None)
