"""GET /admin/findings: the list that `isthmus status` and the dashboard show, made once for all its readers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from isthmus.node.admin_api.findings import FRESH_MS, FindingsAdmin
from isthmus.node.http.router import Router
from isthmus.repl.model.errors import NotReady
from tests.support.cluster_answers import NOW_MS, cluster_answer, lag_answer


class Cluster:
    """A node whose documents are scripted, and how often each was made."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.made: list[str] = []
        self.lag: dict[str, Any] | Exception = lag_answer("east")
        settings = SimpleNamespace(node=SimpleNamespace(cluster="east", name="east-1"))
        services: Any = SimpleNamespace(settings=settings, time=SimpleNamespace(wall_ms=lambda: self.now_ms))
        self.admin = FindingsAdmin(services, {"cluster": self._cluster, "lag": self._lag}, Router())

    async def _cluster(self) -> dict[str, Any]:
        self.made.append("cluster")
        return cluster_answer("east")

    async def _lag(self) -> dict[str, Any]:
        self.made.append("lag")
        await asyncio.sleep(0)
        if isinstance(self.lag, Exception):
            raise self.lag
        return self.lag


async def test_readers_share_a_round_of_questions() -> None:
    """However many ask at once, the nodes are asked once; a second later they are asked again."""
    cluster = Cluster()
    first = await asyncio.gather(*(cluster.admin.document() for _ in range(50)))
    assert cluster.made == ["cluster", "lag"]
    assert all(each == first[0] for each in first)
    assert first[0] == {"cluster": "east", "node": "east-1", "at_ms": NOW_MS, "state": "ok", "findings": []}
    cluster.now_ms += FRESH_MS
    await cluster.admin.document()
    assert cluster.made == ["cluster", "lag"] * 2


async def test_a_reader_that_leaves_ends_no_other_readers_round() -> None:
    """The round goes on when the reader that began it is cancelled."""
    cluster = Cluster()
    leaving = asyncio.ensure_future(cluster.admin.document())
    staying = asyncio.ensure_future(cluster.admin.document())
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying)["state"] == "ok"
    assert cluster.made == ["cluster", "lag"]


async def test_a_document_that_fails_is_a_finding_of_its_own() -> None:
    """What could not be asked is named with its reason; the rest is judged."""
    cluster = Cluster()
    cluster.lag = NotReady("the node starts")
    found = await cluster.admin.document()
    assert [row["sentence"] for row in found["findings"]] == ["lag: the node starts"]


async def test_a_round_that_the_stop_of_the_node_ends_is_an_error_of_its_readers() -> None:
    """They are not cancelled themselves: a scrape, or a question of another node, goes on with an answer."""
    cluster = Cluster()
    readers = [asyncio.ensure_future(cluster.admin.document()) for _ in range(2)]
    await asyncio.sleep(0)
    cluster.admin.stop()
    found = await asyncio.gather(*readers, return_exceptions=True)
    assert [str(one) for one in found] == ["the node stops"] * 2
    assert all(isinstance(one, NotReady) for one in found)
