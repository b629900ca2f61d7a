"""The contract of every metastore: one suite, run in memory, on a simulated ensemble and on a real ZooKeeper."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from isthmus.repl.metastore.codecs import RECORD_BYTES_MAX
from isthmus.repl.metastore.port import (
    ConditionalWrite,
    Precondition,
    SessionState,
    Unavailable,
    VersionConflict,
    Versioned,
)
from isthmus.repl.model.errors import TooLarge
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus
from tests.support.metastore_clients import MetastoreClients, a_record, a_registration, eventually, started


async def test_the_first_proposed_uuid_is_the_clusters(clients: MetastoreClients) -> None:
    """A client that proposes a uuid later gets the one that was proposed first."""

    async with started(clients) as (one, _), started(clients) as (two, _):
        assert await one.cluster_uuid(b"a" * 16) == b"a" * 16
        assert await two.cluster_uuid(b"b" * 16) == b"a" * 16
        assert await one.cluster_uuid(b"c" * 16) == b"a" * 16


async def test_no_log_id_is_allocated_twice(clients: MetastoreClients) -> None:
    """Two clients that allocate log ids at once get different ones (R-GEN)."""

    async with started(clients) as (one, _), started(clients) as (two, _):
        log_ids = await asyncio.gather(*(client.allocate_log_id() for client in (one, two, one, two)))
        assert len(set(log_ids)) == 4
        assert await one.allocate_log_id() > max(log_ids)


async def test_many_nodes_that_start_at_once_all_get_a_log_id(clients: MetastoreClients) -> None:
    """Of those that raise the counter at a time all but one lose; each gets its log id all the same, as the nodes of a
    large cluster must that is started at once."""
    async with started(clients) as (one, _), started(clients) as (two, _):
        log_ids = await asyncio.gather(*(client.allocate_log_id() for client in (one, two) * 30))
        assert len(set(log_ids)) == 60


async def test_records_come_back_as_written_with_their_version(clients: MetastoreClients) -> None:
    """A record with every field set survives the metastore, and its version is the base of the next write."""
    full = PartitionRecord(
        3, "default", 3, 12, ("n1", "n2", "nö"),
        epoch=7, status=PartitionStatus.ONLINE, leader=Incarnation("n1", 5), candidate=Incarnation("n2", 1 << 40),
        isr=frozenset({Member("n1", 1), Member("n2", 4)}), elr=frozenset({Member("nö", 2)}), min_isr=2,
        tried=frozenset({"n2"}), preferred="n2", lineage=1, reason="stalled: below min-ISR",
    )  # fmt: skip

    async with started(clients) as (client, _):
        assert await client.records() == {}
        assert await client.create_records([a_record(3), a_record(11)])
        first = (await client.records())[3]
        assert first == a_record(3)
        assert first.version >= 0
        written = await client.write_record(replace(full, version=first.version))
        assert written == full
        assert written.version > first.version
        found = await client.records()
        assert found[3] == full
        assert found[3].version == written.version
        assert found[11] == a_record(11)


async def test_records_are_created_all_or_none(clients: MetastoreClients) -> None:
    """If one of the records exists already, none of the others is created."""

    async with started(clients) as (client, _):
        assert await client.create_records([a_record(1)])
        assert not await client.create_records([a_record(0), a_record(1), a_record(2)])
        assert sorted(await client.records()) == [1]


async def test_a_write_on_an_overtaken_version_is_a_conflict_and_changes_nothing(clients: MetastoreClients) -> None:
    """The second of two writers with the same base version is refused; after it reads again, its write succeeds
    (H16)."""

    async with started(clients) as (one, _), started(clients) as (two, _):
        await one.create_records([a_record()])
        mine, theirs = (await one.records())[3], (await two.records())[3]
        await one.write_record(replace(mine, epoch=1, reason="mine"))
        with pytest.raises(VersionConflict):
            await two.write_record(replace(theirs, epoch=1, reason="theirs"))
        again = (await two.records())[3]
        assert again.reason == "mine"
        assert (await two.write_record(replace(again, epoch=2))).epoch == 2


async def test_small_values_are_written_conditionally(clients: MetastoreClients) -> None:
    """None requires that the value does not exist, a number requires that version, and anything else is a conflict."""

    async with started(clients) as (client, _):
        path = "/queues/to-west/owner"
        assert await client.get(path) is None
        with pytest.raises(VersionConflict):
            await client.put(path, b"x", 0)
        with pytest.raises(VersionConflict):
            await client.delete(path, 0)
        version = await client.put(path, b"one", None)
        assert await client.get(path) == Versioned(b"one", version)
        with pytest.raises(VersionConflict):
            await client.put(path, b"two", None)
        later = await client.put(path, b"two", version)
        for stale in (client.put(path, b"three", version), client.delete(path, version)):
            with pytest.raises(VersionConflict):
                await stale
        assert await client.get(path) == Versioned(b"two", later)
        await client.delete(path, later)
        assert await client.get(path) is None


async def test_several_values_are_written_together_or_not_at_all(clients: MetastoreClients) -> None:
    """If one of them, or a document that they depend on, has another version, nothing is written. A value over its
    limit, and too many bytes together, are refused before they are sent."""

    async with started(clients) as (client, events):
        version = await client.put("/place/old", b"1", None)
        new, old = ConditionalWrite("/place/new/er", b"2", None), ConditionalWrite("/place/old", b"3", version)
        for wrong in (
            ([new, ConditionalWrite("/place/old", b"3", version + 1)], []),
            ([new, ConditionalWrite("/place/old", b"3", None)], []),
            ([new], [Precondition("/place/old", version + 1)]),
            ([new], [Precondition("/place/nowhere", 0)]),
        ):
            with pytest.raises(VersionConflict):
                await client.put_all(*wrong)
        large = [ConditionalWrite(f"/place/{number}", bytes(RECORD_BYTES_MAX), None) for number in range(2)]
        for too_large in (large, [ConditionalWrite("/place/big", bytes(RECORD_BYTES_MAX + 1), None)]):
            with pytest.raises(TooLarge, match="/place/"):
                await client.put_all(too_large)
        assert await client.get("/place/new/er") is None
        assert await client.get("/place/old") == Versioned(b"1", version)
        await client.put_all([new, old])
        assert await client.get("/place/new/er") == Versioned(b"2", 0)
        assert await client.get("/place/old") == Versioned(b"3", version + 1)
        await client.put_all([ConditionalWrite("/place/new/er", b"4", 0)], [Precondition("/place/old", version + 1)])
        assert await client.get("/place/new/er") == Versioned(b"4", 1)
        assert events.states == [SessionState.CONNECTED]


async def test_every_known_node_must_be_live_to_read_joined_documents(clients: MetastoreClients) -> None:
    """A registration comes with the claim that its process reads joined documents, and the claim ends with its session.
    A node that is down counts as one that does not read them until it is removed; without any node nobody does."""

    async with started(clients) as (one, _):
        assert not await one.all_read_joined()
        await one.register(a_registration())
        assert await one.all_read_joined()
        async with started(clients) as (two, _):
            await two.register(a_registration("n2", id=2))
            assert await one.all_read_joined()
            assert await two.all_read_joined()
        assert not await one.all_read_joined()
        held = await one.get("/replicas/n2")
        assert held is not None
        await one.delete("/replicas/n2", held.version)
        assert await one.all_read_joined()


async def test_a_process_that_takes_a_registration_over_claims_for_itself(clients: MetastoreClients) -> None:
    """The claim of the process before, whose session still lasts, is replaced with its registration; one without a
    session, as a copy of the metastore would leave it, is replaced, too."""

    async with started(clients) as (before, _), started(clients) as (after, _):
        await after.put("/joined-readers/n1", b"99999999999", None)
        await before.register(a_registration())
        assert await after.all_read_joined()
        session_id = await after.register(a_registration())
        assert await before.all_read_joined()
        found = await before.get("/joined-readers/n1")
        assert found is not None
        assert found.value == b"%d" % session_id


async def test_children_are_sorted_names(clients: MetastoreClients) -> None:
    """Names directly below a path, sorted; none below what does not exist."""

    async with started(clients) as (client, _):
        assert await client.children("/options") == []
        for name in ("b", "a", "c/deeper"):
            await client.put(f"/options/{name}", b"", None)
        assert await client.children("/options") == ["a", "b", "c"]
        assert await client.children("/options/c") == ["deeper"]


async def test_a_value_over_the_limit_is_refused_before_it_is_sent(clients: MetastoreClients) -> None:
    """A value of exactly the limit is stored; one byte more is TooLarge and does not cost the connection."""

    async with started(clients) as (client, events):
        with pytest.raises(TooLarge):
            await client.put("/big", bytes(RECORD_BYTES_MAX + 1), None)
        await client.put("/big", bytes(RECORD_BYTES_MAX), None)
        found = await client.get("/big")
        assert found is not None
        assert len(found.value) == RECORD_BYTES_MAX
        assert events.states == [SessionState.CONNECTED]


async def test_a_registration_lives_as_long_as_its_session(clients: MetastoreClients) -> None:
    """Other clients see a registration under its session id; it is gone once its client has stopped."""

    async with started(clients) as (watcher, _):
        async with started(clients) as (client, _):
            session_id = await client.register(a_registration())
            assert await watcher.registrations() == {"n1": a_registration(session_id=session_id)}
        assert await watcher.registrations() == {}


async def test_registering_again_in_one_session_keeps_the_session_id(clients: MetastoreClients) -> None:
    """A node that registers as `leaving` keeps its session id; only the data of the registration changes."""

    async with started(clients) as (client, _):
        session_id = await client.register(a_registration())
        assert await client.register(a_registration(active=False)) == session_id
        assert (await client.registrations())["n1"] == a_registration(active=False, session_id=session_id)


async def test_a_stale_registration_of_an_older_session_is_replaced(clients: MetastoreClients) -> None:
    """A node that returns before its old session has ended gets a new ephemeral node with a higher session id. This
    registration survives the end of the old session (H28)."""

    async with started(clients) as (watcher, _), started(clients) as (new, _):
        async with started(clients) as (old, _):
            before = await old.register(a_registration())
            after = await new.register(a_registration(http_url="http://h:3"))
            assert after > before
        assert await watcher.registrations() == {"n1": a_registration(http_url="http://h:3", session_id=after)}


async def test_hints_come_for_what_was_read(clients: MetastoreClients) -> None:
    """After each read, a change to a record, to the registrations, to a value or to a missing path gives a hint."""

    async with started(clients) as (reader, events), started(clients) as (writer, _):
        await writer.create_records([a_record()])
        for round_ in range(2):
            record = (await reader.records())[3]
            await reader.registrations()
            value = await reader.get("/options/a")
            await writer.write_record(replace(record, reason=f"round {round_}"))
            await writer.register(a_registration(active=bool(round_)))
            await writer.put("/options/a", b"", None if value is None else value.version)
            await eventually(
                lambda: {"/p/3", "/nodes", "/options/a"} <= set(events.hints),
                f"hints of round {round_}: {events.hints}",
            )
            events.hints.clear()


async def test_hints_come_for_new_children(clients: MetastoreClients) -> None:
    """A client that listed a path gets a hint when a child below it is created or deleted."""

    async with started(clients) as (reader, events), started(clients) as (writer, _):
        await reader.records()
        await writer.create_records([a_record()])
        await eventually(lambda: "/p" in events.hints, "the hint for a new record")
        await writer.put("/options/a", b"", None)
        assert await reader.children("/options") == ["a"]
        await writer.delete("/options/a", 0)
        await eventually(lambda: "/options" in events.hints, "the hint for a name that went")


async def test_an_expired_session_is_reported_and_followed_by_a_new_one(clients: MetastoreClients) -> None:
    """The client reports EXPIRED before the next CONNECTED; the registration is gone, and a new one has a higher
    session id."""

    async with started(clients) as (client, events), started(clients) as (watcher, _):
        session_id = await client.register(a_registration())
        await clients.expire(client)
        await eventually(lambda: events.states[-2:] == [SessionState.EXPIRED, SessionState.CONNECTED], "a new session")
        assert await watcher.registrations() == {}
        assert await client.register(a_registration()) > session_id


async def test_documents_read_before_a_disconnection_are_hinted_after_it(clients: MetastoreClients) -> None:
    """Watches do not survive a broken connection, so the client gets a hint to read the document again."""

    async with started(clients) as (client, events):
        await client.get("/options/a")
        await clients.expire(client)
        await eventually(lambda: "/options/a" in events.hints, "the hint after reconnecting")


async def test_a_stopped_metastore_is_unavailable(clients: MetastoreClients) -> None:
    """After `stop`, calls fail without effect."""

    async with started(clients) as (client, _):
        pass
    for call in (client.records(), client.put("/x", b"", None), client.register(a_registration())):
        with pytest.raises(Unavailable):
            await call
