"""One value, observer or session event of the metastore fails alone, whatever it raises."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from isthmus.repl.metastore import metastore as tree_metastore
from isthmus.repl.metastore.port import SessionState
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.unforeseen import unforeseen
from tests.support.memory_metastore import MemoryMetastore
from tests.support.metastore_clients import a_record, a_registration
from tests.support.waiting import eventually
from tests.support.zookeepers import EnsembleClients


class Injected(RuntimeError):
    """Raised by the tests alone."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No earlier test has used up the limit of log lines."""
    monkeypatch.setattr(unforeseen._limit, "due", lambda _subject: 0)


def injected(lines: list[Any]) -> list[str]:
    """The events of the exceptions that were caught; no other error was logged."""
    errors = [line for line in lines if line["log_level"] == "error"]
    assert all(isinstance(line.get("exc_info"), Injected) for line in errors), errors
    return [line["event"] for line in errors]


async def test_a_record_whose_decoding_fails_is_unreadable_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other records are read; this one stays as it was read last, is named among the unreadable ones, and is read
    again after its next change."""
    client = MemoryMetastore()
    await client.start(lambda _: None)
    assert await client.create_records([a_record(partition) for partition in range(3)])
    first = (await client.records())[1]
    decode = tree_metastore.decode_record

    def fails(data: bytes, version: int) -> PartitionRecord:
        record = decode(data, version=version)
        if record.partition == 1 and record.version == 1:
            raise Injected
        return record

    monkeypatch.setattr(tree_metastore, "decode_record", fails)
    await client.write_record(first)
    other = await client.write_record((await client.records())[2])
    with structlog.testing.capture_logs() as lines:
        found = await client.records()
        assert sorted(found) == [0, 1, 2]
        assert (found[1], found[2]) == (first, other)
        assert "/p/1 in the metastore: a defect of this program: Injected" in client.unreadable["/p/1"]
        await client.write_record(await client.synced_record(0))
        with pytest.raises(Injected):
            await client.synced_record(1)
        version = (await client.get("/p/1")).version  # type: ignore[union-attr]
        await client.put("/p/1", tree_metastore.encode_record(first), version)
        assert (await client.records())[1].version == 2
    assert client.unreadable == {}
    assert set(injected(lines)) <= {"metastore.value_bug"}


async def test_a_registration_whose_decoding_fails_hides_no_other_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes find each other although one registration cannot be read."""
    client = MemoryMetastore()
    await client.start(lambda _: None)
    await client.register(a_registration("n1", id=1))
    await client.put("/nodes/n2", b"{}", None)
    decode = tree_metastore.decode_registration

    def fails(data: bytes, node: str, session_id: int) -> Any:
        if node == "n2":
            raise Injected
        return decode(data, node=node, session_id=session_id)

    monkeypatch.setattr(tree_metastore, "decode_registration", fails)
    with structlog.testing.capture_logs() as lines:
        assert sorted(await client.registrations()) == ["n1"]
    assert list(client.unreadable) == ["/nodes/n2"]
    assert injected(lines) == ["metastore.value_bug"]


async def test_an_observer_that_fails_costs_no_other_its_hint() -> None:
    """Every observer gets each hint, and after a lost connection the hint of each path, though one of them raises."""
    clients = EnsembleClients()
    client = clients.client()
    hints: list[str] = []

    def fails(_path: str) -> None:
        raise Injected

    client.watch(fails)
    client.watch(hints.append)
    await client.start(lambda _: None)
    for path in ("/a", "/b"):
        await client.put(path, b"", None)
        await client.get(path)
    with structlog.testing.capture_logs() as lines:
        await client.put("/a", b"new", 0)
        await eventually(lambda: hints == ["/a"], "the hint of a change")
        await client.get("/a")
        await clients.expire(client)
        await eventually(lambda: hints == ["/a", "/a", "/b"], f"the hints after reconnecting: {hints}")
    assert set(injected(lines)) == {"metastore.observer_bug"}
    await client.stop()


async def test_a_listener_of_sessions_that_fails_costs_no_hints() -> None:
    """After an expiry the session's state is right, and every path that was read is hinted."""
    clients = EnsembleClients()
    client = clients.client()
    hints: list[str] = []
    states: list[SessionState] = []

    def fails(state: SessionState) -> None:
        states.append(state)
        if len(states) > 1:
            raise Injected

    client.watch(hints.append)
    await client.start(fails)
    await client.get("/a")
    with structlog.testing.capture_logs() as lines:
        await clients.expire(client)
        await eventually(lambda: states[-2:] == [SessionState.EXPIRED, SessionState.CONNECTED], "a new session")
        await eventually(lambda: hints == ["/a"], "the hint")
        assert await client.allocate_log_id() == 1
    assert injected(lines) == ["metastore.session_bug"] * 3
    await client.stop()
