"""The full-sync of a test as operators see it in JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from isthmus.aae.scheduling.gap_healing import GapHealer
from isthmus.aae.scheduling.scheduler import CheckScheduler
from isthmus.node.nouns.fullsync import FullSyncOfNode
from isthmus.node.services.fullsync_listing import (
    peer_row,
    peers_left_out,
    removed_peers,
    rest_of_day,
    running_check,
)
from isthmus.node.services.queue_coverage import Owners


def checks_of(
    manager: CheckScheduler, healing: GapHealer, results: int, wall_ms: int, owners: Owners
) -> FullSyncOfNode:
    """What a node compares, with its newest `results`; nothing is to be equal."""
    return FullSyncOfNode(
        node="n1",
        actor="full-sync",
        state="scheduled",
        reason="",
        sent=[],
        running=running_check(manager, wall_ms),
        peers=[
            peer_row(manager, peer, healing, results, owners, compares={}, equal_types=[])
            for peer in manager.peers.values()
        ],
        removed=removed_peers(manager),
        left_out=peers_left_out(manager),
    )


def days_of(manager: CheckScheduler) -> list[dict[str, Any]]:
    """The rest of the day of each peer."""
    return [msgspec.to_builtins(one) for one in rest_of_day(manager)]
