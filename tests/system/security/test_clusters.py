"""Real clusters with TLS and tokens on every listener: they replicate, and refuse everyone else."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.http.authorization import TokenRole
from isthmus.node.local.clusters import LocalClusters
from isthmus.node.local.dev_certificates import credentials_of
from isthmus.node.local.topology import load_topology, parse_topology
from isthmus.node.security import certificates
from isthmus.repl.http.client import session
from isthmus.repl.security.tls import NodeName

SAMPLE = Path(__file__).parents[3] / "config" / "samples" / "two-clusters-secure.toml"
PATIENCE_S = 60.0

SMALL = """\
secure = true
[clusters.east]
[clusters.east.replication]
partitions = 2
[[clusters.east.nodes]]
name = "east-1"
[[clusters.east.nodes]]
name = "east-2"
[[clusters.east.queues]]
name = "to-west"
[clusters.west]
[clusters.west.replication]
partitions = 2
[[clusters.west.nodes]]
name = "west-1"
[[clusters.west.sink.peers]]
cluster = "east"
queue = "to-west"
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Clusters:
    """Running clusters, and how a program comes in."""

    def __init__(self, directory: Path, up: dict[str, Any]) -> None:
        self.directory = directory
        self.security = directory / "security"
        self.nodes = {node["name"]: node for each in up["clusters"].values() for node in each["nodes"]}

    def ask(self, role: TokenRole | None, method: str, url: str, **more: Any) -> Any:
        """Send one request with the token of a role."""
        access = credentials_of(self.security, role or TokenRole.READ)
        with session(access=access if role is not None else access._replace(token=None)) as client:
            return client.request(method, url, timeout=20, **more)

    def command(
        self, *arguments: str, role: TokenRole | None = TokenRole.READ, **environment: str
    ) -> tuple[int, str, str]:
        """Exit code and output of `isthmus`, which trusts the test authority."""
        token = {} if role is None else {"ISTHMUS_TOKEN_FILE": str(self.security / f"{role.value}.token")}
        admin = {"ISTHMUS_ADMIN": self.nodes["east-1"]["admin"], "ISTHMUS_CA": str(self.security / "ca.crt")}
        done = subprocess.run(
            [sys.executable, "-m", "isthmus.node.cli.main", *arguments],
            cwd=SAMPLE.parents[2],
            env={"PATH": "/usr/bin:/bin", **admin, **token, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    def log(self, node: str) -> str:
        """The log of a node."""
        return (self.directory / node / "node.log").read_text()


def exchange_with(address: tuple[str, int], context: ssl.SSLContext | None) -> None:
    """Send something over a connection and return the answer. Raises OSError when the connection was closed instead."""
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.create_connection(address, timeout=10))
        if context is not None:
            sock = stack.enter_context(context.wrap_socket(sock))
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        if not sock.recv(1):
            raise ConnectionError("closed")


def eventually(holds: Callable[[], object]) -> None:
    """Wait until `holds`, not for ever."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """East of two nodes, west of one that fetches from it."""
    directory = tmp_path_factory.mktemp("secure")
    topology = parse_topology(SMALL, Path("small.toml"))
    with LocalClusters(topology, directory, owned=True) as local:
        yield Clusters(directory, local.up())


def test_writes_of_one_cluster_arrive_in_the_other(clusters: Clusters) -> None:
    """Small and large objects arrive over TLS and with tokens all the way; no node loses a link meanwhile."""
    for number, size in enumerate((10, 1000, 3_000_000)):
        path = f"/buckets/b/keys/k{number}"
        node = clusters.nodes[f"east-{1 + number % 2}"]
        headers = {"Content-Type": "application/octet-stream"}
        assert (
            clusters.ask(TokenRole.WRITE, "PUT", node["http"] + path, data=bytes(size), headers=headers).status_code
            == 204
        )
        west = clusters.nodes["west-1"]["http"] + path
        eventually(lambda west=west: clusters.ask(TokenRole.READ, "GET", west).status_code == 200)  # type: ignore[misc]
        assert len(clusters.ask(TokenRole.READ, "GET", west).content) == size
    for node in clusters.nodes:
        assert "transport.link.down" not in clusters.log(node)


def test_a_missing_token_or_role_is_refused_with_a_reason(clusters: Clusters) -> None:
    """401 without, 403 with too little, at both listeners; probes need none."""
    east = clusters.nodes["east-1"]
    put = {"data": b"x", "headers": {"Content-Type": "text/plain"}}
    assert clusters.ask(None, "PUT", east["http"] + "/buckets/b/keys/x", **put).status_code == 401
    assert clusters.ask(TokenRole.READ, "PUT", east["http"] + "/buckets/b/keys/x", **put).status_code == 403
    assert clusters.ask(None, "GET", east["admin"] + "/metrics").status_code == 401
    assert clusters.ask(TokenRole.WRITE, "POST", east["admin"] + "/admin/queues/to-west/suspend").status_code == 403
    assert clusters.ask(None, "GET", east["http"] + "/readyz").status_code == 200
    for node in clusters.nodes:
        for role in TokenRole:
            assert (clusters.security / f"{role.value}.token").read_text().strip() not in clusters.log(node)


def test_commands_are_admitted_or_report_why_not(clusters: Clusters) -> None:
    """Commands succeed with the right token and authority; without each of them, and over http://, they print one plain
    line."""
    code, out, _ = clusters.command("cluster", "status", "-o", "json")
    assert code == 0
    assert json.loads(out)["warnings"] == []
    assert clusters.command("queue", "suspend", "to-west", role=TokenRole.OPERATE)[0] == 0
    assert clusters.command("queue", "resume", "to-west", role=TokenRole.OPERATE)[0] == 0
    code, _, error = clusters.command("queue", "suspend", "to-west")
    assert (code, error) == (4, "isthmus: this needs a token of the role operate or admin\n")
    code, _, error = clusters.command("cluster", "status", role=None)
    assert code == 4
    assert "no token was shown" in error
    assert "--token-file FILE" in error
    code, _, error = clusters.command("cluster", "status", ISTHMUS_CA="")
    assert code == 3
    assert "of no authority that we know" in error
    plain = clusters.nodes["east-1"]["admin"].replace("https://", "http://")
    code, _, error = clusters.command("cluster", "status", ISTHMUS_ADMIN=plain)
    assert code == 3
    assert "speaks TLS: write https://" in error


def test_nodes_refuse_foreign_connections(clusters: Clusters, tmp_path: Path) -> None:
    """The port for nodes refuses, logs and counts plain text, another authority, and a missing certificate."""
    listing = json.loads(clusters.command("cluster", "status", "-o", "json")[1])
    host, port = next(node["cluster"] for node in listing["nodes"] if node["name"] == "east-1").rsplit(":", 1)
    other = certificates.make_authority()
    stranger = certificates.issue(other, "x", [NodeName("east", "east-2")])
    certificates.write_pair(stranger, tmp_path / "x.crt", tmp_path / "x.key")
    for pair in (False, True):
        context = ssl.create_default_context(cafile=str(clusters.security / "ca.crt"))
        context.check_hostname = False
        if pair:
            context.load_cert_chain(tmp_path / "x.crt", tmp_path / "x.key")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            exchange_with((host, int(port)), context)
    with pytest.raises(ConnectionError):
        exchange_with((host, int(port)), None)
    metrics = clusters.nodes["east-1"]["admin"] + "/metrics"
    text = clusters.ask(TokenRole.READ, "GET", metrics).text
    for reason in ("no-certificate", "unknown-authority", "plaintext"):
        assert f'isthmus_tls_refused_total{{listener="cluster",reason="{reason}"}}' in text
        assert f'"reason": "{reason}"' in clusters.log("east-1")


def test_the_sample_comes_up_and_replicates(tmp_path: Path) -> None:
    """The sample's two clusters of three nodes start with all its settings except its ports, and replicate."""
    with LocalClusters(load_topology(SAMPLE), tmp_path, owned=True) as local:
        sample = Clusters(tmp_path, local.up())
        headers = {"Content-Type": "text/plain"}
        for here, there in (("east-1", "west-2"), ("west-3", "east-2")):
            path = f"/buckets/b/keys/from-{here}"
            url = sample.nodes[here]["http"] + path
            assert sample.ask(TokenRole.WRITE, "PUT", url, data=b"x", headers=headers).status_code == 204
            far = sample.nodes[there]["http"] + path
            eventually(lambda far=far: sample.ask(TokenRole.READ, "GET", far).status_code == 200)  # type: ignore[misc]
