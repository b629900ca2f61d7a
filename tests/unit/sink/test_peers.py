"""Peers and workers of queues that are set while a sink runs: restarts, other nodes, and unreadable documents."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.config.settings import PeerSettings
from isthmus.queues.filters import parse_filter
from isthmus.repl.model.errors import BadInput, CodecError, LocalFault
from isthmus.sink import peers
from isthmus.sink.backoff import CycleResult, Delays
from isthmus.sink.peers import PeerEntry, QueueWorkers, SetPeers, peers_in_effect, workers_of
from isthmus.sink.scheduler import FetchScheduler, LinkName
from isthmus.sink.service import Sink
from tests.support.sink_listings import links, overview
from tests.support.sink_pair import SinkPair
from tests.support.waiting import eventually


def origins(sink: Sink) -> list[tuple[str, str]]:
    return [(row["queue"], row["from"]) for row in links(sink)]


async def test_a_peer_added_while_the_sink_runs_is_fetched_from_on_all_nodes_and_over_restarts() -> None:
    """An operator adds a peer at another node to a sink that has none in its file: changes arrive, the listing names
    the operator, and a new process fetches from the peer again. After its removal, no node fetches from it, and nothing
    is lost."""

    async with SinkPair() as pair:
        sink, other = await pair.sink(peers=False), await pair.sink(peers=False)
        assert sink.status()["reason"] == "not configured"
        await other.add_peer(PeerSettings(pair.listener.url, "q"), "ann", "new site")
        pair.source.put(b"a")
        await eventually(lambda: origins(sink) == origins(other) == [("q", "operator")])
        await pair.equal()
        assert links(sink)[0]["set"]["by"] == "ann"
        with pytest.raises(BadInput, match="fetched from already"):
            await sink.add_peer(PeerSettings(pair.listener.url, "q"), "ann", "")
        again = await pair.sink(peers=False)
        assert origins(again) == [("q", "operator")]
        await again.remove_peer(LinkName("q", pair.listener.url), "bob", "")
        await eventually(lambda: not origins(sink) and not origins(other) and not origins(again))
        pair.source.put(b"b")
        assert sink.status()["state"] == "idle"
        await sink.add_peer(PeerSettings(pair.listener.url, "q"), "ann", "")
        await pair.equal()


async def test_a_peer_of_the_file_that_was_removed_stays_away_over_restarts_until_it_is_added_again() -> None:
    """The file is only the default; a removal of an unknown peer is refused, and the message lists the peers."""

    async with SinkPair() as pair:
        sink = await pair.sink("q", "r")
        await sink.remove_peer(LinkName("q", pair.listener.url), "bob", "broken")
        await eventually(lambda: origins(sink) == [("r", "config")])
        again = await pair.sink("q", "r")
        assert origins(again) == [("r", "config")]
        assert overview(again)["peers_set"][0]["by"] == "bob"
        with pytest.raises(BadInput, match="there are: r "):
            await again.remove_peer(LinkName("x", pair.listener.url), "bob", "")
        await again.add_peer(PeerSettings(pair.listener.url, "q"), "ann", "")
        await eventually(lambda: set(origins(again)) == {("q", "config"), ("r", "config")})
        assert overview(again)["peers_set"] == [], "the file alone says it now"


async def test_while_the_list_of_peers_is_unreadable_nothing_is_fetched() -> None:
    """The file may list a peer that was removed, so after a restart all links are suspended, with the path and the
    reason; a command that would overwrite the unreadable document is refused."""

    async with SinkPair() as pair:
        await pair.metastore.put(peers.PATH, b"[", None)
        sink = await pair.sink("q")
        (row,) = links(sink)
        assert row["state"] == "suspended"
        assert peers.PATH in row["reason"]
        with pytest.raises(BadInput, match=peers.PATH):
            await sink.remove_peer(LinkName("q", pair.listener.url), "bob", "")
        found = await pair.metastore.get(peers.PATH)
        assert found is not None
        await pair.metastore.put(peers.PATH, b"{}", found.version)
        await eventually(lambda: links(sink)[0]["state"] == "running")


async def test_a_peer_with_a_missing_token_is_refused_and_reported_by_nodes_without_it() -> None:
    """The node that receives the command refuses it before anything is written; another node lists the peer among those
    it cannot use, and fetches from the others."""

    async with SinkPair() as pair:
        sink = await pair.sink("q")
        plain = sink._credentials.access_to

        def access_to(peer: PeerSettings) -> Any:
            if peer.token_file is not None:
                raise LocalFault(f"{peer.token_file} is not there")
            return plain(peer)

        sink._credentials.access_to = access_to  # type: ignore[method-assign]
        with pytest.raises(LocalFault):
            await sink.add_peer(PeerSettings(pair.listener.url, "r", "", Path("/nowhere")), "ann", "")
        entry = PeerEntry("r", pair.listener.url, "", "/nowhere", False, "ann", 1, "")
        await peers.DOCUMENT.change(pair.metastore, lambda found: peers.with_peer(found, entry, in_file=False))
        await eventually(lambda: overview(sink)["peers_unusable"])
        assert overview(sink)["peers_unusable"][0]["reason"] == "/nowhere is not there"
        assert origins(sink) == [("q", "config")]


async def test_a_queue_has_no_more_workers_than_its_own_limit() -> None:
    """The limit is set and unset at run time, for one node or for all; the node's own takes precedence. Other queues
    get the remaining workers."""

    async with SinkPair() as pair:
        sink = await pair.sink("q", "r")
        await sink.set_queue_workers("q", None, 1, "ann", "")
        await sink.set_queue_workers("q", "w1", 2, "ann", "")
        assert overview(sink)["workers"]["queue_limits"] == {"q": 2}
        assert overview(await pair.sink("q"))["workers"]["queue_limits"] == {"q": 2}
        await sink.set_queue_workers("q", "w1", None, "ann", "")
        assert overview(sink)["workers"]["queue_limits"] == {"q": 1}
        with pytest.raises(BadInput, match="fetches from no queue 'x'"):
            await sink.set_queue_workers("x", None, 1, "ann", "")


def test_workers_of_a_queue_are_counted_over_all_its_peers() -> None:
    """With a limit of 2 and busy links at three peers, two turns are given, neither of which may wait at its source for
    long, and a third one only after one of them ended; another queue is not delayed."""
    scheduler = FetchScheduler(2, Delays(), Random(1), workers=8)
    for peer in ("a", "b", "c"):
        scheduler.add(LinkName("q", peer))
    scheduler.queue_limits = {"q": 2}
    turns = [scheduler.take(0), scheduler.take(0)]
    assert all(turn is not None and not turn.may_wait for turn in turns)
    assert scheduler.take(0) is None
    assert scheduler.next_due_ms() is None
    scheduler.add(LinkName("r", "a"))
    other = scheduler.take(0)
    assert other is not None
    assert other.name.queue == "r"
    assert turns[0] is not None
    scheduler.report(turns[0].name, turns[0].slot, CycleResult.EMPTY, 0, 5_000)
    again = scheduler.take(0)
    assert again is not None
    assert again.name.queue == "q"


def test_settings_of_peers_round_trip() -> None:
    """Encoding is exact; a malformed list of peers is refused."""
    entry = PeerEntry("q", "http://10.0.0.7:8098", "east", "/t", False, "ann", 5, "why")
    found = SetPeers((entry,), (QueueWorkers("q", None, 3, "ann", 5, ""),))
    assert peers.decode(peers.DOCUMENT.encode(found)) == found
    file = [PeerSettings("http://10.0.0.7:8098", "q"), PeerSettings("http://10.0.0.8:8098", "q")]
    assert peers_in_effect(file, found.peers) == [(file[1], None), (entry.settings(), entry)]
    assert workers_of("w1", found.workers) == {"q": 3}
    for row in ({"queue": "q"}, {"queue": "a/b", "url": "http://h:1"}, {"queue": "q", "url": "nowhere"}, 7):
        with pytest.raises(CodecError):
            peers.decode(json.dumps({"peers": [row]}).encode())
    with pytest.raises(CodecError):
        peers.decode(b'{"workers": [{"queue": "q", "workers": 0}]}')


def test_a_filter_that_one_node_of_a_queue_has_told_is_the_queues() -> None:
    """A node that has not told its filter yet does not make the queue unknown; one of which no node has told is."""
    cluster, other = b"c" * 16, b"o" * 16
    filters = {"p": (None, parse_filter("!buckettype:t")), "q": (None, None), "r": (parse_filter("any"),)}
    links = {
        LinkName(queue, f"http://{number}"): SimpleNamespace(
            cluster=other if queue == "r" else cluster, source_filter=told
        )
        for queue, of_links in filters.items()
        for number, told in enumerate(of_links)
    }
    sink: Any = SimpleNamespace(_pool=SimpleNamespace(links=links))
    assert [None if one is None else str(one) for one in Sink.source_filters(sink, cluster)] == ["!buckettype:t", None]
