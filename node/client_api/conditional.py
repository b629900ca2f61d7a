"""Conditional requests: their headers, and the effect of a condition on a read. Pure.

`repl.model.conditions` has the rules. The leader of a key checks a write's condition; a read's is checked here. An
invalid date is ignored in a read, as in RFC 9110, and refused in a write, which must not become unconditional.
"""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from isthmus.node.http.responses import PLAIN, Headers, Reply, RequestRefused
from isthmus.repl.model.conditions import ANY, TAGS_MAX, Condition, ConditionState, ConditionVerdict, judge_read

IF_MATCH: Final = b"if-match"
IF_NONE_MATCH: Final = b"if-none-match"
IF_MODIFIED_SINCE: Final = b"if-modified-since"
IF_UNMODIFIED_SINCE: Final = b"if-unmodified-since"
IF_NOT_MODIFIED: Final = b"x-riak-if-not-modified"

READ_CONDITIONS: Final = frozenset((IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE))

_TAG: Final = re.compile(rb'[ \t,]*(W/)?(?:"([\x21\x23-\x7e\x80-\xff]*)"|([^\s",*]+))[ \t]*(?=,|$)')
_REST: Final = re.compile(rb"[ \t,]*")
_LEAP_SECOND: Final = re.compile(r"\b([0-9]{2}:[0-9]{2}):60\b")
"""Second 60, which HTTP's grammar has (RFC 9110, 5.6.7). Seconds since 1970 have none: it is the one after 59."""


def parse_tags(name: bytes, value: bytes) -> tuple[str, ...]:
    """The tags of If-Match or If-None-Match, ANY for `*`; quotes may be missing, as in Riak. Raises RequestRefused."""
    if value.strip() == b"*":
        return ANY
    tags: list[str] = []
    at = 0
    while _REST.fullmatch(value, at) is None:
        match = _TAG.match(value, at)
        if match is None or len(tags) == TAGS_MAX:
            raise RequestRefused(
                400, "bad-header", f'{name.decode()} is not * or at most {TAGS_MAX} tags in quotes: "A", "B"'
            )
        tag = match[2] if match[2] is not None else match[3]
        tags.append(("W/" if match[1] else "") + tag.decode("latin-1"))
        at = match.end()
    return tuple(tags)


def parse_date(value: bytes) -> int | None:
    """Seconds since 1970 of a date in any of HTTP's forms; None when it is invalid."""
    text, leaps = _LEAP_SECOND.subn(r"\1:59", value.decode("latin-1"), count=1)
    try:
        date = parsedate_to_datetime(text)
        return leaps + int((date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp())
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def read_condition(headers: Headers) -> Condition | None:
    """The condition of a GET or HEAD; None without one. Raises RequestRefused (400)."""
    for name, _ in headers:
        if name in READ_CONDITIONS:
            return _condition([header for header in headers if header[0] in READ_CONDITIONS], strict=False)
    return None


def write_condition(found: Headers) -> Condition:
    """The condition of a write, from its conditional headers `found` except X-Riak-If-Not-Modified. Raises
    RequestRefused (400)."""
    return _condition(found, strict=True)


def _condition(found: Headers, *, strict: bool) -> Condition:
    match: tuple[str, ...] | None = None
    none_match: tuple[str, ...] | None = None
    unmodified_s: int | None = None
    modified_s: int | None = None
    for name, value in found:
        if name == IF_MATCH:
            match = _joined(match, parse_tags(name, value))
        elif name == IF_NONE_MATCH:
            none_match = _joined(none_match, parse_tags(name, value))
        elif name == IF_MODIFIED_SINCE:
            modified_s = parse_date(value)
        elif name == IF_UNMODIFIED_SINCE:
            unmodified_s = parse_date(value)
            if strict and unmodified_s is None:
                raise RequestRefused(400, "bad-header", "If-Unmodified-Since is not a date as HTTP writes them")
    return Condition(match, none_match, unmodified_s, modified_s)


def _joined(before: tuple[str, ...] | None, tags: tuple[str, ...]) -> tuple[str, ...]:
    return tags if before is None else ANY if ANY in (before, tags) else (*before, *tags)


def unless_conditions(condition: Condition, standing: ConditionState, now_s: int, headers: Headers) -> Reply | None:
    """The answer to a conditional read whose condition fails: 304 with the version's headers, or 412; None: send the
    object. `headers`: those of the answer with the object."""
    verdict = judge_read(condition, standing, now_s)
    if verdict is ConditionVerdict.SHOW:
        return None
    if verdict is ConditionVerdict.NOT_MODIFIED:
        return Reply(304, [header for header in headers if header[0] in _VALIDATORS])
    refused: Headers = [(b"content-type", PLAIN), (b"x-isthmus-reason", b"precondition-failed")]
    return Reply(412, refused, b"the key holds another version than the request names\n")


_VALIDATORS: Final = frozenset((b"etag", b"last-modified", b"x-riak-vclock", b"vary"))
