"""Probes and metrics on both listeners: /ping, /livez, /readyz, /metrics."""

from __future__ import annotations

from typing import Final, Protocol

from prometheus_client import CONTENT_TYPE_LATEST

from isthmus.node.http.application import Request, RoutedHandler, text_reply
from isthmus.node.http.responses import Reply
from isthmus.node.http.router import Router
from isthmus.repl.model.errors import NotReady

_EXPOSITION: Final = CONTENT_TYPE_LATEST.encode("ascii")


class NodeStatus(Protocol):
    """The state of the whole node, which both HTTP APIs answer by (`node.daemon.Node`). Called on the event loop."""

    def ready(self) -> tuple[bool, str]:
        """(True, "") when the node serves all its replicas, else (False, the reason)."""

    async def exposition(self) -> bytes:
        """The metrics in Prometheus' text format."""

    @property
    def stopping(self) -> bool:
        """Whether the node was asked to stop; threads then end with the results they have."""


def add_health(router: Router[RoutedHandler], status: NodeStatus) -> None:
    """Add the four routes."""

    async def ping(_: Request) -> Reply:
        """Riak's probe: the HTTP server answers."""
        return text_reply("OK")

    async def livez(_: Request) -> Reply:
        """The event loop runs. A supervisor may restart a process that gives no answer."""
        return text_reply("ok\n")

    async def readyz(_: Request) -> Reply:
        """Every partition assigned to this node is served."""
        serves, why_not = status.ready()
        if not serves:
            raise NotReady(why_not)
        return text_reply("ready\n")

    async def exposition(_: Request) -> Reply:
        """The metrics in Prometheus' text format."""
        return Reply(200, [(b"content-type", _EXPOSITION)], await status.exposition())

    router.add("GET", "/ping", ping)
    router.add("GET", "/livez", livez)
    router.add("GET", "/readyz", readyz)
    router.add("GET", "/metrics", exposition)
