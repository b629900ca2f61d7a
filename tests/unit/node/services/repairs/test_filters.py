"""Full-sync applies the filter of its queue: excluded keys are not differences, and none of them is queued. A full
queue refuses in time."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.aae.scheduling.check import QueueFull
from isthmus.config.settings import QueueSettings
from isthmus.node.cli.node_listener import ANSWER_TIMEOUT_S
from isthmus.node.http.patience import MARGIN_SHARE
from isthmus.node.services.repairs import FOLD_ROOM_WAIT_MS, ROOM_WAIT_MS, RepairQueue
from isthmus.queues.window_rules import BULK_PRIORITIES, FULL_SYNC
from isthmus.repl.model.keys import Key
from tests.support.queue_node import audited_node

pytestmark = pytest.mark.virtual_time


async def test_the_filter_decides_what_counts_and_whole_types_need_no_lookup() -> None:
    """With a filter that includes a whole bucket type, all its keys count without a lookup; a filter by bucket decides
    for each bucket; a queue for repairs alone accepts all."""

    async with audited_node(
        QueueSettings("any"),
        QueueSettings("typed", filter="buckettype:default"),
        QueueSettings("named", filter="bucketname:kept"),
        QueueSettings("repairs", filter="block_rtq"),
    ) as queue_node:
        repairs = RepairQueue(queue_node.queues, None, queue_node.clock)  # type: ignore[arg-type]
        assert repairs.key_filter("any", b"default") is None
        assert repairs.key_filter("repairs", b"default") is None
        assert repairs.key_filter("typed", b"default") is None
        other = repairs.key_filter("typed", b"other")
        assert other is not None
        assert not other(b"b", b"k")
        named = repairs.key_filter("named", b"default")
        assert named is not None
        assert [named(bucket, b"k") for bucket in (b"kept", b"other")] == [True, False]
        keys = [Key(b"default", bucket, b"k") for bucket in (b"kept", b"other")]
        assert await repairs.push("named", keys) == 1
        assert await repairs.push("repairs", keys) == 2
        assert (repairs.waiting("named"), repairs.waiting("repairs"), repairs.waiting("any")) == (1, 2, 0)
        bulk = queue_node.queues.named("repairs").machine.bulk_queues[BULK_PRIORITIES.index(FULL_SYNC)]
        places, items = bulk.take(1)
        assert repairs.waiting("repairs") == 2, "one waits, one is under way"
        bulk.settle(places, items)
        assert repairs.waiting("repairs") == 1
        await repairs.push_last("repairs", [Key(b"default", b"b", b"last")])
        assert repairs.waiting("repairs") == 1, "references of folds are not full-sync's"


async def test_a_fold_into_a_full_queue_is_refused_in_time_by_name() -> None:
    """References of a fold wait for space for less time than the command line for its answer, and the refusal names the
    queue and how many it took; those of full-sync, for which no client waits, wait longer."""

    async with audited_node(QueueSettings("q", queue_limit_count=10)) as queue_node:
        repairs = RepairQueue(queue_node.queues, None, queue_node.clock)  # type: ignore[arg-type]
        keys = [Key(b"default", b"b", b"%d" % number) for number in range(15)]
        loop = asyncio.get_running_loop()
        waited_s = []
        for push in (repairs.push_last, repairs.push):
            began_s = loop.time()
            with pytest.raises(QueueFull, match="queue q took 10 of 15 references and is full"):
                await push("q", keys)
            waited_s.append(loop.time() - began_s)
        assert FOLD_ROOM_WAIT_MS / 1000 <= waited_s[0] < ANSWER_TIMEOUT_S * (1 - MARGIN_SHARE)
        assert waited_s[1] >= ROOM_WAIT_MS / 1000
