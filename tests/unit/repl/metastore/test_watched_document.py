"""Documents of the metastore: conditional changes, and a followed copy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from isthmus.repl.metastore import watched_document
from isthmus.repl.metastore.port import Versioned
from isthmus.repl.metastore.watched_document import Document, DocumentEvents, WatchedDocument, change_value
from isthmus.repl.model.errors import BadInput, CodecError, NotReady, OutcomeUnknown
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore, WriteFault
from tests.support.waiting import eventually

pytestmark = pytest.mark.virtual_time

PATH = "/names"
EVENTS = DocumentEvents("names.unreadable", "names.unavailable")


def decode(found: Versioned | None) -> tuple[str, ...]:
    """The names in a document."""
    try:
        return () if found is None else tuple(json.loads(found.value))
    except ValueError as error:
        raise CodecError(f"not a list of names: {error}") from error


def encode(names: tuple[str, ...]) -> bytes:
    """The bytes of a document."""
    return json.dumps(names).encode()


NAMES = Document(PATH, decode, encode)


def with_name(name: str) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """A change that adds a name once."""
    return lambda names: names if name in names else (*names, name)


@asynccontextmanager
async def two_clients() -> AsyncIterator[tuple[MemoryMetastore, MemoryMetastore]]:
    """Two clients of one metastore."""
    ensemble = MemoryEnsemble()
    mine, other = MemoryMetastore(ensemble), MemoryMetastore(ensemble)
    for metastore in (mine, other):
        await metastore.start(lambda _state: None)
    yield mine, other
    for metastore in (mine, other):
        await metastore.stop()


async def test_changes_of_several_writers_are_all_made() -> None:
    """A change that lost to another writer is made again on what that one wrote."""

    async with two_clients() as (mine, other):
        clients = (mine, other, mine, other)
        results = await asyncio.gather(*(NAMES.change(each, with_name(str(n))) for n, each in enumerate(clients)))
        assert all(result.written for result in results)
        assert sorted(await NAMES.read(mine)) == ["0", "1", "2", "3"]


async def test_a_change_that_changes_nothing_writes_nothing() -> None:
    """Nothing is written if the value is unchanged, or if `change` returns None."""

    async with two_clients() as (mine, _other):
        assert (await NAMES.change(mine, with_name("ann"))).written
        assert await NAMES.change(mine, with_name("ann")) == (("ann",), False)
        assert await change_value(mine, PATH, lambda _found: None) == (Versioned(b'["ann"]', 0), False)


async def test_lost_writes_are_repeated_until_one_is_known_to_be_made() -> None:
    """Both a lost request and a lost answer are followed by another attempt, which makes the change once."""

    async with two_clients() as (mine, _other):
        mine.spoil(WriteFault.REQUEST_LOST, WriteFault.ANSWER_LOST)
        assert (await NAMES.change(mine, with_name("ann"))).value == ("ann",)
        found = await mine.get(PATH)
        assert found == Versioned(b'["ann"]', 0)


async def test_a_failed_change_reports_whether_it_may_have_taken_effect() -> None:
    """NotReady means that nothing was written; after a write without an answer the outcome is unknown."""

    async with two_clients() as (mine, _other):
        mine.spoil(*[WriteFault.REQUEST_LOST] * watched_document.ATTEMPTS_MAX)
        with pytest.raises(OutcomeUnknown, match="/names in the metastore may have been changed"):
            await NAMES.change(mine, with_name("ann"))
        mine.disconnect()
        with pytest.raises(NotReady, match="nothing was changed"):
            await NAMES.change(mine, with_name("ann"))


async def test_a_change_that_keeps_losing_ends_as_not_ready() -> None:
    """After ATTEMPTS_MAX conflicts nothing was written. `on_conflict` is called after each, and may end it earlier."""

    async with two_clients() as (mine, other):
        conflicts = 0
        put = mine.put

        async def overtaken(path: str, value: bytes, version: int | None, *unmoved: object) -> int:
            await NAMES.change(other, with_name(str(len(await NAMES.read(other)))))
            return await put(path, value, version)

        async def on_conflict() -> None:
            nonlocal conflicts
            conflicts += 1
            if conflicts > watched_document.ATTEMPTS_MAX + 2:
                raise BadInput("enough")

        mine.put = overtaken  # type: ignore[assignment,method-assign]
        with pytest.raises(NotReady, match="others changed it"):
            await NAMES.change(mine, with_name("ann"), (), on_conflict)
        assert conflicts == watched_document.ATTEMPTS_MAX
        with pytest.raises(BadInput, match="enough"):
            await NAMES.change(mine, with_name("ann"), (), on_conflict)
        assert "ann" not in await NAMES.read(mine)


async def test_a_followed_document_is_current_after_every_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its watch alone; after an outage, by reading again until the metastore is back."""
    monkeypatch.setattr(watched_document, "POLL_S", 60.0)

    async with two_clients() as (mine, other):
        read: list[tuple[str, ...]] = []
        document = WatchedDocument(mine, NAMES, (), EVENTS, read.append)
        await document.start()
        assert document.was_read
        await NAMES.change(other, with_name("ann"))
        await eventually(lambda: document.value == ("ann",))
        mine.disconnect()
        await NAMES.change(other, with_name("bob"))
        with capture_logs() as logs:
            document.on_hint(PATH)
            await eventually(lambda: any(each["event"] == "names.unavailable" for each in logs))
        mine.reconnect()
        await eventually(lambda: document.value == ("ann", "bob"))
        assert read[-1] == document.value
        await document.stop()


async def test_an_unreadable_document_is_logged_and_leaves_the_value() -> None:
    """The value read last counts until the document can be decoded again."""

    async with two_clients() as (mine, other):
        document = WatchedDocument(mine, NAMES, ("before",), EVENTS)
        await other.put(PATH, b"{", None)
        with capture_logs() as logs:
            await document.refresh()
        assert (document.value, document.readable, document.was_read) == (("before",), False, False)
        assert [(each["event"], each["path"]) for each in logs] == [("names.unreadable", PATH)]
        await other.put(PATH, b'["ann"]', 0)
        document.expire()
        await document.refresh()
        assert (document.value, document.readable, document.was_read) == (("ann",), True, True)


async def test_the_same_error_is_logged_once_and_reported_after_every_read() -> None:
    """`on_unreadable` gets every error; the log has a line for each different one, again after a readable document."""

    async with two_clients() as (mine, other):
        errors: list[str] = []
        document = WatchedDocument(mine, NAMES, (), EVENTS, on_unreadable=errors.append)

        async def read_again() -> None:
            document.expire()
            await document.refresh()

        async def write(value: bytes) -> None:
            found = await other.get(PATH)
            await other.put(PATH, value, None if found is None else found.version)
            await read_again()

        with capture_logs() as logs:
            await write(b"{")
            await read_again()
            await write(b"[")
            first, second = errors[0], errors[2]
            assert (errors, document.error) == ([first, first, second], second)
            assert first != second
            await write(b"[]")
            assert document.error == ""
            await write(b"[")
        assert [each["error"] for each in logs] == [first, second, second]


async def test_a_bug_of_a_listener_does_not_end_following(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is logged, and the listener gets the next value."""
    monkeypatch.setattr(watched_document, "POLL_S", 60.0)

    async with two_clients() as (mine, other):

        def fail_on_ann(value: tuple[str, ...]) -> None:
            if value == ("ann",):
                raise ZeroDivisionError

        document = WatchedDocument(mine, NAMES, (), EVENTS, fail_on_ann)
        await document.start()
        with capture_logs() as logs:
            await NAMES.change(other, with_name("ann"))
            await eventually(lambda: [each["event"] for each in logs] == [EVENTS.listener_failed])
        await NAMES.change(other, with_name("bob"))
        await eventually(lambda: document.value == ("ann", "bob"))
        await document.stop()


async def test_a_change_made_here_is_not_undone_by_a_read_that_began_before() -> None:
    """The older value of that read is dropped, and the document is read again."""

    async with two_clients() as (mine, _other):
        document = WatchedDocument(mine, NAMES, (), EVENTS)
        get, may_return = mine.get, asyncio.Event()

        async def slow(path: str) -> Versioned | None:
            found = await get(path)
            await may_return.wait()
            return found

        mine.get = slow  # type: ignore[method-assign]
        reading = asyncio.create_task(document.refresh())
        await asyncio.sleep(0.01)
        mine.get = get  # type: ignore[method-assign]
        assert (await document.change(with_name("ann"))).written
        may_return.set()
        await reading
        assert document.value == ("ann",)
        await document.refresh()
        assert document.value == ("ann",)
