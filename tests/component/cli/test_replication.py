"""`isthmus lag`, `ledger` and `explain`, and how answers of nodes are joined for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.nouns.sink import SinkOverview
from isthmus.node.services.explain_key import joined
from isthmus.node.services.remote_lookup import ALL_SENT, compared, first_known_side, with_other_sides
from isthmus.node.services.replication_lag import OUTCOMES, SENT, NodeLags, lag_rows, ledger_rows, received_rows
from isthmus.queues.lag import PartitionLag, QueueLag
from isthmus.queues.riak_origin import RIAK_CLUSTER
from isthmus.repl.model.record import Incarnation, PartitionRecord
from tests.support.fake_admin_listener import FakeAdminListener
from tests.support.noun_examples import example_of


def led(partition: int, node: str) -> PartitionRecord:
    """A record of one of two partitions of one bucket type."""
    record = PartitionRecord(partition, "notes", partition, 2, (node,))
    return replace(record, leader=Incarnation(node, 1))


def part(partition: int, seconds: float | None = 1.0, size: int | None = 10, in_flight: int = 1) -> PartitionLag:
    """A node's answer about a partition."""
    return PartitionLag(partition, "notes", seconds, 2, size, in_flight, cursor=1, applied=3)


def queue_lag(*parts: PartitionLag, reason: str = "", name: str = "q", **held: str) -> QueueLag:
    """A node's answer about a queue; `held`: bucket type -> why its changes wait."""
    return QueueLag(queue=name, cluster="west", uuid="bb", reason=reason, held=held, partitions=list(parts))


def node_lag(*parts: PartitionLag, proven: int = 5, reason: str = "", **held: str) -> NodeLags:
    """A node's answer."""
    proof = {"queue": "q", "bucket_type": "notes", "at_ms": proven}
    return NodeLags([queue_lag(*parts, reason=reason, **held)], [proof])


def test_lag_is_the_worst_partitions_and_unknown_with_any_unknown() -> None:
    """Objects and bytes are sums, seconds the greatest; a node that is silent makes all of them unknown, never less."""
    records = {0: led(0, "e1"), 1: led(1, "e2")}
    (row,) = lag_rows({"e1": node_lag(part(0)), "e2": node_lag(part(1, 7.0), proven=9)}, records)
    assert (row.seconds, row.objects, row.bytes, row.proven_ms, row.cluster) == (7.0, 4, 20, 9, "west")
    (row,) = lag_rows({"e1": node_lag(part(0)), "e2": None}, records)
    assert (row.seconds, row.objects, row.bytes, row.unknown_partitions) == (None, None, None, [1])
    assert row.reason == "partition 1: node e2 does not answer"
    (row,) = lag_rows({"e1": node_lag(part(0)), "e2": node_lag(part(1, None, None))}, records)
    assert (row.seconds, row.objects, row.bytes) == (None, 4, None)
    (row,) = lag_rows({"e1": node_lag(part(0), part(1, 99.0)), "e2": node_lag(part(1))}, records)
    assert (row.seconds, row.at_least_s) == (1.0, None), "the leader by the record has the word"


def test_of_a_lag_that_is_not_known_the_known_part_is_reported() -> None:
    """Beside an unknown partition and beside a silent node; nothing where the known ones have nothing that waits."""
    records = {0: led(0, "e1"), 1: led(1, "e2")}
    (row,) = lag_rows({"e1": node_lag(part(0, 400.0)), "e2": node_lag(part(1, None))}, records)
    assert (row.seconds, row.at_least_s) == (None, 400.0)
    (row,) = lag_rows({"e1": node_lag(part(0, 400.0)), "e2": None}, records)
    assert (row.seconds, row.at_least_s) == (None, 400.0)
    (row,) = lag_rows({"e1": node_lag(part(0, 0.0)), "e2": None}, records)
    assert (row.seconds, row.at_least_s) == (None, None)


def test_the_ledger_of_a_queue_is_off_by_what_its_nodes_miss_together() -> None:
    """Each row of the queue has the sum, whatever its bucket type."""
    records = {0: led(0, "e1"), 1: replace(led(1, "e2"), bucket_type="carts")}
    answers = {
        node: NodeLags([structs.replace(queue_lag(part(partition)), ledger_off=off)], [])
        for partition, (node, off) in enumerate((("e1", 3), ("e2", 2)))
    }
    assert [(row.bucket_type, row.ledger_off) for row in lag_rows(answers, records)] == [("carts", 5), ("notes", 5)]


def test_lag_names_what_is_under_lease_where_that_is_the_cause() -> None:
    """A sink that fetched and disappeared leaves a batch under lease: the reason says that it will be sent again; a
    batch just on its way is not reported."""
    records = {0: led(0, "e1"), 1: led(1, "e2")}
    (row,) = lag_rows({"e1": node_lag(part(0)), "e2": node_lag(part(1, 7.0))}, records)
    assert row.reason == "partition 1: 1 fetched and not acknowledged, offered again when their lease is over"
    (row,) = lag_rows({"e1": node_lag(part(0)), "e2": node_lag(part(1, 4.0))}, records)
    assert row.reason == ""
    (row,) = lag_rows({"e1": node_lag(part(0)), "e2": node_lag(part(1, 9.0, in_flight=0))}, records)
    assert row.reason == ""


def test_lag_names_the_reasons_of_all_nodes_and_whose_they_are() -> None:
    """One node's suspension is not hidden by another node's reason; a reason common to all is shown once, without
    names."""
    records = {0: led(0, "e1"), 1: led(1, "e2"), 2: led(2, "e3")}

    def row(*reasons: str) -> str:
        nodes = {f"e{n + 1}": node_lag(part(n), reason=why) for n, why in enumerate(reasons)}
        (found,) = lag_rows(nodes, records)
        return found.reason

    assert row("held", "held", "held") == "held"
    assert row("serving suspended: by hand", "", "") == "node e1: serving suspended: by hand"
    assert row("serving suspended", "gaps", "gaps") == "node e1: serving suspended; nodes e2, e3: gaps"
    assert row("", "a", "b") == "node e2: a; node e3: b"
    many = {n: led(n, f"e{n}") for n in range(9)}
    (found,) = lag_rows({f"e{n}": node_lag(part(n), reason=f"r{n}") for n in range(9)}, many)
    assert found.reason.endswith("node e3: r3; 5 more on other nodes: isthmus queue list")


def test_the_reason_of_a_bucket_type_stands_in_its_own_row() -> None:
    """What holds for one bucket type alone is not said of the others; nodes that know it since different times say the
    same. A node of a version that names it among the queue's reasons says it of all, as before."""
    records = {0: led(0, "e1"), 1: led(1, "e2"), 2: replace(led(2, "e1"), bucket_type="orders")}
    why = "west had no bucket type orders, as it answered {} s ago: its changes wait here"

    def answer(age_s: int, *parts: PartitionLag) -> NodeLags:
        return node_lag(*parts, reason="serving suspended", orders=why.format(age_s))

    rows = lag_rows({"e1": answer(30, part(0), part(2)), "e2": answer(90, part(1))}, records)
    assert {row.bucket_type: row.reason for row in rows} == {
        "notes": "serving suspended",
        "orders": f"serving suspended; {why.format(30)}",
    }
    old = {"e1": node_lag(part(0), part(2), reason="all in one"), "e2": node_lag(part(1), reason="all in one")}
    assert {row.reason for row in lag_rows(old, records)} == {"all in one"}


def test_lag_says_of_a_node_without_the_queue_that_it_has_none() -> None:
    """A leader whose file lacks the queue offers nothing; that is not a cursor that it does not know yet."""
    records = {0: led(0, "e1"), 1: led(1, "e2")}
    other = NodeLags([queue_lag(part(1), name="other")], [])
    row = next(row for row in lag_rows({"e1": node_lag(part(0)), "e2": other}, records) if row.queue == "q")
    assert row.reason.startswith("partition 1: node e2, which leads it, has no queue q")
    (row,) = lag_rows({"e1": node_lag(part(0)), "e2": node_lag()}, records)
    assert row.reason == "partition 1: node e2 does not know its cursor yet"


def one_ledger(**changed: Any) -> dict[str, Any]:
    """A queue's ledger on one node."""
    plain = {"name": "q", **dict.fromkeys(SENT, 1), "outcomes": dict.fromkeys(OUTCOMES, 1), "closes": True, "lost": {},
             "partitions_not_known": []}  # fmt: skip
    return {**plain, "off_by": 0, **changed}


LED = {0: led(0, "e1")}


def test_ledgers_of_all_nodes_are_added_and_one_that_does_not_close_is_an_alarm() -> None:
    """Sums over the nodes; off or lost anywhere is an alarm, silent or still unknown is unknown."""
    owners = {"q": ("west", "bb")}
    (row,) = ledger_rows({"e1": [one_ledger()], "e2": [one_ledger()]}, owners, LED)
    assert (row["state"], row["eligible"], row["cluster"], row["closes"]) == ("closed", 2, "west", True)
    for bad in ({"closes": False, "off_by": 3}, {"lost": {"4": [7]}}):
        (row,) = ledger_rows({"e1": [one_ledger()], "e2": [one_ledger(**bad)]}, owners, LED)
        assert (row["state"], row["closes"]) == ("alarm", False)
    (row,) = ledger_rows({"e1": [one_ledger()], "e2": None}, owners, LED)
    assert (row["state"], row["eligible"], row["reason"]) == ("unknown", None, "node e2 does not answer")
    (row,) = ledger_rows({"e1": [one_ledger()], "e2": [{"name": "q", "failed": "a defect"}]}, owners, LED)
    assert (row["state"], row["eligible"]) == ("unknown", None)
    assert row["reason"] == "node e2 cannot read its ledger: a defect"
    refused = one_ledger(outcomes={**dict.fromkeys(OUTCOMES, 0), "rejected": 5})
    (row,) = ledger_rows({"e1": [refused]}, owners, LED)
    assert (row["state"], row["reason"]) == (
        "closed",
        "5 rejected there for good: isthmus sink dead-letters list at its nodes",
    )
    waiting = one_ledger(closes=None, partitions_not_known=[3])
    (row,) = ledger_rows({"e1": [waiting]}, owners, LED)
    assert (row["state"], row["closes"]) == ("unknown", None)
    assert row["waiting"] is None, "what memory holds of it is not what waits"
    source = {"source_uuid": "bb", "source_cluster": "west", "queue": "r", "fetched": 5, "fetched_bytes": 50,
              **dict.fromkeys(OUTCOMES, 1), "failed": 0, "under_way": 1, "last_batch_ms": None}  # fmt: skip
    answer = msgspec.convert({**example_of(SinkOverview), "sources": [source]}, SinkOverview)
    (row,) = received_rows({"e1": answer, "e2": answer})
    assert (row["cluster"], row["fetched"], row["under_way"], row["state"]) == ("west", 10, 2, "closed")


def test_a_ledger_is_unknown_while_a_leader_has_no_queue_of_that_name() -> None:
    """No ledger covers a partition whose leader's file lacks the queue, whose leader does not know its cursor, or that
    has no leader. A node that leads nothing need not have the queue."""
    records = {0: led(0, "e1"), 1: led(1, "e2")}
    other = one_ledger(name="r", partitions=[1])
    rows = ledger_rows({"e1": [one_ledger(partitions=[0])], "e2": [other]}, {}, records)
    (row,) = [row for row in rows if row["queue"] == "q"]
    assert (row["state"], row["closes"]) == ("unknown", None)
    assert row["reason"].startswith("node e2, which leads 1 partition, has no queue q: its changes")
    both = {"e1": [one_ledger(partitions=[0])], "e2": [one_ledger(partitions=[])]}
    (row,) = ledger_rows(both, {}, records)
    assert (row["state"], row["reason"]) == ("unknown", "partition 1: node e2 does not know its cursor yet")
    gone = {0: led(0, "e1"), 1: replace(led(1, "e2"), leader=None)}
    (row,) = ledger_rows(both, {}, gone)
    assert (row["state"], row["reason"]) == ("unknown", "partition 1 has no leader")
    (row,) = ledger_rows({"e1": [one_ledger(partitions=[0])], "e3": []}, {}, LED)
    assert row["state"] == "closed"
    (row,) = ledger_rows({"e1": [one_ledger()]}, {}, {0: led(0, "e1"), 1: led(1, "e2")})
    assert (row["state"], row["reason"]) == ("unknown", "node e2 does not answer")


def test_a_queue_that_no_cluster_has_fetched_from_has_nothing_to_account_for(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """The queue's state is no-sink, its backlog is the count of the change index, and the exit code is 0; once a
    cluster has fetched, an incomplete backlog is unknown again, and so is a silent node before."""
    never = one_ledger(closes=None, partitions_not_known=[0], partitions=[0], fetched=False, backlog=7)
    (row,) = ledger_rows({"e1": [never]}, {}, LED)
    assert (row["state"], row["closes"], row["waiting"]) == ("no-sink", None, 7)
    assert {row[word] for word in ("collapsed", "collapsed_unseen", "vanished")} == {None}, "nobody counted them"
    listener.respond("/admin/ledger", {"ledger": [row], "unknown": []})
    assert cli.main(["ledger"]) == Exit.OK
    assert "no cluster has fetched from it yet" in capsys.readouterr().out
    (row,) = ledger_rows({"e1": [{**never, "fetched": True}]}, {}, LED)
    assert row["state"] == "unknown"
    (row,) = ledger_rows({"e1": [never], "e2": None}, {}, LED)
    assert row["state"] == "unknown"


def test_a_queues_ledger_does_not_show_what_waits_while_it_is_not_known(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number in memory is not shown for a node whose window does not cover its whole backlog."""
    nodes = [{"node": "e1", "ledger": one_ledger()}, {"node": "e2", "ledger": one_ledger(closes=None)}]
    listener.respond("/admin/queues/q/ledger", {"nodes": nodes})
    assert cli.main(["queue", "ledger", "q"]) == Exit.OK
    told = capsys.readouterr().out.splitlines()
    assert told[1].split().count("unknown") + 1 == told[2].split().count("unknown")


def test_lag_over_a_limit_is_exit_code_1_and_unknown_is_3(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Monitors can distinguish late from unknown; without --over the lag is shown, with the changes that are never to
    be sent, and the code is 0."""
    row = {"cluster": "west", "queue": "q", "bucket_type": "notes", "seconds": 7.5, "objects": 2, "bytes": None,
           "proven_ms": None, "reason": ""}  # fmt: skip
    listener.respond("/admin/lag", {"lag": [row], "at_ms": 1})
    listener.respond("/admin/gaps", {"gaps": [{"queue": "q"}, {"queue": "q"}], "unknown": []})
    assert cli.main(["lag"]) == Exit.OK
    told = capsys.readouterr().out
    assert "unknown" in told
    assert "q: 2 gaps that no full-sync has proven yet (`isthmus gaps q`)" in told
    assert cli.main(["lag", "--over", "8"]) == Exit.OK
    assert cli.main(["lag", "--over", "7", "-o", "json"]) == Exit.DIFFERS
    shown = capsys.readouterr()
    assert '"seconds": 7.5' in shown.out
    assert "queue q, bucket type notes: 7.5 s behind" in shown.err
    listener.respond("/admin/lag", {"lag": [{**row, "seconds": None, "reason": "node e2 does not answer"}], "at_ms": 1})
    assert cli.main(["lag", "--over", "7"]) == Exit.UNAVAILABLE
    assert "node e2 does not answer" in capsys.readouterr().err
    partly = {**row, "seconds": None, "at_least_s": 7.5, "reason": "node e2 does not answer"}
    listener.respond("/admin/lag", {"lag": [partly], "at_ms": 1})
    assert cli.main(["lag", "--over", "7"]) == Exit.DIFFERS
    shown = capsys.readouterr()
    assert "at least 7.5" in shown.out
    assert "queue q, bucket type notes: at least 7.5 s behind" in shown.err
    assert cli.main(["lag", "--over", "8"]) == Exit.UNAVAILABLE
    assert "node e2 does not answer" in capsys.readouterr().err
    listener.respond("/admin/lag", {"lag": [], "at_ms": 1})
    assert cli.main(["lag"]) == Exit.OK
    assert "no queue is registered" in capsys.readouterr().out


def test_a_ledger_that_does_not_close_is_exit_code_1(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both halves of the ledger are shown; the alarm names the queue."""
    (row,) = ledger_rows({"e1": [one_ledger(closes=False, off_by=3)]}, {"q": ("west", "bb")}, LED)
    listener.respond("/admin/ledger", {"ledger": [row], "unknown": []})
    assert cli.main(["ledger"]) == Exit.DIFFERS
    shown = capsys.readouterr()
    assert "west" in shown.out
    assert "3 not accounted for" in shown.err


def test_a_ledger_of_which_a_part_is_unknown_is_exit_code_3(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code 0 means that the ledger closes: with a silent node that is unknown; a node whose ledger is known not to
    close outweighs that."""
    (unknown,) = ledger_rows({"e1": [one_ledger()], "e2": None}, {"q": ("west", "bb")}, LED)
    listener.respond("/admin/ledger", {"ledger": [unknown], "unknown": ["e2"]})
    for output in ("table", "json"):
        assert cli.main(["ledger", "-o", output]) == Exit.UNAVAILABLE
        assert "queue q: whether its ledger closes is not known: node e2 does not answer" in capsys.readouterr().err
    (off,) = ledger_rows({"e1": [one_ledger(closes=False, off_by=3)]}, {"q": ("west", "bb")}, LED)
    listener.respond("/admin/ledger", {"ledger": [unknown, off], "unknown": ["e2"]})
    assert cli.main(["ledger"]) == Exit.DIFFERS


def explanation(**changed: Any) -> dict[str, Any]:
    """A node's answer about a key."""
    return {"leads": False, "partition": 1, "segment": 5, "leader": "e2", "object": None, "queues": [], "lower": [],
            "reap": None, **changed}  # fmt: skip


def test_a_key_is_explained_by_its_leader_or_not_at_all() -> None:
    """Facts that only the leader has are unknown without it; references waiting at any node are shown with that
    node."""
    queue = {"queue": "q", "state": "waiting", "next": "wait for it"}
    lower = {"queue": "q", "priority": "fold", "state": "waiting", "ahead": 0}
    answer = joined({"e1": explanation(), "e2": explanation(leads=True, queues=[queue])}, {})
    assert (answer["known"], answer["leader"], answer["object"]) == (True, "e2", None)
    dot = {"uuid": "aa", "partition": 1, "epoch": 1, "offset": 2, "actor": "aa"}
    found = {"seen": [dict(dot)], "siblings": [dict(dot)]}
    answer = joined({"e2": explanation(leads=True, queues=[queue], object=found)}, {"aa": "east"})
    assert (answer["object"]["seen"][0]["cluster"], answer["next"]) == ("east", "queue q: wait for it")
    answer = joined({"e1": explanation(lower=[lower]), "e2": None}, {})
    assert (answer["known"], answer["queues"], answer["lower_unknown_at"]) == (False, None, ["e2"])
    assert answer["lower"] == [{"node": "e1", **lower}]
    answer = joined({"e1": explanation(lower=[lower]), "e2": explanation(leads=True)}, {})
    assert answer["next"] == "queue q sends it at the fold priority from node e1"
    held = {**lower, "reason": "serving is suspended by ann", "next": "isthmus queue resume q"}
    answer = joined({"e1": explanation(lower=[held]), "e2": explanation(leads=True)}, {})
    assert answer["next"] == "queue q: isthmus queue resume q"


def test_every_queue_that_has_a_step_to_go_is_named_first_those_that_go_on_by_no_one() -> None:
    """A queue without a fetching cluster hides no gap of another one; more than three queues are counted."""

    def step(*states: str) -> str:
        queues = [{"queue": f"q{n}", "state": state, "next": f"do {n}"} for n, state in enumerate(states)]
        found = {"seen": [], "siblings": []}
        return str(joined({"e1": explanation(leads=True, queues=queues, object=found)}, {})["next"])

    push = "isthmus queue push q1 sends it: no full-sync that runs compares it"
    assert step("not-read", "gap") == f"queue q1: {push}; queue q0: do 0"
    assert step("acknowledged", "waiting") == "queue q1: do 1"
    assert step(*["waiting"] * 5) == "queue q0: do 0; queue q1: do 1; queue q2: do 2; and 2 more queues"


def test_a_key_refused_by_a_local_sink_is_reported_with_its_dead_letter(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output names the dead letter's node, reason and remedy, when the key is absent here or older than the refused
    object; a letter older than the local object is shown without a remedy."""
    letter = {"id": 4, "at_ms": 60, "queue": "to-cc", "source_cluster": "bb", "reason": "too-large", "error": "9 KB"}
    refused = explanation(dead_letters=[letter])
    answer = joined({"e1": explanation(leads=True), "e2": refused}, {})
    assert answer["dead_letters"] == [{"node": "e2", **letter}]
    right = "node e2 refused what bb sent (9 KB): once that would be taken, isthmus sink dead-letters retry 4 there"
    assert answer["next"] == right
    listener.respond("/admin/explain?type=default&bucket=b&key=k", answer)
    assert cli.main(["explain", "b", "k"]) == Exit.OK
    assert "dead letter 4 of e2: too-large: 9 KB (queue to-cc of bb," in capsys.readouterr().out
    answer = joined({"e1": explanation(leads=True), "e2": explanation(dead_letters=None)}, {})
    listener.respond("/admin/explain?type=default&bucket=b&key=k", answer)
    assert cli.main(["explain", "b", "k"]) == Exit.OK
    assert "node e2: cannot read its dead letters" in capsys.readouterr().out
    for applied_ms, step in ((59, right), (61, "nothing: this cluster has no queue")):
        found = {"seen": [], "siblings": [], "applied_ms": applied_ms}
        assert joined({"e1": explanation(leads=True, object=found), "e2": refused}, {})["next"] == step


def test_a_key_of_a_riak_is_explained_with_its_origin_and_actor(
    listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its actors are no partitions of a cluster of Isthmus; the time of the version is shown all the same."""
    dot = {"uuid": None, "actor": "9e8e1d61a51f0df700000001", "partition": None, "epoch": None, "offset": None}
    found = {"tombstone": False, "bytes": 280, "offset": 4, "applied_ms": 1_000, "last_modified_ms": 0, "seen": [dot],
             "clock": "90", "siblings": [{**dot, "last_modified_ms": 0}], "origin": RIAK_CLUSTER.hex()}  # fmt: skip
    answer = joined({"e1": explanation(leads=True, object=found)}, {RIAK_CLUSTER.hex(): "riak"})
    listener.respond("/admin/explain?type=default&bucket=b&key=k", answer)
    assert cli.main(["explain", "b", "k"]) == Exit.OK
    shown = capsys.readouterr().out
    assert "changed here: offset 4, 1970-01-01 00:00:01Z, origin riak" in shown
    actor = "actor 9e8e1d61a51f0df700000001 of a Riak, or of another program"
    assert f"accepted: {actor}, 1970-01-01 00:00:00Z" in shown
    assert f"has seen: {actor}\n" in shown


def test_the_next_step_depends_on_the_other_side() -> None:
    """After this cluster has sent everything: no step if both are equal, unless a check found other content under the
    same clock; otherwise the side that is ahead must send. References waiting here come first, whatever the other side
    has."""
    sent = {"queue": "q", "state": "acknowledged", "next": ""}
    found = {"seen": [], "siblings": [], "applied_ms": 50}

    def step(*states: str, at_ms: int = 60, difference: str | None = None, queue: dict[str, Any] = sent) -> str:
        row = {"fullsync": "west", "difference": difference, "at_ms": at_ms}
        says = {**explanation(leads=True, queues=[queue], object=found), "compared": [row]}
        answer = with_other_sides(joined({"e2": says}, {}), [{"state": state} for state in states])
        assert answer["compared"][0]["changed_since"] is (at_ms <= 50)
        return str(answer["next"])

    assert step() == step("behind") == step("unknown", "equal") == ALL_SENT
    assert step("equal") == "nothing: the other side has the same"
    assert "write the right one again" in step("equal", difference="corrupt@both")
    assert step("equal", difference="corrupt@both", at_ms=50) == "nothing: the other side has the same"
    assert "other side is ahead: its own queue" in step("ahead", "equal")
    assert "siblings there" in step("concurrent")
    assert step("ahead", queue={"queue": "q", "state": "gap", "next": "run a full-sync"}) == "queue q: run a full-sync"


def test_nodes_of_a_cluster_are_asked_until_one_answers() -> None:
    """A node that is gone does not make its cluster unknown; the next ones are asked."""
    asked: list[str] = []

    def look(state: str) -> Callable[[], dict[str, Any]]:
        return lambda: (asked.append(state), {"state": state, "clock": None})[1]

    assert first_known_side([look("unknown"), look("absent"), look("equal")])["state"] == "absent"
    assert asked == ["unknown", "absent"]
    assert first_known_side([look("unknown"), look("unknown")])["state"] == "unknown"
    assert first_known_side([look("unknown"), look("equal")], lambda: False)["state"] == "unknown", "the node stops"


def test_clocks_of_both_sides_are_compared_by_what_they_have_seen() -> None:
    """Equal, ahead, behind, concurrent; a key that is not here is ahead there."""
    one, two, other = ((b"a", 1, 0),), ((b"a", 2, 0),), ((b"b", 1, 0),)
    assert [compared(ours, theirs) for ours, theirs in ((one, one), (one, two), (two, one), (one, other))] == [
        "equal", "ahead", "behind", "concurrent",
    ]  # fmt: skip
    assert compared(None, one) == "ahead"


def test_a_proof_from_the_future_is_unknown(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """The node that compared has a clock ten minutes ahead: the table does not show its time as a fact."""
    row = {"queue": "to-west", "cluster": "west", "uuid": "b0", "bucket_type": "default", "seconds": 0.0, "objects": 0,
           "bytes": 0, "reason": ""}  # fmt: skip
    for ahead_ms, shown in ((600_000, "unknown"), (0, "2023-11-14 22:13:20Z")):
        at_ms = 1_700_000_000_000
        listener.respond("/admin/lag", {"lag": [{**row, "proven_ms": at_ms + ahead_ms}], "at_ms": at_ms})
        listener.respond("/admin/gaps", {"gaps": []})
        assert cli.main(["lag", "-o", "wide"]) == 0
        assert shown in capsys.readouterr().out


def test_explain_prints_what_a_node_answers(listener: FakeAdminListener, capsys: pytest.CaptureFixture[str]) -> None:
    """Facts a line, the next step last; JSON is the node's answer."""
    looked = {"verdict": "diverged", "difference": "missing@sink", "reason": "", "check": "repaired", "by": "ann"}
    compared = {"fullsync": "west", **looked, "kind": "all", "at_ms": 1_700_000_000_000, "proven_ms": None}
    compared["suspended"] = "ann"
    never = {**compared, "fullsync": "north", "verdict": "unknown", "difference": None, "at_ms": None}
    answer = joined({"e2": {**explanation(leads=True), "compared": [compared, never]}, "e1": None}, {})
    answer["unknown"] = {"e1": "not-ready: timed out", "e3": "not alive"}
    listener.respond("/admin/explain?type=notes&bucket=b&key=k", answer)
    assert cli.main(["explain", "notes/b", "k"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "key: notes/b k"
    told = [line for line in lines if line.startswith("full-sync ")]
    assert told[0].startswith("full-sync north of e2: unknown; not proven")
    assert told[1].startswith("full-sync west of e2: diverged: missing@sink, compared 2023-11-14")
    assert told[1].endswith("Z: repaired; not proven by this node; suspended by ann")
    missing = [line for line in lines if line.startswith("node ")]
    assert [line.partition(": which")[0] for line in missing] == [
        "node e1: not-ready: timed out", "node e3: not alive",
    ]  # fmt: skip
    assert lines[-1].startswith("next: write it")
    assert cli.main(["explain", "notes/b", "k", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out) == answer


@pytest.mark.parametrize(
    ("before", "told", "after"),
    [
        (ALL_SENT, "ahead", "the other side is ahead"),
        (ALL_SENT, "equal", "nothing: the other side has the same"),
        ("nothing: the other side has the same", "ahead", "the other side is ahead"),
        ("nothing: the other side has the same", "behind", ALL_SENT),
        ("queue q: run a full-sync", "ahead", "queue q: run a full-sync"),
    ],
)
def test_the_state_of_the_other_cluster_decides_the_next_step(
    listener: FakeAdminListener,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    before: str,
    told: str,
    after: str,
) -> None:
    """A cluster that the command asks directly counts like one that full-sync knows."""
    monkeypatch.setattr(
        "isthmus.node.cli.replication.other_side",
        lambda url, *_, **__: {"url": url, "state": told, "clock": None, "reason": ""},
    )
    sides = [{"fullsync": "west", "url": "http://w:1", "state": "equal", "clock": None, "reason": ""}]
    answer = {
        "known": True, "object": None, "queues": [], "lower": [], "compared": [], "next": before,
        "other_sides": sides * before.startswith("nothing: the"),
    }  # fmt: skip
    listener.respond("/admin/explain?type=default&bucket=b&key=k", answer)
    assert cli.main(["explain", "b", "k", "--other", "http://127.0.0.1:9", "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["next"].startswith(after)
