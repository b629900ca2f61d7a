"""Fixtures: ZooKeeper servers."""

from __future__ import annotations

from tests.support.zookeepers import make_server
