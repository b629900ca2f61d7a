"""Full-sync's status: JSON documents for operators, metrics for Prometheus. Reads only; unknown values are None."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from isthmus.aae.exchange.exchange import ExchangeVerdict, Findings
from isthmus.aae.folds.fold_rpc import text_of
from isthmus.aae.scheduling.check import CONCLUSIVE
from isthmus.aae.scheduling.gap_healing import GapHealer
from isthmus.aae.scheduling.history import CheckResult
from isthmus.aae.scheduling.operator_documents import PeerOverride
from isthmus.aae.scheduling.schedule import RETRIES_MAX, CheckKind, TimeRange, checks_per_day
from isthmus.aae.scheduling.scheduler import CheckScheduler, PeerState
from isthmus.aae.trees.tree_cache import TreeCache
from isthmus.config.text import quantity
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


NAMED_SHOWN: Final = 20
"""Differing keys per bucket type in a listing; `isthmus explain` shows the state of each key."""


class Owner(NamedTuple):
    """The cluster that owns a queue."""

    name: str
    uuid: str
    """In hex."""


Owners = Mapping[str, Owner | None]
"""The queues of this node; None: no cluster has fetched from it yet."""


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


def listed(manager: CheckScheduler, healing: GapHealer, results: int, wall_ms: int, owners: Owners) -> dict[str, Any]:
    """The running check, and every peer with its newest `results`."""
    running = manager.running
    return {
        "running": None
        if running is None
        else {
            "peer": running.peer,
            "kind": running.kind.value,
            "bucket_type": running.bucket_type,
            "began_ms": running.began_ms,
            "by": running.by,
            "state": running.findings.state,
            "branches_differing": running.findings.branches_differing,
            "branches_done": running.findings.branches_done,
            "keys_compared": running.findings.keys_compared,
            "differences": running.findings.differences,
            "queued": running.findings.queued + running.findings.queuing,
            "estimate_s": _estimate_s(running.began_ms, running.findings, wall_ms),
        },
        "peers": [_peer(manager, peer, healing, results, owners) for peer in manager.peers.values()],
    }


def _peer(manager: CheckScheduler, peer: PeerState, healing: GapHealer, results: int, owners: Owners) -> dict[str, Any]:
    settings, history = peer.settings, peer.history
    upcoming = manager.upcoming(settings.name)
    suspended, learned = history.suspended, history.schedule_state.learned
    bucket_types = peer.bucket_types
    delisted = settings.queue not in owners
    owner = owners.get(settings.queue)
    misplaced = "" if owner is None else _misplaced(peer, owner)
    healed = None if delisted else healing.peers.get(settings.name)
    return {
        "name": settings.name,
        "urls": settings.urls.split(","),
        "cluster": settings.cluster or None,
        "origin": "file" if peer.entries == () else "added" if any(one.added for one in peer.entries) else "set",
        "set": [_act_of(one) | {"values": dict(one.values)} for one in peer.entries],
        "auto_left_out": history.schedule_state.suppressed
        or (0 if peer.settings.bidirectional else history.schedule_state.quiet),
        "wants": {kind.value: count for kind, count in checks_per_day(settings).items() if count},
        "all_window": settings.all_window,
        "cluster_slice": settings.cluster_slice,
        "queue": settings.queue,
        "queue_delisted": delisted,
        "queue_of_other": owner.name if owner is not None and misplaced else None,
        "bucket_types": bucket_types,
        "bidirectional": settings.bidirectional,
        "state": "suspended" if suspended is not None else "idle" if peer.plan is None else "scheduled",
        "reason": misplaced or _why(peer)
        if not delisted
        else f"there is no queue {settings.queue}: delisted, or not registered yet; every check ends with an error",
        "suspended": None
        if suspended is None
        else {"by": suspended.by, "at_ms": suspended.at_ms, "reason": suspended.reason},
        "next_ms": peer.retry.at_ms if peer.retry is not None else upcoming[0][0] if upcoming else None,
        "next_kind": peer.retry.kind.value if peer.retry is not None else upcoming[0][1].value if upcoming else None,
        "retry": None if peer.retry is None else {"tries": peer.retry.tries, "reason": peer.retry.reason},
        "range": None if learned is None else _ranged(learned),
        "gaps_open": None if healed is None else healed.open_count,
        "gaps_queues": [] if healed is None else list(healed.open_queues),
        "gaps_uncompared": 0 if healed is None else healed.uncompared_count,
        "gaps_uncompared_types": [] if healed is None else list(healed.uncompared_types),
        "gaps_wait_s": healing.wait_s(settings.name),
        "gaps_closed": 0 if healed is None else healed.closed_count,
        "proven_ms": {name: history.proven_ms.get(name) for name in bucket_types},
        "equal_ms": {name: history.equal_ms.get(name) for name in bucket_types},
        "named": _named(peer),
        "newest": {name: _newest(peer, name, frozenset(ExchangeVerdict)) for name in bucket_types},
        "newest_looked": {name: _newest(peer, name, CONCLUSIVE) for name in bucket_types},
        "results": [shown(result) for result in list(history.results)[-results:]] if results else [],
    }


def operator_overrides(manager: CheckScheduler) -> dict[str, Any]:
    """Peers that operators removed, and overrides that are invalid on this node."""
    return {
        "removed": [{"name": name, **_act_of(one)} for name, one in manager.removed.items()],
        "left_out": [{"name": name, "reason": why} for name, why in manager.faults.items()],
    }


def _act_of(entry: PeerOverride) -> dict[str, Any]:
    return {"by": entry.by, "at_ms": entry.at_ms, "reason": entry.reason}


def _newest(peer: PeerState, bucket_type: str, verdicts: Collection[ExchangeVerdict]) -> dict[str, Any] | None:
    """The newest recorded check of a bucket type with one of `verdicts`."""
    results = (one for one in reversed(peer.history.results) if one.bucket_type == bucket_type)
    return next((shown(one) for one in results if one.verdict in verdicts), None)


def _named(peer: PeerState) -> list[dict[str, str]]:
    """The first differing keys of the newest check of each bucket type."""
    return [
        {
            "bucket_type": text_of(bucket_type),
            "bucket": text_of(bucket),
            "key": text_of(key),
            "difference": difference,
        }
        for bucket_type, named in peer.checker.named.items()
        for (bucket, key), difference in islice(named.keys.items(), NAMED_SHOWN)
    ]


def scheduled(manager: CheckScheduler) -> list[dict[str, Any]]:
    """Every peer's remaining checks of the day, and the skipped ones."""
    return [
        {
            "name": name,
            "suspended": peer.history.suspended is not None,
            "slots": None if peer.plan is None else len(peer.plan.kinds),
            "slot_ms": None if peer.plan is None else peer.plan.slot_ms,
            "retry": None
            if peer.retry is None
            else {"at_ms": peer.retry.at_ms, "kind": peer.retry.kind.value, "tries": peer.retry.tries},
            "checks": [{"at_ms": at_ms, "kind": kind.value} for at_ms, kind in manager.upcoming(name)],
            "skipped": [{"at_ms": one.at_ms, "kind": one.kind.value, "reason": one.reason} for one in peer.skipped],
        }
        for name, peer in manager.peers.items()
    ]


def trees_document(trees: TreeCache) -> dict[str, Any]:
    """Every tree, and the newest mismatches."""
    return {
        "trees": [
            {
                "partition": partition,
                "bucket_type": kept.bucket_type.decode(errors="replace"),
                "state": kept.state.value,
                "reason": kept.reason,
                "offset": kept.offset,
                "built_ms": kept.built_ms,
                "building_keys": None if kept.build is None else kept.build.keys,
                "bytes": None if kept.tree is None else kept.tree.allocated_bytes,
            }
            for partition, kept in sorted(trees.cached.items())
        ],
        "mismatches": [one._asdict() for one in trees.mismatches],
    }


def shown(result: CheckResult) -> dict[str, Any]:
    """A result as a JSON document."""
    return {**asdict(result), "differences": dict(result.differences)}


def _misplaced(peer: PeerState, owner: Owner) -> str:
    """Why repairs go to the wrong cluster: their queue belongs to another cluster than the compared one. "" if it does
    not, or while the compared cluster is unknown."""
    settings, uuid = peer.settings, peer.history.cluster
    if (uuid == owner.uuid) if uuid else settings.cluster in ("", owner.name):
        return ""
    compared = settings.cluster or f"cluster {uuid}"
    whose = owner.name if owner.name != compared else f"another cluster of that name, {owner.uuid}"
    return (
        f"queue {settings.queue} belongs to {whose}, and {compared} is compared with: repairs go to the wrong cluster; "
        f"name a queue that {compared} fetches from, or release this one (isthmus queue release)"
    )


def _why(peer: PeerState) -> str:
    suspended = peer.history.suspended
    if suspended is not None:
        because = f": {suspended.reason}" if suspended.reason else ""
        return f"by {suspended.by}{because}"
    if peer.plan is None:
        return "no checks are configured: all counts are 0"
    if peer.waiting_for:
        return f"waits: {peer.waiting_for}"
    if peer.retry is not None:
        return f"could not look, tried again ({peer.retry.tries} of {RETRIES_MAX}): {peer.retry.reason}"
    return f"{quantity(len(peer.plan.kinds), 'check')} a day"


def _slots_a_day(peer: PeerState) -> int:
    return sum(count for kind, count in checks_per_day(peer.settings).items() if kind is not CheckKind.NONE)


def _ranged(times: TimeRange) -> dict[str, Any]:
    bucket, encoded = None, None
    if times.bucket is not None:
        bucket, encoded = times.bucket.decode(errors="replace"), quote(times.bucket, safe="")
    return {
        "since_ms": times.since_ms,
        "before_ms": times.before_ms,
        "bucket": bucket,
        "bucket_encoded": encoded,
    }


def _estimate_s(began_ms: int, findings: Findings, wall_ms: int) -> float | None:
    """Estimated seconds until the running check ends, by its finished branches; None before the first one."""
    done, every = findings.branches_done, findings.branches_differing
    return round((wall_ms - began_ms) / 1000 * (every - done) / done, 1) if done else None
