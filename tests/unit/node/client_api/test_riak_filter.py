"""The filter of Riak's folds: what Riak's clients send is understood; anything else is refused with what is wrong."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from isthmus.aae.folds.folds import FoldScope, RiakSegments
from isthmus.node.client_api.riak_filter import SEGMENTS_MAX, parse_filter
from isthmus.node.http.responses import RequestRefused

ALL = FoldScope(b"b")


def encoded(document: Any) -> str:
    """A filter as a client sends it."""
    return b64encode(json.dumps(document).encode()).decode()


@pytest.mark.parametrize(
    ("document", "scope", "acts"),
    [
        ({}, ALL, False),
        ({"key_range": "all", "date_range": "all", "segment_filter": "all"}, ALL, False),
        ({"key_range": {"start": "a", "end": "c"}}, ALL._replace(key_from=b"a", key_to=b"c\0"), False),
        ({"key_range": {"start": "", "end": "é"}}, ALL._replace(key_to="é\0".encode()), False),
        ({"key_range": {"start": "a", "end": "a"}}, ALL._replace(key_from=b"a", key_to=b"a\0"), False),
        ({"date_range": {"start": 0, "end": 0}}, ALL._replace(before_ms=1_000), False),
        ({"date_range": {"start": 7, "end": 9}}, ALL._replace(since_ms=7_000, before_ms=10_000), False),
        (
            {"segment_filter": {"segments": [1, 0xFFFFF], "tree_size": "large"}},
            ALL._replace(riak_segments=RiakSegments(20, (1, 0xFFFFF))),
            False,
        ),
        (
            {"segment_filter": {"segments": [7], "tree_size": [*b"large"]}},
            ALL._replace(riak_segments=RiakSegments(20, (7,))),
            False,
        ),
        (
            {"segment_filter": {"tree_size": "xxsmall", "segments": []}},
            ALL._replace(riak_segments=RiakSegments(12, ())),
            False,
        ),
        ({"hash_iv": 3}, ALL, False),
        ({"change_method": "count"}, ALL, False),
        ({"change_method": "local"}, ALL, True),
        ({"change_method": {"job_id": 1}}, ALL, True),
    ],
    ids=str,
)
def test_what_riaks_clients_send_is_understood(document: Any, scope: FoldScope, acts: bool) -> None:
    """Ranges of keys and of seconds have their last one, too; without a change_method nothing is changed."""
    found = parse_filter(encoded(document), b"b")
    assert (found.scope, found.acts, found.document) == (scope, acts, document)
    assert found.scope.bucket == b"b"


def test_a_plus_that_was_not_escaped_is_one() -> None:
    """Riak's client for Erlang puts base64 into the URL as it is, where a "+" stands for a space."""
    text = next(text for n in range(200) if "+" in (text := encoded({"key_range": {"start": "a", "end": "~" * n}})))
    assert parse_filter(text.replace("+", " "), b"b") == parse_filter(text, b"b")
    assert parse_filter(None, b"b").scope == ALL


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "is no JSON object"),
        (None, "is no JSON object"),
        ({"key_rnge": "all"}, 'no such member of a filter: "key_rnge"; did you mean "key_range"?'),
        ({"by": 1}, "known here: change_method, date_range, hash_iv, key_range, segment_filter"),
        ({"key_range": ["a", "b"]}, "key_range must be an object of start and end"),
        ({"key_range": {"start": "a"}}, "key_range must be an object of start and end"),
        ({"key_range": {"start": "a", "end": "b", "more": 1}}, "key_range must be an object of start and end"),
        ({"key_range": {"start": "a", "end": 7}}, "key_range must have start and end, two texts"),
        ({"key_range": {"start": "b", "end": "a"}}, 'start "b" is behind end "a"'),
        ({"key_range": {"start": "a", "end": "\ud800"}}, "key_range: a text is not Unicode"),
        ({"date_range": 5}, "date_range must be an object of start and end"),
        ({"date_range": {"start": 1.5, "end": 2}}, "two whole numbers of seconds"),
        ({"date_range": {"start": True, "end": 2}}, "two whole numbers of seconds"),
        ({"date_range": {"start": -1, "end": 2}}, "two whole numbers of seconds"),
        ({"date_range": {"start": 0, "end": 10**15}}, "two whole numbers of seconds"),
        ({"date_range": {"start": 3, "end": 2}}, "start 3 is later than end 2"),
        ({"segment_filter": [1]}, "segment_filter must be an object of segments and tree_size"),
        ({"segment_filter": {"segments": [1], "tree_size": "huge"}}, "tree_size must be one of xxsmall, xsmall"),
        ({"segment_filter": {"segments": [1], "tree_size": [*b"huge"]}}, "tree_size must be one of xxsmall, xsmall"),
        ({"segment_filter": {"segments": [1], "tree_size": [300]}}, "tree_size must be one of xxsmall, xsmall"),
        ({"segment_filter": {"segments": [1], "tree_size": []}}, "tree_size must be one of xxsmall, xsmall"),
        ({"segment_filter": {"segments": 1, "tree_size": "large"}}, "a list of whole numbers below 1048576"),
        ({"segment_filter": {"segments": ["1"], "tree_size": "large"}}, "a list of whole numbers below 1048576"),
        ({"segment_filter": {"segments": [1 << 16], "tree_size": "small"}}, "below 65536, as a tree small has"),
        ({"segment_filter": {"segments": [1] * (SEGMENTS_MAX + 1), "tree_size": "large"}}, "10000 are the most"),
        ({"hash_iv": "x"}, "hash_iv must be a whole number"),
        ({"change_method": "locally"}, 'change_method must be "count", "local" or'),
        ({"change_method": True}, 'change_method must be "count", "local" or'),
        ({"change_method": {"job_id": 0}}, 'change_method must be "count", "local" or'),
        ({"change_method": {"job_id": 1, "more": 2}}, 'change_method must be "count", "local" or'),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_in_a_filter_is_named(document: Any, words: str) -> None:
    """A filter that cannot be meant refuses the fold, with a sentence; nothing in it is ignored."""
    with pytest.raises(RequestRefused) as refused:
        parse_filter(encoded(document), b"b")
    assert (refused.value.status, refused.value.reason) == (400, "bad-query")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("%", "filter is not base64"),
        ("é", "filter is not base64"),
        ("e30", "filter is not base64"),
        (b64encode(b"{").decode(), "is not JSON"),
        (b64encode(b"\xff").decode(), "is not JSON"),
        (b64encode(b"[" * 100_000).decode(), "is not JSON"),
        (b64encode(b'{"hash_iv": 1, "hash_iv": 2}').decode(), "is there twice"),
        (b64encode(b'{"date_range": {"start": 1, "end": 2, "end": 3}}').decode(), "is there twice"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_filter_at_all_is_refused(text: str, words: str) -> None:
    """Neither base64 nor JSON, JSON that is too deep, and members whose meaning is not clear."""
    with pytest.raises(RequestRefused) as refused:
        parse_filter(text, b"b")
    assert refused.value.status == 400
    assert words in str(refused.value)
