"""Who else compares with a cluster, as the node that is asked sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from aae.manager import Manager
from node.fullsync_gathering import FullSyncGathering, SuspendWish, sharing, warning
from repl.model.errors import CodecError, PeerFault


def said(cluster: str | None, *urls: str) -> dict[str, Any]:
    """A node with one peer."""
    return {"peers": [{"name": "x", "cluster": cluster, "urls": list(urls)}]}


def test_nodes_share_a_cluster_by_its_name_or_a_url_and_one_alone_is_a_risk() -> None:
    """Peers are of one cluster by its name or by one URL; one node of several alone gets a warning, unless a node that
    is silent may be another."""
    peer = said("west", "http://w1")["peers"][0]
    nodes: Mapping[str, Mapping[str, Any] | None] = {
        "a": said("west", "http://w1"),
        "b": said(None, "http://w9", "http://w1"),
        "c": said("west", "http://w7"),
        "d": said("north", "http://n1"),
        "e": {"peers": []},
        "f": None,
    }
    assert sharing(peer, nodes) == (["a", "b", "c"], ["f"])
    assert warning(["a", "b"], [], 3) is None
    assert warning(["a"], [], 1) is None, "there is no other node"
    assert warning(["a"], ["f"], 3) is None, "not known"
    assert "only a compares" in str(warning(["a"], [], 3))
    assert sharing(said(None, "http://w2")["peers"][0], {"d": said(None, "http://n1")}) == ([], [])


def test_nodes_are_asked_and_a_silent_one_is_unknown() -> None:
    """Every node tells its checks or its trees; one that fails is None, and other questions are refused."""

    def own(what: str) -> dict[str, Any]:
        return {"what": what}

    async def request(node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        assert (method, timeout_ms > 0) == ("fullsync", True)
        if node == "silent":
            raise PeerFault("gone")
        return await gathering.answer("n1", body)

    gathering = FullSyncGathering(node="n1", request=request, own=own, manager=lambda: cast("Manager", None))
    found = asyncio.run(gathering.gather(["n2", "silent"], "trees"))
    assert found == {"n1": {"what": "trees"}, "n2": {"what": "trees"}, "silent": None}
    with pytest.raises(CodecError, match="checks, trees"):
        asyncio.run(gathering.answer("n2", b"everything"))


class Managed:
    """The half of a manager that is suspended and resumed."""

    def __init__(self, *names: str) -> None:
        self.peers = dict.fromkeys(names)
        self.suspended: dict[str, tuple[str, str]] = {}

    async def suspend(self, name: str, by: str, reason: str) -> None:
        """See Manager."""
        self.suspended[name] = (by, reason)

    async def resume(self, name: str) -> None:
        """See Manager."""
        del self.suspended[name]


def test_a_suspension_holds_on_all_nodes_or_on_one() -> None:
    """Each node that has the peer remembers it, one without has nothing to do, a silent one is told to be so; what is
    no wish is refused."""
    managers = {"n1": Managed("west", "north"), "n2": Managed("west"), "n3": Managed()}

    async def request(node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        assert timeout_ms > 0
        if node == "silent":
            raise PeerFault("gone")
        return await gatherings[node].request_handlers()[method]("n1", body)

    def of(node: str) -> FullSyncGathering:
        return FullSyncGathering(
            node=node, request=request, own=lambda _: {}, manager=lambda: cast("Manager", managers[node])
        )

    gatherings = {node: of(node) for node in managers}

    async def story() -> None:
        nodes = {*managers, "silent"}
        acted = await gatherings["n1"].act(nodes, SuspendWish(True, "west", "ann", "move"))
        assert acted == {"n1": ["west"], "n2": ["west"], "n3": [], "silent": None}
        assert managers["n1"].suspended == managers["n2"].suspended == {"west": ("ann", "move")}
        assert await gatherings["n1"].act({"n1"}, SuspendWish(True, None, "bob", "")) == {"n1": ["west", "north"]}
        assert await gatherings["n1"].act({"n2"}, SuspendWish(False, None, "bob", "")) == {"n2": ["west"]}
        assert (len(managers["n1"].suspended), managers["n2"].suspended) == (2, {})
        for wrong in (b"", b"[1]", b"{}", b'"'):
            with pytest.raises(CodecError):
                await gatherings["n2"].answer_act("n1", wrong)

    asyncio.run(story())
