"""The adapter for cryptography: the contents of certificate files, and certificates of a test authority.

The key of a test authority lies beside the certificates that it signs: it is for trying things out. `repl.security.tls`
uses certificates; `node.security.credentials` loads a node's own.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from isthmus.config.validation import check_host
from isthmus.repl.machine import machine, utc_now
from isthmus.repl.model.errors import BadConfig, BadInput
from isthmus.repl.security.tls import SCHEME, NodeName

BACKDATED: Final = timedelta(minutes=5)
"""How long before its creation a certificate is valid: clocks differ."""

DAYS: Final = 365
"""How long a test certificate is valid by default."""

PRIVATE: Final = 0o600
PUBLIC: Final = 0o644


class Pair(NamedTuple):
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


# -- reading --------------------------------------------------------------------------------------------


def certificates_in(path: Path) -> list[x509.Certificate]:
    """All certificates of a PEM file, in its order. Raises BadConfig."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise BadConfig(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:
        raise BadConfig(f"{path}: holds no certificates in PEM form") from error


def expires_ms(path: Path) -> int:
    """The earliest expiry of a file's certificates, in ms since 1970. Raises BadConfig."""
    return min(int(found.not_valid_after_utc.timestamp() * 1000) for found in certificates_in(path))


def check_own(path: Path, authorities: Sequence[Path], name: NodeName) -> None:
    """Raise BadConfig unless the file's first certificate names this node, is valid now, and is signed by one of the
    authorities or by one that follows it in the file."""
    own, *between = certificates_in(path)
    names = _uris(own)
    if name.uri() not in names:
        shown = ", ".join(names[:4]) or "no node"
        raise BadConfig(f"{path}: must name this node, {name.uri()}, among its alternative names; it names {shown}")
    now = utc_now()
    if now > own.not_valid_after_utc:
        raise BadConfig(f"{path}: has expired on {own.not_valid_after_utc:%Y-%m-%d %H:%M}Z")
    if now < own.not_valid_before_utc:
        raise BadConfig(f"{path}: is valid from {own.not_valid_before_utc:%Y-%m-%d %H:%M}Z on; is the clock right?")
    believed = [each for authority in authorities for each in certificates_in(authority)]
    if not any(_signed(own, by) for by in (*between, *believed)):
        listed = ", ".join(map(str, authorities))
        raise BadConfig(f"{path}: is signed by none of the authorities in {listed}, nor by one that follows it")


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [uri for uri in names.get_values_for_type(x509.UniformResourceIdentifier) if uri.startswith(SCHEME)]


def _signed(certificate: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(by)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


# -- making ---------------------------------------------------------------------------------------------


def make_authority(common_name: str = "isthmus test authority", days: float = DAYS) -> Pair:
    """A new authority, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name)
    usage = _usage(key_cert_sign=True, crl_sign=True)
    builder = (
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return Pair(builder.sign(key, hashes.SHA256()), key)


def issue(
    authority: Pair, common_name: str, names: Sequence[NodeName] = (), hosts: Sequence[str] = (), days: float = DAYS
) -> Pair:
    """A new certificate for `names` at `hosts` (names or addresses), for both ends of a connection. With negative
    `days` it has expired already. Raises BadInput for an invalid host."""
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = [x509.UniformResourceIdentifier(name.uri()) for name in names] + [_host(host) for host in hosts]
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        _builder(_name(common_name), authority.certificate.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return Pair(builder.sign(authority.key, hashes.SHA256()), key)


def write_pair(pair: Pair, certificate: Path, key: Path) -> None:
    """Write both files, each replaced in one step; the key first, readable only by its owner."""
    form = serialization.PrivateFormat.PKCS8
    secret = pair.key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    write_file(key, secret, PRIVATE)
    write_file(certificate, pair.certificate.public_bytes(serialization.Encoding.PEM), PUBLIC)


def read_pair(certificate: Path, key: Path) -> Pair:
    """An authority that `write_pair` wrote. Raises BadConfig."""
    try:
        secret = serialization.load_pem_private_key(key.read_bytes(), None)
    except OSError as error:
        raise BadConfig(f"{key}: {(error.strerror or str(error)).lower()}") from error
    except (ValueError, TypeError) as error:
        raise BadConfig(f"{key}: holds no private key in PEM form, without a password") from error
    if not isinstance(secret, ec.EllipticCurvePrivateKey):
        raise BadConfig(f"{key}: is not a key of an elliptic curve, as a test authority of this program has")
    return Pair(certificates_in(certificate)[0], secret)


def write_file(path: Path, content: bytes, mode: int) -> None:
    """Replace a file in one step, with its content synced. It never has other permissions than `mode`, and a failure
    leaves no part of it."""
    temporary = path.with_name(f"{path.name}.{machine().pid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now = utc_now()
    end = now + timedelta(days=days)
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - BACKDATED)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        check_host(host.removeprefix("*.") or "*")
        return x509.DNSName(host)
    except ValueError as error:
        raise BadInput(f"{error}, or *.NAME") from None


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )
