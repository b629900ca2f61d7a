"""The times since which nodes are down."""

from __future__ import annotations

from isthmus.node.services.downtimes import Downtimes


def test_a_node_is_down_since_it_left_or_since_the_first_reading() -> None:
    """Nothing is known before the first reading; a node that lives is not down; one that comes back and leaves again is
    down since the second time."""
    downtimes = Downtimes()
    assert downtimes.since_ms("n2") is None
    downtimes.learn(["n1", "n2"], 1_000)
    assert [downtimes.since_ms(node) for node in ("n1", "n2", "n3")] == [None, None, 1_000]
    downtimes.learn(["n1"], 2_000)
    downtimes.learn(["n1"], 3_000)
    assert downtimes.since_ms("n2") == 2_000
    downtimes.learn(["n1", "n2"], 4_000)
    assert downtimes.since_ms("n2") is None
    downtimes.learn([], 5_000)
    assert downtimes.since_ms("n2") == 5_000
