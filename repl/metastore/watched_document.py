"""A small document of the metastore: its codec, conditional changes, and a copy that a watch keeps current.

`Document` names a path and a codec. `Document.change` reads the document, changes the value and writes it on the
version that was read. `WatchedDocument` holds the value read last. Either its owner calls `refresh` in an order of its
own (the controller reads its documents before the records), or `start` follows the document in a task. Several
documents that are one are in `repl.metastore.joined_document`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import structlog

from isthmus.repl.log_limit import LogLimit
from isthmus.repl.metastore.port import (
    Ambiguous,
    ConditionalWrite,
    Metastore,
    Precondition,
    Unavailable,
    VersionConflict,
    Versioned,
)
from isthmus.repl.model.errors import CodecError, Corruption, LocalFault, NotReady, OutcomeUnknown
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

T = TypeVar("T")
F = TypeVar("F")
T_co = TypeVar("T_co", covariant=True)

ATTEMPTS_MAX: Final = 8
"""Attempts of one change. An attempt is lost to another writer, or to a write whose answer did not arrive."""

POLL_S: Final = 10.0
"""Longest time between two reads of a followed document: bounds the delay if every watch event is lost."""

RETRY_S: Final = 0.2
"""Pause before the next read after the metastore could not be reached."""


class PlannedChange(NamedTuple, Generic[T]):
    """One attempt of a change: its `result`, and the write that is to be made for it, None if there is none."""

    result: T
    write: Callable[[], Awaitable[T]] | None = None
    """Makes the write and returns the result; raises VersionConflict, Ambiguous, Unavailable."""


async def repeat_change(
    path: str, plan: Callable[[], Awaitable[PlannedChange[T]]], on_conflict: Callable[[], Awaitable[None]] | None = None
) -> T:
    """Read and write what is at `path`, as `plan` has it, until no other writer was faster.

    A write whose answer was lost is followed by another attempt, which must find nothing to change. `on_conflict` is
    called after each write that was refused, and may raise to end the attempts.

    Raises NotReady when nothing was written, OutcomeUnknown when a write may have taken effect, and whatever `plan` and
    `on_conflict` raise.
    """
    unanswered = False
    try:
        for _ in range(ATTEMPTS_MAX):
            planned = await plan()
            if planned.write is None:
                return planned.result
            try:
                return await planned.write()
            except Ambiguous:
                unanswered = True
            except VersionConflict:
                if on_conflict is not None:
                    await on_conflict()
    except (Unavailable, Ambiguous) as error:
        if not unanswered:
            raise NotReady(f"the metastore cannot be reached, nothing was changed: {error}") from error
    if unanswered:
        raise OutcomeUnknown(
            f"{path} in the metastore may have been changed: a write got no answer; look, and repeat the change"
        )
    raise NotReady(f"{path} in the metastore was not changed: others changed it at the same time; repeat the change")


class ChangedValue(NamedTuple):
    """The bytes after `change_value`, None if there is no document; `written` is True if this call wrote them."""

    found: Versioned | None
    written: bool


async def change_value(
    metastore: Metastore,
    path: str,
    change: Callable[[Versioned | None], bytes | None],
    unmoved: Collection[Precondition] = (),
    on_conflict: Callable[[], Awaitable[None]] | None = None,
) -> ChangedValue:
    """Read the value at `path`, and write what `change` makes of it on the version that was read.

    `change` returns None, or the bytes that it got, to leave the value as it is. It is called once per attempt; applied
    to its own result it must change nothing, since a write whose answer was lost is followed by another attempt. For
    `on_conflict` and errors see `repeat_change`.
    """

    async def plan() -> PlannedChange[ChangedValue]:
        found = await metastore.get(path)
        value = change(found)
        unchanged = PlannedChange(ChangedValue(found, written=False))
        if value is None or (found is not None and value == found.value):
            return unchanged
        new = value

        async def write() -> ChangedValue:
            version = await metastore.put(path, new, None if found is None else found.version, unmoved)
            return ChangedValue(Versioned(new, version), written=True)

        return unchanged._replace(write=write)

    return await repeat_change(path, plan, on_conflict)


class DocumentChange(NamedTuple, Generic[T]):
    """The value after `Document.change`; `written` is True if this call wrote it."""

    value: T
    written: bool


@dataclass(frozen=True, slots=True)
class Document(Generic[T]):
    """One document: where it lies, and its codec.

    `decode` gets None if there is no document, and raises Corruption or CodecError. `encode` is canonical: equal values
    have equal bytes.
    """

    path: str
    decode: Callable[[Versioned | None], T]
    encode: Callable[[T], bytes]

    @property
    def paths(self) -> tuple[str, ...]:
        """See `WatchedSource`."""
        return (self.path,)

    async def read(self, metastore: Metastore) -> T:
        """The value now. Raises what `decode` and the metastore raise."""
        return self.decode(await metastore.get(self.path))

    async def change(
        self,
        metastore: Metastore,
        change: Callable[[T], T],
        unmoved: Collection[Precondition] = (),
        on_conflict: Callable[[], Awaitable[None]] | None = None,
        unreadable: Callable[[CodecError], T] | None = None,
    ) -> DocumentChange[T]:
        """`change_value` on values. `change` returns an equal value to leave the document as it is. `unreadable`
        returns the value to start from where the document cannot be decoded, and may raise; None: the CodecError is
        raised."""

        def changed(found: Versioned | None) -> bytes | None:
            try:
                before = self.decode(found)
            except CodecError as error:
                if unreadable is None:
                    raise
                return self.encode(change(unreadable(error)))
            value = self.encode(change(before))
            return None if value == self.encode(before) else value

        found, written = await change_value(metastore, self.path, changed, unmoved, on_conflict)
        return DocumentChange(self.decode(found), written)

    def write_on(self, version: int | None, value: T) -> ConditionalWrite:
        """A write of `value` on `version` (None: there is no document yet), to be made together with others."""
        return ConditionalWrite(self.path, self.encode(value), version)


def decode_json(path: str, data: bytes, form: type[F]) -> F:
    """The JSON document at `path`. Raises Corruption, which names the path and the field."""
    try:
        return msgspec.json.decode(data, type=form)
    except (ValueError, RecursionError) as error:
        raise Corruption(f"{path} in the metastore: {error}") from error


class DocumentEvents(NamedTuple):
    """Names of the log events of a watched document."""

    unreadable: str
    unavailable: str = ""
    """Event of a metastore that cannot be read; only for a document that a task follows."""
    listener_failed: str = "document.listener_failed"
    """Event of a bug in a listener, with its traceback; only for a document that a task follows."""


class WatchedSource(Protocol[T_co]):
    """What a `WatchedValue` reads."""

    @property
    def path(self) -> str:
        """Its path in logs."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths whose hints mean that the value may have changed."""

    async def read(self, metastore: Metastore) -> T_co:
        """The value now. Raises Corruption or CodecError, and what the metastore raises."""


class WatchedValue(Generic[T]):
    """The value of `source` as this node read it last. Belongs to the event loop.

    A value that cannot be decoded leaves `value` as it was. Its error is logged once, until it changes or the value can
    be decoded again.
    """

    def __init__(
        self,
        metastore: Metastore,
        source: WatchedSource[T],
        value: T,
        events: DocumentEvents,
        on_read: Callable[[T], None] = lambda _value: None,
        on_unreadable: Callable[[str], None] = lambda _error: None,
    ) -> None:
        """`value` counts until the first read. `on_read` gets the value after every read and every change;
        `on_unreadable` gets the error after every read of a document that cannot be decoded."""
        self._source = source
        self.value = value
        self.was_read = False
        """False until the first successful read."""
        self.error = ""
        """Why the newest document cannot be decoded, while `value` is older; "" if it can."""
        self._metastore = metastore
        self._events = events
        self._on_read = on_read
        self._on_unreadable = on_unreadable
        self._fresh = False
        self._changes = 0
        """Changes made here. A read that began before the newest one is dropped and repeated."""
        self._wake = asyncio.Event()
        self._unavailable = LogLimit()
        self._task: asyncio.Task[None] | None = None

    # -- reading --------------------------------------------------------------------------------------

    @property
    def readable(self) -> bool:
        """False while the newest document cannot be decoded, and `value` is older."""
        return not self.error

    def on_hint(self, path: str) -> None:
        """A watch reported a change at `path`."""
        if path in self._source.paths:
            self._fresh = False
            self._wake.set()

    def expire(self) -> None:
        """Let the next `refresh` read the document, although no watch has reported a change."""
        self._fresh = False

    async def refresh(self) -> None:
        """Read the document unless it is fresh. Raises Unavailable, Ambiguous, VersionConflict."""
        if self._fresh:
            return
        self._fresh, changes = True, self._changes
        try:
            value = await self._source.read(self._metastore)
        except (LocalFault, CodecError) as error:  # damaged, or ZooKeeper refuses the read
            if self.error != str(error):
                log.error(self._events.unreadable, path=self._source.path, error=str(error))
            self.error = str(error)
            self._on_unreadable(self.error)
        except (Unavailable, Ambiguous, VersionConflict):
            self._fresh = False
            raise
        else:
            if changes == self._changes:
                self._adopt(value)
            else:
                self.on_hint(self._source.path)

    def _adopt(self, value: T) -> None:
        self.value = value
        self.was_read, self.error = True, ""
        self._on_read(value)

    def changed_here(self, value: T) -> None:
        """This node has made it `value`, which counts here at once."""
        self._changes += 1
        self._adopt(value)

    # -- following ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the document once, then follow it: after every watch event, and every POLL_S."""
        self._metastore.watch(self.on_hint)
        await self._try_refresh()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """End the task; idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _follow(self) -> None:
        pause_s = POLL_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            self._wake.clear()
            self._fresh = False
            try:
                pause_s = POLL_S if await self._try_refresh() else RETRY_S
            except Exception as error:  # a bug in a listener must not end the task: the next read may succeed
                unforeseen.exception(self._events.listener_failed, error, path=self._source.path)
                pause_s = POLL_S

    async def _try_refresh(self) -> bool:
        """False if the metastore could not be reached."""
        try:
            await self.refresh()
        except (Unavailable, Ambiguous, VersionConflict) as error:
            if (suppressed := self._unavailable.due()) is not None:
                log.warning(self._events.unavailable, path=self._source.path, error=str(error), suppressed=suppressed)
            return False
        return True


class WatchedDocument(WatchedValue[T]):
    """The value of one document as this node read it last, and its changes."""

    def __init__(
        self,
        metastore: Metastore,
        document: Document[T],
        value: T,
        events: DocumentEvents,
        on_read: Callable[[T], None] = lambda _value: None,
        on_unreadable: Callable[[str], None] = lambda _error: None,
    ) -> None:
        """See `WatchedValue`."""
        super().__init__(metastore, document, value, events, on_read, on_unreadable)
        self.document = document

    async def change(
        self, change: Callable[[T], T], *, unreadable: Callable[[CodecError], T] | None = None
    ) -> DocumentChange[T]:
        """See `Document.change`; the new value counts here at once."""
        result = await self.document.change(self._metastore, change, unreadable=unreadable)
        self.changed_here(result.value)
        return result
