"""A source that is not a cluster: it sends the answers that a test sets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from isthmus.queues.wire import FetchReply, decode_request, encode_reply
from tests.system.replication.clusters import Clusters

LIAR = b"\xee" * 16
QUEUE = "from-afar"

Item = tuple[int, int, int, bytes, bytes, bytes, bytes, int, bytes]
"""An item as in `queues.wire.FetchReply`."""


class FaultySource(ThreadingHTTPServer):
    """A source that misbehaves in the way that the test sets as `way`."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.way = "empty"
        self.items: list[Item] = []
        self.acknowledged = threading.Event()
        """A batch was; then no items are given out."""
        self.asked = 0

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are part of it."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultySource

    def do_GET(self) -> None:
        self._answer(404, b"")

    def do_POST(self) -> None:
        source = self.server
        source.asked += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/counters"):  # as a source of a version that knows none
            return self._answer(404, b"")
        request = decode_request(body)
        if request.acks:
            source.acknowledged.set()
        way = source.way
        if way == "slow":
            time.sleep(5)
        if way == "error":
            return self._answer(500, b"out of order")
        if way == "malformed":
            return self._answer(200, b"\x93\x01\x02garbage")
        if way == "oversize":
            return self._answer(200, b"x" * 1000, declared=1 << 40)
        if way == "trickle":
            return self._answer(200, b"x", declared=100_000)
        items = [] if source.acknowledged.is_set() or way != "items" else source.items
        if not items:
            time.sleep(0.2)
        reply = FetchReply(LIAR, "afar", 1, b"one" if items else b"", 30_000, 1, "serving", tuple(items))
        return self._answer(200, encode_reply(reply))

    def _answer(self, status: int, body: bytes, declared: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if declared is None else declared))
        self.end_headers()
        self.wfile.write(body)
        if declared is not None:
            time.sleep(2)
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@contextmanager
def running_faulty_source() -> Iterator[FaultySource]:
    """A liar that listens."""
    server = FaultySource()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def peer_lines(source: FaultySource) -> str:
    """The lines in a node's file that make this source a peer."""
    return f'[[sink.peers]]\nurl = "http://127.0.0.1:{source.server_address[1]}"\nqueue = "{QUEUE}"\n'


def link_to(clusters: Clusters, cluster: str = "west") -> dict[str, Any]:
    """A cluster's link to the liar."""
    rows = clusters.see(cluster, "/admin/sink")["sinks"]
    return dict(next(row for row in rows if row["queue"] == QUEUE))
