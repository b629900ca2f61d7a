"""GET /admin/explain of a cluster: nodes that do not answer or are down are named, and their facts are missing."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from isthmus.node.admin_api.application import AdminApi
from isthmus.node.services.queue_query import KEY, ExplainKey
from isthmus.repl.model.keys import Key
from tests.support.node_status import FakeNodeStatus
from tests.support.open_access import EVERYBODY
from tests.support.query_links import QueryLinks


class Knowledge:
    """The answers of one node for any key, and the keys it was asked for."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.asked: list[Key] = []

    async def respond(self, request: ExplainKey) -> dict[str, Any]:
        """See Responder."""
        self.asked.append(request.named_key())
        return {"leads": self.node == "n2", "partition": 1, "segment": 5, "leader": "n2", "object": None, "queues": [],
                "lower": [], "reap": None, "compared": [], "dead_letters": []}  # fmt: skip


class Cluster:
    """Nodes n1 to n3, of which n1 gets the requests and n2 leads; n4 is down."""

    def __init__(self) -> None:
        self.links = QueryLinks()
        self.known = {name: Knowledge(name) for name in ("n1", "n2", "n3")}
        for name, knowledge in self.known.items():
            self.links.add(name).serve(KEY, knowledge)
        services = SimpleNamespace(
            query=self.links.nodes["n1"],
            membership=SimpleNamespace(live_nodes=lambda: {*self.known}, known_nodes=lambda: {*self.known, "n4"}),
            coordinator=SimpleNamespace(routes=SimpleNamespace(check=lambda _type: None)),
            fullsync=SimpleNamespace(scheduler=SimpleNamespace(peers={})),
            sink=SimpleNamespace(sources=list),
            queue_acts=SimpleNamespace(owners=dict),
            settings=SimpleNamespace(node=SimpleNamespace(cluster="east")),
            cluster_uuid=b"u" * 16,
            time=SimpleNamespace(wall_ms=lambda: 5),
        )
        self.api = AdminApi(services, FakeNodeStatus(), EVERYBODY)  # type: ignore[arg-type]

    async def get(self, query: str) -> dict[str, Any]:
        """The answer."""
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"method": "GET", "raw_path": b"/admin/explain", "headers": [], "query_string": query.encode()}
        await self.api(scope, receive, send)
        found: dict[str, Any] = json.loads(b"".join(message.get("body", b"") for message in sent[1:]))
        return found


async def test_nodes_without_an_answer_are_named() -> None:
    """The state is known as long as the leader answers; otherwise it is unknown, with the reason."""
    cluster = Cluster()
    cluster.links.cut.add("n3")
    answer = await cluster.get("bucket=b&key=k")
    assert (answer["known"], answer["unknown"]) == (True, {"n3": "not-ready: timed out", "n4": "not alive"})
    cluster.links.cut.add("n2")
    answer = await cluster.get("bucket=b&key=k")
    assert (answer["known"], answer["reason"]) == (False, "the leader, n2, does not answer")
    assert answer["unknown"] == {"n2": "not-ready: timed out", "n3": "not-ready: timed out", "n4": "not alive"}


async def test_names_of_any_bytes_are_asked_for() -> None:
    """Bucket and key are percent-encoded within the query, which encodes them once more; a plus is a plus."""
    cluster = Cluster()
    await cluster.get("type=t&bucket=a%252Fb&key=%25FF%2500%2B%253Cb%253E")
    assert cluster.known["n2"].asked == [Key(b"t", b"a/b", b"\xff\x00+<b>")]
