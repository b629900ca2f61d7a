"""What operators wish of placements: planned on what the cluster is now, shown, and ordered.

A wish is planned anew each time it is asked for; whoever orders it may name the plan that was shown (its digest), and
is refused when it would be another one by now. Any node may do it. Planning is `repl.controller.reassignment_plan`'s,
what is kept `repl.controller.reassignment_orders`', who carries it out `repl.controller.reassigner`.

Removing: a node that holds nothing and does not live is forgotten, and a new one may take its name.

Nothing may be ordered for it, or it would be forgotten while it gets replicas; one that comes back that very moment is
left as it was. A drain moves its replicas off.
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
from isthmus.repl.controller.bucket_types import PARTITIONS_COUNTER, StoredCounter, read_all_records
from isthmus.repl.controller.dynamic_options import OptionSettings, read_options
from isthmus.repl.controller.reassignment_orders import WHO_MAX, Placement, change_placement, read_placement
from isthmus.repl.controller.reassignment_plan import AssignmentDraft, PlanningNode, PlanRefused, ReplicaMove
from isthmus.repl.controller.reassignment_progress import ReassignmentKind, ReassignmentOrder, Records, Registrations
from isthmus.repl.metastore.liveness import IDS_PATH
from isthmus.repl.metastore.port import Ambiguous, Metastore, Precondition, Unavailable, VersionConflict
from isthmus.repl.model.errors import BadInput, Corruption, NotReady, OutcomeUnknown
from isthmus.repl.model.record import PartitionRecord

log = structlog.get_logger(__name__)

CREATED: Final = "a bucket type was created since the plan was shown: look again"


class Changed(BadInput):
    """What would be done now is not what was shown."""

    reason = "changed"


class NoSuch(BadInput):
    """A bucket type, node or order that is named is not there."""

    reason = "unknown"


@dataclass(frozen=True, slots=True)
class ReassignmentRequest:
    """What an operator wants. `bucket_type` None: all. `nodes`: to drain, or the one to replace and the one instead.
    `places`: by index, the replicas of each partition of the bucket type, by name."""

    kind: ReassignmentKind
    bucket_type: str | None = None
    factor: int = 0
    nodes: tuple[str, ...] = ()
    places: tuple[tuple[str, ...], ...] = ()
    ignore_racks: bool = False

    @property
    def title(self) -> str:
        """What it is, for people."""
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
    """What a plan is made on. The counter of partition ids is read first: what was created since has moved it."""

    placement: Placement
    records: Records
    registrations: Registrations
    counted: int | None
    """The version of that counter; None before anything was created."""
    options: OptionSettings | None = None
    """The dynamic options, which say what min-ISR will be; None where they cannot be read."""

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
        """The nodes that live or hold a replica."""
        return {*self.registrations, *(node for record in self.records.values() for node in record.replicas)}

    def sites(self) -> dict[str, PlanningNode]:
        """Every known node as planning sees it."""
        return sites_of(self.placement, self.records, self.registrations)


def sites_of(placement: Placement, records: Records, registrations: Registrations) -> dict[str, PlanningNode]:
    """Every node that lives or holds a replica, as planning sees it; the rack of one that is gone is not known."""
    found = {node: PlanningNode("", False) for record in records.values() for node in record.replicas}
    for node, here in registrations.items():
        found[node] = PlanningNode(here.rack, here.active and here.spare_log_id > 0 and node not in placement.drained)
    return found


@dataclass(frozen=True, slots=True)
class ReassignmentPlan:
    """What a wish comes to: moves, the replicas on each node before and after, and what an operator should know."""

    wish: ReassignmentRequest
    moves: tuple[ReplicaMove, ...]
    before: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Equal for equal moves."""
        text = repr([self.wish.title, self.moves]).replace("ReplicaMove(", "Move(")  # as older versions write it
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def plan_of(wish: ReassignmentRequest, ground: PlanningInput) -> ReassignmentPlan:
    """What has to be moved. Raises NoSuch, PlanRefused."""
    _check_names(wish, ground)
    pending = {p: target for p, (_, target) in ground.placement.pending().items()}
    sites = ground.sites()
    kinds = sorted({record.bucket_type for record in ground.records.values()})
    counts = {kind: Counter[str]() for kind in kinds}
    for partition, record in ground.records.items():
        counts[record.bucket_type].update(pending.get(partition, record.staying))
    before = sum(counts.values(), Counter[str]())
    moves: list[ReplicaMove] = []
    for kind in kinds if wish.bucket_type is None else [wish.bucket_type]:
        elsewhere = sum((each for name, each in counts.items() if name != kind), Counter[str]())
        records = [record for record in ground.records.values() if record.bucket_type == kind]
        board = AssignmentDraft(records, sites, elsewhere=elsewhere, pending=pending, ignore_racks=wish.ignore_racks)
        _apply(wish, board, records)
        found = board.moves()
        for move in found:
            counts[kind].subtract(move.removes)
            counts[kind].update(move.adds)
        moves += found
    moves.sort()
    _check_free(moves, ground)
    after = sum(counts.values(), Counter[str]())
    names = sorted({*before, *after, *(node for node, site in sites.items() if site.open)})
    return ReassignmentPlan(
        wish,
        tuple(moves),
        {node: before[node] for node in names},
        {node: after[node] for node in names},
        tuple(_notes(moves, ground)),
    )


def _apply(wish: ReassignmentRequest, board: AssignmentDraft, records: Sequence[PartitionRecord]) -> None:
    match wish.kind:
        case ReassignmentKind.FILE:
            partitions = sorted(records, key=lambda record: record.index)
            if len(partitions) != len(wish.places):
                raise PlanRefused(
                    f"bucket type {wish.bucket_type} has {len(partitions)} partitions, the file {len(wish.places)}"
                )
            for record, nodes in zip(partitions, wish.places, strict=True):
                board.put(record.partition, nodes)
        case ReassignmentKind.SPREAD:
            board.spread()
        case ReassignmentKind.REPLACE:
            board.replace(*wish.nodes)
        case ReassignmentKind.DRAIN:
            board.vacate(wish.nodes)
        case ReassignmentKind.FACTOR:
            board.factor(wish.factor)


def _check_names(wish: ReassignmentRequest, ground: PlanningInput) -> None:
    kinds = sorted({record.bucket_type for record in ground.records.values()})
    if wish.bucket_type is not None and wish.bucket_type not in kinds:
        raise NoSuch(f"there is no bucket type {wish.bucket_type!r:.80}; there are {', '.join(kinds) or 'none'}")
    known = ground.known()
    named = {*wish.nodes, *(node for nodes in wish.places for node in nodes)}
    unknown = sorted(named - known)
    if unknown:
        raise NoSuch(f"no node {', '.join(unknown):.200} is known; there are {', '.join(sorted(known))}")
    sites = ground.sites()
    there = {node for record in ground.records.values() for node in record.replicas}
    newcomers = (
        set(wish.nodes[1:])
        if wish.kind is ReassignmentKind.REPLACE
        else named - there
        if wish.kind is ReassignmentKind.FILE
        else set()
    )
    for node in sorted(newcomers):
        if not sites[node].open:
            why = "is drained" if node in ground.placement.drained else "is gone or leaving"
            raise PlanRefused(f"{node} {why}: it cannot be given replicas")
    if wish.kind is ReassignmentKind.REPLACE and wish.nodes[0] == wish.nodes[1]:
        raise PlanRefused(f"{wish.nodes[0]} cannot replace itself")


def _check_free(moves: Sequence[ReplicaMove], ground: PlanningInput) -> None:
    """One change at a time a partition."""
    pending = ground.placement.pending()
    for move in moves:
        record = ground.records[move.partition]
        if move.partition in pending:
            order = pending[move.partition][0]
            raise PlanRefused(
                f"partition {move.partition} is in order {order.number} ({order.title}): wait until that is done, or "
                f"`isthmus partition reassign --cancel {order.number}`"
            )
        if record.adding or record.removing:
            raise PlanRefused(f"partition {move.partition} is changing without an order: wait until that is done")
        closed = [node for node in move.adds if not ground.sites()[node].open]
        if closed:
            raise PlanRefused(
                f"{', '.join(closed)} cannot be given partition {move.partition}: gone, leaving or drained"
            )


def _notes(moves: Sequence[ReplicaMove], ground: PlanningInput) -> list[str]:
    """What an operator should know of a plan."""
    found: list[str] = []
    alone = [move.partition for move in moves if len(move.after) == 1]
    if alone:
        found.append(f"{quantity(len(alone), 'partition')} would have one replica: a disk that is lost loses them")
    for partition in [m.partition for m in moves]:
        record = ground.records[partition]
        if len(record.isr) < record.factor:
            found.append("some of the partitions have replicas out of sync now: these change more slowly")
            break
    return found + _min_isr_notes(moves, ground)


def _min_isr_notes(moves: Sequence[ReplicaMove], ground: PlanningInput) -> list[str]:
    """What min-ISR will be wherever the number of replicas changes, by whatever order.

    It is worked out from the options and the new number of replicas, as the node that controls does it, since the
    record still has the min-ISR of the old number."""
    changes = {
        (ground.records[move.partition].bucket_type, len(move.before), len(move.after))
        for move in moves
        if len(move.before) != len(move.after)
    }
    return [_min_isr_note(bucket_type, before, after, ground.options) for bucket_type, before, after in sorted(changes)]


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
        return note  # that one replica is one disk is said of each such plan
    if number == 1:
        return f"{note}. An acknowledged write may be on one disk alone"
    if number == after:
        return f"{note}. That is all replicas: while one of them is away, writes are refused"
    return note


# -- ordering ---------------------------------------------------------------------------------------


async def planned(metastore: Metastore, wish: ReassignmentRequest) -> ReassignmentPlan:
    """The plan of a wish as the cluster is now. Raises NoSuch, PlanRefused, NotReady."""
    return (await _planned(metastore, wish))[1]


async def _planned(metastore: Metastore, wish: ReassignmentRequest) -> tuple[PlanningInput, ReassignmentPlan]:
    try:
        ground = await PlanningInput.read(metastore)
    except (Unavailable, Ambiguous, VersionConflict) as error:
        raise NotReady(f"the metastore cannot be reached: {error}") from error
    # a second where partitions are many: others go on meanwhile
    return ground, await asyncio.to_thread(plan_of, wish, ground)


async def submit(
    metastore: Metastore, wish: ReassignmentRequest, digest: str | None, by: str, at_ms: int
) -> tuple[ReassignmentPlan, int | None]:
    """Order what a wish comes to; the plan, and the order's number, None where there is nothing to move. A node that is
    drained is so from now on even then. With `digest` only the plan that was shown. Raises NoSuch, PlanRefused,
    Changed, TooLarge, NotReady, OutcomeUnknown."""
    ground, plan = await _planned(metastore, wish)
    if digest is not None and digest != plan.digest:
        raise Changed("the cluster has changed since the plan was shown: look again")
    if not plan.moves and wish.kind is not ReassignmentKind.DRAIN:
        return plan, None

    def change(placement: Placement) -> Placement:
        if _number_of(placement, plan, by, at_ms) is None:
            _check_nobody_was_faster(plan, ground.placement, placement)
        if wish.kind is ReassignmentKind.DRAIN:
            placement = placement.with_drained(wish.nodes, by, at_ms)
        if not plan.moves or _number_of(placement, plan, by, at_ms) is not None:
            return placement
        taken = placement.pending().keys() & {move.partition for move in plan.moves}
        if taken:
            raise Changed(f"partition {min(taken)} is in another order since the plan was shown: look again")
        return placement.with_order(wish.kind, wish.title, by, at_ms, plan.moves)

    if wish.kind is ReassignmentKind.DRAIN:
        after = await _drained(metastore, ground, change)
    else:
        after = await change_placement(metastore, change)
    number = _number_of(after, plan, by, at_ms)
    log.info("placement.ordered", order=number, title=wish.title, by=by, partitions=len(plan.moves))
    return plan, number


async def _drained(metastore: Metastore, ground: PlanningInput, change: Callable[[Placement], Placement]) -> Placement:
    """Write down who is drained, unless a bucket type was created since `ground` was read: it may be on that node, and
    nothing of the plan would move it off. (Who creates one makes sure of the reverse.)"""

    async def on_conflict() -> None:
        if (await PARTITIONS_COUNTER.read(metastore)).version != counted:
            raise Changed(CREATED)

    counted = ground.counted
    if counted is None:
        counted = await _begin_to_count(metastore)
    return await change_placement(metastore, change, [Precondition(PARTITIONS_COUNTER.path, counted)], on_conflict)


async def _begin_to_count(metastore: Metastore) -> int:
    """Make the counter of partition ids where there is none yet; its version."""
    try:
        with suppress(VersionConflict):
            return await metastore.put(PARTITIONS_COUNTER.path, PARTITIONS_COUNTER.encode(StoredCounter(0)), None)
        number, version = await PARTITIONS_COUNTER.read(metastore)
    except (Unavailable, Ambiguous) as error:
        raise NotReady(f"the metastore cannot be reached, nothing was changed: {error}") from error
    if number or version is None:
        raise Changed(CREATED)
    return version


def _check_nobody_was_faster(plan: ReassignmentPlan, planned_on: Placement, placement: Placement) -> None:
    """What was ordered since a plan was made leaves its nodes as it took them to be. Raises Changed."""
    closed = {node for move in plan.moves for node in move.adds} & placement.drained.keys()
    if closed:
        raise Changed(f"{min(closed)} was drained since the plan was shown: look again")
    if plan.wish.kind is ReassignmentKind.DRAIN:
        nodes, before, after = set(plan.wish.nodes), planned_on.pending(), placement.pending()
        for partition in before.keys() | after.keys():
            order, target = after.get(partition, (None, ()))
            was_of, was = before.get(partition, (None, ()))
            coming = (nodes & set(target)) - set(was)
            if order is not None and coming:
                raise Changed(f"order {order.number} gives {min(coming)} replicas since the plan was shown: look again")
            took_off = was_of is not None and any(nodes & set(move.removes) for move in was_of.moves)
            if order is None and took_off and was_of is not None and not _was(placement, was_of, "done"):
                raise Changed(f"order {was_of.number} has ended since the plan was shown: look again")


def _number_of(placement: Placement, plan: ReassignmentPlan, by: str, at_ms: int) -> int | None:
    for order in placement.orders:
        if order.at_ms == at_ms and order.moves == plan.moves and by.startswith(order.by):
            return order.number
    return None


async def cancel(metastore: Metastore, number: int | None, by: str) -> ReassignmentOrder:
    """Let an order go no further: what is under way goes back, what is done stays. `number` None: the only one. Raises
    NoSuch, NotReady, OutcomeUnknown."""
    meant: ReassignmentOrder | None = None

    def change(placement: Placement) -> Placement:
        nonlocal meant
        if meant is not None and _was(placement, meant, "cancelled"):
            return placement  # in a round whose answer was lost, and it is over by now
        order = _order_of(placement, number if meant is None else meant.number)
        meant = order if order.cancelled_by else replace(order, cancelled_by=by[:WHO_MAX] or "?")
        return placement.with_changed(meant)

    await change_placement(metastore, change)
    assert meant is not None, "a change is asked for once at least"
    log.info("placement.cancelled", order=meant.number, title=meant.title, by=by)
    return meant


def _was(placement: Placement, order: ReassignmentOrder | int, outcome: str) -> bool:
    """Whether an order, or the one of this number, is over, and so."""
    number = order if isinstance(order, int) else order.number
    return any(ended.number == number and ended.outcome == outcome for ended in placement.ended)


def _order_of(placement: Placement, number: int | None) -> ReassignmentOrder:
    numbers = ", ".join(str(order.number) for order in placement.orders)
    if number is None and len(placement.orders) == 1:
        return placement.orders[0]
    found = None if number is None else placement.order(number)
    if found is None:
        what = "say which order is meant" if number is None else f"there is no order {number}"
        raise NoSuch(f"{what}: under way are {numbers}" if numbers else "nothing is ordered")
    return found


async def undrain(metastore: Metastore, nodes: Sequence[str], by: str) -> list[int]:
    """Let nodes be given replicas and leaderships again; what moved theirs off is cancelled, and the moves of others
    drained with them go on. Returns the numbers of cancelled orders. Raises NoSuch, NotReady, OutcomeUnknown, TooLarge
    where one more order is one too many."""
    cancelled: list[int] = []
    found = False

    def change(placement: Placement) -> Placement:
        nonlocal found
        for node in nodes:
            if node not in placement.drained and not found:
                raise NoSuch(f"{node} is not drained: {', '.join(sorted(placement.drained)) or 'no node'} is")
        found = True  # from now on it may be our own write that undrained it
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


STANDING_PATH: Final = "/replicas"
"""Below it the metastore keeps what each node ever registered with (`repl.metastore.liveness`)."""


async def ids_of_nodes(metastore: Metastore) -> dict[str, tuple[int, int]]:
    """Node -> (its id, the version of its note), of all that ever registered and were not removed. Raises what the
    metastore raises."""
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
    """Forget a node that holds nothing and does not live. Raises NoSuch, StillNeeded, NotReady, OutcomeUnknown."""
    begun = False
    try:
        ground = await PlanningInput.read(metastore)
        standing = await metastore.get(f"{STANDING_PATH}/{node}")
        number = (await ids_of_nodes(metastore)).get(node)
        noted = standing is not None or number is not None or node in ground.placement.drained
        if not noted and node not in ground.known():
            raise NoSuch(f"no node {node!r:.80} is known; there are {', '.join(sorted(ground.known()))}")
        held = sorted(p for p, record in ground.records.items() if node in record.replicas)
        coming = sorted(p for p, (_, target) in ground.placement.pending().items() if node in target)
        if held or coming:
            some = f"{len(held)} replicas" if held else f"{len(coming)} replicas that are ordered for it"
            raise StillNeeded(f"{node} holds {some}: `isthmus node drain {node}` moves them off, then remove it")
        if node in ground.registrations:
            raise StillNeeded(f"{node} lives: stop it first")
        if dry_run:
            return
        if standing is not None:  # first: a node that came back has written it anew, and then nothing is forgotten
            await metastore.delete(f"{STANDING_PATH}/{node}", standing.version)
            begun = True
        if number is not None:
            await metastore.delete(f"{IDS_PATH}/{number[0]}", number[1])
            begun = True
        if begun and node in await metastore.registrations():  # it came back that very moment: it is known by these
            with suppress(VersionConflict):  # it has noted them anew itself
                if standing is not None:
                    await metastore.put(f"{STANDING_PATH}/{node}", standing.value, None)
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
