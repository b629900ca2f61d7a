"""A folder of keys and tokens for the tests of the locks: right ones, and every kind of wrong one."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import pytest

from isthmus.node.http.authorization import TokenRole
from isthmus.node.local import dev_certificates
from isthmus.node.security import certificates
from isthmus.repl.security.tls import LinkTls, NodeName, TlsFiles, client_contexts, server_contexts

NODES = (NodeName("c", "a"), NodeName("c", "b"), NodeName("west", "west-1"))


@dataclass(frozen=True)
class CertificateFolder:
    """`path` holds ca.crt, pairs of NODES, `client`, `expired` (of c/b) and `stranger` (c/b of another authority)."""

    path: Path

    @property
    def authority(self) -> Path:
        return self.path / "ca.crt"

    def files(self, pair: str | None) -> TlsFiles:
        """A pair, and the right authority."""
        if pair is None:
            return TlsFiles(None, None, (self.authority,))
        return TlsFiles(self.path / f"{pair}.crt", self.path / f"{pair}.key", (self.authority,))

    def link(self, pair: str, *, take_plain: bool = False, dial_plain: bool = False) -> LinkTls:
        """The TLS settings of a node's links that shows `pair`."""
        files = self.files(pair)
        server = server_contexts(files, ssl.CERT_REQUIRED)
        return LinkTls(server, client_contexts(files, check_host=False), take_plain, dial_plain)

    def client(self, pair: str | None = None, *, check_host: bool = False) -> ssl.SSLContext:
        """The context of a client that shows `pair`."""
        return client_contexts(self.files(pair), check_host=check_host).current()

    def token(self, role: TokenRole) -> str:
        """The token of a role."""
        return (self.path / f"{role.value}.token").read_text().strip()


def filled(path: Path) -> CertificateFolder:
    """Make all of it; some 20 ms."""
    dev_certificates.make_certificates(path, NODES)
    dev_certificates.make_tokens(path)
    authority = certificates.read_pair(path / "ca.crt", path / "ca.key")
    b = NodeName("c", "b")
    expired = certificates.issue(authority, "expired", [b], dev_certificates.LOCAL_HOSTS, days=-1)
    other = certificates.make_authority("another authority")
    stranger = certificates.issue(other, "stranger", [b], dev_certificates.LOCAL_HOSTS)
    for name, pair in (("expired", expired), ("stranger", stranger), ("other", other)):
        certificates.write_pair(pair, path / f"{name}.crt", path / f"{name}.key")
    return CertificateFolder(path)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> CertificateFolder:
    """Keys and tokens, made once; tests that change them make their own."""
    return filled(tmp_path_factory.mktemp("security"))
