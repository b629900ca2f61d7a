"""Shares of nodes in source queues, as JSON has them."""

from __future__ import annotations

from typing import Any

import msgspec

from isthmus.node.nouns.queue import QueueShare
from isthmus.node.services.queue_listing import shares_of
from isthmus.queues.service import QueueService
from tests.support.noun_examples import example_of

EMPTY = {"waiting": 0, "in_flight": 0}


async def listed_queues(queues: QueueService) -> list[dict[str, Any]]:
    """What a node lists of its queues."""
    found: list[dict[str, Any]] = msgspec.to_builtins((await shares_of(queues)).queues)
    return found


def share(name: str = "q", partitions: int = 1, waiting: int | None = 0, **facts: Any) -> QueueShare:
    """A share of queue `name`, of `partitions` whose cursors the node knows."""
    usual = {
        **example_of(QueueShare), "node": "a", "name": name, "filter": "any", "cascade": False, "suspensions": [],
        "owner": {"cluster": "west", "uuid": "f", "version": 1, "since_ms": 0, "by": "west"},
        "decree": None, "changed": {}, "publishing": "running", "serving": "running", "reason": "", "gaps": 0,
        "partitions": partitions, "waiting": waiting, "in_flight": 0, "oldest_age_ms": 7_000 if waiting else None,
        "consumers": [], "held_types": {},
        "priorities": {"real_time": {"waiting": waiting, "in_flight": 0}, "full_sync": EMPTY, "fold": EMPTY},
        "throttle": {
            "configured": {"bytes_per_second": None, "objects_per_second": None}, "set": None, "binding": None,
            "achieved": {"bytes_per_second": 100.5, "objects_per_second": 2.0}, "throttled_seconds": 1.5,
        },
    }  # fmt: skip
    return msgspec.convert({**usual, **facts}, QueueShare)
