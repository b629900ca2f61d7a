"""The manager of a node's full-sync: which check is due, one at a time, and what became of it.

It knows the peers of the settings, makes each day's plan (`aae.schedule`), lets an alarm ring at the next moment, runs
the check (`aae.check`), and remembers (`aae.memory`). Operators run checks, suspend peers and set ranges through
it. Nodes and clusters are not coordinated: moments within a slot are apart, and on one node a check that
is still running makes the next one late, so that it is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

import structlog

from aae.alarm import Alarm
from aae.check import Check, Checker
from aae.compared import Peer, Running, Skipped
from aae.exchange import Findings, Verdict
from aae.memory import Memory, Result, Suspended
from aae.retries import Retry, again
from aae.schedule import (
    DAY_MS,
    Kind,
    Place,
    TimeRange,
    after,
    chosen,
    due,
    learned_range,
    looked_at,
    moment,
    planned,
    rank_of,
    wants_of,
    window_of,
)
from config.fullsync import FullSyncSettings
from repl.model.errors import BadInput, LocalFault, NotReady, Retryable
from repl.model.ports import TimeSource

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
        checker_of: Callable[[FullSyncSettings], Checker],
        memory: Memory,
        alarm_of: Callable[[], Alarm],
        live: Callable[[], Iterable[str]],
        time: TimeSource,
        chance: Random,
        unplaced: Callable[[FullSyncSettings], str] = lambda _: "",
    ) -> None:
        """`checker_of` makes what runs a peer's checks, `live()` names the nodes of this cluster that live. `unplaced`:
        why this cluster has nothing to compare yet; "" once it has."""
        self._settings = settings
        self._node = node
        self._checker_of = checker_of
        self._memory = memory
        self._alarm_of = alarm_of
        self._alarm: Alarm | None = None
        self._live = live
        self._unplaced = unplaced
        self._time = time
        self._chance = chance
        self._tasks: set[asyncio.Task[Any]] = set()
        self.peers: dict[str, Peer] = {}
        self._taken = ""
        self._stopping = False
        self.running: Running | None = None
        self.totals: dict[tuple[str, Verdict], int] = {}
        """(peer, verdict) -> checks of bucket types that ended so, since this node's start."""
        self.queued_total = 0
        self.on_checked: Callable[[], object] = lambda: None
        """Called at the end of each check, whatever became of it; must not block."""

    # -- life -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Read what is remembered, plan, and wait for the first moment. Raises LocalFault."""
        if not self._settings:
            return
        self._memory.load()
        for place, settings in enumerate(self._settings):
            checker, remembered = self._checker_of(settings), self._memory.of(settings.name)
            checker.named.update(remembered.named)
            self.peers[settings.name] = Peer(settings, place, checker, remembered, window_of(settings.all_window))
        self._alarm = self._alarm_of()
        self.arm()

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

    def _place(self, peer: Peer) -> Place:
        rank, nodes = rank_of(self._node, list(self._live()))
        return Place(rank, nodes, peer.place, len(self.peers))

    def _next(self, peer: Peer, now_ms: int) -> int | None:
        """When the peer's next check is due; plans are made, and late slots left out, on the way."""
        for _ in range(2):
            plan = peer.plan
            set_back = plan is not None and now_ms < plan.start_ms - plan.slot_ms  # the clock, by more than a little
            if plan is None or set_back or now_ms >= plan.end_ms:
                start_ms = now_ms if plan is None or set_back or now_ms >= plan.end_ms + DAY_MS else plan.end_ms
                peer.plan = planned(wants_of(peer.settings), start_ms, self._chance)
                peer.slot = -1
            if peer.plan is None:
                return None
            found, late = due(peer.plan, self._place(peer), peer.slot, now_ms)
            for slot in late:
                at_ms = moment(peer.plan, slot, self._place(peer))
                self._skip(peer, at_ms, peer.plan.kinds[slot], "late")
                peer.slot = slot
            if found is not None:
                return found.at_ms
            if now_ms < peer.plan.end_ms:
                return peer.plan.end_ms
        return None

    def _skip(self, peer: Peer, at_ms: int, kind: Kind, reason: str) -> None:
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
            dates = (self._next(peer, now_ms), None if peer.retry is None else peer.retry.at_ms)
            moments += [max(at, now_ms + UNPLACED_LOOK_MS * bool(peer.waits)) for at in dates if at is not None]
        if moments and self._alarm is not None:
            self._alarm.ring_at(min(moments), self._ring)

    def _ring(self) -> None:
        """Something is due: begin it."""
        if self._taken:
            return
        now_ms = self._time.wall_ms()
        for peer in self.peers.values():
            at_ms = self._next(peer, now_ms)
            if at_ms is None or peer.plan is None:
                continue
            retry = peer.retry
            due = at_ms <= now_ms or (retry is not None and retry.at_ms <= now_ms)
            peer.waits = self._unplaced(peer.settings) if due else ""
            if peer.waits and peer.remembered.suspended is None:
                continue
            if at_ms <= now_ms < peer.plan.end_ms:
                peer.retry = retry = None
                peer.slot += 1
                kind = peer.plan.kinds[peer.slot]
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
            elif kind is not Kind.NONE:
                self._take(peer)
                self._spawn(self._check(peer, kind, by="", before=retry))
                return  # what else is due waits for its end, until it is late
        self.arm()

    # -- a check ----------------------------------------------------------------------------------------

    async def run(self, name: str, kind: Kind, by: str, times: TimeRange | None = None) -> list[Result]:
        """Run a check now, of every bucket type of the peer; its results. `times`: instead of those of its kind. Raises
        UnknownPeer, Busy, NotReady. A suspended peer is checked all the same: somebody asks for it."""
        peer = self.peer(name)
        self._take(peer)
        return await self._check(peer, kind, by, times)

    def begin(self, name: str, kind: Kind, by: str) -> None:
        """As `run`, without waiting. Raises UnknownPeer, Busy, NotReady."""
        peer = self.peer(name)
        self._take(peer)
        self._spawn(self._check(peer, kind, by))

    def _take(self, peer: Peer) -> None:
        if self._stopping:
            raise NotReady("this node is stopping: ask another one")
        if self._taken:
            raise Busy(f"a check of {self._taken} is running; one runs at a time on a node")
        self._taken = peer.settings.name

    async def _check(
        self, peer: Peer, kind: Kind, by: str, times: TimeRange | None = None, before: Retry | None = None
    ) -> list[Result]:
        """The check for which this manager was taken; `before`: it is one of a slot that was tried before."""
        try:
            return await self._checked(peer, kind, by, times)
        except LocalFault:
            return []  # what was found stands in the log; that it is not remembered, too
        finally:
            self.running, self._taken = None, ""
            if not by and peer.unseen and peer.remembered.suspended is None:
                now_ms = self._time.wall_ms()
                peer.retry = again(before, kind, peer.unseen, now_ms, self._next(peer, now_ms))
            self.arm()
            self.on_checked()

    async def _checked(self, peer: Peer, kind: Kind, by: str, given: TimeRange | None) -> list[Result]:
        began_ms = self._time.wall_ms()
        remembered = peer.remembered
        peer.unseen = ""
        if kind is Kind.AUTO:
            kind, remembered.standing = chosen(
                remembered.standing, peer.window, began_ms, both_ways=peer.settings.bidirectional
            )
        if kind is Kind.NONE:
            return []
        standing = remembered.standing
        times = given or looked_at(kind, standing, began_ms)
        results: list[Result] = []
        modified: list[int] = []
        buckets: set[bytes] = set()
        for name in peer.settings.bucket_types.split(","):
            findings = Findings()
            now_ms = self._time.wall_ms()
            self.running = Running(peer.settings.name, kind, name, now_ms, by, findings)
            results.append(await self._one(peer, Check(name, kind, times, by, now_ms), findings))
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
                in_sync=all(result.verdict is Verdict.IN_SYNC for result in results),
                repaired=repaired,
                learned=learned_range(modified, buckets, LEARNS_FROM),
                own_times=given is not None,
            )
            if remembered.standing is not standing:  # an operator has set a range meanwhile
                ended = replace(ended, learned=remembered.standing.learned)
            remembered.standing = ended
        await self._save()
        return results

    async def _one(self, peer: Peer, check: Check, findings: Findings) -> Result:
        began = self._time.now_ms()
        outcome = await peer.checker.check(check, findings)
        if outcome.unseen:
            peer.unseen = outcome.reason
        left = findings.differences - findings.queued
        proven = outcome.verdict is Verdict.IN_SYNC  # trees are compared whole, whatever the check's times
        result = Result(
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
        )
        name = peer.settings.name
        peer.remembered.results.append(result)
        named = peer.checker.named.get(check.bucket_type.encode())
        if named is not None:
            peer.remembered.name(check.bucket_type.encode(), named)
        if proven:
            peer.remembered.proven_ms[check.bucket_type] = check.began_ms
        self.totals[name, result.verdict] = self.totals.get((name, result.verdict), 0) + 1
        self.queued_total += findings.queued
        tell = log.warning if outcome.verdict in (Verdict.ERROR, Verdict.TIMED_OUT) else log.info
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

    def peer(self, name: str) -> Peer:
        """The peer of that name. Raises UnknownPeer."""
        found = self.peers.get(name)
        if found is None:
            known = ", ".join(sorted(self.peers)) or "none is configured"
            raise UnknownPeer(f"there is no full-sync {name!r} on this node; known: {known}")
        return found

    async def suspend(self, name: str | None, by: str, reason: str) -> None:
        """Let no check of a peer, or of any, be due until `resume`; remembered over restarts. Raises UnknownPeer,
        LocalFault."""
        at_ms = self._time.wall_ms()
        for peer in self._named(name):
            peer.remembered.suspended, peer.retry = Suspended(by, at_ms, reason), None
        await self._save()

    async def resume(self, name: str | None) -> None:
        """Let checks be due again. Raises UnknownPeer, LocalFault."""
        for peer in self._named(name):
            peer.remembered.suspended = None
        await self._save()

    async def set_range(self, name: str, times: TimeRange | None) -> None:
        """What the next check of kind range looks at; None: what it would by itself. Raises UnknownPeer, LocalFault."""
        remembered = self.peer(name).remembered
        standing = remembered.standing
        remembered.standing = type(standing)(standing.succeeded_ms, standing.failed, standing.quiet, times)
        await self._save()

    def upcoming(self, name: str) -> list[tuple[int, Kind]]:
        """(moment, kind) of the rest of the peer's day. Raises UnknownPeer."""
        peer = self.peer(name)
        if peer.plan is None:
            return []
        place = self._place(peer)
        kinds = peer.plan.kinds
        return [(moment(peer.plan, slot, place), kinds[slot]) for slot in range(peer.slot + 1, len(kinds))]

    def _named(self, name: str | None) -> list[Peer]:
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
