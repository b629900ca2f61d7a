"""Operators' commands on source queues: register, suspend, clear, release, push, throttle, peek."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from isthmus.config.settings import QueueSettings
from isthmus.queues import cursor_keeper
from isthmus.queues.admin import GapChoice
from isthmus.queues.queue_documents import PUBLISHING, SERVING, AuditInfo
from isthmus.queues.rate_limit import Rates
from isthmus.queues.window_rules import FOLD, FULL_SYNC, REAL_TIME
from isthmus.queues.wire import OFF, THROTTLED, BatchAck, OwnedByOther, UnknownQueue
from isthmus.repl.coordinator.routing import UnknownBucketType
from isthmus.repl.model.errors import BadInput, IsthmusError, NotReady
from isthmus.repl.model.keys import Key
from isthmus.repl.model.requests import Isolation
from tests.support.memory_metastore import MemoryEnsemble
from tests.support.queue_listings import listed_queues
from tests.support.queue_node import PARTITIONS, QueueNode, adds_up, audited_node
from tests.support.queue_source import BUCKET, SINK, THIRD

pytestmark = pytest.mark.virtual_time

ACT = AuditInfo("ann", 1_000, "because")


def audit_info(queue_node: QueueNode) -> AuditInfo:
    """The audit info of a command that is issued now."""
    return AuditInfo("ann", queue_node.clock.wall_ms(), "because")


def keys(*names: bytes) -> list[Key]:
    return [Key(b"default", BUCKET, name) for name in names]


async def settled(queue_node: QueueNode, name: str = "q") -> None:
    """Waits until all due CURSOR entries are applied."""

    def done() -> bool:
        (queue,) = [q for q in queue_node.served() if q.settings.name == name]
        decree = queue.stored.command
        return (
            not queue.machine.wanted_cursors(0)
            and not queue.writing_cursor
            and len(queue.machine.windows) == len(PARTITIONS)
            and (
                decree is None or all(w.state.command_version == decree.version for w in queue.machine.windows.values())
            )
        )

    await queue_node.eventually(done)


async def caught_up(queue_node: QueueNode) -> None:
    """Waits until the windows have read all waiting changes."""
    await queue_node.eventually(lambda: not queue_node.served()[0].machine.incomplete_windows())


async def test_a_filter_holds_back_in_memory_and_from_the_index_alike() -> None:
    """Only changes of buckets that the filter includes are served, whether they were applied before the first fetch or
    after it."""

    async with audited_node(QueueSettings("q"), QueueSettings("not", filter="!bucketname:bucket")) as queue_node:
        queue_node.put(b"a", b"b")
        assert await queue_node.drain(queue="not") == []
        assert await queue_node.drain(queue="q") == [b"a", b"b"]
        queue_node.put(b"c")
        assert await queue_node.drain(queue="q") == [b"c"]
        assert await queue_node.drain(queue="not") == []
        assert queue_node.acts.test_filter("not", b"default", BUCKET)["rule"] == "!bucketname:bucket"
        assert queue_node.acts.test_filter("q", b"default", BUCKET)["offered"]


async def test_a_queue_registered_at_run_time_begins_at_the_given_position_on_all_nodes() -> None:
    """A queue registered from now has later changes only, from 0 all of them; it exists after a restart and on another
    node; after it is delisted it exists nowhere."""

    ensemble = MemoryEnsemble()
    queue_node, other = QueueNode(ensemble=ensemble), QueueNode(ensemble=ensemble)
    await queue_node.start()
    await other.start()
    queue_node.put(b"old")
    queue_node.clock.skew_ms += 5_000
    await queue_node.acts.register("now", {"filter": "any"}, queue_node.clock.wall_ms(), audit_info(queue_node))
    await queue_node.acts.register("all", {}, 0, audit_info(queue_node))
    await other.eventually(lambda: len(other.served()) == 3)
    await settled(queue_node, "now")
    await settled(queue_node, "all")
    queue_node.clock.skew_ms += 5_000
    queue_node.put(b"new")
    assert await queue_node.drain(queue="now") == [b"new"]
    await queue_node.crash()
    await queue_node.start(lead=False)
    assert [q.settings.name for q in queue_node.served()] == ["q", "now", "all"]
    for partition in PARTITIONS:
        queue_node.lead(partition)
    await settled(queue_node, "all")
    assert await queue_node.drain(queue="all") == [b"old", b"new"]
    with pytest.raises(BadInput, match="there is one already, which stays as it is"):
        await queue_node.acts.register("all", {}, 0, audit_info(queue_node))
    with pytest.raises(BadInput, match="is not a rule of a filter"):
        await queue_node.acts.register("odd", {"filter": "bucket:x"}, 0, audit_info(queue_node))
    for name in ("now", "q"):
        await queue_node.acts.delist(name, audit_info(queue_node))
    await other.eventually(lambda: [q.settings.name for q in other.served()] == ["all"])
    with pytest.raises(UnknownQueue):
        await queue_node.fetch(queue="q")
    await queue_node.close()
    await other.close()


async def test_the_gap_is_exactly_the_changes_published_while_suspended() -> None:
    """Changes that waited before the suspension are served. Changes during it are left out, counted, and in a gap that
    survives a crash; later ones are served. Only a full-sync closes the gap (R-GAP)."""

    async with audited_node() as queue_node:
        await queue_node.fetch(wait_ms=0)
        await settled(queue_node)
        queue_node.put(b"before")
        await queue_node.acts.suspend("q", PUBLISHING, None, audit_info(queue_node))
        await settled(queue_node)
        queue_node.put(b"while", b"while2")
        gaps = [gap for gap in queue_node.acts.gaps("q") if gap["partition"] == PARTITIONS[0]]
        assert [(gap["upto_offset"], gap["what"], gap["by"]) for gap in gaps] == [(None, "publishing-suspended", "ann")]
        assert await queue_node.acts.close_gaps("q", GapChoice(upto_ms=1 << 62), audit_info(queue_node)) == 0, (
            "it still grows"
        )
        await queue_node.acts.resume("q", PUBLISHING, None, audit_info(queue_node))
        await settled(queue_node)
        queue_node.put(b"after")
        assert await queue_node.drain() == [b"before", b"after"]
        await queue_node.crash()
        await queue_node.start()
        (gap,) = [gap for gap in queue_node.acts.gaps("q") if gap["count_at_least"]]
        assert (gap["partition"], gap["count_at_least"], gap["reason"]) == (PARTITIONS[0], 2, "because")
        rows = {row.key: row.offset for row in queue_node.store.changes(PARTITIONS[0], 0, 100)}
        assert gap["from_offset"] <= rows[b"while"] < rows[b"while2"] < gap["upto_offset"]
        assert rows[b"before"] < gap["from_offset"]
        assert rows[b"after"] >= gap["upto_offset"]
        assert await queue_node.acts.close_gaps("q", GapChoice(bucket_type=b"other"), audit_info(queue_node)) == 0
        assert await queue_node.acts.close_gaps("q", GapChoice(upto_ms=gap["upto_ms"] - 1), audit_info(queue_node)) == 0
        grown = GapChoice((gap["id"],), upto_ms=gap["upto_ms"] - 1)
        assert await queue_node.acts.close_gaps("q", grown, audit_info(queue_node)) == 0, (
            "it has grown since it was proven"
        )
        assert await queue_node.acts.close_gaps("q", GapChoice((gap["id"],)), audit_info(queue_node)) == 1
        assert gap["id"] not in {one["id"] for one in queue_node.acts.gaps("q")}


@pytest.mark.parametrize("filter_", ["!buckettype:default", "block_rtq"])
@pytest.mark.parametrize("act", ["suspend", "clear", "clear before a cursor", "release", "cascade"])
async def test_where_a_queue_includes_nothing_of_a_bucket_type_no_gap_begins(
    filter_: str, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No comparison of what the queue carries would ever close a gap there: neither a suspension of publishing over a
    change of leaders, nor a clear or a release of more changes than are looked at, nor a wider cascade leaves one
    (R-GAP)."""

    monkeypatch.setattr(cursor_keeper, "SINCE_ROWS", 4)
    first = PARTITIONS[0]
    queue_node = QueueNode(QueueSettings("q", filter=filter_))
    await queue_node.start(lead=act != "clear before a cursor")
    if act not in ("clear", "clear before a cursor"):
        await queue_node.fetch(wait_ms=0)
        await settled(queue_node)
    if act == "suspend":
        await queue_node.acts.suspend("q", PUBLISHING, None, audit_info(queue_node))
        await settled(queue_node)
    if act != "cascade":
        queue_node.queues.leadership(first, False, 0)
    queue_node.put(*(b"%d" % number for number in range(8)))
    queue_node.clock.skew_ms += 2_000
    if act == "suspend":
        queue_node.lead(first)
        await settled(queue_node)
        await queue_node.acts.resume("q", PUBLISHING, None, audit_info(queue_node))
    elif act == "release":
        await queue_node.acts.release("q", queue_node.clock.wall_ms(), audit_info(queue_node))
    elif act == "cascade":
        assert await queue_node.drain() == []
        await queue_node.acts.change_settings("q", {"cascade": True}, audit_info(queue_node))
    else:
        await queue_node.acts.clear("q", audit_info(queue_node))
    for partition in PARTITIONS:
        queue_node.lead(partition)
    await settled(queue_node)
    assert queue_node.acts.gaps("q") == []
    await queue_node.close()


async def test_a_filter_widened_while_publishing_is_suspended_begins_the_gap_and_names_what_was_passed_over() -> None:
    """What the earlier filter passed over and what is left out afterwards are in gaps; what comes later is served."""

    async with audited_node(QueueSettings("q", filter="!buckettype:default")) as queue_node:
        queue_node.put(b"passed over")
        await queue_node.drain()
        await queue_node.acts.suspend("q", PUBLISHING, None, audit_info(queue_node))
        await settled(queue_node)
        queue_node.put(b"while")
        await queue_node.acts.change_settings("q", {"filter": "any"}, audit_info(queue_node))
        await settled(queue_node)
        queue_node.put(b"left out")
        await queue_node.acts.resume("q", PUBLISHING, None, audit_info(queue_node))
        await settled(queue_node)
        queue_node.put(b"after")
        assert await queue_node.drain() == [b"after"]
        gaps = [gap for gap in queue_node.acts.gaps("q") if gap["partition"] == PARTITIONS[0]]
        rows = queue_node.store.changes(PARTITIONS[0], 0, 100)
        named = [row.key for row in rows if any(g["from_offset"] <= row.offset < g["upto_offset"] for g in gaps)]
        assert named == [b"passed over", b"while", b"left out"]


async def test_one_node_may_be_suspended_alone() -> None:
    """A suspension that names another node changes nothing here, but is listed."""

    async with audited_node() as queue_node:
        await queue_node.acts.suspend("q", SERVING, "elsewhere", audit_info(queue_node))
        queue_node.put(b"a")
        assert await queue_node.drain() == [b"a"]
        (queue,) = await listed_queues(queue_node.queues)
        assert [s["node"] for s in queue["suspensions"]] == ["elsewhere"]
        assert (queue["serving"], queue["publishing"]) == ("running", "running")


@pytest.mark.parametrize("off_ms", [-3_600_000, 3_600_000])
async def test_a_clear_drops_exactly_the_backlog_whatever_the_wall_clock(off_ms: int) -> None:
    """The clock of the node that receives the command may be an hour off those of the leaders: a clear gives up all
    that was applied, in a gap that covers the time of the changes; later changes are served."""

    async with audited_node() as queue_node:
        await queue_node.fetch(wait_ms=0)
        await settled(queue_node)
        queue_node.put(b"a", b"b")
        made_ms = queue_node.clock.wall_ms()
        act = audit_info(queue_node)
        await queue_node.acts.clear("q", act._replace(at_ms=act.at_ms + off_ms))
        await settled(queue_node)
        queue_node.put(b"after")
        assert await queue_node.drain() == [b"after"]
        (gap,) = [gap for gap in queue_node.acts.gaps("q") if gap["partition"] == PARTITIONS[0]]
        assert gap["upto_ms"] >= made_ms


async def test_where_no_leader_answered_a_clear_goes_by_the_latest_clock() -> None:
    """A partition whose leader did not report its applied offset is cleared up to the latest wall clock of the
    nodes."""

    async with audited_node() as queue_node:
        await queue_node.fetch(wait_ms=0)
        await settled(queue_node)
        first, second = PARTITIONS[:2]
        queue_node.put(b"a", partition=first)
        queue_node.put(b"x", partition=second)
        now = queue_node.acts.applied()
        answered = tuple(one for one in now.positions if one[0] == first)
        await queue_node.acts.clear("q", audit_info(queue_node), now._replace(positions=answered))
        await settled(queue_node)
        queue_node.clock.skew_ms += 5_000
        queue_node.put(b"b", partition=first)
        queue_node.put(b"y", partition=second)
        assert sorted(await queue_node.drain()) == [b"b", b"y"]


@pytest.mark.parametrize("off_ms", [-3_600_000, 3_600_000])
async def test_from_now_is_an_offset_and_not_a_time(off_ms: int) -> None:
    """A queue that begins now, or is released from now, offers only changes applied afterwards, for any wall clock of
    the node that receives the command."""

    async with audited_node() as queue_node:
        queue_node.put(b"old")
        assert await queue_node.drain() == [b"old"]
        queue_node.put(b"waits")
        now = queue_node.acts.applied()
        skewed = now._replace(earliest_ms=now.earliest_ms + off_ms, latest_ms=now.latest_ms + off_ms)
        act = audit_info(queue_node)._replace(at_ms=now.latest_ms + off_ms)
        await queue_node.acts.register("late", {}, 0, act, now=skewed)
        await queue_node.acts.release("q", 0, act, skewed)
        await settled(queue_node, "late")
        await settled(queue_node)
        queue_node.put(b"new")
        assert await queue_node.drain(queue="late") == [b"new"]
        assert await queue_node.drain(cluster=THIRD) == [b"new"]


async def test_serving_and_publishing_may_be_suspended_in_one_act() -> None:
    """Both are suspended, and both resumed, each by one write."""

    async with audited_node() as queue_node:
        await queue_node.fetch(wait_ms=0)
        await queue_node.acts.suspend("q", [SERVING, PUBLISHING], None, audit_info(queue_node))
        (row,) = await listed_queues(queue_node.queues)
        assert (row["serving"], row["publishing"]) == ("suspended", "suspended")
        await queue_node.acts.resume("q", [SERVING, PUBLISHING], None, audit_info(queue_node))
        await settled(queue_node)
        (row,) = await listed_queues(queue_node.queues)
        assert (row["serving"], row["publishing"]) == ("running", "running")
        with pytest.raises(BadInput, match="give 'serving'"):
            await queue_node.acts.suspend("q", [], None, audit_info(queue_node))


@pytest.mark.parametrize("wrong", ["bucketname:%zz", "bucketname: sp", "buckettype:a, bucketname:50%"])
async def test_a_filter_that_reads_otherwise_than_it_was_meant_is_refused(wrong: str) -> None:
    """A percent sign that encodes nothing and a space after the colon are mistakes: they are refused at the
    registration of a queue; a queue that an older version registered so is still served."""

    async with audited_node() as queue_node:
        with pytest.raises(BadInput):
            await queue_node.acts.register("odd", {"filter": wrong}, 0, audit_info(queue_node))
        value = json.dumps({"odd": {"filter": wrong, "by": "", "at_ms": 1, "reason": ""}}).encode()
        await queue_node.metastore.put("/queue-definitions", value, None)
        await queue_node.eventually(lambda: len(queue_node.served()) == 2)


async def test_a_clear_drops_the_backlog_and_records_a_gap() -> None:
    """After a clear no earlier change is served, a gap covers them, and later ones are served (R-DECREE)."""

    async with audited_node() as queue_node:
        await queue_node.fetch(wait_ms=0)
        await settled(queue_node)
        queue_node.put(b"a", b"b")
        await queue_node.acts.push("q", keys(b"x"), FOLD, 0)
        await queue_node.acts.clear("q", audit_info(queue_node))
        await settled(queue_node)
        queue_node.clock.skew_ms += 2_000
        queue_node.put(b"later")
        assert await queue_node.drain() == [b"later"]
        shown = queue_node.acts.gaps("q")
        assert {gap["what"] for gap in shown} == {"cleared"}
        assert {gap["priority"] for gap in shown} == {REAL_TIME, FOLD}
        assert await queue_node.acts.close_gaps("q", GapChoice(), audit_info(queue_node)) == len(shown)
        assert queue_node.acts.gaps("q") == []


async def test_a_clear_of_more_changes_than_are_looked_at_leaves_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clear looks at the first changes that it gives up, whether the queue offers one of them. Beyond that number it
    does not know, and an offered change among the later ones must not be dropped without a trace: it records a gap."""

    monkeypatch.setattr(cursor_keeper, "SINCE_ROWS", 8)
    first = PARTITIONS[0]
    async with audited_node(QueueSettings("q", filter=f"bucketname:{BUCKET.decode()}")) as queue_node:
        queue_node.put(b"first")
        assert await queue_node.drain() == [b"first"]
        await settled(queue_node)
        queue_node.queues.leadership(first, False, queue_node.fake_store.ends[first])
        for number in range(8):
            put_into_bucket(queue_node, b"other", b"%d" % number)
        queue_node.put(b"offered")
        queue_node.clock.skew_ms += 2_000
        await queue_node.acts.clear("q", audit_info(queue_node))
        queue_node.lead(first)
        await settled(queue_node)
        assert await queue_node.drain() == []
        (row,) = [row for row in queue_node.store.changes(first, 0, 100) if row.key == b"offered"]
        (gap,) = [gap for gap in queue_node.acts.gaps("q") if gap["partition"] == first]
        assert gap["from_offset"] <= row.offset < gap["upto_offset"]


async def test_a_clear_of_an_unstarted_queue_covers_its_whole_backlog() -> None:
    """A partition without a leader since the queue was registered gets the registration and the clear at once; it
    records the changes given up as a gap, as a partition that had a position does."""

    queue_node = QueueNode()
    await queue_node.start(lead=False)
    queue_node.put(b"a", b"b")
    await queue_node.acts.clear("q", audit_info(queue_node))
    queue_node.clock.skew_ms += 2_000
    queue_node.lead(PARTITIONS[0])
    await queue_node.eventually(lambda: PARTITIONS[0] in queue_node.queues.machines()["q"].windows)
    (gap,) = queue_node.queues.machines()["q"].windows[PARTITIONS[0]].state.gaps
    assert (gap.start, gap.what) == (0, "cleared")
    assert gap.end >= 2
    await queue_node.close()


async def test_a_released_queue_goes_to_another_cluster_from_the_given_position() -> None:
    """The old owner cannot fetch at once or acknowledge any more; the new one begins at 0 (R-DECREE)."""

    async with audited_node() as queue_node:
        queue_node.put(b"a")
        reply = await queue_node.fetch()
        assert [item[5] for item in reply.items] == [b"a"]
        await queue_node.fetch(acks=[BatchAck(reply.batch, reply.owner_version)], wait_ms=0)
        await queue_node.acts.release("q", 0, audit_info(queue_node))
        with pytest.raises(OwnedByOther, match="released"):
            await queue_node.fetch()
        with pytest.raises(BadInput, match="has no owner"):
            await queue_node.acts.release("q", 0, audit_info(queue_node)._replace(reason="once more"))
        await settled(queue_node)
        assert await queue_node.drain(cluster=THIRD) == [b"a"]
        with pytest.raises(OwnedByOther):
            await queue_node.fetch(cluster=SINK)


@pytest.mark.parametrize("then", ["placed", "cleared"])
async def test_a_partition_that_missed_a_release_applies_it_before_the_next_command(then: str) -> None:
    """R-DECREE: while a partition has no leader its queue is released, then placed elsewhere or cleared. The next owner
    has none of the old owner's changes: they are served again, or are in the gap."""

    async with audited_node() as queue_node:
        queue_node.put(b"a")
        assert await queue_node.drain() == [b"a"]
        queue_node.queues.leadership(PARTITIONS[0], False, queue_node.fake_store.ends[PARTITIONS[0]])
        await queue_node.acts.release("q", 0, audit_info(queue_node))
        if then == "placed":
            await queue_node.acts.place("q", ((PARTITIONS[1], 0),), audit_info(queue_node))
        else:
            await queue_node.acts.clear("q", audit_info(queue_node))
        queue_node.lead(PARTITIONS[0])
        await settled(queue_node)
        assert await queue_node.drain(cluster=THIRD) == ([b"a"] if then == "placed" else [])
        gaps = [gap["from_offset"] for gap in queue_node.acts.gaps("q") if gap["partition"] == PARTITIONS[0]]
        assert gaps == ([] if then == "placed" else [0])


@pytest.mark.parametrize("off_ms", [-3_600_000, 3_600_000])
async def test_the_former_owner_waits_a_minute_whatever_the_wall_clock(off_ms: int) -> None:
    """The clock of the node that released the queue may be an hour ahead or behind: the minute is counted by the node
    of the queue."""

    async with audited_node() as queue_node:
        queue_node.put(b"a")
        assert await queue_node.drain() == [b"a"]
        act = audit_info(queue_node)
        await queue_node.acts.release("q", 0, act._replace(at_ms=act.at_ms + off_ms))
        for _ in range(2):
            with pytest.raises(OwnedByOther, match="released"):
                await queue_node.fetch(wait_ms=0)
            queue_node.clock.skew_ms += 31_000
        await settled(queue_node)
        assert await queue_node.drain() == [b"a"]


async def test_a_placed_queue_goes_on_from_exact_offsets_and_leaves_no_gap() -> None:
    """Each named partition continues at its offset, forward or back, and others keep their position. The skipped
    changes are not a gap, since they were copied by other means. An offset above the applied one takes effect when it
    is reached."""

    async with audited_node() as queue_node:
        first, second = PARTITIONS[:2]
        queue_node.put(b"a", b"b", partition=first)
        queue_node.put(b"x", partition=second)
        await queue_node.fetch(wait_ms=0)
        await settled(queue_node)
        queue_node.put(b"c", partition=first)
        upto = queue_node.fake_store.ends[first]
        await queue_node.acts.place("q", ((first, upto),), audit_info(queue_node))
        await settled(queue_node)
        assert await queue_node.drain() == [b"x"]
        queue_node.put(b"d", partition=first)
        assert await queue_node.drain() == [b"d"]
        assert queue_node.acts.gaps("q") == []
        await queue_node.acts.place("q", ((first, 0), (second, 1 << 40)), audit_info(queue_node))
        await settled(queue_node)
        assert await queue_node.drain() == [b"a", b"b", b"c", b"d"]
        queue_node.put(b"y", partition=second)
        assert await queue_node.drain() == [b"y"]
        assert queue_node.acts.gaps("q") == []
        with pytest.raises(UnknownQueue):
            await queue_node.acts.place("unknown", ((first, 0),), audit_info(queue_node))


async def test_a_queue_may_be_registered_at_exact_offsets() -> None:
    """The queue serves changes at its offset and above, and all changes of a partition that is not named."""

    async with audited_node() as queue_node:
        first, second = PARTITIONS[:2]
        queue_node.put(b"a", b"b", partition=first)
        queue_node.put(b"x", partition=second)
        upto = queue_node.fake_store.ends[first]
        await queue_node.acts.register(
            "exact", {}, queue_node.clock.wall_ms(), audit_info(queue_node), ((first, upto),)
        )
        await settled(queue_node, "exact")
        queue_node.put(b"c", partition=first)
        assert sorted(await queue_node.drain(queue="exact")) == [b"c", b"x"]


async def test_registering_a_queue_that_is_there_moves_nothing() -> None:
    """The registration is refused, and the changes that waited in the queue are still served."""

    async with audited_node() as queue_node:
        queue_node.put(b"a")
        await queue_node.fetch(wait_ms=0, queue="q")
        await settled(queue_node)
        queue_node.put(b"b")
        queue_node.clock.skew_ms += 5_000
        with pytest.raises(BadInput, match="there is one already"):
            await queue_node.acts.register("q", {}, queue_node.clock.wall_ms(), audit_info(queue_node))
        await settled(queue_node)
        assert queue_node.served()[0].stored.command is None
        await queue_node.crash()
        await queue_node.start()
        assert await queue_node.drain() == [b"a", b"b"]


async def test_a_queue_registered_under_an_earlier_name_begins_anew() -> None:
    """Suspensions, limits, losses and the owner of a delisted queue are not those of the next one of its name: it takes
    changes, and another cluster may fetch from it."""

    async with audited_node() as queue_node:
        act = audit_info(queue_node)
        await queue_node.acts.register("again", {}, 0, act)
        await settled(queue_node, "again")
        await queue_node.fetch(wait_ms=0, queue="again")
        await queue_node.acts.push("again", keys(b"a"), FULL_SYNC, 0)
        await queue_node.acts.suspend("again", (SERVING, PUBLISHING), None, act)
        await queue_node.acts.throttle("again", Rates(objects=1), act)
        await queue_node.acts.delist("again", act)
        await queue_node.eventually(lambda: len(queue_node.served()) == 1)
        await queue_node.acts.register("again", {}, 0, act)
        await settled(queue_node, "again")
        stored = queue_node.queues.named("again").stored
        assert (stored.suspensions, stored.rates, stored.lost, stored.held) == ((), None, (), ())
        queue_node.put(b"new")
        reply = await queue_node.fetch(queue="again", cluster=THIRD)
        assert [item[5] for item in reply.items] == [b"new"]


async def test_a_queue_registered_under_an_earlier_name_has_its_own_filter_and_no_gap() -> None:
    """What an earlier queue of the name left out is not missing to the new one, which offers by its own definition: no
    gap of the earlier one counts, and no change that operators made of the earlier one's filter."""

    async with audited_node() as queue_node:
        await queue_node.acts.register("again", {"filter": f"bucketname:{BUCKET.decode()}"}, 0, audit_info(queue_node))
        await settled(queue_node, "again")
        put_into_bucket(queue_node, b"other", b"passed over")
        queue_node.put(b"a")
        await queue_node.drain(queue="again")
        await queue_node.acts.change_settings("again", {"filter": "any"}, audit_info(queue_node))
        await settled(queue_node, "again")
        assert {gap["what"] for gap in queue_node.acts.gaps("again")} == {"offer-changed"}
        await queue_node.acts.delist("again", audit_info(queue_node))
        await queue_node.eventually(lambda: len(queue_node.served()) == 1)
        queue_node.clock.skew_ms += 2_000
        mine = "bucketname:mine"
        await queue_node.acts.register("again", {"filter": mine}, 0, audit_info(queue_node))
        await settled(queue_node, "again")
        assert queue_node.acts.gaps("again") == []
        assert str(queue_node.queues.named("again").filter) == mine
        put_into_bucket(queue_node, b"mine", b"b")
        assert await queue_node.drain(queue="again", cluster=THIRD) == [b"b"]


async def test_bulk_references_go_last_and_are_bounded() -> None:
    """Real time comes before full-sync, and full-sync before fold, in any order of pushes; a producer at the limit
    waits until there is room."""

    async with audited_node(QueueSettings("q", queue_limit_count=10)) as queue_node:
        queue_node.put(b"a", b"b", b"c", b"d")
        await queue_node.drain()
        assert await queue_node.acts.push("q", keys(b"a"), FOLD, 0) == 1
        assert await queue_node.acts.push("q", keys(b"b", b"b", b"nowhere"), FULL_SYNC, 0) == 3
        queue_node.put(b"now")
        seen, acks = [], []
        for _ in range(3):
            reply = await queue_node.fetch(acks=acks, wait_ms=1_000)
            seen.append((reply.priority, [item[5] for item in reply.items]))
            assert all(item[8] for item in reply.items)
            acks = [BatchAck(reply.batch, reply.owner_version, (), (1, 0, 0, 0))]
        assert seen == [(REAL_TIME, [b"now"]), (FULL_SYNC, [b"b"]), (FOLD, [b"a"])]
        await queue_node.fetch(acks=acks, wait_ms=0)
        (queue,) = await listed_queues(queue_node.queues)
        full_sync, fold = queue["priorities"]["full_sync"], queue["priorities"]["fold"]
        assert (full_sync["queued"], full_sync["collapsed"], full_sync["vanished"]) == (2, 1, 1)
        assert (fold["acknowledged"], tuple(fold["outcomes"])) == (1, (1, 0, 0, 0))
        assert await queue_node.acts.push("q", keys(*(b"%d" % n for n in range(12))), FOLD, 20) == 10, "the limit is 10"
        waiting = asyncio.ensure_future(queue_node.acts.push("q", keys(b"a"), FOLD, 10_000))
        await queue_node.eventually(lambda: queue_node.served()[0]._producers)
        reply = await queue_node.fetch(wait_ms=0)
        assert reply.items == []
        assert await waiting == 1, "what was not there made room"
        with pytest.raises(BadInput, match="takes no references"):
            await queue_node.acts.push("q", keys(b"a"), REAL_TIME, 0)


async def test_references_lost_in_a_stop_are_counted_and_recorded() -> None:
    """Bulk references that wait when a node stops are recorded as lost when it is back."""

    queue_node = QueueNode()
    await queue_node.start()
    await queue_node.acts.push("q", keys(b"a", b"b"), FULL_SYNC, 0)
    await queue_node.queues.stop()
    await queue_node.start()
    (gap,) = queue_node.acts.gaps()
    assert (gap["what"], gap["count_at_least"], gap["priority"], gap["node"]) == ("stopped", 2, FULL_SYNC, "e1")
    await queue_node.close()


async def test_a_queue_that_discards_keeps_its_limit_and_names_what_it_gave_up() -> None:
    """The first ten of twenty changes without a fetch are served; the others are one gap, which survives a crash, and
    later changes are served once there is room (R-GAP)."""

    async with audited_node(QueueSettings("q", queue_limit_count=10, overflow="discard")) as queue_node:
        await settled(queue_node)
        await caught_up(queue_node)
        names = [b"%02d" % n for n in range(20)]
        queue_node.put(*names)
        queue_node.queues.tick()
        await settled(queue_node)
        (gap,) = queue_node.acts.gaps("q")
        assert (gap["what"], gap["count_at_least"]) == ("discard", 10)
        assert (await queue_node.acts.ledger("q"))["given_up"] == 10
        (lag,) = await queue_node.acts.lags()
        assert "gaps are open: isthmus gaps q" in lag.reason
        await queue_node.crash()
        await queue_node.start()
        assert await queue_node.drain() == names[:10]
        assert [one["id"] for one in queue_node.acts.gaps("q")] == [gap["id"]]
        queue_node.put(b"after")
        assert await queue_node.drain() == [b"after"]


async def test_the_default_at_the_limit_is_to_wait_and_lose_nothing() -> None:
    """Twice as many changes as the limit are all served, without a gap."""

    async with audited_node(QueueSettings("q", queue_limit_count=10)) as queue_node:
        await queue_node.fetch(wait_ms=0)
        await settled(queue_node)
        await caught_up(queue_node)
        names = [b"%02d" % n for n in range(20)]
        queue_node.put(*names)
        assert queue_node.served()[0].machine.budget.references == 10
        assert await queue_node.drain() == names
        assert queue_node.acts.gaps("q") == []


async def test_a_throttled_queue_gives_out_no_more_than_it_may() -> None:
    """At ten changes a second a batch has at most ten and the next one waits; the limit can be changed at run time, is
    shown with the limit in effect, and survives a restart."""

    async with audited_node() as queue_node:
        await queue_node.fetch(wait_ms=0)
        await settled(queue_node)
        await queue_node.acts.throttle("q", Rates(0, 10), audit_info(queue_node))
        await caught_up(queue_node)
        queue_node.put(*(b"%02d" % n for n in range(30)))
        reply = await queue_node.fetch(wait_ms=0)
        assert len(reply.items) == 10
        held = await queue_node.fetch(wait_ms=0)
        assert (held.items, held.state) == ([], THROTTLED)
        queue_node.clock.skew_ms += 500
        assert len((await queue_node.fetch(link=1, wait_ms=0)).items) == 5
        shown = (await listed_queues(queue_node.queues))[0]["throttle"]
        assert "throttled: the limit of objects a second binds" in (await listed_queues(queue_node.queues))[0]["reason"]
        assert shown["configured"]["objects_per_second"] == 10
        assert shown["binding"] == "objects"
        assert (shown["set"]["by"], shown["set"]["reason"]) == ("ann", "because")
        await queue_node.crash()
        await queue_node.start()
        assert queue_node.served()[0].throttle.rates == Rates(0, 10)
        await queue_node.acts.throttle("q", None, audit_info(queue_node))
        assert queue_node.served()[0].throttle.rates == Rates(0, 0)


async def test_a_disabled_source_creates_no_reference_and_reports_it() -> None:
    """With the switch off nothing is served, new changes are a gap, and ledger, status and answers show the reason."""

    async with audited_node(enabled=False) as queue_node:
        await settled(queue_node)
        queue_node.put(b"a")
        reply = await queue_node.fetch(wait_ms=0)
        assert (reply.items, reply.state) == ([], OFF)
        assert "switched off" in (await queue_node.acts.ledger("q"))["reason"]
        assert queue_node.queues.status()["state"] == "off"
        (row,) = await listed_queues(queue_node.queues)
        assert (row["publishing"], row["serving"]) == ("off", "off")
        assert {gap["what"] for gap in queue_node.acts.gaps("q")} == {"publishing-suspended"}
        with pytest.raises(BadInput, match="switched off"):
            await queue_node.acts.push("q", keys(b"a"), FOLD, 0)


async def test_peek_shows_what_would_go_next_and_takes_nothing() -> None:
    """Real-time references come first, also those that are only in the index, then bulk references."""

    async with audited_node() as queue_node:
        queue_node.put(b"a", b"b")
        await queue_node.acts.push("q", keys(b"x"), FOLD, 0)
        for _ in range(2):
            assert [item[5] for item in await queue_node.acts.peek("q", 10)] == [b"a", b"b", b"x"]
        assert [item[5] for item in await queue_node.acts.peek("q", 1)] == [b"a"]
        assert await queue_node.drain() == [b"a", b"b"]


async def test_the_ledger_closes_over_fetches_failures_and_hot_keys() -> None:
    """Every change is acknowledged, collapsed, waiting or under lease, and the outcomes that the sink reported add
    up."""

    async with audited_node() as queue_node:
        await queue_node.fetch(wait_ms=0)
        await settled(queue_node)
        await caught_up(queue_node)
        for _ in range(5):
            queue_node.put(b"hot", b"a", b"b")
        reply = await queue_node.fetch(wait_ms=0)
        assert len(reply.items) == 3
        queue_node.put(b"hot", b"c")
        await queue_node.fetch(
            acks=[BatchAck(reply.batch, reply.owner_version, (0,), (1, 1, 0, 0))], wait_ms=0, count=0
        )
        ledger = await queue_node.acts.ledger("q")
        assert ledger["closes"] is True
        assert ledger["eligible"] == 17
        assert ledger["acknowledged"] == 2
        assert ledger["outcomes"] == {"applied": 1, "merged": 1, "superseded": 0, "rejected": 0}
        assert ledger["collapsed"] + ledger["waiting"] + ledger["acknowledged"] == 17


async def test_the_ledger_adds_up_over_leaderships_and_moved_cursors() -> None:
    """Changes that wait when a leadership ends, or when an operator clears, are handed on and found by the next leader:
    the columns of the ledger always add up."""

    async with audited_node() as queue_node:
        await queue_node.fetch(wait_ms=0)
        await settled(queue_node)
        await caught_up(queue_node)
        queue_node.put(b"a", b"b", b"c")
        assert adds_up(ledger := await queue_node.acts.ledger("q")), ledger
        queue_node.queues.leadership(PARTITIONS[0], False, 0)
        ledger = await queue_node.acts.ledger("q")
        assert adds_up(ledger), ledger
        assert (ledger["handed_on"], ledger["waiting"]) == (3, 0)
        queue_node.lead(PARTITIONS[0])
        await queue_node.eventually(lambda: len(queue_node.served()[0].machine.windows) == len(PARTITIONS))
        await settled(queue_node)
        await caught_up(queue_node)
        ledger = await queue_node.acts.ledger("q")
        assert adds_up(ledger), ledger
        assert (ledger["found"], ledger["handed_on"], ledger["waiting"]) == (3, 3, 3)
        await queue_node.acts.clear("q", audit_info(queue_node))
        await settled(queue_node)
        await caught_up(queue_node)
        ledger = await queue_node.acts.ledger("q")
        assert adds_up(ledger), ledger
        assert (ledger["handed_on"], ledger["waiting"], ledger["closes"]) == (6, 0, True)


A_KEY = Key(b"default", b"bucket", b"a")


async def test_a_queue_without_real_time_makes_no_write_unreplicated() -> None:
    """If only a queue for repairs has not passed a local write, a push that replaces it keeps the pusher's origin
    (R-OWED)."""

    async with audited_node(QueueSettings("q", filter="block_rtq")) as queue_node:
        queue_node.put(b"a")
        assert not queue_node.table.is_unreplicated(PARTITIONS[0], 1, THIRD, A_KEY)

    async with audited_node(QueueSettings("q")) as queue_node:
        queue_node.put(b"a")
        assert queue_node.table.is_unreplicated(PARTITIONS[0], 1, THIRD, A_KEY)


async def test_filtered_changes_do_not_count_as_unreplicated() -> None:
    """If no queue would have offered a local write, a push that replaces it keeps the pusher's origin (R-OWED)."""

    async with audited_node(QueueSettings("q", filter="buckettype:default,!bucketname:bucket")) as queue_node:
        queue_node.put(b"a")
        assert not queue_node.table.is_unreplicated(PARTITIONS[0], 1, THIRD, A_KEY)
        assert queue_node.table.is_unreplicated(PARTITIONS[0], 1, THIRD, A_KEY._replace(bucket=b"other"))
        assert not queue_node.table.is_unreplicated(PARTITIONS[0], 1, THIRD, A_KEY._replace(bucket_type=b"logs"))


async def test_a_dangling_reference_does_not_block_those_behind_it() -> None:
    """A pushed key of a missing bucket type can never be read: it is counted as vanished, and the next ones are served;
    a key that cannot be read now waits."""

    async with audited_node() as queue_node:
        queue_node.put(b"a", b"b")
        await queue_node.drain()
        read = queue_node.get_batch
        errors: list[IsthmusError] = [UnknownBucketType("no such type")]

        async def reading(
            keys: Sequence[Key], isolation: Isolation | None, room_bytes: int, **_waits: bool
        ) -> list[bytes | IsthmusError | None]:
            found = await read(keys, isolation, room_bytes)
            return [errors[0] if key.bucket_type != b"default" else one for key, one in zip(keys, found, strict=True)]

        queue_node.get_batch = reading  # type: ignore[method-assign]
        wanted = [Key(b"nope", BUCKET, b"x"), *keys(b"a", b"b")]
        assert await queue_node.acts.push("q", wanted, FULL_SYNC, 0) == 3
        assert [item[5] for item in (await queue_node.fetch()).items] == [b"a", b"b"]
        bulk = queue_node.served()[0].machine.bulk_queues[0]
        assert bulk.counts.vanished == 1
        errors[0] = NotReady("later")
        assert await queue_node.acts.push("q", [Key(b"nope", BUCKET, b"y")], FULL_SYNC, 0) == 1
        assert (await queue_node.fetch(link=1, wait_ms=0)).items == []
        assert bulk.waiting_count == 1


def put_into_bucket(queue_node: QueueNode, bucket: bytes, *names: bytes) -> None:
    """Keys of another bucket."""
    for name in names:
        entry = queue_node.factory.data(PARTITIONS[0], name, time_ms=queue_node.clock.wall_ms())._replace(bucket=bucket)
        queue_node.fake_store.put(PARTITIONS[0], entry)
        queue_node.apply(PARTITIONS[0], entry)


async def test_a_wider_filter_keeps_the_cursor_and_makes_a_gap_of_what_was_passed_over() -> None:
    """Changes after the update are served. Changes that the old filter skipped below the cursor are in a gap on all
    partitions, over a restart; a key there is explained as in the gap, not as acknowledged (R-OFFER)."""

    async with audited_node(QueueSettings("q", filter=f"bucketname:{BUCKET.decode()}")) as queue_node:
        queue_node.put(b"a")
        put_into_bucket(queue_node, b"other", b"passed over")
        assert await queue_node.drain() == [b"a"]
        await queue_node.acts.change_settings("q", {"filter": "any"}, audit_info(queue_node))
        await settled(queue_node)
        queue_node.put(b"b")
        put_into_bucket(queue_node, b"other", b"c")
        assert await queue_node.drain() == [b"b", b"c"]
        await queue_node.crash()
        await queue_node.start()
        (row,) = await listed_queues(queue_node.queues)
        assert (row["filter"], row["changed"]["offer"]["by"]) == ("any", "ann")
        (gap,) = [gap for gap in queue_node.acts.gaps("q") if gap["partition"] == PARTITIONS[0]]
        assert (gap["from_offset"], gap["what"], gap["by"]) == (0, "offer-changed", "ann")
        (passed,) = [r for r in queue_node.store.changes(PARTITIONS[0], 0, 100) if r.key == b"passed over"]
        assert passed.offset < gap["upto_offset"]
        (said,) = queue_node.acts.explain(Key(b"default", b"other", b"passed over"), PARTITIONS[0], passed)["queues"]
        assert said["state"] == "gap"
        put_into_bucket(queue_node, b"other", b"d")
        assert (await queue_node.drain())[-1] == b"d"


async def test_a_narrower_filter_drops_the_backlog_and_makes_no_gap() -> None:
    """Waiting changes that are excluded now are never served, from memory or from the index; the others are. --default
    restores the old filter, with a gap."""

    async with audited_node() as queue_node:
        await queue_node.fetch(wait_ms=0)
        await settled(queue_node)
        queue_node.put(b"a")
        put_into_bucket(queue_node, b"other", b"dropped")
        await queue_node.acts.change_settings("q", {"filter": "!bucketname:other"}, audit_info(queue_node))
        await settled(queue_node)
        assert await queue_node.drain() == [b"a"]
        assert queue_node.acts.gaps("q") == []
        await queue_node.acts.change_settings("q", {}, audit_info(queue_node), default=True)
        await settled(queue_node)
        (row,) = await listed_queues(queue_node.queues)
        assert row["filter"] == "any"
        assert {gap["what"] for gap in queue_node.acts.gaps("q")} == {"offer-changed"}
        put_into_bucket(queue_node, b"other", b"later")
        assert await queue_node.drain() == [b"later"]


async def test_with_from_0_everything_is_offered_once_more_and_no_gap_is_made() -> None:
    """The queue begins again, so there is no gap."""

    async with audited_node(QueueSettings("q", filter=f"bucketname:{BUCKET.decode()}")) as queue_node:
        queue_node.put(b"a")
        put_into_bucket(queue_node, b"other", b"b")
        assert await queue_node.drain() == [b"a"]
        await queue_node.acts.change_settings("q", {"filter": "any"}, audit_info(queue_node), again=True)
        await settled(queue_node)
        assert await queue_node.drain() == [b"a", b"b"]
        assert queue_node.acts.gaps("q") == []


async def test_a_later_command_does_not_hide_a_partition_that_missed_a_wider_filter() -> None:
    """A partition without a leader during the change executes the later clear and still records the gap; so does one
    that missed two changes of which the second includes less than the first (R-OFFER)."""

    async with audited_node(QueueSettings("q", filter=f"bucketname:{BUCKET.decode()}")) as queue_node:
        away = PARTITIONS[1]
        queue_node.put(b"x", partition=away)
        await queue_node.drain()
        queue_node.queues.leadership(away, False, 0)
        for filter_ in ("any", "bucketname:other"):
            await queue_node.acts.change_settings("q", {"filter": filter_}, audit_info(queue_node))
            await queue_node.eventually(lambda: not queue_node.served()[0].writing_cursor)
        await queue_node.acts.clear("q", audit_info(queue_node))
        await queue_node.eventually(lambda: not queue_node.served()[0].writing_cursor)
        queue_node.lead(away)
        await settled(queue_node)
        found = [gap for gap in queue_node.acts.gaps("q") if gap["partition"] == away]
        assert any(gap["what"].startswith("offer-changed") for gap in found)


async def test_a_new_leader_reads_a_changed_filter_first() -> None:
    """If the partition has executed a newer command than the node knows, the leader does not use the old filter
    (R-OFFER)."""

    ensemble = MemoryEnsemble()
    queue_node = QueueNode(QueueSettings("q", filter=f"bucketname:{BUCKET.decode()}"), ensemble=ensemble)
    await queue_node.start()
    queue_node.put(b"a")
    assert await queue_node.drain() == [b"a"]
    await queue_node.acts.change_settings("q", {"filter": "any"}, audit_info(queue_node))
    await settled(queue_node)
    queue_node.queues.leadership(PARTITIONS[0], False, 0)
    queue = queue_node.served()[0]
    queue.apply_state(queue.stored._replace(command=None), "e1")  # the state before the notification
    assert str(queue.filter) != "any"
    put_into_bucket(queue_node, b"other", b"b")
    queue_node.lead(PARTITIONS[0])
    await settled(queue_node)
    assert str(queue.filter) == "any"
    assert await queue_node.drain() == [b"b"]
    await queue_node.close()


async def test_limits_change_while_the_queue_runs_and_nothing_else_does() -> None:
    """Limits take effect at once and after a restart, no cursor moves and nothing is served twice; invalid values are
    refused."""

    async with audited_node() as queue_node:
        queue_node.put(b"a", b"b")
        await queue_node.fetch(wait_ms=0)
        values = {"object_size_limit_bytes": 1, "queue_limit_count": 7, "overflow": "discard", "lease_ms": 9_000}
        await queue_node.acts.change_settings("q", values, audit_info(queue_node))
        assert (await listed_queues(queue_node.queues))[0]["decree"] is None
        await queue_node.crash()
        await queue_node.start()
        (queue,) = queue_node.served()
        budget = queue.machine.budget
        assert (budget.object_size_limit_bytes, budget.reference_limit, budget.discard) == (1, 7, True)
        assert (queue.machine.leases.lease_ms, queue.machine.bulk_queues[0].limit) == (9_000, 7)
        await queue_node.acts.change_settings("q", {}, audit_info(queue_node), default=True)
        assert queue.settings == QueueSettings("q")
        with pytest.raises(BadInput, match="is not a rule of a filter"):
            await queue_node.acts.change_settings("q", {"filter": "bucket:x"}, audit_info(queue_node))
        with pytest.raises(UnknownQueue):
            await queue_node.acts.change_settings("r", {"filter": "any"}, audit_info(queue_node))
