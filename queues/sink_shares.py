"""Shares of a queue: which partitions of the sink's cluster each of its nodes leads, as the nodes report them (pure).

A node that pushes a change into a partition that another node leads must forward it. So a node's fetch names the
partitions that the node leads, and the queue serves it the windows whose keys lie in them. That is decided by window,
without a look at any key: it needs as many partitions of the bucket type there as here. Where the counts differ, or the
node does not name the bucket type, the node may take everything, and forwards.

    a window is         the node may take from it
    in the node's share at once
    in nobody's share   at once
    in another's share  once SHARE_PATIENCE_MS have passed since a fetch first passed it over, if nothing else waits

Shares save work, and nothing rests on them: a share that is out of date costs a forwarded change or a short wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

SHARE_PATIENCE_MS: Final = 500
"""How long changes wait for the node in whose share they are, and how long a share counts after its node's fetch should
have ended. Well above the pause between two fetches of a node that keeps up, which is one push (tens of ms), and short
for the lag of changes whose node hangs or has reached its own limits. A guess between the two."""

NODES_MAX: Final = 64
"""Nodes whose shares are kept, the newest; a node without a share may take everything."""


class KeyRange(NamedTuple):
    """The keys of partition number `position` of the `total` partitions of a bucket type."""

    position: int
    total: int


class TypeShare(NamedTuple):
    """Partitions of a bucket type that has `total` of them: number `i` is one of them if bit `i` of `led` is set."""

    total: int
    led: int


Share = Mapping[bytes, TypeShare]
"""Bucket type -> the partitions of it that a node leads."""


class SinkShares:
    """Shares of the nodes of one sink cluster."""

    __slots__ = ("_allowed", "_allowed_until_ms", "_reports")

    def __init__(self) -> None:
        self._reports: dict[str, tuple[Share, int]] = {}
        """Node -> its share, and until when it counts."""
        self._allowed: dict[str, Share] = {}
        """Node -> result of `allowed`, good until `_allowed_until_ms`."""
        self._allowed_until_ms = 0

    def report(self, node: str, share: Share | None, wait_ms: int, now_ms: int) -> None:
        """A fetch of a node arrived, and may wait for `wait_ms`. `share` None: the node sends none."""
        before = self._reports.pop(node, None)
        if share is not None:
            self._reports[node] = (share, now_ms + wait_ms + SHARE_PATIENCE_MS)
            if len(self._reports) > NODES_MAX:
                del self._reports[next(iter(self._reports))]
        if before is None or before[0] != share or before[1] <= now_ms:
            self._allowed.clear()

    def forget(self, node: str) -> None:
        """A fetch of a node was cut off: its share counts no more until its next fetch."""
        if self._reports.pop(node, None) is not None:
            self._allowed.clear()

    def clear(self) -> None:
        """Forget all shares: another cluster fetches now."""
        self._reports.clear()
        self._allowed.clear()

    def allowed(self, node: str, now_ms: int) -> Share | None:
        """The partitions that a node may fetch from at once: its own share, and what is in nobody's. None: from all."""
        if node not in self._reports:
            return None
        if now_ms >= self._allowed_until_ms:
            self._allowed.clear()
        if not self._allowed:
            ends = [until_ms for _, until_ms in self._reports.values() if until_ms > now_ms]
            self._allowed_until_ms = min(ends, default=now_ms + SHARE_PATIENCE_MS)
        found = self._allowed.get(node)
        if found is None:
            found = self._allowed[node] = self._computed(node, now_ms)
        return found

    def _computed(self, node: str, now_ms: int) -> Share:
        others = [share for name, (share, until_ms) in self._reports.items() if name != node and until_ms > now_ms]
        allowed: dict[bytes, TypeShare] = {}
        for bucket_type, own in self._reports[node][0].items():
            claimed = 0
            for share in others:
                other = share.get(bucket_type)
                if other is not None and other.total == own.total:
                    claimed |= other.led
            allowed[bucket_type] = TypeShare(own.total, own.led | ~claimed)
        return allowed


def includes(share: Share, bucket_type: bytes, key_range: KeyRange | None) -> bool:
    """Whether a window's keys lie in the share; True, too, where that cannot be decided by partition."""
    of_type = share.get(bucket_type)
    if of_type is None or key_range is None or of_type.total != key_range.total:
        return True
    return bool(of_type.led >> key_range.position & 1)
