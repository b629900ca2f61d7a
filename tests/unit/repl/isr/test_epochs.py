"""Sets of members, and tables of epochs."""

from __future__ import annotations

import pytest

from isthmus.repl.isr.epochs import common_prefix, last_epoch, with_epoch
from isthmus.repl.isr.membership import drop_members, guard, maximal_isr, too_few_in_sync
from isthmus.repl.model.record import Member
from tests.support.replica_builders import a_record, some_entries, table_of

A, B, C = Member("a", 1), Member("b", 2), Member("c", 3)


def test_a_commit_needs_members_that_a_pending_write_may_add() -> None:
    """R-MAX: the proposed member counts from the request on; min-ISR is tested on the confirmed ISR."""
    record = a_record(replicas=("a", "b"), isr=frozenset({A}), min_isr=2)
    assert maximal_isr(record, frozenset()) == {A}
    assert maximal_isr(record, frozenset({A, B})) == {A, B}
    assert too_few_in_sync(record)


@pytest.mark.parametrize(
    ("in_sync", "replica_count", "min_isr", "too_few"),
    [(1, 1, 1, False), (1, 1, 3, False), (1, 2, 2, True), (2, 3, 2, False), (2, 3, 5, True), (0, 3, 0, True)],
)
def test_min_isr_is_clamped_to_one_and_to_the_replication_factor(
    in_sync: int, replica_count: int, min_isr: int, too_few: bool
) -> None:
    """An empty ISR is always too small; no more members than replicas are ever required."""
    isr = frozenset([A, B, C][:in_sync])
    assert too_few_in_sync(a_record(replicas=tuple("abc"[:replica_count]), isr=isr, min_isr=min_isr)) is too_few


def test_a_member_that_leaves_below_min_isr_stays_electable() -> None:
    """The last replica in sync is not alone in the guard (H9, R-ELR)."""
    record = a_record(replicas=("a", "b", "c"), isr=frozenset({A, B, C}), min_isr=2)
    first = drop_members(record, frozenset({C}))
    assert (first.isr, first.elr) == ({A, B}, frozenset())
    second = drop_members(first, frozenset({B, C}))
    assert (second.isr, second.elr, guard(second)) == ({A}, {B}, {A, B})


def test_the_table_follows_from_the_entries() -> None:
    """Each epoch's first offset, also when the scan begins amid an epoch."""
    entries = some_entries(2, 0, 3) + some_entries(5, 3, 1) + some_entries(6, 4, 2)
    assert table_of(entries) == ((2, 0), (5, 3), (6, 4))
    assert table_of(entries[1:]) == ((2, 1), (5, 3), (6, 4))
    assert last_epoch(table_of(entries)) == 6
    assert last_epoch(()) == 0


def test_an_epoch_begins_once_and_above_the_last() -> None:
    """A table that would not ascend in both columns is a bug."""
    assert with_epoch(((2, 0),), 3, 7) == ((2, 0), (3, 7))
    for epoch, offset in ((2, 7), (1, 7), (3, 0)):
        with pytest.raises(AssertionError):
            with_epoch(((2, 0),), epoch, offset)


def test_logs_agree_up_to_where_an_epoch_ends_or_begins_differently() -> None:
    """They agree up to the end of the newest epoch that both began at the same offset, in whichever log it ends
    first."""
    assert common_prefix(((1, 0), (2, 10)), 20, ((1, 0), (3, 10)), 15) == 10
    assert common_prefix(((1, 0), (2, 10)), 20, ((1, 0),), 7) == 7
    assert common_prefix(((1, 0), (2, 10)), 20, ((1, 0), (2, 10), (4, 25)), 30) == 20
    assert common_prefix(((1, 0),), 5, ((2, 0),), 5) == 0
    assert common_prefix((), 0, ((2, 0),), 5) == 0


def test_where_logs_agree_does_not_depend_on_what_was_trimmed() -> None:
    """Tables that begin anywhere at or below the row of the divergence give the same result as whole ones."""
    mine, theirs = ((1, 0), (2, 10), (4, 30), (6, 50)), ((1, 0), (2, 10), (4, 30), (5, 44))
    whole = common_prefix(mine, 60, theirs, 70)
    assert whole == 44
    for my_first in range(3):
        for their_first in range(3):
            assert common_prefix(mine[my_first:], 60, theirs[their_first:], 70) == whole
    assert common_prefix(mine[2:], 60, mine[:2], 25) == 0  # one ends before the other begins
