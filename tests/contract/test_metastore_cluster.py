"""The contract of a metastore that several nodes share: node ids, claims, writes that depend on members, and refreshes.
It runs on every metastore."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from isthmus.repl.controller.reassignments import ids_of_nodes, remove_node
from isthmus.repl.metastore.port import (
    ConditionalWrite,
    NameTaken,
    Precondition,
    SessionState,
    VersionConflict,
    Versioned,
)
from isthmus.repl.metastore.watch_cache import FULL_READ_INTERVAL_S
from isthmus.repl.model.errors import TooLarge, WrongIdentity
from isthmus.repl.model.record import Member
from tests.support.metastore_clients import MetastoreClients, a_record, a_registration, eventually, started


async def refused(call: Awaitable[object]) -> None:
    """The call raises VersionConflict."""
    with pytest.raises(VersionConflict):
        await call


def counted(client: Any) -> list[str]:
    """The paths that the client reads from now on, in order."""
    asked: list[str] = []
    tree = client._tree

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(path: str, *args: Any, **kwargs: Any) -> Any:
            asked.append(path.removeprefix(client._base))
            return call(path, *args, **kwargs)

        return noted

    for name in ("read", "stat", "children"):
        setattr(tree, name, counting(getattr(tree, name)))
    return asked


def before_the_commit(client: Any, act: Callable[[], Awaitable[object]]) -> None:
    """Runs `act` right before the client's next commit, after all its reads."""
    tree, commit = client._tree, client._tree.commit

    async def late(what: str, ops: Sequence[Any]) -> Any:
        tree.commit = commit
        await act()
        return await commit(what, ops)

    tree.commit = late


# --- ids ---


async def test_an_id_that_another_node_has_is_refused_by_its_name_until_that_one_is_removed(
    clients: MetastoreClients,
) -> None:
    """The second node with an id gets WrongIdentity, which names the first, and leaves no trace. This also holds while
    the first is down; otherwise it could not start again. `node remove` frees the id."""

    async with started(clients) as (two, _):
        async with started(clients) as (one, _):
            await one.register(a_registration("n1", id=7))
            with pytest.raises(WrongIdentity, match=r"node n2 has the id 7, which the live node n1 has.*node\.id"):
                await two.register(a_registration("n2", id=7))
            assert sorted(await two.registrations()) == ["n1"]
            assert await two.get("/replicas/n2") is None
            await one.register(a_registration("n1", id=7, active=False))
        with pytest.raises(WrongIdentity, match=r"node n1 has already \(it is down\).*isthmus node remove n1"):
            await two.register(a_registration("n2", id=7))
        assert await ids_of_nodes(two) == {"n1": (7, 0)}
        await remove_node(two, "n1", "ann", dry_run=True)
        assert await ids_of_nodes(two) == {"n1": (7, 0)}
        await remove_node(two, "n1", "ann", dry_run=False)
        await two.register(a_registration("n2", id=7))
        assert (await two.registrations())["n2"].id == 7
        assert await ids_of_nodes(two) == {"n2": (7, 0)}


async def test_a_node_that_goes_by_another_id_gives_up_the_one_before(clients: MetastoreClients) -> None:
    """A new node.id in the file of a node frees the former one for others, at once."""

    async with started(clients) as (other, _):
        async with started(clients) as (one, _):
            await one.register(a_registration("n1", id=7))
        async with started(clients) as (one, _):
            await one.register(a_registration("n1", id=8))
            await other.register(a_registration("n2", id=7))
            assert {node: number for node, (number, _) in (await ids_of_nodes(other)).items()} == {"n1": 8, "n2": 7}


async def test_a_registration_of_another_process_is_not_replaced(
    clients: MetastoreClients,
) -> None:
    """With `takes`, a session replaces the registration that it left itself. A registration of another process stays
    unchanged, with its log ids and its node id, and the refusal names the listener of that process. When that session
    has ended, the name is free (H28)."""

    async with started(clients) as (one, _):
        mine = await one.register(a_registration("n1", id=7, log_ids={3: 5}))
        async with started(clients) as (two, _):
            theirs = await two.register(a_registration("n1", id=8, log_ids={3: 6}, admin_url="http://other:1"))
            for _ in range(2):
                with pytest.raises(NameTaken, match=r"registered as node n1, its admin listener is http://other:1"):
                    await one.register(a_registration("n1", id=7, log_ids={3: 5}), (mine,))
            assert (await one.registrations())["n1"].session_id == theirs
            assert await ids_of_nodes(one) == {"n1": (8, 0)}
            standing = await one.get("/replicas/n1")
            assert standing is not None
            assert b"6" in standing.value
        again = await one.register(a_registration("n1", id=7, log_ids={3: 5}), (mine,))
        assert again > theirs > mine
        assert (await one.registrations())["n1"].log_ids == {3: 5}


async def test_another_node_may_end_exactly_one_session_and_its_claim(clients: MetastoreClients) -> None:
    """`end_registration` deletes the registration of that session, though the session lives, and those of the named
    claims that the session holds; all clients see it. A later registration and another node's claim stay. The node can
    register again, as another session, and keeps its id (R-SUSPECT)."""

    async with started(clients) as (one, _), started(clients) as (two, events):
        first = await one.register(a_registration("n1", id=7, log_ids={3: 5}))
        await two.register(a_registration("n2", id=8))
        assert await one.claim("/controller", b"n1")
        assert await two.claim("/other", b"n2")
        assert set(await two.registrations()) == {"n1", "n2"}
        assert not await two.end_registration("n1", first - 1, ("/controller", "/other"))
        assert set(await two.registrations()) == {"n1", "n2"}
        assert await two.get("/controller") == Versioned(b"n1", 0)
        events.hints.clear()
        assert await two.end_registration("n1", first, ("/controller", "/other", "/never"))
        assert set(await two.registrations()) == {"n2"}
        assert set(await one.registrations()) == {"n2"}
        await eventually(lambda: {"/nodes", "/controller"} <= {*events.hints}, "the hints")
        assert await two.get("/controller") is None
        assert await two.get("/other") == Versioned(b"n2", 0)
        with pytest.raises(WrongIdentity):
            await two.register(a_registration("n2", id=7))
        assert not await two.end_registration("n1", first, ())
        again = await one.register(a_registration("n1", id=7, log_ids={3: 5}), (first,))
        assert again > first
        assert not await two.end_registration("n1", first, ())
        assert (await two.registrations())["n1"].session_id == again


async def test_a_registration_that_is_renewed_meanwhile_is_not_ended(clients: MetastoreClients) -> None:
    """A registration that its process renews during the deletion stays."""

    async with started(clients) as (one, _), started(clients) as (two, _):
        session_id = await one.register(a_registration("n1", log_ids={3: 5}))
        tree, delete = two._tree, two._tree.delete  # type: ignore[attr-defined]

        async def late(path: str, version: int) -> None:
            await one.register(a_registration("n1", log_ids={3: 6}))
            await delete(path, version)

        tree.delete = late
        assert not await two.end_registration("n1", session_id)
        assert (await one.registrations())["n1"].session_id == session_id


async def test_a_write_that_needs_a_member_fails_once_its_session_was_ended(clients: MetastoreClients) -> None:
    """A suspected node is not taken into an ISR before it has registered again (H10)."""

    async with started(clients) as (one, _), started(clients) as (two, _):
        session_id = await one.register(a_registration("n1", log_ids={3: 5}))
        assert await two.create_records([a_record(3, Member("n1", 5))])
        record = (await two.records())[3]
        await two.end_registration("n1", session_id)
        await refused(two.write_record(record, (Member("n1", 5),)))
        await one.register(a_registration("n1", log_ids={3: 5}))
        await two.write_record(record, (Member("n1", 5),))


async def test_of_two_that_register_one_id_at_once_one_succeeds(clients: MetastoreClients) -> None:
    """However the two interleave, exactly one is registered."""

    async with started(clients) as (one, _), started(clients) as (two, _):
        for number in range(1, 6):
            done = await asyncio.gather(
                one.register(a_registration("n1", id=number)),
                two.register(a_registration("n2", id=number)),
                return_exceptions=True,
            )
            assert sorted(type(result) for result in done if not isinstance(result, int)) == [WrongIdentity], done


async def test_an_id_left_by_an_older_session_of_the_node_is_taken_over(clients: MetastoreClients) -> None:
    """A node that comes back at once is not kept out by its own former process (H28), and the old session's end
    does not take the id away from it."""

    async with started(clients) as (new, _), started(clients) as (other, _):
        async with started(clients) as (old, _):
            await old.register(a_registration("n1", id=7))
            await new.register(a_registration("n1", id=7))
        with pytest.raises(WrongIdentity, match="n1"):
            await other.register(a_registration("n2", id=7))


async def test_nodes_that_were_given_no_id_meet_at_zero(clients: MetastoreClients) -> None:
    """0 is an id like any other: the second node of a cluster must be given another one."""

    async with started(clients) as (one, _), started(clients) as (two, _):
        await one.register(a_registration("n1"))
        with pytest.raises(WrongIdentity, match=r"node n2 has the id 0, which the live node n1 has already"):
            await two.register(a_registration("n2"))


async def test_a_registration_comes_back_with_all_its_fields(clients: MetastoreClients) -> None:
    """Address, id, rack and spare log id are read back as they were registered."""

    async with started(clients) as (one, _), started(clients) as (two, _):
        wanted = a_registration("n1", spare_log_id=12, cluster_address="h:7001", id=3, rack="r1")
        session_id = await one.register(wanted)
        assert await two.registrations() == {"n1": replace(wanted, session_id=session_id)}


# --- writes that name members ---


async def test_a_write_that_names_a_member_checks_its_registration_and_log_id(clients: MetastoreClients) -> None:
    """It succeeds for a registered, active node with that log id, recorded or spare, and is a Conflict that changes
    nothing if the node is absent, leaving, or has another log id (R-GEN, H10)."""

    async with started(clients) as (leader, _):
        async with started(clients) as (follower, _):
            await follower.register(a_registration("n2", log_ids={3: 9}, spare_log_id=5))
            await leader.create_records([a_record(3), a_record(4)])
            record = (await leader.records())[3]
            await refused(leader.write_record(replace(record, reason="other gen"), [Member("n2", 8)]))
            await refused(leader.write_record(replace(record, reason="unknown"), [Member("n2", 9), Member("n3", 1)]))
            written = await leader.write_record(replace(record, reason="noted"), [Member("n2", 9)])
            assert (await leader.records())[3].version == written.version == record.version + 1
            spare = (await leader.records())[4]
            await refused(leader.write_record(spare, [Member("n2", 9)]))
            assert (await leader.write_record(spare, [Member("n2", 5)])).version == 1
            await refused(leader.write_record(replace(record, reason="overtaken"), [Member("n2", 9)]))
            await follower.register(a_registration("n2", log_ids={3: 9}, spare_log_id=5, active=False))
            await refused(leader.write_record(replace(written, reason="leaving"), [Member("n2", 9)]))
            await follower.register(a_registration("n2", log_ids={3: 9}, spare_log_id=5))
            written = await leader.write_record(written, [Member("n2", 9)])
        await refused(leader.write_record(replace(written, reason="gone"), [Member("n2", 9)]))
        assert (await leader.records())[3].reason == "noted"


@pytest.mark.parametrize("change", ["gen", "leaving", "session-ended", "left-and-back", "record"])
async def test_a_change_between_the_checks_and_the_write_refuses_the_write(
    change: str, clients: MetastoreClients
) -> None:
    """The checks hold at the moment of the write: a new log id, a leave, an ended session, a new session that is
    leaving (whose znode begins at version 0 again), or another writer at the last moment refuses it."""

    async with started(clients) as (leader, _), started(clients) as (follower, events):
        await follower.register(a_registration("n2", log_ids={3: 9}))
        await leader.create_records([a_record(3)])
        record = (await leader.records())[3]

        async def act() -> None:
            match change:
                case "gen":
                    await follower.register(a_registration("n2", log_ids={3: 10}))
                case "leaving":
                    await follower.register(a_registration("n2", log_ids={3: 9}, active=False))
                case "record":
                    await follower.write_record(replace(record, reason="theirs"))
                case _:
                    await clients.expire(follower)
                    await eventually(
                        lambda: events.states[-1] is SessionState.CONNECTED and len(events.states) > 2, "back"
                    )
                    if change == "left-and-back":
                        await follower.register(a_registration("n2", log_ids={3: 9}, active=False))

        before_the_commit(leader, act)
        await refused(leader.write_record(replace(record, reason="mine"), [Member("n2", 9)]))
        assert (await leader.records())[3].reason == ("theirs" if change == "record" else "")


async def test_log_ids_are_noted_before_the_registration_and_outlive_it(clients: MetastoreClients) -> None:
    """The version of a node's persistent znode changes only with its log ids; the znode outlives the session."""

    async with started(clients) as (watcher, _):
        versions = []
        for log_ids, active in (({3: 9}, True), ({3: 9}, True), ({3: 10}, True), ({3: 10}, False)):
            async with started(clients) as (client, _):
                asked = counted(client)
                await client.register(a_registration("n1", log_ids=log_ids, active=active))
                assert asked.index("/replicas/n1") < asked.index("/nodes/n1")
            found = await watcher.get("/replicas/n1")
            assert found is not None
            versions.append(found.version)
        assert versions == [0, 0, 1, 2]


# --- claims ---


async def test_a_claim_is_held_by_one_session_until_it_goes(clients: MetastoreClients) -> None:
    """The first session to claim holds the claim, also if it claims again. Others are refused, get a hint when it is
    released, and then one of them gets it."""

    async with started(clients) as (two, events):
        async with started(clients) as (one, _):
            assert await one.claim("/controller", b"n1")
            assert await one.claim("/controller", b"n1")
            assert not await two.claim("/controller", b"n2")
            events.hints.clear()
        await eventually(lambda: "/controller" in events.hints, "the hint that it is free")
        assert await two.claim("/controller", b"n2")
        assert await two.get("/controller") == Versioned(b"n2", 0)
        await two.delete("/controller", 0)
        assert await two.get("/controller") is None


async def test_a_claim_of_an_earlier_process_of_the_same_node_is_respected(clients: MetastoreClients) -> None:
    """An equal value does not make the claim ours: an older session that may still act keeps its claim until it ends
    (H28, H30), and a claim that our own session lost by expiring is not held any more."""

    async with started(clients) as (new, events):
        async with started(clients) as (old, _):
            assert await old.claim("/controller", b"n1")
            assert not await new.claim("/controller", b"n1")
        assert await new.claim("/controller", b"n1")
        await clients.expire(new)
        await eventually(
            lambda: SessionState.EXPIRED in events.states and events.states[-1] is SessionState.CONNECTED, "back"
        )
        async with started(clients) as (other, _):
            assert await other.claim("/controller", b"n2")
            assert not await new.claim("/controller", b"n1")


# --- creation ---


async def test_records_and_values_are_created_together_or_not_at_all(clients: MetastoreClients) -> None:
    """If a value has another version, or exists already, no record is created, and vice versa."""

    async with started(clients) as (client, _):
        version = await client.put("/types/default", b"old", None)
        fresh = ConditionalWrite("/types/more", b"new", None)
        assert not await client.create_records([a_record(1)], [ConditionalWrite("/types/default", b"new", version + 1)])
        assert not await client.create_records([a_record(1)], [ConditionalWrite("/types/default", b"new", None)])
        assert await client.records() == {}
        assert await client.create_records([a_record(1)], [ConditionalWrite("/types/default", b"new", version), fresh])
        assert await client.get("/types/default") == Versioned(b"new", version + 1)
        assert await client.get("/types/more") == Versioned(b"new", 0)
        other = ConditionalWrite("/deep/er/one", b"", None)
        assert not await client.create_records([a_record(1), a_record(2)], [other])
        assert await client.get("/deep/er/one") is None
        assert await client.create_records([a_record(2)], [other])


async def test_a_write_is_refused_when_a_document_it_depends_on_has_moved(clients: MetastoreClients) -> None:
    """Neither records nor values are written if a document they depend on has another version or is missing; otherwise
    all of them are."""

    async with started(clients) as (client, _):
        version = await client.put("/rests/on", b"1", None)
        for wrong in (Precondition("/rests/on", version + 1), Precondition("/rests/nowhere", 0)):
            assert not await client.create_records([a_record(1)], [ConditionalWrite("/rests/a", b"", None)], [wrong])
            for base in (None, 0):
                with pytest.raises(VersionConflict):
                    await client.put("/rests/b", b"2", base, [wrong])
        assert await client.records() == {}
        assert await client.get("/rests/a") is None
        right = [Precondition("/rests/on", version)]
        assert await client.create_records([a_record(1)], [], right)
        assert await client.put("/rests/b", b"2", None, right) == 0
        assert await client.put("/rests/b", b"3", 0, right) == 1
        assert await client.get("/rests/b") == Versioned(b"3", 1)
        assert await client.get("/rests/on") == Versioned(b"1", version)


async def test_the_most_partitions_are_created_in_one_write(clients: MetastoreClients) -> None:
    """One write holds 1,024 records of three nodes with the longest names. A larger write is refused before it is sent;
    the message names a size that fits, and the connection stays."""

    async with started(clients) as (client, events), started(clients) as (reader, _):
        members = [Member(f"n{number}-" + "x" * 61, 1 << 20) for number in range(7)]
        with pytest.raises(TooLarge, match=r"1024 records .*1000000 in one write; fewer partitions"):
            await client.create_records([a_record(partition, *members) for partition in range(1024)])
        records = [a_record(partition, *members[:3]) for partition in range(1024)]
        assert await client.create_records(records)
        assert await reader.records() == {record.partition: record for record in records}
        assert events.states == [SessionState.CONNECTED]


# --- refreshes ---


async def test_a_synced_record_is_what_was_written_last(clients: MetastoreClients) -> None:
    """Each read shows the write that another client confirmed just before; a missing record raises LookupError."""

    async with started(clients) as (reader, _), started(clients) as (writer, _):
        with pytest.raises(LookupError):
            await reader.synced_record(3)
        await writer.create_records([a_record(3)])
        record = (await writer.records())[3]
        for number in range(10):
            assert (await reader.synced_record(3)).reason == record.reason
            record = await writer.write_record(replace(record, reason=str(number)))
            found = await reader.synced_record(3)
            assert (found.reason, found.version) == (str(number), record.version)


async def test_a_record_that_moves_while_it_is_confirmed_is_read_again(clients: MetastoreClients) -> None:
    """A record that was read before the majority confirmed its version is returned only if the majority still has that
    version; a record that was missing at first is found as well."""

    async with started(clients) as (reader, _), started(clients) as (writer, _):
        tree: Any = reader._tree  # type: ignore[attr-defined]
        confirm = tree.confirm

        async def late(path: str, version: int) -> bool:
            if not await writer.create_records([a_record(3)]):
                await writer.write_record(replace((await writer.records())[3], reason="theirs"))
            return bool(await confirm(path, version))

        tree.confirm = late
        assert (await reader.synced_record(3)).reason == ""
        assert (await reader.synced_record(3)).reason == "theirs"


async def test_a_refresh_reads_only_what_changed(clients: MetastoreClients) -> None:
    """A refresh without changes reads nothing. After a change, it reads exactly the changed documents, and returns them
    at once."""

    async with started(clients) as (reader, _), started(clients) as (writer, _):
        await writer.create_records([a_record(partition) for partition in range(8)])
        await writer.register(a_registration("n1"))
        await reader.records()
        await reader.registrations()
        asked = counted(reader)
        for _ in range(3):
            assert len(await reader.records()) == 8
            assert len(await reader.registrations()) == 1
        assert asked == []
        await writer.write_record(replace((await writer.records())[5], reason="news"))
        assert (await reader.records())[5].reason == "news"
        assert asked == ["/p/5"]
        asked.clear()
        async with started(clients) as (third, _):
            await third.register(a_registration("n3", id=3))
            assert sorted(await reader.registrations()) == ["n1", "n3"]
            assert asked == ["/nodes", "/nodes/n3"]
        await writer.create_records([a_record(9)])
        asked.clear()
        assert (sorted(await reader.registrations()), len(await reader.records())) == (["n1"], 9)
        assert asked == ["/nodes", "/p", "/p/9"]


async def test_a_read_after_one_change_is_one_round_trip(clients: MetastoreClients) -> None:
    """A value that an event has invalidated is requested together with the sync; registrations without a sync of their
    own request nothing."""

    async with started(clients) as (reader, events), started(clients) as (writer, _):
        await writer.create_records([a_record(3)])
        await writer.register(a_registration("n1"))
        await reader.records()
        await reader.registrations()
        tree = reader._tree
        sync, read = tree.sync, tree.read
        under_way: list[str] = []
        beside: list[list[str]] = []

        async def noted_sync() -> None:
            under_way.append("sync")
            await sync()
            await asyncio.sleep(0.02)
            beside.append(list(under_way))

        async def noted_read(path: str, *, armed: bool, sync: bool = True) -> object:
            under_way.append(path.rpartition("/p/")[2])
            return await read(path, armed=armed, sync=sync)

        tree.sync, tree.read = noted_sync, noted_read  # type: ignore[method-assign, assignment]
        await writer.write_record(replace((await writer.records())[3], reason="news"))
        await eventually(lambda: "/p/3" in events.hints, "the hint")
        assert (await reader.records())[3].reason == "news"
        assert sorted(await reader.registrations(sync=False)) == ["n1"]
        assert (under_way, beside) == (["sync", "3"], [["sync", "3"]])


async def test_after_a_break_and_after_a_minute_everything_is_read_again(
    clients: MetastoreClients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notifications may be lost while a connection is broken, so the next refresh reads everything. So does a refresh
    after FULL_READ_INTERVAL_S."""

    async with started(clients) as (reader, events):
        await reader.create_records([a_record(0), a_record(1)])
        await reader.records()
        asked = counted(reader)
        await clients.expire(reader)
        await eventually(
            lambda: SessionState.EXPIRED in events.states and events.states[-1] is SessionState.CONNECTED, "back"
        )
        await reader.records()
        assert asked == ["/p", "/p/0", "/p/1"]
        asked.clear()
        later = asyncio.get_running_loop().time() + FULL_READ_INTERVAL_S
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: later)
        await reader.records()
        assert sorted(asked) == ["/p", "/p/0", "/p/1"]


async def test_concurrent_refreshes_see_everything_confirmed_before_them(clients: MetastoreClients) -> None:
    """If many refreshes begin after a write was confirmed, none returns the older record."""

    async with started(clients) as (reader, _), started(clients) as (writer, _):
        await writer.create_records([a_record(3)])
        record = (await writer.records())[3]

        async def look() -> str:
            return (await reader.records())[3].reason

        for number in range(20):
            record = await writer.write_record(replace(record, reason=str(number)))
            assert await asyncio.gather(*(look() for _ in range(4))) == [str(number)] * 4


async def test_a_record_older_than_one_seen_before_is_unreadable_alone(clients: MetastoreClients) -> None:
    """A record that was deleted and created again while the client ran is unreadable, with a reason that reports a
    rollback of the metastore (H32), and stays as it was seen; all others are read as they are."""

    async with started(clients) as (reader, _), started(clients) as (writer, _):
        await writer.create_records([a_record(3), a_record(4)])
        record = await writer.write_record((await writer.records())[3])
        assert (await reader.records())[3].version == record.version
        await writer.delete("/p/3", record.version)
        await writer.create_records([a_record(3)])
        for number in range(2):
            await writer.write_record(replace((await writer.records())[4], reason=str(number)))
            found = await reader.records()
            assert (found[3], found[4].reason) == (record, str(number))
            assert reader.unreadable.keys() == {"/p/3"}
            why = r"metastore-rollback: .*/p/3 is at version 0.* seen version 1"
            assert re.match(why, reader.unreadable["/p/3"])


@pytest.mark.parametrize("synced", [True, False])
async def test_a_record_is_never_seen_beside_a_session_that_ended_before_it(
    clients: MetastoreClients, synced: bool
) -> None:
    """Registrations read after a record, with a sync of their own or without, reflect every end of a session that came
    before its write (H29)."""

    async with started(clients) as (reader, _), started(clients) as (writer, _):
        await writer.create_records([a_record(3)])
        record = (await writer.records())[3]
        looks = 0

        async def watch_on() -> None:
            nonlocal looks
            while True:
                seen = (await reader.records())[3].reason
                live = await reader.registrations(sync=synced)
                assert seen == "" or f"n{seen}" not in live, f"n{seen} ended before the record said so"
                looks += 1

        watching = asyncio.ensure_future(watch_on())
        for number in range(10):
            async with started(clients) as (client, _):
                await client.register(a_registration(f"n{number}", id=number))
                assert f"n{number}" in await writer.registrations()
            record = await writer.write_record(replace(record, reason=str(number)))
            before = looks
            await eventually(lambda: looks > before + 1 or watching.done(), "a look after the write")  # noqa: B023
        watching.cancel()
        assert isinstance((await asyncio.gather(watching, return_exceptions=True))[0], asyncio.CancelledError)
