"""Paths of Riak that are not supported: 501 and a sentence with the alternative. Pure.

A program learns at once that the feature is missing; a 404 would mean that there is no data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from isthmus.node.http.responses import RequestRefused

_MAPRED: Final = "MapReduce is not supported: list keys and read them with POST /batch/get"
_SEARCH: Final = "search is not supported: feed a search engine from a queue"
_INDEX: Final = "secondary index queries are not supported: index entries are kept as metadata, and come back with GET"
_DATATYPES: Final = "counters and data types are not supported: write values, and merge siblings in the program"
_WALK: Final = "link walking is not supported: links come back with GET, follow them in the program"

_BY_FIRST: Final[Mapping[bytes, str]] = {
    b"mapred": _MAPRED,
    b"search": _SEARCH,
    b"solr": _SEARCH,
}
_BY_KIND: Final[Mapping[bytes, str]] = {b"index": _INDEX, b"counters": _DATATYPES, b"datatypes": _DATATYPES}


def unsupported(parts: Sequence[bytes]) -> RequestRefused | None:
    """The refusal of a path (its segments, the first one empty) that Riak answers and nothing here does; None for a
    path that Riak does not know either."""
    text = _lacking(parts)
    return None if text is None else RequestRefused(501, "not-implemented", text)


def _lacking(parts: Sequence[bytes]) -> str | None:
    first = parts[1] if len(parts) > 1 else b""
    if first in _BY_FIRST:
        return _BY_FIRST[first]
    if first == b"types":
        parts = parts[2:]
        first = parts[1] if len(parts) > 1 else b""
    if first == b"riak":
        return _WALK if len(parts) > 4 and _is_walk(parts[4:]) else None
    if first != b"buckets" or len(parts) < 4:
        return None
    if parts[3] == b"keys":
        return _WALK if len(parts) > 5 and _is_walk(parts[5:]) else None
    return _BY_KIND.get(parts[3])


def _is_walk(steps: Sequence[bytes]) -> bool:
    named = [step.replace(b"%2C", b",").replace(b"%2c", b",") for step in steps if step]
    return bool(named) and all(step.count(b",") == 2 for step in named)
