"""The list of conflicting pushes: its limit, restarts, and a disk that refuses writes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import isthmus.sink.conflicts as room
from isthmus.repl.coordinator.kv_rpc import decode_pushed, pushed_row
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content, decode_object, write
from isthmus.repl.model.requests import MergedWith, PushOutcome, PushResult
from isthmus.repl.model.vclock import actor_of, decode_clock, encode_clock, pack_counter
from isthmus.sink.conflicts import Conflicts, SiblingConflict
from tests.support.queue_source import OURS, SINK
from tests.support.sink_pair import SinkPair
from tests.support.waiting import eventually


def one(n: int) -> SiblingConflict:
    return SiblingConflict(n, "q", "http://p:1", OURS, "east", Key(b"t", b"b", b"%d" % n), b"ours", b"theirs", 2)


async def until_equal(conflicts: Conflicts, numbers: list[int]) -> None:
    async def equal() -> bool:
        return [found.at_ms for found in await conflicts.newest(100)] == numbers

    await eventually(equal, str(numbers))


async def test_the_newest_are_kept_over_restarts_and_what_goes_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest come first, at most the limit, including those not written yet; a new process has those of the
    previous one."""
    monkeypatch.setattr(room, "WRITE_INTERVAL_S", 0.01)

    conflicts = Conflicts(tmp_path / "c.sqlite", 3)
    assert await conflicts.newest(10) == []
    conflicts.add([one(1), one(2)])
    assert await conflicts.newest(10) == [one(2), one(1)]
    assert await conflicts.newest(1) == [one(2)]
    await asyncio.sleep(0.1)
    conflicts.add([one(3), one(4)])
    await until_equal(conflicts, [4, 3, 2])
    await conflicts.stop()
    assert (conflicts.noted, conflicts.dropped) == (4, 1)
    again = Conflicts(tmp_path / "c.sqlite", 3)
    assert [found.at_ms for found in await again.newest(10)] == [4, 3, 2]
    again.add([one(n) for n in range(10, 20)])
    await again.stop()
    assert again.dropped == 10
    assert [found.at_ms for found in await Conflicts(tmp_path / "c.sqlite", 3).newest(10)] == [19, 18, 17]


async def test_a_limit_of_0_keeps_none_and_makes_no_file(tmp_path: Path) -> None:
    """Conflicts are still counted."""

    conflicts = Conflicts(tmp_path / "c.sqlite", 0)
    conflicts.add([one(1)])
    await conflicts.stop()
    assert (conflicts.noted, conflicts.dropped) == (1, 1)
    assert not (tmp_path / "c.sqlite").exists()


async def test_a_damaged_file_is_replaced_and_a_refusing_disk_is_reported(tmp_path: Path) -> None:
    """Nothing depends on the list, so neither stops anything; the lost rows are counted."""

    file = tmp_path / "c.sqlite"
    file.write_bytes(b"no database" * 100)
    conflicts = Conflicts(file, 3)
    with capture_logs() as logs:
        assert await conflicts.newest(5) == []
    assert [log["event"] for log in logs] == ["sink.conflicts_unwritten"]
    conflicts.add([one(1)])
    await conflicts.stop()
    assert await Conflicts(file, 3).newest(5) == [one(1)]
    nowhere = Conflicts(tmp_path / "missing" / "c.sqlite", 3)
    nowhere.add([one(1)])
    await nowhere.stop()
    assert nowhere.dropped == 1


def test_conflicts_of_merged_pushes_travel_between_nodes() -> None:
    """The result from a remote leader carries the clock and the siblings; the result of an older version has
    neither."""
    met = PushResult(PushOutcome.MERGED, None, MergedWith(b"clock", 3))
    assert decode_pushed(pushed_row(met)) == met
    assert pushed_row(PushResult(PushOutcome.APPLIED)) == (PushOutcome.APPLIED.value,)
    assert decode_pushed((PushOutcome.MERGED.value,)) == PushResult(PushOutcome.MERGED)


async def test_a_concurrent_change_is_listed_with_both_clocks() -> None:
    """The list shows key, queue, peer, source, the number of siblings after the merge, and both clocks before it;
    applied and superseded pushes are not listed. The log has an event."""

    async with SinkPair() as pair:
        node = pair.source
        node.put(b"k", b"plain")
        (pushed,) = [decode_object(o) for (_, key), o in node.fake_store.objects.items() if key == b"k"]
        ours = write(None, (), Content(b"ours"), (actor_of(SINK, 3), pack_counter(1, 0)), 5)
        pair.cluster.objects[Key(b"default", b"bucket", b"k")] = ours
        with capture_logs() as logs:
            sink = await pair.sink()

            async def conflicts() -> list[Any]:
                return await sink.conflicts.newest(10)

            (conflict,) = await eventually(conflicts)
        assert (conflict.key.key, conflict.queue, conflict.peer) == (b"k", "q", pair.listener.url)
        assert (conflict.source, conflict.source_name, conflict.siblings) == (OURS, "east", 2)
        assert decode_clock(conflict.theirs) == pushed.clock
        assert conflict.ours == encode_clock(ours.clock)
        (event,) = [log for log in logs if log["event"] == "sink.conflicts"]
        assert (event["count"], event["first_key"][2]) == (1, "k")
