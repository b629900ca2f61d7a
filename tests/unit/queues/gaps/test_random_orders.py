"""Gaps under any order of writes, fetches, suspensions, commands, overflows and CURSOR entries that are late, refused,
or of unknown outcome: every change that a cursor has passed is acknowledged or lies in a gap.

The schedule is that of `tests.unit.queues.source_queue.test_state_machine`, with operators' commands added.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isthmus.queues.window as window_room
from isthmus.queues.cursor_decisions import PublishingSuspended
from isthmus.queues.cursors import CursorState, decode_state, encode_state
from isthmus.queues.gaps import with_gap, without
from isthmus.queues.queue_documents import CLEARED, PLACED, RELEASED, CursorCommand, execute
from isthmus.repl.model.entry import EntryKind
from tests.support.samples import share
from tests.unit.queues.source_queue.test_state_machine import NAME, PARTITIONS, ROWS, Schedule


class OperatedSchedule(Schedule):
    """A queue with operators' commands; half of the queues discard at their limit."""

    def __init__(self, seed: int, cascade: bool) -> None:
        self.publishing_suspended: PublishingSuspended | None = None
        self.decree: CursorCommand | None = None
        self.claims: list[tuple[int, CursorState]] = []
        self.claiming: set[int] = set()
        super().__init__(seed, cascade)
        left_to_others = (self.reap, self.another_cluster_takes_over, self.a_new_base)
        self.events = [(weight, event) for weight, event in self.events if event not in left_to_others]
        self.events += [
            (12, self.claim),
            (12, self.claim_lands),
            (1, self.suspend_or_resume),
            (2, self.act),
            (1, self.close_gaps),
        ]

    def start(self) -> None:
        self.discard = bool(self.rng.getrandbits(1))
        super().start()
        self.claims.clear()
        self.claiming.clear()
        self.queue.publishing_suspended = self.publishing_suspended

    def notify_some(self, partition: int, count: int) -> None:
        entries, self.unnotified[partition] = self.unnotified[partition][:count], self.unnotified[partition][count:]
        start = 0
        for at, entry in enumerate(entries, 1):
            if entry.kind == EntryKind.CURSOR or at == len(entries):
                self.audit_info[partition] = entry.offset + 1
                self.queue.add(partition, entries[start:at], self.now)
                start = at
            if entry.kind == EntryKind.CURSOR:
                self.claiming.discard(partition)
                self.queue.cursor_applied(partition, b"default", entry.offset, decode_state(entry.payload))

    # ------------------------------------------------------------------ what operators do

    def suspend_or_resume(self) -> None:
        self.queue.publishing_suspended = self.publishing_suspended = (
            None if self.publishing_suspended else PublishingSuspended("ann", "because")
        )
        self.seen["suspended"] += 1

    def act(self) -> None:
        """Clear, release or place; each partition executes it for itself."""
        self.now += 1
        version = 1 if self.decree is None else self.decree.version + 1
        what = self.rng.choice([CLEARED, CLEARED, RELEASED, PLACED])
        self.decree = CursorCommand(version, what, self.rng.choice([0, 1]), "ann", self.now, "because")
        self.seen[what] += 1

    def claim(self) -> None:
        """Same as `CursorKeeper.write_pending_cursors`, for one partition."""
        due: dict[int, CursorState | None] = dict(self.queue.wanted_cursors(self.now))
        if self.decree is not None:
            version = self.decree.version
            due |= {p: None for p, window in self.queue.windows.items() if window.state.command_version < version}
        for partition, state in due.items():
            if partition not in self.claiming:
                self.claiming.add(partition)
                self.claims.append((partition, self.cursor_state_after(partition) if state is None else state))
                return

    def cursor_state_after(self, partition: int) -> CursorState:
        assert self.decree is not None
        window = self.queue.windows[partition]
        if self.decree.what == PLACED:
            start = self.rng.randint(0, window.applied)
            self.brought(partition, 0, start)
        elif self.decree.what == CLEARED or self.decree.start_ms:
            start = self.rng.choice([window.applied, self.rng.randint(0, window.applied)])
        else:
            start = 0
        return execute(window.state, window.advance(), self.decree, start, self.now)

    def claim_lands(self) -> None:
        """The entry is refused or applied; for some, the outcome stays unknown, and the next claim begins before the
        notification."""
        if not self.claims:
            return
        partition, state = self.claims.pop(self.rng.randrange(len(self.claims)))
        if self.rng.random() < 0.2:
            self.claiming.discard(partition)
            return
        self.store(partition, self.factory.cursor(partition, NAME, encode_state(state)))
        if self.rng.random() < 0.2:
            self.claiming.discard(partition)
            self.seen["unknown"] += 1

    def close_gaps(self) -> None:
        """Same as `CursorKeeper.close_gaps`: a full-sync has copied the changes in the gaps."""
        partition = self.rng.choice(PARTITIONS)
        window = self.queue.windows[partition]
        chosen = [gap for gap in window.state.gaps if not gap.is_open and self.rng.getrandbits(1)]
        if partition in self.claiming or not chosen:
            return
        left = without(window.state.gaps, chosen)
        for gap in window.claim_gaps():
            left = with_gap(left, gap)
        for gap in chosen:
            self.brought(partition, gap.start, gap.end)
        self.claiming.add(partition)
        self.claims.append((partition, replace(window.state, cursor=window.advance(), gaps=left)))
        self.seen["closed"] += 1

    def brought(self, partition: int, start: int, end: int) -> None:
        for offset, change in self.fake_store.rows[partition].items():
            if start <= offset < end:
                name = partition, change.key
                self.acked[name] = max(offset, self.acked.get(name, -1))

    def lead_again(self, partition: int) -> None:
        """Writers that wait for an entry of the previous leadership get an unknown outcome."""
        super().lead_again(partition)
        self.claims = [claim for claim in self.claims if claim[0] != partition]
        self.claiming.discard(partition)

    def decide(self) -> None:
        self.claim()
        self.claim_lands()
        for partition in PARTITIONS:
            self.notify_some(partition, 10_000)

    def undecided(self) -> bool:
        old = self.decree is not None and any(
            window.state.command_version < self.decree.version for window in self.queue.windows.values()
        )
        return old or bool(self.claims or self.queue.wanted_cursors(self.now))

    def drain(self) -> None:
        """All pending commands are executed, and changes dropped meanwhile are recorded."""
        self.queue.publishing_suspended = self.publishing_suspended = None
        super().drain()
        self.seen["gaps"] += sum(len(window.state.gaps) for window in self.queue.windows.values())


@pytest.mark.timeout(180)
@pytest.mark.parametrize("cascade", [False, True])
def test_changes_below_a_cursor_are_acknowledged_or_in_a_gap(cascade: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """R-GAP holds after every step of any schedule, for the queue and for a new leader that begins from the store."""
    monkeypatch.setattr(window_room, "REFILL_ROWS", ROWS)
    monkeypatch.setattr(window_room, "TAIL_MAX", 5)
    seen: Counter[str] = Counter()

    @settings(max_examples=share(30), deadline=None, derandomize=True, database=None)
    @given(st.integers(0, 2**32))
    def run(seed: int) -> None:
        schedule = OperatedSchedule(seed, cascade)
        schedule.run(300)
        seen.update(schedule.seen)

    run()
    wanted = ("acknowledged", "suspended", "unknown", "closed", "gaps", CLEARED, RELEASED, PLACED)
    assert all(seen[what] for what in wanted), seen
