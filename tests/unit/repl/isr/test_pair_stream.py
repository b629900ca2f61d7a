"""The two ends of a replication stream, with replicas whose answers a test sets (R-STREAM)."""

from __future__ import annotations

import pytest

from isthmus.repl.isr.effects import NOTHING, Effects, RunAccepted
from isthmus.repl.isr.events import RunAnnounced, RunCommitted, RunHeld, RunReceived
from isthmus.repl.isr.pair_stream import (
    ANNOUNCE_MS,
    GROUPS_MAX,
    HOLD_MS,
    UNACKNOWLEDGED_MS,
    Acknowledged,
    Commit,
    ReceivedGroup,
    SentRun,
    StreamAck,
    StreamGroup,
    StreamReceiver,
    StreamRun,
    StreamSender,
)

JOIN = 70
STREAM = 9


class FakeLeader:
    """A replica at the sending end: everything below `committed` is committed; joins in `over` have ended.

    `held`: the joins that the stream holds back. `announced`: the ends that it announces."""

    def __init__(self, committed: int = 0) -> None:
        self.committed = committed
        self.over: set[int] = set()
        self.held: list[int] = []
        self.announced: list[int] = []

    @property
    def replica(self) -> FakeLeader:
        """It is its own partition."""
        return self

    def stream_commit(self, _node: str, run: SentRun) -> Commit:
        """See `StreamLeader`."""
        if run.join in self.over:
            return Commit.LEFT
        return Commit.YES if run.end <= self.committed else Commit.NOT_YET

    def step(self, event: RunAnnounced | RunHeld, _now_ms: int) -> None:
        """See `StreamLeader`."""
        if isinstance(event, RunHeld):
            self.held.append(event.join)
        else:
            self.announced.append(event.end)


class FakeFollower:
    """A replica at the receiving end: follows under `nonce` (0: refuses every run)."""

    def __init__(self, nonce: int = 5, durable: int = 0) -> None:
        self.nonce = nonce
        self.durable = durable

    @property
    def replica(self) -> FakeFollower:
        """It is its own partition."""
        return self

    def step(self, _event: RunReceived, _now_ms: int) -> Effects:
        """See `StreamFollower`."""
        return Effects((RunAccepted(self.nonce),)) if self.nonce else NOTHING

    def stream_durable(self, nonce: int) -> int:
        """See `StreamFollower`."""
        return self.durable if nonce == self.nonce else -1


def a_run(partition: int, start: int, count: int = 1) -> StreamRun:
    return StreamRun(partition, 1, start, count, b"")


def a_group(number: int, *runs: StreamRun, committed: int = 0, held: tuple[int, ...] = ()) -> StreamGroup:
    return StreamGroup(STREAM, number, committed, held, runs)


def sent(sender: StreamSender, replicas: dict[int, FakeLeader], now_ms: int, *runs: tuple[int, int]) -> StreamGroup:
    """Send one group of runs (partition, end) of one entry each."""
    for partition, end in runs:
        sender.add(SentRun(partition, JOIN + partition, end))
    return sender.seal(tuple(a_run(partition, end - 1) for partition, end in runs), replicas, now_ms)


def ack(number: int, to: int, *left: int) -> StreamAck:
    return StreamAck(STREAM, number, to, left)


# -- the sending end ----------------------------------------------------------------------------


def test_groups_are_numbered_from_one_without_gaps() -> None:
    """Each group has the next number, with or without runs, and names nothing as committed before it is."""
    replicas = {0: FakeLeader()}
    sender = StreamSender("n2", STREAM)
    groups = [sent(sender, replicas, 0, (0, end)) for end in (1, 2)] + [sender.seal((), replicas, 0)]
    assert [(group.stream, group.number, group.committed, group.held) for group in groups] == [
        (STREAM, 1, 0, ()),
        (STREAM, 2, 0, ()),
        (STREAM, 3, 0, ()),
    ]
    assert groups[0].runs == (a_run(0, 0),)
    assert sender.group_count == 3


def test_one_number_acknowledges_all_groups_up_to_it() -> None:
    """The runs of all groups up to the number are durable, in the order in which they were sent; the rest waits."""
    replicas = {0: FakeLeader(), 1: FakeLeader()}
    sender = StreamSender("n2", STREAM)
    sent(sender, replicas, 0, (0, 1), (1, 1))
    sent(sender, replicas, 0, (0, 2))
    sent(sender, replicas, 0, (0, 3))
    assert sender.round_open
    found = sender.acknowledge(ack(1, 2), replicas, 0)
    assert found == Acknowledged([SentRun(0, JOIN, 1), SentRun(1, JOIN + 1, 1), SentRun(0, JOIN, 2)], [])
    assert sender.round_open
    assert sender.acknowledge(ack(2, 3), replicas, 0) == Acknowledged([SentRun(0, JOIN, 3)], [])
    assert not sender.round_open


def test_partitions_that_left_are_left_in_the_groups_that_the_acknowledgement_covers_and_in_no_other() -> None:
    """A partition named as left counts nowhere among the groups covered; its runs in later groups stay under way."""
    replicas = {0: FakeLeader(), 1: FakeLeader()}
    sender = StreamSender("n2", STREAM)
    for end in (1, 2, 3):
        sent(sender, replicas, 0, (0, end), (1, end))
    found = sender.acknowledge(ack(1, 2, 0), replicas, 0)
    assert found is not None
    assert found.left == [SentRun(0, JOIN, 1), SentRun(0, JOIN, 2)]
    assert found.durable == [SentRun(1, JOIN + 1, 1), SentRun(1, JOIN + 1, 2)]
    found = sender.acknowledge(ack(2, 3), replicas, 0)
    assert found == Acknowledged([SentRun(0, JOIN, 3), SentRun(1, JOIN + 1, 3)], [])


def test_an_acknowledgement_out_of_order_ends_the_stream() -> None:
    """A missing or repeated acknowledgement, the end marker, and one for groups that were not sent end it."""
    for wrong in (ack(2, 1), ack(0, 0), ack(1, 2)):
        replicas = {0: FakeLeader()}
        sender = StreamSender("n2", STREAM)
        sent(sender, replicas, 0, (0, 1))
        assert sender.acknowledge(wrong, replicas, 0) is None
    replicas = {0: FakeLeader()}
    sender = StreamSender("n2", STREAM)
    sent(sender, replicas, 0, (0, 1))
    assert sender.acknowledge(ack(1, 1), replicas, 0) is not None
    assert sender.acknowledge(ack(1, 1), replicas, 0) is None


def test_an_acknowledgement_of_another_stream_has_no_effect() -> None:
    """Late acknowledgements of an older stream neither count nor end this one."""
    replicas = {0: FakeLeader()}
    sender = StreamSender("n2", STREAM)
    sent(sender, replicas, 0, (0, 1))
    for other in (StreamAck(STREAM - 1, 1, 1, ()), StreamReceiver.over(STREAM - 1)):
        assert sender.acknowledge(other, replicas, 0) == Acknowledged([], [])
    assert sender.acknowledge(ack(1, 1), replicas, 0) == Acknowledged([SentRun(0, JOIN, 1)], [])


def test_a_commit_is_announced_by_the_next_group_or_by_one_without_runs() -> None:
    """Acknowledged and committed runs are announced in the next group's head; an idle leader sends a group without runs
    after a while."""
    replicas = {0: FakeLeader()}
    sender = StreamSender("n2", STREAM)
    sent(sender, replicas, 0, (0, 1))
    sender.acknowledge(ack(1, 1), replicas, 0)
    assert sent(sender, replicas, 1, (0, 2)).committed == 0
    replicas[0].committed = 2
    assert sent(sender, replicas, 2, (0, 3)).committed == 1
    sender.acknowledge(ack(2, 3), replicas, 3)
    due_ms = sender.deadline_ms()
    assert due_ms == 3 + ANNOUNCE_MS
    assert sender.tick(replicas, due_ms - 1) is None
    group = sender.tick(replicas, due_ms)
    assert group is not None
    assert (group.number, group.committed, group.runs) == (4, 2, ())


def test_the_leader_learns_that_an_announcement_arrived_from_its_acknowledgement() -> None:
    """Runs are announced once the group that named them as committed is acknowledged, and not before."""
    replicas = {0: FakeLeader(1)}
    sender = StreamSender("n2", STREAM)
    sent(sender, replicas, 0, (0, 1))
    sender.acknowledge(ack(1, 1), replicas, 0)
    assert sender.tick(replicas, ANNOUNCE_MS) is not None
    assert replicas[0].announced == []
    sender.acknowledge(ack(2, 2), replicas, ANNOUNCE_MS)
    assert replicas[0].announced == [1]
    assert sender.group_count == 0


def test_an_idle_stream_becomes_silent() -> None:
    """After the last commit is announced and acknowledged no group is due: groups without runs are not answered by
    others."""
    replicas, follower = {0: FakeLeader()}, {0: FakeFollower(durable=1)}
    sender, receiver = StreamSender("n2", STREAM), StreamReceiver("n1")
    receiver.receive(sent(sender, replicas, 0, (0, 1)), follower, 0)
    sent_groups, now_ms = 1, 0
    while now_ms < 10_000:
        now_ms += 10
        if now_ms == 50:
            replicas[0].committed = 1
        word = receiver.acknowledge(follower)
        if word is not None:
            assert sender.acknowledge(word, replicas, now_ms) is not None
        group = sender.tick(replicas, now_ms)
        if group is not None:
            sent_groups += 1
            assert receiver.receive(group, follower, now_ms) is not None
    assert sent_groups == 2
    assert sender.deadline_ms() is None
    assert (sender.group_count, receiver.waiting) == (0, False)
    assert replicas[0].announced == [1]


def test_a_partition_that_does_not_commit_is_held_after_a_while() -> None:
    """Until HOLD_MS the whole group waits, then it is announced without that partition; later groups are not
    affected."""
    replicas = {0: FakeLeader(1), 1: FakeLeader(0)}
    sender = StreamSender("n2", STREAM)
    sent(sender, replicas, 0, (0, 1), (1, 1))
    sender.acknowledge(ack(1, 1), replicas, 10)
    group = sent(sender, replicas, 10 + HOLD_MS - 1)
    assert (group.committed, group.held) == (0, ())
    group = sent(sender, replicas, 10 + HOLD_MS)
    assert (group.committed, group.held) == (1, (1,))
    assert replicas[1].held == [JOIN + 1]
    assert replicas[0].held == []
    sender.acknowledge(ack(2, 3), replicas, 10 + HOLD_MS)
    assert (replicas[0].announced, replicas[1].announced) == ([1], [])
    assert sent(sender, replicas, 10 + HOLD_MS).held == ()


def test_a_partition_that_left_is_held_at_once() -> None:
    """A run whose join is over, or whose replica is gone, holds up no other partition."""
    replicas = {0: FakeLeader(1), 1: FakeLeader(0)}
    sender = StreamSender("n2", STREAM)
    sent(sender, replicas, 0, (0, 1), (1, 1), (2, 1))
    sender.acknowledge(ack(1, 1), replicas, 0)
    replicas[1].over.add(JOIN + 1)
    group = sent(sender, replicas, 0)
    assert (group.committed, group.held) == (1, (1, 2))


def test_a_run_that_is_committed_and_announced_beside_a_held_one_of_its_partition_is_held_too() -> None:
    """The follower takes no commit of a partition that a group names as held, so the leader counts none as announced,
    and learns that AppendEntries must announce it."""
    replicas = {0: FakeLeader(), 1: FakeLeader()}
    sender = StreamSender("n2", STREAM)
    sent(sender, replicas, 0, (0, 1), (1, 1))
    replicas[0].over.add(JOIN)
    sender.add(SentRun(0, JOIN + 100, 2))
    sender.seal((a_run(0, 1),), replicas, 0)
    sender.acknowledge(ack(1, 2), replicas, 0)
    replicas[0].committed, replicas[1].committed = 2, 1
    group = sent(sender, replicas, 0)
    assert (group.committed, group.held) == (2, (0,))
    sender.acknowledge(ack(2, 3), replicas, 0)
    assert replicas[0].announced == []
    assert replicas[0].held == [JOIN, JOIN + 100]
    assert replicas[1].announced == [1]


def test_a_stream_ends_when_its_oldest_group_stays_unacknowledged() -> None:
    """`late` counts from the oldest group that is not acknowledged, and a deadline is set for it."""
    replicas = {0: FakeLeader()}
    sender = StreamSender("n2", STREAM)
    assert sender.deadline_ms() is None
    sent(sender, replicas, 100, (0, 1))
    sent(sender, replicas, 200, (0, 2))
    assert sender.deadline_ms() == 100 + UNACKNOWLEDGED_MS
    assert not sender.late(99 + UNACKNOWLEDGED_MS)
    assert sender.late(100 + UNACKNOWLEDGED_MS)
    sender.acknowledge(ack(1, 1), replicas, 300)
    assert not sender.late(100 + UNACKNOWLEDGED_MS)
    assert sender.late(200 + UNACKNOWLEDGED_MS)


def test_a_stream_with_too_many_groups_ends() -> None:
    """Groups that are acknowledged and not committed count, too: a stream's memory is bounded."""
    replicas = {0: FakeLeader()}
    sender = StreamSender("n2", STREAM)
    for end in range(1, GROUPS_MAX + 1):
        sent(sender, replicas, 0, (0, end))
    sender.acknowledge(ack(1, GROUPS_MAX), replicas, 0)
    assert not sender.late(0)
    sent(sender, replicas, 0, (0, GROUPS_MAX + 1))
    assert sender.group_count == GROUPS_MAX + 1
    assert sender.late(0)


# -- the receiving end --------------------------------------------------------------------------


def test_runs_are_accepted_and_acknowledged_once_durable() -> None:
    """Acknowledgements are numbered from 1, cover the durable runs of a group, and repeat nothing."""
    replicas = {0: FakeFollower(), 1: FakeFollower()}
    receiver = StreamReceiver("n1")
    first, second = a_group(1, a_run(0, 4, 2), a_run(1, 0)), a_group(2, a_run(0, 6))
    assert receiver.receive(first, replicas, 0) == ReceivedGroup(list(first.runs), [])
    assert receiver.receive(second, replicas, 0) == ReceivedGroup(list(second.runs), [])
    replicas[0].durable = 7
    assert receiver.acknowledge(replicas) is None
    replicas[1].durable = 1
    assert receiver.acknowledge(replicas) == ack(1, 2)
    assert receiver.acknowledge(replicas) is None
    receiver.receive(a_group(3), replicas, 0)
    assert receiver.acknowledge(replicas) == ack(2, 3)


def test_a_group_out_of_order_ends_the_stream_at_the_receiver() -> None:
    """After a gap every group of the stream is answered with its end, and nothing more is acknowledged."""
    replicas = {0: FakeFollower(durable=9)}
    receiver = StreamReceiver("n1")
    receiver.receive(a_group(1, a_run(0, 0)), replicas, 0)
    assert receiver.receive(a_group(3, a_run(0, 2)), replicas, 0) is None
    assert not receiver.waiting
    assert receiver.acknowledge(replicas) is None
    assert receiver.receive(a_group(4, a_run(0, 3)), replicas, 0) is None
    assert StreamReceiver.over(STREAM) == StreamAck(STREAM, 0, 0, ())


@pytest.mark.parametrize("durable", [0, GROUPS_MAX], ids=["not durable", "not committed"])
def test_a_stream_with_too_many_groups_ends_at_the_receiver(durable: int) -> None:
    """A sender that neither waits for acknowledgements nor announces commits cannot make the receiver's memory grow."""
    replicas = {0: FakeFollower(durable=durable)}
    receiver = StreamReceiver("n1")
    for number in range(1, GROUPS_MAX + 1):
        assert receiver.receive(a_group(number, a_run(0, number - 1)), replicas, 0) is not None
        receiver.acknowledge(replicas)
    assert receiver.receive(a_group(GROUPS_MAX + 1, a_run(0, GROUPS_MAX)), replicas, 0) is None
    assert not receiver.waiting
    assert receiver.receive(a_group(1, a_run(0, 0))._replace(stream=STREAM + 1), replicas, 0) is not None


def test_a_stream_begins_with_its_first_group_only() -> None:
    """A new stream replaces the older one, whose groups are ignored from then on; a group from the middle of a stream
    is refused."""
    replicas = {0: FakeFollower(durable=9)}
    receiver = StreamReceiver("n1")
    assert receiver.receive(a_group(2, a_run(0, 1)), replicas, 0) is None
    receiver.receive(a_group(1, a_run(0, 0)), replicas, 0)
    newer = a_group(1, a_run(0, 1))._replace(stream=STREAM + 1)
    assert receiver.receive(newer, replicas, 0) is not None
    assert receiver.receive(a_group(2, a_run(0, 1)), replicas, 0) is None
    assert receiver.acknowledge(replicas) == StreamAck(STREAM + 1, 1, 1, ())


def test_a_repeated_group_is_ignored() -> None:
    """A group that was received is neither appended nor acknowledged again, nor does it announce commits."""
    replicas = {0: FakeFollower(durable=9)}
    receiver = StreamReceiver("n1")
    receiver.receive(a_group(1, a_run(0, 0)), replicas, 0)
    receiver.receive(a_group(2, a_run(0, 1)), replicas, 0)
    assert receiver.acknowledge(replicas) == ack(1, 2)
    assert receiver.receive(a_group(2, a_run(0, 1), committed=1), replicas, 0) == ReceivedGroup([], [])
    assert receiver.acknowledge(replicas) is None


def test_a_run_that_is_refused_is_left_and_never_committed() -> None:
    """It is not passed to the log, its partition is reported as left, and no announcement of a commit covers it, even
    if the partition accepts later runs."""
    replicas = {0: FakeFollower(nonce=0, durable=9), 1: FakeFollower(durable=9)}
    receiver = StreamReceiver("n1")
    found = receiver.receive(a_group(1, a_run(0, 0), a_run(1, 0), a_run(2, 0)), replicas, 0)
    assert found == ReceivedGroup([a_run(1, 0)], [])
    replicas[0].nonce = 6
    assert receiver.acknowledge(replicas) == ack(1, 1, 0, 2)
    found = receiver.receive(a_group(2, a_run(0, 1), committed=1), replicas, 0)
    assert found == ReceivedGroup([a_run(0, 1)], [RunCommitted(1, 5, 1)])
    assert receiver.acknowledge(replicas) == ack(2, 2)


def test_a_run_accepted_under_another_request_is_left() -> None:
    """A follower that sent another FollowRequest since, or that is gone, acknowledges nothing of what it accepted."""
    replicas = {0: FakeFollower(durable=9), 1: FakeFollower(durable=9), 2: FakeFollower(durable=9)}
    receiver = StreamReceiver("n1")
    receiver.receive(a_group(1, a_run(0, 0), a_run(1, 0), a_run(2, 0)), replicas, 0)
    replicas[1].nonce = 6
    del replicas[2]
    assert receiver.acknowledge(replicas) == ack(1, 1, 1, 2)


def test_a_run_refused_in_an_earlier_group_is_named_by_the_acknowledgement_that_covers_a_later_one() -> None:
    """One acknowledgement covers several groups: each partition that left in any of them is named. A refused run that
    is not named would count as durable at its leader, which may acknowledge a write that is on too few disks."""
    replicas = {0: FakeFollower(nonce=0), 1: FakeFollower(), 2: FakeFollower(nonce=0)}
    receiver = StreamReceiver("n1")
    receiver.receive(a_group(1, a_run(0, 0), a_run(1, 0)), replicas, 0)
    receiver.receive(a_group(2, a_run(1, 1), a_run(2, 0)), replicas, 0)
    receiver.receive(a_group(3, a_run(1, 2)), replicas, 0)
    assert receiver.acknowledge(replicas) is None
    replicas[1].durable = 3
    assert receiver.acknowledge(replicas) == ack(1, 3, 0, 2)


def test_left_partitions_are_named_once_for_the_groups_covered() -> None:
    """A partition that left in one group and not in the next is named in the acknowledgement of the first alone."""
    replicas = {0: FakeFollower(nonce=0), 1: FakeFollower()}
    receiver = StreamReceiver("n1")
    receiver.receive(a_group(1, a_run(0, 0)), replicas, 0)
    assert receiver.acknowledge(replicas) == ack(1, 1, 0)
    replicas[0].nonce = 6
    receiver.receive(a_group(2, a_run(0, 1), a_run(1, 0)), replicas, 0)
    replicas[0].durable = replicas[1].durable = 2
    assert receiver.acknowledge(replicas) == ack(2, 2)


def test_commits_are_announced_up_to_the_number_but_for_held_partitions() -> None:
    """Runs of groups up to `committed` are committed, each under the nonce of its own acceptance; those of held
    partitions are never announced by a later group."""
    replicas = {0: FakeFollower(), 1: FakeFollower()}
    receiver = StreamReceiver("n1")
    receiver.receive(a_group(1, a_run(0, 0), a_run(1, 0)), replicas, 0)
    replicas[0].nonce = 6
    receiver.receive(a_group(2, a_run(0, 1)), replicas, 0)
    found = receiver.receive(a_group(3, committed=1, held=(1,)), replicas, 0)
    assert found == ReceivedGroup([], [RunCommitted(0, 5, 1)])
    found = receiver.receive(a_group(4, committed=2), replicas, 0)
    assert found == ReceivedGroup([], [RunCommitted(0, 6, 2)])
    assert receiver.receive(a_group(5, committed=4), replicas, 0) == ReceivedGroup([], [])


def test_a_group_that_claims_its_own_commit_is_no_group() -> None:
    """No leader can know a group as committed when it sends it: the group is refused, and the next group is a gap."""
    replicas = {0: FakeFollower()}
    receiver = StreamReceiver("n1")
    assert receiver.receive(a_group(1, a_run(0, 0), committed=1), replicas, 0) == ReceivedGroup([], [])
    assert receiver.receive(a_group(2, a_run(0, 1)), replicas, 0) is None


def test_nothing_is_acknowledged_after_the_connection_broke() -> None:
    """Runs that were received but not acknowledged are dropped; the stream is over."""
    replicas = {0: FakeFollower(durable=9)}
    receiver = StreamReceiver("n1")
    receiver.receive(a_group(1, a_run(0, 0)), replicas, 0)
    receiver.end()
    assert receiver.acknowledge(replicas) is None
    assert receiver.receive(a_group(2, a_run(0, 1)), replicas, 0) is None
