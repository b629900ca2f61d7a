"""Bucket types that the cluster that fetches has, as its nodes report them (pure; docs/protocol.md R-TYPE)."""

from __future__ import annotations

from typing import Final

REPORT_VALID_MS: Final = 60_000
"""How long a node's report counts: longer than any pause between its fetches, so that one node that does not know a new
type yet does not hold it back for the nodes that do."""

NODES_MAX: Final = 64
"""Nodes whose reports are kept, the newest."""

_NONE: Final[frozenset[bytes]] = frozenset()


class SinkTypes:
    """Reports of the nodes of one sink cluster. A node of an older version reports None: it does not send its types."""

    __slots__ = ("_lacking", "_reports", "known")

    def __init__(self) -> None:
        self._reports: dict[str, tuple[frozenset[bytes] | None, int]] = {}
        """Node -> its types, and when it reported them."""
        self._lacking: dict[str, frozenset[bytes]] = {}
        """Node -> types that it lacks and other nodes have."""
        self.known: frozenset[bytes] | None = None
        """Types that some node has; None while some node does not send its types, or none has reported."""

    def __len__(self) -> int:
        return len(self._reports)

    def report(self, node: str, types: frozenset[bytes] | None, now_ms: int) -> bool:
        """Note a node's report. Returns whether reports have changed or expired."""
        before = self._reports.pop(node, None)
        self._reports[node] = (types, now_ms)
        old = [name for name, (_, reported_ms) in self._reports.items() if now_ms - reported_ms > REPORT_VALID_MS]
        for name in old or list(self._reports)[: max(0, len(self._reports) - NODES_MAX)]:
            del self._reports[name]
        changed = bool(old) or before is None or before[0] != types
        if changed:
            self._update()
        return changed

    def clear(self) -> None:
        """Forget all reports: another cluster fetches now."""
        self._reports.clear()
        self._update()

    def _update(self) -> None:
        reported = [types for types, _ in self._reports.values() if types is not None]
        every = _NONE.union(*reported)
        self.known = every if reported and len(reported) == len(self._reports) else None
        self._lacking = {
            node: lacking
            for node, (types, _) in self._reports.items()
            if types is not None and (lacking := every - types)
        }

    def lacks(self, bucket_type: bytes) -> bool:
        """Whether the cluster lacks a bucket type, as far as its nodes report."""
        return self.known is not None and bucket_type not in self.known

    def lacking_at(self, node: str) -> frozenset[bytes]:
        """Types that a node lacks and other nodes have."""
        return self._lacking.get(node, _NONE) if self._lacking else _NONE
