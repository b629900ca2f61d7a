"""Requests between nodes: answers, errors by class, limits, and the certainty of failed requests."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.repl.model.errors import (
    BadInput,
    CodecError,
    Corruption,
    Fenced,
    IsthmusError,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    OutOfStorage,
    Overloaded,
    PeerFault,
    Retryable,
    TooFewInSync,
    TooLarge,
)
from isthmus.repl.transport import links
from isthmus.repl.transport.frames import Lane, Parts, unpacked
from isthmus.repl.transport.rpc import IN_FLIGHT_MAX, Answered, RpcClient, RpcServer
from tests.support.link_nodes import LOOPS, MB, Node, eventually, run, run_cluster

pytestmark = pytest.mark.parametrize("loop", LOOPS)


class CustomBadInput(BadInput):
    """A refusal with a code of its own."""

    reason = "unfamiliar"


def failing(node: Node, error: Exception) -> None:
    async def answer(asker: str, method: str, body: bytes) -> bytes:
        raise error

    node.answer = answer


def test_answers_are_matched_to_their_requests(loop: str) -> None:
    """Many requests at once, small and large, each get their own answer, in any order of completion."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair()

            async def answer(node: str, method: str, body: bytes) -> bytes:
                await asyncio.sleep(0.05 if body.startswith(b"0") else 0)
                return b" ".join((node.encode(), method.encode(), body))

            b.answer = answer
            bodies = [b"%d" % i for i in range(50)] + [b"x" * 3 * MB]
            found = await asyncio.gather(*(a.links.request("b", "kv.get", body, 10_000) for body in bodies))
            assert found == [b"a kv.get " + body for body in bodies]

    run(scenario(), loop)


@pytest.mark.parametrize(
    "error",
    [
        BadInput("no such bucket"), TooLarge("above object_size"), CodecError("not a clock"), Retryable("again"),
        Fenced("epoch 3"), TooFewInSync("1 of 2"), Overloaded("full"), OutOfStorage("disk"), NotReady("electing"),
        NotLeader("not here", "c"), NotLeader("not here"), CustomBadInput("odd"),
    ],
)  # fmt: skip
def test_definite_refusals_are_raised_as_they_were(loop: str, error: IsthmusError) -> None:
    """Wrong input and refusals cross with class, reason, text and the leader that they name."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair()
            failing(b, error)
            with pytest.raises(type(error) if type(error) is not CustomBadInput else BadInput) as caught:
                await a.links.request("b", "m", b"", 10_000)
            assert str(caught.value) == str(error)
            assert caught.value.reason == error.reason
            if isinstance(error, NotLeader):
                assert isinstance(caught.value, NotLeader)
                assert caught.value.leader == error.leader

    run(scenario(), loop)


@pytest.mark.parametrize("error", [Corruption("row"), PeerFault("far"), OutcomeUnknown("late"), ZeroDivisionError("x")])
def test_all_other_failures_leave_the_outcome_unknown(loop: str, error: Exception) -> None:
    """A failure that is not a definite refusal is OutcomeUnknown for the caller, and the connection stays."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair()
            failing(b, error)
            with pytest.raises(OutcomeUnknown, match=f"node b: .*({error}|ZeroDivisionError)"):
                await a.links.request("b", "m", b"", 10_000)
            b.answer = b._echo
            assert await a.links.request("b", "m", b"x", 10_000) == b"a m x"
            assert a.events == [("b", True)]

    run(scenario(), loop)


def test_without_a_connection_nothing_was_sent(loop: str) -> None:
    """NotReady, at once."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a = await cluster.node("a")
            with pytest.raises(NotReady, match="node b"):
                await a.links.request("b", "m", b"", 10_000)

    run(scenario(), loop)


def test_a_late_answer_leaves_the_outcome_unknown(loop: str) -> None:
    """After the time-out the caller has OutcomeUnknown, the handler is ended, and its place is free."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair()
            ended = []

            async def answer(node: str, method: str, body: bytes) -> bytes:
                try:
                    await asyncio.sleep(60)
                finally:
                    ended.append(1)
                return b""

            b.answer = answer
            with pytest.raises(OutcomeUnknown, match="within 500 ms"):
                await a.links.request("b", "m", b"", 500)
            await eventually(lambda: ended)
            b.answer = b._echo
            assert await a.links.request("b", "m", b"", 10_000) == b"a m "

    run(scenario(), loop)


def test_a_break_leaves_the_outcome_unknown(loop: str) -> None:
    """A request whose connection breaks before the answer came raises at once, not after its time-out."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.node("a"), await cluster.node("b")
            proxy = await cluster.proxy(b)
            a.links.set_nodes({"b": proxy.address})
            await eventually(lambda: a.links.linked("b"))
            asked = asyncio.Event()

            async def answer(node: str, method: str, body: bytes) -> bytes:
                asked.set()
                await asyncio.sleep(60)
                return b""

            b.answer = answer
            request = asyncio.create_task(a.links.request("b", "m", b"", 600_000))
            await asked.wait()
            proxy.cut()
            with pytest.raises(OutcomeUnknown, match="broke"):
                await request

    run(scenario(), loop)


def test_pending_requests_are_bounded_in_number_and_bytes(loop: str) -> None:
    """One request too many, or too many bytes, is refused with Overloaded before it is sent; places come back."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair(live_limit_bytes=2 * MB, message_limit_bytes=4 * MB)
            go = asyncio.Event()

            async def answer(node: str, method: str, body: bytes) -> bytes:
                await go.wait()
                return b""

            b.answer = answer
            with pytest.raises(TooLarge, match="node b takes"):
                await a.links.request("b", "m", bytes(4 * MB), 10_000)
            go.set()
            await a.links.request("b", "m", b"", 10_000)  # the connection's own first request is answered before it
            go.clear()
            large = asyncio.create_task(a.links.request("b", "m", bytes(3 * MB), 10_000))
            await asyncio.sleep(0)
            with pytest.raises(Overloaded, match="bytes in all"):
                await a.links.request("b", "m", b"x", 10_000)
            go.set()
            await large
            go.clear()
            many = [asyncio.create_task(a.links.request("b", "m", b"", 10_000)) for _ in range(IN_FLIGHT_MAX)]
            await asyncio.sleep(0)
            with pytest.raises(Overloaded, match=f"at most {IN_FLIGHT_MAX}"):
                await a.links.request("b", "m", b"", 10_000)
            go.set()
            await asyncio.gather(*many)
            assert await a.links.request("b", "m", b"", 10_000) == b""

    run(scenario(), loop)


def test_an_answer_that_is_too_large_is_an_error(loop: str) -> None:
    """The caller gets the error, and the connection stays."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.node("a", message_limit_bytes=MB), await cluster.node("b")
            await cluster.connect(a, b)

            async def answer(node: str, method: str, body: bytes) -> bytes:
                return bytes(2 * MB)

            b.answer = answer
            with pytest.raises(OutcomeUnknown, match="2000000 bytes"):
                await a.links.request("b", "m", b"", 10_000)
            assert a.links.linked("b")

    run(scenario(), loop)


def test_a_draining_node_loses_no_answer(loop: str) -> None:
    """Requests in progress when a node stops are all answered before its connections close; a later request fails at
    once, since nothing was sent."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair()
            gate, begun = asyncio.Event(), 0

            async def answer(_node: str, _method: str, body: bytes) -> bytes:
                nonlocal begun
                begun += 1
                await gate.wait()
                return body

            b.answer = answer
            asked = [asyncio.create_task(a.links.request("b", "m", b"%d" % i * 10_000, 10_000)) for i in range(30)]
            await eventually(lambda: begun == 30)
            leaving = asyncio.create_task(b.links.drain())

            async def refused() -> bool:
                try:
                    async with asyncio.timeout(0.05):
                        await a.links.request("b", "m", b"late", 10_000)
                except NotReady:
                    return True
                except TimeoutError:
                    return False
                return False

            while not await refused():
                pass
            assert not leaving.done()
            gate.set()
            await leaving
            await b.links.stop()
            assert await asyncio.gather(*asked) == [b"%d" % i * 10_000 for i in range(30)]

    run(scenario(), loop)


@pytest.mark.timing
def test_a_drain_does_not_wait_for_silent_peers(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose connection is lost, or that is silent, delays a stop no longer than the limit."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair()
            c = await cluster.node("c")
            await cluster.connect(b, c)
            monkeypatch.setattr(links, "DRAIN_S", 0.2)
            gate, begun = asyncio.Event(), 0

            async def answer(_node: str, _method: str, body: bytes) -> bytes:
                nonlocal begun
                begun += 1
                await gate.wait()
                return body

            b.answer = answer
            hanging = asyncio.create_task(a.links.request("b", "m", b"", 10_000))
            gone = asyncio.create_task(c.links.request("b", "m", b"", 10_000))
            await eventually(lambda: begun == 2)
            began = asyncio.get_running_loop().time()
            leaving = asyncio.create_task(b.links.drain())
            await c.links.stop()
            await leaving
            assert asyncio.get_running_loop().time() - began < 5
            await b.links.stop()
            for task in (hanging, gone):
                with pytest.raises(OutcomeUnknown):
                    await task

    run(scenario(), loop)


def test_many_large_answers_at_once_do_not_cost_the_connection(loop: str) -> None:
    """More answers are ready at the same time than may wait for a reading node: those without room wait for it, and
    other messages of the connection continue."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair(live_limit_bytes=2 * MB)
            go, begun = asyncio.Event(), 0

            async def answer(_node: str, _method: str, body: bytes) -> bytes:
                nonlocal begun
                begun += 1
                await go.wait()
                return body * MB

            b.answer = answer
            asked = [asyncio.create_task(a.links.request("b", "m", b"%d" % i, 10_000)) for i in range(4)]
            await eventually(lambda: begun == 4)
            go.set()
            assert await asyncio.gather(*asked) == [b"%d" % i * MB for i in range(4)]
            assert (a.events, b.events) == ([("b", True)], [("a", True)])
            assert b.faults() == {}

    run(scenario(), loop)


def test_answers_that_wait_for_buffer_space_are_bounded_and_end_with_their_requests(loop: str) -> None:
    """While a connection is full one answer waits, and more up to the limit; other requests get an unknown outcome at
    once. No answer waits longer than its request."""

    async def scenario() -> None:
        put: list[Parts] = []
        full = True

        async def handler(_node: str, method: str, _body: bytes) -> bytes:
            return method.encode()

        class Connection:
            """A connection that is full while `full`."""

            def put_call(self, item: Parts) -> bool:
                put.append(item)
                return True

            def waiting_bytes(self, _lane: Lane) -> int:
                return 11 if full else 10

            def stream_wanted(self) -> None:
                raise AssertionError("no stream was asked for")

        tasks: set[asyncio.Task[None]] = set()
        serving = RpcServer("a", handler, Connection(), body_limit=MB, bytes_max=10, tasks=tasks)
        for asked in (1, 2):
            serving.asked((asked, "sixsix", 10_000, b""))
        await eventually(lambda: put)
        (told,) = unpacked(b"\x91" + b"".join(put.pop()))
        assert (told[0], told[2], told[3]) == (2, "outcome-unknown", "6 bytes of answers are already queued for node a")
        serving.asked((3, "x", 100, b""))
        await eventually(lambda: len(tasks) == 1)
        assert put == []
        full = False
        await eventually(lambda: not tasks)
        assert unpacked(b"\x91" + b"".join(put[0])) == ((1, b"sixsix"),)
        assert len(put) == 1
        full = True
        serving.asked((4, "x", 10_000, b""))
        await asyncio.sleep(0)
        serving.left.set()
        await eventually(lambda: not tasks)

    run(scenario(), loop)


class FakeConnection:
    """A connection that keeps the messages put into it; full while `full`."""

    def __init__(self, put: list[Parts]) -> None:
        self.put = put
        self.full = False

    def put_call(self, item: Parts) -> bool:
        self.put.append(item)
        return True

    def waiting_bytes(self, _lane: Lane) -> int:
        return 11 if self.full else 10


def client_of(sent: list[Parts], *, bytes_max: int = 100) -> RpcClient:
    return RpcClient("b", FakeConnection(sent), body_limit=MB, bytes_max=bytes_max)


def test_requests_without_a_task_end_by_one_timer_each_at_its_own_time(loop: str) -> None:
    """Each request is answered OutcomeUnknown when its own timeout is over, for any order of sending; an answered one
    is not, and its late answer is dropped."""

    async def scenario() -> None:
        sent: list[Parts] = []
        found: list[tuple[str, float, object]] = []
        now = asyncio.get_running_loop().time
        began = now()
        client = client_of(sent)
        for name, timeout_ms in (("slow", 300), ("fast", 100), ("answered", 50)):
            client.send(name, b"", timeout_ms, 0, lambda answer, name=name: found.append((name, now() - began, answer)))  # type: ignore[misc]
        client.answered((3, b"done"))
        assert [(name, answer) for name, _, answer in found] == [("answered", b"done")]
        await eventually(lambda: len(found) == 3)
        client.answered((1, b"late"))
        assert [name for name, *_ in found] == ["answered", "fast", "slow"]
        assert 0.09 < found[1][1] < 0.28
        assert found[2][1] > 0.29
        for _, _, answer in found[1:]:
            assert isinstance(answer, OutcomeUnknown)
        assert "did not answer fast within 100 ms" in str(found[1][2])

    run(scenario(), loop)


def test_a_request_makes_room_when_it_ends_in_any_way(loop: str) -> None:
    """When it is answered, overdue, cancelled or broken, its bytes do not count any more, and a request refused because
    of them is accepted."""

    async def scenario() -> None:
        sent: list[Parts] = []
        client = client_of(sent)
        ignore: Answered = lambda _answer: None  # noqa: E731
        for end in ("answered", "overdue", "cancelled", "broken"):
            if end == "cancelled":
                task = asyncio.create_task(client.ask("m", b"x" * 100, 10_000, 0))
                await asyncio.sleep(0)
            else:
                asked = client.send("m", b"x" * 100, 50 if end == "overdue" else 10_000, 0, ignore)
            with pytest.raises(Overloaded):
                client.send("m", b"x", 10_000, 0, ignore)
            match end:
                case "answered":
                    client.answered((asked, b""))
                case "overdue":
                    await asyncio.sleep(0.1)
                case "cancelled":
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                case "broken":
                    client.broke("test")
            client.answered((client.send("m", b"x", 10_000, 0, ignore), b""))
            assert client._bytes == 0, end
        assert len(sent) == 8

    run(scenario(), loop)


def test_a_bug_in_a_callback_costs_no_other_answer(loop: str) -> None:
    """A callback that raises is logged; the requests beside it are answered, also when the connection breaks."""

    async def scenario() -> None:
        client = client_of([])
        found: list[object] = []

        def fails(_answer: bytes | IsthmusError) -> None:
            raise ZeroDivisionError

        client.send("m", b"", 10_000, 0, fails)
        client.answered((1, b""))
        client.send("m", b"", 10_000, 0, fails)
        client.send("m", b"", 10_000, 0, found.append)
        client.broke("test")
        (error,) = found
        assert isinstance(error, OutcomeUnknown)

    run(scenario(), loop)


def test_a_direct_handler_answers_without_a_task(loop: str) -> None:
    """Now or later, a body or an error, also one that it raises; a task is made only while the connection is full."""

    async def scenario() -> None:
        put: list[Parts] = []
        later: list[Answered] = []
        tasks: set[asyncio.Task[None]] = set()

        def direct(node: str, body: bytes, answered: Answered) -> None:
            if body == b"now":
                answered(node.encode())
            elif body == b"refused":
                raise TooFewInSync("1 of 2")
            elif body == b"bug":
                raise ZeroDivisionError
            else:
                later.append(answered)

        async def unused(_node: str, _method: str, _body: bytes) -> bytes:
            raise AssertionError

        connection = FakeConnection(put)
        serving = RpcServer("a", unused, connection, body_limit=2_000, bytes_max=10, tasks=tasks, direct={"m": direct})

        def answers() -> list[object]:
            found = [item for parts in put for item in unpacked(b"\x91" + b"".join(parts))]
            put.clear()
            return [item[1:3] for item in found]

        for asked, body in enumerate((b"now", b"refused", b"bug", b"later"), 1):
            serving.asked((asked, "m", 10_000, body))
        assert answers() == [(b"a",), ("not-enough-replicas", "not-enough-replicas"), ("", "outcome-unknown")]
        later.pop()(b"x" * 1_900)
        await eventually(lambda: put)
        ((code, _),) = answers()
        assert code == ""
        serving.asked((5, "m", 10_000, b"later"))
        connection.full = True
        later.pop()(b"y")
        assert tasks
        await asyncio.sleep(0.05)
        assert put == []
        connection.full = False
        await eventually(lambda: not tasks)
        assert answers() == [(b"y",)]
        assert (serving._in_flight, serving._bytes) == (0, 0)

    run(scenario(), loop)
