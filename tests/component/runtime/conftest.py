"""Fixtures: nodes of one cluster in this process."""

from __future__ import annotations

from tests.support.runtime_cluster import start_cluster, start_node
