"""What other nodes tell this node's replicas: messages, a frame at a time, and connections that come and go.

It sorts by partition and sees to what the core presumes of its shell (`repl.isr.events`); the core decides what a
message means. What this node says is `repl.outbox`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from repl.full_disk import FullDisk
from repl.isr import events as ev
from repl.isr.messages import FarRows, Forward, Hello
from repl.partition import Partition
from repl.replog.port import Replog
from repl.telemetry import Sample
from repl.transport.port import Delivery
from repl.unapplied import wire_bytes


class Inbox:
    """Of one node. `step` feeds a core; `soft_cursor` takes what a leader says of a queue's cursor."""

    def __init__(
        self,
        partitions: Mapping[int, Partition],
        replog: Replog,
        full_disk: FullDisk,
        step: Callable[[Partition, ev.Event], None],
        soft_cursor: Callable[[int, bytes, bytes], None],
    ) -> None:
        self._partitions = partitions
        self._replog = replog
        self._full_disk = full_disk
        self._step = step
        self._soft_cursor = soft_cursor
        self._strange_messages = 0

    def received(self, node: str, deliveries: Sequence[Delivery]) -> None:
        """Messages of another node's replicas, all of one frame; what they append goes to the log together. Those for
        partitions that are not here, or not yet, are dropped: whoever sent them asks again."""
        with self._replog.together():
            self._take(node, deliveries)

    def _take(self, node: str, deliveries: Sequence[Delivery]) -> None:
        for partition_id, message, cursors in deliveries:
            partition = self._partitions.get(partition_id)
            if partition is None:
                self._strange_messages += 1
                continue
            if isinstance(message, FarRows):
                if self._full_disk.refuses(partition, len(message.rows)):
                    continue
            elif isinstance(message, Forward):
                if message.entries and self._full_disk.refuses(partition, wire_bytes(message.entries)):
                    continue
                if cursors and partition.replica.following and message.epoch == partition.replica.epoch:
                    for queue, payload in cursors.items():
                        self._soft_cursor(partition_id, queue, payload)
            elif isinstance(message, Hello):
                self.look_where_the_log_begins(partition)
            self._step(partition, ev.Received(node, message))

    def look_where_the_log_begins(self, partition: Partition) -> None:
        """Tell the core if that is not where it was."""
        start = self._replog.start_of(partition.id)
        if start > partition.log_start:
            partition.log_start = start
            self._step(partition, ev.Trimmed(start))

    def metrics(self) -> list[Sample]:
        """What came astray."""
        return [("isthmus_replicate_strange_messages_total", {}, self._strange_messages)]
