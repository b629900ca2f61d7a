"""Cursors of the queues in the partitions led here: loads them, writes CURSOR entries, saves soft cursors.

Runs on the event loop; reads in the read pool. `queues.cursor_decisions` and `queues.queue_documents` decide what a
CURSOR entry contains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

import structlog

from isthmus.queues.cursor_decisions import dated_from_first, ends_a_gap
from isthmus.queues.cursors import CursorPosition, CursorState, encode_soft, encode_state, position_of
from isthmus.queues.gaps import QueueGap, with_gap, without
from isthmus.queues.object_reader import read_changes, sound_changes
from isthmus.queues.queue_documents import CLEARED, OFFER_CHANGED, CursorCommand, execute, with_filter_gap
from isthmus.queues.queue_server import QueueHost, QueueServer
from isthmus.queues.sink_shares import KeyRange
from isthmus.queues.window import Window
from isthmus.repl.model.errors import IsthmusError, NotReady, OutcomeUnknown, Retryable
from isthmus.repl.model.ports import CursorWriter
from isthmus.repl.store.port import DamagedChange

log = structlog.get_logger(__name__)

RETRY_MS: Final = 250
"""Pause before a CURSOR entry that was refused is written again."""

SINCE_ROWS: Final = 4_096
"""Rows read to date the changes that go into a gap: rows are in the order of change, so later ones are younger, except
where the clocks of leaders differ."""


class PartitionTypes(Protocol):
    """The part of `queues.service.QueueCluster` that knows partitions."""

    def partition_types(self) -> Mapping[int, bytes]:
        """Bucket type of each partition with a replica on this node."""

    def key_range(self, partition: int) -> KeyRange | None:
        """Which keys of its bucket type are in a partition."""


class StateLoader(Protocol):
    """Reads the metastore documents of a queue; `queues.service.QueueService`."""

    async def reload(self, queue: QueueServer) -> None:
        """Read and apply the documents. Raises NotReady."""


class CursorKeeper:
    """The cursors of all queues. `led`: led partition -> first offset whose entry was not added to the queues yet."""

    def __init__(
        self,
        host: QueueHost,
        *,
        cursors: CursorWriter,
        led: Mapping[int, int],
        cluster: PartitionTypes,
        loader: StateLoader,
    ) -> None:
        self._loader = loader
        self._store = host.store
        self._cursors = cursors
        self._led = led
        self._cluster = cluster
        self._time = host.time
        self._pool = host.pool
        self._tasks = host.tasks
        self._lineages: dict[int, int] = {}
        """Led partition -> lineage under which it is led."""

    def begin(self, partition: int) -> None:
        """A leadership begins. Its lineage is noted now: when a forced leader's record ends it, the new lineage is
        known here already, but acknowledgements of this leadership belong to the lineage before."""
        self._lineages[partition] = self._cursors.lineage(partition)

    def end(self, queues: Iterable[QueueServer], partition: int) -> None:
        """A leadership is over: save the cursors that moved under it."""
        for queue in queues:
            self.save(queue, partition)
        self._lineages.pop(partition, None)

    async def load_position(self, queue: QueueServer, partition: int) -> None:
        """Load the queue's cursor in a partition that is led here. A queue without one begins where its registration
        says, else at 0. Returns when the queue has a window, or cannot have one."""
        loop = asyncio.get_running_loop()
        machine = queue.machine
        reread: set[int] = set()
        while partition not in machine.windows and partition in self._led and not queue.closed:
            try:
                await loop.run_in_executor(self._pool, self._store.cursor, partition, queue.name)
                if partition in machine.windows or partition not in self._led:
                    return
                # Read again, now from memory: leadership may have gone and come back, and another leader have moved it.
                position = position_of(self._store.cursor(partition, queue.name), self._lineages[partition])
                newest = 0 if queue.stored.command is None else queue.stored.command.version
                if position is not None and position.state.command_version > newest and partition not in reread:
                    # Another leader has executed a command that this node has not read: the filter may differ.
                    reread.add(partition)
                    await self._loader.reload(queue)
                    continue
                if position is not None:
                    machine.lead(
                        partition,
                        self._cluster.partition_types()[partition],
                        self._limit_to_applied(queue, partition, position),
                        self._led[partition],
                        self._cluster.key_range(partition),
                    )
                    return
                state = CursorState()
                if queue.stored.command is not None:
                    command = queue.stored.command
                    start = await self._start_of(partition, command, self._led[partition], 0)
                    if self._store.cursor(partition, queue.name).entry is not None or partition not in self._led:
                        continue  # leadership may have gone and come back meanwhile
                    state = CursorState(start, command_version=command.version)
                    bucket_type = self._cluster.partition_types()[partition]
                    if command.what == CLEARED and start and queue.filter.includes_some(bucket_type):
                        # Cleared before it had a cursor here: the changes since it was registered are in a gap.
                        state = execute(CursorState(), 0, command, start, max(command.at_ms, command.start_ms), 0)
                await self._write(queue, partition, state)
            except (Retryable, OutcomeUnknown):
                await asyncio.sleep(RETRY_MS / 1000)
            except IsthmusError as error:
                log_unreadable(queue, partition, error)
                return

    def _limit_to_applied(self, queue: QueueServer, partition: int, position: CursorPosition) -> CursorPosition:
        """The position, but not above what is applied here. A follower may receive a cursor before the entries below
        it; if it then leads without them, other entries take their offsets. The lineage shows that (docs/protocol.md
        R-SOFT), except after a restore of the metastore, in which a lineage may be used twice."""
        applied = self._led[partition]
        if position.cursor <= applied:
            return position
        log.warning("queue.cursor_above_log", queue=queue.settings.name, partition=partition, cursor=position.cursor)
        soft = encode_soft(position.base, applied, self._lineages[partition])
        self._cursors.soft_cursor(partition, queue.name, soft)
        return replace(position, cursor=applied)

    def write_pending_cursors(self, queue: QueueServer) -> None:
        """Write a CURSOR entry in every led partition for which something was decided that no entry contains yet."""
        machine, command = queue.machine, queue.stored.command
        due: dict[int, CursorState | None] = dict(machine.wanted_cursors(self._time.wall_ms()))
        if command is not None:
            due |= {p: None for p, window in machine.windows.items() if window.state.command_version < command.version}
        for partition, state in due.items():
            if partition not in queue.writing_cursor:
                queue.writing_cursor.add(partition)
                self._tasks.start(self._write_pending(queue, partition, state))

    async def _write_pending(self, queue: QueueServer, partition: int, state: CursorState | None) -> None:
        try:
            if state is None:
                state = await self._execute_command(queue, partition)
            else:
                state = await self._date_gap(queue, partition, state)
            if state is not None:
                await self._write(queue, partition, state)
        except (Retryable, OutcomeUnknown) as error:
            log.info("queue.claim_put_off", queue=queue.settings.name, partition=partition, reason=error.reason)
            await asyncio.sleep(RETRY_MS / 1000)
        finally:
            queue.writing_cursor.discard(partition)

    async def _date_gap(self, queue: QueueServer, partition: int, state: CursorState) -> CursorState | None:
        """The state, with a gap that it ends dated by the changes in the gap; None when the state is out of date."""
        window = queue.machine.windows.get(partition)
        grew = None if window is None else ends_a_gap(window.state, state)
        if window is None or grew is None:
            return state
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._pool, sound_changes, self._store, window, grew.start, SINCE_ROWS)
        now = dict(queue.machine.wanted_cursors(self._time.wall_ms())).get(partition)
        if now is None or queue.machine.windows.get(partition) is not window or not ends_a_gap(window.state, now):
            return None
        return dated_from_first(now, grew, rows)

    async def _execute_command(self, queue: QueueServer, partition: int) -> CursorState | None:
        """The state after the next cursor command, under the owner version of the window; a newer owner version follows
        in another entry."""
        command = queue.stored.command
        window = queue.machine.windows.get(partition)
        if command is None or window is None or window.state.command_version >= command.version:
            return None
        command = command.next_after(window.state.command_version)
        if command.what == OFFER_CHANGED:
            again = command.change is not None and command.change.again
            start = 0 if again else window.advance()
        else:
            start = await self._start_of(partition, command, window.applied, window.advance())
        since_ms, drops = await self._skipped(window, start)
        if queue.machine.windows.get(partition) is not window:
            return None
        log.info("queue.decree_obeyed", queue=queue.settings.name, partition=partition, what=command.what, start=start)
        cursor = window.advance()
        now_ms = self._time.wall_ms()
        state = with_filter_gap(window.state, cursor, command, queue.settings, window.bucket_type, now_ms)
        if command.what == OFFER_CHANGED and start:
            return replace(state, cursor=cursor, command_version=command.version)
        if command.what == CLEARED and not drops:
            return replace(state, cursor=max(start, cursor), command_version=command.version)
        left_out_from = cursor if window.offers_some else max(cursor, start)
        return execute(state, left_out_from, command, start, max(command.at_ms, command.start_ms), since_ms)

    async def _skipped(self, window: Window, start: int) -> tuple[int, bool]:
        """About the changes between the cursor and `start`, which moving the cursor would skip: (when the first was
        made, 0 for none; whether the queue may offer any of them)."""
        cursor = window.advance()
        if start <= cursor or not window.offers_some:
            return 0, False
        loop = asyncio.get_running_loop()
        damaged = False
        try:
            rows = await loop.run_in_executor(self._pool, read_changes, self._store, window, cursor, SINCE_ROWS)
        except DamagedChange as error:
            rows, damaged = list(error.before), error.offset < start
        dropped = [row for row in rows if row.offset < start]
        since_ms = min((row.time_ms for row in dropped), default=0)
        return since_ms, damaged or len(dropped) == SINCE_ROWS or any(map(window.offers_row, dropped))

    async def _start_of(self, partition: int, command: CursorCommand, applied: int, present: int) -> int:
        """The offset to which `command` moves the cursor; `present` where it does not concern the partition."""
        if command.positions:
            position = dict(command.positions).get(partition)
            if position is not None or not command.by_time:
                return min(applied, present if position is None else position)
        if not command.start_ms:
            return 0
        loop = asyncio.get_running_loop()
        return min(applied, await loop.run_in_executor(self._pool, self._store.offset_at, partition, command.start_ms))

    async def close_gaps(self, queue: QueueServer, proven: Mapping[int, Collection[QueueGap]]) -> int:
        """Close gaps, by partition, that have not changed since they were seen; returns how many. Raises Retryable,
        OutcomeUnknown: the call may then be repeated.

        An entry contains the whole state, so one is under way at a time. New gaps since the last entry are in this one,
        too: they may be in an entry whose outcome is not known."""
        if busy := queue.writing_cursor & proven.keys():
            raise NotReady(f"queue {queue.settings.name}: another cursor entry of partition {min(busy)} is under way")
        closed = 0
        for partition, of_it in proven.items():
            window = queue.machine.windows.get(partition)
            if window is None or partition in queue.writing_cursor:
                continue
            left = without(window.state.gaps, of_it)
            if left != window.state.gaps:
                count = len(window.state.gaps) - len(left)
                for gap in window.claim_gaps():
                    left = with_gap(left, gap)
                state = replace(window.state, cursor=window.advance(), gaps=left)
                queue.writing_cursor.add(partition)
                try:
                    await self._write(queue, partition, state)
                finally:
                    queue.writing_cursor.discard(partition)
                closed += count
        return closed

    async def _write(self, queue: QueueServer, partition: int, state: CursorState) -> None:
        """Append a CURSOR entry, and wait until it is applied. From now on pushes are judged as if it were applied
        (R-OWED), also after OutcomeUnknown: it is still in the log, or this leadership is over. Raises Retryable,
        OutcomeUnknown."""
        queue.machine.cursor_appended(partition)
        try:
            await self._cursors.write_cursor(partition, queue.name, encode_state(state))
        except Retryable:
            queue.machine.cursor_rejected(partition)
            raise

    def on_applied(self, queue: QueueServer, partition: int, base: int, state: CursorState) -> None:
        """A CURSOR entry of the queue was applied, and all entries before it were added."""
        bucket_type, key_range = self._cluster.partition_types()[partition], self._cluster.key_range(partition)
        queue.machine.cursor_applied(partition, bucket_type, base, state, key_range)

    def save(self, queue: QueueServer, partition: int | None) -> None:
        """Save moved cursors as soft cursors, of one partition or (None) of all."""
        for moved, base, cursor in queue.machine.moved_cursors(partition):
            self._cursors.soft_cursor(moved, queue.name, encode_soft(base, cursor, self._lineages[moved]))


def log_unreadable(queue: QueueServer, partition: int, error: IsthmusError) -> None:
    """Log that a cursor in the store cannot be decoded: the queue serves nothing of that partition."""
    log.error("queue.cursor_unreadable", queue=queue.settings.name, partition=partition, error=str(error))
