"""Assigning: a bucket type with an operator's own placement, on nodes by their numbers. Any node may do it.

What is written, all or nothing, is `repl.creation`'s; other ways to make a bucket type are `repl.bucket_types`'.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from repl.creation import DEFAULT_TYPE, Ground, Options, create, usable
from repl.isr.placement import ReplicaMap
from repl.isr.replica_map import check_nodes
from repl.metastore.port import Ambiguous, Conflict, Metastore, Unavailable
from repl.model.errors import BadInput, NotReady, OutcomeUnknown
from repl.placement_orders import read_placement

ATTEMPTS_MAX: Final = 5
"""Rounds of an operator's creation before it gives up: each lost one means that somebody else created one."""


class PlacementDiffers(BadInput):
    """A bucket type exists with another placement; to move it is another act."""

    reason = "placement-differs"


class Assigner(NamedTuple):
    """The node that does it, what its file has as the default type's min-ISR, and when (wall clock)."""

    metastore: Metastore
    node: str
    min_isr: int
    wall_ms: int


async def assign(by: Assigner, bucket_type: str, replica_map: ReplicaMap, *, validate_only: bool) -> str:
    """Create a bucket type with an operator's placement: "created", "exists" when it is there with just this
    placement, or with `validate_only` "valid" and nothing is written.

    Raises BadReplicaMap when it names nodes that do not live, PlacementDiffers when the bucket type is placed
    otherwise, NotReady when nothing was done, OutcomeUnknown, Unreadable.
    """
    metastore = by.metastore
    try:
        for _ in range(ATTEMPTS_MAX):
            ground = await Ground.read(metastore)
            placement = await read_placement(metastore)
            nodes = usable(await metastore.registrations(), placement.drained)
            check_nodes(replica_map, nodes)
            placed = tuple(tuple(nodes[number].node for number in replicas) for replicas in replica_map)
            found = ground.sets_of(bucket_type)
            if found:
                if found != placed:
                    raise PlacementDiffers(
                        f"bucket type {bucket_type!r} has {len(found)} partitions, placed otherwise: "
                        "`isthmus partition reassign --file` moves what exists"
                    )
                return "exists"
            if validate_only:
                return "valid"
            initial = by.min_isr if bucket_type == DEFAULT_TYPE else 0
            options = await Options.read(metastore, initial, by.node, by.wall_ms)
            if await create(metastore, bucket_type, replica_map, ground, nodes, options, placement):
                return "created"
    except (Unavailable, Conflict) as error:
        raise NotReady(f"the metastore cannot be reached, nothing was created: {error}") from error
    except Ambiguous as error:
        raise OutcomeUnknown(f"bucket type {bucket_type!r} may have been created: {error}; assign again") from error
    raise NotReady(f"bucket type {bucket_type!r} was not created: others created some at the same time")
