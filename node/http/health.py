"""What probes and Prometheus ask: /ping, /livez, /readyz, /metrics. Each face adds them to its router."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST

from isthmus.node.http.application import Request, RoutedHandler, text_reply
from isthmus.node.http.responses import Reply
from isthmus.node.http.router import Router
from isthmus.repl.model.errors import NotReady

_EXPOSITION: Final = CONTENT_TYPE_LATEST.encode("ascii")


def add_health(
    router: Router[RoutedHandler], *, ready: Callable[[], tuple[bool, str]], metrics: Callable[[], bytes]
) -> None:
    """Add the four routes. `ready` gives (True, "") or (False, why); `metrics` the exposition text. Both are called on
    the event loop, since what they read belongs to it."""

    async def ping(_: Request) -> Reply:
        """Riak's: the HTTP server answers."""
        return text_reply("OK")

    async def livez(_: Request) -> Reply:
        """The loop turns. Whoever gets no answer may restart the process."""
        return text_reply("ok\n")

    async def readyz(_: Request) -> Reply:
        """Every partition that is to be served here is served."""
        serves, why_not = ready()
        if not serves:
            raise NotReady(why_not)
        return text_reply("ready\n")

    async def exposition(_: Request) -> Reply:
        """Prometheus text."""
        return Reply(200, [(b"content-type", _EXPOSITION)], metrics())

    router.add("GET", "/ping", ping)
    router.add("GET", "/livez", livez)
    router.add("GET", "/readyz", readyz)
    router.add("GET", "/metrics", exposition)
