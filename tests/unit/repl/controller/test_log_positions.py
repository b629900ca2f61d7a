"""Reports to the controller: log positions and promotions that are lost, late, repeated, or from the wrong node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from isthmus.repl.controller.log_positions import LogPositions
from isthmus.repl.controller.promotions import Promotions
from isthmus.repl.isr.effects import Promoted
from isthmus.repl.model.errors import BadInput, NotReady
from tests.support.controller_cluster import eventually

pytestmark = pytest.mark.virtual_time


class FakeLinks:
    """Requests that fail `failures` times, then wait for `gate`, then get `answer`."""

    def __init__(self, answer: Any = b"", failures: int = 0) -> None:
        self.answer = answer if isinstance(answer, bytes) else msgpack.packb(answer)
        self.failures = failures
        self.sent: list[tuple[str, str, Any]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """As `Links.request`."""
        self.sent.append((node, method, msgpack.unpackb(body)))
        if self.failures:
            self.failures -= 1
            raise NotReady("no connection")
        await self.gate.wait()
        return self.answer


class OwnPositions:
    """Positions of partitions 0 to 9."""

    def position_of(self, partition: int) -> tuple[int, int] | None:
        """See LocalPositions."""
        return (4, partition) if partition < 10 else None


def positions(links: FakeLinks, on_answer: Callable[[], None] = lambda: None) -> LogPositions:
    """The log positions of node a, whose replica of each partition below 10 is at (4, partition)."""
    return LogPositions(node="a", links=links, own=OwnPositions(), on_answer=on_answer)


async def test_one_request_asks_a_node_for_all_partitions() -> None:
    """Local replicas need no request; a repeated request is sent once; a missing replica ranks last."""

    links = FakeLinks({1: [3, 7]})
    answered: list[int] = []
    found = positions(links, lambda: answered.append(1))
    for partition in (1, 2, 2):
        found.want(partition, ["a", "b"])
    found.send()
    await eventually(lambda: answered)
    assert links.sent == [("b", "status", [1, 2])]
    assert found.of(1) == {"a": (4, 1), "b": (3, 7)}
    assert found.of(2) == {"a": (4, 2), "b": (-1, -1)}
    found.want(1, ["a", "b"])
    found.want(11, ["a"])
    found.send()
    assert len(links.sent) == 1
    assert found.of(11) == {"a": (-1, -1)}


async def test_while_a_node_is_asked_it_is_not_asked_again() -> None:
    """Partitions requested meanwhile are sent after the answer, if they are still wanted."""

    links = FakeLinks({1: [3, 7], 2: [3, 8]})
    links.gate.clear()
    answered: list[int] = []
    found = positions(links, lambda: answered.append(1))
    found.want(1, ["b"])
    found.send()
    found.want(2, ["b"])
    found.send()
    await asyncio.sleep(0)
    assert len(links.sent) == 1
    links.gate.set()
    await eventually(lambda: answered)
    found.want(2, ["b"])
    found.send()
    await eventually(lambda: found.of(2))
    assert [body for _, _, body in links.sent] == [[1], [2]]


async def test_an_answer_to_an_election_that_is_over_is_dropped() -> None:
    """The answer arrives after its election: it must not rank candidates of a later one."""

    links = FakeLinks({1: [3, 7]})
    links.gate.clear()
    answered: list[int] = []
    found = positions(links, lambda: answered.append(1))
    found.want(1, ["b"])
    found.send()
    await eventually(lambda: links.sent)
    found.forget(1)
    links.gate.set()
    await eventually(lambda: answered)
    assert found.of(1) == {}


@pytest.mark.parametrize("answer", [b"\xc1", 7, {"x": [1, 2]}, {1: [1]}, {1: [1, -2]}, {1: 5}, {-1: [1, 2]}])
async def test_an_answer_of_another_form_counts_as_none(answer: Any) -> None:
    """The node is asked again, and no part of the answer is used."""

    links = FakeLinks(answer)
    answered: list[int] = []
    found = positions(links, lambda: answered.append(1))
    found.want(1, ["b"])
    found.send()
    await eventually(lambda: answered)
    assert found.of(1) == {}


def promotions(links: FakeLinks, received: list[int] | None = None) -> Promotions:
    """The promotions of node a."""
    calls = [] if received is None else received
    return Promotions(node="a", links=links, on_received=lambda: calls.append(1))


async def test_promotions_are_sent_together_and_until_the_controller_has_them() -> None:
    """Without a known controller they are kept. If it is not reached they are sent again, with later ones, the newest
    of each partition."""

    links = FakeLinks(failures=2)
    found = promotions(links)
    found.announce(1, Promoted(5, "a", 7, 51))
    found.announce(2, Promoted(5, "a", 7, 51))
    assert not links.sent
    found.learn("b", {1, 2})
    await eventually(lambda: links.sent)
    found.announce(1, Promoted(6, "a", 7, 51))
    await eventually(lambda: len(links.sent) == 3)
    assert links.sent[0] == ("b", "promoted", [[1, 5, "a", 7, 51], [2, 5, "a", 7, 51]])
    assert sorted(links.sent[-1][2]) == [[1, 6, "a", 7, 51], [2, 5, "a", 7, 51]]
    await asyncio.sleep(0.01)
    found.learn("b", {1, 2})
    await asyncio.sleep(0.01)
    assert len(links.sent) == 3
    await found.stop()


async def test_a_new_controller_gets_the_promotions_that_the_old_one_missed() -> None:
    """The old controller is gone; when its successor is known, it gets the promotion."""

    links = FakeLinks(failures=1)
    found = promotions(links)
    found.learn("b", {1})
    found.announce(1, Promoted(5, "a", 7, 51))
    await eventually(lambda: links.sent)
    found.learn("c", {1})
    await eventually(lambda: len(links.sent) == 2)
    assert [node for node, _, _ in links.sent] == ["b", "c"]
    await found.stop()


async def test_the_controller_gets_promotions_of_its_own_node() -> None:
    """Nothing is sent over a link; a promotion meant for the previous controller is not sent any more."""

    links = FakeLinks()
    received: list[int] = []
    found = promotions(links, received)
    found.announce(1, Promoted(5, "a", 7, 51))
    found.learn("a", {1})
    found.announce(1, Promoted(6, "a", 7, 51))
    assert found.newest(1) == ((6, "a", 7, 51),)
    assert (received, links.sent) == ([1], [])


async def test_only_the_newest_promotion_of_partitions_that_exist_is_kept() -> None:
    """Late ones of older epochs change nothing, unknown partitions take no memory, and removed ones are dropped."""

    found = promotions(FakeLinks())
    found.learn("a", {1, 2})
    for epoch in (6, 5):
        await found.receive("b", msgpack.packb([[1, epoch, "b", 8, 52], [3, epoch, "b", 8, 52]]))
    assert found.newest(1) == ((6, "b", 8, 52),)
    assert found.newest(3) == ()
    found.learn("a", {2, 3})
    assert found.newest(1) == found.newest(3) == ()


async def test_a_promotion_is_accepted_only_from_its_own_node() -> None:
    """A promotion is believed from the node that it names."""

    found = promotions(FakeLinks())
    found.learn("a", {1})
    with pytest.raises(BadInput, match=r"\[partition, epoch, 'b', inc, gen\]"):
        await found.receive("b", msgpack.packb([[1, 6, "c", 8, 52]]))
    assert found.newest(1) == ()
