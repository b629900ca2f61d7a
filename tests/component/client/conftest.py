"""Fixtures: a whole node, and clients of both kinds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.both_clients import make_client
from tests.support.memory_client_api import logged
from tests.support.threaded_node import ThreadedNode, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedNode]:
    """A node, shared by the tests of a module, which use buckets of their own."""
    with running_node(tmp_path_factory.mktemp("node")) as running:
        yield running


@pytest.fixture
def url(node: ThreadedNode) -> str:
    """The URL of the node's client listener."""
    return f"http://127.0.0.1:{node.http}"
