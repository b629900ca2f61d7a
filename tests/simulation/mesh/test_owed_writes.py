"""Writes of a cluster that another cluster replaces before a third one has them, one order of events at a time.

b replicates with a both ways; c fetches from a, which does not cascade, and is not linked to b. So a push of b over a
write of a reaches c only if its entry at a counts as a's (R-OWED).
"""

from __future__ import annotations

import pytest

from isthmus.queues.queue_documents import CLEARED, CursorCommand, execute
from isthmus.queues.source_queue import IDLE_MS
from isthmus.repl.model.objects import encode_object
from isthmus.repl.model.requests import PushOutcome
from isthmus.repl.model.vclock import Dot, covers, decode_clock
from tests.simulation.mesh.cluster import BUCKET, Cluster, Link, P
from tests.simulation.mesh.fetcher import Fetcher, origin, push, settle, write
from tests.simulation.mesh.scenarios import both_ways
from tests.simulation.mesh.simulator import MeshSimulation

KEY, EARLIER, LATER = b"a", b"b", b"c"
ROADS = [*both_ways(("a", "b")), Link("a", "c")]


def clusters() -> tuple[MeshSimulation, Cluster, Cluster, Cluster]:
    """A simulation without random faults, and its three clusters."""
    simulation = MeshSimulation(1, ROADS, faults=False)
    return simulation, simulation.clusters["a"], simulation.clusters["b"], simulation.clusters["c"]


def must_have(to_c: Fetcher, a: Cluster, c: Cluster, dot: Dot) -> None:
    """Fetch all that waits; c has the write then, and the queue is at its end without a gap."""
    to_c.drain()
    window = a.queues["c"].windows[P]
    assert window.advance() == window.applied
    assert not window.state.gaps
    found = c.get(KEY)
    assert found is not None
    assert covers(found.clock, dot), "c has not seen a's write, and no gap says so"


@pytest.mark.parametrize("new_leader", [True, False])
def test_a_local_merge_is_unreplicated_although_its_local_dot_is_below_the_cursor(new_leader: bool) -> None:
    """R-OWED compares the cursor with the offset of the key's row: a merge of ours has no new dot of ours, but a row
    above the cursor. The window in memory is lost by a change of leader, or because the sink does not fetch for
    IDLE_MS."""
    simulation, a, b, c = clusters()
    to_c = Fetcher(simulation, a, c)
    dot = write(simulation, a, KEY, b"ours")
    write(simulation, a, EARLIER, b"x")
    write(simulation, b, KEY, b"concurrent", ())
    assert push(b, a, KEY) is PushOutcome.MERGED
    write(simulation, a, LATER, b"y")
    first = to_c.fetch(1)
    assert first is not None
    assert first[1] == [EARLIER]
    to_c.store(first[0])
    second = to_c.fetch(1)
    assert second is not None
    assert second[1] == [KEY], "the merge is under lease"
    assert a.queues["c"].windows[P].advance() > 1, "the cursor is above the offset of a's dot"
    push(a, b, KEY)
    write(simulation, b, KEY, b"over the merge")
    assert push(b, a, KEY) is PushOutcome.APPLIED
    if new_leader:
        a.reelect(saved=True, known=True)
    else:
        simulation.now += IDLE_MS
        to_c.machine.expire(simulation.now)
        to_c.machine.drop_idle_windows(simulation.now)
    must_have(to_c, a, c, dot)


def test_a_local_write_stays_unreplicated_over_two_pushes_and_changes_of_leader() -> None:
    """R-OWED: the entry of the first push counts as ours, without a new dot of ours; the second push replaces it when
    the cursor has passed the offset of our write, at which there is no row any more."""
    simulation, a, b, c = clusters()
    to_c = Fetcher(simulation, a, c)
    dot = write(simulation, a, KEY, b"ours")
    write(simulation, a, EARLIER, b"x")
    push(a, b, KEY)
    write(simulation, b, KEY, b"over ours")
    assert push(b, a, KEY) is PushOutcome.APPLIED
    assert origin(a, KEY) == a.uuid
    a.reelect(saved=True, known=True)
    first = to_c.fetch(1)
    assert first is not None
    assert first[1] == [EARLIER]
    to_c.store(first[0])
    assert a.queues["c"].windows[P].advance() > 1, "the cursor is above the offset of a's dot"
    write(simulation, b, KEY, b"once more")
    assert push(b, a, KEY) is PushOutcome.APPLIED
    a.reelect(saved=True, known=True)
    must_have(to_c, a, c, dot)


def test_a_local_write_in_a_gap_is_unreplicated() -> None:
    """R-OWED: c's queue is cleared, and b replaces a write of ours that is in the gap. A full-sync of the gap compares
    changes in the gap's time range and would not find the push, so the push is sent as a write of ours."""
    simulation, a, b, c = clusters()
    dot = write(simulation, a, KEY, b"ours")
    window = a.queues["c"].windows[P]
    decree = CursorCommand(1, CLEARED, simulation.now, "ann", simulation.now, "")
    a.claim("c", execute(window.state, window.advance(), decree, window.applied, simulation.now))
    settle(a)
    (gap,) = a.queues["c"].windows[P].state.gaps
    push(a, b, KEY)
    write(simulation, b, KEY, b"over ours")
    assert push(b, a, KEY) is PushOutcome.APPLIED
    (row,) = a.store.changes(P, 0, 10)
    assert row.offset >= gap.end, "the gap no longer names the key"
    Fetcher(simulation, a, c).drain()
    found = c.get(KEY)
    assert found is not None
    assert covers(found.clock, dot), "c has not seen a's write, and no gap says so"


def test_a_leaving_tombstone_is_unreplicated_where_it_replaces_a_local_write() -> None:
    """R-OWED, R-REAP: b has deleted a value of a and is about to reap it; c, which lags, must get the delete from a."""
    simulation = MeshSimulation(1, ROADS, faults=False, reaps=True, repl_reap=True)
    a, b, c = simulation.clusters["a"], simulation.clusters["b"], simulation.clusters["c"]
    to_c = Fetcher(simulation, a, c)
    dot = write(simulation, a, KEY, b"ours")
    push(a, b, KEY)
    current = b.get(KEY)
    assert current is not None
    b.delete(KEY, current.clock)
    settle(b)
    tombstone = b.get(KEY)
    assert tombstone is not None
    a.push([(KEY, encode_object(tombstone), True)], b.uuid)
    settle(a)
    assert a.leaves(KEY)
    assert origin(a, KEY) == a.uuid
    assert to_c.drain() == [KEY]
    assert covers(decode_clock(c.store.reaped_clocks(P)[BUCKET, KEY]), dot), "c never had the key, and remembers it"
