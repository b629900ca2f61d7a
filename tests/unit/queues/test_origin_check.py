"""Local writes that a node's queues have not replicated yet (R-OWED), and the rows that are offered because of them."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.config.settings import QueueSettings
from isthmus.queues.queue_documents import DEFINITIONS_PATH
from isthmus.queues.wire import BatchAck
from isthmus.repl.model.errors import IsthmusError, NotReady, OutcomeUnknown
from isthmus.repl.model.keys import Key
from isthmus.repl.model.vclock import actor_of, pack_counter
from tests.support.queue_node import PARTITIONS, QueueNode
from tests.support.queue_source import BUCKET, OURS, THIRD
from tests.unit.queues.admin.test_acts import audit_info

pytestmark = pytest.mark.virtual_time

P = PARTITIONS[0]
KEY = Key(b"default", BUCKET, b"a")


@pytest.mark.logs_errors("queue.metastore_value_unreadable")
async def test_while_definitions_are_unread_every_local_write_is_unreplicated() -> None:
    """A queue that was registered at run time may be among the unreadable ones: it would miss the write."""

    queue_node = QueueNode(QueueSettings("q", filter="block_rtq"))
    await queue_node.start()
    try:
        queue_node.put(b"a")
        assert not queue_node.table.is_unreplicated(P, 1, THIRD, KEY)
        await queue_node.crash()
        await queue_node.metastore.put(DEFINITIONS_PATH, b"not JSON", None)
        await queue_node.start()
        assert queue_node.queues.queue_store.unread
        assert queue_node.table.is_unreplicated(P, 1, THIRD, KEY)
    finally:
        await queue_node.close()


@pytest.mark.parametrize(
    ("error", "unreplicated"), [(NotReady("refused before it was appended"), False), (OutcomeUnknown("appended"), True)]
)
async def test_a_pending_cursor_entry_makes_acknowledged_writes_unreplicated(
    monkeypatch: pytest.MonkeyPatch, error: IsthmusError, unreplicated: bool
) -> None:
    """The entry may move the cursor back. The writes are replicated again once the entry is applied or refused, but not
    after an unknown outcome, since it may yet be applied."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a")
        reply = await queue_node.fetch()
        await queue_node.fetch(acks=[BatchAck(reply.batch, reply.owner_version)], wait_ms=0)
        assert not queue_node.table.is_unreplicated(P, 1, THIRD, KEY)
        queue, write_cursor = queue_node.queues.named("q"), queue_node.write_cursor
        may_go = asyncio.Event()
        answers: list[IsthmusError] = []

        async def slowly(partition: int, name: bytes, payload: bytes) -> int:
            await may_go.wait()
            if partition == P and not answers:
                answers.append(error)
                raise error
            return await write_cursor(partition, name, payload)

        monkeypatch.setattr(queue_node, "write_cursor", slowly)
        monkeypatch.setattr("isthmus.queues.cursor_keeper.RETRY_MS", 60_000)
        await queue_node.acts.suspend("q", "publishing", None, audit_info(queue_node))
        await queue_node.eventually(lambda: queue.machine.cursor_pending(P))
        assert queue_node.table.is_unreplicated(P, 1, THIRD, KEY), "the entry is under way"
        may_go.set()
        await queue_node.eventually(lambda: answers)
        await asyncio.sleep(0)
        assert queue_node.table.is_unreplicated(P, 1, THIRD, KEY) is unreplicated


async def test_a_row_that_is_backfilled_counts_as_waiting_wherever_it_is_shown() -> None:
    """Lag, the backlog count, peek, explain and the ledger agree with the window; a row of another cluster without a
    local write is skipped."""

    queue_node = QueueNode(QueueSettings("q"))
    await queue_node.start(lead=False)
    try:
        queue_node.put(b"a")
        queue_node.put(b"a", origin=THIRD, seen=((actor_of(OURS, P), pack_counter(1, 0) + 1, 0),))
        queue_node.put(b"b", origin=THIRD)
        for partition in PARTITIONS:
            queue_node.lead(partition)
        await queue_node.eventually(lambda: len(queue_node.queues.machines()["q"].windows) == len(PARTITIONS))
        queue = queue_node.queues.named("q")
        (lag,) = await queue_node.acts.lags()
        assert [part.objects for part in lag.partitions if part.partition == P] == [1]
        assert (await queue_node.queues.backlog(queue)).changes == 1
        assert [item[5] for item in await queue_node.acts.peek("q", 10)] == [b"a"]
        rows = {row.key: row for row in queue_node.store.changes(P, 0, 10)}
        states = {
            key: queue_node.acts.explain(KEY._replace(key=key), P, rows[key])["queues"][0]["state"] for key in rows
        }
        assert states == {b"a": "not-read", b"b": "origin"}
        assert await queue_node.drain() == [b"a"]
        (said,) = queue_node.acts.explain(KEY, P, rows[b"a"])["queues"]
        assert said["state"] == "acknowledged", "this window has read it as ours"
        await queue_node.eventually(lambda: all(window.contiguous for window in queue.machine.windows.values()))
        ledger = await queue_node.acts.ledger("q")
        assert ledger["closes"]
        assert not ledger["lost"]
    finally:
        await queue_node.close()


async def test_what_was_passed_as_another_clusters_is_not_said_to_be_acknowledged() -> None:
    """A row of another cluster that holds an acknowledged write of ours was passed, not sent. A new window would read
    it as ours, since it begins above it."""

    queue_node = QueueNode(QueueSettings("q"))
    await queue_node.start()
    try:
        queue_node.put(b"a")
        assert await queue_node.drain() == [b"a"]
        queue_node.put(b"a", origin=THIRD, seen=((actor_of(OURS, P), pack_counter(1, 0) + 1, 0),))
        queue_node.put(b"b")
        assert await queue_node.drain() == [b"b"]
        window = queue_node.queues.named("q").machine.windows[P]
        await queue_node.acts.place("q", ((PARTITIONS[1], 0),), audit_info(queue_node))
        await queue_node.eventually(lambda: queue_node.queues.named("q").machine.windows.get(P) not in (None, window))
        (row,) = [row for row in queue_node.store.changes(P, 0, 10) if row.key == b"a"]
        (said,) = queue_node.acts.explain(KEY, P, row)["queues"]
        assert said["cursor"] > row.offset
        assert said["state"] == "origin"
        assert "is not known any more" in said["reason"]
    finally:
        await queue_node.close()
