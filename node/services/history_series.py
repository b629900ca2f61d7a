"""The series of a node's history: their names, units and meanings, and the columns that they are computed from.

The history keeps columns: numbers that can be added up, or whose maximum or minimum can be taken, over time and over
nodes. A series is what operators see. Most are one column; an average is a quotient of two, so that the average of a
minute or of a cluster is computed from sums. Names with a label are FAMILY:LABEL. docs/metrics.md is generated from
SERIES.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from isthmus.config.text import no_such
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.runtime.latency import KIND_NAMES
from isthmus.repl.runtime.metrics import PARTS

Values = npt.NDArray[np.float32]
"""One number a place; NaN: unknown."""

SAMPLED: Final = "sampled"
"""The column that is 1 wherever a node has a sample."""

ISR_BASE: Final = 1_000
"""A worst ISR is one number, so that its minimum is the worst one: ISR_BASE * (members - min-ISR) + members."""

ALL_TYPES: Final = ""
"""The label of the columns over all bucket types of a node, and of the columns without a label."""

TIMED_METHODS: Final = ("get", "put")
"""Methods of requests of one object whose durations are kept."""

TIMED_SHARES: Final[Mapping[str, float]] = {"p50": 0.5, "p99": 0.99}
"""Name of a percentile -> its share."""


class Scope(Enum):
    """The thing that a column measures; its name is the label, except for the node's own columns."""

    BUCKET_TYPE = "bucket type"
    NODE = "node"
    REQUEST = "request"
    QUEUE = "queue"
    LINK = "link"


class Merge(Enum):
    """How several numbers of one column become one."""

    MEAN = "mean"
    SUM = "sum"
    MAX = "max"
    MIN = "min"


class HistoryColumn(NamedTuple):
    """A number of a sample. `over_time` merges the samples of a minute, `over_nodes` those of several nodes or bucket
    types. A `counter` is given as its total and kept as a rate. `from_zero`: as long as it was never reported, nothing
    had happened."""

    name: str
    scope: Scope
    over_time: Merge
    over_nodes: Merge
    counter: bool = False
    from_zero: bool = False


class Formula(Enum):
    """How a series is computed from its columns."""

    VALUE = "the column"
    QUOTIENT = "the first by the second"
    ISR_MEMBERS = "the members of the worst ISR"
    ISR_MIN = "the min-ISR of the worst ISR"


class Series(NamedTuple):
    """A series as operators see it. `columns` are names of COLUMNS."""

    name: str
    scope: Scope
    unit: str
    meaning: str
    columns: tuple[str, ...]
    formula: Formula = Formula.VALUE


Merges = tuple[Merge, Merge]
"""How a column is merged over time, and how over nodes."""

_SUM: Final[Merges] = (Merge.MEAN, Merge.SUM)
_PEAK: Final[Merges] = (Merge.MAX, Merge.MAX)
_SUM_OF_PEAKS: Final[Merges] = (Merge.MAX, Merge.SUM)


class _Definitions:
    """All columns and series. A series that is one column is defined together with it."""

    def __init__(self) -> None:
        self.columns: dict[str, HistoryColumn] = {}
        self.series: dict[str, Series] = {}
        self._replogs()
        self._node()
        self._queues_and_links()

    def _column(
        self, name: str, scope: Scope, merges: Merges = _SUM, *, counter: bool = False, from_zero: bool = False
    ) -> None:
        self.columns[name] = HistoryColumn(name, scope, *merges, counter, from_zero)

    def _series(self, scope: Scope, name: str, unit: str, meaning: str, formula: Formula, *columns: str) -> None:
        self.series[name] = Series(name, scope, unit, meaning, columns, formula)

    def _gauge(self, scope: Scope, name: str, unit: str, meaning: str, merges: Merges = _SUM) -> None:
        self._column(name, scope, merges)
        self._series(scope, name, unit, meaning, Formula.VALUE, name)

    def _peak(self, scope: Scope, name: str, unit: str, meaning: str) -> None:
        self._gauge(scope, name, unit, meaning, _PEAK)

    def _rate(
        self, scope: Scope, name: str, unit: str, meaning: str, merges: Merges = _SUM, *, from_zero: bool = False
    ) -> None:
        self._column(name, scope, merges, counter=True, from_zero=from_zero)
        self._series(scope, name, unit, meaning, Formula.VALUE, name)

    def _replogs(self) -> None:
        scope, per_s = Scope.BUCKET_TYPE, "entries a second"
        parts = {"leader": "leaders", "isr": "followers in sync", "osr": "replicas out of sync"}
        for part in PARTS:
            of, replicas = parts[part], f"replog.{part}.replicas"
            self._gauge(scope, replicas, "replicas", f"Replicas of this node: {of}.")
            for what, words in (("entries", "entries in the logs"), ("unapplied", "unapplied entries")):
                name = f"replog.{part}.{what}"
                self._column(name, scope)
                mean = f"Mean number of {words} of {of}."
                self._series(scope, f"{name}_average", "entries", mean, Formula.QUOTIENT, name, replicas)
                self._peak(scope, f"{name}_max", "entries", f"Largest number of {words} of one of them.")
        for kind in KIND_NAMES.values():
            name = f"replicate.{kind}"
            entries = f"Entries of kind {kind}"
            self._times(name, f"{entries} replicated by leaders here.", "append")
            self._rate(scope, f"{name}.failures_per_s", per_s, f"{entries} that failed.", from_zero=True)
        oldest = "For how long the oldest entry appended by a leader here has waited to apply."
        self._peak(scope, "replicate.oldest_ms", "ms", oldest)
        for prefix in ("apply", *(f"apply.{kind}" for kind in KIND_NAMES.values())):
            kind = prefix.partition(".")[2]
            of = f" of kind {kind}" if kind else ""
            self._times(prefix, f"Entries{of} applied here, by leaders and followers.", "commit")
        self._column("isr.worst", scope, (Merge.MIN, Merge.MIN))
        closest = "Members in sync of the partition led here that is closest to its min-ISR."
        self._series(scope, "isr.members", "replicas", closest, Formula.ISR_MEMBERS, "isr.worst")
        of_it = "Min-ISR of that partition at that moment."
        self._series(scope, "isr.min_isr", "replicas", of_it, Formula.ISR_MIN, "isr.worst")

    def _times(self, prefix: str, meaning: str, since: str) -> None:
        """Number and times of entries; `since`: what their time begins with."""
        scope, per_s, ms_per_s = Scope.BUCKET_TYPE, f"{prefix}.per_s", f"{prefix}.ms_per_s"
        self._rate(scope, per_s, "entries a second", meaning, from_zero=True)
        self._column(ms_per_s, scope, counter=True, from_zero=True)
        mean = f"Their mean time from {since} to applied."
        self._series(scope, f"{prefix}.average_ms", "ms", mean, Formula.QUOTIENT, ms_per_s, per_s)
        self._peak(scope, f"{prefix}.max_ms", "ms", "Their longest time in the last 30 to 60 s.")

    def _node(self) -> None:
        scope = Scope.NODE
        self._column(SAMPLED, scope, _SUM_OF_PEAKS)
        self._rate(scope, "process.cpu_percent", "% of one core", "CPU time of the node's process, all its threads.")
        self._gauge(scope, "process.rss_bytes", "bytes", "Resident memory of the node's process.")
        free = "Free space of the disk with the data directory, read each 30 s."
        self._gauge(scope, "disk.free_bytes", "bytes", free)
        self._gauge(scope, "disk.total_bytes", "bytes", "Size of that disk.")
        self._gauge(scope, "store.size_bytes", "bytes", "Approximate size of the store on disk, read each 30 s.")
        self._gauge(scope, "log.size_bytes", "bytes", "Size of the node's log files.")
        self._rate(scope, "log.syncs_per_s", "syncs a second", "Syncs of log files, without those of preallocation.")
        self._column("log.sync_ms_per_s", scope, counter=True)
        mean = "Mean time of a sync of a log file."
        self._series(scope, "log.sync_average_ms", "ms", mean, Formula.QUOTIENT, "log.sync_ms_per_s", "log.syncs_per_s")
        self._gauge(scope, "partitions.led", "partitions", "Partitions that this node leads.")
        out_of_sync = "Partitions led here with a replica out of sync."
        self._gauge(scope, "partitions.under_replicated", "partitions", out_of_sync, _SUM_OF_PEAKS)
        self._rate(scope, "refusals.per_s", "items a second", "Items refused as retryable.")
        self._gauge(scope, "sink.workers", "workers", "Workers that may fetch at once.")
        self._gauge(scope, "sink.workers_busy", "workers", "Workers that fetch or push.")
        kept = "Changes that were refused for good and are kept for operators."
        self._gauge(scope, "sink.dead_letters", "changes", kept, _SUM_OF_PEAKS)
        for method in TIMED_METHODS:
            for name, words in (("p50", "Median duration"), ("p99", "99th percentile of the duration")):
                meaning = f"{words} of a {method.upper()} of one object, in the last minute."
                self._peak(scope, f"http.{method}.{name}_ms", "ms", meaning)

    def _queues_and_links(self) -> None:
        per_s = "changes a second"
        by_kind = "Items requested, by kind as in `isthmus_requests_total`."
        self._rate(Scope.REQUEST, "requests.per_s", "items a second", by_kind)
        queue, link = Scope.QUEUE, Scope.LINK
        self._gauge(queue, "queue.waiting", "changes", "Real-time changes that wait, as far as they are in memory.")
        bulk = "References that wait at the full-sync and fold priorities."
        self._gauge(queue, "queue.bulk_waiting", "references", bulk)
        self._gauge(queue, "queue.in_flight", "changes", "Changes given to a sink and not acknowledged yet.")
        oldest = "Age of the oldest change in memory that is not acknowledged; 0 when none."
        self._peak(queue, "queue.oldest_age_ms", "ms", oldest)
        self._rate(queue, "queue.served_per_s", per_s, "Changes given to sinks, repeats included.")
        self._rate(queue, "queue.acknowledged_per_s", per_s, "Changes acknowledged by the sink.")
        self._rate(queue, "queue.redelivered_per_s", per_s, "Changes that came back and wait again.")
        self._rate(queue, "queue.given_up_per_s", per_s, "Real-time changes given up; each lies in a gap.")
        gaps = "Gaps that no full-sync has closed; the sum over nodes counts each once."
        self._gauge(queue, "queue.gaps", "gaps", gaps, _SUM_OF_PEAKS)
        self._peak(queue, "queue.suspended", "0 or 1", "1 while serving is suspended.")
        throttled = "Time in which a rate limit held serving back."
        self._rate(queue, "queue.throttled_percent", "% of the time", throttled, (Merge.MEAN, Merge.MAX))
        lag = "Median lag of the last minute; unknown when nothing was stored in it."
        self._peak(link, "sink.lag_p50_ms", "ms", lag)
        self._peak(link, "sink.lag_p99_ms", "ms", "99th percentile of that lag.")
        self._rate(link, "sink.changes_per_s", per_s, "Changes fetched and pushed into this cluster.")
        self._rate(link, "sink.refused_per_s", per_s, "Changes refused for good.")
        failed = "Cycles that failed; nothing of them was acknowledged."
        self._rate(link, "sink.errors_per_s", "cycles a second", failed)
        self._peak(link, "sink.delay_ms", "ms", "Delay of the link before its next fetch.")
        self._peak(link, "sink.suspended", "0 or 1", "1 while an operator has suspended the link.")


_DEFINED: Final = _Definitions()

COLUMNS: Final[Mapping[str, HistoryColumn]] = _DEFINED.columns
"""Name -> column."""

SERIES: Final[Mapping[str, Series]] = _DEFINED.series
"""Name without label -> series, in the order of docs/metrics.md."""

LABELLED: Final = (Scope.REQUEST, Scope.QUEUE, Scope.LINK)
"""Scopes whose series have their label in the name."""


class UnknownSeries(ValueError):
    """There is no series of this name; the text names the nearest."""


class SeriesChoice(NamedTuple):
    """A series as a request names it: `name` is the text of the request."""

    name: str
    series: Series
    label: str

    def column_keys(self) -> list[tuple[str, str]]:
        """(column, label) of the columns to read."""
        return [(column, self.label) for column in self.series.columns]


def choose(name: str, bucket_type: str) -> SeriesChoice:
    """The series that a request names; `bucket_type` is the label of those of a bucket type. Raises UnknownSeries."""
    family, colon, label = name.partition(":")
    series = SERIES.get(family)
    if series is None:
        raise UnknownSeries(no_such("series", family, list(SERIES)))
    if series.scope in LABELLED:
        if not label:
            raise UnknownSeries(f"{family} is measured for each {series.scope.value}: write {family}:NAME")
        return SeriesChoice(name, series, unquote(label))
    if colon:
        raise UnknownSeries(f"{family} has no label: write {family}")
    return SeriesChoice(name, series, bucket_type if series.scope is Scope.BUCKET_TYPE else ALL_TYPES)


def name_of(series: Series, label: str) -> str:
    """The name under which a request finds the series of a label."""
    if series.scope not in LABELLED:
        return series.name
    return f"{series.name}:{label.replace('%', '%25').replace(',', '%2C')}"


def worst_value(record: PartitionRecord) -> int:
    """The column `isr.worst` of one partition."""
    return ISR_BASE * (len(record.isr) - record.effective_min_isr) + len(record.isr)


def derive(formula: Formula, columns: Sequence[Values]) -> npt.NDArray[np.float64]:
    """The values of a series from those of its columns."""
    first = columns[0].astype(np.float64)
    if formula is not Formula.QUOTIENT:
        return np.asarray(_of_one_column(formula, first))
    second = columns[1].astype(np.float64)
    return np.divide(first, second, out=np.full_like(first, np.nan), where=second > 0)


def derive_one(formula: Formula, columns: Sequence[float]) -> float:
    """As `derive`, of one place."""
    if formula is not Formula.QUOTIENT:
        return float(_of_one_column(formula, columns[0]))
    return columns[0] / columns[1] if columns[1] > 0 else math.nan


def _of_one_column(formula: Formula, column: Any) -> Any:
    """The values, or the value, of a series of one column."""
    if formula is Formula.VALUE:
        return column
    members = column % ISR_BASE
    return members if formula is Formula.ISR_MEMBERS else members - column // ISR_BASE


def merge(how: Merge, values: npt.NDArray[Any], axis: int) -> npt.NDArray[Any]:
    """Several numbers of a column as one, without those that are unknown; unknown if all are."""
    match how:
        case Merge.MAX:
            return np.asarray(np.fmax.reduce(values, axis=axis))
        case Merge.MIN:
            return np.asarray(np.fmin.reduce(values, axis=axis))
    known = ~np.isnan(values)
    counts = known.sum(axis=axis)
    sums: npt.NDArray[np.float64] = np.where(known, values, 0).sum(axis=axis, dtype=np.float64)
    sums[counts == 0] = np.nan
    return sums / np.maximum(counts, 1) if how is Merge.MEAN else sums
