"""Real nodes on one ZooKeeper, each with a config file that a test writes and rewrites."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from isthmus.node.local import supervisor_client
from isthmus.node.local.ports import free_port
from tests.support.zookeepers import Server

PATIENCE_S: Final = 90.0

PUT_TIMEOUT_S: Final = 10.0


def eventually(holds: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Wait until `holds()` is true; network errors meanwhile count as not yet. Fails after `patience_s`."""
    deadline = time.monotonic() + patience_s
    last = ""
    while True:
        try:
            if holds():
                return
        except (OSError, ValueError, KeyError) as error:
            last = f" ({error})"
        assert time.monotonic() < deadline, f"never came: {what}{last}"
        time.sleep(0.1)


class RealNode:
    """One node: its ports, its config file, its process."""

    def __init__(self, directory: Path, cluster: str, name: str, number: int, ports: set[int]) -> None:
        self.name, self.cluster, self.number = name, cluster, number
        self.directory = directory / name
        self.directory.mkdir(parents=True)
        self.file = self.directory / "node.toml"
        self.log = self.directory / "node.log"
        self.ports: dict[str, int] = {}
        for listener in ("http", "admin", "cluster"):
            self.ports[listener] = free_port(ports)
            ports.add(self.ports[listener])
        self.process: subprocess.Popen[bytes] | None = None

    def write(self, hosts: str, tables: str = "") -> None:
        """Write the config: the node's own keys, and `tables` behind them."""
        listen = "\n".join(f'{name} = "127.0.0.1:{port}"' for name, port in self.ports.items())
        self.file.write_text(
            f'[node]\nname = "{self.name}"\ncluster = "{self.cluster}"\nid = {self.number}\n'
            f'data_dir = "{self.directory}/data"\n[listen]\n{listen}\n[metastore]\nhosts = "{hosts}"\n'
            f'session_timeout = "4s"\n[log]\nformat = "json"\n{tables}'
        )

    def start(self, variables: Mapping[str, str] | None = None) -> None:
        """Start the process, with further environment variables."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "isthmus.node.cli.main", "node", "run", str(self.file)],
                cwd=supervisor_client.PACKAGE_ROOT,
                env={**os.environ, **(variables or {})},
                stdout=log,
                stderr=log,
            )

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> int:
        """A graceful stop; the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log's events of this name."""
        found = []
        for line in self.log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event["event"] == name:
                    found.append(event)
        return found


class Client:
    """HTTP and the command line, with or without TLS."""

    def __init__(self, authority: Path | None = None) -> None:
        self.authority = authority
        self._context = None if authority is None else ssl.create_default_context(cafile=str(authority))

    def url(self, node: RealNode, listener: str = "http", tls: bool = False) -> str:
        return f"{'https' if tls else 'http'}://127.0.0.1:{node.ports[listener]}"

    def request(self, method: str, url: str, body: bytes | None = None) -> tuple[int, bytes]:
        request = urllib.request.Request(url, body, {"Content-Type": "text/plain"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PUT_TIMEOUT_S, context=self._context) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def document(self, node: RealNode, path: str, tls: bool = False) -> Any:
        status, body = self.request("GET", self.url(node, "admin", tls) + path)
        if status != 200:
            raise OSError(f"{path}: {status} {body[:200]!r}")
        return json.loads(body)

    def online(self, node: RealNode, tls: bool = False) -> bool:
        """Whether the node's cluster is online and the node serves its replicas."""
        assert node.runs(), node.log.read_text()[-1000:]
        found = self.document(node, "/admin/cluster", tls)
        return bool(found["ready"] and found["partitions"]["total"] and found["state"] == "online")

    def command(self, node: RealNode, *arguments: str, tls: bool = False) -> tuple[int, str]:
        """Exit code and output of an `isthmus` command sent to this node."""
        ca = {} if self.authority is None else {"ISTHMUS_CA": str(self.authority)}
        done = subprocess.run(
            [sys.executable, "-m", "isthmus.node.cli.main", *arguments],
            cwd=supervisor_client.PACKAGE_ROOT,
            env={**os.environ, "ISTHMUS_ADMIN": self.url(node, "admin", tls), **ca},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        return done.returncode, done.stdout + done.stderr


class Writer:
    """Writes keys one after the other in a thread, at nodes that answer; records the acknowledged ones."""

    def __init__(self, put: Callable[[int], bool]) -> None:
        self._put = put
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.acknowledged: list[int] = []
        self.tried = 0

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(OSError):
                if self._put(self.tried):
                    self.acknowledged.append(self.tried)
            self.tried += 1
            time.sleep(0.01)


@contextlib.contextmanager
def real_clusters(directory: Path, sizes: dict[str, int]) -> Iterator[tuple[Server, dict[str, list[RealNode]]]]:
    """A ZooKeeper that serves, and the nodes of each cluster, not started; all is stopped at the end."""
    ports: set[int] = set()
    server = Server(directory / "zookeeper")
    ports.add(server.port)
    nodes = {
        cluster: [RealNode(directory, cluster, f"{cluster}-{n}", n, ports) for n in range(1, count + 1)]
        for cluster, count in sizes.items()
    }
    try:
        server.start()
        yield server, nodes
    finally:
        for each in nodes.values():
            for node in each:
                node.close()
        server.close()
