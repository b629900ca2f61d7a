"""Replication streams between pairs of nodes: group commits of all partitions instead of messages of each.

From a leader node to a follower node goes one stream, over one connection. Its unit is the leader node's group: the
runs that all its partitions have appended in one turn, as the log has them. One number acknowledges all groups up
to it, and the head of each group names the number up to which all is committed. The partition remains the unit of
placement, election, fencing and truth (docs/protocol.md R-STREAM):

    join     A leader puts its new entries into a stream only for a follower in the ISR to which it has sent everything
             below them. The follower accepts a run only while it follows this node in the run's epoch, at exactly the
             end of its log, and after an entry of the same epoch.
    ack      A group is acknowledged when each of its runs is durable at a replica that still follows under the
             FollowRequest under which it accepted the run; partitions for which this is not so are named as left. The
             leader counts a run only while the join under which it was sent is in force.
    commit   A group is announced as committed when each of its runs is committed under its join. Partitions that take
             longer are named as held, and learn their high watermark from AppendEntries.
    gap      Groups and acknowledgements are numbered without gaps. An end that misses one ends the stream.

A partition that leaves the stream is replicated by AppendEntries (`follower_tracker.py`), and joins again when its
follower has what it missed. `StreamSender` and `StreamReceiver` are the two ends. Pure: messages and time come in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from isthmus.repl.isr.effects import Effects, RunAccepted
from isthmus.repl.isr.events import RunAnnounced, RunCommitted, RunHeld, RunReceived

HOLD_MS: Final = 100
"""How long an acknowledged group waits for its commit before the partitions that are not committed are named as held:
many round trips of a healthy cluster."""

ANNOUNCE_MS: Final = 20
"""Delay before a commit is announced by a group without runs: a busy leader's next group carries it for free."""

UNACKNOWLEDGED_MS: Final = 2_000
"""A stream whose oldest group stays unacknowledged for this long ends, and its partitions send again (see
`follower_tracker.RESEND_MS`)."""

GROUPS_MAX: Final = 8_192
"""Most groups of a stream that are not yet announced as committed, at either end; then it ends. Bounds its memory; a
follower that is further behind does not keep up."""


class StreamRun(NamedTuple):
    """Entries [start, start + entry_count) of one partition in a group, all of `epoch`, as is the entry below them.

    `encoded`: the run as the log has it. `wires`: its entries' bytes, at the receiving end."""

    partition: int
    epoch: int
    start: int
    entry_count: int
    encoded: bytes
    wires: Sequence[bytes] = ()


class StreamGroup(NamedTuple):
    """Leader to follower. Numbers begin at 1 in each `stream`, an id that its sender uses once.

    All groups up to `committed` are committed, but for the partitions in `held`."""

    stream: int
    number: int
    committed: int
    held: tuple[int, ...]
    runs: tuple[StreamRun, ...]


class StreamAck(NamedTuple):
    """Follower to leader: all groups up to `number` are durable, but for the partitions in `left`.

    `ack` numbers the acknowledgements of a stream, from 1. An `ack` of 0 ends the stream."""

    stream: int
    ack: int
    number: int
    left: tuple[int, ...]


class Commit(IntEnum):
    """Whether a run that was sent is committed."""

    YES = 1
    NOT_YET = 0
    LEFT = -1
    """Its partition left the stream; the run is no business of this stream any more."""


@dataclass(slots=True)
class SentRun:
    """A run under way: the entries below `end` of a partition that joined under `join`."""

    partition: int
    join: int
    end: int


class StreamLeader(Protocol):
    """A replica at the sending end (`repl.isr.replica.Replica`)."""

    def step(self, event: RunAnnounced | RunHeld, now_ms: int, /) -> object:
        """Take an event, which has no effects."""

    def stream_commit(self, node: str, run: SentRun) -> Commit:
        """Whether the run is committed, and its join in force."""


class StreamFollower(Protocol):
    """A replica at the receiving end (`repl.isr.replica.Replica`)."""

    def step(self, event: RunReceived, now_ms: int, /) -> Effects:
        """Take an event; RunAccepted may be its effect, and no other."""

    def stream_durable(self, nonce: int) -> int:
        """The durable end of the log; -1 when the replica does not follow under `nonce` any more."""


class LeaderPlace(Protocol):
    """A partition at the sending end (`repl.runtime.partition.Partition`)."""

    @property
    def replica(self) -> StreamLeader:
        """Its replica."""


class FollowerPlace(Protocol):
    """A partition at the receiving end (`repl.runtime.partition.Partition`)."""

    @property
    def replica(self) -> StreamFollower:
        """Its replica."""


class StreamLeaders(Protocol):
    """The partitions at the sending end."""

    def get(self, partition: int, /) -> LeaderPlace | None:
        """The partition; None when it is not here."""


class StreamFollowers(Protocol):
    """The partitions at the receiving end."""

    def get(self, partition: int, /) -> FollowerPlace | None:
        """The partition; None when it is not here, or takes nothing now."""


@dataclass(slots=True)
class SentGroup:
    """A group that was sent. `since_ms`: when it was sent or, once acknowledged, when that was."""

    number: int
    committed: int
    since_ms: int
    runs: list[SentRun]


class Acknowledged(NamedTuple):
    """Result of an acknowledgement: runs that are durable at the follower, and runs whose partitions left."""

    durable: list[SentRun]
    left: list[SentRun]


class StreamSender:
    """The sending end of the stream to `node`, as long as one connection is open."""

    def __init__(self, node: str, stream: int) -> None:
        assert stream > 0
        self.node = node
        self.stream = stream
        self.failed: list[tuple[int, Exception]] = []
        """As of a StreamReceiver."""
        self._number = 0
        self._acks = 0
        self._open: list[SentRun] = []
        self._sent: deque[SentGroup] = deque()
        """Not acknowledged."""
        self._acknowledged: deque[SentGroup] = deque()
        """Acknowledged, not announced as committed."""
        self._announced: deque[SentGroup] = deque()
        """Announced as committed, by a group that is not acknowledged."""
        self._newest_runs = 0
        """Number of the newest group with runs."""
        self._acknowledged_number = 0
        self._committed = 0
        self._sent_committed = 0
        self._announce_at_ms: int | None = None

    @property
    def group_count(self) -> int:
        """Groups under way or not yet committed."""
        return len(self._sent) + len(self._acknowledged) + len(self._announced)

    @property
    def round_open(self) -> bool:
        """True while the newest group with runs is not acknowledged."""
        return self._newest_runs > self._acknowledged_number

    def add(self, run: SentRun) -> None:
        """Add a run to the open group."""
        self._open.append(run)

    def seal(self, runs: tuple[StreamRun, ...], places: StreamLeaders, now_ms: int) -> StreamGroup:
        """Number the open group; `runs` are the contents of the runs that were added to it, in order."""
        held = self._advance(places, now_ms)
        sent, self._open = self._open, []
        assert len(sent) == len(runs)
        return self._group(sent, runs, held, now_ms)

    def _group(
        self, sent: list[SentRun], runs: tuple[StreamRun, ...], held: tuple[int, ...], now_ms: int
    ) -> StreamGroup:
        self._number += 1
        if runs:
            self._newest_runs = self._number
        self._sent.append(SentGroup(self._number, self._committed, now_ms, sent))
        self._sent_committed = self._committed
        self._announce_at_ms = now_ms + ANNOUNCE_MS if self._acknowledged else None
        return StreamGroup(self.stream, self._number, self._committed, held, runs)

    def acknowledge(self, ack: StreamAck, places: StreamLeaders, now_ms: int) -> Acknowledged | None:
        """Take an acknowledgement; None when the stream is over. One of another stream has no effect."""
        if ack.stream != self.stream:
            return Acknowledged([], [])
        if ack.ack != self._acks + 1 or ack.number > self._number:
            return None
        self._acks = ack.ack
        self._acknowledged_number = ack.number
        durable: list[SentRun] = []
        left: list[SentRun] = []
        known = 0
        sent = self._sent
        while sent and sent[0].number <= ack.number:
            group = sent.popleft()
            group.since_ms = now_ms
            if ack.left:
                left += [run for run in group.runs if run.partition in ack.left]
                group.runs = [run for run in group.runs if run.partition not in ack.left]
            durable += group.runs
            known = group.committed
            if group.runs:  # else there is nothing to commit, and nothing to announce
                self._acknowledged.append(group)
        announced = self._announced
        while announced and announced[0].number <= known:
            for run in announced.popleft().runs:
                place = places.get(run.partition)
                try:
                    if place is not None:
                        place.replica.step(RunAnnounced(self.node, run.join, run.end), now_ms)
                except Exception as bug:  # noqa: BLE001 - see `failed`
                    self.failed.append((run.partition, bug))
        if self._announce_at_ms is None and self._acknowledged:
            self._announce_at_ms = now_ms + ANNOUNCE_MS
        return Acknowledged(durable, left)

    def _advance(self, places: StreamLeaders, now_ms: int) -> tuple[int, ...]:
        """Move the number up to which all is committed; returns the partitions that are held back.

        The follower learns no commit of a partition that is held, so none of its runs counts as announced, though a
        later one may be committed under another join."""
        held: set[int] = set()
        moved: list[SentGroup] = []
        waiting = self._acknowledged
        while waiting:
            group = waiting[0]
            behind: list[int] = []
            in_time = True
            for run in group.runs:
                place = places.get(run.partition)
                try:
                    commit = Commit.LEFT if place is None else place.replica.stream_commit(self.node, run)
                except Exception as bug:  # noqa: BLE001 - see `failed`; its run counts as left
                    self.failed.append((run.partition, bug))
                    commit = Commit.LEFT
                if commit is not Commit.YES:
                    behind.append(run.partition)
                    in_time = in_time and commit is Commit.LEFT
            if not in_time and now_ms - group.since_ms < HOLD_MS:
                break
            held.update(behind)
            moved.append(waiting.popleft())
            self._committed = group.number
        for group in moved:
            if held:
                for run in group.runs:
                    try:
                        if run.partition in held and (place := places.get(run.partition)) is not None:
                            place.replica.step(RunHeld(self.node, run.join), now_ms)
                    except Exception as bug:  # noqa: BLE001 - see `failed`
                        self.failed.append((run.partition, bug))
                group.runs = [run for run in group.runs if run.partition not in held]
            self._announced.append(group)
        return tuple(sorted(held))

    def deadline_ms(self) -> int | None:
        """When `tick` is due; None while nothing is timed."""
        due_ms = self._announce_at_ms
        if self._sent:
            late_ms = self._sent[0].since_ms + UNACKNOWLEDGED_MS
            if due_ms is None or late_ms < due_ms:
                due_ms = late_ms
        return due_ms

    def tick(self, places: StreamLeaders, now_ms: int) -> StreamGroup | None:
        """A group without runs that announces commits, when one is due."""
        due_ms = self._announce_at_ms
        if due_ms is None or due_ms > now_ms:
            return None
        held = self._advance(places, now_ms)
        if self._committed == self._sent_committed:
            self._announce_at_ms = now_ms + ANNOUNCE_MS if self._acknowledged else None
            return None
        return self._group([], (), held, now_ms)

    def late(self, now_ms: int) -> bool:
        """True when the stream must end: its oldest group is unacknowledged for too long, or too many wait."""
        if self.group_count > GROUPS_MAX:
            return True
        return bool(self._sent) and now_ms - self._sent[0].since_ms >= UNACKNOWLEDGED_MS


class ReceivedGroup(NamedTuple):
    """Result of a group: the runs to append, and the runs that are known to be committed now."""

    accepted: list[StreamRun]
    committed: list[RunCommitted]


class StreamReceiver:
    """The receiving end of the streams from `node`."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.failed: list[tuple[int, Exception]] = []
        """Partitions whose replicas raised, and what: the caller stops these copies, and no other."""
        self._stream = 0
        self._begin(0)

    def _begin(self, stream: int) -> None:
        self._stream = stream
        self._number = 0
        self._acks = 0
        self._unacknowledged: deque[tuple[int, list[RunCommitted]]] = deque()
        """Groups by number, each run as it will be said to be committed; nonce 0: it was refused."""
        self._uncommitted: deque[tuple[int, list[RunCommitted]]] = deque()
        """The same groups, longer."""

    @property
    def waiting(self) -> bool:
        """True when a group is not acknowledged."""
        return bool(self._unacknowledged)

    def end(self) -> None:
        """The connection broke: nothing of the stream is acknowledged any more."""
        self._begin(0)

    def receive(self, group: StreamGroup, places: StreamFollowers, now_ms: int) -> ReceivedGroup | None:
        """Take a group; None when the stream is over, which `over` tells its sender."""
        if group.stream != self._stream and group.number == 1:
            self._begin(group.stream)
        full = len(self._unacknowledged) >= GROUPS_MAX or len(self._uncommitted) >= GROUPS_MAX
        if group.stream != self._stream or group.number > self._number + 1 or full:
            if group.stream == self._stream:
                self._begin(0)
            return None
        if group.number <= self._number or group.committed >= group.number:
            return ReceivedGroup([], [])
        self._number = group.number
        accepted: list[StreamRun] = []
        runs: list[RunCommitted] = []
        node = self.node
        for run in group.runs:
            partition, epoch, start, count, _, _ = run
            place = places.get(partition)
            nonce = 0
            try:
                if place is not None and (
                    effects := place.replica.step(RunReceived(node, epoch, start, count), now_ms)
                ):
                    answer = effects[0]
                    assert isinstance(answer, RunAccepted)
                    nonce = answer.nonce
                    accepted.append(run)
            except Exception as bug:  # noqa: BLE001 - see `failed`; its run counts as refused
                self.failed.append((partition, bug))
            runs.append(RunCommitted(partition, nonce, start + count))
        received = (group.number, runs)
        self._unacknowledged.append(received)
        if runs:
            self._uncommitted.append(received)
        committed: list[RunCommitted] = []
        waiting = self._uncommitted
        while waiting and waiting[0][0] <= group.committed:
            announced = waiting.popleft()[1]
            committed += [each for each in announced if each.nonce and each.partition not in group.held]
        return ReceivedGroup(accepted, committed)

    def acknowledge(self, places: StreamFollowers) -> StreamAck | None:
        """The acknowledgement of what has become durable; None without news."""
        number = 0
        left: set[int] = set()
        waiting = self._unacknowledged
        while waiting:
            gone: list[int] = []
            for run in waiting[0][1]:
                partition, nonce = run.partition, run.nonce
                place = places.get(partition)
                try:
                    durable = -1 if place is None or not nonce else place.replica.stream_durable(nonce)
                except Exception as bug:  # noqa: BLE001 - see `failed`; its run is named as left
                    self.failed.append((partition, bug))
                    durable = -1
                if durable < 0:
                    gone.append(partition)
                elif durable < run.end:
                    break
            else:
                number = waiting.popleft()[0]
                left.update(gone)
                continue
            break
        if not number:
            return None
        self._acks += 1
        return StreamAck(self._stream, self._acks, number, tuple(sorted(left)))

    @staticmethod
    def over(stream: int) -> StreamAck:
        """Tells the sender of `stream` that it is over."""
        return StreamAck(stream, 0, 0, ())
