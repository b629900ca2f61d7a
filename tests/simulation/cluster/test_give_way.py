"""A leader that reaches the metastore and none of its followers lets another member lead (R-GIVE-WAY)."""

from __future__ import annotations

import pytest

from isthmus.repl.isr.give_way import CHECK_MS, GIVE_WAY_AGAIN_CHECKS, GIVE_WAY_CHECKS
from tests.simulation.cluster.scripted import ScriptedCluster

LIMIT_MS = CHECK_MS * GIVE_WAY_CHECKS
AGAIN_MS = CHECK_MS * GIVE_WAY_AGAIN_CHECKS


def cut_apart(cluster: ScriptedCluster, names: set[str], others: set[str], *, ways: str = "both") -> None:
    """No message passes between two groups of nodes, or only those from `others`."""
    for name in names:
        for other in others - {name}:
            cluster.cut((name, other))
            if ways == "both":
                cluster.cut((other, name))


def break_links(cluster: ScriptedCluster, name: str) -> None:
    """End a node's connections, as their time-outs do some seconds after a cut."""
    for other in cluster.others(name):
        cluster.process(name).link_down(other)
        cluster.process(other).link_down(name)


def led(cluster: ScriptedCluster) -> str:
    """The leader; it has had a write of its own acknowledged by all."""
    leader = cluster.leads()
    assert leader is not None
    cluster.write(leader, 2)
    cluster.wait(cluster.all_in_sync)
    return leader


@pytest.mark.parametrize("ways", ["both", "from the leader"])
def test_a_leader_without_followers_gives_way_to_one_that_has_some(ways: str) -> None:
    """Below min-ISR it takes no write; after the limit another member leads, which takes writes, once and for all; when
    the cut ends the first one follows, and nothing is lost."""
    cluster = ScriptedCluster()
    leader = led(cluster)
    others = {*cluster.others(leader)}
    cut_apart(cluster, {leader}, others, ways=ways)
    cluster.write(leader)
    cluster.wait(lambda: cluster.in_sync() == {leader})
    cluster.pass_ms(LIMIT_MS - 2 * CHECK_MS)
    assert cluster.leads() == leader, "not before the limit"
    cluster.wait(lambda: cluster.leads() in others and cluster.in_sync() == others)
    epoch = cluster.record.epoch
    heir = cluster.leads()
    assert heir is not None
    assert cluster.write(heir, 3) is None
    cluster.wait(lambda: cluster.acked() == 5)
    cluster.pass_ms(3 * AGAIN_MS)
    assert (cluster.record.epoch, cluster.leads()) == (epoch, heir), "it does not flap"
    cluster.join()
    cluster.wait(cluster.all_in_sync)
    assert cluster.leads() == heir
    cluster.simulation.checkers.final()


def test_a_leader_without_followers_gives_way_though_nothing_is_written() -> None:
    """Other nodes' clients cannot reach the leader either, so no entry shows that it is cut off; all members stay in
    the ISR. Another member leads after the limit, and takes writes; after the cut the first leader follows."""
    cluster = ScriptedCluster()
    leader = led(cluster)
    others = {*cluster.others(leader)}
    cut_apart(cluster, {leader}, others)
    break_links(cluster, leader)
    cluster.pass_ms(LIMIT_MS - 2 * CHECK_MS)
    assert cluster.leads() == leader, "not before the limit"
    cluster.wait(lambda: cluster.leads() in others)
    epoch, heir = cluster.record.epoch, cluster.leads()
    assert heir is not None
    assert cluster.write(heir, 3) is None
    cluster.wait(lambda: cluster.acked() == 5)
    cluster.pass_ms(3 * AGAIN_MS)
    assert (cluster.record.epoch, cluster.leads()) == (epoch, heir), "it does not flap"
    cluster.join()
    cluster.wait(cluster.all_in_sync)
    assert cluster.leads() == heir
    cluster.simulation.checkers.final()


def test_a_leader_that_may_commit_alone_keeps_its_leadership() -> None:
    """With min-ISR 1 the leader can remove the others and serve, so a cut without writes moves no leadership."""
    cluster = ScriptedCluster(min_isr=1)
    leader = led(cluster)
    epoch = cluster.record.epoch
    cut_apart(cluster, {leader}, {*cluster.others(leader)})
    break_links(cluster, leader)
    cluster.pass_ms(3 * AGAIN_MS)
    assert (cluster.record.epoch, cluster.leads()) == (epoch, leader)
    cluster.join()
    cluster.wait(cluster.all_in_sync)


def test_a_leader_whose_followers_are_gone_stays() -> None:
    """No registered replica could lead instead: there is no election, and it still leads when the followers are
    back."""
    cluster = ScriptedCluster()
    leader = led(cluster)
    for name in cluster.others(leader):
        cluster.simulation.nodes[name].gone = True
        cluster.process(name).die("for now")
    cluster.wait(lambda: cluster.in_sync() == {leader})
    epoch = cluster.record.epoch
    cluster.pass_ms(3 * AGAIN_MS)
    assert (cluster.record.epoch, cluster.leads()) == (epoch, leader)
    for name in cluster.others(leader):
        cluster.simulation.nodes[name].gone = False
        cluster.simulation.nodes[name].start()
    cluster.wait(cluster.all_in_sync)
    assert cluster.leads() == leader


def test_where_no_node_reaches_another_leaderships_change_once_a_minute_at_most() -> None:
    """Each node might be the one that the others reach; the limits keep the number of epochs low."""
    cluster = ScriptedCluster()
    leader = led(cluster)
    nodes = {*cluster.simulation.nodes}
    cut_apart(cluster, nodes, nodes)
    cluster.write(leader)
    cluster.wait(lambda: cluster.in_sync() == {leader})
    epoch = cluster.record.epoch
    cluster.pass_ms(10 * AGAIN_MS)
    assert 1 <= cluster.record.epoch - epoch <= 11
    cluster.join()
    cluster.wait(cluster.all_in_sync)
    cluster.simulation.checkers.final()


def test_the_next_to_lead_is_the_one_that_others_reach() -> None:
    """When the first successor reaches no other node either, it gives way in its turn, and the two connected nodes
    serve."""
    cluster = ScriptedCluster(node_count=4, factor=4)
    leader = led(cluster)
    one, *rest = cluster.others(leader)
    cut_apart(cluster, {leader, one}, {*cluster.simulation.nodes})
    cluster.write(leader)
    cluster.wait(lambda: cluster.in_sync() == {leader})
    cluster.pass_ms(3 * AGAIN_MS)
    assert cluster.leads() in rest
    assert cluster.in_sync() == {*rest}
    assert cluster.write(cluster.leads() or "") is None
