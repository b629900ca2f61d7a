"""Tokens and certificates of a world, set up as docs/security.md says: nodes, clients, operators and sinks have files.

All of it is the product's own: files, guards, contexts and handshakes, over the virtual network. OpenSSL asks the real
clock whether a certificate is valid, so certificates of this module are valid for a century, or have expired for years;
the product's own check of a file asks the machine's. Keys and signatures are Ed25519, whose sizes never differ, so that
the same bytes travel in every run.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import os
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from isthmus.node.http.authorization import TokenRole
from isthmus.repl.security.tls import NodeName

ROLES: Final = tuple(role.value for role in TokenRole)

SECRETS: Final = "secrets"
"""The folder of a node's files, beside its config file."""

SERIALS: Final = 1_000
"""Serial numbers of certificates begin here, so that all have as many bytes."""

FIRST: Final = datetime(2020, 1, 1, tzinfo=UTC)
EXPIRED: Final = datetime(2021, 1, 1, tzinfo=UTC)
LAST: Final = datetime(2120, 1, 1, tzinfo=UTC)


class Pair(NamedTuple):
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs certificates; made once in a process."""

    def __init__(self, name: str) -> None:
        self._key = Ed25519PrivateKey.generate()
        self._name = _named(name)
        public = self._key.public_key()
        made = (
            _builder(self._name, self._name, self._key, 1, LAST)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(_usage(signs=True), critical=True)
            .sign(self._key, None)
        )
        self.certificate = made.public_bytes(serialization.Encoding.PEM)

    @functools.cache  # noqa: B019 -- as long as the process
    def issue(self, number: int, cluster: str, node: str, address: str, last: datetime = LAST) -> Pair:
        """The certificate `number` of a node; without a cluster: of a client. The same at each call."""
        key = Ed25519PrivateKey.generate()
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            _builder(_named(node), self._name, key, SERIALS + number, last)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if cluster:
            uri = x509.UniformResourceIdentifier(NodeName(cluster, node).uri())
            alternatives = x509.SubjectAlternativeName([uri, x509.IPAddress(ipaddress.ip_address(address))])
            builder = builder.add_extension(alternatives, critical=False)
        encoding, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        secret = key.private_bytes(encoding, private, serialization.NoEncryption())
        return Pair(builder.sign(self._key, None).public_bytes(encoding), secret)


@functools.cache
def authority(name: str) -> Authority:
    """An authority by its name."""
    return Authority(name)


class Trust:
    """The authorities that all clusters and people of a world believe."""

    def __init__(self) -> None:
        self._count = 0
        self.believed: list[Authority] = []
        self.current = self.next()
        """Signs what is made next."""

    def next(self) -> Authority:
        """One that nobody knew before; it is believed beside the others."""
        self._count += 1
        made = authority(f"authority {self._count}")
        self.believed.append(made)
        return made

    def bundle(self) -> bytes:
        """The file of all that are believed."""
        return b"".join(each.certificate for each in self.believed)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Ed25519PrivateKey, serial: int, last: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(FIRST)
        .not_valid_after(last)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def replace(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file in one step, as `mv` does."""
    made = path.with_name(f".{path.name}.new")
    made.write_bytes(content)
    made.chmod(mode)
    made.replace(path)


class Credentials:
    """What the people and the nodes of one cluster show, and what its nodes take.

    The people's files are in a folder that every machine has: `ROLE.token`, `ca.crt`, `client.crt`, `client.key`."""

    def __init__(self, cluster: str, place: Path, trust: Trust, *, tls: bool) -> None:
        self.cluster = cluster
        self.trust = trust
        self.place = place
        self.tls = tls
        self.accepted = {role: [self._made(role, 0)] for role in ROLES}
        """Role -> the tokens of its file at every node, the newest last."""
        self.shown = {role: tokens[-1] for role, tokens in self.accepted.items()}
        """Role -> the token that people, and the sinks of other clusters, show."""
        self.removed_ns = 0
        """When a token was last taken out of the nodes' files."""
        self.lock = asyncio.Lock()
        """Operators change one file of a cluster at a time."""
        self._numbers = dict.fromkeys(ROLES, 0)
        self._issued: dict[str, int] = {}
        place.mkdir(parents=True)
        for role in ROLES:
            self.distribute(role)
        if tls:
            self.distribute_certificates()

    def _made(self, role: str, number: int) -> str:
        return f"{self.cluster}.{role}.{number:016}"

    # People

    def file(self, role: str) -> Path:
        """The people's file of a role's token."""
        return self.place / f"{role}.token"

    def next_token(self, role: str) -> str:
        """A token that nobody had before."""
        self._numbers[role] += 1
        return self._made(role, self._numbers[role])

    def distribute(self, role: str) -> None:
        """Let people and other clusters show the newest token of a role."""
        self.shown[role] = self.accepted[role][-1]
        replace(self.file(role), f"{self.shown[role]}\n".encode())

    def distribute_certificates(self) -> None:
        """Let people believe whom nodes believe, and show a certificate of the current authority."""
        client = self.trust.current.issue(0, "", "client", "")
        replace(self.place / "ca.crt", self.trust.bundle(), 0o644)
        replace(self.place / "client.crt", client.certificate, 0o644)
        replace(self.place / "client.key", client.key)
        if "client" in self.__dict__ and self.client is not None:  # programs go on with the context that they have
            self._load(self.client)

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_verify_locations(self.place / "ca.crt")
        context.load_cert_chain(self.place / "client.crt", self.place / "client.key")

    @functools.cached_property
    def client(self) -> ssl.SSLContext | None:
        """What people dial with; None without TLS."""
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=os.fspath(self.place / "ca.crt"))
        self._load(context)
        return context

    def options(self, role: str = "admin") -> list[str]:
        """Of a command."""
        found = ["--token-file", str(self.file(role))]
        return [*found, "--ca", str(self.place / "ca.crt")] if self.tls else found

    # Nodes

    def node_file(self, directory: Path, role: str) -> Path:
        """A node's file of the tokens of a role."""
        return directory / SECRETS / f"{role}.token"

    def write_tokens(self, directory: Path, role: str) -> None:
        """Write a node's file of the tokens of a role."""
        replace(self.node_file(directory, role), "".join(f"{one}\n" for one in self.accepted[role]).encode())

    def next_pair(self, node: str, address: str) -> tuple[Pair, int]:
        """A node's next certificate and key, and the serial number."""
        self._issued[node] = self._issued.get(node, 0) + 1
        return self.pair_of(node, address), SERIALS + self._issued[node]

    def pair_of(self, node: str, address: str) -> Pair:
        """A node's last certificate and key."""
        return self.trust.current.issue(self._issued[node], self.cluster, node, address)

    def put_pair(self, directory: Path, pair: Pair) -> None:
        """Write these, the key first."""
        replace(directory / SECRETS / "node.key", pair.key)
        replace(directory / SECRETS / "node.crt", pair.certificate, 0o644)

    def put_authorities(self, directory: Path) -> None:
        """Write the authorities that a node believes."""
        replace(directory / SECRETS / "ca.crt", self.trust.bundle(), 0o644)

    def furnish(self, directory: Path, node: str, address: str) -> None:
        """Write all files of a new node."""
        (directory / SECRETS).mkdir(exist_ok=True)
        for role in ROLES:
            self.write_tokens(directory, role)
        if self.tls:
            self.put_authorities(directory)
            self.put_pair(directory, self.next_pair(node, address)[0])

    def settings(self) -> str:
        """The tables of a node's file."""
        text = "[tokens]\n" + "".join(f'{role} = "{SECRETS}/{role}.token"\n' for role in ROLES)
        if self.tls:
            files = {"certificate": "node.crt", "key": "node.key", "authority": "ca.crt"}
            text += "[tls]\n" + "".join(f'{key} = "{SECRETS}/{name}"\n' for key, name in files.items())
        return text


def headers_of(credentials: Credentials | None, role: str) -> Iterable[str]:
    """The lines of a request's head by which it is authorized."""
    return () if credentials is None else (f"Authorization: Bearer {credentials.shown[role]}",)
