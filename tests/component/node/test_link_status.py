"""Failing links, limits and filters in the answers of a whole node's admin listener, in memory."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.support.threaded_node import running_node
from tests.support.waiting import PATIENCE_S, wait_until

SINK = """
[[queues]]
name = "to-west"
[[sink.peers]]
url = "http://127.0.0.1:1"
queue = "to-east"
"""


def test_failing_links_limits_and_unknown_types_are_reported(tmp_path: Path) -> None:
    """A link that cannot be reached is a warning of the cluster's status and no problem of the cluster; a peer's limit
    above the workers is refused, and never shown as more than there are; a filter tried on no bucket type is noted."""
    with running_node(tmp_path, SINK) as node:

        def asked(method: str, path: str, **wish: Any) -> tuple[int, dict[str, Any]]:
            connection = HTTPConnection("127.0.0.1", node.admin, timeout=PATIENCE_S)
            connection.request(method, f"/admin/{path}", json.dumps(wish) if wish else None)
            answer = connection.getresponse()
            said = json.loads(answer.read())
            connection.close()
            return answer.status, said

        wait_until(lambda: any("1 of 1 link fails" in each for each in asked("GET", "cluster")[1]["warnings"]))
        assert not any("link" in problem for problem in asked("GET", "cluster")[1]["problems"])

        status, said = asked("POST", "sink/limits", workers=4, per_peer=9)
        assert (status, "at most workers" in said["error"]) == (400, True)
        assert asked("POST", "sink/limits", per_peer=9)[1]["workers"]["peer_limit"] == 9
        assert asked("POST", "sink/limits", workers=4)[1]["workers"]["peer_limit"] == 4
        assert asked("POST", "sink/limits", workers=1, per_peer=1, forget=True)[0] == 200

        assert asked("GET", "queues/to-west/filter?type=default&bucket=b")[1]["note"] == ""
        note = asked("GET", "queues/to-west/filter?type=defautl&bucket=b")[1]["note"]
        assert 'did you mean "default"?' in note


def test_a_filter_is_tried_on_names_that_are_no_text(tmp_path: Path) -> None:
    """A percent-encoded bucket means its bytes, and differs from the text that looks like it; without `encoding` a name
    means its text. An invalid encoding is refused."""
    with running_node(tmp_path, '[[queues]]\nname = "to-west"\nfilter = "bucketname:%FF"\n') as node:

        def tried(asked: str) -> tuple[int, dict[str, Any]]:
            connection = HTTPConnection("127.0.0.1", node.admin, timeout=PATIENCE_S)
            connection.request("GET", f"/admin/queues/to-west/filter?type=default&bucket={asked}")
            answer = connection.getresponse()
            said = json.loads(answer.read())
            connection.close()
            return answer.status, said

        assert tried("%25FF&encoding=percent")[1]["offered"] is True
        for other in ("%255Cxff&encoding=percent", "%25FF", "%5Cxff"):
            assert tried(other)[1]["offered"] is False
        status, said = tried("%25F&encoding=percent")
        assert (status, said["reason"]) == (400, "bad-percent-encoding")
        status, said = tried("b&encoding=hex")
        assert (status, 'encoding: "percent"' in said["error"]) == (400, True)


def test_half_a_character_is_no_json(tmp_path: Path) -> None:
    """JSON can express a lone surrogate, and nothing can store it: it is refused as such, not answered with an internal
    error; a pair of surrogates is a character."""
    with running_node(tmp_path, SINK) as node:

        def suspended(reason: str) -> tuple[int, dict[str, Any]]:
            connection = HTTPConnection("127.0.0.1", node.admin, timeout=PATIENCE_S)
            connection.request("POST", "/admin/queues/to-west/suspend", json.dumps({"by": "ann", "reason": reason}))
            answer = connection.getresponse()
            said = json.loads(answer.read())
            connection.close()
            return answer.status, said

        status, said = suspended("disk \udcff")
        assert (status, said["reason"]) == (400, "bad-json")
        assert "surrogates not allowed" in said["error"]
        assert suspended("disk \U0001f4be")[0] == 200
