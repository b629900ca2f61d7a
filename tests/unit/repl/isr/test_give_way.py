"""When a leader without contact to its followers gives way, and to whom (R-GIVE-WAY)."""

from __future__ import annotations

from dataclasses import replace

from isthmus.repl.isr.give_way import (
    CHECK_MS,
    GIVE_WAY_AGAIN_CHECKS,
    GIVE_WAY_CHECKS,
    GiveWay,
    IsolationCheck,
    gave_way,
)
from isthmus.repl.model.record import Member, PartitionRecord, PartitionStatus
from tests.support.replica_builders import GEN, MEMBER, NODE, online
from tests.support.streamed_group import StreamedGroup

OTHERS = (Member("n2", GEN), Member("n3", GEN), Member("n4", GEN))


def a_record_of_four() -> PartitionRecord:
    """Four members in sync, led by this node."""
    nodes = (NODE, *(member.node for member in OTHERS))
    return online(replicas=nodes, isr=frozenset({MEMBER, *OTHERS}), min_isr=2)


class IsolatedLeader:
    """A leader that can commit nothing, and its checks, one a second."""

    def __init__(self, *, had_contact: bool = True, keeps_up: bool = False) -> None:
        self.isolation = IsolationCheck(had_contact=had_contact)
        self.record = a_record_of_four()
        self.keeps_up = keeps_up
        self.now_ms = 0
        self.check()  # the first one sets the time of the next

    def check(self) -> GiveWay | None:
        """The next check."""
        found = self.isolation.check(
            self.record, MEMBER, {}, powerless=True, keeps_up=self.keeps_up, now_ms=self.now_ms
        )
        self.now_ms += CHECK_MS
        return found

    def checks_until_it_gives_way(self, limit: int = 3 * GIVE_WAY_AGAIN_CHECKS) -> int | None:
        """How many checks it takes; None if it has not given way after `limit`."""
        return next((count for count in range(1, limit + 1) if self.check() is not None), None)


def test_a_leader_gives_way_after_the_limit_of_checks_without_contact() -> None:
    """Ten checks with contact before, sixty where no follower ever came."""
    assert IsolatedLeader().checks_until_it_gives_way() == GIVE_WAY_CHECKS
    assert IsolatedLeader(had_contact=False).checks_until_it_gives_way() == GIVE_WAY_AGAIN_CHECKS


def test_any_contact_begins_the_count_again() -> None:
    """A follower that acknowledges now and then, more often than the limit, keeps the leader in place."""
    leader = IsolatedLeader()
    for _ in range(5):
        for _ in range(GIVE_WAY_CHECKS - 1):
            assert leader.check() is None
        leader.isolation.contacted()
        assert leader.check() is None
    assert leader.checks_until_it_gives_way() == GIVE_WAY_CHECKS


def test_a_follower_with_the_whole_log_is_in_contact_though_it_acknowledges_nothing() -> None:
    """Where nothing is written, a connected follower that has everything has nothing to acknowledge."""
    leader = IsolatedLeader(keeps_up=True)
    assert leader.checks_until_it_gives_way() is None
    leader.keeps_up = False
    assert leader.checks_until_it_gives_way() == GIVE_WAY_CHECKS


def test_each_attempt_goes_to_another_member() -> None:
    """The first target may be dead: the attempts go round, the later ones after the longer limit."""
    leader = IsolatedLeader()
    targets, counts = [], []
    for _ in range(4):
        count = 0
        while (found := leader.check()) is None:
            count += 1
        targets.append(found.to)
        counts.append(count + 1)
        assert found.record.preferred == found.to.node
    assert targets == [*OTHERS, OTHERS[0]]
    assert counts == [GIVE_WAY_CHECKS, *[GIVE_WAY_AGAIN_CHECKS] * 3]


def test_an_acknowledgement_by_a_stream_is_contact() -> None:
    """Followers that acknowledge by streams alone are in contact: when they fall silent, the leader gives way after the
    short limit, and not before it as long as they acknowledge."""
    group = StreamedGroup.joined()
    leader = group.leader._leader
    assert leader is not None
    leader.isolation = IsolationCheck()
    group.append()
    assert not leader.isolation.had_contact
    group.exchange("n2")
    assert leader.isolation.contact
    assert leader.isolation.had_contact


def checks_without_contact(*, unlinked: bool, reached: frozenset[str]) -> tuple[int, GiveWay]:
    """How many checks a leader takes whose followers never came, and how it gives way."""
    isolation, now_ms = IsolationCheck(), 0
    record = a_record_of_four()
    for count in range(3 * GIVE_WAY_AGAIN_CHECKS):
        found = isolation.check(
            record, MEMBER, {}, powerless=True, keeps_up=False, now_ms=now_ms, unlinked=unlinked, reached=reached
        )
        if found is not None:
            return count, found
        now_ms += CHECK_MS
    raise AssertionError("never gives way")


def test_a_leader_that_its_followers_cannot_dial_does_not_wait_for_them_as_for_dead_ones() -> None:
    """It has dialled one of them, so that one lives, and none has dialled it: it gives way after the short limit, to
    one that it reaches. Where it reaches none, or one is connected, it takes the long one (R-REACHED)."""
    count, way = checks_without_contact(unlinked=True, reached=frozenset({"n3"}))
    assert (count, way.to) == (GIVE_WAY_CHECKS, OTHERS[1])
    assert gave_way(way.record) == NODE
    assert checks_without_contact(unlinked=True, reached=frozenset({"n9"}))[0] == GIVE_WAY_AGAIN_CHECKS
    assert checks_without_contact(unlinked=False, reached=frozenset({"n3"}))[0] == GIVE_WAY_AGAIN_CHECKS


def test_only_a_record_that_gives_way_says_who_did() -> None:
    """Not one of another election, nor the one that is decided upon."""
    _, way = checks_without_contact(unlinked=True, reached=frozenset({"n3"}))
    assert gave_way(a_record_of_four()) is None
    assert gave_way(replace(way.record, reason=f"{NODE} resigned")) is None
    assert gave_way(replace(way.record, tried=frozenset())) is None
    assert gave_way(replace(way.record, status=PartitionStatus.CANDIDATE_FOUND)) is None
