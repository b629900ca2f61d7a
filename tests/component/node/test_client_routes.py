"""Clients of three nodes: requests reach the leader of their key directly, and follow it when it moves."""

from __future__ import annotations

import asyncio
import http.client
from collections import Counter
from pathlib import Path

from isthmus.node.cli.object_client import ClusterClient
from isthmus.repl.http.routes import Routes, parse_routes
from isthmus.repl.model.keys import key_hash
from tests.support.ensemble_nodes import NodeOfEnsemble, three_nodes
from tests.support.waiting import PATIENCE_S, eventually

KEY = (b"default", b"b", b"k")


def exchange(address: str, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one request."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    try:
        body = b"v" if method == "PUT" else None
        connection.request(method, path, body, {"Content-Type": "text/plain", **headers})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


async def routes_of(node: NodeOfEnsemble) -> Routes:
    status, _, body = await asyncio.to_thread(exchange, node.address, "GET", "/cluster/routes")
    assert status == 200
    return parse_routes(body)


def forwarded(nodes: dict[str, NodeOfEnsemble]) -> Counter[str]:
    """Items that each node has forwarded."""
    found: Counter[str] = Counter()
    for node in nodes.values():
        for name, _, value in node.services.coordinator.metrics():
            if name == "isthmus_forwarded_items_total":
                found[node.settings.node.name] += int(value)
    return found


async def test_a_client_reaches_the_leader_and_follows_it(tmp_path: Path) -> None:
    """`isthmus kv` sends each request to the leader, whichever node it is given, and no node forwards it. After the
    leadership has moved, a client with old routes is forwarded once, learns the new leader from the answer, and reaches
    it directly; new routes have a higher version."""

    async with three_nodes(tmp_path) as nodes:
        routes = [await routes_of(node) for node in nodes.values()]
        leader = routes[0].leader(*KEY)
        assert leader is not None
        assert {each.leader(*KEY) for each in routes} == {leader}
        old = next(node for node in nodes.values() if node.address == leader)
        item = ("default", KEY[1], KEY[2], b"v")
        clients = [ClusterClient(f"http://{node.address}") for node in nodes.values()]
        try:
            for count, client in enumerate(clients, 1):
                status, *_ = await asyncio.to_thread(client.item, "/batch/put", item, reads=False)
                assert (status, old.batches()) == (204, count)
            assert sum(node.batches() for node in nodes.values()) == 3
            assert not +forwarded(nodes)

            new = next(node for node in nodes.values() if node is not old)
            services = old.services
            partition = services.coordinator.routes.partition_of(KEY[0], key_hash(*KEY[1:]))
            place = services.runtime.partitions[partition]
            services.runtime.hand_over(place, new.settings.node.name, 10_000)
            await eventually(lambda: new.services.runtime.partitions[place.id].replica.ready, "the leader has moved")
            await eventually(
                lambda: all(
                    node.services.coordinator.routes.leader(place.id) == new.settings.node.name
                    for node in nodes.values()
                ),
                "every node knows it",
            )
            client = clients[0]
            for _ in range(2):
                status, *_ = await asyncio.to_thread(client.item, "/batch/put", item, reads=False)
                assert status == 204
                assert forwarded(nodes).total() == 1
            assert new.batches() == 1
        finally:
            for client in clients:
                client.close()
        later = await routes_of(old)
        assert later.leader(*KEY) == new.address
        assert later.version > routes[0].version


async def test_answers_of_nodes_that_do_not_lead_name_the_leader(tmp_path: Path) -> None:
    """Answers to GET, HEAD, PUT and DELETE have the address of the leader's client listener, except at the leader
    itself. Pollers of the routes get 304 until something has changed."""

    async with three_nodes(tmp_path) as nodes:
        leader = (await routes_of(nodes["n1"])).leader(*KEY)
        path = f"/buckets/{KEY[1].decode()}/keys/{KEY[2].decode()}"
        for node in nodes.values():
            wanted = None if node.address == leader else leader
            for method, status in (
                ("GET", 404),
                ("PUT", 204),
                ("GET", 200),
                ("HEAD", 200),
                ("DELETE", 204),
                ("DELETE", 404),
            ):
                found, headers, _ = await asyncio.to_thread(exchange, node.address, method, path)
                assert (found, headers.get("x-isthmus-leader")) == (status, wanted), (node.settings.node.name, method)
            _, headers, _ = await asyncio.to_thread(exchange, node.address, "GET", "/cluster/routes")
            same = await asyncio.to_thread(
                lambda at, tag: exchange(at, "GET", "/cluster/routes", **{"If-None-Match": tag}),
                node.address,
                headers["etag"],
            )
            assert (same[0], same[2]) == (304, b"")
