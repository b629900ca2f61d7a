"""A Riak beside a cluster: what each writes comes to the other, and what is lost on its way is found by the Riak."""

from __future__ import annotations

from tests.simulation.world import oracles
from tests.simulation.world import run as _steps_are_known  # noqa: F401 -- acts and faults are taught to the world
from tests.simulation.world.clusters import Shape
from tests.simulation.world.node_state import running
from tests.simulation.world.plan import drawn
from tests.simulation.world.world import World

WRITES = {"riak-write", "write-beside"}
LOSSES = {"riak-loses-changes", "riak-restarts"}


def lived(seed: str, among: set[str]) -> tuple[list[str], int, int]:
    """(what is wrong, keys that the Riak has, keys that its full-sync put into the cluster's queue)."""
    shape = Shape((3, 1), 1, riak=True)
    plan = drawn(seed, shape=shape, operations=80, acts=10, seconds=40.0, among=among)
    with World(plan.seed, plan.shape) as world:
        world.oracles = oracles.all_of(world)
        world.start()
        world.prepare()
        world.perform(plan.steps)
        world.heal()
        world.wait_until_quiet(300.0)
        failures = [what for oracle in world.oracles for what in oracle.judge(world)]
        assert world.riak is not None
        return [*failures, *world.failures], len(world.riak.model.objects), world.riak.pushed


def test_writes_of_both_sides_meet() -> None:
    """With and without contexts, and deletes: both end with the same clocks and values, and so does the second cluster,
    which knows nothing of a Riak."""
    failures, keys, _ = lived("meet", WRITES)
    assert failures == []
    assert keys == 4


def test_what_is_lost_on_its_way_is_found_by_the_riaks_full_sync() -> None:
    """The Riak fetches without an acknowledgement, and forgets its queue when it restarts."""
    failures, keys, pushed = lived("lost", WRITES | LOSSES)
    assert failures == []
    assert keys
    assert pushed


def test_a_difference_is_told() -> None:
    """What the judgement of such a world says of a key that the Riak has differently, and of one that it lacks."""
    with World("told", Shape((1, 1), 1, riak=True)) as world:
        world.start()
        world.prepare()
        assert world.riak is not None
        assert list(world.riak.unequal()) == []
        world.riak.model.put(b"k0", b"only there", {}, 1_795_000_000_000_000)
        world.riak.forget_queue()
        assert [what.partition(":")[0] for what in world.riak.unequal()] == ["riak"]


def test_how_much_waits_in_the_riak_is_known() -> None:
    """Each node asks by a push of no keys, on the connection that its fetches use, which goes on."""
    with World("waits", Shape((1, 1), 1, riak=True)) as world:
        world.start()
        world.prepare()
        (services,) = running(world.clusters["east"]).values()
        sink = services.sink
        (name,) = [name for name in sink.link_names() if sink.link_state(name).link.riak is not None]

        def looked(fetches: int) -> bool:
            state = sink.link_state(name)
            assert state.link.riak is not None
            return state.link.riak.waiting == 0 and state.link.fetches > fetches

        world.run_until(lambda: looked(10), 60.0, "its lengths are known")
        errors = sink.link_state(name).link.errors
        world.run_until(lambda: looked(40), 60.0, "fetches go on beside it")
        assert sink.link_state(name).link.errors == errors
