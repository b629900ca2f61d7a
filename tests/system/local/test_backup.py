"""Backups of real nodes under load: they contain all writes acknowledged before, which are back after a restore."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha512
from pathlib import Path
from typing import Final

import pytest

from isthmus.repl.runtime.metastore_copy import load_copy
from tests.system.local.real_nodes import Client, RealNode, Writer, eventually, real_clusters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WRITERS: Final = 4

TABLES: Final = (
    '[replication]\nfactor = 2\nmin_isr = 1\npartitions = 4\nwrite_buffer_size = "64KB"\nlog_size = "1MB"\n'
    'log_file_size = "128KB"\nlog_batch_size = "64KB"\ncheckpoint_interval = "200ms"\n'
)
"""Small buffers and files: LevelDB compacts, and the log is trimmed, many times during a backup."""


def value(key: str) -> bytes:
    """About 2 KB that belong to the key alone."""
    return b"".join(sha512(b"%s %d" % (key.encode(), part)).digest() for part in range(32))


class Load:
    """Several writers, and the keys that were acknowledged."""

    def __init__(self, client: Client, nodes: list[RealNode]) -> None:
        self.client = client
        self.nodes = nodes
        self._writers: list[Writer] = []

    def _put(self, writer: int, number: int) -> bool:
        key = f"w{writer}-{number}"
        return self.client.request("PUT", self._url(self.nodes[writer % len(self.nodes)], key), value(key))[0] == 204

    def _url(self, node: RealNode, key: str) -> str:
        return f"{self.client.url(node)}/types/default/buckets/b/keys/{key}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write until the end of the context."""
        with ExitStack() as stack:
            for writer in range(WRITERS):
                put = lambda number, writer=writer: self._put(writer, number)  # type: ignore[misc] # noqa: E731
                self._writers.append(stack.enter_context(Writer(put)))
            yield

    def acknowledged(self) -> list[str]:
        """The keys of all acknowledged writes until now."""
        return [f"w{n}-{number}" for n, writer in enumerate(self._writers) for number in list(writer.acknowledged)]

    def lacking(self, node: RealNode, keys: list[str]) -> list[str]:
        """Keys whose value the node does not return."""
        return [key for key in keys if self.client.request("GET", self._url(node, key)) != (200, value(key))]


def spoiled_copy(backup: Path, target: Path, name: str, *, cut: bool) -> Path:
    """A copy of a backup in which one file has a changed byte, or lacks its last one; returns the path of that file."""
    shutil.copytree(backup, target)
    file = target / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data[:-1] if cut else data)
    return file


def test_a_cluster_that_lost_everything_is_restored_with_all_that_was_acknowledged_before_its_backups(
    tmp_path: Path,
) -> None:
    """Two nodes are backed up twice under load, while LevelDB compacts and the log is trimmed. Then ZooKeeper and
    both directories are lost. Restored, adopted and reseeded, each generation of backups serves every write that was
    acknowledged before it began."""
    with real_clusters(tmp_path, {"east": 2}) as (server, clusters):
        nodes, client = clusters["east"], Client()
        for node in nodes:
            node.write(server.hosts, TABLES)
            node.start()
        for node in nodes:
            eventually(lambda node=node: client.online(node), f"{node.name} online")  # type: ignore[misc]
        for node in nodes:  # the copy of the metastore is up to 10 s old: one from before the partitions restores none
            data = node.directory / "data"
            eventually(lambda data=data: "/p/3" in load_copy(data).documents, f"records in {data}")  # type: ignore[misc]
        load = Load(client, nodes)
        generations: list[tuple[list[str], list[Path]]] = []
        with load.running():
            for generation in range(2):
                before = len(load.acknowledged())
                eventually(lambda: len(load.acknowledged()) > before + 700, "writes")  # noqa: B023
                known, backups = load.acknowledged(), []
                for node in nodes:
                    backup = tmp_path / f"{node.name}-{generation}"
                    code, text = client.command(node, "backup", "create", str(node.file), str(backup), "-o", "json")
                    assert code == 0, text
                    made = json.loads(text)
                    assert made["metastore_copy_ms"] is not None
                    assert len(made["partitions"]) == 4
                    backups.append(backup)
                generations.append((known, backups))
        logs = nodes[0].directory / "data" / "log"
        eventually(lambda: min(logs.glob("*.log")).name != f"{1:016d}.log", "the log is trimmed")

        for known, backups in reversed(generations):
            for node in nodes:
                node.stop()
            server.kill()
            shutil.rmtree(server.directory)
            server.start()
            for node, backup in zip(nodes, backups, strict=True):
                assert client.command(node, "backup", "verify", str(backup))[0] == 0
                shutil.rmtree(node.directory / "data")
                code, text = client.command(
                    node, "backup", "restore", str(backup), "--data-dir", f"{node.directory}/data"
                )
                assert code == 0, text
            code, text = client.command(nodes[0], "cluster", "adopt", str(nodes[0].file), "--yes")
            assert code == 0, text
            for node in nodes:
                node.start()
            for node in nodes:
                eventually(lambda node=node: len(client.document(node, "/admin/cluster")["nodes"]) == 2, "all nodes")  # type: ignore[misc]
            eventually(lambda: client.command(nodes[0], "cluster", "reseed", "--yes")[0] == 0, "a reseed")
            for node in nodes:
                eventually(lambda node=node: client.online(node), f"{node.name} online again")  # type: ignore[misc]
            assert load.lacking(nodes[1], known) == []
            assert len(known) > 700


def test_a_node_restored_beside_a_living_cluster_brings_back_nothing(tmp_path: Path) -> None:
    """A node's directory is lost and restored from a backup; it gets new log ids, catches up from the other node, and
    keys deleted since the backup stay deleted. A backup with a changed byte or a missing one is refused by verify and
    restore, which name the file; so is an incomplete one, or a directory that is not empty."""
    with real_clusters(tmp_path, {"east": 2}) as (server, clusters):
        nodes, client = clusters["east"], Client()
        for node in nodes:
            node.write(server.hosts, TABLES)
            node.start()
        for node in nodes:
            eventually(lambda node=node: client.online(node), f"{node.name} online")  # type: ignore[misc]
        load = Load(client, nodes)
        first, second = nodes
        url = f"{client.url(first)}/types/default/buckets/c/keys"
        for key in ("deleted", "kept"):
            assert client.request("PUT", f"{url}/{key}", b"old")[0] == 204
        backup, data = tmp_path / "backup", second.directory / "data"
        with load.running():
            eventually(lambda: len(load.acknowledged()) > 300, "writes")
            code, text = client.command(second, "backup", "create", "--data-dir", str(data), str(backup))
            assert code == 0, text
            code, text = client.command(second, "backup", "create", "--data-dir", str(data), str(backup))
            assert (code, "not an empty directory" in text) == (2, True)
        assert client.request("DELETE", f"{url}/deleted")[0] == 204
        assert client.request("PUT", f"{url}/later", b"new")[0] == 204

        second.stop()
        manifest = json.loads((backup / "backup.json").read_text())["manifest"]
        log = next(file["path"] for file in manifest["files"] if file["path"].startswith("log/"))
        table = next(file["path"] for file in manifest["files"] if file["path"].endswith((".ldb", ".sst")))
        for name, cut in ((log, False), (table, True), ("backup.json", False)):
            spoiled = tmp_path / "spoiled"
            file = spoiled_copy(backup, spoiled, name, cut=cut)
            elsewhere = tmp_path / "elsewhere"
            for command in (("verify", str(spoiled)), ("restore", str(spoiled), "--data-dir", str(elsewhere))):
                code, text = client.command(second, "backup", *command)
                assert (code, str(file) in text) == (5 if name == "backup.json" else 1, True), text
            assert not elsewhere.exists()
            shutil.rmtree(spoiled)
        (backup / "backup.json").rename(backup / "other")
        assert client.command(second, "backup", "verify", str(backup))[0] == 2
        (backup / "other").rename(backup / "backup.json")

        code, text = client.command(second, "backup", "restore", str(backup), "--data-dir", str(data))
        assert (code, "not empty" in text) == (2, True)
        shutil.rmtree(data)
        code, text = client.command(second, "backup", "restore", str(backup), "--data-dir", str(data))
        assert code == 0, text
        second.start()

        def all_in_sync() -> bool:
            rows = client.document(first, "/admin/partitions")["partitions"]
            return len(rows) == 4 and all(len(row["isr"]) == 2 for row in rows)

        eventually(all_in_sync, "all replicas in sync")
        assert second.events("identity.new_gen")
        for node in nodes:
            url = f"{client.url(node)}/types/default/buckets/c/keys"
            assert client.request("GET", f"{url}/deleted")[0] == 404
            assert client.request("GET", f"{url}/kept") == (200, b"old")
            assert client.request("GET", f"{url}/later") == (200, b"new")
            assert load.lacking(node, load.acknowledged()) == []
