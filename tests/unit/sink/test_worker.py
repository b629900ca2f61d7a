"""Batches that are older than their lease are not pushed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.queues.window_rules import Item
from isthmus.queues.wire import FetchReply
from isthmus.repl.clock_offsets import ClockOffsets
from isthmus.repl.model.objects import Content, encode_object, write
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.model.requests import PushItem, PushOutcome, PushResult
from isthmus.repl.model.vclock import actor_of
from isthmus.sink.backoff import CycleResult
from isthmus.sink.discovery import LinkTarget
from isthmus.sink.fetch import Fetcher, FetchOptions
from isthmus.sink.push import SourceCounters
from isthmus.sink.scheduler import LinkName
from isthmus.sink.worker import Link, SinkContext, Slot
from tests.support.queue_node import PARTITIONS, QueueNode
from tests.support.queue_source import OURS, SINK

pytestmark = pytest.mark.virtual_time

LEASE_MS = 30_000
OBJECT = encode_object(write(None, (), Content(b"v"), (actor_of(OURS, 3), 1), 5))
ITEM: Item = (int(ReferenceKind.OBJECT), 3, 0, b"default", b"b", b"k", OURS, 5, OBJECT)


class Clock:
    """Virtual time."""

    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.ms


class SlowFetcher(Fetcher):
    """A fetcher that takes `takes_ms` to return one change, with `waited_ms` as the wait that the source reports."""

    def __init__(self, clock: Clock, takes_ms: int, waited_ms: int | None) -> None:
        self._clock = clock
        self._takes_ms = takes_ms
        self._waited_ms = waited_ms
        self.answer_bytes = 100
        self.ack: Any = None

    async def fetch(self, _asked: FetchOptions, _cluster: bytes | None, _name: str) -> FetchReply:
        self._clock.ms += self._takes_ms
        return FetchReply(
            OURS, "east", 1, b"id", LEASE_MS, self._clock.wall_ms(), "serving", (ITEM,), waited_ms=self._waited_ms
        )


class AcceptingCluster:
    """A cluster that accepts all pushes."""

    def __init__(self) -> None:
        self.pushed: list[PushItem] = []

    async def push(self, items: list[PushItem]) -> list[PushResult]:
        self.pushed += items
        return [PushResult(PushOutcome.APPLIED)] * len(items)


@pytest.mark.parametrize(
    ("takes_ms", "waited_ms", "pushed"),
    [
        (LEASE_MS - 1, 0, True),
        (LEASE_MS, 0, False),
        (LEASE_MS + 20_000, 20_001, True),
        (LEASE_MS + 20_000, 20_000, False),
        (LEASE_MS, None, True),
    ],
)
async def test_a_batch_older_than_its_lease_is_not_pushed(takes_ms: int, waited_ms: int | None, pushed: bool) -> None:
    """The source has expired the lease, so the batch may hold values from before a tombstone that was reaped meanwhile
    (I-NO-RESURRECT). The age of a batch is computed from durations alone, without the time that the source waited for
    changes; a source of an older version does not report that time. A dropped batch is not acknowledged, and the link
    shows the reason (R-REAP)."""

    clock, kept = Clock(), AcceptingCluster()
    name = LinkName("q", "http://e1")
    link = Link(name, LinkTarget(None, name), "", 0)
    counters = SourceCounters(OURS, "east", "q")
    sources = SimpleNamespace(counters_of=lambda *_: counters)
    context = SinkContext(kept, clock, None, None, sources, asyncio.Event(), ClockOffsets("peer", clock))  # type: ignore[arg-type]
    slot = Slot(link, SlowFetcher(clock, takes_ms, waited_ms), context)
    result, _ = await slot.cycle(FetchOptions(10, 1_000, 20_000), lambda *_: None)
    assert len(kept.pushed) == pushed
    assert result is (CycleResult.ITEMS if pushed else CycleResult.FAILED)
    assert slot.fetcher.ack is not None
    assert slot.fetcher.ack.failed == (() if pushed else (0,))
    assert link.last_error_reason == ("" if pushed else "lease-over")
    assert counters.under_way == 0


async def test_a_source_reports_how_long_it_waited_for_a_batch() -> None:
    """The wait is in milliseconds from the arrival of the request; of an answer without changes the whole wait."""

    async with QueueNode() as queue_node:
        assert (await queue_node.fetch(wait_ms=0)).waited_ms == 0
        assert (await queue_node.fetch(wait_ms=3_000)).waited_ms >= 3_000
        began_ms = queue_node.clock.now_ms()
        fetch = asyncio.ensure_future(queue_node.fetch(wait_ms=10_000, cluster=SINK))
        await queue_node.eventually(lambda: len(queue_node.served()[0].waiters) == 1)
        await asyncio.sleep(4)
        waited_ms = queue_node.clock.now_ms() - began_ms
        queue_node.put(b"a", partition=PARTITIONS[0])
        reply = await fetch
        assert [item[5] for item in reply.items] == [b"a"]
        assert reply.waited_ms == waited_ms >= 4_000
