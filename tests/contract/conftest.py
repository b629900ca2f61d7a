"""Fixtures: a metastore in memory and on ZooKeeper; a directory in memory."""

from __future__ import annotations

from tests.support.memory_directory import memory_directory
from tests.support.zookeepers import clients, shared_server
