"""Load generator with a low cost per request: a process that speaks HTTP on asyncio protocols.

Run as `python -m bench.loadgen URL[,URL...] [CA TOKEN_FILE]`; the last two are for clusters with TLS and tokens. The
process reads one `Phase` as JSON per line of standard input, and prints its `Result` as JSON. It keeps the causal
context of every key that it wrote, so that later phases overwrite without creating siblings. It measures rates and
latencies of the client; `bench.nodes` measures the cost of the servers. It depends on the HTTP formats of the product,
and on the routes as clients read them (`repl.http.routes`).
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import sys
import time
from array import array
from binascii import a2b_base64, b2a_base64
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import msgpack
import uvloop

from isthmus.repl.http.routes import PATH, ROUTES_BYTES_MAX, Routes, parse_routes
from isthmus.repl.model.errors import CodecError

VALUE_BYTES: Final = 1_000
"""1 KB, the object size of all figures. The bytes are random, so that compression has no effect."""

VALUE_POOL_COUNT: Final = 512
"""Number of different values. Generating one per request would cost more than sending it."""

TICK_S: Final = 0.001
"""Interval at which a paced load sends the due requests; it adds at most this to a latency."""

SPREAD: Final = "spread"
"""Each client has one connection, to one node in turn, and sends all its requests there."""
LEADER: Final = "leader"
"""Each client has a connection to every node, and sends each request to the leader of its key by the routes."""

ROUTES_TIMEOUT_S: Final = 5.0
REFRESH_S: Final = 1.0
"""Shortest time between two requests for the routes, after a node has refused a request or closed a connection."""

BUCKET: Final = b"bench"
BUCKET_TYPE: Final = b"default"


@dataclass(frozen=True)
class Phase:
    """One run of load with fixed parameters."""

    kind: str
    """"put", "get" or "batch" (POST /batch/put)."""
    first: int = 0
    """Number of the first key."""
    count: int = 100_000
    """Objects to write or read."""
    space: int = 0
    """0: the `count` keys from `first` on, in order. Otherwise random keys of the `space` keys from `first` on; no key
    comes twice within `space` consecutive ones."""
    connections: int = 32
    batch: int = 100
    """Objects per request of kind "batch"."""
    rate: float = 0.0
    """Objects per second; 0: as fast as the connections allow."""
    limit_s: float = 120.0
    """Seconds after which no request is started."""
    seed: int = 1
    clients: str = SPREAD
    """SPREAD or LEADER."""


@dataclass
class Result:
    """Rates and latencies at the client. Latencies are per request; in a paced load they start at the due time."""

    objects: int
    seconds: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    failed: dict[str, int]
    """Objects that were not written or read, by HTTP status; `lost`: the connection broke before the response."""
    forwarded: int = 0
    """Requests whose response named another node as the leader."""


class Load:
    """Load against the nodes at `urls`, separated by commas; keeps the causal context of each key over all phases."""

    def __init__(self, urls: str, authority: str = "", token_file: str = "") -> None:
        self._addresses = [urlsplit(url).netloc for url in urls.split(",")]
        self.routes = Routes()
        self._tls = ssl.create_default_context(cafile=authority) if authority else None
        self._clocks: dict[int, bytes] = {}
        pool = random.Random(0)
        self._values = [pool.randbytes(VALUE_BYTES) for _ in range(VALUE_POOL_COUNT)]
        host = self._addresses[0].encode()
        if token_file:
            host += b"\r\nAuthorization: Bearer " + Path(token_file).read_bytes().strip()
        self._put_head = b" HTTP/1.1\r\nHost: %b\r\nContent-Type: application/octet-stream\r\n" % host
        self._put_head += b"Content-Length: %d\r\n" % VALUE_BYTES
        self._routes_request = b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (PATH.encode(), host)
        self._get_head = b" HTTP/1.1\r\nHost: %b\r\n\r\n" % host
        self._batch_head = b"POST /batch/put HTTP/1.1\r\nHost: %b\r\nContent-Type: application/msgpack\r\n" % host

    async def run(self, phase: Phase) -> Result:
        """Run a phase and return its result. Raises ConnectionError when a node closes a connection, and its client has
        no other."""
        runner = _Runner(self, phase)
        addresses = self._addresses
        if phase.clients == LEADER:
            await self.read_routes()
            addresses = sorted({*addresses, *self.routes.nodes})
        clients = [_Client(runner) for _ in range(phase.connections)]
        try:
            for number, client in enumerate(clients):
                own = addresses if phase.clients == LEADER else [addresses[number % len(addresses)]]
                for address in own:
                    await self._connect(client, address)
            await runner.run(clients)
        finally:
            runner.close()
            for client in clients:
                client.close()
        return runner.result()

    async def _connect(self, client: _Client, address: str) -> None:
        host, port = _host_and_port(address)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: _Connection(client, address), host, port, ssl=self._tls)
        client.connections[address] = connection

    async def read_routes(self) -> None:
        """Read the routes from the first node that has them. Raises ConnectionError when none has."""
        why: Exception = ConnectionError("no address")
        for address in self._addresses:
            try:
                async with asyncio.timeout(ROUTES_TIMEOUT_S):
                    reader, writer = await asyncio.open_connection(*_host_and_port(address), ssl=self._tls)
                    try:
                        writer.write(self._routes_request)
                        raw = bytearray()
                        while (piece := await reader.read(65_536)) and len(raw) < ROUTES_BYTES_MAX:
                            raw += piece
                    finally:
                        writer.close()
                self.routes = parse_routes(bytes(raw.partition(b"\r\n\r\n")[2]))
                return
            except (OSError, CodecError) as error:  # a timeout is an OSError
                why = error
        raise ConnectionError(f"no node has routes: {why}")

    def leader(self, number: int) -> str | None:
        """The address of the leader of a key, by the routes."""
        return self.routes.leader(BUCKET_TYPE, BUCKET, b"%016d" % number)

    def learn(self, number: int, address: str) -> None:
        """Correct the routes by the leader that a response named."""
        self.routes.learn(BUCKET_TYPE, BUCKET, b"%016d" % number, address)

    def request(self, phase: Phase, numbers: list[int]) -> bytes:
        """The bytes of one request for the keys with these numbers."""
        if phase.kind == "batch":
            body: bytes = msgpack.packb([self._item(number) for number in numbers])
            return b"%bContent-Length: %d\r\n\r\n%b" % (self._batch_head, len(body), body)
        (number,) = numbers
        path = b"/buckets/%b/keys/%016d" % (BUCKET, number)
        if phase.kind == "get":
            return b"GET " + path + self._get_head
        clock = self._clocks.get(number)
        context = b"" if clock is None else b"X-Riak-Vclock: %b\r\n" % b2a_base64(clock, newline=False)
        return b"PUT %b%b%b\r\n%b" % (path, self._put_head, context, self._value(number))

    def on_response(self, phase: Phase, numbers: list[int], status: int, head: bytes, body: bytes) -> Counter[str]:
        """Store the contexts of a response; returns the number of failed objects by status."""
        failed: Counter[str] = Counter()
        if phase.kind == "batch" and status == 200:
            for number, (item_status, clock, _) in zip(numbers, msgpack.unpackb(body), strict=True):
                if item_status == 204:
                    self._clocks[number] = clock
                else:
                    failed[str(item_status)] += 1
        elif phase.kind == "put" and status == 204:
            start = head.index(b"x-riak-vclock: ") + 15
            self._clocks[numbers[0]] = a2b_base64(head[start : head.index(b"\r\n", start)])
        elif not (phase.kind == "get" and status == 200):
            failed[str(status)] += len(numbers)
        return failed

    def _item(self, number: int) -> tuple[Any, ...]:
        return BUCKET_TYPE, BUCKET, b"%016d" % number, self._value(number), None, self._clocks.get(number)

    def _value(self, number: int) -> bytes:
        return self._values[number % VALUE_POOL_COUNT]


class _Runner:
    """Runs one phase: keeps every connection busy, or sends requests at the rate."""

    def __init__(self, load: Load, phase: Phase) -> None:
        self._load = load
        self._phase = phase
        self._routed = phase.clients == LEADER
        groups = _groups(phase)
        self._groups = _by_leader(groups, phase.batch, load) if self._routed and phase.kind == "batch" else groups
        self._forwarded = 0
        self._refresh_task: asyncio.Task[None] | None = None
        self._refreshed_s = 0.0
        self._latencies_ms = array("d")
        self._failed: Counter[str] = Counter()
        self._done_count = 0
        self._running = 0
        self._exhausted = False
        self._idle: deque[_Client] = deque()
        self._due: deque[float] = deque()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._started_s = 0.0
        self._ended_s = 0.0

    async def run(self, clients: list[_Client]) -> None:
        self._idle.extend(clients)
        self._started_s = time.perf_counter()
        if self._phase.rate:
            await asyncio.gather(self._pace(), self._done)
        else:
            self._send()
            await self._done

    async def _pace(self) -> None:
        """Make requests due at the phase's rate. The latency of a request includes its wait for an idle connection."""
        interval_s = (self._phase.batch if self._phase.kind == "batch" else 1) / self._phase.rate
        due_s = self._started_s
        while not self._done.done():
            now_s = time.perf_counter()
            while due_s <= now_s:
                self._due.append(due_s)
                due_s += interval_s
            self._send()
            await asyncio.sleep(TICK_S)

    def _send(self) -> None:
        paced = self._phase.rate > 0
        while self._idle and not self._exhausted and (self._due or not paced):
            numbers = next(self._groups, None)
            if numbers is None or time.perf_counter() - self._started_s > self._phase.limit_s:
                self._exhausted = True
                break
            client = self._idle.popleft()
            self._running += 1
            connection = client.connection_to(self._load.leader(numbers[0]) if self._routed else None)
            data = self._load.request(self._phase, numbers)
            connection.send(data, numbers, self._due.popleft() if paced else time.perf_counter())
        if self._exhausted and not self._running and not self._done.done():
            self._ended_s = time.perf_counter()
            self._done.set_result(None)

    def on_response(self, connection: _Connection, status: int, head: bytes, body: bytes) -> None:
        self._latencies_ms.append((time.perf_counter() - connection.sent_s) * 1000)
        failed = self._load.on_response(self._phase, connection.numbers, status, head, body)
        self._failed += failed
        self._done_count += len(connection.numbers) - failed.total()
        self._take_leader(connection.numbers[0], status, head)
        connection.numbers = []
        self._running -= 1
        self._idle.append(connection.client)
        self._send()

    def _take_leader(self, number: int, status: int, head: bytes) -> None:
        """Correct the routes if a response names the leader of the key, and read them again after a refusal."""
        start = head.find(_LEADER_HEADER)
        if start > 0:
            self._forwarded += 1
            if self._routed:
                start += len(_LEADER_HEADER)
                self._load.learn(number, head[start : head.index(b"\r\n", start)].decode("ascii"))
        elif self._routed and status == 503:
            self._refresh()

    def on_lost(self, connection: _Connection, error: Exception) -> None:
        """A connection is closed. A client with connections to other nodes goes on without it."""
        if self._done.done():
            return
        client = connection.client
        client.connections.pop(connection.address, None)
        if not self._routed or not client.connections:
            self._done.set_exception(error)
            return
        self._refresh()
        if connection.numbers:
            self._failed["lost"] += len(connection.numbers)
            self._running -= 1
            self._idle.append(client)
            self._send()

    def _refresh(self) -> None:
        """Read the routes again, at most every REFRESH_S."""
        now_s = time.perf_counter()
        if self._refresh_task is None and now_s - self._refreshed_s >= REFRESH_S:
            self._refreshed_s = now_s
            self._refresh_task = asyncio.get_running_loop().create_task(self._read_routes())

    async def _read_routes(self) -> None:
        try:
            await self._load.read_routes()
        except ConnectionError:
            pass  # the old routes stay; any node forwards
        finally:
            self._refresh_task = None

    def close(self) -> None:
        if not self._done.done():
            self._done.cancel()
        if self._refresh_task is not None:
            self._refresh_task.cancel()

    def result(self) -> Result:
        ordered = sorted(self._latencies_ms)

        def at(share: float) -> float:
            return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3) if ordered else 0.0

        seconds = self._ended_s - self._started_s
        return Result(
            self._done_count, round(seconds, 3), at(0.5), at(0.99), at(0.999), at(1.0), dict(self._failed),
            self._forwarded,
        )  # fmt: skip


class _Client:
    """A client with at most one request in progress, and a connection to one node or several, by address."""

    def __init__(self, runner: _Runner) -> None:
        self.runner = runner
        self.connections: dict[str, _Connection] = {}

    def connection_to(self, address: str | None) -> _Connection:
        """The connection to `address`; any other if there is none."""
        found = None if address is None else self.connections.get(address)
        return found or next(iter(self.connections.values()))

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()


_LEADER_HEADER: Final = b"x-isthmus-leader: "


def _host_and_port(address: str) -> tuple[str, int]:
    parts = urlsplit(f"//{address}")
    assert parts.hostname is not None, address
    return parts.hostname, parts.port or 80


class _Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request in progress."""

    def __init__(self, client: _Client, address: str) -> None:
        self.client = client
        self.address = address
        self._runner = client.runner
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._body_at = 0
        self._whole = 0
        self.numbers: list[int] = []
        self.sent_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self._runner.on_lost(self, exc or ConnectionError("the node closed a connection"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def send(self, data: bytes, numbers: list[int], sent_s: float) -> None:
        assert self._transport is not None
        self.numbers = numbers
        self.sent_s = sent_s
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        if not self._body_at:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                self._buffer = buffer
                return
            self._body_at = end + 4
            self._whole = self._body_at + _content_length(buffer[:end])
        if len(buffer) < self._whole:
            self._buffer = buffer
            return
        head, body = buffer[: self._body_at].lower() if buffer[9:12] != b"204" else buffer, buffer[self._body_at :]
        self._buffer, self._body_at = b"", 0
        self._runner.on_response(self, int(buffer[9:12]), head, body)


def _content_length(head: bytes) -> int:
    if head[9:12] == b"204":
        return 0
    start = head.lower().find(b"content-length: ")
    if start < 0:
        raise ConnectionError(f"a response without Content-Length: {head[:80]!r}")
    end = head.find(b"\r\n", start)
    return int(head[start + 16 : end if end > 0 else None])


def _groups(phase: Phase) -> Iterator[list[int]]:
    """The key numbers of each request; each key of `space` comes once per round."""
    size = phase.batch if phase.kind == "batch" else 1
    if not phase.space:
        for start in range(phase.first, phase.first + phase.count, size):
            yield list(range(start, min(start + size, phase.first + phase.count)))
        return
    shuffler = random.Random(phase.seed)
    left = phase.count
    while left > 0:
        taken = min(left, phase.space)
        numbers = shuffler.sample(range(phase.first, phase.first + phase.space), taken)
        for start in range(0, taken, size):
            yield numbers[start : start + size]
        left -= taken


def _by_leader(groups: Iterator[list[int]], size: int, load: Load) -> Iterator[list[int]]:
    """The same key numbers in batches whose keys have one leader, by the routes when a number comes up."""
    waiting: dict[str | None, list[int]] = {}
    for numbers in groups:
        for number in numbers:
            batch = waiting.setdefault(load.leader(number), [])
            batch.append(number)
            if len(batch) == size:
                yield batch.copy()
                batch.clear()
    yield from filter(None, waiting.values())


async def _serve(urls: str, *access: str) -> None:
    load = Load(urls, *access)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            answer: dict[str, Any] = asdict(await load.run(Phase(**json.loads(line))))
        except OSError as error:
            answer = {"error": str(error) or type(error).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
