"""Committed reads by read-index: a leader asks everybody who might be elected whether it still leads (R-READ).

One round at a time: what comes while a round is under way waits for the next, so a round's question is younger than
each of its reads. When all of the guard have answered in this epoch, nobody else had led before the reads came, and
what was committed then is what they must see. A member that does not answer is replaced by the metastore: a synced
read of the record, whose version has not moved since the round began, says the same. There are no leases.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from isthmus.repl.isr.effects import ReadReady, ReadRecordSync, ReadRefused, Send
from isthmus.repl.isr.messages import LeadershipCheck, LeadershipCheckOk
from isthmus.repl.isr.replica_state import ReplicaState
from isthmus.repl.model.errors import Overloaded
from isthmus.repl.model.record import Member, PartitionRecord

PROBE_REPEAT_MS: Final = 200
"""A member that has not answered for this long is asked again, and the metastore beside it: long against a healthy
round trip (under 1 ms), short against what a client waits."""

READS_MAX: Final = 16_384
"""Most reads without an answer; above it they are refused. Those of clients that have gone are among them, and a leader
that is cut off answers none for as long as that lasts: some 6 MB in the shell. A healthy round has a few dozen."""


@dataclass(slots=True)
class ReadIndexRound:
    """A question under way. `index`: what was committed when it was asked. `version`: the record's then."""

    nonce: int
    tokens: tuple[int, ...]
    missing: set[Member]
    index: int
    version: int
    repeat_at_ms: int


@dataclass(slots=True)
class ReadIndex:
    """The reads of one leadership."""

    waiting: list[int] = field(default_factory=list)
    round: ReadIndexRound | None = None
    confirmed: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """(index, tokens) of rounds that wait until all below the index is applied."""
    unanswered: int = 0

    def ask(self, token: int, standing: ReplicaState, epoch: int, members: frozenset[Member], now_ms: int) -> None:
        """Take a read; `members` are all who might be elected, this leader included."""
        if self.unanswered >= READS_MAX:
            standing.effects.append(ReadRefused((token,), Overloaded.reason))
            return
        self.unanswered += 1
        self.waiting.append(token)
        if self.round is None:
            self._begin(standing, epoch, members, now_ms)

    def _begin(self, standing: ReplicaState, epoch: int, members: frozenset[Member], now_ms: int) -> None:
        tokens, self.waiting = tuple(self.waiting), []
        missing = {member for member in members if member != standing.member}
        index = standing.progress.hw
        if not missing:
            self._confirm(index, tokens, standing)
            return
        nonce = standing.next_nonce()
        version = standing.known.version
        self.round = ReadIndexRound(nonce, tokens, missing, index, version, now_ms + PROBE_REPEAT_MS)
        self._probe(standing, epoch)

    def _probe(self, standing: ReplicaState, epoch: int) -> None:
        current = self.round
        assert current is not None
        for member in sorted(current.missing):
            standing.effects.append(Send(member.node, LeadershipCheck(epoch, current.nonce)))

    def answered(
        self,
        node: str,
        ok: LeadershipCheckOk,
        standing: ReplicaState,
        epoch: int,
        members: frozenset[Member],
        now_ms: int,
    ) -> None:
        """A member says that it has heard of no higher epoch."""
        current = self.round
        if current is not None and ok.nonce == current.nonce:
            current.missing.discard(Member(node, ok.gen))
            if not current.missing:
                self._end(standing, epoch, members, now_ms)

    def synced(
        self,
        nonce: int,
        record: PartitionRecord,
        standing: ReplicaState,
        epoch: int,
        members: frozenset[Member],
        now_ms: int,
    ) -> None:
        """The metastore's word, asked for after the round began: with the version unmoved nobody was elected before
        the reads came. With another version the question is put anew, to whom the record names now."""
        current = self.round
        if current is None or nonce != current.nonce:
            return
        if record.version == current.version:
            self._end(standing, epoch, members, now_ms)
        else:
            self.waiting = [*current.tokens, *self.waiting]
            self.round = None
            self._begin(standing, epoch, members, now_ms)

    def _end(self, standing: ReplicaState, epoch: int, members: frozenset[Member], now_ms: int) -> None:
        current = self.round
        assert current is not None
        self.round = None
        self._confirm(current.index, current.tokens, standing)
        if self.waiting:
            self._begin(standing, epoch, members, now_ms)

    def _confirm(self, index: int, tokens: tuple[int, ...], standing: ReplicaState) -> None:
        if standing.progress.applied >= index:
            self._serve(tokens, standing)
        else:
            self.confirmed.append((index, tokens))

    def applied(self, standing: ReplicaState) -> None:
        """More is applied: serve the rounds that waited for it."""
        while self.confirmed and self.confirmed[0][0] <= standing.progress.applied:
            self._serve(self.confirmed.pop(0)[1], standing)

    def _serve(self, tokens: tuple[int, ...], standing: ReplicaState) -> None:
        self.unanswered -= len(tokens)
        standing.effects.append(ReadReady(tokens))

    def tick(self, standing: ReplicaState, epoch: int, now_ms: int) -> None:
        """Ask the silent again, and the metastore instead of them."""
        current = self.round
        if current is not None and current.repeat_at_ms <= now_ms:
            current.repeat_at_ms = now_ms + PROBE_REPEAT_MS
            self._probe(standing, epoch)
            standing.effects.append(ReadRecordSync(current.nonce))

    def refuse(self, standing: ReplicaState, reason: str) -> None:
        """Leadership is over: none of these may be served as committed."""
        tokens = [*(self.round.tokens if self.round else ()), *self.waiting]
        tokens += [token for _, confirmed in self.confirmed for token in confirmed]
        self.round, self.waiting, self.confirmed, self.unanswered = None, [], [], 0
        if tokens:
            standing.effects.append(ReadRefused(tuple(tokens), reason))
