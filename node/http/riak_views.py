"""What Riak's clients look at before they work: the resource list, statistics, and who holds a key.

Clients detect features by them: the list names what is answered here and nothing else, and `riak_kv_version` is the
newest release of Riak whose key-value requests are all answered. What is told comes from above (`Sights`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from node.http.asgi import JSON, Face, Request, json_reply
from node.http.object_headers import prefers
from node.http.statuses import Headers, Refused, Reply
from repl.model.keys import DEFAULT_BUCKET_TYPE, Key

RIAK_KV_VERSION: Final = "3.0.13"
"""The release that brought X-Riak-If-Not-Modified; later ones added nothing to the key-value requests."""

RESOURCES: Final[Mapping[str, str]] = {
    "riak_kv_wm_bucket_type": "/types",
    "riak_kv_wm_buckets": "/buckets",
    "riak_kv_wm_keylist": "/buckets",
    "riak_kv_wm_object": "/buckets",
    "riak_kv_wm_ping": "/ping",
    "riak_kv_wm_preflist": "/buckets",
    "riak_kv_wm_props": "/buckets",
    "riak_kv_wm_raw": "/riak",
    "riak_kv_wm_stats": "/stats",
}
"""Riak's name of a resource -> where it begins: what Riak's clients read."""

PATHS: Final[Mapping[str, str]] = {
    "riak_kv_wm_bucket_type": "/types/{type}/props",
    "riak_kv_wm_buckets": "/buckets?buckets=true",
    "riak_kv_wm_keylist": "/buckets/{bucket}/keys?keys=true",
    "riak_kv_wm_object": "/buckets/{bucket}/keys/{key}",
    "riak_kv_wm_ping": "/ping",
    "riak_kv_wm_preflist": "/buckets/{bucket}/keys/{key}/preflist",
    "riak_kv_wm_props": "/buckets/{bucket}/props",
    "riak_kv_wm_raw": "/riak/{bucket}/{key}",
    "riak_kv_wm_stats": "/stats",
}
"""The same for people: a path that answers as it stands, or a template with names in braces."""

_HTML: Final = b"text/html; charset=utf-8"


class Sights(Protocol):
    """What a node knows of its cluster."""

    def stats(self) -> Mapping[str, object]:
        """Numbers of this node and its cluster, by Riak's names."""

    def preflist(self, key: Key) -> Sequence[Mapping[str, object]]:
        """Who holds a key, the leader first: `partition`, `node`, `primary`. Raises UnknownBucketType, NotReady."""

    def check_type(self, bucket_type: bytes) -> None:
        """Raises UnknownBucketType, with those that there are, or NotReady."""


class RiakViews:
    """GET /, /stats and .../keys/K/preflist."""

    def __init__(self, sights: Sights, face: Face, *, key_limit_bytes: int) -> None:
        self._sights = sights
        self._key_limit = key_limit_bytes
        face.router.add("GET", "/", self._resources)
        face.router.add("GET", "/stats", self._stats)
        for prefix in ("", "/types/{type}"):
            face.router.add("GET", prefix + "/buckets/{bucket}/keys/{key}/preflist", self._preflist)

    async def _resources(self, request: Request) -> Reply:
        """What is answered here: JSON where Accept prefers it, else a page of links."""
        links = ", ".join(f'<{path}>; rel="{name}"' for name, path in RESOURCES.items())
        headers: Headers = [(b"link", links.encode()), (b"vary", b"Accept")]
        if prefers(request.header(b"accept"), b"application/json", b"text/html"):
            return Reply(200, [*headers, (b"content-type", JSON)], json.dumps(RESOURCES).encode())
        items = "".join(
            f"<li>{name}: <code>{path}</code></li>" if "{" in path else f'<li><a href="{path}">{name}</a></li>'
            for name, path in PATHS.items()
        )
        page = f"<html><body><ul>{items}</ul></body></html>\n"
        return Reply(200, [*headers, (b"content-type", _HTML)], page.encode())

    async def _stats(self, _request: Request) -> Reply:
        """Statistics."""
        return json_reply({"riak_kv_version": RIAK_KV_VERSION, **self._sights.stats()})

    async def _preflist(self, request: Request) -> Reply:
        """Who holds a key, or would: it need not be there, but there must be such a name."""
        params = request.params
        key = Key(params.get("type", DEFAULT_BUCKET_TYPE), params["bucket"], params["key"])
        if not all(0 < len(name) <= self._key_limit for name in (key.bucket, key.key)):
            raise Refused(400, "bad-key", f"bucket and key must have 1 to {self._key_limit} bytes (limits.key_size)")
        return json_reply({"preflist": list(self._sights.preflist(key))})
