"""How long a thread that reads the whole store rests between two slices, so that clients are answered meanwhile.

Reading for a tree or for a batch job takes turns with the event loop in the interpreter, and a request has many
turns; so it rests the longer the more the process's other threads do. Pure: the caller measures and sleeps.
"""

from __future__ import annotations

from typing import Final

REST_SHARE: Final = 0.1
"""What it rests after each slice, as a share of what the slice took, while the process does nothing else."""

BUSY_FREE: Final = 0.05
"""A share of a core that the other threads may take and be called idle: heartbeats, metrics, a checkpoint."""

REST_SHARE_BUSY: Final = 16.0
"""And more, by how much of a core they take beyond: at a sixth of one, it works a third of the time."""

REST_SHARE_MAX: Final = 16.0
"""And no more than this, so that a build, or a stream of rows, comes to its end however busy the node is."""

BUSY_OVER_S: Final = 0.05
"""Time over which that is looked at: some requests long."""


class TreeThrottle:
    """How long to rest. Belongs to the one thread that reads."""

    def __init__(self) -> None:
        self._looked: tuple[float, float] | None = None
        self._busy = 0.0

    def rest_s(self, worked_s: float, now_s: float, others_s: float) -> float:
        """How long to rest after a slice that took `worked_s`; `others_s` is the CPU time of all other threads."""
        if self._looked is not None:
            since_s = max(1e-6, now_s - self._looked[0])
            busy = (others_s - self._looked[1]) / since_s
            self._busy += (busy - self._busy) * min(1.0, since_s / BUSY_OVER_S)
        self._looked = now_s, others_s
        return worked_s * min(REST_SHARE_MAX, REST_SHARE + REST_SHARE_BUSY * max(0.0, self._busy - BUSY_FREE))
