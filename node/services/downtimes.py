"""Since when nodes of this cluster are down, as this node has observed: an upper bound, by its own wall clock."""

from __future__ import annotations

from collections.abc import Iterable


class Downtimes:
    """Follows the readings of the live nodes. One entry for each name of a node that ever left."""

    def __init__(self) -> None:
        self._live: set[str] = set()
        self._left_ms: dict[str, int] = {}
        self._first_ms: int | None = None

    def learn(self, live: Iterable[str], now_ms: int) -> None:
        """Record that these nodes are alive at `now_ms` (wall clock)."""
        self._first_ms = now_ms if self._first_ms is None else self._first_ms
        now = set(live)
        self._left_ms |= dict.fromkeys(self._live - now, now_ms)
        self._live = now

    def since_ms(self, node: str) -> int | None:
        """The latest moment at which `node` can have gone down: when it left, or, for a node that was never alive here,
        the first reading. None while it is alive, and before the first reading."""
        if node in self._live:
            return None
        return self._left_ms.get(node, self._first_ms)
