"""A key as another cluster has it now, asked over its client face and held against ours.

One HEAD request with a short time-out; blocks, so it runs in a thread or in a command. What cannot be learned is
unknown, with the reason. The story goes back to `node.services.explain_key`.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

from isthmus.repl.http.client import OPEN, PeerCredentials, cause_of, session
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.keys import Key
from isthmus.repl.model.vclock import Clock, decode_clock, descends

TIMEOUT_S: Final = 3.0
"""For the connection, and for the answer: an operator waits for it."""

TRIES_MAX: Final = 3
"""Nodes of another cluster that are asked one after the other until one can tell: all of a usual one, and less than the
command line waits."""

FOUND: Final = frozenset({200, 300, 404})
"""A value, siblings, or absent; a tombstone's clock comes with 404."""

NOT_FOUND: Final = "not-found"
"""The reason that a node gives with its 404 for an absent key. Any other 404 says nothing of the key: no such bucket
type there, no client listener, no Isthmus."""


NOT_HERE: Final = "write it, or look at the other cluster: a full-sync finds keys that are missing here"
NOTHING: Final = "nothing in real time"
ALL_SENT: Final = (
    f"{NOTHING}; where the other side lacks it, look whether its nodes keep it as a dead letter (isthmus sink "
    "dead-letters list), or run a full-sync"
)

_AHEAD: Final = (
    "the other side is ahead: its own queue or full-sync sends it here, or bidirectional = true in a [[fullsync]] of "
    "this cluster has it sent"
)
_CONCURRENT: Final = "both sides have changed it: a full-sync sends ours, and both become siblings there"
_CORRUPT: Final = "both sides have the same clock and other content: write the right one again"
_SAME: Final = "nothing: the other side has the same"
_OF_SIDES: Final = frozenset({_AHEAD, _CONCURRENT, _CORRUPT, _SAME})


def with_other_sides(answer: dict[str, Any], others: list[dict[str, Any]]) -> dict[str, Any]:
    """`answer` of `explaining.joined`, or of an earlier call with fewer, with what other clusters have of the key now,
    as `other_side` tells it; where this cluster has nothing more to send, they decide what comes next."""
    step, states = answer["next"], {side["state"] for side in others}
    if step == NOT_HERE or step in _OF_SIDES or step.startswith(NOTHING):
        if "ahead" in states:
            step = _AHEAD
        elif "concurrent" in states:
            step = _CONCURRENT
        elif states == {"equal"}:
            step = _CORRUPT if any(_corrupt(row) for row in answer["compared"]) else _SAME
        elif step in _OF_SIDES:
            step = ALL_SENT  # of those that were looked at before it was so
    return {**answer, "other_sides": others, "next": step}


def _corrupt(row: dict[str, Any]) -> bool:
    return str(row["difference"]).startswith("corrupt") and not row["changed_since"]


def first_to_tell(
    looks: Sequence[Callable[[], dict[str, Any]]], goes_on: Callable[[], bool] = lambda: True
) -> dict[str, Any]:
    """What the first of a cluster's nodes that can tell says of the key; that of the last one when none can, or when it
    does not go on. `looks`, one at least: `other_side` at each of them."""
    side: dict[str, Any] = {}
    for look in looks:
        side = look()
        if side["state"] != "unknown" or side["clock"] is not None or not goes_on():
            break
    return side


def other_side(
    url: str, key: Key, ours: Clock | None, access: PeerCredentials = OPEN, *, known: bool = True
) -> dict[str, Any]:
    """{"url", "state", "clock", "reason"}. `state`: equal, ahead (it has seen more), behind, concurrent, absent, or
    unknown. `ours` None: the key is not here; unless `known` is False: then nobody could say. A tombstone there is
    equal to nothing here. Never raises for what the other side does."""
    place = "/".join(quote(part, safe="") for part in (key.bucket_type, b"buckets", key.bucket, b"keys", key.key))
    try:
        with (
            session(access=access) as asking,
            asking.head(f"{url}/types/{place}", timeout=(TIMEOUT_S, TIMEOUT_S), allow_redirects=False) as answer,
        ):
            status, said = answer.status_code, answer.headers.get("X-Riak-Vclock", "")
            why = answer.headers.get("X-Isthmus-Reason", "")
            deleted = status == 404 and answer.headers.get("X-Riak-Deleted", "") == "true"
    except OSError as error:
        return _shown(url, "unknown", None, f"it does not answer: {cause_of(error)}")
    if status not in FOUND:
        return _shown(url, "unknown", None, f"it answers {status}")
    if not said and (status, why) != (404, NOT_FOUND):
        told = f"it answers {status} {why[:64]}".rstrip()
        return _shown(url, "unknown", None, f"{told}, which tells nothing of the key")
    if not said:
        return _shown(url, "absent", None, "it has neither a value nor a tombstone")
    try:
        raw = b64decode(said, validate=True)
        theirs = decode_clock(raw)
    except (binascii.Error, ValueError, CodecError) as error:
        return _shown(url, "unknown", None, f"its clock cannot be read: {error}")
    if not known:
        return _shown(url, "unknown", raw.hex(), "it has seen the key, but what this side has is not known")
    if ours is None and deleted:  # as full-sync has it: a tombstone and nothing are no difference
        return _shown(url, "equal", raw.hex(), "it has a tombstone, and here there is nothing: deleted on both sides")
    return _shown(url, compared(ours, theirs), raw.hex(), "")


def compared(ours: Clock | None, theirs: Clock) -> str:
    """How their clock stands to ours."""
    if ours is None:
        return "ahead"
    forth, back = descends(theirs, ours), descends(ours, theirs)
    if forth and back:
        return "equal"
    return "ahead" if forth else "behind" if back else "concurrent"


def _shown(url: str, state: str, clock: str | None, reason: str) -> dict[str, Any]:
    return {"url": url, "state": state, "clock": clock, "reason": reason}
