"""The status of a cluster for operators: nodes, partitions, reasons; unknown facts stay unknown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from msgspec import structs

from isthmus.node.nouns.partition import PartitionRow
from isthmus.node.services import cluster_status
from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.replica_query import REPLICAS, ReplicaFacts, ReplicaForm, ReplicaResponder
from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.model.errors import IsthmusError, NotReady, OutcomeUnknown
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration

A, B, C = Member("a", 1), Member("b", 2), Member("c", 3)
ALL = {
    name: Registration(
        name,
        100 + number,
        True,
        f"http://{name}:1",
        f"http://{name}:2",
        cluster_address=f"{name}:3",
        id=number,
        rack="r",
    )
    for number, name in enumerate("abc")
}


def record(partition: int = 0, **changes: Any) -> PartitionRecord:
    """Three replicas in sync, a leads in epoch 6."""
    base: dict[str, Any] = {
        "partition": partition,
        "bucket_type": "default",
        "index": partition,
        "partition_count": 2,
        "replicas": ("a", "b", "c"),
        "epoch": 6,
        "status": PartitionStatus.ONLINE,
        "leader": Incarnation("a", 100),
        "isr": frozenset({A, B, C}),
        "min_isr": 2,
    }
    return PartitionRecord(**{**base, **changes})


def facts(gen: int, leo: int = 10, **changes: Any) -> ReplicaFacts:
    """A node's facts about its replica."""
    base = ReplicaFacts("follower", 6, gen, leo, leo, leo, leo, ready=False, reason="following: a leads")
    return structs.replace(base, **changes)


LEADER = facts(1, 12, role="leader", hw=11, applied=11, ready=True, reason="serving")
SAID: dict[str, Any] = {"a": {0: LEADER}, "b": {0: facts(2)}, "c": {0: facts(3, 7)}}


def row(of: PartitionRecord, said: dict[str, Any], registrations: dict[str, Registration] = ALL) -> PartitionRow:
    """The one row."""
    (found,) = cluster_status.partition_rows({0: of}, registrations, said)
    return found


def test_a_partition_shows_its_leaders_offsets_and_the_lag_of_the_last() -> None:
    """LEO, HW and APPLY are the leader's; LAG is that of the replica furthest behind; each replica has its own."""
    found = row(record(), SAID)
    shown = {key: getattr(found, key) for key in ("leader", "leo", "hw", "applied", "lag", "status", "reason", "epoch")}
    assert shown == {
        "leader": "a", "leo": 12, "hw": 11, "applied": 11, "lag": 5,
        "status": "online", "reason": "all in sync", "epoch": 6,
    }  # fmt: skip
    assert [(each.node, each.lag, each.gen, each.in_sync) for each in found.replica_states] == [
        ("a", 0, 1, True),
        ("b", 2, 2, True),
        ("c", 5, 3, True),
    ]


def test_a_silent_node_is_unknown_and_so_is_everything_that_depends_on_it() -> None:
    """With a silent follower the lag is unknown; with a silent leader all offsets are. No number is estimated."""
    found = row(record(), {**SAID, "c": None})
    assert (found.leo, found.lag) == (12, None)
    silent = found.replica_states[2]
    assert (silent.reason, silent.in_sync) == ("the node did not answer", True)
    facts_of_one = ("role", "epoch", "gen", "leo", "durable", "hw", "applied", "lag")
    assert {getattr(silent, key) for key in facts_of_one} == {None}
    found = row(record(), {**SAID, "a": None})
    assert [getattr(found, key) for key in ("leo", "hw", "applied", "lag")] == [None] * 4
    assert found.leader == "a"


def test_every_state_of_a_partition_has_a_reason() -> None:
    """Reasons cover out-of-sync replicas, a partition below min-ISR or not served yet, and the record's reason if it is
    not online."""
    out = record(isr=frozenset({A, B}))
    assert row(out, SAID).reason == "c is out of sync: following: a leads"
    lead = structs.replace(LEADER, out={"c": "lags, taken out 3 s ago; waits out its back-off of 5 s, 2 s left"})
    assert row(out, {**SAID, "a": {0: lead}}).reason == (
        "c is out of sync: lags, taken out 3 s ago; waits out its back-off of 5 s, 2 s left; following: a leads"
    )
    gone = {name: ALL[name] for name in "ab"}
    assert row(out, {"a": SAID["a"], "b": SAID["b"]}, gone).reason == "c is out of sync: the node is gone"
    assert row(out, {**SAID, "c": {}}).reason == "c is out of sync: the node has not made its copy yet"
    waits = structs.replace(LEADER, ready=False, reason="barrier")
    below = row(record(isr=frozenset({A})), {**SAID, "a": {0: waits}}).reason
    assert below.startswith("writes are refused: 1 in sync, min-ISR is 2; not served yet: barrier; b is out of sync")
    offline = record(status=PartitionStatus.OFFLINE, leader=None, reason="waits for a (not registered)")
    assert (row(offline, SAID).reason, row(offline, SAID).leader) == ("waits for a (not registered)", None)
    election = record(status=PartitionStatus.ELECTION, leader=None, reason="")
    assert row(election, SAID).reason == "election: the controller has not acted yet"


def test_a_replica_with_another_log_is_not_in_sync() -> None:
    """The record has log id 2 for b; the replica of b has log id 22."""
    found = row(record(), {**SAID, "b": {0: facts(22)}})
    assert found.replica_states[1].in_sync is False
    assert found.reason == "b is out of sync: following: a leads"


def test_nodes_are_live_leaving_or_gone() -> None:
    """A node is registered, registered as leaving, or only named by records; facts of a gone node are unknown."""
    registrations = {"a": ALL["a"], "b": Registration("b", 1, False, id=1)}
    rows = cluster_status.node_rows({0: record(), 1: record(1)}, registrations)
    assert [(each.name, each.state, each.leaders, each.replicas) for each in rows] == [
        ("a", "live", 2, 2),
        ("b", "leaving", 0, 2),
        ("c", "gone", 0, 2),
    ]
    assert (rows[0].id, rows[0].rack, rows[0].http, rows[0].cluster) == (0, "r", "http://a:1", "a:3")
    assert [getattr(rows[2], key) for key in ("id", "rack", "http", "admin", "cluster")] == [None] * 5
    assert all(each.reason for each in rows[1:])
    kept = cluster_status.node_rows({0: record()}, registrations, ids={"a": 7, "c": 2})
    assert [each.id for each in kept] == [0, 1, 2], "one that is down keeps its id, one that lives says its own"


def test_problems_are_none_only_when_all_is_online_and_in_sync() -> None:
    """Every problem has its sentence, and there are not more than fit on a screen."""
    whole = {0: record(), 1: record(1)}
    assert cluster_status.problems(whole, ALL, "") == []
    assert cluster_status.partition_counts(whole) == {
        "total": 2, "online": 2, "election": 0, "candidate_found": 0, "offline": 0,
    }  # fmt: skip
    assert cluster_status.problems({}, ALL, "waits for 1 more node") == ["bucket type default: waits for 1 more node"]
    out = {0: record(isr=frozenset({A, B})), 1: record(1, isr=frozenset({A}))}
    assert cluster_status.under_replicated(out) == [0, 1]
    assert cluster_status.below_min_isr(out) == [1]
    assert cluster_status.problems(out, ALL, "") == [
        "too few replicas are in sync to take writes (min-ISR) in partition 1",
        "replicas are out of sync in 2 partitions: 0, 1",
    ]
    offline = {n: record(n, status=PartitionStatus.OFFLINE, leader=None, reason="waits for a") for n in range(60)}
    found = cluster_status.problems(offline, {"a": ALL["a"], "b": ALL["b"]}, "")
    assert found[:2] == [
        "node c is gone: it has no session with the metastore: not started, stopped, or cut off",
        "partition 0 is offline: waits for a",
    ]
    assert len(found) == cluster_status.PROBLEMS_MAX + 1
    assert found[-1] == "and 41 more; `isthmus partition list` shows all"


def test_an_out_of_sync_replica_is_named_with_the_reason_from_its_node() -> None:
    """A full disk comes first, also that of a leader whose replicas are all in sync; a node without an answer is
    unknown."""
    full = "out-of-storage: the log's disk is full"
    out = {0: record(isr=frozenset({A, B})), 1: record(1, isr=frozenset({A, B}))}
    said = {**SAID, "c": dict.fromkeys(out, facts(3, 7, reason=full))}
    lacking = "replicas are out of sync in 2 partitions: 0, 1"
    assert cluster_status.problems(out, ALL, "", (), said) == [f"node c, 2 partitions: 0, 1: {full}", lacking]
    assert cluster_status.writes_refused(out, said) == {"c": [f"node c, 2 partitions: 0, 1: {full}"]}
    said["c"] = {0: facts(3), 1: facts(3)}
    assert cluster_status.problems(out, ALL, "", (), said) == [
        lacking,
        "node c, 2 partitions: 0, 1: following: a leads",
    ]
    said["c"] = None
    assert cluster_status.problems(out, ALL, "", (), said) == [
        lacking,
        "node c did not answer: why it is out of sync in 2 partitions: 0, 1 is not known",
    ]
    assert cluster_status.writes_refused(out, said) == {}
    refusing = {**SAID, "a": {0: structs.replace(LEADER, reason=full)}}
    assert cluster_status.problems({0: record()}, ALL, "", (), refusing) == [f"node a, partition 0: {full}"]
    (shown,) = cluster_status.partition_rows({0: record()}, ALL, refusing)
    assert shown.reason == full


def test_unreadable_documents_are_told_apart_and_limited() -> None:
    """Each is one of the problems, too; beyond the limit they are counted."""
    unread = {f"/p/{number}": "not JSON" for number in range(60)}
    few = dict(list(unread.items())[:2])
    records = {0: record()}
    assert cluster_status.problems(records, ALL, "", unread=few) == cluster_status.unreadable(records, few)
    found = cluster_status.unreadable(records, unread)
    assert len(found) == cluster_status.PROBLEMS_MAX + 1
    assert found[-1] == "nothing is decided by 40 more documents"
    assert cluster_status.unreadable(records, {}) == []


def test_a_live_but_silent_node_is_reported_although_all_are_in_sync() -> None:
    """A frozen process, or a broken link, shows in no record before others have waited long enough."""
    said = {**SAID, "c": None}
    assert cluster_status.problems({0: record()}, ALL, "", (), said) == []
    (warning,) = cluster_status.silent(said)
    assert warning.startswith("node c lives by its session and did not answer this node")
    assert cluster_status.silent(SAID) == []


def a_replica(partition: int) -> Any:
    """The part of a replica that facts are made from."""
    return SimpleNamespace(
        partition=partition,
        member=B,
        role=ReplicaRole.FOLLOWER,
        epoch=6,
        epoch_table=((1, 0), (5, 7)),
        leo=9,
        durable=8,
        high_watermark=7,
        applied=6,
        ready=False,
        reason="r",
        reassigning="",
        transfer_position=None,
        why_out=lambda now_ms: {"c": f"stalled at {now_ms}"},
    )


Answer = Callable[[str], Awaitable[bytes]]


def query_of(answers: dict[str, bytes | IsthmusError]) -> ClusterQuery:
    """The query of node b; the other nodes give these answers."""

    async def request(node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        assert (method, body) == ("replicas", b"out")
        assert timeout_ms <= 5_000
        found = answers[node]
        if isinstance(found, IsthmusError):
            raise found
        return found

    partitions = {
        0: SimpleNamespace(replica=a_replica(0), reason="disk-full: no room"),
        3: SimpleNamespace(replica=a_replica(3), reason="follows: a"),
    }
    runtime: Any = SimpleNamespace(partitions=partitions, time=SimpleNamespace(now_ms=lambda: 7))
    query = ClusterQuery("b", SimpleNamespace(request=request))
    query.serve(REPLICAS, ReplicaResponder(runtime))
    return query


async def test_facts_are_gathered_from_all_nodes_that_answer() -> None:
    """This node answers without a request, the others' answers arrive unchanged; a node that does not answer is
    unknown, with the reason."""

    other = await query_of({}).request_handlers()["replicas"]("a", b"out")
    answers = {"a": other, "c": NotReady("x"), "d": OutcomeUnknown("y")}
    found, unknown = await query_of(answers).ask(REPLICAS, ReplicaForm.WITH_OUT, ["a", "b", "c", "d", "a"])
    full = ReplicaFacts("follower", 6, 2, 9, 8, 7, 6, ready=False, reason="disk-full: no room", log_epoch=5)
    full = structs.replace(full, out={"c": "stalled at 7"})
    well = structs.replace(full, reason="follows: a")
    assert found == {"a": {0: full, 3: well}, "b": {0: full, 3: well}, "c": None, "d": None}
    assert unknown == {"c": "not-ready: x", "d": "outcome-unknown: y"}


async def test_an_answer_of_the_previous_version_is_decoded() -> None:
    """It has no reasons for out-of-sync replicas; all other fields are the same."""

    said = ["follower", 6, 2, 9, 8, 7, 6, False, "follows: a", 5, "", False]
    found = await query_of({"a": msgpack.packb({0: said})}).ask(REPLICAS, ReplicaForm.WITH_OUT, ["a"])
    assert found.by_node == {"a": {0: ReplicaFacts(*said)}}
    assert ReplicaFacts(*said).out == {}


async def test_a_node_of_the_previous_version_gets_an_answer_it_can_decode() -> None:
    """Its request has an empty body, and it accepts exactly twelve fields of a replica."""
    answer = await query_of({}).request_handlers()["replicas"]("a", b"")
    assert msgpack.unpackb(answer, strict_map_key=False) == {
        0: ["follower", 6, 2, 9, 8, 7, 6, False, "disk-full: no room", 5, "", False],
        3: ["follower", 6, 2, 9, 8, 7, 6, False, "follows: a", 5, "", False],
    }


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xc1",
        b"\xff" * 5,
        *map(
            msgpack.packb,
            [
                7,
                [],
                {"x": []},
                {0: 7},
                {0: ["follower"]},
                {-1: ["follower", 6, 2, 9, 8, 7, 6, False, "r"]},
                {0: ["follower", -6, 2, 9, 8, 7, 6, False, "r"]},
                {0: ["follower", 6, True, 9, 8, 7, 6, False, "r"]},
                {0: [7, 6, 2, 9, 8, 7, 6, False, "r"]},
                {0: ["follower", 6, 2, 9, 8, 7, 6, 1, "r"]},
                {0: ["follower", 6, 2, 9, 8, 7, 6, False, None]},
            ],
        ),
    ],
)
async def test_an_answer_of_another_form_is_no_answer(answer: bytes) -> None:
    """A node of another version, or a broken one: unknown, not half believed."""
    found = await query_of({"a": answer}).ask(REPLICAS, ReplicaForm.WITH_OUT, ["a"])
    assert found.by_node == {"a": None}
    assert found.unknown["a"].startswith("malformed: replicas: ")


def test_nodes_that_are_gone_are_unknown_and_not_left_out():
    """Answers of all nodes have an entry for a gone node that holds replicas; a node that did not answer keeps its
    entry."""
    assert cluster_status.with_gone({0: record()}, {"d": {"x": 1}, "a": None, "b": {"x": 2}}) == {
        "a": None,
        "b": {"x": 2},
        "c": None,
        "d": {"x": 1},
    }
