"""Creation of bucket types: placed by a rule or by an operator's file, written in one write of the metastore.

A bucket type is the unit of placement. Its records, the index at which the next computed placement starts, the counter
of partition ids, and the options of the new type are written together or not at all. So of two that create at once only
one succeeds, and a change of controller loses nothing. A computed placement begins where the last one ended, so that
types made one after the other stay balanced together; partition ids are never used again.

Any node may create a bucket type, or assign one: create it with an operator's own placement. The controller creates the
`default` bucket type (`DefaultTypeCreation`). The rules of placement are in `repl.controller.placement`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import structlog

from isthmus.config.dynamic_options import BY_FILE, MIN_ISR
from isthmus.repl.controller.dynamic_options import OPTIONS_DOCUMENT, OptionSettings, read_options
from isthmus.repl.controller.placement import ReplicaMap, check_nodes, placed
from isthmus.repl.controller.reassignment_orders import ORDERS_DOCUMENT, ORDERS_PATH, Placement, read_placement
from isthmus.repl.controller.stored_setting import Setting
from isthmus.repl.metastore.counters import CHAIN_COUNTER, PARTITIONS_COUNTER, StoredCounter
from isthmus.repl.metastore.port import (
    Ambiguous,
    ConditionalWrite,
    Metastore,
    Precondition,
    Unavailable,
    VersionConflict,
)
from isthmus.repl.model.errors import BadInput, NotReady, OutcomeUnknown, Unreadable
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE
from isthmus.repl.model.record import Member, PartitionRecord, Registration

log = structlog.get_logger(__name__)


SETTLE_MS: Final = 2_000
"""How long no other node must have registered before the first bucket type is placed, if several share a metastore:
nodes that are started together register within a second or two, and a later one would hold nothing. A guess."""

SETTLE_TURNS_MAX: Final = 10
"""Multiple of SETTLE_MS after which the type is placed although nodes still register (or one comes and goes)."""

DEFAULT_TYPE: Final = DEFAULT_BUCKET_TYPE.decode()


@dataclass(frozen=True, slots=True)
class DefaultType:
    """How the `default` bucket type is created: the numbers of [replication], resolved.

    `min_isr` becomes the cluster's `replication.min.isr` unless an operator has set that; 0 leaves it unset. With
    `from_file` an operator places the type. `settle_ms` is SETTLE_MS if nodes share a metastore, 0 for a node that is
    alone by design.
    """

    partition_count: int
    factor: int
    min_isr: int = 0
    from_file: bool = False
    ignore_racks: bool = False
    settle_ms: int = SETTLE_MS


def usable(registrations: Mapping[str, Registration], drained: Collection[str] = ()) -> dict[int, Registration]:
    """By id, the nodes that may get replicas: registered, not leaving, not drained, with a log id for a new copy."""
    return {r.id: r for r in registrations.values() if r.active and r.spare_log_id > 0 and r.node not in drained}


class DefaultTypeCreation:
    """Decides when the `default` bucket type may be placed, and why it waits."""

    def __init__(self, default: DefaultType, node: str) -> None:
        """`node` is this one, named as the author of the first min-ISR."""
        self._default = default
        self._node = node
        self._seen: frozenset[int] = frozenset()
        self._changed_ms = 0
        self._enough_ms: int | None = None
        self._idle: list[str] = []
        self.reason = ""
        """Why there is no `default` bucket type yet; "" if there is one, or nothing is in its way."""

    def look(self, registrations: Mapping[str, Registration], now_ms: int, drained: Collection[str] = ()) -> int | None:
        """Milliseconds to wait, 0 if it may be placed now, None if only another registration or an operator can help;
        `reason` is what it waits for. Nodes that are `drained` get nothing."""
        default, nodes = self._default, usable(registrations, drained)
        self._idle = sorted(node for node in drained if node in registrations)
        if self._seen != nodes.keys():
            self._seen, self._changed_ms = frozenset(nodes), now_ms
        self.reason = self._obstacle(nodes)
        if self.reason:
            self._enough_ms = None
            return None
        if self._enough_ms is None:
            self._enough_ms = now_ms
        due_ms = self._changed_ms + default.settle_ms
        wait_ms = min(due_ms, self._enough_ms + SETTLE_TURNS_MAX * default.settle_ms) - now_ms
        if wait_ms > 0:
            self.reason = f"waits {default.settle_ms} ms for more nodes: {len(nodes)} are here"
        return max(0, wait_ms)

    def _obstacle(self, nodes: Mapping[int, Registration]) -> str:
        default = self._default
        if default.from_file:
            return (
                'waits for an operator: replication.placement is "file"; '
                "`isthmus partition assign --file FILE` places the bucket type"
            )
        missing = default.factor - len(nodes)
        if missing > 0:
            more = "1 more node" if missing == 1 else f"{missing} more nodes"
            idle = f" ({', '.join(self._idle)} drained: `isthmus node drain NODE --undo`)" if self._idle else ""
            return f"waits for {more}: replication.factor is {default.factor}{idle}"
        try:
            self.placement(nodes, 0)
        except BadInput as error:
            return f"placement is refused: {error} (replication.ignore_rack_assignment)"
        return ""

    def placement(self, nodes: Mapping[int, Registration], start_index: int) -> ReplicaMap:
        """The computed placement on `nodes`. Raises BadInput."""
        default = self._default
        return placed(
            default.partition_count,
            default.factor,
            {number: node.rack for number, node in nodes.items()},
            ignore_racks=default.ignore_racks,
            start_index=start_index,
        )

    async def found(self, metastore: Metastore, registrations: Mapping[str, Registration], wall_ms: int) -> bool:
        """Create the `default` bucket type on the usable nodes; False if another writer was faster. Raises what the
        metastore raises, BadInput if the placement does not fit into one write, Corruption."""
        placement = await read_placement(metastore)
        nodes = usable(registrations, placement.drained)
        ground = await CreationInput.read(metastore)
        if ground.sets_of(DEFAULT_TYPE):
            return False
        chain = await CHAIN_COUNTER.read(metastore)
        replica_map = self.placement(nodes, chain.next)
        also = CHAIN_COUNTER.write_on(chain.version, StoredCounter(chain.next + len(replica_map)))
        options = await CreationOptions.read(metastore, self._default.min_isr, self._node, wall_ms)
        return await create(metastore, DEFAULT_TYPE, replica_map, ground, nodes, options, placement, [also])


class CreationInput(NamedTuple):
    """The state that a creation is based on. The counter is read before the records: a creation after that moves the
    counter and this one is refused, so a bucket type that is not among the records does not exist."""

    records: Mapping[int, PartitionRecord]
    next_partition: int
    version: int | None

    @staticmethod
    async def read(metastore: Metastore) -> CreationInput:
        """As it is now."""
        counter = await PARTITIONS_COUNTER.read(metastore)
        records = await read_all_records(metastore)
        return CreationInput(records, max([counter.next, *(partition + 1 for partition in records)]), counter.version)

    def sets_of(self, bucket_type: str) -> tuple[tuple[str, ...], ...]:
        """The replicas of each partition of a bucket type, in order; empty if there is no such bucket type."""
        found = sorted((r.index, r.replicas) for r in self.records.values() if r.bucket_type == bucket_type)
        return tuple(replicas for _, replicas in found)


async def read_all_records(metastore: Metastore) -> Mapping[int, PartitionRecord]:
    """All records, for plans that need every partition. Raises Unreadable if one is missing since it could not be read.
    An unreadable one that was read before is returned as it was; a write of it will be refused."""
    records = await metastore.records()
    for path, why in metastore.unreadable.items():
        if path.startswith("/p/") and path not in {f"/p/{partition}" for partition in records}:
            raise Unreadable(f"nothing is planned while a partition is not known: {why}")
    return records


class CreationOptions(NamedTuple):
    """The options when a bucket type is created, and the writes of options that go with it."""

    settings: OptionSettings
    planned: tuple[ConditionalWrite, ...] = ()

    @staticmethod
    async def read(metastore: Metastore, min_isr: int, node: str, wall_ms: int) -> CreationOptions:
        """The options now. If the cluster has no min-ISR yet, `min_isr`, from the file of `node`, becomes it, unless it
        is 0. A file sets it once; from then on operators do."""
        settings = await read_options(metastore)
        if not min_isr or settings.setting(MIN_ISR) is not None:
            return CreationOptions(settings)
        settings = settings.with_setting(MIN_ISR, None, Setting(min_isr, f"{BY_FILE}{node}", wall_ms))
        return CreationOptions(settings, (OPTIONS_DOCUMENT.write_on(settings.version, settings),))

    def with_min_isr(self, bucket_type: str, setting: Setting) -> CreationOptions:
        """The same, with the bucket type's own min-ISR."""
        settings = self.settings.with_setting(MIN_ISR, bucket_type, setting)
        return CreationOptions(settings, (OPTIONS_DOCUMENT.write_on(settings.version, settings),))


async def create(
    metastore: Metastore,
    bucket_type: str,
    replica_map: ReplicaMap,
    ground: CreationInput,
    nodes: Mapping[int, Registration],
    options: CreationOptions,
    placement: Placement,
    also: Sequence[ConditionalWrite] = (),
) -> bool:
    """Write the records of a new bucket type: each replica in sync with the log id of its node's new copy, and the
    first of each set preferred as leader. False if another writer was faster; so a node that is drained by `placement`
    or later gets nothing (`repl.controller.reassignments` ensures the reverse). `nodes` are the usable ones by id.
    Raises BadReplicaMap if the map names another one."""
    check_nodes(replica_map, nodes)
    first = ground.next_partition
    made = [
        _new_record(
            first + index,
            bucket_type,
            index,
            len(replica_map),
            [nodes[number] for number in replicas],
            options.settings.min_isr(bucket_type, len(replicas)),
        )
        for index, replicas in enumerate(replica_map)
    ]
    planned = [
        PARTITIONS_COUNTER.write_on(ground.version, StoredCounter(first + len(made))),
        *options.planned,
        *also,
    ]
    unmoved = []
    if placement.version is None:
        planned.append(ORDERS_DOCUMENT.write_on(None, placement))
    else:
        unmoved.append(Precondition(ORDERS_PATH, placement.version))
    created = await metastore.create_records(made, planned, unmoved)
    if created:
        log.info("controller.created", bucket_type=bucket_type, partitions=len(made), first=first)
    return created


def _new_record(
    partition: int, bucket_type: str, index: int, partition_count: int, nodes: list[Registration], min_isr: int
) -> PartitionRecord:
    return PartitionRecord(
        partition=partition,
        bucket_type=bucket_type,
        index=index,
        partition_count=partition_count,
        replicas=tuple(node.node for node in nodes),
        isr=frozenset(Member(node.node, node.log_id_of(partition)) for node in nodes),
        min_isr=min_isr,
        preferred=nodes[0].node,
        reason="new",
    )


ATTEMPTS_MAX: Final = 5
"""Attempts of one creation; an attempt is lost to another creation or to a change of options."""

PLACEMENTS: Final = ("auto", "computed", "rack-aware")
"""auto: by racks if the nodes have them; computed: without regard to racks; rack-aware: refused without racks."""


class BucketTypeExists(BadInput):
    """There is a bucket type of this name with another shape."""

    reason = "bucket-type-exists"


@dataclass(frozen=True, slots=True)
class BucketTypeSpec:
    """The bucket type to create: with `replica_map`, or with numbers of partitions and replicas that are placed by one
    of PLACEMENTS. `min_isr`: its own from the beginning; None: the cluster's."""

    name: str
    partition_count: int
    replication_factor: int
    placement: str = "auto"
    replica_map: ReplicaMap | None = None
    min_isr: Setting | None = None

    def place(self, nodes: Mapping[int, Registration], start_index: int) -> ReplicaMap:
        """The replicas of each partition. Raises BadInput, BadReplicaMap."""
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


async def create_bucket_type(metastore: Metastore, wanted: BucketTypeSpec, *, dry_run: bool) -> tuple[str, ReplicaMap]:
    """Create it. Returns "created" and the placement, or "exists" if there is one of just this shape (or just this map
    if that is given); with `dry_run` "valid", and nothing is written.

    Raises BadInput (BadReplicaMap, BucketTypeExists, TooLarge), NotReady if nothing was written, OutcomeUnknown.
    """
    try:
        for _ in range(ATTEMPTS_MAX):
            ground = await CreationInput.read(metastore)
            chain = await CHAIN_COUNTER.read(metastore)
            options = await CreationOptions.read(metastore, 0, "", 0)
            registrations = await metastore.registrations()
            placement = await read_placement(metastore)
            nodes = usable(registrations, placement.drained)
            found = ground.sets_of(wanted.name)
            if found:
                return "exists", _as_it_is(wanted, found, {node.node: node.id for node in registrations.values()})
            replica_map = wanted.place(nodes, chain.next)
            if dry_run:
                return "valid", replica_map
            if wanted.min_isr is not None:
                options = options.with_min_isr(wanted.name, wanted.min_isr)
            moved = CHAIN_COUNTER.write_on(chain.version, StoredCounter(chain.next + len(replica_map)))
            also = [] if wanted.replica_map is not None else [moved]
            if await create(metastore, wanted.name, replica_map, ground, nodes, options, placement, also):
                return "created", replica_map
    except (Unavailable, VersionConflict) as error:
        raise NotReady(f"the metastore cannot be reached, nothing was created: {error}") from error
    except Ambiguous as error:
        raise OutcomeUnknown(f"bucket type {wanted.name!r} may have been created: {error}; do it again") from error
    raise NotReady(f"bucket type {wanted.name!r} was not created: others created some at the same time")


def _as_it_is(wanted: BucketTypeSpec, found: tuple[tuple[str, ...], ...], ids: Mapping[str, int]) -> ReplicaMap:
    """The map of an existing bucket type, if it is the wanted one. Raises BucketTypeExists."""
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


class PlacementDiffers(BadInput):
    """The bucket type exists with another placement; moving it is another command."""

    reason = "placement-differs"


class Assigner(NamedTuple):
    """The node that assigns, the default type's min-ISR in its file, and the wall-clock time."""

    metastore: Metastore
    node: str
    min_isr: int
    wall_ms: int


async def assign(by: Assigner, bucket_type: str, replica_map: ReplicaMap, *, validate_only: bool) -> str:
    """Create a bucket type with an operator's placement. Returns "created", "exists" if it has just this placement, or
    with `validate_only` "valid", and nothing is written.

    Raises BadReplicaMap if the map names nodes that are not live, PlacementDiffers if the bucket type is placed
    otherwise, NotReady if nothing was written, OutcomeUnknown, Unreadable.
    """
    metastore = by.metastore
    try:
        for _ in range(ATTEMPTS_MAX):
            ground = await CreationInput.read(metastore)
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
            options = await CreationOptions.read(metastore, initial, by.node, by.wall_ms)
            if await create(metastore, bucket_type, replica_map, ground, nodes, options, placement):
                return "created"
    except (Unavailable, VersionConflict) as error:
        raise NotReady(f"the metastore cannot be reached, nothing was created: {error}") from error
    except Ambiguous as error:
        raise OutcomeUnknown(f"bucket type {bucket_type!r} may have been created: {error}; assign again") from error
    raise NotReady(f"bucket type {bucket_type!r} was not created: others created some at the same time")
