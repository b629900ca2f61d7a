"""Links between the cluster queries of several nodes in this process."""

from __future__ import annotations

from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.repl.model.errors import NotReady


class QueryWires:
    """See NodeLinks: leads to the queries of `nodes`; all others are unreachable."""

    def __init__(self, nodes: dict[str, ClusterQuery]) -> None:
        self.nodes = nodes

    async def request(self, node: str, method: str, body: bytes, _timeout_ms: int) -> bytes:
        """See NodeLinks."""
        if node not in self.nodes:
            raise NotReady(f"no connection to node {node}")
        return await self.nodes[node].request_handlers()[method](node, body)
