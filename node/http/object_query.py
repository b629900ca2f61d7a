"""Query parameters of objects: Riak's, and ours. Pure.

Riak's quorums have no effect here, since a write is always on all replicas in sync and a read has its own isolation. A
wrong quorum is refused as in Riak. Unknown parameters are refused, unlike in Riak: a misspelled one would be without
effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from isthmus.node.http.responses import RequestRefused
from isthmus.node.http.router import check_parameters, parse_query
from isthmus.repl.model.requests import Isolation

QUORUMS: Final = frozenset({"r", "w", "dw", "pr", "pw", "rw", "node_confirms"})
QUORUM_WORDS: Final = frozenset({"one", "quorum", "all", "default", "backend"})
FLAGS: Final = frozenset({"returnbody", "basic_quorum", "notfound_ok", "sloppy_quorum", "asis", "deletedvclock"})
SYNC_WORDS: Final = frozenset({"default", "backend", "one", "all"})

NUMBER_DIGITS_MAX: Final = 9
"""Longest number: a time-out of 11 days, more than any meaningful one."""

QUERIES_KEPT: Final = 512
KEPT_BYTES_MAX: Final = 256
"""Query strings that are cached, since a program sends the same few with every request, and the longest of them:
together half a megabyte."""


class ObjectQuery(NamedTuple):
    """The parameters of one object's request. `timeout_s` None: the node's own."""

    returnbody: bool = False
    vtag: str | None = None
    isolation: Isolation | None = None
    timeout_s: float | None = None


NO_QUERY: Final = ObjectQuery()


def parse_object_query(query: bytes) -> ObjectQuery:
    """The parameters of one object's request. Raises RequestRefused (400) for a value that is not allowed."""
    return _kept(query) if len(query) <= KEPT_BYTES_MAX else _parsed(query)


def _parsed(query: bytes) -> ObjectQuery:
    parameters = parse_query(query)
    check_parameters(parameters, OBJECT_PARAMETERS, "a key")
    for name, value in parameters.items():
        check = _CHECKS.get(name)
        if check is not None:
            check(name, value)
    isolation = parameters.get("isolation")
    return ObjectQuery(
        parameters.get("returnbody", "").lower() == "true",
        parameters.get("vtag"),
        None if isolation is None else parse_isolation(isolation),
        timeout_of(parameters),
    )


_kept: Final = lru_cache(maxsize=QUERIES_KEPT)(_parsed)


def parse_isolation(value: str) -> Isolation:
    """The isolation of a read. Raises RequestRefused (400)."""
    try:
        return Isolation(value)
    except ValueError:
        raise RequestRefused(400, "isolation", f"isolation={value[:40]} is unknown: committed or uncommitted") from None


def timeout_of(parameters: Mapping[str, str]) -> float | None:
    """The seconds in `timeout`, a whole number of milliseconds; None for 0 or when it is missing. Raises
    RequestRefused."""
    value = parameters.get("timeout")
    if value is None:
        return None
    if not _is_number(value):
        raise _bad("timeout", value, "a whole number of milliseconds, 0 for the node's own limit")
    return int(value) / 1000 or None


def _is_number(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= NUMBER_DIGITS_MAX


def _bad(name: str, value: str, right: str) -> RequestRefused:
    shown = value[:40].encode("ascii", "backslashreplace").decode()
    return RequestRefused(400, "bad-query", f"{name}={shown} is not {right}")


def _quorum(name: str, value: str) -> None:
    if value not in QUORUM_WORDS and not _is_number(value):
        raise _bad(name, value, "a whole number, one, quorum, all or default")


def _flag(name: str, value: str) -> None:
    if value.lower() not in ("true", "false", "default"):
        raise _bad(name, value, "true or false")


def _sync(name: str, value: str) -> None:
    if value.lower() not in SYNC_WORDS:
        raise _bad(name, value, "backend, one, all or default")


def _n_val(name: str, value: str) -> None:
    if value != "default" and (not _is_number(value) or int(value) < 1):
        raise _bad(name, value, "a whole number from 1")


_CHECKS: Final[Mapping[str, Callable[[str, str], None]]] = {
    **dict.fromkeys(QUORUMS, _quorum),
    **dict.fromkeys(FLAGS, _flag),
    "sync_on_write": _sync,
    "n_val": _n_val,
}

OBJECT_PARAMETERS: Final = frozenset((*_CHECKS, "returnbody", "vtag", "isolation", "timeout"))
"""All parameters that a request for an object may have, whatever its method."""
