"""Reads and changes the metastore documents of source queues (`queues.queue_documents`).

An act on a queue is one conditional write: of its settings, or of its bulk marks and losses. All nodes learn of it by a
watch and apply it to what they lead (`queues.service`), so an act holds on all nodes and over restarts, and records
who, when and why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import structlog
from msgspec.structs import replace as replaced

from isthmus.config.settings import QueueSettings
from isthmus.config.validation import check_name
from isthmus.queues.filters import parse_filter
from isthmus.queues.queue_documents import (
    CRASHED,
    DEFINITIONS,
    DEFINITIONS_MAX,
    DEFINITIONS_PATH,
    MARKS_MAX,
    NO_PARTITION,
    OFFER_CHANGED,
    PLACED,
    POSITIONS_MAX,
    QUEUES_PATH,
    RATES_NOT_READ,
    REGISTERED,
    RELEASED,
    SUSPENSIONS_MAX,
    AuditInfo,
    BulkMark,
    CursorCommand,
    Definition,
    LostReferences,
    OfferChange,
    Positions,
    QueueOwner,
    QueuePaths,
    QueueState,
    QueueSuspension,
    SetLimits,
    SetRates,
    Suspensions,
    bounded,
    checked_settings,
    commanded,
    marks_of,
    next_version,
    queues_in_effect,
    resumed,
    unread_suspensions,
)
from isthmus.queues.rate_limit import Rates
from isthmus.repl.metastore.joined_document import JoinedDocument, JoinedValues, WatchedJoinedDocument, changed_one
from isthmus.repl.metastore.port import Ambiguous, Metastore, Precondition, Unavailable, VersionConflict
from isthmus.repl.metastore.watched_document import Document, DocumentEvents, WatchedDocument
from isthmus.repl.model.errors import BadConfig, BadInput, CodecError, NotReady, OutcomeUnknown, Overloaded

log = structlog.get_logger(__name__)

T = TypeVar("T")

EVENTS: Final = DocumentEvents("queue.metastore_value_unreadable")


@contextmanager
def metastore_errors() -> Iterator[None]:
    """Raise NotReady where the metastore cannot be reached, and where a write may have taken effect: every act may be
    repeated."""
    try:
        yield
    except (Unavailable, Ambiguous, VersionConflict) as error:
        raise NotReady("the metastore cannot be reached") from error
    except OutcomeUnknown as error:
        raise NotReady(str(error)) from error


class QueueDocuments:
    """The documents of one queue as this node read them last."""

    def __init__(self, metastore: Metastore, queue: str, wall_ms: int) -> None:
        self._paths = paths = QueuePaths(queue)
        self._reading = asyncio.Lock()
        self._settings = WatchedJoinedDocument(
            metastore,
            paths.settings,
            EVENTS,
            ((paths.suspensions, unread_suspensions(queue, wall_ms)), (paths.rates, RATES_NOT_READ)),
        )
        self._bulk = WatchedJoinedDocument(metastore, paths.bulk, EVENTS)

    async def refresh(self) -> QueueState:
        """Read all documents, one reader at a time. Raises NotReady."""
        async with self._reading:
            with metastore_errors():
                for one in (self._settings, self._bulk):
                    one.expire()
                    await one.refresh()
            return self.state()

    def state(self) -> QueueState:
        """The values as they were read last."""
        paths, settings, bulk = self._paths, self._settings, self._bulk
        return QueueState(
            settings.part(paths.owner).value,
            settings.part(paths.suspensions).value,
            settings.part(paths.command).value,
            settings.part(paths.rates).value,
            bulk.part(paths.lost).value,
            bulk.part(paths.held).value,
            settings.part(paths.limits).value,
            settings.unread() | bulk.unread(),
        )


class QueueStore:
    """The acts on queues. `config` are the queues of this node's file. Acts raise BadInput for what makes no sense,
    CodecError for a document that cannot be read, and NotReady when the metastore cannot be reached."""

    def __init__(self, metastore: Metastore, config: Mapping[str, QueueSettings]) -> None:
        self._metastore = metastore
        self._config = config
        self._definitions = WatchedDocument(metastore, DEFINITIONS, {}, EVENTS)

    def documents(self, queue: str, wall_ms: int) -> QueueDocuments:
        """The documents of a queue, not read yet; `wall_ms` is now."""
        return QueueDocuments(self._metastore, queue, wall_ms)

    async def _change(
        self,
        joined: JoinedDocument,
        change: Callable[[JoinedValues], JoinedValues],
        conditions: Callable[[], Awaitable[Collection[Precondition]]] | None = None,
    ) -> JoinedValues:
        with metastore_errors():
            return (await joined.change(self._metastore, change, conditions)).values

    async def _change_one(
        self,
        joined: JoinedDocument,
        document: Document[T],
        change: Callable[[T], T],
        unreadable: Callable[[CodecError], T] | None = None,
    ) -> T:
        with metastore_errors():
            return await joined.change_one(self._metastore, document, change, unreadable)

    async def _definitions_now(self) -> dict[str, Definition]:
        with metastore_errors():
            return await DEFINITIONS.read(self._metastore)

    # ---------------------------------------------------------------- which queues there are

    @property
    def unread(self) -> str:
        """Why this node does not know which queues there are; "" when it does."""
        if self._definitions.was_read:
            return ""
        return f"which queues there are cannot be read (metastore: {DEFINITIONS_PATH})"

    async def queues(self) -> dict[str, QueueSettings] | None:
        """All queues that this version can run, as the newest readable document has them; None when none was readable
        yet. Left out, and logged, are queues with a filter or a name that this version does not accept."""
        with metastore_errors():
            self._definitions.expire()
            await self._definitions.refresh()
        if not self._definitions.was_read:
            return None
        found = {}
        for name, settings in self._in_effect(self._definitions.value).items():
            try:
                check_name(name)
                parse_filter(settings.filter)
            except (ValueError, BadConfig) as error:
                log.error("queue.not_understood", queue=name, error=str(error))
            else:
                found[name] = settings
        return found

    def _in_effect(self, found: Mapping[str, Definition]) -> dict[str, QueueSettings]:
        return queues_in_effect(self._config, found)

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
        """Add queue `name` on all nodes. It offers changes of `start_ms` and later (0: all), or from `positions` on;
        `by_time`: see `CursorCommand`. `values` are fields of QueueSettings, all others have their defaults."""
        settings, paths = checked_settings(name, values), QueuePaths(name)

        async def undefined() -> Collection[Precondition]:
            # A queue of this name that was registered meanwhile keeps its cursors, its owner and its marks.
            found = await self._metastore.get(DEFINITIONS_PATH)
            if name in self._in_effect(DEFINITIONS.decode(found)):
                raise BadInput(_EXISTS.format(name))
            return () if found is None else (Precondition(DEFINITIONS_PATH, found.version),)

        # A node that sees the queue must see where it begins, and nothing that operators, nodes and the owner of an
        # earlier queue of this name left. Alone this has no effect. The command's version comes from the clock: a
        # metastore restored from an older copy may have lost a queue of this name, and the versions of its commands.
        command = _command(REGISTERED, start_ms, act, positions, by_time=by_time)

        def begun(values: JoinedValues) -> JoinedValues:
            values = values.replaced(paths.command, commanded(values[paths.command], command, None, act.at_ms))
            values = values.replaced(paths.owner, _disowned(values[paths.owner], act))
            return _unset(values, (paths.suspensions, paths.rates, paths.limits))

        await self._change(paths.settings, begun, undefined)
        await self._change(paths.bulk, lambda values: _unset(values, paths.bulk.documents), undefined)
        await self._define(name, Definition(settings, *act), lambda found: name not in self._in_effect(found))

    async def delist(self, name: str, act: AuditInfo) -> None:
        """Remove queue `name` on all nodes."""
        await self._define(name, Definition(None, *act), lambda found: name in self._in_effect(found))

    async def _define(
        self, name: str, definition: Definition, allowed: Callable[[Mapping[str, Definition]], bool]
    ) -> None:
        def changed(before: dict[str, Definition]) -> dict[str, Definition]:
            if before.get(name) == definition:
                return before
            if not allowed(before):
                raise BadInput(_EXISTS.format(name) if definition.settings else f"queue {name!r}: there is none")
            found = dict(before)
            if definition.settings is None and name not in self._config:
                # A delisted queue keeps an entry: a node that has it in its file must know that it is gone.
                found.pop(name, None)
            found[name] = definition
            if len(found) > DEFINITIONS_MAX:
                raise Overloaded(f"{DEFINITIONS_MAX} queues were registered or delisted, which is the limit")
            return found

        with metastore_errors():
            await DEFINITIONS.change(self._metastore, changed)

    # ---------------------------------------------------------------- owner

    async def take_ownership(
        self, queue: str, candidate: QueueOwner, may_own: Callable[[QueueOwner], bool]
    ) -> QueueOwner:
        """Make `candidate` the owner under the next version, unless `may_own(present owner)` is false; returns the
        owner. `candidate.version` is the newest that a partition has executed."""
        made: list[QueueOwner] = []

        def changed(before: QueueOwner | None) -> QueueOwner | None:
            if before is not None and not may_own(before):
                return before
            version = next_version(before.version if before else 0, candidate.version, candidate.since_ms)
            made.append(replaced(candidate, version=version))
            return made[-1]

        paths = QueuePaths(queue)
        owner = await self._change_one(paths.settings, paths.owner, changed)
        assert owner is not None
        if made and owner == made[-1]:
            log.info("queue.owned", queue=queue, cluster=owner.name, version=owner.version)
        return owner

    async def release(
        self,
        name: str,
        start_ms: int,
        act: AuditInfo,
        positions: Positions = (),
        *,
        seen: int = 0,
        by_time: bool = False,
    ) -> None:
        """End the ownership of the queue; its next owner begins at `start_ms`, or at `positions`; `by_time`: see
        `CursorCommand`. Nobody can take the queue from where the old owner was: the command is in the same write."""
        paths, command = QueuePaths(name), _command(RELEASED, start_ms, act, positions, by_time=by_time)

        def released(values: JoinedValues) -> JoinedValues:
            owner, before = values[paths.owner], values[paths.command]
            if before is not None and before.has_released(command):
                return values  # written already, and the answer was lost: another cluster may own the queue by now
            if owner is None or not owner.cluster:
                raise BadInput(f"queue {name!r} has no owner")
            ownerless = QueueOwner(b"", "", owner.version + 1, act.at_ms, act.by, owner.cluster)
            new = commanded(before, command, None, seen)
            return values.replaced(paths.command, new).replaced(paths.owner, ownerless)

        await self._change(paths.settings, released)

    # ---------------------------------------------------------------- acts that move cursors

    async def place(self, name: str, positions: Positions, act: AuditInfo, *, seen: int = 0) -> None:
        """Move the queue's cursors in these partitions to these offsets: the sink's cluster has what is below."""
        await self.command(name, PLACED, 0, act, positions, seen=seen)

    async def command(
        self,
        name: str,
        what: str,
        start_ms: int,
        act: AuditInfo,
        positions: Positions = (),
        *,
        seen: int = 0,
        by_time: bool = False,
    ) -> None:
        """Write a cursor command: all cursors go to the changes of `start_ms`, or some to `positions`; `by_time`: see
        `CursorCommand`. `seen` is the newest command that a partition was seen to have executed."""
        paths, command = QueuePaths(name), _command(what, start_ms, act, positions, by_time=by_time)
        await self._change_one(paths.settings, paths.command, lambda before: commanded(before, command, None, seen))

    # ---------------------------------------------------------------- what a queue offers, limits, suspensions, rates

    async def change_settings(
        self,
        name: str,
        settings: QueueSettings,
        values: Mapping[str, Any],
        act: AuditInfo,
        *,
        default: bool = False,
        again: bool = False,
        seen: int = 0,
    ) -> None:
        """Change some of "filter", "cascade" and `queue_documents.LIMITS` (None: as defined) while the queue runs;
        `settings` are in effect now. `default`: those of the definition or file count again. `again`: all cursors go
        to 0."""
        paths = QueuePaths(name)
        limits = {key: value for key, value in values.items() if key not in _OFFER}
        offered = limits.keys() != values.keys()
        checked_settings(name, {key: value for key, value in values.items() if value is not None})

        def unreadable(error: CodecError) -> None:
            if not default:
                raise BadInput(f"the limits set before cannot be read ({error}): --default ends them") from error

        def limited(before: SetLimits | None) -> SetLimits:
            return SetLimits({**({} if before is None or default else before.values), **limits}, *act)

        def changed(found: JoinedValues) -> JoinedValues:
            if limits or default:
                found = changed_one(paths.limits, limited, unreadable)(found)
            if not (offered or default or again):
                return found  # limits alone, also while the command cannot be read
            before = found[paths.command]
            offer = _offer(
                settings, None if before is None else before.change, values, act, default=default, again=again
            )
            if offer is None:
                return found
            checked_settings(name, {key: v for key in _OFFER if (v := getattr(offer, key)) is not None})
            command = _command(OFFER_CHANGED, 0, act, () if again else (NO_PARTITION,))
            return found.replaced(paths.command, commanded(before, command, offer, seen))

        await self._change(paths.settings, changed)

    async def suspend(self, name: str, whats: Collection[str], node: str | None, act: AuditInfo) -> None:
        """Suspend each of `whats` (SERVING, PUBLISHING) on one node or (None) on all, in one write."""
        new = [QueueSuspension(what, node, *act) for what in whats]
        await self._change_suspensions(
            name, lambda found: (*(s for s in found if s.what not in whats or s.node != node), *new)
        )

    async def resume(self, name: str, whats: Collection[str], node: str | None) -> None:
        """End suspensions of each of `whats`, of one node or (None) every one; see `resumed`. Suspensions that cannot
        be read end, all of them, with every one."""

        def change(found: Suspensions) -> Suspensions:
            for what in whats:
                found = resumed(found, what, node, name)
            return found

        await self._change_suspensions(name, change, replace_unreadable=node is None)

    async def _change_suspensions(
        self, name: str, change: Callable[[Suspensions], Suspensions], *, replace_unreadable: bool = False
    ) -> None:
        def changed(before: Suspensions) -> Suspensions:
            found = change(before)
            if len(found) > SUSPENSIONS_MAX:
                raise Overloaded(f"{SUSPENSIONS_MAX} suspensions of one queue are kept at most")
            return found

        def unreadable(error: CodecError) -> Suspensions:
            if not replace_unreadable:
                raise BadInput(
                    f"what is suspended of queue {name} cannot be read ({error}): isthmus queue resume {name} on all "
                    "nodes ends all of it; then suspend what is to be suspended"
                ) from error
            log.warning("queue.unreadable_suspensions_ended", queue=name, value=str(error)[:200])
            return ()

        paths = QueuePaths(name)
        await self._change_one(paths.settings, paths.suspensions, changed, unreadable)

    async def set_rates(self, name: str, rates: Rates | None, act: AuditInfo) -> None:
        """Limit what every node serves; None: the config file counts again."""
        value, paths = None if rates is None else SetRates(rates, act), QueuePaths(name)
        await self._change_one(paths.settings, paths.rates, lambda _before: value, lambda _error: None)

    # ---------------------------------------------------------------- bulk references: marks and losses

    async def set_marks(self, name: str, node: str, marks: Sequence[BulkMark]) -> tuple[BulkMark, ...]:
        """Replace the marks of `node`; returns those of all nodes. Raises Overloaded."""

        def changed(before: tuple[BulkMark, ...]) -> tuple[BulkMark, ...]:
            found = (*(one for one in before if one.node != node), *marks)
            if len(found) > MARKS_MAX:
                raise Overloaded(f"{MARKS_MAX} marks of what nodes hold of a queue are kept at most")
            return before if set(found) == set(before) else found

        paths = QueuePaths(name)
        return await self._change_one(paths.bulk, paths.held, changed)

    async def record_crash(self, name: str, node: str, at_ms: int) -> int:
        """Turn the marks of a node that died into loss records. Returns how many marks there were."""
        paths, count = QueuePaths(name), 0

        def lost(values: JoinedValues) -> JoinedValues:
            nonlocal count
            held = values[paths.held]
            marks = marks_of(held, node)
            if not marks:
                return values
            count = len(marks)
            new = [
                LostReferences(node, m.priority, 0, m.since_ms, at_ms, CRASHED, "", at_ms, m.at_most, m.bucket_types)
                for m in marks
            ]
            left = tuple(mark for mark in held if mark not in marks)
            before = values[paths.lost]
            return values.replaced(paths.lost, _with_lost(before, new)).replaced(paths.held, left)

        await self._change(paths.bulk, lost)
        return count

    async def record_lost(self, name: str, lost: Sequence[LostReferences]) -> None:
        """Add loss records; idempotent."""
        paths = QueuePaths(name)

        def changed(found: tuple[LostReferences, ...]) -> tuple[LostReferences, ...]:
            return _with_lost(found, lost)

        await self._change_one(paths.bulk, paths.lost, changed)

    async def forget_lost(self, name: str, found_again: Collection[LostReferences]) -> int:
        """Remove loss records whose references a full-sync has repaired; returns how many there were."""
        paths, count = QueuePaths(name), 0

        def change(found: tuple[LostReferences, ...]) -> tuple[LostReferences, ...]:
            nonlocal count
            left = tuple(one for one in found if one not in found_again)
            count = max(count, len(found) - len(left))
            return left

        await self._change_one(paths.bulk, paths.lost, change)
        return count

    async def names(self) -> list[str]:
        """All queues that ever had a document."""
        with metastore_errors():
            return await self._metastore.children(QUEUES_PATH)

    async def marks_of_other(self, name: str) -> tuple[tuple[BulkMark, ...], bool]:
        """(marks of a queue that this node does not run, whether it is delisted: its marks and loss records are then
        removed). Raises CodecError."""
        paths = QueuePaths(name)
        with metastore_errors():
            found = await paths.bulk.read(self._metastore)
        marks, is_lost = found[paths.held], bool(found.error(paths.lost) or found[paths.lost])
        definition = (await self._definitions_now()).get(name) if marks or is_lost else None
        delisted = definition is not None and definition.settings is None
        if delisted:
            # Only what was read before the queue was found to be delisted: one that is registered again meanwhile
            # keeps its marks.
            def emptied(values: JoinedValues) -> JoinedValues:
                if any(values.data(one) != found.data(one) for one in paths.bulk.documents):
                    return values
                return _unset(values, paths.bulk.documents)

            await self._change(paths.bulk, emptied)
        return marks, delisted


_OFFER: Final = ("filter", "cascade")
"""What a queue offers: these settings change with a cursor command."""


def _unset(values: JoinedValues, documents: Collection[Document[Any]]) -> JoinedValues:
    """`values` without what is set by `documents`, readable or not."""
    for document in documents:
        values = values.replaced(document, document.decode(None))
    return values


def _offer(
    settings: QueueSettings,
    before: OfferChange | None,
    values: Mapping[str, Any],
    act: AuditInfo,
    *,
    default: bool,
    again: bool,
) -> OfferChange | None:
    """What an act makes the queue offer; None: what it offered `before`."""
    present: dict[str, Any] = dict.fromkeys(_OFFER) if before is None else {key: getattr(before, key) for key in _OFFER}
    given = {key: values[key] for key in _OFFER if key in values}
    if default and any(value is not None for value in present.values()):
        given = dict.fromkeys(_OFFER)
    if not (given or again):
        return None
    wanted = {**present, **given}
    return OfferChange(wanted["filter"], wanted["cascade"], settings.filter, settings.cascade, 0, 0, *act, again=again)


def _command(what: str, start_ms: int, act: AuditInfo, positions: Positions, *, by_time: bool = False) -> CursorCommand:
    """A command whose version `commanded` sets. Raises BadInput for more positions than one can have."""
    if by_time:
        positions = positions[:POSITIONS_MAX]  # the others go by time
    if len(positions) > POSITIONS_MAX:
        raise BadInput(f"{len(positions)} positions, {POSITIONS_MAX} are taken at once: place by parts")
    return CursorCommand(1, what, start_ms, *act, positions, by_time)


def _with_lost(found: Sequence[LostReferences], new: Sequence[LostReferences]) -> tuple[LostReferences, ...]:
    """`found` with those of `new` that are not among them."""
    return bounded((*found, *(one for one in new if one not in found)))


def _disowned(owner: QueueOwner | None, act: AuditInfo) -> QueueOwner | None:
    """The document of a queue that nobody owned yet, under the next version: any cluster may have it at once."""
    if owner is None or not (owner.cluster or owner.former):
        return owner
    return QueueOwner(b"", "", owner.version + 1, act.at_ms, act.by)


_EXISTS: Final = (
    "queue {0!r}: there is one already, which stays as it is; delisted, its cursors and gaps would go with it"
)
