"""Deliberate defects of versions: merges, contexts, conditions, request ids, actors, and deletes that are reaped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from isthmus.client.operations import Operations
from isthmus.node.admin_api import unsafe_recovery
from isthmus.queues.tombstone_barrier import TombstoneBarrier
from isthmus.repl.coordinator import write_batch
from isthmus.repl.coordinator.tombstone_recall import TombstoneRecall
from isthmus.repl.coordinator.tombstone_writes import ReapBatch
from isthmus.repl.coordinator.write_batch import CurrentVersion, Decision, WriteBatch
from isthmus.repl.isr.epochs import epoch_at
from isthmus.repl.model import objects
from isthmus.repl.model.entry import KeyRow
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Object
from isthmus.repl.model.properties import Properties
from isthmus.repl.runtime import actor_renewal
from isthmus.repl.store.reaped_keys import ReapedKeys
from isthmus.repl.store.request_dedup import RequestWindow
from isthmus.sink.counter_exchange import CounterExchange

Patch = pytest.MonkeyPatch

# -- merges ------------------------------------------------------------------------------------------------------------


def pushes_replace(patch: Patch) -> None:
    """A push replaces the stored object, whatever its author had seen."""
    patch.setattr(write_batch, "pushed", lambda current, theirs, *_: theirs)


def pushes_know_no_properties(patch: Patch) -> None:
    """A push keeps siblings also in buckets that keep the newest alone."""
    patch.setattr(write_batch, "pushed", lambda current, theirs, *_: objects.merge(current, theirs))


def keeps_what_it_had(patch: Patch) -> None:
    """Where the newest of two objects is to stay alone, each cluster keeps its own under the merge's clock."""
    sound = objects.pushed

    def pushed(current: Object, theirs: Object, dot: Any, now_ms: int, properties: Properties) -> Object:
        if properties.allow_mult and not properties.last_write_wins:
            return sound(current, theirs, dot, now_ms, properties)
        return Object(objects.merge(current, theirs).clock, current.siblings[:1])

    patch.setattr(write_batch, "pushed", pushed)


def writes_replace_what_they_have_not_seen(patch: Patch) -> None:
    """A client's write drops siblings that its context does not cover, also those that came from another cluster."""
    sound = objects.write

    def write(current: Object | None, context: Any, content: Any, dot: Any, now_ms: int) -> Object:
        made = sound(current, context, content, dot, now_ms)
        return Object(made.clock, made.siblings[-1:])

    patch.setattr(objects, "write", write)


# -- requests and conditions -------------------------------------------------------------------------------------------


def forgets_requests(patch: Patch) -> None:
    """A request that is sent again is done again (against exactly-once by request id)."""
    patch.setattr(WriteBatch, "_request_offset", lambda self, request_id, hash64: None)


def forgets_requests_of_earlier_leaders(patch: Patch) -> None:
    """A new leader knows only the request ids of its own epoch: a write that is sent again after a hand-over is done
    again."""
    sound = WriteBatch._request_offset

    def offset(self: WriteBatch, request_id: bytes, hash64: int) -> int | None:
        found = sound(self, request_id, hash64)
        if found is None or found >= self.partition.replica.leo:
            return found
        return found if epoch_at(self.partition.replica.epoch_table, found) == self.epoch else None

    patch.setattr(WriteBatch, "_request_offset", offset)


def remembers_only_requests_under_way(patch: Patch) -> None:
    """The store remembers no request ids: those of applied entries are not known."""
    patch.setattr(RequestWindow, "offset_of", lambda self, name: None)


def answers_repeated_requests_at_once(patch: Patch) -> None:
    """A request that is sent again is answered before what it is answered with is committed (against R-WAIT)."""
    sound = WriteBatch._answer_repeated

    def answer(self: WriteBatch, found: int, current: CurrentVersion | None, key: Key) -> Decision:
        return sound(self, found, current, key)[0], 0

    patch.setattr(WriteBatch, "_answer_repeated", answer)


def ignores_conditions(patch: Patch) -> None:
    """A conditional write is done whether its condition holds or not."""
    patch.setattr(WriteBatch, "_failed_condition", lambda self, condition, current, key: None)


def client_names_all_writes_alike(patch: Patch) -> None:
    """The Python client gives all its writes one request id: later ones of a key are taken for the first, sent
    again."""
    patch.setattr(Operations, "request_id", lambda self, given: given or "client")


# -- actors ------------------------------------------------------------------------------------------------------------


def keeps_its_actor_when_it_goes_back(patch: Patch) -> None:
    """A partition that was restored, whose leader was forced, or that other clusters saw ahead, goes on with its old
    actor (against R-ACTOR)."""
    patch.setattr(unsafe_recovery, "new_incarnation", lambda: 0)
    patch.setattr(actor_renewal, "new_incarnation", lambda: 0)
    patch.setattr(CounterExchange, "due", lambda self, link: False)


# -- deletes -----------------------------------------------------------------------------------------------------------


def reaps_before_it_is_acknowledged(patch: Patch) -> None:
    """A tombstone is reaped although a queue still waits to offer it (against R-REAP)."""
    patch.setattr(TombstoneBarrier, "blocked_by", lambda self, *_: "")


def forgets_what_it_has_reaped(patch: Patch) -> None:
    """The clock of a reaped tombstone is not remembered: a late push brings its value back (against R-REAP)."""
    patch.setattr(ReapedKeys, "add", lambda self, *_: [])


def writes_below_what_was_reaped(patch: Patch) -> None:
    """A write of a reaped key does not begin above its tombstone's clock."""
    patch.setattr(WriteBatch, "reaped_clock", lambda self, name: ())


def recalls_nothing(patch: Patch) -> None:
    """Full-sync cannot write a reaped tombstone again: a value that another cluster still holds stays there (against
    R-REAP)."""

    async def none(self: TombstoneRecall, keys: Sequence[Key]) -> set[Key]:
        return set()

    patch.setattr(TombstoneRecall, "recall", none)


def reaps_what_was_rewritten(patch: Patch) -> None:
    """A tombstone that is due is reaped although its key was written again meanwhile (against R-REAP)."""

    def tombstone(self: ReapBatch, key: Key, hash64: int, offset: int) -> KeyRow | None:
        current = self.batch.current(hash64, key.bucket, key.key)
        return None if current is None else current.row

    patch.setattr(ReapBatch, "_tombstone", tombstone)
