"""Full-sync applies the filter of its queue: excluded keys are not differences, and none of them is queued."""

from __future__ import annotations

import pytest

from isthmus.config.settings import QueueSettings
from isthmus.node.services.repairs import RepairQueue
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
        repairs = RepairQueue(queue_node.queues, queue_node.clock)
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
