"""Changes fetched from a Riak's queue by the sink: what arrives, what becomes a dead letter, and what is lost."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Any

import pytest

from isthmus.queues.riak_origin import RIAK_CLUSTER
from isthmus.repl.model.errors import BadInput
from isthmus.repl.model.objects import Object
from isthmus.sink import riak_answers
from isthmus.sink.riak_peers import RiakPeerEntry
from isthmus.sink.service import Sink
from tests.support.riak_pair import CAPTURES, RiakPair, captured, key, value
from tests.support.sink_listings import letters_shown, links, overview
from tests.support.waiting import eventually


async def letters_of(sink: Sink) -> list[dict[str, Any]]:
    return letters_shown(await sink.dead_letters())


async def kept(sink: Sink, count: int) -> list[dict[str, Any]]:
    """The dead letters, once there are as many."""
    found: list[dict[str, Any]] = []

    async def are_there() -> bool:
        found[:] = await letters_of(sink)
        return len(found) == count

    for _ in range(500):
        if await are_there():
            break
        await asyncio.sleep(0.01)
    assert len(found) == count, found
    return found


async def test_all_changes_of_all_nodes_of_a_riak_arrive_with_their_clocks(tmp_path: Path) -> None:
    """What two nodes of a Riak have in their queues is stored with the exact clock, origin `riak`; the link is one of
    the sink's, with lag, counters and the Riak's name."""
    async with RiakPair(tmp_path) as pair:
        a, b = pair.riak(), pair.riak()
        for n in range(60):
            (a, b)[n % 2].put(key(b"k%d" % n), value(b"v%d" % n, n + 1))
        sink = await pair.sink(a, b)
        await eventually(lambda: len(pair.cluster.objects) == 60)
        stored = pair.cluster.objects[key(b"k7")]
        assert (stored.clock, stored.siblings[0].value) == (value(b"v7", 8).clock, b"v7")
        assert {item.origin for item in pair.pushed} == {RIAK_CLUSTER}
        await eventually(lambda: sum(row["applied"] for row in links(sink)) == 60)
        rows = links(sink)
        assert {(row["kind"], row["state"], row["queue"], row["source_cluster"]) for row in rows} == {
            ("riak", "running", "isthmus", "old")
        }
        assert {row["peer"] for row in rows} == {a.url, b.url}
        nothing = {"left_out": 0, "answers_lost": 0, "lost": 0, "waiting": 0, "lost_lately": False, "seed_fault": ""}
        await eventually(lambda: [row["riak"] for row in links(sink)] == [nothing] * 2)
        (source,) = overview(sink)["sources"]
        assert (source["source_cluster"], source["fetched"], source["applied"], source["under_way"]) == (
            "old",
            60,
            60,
            0,
        )


async def test_messages_of_a_real_riak_are_stored(tmp_path: Path) -> None:
    """A value with all metadata, a tombstone, an empty value, a binary key, siblings with dots and a data type."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        names = ("full", "tombstone", "empty_value", "binary_key", "dvv_2", "map", "plain")
        for name in names:
            riak.offer_raw(captured(name))
        sink = await pair.sink(riak)
        await eventually(lambda: sum(one["fetched"] for one in overview(sink)["sources"]) == len(names))
        await eventually(lambda: overview(sink)["sources"][0]["under_way"] == 0)
        assert await letters_of(sink) == []
        assert sorted(len(stored.siblings) for stored in pair.cluster.objects.values())[-1] == 2


async def test_what_cannot_be_right_is_a_dead_letter_with_the_remedy_and_does_not_stop_the_others(
    tmp_path: Path,
) -> None:
    """Siblings without dots, a wrong checksum, bytes that are no answer, a type that is missing here, an object that is
    refused: each fails alone, and is kept with its bytes."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        pair.cluster.types = {b"default"}
        pair.cluster.rejecting = {b"large"}
        riak.put(key(b"a"), value(b"1"))
        riak.offer_raw(captured("nodot_sibling2"))
        damaged = captured("plain")
        riak.offer_raw(damaged[:-1] + bytes([damaged[-1] ^ 1]))
        riak.offer_raw(b"\x07nonsense")
        riak.put(key(b"t", b"orders"), value(b"2"))
        riak.put(key(b"large"), value(b"3"))
        riak.put(key(b"z"), value(b"4"))
        sink = await pair.sink(riak)
        await eventually(lambda: pair.has(b"z"))
        found = {(row["reason"], row["key"][2]): row for row in await kept(sink, 5)}
        reasons = sorted(reason for reason, _ in found)
        assert reasons == ["malformed", "malformed", "siblings-without-dots", "too-large", "unknown-bucket-type"]
        by_reason = {reason: row for (reason, _), row in found.items()}
        assert "dvv_enabled = true" in by_reason["siblings-without-dots"]["error"]
        malformed = {row["key"][0]: row["error"] for row in found.values() if row["reason"] == "malformed"}
        assert "checksum" in malformed["default"]
        assert all(row["object_kept"] and row["source_cluster"] == "old" for row in found.values())
        assert pair.has(b"a")
        row = links(sink)[0]
        assert (row["rejected"], row["applied"], row["riak"]["lost"]) == (5, 2, 0)


@pytest.mark.logs_errors("sink.riak_answer_bug")
async def test_an_answer_on_which_the_program_fails_is_a_dead_letter_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A defect of the decoder costs the one change, which is kept as it came, and is reported."""
    real = riak_answers.decode_riak_object

    def decode(data: bytes) -> Object:
        if b"poison" in data:
            raise RuntimeError("a defect")
        return real(data)

    monkeypatch.setattr(riak_answers, "decode_riak_object", decode)
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        for name in (b"a", b"poison", b"c"):
            riak.put(key(name), value(name))
        sink = await pair.sink(riak)
        await eventually(lambda: pair.has(b"a") and pair.has(b"c"))
        (letter,) = await kept(sink, 1)
        assert (letter["reason"], letter["key"][2], letter["object_kept"]) == ("internal", "poison", True)
        assert links(sink)[0]["state"] == "running"


async def test_dead_letters_are_retried(tmp_path: Path) -> None:
    """One whose type exists by now is pushed; one that could not be read is asked for again, and goes once it came."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        pair.cluster.types = {b"default"}
        riak.put(key(b"t", b"orders"), value(b"2"))
        riak.put(key(b"bad"), value(b"old"))
        riak.waiting.pop()
        riak.faults.extend([None, "crc"])
        riak.offer(key(b"bad"))
        sink = await pair.sink(riak)
        await kept(sink, 2)
        pair.cluster.types.add(b"orders")
        answers = {one["reason"]: one for one in await sink.retry_dead_letters(None)}
        assert answers[None]["outcome"] == "applied"
        assert key(b"t", b"orders") in pair.cluster.objects
        assert "asked to send the key again" in answers["asked-again"]["error"]
        await eventually(lambda: pair.has(b"bad"))
        await kept_none(sink)
        assert {item.origin for item in pair.pushed} == {RIAK_CLUSTER}


async def kept_none(sink: Sink) -> None:
    """Wait until no dead letter is left."""
    await sink._retry.settle(0, 100)
    assert await letters_of(sink) == []


async def test_a_change_that_is_not_stored_at_once_is_pushed_until_it_is(tmp_path: Path) -> None:
    """The Riak has forgotten it: it stays in hand, and is no dead letter."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        pair.cluster.failing = {b"a": 4, b"b": 1}
        for name in (b"a", b"b", b"c"):
            riak.put(key(name), value(name))
        sink = await pair.sink(riak)
        await eventually(lambda: len(pair.cluster.objects) == 3)
        assert riak.taken == 3
        await eventually(lambda: links(sink)[0]["errors_in_a_row"] == 0)
        assert await letters_of(sink) == []
        assert links(sink)[0]["failed"] >= 5


async def test_a_suspended_or_removed_link_pushes_what_it_has_in_hand(tmp_path: Path) -> None:
    """No further change is taken; the one in hand is stored, and only then a removed link is gone."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        pair.cluster.failing = {b"a": 10_000}
        riak.put(key(b"a"), value(b"a"))
        sink = await pair.sink(riak)
        await eventually(lambda: links(sink)[0]["failed"] >= 2)
        await sink.suspend("isthmus", riak.url, "ann", "quiet")
        await eventually(lambda: links(sink)[0]["state"] == "suspended")
        riak.put(key(b"b"), value(b"b"))
        pair.cluster.failing = {}
        await eventually(lambda: pair.has(b"a"))
        assert not pair.has(b"b")
        await sink.resume("isthmus", riak.url)
        await eventually(lambda: pair.has(b"b"))
        pair.cluster.failing = {b"c": 10_000}
        riak.put(key(b"c"), value(b"c"))
        failed = links(sink)[0]["failed"]
        await eventually(lambda: links(sink)[0]["failed"] >= failed + 2)
        await sink.remove_riak("old", "ann", "moved")
        await asyncio.sleep(0.1)
        assert [row["state"] for row in links(sink)] == ["ending"]
        pair.cluster.failing = {}
        await eventually(lambda: pair.has(b"c") and not links(sink))


async def test_a_stop_keeps_what_is_in_hand_and_the_next_start_pushes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that stores nothing while the node stops: the change is a dead letter, which the next start pushes by
    itself."""
    async with RiakPair(tmp_path) as pair:
        monkeypatch.setattr("isthmus.sink.service.LETTERS_INTERVAL_S", 0.05)
        riak = pair.riak()
        pair.cluster.failing = {b"a": 10_000}
        riak.put(key(b"a"), value(b"a"))
        sink = await pair.sink(riak)
        await eventually(lambda: links(sink)[0]["failed"] >= 1)
        await sink.stop()
        pair.sinks.clear()
        assert riak.taken == 1
        pair.cluster.failing = {}
        again = await pair.sink(riak)
        await eventually(lambda: pair.has(b"a"))
        await kept(again, 0)


async def test_a_change_that_arrives_while_the_node_stops_is_stored(tmp_path: Path) -> None:
    """A slow Riak answers after the stop began: the answer is waited for, and its change is pushed."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        riak.faults.append("slow")
        riak.put(key(b"a"), value(b"a"))
        sink = await pair.sink(riak)
        await eventually(lambda: riak.taken == 1)
        await sink.stop()
        pair.sinks.clear()
        assert pair.has(b"a")


async def test_lost_answers_are_counted_and_the_link_goes_on(tmp_path: Path) -> None:
    """Dropped, cut and huge answers, and refusals: the link backs off and says what may be lost; the others arrive."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        riak.faults.extend([None, "drop", "cut", "huge", "503", None])
        for n in range(6):
            riak.put(key(b"k%d" % n), value(b"v"))
        sink = await pair.sink(riak)
        await eventually(lambda: len(pair.cluster.objects) == 3)
        await eventually(lambda: links(sink)[0]["state"] == "running")
        assert links(sink)[0]["riak"]["answers_lost"] == 3


async def test_a_wrong_password_fails_the_link_with_the_remedy(tmp_path: Path) -> None:
    """401: nothing is taken, and the reason names the settings. The right one is sent by basic authentication."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak(user="isthmus", password="password of isthmus")
        other = pair.riak(user="isthmus", password="another")
        for one in (riak, other):
            one.put(key(one.url.encode()), value(b"v"))
        sink = await pair.sink(riak, other, peer={"user": "isthmus", "password_file": Path("/none")})
        await eventually(lambda: pair.has(riak.url.encode()))
        await eventually(lambda: {row["peer"]: row["state"] for row in links(sink)}[other.url] == "failing")
        reason = next(row["reason"] for row in links(sink) if row["peer"] == other.url)
        assert "401" in reason
        assert "password_file" in reason
        assert other.taken == 0


@pytest.mark.logs_errors("sink.riak_changes_lost")
async def test_changes_beyond_the_limit_of_dead_letters_are_counted_as_lost(tmp_path: Path) -> None:
    """A Riak has no gap to note them in."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        pair.cluster.rejecting = {b"r0", b"r1", b"r2"}
        for n in range(3):
            riak.put(key(b"r%d" % n), value(b"v"))
        sink = await pair.sink(riak, letters=(2, 1_000))
        await eventually(lambda: links(sink)[0]["riak"]["lost"] == 1)
        assert ("isthmus_sink_riak_lost_total", {"queue": "isthmus", "peer": riak.url}, 1) in sink.metrics()


async def test_bucket_types_that_are_not_wanted_and_reaps_are_left_out(tmp_path: Path) -> None:
    """They are counted, and are no dead letters."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        riak.put(key(b"a", b"other"), value(b"v"))
        reap = bytes.fromhex((CAPTURES / "internal_reap.hex").read_text().replace("\n", ""))

        riak.offer_raw(b"\x01\x00" + zlib.crc32(reap).to_bytes(4, "big") + reap)
        riak.put(key(b"b"), value(b"v"))
        sink = await pair.sink(riak, peer={"bucket_types": "default"})
        await eventually(lambda: pair.has(b"b"))
        assert links(sink)[0]["riak"]["left_out"] == 2
        assert len(pair.cluster.objects) == 1


async def test_a_rate_of_the_peer_holds(tmp_path: Path) -> None:
    """Twenty changes a second: a hundred do not come within the first second."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        for n in range(100):
            riak.put(key(b"k%d" % n), value(b"v"))
        sink = await pair.sink(riak, peer={"object_rate_limit_count": 20})
        await eventually(lambda: len(pair.cluster.objects) >= 10)
        await asyncio.sleep(0.5)
        assert len(pair.cluster.objects) <= 60
        assert links(sink)[0]["state"] == "running"


async def test_riaks_are_added_and_removed_while_the_node_runs(tmp_path: Path) -> None:
    """An added one is fetched from on every node and after a restart; its name and links are taken once; a sink's peer
    of Isthmus cannot be removed by it."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        sink = await pair.sink()
        entry = RiakPeerEntry(name="new", urls=riak.url, queue="isthmus", by="ann", at_ms=1, reason="try")
        await sink.add_riak(entry)
        riak.put(key(b"a"), value(b"a"))
        await eventually(lambda: pair.has(b"a"))
        assert links(sink)[0]["from"] == "operator"
        with pytest.raises(BadInput, match="fetched from already"):
            await sink.add_riak(entry)
        with pytest.raises(BadInput, match="isthmus riak remove"):
            await sink.remove_peer(sink.link_names()[0], "ann", "")
        await sink.stop()
        pair.sinks.clear()
        riak.put(key(b"b"), value(b"b"))
        again = await pair.sink()
        await eventually(lambda: pair.has(b"b"))
        await again.remove_riak("new", "ann", "done")
        await eventually(lambda: not links(again))
        with pytest.raises(BadInput, match="there is no Riak 'new'"):
            await again.remove_riak("new", "ann", "done")


async def test_a_removed_riak_of_the_file_stays_removed_over_a_restart(tmp_path: Path) -> None:
    """The entry in the metastore overrides the file; to add it again, the entry is replaced."""
    async with RiakPair(tmp_path) as pair:
        riak = pair.riak()
        sink = await pair.sink(riak)
        await eventually(lambda: links(sink)[0]["state"] == "running")
        await sink.remove_riak("old", "ann", "moved")
        await sink.stop()
        pair.sinks.clear()
        again = await pair.sink(riak)
        assert links(again) == []
        riak.put(key(b"a"), value(b"a"))
        await again.add_riak(RiakPeerEntry(name="old", urls=riak.url, queue="isthmus"))
        await eventually(lambda: pair.has(b"a"))
