"""The source of load of the benchmarks: what it sends, what it counts, and that it never makes siblings."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgpack
import pytest

from bench.figures import CpuTime, Figure, Target
from bench.loadgen import Load, Phase, _groups


class Server:
    """Answers in fragments; a write must carry the context that the key's last write returned."""

    def __init__(self) -> None:
        self.clocks: dict[bytes, bytes] = {}
        self.stale: list[bytes] = []
        self.refuse = False

    def write(self, key: bytes, clock: bytes | None) -> bytes:
        if self.clocks.get(key) != clock:
            self.stale.append(key)
        self.clocks[key] = b"%d" % (int(clock or b"0") + 1)
        return self.clocks[key]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.split(b"\r\n")
                method, path, _ = lines[0].split(b" ")
                headers = dict(line.split(b": ", 1) for line in lines[1:] if line)
                body = await reader.readexactly(int(headers.get(b"Content-Length", b"0")))
                answer = self.answer(method, path, headers, body)
                for start in range(0, len(answer), 37):
                    writer.write(answer[start : start + 37])
                    await writer.drain()
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def answer(self, method: bytes, path: bytes, headers: dict[bytes, bytes], body: bytes) -> bytes:
        if self.refuse:
            return b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy"
        if method == b"GET":
            return b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + bytes(1000)
        if path == b"/batch/put":
            answers = [(204, self.write(item[2], item[5]), None) for item in msgpack.unpackb(body)]
            packed = msgpack.packb(answers)
            return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(packed), packed)
        context = headers.get(b"X-Riak-Vclock")
        clock = self.write(path.rpartition(b"/")[2], b64decode(context) if context else None)
        return b"HTTP/1.1 204 No Content\r\nx-riak-vclock: %b\r\n\r\n" % b64encode(clock)


@asynccontextmanager
async def running_server() -> AsyncIterator[tuple[Server, Load]]:
    """A server, and a load for it."""
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    async with listener:
        yield server, Load(f"http://{host}:{port}")


async def test_overwrites_carry_the_last_context_and_all_is_counted() -> None:
    """Singles and batches over the same keys in random order: every context is the newest, every object counted."""

    async with running_server() as (server, load):
        results = [
            await load.run(Phase("batch", 0, 300, connections=3, batch=40)),
            await load.run(Phase("put", 0, 500, space=300, connections=5)),
            await load.run(Phase("batch", 0, 300, space=300, connections=3, batch=40)),
            await load.run(Phase("get", 0, 100, space=300, connections=5)),
        ]
    assert not server.stale
    assert [result.objects for result in results] == [300, 500, 300, 100]
    assert not any(result.failed for result in results)
    assert sorted(server.clocks) == [b"%016d" % number for number in range(300)]


async def test_refused_requests_are_not_counted_as_done() -> None:
    """A node that refuses has done nothing, and the result says what it answered."""

    async with running_server() as (server, load):
        server.refuse = True
        results = [await load.run(Phase("put", 0, 50, connections=2)), await load.run(Phase("batch", 0, 50, batch=10))]
    assert [(result.objects, result.failed) for result in results] == [(0, {"503": 50}), (0, {"503": 50})]


@pytest.mark.timing
async def test_a_paced_load_keeps_its_rate_and_its_time_limit() -> None:
    """200 a second: no faster, and nothing is begun after the limit."""

    async with running_server() as (_, load):
        result = await load.run(Phase("put", 0, 10_000, connections=4, rate=200, limit_s=0.5))
    assert 20 < result.objects <= 102


@pytest.mark.parametrize("space", [0, 70, 100])
def test_no_key_is_twice_in_one_round(space: int) -> None:
    """Random order visits every key of the space once before any a second time; sequential order each once."""
    groups = list(_groups(Phase("batch", 5, 100, space=space, batch=7)))
    numbers = [number for group in groups for number in group]
    assert len(numbers) == 100
    assert set(numbers[: space or 100]) == set(range(5, 5 + (space or 100)))


def test_a_figure_states_cost_and_verdict() -> None:
    """CPU seconds are scaled to 100,000 objects and a target is compared from its own side."""
    figure = Figure(
        "w", "k", 50_000, 10.0, {"node": CpuTime(2.0, 1.0)}, target=Target(6, "s", at_least=False), measured=6.0
    )
    shown = figure.to_json()
    assert shown["rate_per_s"] == 5_000
    assert shown["cpu_per_100k"]["node"] == {"total": 6.0, "user": 4.0, "system": 2.0}
    assert shown["reached"]
    assert not Target(6, "s", at_least=False).reached(6.1)
    assert not Target(6, "s").reached(5.9)
