"""The faults that the memory metastore injects behave like those of a real ensemble."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.repl.metastore.port import Ambiguous, SessionState, Unavailable, VersionConflict, Versioned
from isthmus.repl.model.record import Registration
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore, WriteFault


async def test_a_disconnected_client_is_unavailable_and_keeps_its_session() -> None:
    """While disconnected, every call fails without effect; after the reconnection the client gets one hint for each
    path that it has read."""

    client, states, hints = MemoryMetastore(), list[SessionState](), list[str]()
    client.watch(hints.append)
    await client.start(states.append)
    await client.get("/x")
    client.disconnect()
    with pytest.raises(Unavailable):
        await client.put("/x", b"", None)
    client.reconnect()
    assert await client.get("/x") is None
    await asyncio.sleep(0)
    assert states == [SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.CONNECTED]
    assert hints == ["/x"]


@pytest.mark.parametrize(
    ("fault", "now", "later"),
    [
        (WriteFault.REQUEST_LOST, None, None),
        (WriteFault.ANSWER_LOST, Versioned(b"v", 0), Versioned(b"v", 0)),
        (WriteFault.LATE, None, Versioned(b"v", 0)),
    ],
)
async def test_a_spoilt_write_is_ambiguous(fault: WriteFault, now: Versioned | None, later: Versioned | None) -> None:
    """Each fault raises Ambiguous; whether and when the write takes effect depends on the fault."""

    client = MemoryMetastore()
    await client.start(lambda _: None)
    client.spoil(fault)
    with pytest.raises(Ambiguous):
        await client.put("/x", b"v", None)
    assert await client.get("/x") == now
    client.deliver_late()
    assert await client.get("/x") == later


async def test_a_late_write_that_was_overtaken_does_nothing() -> None:
    """The delayed copy of an undecided write arrives after its repetition was decided: its version no longer
    matches."""

    ensemble = MemoryEnsemble()
    client = MemoryMetastore(ensemble)
    await client.start(lambda _: None)
    version = await client.put("/x", b"old", None)
    client.spoil(WriteFault.LATE)
    with pytest.raises(Ambiguous):
        await client.put("/x", b"new", version)
    await client.put("/x", b"new", version)
    assert client.deliver_late() == 0
    with pytest.raises(VersionConflict):
        await client.put("/x", b"again", version)


async def test_held_calls_wait_for_their_release() -> None:
    """A call begun while held ends only after release."""

    client = MemoryMetastore()
    await client.start(lambda _: None)
    client.hold()
    call = asyncio.ensure_future(client.put("/x", b"v", None))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not call.done()
    client.release()
    assert await call == 0


async def test_an_ensemble_restored_from_a_backup_is_refused() -> None:
    """A client that has seen more than the ensemble now knows cannot connect to it, in its session or a new one; one
    that has seen nothing can (H32)."""

    ensemble = MemoryEnsemble()
    client = MemoryMetastore(ensemble)
    await client.start(lambda _: None)
    copy = ensemble.copied()
    await client.put("/x", b"lost", None)
    client.disconnect()
    ensemble.go_back(copy)
    client.reconnect()
    with pytest.raises(Unavailable):
        await client.get("/x")
    other = MemoryMetastore(ensemble)
    await other.start(lambda _: None)
    assert await other.get("/x") is None


async def test_a_registration_outlives_writes_without_an_answer() -> None:
    """However single writes fail, `register` ends with one registration that has the node's id and log ids."""

    for fault in WriteFault:
        client = MemoryMetastore()
        await client.start(lambda _: None)
        client.spoil(fault, fault, fault)
        session_id = await client.register(Registration("n1", 0, True, log_ids={0: 4}, id=2))
        client.deliver_late()
        assert (await client.registrations())["n1"].session_id == session_id
        assert await client.register(Registration("n1", 0, True, log_ids={0: 4}, id=2)) == session_id
