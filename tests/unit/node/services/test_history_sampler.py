"""The sampler's sources against the metrics that they read, and the queries that carry history between nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest

from isthmus.node.daemon import METRICS
from isthmus.node.http.durations import RequestDurations
from isthmus.node.services import history_sampler
from isthmus.node.services.history import HOUR, History, Reading
from isthmus.node.services.history_query import (
    KEYS_MAX,
    STALE_MS,
    HistoryRequest,
    NewestBody,
    NewestRequest,
    NewestResponder,
    PlacesBody,
    PlacesResponder,
)
from isthmus.node.services.history_sampler import (
    DURATION_SAMPLES,
    FILES_EVERY_MS,
    PICKS,
    DurationSource,
    HistorySampler,
    MetricsSource,
    ProcessSource,
    QueuesSource,
)
from isthmus.node.services.history_series import COLUMNS, SERIES, Scope, UnknownSeries, choose, name_of
from isthmus.repl.model.errors import BadInput, CodecError
from isthmus.repl.telemetry import Sample

WALL_MS = 1_700_000_000_000


class FakeTime:
    """Clocks that a test sets."""

    def __init__(self) -> None:
        self.at_ms = 0

    def now_ms(self) -> int:
        """See TimeSource."""
        return self.at_ms

    def wall_ms(self) -> int:
        """See TimeSource."""
        return WALL_MS + self.at_ms


class FakeSource:
    """A source that a test sets; None: it fails."""

    def __init__(self, found: list[Reading] | None) -> None:
        self.found = found

    def readings(self) -> Iterable[Reading]:
        """See HistorySource."""
        if self.found is None:
            raise ValueError("a bug")
        return self.found


def test_what_is_picked_is_measured() -> None:
    """Each metric of a column exists and has the labels that the column's scope needs; counters become rates, and
    gauges do not."""
    needed = {Scope.LINK: {"queue", "peer"}, Scope.QUEUE: {"queue"}, Scope.REQUEST: {"kind"}, Scope.NODE: set[str]()}
    for metric, picks in PICKS.items():
        for pick in picks:
            column = COLUMNS[pick.column]
            assert needed[column.scope] <= {*METRICS[metric].labels}, metric
            assert column.counter == metric.endswith("_total"), metric
            if pick.only is not None:
                assert pick.only[0] in METRICS[metric].labels


def test_every_column_is_in_a_series() -> None:
    """Every column is used by a series, and every series has only columns of its scope."""
    used = {column for series in SERIES.values() for column in series.columns}
    assert used == COLUMNS.keys() - {"sampled"}
    for series in SERIES.values():
        assert {COLUMNS[column].scope for column in series.columns} == {series.scope}


def test_samples_of_metrics_become_columns() -> None:
    """By label, in the units of the columns; several metrics' samples of one column are added, others left out."""

    def samples() -> Iterator[Sample]:
        link = {"queue": "q", "peer": "http://w:1"}
        yield "isthmus_sink_changes_total", {**link, "outcome": "applied"}, 5
        yield "isthmus_sink_changes_total", {**link, "outcome": "rejected"}, 2
        yield "isthmus_sink_lag_seconds", {**link, "quantile": "0.99"}, 0.25
        yield "isthmus_queue_oldest_age_seconds", {"queue": "q"}, 1.5
        yield "isthmus_refusals_total", {"reason": "fenced"}, 1
        yield "isthmus_refusals_total", {"reason": "overloaded"}, 2
        yield "isthmus_queue_ledger_off", {"queue": "q"}, 1

    source = MetricsSource(samples)
    history = History()
    history.add([], 0, WALL_MS)
    history.add(source.readings(), 1_000, WALL_MS + 2_000)
    link = "q@http://w:1"
    assert {key: value for key, value in history.newest.items() if key[0] != "sampled"} == {
        ("sink.changes_per_s", link): 7,
        ("sink.refused_per_s", link): 2,
        ("sink.lag_p99_ms", link): 250,
        ("queue.oldest_age_ms", "q"): 1500,
        ("refusals.per_s", ""): 3,
    }


def test_durations_of_requests_are_percentiles_of_the_last_minute() -> None:
    """GET and PUT of one object by themselves, of all statuses, without other routes; what is older than a minute is
    left out, and a minute without a request has no number."""
    durations = RequestDurations()
    source = DurationSource(durations, "object")

    def sampled() -> dict[str, float]:
        return {column.name: round(value, 3) for column, _, value in source.readings()}

    durations.series("object", "GET", 200).add(5.0)  # before the first sample
    assert sampled() == {}
    for _ in range(98):
        durations.series("object", "GET", 200).add(0.0007)
    for _ in range(2):
        durations.series("object", "GET", 503).add(0.07)
    durations.series("object", "PUT", 204).add(60.0)
    durations.series("list", "GET", 200).add(1.0)
    found = sampled()
    assert found == {
        "http.get.p50_ms": 0.755, "http.get.p99_ms": 75.0, "http.put.p50_ms": 10_000.0, "http.put.p99_ms": 10_000.0,
    }  # fmt: skip
    for _ in range(DURATION_SAMPLES - 2):
        assert sampled() == found
    sampled()
    assert sampled() == {}


@pytest.mark.parametrize(("turn_s", "runs"), [(0.0, True), (1_000.0, False)], ids=["slow", "quick"])
async def test_the_loop_runs_between_queues_that_take_long(
    turn_s: float, runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop runs between queues once they have taken the time of a turn, and not for each of many that are read at
    once; either way their numbers belong to one sample."""
    monkeypatch.setattr(history_sampler, "TURN_S", turn_s)
    turns: list[str] = []

    def by_queue() -> Iterator[list[Sample]]:
        for queue in ("a", "b", "c"):
            turns.append(queue)
            yield [("isthmus_queue_gaps", {"queue": queue}, 2)]

    async def others() -> None:
        while len(turns) < 8:
            turns.append("another's turn")
            await asyncio.sleep(0)

    queues: Any = SimpleNamespace(metrics_by_queue=by_queue)
    time, history = FakeTime(), History()
    sampler = HistorySampler("n1", history, [QueuesSource(queues)], time)
    await sampler.sample()
    turns.clear()
    time.at_ms += 2_000
    await asyncio.gather(others(), sampler.sample())
    between = [turns.index(queue) for queue in ("a", "b", "c")]
    assert all((second - first > 1) is runs for first, second in pairwise(between)), turns
    assert [history.newest["queue.gaps", queue] for queue in ("a", "b", "c")] == [2, 2, 2]


async def test_a_source_that_fails_is_left_out_and_logged_once() -> None:
    """The others' numbers are kept; the source is used again as soon as it works."""
    time, history = FakeTime(), History()
    rss = COLUMNS["process.rss_bytes"]
    broken = FakeSource(None)
    sampler = HistorySampler("n1", history, [broken, FakeSource([(rss, "", 7)])], time)
    for _ in range(2):
        await sampler.sample()
        time.at_ms += 2_000
    assert history.newest[rss.name, ""] == 7
    broken.found = [(COLUMNS["disk.free_bytes"], "", 9)]
    await sampler.sample()
    assert history.newest["disk.free_bytes", ""] == 9
    counts = {name: value for name, _, value in sampler.samples()}
    assert counts["isthmus_history_samples_total"] == 3
    assert counts["isthmus_history_bytes"] == history.size_bytes() > 0
    await sampler.stop()


async def test_a_disk_that_hangs_is_unknown_and_stops_nothing(tmp_path: Path) -> None:
    """Sizes of files come from a thread, are read again after 30 s, and are unknown when that reading does not end."""
    time = FakeTime()
    sizes = iter((100, 200))
    with ThreadPoolExecutor(1) as pool:
        store: Any = SimpleNamespace(size_bytes=lambda: next(sizes))
        stats = SimpleNamespace(size_bytes=5, fsync_count=6, fsync_seconds=0.5)
        replog: Any = SimpleNamespace(stats=lambda: stats)
        source = ProcessSource(tmp_path, store, replog, time, pool)

        def read() -> dict[str, float]:
            return {column.name: value for column, _, value in source.readings()}

        first = read()
        assert "store.size_bytes" not in first
        assert first["log.sync_ms_per_s"] == 500
        assert first["process.rss_bytes"] > 1_000_000
        assert source._reading is not None
        await source._reading
        found = read()
        assert found["store.size_bytes"] == 100
        assert 0 < found["disk.free_bytes"] <= found["disk.total_bytes"]
        time.at_ms += FILES_EVERY_MS
        assert read()["store.size_bytes"] == 100
        hanging: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await source._reading
        source._reading = hanging
        time.at_ms += FILES_EVERY_MS
        assert "store.size_bytes" not in read()
        assert source._reading is hanging


def test_names_of_series_lead_back_to_them() -> None:
    """A label may have any character; a missing or surplus label and a misspelt name are refused with a message that
    says what is valid."""
    queue = SERIES["queue.waiting"]
    for label in ("to-west", "a,b", "100%", "q@http://h:1"):
        name = name_of(queue, label)
        assert "," not in name
        assert choose(name, "").label == label
    assert choose("isr.members", "large").column_keys() == [("isr.worst", "large")]
    assert choose("disk.free_bytes", "large").label == ""
    for wrong, words in (
        ("queue.wating:q", 'did you mean "queue.waiting"'),
        ("queue.waiting", "queue.waiting:NAME"),
        ("disk.free_bytes:x", "no label"),
    ):
        with pytest.raises(UnknownSeries, match=words):
            choose(wrong, "")


def history_of_one() -> History:
    """A history with one sample, at WALL_MS + 2,000."""
    history = History()
    writes, rss = COLUMNS["replicate.write.per_s"], COLUMNS["process.rss_bytes"]
    for n in (0, 1):
        history.add(
            [(rss, "", 3.5), (writes, "default", 4 * n), (writes, "large", 2 * n)], 2_000 * n, WALL_MS + 2_000 * n
        )
    return history


async def test_places_travel_between_nodes() -> None:
    """The places of a node's columns arrive unchanged; unknown columns are skipped, and too many are refused."""
    responder, codec = PlacesResponder(history_of_one()), PlacesBody()
    first = WALL_MS // HOUR.step_ms
    keys = [("process.rss_bytes", ""), ("disk.free_bytes", ""), ("of.the.future", "")]
    found = codec.decode(codec.encode(await responder.respond(HistoryRequest("hour", first, keys))))
    assert list(found) == [("process.rss_bytes", "")]
    values = found["process.rss_bytes", ""]
    assert np.isnan(values[0])
    assert values[1] == 3.5
    assert np.isnan(values[2:]).all()
    for wrong in (HistoryRequest("week", 0, []), HistoryRequest("hour", 0, [("a", "b")] * (KEYS_MAX + 1))):
        with pytest.raises(BadInput):
            await responder.respond(wrong)


async def test_the_newest_sample_travels_without_other_bucket_types() -> None:
    """The answer has the requested bucket types' columns and those over all types; an old sample is not sent."""
    time, codec = FakeTime(), NewestBody()
    time.at_ms = 3_000
    responder = NewestResponder(history_of_one(), time)
    found = codec.decode(codec.encode(await responder.respond(NewestRequest(["large"]))))
    writes = {label: value for (name, label), value in found.items() if name == "replicate.write.per_s"}
    assert writes == {"": 3, "large": 1}
    assert found["process.rss_bytes", ""] == 3.5
    time.at_ms += STALE_MS
    assert await responder.respond(NewestRequest([])) == {}


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", msgpack.packb({}), msgpack.packb([1]), msgpack.packb([["a", "b", "c"]]),
     msgpack.packb([["a", "b", b"1234"]]), msgpack.packb([["a", 1, bytes(7200)]]),
     msgpack.packb([["a", "b", bytes(7200)], ["c", "d", bytes(5760)]])],
)  # fmt: skip
def test_a_malformed_answer_is_refused(body: bytes) -> None:
    """Bytes that are not rows of columns, or not of one number each, are refused as a fault of their sender."""
    for codec in (PlacesBody(), NewestBody()):
        with pytest.raises(CodecError):
            codec.decode(body)
