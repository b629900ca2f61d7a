"""A whole node in a thread of this process, with a metastore in memory: for tests with real clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from isthmus.config.loader import load_file
from isthmus.config.settings import Settings
from isthmus.node.daemon import Node
from isthmus.node.local.ports import free_port
from isthmus.node.observability.service_manager import ServiceManager
from isthmus.node.services import container
from isthmus.node.services.container import READ_THREADS
from isthmus.node.services.wiring import default_type_of
from isthmus.repl.controller.bucket_types import DefaultType
from isthmus.repl.metastore.port import Metastore
from tests.support.memory_metastore import MemoryMetastore

SETTINGS = """\
[node]
name = "n1"
cluster = "east"
data_dir = "data"
[listen]
http = "127.0.0.1:{0}"
admin = "127.0.0.1:{1}"
cluster = "127.0.0.1:{2}"
[metastore]
hosts = "127.0.0.1:1"
[replication]
partitions = 2
factor = 1
{3}"""


class NodeInMemory(Node):
    """A node but for ZooKeeper. It is alone, and places the default bucket type without waiting for other nodes."""

    async def start(self) -> None:
        """See `Node`."""

        def without_waiting(settings: Settings) -> DefaultType:
            return replace(default_type_of(settings), settle_ms=0)

        with patch.object(container, "default_type_of", without_waiting):
            await super().start()

    async def _connect_metastore(self) -> Metastore:
        metastore = MemoryMetastore()
        self._metastore = metastore
        await metastore.start(self._on_session)
        return metastore


class ThreadedNode:
    """A node that serves. `http` and `admin` are its ports."""

    def __init__(self, directory: Path, more: str = "") -> None:
        taken: set[int] = set()
        while len(taken) < 3:
            taken.add(free_port(taken))
        self.http, self.admin, cluster = taken
        file = directory / "node.toml"
        file.write_text(SETTINGS.format(self.http, self.admin, cluster, more))
        self._file = file
        self._settings = load_file(file)
        self._up = threading.Event()
        self._failure: BaseException | None = None
        self.node: Node | None = None
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Returns once it serves."""
        self._thread.start()
        assert self._up.wait(30)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as failure:
            self._failure = failure
            self._up.set()
            raise

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.node = NodeInMemory(self._settings, self._file, ServiceManager({}))
        await self.node.start()
        served = asyncio.create_task(self.node.serve())
        while not self.node.ready()[0]:
            await asyncio.sleep(0.01)
        # The node starts reading threads at the first listings, and that of the journal at the first act; tests must
        # find the same threads before and after.
        begun = threading.Barrier(READ_THREADS)
        await asyncio.gather(
            *(self._loop.run_in_executor(self.node.services.read_pool, begun.wait, 10) for _ in range(READ_THREADS))
        )
        await self.node.services.journal.acts(None, 0, 1)
        self._up.set()
        await served

    def stop(self) -> None:
        """End it."""
        if self.node is not None and self._failure is None:
            self._loop.call_soon_threadsafe(self.node.request_stop, "the test is over")
        self._thread.join(30)
        assert not self._thread.is_alive()


@contextmanager
def running_node(directory: Path, more: str = "") -> Iterator[ThreadedNode]:
    """A node that lives for the block; `more` is appended to its file."""
    node = ThreadedNode(directory, more)
    try:
        node.start()
        yield node
    finally:
        node.stop()
