"""The ends of a node's replication streams, with fake links, log and replicas (R-STREAM)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.pair_stream import UNACKNOWLEDGED_MS, Commit, SentRun, StreamAck, StreamGroup, StreamRun
from isthmus.repl.replog.port import EncodedRun
from isthmus.repl.runtime.pair_streams import GROUP_BYTES, PairStreams
from isthmus.repl.runtime.rounds import Rounds
from isthmus.repl.transport.port import LinkMessage

FIRST = 40
"""Id before that of the first stream."""

JOIN = 7
"""The join of all followers."""


class FakeReplica:
    """A replica that leads and follows, under nonce 5 unless it refuses."""

    def __init__(self) -> None:
        self.nonce = 5
        self.durable = 0

    def step(self, event: ev.Event, _now_ms: int) -> fx.Effects:
        if isinstance(event, ev.RunReceived) and self.nonce:
            return fx.Effects((fx.RunAccepted(self.nonce),))
        assert not isinstance(event, ev.RunHeld), "nothing is held"
        return fx.NOTHING

    def stream_commit(self, _node: str, _run: SentRun) -> Commit:
        return Commit.YES

    def stream_durable(self, nonce: int) -> int:
        return self.durable if nonce == self.nonce else -1


class FakePartition:
    """A partition with such a replica."""

    def __init__(self, partition: int) -> None:
        self.id = partition
        self.replica = FakeReplica()


class FakeNode:
    """Everything that the streams of a node use. `broken` links drop messages; calls are made by `run`."""

    def __init__(self, partitions: int = 2) -> None:
        self.partitions = {number: FakePartition(number) for number in range(partitions)}
        self.sent: list[tuple[str, LinkMessage]] = []
        self.broken: set[str] = set()
        self.takers: set[str] = set()
        self.full: set[int] = set()
        self.persisted: list[StreamRun] = []
        self.events: list[ev.Event] = []
        self.fed: list[tuple[int, ev.Event]] = []
        self.calls: list[Callable[[], object]] = []
        self.timed: list[Callable[[], object]] = []
        self.time_ms = 0
        this = cast(Any, self)
        self.failures: list[Exception] = []
        self.quarantined: list[int] = []
        self.rounds = Rounds()
        self.streams = PairStreams(this.partitions, this, this, this, this, this, this, self.rounds, FIRST)

    def send(self, node: str, partition: int, message: LinkMessage) -> bool:
        assert partition == 0
        if node in self.broken:
            return False
        self.sent.append((node, message))
        return True

    def takes_stream(self, node: str) -> bool:
        return node in self.takers

    def persist_encoded(self, runs: Sequence[StreamRun]) -> None:
        self.persisted += runs

    def has_space(self, _size_bytes: int) -> bool:
        return not self.full

    def refuses(self, partition: FakePartition, _size_bytes: int) -> bool:
        return partition.id in self.full

    def now_ms(self) -> int:
        return self.time_ms

    def dispatch_all(self, event: ev.Event) -> None:
        self.events.append(event)

    def feed_at(self, partition: FakePartition, event: ev.Event, now_ms: int) -> None:
        assert now_ms == self.time_ms
        self.fed.append((partition.id, event))

    def fail(self, error: Exception) -> None:
        self.failures.append(error)

    def quarantine(self, partition: FakePartition, _bug: Exception) -> None:
        self.quarantined.append(partition.id)

    def call_soon(self, function: Callable[[], object]) -> None:
        self.calls.append(function)

    def call_later(self, _delay_s: float, function: Callable[[], object]) -> FakeNode:
        self.timed.append(function)
        return self

    def cancel(self) -> None:
        self.timed.clear()

    def run(self) -> None:
        """Ends the turn of the loop."""
        calls, self.calls = self.calls, []
        for call in calls:
            call()

    def tick(self, time_ms: int) -> None:
        """Time goes by, and what is timed is called."""
        self.time_ms += time_ms
        timed, self.timed = self.timed, []
        for call in timed:
            call()

    def open(self, node: str) -> None:
        """Opens a stream to `node`."""
        self.takers.add(node)
        self.streams.wanted(node)

    def append(self, partition: int, start: int, *nodes: str, size_bytes: int = 10, join: int = JOIN) -> None:
        """A leader's partition appends one entry for followers on `nodes`."""
        effect = fx.StreamEntries(tuple((node, join) for node in nodes), 1, start, start + 1)
        self.streams.add(effect, [EncodedRun(partition, 1, start, 1, (b"h", b"x" * (size_bytes - 1)))])

    def groups(self, node: str) -> list[StreamGroup]:
        """The groups that were sent to `node`."""
        return [message for to, message in self.sent if to == node and isinstance(message, StreamGroup)]


def a_group(number: int, *runs: StreamRun, committed: int = 0) -> StreamGroup:
    return StreamGroup(3, number, committed, (), runs)


def a_run(partition: int, start: int) -> StreamRun:
    return StreamRun(partition, 1, start, 1, b"run", (b"entry",))


def test_runs_of_one_turn_make_one_group_for_each_follower() -> None:
    """All partitions' runs of a turn travel in one group to each node, as the log has them, and the next turn's in the
    next."""
    node = FakeNode()
    node.open("n2")
    node.open("n3")
    node.append(0, 4, "n2", "n3")
    node.append(1, 9, "n2")
    assert node.sent == []
    node.run()
    first, second = node.groups("n2")[0], node.groups("n3")[0]
    assert [(run.partition, run.start, run.encoded) for run in first.runs] == [
        (0, 4, b"h" + b"x" * 9),
        (1, 9, b"h" + b"x" * 9),
    ]
    assert [run.partition for run in second.runs] == [0]
    assert first.stream != second.stream
    node.append(0, 5, "n2")
    node.run()
    assert [group.number for group in node.groups("n2")] == [1, 2]
    assert node.streams.groups_sent == 3


def test_a_large_group_is_cut() -> None:
    """A group is sent before it would grow above GROUP_BYTES; one larger run goes alone."""
    node = FakeNode()
    node.open("n2")
    for start in range(3):
        node.append(0, start, "n2", size_bytes=GROUP_BYTES // 2)
    node.append(0, 3, "n2", size_bytes=2 * GROUP_BYTES)
    node.run()
    assert [[run.start for run in group.runs] for group in node.groups("n2")] == [[0, 1], [2], [3]]


def test_a_stream_that_ends_while_a_turn_appends_takes_nothing_of_it_along() -> None:
    """If the connection drops a group, its stream ends at once; entries that the same turn appended under the old join
    are not sent in the new stream, and those of a new join are."""
    node = FakeNode()
    node.open("n2")
    node.append(0, 0, "n2", size_bytes=GROUP_BYTES)
    node.broken.add("n2")
    node.append(0, 1, "n2", size_bytes=GROUP_BYTES)
    node.broken.clear()
    assert node.events == [ev.StreamOpened("n2"), ev.StreamClosed("n2"), ev.StreamOpened("n2")]
    node.append(1, 5, "n2", join=8)
    node.run()
    assert [(group.stream, group.number, [run.start for run in group.runs]) for group in node.groups("n2")] == [
        (FIRST + 2, 1, [5])
    ]
    assert node.streams.streams_ended == 1


def test_nothing_is_sent_of_entries_that_the_log_did_not_take() -> None:
    """If the log fails during an append there are no runs, and nothing is sent."""
    node = FakeNode()
    node.open("n2")
    node.streams.add(fx.StreamEntries((("n2", 7),), 1, 0, 1), [])
    node.run()
    assert node.sent == []


def test_acknowledgements_go_to_the_replicas_and_end_the_round() -> None:
    """Durable runs and partitions that left are passed on, and waiting requests are released when every newest group is
    acknowledged."""
    node = FakeNode()
    ended: list[int] = []
    node.open("n2")
    node.open("n3")
    node.append(0, 0, "n2", "n3")
    node.append(1, 0, "n2")
    node.run()
    assert node.rounds.open
    node.rounds.when_over(lambda: ended.append(1))
    node.streams.acknowledged("n2", StreamAck(FIRST + 1, 1, 1, (1,)))
    assert node.fed == [(0, ev.RunAcknowledged("n2", JOIN, 1)), (1, ev.RunLeft("n2", JOIN))]
    assert (node.rounds.open, ended) == (True, [])
    node.streams.acknowledged("n3", StreamAck(FIRST + 2, 1, 1, ()))
    assert (node.rounds.open, ended) == (False, [1])
    node.streams.acknowledged("n4", StreamAck(FIRST + 3, 1, 1, ()))


def test_a_round_ends_with_its_last_stream() -> None:
    """No round stays open for a follower whose connection is gone: waiting requests continue."""
    node = FakeNode()
    node.open("n2")
    node.append(0, 0, "n2")
    node.run()
    assert node.rounds.open
    node.streams.link_lost("n2")
    assert not node.rounds.open


def test_a_bug_amid_a_group_stops_its_replica_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that raises while a group is received, or acknowledged, is stopped, and its run is named as left; the
    other runs of the group are appended and acknowledged (R-ALONE)."""
    node = FakeNode()

    def bad(*_arguments: object) -> int:
        raise AssertionError("made up by a test")

    with monkeypatch.context() as patch:
        patch.setattr(node.partitions[1].replica, "step", bad)
        node.streams.received("n2", a_group(1, a_run(0, 2), a_run(1, 4)))
    assert node.quarantined == [1]
    assert [run.partition for run in node.persisted] == [0]
    node.partitions[0].replica.durable = 3
    node.streams.durable()
    ((to, ack),) = node.sent
    assert to == "n2"
    assert isinstance(ack, StreamAck)
    assert (ack.number, ack.left) == (1, (1,))
    monkeypatch.setattr(node.partitions[0].replica, "stream_durable", bad)
    node.streams.received("n2", a_group(2, a_run(0, 3)))
    node.streams.durable()
    assert node.quarantined == [1, 0]
    assert node.failures == []


def test_a_stream_ends_with_a_gap_its_follower_or_its_time_and_another_begins() -> None:
    """A missing acknowledgement, the follower's end message, and a group that stays unacknowledged each end the stream;
    a follower that still accepts streams gets a new one, with an id of its own."""
    node = FakeNode()
    node.open("n2")
    for end in range(3):
        node.append(0, end, "n2")
        node.run()
        stream = node.groups("n2")[-1].stream
        assert stream == FIRST + 1 + end
        match end:
            case 0:
                node.streams.acknowledged("n2", StreamAck(stream, 2, 1, ()))
            case 1:
                node.streams.acknowledged("n2", StreamAck(stream, 0, 0, ()))
            case _:
                node.tick(UNACKNOWLEDGED_MS)
        assert node.events[-2:] == [ev.StreamClosed("n2"), ev.StreamOpened("n2")]
        assert node.streams.streams_ended == 1 + end
    assert node.groups("n2")[-1].number == 1


def test_a_lost_connection_ends_both_directions() -> None:
    """The stream to the node ends, and so does the one from it; without a connection no other stream begins."""
    node = FakeNode()
    node.open("n2")
    node.streams.received("n2", a_group(1, a_run(0, 0)))
    node.takers.clear()
    node.streams.link_lost("n2")
    assert node.events[-1] == ev.StreamClosed("n2")
    assert node.streams.open_nodes == []
    node.partitions[0].replica.durable = 1
    node.streams.durable()
    assert node.sent == []
    node.append(0, 0, "n2")
    node.run()
    assert node.sent == []
    node.streams.link_lost("n9")


def test_a_bug_amid_an_acknowledgement_stops_its_replica_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that raises when its commit is asked for, or announced, is stopped; runs of the other partitions of the
    group are counted, and the stream goes on."""
    node = FakeNode(3)

    def bad(*_arguments: object) -> Commit:
        raise AssertionError("made up by a test")

    node.open("n2")
    for partition in range(3):
        node.append(partition, 0, "n2")
    node.run()
    node.streams.acknowledged("n2", StreamAck(FIRST + 1, 1, 1, ()))
    assert [partition for partition, _ in node.fed] == [0, 1, 2]
    monkeypatch.setattr(node.partitions[1].replica, "stream_commit", bad)
    monkeypatch.setattr(node.partitions[1].replica, "step", lambda *_arguments: fx.NOTHING)
    node.append(0, 1, "n2")
    node.run()
    assert node.quarantined == [1]
    assert (node.groups("n2")[1].committed, node.groups("n2")[1].held) == (1, (1,))
    monkeypatch.setattr(node.partitions[2].replica, "step", bad)
    node.streams.acknowledged("n2", StreamAck(FIRST + 1, 2, 2, ()))
    assert node.quarantined == [1, 2]
    assert node.fed[3:] == [(0, ev.RunAcknowledged("n2", JOIN, 2))]


def test_a_group_is_appended_and_acknowledged_once_durable() -> None:
    """Runs go to the log in the group's order; commits go to the replicas; the acknowledgement follows the log's."""
    node = FakeNode()
    group = a_group(1, a_run(1, 4), a_run(0, 2))
    node.streams.received("n2", group)
    assert node.persisted == list(group.runs)
    node.streams.durable()
    assert node.sent == []
    node.partitions[0].replica.durable, node.partitions[1].replica.durable = 3, 5
    node.streams.durable()
    assert node.sent == [("n2", StreamAck(3, 1, 1, ()))]
    node.streams.received("n2", a_group(2, committed=1))
    assert node.fed == [(1, ev.RunCommitted(1, 5, 5)), (0, ev.RunCommitted(0, 5, 3))]
    assert node.sent[1:] == [("n2", StreamAck(3, 2, 2, ()))]
    node.streams.received("n2", a_group(4))
    assert node.sent[2:] == [("n2", StreamAck(3, 0, 0, ()))]


def test_a_group_of_which_nothing_is_appended_is_acknowledged_at_once() -> None:
    """Refused runs make nothing durable, so no report of the log would lead to their acknowledgement. This covers a
    replica that does not follow, is missing, or has a full disk."""
    node = FakeNode()
    node.partitions[0].replica.nonce = 0
    node.full.add(1)
    node.streams.received("n2", a_group(1, a_run(0, 0), a_run(1, 0), a_run(2, 0)))
    assert node.persisted == []
    assert node.sent == [("n2", StreamAck(3, 1, 1, (0, 1, 2)))]


def test_a_stopped_node_sends_nothing() -> None:
    """After `stop` open groups are dropped and no timer runs."""
    node = FakeNode()
    node.open("n2")
    node.append(0, 0, "n2")
    node.streams.stop()
    node.run()
    assert (node.sent, node.timed) == ([], [])
    assert ("isthmus_stream_groups_total", {"direction": "sent"}, 0) in node.streams.metrics()
