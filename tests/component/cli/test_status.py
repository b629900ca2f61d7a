"""`isthmus status` against two listeners that answer from a script: its output, in 80 columns, and its exit code."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from isthmus.node.cli import status
from isthmus.node.cli.main import main
from isthmus.node.cli.status_lines import screen
from isthmus.node.cli.status_report import StatusAnswers, report
from isthmus.node.http.answer_texts import links_sentence, silent_sentence
from tests.support import cluster_answers
from tests.support.cluster_answers import NOW_MS, cluster_answer, lag_answer, respond_as, sinks_answer
from tests.support.fake_admin_listener import FakeAdminListener


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, FakeAdminListener]]:
    """Two healthy clusters, in a terminal of 80x24 without colours, at the time of their answers."""
    found = {name: FakeAdminListener() for name in ("east", "west")}
    for name, listener in found.items():
        respond_as(listener, name)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback=(80, 24): os.terminal_size((80, 24)))
    monkeypatch.setattr(status.time, "time_ns", lambda: NOW_MS * 1_000_000)
    yield found
    for listener in found.values():
        listener.close()


def shown(clusters: dict[str, FakeAdminListener], *more: str, terminal: pytest.MonkeyPatch | None = None) -> int:
    """Run `isthmus status` on both clusters, in a terminal if that is to be patched; its exit code."""
    if terminal is not None:
        terminal.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    admins = [word for listener in clusters.values() for word in ("--admin", listener.url)]
    return main(["status", *admins, *more])


HEALTHY = """\
\u2713 isthmus status  2026-02-02 02:40:00Z

   CLUSTER  NODES   ONLINE    <ISR  <MIN  OFFLINE  FREE  CERTS  GAPS  DEAD
\u2713  east     3 of 3  12 of 12  0     0     0        60 %  90 d   0     0
\u2713  west     3 of 3  12 of 12  0     0     0        60 %  90 d   0     0

   LINK         QUEUE    BEHIND  OBJECTS  PROVEN
\u2713  east \u2192 west  to-west  0.0 ms  0        180.0 s ago
\u2713  west \u2192 east  to-east  0.0 ms  0        180.0 s ago

\u2713 all is well
"""


def test_two_healthy_clusters_are_one_screen(
    clusters: dict[str, FakeAdminListener], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nodes, partitions, disks, certificates and both directions fit 80x24, and the code is 0."""
    assert shown(clusters, terminal=monkeypatch) == 0
    assert capsys.readouterr().out == HEALTHY


def test_a_suspension_at_the_other_side_is_the_cause_of_a_lag(
    clusters: dict[str, FakeAdminListener], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The source's lag names the operators' suspensions at the sink: who, when, why; code 1."""
    late = lag_answer("east")
    late["lag"][0] |= {"seconds": 65.7, "objects": 15}
    clusters["east"].respond("/admin/lag", late)
    act = {"queue": None, "peer": None, "node": None, "by": "ann@ops", "at_ms": NOW_MS, "reason": "disk swap"}
    held = sinks_answer("west", state="suspended", reason="by ann@ops: disk swap")
    for node in held["nodes"]:
        node["sink"]["suspensions"] = [act]
    clusters["west"].respond("/admin/sink/nodes", held)
    assert shown(clusters, terminal=monkeypatch) == 1
    out = capsys.readouterr().out
    assert "!  east \u2192 west  to-west  65.7 s  15" in out
    assert "east \u2192 west: at west (3 nodes): suspended: by ann@ops: disk swap" in out
    assert "SET BY OPERATORS\n! west: sink: fetches suspended, by ann@ops, 2026-02-02 02:40:00Z: disk swap" in out
    assert "(to end it, at west: isthmus sink resume)" in " ".join(out.split())
    assert "queue to-west, bucket type default: 65.7 s behind" in out
    assert out.endswith("! 1 warning, set by operators: 1\n")
    assert max(map(len, out.splitlines())) <= 80


def test_a_throttle_at_the_sink_is_named(
    clusters: dict[str, FakeAdminListener], capsys: pytest.CaptureFixture[str]
) -> None:
    """A limit that operators set at the receiving side shows with its author, although the link runs."""
    held = sinks_answer("west", reason="the node's limit of bytes a second binds (isthmus sink show)")
    held["nodes"][0]["sink"] |= {
        "throttle": {"configured": {"bytes_per_second": 5_000_000, "objects_per_second": None}},
        "limits_set": {"by": "bob@ops", "at_ms": NOW_MS, "reason": "busy line"},
    }
    clusters["west"].respond("/admin/sink/nodes", held)
    assert shown(clusters) == 0
    out = capsys.readouterr().out
    assert "at west (3 nodes): running: the node's limit of bytes a second binds" in out
    assert "west: sink of west-1: throttled to 5000000 bytes/s, by bob@ops" in out


def test_everything_that_people_hold_back_is_listed(
    clusters: dict[str, FakeAdminListener], capsys: pytest.CaptureFixture[str]
) -> None:
    """Queues, checks, drained nodes and options off default are listed, each once, with who and when; the code stays
    0."""
    act = {"by": "ann@ops", "at_ms": NOW_MS, "reason": "why not"}
    row = cluster_answers.queue_row("east", "east-1")
    row["suspensions"] = [{"what": "serving", "node": None, **act}]
    row["throttle"] = {"configured": {"bytes_per_second": 1_000, "objects_per_second": None}, "set": act}
    nodes = [{"node": f"east-{n}", "gone": False, "queues": [row]} for n in (1, 2)]
    clusters["east"].respond("/admin/queues/nodes", {"nodes": nodes})
    checks = cluster_answers.fullsync_answer("east")
    for node in checks["nodes"].values():
        node["peers"][0]["suspended"] = act
    clusters["east"].respond("/admin/fullsync/nodes", checks)
    clusters["east"].respond("/admin/moves", {"drained": [{"node": "east-3", "by": "eve", "at_ms": NOW_MS}]})
    option = cluster_answers.option_row("replication.min.isr", default="RF - 1", set=1, by="eve", at_ms=NOW_MS)
    clusters["east"].respond("/admin/options", {"options": [option]})
    assert shown(clusters, "-o", "json") == 0
    held = json.loads(capsys.readouterr().out)["held"]
    assert [row["what"] for row in held] == [
        "queue to-west: serving suspended",
        "queue to-west: throttled to 1000 bytes/s",
        "full-sync west: suspended",
        "node east-3: drained",
        "option replication.min.isr = 1 (default RF - 1)",
    ]
    assert [row["next"] for row in held] == [
        "isthmus queue resume to-west",
        "isthmus queue throttle to-west --default",
        "isthmus fullsync resume --peer west",
        "isthmus node drain --undo east-3",
        "isthmus option unset replication.min.isr",
    ]
    assert {row["at_ms"] for row in held} == {NOW_MS}
    assert held[0]["reason"] == "why not"


def test_what_holds_for_a_part_is_ended_for_that_part(
    clusters: dict[str, FakeAdminListener], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command that ends an act has its node, queue, peer and bucket type, quoted for a shell."""
    act = {"by": "ann@ops", "at_ms": NOW_MS, "reason": ""}
    row = cluster_answers.queue_row("east", "east-1")
    row["suspensions"] = [{"what": what, "node": "east-1", **act} for what in ("serving", "publishing")]
    clusters["east"].respond("/admin/queues/nodes", {"nodes": [{"node": "east-1", "gone": False, "queues": [row]}]})
    sinks = sinks_answer("west")
    scope = {"queue": "to west", "peer": "http://east-1:8098", "node": "west-1"}
    for node in sinks["nodes"]:
        node["sink"]["suspensions"] = [{**scope, **act}]
    clusters["west"].respond("/admin/sink/nodes", sinks)
    option = cluster_answers.option_row("replication.min.isr", set=1, bucket_type="notes", **act)
    clusters["west"].respond("/admin/options", {"options": [option]})
    assert shown(clusters, "-o", "json") == 0
    assert [each["next"] for each in json.loads(capsys.readouterr().out)["held"]] == [
        "isthmus queue resume to-west --node east-1",
        "isthmus queue resume to-west --publishing --node east-1",
        "isthmus sink resume --queue 'to west' --peer http://east-1:8098 --node west-1",
        "isthmus option unset replication.min.isr --bucket-type notes",
    ]


def test_failing_links_of_the_asked_node_are_one_warning(
    clusters: dict[str, FakeAdminListener], capsys: pytest.CaptureFixture[str]
) -> None:
    """The asked node warns of its own failing links, in words of this version or the one before, and the answer about
    sinks has those of all nodes: they are told once, in one sentence for each source, also where one node does not know
    the source's name yet. Where that answer is missing, the node's warning stays, as does one about another thing."""
    listed = "to other clusters, at node west-1: nothing is fetched from a node of east (http://e:1): no"
    answer = cluster_answer("west")
    answer["warnings"] = ["to other clusters, at node west-1: 1 of 1 link fails: refused", listed]
    clusters["west"].respond("/admin/cluster", answer)
    sinks = sinks_answer("west", state="failing", reason="refused")
    clusters["west"].respond("/admin/sink/nodes", sinks)

    def amiss() -> list[str]:
        assert shown(clusters, "-o", "json") != 0
        found = [each["sentence"] for each in json.loads(capsys.readouterr().out)["amiss"]]
        return [each for each in found if "west-1" in each]

    links = "fetches from east: 3 of 3 links fail, at nodes west-1, west-2, west-3: refused"
    assert sorted(amiss()) == [links, listed]
    answer["warnings"][0] = links_sentence("west-1", "1 of 1 link fails: refused")
    clusters["west"].respond("/admin/cluster", answer)
    assert sorted(amiss()) == [links, listed]
    sinks["nodes"][0]["sink"]["sinks"][0]["source_cluster"] = None  # its first answer is still to come
    clusters["west"].respond("/admin/sink/nodes", sinks)
    assert sorted(amiss()) == [links, listed]
    clusters["west"].respond("/admin/sink/nodes", {"error": "no", "reason": "not-ready"}, 503)
    assert sorted(amiss()) == sorted(answer["warnings"])


def test_two_nodes_of_one_cluster_are_shown_as_that_cluster(
    clusters: dict[str, FakeAdminListener], capsys: pytest.CaptureFixture[str]
) -> None:
    """Who gives two nodes where two clusters are meant sees the cluster, its links and its faults once; what the first
    node does not tell comes from the second."""
    other = FakeAdminListener()
    try:
        for path, (status, body) in clusters["east"].answers.items():
            other.respond(path, body, status)
        clusters["east"].respond("/admin/gaps", {"error": "not now", "reason": "not-ready"}, 503)
        urls = [each.url for each in (clusters["east"], other, clusters["west"])]
        arguments = [word for url in urls for word in ("--admin", url)]
        assert main(["status", "-o", "json", *arguments]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [row["cluster"] for row in found["clusters"]] == ["east", "west"]
        assert [(row["from"], row["to"]) for row in found["links"]] == [("east", "west"), ("west", "east")]
        assert found["amiss"] == []
    finally:
        other.close()


def test_a_cluster_that_does_not_answer_is_named_and_unknown(
    clusters: dict[str, FakeAdminListener], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cluster has a row and a sentence, its sinks' state is unknown at the source's link, and the code is 3."""
    clusters["west"].close()
    assert shown(clusters, terminal=monkeypatch) == 3
    out = capsys.readouterr().out
    assert re.search(r"\? +http://127\.0\.0\.1:\d+ +no answer", out)
    assert re.search(r"does not answer: connection\s+refused", out)
    assert "\u2713  east" in out
    assert "? 2 unknown" in out, "the cluster, and what it alone knows of its link"
    clusters["west"] = FakeAdminListener()


def test_a_silent_node_is_named_and_a_known_fault_outweighs_it(
    clusters: dict[str, FakeAdminListener], capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that does not answer alone gives code 3, together with one that is gone code 1."""
    answer = cluster_answer("east")
    answer["silent"] = ["east-2"]
    answer["warnings"] = [silent_sentence("east-2")]
    clusters["east"].respond("/admin/cluster", answer)
    assert shown(clusters) == 3
    out = capsys.readouterr().out
    assert "? east: node east-2 lives and did not answer" in out
    assert "by its session" not in out
    answer["nodes"][2]["state"] = "gone"
    answer["under_replicated"] = [1, 2]
    assert shown(clusters) == 3
    clusters["east"].respond("/admin/cluster", answer)
    assert shown(clusters) == 1
    out = capsys.readouterr().out
    assert "! east: node east-3 is gone" in out
    assert "2 of 12 partitions lack replicas in sync: 1, 2" in out


def test_one_question_without_answer_is_unknown_not_left_out(
    clusters: dict[str, FakeAdminListener], capsys: pytest.CaptureFixture[str]
) -> None:
    """A node of an earlier version does not answer the health request: its disks are unknown, and the screen says
    why."""
    clusters["east"].respond("/admin/nodes/health", {"error": "nothing answers there", "reason": "unknown-path"}, 404)
    assert shown(clusters) == 3
    assert "? east: health: nothing answers there" in capsys.readouterr().out


def test_gaps_dead_letters_full_disks_and_certificates_are_amiss(
    clusters: dict[str, FakeAdminListener], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each problem has a sentence with its cluster, the worst first."""
    gap = {"queue": "to-west", "id": "1", "from_ms": NOW_MS - 60_000, "upto_ms": NOW_MS}
    gaps = {"gaps": [gap], "unknown": [], "unknown_partitions": {}, "at_ms": NOW_MS}
    clusters["east"].respond("/admin/gaps", gaps)
    letters = sinks_answer("west")
    letters["nodes"][1]["sink"]["dead_letters"]["kept"] = 3
    clusters["west"].respond("/admin/sink/nodes", letters)
    health = cluster_answers.health_answer("west")
    health["nodes"] |= {
        "west-1": {**health["nodes"]["west-1"], "free_bytes": 2},
        "west-2": {**health["nodes"]["west-2"], "problems": ["tls.certificate of node west-2 expires in 3 days"]},
    }
    clusters["west"].respond("/admin/nodes/health", health)
    assert shown(clusters) == 1
    amiss = capsys.readouterr().out.partition("PROBLEMS\n")[2].splitlines()
    assert amiss[0] == "\u2717 west: node west-1: 2 % of its disk are free"
    assert "! east: queue to-west: 1 gap not proven yet, the oldest of 60.0 s ago" in amiss
    assert "! west: tls.certificate of node west-2 expires in 3 days" in amiss
    assert "! west: dead letters: 3 at west-2 (isthmus sink dead-letters list)" in amiss


def answers_of(cluster: str, **changed: Any) -> StatusAnswers:
    """The answers of a healthy cluster. `changed`: answers by name."""
    found = {
        "cluster": cluster_answer(cluster),
        "health": cluster_answers.health_answer(cluster),
        "lag": lag_answer(cluster),
        "sinks": sinks_answer(cluster),
        "fullsync": cluster_answers.fullsync_answer(cluster),
    }
    return StatusAnswers(cluster, {**found, **changed})


def test_a_cluster_that_does_not_answer_is_not_called_unasked_nor_never_proven() -> None:
    """The link from it is unknown, proof included, since it does not answer; the link to it says so, too. It is amiss
    once, as the cluster without an answer."""
    silent = StatusAnswers("west", {}, {"cluster": "no node answers: timed out"})
    found = report([answers_of("east"), silent])
    to_west, from_west = found["links"]
    assert from_west["causes"] == ["west does not answer: it alone knows how far east is behind"]
    assert to_west["causes"] == ["west does not answer: what its sinks do is not known"]
    lines = screen(found, title="t", at_ms=NOW_MS, width=100, height=None)
    (shown_link,) = [line for line in lines if "west \u2192 east  to-east" in line]
    assert shown_link.split()[-3:] == ["unknown", "unknown", "unknown"]
    assert [row["sentence"] for row in found["amiss"]] == ["no node answers: timed out"]


def test_no_proof_is_never_only_while_all_nodes_answer() -> None:
    """With a node that does not answer it is unknown whether the other cluster was ever proven up to date."""
    for unknown_at, word in (([], "never"), (["east-3"], "unknown")):
        lag = lag_answer("east")
        lag["lag"][0] |= {"proven_ms": None, "proofs_unknown_at": unknown_at}
        found = report([answers_of("east", lag=lag), answers_of("west")])
        lines = screen(found, title="t", at_ms=NOW_MS, width=100, height=None)
        (shown_link,) = [line for line in lines if "east \u2192 west  to-west" in line]
        assert shown_link.split()[-1] == word


def test_a_link_of_which_a_part_is_known_to_be_late_is_as_late_at_least() -> None:
    """The mark is that of the finding; a bucket type that is known counts beside one that is not. Where nothing that is
    known is late, the link is unknown."""
    for seconds, least, mark, behind in (
        (0.0, 400.0, "\u2717", "at least 6.7 min"),
        (400.0, None, "\u2717", "at least 6.7 min"),
        (0.0, None, "?", "unknown"),
    ):
        lag = lag_answer("east")
        unknown = {"bucket_type": "carts", "seconds": None, "at_least_s": least, "objects": None}
        lag["lag"] = [lag["lag"][0] | {"seconds": seconds}, lag["lag"][0] | unknown]
        lines = screen(
            report([answers_of("east", lag=lag), answers_of("west")]), title="t", at_ms=NOW_MS, width=100, height=None
        )
        (shown_link,) = [line for line in lines if "east \u2192 west  to-west" in line]
        assert shown_link.startswith(mark), shown_link
        assert f"to-west  {behind}  unknown" in shown_link


def test_an_expired_certificate_is_critical() -> None:
    """The cluster has a cross and "expired", the finding is critical with the file and what to do; one that expires in
    some days is a warning."""
    health = cluster_answers.health_answer("east")
    words = "tls.certificate of node east-2 has expired on 2026-02-02 02:00Z (/etc/isthmus/east-2.crt)"
    expired = {"certificates": {"tls.certificate": NOW_MS - 1}, "problems": [words], "urgent": [words]}
    health["nodes"]["east-2"] = {**health["nodes"]["east-2"], **expired}
    found = report([answers_of("east", health=health)])
    (row,) = [row for row in found["amiss"] if row["state"] == "critical"]
    assert (row["code"], row["subject"], row["sentence"]) == ("certificate", "node east-2", words)
    assert "put a new certificate in the place of the file" in row["remedy"]
    lines = screen(found, title="t", at_ms=NOW_MS, width=100, height=None)
    (shown_cluster,) = [line for line in lines if "east     3 of 3" in line]
    assert shown_cluster.startswith("\u2717")
    assert "expired" in shown_cluster


def test_a_link_from_a_cluster_that_is_not_asked_is_shown_as_unknown(
    clusters: dict[str, FakeAdminListener], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the other cluster the output shows what this one receives; the lag is shown as unknown."""
    assert main(["status", "--admin", clusters["west"].url, "-o", "json"]) == 3
    found = json.loads(capsys.readouterr().out)
    links = found["links"]
    sentence = "queue to-west: east is not asked here: it alone knows how far west is behind"
    about = {"code": "lag", "subject": "queue to-west", "remedy": "ask that cluster, too: --admin URL"}
    assert found["amiss"] == [{"cluster": "west", "state": "unknown", "sentence": sentence, **about}]
    assert [(row["from"], row["to"], row["seconds"]) for row in links] == [
        ("west", "east", 0.0),
        ("east", "west", None),
    ]
    assert links[1]["causes"] == ["east is not asked here: it alone knows how far west is behind"]


def test_a_link_to_a_riak_shows_what_waits_there() -> None:
    """The sum over its nodes, whichever node of this cluster told it; how old that is no Riak tells, unless nothing
    waits. What no node told is unknown."""

    def link_with(*waiting: int | None) -> dict[str, Any]:
        sinks = cluster_answers.sinks_answer("west", kind="riak", source_cluster="old", source_uuid="72", queue="q")
        first = sinks["nodes"][0]["sink"]["sinks"][0]
        for node in sinks["nodes"]:
            node["sink"]["sinks"] = []
        sinks["nodes"][0]["sink"]["sinks"] = [
            {**first, "peer": f"http://r{n // 2}:8098", "recent_lag_ms_p99": 40, "riak": {"waiting": each}}
            for n, each in enumerate(waiting)
        ]
        (row,) = [row for row in report([answers_of("west", sinks=sinks)])["links"] if row["from"] == "old"]
        return {key: row[key] for key in ("state", "seconds", "at_least_s", "objects", "from_unasked")}

    known = {"state": "ok", "from_unasked": False}
    assert link_with(0, 0, 0, None) == {**known, "seconds": 0.0, "at_least_s": None, "objects": 0}
    assert link_with(None, 5, 2) == {**known, "seconds": None, "at_least_s": 0.04, "objects": 7}
    assert link_with(5, 5, None) == {
        "state": "unknown", "from_unasked": False, "seconds": None, "at_least_s": None, "objects": None,
    }  # fmt: skip


def test_a_low_terminal_cuts_the_longest_section(
    clusters: dict[str, FakeAdminListener], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--watch never draws more lines than the terminal has, and says how many are missing; --count ends it."""
    options = [
        cluster_answers.option_row(f"option.{number}", set=number, by="eve", at_ms=NOW_MS) for number in range(40)
    ]
    clusters["east"].respond("/admin/options", {"options": options})
    assert shown(clusters, "--watch", "--count", "2", "--interval", "0.5", terminal=monkeypatch) == 0
    pictures = capsys.readouterr().out.split(status.HOME)[1:]
    assert [len(picture.splitlines()) <= 23 for picture in pictures] == [True, True]
    assert re.search(r"\.\.\. and \d+ lines more \(-o wide has all\)", pictures[0])
    assert "set by operators: 40" in pictures[0]


def test_wide_is_whole_whatever_the_terminal(
    clusters: dict[str, FakeAdminListener], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --wide a picture has no more lines than the terminal, also without --watch."""
    options = [
        cluster_answers.option_row(f"option.{number}", set=number, by="eve", at_ms=NOW_MS) for number in range(40)
    ]
    clusters["east"].respond("/admin/options", {"options": options})
    assert shown(clusters, terminal=monkeypatch) == 0
    assert len(capsys.readouterr().out.splitlines()) <= 23
    assert shown(clusters, "-o", "wide") == 0
    assert "option.39 = 39" in capsys.readouterr().out


def test_links_of_one_cause_and_nodes_of_one_throttle_are_one_line(
    clusters: dict[str, FakeAdminListener], capsys: pytest.CaptureFixture[str]
) -> None:
    """However long ago each link was answered, and on however many nodes an act holds."""
    held = sinks_answer("west")
    for age, node in enumerate(held["nodes"]):
        node["sink"]["sinks"][0] |= {"state": "waiting", "reason": f"the source is off, as it answered {age} s ago"}
        node["sink"] |= {
            "throttle": {"configured": {"bytes_per_second": 5_000_000, "objects_per_second": None}},
            "limits_set": {"by": "bob@ops", "at_ms": NOW_MS, "reason": "busy line"},
        }
    clusters["west"].respond("/admin/sink/nodes", held)
    assert shown(clusters, "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["links"][0]["causes"] == ["at west (3 nodes): waiting: the source is off"]
    assert [row["what"] for row in found["held"]] == ["sink of 3 nodes: throttled to 5000000 bytes/s"]


def test_ctrl_c_ends_a_watch_with_code_0(
    clusters: dict[str, FakeAdminListener], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C is how a watch ends: no traceback, no error, the last picture stays."""

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "sleep", interrupted)
    assert shown(clusters, "--watch") == 0
    out, err = capsys.readouterr()
    assert (err, "all is well" in out) == ("", True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--watch", "-o", "json"), "--watch is for people"),
        (("--count", "2"), "--count ends --watch"),
        (("--watch", "--interval", "0"), "0"),
        (("--admin", "127.0.0.1:x"), "127.0.0.1:x"),
    ],
)
def test_contradicting_options_are_refused(
    words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each contradiction is a usage error that names the option."""
    assert main(["status", *words]) == 2
    assert sentence in capsys.readouterr().err
