"""Three whole nodes in one event loop, on a metastore in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from isthmus.config.loader import load_file
from isthmus.node.daemon import Node
from isthmus.node.local.ports import free_port
from isthmus.node.observability.service_manager import ServiceManager
from isthmus.repl.metastore.port import Metastore
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore
from tests.support.waiting import eventually as eventually

SETTINGS = """\
[node]
name = "n{0}"
cluster = "east"
id = {0}
data_dir = "data-{0}"
[listen]
http = "127.0.0.1:{1}"
admin = "127.0.0.1:{2}"
cluster = "127.0.0.1:{3}"
[metastore]
hosts = "127.0.0.1:1"
[replication]
partitions = 6
factor = 3
balance = false
"""


class NodeOfEnsemble(Node):
    """A node but for ZooKeeper: its metastore is that of an ensemble in memory."""

    ensemble: MemoryEnsemble

    async def _connect_metastore(self) -> Metastore:
        metastore = MemoryMetastore(self.ensemble)
        self._metastore = metastore
        await metastore.start(self._on_session)
        return metastore

    @property
    def address(self) -> str:
        """HOST:PORT of the client listener."""
        return self.services.http_url.removeprefix("http://")

    def batches(self) -> int:
        """Batches of writes that clients have sent here."""
        counts = self.client_api.counts
        return sum(count for (route, _, _), count in counts.items() if route == "/batch/put")


@asynccontextmanager
async def three_nodes(directory: Path) -> AsyncIterator[dict[str, NodeOfEnsemble]]:
    """Nodes in this loop, which lead all their partitions; by name."""
    ensemble, taken = MemoryEnsemble(), set[int]()
    nodes: dict[str, NodeOfEnsemble] = {}
    served: list[asyncio.Task[Any]] = []
    for number in (1, 2, 3):
        ports = []
        for _ in range(3):
            ports.append(free_port(taken))
            taken.add(ports[-1])
        file = directory / f"node-{number}.toml"
        file.write_text(SETTINGS.format(number, *ports))
        node = nodes[f"n{number}"] = NodeOfEnsemble(load_file(file), file, ServiceManager({}))
        node.ensemble = ensemble
    try:
        for node in nodes.values():
            await node.start()
            served.append(asyncio.create_task(node.serve()))
        await eventually(lambda: all(node.ready()[0] for node in nodes.values()), "the nodes are ready")
        await eventually(lambda: all(leaders_known(node) for node in nodes.values()), "all leaders are known")
        yield nodes
    finally:
        for node in nodes.values():
            node.request_stop("the test is over")
        await asyncio.gather(*served)


def leaders_known(node: NodeOfEnsemble) -> bool:
    document = json.loads(node.services.client_routes.current()[1])
    return len(document["nodes"]) == 3 and None not in document["bucket_types"].get("default", [None])
