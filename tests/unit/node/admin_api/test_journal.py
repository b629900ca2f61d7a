"""GET /admin/audit of a cluster: any node answers for all, and names those that do not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.node.admin_api.application import AdminApi
from isthmus.node.observability import line_files
from isthmus.node.observability.journal import Journal
from isthmus.node.services.journal_query import AUDIT, AuditResponder
from tests.support.journals import journal_in
from tests.support.node_status import FakeNodeStatus
from tests.support.open_access import EVERYBODY
from tests.support.query_links import QueryLinks

NOTHING_LOST = {"unreadable": 0, "lost": 0}


class Cluster:
    """Nodes n1 to n3, of which n1 gets the requests; n4 is known and down."""

    def __init__(self, directory: Path) -> None:
        self.links = QueryLinks()
        self.logs: dict[str, Journal] = {}
        self.time: Any = SimpleNamespace(wall_ms=lambda: 5_000)
        for name in ("n1", "n2", "n3"):
            (directory / name).mkdir()
            self.logs[name] = journal_in(directory / name)
            self.links.add(name).serve(AUDIT, AuditResponder(name, self.logs[name], self.time))
        services = SimpleNamespace(
            query=self.links.nodes["n1"],
            membership=SimpleNamespace(live_nodes=lambda: {*self.logs}, known_nodes=lambda: {*self.logs, "n4"}),
            time=self.time,
        )
        self.api = AdminApi(services, FakeNodeStatus(), EVERYBODY)  # type: ignore[arg-type]

    async def act(self, node: str, at_ms: int, by: str = "ann", act: str = "x") -> None:
        """Write a line to a node's log."""
        await self.logs[node].append(
            {
                "at_ms": at_ms,
                "node": node,
                "who": {"by": by},
                "what": {"act": act, "path": f"/{act}"},
                "outcome": "done",
            }
        )

    async def get(self, query: str = "") -> dict[str, Any]:
        """The answer."""
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"method": "GET", "raw_path": b"/admin/audit", "headers": [], "query_string": query.encode()}
        await self.api(scope, receive, send)
        found: dict[str, Any] = json.loads(b"".join(message.get("body", b"") for message in sent[1:]))
        return found


@asynccontextmanager
async def cluster_of(directory: Path) -> AsyncIterator[Cluster]:
    """A cluster whose logs are closed at the end."""
    cluster = Cluster(directory)
    async with AsyncExitStack() as stack:
        for log in cluster.logs.values():
            stack.push_async_callback(log.stop)
        yield cluster


def shown(answer: dict[str, Any]) -> list[tuple[str, int]]:
    """(node, at_ms) of the acts of an answer."""
    return [(act["node"], act["at_ms"]) for act in answer["acts"]]


async def test_all_nodes_are_joined_and_those_without_an_answer_are_null(tmp_path: Path) -> None:
    """The newest act first; a node that is down, and one that does not answer, are named with the reason."""
    async with cluster_of(tmp_path) as cluster:
        for node, at_ms in (("n1", 10), ("n2", 20), ("n3", 30), ("n1", 40)):
            await cluster.act(node, at_ms)
        answer = await cluster.get()
        assert shown(answer) == [("n1", 40), ("n3", 30), ("n2", 20), ("n1", 10)]
        assert (answer["unknown"], answer["nodes"]["n4"], answer["next"]) == ({"n4": "not alive"}, None, None)
        cluster.links.cut.add("n3")
        answer = await cluster.get()
        assert shown(answer) == [("n1", 40), ("n2", 20), ("n1", 10)]
        assert answer["nodes"] == {"n1": NOTHING_LOST, "n2": NOTHING_LOST, "n3": None, "n4": None}
        assert answer["unknown"]["n3"] == "not-ready: timed out"
        assert shown(await cluster.get("node=n2")) == [("n2", 20)]


async def test_the_log_of_the_asked_node_may_be_the_unknown_one(tmp_path: Path) -> None:
    """If its disk fails, the acts of the other nodes are still shown."""
    async with cluster_of(tmp_path) as cluster:
        await cluster.act("n2", 20)
        (tmp_path / "n1" / "audit").write_text("no directory")
        answer = await cluster.get()
        assert shown(answer) == [("n2", 20)]
        assert (answer["nodes"]["n1"], "cannot be read" in answer["unknown"]["n1"]) == (None, True)


async def test_pages_go_on_over_all_nodes(tmp_path: Path) -> None:
    """Each act is shown once; acts recorded meanwhile are not on later pages; a node that was unreachable is left out
    of them."""
    async with cluster_of(tmp_path) as cluster:
        for at_ms in range(12):
            await cluster.act(f"n{at_ms % 3 + 1}", at_ms)
        cluster.links.cut.add("n3")
        found, cursor = [], ""
        for _ in range(10):
            answer = await cluster.get(f"limit=3{cursor}")
            found += [at_ms for _, at_ms in shown(answer)]
            if answer["next"] is None:
                break
            cursor = f"&before={answer['next']}"
            cluster.links.cut.clear()
            await cluster.act("n1", 100)
        assert found == [10, 9, 7, 6, 4, 3, 1, 0]


async def test_a_cursor_is_checked(tmp_path: Path) -> None:
    """A cursor that names only a removed node returns no acts; a malformed one is refused."""
    async with cluster_of(tmp_path) as cluster:
        assert (await cluster.get("before=n9:4"))["acts"] == []
        assert (await cluster.get("before=,"))["reason"] == "bad-query"


async def test_acts_are_filtered_on_all_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The filters are a person, an act, an object, an outcome, and a time, page by page, although each node reads a few
    lines at a time: no act is lost or shown twice, and the page shows the progress of the search."""
    monkeypatch.setattr(line_files, "SCAN_BYTES_MAX", 100)
    async with cluster_of(tmp_path) as cluster:
        for at_ms in range(30):
            by = "bob" if at_ms in (3, 17) else "ann"
            await cluster.act(f"n{at_ms % 3 + 1}", at_ms, by, "a b" if at_ms == 5 else "x")
        found, cursor, searched = [], "", []
        for _ in range(30):
            answer = await cluster.get(f"who=BOB{cursor}")
            found += [at_ms for _, at_ms in shown(answer)]
            if answer["next"] is None:
                break
            searched.append(answer["searched_to_ms"])
            cursor = f"&before={answer['next']}"
        assert found == [17, 3]
        assert len(searched) > 3
        assert searched == sorted(searched, reverse=True)
        assert answer["searched_to_ms"] is None
        monkeypatch.setattr(line_files, "SCAN_BYTES_MAX", 1_000_000)
        for query, times in (
            ("act=a+b", [5]), ("object=a%20b", [5]), ("who=bob&until=16", [3]), ("who=bob&since=4", [17]),
            ("outcome=refused", []), ("who=bob&act=a+b", []), ("until=1", [1, 0]),
        ):  # fmt: skip
            assert [at_ms for _, at_ms in shown(await cluster.get(query))] == times, query
        for query in ("outcome=fine", f"who={'x' * 201}", "until=x"):
            assert (await cluster.get(query))["reason"] == "bad-query", query
