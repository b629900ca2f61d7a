"""What happens to the network of a world: cuts, lost packets, refused and silent ports, slow readers, resets.

Each lasts for a while, and is over earlier when the world heals. `undo` of one ends whatever disturbs the same pair of
machines: two disturbances that overlap end together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.simulation.world.steps import Doing, StepKind, step

if TYPE_CHECKING:
    from tests.simulation.world.machine import VirtualMachine

LONGEST_S: Final = 40.0
"""Longest disturbance: far longer than nodes need to notice one."""

BRIEF_SHARE: Final = 0.5
"""Share of disturbances of less than two seconds, which nodes hardly notice."""


def machines(doing: Doing) -> list[VirtualMachine]:
    """All machines of the world."""
    world = doing.world
    return [*(node.machine for node in world.nodes), world.clients, world.operators]


def pair(doing: Doing) -> tuple[VirtualMachine, VirtualMachine]:
    """Two machines by chance, one of them a node's."""
    node = doing.chance.choice([node.machine for node in doing.world.nodes])
    return node, doing.chance.choice([each for each in machines(doing) if each is not node])


async def for_a_while(doing: Doing, what: str, undo: Callable[[], object]) -> None:
    """`what` was broken; `undo` it after a time drawn by chance, unless the world has healed by then."""
    seconds = doing.chance.uniform(0.05, 2.0 if doing.chance.random() < BRIEF_SHARE else LONGEST_S)
    doing.tell(f"{what}, for {seconds:.1f} s")
    doing.heal_later(what, undo)
    entry = doing.world.broken[-1]
    await asyncio.sleep(seconds)
    if entry in doing.world.broken:
        doing.world.broken.remove(entry)
        undo()
        doing.tell(f"over: {what}")


@step(StepKind.ACT, weight=3)
async def cut(doing: Doing) -> None:
    """Nothing passes between two machines."""
    one, other = pair(doing)
    network = doing.world.network
    network.cut(one, other)
    what = f"{one.name} and {other.name} are cut off from each other"
    await for_a_while(doing, what, lambda: network.heal(one, other))


@step(StepKind.ACT, weight=3)
async def half_open(doing: Doing) -> None:
    """One direction between two machines is cut."""
    source, target = doing.chance.sample(pair(doing), 2)
    network = doing.world.network
    network.cut_one_way(source, target)
    what = f"nothing passes from {source.name} to {target.name}"
    await for_a_while(doing, what, lambda: network.heal(source, target))


@step(StepKind.ACT, weight=2)
async def isolation(doing: Doing) -> None:
    """A node is cut off from all other nodes; clients and operators still reach it."""
    node = doing.chance.choice([node.machine for node in doing.world.nodes])
    others = [each.machine for each in doing.world.nodes if each.machine is not node]
    network = doing.world.network
    for each in others:
        network.cut(node, each)

    def undo() -> None:
        for each in others:
            network.heal(node, each)

    await for_a_while(doing, f"{node.name} is cut off from all nodes", undo)


@step(StepKind.ACT, weight=2)
async def packet_loss(doing: Doing) -> None:
    """Packets get lost between two machines, which delays them."""
    one, other = pair(doing)
    network = doing.world.network
    probability = doing.chance.choice((0.01, 0.1, 0.5))
    network.lose(probability, one, other)
    what = f"{probability:g} of all packets between {one.name} and {other.name} get lost"
    await for_a_while(doing, what, lambda: network.heal(one, other))


@step(StepKind.ACT)
async def stalled_way(doing: Doing) -> None:
    """What two machines send each other arrives a few seconds late, all at once."""
    one, other = pair(doing)
    seconds = doing.chance.uniform(0.1, 10.0)
    doing.world.network.stall(one, other, seconds)
    doing.tell(f"nothing passes between {one.name} and {other.name} for {seconds:.1f} s")


@step(StepKind.ACT)
async def thin_way(doing: Doing) -> None:
    """Little fits through one direction between two machines."""
    source, target = doing.chance.sample(pair(doing), 2)
    network = doing.world.network
    bytes_per_s = doing.chance.choice((2_000, 20_000, 200_000))
    network.bandwidth(source, target, bytes_per_s)
    what = f"{bytes_per_s:,} bytes/s fit from {source.name} to {target.name}"
    await for_a_while(doing, what, lambda: network.heal(source, target))


@step(StepKind.ACT, weight=2)
async def refused_dials(doing: Doing) -> None:
    """Dials to a node are refused, as by a firewall."""
    node = doing.chance.choice([node.machine for node in doing.world.nodes])
    network = doing.world.network
    network.refuse(node)
    await for_a_while(doing, f"dials to {node.name} are refused", lambda: network.refuse(node, refused=False))


@step(StepKind.ACT)
async def silent_dials(doing: Doing) -> None:
    """Dials to a node get no answer."""
    node = doing.chance.choice([node.machine for node in doing.world.nodes])
    network = doing.world.network
    network.drop_dials(node)
    await for_a_while(doing, f"dials to {node.name} get no answer", lambda: network.drop_dials(node, dropped=False))


@step(StepKind.ACT)
async def slow_reader(doing: Doing) -> None:
    """One end of a connection takes little at a time."""
    network = doing.world.network
    found = network.connections()
    if not found:
        return
    end = doing.chance.choice(found)
    end = doing.chance.choice((end, end.other))
    network.slow_reader(end, doing.chance.choice((1_000, 10_000)))
    what = f"{end.host.machine.name} reads slowly what {end.other.host.machine.name} sends over one connection"
    await for_a_while(doing, what, lambda: network.slow_reader(end, None))


@step(StepKind.ACT, weight=2)
async def reset_connections(doing: Doing) -> None:
    """Some connections are reset by what is between their ends."""
    network = doing.world.network
    found = network.connections()
    for end in doing.chance.sample(found, min(len(found), doing.chance.choice((1, 1, 3, 20)))):
        network.reset(end)
        doing.tell(f"a connection from {end.host.machine.name} to {end.remote[0]}:{end.remote[1]} is reset")


@step(StepKind.ACT)
async def no_descriptors(doing: Doing) -> None:
    """A node's process gets no descriptor for another connection."""
    node = doing.chance.choice([node.machine for node in doing.world.nodes])
    network = doing.world.network
    network.lack_descriptors(node)
    what = f"{node.name} has no descriptor for another connection"
    await for_a_while(doing, what, lambda: network.lack_descriptors(node, lacking=False))
