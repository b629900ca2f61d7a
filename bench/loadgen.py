"""Load generator with a low cost per request: a process that speaks HTTP on asyncio protocols.

Run as `python -m bench.loadgen URL[,URL...] [CA TOKEN_FILE]`; the last two are for clusters with TLS and tokens. The
process reads one `Phase` as JSON per line of standard input, and prints its `Result` as JSON. It keeps the causal
context of every key that it wrote, so that later phases overwrite without creating siblings. It measures rates and
latencies of the client; `bench.nodes` measures the cost of the servers. It depends on the HTTP formats of the product,
and on the routes as clients read them (`repl.http.routes`). `bench.etcd_load` and `bench.nats_load` run the same phases
on other systems.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import resource
import ssl
import sys
import time
from array import array
from binascii import a2b_base64, b2a_base64
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

import msgpack
import uvloop

from isthmus.repl.http.routes import PATH, ROUTES_BYTES_MAX, Routes, parse_routes
from isthmus.repl.model.errors import CodecError

VALUE_BYTES: Final = 1_000
"""1 KB, the object size of all figures. The bytes are random, so that compression has no effect."""

VALUE_POOL_COUNT: Final = 512
"""Number of different values. Generating one per request would cost more than sending it."""

VALUE_POOL_BYTES: Final = 64_000_000
"""Memory for values; of values larger than 1 KB there are fewer. The bytes within one are random all the same."""

TICK_S: Final = 0.001
"""Interval at which a paced load sends the due requests; it adds at most this to a latency."""

SPREAD: Final = "spread"
"""Each client has one connection, to one node in turn, and sends all its requests there."""
LEADER: Final = "leader"
"""Each client has a connection to every node, and sends each request to the leader of its key by the routes."""

ROUTES_TIMEOUT_S: Final = 5.0
REFRESH_S: Final = 1.0
"""Shortest time between two requests for the routes, after a node has refused a request or closed a connection."""

RESPONSE_TIMEOUT_S: Final = 60.0
"""Time limit for the last responses of a phase, longer than a server keeps a request. After it the objects of missing
responses count as failed, with the status `NO_RESPONSE`."""

FILES_COUNT: Final = 8_192
"""Open files of a load generator, if the system permits as many. 512 clients of LEADER have 1,536 connections to three
nodes; the usual limit is 1,024."""

NO_RESPONSE: Final = "no response"
LOST: Final = "lost"
"""Status of the objects of a request whose connection broke before the response."""

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
    """SPREAD or LEADER. Clients of other systems are always SPREAD."""
    value_bytes: int = VALUE_BYTES
    """Size of the values that are written. Other systems get VALUE_BYTES."""


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
    """Objects that were not written or read, by HTTP status, `LOST` or `NO_RESPONSE`."""
    forwarded: int = 0
    """Requests whose response named another node as the leader."""


class Generator(Protocol):
    """Runs phases of load on a system."""

    async def run(self, phase: Phase) -> Result:
        """Run a phase and return its result. Raises ConnectionError when a client has lost its last connection."""
        ...


class Client(Protocol):
    """One client of a system, with at most one request in progress."""

    numbers: list[int]
    """Key numbers of the request in progress."""
    sent_s: float
    """When that request was sent, or due."""

    def send(self, numbers: list[int], sent_s: float) -> None:
        """Send the request for these keys and store both arguments. The response goes to `Runner.on_response`."""
        ...


def value_pool(value_bytes: int = VALUE_BYTES) -> list[bytes]:
    """The values that every generator writes, the same in every run."""
    pool = random.Random(0)
    count = max(1, min(VALUE_POOL_COUNT, VALUE_POOL_BYTES // max(1, value_bytes)))
    return [pool.randbytes(value_bytes) for _ in range(count)]


class Load:
    """Load against the nodes at `urls`, separated by commas; keeps the causal context of each key over all phases."""

    def __init__(self, urls: str, authority: str = "", token_file: str = "") -> None:
        self._addresses = [urlsplit(url).netloc for url in urls.split(",")]
        self.routes = Routes()
        self._tls = ssl.create_default_context(cafile=authority) if authority else None
        self._clocks: dict[int, bytes] = {}
        self._values = value_pool()
        host = self._addresses[0].encode()
        if token_file:
            host += b"\r\nAuthorization: Bearer " + Path(token_file).read_bytes().strip()
        self._put_head = b" HTTP/1.1\r\nHost: %b\r\nContent-Type: application/octet-stream\r\n" % host
        self._routes_request = b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (PATH.encode(), host)
        self._get_head = b" HTTP/1.1\r\nHost: %b\r\n\r\n" % host
        self._batch_head = b"POST /batch/put HTTP/1.1\r\nHost: %b\r\nContent-Type: application/msgpack\r\n" % host

    async def run(self, phase: Phase) -> Result:
        """Run a phase and return its result. Raises ConnectionError when a node closes a connection, and its client has
        no other."""
        if phase.value_bytes != len(self._values[0]):
            self._values = value_pool(phase.value_bytes)
        addresses = self._addresses
        groups = None
        if phase.clients == LEADER:
            await self.read_routes()
            addresses = sorted({*addresses, *self.routes.nodes})
            groups = _by_leader(_groups(phase), phase.batch, self) if phase.kind == "batch" else None
        runner = Runner(phase, groups)
        routing = _Routing(self, phase.clients == LEADER)
        clients = [_HttpClient(self, runner, routing, phase) for _ in range(phase.connections)]
        try:
            for number, client in enumerate(clients):
                own = addresses if phase.clients == LEADER else [addresses[number % len(addresses)]]
                for address in own:
                    await self._connect(client, address)
            await runner.run(clients)
        finally:
            routing.close()
            for client in clients:
                client.close()
        result = runner.result()
        result.forwarded = routing.forwarded_count
        return result

    async def _connect(self, client: _HttpClient, address: str) -> None:
        host, port = _host_and_port(address)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: _Connection(client, address), host, port, ssl=self._tls)

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
        value = self._value(number)
        return b"PUT %b%b%bContent-Length: %d\r\n\r\n%b" % (path, self._put_head, context, len(value), value)

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
        return self._values[number % len(self._values)]


class Runner:
    """Runs one phase: keeps every client busy, or sends requests at the rate.

    `groups`: the key numbers of each request; None: those of the phase in order."""

    def __init__(self, phase: Phase, groups: Iterator[list[int]] | None = None) -> None:
        self._phase = phase
        self._groups = _groups(phase) if groups is None else groups
        self._latencies_ms = array("d")
        self._failed: Counter[str] = Counter()
        self._done_count = 0
        self._running = 0
        self._exhausted = asyncio.Event()
        self._idle: deque[Client] = deque()
        self._due: deque[float] = deque()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._started_s = 0.0
        self._ended_s = 0.0

    async def run(self, clients: Sequence[Client]) -> None:
        """Run the phase with these clients. Raises the error that `on_lost` received."""
        self._idle.extend(clients)
        self._started_s = self._ended_s = time.perf_counter()
        limit = asyncio.create_task(self._limit(clients))
        try:
            if self._phase.rate:
                await asyncio.gather(self._pace(), self._done)
            else:
                self._send()
                await self._done
        finally:
            limit.cancel()

    async def _pace(self) -> None:
        """Make requests due at the phase's rate. The latency of a request includes its wait for an idle client."""
        interval_s = (self._phase.batch if self._phase.kind == "batch" else 1) / self._phase.rate
        due_s = self._started_s
        while not self._done.done():
            now_s = time.perf_counter()
            while due_s <= now_s:
                self._due.append(due_s)
                due_s += interval_s
            self._send()
            await asyncio.sleep(TICK_S)

    async def _limit(self, clients: Sequence[Client]) -> None:
        """End the phase `RESPONSE_TIMEOUT_S` after its last request, whether or not all responses have arrived."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._exhausted.wait(), self._phase.limit_s)
        await asyncio.sleep(RESPONSE_TIMEOUT_S)
        if not self._done.done():
            idle = set(map(id, self._idle))
            self._failed[NO_RESPONSE] += sum(len(client.numbers) for client in clients if id(client) not in idle)
            self._exhausted.set()
            self._done.set_result(None)

    def _send(self) -> None:
        paced = self._phase.rate > 0
        while self._idle and not self._exhausted.is_set() and (self._due or not paced):
            numbers = next(self._groups, None)
            if numbers is None or time.perf_counter() - self._started_s > self._phase.limit_s:
                self._exhausted.set()
                break
            client = self._idle.popleft()
            self._running += 1
            client.send(numbers, self._due.popleft() if paced else time.perf_counter())
        if self._exhausted.is_set() and not self._running and not self._done.done():
            self._done.set_result(None)

    def on_response(self, client: Client, failed: Counter[str], received_s: float) -> None:
        """Count the response to a client's request, and send the next one. `failed`: failed objects by status."""
        if self._done.done():
            return
        self._ended_s = received_s
        self._latencies_ms.append((received_s - client.sent_s) * 1000)
        self._failed += failed
        self._done_count += len(client.numbers) - failed.total()
        self._running -= 1
        self._idle.append(client)
        self._send()

    def on_request_lost(self, client: Client) -> None:
        """Count the objects of a request whose connection broke as failed, and send the client's next request."""
        if self._done.done():
            return
        self._failed[LOST] += len(client.numbers)
        self._running -= 1
        self._idle.append(client)
        self._send()

    def on_lost(self, error: Exception) -> None:
        """End the phase with the error of a lost connection."""
        if not self._done.done():
            self._exhausted.set()
            self._done.set_exception(error)

    def result(self) -> Result:
        """Rates and latencies of the phase. Its duration ends with the last response."""
        ordered = sorted(self._latencies_ms)

        def at(share: float) -> float:
            return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3) if ordered else 0.0

        seconds = self._ended_s - self._started_s
        return Result(self._done_count, round(seconds, 3), at(0.5), at(0.99), at(0.999), at(1.0), dict(self._failed))


class _Routing:
    """The leaders to which the clients of one phase send, and the count of forwarded requests.

    Corrects the routes of `load` by the responses, and reads them again after refusals, if the clients are `routed`."""

    def __init__(self, load: Load, routed: bool) -> None:
        self.routed = routed
        self.forwarded_count = 0
        self._load = load
        self._refresh_task: asyncio.Task[None] | None = None
        self._refreshed_s = 0.0

    def leader(self, number: int) -> str | None:
        """The address of the leader of a key; None when the clients send to any node."""
        return self._load.leader(number) if self.routed else None

    def on_response(self, number: int, status: int, head: bytes) -> None:
        """Correct the routes if a response names the leader of the key, and read them again after a refusal."""
        start = head.find(_LEADER_HEADER)
        if start > 0:
            self.forwarded_count += 1
            if self.routed:
                start += len(_LEADER_HEADER)
                self._load.learn(number, head[start : head.index(b"\r\n", start)].decode("ascii"))
        elif self.routed and status == 503:
            self.refresh()

    def refresh(self) -> None:
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
        """Stop reading the routes."""
        if self._refresh_task is not None:
            self._refresh_task.cancel()


class _HttpClient:
    """A client with at most one request in progress, and a connection to one node or several, by address."""

    def __init__(self, load: Load, runner: Runner, routing: _Routing, phase: Phase) -> None:
        self.connections: dict[str, _Connection] = {}
        self.numbers: list[int] = []
        self.sent_s = 0.0
        self._load = load
        self._runner = runner
        self._routing = routing
        self._phase = phase
        self._busy: _Connection | None = None
        """The connection of the request in progress."""

    def send(self, numbers: list[int], sent_s: float) -> None:
        """Send to the leader of the first key; to any node if the leader is unknown or has no connection."""
        self.numbers = numbers
        self.sent_s = sent_s
        address = self._routing.leader(numbers[0])
        found = None if address is None else self.connections.get(address)
        self._busy = found or next(iter(self.connections.values()))
        self._busy.write(self._load.request(self._phase, numbers))

    def on_response(self, received_s: float, status: int, head: bytes, body: bytes) -> None:
        """Handle the response to the request in progress."""
        self._busy = None
        failed = self._load.on_response(self._phase, self.numbers, status, head, body)
        self._routing.on_response(self.numbers[0], status, head)
        self._runner.on_response(self, failed, received_s)

    def on_lost(self, connection: _Connection, error: Exception) -> None:
        """Continue with the connections to other nodes; end the phase if there are none."""
        if self.connections.pop(connection.address, None) is None:
            return  # closed by `close`
        if not self.connections:
            self._runner.on_lost(error)
            return
        self._routing.refresh()
        if self._busy is connection:
            self._busy = None
            self._runner.on_request_lost(self)

    def close(self) -> None:
        """Close all connections."""
        connections, self.connections = self.connections, {}
        for connection in connections.values():
            connection.close()


_LEADER_HEADER: Final = b"x-isthmus-leader: "


def _host_and_port(address: str) -> tuple[str, int]:
    parts = urlsplit(f"//{address}")
    assert parts.hostname is not None, address
    return parts.hostname, parts.port or 80


class _Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request in progress."""

    def __init__(self, client: _HttpClient, address: str) -> None:
        self.address = address
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._body_at = 0
        self._whole = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is no subclass
        self._client.connections[self.address] = self

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.on_lost(self, exc or ConnectionError("the node closed a connection"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def write(self, data: bytes) -> None:
        assert self._transport is not None
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
        self._client.on_response(time.perf_counter(), int(buffer[9:12]), head, body)


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


def _raise_file_limit() -> None:
    """Raise the limit of open files to FILES_COUNT, or as far as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_COUNT if hard == resource.RLIM_INFINITY else min(FILES_COUNT, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def serve(generator: Generator) -> None:
    """Run the phases on standard input, one JSON object per line, until it ends; print each result."""
    _raise_file_limit()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            answer: dict[str, Any] = asdict(await generator.run(Phase(**json.loads(line))))
        except OSError as error:
            answer = {"error": str(error) or type(error).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    uvloop.run(serve(Load(*sys.argv[1:])))
