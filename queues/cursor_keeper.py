"""Where each queue stands in each led partition: found in the store, decided by CURSOR entries, moved softly.

Runs on the event loop; reads in the read pool. What an entry says is decided in `queues.cursor_decisions` and
`queues.queue_documents`; `queues.service` tells what is led and what was applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, Final

import structlog

from isthmus.queues.cursor_decisions import ends_a_gap, from_the_first
from isthmus.queues.cursors import CursorPosition, CursorState, encode_soft, encode_state, position_of
from isthmus.queues.gaps import QueueGap, with_gap, without
from isthmus.queues.object_reader import read_changes
from isthmus.queues.queue_documents import CLEARED, OFFER_CHANGED, CursorCommand, obeyed, passed_over
from isthmus.queues.queue_server import QueueServer
from isthmus.queues.window import Window
from isthmus.repl.model.errors import IsthmusError, NotReady, OutcomeUnknown, Retryable
from isthmus.repl.model.ports import CursorWriter, TimeSource
from isthmus.repl.store.port import Store

log = structlog.get_logger(__name__)

RETRY_MS: Final = 250
"""Pause before a CURSOR entry that was refused is tried again."""

SINCE_ROWS: Final = 4_096
"""Rows read to find since when what is given up was made: they are in the order of change, so those behind are younger,
but for leaders whose clocks differ."""


class CursorKeeper:
    """See the module's text. `led`: led partition -> first offset that was not yet told to be applied; `types`: the
    bucket types of the partitions."""

    def __init__(
        self,
        *,
        store: Store,
        cursors: CursorWriter,
        led: Mapping[int, int],
        types: Callable[[], Mapping[int, bytes]],
        time: TimeSource,
        pool: Executor,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        reload: Callable[[QueueServer], Awaitable[None]],
    ) -> None:
        """`reload` takes in what the metastore says of a queue now. Raises NotReady."""
        self._reload = reload
        self._store = store
        self._cursors = cursors
        self._led = led
        self._types = types
        self._time = time
        self._pool = pool
        self._spawn = spawn
        self._lineages: dict[int, int] = {}
        """Led partition -> lineage under which it is led."""

    def begin(self, partition: int) -> None:
        """A leadership begins. Its lineage is noted now: when it ends by a forced leader's record, that one is known
        here already, and what this leadership was acknowledged is of the lineage before."""
        self._lineages[partition] = self._cursors.lineage(partition)

    def end(self, queues: Iterable[QueueServer], partition: int) -> None:
        """A leadership is over: let the cursors that moved under it travel."""
        for queue in queues:
            self.save(queue, partition)
        self._lineages.pop(partition, None)

    async def load_position(self, queue: QueueServer, partition: int) -> None:
        """Find where the queue stands in a partition that is led here; one that never stood anywhere begins where its
        registration says, else at 0. Ends when it stands, or cannot be made to."""
        loop = asyncio.get_running_loop()
        machine = queue.machine
        reread: set[int] = set()
        while partition not in machine.windows and partition in self._led and not queue.closed:
            try:
                await loop.run_in_executor(self._pool, self._store.cursor, partition, queue.name)
                if partition in machine.windows or partition not in self._led:
                    return
                # Read once more, now out of memory: leadership may have gone and come back, and others have decided.
                position = position_of(self._store.cursor(partition, queue.name), self._lineages[partition])
                newest = 0 if queue.word.decree is None else queue.word.decree.version
                if position is not None and position.state.decree > newest and partition not in reread:
                    # Another node has obeyed a decree of which this one has not heard: what is offered may differ.
                    reread.add(partition)
                    await self._reload(queue)
                    continue
                if position is not None:
                    machine.lead(
                        partition,
                        self._types()[partition],
                        self._within(queue, partition, position),
                        self._led[partition],
                    )
                    return
                state = CursorState()
                if queue.word.decree is not None:
                    decree = queue.word.decree
                    start = await self._start(partition, decree, self._led[partition], 0)
                    if self._store.cursor(partition, queue.name).entry is not None or partition not in self._led:
                        continue  # leadership may have gone and come back here, too
                    state = CursorState(start, decree=decree.version)
                    if decree.what == CLEARED and start:
                        # It was cleared before it stood here: what it would have given since it was registered is lost.
                        state = obeyed(CursorState(), 0, decree, start, max(decree.at_ms, decree.start_ms), 0)
                await self._write(queue, partition, state)
            except (Retryable, OutcomeUnknown):
                await asyncio.sleep(RETRY_MS / 1000)
            except IsthmusError as error:
                unreadable(queue, partition, error)
                return

    def _within(self, queue: QueueServer, partition: int, position: CursorPosition) -> CursorPosition:
        """The position, not above what is applied here. A follower may be told of a cursor before it has the entries
        below; if it is made to lead without them, others come to stand there. Its lineage tells that (docs/protocol.md
        R-SOFT), but for a metastore that went back, in which a number of a lineage may come twice."""
        applied = self._led[partition]
        if position.cursor <= applied:
            return position
        log.warning("queue.cursor_above_log", queue=queue.settings.name, partition=partition, cursor=position.cursor)
        soft = encode_soft(position.base, applied, self._lineages[partition])
        self._cursors.soft_cursor(partition, queue.name, soft)
        return replace(position, cursor=applied)

    def write_pending_cursors(self, queue: QueueServer) -> None:
        """See that every led partition gets a CURSOR entry for what was decided and no entry says yet."""
        machine, decree = queue.machine, queue.word.decree
        due: dict[int, CursorState | None] = dict(machine.wanted_cursors(self._time.wall_ms()))
        if decree is not None:
            due |= {p: None for p, window in machine.windows.items() if window.state.decree < decree.version}
        for partition, state in due.items():
            if partition not in queue.claiming:
                queue.claiming.add(partition)
                self._spawn(self._claim(queue, partition, state))

    async def _claim(self, queue: QueueServer, partition: int, state: CursorState | None) -> None:
        try:
            state = await (self._obeying(queue, partition) if state is None else self._dated(queue, partition, state))
            if state is not None:
                await self._write(queue, partition, state)
        except (Retryable, OutcomeUnknown) as error:
            log.info("queue.claim_put_off", queue=queue.settings.name, partition=partition, reason=error.reason)
            await asyncio.sleep(RETRY_MS / 1000)
        finally:
            queue.claiming.discard(partition)

    async def _dated(self, queue: QueueServer, partition: int, state: CursorState) -> CursorState | None:
        """The state, in which a gap that it ends has the times of what lies in it; None when it is out of date."""
        window = queue.machine.windows.get(partition)
        grew = None if window is None else ends_a_gap(window.state, state)
        if window is None or grew is None:
            return state
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._pool, self._store.changes, partition, grew.start, SINCE_ROWS)
        now = dict(queue.machine.wanted_cursors(self._time.wall_ms())).get(partition)
        if now is None or queue.machine.windows.get(partition) is not window or not ends_a_gap(window.state, now):
            return None
        return from_the_first(now, grew, rows)

    async def _obeying(self, queue: QueueServer, partition: int) -> CursorState | None:
        """The state that obeys the newest decree, under the owner version that holds here now; the next claim follows
        with the newer one."""
        decree = queue.word.decree
        window = queue.machine.windows.get(partition)
        if decree is None or window is None or window.state.decree >= decree.version:
            return None
        decree = decree.next_after(window.state.decree)
        if decree.what == OFFER_CHANGED:
            again = decree.change is not None and decree.change.again
            start = 0 if again else window.advance()
        else:
            start = await self._start(partition, decree, window.applied, window.advance())
        since_ms, drops = await self._dropped(window, start)
        if queue.machine.windows.get(partition) is not window:
            return None
        log.info("queue.decree_obeyed", queue=queue.settings.name, partition=partition, what=decree.what, start=start)
        cursor = window.advance()
        now_ms = self._time.wall_ms()
        state = passed_over(window.state, cursor, decree, queue.settings, window.bucket_type, now_ms)
        if decree.what == OFFER_CHANGED and start:
            return replace(state, cursor=cursor, decree=decree.version)
        if decree.what == CLEARED and not drops:
            return replace(state, cursor=max(start, cursor), decree=decree.version)
        return obeyed(state, cursor, decree, start, max(decree.at_ms, decree.start_ms), since_ms)

    async def _dropped(self, window: Window, start: int) -> tuple[int, bool]:
        """Of what lies between the cursor and `start`, and is given up if it goes there: since when it was made, 0 when
        nothing is there any more; and whether any of it may be for this queue."""
        cursor = window.advance()
        if start <= cursor:
            return 0, False
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._pool, read_changes, self._store, window, cursor, SINCE_ROWS)
        dropped = [row for row in rows if row.offset < start]
        since_ms = min((row.time_ms for row in dropped), default=0)
        return since_ms, len(dropped) == SINCE_ROWS or any(map(window.offers_row, dropped))

    async def _start(self, partition: int, decree: CursorCommand, applied: int, standing: int) -> int:
        """The offset from which `decree` wants changes; `standing` where it says nothing of the partition."""
        if decree.positions:
            position = dict(decree.positions).get(partition)
            if position is not None or not decree.by_time:
                return min(applied, standing if position is None else position)
        if not decree.start_ms:
            return 0
        loop = asyncio.get_running_loop()
        return min(applied, await loop.run_in_executor(self._pool, self._store.offset_at, partition, decree.start_ms))

    async def close_gaps(self, queue: QueueServer, proven: Mapping[int, Collection[QueueGap]]) -> int:
        """Close gaps, by partition, as far as they still are as they were seen; returns how many. Raises Retryable,
        OutcomeUnknown: then it may be done again.

        An entry says all of the state, so one is under way at a time, and what was given up since the last one stands
        in this one, too: that may be in an entry of which nobody knows what became."""
        if busy := queue.claiming & proven.keys():
            raise NotReady(f"queue {queue.settings.name}: another cursor entry of partition {min(busy)} is under way")
        closed = 0
        for partition, of_it in proven.items():
            window = queue.machine.windows.get(partition)
            if window is None or partition in queue.claiming:
                continue
            left = without(window.state.gaps, of_it)
            if left != window.state.gaps:
                count = len(window.state.gaps) - len(left)
                for gap in window.claim_gaps():
                    left = with_gap(left, gap)
                state = replace(window.state, cursor=window.advance(), gaps=left)
                queue.claiming.add(partition)
                try:
                    await self._write(queue, partition, state)
                finally:
                    queue.claiming.discard(partition)
                closed += count
        return closed

    async def _write(self, queue: QueueServer, partition: int, state: CursorState) -> None:
        """Append a CURSOR entry, and wait until it is applied. From now on pushes are judged as if it were (R-OWED);
        after OutcomeUnknown, too: it is in the log still, or this leadership is over. Raises Retryable,
        OutcomeUnknown."""
        queue.machine.cursor_appended(partition)
        try:
            await self._cursors.write_cursor(partition, queue.name, encode_state(state))
        except Retryable:
            queue.machine.cursor_rejected(partition)
            raise

    def decided(self, queue: QueueServer, partition: int, base: int, state: CursorState) -> None:
        """A CURSOR entry of the queue was applied, and all before it were told."""
        queue.machine.cursor_applied(partition, self._types()[partition], base, state)

    def save(self, queue: QueueServer, partition: int | None) -> None:
        """Let moved cursors travel, of one partition or of all."""
        for moved, base, cursor in queue.machine.moved_cursors(partition):
            self._cursors.soft_cursor(moved, queue.name, encode_soft(base, cursor, self._lineages[moved]))


def unreadable(queue: QueueServer, partition: int, error: IsthmusError) -> None:
    """What stands in the store is no cursor: the queue serves nothing of that partition."""
    log.error("queue.cursor_unreadable", queue=queue.settings.name, partition=partition, error=str(error))
