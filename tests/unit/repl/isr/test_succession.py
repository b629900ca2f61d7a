"""Successors of a leaving node: evenly spread, and only members in sync."""

from __future__ import annotations

from collections import Counter
from random import Random

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.succession import successors
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus
from tests.support.replica_group import ReplicaGroup

NODES = ("n1", "n2", "n3", "n4")


def led_by(node: str, partition: int, in_sync: tuple[str, ...], removing: tuple[str, ...] = ()) -> PartitionRecord:
    """A record of a partition that `node` leads."""
    isr = frozenset(Member(each, 1) for each in in_sync)
    leader = Incarnation(node, 1)
    return PartitionRecord(
        partition, "default", partition, 12, NODES, 1, PartitionStatus.ONLINE, leader, None, isr, removing=removing
    )


def test_the_leaderships_of_a_leaving_node_are_shared_evenly() -> None:
    """Each of the three others leads four of twelve partitions in the end; each partition goes to a member in sync."""
    records = {p: led_by("n1", p, NODES) for p in range(9)}
    records |= {9: led_by("n2", 9, NODES), 10: led_by("n3", 10, NODES), 11: led_by("n4", 11, NODES)}
    heirs = successors(records, "n1")
    assert set(heirs) == set(range(9))
    assert Counter(heirs.values()) == {"n2": 3, "n3": 3, "n4": 3}
    rng = Random(3)
    for _ in range(50):
        records = {p: led_by("n1", p, ("n1", *rng.sample(NODES[1:], rng.randint(0, 3)))) for p in range(8)}
        heirs = successors(records, "n1")
        assert set(heirs) == {p for p, record in records.items() if len(record.isr) > 1}
        assert all(Member(heir, 1) in records[p].isr and heir != "n1" for p, heir in heirs.items())


def test_a_leaving_member_inherits_only_where_no_other_stays() -> None:
    """A member that is being removed leads only if no other is in sync."""
    records = {0: led_by("n1", 0, ("n1", "n2", "n3"), ("n2",)), 1: led_by("n1", 1, ("n1", "n2"), ("n2",))}
    assert successors(records, "n1") == {0: "n3", 1: "n2"}


def test_a_leaving_leader_prefers_its_heir_among_equals() -> None:
    """The record that ends the leadership names the successor; one that is not in sync is skipped."""
    for heir, preferred in (("n2", "n2"), ("n3", "n3"), ("n9", "n3"), (None, "n3")):
        group = ReplicaGroup()
        leader = group.elect("n1")
        group.append(3)
        group.advance_time(500)
        effects = leader.step(ev.Resign(heir), group.now_ms)
        (write,) = [effect for effect in effects if isinstance(effect, fx.WriteRecord)]
        assert write.record.preferred == preferred
