"""A folder of test certificates and tokens: the authority, a pair a node, a token a role. For trials and tests.

    ca.crt ca.key   NODE.crt NODE.key   client.crt client.key   read.token write.token operate.token ...

What is there stays where it is of use (authority and tokens), so that nodes can be added; certificates are made anew.
`isthmus dev` and `isthmus local` fill such folders; docs/security.md says what to do for production.
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
"""Chance in a token: as much as in the hash that is kept of it."""

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
"""What certificates for this machine name beside the node."""

DAY_S: Final = 86_400
"""A certificate that expires sooner is made anew before clusters are started with it."""


def authority_of(directory: Path, days: float = certificates.DAYS) -> Pair:
    """The folder's authority, made when there is none. Raises LocalFault, BadConfig."""
    certificate, key = directory / f"{AUTHORITY}.crt", directory / f"{AUTHORITY}.key"
    if certificate.exists() or key.exists():
        found = certificates.read_pair(certificate, key)
        if certificates.expires_ms(certificate) <= time.time() * 1000:
            raise BadConfig(
                f"{certificate} has expired, so nobody would believe what it signs: remove it and {key.name}"
            )
        return found
    made = certificates.make_authority(days=days)
    _written(made, certificate, key)
    return made


def make_certificates(
    directory: Path, nodes: Iterable[NodeName], hosts: Sequence[str] = LOCAL_HOSTS, days: float = certificates.DAYS
) -> list[Path]:
    """A certificate for each node and one for clients, and the authority unless it is there; the certificates' paths.
    Raises LocalFault when the folder cannot be written, BadConfig when what lies in it is not an authority, BadInput
    for what is no host, and for a node whose files would take the place of others."""
    nodes = list(nodes)
    for name in nodes:
        if name.node in (AUTHORITY, CLIENT):
            raise BadInput(f"{name.node}.crt and {name.node}.key are other files of such a folder: rename the node")
    authority = authority_of(directory, days)
    days = min(days, (authority.certificate.not_valid_after_utc.timestamp() - time.time()) / DAY_S)  # it ends with it
    made = []
    for name in nodes:
        path = directory / f"{name.node}.crt"
        pair = certificates.issue(authority, f"{name.cluster} {name.node}", [name], hosts, days)
        _written(pair, path, directory / f"{name.node}.key")
        made.append(path)
    _written(certificates.issue(authority, CLIENT, days=days), directory / f"{CLIENT}.crt", directory / f"{CLIENT}.key")
    return made


def ensure(directory: Path, nodes: Sequence[NodeName]) -> None:
    """Tokens, and certificates for these nodes that hold for a day yet. Raises LocalFault, BadConfig."""
    make_tokens(directory)
    enough_ms = (time.time() + DAY_S) * 1000
    paths = [directory / f"{name.node}.crt" for name in nodes]
    if not all(path.exists() and certificates.expires_ms(path) > enough_ms for path in paths):
        make_certificates(directory, nodes)


def access_of(directory: Path, role: TokenRole = TokenRole.READ) -> PeerCredentials:
    """How programs of this machine come in at nodes that use the folder; without it, as where nothing is locked."""
    authority = directory / f"{AUTHORITY}.crt"
    if not authority.exists():
        return OPEN
    contexts = client_contexts(TlsFiles(None, None, (authority,)), check_host=True)
    return PeerCredentials(contexts.current, "", watched_token(directory / f"{role.value}.token").current)


def make_tokens(directory: Path) -> list[Path]:
    """A token for each role that has none yet; the paths of all. Raises LocalFault."""
    paths = [directory / f"{role.value}.token" for role in TokenRole]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in paths:
            if not path.exists():
                certificates.write_file(path, f"{secrets.token_urlsafe(TOKEN_BYTES)}\n".encode(), certificates.PRIVATE)
    except OSError as error:
        raise LocalFault(f"cannot write tokens to {directory}: {error}") from error
    return paths


def _written(pair: Pair, certificate: Path, key: Path) -> None:
    try:
        certificate.parent.mkdir(parents=True, exist_ok=True)
        certificates.write_pair(pair, certificate, key)
    except OSError as error:
        raise LocalFault(f"cannot write certificates to {certificate.parent}: {error}") from error
