"""The controller: reads records and registrations, lets the pure rules decide, writes conditionally.

Any number may act at once: no decision rests on memory but on how long a nomination has been seen and which
promotions were heard; a stale one is refused by the record's version (docs/protocol.md H30). In this version each
node runs one over its own cluster. What it reads it also hands on, so that records are read once for
the controller and the replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from repl.isr import effects as fx
from repl.isr.election import Keep, Wait, Watch, Write, elect, watched
from repl.metastore.port import Ambiguous, Conflict, Metastore, Unavailable
from repl.model.ports import TimeSource
from repl.model.record import PartitionRecord

log = structlog.get_logger(__name__)

POLL_MS: Final = 2_000
"""Longest time between two looks: bounds the delay were every watch lost."""

RETRY_MS: Final = 200
"""Pause after the metastore could not be reached, and after a write whose fate is unknown."""


class Controller:
    """One controller. `on_records` gets every reading of all records, on the event loop."""

    def __init__(
        self,
        metastore: Metastore,
        *,
        time: TimeSource,
        on_records: Callable[[Mapping[int, PartitionRecord]], None],
    ) -> None:
        self._metastore = metastore
        self._time = time
        self._on_records = on_records
        self._wake = asyncio.Event()
        self._watches: dict[int, Watch] = {}
        self._promoted: dict[int, tuple[int, str, int, int]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def wake(self) -> None:
        """Something may have changed: look soon."""
        self._wake.set()

    def promoted(self, partition: int, effect: fx.Promoted) -> None:
        """A candidate says that its barrier is durable; only the newest of a partition is kept."""
        self._promoted[partition] = (effect.epoch, effect.node, effect.inc, effect.gen)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                pause_ms = await self._look()
            except Unavailable as error:
                log.warning("controller.metastore_unavailable", error=str(error))
                await asyncio.sleep(RETRY_MS / 1000)
                continue
            try:
                await asyncio.wait_for(self._wake.wait(), pause_ms / 1000)
            except TimeoutError:
                continue

    async def _look(self) -> int:
        """Read, decide and write once; returns the milliseconds until the next look is due."""
        records = await self._metastore.records()
        registrations = await self._metastore.registrations()
        self._on_records(records)
        now_ms = self._time.now_ms()
        pause_ms = POLL_MS
        writes: list[PartitionRecord] = []
        for partition, record in records.items():
            watch = watched(self._watches.get(partition), record, now_ms)
            self._watches[partition] = watch
            heard = self._promoted.get(partition)
            decision = elect(
                record,
                registrations,
                now_ms,
                watch.since_ms,
                () if heard is None else (heard,),
                attempt=watch.attempt,
            )
            match decision:
                case Write():
                    writes.append(decision.record)
                case Wait():
                    pause_ms = min(pause_ms, max(1, decision.until_ms - now_ms))
                case Keep():
                    pass
        if writes:
            decided = await asyncio.gather(*(self._write(record) for record in writes))
            pause_ms = 0 if all(decided) else RETRY_MS
        return pause_ms

    async def _write(self, record: PartitionRecord) -> bool:
        """Write one decision; False when its fate is unknown (the next look reads what became of it)."""
        try:
            written = await self._metastore.write_record(record)
        except Conflict:
            return True
        except (Ambiguous, Unavailable):
            return False
        log.info(
            "controller.decided",
            partition=written.partition,
            status=written.status.value,
            epoch=written.epoch,
            reason=written.reason,
        )
        return True
