"""Receives messages from other nodes' replicas, one frame at a time, and feeds them to this node's replicas.

The core interprets the messages. `repl.runtime.replication_sender` is the other direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isthmus.repl.isr import events as ev
from isthmus.repl.isr.messages import AppendEntries, FollowRequest, TransferRows
from isthmus.repl.isr.pair_stream import StreamAck, StreamGroup
from isthmus.repl.replog.port import Replog
from isthmus.repl.runtime.disk_full import DiskFullPolicy
from isthmus.repl.runtime.pair_streams import PairStreams
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.port import EventSink
from isthmus.repl.runtime.storage import Storage
from isthmus.repl.telemetry import Sample
from isthmus.repl.transport.port import Delivery


class ReplicationReceiver:
    """Dispatches received messages by partition."""

    def __init__(
        self,
        partitions: Mapping[int, Partition],
        replog: Replog,
        storage: Storage,
        disk_full: DiskFullPolicy,
        streams: PairStreams,
        events: EventSink,
    ) -> None:
        self._streams = streams
        self._partitions = partitions
        self._replog = replog
        self._storage = storage
        self._disk_full = disk_full
        self._events = events
        self._unknown_partition_count = 0

    def received(self, node: str, deliveries: Sequence[Delivery]) -> None:
        """Feed the messages of one frame; their entries go to the log together. Messages for partitions that are not
        here (yet) are dropped: their senders repeat them."""
        with self._replog.grouped():
            for delivery in deliveries:
                self._deliver(node, delivery)

    def _deliver(self, node: str, delivery: Delivery) -> None:
        partition_id, message, cursors = delivery
        if isinstance(message, StreamGroup):
            self._streams.received(node, message)
            return
        if isinstance(message, StreamAck):
            self._streams.acknowledged(node, message)
            return
        partition = self._partitions.get(partition_id)
        if partition is None:
            self._unknown_partition_count += 1
            return
        if isinstance(message, TransferRows):
            if self._disk_full.refuses(partition, len(message.rows)):
                return
        elif isinstance(message, AppendEntries):
            if message.entries and self._disk_full.refuses_entries(partition, message.entries):
                return
            if cursors and partition.replica.following and message.epoch == partition.replica.epoch:
                for queue, payload in cursors.items():
                    self._storage.soft_cursor(partition, queue, payload)
        elif isinstance(message, FollowRequest):
            self._events.check_log_start(partition)
        self._events.feed(partition, ev.Received(node, message))

    def metrics(self) -> list[Sample]:
        """Messages for unknown partitions."""
        return [("isthmus_replicate_strange_messages_total", {}, self._unknown_partition_count)]
