"""The orders that change placements: one document in the metastore.

Open orders, the newest finished ones, and the drained nodes lie in one znode, so one read returns one state, one watch
reports every change, and a change is one conditional write. Any node may write it; the controller carries the orders
out (`repl.controller.reassigner`). The progress of an order is not stored: it follows from the partitions' records
(`repl.controller.reassignment_progress`), so a change of controller or a restart of all nodes loses nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal

import msgspec
import structlog
from msgspec import Meta, Struct

from isthmus.repl.controller.reassignment_plan import ReplicaMove
from isthmus.repl.controller.reassignment_progress import ReassignmentKind, ReassignmentOrder
from isthmus.repl.metastore.port import Metastore, Precondition, Versioned
from isthmus.repl.metastore.watched_document import Document, decode_json
from isthmus.repl.model.errors import Corruption, TooLarge

log = structlog.get_logger(__name__)

ORDERS_PATH: Final = "/placement/orders"

ORDERS_MAX: Final = 16
"""Open orders; one more is refused. Operators wait for one before they give the next."""

ENDED_MAX: Final = 50
"""Finished orders that are kept for display; the oldest are dropped first."""

WHO_MAX: Final = 200
"""Characters of an author that are kept."""

TITLE_MAX: Final = 200
"""Characters of an order's title that are kept."""


@dataclass(frozen=True, slots=True)
class FinishedOrder:
    """A finished order: "done", "cancelled" or "refused", with how many of its partitions were changed."""

    number: int
    kind: ReassignmentKind
    title: str
    by: str
    at_ms: int
    ended_ms: int
    outcome: str
    moved: int
    partition_count: int


@dataclass(frozen=True, slots=True)
class DrainedNode:
    """An operator's drain of a node: author and time (wall clock)."""

    by: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Placement:
    """All orders and drained nodes. `version` is the document's; None before there is one."""

    orders: tuple[ReassignmentOrder, ...] = ()
    ended: tuple[FinishedOrder, ...] = ()
    drained: Mapping[str, DrainedNode] = field(default_factory=dict)
    next_number: int = 1
    version: int | None = None

    def pending(self) -> dict[int, tuple[ReassignmentOrder, tuple[str, ...]]]:
        """Partition -> the open order that it is in, and the replicas that the order wants."""
        return {move.partition: (order, order.target(move)) for order in self.orders for move in order.moves}

    def order(self, number: int) -> ReassignmentOrder | None:
        """An open order by its number."""
        return next((order for order in self.orders if order.number == number), None)

    def with_order(
        self, kind: ReassignmentKind, title: str, by: str, at_ms: int, moves: Iterable[ReplicaMove]
    ) -> Placement:
        """A copy with one more order. Raises TooLarge."""
        if len(self.orders) >= ORDERS_MAX:
            raise TooLarge(f"{len(self.orders)} orders are not over yet, at most {ORDERS_MAX} may be: wait for one")
        order = ReassignmentOrder(self.next_number, kind, title[:TITLE_MAX], by[:WHO_MAX], at_ms, tuple(moves))
        return replace(self, orders=(*self.orders, order), next_number=self.next_number + 1)

    def with_changed(self, changed: ReassignmentOrder) -> Placement:
        """A copy with another version of an open order."""
        return replace(self, orders=tuple(changed if o.number == changed.number else o for o in self.orders))

    def with_moves_back(
        self, order: ReassignmentOrder, nodes: Collection[str], by: str
    ) -> tuple[Placement, int | None]:
        """A copy in which the moves of an order that take a replica off `nodes` are cancelled: the whole order, or a
        new order with those moves, beside the rest. Returns the number of the cancelled order, None if there are no
        such moves. Raises TooLarge."""
        back = [move for move in order.moves if set(move.removes) & set(nodes)]
        if not back:
            return self, None
        after = self
        if len(back) < len(order.moves) and not order.cancelled_by:
            after = after.with_changed(replace(order, moves=tuple(m for m in order.moves if m not in back)))
            after = after.with_order(order.kind, f"drain {', '.join(nodes)}", order.by, order.at_ms, back)
            order = after.orders[-1]
        return after.with_changed(replace(order, cancelled_by=order.cancelled_by or by[:WHO_MAX] or "?")), order.number

    def with_ended(self, ended: FinishedOrder) -> Placement:
        """A copy with an order finished."""
        left = tuple(order for order in self.orders if order.number != ended.number)
        return replace(self, orders=left, ended=(*self.ended, ended)[-ENDED_MAX:])

    def with_drained(self, nodes: Iterable[str], by: str, at_ms: int) -> Placement:
        """A copy with more nodes drained; a node that is drained already keeps its entry."""
        return replace(self, drained={**{node: DrainedNode(by[:WHO_MAX], at_ms) for node in nodes}, **self.drained})

    def without_drained(self, nodes: Iterable[str]) -> Placement:
        """A copy with fewer nodes drained."""
        gone = set(nodes)
        return replace(self, drained={node: each for node, each in self.drained.items() if node not in gone})


# -- the document ---------------------------------------------------------------------------------


Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
NodeIndex = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Into `_PlacementForm.nodes`, so that names of nodes are written once."""


class _OrderForm(Struct):
    number: Count
    kind: ReassignmentKind
    title: str
    by: str
    at_ms: Count
    cancelled_by: str
    moves: list[tuple[Count, list[NodeIndex], list[NodeIndex]]]


class _PlacementForm(Struct):
    """The JSON of the document. `ended` has the fields of FinishedOrder, `drained` those of DrainedNode."""

    v: Literal[1]
    next: Count
    nodes: list[str]
    orders: list[_OrderForm]
    ended: list[tuple[Count, ReassignmentKind, str, str, Count, Count, str, Count, Count]]
    drained: dict[str, tuple[str, Count]]


def encode_placement(placement: Placement) -> bytes:
    """Canonical bytes of the document."""
    names = sorted({n for order in placement.orders for move in order.moves for n in (*move.before, *move.after)})
    index = {name: number for number, name in enumerate(names)}
    orders = [
        _OrderForm(
            order.number,
            order.kind,
            order.title,
            order.by,
            order.at_ms,
            order.cancelled_by,
            [(m.partition, [index[n] for n in m.before], [index[n] for n in m.after]) for m in order.moves],
        )
        for order in placement.orders
    ]
    ended = [
        (e.number, e.kind, e.title, e.by, e.at_ms, e.ended_ms, e.outcome, e.moved, e.partition_count)
        for e in placement.ended
    ]
    drained = {name: (each.by, each.at_ms) for name, each in sorted(placement.drained.items())}
    return msgspec.json.encode(_PlacementForm(1, placement.next_number, names, orders, ended, drained))


def decode_placement(found: Versioned | None) -> Placement:
    """The orders in the document at ORDERS_PATH. Raises Corruption."""
    if found is None:
        return Placement()
    form = decode_json(ORDERS_PATH, found.value, _PlacementForm)
    return Placement(
        tuple(_order(each, form.nodes) for each in form.orders),
        tuple(FinishedOrder(*each) for each in form.ended),
        {name: DrainedNode(*each) for name, each in form.drained.items()},
        form.next,
        found.version,
    )


def _order(form: _OrderForm, names: Sequence[str]) -> ReassignmentOrder:
    def replicas(indices: Sequence[int]) -> tuple[str, ...]:
        found = tuple(names[index] for index in indices if index < len(names))
        if not found or len(found) != len(indices) or len(set(found)) != len(found):
            raise Corruption(f"{ORDERS_PATH} in the metastore: order {form.number}: {indices!r:.80} are not replicas")
        return found

    moves = tuple(ReplicaMove(partition, replicas(before), replicas(after)) for partition, before, after in form.moves)
    return ReassignmentOrder(form.number, form.kind, form.title, form.by, form.at_ms, moves, form.cancelled_by)


# -- the metastore --------------------------------------------------------------------------------

ORDERS_DOCUMENT: Final = Document(ORDERS_PATH, decode_placement, encode_placement)


async def read_placement(metastore: Metastore) -> Placement:
    """The orders now. Raises Corruption, and what the metastore raises."""
    return await ORDERS_DOCUMENT.read(metastore)


async def change_placement(
    metastore: Metastore,
    change: Callable[[Placement], Placement],
    unmoved: Sequence[Precondition] = (),
    on_conflict: Callable[[], Awaitable[None]] | None = None,
) -> Placement:
    """Write what `change` makes of the newest orders; returns the orders after that. `change` is called once per
    attempt, and must return an equal value where its order is there already. `on_conflict` is called after a write that
    was refused, and raises if one of `unmoved` has moved. Raises NotReady when nothing was changed, OutcomeUnknown,
    Corruption, TooLarge, and what `change` and `on_conflict` raise."""
    return (await ORDERS_DOCUMENT.change(metastore, change, unmoved, on_conflict)).value
