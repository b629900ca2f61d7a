"""Replication telemetry of the whole cluster in the admin API. Any node answers; it asks the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.responses import Reply
from isthmus.node.http.router import Router
from isthmus.node.services.container import NodeServices
from isthmus.node.services.telemetry import telemetry_document
from isthmus.node.services.telemetry_query import TELEMETRY


class TelemetryAdmin:
    """The route over all nodes' measurements."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("GET", "/admin/telemetry", self.telemetry)

    async def telemetry(self, _request: Request) -> Reply:
        """Replication in numbers: the cluster, each bucket type, each node.

        The numbers of the metrics, with rates and times of the last 30 to 60 s. `failures` are totals by kind and
        reason, `failures_per_s` their rates; `isr` is of the partition closest to its min-ISR. `nodes_unknown` did not
        answer within 2 s: they are in no sum, and their own numbers are null.
        """
        controller = self._services.controller
        records, registrations = controller.records, controller.registrations
        holding = {node for record in records.values() for node in record.replicas} | {*registrations}
        answers = (await self._services.query.ask(TELEMETRY, None, holding & registrations.keys())).by_node
        return json_reply(telemetry_document(list(records.values()), {**dict.fromkeys(sorted(holding)), **answers}))
