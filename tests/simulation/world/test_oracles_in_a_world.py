"""Oracles, and the wait for quiet, in a small world: content with what nodes do, and not with what is doctored.

One world of two clusters serves all tests; each takes back what it doctored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from isthmus.aae.exchange.exchange import ExchangeVerdict
from isthmus.node.services import cluster_status
from isthmus.queues.filters import parse_filter
from isthmus.queues.gaps import QueueGap
from isthmus.repl.model.objects import decode_object, encode_object
from isthmus.repl.store.rows import KEY_TAG, OBJECT_TAG, SEGMENT_BYTES, U32, split_tail
from tests.simulation.world.asking import ask
from tests.simulation.world.clusters import Shape
from tests.simulation.world.node import ADMIN_PORT, HTTP_PORT
from tests.simulation.world.node_state import Led, leaders_of, rows_of, services_of
from tests.simulation.world.oracles_delivered import Delivered
from tests.simulation.world.oracles_state import (
    BegunGaps,
    Bounds,
    ClosedGaps,
    EqualContents,
    Errors,
    Ledgers,
    OneContentPerDot,
)
from tests.simulation.world.oracles_told import DOCUMENTS, EXPLAIN, Told
from tests.simulation.world.world import World
from tests.support.log_watch import LoggedError

KEYS = 12

QUIET_S = 60.0


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """East of two nodes and west of one, with some keys from each, quiet."""
    with World("oracles", Shape((2, 1), 1, False)) as made:
        made.start()
        made.run_until(lambda: not missing_owners(made), 30.0, "every queue has its owner")
        write(made, "east", 0, KEYS)
        write(made, "west", KEYS // 2, KEYS + KEYS // 2)
        made.wait_until_quiet(QUIET_S)
        yield made


def missing_owners(world: World) -> list[str]:
    """Queues that no cluster has fetched from yet."""
    return [
        name
        for node in world.nodes
        if (services := services_of(node)) is not None
        for name in services.queues.machines()
        if services.queues.named(name).stored.owner is None
    ]


def write(world: World, cluster: str, first: int, end: int) -> None:
    """Write some keys at the first node of a cluster, and wait for the answers."""
    host = world.clusters[cluster].address(1)

    async def put() -> None:
        for number in range(first, end):
            path = f"/types/default/buckets/things/keys/{number}"
            answer = await ask(host, HTTP_PORT, "PUT", path, {"from": cluster, "number": number})
            assert answer.status == 204, answer

    task = world.clients.loop.create_task(put())
    world.run_until(task.done, 30.0, "all is written")
    task.result()


def order(world: World, cluster: str, path: str, body: dict[str, Any]) -> None:
    """An operator's act at the first node of a cluster."""
    host = world.clusters[cluster].address(1)
    task = world.operators.loop.create_task(ask(host, ADMIN_PORT, "POST", path, {"by": "a test", **body}))
    world.run_until(task.done, 30.0, path)
    assert task.result().status < 300, task.result()


def leader(world: World, cluster: str) -> Led:
    """The leader of the only partition of a cluster."""
    (found,) = leaders_of(world.clusters[cluster]).values()
    return found


def first_row(rows: Any, tag: bytes) -> bytes:
    """The name of the first row of a kind."""
    name: bytes = next(rows.irange(tag, tag + b"\xff" * 8))
    return name


def test_a_quiet_world_contents_all(world: World) -> None:
    """Equal bytes, versions, ledgers, bounds, errors, and every answer to operators."""
    told = Told("all")
    for oracle in (EqualContents(), ClosedGaps(), BegunGaps(), OneContentPerDot(), Ledgers(), Bounds(), Errors(), told):
        assert oracle.look(world) == []
        assert oracle.judge(world) == []
    assert set(told.judged) == {*DOCUMENTS, EXPLAIN}
    assert len(rows_of(leader(world, "west").services)) > KEYS


def test_a_replica_that_differs_in_a_byte_is_found(world: World) -> None:
    """A follower's object row, and its key row, are the leader's."""
    led = leader(world, "east")
    other = next(name for name in world.clusters["east"].nodes if name != led.node)
    services = services_of(world.clusters["east"].nodes[other])
    assert services is not None
    rows = rows_of(services)
    for tag in (OBJECT_TAG, KEY_TAG):
        name = first_row(rows, tag)
        before = rows[name]
        rows[name] = before[:-1] + bytes((before[-1] ^ 1,))
        found = EqualContents().judge(world)
        rows[name] = before
        assert len(found) == 1
        assert other in found[0]


def test_a_key_that_a_cluster_lacks_is_found_and_so_is_who_calls_it_in_sync(world: World) -> None:
    """The last check said in-sync; without a key at one side it is wrong, for both directions."""
    led = leader(world, "west")
    rows = rows_of(led.services)
    name = first_row(rows, OBJECT_TAG)
    before = rows.pop(name)
    found = EqualContents().judge(world)
    rows[name] = before
    assert any("not there" in each for each in found)
    assert any("not equal" in each for each in found)
    assert sum("in-sync" in each for each in found) == 2


def test_a_proof_of_what_is_not_there_is_found_when_it_is_given(world: World) -> None:
    """A check that ends in-sync, while a key of before it is missing at the other cluster."""
    oracle = EqualContents()
    assert oracle.look(world) == []
    world.kernel.run_for(2.0)
    assert oracle.look(world) == []
    services = leader(world, "east").services
    history = services.fullsync.scheduler.peers["west"].history
    verdict = ExchangeVerdict.IN_SYNC
    history.results.append(replace(history_of_any(world), verdict=verdict, seconds=0.1, bucket_type="default"))
    rows = rows_of(leader(world, "west").services)
    name = first_row(rows, KEY_TAG)
    before = rows.pop(name)
    found = oracle.look(world)
    rows[name] = before
    history.results.pop()
    assert len(found) == 1
    assert "lacks" in found[0]
    assert oracle.proofs_judged == 1


def history_of_any(world: World) -> Any:
    """A result of some check."""
    return next(
        result
        for node in world.nodes
        if (services := services_of(node)) is not None
        for peer in services.fullsync.scheduler.peers.values()
        for result in peer.history.results
    )


def test_a_gap_that_is_closed_too_early_is_found(world: World) -> None:
    """A gap over all changes is there at one look and gone at the next, while the other cluster lacks one of them."""
    led = leader(world, "east")
    (window,) = led.services.queues.named("west").machine.windows.values()
    state = window.state
    gap = QueueGap(0, window.applied, 0, 1, 1, "cleared", "a test", "")
    rows = rows_of(leader(world, "west").services)
    name = first_row(rows, KEY_TAG)
    before = rows[name]
    found = []
    for lacks in (False, True):
        oracle = ClosedGaps()
        window.state = replace(state, gaps=(gap,))
        assert oracle.look(world) == []
        window.state = state
        if lacks:
            del rows[name]
        found.append(oracle.look(world))
        rows[name] = before
        assert oracle.closed == 1
    assert found[0] == []
    assert len(found[1]) == 1
    assert "is closed, and west lacks 1 keys" in found[1][0]


def test_a_gap_that_begins_where_nothing_is_offered_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap that is there at the second look, of a queue whose filter includes nothing; one that was there before is
    allowed, and so is one of a queue that includes everything."""
    led = leader(world, "east")
    queue = led.services.queues.named("west")
    (window,) = queue.machine.windows.values()
    state = window.state
    gap = QueueGap(0, window.applied, 0, 1, 1, "cleared", "a test", "")
    found = []
    for filter_, before in (("any", ()), ("block_rtq", (gap,)), ("block_rtq", ())):
        oracle = BegunGaps()
        with monkeypatch.context() as patched:
            patched.setattr(queue, "filter", parse_filter(filter_))
            window.state = replace(state, gaps=before)
            assert oracle.look(world) == []
            window.state = replace(state, gaps=(gap,))
            found.append(oracle.look(world))
        window.state = state
    assert found[:2] == [[], []]
    assert len(found[2]) == 1
    assert "gaps from [0] began" in found[2][0]


def test_a_version_with_two_contents_is_found(world: World) -> None:
    """The same dot with another value at the other cluster."""
    rows = rows_of(leader(world, "west").services)
    name = next(rows.irange(OBJECT_TAG + U32.pack(0), OBJECT_TAG + U32.pack(1)))
    before = rows[name]
    found = decode_object(before)
    changed = found._replace(siblings=(found.siblings[0]._replace(value=b"another"), *found.siblings[1:]))
    oracle = OneContentPerDot()
    assert oracle.look(world) == []
    rows[name] = encode_object(changed)
    wrong = oracle.judge(world)
    rows[name] = before
    assert len(wrong) == 1
    assert "another" in wrong[0]


def test_what_is_applied_is_seen_although_it_is_replaced(world: World) -> None:
    """Versions that live between two looks are noted, too."""
    oracle = OneContentPerDot()
    oracle.look(world)
    before = len(oracle.versions)
    write(world, "east", 0, 1)
    write(world, "east", 0, 1)
    assert len(oracle.versions) == before + 2
    world.wait_until_quiet(QUIET_S)


def test_a_ledger_that_does_not_close_is_found(world: World) -> None:
    """One change more was offered than is accounted for."""
    (window,) = leader(world, "east").services.queues.named("west").machine.windows.values()
    window.ledger.eligible += 1
    found = Ledgers().judge(world)
    window.ledger.eligible -= 1
    assert len(found) == 1
    assert Ledgers().judge(world) == []


def test_what_a_quiet_node_must_not_hold_is_found(world: World) -> None:
    """A lease, a counted reference, and many tasks."""
    led = leader(world, "east")
    machine = led.services.queues.named("west").machine
    oracle = Bounds()
    oracle.look(world)
    machine.leases.bytes += 1
    machine.budget.references += 1
    loop = world.clusters["east"].nodes[led.node].machine.loop
    waits = [loop.create_task(_forever(loop)) for _ in range(100)]
    found = oracle.judge(world)
    machine.leases.bytes -= 1
    machine.budget.references -= 1
    for task in waits:
        task.cancel()
    world.kernel.run_for(0.1)
    assert len(found) == 3
    assert oracle.judge(world) == []


async def _forever(loop: Any) -> None:
    await loop.create_future()


def test_an_error_in_calm_times_is_found(world: World) -> None:
    """An error with a name, while nothing is broken; and none after something was."""
    oracle = Errors()
    oracle.look(world)
    world.story.errors.append(("east-1", LoggedError("storage.full", False, "")))
    assert len(oracle.look(world)) == 1
    world.broken.append(("something", lambda: None))
    world.story.errors.append(("east-1", LoggedError("storage.full", False, "")))
    assert oracle.look(world) == []
    world.story.errors.append(("east-1", LoggedError("bug", True, "")))
    assert len(oracle.look(world)) == 1
    world.broken.clear()
    world.story.errors.clear()


def test_an_operator_who_is_told_what_is_not_so_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A status that calls a partition under-replicated, though its record has all replicas in sync for long."""
    told = Told("wrong")
    told.look(world)
    world.kernel.run_for(15.0)
    told.look(world)
    world.kernel.run_for(1.0)
    with monkeypatch.context() as patched:
        patched.setattr(cluster_status, "under_replicated", lambda _: [0])
        found = told.judge(world)
    assert any("/admin/cluster" in each and "partition 0" in each for each in found)
    world.kernel.run_for(2.0)  # findings are given again for a second
    assert told.judge(world) == []


def test_a_world_with_a_suspended_queue_is_not_quiet(world: World) -> None:
    """The wait ends with its time, and names what is not quiet; once it is resumed, the world is quiet again."""
    order(world, "east", "/admin/queues/west/suspend", {"what": "serving"})
    write(world, "east", 0, 3)
    with pytest.raises(AssertionError, match=r"not quiet within 5 s: .*queue west: serving is suspended by a test"):
        world.wait_until_quiet(5.0)
    order(world, "east", "/admin/queues/west/resume", {"what": "serving"})
    world.wait_until_quiet(QUIET_S)
    assert EqualContents().judge(world) == []


def test_what_a_queue_has_settled_is_at_the_other_cluster(world: World) -> None:
    """A change that neither waits nor is in flight any more must be there; else the oracle names its key."""
    oracle = Delivered()
    assert oracle.look(world) == []
    write(world, "east", 0, 2)
    world.wait_until_quiet(QUIET_S)
    (led,) = leaders_of(world.clusters["west"]).values()
    rows, start = rows_of(led.services), KEY_TAG + U32.pack(led.partition.id)
    name = next(
        each for each in rows if each.startswith(start) and split_tail(each[len(start) + SEGMENT_BYTES :])[1] == b"0"
    )
    kept = rows.pop(name)
    try:
        (what,) = oracle.look(world)
    finally:
        rows[name] = kept
    assert what.startswith("east: queue west, partition 0: default/things/0 at ")
    assert what.endswith("and west lacks it")
    assert oracle.judged == 2
