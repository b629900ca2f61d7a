"""Small values of the simulated metastore, as source queues use them: see `repl.metastore.port.Metastore`.

One tree for the simulation; each process has its own connection to it, which is cut, slow or down like its connection
to the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from isthmus.repl.metastore.port import (
    Ambiguous,
    ConditionalWrite,
    Precondition,
    Unavailable,
    VersionConflict,
    Versioned,
)
from tests.simulation.cluster.metastore import METASTORE

if TYPE_CHECKING:
    from tests.simulation.cluster.loop import SimLoop
    from tests.simulation.cluster.process import Process
    from tests.simulation.cluster.simulator import ClusterSimulation

WAY_MS = (1, 6)
"""Duration of one request to the metastore and its answer."""

HINT_MS = 30
"""Longest way of a hint; one in HINTS_LATE comes only after HINT_LATE_MS, as one after a lost connection."""

HINTS_LATE = 10
HINT_LATE_MS = 1_500


class StoredValues:
    """All values of the simulated metastore, and their subscribers."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self.simulation = simulation
        self.found: dict[str, Versioned] = {}
        self.ways: list[ProcessValues] = []
        self.joined = simulation.seed % 2 == 0
        """Every node reads joined documents, so that a queue's become so with the first act on it."""
        self._version = 0

    def check(self, path: str, version: int | None) -> None:
        """Raises VersionConflict unless the value has this version; None: unless there is none."""
        before = self.found.get(path)
        if (None if before is None else before.version) != version:
            raise VersionConflict(path)

    def write(self, path: str, value: bytes | None, version: int | None) -> int:
        """Conditional; None removes it. Raises VersionConflict."""
        self.check(path, version)
        self._version += 1
        if value is None:
            self.found.pop(path, None)
        else:
            self.found[path] = Versioned(value, self._version)
        for way in self.ways:
            way.changed(path)
        return self._version


class ProcessValues:
    """One process's access to the values."""

    def __init__(self, process: Process, loop: SimLoop, values: StoredValues) -> None:
        self._process = process
        self._loop = loop
        self._values = values
        self._on_change: list[Callable[[str], None]] = []
        values.ways = [way for way in values.ways if way._process.alive]
        values.ways.append(self)

    async def get(self, path: str) -> Versioned | None:
        """See the port."""
        await self._round_trip()
        return self._values.found.get(path)

    async def put(self, path: str, value: bytes, version: int | None, unmoved: Collection[Precondition] = ()) -> int:
        """See the port."""
        assert not unmoved
        return await self._write(path, value, version)

    async def put_all(self, writes: Collection[ConditionalWrite], unmoved: Collection[Precondition] = ()) -> None:
        """See the port."""
        await self._round_trip()
        for one in (*writes, *unmoved):
            self._values.check(one.path, one.version)
        for one in writes:
            self._values.write(one.path, one.value, one.version)
        self._may_lose_the_answer(", ".join(one.path for one in writes))

    async def all_read_joined(self) -> bool:
        """See the port."""
        await self._round_trip()
        return self._values.joined

    async def delete(self, path: str, version: int) -> None:
        """See the port."""
        await self._write(path, None, version)

    async def children(self, path: str) -> list[str]:
        """See the port."""
        await self._round_trip()
        below = [name.removeprefix(f"{path}/") for name in self._values.found if name.startswith(f"{path}/")]
        return sorted({name.split("/")[0] for name in below})

    def watch(self, on_change: Callable[[str], None]) -> None:
        """See the port."""
        self._on_change.append(on_change)

    async def _write(self, path: str, value: bytes | None, version: int | None) -> int:
        await self._round_trip()
        written = self._values.write(path, value, version)
        self._may_lose_the_answer(path)
        return written

    def _may_lose_the_answer(self, what: str) -> None:
        simulation = self._values.simulation
        if not simulation.faults.over and simulation.rng.random() < simulation.plan.store_lost:
            raise Ambiguous(what)

    async def _round_trip(self) -> None:
        simulation = self._values.simulation
        await asyncio.sleep(simulation.rng.randint(*WAY_MS) / 1000)
        if simulation.metastore.down or not simulation.network.both_open(self._process.node.name, METASTORE):
            raise Unavailable("cut off")

    def changed(self, path: str) -> None:
        """Notify the process after a delay, when it can be reached."""
        simulation = self._values.simulation
        late = not simulation.faults.over and simulation.rng.randrange(HINTS_LATE) == 0
        simulation.after(HINT_LATE_MS if late else simulation.rng.randint(1, HINT_MS), self._notify, path)

    def _notify(self, path: str) -> None:
        if not self._process.alive:
            return
        if not self._values.simulation.network.open(METASTORE, self._process.node.name):
            self._values.simulation.after(HINT_LATE_MS, self._notify, path)
            return
        for hear in self._on_change:
            self._loop.call_soon(hear, path)
