"""Worlds with settings other than the defaults: each feature is drawn, and has the effect that it is drawn for."""

from __future__ import annotations

from tests.simulation.world import oracles
from tests.simulation.world import run as _steps_are_known  # noqa: F401 -- acts and faults are taught to the world
from tests.simulation.world.clusters import ANY, Shape
from tests.simulation.world.kept import plan_of, text_of
from tests.simulation.world.node_state import leaders_of
from tests.simulation.world.oracles_clients import receivers_of
from tests.simulation.world.plan import drawn
from tests.simulation.world.steps import KINDS, StepKind, possible
from tests.simulation.world.world import World


def test_each_feature_is_drawn() -> None:
    """In some of the seeds that tests run, beside plain worlds; with each feature come all steps that need it."""
    plans = [drawn(seed) for seed in range(100)]
    shapes = [plan.shape for plan in plans]
    for feature in ("partial", "bulky", "rollback", "tokens", "tls", "riak"):
        assert 5 <= sum(bool(getattr(shape, feature)) for shape in shapes) <= 50
    needing = {name for known in KINDS.values() for name, each in known.items() if each.needs}
    assert needing == {step.name for plan in plans for step in plan.steps} & needing
    for plan in plans:
        assert all(
            getattr(plan.shape, KINDS[kind][step.name].needs or "nodes")
            for step in plan.steps
            for kind in StepKind
            if step.name in KINDS[kind]
        )


def test_a_plan_with_features_is_kept_as_text() -> None:
    """And read again as it was."""
    plan = next(plan for plan in map(drawn, range(100)) if plan.shape.filters != ANY)
    assert plan_of(text_of(plan)) == plan


def test_logs_of_large_values_are_trimmed_and_followers_take_state() -> None:
    """A follower that comes back finds that the log begins later than what it has, and takes the leader's state; all is
    well in the end."""
    shape, operations = Shape((2, 1), 1, bulky=True), set(possible(StepKind.OPERATION, Shape()))
    plan = drawn("bulky", shape=shape, operations=200, acts=0, seconds=30.0, among=operations)
    with World(plan.seed, plan.shape) as world:
        world.oracles = oracles.all_of(world)
        world.start()
        world.prepare()
        world.clusters["east"].nodes["east-2"].machine.kill()
        world.perform(plan.steps)
        world.heal()
        world.wait_until_quiet(300.0)
        assert [what for oracle in world.oracles for what in oracle.judge(world)] == []
        assert world.failures == []
        led = leaders_of(world.clusters["east"])
        assert any(each.services.replog.start_of(number) > 0 for number, each in led.items())
        assert any("transfer.round_begins" in line for line in world.story.lines)


def test_a_key_is_promised_where_filters_and_comparisons_let_it() -> None:
    """One that a queue leaves out is not promised to the other cluster, and is to the first one."""
    with World("partial", Shape((1, 1), 1, filters=("!bucketname:local", "any"))) as world:
        world.start()
        world.prepare()
        keys = {key.bucket: key for key in world.workload.keys}
        assert receivers_of(world, keys["things"]) == {"east": ["west"], "west": ["east"]}
        assert receivers_of(world, keys["local"]) == {"east": [], "west": ["east"]}


def test_what_a_filter_leaves_out_is_not_sent() -> None:
    """Neither in real time nor by a full-sync of both sides: of a bucket that the queue of east leaves out, west has
    what its own clients wrote alone; east has what both wrote. So west, which cannot get all that it compares, does not
    ask to be equal, and east does; nothing is found amiss for it at either."""
    shape = Shape((1, 1), 1, filters=("!bucketname:local", "any"))
    operations = set(possible(StepKind.OPERATION, shape))
    plan = drawn("excluded", shape=shape, operations=150, acts=0, seconds=15.0, among=operations)
    with World(plan.seed, plan.shape) as world:
        world.oracles = oracles.all_of(world)
        world.start()
        world.prepare()
        world.perform(plan.steps)
        world.wait_until_quiet(300.0)
        assert [what for oracle in world.oracles for what in oracle.judge(world)] == []
        east, west = (node.node for node in world.nodes if node.node is not None)
        (to_west,), (to_east,) = (each.services.fullsync_status.checks().peers for each in (east, west))
        assert (to_west.equal_types, to_west.both_ways) == (to_west.bucket_types, True)
        assert (to_east.equal_types, to_east.both_ways) == ([], False)
        found: dict[str, set[str]] = {"east": set(), "west": set()}
        for key, done in world.history.keys.items():
            writers = {each.value: each.cluster for each in done if each.value}
            for read in done:
                if key.bucket == "local" and read.session.startswith("final-"):
                    found[read.cluster] |= {writers[value] for value in read.values}
        assert found == {"east": {"east", "west"}, "west": {"west"}}
