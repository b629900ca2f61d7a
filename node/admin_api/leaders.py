"""Leader balance in the admin API: its state and plan, and a balance now.

Any node answers: it asks the controller (`repl.controller.leader_balance_api`). `repl.controller.leader_balancer`
decides which leaders move, and when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from isthmus.node.admin_api.acting_user import acting_user
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.json_body import BodyHandler
from isthmus.node.http.responses import Reply
from isthmus.node.http.router import Router
from isthmus.node.nouns.requests import AuditedRequest, DryRun
from isthmus.node.services.container import NodeServices
from isthmus.repl.model.errors import IsthmusError

GLANCE_MS: Final = 500
"""How long the state of the cluster waits for the controller; without an answer the balance is unknown."""


class BalanceLeadersRequest(AuditedRequest, frozen=True, kw_only=True):
    """Move leaderships as planned."""

    dry_run: DryRun = False


class LeadershipsAdmin:
    """Routes over the leaders of the cluster."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("GET", "/admin/leaders", self.leaders)
        router.add("POST", "/admin/leaders/balance", BodyHandler(BalanceLeadersRequest, self.balance))

    async def leaders(self, _request: Request) -> Reply:
        """The balance of leaderships as the controller sees it, and the plan.

        `state` (`balanced`, `uneven`, `leadership-balancing`), `reason`, `automatic`, `imbalance`, `leaders` by node;
        the latter two by bucket type in `bucket_types`. `goal`: on how many `nodes` leaders are to stand, for which
        `reason`, `by_load` or always on all, and which share of a core each node's event loop is `busy`, null where it
        is not known; the imbalance is that of these nodes. `plan`: `partition`, `from`, `to`. `run`: the newest moves,
        with `by`, `outcome` (empty while it runs, `done`, `failed`) and each move's `state` and `reason`. 503 if there
        is no controller.
        """
        return json_reply(await self._services.leader_balance.status())

    async def balance(self, request: Request, body: BalanceLeadersRequest) -> Reply:
        """Begin the moves of the plan, or only show it; the answer does not wait for the moves.

        503 `not-ready` if an election or a leaving node prevents it.
        """
        if body.dry_run:
            return await self.leaders(request)
        return json_reply(await self._services.leader_balance.balance(acting_user(body.by)))


async def balance_summary(services: NodeServices) -> dict[str, Any] | None:
    """State, reason and imbalance for the status of the whole cluster; None without an answer of the controller."""
    try:
        status = await services.leader_balance.status(GLANCE_MS)
    except IsthmusError:
        return None
    return {key: status.get(key) for key in ("state", "reason", "automatic", "imbalance")}
