"""What operators want of source queues, written to the metastore, and what stands there, read.

Every act is one conditional write; all nodes learn of it by a watch and act on what they lead (`queues.service`), so
an act holds on all nodes, over restarts, and says who, when and why.

What operators decide of a queue as a whole, as values: definitions, decrees, suspensions (pure).

All are small JSON values in the metastore, changed by conditional writes only (`change_value`):

    /queue-definitions          {name: {"filter", "cascade", ..., "by", "at_ms", "reason"} or {"delisted": true, ...}}
    /queues/NAME/decree         the newest act that moves cursors, or changes what is offered: registered, placed,
                                cleared, released, offer-changed
    /queues/NAME/limits         {"queue_limit_count", ..., "by", "at_ms", "reason"}: limits that an operator has set
    /queues/NAME/suspension     {"suspensions": [{"what", "node", "by", "at_ms", "reason"}]}
    /queues/NAME/rates          {"bytes_per_second", "objects_per_second", "by", "at_ms", "reason"}
    /queues/NAME/lost           {"lost": [gaps of the lower priorities]}
    /queues/NAME/held           {"held": [what each node holds of the lower priorities]}

A decree has a rising version. Each partition's leader obeys it by a CURSOR entry that carries that version, whenever it
comes to it, so that an act reaches every partition however nodes fail meanwhile (docs/protocol.md R-DECREE).

Who owns a queue, as the metastore keeps it, and how its small values are read and changed.

JSON values under `/queues/NAME/`, each moved by conditional writes only; nothing here decides when. `change_value` is
also how the sink keeps its settings. The story goes on in
`queues.service`.

What a node holds at a queue's lower priorities, as it stands in the metastore (pure; docs/protocol.md R-HELD).

References of full-sync, folds and operators are in the memory of one node (`queues.bulk_queue`) and go with it. So
before a node takes any in, a mark says so: at most so many, queued since when. A mark whose node has died becomes a
record of what may be lost (`LostReferences`), which a full-sync closes. Marks are raised in few
large steps, so they cost few writes, and what they say is a bound. The story goes on in `queues.bulk_marks`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from isthmus.config.settings import QueueSettings
from isthmus.config.validation import check_filter, check_name
from isthmus.queues.cursors import CursorState
from isthmus.queues.filters import offers_more, parse_filter
from isthmus.queues.gaps import QueueGap, below, growing, with_gap
from isthmus.queues.rate_limit import Rates
from isthmus.repl.metastore.port import Ambiguous, Metastore, Unavailable, VersionConflict, Versioned
from isthmus.repl.model.errors import BadConfig, BadInput, CodecError, NotReady, Overloaded

log = structlog.get_logger(__name__)

CHANGE_ATTEMPTS: Final = 8
"""How often a conditional write is tried against other writers before it is refused as not ready."""

FORMER_WAITS_MS: Final = 60_000
"""For so long after a node heard of a release the cluster that had the queue does not get it back there: its sinks
still ask, many times a second, and the one that it was released for would come too late."""


@dataclass(frozen=True, slots=True)
class QueueOwner:
    """The sink cluster that a queue belongs to, since when (wall clock), and which node's fetch made it so; or, once
    it is released, an empty `cluster`, who did it, and whom it belonged to (`former`)."""

    cluster: bytes
    name: str
    version: int
    since_ms: int
    by: str
    former: bytes = b""


def next_version(before: int, stands: int, now_ms: int) -> int:
    """Of what follows on `before` in the metastore (0: nothing) where a partition was seen to stand under `stands`.
    When that is the later one, the metastore was restored from a copy of before: then the wall clock's number is taken,
    which none had that it has forgotten."""
    return before + 1 if stands <= before else max(stands + 1, now_ms)


class Release:
    """Since when a node knows that a queue was released. Told by its own time: the release is dated by the clock of the
    node that the operator asked, which may be hours off."""

    def __init__(self) -> None:
        self._version = 0
        self._since_ms = 0

    def seen(self, owner: QueueOwner | None, now_ms: int) -> None:
        """This is who owns the queue, at `now_ms`."""
        if owner is not None and not owner.cluster and owner.version != self._version:
            self._version, self._since_ms = owner.version, now_ms

    def lets(self, mine: QueueOwner, owner: QueueOwner, now_ms: int) -> bool:
        """True when `mine` may become the owner after `owner`: nobody is, and it has not just been released from that
        cluster; or it is the same one, and partitions stand under the later version of `mine`."""
        if owner.cluster == mine.cluster:
            return owner.version < mine.version
        if owner.cluster or mine.cluster != owner.former:
            return not owner.cluster
        return owner.version == self._version and now_ms - self._since_ms >= FORMER_WAITS_MS


QUEUES_PATH: Final = "/queues"
"""Below it stands what is kept of each queue, by name."""


def owner_path(queue: str) -> str:
    """Where the owner of `queue` is kept."""
    return f"{QUEUES_PATH}/{queue}/owner"


def path_of(queue: str, what: str) -> str:
    """Where something else of `queue` is kept: "suspension", "decree", "rates", "lost", "held"."""
    return f"{QUEUES_PATH}/{queue}/{what}"


def encode_owner(owner: QueueOwner) -> bytes:
    """JSON of an owner."""
    fields = {"owner": owner.cluster.hex(), "cluster": owner.name, "version": owner.version}
    former = {"former": owner.former.hex()} if owner.former else {}
    return json.dumps(fields | {"since_ms": owner.since_ms, "by": owner.by} | former).encode()


def decode_owner(value: bytes) -> QueueOwner:
    """The owner in `value`. Raises CodecError when it is not one."""
    fields = json_object(value, "queue owner")
    try:
        owner = QueueOwner(
            bytes.fromhex(fields["owner"]),
            fields["cluster"],
            fields["version"],
            fields["since_ms"],
            fields["by"],
            bytes.fromhex(fields.get("former", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"not a queue owner: {error}") from error
    if len(owner.cluster) not in (0, 16) or type(owner.version) is not int or owner.version < 1:
        raise CodecError("not a queue owner: cluster or version is out of range")
    return owner


async def read_value(metastore: Metastore, path: str) -> Versioned | None:
    """The value at `path`. Raises NotReady when the metastore cannot be reached."""
    try:
        return await metastore.get(path)
    except Unavailable as error:
        raise NotReady("the metastore cannot be reached") from error


async def remove_value(metastore: Metastore, path: str, found: Versioned | None) -> None:
    """Remove what was read as `found`, unless it changed since. Raises NotReady."""
    if found is not None:
        try:
            await metastore.delete(path, found.version)
        except (VersionConflict, Ambiguous):
            log.info("queue.value_kept", path=path)  # who changed it wants it; what is undecided is looked at again
        except Unavailable as error:
            raise NotReady("the metastore cannot be reached") from error


async def names_below(metastore: Metastore, path: str) -> list[str]:
    """The names of the values below `path`. Raises NotReady."""
    try:
        return await metastore.children(path)
    except Unavailable as error:
        raise NotReady("the metastore cannot be reached") from error


async def change_value(metastore: Metastore, path: str, change: Callable[[bytes | None], bytes | None]) -> bytes | None:
    """Conditional read and write: `change(current)` gives the new value, or None to leave things as they are.

    Returns what stands there afterwards. An undecided write is settled by reading again: `change` must be such that
    applying it to its own result changes nothing. Raises NotReady when the metastore cannot be reached or
    others keep winning; whatever `change` raises ends it.
    """
    for _ in range(CHANGE_ATTEMPTS):
        found = await read_value(metastore, path)
        current = None if found is None else found.value
        value = change(current)
        if value is None or value == current:
            return current
        try:
            await metastore.put(path, value, None if found is None else found.version)
        except (VersionConflict, Ambiguous):
            continue
        except Unavailable as error:
            raise NotReady("the metastore cannot be reached") from error
        return value
    raise NotReady(f"{path} in the metastore is being changed by others")


def json_object(value: bytes, what: str) -> dict[str, Any]:
    """The JSON object in `value`. Raises CodecError, which says `what` it is not."""
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not a {what}: {error}") from error
    if not isinstance(fields, dict):
        raise CodecError(f"not a {what}: no object at the top")
    return fields


async def take(metastore: Metastore, queue: str, mine: QueueOwner, may: Callable[[QueueOwner], bool]) -> QueueOwner:
    """Make `mine` the owner, under the next version (`mine` has that which partitions stand under), unless it may not
    after the one who is; returns who is. Raises NotReady."""
    made: list[QueueOwner] = []

    def changed(current: bytes | None) -> bytes | None:
        before = None if current is None else decode_owner(current)
        if before is not None and not may(before):
            return None
        made.append(replace(mine, version=next_version(before.version if before else 0, mine.version, mine.since_ms)))
        return encode_owner(made[-1])

    value = await change_value(metastore, owner_path(queue), changed)
    assert value is not None
    owner = decode_owner(value)
    if made and owner == made[-1]:
        log.info("queue.owned", queue=queue, cluster=owner.name, version=owner.version)
    return owner


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


class AppliedOffsets(NamedTuple):
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
class CursorCommand:
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
    released: CursorCommand | None = None

    def next_after(self, version: int) -> CursorCommand:
        """What a partition obeys next that has obeyed the decree of that version."""
        return self.released if self.released is not None and version < self.released.version else self

    def after(self, before: CursorCommand) -> CursorCommand:
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


def obeyed(
    state: CursorState, cursor: int, decree: CursorCommand, start: int, upto_ms: int, since_ms: int = 0
) -> CursorState:
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
        gap = QueueGap(cursor, end, from_ms, upto_ms, 0, decree.what, decree.by, decree.reason)
        gaps = with_gap(gaps, gap)
    return replace(state, cursor=start, decree=decree.version, gaps=gaps)


def passed_over(
    state: CursorState, cursor: int, decree: CursorCommand, settings: QueueSettings, bucket_type: bytes, now_ms: int
) -> CursorState:
    """`state` with a gap of all below the cursor, if changes that are offered now may have been passed over there under
    a filter of before: then nobody has sent them. A partition that never learnt of the change before this one is
    treated as if more were offered. Unchanged where the partition has obeyed the change already."""
    change = decree.change
    if change is None or state.decree >= change.version or (decree.what == OFFER_CHANGED and change.again):
        return state
    if state.decree >= change.since and not change.offers_more(settings, bucket_type):
        return state
    gap = QueueGap(0, cursor, 0, max(now_ms, change.at_ms), 0, OFFER_CHANGED, change.by, change.reason)
    return replace(state, gaps=with_gap(state.gaps, gap))


def in_force_now(settings: QueueSettings, decree: CursorCommand | None, limits: SetLimits | None) -> QueueSettings:
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


def encode_decree(decree: CursorCommand) -> bytes:
    """JSON."""
    return json.dumps(asdict(decree)).encode()


def decode_decree(value: bytes) -> CursorCommand:
    """Raises CodecError."""
    return _decree_of(json_object(value, "decree of a queue"))


def _decree_of(raw: dict[str, Any]) -> CursorCommand:
    """Raises CodecError."""
    earlier = raw.get("released")
    if earlier is not None and not isinstance(earlier, dict):
        raise CodecError("not a decree of a queue: the release before it is no object")
    try:
        plain = {field.name: raw[field.name] for field in fields(CursorCommand) if field.name not in _LATER_FIELDS}
        positions = tuple((partition, offset) for partition, offset in raw.get("positions", ()))
        change = _change_of(raw.get("change"))
        by_time, released = raw.get("by_time") is True, None if earlier is None else _decree_of(earlier)
        decree = CursorCommand(**plain, positions=positions, by_time=by_time, change=change, released=released)
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


FIRST_STEP: Final = 256
"""Least bound of a mark: a push of an operator costs one write."""

STEP_FACTOR: Final = 8
"""Each bound is so many times the one below: five writes lead to 300,000 references, and the bound that a crash leaves
says more than an eighth of the truth."""

HELD_MAX: Final = 512
"""Marks of one queue: two a node. Beyond it a node takes nothing in."""


@dataclass(frozen=True, slots=True)
class BulkMark:
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


def of_node(marks: Iterable[BulkMark], node: str) -> tuple[BulkMark, ...]:
    """Those of one node."""
    return tuple(mark for mark in marks if mark.node == node)


def encode_held(marks: Iterable[BulkMark]) -> bytes:
    """JSON."""
    return json.dumps({"held": [asdict(one) for one in marks]}).encode()


def decode_held(value: bytes | None) -> tuple[BulkMark, ...]:
    """Raises CodecError."""
    if value is None:
        return ()
    raw = json_object(value, "list of what nodes hold of a queue")
    try:
        found = tuple(BulkMark(**{field.name: row[field.name] for field in fields(BulkMark)}) for row in raw["held"])
    except (KeyError, TypeError) as error:
        raise CodecError(f"not a list of what nodes hold of a queue: {error}") from error
    for one in found:
        if type(one.node) is not str or not all(type(n) is int for n in (one.priority, one.at_most, one.since_ms)):
            raise CodecError("not a list of what nodes hold of a queue: a field is of another type")
    return found


T = TypeVar("T")

Suspended = tuple[QueueSuspension, ...]

CRASHED: Final = "crashed"
"""What was lost with a node that died; see `queues.queue_documents`."""

LOST_MAX: Final = 64
"""Records of lower references given up, of one queue; beyond it the oldest two of a node and priority become one."""


class AuditInfo(NamedTuple):
    """Who does it, when (wall clock), and why."""

    by: str
    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class LostReferences:
    """References of a lower priority that were given up, queued at one node between two times: `left_out` of them are
    known, and there were not more than `at_most` (None: exactly those). `what`: stopped, cleared, delisted, crashed."""

    node: str
    priority: int
    left_out: int
    from_ms: int
    upto_ms: int
    what: str
    by: str
    at_ms: int
    at_most: int | None = None


class SetRates(NamedTuple):
    """Limits that an operator has set, each node's."""

    rates: Rates
    act: AuditInfo


NOT_READ: Final = SetRates(Rates(), AuditInfo("?", 0, "what operators have set cannot be read"))
"""Stands where nobody has read yet which limits an operator has set: nothing is given out, as while it is not known
what is suspended. It is never written."""


class QueueState(NamedTuple):
    """All that the metastore says of one queue; `unread` are paths of what stands there and cannot be read."""

    owner: QueueOwner | None
    suspensions: tuple[QueueSuspension, ...]
    decree: CursorCommand | None
    rates: SetRates | None
    lost: tuple[LostReferences, ...]
    held: tuple[BulkMark, ...]
    limits: SetLimits | None = None
    unread: tuple[str, ...] = ()


NO_WORD: Final = QueueState(None, (), None, None, (), ())


class QueueStore:
    """`config` are the queues of this node's file, `unread` is why nobody knows yet which there are, or "". All acts
    raise BadInput for what makes no sense, NotReady when the metastore cannot be reached."""

    def __init__(self, metastore: Metastore, config: Mapping[str, QueueSettings]) -> None:
        self._metastore = metastore
        self._config = config
        self.unread = f"which queues there are cannot be read (metastore: {DEFINITIONS_PATH})"

    async def definitions(self) -> dict[str, Definition]:
        """What was registered or delisted at run time. Raises CodecError."""
        found = await read_value(self._metastore, DEFINITIONS_PATH)
        return decode_definitions(None if found is None else found.value)

    async def queues(self) -> dict[str, QueueSettings]:
        """The queues that there are, as far as this program can have them: one whose filter it does not know, since a
        later version has registered it, is not here, nor one whose name is none. Raises CodecError."""
        found, definitions = {}, await self.definitions()
        self.unread = ""
        for name, settings in self._in_force(definitions).items():
            try:
                check_name(name)
                parse_filter(settings.filter)
            except (ValueError, BadConfig) as error:
                log.error("queue.not_understood", queue=name, error=str(error))
            else:
                found[name] = settings
        return found

    async def word(self, name: str, known: QueueState = NO_WORD) -> QueueState:
        """What stands there of a queue; each part that cannot be read is as in `known`. Raises NotReady."""
        unread: list[str] = []

        async def part(what: str, decode: Callable[[bytes], T], known: T, none: T) -> T:
            value = await self._value(path := path_of(name, what))
            try:
                return none if value is None else decode(value)
            except CodecError as error:
                log.error("queue.metastore_value_unreadable", queue=name, path=path, error=str(error))
                unread.append(path)
                return known

        return QueueState(
            await part("owner", decode_owner, known.owner, None),
            await part("suspension", decode_suspensions, known.suspensions, ()),
            await part("decree", decode_decree, known.decree, None),
            await part("rates", _rates, known.rates, None),
            await part("lost", _lost, known.lost, ()),
            await part("held", decode_held, known.held, ()),
            await part("limits", decode_limits, known.limits, None),
            tuple(unread),
        )

    async def _value(self, path: str) -> bytes | None:
        found = await read_value(self._metastore, path)
        return None if found is None else found.value

    # ---------------------------------------------------------------- which queues there are

    async def register(
        self,
        name: str,
        values: Mapping[str, Any],
        start_ms: int,
        act: AuditInfo,
        positions: Positions = (),
        *,
        by_time: bool = False,
    ) -> None:
        """There is a queue `name` from now on, on all nodes; it offers changes of `start_ms` and later (0: all), or
        from `positions` on; `by_time` see `CursorCommand`. `values` are fields of QueueSettings, all others have their
        defaults."""
        settings = checked_settings(name, values)
        if name in self._in_force(await self.definitions()):
            raise BadInput(_THERE.format(name))  # before the decree: it would move the cursors of that queue
        # The decree first: who sees the queue sees where it begins. Alone it does nothing. Its version is of the clock:
        # a metastore restored from a copy of before may have forgotten a queue of this name, and how far decrees went.
        await self.decree(name, REGISTERED, start_ms, act, positions, stands=act.at_ms, by_time=by_time)
        limits = await read_value(self._metastore, path_of(name, "limits"))  # of a queue of that name before
        await remove_value(self._metastore, path_of(name, "limits"), limits)
        await self._define(name, Definition(settings, *act), lambda found: name not in self._in_force(found))

    async def delist(self, name: str, act: AuditInfo) -> None:
        """There is no queue `name` any more, on all nodes."""
        await self._define(name, Definition(None, *act), lambda found: name in self._in_force(found))

    def _in_force(self, found: Mapping[str, Definition]) -> dict[str, QueueSettings]:
        return in_force(self._config, found)

    async def _define(self, name: str, definition: Definition, may: Callable[[Mapping[str, Definition]], bool]) -> None:
        def changed(current: bytes | None) -> bytes:
            found = decode_definitions(current)
            if found.get(name) == definition:
                return current or b""
            if not may(found):
                raise BadInput(_THERE.format(name) if definition.settings else f"queue {name!r}: there is none")
            if definition.settings is None and name not in self._config:
                # Kept all the same: a node whose file has it must know that it is gone.
                found = {other: one for other, one in found.items() if other != name}
            found[name] = definition
            if len(found) > DEFINITIONS_MAX:
                raise Overloaded(f"{DEFINITIONS_MAX} queues were registered or delisted, which is the limit")
            return encode_definitions(found)

        await change_value(self._metastore, DEFINITIONS_PATH, changed)

    # ---------------------------------------------------------------- acts that move cursors

    async def place(self, name: str, positions: Positions, act: AuditInfo, *, stands: int = 0) -> None:
        """The queue's cursors in these partitions go to these offsets: what is below is at the sink cluster."""
        await self.decree(name, PLACED, 0, act, positions, stands=stands)

    async def decree(
        self,
        name: str,
        what: str,
        start_ms: int,
        act: AuditInfo,
        positions: Positions = (),
        *,
        stands: int = 0,
        by_time: bool = False,
        offer: OfferChange | None = None,
    ) -> None:
        """All cursors of the queue go to the changes of `start_ms`, or some to `positions`; `by_time` see
        `CursorCommand`. `stands`: the newest decree that a partition was seen to have obeyed. `offer` is offered from
        now on, by OFFER_CHANGED; its version is that of this decree."""
        if by_time:
            positions = positions[:POSITIONS_MAX]  # the others go by time
        if len(positions) > POSITIONS_MAX:
            raise BadInput(f"{len(positions)} positions, {POSITIONS_MAX} are taken at once: place by parts")

        def changed(current: bytes | None) -> bytes:
            before = 0 if current is None else decode_decree(current).version
            version = next_version(before, stands, act.at_ms)
            earlier = None if current is None or what == REGISTERED else decode_decree(current).change
            change = (
                earlier
                if offer is None
                else replace(offer, version=version, since=0 if earlier is None else earlier.version)
            )
            decree = CursorCommand(version, what, start_ms, *act, positions, by_time, change)
            if current is not None:
                decree = decree.after(decode_decree(current))
            if current is not None and replace(decode_decree(current), version=decree.version) == decree:
                decree = decode_decree(current)  # it was written, and the answer got lost
            return encode_decree(decree)

        await change_value(self._metastore, path_of(name, "decree"), changed)

    async def change_offer(
        self,
        name: str,
        settings: QueueSettings,
        values: Mapping[str, Any],
        act: AuditInfo,
        *,
        again: bool = False,
        stands: int = 0,
    ) -> None:
        """The queue offers other changes from now on: `values` ("filter", "cascade"; None: as the definition or file
        has it) instead of what `settings` say, which are in force here. With `again` all cursors go to 0."""
        found = await self._value(path_of(name, "decree"))
        before = None if found is None else decode_decree(found).change
        had = (
            {"filter": None, "cascade": None}
            if before is None
            else {"filter": before.filter, "cascade": before.cascade}
        )
        wanted = {**had, **values}
        checked_settings(name, {key: value for key, value in wanted.items() if value is not None})
        offer = OfferChange(
            wanted["filter"], wanted["cascade"], settings.filter, settings.cascade, 0, 0, *act, again=again
        )
        positions = () if again else (NO_PARTITION,)
        await self.decree(name, OFFER_CHANGED, 0, act, positions, stands=stands, offer=offer)

    async def set_limits(self, name: str, values: Mapping[str, Any], act: AuditInfo, *, default: bool = False) -> None:
        """Set these of `decrees.LIMITS`, the others stay; `default`: those of the definition or file count again."""

        def changed(current: bytes | None) -> bytes:
            try:
                before = None if current is None else decode_limits(current)
            except CodecError as error:
                if not default:
                    raise BadInput(f"the limits set before cannot be read ({error}): --default ends them") from error
                before = None
            kept = {} if before is None or default else before.values
            return encode_limits(SetLimits({**kept, **values}, *act))

        await change_value(self._metastore, path_of(name, "limits"), changed)

    async def release(
        self,
        name: str,
        start_ms: int,
        act: AuditInfo,
        positions: Positions = (),
        *,
        stands: int = 0,
        by_time: bool = False,
    ) -> None:
        """The queue belongs to nobody; its next owner begins at `start_ms`, or at `positions`; `by_time` see
        `CursorCommand`. The decree comes first, so that nobody gets it from where the old owner stood."""
        found = await self._value(owner_path(name))
        if found is None or not decode_owner(found).cluster:
            raise BadInput(f"queue {name!r} belongs to nobody")
        await self.decree(name, RELEASED, start_ms, act, positions, stands=stands, by_time=by_time)

        def changed(current: bytes | None) -> bytes | None:
            owner = None if current is None else decode_owner(current)
            if owner is None or not owner.cluster:
                return None
            return encode_owner(QueueOwner(b"", "", owner.version + 1, act.at_ms, act.by, owner.cluster))

        await change_value(self._metastore, owner_path(name), changed)

    # ---------------------------------------------------------------- suspensions, rates, what was lost

    async def suspend(self, name: str, whats: Collection[str], node: str | None, act: AuditInfo) -> None:
        """Suspend each of `whats` (SERVING, PUBLISHING) on one node or (None) on all, in one write."""
        new = [QueueSuspension(what, node, *act) for what in whats]
        await self._suspensions(
            name, lambda found: (*(s for s in found if s.what not in whats or s.node != node), *new)
        )

    async def resume(self, name: str, whats: Collection[str], node: str | None) -> None:
        """End suspensions of each of `whats`, of one node or (None) every one; see `decrees.resumed`. What cannot be
        read ends with every one, and then whole."""

        def change(found: Suspended) -> Suspended:
            for what in whats:
                found = resumed(found, what, node, name)
            return found

        await self._suspensions(name, change, anew=node is None)

    async def _suspensions(self, name: str, change: Callable[[Suspended], Suspended], *, anew: bool = False) -> None:
        def changed(current: bytes | None) -> bytes:
            found = change(suspensions_to_change(current, name, anew=anew))
            if len(found) > SUSPENSIONS_MAX:
                raise Overloaded(f"{SUSPENSIONS_MAX} suspensions of one queue are kept at most")
            return encode_suspensions(found)

        await change_value(self._metastore, path_of(name, "suspension"), changed)

    async def set_rates(self, name: str, rates: Rates | None, act: AuditInfo) -> None:
        """Every node gives out no more than this; None: what the config file says counts again."""
        value = {} if rates is None else {**rates._asdict(), **act._asdict()}
        await change_value(self._metastore, path_of(name, "rates"), lambda _: json.dumps(value).encode())

    async def hold(self, name: str, node: str, marks: Sequence[BulkMark]) -> tuple[BulkMark, ...]:
        """`node` holds this and nothing else; returns what all nodes hold now. Raises Overloaded."""

        def changed(current: bytes | None) -> bytes | None:
            before = decode_held(current)
            now = (*(one for one in before if one.node != node), *marks)
            if len(now) > HELD_MAX:
                raise Overloaded(f"{HELD_MAX} marks of what nodes hold of a queue are kept at most")
            return None if set(now) == set(before) else encode_held(now)

        return decode_held(await change_value(self._metastore, path_of(name, "held"), changed))

    async def lose_held(self, name: str, node: str, at_ms: int) -> int:
        """`node` has died with what it held: that is on record now, however often this is done; returns how many marks
        became records."""
        marks = of_node(decode_held(await self._value(path_of(name, "held"))), node)
        if not marks:
            return 0
        lost = [LostReferences(node, m.priority, 0, m.since_ms, at_ms, CRASHED, "", at_ms, m.at_most) for m in marks]

        def noted(found: tuple[LostReferences, ...]) -> tuple[LostReferences, ...]:
            known = {(one.node, one.priority, one.from_ms) for one in found if one.what == CRASHED}
            return (*found, *(one for one in lost if (one.node, one.priority, one.from_ms) not in known))

        await self._lost(name, noted)

        def changed(current: bytes | None) -> bytes | None:
            before = decode_held(current)
            left = tuple(one for one in before if one not in marks)
            return None if left == before else encode_held(left)

        await change_value(self._metastore, path_of(name, "held"), changed)
        return len(marks)

    async def names(self) -> list[str]:
        """Of all queues that ever stood in the metastore."""
        return await names_below(self._metastore, QUEUES_PATH)

    async def left_of(self, name: str) -> tuple[tuple[BulkMark, ...], bool]:
        """(what nodes hold of a queue at the lower priorities, whether it is delisted: then that and the records of its
        losses are removed). Raises CodecError."""
        paths = path_of(name, "held"), path_of(name, "lost")
        found = [await read_value(self._metastore, path) for path in paths]
        marks = decode_held(None if found[0] is None else found[0].value)
        definition = (await self.definitions()).get(name) if any(found) else None
        delisted = definition is not None and definition.settings is None
        if delisted:
            for path, value in zip(paths, found, strict=True):
                await remove_value(self._metastore, path, value)
        return marks, delisted

    async def note_lost(self, name: str, lost: Sequence[LostReferences]) -> None:
        """Lower references were given up; once, however often this is done with the same."""
        await self._lost(name, lambda found: (*found, *(one for one in lost if one not in found)))

    async def forget_lost(self, name: str, fits: Callable[[LostReferences], bool]) -> int:
        """What was given up was found again by a full-sync; returns how many records it covers."""
        count = 0

        def change(found: tuple[LostReferences, ...]) -> tuple[LostReferences, ...]:
            nonlocal count
            left = tuple(one for one in found if not fits(one))
            count = len(found) - len(left)
            return left

        await self._lost(name, change)
        return count

    async def _lost(
        self, name: str, change: Callable[[tuple[LostReferences, ...]], tuple[LostReferences, ...]]
    ) -> None:
        def changed(current: bytes | None) -> bytes | None:
            before = _lost(current)
            found = list(change(before))
            while len(found) > LOST_MAX:
                older, newer = _oldest_two(found)
                first = found[older]
                found[newer] = replace(
                    found[newer],
                    left_out=first.left_out + found[newer].left_out,
                    at_most=_together(first, found[newer]),
                    from_ms=min(first.from_ms, found[newer].from_ms),
                    upto_ms=max(first.upto_ms, found[newer].upto_ms),
                )
                del found[older]
            return None if tuple(found) == before else json.dumps({"lost": [asdict(one) for one in found]}).encode()

        await change_value(self._metastore, path_of(name, "lost"), changed)


_THERE: Final = (
    "queue {0!r}: there is one already, which stays as it is; delisted, its cursors and gaps would go with it"
)


def checked_settings(name: str, values: Mapping[str, Any]) -> QueueSettings:
    """The settings of queue `name` with these values, all others as by default. Raises BadInput."""
    try:
        check_name(name)
        settings = replace(QueueSettings(name), **values)
        check_filter(settings.filter)  # stricter: what stands in the metastore already must still be understood
        parse_filter(settings.filter)
    except (ValueError, BadConfig) as error:
        raise BadInput(str(error)) from error
    return settings


def _rates(value: bytes) -> SetRates | None:
    raw = json_object(value, "limit of a queue")
    if not raw:
        return None
    try:
        numbers = raw["bytes"], raw["objects"]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise CodecError(f"not a limit of a queue: bytes and objects are whole numbers from 0, not {numbers!r:.80}")
        return SetRates(Rates(*numbers), AuditInfo(str(raw["by"]), int(raw["at_ms"]), str(raw["reason"])))
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"not a limit of a queue: {error}") from error


def _oldest_two(lost: Sequence[LostReferences]) -> tuple[int, int]:
    """Which of the records are made one: the first two of the same node and priority, the oldest of all if there are no
    such."""
    seen: dict[tuple[str, int], int] = {}
    for at, one in enumerate(lost):
        first = seen.setdefault((one.node, one.priority), at)
        if first != at:
            return first, at
    return 0, 1


def _together(one: LostReferences, other: LostReferences) -> int | None:
    """The bound of two records that are made one."""
    if one.at_most is None and other.at_most is None:
        return None
    return sum(lost.left_out if lost.at_most is None else lost.at_most for lost in (one, other))


def _lost(value: bytes | None) -> tuple[LostReferences, ...]:
    if value is None:
        return ()
    raw = json_object(value, "list of lost references")
    try:
        names = [field.name for field in fields(LostReferences)]
        return tuple(LostReferences(**{name: row[name] for name in names if name in row}) for row in raw["lost"])
    except (KeyError, TypeError) as error:
        raise CodecError(f"not a list of lost references: {error}") from error
