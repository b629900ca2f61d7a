"""Deliberate defects inside a cluster: what is committed, what is on disk, who leads, and what a batch shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from isthmus.repl.coordinator.coordinator import Coordinator
from isthmus.repl.coordinator.forwarding import ForwardedBatch
from isthmus.repl.isr.leader import Leader
from isthmus.repl.isr.read_index import ReadIndex
from isthmus.repl.isr.replica_state import ReplicaState
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.requests import WriteRequest, WriteResult
from isthmus.repl.replog.tail import LogTail
from isthmus.repl.runtime.replay import LogReplay
from isthmus.repl.store import row_codec
from isthmus.repl.store.state_transfer import LevelSnapshot

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


def refuses_a_batch_for_one_item(patch: Patch) -> None:
    """Where one item of a batch is refused, all its items are said to be: the others have taken effect."""
    sound = Coordinator.write_batch

    async def written(self: Coordinator, requests: Sequence[WriteRequest]) -> list[WriteResult | IsthmusError]:
        answers = await sound(self, requests)
        refused = next((each for each in answers if isinstance(each, IsthmusError)), None)
        return answers if refused is None else [refused] * len(answers)

    patch.setattr(Coordinator, "write_batch", written)


def replays_nothing(patch: Patch) -> None:
    """After a power loss a store goes on where its rows seem to end, and what they lack stays missing (against
    H36)."""
    patch.setattr(LogReplay, "first_offset", lambda self, partition: self._store.applied(partition).offset)


def transfers_all_rows_but_one(patch: Patch) -> None:
    """A state transfer leaves out the first row of each chunk of several."""
    sound = LevelSnapshot.rows

    def rows(self: LevelSnapshot, from_offset: int, limit_bytes: int) -> Any:
        chunk = sound(self, from_offset, limit_bytes)
        found = row_codec.decode_rows(chunk.rows)[1:]
        return chunk._replace(rows=row_codec.encode(found), row_count=len(found)) if found else chunk

    patch.setattr(LevelSnapshot, "rows", rows)
