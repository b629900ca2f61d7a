"""When a healed world is quiet: everything was delivered, compared and closed, and nothing changes any more.

The world's operator compares all clusters by full-sync, as one does after a disaster: a patient one once the nodes have
healed their gaps by themselves, others at once. A world that is not quiet within a stated virtual time has failed, and
the failure names what is not quiet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from isthmus.aae.exchange.exchange import PROVING, ExchangeVerdict
from isthmus.aae.scheduling.history import CheckResult
from isthmus.node.services import reassignment_status
from isthmus.node.services.container import NodeServices
from isthmus.queues.queue_server import QueueServer
from isthmus.queues.wire import SERVING, STARTING
from isthmus.repl.model.record import PartitionRecord, PartitionStatus
from tests.simulation.world.asking import NoAnswer, ask
from tests.simulation.world.credentials import LAST
from tests.simulation.world.kernel import SECOND
from tests.simulation.world.node import ADMIN_PORT
from tests.simulation.world.node_state import (
    Direction,
    Led,
    directions,
    leaders_of,
    records_of,
    running,
    services_of,
)

if TYPE_CHECKING:
    from tests.simulation.world.clusters import WorldCluster
    from tests.simulation.world.world import World

LOOK_S = 0.25
"""Virtual time between two looks at what is not quiet."""

STABLE_S = 3.0
"""Virtual time in which nothing changes."""

CHECK_S = 60.0
"""Longest virtual time of one full-sync."""

PATIENT_SHARE = 1 / 3
"""Share of worlds whose operator waits until no gap is open: nodes look at gaps once a minute. Others compare at once,
which closes gaps in a second."""

PATIENT_NODES = 3
"""Worlds with at most so many nodes are patient, too: their minutes cost little. With a Riak none is: what it brings
late makes checks find differences, after which nodes look at a gap once in some minutes."""

REASONS_TOLD = 12

ResultKey = tuple[str, str, str]
"""(cluster, name of the full-sync, bucket type)."""


# -- what has not settled --------------------------------------------------------------------------------------------


def unsettled(world: World, *, gaps: bool = True) -> list[str]:
    """What is still to be done by itself, a sentence each; proofs by full-sync are not asked for, and with `gaps` false
    what they close is not either."""
    found = [reason for cluster in world.clusters.values() for reason in _of_cluster(world, cluster, gaps)]
    return found if world.riak is None else [*found, *world.riak.unequal()]


def _of_cluster(world: World, cluster: WorldCluster, gaps: bool) -> Iterator[str]:
    down = [node.name for node in cluster.nodes.values() if services_of(node) is None]
    yield from (f"{name} does not run" for name in down)
    for node in cluster.nodes.values():
        if node.name not in down and node.node is not None:
            is_ready, why = node.node.ready()
            if not is_ready:
                yield f"{node.name} is not ready: {why}"
    records, leaders, services = records_of(cluster), leaders_of(cluster), running(cluster)
    if not records:
        yield f"{cluster.name} has no partition"
    for number, record in records.items():
        yield from _of_partition(cluster, number, record, leaders.get(number), services)
    for name, each in services.items():
        yield from (
            f"{name}: its copy of partition {number} is to be deleted"
            for number, partition in each.runtime.partitions.items()
            if partition.removed
        )
        yield from _of_sink(name, each)
        for peer, at_s in each.clocks.certificates_expire_s().items():
            if at_s < LAST.timestamp():
                yield f"{name}: it has not heard that the certificate of {peer} was replaced"
        scheduler = each.fullsync.scheduler
        if scheduler._reserved_by:
            yield f"{name}: a full-sync with {scheduler._reserved_by} runs"
        for queue_name in each.queues.machines():
            yield from _of_queue(world, cluster, name, each, each.queues.named(queue_name), leaders, gaps)
    some = next(iter(services.values()), None)
    if some is not None:
        controller = some.controller
        moving = reassignment_status.summary_of(controller.placement, controller.records, controller.registrations)
        if moving["under_way"]:
            yield f"{cluster.name}: partitions move: {moving['reason']}"


def _of_partition(
    cluster: WorldCluster,
    number: int,
    record: PartitionRecord,
    led: Led | None,
    services: Mapping[str, NodeServices],
) -> Iterator[str]:
    where = f"{cluster.name}: partition {number}"
    if record.status is not PartitionStatus.ONLINE:
        yield f"{where} is {record.status.value}: {record.reason}"
        return
    lacking = sorted(set(record.replicas) - {member.node for member in record.isr})
    if lacking:
        yield f"{where}: not in sync at {', '.join(lacking)}"
    if record.adding or record.removing:
        yield f"{where}: its replicas change"
    if led is None:
        yield f"{where}: no leader serves"
        return
    end = led.partition.replica.leo
    for name in record.replicas:
        here = None if name not in services else services[name].runtime.partitions.get(number)
        if here is None:
            yield f"{where}: {name} has no copy"
        elif here.replica.applied != end:
            yield f"{where}: {name} has applied {here.replica.applied} of {end}"


def _of_sink(name: str, services: NodeServices) -> Iterator[str]:
    sink = services.sink
    for link_name, link in sink._pool.links.items():
        errors = sink._pool.scheduler.errors(link_name)
        where = f"{name}: its link to {link_name.peer}, queue {link_name.queue},"
        if sink.is_suspended(link_name):
            yield f"{where} is suspended"
        elif errors:
            yield f"{where} fails: {link.last_error}"
        elif not link.fetches:
            yield f"{where} has no answer yet"
        elif link.source_state not in (SERVING, STARTING):  # a node that leads nothing never ceases to start
            yield f"{where} waits: the source is {link.source_state}"
    if any(slot.pushing for slots in sink._pool._slots.values() for slot in slots):
        yield f"{name}: its sink stores a batch"


def _of_queue(
    world: World,
    cluster: WorldCluster,
    name: str,
    services: NodeServices,
    queue: QueueServer,
    leaders: Mapping[int, Led],
    gaps: bool,
) -> Iterator[str]:
    owner, machine = queue.stored.owner, queue.machine
    where = f"{name}: queue {queue.settings.name}"
    for what, suspension in (("serving", queue.serving_suspension), ("publishing", queue.publishing_suspension)):
        if suspension is not None:
            yield f"{where}: {what} is suspended by {suspension.by}"
    if owner is None or not owner.cluster:
        return  # nobody fetches: what waits there waits rightly
    types = {
        each.bucket_type.encode()
        for sink in world.clusters.values()
        if any(one.cluster_uuid == owner.cluster for one in running(sink).values())
        for each in records_of(sink).values()
    }
    for bulk in machine.bulk_queues:
        if bulk.waiting_count - bulk.parked_count or bulk.in_flight_count:
            counts = f"{bulk.waiting_count} wait, {bulk.in_flight_count} are in flight"
            yield f"{where}: references of priority {bulk.priority}: {counts}"
    if machine.leases.batches:
        yield f"{where}: {len(machine.leases.batches)} batches are under lease"
    carried = services.queue_coverage.bucket_types(queue.settings.name)
    closing = [
        lost
        for lost in queue.stored.lost
        if all(
            each.encode() in types and _is_proven_by_fullsync(services, queue.settings.name, each)
            for each in lost.bucket_types or carried  # pushed ones may be of types that the queue does not carry
        )
    ]
    if gaps and closing:
        yield f"{where}: {len(closing)} losses of references are recorded"
    for number, led in leaders.items():
        if led.node != name or led.partition.bucket_type not in types:
            continue
        window = machine.windows.get(number)
        if window is None:
            yield f"{where}: no window stands in partition {number}"
        elif not window.contiguous or window.waiting_count or window.in_flight_count:
            yield (
                f"{where}: partition {number}: {window.waiting_count} wait, {window.in_flight_count} are in flight, "
                f"cursor {window.cursor}, read up to {window.scan} of {window.applied}"
            )
        elif not window.cursor == window.saved == window.applied:
            yield f"{where}: partition {number}: cursor {window.cursor}, saved {window.saved}, end {window.applied}"
        elif gaps:
            for gap in (*window.state.gaps, *window.unrecorded_gaps()):
                if _is_proven_by_fullsync(services, queue.settings.name, led.partition.bucket_type.decode()):
                    yield f"{where}: partition {number}: a gap is open from {gap.start} to {gap.end}: {gap.what}"


def _is_proven_by_fullsync(services: NodeServices, queue: str, bucket_type: str) -> bool:
    """Whether some full-sync of the node closes gaps of this queue and bucket type; without one an operator must."""
    status = services.fullsync_status
    peers = services.fullsync.scheduler.peers.values()
    return any(bucket_type in status.compared(peer).get(queue, ()) for peer in peers)


# -- proofs ----------------------------------------------------------------------------------------------------------


def newest_results(world: World) -> dict[ResultKey, CheckResult]:
    """The newest result of each full-sync and bucket type, of all nodes of a cluster together. Clocks of nodes may
    differ: the node that the operator orders, the first ready one, counts before others."""
    found: dict[ResultKey, CheckResult] = {}
    for cluster in world.clusters.values():
        for services in reversed(list(_ready(cluster))):
            for name, peer in services.fullsync.scheduler.peers.items():
                for result in peer.history.results:
                    found[cluster.name, name, result.bucket_type] = result
    return found


def _ready(cluster: WorldCluster) -> Iterator[NodeServices]:
    for node in cluster.nodes.values():
        services = services_of(node)
        if services is not None and node.node is not None and node.node.ready()[0]:
            yield services


def compared_types(direction: Direction) -> list[str]:
    """The bucket types that both clusters of a direction have and its full-sync compares."""
    have = [{record.bucket_type for record in records_of(each).values()} for each in direction[:2]]
    return sorted(direction.bucket_types & have[0] & have[1])


def unproven(world: World, before: Mapping[ResultKey, CheckResult]) -> list[str]:
    """The directions and bucket types that no check since the results `before` proved, a sentence each."""
    found, newest = [], newest_results(world)
    every = list(directions(world))
    both = {(one.source.name, one.sink.name): one for one in every}
    for one in every:
        back = both.get((one.sink.name, one.source.name))
        for bucket_type in compared_types(one):
            equal = (
                back is not None
                and bucket_type in back.bucket_types
                and all(each.queue.filter.accepts_all_repairs(bucket_type.encode()) for each in (one, back))
            )
            at = one.source.name, one.peer, bucket_type
            where = f"{one.source.name}: full-sync {one.peer}, bucket type {bucket_type}"
            result = newest.get(at)
            if result is None or result is before.get(at):
                found.append(f"{where}: no check ended")
            elif result.verdict not in PROVING:
                found.append(f"{where}: {result.verdict.value}: {result.reason} {dict(result.differences)}")
            elif (
                equal
                and back is not None
                and bucket_type in back.bucket_types
                and result.verdict is not ExchangeVerdict.IN_SYNC
            ):
                found.append(f"{where}: {result.verdict.value}, and both directions are compared")
    return found


def fingerprint(world: World) -> Any:
    """Equal as long as no log gets an entry, no repair is queued, and no node restarts."""
    return tuple(
        (
            node.name,
            node.machine.boots,
            tuple((number, each.replica.leo) for number, each in sorted(services.runtime.partitions.items())),
            tuple(bulk.counts.queued for queue in services.queues.machines().values() for bulk in queue.bulk_queues),
        )
        for node in world.nodes
        if (services := services_of(node)) is not None
    )


# -- the wait --------------------------------------------------------------------------------------------------------


def wait_until_quiet(world: World, seconds: float) -> None:
    """Run until the world is quiet. Raises AssertionError after that virtual time, with what is not quiet."""
    end_ns = world.kernel.now_ns + round(seconds * SECOND)
    waits: list[str] = []
    chance = Random(f"{world.kernel.seed}/operator").random()
    heals = world.riak is None and (len(world.nodes) <= PATIENT_NODES or chance < PATIENT_SHARE)

    def settled() -> bool:
        waits[:] = unsettled(world, gaps=heals)
        return not waits

    def wait(claim: str) -> None:
        left_s = max(0.0, (end_ns - world.kernel.now_ns) / SECOND)
        try:
            world.run_until(settled, left_s, claim, every_s=LOOK_S)
        except AssertionError as error:
            raise AssertionError(f"not quiet within {seconds:g} s: {_told(waits)}") from error

    while True:
        wait("what was done is delivered")
        mark, before = fingerprint(world), newest_results(world)
        _compare_all(world)
        wait("what was compared is repaired")
        waits[:] = unproven(world, before)
        if not waits and fingerprint(world) == mark:
            heals = True  # what is still open no comparison of the operator closes
            _pass(world, STABLE_S)
            if fingerprint(world) == mark and settled():
                return
            waits[:] = ["something has changed although all was delivered and proven"]
        if world.kernel.now_ns >= end_ns:
            raise AssertionError(f"not quiet within {seconds:g} s: {_told(waits)}")


def _pass(world: World, seconds: float) -> None:
    """Let time pass, while the oracles look."""
    until_ns = world.kernel.now_ns + round(seconds * SECOND)
    world.run_until(lambda: world.kernel.now_ns >= until_ns, seconds, "time passes", every_s=LOOK_S)


def _told(reasons: list[str]) -> str:
    told = "; ".join(reasons[:REASONS_TOLD])
    return told if len(reasons) <= REASONS_TOLD else f"{told}; and {len(reasons) - REASONS_TOLD} more"


def _compare_all(world: World) -> None:
    """The operator orders a check of every full-sync at one node of each cluster, and waits for their end."""
    loop = world.operators.loop
    orders = [
        loop.create_task(_order(cluster, number, f"{cluster.name} compares"))
        for cluster in world.clusters.values()
        for number in [_first_ready(cluster)]
        if number
    ]

    def ended() -> bool:
        checks = (each.fullsync.scheduler for cluster in world.clusters.values() for each in running(cluster).values())
        return all(order.done() for order in orders) and not any(each._reserved_by for each in checks)

    world.run_until(ended, CHECK_S, "every full-sync ends", every_s=LOOK_S)
    for order in orders:
        order.result()


def _first_ready(cluster: WorldCluster) -> int:
    """The number of the first node of a cluster that is ready and has a full-sync; 0 for none."""
    for number, node in enumerate(cluster.nodes.values(), start=1):
        services = services_of(node)
        if services is None or node.node is None or not services.fullsync.scheduler.peers:
            continue
        if node.node.ready()[0]:
            return number
    return 0


async def _order(cluster: WorldCluster, number: int, who: str) -> None:
    """Order a check of everything; while the node runs one of its own, wait for its turn."""
    host, credentials = cluster.address(number), cluster.credentials
    body = {"kind": "all", "by": "world"}
    while True:
        try:
            answer = await ask(host, ADMIN_PORT, "POST", "/admin/fullsync/run", body, credentials=credentials)
        except NoAnswer:
            answer = None
        if answer is not None and answer.status < 300:
            return
        if answer is not None and (answer.document or {}).get("reason") not in ("busy", "not-ready"):
            raise AssertionError(f"{who}: {answer.status} {answer.document}")
        await asyncio.sleep(0.5)
