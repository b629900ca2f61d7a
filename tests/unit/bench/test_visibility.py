"""The probe of the delay until clients see a write: writes in one cluster, reads in another."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bench import visibility
from bench.kept_connection import KeptConnection
from bench.visibility import VisibilityProbe, percentile
from tests.support.waiting import wait_until


class Clusters(ThreadingHTTPServer):
    """Both clusters in one: a key can be read `delay_s` after it was written."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.written_s: dict[str, float] = {}
        self.delay_s = 0.0
        self.refuse = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Clusters

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.written_s[self.path] = time.perf_counter()
        self.send_response(503 if self.server.refuse else 204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        there_s = self.server.written_s[self.path] + self.server.delay_s
        self.send_response(200 if time.perf_counter() >= there_s else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def clusters() -> Iterator[Clusters]:
    """A server in a thread."""
    server = Clusters()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_time_until_an_object_can_be_read_is_measured(clusters: Clusters) -> None:
    """Both times are at least the delay, the one from the request being longer; no key is written twice."""
    clusters.delay_s = 0.3
    with VisibilityProbe([clusters.url] * 3, [clusters.url] * 3, "run") as probe:
        wait_until(lambda: len(clusters.written_s) > visibility.THREADS)
    found = probe.found
    assert len(found.after_answer_ms) == len(clusters.written_s) > visibility.THREADS
    assert found.failed == 0
    assert min(found.after_request_ms) >= 300
    assert all(a < r for a, r in zip(found.after_answer_ms, found.after_request_ms, strict=True))
    assert min(found.after_answer_ms) > 100


def test_writes_that_fail_are_counted_and_not_timed(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused write, and one that is never seen, have no time."""
    monkeypatch.setattr(visibility, "SEEN_TIMEOUT_S", 0.05)
    clusters.refuse = True
    with VisibilityProbe([clusters.url], [clusters.url], "refused") as probe:
        wait_until(lambda: probe.found.failed)
    assert probe.found.failed > 0
    clusters.refuse, clusters.delay_s = False, 3600.0
    with VisibilityProbe([clusters.url], [clusters.url], "late") as late:
        wait_until(lambda: late.found.failed)
    assert late.found.failed > 0
    assert not probe.found.after_answer_ms
    assert not late.found.after_answer_ms


def test_a_percentile_is_a_value_that_was_measured() -> None:
    """The nearest rank: of ten values the fifth is the median and the last is the 99th percentile."""
    values = [float(number) for number in range(10, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99)) == (5.0, 10.0)
    assert math.isnan(percentile([], 0.5))


def test_a_connection_is_opened_again_after_a_failure(clusters: Clusters) -> None:
    """A failure has status 0 and says why; the next request is answered."""
    connection = KeptConnection(clusters.url, 5.0)
    connection._connection.sock = socket.socket()  # not connected
    failed = connection.send("PUT", "/x", b"v")
    assert failed.status == 0
    assert b"Error" in failed.body
    assert connection.send("PUT", "/x", b"v").status == 204
    connection.close()
