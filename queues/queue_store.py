"""Reads and changes the metastore documents of source queues (`queues.queue_documents`).

Every act is one conditional write of one document. All nodes learn of it by a watch and apply it to what they lead
(`queues.service`), so an act holds on all nodes and over restarts, and records who, when and why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    marks_of,
    next_version,
    queues_in_effect,
    resumed,
    unread_suspensions,
)
from isthmus.queues.rate_limit import Rates
from isthmus.repl.metastore.port import Ambiguous, Metastore, Unavailable, VersionConflict
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
        paths = QueuePaths(queue)
        self._reading = asyncio.Lock()
        self.owner = WatchedDocument(metastore, paths.owner, None, EVENTS)
        self.suspensions = WatchedDocument(metastore, paths.suspensions, unread_suspensions(queue, wall_ms), EVENTS)
        self.command = WatchedDocument(metastore, paths.command, None, EVENTS)
        self.rates = WatchedDocument(metastore, paths.rates, RATES_NOT_READ, EVENTS)
        self.lost = WatchedDocument(metastore, paths.lost, (), EVENTS)
        self.held = WatchedDocument(metastore, paths.held, (), EVENTS)
        self.limits = WatchedDocument(metastore, paths.limits, None, EVENTS)
        self._all: tuple[WatchedDocument[Any], ...] = (
            self.owner, self.suspensions, self.command, self.rates, self.lost, self.held, self.limits,
        )  # fmt: skip

    async def refresh(self) -> QueueState:
        """Read all documents, the owner first and the command after it. Raises NotReady.

        `release` writes the command before the owner, so a state that has the new owner also has the command that moves
        the cursors for it. For that, one reader at a time reads all of them.
        """
        async with self._reading:
            with metastore_errors():
                for one in self._all:
                    one.expire()
                    await one.refresh()
            return self.state()

    def state(self) -> QueueState:
        """The values as they were read last."""
        return QueueState(
            self.owner.value,
            self.suspensions.value,
            self.command.value,
            self.rates.value,
            self.lost.value,
            self.held.value,
            self.limits.value,
            tuple(one.document.path for one in self._all if not one.readable),
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
        self, document: Document[T], change: Callable[[T], T], unreadable: Callable[[CodecError], T] | None = None
    ) -> T:
        with metastore_errors():
            return (await document.change(self._metastore, change, unreadable=unreadable)).value

    async def _read(self, document: Document[T]) -> T:
        with metastore_errors():
            return await document.read(self._metastore)

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
        settings = checked_settings(name, values)
        definitions = await self._read(DEFINITIONS)
        if name in self._in_effect(definitions):
            raise BadInput(_EXISTS.format(name))  # before the command, which would move the cursors of that queue
        # The command first: a node that sees the queue must see where it begins. Alone it has no effect. Its version
        # comes from the clock: a metastore restored from an older copy may have lost a queue of this name, and the
        # versions of its commands.
        await self.command(name, REGISTERED, start_ms, act, positions, seen=act.at_ms, by_time=by_time)
        await self._forget_earlier(name, act)
        await self._define(name, Definition(settings, *act), lambda found: name not in self._in_effect(found))

    async def _forget_earlier(self, name: str, act: AuditInfo) -> None:
        """End what operators and the owner of an earlier queue of this name left; the new one begins without."""
        paths = QueuePaths(name)
        for document in (paths.limits, paths.rates, paths.suspensions, paths.lost, paths.held):
            await self._remove(document.path)
        await self._change(paths.owner, lambda owner: _disowned(owner, act))

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

        await self._change(DEFINITIONS, changed)

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

        owner = await self._change(QueuePaths(queue).owner, changed)
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
        `CursorCommand`. The command comes first, so that nobody takes the queue from where the old owner was."""
        document = QueuePaths(name).owner
        found = await self._read(document)
        if found is None or not found.cluster:
            raise BadInput(f"queue {name!r} has no owner")
        await self.command(name, RELEASED, start_ms, act, positions, seen=seen, by_time=by_time)

        def changed(owner: QueueOwner | None) -> QueueOwner | None:
            if owner is None or not owner.cluster:
                return owner
            return QueueOwner(b"", "", owner.version + 1, act.at_ms, act.by, owner.cluster)

        await self._change(document, changed)

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
        offer: OfferChange | None = None,
    ) -> None:
        """Write a cursor command: all cursors go to the changes of `start_ms`, or some to `positions`; `by_time`: see
        `CursorCommand`. `seen` is the newest command that a partition was seen to have executed. `offer` is what
        OFFER_CHANGED changes; it gets the version of this command."""
        if by_time:
            positions = positions[:POSITIONS_MAX]  # the others go by time
        if len(positions) > POSITIONS_MAX:
            raise BadInput(f"{len(positions)} positions, {POSITIONS_MAX} are taken at once: place by parts")

        def changed(before: CursorCommand | None) -> CursorCommand:
            version = next_version(0 if before is None else before.version, seen, act.at_ms)
            earlier = None if before is None or what == REGISTERED else before.change
            change = (
                earlier
                if offer is None
                else replaced(offer, version=version, since=0 if earlier is None else earlier.version)
            )
            command = CursorCommand(version, what, start_ms, *act, positions, by_time, change)
            if before is None:
                return command
            command = command.following(before)
            written_already = replaced(before, version=command.version) == command  # its answer was lost
            return before if written_already else command

        await self._change(QueuePaths(name).command, changed)

    async def change_offer(
        self,
        name: str,
        settings: QueueSettings,
        values: Mapping[str, Any],
        act: AuditInfo,
        *,
        again: bool = False,
        seen: int = 0,
    ) -> None:
        """Change what the queue offers to `values` ("filter", "cascade"; None: as defined); `settings` are in effect
        now. With `again` all cursors go to 0."""
        found = await self._read(QueuePaths(name).command)
        before = None if found is None else found.change
        present = {} if before is None else {"filter": before.filter, "cascade": before.cascade}
        wanted: dict[str, Any] = {"filter": None, "cascade": None, **present, **values}
        checked_settings(name, {key: value for key, value in wanted.items() if value is not None})
        offer = OfferChange(
            wanted["filter"], wanted["cascade"], settings.filter, settings.cascade, 0, 0, *act, again=again
        )
        positions = () if again else (NO_PARTITION,)
        await self.command(name, OFFER_CHANGED, 0, act, positions, seen=seen, offer=offer)

    # ---------------------------------------------------------------- limits, suspensions, rates

    async def set_limits(self, name: str, values: Mapping[str, Any], act: AuditInfo, *, default: bool = False) -> None:
        """Set these of `queue_documents.LIMITS`, the others stay; `default`: those of the definition or file count
        again."""

        def changed(before: SetLimits | None) -> SetLimits:
            kept = {} if before is None or default else before.values
            return SetLimits({**kept, **values}, *act)

        def unreadable(error: CodecError) -> None:
            if not default:
                raise BadInput(f"the limits set before cannot be read ({error}): --default ends them") from error

        await self._change(QueuePaths(name).limits, changed, unreadable)

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

        await self._change(QueuePaths(name).suspensions, changed, unreadable)

    async def set_rates(self, name: str, rates: Rates | None, act: AuditInfo) -> None:
        """Limit what every node serves; None: the config file counts again."""
        value = None if rates is None else SetRates(rates, act)
        await self._change(QueuePaths(name).rates, lambda _before: value, lambda _error: None)

    # ---------------------------------------------------------------- bulk references: marks and losses

    async def set_marks(self, name: str, node: str, marks: Sequence[BulkMark]) -> tuple[BulkMark, ...]:
        """Replace the marks of `node`; returns those of all nodes. Raises Overloaded."""

        def changed(before: tuple[BulkMark, ...]) -> tuple[BulkMark, ...]:
            found = (*(one for one in before if one.node != node), *marks)
            if len(found) > MARKS_MAX:
                raise Overloaded(f"{MARKS_MAX} marks of what nodes hold of a queue are kept at most")
            return before if set(found) == set(before) else found

        return await self._change(QueuePaths(name).held, changed)

    async def record_crash(self, name: str, node: str, at_ms: int) -> int:
        """Turn the marks of a node that died into loss records; idempotent. Returns how many marks there were."""
        paths = QueuePaths(name)
        held = await self._read(paths.held)
        marks = marks_of(held, node)
        if not marks:
            return 0
        lost = [
            LostReferences(node, m.priority, 0, m.since_ms, at_ms, CRASHED, "", at_ms, m.at_most, m.bucket_types)
            for m in marks
        ]

        def noted(found: tuple[LostReferences, ...]) -> tuple[LostReferences, ...]:
            known = {(one.node, one.priority, one.from_ms) for one in found if one.what == CRASHED}
            return (*found, *(one for one in lost if (one.node, one.priority, one.from_ms) not in known))

        await self._change_lost(name, noted)
        await self._change(paths.held, lambda before: tuple(one for one in before if one not in marks))
        return len(marks)

    async def record_lost(self, name: str, lost: Sequence[LostReferences]) -> None:
        """Add loss records; idempotent."""
        await self._change_lost(name, lambda found: (*found, *(one for one in lost if one not in found)))

    async def forget_lost(self, name: str, found_again: Collection[LostReferences]) -> int:
        """Remove loss records whose references a full-sync has repaired; returns how many there were."""
        count = 0

        def change(found: tuple[LostReferences, ...]) -> tuple[LostReferences, ...]:
            nonlocal count
            left = tuple(one for one in found if one not in found_again)
            count = len(found) - len(left)
            return left

        await self._change_lost(name, change)
        return count

    async def _change_lost(
        self, name: str, change: Callable[[tuple[LostReferences, ...]], tuple[LostReferences, ...]]
    ) -> None:
        await self._change(QueuePaths(name).lost, lambda before: bounded(change(before)))

    async def names(self) -> list[str]:
        """All queues that ever had a document."""
        with metastore_errors():
            return await self._metastore.children(QUEUES_PATH)

    async def marks_of_other(self, name: str) -> tuple[tuple[BulkMark, ...], bool]:
        """(marks of a queue that this node does not run, whether it is delisted: its marks and loss records are then
        removed). Raises CodecError."""
        paths = QueuePaths(name)
        with metastore_errors():
            found = [await self._metastore.get(document.path) for document in (paths.held, paths.lost)]
        marks = paths.held.decode(found[0])
        definition = (await self._read(DEFINITIONS)).get(name) if any(found) else None
        delisted = definition is not None and definition.settings is None
        if delisted:
            # On the versions that were read before the queue was found to be delisted: one that is registered again
            # meanwhile keeps its documents.
            for path, value in zip((paths.held.path, paths.lost.path), found, strict=True):
                if value is not None:
                    await self._remove_version(path, value.version)
        return marks, delisted

    async def _remove(self, path: str) -> None:
        with metastore_errors():
            found = await self._metastore.get(path)
        if found is not None:
            await self._remove_version(path, found.version)

    async def _remove_version(self, path: str, version: int) -> None:
        """Remove the document unless it has changed."""
        try:
            await self._metastore.delete(path, version)
        except (VersionConflict, Ambiguous):
            log.info("queue.value_kept", path=path)  # changed, so still wanted; a lost answer is found out later
        except Unavailable as error:
            raise NotReady("the metastore cannot be reached") from error


def _disowned(owner: QueueOwner | None, act: AuditInfo) -> QueueOwner | None:
    """The document of a queue that nobody owned yet, under the next version: any cluster may have it at once."""
    if owner is None or not (owner.cluster or owner.former):
        return owner
    return QueueOwner(b"", "", owner.version + 1, act.at_ms, act.by)


_EXISTS: Final = (
    "queue {0!r}: there is one already, which stays as it is; delisted, its cursors and gaps would go with it"
)
