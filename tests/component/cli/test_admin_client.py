"""Commands that send requests to an admin listener, with scripted answers."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from isthmus.node.cli import admin_client, node_listener
from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from tests.support.fake_admin_listener import FakeAdminListener

CLUSTER = {
    "cluster": "east",
    "cluster_uuid": "u-1",
    "node": "east-1",
    "version": "0.1.0",
    "controller": None,
    "partitions": {"total": 12, "online": 11},
    "nodes": [
        {"name": "east-1", "state": "active", "http": "127.0.0.1:8098", "admin": "127.0.0.1:8099", "leaders": 11}
    ],
    "actors": [{"actor": "full-sync", "state": "idle", "reason": "not configured"}],
    "under_replicated": [],
}

PARTITION = {
    "partition": 7,
    "bucket_type": "default",
    "index": 7,
    "leader": "east-1",
    "replicas": ["east-1", "east-2"],
    "isr": ["east-1"],
    "leo": 10,
    "hw": 10,
    "applied": 9,
    "lag": None,
    "status": "Online",
    "reason": None,
}

QUEUE = {
    "name": "west",
    "node": "east-1",
    "filter": "any",
    "owner": None,
    "waiting": 3,
    "in_flight": 0,
    "oldest_age_ms": 1500,
    "publishing": "running",
    "serving": "suspended",
    "reason": "repair",
}

SINK = {
    "queue": "west",
    "peer": "http://10.0.0.7:8098",
    "from": "operator",
    "state": "fetching",
    "delay_ms": 0,
    "applied": 5,
    "superseded": 1,
    "merged": 0,
    "rejected": 0,
    "lag_ms_p50": 1.84,
    "lag_ms_p99": None,
    "reason": "",
    "last_error": None,
}


@pytest.mark.parametrize(
    ("arguments", "path", "answer", "row"),
    [
        (
            ["partition", "list"],
            "/admin/partitions",
            {"partitions": [PARTITION]},
            "7 default/7 east-1 east-1, east-2 east-1 10 10 9 unknown Online -",
        ),
        (
            ["queue", "list"],
            "/admin/queues/nodes",
            {"nodes": [{"node": "east-1", "queues": [QUEUE]}]},
            "east-1 west any - 3 unknown 0 1.5 s running suspended repair",
        ),
        (
            ["sink", "list"],
            "/admin/sink/nodes",
            {"nodes": [{"node": "east-1", "sink": {"sinks": [SINK]}}]},
            "east-1 west http://10.0.0.7:8098 cluster operator fetching 0.0 ms 5 1 0 0 1.8 ms unknown - -",
        ),
        (
            ["sink", "list"],
            "/admin/sink/nodes",
            {"nodes": [{"sink": {"sinks": [{"queue": "q"}]}}]},
            "unknown q" + " unknown" * 13,
        ),
        (["queue", "list"], "/admin/queues/nodes", {"nodes": [{"queues": [{}]}]}, "unknown " * 10 + "-"),
        (["cluster", "status"], "/admin/cluster", CLUSTER, "full-sync idle not configured"),
    ],
)
def test_listings_show_the_answer_of_the_node(
    listener: FakeAdminListener,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    path: str,
    answer: Any,
    row: str,
) -> None:
    """The last line of each table is the row; `-o json` is the node's answer as it came; a queue has its node."""
    listener.respond(path, answer)
    assert cli.main(arguments) == Exit.OK
    assert " ".join(capsys.readouterr().out.splitlines()[-1].split()) == row
    assert cli.main([*arguments, "-o", "json"]) == Exit.OK
    shown = json.loads(capsys.readouterr().out)
    if arguments == ["queue", "list"]:
        (node,) = answer["nodes"]
        named = [{**queue, "node": node.get("node")} for queue in node["queues"] if "name" in queue]
        assert shown["queues"] == named
    else:
        assert shown == answer


def test_a_suspended_queue_shows_who_when_and_why(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Owner, age and suspension of a queue are shown as sentences; nothing waits, so no age is shown."""
    owner = {"cluster": "west", "uuid": "00", "version": 3}
    suspended = {"by": "ann@ops", "at_ms": 1_700_000_000_000, "reason": "disk"}
    queue = {
        **QUEUE,
        "owner": owner,
        "waiting": 0,
        "oldest_age_ms": None,
        "reason": "suspended: disk",
        "suspended": suspended,
    }
    listener.respond("/admin/queues/nodes", {"nodes": [{"node": "east-1", "queues": [queue]}]})
    assert cli.main(["queue", "list"]) == Exit.OK
    row = " ".join(capsys.readouterr().out.splitlines()[-1].split())
    assert row == (
        "east-1 west any west 0 unknown 0 - running suspended suspended: disk (by ann@ops, 2023-11-14 22:13:20Z)"
    )


def test_the_queues_of_all_nodes_name_those_that_are_silent_or_gone(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list includes every node: silent and gone nodes have rows of their own."""
    nodes = [
        {"node": "e1", "queues": [QUEUE], "gone": False},
        {"node": "e2", "queues": None, "gone": False},
        {"node": "e3", "queues": None, "gone": True},
    ]
    listener.respond("/admin/queues/nodes", {"nodes": nodes})
    assert cli.main(["queue", "list"]) == Exit.OK
    _, first, second, third = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert first.startswith("e1 west any")
    assert second == "e2" + " unknown" * 9 + " the node does not answer"
    assert third == "e3" + " unknown" * 9 + " the node is gone: others lead its share"


def test_cluster_status_calls_the_unknown_unknown(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown controller, and every key that a node does not send, are shown as "unknown"."""
    listener.respond("/admin/cluster", CLUSTER)
    assert cli.main(["cluster", "status"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert {"controller: unknown", "partitions: 11 of 12 online", "under-replicated: -"} <= set(lines)
    listener.respond("/admin/cluster", {})
    assert cli.main(["cluster", "status"]) == Exit.OK
    assert "partitions: unknown of unknown online" in capsys.readouterr().out


def test_cluster_status_ends_with_1_when_something_is_amiss(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each problem has a line; statuses other than online are counted; the exit code is for scripts."""
    partitions = {"total": 12, "online": 9, "election": 0, "candidate_found": 1, "offline": 2}
    listener.respond("/admin/cluster", {**CLUSTER, "partitions": partitions, "problems": ["node b is gone", "x"]})
    assert cli.main(["cluster", "status"]) == Exit.DIFFERS
    lines = capsys.readouterr().out.splitlines()
    assert {"partitions: 9 of 12 online, 1 candidate-found, 2 offline", "problem: node b is gone", "problem: x"} <= set(
        lines
    )
    assert cli.main(["cluster", "status", "-o", "json"]) == Exit.DIFFERS
    assert json.loads(capsys.readouterr().out)["problems"] == ["node b is gone", "x"]


def test_partitions_of_one_bucket_type_are_asked_for(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """The type goes to the node; a partition without a leader shows "-", not "unknown"."""
    listener.respond("/admin/partitions?bucket_type=maps", {"partitions": [{**PARTITION, "leader": None}]})
    assert cli.main(["partition", "list", "--bucket-type", "maps"]) == Exit.OK
    assert capsys.readouterr().out.splitlines()[-1].split()[2] == "-"


@pytest.mark.parametrize("queues", [None, 5, {"a": 1}, ["a", 3]])
def test_a_listing_of_another_form_is_an_empty_table(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], queues: Any
) -> None:
    """A node of another version may list things in another form; the command shows none, and does not break."""
    listener.respond("/admin/queues/nodes", {"nodes": queues})
    assert cli.main(["queue", "list"]) == Exit.OK
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_queue_is_suspended_and_resumed_by_name(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """The request has the queue, the operator and the reason; names are quoted into the path."""
    for verb in ("suspend", "resume"):
        listener.respond(f"/admin/queues/we%2Fst/{verb}", {"ok": True})
    assert cli.main(["queue", "suspend", "we/st", "--reason", "disk", "--by", "ann@ops"]) == Exit.OK
    assert capsys.readouterr().out == "queue we/st: serving suspended\n"
    assert cli.main(["queue", "resume", "we/st", "--by", "ann@ops", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == {"ok": True}
    assert listener.posted == [
        ("/admin/queues/we%2Fst/suspend", {"what": "serving", "node": None, "by": "ann@ops", "reason": "disk"}),
        ("/admin/queues/we%2Fst/resume", {"what": "serving", "node": None, "by": "ann@ops"}),
    ]


def test_both_of_a_queue_may_be_suspended_at_once(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """--publishing --serving means both, in one act; neither flag silently wins."""
    for verb in ("suspend", "resume"):
        listener.respond(f"/admin/queues/q/{verb}", {"ok": True})
        yes = ["--yes"] * (verb == "suspend")
        assert cli.main(["queue", verb, "q", "--publishing", "--serving", *yes]) == Exit.OK
        done = {"suspend": "suspended", "resume": "resumed"}[verb]
        assert capsys.readouterr().out == f"queue q: serving and publishing {done}\n"
    assert [wish["what"] for _, wish in listener.posted] == [["serving", "publishing"]] * 2


@pytest.mark.parametrize(
    "command", [["clear", "q"], ["delist", "q"], ["release", "q"], ["suspend", "q", "--publishing"]]
)
def test_a_command_that_loses_changes_shows_how_many_and_asks(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """Without a terminal to confirm at, the command does nothing; --dry-run shows the numbers and does nothing; --yes
    does it."""
    path = f"/admin/queues/q/{command[0]}"
    listener.respond(path, {"effect": "gives up 1,234 changes", "silent": ["e2"], "ok": True})
    assert cli.main(["queue", *command]) == Exit.USAGE
    assert "--yes" in capsys.readouterr().err
    assert cli.main(["queue", *command, "-o", "json"]) == Exit.USAGE
    capsys.readouterr()
    assert cli.main(["queue", *command, "--dry-run"]) == Exit.OK
    told = capsys.readouterr().out
    assert f"queue q: {command[0]} gives up 1,234 changes (no answer from e2)" in told
    assert all(wish["dry_run"] is True for _, wish in listener.posted)
    listener.posted.clear()
    assert cli.main(["queue", *command, "--yes"]) == Exit.OK
    assert [(where, wish.get("dry_run")) for where, wish in listener.posted] == [(path, None)]


def test_another_filter_is_reported_and_asked_for_and_limits_are_not(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """`queue set` sends only the named settings; a changed filter asks for confirmation; no setting, or --default with
    another one, is refused."""
    listener.respond("/admin/queues/q/set", {"effect": "makes a gap", "notes": ['no such bucket type: "defualt"']})
    assert cli.main(["queue", "set", "q", "--filter", "any"]) == Exit.USAGE
    assert [wish.get("dry_run") for _, wish in listener.posted] == [True]
    listener.posted.clear()
    assert cli.main(["queue", "set", "q", "--filter", "any", "--no-cascade", "--by", "ann", "--yes"]) == Exit.OK
    assert 'warning: no such bucket type: "defualt"' in capsys.readouterr().err
    arguments = ["--object-limit", "5", "--object-size-limit", "1KB", "--lease", "9s", "--by", "ann"]
    assert cli.main(["queue", "set", "q", *arguments]) == Exit.OK
    act = {"by": "ann", "reason": ""}
    assert [wish for _, wish in listener.posted] == [
        {"filter": "any", "cascade": False, **act},
        {"object_limit": 5, "object_size_limit": 1_000, "lease_ms": 9_000, **act},
    ]
    assert cli.main(["queue", "set", "q"]) == Exit.USAGE
    assert cli.main(["queue", "set", "q", "--default", "--queue-limit", "4"]) == Exit.USAGE


def test_a_sink_is_suspended_by_queue_by_peer_or_whole(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without options the whole sink is suspended; the default operator is USER@HOST."""
    for verb in ("suspend", "resume"):
        listener.respond(f"/admin/sink/{verb}", {})
    assert cli.main(["sink", "suspend", "--queue", "q", "--peer", "http://p:1", "--reason", "r"]) == Exit.OK
    assert cli.main(["sink", "resume"]) == Exit.OK
    assert (
        capsys.readouterr().out == "sink, queue q at peer http://p:1: suspended\nsink, all queues and peers: resumed\n"
    )
    by = admin_client.whoami()
    assert "@" in by
    assert listener.posted == [
        ("/admin/sink/suspend", {"queue": "q", "peer": "http://p:1", "node": None, "by": by, "reason": "r"}),
        ("/admin/sink/resume", {"queue": None, "peer": None, "node": None, "by": by, "reason": ""}),
    ]


@pytest.mark.parametrize(("status", "code"), [(404, Exit.REFUSED), (409, Exit.REFUSED), (503, Exit.UNAVAILABLE)])
def test_a_refusal_is_the_nodes_own_sentence(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], status: int, code: Exit
) -> None:
    """4xx is refused, 5xx is unavailable; sentence and reason come through, in one line without control characters."""
    listener.respond("/admin/queues/q/suspend", {"error": "queue q\n\x1b[2J unknown", "reason": "some-reason"}, status)
    assert cli.main(["queue", "suspend", "q"]) == code
    assert capsys.readouterr().err == "isthmus: queue q\\n\\x1b[2J unknown\n"
    assert cli.main(["queue", "suspend", "q", "-o", "json"]) == code
    assert json.loads(capsys.readouterr().err)["reason"] == "some-reason"


@pytest.mark.parametrize("answer", [b"", b"<html>", b"[]", b"[" * 100_000, b"\xff", b'{"a": 1'])
@pytest.mark.parametrize("status", [200, 302, 500])
def test_a_wrong_admin_listener_is_reported(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], answer: bytes, status: int
) -> None:
    """When something else listens there, the command ends with one line that asks if this is the admin listener."""
    listener.respond("/admin/queues/nodes", answer, status)
    assert cli.main(["queue", "list"]) == Exit.UNAVAILABLE
    err = capsys.readouterr().err
    assert "is this a node's admin listener?" in err
    assert err.count("\n") == 1


def test_an_answer_without_end_is_cut(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer beyond the limit is not read into memory."""
    monkeypatch.setattr(admin_client, "ANSWER_BYTES_MAX", 1000)
    listener.respond("/admin/queues/nodes", b" " * 1001 + b"{}")
    assert cli.main(["queue", "list"]) == Exit.UNAVAILABLE
    assert "more than 1000 bytes" in capsys.readouterr().err


def test_a_node_that_is_not_there_is_unavailable(capsys: pytest.CaptureFixture[str]) -> None:
    """Connection refused is one line that names the URL, the cause and how to name another node."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert cli.main(["queue", "list", "--admin", url]) == Exit.UNAVAILABLE
    assert capsys.readouterr().err == (
        f"isthmus: {url} does not answer: connection refused (--admin URL or ISTHMUS_ADMIN names another node)\n"
    )


def test_a_node_that_never_answers_is_unavailable() -> None:
    """An accepted connection without an answer ends at the time-out, which the error names."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = admin_client.AdminClient(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
        with pytest.raises(CommandFailed, match=r"no answer within 0\.2 s ") as failed:
            client.get("/admin/queues")
        client.close()
    assert failed.value.exit_code == Exit.UNAVAILABLE


def test_an_answer_that_stops_says_how_long_it_was_silent() -> None:
    """The time of the whole answer is not shown: a stream may have lasted for hours before."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def drip() -> socket.socket:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
            time.sleep(0.2)  # the silence is shorter than the answer took
            connection.sendall(b" ")
            return connection

        dripping = pool.submit(drip)
        client = admin_client.AdminClient(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=1.0)
        with pytest.raises(CommandFailed, match=r"no answer within 1 s "):
            client.get("/admin/queues")
        client.close()
        dripping.result().close()


def test_a_connection_that_nobody_accepts_says_its_own_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time-out of connecting is shorter than that of an answer."""
    monkeypatch.setattr(node_listener, "CONNECT_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as waiting:
        for _ in range(4):  # the kernel drops requests to connect beyond the backlog
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        client = admin_client.AdminClient(f"http://127.0.0.1:{full.getsockname()[1]}", timeout_s=20.0)
        with pytest.raises(CommandFailed, match=r"no answer within 0\.1 s "):
            client.get("/admin/queues")
        client.close()


def test_a_handshake_that_nobody_answers_says_the_connections_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handshake counts as connecting: a server that accepts and then sends nothing is given up after the
    connection's time-out, not the longer one of an answer."""
    monkeypatch.setattr(node_listener, "CONNECT_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = admin_client.AdminClient(f"https://127.0.0.1:{silent.getsockname()[1]}", timeout_s=20.0)
        with pytest.raises(CommandFailed, match=r"no answer within 0\.1 s "):
            client.get("/admin/queues")
        client.close()


@pytest.mark.parametrize("url", ["localhost", "http://h", "ftp://h:1", "http://h:1/x", "http://[::1:1"])
def test_an_admin_url_is_checked_before_it_is_used(capsys: pytest.CaptureFixture[str], url: str) -> None:
    """A wrong --admin is wrong usage; the error shows a valid URL."""
    assert cli.main(["queue", "list", "--admin", url]) == Exit.USAGE
    err = capsys.readouterr().err
    assert err.startswith("isthmus: --admin: ")
    assert "HOST:PORT" in err


def test_the_next_address_is_asked_where_a_node_does_not_answer(listener: FakeAdminListener) -> None:
    """The client uses the first of several addresses that answers, and keeps it; a change is sent to the next address
    only if nothing was sent to the one before."""
    listener.respond("/admin/lag", {"lag": []})
    listener.respond("/admin/suspend", {"done": True})
    client = admin_client.AdminClient(f"http://127.0.0.1:9,{listener.url}", timeout_s=20)
    assert client.get("/admin/lag") == {"lag": []}
    assert client.url == listener.url
    again = admin_client.AdminClient(["http://127.0.0.1:9", listener.url], timeout_s=20)
    assert again.post("/admin/suspend", {}) == {"done": True}
    again.close()
    client.close()


def test_a_change_that_may_have_been_made_is_not_made_twice(listener: FakeAdminListener) -> None:
    """A change ends at a node that received it and did not answer; the next address is not tried."""
    listener.respond("/admin/suspend", {"done": True})
    listener.respond("/admin/lag", {"lag": []})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = admin_client.AdminClient([url, listener.url], timeout_s=2)
        with pytest.raises(CommandFailed, match="no answer within"):
            client.post("/admin/suspend", {})
        assert listener.posted == []
        assert client.get("/admin/lag") == {"lag": []}
        client.close()


def test_no_address_answers_names_them_all() -> None:
    """The failure gives a reason for each address."""
    client = admin_client.AdminClient("http://127.0.0.1:9,http://127.0.0.1:11", timeout_s=1)
    with pytest.raises(CommandFailed, match=r"no node answers: http://127\.0\.0\.1:9 .*127\.0\.0\.1:11"):
        client.get("/admin/lag")
    client.close()
