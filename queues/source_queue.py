"""One source queue of a node: windows of all partitions that it leads, batches under lease, cursors (pure).

Deciding only: `now_ms` comes in, nothing is awaited, read or logged here; `queues.registry` runs what this says.

    waiting   -> away           taken into a batch, under a lease
    away      -> acknowledged   the sink said so in its next fetch; the cursor moves over the settled prefix
    away      -> waiting        lease over, refused by the sink, or the sink no longer holds the batch
    away      -> settled        its key has a newer change with a place of its own
    waiting   -> settled        found to have vanished when it was read

Who may fetch is decided by CURSOR entries once they are applied (`decided`): a window serves only under the queue's
current owner version, and acknowledgements of an older one count nothing (docs/protocol.md R-OWNER).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from queues.batches import Batch, Counts, Part, Session
from queues.cursors import NO_OWNER, CursorState, Position
from queues.rules import Budget, Item
from queues.window import Window
from repl.model.entry import Entry

TURN_MIN: Final = 16
"""Fewest references that one partition gives at its turn: below it a turn costs more than it shares."""

IN_FLIGHT_BATCHES_MAX: Final = 64
"""Batches under lease at once; one more fetch waits as if there were nothing. Sinks hold two or three each."""

IN_FLIGHT_BYTES_MAX: Final = 64_000_000
"""Payload bytes under lease at once, kept in memory for a repeat; above it fetches wait for acknowledgements."""

GATHER_RATE_PER_MS: Final = 0.3
"""Changes per millisecond from which a waiting fetch gathers a batch instead of leaving with one change: below it
lag counts, above it the cost of a fetch does."""

GATHER_MS: Final = 2
"""How long it gathers at most. At 1,000 changes a second this took a quarter off the sink's CPU and lowered the lag's
median from 6 to 5 ms on two busy cores; 4 ms gained nothing more."""

GATHER_COUNT: Final = 256
"""Waiting changes that end the gathering at once: from here on the cost of a fetch is spread thin enough."""

RATE_SPAN_MS: Final = 20
"""Over how long arrivals are counted."""

QUIET_MS: Final = 60_000
"""A queue from which nobody fetched for so long lets go of its windows: a sink that is away for days costs no
memory."""


class SourceQueue:
    """The machine of one queue; see the module's text. `batch_prefix` keeps batch ids of different lives of the
    process apart, so that an acknowledgement from before a restart can settle nothing."""

    def __init__(
        self, name: str, own: bytes, cascade: bool, lease_ms: int, budget: Budget, batch_prefix: bytes
    ) -> None:
        self.name = name
        self.lease_ms = lease_ms
        self.budget = budget
        self.counts = Counts()
        self.windows: dict[int, Window] = {}
        self.batches: dict[bytes, Batch] = {}
        """Under lease, the oldest first: every lease has the same length."""
        self.suspended = False
        self.owner = NO_OWNER
        self.owner_version = 0
        self._own = own
        self._cascade = cascade
        self._prefix = batch_prefix
        self._batch_number = 0
        self._in_flight_bytes = 0
        self._turn = 0
        self._heard_ms: int | None = None
        self._arrived = 0
        self._arrived_from_ms = 0
        self._per_ms = 0.0
        self._gathering_from_ms: int | None = None

    # ---------------------------------------------------------------- leadership, owner, cursors

    def lead(self, partition: int, bucket_type: bytes, position: Position, applied: int) -> None:
        """This node leads `partition`, whose entries below `applied` are in the store, and the queue stands at
        `position`."""
        self.unlead(partition)
        window = Window(partition, bucket_type, position, applied, self._cascade, self._own, self.budget)
        window.tracking = self._heard_ms is not None and window.owner_version == self.owner_version > 0
        self.windows[partition] = window

    def unlead(self, partition: int) -> None:
        """The partition is led elsewhere now: its references go; what was sent of them is settled there."""
        window = self.windows.pop(partition, None)
        if window is not None:
            window.forget()

    def decided(self, partition: int, bucket_type: bytes, base: int, state: CursorState) -> None:
        """A CURSOR entry of this queue at offset `base` was applied, all entries before it were told."""
        window = self.windows.get(partition)
        if window is not None and window.owner_version == state.owner_version and state.cursor <= window.cursor:
            window.base, window.saved = base, state.cursor
            return
        self.lead(partition, bucket_type, Position(base, state, state.cursor), base + 1)

    def set_owner(self, cluster: bytes, version: int) -> None:
        """The metastore says that `cluster` may fetch under `version`; windows follow when their CURSOR entries
        apply."""
        if (cluster, version) != (self.owner, self.owner_version):
            self.owner, self.owner_version = cluster, version
            self._heard_ms = None
            for batch in list(self.batches.values()):
                self.release(batch)

    def unclaimed(self) -> list[tuple[int, CursorState]]:
        """(partition, state for a CURSOR entry) of windows that do not stand under the current owner version yet."""
        return [
            (partition, CursorState(window.advance(), self.owner_version, self.owner))
            for partition, window in self.windows.items()
            if window.owner_version < self.owner_version
        ]

    def soft_positions(self, only: int | None = None) -> list[tuple[int, int, int]]:
        """(partition, base, cursor) of every cursor that moved since the last call; of one partition or of all."""
        moved = []
        for partition, window in self.windows.items():
            cursor = window.advance()
            if cursor > window.saved and (only is None or only == partition):
                window.saved = cursor
                moved.append((partition, window.base, cursor))
        return moved

    # ---------------------------------------------------------------- what is applied

    def add(self, partition: int, entries: Sequence[Entry], now_ms: int) -> None:
        """Entries applied at the leader, in offset order; none of them a CURSOR entry of this queue."""
        window = self.windows.get(partition)
        if window is None:
            return
        window.add(entries)
        self._arrived += len(entries)
        span = now_ms - self._arrived_from_ms
        if span >= RATE_SPAN_MS:
            self._per_ms = self._arrived / span
            self._arrived, self._arrived_from_ms = 0, now_ms
        if self._gathering_from_ms is None:
            self._gathering_from_ms = now_ms

    def refills(self) -> list[tuple[Window, int, int]]:
        """(window, from offset, rows) of every read of the change index to begin now; the result goes to
        `Window.refilled`."""
        reads = []
        for window in self.windows.values():
            rows = window.wanted()
            if rows:
                reads.append((window, window.refill_started(), rows))
        return reads

    # ---------------------------------------------------------------- fetches

    def heard(self, session: Session, holding: Collection[bytes] | None, now_ms: int) -> None:
        """A fetch of the owner came in. Batches that its process no longer holds come back at once: those of an
        earlier incarnation of the same node, and those of the same link that are not in `holding` (None: not
        told)."""
        if self._heard_ms is None:
            for window in self.windows.values():
                window.tracking = window.tracking or window.owner_version == self.owner_version
        self._heard_ms = now_ms
        lost = []
        for batch in self.batches.values():
            held = batch.session
            if held.node != session.node or held.cluster != session.cluster:
                continue
            if held.incarnation != session.incarnation or (
                held.link == session.link and holding is not None and batch.id not in holding
            ):
                lost.append(batch)
        for batch in lost:
            self.release(batch)

    def due_in_ms(self, now_ms: int) -> int | None:
        """In how many ms a waiting fetch should be answered; None when there is nothing to give."""
        waiting = self.waiting_count()
        if not waiting or not self._may_give():
            return None
        if waiting >= GATHER_COUNT or self._per_ms < GATHER_RATE_PER_MS or self._gathering_from_ms is None:
            return 0
        return max(0, self._gathering_from_ms + GATHER_MS - now_ms)

    def _may_give(self) -> bool:
        return (
            not self.suspended
            and len(self.batches) < IN_FLIGHT_BATCHES_MAX
            and self._in_flight_bytes < IN_FLIGHT_BYTES_MAX
        )

    def take(self, session: Session, max_count: int, max_bytes: int, now_ms: int) -> Batch | None:
        """The next batch, fair among partitions (each at its turn gives an equal share), or None."""
        if not self._may_give():
            return None
        order = list(self.windows.values())
        self._turn = self._turn + 1 if self._turn + 1 < len(order) else 0
        order = order[self._turn :] + order[: self._turn]
        ready = [w for w in order if w.waiting_count and w.owner_version == self.owner_version]
        parts: list[Part] = []
        count = size = 0
        while ready and count < max_count:
            share = max(TURN_MIN, -(-(max_count - count) // len(ready)))
            more: list[Window] = []
            for window in ready:
                places, items, took = window.take(min(share, max_count - count), max_bytes - size, not parts)
                if items:
                    parts.append(Part(window, count, places, items))
                    count += len(items)
                    size += took
                if count >= max_count or size >= max_bytes:
                    more = []
                    break
                if window.waiting_count and items:
                    more.append(window)
            ready = more
        if not parts:
            return None
        if not any(window.waiting_count for window in order):
            self._gathering_from_ms = None
        self._batch_number += 1
        batch_id = self._prefix + self._batch_number.to_bytes(8, "big")
        batch = Batch(batch_id, session, self.owner_version, now_ms + self.lease_ms, parts, size)
        self.batches[batch_id] = batch
        self._in_flight_bytes += size
        return batch

    def settle(self, batch: Batch, resolved: Sequence[Item | None]) -> bool:
        """The batch's references were read from the store: `resolved` are its first items, whole, or None for one
        that vanished; those beyond did not fit and wait again. False when nothing is left to send."""
        if batch.id not in self.batches:
            return False
        parts: list[Part] = []
        size = start = 0
        for part in batch.parts:
            if not self._current(part):
                continue
            read = resolved[part.start : part.start + len(part.items)]
            places, items = [], []
            gone_places, gone_items = [], []
            for place, before, item in zip(part.places, part.items, read, strict=False):
                if item is None:
                    gone_places.append(place)
                    gone_items.append(before)
                else:
                    places.append(place)
                    items.append(item)
                    size += len(item[8])
            part.window.give_back(part.places[len(read) :], part.items[len(read) :])
            if gone_places:
                part.window.done(gone_places, gone_items)
                self.budget.vanished += len(gone_places)
            if items:
                parts.append(Part(part.window, start, places, items))
                start += len(items)
        self._in_flight_bytes += size - batch.size_bytes
        batch.parts, batch.size_bytes = parts, size
        if not parts:
            self._drop(batch)
        return bool(parts)

    def sent(self, batch: Batch) -> None:
        """The batch goes into an answer."""
        self.counts.served += len(batch)
        self.counts.batches += 1

    def acknowledge(
        self, session: Session, batch_id: bytes, owner_version: int, failed: Collection[int] | None
    ) -> None:
        """The sink is done with a batch; `failed` are the indexes that must come again (None: all of them)."""
        batch = self.batches.get(batch_id)
        if batch is None:
            self.counts.late += 1
            return
        if owner_version != batch.owner_version or session.cluster != self.owner:
            self.counts.refused += 1
            return
        if failed is None:
            self.release(batch)
            return
        self._drop(batch)
        for part in batch.parts:
            if not self._current(part):
                continue
            if not failed:
                part.window.done(part.places, part.items)
                self.counts.acknowledged += len(part.items)
                continue
            again = [i for i in range(len(part.items)) if part.start + i in failed]
            fine = [i for i in range(len(part.items)) if part.start + i not in failed]
            self._return(part.window, [part.places[i] for i in again], [part.items[i] for i in again])
            part.window.done([part.places[i] for i in fine], [part.items[i] for i in fine])
            self.counts.acknowledged += len(fine)

    def release(self, batch: Batch) -> None:
        """The batch comes back unsettled, whole; nothing happens when it did before."""
        if batch.id not in self.batches:
            return
        self._drop(batch)
        for part in batch.parts:
            if self._current(part):
                self._return(part.window, part.places, part.items)

    def expire(self, now_ms: int) -> int:
        """Batches whose lease is over come back; returns how many."""
        over = []
        for batch in self.batches.values():
            if batch.expires_ms > now_ms:
                break
            over.append(batch)
        for batch in over:
            self.release(batch)
        return len(over)

    def quieten(self, now_ms: int) -> None:
        """Let go of the windows when nobody fetched for a long time and nothing is under lease."""
        if self._heard_ms is not None and not self.batches and now_ms - self._heard_ms >= QUIET_MS:
            self._heard_ms = None
            for window in self.windows.values():
                window.forget()

    def _current(self, part: Part) -> bool:
        return self.windows.get(part.window.partition) is part.window

    def _drop(self, batch: Batch) -> None:
        del self.batches[batch.id]
        self._in_flight_bytes -= batch.size_bytes

    def _return(self, window: Window, places: Sequence[int], items: Iterable[Item]) -> None:
        self.counts.redelivered += window.give_back(places, items)

    # ---------------------------------------------------------------- what is shown

    def waiting_count(self) -> int:
        """References that wait in memory, of windows that serve."""
        version = self.owner_version
        return sum(w.waiting_count for w in self.windows.values() if w.owner_version == version)

    def in_flight_count(self) -> int:
        """References under lease."""
        return sum(w.away_count for w in self.windows.values())

    def unknown(self) -> list[tuple[int, int, Callable[[bytes], bool]]]:
        """(partition, offset from which waiting changes are not in memory, their eligibility by origin)."""
        return [(p, w.scan, w.origins.eligible) for p, w in self.windows.items() if not w.contiguous]

    def oldest_ms(self) -> int | None:
        """The leader's wall clock of the oldest change in memory that is not acknowledged; None when there is
        none."""
        times = [item[7] for batch in self.batches.values() for part in batch.parts for item in part.items[:1]]
        times += [t for w in self.windows.values() if (t := w.oldest_waiting_ms()) is not None]
        return min(times, default=None)
