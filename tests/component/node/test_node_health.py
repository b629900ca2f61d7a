"""The health of three nodes, through the admin listener of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.node.observability.version import program_version
from tests.component.node.test_live import cut_off, get, sampled
from tests.support.ensemble_nodes import three_nodes


async def test_any_node_shows_version_and_disk_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node reports its own version and disk; a node whose links do not answer is null, with the reason."""
    async with three_nodes(tmp_path) as nodes:
        await sampled(nodes)
        n1 = nodes["n1"]
        status, answer = await get(n1, "/admin/nodes/health")
        assert (status, sorted(answer["nodes"]), answer["unknown"]) == (200, ["n1", "n2", "n3"], {})
        for health in answer["nodes"].values():
            assert health["version"] == program_version()
            assert 0 < health["free_bytes"] < health["total_bytes"]
            assert (health["certificates"], health["problems"]) == ({}, [])
        cut_off(n1, "n3", monkeypatch)
        answer = (await get(n1, "/admin/nodes/health"))[1]
        assert (answer["nodes"]["n3"], answer["unknown"]) == (None, {"n3": "not-ready: no connection to n3"})
        assert answer["nodes"]["n2"]["version"] == program_version()
