"""Full-sync's admin paths: mistyped values are refused, and nothing is stored; any node answers for all."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from isthmus.aae.exchange.exchange import ExchangeVerdict
from isthmus.aae.scheduling.alarm import Alarm
from isthmus.aae.scheduling.check import PeerChecker
from isthmus.aae.scheduling.history import CheckResult, FullSyncHistory, PeerHistory
from isthmus.aae.scheduling.schedule import CheckKind, TimeRange
from isthmus.aae.scheduling.scheduler import CheckCluster, CheckScheduler
from isthmus.config.settings import FullSyncSettings
from isthmus.node.admin_api.fullsync import FullSyncAdmin
from isthmus.node.nouns.fullsync import FullSyncOfNode
from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.fullsync_query import (
    FULLSYNC_ORDER,
    FULLSYNC_RESULTS,
    FULLSYNC_STATUS,
    BeginChecks,
    FullSyncOrderResponder,
    FullSyncPart,
    FullSyncResultsResponder,
)
from isthmus.node.services.fullsync_status import FullSyncStatus
from isthmus.repl.clock import SystemTime
from isthmus.repl.model.errors import BadInput, NotReady
from tests.support.fullsync_fakes import FakeMembers, FakeProofs

WEST = FullSyncSettings("west", "http://10.0.0.7:8098", "to-west")


class IdleChecker(PeerChecker):
    """Checks nothing."""

    def __init__(self) -> None:
        self.named = {}

    @property
    def cluster(self) -> bytes | None:
        """See Checker."""
        return None

    def close(self) -> None:
        """See Checker."""


class SilentAlarm(Alarm):
    """Never rings."""

    def __init__(self) -> None:
        pass

    def set_at(self, wall_ms: int, call: Any) -> None:
        """See Alarm."""

    def stop(self) -> None:
        """See Alarm."""


def manager_in(directory: Path) -> CheckScheduler:
    """A manager that has nothing to do."""
    directory.mkdir(exist_ok=True)
    return CheckScheduler(
        [WEST],
        CheckCluster("n1", FakeMembers(), FakeMembers(), lambda _: 0),
        checkers=SimpleNamespace(open=lambda _: IdleChecker()),  # type: ignore[arg-type]
        history=FullSyncHistory(directory, 0),
        alarm=SilentAlarm(),
        proofs=FakeProofs(),
        time=SystemTime(),
    )


NO_CHECKS: Final = FullSyncOfNode(
    node="n1", actor="full-sync", state="idle", reason="", sent=[], running=None, peers=[], removed=[], left_out=[]
)


class NoChecks:
    """Answers FULLSYNC_STATUS with nothing."""

    async def respond(self, _part: FullSyncPart) -> FullSyncOfNode:
        """See Responder."""
        return NO_CHECKS


class Wires:
    """Links to nodes whose queries are in this process; the others are unreachable."""

    def __init__(self, nodes: dict[str, ClusterQuery]) -> None:
        self.nodes = nodes

    async def request(self, node: str, method: str, body: bytes, _timeout_ms: int) -> bytes:
        """See NodeLinks."""
        if node not in self.nodes:
            raise NotReady(f"no connection to node {node}")
        return await self.nodes[node].request_handlers()[method](node, body)


def services_of(node: str, manager: CheckScheduler, others: dict[str, ClusterQuery], *down: str) -> Any:
    """The parts of a node that the routes need. `others` are its live fellows, `down` are unreachable ones."""
    live = {node, *others}
    fullsync = SimpleNamespace(scheduler=manager)
    shown = FullSyncStatus(fullsync, SimpleNamespace(), node, SystemTime(), lambda _: ())  # type: ignore[arg-type]
    query = ClusterQuery(node, Wires(others))
    query.serve(FULLSYNC_STATUS, NoChecks())
    query.serve(FULLSYNC_ORDER, FullSyncOrderResponder(manager, SystemTime()))
    query.serve(FULLSYNC_RESULTS, FullSyncResultsResponder(shown))
    return SimpleNamespace(
        fullsync=fullsync, settings=SimpleNamespace(node=SimpleNamespace(name=node)), query=query,
        fullsync_status=SimpleNamespace(checks=lambda *_: NO_CHECKS), time=SystemTime(),
        membership=SimpleNamespace(live_nodes=lambda: live, known_nodes=lambda: live | {*down}),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("set-range", {"peer": "west", "since_ms": 0, "before_ms": 10**30}),
        ("set-range", {"peer": "west", "since_ms": 0, "before_ms": 1, "bucket": "\ud800"}),
        ("set-range", {"peer": "west", "since_ms": 0, "before_ms": 1, "bucket": "%F", "encoding": "percent"}),
        ("set-range", {"peer": "west", "since_ms": 0, "before_ms": 1, "bucket": "b", "encoding": "hex"}),
        ("suspend", {"peer": "west", "reason": "\ud800"}),
        ("suspend", {"by": "\udfff"}),
        ("run", {"peer": "west", "kind": "none"}),
        ("run", {"peer": "west", "kind": "all", "node": 1}),
        ("?results=" + 5_000 * "9", None),
        ("/results?limit=0", None),
        ("/results?limit=1001", None),
    ],
)
async def test_a_mistyped_value_is_refused_and_nothing_is_stored(
    path: str, body: dict[str, Any] | None, client_api: Any, send_request: Any, tmp_path: Path
) -> None:
    """Times out of range, malformed texts, and a check of nothing are refused with 400; the stored state is unchanged
    and can still be saved."""
    manager = manager_in(tmp_path)
    manager.start()

    FullSyncAdmin(services_of("n1", manager, {}), client_api.app)

    async def whole() -> Any:
        if body is None:
            answer = await send_request(client_api.app, "GET", f"/admin/fullsync{path}", b"")
        else:
            answer = await send_request(client_api.app, "POST", f"/admin/fullsync/{path}", json.dumps(body).encode())
        await manager.suspend("west", "ann", "")
        await manager.resume("west")
        await manager.stop()
        return answer

    assert (await whole()).status == 400
    again = FullSyncHistory(tmp_path, 0)
    again.load()
    assert again.peer("west") == PeerHistory(manager.peers["west"].history.schedule_state, queue="to-west")
    assert again.peer("west").schedule_state.learned is None


def result(began_ms: int) -> CheckResult:
    """A result of a check that began then."""
    return CheckResult(
        "default", CheckKind.ALL, began_ms, 0.1, ExchangeVerdict.IN_SYNC, "", True, 0, 0, {}, 0, 0, 0, 0, ""
    )


async def test_a_range_and_left_out_checks_are_set_on_the_node_that_is_named(
    client_api: Any, send_request: Any, tmp_path: Path
) -> None:
    """The node passes the request on and answers with the peers of the other one; its own state is unchanged. An
    unknown node is refused with a list of the known ones; a node that is down is not ready."""
    here, there = manager_in(tmp_path / "n1"), manager_in(tmp_path / "n2")
    for manager in (here, there):
        manager.start()
    other = services_of("n2", there, {})
    FullSyncAdmin(services_of("n1", here, {"n2": other.query}, "n3"), client_api.app)

    async def act(path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        answer = await send_request(client_api.app, "POST", f"/admin/fullsync/{path}", json.dumps(body).encode())
        return answer.status, json.loads(answer.body) if answer.body[:1] == b"{" else answer.body.decode()

    def states(manager: CheckScheduler) -> tuple[Any, int]:
        state = manager.peer("west").history.schedule_state
        return state.learned, state.suppressed

    status, answer = await act("set-range", peer="west", node="n2", since_ms=5, before_ms=9, bucket="<b>")
    assert (status, answer["acted"]) == (200, {"n2": ["west"]})
    assert (states(here), states(there)) == ((None, 0), (TimeRange(5, 9, b"<b>"), 0))
    for encoded, bucket in (("%FF", b"\xff"), ("%5Cxff", rb"\xff")):  # the same sign for people, and two buckets
        times = {"since_ms": 5, "before_ms": 9, "bucket": encoded, "encoding": "percent"}
        assert (await act("set-range", peer="west", node="n2", **times))[0] == 200
        assert states(there) == (TimeRange(5, 9, bucket), 0)
    assert (await act("suppress-auto", node="n2", count=3))[0] == 200
    assert (await act("clear-range", node="n2"))[1]["acted"] == {"n2": ["west"]}
    assert (states(here), states(there)) == ((None, 0), (None, 3))
    assert (await act("clear-range"))[1]["acted"] == {"n1": ["west"]}
    status, error = await act("run", kind="all", node="n9")
    assert (status, "there are n1, n2, n3" in str(error)) == (404, True)
    assert (await act("run", kind="all", node="n3"))[0] == 503
    status, error = await act("run", kind="all", node="n2", peer="north")
    assert (status, "there is no full-sync 'north' on this node" in str(error)) == (404, True)
    for manager in (here, there):
        await manager.stop()


async def test_a_check_of_nothing_is_refused_by_the_node_that_would_begin_it(tmp_path: Path) -> None:
    """The kind "none" is sent to the other node, and begins nothing."""
    manager = manager_in(tmp_path)
    manager.start()
    query = services_of("n1", manager, {}).query
    with pytest.raises(BadInput, match="compares nothing"):
        await query.ask_one(FULLSYNC_ORDER, BeginChecks("west", CheckKind.NONE, "ann"), "n1")
    assert manager.running is None
    await manager.stop()


async def test_results_of_all_nodes_are_joined_the_newest_first(
    client_api: Any, send_request: Any, tmp_path: Path
) -> None:
    """Each result has its node and peer, up to the limit; a node without an answer is named with the reason."""
    here, there = manager_in(tmp_path / "n1"), manager_in(tmp_path / "n2")
    for manager, began in ((here, (10, 30)), (there, (20, 40))):
        manager.start()
        manager.peer("west").history.results.extend(map(result, began))
    other = services_of("n2", there, {})
    FullSyncAdmin(services_of("n1", here, {"n2": other.query}, "n3"), client_api.app)

    async def listed(query: str) -> tuple[list[tuple[str, str, int]], dict[str, str]]:
        answer = await send_request(client_api.app, "GET", f"/admin/fullsync/results{query}", b"")
        found = json.loads(answer.body)
        return [(one["node"], one["peer"], one["began_ms"]) for one in found["results"]], found["unknown"]

    rows, unknown = await listed("?limit=3")
    assert rows == [("n2", "west", 40), ("n1", "west", 30), ("n2", "west", 20)]
    assert (list(unknown), "not registered" in unknown["n3"]) == (["n3"], True)
    assert (await listed("?node=n1")) == ([("n1", "west", 30), ("n1", "west", 10)], {})
    assert (await listed("?peer=north"))[0] == []
    for manager in (here, there):
        await manager.stop()
