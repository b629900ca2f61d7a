"""The election as described on Fluvio's page about replica election, step by step, on one replica set of three."""

from __future__ import annotations

from dataclasses import replace

from isthmus.repl.controller.election import (
    ASK_MS,
    BACK_OFF_MIN_MS,
    RESPONSE_MIN_MS,
    ElectionTimer,
    NoAction,
    ProposeRecord,
    WaitUntil,
    asked,
    elect,
    watched,
)
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration

GENS = {"s1": 11, "s2": 12, "s3": 13}
ELECTION, FOUND = PartitionStatus.ELECTION, PartitionStatus.CANDIDATE_FOUND
ONLINE, OFFLINE = PartitionStatus.ONLINE, PartitionStatus.OFFLINE


class ElectionRun:
    """A controller over one record: decides until it has to wait, and notes the statuses that the record takes."""

    def __init__(self, min_isr: int = 2) -> None:
        self.now_ms = 0
        self.session_id = 100
        self.registrations: dict[str, Registration] = {}
        for node in GENS:
            self.register(node, decide=False)
        self.record = PartitionRecord(
            0,
            "default",
            0,
            1,
            ("s1", "s2", "s3"),
            epoch=4,
            status=ONLINE,
            leader=Incarnation("s1", self.registrations["s1"].session_id),
            isr=frozenset(Member(*each) for each in GENS.items()),
            min_isr=min_isr,
            version=0,
        )
        self.watch: ElectionTimer | None = None
        self.promoted: set[tuple[int, str, int, int]] = set()
        self.reported: dict[str, tuple[int, int]] = {}
        self.statuses: list[PartitionStatus] = []

    def register(self, node: str, *, log_id: int | None = None, decide: bool = True) -> None:
        """A node registers, in a new session."""
        self.session_id += 1
        self.registrations[node] = Registration(
            node, self.session_id, True, log_ids={0: log_id or GENS[node]}, id=int(node[1])
        )
        if decide:
            self.decide()

    def expire(self, *nodes: str) -> None:
        """Sessions end."""
        for node in nodes:
            del self.registrations[node]
        self.decide()

    def promote(self) -> None:
        """The candidate reports its promotion."""
        who = self.record.candidate
        assert who is not None
        self.promoted.add((self.record.epoch, who.node, who.session_id, self.registrations[who.node].log_id_of(0)))
        self.decide()

    def advance(self, time_ms: int) -> None:
        """Nothing happens for a while."""
        self.now_ms += time_ms
        self.decide()

    def decide(self) -> None:
        """Decide and write until there is nothing to do now."""
        for _ in range(20):
            self.watch = watched(self.watch, self.record, self.now_ms)
            decision = elect(
                self.record,
                self.registrations,
                self.now_ms,
                self.watch.since_ms,
                self.promoted,
                attempt=self.watch.attempt,
                reported=self.reported,
            )
            if isinstance(decision, NoAction | WaitUntil):
                return
            assert isinstance(decision, ProposeRecord)
            self.record = replace(decision.record, version=self.record.version + 1)
            self.statuses.append(self.record.status)
        raise AssertionError("the controller does not come to rest")

    @property
    def candidate_node(self) -> str | None:
        """The node that is the candidate."""
        return None if self.record.candidate is None else self.record.candidate.node

    @property
    def leader_node(self) -> str | None:
        """The node that leads."""
        return None if self.record.leader is None else self.record.leader.node

    @property
    def live_set(self) -> set[str]:
        """The nodes of the ISR."""
        return {member.node for member in self.record.isr}


def test_a_node_that_goes_offline_triggers_an_election_of_the_smallest_lag() -> None:
    """The statuses are Election, then CandidateFound with the follower of the live set that lags least, then the
    response."""
    run = ElectionRun()
    run.reported = {"s2": (4, 90), "s3": (4, 95)}
    run.expire("s1")
    assert run.statuses == [ELECTION, FOUND]
    assert (run.candidate_node, run.record.epoch) == ("s3", 5)
    run.promote()
    assert run.statuses[2:] == [ONLINE]
    assert (run.leader_node, run.live_set, run.record.epoch) == ("s3", {"s2", "s3"}, 5)


def test_only_the_live_set_is_asked_and_chosen_from() -> None:
    """A follower outside of the live set is not eligible, however long its log is."""
    run = ElectionRun()
    run.record = replace(run.record, isr=run.record.isr - {Member("s3", 13)})
    run.reported = {"s2": (4, 1), "s3": (4, 999)}
    run.expire("s1")
    assert run.candidate_node == "s2"


def test_all_live_members_are_asked_and_silent_ones_are_awaited_for_a_bounded_time() -> None:
    """The status stays Election until both have reported their log positions, or ASK_MS have passed."""
    run = ElectionRun()
    run.expire("s1")
    assert run.statuses == [ELECTION]
    assert asked(run.record, run.registrations) == ["s2", "s3"]
    run.reported = {"s3": (4, 3)}
    run.advance(ASK_MS - 1)
    assert run.statuses == [ELECTION]
    run.advance(1)
    assert run.candidate_node == "s3"
    assert asked(run.record, run.registrations) == []


def test_without_an_eligible_candidate_the_set_is_offline() -> None:
    """After the whole live set is gone the statuses are Election, then Offline, and the reason names the members that
    could bring it back."""
    run = ElectionRun()
    run.expire("s1", "s2", "s3")
    assert run.statuses == [ELECTION, OFFLINE]
    assert run.record.reason == "waits for s1 (not registered); s2 (not registered); s3 (not registered)"
    assert run.leader_node is None
    assert run.candidate_node is None


def test_a_follower_that_is_lost_leaves_the_live_set_without_an_election() -> None:
    """Only the leader's loss elects; the others are taken out of the set."""
    run = ElectionRun()
    run.expire("s3")
    assert (run.statuses, run.leader_node, run.live_set) == ([ONLINE], "s1", {"s1", "s2"})


def test_a_failed_promotion_is_silent_and_the_timer_moves_on() -> None:
    """The response timer fires: the next candidate of the live set by lag is nominated in a new epoch, and so on."""
    run = ElectionRun()
    run.reported = {"s2": (4, 90), "s3": (4, 95)}
    run.expire("s1")
    run.advance(RESPONSE_MIN_MS - 1)
    assert run.candidate_node == "s3"
    run.advance(1)
    assert (run.candidate_node, run.record.epoch, run.record.tried) == ("s2", 6, {"s2", "s3"})
    run.promote()
    assert (run.leader_node, run.live_set) == ("s2", {"s2", "s3"})


def test_a_late_promotion_of_an_earlier_candidate_does_not_count() -> None:
    """After the next nomination, a report of the silent candidate belongs to another epoch."""
    run = ElectionRun()
    run.reported = {"s2": (4, 90), "s3": (4, 95)}
    run.expire("s1")
    late = (5, "s3", run.registrations["s3"].session_id, 13)
    run.advance(RESPONSE_MIN_MS)
    run.promoted.add(late)
    run.decide()
    assert (run.record.status, run.candidate_node) == (FOUND, "s2")


def test_when_all_stayed_silent_there_is_a_pause_and_all_are_tried_again() -> None:
    """No untried member is left, but they live: the status returns to Election, with a new nomination after the
    back-off."""
    run = ElectionRun()
    run.reported = {"s2": (4, 90), "s3": (4, 95)}
    run.expire("s1")
    run.advance(RESPONSE_MIN_MS)
    run.advance(int(RESPONSE_MIN_MS * 1.5))
    assert (run.record.status, run.record.tried) == (ELECTION, frozenset())
    run.advance(2 * BACK_OFF_MIN_MS - 1)
    assert run.record.status is ELECTION
    run.advance(1)
    assert (run.candidate_node, run.record.epoch) == ("s3", 7)


def test_the_timer_without_further_candidates_takes_the_set_offline() -> None:
    """The last candidate's node goes before it answers and no other member is eligible: Offline."""
    run = ElectionRun()
    run.expire("s1", "s2")
    assert run.candidate_node == "s3"
    run.expire("s3")
    assert (run.record.status, run.candidate_node) == (OFFLINE, None)


def test_a_node_that_comes_back_refreshes_the_sets_that_are_offline() -> None:
    """The statuses are Offline, Election, CandidateFound, Online; the eligible member with the smallest lag is
    elected."""
    run = ElectionRun()
    run.expire("s1", "s2", "s3")
    run.statuses.clear()
    run.reported = {"s1": (4, 70), "s2": (4, 80)}
    run.register("s1", decide=False)
    run.register("s2")
    assert run.statuses == [ELECTION, FOUND]
    assert run.candidate_node == "s2"
    run.promote()
    assert (run.leader_node, run.live_set) == ("s2", {"s1", "s2"})


def test_a_set_that_is_offline_stays_so_for_a_node_that_is_no_member_any_more() -> None:
    """A member that comes back with another log could lose what was confirmed: it is not eligible."""
    run = ElectionRun()
    run.expire("s2", "s3")
    run.expire("s1")
    run.statuses.clear()
    run.register("s1", log_id=99)
    assert run.record.status is OFFLINE
    assert "s1 (came back with another log: gen 99, not 11)" in run.record.reason


def test_a_leader_that_returns_does_not_lead_again() -> None:
    """It finds a new leader in the record, in a higher epoch, and is not in sync: it has to follow."""
    run = ElectionRun()
    run.reported = {"s2": (4, 90), "s3": (4, 95)}
    run.expire("s1")
    run.promote()
    before = run.record
    run.register("s1")
    assert run.record == before
    assert (run.leader_node, run.live_set) == ("s3", {"s2", "s3"})


def test_the_set_goes_on_under_the_new_leader_until_the_next_election() -> None:
    """After the second loss the one that remains leads, and the others stay electable below min-ISR."""
    run = ElectionRun()
    run.reported = {"s2": (4, 90), "s3": (4, 95)}
    run.expire("s1")
    run.promote()
    run.expire("s3")
    assert run.candidate_node == "s2"
    run.promote()
    assert (run.leader_node, run.live_set, run.record.epoch) == ("s2", {"s2"}, 6)
    assert {member.node for member in run.record.elr} == {"s3"}
