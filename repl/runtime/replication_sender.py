"""Sends messages and entries of this node's replicas to other nodes.

Entries come from memory where they are still there, which serves followers that keep up; otherwise threads read them
back from the log's files, a bounded part at a time, as the catch-up lane has capacity. Entries for one follower of one
partition go in the order in which the core asked for them. Soft cursors travel with AppendEntries
(`repl.runtime.cursor_gossip`). Anything may be lost: the core sends again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.messages import AppendEntries
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.errors import LocalFault, StorageShort
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.replog.port import Replog
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.port import EventSink
from isthmus.repl.runtime.unapplied import wire_bytes
from isthmus.repl.telemetry import Sample
from isthmus.repl.transport.port import Links
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

PART_BYTES: Final = 1_000_000
"""Most bytes of entries in one message, at least one entry: the memory of one read from the log, and about 10 ms of the
follower's event loop."""

QUEUED_EFFECTS_MAX: Final = 64
"""Most Replicate effects that wait for one follower of one partition while the log is being read; further ones are
dropped, as a network may, and the core asks again. The core has at most 8 under way."""

LANE_POLL_S: Final = 0.02
"""Pause between checks of a full catch-up lane: at 100 MB/s it drains 2 MB meanwhile."""

LANE_WAIT_S: Final = 5.0
"""How long entries wait for a full lane before they are dropped. The core has asked again by then."""

SHORT_PAUSE_S: Final = 1.0
"""Pause after entries could not be read for want of a descriptor."""

READ_THREADS: Final = 2
"""Threads that read the log for followers: two files at a time keep a disk busy."""


class _FollowerQueue:
    """Replicate effects for one follower of one partition, in order, and the task that carries them out."""

    __slots__ = ("task", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[fx.Replicate] = deque()
        self.task: asyncio.Task[None] | None = None


class ReplicationSender:
    """Sends for all partitions of a node."""

    def __init__(self, links: Links, replog: Replog, time: TimeSource, events: EventSink) -> None:
        self._links = links
        self._replog = replog
        self._time = time
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="catch-up")
        self._queues: dict[tuple[int, str], _FollowerQueue] = {}
        self._last_sent: dict[tuple[int, str], AppendEntries] = {}
        """(partition, follower) -> the last AppendEntries sent, without its entries."""
        self.entries_sent = 0
        self.entries_read_back = 0
        self.dropped = 0

    # -- messages -------------------------------------------------------------------------------------

    def send(self, partition: Partition, effect: fx.Send) -> None:
        """Send a message. An AppendEntries without entries carries soft cursors, too."""
        if isinstance(effect.message, AppendEntries):
            self._append_entries(partition, effect.to, effect.message, live=True)
        elif not self._links.send(effect.to, partition.id, effect.message):
            self.dropped += 1

    def _append_entries(
        self, partition: Partition, to: str, head: AppendEntries, *, live: bool, at_once: bool = False
    ) -> bool:
        """Send an AppendEntries with the soft cursors that are due; False when the lane refused it."""
        now_ms = self._time.now_ms()
        cursors = partition.cursor_gossip.due(to, now_ms, at_once=at_once)
        if not self._links.send(to, partition.id, head, live=live, cursors=cursors):
            self.dropped += 1
            return False
        if cursors:
            partition.cursor_gossip.sent(to, now_ms)
        self.entries_sent += len(head.entries)
        self._last_sent[partition.id, to] = head._replace(entries=())
        return True

    # -- entries ----------------------------------------------------------------------------------------

    def replicate(self, partition: Partition, effect: fx.Replicate) -> None:
        """Send entries in one or more AppendEntries; see the effect."""
        key = (partition.id, effect.to)
        queue = self._queues.get(key)
        if queue is None:
            entries = partition.unapplied.held(effect.head.start, effect.end)
            if entries is not None and (effect.live or self._links.catch_up_room(effect.to) > 0):
                for part in _parts(effect.head, entries, effect.end):
                    if not self._append_entries(partition, effect.to, part, live=effect.live):
                        return
                return
            queue = self._queues[key] = _FollowerQueue()
        if len(queue.waiting) >= QUEUED_EFFECTS_MAX:
            self.dropped += 1
            return
        queue.waiting.append(effect)
        if queue.task is None:
            queue.task = self._loop.create_task(self._run(partition, key, queue))

    async def _run(self, partition: Partition, key: tuple[int, str], queue: _FollowerQueue) -> None:
        try:
            while queue.waiting:
                await self._send_entries(partition, queue.waiting.popleft())
        except LookupError as error:
            log.info("outbox.trimmed", partition=partition.id, error=str(error))
            # Without this the core would ask for trimmed entries until the follower sends a FollowRequest.
            self._events.check_log_start(partition)
        except StorageShort as error:  # as if the effects had been lost: the core asks for the entries again
            self.dropped += 1 + len(queue.waiting)
            log.warning("outbox.short", partition=partition.id, error=str(error))
            await asyncio.sleep(SHORT_PAUSE_S)
        except (LocalFault, OSError) as error:
            self._events.fail(error)
        except Exception as bug:  # as if the effects had been lost
            self.dropped += 1 + len(queue.waiting)
            unforeseen.exception("outbox.bug", bug, partition=partition.id)
            await asyncio.sleep(SHORT_PAUSE_S)
        finally:
            if self._queues.get(key) is queue:
                del self._queues[key]

    async def _send_entries(self, partition: Partition, effect: fx.Replicate) -> None:
        """Send one effect's entries, part by part, until its leadership ends."""
        head, end = effect.head, effect.end
        while head.start < end and not _stale(partition, head):
            if not effect.live and not await self._lane_has(effect.to):
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
                sent = self._append_entries(partition, effect.to, part, live=effect.live)
                if not sent and (effect.live or not await self._lane_has(effect.to, wire_bytes(part.entries))):
                    return
                if not sent and not self._append_entries(partition, effect.to, part, live=effect.live):
                    return
            last = entries[-1]
            head = head._replace(start=last.offset + 1, before=last.epoch)

    async def _lane_has(self, to: str, size_bytes: int = 1) -> bool:
        """Wait until the catch-up lane has `size_bytes` free, or frees no more; False after LANE_WAIT_S."""
        deadline = self._loop.time() + LANE_WAIT_S
        before = -1
        while (room := self._links.catch_up_room(to)) < size_bytes and room != before:
            if self._loop.time() >= deadline:
                return False
            before = room if room else -1
            await asyncio.sleep(LANE_POLL_S)
        return True

    # -- cursors and links ------------------------------------------------------------------------------

    def share_cursors(self, partition: Partition, *, at_once: bool = False) -> None:
        """Send waiting soft cursors to followers that get no entries by AppendEntries now: those that take a stream or
        have everything get one for the cursors' sake, the others the last one again."""
        replica = partition.replica
        for follower in replica.followers():
            node = follower.node
            if not follower.linked or not partition.cursor_gossip.due(node, self._time.now_ms(), at_once=at_once):
                continue
            effects = replica.step(ev.HeadWanted(node), self._time.now_ms())
            heads = [effect.message for effect in effects if isinstance(effect, fx.Send)]
            head = heads[0] if heads else self._last_sent.get((partition.id, node))
            if isinstance(head, AppendEntries) and head.epoch == replica.epoch:
                self._append_entries(partition, node, head, live=True, at_once=at_once)

    def streamed(self, entry_count: int) -> None:
        """Count entries that go to followers by streams (`repl.runtime.pair_streams`)."""
        self.entries_sent += entry_count

    def link_lost(self, partitions: Iterable[Partition], node: str) -> None:
        """Drop everything that waits for `node`: it sends a FollowRequest when it is connected again."""
        for partition in partitions:
            partition.cursor_gossip.lost(node)
            key = (partition.id, node)
            self._last_sent.pop(key, None)
            queue = self._queues.pop(key, None)
            if queue is not None and queue.task is not None:
                queue.task.cancel()

    def stop(self) -> None:
        """Send nothing more."""
        for queue in self._queues.values():
            if queue.task is not None:
                queue.task.cancel()
        self._queues.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def metrics(self) -> list[Sample]:
        """Entries sent and read back, and messages dropped."""
        return [
            ("isthmus_replicate_sent_entries_total", {}, self.entries_sent),
            ("isthmus_replicate_read_back_entries_total", {}, self.entries_read_back),
            ("isthmus_replicate_dropped_messages_total", {}, self.dropped),
        ]


def _stale(partition: Partition, head: AppendEntries) -> bool:
    """True when the leadership that sent `head` is over."""
    return not partition.leads or partition.replica.epoch != head.epoch


def _parts(head: AppendEntries, entries: list[Entry], end: int) -> Iterator[AppendEntries]:
    """`head` with the entries, in messages of bounded size. Only the part that reaches `end`, where the effect ends,
    carries the head's `seq`: an acknowledgement of an earlier part must not count for all of them."""
    start, before, size, first = head.start, head.before, 0, 0
    for at, entry in enumerate(entries):
        length = len(entry.wire)
        if at > first and size + length > PART_BYTES:
            yield head._replace(start=start, before=before, seq=head.seq - 1, entries=tuple(entries[first:at]))
            start, before, size, first = entry.offset, entries[at - 1].epoch, 0, at
        size += length
    seq = head.seq if entries[-1].offset + 1 == end else head.seq - 1
    yield head._replace(start=start, before=before, seq=seq, entries=tuple(entries[first:]))
