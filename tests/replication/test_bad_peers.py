"""Peers that are slow, fail, or lie: what they cost is their own link's time, and never a key of this cluster."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from queues.wire import FetchReply, decode_request, encode_reply
from repl.model.objects import Content, encode_object, write
from repl.model.vclock import actor_of, decode_clock
from tests.faults.load import Connection
from tests.replication.clusters import BUCKET, Clusters, key_path, put, until

LIAR = b"\xee" * 16
QUEUE = "from-afar"


class _Liar(ThreadingHTTPServer):
    """A source that misbehaves in the way that its port's path says: `way` is set by the test."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.way = "empty"
        self.items: list[tuple[int, int, int, bytes, bytes, bytes, bytes, int, bytes]] = []
        self.acknowledged = threading.Event()
        self.asked = 0

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are part of it."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Liar

    def do_GET(self) -> None:
        self._answer(404, b"")

    def do_POST(self) -> None:
        liar = self.server
        liar.asked += 1
        request = decode_request(self.rfile.read(int(self.headers["Content-Length"])))
        if request.acks:
            liar.acknowledged.set()
        way = liar.way
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
        items = [] if liar.acknowledged.is_set() or way != "items" else liar.items
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
def lying() -> Iterator[_Liar]:
    """A liar that listens."""
    server = _Liar()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def link_to(clusters: Clusters, liar: _Liar) -> dict[str, Any]:
    """West's link to the liar."""
    rows = clusters.see("west", "/admin/sink")["sinks"]
    return dict(next(row for row in rows if row["queue"] == QUEUE))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_bad_peers_hold_nobody_up_and_harm_nothing(tmp_path: Path) -> None:
    """While a second peer is slow, fails, answers garbage, more than is bounded or too slowly, what the good peer gives
    arrives within seconds; the bad link says what is wrong, and recovers. What it lies about becomes dead letters."""
    with lying() as liar:
        peer = f'[[sink.peers]]\nurl = "http://127.0.0.1:{liar.server_address[1]}"\nqueue = "{QUEUE}"\n'
        peer += '[limits]\nobject_size = "1MB"\n'
        sinks = 'request_timeout = "2s"\nworkers = 4'
        with Clusters(tmp_path, (("east", "west"),), sinks=sinks, more_peers={"west": peer}) as clusters:
            for way in ("slow", "error", "malformed", "oversize", "trickle"):
                liar.way = way
                if way == "malformed":
                    until("it says so", lambda: link_to(clusters, liar)["last_error_reason"] == "malformed", 30)
                else:
                    before = link_to(clusters, liar)["errors"]
                    until(f"{way} fails", lambda b=before: link_to(clusters, liar)["errors"] > b, 40)
                began = time.monotonic()
                for number in range(20):
                    put(clusters.node("east").place, f"{way}{number}", b"x")
                until("the good peer's come", lambda: clusters.drained("east", "west"), 30)
                took_s = time.monotonic() - began
                assert took_s < 15, f"held up for {took_s:.1f} s by a peer that is {way}"
            liar.items = lies(clusters)
            liar.way = "items"
            until("the batch is acknowledged", liar.acknowledged.is_set, 60)
            assert link_to(clusters, liar)["errors_in_a_row"] == 0
            letters = clusters.see("west", "/admin/sink/dead-letters")["dead_letters"]
            assert {letter["key"][2]: letter["reason"] for letter in letters} == {
                "mine": "forged-clock", "garbage": "malformed", "large": "too-large"
            }  # fmt: skip
            contents = clusters.contents("west")
            assert contents["mine"][2] == ["true"]
            assert contents["honest"][2] == ["said"]
            assert not {"garbage", "large"} & contents.keys()


def lies(clusters: Clusters) -> list[tuple[int, int, int, bytes, bytes, bytes, bytes, int, bytes]]:
    """Changes of the liar: a clock that has seen what west never wrote, bytes that are no object, one that is larger
    than west takes, and an honest one."""
    west = clusters.node("west").place
    put(west, "mine", b"true")
    connection = Connection(west)
    reply = connection.request("GET", key_path("mine"), {})
    connection.close()
    ((actor, counter, at_s),) = decode_clock(base64.b64decode(reply.headers["X-Riak-Vclock"]))
    dot = (actor_of(LIAR, 0), 1)
    forged = write(None, ((actor, counter + 1_000_000, at_s),), Content(b"forged"), dot, 5)
    large = write(None, (), Content(b"x" * 2_000_000), (actor_of(LIAR, 0), 2), 5)
    honest = write(None, (), Content(b"said"), (actor_of(LIAR, 0), 3), 5)
    made = {
        b"mine": encode_object(forged),
        b"garbage": b"\x93no object",
        b"large": encode_object(large),
        b"honest": encode_object(honest),
    }
    return [
        (0, 0, number, b"default", BUCKET.encode(), key, LIAR, 1, payload)
        for number, (key, payload) in enumerate(made.items())
    ]
