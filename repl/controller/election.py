"""Election: a controller's decision about one partition, as a pure function of one read of the metastore.

The statuses and timers are Fluvio's. A member of the ISR may be elected, and only when none of them can, one of the ELR
(docs/protocol.md). Any number of controllers may act at once: each decision is a conditional write on the record's
version, so the later one is refused (H30). `TRANSITIONS` lists what a controller may propose. Beside it, an Online
record goes to Election or CandidateFound by its leader's own write, which resigns (R-NOMINATE) or gives way
(R-GIVE-WAY). A record behind which the metastore went back, which is overtaken, stays as it is: an operator decides
(H32).

A controller keeps an `ElectionTimer` between reads: since when, and which attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple, assert_never

from isthmus.repl.isr.membership import drop_members, guard
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration
from isthmus.repl.model.vclock import MAX_EPOCH

ASK_MS: Final = 500
"""How long the electable members may take to report their log positions; safety does not depend on it (H12)."""

RESPONSE_MIN_MS: Final = 2_000
"""Time of the first candidate to promote itself: some fsyncs of a loaded disk, and a round trip."""

RESPONSE_MAX_MS: Final = 10_000
"""Longest time of a candidate; it grows by half with each silent one, for slower disks than expected."""

BACK_OFF_MIN_MS: Final = 1_000
"""Pause after all electable members were tried in vain."""

BACK_OFF_MAX_MS: Final = 30_000
"""Longest pause; it doubles with each attempt. Each attempt uses up an epoch, and there are 2^20 of them."""


class Timers(NamedTuple):
    """The times above; an operator may set them (`config.dynamic_options`)."""

    ask_ms: int = ASK_MS
    response_min_ms: int = RESPONSE_MIN_MS
    response_max_ms: int = RESPONSE_MAX_MS
    back_off_min_ms: int = BACK_OFF_MIN_MS
    back_off_max_ms: int = BACK_OFF_MAX_MS


TIMERS: Final = Timers()

TRANSITIONS: Final[Mapping[tuple[PartitionStatus, PartitionStatus], str]] = {
    (PartitionStatus.ONLINE, PartitionStatus.ONLINE): "members that are gone, or have another log, leave the ISR (the "
    "leader stays); so do members that are leaving, while min-ISR others stay",
    (PartitionStatus.ONLINE, PartitionStatus.ELECTION): "the leader's session is over, which is definite, or its log "
    "is another",
    (PartitionStatus.OFFLINE, PartitionStatus.ELECTION): "an electable member has returned",
    (PartitionStatus.OFFLINE, PartitionStatus.OFFLINE): "only the reason changes",
    (PartitionStatus.ELECTION, PartitionStatus.CANDIDATE_FOUND): "the electable member with the smallest lag, in a new "
    "epoch; one that is being removed only if no other is electable",
    (PartitionStatus.ELECTION, PartitionStatus.OFFLINE): "nobody is electable: the reason names the members that are "
    "needed",
    (PartitionStatus.CANDIDATE_FOUND, PartitionStatus.ONLINE): "the candidate promoted itself in exactly this epoch "
    "and session",
    (PartitionStatus.CANDIDATE_FOUND, PartitionStatus.CANDIDATE_FOUND): "it is gone or did not answer in time: the "
    "next one, in a new epoch",
    (PartitionStatus.CANDIDATE_FOUND, PartitionStatus.ELECTION): "all were tried: none of them counts as tried any "
    "more, after a pause",
    (PartitionStatus.CANDIDATE_FOUND, PartitionStatus.OFFLINE): "nobody is electable any more",
}
"""(From, to) -> when. `elect` proposes no others: it checks each one."""


@dataclass(frozen=True, slots=True)
class NoAction:
    """Nothing to do until something changes."""

    reason: str


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Nothing to do before `until_ms`, unless something changes."""

    until_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class ProposeRecord:
    """Write `record` on its version; its reason explains the change."""

    record: PartitionRecord


Decision = NoAction | WaitUntil | ProposeRecord


@dataclass(frozen=True, slots=True)
class ElectionTimer:
    """A controller's memory of a partition: since when the record has this epoch and status, and how many candidates
    have failed since the partition was last Online."""

    epoch: int
    status: PartitionStatus
    since_ms: int
    attempt: int


def watched(before: ElectionTimer | None, record: PartitionRecord, now_ms: int) -> ElectionTimer:
    """The timer after another read of the record."""
    if before is not None and (before.epoch, before.status) == (record.epoch, record.status):
        return before
    attempt = 0
    if before is not None and record.status is not PartitionStatus.ONLINE:
        attempt = before.attempt + (before.status is PartitionStatus.CANDIDATE_FOUND)
    return ElectionTimer(record.epoch, record.status, now_ms, attempt)


def response_timeout_ms(attempt: int, timers: Timers = TIMERS) -> int:
    """How long the candidate after `attempt` silent ones may take to promote itself."""
    least = timers.response_min_ms
    return max(least, min(timers.response_max_ms, int(least * 1.5 ** min(attempt, 10))))


def back_off_ms(attempt: int, timers: Timers = TIMERS) -> int:
    """Pause before the next round, after `attempt` silent candidates; 0 before the first."""
    least = timers.back_off_min_ms
    return max(least, min(timers.back_off_max_ms, least << min(attempt - 1, 10))) if attempt else 0


def elect(
    record: PartitionRecord,
    registrations: Mapping[str, Registration],
    now_ms: int,
    waiting_since_ms: int | None,
    promoted: Collection[tuple[int, str, int, int]],
    *,
    attempt: int = 0,
    reported: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    leaderships: Mapping[str, int] = MappingProxyType({}),
    timers: Timers = TIMERS,
    suspected: Mapping[str, int] = MappingProxyType({}),
    unreached: Collection[str] = (),
) -> Decision:
    """The controller's next action for the partition of `record`.

    `registrations` (by node) must have been read after the record: a session that has ended never comes back, so
    conclusions from its absence stay true (H29). `waiting_since_ms` and `attempt` come from `watched`, None means since
    now. `promoted`: the (epoch, node, session id, log id) of received promotions. `reported`: node -> (last epoch,
    LEO); a node without a report ranks last. `leaderships`: node -> number of partitions it leads; among equal
    candidates the fewest first, then by node id. `suspected`: node -> the session of it that was suspected last
    (R-SUSPECT), for the reason. `unreached`: nodes that cannot be dialled, which rank behind all others (R-REACHED).
    """
    look = _Look(record, registrations, unreached)
    since_ms = now_ms if waiting_since_ms is None else waiting_since_ms
    if record.overtaken:
        return NoAction(record.reason)
    decision: Decision
    match record.status:
        case PartitionStatus.ONLINE:
            decision = _online(look, suspected)
        case PartitionStatus.OFFLINE:
            decision = _offline(look)
        case PartitionStatus.ELECTION:
            decision = _election(look, now_ms, since_ms, attempt, reported, leaderships, timers)
        case PartitionStatus.CANDIDATE_FOUND:
            decision = _candidate_found(look, now_ms, since_ms, promoted, attempt, reported, leaderships, timers)
        case _:
            assert_never(record.status)
    if isinstance(decision, ProposeRecord):
        made = record.status, decision.record.status
        assert made in TRANSITIONS, f"no controller takes a record from {made[0]} to {made[1]}"
    return decision


def asked(record: PartitionRecord, registrations: Mapping[str, Registration]) -> list[str]:
    """The nodes whose (last epoch, LEO) ranks the candidates; empty if there is no choice."""
    if record.status is not PartitionStatus.ELECTION:
        return []
    nodes = [m.node for m in _Look(record, registrations).eligible]
    return nodes if len(nodes) > 1 and record.preferred not in nodes else []


class _Look:
    """One read of a record, and the registrations read after it."""

    def __init__(
        self, record: PartitionRecord, registrations: Mapping[str, Registration], unreached: Collection[str] = ()
    ) -> None:
        self.record = record
        self.unreached = unreached
        self._registrations = registrations
        self.eligible = self._eligible()

    def registered(self, who: Incarnation | None) -> Registration | None:
        """The registration of exactly this session; None if the session is over."""
        found = None if who is None else self._registrations.get(who.node)
        return found if found is not None and who is not None and found.session_id == who.session_id else None

    def live(self, member: Member) -> bool:
        """True if the member's node is registered with the log that the record names (R-GEN)."""
        found = self._registrations.get(member.node)
        return found is not None and found.log_id_of(self.record.partition) == member.log_id

    def leaving(self, member: Member) -> bool:
        """True if the member's node is registered, and about to leave (H10)."""
        found = self._registrations.get(member.node)
        return found is not None and not found.active

    def leads_still(self, leader: Incarnation) -> bool:
        """True while the leader's session lasts and its log is the one that the record names."""
        found = self.registered(leader)
        return found is not None and Member(leader.node, found.log_id_of(self.record.partition)) in self.record.isr

    def id_of(self, node: str) -> int:
        """The number of a registered node."""
        return self._registrations[node].id

    def incarnation(self, node: str) -> Incarnation:
        """The session of a registered node."""
        return Incarnation(node, self._registrations[node].session_id)

    def _eligible(self) -> list[Member]:
        record = self.record
        if record.epoch >= MAX_EPOCH:
            return []
        for members in (record.isr, record.elr):
            found = [m for m in sorted(members) if self.live(m) and self._registrations[m.node].active]
            if found:
                return found
        return []

    def waits_for(self) -> str:
        """The members that the partition needs, and why each cannot be elected."""
        record = self.record
        if record.epoch >= MAX_EPOCH:
            return f"all {MAX_EPOCH} epochs are used up; the partition's data must be moved to a new one"
        members = "; ".join(f"{m.node} ({self._lack(m)})" for m in sorted(guard(record)))
        return f"waits for {members or 'no node: the record has no member'}"

    def _lack(self, member: Member) -> str:
        found = self._registrations.get(member.node)
        if found is None:
            return "not registered"
        log_id = found.log_id_of(self.record.partition)
        if log_id != member.log_id:
            return f"came back with another log: gen {log_id}, not {member.log_id}"
        return "leaving"


def _online(look: _Look, suspected: Mapping[str, int]) -> Decision:
    record = look.record
    leader = record.leader
    if leader is None or look.registered(leader) is None:
        name = leader.node if leader is not None else "the leader"
        refuses = leader is not None and suspected.get(leader.node) == leader.session_id
        why = "its address refuses connections" if refuses else "its session is over"
        return ProposeRecord(_in_election(record, f"{name} is gone: {why}"))
    if not look.leads_still(leader):
        return ProposeRecord(_in_election(record, f"{leader.node} has another log than the one that was in sync"))
    gone = {m: "gone" for m in record.isr if m.node != leader.node and not look.live(m)}
    members = [m for m in record.isr if m.node != leader.node and m not in gone]
    gone |= dict.fromkeys(_leaving(look, members, len(record.isr) - len(gone)), "leaving")
    if gone:
        names = ", ".join(f"{m.node} {gone[m]}" for m in sorted(gone))
        return ProposeRecord(replace(drop_members(record, frozenset(gone)), reason=f"out of sync: {names}"))
    return NoAction(f"{leader.node} leads")


def _leaving(look: _Look, members: Collection[Member], in_sync: int) -> list[Member]:
    """The leaving ones among `members` of the ISR that may be left out now, out of `in_sync` that are there."""
    room = in_sync - look.record.effective_min_isr
    return sorted(m for m in members if look.leaving(m))[: max(0, room)]


def _offline(look: _Look) -> Decision:
    record = look.record
    if look.eligible:
        return ProposeRecord(_in_election(record, f"{look.eligible[0].node} is back"))
    waits_for = look.waits_for()
    return NoAction(waits_for) if waits_for == record.reason else ProposeRecord(replace(record, reason=waits_for))


def _election(
    look: _Look,
    now_ms: int,
    since_ms: int,
    attempt: int,
    reported: Mapping[str, tuple[int, int]],
    leaderships: Mapping[str, int],
    timers: Timers,
) -> Decision:
    record = look.record
    if not look.eligible:
        return ProposeRecord(_taken_offline(look))
    resume_ms = since_ms + back_off_ms(attempt, timers)
    if now_ms < resume_ms:
        return WaitUntil(resume_ms, f"pauses after {attempt} candidates that did not answer")
    members = [m for m in look.eligible if m.node not in record.tried] or look.eligible
    nodes = [m.node for m in members]
    silent = [node for node in nodes if node not in reported]
    if len(nodes) > 1 and silent and record.preferred not in nodes and now_ms < since_ms + timers.ask_ms:
        return WaitUntil(since_ms + timers.ask_ms, f"asks {', '.join(silent)} how far they are")
    return ProposeRecord(_nominated(look, members, record.tried, reported, leaderships))


def _candidate_found(
    look: _Look,
    now_ms: int,
    since_ms: int,
    promoted: Collection[tuple[int, str, int, int]],
    attempt: int,
    reported: Mapping[str, tuple[int, int]],
    leaderships: Mapping[str, int],
    timers: Timers,
) -> Decision:
    record, candidate = look.record, look.record.candidate
    registration = look.registered(candidate)
    if candidate is not None and registration is not None:
        log_id = registration.log_id_of(record.partition)
        if (record.epoch, candidate.node, candidate.session_id, log_id) in promoted:
            member = Member(candidate.node, log_id)
            if member in guard(record):
                return ProposeRecord(_brought_online(look, candidate, member))
        until_ms = since_ms + response_timeout_ms(attempt, timers)
        if registration.active and now_ms < until_ms:
            return WaitUntil(until_ms, record.reason)
    if not look.eligible:
        return ProposeRecord(_taken_offline(look))
    untried = [m for m in look.eligible if m.node not in record.tried]
    if not untried:
        return ProposeRecord(
            _in_election(record, f"{', '.join(sorted(record.tried))} did not answer; all are tried again")
        )
    return ProposeRecord(_nominated(look, untried, record.tried, reported, leaderships))


def _in_election(record: PartitionRecord, reason: str) -> PartitionRecord:
    return replace(
        record, status=PartitionStatus.ELECTION, leader=None, candidate=None, tried=frozenset(), reason=reason
    )


def _taken_offline(look: _Look) -> PartitionRecord:
    return replace(
        look.record,
        status=PartitionStatus.OFFLINE,
        leader=None,
        candidate=None,
        tried=frozenset(),
        reason=look.waits_for(),
    )


def _nominated(
    look: _Look,
    members: list[Member],
    tried: frozenset[str],
    reported: Mapping[str, tuple[int, int]],
    leaderships: Mapping[str, int],
) -> PartitionRecord:
    """The record with the best of `members` as candidate, in a new epoch."""
    record = look.record

    def rank(member: Member) -> tuple[bool, bool, bool, int, int, int, int, str]:
        node = member.node
        goes = node in record.removing
        epoch, leo = reported.get(node, (-1, -1))
        unreached = node in look.unreached
        wanted = node == record.preferred
        return (unreached, not wanted, goes, -epoch, -leo, leaderships.get(node, 0), look.id_of(node), node)

    chosen = min(members, key=rank)
    return replace(
        record,
        epoch=record.epoch + 1,
        status=PartitionStatus.CANDIDATE_FOUND,
        leader=None,
        candidate=look.incarnation(chosen.node),
        tried=tried | {chosen.node},
        preferred=None,
        reason=f"waits for {chosen.node} to promote itself",
    )


def _brought_online(look: _Look, candidate: Incarnation, member: Member) -> PartitionRecord:
    """The record with the promoted candidate as leader. In sync are the members that are registered with the same log,
    except for those that are leaving while min-ISR others stay: the barrier must not wait for them. While there are
    fewer than min-ISR, the rest of the guard stays electable (R-ELR)."""
    record = look.record
    live = frozenset(m for m in record.isr if look.live(m)) | {member}
    isr = live - set(_leaving(look, live - {member}, len(live)))
    elr = guard(record) - isr if len(isr) < record.effective_min_isr else frozenset()
    return replace(
        record,
        status=PartitionStatus.ONLINE,
        leader=candidate,
        candidate=None,
        isr=isr,
        elr=elr,
        tried=frozenset(),
        preferred=None,
        reason="",
    )
