"""A node's history in memory: an hour at 2 s and a day at 1 min, in a bounded number of columns.

    add(readings)    -> a place of the hour; counters become rates since the sample before
    minute is over   -> its samples become one place of the day
    read(span, keys) -> the places of a span, NaN where the node has no sample

Places are numbered by the wall clock, so that the places of all nodes are those of the same time. Places without a
sample are unknown: before the start, while the process did not run, and after the clock was set forward. A clock that
is set back overwrites the time that it repeats, and what lies after it is forgotten.

Pure: both clocks come in. Memory: MEMORY_LIMIT_BYTES holds for everything here. A column takes COLUMN_BYTES once it has
been measured, and is given back when it was not measured for a day. At the limit further columns are left out and
counted (`left_out`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from isthmus.config.settings import MB
from isthmus.node.services.history_series import (
    ALL_TYPES,
    COLUMNS,
    SAMPLED,
    HistoryColumn,
    Merge,
    Scope,
    Values,
    merge,
)


class HistorySpan(NamedTuple):
    """A resolution of the history: a number of places of `step_ms` each."""

    name: str
    step_ms: int
    places: int


HOUR: Final = HistorySpan("hour", 2_000, 1_800)
DAY: Final = HistorySpan("day", 60_000, 1_440)
SPANS: Final[Mapping[str, HistorySpan]] = {span.name: span for span in (HOUR, DAY)}

MEMORY_LIMIT_BYTES: Final = 16 * MB
"""Memory of a node's history. 14 bucket types, 10 queues and 10 links with every kind of entry need 15.5 MB."""

OVERHEAD_BYTES: Final = 700
"""Memory of a column beside its places: its keys and numbers in dictionaries, and those of the sample that is being
added. Measured; a test compares."""

COLUMN_BYTES: Final = 4 * (HOUR.places + DAY.places) + OVERHEAD_BYTES

_PER_MINUTE: Final = DAY.step_ms // HOUR.step_ms

_BY_TYPE: Final = Scope.BUCKET_TYPE

Key = tuple[str, str]
"""Name of a column, and its label."""

Reading = tuple[HistoryColumn, str, float]
"""Column, label, value; the value of a counter is its total."""


class Ring:
    """The places of one span. Rows are columns; `newest` is the number of the newest place."""

    def __init__(self, span: HistorySpan, rows: int) -> None:
        self.span = span
        self.newest: int | None = None
        # Memory that is never written is not taken: rows become resident as columns are added.
        self.values: Values = np.empty((rows, span.places), np.float32)

    def open(self, place: int, used: int) -> None:
        """Make `place` the newest one, of the first `used` rows. The places between it and the newest before become
        unknown: they have no sample, or the clock repeats their time."""
        if place == self.newest:
            return
        if self.newest is None:
            first = last = place
        else:
            first, last = (self.newest + 1, place) if place > self.newest else (place, self.newest)
        count = self.span.places
        self.values[:used, np.arange(max(first, last - count + 1), last + 1) % count] = np.nan
        self.newest = place

    def read(self, row: int, first: int) -> Values:
        """The places of one row from `first` on, as many as the span has."""
        count = self.span.places
        places = np.full(count, np.nan, np.float32)
        if self.newest is not None:
            begin, end = max(first, self.newest - count + 1), min(first + count, self.newest + 1)
            if begin < end:
                numbers = np.arange(begin, end)
                places[numbers - first] = self.values[row, numbers % count]
        return places


class History:
    """The rings of one node, and the newest sample."""

    def __init__(self, limit_bytes: int = MEMORY_LIMIT_BYTES) -> None:
        self._rows_max = limit_bytes // COLUMN_BYTES
        self._rings = {span.name: Ring(span, self._rows_max) for span in (HOUR, DAY)}
        self._rows: dict[Key, int] = {}
        self._free: list[int] = []
        self._merges: list[Merge] = []
        """By row: how the samples of a minute become one number."""
        self._measured: dict[Key, int] = {}
        """The minute in which a column was measured last."""
        self._totals: dict[Key, float] = {}
        self._sampled_ms: int | None = None
        self._minute: int | None = None
        self._left_out: set[Key] = set()
        self.newest: dict[Key, float] = {}
        """The newest sample; empty before the second reading, since rates need two."""
        self.newest_ms = 0
        """Wall clock of the newest sample."""

    @property
    def left_out(self) -> int:
        """Columns of the newest sample that are not kept, for lack of memory."""
        return len(self._left_out)

    def size_bytes(self) -> int:
        """Memory taken by the columns."""
        return len(self._merges) * COLUMN_BYTES

    def labels(self, scope: Scope) -> list[str]:
        """The labels that columns of a scope have."""
        return sorted({label for name, label in self._rows if COLUMNS[name].scope is scope and label != ALL_TYPES})

    def read(self, span: HistorySpan, first: int, key: Key) -> Values | None:
        """`span.places` places of a column from place `first` on; None for a column that is not kept."""
        ring, row = self._rings[span.name], self._rows.get(key)
        if row is not None:
            return ring.read(row, first)
        sampled = self._rows.get((SAMPLED, ALL_TYPES))
        if sampled is None or key in self._left_out or not COLUMNS[key[0]].from_zero:
            return None
        return ring.read(sampled, first) - np.float32(1)

    # -- adding -------------------------------------------------------------------------------------------

    def add(self, readings: Iterable[Reading], now_ms: int, wall_ms: int) -> None:
        """Add a sample: `readings` with all that is known now. The first one only begins the counters."""
        since_ms, self._sampled_ms = self._sampled_ms, now_ms
        values = self._values_of(readings, None if since_ms is None else max(1, now_ms - since_ms))
        if since_ms is None:
            return
        place = wall_ms // HOUR.step_ms
        minute = place // _PER_MINUTE
        if self._minute is not None and minute != self._minute:
            self._end_minute(self._minute)
        self._minute = minute
        hour = self._rings[HOUR.name]
        hour.open(place, len(self._merges))
        self._left_out.clear()
        rows: list[int] = []
        kept: list[float] = []
        for key, value in values.items():
            row = self._rows.get(key)
            if row is None:
                row = self._new_row(key)
                if row is None:
                    self._left_out.add(key)
                    continue
            rows.append(row)
            kept.append(value)
            self._measured[key] = minute
        hour.values[rows, place % HOUR.places] = kept
        self.newest, self.newest_ms = values, wall_ms

    def _values_of(self, readings: Iterable[Reading], span_ms: int | None) -> dict[Key, float]:
        """The numbers of a sample: gauges as they are, counters as rates over `span_ms`, and those over all bucket
        types. Those of single bucket types come last: they are left out first."""
        totals: dict[Key, float] = {}
        by_type: dict[Key, float] = {}
        others: dict[Key, float] = {(SAMPLED, ALL_TYPES): 1.0}
        for column, label, value in readings:
            key = (column.name, label)
            if column.counter:
                totals[key] = totals.get(key, 0) + value
            elif column.scope is _BY_TYPE:
                by_type[key] = value
            else:
                others[key] = value
        before = self._totals
        if span_ms is not None:
            for key, total in totals.items():
                change = total - before.get(key, 0)
                if change >= 0:  # a counter that began again says nothing of the time between
                    (by_type if COLUMNS[key[0]].scope is _BY_TYPE else others)[key] = 1000 * change / span_ms
        kept = self._rows.keys()
        self._totals = totals | {key: before[key] for key in (before.keys() - totals.keys()) & kept}
        whole: dict[Key, float] = {}
        for (name, _), value in by_type.items():
            of_all = (name, ALL_TYPES)
            before_it = whole.get(of_all)
            whole[of_all] = value if before_it is None else merge_two(COLUMNS[name].over_nodes, before_it, value)
        return {**others, **whole, **by_type}

    def _new_row(self, key: Key) -> int | None:
        """A row for a column that has none; None when memory is at its limit."""
        column = COLUMNS[key[0]]
        if self._free:
            row = self._free.pop()
            self._merges[row] = column.over_time
        elif len(self._merges) < self._rows_max:
            row = len(self._merges)
            self._merges.append(column.over_time)
        else:
            return None
        sampled = self._rows.get((SAMPLED, ALL_TYPES))
        for ring in self._rings.values():
            ring.values[row] = np.nan
            if column.from_zero and sampled is not None:
                ring.values[row] = ring.values[sampled] - 1  # 0 where the node had a sample, else unknown
        self._rows[key] = row
        return row

    def _end_minute(self, minute: int) -> None:
        """Merge the samples of a minute into one place of the day, and give back columns without a sample for a day."""
        hour, day = self._rings[HOUR.name], self._rings[DAY.name]
        used = len(self._merges)
        assert hour.newest is not None
        first = minute * _PER_MINUTE
        begin = first % HOUR.places
        samples = hour.values[:used, begin : begin + min(_PER_MINUTE, hour.newest - first + 1)]
        day.open(minute, used)
        for how in (Merge.MEAN, Merge.MAX, Merge.MIN):
            rows = [row for row, of in enumerate(self._merges) if of is how]
            day.values[rows, minute % DAY.places] = merge(how, samples[rows], 1)
        old = [key for key, measured in self._measured.items() if measured < minute - DAY.places]
        for key in old:
            del self._measured[key]
            self._totals.pop(key, None)
            self._free.append(self._rows.pop(key))


def merge_two(how: Merge, one: float, other: float) -> float:
    """`other` merged into `one`, which is NaN as long as there is none."""
    if math.isnan(one):
        return other
    match how:
        case Merge.MAX:
            return max(one, other)
        case Merge.MIN:
            return min(one, other)
        case _:
            return one + other
