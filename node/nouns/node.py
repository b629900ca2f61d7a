"""The noun `node`: what it holds and leads, and whether it lives. Pure."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from isthmus.node.nouns.description import Act, DescribedNoun, TableColumn, means
from isthmus.node.nouns.requests import AuditedRequest, DryRun


class NodeRow(msgspec.Struct, frozen=True):
    """A node that is alive, holds a replica, or registered once and was not removed."""

    name: Annotated[str, means("Its name.", TableColumn("node"))]
    id: Annotated[int | None, means("As in placement files; null: it never registered.", TableColumn(leave=2))]
    rack: Annotated[str | None, means("Null: the node is gone.", TableColumn(leave=3))]
    state: Annotated[Literal["live", "leaving", "gone"], means("Whether it lives.", TableColumn(state=True))]
    drained: Annotated[bool, means("Whether it is to hold no replicas.", TableColumn(leave=1))]
    leaders: Annotated[int, means("Partitions that it leads.", TableColumn())]
    replicas: Annotated[int, means("Replicas that it holds.", TableColumn())]
    in_sync: Annotated[int, means("Its replicas that are in sync.", TableColumn())]
    http: Annotated[str | None, means("Where clients reach it.", TableColumn(leave=4, host=True))]
    admin: Annotated[str | None, means("Where operators reach it.", TableColumn(leave=5, host=True))]
    cluster: Annotated[str | None, means("Where other nodes reach it.", TableColumn(leave=6, host=True))]
    reason: Annotated[str, means("Why it does not live.", TableColumn(text=True))]


class Nodes(msgspec.Struct, frozen=True):
    """All nodes."""

    nodes: list[NodeRow]


class NodeRemoved(msgspec.Struct, frozen=True):
    """What a removal did, or would do."""

    outcome: Annotated[str, means("`removed`, or `would be removed`.")]
    node: str


class RemoveNodeRequest(AuditedRequest, frozen=True, kw_only=True):
    """Forget a node."""

    dry_run: DryRun = False


REMOVE: Final = Act("remove", RemoveNodeRequest, NodeRemoved, "remove node {name}")

NODE: Final = DescribedNoun(
    "node",
    path="/admin/nodes",
    key="name",
    row=NodeRow,
    listing=Nodes,
    one=None,
    acts=(REMOVE,),
)
