"""Filters applied to whole bucket types: laws relative to the answer for one bucket."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.queues.filters import parse_filter

RULES = ["buckettype:a", "buckettype:b", "bucketname:x", "bucketname:y", "bucketprefix:x"]
TYPES = [b"a", b"b", b"c"]
BUCKETS = [b"x", b"y", b"xz", b"other"]

plain = st.lists(st.sampled_from(RULES), min_size=1, max_size=3)
negated = st.lists(st.sampled_from([f"!{rule}" for rule in RULES]), min_size=1, max_size=3)
filters = st.one_of(
    st.just("any"), st.just("block_rtq"), plain.map(", ".join), negated.map(", ".join),
    negated.map(lambda rules: ", ".join(["any", *rules])),
    st.tuples(plain, negated).map(lambda both: ", ".join([*both[0], *both[1]])),
).map(parse_filter)  # fmt: skip


@given(filters, filters, st.sampled_from(TYPES))
def test_types_are_judged_as_all_their_buckets_are(one, other, bucket_type) -> None:  # type: ignore[no-untyped-def]
    """A type may be offered if some bucket of it is; repairs of a whole type are accepted only if those of every bucket
    are; a filter covers another one only if it includes each bucket whose repairs or changes the other includes."""
    offered = [one.includes(bucket_type, bucket) for bucket in BUCKETS]
    assert one.includes_some(bucket_type) >= any(offered)
    if one.accepts_all_repairs(bucket_type):
        assert one.blocks or all(offered)
    if one.accepts_all_repairs_of(other, bucket_type):
        for bucket in BUCKETS:
            theirs = other.blocks or other.includes(bucket_type, bucket)
            assert one.blocks or one.includes(bucket_type, bucket) or not theirs


def test_usual_filters_cover_each_other_as_operators_expect() -> None:
    """A queue for repairs alone, and one for everything, cover each real-time queue; a filter by bucket covers those
    that let out no other bucket; a type that the other queue excludes cannot be missing."""
    cover = {
        ("block_rtq", "any"): True,
        ("any", "bucketname:x"): True,
        ("bucketname:x", "any"): False,
        ("bucketname:x", "bucketname:x"): True,
        ("bucketname:x, bucketname:y", "bucketname:y, bucketname:x"): True,
        ("bucketprefix:x", "bucketname:xy"): True,
        ("bucketname:xy", "bucketprefix:x"): False,
        ("bucketname:x", "block_rtq"): False,
        ("any, !bucketname:x", "!bucketname:x"): True,
        ("!bucketname:x", "!bucketprefix:x"): True,
        ("bucketname:x", "buckettype:b"): True,
        ("buckettype:a", "any"): True,
        ("!bucketname:x", "any"): False,
        ("!buckettype:b", "any"): True,
        ("!buckettype:a", "any"): False,
    }
    for (one, other), covers in cover.items():
        assert parse_filter(one).accepts_all_repairs_of(parse_filter(other), b"a") is covers, (one, other)
    assert not parse_filter("any, !buckettype:a").includes_some(b"a")
    assert parse_filter("bucketname:x").includes_some(b"a")
    assert not parse_filter("block_rtq").includes_some(b"a")
    assert parse_filter("block_rtq").accepts_some_repairs(b"a")
