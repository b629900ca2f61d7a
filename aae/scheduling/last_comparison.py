"""The state of one key by the newest full-sync check of its bucket type with each peer.

Every check compares the segment of every key, so a key is equal unless the check named it as differing. Keys that a
check did not compare, or could not name because there were too many, are unknown. Transient differences count as equal.
Reads only; docs/fullsync.md explains the verdicts.
"""

from __future__ import annotations

from typing import Any, Final

from isthmus.aae.exchange.compare import BehindSide
from isthmus.aae.exchange.compare import VerdictKind as KeyVerdict
from isthmus.aae.exchange.exchange import ExchangeVerdict
from isthmus.aae.scheduling.check import CONCLUSIVE
from isthmus.aae.scheduling.history import CheckResult
from isthmus.aae.scheduling.scheduler import CheckScheduler, PeerState
from isthmus.repl.model.keys import Key

UNKNOWN: Final = "unknown"
"""Verdict of a key before the first check."""


def last_comparisons(manager: CheckScheduler, key: Key) -> list[dict[str, Any]]:
    """One row for each peer that compares the key's bucket type: {"fullsync", "verdict", "difference", "reason",
    "check", "by", "kind", "at_ms", "proven_ms", "equal_ms", "suspended"}. Times are the begin of a check, None if there
    was none; `suspended`: who suspended the peer, or None."""
    name = key.bucket_type.decode(errors="replace")
    return [_row(peer, name, key) for peer in manager.peers.values() if name in peer.bucket_types]


class ComparedDifferences:
    """`repl.model.ports.UnrepairedDifferences` by the newest check of each peer."""

    def __init__(self, scheduler: CheckScheduler) -> None:
        self._scheduler = scheduler

    def difference_of(self, key: Key) -> str:
        """A peer whose newest check found the key different, or found differences that it could not name, and the
        difference; "" otherwise. Called before a tombstone is reaped (docs/protocol.md R-REAP): if the other side has
        an older value, only the tombstone can repair it. A key that is ahead there has the tombstone's clock in its
        own."""
        for row in last_comparisons(self._scheduler, key):
            if row["verdict"] == KeyVerdict.DIVERGED and not is_ahead(row["difference"]):
                return f"full-sync {row['fullsync']}: its newest check found the key different: {row['difference']}"
            newest = _newest(self._scheduler.peers[row["fullsync"]], key.bucket_type.decode(errors="replace"))
            unnamed = newest is not None and not newest.proven and (newest.verdict in CONCLUSIVE or newest.unexplained)
            if row["verdict"] == KeyVerdict.UNREACHABLE and unnamed:
                return f"full-sync {row['fullsync']}: its newest check found differences that it could not name"
        return ""


def _newest(peer: PeerState, bucket_type: str) -> CheckResult | None:
    return next((one for one in reversed(peer.history.results) if one.bucket_type == bucket_type), None)


def _row(peer: PeerState, bucket_type: str, key: Key) -> dict[str, Any]:
    history = peer.history
    newest = _newest(peer, bucket_type)
    verdict, difference, reason = KeyVerdict.UNREACHABLE, None, "no check has looked yet"
    if newest is not None:
        verdict, difference, reason = _found(peer, newest.verdict, newest.began_ms, key)
        reason = reason or newest.reason
    return {
        "fullsync": peer.settings.name,
        "verdict": UNKNOWN if newest is None else verdict.value,
        "difference": difference,
        "reason": reason,
        "check": None if newest is None else newest.verdict.value,
        "by": None if newest is None else newest.by,
        "kind": None if newest is None else newest.kind.value,
        "at_ms": None if newest is None else newest.began_ms,
        "proven_ms": history.proven_ms.get(bucket_type),
        "equal_ms": history.equal_ms.get(bucket_type),
        "suspended": None if history.suspended is None else history.suspended.by,
    }


AHEAD: Final = "ahead there: nothing of this cluster is missing"


def is_ahead(difference: str | None) -> bool:
    """True for a key that only the other side has, or that is newer there."""
    return difference is not None and difference.endswith(f"@{BehindSide.SOURCE.value}")


def _found(peer: PeerState, verdict: ExchangeVerdict, began_ms: int, key: Key) -> tuple[KeyVerdict, str | None, str]:
    """(verdict, difference, reason) of the key by the check that began at `began_ms`."""
    if not peer.checker.counts(key):
        return KeyVerdict.FILTERED, None, f"the filter of queue {peer.settings.queue} leaves it out"
    if verdict is ExchangeVerdict.IN_SYNC:
        return KeyVerdict.MATCH, None, ""
    named = peer.checker.named.get(key.bucket_type)
    if named is None or named.began_ms > began_ms:
        return KeyVerdict.UNREACHABLE, None, "which keys differed then is not known any more"
    found = named.keys.get((key.bucket, key.key))
    if found is not None:
        return KeyVerdict.DIVERGED, found, AHEAD if is_ahead(found) else peer.checker.ineffective_of(key)
    if verdict not in CONCLUSIVE:
        return KeyVerdict.UNREACHABLE, None, ""
    if not named.every:
        return KeyVerdict.UNREACHABLE, None, f"more differed than the {len(named.keys)} keys that are known by name"
    return KeyVerdict.MATCH, None, "others differed"
