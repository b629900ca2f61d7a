"""How far the clocks of other nodes and clusters are from this node's, learned from answers that carry a wall clock.

As NTP does: the other clock was read between the request and the answer, so the offset is known up to half of the
round trip. The sample with the smallest bound of the last KEEP_MS counts; one that contradicts it, since a clock was
set, replaces it. Nothing is decided by it but what is shown and how far a range of times is widened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from isthmus.repl.machine import MemoryLock
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.telemetry import Family, Sample

KEEP_MS: Final = 60_000
"""How long a good sample counts before a worse one replaces it: clocks drift by a few ms an hour at most."""

STALE_MS: Final = 15 * 60_000
"""Age from which an offset is not shown any more: a clock may have been set meanwhile. A guess."""

OTHERS_MAX: Final = 1_024
"""Most nodes and peers that are remembered; beyond it the one that was heard least recently is dropped."""

WRONG_MS: Final = 1_000
"""Offset beyond its bound from which a clock is called wrong: NTP keeps clocks within some ms, and times are shown in
seconds."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_clock_offset_seconds": Family(
        "Clock of another node of the cluster (`node`), or of the cluster at the other end of a link (`peer`, its "
        "address), minus this node's clock; the other label is empty. Absent: not measured in the last 15 minutes.",
        "seconds",
        "between nodes",
        ("node", "peer"),
    ),
    "isthmus_clock_offset_bound_seconds": Family(
        "How far isthmus_clock_offset_seconds may be off: half of the round trip of its measurement.",
        "seconds",
        "between nodes",
        ("node", "peer"),
    ),
}
"""Name -> metric definition (see repl.telemetry)."""


class ClockOffset(NamedTuple):
    """Another clock minus this node's, in ms, known up to `bound_ms`; measured at `at_ms` (monotonic)."""

    offset_ms: float
    bound_ms: float
    at_ms: int

    @property
    def least_ms(self) -> float:
        """How far the clocks differ at least."""
        return max(0.0, abs(self.offset_ms) - self.bound_ms)

    @property
    def most_ms(self) -> float:
        """How far the clocks differ at most."""
        return abs(self.offset_ms) + self.bound_ms


class ClockOffsets:
    """Offsets by name of the other: nodes, or addresses of peers. For any thread."""

    def __init__(self, label: str, time: TimeSource) -> None:
        """`label`: the label of the metrics that has the names, `node` or `peer`."""
        self._label = label
        self._time = time
        self._samples: dict[str, ClockOffset] = {}
        self._lock = MemoryLock()

    def now_ms(self) -> int:
        """Monotonic milliseconds, to measure a round trip."""
        return self._time.now_ms()

    def answered(self, name: str, wall_ms: int, round_trip_ms: float) -> None:
        """Note an answer that has just come: the other clock said `wall_ms` when it was sent."""
        bound_ms = max(0.0, round_trip_ms) / 2
        now_ms = self._time.now_ms()
        new = ClockOffset(wall_ms - (self._time.wall_ms() - bound_ms), bound_ms, now_ms)
        with self._lock:
            old = self._samples.pop(name, None)  # the newest go to the end
            if old is not None and now_ms - old.at_ms <= KEEP_MS and old.bound_ms < new.bound_ms:
                agree = abs(new.offset_ms - old.offset_ms) <= new.bound_ms + old.bound_ms + SLACK_MS
                new = old if agree else new
            self._samples[name] = new
            if len(self._samples) > OTHERS_MAX:
                del self._samples[next(iter(self._samples))]

    def known(self, names: Iterable[str] | None = None) -> dict[str, ClockOffset]:
        """The offsets that are not stale, of `names` or of all."""
        oldest_ms = self._time.now_ms() - STALE_MS
        wanted = None if names is None else set(names)
        with self._lock:
            samples = dict(self._samples)
        return {
            name: one for name, one in samples.items() if one.at_ms >= oldest_ms and (wanted is None or name in wanted)
        }

    def metrics(self, names: Iterable[str] | None = None) -> Iterator[Sample]:
        """Samples of `known`; their help is HELP."""
        for name, one in self.known(names).items():
            labels = {"node": "", "peer": "", self._label: name}
            yield "isthmus_clock_offset_seconds", labels, one.offset_ms / 1000
            yield "isthmus_clock_offset_bound_seconds", labels, one.bound_ms / 1000


SLACK_MS: Final = 2.0
"""Two samples that differ by their bounds and this much agree: clocks are read in whole milliseconds."""
