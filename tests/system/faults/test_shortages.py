"""Real nodes without descriptors or inodes: what they answer meanwhile, who leads, and that they recover (R-SHORT)."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

from tests.system.faults.cluster import ClusterNode, FaultCluster
from tests.system.faults.disks import SmallDisk
from tests.system.faults.load import Broken
from tests.system.faults.test_single_faults import eventually, put

SETTINGS: Final = {
    "replication": 'checkpoint_interval = "1s"\nwrite_buffer_size = "256KB"\nlog_file_size = "256KB"\n'
    'log_batch_size = "64KB"\nbalance = false'
}
"""Files are made all the time, so that a shortage is met at once."""

LARGE: Final = "x" * 20_000


def acknowledged(cluster: FaultCluster, name: str, keys: range) -> list[int]:
    """The statuses of writes of these keys at one node."""
    return [put(cluster, name, f"k{number}", LARGE).status for number in keys]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_idle_connections_take_no_descriptor_that_the_node_needs(tmp_path: Path) -> None:
    """With more connections than the limit of open files allows, a node goes on: those beyond are answered 503, clients
    that are connected write, operators are answered, checkpoints are made; once they are closed, others get in."""
    with FaultCluster(tmp_path, 1, settings=SETTINGS) as cluster:
        cluster.up()
        (node,) = cluster.nodes.values()
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (500, 500))
        eventually("the limit is noticed", lambda: node.metric("isthmus_open_files_limit") == 500, 10)
        held = [socket.create_connection((node.place.host, node.place.port), 5) for _ in range(600)]
        try:
            eventually("503", lambda: (node.metric("isthmus_http_connections_refused_total") or 0) > 300, 20)
            refused = [sock for sock in held if _answered(sock).startswith(b"HTTP/1.1 503 ")]
            assert len(refused) > 300
            held[0].sendall(
                b"PUT /buckets/b/keys/k HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\ncontent-length: 1\r\n\r\nv"
            )
            held[0].settimeout(10)
            assert b" 204 " in held[0].recv(1000)
            checkpoints = time.monotonic() + 4
            while time.monotonic() < checkpoints:
                assert node.running
                health = node.ask("/admin/nodes/health")
                assert health is not None
                time.sleep(0.3)
            assert "connections_limit is 4,096, but the limit of open files, 500," in health["nodes"]["n1"]["short"][0]
        finally:
            for sock in held:
                sock.close()
        eventually("writes", lambda: set(acknowledged(cluster, "n1", range(20))) == {204}, 10)
        assert node.metric("isthmus_storage_full") == 0
        assert not cluster.ended


def _answered(sock: socket.socket) -> bytes:
    sock.setblocking(False)
    try:
        return sock.recv(1000)
    except BlockingIOError:
        return b""
    except OSError:
        return b"HTTP/1.1 503 (reset)"
    finally:
        sock.setblocking(True)


@contextmanager
def no_descriptors(node: ClusterNode, _data_dir: Path) -> Iterator[None]:
    """The process may open nothing any more."""
    before = resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (20, 20_000))
    try:
        yield
    finally:
        resource.prlimit(node.pid, resource.RLIMIT_NOFILE, before)


def _touch_all(paths: Iterable[Path]) -> None:
    for path in paths:
        path.touch()


@contextmanager
def no_inodes(_node: ClusterNode, data_dir: Path) -> Iterator[None]:
    """No file can be created beside those of the data directory."""
    folder = data_dir.parent / "others"
    folder.mkdir()
    try:
        with pytest.raises(OSError, match="No space left"):
            _touch_all(folder / str(number) for number in range(100_000))
        yield
    finally:
        for name in folder.iterdir():
            name.unlink()
        folder.rmdir()


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.timeout(180)
@pytest.mark.parametrize("short", [no_descriptors, no_inodes])
def test_a_node_that_is_short_hands_over_and_comes_back(tmp_path: Path, short: Callable[..., object]) -> None:
    """It refuses writes with the reason, its leaderships move to others within seconds, and nothing that was accepted
    is lost; when there is enough again it takes part by itself, without a restart."""
    disk = tmp_path / "few-inodes"
    disk.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=900m,nr_inodes=900", "none", str(disk))
    subprocess.run(mount, check=True, timeout=20)
    try:
        with FaultCluster(tmp_path, 3, settings=SETTINGS, data_dirs={"n1": disk / "data"}) as cluster:
            cluster.up()
            node = cluster.nodes["n1"]
            assert set(acknowledged(cluster, "n1", range(60))) == {204}
            assert "n1" in cluster.leaders().values()
            with short(node, disk / "data"):  # type: ignore[attr-defined]
                eventually("n1 leads nothing", lambda: "n1" not in cluster.leaders().values(), 60)
                assert set(acknowledged(cluster, "n2", range(60, 200))) == {204}
                assert node.running
            cluster.wait_until_healthy(60)
            eventually("all in sync", lambda: set(acknowledged(cluster, "n1", range(200, 260))) == {204}, 30)
            cluster.wait_applied(30)
            assert not cluster.ended
    finally:
        subprocess.run(("umount", "--lazy", str(disk)), check=True, timeout=20)
        assert not os.path.ismount(disk)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.timeout(240)
def test_a_node_whose_disk_fills_up_under_its_writes_comes_back(tmp_path: Path) -> None:
    """A real file system without one free block, at once, while the node writes: writes, syncs and LevelDB's own work
    fail in their middle. The process goes on, its leaderships move, and with space again it takes part by itself, with
    everything that was acknowledged."""
    with (
        SmallDisk(tmp_path / "small", 1_000) as disk,
        FaultCluster(tmp_path, 3, settings=SETTINGS, data_dirs={"n1": disk.path / "data"}) as cluster,
    ):
        cluster.up()
        node = cluster.nodes["n1"]
        assert set(acknowledged(cluster, "n1", range(60))) == {204}

        def writes(keys: range) -> None:
            with suppress(Broken):  # what waits for n1 may take longer than a client does
                acknowledged(cluster, "n2", keys)

        writing = [Thread(target=writes, args=(range(at, at + 40),)) for at in (1_000, 2_000)]
        for each in writing:
            each.start()
        disk.fill()
        for each in writing:
            each.join(100)
        eventually("n1 leads nothing", lambda: "n1" not in cluster.leaders().values(), 60)
        eventually("writes go on", lambda: set(acknowledged(cluster, "n2", range(60, 100))) == {204}, 30)
        assert node.running
        disk.free()
        cluster.wait_until_healthy(60)
        eventually("all in sync", lambda: set(acknowledged(cluster, "n1", range(200, 240))) == {204}, 30)
        cluster.wait_applied(30)
        assert not cluster.ended
