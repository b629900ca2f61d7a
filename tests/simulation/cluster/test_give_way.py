"""A leader that reaches the metastore and none of its followers lets another member lead (R-GIVE-WAY)."""

from __future__ import annotations

import pytest

from isthmus.repl.isr.give_way import CHECK_MS, GIVE_WAY_AGAIN_CHECKS, GIVE_WAY_CHECKS
from tests.simulation.cluster.scripted import Stage

LIMIT_MS = CHECK_MS * GIVE_WAY_CHECKS
AGAIN_MS = CHECK_MS * GIVE_WAY_AGAIN_CHECKS


def cut_apart(stage: Stage, names: set[str], others: set[str], *, ways: str = "both") -> None:
    """No message passes between two groups of nodes, or only those from `others`."""
    for name in names:
        for other in others - {name}:
            stage.cut((name, other))
            if ways == "both":
                stage.cut((other, name))


def break_links(stage: Stage, name: str) -> None:
    """End a node's connections, as their time-outs do some seconds after a cut."""
    for other in stage.others(name):
        stage.process(name).link_down(other)
        stage.process(other).link_down(name)


def led(stage: Stage) -> str:
    """The leader; it has had a write of its own acknowledged by all."""
    leader = stage.leads()
    assert leader is not None
    stage.write(leader, 2)
    stage.wait(stage.well)
    return leader


@pytest.mark.parametrize("ways", ["both", "from the leader"])
def test_a_leader_without_followers_gives_way_to_one_that_has_some(ways: str) -> None:
    """Below min-ISR it takes no write; after the limit another member leads, which takes writes, once and for all; when
    the cut ends the first one follows, and nothing is lost."""
    stage = Stage()
    leader = led(stage)
    others = {*stage.others(leader)}
    cut_apart(stage, {leader}, others, ways=ways)
    stage.write(leader)
    stage.wait(lambda: stage.in_sync() == {leader})
    stage.pass_ms(LIMIT_MS - 2 * CHECK_MS)
    assert stage.leads() == leader, "not before the limit"
    stage.wait(lambda: stage.leads() in others and stage.in_sync() == others)
    epoch = stage.record.epoch
    heir = stage.leads()
    assert heir is not None
    assert stage.write(heir, 3) is None
    stage.wait(lambda: stage.acked() == 5)
    stage.pass_ms(3 * AGAIN_MS)
    assert (stage.record.epoch, stage.leads()) == (epoch, heir), "it does not flap"
    stage.join()
    stage.wait(stage.well)
    assert stage.leads() == heir
    stage.world.checkers.final()


def test_a_leader_without_followers_gives_way_though_nothing_is_written() -> None:
    """Clients of the others cannot reach it either, so no entry shows who lags; all members stay in the ISR. Another
    member leads after the limit, and takes writes; when the cut ends the first one follows."""
    stage = Stage()
    leader = led(stage)
    others = {*stage.others(leader)}
    cut_apart(stage, {leader}, others)
    break_links(stage, leader)
    stage.pass_ms(LIMIT_MS - 2 * CHECK_MS)
    assert stage.leads() == leader, "not before the limit"
    stage.wait(lambda: stage.leads() in others)
    epoch, heir = stage.record.epoch, stage.leads()
    assert heir is not None
    assert stage.write(heir, 3) is None
    stage.wait(lambda: stage.acked() == 5)
    stage.pass_ms(3 * AGAIN_MS)
    assert (stage.record.epoch, stage.leads()) == (epoch, heir), "it does not flap"
    stage.join()
    stage.wait(stage.well)
    assert stage.leads() == heir
    stage.world.checkers.final()


def test_a_leader_that_may_commit_alone_keeps_its_leadership() -> None:
    """With min-ISR 1 it can take the others out and serve, so a cut without writes moves no leadership."""
    stage = Stage(min_isr=1)
    leader = led(stage)
    epoch = stage.record.epoch
    cut_apart(stage, {leader}, {*stage.others(leader)})
    break_links(stage, leader)
    stage.pass_ms(3 * AGAIN_MS)
    assert (stage.record.epoch, stage.leads()) == (epoch, leader)
    stage.join()
    stage.wait(stage.well)


def test_a_leader_whose_followers_are_gone_stays() -> None:
    """Nobody is registered who could lead: no election, and it leads on when they come back."""
    stage = Stage()
    leader = led(stage)
    for name in stage.others(leader):
        stage.world.nodes[name].gone = True
        stage.process(name).die("for now")
    stage.wait(lambda: stage.in_sync() == {leader})
    epoch = stage.record.epoch
    stage.pass_ms(3 * AGAIN_MS)
    assert (stage.record.epoch, stage.leads()) == (epoch, leader)
    for name in stage.others(leader):
        stage.world.nodes[name].gone = False
        stage.world.nodes[name].start()
    stage.wait(stage.well)
    assert stage.leads() == leader


def test_where_no_node_reaches_another_leaderships_change_once_a_minute_at_most() -> None:
    """Each of them might be the one that the others reach; the limits keep epochs from being used up."""
    stage = Stage()
    leader = led(stage)
    nodes = {*stage.world.nodes}
    cut_apart(stage, nodes, nodes)
    stage.write(leader)
    stage.wait(lambda: stage.in_sync() == {leader})
    epoch = stage.record.epoch
    stage.pass_ms(10 * AGAIN_MS)
    assert 1 <= stage.record.epoch - epoch <= 11
    stage.join()
    stage.wait(stage.well)
    stage.world.checkers.final()


def test_the_next_to_lead_is_the_one_that_others_reach() -> None:
    """Where the first heir reaches nobody either, it gives way in its turn, and the pair that is in touch serves."""
    stage = Stage(node_count=4, factor=4)
    leader = led(stage)
    one, *rest = stage.others(leader)
    cut_apart(stage, {leader, one}, {*stage.world.nodes})
    stage.write(leader)
    stage.wait(lambda: stage.in_sync() == {leader})
    stage.pass_ms(3 * AGAIN_MS)
    assert stage.leads() in rest
    assert stage.in_sync() == {*rest}
    assert stage.write(stage.leads() or "") is None
