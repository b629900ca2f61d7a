"""Reassignments in the admin API: plan, order, watch and cancel them; list, drain and remove nodes.

Every change has a plan, which `dry_run` shows. An order may name the plan (`plan`), and is refused if the plan is
another one by now. Any node answers. `repl.controller.reassignments` plans and keeps orders,
`repl.controller.reassigner` carries them out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec

from isthmus.config.dynamic_options import MOVES_AT_ONCE
from isthmus.config.validation import check_name
from isthmus.node.admin_api.acting_user import acting_user
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.json_body import BodyHandler, add_noun, struct_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.nouns.node import NODE, REMOVE, NodeRemoved, Nodes, RemoveNodeRequest
from isthmus.node.nouns.requests import AuditedRequest, DryRun, Name, right
from isthmus.node.services import cluster_status, reassignment_status
from isthmus.node.services.container import NodeServices
from isthmus.node.services.replica_query import REPLICAS, ReplicaForm
from isthmus.repl.controller.placement import NODE_ID_MAX, REPLICAS_MAX, BadReplicaMap, checked_replica_map
from isthmus.repl.controller.reassignment_progress import ReassignmentKind
from isthmus.repl.controller.reassignments import (
    LOG_IDENTITIES_PATH,
    NoSuch,
    ReassignmentRequest,
    cancel,
    ids_of_nodes,
    planned,
    remove_node,
    submit,
    undrain,
)
from isthmus.repl.metastore.port import Ambiguous, Unavailable, VersionConflict
from isthmus.repl.model.errors import NotReady

SEEN_S: Final = 3.0
"""How long an answer waits until this node has read the order. A watch takes milliseconds."""

POLL_S: Final = 0.02
"""Interval of the checks in between."""

NODES_MAX: Final = 1_000
"""Most nodes in one request, as many as in a cluster."""


NodeNames = Annotated[list[Name], msgspec.Meta(max_length=NODES_MAX), right(f"a list of at most {NODES_MAX} names")]
REQUESTED_KINDS: Final = (ReassignmentKind.FILE, ReassignmentKind.SPREAD, ReassignmentKind.REPLACE)


class PlannedRequest(AuditedRequest, frozen=True, kw_only=True):
    """A reassignment, planned and then ordered."""

    plan: Annotated[str, msgspec.Meta(description="The plan that was shown; another one is refused.")] | None = None
    ignore_racks: bool = False
    dry_run: DryRun = False


class OrderReassignmentRequest(PlannedRequest, frozen=True, kw_only=True):
    """Order a file's placement, an even one, or one node instead of another."""

    kind: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(REQUESTED_KINDS)})] | None = None
    bucket_type: str | None = None
    nodes: NodeNames | None = None
    partitions: Annotated[Any, msgspec.Meta(description="A replica map, with names or ids of nodes.")] = None


class ChangeFactorRequest(PlannedRequest, frozen=True, kw_only=True):
    """Order another replication factor."""

    replication_factor: Annotated[int, msgspec.Meta(ge=1, le=REPLICAS_MAX)]


class DrainNodesRequest(PlannedRequest, frozen=True, kw_only=True):
    """Order that nodes hold no replicas, or end that."""

    nodes: NodeNames | None = None
    undo: Annotated[bool, msgspec.Meta(description="The nodes may be given replicas again.")] = False


class CancelReassignmentRequest(AuditedRequest, frozen=True, kw_only=True):
    """Cancel an order; the newest, when none is named."""

    order: Annotated[int, msgspec.Meta(ge=0, le=NODE_ID_MAX)] | None = None


class ReassignmentsAdmin:
    """Routes over the placement of the cluster."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("GET", "/admin/moves", self.moves)
        router.add("POST", "/admin/moves", BodyHandler(OrderReassignmentRequest, self.order))
        router.add("POST", "/admin/moves/cancel", BodyHandler(CancelReassignmentRequest, self.cancel))
        router.add(
            "POST", "/admin/bucket-types/{name}/replication-factor", BodyHandler(ChangeFactorRequest, self.factor)
        )
        add_noun(router, NODE, self.nodes, None, {REMOVE: self.remove})
        router.add("POST", "/admin/nodes/drain", BodyHandler(DrainNodesRequest, self.drain))

    async def moves(self, _request: Request) -> Reply:
        """Every order with its progress and the reasons.

        `orders`: the open ones, with every partition's `stage`, `reason` and `copies`; `ended`: the finished ones, the
        newest first; `drained` nodes; `paused`: why nothing new begins.
        """
        controller = self._services.controller
        placement, records = controller.placement, controller.records
        concerned = [records[m.partition] for o in placement.orders for m in o.moves if m.partition in records]
        changing = {node for record in concerned if record.adding or record.removing for node in record.replicas}
        replicas = await self._services.query.ask(
            REPLICAS, ReplicaForm.WITH_OUT, changing & controller.registrations.keys()
        )
        return json_reply(
            reassignment_status.moves_shown(
                placement,
                records,
                controller.registrations,
                replicas.by_node,
                wall_ms=self._services.time.wall_ms(),
                at_once=controller.options.number(MOVES_AT_ONCE),
                overdue=controller.moving.overdue,
            )
        )

    async def order(self, request: Request, body: OrderReassignmentRequest) -> Reply:
        """Order a file's placement, an even one, or one node instead of another; or only show the moves.

        `kind` is `spread`, `replace` (`nodes`: old, new) or `file` (`partitions` as in a placement file, by id or
        name). Answers the plan: `partitions` (`from`, `to`, `adds`, `removes`), `nodes` with `replicas` and `then`,
        `copies`, `notes`, `order` (null if nothing is to move), and `plan`, its digest. With that digest in the request
        nothing else is ordered: 409 `changed`. 409 `plan-refused` if the moves are impossible.
        """
        bucket_type, names, ignore_racks = body.bucket_type, _distinct(body.nodes), body.ignore_racks
        match body.kind:
            case ReassignmentKind.SPREAD:
                wanted = ReassignmentRequest(ReassignmentKind.SPREAD, bucket_type, ignore_racks=ignore_racks)
            case ReassignmentKind.REPLACE if len(names) == 2:
                wanted = ReassignmentRequest(
                    ReassignmentKind.REPLACE, bucket_type, nodes=names, ignore_racks=ignore_racks
                )
            case ReassignmentKind.REPLACE:
                raise RequestRefused(400, "bad-json", "nodes must be two: the one that goes and the one instead")
            case ReassignmentKind.FILE:
                wanted = ReassignmentRequest(
                    ReassignmentKind.FILE, bucket_type or "default", places=self._places(body.partitions)
                )
            case _:
                raise RequestRefused(
                    400,
                    "bad-json",
                    f"kind is one of {', '.join(REQUESTED_KINDS)}",
                )
        return await self._act(request, body, wanted)

    async def factor(self, request: Request, body: ChangeFactorRequest) -> Reply:
        """Order another replication factor for a bucket type.

        Answers as `POST /admin/moves`.
        """
        name, factor = request.text("name"), body.replication_factor
        return await self._act(
            request, body, ReassignmentRequest(ReassignmentKind.FACTOR, name, factor, ignore_racks=body.ignore_racks)
        )

    async def drain(self, request: Request, body: DrainNodesRequest) -> Reply:
        """Move all replicas off nodes and assign them no others; or let them have replicas again.

        Answers as `POST /admin/moves`.
        """
        names = _distinct(body.nodes)
        if not names:
            raise RequestRefused(400, "bad-json", "nodes must name one node at least")
        if not body.undo:
            return await self._act(
                request, body, ReassignmentRequest(ReassignmentKind.DRAIN, nodes=names, ignore_racks=body.ignore_racks)
            )
        if body.dry_run:
            drained = self._services.controller.placement.drained
            for name in names:
                if name not in drained:
                    raise NoSuch(f"{name} is not drained: {', '.join(sorted(drained)) or 'no node'} is")
            return json_reply({"outcome": "would be undone", "nodes": list(names)})
        with request.changing(lambda: {"drained": sorted(self._services.controller.placement.drained)}):
            cancelled = await undrain(self._services.controller.metastore, names, acting_user(body.by))
            await self._seen(lambda: not set(names) & self._services.controller.placement.drained.keys())
        return json_reply({"outcome": "undone", "nodes": list(names), "cancelled": cancelled})

    async def _act(self, request: Request, body: PlannedRequest, wanted: ReassignmentRequest) -> Reply:
        """Show or order a reassignment."""
        controller = self._services.controller
        if body.dry_run:
            plan, number, outcome = await planned(controller.metastore, wanted), None, "planned"
        else:
            by, at_ms = acting_user(body.by), self._services.time.wall_ms()
            plan, number = await submit(controller.metastore, wanted, body.plan, by, at_ms)
            outcome = "nothing to move" if number is None else "ordered"
            request.changed(None, {"order": number, "title": plan.request.title, "partitions": len(plan.moves)})
        if number is not None:
            await self._seen(lambda: number < controller.placement.next_number)
        return json_reply(reassignment_status.plan_shown(plan, controller.records, outcome, number))

    async def cancel(self, request: Request, body: CancelReassignmentRequest) -> Reply:
        """Cancel an order, or the only one: moves under way are reverted, finished ones stay.

        `outcome` is `cancelled`; `order` and `title`: the number of the cancelled order, and its request in words.
        """
        controller = self._services.controller
        order = await cancel(controller.metastore, body.order, acting_user(body.by))
        request.changed({"order": order.number, "title": order.title}, {"cancelled": order.number})

        def seen() -> bool:
            found = controller.placement.order(order.number)
            return found is None or bool(found.cancelled_by)

        await self._seen(seen)
        return json_reply({"outcome": "cancelled", "order": order.number, "title": order.title})

    async def nodes(self, _request: Request) -> Reply:
        """Every node that is alive, holds a replica, or ever registered and was not removed."""
        controller = self._services.controller
        try:
            known = await controller.metastore.children(LOG_IDENTITIES_PATH)
            ids = {node: number for node, (number, _) in (await ids_of_nodes(controller.metastore)).items()}
        except (Unavailable, Ambiguous, VersionConflict) as error:
            raise NotReady(f"the metastore cannot be reached: {error}") from error
        drained = controller.placement.drained
        rows = cluster_status.node_rows(controller.records, controller.registrations, drained, known, ids)
        return struct_reply(Nodes(rows))

    async def remove(self, request: Request, body: RemoveNodeRequest) -> Reply:
        """Remove a node that is gone and holds nothing; 409 `still-needed` otherwise."""
        name, dry_run = request.text("name"), body.dry_run
        try:
            check_name(name)  # it becomes part of a metastore path
        except ValueError as error:
            raise RequestRefused(400, "bad-input", f"node: {error}") from None
        controller = self._services.controller
        await remove_node(controller.metastore, name, acting_user(body.by), dry_run=dry_run)
        if not dry_run:
            await self._seen(lambda: name not in controller.registrations and name not in controller.placement.drained)
        return struct_reply(NodeRemoved("would be removed" if dry_run else "removed", name))

    async def _seen(self, holds: Callable[[], bool]) -> None:
        """Return once this node has read the change; or after SEEN_S."""
        self._services.controller.wake()
        for _ in range(round(SEEN_S / POLL_S)):
            if holds():
                return
            await asyncio.sleep(POLL_S)

    def _places(self, partitions: object) -> tuple[tuple[str, ...], ...]:
        """The replicas of a replica map by name; the map may have names or node ids."""
        controller = self._services.controller
        held = {node for record in controller.records.values() for node in record.replicas}
        numbers = {node: found.id for node, found in controller.registrations.items()}
        numbers |= {node: NODE_ID_MAX - i for i, node in enumerate(sorted(held - numbers.keys()))}
        names = {number: node for node, number in numbers.items()}
        try:
            replica_map = checked_replica_map({"partitions": _numbered(partitions, numbers)})
            faults = [
                f"partitions[{index}].replicas[{place}] is node id {number}, which no known node has"
                for index, replicas in enumerate(replica_map)
                for place, number in enumerate(replicas)
                if number not in names
            ]
            if faults:
                raise BadReplicaMap(faults)
        except BadReplicaMap as error:
            raise RequestRefused(400, "bad-replica-map", str(error)) from error
        return tuple(tuple(names[number] for number in replicas) for replicas in replica_map)


def _numbered(partitions: object, numbers: dict[str, int]) -> object:
    """The partitions with node ids instead of known names; other values are left for the checks."""
    if not isinstance(partitions, list):
        return partitions

    def one(value: object) -> object:
        return numbers.get(value, value) if isinstance(value, str) else value

    return [
        {**each, "replicas": [one(value) for value in each["replicas"]]}
        if isinstance(each, dict) and isinstance(each.get("replicas"), list)
        else each
        for each in partitions
    ]


def _distinct(nodes: list[str] | None) -> tuple[str, ...]:
    """The names, none of them twice. Raises RequestRefused."""
    names = tuple(nodes or ())
    if len(set(names)) != len(names):
        raise RequestRefused(400, "bad-json", "nodes names one twice")
    return names
