"""Answers of a whole node's admin listener, in memory, to wrong requests about queues."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.main import main
from isthmus.repl.coordinator.routing import UnknownBucketType
from isthmus.repl.model.errors import NotReady
from tests.support.threaded_node import ThreadedNode, running_node
from tests.support.waiting import PATIENCE_S, wait_until

QUEUES = '[[queues]]\nname = "to-west"\n[[queues]]\nname = "to-north"\n'


def test_wrong_queue_requests_are_refused_with_a_remedy(tmp_path: Path) -> None:
    """Unknown queues and nodes are refused with the existing names, and so are a start in the future and references of
    an unknown bucket type; none of these requests changes anything."""
    with running_node(tmp_path, QUEUES) as node:

        def post(path: str, **wish: Any) -> tuple[int, str]:
            connection = HTTPConnection("127.0.0.1", node.admin, timeout=PATIENCE_S)
            connection.request("POST", f"/admin/queues/{path}", json.dumps(wish), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = json.loads(answer.read())
            connection.close()
            return answer.status, str(said.get("error", ""))

        ahead_ms = int(time.time() * 1000) + 3_600_000
        for path, wish, words in (
            ("to-wset/suspend", {}, "there is no queue named 'to-wset' here; there are: to-west, to-north"),
            ("to-west/suspend", {"node": "n9"}, "there is no node 'n9' in this cluster; there are: n1"),
            ("register", {"name": "new", "from": ahead_ms}, "from must not lie ahead"),
            ("to-west/release", {"from": ahead_ms}, "from must not lie ahead"),
            ("to-west/release", {"from": False}, 'from must be "now", "0", or a time'),
            (
                "to-west/push",
                {"bucket": "m%zz", "keys": ["k"], "encoding": "percent"},
                "'%zz' in 'm%zz' is not % and two hex digits",
            ),
            ("to-west/push", {"bucket": "m", "keys": ["a%20", "b%"], "encoding": "percent"}, "'%' in 'b%' is not"),
            ("to-west/suspend", {"a": 1, "b": 2}, "'a', 'b' in the body are unknown"),
            ("to-west/throttle", {}, "give bytes_per_second, objects_per_second, or both"),
            ("to-west/throttle", {"default": True, "objects_per_second": 5}, "or default alone"),
            ("to-west/push", {"bucket_type": "nots", "bucket": "b", "keys": ["k"]}, "'nots' does not exist"),
        ):
            status, error = post(path, **wish)
            assert 400 <= status < 500, (path, status, error)
            assert words in error, (path, error)
        assert post("register", name="new", **{"from": ahead_ms - 3_600_000})[0] == 200
        assert post("to-west/push", bucket="b", keys=["k"])[0] == 200


def test_a_pushed_key_that_was_reaped_is_sent_as_its_tombstone(tmp_path: Path) -> None:
    """The tombstone of a key that its cluster remembers as reaped is written again before a reference to it is queued:
    without it the reference would be served as vanished, and the other cluster would keep the key (R-REAP)."""
    with running_node(tmp_path, '[[queues]]\nname = "to-west"\nfilter = "block_rtq"\n') as node:
        assert node.node is not None
        services = node.node.services

        def send(port: int, method: str, path: str, body: str = "") -> Any:
            connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
            connection.request(method, path, body or None, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
            connection.close()
            assert answer.status < 300, said
            return json.loads(said) if said else None

        send(node.http, "PUT", "/types/default/buckets/b/keys/k", "1")
        send(node.http, "DELETE", "/types/default/buckets/b/keys/k")
        reap = json.dumps({"bucket_type": "default", "bucket": "b", "key": "k"})
        wait_until(lambda: send(node.admin, "POST", "/admin/reaps", reap)["outcome"] == "reaped")
        for keys, recalled in ((["k"], 1), (["k"], 1), (["never"], 1)):
            push = json.dumps({"bucket": "b", "keys": keys, "fold": True})
            assert send(node.admin, "POST", "/admin/queues/to-west/push", push)["queued"] == 1
            assert services.recall.recalled_count == recalled


def wait_for_windows(node: ThreadedNode) -> None:
    """Return once both queues have loaded their cursors; the election at the node's start is just over."""
    assert node.node is not None
    machines = [node.node.services.queues.named(name).machine for name in ("to-west", "to-north")]
    wait_until(lambda: all(len(machine.windows) == 2 for machine in machines))


def test_a_node_that_is_down_may_be_suspended_and_one_that_is_no_more_resumed(tmp_path: Path) -> None:
    """A queue can be suspended at a node that is down, and resumed at a node that no longer exists."""
    with running_node(tmp_path, QUEUES) as node:
        assert node.node is not None
        assert node.node.services.membership.known_nodes() == {"n1"}

        def post(verb: str) -> int:
            connection = HTTPConnection("127.0.0.1", node.admin, timeout=PATIENCE_S)
            connection.request("POST", f"/admin/queues/to-west/{verb}", json.dumps({"node": "n2"}))
            answer = connection.getresponse()
            answer.read()
            connection.close()
            return answer.status

        assert post("suspend") == 400
        node.node.services.membership.known_nodes = lambda: {"n1", "n2"}  # type: ignore[method-assign]
        assert post("suspend") == 200
        node.node.services.membership.known_nodes = lambda: {"n1"}  # type: ignore[method-assign]
        assert post("resume") == 200
        assert post("resume") == 400


def test_a_limit_that_is_not_given_stays_unchanged(tmp_path: Path) -> None:
    """Setting the limit of bytes leaves that of objects unchanged; 0 lifts one of them, default both."""
    with running_node(tmp_path, QUEUES) as node:

        def throttled(**wish: Any) -> dict[str, Any]:
            connection = HTTPConnection("127.0.0.1", node.admin, timeout=PATIENCE_S)
            connection.request("POST", "/admin/queues/to-west/throttle", json.dumps(wish))
            said = json.loads(connection.getresponse().read())
            connection.close()
            (shown,) = (queue["throttle"]["configured"] for queue in said["queues"] if queue["name"] == "to-west")
            return {what: shown[f"{what}_per_second"] for what in ("bytes", "objects")}

        assert throttled(objects_per_second=500) == {"bytes": None, "objects": 500}
        assert throttled(bytes_per_second=10_000_000) == {"bytes": 10_000_000, "objects": 500}
        assert throttled(objects_per_second=0) == {"bytes": 10_000_000, "objects": None}
        assert throttled(default=True) == {"bytes": None, "objects": None}


def test_a_partition_with_an_unknown_cursor_is_listed_among_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Right after an election it is unknown whether there are gaps: the listing names the partition, and `isthmus
    check` is unknown; otherwise both would show that there are none."""
    with running_node(tmp_path, QUEUES) as node:
        assert node.node is not None
        monkeypatch.setenv("ISTHMUS_ADMIN", f"http://127.0.0.1:{node.admin}")
        wait_for_windows(node)
        assert main(["check", "gaps"]) == main(["check", "lag"]) == main(["check", "isr"]) == Exit.OK
        assert main(["check", "sync"]) == Exit.UNAVAILABLE
        assert "SYNC UNKNOWN: no node that answers has a [[fullsync]]" in capsys.readouterr().out
        node.node.services.queues.named("to-west").machine.windows.pop(0)
        assert main(["check", "gaps"]) == Exit.UNAVAILABLE
        assert "queue to-west: gaps of partition 0 are not known" in capsys.readouterr().out
        assert main(["gaps", "to-north"]) == Exit.OK
        assert capsys.readouterr().err == ""
        assert main(["gaps", "to-west"]) == Exit.OK
        assert "queue to-west: gaps of partitions 0 are not known now" in capsys.readouterr().err


def test_a_bucket_type_that_is_not_placed_yet_is_not_called_unknown(tmp_path: Path) -> None:
    """`default` exists from the start: before it is placed, and before this node has read the placement, requests for
    its partitions are answered with "wait". Another name, once some are known, is an error."""
    with running_node(tmp_path, QUEUES) as node:
        assert node.node is not None
        assert list(node.node.services.membership.partitions(b"default")) == [0, 1]
        with pytest.raises(UnknownBucketType):
            node.node.services.membership.partitions(b"notes")
        records, node.node.services.controller.records = node.node.services.controller.records, {}
        for name in (b"default", b"notes"):
            with pytest.raises(NotReady, match="not known here yet"):
                node.node.services.membership.partitions(name)
        node.node.services.controller.records = {p: replace(r, bucket_type="notes") for p, r in records.items()}
        with pytest.raises(NotReady, match="not known here yet"):
            node.node.services.membership.partitions(b"default")
        node.node.services.controller.records = records


def test_a_dry_run_counts_the_changes_that_would_be_left_out(tmp_path: Path) -> None:
    """A dry run of clear, delist, release, suspend and set counts the backlog and changes nothing; a filter that names
    an unknown bucket type is accepted with a note."""
    with running_node(tmp_path, QUEUES) as node:

        def post(path: str, **wish: Any) -> tuple[int, dict[str, Any]]:
            connection = HTTPConnection("127.0.0.1", node.admin, timeout=PATIENCE_S)
            connection.request("POST", f"/admin/queues/{path}", json.dumps(wish), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = json.loads(answer.read())
            connection.close()
            return answer.status, said

        wait_for_windows(node)
        assert post("to-west/push", bucket="b", keys=["k", "l"])[1]["queued"] == 2
        for path, wish, words in (
            ("to-west/clear", {}, "discards 0 changes that wait for no cluster yet, 2 references of full-sync"),
            ("to-west/delist", {}, "0 changes that wait for no cluster yet, 2 references of full-sync and 0 of folds"),
            ("to-west/release", {"from": "now"}, "begins with new changes: waiting changes become a gap"),
            ("to-west/suspend", {}, "serves no changes on all nodes: they wait"),
            ("to-west/suspend", {"what": "publishing"}, "changes from now on become a gap"),
            ("to-west/suspend", {"what": ["serving", "publishing"], "node": "n1"}, "on node n1, and serves none"),
            ("to-west/set", {"filter": "bucketname:b"}, "it offers nothing more than before, so no gap is recorded"),
            ("to-west/set", {"cascade": True}, "everything below each cursor becomes a gap"),
            ("to-west/set", {"from": "0"}, "offers every change that its filter selects once more"),
            ("to-west/set", {"object_limit": 5}, "only its limits change, and no cursor moves"),
        ):
            status, plan = post(path, **wish, dry_run=True)
            assert status == 200, (path, plan)
            assert words in plan["effect"], (path, plan)
            assert plan["waiting"] == {"real_time": 0, "full_sync": 2, "fold": 0}
        assert post("to-west/clear")[1]["queues"][0]["priorities"]["full_sync"]["waiting"] == 0
        for wish in ({}, {"default": True, "filter": "any"}, {"from": 5}, {"lease_ms": 1}, {"filter": "bucketname:%z"}):
            assert post("to-west/set", **wish)[0] == 400, wish
        answer = post("to-west/set", filter="buckettype:defualt", by="ann")[1]
        assert answer["notes"] == ['no such bucket type: "defualt"; did you mean "default"?']
        assert answer["queues"][0]["filter"] == "buckettype:defualt"
        assert post("register", name="late", filter="buckettype:default")[1]["notes"] == []
