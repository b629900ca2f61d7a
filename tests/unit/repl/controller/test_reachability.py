"""Which nodes cannot be dialled, by the connections of one node (R-REACHED)."""

from __future__ import annotations

from isthmus.repl.controller.reachability import UNREACHED_MS, Reachability

ALL = ("n1", "n2", "n3")


def test_a_node_is_unreached_after_a_while_without_a_connection_that_was_dialled_to_it() -> None:
    """Its own connection does not count, a short break is forgotten, and so is a node that is not registered."""
    seen = Reachability("n1")
    seen.learn(ALL, ["n2"], ["n2", "n3"], 0)
    assert seen.unreached(UNREACHED_MS - 1) == frozenset()
    assert seen.unreached(UNREACHED_MS) == {"n3"}
    seen.learn(ALL, ["n2", "n3"], ["n2", "n3"], UNREACHED_MS)
    seen.learn(ALL, ["n2"], ["n2", "n3"], UNREACHED_MS + 1)
    assert seen.unreached(2 * UNREACHED_MS) == frozenset()
    assert seen.unreached(2 * UNREACHED_MS + 1) == {"n3"}
    seen.learn(("n1", "n2"), ["n2"], ["n2"], 3 * UNREACHED_MS)
    assert seen.unreached(4 * UNREACHED_MS) == frozenset()


def test_a_node_learns_that_it_cannot_be_dialled_itself() -> None:
    """It has dialled others, and none of these has dialled it; one that did suffices."""
    seen = Reachability("n1")
    seen.learn(ALL, ["n2", "n3"], [], 0)
    assert seen.unreached(UNREACHED_MS) == {"n1"}
    seen.learn(ALL, ["n2", "n3"], ["n3"], UNREACHED_MS)
    assert seen.unreached(2 * UNREACHED_MS) == frozenset()


def test_a_node_that_reaches_no_other_says_nothing() -> None:
    """Its own network may be at fault: it would prefer itself to all the others."""
    seen = Reachability("n1")
    seen.learn(ALL, [], [], 0)
    assert seen.unreached(10 * UNREACHED_MS) == frozenset()
    seen.learn(("n1",), [], [], 0)
    assert seen.unreached(10 * UNREACHED_MS) == frozenset()
