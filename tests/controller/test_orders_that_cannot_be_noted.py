"""What the node that decides does while it cannot write down how an order ended."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from repl.isr.moves import Kind
from repl.isr.relocation import Move
from repl.metastore.memory import MemoryMetastore, WriteFault
from repl.metastore.memory_tree import MemoryEnsemble
from repl.moving import Moving
from repl.placement_orders import ORDERS_PATH, Placement, change_placement


def test_an_end_that_cannot_be_noted_is_tried_again_after_a_pause_and_not_told() -> None:
    """The document cannot be read any more: the controller does not spin, and the log does not say that it is over."""

    async def story() -> None:
        metastore = MemoryMetastore(MemoryEnsemble())
        await metastore.start(lambda _state: None)
        moves = [Move(0, ("n1",), ("n2",))]
        read = await change_placement(metastore, lambda p: Placement.with_order(p, Kind.SPREAD, "t", "ann", 1, moves))
        assert read.version is not None
        await metastore.put(ORDERS_PATH, b'{"v":2}', read.version)
        with capture_logs() as logs:
            assert await Moving(metastore).look(read, {}, {}, 0, 0) >= 100
        assert "placement.ended" not in [each["event"] for each in logs]
        await metastore.stop()

    asyncio.run(story())


def test_an_end_whose_note_lost_its_answer_is_told_and_counted_once() -> None:
    """The next round finds it there."""

    async def story() -> None:
        metastore = MemoryMetastore(MemoryEnsemble())
        await metastore.start(lambda _state: None)
        moves = [Move(0, ("n1",), ("n2",))]
        read = await change_placement(metastore, lambda p: Placement.with_order(p, Kind.SPREAD, "t", "ann", 1, moves))
        metastore.spoil(WriteFault.ANSWER_LOST)
        moving = Moving(metastore)
        with capture_logs() as logs:
            assert await moving.look(read, {}, {}, 0, 0) == 0
        assert [each["event"] for each in logs].count("placement.ended") == 1
        assert ("isthmus_move_orders_ended_total", {"outcome": "refused"}, 1) in list(moving.samples())
        await metastore.stop()

    asyncio.run(story())
