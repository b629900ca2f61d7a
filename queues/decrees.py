"""What operators decide of a queue as a whole, as values: definitions, decrees, suspensions (pure).

All are small JSON values in the metastore, changed by conditional writes only (`queues.ownership.change_value`):

    /queue-definitions          {name: {"filter", "cascade", ..., "by", "at_ms", "reason"} or {"delisted": true, ...}}
    /queues/NAME/decree         the newest act that moves cursors, or changes what is offered: registered, placed,
                                cleared, released, offer-changed
    /queues/NAME/limits         {"queue_limit_count", ..., "by", "at_ms", "reason"}: limits that an operator has set
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
from typing import Any, Final, NamedTuple

import structlog

from config.settings import QueueSettings
from queues.cursors import CursorState
from queues.filters import offers_more, parse_filter
from queues.gaps import Gap, below, growing, with_gap
from queues.ownership import json_object, path_of
from repl.model.errors import BadConfig, BadInput, CodecError

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
OFFER_CHANGED: Final = "offer-changed"


POSITIONS_MAX: Final = 32_768
"""Positions of one decree: with the longest numbers 0.7 MB, below what the metastore takes for one value."""

Positions = tuple[tuple[int, int], ...]
"""(partition, offset): all changes below the offset are at the sink cluster already, by another way than the queue."""


class Applied(NamedTuple):
    """What the nodes of a cluster had applied when an operator acted: an offset of each partition whose leader
    answered, above which nothing was applied there, and the earliest and the latest of the nodes' wall clocks."""

    positions: Positions
    earliest_ms: int
    latest_ms: int


NO_PARTITION: Final = ((1 << 32) - 1, 0)
"""The one position of a decree that moves no cursor: a program that does not know its kind obeys it by standing
still."""


@dataclass(frozen=True, slots=True)
class OfferChange:
    """Another filter, and whether to cascade, that an operator has set (None: as the definition or file has it), in
    force since decree `version`; `was` and `was_cascade` were in force before, since decree `since` (0: always).
    `again`: everything is offered once more."""

    filter: str | None
    cascade: bool | None
    was: str
    was_cascade: bool
    version: int
    since: int
    by: str
    at_ms: int
    reason: str
    again: bool = False

    def offers_more(self, settings: QueueSettings, bucket_type: bytes) -> bool:
        """Whether more is offered of a bucket type than before; `settings` are those in force."""
        now, before = parse_filter(settings.filter), parse_filter(self.was)
        return (settings.cascade and not self.was_cascade) or offers_more(now, before, bucket_type)


@dataclass(frozen=True, slots=True)
class SetLimits:
    """Limits of a queue that an operator has set: fields of QueueSettings, by name."""

    values: Mapping[str, Any]
    by: str
    at_ms: int
    reason: str


LIMITS: Final = (
    "object_size_limit_bytes",
    "object_limit_count",
    "queue_limit_count",
    "overflow",
    "lease_ms",
    "riak_fetch",
)
"""Fields of QueueSettings that may be set while the queue runs, without any cursor."""


@dataclass(frozen=True, slots=True)
class Decree:
    """One act that moves cursors of a queue. `start_ms` (wall clock): from the changes of that time on; 0: from the
    first change of all. With `positions` only the cursors of these partitions move, each to its own; a partition where
    the queue never stood begins at 0. With `by_time` partitions without a position go by `start_ms`. `change`: the
    newest change of what is offered, which later decrees carry along; so they do `released`, the newest release before
    them: the next owner has nothing of what lies below, so a partition that has not obeyed it does that first."""

    version: int
    what: str
    start_ms: int
    by: str
    at_ms: int
    reason: str
    positions: Positions = ()
    by_time: bool = False
    change: OfferChange | None = None
    released: Decree | None = None

    def next_after(self, version: int) -> Decree:
        """What a partition obeys next that has obeyed the decree of that version."""
        return self.released if self.released is not None and version < self.released.version else self

    def after(self, before: Decree) -> Decree:
        """This one, made after `before`: with the release that some partition may not have obeyed yet. Positions of
        both that are too many for one value leave that one to go by time."""
        released = replace(before, released=None) if before.what == RELEASED else before.released
        if released is None or self.what in (REGISTERED, RELEASED):
            return self
        if len(self.positions) + len(released.positions) > POSITIONS_MAX:
            released = replace(released, positions=())
        return replace(self, released=released)

    def shown(self) -> dict[str, Any]:
        """For listings; of positions how many."""
        released = None if self.released is None else self.released.shown()
        return {**asdict(self), "positions": len(self.positions), "released": released}


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
    pushed is taken, and gaps neither begin nor end; and of serving alone where a limit cannot be read. It is never
    written."""


def unread(queue: str, at_ms: int) -> tuple[QueueSuspension, ...]:
    """Of `queue`, since `at_ms` (wall clock)."""
    why = f"what operators have suspended cannot be read (metastore: {path_of(queue, 'suspension')})"
    return tuple(UnreadSuspension(what, None, "?", at_ms, why) for what in (SERVING, PUBLISHING))


def unread_rates(queue: str, at_ms: int) -> QueueSuspension:
    """Of `queue`, since `at_ms`, while nobody could read which limits operators have set."""
    why = (
        f"the limits that operators have set cannot be read (metastore: {path_of(queue, 'rates')}): isthmus queue "
        f"throttle {queue} sets them again, with --default the config files count"
    )
    return UnreadSuspension(SERVING, None, "?", at_ms, why)


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


def passed_over(
    state: CursorState, cursor: int, decree: Decree, settings: QueueSettings, bucket_type: bytes, now_ms: int
) -> CursorState:
    """`state` with a gap of all below the cursor, if changes that are offered now may have been passed over there under
    a filter of before: then nobody has sent them. A partition that never learnt of the change before this one is
    treated as if more were offered. Unchanged where the partition has obeyed the change already."""
    change = decree.change
    if change is None or state.decree >= change.version or (decree.what == OFFER_CHANGED and change.again):
        return state
    if state.decree >= change.since and not change.offers_more(settings, bucket_type):
        return state
    gap = Gap(0, cursor, 0, max(now_ms, change.at_ms), 0, OFFER_CHANGED, change.by, change.reason)
    return replace(state, gaps=with_gap(state.gaps, gap))


def in_force_now(settings: QueueSettings, decree: Decree | None, limits: SetLimits | None) -> QueueSettings:
    """The settings of a queue's definition or file with what operators have changed since."""
    values: dict[str, Any] = {} if limits is None else dict(limits.values)
    if decree is not None and decree.change is not None:
        offer = {"filter": decree.change.filter, "cascade": decree.change.cascade}
        values |= {name: value for name, value in offer.items() if value is not None}
    return replace(settings, **values) if values else settings


def encode_limits(limits: SetLimits) -> bytes:
    """JSON."""
    act = {"by": limits.by, "at_ms": limits.at_ms, "reason": limits.reason}
    return json.dumps({**limits.values, **act} if limits.values else {}).encode()


def decode_limits(value: bytes) -> SetLimits | None:
    """Raises CodecError. An unknown field is passed over."""
    raw = json_object(value, "list of a queue's limits")
    if not raw:
        return None
    default = QueueSettings("q")
    values: dict[str, Any] = {name: raw[name] for name in LIMITS if name in raw}
    for name, one in values.items():
        if type(one) is not type(getattr(default, name)) or (type(one) is int and one < 0):
            raise CodecError(f"not a list of a queue's limits: {name} is {one!r:.40}")
    at_ms = raw.get("at_ms")
    return SetLimits(values, str(raw.get("by", "")), at_ms if type(at_ms) is int else 0, str(raw.get("reason", "")))


def _change_of(raw: Any) -> OfferChange | None:
    """Raises CodecError."""
    if raw is None:
        return None
    try:
        change = OfferChange(**{field.name: raw[field.name] for field in fields(OfferChange)})
        for text in (change.was, change.filter):
            if text is not None:
                parse_filter(text)
    except (KeyError, TypeError, AttributeError, BadConfig) as error:
        raise CodecError(f"not a change of what a queue offers: {error!r:.200}") from error
    flags = (change.cascade is None or type(change.cascade) is bool) and type(change.was_cascade) is bool
    numbers = all(type(number) is int and number >= 0 for number in (change.version, change.since, change.at_ms))
    if not flags or not numbers or type(change.again) is not bool:
        raise CodecError("not a change of what a queue offers: a field has a wrong type")
    return change


_LATER_FIELDS: Final = ("positions", "by_time", "change", "released")
"""Fields of a decree that a version before has not written."""


def encode_decree(decree: Decree) -> bytes:
    """JSON."""
    return json.dumps(asdict(decree)).encode()


def decode_decree(value: bytes) -> Decree:
    """Raises CodecError."""
    return _decree_of(json_object(value, "decree of a queue"))


def _decree_of(raw: dict[str, Any]) -> Decree:
    """Raises CodecError."""
    earlier = raw.get("released")
    if earlier is not None and not isinstance(earlier, dict):
        raise CodecError("not a decree of a queue: the release before it is no object")
    try:
        plain = {field.name: raw[field.name] for field in fields(Decree) if field.name not in _LATER_FIELDS}
        positions = tuple((partition, offset) for partition, offset in raw.get("positions", ()))
        change = _change_of(raw.get("change"))
        by_time, released = raw.get("by_time") is True, None if earlier is None else _decree_of(earlier)
        decree = Decree(**plain, positions=positions, by_time=by_time, change=change, released=released)
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
