"""The share of a core that an event loop takes, as a node tells it."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.repl.controller import node_loads
from isthmus.repl.controller.node_loads import METHOD, SPAN_S, LoopLoad, NodeLoads


class Clocks:
    """A machine's clocks."""

    now_s = 0.0
    taken_s = 0.0

    def monotonic_s(self) -> float:
        """See Machine."""
        return self.now_s

    def cpu_s(self) -> float:
        """See Machine."""
        return self.taken_s

    def run(self, seconds: float, share: float) -> None:
        """Time passes, a share of it in the loop."""
        self.now_s, self.taken_s = self.now_s + seconds, self.taken_s + seconds * share


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """The clocks that the loads are taken from."""
    found = Clocks()
    monkeypatch.setattr(node_loads, "machine", lambda: found)
    return found


def test_the_share_is_that_of_the_last_seconds(clocks: Clocks) -> None:
    """A mean over SPAN_S, whoever asks how often; also where the clock begins at 0."""
    load = LoopLoad()
    assert load.share() is None
    for _ in range(20):
        clocks.run(1, 0.25)
        load.share()
    assert load.share() == pytest.approx(0.25)
    clocks.run(SPAN_S / 2, 0.75)
    load.share()
    clocks.run(SPAN_S / 2, 0.75)
    assert load.share() == pytest.approx(0.75)


@pytest.mark.parametrize("before", [0.0, 1.0])
def test_the_past_does_not_count_after_a_long_time_without_a_question(clocks: Clocks, before: float) -> None:
    """A node that was drained for an hour, or in a cluster without a controller, tells the share since it is asked
    again: an idle hour would gather leaders under load, a busy one would spread them."""
    load = LoopLoad()
    load.share()
    clocks.run(3_600, before)
    assert load.share() is None
    clocks.run(5, 0.5)
    assert load.share() == pytest.approx(0.5)


@pytest.mark.virtual_time
async def test_a_load_that_a_node_does_not_know_yet_is_unknown_to_the_one_that_asks(clocks: Clocks) -> None:
    """A node that has just started says so, rather than that it is idle; the next answer is known, and wakes."""
    there, woken = NodeLoads("n2", None, lambda: None), []  # type: ignore[arg-type]

    class Links:
        async def request(self, node: str, method: str, body: bytes, _timeout_ms: int) -> bytes:
            return await there.request_handlers()[method](node, body)

    here = NodeLoads("n1", Links(), lambda: woken.append(METHOD))
    here.look(("n1", "n2"), 0)
    await asyncio.sleep(1)
    assert (here.known(("n1", "n2"), 1_000), woken) == ({"n1": None, "n2": None}, [])
    clocks.run(5, 0.5)
    here.look(("n1", "n2"), 5_000)
    await asyncio.sleep(1)
    assert (here.known(("n1", "n2"), 6_000), woken) == ({"n1": 0.5, "n2": 0.5}, [METHOD])
