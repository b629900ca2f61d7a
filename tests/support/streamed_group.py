"""Replicas of one partition that also replicate by streams; a test decides when groups and acknowledgements travel."""

from __future__ import annotations

from typing import NamedTuple

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.follower_tracker import ANNOUNCE_MS
from isthmus.repl.isr.messages import AppendEntries
from isthmus.repl.isr.pair_stream import (
    Acknowledged,
    ReceivedGroup,
    SentRun,
    StreamAck,
    StreamGroup,
    StreamReceiver,
    StreamRun,
    StreamSender,
)
from isthmus.repl.isr.replica import Replica
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.entry import decode_entry
from tests.support.replica_group import NODES, ReplicaGroup

PARTITION = 0


class Place(NamedTuple):
    """A partition as the ends of a stream see it."""

    replica: Replica


class StreamedGroup(ReplicaGroup):
    """`ReplicaGroup` with a stream from `leader` to each node of `opened`.

    `appends` records each AppendEntries that carries entries: (node, start, end). `streamed` likewise for runs. While
    `hold_messages` names a node, AppendEntries to it wait in `held_messages`."""

    def __init__(self, nodes: tuple[str, ...] = NODES, min_isr: int = 2, options: ReplicaOptions | None = None) -> None:
        super().__init__(min_isr, options, nodes, nodes)
        self.senders: dict[str, StreamSender] = {}
        self.receivers: dict[str, StreamReceiver] = {}
        self.runs: dict[str, list[StreamRun]] = {}
        self.appends: list[tuple[str, int, int]] = []
        self.streamed: list[tuple[str, int, int]] = []
        self.hold_messages: set[str] = set()
        self.held_messages: list[tuple[str, str, object]] = []
        self._stream = 0

    @classmethod
    def joined(cls, nodes: tuple[str, ...] = NODES, **options: ReplicaOptions) -> StreamedGroup:
        """A group whose first node leads, with streams to all others, which are in sync."""
        group = cls(nodes, **options)
        group.elect(nodes[0])
        group.append()
        group.pass_time(2 * ANNOUNCE_MS)
        for node in nodes[1:]:
            group.open(node)
        return group

    def pass_time(self, time_ms: int) -> None:
        """Let time go by."""
        self.advance_time(self.now_ms + time_ms)

    @property
    def leader(self) -> Replica:
        """The first node's replica."""
        return self.replicas[self.nodes[0]]

    def by_partition(self, node: str) -> dict[int, Place]:
        """The partitions of a node."""
        return {PARTITION: Place(self.replicas[node])}

    def open(self, node: str) -> None:
        """Open a new stream to `node`."""
        self._stream += 1
        self.senders[node] = StreamSender(node, self._stream)
        self.receivers.setdefault(node, StreamReceiver(self.nodes[0]))
        self.runs[node] = []
        self.deliver(self.nodes[0], ev.StreamOpened(node))

    def close(self, node: str) -> None:
        """End the stream to `node`, without any new one."""
        del self.senders[node]
        self.runs[node] = []
        self.deliver(self.nodes[0], ev.StreamClosed(node))

    # -- messages -------------------------------------------------------------------------------

    def perform(self, node: str, effect: fx.Effect) -> None:
        """As in every group; runs are added to the open groups."""
        if not isinstance(effect, fx.StreamEntries):
            super().perform(node, effect)
            return
        wires = tuple(entry.wire for entry in self.logs[node][effect.start : effect.end])
        run = StreamRun(PARTITION, effect.epoch, effect.start, len(wires), b"", wires)
        for to, join in effect.to:
            self.streamed.append((to, effect.start, effect.end))
            if to in self.senders:
                self.senders[to].add(SentRun(PARTITION, join, effect.end))
                self.runs[to].append(run)

    def carry(self, node: str, to: str, message: object) -> None:
        """As in every group; some messages are held."""
        if isinstance(message, AppendEntries) and message.entries:
            self.appends.append((to, message.start, message.start + len(message.entries)))
        if isinstance(message, AppendEntries) and to in self.hold_messages:
            self.held_messages.append((node, to, message))
        else:
            super().carry(node, to, message)

    def release_messages(self) -> None:
        """Deliver held messages."""
        held, self.held_messages = self.held_messages, []
        self.hold_messages.clear()
        for node, to, message in held:
            self.deliver(to, ev.Received(node, message))  # type: ignore[arg-type]

    def sealed(self, node: str) -> StreamGroup:
        """The open group to `node`."""
        runs, self.runs[node] = self.runs[node], []
        return self.senders[node].seal(tuple(runs), self.by_partition(self.nodes[0]), self.now_ms)

    def receive(self, node: str, group: StreamGroup) -> ReceivedGroup | None:
        """Receive `group`; its entries are durable at once unless the disk is slow."""
        found = self.receivers[node].receive(group, self.by_partition(node), self.now_ms)
        if found is None:
            return None
        for run in found.accepted:
            assert run.start == len(self.logs[node])
            self.logs[node] += [decode_entry(wire) for wire in run.wires]
        for each in found.committed:
            self.deliver(node, each)
        if found.accepted and node not in self.slow_disks:
            self.deliver(node, ev.Persisted(len(self.logs[node])))
        return found

    def acknowledgement(self, node: str) -> StreamAck | None:
        """The acknowledgement that `node` sends now."""
        return self.receivers[node].acknowledge(self.by_partition(node))

    def acknowledge(self, node: str, ack: StreamAck) -> Acknowledged | None:
        """`ack` of `node` arrives at the leader."""
        at = self.nodes[0]
        found = self.senders[node].acknowledge(ack, self.by_partition(at), self.now_ms)
        if found is not None:
            for run in found.durable:
                self.count(node, run)
            for run in found.left:
                self.deliver(at, ev.RunLeft(node, run.join))
        return found

    def exchange(self, *nodes: str) -> None:
        """The open groups travel, and their acknowledgements."""
        for node in nodes:
            self.receive(node, self.sealed(node))
        for node in nodes:
            ack = self.acknowledgement(node)
            assert ack is not None
            self.acknowledge(node, ack)

    def count(self, node: str, run: SentRun) -> None:
        """The leader counts a run that is durable at `node`."""
        self.deliver(self.nodes[0], ev.RunAcknowledged(node, run.join, run.end))
