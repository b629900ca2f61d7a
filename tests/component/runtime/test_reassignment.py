"""Replicas are moved while clients write: ordered over HTTP, carried out by the active controller."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from isthmus.node.admin_api.reassignments import ReassignmentsAdmin
from isthmus.node.http.application import HttpApplication
from isthmus.node.http.durations import RequestDurations
from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.replica_query import REPLICAS, ReplicaResponder
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.requests import WriteRequest
from tests.support.memory_links import is_entries
from tests.support.open_access import EVERYBODY
from tests.support.runtime_cluster import Cluster, Node, eventually

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]


async def ask(member: Node, method: str, path: str, wish: Any = None) -> tuple[int, Any]:
    """The answer of a node's admin API."""
    face = HttpApplication(EVERYBODY, RequestDurations())
    query = ClusterQuery(member.node, member.links)
    query.serve(REPLICAS, ReplicaResponder(member.runtime))
    services = SimpleNamespace(controller=member.controller, time=member.runtime.time, query=query)
    ReassignmentsAdmin(services, face.router)  # type: ignore[arg-type]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"" if wish is None else json.dumps(wish).encode(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await face({"method": method, "raw_path": path.encode(), "headers": [], "query_string": b""}, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], json.loads(body) if sent[0]["status"] < 400 else body.decode()


def key(name: bytes) -> Key:
    return Key(b"default", b"b", name)


def replica_counts(member: Node) -> Counter[str]:
    """How many partitions each node is to hold, as a node has read it."""
    return Counter(node for record in member.controller.records.values() for node in record.replicas)


def all_know(cluster: Cluster, nodes: int) -> bool:
    """True when every node, so also the one that decides, has read this many registrations."""
    return all(len(member.controller.registrations) == nodes for member in cluster.members.values())


def reassignment_finished(member: Node) -> bool:
    """True when nothing is ordered any more, and no partition changes."""
    records = member.controller.records.values()
    return not member.controller.placement.orders and not any(r.adding or r.removing for r in records)


@asynccontextmanager
async def writing(*members: Node) -> AsyncIterator[list[bytes]]:
    """Clients of these nodes write all the while; no write fails. Gives the names that were acknowledged."""
    written: list[bytes] = []
    stop = asyncio.Event()

    async def client(member: Node) -> None:
        n = 0
        while not stop.is_set():
            name = b"%s-%d" % (member.node.encode(), n)
            await member.coordinator.write(WriteRequest(key(name), Content(b"v")))
            written.append(name)
            n += 1

    clients = [asyncio.create_task(client(member)) for member in members]
    try:
        yield written
    finally:
        stop.set()
        await asyncio.gather(*clients)


async def all_read(members: list[Node], written: list[bytes]) -> None:
    """Every acknowledged write is read from any node."""
    for member in members:
        for name in written[:: max(1, len(written) // 30)]:
            assert await member.coordinator.get(key(name)) is not None, name


async def test_a_cluster_grows_to_five_nodes_and_back_under_load(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """Two nodes are added and get their share, then are drained, stopped and removed, while clients of the others
    write on: no write fails, all that was acknowledged is read afterwards."""

    async with start_cluster(tmp_path, partitions=5) as t:
        one, two, three = t.members.values()
        async with writing(one, two, three) as written:
            for name in ("n4", "n5"):
                await t.open(name)
            await eventually(lambda: all_know(t, 5))
            status, plan = await ask(two, "POST", "/admin/moves", {"kind": "spread", "dry_run": True})
            assert (status, plan["outcome"], plan["copies"]) == (200, "planned", 6)
            wish = {"kind": "spread", "plan": plan["plan"], "by": "ann"}
            status, ordered = await ask(two, "POST", "/admin/moves", wish)
            assert (status, ordered["order"], ordered["partitions"]) == (200, 1, plan["partitions"])
            await eventually(lambda: reassignment_finished(two))
            assert set(replica_counts(two).values()) == {3}
            status, refused = await ask(one, "POST", "/admin/nodes/n5/remove", {})
            assert (status, "holds 3 replicas" in refused) == (409, True)
            status, drained = await ask(three, "POST", "/admin/nodes/drain", {"nodes": ["n4", "n5"], "by": "bob"})
            assert (status, drained["order"]) == (200, 2)
            await eventually(lambda: reassignment_finished(three))
            assert replica_counts(three) == {"n1": 5, "n2": 5, "n3": 5}
            for name in ("n4", "n5"):
                status, refused = await ask(one, "POST", f"/admin/nodes/{name}/remove", {})
                assert (status, "stop it first" in refused) == (409, True)
                await t.kill(name)
                await eventually(lambda: all_know(t, len(t.members)))
                assert (await ask(one, "POST", f"/admin/nodes/{name}/remove", {}))[0] == 200
        await eventually(lambda: not one.controller.placement.drained)
        _, listed = await ask(one, "GET", "/admin/nodes")
        assert [node["name"] for node in listed["nodes"]] == ["n1", "n2", "n3"]
        _, shown = await ask(one, "GET", "/admin/moves")
        assert [(e["order"], e["outcome"], e["by"]) for e in shown["ended"]] == [
            (2, "done", "bob"),
            (1, "done", "ann"),
        ]
        await all_read([one, two, three], written)


async def test_a_killed_controller_is_followed_by_one_that_goes_on(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """While a newcomer cannot catch up the controller dies: the next one waits as well, names the newcomer, and
    finishes the order when it is reachable again."""

    async with start_cluster(tmp_path, partitions=2) as t:
        await t.open("n4")
        first = await eventually(lambda: next((m for m in t.members.values() if m.controller.decides), None))
        others = [member for member in t.members.values() if member is not first and member.node != "n4"]
        await eventually(lambda: all_know(t, 4))
        for n in range(20):
            await first.coordinator.write(WriteRequest(key(b"%d" % n), Content(b"v")))
        t.network.lost = lambda _sender, to, _partition, message: to == "n4" and is_entries(message)
        gone = first.node
        wish = {"kind": "replace", "nodes": [gone, "n4"]}
        status, ordered = await ask(others[0], "POST", "/admin/moves", wish)
        assert (status, ordered["copies"]) == (200, 2)
        await eventually(lambda: all(r.adding == ("n4",) for r in others[0].controller.records.values()))

        async def copying() -> bool:
            _, shown = await ask(others[1], "GET", "/admin/moves")
            (order,) = shown["orders"] or [{"stages": {}}]
            return order["stages"] == {"copying": 2} and all(
                row["copies"][0]["node"] == "n4" and row["reason"] for row in order["partitions"]
            )

        await eventually(copying, "both partitions are shown as copied to n4, with a reason")
        await t.kill(gone)
        await eventually(lambda: any(member.controller.decides for member in others))
        await eventually(lambda: all(r.leader is not None for r in others[0].controller.records.values()))
        assert others[0].controller.placement.order(1) is not None
        t.network.lost = lambda _sender, _to, _partition, _message: False
        await eventually(lambda: reassignment_finished(others[0]))
        assert all(set(r.replicas) == {"n4", *(h.node for h in others)} for r in others[0].controller.records.values())
        await all_read(others, [b"%d" % n for n in range(20)])


async def test_an_order_that_is_cancelled_goes_back(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """The newcomer that could not catch up is removed from the replicas, and no other node is; a plan made for another
    state, and one for a partition in an order, are refused."""

    async with start_cluster(tmp_path) as t:
        await t.open("n4")
        member = t.members["n2"]
        await eventually(lambda: all_know(t, 4))
        await member.coordinator.write(WriteRequest(key(b"a"), Content(b"v")))
        t.network.lost = lambda _sender, to, _partition, message: to == "n4" and is_entries(message)
        path = "/admin/bucket-types/default/replication-factor"
        _, plan = await ask(member, "POST", path, {"replication_factor": 4, "dry_run": True})
        status, said = await ask(member, "POST", path, {"replication_factor": 2, "plan": plan["plan"]})
        assert (status, "changed since" in said) == (409, True)
        status, ordered = await ask(member, "POST", path, {"replication_factor": 4, "plan": plan["plan"]})
        assert (status, ordered["order"]) == (200, 1)
        await eventually(lambda: member.controller.records[0].adding == ("n4",))
        assert member.controller.records[0].effective_min_isr == 2
        status, said = await ask(member, "POST", path, {"replication_factor": 3})
        assert (status, "is in order 1" in said) == (409, True)
        status, said = await ask(member, "POST", "/admin/moves/cancel", {"order": 9})
        assert (status, "there is no order 9: under way are 1" in said) == (404, True)
        status, cancelled = await ask(member, "POST", "/admin/moves/cancel", {"by": "bob"})
        assert (status, cancelled["order"]) == (200, 1)
        await eventually(lambda: reassignment_finished(member))
        assert sorted(member.controller.records[0].replicas) == ["n1", "n2", "n3"]
        assert member.controller.placement.ended[0].outcome == "cancelled"
        await member.coordinator.write(WriteRequest(key(b"b"), Content(b"v")))


async def test_an_impossible_reassignment_is_refused_with_a_reason(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """Too few nodes, unknown nodes and bucket types, files that place unknown partitions: each is refused with a valid
    form."""

    async with start_cluster(tmp_path) as t:
        member = t.members["n1"]
        places = [{"id": 0, "replicas": ["n1", "n2", "n3"]}]
        factor = "/admin/bucket-types/default/replication-factor"
        for path, wish, status, says in (
            (factor, {"replication_factor": 4}, 409, "needs as many nodes: 3 live"),
            (factor, {"replication_factor": 9}, 400, "from 1 to 7"),
            ("/admin/bucket-types/x/replication-factor", {"replication_factor": 2}, 404, "there are default"),
            (
                "/admin/nodes/drain",
                {"nodes": ["n1"]},
                409,
                "needs as many nodes: 2 without n1 live and are not drained (n2, n3)",
            ),
            ("/admin/nodes/drain", {"nodes": ["n9"]}, 404, "no node n9 is known; there are n1, n2, n3"),
            ("/admin/nodes/drain", {"nodes": ["n1"], "undo": True}, 404, "not drained"),
            ("/admin/nodes/drain", {}, 400, "one node at least"),
            ("/admin/nodes/n9/remove", {}, 404, "no node 'n9' is known"),
            ("/admin/moves", {"kind": "replace", "nodes": ["n1"]}, 400, "must be two"),
            ("/admin/moves", {"kind": "replace", "nodes": ["n1", "n2"]}, 409, "n2 holds partition"),
            ("/admin/moves", {"kind": "file", "partitions": [{"id": 0, "replicas": ["n8"]}]}, 400, "n8"),
            ("/admin/moves", {"kind": "file", "partitions": [{"id": 0, "replicas": [77]}]}, 400, "node id 77"),
            (
                "/admin/moves",
                {"kind": "file", "partitions": [*places, {"id": 1, "replicas": [1, 2, 3]}]},
                409,
                "has 1",
            ),
            ("/admin/moves", {"kind": "drain"}, 400, "kind is one of"),
            ("/admin/moves/cancel", {}, 404, "nothing is ordered"),
        ):
            found, said = await ask(member, "POST", path, wish)
            assert (found, says in str(said)) == (status, True), (path, wish, said)
        found, same = await ask(member, "POST", "/admin/moves", {"kind": "file", "partitions": places})
        assert (found, same["outcome"], same["order"]) == (200, "nothing to move", None)


async def test_a_file_places_replicas_by_id_or_name(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """The map that `bucket-type show` prints can be changed and ordered; ordered again it moves nothing."""

    async with start_cluster(tmp_path, partitions=2) as t:
        await t.open("n4")
        member = t.members["n1"]
        await eventually(lambda: all_know(t, 4))
        places = [{"id": 0, "replicas": [4, "n1", 2]}, {"id": 1, "replicas": ["n3", "n4", "n2"]}]
        wish = {"kind": "file", "bucket_type": "default", "partitions": places}
        status, made = await ask(member, "POST", "/admin/moves", wish)
        assert (status, made["order"], made["copies"]) == (200, 1, 2)
        await eventually(lambda: reassignment_finished(member))
        assert set(member.controller.records[0].replicas) == {"n1", "n2", "n4"}
        assert set(member.controller.records[1].replicas) == {"n2", "n3", "n4"}
        status, again = await ask(member, "POST", "/admin/moves", wish)
        assert (status, again["outcome"]) == (200, "nothing to move")
