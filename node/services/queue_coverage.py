"""Which bucket types each queue carries, to which cluster, and which queues a comparison with that cluster proves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from isthmus.node.nouns.fullsync import SentQueue
from isthmus.queues.filters import Filter
from isthmus.queues.service import QueueService
from isthmus.queues.wire import UnknownQueue
from isthmus.repl.controller.controller import Controller
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE


class Owner(NamedTuple):
    """The cluster that owns a queue."""

    name: str
    uuid: str
    """In hex."""


Owners = Mapping[str, Owner | None]
"""The queues of this node; None: no cluster has fetched from it yet."""


class QueueCoverage:
    """Joins the queues' filters and owners with the cluster's bucket types."""

    def __init__(self, queues: QueueService, controller: Controller) -> None:
        self._queues = queues
        self._controller = controller
        self._types: tuple[object, int, list[str]] = (None, 0, [])

    def bucket_types(self, queue: str) -> list[str]:
        """Bucket types of this cluster whose changes or repairs may go into the queue. Raises UnknownQueue."""
        rules = self._queues.named(queue).filter
        return sorted(name for name in self._known_types() if rules.accepts_some_repairs(name.encode()))

    def repair_types(self, queue: str) -> list[str]:
        """As `bucket_types`, with `default` while the queue or the bucket types are not known: each check reports an
        unknown queue itself."""
        default = [DEFAULT_BUCKET_TYPE.decode()]
        try:
            return self.bucket_types(queue) or default
        except UnknownQueue:
            return default

    def sent(self) -> list[SentQueue]:
        """Real-time replication: each queue that has an owner."""
        found = []
        for name in self._queues.machines():
            queue = self._queues.named(name)
            owner = queue.stored.owner
            if owner is None or not owner.cluster:
                continue
            types = sorted(one for one in self._known_types() if queue.filter.includes_some(one.encode()))
            found.append(SentQueue(name, owner.name, owner.cluster.hex(), types))
        return found

    def owners(self) -> dict[str, Owner | None]:
        """Each queue of this node with the cluster that owns it."""
        owners = {name: self._queues.named(name).stored.owner for name in self._queues.machines()}
        return {
            name: None if owner is None or not owner.cluster else Owner(owner.name, owner.cluster.hex())
            for name, owner in owners.items()
        }

    def compared(self, queue: str, cluster: bytes | None, bucket_types: Sequence[str]) -> dict[str, list[str]]:
        """The queues that a comparison proves, each with its proven bucket types, when repairs go by `queue` and the
        comparison is with `cluster` (None: the owner of `queue`) over `bucket_types`.

        These are the queues of that cluster, as far as the filter of `queue` lets out as much as theirs. Empty when
        there is no queue of this name."""
        machines = self._queues.machines()
        if queue not in machines:
            return {}
        repairs = self._queues.named(queue)
        wanted = cluster or self._owner(queue)
        found = {}
        for name in machines:
            owner = self._owner(name)
            if owner != wanted if owner is not None else name != queue:
                continue
            other = self._queues.named(name).filter
            types = [one for one in bucket_types if repairs.filter.accepts_all_repairs_of(other, one.encode())]
            if types:
                found[name] = types
        return found

    def returns_all(self, queue: str, other: Filter, bucket_type: str) -> bool:
        """Whether a queue of another cluster with the filter `other` lets out all of a bucket type that `queue` lets
        out. False when there is no queue of this name."""
        if queue not in self._queues.machines():
            return False
        return other.accepts_all_repairs_of(self._queues.named(queue).filter, bucket_type.encode())

    def compared_types(self, queue: str, cluster: bytes | None) -> dict[str, list[str]]:
        """`compared` over all bucket types of this cluster."""
        return self.compared(queue, cluster, self._known_types())

    def _owner(self, queue: str) -> bytes | None:
        owner = self._queues.named(queue).stored.owner
        return owner.cluster if owner is not None and owner.cluster else None

    def _known_types(self) -> list[str]:
        """The cluster's bucket types, computed once for each reading of the records: reaping asks for every key."""
        records = self._controller.records
        read, count, found = self._types
        if read is not records or count != len(records):
            found = sorted({record.bucket_type for record in records.values()})
            self._types = (records, len(records), found)
        return found
