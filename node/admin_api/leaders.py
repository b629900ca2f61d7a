"""The admin face's leaderships: how evenly they are spread, what would be moved, and to move it now.

Any node answers for its cluster: it asks the one that controls (`repl.controller.leader_balance_api`). What moves them,
and when, is `repl.controller.leader_balancer`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from isthmus.node.admin_api.body import acting_user
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.json_body import AuditedRequest, BodyHandler, DryRun
from isthmus.node.http.responses import Reply
from isthmus.node.http.router import Router
from isthmus.node.services.container import NodeServices
from isthmus.repl.model.errors import IsthmusError

GLANCE_MS: Final = 500
"""How long the state of a whole cluster waits for the node that controls; without an answer it is told as unknown."""


class BalanceLeadersRequest(AuditedRequest, frozen=True, kw_only=True):
    """Move leaderships as planned."""

    dry_run: DryRun = False


class LeadershipsAdmin:
    """Routes over the leaderships of a running node's cluster."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("GET", "/admin/leaders", self.leaders)
        router.add("POST", "/admin/leaders/balance", BodyHandler(BalanceLeadersRequest, self.balance))

    async def leaders(self, _request: Request) -> Reply:
        """What there is to know, and the plan."""
        return json_reply(await self._services.leader_balance.status())

    async def balance(self, request: Request, body: BalanceLeadersRequest) -> Reply:
        """Begin to move what the plan says, or only show it; the answer does not wait for the moves."""
        if body.dry_run:
            return await self.leaders(request)
        return json_reply(await self._services.leader_balance.balance(acting_user(body.by)))


async def balance_summary(services: NodeServices) -> dict[str, Any] | None:
    """State, reason and imbalance for who looks at the cluster as a whole; None when the controller does not say."""
    try:
        status = await services.leader_balance.status(GLANCE_MS)
    except IsthmusError:
        return None
    return {key: status.get(key) for key in ("state", "reason", "automatic", "imbalance")}
