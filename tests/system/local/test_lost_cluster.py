"""A pair of clusters of which one is lost whole and restored from its backups, under load, as docs/backup.md says."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from isthmus.repl.runtime.metastore_copy import load_copy
from tests.system.local.real_nodes import Client, RealNode, eventually, real_clusters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_500)]

SHARED: Final = 24
"""Keys that clients of both clusters write, blindly, so that each write must be kept."""

PAUSE_S: Final = 0.02


def tables(other: RealNode, factor: int) -> str:
    """Settings of a node: both ways, with a full-sync that runs on request."""
    url, name = f"http://127.0.0.1:{other.ports['http']}", other.cluster
    return (
        f"[replication]\nfactor = {factor}\npartitions = 6\n"
        f'[[queues]]\nname = "to-{name}"\n'
        f'[[sink.peers]]\nurl = "{url}"\nqueue = "to-{"west" if name == "east" else "east"}"\ncluster = "{name}"\n'
        f'[[fullsync]]\nname = "{name}"\nauto = 0\nurls = "{url}"\ncluster = "{name}"\nqueue = "to-{name}"\n'
    )


class Shown(NamedTuple):
    """What a node answers for a key: status, clock, and the value or the tags of its siblings."""

    status: int
    clock: str
    body: bytes


def shown(client: Client, node: RealNode, key: str, tag: str = "") -> Shown:
    """A GET at exactly this node."""
    url = f"{client.url(node)}/buckets/b/keys/{key}" + (f"?vtag={tag}" if tag else "")
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return Shown(answer.status, answer.headers.get("X-Riak-Vclock", ""), answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Shown(error.code, error.headers.get("X-Riak-Vclock", ""), error.read())


def values(client: Client, node: RealNode, key: str) -> set[str]:
    """The values of a key, of all its siblings."""
    found = shown(client, node, key)
    if found.status == 404:
        return set()
    if found.status == 300:
        tags = found.body.decode().split()[1:]
        return {shown(client, node, key, tag).body.decode() for tag in tags}
    assert found.status == 200, found
    return {found.body.decode()}


class Writers:
    """Clients that write at the nodes of one cluster until they are stopped: keys of their own, and shared ones."""

    def __init__(self, client: Client, nodes: list[RealNode]) -> None:
        self._client = client
        self._nodes = nodes
        self._number = 0
        self.acknowledged: list[tuple[str, str]] = []
        """(key, value) of acknowledged writes."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Write in a thread until the end of the context."""
        stop = threading.Event()
        thread = threading.Thread(target=self._write, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _write(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._number += 1
            cluster = self._nodes[0].cluster
            value = f"{cluster} {self._number}"
            shared = self._number % 40 < 2
            key = f"s{self._number // 40 % SHARED}" if shared else f"{cluster}-{self._number}"
            node = self._nodes[self._number % len(self._nodes)]
            with contextlib.suppress(OSError):
                if (
                    self._client.request("PUT", f"{self._client.url(node)}/buckets/b/keys/{key}", value.encode())[0]
                    == 204
                ):
                    self.acknowledged.append((key, value))
            time.sleep(PAUSE_S)


@pytest.mark.parametrize("size", [1, 3])
def test_a_cluster_restored_from_backups_under_load_loses_nothing_that_the_other_has(tmp_path: Path, size: int) -> None:
    """Backups of all nodes, then a restart of one (a new epoch), then more writes, and the loss of all directories and
    of ZooKeeper. Adopted and re-seeded as the page says, with clients that write in both clusters all the time, and
    compared both ways: every write that was acknowledged in the other cluster, or had reached it, or was acknowledged
    before the backups or after the loss is there, a sibling where others wrote the key; all nodes show the same."""
    with (
        real_clusters(tmp_path / "e", {"east": size}) as (metastore, east_alone),
        real_clusters(tmp_path / "w", {"west": size}) as (other_metastore, west_alone),
    ):
        east, west, client = east_alone["east"], west_alone["west"], Client()
        for nodes, server, other in ((east, metastore, west[0]), (west, other_metastore, east[0])):
            for node in nodes:
                node.write(server.hosts, tables(other, size))
                node.start()
        for node in (*east, *west):
            eventually(lambda node=node: client.online(node), f"{node.name} online")  # type: ignore[misc]
        for node in east:
            data = node.directory / "data"
            eventually(lambda data=data: "/p/5" in load_copy(data).documents, f"records in {data}")  # type: ignore[misc]
        here, there = Writers(client, east), Writers(client, west)
        with there.running():
            with here.running():
                eventually(lambda: len(here.acknowledged) > 150, "writes")
                kept = list(here.acknowledged)
                backups = []
                for node in east:
                    backups.append(tmp_path / f"{node.name}.backup")
                    code, text = client.command(node, "backup", "create", str(node.file), str(backups[-1]))
                    assert code == 0, text
                assert east[0].stop() == 0
                east[0].start()
                eventually(lambda: client.online(east[0]), "east-1 online again")
                upto = len(here.acknowledged)
                eventually(lambda: len(here.acknowledged) > upto + 150, "writes after the restart")
            eventually(lambda: values(client, west[0], here.acknowledged[-1][0]), "the last write at the other side")
            for node in east:
                node.close()
            metastore.kill()
            shutil.rmtree(metastore.directory)
            lost_time = [write for write in here.acknowledged if write not in kept]
            reached = [(key, value) for key, value in lost_time if value in values(client, west[0], key)]
            assert len(reached) > 100
            metastore.start()
            for node, backup in zip(east, backups, strict=True):
                shutil.rmtree(node.directory / "data")
                code, text = client.command(
                    node, "backup", "restore", str(backup), "--data-dir", f"{node.directory}/data"
                )
                assert code == 0, text
            code, text = client.command(east[0], "cluster", "adopt", str(east[0].file), "--yes")
            assert code == 0, text
            for node in east:
                node.start()
            before = len(here.acknowledged)
            with here.running():
                eventually(lambda: client.command(east[0], "cluster", "reseed", "--yes")[0] == 0, "a reseed")
                for node in east:
                    eventually(lambda node=node: client.online(node), f"{node.name} restored")  # type: ignore[misc]
                eventually(lambda: len(here.acknowledged) > before + 150, "writes after the restoration")
        since = here.acknowledged[before:]

        def compared() -> bool:
            codes = [client.command(node, "fullsync", "run", "all", "--wait")[0] for node in (east[0], west[0])]
            return codes == [0, 0] and not lag(client, (east[0], west[0]))

        eventually(compared, "both clusters are equal by their full-syncs", 300)
        keys = sorted({key for key, _ in (*here.acknowledged, *there.acknowledged)})
        for key in keys:
            answers = {node.name: shown(client, node, key) for node in (*east, *west)}
            assert len(set(answers.values())) == 1, (key, answers)
        wanted: dict[str, set[str]] = {}
        for key, value in (*kept, *reached, *since, *there.acknowledged):
            wanted.setdefault(key, set()).add(value)
        missing = {key: found for key in wanted if (found := wanted[key] - values(client, east[0], key))}
        assert missing == {}
        assert client.document(east[0], "/admin/sink/dead-letters")["dead_letters"] == []


def lag(client: Client, nodes: tuple[RealNode, ...]) -> int:
    """Changes that wait in any queue; -1 or less: not known."""
    rows = [row for node in nodes for row in client.document(node, "/admin/lag")["lag"]]
    return sum(-1_000_000 if row["objects"] is None else int(row["objects"]) for row in rows)
