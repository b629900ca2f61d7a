"""One queue, partition or batch fails alone: whatever a step raises, nothing is lost, and the others go on
(R-ALONE)."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

import pytest
import structlog

from isthmus.config.settings import QueueSettings
from isthmus.queues.service import QueueService
from isthmus.queues.wire import BatchAck
from isthmus.repl.unforeseen import unforeseen
from tests.support.queue_node import PARTITIONS, QueueNode

pytestmark = pytest.mark.virtual_time

P, Q = PARTITIONS

OF_WINDOWS = [
    "window:Window.add",
    "window:Window._append",
    "window:Window.take",
    "window:Window.refill_count",
    "window:Window.begin_refill",
    "window:Window.finish_refill",
    "window:Window.settle",
    "window:Window.advance",
]


class Injected(RuntimeError):
    """Raised by the tests alone."""


def count() -> int:
    return sum(int(value) for _, labels, value in unforeseen.samples() if labels["event"].startswith("queue."))


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No earlier test has used up the limit of log lines."""
    monkeypatch.setattr(unforeseen._limit, "due", lambda _subject: 0)


def names(reply: Any) -> list[bytes]:
    return [item[5] for item in reply.items]


async def fetch_all(node: QueueNode, queue: str, wanted: set[bytes]) -> None:
    """Fetch and acknowledge until all `wanted` keys came."""
    found: set[bytes] = set()
    acks: tuple[BatchAck, ...] = ()
    async with asyncio.timeout(120):
        while not wanted <= found:
            reply = await node.fetch(queue=queue, wait_ms=500, acks=acks)
            acks = (BatchAck(reply.batch, reply.owner_version, (), None, ()),) if reply.batch else ()
            found |= set(names(reply))
    await node.fetch(queue=queue, wait_ms=0, acks=acks)


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("point", OF_WINDOWS)
async def test_a_window_that_fails_anywhere_loses_nothing_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, point: str, times: int
) -> None:
    """A step of one queue's window of one partition raises, once or several times: every change of the partition and of
    the other one reaches the sink of that queue, and the other queue delivers meanwhile."""
    module, _, name = point.partition(":")
    owner = getattr(import_module(f"isthmus.queues.{module}"), name.split(".")[0])
    function = getattr(owner, name.split(".")[1])
    async with QueueNode(QueueSettings("q"), QueueSettings("other")) as node:
        node.put(b"a0", b"a1")
        node.put(b"b0", partition=Q)
        await fetch_all(node, "q", {b"a0", b"a1", b"b0"})
        await fetch_all(node, "other", {b"a0", b"a1", b"b0"})
        left = times
        victim = node.queues.named("q").machine

        def fails(window: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left and window.partition == P and window.budget is victim.budget:
                left -= 1
                raise Injected(point)
            return function(window, *args, **kwargs)

        with structlog.testing.capture_logs() as lines, monkeypatch.context() as patch:
            before = count()
            patch.setattr(owner, name.split(".")[1], fails)
            node.put(b"a2", b"a3")
            node.put(b"b1", partition=Q)
            await fetch_all(node, "other", {b"a2", b"a3", b"b1"})
            await fetch_all(node, "q", {b"a2", b"a3", b"b1"})
            for _ in range(20):  # what has not failed yet does when a leadership begins: rows are read then
                if left:
                    node.queues.leadership(P, False, 0)
                    node.put(b"a3")
                    node.lead(P)
                    await asyncio.sleep(1.5)
                    node.put(b"a4")
                    await fetch_all(node, "q", {b"a4"})
        assert count() == before + times
        caught = [line for line in lines if "exc_info" in line]
        assert {type(line["exc_info"]) for line in caught} == {Injected}
        assert {line["event"] for line in caught} <= {"queue.window_failed", "queue.tick_failed"}
        node.put(b"a5")
        await fetch_all(node, "q", {b"a5"})


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("point", ["source_queue:SourceQueue.lead", "cursor_keeper:position_of"])
async def test_a_window_that_cannot_begin_begins_later(monkeypatch: pytest.MonkeyPatch, point: str, times: int) -> None:
    """A queue's position in a partition cannot be loaded for a reason that nobody foresaw: it is loaded again after a
    pause, as long as this node leads. Else the queue would serve nothing of the partition until it had another leader.
    """
    module, _, name = point.partition(":")
    owner: Any = import_module(f"isthmus.queues.{module}")
    *classes, attribute = name.split(".")
    owner = getattr(owner, classes[0]) if classes else owner
    function = getattr(owner, attribute)
    left = times

    def fails(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise Injected(point)
        return function(*args, **kwargs)

    async with QueueNode(QueueSettings("q")) as node:
        node.put(b"a0")
        await fetch_all(node, "q", {b"a0"})
        node.queues.leadership(P, False, 0)
        node.put(b"a1")
        with structlog.testing.capture_logs() as lines, monkeypatch.context() as patch:
            patch.setattr(owner, attribute, fails)
            node.lead(P)
            await fetch_all(node, "q", {b"a1"})
        caught = [line["event"] for line in lines if "exc_info" in line]
        assert caught == ["queue.window_failed"] * times


@pytest.mark.parametrize("point", ["save", "write_pending_cursors"])
async def test_a_queue_whose_turn_fails_leaves_the_others_theirs(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """The cursors of the other queues are saved in the same turn, and the turns go on."""
    async with QueueNode(QueueSettings("q"), QueueSettings("other")) as node:
        keeper = node.queues._cursors
        function = getattr(keeper, point)
        turns: list[str] = []

        def fails(queue: Any, *args: Any) -> Any:
            turns.append(queue.settings.name)
            if queue.settings.name == "q":
                raise Injected(point)
            return function(queue, *args)

        with structlog.testing.capture_logs() as lines, monkeypatch.context() as patch:
            patch.setattr(keeper, point, fails)
            await asyncio.sleep(3.5)
        assert turns.count("other") >= 3
        assert {line["event"] for line in lines} == {"queue.tick_failed"}
        assert any(each.event == "queue.tick_failed" for each in unforeseen.recent())


async def test_marks_and_tasks_that_fail_end_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The marks of bulk references have a turn of their own; a task that ends by a defect is logged."""

    async def fails() -> None:
        raise Injected

    def marks(_queues: Any) -> None:
        raise Injected

    async with QueueNode() as node:
        with structlog.testing.capture_logs() as lines, monkeypatch.context() as patch:
            patch.setattr(node.queues.bulk_marks, "tick", marks)
            node.queues._tasks.start(fails())
            await asyncio.sleep(2.5)
        events = [line["event"] for line in lines]
        assert events.count("queue.task_failed") == 1
        assert events.count("queue.marks_failed") == 2


async def test_documents_whose_reading_fails_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a watch event announced is read in the end: the event does not come a second time."""
    async with QueueNode() as node:
        reads = 0
        follow = QueueService.follow_definitions

        async def fails(service: QueueService) -> None:
            nonlocal reads
            reads += 1
            if reads == 1:
                raise Injected
            await follow(service)

        monkeypatch.setattr(QueueService, "follow_definitions", fails)
        with structlog.testing.capture_logs() as lines:
            node.queues._on_hint("/queue-definitions")
            await asyncio.sleep(5)
        assert reads == 2
        assert [line["event"] for line in lines] == ["queue.documents_failed"]
