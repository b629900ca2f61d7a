"""Any node answers for its cluster: requests are routed to their leaders, once, and each kind of failure has its
meaning."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import structlog

from isthmus.repl.coordinator import kv_rpc
from isthmus.repl.coordinator.coordinator import Coordinator
from isthmus.repl.coordinator.routing import UnknownBucketType
from isthmus.repl.coordinator.upcoming_leadership import WAIT_S
from isthmus.repl.model.errors import (
    BadInput,
    InternalError,
    IsthmusError,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    OutOfStorage,
    Overloaded,
    Retryable,
    TooFewInSync,
)
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import TOMBSTONE, Content, decode_object, encode_object, write
from isthmus.repl.model.requests import ForwardedRead, Isolation, PushItem, PushOutcome, WriteRequest, WriteResult
from isthmus.repl.model.vclock import actor_of, decode_clock
from isthmus.repl.unforeseen import unforeseen
from tests.support.coordinator_cluster import OTHER, cluster, handlers_of, key_of, keys_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.virtual_time


class Injected(RuntimeError):
    """Raised by the tests alone."""


class Unencodable(IsthmusError):
    """An error without a sentence."""

    reason = "unencodable"

    def __str__(self) -> str:
        raise Injected


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What is logged meanwhile; no earlier test has used up the limit of log lines."""
    monkeypatch.setattr(unforeseen._limit, "due", lambda _subject: 0)
    with structlog.testing.capture_logs() as lines:
        yield lines


def injected(lines: list[Any]) -> set[str]:
    """The events of the exceptions that were caught; no other error was logged."""
    errors = [line for line in lines if line["log_level"] == "error"]
    assert all(isinstance(line.get("exc_info"), Injected) for line in errors), errors
    return {line["event"] for line in errors}


def content(value: bytes) -> Content:
    """A content with all fields, so that a lost one is noticed."""
    return Content(value, b"a/b", b"gzip", ((b"m", b"1"),), ((b"b", b"k", b"t"),), ((b"i_bin", b"x"),))


def foreign(value: bytes, counter: int = 1) -> bytes:
    return encode_object(write(None, (), Content(value), (actor_of(OTHER, 1), counter), 1_700_000_000_000))


def values(data: object) -> list[bytes]:
    assert isinstance(data, bytes)
    return sorted(s.value for s in decode_object(data).live)


async def test_a_write_at_any_node_takes_effect_at_the_leader() -> None:
    """The answer is the leader's: clock, requested object, nothing to delete; every field of the content arrives."""

    async with cluster() as c:
        key = key_of(1)
        written = await c.coordinators["n1"].write(WriteRequest(key, content(b"one")))
        here = await c.coordinators["n2"].get(key)
        assert here == written.payload
        (sibling,) = decode_object(here).siblings
        assert sibling[3:] == content(b"one")[:-1]
        clock = decode_clock(written.clock)
        short = await c.coordinators["n1"].write(WriteRequest(key, content(b"two"), clock, payload_wanted=False))
        assert (short.payload, short.sibling_count) == (b"", 1)
        assert values(await c.coordinators["n1"].get(key)) == [b"two"]
        gone = await c.coordinators["n1"].write(WriteRequest(key, TOMBSTONE))
        again = await c.coordinators["n1"].write(WriteRequest(key, TOMBSTONE))
        assert (gone.created, again.created) == (True, False)
        assert c.runtimes["n1"].appends == []


async def test_a_batch_is_split_by_leader_and_each_part_goes_once() -> None:
    """There is one request per node and batch, answers are in order, and an invalid item does not affect others."""

    async with cluster(("n1", "n2", "n3", "n2"), nodes=("n1", "n2", "n3")) as c:
        keys = [key_of(p) for p in (0, 1, 2, 3)] * 2
        requests = [WriteRequest(key, content(b"%d" % n)) for n, key in enumerate(keys)]
        requests.insert(3, WriteRequest(Key(b"nope", b"b", b"k"), content(b"x")))
        requests.insert(5, WriteRequest(key_of(1), content(bytes(1_000_001))))
        results = await c.coordinators["n1"].write_batch(requests)
        shown = [r.reason if isinstance(r, IsthmusError) else r.sibling_count for r in results]
        assert shown == [1, 1, 1, "unknown-bucket-type", 1, "too-large", 2, 2, 2, 2]
        assert sorted(r[:3] for r in c.wire.requests) == [("n1", "n2", "kv.write"), ("n1", "n3", "kv.write")]
        assert values(await c.coordinators["n3"].get(key_of(3))) == [b"3", b"7"]


async def test_requests_of_one_turn_share_a_message() -> None:
    """Writes that arrive together for one node go to it in one request, however many callers wait."""

    async with cluster() as c:
        keys = keys_of(1, 20)
        results = await asyncio.gather(*(c.coordinators["n1"].write(WriteRequest(key, content(b"v"))) for key in keys))
        assert len({r.clock for r in results}) == 20
        assert len(c.wire.requests) == 1
        assert c.runtimes["n2"].appends == [20]
        read = await asyncio.gather(*(c.coordinators["n1"].get(key) for key in keys))
        assert [values(data) for data in read] == [[b"v"]] * 20
        assert len(c.wire.requests) == 2


async def test_forwarded_writes_and_pushes_take_no_task() -> None:
    """Neither the forwarding node nor the leader creates a task, apart from the links themselves."""

    async with cluster() as c:
        made: list[str] = []
        loop = asyncio.get_running_loop()

        def factory(of: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
            made.append(work.__qualname__)
            return asyncio.Task(work, loop=of, **more)

        loop.set_task_factory(factory)
        try:
            await c.coordinators["n1"].write_batch([WriteRequest(key, content(b"v")) for key in keys_of(1, 3)])
            await c.coordinators["n1"].push([PushItem(key_of(3), OTHER, foreign(b"1"))])
        finally:
            loop.set_task_factory(None)
        assert [request[:3] for request in c.wire.requests] == [("n1", "n2", "kv.write"), ("n1", "n2", "kv.push")]
        assert made == ["_LinksOf.request"] * 2


async def test_a_write_names_the_leader_that_it_was_forwarded_to() -> None:
    """The result of a forwarded write has the leader's name, one that was decided here has none."""

    async with cluster() as c:
        results = await c.coordinators["n1"].write_batch([WriteRequest(key_of(p), content(b"v")) for p in (0, 1)])
        assert [r.leader for r in results if isinstance(r, WriteResult)] == ["", "n2"]
        assert (await c.coordinators["n2"].write(WriteRequest(key_of(0), content(b"w")))).leader == "n1"


@pytest.mark.usefixtures("short_leader_wait")
async def test_a_read_and_a_refusal_name_the_leader_that_decided() -> None:
    """A forwarded read has the name of the node that answered, found or not; one answered here has none, also after the
    leadership moved here. A refusal has the leader only if a leader decided it."""

    async with cluster() as c:
        n1 = c.coordinators["n1"]
        assert await n1.read(key_of(1)) == ForwardedRead(None, "n2")
        await n1.write(WriteRequest(key_of(1), content(b"v")))
        found = await n1.read(key_of(1))
        assert isinstance(found, ForwardedRead)
        assert (values(found.payload), found.leader) == ([b"v"], "n2")
        assert values(await n1.get(key_of(1))) == [b"v"]
        assert await n1.read(key_of(0)) is None
        (refused,) = await n1.write_batch([WriteRequest(key_of(1), content(bytes(1_000_001)))])
        assert isinstance(refused, BadInput)
        assert refused.leader == "n2"
        c.runtimes["n2"].step_down(1)
        (refused,) = await n1.write_batch([WriteRequest(key_of(1), content(b"w"))])
        assert isinstance(refused, NotReady)
        assert refused.leader is None
        asyncio.get_running_loop().call_later(0.05, c.move, 1, "n1")
        assert values(await n1.read(key_of(1))) == [b"v"]


async def test_large_parts_are_cut_into_messages_in_order() -> None:
    """A part over the limit of a message goes in several, one after the other; the last write of a key stays last."""

    async with cluster() as c:
        key = key_of(1)
        first = await c.coordinators["n1"].write(WriteRequest(key, content(b"0")))
        clock = decode_clock(first.clock)
        filler = [WriteRequest(k, content(bytes(900_000))) for k in keys_of(1, 12)[1:]]
        requests = [WriteRequest(key, content(b"1"), clock), *filler, WriteRequest(key, TOMBSTONE)]
        results = await c.coordinators["n1"].write_batch(requests)
        assert all(isinstance(r, WriteResult) for r in results)
        sizes = [size for *_, size in c.wire.requests[1:]]
        assert len(sizes) > 2
        assert max(sizes) < 5_000_000
        data = await c.coordinators["n2"].get(key)
        assert data is not None
        assert decode_object(data).deleted


async def test_pushes_are_forwarded_with_an_outcome_each() -> None:
    """A sink may push into any node: each item is applied, superseded, rejected, or failed, in its position."""

    async with cluster() as c:
        items = [
            PushItem(key_of(1), OTHER, foreign(b"1")),
            PushItem(key_of(0), OTHER, foreign(b"0")),
            PushItem(key_of(1), OTHER, foreign(b"1")),
            PushItem(key_of(3), OTHER, b"junk"),
        ]
        results = await c.coordinators["n1"].push(items)
        assert [r.outcome.value for r in results] == ["applied", "applied", "superseded", "rejected"]
        assert isinstance(results[3].error, BadInput)
        c.runtimes["n2"].refusal = TooFewInSync("two of three are gone")
        (failed,) = await c.coordinators["n1"].push([PushItem(key_of(1), OTHER, foreign(b"2", 2))])
        assert failed.outcome is PushOutcome.FAILED
        assert isinstance(failed.error, TooFewInSync)
        assert await c.coordinators["n1"].get(key_of(1)) == foreign(b"1")


@pytest.mark.parametrize("error", [TooFewInSync("few"), Overloaded("full"), OutOfStorage("no room")])
async def test_a_definite_refusal_stays_definite_on_the_way(error: IsthmusError) -> None:
    """A leader's refusal is returned as the same class with the same message, and the request is not repeated."""

    async with cluster() as c:
        c.runtimes["n2"].refusal = error
        with pytest.raises(type(error), match=str(error)):
            await c.coordinators["n1"].write(WriteRequest(key_of(1), content(b"v")))
        assert len(c.wire.requests) == 1
        samples = {(name, *labels.values()): value for name, labels, value in c.coordinators["n1"].metrics()}
        assert samples["isthmus_refusals_total", error.reason] == 1
        assert samples["isthmus_forwarded_items_total", "kv.write"] == 1


@pytest.mark.usefixtures("short_leader_wait")
async def test_a_broken_connection_leaves_writes_unknown_and_reads_unanswered() -> None:
    """A write or push that was sent may have taken effect; a read was not answered, and a retry may be."""

    async with cluster() as c:
        for where in (c.wire.lost, c.wire.breaking):
            where.add("n2")
            with pytest.raises(OutcomeUnknown):
                await c.coordinators["n1"].write(WriteRequest(key_of(1), content(b"v")))
            (pushed,) = await c.coordinators["n1"].push([PushItem(key_of(3), OTHER, foreign(b"1"))])
            assert isinstance(pushed.error, OutcomeUnknown)
            with pytest.raises(NotReady):
                await c.coordinators["n1"].get(key_of(1))
            where.clear()
        assert values(await c.coordinators["n1"].get(key_of(1))) == [b"v"]
        asyncio.get_running_loop().call_later(0.1, c.wire.breaking.discard, "n2")
        c.wire.breaking.add("n2")
        assert values(await c.coordinators["n1"].get(key_of(1))) == [b"v"]


@pytest.mark.usefixtures("short_leader_wait")
async def test_nothing_is_sent_to_a_node_that_cannot_be_reached() -> None:
    """Without a connection a write is definitely refused, after the wait for a leader, in which a connection may be
    made."""

    async with cluster() as c:
        c.wire.down.add("n2")
        with pytest.raises(NotReady, match="no connection to n2"):
            await c.coordinators["n1"].write(WriteRequest(key_of(1), content(b"v")))
        assert await c.coordinators["n2"].get(key_of(1)) is None
        task = asyncio.create_task(c.coordinators["n1"].write(WriteRequest(key_of(1), content(b"w"))))
        await asyncio.sleep(0.02)
        c.move(1, "n1")
        assert (await task).sibling_count == 1


@pytest.mark.usefixtures("short_leader_wait")
async def test_a_forwarded_request_is_never_forwarded_again() -> None:
    """Two nodes that take each other for the leader refuse by name; the request ends, and nothing is written."""

    async with cluster() as c:
        c.move(1, None)
        c.leaders[1] = "n2"
        c.publish_records("n1")
        c.leaders[1] = "n1"
        c.publish_records("n2")
        with pytest.raises(NotLeader, match="led by n1"):
            await c.coordinators["n1"].write(WriteRequest(key_of(1), content(b"v")))
        with pytest.raises(NotLeader, match="led by n1"):
            await c.coordinators["n1"].get(key_of(1))
        assert {r[:2] for r in c.wire.requests} == {("n1", "n2")}
        assert c.runtimes["n1"].appends == c.runtimes["n2"].appends == []


async def test_an_election_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a leader, writes, reads and pushes wait and continue as soon as one is known, here or elsewhere."""
    monkeypatch.setattr("isthmus.repl.coordinator.routing.LOOK_AGAIN_S", 10)

    async with cluster() as c:
        for leader in ("n1", "n2"):
            c.move(1, None)
            asked = c.coordinators["n1"]
            key = key_of(1)
            tasks = [
                asyncio.create_task(asked.write(WriteRequest(key, content(b"v")))),
                asyncio.create_task(asked.push([PushItem(key, OTHER, foreign(b"f"))])),
                asyncio.create_task(asked.get(key)),
                asyncio.create_task(asked.get_batch([key, key_of(0)], None, 1_000)),
            ]
            await asyncio.sleep(0.02)
            assert not any(task.done() for task in tasks)
            before = asyncio.get_running_loop().time()
            c.move(1, leader)
            await asyncio.gather(*tasks)
            assert asyncio.get_running_loop().time() - before < 5


async def test_items_wait_at_a_node_that_is_about_to_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node learns of a leader before that one is ready: writes, pushes and reads that it forwards are answered as
    soon as the leader serves, without another attempt; and so are those of the leader's own clients."""
    monkeypatch.setattr("isthmus.repl.coordinator.routing.LOOK_AGAIN_S", 10)

    async with cluster() as c:
        key = key_of(1)
        c.move(1, None)
        c.leaders[1] = "n2"
        c.runtimes["n2"].partitions[1].replica.about_to_lead = True
        c.publish_records()
        tasks = [
            asyncio.create_task(act)
            for node in ("n1", "n2")
            for act in (
                c.coordinators[node].write(WriteRequest(key, content(b"v"))),
                c.coordinators[node].push([PushItem(key, OTHER, foreign(b"f"))]),
            )
        ]
        tasks.append(asyncio.create_task(c.coordinators["n1"].get(key)))
        await asyncio.sleep(0.02)
        assert not any(task.done() for task in tasks)
        requests = len(c.wire.requests)
        c.runtimes["n2"].lead(1, 9)
        before = asyncio.get_running_loop().time()
        await asyncio.gather(*tasks)
        assert asyncio.get_running_loop().time() - before < 1
        assert len(c.wire.requests) == requests == 3


async def test_items_wait_for_an_upcoming_leader_only_for_a_while() -> None:
    """A leader that does not get ready delays items by the time of one wait, once in its epoch, then it refuses; the
    end of its leadership ends the wait."""

    async with cluster() as c:
        replica = c.runtimes["n2"].partitions[1].replica
        c.move(1, None)
        replica.about_to_lead = True
        loop = asyncio.get_running_loop()

        async def waited_s() -> float:
            before = loop.time()
            (answer,) = await c.coordinators["n2"].submit_here([WriteRequest(key_of(1), content(b"v"))])
            assert isinstance(answer, NotReady)
            return loop.time() - before

        assert WAIT_S <= await waited_s() < WAIT_S + 1
        assert await waited_s() < WAIT_S / 2
        replica.epoch += 1
        loop.call_later(WAIT_S / 4, c.runtimes["n2"].step_down, 1)
        assert WAIT_S / 4 <= await waited_s() < WAIT_S


async def test_an_item_that_waited_too_long_for_its_leader_is_refused_for_certain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I-ANSWER: nothing was appended, so the outcome is certain, although the wait ends later than the request; the
    item is not appended afterwards."""
    monkeypatch.setattr("isthmus.repl.coordinator.upcoming_leadership.WAIT_S", 10)

    async with cluster(request_timeout_ms=100) as c:
        c.move(1, None)
        c.runtimes["n2"].partitions[1].replica.about_to_lead = True
        request = WriteRequest(key_of(1), content(b"v"))
        waiting = (c.coordinators["n2"].submit_here([request]), c.coordinators["n2"].start_write(request))
        for (answer,) in await asyncio.gather(*waiting):
            assert isinstance(answer, NotReady)
        c.runtimes["n2"].lead(1, 9)
        await asyncio.sleep(0.02)
        assert await c.coordinators["n2"].get(key_of(1)) is None


async def test_reads_of_several_upcoming_leaders_wait_once() -> None:
    """The waits for partitions of one request run in parallel."""

    async with cluster() as c:
        for partition in (1, 2, 3):
            c.move(partition, None)
            c.runtimes["n2"].partitions[partition].replica.about_to_lead = True
            c.leaders[partition] = "n2"
        c.publish_records()
        before = asyncio.get_running_loop().time()
        keys = [key_of(partition) for partition in (1, 2, 3)]
        answers = await c.coordinators["n1"].get_batch(keys, None, 9_000, waits=False)
        assert all(isinstance(answer, NotReady) for answer in answers)
        assert WAIT_S <= asyncio.get_running_loop().time() - before < 2 * WAIT_S


async def test_an_item_that_waits_for_a_leader_is_refused_once_the_replica_is_removed() -> None:
    """The other items of that turn are appended."""

    async with cluster() as c:
        runtime = c.runtimes["n2"]
        c.move(0, "n2")
        c.move(1, None)
        runtime.partitions[1].replica.about_to_lead = True
        requests = [WriteRequest(key_of(partition), content(b"v")) for partition in (0, 1)]
        waiting = c.coordinators["n2"].submit_here(requests)
        del runtime.partitions[1]
        written, refused = await waiting
        assert isinstance(written, WriteResult)
        assert isinstance(refused, NotReady)


async def test_reads_that_do_not_wait_for_a_leader_get_the_rest_at_once() -> None:
    """In a batch of reads where some partitions have no leader, the others are answered without a pause, here and
    elsewhere, and these are refused as not ready."""

    async with cluster() as c:
        await c.coordinators["n1"].write_batch([WriteRequest(key_of(n), content(b"v")) for n in range(4)])
        c.move(1, None)
        before = asyncio.get_running_loop().time()
        results = await c.coordinators["n1"].get_batch([key_of(n) for n in range(4)], None, 9_000, waits=False)
        assert asyncio.get_running_loop().time() - before < 0.3
        assert [type(result) for result in results] == [bytes, NotReady, bytes, bytes]


async def test_a_wait_for_a_leader_ends_with_a_refusal() -> None:
    """When no leader comes, each kind of request is refused as not ready after about a second; types stay unknown at
    once."""

    async with cluster() as c:
        c.move(1, None)
        asked = c.coordinators["n1"]
        loop = asyncio.get_running_loop()
        before = loop.time()
        results = await asyncio.gather(
            asked.write(WriteRequest(key_of(1), content(b"v"))),
            asked.get(key_of(1)),
            asked.get(key_of(1), Isolation.UNCOMMITTED),
            anext(asked.list_keys(b"default", b"b")),
            return_exceptions=True,
        )
        assert 0.9 < loop.time() - before < 5
        assert all(isinstance(result, NotReady) for result in results), results
        mixed = await asked.write_batch([WriteRequest(key_of(p), content(b"v")) for p in (0, 1)])
        assert isinstance(mixed[0], WriteResult)
        assert isinstance(mixed[1], NotReady)
        before = loop.time()
        with pytest.raises(UnknownBucketType):
            await asked.get(Key(b"nope", b"b", b"k"))
        assert loop.time() - before < 0.5


@pytest.mark.usefixtures("short_leader_wait")
async def test_a_node_that_knows_no_records_yet_is_not_ready() -> None:
    """Before the first records no key is ready; without one partition's record none of that partition is. No key is
    reported as unknown."""

    async with cluster() as c:
        asked = c.coordinators["n1"]
        asked.learn_records({p: r for p, r in c.records().items() if p != 3})
        assert await asked.get(key_of(0)) is None
        written = await asked.write_batch([WriteRequest(key_of(p), content(b"v")) for p in (0, 3)])
        for refused in (written[1], *await asked.get_batch([key_of(3)], None, 1_000)):
            assert isinstance(refused, NotReady)
            assert "cannot be read" in str(refused)
        assert isinstance(written[0], WriteResult)
        asked.learn_records({})
        with pytest.raises(NotReady, match="not known here yet"):
            await asked.get(key_of(0))
        task = asyncio.create_task(asked.get(key_of(1)))
        await asyncio.sleep(0)
        c.publish_records()
        assert await task is None


async def test_malformed_bodies_are_refused_whole() -> None:
    """A handler raises BadInput for bytes that no coordinator of this release sends."""

    async with cluster() as c:
        for handler in handlers_of(c.coordinators["n2"]).values():
            for body in (b"", b"\xc1", b"\x93\x02\xc0\x90", b"\x93\x01\xc0\xc0", b"\x93\x01\xc0\x91\x93\x01"):
                with pytest.raises(BadInput):
                    await handler("n1", body)


# --- one item fails alone ---


@pytest.mark.parametrize("method", [kv_rpc.WRITE, kv_rpc.PUSH, kv_rpc.GET])
@pytest.mark.parametrize("malformed", [b"\xc0", b"\x93\x01\x02\x03"])
async def test_a_malformed_item_is_refused_alone(method: str, malformed: bytes) -> None:
    """The items that share a message with it, most of them of other clients, take effect; it is refused for certain, as
    retryable."""
    keys = keys_of(1, 3)
    encoded = {
        kv_rpc.WRITE: [kv_rpc.encode_write(WriteRequest(key, content(b"v"))) for key in keys],
        kv_rpc.PUSH: [kv_rpc.encode_push(PushItem(key, OTHER, foreign(b"v"))) for key in keys],
        kv_rpc.GET: [kv_rpc.encode_key(key) for key in keys],
    }[method]
    decode = {
        kv_rpc.WRITE: partial(kv_rpc.decode_write_answers, leader="n2"),
        kv_rpc.PUSH: kv_rpc.decode_push_answers,
        kv_rpc.GET: kv_rpc.decode_read_answers,
    }[method]
    head = Isolation.COMMITTED if method == kv_rpc.GET else None

    async with cluster() as c:
        if method == kv_rpc.GET:
            for key in keys:
                await c.coordinators["n2"].write(WriteRequest(key, content(b"v")))
        body = kv_rpc.encode_body(head, [*encoded[:1], malformed, *encoded[1:], malformed])
        answers = decode(await handlers_of(c.coordinators["n2"])[method]("n1", body), 5)
        assert [isinstance(answer, Retryable) for answer in answers] == [False, True, False, False, True]
        assert "cannot be read" in str(answers[1])
        for key in keys:
            assert values(await c.coordinators["n2"].get(key)) == [b"v"]


async def test_an_item_whose_decoding_fails_is_refused_alone(
    monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    """By an exception that nobody foresaw, and for certain: nothing of it was appended."""

    def fails(_clock: bytes) -> Any:
        raise Injected

    monkeypatch.setattr(kv_rpc, "decode_clock", fails)
    async with cluster() as c:
        keys = keys_of(1, 3)
        requests = [WriteRequest(key, content(b"v")) for key in keys]
        requests[1] = requests[1]._replace(context={actor_of(OTHER, 1): (1, 1)})
        first, second, third = await c.coordinators["n1"].write_batch(requests)
        assert isinstance(first, WriteResult)
        assert isinstance(second, InternalError)
        assert isinstance(third, WriteResult)
        assert await c.coordinators["n2"].get(keys[1]) is None
    assert injected(logged) == {"forwarded.item_bug"}


async def test_an_item_that_cannot_be_encoded_is_refused_alone(
    monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    """The other items of its batch are forwarded; a batch of only such items is answered, too."""
    encode = kv_rpc.encode_write

    def fails(request: WriteRequest) -> bytes:
        if request.content.value == b"broken":
            raise Injected
        return encode(request)

    monkeypatch.setattr(kv_rpc, "encode_write", fails)
    async with cluster() as c:
        keys = keys_of(1, 3)
        requests = [WriteRequest(key, content(v)) for key, v in zip(keys, (b"v", b"broken", b"v"), strict=True)]
        first, second, third = await c.coordinators["n1"].write_batch(requests)
        assert isinstance(first, WriteResult)
        assert isinstance(second, InternalError)
        assert isinstance(third, WriteResult)
        with pytest.raises(InternalError):
            await c.coordinators["n1"].write(requests[1])
    assert injected(logged) == {"forwarding.item_bug"}


async def test_an_answer_that_cannot_be_encoded_is_unknown_alone(
    monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    """The other writes of the message get their results."""
    write_here = Coordinator.submit_here

    def broken(coordinator: Coordinator, requests: Any) -> Any:
        submitted = write_here(coordinator, requests)
        answered: asyncio.Future[list[object]] = asyncio.get_running_loop().create_future()

        def replace(done: asyncio.Future[list[object]]) -> None:
            results = done.result()
            results[1] = Unencodable()
            answered.set_result(results)

        submitted.add_done_callback(replace)
        return answered

    monkeypatch.setattr(Coordinator, "submit_here", broken)
    async with cluster() as c:
        requests = [WriteRequest(key, content(b"v")) for key in keys_of(1, 3)]
        first, second, third = await c.coordinators["n1"].write_batch(requests)
        assert isinstance(first, WriteResult)
        assert isinstance(second, OutcomeUnknown)
        assert isinstance(third, WriteResult)
    assert injected(logged) == {"forwarded.answer_bug"}


async def test_a_caller_that_fails_costs_no_other_its_answer(logged: list[Any]) -> None:
    """Batches that share a message are each answered, whatever the receiver of one answer raises."""
    async with cluster() as c:
        forwarder = c.coordinators["n1"]._forwarder
        answers: list[list[object]] = []

        def fails(_answers: list[object]) -> None:
            raise Injected

        first, second = keys_of(1, 2)
        forwarder.write("n2", [WriteRequest(first, content(b"v"))], fails)
        forwarder.write("n2", [WriteRequest(second, content(b"v"))], answers.append)
        await eventually(lambda: answers, "the other answer")
        assert isinstance(answers[0][0], WriteResult)
    assert injected(logged) == {"forwarding.answer_bug"}


async def test_a_node_to_which_nothing_can_be_posted_fails_alone(
    monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    """The parts of a batch that go to other nodes are written, and those results come back."""
    async with cluster(("n1", "n2", "n3", "n2"), nodes=("n1", "n2", "n3")) as c:
        forwarder = c.coordinators["n1"]._forwarder
        write = forwarder.write

        def fails(node: str, *args: Any) -> None:
            if node == "n2":
                raise Injected
            write(node, *args)

        monkeypatch.setattr(forwarder, "write", fails)
        results = await c.coordinators["n1"].write_batch([WriteRequest(key_of(p), content(b"v")) for p in (1, 2, 3)])
        assert [type(result) for result in results] == [OutcomeUnknown, WriteResult, OutcomeUnknown]
        with pytest.raises(OutcomeUnknown):
            await c.coordinators["n1"].write(WriteRequest(key_of(1), content(b"v")))
    assert injected(logged) == {"forwarding.failed"}


async def test_a_cursor_is_written_where_its_partition_is_led_and_nowhere_else() -> None:
    """Queues move cursors of partitions that are led here; another's is refused by name and not forwarded."""

    async with cluster() as c:
        offset = await c.coordinators["n1"].write_cursor(0, b"q", b"state")
        assert c.store.cursor(0, b"q")[:2] == (offset, b"state")
        with pytest.raises(NotLeader, match="led by n2"):
            await c.coordinators["n1"].write_cursor(1, b"q", b"state")
        assert c.wire.requests == []
