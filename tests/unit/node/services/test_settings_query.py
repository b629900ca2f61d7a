"""The settings in force on every node."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.node.services import settings_query
from isthmus.node.services.cluster_query import ClusterAnswers
from isthmus.node.services.settings_query import SettingsInForce, settings_of_nodes


@pytest.mark.virtual_time
async def test_the_wait_for_other_nodes_ends_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds however long each answer takes; the last complete answers are returned."""
    monkeypatch.setattr(settings_query, "READ_S", 0.3)
    monkeypatch.setattr(settings_query, "POLL_S", 0.01)
    asked = 0

    async def ask(*_: Any) -> ClusterAnswers[SettingsInForce]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.1)
        return ClusterAnswers({"n2": SettingsInForce(asked, None, [])}, {})

    membership = SimpleNamespace(known_nodes=lambda: {"n2", "n3"}, live_nodes=lambda: {"n2"})
    began_s = asyncio.get_running_loop().time()
    answers = await settings_of_nodes(
        SimpleNamespace(ask=ask),
        membership,
        has_read=lambda _: False,  # type: ignore[arg-type]
    )
    assert asyncio.get_running_loop().time() - began_s < 0.5
    found = answers.by_node["n2"]
    assert found is not None
    assert found.options_version in (asked - 1, asked)
    assert answers.unknown == {"n3": "not alive"}
