"""A queue's knowledge of its lag, and of single keys."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Any

import msgspec
import pytest

import isthmus.queues.admin as admin_module
import isthmus.queues.lag as lag_module
from isthmus.config.settings import QueueSettings
from isthmus.node.cli.queue import queue_facts
from isthmus.node.services.findings import ledger_facts
from isthmus.queues.lag import LEAST_S, TIMEOUT_S, LagReadings, QueueLag
from isthmus.queues.queue_documents import PUBLISHING, SERVING
from isthmus.queues.queue_server import QueueServer
from isthmus.queues.window import Window
from isthmus.queues.window_rules import FULL_SYNC
from isthmus.queues.wire import BatchAck
from isthmus.repl.model.errors import LocalFault, NotReady
from isthmus.repl.model.keys import Key, key_hash, segment_of
from isthmus.repl.property_digests import PropertyDifference, scope_digest
from tests.support.queue_listings import listed_queues
from tests.support.queue_node import PARTITIONS, QueueNode, audited_node
from tests.support.queue_source import BUCKET, THIRD
from tests.support.waiting import PATIENCE_S, eventually
from tests.unit.queues.admin.test_acts import audit_info, keys, settled

pytestmark = pytest.mark.virtual_time

P = PARTITIONS[0]


async def lags(queue_node: QueueNode) -> list[dict[str, Any]]:
    """The lags of all queues, in the form in which nodes send them."""
    found: list[dict[str, Any]] = msgspec.to_builtins(await queue_node.acts.lags())
    return found


async def lag(queue_node: QueueNode) -> dict[str, Any]:
    """The first queue's lag in the first partition."""
    (queue,) = await lags(queue_node)
    (found,) = [part for part in queue["partitions"] if part["partition"] == P]
    return found


def explained(queue_node: QueueNode, key: bytes, name: str = "q") -> dict[str, Any]:
    """The explanation of queue `name` for a key of the first partition."""
    rows = [row for row in queue_node.store.changes(P, 0, 1_000) if row.key == key]
    answer = queue_node.acts.explain(Key(b"default", BUCKET, key), P, rows[0] if rows else None)
    (found,) = [one for one in answer["queues"] if one["queue"] == name]
    return found


@pytest.mark.timing
@pytest.mark.virtual_time(False)  # its threads wait until a time-out of the loop is over
async def test_a_busy_node_answers_in_time_with_an_unknown_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """The read pool is blocked: the answer still comes within its time limit, with null for unread values and the
    reason. What is in memory is known. Seconds that were read before stay while the cursor does, and grow."""
    monkeypatch.setattr(lag_module, "TIMEOUT_S", 0.2)

    async with audited_node() as queue_node:
        queue_node.put(b"k")
        assert len((await queue_node.fetch()).items) == 1
        windows = [window for queue in queue_node.served() for window in queue.machine.windows.values()]
        await eventually(lambda: all(window.contiguous for window in windows), "what waits is in memory")
        free = Event()
        busy = [queue_node.pool.submit(free.wait, 60) for _ in range(2)]
        try:
            async with asyncio.timeout(PATIENCE_S):
                (queue,) = await lags(queue_node)
        finally:
            free.set()
            assert all(one.result() for one in busy)
        late, at_rest = sorted(queue["partitions"], key=lambda part: part["partition"] != P)[:2]
        assert (late["seconds"], late["bytes"], late["objects"]) == (None, None, 1)
        assert (at_rest["seconds"], at_rest["bytes"], at_rest["objects"]) == (0, 0, 0)
        assert "1 partition could not be read within 0.2 s: the node is busy" in queue["reason"]
        assert (await lag(queue_node))["bytes"] is not None
        queue_node.clock.skew_ms += 60_000
        free = Event()
        busy = [queue_node.pool.submit(free.wait, 20) for _ in range(2)]
        try:
            async with asyncio.timeout(5):
                (queue,) = await lags(queue_node)
        finally:
            free.set()
            assert all(one.result() for one in busy)
        (kept,) = [part for part in queue["partitions"] if part["partition"] == P]
        assert 60 <= kept["seconds"] < 70
        assert kept["bytes"] is None
        assert "keys and bytes of 1 partition could not be read within 0.2 s" in queue["reason"]


@pytest.mark.logs_errors("queue.lag_failed")
@pytest.mark.parametrize(
    ("error", "words"), [(RuntimeError("injected"), "RuntimeError"), (LocalFault("the disk fails"), "the disk fails")]
)
async def test_one_partition_that_cannot_be_read_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    """Its lag is unknown, and the reason says why; what the other partitions and queues lack is known."""
    sound = lag_module._Reading.read_seconds

    async def read(reading: Any) -> None:
        if reading.window.partition == P:
            raise error
        await sound(reading)

    monkeypatch.setattr(lag_module._Reading, "read_seconds", read)
    async with audited_node(QueueSettings("a"), QueueSettings("b")) as queue_node:
        for queue in await lags(queue_node):
            broken = [part for part in queue["partitions"] if part["partition"] == P]
            assert [part["seconds"] for part in broken] == [None]
            assert [part["seconds"] for part in queue["partitions"] if part not in broken] == [0.0]
            assert words in queue["reason"]


@pytest.mark.logs_errors("queue.lag_failed")
async def test_one_window_with_a_defect_leaves_the_lag_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-ALONE: a window whose cursor cannot move has an unknown lag and a reason; the others are whole."""
    advance = Window.advance

    async with audited_node(QueueSettings("a"), QueueSettings("b")) as queue_node:
        broken = queue_node.served()[0].machine.windows[P]

        def fails(window: Window) -> int:
            if window is broken:
                raise RuntimeError("injected")
            return advance(window)

        with monkeypatch.context() as patch:
            patch.setattr(Window, "advance", fails)
            first, second = await lags(queue_node)
        assert [part["seconds"] for part in first["partitions"]] == [None, *[0.0] * (len(PARTITIONS) - 1)]
        assert first["partitions"][0]["objects"] is None
        assert "RuntimeError" in first["reason"]
        assert [part["seconds"] for part in second["partitions"]] == [0.0] * len(PARTITIONS)
        assert "RuntimeError" not in second["reason"]


@pytest.mark.logs_errors("queue.lag_failed")
async def test_what_was_remembered_and_cannot_be_compared_costs_one_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-ALONE: what one reading cannot make of the reading before it is that partition's reason."""
    remembered = lag_module._Reading.remembered

    def fails(reading: Any, before: Any) -> Any:
        if reading.window.partition == P:
            raise RuntimeError("injected")
        return remembered(reading, before)

    monkeypatch.setattr(lag_module._Reading, "remembered", fails)
    async with audited_node(QueueSettings("a"), QueueSettings("b")) as queue_node:
        for queue in await lags(queue_node):
            assert len(queue["partitions"]) == len(PARTITIONS)
            assert "RuntimeError" in queue["reason"]


@pytest.mark.logs_errors("queue.reason_failed")
@pytest.mark.parametrize("function", ["reason", "held_reasons"])
async def test_a_queue_whose_reasons_fail_hides_no_lag(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    """R-ALONE: the defect is that queue's reason, and its lag is shown all the same."""
    sound = getattr(admin_module, function)

    def fails(queue: QueueServer, *args: Any, **options: Any) -> Any:
        if queue is broken:
            raise RuntimeError("injected")
        return sound(queue, *args, **options)

    async with audited_node(QueueSettings("a"), QueueSettings("b")) as queue_node:
        broken = queue_node.served()[0]
        monkeypatch.setattr(admin_module, function, fails)
        first, second = await lags(queue_node)
        assert "RuntimeError" in first["reason"]
        assert "RuntimeError" not in second["reason"]
        for queue in (first, second):
            assert [part["seconds"] for part in queue["partitions"]] == [0.0] * len(PARTITIONS)


async def test_no_queue_takes_the_seconds_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two queues, whose counts and sizes take longer than a request may: the seconds of both are known, and the
    objects and bytes are not."""

    async with audited_node(QueueSettings("a"), QueueSettings("b")) as queue_node:
        queue_node.put(*(b"%d" % n for n in range(50)))
        queue_node.clock.skew_ms += 5_000
        monkeypatch.setattr(lag_module, "FIRST_ROWS", 1)
        monkeypatch.setattr(lag_module, "STEP_ROWS", 10)
        reads = lag_module._Reading._page

        async def slow(reading: Any, limit: int) -> None:
            if limit == 10:
                await asyncio.sleep(2)
            await reads(reading, limit)

        monkeypatch.setattr(lag_module._Reading, "_page", slow)
        found = await lags(queue_node)
        assert [queue["queue"] for queue in found] == ["a", "b"]
        for queue in found:
            (part,) = [part for part in queue["partitions"] if part["partition"] == P]
            assert 4 < part["seconds"] < 8
            assert part["bytes"] is None


async def test_a_reading_goes_on_with_the_queue_at_which_the_last_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is time for one queue alone, the next request begins with the next queue: within as many requests as
    there are queues, all have been read."""

    async with audited_node(*(QueueSettings(name) for name in "abc")) as queue_node:
        queue_node.put(b"k")
        reads = lag_module._Reading.read_seconds

        async def slow(reading: Any) -> None:
            if reading.window.partition == P:
                await asyncio.sleep(0.8)
            await reads(reading)

        monkeypatch.setattr(lag_module._Reading, "read_seconds", slow)
        known = []
        for _ in range(3):
            found = await lags(queue_node)
            parts = {q["queue"]: part for q in found for part in q["partitions"] if part["partition"] == P}
            known.append({name for name, part in parts.items() if part["seconds"] is not None})
        assert known == [{"a"}, {"a", "b"}, {"a", "b", "c"}]


class ScriptedReadings:
    """Readings that end when the test says so; `began` are the times by which each had to end, in s after its
    begin."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.ends: list[asyncio.Future[list[QueueLag]]] = []
        self.shared = LagReadings(self._take)

    async def _take(self, by_s: float) -> list[QueueLag]:
        loop = asyncio.get_running_loop()
        self.began.append(by_s - loop.time())
        self.ends.append(loop.create_future())
        return await self.ends[-1]

    async def asked(self, fresh_ms: int = 0) -> asyncio.Task[list[QueueLag]]:
        """A request, as far as it goes by itself."""
        task = asyncio.create_task(self.shared.read(fresh_ms))
        await asyncio.sleep(0.001)
        return task


async def test_no_reading_is_older_than_the_request_that_it_answers() -> None:
    """Requests of one moment share a reading. Those that come while it runs share the next one, which begins when it
    has ended: a change that came after the first reading had passed its partition is counted."""
    readings = ScriptedReadings()
    first, beside = [asyncio.create_task(readings.shared.read()) for _ in range(2)]
    await asyncio.sleep(0.001)
    later = [await readings.asked() for _ in range(3)]
    assert len(readings.began) == 1
    readings.ends[0].set_result([])
    assert await first is await beside
    await asyncio.sleep(0.001)
    assert len(readings.began) == 2
    assert not any(task.done() for task in later)
    answer: list[QueueLag] = []
    readings.ends[1].set_result(answer)
    for task in later:
        assert await task is answer
    await readings.asked()
    assert len(readings.began) == 3
    await readings.shared.stop()


async def test_a_reading_that_waited_has_less_time_and_never_none() -> None:
    """A request is answered within its time even if it came just after another reading had begun: the node that gathers
    the answers waits no longer. A little time is always left."""
    readings = ScriptedReadings()
    await readings.asked()
    for waited_s in (1.0, 1.4):
        waiting = await readings.asked()
        await asyncio.sleep(waited_s)
        readings.ends[-1].set_result([])
        await asyncio.sleep(0.001)
        assert not waiting.done()
    assert [round(each, 1) for each in readings.began] == [TIMEOUT_S, 0.5, LEAST_S]
    await readings.shared.stop()


async def test_a_caller_may_take_a_reading_that_began_a_little_earlier() -> None:
    """A scrape costs no reading where there was one within its time, done or under way; a later one does."""
    readings = ScriptedReadings()
    first = await readings.asked()
    beside = await readings.asked(1_000)
    readings.ends[0].set_result([])
    assert await first is await beside
    assert await (await readings.asked(1_000)) is await first
    assert len(readings.began) == 1
    await asyncio.sleep(1)
    late = await readings.asked(1_000)
    assert len(readings.began) == 2
    readings.ends[1].set_exception(NotReady("the store is closed"))
    with pytest.raises(NotReady):
        await late
    await readings.asked(1_000)
    assert len(readings.began) == 3, "a reading that failed is no answer to others"
    await readings.shared.stop()


async def test_readers_that_leave_end_no_reading_and_a_stop_ends_all() -> None:
    """The reading goes on for those that stay. A stop ends the one that runs and the one that waits for it; nothing is
    read after it."""
    readings = ScriptedReadings()
    leaving, staying = [asyncio.create_task(readings.shared.read()) for _ in range(2)]
    await asyncio.sleep(0.001)
    leaving.cancel()
    readings.ends[0].set_result([])
    assert await staying == []
    ended = [await readings.asked(), await readings.asked()]
    await readings.shared.stop()
    assert [type(one) for one in await asyncio.gather(*ended, return_exceptions=True)] == [asyncio.CancelledError] * 2
    assert readings.ends[1].cancelled()
    with pytest.raises(NotReady, match="stopped"):
        await readings.shared.read()
    assert len(readings.began) == 2


async def test_a_key_that_keeps_changing_cannot_make_lag_young() -> None:
    """For a key that is rewritten every second, with or without a sink that holds it, the lag is that of its first
    change."""

    async with audited_node() as queue_node:
        queue_node.put(b"old")
        for _ in range(30):
            queue_node.clock.skew_ms += 1_000
            queue_node.put(b"old")
        found = await lag(queue_node)
        assert 28 < found["seconds"] < 33
        assert found["objects"] == 1
        assert found["bytes"] > 20
        batch = await queue_node.fetch()
        assert len(batch.items) == 1
        for _ in range(10):
            queue_node.clock.skew_ms += 1_000
            queue_node.put(b"old")
        held = await lag(queue_node)
        assert (held["in_flight"], held["objects"]) == (1, 1), "the key is one, under lease and rewritten"
        assert held["seconds"] > 9


async def test_what_waits_is_never_zero_seconds_old() -> None:
    """Neither in the millisecond of the write, nor after the clock was set back: 0 means that nothing waits."""
    async with audited_node() as queue_node:
        queue_node.put(b"k")
        assert (await lag(queue_node))["seconds"] > 0
        queue_node.clock.skew_ms -= 600_000
        found = await lag(queue_node)
        assert (found["seconds"] > 0, found["objects"]) == (True, 1)


async def test_a_sink_that_stopped_fetching_is_reported_and_a_waiting_one_is_not() -> None:
    """Twenty seconds without a fetch are a reason; a poll that waits here for longer is not."""

    async with audited_node() as queue_node:

        async def reason() -> str:
            (row,) = await listed_queues(queue_node.queues)
            assert row["reason"] == (await queue_node.acts.lags())[0].reason
            return str(row["reason"])

        await queue_node.fetch(wait_ms=0)
        await settled(queue_node)
        assert await reason() == ""
        poll = asyncio.get_running_loop().create_task(queue_node.fetch(wait_ms=60_000))
        await asyncio.sleep(0.02)
        queue_node.clock.skew_ms += 25_000
        assert await reason() == ""
        queue_node.put(b"a")
        await poll
        queue_node.clock.skew_ms += 25_000
        assert await reason() == "no node of west asks for changes here"


async def test_a_sink_that_fetches_too_slowly_is_reported_where_changes_wait() -> None:
    """A change that has waited for ten seconds although the sink fetches is a reason for the queue's lag and for the
    key, until the sink has fetched it or waits here."""

    async with audited_node() as queue_node:

        async def reasons() -> tuple[str, str, str]:
            (row,) = await listed_queues(queue_node.queues)
            assert row["reason"] == (await queue_node.acts.lags())[0].reason
            found = explained(queue_node, b"late")
            return str(row["reason"]), found["reason"], found["next"]

        await queue_node.fetch(wait_ms=0)
        for key in (b"first", b"late"):
            queue_node.put(key)
        await settled(queue_node)
        assert (await reasons())[:2] == ("", "")
        queue_node.clock.skew_ms += 11_000
        await queue_node.fetch(wait_ms=0, count=1)
        slow = "west fetches more slowly than changes come"
        assert await reasons() == (slow, slow, "isthmus sink show at cluster west shows what limits its sink")
        await queue_node.fetch(wait_ms=0)
        assert (await reasons())[:2] == ("", "")


async def test_differing_properties_name_the_owner_until_it_is_released() -> None:
    """The reason names the differing bucket types of all its nodes, each once; a released queue has no differences."""

    async with audited_node() as queue_node:
        await queue_node.fetch(wait_ms=0)
        await settled(queue_node)
        queue_node.queues.named("q").differing = {
            "w2": (PropertyDifference(b"notes"),),
            "w1": (PropertyDifference(b"maps"), PropertyDifference(b"notes")),
        }
        assert (await queue_node.acts.lags())[0].reason == (
            "properties differ at west: maps, notes: of the bucket type or of one of its buckets"
        )
        await queue_node.acts.release("q", 0, audit_info(queue_node))
        await settled(queue_node)
        assert (await queue_node.acts.lags())[0].reason == "released by ann"


async def test_lag_is_zero_once_all_is_acknowledged_and_unknown_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If nothing waits there are 0 seconds, objects and bytes; if too many changes wait to be counted only the seconds
    are known."""

    async with audited_node() as queue_node:
        assert (await lag(queue_node))["seconds"] == 0
        queue_node.put(*(b"%d" % n for n in range(50)))
        monkeypatch.setattr("isthmus.queues.lag.ROWS_MAX", 10)
        monkeypatch.setattr("isthmus.queues.lag.STEP_ROWS", 10)
        queue_node.clock.skew_ms += 5_000
        found = await lag(queue_node)
        assert (found["objects"], found["bytes"]) == (None, None)
        assert 4 < found["seconds"] < 8
        batch = await queue_node.fetch()
        await queue_node.fetch(acks=[BatchAck(batch.batch, batch.owner_version)], count=0)
        found = await lag(queue_node)
        assert (found["seconds"], found["objects"], found["bytes"]) == (0, 0, 0)


async def test_changes_acknowledged_during_a_lag_read_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Objects, bytes and seconds are of one moment: a change acknowledged while rows are read is in none of them, and a
    waiting object never has 0 bytes."""

    async with audited_node() as queue_node:
        queue_node.put(b"a", b"b")
        batch = await queue_node.fetch(count=1)
        reads = lag_module._Reading._page

        async def overtaken(*given: Any) -> None:
            if queue_node.queues.machines()["q"].windows[P].in_flight_count:
                await queue_node.fetch(acks=[BatchAck(batch.batch, batch.owner_version)], count=0)
            await reads(*given)

        monkeypatch.setattr(lag_module._Reading, "_page", overtaken)
        queue_node.clock.skew_ms += 5_000
        one = await lag(queue_node)
        assert one["objects"] == 1
        assert 20 < one["bytes"] < 200, "of the one that still waits"
        batch = await queue_node.fetch(count=1)
        found = await lag(queue_node)
        assert (found["seconds"], found["objects"], found["bytes"]) == (0, 0, 0)


async def test_explain_names_where_a_key_is_and_why() -> None:
    """Waiting, in flight, acknowledged, held back by origin, filter or a gap: each with its reason and next step."""

    async with audited_node(QueueSettings("q"), QueueSettings("typed", filter="buckettype:other")) as queue_node:
        queue_node.put(b"early")
        assert (explained(queue_node, b"early")["state"], explained(queue_node, b"early")["owner"]) == (
            "not-read",
            None,
        )
        assert explained(queue_node, b"early", "typed")["state"] == "filtered"
        assert "buckettype:other" in explained(queue_node, b"early", "typed")["filter"]
        batch = await queue_node.fetch()
        assert explained(queue_node, b"early")["state"] == "in-flight"
        queue_node.put(b"one", b"two")
        found = explained(queue_node, b"two")
        assert (found["state"], found["ahead"], found["owner"]) == ("waiting", 1, "west")
        queue_node.put(b"theirs", origin=THIRD)
        assert explained(queue_node, b"theirs")["state"] == "origin"
        await queue_node.fetch(acks=[BatchAck(batch.batch, batch.owner_version)], count=0)
        assert explained(queue_node, b"early")["state"] == "acknowledged"
        await queue_node.acts.suspend("q", SERVING, None, audit_info(queue_node))
        held = explained(queue_node, b"one")
        assert (held["state"], held["next"]) == ("waiting", "isthmus queue resume q")
        assert "ann: because" in held["reason"]
        await queue_node.acts.suspend("q", PUBLISHING, None, audit_info(queue_node))
        await settled(queue_node)
        queue_node.put(b"left out")
        found = explained(queue_node, b"left out")
        assert found["state"] == "gap"
        assert "publishing-suspended by ann: because" in found["reason"]
        assert explained(queue_node, b"never")["state"] == "no-change"


async def test_explain_names_a_sink_that_stopped_fetching_as_soon_as_the_lag_does() -> None:
    """Twenty seconds after the last fetch, the explanation of a waiting key names the owner's sink as the next step."""

    async with audited_node() as queue_node:
        await queue_node.fetch(wait_ms=0)
        queue_node.put(b"k")
        found = explained(queue_node, b"k")
        assert (found["reason"], found["next"]) == ("", "it is read from the change index when its turn comes")
        queue_node.clock.skew_ms += 25_000
        found = explained(queue_node, b"k")
        assert (found["state"], found["reason"]) == ("not-read", "no node of west asks for changes here")
        assert found["next"] == "a sink must fetch: isthmus sink list at cluster west shows why none does"


async def test_explain_calls_nothing_acknowledged_that_is_older_than_the_queue() -> None:
    """A queue that begins now, or at exact offsets, never offered changes below; changes sent since are acknowledged,
    also at a queue that begins with all changes."""

    async with audited_node() as queue_node:
        queue_node.put(b"old")
        queue_node.clock.skew_ms += 2_000
        act = audit_info(queue_node)
        await queue_node.acts.register("now", {}, act.at_ms, act)
        await queue_node.acts.register("placed", {}, 0, act, ((P, queue_node.store.changes(P, 0, 1)[0].offset + 1),))
        await queue_node.acts.register("all", {}, 0, act)
        await queue_node.acts.register("applied", {}, 0, act, now=queue_node.acts.applied())
        await queue_node.eventually(lambda: all(len(q.machine.windows) == len(PARTITIONS) for q in queue_node.served()))
        queue_node.put(b"new")
        for name in ("now", "placed", "applied", "all"):
            await queue_node.eventually(
                lambda name=name: queue_node.queues.named(name).machine.windows[P].state.command_version
            )
            await queue_node.drain(queue=name)
        for name, why in (
            ("now", "older than the position from which the queue begins, set by ann"),
            ("placed", "older than where the queue was registered by ann: a seed brought what lies below"),
            ("applied", "older than where the queue was registered by ann"),
        ):
            found = explained(queue_node, b"old", name)
            assert (found["state"], found["reason"]) == ("before", why)
            assert "isthmus queue push" in found["next"]
        assert explained(queue_node, b"old", "all")["state"] == "acknowledged"
        for name in ("now", "placed", "applied", "all"):
            assert explained(queue_node, b"new", name)["state"] == "acknowledged"


async def test_explain_shows_bulk_references_wherever_they_wait() -> None:
    """A pushed key is named with its priority and what was queued before it, by every node that holds one."""

    async with audited_node() as queue_node:
        queue_node.put(b"a", b"b")
        await queue_node.acts.push("q", keys(b"a", b"b"), FULL_SYNC, 0)
        row = {"queue": "q", "priority": "full_sync", "state": "waiting", "ahead": 1}

        def explained_references() -> list[Any]:
            answer = queue_node.acts.explain(Key(b"default", BUCKET, b"b"), None, None)
            assert answer["queues"] == []
            return list(answer["lower"])

        fetch = "a sink must fetch: isthmus sink list at the other cluster shows why none does"
        assert explained_references() == [
            {**row, "reason": "no sink cluster has fetched from the queue", "next": fetch}
        ]
        await queue_node.fetch(count=0)
        assert explained_references() == [{**row, "reason": "", "next": ""}]
        await queue_node.acts.suspend("q", SERVING, None, audit_info(queue_node))
        assert explained_references() == [
            {**row, "reason": "serving is suspended by ann: because", "next": "isthmus queue resume q"}
        ]


async def test_properties_that_differ_are_named_on_both_sides() -> None:
    """The sink receives the source's digests, and the listing names its node and bucket types until they agree."""

    async with audited_node() as queue_node:
        queue_node.facts.digests = {b"notes": b"a" * 8}
        queue_node.put(b"a")
        reply = await queue_node.fetch()
        assert reply.properties == {b"notes": b"a" * 8}
        (shown,) = await listed_queues(queue_node.queues)
        assert list(shown["properties_differ"].values()) == [["notes"]]
        assert "notes" in shown["reason"]
        queue_node.facts.digests = {}
        await queue_node.fetch(wait_ms=0)
        (shown,) = await listed_queues(queue_node.queues)
        assert shown["properties_differ"] == {}


async def test_a_buckets_property_that_differs_is_named_by_listing_and_lag() -> None:
    """Bucket and property are named if both sides report digests by bucket; if a node reports none, only the bucket
    type is. Once all agree, nothing is named."""

    async with audited_node() as queue_node:
        ours = {b"default": {b"orders": scope_digest({"allow_mult": False})}}
        queue_node.facts.digests, queue_node.facts.scopes = {b"default": b"a" * 8}, ours
        reply = await queue_node.fetch(wait_ms=0, scopes={})
        await settled(queue_node)
        assert reply.scopes == ours
        (shown,) = await listed_queues(queue_node.queues)
        assert shown["properties_differ"] == {"w1": ["default"]}
        assert shown["property_differences"] == {
            "w1": [{"bucket_type": "default", "bucket": "orders", "properties": ["allow_mult"]}]
        }
        assert dict(queue_facts(shown))["properties differ at"] == ["w1: bucket default/orders: allow_mult"]
        named = "properties differ at west: bucket default/orders: allow_mult"
        assert shown["reason"] == (await queue_node.acts.lags())[0].reason == named
        await queue_node.fetch(wait_ms=0, node="old")
        (shown,) = await listed_queues(queue_node.queues)
        assert shown["property_differences"]["old"] == [{"bucket_type": "default", "bucket": None, "properties": []}]
        assert dict(queue_facts(shown))["properties differ at"][1] == "old: default"
        assert shown["reason"] == named
        for node in ("w1", "old"):
            await queue_node.fetch(wait_ms=0, node=node, properties={b"default": b"a" * 8})
        (shown,) = await listed_queues(queue_node.queues)
        assert (shown["properties_differ"], shown["property_differences"], shown["reason"]) == ({}, {}, "")


@pytest.mark.logs_errors("queue.ledger_off")
async def test_a_ledger_that_does_not_close_is_an_alarm() -> None:
    """Status, listing and log say so, for as long as it is so."""

    async with audited_node() as queue_node:
        queue_node.put(b"a")
        await queue_node.fetch()
        (queue,) = queue_node.served()
        queue_node.queues.tick()
        assert queue_node.queues.status()["state"] == "running"
        window = queue.machine.windows[P]
        window.ledger.eligible += 2
        queue_node.queues.tick()
        assert queue_node.queues.status() == {
            "actor": "source",
            "state": "alarm",
            "reason": "the ledger does not close: q",
        }
        (shown,) = await listed_queues(queue_node.queues)
        assert "off by 2" in shown["reason"]
        rows = [{"queue": "q", "ledger_off": (await queue_node.acts.lags())[0].ledger_off}]
        assert [fact.sentence for fact in ledger_facts(rows)] == ["queue q: the ledger is off by 2: a bug"]
        window.ledger.eligible -= 2
        queue_node.queues.tick()
        assert queue_node.queues.status()["state"] == "running"


@pytest.mark.logs_errors("queue.key_row_damaged")
async def test_a_damaged_key_row_stops_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a key row is damaged, the waiting bytes are unknown, but their number is known. A change of another cluster
    that may contain a local write is offered. The segment is reported for repair, each time."""

    queue_node = QueueNode(QueueSettings("q"))
    await queue_node.start(lead=False)
    reported = queue_node.damaged
    damaged: set[bytes] = {b"ours", b"theirs"}
    read = queue_node.store.key_row

    def key_row(partition: int, hashed: int, bucket: bytes, key: bytes) -> bytes | None:
        return b"\xc1 no row" if key in damaged else read(partition, hashed, bucket, key)

    monkeypatch.setattr(queue_node.store, "key_row", key_row)
    try:
        queue_node.put(b"ours")
        queue_node.put(b"theirs", b"other", origin=THIRD)
        for partition in PARTITIONS:
            queue_node.lead(partition)
        await queue_node.eventually(lambda: len(queue_node.queues.machines()["q"].windows) == len(PARTITIONS))
        found = await lag(queue_node)
        assert (found["objects"], found["bytes"]) == (2, None)
        await queue_node.eventually(lambda: len({segment for _, segment in reported}) == 2)
        wanted = {(P, segment_of(key_hash(BUCKET, key))) for key in damaged}
        assert set(reported) == wanted
        assert (await queue_node.queues.backlog(queue_node.queues.named("q"))).changes == 2
        damaged.remove(b"ours")
        assert sorted(await queue_node.drain()) == [b"ours", b"theirs"]
    finally:
        await queue_node.close()
