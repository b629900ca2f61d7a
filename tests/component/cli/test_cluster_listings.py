"""Listings of queues, sinks and full-sync: of the whole cluster by default, with `--node` of one node."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.main import main
from tests.component.cli.test_sink import OVERVIEW
from tests.support.cluster_answers import fullsync_answer, queue_row, respond_as
from tests.support.fake_admin_listener import FakeAdminListener

COUNTS = ("queued", "acknowledged", "collapsed", "vanished", "cleared")


def queue_of(node: str, waiting: int) -> dict[str, Any]:
    """All fields of a queue in a node's listing."""
    bulk = {"waiting": 0, "in_flight": 0, **dict.fromkeys(COUNTS, 1)}
    rates = {"bytes_per_second": 0.0, "objects_per_second": 0.0}
    return queue_row("east", node) | {
        "cascade": False, "overflow": "replay", "decree": None, "properties_differ": {}, "partitions": 4,
        "owner": {"cluster": "west", "uuid": "f", "since_ms": 0, "by": "west", "version": 1},
        "limits": {"queue": 10, "objects": 5, "object_bytes": 9}, "waiting": waiting, "waiting_at_ms": 0,
        "throttle": {"configured": {}, "achieved": rates, "set": None, "binding": "", "throttled_seconds": 0.0},
        "references_in_memory": 0, "objects_in_memory": 0, "served": 0, "batches": 0, "acknowledged": 0,
        "redelivered": 0, "collapsed": 0, "vanished": 0, "late_acknowledgements": 0, "refused_acknowledgements": 0,
        "gaps": 1, "priorities": {"real_time": {"waiting": waiting, "in_flight": 0}, "full_sync": bulk, "fold": bulk},
    }  # fmt: skip


def test_a_queue_is_shown_in_sum_and_by_node(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """The backlog is the nodes' sum, unknown as soon as one node does not answer; --node shows the counters of one."""
    nodes = [{"node": f"east-{n}", "gone": False, "queues": [queue_of(f"east-{n}", 10 * n)]} for n in (1, 2)]
    listener.respond("/admin/queues/nodes", {"nodes": nodes})
    assert main(["queue", "show", "to-west"]) == Exit.OK
    out = capsys.readouterr().out
    assert "waiting: 30" in out
    assert "gaps: 2" in out
    assert [line.split()[:3] for line in out.splitlines() if line.startswith("east-")] == [
        ["east-1", "4", "10"], ["east-2", "4", "20"],
    ]  # fmt: skip
    assert ["full-sync", "0", "0", "2", "2", "2", "2", "2"] in [line.split() for line in out.splitlines()]
    assert main(["queue", "show", "to-west", "--node", "east-2"]) == Exit.OK
    out = capsys.readouterr().out
    assert "partitions led here: 4" in out
    assert "waiting: 20 (at" in out
    nodes.append({"node": "east-3", "gone": True, "queues": None})
    listener.respond("/admin/queues/nodes", {"nodes": nodes})
    assert main(["queue", "show", "to-west"]) == Exit.OK
    out = capsys.readouterr().out
    assert "waiting: unknown" in out
    assert "the node is gone: others lead its share" in out
    assert main(["queue", "show", "to-west", "-o", "json"]) == Exit.OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["waiting"], list(shown["silent"]), len(shown["nodes"])) == (None, ["east-3"], 2)
    assert main(["queue", "show", "to-west", "--node", "east-3"]) == Exit.UNAVAILABLE
    assert main(["queue", "list", "--node", "east-9"]) == Exit.USAGE
    assert 'no such node: "east-9"' in capsys.readouterr().err


def test_sinks_are_shown_by_node_and_sources_in_sum(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that does not answer has a row that says so; a source cluster's counts are summed over the nodes."""
    nodes = [{"node": f"w{n}", "sink": {**OVERVIEW, "node": f"w{n}"}} for n in (1, 2)] + [{"node": "w3", "sink": None}]
    listener.respond("/admin/sink/nodes", {"nodes": nodes})
    assert main(["sink", "show"]) == Exit.OK
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert rows[1].startswith("w1 running 24 3 5 MB/s bytes 4.9 MB/s")
    assert rows[3].endswith("the node does not answer")
    assert "east to-west 18 16 2 0 0 0 0 1970-01-01 00:00:00Z" in rows
    assert main(["sink", "show", "--node", "w3"]) == Exit.UNAVAILABLE
    capsys.readouterr()
    assert main(["sink", "list", "--node", "w1", "-o", "json"]) == Exit.OK
    assert [row["node"] for row in json.loads(capsys.readouterr().out)["nodes"]] == ["w1"]


def test_full_sync_shows_every_node(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """Each node's schedule and proofs are shown; a node that does not answer is named."""
    respond_as(listener, "east")
    answer = fullsync_answer("east")
    answer["nodes"]["east-3"] = None
    listener.respond("/admin/fullsync/nodes", answer)
    assert main(["fullsync", "status"]) == Exit.OK
    out, err = capsys.readouterr()
    rows = [line.split()[:3] for line in out.splitlines() if line.startswith("east-")]
    assert rows == [["east-1", "west", "scheduled"], ["east-2", "west", "scheduled"]]
    assert err == "node east-3 does not answer: its checks are not known\n"
    listener.respond("/admin/fullsync?results=5", {"node": "east-1"})
    assert main(["fullsync", "status", "--node", "east-2"]) == Exit.OK
    assert capsys.readouterr().out.startswith("east-2: ")
    assert main(["fullsync", "status", "--node", "east-3"]) == Exit.UNAVAILABLE
    assert main(["fullsync", "status", "--node", "east-4"]) == Exit.USAGE


def test_what_a_node_cannot_show_is_named(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """A queue, a link or a full-sync whose row a defect kept from being made is named with the reason, and the sums
    that need it are unknown."""
    respond_as(listener, "east")
    row = queue_row("east", "east-1")
    nodes = [
        {"node": "east-1", "gone": False, "queues": [row]},
        {"node": "east-2", "gone": False, "queues": [], "failed": {"to-west": "a defect"}},
    ]
    listener.respond("/admin/queues/nodes", {"nodes": nodes})
    assert main(["queue", "list"]) == Exit.OK
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["east-2", "to-west"]
    assert main(["queue", "list", "-o", "json"]) == Exit.OK
    shown = json.loads(capsys.readouterr().out)
    assert ([one["node"] for one in shown["queues"]], shown["failed"][0]["failed"]) == (["east-1"], "a defect")
    assert main(["queue", "show", "to-west", "-o", "json"]) == Exit.OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["waiting"], shown["silent"]) == (None, {"east-2": "cannot be shown: a defect"})
    sinks = [{"node": "w1", "sink": {**OVERVIEW, "sinks": [], "failed": {"q http://e1:1": "a defect"}}}]
    listener.respond("/admin/sink/nodes", {"nodes": sinks})
    assert main(["sink", "list"]) == Exit.OK
    line = capsys.readouterr().out.splitlines()[-1]
    assert (line.split()[:3], "cannot be shown: a defect" in line) == (["w1", "q", "http://e1:1"], True)
    answer = fullsync_answer("east")
    answer["nodes"]["east-1"]["failed"] = {"north": "a defect"}
    listener.respond("/admin/fullsync/nodes", answer)
    assert main(["fullsync", "status"]) == Exit.OK
    assert "warning: north: cannot be shown by node east-1: a defect" in capsys.readouterr().out
