"""Key rows damaged under a correct tree are found by the rounds, and when an exchange reads them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest
from structlog.testing import capture_logs

from isthmus.aae.damaged_rows import SUSPECTS_MAX
from isthmus.aae.scrub import row_audit
from isthmus.aae.scrub.row_audit import Scrubber
from isthmus.aae.trees import tree_cache
from isthmus.aae.trees.tree_cache import TreeState
from isthmus.repl.model.entry import decode_key_row, encode_key_row
from isthmus.repl.model.errors import Corruption, LocalFault
from isthmus.repl.model.keys import key_hash, segment_of
from isthmus.repl.model.objects import Summary
from isthmus.repl.store import rows
from isthmus.repl.store.port import PartitionStep
from tests.support.fullsync_fakes import FakeReplicas, lone_repair
from tests.unit.aae.trees.tree_cache.test_updates import PARTITION, TreeFixture, eventually, opened, ready

pytestmark = pytest.mark.virtual_time


def row_name(key: bytes) -> bytes:
    """The database key of the row of a key of the bucket `b`."""
    segment = segment_of(key_hash(b"b", key))
    return rows.prefixes(PARTITION).key + rows.segment_name(segment) + rows.bucket_head(b"b") + key


def damage(fixture: TreeFixture, key: bytes, change: Callable[[bytes], bytes]) -> int:
    """Changes a key row in the database directly; returns its segment."""
    driver: Any = fixture.store._db  # type: ignore[attr-defined]
    data = driver.get(row_name(key))
    assert data is not None
    driver.put(row_name(key), change(data))
    return segment_of(key_hash(b"b", key))


def other_hash(data: bytes) -> bytes:
    """A row that can be read and is another one."""
    row = decode_key_row(data)
    summary = Summary(row.clock, row.hash64 ^ 1, row.last_modified_ms, row.size_bytes, row.sibling_count, row.tombstone)
    return encode_key_row(summary, row.offset)


async def prepared(fixture: TreeFixture, count: int) -> Scrubber:
    """A replica of some keys with a ready tree, and its audit."""
    made = [fixture.history.put(b"b", b"%d" % n, b"x") for n in range(count)]
    fixture.trees.start()
    await eventually(lambda: PARTITION in fixture.trees.cached)
    fixture.store.write([PartitionStep(PARTITION, made)])
    fixture.report_applied(made)
    await eventually(lambda: ready(fixture) and fixture.matches_store())
    pool = ThreadPoolExecutor(1)
    return Scrubber(
        fixture.trees,
        fixture.store,
        repair=lone_repair(fixture.store, pool),
        replicas=FakeReplicas(fixture.snapshots),
        damaged=fixture.damaged,
        pool=pool,
    )


async def ended(audit: Scrubber) -> None:
    """Nothing of it is left."""
    await audit.stop()
    audit._pool.shutdown()


async def test_a_damaged_row_is_found_and_its_tree_proves_nothing_until_the_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turns cover all rows in whole segments; correct rows give no alarm. A row that was changed under its tree
    raises an alarm with its segment, the tree is not served any more, and the rebuilt one matches the rows (R-TREE)."""
    monkeypatch.setattr(row_audit, "ROWS_MAX", 100)
    monkeypatch.setattr(row_audit, "SLICE_ROWS", 30)

    async with opened(tmp_path) as fixture:
        audit = await prepared(fixture, 450)
        for _ in range(4):  # 120 rows a turn: whole slices
            assert await audit.check_next_range(PARTITION) == []
        assert audit.rows_total == 450
        assert audit._next[PARTITION] == 0
        segment = damage(fixture, b"77", other_hash)
        found: list[int] = []
        for _ in range(5):
            found += await audit.check_next_range(PARTITION)
            if found:
                assert fixture.trees.cached[PARTITION].state is not TreeState.READY
                break
        assert found == [segment]
        (one,) = fixture.trees.mismatches
        assert (one.partition, one.segment, one.against) == (PARTITION, segment, "key rows")
        await eventually(lambda: ready(fixture) and fixture.matches_store())
        assert fixture.trees.mismatches_total == 1
        for _ in range(6):
            assert await audit.check_next_range(PARTITION) == []
        await ended(audit)


async def test_an_object_that_cannot_be_read_hides_no_damaged_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alarm names the key, whose object counts as damaged, and the tree is not served any more."""

    async with opened(tmp_path) as fixture:
        audit = await prepared(fixture, 30)
        segment = damage(fixture, b"7", other_hash)

        def unreadable(*_: object) -> bytes:
            raise Corruption("a block fails its checksum")

        monkeypatch.setattr(fixture.store, "object", unreadable)
        with capture_logs() as logs:
            fixture.damaged.check_soon(PARTITION, [segment])
            assert await audit.check_suspects() == [segment]
        assert fixture.trees.mismatches_total == 1
        assert [one["damaged"] for one in logs if one["event"] == "trees.rows_are_wrong"] == [["b'b'/b'7'"]]
        await ended(audit)


async def test_a_refused_read_reports_no_row_as_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the machine refuses the read, for example without free file descriptors, the turn is postponed: the tree is
    still served, and no row is reported as unreadable."""

    async with opened(tmp_path) as fixture:
        audit = await prepared(fixture, 30)
        segment = damage(fixture, b"7", other_hash)

        def refusing(_partition: int) -> NoReturn:
            raise LocalFault("the store cannot be read or written: too many open files")

        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.setattr(fixture.store.transfers, "snapshot", refusing)
            assert await audit.check_next_range(PARTITION) == []
        assert [one["event"] for one in logs] == ["trees.audit_put_off"]
        assert fixture.trees.cached[PARTITION].state is TreeState.READY
        assert await audit.check_next_range(PARTITION) == [segment]
        await ended(audit)


async def test_segments_read_by_an_exchange_are_audited_soon_up_to_a_limit(tmp_path: Path) -> None:
    """A requested segment is compared with its tree without waiting for its turn; changes meanwhile give no alarm, and
    segments over the limit are left to the rounds."""

    async with opened(tmp_path) as fixture:
        audit = await prepared(fixture, 200)
        audit.start()
        segment = damage(fixture, b"5", other_hash)
        fixture.damaged.check_soon(PARTITION, range(segment - 3, segment + 3))
        await eventually(lambda: fixture.trees.mismatches_total == 1)
        assert fixture.trees.mismatches[0].segment == segment
        await eventually(lambda: ready(fixture) and fixture.matches_store())
        await ended(audit)
        fixture.damaged.check_soon(PARTITION, range(10_000))
        assert len(fixture.damaged.take_suspects()[PARTITION]) == SUSPECTS_MAX


async def test_rows_that_are_ahead_of_the_tree_are_no_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the tree has not received yet, that change between two reads, or that arrive by a state transfer, are
    left to the next turn."""
    monkeypatch.setattr(row_audit, "APPLY_WAIT_S", 0.01)

    async with opened(tmp_path) as fixture:
        audit = await prepared(fixture, 50)
        made = fixture.write(30, random.Random(2))
        assert await audit.check_next_range(PARTITION) == []
        fixture.report_applied(made)
        assert fixture.trees.mismatches == []
        assert await audit.check_next_range(PARTITION) == []
        assert ready(fixture)
        assert fixture.matches_store()
        damage(fixture, b"7", other_hash)
        fixture.whole = False  # rows come from another node, and the tree is still to be thrown away
        assert await audit.check_next_range(PARTITION) == []
        assert fixture.trees.mismatches == []
        await ended(audit)


async def test_a_row_that_cannot_be_read_leaves_no_tree_to_prove_anything(tmp_path: Path) -> None:
    """Bytes that are not a row discard the tree, which cannot be built until the replica is repaired. The reason names
    the row."""

    async with opened(tmp_path) as fixture:
        audit = await prepared(fixture, 50)
        damage(fixture, b"7", lambda data: b"\xc1" + data)
        assert await audit.check_next_range(PARTITION) == []
        await eventually(lambda: "cannot be built" in fixture.trees.cached[PARTITION].reason)
        cached = fixture.trees.cached[PARTITION]
        assert cached.state is TreeState.WAITING
        assert "b'b'/b'7' cannot be read" in cached.reason
        await ended(audit)


async def test_a_failing_tree_build_is_reported_once_and_retried_with_backoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reason is reported once, however often the build is retried: each pause is twice the one before, up to a
    limit, and the reason is shown all the time. A requested build does not wait for the pause; after a successful
    build, the next failure is reported."""
    monkeypatch.setattr(tree_cache, "RETRY_MS", 20)
    monkeypatch.setattr(tree_cache, "RETRY_MS_MAX", 100)

    async with opened(tmp_path) as fixture:
        audit = await prepared(fixture, 50)
        cached = fixture.trees.cached[PARTITION]
        pauses_ms: list[int] = []

        def wrong(_partition: int, leaves: Mapping[int, int]) -> None:
            assert not leaves
            pauses_ms.append(cached.retry_at_ms - fixture.trees._time.now_ms())

        monkeypatch.setattr(fixture.damaged, "repair_soon", wrong)
        with capture_logs() as logged:
            damage(fixture, b"7", lambda data: b"\xc1" + data)
            fixture.trees.invalidate(PARTITION)
            await eventually(lambda: cached.failures == 6)
            assert cached.state is not TreeState.READY
            assert "b'7' cannot be read" in cached.reason or cached.reason == "rebuilding"
            for pause_ms, wanted_ms in zip(pauses_ms, (20, 40, 80, 100, 100, 100), strict=False):
                assert wanted_ms - 18 < pause_ms <= wanted_ms
            assert [one["again_in_s"] for one in logged if one["event"] == "trees.build_failed"] == [0]
            monkeypatch.setattr(tree_cache, "RETRY_MS_MAX", 100_000)
            monkeypatch.setattr(tree_cache, "RETRY_MS", 50_000)
            tries = cached.failures
            await eventually(lambda: cached.failures > tries)
            damage(fixture, b"7", lambda data: data[1:])
            assert not ready(fixture)
            fixture.trees.rebuild(PARTITION)
            await eventually(lambda: ready(fixture) and fixture.matches_store())
            assert cached.failures == 0
            damage(fixture, b"7", lambda data: b"\xc1" + data)
            fixture.trees.invalidate(PARTITION)
            await eventually(lambda: cached.failures == 1)
            assert [one["again_in_s"] for one in logged if one["event"] == "trees.build_failed"] == [0, 50]
        await ended(audit)
