"""Operators change full-sync at run time: on all nodes, also on those that are down, over restarts, and back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from isthmus.aae.scheduling import operator_documents
from isthmus.aae.scheduling.operator_documents import (
    PEERS,
    PEERS_PATH,
    SETTINGS,
    SETTINGS_PATH,
    SUSPENSIONS,
    SUSPENSIONS_PATH,
    FullSyncAuditInfo,
    FullSyncSuspension,
    OperatorDocuments,
    PeerOverride,
    decode_peers,
    decode_suspensions,
    effective_peers,
    suspension_for,
)
from isthmus.aae.scheduling.schedule import HOUR_MS, CheckKind
from isthmus.config.settings import Address, FullSyncSettings
from isthmus.node.admin_api.fullsync import FullSyncAdmin
from isthmus.node.nouns.fullsync import FullSyncOfNode
from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.fullsync_query import (
    FULLSYNC_ORDER,
    FULLSYNC_REFRESH,
    FULLSYNC_STATUS,
    FULLSYNC_SUSPEND,
    FullSyncOrderResponder,
    FullSyncRefreshResponder,
    FullSyncStatusResponder,
    FullSyncSuspendResponder,
)
from isthmus.repl.metastore.port import Versioned
from isthmus.repl.model.errors import BadInput, CodecError, PeerFault
from tests.support.earlier_program import register_earlier, register_present
from tests.support.fullsync_fakes import FakeAccess
from tests.support.memory_client_api import ask, make_client_api
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore
from tests.unit.aae.scheduling.scheduler.test_checks import (
    START,
    WEST,
    SchedulerFixture,
    ended,
    operator_view,
    struct_view,
    wait_until_running,
)

pytestmark = pytest.mark.virtual_time

ACT: Final = FullSyncAuditInfo("ann", START, "move")
NORTH: Final = {"urls": "http://10.0.0.9:8098", "queue": "to-north", "auto": 12}


class Node:
    """A node's full-sync, its documents, and its admin listener, beside those of other nodes of one cluster."""

    def __init__(self, cluster: Cluster, name: str, *settings: FullSyncSettings) -> None:
        self.name = name
        self.fixture = SchedulerFixture(cluster.directory / name, *settings, live=list(cluster.names), node=name)
        for other in ("west", "north"):
            self.fixture.checkers.setdefault(other, type(self.fixture.checkers["west"])() if settings else _checker())
        self.metastore = MemoryMetastore(cluster.ensemble)
        self.tokens: dict[str, Path] = {}
        self.documents = OperatorDocuments(self.metastore, self._follow)
        fullsync: Any = SimpleNamespace(scheduler=self.fixture.scheduler, documents=self.documents)
        status: Any = SimpleNamespace(checks=self._own, trees=self._own)
        self.query = ClusterQuery(name, cluster)
        self.query.serve(FULLSYNC_STATUS, FullSyncStatusResponder(status))
        self.query.serve(FULLSYNC_ORDER, FullSyncOrderResponder(self.fixture.scheduler, self.fixture.clock))
        self.query.serve(FULLSYNC_REFRESH, FullSyncRefreshResponder(fullsync))
        self.query.serve(FULLSYNC_SUSPEND, FullSyncSuspendResponder(fullsync))
        listen = SimpleNamespace(http=Address("10.0.0.1", 8098))
        parts = SimpleNamespace(
            fullsync=fullsync,
            settings=SimpleNamespace(node=SimpleNamespace(name=name), listen=listen),
            controller=SimpleNamespace(metastore=self.metastore),
            queues=SimpleNamespace(machines=lambda: {"to-west": None, "to-north": None}),
            membership=SimpleNamespace(
                live_nodes=lambda: {name, *cluster.live}, known_nodes=lambda: set(cluster.names)
            ),
            query=self.query,
            fullsync_status=status,
            time=self.fixture.clock,
        )
        self.client_api = make_client_api()
        FullSyncAdmin(parts, self.client_api.app)  # type: ignore[arg-type]

    def _follow(self) -> None:
        self.fixture.scheduler.apply_documents(self.documents, FakeAccess(self.tokens))

    def _own(self, _results: int = 1) -> FullSyncOfNode:
        return struct_view(self.fixture)

    @property
    def peers(self) -> dict[str, FullSyncSettings]:
        """The peers that the node compares with now."""
        return {name: peer.settings for name, peer in self.fixture.scheduler.peers.items()}

    async def start(self) -> None:
        """As a node does: connect, and read."""
        await self.metastore.start(lambda _: None)
        await self.documents.refresh()

    async def act(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        """An operator's act at this node."""
        answer = await ask(self.client_api.app, "POST", f"/admin/fullsync/{path}", json.dumps(body).encode())
        told = answer.body.decode()
        return answer.status, {"error": told} if answer.status >= 400 else json.loads(told)


def _checker() -> Any:
    from tests.unit.aae.scheduling.scheduler.test_checks import FakeChecker

    return FakeChecker()


class Cluster:
    """Nodes n1, n2, n3; those of `live` have been started."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ensemble = MemoryEnsemble()
        self.names = ("n1", "n2", "n3")
        self.live: dict[str, Node] = {}

    async def start(self, *names: str, settings: Iterable[FullSyncSettings] = (WEST,)) -> list[Node]:
        """Start nodes with these files."""
        for name in names:
            self.live[name] = Node(self, name, *settings)
            await self.live[name].start()
        return [self.live[name] for name in names]

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """As between nodes."""
        assert timeout_ms > 0
        if node not in self.live:
            raise PeerFault("down")
        return await self.live[node].query.request_handlers()[method]("n1", body)


def test_a_nodes_own_entry_counts_before_that_of_all_and_that_before_the_file() -> None:
    """Precedence holds for each key. A value that is invalid on one node leaves its file in force there, with the
    reason; a name that is in no file needs urls and a queue."""
    all_nodes = PeerOverride({"all": 24, "auto": 0, "bucket_types": "a,b"}, by="ann")
    own = PeerOverride({"all": 2}, by="bob")
    entries = {"west": {"*": all_nodes, "n1": own}, "elsewhere": {"*": PeerOverride({"all": 3})}}
    west = replace(WEST, name="west")

    def counts(node: str) -> list[tuple[int, int, str]]:
        found = effective_peers(node, [west], entries, FakeAccess()).peers
        return [(one.settings.all_count, one.settings.auto_count, one.settings.bucket_types) for one in found]

    assert counts("n1") == [(2, 0, "a,b")]
    assert counts("n2") == [(24, 0, "a,b")]
    wrong = effective_peers("n1", [west], {"west": {"*": PeerOverride({"all": 500}), "n2": own}}, FakeAccess())
    assert ([one.settings for one in wrong.peers], list(wrong.faults)) == ([west], ["west"])
    assert "allowed is 0 to 240" in wrong.faults["west"]
    later = effective_peers("n1", [west], {"west": {"*": PeerOverride({"of_a_later_version": 1})}}, FakeAccess())
    assert "cannot be set; these keys can: " in later.faults["west"]
    assert effective_peers("n1", [west], {"west": {"*": PeerOverride({"bidirectional": True})}}, FakeAccess()).faults


def test_a_token_goes_where_a_file_sends_it_and_nowhere_else() -> None:
    """A peer of a file keeps its URLs and cluster, whatever an entry sets; an added peer gets only the token configured
    for its URLs."""
    secret = replace(WEST, token_file=Path("/secret"))
    moved = PeerOverride({"urls": "http://evil:1", "cluster": "evil", "all": 3}, added=True)
    (found,) = effective_peers("n1", [secret], {"west": {"*": moved}}, FakeAccess()).peers
    assert found.settings == replace(secret, all_count=3)
    added = {"north": {"*": PeerOverride(NORTH, added=True, added_ms=5)}}
    for token in (None, Path("/north")):
        (north,) = effective_peers("n1", [], added, FakeAccess({NORTH["urls"]: token} if token else None)).peers
        assert (north.settings.token_file, north.settings.auto_count, north.added_ms) == (token, 12, 5)


def test_a_removed_peer_is_gone_on_its_nodes_and_may_be_added_on_one() -> None:
    """A removal holds on all nodes, also if a file has the peer; a node that adds it again has it."""
    gone = PeerOverride(removed=True, by="ann")
    for entries, names in (
        ({"*": gone}, [[], []]),
        ({"n1": gone}, [[], ["west"]]),
        ({"*": gone, "n1": PeerOverride({"all": 2}, added=True)}, [["west"], []]),
        ({"*": gone, "n1": PeerOverride({"all": 2})}, [[], []]),
    ):
        found = [effective_peers(node, [WEST], {"west": entries}, FakeAccess()) for node in ("n1", "n2")]
        assert [[one.settings.name for one in node.peers] for node in found] == names
        assert [sorted(node.removed) for node in found] == [[] if one else ["west"] for one in names]


def test_unreadable_documents_are_reported() -> None:
    """Malformed documents of any form are refused with an error that names the path."""
    for value in (b"", b"[]", b'{"peers": 3}', b'{"peers": {"a": {"*": {"values": 3}}}}', b"[" * 100_000):
        with pytest.raises(CodecError, match="list of peers"):
            decode_peers(value)
    for value in (b"", b"{}x", b'[{"peer": null}]', b"[3]"):
        with pytest.raises(CodecError, match="list of suspensions"):
            decode_suspensions(value)


async def test_schedule_queue_and_types_are_changed_on_all_running_nodes(tmp_path: Path) -> None:
    """Changes take effect at once on live nodes and on a node that is down once it is back, with operator, time and
    reason; the day's plan continues from now; --default restores the file everywhere."""

    cluster = Cluster(tmp_path)
    one, two = await cluster.start("n1", "n2")
    for node in (one, two):
        await node.fixture.pass_until(START + 2 * HOUR_MS + HOUR_MS // 2)
    values = {"hour": 0, "all": 12, "queue": "to-north", "bucket_types": "a,b"}
    status, answer = await one.act("set", peer="west", values=values, by="ann", reason="move")
    assert (status, answer["acted"], answer["later"]) == (200, {"n1": ["west"], "n2": ["west"]}, ["n3"])
    (row,) = answer["peers"]
    assert (row["origin"], row["wants"], row["queue"], row["bucket_types"]) == (
        "set", {"all": 12}, "to-north", ["a", "b"],
    )  # fmt: skip
    assert row["set"] == [
        {"by": "ann", "at_ms": START + 2 * HOUR_MS + HOUR_MS // 2, "reason": "move", "values": values}
    ]
    (three,) = await cluster.start("n3")
    changed = replace(WEST, hour_count=0, all_count=12, queue="to-north", bucket_types="a,b")
    assert [node.peers for node in (one, two, three)] == [{"west": changed}] * 3
    moments = [at_ms for at_ms, _ in two.fixture.scheduler.upcoming("west")]
    assert moments[0] == START + 2 * HOUR_MS + 2 * HOUR_MS // 3, "a third of a slot of two hours"
    status, answer = await two.act("set", peer="west", node="n3", values={"all": 6})
    assert (status, answer["acted"], three.peers["west"].all_count) == (200, {"n3": ["west"]}, 6)
    assert one.peers["west"].all_count == 12
    await one.act("set", peer="west", values={"all": 3})
    assert [node.peers["west"].all_count for node in (one, two, three)] == [3, 3, 3], "all nodes means all"
    status, _ = await three.act("set", peer="west", default=True)
    assert [node.peers for node in (one, two, three)] == [{"west": WEST}] * 3
    assert (await one.act("set", peer="west", default=True))[0] == 404


async def test_a_peer_is_added_and_removed_while_nodes_run(tmp_path: Path) -> None:
    """It is added on nodes without it in their files, too, and its checks run. After its removal its history is gone,
    and a running check ends first; a peer that is added again under its name begins without history."""

    cluster = Cluster(tmp_path)
    one, two = await cluster.start("n1", "n2", settings=())
    assert one.fixture.alarm.at_ms is None
    status, answer = await one.act("peers/add", peer="north", values=NORTH, by="ann")
    assert (status, answer["acted"]) == (200, {"n1": ["north"], "n2": ["north"]})
    assert (answer["peers"][0]["origin"], two.peers["north"].queue) == ("added", "to-north")
    checker = two.fixture.checkers["north"]
    await two.fixture.pass_until(START + 4 * HOUR_MS)
    assert len(checker.checks) == 2
    assert two.fixture.scheduler.peer("north").history.proven_ms
    gate = checker.gate = asyncio.Event()
    two.fixture.scheduler.begin("north", CheckKind.ALL, "bob")
    await wait_until_running(two.fixture)
    two.fixture.clock.ms += 1
    assert (await two.act("peers/remove", peer="north"))[0] == 200
    assert (one.peers, two.peers) == ({}, {})
    gate.set()
    await ended(two.fixture)
    status, _ = await two.act("peers/add", peer="north", values={**NORTH, "auto": 6})
    assert (status, two.peers["north"].auto_count) == (200, 6)
    history = two.fixture.scheduler.peer("north").history
    assert (history.proven_ms, list(history.results)) == ({}, [])
    assert one.fixture.scheduler.peer("north").plan is not None


async def test_a_peer_of_a_file_is_removed_and_its_file_comes_back(tmp_path: Path) -> None:
    """It is listed as removed, with the operator; a node that starts later does not have it either; --default restores
    it."""

    cluster = Cluster(tmp_path)
    (one,) = await cluster.start("n1")
    await one.act("peers/remove", peer="west", by="ann", reason="gone for good")
    (two,) = await cluster.start("n2")
    assert (one.peers, two.peers) == ({}, {})
    (removed,) = two._own().removed
    assert (removed.name, removed.by, removed.reason) == ("west", "ann", "gone for good")
    assert (await two.act("set", peer="west", values={"all": 3}))[0] == 400
    await two.act("set", peer="west", default=True)
    assert (one.peers, two.peers) == ({"west": WEST}, {"west": WEST})


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("set", {"peer": "wset", "values": {"all": 3}}, 404, "there is no full-sync 'wset'"),
        ("set", {"peer": "west", "values": {"all": 500}}, 400, "all: 500 is out of range; allowed is 0 to 240"),
        ("set", {"peer": "west", "values": {"al": 5}}, 400, "'al' cannot be set; these keys can: "),
        ("set", {"peer": "west", "values": {"queue": "to-nroth"}}, 404, 'did you mean "to-north"'),
        ("set", {"peer": "west", "values": {"bidirectional": True}}, 400, "set peer_queue"),
        ("set", {"peer": "west", "values": {"urls": "http://evil:1"}}, 400, "can only change there"),
        ("set", {"peer": "west", "values": {"token_file": "/etc/passwd"}}, 400, "cannot be set; these keys can: "),
        ("set", {"peer": "west", "values": {"all": 3}, "default": True}, 400, "default alone"),
        ("set", {"peer": "west"}, 400, "default alone"),
        ("set", {"peer": "west", "values": [1]}, 400, "values must be an object"),
        ("set", {"peer": "west", "values": {"all": 3}, "node": "n9"}, 404, "there is no node 'n9'"),
        ("peers/add", {"peer": "west", "values": NORTH}, 400, "there is a full-sync 'west' already"),
        ("peers/add", {"peer": "a b", "values": NORTH}, 400, "is not a name"),
        ("peers/add", {"peer": "north", "values": {"queue": "to-north"}}, 400, "urls and queue are needed"),
        ("peers/add", {"peer": "north", "values": {**NORTH, "urls": "http://10.0.0.1:8098"}}, 400, "this node itself"),
        ("peers/add", {"peer": "north", "values": {**NORTH, "queue": "nowhere"}}, 404, "no such queue"),
        ("peers/remove", {"peer": "north"}, 404, "there is no full-sync 'north'"),
        ("suspend", {"peer": "north"}, 404, "there is no full-sync 'north'"),
        ("suspend", {"node": "n9"}, 404, "there is no node 'n9'"),
    ],
)
async def test_wrong_values_are_refused_with_a_remedy(
    tmp_path: Path, path: str, body: Mapping[str, Any], status: int, words: str
) -> None:
    """And nothing is written."""

    cluster = Cluster(tmp_path)
    (one,) = await cluster.start("n1")
    found, answer = await one.act(path, **body)
    assert (found, words in answer["error"]) == (status, True), answer
    assert [await one.metastore.get(at) for at in (PEERS_PATH, SUSPENSIONS_PATH)] == [None, None]


async def test_a_suspension_holds_for_a_node_that_is_down_when_it_is_ordered(tmp_path: Path) -> None:
    """It is suspended when it is back, over further restarts, also before the metastore is read; if it is resumed while
    the node is down again, its checks are due when it is back."""

    cluster = Cluster(tmp_path)
    (one,) = await cluster.start("n1")
    status, answer = await one.act("suspend", node="n2", by="ann", reason="disk")
    assert (status, answer["acted"], answer["later"]) == (200, {}, ["n2"])
    (two,) = await cluster.start("n2")
    (row,) = operator_view(two.fixture)["peers"]
    assert (row["state"], row["reason"], operator_view(one.fixture)["peers"][0]["state"]) == (
        "suspended", "by ann: disk", "scheduled",
    )  # fmt: skip
    await two.fixture.pass_until(START + 3 * HOUR_MS)
    assert two.fixture.checkers["west"].checks == []
    await two.fixture.scheduler._save()
    again = Node(cluster, "n2", WEST)  # started, and nothing read yet
    assert operator_view(again.fixture)["peers"][0]["state"] == "suspended"
    del cluster.live["n2"]
    assert (await one.act("resume"))[1]["later"] == ["n2", "n3"]
    (back,) = await cluster.start("n2")
    assert operator_view(back.fixture)["peers"][0]["state"] == "scheduled"


async def test_a_remaining_suspension_is_reported(tmp_path: Path) -> None:
    """A node cannot be resumed alone while all are suspended; resuming all ends every suspension, including one that an
    earlier version set on one node alone."""

    cluster = Cluster(tmp_path)
    one, two = await cluster.start("n1", "n2")
    await one.act("suspend", by="ann")
    for wish in ({"node": "n2"}, {"peer": "west"}):
        status, answer = await one.act("resume", **wish)
        assert (status, "still suspended as part of all full-sync (by ann)" in answer["error"]) == (400, True)
    await two.act("suspend", node="n2", by="bob")
    await one.act("resume")
    assert [operator_view(node.fixture)["peers"][0]["state"] for node in (one, two)] == ["scheduled"] * 2
    await two.fixture.scheduler.suspend("west", "old", "")
    await two.documents.refresh()
    assert operator_view(two.fixture)["peers"][0]["state"] == "suspended"
    assert (await one.act("resume", peer="west"))[0] == 200
    assert operator_view(two.fixture)["peers"][0]["state"] == "scheduled"


async def test_an_unreadable_suspension_counts_as_one(tmp_path: Path) -> None:
    """A damaged document suspends a node that never read it, and leaves the state of one that did; a resume without a
    name ends it. A damaged list of peers leaves the last values in force."""

    cluster = Cluster(tmp_path)
    (one,) = await cluster.start("n1")
    await one.act("set", peer="west", values={"all": 3})
    for path in (SUSPENSIONS_PATH, PEERS_PATH):
        found = await one.metastore.get(path)
        await one.metastore.put(path, b"?", None if found is None else found.version)
    await one.documents.refresh()
    assert operator_view(one.fixture)["peers"][0]["state"] == "scheduled"
    assert one.peers["west"].all_count == 3
    (two,) = await cluster.start("n2")
    (row,) = operator_view(two.fixture)["peers"]
    assert (row["state"], SUSPENSIONS_PATH in row["reason"]) == ("suspended", True)
    assert (await one.act("suspend", peer="west"))[0] == 400
    assert (await one.act("resume"))[0] == 200
    assert operator_view(two.fixture)["peers"][0]["state"] == "scheduled"


FORMER_PEERS = (
    b'{"peers": {"west": {"*": {"values": {"all": 3}, "added": false, "removed": false, "added_ms": 0, "by": "ann", '
    b'"at_ms": 5, "reason": "r \\u00e4"}, "e1": {"values": {}, "added": false, "removed": true, "added_ms": 0, '
    b'"by": "bob", "at_ms": 6, "reason": ""}}}}'
)
FORMER_SUSPENSIONS = b'[{"peer": null, "node": "e1", "by": "ann", "at_ms": 5, "reason": "disk"}]'
JOINED = (
    b'{"v":1,"suspensions":[{"peer":null,"node":"e1","by":"ann","at_ms":5,"reason":"disk"},{"peer":"west","node":null,'
    b'"by":"eve","at_ms":7,"reason":""}],"peers":{"peers":{"west":{"*":{"values":{"all":3},"added":false,"removed":false'
    b',"added_ms":0,"by":"ann","at_ms":5,"reason":"r \\u00e4"},"e1":{"values":{},"added":false,"removed":true,'
    b'"added_ms":0,"by":"bob","at_ms":6,"reason":""}}}}}'
)


async def test_settings_of_the_version_before_are_joined_with_all_that_is_in_them(tmp_path: Path) -> None:
    """The bytes that the version before wrote are read as they are. While a node of that version is live, an act writes
    in its form; afterwards the next one writes the joined document, of which every byte is fixed here. The version
    before cannot decode what is at the former paths then, and its scheduler counts that as a suspension of all."""

    cluster = Cluster(tmp_path)
    (one,) = await cluster.start("n1")
    earlier = MemoryMetastore(cluster.ensemble)
    await earlier.start(lambda _: None)
    await register_present(one.metastore, "n1", 1)
    await register_earlier(earlier, "n2", 2)
    for path, value in ((PEERS_PATH, FORMER_PEERS), (SUSPENSIONS_PATH, FORMER_SUSPENSIONS)):
        await earlier.put(path, value, None)
    values = await SETTINGS.read(one.metastore)
    assert (values[PEERS], values[SUSPENSIONS]) == (decode_peers(FORMER_PEERS), decode_suspensions(FORMER_SUSPENSIONS))
    await operator_documents.suspend(one.metastore, FullSyncSuspension("west", None, "eve", 7, ""))
    assert await one.metastore.get(SETTINGS_PATH) is None
    assert len(await SUSPENSIONS.read(earlier)) == 2
    assert (await earlier.get(PEERS_PATH)) == Versioned(FORMER_PEERS, 0)
    await earlier.stop()
    again = MemoryMetastore(cluster.ensemble)
    await again.start(lambda _: None)
    await register_present(again, "n2", 2)
    await operator_documents.suspend(again, FullSyncSuspension("west", None, "eve", 8, ""))
    await operator_documents.suspend(again, FullSyncSuspension("west", None, "eve", 7, ""))
    assert await one.metastore.get(SETTINGS_PATH) == Versioned(JOINED, 1)
    assert SETTINGS.encode(SETTINGS.decode(JOINED)) == JOINED
    for document in (PEERS, SUSPENSIONS):
        found = await one.metastore.get(document.path)
        assert found is not None
        assert found.value == b'"moved to /fullsync/settings"'
        with pytest.raises(CodecError):
            document.decode(found)


@pytest.mark.logs_errors("fullsync.operators_malformed")
async def test_settings_that_are_damaged_as_a_whole_suspend_a_node_that_starts(tmp_path: Path) -> None:
    """A node that has read them goes on with what it read. No act changes them, not even a resume of everything, which
    would end what nobody could read."""

    cluster = Cluster(tmp_path)
    (one,) = await cluster.start("n1")
    await register_present(one.metastore, "n1", 1)
    await one.act("set", peer="west", values={"all": 3})
    found = await one.metastore.get(SETTINGS_PATH)
    assert found is not None
    await one.metastore.put(SETTINGS_PATH, b"{", found.version)
    await one.documents.refresh()
    assert (operator_view(one.fixture)["peers"][0]["state"], one.peers["west"].all_count) == ("scheduled", 3)
    (two,) = await cluster.start("n2")
    (row,) = operator_view(two.fixture)["peers"]
    assert (row["state"], SETTINGS_PATH in row["reason"]) == ("suspended", True)
    for path, body in (("resume", {}), ("suspend", {}), ("set", {"peer": "west", "values": {"all": 4}})):
        status, answer = await one.act(path, **body)
        assert (status, SETTINGS_PATH in answer["error"]) == (400, True)
    await one.metastore.put(SETTINGS_PATH, b'{"v":1}', found.version + 1)
    await two.documents.refresh()
    assert operator_view(two.fixture)["peers"][0]["state"] == "scheduled"


async def test_changes_of_another_node_are_followed(tmp_path: Path) -> None:
    """Both documents are read at the start, and after every change that any node writes."""

    cluster = Cluster(tmp_path)
    (one,) = await cluster.start("n1")
    two = Node(cluster, "n2", WEST)
    await two.metastore.start(lambda _: None)
    await operator_documents.set_peer(one.metastore, "west", None, {"all": 3}, ACT)
    await two.documents.start()
    assert two.peers["west"].all_count == 3
    await operator_documents.suspend(one.metastore, FullSyncSuspension("west", None, *ACT))
    await operator_documents.set_peer(one.metastore, "west", None, {"all": 6}, ACT)
    async with asyncio.timeout(5):
        while two.peers["west"].all_count != 6 or operator_view(two.fixture)["peers"][0]["state"] != "suspended":
            await asyncio.sleep(0.01)
    await two.documents.stop()


async def test_another_queue_invalidates_proofs(tmp_path: Path) -> None:
    """A proof by another queue's filter does not hold for this queue; other changes keep proofs, and a restart with
    another queue in the file drops them, too."""

    cluster = Cluster(tmp_path)
    (one,) = await cluster.start("n1")
    await one.fixture.scheduler.run("west", CheckKind.ALL, "ann")
    await one.act("set", peer="west", values={"all": 3})
    history = one.fixture.scheduler.peer("west").history
    assert (history.proven_ms, history.schedule_state.failed) == ({"default": START}, False)
    assert len(history.results) == 1
    await one.fixture.scheduler._save()
    again = Node(cluster, "n1", replace(WEST, queue="to-north"))
    assert again.fixture.scheduler.peer("west").history.proven_ms == {}
    await one.act("set", peer="west", values={"queue": "to-north"})
    assert (history.proven_ms, history.schedule_state.failed) == ({}, True)


async def test_checks_of_kind_auto_are_left_out_by_an_act_and_after_a_restart(tmp_path: Path) -> None:
    """The given number of checks begin nothing, also over a restart; the status shows how many are left; 0 ends it."""

    cluster = Cluster(tmp_path)
    (one,) = await cluster.start("n1", settings=[replace(WEST, hour_count=0, auto_count=24)])
    status, answer = await one.act("suppress-auto", count=3, by="ann")
    assert (status, answer["peers"][0]["auto_left_out"]) == (200, 3)
    await one.fixture.pass_until(START + 2 * HOUR_MS - 1)
    assert one.fixture.checkers["west"].checks == []
    (one,) = await cluster.start("n1", settings=[replace(WEST, hour_count=0, auto_count=24)])
    assert operator_view(one.fixture)["peers"][0]["auto_left_out"] == 1
    assert (await one.act("suppress-auto", peer="west", count=0))[0] == 200
    await one.fixture.pass_until(START + HOUR_MS - 1)
    assert len(one.fixture.checkers["west"].checks) == 1
    for count in (None, -1, 241, True, "3"):
        assert (await one.act("suppress-auto", count=count))[0] == 400


async def test_each_document_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry more is refused; one that replaces another is not."""

    monkeypatch.setattr(operator_documents, "ENTRIES_MAX", 2)
    cluster = Cluster(tmp_path)
    (one,) = await cluster.start("n1")
    for node in ("n1", "n2"):
        await operator_documents.set_peer(one.metastore, "west", node, {"all": 1}, ACT)
        await operator_documents.suspend(one.metastore, FullSyncSuspension("west", node, *ACT))
    await operator_documents.set_peer(one.metastore, "west", "n2", {"all": 2}, ACT)
    with pytest.raises(BadInput, match="2 entries of peers"):
        await operator_documents.set_peer(one.metastore, "west", "n3", {"all": 1}, ACT)
    with pytest.raises(BadInput, match="2 suspensions"):
        await operator_documents.suspend(one.metastore, FullSyncSuspension("west", "n3", *ACT))
    found = await operator_documents.suspend(one.metastore, FullSyncSuspension("west", "n2", "bob", START, ""))
    held = suspension_for("west", "n2", found)
    assert held is not None
    assert held.by == "bob"


def test_a_time_in_a_document_that_is_infinite_is_refused() -> None:
    """Python's JSON parser accepts infinity, which is not a time: the document is unreadable, and the node keeps the
    last one that it could read."""
    row = {"peer": None, "node": None, "by": "ann", "at_ms": float("inf"), "reason": ""}
    with pytest.raises(CodecError, match="list of suspensions"):
        operator_documents.decode_suspensions(json.dumps([row]).encode())
    entry = {"values": {}, "by": "ann", "at_ms": float("inf"), "reason": ""}
    with pytest.raises(CodecError, match="list of peers"):
        operator_documents.decode_peers(json.dumps({"peers": {"west": {"e1": entry}}}).encode())
