"""The audit log of a whole node in memory: acts of the command line, HTTP clients and signals, over restarts."""

from __future__ import annotations

import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from tests.support.threaded_node import ThreadedNode, running_node
from tests.support.waiting import PATIENCE_S, wait_until

QUEUE = '[[queues]]\nname = "to-west"\n'


def acts(node: ThreadedNode, query: str = "") -> dict[str, Any]:
    """The answer of GET /admin/audit."""
    status, answer = call(node.admin, "GET", f"/admin/audit{query}")
    assert status == 200, answer
    return answer


def call(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    return answer.status, json.loads(raw) if raw and raw[:1] == b"{" else raw


def test_acts_by_all_ways_are_recorded_and_survive_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line's, those of programs on both listeners, refused ones, a reload; each with before and after. Dry
    runs and reads are not. A line is there when its answer is."""
    with running_node(tmp_path, QUEUE) as node:
        monkeypatch.setenv("ISTHMUS_ADMIN", f"http://127.0.0.1:{node.admin}")
        lag = "replication.max.time.lag.millis"
        assert cli.main(["option", "set", lag, "4s", "--by", "ann@desk"]) == Exit.OK
        assert cli.main(["option", "set", lag, "5s", "--by", "ann@desk", "--dry-run"]) == Exit.OK
        suspend = ["queue", "suspend", "to-west", "--by", "ann@desk", "--reason", "the link is down", "--yes"]
        assert cli.main(suspend) == Exit.OK
        assert call(node.http, "PUT", "/buckets/b%2F1/props", {"props": {"allow_mult": False}})[0] == 204
        assert call(node.http, "PUT", "/riak/old", {"props": {"allow_mult": False}})[0] == 204
        assert call(node.http, "DELETE", "/buckets/old/props")[0] == 204
        assert call(node.http, "PUT", "/buckets/b/keys/k", "data")[0] == 204
        assert call(node.admin, "POST", "/admin/nodes/n9/remove", {"by": "bob"})[0] == 404
        assert call(node.admin, "POST", "/admin/queues/to-west/clear", {"by": "bob", "reason": "stale"})[0] == 200
        found = acts(node)["acts"]
        assert [(act["id"], act["via"], act["who"]["by"], act["outcome"], act["what"]["act"]) for act in found] == [
            (7, "http", "bob", "done", "clear queue to-west"),
            (6, "http", "bob", "refused", "remove node n9"),
            (5, "http", None, "done", "unset properties of bucket default/old"),
            (4, "http", None, "done", "set properties of bucket default/old: props={\"allow_mult\": false}"),
            (3, "http", None, "done", "set properties of bucket default/b/1: props={\"allow_mult\": false}"),
            (2, "cli", "ann@desk", "done", "suspend queue to-west: what=serving"),
            (1, "cli", "ann@desk", "done", f"set option {lag}: value=4s"),
        ]  # fmt: skip
        option, queue, props = found[-1], found[-2], found[-3]
        assert (option["before"], option["after"]) == (None, 4_000)
        assert (queue["before"]["suspensions"], queue["reason"]) == ([], "the link is down")
        assert queue["after"]["suspensions"] == [{"what": "serving", "node": None}]
        assert (props["before"], props["after"]) == ({}, {"allow_mult": False})
        assert all(act["from"].startswith("127.0.0.1:") and act["node"] == "n1" for act in found)
        assert found[1]["error"].startswith("unknown: ")
    again = tmp_path / "again"  # since the metastore in memory ended with its node
    (again / "data").mkdir(parents=True)
    (tmp_path / "data" / "audit").rename(again / "data" / "audit")
    with running_node(again, QUEUE) as node:
        assert node.node is not None
        node._loop.call_soon_threadsafe(node.node.request_reload)
        wait_until(lambda: acts(node, "?limit=1")["acts"][0]["id"] >= 8, "the reload is recorded")
        rows = acts(node, "?limit=2")["acts"]
        assert [(act["id"], act["via"], act["what"]["act"]) for act in rows] == [
            (8, "signal", "reload the node's files"), (7, "http", "clear queue to-west"),
        ]  # fmt: skip
        capsys.readouterr()
        monkeypatch.setenv("ISTHMUS_ADMIN", f"http://127.0.0.1:{node.admin}")
        assert cli.main(["audit", "list", "--limit", "3"]) == Exit.OK
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["AT", "NODE", "WHO", "ACT", "OUTCOME"]
        assert [line.split()[2] for line in lines[1:4]] == ["n1", "n1", "n1"]
        assert lines[4] == "older ones: --from n1:6"
        assert cli.main(["audit", "list", "--from", "n1:6", "-o", "json"]) == Exit.OK
        assert [act["id"] for act in json.loads(capsys.readouterr().out)["acts"]] == [5, 4, 3, 2, 1]


FULL_SYNC = '[[fullsync]]\nname = "west"\nurls = "http://127.0.0.1:9"\nqueue = "to-west"\n'


def test_acts_tell_what_was_before_and_after(tmp_path: Path) -> None:
    """Each act shows the part of the state that it changes, of queues, sink, full-sync, placement, properties and
    records; null where there was nothing, or where it is unknown."""
    peer = {"queue": "to-east", "url": "http://127.0.0.1:9"}
    with running_node(tmp_path, QUEUE + FULL_SYNC) as node:

        def changed(path: str, body: dict[str, Any], *keys: str, status: int = 200) -> tuple[Any, Any]:
            """The values before and after an act, at `keys` within them."""
            answer = call(node.admin, "POST", f"/admin/{path}", {**body, "by": "ann", "reason": "why"})
            assert answer[0] == status, answer
            (act,) = acts(node, "?limit=1")["acts"]
            assert (act["what"]["path"], act["who"]["by"], act["reason"]) == (f"/admin/{path}", "ann", "why")
            found = [act["before"], act["after"]]
            for key in keys:
                found = [None if value is None else value[key] for value in found]
            return found[0], found[1]

        queue = "queues/to-west"
        assert changed("queues/register", {"name": "more", "filter": "any"}, "settings", "filter") == (None, "any")
        assert changed(f"{queue}/set", {"object_limit": 7}, "settings", "object_limit_count") == (1_000, 7)
        rates = changed(f"{queue}/throttle", {"objects_per_second": 9}, "rates")
        assert rates == ({"bytes": 0, "objects": 0}, {"bytes": 0, "objects": 9})
        serving = [{"what": "serving", "node": "n1"}]
        assert changed(f"{queue}/suspend", {"node": "n1"}, "suspensions") == ([], serving)
        assert changed(f"{queue}/resume", {"node": "n1"}, "suspensions") == (serving, [])
        assert changed(f"{queue}/push", {"bucket": "b", "keys": ["k"]}) == (None, {"queued": 1})
        assert changed("queues/more/delist", {}, "owner") == (None, None)
        (after,) = {len(each) for each in changed("sink/suspend", {}, "suspensions")} - {0}
        assert after == 1
        assert changed("sink/limits", {"workers": 3}, "limits", "workers")[1] == 3
        none, one = changed("sink/peers/add", peer, "peers_set")
        assert (none, [each["url"] for each in one]) == ([], [peer["url"]])
        assert changed("sink/dead-letters/drop", {}) == (None, {"dropped": 0})
        assert changed("fullsync/suspend", {"peer": "west"}, "suspensions") == ([], [{"peer": "west", "node": None}])
        assert changed("fullsync/set", {"peer": "west", "values": {"all": 2}}, "set") == (
            {}, {"west": {"*": {"removed": False, "values": {"all": 2}}}},
        )  # fmt: skip
        assert changed("fullsync/set-range", {"since_ms": 1, "before_ms": 5}, "west", "range") == (None, [1, 5])
        times = {"since_ms": 2, "before_ms": 5, "node": "n1"}
        assert changed("fullsync/set-range", times, "west", "range") == ([1, 5], [2, 5])
        assert changed("fullsync/clear-range", {}, "west", "range") == ([2, 5], None)
        assert changed("fullsync/suppress-auto", {"count": 4}, "west", "suppressed") == (0, 4)
        created = changed("bucket-types/notes", {"partition_count": 1, "replication_factor": 1}, "outcome")
        assert created == (None, "created")
        props = changed("bucket-types/notes/properties/set", {"props": {"allow_mult": False}})
        assert props == ({}, {"allow_mult": False})
        assert changed("bucket-types/notes/properties/unset", {}) == ({"allow_mult": False}, {})
        assert changed("reaps", {"bucket": "b", "key": "k"}, "outcome") == (None, "no-tombstone")
        erase = {"kind": "erase-keys", "partition": 0, "dry_run": False}
        status, _ = call(node.admin, "POST", "/admin/folds", {**erase, "by": "ann"})
        assert (status, acts(node, "?limit=1")["acts"][0]["after"]["done"]) == (200, 0)
        newest = acts(node, "?limit=1")["acts"][0]["id"]
        call(node.admin, "POST", "/admin/folds", {"kind": "erase-keys", "partition": 0})
        call(node.admin, "POST", "/admin/folds", {"kind": "find-keys", "partition": 0, "dry_run": False})
        assert acts(node, "?limit=1")["acts"][0]["id"] == newest, "neither changes anything"


def test_pages_are_asked_for_by_time_number_and_node(tmp_path: Path) -> None:
    """Every parameter of the query is a bound; an invalid one is refused with a valid form."""
    with running_node(tmp_path) as node:
        for count in range(5):
            call(node.admin, "POST", "/admin/fullsync/run", {"kind": "all", "by": f"n{count}"})
        first = acts(node, "?limit=2&node=n1")
        assert ([act["id"] for act in first["acts"]], first["next"]) == ([5, 4], "n1:4")
        rest = acts(node, f"?limit=10&before={first['next']}")
        assert ([act["id"] for act in rest["acts"]], rest["next"]) == ([3, 2, 1], None)
        since = first["acts"][0]["at_ms"]
        assert first["acts"][0]["id"] in {act["id"] for act in acts(node, f"?since={since}")["acts"]}
        assert acts(node, f"?since={since + 100_000}")["acts"] == []
        assert first["nodes"] == {"n1": {"unreadable": 0, "lost": 0}}
        for query, reason in (
            ("limit=0", "bad-query"), ("limit=1001", "bad-query"), ("since=-1", "bad-query"), ("since=x", "bad-query"),
            ("before=n1", "bad-query"), ("before=n1:x", "bad-query"), ("node=n9", "unknown-node"),
        ):  # fmt: skip
            status, answer = call(node.admin, "GET", f"/admin/audit?{query}")
            assert (status in (400, 404), answer["reason"]) == (True, reason), query


@pytest.mark.logs_errors("audit.lost")
def test_an_act_is_carried_out_although_the_disk_is_full(tmp_path: Path) -> None:
    """The option is set; the loss is counted in the metrics, in the answer of the log, and by the next line."""
    path = "/admin/options/replication.max.time.lag.millis/set"
    with running_node(tmp_path) as node:
        assert call(node.admin, "POST", path, {"value": 4_000})[0] == 200
        assert node.node is not None
        services = node.node.services
        file = services.journal.directory / "000000000001.jsonl"
        kept = file.rename(tmp_path / "kept")
        file.symlink_to("/dev/full")
        services.journal._acts.close()
        status, answer = call(node.admin, "POST", path, {"value": 5_000})
        assert (status, answer["options"][0]["effective"]) == (200, 5_000)
        metrics = call(node.admin, "GET", "/metrics")[1].decode()
        assert 'isthmus_audit_lines_total{result="lost"} 1' in metrics
        file.unlink()
        kept.rename(file)
        services.journal._acts.close()
        assert call(node.admin, "POST", path, {"value": 6_000})[0] == 200
        found = acts(node)
        assert [(act["id"], act["after"], act.get("lost_before")) for act in found["acts"]] == [
            (3, 6_000, 1), (1, 4_000, None),
        ]  # fmt: skip
        assert found["nodes"]["n1"]["lost"] == 1
