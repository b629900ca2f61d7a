"""What operators want of source queues, written to the metastore, and what stands there, read.

Every act is one conditional write; all nodes learn of it by a watch and act on what they lead (`queues.registry`), so
an act holds on all nodes, over restarts, and says who, when and why. Values' rules: `queues.decrees`, `.ownership`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from config.filter_rules import check_filter
from config.rules import check_name
from config.settings import QueueSettings
from queues import decrees
from queues.decrees import Decree, Definition, OfferChange, Positions, QueueSuspension, SetLimits
from queues.filters import parse_filter
from queues.held import HELD_MAX, Held, decode_held, encode_held, of_node
from queues.ownership import (
    QUEUES_PATH,
    Owner,
    change_value,
    decode_owner,
    encode_owner,
    json_object,
    names_below,
    next_version,
    owner_path,
    path_of,
    read_value,
    remove_value,
)  # fmt: skip
from queues.throttle import Rates
from repl.metastore.port import Metastore
from repl.model.errors import BadConfig, BadInput, CodecError, Overloaded

log = structlog.get_logger(__name__)

T = TypeVar("T")

Suspended = tuple[QueueSuspension, ...]

CRASHED: Final = "crashed"
"""What was lost with a node that died; see `queues.held`."""

LOST_MAX: Final = 64
"""Records of lower references given up, of one queue; beyond it the oldest two of a node and priority become one."""


class Act(NamedTuple):
    """Who does it, when (wall clock), and why."""

    by: str
    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
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
    act: Act


NOT_READ: Final = SetRates(Rates(), Act("?", 0, "what operators have set cannot be read"))
"""Stands where nobody has read yet which limits an operator has set: nothing is given out, as while it is not known
what is suspended. It is never written."""


class Word(NamedTuple):
    """All that the metastore says of one queue; `unread` are paths of what stands there and cannot be read."""

    owner: Owner | None
    suspensions: tuple[QueueSuspension, ...]
    decree: Decree | None
    rates: SetRates | None
    lost: tuple[Lost, ...]
    held: tuple[Held, ...]
    limits: SetLimits | None = None
    unread: tuple[str, ...] = ()


NO_WORD: Final = Word(None, (), None, None, (), ())


class Steering:
    """`config` are the queues of this node's file, `unread` is why nobody knows yet which there are, or "". All acts
    raise BadInput for what makes no sense, NotReady when the metastore cannot be reached."""

    def __init__(self, metastore: Metastore, config: Mapping[str, QueueSettings]) -> None:
        self._metastore = metastore
        self._config = config
        self.unread = f"which queues there are cannot be read (metastore: {decrees.DEFINITIONS_PATH})"

    async def definitions(self) -> dict[str, Definition]:
        """What was registered or delisted at run time. Raises CodecError."""
        found = await read_value(self._metastore, decrees.DEFINITIONS_PATH)
        return decrees.decode_definitions(None if found is None else found.value)

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

    async def word(self, name: str, known: Word = NO_WORD) -> Word:
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

        return Word(
            await part("owner", decode_owner, known.owner, None),
            await part("suspension", decrees.decode_suspensions, known.suspensions, ()),
            await part("decree", decrees.decode_decree, known.decree, None),
            await part("rates", _rates, known.rates, None),
            await part("lost", _lost, known.lost, ()),
            await part("held", decode_held, known.held, ()),
            await part("limits", decrees.decode_limits, known.limits, None),
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
        act: Act,
        positions: Positions = (),
        *,
        by_time: bool = False,
    ) -> None:
        """There is a queue `name` from now on, on all nodes; it offers changes of `start_ms` and later (0: all), or
        from `positions` on; `by_time` see `Decree`. `values` are fields of QueueSettings, all others have their
        defaults."""
        settings = checked_settings(name, values)
        if name in self._in_force(await self.definitions()):
            raise BadInput(_THERE.format(name))  # before the decree: it would move the cursors of that queue
        # The decree first: who sees the queue sees where it begins. Alone it does nothing. Its version is of the clock:
        # a metastore restored from a copy of before may have forgotten a queue of this name, and how far decrees went.
        await self.decree(name, decrees.REGISTERED, start_ms, act, positions, stands=act.at_ms, by_time=by_time)
        limits = await read_value(self._metastore, path_of(name, "limits"))  # of a queue of that name before
        await remove_value(self._metastore, path_of(name, "limits"), limits)
        await self._define(name, Definition(settings, *act), lambda found: name not in self._in_force(found))

    async def delist(self, name: str, act: Act) -> None:
        """There is no queue `name` any more, on all nodes."""
        await self._define(name, Definition(None, *act), lambda found: name in self._in_force(found))

    def _in_force(self, found: Mapping[str, Definition]) -> dict[str, QueueSettings]:
        return decrees.in_force(self._config, found)

    async def _define(self, name: str, definition: Definition, may: Callable[[Mapping[str, Definition]], bool]) -> None:
        def changed(current: bytes | None) -> bytes:
            found = decrees.decode_definitions(current)
            if found.get(name) == definition:
                return current or b""
            if not may(found):
                raise BadInput(_THERE.format(name) if definition.settings else f"queue {name!r}: there is none")
            if definition.settings is None and name not in self._config:
                # Kept all the same: a node whose file has it must know that it is gone.
                found = {other: one for other, one in found.items() if other != name}
            found[name] = definition
            if len(found) > decrees.DEFINITIONS_MAX:
                raise Overloaded(f"{decrees.DEFINITIONS_MAX} queues were registered or delisted, which is the limit")
            return decrees.encode_definitions(found)

        await change_value(self._metastore, decrees.DEFINITIONS_PATH, changed)

    # ---------------------------------------------------------------- acts that move cursors

    async def place(self, name: str, positions: Positions, act: Act, *, stands: int = 0) -> None:
        """The queue's cursors in these partitions go to these offsets: what is below is at the sink cluster."""
        await self.decree(name, decrees.PLACED, 0, act, positions, stands=stands)

    async def decree(
        self,
        name: str,
        what: str,
        start_ms: int,
        act: Act,
        positions: Positions = (),
        *,
        stands: int = 0,
        by_time: bool = False,
        offer: OfferChange | None = None,
    ) -> None:
        """All cursors of the queue go to the changes of `start_ms`, or some to `positions`; `by_time` see `Decree`.
        `stands`: the newest decree that a partition was seen to have obeyed. `offer` is offered from now on, by
        OFFER_CHANGED; its version is that of this decree."""
        if by_time:
            positions = positions[: decrees.POSITIONS_MAX]  # the others go by time
        if len(positions) > decrees.POSITIONS_MAX:
            raise BadInput(f"{len(positions)} positions, {decrees.POSITIONS_MAX} are taken at once: place by parts")

        def changed(current: bytes | None) -> bytes:
            before = 0 if current is None else decrees.decode_decree(current).version
            version = next_version(before, stands, act.at_ms)
            earlier = None if current is None or what == decrees.REGISTERED else decrees.decode_decree(current).change
            change = (
                earlier
                if offer is None
                else replace(offer, version=version, since=0 if earlier is None else earlier.version)
            )
            decree = Decree(version, what, start_ms, *act, positions, by_time, change)
            if current is not None:
                decree = decree.after(decrees.decode_decree(current))
            if current is not None and replace(decrees.decode_decree(current), version=decree.version) == decree:
                decree = decrees.decode_decree(current)  # it was written, and the answer got lost
            return decrees.encode_decree(decree)

        await change_value(self._metastore, path_of(name, "decree"), changed)

    async def change_offer(
        self,
        name: str,
        settings: QueueSettings,
        values: Mapping[str, Any],
        act: Act,
        *,
        again: bool = False,
        stands: int = 0,
    ) -> None:
        """The queue offers other changes from now on: `values` ("filter", "cascade"; None: as the definition or file
        has it) instead of what `settings` say, which are in force here. With `again` all cursors go to 0."""
        found = await self._value(path_of(name, "decree"))
        before = None if found is None else decrees.decode_decree(found).change
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
        positions = () if again else (decrees.NO_PARTITION,)
        await self.decree(name, decrees.OFFER_CHANGED, 0, act, positions, stands=stands, offer=offer)

    async def set_limits(self, name: str, values: Mapping[str, Any], act: Act, *, default: bool = False) -> None:
        """Set these of `decrees.LIMITS`, the others stay; `default`: those of the definition or file count again."""

        def changed(current: bytes | None) -> bytes:
            try:
                before = None if current is None else decrees.decode_limits(current)
            except CodecError as error:
                if not default:
                    raise BadInput(f"the limits set before cannot be read ({error}): --default ends them") from error
                before = None
            kept = {} if before is None or default else before.values
            return decrees.encode_limits(SetLimits({**kept, **values}, *act))

        await change_value(self._metastore, path_of(name, "limits"), changed)

    async def release(
        self,
        name: str,
        start_ms: int,
        act: Act,
        positions: Positions = (),
        *,
        stands: int = 0,
        by_time: bool = False,
    ) -> None:
        """The queue belongs to nobody; its next owner begins at `start_ms`, or at `positions`; `by_time` see `Decree`.
        The decree comes first, so that nobody gets it from where the old owner stood."""
        found = await self._value(owner_path(name))
        if found is None or not decode_owner(found).cluster:
            raise BadInput(f"queue {name!r} belongs to nobody")
        await self.decree(name, decrees.RELEASED, start_ms, act, positions, stands=stands, by_time=by_time)

        def changed(current: bytes | None) -> bytes | None:
            owner = None if current is None else decode_owner(current)
            if owner is None or not owner.cluster:
                return None
            return encode_owner(Owner(b"", "", owner.version + 1, act.at_ms, act.by, owner.cluster))

        await change_value(self._metastore, owner_path(name), changed)

    # ---------------------------------------------------------------- suspensions, rates, what was lost

    async def suspend(self, name: str, whats: Collection[str], node: str | None, act: Act) -> None:
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
                found = decrees.resumed(found, what, node, name)
            return found

        await self._suspensions(name, change, anew=node is None)

    async def _suspensions(self, name: str, change: Callable[[Suspended], Suspended], *, anew: bool = False) -> None:
        def changed(current: bytes | None) -> bytes:
            found = change(decrees.suspensions_to_change(current, name, anew=anew))
            if len(found) > decrees.SUSPENSIONS_MAX:
                raise Overloaded(f"{decrees.SUSPENSIONS_MAX} suspensions of one queue are kept at most")
            return decrees.encode_suspensions(found)

        await change_value(self._metastore, path_of(name, "suspension"), changed)

    async def set_rates(self, name: str, rates: Rates | None, act: Act) -> None:
        """Every node gives out no more than this; None: what the config file says counts again."""
        value = {} if rates is None else {**rates._asdict(), **act._asdict()}
        await change_value(self._metastore, path_of(name, "rates"), lambda _: json.dumps(value).encode())

    async def hold(self, name: str, node: str, marks: Sequence[Held]) -> tuple[Held, ...]:
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
        lost = [Lost(node, m.priority, 0, m.since_ms, at_ms, CRASHED, "", at_ms, m.at_most) for m in marks]

        def noted(found: tuple[Lost, ...]) -> tuple[Lost, ...]:
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

    async def left_of(self, name: str) -> tuple[tuple[Held, ...], bool]:
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

    async def note_lost(self, name: str, lost: Sequence[Lost]) -> None:
        """Lower references were given up; once, however often this is done with the same."""
        await self._lost(name, lambda found: (*found, *(one for one in lost if one not in found)))

    async def forget_lost(self, name: str, fits: Callable[[Lost], bool]) -> int:
        """What was given up was found again by a full-sync; returns how many records it covers."""
        count = 0

        def change(found: tuple[Lost, ...]) -> tuple[Lost, ...]:
            nonlocal count
            left = tuple(one for one in found if not fits(one))
            count = len(found) - len(left)
            return left

        await self._lost(name, change)
        return count

    async def _lost(self, name: str, change: Callable[[tuple[Lost, ...]], tuple[Lost, ...]]) -> None:
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
        parse_filter(settings.filter)
        check_filter(settings.filter)  # stricter: what stands in the metastore already must still be understood
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
        return SetRates(Rates(*numbers), Act(str(raw["by"]), int(raw["at_ms"]), str(raw["reason"])))
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"not a limit of a queue: {error}") from error


def _oldest_two(lost: Sequence[Lost]) -> tuple[int, int]:
    """Which of the records are made one: the first two of the same node and priority, the oldest of all if there are no
    such."""
    seen: dict[tuple[str, int], int] = {}
    for at, one in enumerate(lost):
        first = seen.setdefault((one.node, one.priority), at)
        if first != at:
            return first, at
    return 0, 1


def _together(one: Lost, other: Lost) -> int | None:
    """The bound of two records that are made one."""
    if one.at_most is None and other.at_most is None:
        return None
    return sum(lost.left_out if lost.at_most is None else lost.at_most for lost in (one, other))


def _lost(value: bytes | None) -> tuple[Lost, ...]:
    if value is None:
        return ()
    raw = json_object(value, "list of lost references")
    try:
        names = [field.name for field in fields(Lost)]
        return tuple(Lost(**{name: row[name] for name in names if name in row}) for row in raw["lost"])
    except (KeyError, TypeError) as error:
        raise CodecError(f"not a list of lost references: {error}") from error
