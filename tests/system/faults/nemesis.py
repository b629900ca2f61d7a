"""The interface of a nemesis, and the context that it works on."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.system.faults.cluster import SESSION_MS, ClusterNode, FaultCluster, Timeline
from tests.system.faults.disks import SmallDisk
from tests.system.faults.load import Broken, Connection, NotSent
from tests.system.faults.network import Network

SESSION_S: Final = SESSION_MS / 1000
STORAGE_FAILED: Final = 70
"""The exit code of a node whose log, store or identity could not be written."""

FAULT: Final = 5
"""The exit code of a node that could not start because of its machine."""

FILLER_BUCKET: Final = "filler"
FILLER_BYTES: Final = 50_000
FILL_TIMEOUT_S: Final = 60.0


@dataclass
class FaultContext:
    """The cluster, network, and disks that a nemesis may disturb."""

    cluster: FaultCluster
    chance: random.Random
    network: Network | None = None
    disks: Mapping[str, SmallDisk] = field(default_factory=dict)

    @property
    def timeline(self) -> Timeline:
        """The log of events to which a nemesis appends."""
        return self.cluster.timeline

    def victim(self) -> ClusterNode:
        """Any node; every other time one that leads something."""
        leaders = (
            sorted(set(self.cluster.leaders().values()) & set(self.cluster.nodes)) if self.chance.random() < 0.5 else []
        )
        return self.cluster.nodes[self.chance.choice(leaders or list(self.cluster.nodes))]

    def others(self, node: ClusterNode) -> list[ClusterNode]:
        """The rest."""
        return [other for other in self.cluster.nodes.values() if other is not node]

    def wait(self, low_s: float, high_s: float) -> None:
        """Let it hurt for a while."""
        time.sleep(self.chance.uniform(low_s, high_s))

    def empty(self, node: ClusterNode, what: str = "") -> None:
        """Remove everything, or the named directory's contents, from the data directory of a node that is down."""
        assert not node.running
        for path in (node.data_dir / what).iterdir():
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.timeline.note(f"emptied {what or 'the disk'} of {node.name}")

    def fill(self, megabytes: int, without: ClusterNode | None = None) -> None:
        """Write this amount of data through the running nodes, except the paused node `without`, over the same keys
        each time. Raises AssertionError when they do not accept it."""
        data = self.chance.randbytes(FILLER_BYTES)
        deadline = time.monotonic() + FILL_TIMEOUT_S
        connections = [Connection(n.place) for n in self.cluster.nodes.values() if n.running and n is not without]
        try:
            for number in range(megabytes * 1_000_000 // FILLER_BYTES):
                path = f"/buckets/{FILLER_BUCKET}/keys/{number}"
                while not _written(connections[number % len(connections)], path, data):
                    assert time.monotonic() < deadline, f"object {number} of the filler was never written"
                    self.chance.shuffle(connections)
                    time.sleep(0.05)
        finally:
            for connection in connections:
                connection.close()
        self.timeline.note(f"wrote {megabytes} MB")

    def request_admin(self, path: str, wish: Mapping[str, Any], timeout_s: float = 30.0) -> dict[str, Any]:
        """Send an operator's request to the nodes until one accepts it; returns the answer. Raises AssertionError."""
        deadline = time.monotonic() + timeout_s
        said = ""
        while time.monotonic() < deadline:
            for node in self.cluster.nodes.values():
                connection = Connection(node.admin, timeout_s)
                try:
                    reply = connection.request("POST", path, {"Content-Type": "application/json"}, _json(wish))
                except (NotSent, Broken) as error:
                    said = said or str(error)
                    continue
                finally:
                    connection.close()
                if reply.status == 200:
                    self.timeline.note(f"{path} {wish}")
                    return dict(json.loads(reply.body or b"{}"))
                said = f"{reply.reason} {reply.body[:200]!r}"
            time.sleep(0.1)
        raise AssertionError(f"nobody takes {path} {wish}: {said}")


@dataclass(frozen=True)
class Nemesis:
    """One kind of fault. `exits`: codes with which a node may end by itself; `excuses`: answers to clients that are
    expected under it."""

    act: Callable[[FaultContext], None]
    nodes: int = 1
    """How many nodes the nemesis needs."""
    network: bool = False
    disks: bool = False
    strace: bool = False
    clocks: bool = False
    far: bool = False
    """Whether logs must be so small that a node which was away is beyond them."""
    spare: str = ""
    """A node that joins and leaves; its host must exist."""
    exits: tuple[int, ...] = ()
    excuses: tuple[str, ...] = ()


def _written(connection: Connection, path: str, data: bytes) -> bool:
    """Write over the stored object: without its clock each round would add a sibling, and write all of them."""
    try:
        clock = connection.request("HEAD", path, {}).headers.get("X-Riak-Vclock", "")
        headers = {"Content-Type": "text/plain"} | ({"X-Riak-Vclock": clock} if clock else {})
        return connection.request("PUT", path, headers, data).status == 204
    except (NotSent, Broken):
        return False


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
