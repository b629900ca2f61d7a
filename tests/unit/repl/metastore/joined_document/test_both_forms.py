"""Documents that become one: both forms, the step between them, and what programs of the version before see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from isthmus.repl.metastore import watched_document
from isthmus.repl.metastore.codecs import RECORD_BYTES_MAX
from isthmus.repl.metastore.joined_document import (
    JoinedDocument,
    JoinedValues,
    WatchedJoinedDocument,
    changed_one,
)
from isthmus.repl.metastore.port import Versioned
from isthmus.repl.metastore.watched_document import Document, DocumentEvents
from isthmus.repl.model.errors import CodecError, NotReady, OutcomeUnknown, TooLarge
from tests.support.earlier_program import register_earlier, register_present
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore, WriteFault
from tests.support.waiting import eventually

pytestmark = pytest.mark.virtual_time

EVENTS = DocumentEvents("places.unreadable", "places.unavailable")


def _decode_names(found: Versioned | None) -> tuple[str, ...]:
    names = [] if found is None else _json(found.value)
    if not isinstance(names, list):
        raise CodecError("not a list of names")
    return tuple(names)


def _decode_rate(found: Versioned | None) -> int:
    row = {} if found is None else _json(found.value)
    if not isinstance(row, dict):
        raise CodecError("not a rate")
    return int(row.get("rate", 0))


def _json(value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        raise CodecError(str(error)) from error


NAMES: Document[tuple[str, ...]] = Document("/place/names", _decode_names, lambda names: json.dumps(names).encode())
RATE: Document[int] = Document(
    "/place/rate", _decode_rate, lambda rate: json.dumps({"rate": rate} if rate else {}).encode()
)
PLACE = JoinedDocument("/place/all", (NAMES, RATE))

MARKER = b'"moved to /place/all"'


def with_name(name: str) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """A change that adds a name once."""
    return lambda names: names if name in names else (*names, name)


@asynccontextmanager
async def clients(count: int = 2) -> AsyncIterator[list[MemoryMetastore]]:
    """Clients of one metastore, none of them registered."""
    ensemble = MemoryEnsemble()
    made = [MemoryMetastore(ensemble) for _ in range(count)]
    for metastore in made:
        await metastore.start(lambda _state: None)
    yield made
    for metastore in made:
        await metastore.stop()


async def stored(metastore: MemoryMetastore) -> dict[str, bytes]:
    """The values below /place, by name."""
    found = {name: await metastore.get(f"/place/{name}") for name in await metastore.children("/place")}
    return {name: one.value for name, one in found.items() if one is not None}


async def rates(metastore: MemoryMetastore, rate: int) -> None:
    await PLACE.change_one(metastore, RATE, lambda _rate: rate)


async def test_the_first_change_joins_the_documents_once_every_node_reads_the_joined_form() -> None:
    """It is one write: the joined document, and a marker at each former path, also where nothing was. Later changes
    write the joined document alone. What nothing was set for is left out."""

    async with clients() as (mine, other):
        await register_present(mine, "n1", 1)
        await NAMES.change(other, with_name("ann"))
        await rates(mine, 5)
        assert await stored(mine) == {
            "all": b'{"v":1,"names":["ann"],"rate":{"rate":5}}',
            "names": MARKER,
            "rate": MARKER,
        }
        await rates(mine, 0)
        await PLACE.change_one(other, NAMES, with_name("bob"))
        assert await mine.get("/place/all") == Versioned(b'{"v":1,"names":["ann","bob"]}', 2)
        assert await mine.get("/place/names") == Versioned(MARKER, 1)
        values = await PLACE.read(other)
        assert (values[NAMES], values[RATE]) == (("ann", "bob"), 0)


async def test_the_documents_stay_apart_while_a_node_of_the_version_before_is_live() -> None:
    """A change writes what it changes at the former path, in the former bytes, and nothing else. The version before
    reads it, and its own changes are read here."""

    async with clients() as (mine, earlier):
        await register_present(mine, "n1", 1)
        await register_earlier(earlier, "n2", 2)
        await PLACE.change_one(mine, NAMES, with_name("ann"))
        assert await stored(mine) == {"names": b'["ann"]'}
        await RATE.change(earlier, lambda _rate: 7)
        assert await NAMES.read(earlier) == ("ann",)
        values = await PLACE.read(mine)
        assert (values[NAMES], values[RATE]) == (("ann",), 7)


async def test_documents_of_one_change_are_written_together_while_they_are_apart() -> None:
    """Both or none: a write that loses to another writer of either is made again on what that one wrote."""

    async with clients() as (mine, other):
        await RATE.change(other, lambda _rate: 1)
        raced = False

        def both(values: JoinedValues) -> JoinedValues:
            found = values.replaced(NAMES, (*values[NAMES], f"of {values[RATE]}"))
            return found.replaced(RATE, values[RATE] + 1)

        put_all = mine.put_all

        async def overtaken(*args: Any) -> None:
            nonlocal raced
            if not raced:
                raced = True
                await RATE.change(other, lambda _rate: 10)
            await put_all(*args)

        mine.put_all = overtaken  # type: ignore[method-assign]
        await PLACE.change(mine, both)
        assert await stored(other) == {"names": b'["of 10"]', "rate": b'{"rate": 11}'}


async def test_the_documents_stay_apart_while_a_known_node_is_down() -> None:
    """It may come back as a process of the version before, which would go on with what it read before it lost its
    session. Once it is there again, or was removed, the next change joins them."""

    async with clients(3) as (mine, other, again):
        await register_present(mine, "n1", 1)
        await register_present(other, "n2", 2)
        await other.stop()
        await rates(mine, 1)
        assert "all" not in await stored(mine)
        await register_present(again, "n2", 2)
        await rates(mine, 2)
        assert "all" in await stored(mine)


async def test_the_claim_of_a_former_process_does_not_speak_for_the_one_that_replaced_it() -> None:
    """A node that goes back to the version before takes its registration over while the session of its former process
    still lasts, and with it the claim that the node reads joined documents."""

    async with clients(3) as (mine, former, back):
        await register_present(mine, "n1", 1)
        await register_present(former, "n2", 2)
        assert await mine.all_read_joined()
        for path in ("/nodes/n2", "/ids/2"):
            found = await back.get(path)
            assert found is not None
            await back.delete(path, found.version)
        await register_earlier(back, "n2", 2)
        assert await mine.get("/joined-readers/n2") is not None
        assert not await mine.all_read_joined()
        await rates(mine, 1)
        assert "all" not in await stored(mine)


async def test_a_new_session_claims_again() -> None:
    """The claim ends with its session, and belongs to the registration of the next one."""

    async with clients() as (mine, _other):
        assert not await mine.all_read_joined(), "nobody is known"
        first = await register_present(mine, "n1", 1)
        mine.expire()
        assert not await mine.all_read_joined()
        assert await register_present(mine, "n1", 1) > first
        assert await mine.all_read_joined()


async def test_a_program_of_the_version_before_fails_closed_afterwards() -> None:
    """What it reads is unreadable, and its changes are refused, also the one that it had begun before."""

    async with clients() as (mine, earlier):
        await register_present(mine, "n1", 1)
        await NAMES.change(earlier, with_name("ann"))
        get = earlier.get

        async def slow(path: str) -> Versioned | None:
            found = await get(path)
            if "all" not in await stored(mine):
                await rates(mine, 3)
            return found

        earlier.get = slow  # type: ignore[method-assign]
        with pytest.raises(CodecError):
            await NAMES.change(earlier, with_name("bob"))
        for document in (NAMES, RATE):
            with pytest.raises(CodecError):
                await document.read(earlier)
        assert (await PLACE.read(mine))[NAMES] == ("ann",)


async def test_what_is_written_over_a_marker_does_not_count() -> None:
    """A program of the version before replaces what it cannot read when an operator asks for it; this version reads the
    joined document alone."""

    async with clients() as (mine, earlier):
        await register_present(mine, "n1", 1)
        await PLACE.change_one(mine, NAMES, with_name("ann"))
        await NAMES.change(earlier, with_name("eve"), unreadable=lambda _error: ())
        assert (await PLACE.read(mine))[NAMES] == ("ann",)
        await PLACE.change_one(mine, NAMES, with_name("bob"))
        assert (await PLACE.read(mine))[NAMES] == ("ann", "bob")


async def test_a_reader_that_meets_a_marker_reads_the_joined_document() -> None:
    """The documents may be joined between its reads; it never takes a marker for a damaged document."""

    async with clients() as (mine, other):
        await register_present(mine, "n1", 1)
        await PLACE.change_one(mine, NAMES, with_name("ann"))
        joined = await mine.get("/place/all")
        get, first = other.get, True

        async def late(path: str) -> Versioned | None:
            nonlocal first
            if path == "/place/all" and first:
                first = False
                return None
            return await get(path)

        other.get = late  # type: ignore[method-assign]
        assert (await PLACE.read(other))[NAMES] == ("ann",)
        assert joined is not None
        await mine.delete("/place/all", joined.version)
        values = await PLACE.read(mine)
        assert MARKER not in (values.error(NAMES), "")
        assert values.place(NAMES) == "/place/names"


@pytest.mark.parametrize("fault", list(WriteFault))
async def test_a_write_without_an_answer_is_repeated(fault: WriteFault) -> None:
    """Whether or not it took effect, the change is made once; a late one is refused, and the documents are joined
    once."""

    async with clients() as (mine, other):
        await register_present(mine, "n1", 1)
        mine.spoil(fault)
        await PLACE.change_one(mine, NAMES, with_name("ann"))
        await PLACE.change_one(other, NAMES, with_name("bob"))
        mine.deliver_late()
        assert (await PLACE.read(mine))[NAMES] == ("ann", "bob")
        mine.spoil(*[fault] * watched_document.ATTEMPTS_MAX)
        if fault is WriteFault.ANSWER_LOST:
            await rates(mine, 2)
        else:
            with pytest.raises(OutcomeUnknown, match="/place/all"):
                await rates(mine, 2)
        mine.disconnect()
        with pytest.raises(NotReady, match="nothing was changed"):
            await rates(mine, 3)


async def test_a_document_that_cannot_be_decoded_hides_no_other_in_either_form() -> None:
    """The others are read and changed, its bytes stay, and the documents are not joined before it is set anew. A change
    of it starts from what `unreadable` returns."""

    async with clients() as (mine, other):
        await register_present(mine, "n1", 1)
        await other.put("/place/rate", b"[7]", None)
        for _ in range(2):
            values = await PLACE.read(mine)
            assert values[NAMES] == ()
            with pytest.raises(CodecError, match=r"/place/rate in the metastore: not a rate"):
                values[RATE]
            await PLACE.change_one(mine, NAMES, with_name("ann"))
            assert await stored(mine) == {"names": b'["ann"]', "rate": b"[7]"}
            await PLACE.change_one(mine, NAMES, lambda _names: ())
        with pytest.raises(CodecError):
            await rates(mine, 2)
        await PLACE.change_one(mine, RATE, lambda rate: rate + 2, lambda _error: 1)
        assert (await stored(mine))["all"] == b'{"v":1,"rate":{"rate":3}}'
        await other.put("/place/all", b'{"v":1,"rate":[8],"names":["bob"]}', 0)
        values = await PLACE.read(mine)
        assert values[NAMES] == ("bob",)
        assert values.error(RATE).startswith("/place/all, rate in the metastore: not a rate")
        await PLACE.change_one(mine, NAMES, with_name("eve"))
        assert (await stored(mine))["all"] == b'{"v":1,"names":["bob","eve"],"rate":[8]}'
        await PLACE.change_one(mine, RATE, lambda rate: rate, lambda _error: 0)
        assert (await stored(mine))["all"] == b'{"v":1,"names":["bob","eve"]}'


DAMAGED = (b"", b"{", b"[]", b"{}", b'{"v":2}', b'{"v":true}', b'{"v":1,"other":1}', MARKER, b"[" * 100_000)


@pytest.mark.parametrize("value", DAMAGED)
async def test_a_joined_document_that_is_damaged_as_a_whole_is_refused_and_left(value: bytes) -> None:
    """Also one of a later form, or with a field that this version does not know: writing it would lose that."""

    async with clients() as (mine, _other):
        await mine.put("/place/all", value, None)
        with pytest.raises(CodecError, match="/place/all in the metastore"):
            await PLACE.read(mine)
        with pytest.raises(CodecError, match="/place/all in the metastore"):
            await PLACE.change_one(mine, NAMES, with_name("ann"), lambda _error: ())
        assert await mine.get("/place/all") == Versioned(value, 0)


async def test_documents_that_do_not_fit_into_one_value_stay_apart() -> None:
    """Each alone may be as large as a value can be. Once they are joined, a change that makes them too large is
    refused, and nothing is written."""

    async with clients() as (mine, other):
        await register_present(mine, "n1", 1)
        large = "x" * (RECORD_BYTES_MAX - 20)
        await NAMES.change(other, with_name(large))
        await rates(mine, 10**30)
        assert sorted(await stored(mine)) == ["names", "rate"]
        await PLACE.change_one(mine, NAMES, lambda _names: ())
        assert sorted(await stored(mine)) == ["all", "names", "rate"]
        before = await stored(mine)
        with pytest.raises(TooLarge, match="/place/all"):
            await PLACE.change_one(mine, NAMES, with_name(large))
        assert await stored(mine) == before


async def test_bytes_that_only_a_lenient_parser_accepts_keep_the_documents_apart() -> None:
    """Python's parser takes NaN, which is not JSON: joined, it would damage the others."""

    odd: Document[Any] = Document(
        "/place/names", lambda found: None if found is None else _json(found.value), lambda v: json.dumps(v).encode()
    )
    place = JoinedDocument("/place/all", (odd, RATE))
    async with clients() as (mine, other):
        await register_present(mine, "n1", 1)
        await other.put("/place/names", b"NaN", None)
        await place.change_one(mine, RATE, lambda _rate: 2)
        assert await stored(mine) == {"names": b"NaN", "rate": b'{"rate": 2}'}


async def test_a_followed_document_is_current_in_both_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its watches alone: of the former paths while the documents are apart, of the joined one afterwards."""
    monkeypatch.setattr(watched_document, "POLL_S", 60.0)

    async with clients() as (mine, other):
        reads: list[int] = []
        watched = WatchedJoinedDocument(mine, PLACE, EVENTS, [(NAMES, ("?",))], lambda: reads.append(1))
        names, rate = watched.part(NAMES), watched.part(RATE)
        assert (names.value, rate.value, names.was_read, rate.was_read) == (("?",), 0, False, False)
        await watched.start()
        assert (names.value, names.was_read, rate.was_read) == ((), True, True)
        await NAMES.change(other, with_name("ann"))
        await eventually(lambda: names.value == ("ann",))
        await register_present(other, "n1", 1)
        await rates(other, 4)
        await eventually(lambda: rate.value == 4)
        await PLACE.change_one(other, NAMES, with_name("bob"))
        await eventually(lambda: names.value == ("ann", "bob"))
        await watched.change(changed_one(RATE, lambda _rate: 5))
        assert rate.value == 5
        assert reads
        await watched.stop()


async def test_unreadable_parts_and_an_unreadable_whole_leave_the_values_read_last() -> None:
    """Each is named with its place and logged once, and the others go on; what can be read again counts again."""

    async with clients() as (mine, other):
        await register_present(mine, "n1", 1)
        watched = WatchedJoinedDocument(mine, PLACE, EVENTS, [(NAMES, ("?",))])
        names, rate = watched.part(NAMES), watched.part(RATE)

        async def read_again() -> None:
            watched.expire()
            await watched.refresh()

        async def write(value: bytes, path: str = "/place/all") -> None:
            found = await other.get(path)
            await other.put(path, value, None if found is None else found.version)
            await read_again()

        def unread() -> list[str]:
            """Where is what cannot be decoded."""
            return [part.error.partition(" in the metastore")[0] for part in (names, rate) if part.error]

        with capture_logs() as logs:
            await write(b"{", "/place/names")
            await read_again()
            assert (names.value, names.was_read, rate.was_read) == (("?",), False, True)
            assert unread() == ["/place/names"]
            await write(b'["ann"]', "/place/names")
            assert (names.value, unread()) == (("ann",), [])
            await rates(other, 3)
            await read_again()
            await write(b'{"v":1,"names":["bob"],"rate":[]}')
            assert (names.value, rate.value, unread()) == (("bob",), 3, ["/place/all, rate"])
            await write(b"{")
            assert (names.value, rate.value, unread()) == (("bob",), 3, ["/place/all"] * 2)
            await write(b'{"v":1}')
            assert (names.value, rate.value, unread()) == ((), 0, [])
        assert [(each["event"], each["path"]) for each in logs if each["event"] == EVENTS.unreadable] == [
            (EVENTS.unreadable, "/place/names"),
            (EVENTS.unreadable, "/place/all, rate"),
            (EVENTS.unreadable, "/place/all"),
        ]


async def test_a_change_made_here_is_not_undone_by_a_read_that_began_before() -> None:
    """The older values of that read are dropped, and the document is read again."""

    async with clients() as (mine, _other):
        watched = WatchedJoinedDocument(mine, PLACE, EVENTS)
        get, may_return = mine.get, asyncio.Event()

        async def slow(path: str) -> Versioned | None:
            found = await get(path)
            await may_return.wait()
            return found

        mine.get = slow  # type: ignore[method-assign]
        reading = asyncio.create_task(watched.refresh())
        await asyncio.sleep(0.01)
        mine.get = get  # type: ignore[method-assign]
        await watched.change(changed_one(NAMES, with_name("ann")))
        may_return.set()
        await reading
        assert watched.part(NAMES).value == ("ann",)
        await watched.refresh()
        assert watched.part(NAMES).value == ("ann",)
