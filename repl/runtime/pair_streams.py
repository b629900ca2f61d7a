"""The ends of this node's replication streams, and their messages (`repl.isr.pair_stream` has the rules).

As a leader node: runs that its partitions append in one turn of the event loop are gathered into one group for each
follower node; its acknowledgements go to the leaders. As a follower node: a group's runs are appended to the log byte
for byte, and acknowledged once they are durable. Belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.pair_stream import (
    SentRun,
    StreamAck,
    StreamFollowers,
    StreamGroup,
    StreamReceiver,
    StreamRun,
    StreamSender,
)
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.replog.port import EncodedRun
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.port import StreamEvents
from isthmus.repl.runtime.rounds import Rounds
from isthmus.repl.telemetry import Sample
from isthmus.repl.transport.port import LinkMessage

GROUP_BYTES: Final = 1_000_000
"""A group is closed at this size, as PART_BYTES of single partitions: about 10 ms of the follower's event loop."""

TICK_S: Final = 0.02
"""Interval at which the streams' deadlines are checked while there are any."""

STREAM_PARTITION: Final = 0
"""The partition that the transport names with messages of streams, which are of none."""


class StreamLog(Protocol):
    """Where received runs go; `repl.runtime.storage.Storage`."""

    def persist_encoded(self, runs: Sequence[StreamRun]) -> None:
        """Append runs to the log, byte for byte."""


class DiskGuard(Protocol):
    """Whether the disk takes more; `repl.runtime.disk_full.DiskFullPolicy`."""

    def has_space(self, size_bytes: int) -> bool:
        """True when `refuses` is False for all partitions."""

    def refuses(self, partition: Partition, size_bytes: int) -> bool:
        """True when entries from a leader cannot be appended now."""


class StreamLinks(Protocol):
    """The connections, as streams need them; `repl.transport.port.Links`."""

    def send(self, node: str, partition: int, message: LinkMessage) -> bool:
        """Queue a message; False when it was dropped."""

    def takes_stream(self, node: str) -> bool:
        """True while `node` takes a stream."""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Do not make it."""


class Scheduler(Protocol):
    """The event loop, as far as it is needed here."""

    def call_soon(self, function: Callable[[], object], /) -> object:
        """Call `function` in the next turn."""

    def call_later(self, delay_s: float, function: Callable[[], object], /) -> Timer:
        """Call `function` after `delay_s`."""


class _AcceptingPartitions:
    """The partitions that can take a group of `size_bytes`, though the disk is full."""

    def __init__(self, partitions: Mapping[int, Partition], disk_full: DiskGuard, size_bytes: int) -> None:
        self._partitions = partitions
        self._disk_full = disk_full
        self._size_bytes = size_bytes

    def get(self, partition: int, /) -> Partition | None:
        found = self._partitions.get(partition)
        return None if found is None or self._disk_full.refuses(found, self._size_bytes) else found


class PairStreams:
    """Both directions of all streams of one node, by the other node's name."""

    def __init__(
        self,
        partitions: Mapping[int, Partition],
        links: StreamLinks,
        storage: StreamLog,
        disk_full: DiskGuard,
        time: TimeSource,
        events: StreamEvents,
        loop: Scheduler,
        rounds: Rounds,
        first_stream: int,
    ) -> None:
        """`first_stream`: random, so that no id of an earlier process of this node is used again."""
        self._partitions = partitions
        self._links = links
        self._storage = storage
        self._disk_full = disk_full
        self._time = time
        self._events = events
        self._loop = loop
        self._rounds = rounds
        self._last_stream = first_stream
        self._senders: dict[str, StreamSender] = {}
        self._open_runs: dict[str, list[StreamRun]] = {}
        self._open_bytes: dict[str, int] = {}
        self._receivers: dict[str, StreamReceiver] = {}
        self._flush_scheduled = False
        self._timer: Timer | None = None
        self.groups_sent = 0
        self.groups_received = 0
        self.streams_ended = 0

    # -- connections ------------------------------------------------------------------------------------

    @property
    def open_nodes(self) -> list[str]:
        """The nodes to which a stream is open."""
        return list(self._senders)

    def wanted(self, node: str) -> None:
        """`node` takes a stream: open a new one."""
        if node in self._senders:
            self._close(node)
        self._last_stream += 1
        self._senders[node] = StreamSender(node, self._last_stream)
        self._events.dispatch_all(ev.StreamOpened(node))

    def link_lost(self, node: str) -> None:
        """A connection with `node` broke. The stream to it begins anew if its own connection is still open."""
        receiver = self._receivers.get(node)
        if receiver is not None:
            receiver.end()
        if node in self._senders:
            self._close(node)
            if self._links.takes_stream(node):
                self.wanted(node)

    def _restart(self, node: str) -> None:
        """The stream failed, its connection is open."""
        self.streams_ended += 1
        self._close(node)
        if self._links.takes_stream(node):
            self.wanted(node)

    def _close(self, node: str) -> None:
        del self._senders[node]
        self._open_runs.pop(node, None)
        self._open_bytes.pop(node, None)
        self._events.dispatch_all(ev.StreamClosed(node))
        self._check_round()

    def stop(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._senders.clear()
        self._open_runs.clear()

    # -- as a leader node -------------------------------------------------------------------------------

    def add(self, effect: fx.StreamEntries, runs: Sequence[EncodedRun]) -> None:
        """Add appended entries to the open groups; `flush` sends them, at the latest when this turn is over. Without
        `runs` the log has failed, and the process is about to end."""
        if not runs:
            return
        stream_runs = [
            StreamRun(run.partition, run.epoch, run.base, run.entry_count, b"".join(run.buffers)) for run in runs
        ]
        assert stream_runs[0].start == effect.start
        for node, join in effect.to:
            sender = self._senders.get(node)
            if sender is None:
                continue  # its StreamClosed is on the way
            opened = self._open_runs.setdefault(node, [])
            size = self._open_bytes.get(node, 0)
            for run in stream_runs:
                if opened and size + len(run.encoded) > GROUP_BYTES:
                    self._send_group(sender)
                    if self._senders.get(node) is not sender:
                        break  # the stream ended, and with it the join: the leader sends by AppendEntries
                    opened, size = self._open_runs.setdefault(node, []), 0
                sender.add(SentRun(run.partition, join, run.start + run.entry_count))
                opened.append(run)
                size += len(run.encoded)
                self._open_bytes[node] = size
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send the open groups."""
        self._flush_scheduled = False
        for node in list(self._open_runs):
            sender = self._senders.get(node)
            if sender is not None:
                self._send_group(sender)

    def _send_group(self, sender: StreamSender) -> None:
        runs = self._open_runs.pop(sender.node)
        self._open_bytes.pop(sender.node, None)
        group = sender.seal(tuple(runs), self._partitions, self._time.now_ms())
        self._stop_failed(sender)
        self._send(sender, group)

    def _send(self, sender: StreamSender, group: StreamGroup) -> None:
        self.groups_sent += 1
        if group.runs:
            self._rounds.begin()
        if not self._links.send(sender.node, STREAM_PARTITION, group):
            self._restart(sender.node)
            return
        self._arm()

    def acknowledged(self, node: str, ack: StreamAck) -> None:
        """Pass an acknowledgement to the leaders of its partitions."""
        sender = self._senders.get(node)
        if sender is None:
            return
        now_ms = self._time.now_ms()
        found = sender.acknowledge(ack, self._partitions, now_ms)
        self._stop_failed(sender)
        if found is None:
            self._restart(node)
            return
        for run in found.durable:
            partition = self._partitions.get(run.partition)
            if partition is not None:
                self._events.feed_at(partition, ev.RunAcknowledged(node, run.join, run.end), now_ms)
        for run in found.left:
            partition = self._partitions.get(run.partition)
            if partition is not None:
                self._events.feed_at(partition, ev.RunLeft(node, run.join), now_ms)
        self._arm()
        self._check_round()

    def _check_round(self) -> None:
        """End the round when no follower node is behind in it."""
        if self._rounds.open and not any(sender.round_open for sender in self._senders.values()):
            self._rounds.end()

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._time.now_ms()
        timed = False
        for node, sender in list(self._senders.items()):
            if sender.late(now_ms):
                self._restart(node)
                continue
            group = sender.tick(self._partitions, now_ms)
            self._stop_failed(sender)
            if group is not None:
                self._send(sender, group)
            timed = timed or sender.deadline_ms() is not None
        if timed:
            self._arm()

    # -- as a follower node -----------------------------------------------------------------------------

    def received(self, node: str, group: StreamGroup) -> None:
        """Append a group's runs, and apply what it announces as committed."""
        receiver = self._receivers.get(node)
        if receiver is None:
            receiver = self._receivers[node] = StreamReceiver(node)
        self.groups_received += 1
        size_bytes = sum([len(run.encoded) for run in group.runs])
        accepting: StreamFollowers = self._partitions
        if not self._disk_full.has_space(size_bytes):
            accepting = _AcceptingPartitions(self._partitions, self._disk_full, size_bytes)
        now_ms = self._time.now_ms()
        found = receiver.receive(group, accepting, now_ms)
        self._stop_failed(receiver)
        if found is None:
            self._links.send(node, STREAM_PARTITION, StreamReceiver.over(group.stream))
            return
        if found.accepted:
            self._storage.persist_encoded(found.accepted)
        for run in found.committed:
            partition = self._partitions.get(run.partition)
            if partition is not None:
                self._events.feed_at(partition, run, now_ms)
        if not found.accepted:  # else the log reports when it is durable
            self._acknowledge(node, receiver)

    def durable(self) -> None:
        """Something became durable in the log: acknowledge."""
        for node, receiver in self._receivers.items():
            if receiver.waiting:
                self._acknowledge(node, receiver)

    def _acknowledge(self, node: str, receiver: StreamReceiver) -> None:
        ack = receiver.acknowledge(self._partitions)
        self._stop_failed(receiver)
        if ack is not None:
            self._links.send(node, STREAM_PARTITION, ack)

    def _stop_failed(self, end: StreamSender | StreamReceiver) -> None:
        """Stop the copies whose replicas raised: they may count entries that the log does not get."""
        if end.failed:
            failed, end.failed = end.failed, []
            for partition, bug in failed:
                if partition in self._partitions:
                    self._events.quarantine(self._partitions[partition], bug)

    def metrics(self) -> list[Sample]:
        """Groups by direction, and streams that were ended."""
        return [
            ("isthmus_stream_groups_total", {"direction": "sent"}, self.groups_sent),
            ("isthmus_stream_groups_total", {"direction": "received"}, self.groups_received),
            ("isthmus_stream_restarts_total", {}, self.streams_ended),
        ]
