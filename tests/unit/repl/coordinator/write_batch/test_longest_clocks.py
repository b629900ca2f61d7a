"""No unreadable clock is ever stored, for any clock that a client or another cluster sends."""

from __future__ import annotations

import pytest

from isthmus.repl.model.errors import TooLarge
from isthmus.repl.model.objects import TOMBSTONE, Content, Object, Sibling, decode_object, encode_object
from isthmus.repl.model.properties import DEFAULTS, FixedProperties, TypeProperties
from isthmus.repl.model.requests import PushItem, PushOutcome, WriteRequest
from isthmus.repl.model.vclock import CLOCK_ENTRIES_MAX, Clock
from tests.support.coordinator_cluster import OTHER, Cluster, cluster, key_of

pytestmark = pytest.mark.virtual_time

KEY = key_of(0)


def clock_of(count: int, letter: bytes = b"a") -> Clock:
    return tuple((letter + b"%06d" % number, 1, 1) for number in range(count))


def pushed(clock: Clock) -> PushItem:
    actor, counter, _ = clock[0]
    sibling = Sibling((actor, counter), 1_000, False, b"theirs")
    return PushItem(KEY, OTHER, encode_object(Object(clock, (sibling,))))


async def is_alive(c: Cluster) -> None:
    """The key can be read, written and deleted."""
    node = c.coordinators["n1"]
    data = await node.get(KEY)
    if data is not None:
        decode_object(data)
    await node.write(WriteRequest(KEY, Content(b"more")))
    await node.write(WriteRequest(KEY, TOMBSTONE))


@pytest.mark.parametrize("there", [False, True], ids=["new", "there"])
async def test_a_context_with_a_full_clock_is_refused(there: bool) -> None:
    """A context with the maximum number of entries, plus the write's own entry, would make the key unreadable."""

    async with cluster() as c:
        node = c.coordinators["n1"]
        if there:
            await node.write(WriteRequest(KEY, Content(b"before")))
        with pytest.raises(TooLarge):
            await node.write(WriteRequest(KEY, Content(b"v"), clock_of(CLOCK_ENTRIES_MAX)))
        await is_alive(c)


async def test_a_stored_clock_that_is_full_takes_no_write_more() -> None:
    """A write over it is refused, with the clock as its context, too; the stored object can be read."""

    async with cluster() as c:
        node, full = c.coordinators["n1"], clock_of(CLOCK_ENTRIES_MAX)
        (result,) = await node.push([pushed(full)])
        assert result.outcome is PushOutcome.APPLIED
        for context in (full, ()):
            with pytest.raises(TooLarge):
                await node.write(WriteRequest(KEY, Content(b"v"), context))
        data = await node.get(KEY)
        assert data is not None
        assert decode_object(data).clock == full


async def test_a_push_whose_merge_no_clock_holds_is_rejected() -> None:
    """Two valid clocks may merge to one with too many entries."""

    async with cluster() as c:
        half = CLOCK_ENTRIES_MAX // 2 + 1
        first, second = await c.coordinators["n1"].push([pushed(clock_of(half)), pushed(clock_of(half, b"b"))])
        assert (first.outcome, second.outcome) == (PushOutcome.APPLIED, PushOutcome.REJECTED)
        await is_alive(c)


async def test_a_remembered_delete_has_a_clock_that_can_be_read() -> None:
    """Clocks of leaving tombstones, for a key that is missing here, are merged only up to the limit of a clock: the key
    can still be written."""

    async with cluster() as c:
        node, half = c.coordinators["n1"], CLOCK_ENTRIES_MAX // 2 + 1
        node._properties = FixedProperties(TypeProperties(DEFAULTS._replace(repl_reap=True), {}))
        for letter, outcome in ((b"a", PushOutcome.SUPERSEDED), (b"b", PushOutcome.REJECTED)):
            clock = clock_of(half, letter)
            sibling = Sibling(clock[0][:2], 1_000, True, b"")
            item = PushItem(KEY, OTHER, encode_object(Object(clock, (sibling,))), leaving=True)
            (result,) = await node.push([item])
            assert result.outcome is outcome
        await is_alive(c)
