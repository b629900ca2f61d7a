"""Fixtures of the HTTP tests: a cluster in memory, a caller at ASGI level, a real server on loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import uvloop
from numpy.typing import NDArray

from isthmus.aae.folds.folds import FoldRequest, Page
from isthmus.aae.riak_trees.cluster import UnknownNVal
from isthmus.config.settings import Address, LimitSettings, ListenSettings
from isthmus.node.client_api.application import ClientApi, ClientPorts
from isthmus.node.client_api.cluster_routes import add_cluster_routes
from isthmus.node.http.application import AccessControl
from isthmus.node.http.durations import RequestDurations
from isthmus.node.http.listener import Listener
from isthmus.queues.long_poll import Until
from isthmus.queues.wire import FetchReply, FetchRequest, ObjectReply, ObjectRequest, UnknownQueue
from isthmus.repl.model.conditions import ConditionState, judge_write, object_tag
from isthmus.repl.model.errors import BadInput, IsthmusError, Overloaded
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Object, decode_object, encode_object, merge, write
from isthmus.repl.model.requests import (
    ForwardedRead,
    Isolation,
    PendingRead,
    PushItem,
    PushOutcome,
    PushResult,
    WriteRequest,
    WriteResult,
)
from isthmus.repl.model.vclock import actor_of, encode_clock, pack_counter
from tests.support.log_watch import captured
from tests.support.node_status import FakeNodeStatus
from tests.support.open_access import EVERYBODY
from tests.support.waiting import PATIENCE_S, eventually

ACTOR = actor_of(b"\x01" * 16, 0)
NOW_MS = 1_700_000_000_000


class FakeAddresses:
    """Nodes serve clients at NAME.example:8098, except `hidden`."""

    def address(self, node: str) -> str:
        return "" if node == "hidden" else f"{node}.example:8098"


class FakeRoutes:
    """The answer to GET /cluster/routes; a client takes the first one for that of another version."""

    def __init__(self) -> None:
        self.tag, self.body = "one", b'{"v":0}'

    def current(self) -> tuple[str, bytes]:
        return self.tag, self.body


class NoSuchType(BadInput):
    """Raised for a missing bucket type, as by the coordinator."""

    reason = "unknown-bucket-type"


class MemoryCluster:
    """`KeyValue` over a dict: a write is durable at once. `fail` makes calls raise; `gate` holds writes; `unapplied`
    has the results of uncommitted reads; without `returns` written objects are not returned, as large ones from another
    node; with `reads_wait` no read is answered at once."""

    def __init__(self) -> None:
        self.objects: dict[Key, bytes] = {}
        self.offset = 0
        self.fail: IsthmusError | Exception | None = None
        self.gate: asyncio.Event | None = None
        self.writes = 0
        self.requests: set[tuple[Key, bytes]] = set()
        self.isolations: list[Isolation | None] = []
        self.unapplied: dict[Key, bytes] = {}
        self.returns = True
        self.reads_wait = False
        self.leader = ""
        """The node that all requests are forwarded to."""
        self.listing_batch = 2
        self.listing_fails_after: int | None = None
        self.listings_open = 0

    def object(self, bucket: bytes, key: bytes) -> Object | None:
        """The object stored under a key of the default type."""
        payload = self.objects.get(Key(b"default", bucket, key))
        return None if payload is None else decode_object(payload)

    def _check(self, bucket_type: bytes) -> None:
        if self.fail is not None:
            raise self.fail
        if bucket_type != b"default":
            raise NoSuchType(f"bucket type {bucket_type!r} does not exist")

    async def get(self, key: Key, isolation: Isolation | None = None) -> bytes | None:
        return self._get(key, isolation)

    def _get(self, key: Key, isolation: Isolation | None) -> bytes | None:
        self._check(key.bucket_type)
        self.isolations.append(isolation)
        if isolation is Isolation.UNCOMMITTED and key in self.unapplied:
            return self.unapplied[key]
        return self.objects.get(key)

    async def read(self, key: Key, isolation: Isolation | None = None) -> bytes | ForwardedRead | None:
        payload = await self.get(key, isolation)
        return ForwardedRead(payload, self.leader) if self.leader else payload

    def start_read(self, key: Key, isolation: Isolation | None = None) -> bytes | PendingRead | None:
        return self.read(key, isolation) if self.leader or self.reads_wait else self._get(key, isolation)

    async def get_batch(
        self, keys: Sequence[Key], isolation: Isolation | None, room_bytes: int
    ) -> list[bytes | IsthmusError | None]:
        answers: list[bytes | IsthmusError | None] = []
        for key in keys:
            try:
                if room_bytes <= 0:
                    raise Overloaded("the answer is full")
                payload = await self.get(key, isolation)
                room_bytes -= len(payload or b"")
                answers.append(payload)
            except IsthmusError as error:
                answers.append(error)
        return answers

    async def write(self, request: WriteRequest) -> WriteResult:
        written = await self._write(request)
        return written._replace(leader=self.leader)

    def start_write(self, request: WriteRequest) -> asyncio.Future[list[object]]:
        return asyncio.ensure_future(self._result(request))

    async def _result(self, request: WriteRequest) -> list[object]:
        try:
            return [await self.write(request)]
        except IsthmusError as error:
            return [error]

    async def finish_write(self, request: WriteRequest, results: list[object]) -> WriteResult:
        del request
        (result,) = results
        if isinstance(result, IsthmusError):
            raise result
        assert isinstance(result, WriteResult)
        return result

    async def _write(self, request: WriteRequest) -> WriteResult:
        self._check(request.key.bucket_type)
        if self.gate is not None:
            await self.gate.wait()
        found = self.objects.get(request.key)
        current = None if found is None else decode_object(found)
        if request.request_id and (request.key, request.request_id) in self.requests:
            if current is None:
                return WriteResult(b"", b"", 0, repeated=True)
            payload = found if found and request.payload_wanted else b""
            return WriteResult(payload, encode_clock(current.clock), len(current.siblings), repeated=True)
        if request.condition is not None:
            failed = judge_write(request.condition, _condition_state(current))
            if failed is not None:
                raise failed
        self.requests.add((request.key, request.request_id))
        self.writes += 1
        context = request.context or ()
        if not context and current is not None and request.condition is not None and request.condition.names_version:
            context = current.clock
        if request.content.tombstone:
            if current is None or current.deleted:
                clock = b"" if current is None else encode_clock(current.clock)
                return WriteResult(b"", clock, 0, created=False)
            context = context or current.clock
        self.offset += 1
        obj = write(current, context, request.content, (ACTOR, pack_counter(1, self.offset)), NOW_MS)
        payload = encode_object(obj)
        self.objects[request.key] = payload
        return WriteResult(payload if self.returns else b"", encode_clock(obj.clock), len(obj.siblings))

    async def write_batch(self, requests: Sequence[WriteRequest]) -> list[WriteResult | IsthmusError]:
        answers: list[WriteResult | IsthmusError] = []
        for request in requests:
            try:
                answers.append(await self.write(request))
            except IsthmusError as error:
                answers.append(error)
        return answers

    async def push(self, items: Sequence[PushItem]) -> list[PushResult]:
        for item in items:
            found = self.objects.get(item.key)
            theirs = decode_object(item.payload)
            mine = theirs if found is None else merge(decode_object(found), theirs)
            self.objects[item.key] = encode_object(mine)
        return [PushResult(PushOutcome.APPLIED)] * len(items)

    async def _batches(self, names: list[bytes]) -> AsyncIterator[list[bytes]]:
        self.listings_open += 1
        try:
            for count, start in enumerate(range(0, len(names), self.listing_batch)):
                if self.listing_fails_after is not None and count >= self.listing_fails_after:
                    raise self.fail or AssertionError("listing fails without an error")
                yield names[start : start + self.listing_batch]
                await asyncio.sleep(0)
        finally:
            self.listings_open -= 1

    async def list_keys(self, bucket_type: bytes, bucket: bytes) -> AsyncIterator[list[bytes]]:
        if self.listing_fails_after is None:
            self._check(bucket_type)
        names = sorted(k.key for k, v in self.objects.items() if k.bucket == bucket and not decode_object(v).deleted)
        async for batch in self._batches(names):
            yield batch

    async def list_buckets(self, bucket_type: bytes) -> AsyncIterator[list[bytes]]:
        self._check(bucket_type)
        names = sorted({k.bucket for k, v in self.objects.items() if not decode_object(v).deleted})
        async for batch in self._batches(names):
            yield batch

    async def list_in_order(
        self, bucket_type: bytes, bucket: bytes | None, prefix: bytes, after: bytes, wanted: int | None
    ) -> AsyncIterator[list[bytes]]:
        self._check(bucket_type)
        live = [k for k, v in self.objects.items() if k.bucket_type == bucket_type and not decode_object(v).deleted]
        names = sorted({k.bucket if bucket is None else k.key for k in live if bucket in (None, k.bucket)})
        found = [name for name in names if name.startswith(prefix) and name > after]
        async for batch in self._batches(found[:wanted]):
            yield batch


def _condition_state(current: Object | None) -> ConditionState:
    if current is None or current.deleted:
        return ConditionState(False, "", 0, () if current is None else current.clock)
    newest_ms = max(s.last_modified_ms for s in current.siblings)
    return ConditionState(
        True, object_tag(encode_clock(current.clock), current.siblings), newest_ms // 1000, current.clock
    )


class MemoryQueue:
    """The source side as the HTTP layer sees it: one queue, `q`, that answers when `give` is set."""

    def __init__(self) -> None:
        self.give: asyncio.Event | None = None
        self.asked: list[FetchRequest] = []
        self.cancelled = 0

    async def fetch(self, queue: str, request: FetchRequest, until: Until) -> FetchReply:
        if queue != "q":
            raise UnknownQueue(f"no queue {queue!r} here")
        self.asked.append(request)
        if self.give is not None:
            given: asyncio.Future[None] = asyncio.ensure_future(self.give.wait())  # type: ignore[arg-type]
            try:
                await until(given)
            except IsthmusError:
                self.cancelled += 1
                raise
        return FetchReply(b"\x02" * 16, "east", 3, b"", 30_000, NOW_MS, "serving", ())

    async def push(self, name: str, keys: Sequence[Key], priority: int, wait_ms: int) -> int:
        if name != "q":
            raise UnknownQueue(f"no queue {name!r} here")
        return len(keys)

    def link(self, name: str) -> dict[str, Any]:
        raise AssertionError("no sink asks before it fetches here")

    async def object_of(self, name: str, wanted: ObjectRequest) -> ObjectReply:
        if name != "q":
            raise UnknownQueue(f"no queue {name!r} here")
        return ObjectReply(b"\x02" * 16, "east", wanted.key.key)

    async def lengths(self, name: str) -> tuple[int, int, int | None]:
        assert name == "q"
        return 0, 0, None


class FixedTime:
    """A time source that is fixed at one minute after everything was written."""

    def now_ms(self) -> int:
        return 1_000

    def wall_ms(self) -> int:
        return NOW_MS + 60_000


class FakeRiakInfo:
    """The Riak information of a cluster of one node."""

    def stats(self) -> dict[str, object]:
        return {"nodename": "n1", "ring_members": ["n1"]}

    def preflist(self, key: Key) -> list[dict[str, object]]:
        if key.bucket_type != b"default":
            raise NoSuchType(f"bucket type {key.bucket_type!r} does not exist")
        return [{"partition": 0, "node": "n1", "primary": True}]


class FakeFolds:
    """Folds over two partitions of two bucket types. `pages` are the answers in turn, or errors; then empty pages."""

    def __init__(self) -> None:
        self.pages: list[Page | IsthmusError] = []
        self.asked: list[tuple[int, FoldRequest]] = []
        self.give: asyncio.Event | None = None

    def bucket_types(self) -> list[bytes]:
        return [b"default", b"t"]

    def partitions(self, bucket_type: bytes) -> list[int]:
        found = {b"default": [0, 1], b"t": [2, 3]}.get(bucket_type)
        if found is None:
            raise NoSuchType(f"bucket type {bucket_type!r} does not exist")
        return found

    async def page(self, partition: int, request: FoldRequest) -> Page:
        self.asked.append((partition, request))
        await asyncio.sleep(0)
        if self.give is not None:
            await self.give.wait()
        page = self.pages.pop(0) if self.pages else Page()
        if isinstance(page, IsthmusError):
            raise page
        return page


class FakeRiakTrees:
    """Riak's tree of n_val 3, of both bucket types; `give` holds answers back."""

    def __init__(self) -> None:
        self.leaves = np.zeros((4096, 256), np.uint32)
        self.give: asyncio.Event | None = None

    def types_of(self, n_val: int) -> list[bytes]:
        if n_val != 3:
            raise UnknownNVal(f"no [[riak.trees]] in this node's file has n_val {n_val}: it has n_val 3")
        return [b"default", b"t"]

    async def root(self, n_val: int) -> NDArray[np.uint32]:
        self.types_of(n_val)
        if self.give is not None:
            await self.give.wait()
        found: NDArray[np.uint32] = np.bitwise_xor.reduce(self.leaves, axis=1)
        return found

    async def branches(self, n_val: int, branches: Sequence[int]) -> NDArray[np.uint32]:
        self.types_of(n_val)
        return self.leaves[list(branches)]


@dataclass
class Answer:
    """A response of an application."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes] = field(default_factory=list)

    @property
    def reason(self) -> str | None:
        return self.headers.get("x-isthmus-reason")


async def ask(
    app: Any,
    method: str,
    target: str,
    body: bytes | Sequence[bytes] = b"",
    headers: dict[str, str] | None = None,
    *,
    cut: bool = False,
) -> Answer | None:
    """Call an ASGI application as a server would. `cut` ends the body by a disconnect; None: nothing was answered."""
    path, _, query = target.partition("?")
    pieces = [body] if isinstance(body, bytes) else list(body)
    given = {k.lower(): v for k, v in (headers or {}).items()}
    if isinstance(body, bytes) and body and "content-length" not in given:
        given["content-length"] = str(len(body))
    incoming = [{"type": "http.request", "body": p, "more_body": True} for p in pieces]
    if not cut:
        incoming[-1]["more_body"] = False
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if incoming:
            return incoming.pop(0)
        if not cut:
            await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "raw_path": path.encode("latin-1"),
        "query_string": query.encode("latin-1"),
        "headers": [(k.encode(), v.encode("latin-1")) for k, v in given.items()],
    }
    await app(scope, receive, send)
    if not sent:
        return None
    start, *rest = sent
    assert start["type"] == "http.response.start"
    assert all(m["type"] == "http.response.body" for m in rest)
    assert not rest[-1].get("more_body", False)
    assert all(m.get("more_body", False) for m in rest[:-1])
    shown = {k.decode().lower(): v.decode("latin-1") for k, v in start["headers"]}
    chunks = [m.get("body", b"") for m in rest]
    return Answer(start["status"], shown, b"".join(chunks), chunks)


@dataclass
class ClientApiFixture:
    """A client API over a cluster in memory. `call` runs one request in a loop of its own."""

    kv: MemoryCluster
    queue: MemoryQueue
    folds: FakeFolds
    riak_trees: FakeRiakTrees
    app: ClientApi
    status: FakeNodeStatus
    routes: FakeRoutes

    def call(self, method: str, target: str, body: Any = b"", headers: dict[str, str] | None = None) -> Answer:
        answer = asyncio.run(ask(self.app, method, target, body, headers))
        assert answer is not None
        return answer

    def put(self, target: str, value: bytes, vclock: str | None = None, **headers: str) -> Answer:
        given = {"content-type": "text/plain"} | {k.replace("_", "-"): v for k, v in headers.items()}
        if vclock is not None:
            given["x-riak-vclock"] = vclock
        return self.call("PUT", target, value, given)


def make_client_api(limits: LimitSettings | None = None, access: AccessControl = EVERYBODY) -> ClientApiFixture:
    kv, queue, status = MemoryCluster(), MemoryQueue(), FakeNodeStatus()
    folds, riak_trees = FakeFolds(), FakeRiakTrees()
    app = ClientApi(
        ClientPorts(kv, queue, queue, FakeRiakInfo(), folds, riak_trees, status, FixedTime(), FakeAddresses()),
        limits or LimitSettings(),
        access=access,
        durations=RequestDurations(),
    )
    routes = FakeRoutes()
    add_cluster_routes(app, routes)
    return ClientApiFixture(kv, queue, folds, riak_trees, app, status, routes)


@pytest.fixture
def client_api() -> ClientApiFixture:
    return make_client_api()


@pytest.fixture(scope="session")
def client_api_with() -> Callable[..., ClientApiFixture]:
    """A client API with other limits: client_api_with(object_bytes=10)."""
    return lambda **limits: make_client_api(LimitSettings(**limits))


@pytest.fixture
def send_request() -> Callable[..., Any]:
    return ask


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[Any]]:
    """The events that the client API logs, instead of printing them."""
    with captured() as events:
        yield events


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., Any]:
    return eventually


class ServedApp:
    """A listener in a thread of its own with a uvloop loop."""

    def __init__(self, app: Any, settings: ListenSettings) -> None:
        self._app = app
        self._settings = settings
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._up.wait(PATIENCE_S)

    def _run(self) -> None:
        uvloop.run(self._main())

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self.listener = Listener("http", self._settings.http, self._settings)
        await self.listener.start(self._app)
        self.port = int(self.listener.url.rsplit(":", 1)[1])
        self._up.set()
        await self._end.wait()
        await self.listener.stop(0.2)

    def call(self, function: Callable[[], Any]) -> Any:
        """Run `function` on the server's loop and give its result."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE_S)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds on the server's loop."""
        asyncio.run_coroutine_threadsafe(eventually(condition), self.loop).result(2 * PATIENCE_S)

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def exchange(self, raw: bytes, *, half_close: bool = False) -> bytes:
        """Send raw bytes on a new connection and read until the server closes it."""
        with self.connect() as sock:
            sock.sendall(raw)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
            return read_all(sock)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def read_all(sock: socket.socket) -> bytes:
    pieces = []
    while True:
        try:
            piece = sock.recv(1 << 16)
        except ConnectionResetError:
            break
        if not piece:
            break
        pieces.append(piece)
    return b"".join(pieces)


@pytest.fixture
def serve() -> Iterator[Callable[..., ServedApp]]:
    """serve(app, connections_limit=2): an application behind a real listener on loopback."""
    running: list[ServedApp] = []

    def start(app: Any, **settings: Any) -> ServedApp:
        served = ServedApp(app, ListenSettings(http=Address("127.0.0.1", 0), **settings))
        running.append(served)
        return served

    yield start
    for served in running:
        served.stop()


@pytest.fixture
def server(client_api: ClientApiFixture, serve: Callable[..., ServedApp]) -> ServedApp:
    """The client API behind a real listener."""
    return serve(client_api.app)
