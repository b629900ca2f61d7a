"""The scheduler of a node's checks: which one is due, one at a time, and its result.

It makes each day's plan for all peers (`aae.scheduling.schedule`), sets an alarm for the next moment, runs the check
(`aae.scheduling.check`) and records the result (`aae.scheduling.history`). Operators run checks, suspend peers and set
ranges through it. Nodes and clusters are not coordinated: their moments within a slot differ, and a check that is late
because another one still runs on this node is skipped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import structlog

from isthmus.aae.exchange.exchange import PROVING, ExchangeVerdict, Findings
from isthmus.aae.exchange.run import ExchangeOutcome
from isthmus.aae.ports import Members, PeerAccess, QueueTypes
from isthmus.aae.scheduling.alarm import Alarm
from isthmus.aae.scheduling.check import CONCLUSIVE, PeerCheck, PeerChecker
from isthmus.aae.scheduling.history import CheckResult, FullSyncHistory, PeerHistory, Suspended
from isthmus.aae.scheduling.operator_documents import (
    EffectivePeer,
    FullSyncSuspension,
    OperatorDocuments,
    PeerOverride,
    effective_peers,
    suspension_for,
)
from isthmus.aae.scheduling.proofs import CheckProofs, PendingProof
from isthmus.aae.scheduling.schedule import (
    CheckHours,
    CheckKind,
    DayPlan,
    Due,
    Retry,
    SchedulePlace,
    TimeRange,
    checks_per_day,
    choose_auto,
    compared_times,
    day_start,
    learned_range,
    next_due,
    parse_window,
    plan_day,
    rank_of,
    retry_after,
    slot_moment,
    state_after,
    widened,
)
from isthmus.config.settings import ALL_TYPES, FullSyncSettings
from isthmus.repl.model.errors import BadInput, InternalError, IsthmusError, LocalFault, NotReady, Retryable
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.ordered_set import OrderedSet
from isthmus.repl.unforeseen import unforeseen

SKIPPED_KEPT: Final = 50
"""Newest skipped slots per peer, shown to operators."""


class Skipped(NamedTuple):
    """A slot that was skipped, and why."""

    at_ms: int
    kind: CheckKind
    reason: str


@dataclass(slots=True)
class PeerState:
    """One peer."""

    settings: FullSyncSettings
    place: int
    checker: PeerChecker
    history: PeerHistory
    window: CheckHours
    types: Callable[[], Sequence[str]]
    """The bucket types that are compared now: those in the settings, or all."""
    plan: DayPlan | None = None
    entries: tuple[PeerOverride, ...] = ()
    """Overrides of operators that its settings include."""
    slot: int = -1
    """The newest slot of the plan that is done or skipped."""
    from_ms: int = 0
    """Wall clock from which the plan counts: earlier moments are ignored."""
    seen_ms: int = 0
    """The latest wall clock at which the plan was evaluated."""
    retry: Retry | None = None
    """The retry of a due check that could not compare."""
    incomplete_reason: str = ""
    """Why the newest check could not compare for now; "" if it could."""
    waiting_for: str = ""
    """Why due checks do not begin: this cluster has nothing to compare yet."""
    skipped: deque[Skipped] = field(default_factory=lambda: deque(maxlen=SKIPPED_KEPT))

    @property
    def bucket_types(self) -> list[str]:
        """Bucket types that are compared now."""
        return list(self.types())


class Running(NamedTuple):
    """The running check."""

    peer: str
    kind: CheckKind
    bucket_type: str
    began_ms: int
    by: str
    findings: Findings


log = structlog.get_logger(__name__)

LEARNS_FROM: Final = 1_000
"""More repairs than half of this in one check define the range of the next."""

UNPLACED_POLL_MS: Final = 1_000
"""Interval at which a due check waits for its bucket types; a new cluster is placed within seconds."""


class UnknownPeer(BadInput):
    """There is no [[fullsync]] of that name."""

    reason = "unknown-fullsync"


class Busy(Retryable):
    """A check is running; a node runs one at a time."""

    reason = "busy"


class Checkers(Protocol):
    """Opens connections to peers."""

    def open(self, settings: FullSyncSettings) -> PeerChecker:
        """The checker of a peer. Raises IsthmusError, such as for missing certificates."""


@dataclass(frozen=True)
class CheckCluster:
    """This node's cluster, as the schedule of checks needs it."""

    node: str
    """The name of this node."""
    members: Members
    queue_types: QueueTypes
    skew_ms: Callable[[Sequence[str]], int]
    """`skew_ms(urls)`: how far a clock of this cluster, or of the one at `urls`, may be from this node's."""


class CheckScheduler:
    """All methods run on the event loop."""

    def __init__(
        self,
        settings: Sequence[FullSyncSettings],
        cluster: CheckCluster,
        *,
        checkers: Checkers,
        history: FullSyncHistory,
        alarm: Alarm,
        proofs: CheckProofs,
        time: TimeSource,
    ) -> None:
        self._settings = settings
        self._node = cluster.node
        self._checkers = checkers
        self._history = history
        self._alarm = alarm
        self._members = cluster.members
        self._queue_types = cluster.queue_types
        self._proofs = proofs
        self._skew_ms = cluster.skew_ms
        self._time = time
        self._tasks: OrderedSet[asyncio.Task[Any]] = OrderedSet()
        self.peers: dict[str, PeerState] = {}
        self.faults: dict[str, str] = {}
        """Peer -> why its overrides are invalid here."""
        self.removed: Mapping[str, PeerOverride] = {}
        """Peers of this node's file that operators removed."""
        self._reserved_by = ""
        self._checking: PeerState | None = None
        self._started = False
        self._stopping = False
        self.running: Running | None = None
        self.totals: dict[tuple[str, ExchangeVerdict], int] = {}
        """(peer, verdict) -> checks of bucket types that ended so since this node's start."""
        self.queued_total = 0
        self.checked = asyncio.Event()
        """Set at the end of each check, also of a failed one; `aae.scheduling.gap_healing` clears it."""

    # -- start and stop ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the history, plan, and set the alarm. Raises LocalFault."""
        self._history.load()
        self._started = True
        self.set_peers([EffectivePeer(settings, ()) for settings in self._settings], None)

    def apply_documents(self, documents: OperatorDocuments, access: PeerAccess) -> None:
        """Apply operators' settings as read now."""
        found = effective_peers(self._node, self._settings, documents.peers.value, access)
        self.removed, self.faults = found.removed, dict(found.faults)
        document = documents.suspensions
        suspensions = document.value if document.was_read else None
        if suspensions is None and document.error:
            reason = f"it is not known what: {document.error}"
            suspensions = (FullSyncSuspension(None, None, "?", self._time.wall_ms(), reason),)
        self.set_peers(found.peers, suspensions)

    def set_peers(self, peers: Sequence[EffectivePeer], suspensions: Sequence[FullSyncSuspension] | None) -> None:
        """Replace the peers and suspensions; `suspensions` None: not read yet, the saved ones count. A running check
        goes on even if its peer changes or goes away."""
        found: dict[str, PeerState] = {}
        for place, one in enumerate(peers):
            name, before = one.settings.name, self.peers.get(one.settings.name)
            if before is not None and (before.settings, before.entries) == one:
                before.place = place
                found[name] = before
                continue
            try:
                found[name] = self._open_peer(place, one)
            except IsthmusError as error:  # such as missing certificates: keep the previous settings
                log.error("fullsync.peer_not_usable", peer=name, error=str(error))
                self.faults[name] = str(error)
                if before is not None:
                    found[name] = before
        for name, before in self.peers.items():
            if found.get(name) is not before:
                self._close(before)
            if name not in found:
                self._history.forget(name)
                log.info("fullsync.peer_removed", peer=name)
        self.peers = found
        for peer in self.peers.values():
            self._suspend(peer, suspensions)
        self.arm()

    def _open_peer(self, place: int, one: EffectivePeer) -> PeerState:
        """A peer with these settings and its history; its day's plan begins now."""
        settings = one.settings
        checker, history = self._checkers.open(settings), self._history.peer(settings.name)
        history.compares_by(settings.queue, one.added_ms)
        checker.named.update(history.named)
        window, types = parse_window(settings.all_window), partial(self.types_of, settings)
        now_ms = self._time.wall_ms()
        return PeerState(settings, place, checker, history, window, types, from_ms=now_ms, entries=one.entries)

    def _close(self, peer: PeerState) -> None:
        if peer is not self._checking:
            peer.checker.close()

    def _suspend(self, peer: PeerState, suspensions: Sequence[FullSyncSuspension] | None) -> None:
        """Apply operators' suspensions. One that an earlier version recorded on this node only stays until a resume."""
        before = peer.history.suspended
        if suspensions is None:
            return
        found = suspension_for(peer.settings.name, self._node, suspensions)
        if found is not None:
            peer.history.suspended, peer.retry = Suspended(found.by, found.at_ms, found.reason, stored=True), None
        elif before is not None and before.stored:
            peer.history.suspended = None

    def types_of(self, settings: FullSyncSettings) -> Sequence[str]:
        """Bucket types that a peer of these settings compares now."""
        if settings.bucket_types == ALL_TYPES:
            return self._queue_types.repair_types(settings.queue)
        return settings.bucket_types.split(",")

    def _unplaced(self, settings: FullSyncSettings) -> str:
        """Why a bucket type of the peer has no partitions yet; "" if all have, and for unknown bucket types, which the
        check reports."""
        try:
            for name in self.types_of(settings):
                self._members.partitions(name.encode())
        except NotReady as error:
            return str(error)
        except BadInput:
            pass
        return ""

    async def stop(self) -> None:
        """Cancel the running check, and start no other."""
        self._stopping = True
        self._alarm.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self.peers.values():
            peer.checker.close()

    # -- schedule ---------------------------------------------------------------------------------------

    def _slot_position(self, peer: PeerState) -> SchedulePlace:
        rank, nodes = rank_of(self._node, list(self._members.nodes()))
        return SchedulePlace(rank, nodes, peer.place, len(self.peers), peer.settings.cluster_slice)

    def _next(self, peer: PeerState, now_ms: int) -> Due | None:
        """The peer's next check; makes plans and skips late slots as needed. None: no checks are configured."""
        if peer.plan is not None and now_ms < peer.seen_ms - peer.plan.slot_ms:
            # The clock was set back by more than a slot: plan as after a restart.
            peer.plan, peer.from_ms, peer.seen_ms = None, now_ms, now_ms
        peer.seen_ms = max(peer.seen_ms, now_ms)
        day_ms = day_start(now_ms)
        while True:
            if peer.plan is None:
                peer.plan, peer.slot = plan_day(checks_per_day(peer.settings), day_ms, self._seed_of(peer)), -1
            plan, place = peer.plan, self._slot_position(peer)
            if plan is None:
                return None
            found, late = next_due(plan, place, peer.slot, peer.from_ms, now_ms)
            for slot in late:
                self._skip(peer, slot_moment(plan, slot, place), plan.kinds[slot], "late")
                peer.slot = slot
            if found is not None:
                return found
            peer.plan, day_ms = None, max(plan.end_ms, day_start(now_ms))

    def _seed_of(self, peer: PeerState) -> str:
        return f"{self._node}\n{peer.settings.name}"

    def _skip(self, peer: PeerState, at_ms: int, kind: CheckKind, reason: str) -> None:
        peer.skipped.append(Skipped(at_ms, kind, reason))
        log.info("fullsync.skipped", peer=peer.settings.name, kind=kind.value, reason=reason)

    def arm(self) -> None:
        """Set the alarm for the next due moment by the current clock. Does nothing during a check, whose end calls this
        again."""
        if self._reserved_by:
            return
        now_ms = self._time.wall_ms()
        moments = []
        for peer in self.peers.values():
            dates = [one.at_ms for one in (self._next(peer, now_ms), peer.retry) if one is not None]
            moments += [max(at, now_ms + UNPLACED_POLL_MS * bool(peer.waiting_for)) for at in dates]
        if moments and self._started and not self._stopping:
            self._alarm.set_at(min(moments), self._start_due)

    def _start_due(self) -> None:
        """Start the check that is due."""
        if self._reserved_by:
            return
        now_ms = self._time.wall_ms()
        for peer in self.peers.values():
            found = self._next(peer, now_ms)
            if found is None or peer.plan is None:
                continue
            retry, (slot, kind, at_ms) = peer.retry, found
            is_due = at_ms <= now_ms or (retry is not None and retry.at_ms <= now_ms)
            peer.waiting_for = self._unplaced(peer.settings) if is_due else ""
            if peer.waiting_for and peer.history.suspended is None:
                continue
            if at_ms <= now_ms:
                peer.retry = retry = None
                peer.slot = slot
            elif retry is not None and retry.at_ms <= now_ms:
                peer.retry = None
                at_ms, kind = retry.at_ms, retry.kind
                if now_ms > at_ms + peer.plan.slot_ms // 2:
                    self._skip(peer, at_ms, kind, "late")
                    continue
            else:
                continue
            suspended = peer.history.suspended
            if suspended is not None:
                self._skip(peer, at_ms, kind, f"suspended by {suspended.by}")
            elif kind is not CheckKind.NONE:
                self._reserve(peer)
                self._spawn(self._check_each([peer.settings.name], kind, by="", before=retry))
                return  # other due checks wait for its end, until they are late
        self.arm()

    # -- checks -----------------------------------------------------------------------------------------

    async def run(self, name: str, kind: CheckKind, by: str, times: TimeRange | None = None) -> list[CheckResult]:
        """Run a check of every bucket type of a peer now, also of a suspended one. `times` replaces those of the kind.
        Raises UnknownPeer, Busy, NotReady."""
        self._reserve(self.peer(name))
        return await self._check_each([name], kind, by, times)

    def begin(self, name: str | None, kind: CheckKind, by: str) -> list[str]:
        """Start checks of one peer, or (None) of all in turn, without waiting; returns their names. Raises UnknownPeer,
        Busy, NotReady."""
        self._require_peers()
        names = [peer.settings.name for peer in self._peers_named(name)]
        self._reserve(self.peer(names[0]))
        self._spawn(self._check_each(names, kind, by))
        return names

    def _reserve(self, peer: PeerState) -> None:
        if self._stopping:
            raise NotReady("this node is stopping: ask another one")
        if self._reserved_by:
            raise Busy(f"a check of {self._reserved_by} is running; one runs at a time on a node")
        self._reserved_by = peer.settings.name

    async def _check_each(
        self,
        names: Sequence[str],
        kind: CheckKind,
        by: str,
        times: TimeRange | None = None,
        before: Retry | None = None,
    ) -> list[CheckResult]:
        """The checks for which `_reserve` was called; `before`: the retry that this is."""
        results: list[CheckResult] = []
        failure: Exception | None = None
        try:
            for peer in filter(None, map(self.peers.get, names)):
                self._reserved_by = peer.settings.name
                try:
                    results += await self._check(peer, kind, by, times, before)
                except IsthmusError as error:
                    log.error("fullsync.check_ended", peer=peer.settings.name, error=str(error))
                    failure = error
                except Exception as error:  # noqa: BLE001 -- the other peers are compared all the same
                    failure = unforeseen.exception("fullsync.bug", error, peer=peer.settings.name)
        finally:
            self.running, self._reserved_by = None, ""
            self.arm()
        if by and failure is not None and len(names) == 1:
            raise failure
        return results

    async def _check(
        self, peer: PeerState, kind: CheckKind, by: str, times: TimeRange | None, before: Retry | None
    ) -> list[CheckResult]:
        self._checking = peer
        try:
            return await self._check_types(peer, kind, by, times)
        except LocalFault:
            return []  # the results are in the log, and so is the failure to save them
        finally:
            if not by and peer.incomplete_reason and peer.history.suspended is None:
                now_ms = self._time.wall_ms()
                found = self._next(peer, now_ms)
                peer.retry = retry_after(
                    before, kind, peer.incomplete_reason, now_ms, None if found is None else found.at_ms
                )
            self._checking = None
            now = self.peers.get(peer.settings.name)
            if now is not peer:  # replaced or removed meanwhile
                peer.checker.close()
                if now is not None and now.settings.queue == peer.settings.queue:
                    now.checker.named.update(peer.checker.named)
            self.checked.set()

    async def _check_types(
        self, peer: PeerState, kind: CheckKind, by: str, given: TimeRange | None
    ) -> list[CheckResult]:
        began_ms = self._time.wall_ms()
        history = peer.history
        peer.incomplete_reason = ""
        if kind is CheckKind.AUTO:
            kind, history.schedule_state = choose_auto(
                history.schedule_state, peer.window, began_ms, both_ways=peer.settings.bidirectional
            )
        if kind is CheckKind.NONE:
            await self._save()  # how many are still to be left out
            return []
        state = history.schedule_state
        skew_ms = self._skew_ms(peer.settings.urls.split(","))
        times = widened(given or compared_times(kind, state, began_ms), skew_ms)
        results: list[CheckResult] = []
        modified: list[int] = []
        buckets: set[bytes] = set()
        for name in peer.bucket_types:
            findings = Findings()
            now_ms = self._time.wall_ms()
            self.running = Running(peer.settings.name, kind, name, now_ms, by, findings)
            results.append(await self._check_type(peer, PeerCheck(name, kind, times, by, now_ms), findings))
            modified += peer.checker.modified_ms
            buckets |= peer.checker.buckets
        repaired = sum(result.queued for result in results)
        if not peer.incomplete_reason:
            peer.retry = None
        if repaired or not peer.incomplete_reason:  # who could not look has not failed to find both equal
            ended = state_after(
                state,
                kind,
                began_ms,
                up_to_date=all(result.verdict in PROVING or result.lacking for result in results),
                repaired=repaired,
                learned=learned_range(modified, buckets, LEARNS_FROM),
                own_times=given is not None,
                quiet_checks=peer.settings.auto_suppress_count,
            )
            if history.schedule_state is not state:  # an operator has set a range meanwhile
                ended = replace(
                    ended, learned=history.schedule_state.learned, suppressed=history.schedule_state.suppressed
                )
            history.schedule_state = ended
        await self._save()
        return results

    async def _check_type(self, peer: PeerState, check: PeerCheck, findings: Findings) -> CheckResult:
        began = self._time.now_ms()
        pending = await self._begin_proof(peer, check)
        try:
            outcome = await peer.checker.check(check, findings)
        except IsthmusError:
            raise
        except Exception as error:  # noqa: BLE001 -- the other bucket types are compared all the same
            bug = unforeseen.exception("fullsync.bug", error, peer=peer.settings.name, bucket_type=check.bucket_type)
            outcome = ExchangeOutcome(ExchangeVerdict.ERROR, str(bug), findings, retryable=True)
        # Trees are compared whole, whatever the check's times. A check that asks the other side for repairs may queue
        # such keys alone, and then proves as much as one that does not.
        proven = outcome.verdict in PROVING or (
            outcome.verdict in CONCLUSIVE and findings.differences > 0 and findings.up_to_date
        )
        proof = await self._proofs.end(pending, check.bucket_type.encode()) if proven and pending is not None else None
        if outcome.retryable:
            peer.incomplete_reason = outcome.reason
        wanted = findings.differences - (0 if peer.settings.bidirectional else findings.ahead)
        result = CheckResult(
            bucket_type=check.bucket_type,
            kind=check.kind,
            began_ms=check.began_ms,
            seconds=(self._time.now_ms() - began) / 1000,
            verdict=outcome.verdict,
            reason=outcome.reason,
            proven=proven,
            segments=findings.segments_compared,
            keys=findings.keys_compared,
            differences={f"{kind.value}@{side.value}": count for (kind, side), count in findings.by_kind.items()},
            queued=findings.queued,
            left=max(0, wanted - findings.queued),
            transient=findings.transient,
            filtered=findings.filtered,
            by=check.by,
            unexplained=findings.segments_unexplained,
            segments_ahead=findings.segments_ahead,
            lacking=outcome.type_missing,
            refused=outcome.refused,
        )
        name = peer.settings.name
        peer.history.results.append(result)
        named = peer.checker.named.get(check.bucket_type.encode())
        if named is not None:
            peer.history.name(check.bucket_type.encode(), named)
        peer.history.answered(peer.checker.cluster)
        if proven:
            peer.history.proven_ms[check.bucket_type] = check.began_ms
        if proof is not None:
            peer.history.proofs[check.bucket_type] = proof.after(peer.history.proofs.get(check.bucket_type))
        if outcome.verdict is ExchangeVerdict.IN_SYNC:
            peer.history.equal_ms[check.bucket_type] = check.began_ms
        self.totals[name, result.verdict] = self.totals.get((name, result.verdict), 0) + 1
        self.queued_total += findings.queued
        tell = log.warning if outcome.verdict in (ExchangeVerdict.ERROR, ExchangeVerdict.TIMED_OUT) else log.info
        tell(
            "fullsync.checked",
            peer=name,
            bucket_type=check.bucket_type,
            kind=check.kind.value,
            verdict=result.verdict.value,
            reason=result.reason,
            seconds=result.seconds,
            differences=dict(result.differences),
            queued=result.queued,
        )
        return result

    async def _begin_proof(self, peer: PeerState, check: PeerCheck) -> PendingProof | None:
        """The facts from before a check; None for an unknown queue, which the check reports."""
        try:
            return await self._proofs.begin(peer.settings.queue, check.bucket_type.encode())
        except IsthmusError:
            return None

    # -- acts of operators ------------------------------------------------------------------------------

    def peer(self, name: str) -> PeerState:
        """The peer of that name. Raises UnknownPeer."""
        found = self.peers.get(name)
        if found is None:
            known = ", ".join(sorted(self.peers)) or "none is configured"
            raise UnknownPeer(f"there is no full-sync {name!r} on this node; known: {known}")
        return found

    async def suspend(self, name: str | None, by: str, reason: str) -> None:
        """Suspend checks of a peer, or of all, on this node only, over restarts: what nodes of an earlier version
        request. Raises UnknownPeer, LocalFault."""
        at_ms = self._time.wall_ms()
        for peer in self._peers_named(name):
            peer.history.suspended, peer.retry = Suspended(by, at_ms, reason), None
        await self._save()

    async def resume(self, name: str | None) -> None:
        """Lift suspensions on this node only. Raises UnknownPeer, LocalFault."""
        for peer in self._peers_named(name):
            if peer.history.suspended is not None and not peer.history.suspended.stored:
                peer.history.suspended = None
        await self._save()

    async def set_range(self, name: str | None, times: TimeRange | None) -> None:
        """Set the range of the next check of kind range, of one peer or (None) of all; `times` None: the default.
        Raises UnknownPeer, LocalFault."""
        self._require_peers()
        for peer in self._peers_named(name):
            peer.history.schedule_state = replace(peer.history.schedule_state, learned=times)
        await self._save()

    async def suppress_auto(self, name: str | None, count: int) -> None:
        """Skip the next `count` checks of kind auto, of one peer or (None) of all; 0: none. Raises UnknownPeer,
        LocalFault."""
        self._require_peers()
        for peer in self._peers_named(name):
            peer.history.schedule_state = replace(peer.history.schedule_state, suppressed=count)
        await self._save()

    def upcoming(self, name: str) -> list[tuple[int, CheckKind]]:
        """(moment, kind) of the remaining checks of the peer's plan. Raises UnknownPeer."""
        peer = self.peer(name)
        if peer.plan is None:
            return []
        place = self._slot_position(peer)
        moments = ((slot_moment(peer.plan, slot, place), kind) for slot, kind in enumerate(peer.plan.kinds))
        return [one for slot, one in enumerate(moments) if slot > peer.slot and one[0] >= peer.from_ms]

    def _require_peers(self) -> None:
        if not self.peers:
            raise UnknownPeer("this node compares with no cluster: it has no [[fullsync]]")

    def _peers_named(self, name: str | None) -> list[PeerState]:
        return list(self.peers.values()) if name is None else [self.peer(name)]

    async def _save(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._history.prepare_save())
        except LocalFault as error:
            log.error("fullsync.not_remembered", error=str(error))
            raise

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None or isinstance(error, InternalError):
            return  # the last was noted where it was caught
        unforeseen.exception("fullsync.bug", error)
