"""What happens to machines: processes that end, power that fails, clocks, disks and networks that go wrong.

Every fault lasts a while and is then undone, or it is undone when the world heals. A fault that could lose what the
product promises to keep only where enough copies are left (a directory that is lost) happens to a node of a cluster
whose other copies are complete.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.simulation.world.copies import complete_without, leaders_forced_later
from tests.simulation.world.disk import Failure
from tests.simulation.world.kernel import SECOND
from tests.simulation.world.steps import Doing, StepKind, step
from tests.support.memory_metastore import WriteFault

if TYPE_CHECKING:
    from tests.simulation.world.node import WorldNode

RESTART_S: Final = (0.2, 1.0, 3.0, 8.0, 20.0)
"""After these times a service manager, or the machine's boot, starts the process again."""

CRASHES_S: Final = 3.0
"""Within this time a process of a crash loop ends."""

IDLE_SHARE: Final = 0.05
"""Of a core, taken by a node's loop where nothing else is said."""

BUSY_S: Final = (8.0, 20.0, 40.0)
"""How long nodes are busy: below and above what makes leaders spread."""

FROZEN_S: Final = (0.3, 2.0, 5.0, 12.0, 30.0)
"""Shorter and longer than the time-outs of links and sessions."""

CUT_S: Final = (0.5, 3.0, 8.0, 25.0)

SHORT: Final = (
    Failure.SPACE, Failure.INODES, Failure.DESCRIPTORS, Failure.READ_ONLY, Failure.QUOTA, Failure.MEMORY, Failure.LATE,
)  # fmt: skip
"""What a disk may be short of; each begins in the middle of what is being written."""

CLOCK_S: Final = (-600.0, -30.0, -0.1, -0.02, 0.05, 5.0, 30.0, 600.0)
"""By how much a wall clock is stepped."""


async def for_a_while(doing: Doing, what: str, undo: Callable[[], object], seconds: float) -> None:
    """Leave something broken for some time; the world may heal it before."""
    world = doing.world
    doing.tell(what)
    entry = (what, undo)
    world.disturbances += 1
    world.broken.append(entry)
    await asyncio.sleep(seconds)
    if any(each is entry for each in world.broken):
        world.broken = [each for each in world.broken if each is not entry]
        world.disturbances += 1
        undo()


def running(node: WorldNode) -> bool:
    """Whether it has a process."""
    return node.running


def start_again(node: WorldNode) -> None:
    """Start its process, unless it has one."""
    if not node.running:
        node.start()


def other(doing: Doing, node: WorldNode) -> WorldNode | None:
    """Another node of its cluster by chance."""
    return doing.node(lambda each: each.cluster == node.cluster and each is not node)


# Processes and machines


@step(StepKind.FAULT, weight=4)
async def kill(doing: Doing) -> None:
    """A process ends at once."""
    node = doing.node(running)
    if node is not None:
        node.machine.kill()
        await for_a_while(doing, f"{node.name} is killed", lambda: start_again(node), doing.chance.choice(RESTART_S))


@step(StepKind.FAULT, weight=1)
async def crash_loop(doing: Doing) -> None:
    """A process ends again and again, soon after it began."""
    node = doing.node(running)
    if node is None:
        return
    what = f"{node.name} ends again and again"
    for _ in range(doing.chance.randint(2, 5)):
        node.machine.kill()
        await for_a_while(doing, what, lambda: start_again(node), RESTART_S[0])
        await asyncio.sleep(doing.chance.random() * CRASHES_S)
        if not node.running:
            return


@step(StepKind.FAULT, weight=1)
async def kill_cluster(doing: Doing) -> None:
    """All processes of a cluster end within a moment."""
    cluster = doing.cluster()
    killed = cluster.running
    for node in killed:
        node.machine.kill()

    def undo() -> None:
        for node in killed:
            start_again(node)

    await for_a_while(doing, f"all of {cluster.name} is killed", undo, doing.chance.choice(RESTART_S))


def lose_power(doing: Doing, node: WorldNode) -> None:
    """A machine without power; what was not synced may be gone."""
    doing.world.network.power_lost(node.machine)
    node.machine.kill()
    node.disk.power_loss(doing.chance)
    node.machine.power_on()


@step(StepKind.FAULT, weight=3)
async def power_loss(doing: Doing) -> None:
    """A machine loses power."""
    node = doing.node(running)
    if node is not None:
        lose_power(doing, node)
        what = f"{node.name} has lost power"
        await for_a_while(doing, what, lambda: start_again(node), doing.chance.choice(RESTART_S))


@step(StepKind.FAULT, weight=1)
async def power_loss_of_a_cluster(doing: Doing) -> None:
    """All machines of a cluster lose power at once."""
    cluster = doing.cluster()
    lost = list(cluster.nodes.values())
    for node in lost:
        if node.running:
            lose_power(doing, node)

    def undo() -> None:
        for node in lost:
            start_again(node)

    await for_a_while(doing, f"all of {cluster.name} has lost power", undo, doing.chance.choice(RESTART_S))


@step(StepKind.FAULT, weight=3)
async def freeze(doing: Doing) -> None:
    """A process is suspended, as by SIGSTOP or a paused machine."""
    node = doing.node(lambda each: each.running and not each.machine.frozen)
    if node is not None:
        node.machine.freeze()
        boots = node.machine.boots

        def thaw() -> None:
            if node.running and node.machine.boots == boots and node.machine.frozen:
                node.machine.thaw()

        await for_a_while(doing, f"{node.name} is suspended", thaw, doing.chance.choice(FROZEN_S))


# Clocks


@step(StepKind.FAULT, weight=3)
async def clock_step(doing: Doing) -> None:
    """A wall clock is stepped, and set right when the world heals (H26)."""
    node = doing.node()
    assert node is not None
    seconds = doing.chance.choice(CLOCK_S)
    node.machine.wall_offset_ns += round(seconds * SECOND)
    doing.tell(f"the clock of {node.name} is stepped by {seconds:+g} s")

    def right() -> None:
        node.machine.wall_offset_ns = 0

    doing.heal_later(f"the clock of {node.name} is wrong", right)


@step(StepKind.FAULT, weight=1)
async def clock_drift(doing: Doing) -> None:
    """All clocks of a machine run too fast or too slowly."""
    node = doing.node()
    assert node is not None
    node.machine.set_drift(doing.chance.choice((0.99, 0.999, 1.001, 1.01)))
    doing.tell(f"the clocks of {node.name} run {node.machine.drift} times as fast")
    doing.heal_later(f"the clocks of {node.name} drift", lambda: node.machine.set_drift(1.0))


# Load


@step(StepKind.FAULT, weight=4, needs="gathered")
async def busy(doing: Doing) -> None:
    """The nodes of a cluster are busy for a while, so that leaders spread; then idle, so that they gather."""
    cluster, share = doing.cluster(), doing.chance.choice((0.35, 0.7, 0.9))
    for node in cluster.nodes.values():
        node.machine.set_busy(share)

    def idle() -> None:
        for node in cluster.nodes.values():
            node.machine.set_busy(IDLE_SHARE)

    await for_a_while(
        doing, f"nodes of {cluster.name} are busy for {share:.0%} of a core", idle, doing.chance.choice(BUSY_S)
    )


# Disks


async def fail_for_a_while(doing: Doing, node: WorldNode, failure: Failure, *, left_bytes: int = 0) -> None:
    """Let a disk fail so; a node that ends meanwhile is started when the disk works again."""
    node.disk.fail(failure, left_bytes=left_bytes)

    def undo() -> None:
        node.disk.heal(failure)
        start_again(node)

    await for_a_while(doing, f"the disk of {node.name}: {failure.value}", undo, doing.chance.choice(CUT_S))


@step(StepKind.FAULT, weight=3)
async def shortage(doing: Doing) -> None:
    """A disk is short of space, inodes, descriptors, a quota or memory, in the middle of a write or sync, or mounted
    for reading only. No node ends by it."""
    node = doing.node(running)
    if node is not None:
        failure = doing.chance.choice(SHORT)
        left_bytes = doing.chance.choice((0, 50_000, 100_000_000)) if failure is Failure.SPACE else 0
        await fail_for_a_while(doing, node, failure, left_bytes=left_bytes)


@step(StepKind.FAULT, weight=1)
async def broken_disk(doing: Doing) -> None:
    """A disk answers EIO, and the node ends."""
    node = doing.node(running)
    if node is not None:
        await fail_for_a_while(doing, node, doing.chance.choice((Failure.WRITE, Failure.SYNC)))


@step(StepKind.FAULT, weight=2)
async def slow_disk(doing: Doing) -> None:
    """Every sync of a disk takes long."""
    node = doing.node()
    assert node is not None
    node.disk.slow(doing.chance.choice((5.0, 50.0, 400.0)))
    await for_a_while(
        doing, f"the disk of {node.name} is slow", lambda: node.disk.slow(0.0), doing.chance.choice(CUT_S)
    )


@step(StepKind.FAULT, weight=2)
async def lost_directory(doing: Doing) -> None:
    """A machine comes back with an empty data directory, while the others have everything. If the others go before its
    session is over, its partitions wait for an operator."""
    node = doing.node(running)
    if node is None or not complete_without(doing.world.clusters[node.cluster], node):
        return
    node.machine.kill()
    shutil.rmtree(node.directory / "data", ignore_errors=True)
    leaders_forced_later(doing, doing.world.clusters[node.cluster], waits_for=node)
    what = f"{node.name} has lost its directory"
    await for_a_while(doing, what, lambda: start_again(node), doing.chance.choice(RESTART_S))


# Networks


@step(StepKind.FAULT, weight=3)
async def cut(doing: Doing) -> None:
    """Two nodes of a cluster do not reach each other, or one does not reach the other."""
    node = doing.node()
    assert node is not None
    peer = other(doing, node)
    if peer is None:
        return
    network = doing.world.network
    one_way = doing.chance.random() < 0.4
    (network.cut_one_way if one_way else network.cut)(node.machine, peer.machine)
    what = f"{node.name} {'does not reach' if one_way else 'is cut off from'} {peer.name}"
    undo = lambda: network.heal(node.machine, peer.machine)  # noqa: E731
    await for_a_while(doing, what, undo, doing.chance.choice(CUT_S))


@step(StepKind.FAULT, weight=2)
async def cut_off(doing: Doing) -> None:
    """One node is cut off from all others of its cluster, and perhaps from the metastore."""
    node = doing.node()
    assert node is not None
    cluster = doing.world.clusters[node.cluster]
    network = doing.world.network
    others = [each for each in cluster.nodes.values() if each is not node]
    for each in others:
        network.cut(node.machine, each.machine)
    metastore_too = doing.chance.random() < 0.5
    if metastore_too:
        cluster.ensemble.cut(node.name)

    def undo() -> None:
        for each in others:
            network.heal(node.machine, each.machine)
        if metastore_too:
            cluster.ensemble.heal(node.name)

    what = f"{node.name} is cut off{' also from the metastore' if metastore_too else ''}"
    await for_a_while(doing, what, undo, doing.chance.choice(CUT_S))


@step(StepKind.FAULT, weight=2)
async def cut_clusters(doing: Doing) -> None:
    """Two clusters do not reach each other."""
    names = doing.chance.sample(list(doing.world.clusters), 2)
    one, two = (list(doing.world.clusters[name].nodes.values()) for name in names)
    network = doing.world.network
    pairs = [(first, second) for first in one for second in two]
    for first, second in pairs:
        network.cut(first.machine, second.machine)

    def undo() -> None:
        for first, second in pairs:
            network.heal(first.machine, second.machine)

    await for_a_while(doing, f"{names[0]} and {names[1]} are cut off", undo, doing.chance.choice(CUT_S))


@step(StepKind.FAULT, weight=2)
async def lossy_network(doing: Doing) -> None:
    """Packets are lost everywhere: connections stutter."""
    network = doing.world.network
    network.lose(doing.chance.choice((0.01, 0.05, 0.2)))
    await for_a_while(doing, "packets are lost", lambda: network.lose(0.0), doing.chance.choice(CUT_S))


@step(StepKind.FAULT, weight=1)
async def narrow_network(doing: Doing) -> None:
    """Two machines have little bandwidth between them, or nothing arrives for a while."""
    node, peer = doing.node(), doing.node()
    assert node is not None
    if peer is None or peer is node:
        return
    network, seconds = doing.world.network, doing.chance.choice(CUT_S)
    if doing.chance.random() < 0.5:
        network.stall(node.machine, peer.machine, seconds)
        what, undo = f"nothing arrives between {node.name} and {peer.name}", lambda: None
    else:
        network.bandwidth(node.machine, peer.machine, doing.chance.choice((2_000.0, 50_000.0)))
        what, undo = (
            f"{node.name} to {peer.name} is narrow",
            lambda: network.bandwidth(node.machine, peer.machine, None),
        )
    await for_a_while(doing, what, undo, seconds)


@step(StepKind.FAULT, weight=2)
async def reset_connections(doing: Doing) -> None:
    """Some open connections end by a reset."""
    found = doing.world.network.connections()
    for end in doing.chance.sample(found, min(len(found), doing.chance.choice((1, 3, 10)))):
        doing.world.network.reset(end)
    doing.world.disturbances += 1
    doing.tell("connections are reset")


@step(StepKind.FAULT, weight=1)
async def slow_reader(doing: Doing) -> None:
    """The reader of a connection takes a kilobyte a second."""
    found = doing.world.network.connections()
    if not found:
        return
    end = doing.chance.choice(found)
    network = doing.world.network
    network.slow_reader(end)
    undo = lambda: network.slow_reader(end, None)  # noqa: E731
    await for_a_while(doing, "the reader of a connection is slow", undo, doing.chance.choice(CUT_S))


@step(StepKind.FAULT, weight=1)
async def undialled(doing: Doing) -> None:
    """Nobody can dial a node, which dials all others."""
    node = doing.node()
    assert node is not None
    network = doing.world.network
    if doing.chance.random() < 0.5:
        network.refuse(node.machine)
        undo: Callable[[], object] = lambda: network.refuse(node.machine, refused=False)  # noqa: E731
    else:
        network.drop_dials(node.machine)
        undo = lambda: network.drop_dials(node.machine, dropped=False)  # noqa: E731
    await for_a_while(doing, f"{node.name} cannot be dialled", undo, doing.chance.choice(CUT_S))


@step(StepKind.FAULT, weight=1)
async def no_descriptors(doing: Doing) -> None:
    """A machine accepts no connection for want of descriptors."""
    node = doing.node()
    assert node is not None
    network = doing.world.network
    network.lack_descriptors(node.machine)
    undo = lambda: network.lack_descriptors(node.machine, lacking=False)  # noqa: E731
    await for_a_while(doing, f"{node.name} is short of descriptors for sockets", undo, doing.chance.choice(CUT_S))


# Metastore


@step(StepKind.FAULT, weight=2)
async def session_expires(doing: Doing) -> None:
    """The metastore ends a node's session."""
    node = doing.node(running)
    if node is not None:
        node.ensemble.expire(node.name)
        doing.world.disturbances += 1
        doing.tell(f"the session of {node.name} has expired")


@step(StepKind.FAULT, weight=2)
async def metastore_is_away(doing: Doing) -> None:
    """A cluster's metastore does not answer, or a node does not reach it or loses answers, or servers are slow or
    late."""
    cluster = doing.cluster()
    ensemble = cluster.ensemble
    node = doing.chance.choice(list(cluster.nodes.values()))
    match doing.chance.choice(("stopped", "cut", "slow", "late", "spoiled")):
        case "stopped":
            ensemble.stop()
            what, undo = f"the metastore of {cluster.name} has stopped", ensemble.start
        case "cut":
            ensemble.cut(node.name)
            what, undo = f"{node.name} does not reach the metastore", lambda: ensemble.heal(node.name)
        case "late":
            ensemble.lag(node.name, doing.chance.choice((50.0, 1_000.0)))
            what, undo = f"the server of {node.name} is late", lambda: ensemble.lag(node.name, 0.0)
        case "spoiled":
            ensemble.spoil(node.name, *doing.chance.choices((WriteFault.REQUEST_LOST, WriteFault.ANSWER_LOST), k=3))
            what, undo = f"{node.name} loses answers of the metastore", lambda: ensemble.reset(node.name)
        case _:
            ensemble.slow(doing.chance.choice((20.0, 300.0)))
            what, undo = f"the metastore of {cluster.name} is slow", lambda: ensemble.slow(0.0)
    await for_a_while(doing, what, undo, doing.chance.choice(CUT_S))
