"""The admin listener's answers about a cluster, and the assignment of a placement."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.node.admin_api.application import AdminApi
from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.findings import Code, ProbeState, staleness_facts
from isthmus.node.services.replica_query import REPLICAS, ReplicaResponder
from isthmus.repl.clock import SystemTime
from isthmus.repl.controller.bucket_types import PlacementDiffers
from isthmus.repl.controller.placement import BadReplicaMap, replica_map_document
from isthmus.repl.controller.reassignment_orders import Placement
from isthmus.repl.controller.unreadable_documents import UnreadableDocuments
from isthmus.repl.metastore.port import SessionState
from isthmus.repl.model.errors import NotReady, OutcomeUnknown
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration
from tests.support.node_status import FakeNodeStatus
from tests.support.open_access import EVERYBODY


class FakeController:
    """A controller that has read the given state, and answers assignments with the given outcome."""

    def __init__(self) -> None:
        record = PartitionRecord(
            0,
            "default",
            0,
            1,
            ("n1", "n2"),
            3,
            PartitionStatus.ONLINE,
            Incarnation("n1", 7),
            isr=frozenset({Member("n1", 1)}),
        )
        self.records = {0: record}
        self.registrations = {"n1": Registration("n1", 7, True, id=1)}
        self.placement = Placement()
        self.unread = UnreadableDocuments()
        self.waiting = ""
        self.controller = "n1"
        self.read_at_ms: int | None = 5
        self.outdated_why = ""
        self.metastore = SimpleNamespace(rolled_back="")
        self.outcome: str | Exception = "created"
        self.assigned: list[tuple[Any, ...]] = []

    async def assign(self, bucket_type: str, replica_map: Any, *, validate_only: bool) -> str:
        """As `Controller.assign`."""
        self.assigned.append((bucket_type, replica_map, validate_only))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class FakeLeaderships:
    """The controller node's answers about leaderships; None: it does not answer."""

    def __init__(self, status: dict[str, Any] | None) -> None:
        self.told = status
        self.asked: list[str] = []

    async def status(self, timeout_ms: int = 0) -> dict[str, Any]:
        """As `LeaderBalanceApi.status`."""
        if self.told is None:
            raise NotReady(f"no node controls the cluster ({timeout_ms})")
        return self.told

    async def balance(self, by: str) -> dict[str, Any]:
        """As `LeaderBalanceApi.balance`."""
        self.asked.append(by)
        return await self.status()


def an_admin(
    controller: FakeController,
    session: SessionState = SessionState.CONNECTED,
    leader_balance: FakeLeaderships | None = None,
) -> AdminApi:
    """The admin API of node n1."""
    actor = SimpleNamespace(
        status=lambda: {"actor": "x", "state": "idle", "reason": ""},
        statuses=lambda: [{"actor": "x", "state": "idle", "reason": ""}],
        failing=lambda: "",
        passed_over=lambda: "nothing is fetched from a node of west (http://w:1): why",
    )

    async def request(node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        raise NotReady(f"{node} {method} {body!r} {timeout_ms}")

    query = ClusterQuery("n1", SimpleNamespace(request=request))
    query.serve(REPLICAS, ReplicaResponder(SimpleNamespace(partitions={}, time=SystemTime())))  # type: ignore[arg-type]
    services = SimpleNamespace(
        controller=controller,
        query=query,
        leader_balance=leader_balance or FakeLeaderships(None),
        settings=SimpleNamespace(node=SimpleNamespace(name="n1", cluster="east")),
        cluster_uuid=b"u" * 16,
        session=session,
        registrar=SimpleNamespace(session_id=7, why=""),
        started_ms=1,
        queues=actor,
        sink=actor,
        fullsync=actor,
        credentials=SimpleNamespace(problems=list, urgent=list),
    )

    return AdminApi(services, FakeNodeStatus(), EVERYBODY)  # type: ignore[arg-type]


async def call(admin: AdminApi, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    """One request; its status and JSON."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    path, _, query = path.partition("?")
    scope = {"method": method, "raw_path": path.encode(), "headers": [], "query_string": query.encode()}
    await admin(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))


async def test_the_cluster_is_shown_with_what_is_amiss() -> None:
    """It has the names that other programs read (partitions.online, partitions.total), gone nodes, and problems."""
    status, answer = await call(an_admin(FakeController()), "GET", "/admin/cluster")
    assert status == 200
    assert (answer["partitions"]["online"], answer["partitions"]["total"]) == (1, 1)
    assert (answer["controller"], answer["node"], answer["under_replicated"]) == ("n1", "n1", [0])
    assert [(node["name"], node["state"]) for node in answer["nodes"]] == [("n1", "live"), ("n2", "gone")]
    assert len(answer["problems"]) == 2
    assert answer["silent"] == []
    controller = FakeController()
    controller.registrations["n2"] = Registration("n2", 8, True, id=2)
    _, answer = await call(an_admin(controller), "GET", "/admin/cluster")
    assert answer["silent"] == ["n2"], "it lives and did not answer"


MOVING = {
    "state": "leadership-balancing",
    "reason": "1 done, 2 under way, 3 to go",
    "automatic": True,
    "imbalance": 3,
    "plan": [{"partition": 4, "from": "n1", "to": "n2"}],
    "run": None,
}


async def test_the_state_of_the_cluster_is_a_word_and_why() -> None:
    """On any node, the state reports moves of leaderships; otherwise problems, if there are any; otherwise it is
    online."""
    controller = FakeController()
    answer = (await call(an_admin(controller), "GET", "/admin/cluster"))[1]
    assert (answer["state"], answer["balancing"]) == ("degraded", None)
    assert answer["state_reason"] == answer["problems"][0]
    answer = (await call(an_admin(controller, leader_balance=FakeLeaderships(MOVING)), "GET", "/admin/cluster"))[1]
    assert (answer["state"], answer["state_reason"]) == ("leadership-balancing", "1 done, 2 under way, 3 to go")
    assert answer["balancing"]["imbalance"] == 3
    controller.registrations["n2"] = Registration("n2", 8, True, id=2)
    controller.records[0] = replace(controller.records[0], isr=frozenset({Member("n1", 1), Member("n2", 2)}))
    answer = (await call(an_admin(controller), "GET", "/admin/cluster"))[1]
    assert (answer["state"], answer["state_reason"]) == ("online", "")


async def test_leaderships_are_shown_and_moved_when_asked() -> None:
    """A dry run requests nothing; otherwise the operator's name is passed on. An impossible request is 503, a malformed
    one 400."""
    told = FakeLeaderships(MOVING)
    admin = an_admin(FakeController(), leader_balance=told)
    assert await call(admin, "GET", "/admin/leaders") == (200, MOVING)
    assert await call(admin, "POST", "/admin/leaders/balance", {"dry_run": True}) == (200, MOVING)
    assert told.asked == []
    assert await call(admin, "POST", "/admin/leaders/balance", {"by": "ann@ops"}) == (200, MOVING)
    assert told.asked == ["ann@ops"]
    wrong: list[Any] = [{"dry_run": "yes"}, {"by": 5}, {"what": 1}, []]
    for body in wrong:
        assert (await call(admin, "POST", "/admin/leaders/balance", body))[0] == 400
    assert told.asked == ["ann@ops"]
    status, answer = await call(an_admin(FakeController()), "GET", "/admin/leaders")
    assert (status, answer["reason"]) == (503, "not-ready")


async def test_possibly_stale_answers_are_marked() -> None:
    """Without a session, or before the first read, a cluster is never reported as healthy."""
    controller = FakeController()
    controller.registrations["n2"] = Registration("n2", 8, True, id=2)
    controller.records[0] = replace(controller.records[0], isr=frozenset({Member("n1", 1), Member("n2", 2)}))
    assert (await call(an_admin(controller), "GET", "/admin/cluster"))[1]["problems"] == []
    (doubt,) = (await call(an_admin(controller, SessionState.SUSPENDED), "GET", "/admin/cluster"))[1]["problems"]
    assert doubt == "this node's session with the metastore is suspended: what is shown may be old"
    controller.metastore.rolled_back = "metastore-rollback: ZooKeeper at z:1 is at zxid 0x1, this process has seen 0x9"
    (doubt,) = (await call(an_admin(controller, SessionState.SUSPENDED), "GET", "/admin/cluster"))[1]["problems"]
    assert "is suspended: metastore-rollback: ZooKeeper at z:1 is at zxid 0x1" in doubt, "the cause, where it is known"
    assert (await call(an_admin(controller), "GET", "/admin/cluster"))[1]["problems"] == []
    controller.outdated_why = "metastore-rollback: /isthmus/p/0 is at version 2, this process has seen version 3"
    answer = (await call(an_admin(controller), "GET", "/admin/cluster"))[1]
    assert answer["problems"] == [f"{controller.outdated_why}; what is shown is of before (docs/runbooks.md)"]
    assert answer["doubts"] == answer["problems"]
    (fact,) = staleness_facts(answer)
    assert (fact.state, fact.code) == (ProbeState.UNKNOWN, Code.METASTORE)
    (row,) = (await call(an_admin(controller), "GET", "/admin/partitions"))[1]["partitions"]
    assert row["reason"] == f"nothing is decided, its record cannot be read: {controller.outdated_why}"
    controller.read_at_ms = None
    assert (await call(an_admin(controller), "GET", "/admin/cluster"))[1]["problems"] == [
        "this node has not read the metastore yet"
    ]


async def test_an_unreadable_record_is_reported() -> None:
    """It is reported as a problem, and as the reason of its partition, with its path."""
    controller = FakeController()
    controller.unread.learn({"/p/0": "/isthmus/p/0 in the metastore: not a partition record"}, controller.records)
    admin = an_admin(controller)
    answer = (await call(admin, "GET", "/admin/cluster"))[1]
    assert answer["state"] == "degraded"
    assert [each for each in answer["problems"] if "/isthmus/p/0 in the metastore" in each] == answer["unreadable"]
    assert len(answer["unreadable"]) == 1
    (row,) = (await call(admin, "GET", "/admin/partitions"))[1]["partitions"]
    assert row["reason"].startswith("nothing is decided, its record cannot be read: /isthmus/p/0")


async def test_partitions_are_listed_by_bucket_type() -> None:
    """The listing has all partitions, or those of one type; the error for an unknown type lists the existing ones."""
    admin = an_admin(FakeController())
    assert await call(admin, "GET", "/admin/partitions") == await call(
        admin, "GET", "/admin/partitions?bucket_type=default"
    )
    status, answer = await call(admin, "GET", "/admin/partitions")
    assert (status, [each["reason"] for each in answer["partitions"]]) == (
        200,
        ["n2 is out of sync: the node is gone"],
    )
    status, answer = await call(admin, "GET", "/admin/partitions?bucket_type=maps")
    assert (status, answer["reason"]) == (404, "unknown-bucket-type")
    assert "there are default" in answer["error"]


@pytest.mark.parametrize(("validate_only", "outcome"), [(False, "created"), (True, "valid"), (False, "exists")])
async def test_an_assignment_is_passed_on(validate_only: bool, outcome: str) -> None:
    """The complete map is validated and passed on, and the outcome is returned."""
    controller = FakeController()
    controller.outcome = outcome
    body = {**replica_map_document(((0, 1), (1, 0))), "bucket_type": "t", "validate_only": validate_only}
    status, answer = await call(an_admin(controller), "POST", "/admin/partitions/assign", body)
    assert (status, answer) == (200, {"outcome": outcome, "bucket_type": "t", "partitions": 2})
    assert controller.assigned == [("t", ((0, 1), (1, 0)), validate_only)]


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        (b"{", "bad-json", "not JSON"),
        ([], "bad-json", "must be a JSON object"),
        ({"partitions": [], "bucket": "t"}, "bad-json", "'bucket' in the body is unknown"),
        ({"partitions": [], "validate_only": 1}, "bad-json", "validate_only must be true or false"),
        ({"partitions": [], "bucket_type": "a/b"}, "bad-json", "bucket_type: "),
        ({"partitions": [], "bucket_type": 7}, "bad-json", "bucket_type must be a text"),
        ({}, "bad-replica-map", "partitions is not a list"),
        ({"partitions": [{"id": 0, "replicas": [0, 0]}]}, "bad-replica-map", "partitions[0].replicas[1]"),
        (b" " * 1_000_001, "too-large", "1000000"),
    ],
)
async def test_a_wrong_assignment_is_refused_before_anything_is_asked(body: Any, reason: str, words: str) -> None:
    """The error names the key, its value, and what is valid."""
    controller = FakeController()
    status, answer = await call(an_admin(controller), "POST", "/admin/partitions/assign", body)
    assert (status, answer["reason"]) == (413 if reason == "too-large" else 400, reason)
    assert words in answer["error"]
    assert controller.assigned == []


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (PlacementDiffers("x"), 409, "placement-differs"),
        (BadReplicaMap(["x"]), 400, "bad-replica-map"),
        (NotReady("x"), 503, "not-ready"),
        (OutcomeUnknown("x"), 504, "outcome-unknown"),
    ],
)
async def test_a_refused_assignment_has_its_status(error: Exception, status: int, reason: str) -> None:
    """Covered are an existing assignment, dead nodes, an unavailable metastore, and an unknown outcome."""
    controller = FakeController()
    controller.outcome = error
    found, answer = await call(
        an_admin(controller), "POST", "/admin/partitions/assign", {"partitions": [{"id": 0, "replicas": [0]}]}
    )
    assert (found, answer["reason"]) == (status, reason)
