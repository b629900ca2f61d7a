"""What log and store report, told to the cores: how far logs are durable, and what is applied.

Both threads report for many partitions at once, one report for each group commit and each apply step, so this is gone
through with every write: the time is read once a report, and nothing is done for a partition that need not be. What a
core makes of it is carried out by `repl.runtime`, whose other half this is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from repl.copies import Copies
from repl.entry_times import EntryTimes
from repl.far_horizon import FarHorizon
from repl.hooks import Hooks
from repl.isr import effects as fx
from repl.isr import events as ev
from repl.model.ports import TimeSource
from repl.partition import Partition
from repl.promises import Promises
from repl.store.port import PartitionStep
from repl.ticking import Ticking


class Reports:
    """Of one node. `feed` takes an event of a partition at a time, and quarantines a copy whose core it breaks;
    `perform` carries out effects; `quarantine` stops a copy; `flush` ends a turn."""

    def __init__(
        self,
        partitions: Mapping[int, Partition],
        hooks: Hooks,
        time: TimeSource,
        *,
        copies: Copies,
        far: FarHorizon,
        entry_times: EntryTimes,
        promises: Promises,
        ticking: Ticking,
        feed: Callable[[Partition, ev.Event, int], None],
        perform: Callable[[Partition, Sequence[fx.Effect], int], object],
        quarantine: Callable[[Partition, Exception], None],
        flush: Callable[[], None],
    ) -> None:
        self._partitions = partitions
        self._hooks = hooks
        self._time = time
        self._copies = copies
        self._far = far
        self._entry_times = entry_times
        self._promises = promises
        self._ticking = ticking
        self._feed = feed
        self._perform = perform
        self._quarantine = quarantine
        self._flush = flush

    def durable(self, ends: Mapping[int, int], truncations: Mapping[int, int]) -> None:
        """Logs are durable below `ends`; before that, those of `truncations` were cut or restarted there."""
        partitions, feed, now_ms = self._partitions, self._feed, self._time.now_ms()
        for partition_id, end in ends.items():
            partition = partitions.get(partition_id)
            if partition is None:
                if partition_id in truncations:
                    self._copies.log_restarted(partition_id)
                continue
            if partition_id in truncations and not self._far.log_restarted(partition_id):
                feed(partition, ev.Truncated(truncations[partition_id]), now_ms)
            if partition.replica.far_position is None:
                feed(partition, ev.Persisted(end), now_ms)
        self._ticking.arm()
        self._flush()

    def applied(self, steps: Sequence[PartitionStep]) -> None:
        """Steps are in the store: answer who waited for them, and tell the hooks."""
        partitions, hooks, now_ms = self._partitions, self._hooks, self._time.now_ms()
        for partition_id, entries, _ in steps:
            if not entries:
                continue
            partition = partitions[partition_id]
            partition.forget_pending(entries)
            end = entries[-1].offset + 1
            leading = partition.told_leading
            try:
                effects = partition.replica.step(ev.AppliedTo(end), now_ms)
                self._entry_times.applied(partition, entries, now_ms)
                self._promises.applied(partition, end)
                hooks.applied(partition_id, entries, leading)
                if effects:
                    self._perform(partition, effects, now_ms)
            except Exception as bug:  # noqa: BLE001 - as in `feed`: this copy alone must not go on
                self._quarantine(partition, bug)
        self._ticking.arm()
        self._flush()
