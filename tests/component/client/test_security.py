"""Tests of both clients against a node with TLS and tokens."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.client import BadRequest, Client, Refused, Retryable
from isthmus.node.local import dev_certificates
from isthmus.repl.security.tls import NodeName
from tests.support.both_clients import MakeClient
from tests.support.raw_server import RawServer, reply
from tests.support.threaded_node import ThreadedNode, running_node

SECURE = """
[tls]
certificate = "{0}/n1.crt"
key = "{0}/n1.key"
authority = "{0}/ca.crt"
{1}
[tokens]
read = "{0}/read.token"
write = "{0}/write.token"
admin = "{0}/admin.token"
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates and tokens of the node; `other.crt` is of another authority."""
    path = tmp_path_factory.mktemp("security")
    dev_certificates.make_certificates(path, [NodeName("east", "n1")])
    dev_certificates.make_tokens(path)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    dev_certificates.make_certificates(elsewhere, [NodeName("east", "n1")])
    shutil.copy(elsewhere / "ca.crt", path / "other.crt")
    return path


@pytest.fixture(scope="module")
def node(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedNode]:
    """A node that requires TLS and tokens."""
    with running_node(tmp_path_factory.mktemp("secure"), SECURE.format(files, "")) as running:
        yield running


@pytest.fixture
def url(node: ThreadedNode) -> str:
    return f"https://127.0.0.1:{node.http}"


def test_a_token_over_tls(make_client: MakeClient, files: Path, url: str) -> None:
    """Given, or from a file; all requests have it, those for the routes among them."""
    client = make_client(url, ca=files / "ca.crt", token_file=files / "write.token")
    for at in range(8):
        client.overwrite("b", "k", at)
    client.put_many("b", {"a": 1})
    assert sorted(client.list_keys("b")) == ["a", "k"]
    reader = make_client(url, ca=files / "ca.crt", token=(files / "read.token").read_text().strip())
    assert reader.get("b", "k").value == 7


def test_an_own_tls_context(make_client: MakeClient, files: Path, url: str) -> None:
    """A TLS context of the caller replaces the files."""
    context = ssl.create_default_context(cafile=files / "ca.crt")
    client = make_client(url, ssl_context=context, token_file=files / "read.token")
    assert client.find("b", "none") is None


def test_credentials_that_do_not_suffice(make_client: MakeClient, files: Path, url: str) -> None:
    """A role that may not write, an unknown token, or none is Refused at once; the error names a sufficient role and
    does not contain the token."""
    reader = make_client(url, ca=files / "ca.crt", token_file=files / "read.token")
    with pytest.raises(Refused, match="write") as caught:
        reader.put("b", "k", 1)
    assert (caught.value.status, caught.value.reason) == (403, "forbidden")
    unknown = "unknown-token-0123456789"
    for options in ({"token": unknown}, {}):
        client = make_client(url, ca=files / "ca.crt", **options)
        with pytest.raises(Refused) as caught:
            client.get("b", "k")
        assert caught.value.status == 401
        assert unknown not in str(caught.value)


def test_a_certificate_that_is_not_trusted(make_client: MakeClient, files: Path, url: str) -> None:
    """A certificate of another authority is Refused, and nothing is sent."""
    for ca in ("other.crt", None):
        options: dict[str, Any] = {} if ca is None else {"ca": files / ca}
        client = make_client(url, token_file=files / "write.token", **options)
        with pytest.raises(Refused, match="TLS failed") as caught:
            client.put("b", "k", 1)
        assert caught.value.reason == "tls"


def test_a_certificate_for_another_name(make_client: MakeClient, files: Path, tmp_path: Path) -> None:
    """The name or address in the url must be in the certificate."""
    shutil.copy(files / "ca.crt", tmp_path)
    shutil.copy(files / "ca.key", tmp_path)
    dev_certificates.make_certificates(tmp_path, [NodeName("east", "n1")], hosts=("elsewhere.example",))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "n1.crt", tmp_path / "n1.key")

    def script(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(1)

    with RawServer(script) as server:
        client = make_client(f"https://127.0.0.1:{server.port}", ca=files / "ca.crt")
        with pytest.raises(Refused, match="TLS failed"):
            client.get("b", "k", timeout_s=5)


def test_plain_text_and_tls_are_told_apart(make_client: MakeClient, files: Path, url: str) -> None:
    """http:// at a port that speaks TLS, and https:// at one that does not."""
    with pytest.raises(BadRequest, match="https"):
        make_client(url.replace("https", "http")).get("b", "k")
    server = RawServer(lambda connection: server.serve(reply(200))(connection))
    plain = r"TLS failed: the other end does not speak TLS; write http://"
    with server, pytest.raises(Refused, match=plain):
        make_client(f"https://127.0.0.1:{server.port}", ca=files / "ca.crt").get("b", "k", timeout_s=5)


def test_a_client_certificate(files: Path, tmp_path: Path) -> None:
    """A listener that requires one ends the connection of a client without: the error names that possible cause."""
    with running_node(tmp_path, SECURE.format(files, 'client_certificates = "required"')) as strict:
        url = f"https://127.0.0.1:{strict.http}"
        options: dict[str, Any] = {"ca": files / "ca.crt", "token_file": files / "write.token"}
        with Client(url, cert=files / "client.crt", key=files / "client.key", **options) as client:
            client.put("b", "k", 1)
        with Client(url, **options) as client, pytest.raises(Retryable, match="may require a client certificate"):
            client.get("b", "k", timeout_s=6)
