"""Queues of the whole cluster: sums of what nodes list, and what is unknown while a node or a leader is missing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from isthmus.node.admin_api.queue_plan import plan_of
from isthmus.node.nouns.queue import QueueShare, QueueShares
from isthmus.node.services.queue_summary import MIXED, queue_rows
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus
from tests.support.queue_listings import EMPTY, share


def record(partition: int, leader: str | None) -> PartitionRecord:
    """A partition of three replicas; without a leader it is offline."""
    return PartitionRecord(
        partition, "default", partition, 3, ("a", "b", "c"), 1,
        PartitionStatus.OFFLINE if leader is None else PartitionStatus.ONLINE,
        None if leader is None else Incarnation(leader, 1),
        isr=frozenset(Member(node, 1) for node in "abc"), min_isr=2,
    )  # fmt: skip


RECORDS = {0: record(0, "a"), 1: record(1, "b"), 2: record(2, "b")}


def listed(partitions: int, waiting: int | None = 0, **facts: Any) -> QueueShare:
    """A node's share of queue q, whose cursors it knows in the given number of partitions."""
    return share(partitions=partitions, waiting=waiting, **facts)


def joined(answers: dict[str, Any], records: dict[int, PartitionRecord] = RECORDS) -> dict[str, Any]:
    """The row of queue q."""
    listings = {node: rows if rows is None else QueueShares(rows) for node, rows in answers.items()}
    (row,) = queue_rows(listings, records)
    found: dict[str, Any] = msgspec.to_builtins(row)
    return found


def test_numbers_of_all_nodes_are_added() -> None:
    """It has depth by priority, achieved rates and the time that limits delayed fetches; the oldest change is the
    oldest of any node, and a node without changes has none. A node that leads nothing counts too, since bulk references
    may be on any node."""
    bulk = {"real_time": EMPTY, "full_sync": {"waiting": 4, "in_flight": 1}, "fold": {"waiting": 2, "in_flight": 0}}
    row = joined({"a": [listed(1, 3)], "b": [listed(2, 0)], "c": [listed(0, priorities=bulk, oldest_age_ms=None)]})
    assert row["priorities"] == {
        "real_time": {"waiting": 3, "in_flight": 0, "at_least": 3},
        "full_sync": {"waiting": 4, "in_flight": 1, "at_least": 4},
        "fold": {"waiting": 2, "in_flight": 0, "at_least": 2},
    }
    assert (row["oldest_age_ms"], row["unknown"], row["differs"], row["lacking"]) == (7_000, "", [], [])
    assert row["rates"]["achieved"] == {"bytes_per_second": 301.5, "objects_per_second": 6.0}
    assert row["rates"]["throttled_seconds"] == 4.5
    assert (row["owner"]["cluster"], sorted(row["nodes"])) == ("west", ["a", "b", "c"])


def test_nothing_waits_where_every_node_says_so() -> None:
    """The oldest change has no age then, and that is known."""
    row = joined({"a": [listed(1)], "b": [listed(2)]})
    assert (row["priorities"]["real_time"]["waiting"], row["oldest_age_ms"], row["unknown"]) == (0, 0, "")


@pytest.mark.parametrize(
    ("answers", "records", "why"),
    [
        ({"a": [listed(1, 3)], "b": None}, RECORDS, "node b does not answer"),
        ({"a": [listed(1, 3)]}, RECORDS, "node b does not answer"),
        ({"a": [listed(1, 3)], "b": []}, RECORDS, "node b, which leads 2 partitions, has no queue q"),
        ({"a": [listed(1, 3)]}, {0: record(0, "a"), 1: record(1, None)}, "partition 1 has no leader"),
        ({"a": [listed(1, 3)], "b": [listed(1)]}, RECORDS, "node b does not know its cursor in 1 partition yet"),
        ({"a": [listed(1, 3)], "b": [listed(2, None)]}, RECORDS, "node b could not count what waits there"),
        (
            {"a": [listed(1, 3)], "b": [listed(2, 1, oldest_age_ms=None)]},
            RECORDS,
            "node b does not know since when its oldest change waits",
        ),
    ],
    ids=["silent", "gone", "without the queue", "no leader", "cursor", "uncounted", "age"],
)
def test_a_missing_part_makes_the_sum_unknown(
    answers: dict[str, Any], records: dict[int, PartitionRecord], why: str
) -> None:
    """A node may not answer, be gone, or lack the queue; a partition may have no leader or cursor; changes may not be
    counted. The reason says which, and the known part is a lower bound."""
    row = joined(answers, records)
    depth = row["priorities"]["real_time"]
    assert why in row["unknown"]
    assert (depth["waiting"], depth["in_flight"], row["oldest_age_ms"]) == (None, None, None)
    assert depth["at_least"] >= 3


def test_a_silent_node_makes_bulk_references_and_rates_unknown_a_missing_leader_does_not() -> None:
    """Bulk references are in the memory of any node; those of a gone node are lost, so they do not wait any more."""
    row = joined({"a": [listed(1)], "b": None})
    assert row["priorities"]["full_sync"] == {"waiting": None, "in_flight": None, "at_least": 0}
    assert (row["rates"]["achieved"]["bytes_per_second"], row["rates"]["throttled_seconds"]) == (None, None)
    row = joined({"a": [listed(1)]}, {0: record(0, "a"), 1: record(1, None)})
    assert row["priorities"]["full_sync"] == {"waiting": 0, "in_flight": 0, "at_least": 0}
    assert row["rates"]["achieved"]["bytes_per_second"] == 100.5


def test_fetches_of_one_node_at_several_are_one_consumer() -> None:
    """The consumer has its newest fetch and that node, the nodes at which it waits, and the sums; the newest fetch
    comes first. A node of an earlier version, which names no consumers, is tolerated."""

    def fetched(node: str, fetch_ms: int, given_ms: int | None, given: int, *, waits: bool) -> dict[str, Any]:
        return {"node": node, "waits": waits, "last_fetch_ms": fetch_ms, "last_given_ms": given_ms, "given": given,
                "in_flight": given // 2}  # fmt: skip

    old = msgspec.to_builtins(listed(1))
    del old["consumers"]
    row = joined(
        {
            "a": [listed(1, consumers=[fetched("w1", 500, 400, 10, waits=True)])],
            "b": [
                listed(
                    2,
                    consumers=[fetched("w2", 900, None, 0, waits=False), fetched("w1", 600, 450, 4, waits=True)],
                )
            ],
            "c": [msgspec.convert(old, QueueShare)],
        }
    )
    assert row["consumers"] == [
        {"node": "w2", "last_fetch_ms": 900, "at": "b", "last_given_ms": None, "given": 0, "in_flight": 0,
         "waits_at": []},
        {"node": "w1", "last_fetch_ms": 600, "at": "b", "last_given_ms": 450, "given": 14, "in_flight": 7,
         "waits_at": ["a", "b"]},
    ]  # fmt: skip


def test_what_nodes_have_differently_is_named() -> None:
    """A state that differs between nodes is mixed, and each reason names its nodes; other differing facts are listed;
    for a bucket type that is held back, the oldest time counts."""
    row = joined(
        {
            "a": [listed(1, serving="suspended", reason="serving suspended", held_types={"t": 9})],
            "b": [listed(2, filter="buckettype:t", held_types={"t": 5, "u": 6})],
        }
    )
    assert (row["serving"], row["publishing"], row["differs"]) == (MIXED, "running", ["filter"])
    assert row["reason"] == "node a: serving suspended"
    assert row["held_types"] == {"t": 5, "u": 6}


def test_queues_are_listed_by_name_though_one_node_alone_has_them() -> None:
    """A queue that only one node has, from its file, is a row, and the nodes without it are named."""
    listings = {"b": QueueShares([listed(2), listed(2, name="more")]), "a": QueueShares([listed(1)])}
    rows = queue_rows(listings, RECORDS)
    assert [(row.name, row.lacking) for row in rows] == [("more", ["a"]), ("q", [])]


def test_a_share_that_cannot_be_shown_is_not_known() -> None:
    """The sums of that queue are unknown with the reason, and the node is not said to lack it; those of others are
    known."""
    broken = QueueShares([listed(2, name="more")], failed={"q": "a defect"})
    more, row = queue_rows({"a": QueueShares([listed(1, 3), listed(1, 4, name="more")]), "b": broken}, RECORDS)
    assert (row.name, row.unknown, row.lacking) == ("q", "node b cannot show its share: a defect", [])
    assert (row.priorities.real_time.waiting, row.priorities.real_time.at_least) == (None, 3)
    assert (more.unknown, more.priorities.real_time.waiting) == ("", 4)
    assert plan_of("clear", "q", {"b": broken}).silent == ["b"]
