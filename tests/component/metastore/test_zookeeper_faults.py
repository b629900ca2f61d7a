"""Faults that only a real ZooKeeper can show: killed, frozen, rolled back, unreachable, with foreign bytes."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from isthmus.repl.metastore import embedded_zookeeper, rollback_guard
from isthmus.repl.metastore.port import Ambiguous, SessionState, Unavailable, VersionConflict, Versioned
from isthmus.repl.metastore.zookeeper import ZooKeeperMetastore
from isthmus.repl.model.errors import Corruption, LocalFault
from isthmus.repl.model.record import Registration
from tests.support.waiting import PATIENCE_S, eventually


def metastore(hosts: str, session_timeout_ms: int = 8000, connect_timeout_ms: int = 10_000) -> ZooKeeperMetastore:
    return ZooKeeperMetastore(
        hosts, "/isthmus", "east", session_timeout_ms=session_timeout_ms, connect_timeout_ms=connect_timeout_ms
    )


async def test_a_killed_zookeeper_that_comes_back_keeps_session_and_values(own_server: Any) -> None:
    """While it is dead calls are Unavailable and the session merely suspended; afterwards the registration and all
    writes are there, and paths that were read are hinted."""

    client, states, hints = metastore(own_server.hosts), list[SessionState](), list[str]()
    client.watch(hints.append)
    await client.start(states.append)
    session_id = await client.register(Registration("n1", 0, True))
    await client.put("/x", b"kept", None)
    await client.get("/x")
    own_server.kill()
    await eventually(lambda: states[-1] is SessionState.SUSPENDED, "suspended")
    for call in (client.get("/x"), client.put("/y", b"", None), client.records()):
        with pytest.raises(Unavailable):
            await call
    await asyncio.to_thread(own_server.start)
    await eventually(lambda: states[-1] is SessionState.CONNECTED, "connected again")
    assert SessionState.EXPIRED not in states
    await eventually(lambda: "/x" in hints, "the hint")
    assert await client.get("/x") == Versioned(b"kept", 0)
    assert (await client.registrations())["n1"].session_id == session_id
    await client.stop()


async def test_a_write_without_an_answer_is_ambiguous_and_repeating_it_decides(own_server: Any) -> None:
    """A frozen server took the request: the write is neither done nor refused. Its repetition on the same base is
    either done or refused, and the value is the one written (R-AMBIG, H14)."""

    client = metastore(own_server.hosts, session_timeout_ms=2000)
    await client.start(lambda _: None)
    version = await client.put("/x", b"old", None)
    own_server.freeze()
    with pytest.raises(Ambiguous):
        await client.put("/x", b"new", version)
    own_server.send(signal.SIGCONT)

    async def decided() -> bool:
        try:
            await client.put("/x", b"new", version)
        except VersionConflict:
            return True
        except (Ambiguous, Unavailable):
            return False
        return True

    await eventually(decided, "an answer")
    found = await client.get("/x")
    assert found == Versioned(b"new", version + 1)
    await client.stop()


@pytest.mark.parametrize("new_session", [False, True])
@pytest.mark.logs_errors("metastore.rollback")
async def test_a_zookeeper_with_older_data_is_refused(
    new_session: bool, own_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server with an older state than this process has seen is refused, in the same session and in a new one: the
    client stays suspended, and its errors give the reason, with both zxids (H32)."""
    monkeypatch.setattr(rollback_guard, "INTERVAL_S", 0.3)

    client, states = metastore(own_server.hosts, session_timeout_ms=2000), list[SessionState]()
    await client.start(states.append)
    await client.put("/x", b"1", None)
    own_server.kill()
    await eventually(lambda: states[-1] is SessionState.SUSPENDED, "suspended")
    assert client._link is not None
    if new_session:
        client._link._client._reset()  # as the driver does when its session has expired
    shutil.rmtree(own_server.directory / "data")
    await asyncio.to_thread(own_server.start)

    async def why() -> str:
        with pytest.raises(Unavailable) as caught:
            await client.get("/x")
        return str(caught.value)

    async def refused() -> str:
        text = await why()
        return text if "metastore-rollback" in text else ""

    text = await eventually(refused, "the refusal")
    assert re.search(r"is at zxid 0x\w+, this process has seen 0x\w+: the ensemble lost", text)
    assert states[-1] is SessionState.SUSPENDED
    await client.stop()


@pytest.mark.timing
async def test_starting_without_a_zookeeper_fails_in_one_line_and_in_time() -> None:
    """Without a server the client raises LocalFault within the connect time-out, naming hosts and setting; no thread is
    left."""

    began = time.monotonic()
    with pytest.raises(LocalFault, match=r"127\.0\.0\.1:1 .*\[metastore\] hosts") as caught:
        await metastore("127.0.0.1:1", connect_timeout_ms=300).start(lambda _: None)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 5


async def test_hosts_that_are_no_hosts_are_refused() -> None:
    """A port that is not a number is reported as an error of the setting."""

    with pytest.raises(LocalFault, match=r"\[metastore\] hosts"):
        await metastore("zk1:port").start(lambda _: None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.logs_errors("metastore.driver_restarted")
async def test_a_driver_that_dies_of_its_own_error_is_started_again(zookeeper_clients: Any) -> None:
    """When kazoo's thread ends with an unexpected error, the session counts as expired and a new one begins."""

    client, states = zookeeper_clients.client(), list[SessionState]()
    await client.start(states.append)
    connection = client._link._client._connection
    sound = connection._read_socket

    def broken(*_: object) -> None:
        connection._read_socket = sound
        raise RuntimeError("xids do not match")

    connection._read_socket = broken
    with pytest.raises((Unavailable, Ambiguous)):
        await client.put("/x", b"", None)
    await eventually(lambda: states[-2:] == [SessionState.EXPIRED, SessionState.CONNECTED], f"a new session: {states}")
    assert await client.allocate_log_id() == 1
    await client.stop()


@pytest.mark.parametrize(
    ("path", "value"), [("p/3", b"{}"), ("p/x", b"{}"), ("nodes/n1", b"[]"), ("gen", b"many"), ("uuid", b"00")]
)
async def test_foreign_bytes_in_the_tree_are_named(
    path: str, value: bytes, zookeeper_clients: Any, shared_server: Any
) -> None:
    """Bytes that this program did not write are Corruption, with the path in the message; an unreadable record or
    registration is reported beside the others, which can be read."""

    def write_foreign(base: str) -> None:
        stranger = KazooClient(hosts=shared_server.hosts)
        stranger.start()
        stranger.create(f"{base}/{path}", value)
        stranger.stop()
        stranger.close()

    client = zookeeper_clients.client()
    await client.start(lambda _: None)
    await asyncio.to_thread(write_foreign, client._base)
    reads = {
        "p": client.records,
        "nodes": client.registrations,
        "gen": client.allocate_log_id,
        "uuid": lambda: client.cluster_uuid(bytes(16)),
    }
    if "/" in path:
        assert not await reads[path.split("/")[0]]()
        assert path in client.unreadable[f"/{path}"]
    else:
        with pytest.raises(Corruption, match=path):
            await reads[path]()
    await client.stop()


async def test_a_record_at_a_wrong_path_is_named(zookeeper_clients: Any, shared_server: Any) -> None:
    """A record for partition 3 at another path is unreadable, and does not count as partition 3's."""
    from isthmus.repl.metastore.codecs import encode_record
    from isthmus.repl.model.record import PartitionRecord

    client = zookeeper_clients.client()
    await client.start(lambda _: None)
    await client.put("/p/4", encode_record(PartitionRecord(3, "default", 3, 12, ("n1",))), None)
    assert not await client.records()
    assert "/p/4 in the metastore holds the record of partition 3" in client.unreadable["/p/4"]
    with pytest.raises(Corruption, match="/p/4"):
        await client.synced_record(4)
    await client.stop()


async def test_a_record_that_zookeeper_refuses_to_read_out_is_unreadable_alone(
    zookeeper_clients: Any, shared_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An access list on one znode affects that partition only: the others are read, nodes are found at their places,
    and once the list is removed the record is read within the interval of full reads."""
    from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

    from isthmus.repl.metastore import watch_cache
    from isthmus.repl.metastore.codecs import encode_record
    from isthmus.repl.model.record import PartitionRecord

    monkeypatch.setattr(watch_cache, "FULL_READ_INTERVAL_S", 0.2)

    client = zookeeper_clients.client()
    await client.start(lambda _: None)
    for number in (0, 1):
        await client.put(f"/p/{number}", encode_record(PartitionRecord(number, "default", number, 2, ("n1",))), None)
    await client.register(Registration("n1", 0, True))
    assert sorted(await client.records()) == [0, 1]
    other = KazooClient(hosts=shared_server.hosts)
    await asyncio.to_thread(other.start)
    paths = [f"{client._base}{path}" for path in ("/p/1", "/nodes/n1")]
    mine = make_digest_acl("ann", "secret", all=True)
    for path in paths:
        await asyncio.to_thread(other.set_acls, path, [mine])
    await asyncio.sleep(0.3)
    assert sorted(await client.records()) == [0, 1]
    assert "NoAuth" in client.unreadable["/p/1"]
    with pytest.raises(LocalFault, match="NoAuth"):  # this is not a sign that the node is gone
        await client.registrations()
    fresh = zookeeper_clients.client()
    fresh._base = client._base
    await fresh.start(lambda _: None)
    assert sorted(await fresh.records()) == [0]
    await asyncio.to_thread(other.add_auth, "digest", "ann:secret")
    for path in paths:
        await asyncio.to_thread(other.set_acls, path, OPEN_ACL_UNSAFE)
    await asyncio.sleep(0.3)
    for each in (client, fresh):
        assert sorted(await each.records()) == [0, 1]
        assert not each.unreadable
        assert sorted(await each.registrations()) == ["n1"]
    await fresh.stop()
    await client.stop()
    await asyncio.to_thread(other.stop)
    await asyncio.to_thread(other.close)


@pytest.mark.timing
async def test_the_loop_is_never_blocked_by_a_frozen_server(own_server: Any) -> None:
    """While a request waits for a frozen ZooKeeper, the loop keeps running."""

    client = metastore(own_server.hosts, session_timeout_ms=3000)
    await client.start(lambda _: None)
    own_server.freeze()
    call = asyncio.ensure_future(client.get("/x"))
    longest, asked = 0.0, time.monotonic()
    while not call.done():
        began = time.monotonic()
        await asyncio.sleep(0.005)
        longest = max(longest, time.monotonic() - began)
    took = time.monotonic() - asked
    own_server.send(signal.SIGCONT)
    assert isinstance(call.exception(), Unavailable)
    assert longest < took / 2, "a loop that waits with the call waits all of it, from a third of the session on"
    await client.stop()


def test_the_embedded_server_names_its_log_when_it_cannot_serve(tmp_path: Path, shared_server: Any) -> None:
    """A second server on a taken port ends, and the error names the reason and the log."""
    import subprocess

    from isthmus.repl.metastore.java import find_java

    embedded_zookeeper.prepare(tmp_path / "zk", shared_server.port)
    command = embedded_zookeeper.zookeeper_command(
        find_java(), embedded_zookeeper.find_jars(), tmp_path / "zk", shared_server.port
    )
    with pytest.raises(LocalFault, match=f"port {shared_server.port} .*purpose"):
        embedded_zookeeper.check_port_free(shared_server.port, "the purpose")
    process = subprocess.Popen(command, cwd=tmp_path / "zk", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    process.wait(PATIENCE_S)
    assert "BindException" in embedded_zookeeper.log_file(tmp_path / "zk").read_text()
    with pytest.raises(
        LocalFault, match=rf"it ended; its output: .*BindException.*{embedded_zookeeper.log_file(tmp_path / 'zk')}"
    ):
        embedded_zookeeper.wait_until_serving(tmp_path / "zk", 1, 5, lambda: "it ended")
    with pytest.raises(LocalFault, match="no answer on 127"):
        embedded_zookeeper.wait_until_serving(tmp_path / "zk", 1, 0.1, lambda: None)


def test_files_that_cannot_be_written_are_a_local_fault(tmp_path: Path) -> None:
    """A directory that cannot be made gives one line that names it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalFault, match="cannot write the embedded ZooKeeper's files"):
        embedded_zookeeper.prepare(tmp_path / "file" / "zk", 2181)
