"""Runs of Spark jobs in the admin API; only reads.

They are in the directories that nodes have (`reconcile.runs_dir`).
Any node answers; it asks the others. docs/spark.md explains runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.aae.run_listing import RunKind
from isthmus.node.admin_api.history import ALL, GONE
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.services.container import NodeServices
from isthmus.node.services.run_query import RUN, RUNS, ShowRun, joined
from isthmus.repl.model.errors import NotReady


class ReconcileAdmin:
    """Routes below /admin/reconcile."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("GET", "/admin/reconcile/runs", self.runs)
        router.add("GET", "/admin/reconcile/runs/{kind}/{run}", self.run)

    async def runs(self, _request: Request) -> Reply:
        """The runs on Spark that nodes see in their directories (`reconcile.runs_dir`), the newest first.

        The newest 200 of each node, each once, with the `nodes` that see it: kind, state and its reason, outcome,
        clusters, times, progress, counts by verdict. `directories` of nodes, null without one; `left_out`: older runs
        by node; `cut`: nodes whose directory has more entries than are read; `unknown`: why, of each node without an
        answer.
        """
        services = self._services
        live, known = services.membership.live_nodes(), services.membership.known_nodes()
        answers = await services.query.ask(RUNS, None, live, own_may_fail=True)
        found = {node: answer for node, answer in answers.by_node.items() if answer is not None}
        return json_reply(
            {
                "runs": joined(found),
                "directories": {node: answer.directory for node, answer in found.items()},
                "left_out": {node: answer.left_out for node, answer in found.items() if answer.left_out},
                "cut": [node for node, answer in found.items() if answer.cut],
                "unknown": {**dict.fromkeys(sorted(known - live), GONE), **answers.unknown},
                "at_ms": services.time.wall_ms(),
            }
        )

    async def run(self, request: Request) -> Reply:
        """One run, as ?node=NAME sees it; without, as the first node that has it does.

        Kind `comparison`, `seed` or `import`. Its options, summary with findings by verdict and bucket, repair plans,
        documents that cannot be read (`problems`), and commands to type.
        """
        services, run_id = self._services, request.text("run")
        kinds = {kind.value: kind for kind in RunKind}
        kind = kinds.get(request.text("kind"))
        if kind is None:
            raise RequestRefused(404, "unknown-run", f"kinds of runs are {', '.join(kinds)}")
        node, known = request.query.get("node", ALL), services.membership.known_nodes()
        if node not in (ALL, *known):
            there = ", ".join(sorted(known))
            raise RequestRefused(404, "unknown-node", f"there is no node {node[:64]!r}; there are {there}")
        live = services.membership.live_nodes()
        asked = live if node == ALL else {node} & live
        answers = await services.query.ask(RUN, ShowRun(kind, run_id), asked, own_may_fail=True)
        for name, found in answers.by_node.items():
            if found is not None:
                return json_reply({**found, "node": name})
        unknown = {**answers.unknown, **({} if asked else {node: GONE})}
        if unknown:
            silent = "; ".join(f"{name}: {why}" for name, why in sorted(unknown.items()))
            raise NotReady(f"whether there is a {kind.value} {run_id[:100]!r} is not known: {silent}")
        raise RequestRefused(404, "unknown-run", f"no node sees a {kind.value} {run_id[:100]!r}")
