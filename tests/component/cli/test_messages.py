"""Messages about incomplete input, refusals and unexpected answers: they claim no more than is known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from isthmus.node.cli import kv
from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from tests.component.cli.test_admin_client import QUEUE
from tests.support.fake_admin_listener import FakeAdminListener


@contextmanager
def answering(status: int, body: bytes, *, length: int | None = None, reason: str = "") -> Iterator[str]:
    """A client listener that answers every request alike; `length` is the declared length of the body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            if reason:
                self.send_header("X-Isthmus-Reason", reason)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("verb", [["get", "b", "k"], ["put", "b", "k", "v"], ["list", "b"]])
def test_a_request_without_a_token_gets_a_hint_how_to_give_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    """The hint is printed for the client listener and for the admin listener."""
    with answering(401, b"a token is needed", reason="unauthorized") as url:
        monkeypatch.setenv("ISTHMUS_HTTP", url)
        assert cli.main(["kv", *verb]) == Exit.REFUSED
    assert capsys.readouterr().err == "isthmus: a token is needed; --token-file FILE or ISTHMUS_TOKEN gives one\n"


def test_a_refusal_that_breaks_off_is_no_bug_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that dies in the middle of its sentence: unavailable, one line."""
    with answering(503, b"over", length=100, reason="overloaded") as url:
        monkeypatch.setenv("ISTHMUS_HTTP", url)
        assert cli.main(["kv", "get", "b", "k"]) == Exit.UNAVAILABLE
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("body", [b"5", b"[]", b'{"keys": 3}', b'{"buckets": []}'])
def test_a_listing_of_another_server_is_no_bug_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], body: bytes
) -> None:
    """JSON that is not a listing is reported as another server's answer."""
    with answering(200, body) as url:
        monkeypatch.setenv("ISTHMUS_HTTP", url)
        assert cli.main(["kv", "list", "b"]) == Exit.UNAVAILABLE
    assert "is this a node's client listener?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reason", "suspensions", "shown"),
    [
        (
            "serving suspended: disk; no sink cluster has fetched yet",
            [{"what": "serving", "by": "ann", "at_ms": 0, "reason": "disk", "node": None}],
            "serving suspended: disk (by ann, 1970-01-01 00:00:00Z); no sink cluster has fetched yet",
        ),
        (
            "serving suspended; publishing suspended: move; gaps are open",
            [
                {"what": "serving", "by": "ann", "at_ms": 0, "reason": "", "node": None},
                {"what": "publishing", "by": "eve", "at_ms": 0, "reason": "else", "node": "east-2"},
                {"what": "publishing", "by": "bob", "at_ms": 1_000, "reason": "move", "node": "east-1"},
            ],
            (
                "serving suspended (by ann, 1970-01-01 00:00:00Z); "
                "publishing suspended: move (by bob, 1970-01-01 00:00:01Z); gaps are open"
            ),
        ),
    ],
)
def test_each_suspension_is_reported_with_who_made_it(
    listener: FakeAdminListener,
    capsys: pytest.CaptureFixture[str],
    reason: str,
    suspensions: list[dict[str, Any]],
    shown: str,
) -> None:
    """The operator is shown behind the suspension, not behind other problems; for publishing and for serving."""
    publishing = "suspended" if "publishing" in reason else "running"
    more = {"suspended": suspensions[0], "suspensions": suspensions, "publishing": publishing, "reason": reason}
    listener.respond("/admin/queues/nodes", {"nodes": [{"node": "east-1", "queues": [{**QUEUE, **more}]}]})
    assert cli.main(["queue", "list"]) == Exit.OK
    assert capsys.readouterr().out.splitlines()[-1].endswith(shown)


def test_more_workers_at_one_peer_than_there_are_is_a_usage_error(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a limit never binds; no request is sent."""
    assert cli.main(["sink", "set-workers", "4", "--per-peer", "9"]) == Exit.USAGE
    assert "at most COUNT, 4" in capsys.readouterr().err
    assert listener.posted == []


def test_a_filter_tested_with_a_missing_type_is_reported(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """The filter also answers for a mistyped bucket type, which would be mistaken for the intended type's answer."""
    answer = {"offered": True, "reason": "rule any offers it", "filter": "any", "note": 'no such bucket type: "nots"'}
    listener.respond("/admin/queues/q/filter?type=nots&bucket=b", answer)
    assert cli.main(["queue", "test-filter", "q", "nots/b"]) == Exit.OK
    assert capsys.readouterr().out.splitlines()[1] == 'note: no such bucket type: "nots"'


@pytest.mark.parametrize(
    "arguments",
    [
        ["queue", "peek", "\udcff"],
        ["queue", "suspend", "q", "--reason", "disk \udcff"],
        ["queue", "push", "q", "default/\udcff", "k"],
        ["option", "set", "x", "1", "--by", "\udcff"],
    ],
)
def test_bytes_that_are_no_text_are_a_usage_error(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """Such bytes would reach the node as lone surrogates, which it could not store, or stored and could not show."""
    assert cli.main(arguments) == Exit.USAGE
    assert "not UTF-8 text" in capsys.readouterr().err
    assert listener.posted == []


def test_half_a_character_in_an_answer_is_shown_as_an_escape(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON can express a lone surrogate and no encoding can write it; the output shows it as a JSON escape."""
    answer = {"queues": [{"name": "q", "reason": "\udcff"}]}
    listener.respond("/admin/queues/nodes", {"nodes": [{"node": "n", **answer}]})
    assert cli.main(["queue", "list", "-o", "json"]) == Exit.OK
    out = capsys.readouterr().out
    assert "\\udcff" in out
    assert json.loads(out)["queues"] == [{**answer["queues"][0], "node": "n"}]


@pytest.mark.parametrize(
    "arguments", [["lag", "--over", "nan"], ["local", "up", "x", "--dir", "x", "--timeout", "nan"]]
)
def test_a_number_that_is_none_is_a_usage_error(listener: FakeAdminListener, arguments: list[str]) -> None:
    """No lag could exceed such a limit: a monitor would never have alerted."""
    listener.respond("/admin/lag", {"lag": []})
    assert cli.main(arguments) == Exit.USAGE


def test_links_that_fail_are_a_warning_of_a_whole_cluster(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Failing links have a line of their own; the exit code describes this cluster."""
    listener.respond(
        "/admin/cluster", {"problems": [], "warnings": ["to other clusters, at node e1: 1 of 1 link fails: x"]}
    )
    assert cli.main(["cluster", "status"]) == Exit.OK
    assert "warning: to other clusters, at node e1: 1 of 1 link fails: x" in capsys.readouterr().out.splitlines()


def test_references_refused_by_a_full_queue_are_incomplete(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is that of an incomplete command, so that scripts do not take all references for queued."""
    listener.respond("/admin/queues/q/push", {"queued": 1, "refused": 2, "reason": "the priority is full"})
    assert cli.main(["queue", "push", "q", "default/b", "k", "l", "m"]) == Exit.UNAVAILABLE
    assert capsys.readouterr().out == "queue q: 1 reference queued; 2 refused: the priority is full\n"
    listener.respond("/admin/queues/q/push", {"queued": 3, "refused": 0, "reason": ""})
    assert cli.main(["queue", "push", "q", "default/b", "k", "l", "m"]) == Exit.OK


def test_an_endless_value_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A value larger than any object may be is not read to its end."""
    monkeypatch.setattr(kv, "OBJECT_BYTES_MAX", 8)
    file = tmp_path / "value"
    file.write_bytes(b"123456789")
    assert cli.main(["kv", "put", "b", "k", "--file", str(file)]) == Exit.USAGE
    assert f"{file} has more than 8 bytes" in capsys.readouterr().err
    assert cli.main(["kv", "put", "b", "k", "--file", "/dev/zero"]) == Exit.USAGE


@pytest.mark.parametrize(
    "arguments",
    [["delete", "b", "k", "--clock", "ü"], ["put", "b", "k", "v", "--clock", "²"], ["list", "--limit", "9" * 30]],
)
def test_an_impossible_time_or_limit_is_a_usage_error(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """Digits beyond ASCII, and numbers too large to be counted to: one line, and no request is sent."""
    assert cli.main(["kv", *arguments, "--http", "http://127.0.0.1:1"]) == Exit.USAGE
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_plain_http_to_a_tls_listener_is_unavailable_for_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code and message are the same at the client listener and at the admin listener."""
    with answering(400, b"TLS is spoken here", reason="tls") as url:
        monkeypatch.setenv("ISTHMUS_HTTP", url)
        assert cli.main(["kv", "get", "b", "k"]) == Exit.UNAVAILABLE
        assert cli.main(["cluster", "status", "--admin", url]) == Exit.UNAVAILABLE
    said = capsys.readouterr().err.splitlines()
    assert all("speaks TLS: write https://" in line for line in said)


def test_full_sync_status_of_a_node_is_printed_as_plain_text(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """No text of the other cluster, its name or its answers, controls the terminal."""
    bell = "\x1b]0;mine\x07"
    peer = {"name": "west", "shared_by": [bell], "warning": bell, "proven_ms": {}}
    running = {"peer": bell, "state": bell}
    listener.respond("/admin/fullsync?results=5", {"node": "e1", "reason": bell, "running": running, "peers": [peer]})
    assert cli.main(["fullsync", "status", "--node", "e1"]) == Exit.OK
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.count("\\x1b]0;mine") == 5
