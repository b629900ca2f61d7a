"""The metastore documents of a source queue: their values, encodings and rules.

They hold the decisions of operators and nodes that concern a queue as a whole. All are small JSON values, changed by
conditional writes only (`queues.queue_store`):

    /queue-definitions          {name: {"filter", "cascade", ..., "by", "at_ms", "reason"} or {"delisted": true, ...}}
    /queues/NAME/settings       joined (`repl.metastore.joined_document`), what moves, limits or stops the queue:
        owner                   the cluster that may fetch
        decree                  the newest cursor command: registered, placed, cleared, released, offer-changed
        suspension              {"suspensions": [{"what", "node", "by", "at_ms", "reason"}]}
        rates                   {"bytes", "objects", "by", "at_ms", "reason"}
        limits                  {"queue_limit_count", ..., "by", "at_ms", "reason"}: limits that an operator has set
    /queues/NAME/bulk           joined, what nodes record of bulk references:
        lost                    {"lost": [bulk references that were lost]}
        held                    {"held": [how many bulk references each node holds at most]}

Versions of cursor commands rise. Each partition's leader executes the newest command by a CURSOR entry that carries the
command's version, as soon as it reads the command. So a command reaches every partition, whichever nodes fail meanwhile
(docs/protocol.md R-DECREE).

Bulk references (`queues.bulk_queue`) are in the memory of one node. Before a node accepts any, it writes a mark into
`held`: how many it holds at most, and since when. When a node crashes, its mark becomes a record in `lost`, which a
full-sync closes. A mark is raised in few large steps, so it costs few writes (docs/protocol.md R-HELD;
`queues.bulk_marks`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, to_builtins
from msgspec.structs import replace as replaced

from isthmus.config.settings import QueueSettings
from isthmus.config.validation import check_filter, check_name
from isthmus.queues.cursors import CursorState
from isthmus.queues.filters import includes_more, parse_filter
from isthmus.queues.gaps import QueueGap, below, growing, with_gap
from isthmus.queues.json_document import decode_json, encode_json, json_document
from isthmus.queues.rate_limit import Rates
from isthmus.repl.metastore.joined_document import JoinedDocument
from isthmus.repl.metastore.port import Versioned
from isthmus.repl.metastore.watched_document import Document
from isthmus.repl.model.errors import BadConfig, BadInput, CodecError

T = TypeVar("T")

Count = Annotated[int, Meta(ge=0)]
Version = Annotated[int, Meta(ge=1)]

QUEUES_PATH: Final = "/queues"
"""Parent of the documents of each queue, by its name."""

DEFINITIONS_PATH: Final = "/queue-definitions"


def path_of(queue: str, what: str) -> str:
    """Path of a document of `queue`: "settings", "bulk", or a former one: "owner", "suspension", "decree", "limits",
    "rates", "lost", "held"."""
    return f"{QUEUES_PATH}/{queue}/{what}"


def _places(queue: str, what: str) -> str:
    """Where a document of operators may be, for sentences while it has not been read."""
    return f"{path_of(queue, what)}, or {what} in {path_of(queue, 'settings')}"


class AuditInfo(NamedTuple):
    """Author, time (wall clock) and reason of an operator's action."""

    by: str
    at_ms: int
    reason: str


def next_version(before: int, seen: int, now_ms: int) -> int:
    """The version of the next document.

    `before`: version in the metastore (0: none). `seen`: newest version that a partition's CURSOR entry carries. If
    `seen` is newer, the metastore was restored from an older copy; a version from the wall clock was never used."""
    return before + 1 if seen <= before else max(seen + 1, now_ms)


# ---------------------------------------------------------------- owner


class QueueOwner(Struct, frozen=True):
    """The cluster that owns a queue, since when (wall clock), and the node whose fetch claimed it (`by`).

    After a release `cluster` is empty, `by` released the queue, and `former` is the cluster that owned it. Both are
    empty in a queue registered by `by` under the name of an earlier one."""

    cluster: bytes
    name: str
    version: int
    since_ms: int
    by: str
    former: bytes = b""


_Uuid = Annotated[str, Meta(pattern="^([0-9a-fA-F]{32})?$")]


class _OwnerJson(Struct, omit_defaults=True):
    owner: _Uuid
    cluster: str
    version: Version
    since_ms: int
    by: str
    former: _Uuid = ""


def encode_owner(owner: QueueOwner) -> bytes:
    """JSON of an owner."""
    cluster, former = owner.cluster.hex(), owner.former.hex()
    return encode_json(_OwnerJson(cluster, owner.name, owner.version, owner.since_ms, owner.by, former))


def decode_owner(value: bytes) -> QueueOwner:
    """The owner in `value`. Raises CodecError."""
    raw = decode_json(value, _OwnerJson, "queue owner")
    cluster, former = bytes.fromhex(raw.owner), bytes.fromhex(raw.former)
    return QueueOwner(cluster, raw.cluster, raw.version, raw.since_ms, raw.by, former)


FORMER_OWNER_WAIT_MS: Final = 60_000
"""How long after a node read a release it does not give the queue back to the former owner. The former owner's sinks
go on fetching many times a second, and would otherwise claim the queue before the intended next owner."""


class ReleaseTimer:
    """Time since this node first read that a queue was released, by its own monotonic clock.

    The release itself is dated by the clock of another node, which may be hours off."""

    def __init__(self) -> None:
        self._version = 0
        self._since_ms = 0

    def observe(self, owner: QueueOwner | None, now_ms: int) -> None:
        """Note the owner as it was read at `now_ms`."""
        if owner is not None and not owner.cluster and owner.version != self._version:
            self._version, self._since_ms = owner.version, now_ms

    def may_own(self, candidate: QueueOwner, owner: QueueOwner, now_ms: int) -> bool:
        """Whether `candidate` may become the owner after `owner`: the queue has no owner and was not just released by
        the candidate; or the candidate owns it already, under an older version."""
        if owner.cluster == candidate.cluster:
            return owner.version < candidate.version
        if owner.cluster or candidate.cluster != owner.former:
            return not owner.cluster
        return owner.version == self._version and now_ms - self._since_ms >= FORMER_OWNER_WAIT_MS


# ---------------------------------------------------------------- cursor commands

ALL: Final = "0"

REGISTERED: Final = "registered"
PLACED: Final = "placed"
CLEARED: Final = "cleared"
RELEASED: Final = "released"
OFFER_CHANGED: Final = "offer-changed"

POSITIONS_MAX: Final = 12_288
"""Positions of one command: with the longest numbers 0.37 MB, which leaves a quarter of the largest value that the
metastore accepts to filters and reasons. Clusters have some thousand partitions at most."""

Positions = tuple[tuple[Count, Count], ...]
"""(partition, offset): the sink's cluster already has all changes below the offset, not through this queue."""

NO_PARTITION: Final = ((1 << 32) - 1, 0)
"""The one position of a command that moves no cursor, so that an older program, which does not know the command's kind,
moves no cursor either."""


class AppliedOffsets(NamedTuple):
    """Applied offsets of a cluster's partitions at the time of an operator's action.

    One position for each partition whose leader answered, and the earliest and latest of the nodes' wall clocks."""

    positions: Positions
    earliest_ms: int
    latest_ms: int


class OfferChange(Struct, frozen=True):
    """A filter and a cascade flag that an operator has set (None: as defined), in effect since command `version`.

    `was` and `was_cascade` were in effect before, since command `since` (0: always). `again`: everything is offered
    once more."""

    filter: str | None
    cascade: bool | None
    was: str
    was_cascade: bool
    version: Count
    since: Count
    by: str
    at_ms: Count
    reason: str
    again: bool = False

    def includes_more(self, settings: QueueSettings, bucket_type: bytes) -> bool:
        """Whether `settings`, those in effect, include more of a bucket type than before."""
        now, before = parse_filter(settings.filter), parse_filter(self.was)
        return (settings.cascade and not self.was_cascade) or includes_more(now, before, bucket_type)

    def check(self) -> None:
        """Raises BadConfig when a filter is not known to this version."""
        for text in (self.was, self.filter):
            if text is not None:
                parse_filter(text)


class CursorCommand(Struct, frozen=True):
    """An operator's command that moves cursors of a queue.

    `start_ms` (wall clock): cursors move to the changes of that time; 0: to the first change. With `positions` only
    cursors of the named partitions move, each to its own position; a partition without a cursor begins at 0. With
    `by_time` partitions without a position use `start_ms`. `change` is the newest change of the offer, and `released`
    the newest release before this command; later commands repeat both. A partition that has not executed the release
    executes it first: the next owner has none of the changes below its cursor.
    """

    version: Version
    what: str
    start_ms: Count
    by: str
    at_ms: Count
    reason: str
    positions: Positions = ()
    by_time: bool = False
    change: OfferChange | None = None
    released: CursorCommand | None = None

    def next_after(self, version: int) -> CursorCommand:
        """The next command for a partition that has executed the command of `version`."""
        return self.released if self.released is not None and version < self.released.version else self

    def following(self, before: CursorCommand) -> CursorCommand:
        """This command, made after `before`, with the release that some partition may not have executed yet.

        If both together have too many positions for one document, the release moves cursors by time instead."""
        released = replaced(before, released=None) if before.what == RELEASED else before.released
        if released is None or self.what in (REGISTERED, RELEASED):
            return self
        if len(self.positions) + len(released.positions) > POSITIONS_MAX:
            released = replaced(released, positions=())
        return replaced(self, released=released)

    def same_act(self, other: CursorCommand) -> bool:
        """Whether `other` is this command, made once more: only versions differ."""
        return _without_versions(self) == _without_versions(other)

    def has_released(self, command: CursorCommand) -> bool:
        """Whether the release `command` is this command, or the newest release before it: the same act at the same
        time, whatever followed."""
        release = self if self.what == RELEASED else self.released
        return release is not None and _act(release) == _act(command)

    def as_dict(self) -> dict[str, Any]:
        """For listings, with the number of positions instead of the positions."""
        released = None if self.released is None else self.released.as_dict()
        plain: dict[str, Any] = msgspec.to_builtins(replaced(self, positions=(), released=None))
        return {**plain, "positions": len(self.positions), "released": released}


def _act(command: CursorCommand) -> tuple[str, int, str, int, str]:
    return command.what, command.start_ms, command.by, command.at_ms, command.reason


def _without_versions(command: CursorCommand) -> CursorCommand:
    change = None if command.change is None else replaced(command.change, version=0, since=0)
    return replaced(command, version=0, change=change)


def commanded(
    before: CursorCommand | None, command: CursorCommand, offer: OfferChange | None, seen: int
) -> CursorCommand:
    """`command` as it follows `before`; or `before` if that is it, whose answer was lost. It gets the next version, and
    so does `offer`, which OFFER_CHANGED changes. `seen`: the newest that a partition was seen to have executed."""
    version = next_version(0 if before is None else before.version, seen, command.at_ms)
    earlier = None if before is None or command.what == REGISTERED else before.change
    change = earlier
    if offer is not None:
        change = replaced(offer, version=version, since=0 if earlier is None else earlier.version)
    new = replaced(command, version=version, change=change)
    if before is None:
        return new
    new = new.following(before)
    return before if before.same_act(new) else new


def encode_command(command: CursorCommand) -> bytes:
    """JSON of a cursor command."""
    return encode_json(command)


def decode_command(value: bytes) -> CursorCommand:
    """The cursor command in `value`. Raises CodecError."""
    command = decode_json(value, CursorCommand, "cursor command of a queue")
    try:
        for one in (command, command.released):
            if one is not None and one.change is not None:
                one.change.check()
    except BadConfig as error:
        raise CodecError(f"not a change of what a queue offers: {error!s:.200}") from error
    return command


def execute(
    state: CursorState, cursor: int, command: CursorCommand, start: int, upto_ms: int, since_ms: int = 0
) -> CursorState:
    """State of a partition after `command` has moved its cursor from `cursor` to `start`.

    Changes made at `upto_ms` and later are offered. The skipped changes become a gap, unless the queue is new, or is
    placed: then the sink has them. `since_ms`: when the first of the skipped changes was made, 0: unknown."""
    if command.what == REGISTERED:
        grown = tuple(gap for gap in state.gaps if gap.is_open)
        return replace(state, cursor=start, command_version=command.version, gaps=grown)
    gaps = below(state.gaps, start)
    if start > cursor and command.what != PLACED:
        grows = growing(gaps)  # from its start on everything is in that gap already
        end = start if grows is None else min(start, grows.start)
        from_ms = since_ms or max((gap.upto_ms for gap in gaps if gap.end <= cursor), default=0)
        gap = QueueGap(cursor, end, from_ms, upto_ms, 0, command.what, command.by, command.reason)
        gaps = with_gap(gaps, gap)
    return replace(state, cursor=start, command_version=command.version, gaps=gaps)


def with_filter_gap(
    state: CursorState, cursor: int, command: CursorCommand, settings: QueueSettings, bucket_type: bytes, now_ms: int
) -> CursorState:
    """`state` with a gap of everything below the cursor, if an earlier filter may have skipped changes that are offered
    now.

    A partition that missed the previous change is treated as if more were offered. Returns `state` unchanged if the
    partition has already executed the change, or if the filter includes nothing of its bucket type."""
    change = command.change
    if change is None or state.command_version >= change.version or (command.what == OFFER_CHANGED and change.again):
        return state
    if not parse_filter(settings.filter).includes_some(bucket_type):
        return state
    if state.command_version >= change.since and not change.includes_more(settings, bucket_type):
        return state
    gap = QueueGap(0, cursor, 0, max(now_ms, change.at_ms), 0, OFFER_CHANGED, change.by, change.reason)
    return replace(state, gaps=with_gap(state.gaps, gap))


# ---------------------------------------------------------------- definitions and limits

DEFINITIONS_MAX: Final = 256
"""Most queues registered or delisted at run time: every applied change is added to each."""

SETTABLE: Final = tuple(field.name for field in fields(QueueSettings) if field.name != "name")
"""Fields of a definition."""


class Definition(Struct, frozen=True):
    """A queue that was registered at run time (`settings`), or delisted (None)."""

    settings: QueueSettings | None
    by: str
    at_ms: int
    reason: str


def encode_definitions(definitions: Mapping[str, Definition]) -> bytes:
    """JSON of all definitions, by queue."""
    found = {}
    for name, one in definitions.items():
        act = {"by": one.by, "at_ms": one.at_ms, "reason": one.reason}
        values = {"delisted": True} if one.settings is None else {f: getattr(one.settings, f) for f in SETTABLE}
        found[name] = values | act
    return json.dumps(found).encode()


class _DefinitionJson(Struct):
    delisted: bool = False
    by: str = ""
    at_ms: int = 0
    reason: str = ""


def decode_definitions(value: bytes) -> dict[str, Definition]:
    """The definitions in `value`; a missing field has its default. Raises CodecError."""
    found = {}
    for name, row in decode_json(value, dict[str, dict[str, Any]], "list of queue definitions").items():
        try:
            about = msgspec.convert(row, _DefinitionJson)
            settings = None if about.delisted else msgspec.convert({**row, "name": name}, QueueSettings)
        except msgspec.ValidationError as error:
            raise CodecError(f"queue definition of {name!r}: {error}") from error
        found[name] = Definition(settings, about.by, about.at_ms, about.reason)
    return found


DEFINITIONS: Final[Document[dict[str, Definition]]] = json_document(
    DEFINITIONS_PATH, decode_definitions, encode_definitions, {}
)


def queues_in_effect(
    config: Mapping[str, QueueSettings], definitions: Mapping[str, Definition]
) -> dict[str, QueueSettings]:
    """All queues: definitions made at run time override the config file."""
    found = {name: settings for name, settings in config.items() if name not in definitions}
    found |= {name: one.settings for name, one in definitions.items() if one.settings is not None}
    return found


class SetLimits(Struct, frozen=True):
    """Limits of a queue that an operator has set: fields of QueueSettings, by name."""

    values: Mapping[str, Any]
    by: str
    at_ms: int
    reason: str


class _LimitsJson(Struct):
    object_size_limit_bytes: Count | UnsetType = UNSET
    object_limit_count: Count | UnsetType = UNSET
    queue_limit_count: Count | UnsetType = UNSET
    overflow: str | UnsetType = UNSET
    lease_ms: Count | UnsetType = UNSET
    riak_fetch: bool | UnsetType = UNSET
    by: str = ""
    at_ms: int = 0
    reason: str = ""


LIMITS: Final = tuple(name for name in _LimitsJson.__struct_fields__ if name in SETTABLE)
"""Fields of QueueSettings that may be set while the queue runs and that move no cursor."""


def encode_limits(limits: SetLimits | None) -> bytes:
    """JSON of limits; {} for none."""
    if limits is None or not limits.values:
        return b"{}"
    return json.dumps({**limits.values, "by": limits.by, "at_ms": limits.at_ms, "reason": limits.reason}).encode()


def decode_limits(value: bytes) -> SetLimits | None:
    """The limits in `value`, None for {}. Raises CodecError."""
    if not decode_json(value, dict[str, Any], "list of a queue's limits"):
        return None
    raw = decode_json(value, _LimitsJson, "list of a queue's limits")
    values = {name: found for name in LIMITS if (found := getattr(raw, name)) is not UNSET}
    return SetLimits(values, raw.by, raw.at_ms, raw.reason)


def settings_in_effect(
    settings: QueueSettings, command: CursorCommand | None, limits: SetLimits | None
) -> QueueSettings:
    """`settings` of a queue's definition or config file, overridden by later changes of operators."""
    values: dict[str, Any] = {} if limits is None else dict(limits.values)
    if command is not None and command.change is not None:
        offer = {"filter": command.change.filter, "cascade": command.change.cascade}
        values |= {name: value for name, value in offer.items() if value is not None}
    return replace(settings, **values) if values else settings


def checked_settings(name: str, values: Mapping[str, Any]) -> QueueSettings:
    """The settings of queue `name` with these values, all others as by default. Raises BadInput."""
    try:
        check_name(name)
        settings = replace(QueueSettings(name), **values)
        check_filter(settings.filter)  # stricter than the parser, which must read what the metastore has already
        parse_filter(settings.filter)
    except (ValueError, BadConfig) as error:
        raise BadInput(str(error)) from error
    return settings


# ---------------------------------------------------------------- suspensions

SERVING: Final = "serving"
PUBLISHING: Final = "publishing"

SUSPENSIONS_MAX: Final = 256
"""Most suspensions of one queue: two a node."""


class QueueSuspension(Struct, frozen=True):
    """An operator's suspension of `what` (SERVING or PUBLISHING), on one node or (None) on all."""

    what: str
    node: str | None
    by: str
    at_ms: int
    reason: str


class UnreadSuspension(QueueSuspension, frozen=True):
    """Placeholder while suspensions (or, for serving, rate limits) have not been read. It is never written.

    Nothing is served, nothing pushed is accepted, and gaps neither begin nor end."""


Suspensions = tuple[QueueSuspension, ...]


def unread_suspensions(queue: str, at_ms: int) -> Suspensions:
    """Placeholders for the suspensions of `queue`, since `at_ms` (wall clock)."""
    why = f"the suspensions that operators have set cannot be read (metastore: {_places(queue, 'suspension')})"
    return tuple(UnreadSuspension(what, None, "?", at_ms, why) for what in (SERVING, PUBLISHING))


def unread_rates(queue: str, at_ms: int) -> QueueSuspension:
    """Placeholder that suspends serving of `queue`, since `at_ms`, while its rate limits have not been read."""
    why = (
        f"the rate limits that operators have set cannot be read (metastore: {_places(queue, 'rates')}): "
        f"isthmus queue "
        f"throttle {queue} sets them again; with --default the config files apply"
    )
    return UnreadSuspension(SERVING, None, "?", at_ms, why)


class _SuspensionsJson(Struct):
    suspensions: Suspensions


class _FormerSuspensionJson(Struct):
    by: str
    at_ms: int
    reason: str


def encode_suspensions(suspensions: Suspensions) -> bytes:
    """JSON of suspensions."""
    return encode_json(_SuspensionsJson(suspensions))


def decode_suspensions(value: bytes) -> Suspensions:
    """The suspensions in `value`. Earlier versions wrote a single one, of serving on all nodes, or {}. Raises
    CodecError."""
    what = "list of a queue's suspensions"
    raw = decode_json(value, dict[str, Any], what)
    if raw and "suspensions" not in raw:
        former = decode_json(value, _FormerSuspensionJson, what)
        return (QueueSuspension(SERVING, None, former.by, former.at_ms, former.reason),)
    return decode_json(value, _SuspensionsJson, what).suspensions if raw else ()


def resumed(found: Suspensions, what: str, node: str | None, queue: str) -> Suspensions:
    """`found` without the suspensions of `what` on `node`, or (None) on any.

    Raises BadInput if a suspension on all nodes would keep `node` suspended."""
    everywhere = next((one for one in found if one.what == what and one.node is None), None)
    if node is not None and everywhere is not None:
        flag = "" if what == SERVING else f" --{what}"
        raise BadInput(
            f"{what} of queue {queue} is suspended on all nodes (by {everywhere.by}), including {node}: "
            f"isthmus queue resume {queue}{flag}, then suspend the nodes that are to stay suspended with --node"
        )
    return tuple(one for one in found if one.what != what or node not in (None, one.node))


def suspension_at(suspensions: Suspensions, what: str, node: str) -> QueueSuspension | None:
    """The first that suspends `what` on `node`."""
    return next((one for one in suspensions if one.what == what and one.node in (None, node)), None)


# ---------------------------------------------------------------- rates


class SetRates(NamedTuple):
    """Rate limits that an operator has set; they apply to each node by itself."""

    rates: Rates
    act: AuditInfo


RATES_NOT_READ: Final = SetRates(Rates(), AuditInfo("?", 0, "the rate limits that operators have set cannot be read"))
"""Placeholder while the rates have not been read: nothing is served. It is never written."""


class _RatesJson(Struct):
    bytes: Count
    objects: Count
    by: str
    at_ms: int
    reason: str


def encode_rates(rates: SetRates | None) -> bytes:
    """JSON of rates; {} for none."""
    return encode_json({} if rates is None else _RatesJson(rates.rates.bytes, rates.rates.objects, *rates.act))


def decode_rates(value: bytes) -> SetRates | None:
    """The rates in `value`, None for {}. Raises CodecError."""
    if not decode_json(value, dict[str, Any], "rate limit of a queue"):
        return None
    raw = decode_json(value, _RatesJson, "rate limit of a queue")
    return SetRates(Rates(raw.bytes, raw.objects), AuditInfo(raw.by, raw.at_ms, raw.reason))


# ---------------------------------------------------------------- bulk references: marks and losses

FIRST_BOUND: Final = 256
"""Least bound of a mark, so that a typical push by an operator costs one write."""

BOUND_FACTOR: Final = 8
"""Ratio of one bound to the next: five writes reach 300,000 references, and the bound that a crash leaves behind is at
most eight times the actual number."""

MARKS_MAX: Final = 512
"""Most marks of one queue: two a node. Beyond it a node accepts no references."""

CRASHED: Final = "crashed"
"""`what` of references lost in a node's crash."""

LOST_MAX: Final = 64
"""Most loss records of one queue; beyond it the oldest two of a node and priority are merged."""

TYPES_MAX: Final = 16
"""Most bucket types that a mark or a loss record names; beyond it the record is of any type. 16 names of typical length
keep the documents of 512 marks below 200 KB, and few clusters have more types."""

ANY_TYPE: Final[tuple[str, ...]] = ()
"""Bucket types of a mark or loss record that names none: it may be of each type that the queue accepts. Records of
earlier versions name none."""


def named_types(names: Iterable[bytes]) -> tuple[str, ...]:
    """Bucket types as marks and loss records name them, sorted; ANY_TYPE beyond TYPES_MAX."""
    found = sorted({name.decode("utf-8", "backslashreplace") for name in names})
    return tuple(found) if len(found) <= TYPES_MAX else ANY_TYPE


def joined_types(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """The bucket types of either, as `named_types`."""
    found = sorted({*one, *other})
    return tuple(found) if one and other and len(found) <= TYPES_MAX else ANY_TYPE


class BulkMark(Struct, frozen=True):
    """`node` holds at most `at_most` references at `priority`, none queued before `since_ms` (wall clock), and all of
    `bucket_types`, see ANY_TYPE."""

    node: str
    priority: int
    at_most: int
    since_ms: int
    bucket_types: tuple[str, ...] = ANY_TYPE


def bound_for(count: int, limit: int) -> int:
    """The least bound that covers `count`; at most `limit`, which covers all."""
    bound = FIRST_BOUND
    while bound < count:
        bound *= BOUND_FACTOR
    return min(bound, limit)


def marks_of(marks: Iterable[BulkMark], node: str) -> tuple[BulkMark, ...]:
    """The marks of one node."""
    return tuple(mark for mark in marks if mark.node == node)


class _HeldJson(Struct):
    held: tuple[BulkMark, ...]


def encode_held(marks: Collection[BulkMark]) -> bytes:
    """JSON of marks."""
    return encode_json({"held": _rows(marks)})


def _rows(records: Iterable[BulkMark] | Iterable[LostReferences]) -> list[dict[str, Any]]:
    """Records as JSON objects, with the fields that earlier versions write unless they name bucket types."""
    rows: list[dict[str, Any]] = to_builtins(list(records))
    return [{name: value for name, value in row.items() if name != "bucket_types" or value} for row in rows]


def decode_held(value: bytes) -> tuple[BulkMark, ...]:
    """The marks in `value`. Raises CodecError."""
    return decode_json(value, _HeldJson, "list of what nodes hold of a queue").held


class LostReferences(Struct, frozen=True):
    """Bulk references that were given up, queued at one node between two times: at least `left_out`, and at most
    `at_most` (None: exactly `left_out`). `what`: stopped, cleared, delisted, crashed, refused. `bucket_types`: see
    ANY_TYPE."""

    node: str
    priority: int
    left_out: int
    from_ms: int
    upto_ms: int
    what: str
    by: str
    at_ms: int
    at_most: int | None = None
    bucket_types: tuple[str, ...] = ANY_TYPE


class _LostJson(Struct):
    lost: tuple[LostReferences, ...]


def encode_lost(lost: Collection[LostReferences]) -> bytes:
    """JSON of loss records."""
    return encode_json({"lost": _rows(lost)})


def decode_lost(value: bytes) -> tuple[LostReferences, ...]:
    """The loss records in `value`. Raises CodecError."""
    return decode_json(value, _LostJson, "list of lost references").lost


def bounded(lost: Sequence[LostReferences]) -> tuple[LostReferences, ...]:
    """`lost`, merged to at most LOST_MAX records."""
    found = list(lost)
    while len(found) > LOST_MAX:
        older, newer = _oldest_two(found)
        first, second = found[older], found[newer]
        found[newer] = replaced(
            second,
            left_out=first.left_out + second.left_out,
            at_most=_merged_bound(first, second),
            from_ms=min(first.from_ms, second.from_ms),
            upto_ms=max(first.upto_ms, second.upto_ms),
            bucket_types=joined_types(first.bucket_types, second.bucket_types),
        )
        del found[older]
    return tuple(found)


def _oldest_two(lost: Sequence[LostReferences]) -> tuple[int, int]:
    """Indexes of the first two records of the same node and priority, or of the oldest two."""
    seen: dict[tuple[str, int], int] = {}
    for at, one in enumerate(lost):
        first = seen.setdefault((one.node, one.priority), at)
        if first != at:
            return first, at
    return 0, 1


def _merged_bound(one: LostReferences, other: LostReferences) -> int | None:
    if one.at_most is None and other.at_most is None:
        return None
    return sum(lost.left_out if lost.at_most is None else lost.at_most for lost in (one, other))


# ---------------------------------------------------------------- all documents of one queue


class QueuePaths:
    """The documents of one queue. While those of `settings` are apart, the owner is read before the command: versions
    before this one write a release's command before they remove the owner."""

    def __init__(self, queue: str) -> None:
        self.owner: Document[QueueOwner | None] = _optional(path_of(queue, "owner"), decode_owner, encode_owner)
        self.command: Document[CursorCommand | None] = _optional(
            path_of(queue, "decree"), decode_command, encode_command
        )
        self.suspensions: Document[Suspensions] = json_document(
            path_of(queue, "suspension"), decode_suspensions, encode_suspensions, ()
        )
        self.rates: Document[SetRates | None] = json_document(path_of(queue, "rates"), decode_rates, encode_rates, None)
        self.limits: Document[SetLimits | None] = json_document(
            path_of(queue, "limits"), decode_limits, encode_limits, None
        )
        self.lost: Document[tuple[LostReferences, ...]] = json_document(
            path_of(queue, "lost"), decode_lost, encode_lost, ()
        )
        self.held: Document[tuple[BulkMark, ...]] = json_document(path_of(queue, "held"), decode_held, encode_held, ())
        self.settings: Final = JoinedDocument(
            path_of(queue, "settings"), (self.owner, self.suspensions, self.command, self.rates, self.limits)
        )
        self.bulk: Final = JoinedDocument(path_of(queue, "bulk"), (self.lost, self.held))


def _optional(path: str, decode: Callable[[bytes], T], encode: Callable[[T], bytes]) -> Document[T | None]:
    """A document that is absent until it is first written, and is never deleted."""

    def encoded(value: T | None) -> bytes:
        return b"" if value is None else encode(value)

    def decoded(found: Versioned | None) -> T | None:
        return None if found is None else decode(found.value)

    return Document(path, decoded, encoded)


class QueueState(NamedTuple):
    """The documents of one queue, as one node read them.

    `unread`: documents that cannot be decoded, by the last name of their former paths: where they are. Their fields
    hold the last values that could be."""

    owner: QueueOwner | None = None
    suspensions: Suspensions = ()
    command: CursorCommand | None = None
    rates: SetRates | None = None
    lost: tuple[LostReferences, ...] = ()
    held: tuple[BulkMark, ...] = ()
    limits: SetLimits | None = None
    unread: Mapping[str, str] = MappingProxyType({})

    @property
    def owner_unread(self) -> bool:
        """Whether the newest owner is not known."""
        return "owner" in self.unread
