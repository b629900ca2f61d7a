"""Fixtures: ZooKeeper servers."""

from __future__ import annotations

from tests.support.zookeepers import ensemble, make_server, own_server, shared_server, zookeeper_clients
