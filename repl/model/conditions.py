"""Conditional requests: whether a read or write may be carried out, given the key's current version. Pure.

The conditions are HTTP's (RFC 9110, 13) and Riak's X-Riak-If-Not-Modified. The partition's leader evaluates those of a
write against the object at the time of the write (`repl.coordinator.write_batch`), so of two writes with exclusive
conditions one is refused, whichever nodes received them. The client API evaluates those of a read. A key with only a
tombstone does not exist.
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
"""If-Match or If-None-Match of any version."""

TAGS_MAX: Final = 256
"""Maximum number of tags in one header; a guess far above the versions of one key that a client has seen."""


class ConditionFailed(BadInput):
    """A write's condition does not hold; nothing was written. The client reads the key and decides again."""

    reason = "precondition-failed"
    needs_confirmation = True


class Modified(ConditionFailed):
    """X-Riak-If-Not-Modified names a clock other than the key's."""

    reason = "modified"


class Condition(NamedTuple):
    """The conditions of a request; None means absent.

    Tags are without quotes; a weak one keeps its `W/`. Times are seconds since 1970.
    """

    if_match: tuple[str, ...] | None = None
    if_none_match: tuple[str, ...] | None = None
    unmodified_since_s: int | None = None
    modified_since_s: int | None = None
    clock: Clock | None = None
    """The clock that the key must have."""

    @property
    def names_version(self) -> bool:
        """Whether the client names by tag the version that it has seen. If the condition holds, a write without a clock
        replaces that version, and needs no other context (docs/decisions.md, 38)."""
        return self.if_match is not None and self.if_match != ANY


class ConditionState(NamedTuple):
    """The key's current version, against which conditions are evaluated.

    For an absent key the tag is empty and the time 0; its tombstone may still have a clock.
    """

    exists: bool
    tag: str
    last_modified_s: int
    clock: Clock


class ConditionVerdict(StrEnum):
    """The outcome of a conditional read."""

    SHOW = "show"
    NOT_MODIFIED = "not-modified"
    """The client already has this version."""
    FAILED = "failed"


def object_tag(clock: bytes, siblings: Sequence[Sibling]) -> str:
    """Return the entity tag of an object, equal on all clusters.

    It is the tag of the only sibling, else 16 hex digits over the encoded clock.
    """
    return siblings[0].vtag if len(siblings) == 1 else xxh64_hexdigest(clock)


def needs_tag(condition: Condition) -> bool:
    """True when the condition depends on the object's tag."""
    return any(tags is not None and tags != ANY for tags in (condition.if_match, condition.if_none_match))


def judge_write(condition: Condition, current: ConditionState) -> ConditionFailed | None:
    """Return why a write must be refused; None when it may go on.

    `modified_since_s` only applies to reads (RFC 9110 13.1.3).
    """
    if condition.clock is not None and not (
        current.clock and descends(current.clock, condition.clock) and descends(condition.clock, current.clock)
    ):
        return Modified("X-Riak-If-Not-Modified is not the clock of what the key holds: read it again")
    failed = _failed(condition, current)
    if failed:
        return ConditionFailed(f"{failed}: nothing was written; read the key again")
    if _none_match_fails(condition, current):
        what = "the key exists" if condition.if_none_match == ANY else "the key holds that version"
        return ConditionFailed(f"If-None-Match: {what}; nothing was written")
    return None


def judge_read(condition: Condition, current: ConditionState, now_s: int) -> ConditionVerdict:
    """Return the outcome for an existing key, in the order of RFC 9110 13.2.2.

    An If-Modified-Since later than `now_s` is ignored.
    """
    if _failed(condition, current):
        return ConditionVerdict.FAILED
    if condition.if_none_match is not None:
        return ConditionVerdict.NOT_MODIFIED if _none_match_fails(condition, current) else ConditionVerdict.SHOW
    since_s = condition.modified_since_s
    if since_s is not None and current.last_modified_s <= since_s <= now_s:
        return ConditionVerdict.NOT_MODIFIED
    return ConditionVerdict.SHOW


def _failed(condition: Condition, current: ConditionState) -> str:
    """Return why If-Match or If-Unmodified-Since does not hold; "" when they do."""
    if condition.if_match is not None:
        if not current.exists:
            return "If-Match: the key does not exist"
        if condition.if_match != ANY and current.tag not in condition.if_match:
            return "If-Match: the key holds another version"
        return ""
    since_s = condition.unmodified_since_s
    if since_s is not None and current.exists and current.last_modified_s > since_s:
        return "If-Unmodified-Since: the key was changed later"
    return ""


def _none_match_fails(condition: Condition, current: ConditionState) -> bool:
    tags = condition.if_none_match
    if tags is None or not current.exists:
        return False
    return tags == ANY or any(tag.removeprefix("W/") == current.tag for tag in tags)
