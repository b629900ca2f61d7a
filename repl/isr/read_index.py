"""Committed reads by read index: the leader confirms its leadership with every electable member (R-READ).

One round runs at a time. Reads that arrive during a round wait for the next one, so each round begins after the reads
that it confirms. Once all members of the guard have answered in this epoch, no other leader existed when the reads
arrived, and they must see what was committed then. The metastore stands in for a member that does not answer: a synced
read of the record whose version has not changed since the round began proves the same. There are no leases.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from isthmus.repl.isr.effects import Effects, ReadReady, ReadRecordSync, ReadRefused
from isthmus.repl.isr.messages import LeadershipCheck, LeadershipCheckOk
from isthmus.repl.isr.replica_state import ReplicaState
from isthmus.repl.model.errors import Overloaded
from isthmus.repl.model.record import Member, PartitionRecord

CHECK_REPEAT_MS: Final = 200
"""A silent member is asked again after this long, and the metastore with it: long against a healthy round trip (under
1 ms), short against a client's time-out."""

READS_MAX: Final = 16_384
"""Limit of unanswered reads; further ones are refused. Reads of clients that have disconnected count, and an isolated
leader answers none while the isolation lasts: about 6 MB in the runtime. A healthy round has a few dozen."""


@dataclass(slots=True)
class ReadIndexRound:
    """A round in progress. `index`: the high watermark, `version`: the record's version, both when it began.

    `missing`: members without an answer."""

    nonce: int
    tokens: tuple[int, ...]
    missing: set[Member]
    index: int
    version: int
    repeat_at_ms: int


@dataclass(slots=True)
class ReadIndex:
    """The unanswered reads of one leadership."""

    waiting: list[int] = field(default_factory=list)
    round: ReadIndexRound | None = None
    confirmed: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """(index, tokens) of rounds that wait until all entries below the index are applied."""
    unanswered: int = 0

    def request(
        self, token: int, state: ReplicaState, effects: Effects, epoch: int, members: frozenset[Member], now_ms: int
    ) -> None:
        """Add a read; `members` are all electable members, this leader included."""
        if self.unanswered >= READS_MAX:
            effects.append(ReadRefused((token,), Overloaded.reason))
            return
        self.unanswered += 1
        self.waiting.append(token)
        if self.round is None:
            self._begin(state, effects, epoch, members, now_ms)

    def _begin(
        self, state: ReplicaState, effects: Effects, epoch: int, members: frozenset[Member], now_ms: int
    ) -> None:
        tokens, self.waiting = tuple(self.waiting), []
        missing = {member for member in members if member != state.member}
        index = state.progress.hw
        if not missing:
            self._confirm(index, tokens, state, effects)
            return
        nonce = state.next_nonce()
        version = state.known_record.version
        self.round = ReadIndexRound(nonce, tokens, missing, index, version, now_ms + CHECK_REPEAT_MS)
        self._send_checks(self.round, effects, epoch)

    def _send_checks(self, current: ReadIndexRound, effects: Effects, epoch: int) -> None:
        for member in sorted(current.missing):
            effects.send(member.node, LeadershipCheck(epoch, current.nonce))

    def on_check_ok(
        self,
        node: str,
        ok: LeadershipCheckOk,
        state: ReplicaState,
        effects: Effects,
        epoch: int,
        members: frozenset[Member],
        now_ms: int,
    ) -> None:
        """Count a member that knows of no higher epoch; end the round with the last one."""
        current = self.round
        if current is not None and ok.nonce == current.nonce:
            current.missing.discard(Member(node, ok.log_id))
            if not current.missing:
                self._end(current, state, effects, epoch, members, now_ms)

    def on_record_synced(
        self,
        nonce: int,
        record: PartitionRecord,
        state: ReplicaState,
        effects: Effects,
        epoch: int,
        members: frozenset[Member],
        now_ms: int,
    ) -> None:
        """End the round if the record's version, read after a sync, has not changed since the round began.

        With another version, start a new round with the members of the new record."""
        current = self.round
        if current is None or nonce != current.nonce:
            return
        if record.version == current.version:
            self._end(current, state, effects, epoch, members, now_ms)
        else:
            self.waiting = [*current.tokens, *self.waiting]
            self.round = None
            self._begin(state, effects, epoch, members, now_ms)

    def _end(
        self,
        current: ReadIndexRound,
        state: ReplicaState,
        effects: Effects,
        epoch: int,
        members: frozenset[Member],
        now_ms: int,
    ) -> None:
        self.round = None
        self._confirm(current.index, current.tokens, state, effects)
        if self.waiting:
            self._begin(state, effects, epoch, members, now_ms)

    def _confirm(self, index: int, tokens: tuple[int, ...], state: ReplicaState, effects: Effects) -> None:
        if state.progress.applied >= index:
            self._serve(tokens, effects)
        else:
            self.confirmed.append((index, tokens))

    def applied(self, state: ReplicaState, effects: Effects) -> None:
        """Serve confirmed rounds whose index is applied now."""
        while self.confirmed and self.confirmed[0][0] <= state.progress.applied:
            self._serve(self.confirmed.pop(0)[1], effects)

    def _serve(self, tokens: tuple[int, ...], effects: Effects) -> None:
        self.unanswered -= len(tokens)
        effects.append(ReadReady(tokens))

    def tick(self, effects: Effects, epoch: int, now_ms: int) -> None:
        """When due, ask the silent members again, and the metastore on their behalf."""
        current = self.round
        if current is not None and current.repeat_at_ms <= now_ms:
            current.repeat_at_ms = now_ms + CHECK_REPEAT_MS
            self._send_checks(current, effects, epoch)
            effects.append(ReadRecordSync(current.nonce))

    def refuse_all(self, effects: Effects, reason: str) -> None:
        """Refuse all reads: leadership ended before they were confirmed."""
        tokens = [*(self.round.tokens if self.round else ()), *self.waiting]
        tokens += [token for _, confirmed in self.confirmed for token in confirmed]
        self.round, self.waiting, self.confirmed, self.unanswered = None, [], [], 0
        if tokens:
            effects.append(ReadRefused(tuple(tokens), reason))
