"""When checks are due: a day cut into slots, divided among nodes and peers by arithmetic alone.

The settings of a peer give the number of checks of each kind per day. Their sum cuts the day into slots from midnight
UTC, so all nodes of all clusters have the same slots regardless of restarts. A seed of node, peer and date shuffles the
kinds: a restart continues the day's plan. Within a slot every live node, by its rank among their names, and every peer
of a node has its own moment; with `cluster_slice` the moments lie in one quarter of the slot, and other clusters use
the others. So exchanges rarely overlap, without coordination. A check that cannot begin within half a slot of its
moment is skipped.

A due check that could not compare (a peer that is not ready, a tree that is being built) is retried a few times with
growing pauses, until the next slot of the peer's day. Checks that an operator requested are not retried. Pure: times
and names are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Final, NamedTuple

from isthmus.config.settings import FullSyncSettings

DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000

CHECKS_MAX: Final = 1_440
"""Checks of one peer per day: one per minute. More would be replication by other means."""

RANGE_AHEAD_MS: Final = 5_000
"""How far a range reaches into the future, since the clocks of machines differ."""


class CheckKind(StrEnum):
    """Scope of a check. `none` is an empty slot; `auto` is replaced by another kind when it begins."""

    NONE = "none"
    ALL = "all"
    DAY = "day"
    HOUR = "hour"
    RANGE = "range"
    AUTO = "auto"


CLUSTER_SLICES: Final = 4
"""Parts of a slot, one per comparing cluster: Riak's number (`ttaaefs_cluster_slice`)."""


class DayPlan(NamedTuple):
    """One day (UTC) of one peer: slot `i` of `slot_ms` has the check `kinds[i]`."""

    start_ms: int
    slot_ms: int
    kinds: tuple[CheckKind, ...]

    @property
    def end_ms(self) -> int:
        """When the next plan begins: midnight, up to some ms after the last slot, since `slot_ms` is rounded down."""
        return self.start_ms + DAY_MS


class SchedulePlace(NamedTuple):
    """This node's rank among `nodes` live ones, and the peer's rank among the `peers` of this node. `cluster_slice`:
    the quarter of a slot in which this cluster's checks begin, 1 to 4; 0: the whole slot."""

    rank: int
    nodes: int
    peer: int
    peers: int
    cluster_slice: int = 0

    def share(self, slot_ms: int) -> tuple[int, int]:
        """(first, end) of this cluster's part of a slot, in ms from the slot's begin."""
        if not self.cluster_slice:
            return 0, slot_ms
        first, end = (slot_ms * number // CLUSTER_SLICES for number in (self.cluster_slice - 1, self.cluster_slice))
        return first, end


class Due(NamedTuple):
    """The check of a slot, and its moment."""

    slot: int
    kind: CheckKind
    at_ms: int


def day_start(wall_ms: int) -> int:
    """Wall clock (ms) at which the day (UTC) of `wall_ms` began."""
    return wall_ms - wall_ms % DAY_MS


def plan_day(wants: Mapping[CheckKind, int], day_ms: int, seed: str) -> DayPlan | None:
    """The plan of the day that began at `day_ms`; None if no check is configured, or `none` only. `seed` names the node
    and the peer; it and the date determine the order."""
    assert day_ms % DAY_MS == 0
    kinds = [kind for kind in CheckKind for _ in range(wants.get(kind, 0))]
    if not kinds or all(kind is CheckKind.NONE for kind in kinds):
        return None
    assert len(kinds) <= CHECKS_MAX
    Random(f"{seed}\n{day_ms // DAY_MS}").shuffle(kinds)  # noqa: S311 - the order of checks is no secret
    return DayPlan(day_ms, DAY_MS // len(kinds), tuple(kinds))


def rank_of(node: str, live: Sequence[str]) -> tuple[int, int]:
    """(rank, number) of `node` among the names of the live nodes; `node` counts even if it is not listed yet."""
    names = sorted({*live, node})
    return names.index(node), len(names)


def slot_moment(plan: DayPlan, slot: int, place: SchedulePlace) -> int:
    """When the check of `slot` is due on this node."""
    parts = place.nodes * place.peers
    part = place.rank * place.peers + place.peer
    first, end = place.share(plan.slot_ms)
    return plan.start_ms + plan.slot_ms * slot + first + (end - first) * part // parts


def slot_deadline(plan: DayPlan, slot: int, place: SchedulePlace) -> int:
    """The latest begin of the check of `slot`: half a slot after its moment; with a cluster slice no later than the
    slice's end, when another cluster's begins."""
    half_ms = slot_moment(plan, slot, place) + plan.slot_ms // 2
    if not place.cluster_slice:
        return half_ms
    return min(half_ms, plan.start_ms + plan.slot_ms * slot + place.share(plan.slot_ms)[1])


def next_due(
    plan: DayPlan, place: SchedulePlace, after_slot: int, from_ms: int, now_ms: int
) -> tuple[Due | None, list[int]]:
    """(the first check behind `after_slot` that is not late, None if the plan has no more; slots skipped because they
    are late). Moments before `from_ms`, the node's start, are neither due nor late."""
    skipped: list[int] = []
    for slot in range(after_slot + 1, len(plan.kinds)):
        at_ms = slot_moment(plan, slot, place)
        if at_ms < from_ms:
            continue
        if slot_deadline(plan, slot, place) >= now_ms:
            return Due(slot, plan.kinds[slot], at_ms), skipped
        skipped.append(slot)
    return None, skipped


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Changes made in [since_ms, before_ms), of one bucket or of all."""

    since_ms: int
    before_ms: int
    bucket: bytes | None = None


@dataclass(frozen=True, slots=True)
class CheckHours:
    """Hours of the day (UTC) in which `auto` may check everything: from `first` until `end`, possibly past midnight; if
    equal, that hour only. `always` and `never` take precedence."""

    first: int = 0
    end: int = 0
    always: bool = False
    never: bool = False

    def contains(self, wall_ms: int) -> bool:
        """True if `wall_ms` is within these hours."""
        if self.always or self.never:
            return self.always
        hour = wall_ms // HOUR_MS % 24
        if self.first == self.end:
            return hour == self.first
        if self.first < self.end:
            return self.first <= hour < self.end
        return hour >= self.first or hour < self.end


@dataclass(frozen=True, slots=True)
class PeerScheduleState:
    """Input for the choice of a peer's checks. `succeeded_ms`: begin of the newest check that found nothing to repair
    (initially the node's start); `failed`: the newest check was not one of these; `quiet`: checks of kind auto to skip,
    because the newest one found differences that cannot be repaired from here. `learned`: where repairs were, or a
    range set by an operator."""

    succeeded_ms: int
    failed: bool = False
    quiet: int = 0
    learned: TimeRange | None = None
    suppressed: int = 0
    """Checks of kind auto that an operator wants skipped."""


def choose_auto(
    state: PeerScheduleState, window: CheckHours, wall_ms: int, *, both_ways: bool
) -> tuple[CheckKind, PeerScheduleState]:
    """(kind that an `auto` check becomes, next state). After a check that found nothing to repair: the range since
    then; a learned range goes first; after a failure: everything within the window, else a day. `both_ways`: this peer
    is asked to repair, too, so every difference can be repaired."""
    if state.suppressed:
        return CheckKind.NONE, replace(state, suppressed=state.suppressed - 1)
    if state.learned is not None or not state.failed:
        return CheckKind.RANGE, state
    if state.quiet and not both_ways:
        return CheckKind.NONE, replace(state, quiet=state.quiet - 1)
    return (CheckKind.ALL if window.contains(wall_ms) else CheckKind.DAY), state


SKEW_MAX_MS: Final = HOUR_MS
"""Clocks that differ by more make no range: a check compares everything then."""


def widened(times: TimeRange | None, skew_ms: int) -> TimeRange | None:
    """A range for keys that are stamped by clocks up to `skew_ms` from this node's; None: all. Keys outside of a range
    are not called equal: a check whose range is too narrow ends as incomplete."""
    if times is None or skew_ms > SKEW_MAX_MS:
        return None if times is None or times.bucket is None else replace(times, since_ms=0, before_ms=0)
    since_ms = max(0, times.since_ms - skew_ms) if times.since_ms else 0
    return replace(times, since_ms=since_ms, before_ms=times.before_ms + skew_ms if times.before_ms else 0)


def compared_times(kind: CheckKind, state: PeerScheduleState, wall_ms: int) -> TimeRange | None:
    """The time range of a check that begins now, by this node's clock; None: all. The default range begins with the
    newest check that found nothing to repair."""
    until_ms = wall_ms + RANGE_AHEAD_MS
    if kind is CheckKind.DAY:
        return TimeRange(wall_ms - DAY_MS, until_ms)
    if kind is CheckKind.HOUR:
        return TimeRange(wall_ms - HOUR_MS, until_ms)
    if kind is CheckKind.RANGE:
        return state.learned or TimeRange(state.succeeded_ms, until_ms)
    return None


def state_after(
    state: PeerScheduleState,
    kind: CheckKind,
    began_ms: int,
    *,
    up_to_date: bool,
    repaired: int,
    learned: TimeRange | None,
    own_times: bool = False,
    quiet_checks: int = 2,
) -> PeerScheduleState:
    """The state after a check; `up_to_date`: it found nothing to repair. A learned range is used once; `learned` is the
    next one. `own_times`: the check had given times, and used no range. `quiet_checks`: checks of kind auto to skip
    when no difference could be repaired from here."""
    keeps = state.learned if kind is not CheckKind.RANGE or own_times else None
    if up_to_date:
        return PeerScheduleState(began_ms, learned=keeps, suppressed=state.suppressed)
    quiet = 0 if repaired else quiet_checks
    return PeerScheduleState(state.succeeded_ms, True, quiet, learned or keeps, state.suppressed)


def learned_range(modified_ms: Sequence[int], buckets: set[bytes], most: int) -> TimeRange | None:
    """The range of the next check after more than half of `most` repairs: their modification times, widened by a second
    each way, and their bucket if it is one."""
    if len(modified_ms) <= most // 2:
        return None
    return TimeRange(
        max(0, min(modified_ms) - 1_000), max(modified_ms) + 1_000, next(iter(buckets)) if len(buckets) == 1 else None
    )


def checks_per_day(settings: FullSyncSettings) -> dict[CheckKind, int]:
    """Number of checks per day by kind."""
    return {
        CheckKind.NONE: settings.none_count,
        CheckKind.ALL: settings.all_count,
        CheckKind.DAY: settings.day_count,
        CheckKind.HOUR: settings.hour_count,
        CheckKind.RANGE: settings.range_count,
        CheckKind.AUTO: settings.auto_count,
    }


def parse_window(text: str) -> CheckHours:
    """The hours of `all_window`, which `config` has validated."""
    if text in ("always", "never"):
        return CheckHours(always=text == "always", never=text == "never")
    first, _, end = text.partition("-")
    if (int(first), int(end)) == (0, 24):
        return CheckHours(always=True)
    return CheckHours(int(first), int(end) % 24)


RETRY_MS: Final = 30_000
"""Pause before the first retry, doubled each time: nodes that start together are ready within seconds."""

RETRIES_MAX: Final = 5
"""Retries of one slot, a quarter of an hour in all; then the check waits for the next slot. A guess."""


class Retry(NamedTuple):
    """The retry number `tries` of a slot's check, its time, and its reason."""

    at_ms: int
    kind: CheckKind
    tries: int
    reason: str


def retry_after(before: Retry | None, kind: CheckKind, reason: str, now_ms: int, next_ms: int | None) -> Retry | None:
    """The retry of a check that just ended; `before`: the retry that it was itself, `next_ms`: the next slot's moment.
    None: leave it to that slot."""
    tries = 1 if before is None else before.tries + 1
    at_ms = now_ms + (RETRY_MS << (tries - 1))
    if tries > RETRIES_MAX or (next_ms is not None and next_ms <= at_ms):
        return None
    return Retry(at_ms, kind, tries, reason)
