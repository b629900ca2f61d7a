"""The other nodes that compare with the same cluster, as shown by the node that is asked."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.node.cli.config import ComparedPeer
from isthmus.node.nouns.fullsync import TreeParts
from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.fullsync_query import FULLSYNC_STATUS, FULLSYNC_TREES, FullSyncPart, sharing, warning
from isthmus.repl.model.errors import CodecError, PeerFault

pytestmark = pytest.mark.virtual_time


def compared(cluster: str | None, *urls: str) -> list[ComparedPeer]:
    """What a node with one peer compares with."""
    return [ComparedPeer("x", cluster, list(urls))]


def test_nodes_share_a_cluster_by_its_name_or_a_url_and_one_alone_is_a_risk() -> None:
    """Peers are of one cluster by its name or by one URL; one node of several alone gets a warning, unless a node that
    is silent may be another."""
    (peer,) = compared("west", "http://w1")
    nodes: Mapping[str, list[ComparedPeer] | None] = {
        "a": compared("west", "http://w1"),
        "b": compared(None, "http://w9", "http://w1"),
        "c": compared("west", "http://w7"),
        "d": compared("north", "http://n1"),
        "e": [],
        "f": None,
    }
    assert sharing(peer, nodes) == (["a", "b", "c"], ["f"])
    assert warning(["a", "b"], [], 3) is None
    assert warning(["a"], [], 1) is None, "there is no other node"
    assert warning(["a"], ["f"], 3) is None, "not known"
    assert "only a compares" in str(warning(["a"], [], 3))
    assert sharing(*compared(None, "http://w2"), {"d": compared(None, "http://n1")}) == (
        [],
        [],
    )


async def test_nodes_are_asked_and_a_silent_one_is_unknown() -> None:
    """Every node reports its checks or its trees; a node that fails is None, and unknown requests are refused."""

    class EchoHandler:
        async def respond(self, part: FullSyncPart) -> dict[str, Any]:
            return {"trees": [], "mismatches": [], "part": part.value}

    async def request(node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        assert (method, timeout_ms > 0) == ("fullsync", True)
        if node == "silent":
            raise PeerFault("gone")
        return await query.request_handlers()[method]("n1", body)

    query = ClusterQuery("n1", SimpleNamespace(request=request))
    query.serve(FULLSYNC_STATUS, EchoHandler())
    found = await query.ask(FULLSYNC_STATUS, FullSyncPart.TREES, ["n1", "n2", "silent"])
    answer = {"trees": [], "mismatches": [], "part": "trees"}
    assert found.by_node == {"n1": answer, "n2": answer, "silent": None}
    typed = await query.ask(FULLSYNC_TREES, FullSyncPart.TREES, ["n2"])
    assert typed.by_node == {"n2": TreeParts([], [])}
    with pytest.raises(CodecError, match="checks, trees"):
        await query.request_handlers()["fullsync"]("n2", b"everything")
