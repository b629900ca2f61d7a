"""The manager of a node's full-sync: which check is due, one at a time, and what became of it.

It knows the peers of the settings, makes each day's plan (`aae.scheduling.schedule`), lets an alarm ring at the next
moment, runs the check (`aae.scheduling.check`), and remembers (`aae.scheduling.history`). Operators run checks, suspend
peers and set ranges through it. Nodes and clusters are not coordinated: moments within a slot are apart, and on one
node a check that is still running makes the next one late, so that it is left out.

The state of each peer and of the check that runs is plain values here: only the manager changes them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from isthmus.aae.exchange.exchange import ExchangeVerdict, Findings
from isthmus.aae.scheduling.alarm import Alarm
from isthmus.aae.scheduling.check import PeerCheck, PeerChecker
from isthmus.aae.scheduling.history import CheckResult, History, PeerHistory, Suspended
from isthmus.aae.scheduling.operator_documents import (
    SUSPENSIONS_PATH,
    FullSyncSuspension,
    OperatorDocuments,
    PeerInForce,
    PeerOverride,
    in_force,
    suspension_for,
)
from isthmus.aae.scheduling.schedule import (
    CheckHours,
    CheckKind,
    DayPlan,
    Due,
    Retry,
    SchedulePlace,
    TimeRange,
    after,
    again,
    chosen,
    day_of,
    due,
    learned_range,
    looked_at,
    moment,
    planned,
    rank_of,
    wants_of,
    window_of,
)
from isthmus.config.settings import ALL_TYPES, FullSyncSettings
from isthmus.repl.model.errors import BadInput, IsthmusError, LocalFault, NotReady, Retryable
from isthmus.repl.model.ports import TimeSource

SKIPPED_KEPT: Final = 50
"""Newest slots of a peer that were left out, shown to operators."""


class Skipped(NamedTuple):
    """A slot that was left out, and why."""

    at_ms: int
    kind: CheckKind
    reason: str


@dataclass(slots=True)
class PeerState:
    """One other cluster, as the manager keeps it."""

    settings: FullSyncSettings
    place: int
    checker: PeerChecker
    remembered: PeerHistory
    window: CheckHours
    types: Callable[[], Sequence[str]]
    """What its `bucket_types` come to now: those that are named, or all that there are."""
    plan: DayPlan | None = None
    entries: tuple[PeerOverride, ...] = ()
    """What operators want of it that its settings come from."""
    slot: int = -1
    """The newest slot of the plan that has had its turn."""
    from_ms: int = 0
    """When (wall clock) the plan began to count here: earlier moments have gone by."""
    seen_ms: int = 0
    """The latest time (wall clock) at which it was looked what is due."""
    retry: Retry | None = None
    """What was due and could not look is tried again."""
    unseen: str = ""
    """Why the newest check could not look at everything that soon may be; "" when it could."""
    waits: str = ""
    """Why no check that is due begins: this cluster has nothing to compare yet."""
    skipped: deque[Skipped] = field(default_factory=lambda: deque(maxlen=SKIPPED_KEPT))

    @property
    def bucket_types(self) -> list[str]:
        """Bucket types that are compared now."""
        return list(self.types())


class Running(NamedTuple):
    """The check that runs now."""

    peer: str
    kind: CheckKind
    bucket_type: str
    began_ms: int
    by: str
    findings: Findings


log = structlog.get_logger(__name__)

LEARNS_FROM: Final = 1_000
"""Repairs of one check above half of which their range is learned."""

UNPLACED_LOOK_MS: Final = 1_000
"""How often a check that is due looks whether there is something to compare; a new cluster is placed within seconds."""


class UnknownPeer(BadInput):
    """No [[fullsync]] of that name."""

    reason = "unknown-fullsync"


class Busy(Retryable):
    """A check is running; one runs at a time on a node."""

    reason = "busy"


class Manager:
    """The manager. All methods belong to the event loop."""

    def __init__(
        self,
        settings: Sequence[FullSyncSettings],
        *,
        node: str,
        checker_of: Callable[[FullSyncSettings], PeerChecker],
        memory: History,
        alarm_of: Callable[[], Alarm],
        live: Callable[[], Iterable[str]],
        time: TimeSource,
        unplaced: Callable[[FullSyncSettings], str] = lambda _: "",
        all_types: Callable[[FullSyncSettings], Sequence[str]] = lambda _: ("default",),
    ) -> None:
        """`checker_of` makes what runs a peer's checks, `live()` names the nodes of this cluster that live. `unplaced`:
        why this cluster has nothing to compare yet; "" once it has. `all_types`: what `bucket_types = "*"` comes to
        now."""
        self._settings = settings
        self._node = node
        self._checker_of = checker_of
        self._memory = memory
        self._alarm_of = alarm_of
        self._alarm: Alarm | None = None
        self._live = live
        self._unplaced = unplaced
        self._all_types = all_types
        self._time = time
        self._tasks: set[asyncio.Task[Any]] = set()
        self.peers: dict[str, PeerState] = {}
        self.faults: dict[str, str] = {}
        """Peer -> why what operators want of it does not count here."""
        self.removed: Mapping[str, PeerOverride] = {}
        """Peers of this node's file that operators removed."""
        self._taken = ""
        self._checking: PeerState | None = None
        self._started = False
        self._stopping = False
        self.running: Running | None = None
        self.totals: dict[tuple[str, ExchangeVerdict], int] = {}
        """(peer, verdict) -> checks of bucket types that ended so, since this node's start."""
        self.queued_total = 0
        self.on_checked: Callable[[], object] = lambda: None
        """Called at the end of each check, whatever became of it; must not block."""

    # -- life -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Read what is remembered, plan, and wait for the first moment. Raises LocalFault."""
        self._memory.load()
        self._started = True
        self.adopt([PeerInForce(settings, ()) for settings in self._settings], None)

    def follow(self, documents: OperatorDocuments, token_for: Callable[[str], Path | None]) -> None:
        """Act on what operators want, as it was read now; `token_for`: see
        `aae.scheduling.operator_documents.in_force`."""
        found = in_force(self._node, self._settings, documents.entries, token_for)
        self.removed, self.faults = found.removed, dict(found.faults)
        suspensions, why = documents.suspensions, documents.unreadable.get(SUSPENSIONS_PATH)
        if suspensions is None and why is not None:
            suspensions = (FullSyncSuspension(None, None, "?", self._time.wall_ms(), f"it is not known what: {why}"),)
        self.adopt(found.peers, suspensions)

    def adopt(self, peers: Sequence[PeerInForce], suspensions: Sequence[FullSyncSuspension] | None) -> None:
        """These are the peers from now on, and this is what operators have suspended; None: that is not read yet, and
        what is remembered counts. A check that runs goes on, also when its peer is changed or gone."""
        found: dict[str, PeerState] = {}
        for place, one in enumerate(peers):
            name, before = one.settings.name, self.peers.get(one.settings.name)
            if before is not None and (before.settings, before.entries) == one:
                before.place = place
                found[name] = before
                continue
            try:
                found[name] = self._peer(place, one)
            except IsthmusError as error:  # such as certificates that are missing: what was there before counts
                log.error("fullsync.peer_not_usable", peer=name, error=str(error))
                self.faults[name] = str(error)
                if before is not None:
                    found[name] = before
        for name, before in self.peers.items():
            if found.get(name) is not before:
                self._close(before)
            if name not in found:
                self._memory.forget(name)
                log.info("fullsync.peer_removed", peer=name)
        self.peers = found
        for peer in self.peers.values():
            self._suspend(peer, suspensions)
        self.arm()

    def _peer(self, place: int, one: PeerInForce) -> PeerState:
        """A peer with these settings, and what is remembered of it; its day's plan is made anew from now on."""
        settings = one.settings
        checker, remembered = self._checker_of(settings), self._memory.of(settings.name)
        remembered.compares_by(settings.queue, one.added_ms)
        checker.named.update(remembered.named)
        window, types = window_of(settings.all_window), partial(self.types_of, settings)
        now_ms = self._time.wall_ms()
        return PeerState(settings, place, checker, remembered, window, types, from_ms=now_ms, entries=one.entries)

    def _close(self, peer: PeerState) -> None:
        if peer is not self._checking:
            peer.checker.close()

    def _suspend(self, peer: PeerState, suspensions: Sequence[FullSyncSuspension] | None) -> None:
        """Follow what operators have suspended. What an earlier version suspended on this node alone stays so until
        it is resumed."""
        before = peer.remembered.suspended
        if suspensions is None:
            return
        found = suspension_for(peer.settings.name, self._node, suspensions)
        if found is not None:
            peer.remembered.suspended, peer.retry = Suspended(found.by, found.at_ms, found.reason, stored=True), None
        elif before is not None and before.stored:
            peer.remembered.suspended = None

    def types_of(self, settings: FullSyncSettings) -> Sequence[str]:
        """Bucket types that a peer of these settings compares now."""
        if settings.bucket_types == ALL_TYPES:
            return self._all_types(settings)
        return settings.bucket_types.split(",")

    async def stop(self) -> None:
        """End the check that runs, and everything else; no other one begins."""
        self._stopping = True
        if self._alarm is not None:
            self._alarm.stop()
            self._alarm = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self.peers.values():
            peer.checker.close()

    # -- what is due ------------------------------------------------------------------------------------

    def _place(self, peer: PeerState) -> SchedulePlace:
        rank, nodes = rank_of(self._node, list(self._live()))
        return SchedulePlace(rank, nodes, peer.place, len(self.peers), peer.settings.cluster_slice)

    def _next(self, peer: PeerState, now_ms: int) -> Due | None:
        """The peer's next check; plans are made, and late slots left out, on the way. None: no checks are wanted."""
        if peer.plan is not None and now_ms < peer.seen_ms - peer.plan.slot_ms:  # the clock was set back by more
            peer.plan, peer.from_ms, peer.seen_ms = None, now_ms, now_ms  # than a little: as if this node began now
        peer.seen_ms = max(peer.seen_ms, now_ms)
        day_ms = day_of(now_ms)
        while True:
            if peer.plan is None:
                peer.plan, peer.slot = planned(wants_of(peer.settings), day_ms, self._seed_of(peer)), -1
            plan, place = peer.plan, self._place(peer)
            if plan is None:
                return None
            found, late = due(plan, place, peer.slot, peer.from_ms, now_ms)
            for slot in late:
                self._skip(peer, moment(plan, slot, place), plan.kinds[slot], "late")
                peer.slot = slot
            if found is not None:
                return found
            peer.plan, day_ms = None, max(plan.end_ms, day_of(now_ms))

    def _seed_of(self, peer: PeerState) -> str:
        return f"{self._node}\n{peer.settings.name}"

    def _skip(self, peer: PeerState, at_ms: int, kind: CheckKind, reason: str) -> None:
        peer.skipped.append(Skipped(at_ms, kind, reason))
        log.info("fullsync.skipped", peer=peer.settings.name, kind=kind.value, reason=reason)

    def arm(self) -> None:
        """Let the alarm ring when something is due next, by the clock as it is now; while a check runs nothing is, its
        end arms anew."""
        if self._taken:
            return
        now_ms = self._time.wall_ms()
        moments = []
        for peer in self.peers.values():
            dates = [one.at_ms for one in (self._next(peer, now_ms), peer.retry) if one is not None]
            moments += [max(at, now_ms + UNPLACED_LOOK_MS * bool(peer.waits)) for at in dates]
        if moments and self._started and not self._stopping:
            self._alarm = self._alarm or self._alarm_of()
            self._alarm.ring_at(min(moments), self._ring)

    def _ring(self) -> None:
        """Something is due: begin it."""
        if self._taken:
            return
        now_ms = self._time.wall_ms()
        for peer in self.peers.values():
            found = self._next(peer, now_ms)
            if found is None or peer.plan is None:
                continue
            retry, (slot, kind, at_ms) = peer.retry, found
            is_due = at_ms <= now_ms or (retry is not None and retry.at_ms <= now_ms)
            peer.waits = self._unplaced(peer.settings) if is_due else ""
            if peer.waits and peer.remembered.suspended is None:
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
            suspended = peer.remembered.suspended
            if suspended is not None:
                self._skip(peer, at_ms, kind, f"suspended by {suspended.by}")
            elif kind is not CheckKind.NONE:
                self._take(peer)
                self._spawn(self._check_each([peer.settings.name], kind, by="", before=retry))
                return  # what else is due waits for its end, until it is late
        self.arm()

    # -- a check ----------------------------------------------------------------------------------------

    async def run(self, name: str, kind: CheckKind, by: str, times: TimeRange | None = None) -> list[CheckResult]:
        """Run a check now, of every bucket type of the peer; its results. `times`: instead of those of its kind. Raises
        UnknownPeer, Busy, NotReady. A suspended peer is checked all the same: somebody asks for it."""
        self._take(self.peer(name))
        return await self._check_each([name], kind, by, times)

    def begin(self, name: str | None, kind: CheckKind, by: str) -> list[str]:
        """As `run`, without waiting, of one peer or (None) of all, one after the other; their names. Raises
        UnknownPeer, Busy, NotReady."""
        self._needs_peers()
        names = [peer.settings.name for peer in self._named(name)]
        self._take(self.peer(names[0]))
        self._spawn(self._check_each(names, kind, by))
        return names

    def _take(self, peer: PeerState) -> None:
        if self._stopping:
            raise NotReady("this node is stopping: ask another one")
        if self._taken:
            raise Busy(f"a check of {self._taken} is running; one runs at a time on a node")
        self._taken = peer.settings.name

    async def _check_each(
        self,
        names: Sequence[str],
        kind: CheckKind,
        by: str,
        times: TimeRange | None = None,
        before: Retry | None = None,
    ) -> list[CheckResult]:
        """The checks for which this manager was taken; `before`: it is one of a slot that was tried before."""
        results: list[CheckResult] = []
        try:
            for peer in filter(None, map(self.peers.get, names)):
                self._taken = peer.settings.name
                results += await self._check(peer, kind, by, times, before)
        finally:
            self.running, self._taken = None, ""
            self.arm()
        return results

    async def _check(
        self, peer: PeerState, kind: CheckKind, by: str, times: TimeRange | None, before: Retry | None
    ) -> list[CheckResult]:
        self._checking = peer
        try:
            return await self._checked(peer, kind, by, times)
        except LocalFault:
            return []  # what was found stands in the log; that it is not remembered, too
        finally:
            if not by and peer.unseen and peer.remembered.suspended is None:
                now_ms = self._time.wall_ms()
                found = self._next(peer, now_ms)
                peer.retry = again(before, kind, peer.unseen, now_ms, None if found is None else found.at_ms)
            self._checking = None
            now = self.peers.get(peer.settings.name)
            if now is not peer:  # changed, or gone, meanwhile
                peer.checker.close()
                if now is not None and now.settings.queue == peer.settings.queue:
                    now.checker.named.update(peer.checker.named)
            self.on_checked()

    async def _checked(self, peer: PeerState, kind: CheckKind, by: str, given: TimeRange | None) -> list[CheckResult]:
        began_ms = self._time.wall_ms()
        remembered = peer.remembered
        peer.unseen = ""
        if kind is CheckKind.AUTO:
            kind, remembered.standing = chosen(
                remembered.standing, peer.window, began_ms, both_ways=peer.settings.bidirectional
            )
        if kind is CheckKind.NONE:
            await self._save()  # how many are still to be left out
            return []
        standing = remembered.standing
        times = given or looked_at(kind, standing, began_ms)
        results: list[CheckResult] = []
        modified: list[int] = []
        buckets: set[bytes] = set()
        for name in peer.bucket_types:
            findings = Findings()
            now_ms = self._time.wall_ms()
            self.running = Running(peer.settings.name, kind, name, now_ms, by, findings)
            results.append(await self._one(peer, PeerCheck(name, kind, times, by, now_ms), findings))
            modified += peer.checker.modified_ms
            buckets |= peer.checker.buckets
        repaired = sum(result.queued for result in results)
        if not peer.unseen:
            peer.retry = None
        if repaired or not peer.unseen:  # who could not look has not failed to find both equal
            ended = after(
                standing,
                kind,
                began_ms,
                in_sync=all(result.verdict is ExchangeVerdict.IN_SYNC or result.lacking for result in results),
                repaired=repaired,
                learned=learned_range(modified, buckets, LEARNS_FROM),
                own_times=given is not None,
                quiet_checks=peer.settings.auto_suppress_count,
            )
            if remembered.standing is not standing:  # an operator has set a range meanwhile
                ended = replace(ended, learned=remembered.standing.learned, suppressed=remembered.standing.suppressed)
            remembered.standing = ended
        await self._save()
        return results

    async def _one(self, peer: PeerState, check: PeerCheck, findings: Findings) -> CheckResult:
        began = self._time.now_ms()
        outcome = await peer.checker.check(check, findings)
        if outcome.unseen:
            peer.unseen = outcome.reason
        left = findings.differences - findings.queued
        proven = outcome.verdict is ExchangeVerdict.IN_SYNC  # trees are compared whole, whatever the check's times
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
            left=left,
            transient=findings.transient,
            filtered=findings.filtered,
            by=check.by,
            unexplained=findings.segments_unexplained,
            lacking=outcome.lacking,
            refused=outcome.refused,
        )
        name = peer.settings.name
        peer.remembered.results.append(result)
        named = peer.checker.named.get(check.bucket_type.encode())
        if named is not None:
            peer.remembered.name(check.bucket_type.encode(), named)
        peer.remembered.answered(peer.checker.cluster)
        if proven:
            peer.remembered.proven_ms[check.bucket_type] = check.began_ms
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

    # -- acts of operators ------------------------------------------------------------------------------

    def peer(self, name: str) -> PeerState:
        """The peer of that name. Raises UnknownPeer."""
        found = self.peers.get(name)
        if found is None:
            known = ", ".join(sorted(self.peers)) or "none is configured"
            raise UnknownPeer(f"there is no full-sync {name!r} on this node; known: {known}")
        return found

    async def suspend(self, name: str | None, by: str, reason: str) -> None:
        """Let no check of a peer, or of any, be due on this node alone until `resume`; remembered over restarts: what a
        node of an earlier version asks for. Raises UnknownPeer, LocalFault."""
        at_ms = self._time.wall_ms()
        for peer in self._named(name):
            peer.remembered.suspended, peer.retry = Suspended(by, at_ms, reason), None
        await self._save()

    async def resume(self, name: str | None) -> None:
        """Let checks be due again that were suspended on this node alone. Raises UnknownPeer, LocalFault."""
        for peer in self._named(name):
            if peer.remembered.suspended is not None and not peer.remembered.suspended.stored:
                peer.remembered.suspended = None
        await self._save()

    async def set_range(self, name: str | None, times: TimeRange | None) -> None:
        """What the next check of kind range looks at, of one peer or (None) of all; `times` None: what it would by
        itself. Raises UnknownPeer, LocalFault."""
        self._needs_peers()
        for peer in self._named(name):
            peer.remembered.standing = replace(peer.remembered.standing, learned=times)
        await self._save()

    async def suppress_auto(self, name: str | None, count: int) -> None:
        """Leave out the next `count` checks of kind auto, of one peer or (None) of all; 0: none. Raises UnknownPeer,
        LocalFault."""
        self._needs_peers()
        for peer in self._named(name):
            peer.remembered.standing = replace(peer.remembered.standing, suppressed=count)
        await self._save()

    def upcoming(self, name: str) -> list[tuple[int, CheckKind]]:
        """(moment, kind) of the rest of the peer's day, or of the next day when this one's checks are done. Raises
        UnknownPeer."""
        peer = self.peer(name)
        if peer.plan is None:
            return []
        place = self._place(peer)
        moments = ((moment(peer.plan, slot, place), kind) for slot, kind in enumerate(peer.plan.kinds))
        return [one for slot, one in enumerate(moments) if slot > peer.slot and one[0] >= peer.from_ms]

    def _needs_peers(self) -> None:
        if not self.peers:
            raise UnknownPeer("this node compares with no cluster: it has no [[fullsync]]")

    def _named(self, name: str | None) -> list[PeerState]:
        return list(self.peers.values()) if name is None else [self.peer(name)]

    async def _save(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._memory.saving())
        except LocalFault as error:
            log.error("fullsync.not_remembered", error=str(error))
            raise

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("fullsync.bug", exc_info=task.exception())
