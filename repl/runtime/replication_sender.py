"""What this node's replicas send to those on other nodes.

Messages go as they are. Entries come from memory where they are still there, which is the way of a follower that keeps
up; otherwise they are read back from the log's files in threads, a bounded part at a time, and sent as the
catch-up lane takes them. All entries for one follower of one partition go in the order in which the core asked for
them. Soft cursors ride along with AppendEntries (`repl.runtime.partition`). Everything may be lost: the core sends
again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr.messages import AppendEntries
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.errors import LocalFault
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.replog.port import Replog
from isthmus.repl.runtime.partition import Partition, wire_bytes
from isthmus.repl.telemetry import Sample
from isthmus.repl.transport.port import Links

log = structlog.get_logger(__name__)

PART_BYTES: Final = 1_000_000
"""Most bytes of entries in one message, one entry at least: what a read from the log takes of memory, and about what
one turn of the follower's loop may take in (10 ms)."""

FEED_EFFECTS: Final = 64
"""Most requests of the core that wait for one follower of one partition while the log is being read; above it they are
dropped, as a network may, and the core asks again. It has 8 under way at most."""

ROOM_POLL_S: Final = 0.02
"""Pause before a full catch-up lane is looked at again: at 100 MB/s it has drained 2 MB meanwhile."""

ROOM_WAIT_S: Final = 5.0
"""How long entries wait for a full lane; then they are dropped. Beyond that the core has asked again anyway."""

READ_THREADS: Final = 2
"""Threads that read the log for followers: two files at a time keep a disk busy."""


class _FollowerQueue:
    """What waits to be sent to one follower of one partition, in order."""

    __slots__ = ("task", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[fx.Replicate] = deque()
        self.task: asyncio.Task[None] | None = None


class ReplicationSender:
    """Of all partitions of a node. `fail` is told of a log that cannot be read, `trimmed` of one that begins above what
    the core wanted to send."""

    def __init__(
        self,
        links: Links,
        replog: Replog,
        time: TimeSource,
        fail: Callable[[Exception], None],
        trimmed: Callable[[Partition], None],
    ) -> None:
        self._links = links
        self._replog = replog
        self._time = time
        self._fail = fail
        self._trimmed = trimmed
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="catch-up")
        self._feeds: dict[tuple[int, str], _FollowerQueue] = {}
        self._heads: dict[tuple[int, str], AppendEntries] = {}
        self.entries_sent = 0
        self.entries_read_back = 0
        self.dropped = 0

    # -- messages -------------------------------------------------------------------------------------

    def send(self, partition: Partition, effect: fx.Send) -> None:
        """Send a message; an AppendEntries without entries carries soft cursors like any other."""
        if isinstance(effect.message, AppendEntries):
            self._forward(partition, effect.to, effect.message, live=True)
        elif not self._links.send(effect.to, partition.id, effect.message):
            self.dropped += 1

    def _forward(
        self, partition: Partition, to: str, head: AppendEntries, *, live: bool, at_once: bool = False
    ) -> bool:
        now_ms = self._time.now_ms()
        cursors = partition.soft.due(to, now_ms, at_once=at_once)
        if not self._links.send(to, partition.id, head, live=live, cursors=cursors):
            self.dropped += 1
            return False
        if cursors:
            partition.soft.sent(to, now_ms)
        self.entries_sent += len(head.entries)
        self._heads[partition.id, to] = head._replace(entries=())
        return True

    # -- entries ----------------------------------------------------------------------------------------

    def replicate(self, partition: Partition, effect: fx.Replicate) -> None:
        """Send entries with an AppendEntries; see the effect."""
        key = (partition.id, effect.to)
        feed = self._feeds.get(key)
        if feed is None:
            entries = partition.unapplied.held(effect.head.start, effect.end)
            if entries is not None and (effect.live or self._links.catch_up_room(effect.to) > 0):
                for part in _parts(effect.head, entries, effect.end):
                    if not self._forward(partition, effect.to, part, live=effect.live):
                        return
                return
            feed = self._feeds[key] = _FollowerQueue()
        if len(feed.waiting) >= FEED_EFFECTS:
            self.dropped += 1
            return
        feed.waiting.append(effect)
        if feed.task is None:
            feed.task = self._loop.create_task(self._run(partition, key, feed))

    async def _run(self, partition: Partition, key: tuple[int, str], feed: _FollowerQueue) -> None:
        try:
            while feed.waiting:
                await self._feed(partition, feed.waiting.popleft())
        except LookupError as error:
            log.info("outbox.trimmed", partition=partition.id, error=str(error))
            self._trimmed(
                partition
            )  # else the core would want the same again for ever: only a FollowRequest tells it, too
        except (LocalFault, OSError) as error:
            self._fail(error)
        finally:
            if self._feeds.get(key) is feed:
                del self._feeds[key]

    async def _feed(self, partition: Partition, effect: fx.Replicate) -> None:
        """Send one request's entries, part by part, as long as they are still wanted."""
        head, end = effect.head, effect.end
        while head.start < end and not _stale(partition, head):
            if not effect.live and not await self._room(effect.to):
                return
            entries = partition.unapplied.held(head.start, end)
            if entries is None:
                entries = await self._loop.run_in_executor(
                    self._pool, self._replog.read, partition.id, head.start, end, PART_BYTES
                )
                self.entries_read_back += len(entries)
            if not entries or _stale(partition, head):
                return
            for part in _parts(head, entries, end):
                sent = self._forward(partition, effect.to, part, live=effect.live)
                if not sent and (effect.live or not await self._room(effect.to, wire_bytes(part.entries))):
                    return
                if not sent and not self._forward(partition, effect.to, part, live=effect.live):
                    return
            last = entries[-1]
            head = head._replace(start=last.offset + 1, before=last.epoch)

    async def _room(self, to: str, size_bytes: int = 1) -> bool:
        """Wait until the catch-up lane has so much room, or as much as it ever has; False when that did not come
        within ROOM_WAIT_S."""
        deadline = self._loop.time() + ROOM_WAIT_S
        before = -1
        while (room := self._links.catch_up_room(to)) < size_bytes and room != before:
            if self._loop.time() >= deadline:
                return False
            before = room if room else -1
            await asyncio.sleep(ROOM_POLL_S)
        return True

    # -- cursors and links ------------------------------------------------------------------------------

    def share_cursors(self, partition: Partition, *, at_once: bool = False) -> None:
        """Let soft cursors that wait go to the followers though nothing else does: with the last AppendEntries once
        more, which says nothing new."""
        epoch = partition.replica.epoch
        for follower in partition.replica.followers():
            head = self._heads.get((partition.id, follower.node))
            if head is None or head.epoch != epoch or not follower.linked:
                continue
            if partition.soft.due(follower.node, self._time.now_ms(), at_once=at_once):
                self._forward(partition, follower.node, head, live=True, at_once=at_once)

    def link_lost(self, partitions: Iterable[Partition], node: str) -> None:
        """What was under way to `node` may be lost, and what waits for it is of no use: it will ask anew."""
        for partition in partitions:
            partition.soft.lost(node)
            key = (partition.id, node)
            self._heads.pop(key, None)
            feed = self._feeds.pop(key, None)
            if feed is not None and feed.task is not None:
                feed.task.cancel()

    def stop(self) -> None:
        """Send nothing more."""
        for feed in self._feeds.values():
            if feed.task is not None:
                feed.task.cancel()
        self._feeds.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def metrics(self) -> list[Sample]:
        """What was sent to other nodes."""
        return [
            ("isthmus_replicate_sent_entries_total", {}, self.entries_sent),
            ("isthmus_replicate_read_back_entries_total", {}, self.entries_read_back),
            ("isthmus_replicate_dropped_messages_total", {}, self.dropped),
        ]


def _stale(partition: Partition, head: AppendEntries) -> bool:
    """True when nobody wants what `head` begins any more: its leadership is over."""
    return not partition.leads or partition.replica.epoch != head.epoch


def _parts(head: AppendEntries, entries: list[Entry], end: int) -> Iterator[AppendEntries]:
    """`head` with the entries, in messages of bounded size. `end` is where the core's request ends: only the part that
    reaches it carries the head's `seq`, so that an acknowledgement of an earlier one is not taken for one of all."""
    start, before, size, first = head.start, head.before, 0, 0
    for at, entry in enumerate(entries):
        length = len(entry.wire)
        if at > first and size + length > PART_BYTES:
            yield head._replace(start=start, before=before, seq=head.seq - 1, entries=tuple(entries[first:at]))
            start, before, size, first = entry.offset, entries[at - 1].epoch, 0, at
        size += length
    seq = head.seq if entries[-1].offset + 1 == end else head.seq - 1
    yield head._replace(start=start, before=before, seq=seq, entries=tuple(entries[first:]))
