"""Deliberate defects of the waiters and of the source queues, each of which the simulation of queues must catch.

As in `mutants.py`: each injects a defect by patching the product; its first line names the wrong behaviour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from isthmus.queues import cursor_keeper, sink_shares, source_queue
from isthmus.queues.cursors import CursorPosition, CursorState
from isthmus.queues.leases import LeasedBatch, Session
from isthmus.queues.source_queue import SourceQueue
from isthmus.queues.window import Window
from isthmus.repl.coordinator.write_batch import WriteBatch
from isthmus.repl.runtime.unapplied import UnappliedBuffer
from isthmus.repl.runtime.waiters import PendingBatch, Waiters
from tests.simulation.cluster.plan import Plan

Patch = pytest.MonkeyPatch


def deposed() -> Plan:
    """Leaders are cut off among writes, and come back to lead."""
    return Plan.only(
        "isolate", "cut_nodes", "cut_metastore", "hand_over", gap_ms=350, write_gap_ms=30, store_lost=0.05, lost=0.02
    )


# -- promises ---------------------------------------------------------------------------------------------------------


def unknown_outcome_not_returned(patch: Patch) -> None:
    """A request for an uncommitted entry keeps waiting for its offset when leadership ends (R-WAIT)."""
    patch.setattr(Waiters, "fail_above", lambda _self, _end, _error: None)


def pending_rows_outlive_leader(patch: Patch) -> None:
    """The next leadership builds on entries of the last one that were dropped."""
    patch.setattr(UnappliedBuffer, "clear_pending_rows", lambda _self: None)


def answered_before_it_is_applied(patch: Patch) -> None:
    """A write is answered once it is appended."""
    sound = PendingBatch.__init__

    def made(self: PendingBatch, _end: int, *rest: Any) -> None:
        sound(self, 1, *rest)

    patch.setattr(PendingBatch, "__init__", made)


def a_repeat_is_answered_at_once(patch: Patch) -> None:
    """A request that is sent again is answered before the entry is applied that it rests on (R-WAIT, H40)."""
    sound = WriteBatch._answer_repeated

    def repeated(self: WriteBatch, *asked: Any) -> Any:
        answer, _ = sound(self, *asked)
        return answer, 0

    patch.setattr(WriteBatch, "_answer_repeated", repeated)


# -- queues -----------------------------------------------------------------------------------------------------------


def cursor_reported_early(patch: Patch) -> None:
    """The cursor moves over changes when they are sent, before they are acknowledged."""
    sound = SourceQueue.mark_sent

    def sent(self: SourceQueue, batch: LeasedBatch) -> None:
        sound(self, batch)
        self.acknowledge(batch.session, batch.id, batch.owner_version, ())

    patch.setattr(SourceQueue, "mark_sent", sent)


def owner_version_ignored(patch: Patch) -> None:
    """A window serves a new owner before a CURSOR entry has been applied under that owner's version (R-OWNER)."""
    sound = SourceQueue.set_owner

    def set_owner(self: SourceQueue, cluster: bytes, version: int) -> None:
        sound(self, cluster, version)
        for window in self.windows.values():
            window.owner_version = version

    patch.setattr(SourceQueue, "set_owner", set_owner)


def a_new_owner_leaves_the_window(patch: Patch) -> None:
    """A window stays unchanged although another owner, or another act, is decided."""

    def needs_no_new_window(window: Window, after: CursorState) -> bool:
        return after.cursor <= window.cursor

    patch.setattr(source_queue, "needs_no_new_window", needs_no_new_window)


def the_next_owner_goes_on_where_the_last_stood(patch: Patch) -> None:
    """An operator's release does not move the cursor back."""

    def obeyed(state: CursorState, cursor: int, decree: Any, _start: int, *_: int) -> CursorState:
        return replace(state, cursor=cursor, command_version=decree.version)

    patch.setattr(cursor_keeper, "execute", obeyed)


def failed_is_settled(patch: Patch) -> None:
    """A change that a sink asks for again counts as settled."""
    sound = SourceQueue.acknowledge

    def acknowledge(self: SourceQueue, session: Session, batch: bytes, version: int, _failed: Any, *rest: Any) -> None:
        sound(self, session, batch, version, (), *rest)

    patch.setattr(SourceQueue, "acknowledge", acknowledge)


def what_is_given_up_is_forgotten(patch: Patch) -> None:
    """A change that a sink refuses for good leaves no gap."""

    def missing(self: Window, places: Any, items: Any) -> None:
        self.settle(places, items)

    patch.setattr(Window, "settle_refused", missing)


def another_leader_begins_at_its_end(patch: Patch) -> None:
    """A new leader offers only the changes applied from then on."""
    sound = SourceQueue.lead

    def lead(
        self: SourceQueue, partition: int, bucket_type: bytes, position: CursorPosition, applied: int, *rest: Any
    ) -> None:
        if position.cursor:
            position = replace(position, cursor=max(position.cursor, applied))
        sound(self, partition, bucket_type, position, applied, *rest)

    patch.setattr(SourceQueue, "lead", lead)


def a_share_waits_for_its_node_for_ever(patch: Patch) -> None:
    """Changes in the share of a node of the sink's cluster are given to no other node, however long that node is
    away."""
    for module in (sink_shares, source_queue):
        patch.setattr(module, "SHARE_PATIENCE_MS", 1_000_000_000)


class Defect(NamedTuple):
    """`put_in` patches it; `names`: how the violation may begin; `plan`: the mix, the drawn one without; `seed`: tried
    first, because it catches the defect soonest; `shares`: with shares of sinks' nodes."""

    put_in: Callable[[Patch], None]
    names: tuple[str, ...]
    plan: Callable[[], Plan] | None = None
    seed: int = 0
    shares: bool = False


ACKED = ("I-ACK", "I-ANSWER")
CURSORS = ("I-Q-CURSOR", "I-ALO")

DEFECTS = (
    Defect(unknown_outcome_not_returned, ACKED, deposed, seed=44),
    Defect(pending_rows_outlive_leader, ("I-BASIS", *ACKED), deposed, seed=37),
    Defect(answered_before_it_is_applied, ACKED, deposed, seed=29),
    Defect(a_repeat_is_answered_at_once, ACKED, deposed, seed=10),
    Defect(cursor_reported_early, CURSORS, seed=5),
    Defect(owner_version_ignored, CURSORS, seed=68),
    Defect(a_new_owner_leaves_the_window, CURSORS, seed=6),
    Defect(the_next_owner_goes_on_where_the_last_stood, CURSORS, seed=14),
    Defect(failed_is_settled, CURSORS, seed=14),
    Defect(what_is_given_up_is_forgotten, CURSORS, seed=20),
    Defect(another_leader_begins_at_its_end, CURSORS),
    Defect(a_share_waits_for_its_node_for_ever, ("I-ALO",), seed=9, shares=True),
)
