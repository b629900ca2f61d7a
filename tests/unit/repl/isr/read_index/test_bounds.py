"""Committed reads whose confirmation does not come."""

from __future__ import annotations

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.read_index import READS_MAX
from tests.support.replica_group import ReplicaGroup


def test_unconfirmed_reads_are_bounded() -> None:
    """A leader that is cut off holds at most READS_MAX reads and refuses more, for any duration. When it reaches the
    others again, all held reads are served, and as many are accepted again (R-READ)."""
    group = ReplicaGroup()
    leader = group.elect("n1")
    group.isolated = {"n2", "n3"}
    first = leader.step(ev.ReadRequested(0), group.now_ms)
    assert len(first) == 2
    for token in range(1, READS_MAX):
        assert leader.step(ev.ReadRequested(token), group.now_ms) == []
    for token in range(READS_MAX, READS_MAX + 9):
        assert leader.step(ev.ReadRequested(token), group.now_ms) == [fx.ReadRefused((token,), "overloaded")]
    group.isolated = set()
    group.advance_time(1_000)
    assert group.served == list(range(READS_MAX))
    group.deliver("n1", ev.ReadRequested(READS_MAX + 9))
    assert group.served[-1] == READS_MAX + 9
