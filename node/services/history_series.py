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


APPLIED: Final = ("apply", *(f"apply.{kind}" for kind in KIND_NAMES.values()))
"""Prefixes of what is measured of applied entries: of all kinds together, and of each."""


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
    over_time: Merge = Merge.MEAN
    over_nodes: Merge = Merge.SUM
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


def _gauge(name: str, scope: Scope, over_time: Merge = Merge.MEAN, over_nodes: Merge = Merge.SUM) -> HistoryColumn:
    return HistoryColumn(name, scope, over_time, over_nodes)


def _peak(name: str, scope: Scope) -> HistoryColumn:
    return HistoryColumn(name, scope, Merge.MAX, Merge.MAX)


def _counter(name: str, scope: Scope, *, from_zero: bool = False) -> HistoryColumn:
    return HistoryColumn(name, scope, counter=True, from_zero=from_zero)


def _columns() -> list[HistoryColumn]:
    of_type, node, queue, link = Scope.BUCKET_TYPE, Scope.NODE, Scope.QUEUE, Scope.LINK
    found = [HistoryColumn(SAMPLED, node, Merge.MAX)]
    for part in PARTS:
        prefix = f"replog.{part}"
        found += [_gauge(f"{prefix}.{name}", of_type) for name in ("replicas", "entries", "unapplied")]
        found += [_peak(f"{prefix}.{name}_max", of_type) for name in ("entries", "unapplied")]
    for kind in KIND_NAMES.values():
        prefix = f"replicate.{kind}"
        found += [
            _counter(f"{prefix}.{name}", of_type, from_zero=True) for name in ("per_s", "ms_per_s", "failures_per_s")
        ]
        found.append(_peak(f"{prefix}.max_ms", of_type))
    for prefix in APPLIED:
        found += [_counter(f"{prefix}.{name}", of_type, from_zero=True) for name in ("per_s", "ms_per_s")]
        found.append(_peak(f"{prefix}.max_ms", of_type))
    found += [
        _peak("replicate.oldest_ms", of_type),
        _gauge("isr.worst", of_type, Merge.MIN, Merge.MIN),
        _counter("process.cpu_percent", node),
        _gauge("process.rss_bytes", node),
        _gauge("disk.free_bytes", node),
        _gauge("disk.total_bytes", node),
        _gauge("store.size_bytes", node),
        _gauge("log.size_bytes", node),
        _counter("log.syncs_per_s", node),
        _counter("log.sync_ms_per_s", node),
        _gauge("partitions.led", node),
        _gauge("partitions.under_replicated", node, Merge.MAX),
        _counter("refusals.per_s", node),
        _gauge("sink.workers", node),
        _gauge("sink.workers_busy", node),
        _gauge("sink.dead_letters", node, Merge.MAX),
        *(_peak(f"http.{method}.{name}_ms", node) for method in TIMED_METHODS for name in TIMED_SHARES),
        _counter("requests.per_s", Scope.REQUEST),
        _gauge("queue.waiting", queue),
        _gauge("queue.bulk_waiting", queue),
        _gauge("queue.in_flight", queue),
        _peak("queue.oldest_age_ms", queue),
        _counter("queue.served_per_s", queue),
        _counter("queue.acknowledged_per_s", queue),
        _counter("queue.redelivered_per_s", queue),
        _counter("queue.given_up_per_s", queue),
        _gauge("queue.gaps", queue, Merge.MAX),
        _gauge("queue.suspended", queue, Merge.MAX, Merge.MAX),
        HistoryColumn("queue.throttled_percent", queue, over_nodes=Merge.MAX, counter=True),
        _peak("sink.lag_p50_ms", link),
        _peak("sink.lag_p99_ms", link),
        _counter("sink.changes_per_s", link),
        _counter("sink.refused_per_s", link),
        _counter("sink.errors_per_s", link),
        _peak("sink.delay_ms", link),
        _gauge("sink.suspended", link, Merge.MAX, Merge.MAX),
    ]
    return found


COLUMNS: Final[Mapping[str, HistoryColumn]] = {column.name: column for column in _columns()}
"""Name -> column."""


def _type_series() -> list[Series]:
    scope, found = Scope.BUCKET_TYPE, list[Series]()

    def add(name: str, unit: str, meaning: str, columns: Sequence[str] = (), formula: Formula = Formula.VALUE) -> None:
        found.append(Series(name, scope, unit, meaning, tuple(columns) or (name,), formula))

    parts = {"leader": "leaders", "isr": "followers in sync", "osr": "replicas out of sync"}
    for part in PARTS:
        of, name = parts[part], f"replog.{part}"
        replicas = f"{name}.replicas"
        add(replicas, "replicas", f"Replicas of this node: {of}.")
        for what, words in (("entries", "entries in the logs"), ("unapplied", "unapplied entries")):
            column = f"{name}.{what}"
            add(
                f"{column}_average", "entries", f"Mean number of {words} of {of}.", (column, replicas), Formula.QUOTIENT
            )
            add(f"{column}_max", "entries", f"Largest number of {words} of one of them.")
    for kind in KIND_NAMES.values():
        name = f"replicate.{kind}"
        per_s = f"{name}.per_s"
        add(per_s, "entries a second", f"Entries of kind {kind} replicated by leaders here.")
        add(f"{name}.average_ms", "ms", "Their mean time from append to applied.", (f"{name}.ms_per_s", per_s),
            Formula.QUOTIENT)  # fmt: skip
        add(f"{name}.max_ms", "ms", "Their longest time in the last 30 to 60 s.")
        add(f"{name}.failures_per_s", "entries a second", f"Entries of kind {kind} that failed.")
    add("replicate.oldest_ms", "ms", "For how long the oldest entry appended by a leader here has waited to apply.")
    for prefix in APPLIED:
        per_s, kind = f"{prefix}.per_s", prefix.partition(".")[2]
        of = f" of kind {kind}" if kind else ""
        add(per_s, "entries a second", f"Entries{of} applied here, by leaders and followers.")
        add(f"{prefix}.average_ms", "ms", "Their mean time from commit to applied.", (f"{prefix}.ms_per_s", per_s),
            Formula.QUOTIENT)  # fmt: skip
        add(f"{prefix}.max_ms", "ms", "Their longest time in the last 30 to 60 s.")
    add("isr.members", "replicas", "Members in sync of the partition led here that is closest to its min-ISR.",
        ("isr.worst",), Formula.ISR_MEMBERS)  # fmt: skip
    add("isr.min_isr", "replicas", "Min-ISR of that partition at that moment.", ("isr.worst",), Formula.ISR_MIN)
    return found


def _other_series() -> list[Series]:
    def rows(scope: Scope, *given: tuple[str, str, str]) -> list[Series]:
        return [Series(name, scope, unit, meaning, (name,)) for name, unit, meaning in given]

    sync_average = Series(
        "log.sync_average_ms",
        Scope.NODE,
        "ms",
        "Mean time of a sync of a log file.",
        ("log.sync_ms_per_s", "log.syncs_per_s"),
        Formula.QUOTIENT,
    )
    return [
        *rows(
            Scope.NODE,
            ("process.cpu_percent", "% of one core", "CPU time of the node's process, all its threads."),
            ("process.rss_bytes", "bytes", "Resident memory of the node's process."),
            ("disk.free_bytes", "bytes", "Free space of the disk with the data directory, read each 30 s."),
            ("disk.total_bytes", "bytes", "Size of that disk."),
            ("store.size_bytes", "bytes", "Approximate size of the store on disk, read each 30 s."),
            ("log.size_bytes", "bytes", "Size of the node's log files."),
            ("log.syncs_per_s", "syncs a second", "Syncs of log files, without those of preallocation."),
        ),
        sync_average,
        *rows(
            Scope.NODE,
            ("partitions.led", "partitions", "Partitions that this node leads."),
            ("partitions.under_replicated", "partitions", "Partitions led here with a replica out of sync."),
            ("refusals.per_s", "items a second", "Items refused as retryable."),
            ("sink.workers", "workers", "Workers that may fetch at once."),
            ("sink.workers_busy", "workers", "Workers that fetch or push."),
            ("sink.dead_letters", "changes", "Changes that were refused for good and are kept for operators."),
        ),
        *rows(
            Scope.NODE,
            *(
                (f"http.{method}.{name}_ms", "ms", f"{words} of a {method.upper()} of one object, in the last minute.")
                for method in TIMED_METHODS
                for name, words in (("p50", "Median duration"), ("p99", "99th percentile of the duration"))
            ),
        ),
        *rows(
            Scope.REQUEST,
            ("requests.per_s", "items a second", "Items requested, by kind as in `isthmus_requests_total`."),
        ),
        *rows(
            Scope.QUEUE,
            ("queue.waiting", "changes", "Real-time changes that wait, as far as they are in memory."),
            ("queue.bulk_waiting", "references", "References that wait at the full-sync and fold priorities."),
            ("queue.in_flight", "changes", "Changes given to a sink and not acknowledged yet."),
            ("queue.oldest_age_ms", "ms", "Age of the oldest change in memory that is not acknowledged; 0 when none."),
            ("queue.served_per_s", "changes a second", "Changes given to sinks, repeats included."),
            ("queue.acknowledged_per_s", "changes a second", "Changes acknowledged by the sink."),
            ("queue.redelivered_per_s", "changes a second", "Changes that came back and wait again."),
            ("queue.given_up_per_s", "changes a second", "Real-time changes given up; each lies in a gap."),
            ("queue.gaps", "gaps", "Gaps that no full-sync has closed; the sum over nodes counts each once."),
            ("queue.suspended", "0 or 1", "1 while serving is suspended."),
            ("queue.throttled_percent", "% of the time", "Time in which a rate limit held serving back."),
        ),
        *rows(
            Scope.LINK,
            ("sink.lag_p50_ms", "ms", "Median lag of the last minute; unknown when nothing was stored in it."),
            ("sink.lag_p99_ms", "ms", "99th percentile of that lag."),
            ("sink.changes_per_s", "changes a second", "Changes fetched and pushed into this cluster."),
            ("sink.refused_per_s", "changes a second", "Changes refused for good."),
            ("sink.errors_per_s", "cycles a second", "Cycles that failed; nothing of them was acknowledged."),
            ("sink.delay_ms", "ms", "Delay of the link before its next fetch."),
            ("sink.suspended", "0 or 1", "1 while an operator has suspended the link."),
        ),
    ]  # fmt: skip


SERIES: Final[Mapping[str, Series]] = {one.name: one for one in (*_type_series(), *_other_series())}
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
    match formula:
        case Formula.QUOTIENT:
            second = columns[1].astype(np.float64)
            return np.divide(first, second, out=np.full_like(first, np.nan), where=second > 0)
        case Formula.ISR_MEMBERS:
            return np.asarray(first % ISR_BASE)
        case Formula.ISR_MIN:
            return np.asarray(first % ISR_BASE - first // ISR_BASE)
        case Formula.VALUE:
            return first


def derive_one(formula: Formula, columns: Sequence[float]) -> float:
    """As `derive`, of one place."""
    first = columns[0]
    match formula:
        case Formula.QUOTIENT:
            return first / columns[1] if columns[1] > 0 else math.nan
        case Formula.ISR_MEMBERS:
            return first % ISR_BASE
        case Formula.ISR_MIN:
            return first % ISR_BASE - first // ISR_BASE
        case Formula.VALUE:
            return first


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
