"""Properties: valid values, effective values, and their effect on concurrent writes."""

from __future__ import annotations

import re

import pytest

from isthmus.config.bucket_properties import ABSENT, FIXED, PROPERTIES, parse_property, shown_properties
from isthmus.repl.controller.bucket_properties import effective
from isthmus.repl.model.objects import TOMBSTONE, Content, Object, merge, pushed, written
from isthmus.repl.model.properties import DEFAULTS
from isthmus.repl.model.vclock import actor_of, covers, pack_counter

EAST, WEST = actor_of(b"east-cluster-016", 0), actor_of(b"west-cluster-016", 0)
ONE = DEFAULTS._replace(allow_mult=False)
LAST = DEFAULTS._replace(last_write_wins=True)
CLOCKS_ONLY = DEFAULTS._replace(dvv_enabled=False)


def dot(number: int, actor: bytes = EAST) -> tuple[bytes, int]:
    return actor, pack_counter(1, number)


def values(obj: Object) -> set[bytes]:
    return {sibling.value for sibling in obj.siblings}


def put(current: Object | None, context: Object | None, value: bytes, number: int, **given: object) -> Object:
    """A write of `value` by one who read `context`."""
    properties = given.get("properties", DEFAULTS)
    now_ms = given.get("now_ms", 1_000 + number)
    clock = () if context is None else context.clock
    return written(current, clock, Content(value), dot(number), now_ms, properties)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "raw", "kept"),
    [
        ("allow_mult", "False", False),
        ("delete_mode", "keep", "keep"),
        ("delete_mode", "3s", 3_000),
        ("delete_mode", 3_000, 3_000),
        ("max_object_size", "5MB", 5_000_000),
        ("max_siblings", 7, 7),
        ("r", "quorum", "quorum"),
        ("pw", 2, 2),
        ("old_vclock", 86_400, 86_400),
        ("n_val", 3, None),
        ("precommit", [], None),
        ("chash_keyfun", {"mod": "riak_core_util", "fun": "chash_std_keyfun"}, None),
        ("repl", "both", None),
        ("name", "b", None),
        ("repl_reap", False, False),
        ("repl_reap", True, True),
    ],
)
def test_a_value_that_may_be_is_taken_in_every_spelling(name, raw, kept):
    """Numbers, units, words and Riak's own forms are accepted; a fixed property accepts only its actual value."""
    assert parse_property(name, raw, 3) == kept


@pytest.mark.parametrize(
    ("name", "raw", "told"),
    [
        ("allow_mul", True, 'no such property: "allow_mul"; did you mean "allow_mult"?'),
        ("allow_mult", "yes", 'allow_mult: "yes" is neither true nor false'),
        ("allow_mult", 1, "neither true nor false"),
        ("delete_mode", 0, "delete_mode: 0 is not known; allowed is keep, immediate, or 1ms to 366d"),
        ("delete_mode", "400d", "or 1ms to 366d"),
        ("max_object_size", "2TB", '"2TB" is out of range; allowed is 0B to 1TB'),
        ("max_siblings", -1, "-1 is out of range; allowed is 0 to 1000000000000"),
        ("r", "most", "one, quorum, all"),
        ("n_val", 2, "replication factor of the bucket type, 3"),
        ("precommit", [{"mod": "m"}], "commit hooks are not supported"),
        ("backend", "bitcask", "the only backend"),
        ("consistent", True, "conditional"),
        ("repl_reap", "maybe", 'repl_reap: "maybe" is neither true nor false'),
        ("linkfun", None, "link walking is not supported"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_what_would_be_right(name, raw, told):
    """An unknown property is answered by the nearest known one, a wrong value by what is allowed or why not."""
    with pytest.raises(ValueError, match=re.escape(told)):
        parse_property(name, raw, 3)


def test_shown_properties_can_be_set_back_unchanged():
    """A program that writes back the properties it read is refused nothing, and changes nothing."""
    shown = shown_properties({"allow_mult": False}, 3)
    kept = {name: parse_property(name, raw, 3) for name, raw in shown.items()}
    assert effective({name: value for name, value in kept.items() if value is not None}) == ONE
    assert shown["n_val"] == 3
    assert shown.keys() >= FIXED.keys() | PROPERTIES.keys()
    assert not shown.keys() & ABSENT.keys()


def test_nothing_set_comes_to_the_defaults():
    """The record of defaults and the table say the same; tombstones are kept and siblings are shown."""
    assert effective({}) == DEFAULTS
    assert effective({"delete_mode": "immediate"}).reap_after_ms == 0
    assert effective({"delete_mode": 5}).reap_after_ms == 5


def test_without_allow_mult_the_newest_by_last_modified_stays():
    """Concurrent writes leave one sibling: that of the later time, whichever was appended first; all dots stay
    covered."""
    first = put(None, None, b"1", 1, properties=ONE)
    later = put(first, None, b"2", 2, properties=ONE)
    assert values(later) == {b"2"}
    assert all(covers(later.clock, dot(n)) for n in (1, 2))
    skewed = put(later, None, b"3", 3, now_ms=5, properties=ONE)
    assert values(skewed) == {b"2"}, "an older time loses"
    assert covers(skewed.clock, dot(3))
    tie = written(None, (), TOMBSTONE, dot(9), 1_001, DEFAULTS)
    theirs = written(None, (), Content(b"1"), dot(1, WEST), 1_001, DEFAULTS)
    assert values(pushed(tie, theirs, dot(10), 7, ONE)) == {b"1"}, "of one moment a value wins over a tombstone"


def test_last_write_wins_replaces_what_was_never_read():
    """The write replaces all siblings, whatever its context, under a clock that covers them."""
    both = put(put(None, None, b"1", 1), None, b"2", 2)
    assert values(both) == {b"1", b"2"}
    last = put(both, None, b"3", 3, now_ms=1, properties=LAST)
    assert values(last) == {b"3"}
    assert all(covers(last.clock, dot(n)) for n in (1, 2, 3))


def test_without_dvv_a_context_that_misses_something_replaces_nothing():
    """A stale context keeps all siblings, even those it had seen; one that has seen everything replaces all."""
    first = put(None, None, b"1", 1)
    second = put(first, first, b"2", 2)
    stale = put(second, first, b"3", 3, properties=CLOCKS_ONLY)
    assert values(stale) == {b"2", b"3"}
    again = put(stale, second, b"4", 4, properties=CLOCKS_ONLY)
    assert values(again) == {b"2", b"3", b"4"}
    assert values(put(stale, second, b"4", 4)) == {b"3", b"4"}, "with dvv the one that was seen goes"
    assert values(put(again, again, b"5", 5, properties=CLOCKS_ONLY)) == {b"5"}


def test_a_merge_that_drops_a_sibling_has_a_clock_of_its_own():
    """Two clusters of different properties never hold different objects under one clock, and they converge."""
    mine = put(None, None, b"east", 1)
    theirs = written(None, (), Content(b"west"), dot(1, WEST), 2_000, DEFAULTS)
    merged = merge(mine, theirs)
    assert pushed(mine, theirs, dot(5), 9_000, DEFAULTS) == merged
    here = pushed(mine, theirs, dot(5), 9_000, ONE)
    assert values(here) == {b"west"}
    assert here.clock != merged.clock
    assert merge(here, merged) == here, "the other cluster takes what was decided"
    there = pushed(theirs, mine, dot(5, WEST), 9_000, ONE)
    end = merge(here, there)
    assert pushed(here, there, dot(6), 9_000, ONE) == end, "both decided the same: nothing is decided again"
    assert values(end) == {b"west"}


def test_a_delete_under_allow_mult_false_can_lose_to_a_later_write():
    """Tombstones take part in the choice by time as values do."""
    value = put(None, None, b"1", 1)
    gone = written(value, value.clock, TOMBSTONE, dot(2), 1_002, ONE)
    assert gone.deleted
    late = written(gone, value.clock, Content(b"2"), dot(3), 2_000, ONE)
    assert values(late) == {b"2"}
