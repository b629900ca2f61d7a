"""The admin face's properties: of bucket types and of buckets, shown with where each comes from, set and taken back.

A bucket stands in the path percent-encoded, as at the client face. What is judged and kept is
`node.services.properties`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from isthmus.node.admin_api.body import acting_user, flag, read_body
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router, encode_segment
from isthmus.node.services.container import NodeServices
from isthmus.node.services.properties import check_names
from isthmus.repl.controller.bucket_properties import PropertyScope

SET_KEYS: Final = frozenset({"props", "by", "dry_run"})
UNSET_KEYS: Final = frozenset({"names", "by", "dry_run"})


class PropertiesAdmin:
    """Routes over the properties of a running node's cluster."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("GET", "/admin/buckets", self.listed)
        for path in ("/admin/bucket-types/{type}/properties", "/admin/buckets/{type}/{bucket}/properties"):
            router.add("GET", path, self.shown)
            router.add("POST", path + "/set", self.set)
            router.add("POST", path + "/unset", self.unset)

    async def listed(self, _request: Request) -> Reply:
        """Every bucket that has properties of its own, and what they are."""
        places = self._services.properties.book.settings.places
        found = sorted((p for p in places if p.bucket is not None), key=lambda p: (p.bucket_type, p.bucket or b""))
        return json_reply(
            {"buckets": [{**_named(place), "props": {n: s.value for n, s in places[place].items()}} for place in found]}
        )

    async def shown(self, request: Request) -> Reply:
        """What counts for one place."""
        return self._answer(self._place(request), "shown")

    async def set(self, request: Request) -> Reply:
        """Set some, or say what would be set."""
        place = self._place(request)
        wish = await read_body(request, SET_KEYS)
        props = wish.get("props")
        if not isinstance(props, dict) or not props:
            raise RequestRefused(400, "bad-json", 'props must be an object, for instance {"allow_mult": false}')
        if flag(wish, "dry_run"):
            self._services.properties.judged(props, self._services.properties.factor(place))
            return self._answer(place, "would be set")
        await self._services.properties.set(place, props, acting_user(wish))
        return self._answer(place, "set")

    async def unset(self, request: Request) -> Reply:
        """Take some back, or all with no names."""
        place = self._place(request)
        wish = await read_body(request, UNSET_KEYS)
        names = wish.get("names")
        if names is None:
            names = []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise RequestRefused(400, "bad-json", 'names must be a list of texts, for instance ["allow_mult"]')
        if flag(wish, "dry_run"):
            check_names(names)
            return self._answer(place, "would be unset")
        gone = await self._services.properties.unset(place, names)
        return self._answer(place, "unset" if gone else "was not set")

    def _answer(self, place: PropertyScope, outcome: str) -> Reply:
        return json_reply({"outcome": outcome, **_named(place), "properties": self._services.properties.rows(place)})

    def _place(self, request: Request) -> PropertyScope:
        return self._services.properties.place(request.params["type"], request.params.get("bucket"))


def _named(place: PropertyScope) -> dict[str, Any]:
    bucket = None if place.bucket is None else encode_segment(place.bucket).decode("ascii")
    return {"bucket_type": place.bucket_type, "bucket": bucket}
