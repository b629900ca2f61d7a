"""Dry runs of operators' changes to queues, from nodes' listings."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from isthmus.node.admin_api.queue_plan import plan_of
from isthmus.node.nouns.queue import QueueShares
from isthmus.queues.queue_documents import PUBLISHING, SERVING
from tests.support.queue_listings import share


@pytest.mark.parametrize(
    ("what", "node", "effect"),
    [
        ([SERVING], None, "serves no changes on all nodes: they wait, also new ones, until serving is resumed; now 2"),
        ([SERVING], "n1", "serves no changes on node n1: they wait"),
        ([PUBLISHING], None, "become a gap until a full-sync closes it; 2 changes from before are still served"),
        ([PUBLISHING, SERVING], None, "publishes no changes on all nodes, and serves none: changes from now on become"),
    ],
)
def test_a_suspension_of_serving_alone_makes_no_gap(what: Sequence[str], node: str | None, effect: str) -> None:
    """Only suspended publishing makes a gap of new changes; with serving suspended, everything waits."""
    plan = plan_of(
        "suspend",
        "to-west",
        {"n1": QueueShares([share("to-west", waiting=2)])},
        bucket_types=set(),
        what=what,
        node=node,
    )
    assert effect in plan.effect
    assert ("gap" in plan.effect) is (PUBLISHING in what)
