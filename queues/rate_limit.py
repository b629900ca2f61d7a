"""Rate limits: two token buckets, of bytes and of changes per second (pure; times come in).

Limits what a queue serves on one node, and what a node's sink fetches (`sink.worker_pool`).

A fetch asks for no more than the buckets hold. The returned changes are taken out, even below zero (a single large
object is still sent), and no fetch begins until the buckets are above zero again. So the rate holds over any few
seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

BURST_S: Final = 1.0
"""Capacity of a bucket: one second's worth, so that an idle link starts at once and no burst is long."""

ACHIEVED_S: Final = 10
"""Seconds over which the achieved rate is measured."""


class Rates(NamedTuple):
    """Limits per second; 0: none."""

    bytes: int = 0
    objects: int = 0


_NO_LIMIT: Final = Rates()


def rates_shown(rates: Rates) -> dict[str, int | None]:
    """Limits for listings; None: no limit."""
    return {"bytes_per_second": rates.bytes or None, "objects_per_second": rates.objects or None}


@dataclass(slots=True)
class _Bucket:
    rate: int
    level: float
    at_ms: int

    def fill(self, now_ms: int) -> None:
        self.level = min(self.rate * BURST_S, self.level + self.rate * (now_ms - self.at_ms) / 1000)
        self.at_ms = now_ms

    def empty_for_ms(self) -> int:
        """How long until the level is above zero."""
        return 0 if not self.rate or self.level > 0 else int(-self.level / self.rate * 1000) + 1


class Throttle:
    """The limits of one queue, or of the sink, on one node. For one thread at a time."""

    def __init__(self, rates: Rates, now_ms: int) -> None:
        self._began_ms = now_ms
        self._until_ms = now_ms
        self._binding = ""
        self._seconds: deque[tuple[int, int, int]] = deque(maxlen=ACHIEVED_S + 1)
        """(second, bytes, changes), newest last."""
        self.throttled_ms = 0
        """Total time in which no fetch could begin because of a limit."""
        self.change(rates, now_ms)

    def change(self, rates: Rates, now_ms: int) -> None:
        """Set other limits, with full buckets."""
        self.throttled_ms -= max(0, self._until_ms - now_ms)
        self._until_ms, self._binding = now_ms, ""
        self.rates = rates
        self._bytes = _Bucket(rates.bytes, rates.bytes * BURST_S, now_ms)
        self._objects = _Bucket(rates.objects, rates.objects * BURST_S, now_ms)

    def wait_ms(self, now_ms: int) -> int:
        """How long no fetch may begin; 0: one may begin now."""
        return max(0, self._until_ms - now_ms)

    def allowance(self, count: int, size: int, now_ms: int) -> tuple[int, int]:
        """(changes, bytes) that a fetch may ask for now: at most `count` and `size`, at least one of each."""
        if self.rates == _NO_LIMIT:
            return count, size
        for bucket in (self._bytes, self._objects):
            bucket.fill(now_ms)
        if self.rates.objects:
            count = min(count, max(1, int(self._objects.level)))
        if self.rates.bytes:
            size = min(size, max(1, int(self._bytes.level)))
        return count, size

    def spend(self, count: int, size: int, now_ms: int) -> None:
        """Take out what a fetch returned: `count` changes in `size` bytes."""
        second = now_ms // 1000
        if self._seconds and self._seconds[-1][0] == second:
            _, had_bytes, had_objects = self._seconds.pop()
            self._seconds.append((second, had_bytes + size, had_objects + count))
        else:
            self._seconds.append((second, size, count))
        if self.rates == _NO_LIMIT:
            return
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
        """The limit that delayed a fetch within the last ACHIEVED_S: "bytes", "objects", or ""."""
        return self._binding if now_ms - self._until_ms < ACHIEVED_S * 1000 else ""

    def as_dict(self, now_ms: int) -> dict[str, Any]:
        """For listings: configured limits, the binding one, achieved rates, seconds throttled."""
        recent = [entry for entry in self._seconds if entry[0] > now_ms // 1000 - ACHIEVED_S]
        over_s = max(1.0, min(ACHIEVED_S, (now_ms - self._began_ms) / 1000))
        return {
            "configured": rates_shown(self.rates),
            "binding": self.binding(now_ms) or None,
            "achieved": {
                "bytes_per_second": sum(entry[1] for entry in recent) / over_s,
                "objects_per_second": sum(entry[2] for entry in recent) / over_s,
            },
            "throttled_seconds": max(0, self.throttled_ms - self.wait_ms(now_ms)) / 1000,
        }
