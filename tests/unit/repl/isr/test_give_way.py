"""When a leader without contact to its followers gives way, and to whom (R-GIVE-WAY)."""

from __future__ import annotations

from isthmus.repl.isr.give_way import CHECK_MS, GIVE_WAY_AGAIN_CHECKS, GIVE_WAY_CHECKS, GiveWay, IsolationCheck
from isthmus.repl.model.record import Member, PartitionRecord
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
