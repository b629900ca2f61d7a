"""How much may go a second: two buckets that fill with time, of bytes and of changes. Pure; times come in.

A source queue's of one node, and a node's sink's (`sink.worker_pool`), which fetches.

A fetch asks for no more than the buckets hold; what it brings is taken out, even below empty (a single large object
still comes), and no fetch begins until they have filled up again. So the rate holds over any few seconds, whatever
comes at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

BURST_S: Final = 1.0
"""What an idle bucket saves up: one second's worth, so that a quiet link starts at once and none bursts for long."""

ACHIEVED_S: Final = 10
"""Over how many seconds the achieved rate is told."""


class Rates(NamedTuple):
    """Limits a second; 0: none."""

    bytes: int = 0
    objects: int = 0


@dataclass(slots=True)
class _Bucket:
    rate: int
    level: float
    at_ms: int

    def fill(self, now_ms: int) -> None:
        self.level = min(self.rate * BURST_S, self.level + self.rate * (now_ms - self.at_ms) / 1000)
        self.at_ms = now_ms

    def empty_for_ms(self) -> int:
        """How long until something is in it again."""
        return 0 if not self.rate or self.level > 0 else int(-self.level / self.rate * 1000) + 1


class Throttle:
    """One node's limits. For one thread at a time."""

    def __init__(self, rates: Rates, now_ms: int) -> None:
        self._began_ms = now_ms
        self._until_ms = now_ms
        self._binding = ""
        self._seconds: deque[tuple[int, int, int]] = deque(maxlen=ACHIEVED_S + 1)
        """(second, bytes, changes), the newest last."""
        self.throttled_ms = 0
        """How long no fetch could begin because of a limit, since the start."""
        self.change(rates, now_ms)

    def change(self, rates: Rates, now_ms: int) -> None:
        """Other limits from now on; what the old ones had in store or in debt is forgotten."""
        self.throttled_ms -= max(0, self._until_ms - now_ms)
        self._until_ms, self._binding = now_ms, ""
        self.rates = rates
        self._bytes = _Bucket(rates.bytes, rates.bytes * BURST_S, now_ms)
        self._objects = _Bucket(rates.objects, rates.objects * BURST_S, now_ms)

    def wait_ms(self, now_ms: int) -> int:
        """How long no fetch may begin; 0: it may now."""
        return max(0, self._until_ms - now_ms)

    def room(self, count: int, size: int, now_ms: int) -> tuple[int, int]:
        """(changes, bytes) that a fetch may ask for now, at most those wanted and at least one of each."""
        for bucket in (self._bytes, self._objects):
            bucket.fill(now_ms)
        if self.rates.objects:
            count = min(count, max(1, int(self._objects.level)))
        if self.rates.bytes:
            size = min(size, max(1, int(self._bytes.level)))
        return count, size

    def spent(self, count: int, size: int, now_ms: int) -> None:
        """A fetch brought `count` changes in `size` bytes."""
        second = now_ms // 1000
        if self._seconds and self._seconds[-1][0] == second:
            _, had_bytes, had_objects = self._seconds.pop()
            self._seconds.append((second, had_bytes + size, had_objects + count))
        else:
            self._seconds.append((second, size, count))
        waits = []
        for name, bucket, used in (("bytes", self._bytes, size), ("objects", self._objects, count)):
            if not bucket.rate:
                continue
            bucket.fill(now_ms)
            bucket.level -= used
            waits.append((bucket.empty_for_ms(), name))
        wait_ms, name = max(waits, default=(0, ""))
        if wait_ms:
            until_ms = now_ms + wait_ms
            self.throttled_ms += max(0, until_ms - max(now_ms, self._until_ms))
            self._until_ms = max(self._until_ms, until_ms)
            self._binding = name

    def binding(self, now_ms: int) -> str:
        """What held back a fetch within the time that the achieved rate is of: "bytes", "objects", or ""."""
        return self._binding if now_ms - self._until_ms < ACHIEVED_S * 1000 else ""

    def shown(self, now_ms: int) -> dict[str, Any]:
        """Configured, effective (which limit binds), achieved, seconds throttled."""
        recent = [entry for entry in self._seconds if entry[0] > now_ms // 1000 - ACHIEVED_S]
        over_s = max(1.0, min(ACHIEVED_S, (now_ms - self._began_ms) / 1000))
        return {
            "configured": {
                "bytes_per_second": self.rates.bytes or None,
                "objects_per_second": self.rates.objects or None,
            },
            "binding": self.binding(now_ms) or None,
            "achieved": {
                "bytes_per_second": sum(entry[1] for entry in recent) / over_s,
                "objects_per_second": sum(entry[2] for entry in recent) / over_s,
            },
            "throttled_seconds": max(0, self.throttled_ms - self.wait_ms(now_ms)) / 1000,
        }
