"""Fixtures: the log events of a node in this process are captured, not printed."""

from __future__ import annotations

from tests.support.memory_client_api import logged
