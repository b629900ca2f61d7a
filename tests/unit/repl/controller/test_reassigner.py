"""The controller while orders cannot progress: it neither spins nor logs progress."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from isthmus.repl.controller.reassigner import REPLAN_MS, Reassigner
from isthmus.repl.controller.reassignment_orders import ORDERS_PATH, Placement, change_placement, read_placement
from isthmus.repl.controller.reassignment_plan import ReplicaMove
from isthmus.repl.controller.reassignment_progress import ReassignmentKind, replanned
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore, WriteFault

pytestmark = pytest.mark.virtual_time


async def test_an_end_that_cannot_be_written_is_retried_and_not_logged() -> None:
    """The document is unreadable: the controller does not spin, and does not log that the order is over."""

    metastore = MemoryMetastore(MemoryEnsemble())
    await metastore.start(lambda _state: None)
    moves = [ReplicaMove(0, ("n1",), ("n2",))]
    read = await change_placement(
        metastore, lambda p: Placement.with_order(p, ReassignmentKind.SPREAD, "t", "ann", 1, moves)
    )
    assert read.version is not None
    await metastore.put(ORDERS_PATH, b'{"v":2}', read.version)
    with capture_logs() as logs:
        assert await Reassigner(metastore).look(read, {}, {}, 0, 0) >= 100
    assert "placement.ended" not in [each["event"] for each in logs]
    await metastore.stop()


async def test_an_end_whose_write_lost_its_answer_is_logged_and_counted_once() -> None:
    """The next round finds it written."""

    metastore = MemoryMetastore(MemoryEnsemble())
    await metastore.start(lambda _state: None)
    moves = [ReplicaMove(0, ("n1",), ("n2",))]
    read = await change_placement(
        metastore, lambda p: Placement.with_order(p, ReassignmentKind.SPREAD, "t", "ann", 1, moves)
    )
    metastore.spoil(WriteFault.ANSWER_LOST)
    moving = Reassigner(metastore)
    with capture_logs() as logs:
        assert await moving.look(read, {}, {}, 0, 0) == 0
    assert [each["event"] for each in logs].count("placement.ended") == 1
    assert ("isthmus_move_orders_ended_total", {"outcome": "refused"}, 1) in list(moving.samples())
    await metastore.stop()


async def test_other_placements_are_not_sought_at_every_pass_where_there_are_none() -> None:
    """The search takes a second for a thousand partitions, which delays elections: it is repeated when a node arrives,
    or after a while."""
    isr = frozenset(Member(node, 1) for node in ("n1", "n2"))
    leader = Incarnation("n2", 1)
    record = PartitionRecord(0, "default", 0, 1, ("n1", "n2"), 1, PartitionStatus.ONLINE, leader, isr=isr)

    metastore = MemoryMetastore(MemoryEnsemble())
    await metastore.start(lambda _state: None)
    moves = [ReplicaMove(0, ("n1", "n2"), ("n3", "n2"))]
    read = await change_placement(
        metastore,
        lambda p: p.with_drained(["n1"], "ann", 1).with_order(ReassignmentKind.DRAIN, "t", "ann", 1, moves),
    )
    here = {node: Registration(node, 1, True, spare_log_id=5) for node in ("n1", "n2")}
    moving = Reassigner(metastore)
    with patch("isthmus.repl.controller.reassigner.replanned", wraps=replanned) as sought:
        for now_ms in (0, REPLAN_MS, REPLAN_MS + 1, REPLAN_MS + 2_000):
            await moving.look(read, {0: record}, here, now_ms, 0)
        assert sought.call_count == 1
        await moving.look(read, {0: record}, here, 2 * REPLAN_MS, 0)
        assert sought.call_count == 2
        here["n4"] = Registration("n4", 1, True, spare_log_id=5)
        assert await moving.look(read, {0: record}, here, 2 * REPLAN_MS + 1, 0) == 0
        assert sought.call_count == 3
    (order,) = (await read_placement(metastore)).orders
    assert order.moves[0].after == ("n2", "n4")
    await metastore.stop()
