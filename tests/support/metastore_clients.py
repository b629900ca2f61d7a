"""Metastore clients for tests: started clients with their recorded events, and records to write."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

from isthmus.repl.metastore.port import Metastore, SessionState
from isthmus.repl.model.record import Member, PartitionRecord, Registration
from tests.support.waiting import eventually as eventually


class MetastoreClients(Protocol):
    """Clients of one tree, and a way to end a session."""

    def client(self) -> Metastore: ...
    async def expire(self, client: Metastore) -> None: ...


class RecordedEvents:
    """Session states and hints that a client reported, in order."""

    def __init__(self) -> None:
        self.states: list[SessionState] = []
        self.hints: list[str] = []


@asynccontextmanager
async def started(clients: MetastoreClients) -> AsyncIterator[tuple[Metastore, RecordedEvents]]:
    """A started client and its events; stopped at the end."""
    client, events = clients.client(), RecordedEvents()
    client.watch(events.hints.append)
    await client.start(events.states.append)
    try:
        yield client, events
    finally:
        await client.stop()


def a_record(partition: int = 3, *members: Member, **fields: object) -> PartitionRecord:
    """A record of one replica, or of these members."""
    nodes = tuple(member.node for member in members) or ("n1",)
    record = PartitionRecord(partition, "default", partition, 1024, nodes, isr=frozenset(members), min_isr=1)
    return replace(record, **fields)  # type: ignore[arg-type]


def a_registration(node: str = "n1", **fields: object) -> Registration:
    """A live and active node with two replicas."""
    return replace(Registration(node, 0, True, "http://h:1", "http://h:2", {0: 1, 3: 9}), **fields)  # type: ignore[arg-type]
