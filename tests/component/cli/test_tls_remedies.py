"""A listener that cannot be reached by TLS: the sentence names what helps, and no other node where that does not."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.main import main
from tests.support.tls_files import CertificateFolder, folder

__all__ = ["folder"]

OTHER_NODE = "names another node"


@contextmanager
def tls_listener(folder: CertificateFolder, pair: str) -> Iterator[str]:
    """The address of a listener that shows `pair`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder.path / f"{pair}.crt", folder.path / f"{pair}.key")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


@pytest.fixture(autouse=True)
def _no_contexts(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("ISTHMUS_CONTEXTS", f"{tmp_path}/contexts.toml")


def test_an_unknown_authority_is_answered_with_ca(
    folder: CertificateFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the authority of the nodes the remedy is --ca."""
    with tls_listener(folder, "stranger") as url:
        assert main(["lag", "--admin", url, "--ca", str(folder.authority)]) == Exit.UNAVAILABLE
    err = capsys.readouterr().err
    assert "of no authority that we know" in err
    assert "--ca FILE or ISTHMUS_CA names the authority of the nodes' certificates" in err
    assert OTHER_NODE not in err


def test_an_expired_certificate_is_to_be_replaced(
    folder: CertificateFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """A certificate that has expired is named, and that nodes read a new one without a restart."""
    with tls_listener(folder, "expired") as url:
        assert main(["lag", "--admin", url, "--ca", str(folder.authority)]) == Exit.UNAVAILABLE
    err = capsys.readouterr().err
    assert "the other end's certificate has expired (put a new certificate in the place of that file" in err
    assert OTHER_NODE not in err
