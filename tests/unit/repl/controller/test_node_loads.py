"""The share of a core that an event loop takes, as a node tells it."""

from __future__ import annotations

import pytest

from isthmus.repl.controller import node_loads
from isthmus.repl.controller.node_loads import SPAN_S, LoopLoad


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
    assert load.share() == 0
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
    assert load.share() == 0
    clocks.run(5, 0.5)
    assert load.share() == pytest.approx(0.5)
