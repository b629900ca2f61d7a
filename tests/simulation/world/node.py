"""One node of the simulated world: the shipped program on a machine, a disk and a metastore of the world."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.config.loader import load_file
from isthmus.config.settings import Settings
from isthmus.node import daemon
from isthmus.node.cli.exit_codes import failure_of
from isthmus.node.observability.service_manager import ServiceManager
from isthmus.node.services import wiring
from isthmus.node.services.wiring import Outside
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.replog.log import FileLog
from isthmus.repl.store.leveldb import LevelStore
from tests.simulation.world.machine import VirtualMachine

if TYPE_CHECKING:
    from tests.simulation.world.credentials import Credentials
    from tests.simulation.world.disk import WorldDisk
    from tests.simulation.world.ensemble import Ensemble

HTTP_PORT, ADMIN_PORT, CLUSTER_PORT = 8098, 8099, 8097


class WorldNode:
    """A node, and what an operator sees of it from outside: its machine, its file, how its process ended."""

    def __init__(
        self, machine: VirtualMachine, cluster: str, name: str, directory: Path, ensemble: Ensemble, disk: WorldDisk
    ) -> None:
        self.machine = machine
        self.cluster = cluster
        self.name = name
        self.directory = machine.directory = directory
        self.file = directory / "node.toml"
        self.ensemble = ensemble
        self.disk = disk
        self.credentials: Credentials | None = None
        """Its cluster's; None: everybody may do everything."""
        self.node: daemon.Node | None = None
        self.life: asyncio.Task[int] | None = None
        self.ended: list[tuple[int, str]] = []
        """(exit code, reason) of each process that ended by itself; 1 for a start that was refused."""

    @property
    def running(self) -> bool:
        """There is a process."""
        return self.machine.alive

    @property
    def scheme(self) -> str:
        """How its listeners are spoken to."""
        return "https" if self.credentials is not None and self.credentials.tls else "http"

    @property
    def http_url(self) -> str:
        """Where clients reach it."""
        return f"{self.scheme}://{self.machine.address}:{HTTP_PORT}"

    @property
    def admin_url(self) -> str:
        """Where operators reach it."""
        return f"{self.scheme}://{self.machine.address}:{ADMIN_PORT}"

    def start(self) -> None:
        """Begin a process of this node."""
        self.node = None  # not that of the process before
        loop = self.machine.boot()
        self.disk.process_begins()
        loop.call_soon(self._begin)

    def _begin(self) -> None:
        loop = self.machine.loop
        self.life = loop.create_task(self._live(), name=f"life of {self.name}")
        self.life.add_done_callback(self._over)

    async def _live(self) -> int:
        settings = load_file(self.file)
        outside = Outside(self._metastore, self._store, self._log)
        self.node = daemon.Node(settings, self.file, ServiceManager({}), outside)
        return await daemon.run_node(self.node)

    def _over(self, life: asyncio.Task[Any]) -> None:
        if life.cancelled():
            code, why = 1, "cancelled"
        elif (error := life.exception()) is not None:
            code = self.machine.exit_code if self.machine.exit_code is not None else 1
            why = f"{type(error).__name__}: {error}"
            if self.machine.exit_code is None and failure_of(error) is None:
                self.machine.on_uncaught(self.machine, "the node ends by a fault in the program", error)
        else:
            code, why = life.result(), "stopped"
        self.ended.append((code, why))
        self.machine.kernel.at(0, self.machine.kill)

    # What it opens outside of its process

    def _metastore(self, settings: Settings, hosts: str, _tls: object) -> Metastore:
        return wiring.metastore_of(settings, hosts, None, session=self.ensemble.session_of(self.machine))

    def _store(self, settings: Settings, cluster_uuid: bytes, boot_id: str) -> LevelStore:
        return wiring.open_store(
            settings, cluster_uuid, boot_id, database=self.disk.database, disk=self.disk.checkpoints
        )

    def _log(self, settings: Settings, cluster_uuid: bytes, known_durable: Any) -> FileLog:
        return wiring.open_log(settings, cluster_uuid, known_durable, io=self.disk.files)
