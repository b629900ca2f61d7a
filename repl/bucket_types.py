"""Bucket types, as an operator makes them: so many partitions, so many replicas, placed by a rule or by a file.

A bucket type is the unit of placement. A computed placement begins where the last one ended, so that types made one
after the other stay balanced together; partition ids are never used again. What is written, all or nothing, is
`repl.creation`'s; the rules of placement are `repl.isr.placement`'s. Any node may do it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from repl.creation import CHAIN_PATH, Ground, Options, counter_bytes, create, read_counter, usable
from repl.isr.placement import ReplicaMap, placed
from repl.isr.replica_map import check_nodes
from repl.metastore.port import Ambiguous, Conflict, Metastore, Planned, Unavailable
from repl.model.errors import BadInput, NotReady, OutcomeUnknown
from repl.model.record import Registration
from repl.option_settings import Setting
from repl.placement_orders import read_placement

ATTEMPTS_MAX: Final = 5
"""Rounds before it is given up: each lost one means that somebody else created a bucket type or set an option."""

PLACEMENTS: Final = ("auto", "computed", "rack-aware")
"""auto: by racks if the nodes have them; computed: without regard to racks; rack-aware: refused without racks."""


class BucketTypeExists(BadInput):
    """There is a bucket type of this name, of another shape."""

    reason = "bucket-type-exists"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be made: either `replica_map`, or so many partitions and replicas, placed by one of PLACEMENTS.
    `min_isr`: its own from the beginning; None leaves the cluster's."""

    name: str
    partition_count: int
    replication_factor: int
    placement: str = "auto"
    replica_map: ReplicaMap | None = None
    min_isr: Setting | None = None

    def place(self, nodes: Mapping[int, Registration], start_index: int) -> ReplicaMap:
        """Where its replicas go. Raises BadInput, BadReplicaMap."""
        if self.replica_map is not None:
            check_nodes(self.replica_map, nodes)
            return self.replica_map
        racks = {number: node.rack for number, node in nodes.items()}
        if self.placement == "rack-aware" and not any(racks.values()):
            raise BadInput("no node has a rack (node.rack): place it without, or give every node its rack")
        ignore = self.placement == "computed"
        return placed(
            self.partition_count, self.replication_factor, racks, ignore_racks=ignore, start_index=start_index
        )


async def create_bucket_type(metastore: Metastore, wanted: Wanted, *, dry_run: bool) -> tuple[str, ReplicaMap]:
    """Make it: "created" and where; "exists" when there is one of just this shape, or of just this map if that is
    given; with `dry_run` "valid", and nothing is written.

    Raises BadInput (BadReplicaMap, BucketTypeExists, TooLarge), NotReady when nothing was made, OutcomeUnknown."""
    try:
        for _ in range(ATTEMPTS_MAX):
            ground = await Ground.read(metastore)
            start_index, version = await read_counter(metastore, CHAIN_PATH)
            options = await Options.read(metastore, 0, "", 0)
            registrations = await metastore.registrations()
            placement = await read_placement(metastore)
            nodes = usable(registrations, placement.drained)
            found = ground.sets_of(wanted.name)
            if found:
                return "exists", _as_it_is(wanted, found, {node.node: node.id for node in registrations.values()})
            replica_map = wanted.place(nodes, start_index)
            if dry_run:
                return "valid", replica_map
            if wanted.min_isr is not None:
                options = options.with_min_isr(wanted.name, wanted.min_isr)
            chain = [Planned(CHAIN_PATH, counter_bytes(start_index + len(replica_map)), version)]
            also = [] if wanted.replica_map is not None else chain
            if await create(metastore, wanted.name, replica_map, ground, nodes, options, placement, also):
                return "created", replica_map
    except (Unavailable, Conflict) as error:
        raise NotReady(f"the metastore cannot be reached, nothing was created: {error}") from error
    except Ambiguous as error:
        raise OutcomeUnknown(f"bucket type {wanted.name!r} may have been created: {error}; do it again") from error
    raise NotReady(f"bucket type {wanted.name!r} was not created: others created some at the same time")


def _as_it_is(wanted: Wanted, found: tuple[tuple[str, ...], ...], ids: Mapping[str, int]) -> ReplicaMap:
    """The map of a bucket type that exists, if it is what is wanted. Raises BucketTypeExists."""
    there = tuple(tuple(ids.get(node, -1) for node in replicas) for replicas in found)
    shape = f"{len(found)} partitions of {len(found[0])} replicas"
    if wanted.replica_map is not None:
        if wanted.replica_map != there:
            raise BucketTypeExists(f"bucket type {wanted.name!r} exists with {shape}, placed otherwise")
    elif (wanted.partition_count, wanted.replication_factor) != (len(found), len(found[0])):
        act = f"isthmus bucket-type set-replication-factor {wanted.name} {wanted.replication_factor}"
        hint = f"; `{act}` moves replicas" if wanted.partition_count == len(found) else ""
        raise BucketTypeExists(f"bucket type {wanted.name!r} exists with {shape}: neither can be changed so{hint}")
    return there
