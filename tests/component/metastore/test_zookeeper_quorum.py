"""Three ZooKeepers that vote: one of them, the leader, is lost, and nothing else."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from isthmus.repl.metastore.port import Ambiguous, SessionState, Unavailable, VersionConflict
from isthmus.repl.metastore.zookeeper import ZooKeeperMetastore
from isthmus.repl.model.record import Member, PartitionRecord
from tests.support.metastore_clients import a_record, a_registration, eventually
from tests.support.zookeepers import ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

WRITERS = 8


def metastore(hosts: str, root: str) -> ZooKeeperMetastore:
    return ZooKeeperMetastore(hosts, root, "east", session_timeout_ms=8000, connect_timeout_ms=20_000)


class Writer:
    """Writes one record again and again as a leader would: an undecided write is repeated with the same bytes on the
    same version until the version has moved (R-AMBIG)."""

    def __init__(self, client: ZooKeeperMetastore, record: PartitionRecord) -> None:
        self.client = client
        self.record = record
        self.decided = 0
        self.longest_s = 0.0

    async def run(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            wanted = replace(self.record, reason=f"write {self.decided + 1}")
            began = time.monotonic()
            self.record = await self.decide(wanted)
            assert self.record.reason == wanted.reason, "nobody else writes here"
            self.decided += 1
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    async def decide(self, wanted: PartitionRecord) -> PartitionRecord:
        """The record after this write has been decided."""
        while True:
            try:
                return await self.client.write_record(wanted, [Member("n1", 9)])
            except VersionConflict:
                return await self.client.synced_record(wanted.partition)
            except Ambiguous:
                continue
            except Unavailable:
                await asyncio.sleep(0.02)


@pytest.mark.timing
async def test_with_its_leader_killed_an_ensemble_goes_on(ensemble: Any) -> None:
    """Conditional writes of several partitions succeed again within seconds, each exactly once; undecided ones are
    reported as such, and repeating them decides; registration, id and claim stay, and no session is lost."""

    client, states = metastore(ensemble.hosts, "/killed"), list[SessionState]()
    await client.start(states.append)
    other = metastore(ensemble.hosts, "/killed")
    await other.start(lambda _: None)
    session_id = await client.register(a_registration("n1", id=1, spare_log_id=9, log_ids={}))
    assert await client.claim("/controller", b"n1")
    await client.create_records([a_record(partition, Member("n1", 9)) for partition in range(WRITERS)])
    writers = [Writer(client, record) for record in (await client.records()).values()]
    began = time.monotonic()
    writing = [asyncio.ensure_future(writer.run(began + 7)) for writer in writers]
    await asyncio.sleep(1)
    await asyncio.to_thread(ensemble.leader().kill)
    await asyncio.gather(*writing)
    assert SessionState.EXPIRED not in states
    assert max(writer.longest_s for writer in writers) < 6
    for look in (client, other):
        found = await look.records()
        assert [found[w.record.partition].version for w in writers] == [writer.decided for writer in writers]
        assert [found[w.record.partition].reason for w in writers] == [f"write {w.decided}" for w in writers]
        assert (await look.registrations())["n1"].session_id == session_id
    assert await client.register(a_registration("n1", id=1, spare_log_id=9, log_ids={})) == session_id
    assert await client.claim("/controller", b"n1")
    assert not await other.claim("/controller", b"n2")
    await client.stop()
    await other.stop()


async def test_without_a_majority_nothing_is_decided_and_nothing_is_lost(ensemble: Any) -> None:
    """With two of three servers gone no call succeeds, not even a read, once the third has noticed, so no decision
    rests on old data; until then nobody can change what it serves. Once there is a majority again, session,
    registration and records are unchanged."""

    client, states = metastore(ensemble.hosts, "/majority"), list[SessionState]()
    await client.start(states.append)
    session_id = await client.register(a_registration("n1"))
    await client.create_records([a_record(3)])
    record = (await client.records())[3]
    *gone, left = ensemble.servers
    for server in gone:
        server.kill()
    await eventually(lambda: b"Mode: " not in ask(left.port), "the third has noticed")
    await eventually(lambda: states[-1] is SessionState.SUSPENDED, "suspended")
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        for call in (
            client.records,
            client.registrations,
            partial(client.synced_record, 3),
            partial(client.write_record, record),
        ):
            with pytest.raises((Unavailable, Ambiguous)):
                await call()
        await asyncio.sleep(0.1)
    await asyncio.to_thread(ensemble.start)
    await eventually(lambda: states[-1] is SessionState.CONNECTED, "connected again")
    assert SessionState.EXPIRED not in states
    assert (await client.registrations())["n1"].session_id == session_id
    assert (await client.synced_record(3)).version == record.version
    await client.stop()


async def test_a_read_by_a_server_that_was_left_behind_is_not_taken_for_new(ensemble: Any) -> None:
    """While the client's own server is frozen others update the record; the client, on the thawed server or another
    one, reads their update."""

    servers = ensemble.servers
    behind = next(server for server in servers if server is not ensemble.leader())
    reader = metastore(behind.hosts, "/behind")
    writer = metastore(",".join(server.hosts for server in servers if server is not behind), "/behind")
    await reader.start(lambda _: None)
    await writer.start(lambda _: None)
    await writer.create_records([a_record(3)])
    record = (await writer.records())[3]
    assert (await reader.records())[3].version == record.version
    behind.freeze()
    for number in range(5):
        record = await writer.write_record(replace(record, reason=str(number)))
    synced, looked = asyncio.ensure_future(reader.synced_record(3)), asyncio.ensure_future(reader.records())
    await asyncio.sleep(0.1)  # both are under way
    behind.send(signal.SIGCONT)
    assert ((await synced).version, (await looked)[3].version) == (record.version, record.version)
    await reader.stop()
    await writer.stop()
