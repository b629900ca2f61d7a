"""Which acts operators can do is told by the product: the world knows them all."""

from __future__ import annotations

from types import SimpleNamespace

from isthmus.node.admin_api.application import AdminApi
from isthmus.node.dashboard.routes import Dashboard
from tests.simulation.world.acts import MODULES
from tests.simulation.world.steps import KINDS, StepKind
from tests.support.node_status import FakeNodeStatus

ROUTES_LEFT_OUT = {
    "POST /dashboard/session": "a login of a browser",
    "POST /dashboard/session/end": "a login of a browser",
    "POST /dashboard/links": "a login of a browser",
}
"""Routes that change something, and why the world does not."""


def routes() -> set[str]:
    """All requests of operators that may change something, as "POST /admin/...": of the admin API and the dashboard."""
    api = AdminApi(SimpleNamespace(), FakeNodeStatus())  # type: ignore[arg-type]
    Dashboard(api, None, "cluster", "node")
    return {f"{method} {pattern}" for pattern, method, _ in api.router.routes() if method not in ("GET", "HEAD")}


def covered() -> set[str]:
    """What the world's acts do."""
    assert MODULES  # they are imported
    return set().union(*(each.covers for each in KINDS[StepKind.ACT].values()))


def test_every_request_that_changes_something_is_an_act() -> None:
    """A route that nobody taught the world fails here; so does an act of a route that is no more, and a reason for a
    route that an act does after all."""
    done = {each for each in covered() if each.startswith(("POST ", "PUT ", "DELETE "))}
    assert routes() - done == ROUTES_LEFT_OUT.keys()
    assert done - routes() == set()
