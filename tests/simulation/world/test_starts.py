"""Starts of a node whose metastore is lost meanwhile."""

from __future__ import annotations

from tests.simulation.world.clusters import Shape
from tests.simulation.world.kernel import SECOND
from tests.simulation.world.world import World

MOMENTS = 16
APART_S = 0.004
"""A start takes some 50 ms of virtual time."""

READY_S = 60.0


def test_a_metastore_that_is_lost_during_a_start_is_no_fault_of_the_program() -> None:
    """Whichever request of the start the connection breaks under, the start goes on, or ends as one that was not ready:
    the service manager repeats that, and leaves alone what ends by a fault of the program. The next start is whole."""
    endings: set[str] = set()
    with World("starts", Shape((1,), 2)) as world:
        world.start()
        (node,) = world.nodes
        for moment in range(MOMENTS):
            node.machine.kill()
            ended = len(node.ended)
            node.start()
            lost_ns = world.kernel.now_ns + round(moment * APART_S * SECOND)
            world.run_until(lambda end=lost_ns: world.kernel.now_ns >= end, READY_S, "a moment", every_s=0.0001)
            node.ensemble.reset(node.name)
            world.run_until(
                lambda before=ended: len(node.ended) > before or world.all_ready(), READY_S, "the start ends"
            )
            if len(node.ended) > ended:
                endings.add(node.ended[-1][1].partition(":")[0])
                node.start()
                world.run_until(world.all_ready, READY_S, "the next start is whole")
        assert world.story.errors == []
    assert endings == {"NotReady"}
