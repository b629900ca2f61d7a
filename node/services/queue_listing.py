"""The shares of this node in its source queues, as operators see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import asdict

import msgspec

from isthmus.node.nouns.queue import (
    OfferSet,
    OwnerRow,
    QueueChanges,
    QueueConsumer,
    QueueDecree,
    QueuePriorities,
    QueuePriority,
    QueueShare,
    QueueShares,
    QueueThrottle,
    ReferenceLimits,
    SuspensionRow,
)
from isthmus.node.nouns.rows import DifferingProperties
from isthmus.node.services.separate_rows import SeparateRows
from isthmus.queues.backlog_count import Backlog
from isthmus.queues.bulk_queue import BulkQueue
from isthmus.queues.queue_documents import QueueSuspension
from isthmus.queues.queue_server import QueueServer
from isthmus.queues.rate_limit import rates_shown
from isthmus.queues.service import QueueService
from isthmus.queues.status import gap_count, reason
from isthmus.queues.wire import OFF
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.property_digests import types_of


async def shares_of(queues: QueueService) -> QueueShares:
    """A share for each queue, in the order in which they were defined."""
    held, live = queues.queue_store.unread, queues.cluster.live_nodes()
    shares: list[QueueShare] = []
    rows = SeparateRows({})
    for one in queues.servers():
        try:
            shares.append(_share(one, queues.node, await queues.backlog(one), queues.time, live, held))
        except Exception as error:  # noqa: BLE001 -- logged as unforeseen
            rows.fail(one.settings.name, error)
    return QueueShares(shares, failed=rows.shown())


def _share(
    queue: QueueServer, node: str, now: Backlog, time: TimeSource, live: Collection[str], held: str
) -> QueueShare:
    """`now`: how many changes wait. `live`: the live nodes, see `gap_count`. `held`: why no queue of the node serves
    anything, "" when they do."""
    machine, suspension, stored = queue.machine, queue.serving_suspension, queue.stored
    counts, budget, ledger = machine.counts, machine.budget, machine.ledger()
    full_sync, fold = machine.bulk_queues
    oldest_ms = now.oldest_ms
    return QueueShare(
        node=node,
        name=queue.settings.name,
        partitions=len(machine.windows),
        filter=str(queue.filter),
        cascade=queue.settings.cascade,
        overflow=queue.settings.overflow,
        riak_fetch=queue.settings.riak_fetch,
        owner=_owner(queue),
        waiting=now.changes,
        waiting_at_ms=now.at_ms,
        priorities=QueuePriorities(
            QueuePriority(now.changes, machine.in_flight_count()), _priority(full_sync), _priority(fold)
        ),
        in_flight=machine.in_flight_count(),
        oldest_age_ms=None if oldest_ms is None else max(1, time.wall_ms() - oldest_ms),  # 0: nothing waits
        publishing=_running(queue, machine.publishing_suspended is None),
        serving=_running(queue, suspension is None and not held),
        suspended=None if suspension is None else _suspension(suspension),
        suspensions=[_suspension(one) for one in stored.suspensions],
        decree=None if stored.command is None else msgspec.convert(stored.command.as_dict(), QueueDecree),
        limits=ReferenceLimits(budget.reference_limit, budget.object_limit, budget.object_size_limit_bytes),
        throttle=_throttle(queue, time),
        gaps=gap_count(queue, node, live),
        properties_differ={at: types_of(found) for at, found in queue.differing.items()},
        property_differences={
            at: [msgspec.convert(one.row(), DifferingProperties) for one in found]
            for at, found in queue.differing.items()
        },
        held_types={
            name.decode(errors="backslashreplace"): at for name, at in sorted(machine.held_back_since().items())
        },
        changed=_changes(queue),
        consumers=_consumers(queue, time),
        objects_in_memory=budget.objects,
        references_in_memory=budget.references,
        served=counts.served,
        acknowledged=counts.acknowledged,
        redelivered=counts.redelivered,
        batches=counts.batches,
        collapsed=ledger.collapsed + ledger.collapsed_unseen,
        vanished=ledger.vanished,
        late_acknowledgements=counts.late,
        refused_acknowledgements=counts.refused,
        reason=held or reason(queue, time.now_ms()),
    )


def _owner(queue: QueueServer) -> OwnerRow | None:
    owner = queue.stored.owner
    if owner is None or not owner.cluster:
        return None
    return OwnerRow(owner.name, owner.cluster.hex(), owner.version, owner.since_ms, owner.by)


def _suspension(one: QueueSuspension) -> SuspensionRow:
    return SuspensionRow(one.what, one.node, one.by, one.at_ms, one.reason)


def _priority(bulk: BulkQueue) -> QueuePriority:
    return QueuePriority(bulk.waiting_count, bulk.in_flight_count, **asdict(bulk.counts))


def _running(queue: QueueServer, well: bool) -> str:
    """State of publishing, or of serving: "off" where the source of the node is switched off."""
    return "off" if queue.state == OFF else "running" if well else "suspended"


def _throttle(queue: QueueServer, time: TimeSource) -> QueueThrottle:
    rates = queue.stored.rates
    found = queue.throttle.as_dict(time.now_ms())
    return msgspec.convert(
        {**found, "file": rates_shown(queue.configured), "set": None if rates is None else rates.act._asdict()},
        QueueThrottle,
    )


def _consumers(queue: QueueServer, time: TimeSource) -> list[QueueConsumer]:
    """The newest fetch first."""
    machine, waiting = queue.machine, queue.waiters.nodes()
    began_ms = time.wall_ms() - time.now_ms()
    in_flight: Counter[str] = Counter()
    for batch in machine.leases.batches.values():
        in_flight[batch.session.node] += len(batch)
    return [
        QueueConsumer(
            node,
            node in waiting,
            began_ms + one.fetched_ms,
            None if one.given_ms is None else began_ms + one.given_ms,
            one.given,
            in_flight[node],
        )
        for node, one in reversed(machine.consumers.by_node().items())
    ]


def _changes(queue: QueueServer) -> QueueChanges:
    command, limits = queue.stored.command, queue.stored.limits
    change = None if command is None else command.change
    return QueueChanges(
        msgspec.UNSET
        if change is None
        else OfferSet(change.filter, change.cascade, change.was, change.by, change.at_ms, change.reason),
        msgspec.UNSET
        if limits is None
        else {**limits.values, "by": limits.by, "at_ms": limits.at_ms, "reason": limits.reason},
    )
