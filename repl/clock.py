"""The machine's clocks in milliseconds (`repl.model.ports.TimeSource`)."""

from __future__ import annotations

from isthmus.repl.machine import machine


class SystemTime:
    """CLOCK_BOOTTIME for timers (it counts suspend: docs/protocol.md H26), the wall clock for display."""

    def now_ms(self) -> int:
        """Monotonic milliseconds; only differences are meaningful."""
        return machine().boottime_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return machine().wall_ns() // 1_000_000
