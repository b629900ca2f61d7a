"""The six commands of docs/production.md write the files of a secured pair of clusters, which then runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.local.supervisor_client import PACKAGE_ROOT
from isthmus.repl.http.client import PeerCredentials, session
from isthmus.repl.security.tls import TlsFiles, client_contexts
from isthmus.repl.security.tokens import watched_token
from tests.support.zookeepers import Server
from tests.system.local.real_nodes import eventually

PAGE = Path(__file__).parents[3] / "docs" / "production.md"
NODES = [f"{cluster}-{number}" for cluster in ("east", "west") for number in (1, 2, 3)]


def commands() -> list[list[str]]:
    """The words of the page's `isthmus node init` commands."""
    text = PAGE.read_text().replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("isthmus node init ")]


def free_base() -> int:
    """A port that is free with the two behind it, on every address."""
    for base in range(21_000, 32_000, 3):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(base, base + 3):
                    stack.enter_context(socket.socket()).bind(("", port))
            except OSError:
                continue
            return base
    raise AssertionError("no three ports are free")


def isthmus(folder: Path, *words: str, **variables: str) -> str:
    """Run a command in a folder, which must end with 0; its output."""
    done = subprocess.run(
        [sys.executable, "-m", "isthmus.node.cli.main", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout


@contextlib.contextmanager
def started(folder: Path, names: list[str]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """The nodes of the files of these names, all at once; killed at the end if they did not stop."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in names:
            with (folder / f"{name}.log").open("wb") as log:
                running[name] = subprocess.Popen(
                    [sys.executable, "-m", "isthmus.node.cli.main", "node", "run", f"{name}.toml"],
                    cwd=folder,
                    env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
                    stdout=log,
                    stderr=log,
                )
        yield running
        for process in running.values():
            process.terminate()
        assert {name: process.wait(60) for name, process in running.items()} == dict.fromkeys(names, 0)
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def holds(client: Any, url: str) -> bool:
    """Whether a key has the value that the test wrote."""
    answer = client.request("GET", url, timeout=20)
    return bool(answer.status_code == 200 and answer.content == b"here")


def test_the_page_has_six_commands_one_for_each_node() -> None:
    """Nothing else is to be typed for the files of a secured pair of three nodes each."""
    assert [words[words.index("--name") + 1] for words in commands()] == NODES
    assert all({"--tls", "--tokens", "--fullsync", "--peer-cluster"} <= set(words) for words in commands())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_six_commands_and_no_editor_make_a_secured_pair(tmp_path: Path) -> None:
    """The commands of the page, with loopback addresses and the ZooKeepers of this test in the places of theirs: the
    files have no fault and no warning together, six nodes start from them, a write of each cluster arrives in the
    other, both are proven equal, and nobody comes in without a token."""
    port = free_base()
    folder = tmp_path / "conf"
    folder.mkdir()
    ensembles = [Server(tmp_path / "zk-east"), Server(tmp_path / "zk-west")]
    with contextlib.ExitStack() as stack:
        for server in ensembles:
            stack.callback(server.close)
            server.start()
        for words in commands():
            places = {
                "/var/lib/isthmus": str(tmp_path / "data"),
                "zk1:2181,zk2:2181,zk3:2181": ensembles[0].hosts,
                "zk4:2181,zk5:2181,zk6:2181": ensembles[1].hosts,
                ":8098": f":{port + 1}",
            }
            for ours, theirs in places.items():
                words = [word.replace(ours, theirs) for word in words]
            isthmus(folder, *(re.sub(r"\b10\.0\.", "127.0.", word) for word in words), "--port", str(port))
        files = [f"{name}.toml" for name in NODES]
        checked = isthmus(folder, "config", "check", *files)
        assert checked.count("no faults") == 6
        assert "warning" not in checked
        stack.enter_context(started(folder, NODES))
        access = {"ISTHMUS_CA": str(folder / "tls" / "ca.crt")}
        access["ISTHMUS_TOKEN_FILE"] = str(folder / "tokens" / "admin.token")
        for cluster in (1, 2):
            admin = f"https://127.0.{cluster}.1:{port + 2}"
            isthmus(folder, "cluster", "wait", "--in-sync", "--timeout", "90s", "--admin", admin, **access)
        keys = {1: "/buckets/towns/keys/corinth", 2: "/buckets/towns/keys/isthmia"}
        trusted = client_contexts(TlsFiles(None, None, (folder / "tls" / "ca.crt",)), check_host=True)
        write = PeerCredentials(trusted.current, "", watched_token(folder / "tokens" / "write.token").current)
        with session(access=write) as client:

            def url(cluster: int, node: int, path: str) -> str:
                return f"https://127.0.{cluster}.{node}:{port + 1}{path}"

            for cluster, path in keys.items():
                headers = {"Content-Type": "text/plain"}
                put = client.request("PUT", url(cluster, 2, path), data=b"here", headers=headers, timeout=20)
                assert put.status_code == 204, put.text
            arrived = [url(3 - cluster, node, path) for cluster, path in keys.items() for node in (1, 2, 3)]
            for where in arrived:
                eventually(partial(holds, client, where), where)
        with session(access=write._replace(token=None)) as client:
            assert client.request("GET", url(1, 1, keys[1]), timeout=20).status_code == 401
        admin = f"https://127.0.1.1:{port + 2}"
        isthmus(folder, "fullsync", "run", "all", "--peer", "west", "--wait", "--admin", admin, **access)
        found = json.loads(isthmus(folder, "fullsync", "status", "-o", "json", "--admin", admin, **access))
        assert "in-sync" in json.dumps(found)
