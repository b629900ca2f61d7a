"""Clocks that are ahead of a leader: forged in its own epoch, perhaps its successor's in a higher one (R-FORGED)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from isthmus.repl.coordinator import routing
from isthmus.repl.coordinator.routing import MOVING
from isthmus.repl.coordinator.write_batch import ForgedClock
from isthmus.repl.model.errors import BadInput, IsthmusError, NotReady, TimedOut
from isthmus.repl.model.objects import Content, decode_object, encode_object, write
from isthmus.repl.model.requests import PushItem, PushOutcome, PushResult, WriteRequest
from isthmus.repl.model.vclock import actor_of, decode_clock, pack_counter
from tests.support.coordinator_cluster import OTHER, UUID, Cluster, cluster, key_of

pytestmark = pytest.mark.virtual_time

KEY = key_of(0)
Asked = Callable[[Cluster, int, int], Awaitable[object]]


def _clock(epoch: int, offset: int) -> tuple[tuple[bytes, int, int], ...]:
    return ((actor_of(UUID, 0), pack_counter(epoch, offset), 5),)


async def _push(c: Cluster, epoch: int, offset: int) -> object:
    obj = write(None, _clock(epoch, offset), Content(b"theirs"), (actor_of(OTHER, 0), pack_counter(1, 1)), 5)
    (result,) = await c.coordinators["n1"].push([PushItem(KEY, OTHER, encode_object(obj))])
    return result


async def _write(c: Cluster, epoch: int, offset: int) -> object:
    try:
        return await c.coordinators["n1"].write(WriteRequest(KEY, Content(b"v"), _clock(epoch, offset)))
    except IsthmusError as error:
        return error


def _error(outcome: object) -> IsthmusError | None:
    error = outcome.error if isinstance(outcome, PushResult) else outcome
    return error if isinstance(error, IsthmusError) else None


BOTH = pytest.mark.parametrize("asked", [_push, _write], ids=["pushed clock", "context"])


@BOTH
async def test_a_clock_of_a_higher_epoch_is_refused_only_by_a_leader_that_is_confirmed(asked: Asked) -> None:
    """The refusal waits for a committed read's confirmation: a replaced leader does not know its successor's writes,
    and a rejected push would become a dead letter that the sink acknowledges."""

    async with cluster() as c:
        runtime = c.runtimes["n1"]
        runtime.reads = []
        waiting = asyncio.ensure_future(asked(c, 900, 7))
        async with asyncio.timeout(5):
            while not runtime.reads:
                await asyncio.sleep(0)
        assert not waiting.done()
        runtime.reads[0].set_result(None)
        outcome = await waiting
        assert type(_error(outcome)) in (ForgedClock, BadInput)
        assert asked is _write or isinstance(outcome, PushResult)
        if isinstance(outcome, PushResult):
            assert outcome.outcome is PushOutcome.REJECTED


@BOTH
async def test_a_clock_of_a_higher_epoch_at_a_deposed_leader_comes_again(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the confirmation is refused, the item is retried once leadership is settled; if it does not come in time, the
    item may be retried later. Neither case is a rejection."""
    monkeypatch.setattr(routing, "LEADER_WAIT_S", 0.05)

    async def scenario(refused: bool) -> IsthmusError | None:
        async with cluster(request_timeout_ms=300) as c:
            runtime = c.runtimes["n1"]
            if refused:
                runtime.read_refusals = [NotReady("another leads"), *(NotReady("still") for _ in range(100))]
            else:
                runtime.reads = []
            outcome = await asked(c, 900, 7)
            if isinstance(outcome, PushResult):
                assert outcome.outcome is PushOutcome.FAILED, outcome
            return _error(outcome)

    assert isinstance(await scenario(refused=True), MOVING)
    late = await scenario(refused=False)
    assert isinstance(late, TimedOut)
    assert "nothing was written" in str(late)


@BOTH
async def test_a_clock_ahead_in_the_leaders_own_epoch_is_refused_at_once(asked: Asked) -> None:
    """Only this leader appends in its epoch, so no confirmation is needed."""

    async with cluster() as c:
        runtime = c.runtimes["n1"]
        runtime.reads = []
        core = runtime.partitions[0].replica
        assert type(_error(await asked(c, core.epoch, core.leo))) in (ForgedClock, BadInput)
        assert runtime.reads == []
        written = await asked(c, core.epoch, core.leo - 1)
        assert _error(written) is None


async def test_writes_of_an_earlier_incarnation_come_back() -> None:
    """R-ACTOR: once the partition is another actor, a clock with counters of the earlier one, however high, is that of
    a write that was lost here: it is stored, beside what was written since, and none is taken for forged."""

    async with cluster() as c:
        place = c.runtimes["n1"].partitions[0]
        core = place.replica
        assert type(_error(await _push(c, core.epoch, core.leo + 5))) is ForgedClock
        place.actor = actor_of(UUID, 0, 77)
        fresh = await c.coordinators["n1"].write(WriteRequest(KEY, Content(b"since"), ()))
        assert [actor for actor, _, _ in decode_clock(fresh.clock)] == [actor_of(UUID, 0, 77)]
        lost = write(None, (), Content(b"lost"), (actor_of(UUID, 0), pack_counter(core.epoch, core.leo + 5)), 5)
        (result,) = await c.coordinators["n1"].push([PushItem(KEY, OTHER, encode_object(lost))])
        assert result.outcome is PushOutcome.MERGED
        found = await c.coordinators["n1"].read(KEY, None)
        assert found is not None
        assert {sibling.value for sibling in decode_object(found).siblings} == {b"since", b"lost"}


async def test_a_clock_of_the_current_incarnation_may_still_be_forged() -> None:
    """A counter of the partition's own actor that its log has not reached is refused, in whichever incarnation."""

    async with cluster() as c:
        place = c.runtimes["n1"].partitions[0]
        core = place.replica
        place.actor = actor_of(UUID, 0, 77)
        ahead = write(None, (), Content(b"v"), (actor_of(UUID, 0, 77), pack_counter(core.epoch, core.leo + 5)), 5)
        (result,) = await c.coordinators["n1"].push([PushItem(KEY, OTHER, encode_object(ahead))])
        assert type(_error(result)) is ForgedClock
