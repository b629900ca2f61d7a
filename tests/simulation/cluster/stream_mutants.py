"""Deliberate defects of the replication streams, each of which must be caught (R-STREAM; see `mutants.py`).

The simulator catches those in `DEFECTS`. Random seeds do not show the others: `SCRIPTED`, each of which a scenario in
tests/unit/repl/isr/replica/test_streams.py catches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.follower import Follower
from isthmus.repl.isr.follower_tracker import FollowerProgress
from isthmus.repl.isr.leader import Leader
from isthmus.repl.isr.pair_stream import Commit, StreamAck, StreamReceiver, StreamSender
from isthmus.repl.isr.replica import _EARLY, Replica
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.replication_sender import ReplicationSender
from tests.simulation.cluster.plan import Plan

Patch = pytest.MonkeyPatch


def acknowledges_what_is_not_durable(patch: Patch) -> None:
    """A follower acknowledges received entries before they are durable."""

    def durable(self: Replica, nonce: int) -> int:
        follower = self._role_state
        valid = isinstance(follower, Follower) and follower.following and follower.nonce == nonce
        return self.leo if valid else -1

    patch.setattr(Replica, "stream_durable", durable)


def acknowledges_for_partitions_that_left(patch: Patch) -> None:
    """An acknowledgement does not name the partitions that left."""
    sound = StreamReceiver.acknowledge

    def acknowledge(self: StreamReceiver, replicas: Any) -> StreamAck | None:
        ack = sound(self, replicas)
        return None if ack is None else ack._replace(left=())

    patch.setattr(StreamReceiver, "acknowledge", acknowledge)


def forgets_who_left_in_earlier_groups(patch: Patch) -> None:
    """An acknowledgement that covers several groups names the partitions that left in the last one alone."""
    sound = StreamReceiver.acknowledge

    def acknowledge(self: StreamReceiver, replicas: Any) -> StreamAck | None:
        waiting = dict(self._unacknowledged)
        ack = sound(self, replicas)
        if ack is None:
            return None
        last = {run.partition for run in waiting[ack.number]}
        return ack._replace(left=tuple(partition for partition in ack.left if partition in last))

    patch.setattr(StreamReceiver, "acknowledge", acknowledge)


def acknowledges_under_another_request(patch: Patch) -> None:
    """A follower counts runs that it accepted before its latest FollowRequest."""

    def durable(self: Replica, _nonce: int) -> int:
        return self.durable if isinstance(self._role_state, Follower) else -1

    patch.setattr(Replica, "stream_durable", durable)


def counts_runs_of_an_older_join(patch: Patch) -> None:
    """A leader counts acknowledged runs even when the join under which they were sent is outdated."""

    def on_ack(self: Leader, event: ev.RunAcknowledged) -> bool:
        follower = self.followers.get(event.node)
        if follower is None:
            return False
        follower.stream_durable(event.end)
        self.acked[follower.member] = max(event.end, self.acked.get(follower.member, 0))
        return True

    patch.setattr(Leader, "on_stream_ack", on_ack)


def commits_with_one_follower(patch: Patch) -> None:
    """A group counts as committed for a follower once it has acknowledged it."""
    patch.setattr(Replica, "stream_commit", lambda _self, _node, _run: Commit.YES)


def learns_commits_under_another_request(patch: Patch) -> None:
    """A follower applies a group's commit to its log although it has followed anew since."""

    def committed(self: Replica, event: ev.RunCommitted, _now_ms: int) -> fx.Effects:
        follower = self._role_state
        if not isinstance(follower, Follower):
            return fx.NOTHING
        return fx.at_most_apply(follower.learn_commit(min(event.end, self.leo), self._state))

    patch.setitem(_EARLY, ev.RunCommitted, committed)


def announces_held_partitions(patch: Patch) -> None:
    """Partitions that are held back are not named."""
    sound = StreamSender._advance

    def advance(self: StreamSender, replicas: Any, now_ms: int) -> tuple[int, ...]:
        sound(self, replicas, now_ms)
        return ()

    patch.setattr(StreamSender, "_advance", advance)


def ignores_gaps(patch: Patch) -> None:
    """The sender takes an acknowledgement though one before it is missing."""
    sound = StreamSender.acknowledge

    def acknowledge(self: StreamSender, ack: StreamAck, replicas: Any, now_ms: int) -> Any:
        if ack.stream == self.stream and ack.ack > self._acks:
            self._acks = ack.ack - 1
        return sound(self, ack, replicas, now_ms)

    patch.setattr(StreamSender, "acknowledge", acknowledge)


def joins_with_entries_missing(patch: Patch) -> None:
    """A follower joins although it was not sent everything below."""
    sound = FollowerProgress.joins

    def joins(self: FollowerProgress, state: Any, start: int, first: int) -> bool:
        self.next = start
        return sound(self, state, start, first)

    patch.setattr(FollowerProgress, "joins", joins)
    accept = Follower.on_stream_run

    def on_run(self: Follower, epoch: int, start: int, count: int, state: Any, now_ms: int) -> bool:
        return accept(self, epoch, state.progress.leo, count, state, now_ms)

    patch.setattr(Follower, "on_stream_run", on_run)


def shares_no_cursors_beside_streams(patch: Patch) -> None:
    """Soft cursors travel only by repeating the last AppendEntries."""
    patch.setattr(Leader, "send_head", lambda *_arguments: None)


def shares_no_cursors_at_rest(patch: Patch) -> None:
    """A follower that has everything, and was never sent an AppendEntries in this epoch, gets no soft cursors."""
    sound = Leader.send_head

    def send_head(self: Leader, node: str, state: Any, effects: fx.Effects) -> None:
        follower = self.followers.get(node)
        if follower is not None and follower.join:
            sound(self, node, state, effects)

    patch.setattr(Leader, "send_head", send_head)


def hands_over_without_cursors(patch: Patch) -> None:
    """A leader that hands over does not send its soft cursors at once."""
    sound = ReplicationSender.share_cursors

    def share_cursors(self: ReplicationSender, partition: Partition, *, at_once: bool = False) -> None:
        if not at_once:
            sound(self, partition)

    patch.setattr(ReplicationSender, "share_cursors", share_cursors)


class Defect(NamedTuple):
    """`put_in` patches it; `names`: how the violation may begin; `seed`: one that shows it; `plan`: the mix, the drawn
    one without."""

    put_in: Callable[[Patch], None]
    names: tuple[str, ...]
    seed: int
    plan: Callable[[], Plan] | None = None


ACKS = ("I-STREAM-ACK", "I-STREAM-POSITION", "I-COMMIT-RULE")
COMMITS = ("I-APPLY", "I-COMMIT", "I-TRUNC-SAFE", "I-GUARD-COMPLETE")

DEFECTS = (
    Defect(acknowledges_what_is_not_durable, ACKS, 1),
    Defect(acknowledges_for_partitions_that_left, ACKS, 1),
    Defect(forgets_who_left_in_earlier_groups, ACKS, 23),
    Defect(commits_with_one_follower, COMMITS, 1),
    Defect(announces_held_partitions, COMMITS, 1),
    Defect(joins_with_entries_missing, ("I-LOG", "I-EPOCH", "I-STREAM", "I-DOT", "log ends at"), 1),
    Defect(shares_no_cursors_beside_streams, ("I-CURSOR-ARRIVES: beside a stream",), 1),
    Defect(shares_no_cursors_at_rest, ("I-CURSOR-ARRIVES: at rest",), 37),
    Defect(hands_over_without_cursors, ("I-CURSOR-ARRIVES: after a hand-over",), 1),
)

SCRIPTED = (
    acknowledges_under_another_request,
    counts_runs_of_an_older_join,
    learns_commits_under_another_request,
    ignores_gaps,
)
