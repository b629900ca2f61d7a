"""The parameter `filter` of Riak's folds: base64 of a JSON object, as Riak's clients make it. Pure.

Riak ignores members that it does not know. Here they are refused: without its misspelled range an erasure would be one
of the whole bucket.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn, TypeGuard

from isthmus.aae.folds.folds import FoldScope, RiakSegments
from isthmus.config.text import no_such, shown
from isthmus.node.http.responses import RequestRefused

TREE_BITS: Final[Mapping[str, int]] = {
    "xxsmall": 12, "xsmall": 14, "small": 16, "medium": 18, "large": 20, "xlarge": 22,
}  # fmt: skip
"""Riak's sizes of trees -> the bits of a segment in them."""

SEGMENTS_MAX: Final = 10_000
"""Most segments of a filter. The request's head limits them, too, to some thousands; Riak advises tens."""

BRANCHES_MAX: Final = 1_024
"""Most branches of one answer, 1 KB of leaves each, twice that in JSON. A Riak's full-sync asks for tens."""

HASH_IV_MAX: Final = (1 << 63) - 1
"""Largest number that is hashed before clocks: it has to travel between nodes."""

SECONDS_MAX: Final = 1 << 40
"""Largest time: beyond the year 30,000 the unit must be wrong."""

CODES_MAX: Final = 16
"""Longest word that is read from a list of character codes."""

FIELDS: Final = ("key_range", "date_range", "segment_filter", "hash_iv", "change_method")

ALL: Final = "all"
"""The text that stands for no range."""

_RIGHT: Final = (
    'filter is base64 of JSON such as {"key_range": {"start": "a", "end": "b"}, '
    '"date_range": {"start": 1700000000, "end": 1700003600}}'
)


class RiakFilter(NamedTuple):
    """What a fold is limited to. `acts`: reap or erase, rather than count. `document`: the JSON. `hash_iv`: of trees,
    what is hashed before each clock."""

    scope: FoldScope
    acts: bool = False
    document: Mapping[str, Any] = {}
    hash_iv: int | None = None


def parse_filter(text: str | None, bucket: bytes) -> RiakFilter:
    """The filter of a fold of `bucket`; None: all of it, and only counted. Raises RequestRefused (400)."""
    document = {} if text is None else _object(_decoded(text))
    _check_members(document, FIELDS)
    first, last = _key_range(document.get("key_range"))
    since_ms, before_ms = _date_range(document.get("date_range"))
    hash_iv = document.get("hash_iv")
    if hash_iv is not None and (not _is_number(hash_iv) or hash_iv > HASH_IV_MAX):
        _refuse(f"hash_iv must be a whole number from 0 to {HASH_IV_MAX}; it is for trees")
    scope = FoldScope(
        bucket,
        first,
        last,
        None,
        since_ms,
        before_ms,
        riak_segments=_segments(document.get("segment_filter")),
    )
    return RiakFilter(scope, _acts(document.get("change_method")), document, hash_iv)


def parse_branches(text: str | None, branch_count: int) -> list[int]:
    """The filter of branches of a tree: a list of their numbers. Raises RequestRefused (400)."""
    right = "filter is base64 of a JSON list such as [0, 17], the branches whose leaves are wanted"
    if text is None:
        _refuse(f"filter is missing: {right}")
    found = _decoded(text, right)
    if not isinstance(found, list) or not all(_is_number(one) and one < branch_count for one in found):
        _refuse(f"filter must be a list of whole numbers below {branch_count}: {right}")
    if not 0 < len(found) <= BRANCHES_MAX:
        _refuse(f"filter has {len(found)} branches; 1 to {BRANCHES_MAX} are answered")
    return found


def parse_leaves(text: str | None) -> FoldScope:
    """The filter of clocks of a whole tree: a list of leaves, or leaves and a range of time. Raises RequestRefused
    (400)."""
    right = (
        "filter is base64 of a JSON list of leaves such as [0, 17], or of "
        '{"segment_filter": {"segments": [0, 17], "tree_size": "large"}, "date_range": {"start": 1700000000, "end": '
        "1700003600}}"
    )
    if text is None:
        _refuse(f"filter is missing: {right}")
    found = _decoded(text, right)
    if isinstance(found, list):
        found = {"segment_filter": {"segments": found, "tree_size": "large"}}
    document = _object(found, right)
    _check_members(document, ("segment_filter", "date_range"))
    segments = _segments(document.get("segment_filter"))
    if segments is None or not segments.segments:
        _refuse(f"filter names no leaf: {right}")
    since_ms, before_ms = _date_range(document.get("date_range"))
    return FoldScope(since_ms=since_ms, before_ms=before_ms, riak_segments=segments)


def _check_members(document: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in document:
        if name not in known:
            _refuse(no_such("member of a filter", name[:64], sorted(known)))


def _decoded(text: str, right: str = _RIGHT) -> Any:
    try:
        # A client that does not escape the "+" of base64 sends what is a space in a query.
        decoded = b64decode(text.replace(" ", "+").encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        _refuse(f"filter is not base64: {error}; {right}")
    try:
        document = json.loads(decoded, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        _refuse(f"what filter has in base64 is not JSON: {error}; {right}")
    return document


def _object(document: Any, right: str = _RIGHT) -> dict[str, Any]:
    if not isinstance(document, dict):
        _refuse(f"what filter has in base64 is no JSON object; {right}")
    return document


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        _refuse("a member of filter is there twice: it is not clear which one is meant")
    return document


def _key_range(value: Any) -> tuple[bytes | None, bytes | None]:
    """(first key, the key behind the last one); None: no bound. Riak's range has its last key, too."""
    if value is None or value == ALL:
        return None, None
    start, end = _bounds("key_range", value, "texts")
    if not isinstance(start, str) or not isinstance(end, str):
        _refuse("key_range must have start and end, two texts; without it all keys are meant")
    try:
        first, last = start.encode(), end.encode()
    except UnicodeEncodeError as error:
        _refuse(f"key_range: a text is not Unicode: {error.reason}")
    if first > last:
        _refuse(f"key_range: start {shown(start)} is behind end {shown(end)}")
    return first or None, last + b"\0"


def _date_range(value: Any) -> tuple[int, int]:
    """(since, before) in milliseconds; 0: no bound. Riak's range is in seconds, and has its last one."""
    if value is None or value == ALL:
        return 0, 0
    start, end = _bounds("date_range", value, "whole numbers of seconds since 1970")
    if not _is_number(start) or not _is_number(end) or max(start, end) > SECONDS_MAX:
        _refuse("date_range must have start and end, two whole numbers of seconds since 1970")
    if start > end:
        _refuse(f"date_range: start {start} is later than end {end}")
    return start * 1000, (end + 1) * 1000


def _bounds(name: str, value: Any, kind: str) -> tuple[Any, Any]:
    if not isinstance(value, dict) or value.keys() != {"start", "end"}:
        _refuse(f"{name} must be an object of start and end, two {kind}, or {ALL}")
    return value["start"], value["end"]


def _text(value: Any) -> Any:
    """A word that Riak's own client sends as the list of its character codes; anything else as it is."""
    if isinstance(value, list) and 0 < len(value) <= CODES_MAX and all(_is_number(one) and one < 128 for one in value):
        return bytes(value).decode()
    return value


def _segments(value: Any) -> RiakSegments | None:
    if value is None or value == ALL:
        return None
    if not isinstance(value, dict) or value.keys() != {"segments", "tree_size"}:
        _refuse(f"segment_filter must be an object of segments and tree_size, or {ALL}")
    size = _text(value["tree_size"])
    bits = TREE_BITS.get(size) if isinstance(size, str) else None
    if bits is None:
        _refuse(f"segment_filter: tree_size must be one of {', '.join(TREE_BITS)}")
    segments = value["segments"]
    if not isinstance(segments, list) or not all(_is_number(one) and one < 1 << bits for one in segments):
        _refuse(f"segment_filter: segments must be a list of whole numbers below {1 << bits}, as a tree {size} has")
    if len(segments) > SEGMENTS_MAX:
        _refuse(f"segment_filter: {len(segments)} segments; {SEGMENTS_MAX} are the most")
    return RiakSegments(bits, tuple(segments))


def _acts(value: Any) -> bool:
    """Whether to act. A job of its own, and the jobs of each node, are the same here: the fold acts page by page."""
    if value is None or value == "count":
        return False
    job = value.get("job_id") if isinstance(value, dict) and len(value) == 1 else None
    if value != "local" and not (_is_number(job) and job > 0):
        _refuse('change_method must be "count", "local" or {"job_id": NUMBER}, the number from 1')
    return True


def _is_number(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _refuse(sentence: str) -> NoReturn:
    raise RequestRefused(400, "bad-query", sentence)
