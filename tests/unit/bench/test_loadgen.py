"""The load generator of the benchmarks: the requests it sends, its counts, and that it never creates siblings."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgpack
import pytest

from bench import loadgen
from bench.figures import CpuTime, Figure, Target
from bench.loadgen import BUCKET, LEADER, Load, Phase, Result, _groups
from isthmus.repl.http.routes import HASH
from isthmus.repl.model.keys import key_hash, partition_index
from tests.support.waiting import PATIENCE_S

CHECKOUT: Final = Path(__file__).parents[3]


class Server:
    """Answers in fragments; a write must carry the context that the key's last write returned."""

    def __init__(self) -> None:
        self.clocks: dict[bytes, bytes] = {}
        self.stale: list[bytes] = []
        self.refuse = False
        self.url = ""
        self.connections = 0
        self.requests = 0
        self.silent_after: int | None = None
        self.bodies: list[bytes] = []

    def write(self, key: bytes, clock: bytes | None) -> bytes:
        if self.clocks.get(key) != clock:
            self.stale.append(key)
        self.clocks[key] = b"%d" % (int(clock or b"0") + 1)
        return self.clocks[key]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.split(b"\r\n")
                method, path, _ = lines[0].split(b" ")
                headers = dict(line.split(b": ", 1) for line in lines[1:] if line)
                body = await reader.readexactly(int(headers.get(b"Content-Length", b"0")))
                self.requests += 1
                self.bodies.append(body)
                if self.silent_after is not None and self.requests > self.silent_after:
                    continue
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
        server.url = f"http://{host}:{port}"
        yield server, Load(server.url)


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


async def test_a_phase_decides_the_size_of_its_values() -> None:
    """1 KB unless it says otherwise; values of one size differ, and few large ones are held in memory."""

    async with running_server() as (server, load):
        await load.run(Phase("put", 0, 20))
        await load.run(Phase("put", 20, 20, value_bytes=30_000))
        await load.run(Phase("put", 40, 20))
    assert [len(body) for body in server.bodies] == [1_000] * 20 + [30_000] * 20 + [1_000] * 20
    assert len(set(server.bodies)) == 60
    assert len(loadgen.value_pool(40_000_000)) == 1


async def test_refused_requests_are_not_counted_as_done() -> None:
    """Refused requests are not counted as objects, and the result counts them by status."""

    async with running_server() as (server, load):
        server.refuse = True
        results = [await load.run(Phase("put", 0, 50, connections=2)), await load.run(Phase("batch", 0, 50, batch=10))]
    assert [(result.objects, result.failed) for result in results] == [(0, {"503": 50}), (0, {"503": 50})]


@pytest.mark.timing
async def test_a_paced_load_keeps_its_rate_and_its_time_limit() -> None:
    """At a rate of 200 a second it is not faster, and nothing is begun after the limit."""

    async with running_server() as (_, load):
        result = await load.run(Phase("put", 0, 10_000, connections=4, rate=200, limit_s=0.5))
    assert 20 < result.objects <= 102


async def test_connections_are_spread_over_the_nodes() -> None:
    """Six connections to three nodes: two to each node, and every object is written once."""
    async with running_server() as (first, _), running_server() as (second, _), running_server() as (third, _):
        servers = (first, second, third)
        load = Load(",".join(server.url for server in servers))
        result = await load.run(Phase("put", 0, 300, connections=6))
    assert (result.objects, result.failed) == (300, {})
    assert [server.connections for server in servers] == [2, 2, 2]
    assert sum(len(server.clocks) for server in servers) == 300
    assert all(server.clocks for server in servers)


async def test_a_phase_ends_although_responses_never_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects without a response some time after the limit count as failed; the wait for them is not part of the
    phase's duration."""
    monkeypatch.setattr(loadgen, "RESPONSE_TIMEOUT_S", 2.0)
    async with running_server() as (server, load):
        server.silent_after = 7
        result = await load.run(Phase("batch", 0, 10_000, connections=4, batch=10, limit_s=0.6))
    assert (result.objects, result.failed) == (70, {loadgen.NO_RESPONSE: 40})
    assert result.seconds < 2.0


async def test_a_connection_that_is_lost_before_the_first_request_ends_the_phase() -> None:
    """A server closes every connection at once, some of them while later ones are opened: the phase raises
    ConnectionError."""

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    listener = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    async with listener:
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(Load(f"http://{host}:{port}").run(Phase("put", 0, 100, connections=20)), PATIENCE_S)


def test_a_load_generator_may_open_many_files() -> None:
    """Its limit is FILES_COUNT, or what the system permits; a higher limit is not lowered."""
    program = "import asyncio, resource; from bench.loadgen import serve; asyncio.run(serve(None)); "
    program += "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = loadgen.FILES_COUNT if hard == resource.RLIM_INFINITY else min(loadgen.FILES_COUNT, hard)
    for limits, expected in (("-Sn 256", wanted), ("-n 512", 512)):
        command = f"ulimit {limits}; exec {sys.executable} -c '{program}'"
        printed = subprocess.run(
            ["sh", "-c", command], cwd=CHECKOUT, input="", capture_output=True, text=True, check=True
        )
        assert int(printed.stdout.split()[0]) == expected


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


PARTITIONS = 6


class RoutedCluster:
    """Servers that share clocks and routes; `leaders[index]` is the server of a partition. A server that does not lead
    a key names the one that does, as a node that forwarded. `cut`: server -> the number of keys after which it closes
    all its connections."""

    def __init__(self, count: int) -> None:
        self.servers = [Server() for _ in range(count)]
        self.addresses: list[str] = []
        self.leaders = [index % count for index in range(PARTITIONS)]
        self.shown = list(self.leaders)
        self.received: list[list[bytes]] = [[] for _ in range(count)]
        self.route_reads = 0
        self.cut: dict[int, int] = {}
        self.connections = [0] * count
        self.writers: list[list[asyncio.StreamWriter]] = [[] for _ in range(count)]
        for server in self.servers[1:]:
            server.clocks = self.servers[0].clocks

    def leader_of(self, key: bytes) -> int:
        return self.leaders[partition_index(key_hash(BUCKET, key), PARTITIONS)]

    def document(self) -> bytes:
        self.route_reads += 1
        nodes = {f"n{n}": address for n, address in enumerate(self.addresses)}
        types = {"default": [f"n{n}" for n in self.shown]}
        raw = {"v": 1, "version": 1, "hash": HASH, "cluster_uuid": "aa", "nodes": nodes, "bucket_types": types}
        return json.dumps(raw).encode()

    def answer(self, number: int, method: bytes, path: bytes, headers: dict[bytes, bytes], body: bytes) -> bytes:
        if path == b"/cluster/routes":
            found = self.document()
            return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(found), found)
        if len(self.received[number]) >= self.cut.get(number, 1_000_000):
            for writer in self.writers[number]:
                writer.close()
            raise ConnectionError
        keys = [path.rpartition(b"/")[2]] if path != b"/batch/put" else [item[2] for item in msgpack.unpackb(body)]
        self.received[number] += keys
        answer = Server.answer(self.servers[number], method, path, headers, body)
        leaders = {self.leader_of(key) for key in keys}
        if leaders == {number} or len(leaders) > 1:
            return answer
        named = b"\r\nx-isthmus-leader: %b\r\n" % self.addresses[leaders.pop()].encode()
        return answer.replace(b"\r\n", named, 1)


def run_routed(
    count: int, urls: int, work: Callable[[RoutedCluster, Load], Awaitable[list[Result]]]
) -> tuple[RoutedCluster, list[Result]]:
    """A load at the first `urls` of `count` servers."""

    async def main() -> tuple[RoutedCluster, list[Result]]:
        cluster = RoutedCluster(count)
        listeners = []
        for number, server in enumerate(cluster.servers):
            server.answer = partial(cluster.answer, number)  # type: ignore[method-assign]

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int = number) -> None:
                cluster.connections[number] += 1
                cluster.writers[number].append(writer)
                await Server.serve(cluster.servers[number], OneAnswer(reader), writer)  # type: ignore[arg-type]

            listeners.append(await asyncio.start_server(serve, "127.0.0.1", 0))
            cluster.addresses.append(f"127.0.0.1:{listeners[-1].sockets[0].getsockname()[1]}")
        try:
            load = Load(",".join(f"http://{address}" for address in cluster.addresses[:urls]))
            return cluster, await work(cluster, load)
        finally:
            for listener in listeners:
                listener.close()

    return asyncio.run(main())


class OneAnswer:
    """A reader that ends after a request for routes, which asks the server to close."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._last = False

    async def readuntil(self, separator: bytes) -> bytes:
        if self._last:
            return b""
        head = await self._reader.readuntil(separator)
        self._last = b"Connection: close" in head
        return head

    async def readexactly(self, count: int) -> bytes:
        return await self._reader.readexactly(count)


def test_spread_clients_are_bound_to_the_nodes_in_turn() -> None:
    """Each client has one connection; every node gets its share of the clients, and most requests are forwarded."""

    async def work(cluster: RoutedCluster, load: Load) -> list[Result]:
        return [await load.run(Phase("put", 0, 300, connections=6))]

    cluster, (result,) = run_routed(3, 3, work)
    assert cluster.connections == [2, 2, 2]
    assert cluster.route_reads == 0
    assert result.objects == 300
    assert all(len(keys) > 50 for keys in cluster.received)
    elsewhere = sum(cluster.leader_of(key) != n for n, keys in enumerate(cluster.received) for key in keys)
    assert result.forwarded == elsewhere > 150


@pytest.mark.parametrize("kind", ["put", "get", "batch"])
def test_clients_that_know_leaders_send_each_key_to_its_leader(kind: str) -> None:
    """From one address they learn all nodes; nothing is forwarded, and batches have the keys of one leader each."""

    async def work(cluster: RoutedCluster, load: Load) -> list[Result]:
        return [await load.run(Phase(kind, 0, 300, space=300, connections=4, batch=40, clients=LEADER))]

    cluster, (result,) = run_routed(3, 1, work)
    assert (result.objects, result.forwarded, result.failed) == (300, 0, {})
    assert all(cluster.leader_of(key) == n for n, keys in enumerate(cluster.received) for key in keys)
    assert sorted(key for keys in cluster.received for key in keys) == [b"%016d" % number for number in range(300)]
    assert cluster.route_reads == 1


def test_an_answer_corrects_the_leader() -> None:
    """With routes that name the wrong leader of every partition, one request of each is forwarded and no other."""

    async def work(cluster: RoutedCluster, load: Load) -> list[Result]:
        cluster.shown = [(leader + 1) % 3 for leader in cluster.leaders]
        return [await load.run(Phase("put", 0, 300, connections=1, clients=LEADER))]

    cluster, (result,) = run_routed(3, 1, work)
    assert (result.objects, result.forwarded, result.failed) == (300, PARTITIONS, {})
    assert cluster.route_reads == 1


def test_a_node_that_hangs_up_is_done_without() -> None:
    """Clients that know leaders lose the request in progress, continue at the other nodes, and read the routes again,
    once a second at most; without any other node, and for spread clients, the phase fails."""

    async def work(cluster: RoutedCluster, load: Load) -> list[Result]:
        cluster.cut[1] = 20
        results = [await load.run(Phase("put", 0, 300, connections=4, clients=LEADER))]
        with pytest.raises(ConnectionError):
            await load.run(Phase("put", 300, 10, connections=2))
        cluster.cut = dict.fromkeys(range(3), 0)
        with pytest.raises(ConnectionError):
            await load.run(Phase("put", 300, 10, connections=2, clients=LEADER))
        return results

    cluster, (result,) = run_routed(3, 2, work)
    assert set(result.failed) == {"lost"}
    assert 1 <= result.failed["lost"] <= 4
    assert result.objects == 300 - result.failed["lost"]
    assert cluster.route_reads <= 4


def test_a_node_that_stays_silent_delays_no_other() -> None:
    """Clients that know leaders wait for one response each; the objects of missing responses count as failed."""

    async def work(cluster: RoutedCluster, load: Load) -> list[Result]:
        cluster.servers[1].silent_after = 20
        return [await load.run(Phase("put", 0, 100_000, connections=4, limit_s=0.6, clients=LEADER))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loadgen, "RESPONSE_TIMEOUT_S", 0.3)
        cluster, (result,) = run_routed(3, 3, work)
    assert result.failed == {loadgen.NO_RESPONSE: 4}
    assert result.objects == sum(map(len, cluster.received))
    assert len(cluster.received[1]) == 20


def test_a_lost_idle_connection_loses_no_request() -> None:
    """A node closes the connections of an idle client: only an object in progress may fail, and later ones go to other
    nodes."""

    async def work(cluster: RoutedCluster, load: Load) -> list[Result]:
        running = asyncio.create_task(load.run(Phase("put", 0, 200, connections=1, rate=400, clients=LEADER)))
        while len(cluster.received[1]) < 5:
            await asyncio.sleep(0.001)
        for writer in cluster.writers[1]:
            writer.close()
        return [await running]

    cluster, (result,) = run_routed(3, 3, work)
    assert result.objects + result.failed.get("lost", 0) == 200
    assert result.failed.get("lost", 0) <= 1
    assert result.forwarded > 0
    assert len(cluster.received[1]) < 50
