"""Consumers of a queue on one node: which nodes of the sink's cluster fetch from it, and when they last did (pure)."""

from __future__ import annotations

from typing import Final, NamedTuple

CONSUMERS_MAX: Final = 64
"""Nodes that are kept, those that fetched last; a further one replaces the one that has been silent for longest."""


class Consumer(NamedTuple):
    """Fetches of one node, since this node serves the queue to its cluster. `given` counts changes, repeats included;
    `given_ms` is the time of its last fetch that was given any, None for none."""

    fetched_ms: int
    given: int = 0
    given_ms: int | None = None


class Consumers:
    """The nodes of one sink cluster."""

    __slots__ = ("_by_node",)

    def __init__(self) -> None:
        self._by_node: dict[str, Consumer] = {}
        """By the time of the last fetch, the newest last."""

    def fetched(self, node: str, now_ms: int) -> None:
        """A fetch of a node arrived that asks for changes."""
        before = self._by_node.pop(node, None)
        self._by_node[node] = Consumer(now_ms) if before is None else before._replace(fetched_ms=now_ms)
        if len(self._by_node) > CONSUMERS_MAX:
            del self._by_node[next(iter(self._by_node))]

    def given(self, node: str, count: int, now_ms: int) -> None:
        """A batch of `count` changes was given to a node."""
        before = self._by_node.get(node)
        if before is not None:
            self._by_node[node] = before._replace(given=before.given + count, given_ms=now_ms)

    def clear(self) -> None:
        """Forget all: another cluster fetches now."""
        self._by_node.clear()

    def by_node(self) -> dict[str, Consumer]:
        """Node -> its fetches."""
        return dict(self._by_node)
