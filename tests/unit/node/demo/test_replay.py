"""The replay against a node that refuses, does not answer and disconnects: every key ends as expected."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

import msgpack
import pytest

from isthmus.node.demo import client as demo_client
from isthmus.node.demo.client import FailoverClient
from isthmus.node.demo.history import MadeHistory
from isthmus.node.demo.replay import HistoryReplay
from isthmus.node.demo.verify import VerifyResult, compare
from isthmus.repl.model.errors import BadInput, PeerFault
from tests.support.waiting import PATIENCE_S, wait_until


class FakeNode(ThreadingHTTPServer):
    """Objects with causal contexts, as a node serves batches: a context is the set of writes that a client has seen.

    A share of the writes fails: refused with 503 before or answered 504 after taking effect, or taking effect only once
    the next write of the key has come, or the connection is closed before or after. A write without the context of what
    is there makes siblings, as in the real thing. `remembers_ids` False: request ids are forgotten at once."""

    daemon_threads = True

    def __init__(self, fault_share: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.fault_share = fault_share
        self.random = random.Random(4)
        self.lock = threading.Lock()
        self.objects: dict[bytes, dict[int, bytes | None]] = {}
        self.seen: dict[bytes, int] = {}
        self.late: dict[bytes, list[tuple[bytes | None, bytes | None, str]]] = {}
        self.order: dict[bytes, list[bytes | None]] = {}
        self.writes = 0
        self.sibling_writes = 0
        self.fixed_status: int | None = None
        self.remembers_ids = True
        self.known_ids: set[str] = set()
        self.written: dict[str, tuple[bytes, bytes | None]] = {}
        """What came under each request id."""

    def fault(self) -> str | None:
        with self.lock:
            if self.random.random() >= self.fault_share:
                return None
            return self.random.choice(["503", "504", "504 late", "drop before", "drop after", "drop late"])

    def write(self, key: bytes, value: bytes | None, context: bytes | None, request_id: str) -> None:
        with self.lock:
            assert self.written.setdefault(request_id, (key, value)) == (key, value), "an id names one write"
            if self.remembers_ids and request_id in self.known_ids:
                return
            self.known_ids.add(request_id)
            self.writes += 1
            known = int(context) if context else 0
            siblings = {n: v for n, v in self.objects.get(key, {}).items() if n > known}
            siblings[self.writes] = value
            self.sibling_writes += len(siblings) > 1
            self.objects[key] = siblings
            self.seen[key] = self.writes
            self.order.setdefault(key, []).append(value)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 65_536
    server: FakeNode

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        keys = [quote(k, safe="") for k, s in self.server.objects.items() if any(v is not None for v in s.values())]
        parts = [json.dumps({"keys": keys[i : i + 7]}) for i in range(0, max(1, len(keys)), 7)]
        self._answer("".join(parts).encode())

    def do_POST(self) -> None:
        items = msgpack.unpackb(self.rfile.read(int(self.headers["Content-Length"])))
        answers = [self._get(item[2]) if self.path == "/batch/get" else self._put(item) for item in items]
        if None not in answers:
            self._answer(msgpack.packb(answers))

    def _get(self, key: bytes) -> tuple[int, bytes | None, object]:
        siblings = self.server.objects.get(key, {})
        clock = b"%d" % self.server.seen[key] if key in self.server.seen else None
        values = [(v, b"", "", 0, None) for v in siblings.values()]
        absent = all(v[0] is None for v in values)
        return 404 if absent else 300 if len(values) > 1 else 200, clock, values or "not-found"

    def _put(self, item: list[Any]) -> tuple[int, bytes | None, str | None] | None:
        """The answer to a write; None when the connection closes instead."""
        if self.server.fixed_status is not None:
            return self.server.fixed_status, None, "too-large: fixed"
        fault = self.server.fault()
        if fault == "503":
            return 503, None, "not-ready: not now"
        _, _, key, value, _, context, _, request_id = item
        if fault in ("504 late", "drop late"):
            self.server.late.setdefault(key, []).append((value, context, request_id))
        elif fault != "drop before":
            for delayed in self.server.late.pop(key, []):
                self.server.write(key, *delayed)
            self.server.write(key, value, context, request_id)
        if fault in ("504", "504 late"):
            return 504, None, "outcome-unknown: outcome=unknown"
        self.close_connection = fault is not None
        return None if fault is not None else (204, b"%d" % self.server.seen[key], None)


@contextmanager
def running(fault_share: float) -> Iterator[FakeNode]:
    node = FakeNode(fault_share)
    thread = threading.Thread(target=node.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield node
    finally:
        node.shutdown()
        node.server_close()
        thread.join()


def verdict_of(node: FakeNode, history: MadeHistory) -> VerifyResult:
    verdict = VerifyResult()
    reader = FailoverClient([node.url], threading.Event())
    compare({"east": reader}, history.bucket, history.expectation(), verdict)
    reader.close()
    return verdict


@pytest.mark.parametrize(("fault_share", "remembers_ids"), [(0.0, True), (0.1, True), (0.1, False)])
def test_every_key_ends_as_expected_and_without_siblings(fault_share: float, remembers_ids: bool) -> None:
    """For any failures, the final state is the history's, nothing has siblings, and each key had its values in order;
    also if the node has forgotten the request id of a repeated write."""
    history = MadeHistory(3, 500)
    with running(fault_share) as node:
        node.remembers_ids = remembers_ids
        replay = HistoryReplay([node.url], [history], rate=0)
        replay.start()
        assert replay.wait(50)
        verdict = verdict_of(node, history)
    assert verdict.equal, verdict.differences
    assert replay.done_count == replay.total_count == len(history.operations)
    assert (replay.failures().total() > 30) == (fault_share > 0)
    assert set(replay.failures()) <= {"refused", "unknown", "unreachable"}
    assert (node.sibling_writes > 0) == (not remembers_ids), "a late write meets its repetition"
    values: dict[bytes, list[bytes | None]] = {}
    for key, token in history.operations:
        values.setdefault(key, []).append(None if token is None else history.value(token))
    for key, wanted in values.items():
        seen = [v for i, v in enumerate(node.order[key]) if i == 0 or v != node.order[key][i - 1]]
        assert seen == wanted, "a repeated write may repeat its own value, never an older one"


def test_a_node_that_is_gone_is_passed_over() -> None:
    """With one address that nothing listens on, every operation is done by the other node."""
    history = MadeHistory(3, 100)
    with running(0.0) as gone:
        url = gone.url
    with running(0.0) as node:
        replay = HistoryReplay([url, node.url], [history], rate=0)
        replay.start()
        assert replay.wait(PATIENCE_S)
        verdict = verdict_of(node, history)
        reader = FailoverClient([url, node.url], threading.Event())
        assert sorted(reader.list_keys(history.bucket)) == sorted(history.expectation().live)
        reader.close()
    assert verdict.equal
    assert set(replay.failures()) == {"unreachable"}


@pytest.mark.timing
def test_a_replay_is_paced() -> None:
    """At a rate of 40 a second, 40 operations take about a second, not less."""
    history = MadeHistory(3, 40)
    with running(0.0) as node:
        replay = HistoryReplay([node.url], [history], rate=40)
        replay.start()
        assert replay.wait(PATIENCE_S)
    assert 0.95 < replay.elapsed_s < 5


def test_a_definite_refusal_ends_the_replay_with_the_key_named() -> None:
    """A refusal that a repetition cannot change stops the replay with an error that names the key."""
    history = MadeHistory(3, 100)
    with running(0.0) as node:
        node.fixed_status = 413
        replay = HistoryReplay([node.url], [history], rate=0)
        replay.start()
        with pytest.raises(BadInput, match=r"made from seed 3, '.*: fixed"):
            replay.wait(PATIENCE_S)
        replay.stop()


def test_a_node_that_stays_away_is_given_up_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time for retries is over the replay ends with the last failure instead of hanging."""
    monkeypatch.setattr(demo_client, "RETRY_LIMIT_S", 0.3)
    with running(0.0) as node:
        url = node.url
    replay = HistoryReplay([url], [MadeHistory(3, 100)], rate=0)
    replay.start()
    with pytest.raises(PeerFault, match="does not answer"):
        replay.wait(PATIENCE_S)
    replay.stop()


def test_a_stopped_replay_starts_no_further_request() -> None:
    """After `stop` the replay ends with operations left over."""
    history = MadeHistory(3, 5000)
    with running(0.0) as node:
        replay = HistoryReplay([node.url], [history], rate=100)
        replay.start()
        wait_until(lambda: replay.done_count)
        assert not replay.wait(0.2)
        replay.stop()
        assert replay.wait(PATIENCE_S)
        writes = node.writes
        assert 0 < replay.done_count < len(history.operations)
        assert writes == node.writes
