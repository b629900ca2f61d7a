"""The simulated network behaves as TCP does, in virtual time, and serves the shipped clients and servers."""

from __future__ import annotations

import asyncio
import errno
import gc
import http.client
import os
import socket
import ssl
import sys
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import requests

from isthmus.client.steps import Endpoint, NoAnswer, Request, Response, Send
from isthmus.client.transport import IDLE_S, AsyncTransport
from isthmus.repl import machine as product_machine
from isthmus.repl.http.async_client import AsyncHttpPeer
from isthmus.repl.http.client import OPEN, HttpPeer, PeerCredentials
from isthmus.repl.model.errors import PeerFault
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.security.accepting import Acceptor, PlainServer
from isthmus.repl.security.tls import HANDSHAKE_TIMEOUT_S, LinkTls, server_contexts
from isthmus.repl.security.tls_server import TlsServer
from isthmus.repl.transport.connection import LinkLimits
from isthmus.repl.transport.links import ClusterLinks
from tests.simulation.world.kernel import SECOND, Kernel
from tests.simulation.world.libraries import libraries_in_the_world
from tests.simulation.world.machine import VirtualMachine
from tests.simulation.world.network import Network
from tests.simulation.world.sockets import VirtualSocket
from tests.simulation.world.tcp import WINDOW_BYTES
from tests.support.link_nodes import Observed
from tests.support.tls_files import CertificateFolder

PORT = 8098

_worlds: list[Two] = []
"""Those of the running test."""


@pytest.fixture(autouse=True)
def _end_worlds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End all processes of a test; what their objects say when they are freed is not said."""
    yield
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for two in _worlds:
            for machine in two.machines:
                machine.kill()
        _worlds.clear()
        gc.collect()


class Two:
    """Two machines in different places, `a` and `b`, and what is done on them."""

    def __init__(self, seed: int = 1, **options: Any) -> None:
        self.kernel = Kernel(seed)
        self.network = Network(self.kernel, **options)
        self.machines: list[VirtualMachine] = []
        self.a = self.machine("a", "10.1.0.1")
        self.b = self.machine("b", "10.2.0.1")
        _worlds.append(self)

    def machine(self, name: str, address: str) -> VirtualMachine:
        """Another machine, with a process."""
        made = VirtualMachine(self.kernel, self.network, name, address)
        made.boot()
        self.machines.append(made)
        return made

    @property
    def now_s(self) -> float:
        """Virtual time."""
        return self.kernel.now_ns / SECOND

    def task(self, machine: VirtualMachine, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin `work` on the loop of a machine."""
        return machine.loop.create_task(work)

    def call(self, machine: VirtualMachine, work: Coroutine[Any, Any, Any], within_s: float = 60.0) -> Any:
        """The result of `work` on the loop of a machine."""
        task = self.task(machine, work)
        self.until(task.done, within_s)
        return task.result()

    def block(self, machine: VirtualMachine, run: Callable[[], Any], within_s: float = 60.0) -> Any:
        """The result of a function that blocks, in a thread of a machine."""
        found = self.blocked(machine, run)
        self.until(lambda: bool(found), within_s)
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    def blocked(self, machine: VirtualMachine, run: Callable[[], Any]) -> list[Any]:
        """Begin a function that blocks; gets its result, or its exception."""
        found: list[Any] = []

        def body() -> None:
            try:
                found.append(run())
            except BaseException as error:  # noqa: BLE001
                found.append(error)

        self.kernel.spawn(body, machine)
        return found

    def until(self, condition: Callable[[], bool], within_s: float) -> None:
        """Run until the condition holds."""
        assert self.kernel.run(self.kernel.now_ns + round(within_s * SECOND), unless=condition)

    def wait(self, seconds: float) -> None:
        """Run for some time."""
        self.kernel.run_for(seconds)

    def listener(self, machine: VirtualMachine, port: int = PORT, backlog: int = 16) -> VirtualSocket:
        """A listening socket."""
        sock = self.network.socket(machine)
        sock.bind(("0.0.0.0", port))
        sock.listen(backlog)
        sock.setblocking(False)
        return sock

    def serve(self, machine: VirtualMachine, factory: Callable[[], asyncio.Protocol], port: int = PORT) -> None:
        """Serve with the product's own server."""
        sock: Any = self.listener(machine, port)

        async def begin() -> None:
            PlainServer(Acceptor("test", sock, 0), sock, factory).start()

        self.call(machine, begin())

    def pair(self) -> tuple[VirtualSocket, VirtualSocket]:
        """A connection from `a` to `b`: both sockets, which do not block."""
        listening = self.listener(self.b)
        sock = self.network.socket(self.a)
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):
            sock.connect((self.b.address, PORT))
        self.until(lambda: sock.writable, 5)
        found, _ = listening.accept()
        listening.close()
        found.setblocking(False)
        return sock, found


class Recorder(asyncio.Protocol):
    """Keeps what it gets."""

    def __init__(self, *, keep_open: bool = False) -> None:
        self.pieces: list[bytes] = []
        self.story: list[str] = []
        self.lost: list[BaseException | None] = []
        self.transport: Any = None
        self._keep_open = keep_open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)

    def eof_received(self) -> bool:
        self.story.append("eof")
        return self._keep_open

    def pause_writing(self) -> None:
        self.story.append("pause")

    def resume_writing(self) -> None:
        self.story.append("resume")

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost.append(exc)

    @property
    def data(self) -> bytes:
        """All bytes."""
        return b"".join(self.pieces)


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Answers(asyncio.Protocol):
    """An HTTP server with one answer."""

    def __init__(self, body: bytes = b"hello", silent: bool = False) -> None:
        self._answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        self._silent = silent
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, end, rest = self._got.partition(b"\r\n\r\n")
        lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-l")]
        if end and len(rest) >= sum(lengths):
            self._got = b""
            if not self._silent:
                self.transport.write(self._answer)


def connect(two: Two, **options: Any) -> tuple[Recorder, Recorder]:
    """A connection of transports from `a` to `b`."""
    servers: list[Recorder] = []

    def factory() -> Recorder:
        servers.append(Recorder(**options))
        return servers[-1]

    two.serve(two.b, factory)
    _, client = two.call(two.a, two.a.loop.create_connection(lambda: Recorder(**options), two.b.address, PORT))
    two.until(lambda: bool(servers) and servers[0].transport is not None, 5)
    return client, servers[0]


def chance_bytes(two: Two, size: int) -> bytes:
    return two.kernel.random.randbytes(size)


# Connections


def test_bytes_arrive_in_order_and_in_other_pieces() -> None:
    """All bytes arrive once and in order, also with packets lost; where they are cut is not where they were written."""
    two = Two()
    client, server = connect(two)
    two.network.lose(0.2)
    written = [chance_bytes(two, size) for size in (1, 1000, 70_000, 3, 500, 20_000)] * 5
    for piece in written:
        client.transport.write(piece)
        two.wait(0.001)
    two.until(lambda: len(server.data) == sum(map(len, written)), 600)
    assert server.data == b"".join(written)
    assert server.pieces != written


def test_a_write_arrives_in_one_piece_or_two() -> None:
    """Some writes arrive in two pieces, though nothing is lost."""
    two = Two()
    client, server = connect(two)
    for _ in range(200):
        client.transport.write(bytes(1000))
        two.wait(0.1)
    assert len(server.data) == 200_000
    assert 204 < len(server.pieces) < 230
    assert {len(piece) for piece in server.pieces} > {1000}


def test_one_seed_is_one_order() -> None:
    """The same seed delivers the same pieces at the same nanoseconds; another seed does not."""

    def run(seed: int) -> tuple[Any, ...]:
        two = Two(seed)
        client, server = connect(two)
        two.network.lose(0.1)
        for number in range(100):
            client.transport.write(bytes([number]) * 100)
            two.wait(0.0005)
        two.wait(100)
        assert len(server.data) == 10_000
        return [len(piece) for piece in server.pieces], two.kernel.digest, two.kernel.events_run

    assert run(5) == run(5)
    assert run(5)[1] != run(6)[1]


def test_latency_follows_the_places() -> None:
    """A round trip takes 0.2 to 2.5 ms within a place and 8 to 81 ms between two, turns of the loops included."""
    two = Two()
    near = two.machine("near", "10.1.0.2")
    for server, low_s, high_s in ((near, 0.0002, 0.0025), (two.b, 0.008, 0.081)):
        two.serve(server, Echo)
        _, client = two.call(two.a, two.a.loop.create_connection(Recorder, server.address, PORT))
        began_s = two.now_s
        client.transport.write(b"x")
        two.until(lambda client=client: bool(client.pieces), 1)
        assert low_s < two.now_s - began_s < high_s
    there, back = two.network.way(two.a.address, two.b.address), two.network.way(two.b.address, two.a.address)
    assert there.latency_ns == back.latency_ns


def test_a_frozen_process_receives_and_a_thawed_one_reads() -> None:
    """Bytes for a frozen process wait in its kernel."""
    two = Two()
    client, server = connect(two)
    two.b.freeze()
    client.transport.write(b"abc")
    two.wait(5)
    assert not server.pieces
    two.b.thaw()
    two.wait(0.1)
    assert server.data == b"abc"


def test_flow_control_pauses_and_resumes_the_writer() -> None:
    """A writer is paused when the reader does not read: a window is in flight, the rest waits in the transport, above
    its high-water mark. It goes on once the reader reads, and everything arrives."""
    two = Two()
    client, server = connect(two)
    server.transport.pause_reading()
    data = chance_bytes(two, 3 * WINDOW_BYTES)
    client.transport.write(data)
    assert client.story == ["pause"]
    assert client.transport.get_write_buffer_size() == 2 * WINDOW_BYTES
    two.wait(5)
    assert client.transport.get_write_buffer_size() == 2 * WINDOW_BYTES
    assert not server.pieces
    server.transport.resume_reading()
    two.wait(5)
    assert client.story == ["pause", "resume"]
    assert server.data == data


def test_a_slow_reader_holds_the_writer_up() -> None:
    """A reader of 10,000 bytes a second has 20,000 after two seconds, and all when there was time."""
    two = Two()
    client, server = connect(two)
    (connection,) = two.network.connections()
    two.network.slow_reader(connection.other, 10_000)
    client.transport.write(bytes(100_000))
    two.wait(2)
    assert 15_000 < len(server.data) < 25_000
    two.wait(10)
    assert len(server.data) == 100_000


def test_what_is_slow_hurries_when_it_is_healed() -> None:
    """Bytes that a slow reader, a stall or a thin way holds up arrive at once, and in order, when that is over."""
    two = Two()
    client, server = connect(two)
    (connection,) = two.network.connections()
    sent = b""
    for begin, end in (
        (lambda: two.network.slow_reader(connection.other), lambda: two.network.slow_reader(connection.other, None)),
        (lambda: two.network.stall(two.a, two.b, 100), lambda: two.network.heal(two.a, two.b)),
        (lambda: two.network.bandwidth(two.a, two.b, 100), two.network.heal),
    ):
        begin()
        data = chance_bytes(two, 50_000)
        client.transport.write(data)
        sent += data
        two.wait(5)
        assert len(server.data) < len(sent) - 40_000
        end()
        two.wait(1)
        assert server.data == sent


def test_bandwidth_is_shared_by_all_connections() -> None:
    """Two connections over a way of 100,000 bytes a second bring 100,000 bytes each in some 2 s."""
    two = Two()
    servers: list[Recorder] = []
    two.serve(two.b, lambda: servers.append(Recorder()) or servers[-1])  # type: ignore[func-returns-value]
    clients = [two.call(two.a, two.a.loop.create_connection(Recorder, two.b.address, PORT))[1] for _ in range(2)]
    two.network.bandwidth(two.a, two.b, 100_000)
    for client in clients:
        client.transport.write(bytes(100_000))
    two.wait(1.5)
    assert sum(len(each.data) for each in servers) < 200_000
    two.wait(1)
    assert [len(each.data) for each in servers] == [100_000, 100_000]


# Ends


def test_half_close() -> None:
    """After write_eof the other end reads the end, and still can send when it stays open."""
    two = Two()
    client, server = connect(two, keep_open=True)
    client.transport.write(b"question")
    client.transport.write_eof()
    two.wait(1)
    assert (server.data, server.story, server.lost) == (b"question", ["eof"], [])
    server.transport.write(b"answer")
    server.transport.close()
    two.wait(1)
    assert (client.data, client.story, client.lost) == (b"answer", ["eof"], [])


def test_write_eof_comes_after_what_waits() -> None:
    """The end follows the bytes that were written before, also those that wait in the transport."""
    two = Two()
    client, server = connect(two, keep_open=True)
    client.transport.write(bytes(2 * WINDOW_BYTES))
    client.transport.write_eof()
    with pytest.raises(RuntimeError):
        client.transport.write(b"late")
    two.wait(5)
    assert (len(server.data), server.story, server.lost) == (2 * WINDOW_BYTES, ["eof"], [])


def test_a_closed_listener_resets_what_waits_in_it() -> None:
    """A connection that was never accepted is reset."""
    two = Two()
    listening = two.listener(two.b)
    _, client = two.call(two.a, two.a.loop.create_connection(Recorder, two.b.address, PORT))
    listening.close()
    two.wait(1)
    assert isinstance(client.lost[0], ConnectionResetError)


def test_a_closed_transport_sends_what_was_written() -> None:
    """close() sends everything first; both protocols learn the end without an error."""
    two = Two()
    client, server = connect(two)
    client.transport.write(bytes(2 * WINDOW_BYTES))
    client.transport.close()
    two.wait(5)
    assert len(server.data) == 2 * WINDOW_BYTES
    assert (server.story, server.lost, client.lost) == (["eof"], [None], [None])
    assert not two.network.connections()


def test_writing_to_a_closed_end_is_answered_by_a_reset() -> None:
    """The first write to an end that is closed succeeds, then the connection is reset, then the pipe is broken."""
    two = Two()
    sock, other = two.pair()
    other.close()
    two.wait(1)
    assert sock.recv(10) == b""
    assert sock.send(b"x") == 1
    two.wait(1)
    with pytest.raises(ConnectionResetError):
        sock.send(b"x")
    with pytest.raises(BrokenPipeError):
        sock.send(b"x")
    assert sock.recv(10) == b""


def test_closing_with_unread_bytes_resets() -> None:
    """An end closed with bytes that nobody read resets the connection; bytes that arrived before are still read."""
    two = Two()
    sock, other = two.pair()
    other.send(b"before")
    sock.send(b"unread")
    two.wait(1)
    other.close()
    two.wait(1)
    assert sock.recv(10) == b"before"
    with pytest.raises(ConnectionResetError):
        sock.recv(10)
    assert sock.recv(10) == b""


@pytest.mark.parametrize("moment", ["cut", "cut with bytes that wait", "on its way"])
def test_a_reset_that_is_lost_comes_with_the_next_segment(moment: str) -> None:
    """A reset is not sent again, and neither is what was sent before it: after a cut the other end learns of it when it
    sends something."""
    two = Two()
    sock, other = two.pair()
    sock.send(b"unread")
    two.wait(1)
    if moment == "on its way":
        other.close()
    two.network.cut(two.a, two.b)
    if moment == "cut with bytes that wait":
        other.send(b"lost")
        two.wait(1)
    other.close()
    two.wait(1)
    two.network.heal()
    two.wait(100)
    with pytest.raises(BlockingIOError):
        sock.recv(10)
    sock.send(b"x")
    two.wait(1)
    with pytest.raises(ConnectionResetError):
        sock.recv(10)


def test_the_answer_to_a_lost_segment_is_sent_again() -> None:
    """A reset that answers a segment comes once it can pass, since the segment is sent again until then."""
    two = Two()
    sock, other = two.pair()
    other.close()
    two.wait(1)
    two.network.cut_one_way(two.b, two.a)
    sock.send(b"x")
    two.wait(10)
    assert sock.recv(10) == b""
    two.network.heal()
    two.wait(30)
    with pytest.raises(ConnectionResetError):
        sock.send(b"x")


# Machines


def test_a_killed_process_ends_its_connections() -> None:
    """The other end of a killed process's connections gets a reset or an end at once, dials are refused, and the next
    process listens on the same port."""
    ends = []
    for seed in range(10):
        two = Two(seed)
        client, _ = connect(two)
        two.b.kill()
        two.wait(0.1)
        ends.append(type(client.lost[0]))
        with pytest.raises(ConnectionRefusedError, match="Connect call failed"):
            two.call(two.a, two.a.loop.create_connection(Recorder, two.b.address, PORT))
        two.b.boot()
        two.serve(two.b, Echo)
        two.call(two.a, two.a.loop.create_connection(Recorder, two.b.address, PORT))
    assert set(ends) == {ConnectionResetError, type(None)}


def test_a_machine_without_power_is_silent_until_it_is_up() -> None:
    """Nothing is answered while the power is out: a write waits, a dial times out. A machine that is up again answers
    the old connection's next segment with a reset."""
    two = Two()
    client, _ = connect(two)
    two.network.power_lost(two.b)
    two.b.kill()
    client.transport.write(b"x")
    with pytest.raises(TimeoutError):
        two.call(two.a, _within(5, two.a.loop.create_connection(Recorder, two.b.address, PORT)))
    two.wait(20)
    assert not client.lost
    two.b.boot()
    two.wait(60)
    assert isinstance(client.lost[0], ConnectionResetError)


def test_a_machine_without_power_sends_nothing_again() -> None:
    """What waits for a cut way when the power fails is lost."""
    two = Two()
    client, server = connect(two)
    two.network.cut(two.a, two.b)
    server.transport.write(b"lost")
    two.wait(1)
    two.network.power_lost(two.b)
    two.b.kill()
    two.network.heal()
    two.b.boot()
    two.wait(500)
    assert not client.pieces


def test_power_lost_with_a_full_window_ends_in_a_reset_too() -> None:
    """A writer that waits for room asks for it: the machine that is up again answers with a reset."""
    two = Two()
    client, server = connect(two)
    server.transport.pause_reading()
    client.transport.write(bytes(2 * WINDOW_BYTES))
    two.wait(5)
    two.network.power_lost(two.b)
    two.b.kill()
    two.wait(5)
    assert not client.lost
    two.b.boot()
    two.wait(200)
    assert isinstance(client.lost[0], ConnectionResetError)


async def _within(seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
    async with asyncio.timeout(seconds):
        return await work


# Cuts


def test_a_cut_holds_bytes_until_it_is_healed() -> None:
    """Nothing passes a cut; afterwards everything arrives, with the sender's next attempt. Those are 0.2 s after the
    write and then each time twice as far from each other: after a cut of 10 s one comes at 12.6 s."""
    two = Two()
    client, server = connect(two)
    two.network.cut(two.a, two.b)
    began_s = two.now_s
    client.transport.write(b"one")
    server.transport.write(b"two")
    two.wait(10)
    assert not server.pieces
    assert not client.pieces
    two.network.heal(two.a, two.b)
    two.wait(12.59 + began_s - two.now_s)
    assert not server.pieces
    two.wait(12.7 + began_s - two.now_s)
    assert (server.data, client.data) == (b"one", b"two")


def test_a_half_open_way_holds_one_direction() -> None:
    """With one direction cut the other still brings bytes."""
    two = Two()
    client, server = connect(two)
    two.network.cut_one_way(two.a, two.b)
    client.transport.write(b"one")
    server.transport.write(b"two")
    two.wait(10)
    assert (server.data, client.data) == (b"", b"two")
    two.network.heal()
    two.wait(10)
    assert server.data == b"one"


@pytest.mark.parametrize("direction", ["data", "acknowledgements"])
def test_unacknowledged_bytes_fail_the_connection(direction: str) -> None:
    """A connection whose bytes, or whose acknowledgements, do not pass fails with a time-out after 924 s, not
    earlier; one on which nothing was sent does not fail."""
    two = Two()
    client, _ = connect(two)
    _, idle = two.call(two.a, two.a.loop.create_connection(Recorder, two.b.address, PORT))
    cut = (two.a, two.b) if direction == "data" else (two.b, two.a)
    two.network.cut_one_way(*cut)
    client.transport.write(b"x")
    two.wait(900)
    assert not client.lost
    two.wait(100)
    assert isinstance(client.lost[0], TimeoutError)
    assert not idle.lost


def test_an_acknowledged_connection_does_not_fail_later() -> None:
    """A cut that heals before the sender gives up leaves no trace."""
    two = Two()
    client, server = connect(two)
    for cut in ((two.a, two.b), (two.b, two.a)):
        two.network.cut_one_way(*cut)
        client.transport.write(b"x")
        two.wait(500)
        two.network.heal()
        two.wait(2000)
    assert (client.lost, server.lost, server.data) == ([], [], b"xx")


def test_window_opens_again_after_a_cut_of_acknowledgements() -> None:
    """What is read while acknowledgements do not pass makes no room for the sender; afterwards it does."""
    two = Two()
    client, server = connect(two)
    two.network.cut_one_way(two.b, two.a)
    data = chance_bytes(two, 3 * WINDOW_BYTES)
    client.transport.write(data)
    two.wait(5)
    assert len(server.data) == WINDOW_BYTES
    two.network.heal()
    two.wait(5)
    assert server.data == data


def test_stall_and_reset() -> None:
    """A stall delays; a reset by the network reaches both ends."""
    two = Two()
    client, server = connect(two)
    two.network.stall(two.a, two.b, 3)
    client.transport.write(b"x")
    two.wait(2.9)
    assert not server.pieces
    two.wait(0.2)
    assert server.data == b"x"
    (connection,) = two.network.connections()
    two.network.reset(connection)
    two.wait(0.1)
    assert [type(each.lost[0]) for each in (client, server)] == [ConnectionResetError] * 2


# Dials


def test_dials_that_fail() -> None:
    """A port without a listener and a refused one refuse; an address without a machine, a cut way, a silent port and a
    full backlog give no answer, and fail after 127 s."""
    two = Two()
    listening = two.listener(two.b, backlog=1)

    def dial(address: str = two.b.address, port: int = PORT) -> tuple[type[BaseException], float]:
        began_s = two.now_s
        with pytest.raises((ConnectionRefusedError, TimeoutError)) as caught:
            two.call(two.a, two.a.loop.create_connection(Recorder, address, port), within_s=200)
        return type(caught.value), round(two.now_s - began_s)

    assert dial(port=PORT + 1) == (ConnectionRefusedError, 0)
    two.network.refuse(two.b, PORT)
    assert dial() == (ConnectionRefusedError, 0)
    two.network.refuse(two.b, PORT, refused=False)
    assert dial("10.9.9.9") == (TimeoutError, 127)
    two.network.cut(two.a, two.b)
    assert dial() == (TimeoutError, 127)
    two.network.heal()
    two.network.drop_dials(two.b)
    assert dial() == (TimeoutError, 127)
    two.network.heal()
    two.call(two.a, two.a.loop.create_connection(Recorder, two.b.address, PORT))
    assert dial() == (TimeoutError, 127)
    listening.accept()
    two.call(two.a, two.a.loop.create_connection(Recorder, two.b.address, PORT))


def test_a_dial_during_a_cut_succeeds_after_it() -> None:
    """The first segment of a dial is sent again: a cut of 2 s delays it to the third second."""
    two = Two()
    two.serve(two.b, Echo)
    two.network.cut(two.a, two.b)
    two.kernel.at(2 * SECOND, two.network.heal)
    began_s = two.now_s
    two.call(two.a, two.a.loop.create_connection(Recorder, two.b.address, PORT))
    assert 3 <= two.now_s - began_s < 3.2


def test_a_dial_whose_answers_are_cut_is_not_accepted() -> None:
    """Without the answer there is no connection, for the listener neither; after the cut there is one."""
    two = Two()
    listening = two.listener(two.b)
    two.network.cut_one_way(two.b, two.a)
    task = two.task(two.a, two.a.loop.create_connection(Recorder, two.b.address, PORT))
    two.wait(2)
    with pytest.raises(BlockingIOError):
        listening.accept()
    two.network.heal()
    two.wait(2)
    assert task.done()
    listening.accept()


def test_an_answer_to_a_dial_that_is_cut_comes_later() -> None:
    """A cut between a dial and its answer delays it."""
    two = Two()
    two.serve(two.b, Echo)
    far_ns = two.network.way(two.a.address, two.b.address).latency_ns[1]
    task = two.task(two.a, two.a.loop.create_connection(Recorder, two.b.address, PORT))
    two.until(lambda: bool(two.network.host(two.b).ends), 1)
    two.network.cut(two.a, two.b)
    two.wait(2 * far_ns / SECOND)
    assert not task.done()
    two.network.heal()
    two.wait(2)
    assert task.done()


def test_a_machine_that_comes_later_is_reached() -> None:
    """A dial to an address without a machine is answered once a machine has it."""
    two = Two()
    task = two.task(two.a, two.a.loop.create_connection(Recorder, "10.2.0.7", PORT))
    two.wait(2)
    later = two.machine("later", "10.2.0.7")
    two.serve(later, Echo)
    two.wait(2)
    assert task.done()
    task.result()


def test_a_dial_that_is_cancelled_leaves_nothing() -> None:
    """A cancelled dial closes its socket; the listener's end is reset."""
    two = Two()
    servers: list[Recorder] = []
    two.serve(two.b, lambda: servers.append(Recorder()) or servers[-1])  # type: ignore[func-returns-value]
    task = two.task(two.a, two.a.loop.create_connection(Recorder, two.b.address, PORT))
    two.until(lambda: bool(servers), 1)
    if not task.done():
        task.cancel()
    two.wait(1)
    assert isinstance(servers[0].lost[0], ConnectionResetError)
    assert not two.network.host(two.a).descriptors
    assert not two.network.host(two.a).ends


def test_names_and_own_addresses() -> None:
    """A machine's name resolves to its address, localhost to the machine itself; an unknown name raises gaierror. A
    listener on a loopback address does not serve other machines."""
    two = Two()
    sock: Any = two.network.socket(two.b)
    sock.bind(("localhost", PORT))

    async def begin() -> None:
        PlainServer(Acceptor("test", sock, 0), sock, Echo).start()

    two.call(two.b, begin())
    _, client = two.call(two.b, two.b.loop.create_connection(Recorder, "localhost", PORT))
    assert client.transport.get_extra_info("peername") == ("127.0.0.1", PORT)
    with pytest.raises(ConnectionRefusedError):
        two.call(two.a, two.a.loop.create_connection(Recorder, "b", PORT))
    with pytest.raises(socket.gaierror):
        two.call(two.a, two.a.loop.getaddrinfo("nobody", PORT))
    two.network.name("b", "10.9.9.9", two.b.address)
    found = two.call(two.a, two.a.loop.getaddrinfo("b", PORT))
    assert [each[4] for each in found] == [("10.9.9.9", PORT), (two.b.address, PORT)]


def test_ports_belong_to_one_listener() -> None:
    """A port that is taken, and an address of another machine, cannot be bound."""
    two = Two()
    first = two.listener(two.a)
    for address, number in (("0.0.0.0", errno.EADDRINUSE), (two.b.address, errno.EADDRNOTAVAIL)):
        with pytest.raises(OSError, match=os.strerror(number)):
            two.network.socket(two.a).bind((address, PORT))
    first.close()
    two.listener(two.a)


def test_without_descriptors_nothing_is_opened() -> None:
    """socket() and accept() fail with EMFILE; a connection waits in the listener meanwhile."""
    two = Two()
    listening = two.listener(two.b)
    client = two.blocked(two.a, lambda: two.network.create_connection(two.a, (two.b.address, PORT), 5))
    two.wait(1)
    two.network.lack_descriptors(two.b)
    for call in (listening.accept, lambda: two.network.socket(two.b)):
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            call()
    two.network.heal()
    listening.accept()
    assert isinstance(client[0], VirtualSocket)


# Blocking sockets


def test_blocking_calls_wait_and_time_out() -> None:
    """connect, accept, recv and sendall block their greenlet only, until there is something or their time is over."""
    two = Two()
    listening = two.listener(two.b)
    listening.settimeout(None)

    def server() -> bytes:
        sock, _ = listening.accept()
        with sock:
            sock.settimeout(20)
            got = sock.recv(3, socket.MSG_PEEK) + sock.recv(100)
            sock.sendall(bytes(3 * WINDOW_BYTES))
            return got

    def client() -> tuple[int, float]:
        with two.network.create_connection(two.a, (two.b.address, PORT), 1) as sock:
            began_s = two.now_s
            with pytest.raises(TimeoutError):
                sock.recv(1)
            waited_s = two.now_s - began_s
            sock.sendall(b"hello")
            sock.settimeout(None)
            with sock.makefile("rb") as file:
                return len(file.read()), waited_s

    served = two.blocked(two.b, server)
    assert two.block(two.a, client) == (3 * WINDOW_BYTES, pytest.approx(1))
    assert served == [b"helhello"]


def test_readers_and_writers_of_the_loop() -> None:
    """add_reader and add_writer call back in each turn in which the socket is ready, and not after they are removed; a
    dial that failed makes its socket writable, with the error in SO_ERROR."""
    two = Two()
    sock, other = two.pair()
    loop = two.a.loop
    calls: list[str] = []
    loop.add_reader(sock, calls.append, "read")
    two.wait(0.2)
    assert calls == []
    other.send(b"xy")
    two.until(lambda: len(calls) >= 3, 1)
    assert sock.recv(2) == b"xy"
    assert loop.remove_reader(sock.fileno())
    assert not loop.remove_reader(sock)
    calls.clear()
    sent = sock.send(bytes(WINDOW_BYTES))
    loop.add_writer(sock, calls.append, "write")
    two.wait(1)
    assert calls == []
    assert len(other.recv(sent)) == sent == WINDOW_BYTES
    two.until(lambda: len(calls) >= 3, 1)
    loop.remove_writer(sock)
    refused = two.network.socket(two.a)
    refused.setblocking(False)
    assert refused.connect_ex((two.b.address, PORT + 1)) == errno.EINPROGRESS
    calls.clear()
    loop.add_writer(refused, calls.append, "refused")
    two.until(lambda: bool(calls), 1)
    assert refused.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


def test_a_blocking_dial_times_out() -> None:
    """Its TimeoutError comes at the time that was set."""
    two = Two()
    with pytest.raises(TimeoutError):
        two.block(two.a, lambda: two.network.create_connection(two.a, ("10.9.9.9", PORT), 3))
    assert 3 <= two.now_s < 3.01


def test_files_keep_a_socket_open() -> None:
    """A file of a socket reads on after the socket was closed; closing the file closes the connection."""
    two = Two()
    sock, other = two.pair()
    sock.setblocking(True)
    file = sock.makefile("rb")
    sock.close()
    other.send(b"line\nrest")
    assert two.block(two.a, file.readline) == b"line\n"
    file.close()
    two.wait(1)
    assert sock.fileno() == -1
    assert other.recv(10) == b""


def test_a_socket_closed_while_another_thread_reads_fails_there() -> None:
    """The read raises EBADF, and does not wait for ever."""
    two = Two()
    sock, _ = two.pair()
    sock.setblocking(True)
    reading = two.blocked(two.a, lambda: sock.recv(10))
    two.wait(1)
    sock.close()
    two.wait(1)
    assert reading[0].errno == errno.EBADF


def test_a_reader_is_woken_by_shutdown_from_another_thread() -> None:
    """As HTTP clients are aborted: shutdown of a socket ends the read that waits in another thread."""
    two = Two()
    sock, _ = two.pair()
    sock.setblocking(True)
    reading = two.blocked(two.a, lambda: sock.recv(10))
    two.wait(1)
    assert not reading
    sock.shutdown(socket.SHUT_RDWR)
    two.wait(1)
    assert reading == [b""]


# Shipped clients and servers


class _Connection(http.client.HTTPConnection):
    """Over the machine's own network."""

    def connect(self) -> None:
        machine: Any = product_machine.machine()
        self.sock = machine.create_connection((self.host, self.port), 5)


def test_http_client_in_a_greenlet() -> None:
    """The standard library's blocking HTTP client gets its answer, several times over one connection."""
    two = Two()
    two.serve(two.b, Answers)

    def ask() -> list[bytes]:
        connection = _Connection(two.b.address, PORT)
        found = []
        for _ in range(3):
            connection.request("POST", "/x", b"body")
            found.append(connection.getresponse().read())
        connection.close()
        return found

    assert two.block(two.a, ask) == [b"hello"] * 3
    assert not two.network.connections()


def test_requests_in_a_greenlet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `requests` session keeps its connection from one request to the next, notices when the server has closed it,
    and times out when nothing comes."""
    two = Two()
    monkeypatch.setattr("urllib3.util.connection.create_connection", _create_connection)
    made: list[Answers] = []
    two.serve(two.b, lambda: made.append(Answers()) or made[-1])  # type: ignore[func-returns-value]
    two.serve(two.b, lambda: Answers(silent=True), PORT + 1)
    url = f"http://{two.b.address}:{PORT}/"

    def ask() -> list[Any]:
        session = requests.Session()
        session.trust_env = False
        found: list[Any] = [session.get(url, timeout=(1, 5)).content for _ in range(2)]
        found.append(len(made))
        made[0].transport.close()
        product_machine.machine().sleep(1)
        found.append(session.post(url, b"x" * 100_000, timeout=(1, 5)).content)
        found.append(len(made))
        with pytest.raises(requests.ReadTimeout):
            session.get(f"http://{two.b.address}:{PORT + 1}/", timeout=(1, 5))
        session.close()
        return found

    with libraries_in_the_world():
        assert two.block(two.a, ask) == [b"hello", b"hello", 1, b"hello", 2]


def _create_connection(address: tuple[str, int], timeout: Any = None, *_: Any, **__: Any) -> Any:
    return product_machine.machine().create_connection(address, timeout)


def test_async_http_peer() -> None:
    """The product's asyncio HTTP client gets answers over one connection, and a PeerFault when the peer is killed."""
    two = Two()
    two.serve(two.b, lambda: Answers(bytes(300_000)))

    async def ask() -> list[int]:
        peer = AsyncHttpPeer(f"http://{two.b.address}:{PORT}", OPEN)
        try:
            found = []
            for _ in range(3):
                answer = await peer.post("/x", b"q", media_type="a/b", timeout_ms=5000, limit_bytes=1 << 20)
                found.append(len(answer))
            return [*found, len(two.network.connections())]
        finally:
            peer.abort()

    assert two.call(two.a, ask()) == [300_000] * 3 + [1]
    two.b.kill()
    with pytest.raises(PeerFault):
        two.call(two.a, ask())


def test_client_transport() -> None:
    """The Python client's asyncio transport sends over anyio: one connection for several requests, another one after
    the server closed it, and NoAnswer when nothing comes or nobody is there."""
    two = Two()
    made: list[Answers] = []
    two.serve(two.b, lambda: made.append(Answers()) or made[-1])  # type: ignore[func-returns-value]
    two.serve(two.b, lambda: Answers(silent=True), PORT + 1)

    async def ask() -> list[Any]:
        transport = AsyncTransport(None, 2)

        async def send(port: int) -> Any:
            request = Request(b"PUT", b"/x", ((b"Content-Length", b"4"),), b"body")
            return await transport.send(Send(Endpoint("http", two.b.address, port), request, 2.0, 1.0))

        found = [await send(PORT) for _ in range(2)]
        found.append(len(made))
        made[0].transport.close()
        await asyncio.sleep(1)
        found += [await send(PORT), len(made)]
        found += [await send(PORT + 1), await send(PORT + 2)]
        await transport.close()
        return found

    with libraries_in_the_world():
        one, again, first, third, second, silent, refused = two.call(two.a, ask())
    assert isinstance(one, Response)
    assert one.body == again.body == third.body == b"hello"
    assert (first, second) == (1, 2)
    assert isinstance(silent, NoAnswer)
    assert (silent.sent, silent.silent) == (True, True)
    assert isinstance(refused, NoAnswer)
    assert not refused.sent


def test_idle_connections_of_the_client_transport_end_in_virtual_time() -> None:
    """Whether a connection was idle for too long says the machine's clock, not the real one, which runs at the speed of
    the tests' machine."""
    two = Two()
    made: list[Answers] = []
    two.serve(two.b, lambda: made.append(Answers()) or made[-1])  # type: ignore[func-returns-value]

    async def ask() -> list[int]:
        transport, found = AsyncTransport(None, 2), []
        send = Send(Endpoint("http", two.b.address, PORT), Request(b"GET", b"/x", (), b""), 2.0, 1.0)
        for idle_s in (0, IDLE_S - 2, IDLE_S + 2):
            await asyncio.sleep(idle_s)
            assert isinstance(await transport.send(send), Response)
            found.append(len(made))
        await transport.close()
        return found

    with libraries_in_the_world():
        assert two.call(two.a, ask(), 3 * IDLE_S) == [1, 1, 2]


class LinkedNode:
    """A node's links on its machine, and what they reported."""

    def __init__(self, two: Two, machine: VirtualMachine, other: VirtualMachine, tls: LinkTls | None = None) -> None:
        self.changes: list[bool] = []
        self._two = two
        self.machine = machine
        self.links = ClusterLinks(
            ThisNode(machine.name, "c", bytes(16)),
            LinkLimits(
                ping_interval_ms=500,
                dead_after_ms=3000,
                dial_delay_max_ms=1000,
                live_limit_bytes=1 << 24,
                catch_up_limit_bytes=1 << 24,
                catch_up_share_percent=20,
                message_limit_bytes=1 << 24,
            ),
            catch_up_rate_bytes=0,
            observer=Observed(),
            on_request=self._answer,
            tls=tls,
        )
        sock: Any = two.listener(machine)

        async def begin() -> None:
            await self.links.start(sock, self)
            self.links.set_nodes({other.name: f"{other.address}:{PORT}"})

        two.call(machine, begin())

    async def _answer(self, node: str, method: str, body: bytes) -> bytes:
        return body + body

    def received(self, node: str, deliveries: Any) -> None:
        """See LinkListener."""

    def link_changed(self, node: str, up: bool) -> None:
        """See LinkListener."""
        self.changes.append(up)

    def stream_wanted(self, node: str) -> None:
        """See LinkListener."""

    def ask(self, node: str, body: bytes) -> bytes:
        """A request to another node."""
        answer: bytes = self._two.call(self.machine, self.links.request(node, "twice", body, timeout_ms=2000))
        return answer


@pytest.mark.parametrize("secured", [False, True])
def test_links_of_a_cluster(folder: CertificateFolder, secured: bool) -> None:
    """The product's links between nodes connect in both directions, carry requests of a megabyte, notice a cut within
    the time that they are given, and connect again after it; with TLS, too."""
    two = Two()
    nodes = [
        LinkedNode(two, one, other, folder.link(one.name) if secured else None)
        for one, other in ((two.a, two.b), (two.b, two.a))
    ]
    two.until(lambda: all(node.changes == [True] for node in nodes), 10)
    body = chance_bytes(two, 1 << 20)
    assert nodes[0].ask("b", body) == body + body
    two.network.cut(two.a, two.b)
    two.wait(5)
    assert [node.changes[-1] for node in nodes] == [False, False]
    two.network.heal()
    two.wait(5)
    assert [node.changes[-1] for node in nodes] == [True, True]
    assert nodes[1].ask("a", b"x") == b"xx"
    for node in nodes:
        two.call(node.machine, node.links.stop())
    assert not two.network.connections()


def serve_tls(two: Two, folder: CertificateFolder, **options: Any) -> TlsServer:
    """Serve HTTP with the product's TLS server on `b`."""
    sock: Any = two.listener(two.b)
    contexts = server_contexts(folder.files("b"), ssl.CERT_NONE)

    async def begin() -> TlsServer:
        server = TlsServer("test", sock, lambda: Answers(bytes(100_000)), contexts.current, **options)
        server.start()
        return server

    started: TlsServer = two.call(two.b, begin())
    return started


def peer_access(folder: CertificateFolder) -> PeerCredentials:
    """Checks that the peer is of cluster c."""
    return PeerCredentials(lambda: folder.client(), cluster="c")


def test_tls_of_asyncio(folder: CertificateFolder) -> None:
    """The product's TLS server and its asyncio HTTP client do their handshake and exchange, pieces cut anywhere; a
    client that says nothing is dropped after the time for a handshake, one without TLS gets the hint."""
    two = Two()
    server = serve_tls(two, folder, hint=b"speak TLS")

    async def ask() -> int:
        peer = AsyncHttpPeer(f"https://{two.b.address}:{PORT}", peer_access(folder))
        try:
            return len(await peer.post("/x", b"q", media_type="a/b", timeout_ms=5000, limit_bytes=1 << 20))
        finally:
            peer.abort()

    assert two.call(two.a, ask()) == 100_000
    _, silent = two.call(two.a, two.a.loop.create_connection(Recorder, two.b.address, PORT))
    _, plain = two.call(two.a, two.a.loop.create_connection(Recorder, two.b.address, PORT))
    plain.transport.write(b"GET / HTTP/1.1\r\n\r\n")
    two.wait(1)
    assert (plain.data, plain.lost) == (b"speak TLS", [None])
    assert not silent.lost
    two.wait(HANDSHAKE_TIMEOUT_S)
    assert silent.lost == [None]
    assert server.refused == {"plaintext": 1, "timeout": 1}


def test_an_aborted_blocking_client_ends_at_once() -> None:
    """abort() of the product's blocking HTTP client ends a request that waits in another thread."""
    two = Two()
    two.serve(two.b, lambda: Answers(silent=True))
    peers: list[HttpPeer] = []

    def ask() -> None:
        peers.append(HttpPeer(f"http://{two.b.address}:{PORT}", 1))
        peers[0].post("/x", b"q", media_type="a/b", timeout_ms=50_000, limit_bytes=100)

    with libraries_in_the_world():
        asking = two.blocked(two.a, ask)
        two.wait(2)
        assert not asking
        two.block(two.a, peers[0].abort)
        two.wait(0.1)
        assert isinstance(asking[0], PeerFault)


def test_tls_of_blocking_clients(folder: CertificateFolder) -> None:
    """The product's blocking HTTP client exchanges over TLS in a greenlet, and a peer of another cluster is refused."""
    two = Two()
    serve_tls(two, folder)

    def ask(cluster: str) -> int:
        access = PeerCredentials(lambda: folder.client(), cluster=cluster)
        peer = HttpPeer(f"https://{two.b.address}:{PORT}", 1, access)
        return sum(len(peer.post("/x", b"q", media_type="a/b", timeout_ms=5000, limit_bytes=1 << 20)) for _ in range(2))

    with libraries_in_the_world():
        assert two.block(two.a, lambda: ask("c")) == 200_000
        with pytest.raises(PeerFault, match="its certificate must name"):
            two.block(two.a, lambda: ask("other"))


@pytest.mark.timing
def test_a_request_is_cheap() -> None:
    """A request and its answer over an open connection take at most 8 events of the kernel, and 100 microseconds of
    CPU."""
    two = Two()
    two.serve(two.b, Echo)

    class Asking(Recorder):
        def data_received(self, data: bytes) -> None:
            self.story.append("answer")
            if len(self.story) < 5_000:
                self.transport.write(b"question")

    _, client = two.call(two.a, two.a.loop.create_connection(Asking, two.b.address, PORT))
    events = two.kernel.events_run
    began_s = time.process_time()
    client.transport.write(b"question")
    two.until(lambda: len(client.story) >= 5_000, 1_000)
    assert time.process_time() - began_s < 5_000 * 100e-6
    assert two.kernel.events_run - events < 5_000 * 8
