"""Conditions: what a client says must hold of a key for its read or write to be carried out. Pure.

The forms are HTTP's conditional requests (RFC 9110, 13) and Riak's X-Riak-If-Not-Modified. A condition of a write is
judged by the partition's leader against what the key holds when the write is proposed (`repl.coordinator.write_batch`),
so that of two writes under conditions that exclude each other one is refused, whichever nodes they came to. One of a
read is judged by the face that shows the object. A tombstone is no object: the key does not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from xxhash import xxh64_hexdigest

from isthmus.repl.model.errors import BadInput
from isthmus.repl.model.objects import Sibling
from isthmus.repl.model.vclock import Clock, descends

ANY: Final = ("*",)
"""If-Match and If-None-Match of any version."""

TAGS_MAX: Final = 256
"""Most tags in one header; a guess far above what a client has seen of one key."""


class ConditionFailed(BadInput):
    """A write's condition does not hold: nothing was written. What was refused may be read and decided anew."""

    reason = "precondition-failed"
    needs_confirmation = True


class Modified(ConditionFailed):
    """X-Riak-If-Not-Modified names another clock than the key's."""

    reason = "modified"


class Condition(NamedTuple):
    """Tags are without their quotes; a weak one keeps its `W/`. Times are seconds since 1970. None: not asked."""

    if_match: tuple[str, ...] | None = None
    if_none_match: tuple[str, ...] | None = None
    unmodified_since_s: int | None = None
    modified_since_s: int | None = None
    clock: Clock | None = None
    """The clock that the key must have."""


class ConditionState(NamedTuple):
    """What a condition is judged against; `tag` is empty and the time 0 of a key that does not exist, whose tombstone
    may still have a clock."""

    exists: bool
    tag: str
    last_modified_s: int
    clock: Clock


class ConditionVerdict(StrEnum):
    """What becomes of a read."""

    SHOW = "show"
    NOT_MODIFIED = "not-modified"
    """The client has it already."""
    FAILED = "failed"


def object_tag(clock: bytes, siblings: Sequence[Sibling]) -> str:
    """The entity tag of an object under its encoded clock: its only sibling's, else one of 16 hex digits that names all
    of them; the same on every cluster."""
    return siblings[0].vtag if len(siblings) == 1 else xxh64_hexdigest(clock)


def needs_tag(condition: Condition) -> bool:
    """True when it cannot be judged without the object's tag."""
    return any(tags is not None and tags != ANY for tags in (condition.if_match, condition.if_none_match))


def judge_write(condition: Condition, standing: ConditionState) -> ConditionFailed | None:
    """Why a write must not be carried out; None when it may. `modified_since_s` is a matter of reads (RFC 9110
    13.1.3)."""
    if condition.clock is not None and not (
        standing.clock and descends(standing.clock, condition.clock) and descends(condition.clock, standing.clock)
    ):
        return Modified("X-Riak-If-Not-Modified is not the clock of what the key holds: read it again")
    failed = _failed(condition, standing)
    if failed:
        return ConditionFailed(f"{failed}: nothing was written; read the key again")
    if _none_match_fails(condition, standing):
        what = "the key exists" if condition.if_none_match == ANY else "the key holds that version"
        return ConditionFailed(f"If-None-Match: {what}; nothing was written")
    return None


def judge_read(condition: Condition, standing: ConditionState, now_s: int) -> ConditionVerdict:
    """What becomes of a read of a key that exists, in the order of RFC 9110 13.2.2. A date that lies ahead of `now_s`
    says nothing."""
    if _failed(condition, standing):
        return ConditionVerdict.FAILED
    if condition.if_none_match is not None:
        return ConditionVerdict.NOT_MODIFIED if _none_match_fails(condition, standing) else ConditionVerdict.SHOW
    since_s = condition.modified_since_s
    if since_s is not None and standing.last_modified_s <= since_s <= now_s:
        return ConditionVerdict.NOT_MODIFIED
    return ConditionVerdict.SHOW


def _failed(condition: Condition, standing: ConditionState) -> str:
    """Why If-Match or If-Unmodified-Since does not hold; "" when they do."""
    if condition.if_match is not None:
        if not standing.exists:
            return "If-Match: the key does not exist"
        if condition.if_match != ANY and standing.tag not in condition.if_match:
            return "If-Match: the key holds another version"
        return ""
    since_s = condition.unmodified_since_s
    if since_s is not None and standing.exists and standing.last_modified_s > since_s:
        return "If-Unmodified-Since: the key was changed later"
    return ""


def _none_match_fails(condition: Condition, standing: ConditionState) -> bool:
    tags = condition.if_none_match
    if tags is None or not standing.exists:
        return False
    return tags == ANY or any(tag.removeprefix("W/") == standing.tag for tag in tags)
