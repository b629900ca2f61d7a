"""The sink's admin paths about dead letters of all nodes: any node lists, retries and drops those of another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.config.settings import SinkSettings
from isthmus.node.admin_api.sinks import SinkAdmin
from isthmus.node.http.application import HttpApplication
from isthmus.node.http.durations import RequestDurations
from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.dead_letter_query import DEAD_LETTERS, DeadLetterResponder
from isthmus.node.services.sink_query import SINK, SinkResponder
from isthmus.repl.clock import SystemTime
from isthmus.repl.clock_offsets import ClockOffsets
from isthmus.repl.model.keys import Key
from isthmus.repl.model.requests import PushItem, PushOutcome, PushResult
from isthmus.repl.model.this_node import ThisNode
from isthmus.sink.conflicts import Conflicts
from isthmus.sink.dead_letters import DeadLetter, DeadLetters
from isthmus.sink.service import Sink, SinkPorts
from tests.support.cluster_facts import FakeClusterFacts, OpenPeers
from tests.support.memory_metastore import MemoryMetastore
from tests.support.open_access import EVERYBODY
from tests.support.query_wires import QueryWires
from tests.support.queue_source import OURS
from tests.support.queue_source import SINK as WEST


class AcceptingCluster:
    """A cluster that accepts all dead letters pushed to it."""

    def __init__(self) -> None:
        self.pushed: list[bytes] = []

    async def push(self, items: Sequence[PushItem]) -> list[PushResult]:
        self.pushed += [item.key.key for item in items]
        return [PushResult(PushOutcome.APPLIED) for _ in items]


def letter(name: bytes) -> DeadLetter:
    """A refused change of a key."""
    return DeadLetter(7, "q", "http://e1", OURS, "east", Key(b"t", b"b", name), "too-large", "<b>big</b>", 3, b"abc")


class LetterNode:
    """A node's sink with dead letters, and its answers to other nodes."""

    def __init__(self, folder: Path, name: str, keys: Sequence[bytes]) -> None:
        self.cluster = AcceptingCluster()
        self.letters = DeadLetters(folder / f"{name}.sqlite", 100, 1_000)
        self.letters.add([letter(key) for key in keys])
        self.sink = Sink(
            SinkSettings(),
            ThisNode(name, "west", WEST),
            SinkPorts(
                kv=self.cluster,  # type: ignore[arg-type]
                metastore=MemoryMetastore(),
                letters=self.letters,
                conflicts=Conflicts(folder / f"{name}-conflicts.sqlite", 3),
                credentials=OpenPeers(),
                cluster=FakeClusterFacts(),
                time=SystemTime(),
                clocks=ClockOffsets("peer", SystemTime()),
            ),
            traces=None,
            counters=None,
        )
        self.query = ClusterQuery(name, QueryWires({}))
        self.query.serve(DEAD_LETTERS, DeadLetterResponder(self.sink))
        self.query.serve(SINK, SinkResponder(self.sink, name))

    def kept(self) -> list[bytes]:
        """Keys of the letters that are left."""
        return [one.key.key for one in self.letters.letters()]


class Letters:
    """Two live nodes with dead letters and one that is gone; requests go to n1."""

    def __init__(self, folder: Path, send: Any) -> None:
        self.here = LetterNode(folder, "n1", [b"a", b"b\xff", b"c"])
        self.there = LetterNode(folder, "n2", [b"d", b"e"])
        self.here.query._links = QueryWires({"n2": self.there.query})
        self.live = {"n1", "n2"}
        membership = SimpleNamespace(live_nodes=lambda: self.live, known_nodes=lambda: {"n1", "n2", "n3"})
        records = {0: SimpleNamespace(replicas=("n1", "n2", "n3"))}
        services: Any = SimpleNamespace(
            sink=self.here.sink, query=self.here.query, membership=membership, time=SystemTime(),
            settings=SimpleNamespace(node=SimpleNamespace(name="n1")), controller=SimpleNamespace(records=records),
        )  # fmt: skip
        self._app, self._send = HttpApplication(EVERYBODY, RequestDurations()), send
        SinkAdmin(services, self._app.router)

    async def get(self, query: str = "") -> Any:
        """Status and answer of GET /admin/sink/dead-letters/nodes."""
        return await self.exchange("GET", f"/admin/sink/dead-letters/nodes{query}")

    async def post(self, act: str, **body: Any) -> Any:
        """Status and answer of an act on dead letters."""
        return await self.exchange("POST", f"/admin/sink/dead-letters/{act}", json.dumps(body).encode())

    async def exchange(self, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
        """Status and answer."""
        answer = await self._send(self._app, method, path, body)
        text = answer.body.decode()
        return answer.status, json.loads(text) if text.startswith("{") else text

    async def __aenter__(self) -> Letters:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(self.here.sink.stop(), self.there.sink.stop())


async def test_any_node_lists_the_letters_of_all(tmp_path: Path, send_request: Any) -> None:
    """The letters of each node are listed, the oldest first, with the number it keeps; names of bytes are escaped, and
    also given percent-encoded. A gone node is null with the reason, although its letters are on its disk."""
    async with Letters(tmp_path, send_request) as letters:
        status, answer = await letters.get()
        assert status == 200
        here, there, gone = answer["nodes"]
        assert [one["key"] for one in here["dead_letters"]] == [["t", "b", "a"], ["t", "b", "b\\xff"], ["t", "b", "c"]]
        assert here["dead_letters"][1]["key_encoded"] == ["t", "b", "b%FF"]
        assert (here["kept"], here["more"], there["kept"], there["given_up"]) == (3, False, 2, 0)
        assert gone == {"node": "n3", "dead_letters": None, "more": None, "kept": None, "given_up": None}
        assert list(answer["unknown"]) == ["n3"]
        letters.live = {"n1", "n2", "n3"}
        assert "no connection to node n3" in (await letters.get())[1]["unknown"]["n3"]


async def test_letters_come_in_pages(tmp_path: Path, send_request: Any) -> None:
    """A page has at most the limit of each node; the next page of one node begins after a number."""
    async with Letters(tmp_path, send_request) as letters:
        (here, _, _) = (await letters.get("?limit=2"))[1]["nodes"]
        assert ([one["id"] for one in here["dead_letters"]], here["more"], here["kept"]) == ([1, 2], True, 3)
        (rest,) = (await letters.get("?node=n1&limit=2&after=2"))[1]["nodes"]
        assert ([one["id"] for one in rest["dead_letters"]], rest["more"]) == ([3], False)


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("?limit=0", 400, "from 1 to 1000"),
        ("?limit=1001", 400, "from 1 to 1000"),
        ("?after=3", 400, "needs node=NAME"),
        ("?node=n9", 404, "there are n1, n2, n3"),
    ],
)
async def test_a_wrong_question_is_refused(
    tmp_path: Path, send_request: Any, query: str, status: int, words: str
) -> None:
    """The message says what is valid."""
    async with Letters(tmp_path, send_request) as letters:
        found, error = await letters.get(query)
        assert (found, words in str(error)) == (status, True)


async def test_letters_of_another_node_are_retried_and_dropped_there(tmp_path: Path, send_request: Any) -> None:
    """They are selected by their number there, on that node alone; without a node on the one that receives the
    request."""
    async with Letters(tmp_path, send_request) as letters:
        status, answer = await letters.post("retry", ids=[1], node="n2")
        assert (status, [one["outcome"] for one in answer["retried"]]) == (200, ["applied"])
        assert (letters.there.cluster.pushed, letters.there.kept(), len(letters.here.kept())) == ([b"d"], [b"e"], 3)
        assert await letters.post("drop", ids=[1, 2]) == (200, {"dropped": 2})
        assert (letters.here.kept(), letters.there.kept()) == ([b"c"], [b"e"])
        assert await letters.post("drop", node="n2") == (200, {"dropped": 1})
        assert (await letters.post("retry", node="n1"))[1]["retried"][0]["id"] == 3
        assert (letters.here.kept(), letters.there.kept(), letters.here.cluster.pushed) == ([], [], [b"c"])


async def test_letters_of_a_node_that_does_not_answer_stay(tmp_path: Path, send_request: Any) -> None:
    """No letters of other nodes are dropped in their place: an unknown node is refused, and one that is down cannot be
    reached."""
    async with Letters(tmp_path, send_request) as letters:
        for act in ("retry", "drop"):
            status, error = await letters.post(act, ids=[1], node="n9")
            assert (status, "there are n1, n2, n3" in str(error)) == (404, True)
            assert (await letters.post(act, ids=[1], node="n3"))[0] == 503
        assert (len(letters.here.kept()), len(letters.there.kept())) == (3, 2)


async def test_the_sinks_of_nodes_that_do_not_answer_are_named_with_the_reason(
    tmp_path: Path, send_request: Any
) -> None:
    """A node that is gone and has replicas, and one that is not reached."""
    async with Letters(tmp_path, send_request) as letters:
        status, answer = await letters.exchange("GET", "/admin/sink/nodes")
        assert (status, [one["node"] for one in answer["nodes"]]) == (200, ["n1", "n2", "n3"])
        assert (answer["nodes"][2]["sink"], "not registered" in answer["unknown"]["n3"]) == (None, True)
        letters.live = {"n1", "n2", "n3"}
        answer = (await letters.exchange("GET", "/admin/sink/nodes"))[1]
        assert (list(answer["unknown"]), "no connection" in answer["unknown"]["n3"]) == (["n3"], True)
