"""GET /cluster/nodes: the live nodes of this cluster, for sinks of other clusters.

Names and client addresses only; operators read the rest through the admin API. The reader is `sink.discovery`.
"""

from __future__ import annotations

from typing import Any, Protocol

from isthmus.node.http.application import HttpApplication, Request, json_reply
from isthmus.node.http.responses import Reply


class Membership(Protocol):
    """The nodes of the cluster (`node.services.membership.ClusterMembership`)."""

    def document(self) -> dict[str, Any]:
        """{"v", "cluster", "cluster_uuid", "tls", "nodes": [{"node", "http"}, ...]}: the nodes that are alive and not
        leaving, and the TLS mode of the answering node's own listener."""


def add_members(api: HttpApplication, membership: Membership) -> None:
    """Add the route."""

    async def nodes(_request: Request) -> Reply:
        return json_reply(membership.document())

    api.router.add("GET", "/cluster/nodes", nodes)
