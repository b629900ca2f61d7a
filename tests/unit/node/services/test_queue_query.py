"""The answers of nodes about their queues, as they travel."""

from __future__ import annotations

import json

from isthmus.node.services.queue_query import LAGS
from isthmus.node.services.replication_lag import NodeLags
from isthmus.queues.lag import PartitionLag, QueueLag

PARTITION = {
    "partition": 3,
    "bucket_type": "default",
    "seconds": None,
    "objects": 2,
    "bytes": None,
    "in_flight": 0,
    "cursor": 7,
    "applied": 9,
}
QUEUE = {
    "queue": "q",
    "cluster": None,
    "uuid": None,
    "reason": "",
    "held": {},
    "partitions": [PARTITION],
    "ledger_off": 0,
}
PROVEN = {"queue": "q", "bucket_type": "default", "at_ms": 5}


def test_lags_travel_as_between_nodes_of_earlier_versions() -> None:
    """The body has the same keys in the same order, and null for what is not known; an answer of an
    earlier version, without `held` and `ledger_off`, or with a key of a later one, is read, too."""
    part = PartitionLag(3, "default", None, 2, None, 0, 7, 9)
    lags = NodeLags([QueueLag(queue="q", cluster=None, uuid=None, reason="", partitions=[part])], [PROVEN])
    body = json.dumps({"queues": [QUEUE], "proven": [PROVEN]}).encode()
    assert LAGS.answers.encode(lags) == body
    assert LAGS.answers.decode(body) == lags
    earlier = {name: value for name, value in QUEUE.items() if name not in ("held", "ledger_off")}
    assert LAGS.answers.decode(json.dumps({"queues": [earlier | {"new": 1}], "proven": [PROVEN]}).encode()) == lags
