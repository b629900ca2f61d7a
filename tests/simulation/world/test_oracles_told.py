"""The oracle about what operators are told refuses answers that are not so, and accepts true and unknown ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus
from isthmus.repl.model.vclock import encode_clock
from tests.simulation.world.oracles_told import (
    CheckTruth,
    ClockTruth,
    CopyTruth,
    KeyTruth,
    Moment,
    QueueTruth,
    ReceivedTruth,
    Truth,
    WindowTruth,
    judge_cluster,
    judge_findings,
    judge_fullsync,
    judge_gaps,
    judge_health,
    judge_key,
    judge_lag,
    judge_ledger,
    judge_partitions,
    judge_queues,
    judge_quiet_cluster,
    judge_quiet_findings,
    judge_quiet_lag,
    judge_quiet_ledger,
    judge_sinks,
)

RECORD = PartitionRecord(
    partition=1,
    bucket_type="default",
    index=0,
    partition_count=1,
    replicas=("n1", "n2"),
    epoch=3,
    status=PartitionStatus.ONLINE,
    leader=Incarnation("n1", 7),
    isr=frozenset((Member("n1", 1), Member("n2", 1))),
    version=5,
)
SHORT = replace(RECORD, isr=frozenset((Member("n1", 1),)))
LIFE = ("n1", 1, 3)
SETTLED = frozenset(("partition 1", "node n1", "node n2", "gaps q 1"))


def truth(**changes: Any) -> Truth:
    """A cluster of two nodes with one partition, in which nothing happens."""
    calm = Truth(
        at_ns=0,
        connected=True,
        records={1: RECORD},
        registered=frozenset(("n1", "n2")),
        copies={("n1", 1): CopyTruth((1, 3), 10, 10, 10), ("n2", 1): CopyTruth((1, 3), 10, 9, 9)},
        windows={("q", 1): WindowTruth(LIFE, frozenset(), frozenset())},
        queues={("n1", "q"): QueueTruth(1, 5, 4, False)},
        settled=SETTLED,
    )
    return calm._replace(**changes)


def moment(**changes: Any) -> Moment:
    """The same before and after."""
    return Moment(truth(**changes), truth(**changes))


def cluster_answer(**changes: Any) -> dict[str, Any]:
    """A right answer of /admin/cluster."""
    return {
        "metastore": "connected",
        "read_at_ms": 1,
        "outdated_why": "",
        "nodes": [{"name": "n1", "state": "live"}, {"name": "n2", "state": "live"}],
        "under_replicated": [],
        "below_min_isr": [],
        "problems": [],
        "warnings": [],
        "state": "online",
        "state_reason": "",
    } | changes


def partitions_answer(**changes: Any) -> dict[str, Any]:
    """A right answer of /admin/partitions."""
    states = [
        {"node": "n1", "epoch": 3, "leo": 10, "hw": 10, "applied": 10},
        {"node": "n2", "epoch": None, "leo": None, "hw": None, "applied": None},
    ]
    row = {
        "partition": 1,
        "leader": "n1",
        "isr": ["n1", "n2"],
        "epoch": 3,
        "status": "online",
        "replicas": ["n1", "n2"],
        "replica_states": states,
        "reason": "all in sync",
    }
    return {"partitions": [row | changes]}


def test_a_true_status_is_accepted_and_a_false_one_is_not() -> None:
    """Node states, partitions out of sync and "online" are compared with the metastore."""
    assert judge_cluster(cluster_answer(), moment()) == []
    gone = [{"name": "n1", "state": "live"}, {"name": "n2", "state": "gone"}]
    assert len(judge_cluster(cluster_answer(nodes=gone), moment())) == 1
    assert len(judge_cluster(cluster_answer(), moment(registered=frozenset(("n1",))))) == 1
    assert len(judge_cluster(cluster_answer(under_replicated=[1]), moment())) == 1
    assert len(judge_cluster(cluster_answer(), moment(records={1: SHORT}))) == 3


def test_a_status_that_doubts_itself_is_not_judged() -> None:
    """Without its session a node may show what is old, if it says so; what changed just now may be told either way."""
    wrong = moment(records={1: SHORT})
    assert judge_cluster(cluster_answer(metastore="suspended"), wrong) == []
    assert judge_cluster(cluster_answer(outdated_why="metastore-rollback"), wrong) == []
    unread = "nothing is decided, its record cannot be read: metastore-rollback"
    assert judge_partitions(partitions_answer(reason=unread), wrong) == []
    assert judge_cluster(cluster_answer(), moment(records={1: SHORT}, connected=False)) == []
    assert judge_cluster(cluster_answer(), moment(records={1: SHORT}, settled=frozenset())) == []
    assert judge_cluster(cluster_answer(), Moment(truth(), truth(records={1: SHORT}))) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"leader": "n2"},
        {"isr": ["n1"]},
        {"epoch": 2},
        {"status": "offline"},
        {"replicas": ["n1"]},
        {"replica_states": [{"node": "n1", "epoch": 3, "leo": 11, "hw": 10, "applied": 10}]},
        {"replica_states": [{"node": "n1", "epoch": 3, "leo": 10, "hw": 9, "applied": 10}]},
    ],
)
def test_a_partition_is_told_as_it_is(changes: dict[str, Any]) -> None:
    """A leader, replicas in sync, epoch, status or offset that never was so is named."""
    assert judge_partitions(partitions_answer(), moment()) == []
    assert len(judge_partitions(partitions_answer(**changes), moment())) == 1


def test_offsets_may_lie_between_what_was_before_and_after() -> None:
    """Offsets rise while the answer is made; in another epoch, or process, they may fall."""
    later = truth(copies={("n1", 1): CopyTruth((1, 3), 20, 20, 20)})
    states = [{"node": "n1", "epoch": 3, "leo": 15, "hw": 12, "applied": 12}]
    assert judge_partitions(partitions_answer(replica_states=states), Moment(truth(), later)) == []
    restarted = truth(copies={("n1", 1): CopyTruth((2, 3), 5, 5, 5)})
    assert judge_partitions(partitions_answer(replica_states=states), Moment(truth(), restarted)) == []


def test_a_partition_that_is_left_out_is_named() -> None:
    """All partitions are told."""
    assert judge_partitions({"partitions": []}, moment()) == ["partition 1 is not told"]


@pytest.mark.parametrize(("objects", "seconds"), [(0, 0.0), (0, None), (3, 0.0)])
def test_nothing_behind_is_true_or_unknown(objects: int | None, seconds: float | None) -> None:
    """A queue of which a change waits all the time does not say that nothing waits; null claims nothing."""
    row = {"queue": "q", "bucket_type": "default", "objects": objects, "seconds": seconds}
    assert judge_lag({"lag": [row]}, moment()) == []
    behind = moment(windows={("q", 1): WindowTruth(LIFE, frozenset(), frozenset((8,)))})
    assert len(judge_lag({"lag": [row]}, behind)) == 1
    assert judge_lag({"lag": [row | {"objects": None, "seconds": None}]}, behind) == []
    assert judge_lag({"lag": [row | {"objects": 2, "seconds": 0.5}]}, behind) == []
    went = truth(windows={("q", 1): WindowTruth(LIFE, frozenset(), frozenset((9,)))})
    assert judge_lag({"lag": [row]}, Moment(behind.before, went)) == []
    moved = truth(windows={("q", 1): WindowTruth(("n2", 1, 4), frozenset(), frozenset((8,)))})
    assert judge_lag({"lag": [row]}, Moment(behind.before, moved)) == []


def gaps_answer(*starts: int, **changes: Any) -> dict[str, Any]:
    """An answer of /admin/gaps."""
    rows = [{"queue": "q", "partition": 1, "from_offset": start} for start in starts]
    return {"gaps": rows, "unknown": [], "unknown_partitions": {}} | changes


def test_gaps_are_told_while_they_are_open_and_no_longer() -> None:
    """ "No gaps" is wrong while one is open; a gap that nobody has is wrong; a silent node makes it unknown."""
    open_gap = moment(windows={("q", 1): WindowTruth(LIFE, frozenset(((4, 6),)), frozenset())})
    assert judge_gaps(gaps_answer(4), open_gap) == []
    assert judge_gaps(gaps_answer(), moment()) == []
    assert len(judge_gaps(gaps_answer(), open_gap)) == 1
    assert len(judge_gaps(gaps_answer(4), moment())) == 1
    assert judge_gaps(gaps_answer(unknown=["n1"]), open_gap) == []
    assert judge_gaps(gaps_answer(unknown_partitions={"q": [1]}), open_gap) == []
    assert judge_gaps(gaps_answer(), Moment(open_gap.before, truth())) == []


def test_a_ledger_closes_or_is_unknown() -> None:
    """A ledger that does not close, or has lost changes, is wrong at any time."""
    row = {"direction": "sent", "queue": "q", "closes": True, "lost": 0}
    assert judge_ledger({"ledger": [row, row | {"closes": None}]}, moment()) == []
    assert len(judge_ledger({"ledger": [row | {"closes": False}]}, moment())) == 1
    assert len(judge_ledger({"ledger": [row | {"lost": 2}]}, moment())) == 1


@pytest.mark.parametrize("changes", [{"served": 6}, {"acknowledged": 3}, {"suspended": {"by": "x"}}])
def test_a_queue_is_told_as_it_is(changes: dict[str, Any]) -> None:
    """Counters that no node had, and a suspension that nobody ordered, are named."""
    row = {"node": "n1", "name": "q", "served": 5, "acknowledged": 4, "suspended": None}
    assert judge_queues({"queues": [row]}, moment()) == []
    assert len(judge_queues({"queues": [row | changes]}, moment())) == 1


def test_findings_name_what_is_amiss_or_say_that_something_is_unknown() -> None:
    """Replicas that are missing for long, partitions that are offline, and open gaps."""
    fine: dict[str, Any] = {"state": "ok", "findings": []}
    assert judge_findings(fine, moment()) == []
    short = moment(records={1: SHORT})
    assert len(judge_findings(fine, short)) == 1
    found = [{"code": "out-of-sync", "severity": "warning"}]
    assert judge_findings({"findings": found}, short) == []
    assert judge_findings({"findings": [{"code": "not-known", "severity": "unknown"}]}, short) == []
    gaps = moment(windows={("q", 1): WindowTruth(LIFE, frozenset(((4, 6),)), frozenset())})
    assert len(judge_findings(fine, gaps)) == 1
    assert judge_findings({"findings": [{"code": "gaps", "severity": "warning"}]}, gaps) == []


@pytest.mark.parametrize("changes", [{"verdict": "in-sync"}, {"began_ms": 2}, {"proven_ms": 3}, {"equal_ms": 1}])
def test_full_sync_is_told_as_it_found(changes: dict[str, int | str]) -> None:
    """A verdict that no check had, and a time that nothing proves, are named, as long as no check ends meanwhile."""
    told = {"verdict": "up-to-date", "began_ms": 1, "proven_ms": 1, "equal_ms": None}

    def answer(**numbers: object) -> dict[str, Any]:
        newest = {word: numbers[word] for word in ("verdict", "began_ms")}
        peer = {"name": "west", "bucket_types": ["default"], "newest": {"default": newest}}
        peer |= {word: {"default": numbers[word]} for word in ("proven_ms", "equal_ms")}
        return {"nodes": {"n1": {"peers": [peer]}, "n2": None}}

    at = "n1", "west", "default"
    so = truth(checks={at: CheckTruth(1, (1, "up-to-date"), 1, None)})
    later = truth(checks={at: CheckTruth(1, (9, "in-sync"), 9, 9)})
    assert judge_fullsync(answer(**told), Moment(so, so)) == []
    assert len(judge_fullsync(answer(**told | changes), Moment(so, so))) == 1
    assert judge_fullsync(answer(**told | changes), Moment(so, later)) == []


@pytest.mark.parametrize("changes", [{"fetched": 4}, {"applied": 4}, {"failed": 1}])
def test_what_a_sink_received_is_told_as_it_is(changes: dict[str, int]) -> None:
    """Counters that the sink never had are named."""
    row = {"source_uuid": "aa", "queue": "q", "fetched": 5, "applied": 3, "merged": 1, "superseded": 1}
    row |= {"rejected": 0, "failed": 0}
    so = truth(received={("n1", "aa", "q"): ReceivedTruth(1, 5, 3, 1, 1, 0, 0)})
    assert judge_sinks({"nodes": [{"node": "n1", "sink": {"sources": [row]}}]}, Moment(so, so)) == []
    assert judge_sinks({"nodes": [{"node": "n1", "sink": None}]}, Moment(so, so)) == []
    assert len(judge_sinks({"nodes": [{"node": "n1", "sink": {"sources": [row | changes]}}]}, Moment(so, so))) == 1


def test_clocks_are_told_as_far_apart_as_they_are() -> None:
    """An offset beyond its bound is named, once both clocks and the link between the nodes are as they are for long."""

    def answer(offset_ms: int) -> dict[str, Any]:
        clocks = {"nodes": [{"node": "n2", "offset_ms": offset_ms, "bound_ms": 2.0}], "peers": []}
        return {"nodes": {"n1": {"clocks": clocks}, "n2": None}}

    clocks = {"n1": ClockTruth(0, 1.0), "n2": ClockTruth(30_000_000_000, 1.0)}
    steady = moment(clocks=clocks, settled=frozenset(("clock n1", "clock n2", "reach n1 n2")))
    assert judge_health(answer(30_004), steady) == []
    assert len(judge_health(answer(0), steady)) == 1
    assert judge_health(answer(0), moment(clocks=clocks)) == []
    fast = {"n1": ClockTruth(0, 1.0), "n2": ClockTruth(30_000_000_000, 1.001)}
    assert judge_health(answer(30_060), steady._replace(after=steady.after._replace(clocks=fast))) == []


OURS, THEIRS = encode_clock(((b"a" * 20, 2, 0),)), encode_clock(((b"a" * 20, 1, 0),))


def explained(**changes: Any) -> dict[str, Any]:
    """A right answer of /admin/explain about a key that both clusters have."""
    return {
        "known": True,
        "object": {"clock": OURS.hex()},
        "other_sides": [{"fullsync": "west", "state": "equal"}],
        "queues": [{"queue": "west", "owner": "west", "state": "acknowledged"}],
        "dead_letters": [],
    } | changes


def key_states(east: bytes | None, west: bytes | None) -> KeyTruth:
    """A key in both clusters."""
    return KeyTruth({"east": east, "west": west}, {"east": False, "west": False}, ())


def test_a_key_is_explained_as_it_is() -> None:
    """Its clock here, the same at the other cluster, and acknowledged only where the other cluster has it."""
    both, behind = key_states(OURS, OURS), key_states(OURS, THEIRS)
    assert judge_key(explained(), "east", both, both) == []
    assert len(judge_key(explained(object={"clock": THEIRS.hex()}), "east", both, both)) == 1
    assert len(judge_key(explained(object=None), "east", both, both)) == 1
    assert len(judge_key(explained(queues=[]), "east", behind, behind)) == 1
    assert len(judge_key(explained(other_sides=[]), "east", behind, behind)) == 1
    assert judge_key(explained(known=False), "east", behind, behind) == []
    assert judge_key(explained(), "east", both, key_states(THEIRS, OURS)) == []
    absent = [{"fullsync": "west", "state": "absent"}]
    assert len(judge_key(explained(other_sides=absent), "east", both, both)) == 1


def test_all_is_well_once_all_is_quiet() -> None:
    """Problems, warnings, lag and ledgers that are not known are wrong at the end."""
    assert judge_quiet_cluster(cluster_answer(), moment()) == []
    assert len(judge_quiet_cluster(cluster_answer(problems=["x"]), moment())) == 1
    assert len(judge_quiet_cluster(cluster_answer(warnings=["x"]), moment())) == 1
    lag = {"queue": "q", "bucket_type": "default", "cluster": "west", "reason": ""}
    calm = {"seconds": 0.0, "objects": 0, "in_flight": 0}
    assert judge_quiet_lag({"lag": [lag | calm]}, moment()) == []
    assert len(judge_quiet_lag({"lag": [lag | calm | {"seconds": None}]}, moment())) == 1
    row = {"direction": "sent", "queue": "q", "cluster": "west", "state": "closed", "reason": "", "closes": True}
    assert judge_quiet_ledger({"ledger": [row]}, moment()) == []
    assert len(judge_quiet_ledger({"ledger": [row | {"closes": None}]}, moment())) == 1
    amiss = {"code": "links-fail", "sentence": ""}
    assert judge_quiet_findings({"findings": [amiss | {"code": "dead-letters"}]}, moment()) == []
    assert len(judge_quiet_findings({"findings": [amiss]}, moment())) == 1
