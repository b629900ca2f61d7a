"""TLS as all doors of a node speak it: contexts from files, names in certificates, and plain words for what goes wrong.

Version 1.2 or later, no renegotiation, no session tickets: every connection shows its certificate. A node's certificate
names it by the URI isthmus://CLUSTER/NODE among its subject's alternative names; its addresses are of use to programs
that know no such names. Who accepts connections is `tls_server`, who dials are `dialer` and `client`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus.repl.model.errors import BadConfig
from isthmus.repl.security.watched_files import ReloadingFile, check_private

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""How long a handshake may take, first byte included: two round trips and some milliseconds of arithmetic."""

SHUTDOWN_TIMEOUT_S: Final = 2.0
"""How long a closed connection waits for the other end's farewell; then it is cut."""

FIRST_BYTE: Final = 0x16
"""What every TLS connection begins with (a handshake record); no HTTP request and no frame of ours does."""

SCHEME: Final = "isthmus://"

PEM_BYTES_MAX: Final = 1_000_000
"""Largest file of certificates or a key; what is larger was named by mistake."""


class NodeName(NamedTuple):
    """Whom a certificate names."""

    cluster: str
    node: str

    def uri(self) -> str:
        """As it stands in the certificate."""
        return f"{SCHEME}{self.cluster}/{self.node}"


def names_of(certificate: Mapping[str, Any] | None) -> frozenset[NodeName]:
    """The nodes that a verified certificate (as `ssl` shows it) names; none when there is none."""
    found = set()
    for kind, value in (certificate or {}).get("subjectAltName", ()):
        if kind == "URI" and value.startswith(SCHEME):
            cluster, slash, node = value.removeprefix(SCHEME).partition("/")
            if cluster and slash and node and "/" not in node:
                found.add(NodeName(cluster, node))
    return frozenset(found)


def shown_names(certificate: Mapping[str, Any] | None) -> str:
    """What a certificate names, for a sentence."""
    names = sorted(name.uri() for name in names_of(certificate))
    if names:
        return ", ".join(names[:4])
    others = [f"{kind} {value}" for kind, value in (certificate or {}).get("subjectAltName", ())]
    return (", ".join(others[:4]) or "nobody").replace("IP Address", "IP")


def shown_address(name: object) -> str:
    """HOST:PORT of what a socket calls its other end (a pair for IPv4, more for IPv6); "" when it does not say."""
    if not isinstance(name, tuple | list) or len(name) < 2:
        return str(name or "")
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def shown_certificate(transport: asyncio.BaseTransport | None) -> dict[str, Any] | None:
    """What the other end of a connection showed, verified, as `ssl` shows it; None without TLS or without any."""
    return None if transport is None else transport.get_extra_info("peercert") or None


def wrong_certificate(transport: asyncio.BaseTransport | None, cluster: str, node: str) -> str:
    """Why the other end is not `node`, by its certificate; "" when it is, or speaks no TLS."""
    if transport is None or transport.get_extra_info("sslcontext") is None:
        return ""
    wanted = NodeName(cluster, node)
    shown = shown_certificate(transport)
    if wanted in names_of(shown):
        return ""
    return f"the certificate of node {node} must name {wanted.uri()}; it names {shown_names(shown)}"


def expires_s(certificate: Mapping[str, Any] | None) -> float | None:
    """When a certificate that the other end showed expires, in seconds since 1970; None when there is none."""
    text = (certificate or {}).get("notAfter")
    return None if text is None else float(ssl.cert_time_to_seconds(text))


class TlsFiles(NamedTuple):
    """Who we are (certificate and key, both or none) and whom we believe (none: the system's authorities)."""

    certificate: Path | None
    key: Path | None
    authorities: tuple[Path, ...]

    def all(self) -> tuple[Path, ...]:
        """Every file."""
        own = (self.certificate, self.key)
        return (*(path for path in own if path is not None), *self.authorities)


def server_contexts(files: TlsFiles, verify: ssl.VerifyMode) -> ReloadingFile[ssl.SSLContext]:
    """For those who accept; `verify` says whether a certificate is asked of who comes. Raises BadConfig."""

    def make() -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_SERVER, files)
        context.num_tickets = 0
        context.verify_mode = verify
        return context

    return ReloadingFile(files.all(), make)


def client_contexts(files: TlsFiles, *, check_host: bool) -> ReloadingFile[ssl.SSLContext]:
    """For those who dial; with `check_host` the other end's certificate must name the host that was dialled. Raises
    BadConfig."""

    def make() -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_CLIENT, files)
        context.check_hostname = check_host
        context.verify_mode = ssl.CERT_REQUIRED
        if not files.authorities:
            context.load_default_certs()
        return context

    return ReloadingFile(files.all(), make)


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    if files.certificate is not None and files.key is not None:
        check_private(files.key)
        _readable(files.certificate)
        _readable(files.key)
        try:
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
        except ssl.SSLError as error:
            reason = "the key is not that of the certificate" if "MISMATCH" in (error.reason or "") else "not PEM files"
            raise BadConfig(f"{files.certificate} and {files.key}: {reason}") from error
        except (OSError, ValueError) as error:
            raise BadConfig(f"{files.key}: {_system(error)}") from error
    for path in files.authorities:
        _readable(path)
        try:
            context.load_verify_locations(path)
        except (OSError, ValueError) as error:
            raise BadConfig(f"{path}: holds no certificates in PEM form") from error
    return context


def _no_password() -> str:
    """OpenSSL's call for a key that wants one; without this it would ask the terminal."""
    raise ValueError("is protected by a password, which a service cannot type; keep the file private instead")


def _readable(path: Path) -> None:
    try:
        with path.open("rb") as file:
            if len(file.read(PEM_BYTES_MAX + 1)) > PEM_BYTES_MAX:
                raise BadConfig(f"{path} is larger than {PEM_BYTES_MAX} bytes: no file of certificates or a key")
    except OSError as error:
        raise BadConfig(f"{path}: {_system(error)}") from error


def _system(error: Exception) -> str:
    strerror = error.strerror if isinstance(error, OSError) else None
    return (strerror or str(error)).lower()


class LinkTls(NamedTuple):
    """How the nodes of a cluster speak: `take_plain` and `dial_plain` are for turning TLS on node by node."""

    server: ReloadingFile[ssl.SSLContext]
    client: ReloadingFile[ssl.SSLContext]
    take_plain: bool
    dial_plain: bool


class TlsFailure(NamedTuple):
    """What went wrong in a handshake: a stable code and words."""

    code: str
    words: str


_TROUBLES: Final[Mapping[str, TlsFailure]] = {
    "WRONG_VERSION_NUMBER": TlsFailure("plaintext", "the other end does not speak TLS"),
    "HTTP_REQUEST": TlsFailure("plaintext", "the other end does not speak TLS"),
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": TlsFailure("no-certificate", "the other end shows no certificate"),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": TlsFailure("no-certificate", "the other end wants a certificate of this one"),
    "TLSV1_ALERT_UNKNOWN_CA": TlsFailure(
        "unknown-authority", "the other end does not know the authority of what we show"
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": TlsFailure("expired", "the other end says that our certificate has expired"),
    "SSLV3_ALERT_BAD_CERTIFICATE": TlsFailure("refused", "the other end does not take our certificate"),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": TlsFailure("refused", "the other end does not take our certificate"),
    "SSLV3_ALERT_HANDSHAKE_FAILURE": TlsFailure("refused", "the other end agrees to no version or cipher"),
    "UNSUPPORTED_PROTOCOL": TlsFailure("old-version", "the other end speaks no TLS of version 1.2 or later"),
    "TLSV1_ALERT_PROTOCOL_VERSION": TlsFailure("old-version", "the other end speaks no TLS of version 1.2 or later"),
    "NO_SHARED_CIPHER": TlsFailure("no-cipher", "the two ends share no cipher"),
}
"""By OpenSSL's name of the error."""


def trouble_of(error: BaseException) -> TlsFailure:
    """What an error of a handshake, or of a connection that was cut behind it, means."""
    if isinstance(error, ssl.SSLCertVerificationError):
        words = error.verify_message.rstrip(".")
        if "expired" in words:
            return TlsFailure("expired", "the other end's certificate has expired")
        if "not yet valid" in words:
            return TlsFailure("not-yet-valid", "the other end's certificate is not valid yet; are the clocks right?")
        if "ismatch" in words:
            return TlsFailure("wrong-name", f"the other end's certificate is another's: {words}")
        return TlsFailure("unknown-authority", f"the other end's certificate is of no authority that we know ({words})")
    if isinstance(error, TimeoutError):
        return TlsFailure("timeout", f"the handshake was not over within {HANDSHAKE_TIMEOUT_S:g} s")
    if isinstance(error, ssl.SSLEOFError | ConnectionError):
        return TlsFailure("closed", "the other end closed the connection during the handshake; does it speak TLS?")
    if isinstance(error, ssl.SSLError):
        known = _TROUBLES.get(error.reason or "")
        if known is not None:
            return known
        return TlsFailure(
            "malformed", f"no TLS as we know it: {(error.reason or str(error)).lower().replace('_', ' ')}"
        )
    return TlsFailure("broken", " ".join(str(error).split()) or type(error).__name__)
