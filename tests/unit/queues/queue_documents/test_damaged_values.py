"""Values of a queue in the metastore that cannot be read."""

from __future__ import annotations

import asyncio
import json

import pytest
from structlog.testing import capture_logs

from isthmus.queues.queue_documents import AuditInfo
from isthmus.queues.rate_limit import Rates
from isthmus.queues.tombstone_barrier import TombstoneBarrier
from isthmus.repl.model.errors import BadInput, CodecError, NotReady
from isthmus.repl.model.keys import Key
from tests.support.memory_metastore import MemoryEnsemble
from tests.support.queue_listings import listed_queues
from tests.support.queue_node import PARTITIONS, QueueNode
from tests.support.queue_source import SINK, THIRD

pytestmark = pytest.mark.virtual_time


@pytest.mark.logs_errors("queue.metastore_value_unreadable")
async def test_one_value_that_cannot_be_read_hides_no_other_of_its_queue() -> None:
    """Damaged limits keep their last values and are reported with their path; a suspension made meanwhile takes effect,
    also on a node that starts."""

    ensemble = MemoryEnsemble()
    queue_node = QueueNode(ensemble=ensemble)
    await queue_node.start()
    await queue_node.queues.queue_store.set_rates("q", Rates(1_000_000, 7), AuditInfo("ann", 1, ""))
    await queue_node.eventually(lambda: queue_node.served()[0].throttle.rates.objects == 7)
    found = ensemble.read("/queues/q/rates")
    assert found is not None
    with capture_logs() as logs:
        ensemble.set("/queues/q/rates", b'{"bytes": {}}', found[1].version)
        await queue_node.acts.suspend("q", "serving", None, AuditInfo("ann", 2, ""))
        await queue_node.eventually(lambda: queue_node.served()[0].serving_suspension is not None)
    assert queue_node.served()[0].throttle.rates.objects == 7
    assert {e["path"] for e in logs if e["event"] == "queue.metastore_value_unreadable"} == {"/queues/q/rates"}
    await queue_node.crash()
    await queue_node.start()
    assert queue_node.served()[0].serving_suspension is not None
    assert "/queues/q/rates" in (await listed_queues(queue_node.queues))[0]["reason"]
    await queue_node.close()


@pytest.mark.logs_errors("queue.metastore_value_unreadable")
async def test_a_queue_whose_suspensions_cannot_be_read_at_a_start_gives_nothing_out() -> None:
    """It is unknown whether an operator has suspended it: the queue serves nothing and shows the reason, gaps stay, and
    pushes wait. Once the value can be read, or an operator resumes the queue, it continues by itself."""

    ensemble = MemoryEnsemble()
    queue_node = QueueNode(ensemble=ensemble)
    await queue_node.start()
    await queue_node.fetch(wait_ms=0)
    await queue_node.acts.suspend("q", "serving", None, AuditInfo("ann", 1, "moving"))
    await queue_node.acts.suspend("q", "publishing", None, AuditInfo("ann", 1, "moving"))
    machine = queue_node.served()[0].machine
    await queue_node.eventually(lambda: all(w.state.gaps for w in machine.windows.values()))
    queue_node.put(b"left out")
    await queue_node.crash()
    found = ensemble.read("/queues/q/suspension")
    assert found is not None
    ensemble.set("/queues/q/suspension", b"{", found[1].version)
    await queue_node.start()
    queue = queue_node.served()[0]
    assert (await queue_node.fetch(wait_ms=50)).state == "suspended"
    row = (await listed_queues(queue_node.queues))[0]
    assert row["serving"] == "suspended"
    assert "/queues/q/suspension" in row["reason"]
    with pytest.raises(NotReady, match="/queues/q/suspension"):
        await queue_node.acts.push("q", [Key(b"default", b"b", b"k")], 2, 0)
    queue_node.queues.tick()
    await asyncio.sleep(0.05)
    assert all(w.state.gaps[-1].is_open for w in queue.machine.windows.values())
    for act in (queue_node.acts.suspend, queue_node.acts.resume):
        with pytest.raises(BadInput, match="isthmus queue resume q"):
            await act("q", "serving", "e1", AuditInfo("bob", 2, ""))
    await queue_node.acts.resume("q", "serving", None, AuditInfo("bob", 3, ""))
    await queue_node.eventually(
        lambda: not any(g.is_open for w in queue.machine.windows.values() for g in w.state.gaps)
    )
    assert queue.stored.suspensions == ()
    queue_node.put(b"after")
    assert await queue_node.drain() == [b"after"]  # what was left out is in a gap
    await queue_node.close()


@pytest.mark.parametrize("value", [b"{", b'{"bytes": -1, "objects": 0, "by": "", "at_ms": 1, "reason": ""}'])
@pytest.mark.logs_errors("queue.metastore_value_unreadable")
async def test_a_limit_that_cannot_be_read_is_not_taken_for_none(value: bytes) -> None:
    """After a restart the operator's limit is unknown: the queue serves nothing and shows the reason until the limit is
    set again, or reset with --default. While the process runs, the limit stays."""

    ensemble = MemoryEnsemble()
    queue_node = QueueNode(ensemble=ensemble)
    await queue_node.start()
    act = AuditInfo("ann", 1, "")
    await queue_node.acts.throttle("q", Rates(0, 5), act)
    found = ensemble.read("/queues/q/rates")
    assert found is not None
    ensemble.set("/queues/q/rates", value, found[1].version)
    await asyncio.sleep(0.05)
    assert queue_node.acts.rates("q") == Rates(0, 5)
    await queue_node.crash()
    await queue_node.start()
    assert (await queue_node.fetch(wait_ms=50)).state == "suspended"
    row = (await listed_queues(queue_node.queues))[0]
    assert (
        "the rate limits that operators have set cannot be read (metastore: /queues/q/rates, or rates in"
        in row["reason"]
    )
    assert "isthmus queue throttle q" in row["reason"]
    await queue_node.acts.throttle("q", None, act)
    queue_node.put(b"a")
    assert await queue_node.drain() == [b"a"]
    await queue_node.close()


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "a b"])
@pytest.mark.logs_errors("queue.not_understood")
async def test_a_definition_under_what_is_no_name_stops_nothing_else(name: str) -> None:
    """A name becomes part of paths: a queue with an invalid name, written by hand, is ignored; all others work."""

    ensemble = MemoryEnsemble()
    queue_node = QueueNode(ensemble=ensemble)
    ensemble.ensure("/queue-definitions")
    found = ensemble.read("/queue-definitions")
    assert found is not None
    ensemble.set("/queue-definitions", json.dumps({name: {}, "late": {}}).encode(), found[1].version)
    await queue_node.start()
    assert set(queue_node.queues.machines()) == {"q", "late"}
    await queue_node.close()


@pytest.mark.logs_errors("queue.metastore_value_unreadable")
async def test_nothing_is_served_while_the_list_of_queues_is_unreadable() -> None:
    """Unreadable definitions may delist a queue of the file, or define one that is not here. Until they can be read,
    nothing is served, local writes count as unreplicated, and no tombstone is reaped."""

    ensemble = MemoryEnsemble()
    queue_node = QueueNode(ensemble=ensemble)
    await queue_node.start()
    await queue_node.acts.delist("q", AuditInfo("ann", 1, ""))
    await queue_node.acts.register("late", {}, 0, AuditInfo("ann", 2, ""))
    found = ensemble.read("/queue-definitions")
    assert found is not None
    await queue_node.crash()
    ensemble.set("/queue-definitions", b"[", found[1].version)
    await queue_node.start()
    queue_node.put(b"a")
    with pytest.raises(NotReady, match="/queue-definitions"):
        await queue_node.fetch(wait_ms=0)
    row = (await listed_queues(queue_node.queues))[0]
    assert "/queue-definitions" in queue_node.queues.status()["reason"] == row["reason"]
    assert row["serving"] == "suspended"
    key = Key(b"default", b"b", b"a")
    assert queue_node.table.is_unreplicated(PARTITIONS[0], 0, SINK, key)
    barrier = TombstoneBarrier(queue_node.queues, queue_node.store, queue_node)
    assert "/queue-definitions" in barrier.blocked_by(PARTITIONS[0], 0, b"default", b"b")
    broken = ensemble.read("/queue-definitions")
    assert broken is not None
    ensemble.set("/queue-definitions", found[0], broken[1].version)
    await queue_node.eventually(lambda: set(queue_node.queues.machines()) == {"late"})
    assert await queue_node.drain(queue="late") == [b"a"]
    assert queue_node.queues.status()["state"] == "running"
    again = ensemble.read("/queue-definitions")
    assert again is not None
    ensemble.set("/queue-definitions", b"[", again[1].version)
    await queue_node.queues.follow_definitions()
    queue_node.put(b"b")
    assert await queue_node.drain(queue="late") == [b"b"], "what was read last holds"
    await queue_node.close()


@pytest.mark.logs_errors("queue.metastore_value_unreadable")
async def test_an_unreadable_owner_is_reported_and_does_not_count_as_none() -> None:
    """The listing names the path instead of showing no owner; no other cluster gets the queue."""

    ensemble = MemoryEnsemble()
    queue_node = QueueNode(ensemble=ensemble)
    await queue_node.start()
    await queue_node.fetch(wait_ms=0)
    await queue_node.crash()
    found = ensemble.read("/queues/q/owner")
    assert found is not None
    ensemble.set("/queues/q/owner", b"{", found[1].version)
    await queue_node.start()
    with pytest.raises(CodecError):
        await queue_node.fetch(wait_ms=0, cluster=THIRD)
    reason = (await listed_queues(queue_node.queues))[0]["reason"]
    assert reason == "cannot be read (metastore): /queues/q/owner"
    await queue_node.close()
