"""Look up a key in another cluster by its client API, and compare it with this cluster's.

One HEAD request with a short time-out. It blocks, so it runs in a thread or in a command. If the lookup fails, the
result is `unknown`, with the reason.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

from isthmus.repl.http.client import OPEN, PeerCredentials, cause_of, exact_head, session
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.keys import Key
from isthmus.repl.model.vclock import Clock, decode_clock, descends

TIMEOUT_S: Final = 3.0
"""Timeout of the connection, and of the answer: short, because an operator waits for it."""

TRIES_MAX: Final = 3
"""Nodes of another cluster that are queried in turn until one answers: all nodes of a usual cluster, in less time than
the command line waits."""

FOUND: Final = frozenset({200, 300, 404})
"""Status codes of a value, of siblings, and of an absent key or tombstone (whose 404 carries its clock)."""

NOT_FOUND: Final = "not-found"
"""The reason code in a node's 404 for an absent key. Any other 404 gives no information about the key: no such bucket
type, no client listener, not Isthmus."""


LACKS_ROLE: Final = (
    "it asks for a token with the role read or replicate (token_file of that [[fullsync]]; for --other the command's "
    "own; a node of an earlier version asks for read)"
)

NOT_HERE: Final = "write it, or look at the other cluster: a full-sync finds keys that are missing here"
NOTHING: Final = "nothing in real time"
REAPED: Final = (
    f"{NOTHING}: it was deleted here and reaped, which is remembered; where another cluster still has the value, a "
    "full-sync of this cluster sends the delete again"
)
ALL_SENT: Final = (
    f"{NOTHING}; if the other side lacks it, check whether its nodes keep it as a dead letter (isthmus sink "
    "dead-letters list), or run a full-sync"
)

_AHEAD: Final = (
    "the other side is ahead: its own queue or full-sync sends it here, or bidirectional = true in a [[fullsync]] of "
    "this cluster has it sent"
)
_CONCURRENT: Final = "both sides have changed it: a full-sync sends ours, and both become siblings there"
_CORRUPT: Final = "both sides have the same clock and other content: write the right one again"
_SAME: Final = "nothing: the other side has the same"
# Commands and nodes compare the steps above as texts, also between versions: keep them.
_OF_SIDES: Final = frozenset({_AHEAD, _CONCURRENT, _CORRUPT, _SAME})


def with_other_sides(answer: dict[str, Any], others: list[dict[str, Any]]) -> dict[str, Any]:
    """`answer` with the key's state in other clusters added.

    `answer`: the result of `explain_key.joined`, or of an earlier call with fewer clusters. `others`: results of
    `other_side`. If this cluster has nothing more to send, the others' states decide the next step."""
    step, states = answer["next"], {side["state"] for side in others}
    if step == NOT_HERE or step in _OF_SIDES or step.startswith(NOTHING):
        if "ahead" in states:
            step = _AHEAD
        elif "concurrent" in states:
            step = _CONCURRENT
        elif states == {"equal"}:
            step = _CORRUPT if any(_corrupt(row) for row in answer["compared"]) else _SAME
        elif step in _OF_SIDES:
            step = ALL_SENT  # the earlier step was derived from fewer clusters
    return {**answer, "other_sides": others, "next": step}


def _corrupt(row: dict[str, Any]) -> bool:
    return str(row["difference"]).startswith("corrupt") and not row["changed_since"]


def first_known_side(
    looks: Sequence[Callable[[], dict[str, Any]]], goes_on: Callable[[], bool] = lambda: True
) -> dict[str, Any]:
    """The result of the first lookup that knows the key's state; otherwise that of the last one.

    `looks`, at least one: `other_side` at each node of a cluster. No further lookup is made once `goes_on` is false."""
    side: dict[str, Any] = {}
    for look in looks:
        side = look()
        if side["state"] != "unknown" or side["clock"] is not None or not goes_on():
            break
    return side


def other_side(
    url: str,
    key: Key,
    ours: Clock | None,
    access: PeerCredentials = OPEN,
    *,
    known: bool = True,
    reaped: Clock | None = None,
) -> dict[str, Any]:
    """The key's state in another cluster: {"url", "state", "clock", "reason"}.

    `state`: equal, ahead (its clock descends ours), behind, concurrent, absent, or unknown. `ours` None: this cluster
    does not have the key, or (`known` False) its state here is unknown. `reaped`: the clock of its last tombstone,
    where the key was reaped here and that is remembered. A tombstone there is equal to no object here. Never raises for
    a fault of the other side.
    """
    place = "/".join(_segment(part) for part in (key.bucket_type, b"buckets", key.bucket, b"keys", key.key))
    try:
        with (
            session(access=access) as asking,
            exact_head(asking, f"{url}/types/{place}", TIMEOUT_S) as answer,
        ):
            status, clock = answer.status_code, answer.headers.get("X-Riak-Vclock", "")
            why = answer.headers.get("X-Isthmus-Reason", "")
            deleted = status == 404 and answer.headers.get("X-Riak-Deleted", "") == "true"
    except OSError as error:
        return _shown(url, "unknown", None, f"it does not answer: {cause_of(error)}")
    if status in (401, 403):
        return _shown(url, "unknown", None, f"it answers {status}: {LACKS_ROLE}")
    if status not in FOUND:
        return _shown(url, "unknown", None, f"it answers {status}")
    if not clock and (status, why) != (404, NOT_FOUND):
        answered = f"it answers {status} {why[:64]}".rstrip()
        return _shown(url, "unknown", None, f"{answered}, which does not show whether it has the key")
    if not clock:
        return _shown(url, "absent", None, "it has neither a value nor a tombstone")
    try:
        raw = b64decode(clock, validate=True)
        theirs = decode_clock(raw)
    except (binascii.Error, ValueError, CodecError) as error:
        return _shown(url, "unknown", None, f"its clock cannot be read: {error}")
    if not known:
        return _shown(url, "unknown", raw.hex(), "it has the key or a tombstone, but the key's state here is unknown")
    if ours is None and deleted:  # as full-sync compares: a tombstone and no object are no difference
        return _shown(url, "equal", raw.hex(), "it has a tombstone, this side has nothing: deleted on both sides")
    if ours is None and reaped is not None and descends(reaped, theirs):
        return _shown(url, "behind", raw.hex(), "it still has what was deleted and reaped here")
    return _shown(url, compared(ours, theirs), raw.hex(), "")


def _segment(name: bytes) -> str:
    """A name as a part of a path; "." and ".." encoded, too, since they are steps to other paths."""
    return quote(name, safe="") if name not in (b".", b"..") else "%2E" * len(name)


def compared(ours: Clock | None, theirs: Clock) -> str:
    """The other cluster's clock compared with ours."""
    if ours is None:
        return "ahead"
    forth, back = descends(theirs, ours), descends(ours, theirs)
    if forth and back:
        return "equal"
    return "ahead" if forth else "behind" if back else "concurrent"


def _shown(url: str, state: str, clock: str | None, reason: str) -> dict[str, Any]:
    return {"url": url, "state": state, "clock": clock, "reason": reason}
