"""Seeds: all keys of a Riak come here once, by its queue or by its lists of keys, and go on after a stop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from isthmus.node.services.riak_listing import riaks_of
from isthmus.repl.model.errors import BadInput
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Object, Sibling
from isthmus.sink import riak_seeder
from isthmus.sink.riak_seeds import SeedRecord, Seeds
from isthmus.sink.service import Sink
from tests.support.fake_riak import FakeRiak
from tests.support.riak_pair import ACTOR, RiakPair, key, value
from tests.support.sink_listings import letters_shown, links
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds."""
    monkeypatch.setattr("isthmus.sink.riak_seeder.POLL_S", 0.02)
    monkeypatch.setattr("isthmus.sink.riak_seeder.RETRY_S", 0.02)
    monkeypatch.setattr("isthmus.sink.riak_seeder.NOTE_MS", 0)


def fill(riak: FakeRiak, count: int, bucket: bytes = b"bucket", kind: bytes = b"default") -> None:
    """Objects that are in no queue, modified a minute after each other."""
    for n in range(count):
        riak.put(Key(kind, bucket, b"k%d" % n), value(b"v%d" % n, n + 1, 1_750_000_000_000 + 60_000 * n), queued=False)


def seed_of(sink: Sink) -> SeedRecord:
    found = Seeds(tuple(sink.seeds.records())).of("old")
    assert found is not None
    return found


async def ended(sink: Sink) -> SeedRecord:
    """The seed, once it has ended."""
    await eventually(lambda: seed_of(sink).state != "running")
    return seed_of(sink)


async def test_a_seed_by_the_queue_brings_every_bucket_in_slices_and_compares_the_clocks(tmp_path: Path) -> None:
    """Two buckets, one larger than a slice: all keys are here, with the Riak's clocks, and the record says so; seeded
    changes count in no lag."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        fill(riak, 250)
        fill(riak, 7, b"other", b"orders")
        sink = await pair.sink(riak, riak_settings={"seed_slice_count": 100})
        await sink.seeds.begin("old", "queue", None, None, "ann", "copy")
        found = await ended(sink)
        assert (found.state, found.error) == ("done", "")
        assert len(pair.cluster.objects) == 257
        assert (found.buckets, found.buckets_done, found.keys, found.compared, found.missing) == (2, 2, 257, 257, 0)
        assert sum(count for path, count in riak.seen.items() if path.startswith("/rangerepl")) > 3
        assert links(sink)[0]["lag_ms_p99"] is None
        assert found.fraction() == 1


async def test_keys_that_a_queue_lost_are_found_by_their_clocks_and_sent_again(tmp_path: Path) -> None:
    """An answer of the queue is lost: the comparison misses the key, and it comes the second time."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        fill(riak, 5)
        sink = await pair.sink(riak)
        await eventually(lambda: links(sink)[0]["fetches"] > 0)
        await sink.suspend("isthmus", None, "ann", "")
        await eventually(lambda: links(sink)[0]["running"] == 0)
        riak.faults.extend([None, "drop"])
        await sink.seeds.begin("old", "queue", None, None, "ann", "")
        await eventually(lambda: len(riak.waiting) == 5)
        await sink.resume(None, None)
        found = await ended(sink)
        assert (found.state, found.missing, len(pair.cluster.objects)) == ("done", 0, 5)
        assert riak.taken >= 6


async def test_a_seed_that_was_stopped_goes_on_behind_the_last_bucket(tmp_path: Path) -> None:
    """The first bucket is not seeded again; an operator's stop counts at any node, and a second seed meanwhile is
    refused."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        fill(riak, 3, b"a")
        fill(riak, 3, b"b")
        sink = await pair.sink(riak)
        await eventually(lambda: links(sink)[0]["fetches"] > 0)
        real = riak.fold
        stuck = asyncio.Event()

        def fold(what: str, kind: bytes, bucket: bytes, found: dict[str, object]) -> dict[str, object]:
            if bucket == b"b" and not stuck.is_set():
                riak.waiting.append(b"\x00")
                raise UnicodeDecodeError("utf-8", b"", 0, 1, "not now")
            return real(what, kind, bucket, found)

        riak.fold = fold  # type: ignore[method-assign]
        await sink.seeds.begin("old", "queue", None, None, "ann", "")
        await eventually(lambda: seed_of(sink).buckets_done == 1)
        with pytest.raises(BadInput, match="runs on node w1"):
            await sink.seeds.begin("old", "queue", None, None, "ann", "")
        await sink.seeds.halt("old", "ann", "later")
        assert (seed_of(sink).state, seed_of(sink).after) == ("stopped", ("default", "a"))
        with pytest.raises(BadInput, match="no seed of old runs"):
            await sink.seeds.halt("old", "ann", "again")
        stuck.set()
        before = riak.seen["/rangerepl/buckets/a/queuename/isthmus"]
        await sink.seeds.begin("old", "queue", None, None, "ann", "")
        found = await ended(sink)
        assert (found.state, found.buckets_done, len(pair.cluster.objects)) == ("done", 2, 6)
        assert riak.seen["/rangerepl/buckets/a/queuename/isthmus"] == before


async def test_a_seed_goes_on_when_its_node_starts_again_or_at_another_node_when_it_is_gone(tmp_path: Path) -> None:
    """The node that stopped goes on by itself; a node that is not live loses the seed to the one that is ordered."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        fill(riak, 20)
        sink = await pair.sink(riak)
        await sink.suspend(None, None, "ann", "")
        await sink.seeds.begin("old", "queue", None, None, "ann", "")
        await eventually(lambda: seed_of(sink).error.startswith("20 changes wait"))
        await sink.stop()
        pair.sinks.clear()
        again = await pair.sink(riak)
        await again.resume(None, None)
        assert (await ended(again)).state == "done"
        assert len(pair.cluster.objects) == 20
        gone = SeedRecord(riak="old", run="ab", node="w9", state="running")
        await again.seeds._records.change(lambda before: before.with_record(gone))
        assert links(again)[0]["riak"]["seed_fault"] == "interrupted: its node w9 is not live"
        (shown,) = riaks_of(again, "w1", 2_000_000_000_000).riaks
        assert shown.seed is not None
        assert (shown.seed.state, shown.seed.left_ms) == ("interrupted", None)
        found = await again.seeds.begin("old", "queue", None, None, "ann", "")
        assert (found.node, found.state) == ("w1", "running")
        assert links(again)[0]["riak"]["seed_fault"] == ""
        assert (await ended(again)).state == "done"


async def test_a_seed_fails_with_the_reason(tmp_path: Path) -> None:
    """A queue that is not there: failed, with what to do, until it is stopped or ordered again; once the queue is there
    the seed can be begun again."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak("other")
        fill(riak, 2)
        sink = await pair.sink(riak)
        await sink.seeds.begin("old", "queue", b"default", b"bucket", "ann", "")
        found = await ended(sink)
        assert (found.state, "has no queue isthmus" in found.error) == ("failed", True)
        assert links(sink)[0]["riak"]["seed_fault"].startswith("failed: ")
        assert (await sink.seeds.halt("old", "ann", "given up")).state == "stopped"
        assert links(sink)[0]["riak"]["seed_fault"] == ""
        with pytest.raises(BadInput, match="there is no Riak 'new'"):
            await sink.seeds.begin("new", "queue", None, None, "ann", "")
        riak.queue_name = "isthmus"
        await sink.seeds.begin("old", "queue", b"default", b"bucket", "ann", "")
        assert (await ended(sink)).state == "done"
        assert len(pair.cluster.objects) == 2


@pytest.mark.logs_errors("sink.riak_seed_bug")
async def test_a_seed_on_which_the_program_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record has failed, so it can be ordered again; the links go on."""
    monkeypatch.setattr(riak_seeder, "place_of", lambda *_: 1 / 0)
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        fill(riak, 2)
        sink = await pair.sink(riak)
        started = SeedRecord(riak="old", run="ab", node="w1")
        await sink.seeds._records.change(lambda before: before.with_record(started))
        sink.seeds._begin_task(started)
        found = await ended(sink)
        assert found.state == "failed"
        assert "ZeroDivisionError" in found.error or "defect" in found.error
        riak.put(key(b"live"), value(b"v"))
        await eventually(lambda: pair.has(b"live"))


async def test_a_riak_without_queues_is_seeded_by_lists_of_keys(tmp_path: Path) -> None:
    """Values, metadata, indexes and clocks as HTTP shows them; tombstones; siblings are dead letters with the remedy; a
    cluster that is not ready is waited for."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        riak.has_folds = False
        fill(riak, 70)
        full = value(b"data", 90)
        sibling = full.siblings[0]._replace(
            content_type=b"text/plain; charset=utf-8", metadata=((b"colour", b"blue"),), indexes=((b"n_int", b"7"),)
        )
        riak.put(key(b"full/../%"), Object(full.clock, (sibling,)), queued=False)
        gone = value(b"", 91)
        riak.put(key(b"gone"), Object(gone.clock, (gone.siblings[0]._replace(tombstone=True),)), queued=False)
        two = Object(
            ((ACTOR, 2, 62_200_000_000),),
            (Sibling((ACTOR, 1), 1_000, False, b"a"), Sibling((ACTOR, 2), 2_000, False, b"b")),
        )
        riak.put(key(b"two"), two, queued=False)
        pair.cluster.failing = {b"k3": 2}
        sink = await pair.sink(riak)
        await sink.seeds.begin("old", "keys", None, None, "ann", "")
        found = await ended(sink)
        assert (found.state, found.keys, found.refused) == ("done", 73, 1)
        assert len(pair.cluster.objects) == 72
        stored = pair.cluster.objects[key(b"full/../%")]
        assert stored.clock == full.clock
        assert stored.siblings[0] == sibling._replace(last_modified_ms=1_750_000_000_000)
        assert pair.cluster.objects[key(b"gone")].deleted
        (letter,) = letters_shown(await sink.dead_letters())
        assert (letter["reason"], letter["key"][2]) == ("siblings-without-dots", "two")
        assert "resolve them in the Riak" in letter["error"]


async def test_a_key_that_is_not_utf8_is_seeded_and_told_as_not_compared(tmp_path: Path) -> None:
    """A Riak cannot name it in JSON: its clocks cannot be read for the bucket, and the seed says so."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        fill(riak, 2)
        riak.put(key(b"\xff\x00"), value(b"v"), queued=False)
        sink = await pair.sink(riak)
        await sink.seeds.begin("old", "queue", None, None, "ann", "")
        await eventually(lambda: len(pair.cluster.objects) == 3)
        found = await ended(sink)
        assert found.state == "done"
        assert found.compared == 0
        assert "clocks were not compared" in found.notes[0]
