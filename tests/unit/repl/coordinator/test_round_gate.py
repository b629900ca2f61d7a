"""The gate releases requests at once, at a round's end, or with those of the clients that were just answered."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.repl.coordinator.round_gate import GATHER_MOST_S, GATHER_SHARE, ROUND_WAIT_S, RoundGate
from isthmus.repl.runtime.rounds import Rounds

pytestmark = pytest.mark.virtual_time

ROUND_S = 0.01


class Taken:
    """Records the releases of the gate; with `rounds`, each group is a round of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.rounds = Rounds(self.loop.time)
        self.gate = RoundGate(self.rounds, self.loop, self._take)
        self.waiting = 0
        self.groups: list[tuple[int, float]] = []
        """Requests of each group, and when they were taken."""

    def arrive(self, count: int = 1) -> None:
        """`count` requests arrive."""
        self.waiting += count
        self.gate.arrived(count)

    def _take(self) -> None:
        self.groups.append((self.waiting, self.loop.time()))
        self.waiting = 0

    async def round_of(self, count: int, lasts_s: float = ROUND_S) -> float:
        """A group of `count` requests, and a round of it; returns when the round ended."""
        self.arrive(count)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert self.groups.pop()[0] == count
        self.rounds.begin()
        await asyncio.sleep(lasts_s)
        self.rounds.end()
        return self.loop.time()


async def test_requests_after_a_round_wait_for_as_many_as_the_last_group_had() -> None:
    """The answered clients send again one after the other: all their requests make one group, without a further
    wait."""
    taken = Taken()
    await taken.round_of(3)
    for _ in range(3):
        assert taken.groups == []
        taken.arrive()
        await asyncio.sleep(0.001)
    assert [count for count, _ in taken.groups] == [3]


@pytest.mark.parametrize(("lasted_s", "waits_s"), [(ROUND_S, GATHER_SHARE * ROUND_S), (1.0, GATHER_MOST_S)])
async def test_requests_wait_for_others_for_a_share_of_the_round_only(lasted_s: float, waits_s: float) -> None:
    """A requester that does not return delays no other: the wait is a share of the last round, and bounded."""
    taken = Taken()
    ended_s = await taken.round_of(3, lasted_s)
    taken.arrive(2)
    await asyncio.sleep(2 * GATHER_MOST_S)
    ((count, at_s),) = taken.groups
    assert count == 2
    assert at_s - ended_s == pytest.approx(waits_s)


async def test_a_request_long_after_a_round_is_taken_at_once() -> None:
    """The answered clients would have sent by now."""
    taken = Taken()
    await taken.round_of(3)
    await asyncio.sleep(GATHER_SHARE * ROUND_S)
    now_s = taken.loop.time()
    taken.arrive()
    await asyncio.sleep(0.001)
    assert taken.groups == [(1, now_s)]


async def test_a_client_alone_waits_for_nobody() -> None:
    """Its own request was the last group."""
    taken = Taken()
    ended_s = await taken.round_of(1)
    taken.arrive()
    await asyncio.sleep(0.001)
    assert taken.groups == [(1, ended_s)]


async def test_without_rounds_requests_are_taken_with_their_turn() -> None:
    """A node without followers has no rounds: a large group before changes nothing."""
    taken = Taken()
    taken.arrive(10)
    await asyncio.sleep(0.001)
    now_s = taken.loop.time()
    taken.arrive()
    await asyncio.sleep(0.001)
    assert taken.groups[1:] == [(1, now_s)]


async def test_a_round_that_begins_while_requests_gather_does_not_hold_them_twice() -> None:
    """Another append, such as a cursor's, may begin a round: gathering requests are released when their own wait is
    over."""
    taken = Taken()
    ended_s = await taken.round_of(3)
    taken.arrive()
    await asyncio.sleep(0.001)
    taken.rounds.begin()
    await asyncio.sleep(ROUND_WAIT_S)
    ((count, at_s),) = taken.groups
    assert count == 1
    assert at_s - ended_s == pytest.approx(GATHER_SHARE * ROUND_S)
    taken.rounds.end()
    await asyncio.sleep(ROUND_WAIT_S)
    assert len(taken.groups) == 1


async def test_requests_of_a_round_are_taken_at_its_end_with_those_who_were_answered() -> None:
    """One that came during the round waits on for the clients of the group that has just been acknowledged."""
    taken = Taken()
    taken.arrive(3)
    await asyncio.sleep(0.001)
    taken.rounds.begin()
    await asyncio.sleep(ROUND_S / 2)
    taken.arrive()
    await asyncio.sleep(ROUND_S / 2)
    taken.rounds.end()
    await asyncio.sleep(0.001)
    assert len(taken.groups) == 1
    taken.arrive(2)
    await asyncio.sleep(0.001)
    assert [count for count, _ in taken.groups] == [3, 3]
