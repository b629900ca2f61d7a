"""The admin face's telemetry: replication of the whole cluster in numbers. Any node answers; it asks the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from node.http.asgi import Request, json_reply
from node.http.router import Router
from node.http.statuses import Reply
from node.telemetry_view import telemetry_document

if TYPE_CHECKING:
    from node.daemon import Node


class TelemetryAdmin:
    """The route over what all nodes measured."""

    def __init__(self, node: Node, router: Router[Callable[..., Any]]) -> None:
        self._node = node
        router.add("GET", "/admin/telemetry", self.telemetry)

    async def telemetry(self, _request: Request) -> Reply:
        """Of the cluster, each bucket type, each node."""
        controller = self._node.controller
        records, registrations = controller.records, controller.registrations
        holding = {node for record in records.values() for node in record.replicas} | {*registrations}
        said = await self._node.telemetry.gather(holding & registrations.keys())
        return json_reply(telemetry_document(list(records.values()), {**dict.fromkeys(holding), **said}))
