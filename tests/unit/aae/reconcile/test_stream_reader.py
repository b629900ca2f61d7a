"""The plans and offsets of a stream (`spark.readStream`) when nodes are away, without Java and without nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.aae.reconcile import row_reader, stream_reader
from isthmus.aae.reconcile.arrow_rows import schema_of
from isthmus.aae.reconcile.client import PartitionPlan, ReplicaDirectory, ReplicaEndpoint
from isthmus.aae.reconcile.datasource import IsthmusSource
from isthmus.aae.reconcile.options import parse_options
from isthmus.aae.reconcile.row_reader import RangeUnreadable
from isthmus.aae.reconcile.stream_reader import IsthmusStreamReader, StreamLag, lag
from isthmus.aae.row_stream.wire import Head, RowView, Tail
from isthmus.repl.model.errors import BadInput
from isthmus.repl.model.keys import SEGMENT_COUNT

UUID = b"u" * 16
HALF = SEGMENT_COUNT // 2
START = {"cluster": UUID.hex(), "partitions": {"0": 10, "1": 10}}
END = {"cluster": UUID.hex(), "partitions": {"0": 20, "1": 20}}


def plan(zero: int | None, one: int | None, whole: bool = True) -> ReplicaDirectory:
    """Two partitions with the offsets applied so far; None: no node that answers holds it."""

    def held(offset: int | None) -> tuple[ReplicaEndpoint, ...]:
        return () if offset is None else (ReplicaEndpoint("n1", "http://n1", True, whole, 1, offset),)

    return ReplicaDirectory(
        UUID, "east", "default",
        (PartitionPlan(0, 0, HALF, None, held(zero)), PartitionPlan(1, HALF, SEGMENT_COUNT, None, held(one))),
    )  # fmt: skip


def reader(monkeypatch: pytest.MonkeyPatch, *plans: ReplicaDirectory, **options: str) -> IsthmusStreamReader:
    """A reader that gets these plans in turn, and the last one from then on."""
    left = list(plans)
    monkeypatch.setattr(stream_reader, "fetch_plan", lambda *_: left.pop(0) if len(left) > 1 else left[0])
    monkeypatch.setattr(stream_reader, "RETRY_S", 0.001)
    given = {"urls": "http://n1:1", "give_up_after_s": "1", **options}
    return IsthmusStreamReader(parse_options(given), schema_of(RowView.KEYS))


def test_a_batch_leaves_out_no_partition_whose_node_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its offsets were promised when the node still answered: the batch waits for the node, or fails with an error that
    names the partition."""
    found = reader(monkeypatch, plan(20, None), plan(20, 20)).partitions(START, END)
    assert [(part.partition, part.first, part.end) for part in found] == [(0, 10, 20), (1, 10, 20)]
    for away in (plan(20, None), plan(20, 20, whole=False)):
        with pytest.raises(RangeUnreadable, match=r"partition [01], offsets 10 to 20: no node"):
            reader(monkeypatch, away).partitions(START, END)
    unneeded = {**END, "partitions": {"0": 20, "1": 10}}
    assert [part.partition for part in reader(monkeypatch, plan(20, None)).partitions(START, unneeded)] == [0]


def test_a_beginning_and_an_end_are_of_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """`latest`, and the end of availableNow, are requested again while a partition has no answer; its beginning is
    never used instead."""
    away, back = plan(20, None), plan(20, 30)
    assert reader(monkeypatch, away, back, starting="latest").initialOffset()["partitions"] == {"0": 20, "1": 30}
    with pytest.raises(RangeUnreadable, match="partition 1: no node"):
        reader(monkeypatch, away, starting="latest").initialOffset()
    assert reader(monkeypatch, away).initialOffset()["partitions"] == {"0": 0, "1": 0}
    stream = reader(monkeypatch, away, back)
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(START, stream.getDefaultReadLimit())["partitions"] == {"0": 20, "1": 30}
    with pytest.raises(RangeUnreadable, match="partition 1: no node"):
        reader(monkeypatch, away).prepareForTriggerAvailableNow()


def test_an_end_that_was_set_is_reached_though_a_node_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a batch of availableNow found nothing new because a node does not answer, the query would end as if all had
    been read."""
    stream = reader(monkeypatch, plan(10, 30), plan(10, None))
    stream.prepareForTriggerAvailableNow()
    assert stream.latestOffset(START, stream.getDefaultReadLimit())["partitions"] == {"0": 10, "1": 30}


def test_a_rate_holds_for_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shared among the partitions of a batch, as in a read."""
    stream = reader(monkeypatch, plan(20, 20), rows_per_second="100")
    parts = stream.partitions(START, END)
    paces: list[float] = []

    @contextmanager
    def open_stream(*_: object) -> Iterator[tuple[Head, Iterator[Any]]]:
        yield Head(UUID, "east", "n1", 1, 10, 20, 1, 20), iter([Tail(0)])

    monkeypatch.setattr(row_reader, "open_stream", open_stream)
    monkeypatch.setattr(stream_reader, "TaskRate", lambda rate: paces.append(rate))
    assert list(stream.read(parts[1])) == []
    assert paces == [50]


def test_the_lag_of_a_query_is_what_its_newest_batch_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream reports the offsets that replicas had applied when it planned a batch; `lag` subtracts the batch's
    end, by partition, for a query and for a listener's progress. Other sources are ignored; offsets that a forced
    leader dropped are not lag."""
    stream = reader(monkeypatch, plan(25, 3), rows_per_batch="10")
    assert stream.reportLatestOffset() is None
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    latest = stream.reportLatestOffset()
    ours = {"endOffset": json.dumps(end), "latestOffset": json.dumps(latest)}
    progress = {"timestamp": "2026-01-31T12:00:00Z", "sources": [ours, {"endOffset": "7", "latestOffset": None}]}
    assert lag(progress) == StreamLag(18, {0: 18, 1: 0}, "2026-01-31T12:00:00Z")
    assert lag(SimpleNamespace(lastProgress=progress)) == lag(progress)
    assert lag(SimpleNamespace(lastProgress=SimpleNamespace(json=json.dumps(progress)))) == lag(progress)
    assert lag({**progress, "sources": [ours, ours]}) == StreamLag(36, {0: 36, 1: 0}, "2026-01-31T12:00:00Z")
    swapped = {"endOffset": latest, "latestOffset": end}
    assert lag({**progress, "sources": [swapped]}) == StreamLag(0, {0: 0, 1: 0}, "2026-01-31T12:00:00Z")
    assert lag({**progress, "sources": [{"endOffset": "null", "latestOffset": json.dumps({"x": 1})}]}) is None
    assert lag(SimpleNamespace(lastProgress=None)) is None


@pytest.mark.parametrize("option", ["consistency=committed", "splits=4", "segments=0-9"])
def test_options_that_mean_nothing_to_a_stream_are_refused(option: str) -> None:
    """The error names the use of the option."""
    name, _, value = option.partition("=")
    source = IsthmusSource({"urls": "http://n1:1", name: value})
    with pytest.raises(BadInput, match=f"option {name} is for spark.read"):
        source.streamReader(schema_of(RowView.KEYS))


def forced(offset: int | None, lineage: int, epoch: int = 5, stale: int | None = None) -> ReplicaDirectory:
    """One partition with its leader at `offset` (None: no leader) after `lineage` forced elections, and an older
    replica that has applied `stale`."""
    leads = () if offset is None else (ReplicaEndpoint("n1", "http://n1", True, True, epoch, offset),)
    other = () if stale is None else (ReplicaEndpoint("n2", "http://n2", False, True, 1, stale),)
    return ReplicaDirectory(
        UUID, "east", "default", (PartitionPlan(0, 0, SEGMENT_COUNT, None, (*other, *leads), lineage),)
    )


def at(offset: int, lineage: int | None = None) -> dict[str, Any]:
    """An offset of that stream; without a lineage, as earlier versions wrote it."""
    found: dict[str, Any] = {"cluster": UUID.hex(), "partitions": {"0": offset}}
    return found if lineage is None else {**found, "lineages": {"0": lineage}}


@pytest.mark.parametrize("before", [at(100), at(100, 0)])
def test_a_partition_whose_offsets_may_be_used_again_is_read_again(
    monkeypatch: pytest.MonkeyPatch, before: dict[str, Any]
) -> None:
    """A leader by force continues where its own log ended, so the stream would miss entries that it writes at offsets
    the stream has passed."""
    stream = reader(monkeypatch, forced(90, 1, stale=100))
    end = stream.latestOffset(before, stream.getDefaultReadLimit())
    assert end == at(90, 1)
    (part,) = stream.partitions(before, end)
    assert (part.first, part.end, part.epoch) == (0, 90, 5)
    assert stream.latestOffset(end, stream.getDefaultReadLimit()) == end
    few = reader(monkeypatch, forced(90, 1), rows_per_batch="40")
    first = few.latestOffset(before, few.getDefaultReadLimit())
    assert first == at(40, 1)
    (part,) = few.partitions(first, few.latestOffset(first, few.getDefaultReadLimit()))
    assert (part.first, part.end) == (40, 80)


def test_a_repeated_read_waits_for_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica from before the election may hold entries that no longer exist; only the leader knows where the new log
    ends."""
    stream = reader(monkeypatch, forced(None, 1, stale=100), forced(90, 1, stale=100))
    assert stream.latestOffset(at(100, 0), stream.getDefaultReadLimit()) == at(90, 1)
    stream = reader(monkeypatch, forced(None, 1, stale=100))
    with pytest.raises(RangeUnreadable, match=r"partition 0: .*leader"):
        stream.latestOffset(at(100, 0), stream.getDefaultReadLimit())


def test_a_batch_begun_before_a_forced_election_ends_where_the_log_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is repeated after a failure: some of its promised entries may no longer exist, and the partition is
    read again next."""
    stream = reader(monkeypatch, forced(90, 1))
    (part,) = stream.partitions(at(50, 0), at(100, 0))
    assert (part.first, part.end) == (50, 90)
    (nothing,) = stream.partitions(at(95, 0), at(100, 0))
    assert nothing.copies == ()


def test_a_node_with_an_older_lineage_ends_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plan is older than what the stream knows: the newest lineage stays."""
    stream = reader(monkeypatch, forced(95, 0))
    assert stream.latestOffset(at(90, 1), stream.getDefaultReadLimit()) == at(95, 1)


def test_a_replica_that_has_not_applied_the_leaders_epoch_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows at these offsets may be those that the forced election gave up."""
    stream = reader(monkeypatch, forced(90, 1, stale=100))
    (part,) = stream.partitions(at(80, 1), at(90, 1))
    asked: list[str] = []

    @contextmanager
    def open_stream(url: str, *_: object) -> Iterator[tuple[Head, Iterator[Any]]]:
        asked.append(url)
        yield Head(UUID, "east", "n", 0, 80, 90, 1 if url == "http://n2" else 5, 90), iter([Tail(0)])

    monkeypatch.setattr(row_reader, "open_stream", open_stream)
    assert list(stream.read(part)) == []
    assert asked == ["http://n2", "http://n1"]


def of_actor(offset: int | None, incarnation: int | None, lineage: int = 0) -> ReplicaDirectory:
    """One partition with its leader at `offset` (None: no leader), under an actor."""
    found = forced(offset, lineage, stale=80)
    return found._replace(partitions=(found.partitions[0]._replace(incarnation=incarnation),))


def at_actor(offset: int, incarnation: int, lineage: int = 0) -> dict[str, Any]:
    """An offset of that stream."""
    return at(offset, lineage) | {"incarnations": {"0": incarnation}}


def test_a_partition_with_another_actor_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was put back to an earlier state: offsets that the stream has passed are other changes now, also where its log
    is longer by now. A checkpoint of an earlier version takes the actor that it finds; a node that does not report it
    changes nothing, and neither does a plan from before a forced leader."""
    limit = reader(monkeypatch, plan(1, 1)).getDefaultReadLimit()
    for end in (90, 200):
        stream = reader(monkeypatch, of_actor(None, 7), of_actor(end, 7))
        offset = stream.latestOffset(at_actor(100, 3), limit)
        assert offset == at_actor(end, 7), "it waits for the leader"
        (part,) = stream.partitions(at_actor(100, 3), offset)
        assert (part.first, part.end, part.epoch) == (0, end, 5)
        assert stream.latestOffset(offset, limit) == offset
    assert reader(monkeypatch, of_actor(120, 7)).latestOffset(at(100, 0), limit) == at_actor(120, 7)
    assert reader(monkeypatch, of_actor(120, None)).latestOffset(at_actor(100, 3), limit) == at_actor(120, 3)
    assert reader(monkeypatch, of_actor(120, 3)).latestOffset(at_actor(100, 7, 1), limit) == at_actor(120, 7, 1)
    (part,) = reader(monkeypatch, of_actor(90, 7)).partitions(at_actor(50, 3), at_actor(100, 3))
    assert (part.first, part.end) == (50, 90), "a batch from before ends where the log does"


def test_a_checkpoint_beyond_the_end_of_a_partition_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query would wait until offsets are given again that it has passed, and leave those changes out. A leader that
    has not applied everything yet is waited for."""
    words = (
        r"partition 0 of bucket type default in cluster east was read up to offset 100, and its leader, node n1, has"
        r" nothing beyond 90: .* Begin with a new checkpoint"
    )
    for same in (of_actor(90, 3), of_actor(90, None), forced(90, 0)):
        stream = reader(monkeypatch, same)
        with pytest.raises(BadInput, match=words):
            stream.latestOffset(at_actor(100, 3), stream.getDefaultReadLimit())
        with pytest.raises(BadInput, match=words):
            stream.partitions(at_actor(50, 3), at_actor(100, 3))
        assert len(stream.partitions(at_actor(50, 3), at_actor(90, 3))) == 1
    stream = reader(monkeypatch, of_actor(90, 3), of_actor(101, 3))
    assert stream.latestOffset(at_actor(100, 3), stream.getDefaultReadLimit()) == at_actor(101, 3)
    stream = reader(monkeypatch, of_actor(None, 3))
    assert stream.latestOffset(at_actor(100, 3), stream.getDefaultReadLimit()) == at_actor(100, 3), "nobody knows"
