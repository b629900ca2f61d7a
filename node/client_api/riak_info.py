"""Riak's resource list, statistics and preflist, of this node and its cluster.

Riak's clients detect features by them: the list has only paths that are answered here, and `riak_kv_version` is the
newest release of Riak whose key-value requests are all answered. Statistics come from records, registrations and
counts, as this node last read them; a number without an equivalent here is left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from isthmus.node.http.accept import prefers
from isthmus.node.http.application import HttpApplication, Request, json_reply
from isthmus.node.http.responses import JSON, Headers, Reply, RequestRefused
from isthmus.node.observability.version import program_version
from isthmus.node.services.container import NodeServices
from isthmus.repl.controller.bucket_types import DEFAULT_TYPE
from isthmus.repl.coordinator.routing import UnknownBucketType
from isthmus.repl.model.errors import NotReady
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE, Key, key_hash, partition_index
from isthmus.repl.model.record import PartitionRecord, Registration
from isthmus.repl.telemetry import Sample

RIAK_KV_VERSION: Final = "3.0.13"
"""The release that introduced X-Riak-If-Not-Modified; later ones added no key-value requests."""

RESOURCES: Final[Mapping[str, str]] = {
    "riak_kv_wm_aaefold": "/aaebucketlist",
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
"""Riak's name of a resource -> the start of its path, as Riak's clients read it: they put names behind it."""

LINKED: Final[Mapping[str, str]] = {name: path for name, path in RESOURCES.items() if path != "/types"}
"""Those in the header `Link`. Clients that read the header build paths on `/buckets` and `/riak`; those that look for
bucket types read the JSON. `/types` alone is no resource, so that no link leads there."""

PATHS: Final[Mapping[str, str]] = {
    "riak_kv_wm_aaefold": "/aaebucketlist",
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
"""Riak's name of a resource -> a path that works as it is, or a template with names in braces, for people."""

WELCOME: Final = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Isthmus</title></head><body>
<h1>Isthmus</h1>
<p>A replicated key-value store. This is a node's listener for applications, which speaks the HTTP API of Riak KV:</p>
<pre>
curl -X PUT URL/buckets/towns/keys/corinth -H 'Content-Type: text/plain' -d 'on the isthmus'
curl URL/buckets/towns/keys/corinth
</pre>
<ul>
<li><a href="/readyz">/readyz</a>: whether the node serves</li>
<li><a href="/openapi.json">/openapi.json</a>: this API as OpenAPI</li>
<li>the dashboard is on the node's other listener, <code>admin</code>: <code>isthmus dashboard</code> opens it</li>
</ul>
"""
"""What a browser shows of `/`, before the list that Riak's clients read."""

_HTML: Final = b"text/html; charset=utf-8"


class RiakInfo(Protocol):
    """Information about the cluster in Riak's terms."""

    def stats(self) -> Mapping[str, object]:
        """Numbers of this node and its cluster, by Riak's names."""

    def preflist(self, key: Key) -> Sequence[Mapping[str, object]]:
        """The replicas of a key, the leader first: `partition`, `node`, `primary`. Raises UnknownBucketType,
        NotReady."""

    def check_type(self, bucket_type: bytes) -> None:
        """Raise UnknownBucketType, with the known bucket types, or NotReady unless the bucket type exists."""


class RiakInfoRoutes:
    """GET /, /stats and .../keys/K/preflist."""

    def __init__(self, riak_info: RiakInfo, api: HttpApplication, *, key_limit_bytes: int) -> None:
        self._riak_info = riak_info
        self._key_limit = key_limit_bytes
        api.router.add("GET", "/", self._resources)
        api.router.add("GET", "/stats", self._stats)
        for prefix in ("", "/types/{type}"):
            api.router.add("GET", prefix + "/buckets/{bucket}/keys/{key}/preflist", self._preflist)

    async def _resources(self, request: Request) -> Reply:
        """The resources: JSON where Accept prefers it, else a page of links."""
        links = ", ".join(f'<{path}>; rel="{name}"' for name, path in LINKED.items())
        headers: Headers = [(b"link", links.encode()), (b"vary", b"Accept")]
        if prefers(request.header(b"accept"), b"application/json", b"text/html"):
            return Reply(200, [*headers, (b"content-type", JSON)], json.dumps(RESOURCES).encode())
        items = "".join(
            f"<li>{name}: <code>{path}</code></li>" if "{" in path else f'<li><a href="{path}">{name}</a></li>'
            for name, path in PATHS.items()
        )
        page = f"{WELCOME}<h2>Resources, by Riak's names</h2><ul>{items}</ul></body></html>\n"
        return Reply(200, [*headers, (b"content-type", _HTML)], page.encode())

    async def _stats(self, _request: Request) -> Reply:
        """Statistics."""
        return json_reply({"riak_kv_version": RIAK_KV_VERSION, **self._riak_info.stats()})

    async def _preflist(self, request: Request) -> Reply:
        """The replicas of a key, which need not exist."""
        params = request.params
        key = Key(params.get("type", DEFAULT_BUCKET_TYPE), params["bucket"], params["key"])
        if not all(0 < len(name) <= self._key_limit for name in (key.bucket, key.key)):
            raise RequestRefused(
                400, "bad-key", f"bucket and key must have 1 to {self._key_limit} bytes (limits.key_size)"
            )
        return json_reply({"preflist": list(self._riak_info.preflist(key))})


Records = Mapping[int, PartitionRecord]


class RiakView:
    """See RiakInfo; answers from a node's services."""

    def __init__(self, services: NodeServices) -> None:
        self._services = services

    def stats(self) -> Mapping[str, object]:
        """See RiakInfo.stats."""
        controller = self._services.controller
        name = self._services.settings.node.name
        return stats_of(name, controller.records, controller.registrations, self._services.coordinator.metrics())

    def preflist(self, key: Key) -> Sequence[Mapping[str, object]]:
        """See RiakInfo.preflist."""
        return preflist_of(key, self._services.controller.records)

    def check_type(self, bucket_type: bytes) -> None:
        """See RiakInfo.check_type."""
        self._services.coordinator.routes.check(bucket_type)


def stats_of(
    node: str, records: Records, registrations: Mapping[str, Registration], samples: Iterable[Sample]
) -> dict[str, object]:
    """Riak's statistics with an equivalent here, by its names. `samples`: the coordinator's."""
    asked = {labels["kind"]: count for name, labels, count in samples if name == "isthmus_requests_total"}
    members = sorted({*registrations, *(name for record in records.values() for name in record.replicas)})
    leads = Counter(record.leader.node for record in records.values() if record.leader is not None)
    owned = ",".join(f"{{'{name}',{leads[name]}}}" for name in members)
    return {
        "isthmus_version": program_version(),
        "nodename": node,
        "ring_members": members,
        "connected_nodes": [name for name in members if name in registrations and name != node],
        "ring_num_partitions": len(records),
        "ring_creation_size": sum(record.bucket_type == DEFAULT_TYPE for record in records.values()),
        "ring_ownership": f"[{owned}]",
        "riak_kv_vnodes_running": sum(node in record.replicas for record in records.values()),
        "storage_backend": "leveldb",
        "node_gets_total": asked["get"],
        "node_puts_total": asked["put"],
    }


def preflist_of(key: Key, records: Records) -> Sequence[dict[str, object]]:
    """The replicas of a key's partition, the leader first. Raises UnknownBucketType, NotReady."""
    wanted = [record for record in records.values() if record.bucket_type.encode() == key.bucket_type]
    if not records:
        raise NotReady("the partitions are not known here yet")
    if not wanted:
        raise UnknownBucketType(f"bucket type {key.bucket_type.decode(errors='replace')!r} does not exist")
    index = partition_index(key_hash(key.bucket, key.key), wanted[0].partition_count)
    for record in wanted:
        if record.index == index:
            led_by = None if record.leader is None else record.leader.node
            holders = sorted(record.replicas, key=lambda name: name != led_by)
            return [{"partition": record.partition, "node": name, "primary": True} for name in holders]
    raise NotReady(f"partition {index} of the bucket type is not known here yet")
