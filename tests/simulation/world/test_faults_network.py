"""Disturbances of the network break something, and leave nothing broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.simulation.world import faults_network
from tests.simulation.world.clusters import Shape
from tests.simulation.world.kernel import SECOND
from tests.simulation.world.steps import Doing, found
from tests.simulation.world.world import World

PORT = 8098

STEPS = (
    "cut",
    "half-open",
    "isolation",
    "packet-loss",
    "stalled-way",
    "thin-way",
    "refused-dials",
    "silent-dials",
    "slow-reader",
    "no-descriptors",
)


@pytest.fixture
def world() -> Iterator[World]:
    """A world whose machines have processes, but no nodes."""
    with World(1, Shape(nodes=(2, 2))) as made:
        for node in made.nodes:
            node.machine.boot()
            sock = made.network.socket(node.machine)
            sock.bind((node.machine.address, PORT))
            sock.listen(100)
        dialling = [
            made.clients.loop.create_task(
                made.clients.loop.create_connection(asyncio.Protocol, node.machine.address, PORT)
            )
            for node in made.nodes
        ]
        assert made.kernel.run(10 * SECOND, unless=lambda: all(task.done() for task in dialling))
        yield made


def broken(world: World) -> list[Any]:
    """What of the network does not work as usual."""
    network = world.network
    hosts = [network.host(machine) for machine in faults_network.machines(Doing(world, "", 0))]
    found: list[Any] = [
        (source, target)
        for (source, target), way in network._ways.items()
        if way.blocked or way.loss or way.bytes_per_s or way.stalled_until_ns > world.kernel.now_ns
    ]
    found += [host for host in hosts if host.refused_ports or host.dropped_ports or host.lacks_descriptors]
    found += [end for end in network.connections() for flow in (end.outgoing, end.incoming) if flow.bytes_per_s]
    return found


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_each_disturbance_ends(world: World, name: str, early: bool) -> None:
    """Each breaks something at once, and nothing is broken when it is over by itself, or the world has healed."""
    for seed in range(5):
        task = world.operators.loop.create_task(found(name).perform(Doing(world, name, seed)))
        world.kernel.run_for(0.02)
        assert broken(world), seed
        if early:
            while world.broken:
                world.broken.pop()[1]()
            assert not broken(world) or name == "stalled-way"
        assert world.kernel.run(world.kernel.now_ns + 60 * SECOND, unless=task.done)
        world.kernel.run_for(15)
        task.result()
        assert not broken(world)
        assert not world.broken


def test_resets_break_connections(world: World) -> None:
    """Some of the connections are gone, and the story names them."""
    before = len(world.network.connections())
    task = world.operators.loop.create_task(found("reset-connections").perform(Doing(world, "reset-connections", 3)))
    assert world.kernel.run(world.kernel.now_ns + SECOND, unless=task.done)
    gone = before - len(world.network.connections())
    assert gone > 0
    assert sum("is reset" in line for line in world.story.lines) == gone


def test_all_disturbances_are_tested() -> None:
    """A new one has its place in this module's list."""
    known: list[Callable[..., Any]] = [
        each for each in vars(faults_network).values() if getattr(each, "__module__", "") == faults_network.__name__
    ]
    names = {each.__name__.replace("_", "-") for each in known}
    assert names - {"machines", "pair", "for-a-while", "reset-connections"} == set(STEPS)
