"""Where leaders go in a cluster of three nodes, in virtual time and with the product's own delays."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from isthmus.repl.controller.leader_balancer import REST_MIN_MS
from tests.simulation.world.asking import ask
from tests.simulation.world.clusters import Shape
from tests.simulation.world.machine import VirtualMachine
from tests.simulation.world.node import ADMIN_PORT, CLUSTER_PORT, HTTP_PORT
from tests.simulation.world.node_state import leaders_of, records_of
from tests.simulation.world.world import World

EVEN = {"east-1": 2, "east-2": 2, "east-3": 2}

SETTLES_S = 60.0
"""Within this virtual time leaderships are where they stay."""


def led(world: World) -> Counter[str]:
    """How many partitions each node leads and serves."""
    return Counter(each.node for each in leaders_of(world.clusters["east"]).values())


def deciding(world: World) -> list[str]:
    """The nodes that take themselves for the controller."""
    nodes = world.clusters["east"].nodes.items()
    return [name for name, each in nodes if each.running and each.node and each.node.services.controller.decides]


def close_listener(world: World, machine: VirtualMachine) -> None:
    """No node can dial this one from now on, and connections that others dialled to it end."""
    world.network.refuse(machine, CLUSTER_PORT)
    for end in world.network.connections():
        if end.remote == (machine.address, CLUSTER_PORT):
            world.network.reset(end)


@pytest.mark.parametrize("decides", [True, False])
@pytest.mark.parametrize("nodes", [2, 3])
def test_of_two_nodes_the_one_that_can_be_dialled_stays_the_controller(nodes: int, decides: bool) -> None:
    """The other one cannot be dialled, and it is the controller or not. The cluster has two nodes, or the third one is
    down. The role changes hands once at most, since reports reach only one of the two (R-CONTACT)."""
    with World(f"one deaf of {nodes}", Shape((nodes,), 6)) as world:
        world.start()
        world.run_until(lambda: led(world).total() == 6 and len(deciding(world)) == 1, SETTLES_S, "all is led")
        cluster = world.clusters["east"]
        (controller,) = deciding(world)
        others = [name for name in cluster.nodes if name != controller]
        deaf, heard = (controller, others[0]) if decides else (others[0], controller)
        close_listener(world, cluster.nodes[deaf].machine)
        if nodes == 3:
            cluster.nodes[others[1]].machine.kill()
        world.run_until(lambda: deciding(world) == [heard], SETTLES_S, "the node that can be dialled decides")
        for second in range(300):
            world.kernel.run_for(1.0)
            assert deciding(world) == [heard], f"after {second} s"


@pytest.mark.parametrize(("name", "decides"), [("undialled 1", False), ("undialled", True)])
def test_a_node_that_nobody_can_dial_settles_as_a_follower(name: str, decides: bool) -> None:
    """Its listener is closed while it leads, and also while it is the controller; its own dials and its session stand.
    It gives way, lets another node decide, and is given no leadership back within the minute of its rest; afterwards
    the balancer asks, and the others refuse, since they cannot dial it: the status says both. No write fails meanwhile,
    and as a follower it stays in sync. When it can be dialled again it leads its share (R-REACHED, R-CONTACT)."""
    with World(name, Shape((3,), 6)) as world:
        world.start()
        world.run_until(lambda: led(world) == EVEN, SETTLES_S, "each node leads its share")
        assert (deciding(world) == ["east-3"]) is decides, "which node decides follows from the world's name"
        deaf = world.clusters["east"].nodes["east-3"].machine
        close_listener(world, deaf)
        two = {"east-1": 3, "east-2": 3}
        world.run_until(lambda: led(world) == two, SETTLES_S, "the others lead")

        async def status() -> dict[str, Any]:
            answer = await ask(world.clusters["east"].address(2), ADMIN_PORT, "GET", "/admin/leaders")
            document: dict[str, Any] = answer.document
            return document

        async def written() -> None:
            for number in range(200):
                path = f"/types/default/buckets/b/keys/{number}"
                answer = await ask(world.clusters["east"].address(1), HTTP_PORT, "PUT", path, {})
                assert answer.status == 204, answer
                assert led(world) == two
                if number == 0 and not decides:  # the next controller has not seen it give way
                    assert "east-3 gave way as a leader" in (await status())["reason"]
                await asyncio.sleep(REST_MIN_MS / 1000 / 100)
            shown = await status()
            moves = (shown["run"] or {"moves": []})["moves"]
            assert any("east-3" in move["reason"] for move in moves), shown

        task = world.clients.loop.create_task(written())
        world.run_until(task.done, 3 * SETTLES_S, "all is written")
        task.result()
        records = records_of(world.clusters["east"]).values()
        assert all(len(record.isr) == 3 for record in records)
        world.network.refuse(deaf, CLUSTER_PORT, refused=False)
        world.run_until(lambda: led(world) == EVEN, 2 * SETTLES_S, "each node leads its share again")


def test_leaders_gather_while_nodes_are_idle_and_spread_once_they_are_busy() -> None:
    """With the shipped settings and delays: on one node within half a minute, on all within half a minute of load, and
    back; writes at any node succeed meanwhile. The status names the load."""
    with World("gathered", Shape((3,), 6, gathered=True)) as world:
        world.start()
        cluster = world.clusters["east"]

        async def written() -> None:
            for number in range(400):
                path = f"/types/default/buckets/b/keys/{number}"
                answer = await ask(cluster.address(1 + number % 3), HTTP_PORT, "PUT", path, {})
                assert answer.status == 204, answer
                await asyncio.sleep(0.25)

        async def goal() -> dict[str, Any]:
            answer = await ask(cluster.address(2), ADMIN_PORT, "GET", "/admin/leaders")
            found: dict[str, Any] = answer.document["goal"]
            return found

        def alone() -> bool:
            return list(led(world).values()) == [6]

        writing = world.clients.loop.create_task(written())
        world.run_until(alone, SETTLES_S / 2, "one node leads all")
        (leader,) = led(world)
        cluster.nodes[leader].machine.set_busy(0.9)
        world.run_until(lambda: led(world) == EVEN, SETTLES_S / 2, "each node leads its share")
        asked = world.clients.loop.create_task(goal())
        world.run_until(asked.done, SETTLES_S, "the status")
        assert asked.result()["nodes"] == 3
        assert asked.result()["reason"].startswith(f"{leader} was busy for ")
        cluster.nodes[leader].machine.set_busy(0.02)
        world.run_until(alone, SETTLES_S, "one node leads all again")
        world.run_until(writing.done, 3 * SETTLES_S, "all is written")
        writing.result()


def test_nothing_moves_when_the_leader_of_all_dies_and_comes_back() -> None:
    """The others are elected, and gather on one of themselves; the node that is back follows."""
    with World("gathered and killed", Shape((3,), 6, gathered=True)) as world:
        world.start()
        cluster = world.clusters["east"]
        world.run_until(lambda: list(led(world).values()) == [6], SETTLES_S, "one node leads all")
        (first,) = led(world)
        cluster.nodes[first].machine.kill()
        world.run_until(lambda: led(world).total() == 6 and first not in led(world), SETTLES_S, "others lead")
        cluster.nodes[first].start()
        world.run_until(lambda: list(led(world).values()) == [6], 2 * SETTLES_S, "one of them leads all")
        assert first not in led(world)
        world.kernel.run_for(120.0)
        assert first not in led(world)
