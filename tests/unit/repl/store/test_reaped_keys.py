"""The memory of reaped keys: what is remembered, and what goes when there are too many (R-REAP)."""

from __future__ import annotations

import pytest

from isthmus.repl.model.objects import TOMBSTONE, Content, Object, merge, write
from isthmus.repl.model.vclock import actor_of, decode_clock, descends, increment, pack_counter
from isthmus.repl.store import reaped_keys
from isthmus.repl.store.reaped_keys import ReapedKeys
from isthmus.repl.store.reaped_pushes import REFUSED_MAX, ReapedPushes, gone_with

EAST, WEST = actor_of(b"east-cluster-016", 0), actor_of(b"west-cluster-016", 0)


def a_dot(actor: bytes, number: int) -> tuple[bytes, int]:
    return actor, pack_counter(1, number)


def test_a_key_that_was_reaped_again_is_remembered_by_its_newer_tombstone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is reaped, written, deleted and reaped once more. When the row of its first reap is forgotten, the newer
    clock stays: late values that the second tombstone has seen still restore nothing."""
    monkeypatch.setattr(reaped_keys, "REMEMBERED_MAX", 3)
    window = ReapedKeys()
    assert window.add(1, b"b", b"k", b"first") == []
    assert window.add(2, b"b", b"other", b"x") == []
    assert window.add(3, b"b", b"k", b"second") == []
    assert window.add(4, b"b", b"third", b"y") == [1]
    assert window.clocks == {(b"b", b"other"): b"x", (b"b", b"k"): b"second", (b"b", b"third"): b"y"}
    assert window.add(5, b"b", b"fourth", b"z") == [2]
    assert window.add(6, b"b", b"fifth", b"z") == [3]
    assert (b"b", b"k") not in window.clocks


def test_a_tombstone_with_one_delete_more_is_remembered() -> None:
    """Two clusters deleted the key, each without the other's delete: their tombstones merge to two siblings. One
    that is known does not hide that the other is not."""
    value = write(None, (), Content(b"v"), a_dot(EAST, 1), 1)
    ours = write(value, value.clock, TOMBSTONE, a_dot(EAST, 2), 2)
    theirs = write(value, value.clock, TOMBSTONE, a_dot(WEST, 1), 2)
    both = merge(ours, theirs)
    assert len(both.siblings) == 2
    assert gone_with(both.clock, both) is None
    seen = gone_with(ours.clock, both)
    assert seen is not None
    assert descends(decode_clock(seen), theirs.clock)


def test_a_second_delete_keeps_what_the_first_one_had_seen() -> None:
    """The clocks of a key's deletes are merged: a value that only the first tombstone had seen stays deleted."""
    first = increment((), *a_dot(EAST, 1), 1)
    second = write(None, (), TOMBSTONE, a_dot(WEST, 1), 2)
    seen = gone_with(first, second)
    assert seen is not None
    assert descends(decode_clock(seen), first)
    assert descends(decode_clock(seen), second.clock)
    restated = Object(increment(second.clock, *a_dot(EAST, 5), 3), second.siblings)
    assert gone_with(decode_clock(seen), restated) is None, "a restated tombstone is no other delete"


def test_each_push_is_refused_once_whatever_was_refused_before() -> None:
    """Keys and objects are told apart, and the oldest is forgotten beyond the limit."""
    pushes = ReapedPushes()
    assert [pushes.comes_again(1, 10), pushes.comes_again(2, 10), pushes.comes_again(1, 11)] == [False] * 3
    assert [pushes.comes_again(2, 10), pushes.comes_again(1, 11), pushes.comes_again(1, 10)] == [True] * 3
    assert not pushes.comes_again(1, 10), "it was accepted, and another one is refused again"
    for key_hash in range(100, 100 + REFUSED_MAX):
        assert not pushes.comes_again(key_hash, 10)
    assert not pushes.comes_again(1, 10)
