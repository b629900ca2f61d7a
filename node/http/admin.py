"""The admin face: what operators, the command line and Prometheus ask one node about its cluster.

JSON in and out; every state has a reason, every unknown value is null. Errors are {"error", "reason"}. Nothing here
decides: it shows what the parts say and passes on what an operator wants. docs/http.md lists the paths.
"""

from __future__ import annotations

import getpass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from node.http.asgi import Face, Request, json_reply
from node.http.health import add_health
from node.http.statuses import Refused, Reply, refusal
from repl.isr.effects import Role
from repl.model.errors import IsthmusError

if TYPE_CHECKING:
    from node.daemon import Node


def program_version() -> str:
    """The installed version; "unknown" when run from a tree that was never installed."""
    try:
        return version("isthmus")
    except PackageNotFoundError:
        return "unknown"


class Admin(Face):
    """Routes over the parts of a running node."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self._node = node
        add_health(self.router, ready=node.ready, metrics=node.metrics.render)
        router = self.router
        router.add("GET", "/admin/cluster", self.cluster)
        router.add("GET", "/admin/partitions", self.partitions)
        router.add("GET", "/admin/queues", self.queues)
        router.add("POST", "/admin/queues/{queue}/suspend", self.queue_suspend)
        router.add("POST", "/admin/queues/{queue}/resume", self.queue_resume)
        router.add("GET", "/admin/sink", self.sink)
        router.add("GET", "/admin/sink/dead-letters", self.sink_dead_letters)
        router.add("POST", "/admin/sink/suspend", self.sink_suspend)
        router.add("POST", "/admin/sink/resume", self.sink_resume)

    def refusal(self, error: IsthmusError) -> Reply:
        """See Face.refusal; here as JSON."""
        plain = refusal(error)
        reply = json_reply({"error": plain.body.decode().strip(), "reason": error.reason}, plain.status)
        return reply._replace(headers=[*reply.headers, *(h for h in plain.headers if h[0] != b"content-type")])

    # -- the cluster --------------------------------------------------------------------------------------

    async def cluster(self, _request: Request) -> Reply:
        """Who is there, who leads, what is not as it should be."""
        node = self._node
        partitions = list(node.runtime.partitions.values())
        ready = sum(p.replica.ready for p in partitions)
        serves, why_not = node.ready()
        under = [
            p.id
            for p in partitions
            if p.replica.record is not None and len(p.replica.record.isr) < len(p.replica.record.replicas)
        ]
        return json_reply(
            {
                "cluster": node.settings.node.cluster,
                "cluster_uuid": node.cluster_uuid.hex(),
                "node": node.settings.node.name,
                "version": program_version(),
                "controller": node.settings.node.name,
                "metastore": node.session.value,
                "started_ms": node.started_ms,
                "partitions": {"total": len(partitions), "online": ready},
                "nodes": [
                    {
                        "name": node.settings.node.name,
                        "state": "serving" if serves else "not ready",
                        "reason": why_not,
                        "http": node.http_url,
                        "admin": node.admin_url,
                        "leaders": sum(p.replica.role is Role.LEADER for p in partitions),
                    }
                ],
                "actors": [node.queues.status(), node.sink.status(), node.fullsync.status()],
                "under_replicated": under,
            }
        )

    async def partitions(self, _request: Request) -> Reply:
        """Every partition with its leader, replicas, offsets and the reason of its state."""
        rows: list[dict[str, Any]] = []
        for partition in sorted(self._node.runtime.partitions.values(), key=lambda p: p.id):
            replica = partition.replica
            record = replica.record
            rows.append(
                {
                    "partition": partition.id,
                    "bucket_type": partition.bucket_type.decode(),
                    "index": partition.index,
                    "leader": record.leader.node if record is not None and record.leader is not None else None,
                    "replicas": list(record.replicas) if record is not None else None,
                    "isr": sorted(m.node for m in record.isr) if record is not None else None,
                    "epoch": record.epoch if record is not None else None,
                    "leo": replica.leo,
                    "hw": replica.hw,
                    "applied": replica.applied,
                    "lag": replica.leo - replica.applied,
                    "status": record.status.value if record is not None else None,
                    "reason": replica.reason,
                }
            )
        return json_reply({"partitions": rows})

    # -- queues and sink ------------------------------------------------------------------------------------

    async def queues(self, _request: Request) -> Reply:
        """Every queue of this node."""
        return json_reply({"queues": await self._node.queues.listing()})

    async def queue_suspend(self, request: Request) -> Reply:
        """Stop giving out references of a queue; its cursor waits."""
        wish = await self._wish(request)
        what = wish.get("what") or "serving"
        if what != "serving":
            raise Refused(400, "bad-input", f'what is {what!r}; this version suspends "serving"')
        await self._node.queues.suspend(request.text("queue"), what, self._by(wish), str(wish.get("reason") or ""))
        return await self.queues(request)

    async def queue_resume(self, request: Request) -> Reply:
        """Give out references again."""
        wish = await self._wish(request)
        await self._node.queues.resume(request.text("queue"), "serving", self._by(wish), str(wish.get("reason") or ""))
        return await self.queues(request)

    async def sink(self, _request: Request) -> Reply:
        """Every (queue, peer) that this node fetches from."""
        return json_reply({"sinks": self._node.sink.listing()})

    async def sink_dead_letters(self, _request: Request) -> Reply:
        """The newest changes that this node's sink refused for good, and why."""
        return json_reply({"dead_letters": self._node.sink.dead_letters()})

    async def sink_suspend(self, request: Request) -> Reply:
        """Start no new fetch of a queue, a peer, or all."""
        wish = await self._wish(request)
        await self._node.sink.suspend(
            self._name(wish, "queue"), self._name(wish, "peer"), self._by(wish), str(wish.get("reason") or "")
        )
        return await self.sink(request)

    async def sink_resume(self, request: Request) -> Reply:
        """Fetch again."""
        wish = await self._wish(request)
        await self._node.sink.resume(self._name(wish, "queue"), self._name(wish, "peer"))
        return await self.sink(request)

    @staticmethod
    async def _wish(request: Request) -> dict[str, Any]:
        wish = await request.json()
        if wish is None:
            return {}
        if not isinstance(wish, dict):
            raise Refused(400, "bad-json", 'the body must be a JSON object, for instance {"reason": "maintenance"}')
        return wish

    @staticmethod
    def _by(wish: dict[str, Any]) -> str:
        return str(wish.get("by") or getpass.getuser())

    @staticmethod
    def _name(wish: dict[str, Any], name: str) -> str | None:
        value = wish.get(name)
        if value is not None and not isinstance(value, str):
            raise Refused(400, "bad-json", f"{name} must be a text or null")
        return value
