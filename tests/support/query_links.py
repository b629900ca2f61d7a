"""Connections between the nodes of a cluster in memory, for queries of the admin API."""

from __future__ import annotations

from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.repl.model.errors import NotReady


class QueryLinks:
    """Passes requests to the nodes; `cut` ones do not answer. Implements `cluster_query.NodeLinks`."""

    def __init__(self) -> None:
        self.nodes: dict[str, ClusterQuery] = {}
        self.cut: set[str] = set()

    def add(self, node: str) -> ClusterQuery:
        """The queries of one more node."""
        self.nodes[node] = ClusterQuery(node, self)
        return self.nodes[node]

    async def request(self, node: str, method: str, body: bytes, _timeout_ms: int) -> bytes:
        """See NodeLinks."""
        if node in self.cut:
            raise NotReady("timed out")
        return await self.nodes[node].request_handlers()[method]("n1", body)
