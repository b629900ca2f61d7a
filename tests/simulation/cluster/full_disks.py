"""Clusters whose disks fill up (H38): a low disk takes barriers from the log's reserve and nothing else, a full one
takes nothing.

A node's drops and refusals are decided in the runtime (`repl.runtime.disk_full`), which this module emulates; declined
nominations and their consequences are the product's own core and controller.

- I-DISK-FULL: no entry is appended to a full disk, and only barriers to a low one, beside those of a message that
  was on its way into the log when the disk filled up.
"""

from __future__ import annotations

import random
from enum import IntEnum
from typing import Any, ClassVar

from isthmus.repl.isr import events as ev
from isthmus.repl.isr import messages as ms
from isthmus.repl.isr.replica import Replica
from isthmus.repl.model.entry import Entry, EntryKind
from isthmus.repl.model.errors import OutOfStorage
from tests.simulation.cluster.clients import Client
from tests.simulation.cluster.invariants import Violation
from tests.simulation.cluster.process import Process
from tests.simulation.cluster.simulator import ClusterSimulation


class Room(IntEnum):
    """The disk's free space: enough for everything, for barriers only, or for nothing."""

    ENOUGH = 0
    LOW = 1
    NONE = 2


class FillingProcess(Process):
    """A process whose disk may be low or full."""

    @property
    def room(self) -> Room:
        """The free space of this process's disk."""
        assert isinstance(self.simulation, FullDiskSimulation)
        return self.simulation.rooms.get(self.node.name, Room.ENOUGH)

    def attach(self, partition: int) -> None:
        """See Process."""
        super().attach(partition)
        self._tell(self.replicas[partition])

    def looked(self) -> None:
        """The runtime measured the disk."""
        for replica in self.replicas.values():
            self._tell(replica)

    def _tell(self, replica: Replica) -> None:
        replica.step(ev.DiskFull(self.room is Room.NONE), self.simulation.now_ms)

    def receive(self, partition: int, event: ev.Received) -> None:
        """See Process: entries that the disk cannot take are dropped before the core has seen them."""
        message = event.message
        if type(message) is ms.AppendEntries and message.entries and not self._takes(message.entries):
            self.simulation.counts["dropped_by_a_disk"] += 1
        elif type(message) is ms.TransferRows and self.room is not Room.ENOUGH:
            self.simulation.counts["rows_dropped_by_a_disk"] += 1
        else:
            super().receive(partition, event)

    def submit(self, client: Client, count: int, epoch_shift: int, offset_shift: int) -> str | None:
        """See Process."""
        if self.room is not Room.ENOUGH and not epoch_shift and not offset_shift:
            return OutOfStorage.reason
        return super().submit(client, count, epoch_shift, offset_shift)

    def _append(self, partition: int, entries: tuple[Entry, ...], made_here: bool) -> None:
        if made_here and not self._takes(entries):
            raise Violation("I-DISK-FULL", f"{self.name} appends {entries[0]} to a disk with room {self.room.name}")
        self.simulation.counts["barriers_on_a_low_disk"] += made_here and self.room is Room.LOW
        super()._append(partition, entries, made_here)

    def _takes(self, entries: tuple[Entry, ...]) -> bool:
        if self.room is Room.LOW:
            return all(entry.kind == EntryKind.BARRIER for entry in entries)
        return self.room is Room.ENOUGH


class FullDiskSimulation(ClusterSimulation):
    """A cluster whose disks fill up and are freed again."""

    option: ClassVar[str] = " --full-disks"

    def __init__(self, seed: int, **options: Any) -> None:
        self.chance = random.Random(f"disks of {seed}")
        self.gap_ms = self.chance.choice((3_000, 1_500, 700))
        """Mean time between two disks that fill up or are freed."""
        self.rooms: dict[str, Room] = {}
        """Node -> free space of its disk; without an entry it has enough."""
        super().__init__(seed, **{"shell": FillingProcess} | options)

    def start(self) -> None:
        """See ClusterSimulation."""
        super().start()
        self._next()

    def _next(self) -> None:
        self.after(1 + int(self.chance.expovariate(1 / self.gap_ms)), self._strike)

    def _strike(self) -> None:
        if self.faults.over:
            return
        self._next()
        name = self.chance.choice(sorted(self.nodes))
        room = self.chance.choice((Room.ENOUGH, Room.LOW, Room.LOW, Room.NONE))
        self.counts[f"disk_{room.name.lower()}"] += 1
        self._set(name, room)

    def _set(self, name: str, room: Room) -> None:
        self.log_event("faults", f"the disk of {name} has room {room.name}")
        self.rooms[name] = room
        for process in self.nodes[name].processes:
            assert isinstance(process, FillingProcess)
            process.looked()

    def _freed(self) -> None:
        for name in self.nodes:
            self._set(name, Room.ENOUGH)

    def live(self) -> None:
        """See ClusterSimulation: the healthy nodes have space."""
        self._freed()
        super().live()

    def heal(self) -> None:
        """See ClusterSimulation."""
        self._freed()
        super().heal()
