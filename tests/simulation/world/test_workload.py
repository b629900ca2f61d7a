"""Claims about the clients of a world: how they send, what they record, and that they meet every kind of answer."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from isthmus.client.steps import Endpoint, NoAnswer, Request, Response, Send
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.security.accepting import Acceptor, PlainServer
from tests.simulation.world import plan
from tests.simulation.world.clusters import Shape
from tests.simulation.world.history import NEVER, Outcome
from tests.simulation.world.kernel import SECOND, Kernel
from tests.simulation.world.machine import VirtualMachine
from tests.simulation.world.network import Network
from tests.simulation.world.node_state import leaders_of
from tests.simulation.world.oracles_clients import CommittedReads, NothingLost
from tests.simulation.world.raw_http import RawTransport
from tests.simulation.world.world import World

T = TypeVar("T")

SERVER = "10.0.0.1"
PORT = 80


_pairs: list[Pair] = []


@pytest.fixture(autouse=True)
def _end_pairs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End all processes of a test; what their objects report when they are freed is dropped."""
    yield
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    for pair in _pairs:
        pair.client.kill()
        pair.server.kill()
    _pairs.clear()
    gc.collect()


class Pair:
    """A client's and a server's machine. The server sends what `answers` gives, piece by piece."""

    def __init__(self, *answers: tuple[bytes, ...] | None) -> None:
        """An answer is its pieces; None: the connection is closed instead. Behind the last: silence."""
        self.kernel = Kernel(1)
        network = Network(self.kernel)
        self.client = VirtualMachine(self.kernel, network, "client", "10.0.0.2")
        self.server = VirtualMachine(self.kernel, network, "server", SERVER)
        self.client.boot()
        self.server.boot()
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.run(self.server, self._serve())
        self.transport = RawTransport(self.client.loop)
        _pairs.append(self)

    def run(self, machine: VirtualMachine, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine on a machine."""
        task = machine.loop.create_task(work)
        self.kernel.run_for(60.0, unless=task.done)
        return task.result()

    async def _serve(self) -> None:
        listening: Any = self.server.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.bind((SERVER, PORT))
        listening.listen(16)
        listening.setblocking(False)
        PlainServer(Acceptor("test", listening, 0), listening, lambda: _Server(self)).start()

    def send(self, method: bytes = b"GET", port: int = PORT, body: bytes | None = None) -> Response | NoAnswer:
        """The answer to a request."""
        request = Request(method, b"/x", ((b"A", b"b"),), body)
        return self.run(self.client, self.transport.send(Send(Endpoint("http", SERVER, port), request, 5.0, 1.0)))


class _Server(asyncio.Protocol):
    def __init__(self, pair: Pair) -> None:
        self._pair = pair

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._pair.connections += 1

    def data_received(self, data: bytes) -> None:
        self._pair.requests.append(data)
        if not self._pair.answers:
            return
        pieces = self._pair.answers.pop(0)
        if pieces is None:
            self._transport.close()
            return
        delay_s = 0.0
        for piece in pieces:
            self._pair.server.loop.call_later(delay_s, self._transport.write, piece)
            delay_s += 0.01


OK = b"HTTP/1.1 200 OK\r\nX-Riak-Vclock: abc\r\ncontent-length: 5\r\n\r\nvalue"


@pytest.mark.parametrize(
    "cut",
    [lambda data: (data,), lambda data: tuple(data[at : at + 1] for at in range(len(data)))],
    ids=("whole", "bytes"),
)
def test_an_answer_may_arrive_in_pieces(cut: Callable[[bytes], tuple[bytes, ...]]) -> None:
    """An answer is complete whichever pieces it comes in, and the connection is used again."""
    pair = Pair(cut(OK), cut(b"HTTP/1.1 204 No Content\r\n\r\n"), cut(OK))
    assert pair.send(body=b"12") == Response(200, {"x-riak-vclock": "abc", "content-length": "5"}, b"value")
    assert pair.send() == Response(204, {}, b"")
    assert pair.send() == Response(200, {"x-riak-vclock": "abc", "content-length": "5"}, b"value")
    assert pair.connections == 1
    assert pair.requests[0] == b"GET /x HTTP/1.1\r\nHost: 10.0.0.1:80\r\nA: b\r\nContent-Length: 2\r\n\r\n12"


@pytest.mark.parametrize(
    "cut",
    [lambda data: (data,), lambda data: tuple(data[at : at + 1] for at in range(len(data)))],
    ids=("whole", "bytes"),
)
def test_a_chunked_answer_is_joined(cut: Callable[[bytes], tuple[bytes, ...]]) -> None:
    """A body in chunks is complete with its last chunk."""
    pair = Pair(cut(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n"))
    answer = pair.send()
    assert isinstance(answer, Response)
    assert answer.body == b"abc0123456789"


def test_the_answer_to_head_has_no_body() -> None:
    """The length in an answer to HEAD is not waited for."""
    pair = Pair((OK.partition(b"value")[0],))
    answer = pair.send(b"HEAD")
    assert isinstance(answer, Response)
    assert answer.body == b""


def test_failures_tell_whether_the_request_was_sent() -> None:
    """A refused connection sent nothing; one that breaks, or is silent, may have. The next one connects again."""
    pair = Pair(None, (OK,))
    refused = pair.send(port=81)
    assert isinstance(refused, NoAnswer)
    assert not refused.sent
    broken = pair.send()
    assert isinstance(broken, NoAnswer)
    assert broken.sent
    assert not broken.silent
    assert isinstance(pair.send(), Response)
    silent = pair.send()
    assert isinstance(silent, NoAnswer)
    assert silent.sent
    assert silent.silent
    assert pair.connections == 2


def test_clients_of_a_world_do_everything_and_find_nothing_wrong() -> None:
    """In a world in which nothing breaks, the sessions' operations of all kinds succeed, both clusters end with what
    was written, and the oracles have no failure."""
    shape = Shape((1, 2), 2)
    with World(7, shape) as world:
        world.start()
        world.prepare()
        operations = plan.drawn(7, shape=shape, operations=400, acts=0, seconds=20.0)
        world.perform(operations.steps)
        world.kernel.run_for(10.0)
        assert [*world.failures, *NothingLost().judge(world), *CommittedReads().judge(world)] == []
        history = world.history
    assert history.counts.keys() >= {
        "read ok",
        "read ok not-modified",
        "put ok",
        "put refused precondition-failed",
        "put refused modified",
        "delete ok",
        "list ok",
        "POST 201",
    }
    done = [op for ops in history.keys.values() for op in ops]
    assert {op.session for op in done} >= {"c1", "c2", "c3", "c4", "p5", "p6"}
    assert any(len(op.values) > 1 for op in done)
    assert any(op.contents and op.contents[0].indexes for op in done)
    assert all(op.answered_ns != NEVER and op.outcome is not Outcome.UNKNOWN for op in done if op.session[0] == "c")
    ends = {name: {op.key: set(op.values) for op in done if op.session == f"final-{name}"} for name in ("east", "west")}
    assert ends["east"] == ends["west"]
    assert any(ends["east"].values())


def test_a_session_goes_on_through_the_failure_of_a_node() -> None:
    """While one of three nodes is killed and started again, writes without an answer are unknown or sent again, and
    what was acknowledged is there."""
    shape = Shape((3,), 2)
    with World(11, shape) as world:
        world.start()
        world.prepare()
        node = world.nodes[0]
        for at_s, act in ((4.0, node.machine.kill), (7.0, node.start), (11.0, node.machine.kill), (14.0, node.start)):
            world.kernel.at(round(at_s * SECOND), act)
        operations = plan.drawn(11, shape=shape, operations=250, acts=0, seconds=20.0)
        world.perform(operations.steps)
        world.run_until(world.all_ready, 60.0, "all nodes serve")
        assert [*world.failures, *NothingLost().judge(world), *CommittedReads().judge(world)] == []
        counts = world.history.counts
    assert any("no answer" in what for what in counts)
    assert counts["put ok"] > 50


def reads_beside_a_cut_off_leader(seed: int) -> list[str]:
    """What the oracle of reads finds where a leader is cut off from its followers and the metastore, not from its
    clients, for longer than its session lasts."""
    shape = Shape((3,), 1)
    with World(seed, shape) as world:
        world.start()
        world.prepare()
        cluster = world.clusters["east"]

        def cut_off() -> None:
            node = cluster.nodes[leaders_of(cluster)[0].node]
            for other in cluster.nodes.values():
                if other is not node:
                    world.network.cut(node.machine, other.machine)
            cluster.ensemble.cut(node.name)
            world.kernel.at(20 * SECOND, heal)

        def heal() -> None:
            world.network.heal()
            for name in cluster.nodes:
                cluster.ensemble.heal(name)

        world.kernel.at(3 * SECOND, cut_off)
        world.perform(plan.drawn(seed, shape=shape, operations=250, acts=0, seconds=22.0).steps)
        world.run_until(world.all_ready, 60.0, "all nodes serve")
        return CommittedReads().judge(world)


def test_a_leader_that_confirms_no_reads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Committed reads of a leader that was replaced, and does not ask whether it still leads, contradict what other
    nodes have acknowledged; with R-READ nothing does."""
    assert reads_beside_a_cut_off_leader(1) == []

    def unconfirmed(*_: object) -> asyncio.Future[None]:
        confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        confirmed.set_result(None)
        return confirmed

    monkeypatch.setattr(Runtime, "committed", unconfirmed)
    assert any(reads_beside_a_cut_off_leader(seed) for seed in range(1, 5))
