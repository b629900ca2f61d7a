"""The leader evaluates a write's condition against the key's state at the time of the proposal (RFC 9110, 13)."""

from __future__ import annotations

import asyncio

import msgpack
import pytest

from isthmus.repl.coordinator.kv_rpc import decode_write, encode_write
from isthmus.repl.coordinator.routing import MOVING
from isthmus.repl.model.conditions import ANY, Condition, ConditionFailed, Modified, object_tag
from isthmus.repl.model.errors import CodecError, IsthmusError, NotReady, OutcomeUnknown, Retryable, TimedOut
from isthmus.repl.model.objects import TOMBSTONE, Content, decode_object
from isthmus.repl.model.properties import FixedProperties, Properties, TypeProperties
from isthmus.repl.model.requests import WriteRequest, WriteResult
from isthmus.repl.model.vclock import decode_clock, descends, encode_clock
from tests.support.coordinator_cluster import Cluster, cluster, key_of

pytestmark = pytest.mark.virtual_time

KEY = key_of(0)
NEW = Condition(if_none_match=ANY)
OLD = Condition(if_match=ANY)


def write_request(value: bytes, condition: Condition | None, request_id: bytes = b"") -> WriteRequest:
    return WriteRequest(KEY, Content(value), None, request_id, True, condition)


async def outcome(c: Cluster, request: WriteRequest, node: str = "n1") -> object:
    try:
        return await c.coordinators[node].write(request)
    except IsthmusError as error:
        return error


async def stored_values(c: Cluster) -> list[bytes]:
    data = await c.coordinators["n1"].get(KEY)
    return [] if data is None else [s.value for s in decode_object(data).live]


@pytest.mark.parametrize("hold", [False, True], ids=["applied", "pending"])
async def test_of_two_racing_conditional_writes_one_wins(hold: bool) -> None:
    """Exactly one of many writers that require a new key succeeds, at the leader and through forwarding (R-COND)."""

    async with cluster() as c:
        c.runtimes["n1"].hold = hold
        writers = [
            asyncio.ensure_future(outcome(c, write_request(b"%d" % number, NEW), ("n1", "n2")[number % 2]))
            for number in range(10)
        ]
        while hold and not all(w.done() for w in writers):
            await asyncio.sleep(0)
            c.runtimes["n1"].apply(c.runtimes["n1"].partitions[0])
        results = await asyncio.gather(*writers)
        assert [isinstance(r, WriteResult) for r in results].count(True) == 1
        assert [type(r) for r in results].count(ConditionFailed) == 9
        assert len(await stored_values(c)) == 1


async def test_a_tag_admits_only_the_version_that_it_names() -> None:
    """If-Match with a tag is compare-and-set: it holds only for the version that was read."""

    async with cluster() as c:
        assert (
            type(await outcome(c, write_request(b"0", Condition(if_match=("0123456789abcdef",))), "n2"))
            is ConditionFailed
        )
        written = await c.coordinators["n1"].write(write_request(b"1", None))
        tag = object_tag(written.clock, decode_object(written.payload).siblings)
        replace = WriteRequest(KEY, Content(b"2"), decode_object(written.payload).clock, condition=Condition((tag,)))
        assert isinstance(await outcome(c, replace, "n2"), WriteResult)
        assert type(await outcome(c, replace)) is ConditionFailed
        assert await stored_values(c) == [b"2"]


def tag_of(data: bytes) -> str:
    obj = decode_object(data)
    return object_tag(encode_clock(obj.clock), obj.siblings)


@pytest.mark.parametrize("node", ["n1", "n2"], ids=["led", "forwarded"])
@pytest.mark.parametrize("pending", [False, True], ids=["applied", "pending"])
async def test_a_matching_tag_replaces_the_version_that_it_names(node: str, pending: bool) -> None:
    """A write without a clock leaves no sibling if its If-Match holds: the tag names the version that the client has
    seen. The new clock covers all replaced versions, so other clusters replace them, too."""
    async with cluster() as c:
        first = await c.coordinators["n1"].write(write_request(b"1", None))
        if pending:
            c.runtimes["n1"].hold = True
            second = asyncio.ensure_future(outcome(c, write_request(b"2", Condition((tag_of(first.payload),)))))
            await asyncio.sleep(0.01)
            (entry,) = c.runtimes["n1"].partitions[0].pending
            tag = tag_of(entry.payload)
        else:
            second, tag = None, tag_of(first.payload)
        last = asyncio.ensure_future(outcome(c, write_request(b"3", Condition(("x", tag))), node))
        await asyncio.sleep(0.01)
        c.runtimes["n1"].hold = False
        c.runtimes["n1"].apply(c.runtimes["n1"].partitions[0])
        written = await last
        assert isinstance(written, WriteResult), written
        assert second is None or isinstance(await second, WriteResult)
        assert await stored_values(c) == [b"3"]
        assert written.sibling_count == 1
        assert descends(decode_clock(written.clock), decode_object(first.payload).clock)


async def test_the_tag_of_siblings_replaces_all_of_them_and_that_of_one_none() -> None:
    """Siblings have one tag together, also with a concurrent delete among them; a sibling's own tag does not name the
    key's version."""
    async with cluster() as c:
        first = await c.coordinators["n1"].write(write_request(b"1", None))
        await c.coordinators["n1"].write(write_request(b"2", None))
        await c.coordinators["n1"].write(WriteRequest(KEY, TOMBSTONE, decode_clock(first.clock)))
        data = await c.coordinators["n1"].get(KEY)
        assert data is not None
        siblings = decode_object(data).siblings
        assert sorted(s.value for s in siblings) == [b"", b"2"]
        for one in siblings:
            assert type(await outcome(c, write_request(b"4", Condition((one.vtag,))))) is ConditionFailed
        assert isinstance(await outcome(c, write_request(b"5", Condition((tag_of(data),))), "n2"), WriteResult)
        assert await stored_values(c) == [b"5"]


async def test_a_star_names_no_version_and_a_clock_is_the_context_where_there_is_one() -> None:
    """If-Match: * replaces nothing that the client has not seen; with a clock the tag is a condition alone."""
    async with cluster() as c:
        first = await c.coordinators["n1"].write(write_request(b"1", None))
        assert isinstance(await outcome(c, write_request(b"2", OLD)), WriteResult)
        assert sorted(await stored_values(c)) == [b"1", b"2"]
        data = await c.coordinators["n1"].get(KEY)
        assert data is not None
        seen = decode_clock(first.clock)
        both = WriteRequest(KEY, Content(b"3"), seen, condition=Condition((tag_of(data),)))
        assert isinstance(await outcome(c, both), WriteResult)
        assert sorted(await stored_values(c)) == [b"2", b"3"], "the clock had not seen 2"


@pytest.mark.parametrize("condition", [None, ANY], ids=["tag", "star"])
async def test_where_the_last_write_wins_a_tag_protects_the_other_write(condition: tuple[str, ...] | None) -> None:
    """With last_write_wins there are no siblings: a tag of an older version is refused, and the matching one
    replaces."""
    lww = FixedProperties(TypeProperties(Properties(last_write_wins=True), {}))
    async with cluster(properties=lww) as c:
        first = await c.coordinators["n1"].write(write_request(b"1", None))
        second = await c.coordinators["n1"].write(write_request(b"2", None))
        stale = await outcome(c, write_request(b"3", Condition((tag_of(first.payload),))), "n2")
        assert type(stale) is ConditionFailed
        again = Condition(condition or (tag_of(second.payload),))
        assert isinstance(await outcome(c, write_request(b"4", again)), WriteResult)
        assert await stored_values(c) == [b"4"]


@pytest.mark.parametrize("hold", [False, True], ids=["applied", "pending"])
async def test_of_many_writers_of_one_version_one_replaces_it(hold: bool) -> None:
    """Optimistic locking by the tag alone: of writes with the same tag, through any node, in one group or several,
    exactly one succeeds in each round, and there is never a sibling."""
    async with cluster() as c:
        written = await c.coordinators["n1"].write(write_request(b"0", None))
        tag = tag_of(written.payload)
        c.runtimes["n1"].hold = hold
        for turn in range(5):
            writers = [
                asyncio.ensure_future(
                    outcome(c, write_request(b"%d-%d" % (turn, n), Condition((tag,))), ("n1", "n2")[n % 2])
                )
                for n in range(8)
            ]
            while not all(w.done() for w in writers):
                await asyncio.sleep(0)
                if hold:
                    c.runtimes["n1"].apply(c.runtimes["n1"].partitions[0])
            results = await asyncio.gather(*writers)
            (won,) = [r for r in results if isinstance(r, WriteResult)]
            assert [type(r) for r in results].count(ConditionFailed) == 7
            assert won.sibling_count == 1
            tag = tag_of(won.payload)
        assert len(await stored_values(c)) == 1


async def test_the_clock_of_if_not_modified_must_be_the_keys() -> None:
    """A clock that differs from the key's, is older, or belongs to a missing key is a conflict; an equal one is not."""

    async with cluster() as c:
        first = decode_object((await c.coordinators["n1"].write(write_request(b"1", None))).payload).clock
        same = WriteRequest(KEY, Content(b"2"), first, condition=Condition(clock=first))
        assert isinstance(await outcome(c, same, "n2"), WriteResult)
        assert type(await outcome(c, same, "n2")) is Modified
        absent = WriteRequest(key_of(1), Content(b"2"), condition=Condition(clock=first))
        assert type(await outcome(c, absent, "n2")) is Modified


async def test_a_deleted_key_does_not_exist_for_a_condition() -> None:
    """If-None-Match: * is carried out over a tombstone, If-Match: * is not."""

    async with cluster() as c:
        await c.coordinators["n1"].write(write_request(b"1", OLD._replace(if_match=None)))
        await c.coordinators["n1"].write(WriteRequest(KEY, TOMBSTONE))
        assert type(await outcome(c, write_request(b"2", OLD), "n2")) is ConditionFailed
        assert isinstance(await outcome(c, write_request(b"3", NEW), "n2"), WriteResult)
        assert await stored_values(c) == [b"3"]


async def test_a_change_after_the_second_of_unmodified_since_refuses() -> None:
    """If-Unmodified-Since holds for a key changed in that second or before, and for one that is not there."""

    async with cluster() as c:
        now_s = c.runtimes["n1"].time.wall_ms() // 1000
        assert isinstance(await outcome(c, write_request(b"1", Condition(unmodified_since_s=now_s - 9))), WriteResult)
        assert type(await outcome(c, write_request(b"2", Condition(unmodified_since_s=now_s - 1)))) is ConditionFailed
        assert isinstance(await outcome(c, write_request(b"3", Condition(unmodified_since_s=now_s))), WriteResult)


async def test_a_refusal_waits_for_the_leaders_confirmation() -> None:
    """A refusal reveals the key's state, so it needs the confirmation of a committed read: a replaced leader cannot
    give it (R-COND)."""

    async with cluster() as c:
        await c.coordinators["n1"].write(write_request(b"1", None))
        c.runtimes["n1"].reads = []
        waiting = asyncio.ensure_future(outcome(c, write_request(b"2", NEW)))
        async with asyncio.timeout(5):
            while not c.runtimes["n1"].reads:
                await asyncio.sleep(0)
        assert not waiting.done()
        c.runtimes["n1"].reads[0].set_result(None)
        assert type(await waiting) is ConditionFailed
        c.runtimes["n1"].reads = None
        c.runtimes["n1"].read_refusals = [NotReady("another leads")]
        retried = await outcome(c, write_request(b"2", NEW))
        assert type(retried) is ConditionFailed, "asked again once leadership was settled"
        assert c.runtimes["n1"].read_refusals == []


@pytest.mark.parametrize("pending", [False, True], ids=["unconfirmed", "pending"])
async def test_a_refusal_without_confirmation_in_time_is_an_unknown_outcome(pending: bool) -> None:
    """A leader without contact does not know whether it still leads, nor whether the state that it compared with is
    final: after the client's time it must not answer with the refusal. It does know that nothing was written
    (R-COND)."""

    async with cluster(request_timeout_ms=300) as c:
        runtime = c.runtimes["n1"]
        runtime.hold = pending
        first = asyncio.ensure_future(outcome(c, write_request(b"1", None)))
        await (asyncio.sleep(0.01) if pending else first)
        runtime.reads = []
        answer = await outcome(c, write_request(b"2", NEW))
        assert isinstance(answer, Retryable), answer
        assert answer.reason == TimedOut.reason
        assert not isinstance(answer, MOVING)
        if pending:
            assert isinstance(await first, OutcomeUnknown)


async def test_a_repeated_request_is_known_before_its_condition_is_judged() -> None:
    """A conditional write whose answer was lost is answered as repeated, not refused because of its own first
    attempt."""

    async with cluster() as c:
        assert isinstance(await outcome(c, write_request(b"1", NEW, b"id")), WriteResult)
        again = await outcome(c, write_request(b"1", NEW, b"id"), "n2")
        assert isinstance(again, WriteResult)
        assert again.repeated


def test_a_condition_survives_the_wire_and_bad_ones_are_refused() -> None:
    """A forwarded condition is decoded unchanged; a write with other fields is refused."""
    condition = Condition(("a", "W/b"), ANY, 5, 7, ((b"a" * 20, 3, 4),))
    for given in (None, condition, Condition(clock=())):
        request = write_request(b"v", given, b"id")
        assert decode_write(msgpack.unpackb(encode_write(request), use_list=False)) == request
    raw = msgpack.unpackb(encode_write(write_request(b"v", condition)), use_list=False)
    for bad in ((*raw, 1), (*raw[:-1], 1), (*raw[:-1], (1, None, None, None, None)), (*raw[:-1], (None,))):
        with pytest.raises(CodecError):
            decode_write(bad)
