"""Fixtures: a metastore in memory and on ZooKeeper; a directory in memory."""

from __future__ import annotations

from tests.support.memory_directory import room
from tests.support.zookeepers import clients, shared_server
