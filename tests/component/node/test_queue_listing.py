"""Queues of the whole cluster as the admin listener of a whole node lists them."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.support.threaded_node import running_node
from tests.support.waiting import PATIENCE_S, wait_until

QUEUES = '[[queues]]\nname = "to-west"\nobject_rate_limit = 900\n[[queues]]\nname = "to-riak"\nriak_fetch = true\n'


def exchange(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    return answer.status, json.loads(raw) if raw[:1] == b"{" else raw


def test_what_waits_who_fetches_and_what_is_not_known(tmp_path: Path) -> None:
    """The listing shows depth, rates of the file and of operators, the node that fetched, and unknown values while a
    partition has no leader."""
    with running_node(tmp_path, QUEUES) as node:
        assert node.node is not None

        def row(name: str) -> dict[str, Any]:
            status, answer = exchange(node.admin, "GET", "/admin/queues/cluster")
            assert (status, answer["unknown"]) == (200, {})
            return next(queue for queue in answer["queues"] if queue["name"] == name)

        for key in ("a", "b"):
            assert exchange(node.http, "PUT", f"/buckets/b/keys/{key}", "data")[0] == 204
        wait_until(lambda: not row("to-west")["unknown"] and not row("to-riak")["unknown"], "cursors are known")
        west = row("to-west")
        assert west["priorities"]["real_time"] == {"waiting": 2, "in_flight": 0, "at_least": 2}
        assert (west["owner"], west["consumers"], west["oldest_age_ms"] > 0) == (None, [], True)
        assert exchange(node.admin, "POST", "/admin/queues/to-west/throttle", {"objects_per_second": 50})[0] == 200
        throttle = row("to-west")["nodes"]["n1"]["throttle"]
        assert (throttle["file"]["objects_per_second"], throttle["configured"]["objects_per_second"]) == (900, 50)
        assert row("to-west")["rates"]["set"]["by"]

        def is_served() -> bool:
            assert exchange(node.http, "GET", "/queuename/to-riak?object_format=internal")[0] == 200
            return any(one["given"] for one in row("to-riak")["consumers"])

        wait_until(is_served, "the first fetch makes Riak the owner, one soon after it is served")
        (riak,) = row("to-riak")["consumers"]
        assert (riak["node"], riak["at"], riak["given"], riak["waits_at"]) == ("riak", "n1", 1, [])
        assert row("to-riak")["priorities"]["real_time"]["waiting"] == 1
        node.node.services.queues.named("to-west").machine.windows.pop(0)
        west = row("to-west")
        assert west["unknown"] == "node n1 does not know its cursor in 1 partition yet"
        assert (west["priorities"]["real_time"]["waiting"], west["oldest_age_ms"]) == (None, None)
