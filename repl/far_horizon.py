"""A node's two halves of far-horizon catch-up, behind one door for `repl.runtime`: `far_serving` gives rows,
`far_taking` takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from repl.far_serving import FarServing
from repl.far_taking import FarTaking
from repl.isr import effects as fx
from repl.isr import events as ev
from repl.model.ports import TimeSource
from repl.partition import Partition
from repl.storage import Storage
from repl.store.port import Store
from repl.telemetry import Sample
from repl.transport.port import Links

FarEffect = fx.GoFar | fx.InstallRows | fx.InstallState | fx.EndFar | fx.SendFar


class FarHorizon:
    """Of one node; see its halves."""

    def __init__(
        self,
        links: Links,
        store: Store,
        storage: Storage,
        time: TimeSource,
        step: Callable[[Partition, ev.Event], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._storage = storage
        self._serving = FarServing(links, store, time, fail)
        self._taking = FarTaking(store, storage, time, step, fail)
        self.log_restarted = self._taking.log_restarted

    def report_damage(self, on_damaged: Callable[[int, int | None], None]) -> None:
        """Have `on_damaged(partition, segment)` called for each row that cannot be given."""
        self._serving.on_damaged = on_damaged

    def perform(self, partition: Partition, effect: FarEffect) -> None:
        """Carry out an effect."""
        if isinstance(effect, fx.SendFar):
            self._serving.answer(partition, effect)
        else:
            self._taking.perform(partition, effect)

    def look(self, partitions: Mapping[int, Partition]) -> None:
        """Once a second: end what is over, and pin the log for what is not."""
        self._storage.pins = self._serving.look(partitions)

    def busy(self, partition: int) -> bool:
        """True while rows of a partition are given or taken."""
        return self._taking.busy(partition) or self._serving.busy(partition)

    def stop(self) -> None:
        """Give and take nothing more. Blocks until nothing uses the store."""
        self._serving.stop()
        self._taking.stop()

    def metrics(self) -> list[Sample]:
        """What was given and taken."""
        return [*self._serving.metrics(), *self._taking.metrics()]
