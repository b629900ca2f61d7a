"""The plan of a bucket type, and the replicas of a node as other nodes receive them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
import structlog

from isthmus.aae.row_stream.plan import METHOD, PartitionRange, ReplicaStatus, RowPlan, _decode
from isthmus.aae.row_stream.streams import LocalReplica, RowStreams
from isthmus.repl.model.errors import CodecError, OutcomeUnknown
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.store.port import AppliedPosition
from isthmus.repl.unforeseen import unforeseen

ROWS: list[list[Any]] = [[3, True, True, 7, 1 << 40, 12], [4, False, True, 7, 9, None]]


def test_replicas_of_version_1_are_decoded() -> None:
    """The bytes that earlier versions send give the same replicas."""
    assert _decode(msgpack.packb([1, ROWS])) == [ReplicaStatus(*row) for row in ROWS]


@pytest.mark.parametrize("bad", [[2, ROWS], [1, [[-1, True, True, 7, 1, 1]]], [1, [[1, 1, True, 7, 1, 1]]], [1], b"x"])
def test_other_messages_are_refused(bad: object) -> None:
    """Another version, a negative number, a number for a flag, a missing field."""
    with pytest.raises(CodecError, match="not a list of replicas"):
        _decode(msgpack.packb(bad))


class Injected(RuntimeError):
    """Raised by the tests alone."""


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What is logged meanwhile; no earlier test has used up the limit of log lines."""
    monkeypatch.setattr(unforeseen._limit, "due", lambda _subject: 0)
    with structlog.testing.capture_logs() as lines:
        yield lines


def injected(lines: list[Any]) -> list[str]:
    """The events of the exceptions that were caught; no other error was logged."""
    errors = [line for line in lines if line["log_level"] == "error"]
    assert all(isinstance(line.get("exc_info"), Injected) for line in errors), errors
    return [line["event"] for line in errors]


class FaultyNode:
    """Two partitions of node n1, which leads both, and other nodes; each part may raise."""

    def __init__(self) -> None:
        self.broken: set[object] = set()
        streams = RowStreams(self, ThisNode("n1", "east", bytes(16)), self)  # type: ignore[arg-type]
        self.transfers = self
        self.row_plan = RowPlan(streams, node="n1", replicas=self, layout=self, rpc=self)  # type: ignore[arg-type]
        self.close = streams._estimating.shutdown

    def fails(self, what: object) -> None:
        if what in self.broken:
            raise Injected

    def stream_replicas(self, bucket_type: bytes) -> list[LocalReplica]:
        self.fails("replicas")
        return [LocalReplica(bucket_type, number, (0, 1 << 24), True, True) for number in (0, 1)]

    def applied(self, partition: int) -> AppliedPosition:
        self.fails(("applied", partition))
        return AppliedPosition(7, 100 + partition)

    def snapshot(self, partition: int) -> Any:
        self.fails(("snapshot", partition))
        raise OutcomeUnknown("no rows here")

    def ranges(self, _bucket_type: bytes) -> dict[int, PartitionRange]:
        return {0: PartitionRange((0, 10), 1, 0), 1: PartitionRange((10, 20), 1, 77)}

    def urls(self) -> dict[str, str]:
        return {name: f"http://{name}" for name in ("n1", "n2", "n3")}

    async def request(self, node: str, method: str, _body: bytes, _timeout_ms: int) -> bytes:
        assert method == METHOD
        self.fails(node)
        rows = [[number, False, True, 7, 90, 12] for number in (0, 1)]
        return msgpack.packb([1, rows])  # type: ignore[no-any-return]

    async def nodes(self) -> list[list[str]]:
        """The nodes of each partition in the plan, the leader last."""
        return [[copy["node"] for copy in row["copies"]] for row in await self.row_plan.plan(b"default")]


@pytest.fixture
def node() -> Iterator[FaultyNode]:
    """A node whose parts may raise."""
    made = FaultyNode()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("broken", "nodes", "events"),
    [
        ("n2", [["n3", "n1"], ["n3", "n1"]], ["row_plan.node_bug"]),
        ("replicas", [["n2", "n3"], ["n2", "n3"]], ["row_plan.node_bug"]),
        (("applied", 1), [["n2", "n3", "n1"], ["n2", "n3"]], ["row_plan.replica_bug"]),
        (("snapshot", 1), [["n2", "n3", "n1"], ["n2", "n3", "n1"]], ["row_stream.estimate_bug"]),
    ],
)
async def test_a_node_or_replica_that_fails_is_left_out_alone(
    broken: object, nodes: list[list[str]], events: list[str], node: FaultyNode, logged: list[Any]
) -> None:
    """The plan has the replicas of all other nodes and partitions; a replica whose rows cannot be counted is there
    without an estimate."""
    node.broken = {broken}
    assert await node.nodes() == nodes
    assert injected(logged) == events


async def test_a_plan_names_the_course_of_each_partitions_offsets(node: FaultyNode) -> None:
    """Lineage and incarnation of each partition: with others the offsets of a stream mean other changes."""
    plan = await node.row_plan.plan(b"default")
    assert [(row["segments"], row["lineage"], row["incarnation"]) for row in plan] == [
        ([0, 10], 1, 0),
        ([10, 20], 1, 77),
    ]
