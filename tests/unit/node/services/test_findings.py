"""The list of findings of a cluster: severity, code, subject, sentence and remedy of each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from isthmus.node.services.finding_codes import CODES, Code
from isthmus.node.services.findings import (
    DOCUMENTS,
    ProbeState,
    ProbeThresholds,
    clocks_unknown,
    findings_document,
    lag_facts,
)
from isthmus.queues.riak_origin import RIAK_CLUSTER
from tests.support.cluster_answers import (
    NOW_MS,
    cluster_answer,
    fullsync_answer,
    health_answer,
    lag_answer,
    sinks_answer,
)


def answers_of(cluster: str, **changed: Any) -> dict[str, Any]:
    """The documents of a healthy cluster. `changed`: documents by name."""
    return {
        "cluster": cluster_answer(cluster),
        "health": health_answer(cluster),
        "lag": lag_answer(cluster),
        "sinks": sinks_answer(cluster),
        "fullsync": fullsync_answer(cluster),
        "gaps": {"gaps": [], "unknown": [], "unknown_partitions": {}, "at_ms": NOW_MS},
        **changed,
    }


def test_a_healthy_cluster_has_no_finding() -> None:
    """The list is empty and the state is ok when every document is there and fine."""
    assert answers_of("east").keys() == DOCUMENTS.keys()
    assert findings_document(answers_of("east"), {}) == {"state": "ok", "findings": []}


def test_a_finding_has_all_that_a_reader_shows() -> None:
    """Code and subject for programs, severity, sentence and remedy for people; the worst comes first."""
    late = lag_answer("east")
    late["lag"][0] |= {"seconds": 400.0, "objects": 15}
    found = findings_document(answers_of("east", lag=late, sinks=sinks_answer("east", state="failing")), {})
    assert found["state"] == "critical"
    assert found["findings"][0] == {
        "code": "lag",
        "severity": "critical",
        "subject": "queue to-west",
        "sentence": "queue to-west, bucket type default: 6.7 min behind, keys that wait: 15",
        "remedy": CODES[Code.LAG].remedy,
    }
    assert [row["code"] for row in found["findings"][1:]] == ["links-fail"]


def test_changes_of_a_riak_that_were_lost_lately_are_a_finding_with_numbers() -> None:
    """Of all nodes' links to that Riak; a loss of days ago is none any more."""
    lost = {"left_out": 0, "answers_lost": 2, "lost": 3, "waiting": 0, "lost_lately": True}
    sinks = sinks_answer("east", kind="riak", source_cluster="old", riak=lost)
    (found,) = findings_document(answers_of("east", sinks=sinks), {})["findings"]
    assert (found["code"], found["severity"], found["subject"]) == ("riak-lost", "warning", "riak old")
    assert "9 changes lost, and 6 answers that may have had one, at east-1, east-2, east-3" in found["sentence"]
    sinks = sinks_answer("east", kind="riak", source_cluster="old", riak={**lost, "lost_lately": False})
    assert findings_document(answers_of("east", sinks=sinks), {})["findings"] == []


def test_a_seed_of_a_riak_that_does_not_go_on_is_a_finding() -> None:
    """Once for all links, with the order that goes on with it."""
    counts = {"left_out": 0, "answers_lost": 0, "lost": 0, "waiting": 0, "lost_lately": False}
    fault = {**counts, "seed_fault": "interrupted: its node east-2 is not live"}
    sinks = sinks_answer("east", kind="riak", source_cluster="old", riak=fault)
    (found,) = findings_document(answers_of("east", sinks=sinks), {})["findings"]
    assert (found["code"], found["severity"], found["subject"]) == ("riak-seed", "warning", "riak old")
    assert "seed of Riak old interrupted: its node east-2 is not live" in found["sentence"]
    assert found["remedy"] == "isthmus riak seed old"


@pytest.mark.parametrize(("uuid", "remedy"), [(RIAK_CLUSTER.hex(), "--close ID"), ("ab" * 16, "isthmus fullsync run")])
def test_gaps_of_a_queue_for_a_riak_are_closed_by_hand(uuid: str, remedy: str) -> None:
    """No full-sync of this cluster compares with a Riak; other queues' gaps have the usual remedy."""
    lag = lag_answer("east")
    lag["lag"][0]["uuid"] = uuid
    row = {"queue": lag["lag"][0]["queue"], "from_ms": NOW_MS - 1_000, "upto_ms": NOW_MS}
    gaps = {"gaps": [row], "unknown": [], "unknown_partitions": {}, "at_ms": NOW_MS}
    (found,) = findings_document(answers_of("east", lag=lag, gaps=gaps), {})["findings"]
    assert found["code"] == "gaps"
    assert remedy in found["remedy"]


def test_what_was_not_answered_is_a_finding() -> None:
    """A document without an answer is named with the reason, and so is a cluster that does not answer at all."""
    answers = answers_of("east")
    del answers["gaps"]
    found = findings_document(answers, {"gaps": "timed out"})
    assert [(row["code"], row["severity"], row["sentence"]) for row in found["findings"]] == [
        ("not-known", "unknown", "gaps: timed out")
    ]
    assert found["state"] == "unknown"
    assert findings_document({}, {"cluster": "no node answers"})["findings"][0]["sentence"] == "no node answers"


def test_every_code_has_a_remedy_and_an_alert() -> None:
    """No finding is shown without what to do next, and none is without an alert."""
    assert CODES.keys() == set(Code)
    assert all(entry.remedy and (entry.alerts or entry.beside) for entry in CODES.values())


def clocks(peers: Mapping[tuple[str, str], float] = MappingProxyType({}), bound_ms: float = 1.0, **nodes: float) -> Any:
    """The health of nodes whose clocks are so many ms ahead of the true time, as they have measured each other; and of
    peers by (node that measures, address)."""
    answer = health_answer("east")
    answer["nodes"] = {
        name: {
            **answer["nodes"]["east-1"],
            "clocks": {
                "nodes": [
                    {"node": other, "offset_ms": nodes[other] - nodes[name], "bound_ms": bound_ms}
                    for other in nodes
                    if other != name
                ],
                "peers": [
                    {"peer": url, "offset_ms": ahead - nodes[name], "bound_ms": bound_ms}
                    for (node, url), ahead in peers.items()
                    if node == name
                ],
            },
        }
        for name in nodes
    }
    return answer


def clock_sentences(health: Any) -> list[tuple[str, str]]:
    """(severity, sentence) of the findings about clocks."""
    found = findings_document(answers_of("east", health=health), {})["findings"]
    return [(row["severity"], row["sentence"]) for row in found if row["code"] == "clock"]


def test_the_clock_that_differs_from_the_others_is_named() -> None:
    """Of three nodes the one that differs from both is the wrong one, whoever measured it; of two it is not known which
    one is. A minute is critical; what the round trip does not tell apart, and a second, are nothing."""
    assert clock_sentences(clocks(a=0, b=900, c=-100)) == []
    assert clock_sentences(clocks(bound_ms=2_000, a=0, b=2_900)) == []
    assert clock_sentences(clocks(a=0, b=30_000, c=5)) == [
        ("warning", "node b: its clock is 30.0 s ahead of the clocks of a, c")
    ]
    assert clock_sentences(clocks(a=-600_000, b=0, c=5)) == [
        ("critical", "node a: its clock is 10.0 min behind the clocks of b, c")
    ]
    (alone,) = clock_sentences(clocks(a=0, b=30_000))
    assert alone in (
        ("warning", "node b: its clock is 30.0 s ahead of the one of node a"),
        ("warning", "node a: its clock is 30.0 s behind the one of node b"),
    )
    assert len(clock_sentences(clocks(a=0, b=30_000, c=5, d=-30_000))) == 2


def test_of_clocks_that_differ_from_equally_many_the_first_by_name_is_named() -> None:
    """Two against two: which two are wrong is not known, and every node names the same ones, whatever order a set of
    names has in its process."""
    for number in range(10):
        one, two, three, four = (f"{letter}{number}" for letter in "abcd")
        assert clock_sentences(clocks(**{one: 0, two: 0, three: 30_000, four: 30_000})) == [
            ("warning", f"node {name}: its clock is 30.0 s behind the clocks of {three}, {four}") for name in (one, two)
        ]


def test_the_clock_of_a_peer_is_compared_with_a_right_one() -> None:
    """A node whose own clock is wrong does not accuse the clusters that it is linked with; where all measure it, a peer
    that is wrong is named."""
    url = "http://w:8098"
    wrong = clocks({("b", url): 0, ("a", url): 0}, a=0, b=30_000, c=5)
    assert [sentence for _, sentence in clock_sentences(wrong)] == [
        "node b: its clock is 30.0 s ahead of the clocks of a, c"
    ]
    assert clock_sentences(clocks({("b", url): -90_000}, a=0, b=5)) == [
        ("critical", f"peer {url}: its clock is 90.0 s behind the one of node b")
    ]


def test_nodes_of_an_earlier_version_have_no_clocks() -> None:
    """They report none, and are no finding; a check of clocks alone says so."""
    health = health_answer("east")
    assert clock_sentences(health) == []
    nodes = {**health["nodes"], "east-9": None}
    assert [fact.state.name for fact in clocks_unknown(nodes, {"east-9": "it is away"})] == ["UNKNOWN"] * 4


def test_an_unforeseen_exception_is_a_finding_of_its_node() -> None:
    """A defect that ended something within the last day is a warning, with what to do."""
    answers = answers_of("east")
    node = next(iter(answers["health"]["nodes"]))
    healthy, words = answers["health"]["nodes"][node], "a defect of this program ended push.bug once, in a.py:3: 'x'"
    answers["health"]["nodes"][node] = {**healthy, "defects": [words]}
    (finding,) = findings_document(answers, {})["findings"]
    assert finding["sentence"] == f"node {node}: {words}"
    assert (finding["severity"], finding["code"]) == ("warning", "defect")
    assert "support-bundle" in finding["remedy"]


@pytest.mark.parametrize(
    ("changed", "codes"),
    [
        ({"metastore": "suspended"}, ["metastore"]),
        ({"registered": False}, ["metastore"]),
        ({}, ["cluster"]),
    ],
)
def test_a_reason_to_doubt_what_a_node_shows_is_one_finding(changed: dict[str, Any], codes: list[str]) -> None:
    """A node lists it among the problems of the cluster, too. What it does not call a doubt is a problem."""
    words = "this node's session with the metastore is suspended: what is shown may be old"
    cluster = cluster_answer("east") | {"problems": [words], "doubts": [words] if changed else [], **changed}
    found = findings_document(answers_of("east") | {"cluster": cluster}, {})["findings"]
    assert [row["code"] for row in found] == codes


def test_an_unreadable_document_is_a_finding_of_its_own_kind() -> None:
    """No problem of the cluster beside it, and it is not hidden where replicas are out of sync."""
    words = "nothing is decided by what cannot be read: /p/0: not JSON"
    cluster = cluster_answer("east") | {"problems": [words], "unreadable": [words]}
    (finding,) = findings_document(answers_of("east") | {"cluster": cluster}, {})["findings"]
    assert (finding["code"], finding["severity"], finding["sentence"]) == ("document-unreadable", "warning", words)
    out = findings_document(answers_of("east") | {"cluster": cluster | {"under_replicated": [1]}}, {})["findings"]
    assert [row["code"] for row in out] == ["out-of-sync", "document-unreadable"]


def test_a_node_that_refuses_writes_is_not_said_to_have_little_space() -> None:
    """Whatever is short: the alert about little free space does not fire, and the remedy is not to make room."""
    words = "node east-1, 2 partitions: 3, 4: out-of-storage: writes are refused, no files can be opened"
    cluster = cluster_answer("east") | {"problems": [words], "writes_refused": {"east-1": [words]}}
    (finding,) = findings_document(answers_of("east") | {"cluster": cluster}, {})["findings"]
    assert finding == {
        "code": "writes-refused",
        "severity": "critical",
        "subject": "node east-1",
        "sentence": words,
        "remedy": "give that node what the sentence names as short "
        "(runbooks: a disk is full; files or inodes are short)",
    }


def test_a_ledger_that_is_off_is_critical_though_nothing_is_behind() -> None:
    """Each queue is named once, whatever the number of its bucket types and the words of its reason; a check of the lag
    alone is not concerned."""
    answers = answers_of("east")
    row = answers["lag"]["lag"][0]
    quoted = "serving suspended: as long as the ledger is off by 3"
    answers["lag"]["lag"] = [{**row, "reason": quoted}]
    assert findings_document(answers, {})["findings"] == []
    answers["lag"]["lag"] = [{**row, "ledger_off": 5, "bucket_type": name} for name in ("default", "carts")]
    (finding,) = findings_document(answers, {})["findings"]
    assert (finding["code"], finding["severity"], finding["subject"]) == ("ledger", "critical", "queue to-west")
    assert finding["sentence"] == "queue to-west: the ledger is off by 5: a bug"
    assert {fact.state for fact in lag_facts(answers["lag"]["lag"], ProbeThresholds(30_000, 300_000))} == {
        ProbeState.OK
    }
