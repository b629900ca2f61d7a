"""`isthmus kv` sends a request about a key to the key's leader, and to the node that it was given when that fails."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.config.settings import Address, ListenSettings
from isthmus.node.cli import main as cli
from isthmus.node.cli.exit_codes import Exit
from isthmus.repl.http.routes import HASH
from isthmus.repl.model.errors import NotReady
from tests.support.memory_client_api import ServedApp, make_client_api

Run = Callable[..., tuple[int, bytes, str]]


class RoutedNode:
    """A client API on loopback. `document` is its answer to GET /cluster/routes, read `route_reads` times."""

    def __init__(self) -> None:
        made = make_client_api()
        self.kv = made.kv
        made.routes.current = self.current  # type: ignore[method-assign]
        self.document: dict[str, Any] = {}
        self.route_reads = 0
        self._served = ServedApp(made.app, ListenSettings(http=Address("127.0.0.1", 0)))
        self.address = f"127.0.0.1:{self._served.port}"

    def current(self) -> tuple[str, bytes]:
        self.route_reads += 1
        return "tag", json.dumps(self.document).encode()

    def lead(self, address: str, cluster_uuid: str = "aa") -> None:
        """Name the node at `address` the leader of all keys."""
        self.document = {
            "v": 1, "version": 1, "hash": HASH, "cluster_uuid": cluster_uuid,
            "nodes": {"n": address}, "bucket_types": {"default": ["n", "n"]},
        }  # fmt: skip

    def stop(self) -> None:
        self._served.stop()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RoutedNode, RoutedNode]]:
    """The node that commands are given, and another one, which both name the leader."""
    given, leader = RoutedNode(), RoutedNode()
    monkeypatch.setenv("ISTHMUS_HTTP", f"http://{given.address}")
    for node in (given, leader):
        node.lead(leader.address)
    yield given, leader
    given.stop()
    leader.stop()


@pytest.fixture
def run(capfdbinary: Any) -> Run:
    """run("get", ...): exit code, standard output, standard error of `isthmus kv`."""

    def call(*arguments: str) -> tuple[int, bytes, str]:
        code = cli.main(["kv", *arguments])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return call


Nodes = tuple[RoutedNode, RoutedNode]


def test_requests_about_a_key_go_to_its_leader(nodes: Nodes, run: Run) -> None:
    """Put, get and delete reach the leader only; a listing goes to the given node; the routes are read once."""
    given, leader = nodes
    assert run("put", "b", "k", "v")[0] == Exit.OK
    assert (given.kv.writes, leader.kv.writes, given.route_reads, leader.route_reads) == (0, 1, 1, 1)
    assert run("get", "b", "k") == (Exit.OK, b"v", "")
    assert run("put", "b", "k", "w", "--replace")[0] == Exit.OK
    assert given.route_reads == 3
    assert run("delete", "b", "k")[0] == Exit.OK
    assert (given.kv.writes, leader.kv.writes) == (0, 3)
    assert run("list", "b")[:2] == (Exit.OK, b"")


def test_a_leader_of_another_cluster_or_without_answer_is_not_used(nodes: Nodes, run: Run) -> None:
    """An address may mean something else where the client is: the request goes to the given node, which forwards."""
    given, leader = nodes
    leader.document["cluster_uuid"] = "bb"
    assert run("put", "b", "k", "v")[0] == Exit.OK
    leader.document = {"v": 1}
    assert run("put", "b", "k2", "v")[0] == Exit.OK
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        given.lead(f"127.0.0.1:{unused.getsockname()[1]}")
        assert run("put", "b", "k3", "v")[0] == Exit.OK
    given.lead("not an address")
    assert run("put", "b", "k4", "v")[0] == Exit.OK
    assert (given.kv.writes, leader.kv.writes) == (4, 0)


def test_a_token_in_plain_text_goes_to_the_given_node_only(nodes: Nodes, run: Run, tmp_path: Path) -> None:
    """Without TLS the identity of a listener at an address of the routes is unproven."""
    given, leader = nodes
    (tmp_path / "token").write_text("secret-secret-secret")
    (tmp_path / "token").chmod(0o600)
    assert run("put", "b", "k", "v", "--token-file", str(tmp_path / "token"))[0] == Exit.OK
    assert (given.kv.writes, leader.kv.writes, leader.route_reads) == (1, 0, 0)


def test_a_failed_read_is_repeated_at_the_given_node_and_a_write_is_not(nodes: Nodes, run: Run) -> None:
    """A write that failed at the leader may have taken effect; a read has none. The routes are read at most twice."""
    given, leader = nodes
    run("put", "b", "k", "v")
    given.kv.objects.update(leader.kv.objects)
    leader.kv.fail = NotReady("stopping")
    given.route_reads = 0
    assert run("get", "b", "k") == (Exit.OK, b"v", "")
    assert given.route_reads == 2
    code, _, said = run("put", "b", "k", "w")
    assert (code, given.kv.writes) == (Exit.UNAVAILABLE, 0)
    assert "stopping" in said


def test_a_node_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Without the given node there are no routes, and its failure is the command's result."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("ISTHMUS_HTTP", f"http://127.0.0.1:{unused.getsockname()[1]}")
        code, _, said = run("put", "b", "k", "v")
    assert code == Exit.UNAVAILABLE
    assert "does not answer" in said
