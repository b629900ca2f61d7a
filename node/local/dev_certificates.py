"""A folder of test certificates and tokens: an authority, a pair for each node, a token for each role.

    ca.crt ca.key   NODE.crt NODE.key   client.crt client.key   read.token write.token operate.token ...

Existing authority and tokens stay, so that nodes can be added; certificates are replaced. For trials and tests:
docs/security.md says what to do in production.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from isthmus.node.http.authorization import TokenRole
from isthmus.node.local.topology_model import AUTHORITY, CLIENT
from isthmus.node.security import certificates
from isthmus.node.security.certificates import Pair
from isthmus.repl.http.client import OPEN, PeerCredentials
from isthmus.repl.model.errors import BadConfig, BadInput, LocalFault
from isthmus.repl.security.tls import NodeName, TlsFiles, client_contexts
from isthmus.repl.security.tokens import watched_token

TOKEN_BYTES: Final = 32
"""Random bytes of a token: as many as the hash has that nodes keep of it."""

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
"""Hosts in certificates for this machine."""

DAY_S: Final = 86_400
"""A certificate that expires sooner is replaced before clusters start with it."""


def ensure_authority(directory: Path, days: float = certificates.DAYS) -> Pair:
    """The folder's authority, created if missing. Raises LocalFault, BadConfig."""
    certificate, key = directory / f"{AUTHORITY}.crt", directory / f"{AUTHORITY}.key"
    if certificate.exists() or key.exists():
        found = certificates.read_pair(certificate, key)
        if certificates.expires_ms(certificate) <= time.time() * 1000:
            raise BadConfig(
                f"{certificate} has expired, so no node would trust what it signs: remove it and {key.name}"
            )
        return found
    made = certificates.make_authority(days=days)
    _write_pair(made, certificate, key)
    return made


def make_certificates(
    directory: Path, nodes: Iterable[NodeName], hosts: Sequence[str] = LOCAL_HOSTS, days: float = certificates.DAYS
) -> list[Path]:
    """Make a certificate for each node and one for clients, and the authority if missing; the certificates' paths.

    Raises LocalFault when the folder cannot be written, BadConfig when its authority cannot be used, BadInput for a
    wrong host, and for a node whose files would replace those of the authority or of clients.
    """
    nodes = list(nodes)
    for name in nodes:
        if name.node in (AUTHORITY, CLIENT):
            raise BadInput(f"{name.node}.crt and {name.node}.key are other files of such a folder: rename the node")
    authority = ensure_authority(directory, days)
    days = min(days, (authority.certificate.not_valid_after_utc.timestamp() - time.time()) / DAY_S)  # it ends with it
    made = []
    for name in nodes:
        path = directory / f"{name.node}.crt"
        pair = certificates.issue(authority, f"{name.cluster} {name.node}", [name], hosts, days)
        _write_pair(pair, path, directory / f"{name.node}.key")
        made.append(path)
    _write_pair(
        certificates.issue(authority, CLIENT, days=days), directory / f"{CLIENT}.crt", directory / f"{CLIENT}.key"
    )
    return made


def ensure(directory: Path, nodes: Sequence[NodeName]) -> None:
    """Make missing tokens, and certificates unless these nodes' are valid for another day. Raises LocalFault,
    BadConfig."""
    make_tokens(directory)
    enough_ms = (time.time() + DAY_S) * 1000
    paths = [directory / f"{name.node}.crt" for name in nodes]
    if not all(path.exists() and certificates.expires_ms(path) > enough_ms for path in paths):
        make_certificates(directory, nodes)


def credentials_of(directory: Path, role: TokenRole = TokenRole.READ) -> PeerCredentials:
    """Credentials for nodes that use the folder; OPEN where it has no authority."""
    authority = directory / f"{AUTHORITY}.crt"
    if not authority.exists():
        return OPEN
    contexts = client_contexts(TlsFiles(None, None, (authority,)), check_host=True)
    return PeerCredentials(contexts.current, "", watched_token(directory / f"{role.value}.token").current)


def make_tokens(directory: Path) -> list[Path]:
    """Make a token for each role that has none; the paths of all. Raises LocalFault."""
    paths = [directory / f"{role.value}.token" for role in TokenRole]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in paths:
            if not path.exists():
                certificates.write_file(path, f"{secrets.token_urlsafe(TOKEN_BYTES)}\n".encode(), certificates.PRIVATE)
    except OSError as error:
        raise LocalFault(f"cannot write tokens to {directory}: {error}") from error
    return paths


def _write_pair(pair: Pair, certificate: Path, key: Path) -> None:
    try:
        certificate.parent.mkdir(parents=True, exist_ok=True)
        certificates.write_pair(pair, certificate, key)
    except OSError as error:
        raise LocalFault(f"cannot write certificates to {certificate.parent}: {error}") from error
