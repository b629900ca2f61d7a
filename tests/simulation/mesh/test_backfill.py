"""Queues that begin, or begin again, below changes that another cluster replaced while no queue needed them (R-OWED).

a and c replicate both ways, and a does not cascade. d, which fetches only from a, is added later: by a new queue that
begins at 0, or as the next owner of c's queue once that is released from 0.
"""

from __future__ import annotations

import pytest

from isthmus.queues.queue_documents import PLACED, RELEASED, CursorCommand, execute
from isthmus.repl.model.requests import PushOutcome
from isthmus.repl.model.vclock import Dot, covers
from tests.simulation.mesh.cluster import Cluster, Link, P
from tests.simulation.mesh.fetcher import Fetcher, origin, push, settle, write
from tests.simulation.mesh.scenarios import both_ways
from tests.simulation.mesh.simulator import MeshSimulation

KEY, FOREIGN = b"a", b"b"


def clusters() -> tuple[MeshSimulation, Cluster, Cluster, Cluster]:
    """A simulation without random faults: its two clusters, and a third one that has no link yet."""
    simulation = MeshSimulation(1, both_ways(("a", "c")), faults=False)
    return simulation, simulation.clusters["a"], simulation.clusters["c"], Cluster("d", 9, [], simulation.look_at)


def replaced_once_acknowledged(simulation: MeshSimulation, a: Cluster, c: Cluster) -> Dot:
    """a writes, c gets it, overwrites it and pushes: no queue still has to send a's write. Returns its dot."""
    dot = write(simulation, a, KEY, b"ours")
    Fetcher(simulation, a, c).drain()
    write(simulation, c, KEY, b"over ours")
    assert push(c, a, KEY) is PushOutcome.APPLIED
    assert origin(a, KEY) == c.uuid
    return dot


def append_release(simulation: MeshSimulation, a: Cluster) -> None:
    """The CURSOR entry that obeys a release of c's queue from 0 is appended; it is not applied."""
    window = a.queues["c"].windows[P]
    decree = CursorCommand(1, RELEASED, 0, "ann", simulation.now, "")
    a.claim("c", execute(window.state, window.advance(), decree, 0, simulation.now))


def give_queue_to(simulation: MeshSimulation, a: Cluster, owner: Cluster) -> None:
    """The released queue belongs to `owner`: by a CURSOR entry of the owner's version, applied."""
    queue = a.queues["c"]
    queue.set_owner(b"", 2)
    queue.set_owner(owner.uuid, 3)
    for _, state in queue.wanted_cursors(simulation.now):
        a.claim("c", state)
    settle(a)


def must_have(a: Cluster, queue: str, d: Cluster, dot: Dot) -> None:
    """d has the write; the queue is at its end without a gap, and its ledger closes."""
    window = a.queues[queue].windows[P]
    assert window.advance() == window.applied
    assert not window.state.gaps
    assert window.ledger_error() == 0
    found = d.get(KEY)
    assert found is not None, "d has not seen a's write, and no gap says so"
    assert covers(found.clock, dot)


@pytest.mark.parametrize("restart", [False, True])
def test_a_new_queue_from_zero_gives_every_write_of_ours(restart: bool) -> None:
    """R-OWED: below the CURSOR entry with which the queue began, a foreign row is sent if its object contains a write
    of ours, and not otherwise."""
    simulation, a, c, d = clusters()
    dot = replaced_once_acknowledged(simulation, a, c)
    write(simulation, c, FOREIGN, b"c's alone")
    push(c, a, FOREIGN)
    a._roads = [*a._roads, Link("a", "d")]
    for _ in range(1 + restart):
        a.start(lambda sink: (d if sink == "d" else simulation.clusters[sink]).uuid)
    assert Fetcher(simulation, a, d).drain() == [KEY]
    must_have(a, "d", d, dot)


def test_a_queue_released_from_zero_gives_its_next_owner_every_write_of_ours() -> None:
    """R-OWED: the CURSOR entry that moves the cursor back, or changes the owner, opens the rows below it again."""
    simulation, a, c, d = clusters()
    dot = replaced_once_acknowledged(simulation, a, c)
    append_release(simulation, a)
    settle(a)
    give_queue_to(simulation, a, d)
    Fetcher(simulation, a, d, queue="c").drain()
    must_have(a, "c", d, dot)


@pytest.mark.parametrize("cascade", [False, True])
def test_a_next_owner_gets_what_its_predecessor_was_not_given_since_it_came_from_there(cascade: bool) -> None:
    """A discarding queue scans its rows even when no cluster fetches. Between the CURSOR entry of the release and that
    of the next owner it still has the previous owner, whose own changes it skips: those are not settled for the next
    one (R-OWNER)."""
    simulation = MeshSimulation(1, both_ways(("a", "c"), cascade="a" * cascade), faults=False, discard=True)
    a, c, d = simulation.clusters["a"], simulation.clusters["c"], Cluster("d", 9, [], simulation.look_at)
    dot = replaced_once_acknowledged(simulation, a, c)
    append_release(simulation, a)
    settle(a)
    a.begin_reads()
    while a.reads:
        a.go_on_reading(0)
    assert a.queues["c"].windows[P].advance() > 1, "under c's version nothing of it waits"
    give_queue_to(simulation, a, d)
    Fetcher(simulation, a, d, queue="c").drain()
    must_have(a, "c", d, dot)


def test_the_owner_before_is_not_given_back_its_own_changes() -> None:
    """I-Q-NOLOOP: a foreign row is not sent to the cluster that made it, also when the queue begins again for that
    cluster."""
    simulation, a, c, _ = clusters()
    replaced_once_acknowledged(simulation, a, c)
    append_release(simulation, a)
    settle(a)
    give_queue_to(simulation, a, c)
    assert Fetcher(simulation, a, c).drain() == []


def test_a_push_behind_a_cursor_entry_under_way_is_judged_against_that_entry() -> None:
    """R-OWED: c was restored from a backup, and its queue is placed at 0. That CURSOR entry is appended, and a push
    from d replaces a write of ours before it is applied. By the previous cursor no queue still has to send it, and the
    row of the push lies above the entry, so it is not backfilled either."""
    simulation, a, c, d = clusters()
    dot = write(simulation, a, KEY, b"ours")
    Fetcher(simulation, a, c).drain()
    push(a, d, KEY)
    write(simulation, d, KEY, b"over ours")
    window = a.queues["c"].windows[P]
    a.claim(
        "c",
        execute(
            window.state, window.advance(), CursorCommand(1, PLACED, 0, "ann", simulation.now, ""), 0, simulation.now
        ),
    )
    assert push(d, a, KEY) is PushOutcome.APPLIED
    restored = Cluster("c", 2, [], simulation.look_at)
    assert restored.uuid == c.uuid
    Fetcher(simulation, a, restored).drain()
    must_have(a, "c", restored, dot)


def test_a_cursor_entry_that_is_refused_or_applied_is_not_under_way() -> None:
    """Whether pushes are judged against an entry under way ends with the entry, with its refusal, and with the
    leadership; of two that are under way at once each ends by itself."""
    simulation, a, c, _ = clusters()
    queue = a.queues["c"]
    assert not queue.cursor_pending(P)
    append_release(simulation, a)
    assert queue.cursor_pending(P)
    queue.cursor_appended(P)
    settle(a)
    assert queue.cursor_pending(P), "the second may have been appended, too"
    queue.cursor_rejected(P)
    assert not queue.cursor_pending(P)
    append_release(simulation, a)
    a.reelect(saved=True, known=True)
    assert not queue.cursor_pending(P)
    replaced_once_acknowledged(simulation, a, c)
