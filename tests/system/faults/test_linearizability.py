"""The checker itself: it passes histories that an atomic object made, and catches each kind of fault."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.system.faults.linearizability import Kind, NotLinearizable, Operation, Outcome, check


def write(
    value: str, called: int, answered: int, after: Operation | None = None, outcome: Outcome = Outcome.OK
) -> Operation:
    """A write that carried the clock that `after` was answered with."""
    return Operation(Kind.WRITE, f"c{value}", called, answered, outcome, value, after)


def read(values: str, called: int, answered: int) -> Operation:
    """A read that returned these values, one letter each."""
    return Operation(Kind.READ, "r", called, answered, values=tuple(values))


def refusal(history: list[Operation]) -> str:
    """Why the checker refuses a history."""
    with pytest.raises(NotLinearizable) as caught:
        check(history)
    return str(caught.value)


def test_a_quiet_history_passes() -> None:
    """One operation after the other, each reading the value that the one before wrote."""
    a = write("a", 1, 2)
    b = write("b", 5, 6, a)
    assert check([read("", 0, 1), a, read("a", 3, 4), b, read("b", 7, 8)]) >= 0


def test_a_stale_read_is_caught() -> None:
    """A read that began after a write was acknowledged must not return the previous value."""
    a = write("a", 1, 2)
    b = write("b", 3, 4, a)
    assert "none of these can be next" in refusal([a, b, read("a", 5, 6)])


def test_a_read_may_see_either_side_of_a_write_under_way_but_not_go_back() -> None:
    """While a write runs, old and new are right; once one read returned the new, no later one returns the old."""
    a = write("a", 1, 2)
    b = write("b", 3, 20, a)
    check([a, b, read("a", 4, 5), read("b", 6, 7), read("b", 8, 9)])
    refusal([a, b, read("b", 4, 5), read("a", 6, 7)])


def test_a_lost_write_is_caught() -> None:
    """An acknowledged write that is not there at the end was lost, whether the key is empty or holds an older value."""
    a = write("a", 1, 2)
    refusal([a, read("", 5, 6)])
    b = write("b", 3, 4, a)
    refusal([a, b, read("a", 90, 91)])


def test_a_lost_sibling_is_caught() -> None:
    """A write does not replace another that its clock does not include."""
    a, b = write("a", 1, 2), write("b", 3, 4)
    check([a, b, read("ab", 5, 6)])
    refusal([a, b, read("b", 5, 6)])


def test_a_refused_write_never_appears() -> None:
    """A value of a write that was refused for sure is a fault wherever it is read."""
    assert "refused" in refusal([write("a", 1, 2, outcome=Outcome.REFUSED), read("a", 50, 51)])
    check([write("a", 1, 2, outcome=Outcome.REFUSED), read("", 50, 51)])


def test_an_unknown_write_takes_effect_late_once_or_never() -> None:
    """An unknown write may appear much later, and then stays, or never; it may not appear and vanish, or appear
    twice."""
    a = write("a", 1, 2)
    u = write("u", 3, 4, a, Outcome.UNKNOWN)
    check([a, u, read("a", 5, 6), read("a", 7, 8), read("u", 9, 10)])
    check([a, u, read("a", 5, 6), read("a", 90, 91)])
    refusal([a, u, read("u", 5, 6), read("a", 7, 8)])
    assert "twice" in refusal([a, u, read("uu", 5, 6)])


def test_values_from_nowhere_and_from_the_future_are_caught() -> None:
    """A read of a value that was never written, or that was written only later, is a fault."""
    assert "nobody" in refusal([write("a", 1, 2), read("x", 3, 4)])
    refusal([read("a", 1, 2), write("a", 3, 4)])
    assert "before it was written" in refusal([read("a", 1, 2), write("a", 3, 4, outcome=Outcome.UNKNOWN)])


def test_a_write_replaces_what_its_clock_saw_and_nothing_else() -> None:
    """The clock of a read sees all that was there then; the clock of a write sees that write, and all before it."""
    a, b = write("a", 1, 2), write("b", 3, 4)
    both = read("ab", 5, 6)
    c = write("c", 7, 8)
    d = write("d", 9, 10, both)
    check([a, b, both, c, d, read("cd", 11, 12)])
    refusal([a, b, both, c, d, read("d", 11, 12)])
    refusal([a, b, both, c, d, read("bcd", 11, 12)])
    e = write("e", 13, 14, c)
    check([a, b, both, c, d, e, read("de", 15, 16)])


def test_a_long_history_of_many_clients_takes_moments() -> None:
    """Two thousand operations of eight clients, a tenth of them unknown, need few configurations."""
    assert check(atomic_history(random.Random(3), clients=8, steps=2_000)) < 20_000


@pytest.mark.parametrize("seed", range(10))
def test_a_read_moved_into_the_past_is_caught(seed: int) -> None:
    """In the history of an atomic object, one read that returns an earlier read's values is caught."""
    chance = random.Random(seed)
    history = atomic_history(chance, clients=4, steps=300)
    check(history)
    reads = [op for op in history if op.kind is Kind.READ and op.values]
    late = reads[-1]
    late.values = next(op.values for op in reads if op.values != late.values)
    refusal(history)


def atomic_history(chance: random.Random, clients: int, steps: int) -> list[Operation]:
    """The history that `clients` record at an object whose operations take effect at one moment each. Clients write
    with the clock of their last answer, sometimes without; some answers get lost, and some writes are refused."""
    now = 0
    count = 0
    holds: list[tuple[str, int]] = []  # values, and how many writes there were before each
    clocks: dict[int, tuple[Operation, int]] = {}
    running: dict[int, tuple[Operation, int | None]] = {}  # with the writes in the answer's clock, once it took effect
    carried: dict[str, int] = {}
    late: list[tuple[int, Operation]] = []
    history: list[Operation] = []

    def effect(op: Operation) -> None:
        nonlocal holds, count
        holds = [(value, place) for value, place in holds if place >= carried[op.value]]
        holds.append((op.value, count))
        count += 1

    for now in range(1, steps):
        for moment, op in late:
            if moment == now:
                effect(op)
        client = chance.randrange(clients)
        if client not in running:
            if chance.random() < 0.5:
                op = Operation(Kind.READ, f"c{client}", now, now)
            else:
                op = Operation(Kind.WRITE, f"c{client}", now, now, value=f"v{now}")
                op.context, carried[op.value] = (
                    clocks[client] if chance.random() < 0.9 and client in clocks else (None, 0)
                )
            running[client] = op, None
            continue
        op, seen = running[client]
        if seen is not None:
            op.answered_ns = now
            history.append(op)
            del running[client]
            if op.outcome is Outcome.OK:
                clocks[client] = op, seen
            continue
        fate = chance.random()
        if op.kind is Kind.READ:
            op.values = tuple(value for value, _ in holds)
        elif fate < 0.05:
            op.outcome = Outcome.REFUSED
        elif fate < 0.15:
            op.outcome = Outcome.UNKNOWN
            if fate < 0.1:
                late.append((now + chance.randrange(1, 100), op))
        else:
            effect(op)
        running[client] = op, count
    for op, _ in running.values():
        if op.kind is Kind.WRITE:
            op.outcome = Outcome.UNKNOWN if op.outcome is Outcome.OK else op.outcome
            history.append(op)
    history.append(Operation(Kind.READ, "end", now + 1, now + 2, values=tuple(value for value, _ in holds)))
    return history


@st.composite
def small_histories(draw: st.DrawFn) -> list[Operation]:
    """Up to five operations with any times, contexts and results: most are wrong."""
    count = draw(st.integers(1, 5))
    ops: list[Operation] = []
    for number in range(count):
        called = draw(st.integers(0, 8))
        answered = called + draw(st.integers(1, 6))
        if draw(st.booleans()):
            before = [op for op in ops if op.answered_ns < called and op.outcome is Outcome.OK]
            context = draw(st.sampled_from([None, *before]))
            outcome = draw(st.sampled_from([Outcome.OK, Outcome.OK, Outcome.UNKNOWN]))
            ops.append(write("abcde"[number], called, answered, context, outcome))
        else:
            ops.append(read("", called, answered))
    values = "".join(op.value for op in ops)
    for op in ops:
        if op.kind is Kind.READ:
            op.values = tuple(draw(st.sets(st.sampled_from(values), max_size=2)) if values else ())
    return ops


def explained(history: list[Operation]) -> bool:
    """Whether an order explains the history, by trying every order of every choice of unknown writes."""
    sure = [op for op in history if op.outcome is Outcome.OK]
    unknown = [op for op in history if op.outcome is Outcome.UNKNOWN]
    return any(
        _fits(order)
        for size in range(len(unknown) + 1)
        for chosen in itertools.combinations(unknown, size)
        for order in itertools.permutations([*sure, *chosen])
    )


def _fits(order: tuple[Operation, ...]) -> bool:
    holds: dict[str, int] = {}
    place: dict[int, int] = {}
    for number, op in enumerate(order):
        if any(later.outcome is Outcome.OK and later.answered_ns < op.called_ns for later in order[number + 1 :]):
            return False
        if op.kind is Kind.READ:
            if set(op.values) != set(holds):
                return False
        else:
            if op.context is not None:
                if id(op.context) not in place:
                    return False
                holds = {value: at for value, at in holds.items() if at > place[id(op.context)]}
            holds[op.value] = number
        place[id(op)] = number
    return True


@given(small_histories())
def test_the_search_agrees_with_trying_every_order(history: list[Operation]) -> None:
    """On small histories, right and wrong ones, the search finds an order exactly when there is one."""
    if explained(history):
        check(history)
    else:
        refusal(history)
