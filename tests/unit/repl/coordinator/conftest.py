"""Fixtures of the coordinator's tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def short_leader_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait 0.2 s for a leader instead of a second."""
    monkeypatch.setattr("isthmus.repl.coordinator.routing.LEADER_WAIT_S", 0.2)
