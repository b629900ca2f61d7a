"""How long a thread that scans the store sleeps between two slices, so that requests of clients are not delayed.

Such a thread competes with the event loop for the interpreter's lock. It sleeps the longer, the more CPU time the other
threads of the process use. Pure: the caller measures and sleeps.
"""

from __future__ import annotations

from typing import Final

REST_SHARE: Final = 0.1
"""Sleep after a slice, as a share of the slice's duration, on an idle node."""

BUSY_FREE: Final = 0.05
"""Share of a core that other threads may use on an idle node: heartbeats, metrics, a checkpoint."""

REST_SHARE_BUSY: Final = 16.0
"""Added share for each core that other threads use beyond BUSY_FREE: at a sixth of a core, one third of the time is
spent reading."""

REST_SHARE_MAX: Final = 16.0
"""Upper bound of the share, so that a build or a stream of rows ends however busy the node is."""

BUSY_OVER_S: Final = 0.05
"""Time constant of the moving average of CPU use: several requests long."""


class TreeThrottle:
    """Computes the sleep after each slice; used by one thread."""

    def __init__(self) -> None:
        self._looked: tuple[float, float] | None = None
        self._busy = 0.0

    def rest_s(self, worked_s: float, now_s: float, others_s: float) -> float:
        """Seconds to sleep after a slice of `worked_s`; `others_s`: CPU time of all other threads so far."""
        if self._looked is not None:
            since_s = max(1e-6, now_s - self._looked[0])
            busy = (others_s - self._looked[1]) / since_s
            self._busy += (busy - self._busy) * min(1.0, since_s / BUSY_OVER_S)
        self._looked = now_s, others_s
        return worked_s * min(REST_SHARE_MAX, REST_SHARE + REST_SHARE_BUSY * max(0.0, self._busy - BUSY_FREE))
