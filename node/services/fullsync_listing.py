"""What this node compares with other clusters, as operators see it. Reads only; unknown values are None."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from itertools import islice
from typing import Any, Final
from urllib.parse import quote

from isthmus.aae.exchange.exchange import ExchangeVerdict
from isthmus.aae.folds.fold_rpc import text_of
from isthmus.aae.scheduling.check import CONCLUSIVE
from isthmus.aae.scheduling.gap_healing import GapHealer
from isthmus.aae.scheduling.history import CheckResult
from isthmus.aae.scheduling.schedule import RETRIES_MAX, TimeRange, checks_per_day
from isthmus.aae.scheduling.scheduler import CheckScheduler, PeerState
from isthmus.aae.trees.tree_cache import TreeCache
from isthmus.config.text import quantity
from isthmus.node.nouns.fullsync import (
    CheckRange,
    CheckResultRow,
    CheckRetry,
    DifferingKey,
    DueCheckRow,
    FullSyncPeerRow,
    PeerDay,
    PeerLeftOut,
    PeerResultRow,
    PeerSettingsRow,
    RemovedPeer,
    RetryRow,
    RunningCheckRow,
    SkippedCheck,
    TreeMismatchRow,
    TreeParts,
    TreeRow,
)
from isthmus.node.nouns.rows import SignedAct
from isthmus.node.services.queue_coverage import Owner, Owners

NAMED_SHOWN: Final = 20
"""Differing keys per bucket type in a listing; `isthmus explain` shows the state of each key."""


def running_check(manager: CheckScheduler, wall_ms: int) -> RunningCheckRow | None:
    """The check that runs now."""
    running = manager.running
    if running is None:
        return None
    found = running.findings
    done, every = found.branches_done, found.branches_differing
    left_s = round((wall_ms - running.began_ms) / 1000 * (every - done) / done, 1) if done else None
    return RunningCheckRow(
        running.peer,
        running.kind.value,
        running.bucket_type,
        running.began_ms,
        running.by,
        found.state,
        every,
        done,
        found.keys_compared,
        found.differences,
        found.queued + found.queuing,
        left_s,
    )


def peer_row(
    manager: CheckScheduler,
    peer: PeerState,
    healing: GapHealer,
    results: int,
    owners: Owners,
    *,
    compares: dict[str, list[str]],
    equal_types: list[str],
) -> FullSyncPeerRow:
    """A peer with its newest `results`. `compares`: queue -> the bucket types that its checks prove; `equal_types`:
    those of which both clusters are to have the same."""
    settings, history = peer.settings, peer.history
    upcoming = manager.upcoming(settings.name)
    suspended, learned = history.suspended, history.schedule_state.learned
    bucket_types = peer.bucket_types
    delisted = settings.queue not in owners
    owner = owners.get(settings.queue)
    misplaced = "" if owner is None else _misplaced(peer, owner)
    healed = None if delisted else healing.peers.get(settings.name)
    following = peer.retry if peer.retry is not None else None
    return FullSyncPeerRow(
        name=settings.name,
        urls=settings.urls.split(","),
        cluster=settings.cluster or None,
        origin="file" if peer.entries == () else "added" if any(one.added for one in peer.entries) else "set",
        set=[PeerSettingsRow(one.by, one.at_ms, one.reason, dict(one.values)) for one in peer.entries],
        auto_left_out=history.schedule_state.suppressed
        or (0 if settings.bidirectional else history.schedule_state.quiet),
        wants={kind.value: count for kind, count in checks_per_day(settings).items() if count},
        all_window=settings.all_window,
        cluster_slice=settings.cluster_slice,
        queue=settings.queue,
        queue_delisted=delisted,
        queue_of_other=owner.name if owner is not None and misplaced else None,
        bucket_types=bucket_types,
        bidirectional=settings.bidirectional,
        state="suspended" if suspended is not None else "idle" if peer.plan is None else "scheduled",
        reason=misplaced or _why(peer)
        if not delisted
        else f"there is no queue {settings.queue}: delisted, or not registered yet; every check ends with an error",
        suspended=None if suspended is None else SignedAct(suspended.by, suspended.at_ms, suspended.reason),
        next_ms=following.at_ms if following is not None else upcoming[0][0] if upcoming else None,
        next_kind=following.kind.value if following is not None else upcoming[0][1].value if upcoming else None,
        retry=None if following is None else CheckRetry(following.tries, following.reason),
        range=None if learned is None else _ranged(learned),
        gaps_open=None if healed is None else healed.open_count,
        gaps_queues=[] if healed is None else list(healed.open_queues),
        gaps_uncompared=0 if healed is None else healed.uncompared_count,
        gaps_uncompared_types=[] if healed is None else list(healed.uncompared_types),
        gaps_wait_s=healing.wait_s(settings.name),
        gaps_closed=0 if healed is None else healed.closed_count,
        proven_ms={name: history.proven_ms.get(name) for name in bucket_types},
        equal_ms={name: history.equal_ms.get(name) for name in bucket_types},
        equal_types=equal_types,
        both_ways=bool(equal_types),
        compares=compares,
        named=_named(peer),
        newest={name: _newest(peer, name, frozenset(ExchangeVerdict)) for name in bucket_types},
        newest_looked={name: _newest(peer, name, CONCLUSIVE) for name in bucket_types},
        results=[result_row(result) for result in list(history.results)[-results:]] if results else [],
    )


def removed_peers(manager: CheckScheduler) -> list[RemovedPeer]:
    """Peers that operators removed."""
    return [RemovedPeer(name, one.by, one.at_ms, one.reason) for name, one in manager.removed.items()]


def peers_left_out(manager: CheckScheduler) -> list[PeerLeftOut]:
    """Peers whose settings are not valid on this node."""
    return [PeerLeftOut(name, why) for name, why in manager.faults.items()]


def _newest(peer: PeerState, bucket_type: str, verdicts: Collection[ExchangeVerdict]) -> CheckResultRow | None:
    """The newest recorded check of a bucket type with one of `verdicts`."""
    results = (one for one in reversed(peer.history.results) if one.bucket_type == bucket_type)
    return next((result_row(one) for one in results if one.verdict in verdicts), None)


def _named(peer: PeerState) -> list[DifferingKey]:
    """The first differing keys of the newest check of each bucket type."""
    return [
        DifferingKey(text_of(bucket_type), text_of(bucket), text_of(key), difference)
        for bucket_type, named in peer.checker.named.items()
        for (bucket, key), difference in islice(named.keys.items(), NAMED_SHOWN)
    ]


def rest_of_day(manager: CheckScheduler) -> list[PeerDay]:
    """Every peer's remaining checks of the day, and the skipped ones."""
    return [
        PeerDay(
            name,
            peer.history.suspended is not None,
            None if peer.plan is None else len(peer.plan.kinds),
            None if peer.plan is None else peer.plan.slot_ms,
            None if peer.retry is None else RetryRow(peer.retry.at_ms, peer.retry.kind.value, peer.retry.tries),
            [DueCheckRow(at_ms, kind.value) for at_ms, kind in manager.upcoming(name)],
            [SkippedCheck(one.at_ms, one.kind.value, one.reason) for one in peer.skipped],
        )
        for name, peer in manager.peers.items()
    ]


def tree_rows(trees: TreeCache) -> TreeParts:
    """Every tree, and the newest mismatches."""
    rows = [
        TreeRow(
            partition=partition,
            bucket_type=kept.bucket_type.decode(errors="replace"),
            state=kept.state.value,
            reason=kept.reason,
            offset=kept.offset,
            built_ms=kept.built_ms,
            building_keys=None if kept.build is None else kept.build.keys,
            bytes=None if kept.tree is None else kept.tree.allocated_bytes,
        )
        for partition, kept in sorted(trees.cached.items())
    ]
    return TreeParts(rows, [TreeMismatchRow(*one) for one in trees.mismatches])


def result_row(result: CheckResult) -> CheckResultRow:
    """A result."""
    return CheckResultRow(**_values_of(result))


def result_of_peer(peer: str, result: CheckResult) -> PeerResultRow:
    """A result with its peer."""
    return PeerResultRow(peer=peer, **_values_of(result))


def _values_of(result: CheckResult) -> dict[str, Any]:
    return {
        **asdict(result),
        "kind": result.kind.value,
        "verdict": result.verdict.value,
        "differences": dict(result.differences),
    }


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


def _ranged(times: TimeRange) -> CheckRange:
    bucket, encoded = None, None
    if times.bucket is not None:
        bucket, encoded = times.bucket.decode(errors="replace"), quote(times.bucket, safe="")
    return CheckRange(times.since_ms, times.before_ms, bucket, encoded)
