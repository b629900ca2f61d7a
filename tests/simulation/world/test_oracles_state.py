"""Oracles about nodes' states refuse states that are wrong, and accept those that are right."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.aae.exchange.exchange import ExchangeVerdict
from isthmus.repl.model.objects import Content, Object, Sibling, encode_object, merge, write
from isthmus.repl.model.vclock import Clock, encode_clock
from isthmus.repl.store.rows import bucket_head
from tests.simulation.world.asking import Answer, NoAnswer, parsed
from tests.simulation.world.oracles_state import (
    Versions,
    lacking,
    ledger_is_open,
    unequal,
    verdict_is_wrong,
    wrong_errors,
)
from tests.support.log_watch import LoggedError

A, B = b"a" * 20, b"b" * 20
KEY, OTHER = bucket_head(b"bucket") + b"key", bucket_head(b"bucket") + b"other"


def written(actor: bytes, counter: int, before: Object | None = None, *, tombstone: bool = False) -> Object:
    """An object after a write that has seen `before`."""
    context: Clock = () if before is None else before.clock
    value = b"" if tombstone else b"%d" % counter
    return write(before, context, Content(value, tombstone=tombstone), (actor, counter), 1000 * counter)


ONE = written(A, 1)
TWO = written(A, 2, ONE)
BESIDE = written(B, 1)
GONE = written(A, 3, TWO, tombstone=True)
GONE_THERE = written(B, 3, TWO, tombstone=True)


def encoded(**objects: Object) -> dict[bytes, bytes]:
    """The objects of `key` and `other`, by encoded name."""
    return {bucket_head(b"bucket") + name.encode(): encode_object(one) for name, one in objects.items()}


def every(_tail: bytes) -> bool:
    """All keys are carried."""
    return True


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (encoded(key=ONE), encoded(key=TWO)),
        (encoded(key=ONE), encoded(key=BESIDE)),
        (encoded(key=ONE), {}),
        ({}, encoded(key=ONE)),
        (encoded(key=ONE), encoded(key=GONE)),
        (encoded(key=ONE), encoded(key=ONE._replace(siblings=(ONE.siblings[0]._replace(value=b"x"),)))),
    ],
)
def test_objects_that_differ_by_any_byte_are_unequal(one: dict[bytes, bytes], other: dict[bytes, bytes]) -> None:
    """An older, a concurrent, a missing, a deleted or a changed object is named, whichever side has it."""
    assert unequal(one, other, every) == unequal(other, one, every) == [KEY]


def test_a_deleted_key_equals_one_that_is_absent() -> None:
    """Tombstones of any clock, reaped or not, are equal; a key that is not carried is not compared."""
    assert unequal(encoded(key=GONE), {}, every) == []
    assert unequal(encoded(key=GONE), encoded(key=GONE_THERE), every) == []
    assert unequal(encoded(key=ONE, other=ONE), encoded(other=TWO), lambda tail: tail == KEY) == [KEY]


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (encoded(key=TWO), encoded(key=ONE)),
        (encoded(key=TWO), {}),
        (encoded(key=ONE), encoded(key=BESIDE)),
        (encoded(key=GONE), encoded(key=ONE)),
        (encoded(key=ONE), encoded(key=ONE._replace(siblings=(ONE.siblings[0]._replace(value=b"x"),)))),
    ],
)
def test_a_sink_that_is_not_up_to_date_is_named(here: dict[bytes, bytes], there: dict[bytes, bytes]) -> None:
    """Older, missing, concurrent, not deleted, and another object under the same clock."""
    assert lacking(here, there, every, {}) == [KEY]


def test_a_sink_may_have_newer_objects_keys_of_its_own_and_reaped_ones() -> None:
    """What descends the source's object is up to date, as is a newer tombstone that was reaped there."""
    merged = merge(ONE, BESIDE)
    assert lacking(encoded(key=ONE), encoded(key=merged, other=TWO), every, {}) == []
    assert lacking(encoded(key=GONE), {}, every, {}) == []
    name = (b"bucket", b"key")
    assert lacking(encoded(key=TWO), {}, every, {name: encode_clock(GONE.clock)}) == []
    assert lacking(encoded(key=TWO), {}, every, {name: encode_clock(ONE.clock)}) == [KEY]


@pytest.mark.parametrize(
    ("verdict", "facts", "wrong"),
    [
        (ExchangeVerdict.IN_SYNC, (True, True, True), False),
        (ExchangeVerdict.IN_SYNC, (True, False, False), True),
        (ExchangeVerdict.UP_TO_DATE, (True, False, False), False),
        (ExchangeVerdict.UP_TO_DATE, (False, False, False), True),
        (ExchangeVerdict.UP_TO_DATE, (True, True, True), True),
        (ExchangeVerdict.DIFFERING, (True, True, True), True),
        (ExchangeVerdict.DIFFERING, (False, False, False), False),
    ],
)
def test_full_sync_says_in_sync_if_and_only_if_it_is_so(
    verdict: ExchangeVerdict, facts: tuple[bool, bool, bool], wrong: bool
) -> None:
    """facts: up to date, equal in what is carried, equal in all keys."""
    up_to_date, equal, every_key_equal = facts
    found = verdict_is_wrong(verdict, up_to_date=up_to_date, equal=equal, every_key_equal=every_key_equal)
    assert bool(found) is wrong


def test_a_version_with_two_contents_is_found_in_different_clusters() -> None:
    """The same dot with another value, or another time, is named once for each place; equal objects are not."""
    versions = Versions()
    versions.note(encode_object(ONE), "east-1")
    versions.note(encode_object(ONE), "west-1")
    versions.note(encode_object(merge(ONE, BESIDE)), "west-1")
    assert not versions.failures
    other = Sibling((A, 1), 1000, False, b"another")
    versions.note(encode_object(Object(ONE.clock, (other,))), "west-2")
    assert len(versions.failures) == 1
    assert "west-2" in versions.failures[0]


def test_a_ledger_that_is_open_at_quiet_is_named() -> None:
    """A ledger that does not close, waits or flies is wrong; one that closes, or that is not known, is not."""
    calm: dict[str, Any] = {"closes": True, "waiting": 0, "in_flight": 0}
    assert ledger_is_open("q", calm) == []
    assert ledger_is_open("q", {**calm, "closes": None}) == []
    assert len(ledger_is_open("q", {**calm, "closes": False})) == 1
    assert len(ledger_is_open("q", {**calm, "waiting": 1})) == 1
    assert len(ledger_is_open("q", {**calm, "in_flight": 2})) == 1


def test_unforeseen_errors_are_never_allowed_and_named_ones_only_in_faults() -> None:
    """An unforeseen exception is wrong at all times, an error with a name in calm times."""
    errors = [("east-1", LoggedError("storage.full", False, "")), ("east-2", LoggedError("queue.bug", True, ""))]
    assert len(wrong_errors(errors, calm=True)) == 2
    assert len(wrong_errors(errors, calm=False)) == 1


def test_an_answer_is_parsed_whole_or_not_at_all() -> None:
    """Status and JSON of a whole answer; a cut one, another protocol and another format are no answers."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n"
    assert parsed(head + b'{"a": 1}') == Answer(200, {"a": 1})
    for wrong in (b"", b"HTTP/1.1", head + b'{"a"', b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n<html>"):
        with pytest.raises(NoAnswer):
            parsed(wrong)
