"""Whether the history of one key is linearizable: each operation took effect at one moment between call and answer.

The model of an object is a node's: siblings under a clock. A write carries the clock of an earlier answer (or none) and
replaces the siblings in that answer; others stay beside it. A read returns all values that have not been replaced.
Every value is written once, so a read shows exactly which writes it saw.

An unknown write may take effect at any time after its call, or never; a refused one never. The search is Wing and
Gong's with Lowe's cache of configurations ("Testing for linearizability", 2017), one key at a time
(P-compositionality). It neither runs a load nor speaks HTTP: `tests.system.faults.load` records histories.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

CONFIGURATIONS_MAX: Final = 500_000
"""Maximum number of configurations that the search of one key keeps: about 200 MB. Histories of some hundred operations
by a handful of clients need a few hundred."""

NEVER: Final = sys.maxsize


class Kind(StrEnum):
    """The type of an operation."""

    READ = "read"
    WRITE = "write"


class Outcome(StrEnum):
    """The outcome as its client knows it. A read without an answer is not recorded at all."""

    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(slots=True, eq=False)
class Operation:
    """One operation on one key. Times are of one monotonic clock, in nanoseconds."""

    kind: Kind
    client: str
    called_ns: int
    answered_ns: int
    outcome: Outcome = Outcome.OK
    value: str = ""
    """The value that a write wrote."""
    context: Operation | None = None
    """The operation whose answer held the clock that a write carried."""
    values: tuple[str, ...] = ()
    """The siblings that a read returned; empty when the key did not exist."""
    where: str = ""
    """The nodes that it contacted, for the timeline."""

    def __str__(self) -> str:
        times = f"{self.called_ns / 1e9:.3f} to {self.answered_ns / 1e9:.3f} s"
        if self.kind is Kind.READ:
            return f"{times} {self.client} read {{{', '.join(self.values)}}} at {self.where}"
        seen = "nothing" if self.context is None else self.context.short()
        return f"{times} {self.client} wrote {self.value} ({self.outcome}) at {self.where}, having seen {seen}"

    def short(self) -> str:
        """A description of the operation in two or three words."""
        return self.value or f"what {self.client} read at {self.answered_ns / 1e9:.3f} s"


class NotLinearizable(AssertionError):
    """No order of the operations explains the reads."""


class SearchExhausted(Exception):
    """The search needed more than CONFIGURATIONS_MAX configurations: the result is unknown."""


def check(history: Iterable[Operation]) -> int:
    """Look for an order that explains the history of one key; returns the configurations searched. Raises
    NotLinearizable with the contradiction and the operations around it, or SearchExhausted."""
    return _Search(_explainable(list(history))).run()


def _explainable(history: list[Operation]) -> list[Operation]:
    """The operations that must have taken effect, by time of call. Raises NotLinearizable for contradictions that need
    no search."""
    writes: dict[str, Operation] = {}
    for op in history:
        if op.kind is Kind.WRITE:
            assert op.value not in writes, f"{op.value} is written twice: not a history that can be checked"
            writes[op.value] = op
    first_seen_ns: dict[str, int] = defaultdict(lambda: NEVER)
    for op in history:
        if op.kind is not Kind.READ:
            continue
        if len(set(op.values)) != len(op.values):
            raise NotLinearizable(f"a write took effect twice\n{op}")
        for value in op.values:
            write = writes.get(value)
            if write is None:
                raise NotLinearizable(f"a value that nobody wrote\n{op}")
            if write.outcome is Outcome.REFUSED:
                raise NotLinearizable(f"a refused write took effect\n{write}\n{op}")
            first_seen_ns[value] = min(first_seen_ns[value], op.answered_ns)
    taken = []
    for op in history:
        if op.outcome is Outcome.UNKNOWN:
            # An unknown write that no read returned explains nothing: the write that replaced it had seen everything
            # that it replaced.
            if op.value not in first_seen_ns:
                continue
            seen_ns = first_seen_ns[op.value]
            if seen_ns < op.called_ns:
                raise NotLinearizable(f"a value was read before it was written\n{op}")
            taken.append(Operation(op.kind, op.client, op.called_ns, seen_ns, op.outcome, op.value, op.context))
        elif op.outcome is Outcome.OK:
            taken.append(op)
    return sorted(taken, key=lambda op: op.called_ns)


State = tuple[int, ...]
"""Values not replaced yet and clocks that some write still carries, in order of creation: `i` is the value of write
`i`, `~i` the clock of operation `i`, which includes everything before it in the tuple."""


class _Search:
    """Depth-first search over configurations (the operations that have taken effect, and the key's contents then)."""

    def __init__(self, ops: Sequence[Operation]) -> None:
        self._ops = ops
        self._count = len(ops)
        numbers = {id(op): number for number, op in enumerate(ops)}
        by_value = {op.value: number for number, op in enumerate(ops) if op.kind is Kind.WRITE}
        self._context = [None if op.context is None else numbers[id(op.context)] for op in ops]
        self._read = [frozenset(by_value[v] for v in op.values) if op.kind is Kind.READ else None for op in ops]
        self._users: dict[int, int] = defaultdict(int)
        """Clock -> bits of the writes that carry it."""
        for number, context in enumerate(self._context):
            if context is not None:
                self._users[context] |= 1 << number
        self._deepest: tuple[int, int, State] = (-1, 0, ())

    def run(self) -> int:
        """See `check`."""
        all_done = (1 << self._count) - 1
        known: set[tuple[int, State]] = set()
        stack: list[tuple[int, int, State]] = [(0, 0, ())]
        while stack:
            done, low, state = self._with_reads(*stack.pop())
            if done == all_done:
                return len(known)
            if (done, state) in known:
                continue
            if len(known) >= CONFIGURATIONS_MAX:
                raise SearchExhausted(f"more than {CONFIGURATIONS_MAX} configurations of {self._count} operations")
            known.add((done, state))
            if done.bit_count() > self._deepest[0]:
                self._deepest = (done.bit_count(), done, state)
            writes = [n for n in self._next(done, low) if self._read[n] is None]
            for number in sorted(writes, key=lambda n: -self._ops[n].answered_ns):  # the first to be answered first
                stack.append((done | 1 << number, low, self._written(done | 1 << number, state, number)))
        raise NotLinearizable(self._why())

    def _next(self, done: int, low: int) -> list[int]:
        """Operations that may take effect next: called before any other that is left was answered."""
        found: list[int] = []
        answered_ns = NEVER
        for number in range(low, self._count):
            if done >> number & 1:
                continue
            op = self._ops[number]
            if op.called_ns > answered_ns:
                break
            answered_ns = min(answered_ns, op.answered_ns)
            found.append(number)
        return [number for number in found if self._ops[number].called_ns <= answered_ns]

    def _with_reads(self, done: int, low: int, state: State) -> tuple[int, int, State]:
        """Apply all reads that fit: they change nothing, so doing it at once is never worse than later."""
        holds = frozenset(number for number in state if number >= 0)
        while True:
            while done >> low & 1:
                low += 1
            fitting = [number for number in self._next(done, low) if self._read[number] == holds]
            if not fitting:
                return done, low, state
            for number in fitting:
                done |= 1 << number
                if self._users[number] & ~done:
                    state = (*state, ~number)

    def _written(self, done: int, state: State, number: int) -> State:
        """The contents of the key after write `number`."""
        context = self._context[number]
        seen = -1 if context is None else state.index(~context)
        kept = [mark for place, mark in enumerate(state) if mark < 0 or place > seen]
        kept.append(number)
        if self._users[number]:
            kept.append(~number)
        return tuple(mark for mark in kept if mark >= 0 or self._users[~mark] & ~done)

    def _why(self) -> str:
        placed, done, state = self._deepest
        low = next(number for number in range(self._count) if not done >> number & 1)
        left = [self._ops[number] for number in self._next(done, low)]
        first = min(left, key=lambda op: op.answered_ns)
        holds = ", ".join(self._ops[number].value for number in state if number >= 0)
        around = [op for op in self._ops if op.called_ns <= first.answered_ns][-20:]
        return "\n".join(
            [
                f"no order explains more than {placed} of {self._count} operations; the key holds {{{holds}}} then,",
                "and none of these can be next:",
                *(f"  {op}" for op in left),
                "the last operations called before the first of these was answered:",
                *(f"  {op}" for op in around),
            ]
        )
