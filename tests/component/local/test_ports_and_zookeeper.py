"""Ports that stay the same, and the embedded ZooKeeper of a single node."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.http.outgoing_ports import EPHEMERAL_RANGE
from isthmus.node.local import ports as ports_module
from isthmus.node.local import supervisor_client
from isthmus.node.local.ports import PortAllocator, free_port
from isthmus.node.local.process_id import ProcessId, wait_gone
from isthmus.repl.metastore import embedded_zookeeper
from isthmus.repl.model.errors import LocalFault
from tests.support.waiting import PATIENCE_S, wait_until


def test_ports_are_different_remembered_and_out_of_the_way_of_outgoing_connections(tmp_path: Path) -> None:
    """Every purpose has its own port below the kernel's range for connections, and the next start has the same."""
    names = [f"n{i}" for i in range(8)]
    ports = PortAllocator(tmp_path).ports(names)
    assert len(set(ports.values())) == 8
    assert max(ports.values()) < int(EPHEMERAL_RANGE.read_text().split()[0])
    assert PortAllocator(tmp_path).ports(names) == ports


def test_a_recorded_port_is_replaced_if_a_foreign_process_listens_on_it(tmp_path: Path) -> None:
    """A stranger on the port means another port; our own process on it means the same."""
    port = PortAllocator(tmp_path).ports(["a"])["a"]
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((embedded_zookeeper.HOST, port))
        sock.listen()
        assert PortAllocator(tmp_path).ports(["a"], in_use=["a"])["a"] == port
        assert PortAllocator(tmp_path).ports(["a"])["a"] != port


def test_a_chosen_port_is_reserved_until_its_server_listens() -> None:
    """Another process that chooses meanwhile does not get it; a server can listen there, and again after a restart."""
    port = free_port(set())
    chosen_elsewhere = (
        "import random; from isthmus.node.local import ports; "
        f"random.randrange = lambda low, high: {port}; print(ports.free_port(set()))"
    )
    other = subprocess.run([sys.executable, "-c", chosen_elsewhere], capture_output=True, text=True, check=True)
    assert int(other.stdout) != port
    for _ in range(2):
        with socket.create_server((embedded_zookeeper.HOST, port)) as server:
            assert server.getsockname()[1] == port


def test_reservations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest reservation ends when a process has too many of them: they cost a descriptor each."""
    monkeypatch.setattr(ports_module, "_reservations", deque())
    monkeypatch.setattr(ports_module, "RESERVATIONS_MAX", 2)
    chosen = [free_port(set()) for _ in range(3)]
    assert [sock.getsockname()[1] for sock in ports_module._reservations] == chosen[1:]
    for sock in ports_module._reservations:
        sock.close()


def test_a_port_book_that_is_damaged_is_a_local_fault(tmp_path: Path) -> None:
    """The message names the file and the remedy."""
    (tmp_path / "ports.json").write_text("[1]")
    with pytest.raises(LocalFault, match=r"ports\.json.*remove it"):
        PortAllocator(tmp_path)


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    """A process that takes the place of a node."""
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A node's data directory; every process that runs in it at the end is stopped."""
    yield tmp_path / "data"
    supervisor_client.release_embedded(tmp_path / "data")


def zookeeper(data_dir: Path) -> dict[str, Any]:
    child: dict[str, Any] = supervisor_client.ask(data_dir / "metastore", {"do": "status"})["children"]["zookeeper"]
    return child


def test_the_embedded_zookeeper_outlives_its_node_and_is_found_again(
    data_dir: Path, owner: subprocess.Popen[bytes]
) -> None:
    """A killed node's ZooKeeper serves on, a killed ZooKeeper is restarted on its port, the node's next start finds
    it, and a graceful stop ends it; a later start has the same port."""
    hosts = supervisor_client.ensure_embedded(data_dir, 0, 60_000, owner.pid)
    port = int(hosts.rpartition(":")[2])
    assert embedded_zookeeper.serves(port)
    pid = zookeeper(data_dir)["process"]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: zookeeper(data_dir)["restarts"] == 1 and embedded_zookeeper.serves(port))
    second = zookeeper(data_dir)["process"]["pid"]
    assert second != pid
    owner.kill()
    owner.wait()
    assert supervisor_client.ensure_embedded(data_dir, 0, 60_000, os.getpid()) == hosts
    assert zookeeper(data_dir)["process"]["pid"] == second
    supervisor_client.release_embedded(data_dir)
    assert not embedded_zookeeper.serves(port)
    assert PortAllocator(data_dir / "metastore").ports(["zookeeper"]) == {"zookeeper": port}


@pytest.mark.slow
def test_the_embedded_zookeeper_ends_after_its_node_without_a_new_owner(
    data_dir: Path, owner: subprocess.Popen[bytes]
) -> None:
    """The linger time after the owner's end, supervisor and ZooKeeper are gone."""
    supervisor_client.ensure_embedded(data_dir, 0, 100, owner.pid)
    process = ProcessId.from_json(zookeeper(data_dir)["process"])
    assert process is not None
    owner.kill()
    owner.wait()
    assert wait_gone(process, PATIENCE_S)
    wait_until(lambda: supervisor_client.running_state(data_dir / "metastore") is None)


@pytest.mark.slow
def test_a_zookeeper_whose_supervisor_was_killed_is_kept_and_one_of_another_port_replaced(data_dir: Path) -> None:
    """The same command under the next supervisor keeps its process; a changed port means a new one, the old is gone."""
    first_port, second_port = PortAllocator(data_dir_made(data_dir)).ports(["x", "y"]).values()
    supervisor_client.ensure_embedded(data_dir, first_port, 60_000, os.getpid())
    old = ProcessId.from_json(zookeeper(data_dir)["process"])
    boss = ProcessId.from_json(supervisor_client.ask(data_dir / "metastore", {"do": "status"})["supervisor"])
    assert old is not None
    assert boss is not None
    boss.send(signal.SIGKILL)
    assert wait_gone(boss, PATIENCE_S)
    supervisor_client.ensure_embedded(data_dir, first_port, 60_000, os.getpid())
    assert ProcessId.from_json(zookeeper(data_dir)["process"]) == old
    assert supervisor_client.ensure_embedded(data_dir, second_port, 60_000, os.getpid()) == f"127.0.0.1:{second_port}"
    assert not old.alive()


def data_dir_made(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def test_an_occupied_port_is_reported_at_once_and_leaves_nothing(data_dir: Path) -> None:
    """The message names port and setting; no supervisor runs afterwards."""
    with socket.socket() as sock:
        sock.bind((embedded_zookeeper.HOST, 0))
        sock.listen()
        port = sock.getsockname()[1]
        with pytest.raises(LocalFault, match=rf"port {port} .*embedded_port"):
            supervisor_client.ensure_embedded(data_dir, port, 1000, os.getpid())
    assert supervisor_client.running_state(data_dir / "metastore") is None


def test_a_zookeeper_that_never_serves_is_reported_with_its_log_and_stopped(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ZooKeeper whose data is foreign ends again and again: one line with its log, and no process is left."""
    monkeypatch.setattr(supervisor_client, "START_TRIES", 1)
    (data_dir / "metastore" / "zookeeper").mkdir(parents=True)
    (data_dir / "metastore" / "zookeeper" / "data").mkdir()
    (data_dir / "metastore" / "zookeeper" / "data" / "version-2").write_text("a file where a folder should be")
    with pytest.raises(LocalFault, match=r"does not serve: .*exit code 1; its output: .*zookeeper\.log") as caught:
        supervisor_client.ensure_embedded(data_dir, 0, 1000, os.getpid())
    assert "\n" not in str(caught.value)
    assert supervisor_client.running_state(data_dir / "metastore") is None


def test_a_data_directory_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    """A file where the data directory should be is one line that names it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalFault, match=r"cannot use .*file/metastore"):
        supervisor_client.ensure_embedded(tmp_path / "file", 0, 1000, os.getpid())
