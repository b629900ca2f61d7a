"""A source behind HTTP and a cluster behind a sink, in one process: the real source actor, a small server, a fake
cluster.

A test can make the server misbehave (`faults`) and the cluster fail; the cluster records what it stored.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from isthmus.config.settings import PeerSettings, QueueSettings, SinkSettings
from isthmus.queues.wire import decode_asking, decode_request, encode_object_reply, encode_reply
from isthmus.repl.clock_offsets import ClockOffsets
from isthmus.repl.coordinator.routing import UnknownBucketType
from isthmus.repl.model.errors import BadInput, IsthmusError, NotReady, TooLarge
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Object, decode_object, encode_object, merge
from isthmus.repl.model.requests import MergedWith, PushItem, PushOutcome, PushResult
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.model.vclock import encode_clock
from isthmus.sink.conflicts import Conflicts
from isthmus.sink.dead_letters import DeadLetters
from isthmus.sink.service import Sink, SinkPorts
from tests.support.cluster_facts import FakeClusterFacts, OpenPeers
from tests.support.memory_metastore import MemoryMetastore
from tests.support.queue_node import QueueNode
from tests.support.queue_source import SINK
from tests.support.sink_listings import links


class Cluster:
    """The target of a sink's pushes: objects merged by their clocks. `failing` and `rejecting` name keys; `before` runs
    first."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.outcomes: Counter[PushOutcome] = Counter()
        self.failing: dict[bytes, int] = {}
        self.rejecting: set[bytes] = set()
        self.types: set[bytes] | None = None
        """The cluster's bucket types, which it announces; None: it accepts any type and announces none."""
        self.before: Callable[[], object] | None = None
        self.stuck = asyncio.Event()
        self.stuck.set()
        self.pushed = 0

    async def push(self, items: Sequence[PushItem]) -> list[PushResult]:
        if self.before is not None:
            self.before()
        await asyncio.sleep(0)
        await self.stuck.wait()
        self.pushed += len(items)
        results = [self._one(item) for item in items]
        self.outcomes.update(result.outcome for result in results)
        return results

    def _one(self, item: PushItem) -> PushResult:
        name = item.key.key
        if self.failing.get(name, 0):
            self.failing[name] -= 1
            return PushResult(PushOutcome.FAILED, NotReady("election"))
        if self.types is not None and item.key.bucket_type not in self.types:
            return PushResult(PushOutcome.REJECTED, UnknownBucketType("no such bucket type"))
        if name in self.rejecting:
            return PushResult(PushOutcome.REJECTED, TooLarge("over the limit of this cluster"))
        pushed = decode_object(item.payload)
        stored = self.objects.get(item.key)
        merged = pushed if stored is None else merge(stored, pushed)
        if merged == stored:
            return PushResult(PushOutcome.SUPERSEDED)
        self.objects[item.key] = merged
        if stored is None or merged == pushed:
            return PushResult(PushOutcome.APPLIED)
        return PushResult(PushOutcome.MERGED, None, MergedWith(encode_clock(stored.clock), len(merged.siblings)))

    async def get_batch(
        self, keys: Sequence[Key], isolation: object, room_bytes: int, *, waits: bool = True
    ) -> list[bytes | None]:
        found = [self.objects.get(key) for key in keys]
        return [None if one is None else encode_object(one) for one in found]


class SourceListener:
    """The source's HTTP listener. `faults` are taken one a request: "drop" loses the answer after the source made it,
    "cut" sends half of it, "garbage" other bytes, "huge" declares 2^40 bytes, "error" is a 500, digits are that status,
    after the source carried out the request; None answers normally."""

    def __init__(self, source: QueueNode, loop: asyncio.AbstractEventLoop) -> None:
        self.faults: deque[str | None] = deque()
        self.requests = 0
        self.seen: Counter[str] = Counter()
        listener = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                listener.requests += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                fault = listener.faults.popleft() if listener.faults else None
                listener.seen[str(fault)] += 1
                _, _, name, act = self.path.split("/")
                status, reason, answer = 200, "", b""
                try:
                    if act == "object":
                        asked = source.acts.object_of(name, decode_asking(body))
                        answer = encode_object_reply(asyncio.run_coroutine_threadsafe(asked, loop).result(60))
                    else:
                        call = source.queues.fetch(name, decode_request(body))
                        answer = encode_reply(asyncio.run_coroutine_threadsafe(call, loop).result(60))
                except IsthmusError as error:
                    status = 409 if isinstance(error, BadInput) else 503
                    reason, answer = error.reason, str(error).encode()
                except (RuntimeError, asyncio.CancelledError):
                    status = 503
                self.close_connection = fault is not None
                if fault == "drop":
                    return
                if fault == "garbage":
                    answer = b"\x93\x01\x02garbage"
                if fault == "error":
                    status = 500
                if fault is not None and fault.isdigit():
                    status, reason, answer = int(fault), "not-ready", b"later"
                self.send_response(status)
                self.send_header("X-Isthmus-Reason", reason)
                if fault is not None:
                    self.send_header("Connection", "close")
                self.send_header("Content-Length", str(1 << 40 if fault == "huge" else len(answer)))
                self.end_headers()
                self.wfile.write(answer[: len(answer) // 2] if fault == "cut" else answer)

            def log_message(self, format: str, *args: object) -> None:
                """Silent."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                """Clients that go away are part of the game."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class SinkPair:
    """Two clusters: `source` is the source, `cluster` is behind the sinks that `sink()` makes."""

    def __init__(self) -> None:
        self.source = QueueNode(QueueSettings("q"), QueueSettings("r"))
        self.cluster = Cluster()
        self.metastore = MemoryMetastore()
        self.sinks: list[Sink] = []

    async def __aenter__(self) -> SinkPair:
        await self.source.start()
        await self.metastore.start(lambda state: None)
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        self.listener = SourceListener(self.source, asyncio.get_running_loop())
        return self

    async def __aexit__(self, *error: object) -> None:
        self.cluster.stuck.set()
        for sink in self.sinks:
            await sink.stop()
        await self.source.queues.stop()
        await asyncio.get_running_loop().run_in_executor(None, self.listener.close)
        await self.source.close()
        self._folder.cleanup()

    async def sink(
        self,
        *queues: str,
        uuid: bytes = SINK,
        batch_count: int = 512,
        start: bool = True,
        peers: bool = True,
        poll_ms: int = 1_000,
        nodes: Sequence[str] = ("w1", "w2"),
        node_name: str = "w1",
        kv: object = None,
        facts: FakeClusterFacts | None = None,
        **more: Any,
    ) -> Sink:
        """A sink on a node of the other cluster. `kv`: the target of its pushes; the cluster by default."""
        settings = SinkSettings(
            peers=tuple(PeerSettings(self.listener.url, queue) for queue in queues or ("q",) if peers),
            workers=4,
            batch_count=batch_count,
            poll_ms=poll_ms,
            delay_min_ms=2,
            delay_max_ms=50,
            request_timeout_ms=5_000,
            **{"discover": False, **more},
        )
        folder = self.folder if node_name == "w1" else self.folder / node_name
        folder.mkdir(exist_ok=True)
        sink = Sink(
            settings,
            ThisNode(node_name, "west", uuid),
            SinkPorts(
                kv=self.cluster if kv is None else kv,  # type: ignore[arg-type]
                metastore=self.metastore,
                letters=DeadLetters(folder / "letters.sqlite", 3, 1_000),
                conflicts=Conflicts(folder / "conflicts.sqlite", 3),
                credentials=OpenPeers(),
                cluster=facts
                or FakeClusterFacts(
                    nodes=nodes, types=lambda: None if self.cluster.types is None else frozenset(self.cluster.types)
                ),
                time=self.source.clock,
                clocks=ClockOffsets("peer", self.source.clock),
            ),
            traces=None,
            counters=None,
        )
        self.sinks.append(sink)
        if start:
            await sink.start()
        return sink

    async def equal(self, seconds: float = 15.0) -> None:
        """Wait until everything at the source is at the sink's cluster, acknowledged; then compare byte by byte."""
        machine = self.source.served()[0].machine
        fake_store = self.source.fake_store
        deadline = time.monotonic() + seconds
        while True:
            cursors = {p: w.advance() for p, w in machine.windows.items()}
            if all(cursors[p] == fake_store.ends[p] for p in cursors):
                break
            assert time.monotonic() < deadline, (cursors, fake_store.ends, [links(sink) for sink in self.sinks])
            await asyncio.sleep(0.005)
        want = {key: decode_object(payload) for (_, key), payload in fake_store.objects.items()}
        have = {key.key: found for key, found in self.cluster.objects.items()}
        assert have == want
