"""Effects of properties: how a leader applies writes and pushes to a bucket, and the limits of size and siblings."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.repl.coordinator.write_batch import TooManySiblings
from isthmus.repl.model.errors import TooLarge
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content, Object, Sibling, decode_object, encode_object, write
from isthmus.repl.model.properties import DEFAULTS, FixedProperties, Properties, TypeProperties
from isthmus.repl.model.requests import MergedWith, PushItem, PushOutcome, WriteRequest
from isthmus.repl.model.vclock import actor_of, decode_clock, descends, encode_clock, pack_counter
from tests.support.coordinator_cluster import OTHER, UUID, Cluster, cluster, keys_of

pytestmark = pytest.mark.virtual_time

(KEY,) = keys_of(0, 1)


def under(made: Cluster, properties: Properties, **buckets: Properties) -> None:
    """Sets these properties at both nodes."""
    found = TypeProperties(properties, {name.encode(): each for name, each in buckets.items()})
    for coordinator in made.coordinators.values():
        coordinator._properties = FixedProperties(found)


async def put(made: Cluster, value: bytes, context: bytes = b"", key: Key = KEY, node: str = "n2") -> Object:
    """A write through a node that does not lead."""
    clock = decode_clock(context) if context else None
    written = await made.coordinators[node].write(WriteRequest(key, Content(value), clock))
    return decode_object(written.payload)


def foreign(value: bytes, number: int, modified_ms: int) -> PushItem:
    """A write of the other cluster."""
    dot = (actor_of(OTHER, 0), pack_counter(1, number))
    return PushItem(KEY, OTHER, encode_object(write(None, (), Content(value), dot, modified_ms)))


def values(obj: Object) -> set[bytes]:
    return {sibling.value for sibling in obj.siblings}


async def test_properties_decide_what_becomes_of_a_blind_write():
    """With allow_mult siblings stay; without it, or with last_write_wins, one is left; a bucket's own properties take
    precedence."""

    async with cluster() as made:
        assert values(await put(made, b"1")) == {b"1"}
        assert values(await put(made, b"2")) == {b"1", b"2"}
        under(made, DEFAULTS._replace(allow_mult=False))
        assert len(values(await put(made, b"3"))) == 1
        under(made, DEFAULTS, b=DEFAULTS._replace(last_write_wins=True))
        assert values(await put(made, b"4")) == {b"4"}
        (other,) = keys_of(0, 1, b"c")
        await put(made, b"1", key=other)
        assert values(await put(made, b"2", key=other)) == {b"1", b"2"}, "another bucket of the type"


async def test_a_push_that_is_concurrent_is_resolved_by_the_bucket_and_counts_as_ours():
    """Without allow_mult the newest of both clusters stays, under a clock with a local dot, and is replicated back."""

    async with cluster() as made:
        under(made, DEFAULTS._replace(allow_mult=False))
        await put(made, b"ours")
        before = decode_object(await made.coordinators["n1"].get(KEY) or b"")
        (old,) = await made.coordinators["n1"].push([foreign(b"theirs", 1, 5)])
        assert old.outcome is PushOutcome.MERGED
        assert old.met == MergedWith(encode_clock(before.clock), 1), "one is kept"
        here = decode_object(await made.coordinators["n1"].get(KEY) or b"")
        assert values(here) == {b"ours"}, "theirs is older"
        (new,) = await made.coordinators["n1"].push([foreign(b"newer", 2, 1 << 42)])
        assert new.outcome is PushOutcome.MERGED
        here = decode_object(await made.coordinators["n1"].get(KEY) or b"")
        assert values(here) == {b"newer"}
        change = made.store.changes(0, 0, 100)[-1]
        assert change.origin != OTHER


@pytest.mark.parametrize(
    "properties", [DEFAULTS._replace(allow_mult=False), DEFAULTS._replace(last_write_wins=True), DEFAULTS]
)
@pytest.mark.parametrize("together", [True, False])
async def test_a_push_whose_merge_keeps_nothing_is_a_write_of_the_newest(properties: Properties, together: bool):
    """Each clock covers the only dot of the other object: the newer value is stored under a dot of this cluster, which
    is sent back. Innocent pushes and writes of the same turn are answered as ever (R-KEEP)."""

    def one(dot: tuple[bytes, int], modified_ms: int) -> Sibling:
        return Sibling(dot, modified_ms, False, b"v%d" % modified_ms, b"text/plain")

    x = Object(((b"c0", 10, 1000), (b"c1", 3, 1000)), (one((b"c1", 3), 1000202),))
    y = Object(((b"c0", 7, 1000), (b"c1", 5, 1000)), (one((b"c0", 7), 1000173),))
    async with cluster() as made:
        under(made, properties)
        n1 = made.coordinators["n1"]
        innocent = [foreign(b"theirs", number, 5)._replace(key=key) for number, key in enumerate(keys_of(0, 30)[1:], 1)]
        if together:
            results = await n1.push(
                [PushItem(KEY, OTHER, encode_object(x)), PushItem(KEY, OTHER, encode_object(y)), *innocent]
            )
        else:
            results = await n1.push([PushItem(KEY, OTHER, encode_object(x))])
            pushing = n1.push([PushItem(KEY, OTHER, encode_object(y)), *innocent])
            more, _ = await asyncio.gather(pushing, put(made, b"mine", key=keys_of(0, 31)[30], node="n1"))
            results += more
        assert [each.outcome for each in results] == [
            PushOutcome.APPLIED, PushOutcome.MERGED, *[PushOutcome.APPLIED] * 29
        ]  # fmt: skip
        assert results[1].met == MergedWith(encode_clock(x.clock), 1)
        here = decode_object(await n1.get(KEY) or b"")
        (kept,) = here.siblings
        assert (kept.value, kept.last_modified_ms) == (b"v1000202", 1000202)
        assert kept.dot[0] == actor_of(UUID, 0)
        assert descends(here.clock, x.clock)
        assert descends(here.clock, y.clock)
        (change,) = [each for each in made.store.changes(0, 0, 100) if each.key == KEY.key]
        assert change.origin == UUID
        (again,) = await n1.push([PushItem(KEY, OTHER, encode_object(y))])
        assert again.outcome is PushOutcome.SUPERSEDED


async def test_a_push_that_dominates_is_kept_as_it_came():
    """Another cluster's newer object is stored byte for byte under any properties."""

    async with cluster() as made:
        under(made, DEFAULTS._replace(allow_mult=False, last_write_wins=True))
        mine = await put(made, b"ours")
        dot = (actor_of(OTHER, 0), pack_counter(1, 1))
        theirs = encode_object(write(mine, mine.clock, Content(b"theirs"), dot, 1))
        (result,) = await made.coordinators["n1"].push([PushItem(KEY, OTHER, theirs)])
        assert result.outcome is PushOutcome.APPLIED
        assert await made.coordinators["n1"].get(KEY) == theirs


async def test_a_bucket_has_its_own_object_size():
    """At the limit a value is accepted, a byte above it is refused with the property's name; the node's own limit
    always holds."""

    async with cluster() as made:
        under(made, DEFAULTS, b=DEFAULTS._replace(max_object_bytes=10))
        await put(made, bytes(10))
        with pytest.raises(TooLarge, match=r"11 bytes, max_object_size of bucket b'b' is 10"):
            await put(made, bytes(11))
        under(made, DEFAULTS, b=DEFAULTS._replace(max_object_bytes=5_000_000))
        with pytest.raises(TooLarge, match=r"limits.object_size is 1000000"):
            await put(made, bytes(1_000_001))


async def test_a_bucket_has_its_own_number_of_siblings():
    """The write that makes one too many is refused, and one that has read them is not; last_write_wins never is."""

    async with cluster() as made:
        under(made, DEFAULTS, b=DEFAULTS._replace(max_siblings=2))
        await put(made, b"1")
        await put(made, b"2")
        with pytest.raises(TooManySiblings, match=r"3 siblings, max_siblings of bucket b'b' is 2"):
            await put(made, b"3")
        under(made, DEFAULTS._replace(last_write_wins=True))
        await put(made, b"4")


async def test_objects_above_a_warning_threshold_are_accepted_and_counted():
    """A value and a sibling above their warnings are written, counted by kind, and at the bound they are not."""

    async with cluster() as made:
        under(made, DEFAULTS._replace(warn_object_bytes=3, warn_siblings=2))
        await put(made, b"123")
        await put(made, b"456")

        def counted() -> dict[str, float]:
            samples = made.coordinators["n1"].metrics()
            return {labels["what"]: n for name, labels, n in samples if name == "isthmus_writes_above_warning_total"}

        assert counted() == {"object-size": 0, "siblings": 0}
        await put(made, b"7890")
        assert counted() == {"object-size": 1, "siblings": 1}
        await made.coordinators["n1"].push([foreign(b"x", 1, 1)])
        assert counted() == {"object-size": 1, "siblings": 2}, "a push is warned of, never refused"
