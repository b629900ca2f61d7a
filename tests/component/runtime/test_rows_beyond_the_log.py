"""A power loss with durability async may leave a store whose rows are of entries that its log lost (H36)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Any

import pytest

from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.keys import SEGMENT_COUNT, Key
from isthmus.repl.model.objects import Content, decode_object
from isthmus.repl.model.requests import WriteRequest
from isthmus.repl.store import row_codec, rows
from tests.component.runtime.test_unsafe_recovery import force
from tests.support.runtime_cluster import Cluster, Node, eventually

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]

ASYNC: dict[str, Any] = {"durability": "async", "options": ReplicaOptions(max_time_lag_ms=1_500)}


async def put(member: Node, **values: bytes) -> None:
    """Write values one after the other; each replaces the one before."""
    for name, value in values.items():
        found = await member.coordinator.get(Key(b"default", b"b", name.encode()))
        clock = () if found is None else decode_object(found).clock
        await member.coordinator.write(WriteRequest(Key(b"default", b"b", name.encode()), Content(value), clock))


def state(member: Node) -> dict[bytes, list[bytes]]:
    """The values of all keys, as the store of a node has them; its change index names each of them once."""
    store, found, newest = member.runtime.store, {}, {}
    with closing(store.transfers.snapshot(0)) as snapshot:
        for _, bucket, key, row in snapshot.key_rows(0, SEGMENT_COUNT):
            data = snapshot.object(bucket, key)
            assert data is not None
            found[key] = [s.value for s in decode_object(data).live]
            newest[rows.bucket_head(bucket) + key] = decode_key_row(row).offset
        changes = [
            (row.offset, rows.change_place(row.offset, row.change)[1])
            for row in row_codec.decode_rows(snapshot.rows(0, 1 << 30).rows)
        ]
    assert sorted((offset, tail) for tail, offset in newest.items()) == changes
    return found


async def lose_power(t: Cluster, base: Path, **left: tuple[str, ...]) -> None:
    """All machines lose power. The parts of each node that `left` names, "log" or "store", return to their state in
    `base`."""
    for node in list(t.members):
        await t.kill(node)
    for node, parts in left.items():
        for part in parts:
            shutil.rmtree(t.directory / node / part)
            shutil.copytree(base / node / part, t.directory / node / part)
    for node in left:
        await t.open(node, boot_id="boot-2")
    await eventually(lambda: all(_knows_all_returned(member, len(left)) for member in t.members.values()))


def _knows_all_returned(member: Node, nodes: int) -> bool:
    """Whether a node has seen that all are back with another log id."""
    record = member.controller.records.get(0)
    return record is not None and record.reason.count("came back with another log") == nodes


async def keep(t: Cluster, base: Path) -> None:
    """Save the disks' present contents to `base`, and continue."""
    nodes = list(t.members)
    for node in nodes:
        await t.kill(node)
    shutil.copytree(t.directory, base)
    for node in nodes:
        await t.open(node)
    await t.settled()


@pytest.mark.logs_errors("UNCLEAN_ELECTION", "attaching.rows_beyond_log")
async def test_a_follower_gives_up_rows_of_entries_that_no_leader_has(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """The forced replica never had the last writes; a replica whose store kept their rows ends with the others'
    rows."""

    async with start_cluster(tmp_path / "cluster", **ASYNC) as t:
        await put(await t.led(), a=b"1", b=b"1")
        await t.level()
        await keep(t, tmp_path / "base")
        await put(await t.led(), a=b"2", c=b"2", d=b"2")
        await t.level()
        await lose_power(t, tmp_path / "base", n1=("log", "store"), n2=("log", "store"), n3=("log",))
        first, last = t.members["n1"], t.members["n3"]
        assert last.runtime.store.object(0, b"b", b"c") is not None
        await force(t, first, first)
        await put(first, e=b"3", f=b"3", g=b"3", h=b"3")
        await t.level()
        wanted = {b"a": [b"1"], b"b": [b"1"], b"e": [b"3"], b"f": [b"3"], b"g": [b"3"], b"h": [b"3"]}
        assert [state(member) for member in t.members.values()] == [wanted] * 3


@pytest.mark.parametrize("writes", [1, 9])
@pytest.mark.logs_errors("UNCLEAN_ELECTION", "attaching.rows_beyond_log")
async def test_a_forced_only_replica_never_reuses_an_offset_of_a_lost_entry(
    tmp_path: Path, start_cluster: ClusterFactory, writes: int
) -> None:
    """The replica serves its rows once its log is beyond them; each later write has an offset of its own in the
    index."""

    async with start_cluster(tmp_path / "cluster", 1, factor=1, min_isr=1, **ASYNC) as t:
        await put(await t.led(), a=b"1", b=b"1")
        await keep(t, tmp_path / "base")
        await put(await t.led(), a=b"2", c=b"2", d=b"2")
        await lose_power(t, tmp_path / "base", n1=("log",))
        member = t.members["n1"]
        await force(t, member, member)
        found = member.runtime.store.applied(0)
        assert member.partition().replica.applied == found.offset
        wanted = {b"a": [b"2"], b"b": [b"1"], b"c": [b"2"], b"d": [b"2"]}
        assert state(member) == wanted
        for n in range(writes):
            await put(member, **{"efghijklm"[n]: b"3"})
            wanted[b"efghijklm"[n : n + 1]] = [b"3"]
        await put(member, a=b"4")
        wanted[b"a"] = [b"4"]
        await eventually(lambda: not member.runtime.store.needs_replay())
        assert state(member) == wanted
