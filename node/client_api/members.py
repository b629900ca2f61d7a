"""GET /cluster/nodes, for sinks of other clusters, and GET /membership_request, for those of a Riak: the live nodes.

Names and client addresses only; operators read the rest through the admin API. The reader of the first is
`sink.discovery`; the form of the second is Riak's, which has ports as text.
"""

from __future__ import annotations

from typing import Any, Protocol
from urllib.parse import urlsplit

from isthmus.node.http.application import HttpApplication, Request, json_reply
from isthmus.node.http.responses import Reply


class Membership(Protocol):
    """The nodes of the cluster (`node.services.membership.ClusterMembership`)."""

    def document(self) -> dict[str, Any]:
        """{"v", "cluster", "cluster_uuid", "tls", "nodes": [{"node", "http"}, ...]}: the nodes that are alive and not
        leaving, and the TLS mode of the answering node's own listener."""


def add_members(api: HttpApplication, membership: Membership) -> None:
    """Add the routes."""

    async def nodes(_request: Request) -> Reply:
        return json_reply(membership.document())

    async def riak_nodes(_request: Request) -> Reply:
        urls = [urlsplit(node["http"]) for node in membership.document()["nodes"]]
        up = [{"ip": url.hostname, "port": str(url.port)} for url in urls]
        return json_reply({"up_nodes": up})

    api.router.add("GET", "/cluster/nodes", nodes)
    api.router.add("GET", "/membership_request", riak_nodes)
