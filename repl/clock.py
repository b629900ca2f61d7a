"""The one place that reads the machine's clocks (`repl.model.ports.TimeSource`)."""

from __future__ import annotations

import time


class SystemTime:
    """CLOCK_BOOTTIME for timers (it counts suspend: docs/protocol.md H26), the wall clock for what people read."""

    def now_ms(self) -> int:
        """Monotonic milliseconds; only differences mean something."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000
