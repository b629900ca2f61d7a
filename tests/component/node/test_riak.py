"""A whole node that fetches from a Riak: files, commands, what clients read, and where the changes go on."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from isthmus.repl.model.keys import Key
from isthmus.repl.riak.queue_answers import EMPTY_QUEUE
from tests.support.fake_riak import FakeRiak
from tests.support.riak_pair import captured, value
from tests.support.threaded_node import ThreadedNode, running_node
from tests.support.waiting import PATIENCE_S, wait_until

QUEUES = """
[[queues]]
name = "onward"
cascade = true

[[queues]]
name = "own"

[[queues]]
name = "back"
cascade = true
riak_fetch = true
"""


def call(port: int, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    sent = body if isinstance(body, bytes) or body is None else json.dumps(body)
    connection.request(method, path, sent, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    return answer.status, {name.lower(): text for name, text in answer.getheaders()}, raw


def admin(node: ThreadedNode, path: str, body: Any = None) -> dict[str, Any]:
    status, _, raw = call(node.admin, "GET" if body is None else "POST", path, body)
    assert status == 200, raw
    found: dict[str, Any] = json.loads(raw)
    return found


def test_changes_of_a_riak_go_on_to_other_clusters_and_never_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Riak of the file: its password comes from a file and is shown nowhere; clients read the value, without what the
    Riak keeps beside it; a queue that cascades offers the change, one that does not and the Riak's own do not; a merge
    with a write here goes back to the Riak, too."""
    (tmp_path / "password").write_text("very secret words\n")
    (tmp_path / "password").chmod(0o600)
    riak = FakeRiak(user="isthmus", password="very secret words")
    peers = f'[[riak.peers]]\nname = "old"\nurls = "{riak.url}"\nqueue = "isthmus"\nuser = "isthmus"\n'
    try:
        riak.offer_raw(captured("full"))
        with running_node(tmp_path, QUEUES + peers + 'password_file = "password"\n') as node:
            wait_until(lambda: call(node.http, "GET", "/buckets/cap/keys/full")[0] == 200, "the change is here")
            _, headers, _ = call(node.http, "GET", "/buckets/cap/keys/full")
            assert not [name for name in headers if name.startswith("x-riak-meta-") and "riak" in name[12:]]
            assert call(node.http, "GET", "/queuename/back")[2] == EMPTY_QUEUE
            assert call(node.http, "GET", "/queuename/back")[2] == EMPTY_QUEUE

            def states() -> dict[str, str]:
                found = admin(node, "/admin/explain?type=default&bucket=cap&key=full")
                return {row["queue"]: row["state"] for row in found["queues"]}

            wait_until(lambda: states()["back"] == "from-owner", "the Riak's queue has passed it")
            assert states()["own"] == "origin"
            assert states()["onward"] in ("waiting", "not-read")
            assert call(node.http, "GET", "/queuename/back")[2] == EMPTY_QUEUE
            assert call(node.http, "PUT", "/buckets/b/keys/ours", b"x")[0] == 204
            wait_until(lambda: b"ours" in call(node.http, "GET", "/queuename/back")[2], "our own write is offered")
            riak.put(Key(b"default", b"b", b"ours"), value(b"theirs"))
            wait_until(
                lambda: b"theirs" in call(node.http, "GET", "/queuename/back")[2], "a merge is a change of this cluster"
            )
            monkeypatch.setenv("ISTHMUS_ADMIN", f"http://127.0.0.1:{node.admin}")
            assert cli.main(["riak", "list"]) == Exit.OK
            assert "1 running" in capsys.readouterr().out
            assert cli.main(["sink", "list", "-o", "json"]) == Exit.OK
            shown = capsys.readouterr().out
            (link,) = json.loads(shown)["nodes"][0]["sink"]["sinks"]
            assert (link["kind"], link["source_cluster"], link["state"]) == ("riak", "old", "running")
            assert "very secret words" not in shown
            assert "very secret words" not in json.dumps(admin(node, "/admin/riaks"))
    finally:
        riak.close()


def test_acts_about_riaks_are_checked_recorded_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Added, seeded, removed by the command line; the audit log has each with what was before and after; wrong bodies
    are refused with what would be right."""
    riak = FakeRiak()
    riak.props[b"default"] = {"allow_mult": True, "dvv_enabled": True}
    for n in range(30):
        riak.put(Key(b"default", b"users", b"k%d" % n), value(b"v", n + 1), queued=False)
    try:
        with running_node(tmp_path) as node:
            monkeypatch.setenv("ISTHMUS_ADMIN", f"http://127.0.0.1:{node.admin}")
            assert cli.main(["riak", "check", riak.url]) == Exit.OK
            assert cli.main(["riak", "add", "old", riak.url, "--by", "ann", "--reason", "copy"]) == Exit.OK
            assert cli.main(["riak", "seed", "old", "--wait", "--by", "ann"]) == Exit.OK
            assert "riak: seeded 30 keys from old; 0 missing, 0 refused" in capsys.readouterr().out
            assert call(node.http, "GET", "/buckets/users/keys/k7")[::2] == (200, b"v")
            assert cli.main(["riak", "remove", "old", "--by", "ann"]) == Exit.OK
            acts = admin(node, "/admin/audit?limit=3")["acts"]
            assert [act["what"]["act"].partition(":")[0] for act in acts] == [
                "remove Riak old",
                "seed from Riak old",
                "add a Riak",
            ]
            assert acts[2]["before"]["riaks_set"] == []
            assert [one["name"] for one in acts[2]["after"]["riaks_set"]] == ["old"]
            for body, why in (
                ({"name": "x", "urls": "ftp://a", "queue": "q"}, "http"),
                ({"name": "x", "urls": riak.url, "queue": "q", "user": "u"}, "belong together"),
                ({"name": "x", "urls": riak.url, "queue": "q", "authority": "ca.pem"}, "absolute path"),
                ({"name": "x", "urls": f"http://127.0.0.1:{node.http}", "queue": "q"}, "this node itself"),
                ({"urls": riak.url, "queue": "q"}, "name is needed"),
            ):
                answer = call(node.admin, "POST", "/admin/riaks/add", body)
                assert answer[0] == 400, answer
                assert why in answer[2].decode()
            assert call(node.admin, "POST", "/admin/riaks/none/seed", {})[0] == 400
    finally:
        riak.close()


def test_a_cluster_that_answers_like_a_riak_is_fetched_from_and_seeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What this version answers to a Riak and to its tools is what it asks of one: checks, queue, folds and clocks fit
    each other. Deleted keys are not missing."""
    monkeypatch.setattr("isthmus.sink.riak_seeder.POLL_S", 0.1)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    queue = '[[queues]]\nname = "isthmus"\nriak_fetch = true\n'
    with running_node(tmp_path / "a", queue) as source, running_node(tmp_path / "b") as node:
        for n in range(40):
            assert call(source.http, "PUT", f"/buckets/b{n % 2}/keys/k{n}", b"v%d" % n)[0] == 204
        assert call(source.http, "DELETE", "/buckets/b0/keys/k0")[0] == 204
        monkeypatch.setenv("ISTHMUS_ADMIN", f"http://127.0.0.1:{node.admin}")
        url = f"http://127.0.0.1:{source.http}"
        assert cli.main(["riak", "check", url]) == Exit.OK, capsys.readouterr().out
        assert cli.main(["riak", "add", "other", url, "--yes"]) == Exit.OK
        assert cli.main(["riak", "seed", "other", "--wait"]) == Exit.OK, capsys.readouterr().out
        assert " 0 missing, 0 refused" in capsys.readouterr().out
        for n in range(1, 40):
            assert call(node.http, "GET", f"/buckets/b{n % 2}/keys/k{n}")[::2] == (200, b"v%d" % n)
        assert call(node.http, "GET", "/buckets/b0/keys/k0")[0] == 404
