"""`isthmus sink check` between two whole nodes in memory, and the lines that it makes of a peer's answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.services.link_check import Here, LinkCheckResult, _parsed, judged
from isthmus.repl.http.client import HttpRefused, PeerFault
from isthmus.repl.model.errors import CodecError
from isthmus.repl.property_digests import scope_digest
from isthmus.sink.discovery import PeerNodes
from tests.support.threaded_node import running_node
from tests.support.waiting import PATIENCE_S, wait_until

QUEUES = '[[queues]]\nname = "to-west"\nfilter = "bucketname:b"\n[[queues]]\nname = "repairs"\nfilter = "block_rtq"\n'

URL = "https://10.0.0.7:8098"
OURS, THEIRS = "aa" * 16, "bb" * 16
ABOUT: dict[str, Any] = {
    "cluster": "east", "cluster_uuid": THEIRS, "queue": "q", "owner": None, "filter": "any", "blocked": False,
    "serving": "running", "publishing": "running", "wall_ms": 1_000,
    "bucket_types": {"default": {"digest": None, "offered": True}},
}  # fmt: skip
NODES = PeerNodes(bytes.fromhex(THEIRS), "east", (URL,))
HERE = Here(OURS, "west", {"default"}, {}, {}, linked=False)


def states(found: LinkCheckResult, here: Here = HERE, expected: str = "east", url: str = URL) -> dict[str, str]:
    return {row["what"]: row["state"] for row in judged(url, "q", expected, found, here)}


def of(about: Mapping[str, Any] = ABOUT, **more: Any) -> LinkCheckResult:
    return LinkCheckResult(NODES, about, 3, **{"offset_ms": 10, "exact_ms": 2, **more})


def test_a_link_that_would_work_is_ok_in_every_line() -> None:
    """A working link has no line with a fault, and each line shows its finding."""
    rows = judged(URL, "q", "east", of(), HERE)
    assert {row["state"] for row in rows} == {"ok"}
    assert [row["what"] for row in rows] == [
        "reach", "tls", "token", "cluster", "queue", "owner", "filter", "serving", "publishing", "bucket types",
        "properties", "clocks",
    ]  # fmt: skip
    assert all(row["found"] and not row["right"] for row in rows)


def test_differing_properties_are_named_as_far_as_the_source_sends_them() -> None:
    """Differences are shown by bucket type and bucket; a source of an earlier version sends the bucket types alone, and
    an invalid answer is refused when it is read."""
    default = {"bucket_types": {"default": {"digest": "00", "offered": True}}}
    of_type, of_bucket = scope_digest({"allow_mult": False}), scope_digest({"allow_mult": False, "dvv_enabled": False})
    told = {"default": {"": of_type.hex(), b"b".hex(): of_bucket.hex()}}

    def found_text(change: Mapping[str, Any]) -> str:
        rows = judged(URL, "q", "east", of({**ABOUT, **default, **change}), HERE)
        (row,) = [one for one in rows if one["what"] == "properties"]
        assert (row["state"], row["right"].split(" on both")[0]) == ("warn", "isthmus bucket-type properties default")
        return row["found"]

    assert found_text({"places": told}) == "differ: bucket type default: allow_mult; bucket default/b: dvv_enabled"
    unnamed = "differ: default: of the bucket type or of one of its buckets"
    assert [found_text({}), found_text({"places": None}), found_text({"places": {}})] == [unnamed] * 3
    for broken in ([], {"default": 3}, {"default": {"zz": "00"}}, {"default": {"00": 7}}):
        with pytest.raises(CodecError, match="places of properties"):
            _parsed(json.dumps({**ABOUT, "places": broken}).encode())


@pytest.mark.parametrize(
    ("change", "what", "state", "right"),
    [
        ({"owner": {"cluster": "north", "uuid": "cc" * 16}}, "owner", "fail", "isthmus queue release q"),
        ({"owner": {"cluster": "west", "uuid": OURS}}, "owner", "ok", ""),
        ({"blocked": True, "filter": "block_rtq"}, "filter", "warn", "repairs"),
        ({"serving": "suspended"}, "serving", "warn", "isthmus queue resume q"),
        ({"publishing": "suspended"}, "publishing", "warn", "isthmus queue resume q --publishing"),
        ({"publishing": "off"}, "publishing", "warn", "source.enabled"),
        ({"bucket_types": {"notes": {"digest": None, "offered": True}}}, "bucket types", "fail", "create notes"),
        ({"bucket_types": {"notes": {"digest": None, "offered": False}}}, "bucket types", "ok", ""),
        ({"bucket_types": {"default": {"digest": "00", "offered": True}}}, "properties", "warn", "default"),
    ],
)
def test_a_queue_fault_is_one_line_with_a_remedy(change: dict[str, Any], what: str, state: str, right: str) -> None:
    """One fault changes one line, and no other."""
    rows = judged(URL, "q", "east", of({**ABOUT, **change}), HERE)
    (row,) = [row for row in rows if row["what"] == what]
    assert row["state"] == state
    assert right in row["right"]
    assert {row["state"] for row in rows if row["what"] != what} == {"ok"}


def test_each_kind_of_unreachable_peer_has_its_own_reason() -> None:
    """Unreachable, unauthorized, another cluster, this cluster, no such queue, a source of an earlier version: each has
    its own line, and checks that could not run are unknown."""
    lost = PeerFault("connection refused")
    assert states(LinkCheckResult(lost, lost, 3)) == {
        "reach": "fail", "tls": "unknown", "token": "unknown", "cluster": "unknown", "queue": "unknown",
    }  # fmt: skip
    shut = HttpRefused("wrong role", 403, "forbidden")
    assert states(LinkCheckResult(NODES, shut, 3))["token"] == "fail"
    assert states(of(), HERE._replace(uuid=THEIRS))["cluster"] == "fail"
    assert states(of(), expected="north")["cluster"] == "fail"
    assert states(of(), url="http://10.0.0.7:8098")["tls"] == "warn"
    assert states(of(), HERE._replace(linked=True))["link"] == "warn"
    missing = HttpRefused("there is no queue named 'q' here", 404, "unknown-queue")
    assert states(LinkCheckResult(NODES, missing, 3))["queue"] == "fail"
    lacks = HttpRefused("no such path", 404, "no-such-path")
    for nodes, hint in ((NODES, "upgrade the source"), (lacks, "not of listen.admin")):
        (row,) = [one for one in judged(URL, "q", "", LinkCheckResult(nodes, lacks, 3), HERE) if one["what"] == "queue"]
        assert row["state"] == "unknown"
        assert hint in row["right"]


def test_clock_skew_is_reported_as_far_as_the_round_trip_allows() -> None:
    """Above a second is a warning, but not where the answer took as long."""
    assert states(of(offset_ms=-1_500))["clocks"] == "warn"
    assert states(of(offset_ms=1_500, exact_ms=700))["clocks"] == "ok"


def test_a_link_between_two_nodes_is_checked_without_touching_the_queue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command's node asks the other: ok for a working queue, fail for a missing one, one of this cluster itself,
    and an unreachable one; the queue has no owner afterwards."""
    source_folder, sink_folder = tmp_path / "source", tmp_path / "sink"
    source_folder.mkdir()
    sink_folder.mkdir()
    with running_node(source_folder, QUEUES) as source, running_node(sink_folder) as sink:
        monkeypatch.setenv("ISTHMUS_ADMIN", f"http://127.0.0.1:{sink.admin}")
        url = f"http://127.0.0.1:{source.http}"
        assert cli.main(["sink", "check", url, "to-west", "--peer-cluster", "east", "-o", "json"]) == Exit.OK
        rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
        assert {what for what, row in rows.items() if row["state"] != "ok"} == {"tls"}
        assert rows["filter"]["found"] == "bucketname:b"
        assert cli.main(["sink", "check", url, "repairs"]) == Exit.OK
        assert "warn" in capsys.readouterr().out
        assert cli.main(["sink", "check", url, "nowhere"]) == Exit.DIFFERS
        assert "to-west, repairs" in capsys.readouterr().out
        assert cli.main(["sink", "check", f"http://127.0.0.1:{sink.http}", "to-west"]) == Exit.DIFFERS
        assert "is this cluster itself" in capsys.readouterr().out
        assert cli.main(["sink", "check", "http://127.0.0.1:9", "to-west"]) == Exit.DIFFERS
        capsys.readouterr()
        url_of_admin = f"http://127.0.0.1:{source.admin}"
        assert cli.main(["sink", "check", url_of_admin, "to-west", "-o", "json"]) == Exit.UNAVAILABLE
        rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
        assert "is this a node's client listener?" in rows["queue"]["found"]
        assert cli.main(["sink", "check", "to-west", url]) == Exit.REFUSED
        connection = HTTPConnection("127.0.0.1", source.admin, timeout=PATIENCE_S)
        connection.request("GET", "/admin/queues")
        assert [queue["owner"] for queue in json.loads(connection.getresponse().read())["queues"]] == [None, None]
        connection.close()


def test_conflicts_are_listed_by_the_command_with_what_both_sides_had_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that both clusters wrote is listed by the node that fetched it, with two siblings and two clocks; an
    invalid count is refused."""
    source_folder, sink_folder = tmp_path / "source", tmp_path / "sink"
    source_folder.mkdir()
    sink_folder.mkdir()
    with running_node(source_folder, QUEUES) as source, running_node(sink_folder) as sink:
        for node, value in ((sink, b"ours"), (source, b"theirs")):
            connection = HTTPConnection("127.0.0.1", node.http, timeout=PATIENCE_S)
            connection.request("PUT", "/buckets/b/keys/k", value, {"Content-Type": "text/plain"})
            assert connection.getresponse().status == 204
            connection.close()
        monkeypatch.setenv("ISTHMUS_ADMIN", f"http://127.0.0.1:{sink.admin}")
        assert cli.main(["sink", "add-peer", f"http://127.0.0.1:{source.http}", "to-west"]) == Exit.OK

        def conflicts() -> list[dict[str, Any]]:
            capsys.readouterr()
            assert cli.main(["sink", "conflicts", "-o", "json"]) == Exit.OK
            found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["conflicts"]
            return found

        (row,) = wait_until(conflicts, "the conflict is listed")
        assert (row["key"], row["queue"], row["siblings"]) == (["default", "b", "k"], "to-west", 2)
        assert len({row["ours"]["clock"], row["theirs"]["clock"]}) == 2
        assert row["ours"]["seen"][0]["uuid"] != row["theirs"]["seen"][0]["uuid"] == row["source_uuid"]
        assert cli.main(["sink", "conflicts"]) == Exit.OK
        assert row["source_uuid"][:8] in capsys.readouterr().out
        assert cli.main(["sink", "list"]) == Exit.OK
        assert "operator" in capsys.readouterr().out
