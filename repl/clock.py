"""The machine's clocks (`repl.model.ports.TimeSource`); no other module reads them."""

from __future__ import annotations

import time


class SystemTime:
    """CLOCK_BOOTTIME for timers (it counts suspend: docs/protocol.md H26), the wall clock for display."""

    def now_ms(self) -> int:
        """Monotonic milliseconds; only differences are meaningful."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000
