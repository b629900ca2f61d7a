"""The properties of a change that a queue evaluates: its filter, and whether it is a tombstone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.queues.filters import includes_more, parse_filter
from isthmus.repl.model.entry import decode_key_row, encode_key_row, row_is_tombstone
from isthmus.repl.model.errors import BadConfig
from isthmus.repl.model.objects import Content, Summary, decode_object, encode_with_summary, is_deleted_object, write
from tests.support.samples import share


def test_only_known_filters_are_taken() -> None:
    """An unknown or empty filter is refused with a message that lists the valid ones."""
    assert parse_filter("any").everything
    assert str(parse_filter("any")) == "any"
    for wrong in ("bucket:x", "", "bucketname:", "!any", "block_rtq, any", "any, bucketname:b", "bucketname:a,,"):
        with pytest.raises(BadConfig, match=r"bucketname:B|stands alone|negations"):
            parse_filter(wrong)


@pytest.mark.parametrize(
    ("text", "bucket_type", "bucket", "offered", "rule"),
    [
        ("any", b"t", b"b", True, "any"),
        ("block_rtq", b"t", b"b", False, "block_rtq"),
        ("buckettype:t", b"t", b"b", True, "buckettype:t"),
        ("buckettype:t", b"u", b"b", False, None),
        ("bucketname:b", b"u", b"b", True, "bucketname:b"),
        ("bucketprefix:lo", b"t", b"logs", True, "bucketprefix:lo"),
        ("bucketprefix:lo, bucketname:x", b"t", b"x", True, "bucketname:x"),
        ("!bucketname:b", b"t", b"b", False, "!bucketname:b"),
        ("!bucketname:b", b"t", b"c", True, None),
        ("buckettype:t, !bucketprefix:tmp", b"t", b"tmp1", False, "!bucketprefix:tmp"),
        ("any, !buckettype:t", b"t", b"b", False, "!buckettype:t"),
        ("bucketname:a%2Cb", b"t", b"a,b", True, "bucketname:a%2Cb"),
    ],
)
def test_a_filter_reports_what_it_offers_and_by_which_rule(
    text: str, bucket_type: bytes, bucket: bytes, offered: bool, rule: str | None
) -> None:
    """A matching negation decides first, then any matching rule; with negations alone, all other buckets are
    included."""
    decision = parse_filter(text).decide(bucket_type, bucket)
    assert decision.included is offered
    assert (None if decision.rule is None else str(decision.rule)) == rule
    assert parse_filter(str(parse_filter(text))) == parse_filter(text)


@settings(max_examples=share(200), deadline=None, derandomize=True)
@given(st.binary(max_size=40), st.booleans(), st.integers(0, (1 << 44) - 1), st.integers(0, 1 << 40))
def test_the_tombstone_flag_of_a_row_is_found_without_decoding(
    clock: bytes, tombstone: bool, offset: int, size: int
) -> None:
    """The peek and the decoder agree for every offset."""
    row = encode_key_row(Summary(clock, 1 << 63, 1_700_000_000_000, size, 1, tombstone), offset)
    assert row_is_tombstone(row, offset) is decode_key_row(row).tombstone is tombstone


def test_a_deleted_object_is_recognized_from_its_bytes() -> None:
    """The check of an object's encoded bytes agrees with the decoder."""
    for content in (Content(b""), Content(b"x" * 1000), Content(b"", tombstone=True)):
        data, _ = encode_with_summary(write(None, (), content, (b"a" * 20, 5), 1))
        assert is_deleted_object(data) is decode_object(data).deleted is content.tombstone


@pytest.mark.parametrize(
    ("before", "now", "more"),
    [
        ("any", "any", False),
        ("any", "bucketname:a", False),
        ("bucketname:a", "any", True),
        ("bucketname:a", "bucketname:a, bucketname:b", True),
        ("bucketprefix:a", "bucketname:ab", False),
        ("bucketname:ab", "bucketprefix:a", True),
        ("any", "!bucketname:a", False),
        ("!bucketname:a", "any", True),
        ("!bucketname:a, !bucketname:b", "!bucketname:a", True),
        ("!bucketname:ab", "!bucketprefix:a", False),
        ("block_rtq", "any", True),
        ("any", "block_rtq", False),
        ("buckettype:t", "any", False),
        ("buckettype:u", "any", True),
        ("any", "buckettype:u", False),
        ("!buckettype:t", "any", True),
    ],
)
def test_filters_are_compared_by_their_rules(before: str, now: str, more: bool) -> None:
    """For bucket type t, only a filter that certainly includes the same or less counts as not more."""
    assert includes_more(parse_filter(now), parse_filter(before), b"t") is more
    buckets = (b"a", b"b", b"ab", b"abc", b"z")
    if not more:
        offered = [b for b in buckets if parse_filter(now).includes(b"t", b)]
        assert all(parse_filter(before).includes(b"t", b) for b in offered)
