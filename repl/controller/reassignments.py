"""Changes of placement that operators request: planned on the cluster's present state, shown, and ordered.

A request is planned again each time it is made. An operator who orders it may name the plan that was shown (its
digest), and is refused if the plan would be another one by now. Any node may do it. `repl.controller.reassignment_plan`
plans, `repl.controller.reassignment_orders` stores the order, `repl.controller.reassigner` carries it out.

Removing a node: a node without replicas that is not live is forgotten, and a new one may take its name. No order may
give it replicas meanwhile; one that returns during the removal keeps its entries. A drain moves its replicas off.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import structlog

from isthmus.config.dynamic_options import MIN_ISR
from isthmus.config.text import quantity
from isthmus.repl.controller.bucket_types import read_all_records
from isthmus.repl.controller.dynamic_options import OptionSettings, read_options
from isthmus.repl.controller.reassignment_orders import (
    WHO_MAX,
    DrainedNode,
    Placement,
    change_placement,
    read_placement,
)
from isthmus.repl.controller.reassignment_plan import AssignmentDraft, PlanningNode, PlanRefused, ReplicaMove
from isthmus.repl.controller.reassignment_progress import ReassignmentKind, ReassignmentOrder, Records, Registrations
from isthmus.repl.metastore.counters import PARTITIONS_COUNTER, StoredCounter
from isthmus.repl.metastore.liveness import IDS_PATH
from isthmus.repl.metastore.port import Ambiguous, Metastore, Precondition, Unavailable, VersionConflict
from isthmus.repl.model.errors import BadInput, Corruption, NotReady, OutcomeUnknown
from isthmus.repl.model.record import PartitionRecord

log = structlog.get_logger(__name__)

CREATED: Final = "a bucket type was created since the plan was shown: look again"


class Changed(BadInput):
    """The plan is not the one that was shown."""

    reason = "changed"


class NoSuch(BadInput):
    """A named bucket type, node or order does not exist."""

    reason = "unknown"


@dataclass(frozen=True, slots=True)
class ReassignmentRequest:
    """An operator's request. `bucket_type` None: all. `nodes`: those to drain, or the one to replace and its
    replacement. `places`: by index, the replicas of each partition of the bucket type, by name."""

    kind: ReassignmentKind
    bucket_type: str | None = None
    factor: int = 0
    nodes: tuple[str, ...] = ()
    places: tuple[tuple[str, ...], ...] = ()
    ignore_racks: bool = False

    @property
    def title(self) -> str:
        """The request in words."""
        kind = f"bucket type {self.bucket_type}" if self.bucket_type else "all bucket types"
        match self.kind:
            case ReassignmentKind.FILE:
                return f"{kind}: placed by a file"
            case ReassignmentKind.SPREAD:
                return f"{kind}: spread evenly"
            case ReassignmentKind.REPLACE:
                return f"{self.nodes[1]} instead of {self.nodes[0]}"
            case ReassignmentKind.DRAIN:
                return f"drain {', '.join(self.nodes)}"
            case ReassignmentKind.FACTOR:
                return f"{kind}: replication factor {self.factor}"


class PlanningInput(NamedTuple):
    """The state that a plan is based on. The counter of partition ids is read first: a later creation has moved it."""

    placement: Placement
    records: Records
    registrations: Registrations
    counted: int | None
    """The version of that counter; None before anything was created."""
    options: OptionSettings | None = None
    """The dynamic options, for the future min-ISR; None if they cannot be read."""

    @staticmethod
    async def read(metastore: Metastore) -> PlanningInput:
        """As it is now."""
        counted = (await PARTITIONS_COUNTER.read(metastore)).version
        placement, records = await read_placement(metastore), await read_all_records(metastore)
        try:
            options = await read_options(metastore)
        except Corruption as error:
            log.warning("placement.options_unreadable", error=str(error))
            options = None
        return PlanningInput(placement, records, await metastore.registrations(), counted, options)

    def known(self) -> set[str]:
        """The nodes that are live or hold a replica."""
        return {*self.registrations, *(node for record in self.records.values() for node in record.replicas)}

    def sites(self) -> dict[str, PlanningNode]:
        """Every known node, for planning."""
        return sites_of(self.placement, self.records, self.registrations)


def sites_of(placement: Placement, records: Records, registrations: Registrations) -> dict[str, PlanningNode]:
    """Every node that is live or holds a replica, for planning; the rack of a node that is gone is unknown."""
    found = {node: PlanningNode("", False) for record in records.values() for node in record.replicas}
    for node, here in registrations.items():
        found[node] = PlanningNode(here.rack, here.active and here.spare_log_id > 0 and node not in placement.drained)
    return found


@dataclass(frozen=True, slots=True)
class ReassignmentPlan:
    """The plan of a request: moves, the replicas on each node before and after, and notes for the operator."""

    request: ReassignmentRequest
    moves: tuple[ReplicaMove, ...]
    before: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Equal for equal moves."""
        text = repr([self.request.title, self.moves]).replace("ReplicaMove(", "Move(")  # as older versions write it
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def plan_of(request: ReassignmentRequest, given: PlanningInput) -> ReassignmentPlan:
    """The plan. Raises NoSuch, PlanRefused."""
    _check_names(request, given)
    pending = {p: target for p, (_, target) in given.placement.pending().items()}
    sites = given.sites()
    kinds = sorted({record.bucket_type for record in given.records.values()})
    counts = {kind: Counter[str]() for kind in kinds}
    for partition, record in given.records.items():
        counts[record.bucket_type].update(pending.get(partition, record.staying))
    before = sum(counts.values(), Counter[str]())
    moves: list[ReplicaMove] = []
    for kind in kinds if request.bucket_type is None else [request.bucket_type]:
        elsewhere = sum((each for name, each in counts.items() if name != kind), Counter[str]())
        records = [record for record in given.records.values() if record.bucket_type == kind]
        board = AssignmentDraft(records, sites, elsewhere=elsewhere, pending=pending, ignore_racks=request.ignore_racks)
        _apply(request, board, records)
        found = board.moves()
        for move in found:
            counts[kind].subtract(move.removes)
            counts[kind].update(move.adds)
        moves += found
    moves.sort()
    _check_free(moves, given)
    after = sum(counts.values(), Counter[str]())
    names = sorted({*before, *after, *(node for node, site in sites.items() if site.open)})
    return ReassignmentPlan(
        request,
        tuple(moves),
        {node: before[node] for node in names},
        {node: after[node] for node in names},
        tuple(_notes(moves, given)),
    )


def _apply(request: ReassignmentRequest, board: AssignmentDraft, records: Sequence[PartitionRecord]) -> None:
    match request.kind:
        case ReassignmentKind.FILE:
            partitions = sorted(records, key=lambda record: record.index)
            if len(partitions) != len(request.places):
                raise PlanRefused(
                    f"bucket type {request.bucket_type} has {len(partitions)} partitions, "
                    f"the file {len(request.places)}"
                )
            for record, nodes in zip(partitions, request.places, strict=True):
                board.put(record.partition, nodes)
        case ReassignmentKind.SPREAD:
            board.spread()
        case ReassignmentKind.REPLACE:
            board.replace(*request.nodes)
        case ReassignmentKind.DRAIN:
            board.vacate(request.nodes)
        case ReassignmentKind.FACTOR:
            board.factor(request.factor)


def _check_names(request: ReassignmentRequest, given: PlanningInput) -> None:
    kinds = sorted({record.bucket_type for record in given.records.values()})
    if request.bucket_type is not None and request.bucket_type not in kinds:
        raise NoSuch(f"there is no bucket type {request.bucket_type!r:.80}; there are {', '.join(kinds) or 'none'}")
    known = given.known()
    named = {*request.nodes, *(node for nodes in request.places for node in nodes)}
    unknown = sorted(named - known)
    if unknown:
        raise NoSuch(f"no node {', '.join(unknown):.200} is known; there are {', '.join(sorted(known))}")
    sites = given.sites()
    there = {node for record in given.records.values() for node in record.replicas}
    newcomers = (
        set(request.nodes[1:])
        if request.kind is ReassignmentKind.REPLACE
        else named - there
        if request.kind is ReassignmentKind.FILE
        else set()
    )
    for node in sorted(newcomers):
        if not sites[node].open:
            why = "is drained" if node in given.placement.drained else "is gone or leaving"
            raise PlanRefused(f"{node} {why}: it cannot be given replicas")
    if request.kind is ReassignmentKind.REPLACE and request.nodes[0] == request.nodes[1]:
        raise PlanRefused(f"{request.nodes[0]} cannot replace itself")


def _check_free(moves: Sequence[ReplicaMove], given: PlanningInput) -> None:
    """Refuse moves of partitions that are changing already: one change at a time per partition."""
    pending = given.placement.pending()
    for move in moves:
        record = given.records[move.partition]
        if move.partition in pending:
            order = pending[move.partition][0]
            raise PlanRefused(
                f"partition {move.partition} is in order {order.number} ({order.title}): wait until that is done, or "
                f"`isthmus partition reassign --cancel {order.number}`"
            )
        if record.adding or record.removing:
            raise PlanRefused(f"partition {move.partition} is changing without an order: wait until that is done")
        closed = [node for node in move.adds if not given.sites()[node].open]
        if closed:
            raise PlanRefused(
                f"{', '.join(closed)} cannot be given partition {move.partition}: gone, leaving or drained"
            )


def _notes(moves: Sequence[ReplicaMove], given: PlanningInput) -> list[str]:
    """Notes for the operator."""
    found: list[str] = []
    alone = [move.partition for move in moves if len(move.after) == 1]
    if alone:
        found.append(f"{quantity(len(alone), 'partition')} would have one replica: a disk that is lost loses them")
    for partition in [m.partition for m in moves]:
        record = given.records[partition]
        if len(record.isr) < record.factor:
            found.append("some of the partitions have replicas out of sync now: these change more slowly")
            break
    return found + _min_isr_notes(moves, given)


def _min_isr_notes(moves: Sequence[ReplicaMove], given: PlanningInput) -> list[str]:
    """The future min-ISR wherever the number of replicas changes.

    It is computed from the options and the new number of replicas, as the controller does, since the record still has
    the min-ISR of the old number.
    """
    changes = {
        (given.records[move.partition].bucket_type, len(move.before), len(move.after))
        for move in moves
        if len(move.before) != len(move.after)
    }
    return [_min_isr_note(bucket_type, before, after, given.options) for bucket_type, before, after in sorted(changes)]


def _min_isr_note(bucket_type: str, before: int, after: int, options: OptionSettings | None) -> str:
    where = f"bucket type {bucket_type}, {before} to {quantity(after, 'replica')}"
    if options is None:
        return f"{where}: min-ISR is not known, since the options of the cluster cannot be read"
    setting = options.setting(MIN_ISR, bucket_type)
    number = min(options.min_isr(bucket_type, after), after)
    if setting is None:
        why = f"{MIN_ISR} is not set: one less than there are replicas, 1 at least"
    else:
        own = MIN_ISR in options.of(bucket_type)
        why = f"{MIN_ISR} is set to {setting.value} for {'this bucket type' if own else 'the cluster'}"
    note = f"{where}: min-ISR is {number} then ({why})"
    if after == 1:
        return note  # _notes warns of a single replica
    if number == 1:
        return f"{note}. An acknowledged write may be on one disk alone"
    if number == after:
        return f"{note}. That is all replicas: while one of them is away, writes are refused"
    return note


# -- ordering ---------------------------------------------------------------------------------------


async def planned(metastore: Metastore, request: ReassignmentRequest) -> ReassignmentPlan:
    """The plan of a request for the cluster's present state. Raises NoSuch, PlanRefused, NotReady."""
    return (await _planned(metastore, request))[1]


async def _planned(metastore: Metastore, request: ReassignmentRequest) -> tuple[PlanningInput, ReassignmentPlan]:
    try:
        given = await PlanningInput.read(metastore)
    except (Unavailable, Ambiguous, VersionConflict) as error:
        raise NotReady(f"the metastore cannot be reached: {error}") from error
    # many partitions take a second: in a thread
    return given, await asyncio.to_thread(plan_of, request, given)


async def submit(
    metastore: Metastore, request: ReassignmentRequest, digest: str | None, by: str, at_ms: int
) -> tuple[ReassignmentPlan, int | None]:
    """Order the plan of a request. Returns the plan, and the order's number, None if there is nothing to move; a node
    to drain is marked as drained even then. With `digest` only the plan that was shown. Raises NoSuch, PlanRefused,
    Changed, TooLarge, NotReady, OutcomeUnknown."""
    given, plan = await _planned(metastore, request)
    if digest is not None and digest != plan.digest:
        raise Changed("the cluster has changed since the plan was shown: look again")
    if not plan.moves and request.kind is not ReassignmentKind.DRAIN:
        return plan, None

    def change(placement: Placement) -> Placement:
        if _is_noted(plan, given.placement, placement, by, at_ms):
            return placement
        _check_unchanged(plan, given.placement, placement)
        if request.kind is ReassignmentKind.DRAIN:
            placement = placement.with_drained(request.nodes, by, at_ms)
        if not plan.moves:
            return placement
        taken = placement.pending().keys() & {move.partition for move in plan.moves}
        if taken:
            raise Changed(f"partition {min(taken)} is in another order since the plan was shown: look again")
        return placement.with_order(request.kind, request.title, by, at_ms, plan.moves)

    if request.kind is ReassignmentKind.DRAIN:
        after = await _order_drain(metastore, given, change)
    else:
        after = await change_placement(metastore, change)
    number = _number_of(after, plan, by, at_ms)
    log.info("placement.ordered", order=number, title=request.title, by=by, partitions=len(plan.moves))
    return plan, number


async def _order_drain(
    metastore: Metastore, given: PlanningInput, change: Callable[[Placement], Placement]
) -> Placement:
    """Mark nodes as drained, unless a bucket type was created since `given` was read: it may have replicas there,
    which no move of the plan takes off. (A creation ensures the reverse.)"""

    async def on_conflict() -> None:
        if (await PARTITIONS_COUNTER.read(metastore)).version != counted:
            raise Changed(CREATED)

    counted = given.counted
    if counted is None:
        counted = await _create_counter(metastore)
    return await change_placement(metastore, change, [Precondition(PARTITIONS_COUNTER.path, counted)], on_conflict)


async def _create_counter(metastore: Metastore) -> int:
    """Create the counter of partition ids if it is missing; returns its version."""
    try:
        with suppress(VersionConflict):
            return await metastore.put(PARTITIONS_COUNTER.path, PARTITIONS_COUNTER.encode(StoredCounter(0)), None)
        number, version = await PARTITIONS_COUNTER.read(metastore)
    except (Unavailable, Ambiguous) as error:
        raise NotReady(f"the metastore cannot be reached, nothing was changed: {error}") from error
    if number or version is None:
        raise Changed(CREATED)
    return version


def _check_unchanged(plan: ReassignmentPlan, planned_on: Placement, placement: Placement) -> None:
    """Raises Changed if an order since the plan was made affects the plan's nodes, or may have: one that has ended as
    well may have changed any replicas, and no trace of its moves is left."""
    still_open = {order.number for order in placement.orders}
    for number in range(planned_on.next_number, placement.next_number):
        if number not in still_open:
            raise Changed(f"order {number} was given and has ended since the plan was shown: look again")
    closed = {node for move in plan.moves for node in move.adds} & placement.drained.keys()
    if closed:
        raise Changed(f"{min(closed)} was drained since the plan was shown: look again")
    if plan.request.kind is ReassignmentKind.DRAIN:
        nodes, before, after = set(plan.request.nodes), planned_on.pending(), placement.pending()
        for partition in before.keys() | after.keys():
            order, target = after.get(partition, (None, ()))
            was_of, was = before.get(partition, (None, ()))
            coming = (nodes & set(target)) - set(was)
            if order is not None and coming:
                raise Changed(f"order {order.number} gives {min(coming)} replicas since the plan was shown: look again")
            took_off = was_of is not None and any(nodes & set(move.removes) for move in was_of.moves)
            if order is None and took_off and was_of is not None and not _was(placement, was_of, "done"):
                raise Changed(f"order {was_of.number} has ended since the plan was shown: look again")


def _is_noted(plan: ReassignmentPlan, planned_on: Placement, placement: Placement, by: str, at_ms: int) -> bool:
    """Whether an earlier attempt, whose answer was lost, has given the order or marked the nodes to drain."""
    if _number_of(placement, plan, by, at_ms) is not None:
        return True
    request, mark = plan.request, DrainedNode(by[:WHO_MAX], at_ms)
    marked = [node for node in request.nodes if node not in planned_on.drained]
    return (
        request.kind is ReassignmentKind.DRAIN
        and bool(marked)
        and all(placement.drained.get(node) == mark for node in marked)
    )


def _number_of(placement: Placement, plan: ReassignmentPlan, by: str, at_ms: int) -> int | None:
    """The number of the order of this very request; it may have ended."""
    for order in placement.orders:
        if order.at_ms == at_ms and order.moves == plan.moves and by.startswith(order.by):
            return order.number
    size = len(plan.moves)
    for ended in placement.ended:
        same = ended.kind is plan.request.kind and plan.request.title.startswith(ended.title)
        if same and ended.at_ms == at_ms and ended.partition_count == size and by.startswith(ended.by):
            return ended.number
    return None


async def cancel(metastore: Metastore, number: int | None, by: str) -> ReassignmentOrder:
    """Cancel an order: moves under way are turned back, finished ones stay. `number` None: the only open order. Raises
    NoSuch, NotReady, OutcomeUnknown."""
    meant: ReassignmentOrder | None = None

    def change(placement: Placement) -> Placement:
        nonlocal meant
        if meant is not None and _was(placement, meant, "cancelled"):
            return placement  # by an attempt whose answer was lost, and it is finished by now
        order = _order_of(placement, number if meant is None else meant.number)
        meant = order if order.cancelled_by else replace(order, cancelled_by=by[:WHO_MAX] or "?")
        return placement.with_changed(meant)

    await change_placement(metastore, change)
    assert meant is not None, "a change is asked for once at least"
    log.info("placement.cancelled", order=meant.number, title=meant.title, by=by)
    return meant


def _was(placement: Placement, order: ReassignmentOrder | int, outcome: str) -> bool:
    """Whether an order is finished with this outcome."""
    number = order if isinstance(order, int) else order.number
    return any(ended.number == number and ended.outcome == outcome for ended in placement.ended)


def _order_of(placement: Placement, number: int | None) -> ReassignmentOrder:
    numbers = ", ".join(str(order.number) for order in placement.orders)
    if number is None and len(placement.orders) == 1:
        return placement.orders[0]
    found = None if number is None else placement.order(number)
    if found is None:
        what = "name the order" if number is None else f"there is no order {number}"
        raise NoSuch(f"{what}: under way are {numbers}" if numbers else "nothing is ordered")
    return found


async def undrain(metastore: Metastore, nodes: Sequence[str], by: str) -> list[int]:
    """Allow replicas and leaderships on nodes again. The moves that take theirs off are cancelled; moves of other nodes
    that were drained with them continue. Returns the numbers of cancelled orders. Raises NoSuch, NotReady,
    OutcomeUnknown, TooLarge for one order too many."""
    cancelled: list[int] = []
    found = False

    def change(placement: Placement) -> Placement:
        nonlocal found
        for node in nodes:
            if node not in placement.drained and not found:
                raise NoSuch(f"{node} is not drained: {', '.join(sorted(placement.drained)) or 'no node'} is")
        found = True  # in a later attempt our own write may have undrained it
        cancelled[:] = [number for number in cancelled if _was(placement, number, "cancelled")]
        after = placement.without_drained(nodes)
        for order in placement.orders:
            if order.kind is ReassignmentKind.DRAIN:
                after, number = after.with_moves_back(order, nodes, by)
                cancelled.extend([] if number is None else [number])
        return after

    await change_placement(metastore, change)
    log.info("placement.undrained", nodes=list(nodes), by=by, cancelled=cancelled)
    return cancelled


LOG_IDENTITIES_PATH: Final = "/replicas"
"""Below it: the log ids that each node registered (`repl.metastore.liveness`)."""


async def ids_of_nodes(metastore: Metastore) -> dict[str, tuple[int, int]]:
    """Node -> (its id, the version of its entry), for all nodes that ever registered and were not removed. Raises what
    the metastore raises."""
    found: dict[str, tuple[int, int]] = {}
    for number in await metastore.children(IDS_PATH):
        held = await metastore.get(f"{IDS_PATH}/{number}")
        if held is not None and number.isdigit():
            found[held.value.decode(errors="replace")] = int(number), held.version
    return found


class StillNeeded(BadInput):
    """A node may not be removed yet."""

    reason = "still-needed"


async def remove_node(metastore: Metastore, node: str, by: str, *, dry_run: bool) -> None:
    """Forget a node without replicas that is not live. Raises NoSuch, StillNeeded, NotReady, OutcomeUnknown."""
    begun = False
    try:
        given = await PlanningInput.read(metastore)
        log_identity = await metastore.get(f"{LOG_IDENTITIES_PATH}/{node}")
        number = (await ids_of_nodes(metastore)).get(node)
        noted = log_identity is not None or number is not None or node in given.placement.drained
        if not noted and node not in given.known():
            raise NoSuch(f"no node {node!r:.80} is known; there are {', '.join(sorted(given.known()))}")
        held = sorted(p for p, record in given.records.items() if node in record.replicas)
        coming = sorted(p for p, (_, target) in given.placement.pending().items() if node in target)
        if held or coming:
            some = f"{len(held)} replicas" if held else f"{len(coming)} replicas that are ordered for it"
            raise StillNeeded(f"{node} holds {some}: `isthmus node drain {node}` moves them off, then remove it")
        if node in given.registrations:
            raise StillNeeded(f"{node} lives: stop it first")
        if dry_run:
            return
        if log_identity is not None:  # first: a node that is back has written it again, and then nothing is removed
            await metastore.delete(f"{LOG_IDENTITIES_PATH}/{node}", log_identity.version)
            begun = True
        if number is not None:
            await metastore.delete(f"{IDS_PATH}/{number[0]}", number[1])
            begun = True
        if begun and node in await metastore.registrations():  # it has just come back: restore its entries
            with suppress(VersionConflict):  # it has written them itself
                if log_identity is not None:
                    await metastore.put(f"{LOG_IDENTITIES_PATH}/{node}", log_identity.value, None)
            with suppress(VersionConflict):
                if number is not None:
                    await metastore.put(f"{IDS_PATH}/{number[0]}", node.encode(), None)
            raise StillNeeded(f"{node} has just come back: stop it first")
        await change_placement(metastore, lambda placement: placement.without_drained([node]))  # last: it may be back
    except (Unavailable, VersionConflict, NotReady) as error:
        if begun:
            raise OutcomeUnknown(f"{node} is removed in part: {error}; do it again") from error
        raise NotReady(f"{node} was not removed: {error or 'it has just registered'}") from error
    except Ambiguous as error:
        raise OutcomeUnknown(f"{node} may have been removed: {error}; do it again") from error
    log.info("placement.node_removed", peer=node, by=by)
