"""A change row that cannot be decoded is waited for once, and then a gap; an object that cannot be read is a gap, and
holds up no other. No change is skipped without a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import structlog

from isthmus.config.settings import QueueSettings
from isthmus.queues import object_reader
from isthmus.queues.status import reason
from isthmus.queues.window_rules import FULL_SYNC
from isthmus.queues.wire import BatchAck
from isthmus.repl.model.errors import Corruption, LocalFault
from isthmus.repl.model.keys import Key
from isthmus.repl.store.port import Change, DamagedChange
from isthmus.repl.unforeseen import unforeseen
from tests.support.queue_node import PARTITIONS, QueueNode, audited_node
from tests.support.queue_source import BUCKET
from tests.unit.queues.test_lag import lag

pytestmark = pytest.mark.virtual_time

P, OTHER = PARTITIONS


async def fetch_all(queue_node: QueueNode, polls: int) -> list[bytes]:
    """The keys of this many polls, all acknowledged except the last one's."""
    got: list[bytes] = []
    acks: list[BatchAck] = []
    for _ in range(polls):
        reply = await queue_node.fetch(acks=acks, wait_ms=100)
        got += [item[5] for item in reply.items]
        acks = [BatchAck(reply.batch, reply.owner_version)] if reply.items else []
    return got


def damage_rows(queue_node: QueueNode, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Offsets in partition P of which the change rows cannot be decoded, as long as they are in this set."""
    read = queue_node.store.changes
    damaged: set[int] = set()

    def changes(partition: int, from_offset: int, limit: int) -> list[Change]:
        rows = read(partition, from_offset, limit)
        for at, row in enumerate(rows):
            if partition == P and row.offset in damaged:
                raise DamagedChange(f"the change row of offset {row.offset} names no bucket", row.offset, rows[:at])
        return rows

    monkeypatch.setattr(queue_node.store, "changes", changes)
    return damaged


@pytest.mark.logs_errors("queue.change_row_damaged")
async def test_a_damaged_change_row_is_mended_before_it_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes before it in the partition, and all of other partitions, are served at once. The reason names the row,
    lags can be shown, and the row is reported for repair. Mended within the pause, its change arrives with those behind
    it, and there is no gap."""
    queue_node = QueueNode(QueueSettings("q"))
    await queue_node.start(lead=False)
    reported = queue_node.damaged
    damaged = damage_rows(queue_node, monkeypatch)
    try:
        queue_node.put(b"before", b"damaged", b"behind")
        queue_node.put(b"other", partition=OTHER)
        (bad,) = (row.offset for row in queue_node.store.changes(P, 0, 9) if row.key == b"damaged")
        damaged.add(bad)
        for partition in PARTITIONS:
            queue_node.lead(partition)
        await queue_node.eventually(lambda: len(queue_node.queues.machines()["q"].windows) == len(PARTITIONS))
        assert sorted(await fetch_all(queue_node, 4)) == [b"before", b"other"]
        (queue,) = queue_node.served()
        window = queue.machine.windows[P]
        assert f"waits until a damaged row is mended: the change row of offset {bad}" in reason(
            queue, queue_node.clock.now_ms()
        )
        queue_node.put(b"new")
        assert await fetch_all(queue_node, 2) == []
        assert window.scan == window.advance() == bad
        await queue_node.eventually(lambda: set(reported) == {(P, None)})
        found = await lag(queue_node)
        assert (found["objects"], found["bytes"]) == (None, None)
        assert (await queue_node.queues.backlog(queue_node.queues.named("q"))).changes is None
        damaged.clear()
        await queue_node.eventually(lambda: window.contiguous)
        assert sorted(await queue_node.drain()) == [b"behind", b"damaged", b"new"]
        assert "damaged" not in reason(queue, queue_node.clock.now_ms())
        assert not window.state.gaps
    finally:
        await queue_node.close()


@pytest.mark.logs_errors("queue.change_row_damaged")
async def test_a_damaged_change_row_that_is_not_mended_is_a_gap_and_the_later_ones_are_delivered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One row fails alone: it is a gap that names its offset and says why, over a restart, logged once, counted and a
    reason; every later change arrives, the cursor moves on, and the ledger closes. Mended afterwards it still is in the
    gap, which full-sync closes (R-MEND)."""
    async with audited_node(QueueSettings("q", object_limit_count=0)) as node:
        damaged = damage_rows(node, monkeypatch)
        node.put(b"before", b"damaged", b"behind")
        (bad,) = (row.offset for row in node.store.changes(P, 0, 9) if row.key == b"damaged")
        damaged.add(bad)
        await node.crash()
        with structlog.testing.capture_logs() as lines:
            await node.start()
            reported = node.damaged
            reported.clear()
            await node.eventually(lambda: P in node.queues.named("q").machine.windows)
            assert await fetch_all(node, 2) == [b"before"]
            await node.eventually(lambda: node.queues.named("q").machine.windows[P].contiguous)
            node.put(b"later")
            assert sorted(await node.drain()) == [b"behind", b"later"]
        await node.eventually(lambda: bool(node.acts.gaps()))
        (gap,) = node.acts.gaps()
        assert (gap["what"], gap["from_offset"], gap["upto_offset"]) == ("unreadable", bad, bad + 1)
        assert f"the change row of offset {bad} names no bucket" in gap["reason"]
        assert [line["event"] for line in lines if "change_row" in line["event"]] == [
            "queue.change_row_damaged", "queue.change_row_passed_over",
        ]  # fmt: skip
        assert set(reported) == {(P, None)}
        queue = node.queues.named("q")
        window = queue.machine.windows[P]
        await node.eventually(lambda: window.advance() == window.applied)
        counted = {name: value for name, _, value in node.queues.metrics()}
        assert counted["isthmus_queue_rows_passed_over_total"] == 1
        assert window.ledger_error() == 0
        assert window.ledger.unbalanced == 0
        assert "gaps are open: isthmus gaps q" in reason(queue, node.clock.now_ms())
        assert (await node.queues.backlog(queue)).changes == 0
        node.queues.tick()
        await node.crash()
        await node.start()
        assert [one["from_offset"] for one in node.acts.gaps()] == [bad]
        assert await node.drain() == []
        damaged.clear()
        node.put(b"last")
        assert await node.drain() == [b"last"]
        assert [one["from_offset"] for one in node.acts.gaps()] == [bad]


class Injected(RuntimeError):
    """Raised by the tests alone."""


def broken_object(read: Callable[..., bytes | None], how: str) -> Callable[..., bytes | None]:
    """Reads of objects, of which that of b"bad" fails in this way."""

    def read_object(partition: int, bucket: bytes, key: bytes) -> bytes | None:
        found = read(partition, bucket, key)
        if key != b"bad":
            return found
        if how == "checksum":
            raise Corruption("a block of the store has a wrong checksum")
        if how == "defect":
            raise Injected
        return None if how == "missing" else b"\x93 no object"

    return read_object


def unserved() -> QueueSettings:
    """Objects are read when they are served, as after a restart."""
    return QueueSettings("q", object_limit_count=0)


@pytest.mark.logs_errors("queue.object_failed")
@pytest.mark.parametrize("how", ["checksum", "damaged", "missing", "defect"])
async def test_an_object_that_cannot_be_read_is_a_gap_and_the_others_are_delivered(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """All other changes of the batch and those behind it arrive, the cursor moves on, and the one is in a gap that says
    why, over a restart. A damaged row is reported to be mended; a defect is counted and a finding. Once the object can
    be read, the repair that a full-sync queues brings it (R-GAP)."""
    monkeypatch.setattr(unforeseen._limit, "due", lambda _subject: 0)
    async with audited_node(unserved()) as node:
        reported = node.damaged
        whole = node.store.object
        monkeypatch.setattr(node.store, "object", broken_object(whole, how))
        before = len([each for each in unforeseen.recent() if each.event == "queue.object_failed"])
        node.put(b"a", b"bad", b"z")
        (row,) = (row.offset for row in node.store.changes(P, 0, 9) if row.key == b"bad")
        with structlog.testing.capture_logs() as lines:
            assert sorted(await node.drain()) == [b"a", b"z"]
            node.put(b"later")
            assert await node.drain() == [b"later"]
        await node.eventually(lambda: bool(node.acts.gaps()))
        (gap,) = node.acts.gaps()
        assert (gap["what"], gap["from_offset"], gap["count_at_least"]) == ("unreadable", row, 1)
        words = {"checksum": "wrong checksum", "damaged": "is damaged", "missing": "no object", "defect": "a defect of"}
        assert words[how] in gap["reason"]
        window = node.queues.named("q").machine.windows[P]
        await node.eventually(lambda: window.advance() == window.applied)
        await node.eventually(lambda: reported == ([] if how == "defect" else [(P, None)]))
        assert [line["event"] for line in lines if "exc_info" in line] == ["queue.object_failed"] * (how == "defect")
        found = len([each for each in unforeseen.recent() if each.event == "queue.object_failed"])
        assert found == before + (how == "defect")
        node.queues.tick()
        await node.crash()
        await node.start()
        assert [one["from_offset"] for one in node.acts.gaps()] == [row]
        assert await node.drain() == []
        monkeypatch.setattr(node.store, "object", whole)
        await node.acts.push("q", [Key(b"default", BUCKET, b"bad")], FULL_SYNC, 0)
        assert await node.drain() == [b"bad"]


async def test_a_store_that_fails_makes_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails is no damage of one object: nothing is sent or passed over, and all arrives afterwards."""
    async with audited_node(unserved()) as node:
        whole, fails = node.store.object, True

        def read_object(partition: int, bucket: bytes, key: bytes) -> bytes | None:
            if fails:
                raise LocalFault("the disk fails")
            return whole(partition, bucket, key)

        monkeypatch.setattr(node.store, "object", read_object)
        node.put(b"a", b"b")
        with pytest.raises(LocalFault):
            await node.fetch()
        fails = False
        assert sorted(await node.drain()) == [b"a", b"b"]
        assert node.acts.gaps() == []


async def test_a_repair_whose_object_cannot_be_judged_waits_behind_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """References of full-sync: the others arrive, and this one once its object is whole."""
    monkeypatch.setattr(unforeseen._limit, "due", lambda _subject: 0)
    async with audited_node(unserved()) as node:
        node.put(b"bad", b"good")
        await node.drain()
        is_deleted, left = object_reader.is_deleted_object, 1

        def judged(payload: bytes) -> Any:
            nonlocal left
            if left:
                left -= 1
                raise Injected
            return is_deleted(payload)

        with structlog.testing.capture_logs() as lines:
            monkeypatch.setattr(object_reader, "is_deleted_object", judged)
            await node.acts.push("q", [Key(b"default", BUCKET, key) for key in (b"bad", b"good")], FULL_SYNC, 0)
            reply = await node.fetch()
            assert [item[5] for item in reply.items] == [b"good"]
            reply = await node.fetch(acks=[BatchAck(reply.batch, reply.owner_version)])
            assert [item[5] for item in reply.items] == [b"bad"]
            await node.fetch(acks=[BatchAck(reply.batch, reply.owner_version)], wait_ms=0)
        assert [line["event"] for line in lines if "exc_info" in line] == ["queue.object_failed"]
