"""Re-seeding where replicas do not answer."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from isthmus.node.admin_api.unsafe_recovery import UnsafeRecoveryAdmin
from isthmus.node.services.cluster_query import ClusterAnswers
from isthmus.repl.model.record import PartitionRecord


class Silence:
    """A cluster in which no node answers."""

    async def ask(self, *_: object) -> ClusterAnswers[Any]:
        return ClusterAnswers({}, {})


async def test_a_record_whose_replicas_are_all_silent_is_left(client_api: Any, send_request: Any) -> None:
    """The metastore went back and all nodes are down, or do not hold their replicas yet: the answer names the nodes to
    start, and the record stays as it is."""
    record = PartitionRecord(0, "default", 0, 1, ("n1", "n2"), epoch=2, min_isr=2, overtaken=5)
    controller = SimpleNamespace(records={0: record}, registrations={})
    UnsafeRecoveryAdmin(SimpleNamespace(controller=controller, query=Silence()), client_api.app.router)  # type: ignore[arg-type]
    answer = await send_request(client_api.app, "POST", "/admin/cluster/reseed", json.dumps({"dry_run": True}).encode())
    assert answer.status == 200, answer.body
    (plan,) = json.loads(answer.body)["partitions"]
    assert (plan["outcome"], plan["node"], plan["reason"]) == ("left", "", "no replica answers: start n1, n2")
    assert [each["node"] for each in plan["replicas"]] == ["n1", "n2"]
