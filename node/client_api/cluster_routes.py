"""GET /cluster/routes: which node leads each partition, for clients; and `X-Isthmus-Leader`, which corrects them.

A client that knows the leader of a key spares the cluster a forward. Its routes may be outdated: a request at any other
node is forwarded, and its answer names the leader. The document is made by `node.services.cluster_routes`, its readers
are `repl.http.routes` and clients in other languages (docs/http.md).
"""

from __future__ import annotations

from typing import Final, Protocol

from isthmus.node.client_api.conditional import IF_NONE_MATCH, parse_tags
from isthmus.node.http.application import HttpApplication, Request
from isthmus.node.http.responses import JSON, Headers, Reply
from isthmus.repl.http import routes
from isthmus.repl.model.conditions import ANY

LEADER: Final = routes.LEADER.lower().encode()
"""The header with HOST:PORT at which the leader serves clients, in answers to requests that were forwarded to it."""


class ClientAddresses(Protocol):
    """The addresses at which nodes serve clients."""

    def address(self, node: str) -> str:
        """HOST:PORT; empty when unknown."""


class _NoAddresses:
    def address(self, node: str) -> str:  # noqa: ARG002
        return ""


NO_ADDRESSES: Final[ClientAddresses] = _NoAddresses()


def leader_headers(addresses: ClientAddresses, node: str) -> Headers:
    """The headers that name `node` as the leader; none when its address is not known."""
    address = addresses.address(node)
    return [(LEADER, address.encode("ascii", "replace"))] if address else []


class RouteDocument(Protocol):
    """The routes of the cluster (`node.services.cluster_routes.ClusterRoutes`)."""

    def current(self) -> tuple[str, bytes]:
        """(tag, JSON): both change together."""


def add_cluster_routes(api: HttpApplication, document: RouteDocument) -> None:
    """Add the route."""

    async def answer(request: Request) -> Reply:
        """The leaders of all partitions and their addresses."""
        tag, body = document.current()
        headers: Headers = [(b"etag", f'"{tag}"'.encode()), (b"cache-control", b"no-cache")]
        known = request.header(IF_NONE_MATCH)
        if known is not None:
            tags = parse_tags(IF_NONE_MATCH, known)
            if tags is ANY or tag in tags or f"W/{tag}" in tags:
                return Reply(304, headers)
        return Reply(200, [*headers, (b"content-type", JSON)], body)

    api.router.add("GET", routes.PATH, answer)
