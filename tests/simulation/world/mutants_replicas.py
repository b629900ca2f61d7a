"""Deliberate defects inside a cluster: what is committed, what is on disk, who leads, and what a batch shares."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.repl.coordinator.forwarding import ForwardedBatch
from isthmus.repl.isr.leader import Leader
from isthmus.repl.isr.read_index import ReadIndex
from isthmus.repl.isr.replica_state import ReplicaState
from isthmus.repl.replog.tail import LogTail

Patch = pytest.MonkeyPatch


def commits_what_is_durable_here(patch: Patch) -> None:
    """A leader commits what it has on disk, without its followers."""
    patch.setattr(Leader, "committed_end", lambda self, record, durable: durable)


def acknowledges_what_is_not_on_disk(patch: Patch) -> None:
    """The log reports entries as durable before they are synced (against H34)."""
    sound = LogTail.write

    def write(self: LogTail, runs: Any, count: int, *, synced: bool) -> Any:
        return sound(self, runs, count, synced=False)

    patch.setattr(LogTail, "write", write)


def reads_without_confirming(patch: Patch) -> None:
    """A leader that may have been replaced answers committed reads (against R-READ)."""

    def begin(self: ReadIndex, state: ReplicaState, effects: Any, *_: Any) -> None:
        tokens, self.waiting = tuple(self.waiting), []
        self._confirm(state.progress.hw, tokens, state, effects)

    patch.setattr(ReadIndex, "_begin", begin)


def answers_forwarded_items_in_another_order(patch: Patch) -> None:
    """The answers to a batch that went to another node's leader come back in another order."""
    sound = ForwardedBatch.end

    def end(self: ForwardedBatch) -> None:
        self.answers.reverse()
        sound(self)

    patch.setattr(ForwardedBatch, "end", end)
