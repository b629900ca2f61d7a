"""Drives one link of a mesh step by step, for tests of one order of events."""

from __future__ import annotations

from collections.abc import Collection

from isthmus.queues.leases import LeasedBatch, Session
from isthmus.queues.object_reader import read_objects
from isthmus.queues.source_queue import SourceQueue
from isthmus.repl.model.objects import Content, encode_object
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.model.requests import PushOutcome, PushResult
from isthmus.repl.model.vclock import Clock, Dot
from tests.simulation.mesh.cluster import Cluster, P
from tests.simulation.mesh.simulator import MeshSimulation

BATCHES_MAX = 50
"""More changes than any of these tests has; a source that offers the same change for ever fails instead of hanging."""

BATCH_BYTES = 1_000_000


def settle(cluster: Cluster) -> None:
    """Apply everything in the cluster's log and notify its queues."""
    cluster.apply(len(cluster.log))
    cluster.notify(len(cluster.unnotified))


def write(simulation: MeshSimulation, cluster: Cluster, key: bytes, value: bytes, context: Clock | None = None) -> Dot:
    """A client's write, applied; without a context it has read the current object. Returns its dot."""
    current = cluster.get(key)
    if context is None:
        context = () if current is None else current.clock
    dot = cluster.put(key, Content(value), context)
    assert dot is not None
    simulation.note(cluster, key, context, dot)
    settle(cluster)
    return dot


def push(source: Cluster, sink: Cluster, key: bytes) -> PushOutcome:
    """Push the source's current object of the key, and apply it."""
    current = source.get(key)
    assert current is not None
    ((answer, _),) = sink.push([(key, encode_object(current), False)], source.uuid)
    settle(sink)
    assert isinstance(answer, PushResult), answer
    return answer.outcome


def origin(cluster: Cluster, key: bytes) -> bytes:
    """The origin in the key's change row."""
    (found,) = (row.origin for row in cluster.store.changes(P, 0, 1_000) if row.key == key)
    return found


class Fetcher:
    """The worker of cluster `sink` that fetches from the queue named `queue` (default: the sink's own) at `source`."""

    def __init__(self, simulation: MeshSimulation, source: Cluster, sink: Cluster, queue: str = "") -> None:
        self._simulation = simulation
        self._source = source
        self._sink = sink
        self._queue = queue or sink.name
        self._session = Session(sink.uuid, sink.name, b"incarnat", 0)

    @property
    def machine(self) -> SourceQueue:
        """The queue that it fetches from."""
        return self._source.queues[self._queue]

    def fetch(self, count: int = 10) -> tuple[LeasedBatch, list[bytes]] | None:
        """The next batch, with the keys in it."""
        self._simulation.now += 1_000
        self.machine.on_fetch(self._session, (), self._simulation.now)
        for _ in range(BATCHES_MAX):
            self._source.begin_reads()
            if not self._source.reads:
                break
            while self._source.reads:
                self._source.go_on_reading(0)
        batch = self.machine.take(self._session, count, BATCH_BYTES, self._simulation.now)
        if batch is None:
            return None
        assert self.machine.resolve(batch, read_objects(self._source.store, batch.items(), BATCH_BYTES))
        return batch, [item[5] for item in batch.items()]

    def store(self, batch: LeasedBatch, failed: Collection[int] = ()) -> None:
        """Apply a batch at the sink and acknowledge it."""
        items = [item for number, item in enumerate(batch.items()) if number not in failed]
        changes = [(item[5], item[8], item[0] == ReferenceKind.LEAVING) for item in items]
        self._sink.push(changes, self._source.uuid)
        settle(self._sink)
        self.machine.acknowledge(self._session, batch.id, self.machine.owner_version, failed)

    def drain(self) -> list[bytes]:
        """Fetch and store until nothing waits; returns the keys in the order in which they came."""
        keys: list[bytes] = []
        for _ in range(BATCHES_MAX):
            found = self.fetch()
            if found is None:
                return keys
            keys += found[1]
            self.store(found[0])
        raise AssertionError(f"still more after {BATCHES_MAX} batches: {keys}")
