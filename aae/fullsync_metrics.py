"""Full-sync's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from isthmus.aae.scheduling.schedule import CheckKind, checks_per_day
from isthmus.aae.scheduling.scheduler import CheckScheduler, PeerState
from isthmus.repl.telemetry import Family, Sample

HELP: Final[Mapping[str, Family]] = {
    "isthmus_fullsync_running": Family("1 while a check runs.", "0 or 1", "full-sync"),
    "isthmus_fullsync_checks_total": Family(
        "Checks of bucket types that ended, by peer and verdict.", "checks", "full-sync", ("peer", "verdict")
    ),
    "isthmus_fullsync_checks_per_day": Family(
        "Checks a day that are configured, of all kinds but none; 0: nothing is checked without a command.",
        "checks a day",
        "full-sync",
        ("peer",),
    ),
    "isthmus_fullsync_repairs_total": Family("Keys that checks queued for repair.", "keys", "full-sync"),
    "isthmus_tree_rows_audited_total": Family(
        "Key rows that were held against the tree that serves.", "rows", "full-sync"
    ),
    "isthmus_fullsync_proven_age_seconds": Family(
        "Time since the peer was proven to have all of this cluster's writes; absent: never.",
        "seconds",
        "full-sync",
        ("bucket_type", "peer"),
    ),
}
"""Metric name -> description (see repl.telemetry)."""


def samples(manager: CheckScheduler, wall_ms: int) -> list[Sample]:
    """For Prometheus."""
    found: list[Sample] = [
        ("isthmus_fullsync_running", {}, manager.running is not None),
        ("isthmus_fullsync_repairs_total", {}, manager.queued_total),
    ]
    found += [
        ("isthmus_fullsync_checks_total", {"peer": name, "verdict": verdict.value}, count)
        for (name, verdict), count in manager.totals.items()
    ]
    found += [
        ("isthmus_fullsync_checks_per_day", {"peer": name}, _slots_a_day(peer)) for name, peer in manager.peers.items()
    ]
    found += [
        (
            "isthmus_fullsync_proven_age_seconds",
            {"peer": name, "bucket_type": bucket_type},
            max(0, wall_ms - at_ms) / 1000,
        )
        for name, peer in manager.peers.items()
        for bucket_type, at_ms in peer.history.proven_ms.items()
    ]
    return found


def _slots_a_day(peer: PeerState) -> int:
    return sum(count for kind, count in checks_per_day(peer.settings).items() if kind is not CheckKind.NONE)
