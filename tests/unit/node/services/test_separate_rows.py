"""One row of a listing fails alone: the others are listed, and what cannot be shown is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from isthmus.config.settings import QueueSettings
from isthmus.node.nouns.queue import QueueShare, QueueShares
from isthmus.node.services import fullsync_listing, queue_listing
from isthmus.node.services.fullsync_status import FullSyncStatus
from isthmus.node.services.queue_listing import shares_of
from isthmus.node.services.queue_query import LEDGERS, QUEUE_LISTING, ListQueues, QueueResponder, ReadLedgers
from isthmus.node.services.sink_listing import overview_of
from isthmus.repl.clock import SystemTime
from isthmus.sink import status
from tests.support.queue_listings import share
from tests.support.queue_node import QueueNode
from tests.support.sink_pair import SinkPair

pytestmark = pytest.mark.logs_errors("listing.row_bug")


def failing_for(made: Any, name: str, named: Any) -> Any:
    """What makes a row, and raises for the item of that name."""

    def make(item: Any, *rest: Any, **more: Any) -> Any:
        if named(item, *rest) == name:
            raise RuntimeError("injected")
        return made(item, *rest, **more)

    return make


async def test_one_queue_that_cannot_be_shown_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node names it with the reason, to other nodes, too; one of an earlier version gets the shares alone."""
    make = failing_for(queue_listing._share, "q", lambda queue, *_: queue.settings.name)
    monkeypatch.setattr(queue_listing, "_share", make)
    async with QueueNode(QueueSettings("q"), QueueSettings("r")) as node:
        found = await shares_of(node.queues)
        assert [one.name for one in found.queues] == ["r"]
        assert isinstance(found.failed, dict)
        assert list(found.failed) == ["q"]
        assert "RuntimeError" in found.failed["q"]
        parts: Any = [None] * 4
        responder = QueueResponder(node.queues, *parts)
        assert [one.name for one in await responder.respond(ListQueues())] == ["r"]
        assert (await responder.respond(ListQueues(failures=True))).failed.keys() == {"q"}


def test_a_listing_of_an_earlier_version_is_a_list_of_shares() -> None:
    """It names nothing that failed, and its request has nothing that an earlier version does not know."""
    shares = [share("q")]
    listed = QUEUE_LISTING.answers.decode(msgspec.json.encode(shares))
    assert listed == QueueShares(shares)
    assert QUEUE_LISTING.answers.decode(msgspec.json.encode(QueueShares(shares, failed={"r": "why"}))).failed == {
        "r": "why"
    }
    assert msgspec.json.decode(QUEUE_LISTING.requests.encode(ListQueues())) == {"what": "listing"}
    assert msgspec.convert([msgspec.to_builtins(one) for one in shares], list[QueueShare]) == shares


async def test_one_link_that_cannot_be_shown_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink's other links, and its figures, are listed."""
    make = failing_for(status.link_state, "q", lambda link, *_: link.name.queue)
    monkeypatch.setattr(status, "link_state", make)
    async with SinkPair() as pair:
        found = overview_of(await pair.sink("q", "r"), "w1")
        assert [one.queue for one in found.sinks] == ["r"]
        assert isinstance(found.failed, dict)
        assert list(found.failed) == [f"q {pair.listener.url}"]
        assert found.workers.count


def test_one_full_sync_that_cannot_be_shown_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's other full-syncs are listed."""
    monkeypatch.setattr(
        fullsync_listing,
        "peer_row",
        failing_for(lambda _manager, peer, *_, **__: peer, "west", lambda _manager, peer, *_: peer.settings.name),
    )
    peers = {name: SimpleNamespace(settings=SimpleNamespace(name=name)) for name in ("west", "north")}
    scheduler = SimpleNamespace(peers=peers, running=None, removed={}, faults={})
    fullsync: Any = SimpleNamespace(
        scheduler=scheduler, gap_healer=None, status=lambda: {"state": "scheduled", "reason": ""}
    )
    coverage: Any = SimpleNamespace(owners=dict, sent=list)
    shown = FullSyncStatus(fullsync, coverage, "n1", SystemTime(), lambda _cluster: ())
    monkeypatch.setattr(shown, "compared", lambda _peer: {})
    monkeypatch.setattr(shown, "equal_types", lambda _peer: [])
    found = shown.checks()
    assert found.peers == [peers["north"]]
    assert isinstance(found.failed, dict)
    assert list(found.failed) == ["west"]


@pytest.mark.logs_errors("queue.ledger_failed")
async def test_one_ledger_that_cannot_be_read_leaves_the_others() -> None:
    """It is unknown with the reason, and the node is not said to lack the queue. A node of an earlier version, which
    knows no such row, gets none."""
    sound = {"name": "r", "lost": {}, "partitions_not_known": []}

    async def ledger(name: str) -> dict[str, Any]:
        if name == "q":
            raise RuntimeError("injected")
        return sound

    acts: Any = SimpleNamespace(names=lambda: ["q", "r"], ledger=ledger)
    parts: Any = [None] * 3
    responder = QueueResponder(parts[0], acts, *parts[:3])
    broken, other = await responder.respond(ReadLedgers(failures=True))
    assert (broken["name"], "RuntimeError" in broken["failed"], other) == ("q", True, sound)
    with pytest.raises(RuntimeError):
        await responder.respond(ReadLedgers())
    assert msgspec.json.decode(LEDGERS.requests.encode(ReadLedgers())) == {"what": "ledgers"}
