"""Deliberate defects between clusters: queues, cursors, gaps, leases, sinks, and full-sync."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from isthmus.aae.exchange import compare
from isthmus.aae.exchange import run as exchange_run
from isthmus.aae.exchange.exchange import PROVING, ExchangeVerdict
from isthmus.aae.scheduling import check, gap_healing, proofs
from isthmus.aae.scheduling.check import PeerChecker
from isthmus.aae.scheduling.gap_healing import GapHealer, GapToHeal
from isthmus.aae.scheduling.scheduler import PeerState
from isthmus.aae.trees.tree_cache import TreeCache
from isthmus.node.services.repairs import RepairQueue
from isthmus.queues import cursor_decisions, cursor_keeper, cursors, queue_documents, queue_store
from isthmus.queues.cursor_keeper import CursorKeeper
from isthmus.queues.leases import Leases
from isthmus.queues.source_queue import SourceQueue
from isthmus.queues.window import Window
from isthmus.repl.metastore.joined_document import JoinedValues
from isthmus.repl.model.entry import CHANGES, decode_key_row
from isthmus.sink import worker
from isthmus.sink.worker import Slot

Patch = pytest.MonkeyPatch

# -- sinks -------------------------------------------------------------------------------------------------------------


def acknowledges_failed_pushes(patch: Patch) -> None:
    """A sink acknowledges changes that its cluster did not store."""
    patch.setattr(worker, "failed_indexes", lambda results: ())


def leaves_out_a_change_of_a_batch(patch: Patch) -> None:
    """The first change of a batch of several is acknowledged and never pushed."""
    sound = worker.pushes
    patch.setattr(worker, "pushes", lambda items, cluster: sound(items[-1:] * len(items), cluster))


def acknowledges_before_it_pushes(patch: Patch) -> None:
    """A sink acknowledges a batch before it is stored: what a sink that ends then was given is nowhere."""
    sound = Slot._push_batch

    async def push(self: Slot, reply: Any, taken_ms: int) -> Any:
        self.fetcher.ack = worker.BatchAck(reply.batch, reply.owner_version, (), (len(reply.items), 0, 0, 0), ())
        await self.acknowledge()
        return await sound(self, reply, taken_ms)

    patch.setattr(Slot, "_push_batch", push)


# -- cursors and leases ------------------------------------------------------------------------------------------------


def settles_what_failed(patch: Patch) -> None:
    """A source takes the changes of a batch that the sink reports as failed for delivered."""
    sound = SourceQueue._settle_part

    def settle(self: SourceQueue, part: Any, failed: Any, refused: Any) -> None:
        sound(self, part, frozenset(), refused)

    patch.setattr(SourceQueue, "_settle_part", settle)


def settles_what_it_takes_back(patch: Patch) -> None:
    """The changes of a batch whose lease is over are taken for delivered."""

    def requeue(self: SourceQueue, source: Any, places: Any, items: Any) -> None:
        source.settle(places, items)

    patch.setattr(SourceQueue, "_requeue", requeue)


def begins_at_the_end_when_it_leads(patch: Patch) -> None:
    """A queue of a new leader begins behind what was applied, not at its cursor."""
    sound = SourceQueue.lead

    def lead(self: SourceQueue, partition: int, kind: bytes, position: Any, applied: int, *more: Any) -> None:
        sound(self, partition, kind, replace(position, cursor=applied), applied, *more)

    patch.setattr(SourceQueue, "lead", lead)


def moves_its_cursor_over_what_was_served(patch: Patch) -> None:
    """A cursor moves over what was served, whether it was acknowledged or not."""

    def end(self: Window) -> int:
        fresh, waiting = self._fresh, self._waiting
        while fresh and fresh[0] not in waiting:
            fresh.popleft()
        return fresh[0] if fresh else self.scan

    patch.setattr(Window, "_settled_end", end)


def keeps_leases_for_ever(patch: Patch) -> None:
    """A batch stays with a sink that is gone, also when its lease is over."""
    patch.setattr(Leases, "expired", lambda self, now_ms: [])
    patch.setattr(Leases, "not_held", lambda self, session, holding: [])


# -- gaps --------------------------------------------------------------------------------------------------------------


def takes_cleared_changes_for_excluded(patch: Patch) -> None:
    """A clear takes what it skips for what the filter leaves out, and leaves no gap."""

    async def skipped(self: CursorKeeper, window: Any, start: int) -> tuple[int, bool]:
        return 0, False

    patch.setattr(CursorKeeper, "_skipped", skipped)


def moves_cursors_without_gaps(patch: Patch) -> None:
    """What a command skips, or releases, is in no gap."""
    sound = queue_documents.execute

    def execute(state: Any, cursor: int, command: Any, *more: Any) -> Any:
        return replace(sound(state, cursor, command, *more), gaps=state.gaps)

    patch.setattr(cursor_keeper, "execute", execute)


def ends_gaps_where_they_began(patch: Patch) -> None:
    """The gap of suspended publishing ends where it began."""
    sound = cursor_decisions.ended

    def ended(gaps: Any, end: int, now_ms: int, count: int) -> Any:
        return sound(gaps, gaps[-1].start + 1, now_ms, count)

    patch.setattr(cursor_decisions, "ended", ended)


def forgets_gaps_when_it_leads(patch: Patch) -> None:
    """A new leader of a partition knows no gaps of its queues."""
    sound = cursors.position_of

    def position(rows: Any, lineage: int) -> Any:
        found = sound(rows, lineage)
        return found if found is None else replace(found, state=replace(found.state, gaps=()))

    patch.setattr(cursor_keeper, "position_of", position)


def closes_gaps_without_proof(patch: Patch) -> None:
    """A gap is closed by any check of its bucket types, whatever that found (against R-PROOF)."""
    _close_gaps_that(patch, lambda gap, peer: True)


def closes_gaps_by_clocks(patch: Patch) -> None:
    """A gap is closed by a check that began after the gap's end, by two nodes' wall clocks (against R-PROOF)."""

    def is_later(gap: GapToHeal, peer: PeerState) -> bool:
        proven = {one.bucket_type: one.began_ms for one in peer.history.results if one.verdict in PROVING}
        return all(proven.get(name, 0) >= (gap.upto_ms or 0) + gap_healing.MARGIN_MS for name in gap.bucket_types)

    _close_gaps_that(patch, is_later)


def _close_gaps_that(patch: Patch, are_closed: Callable[[GapToHeal, PeerState], bool]) -> None:
    sound = GapHealer._close_proven_of

    async def close(self: GapHealer, peer: PeerState, gaps: Sequence[GapToHeal]) -> Sequence[GapToHeal]:
        for gap in gaps:
            if gap.upto_ms is not None and gap.partition is not None and are_closed(gap, peer):
                marks = proofs.QueueMarks(gap.queue, "", frozenset())
                proof = proofs.Proof(marks, {gap.partition: proofs.ProvenOffset(gap.history, gap.end)})
                await self._gaps.close([gap], dict.fromkeys(gap.bucket_types, proof), "full-sync", "")
        return await sound(self, peer, await self._open_gaps(peer))

    patch.setattr(GapHealer, "_close_proven_of", close)


# -- full-sync ---------------------------------------------------------------------------------------------------------


def compares_only_whether_keys_are_there(patch: Patch) -> None:
    """Two rows of a key are equal whatever their clocks."""

    def equal(mine: Any, theirs: Any) -> bool:
        here, there = (row is not None and not row.tombstone for row in (mine, theirs))
        return here is there

    patch.setattr(compare, "_equal", equal)


def forgets_deletes_in_its_tree(patch: Patch) -> None:
    """A delete does not change the tree that full-sync compares."""
    sound = TreeCache._apply

    def deletes(entry: Any) -> bool:
        return entry.kind in CHANGES and bool(entry.row) and decode_key_row(entry.row).tombstone

    def apply(cached: Any, entries: Any) -> None:
        sound(cached, [entry._replace(leaf_change=0) if deletes(entry) else entry for entry in entries])

    patch.setattr(TreeCache, "_apply", staticmethod(apply))


def asks_one_way_links_for_equality(patch: Patch) -> None:
    """A check proves only equality: where the sink has keys of its own, a one-way link is never proven."""
    sound = exchange_run.run

    async def run(*args: Any, **more: Any) -> Any:
        outcome = await sound(*args, **more)
        if outcome.verdict is ExchangeVerdict.UP_TO_DATE:
            outcome.verdict = ExchangeVerdict.DIFFERING
        return outcome

    patch.setattr(check, "run", run)


def says_in_sync_where_it_repairs(patch: Patch) -> None:
    """A check that has queued its repairs says that the clusters are in sync."""
    sound = PeerChecker.check

    async def checked(self: PeerChecker, *args: Any) -> Any:
        outcome = await sound(self, *args)
        if outcome.verdict is ExchangeVerdict.REPAIRED:
            outcome.verdict = ExchangeVerdict.IN_SYNC
        return outcome

    patch.setattr(PeerChecker, "check", checked)


def repairs_only_what_is_missing(patch: Patch) -> None:
    """Full-sync sends keys that the sink lacks, and takes those that are older there for repaired."""
    sound = PeerChecker.enqueue

    async def enqueue(self: PeerChecker, bucket_type: bytes, differences: Sequence[Any]) -> Any:
        missing = [one for one in differences if one.kind is compare.DifferenceKind.MISSING]
        async for taken in sound(self, bucket_type, missing):
            yield taken
        yield len(differences) - len(missing)

    patch.setattr(PeerChecker, "enqueue", enqueue)


def drops_what_full_sync_queues(patch: Patch) -> None:
    """A queue takes the references of full-sync, and keeps none of them."""

    async def pushed(self: RepairQueue, queue: str, keys: Sequence[Any], priority: int, wait_ms: int) -> int:
        return len(keys)

    patch.setattr(RepairQueue, "_pushed", pushed)


# -- operators' documents ----------------------------------------------------------------------------------------------


def registers_with_what_was_left(patch: Patch) -> None:
    """A queue that is registered has the suspensions, limits, rates and losses of an earlier one of its name."""

    def unchanged(values: JoinedValues, documents: Any) -> JoinedValues:
        return values

    patch.setattr(queue_store, "_unset", unchanged)


# -- windows and leadership --------------------------------------------------------------------------------------------


def keeps_the_budget_of_windows_that_ended(patch: Patch) -> None:
    """What waited in a window is held against the queue's limit when the window has ended."""

    def end(self: SourceQueue, partition: int) -> None:
        window = self.windows.pop(partition, None)
        if window is not None:
            self.past_ledger.inherit(window.ledger)

    patch.setattr(SourceQueue, "_end_window", end)


def serves_partitions_that_it_led(patch: Patch) -> None:
    """A queue goes on to serve a partition whose leadership is elsewhere."""
    patch.setattr(SourceQueue, "unlead", lambda self, partition: None)


def counts_what_comes_back_as_acknowledged(patch: Patch) -> None:
    """The ledger counts a change whose lease is over as acknowledged, and once more when it is."""
    sound = Window.requeue

    def requeue(self: Window, places: Any, items: Any) -> int:
        found = sound(self, places, items)
        self.ledger.acknowledged += len(places)
        return found

    patch.setattr(Window, "requeue", requeue)
