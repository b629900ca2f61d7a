"""Deliberate defects between parts of the product, each of which the world must find.

Each is a function that puts the defect in by patching the product's class; its first line names the wrong behaviour and
the rule that it breaks. `MUTANTS` says within which seeds it is found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from isthmus.repl.coordinator import write_batch
from isthmus.repl.coordinator.write_batch import WriteBatch
from isthmus.repl.isr.leader import Leader
from isthmus.repl.model import objects
from isthmus.repl.model.objects import Object
from isthmus.sink import worker

Patch = pytest.MonkeyPatch

# -- versions ----------------------------------------------------------------------------------------------------------


def pushes_replace(patch: Patch) -> None:
    """A push replaces the stored object, whatever its author had seen."""
    patch.setattr(write_batch, "pushed", lambda current, theirs, *_: theirs)


def writes_replace_what_they_have_not_seen(patch: Patch) -> None:
    """A client's write drops siblings that its context does not cover."""
    sound = objects.write

    def write(current: Object | None, context: Any, content: Any, dot: Any, now_ms: int) -> Object:
        made = sound(current, context, content, dot, now_ms)
        return Object(made.clock, made.siblings[-1:])

    patch.setattr(objects, "write", write)


def forgets_requests(patch: Patch) -> None:
    """A request that is sent again is done again (against exactly-once by request id)."""
    patch.setattr(WriteBatch, "_request_offset", lambda self, request_id, hash64: None)


def ignores_conditions(patch: Patch) -> None:
    """A conditional write is done whether its condition holds or not."""
    patch.setattr(WriteBatch, "_failed_condition", lambda self, condition, current, key: None)


# -- inside a cluster --------------------------------------------------------------------------------------------------


def commits_what_is_durable_here(patch: Patch) -> None:
    """A leader commits what it has on disk, without its followers."""
    patch.setattr(Leader, "committed_end", lambda self, record, durable: durable)


# -- between clusters --------------------------------------------------------------------------------------------------


def acknowledges_failed_pushes(patch: Patch) -> None:
    """A sink acknowledges changes that its cluster did not store."""
    patch.setattr(worker, "failed_indexes", lambda results: ())


def leaves_out_a_change_of_a_batch(patch: Patch) -> None:
    """The first change of a batch of several is acknowledged and never pushed."""
    sound = worker.pushes
    patch.setattr(worker, "pushes", lambda items, cluster: sound(items[-1:] * len(items), cluster))


class Mutant(NamedTuple):
    """A defect, and how the world finds it."""

    put_in: Callable[[Patch], None]
    seeds: tuple[int, ...]
    """The first of these that shows it is enough."""
    quick: bool = False
    """Also in quick runs."""


MUTANTS: tuple[Mutant, ...] = (
    Mutant(pushes_replace, (0,), quick=True),
    Mutant(writes_replace_what_they_have_not_seen, (0,), quick=True),
    Mutant(forgets_requests, (0,), quick=True),
    Mutant(ignores_conditions, (0,), quick=True),
    Mutant(leaves_out_a_change_of_a_batch, (0,), quick=True),
    Mutant(acknowledges_failed_pushes, (0, 1, 2)),
    Mutant(commits_what_is_durable_here, (0, 1)),
)
