"""When which check is due: a day cut into slots, shared out among nodes and peers by arithmetic alone.

Each peer cluster has wants, a number of checks of each kind a day. Their sum cuts the day into slots from midnight UTC,
so all nodes of all clusters have the same slots, however often and whenever they start. The order of the kinds is
shuffled by a seed made of node, peer and date: a restart continues the day's plan. Within a slot every live node has
its own moment, by its rank among the names of the live nodes, and so has every peer of a node; with `cluster_slice` the
moments lie in one quarter of the slot, and other clusters have the others. So two exchanges rarely meet although nobody
coordinates. Moments before a node's start have gone by; a check that could not begin within half a slot of its moment
is late and is skipped. Pure: times and names are given.

A check that was due and could not look (a peer that is not ready, a tree that is being built) is tried again soon.

A few times, each after a longer pause, and only until the next slot of the peer's day: then that one is due anyhow. Who
asked for a check is told of its end and asks again. Pure; `aae.scheduling.manager` keeps the one retry of each peer.
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
"""Checks of one peer a day, at most: one a minute. More would be real time by other means."""

RANGE_AHEAD_MS: Final = 5_000
"""How far a range reaches beyond now: clocks of the cluster's machines differ."""


class CheckKind(StrEnum):
    """What a check looks at. `none` is a slot in which nothing is done, `auto` chooses when its time has come."""

    NONE = "none"
    ALL = "all"
    DAY = "day"
    HOUR = "hour"
    RANGE = "range"
    AUTO = "auto"


CLUSTER_SLICES: Final = 4
"""Shares of a slot, one for each cluster that compares: Riak's number (`ttaaefs_cluster_slice`)."""


class DayPlan(NamedTuple):
    """One day (UTC) of one peer: slot `i` of `slot_ms` has the check `kinds[i]`."""

    start_ms: int
    slot_ms: int
    kinds: tuple[CheckKind, ...]

    @property
    def end_ms(self) -> int:
        """When the next plan begins: at midnight, up to some ms after the last slot, whose length is a whole number."""
        return self.start_ms + DAY_MS


class SchedulePlace(NamedTuple):
    """Whose plan it is: this node's rank among `nodes` live ones, and the peer's among the `peers` of this node.
    `cluster_slice`: the quarter of each slot that this cluster's checks begin in, 1 to 4; 0: the whole slot."""

    rank: int
    nodes: int
    peer: int
    peers: int
    cluster_slice: int = 0

    def share(self, slot_ms: int) -> tuple[int, int]:
        """(first, end) of the part of a slot, in ms from its begin, in which this cluster's checks begin."""
        if not self.cluster_slice:
            return 0, slot_ms
        first, end = (slot_ms * number // CLUSTER_SLICES for number in (self.cluster_slice - 1, self.cluster_slice))
        return first, end


class Due(NamedTuple):
    """The check of slot `slot`, and its moment."""

    slot: int
    kind: CheckKind
    at_ms: int


def day_of(wall_ms: int) -> int:
    """When (wall clock, ms) the day (UTC) of `wall_ms` began."""
    return wall_ms - wall_ms % DAY_MS


def planned(wants: Mapping[CheckKind, int], day_ms: int, seed: str) -> DayPlan | None:
    """The plan of the day that began at `day_ms`; None when nothing is wanted at all, not even `none`. The same `seed`
    gives the same order on each day; it names the node and the peer."""
    assert day_ms % DAY_MS == 0
    kinds = [kind for kind in CheckKind for _ in range(wants.get(kind, 0))]
    if not kinds or all(kind is CheckKind.NONE for kind in kinds):
        return None
    assert len(kinds) <= CHECKS_MAX
    Random(f"{seed}\n{day_ms // DAY_MS}").shuffle(kinds)  # noqa: S311 - the order of checks is no secret
    return DayPlan(day_ms, DAY_MS // len(kinds), tuple(kinds))


def rank_of(node: str, live: Sequence[str]) -> tuple[int, int]:
    """(rank, number) of `node` among the names of the live nodes, itself included although it may not be listed yet."""
    names = sorted({*live, node})
    return names.index(node), len(names)


def moment(plan: DayPlan, slot: int, place: SchedulePlace) -> int:
    """When the check of `slot` is due here."""
    parts = place.nodes * place.peers
    part = place.rank * place.peers + place.peer
    first, end = place.share(plan.slot_ms)
    return plan.start_ms + plan.slot_ms * slot + first + (end - first) * part // parts


def latest(plan: DayPlan, slot: int, place: SchedulePlace) -> int:
    """Until when the check of `slot` may begin here: half a slot after its moment; with a cluster slice no later than
    that slice's end, since then it is another cluster's turn."""
    half_ms = moment(plan, slot, place) + plan.slot_ms // 2
    if not place.cluster_slice:
        return half_ms
    return min(half_ms, plan.start_ms + plan.slot_ms * slot + place.share(plan.slot_ms)[1])


def due(
    plan: DayPlan, place: SchedulePlace, after_slot: int, from_ms: int, now_ms: int
) -> tuple[Due | None, list[int]]:
    """The next check behind `after_slot` that is not late, be its moment to come or just gone; and the slots that are
    late and so are skipped. Moments before `from_ms`, the node's start, have gone by: they are neither. None when the
    plan has no more: the next day's is to be made."""
    skipped: list[int] = []
    for slot in range(after_slot + 1, len(plan.kinds)):
        at_ms = moment(plan, slot, place)
        if at_ms < from_ms:
            continue
        if latest(plan, slot, place) >= now_ms:
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
    """Hours of the day (UTC) in which `auto` may check everything: from `first` until `end`, which may be past
    midnight; equal ones mean that hour alone. `always` and `never` go before."""

    first: int = 0
    end: int = 0
    always: bool = False
    never: bool = False

    def holds(self, wall_ms: int) -> bool:
        """True when `wall_ms` lies within."""
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
    """What is known of a peer when a check is chosen. `succeeded_ms`: when the last check that ended in sync began
    (the node's start, before the first); `failed`: the last one did not; `quiet`: checks of kind auto to leave out,
    since the last one found differences where none could be repaired from here. `learned`: where repairs were, or what
    an operator set."""

    succeeded_ms: int
    failed: bool = False
    quiet: int = 0
    learned: TimeRange | None = None
    suppressed: int = 0
    """Checks of kind auto that an operator wants left out, whatever was found."""


def chosen(
    standing: PeerScheduleState, window: CheckHours, wall_ms: int, *, both_ways: bool
) -> tuple[CheckKind, PeerScheduleState]:
    """What an `auto` check becomes, and the standing after that choice: what has been in sync is checked since then, a
    learned range comes first, and a failure is followed by everything within the window, by a day outside. `both_ways`:
    this peer is told to repair, too, so no failure is beyond us."""
    if standing.suppressed:
        return CheckKind.NONE, replace(standing, suppressed=standing.suppressed - 1)
    if standing.learned is not None or not standing.failed:
        return CheckKind.RANGE, standing
    if standing.quiet and not both_ways:
        return CheckKind.NONE, replace(standing, quiet=standing.quiet - 1)
    return (CheckKind.ALL if window.holds(wall_ms) else CheckKind.DAY), standing


def looked_at(kind: CheckKind, standing: PeerScheduleState, wall_ms: int) -> TimeRange | None:
    """The time range of a check that begins now; None: all times. A range without a learned one goes from the last
    check that ended in sync until now."""
    until_ms = wall_ms + RANGE_AHEAD_MS
    if kind is CheckKind.DAY:
        return TimeRange(wall_ms - DAY_MS, until_ms)
    if kind is CheckKind.HOUR:
        return TimeRange(wall_ms - HOUR_MS, until_ms)
    if kind is CheckKind.RANGE:
        return standing.learned or TimeRange(standing.succeeded_ms, until_ms)
    return None


def after(
    standing: PeerScheduleState,
    kind: CheckKind,
    began_ms: int,
    *,
    in_sync: bool,
    repaired: int,
    learned: TimeRange | None,
    own_times: bool = False,
    quiet_checks: int = 2,
) -> PeerScheduleState:
    """The standing after a check that ended. A learned range is used once; `learned` is the next. `own_times`: it
    had times of its own, and used no range. `quiet_checks`: of kind auto, that are left out when nothing that differs
    could be repaired from here."""
    keeps = standing.learned if kind is not CheckKind.RANGE or own_times else None
    if in_sync:
        return PeerScheduleState(began_ms, learned=keeps, suppressed=standing.suppressed)
    quiet = 0 if repaired else quiet_checks
    return PeerScheduleState(standing.succeeded_ms, True, quiet, learned or keeps, standing.suppressed)


def learned_range(modified_ms: Sequence[int], buckets: set[bytes], most: int) -> TimeRange | None:
    """Where many repairs were, so that the next check looks there first: when there were more than half of `most`, the
    times of their last changes, a second wider each way, and their bucket if it is one."""
    if len(modified_ms) <= most // 2:
        return None
    return TimeRange(
        max(0, min(modified_ms) - 1_000), max(modified_ms) + 1_000, next(iter(buckets)) if len(buckets) == 1 else None
    )


def wants_of(settings: FullSyncSettings) -> dict[CheckKind, int]:
    """Checks a day by kind."""
    return {
        CheckKind.NONE: settings.none_count,
        CheckKind.ALL: settings.all_count,
        CheckKind.DAY: settings.day_count,
        CheckKind.HOUR: settings.hour_count,
        CheckKind.RANGE: settings.range_count,
        CheckKind.AUTO: settings.auto_count,
    }


def window_of(text: str) -> CheckHours:
    """The hours of `all_window`, as `config` has checked them."""
    if text in ("always", "never"):
        return CheckHours(always=text == "always", never=text == "never")
    first, _, end = text.partition("-")
    if (int(first), int(end)) == (0, 24):
        return CheckHours(always=True)
    return CheckHours(int(first), int(end) % 24)


RETRY_MS: Final = 30_000
"""Pause before the first try again, doubled each time: nodes that start together are ready within some seconds."""

RETRIES_MAX: Final = 5
"""Tries again of one slot: a quarter of an hour in all. What is still not ready waits for the next slot, as it would
have without them. A guess."""


class Retry(NamedTuple):
    """The check of a slot that is to be tried again at `at_ms`, for the `tries`-th time, and why."""

    at_ms: int
    kind: CheckKind
    tries: int
    reason: str


def again(before: Retry | None, kind: CheckKind, reason: str, now_ms: int, next_ms: int | None) -> Retry | None:
    """When a check that ended now is tried again; `before`: that was a try already, `next_ms`: the next slot's moment.
    None: it is left to that."""
    tries = 1 if before is None else before.tries + 1
    at_ms = now_ms + (RETRY_MS << (tries - 1))
    if tries > RETRIES_MAX or (next_ms is not None and next_ms <= at_ms):
        return None
    return Retry(at_ms, kind, tries, reason)
