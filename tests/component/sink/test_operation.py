"""Claims about operators and peers of a working sink: limits, nodes that come and go, dead letters, lying sources."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgpack
import pytest

import isthmus.repl.http.client as client_room
from isthmus.config.settings import PeerSettings, SinkSettings
from isthmus.queues.queue_documents import AuditInfo
from isthmus.queues.wire import FetchReply, ObjectRequest, OwnedByOther, encode_reply
from isthmus.repl.clock_offsets import ClockOffsets
from isthmus.repl.model.errors import LocalFault
from isthmus.repl.model.keys import Key
from isthmus.repl.model.requests import PushOutcome
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.property_digests import ScopeDigests, scope_digest
from isthmus.sink.conflicts import Conflicts
from isthmus.sink.dead_letters import DeadLetter, DeadLetters
from isthmus.sink.limits import SinkLimits
from isthmus.sink.service import Sink, SinkPorts
from tests.support.cluster_facts import FakeClusterFacts, OpenPeers
from tests.support.queue_listings import listed_queues
from tests.support.queue_source import OURS, SINK, THIRD
from tests.support.sink_listings import letters_shown, links, overview
from tests.support.sink_pair import SinkPair
from tests.support.waiting import PATIENCE_S, eventually

# ---------------------------------------------------------------- limits and discovery


async def test_workers_and_rates_change_while_it_runs_and_outlive_a_restart() -> None:
    """Another number of workers counts at once, on all nodes or one, and is there after a restart with who set it; a
    rate is enforced, is shown with the limit that binds, and can be lifted while the sink runs."""

    async with SinkPair() as pair:
        sink = await pair.sink("q", "r")
        await eventually(lambda: overview(sink)["workers"]["busy"] == 2)
        await sink.set_limits(SinkLimits(workers=1, by="ann", at_ms=7, reason="night"), None)
        await eventually(lambda: overview(sink)["workers"]["busy"] == 1)
        pair.source.put(*(b"k%d" % n for n in range(40)))
        await pair.equal()
        await sink.stop()
        again = await pair.sink("q", "r")
        shown = overview(again)
        assert shown["workers"]["count"] == 1
        assert shown["limits_set"] == {"by": "ann", "at_ms": 7, "reason": "night"}
        await again.set_limits(SinkLimits(workers=3, objects_per_second=20, by="bob", at_ms=8), "w1")
        assert overview(again)["workers"]["count"] == 3
        pair.source.put(*(b"n%d" % n for n in range(60)))
        await eventually(lambda: overview(again)["throttle"]["throttled_seconds"] > 0)
        assert overview(again)["throttle"]["binding"] == "objects"
        assert pair.cluster.pushed < 2 * (40 + 60), "two queues give each change"
        await again.set_limits(SinkLimits(objects_per_second=0, by="bob", at_ms=9), "w1", forget=True)
        await pair.equal()
        assert overview(again)["throttle"]["configured"]["objects_per_second"] is None
        with pytest.raises(Exception, match="no node 'w7'"):
            await again.set_limits(SinkLimits(workers=3), "w7")


async def test_a_suspension_of_one_node_leaves_the_others_alone() -> None:
    """A suspension of one node affects that node only; one without a node affects all."""

    async with SinkPair() as pair:
        sink = await pair.sink()
        await sink.suspend(None, None, "ann", "", "w2")
        assert sink.status()["state"] == "running"
        await sink.suspend(None, None, "ann", "", "w1")
        assert sink.status()["state"] == "suspended"
        await sink.resume(None, None, "w1")
        pair.source.put(b"a")
        await pair.equal()
        assert [s["node"] for s in overview(sink)["suspensions"]] == ["w2"]


class Peer:
    """An HTTP peer with set answers: `answer` to fetches, `nodes` to requests for the live nodes."""

    def __init__(self, answer: Callable[[], bytes] | None = None) -> None:
        self.nodes: bytes = b"{}"
        peer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._send(peer.nodes)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                peer.fetches += 1
                self._send(answer() if answer is not None else b"")

            def _send(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Silent."""

        self.fetches = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def listed(cluster: bytes, *urls: str) -> bytes:
    nodes = [{"node": f"n{n}", "http": url} for n, url in enumerate(urls)]
    return json.dumps({"cluster": "east", "cluster_uuid": cluster.hex(), "nodes": nodes}).encode()


async def sink_of(
    pair: SinkPair,
    *peers: str,
    properties: dict[bytes, bytes] | None = None,
    scopes: ScopeDigests | None = None,
    **more: Any,
) -> Sink:
    settings = SinkSettings(
        peers=tuple(PeerSettings(url, "q", "east") for url in peers),
        **{"poll_ms": 200, "delay_min_ms": 2, "delay_max_ms": 20, "request_timeout_ms": 2_000,
           "discovery_interval_ms": 30, **more},
    )  # fmt: skip
    sink = Sink(
        settings,
        ThisNode("w1", "west", SINK),
        SinkPorts(
            kv=pair.cluster,  # type: ignore[arg-type]
            metastore=pair.metastore,
            letters=DeadLetters(pair.folder / "letters.sqlite", 3, 1_000),
            conflicts=Conflicts(pair.folder / "conflicts.sqlite", 3),
            credentials=OpenPeers(),
            cluster=FakeClusterFacts(digests=properties or {}, scopes=scopes),
            time=pair.source.clock,
            clocks=ClockOffsets("peer", pair.source.clock),
        ),
        traces=None,
        counters=None,
    )
    pair.sinks.append(sink)
    await sink.start()
    return sink


async def test_nodes_that_come_are_fetched_from_and_those_that_go_are_not() -> None:
    """The seed lists the node that has the changes; when that is no longer listed its link ends, after its pending
    acknowledgement; when it is listed again the link continues."""

    async with SinkPair() as pair:

        def nothing() -> bytes:
            return encode_reply(FetchReply(OURS, "east", 1, b"", 1_000, 0, "serving", ()))

        seed = Peer(nothing)
        try:
            seed.nodes = listed(OURS, seed.url, pair.listener.url)
            sink = await sink_of(pair, seed.url)
            pair.source.put(b"a")
            await pair.equal()
            rows = {row["peer"]: row for row in links(sink)}
            assert rows[pair.listener.url]["from"] == "discovery"
            assert rows[seed.url]["from"] == "config"
            seed.nodes = listed(OURS, seed.url)
            await eventually(lambda: len(links(sink)) == 1)
            assert pair.source.served()[0].machine.in_flight_count() == 0
            seed.nodes = listed(OURS, seed.url, pair.listener.url)
            pair.source.put(b"b")
            await pair.equal()
            assert overview(sink)["sources"][0]["applied"] == 2, "counts outlive a link"
        finally:
            await asyncio.get_running_loop().run_in_executor(None, seed.close)


async def test_a_listed_node_that_is_passed_over_is_shown() -> None:
    """A node that the seed lists and that cannot be dialled as the seed is has a row with its reason, is named in the
    sink's state, and counts in the metrics; once it is listed otherwise, it does not."""

    async with SinkPair() as pair:
        seed = Peer(lambda: encode_reply(FetchReply(OURS, "east", 1, b"", 1_000, 0, "serving", ())))
        try:
            seed.nodes = listed(OURS, seed.url, "https://10.0.0.9:8098")
            sink = await sink_of(pair, seed.url)
            await eventually(lambda: len(links(sink)) == 2)
            row = links(sink)[1]
            assert (row["peer"], row["state"], row["source_cluster"]) == (
                "https://10.0.0.9:8098",
                "passed-over",
                "east",
            )
            assert f"another scheme than the peer {seed.url}" in row["reason"]
            assert row.keys() == links(sink)[0].keys()
            assert "nothing is fetched from a node of east (https://10.0.0.9:8098)" in sink.status()["reason"]
            assert ("isthmus_sink_peers_passed_over", {}, 1) in sink.metrics()
            seed.nodes = listed(OURS, seed.url)
            await eventually(lambda: len(links(sink)) == 1)
            assert sink.passed_over() == ""
        finally:
            await asyncio.get_running_loop().run_in_executor(None, seed.close)


async def test_a_peer_that_is_listed_again_is_tried_at_once() -> None:
    """A link that failed for long does not wait for its delay once another peer reports the node as live again."""

    async with SinkPair() as pair:
        answers: list[bytes] = [b"junk"]
        seed, other = Peer(lambda: answers[0]), Peer(lambda: answers[0])
        try:
            seed.nodes = other.nodes = listed(OURS, seed.url)
            sink = await sink_of(pair, seed.url, other.url, delay_max_ms=60_000, delay_factor=10)
            for peer in (seed, other):
                peer.nodes = b"no list"
            await eventually(lambda: len(links(sink)) == 2 and min(r["delay_ms"] for r in links(sink)) > 10_000)
            answers[0] = encode_reply(FetchReply(OURS, "east", 1, b"", 1_000, 0, "serving", ()))
            await eventually(lambda: not sink._listed)
            seed.nodes = listed(OURS, seed.url, other.url)
            await eventually(lambda: {row["state"] for row in links(sink)} == {"running"})
        finally:
            for peer in (seed, other):
                await asyncio.get_running_loop().run_in_executor(None, peer.close)


async def test_bucket_types_whose_properties_differ_are_named() -> None:
    """Both sides send digests with each fetch; a missing digest means the default, and a difference is shown with its
    type while changes keep flowing."""

    async with SinkPair() as pair:

        def nothing() -> bytes:
            theirs = {b"same": b"1" * 8, b"other": b"2" * 8, b"theirs": b"3" * 8}
            return encode_reply(FetchReply(OURS, "east", 1, b"", 1_000, 0, "serving", (), properties=theirs))

        peer = Peer(nothing)
        try:
            sink = await sink_of(pair, peer.url, properties={b"same": b"1" * 8, b"other": b"9" * 8, b"ours": b"4" * 8})
            await eventually(lambda: links(sink)[0]["properties_differ"])
            row = links(sink)[0]
            assert row["properties_differ"] == ["other", "ours", "theirs"]
            assert (row["state"], row["reason"]) == (
                "running",
                "properties differ from the source's: other, ours, theirs: of the bucket type or of one of its buckets",
            )
        finally:
            await asyncio.get_running_loop().run_in_executor(None, peer.close)


async def test_a_buckets_property_that_differs_is_named_at_both_ends_of_a_link() -> None:
    """A sink and a queue that send their digests by place show the bucket and the property."""

    async with SinkPair() as pair:
        ours, theirs = ({b"default": {b"orders": scope_digest({"allow_mult": on})}} for on in (True, False))
        pair.source.facts.digests, pair.source.facts.scopes = {b"default": b"2" * 8}, theirs
        sink = await sink_of(pair, pair.listener.url, properties={b"default": b"1" * 8}, scopes=ours)
        await eventually(lambda: links(sink)[0]["properties_differ"])
        row = links(sink)[0]
        assert row["property_differences"] == [
            {"bucket_type": "default", "bucket": "orders", "properties": ["allow_mult"]}
        ]
        assert (row["state"], row["properties_differ"]) == ("running", ["default"])
        assert row["reason"] == "properties differ from the source's: bucket default/orders: allow_mult"
        (queue, *_) = await listed_queues(pair.source.queues)
        assert queue["property_differences"] == {"w1": row["property_differences"]}


async def test_an_overdue_source_is_reported_before_the_fetch_fails() -> None:
    """A link that was cut during a fetch fails only at the request's time-out: until then its reason shows for how long
    nothing arrived, until data arrives."""

    async with SinkPair() as pair:
        free, clock = Event(), pair.source.clock
        held_ms: list[int] = []

        def held() -> bytes:
            if not free.is_set():
                held_ms.append(clock.now_ms())
            assert free.wait(2 * PATIENCE_S)
            return encode_reply(FetchReply(OURS, "east", 1, b"", 1_000, 0, "serving", ()))

        def is_since(earliest_ms: int, latest_ms: int) -> bool:
            found = re.fullmatch(r"no answer for (\d+) s to a fetch that goes on", links(sink)[0]["reason"])
            assert found
            now_ms = clock.now_ms()
            return now_ms - latest_ms - 1_000 <= int(found[1]) * 1_000 <= now_ms - earliest_ms + 1_000

        peer = Peer(held)
        try:
            begin_ms = clock.now_ms()
            sink = await sink_of(pair, peer.url, request_timeout_ms=60_000, discover=False)
            await eventually(lambda: len(held_ms) == 1)
            assert links(sink)[0]["reason"] == "no answer yet"
            clock.skew_ms += 7_000
            assert links(sink)[0]["state"] == "starting"
            assert is_since(begin_ms, held_ms[0])
            begin_ms = clock.now_ms()
            free.set()
            await eventually(lambda: links(sink)[0]["fetches"] > 0)
            free.clear()
            await eventually(lambda: len(held_ms) == 2)
            assert (links(sink)[0]["state"], links(sink)[0]["reason"]) == ("running", "")
            clock.skew_ms += 9_000
            assert links(sink)[0]["state"] == "running"
            assert is_since(begin_ms, held_ms[1])
            free.set()
            await eventually(lambda: links(sink)[0]["reason"] == "")
        finally:
            free.set()
            await asyncio.get_running_loop().run_in_executor(None, peer.close)


async def test_an_acknowledgement_without_a_fetch_compares_no_properties() -> None:
    """A suspended link sends a last acknowledgement without a fetch, which carries no properties: a queue with equal
    properties on both sides must not show them as differing from then on."""

    async with SinkPair() as pair:
        same = {b"same": b"1" * 8}
        pair.source.facts.digests = same
        sink = await sink_of(pair, pair.listener.url, properties=same)
        (queue, *_) = pair.source.served()
        await eventually(lambda: links(sink)[0]["fetches"] > 0)
        pair.cluster.stuck.clear()
        pair.source.put(b"a")
        await eventually(lambda: queue.machine.in_flight_count() == 1)
        await sink.suspend(None, None, "ann", "")
        pair.cluster.stuck.set()
        await eventually(lambda: queue.machine.counts.acknowledged == 1)
        assert queue.differing == {}


@pytest.mark.parametrize("status", ["503", "504"])
async def test_a_fetch_that_is_refused_is_tried_again_whether_its_outcome_is_known_or_not(status: str) -> None:
    """503 claims that nothing was done, 504 that the outcome is unknown: both may come after the source has processed
    the acknowledgement and made a batch. The sink relies on neither: it backs off, sends the same acknowledgement again
    under the same session, and gets the batch that was on its way; nothing is lost, and nothing becomes a dead
    letter."""

    async with SinkPair() as pair:
        sink = await pair.sink(batch_count=4)
        pair.listener.faults.extend([None, status, status, None, status, None, None, status])
        pair.source.put(*[b"k-%d" % number for number in range(40)])
        await pair.equal()
        await eventually(lambda: pair.listener.seen[status] == 4 and links(sink)[0]["errors"] >= 4)
        pair.source.put(b"last")
        await pair.equal()
        assert links(sink)[0]["errors"] == 4
        assert sink._letters.counts() == (0, 0)
        (queue, *_) = pair.source.served()
        assert queue.machine.counts.acknowledged == 41
        assert queue.machine.in_flight_count() == 0


# ---------------------------------------------------------------- liars


def reply(cluster: bytes = OURS, name: str = "east", items: Sequence[Any] = ()) -> bytes:
    return encode_reply(FetchReply(cluster, name, 1, b"b" if items else b"", 1_000, 0, "serving", items))


def versioned() -> bytes:
    fields = msgpack.unpackb(reply())
    return bytes(msgpack.packb({**fields, "v": 99}))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: b"\x93junk", "malformed"),
        (lambda: reply(items=[(1, 2, 3)]), "malformed"),
        (versioned, "unknown-version"),
        (lambda: reply(THIRD, "third"), "other-cluster"),
        (lambda: reply(SINK, "west"), "own-cluster"),
        (lambda: b"x" * 300_000, "peer-fault"),
    ],
)
async def test_an_invalid_peer_is_backed_off_with_a_reason_and_affects_no_other(
    answer: Callable[[], bytes], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An invalid answer makes its peer's link back off with a stable reason; nothing of it is stored, and an honest
    peer's changes still arrive."""
    monkeypatch.setattr("isthmus.sink.fetch.ANSWER_OVERHEAD_BYTES", 1_000)

    async with SinkPair() as pair:
        liar = Peer(answer)
        try:
            liar.nodes = listed(OURS, liar.url)
            sink = await sink_of(pair, liar.url, pair.listener.url, batch_bytes=200_000)
            for n in range(20):
                pair.source.put(b"k%d" % n)
                await asyncio.sleep(0.005)
            await pair.equal()
            await eventually(lambda: {r["peer"]: r for r in links(sink)}[liar.url]["last_error_reason"])
            rows = {row["peer"]: row for row in links(sink)}
            assert rows[liar.url]["last_error_reason"] == reason
            assert rows[liar.url]["state"] == "failing"
            assert rows[liar.url]["running"] <= 1
            assert rows[pair.listener.url]["state"] == "running"
            assert sum(row["applied"] for row in rows.values()) == 20
            assert [source["source_cluster"] for source in overview(sink)["sources"]] == ["east"]
        finally:
            await asyncio.get_running_loop().run_in_executor(None, liar.close)


def test_an_answer_that_trickles_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that sends a byte now and then holds a thread for a bounded time."""
    monkeypatch.setattr(client_room, "RATE_MIN_BYTES", 1_000_000)

    class TricklingHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "100000")
            self.end_headers()
            for _ in range(200):
                self.wfile.write(b"x")
                self.wfile.flush()
                time.sleep(0.02)

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), TricklingHandler)
    server.daemon_threads, server.block_on_close = True, False
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        peer = client_room.HttpPeer(f"http://127.0.0.1:{server.server_address[1]}", 1)
        with pytest.raises(client_room.PeerFault, match="trickles"):
            peer.get("/", timeout_ms=200, limit_bytes=200_000)
        peer.abort()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# ---------------------------------------------------------------- dead letters


def letter(name: bytes, size: int = 10, *, at_ms: int = 1, error: str = "no room") -> DeadLetter:
    return DeadLetter(at_ms, "q", "http://p", OURS, "east", Key(b"default", b"b", name), "too-large", error, size,
                      b"x" * size)  # fmt: skip


def test_dead_letters_outlive_a_restart_and_are_bounded(tmp_path: Path) -> None:
    """There is one letter per key; above the limit of bytes objects are dropped, the oldest first; letters above the
    limit of number are not kept, reported as such, and counted, except a newer one of a key that has one; all of it
    survives a restart."""
    file = tmp_path / "letters.sqlite"
    letters = DeadLetters(file, 3, 25)
    assert letters.letters() == []
    assert letters.counts() == (0, 0)
    assert not file.exists(), "nothing is made before there is something to keep"
    letters.add([letter(b"a"), letter(b"b")])
    letters.add([letter(b"a", at_ms=5, error="still")])
    again = DeadLetters(file, 3, 25)
    first, second = again.letters()
    assert (first.key.key, first.tries, first.error, first.at_ms) == (b"a", 2, "still", 5)
    assert (second.key.key, second.tries) == (b"b", 1)
    assert again.add([letter(b"c", 30), letter(b"d"), letter(b"b", at_ms=7)]) == [1]
    kept = again.letters()
    assert [x.key.key for x in kept] == [b"a", b"b", b"c"]
    assert [x.payload is not None for x in kept] == [True, True, False]
    assert again.counts() == (3, 1)
    found = again.find(kept[1].id)
    assert found is not None
    assert found.payload == b"x" * 10
    assert again.drop([kept[0].id, 999]) == 1
    assert again.counts() == (2, 1)
    for store in (letters, again):
        store.close()


@pytest.mark.logs_errors("sink.dead_letters_damaged")
def test_a_damaged_file_of_dead_letters_is_put_aside(tmp_path: Path) -> None:
    """An unreadable file is renamed and logged, and a new one begun: the sink continues."""
    file = tmp_path / "letters.sqlite"
    file.write_bytes(b"this is no database, but long enough to be looked at as one" * 20)
    letters = DeadLetters(file, 3, 1_000)
    letters.add([letter(b"a")])
    assert [x.key.key for x in letters.letters()] == [b"a"]
    assert len(list(tmp_path.glob("letters.sqlite.damaged-*"))) == 1
    letters.close()


async def test_a_retry_pushes_again_and_what_is_taken_is_off_the_list() -> None:
    """After the limit was raised a retry stores the object, fetched again if it was not kept; an object refused again
    stays with its new reason."""

    async with SinkPair() as pair:
        pair.cluster.rejecting = {b"big", b"bigger", b"huge"}
        sink = await pair.sink()
        pair.source.put(b"big", b"bigger", b"small")
        pair.source.put(b"huge", size=5_000)
        await eventually(lambda: overview(sink)["dead_letters"]["kept"] == 3)
        letters = {row["key"][2]: row for row in letters_shown(await sink.dead_letters())}
        pair.cluster.rejecting = {b"bigger"}
        retried = {row["id"]: row for row in await sink.retry_dead_letters(None)}
        assert retried[letters["big"]["id"]]["outcome"] == "applied"
        again = retried[letters["bigger"]["id"]]
        assert (again["outcome"], again["reason"]) == ("rejected", "too-large")
        left = {row["key"][2]: row for row in letters_shown(await sink.dead_letters())}
        assert "big" not in left
        assert left["bigger"]["tries"] == 2
        assert not letters["huge"]["object_kept"]
        assert retried[letters["huge"]["id"]]["outcome"] == "applied"
        assert "huge" not in left
        assert (await sink.retry_dead_letters([99]))[0]["reason"] == "unknown-letter"
        assert await sink.drop_dead_letters(None) == len(left)
        assert await sink.dead_letters() == []


@pytest.mark.parametrize("refused", [False, True])
async def test_a_change_refused_during_the_retry_of_an_older_dead_letter_is_kept(refused: bool) -> None:
    """A newer change of the key is refused, and acknowledged, while the older one is pushed again: whatever its
    outcome, the remaining letter has the newer object."""

    async with SinkPair() as pair:
        pair.cluster.rejecting = {b"k"}
        sink = await pair.sink()
        pair.source.put(b"k")
        await eventually(lambda: overview(sink)["dead_letters"]["kept"] == 1)
        letters = sink._letters
        (row,) = letters.letters()
        older = letters.find(row.id)
        assert older is not None
        newer = replace(older, payload=b"newer", size=5, error="still too large")

        def meanwhile() -> None:
            pair.cluster.before = None
            letters.add([newer])

        pair.cluster.before = meanwhile
        pair.cluster.rejecting = {b"k"} if refused else set()
        (told,) = await sink.retry_dead_letters([row.id])
        assert told["outcome"] == ("rejected" if refused else "applied")
        (left,) = letters.letters()
        found = letters.find(left.id)
        assert found is not None
        assert (found.payload, found.error, found.tries) == (b"newer", "still too large", 2)


async def test_a_retry_without_the_object_fetches_it_and_reports_the_outcome() -> None:
    """The retry fetches the object as it is at the source now; refused again the letter stays with its reason, and the
    object is kept if it fits. A source that does not have it, is suspended, or belongs to another cluster leaves the
    letter, with the reason."""

    async with SinkPair() as pair:
        pair.cluster.rejecting = {b"huge"}
        sink = await pair.sink()
        pair.source.put(b"huge", size=5_000)
        await eventually(lambda: overview(sink)["dead_letters"]["kept"] == 1)

        async def retried() -> dict[str, Any]:
            (row,) = letters_shown(await sink.dead_letters())
            assert not row["object_kept"]
            (told,) = await sink.retry_dead_letters([row["id"]])
            return told

        async def wait_for_reason(reason: str) -> None:
            async def told() -> bool:  # a broken connection of the link's fetches may come first
                return bool((await retried())["reason"] == reason)

            await eventually(told, reason)

        told = await retried()
        assert (told["outcome"], told["reason"]) == ("rejected", "too-large")
        await pair.source.acts.suspend("q", "serving", None, AuditInfo("ann", 1, "because"))
        told = await retried()
        assert (told["outcome"], told["reason"]) == (None, "not-ready")
        assert "suspended: because" in told["error"]
        await pair.source.acts.resume("q", "serving", None, AuditInfo("ann", 1, ""))
        read = pair.source.get_batch
        pair.source.get_batch = lambda keys, isolation, room: asyncio.sleep(0, [None])  # type: ignore[method-assign, return-value, assignment]
        assert (await retried())["reason"] == "gone-at-source"
        pair.source.get_batch = read  # type: ignore[method-assign]
        pair.listener.faults += ["garbage"] * 100_000  # the link's own fetches take some
        await wait_for_reason("malformed")
        pair.listener.faults.clear()
        uuid, pair.source.queues.cluster_uuid = pair.source.queues.cluster_uuid, THIRD
        await wait_for_reason("other-cluster")
        pair.source.queues.cluster_uuid = uuid
        pair.source.put(b"huge", size=30)
        await eventually(lambda: (pair.source.served()[0].machine.counts.acknowledged) >= 2)
        (row,) = letters_shown(await sink.dead_letters())
        assert row["object_kept"], "the newer, smaller one was refused, too, and kept"
        pair.cluster.rejecting = set()
        (told,) = await sink.retry_dead_letters(None)
        assert (told["outcome"], await sink.dead_letters()) == ("applied", [])


async def test_only_the_owner_of_a_queue_is_given_its_objects() -> None:
    """Another cluster is refused by name, and no cluster gets anything before the queue has an owner."""

    async with SinkPair() as pair:
        key = Key(b"default", b"bucket", b"a")
        pair.source.put(b"a")
        asked = ObjectRequest(SINK, "west", key)
        with pytest.raises(OwnedByOther, match="belongs to no cluster"):
            await pair.source.acts.object_of("q", asked)
        sink = await pair.sink()
        await eventually(lambda: len(pair.cluster.objects) == 1)
        assert (await pair.source.acts.object_of("q", asked)).payload is not None
        with pytest.raises(OwnedByOther, match="belongs to cluster west"):
            await pair.source.acts.object_of("q", ObjectRequest(THIRD, "north", key))
        assert overview(sink)["dead_letters"]["kept"] == 0


async def test_a_dead_letter_that_cannot_be_stored_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors never lose a reference: when the disk refuses the letter, the change comes again until it can be kept."""

    async with SinkPair() as pair:
        calls = []

        def refuse(_letters: object) -> None:
            calls.append(1)
            raise LocalFault("no space left")

        pair.cluster.rejecting = {b"a"}
        sink = await pair.sink()
        with monkeypatch.context() as patched:
            patched.setattr(sink._letters, "add", refuse)
            pair.source.put(b"a", b"b")
            await eventually(lambda: len(calls) >= 2)
            await eventually(lambda: links(sink)[0]["last_error_reason"] == "local-fault")
        await eventually(lambda: pair.source.served()[0].machine.counts.acknowledged == 2)
        assert overview(sink)["dead_letters"]["kept"] == 1
        assert overview(sink)["sources"][0][PushOutcome.REJECTED.value] == 1
