"""GET /cluster/nodes: the live nodes of this cluster, for sinks of other clusters.

Names and client addresses only; operators read the rest through the admin API. The reader is `sink.discovery`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.node.http.application import HttpApplication, Request, json_reply
from isthmus.node.http.responses import Reply

Members = Callable[[], dict[str, Any]]
"""{"v", "cluster", "cluster_uuid", "tls", "nodes": [{"node", "http"}, ...]}: the nodes that live and are not leaving,
and the mode of the answering node's own listener."""


def add_members(api: HttpApplication, members: Members) -> None:
    """Add the route."""

    async def nodes(_request: Request) -> Reply:
        return json_reply(members())

    api.router.add("GET", "/cluster/nodes", nodes)
