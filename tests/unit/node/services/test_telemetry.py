"""Replication metrics gathered from all nodes: how they are merged, unknown numbers, and the output of the command."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.cluster import telemetry
from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.telemetry import KindFacts, NodeFacts, TypeFacts, telemetry_document
from isthmus.node.services.telemetry_query import TELEMETRY, TelemetryBody
from isthmus.repl.model.errors import CodecError, NotReady
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus
from isthmus.repl.runtime.metrics import ReplogSizes

BODY = TelemetryBody()
ONE = TypeFacts(
    {"leader": ReplogSizes(2, 30, 20, 4, 3), "isr": ReplogSizes(1, 8, 8, 0, 0)},
    {"write": KindFacts(1000, 300, 600, 9, 30_000)},
    {"write": KindFacts(1500, 30, 30, 2, 30_000)},
    {("write", "overloaded"): 2},
)
TWO = TypeFacts(
    {"leader": ReplogSizes(1, 60, 60, 1, 1)},
    {"write": KindFacts(10, 100, 1000, 90, 50_000), "barrier": KindFacts(1, 0, 0, 0, 50_000)},
    {},
    {("write", "overloaded"): 1, ("cursor", "not-ready"): 5},
)


def record(partition: int, leader: str, in_sync: str, bucket_type: str = "default") -> PartitionRecord:
    """Three replicas, min-ISR 2."""
    return PartitionRecord(
        partition, bucket_type, partition, 3, ("a", "b", "c"), 1, PartitionStatus.ONLINE, Incarnation(leader, 1),
        isr=frozenset(Member(node, 1) for node in in_sync), min_isr=2,
    )  # fmt: skip


RECORDS = [record(0, "a", "abc"), record(1, "b", "bc"), record(2, "a", "abc", "large")]


def test_averages_are_made_of_sums_and_rates_are_added() -> None:
    """One node has two logs and another one has one: the average is over three logs, maxima are the largest, rates are
    added, each over its own span, and failures are added by kind and reason."""
    document = telemetry_document(RECORDS, {"a": {"default": ONE}, "b": {"default": TWO}})
    level = document["cluster"]
    assert level["replogs"]["leader"] == {
        "replicas": 3, "entries_average": 30.0, "entries_max": 60, "unapplied_average": 1.667, "unapplied_max": 3,
    }  # fmt: skip
    assert level["replogs"]["osr"]["entries_average"] is None
    assert level["replicate"]["write"] == {"total": 1010, "per_s": 12.0, "average_ms": 4.0, "max_ms": 90}
    assert level["replicate"]["barrier"] == {"total": 1, "per_s": 0.0, "average_ms": None, "max_ms": None}
    assert level["failures"] == {"write": {"overloaded": 3}, "cursor": {"not-ready": 5}}
    assert level["isr"] == {"partition": 1, "members": 2, "min_isr": 2, "replicas": 3}
    assert [each["bucket_type"] for each in document["bucket_types"]] == ["default", "large"]
    assert document["bucket_types"][1]["isr"]["members"] == 3


def test_failures_have_rates_that_are_added_over_nodes() -> None:
    """3 in 30 s at one node and 6 in 60 s at another are 0.2 per second; the totals of a node of the previous version,
    which sends no rate, are added."""
    rate = ("write", "timed-out")
    one = TypeFacts(failures={rate: 9}, recent_failures={rate: (3, 30_000)})
    two = TypeFacts(failures={rate: 6}, recent_failures={rate: (6, 60_000)})
    old = TypeFacts(failures={rate: 1})
    level = telemetry_document(RECORDS, {"a": {"default": one}, "b": {"default": two}, "c": {"default": old}})[
        "cluster"
    ]
    assert level["failures"] == {"write": {"timed-out": 16}}
    assert level["failures_per_s"] == {"write": {"timed-out": 0.2}}


def test_a_silent_node_is_unknown_and_in_no_sum() -> None:
    """A node without an answer is named, its numbers are null, and so is every level without any measurement; the ISR
    is still known from the metastore."""
    document = telemetry_document(RECORDS, {"a": {"default": ONE}, "b": None})
    assert (document["nodes_counted"], document["nodes_unknown"]) == (["a"], ["b"])
    assert document["cluster"]["replicate"]["write"]["total"] == 1000
    silent = document["nodes"][1]
    assert (silent["node"], silent["replogs"], silent["replicate"], silent["apply"]) == ("b", None, None, None)
    assert silent["isr"]["partition"] == 1
    nobody = telemetry_document(RECORDS, {"a": None, "b": None})["cluster"]
    assert nobody["replogs"] is None
    assert nobody["isr"]["members"] == 2


def test_numbers_travel_between_nodes_as_they_are() -> None:
    """Encoded numbers decode to the same; rows of unknown kinds are skipped."""
    failed = {("write", "timed-out"): (3, 30_000)}
    facts = {"default": ONE, "large": TypeFacts(failures={("write", "timed-out"): 9}, recent_failures=failed)}
    assert BODY.decode(BODY.encode(facts)) == facts
    assert BODY.decode(b"\x91\x94\xa1d\xa6future\xa1x\xa0") == {"d": TypeFacts()}


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x80", b"\x91\x01", b"\x91\x94\x01\x01\x01\x01", b"\x91\x95\xa1d\xa5apply\xa1w\xa0\x01",
             b"\x91\x95\xa1d\xa8failures\xa1w\xa0\xff", b"\x91\x95\xa1d\xa8failures\xa1w\xa0\xa1x"]
)  # fmt: skip
def test_a_malformed_answer_is_refused(body: bytes) -> None:
    """Bytes that are not rows of non-negative numbers are refused as a fault of their sender."""
    with pytest.raises(CodecError):
        BODY.decode(body)


async def test_all_nodes_are_asked_and_a_silent_one_is_none() -> None:
    """The node's own numbers need no request; a refusal or a malformed answer of another node counts as no answer."""
    answers: dict[str, Any] = {"b": BODY.encode({"default": TWO}), "c": NotReady("no connection"), "d": b"\xc1"}

    async def request(node: str, method: str, _body: bytes, _timeout_ms: int) -> bytes:
        assert method == "telemetry"
        if isinstance(answers[node], Exception):
            raise answers[node]
        return bytes(answers[node])

    class NodeFactsHandler:
        async def respond(self, _request: None) -> NodeFacts:
            return {"default": ONE}

    query = ClusterQuery("a", SimpleNamespace(request=request))
    query.serve(TELEMETRY, NodeFactsHandler())
    found = await query.ask(TELEMETRY, None, "abcd")
    assert found.by_node == {"a": {"default": ONE}, "b": {"default": TWO}, "c": None, "d": None}


def test_the_command_shows_levels_and_what_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-o json` prints the answer unchanged; the tables have a line per level, and name the nodes that are not
    counted."""
    document = telemetry_document(RECORDS, {"a": {"default": ONE}, "b": {"default": TWO}, "c": None})
    monkeypatch.setattr(AdminClient, "get", lambda _client, path: {"/admin/telemetry": document}[path])
    plain = CliRunner().invoke(telemetry, ["-o", "json"])
    assert json.loads(plain.stdout) == document
    shown = CliRunner().invoke(telemetry, [])
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines[0] == "not counted, unknown: c"
    rows = [line.split() for line in lines]
    assert ["cluster", "leaders", "3", "30.0", "60", "1.7", "3"] in rows
    assert any(row[:2] == ["node", "c"] and set(row[-5:]) == {"unknown"} for row in rows)
    assert any("3 overloaded" in line for line in lines)
    assert ["cluster", "2", "2", "3", "1"] in rows
