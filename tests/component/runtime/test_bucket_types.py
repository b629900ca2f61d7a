"""A bucket type that is made while a cluster serves: made over HTTP, used at once at every node."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from isthmus.config.settings import NodeSettings, Settings
from isthmus.node.admin_api.bucket_types import BucketTypesAdmin
from isthmus.node.http.application import HttpApplication
from isthmus.node.http.durations import RequestDurations
from isthmus.node.services.live_options import EffectiveOptions
from isthmus.node.services.properties import PropertyService
from isthmus.repl.controller.bucket_properties import PropertyCache
from isthmus.repl.controller.placement import parse_replica_map
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.requests import WriteRequest
from tests.support.open_access import EVERYBODY
from tests.support.runtime_cluster import Cluster, Node

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]


async def ask(member: Node, method: str, path: str, wish: Any = None) -> tuple[int, Any]:
    """The answer of a node's admin API."""
    face = HttpApplication(EVERYBODY, RequestDurations())
    settings = Settings(NodeSettings(member.node, "east", Path("data")))
    controller, time = member.controller, member.runtime.time
    book = PropertyCache(member.metastore)
    properties = PropertyService(book, member.metastore, time, partitions=controller, key_limit_bytes=1_000)
    node = SimpleNamespace(controller=controller, options=EffectiveOptions(settings), time=time, properties=properties)
    BucketTypesAdmin(node, face.router)  # type: ignore[arg-type]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"" if wish is None else json.dumps(wish).encode(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await face({"method": method, "raw_path": path.encode(), "headers": [], "query_string": b""}, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], json.loads(body) if sent[0]["status"] < 400 else body.decode()


async def test_a_new_bucket_type_is_used_at_once_at_every_node(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """As soon as the answer arrives, every node accepts writes to the new type, and reads those of other nodes."""

    async with start_cluster(tmp_path, partitions=2) as t:
        path = "/admin/bucket-types/notes"
        wish = {"partition_count": 3, "replication_factor": 2, "min_isr": 2, "by": "ann"}
        status, plan = await ask(t.members["n2"], "POST", path, {**wish, "dry_run": True})
        assert (status, plan["outcome"], plan["online"]) == (200, "valid", 0)
        status, made = await ask(t.members["n2"], "POST", path, wish)
        assert (status, made["outcome"], made["online"]) == (200, "created", 3)
        assert made["partitions"] == plan["partitions"]
        for node, member in t.members.items():
            key = Key(b"notes", b"b", node.encode())
            await member.coordinator.write(WriteRequest(key, Content(b"v")))
        for node in t.members:
            for member in t.members.values():
                assert await member.coordinator.get(Key(b"notes", b"b", node.encode())) is not None
                assert await member.coordinator.get(Key(b"default", b"b", node.encode())) is None
        status, listed = await ask(t.members["n3"], "GET", "/admin/bucket-types")
        assert [(row["bucket_type"], row["partition_count"], row["min_isr"]) for row in listed["bucket_types"]] == [
            ("default", 2, 2),
            ("notes", 3, 2),
        ]
        status, shown = await ask(t.members["n3"], "GET", path)
        map_of = [{"id": each["id"], "replicas": each["replicas"]} for each in shown["partitions"]]
        assert parse_replica_map(json.dumps({"partitions": map_of}))
        status, again = await ask(t.members["n1"], "POST", path, {"partitions": map_of})
        assert (status, again["outcome"]) == (200, "exists")


async def test_an_impossible_bucket_type_is_refused_over_http(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """The answer has the error's status, and a message with a valid form."""

    async with start_cluster(tmp_path) as t:
        member = t.members["n1"]
        both = {"partition_count": 1, "partitions": [{"id": 0, "replicas": [1]}]}
        for name, wish, status, says in (
            ("-x", {"partition_count": 1, "replication_factor": 1}, 400, "the bucket type"),
            ("x", {"partition_count": 1}, 400, "are needed"),
            ("x", {"partition_count": 5_000, "replication_factor": 1}, 400, "from 1 to 1024"),
            ("x", {"partition_count": 1, "replication_factor": 5}, 400, "needs as many nodes"),
            ("x", {"partition_count": 1, "replication_factor": 1, "placement": "any"}, 400, "placement is one of"),
            ("x", {"partition_count": 1, "replication_factor": 1, "min_isr": "two"}, 400, "replication.min.isr"),
            ("x", both, 400, "give no count or factor"),
            ("x", {"partitions": [{"id": 1, "replicas": [1]}]}, 400, "ids start at 0"),
            ("x", {"partitions": [{"id": 0, "replicas": [77]}]}, 400, "node id 77"),
            ("default", {"partition_count": 2, "replication_factor": 3}, 409, "neither can be changed"),
        ):
            found, answered = await ask(member, "POST", f"/admin/bucket-types/{name}", wish)
            assert (found, says in answered) == (status, True), (wish, answered)
        found, answered = await ask(member, "GET", "/admin/bucket-types/defalt")
        assert (found, 'did you mean "default"?' in answered) == (404, True)
