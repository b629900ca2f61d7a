"""Answers of a whole node's admin listener, in memory, to bodies that are JSON and still invalid."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.admin_api import acting_user as user_module
from tests.support.threaded_node import ThreadedNode, running_node
from tests.support.waiting import PATIENCE_S

MORE = """\
[[queues]]
name = "to-west"
[[fullsync]]
name = "west"
urls = "http://127.0.0.1:9"
queue = "to-west"
"""

HALF = r'"\ud800"'
"""Half of a surrogate pair: JSON permits it, no encoding can write it."""


def call(node: ThreadedNode, method: str, path: str, body: str | None = None) -> tuple[int, dict[str, Any]]:
    """Status and answer."""
    connection = HTTPConnection("127.0.0.1", node.admin, timeout=PATIENCE_S)
    connection.request(method, path, body)
    answer = connection.getresponse()
    said = json.loads(answer.read())
    connection.close()
    return answer.status, said


def test_invalid_bodies_never_cause_an_internal_error(tmp_path: Path) -> None:
    """Texts that are none, numbers that no wire carries, names that would be other paths of the metastore, words
    without end: each is refused as the client's, and nothing of it stays."""
    huge = str(10**30)
    with running_node(tmp_path, MORE) as node:
        for path, body, status, words in (
            ("reaps", f'{{"bucket": {HALF}, "key": "k"}}', 400, "not Unicode"),
            ("queues/to-west/push", f'{{"bucket": "b", "keys": [{HALF}]}}', 400, "not Unicode"),
            ("nodes/drain", f'{{"nodes": [{HALF}]}}', 400, "not Unicode"),
            ("fullsync/suspend", f'{{"peer": "west", "by": {HALF}}}', 400, "not Unicode"),
            ("fullsync/suspend", '{"peer": "west", "by": "\udced\udca0\udc80"}', 400, "not Unicode"),
            ("options/replication.min.isr/set", f'{{"value": 1, "by": {HALF}}}', 400, "not Unicode"),
            ("fullsync/set-range", f'{{"peer": "west", "since_ms": 0, "before_ms": {huge}}}', 400, "before_ms"),
            ("folds", f'{{"kind": "find-keys", "partition": 0, "since_ms": {huge}}}', 400, "since_ms"),
            (
                "folds",
                f'{{"kind": "find-keys", "partition": 0, "next": {{"segment": {huge}, "name": ""}}}}',
                400,
                "page before",
            ),
            ("folds", '{"kind": "find-keys", "partition": 77}', 404, "there is no partition 77: 2 are there"),
            ("queues/to-west/place", '{"positions": {"77": 1}}', 404, "there is no partition 77"),
            ("queues/to-west/place", '{"positions": {"0": 1, "00": 2}}', 400, "twice"),
            ("queues/register", '{"name": "new", "positions": {"77": 1}}', 404, "there is no partition 77"),
            ("nodes/../remove", '{"dry_run": true}', 400, "is not a name"),
            ("nodes/%00/remove", '{"dry_run": true}', 400, "is not a name"),
            ("nodes//remove", '{"dry_run": true}', 400, "is not a name"),
            ("nodes/%2f/remove", '{"dry_run": true}', 400, "is not a name"),
            ("nodes/drain", '{"nodes": ["n1"], "undo": true, "dry_run": true}', 404, "n1 is not drained"),
            ("queues/to-west/push", '{"bucket": "b", "keys": ["%zz"], "encoding": "percent"}', 400, "'%zz'"),
            ("queues/to-west/push", json.dumps({"bucket": "b", "keys": ["k", "k" * 5000]}), 400, "limits.key_size"),
            ("queues/to-west/push", json.dumps({"bucket": "b" * 5000, "keys": ["k"]}), 400, "limits.key_size"),
            ("buckets/default/b/properties/unset", '{"names": ""}', 400, "names must be a list"),
            ("bucket-types/default/properties/unset", '{"names": 0}', 400, "names must be a list"),
            ("queues/to-west/release", '{"from": false}', 400, "from must be"),
            ("queues/to-west/suspend", '{"what": ""}', 400, "cannot be suspended"),
            ("fullsync/suspend", json.dumps({"peer": "west", "reason": "r" * 1001}), 400, "1001 characters"),
            ("queues/to-west/suspend", json.dumps({"by": "r" * 1001}), 400, "1001 characters"),
        ):
            found = call(node, "POST", f"/admin/{path}", body.encode(errors="surrogateescape"))  # type: ignore[arg-type]
            assert (found[0], words in found[1]["error"]) == (status, True), (path, body[:80], found)
        for digits in (30, 5000):
            found = call(node, "GET", f"/admin/fullsync?results={'9' * digits}")
            assert (found[0], found[1]["reason"]) == (400, "bad-query")
        assert call(node, "POST", "/admin/reaps", r'{"bucket": "\ud83d\ude00", "key": "k"}')[0] == 200, "a whole pair"
        (peer,) = call(node, "GET", "/admin/fullsync")[1]["peers"]
        assert (peer["suspended"], peer["range"]) == (None, None)
        assert call(node, "GET", "/admin/queues")[1]["queues"][0]["suspended"] is None


def test_a_user_without_a_name_is_shown_by_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acts without a user are recorded under the process's user, also when that has no name."""

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(user_module.getpass, "getuser", nobody)
    monkeypatch.setattr(user_module.os, "getuid", lambda: 12345)
    assert user_module.acting_user(None) == "uid-12345"
