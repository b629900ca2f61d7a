"""`isthmus sink ...` against an admin listener that answers from a script: requests and output."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.node.cli import admin_client
from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.http.answer_limits import RETRY_TIMEOUT_MS, RETRY_WAIT_S
from tests.component.cli.test_admin_client import SINK
from tests.support.cluster_answers import cluster_answer
from tests.support.fake_admin_listener import FakeAdminListener

OVERVIEW = {
    "node": "west-1",
    "state": "running",
    "reason": "",
    "workers": {"count": 24, "busy": 3, "peer_limit": 8},
    "throttle": {
        "configured": {"bytes_per_second": 5_000_000, "objects_per_second": None},
        "binding": "bytes",
        "achieved": {"bytes_per_second": 4_900_000.0, "objects_per_second": 4_700.0},
        "throttled_seconds": 12.5,
    },
    "limits_set": {"by": "ann", "at_ms": 0, "reason": "day"},
    "sources": [
        {"source_cluster": "east", "queue": "to-west", "fetched": 9, "applied": 8, "superseded": 1, "merged": 0,
         "rejected": 0, "failed": 0, "under_way": 0, "last_batch_ms": 0}
    ],
    "dead_letters": {"kept": 1, "given_up": 0},
}  # fmt: skip


def test_a_nodes_sink_is_shown_with_the_limit_that_binds(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers, limits configured and achieved, who set them, and the changes received from each source; unknown values
    are shown as such."""
    listener.respond("/admin/sink/nodes", {"nodes": [{"node": "west-1", "sink": OVERVIEW}]})
    assert cli.main(["sink", "show", "--node", "west-1"]) == Exit.OK
    told = capsys.readouterr().out
    for line in (
        "workers: 24, 3 busy",
        "limit: 5 MB/s",
        "binding: bytes",
        "achieved: 4.9 MB/s, 4700 changes/s",
        "throttled: 12.5 s",
        "limits set: by ann, 1970-01-01 00:00:00Z: day",
        "dead letters: 1 kept, 0 given up",
    ):
        assert line in told.splitlines()
    assert "east to-west 9 8 1 0 0 0 0 1970-01-01 00:00:00Z" in [" ".join(line.split()) for line in told.splitlines()]
    listener.respond("/admin/sink/nodes", {"nodes": [{"node": "west-1", "sink": {}}]})
    assert cli.main(["sink", "show", "--node", "west-1"]) == Exit.OK
    told = capsys.readouterr().out
    for line in ("node: unknown", "limit: unknown", "achieved: unknown", "throttled: unknown", "limits set: unknown"):
        assert line in told.splitlines()


def test_limits_and_rates_of_a_silent_node_are_unknown(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that does not answer has an unknown limit, binding and rate, never "none" or 0, and the reason why."""
    nodes = [{"node": "w1", "sink": OVERVIEW}, {"node": "w2", "sink": None}, {"node": "w3", "sink": None}]
    listener.respond("/admin/sink/nodes", {"nodes": nodes, "unknown": {"w2": "unreachable: refused"}})
    assert cli.main(["sink", "show"]) == Exit.OK
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert rows[2] == "w2 unknown unknown unknown unknown unknown unknown unknown unreachable: refused"
    assert rows[3].endswith("unknown the node does not answer")
    assert cli.main(["sink", "list"]) == Exit.OK
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [row.startswith(f"w{number} unknown") for number, row in enumerate(rows[-2:], 2)] == [True, True]
    assert ["unreachable: refused" in rows[-2], "the node does not answer" in rows[-1]] == [True, True]


def test_sinks_of_all_nodes_are_listed_and_a_silent_one_is_unknown(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each link has a row with its node's name; a node that does not answer has a row of unknowns."""
    nodes = [{"node": "w1", "sink": {"sinks": [SINK]}}, {"node": "w2", "sink": None}]
    listener.respond("/admin/sink/nodes", {"nodes": nodes})
    assert cli.main(["sink", "list"]) == Exit.OK
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert rows[1].startswith("w1 west http://10.0.0.7:8098 cluster operator fetching")
    assert rows[2].startswith("w2 unknown unknown unknown")


def test_limits_are_asked_for_as_they_are_meant(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers, workers per peer and rates are sent as numbers, for one node or all; invalid values are usage errors."""
    listener.respond("/admin/sink/limits", OVERVIEW)
    by = admin_client.whoami()
    common = {"node": None, "by": by, "reason": ""}
    rates = "bytes_per_second", "objects_per_second"
    for arguments, wish in (
        (["set-workers", "7", "--per-peer", "2"], {"workers": 7, "per_peer": 2}),
        (["set-workers", "--default", "--node", "w1"], {"workers": 1, "per_peer": 0, "forget": True, "node": "w1"}),
        (["throttle", "--bytes", "5MB/s"], dict(zip(rates, (5_000_000, None), strict=True))),
        (["throttle", "--objects", "100", "--bytes", "none"], dict(zip(rates, (0, 100), strict=True))),
        (["throttle", "--off"], {**dict.fromkeys(rates, 0), "forget": False}),
        (["throttle", "--default"], {**dict.fromkeys(rates, 0), "forget": True}),
    ):
        assert cli.main(["sink", *arguments]) == Exit.OK
        assert listener.posted.pop() == ("/admin/sink/limits", {**common, **wish})
    assert "west-1: limit set" not in capsys.readouterr().out.splitlines()[0]
    for wrong in (["set-workers"], ["set-workers", "3", "--default"], ["throttle"], ["throttle", "--off", "--default"],
                  ["throttle", "--bytes", "fast"], ["set-workers", "0"]):  # fmt: skip
        assert cli.main(["sink", *wrong]) == Exit.USAGE, wrong


def test_a_limit_is_reported_with_the_nodes_that_have_it(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of the cluster, as many as there are, or the one of `--node`, with the numbers of the node that answers."""
    listener.respond("/admin/sink/limits", {**OVERVIEW, "node": "west-1"})
    listener.respond("/admin/cluster", cluster_answer("west"))
    for words, place, what in (
        (["throttle", "--objects", "1"], "on all 3 nodes", "limit set"),
        (["throttle", "--objects", "1", "--node", "west-2"], "on node west-2", "limit set"),
        (["throttle", "--off"], "on all 3 nodes", "no limit"),
        (["throttle", "--default"], "on all 3 nodes", "as configured"),
        (["set-workers", "4"], "on all 3 nodes", "set"),
    ):
        assert cli.main(["sink", *words]) == Exit.OK
        assert capsys.readouterr().out.startswith(f"sink {place}: {what}; west-1: ")
    listener.respond("/admin/cluster", {"error": "not now", "reason": "unavailable"}, status=503)
    assert cli.main(["sink", "throttle", "--off"]) == Exit.OK
    assert capsys.readouterr().out.startswith("sink on all nodes: no limit; west-1: ")


def test_a_retry_is_waited_for_longer_than_a_node_may_take(
    listener: FakeAdminListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer says which letters were retried: the command must not time out before."""
    waits: list[float] = []
    with_timeout = admin_client.AdminClient.with_timeout

    def record(client: admin_client.AdminClient, timeout_s: float) -> admin_client.AdminClient:
        waits.append(timeout_s)
        return with_timeout(client, timeout_s)

    monkeypatch.setattr(admin_client.AdminClient, "with_timeout", record)
    listener.respond("/admin/sink/dead-letters/retry", {"retried": [{"id": 4, "outcome": "applied"}]})
    assert cli.main(["sink", "dead-letters", "retry", "4"]) == Exit.OK
    assert waits == [RETRY_WAIT_S]
    assert 1_000 * RETRY_WAIT_S > RETRY_TIMEOUT_MS


def test_dead_letters_are_listed_retried_and_dropped(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ids or --all, never both or neither; a retry that is refused again ends with 1 and gives the reason."""
    letter = {"id": 4, "at_ms": 0, "queue": "q", "source_cluster": "east", "key": ["default", "b", "k"],
              "size_bytes": 9, "object_kept": True, "tries": 1, "reason": "too-large", "error": "no room"}  # fmt: skip
    path = "/admin/sink/dead-letters"
    listener.respond(path, {"dead_letters": [letter]})
    assert cli.main(["sink", "dead-letters", "list"]) == Exit.OK
    assert "4 1970-01-01 00:00:00Z q east default b k 9 yes 1 too-large no room" in " ".join(
        capsys.readouterr().out.split()
    )
    answer = {"id": 4, "outcome": "rejected", "reason": "too-large", "error": "still no room"}
    listener.respond(f"{path}/retry", {"retried": [answer]})
    assert cli.main(["sink", "dead-letters", "retry", "4"]) == Exit.DIFFERS
    assert capsys.readouterr().out == "4: rejected: still no room\n"
    listener.respond(f"{path}/retry", {"retried": [{"id": 4, "outcome": "applied", "reason": None, "error": None}]})
    assert cli.main(["sink", "dead-letters", "retry", "--all"]) == Exit.OK
    listener.respond(f"{path}/drop", {"dropped": 1})
    assert cli.main(["sink", "dead-letters", "drop", "4", "5"]) == Exit.OK
    by = admin_client.whoami()
    assert [body for _, body in listener.posted] == [
        {"ids": [4], "by": by}, {"ids": [4], "by": by}, {"ids": [4, 5], "by": by},
    ]  # fmt: skip
    assert capsys.readouterr().out.splitlines()[-2:] == ["taken: 1 of 1", "dropped: 1"]
    assert cli.main(["sink", "dead-letters", "drop"]) == Exit.USAGE
    assert cli.main(["sink", "dead-letters", "drop", "4", "--all"]) == Exit.USAGE


def test_dead_letters_are_retried_one_by_one_and_each_outcome_is_reported(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A letter may wait for its source or for a leader until the request's time-out, so each has a request of its own;
    one without an answer ends the command, which has printed the outcomes before it, and names that letter."""
    path = "/admin/sink/dead-letters"
    listener.respond(path, {"dead_letters": [{"id": number} for number in (4, 5, 9)]})
    taken = {"id": 4, "outcome": "applied", "reason": None, "error": None}
    listener.respond(f"{path}/retry", {"retried": [taken]})
    assert cli.main(["sink", "dead-letters", "retry", "--all"]) == Exit.OK
    assert [body["ids"] for _, body in listener.posted] == [[4], [5], [9]]
    assert capsys.readouterr().out.splitlines()[-1] == "taken: 3 of 3"
    post = admin_client.AdminClient.post

    def silent(client: admin_client.AdminClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if body["ids"] == [5]:
            raise CommandFailed(Exit.UNAVAILABLE, "unavailable", "no answer within 20 s")
        return post(client, path, body)

    monkeypatch.setattr(admin_client.AdminClient, "post", silent)
    for options in ((), ("-o", "json")):
        assert cli.main(["sink", "dead-letters", "retry", "4", "5", "9", *options]) == Exit.UNAVAILABLE
        shown = capsys.readouterr()
        assert "applied" in shown.out
        assert "dead letter 5, after 1 of 3: no answer within 20 s" in shown.err
    assert json.loads(shown.out) == {"retried": [taken]}


def test_all_dead_letters_are_dropped_only_after_confirmation(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal to confirm at, --yes is needed; the counted letters are dropped, and none that arrived
    since."""
    monkeypatch.setattr("isthmus.node.cli.sink.IDS_MAX", 2)
    path = "/admin/sink/dead-letters"
    listener.respond(path, {"dead_letters": [{"id": number} for number in (4, 5, 9)]})
    assert cli.main(["sink", "dead-letters", "drop", "--all"]) == Exit.USAGE
    assert "nothing was done" in capsys.readouterr().err
    assert listener.posted == []
    listener.respond(f"{path}/drop", {"dropped": 1})
    assert cli.main(["sink", "dead-letters", "drop", "--all", "--yes"]) == Exit.OK
    assert capsys.readouterr().out == "dropped: 2 of 3\n"
    assert [body["ids"] for _, body in listener.posted] == [[4, 5], [9]]
    assert cli.main(["sink", "dead-letters", "drop", "--all", "--yes", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == {"dropped": 2}
    listener.respond(path, {"dead_letters": []})
    assert cli.main(["sink", "dead-letters", "drop", "--all"]) == Exit.OK
    assert capsys.readouterr().out == "dropped: 0 of 0\n"


def test_peers_and_workers_of_a_queue_are_asked_for_as_they_are_meant(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Added and removed peers and limits are sent as given, with who and why; contradictions are usage errors."""
    for path in ("peers/add", "peers/remove", "limits"):
        listener.respond(f"/admin/sink/{path}", OVERVIEW)
    listener.respond("/admin/sink/check", {"checks": [{"what": "queue", "state": "pass", "found": "to-west"}]})
    act = {"by": "ann", "reason": "site"}
    said = ["--by", "ann", "--reason", "site"]
    url = "https://10.0.0.7:8098"
    assert (
        cli.main(["sink", "add-peer", url, "q", "--peer-cluster", "east", "--peer-token-file", "/t", *said]) == Exit.OK
    )
    assert cli.main(["sink", "remove-peer", url, "q", *said]) == Exit.OK
    assert cli.main(["sink", "set-workers", "3", "--queue", "q", *said]) == Exit.OK
    assert cli.main(["sink", "set-workers", "--default", "--queue", "q", "--node", "w1", *said]) == Exit.OK
    assert [wish for _, wish in listener.posted] == [
        {"queue": "q", "url": url, "cluster": "east", "token_file": "/t"},
        {"queue": "q", "url": url, "cluster": "east", "token_file": "/t", **act},
        {"queue": "q", "url": url, **act},
        {"queue": "q", "workers": 3, "forget": False, "node": None, **act},
        {"queue": "q", "workers": None, "forget": True, "node": "w1", **act},
    ]
    assert "queue q: at most 3 workers" in capsys.readouterr().out
    for wrong in (["--queue", "q"], ["3", "--queue", "q", "--per-peer", "1"], ["3", "--queue", "q", "--default"]):
        assert cli.main(["sink", "set-workers", *wrong]) == Exit.USAGE


def test_a_link_that_would_not_work_is_added_only_with_a_word(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """`sink add-peer` tests the link as `sink check` does: what fails is shown, and nothing is added where nobody can
    answer; --yes adds it without a test. A node of a version without the test adds it as before."""
    failing = {"what": "queue", "state": "fail", "found": 'no such queue: "nope"', "right": "register it"}
    held = {"what": "clock", "state": "unknown", "found": "not told", "right": ""}
    listener.respond("/admin/sink/check", {"checks": [failing, held]})
    listener.respond("/admin/sink/peers/add", OVERVIEW)
    command = ["sink", "add-peer", "http://10.0.0.7:8098", "nope"]
    assert cli.main(command) == Exit.USAGE
    error = capsys.readouterr().err
    assert 'queue: no such queue: "nope"; right: register it' in error
    assert "not told" not in error
    assert [path for path, _ in listener.posted] == ["/admin/sink/check"]
    assert cli.main([*command, "--yes"]) == Exit.OK
    assert [path for path, _ in listener.posted] == ["/admin/sink/check", "/admin/sink/peers/add"]
    listener.respond("/admin/sink/check", {"checks": [held]})
    assert cli.main(command) == Exit.OK
    listener.respond("/admin/sink/check", {"error": "no such path", "reason": "unknown-path"}, 404)
    assert cli.main(command) == Exit.OK
    listener.respond("/admin/sink/check", {"error": "the role operate is needed", "reason": "forbidden"}, 403)
    assert cli.main(command) == Exit.REFUSED
    assert [path for path, _ in listener.posted].count("/admin/sink/peers/add") == 3
