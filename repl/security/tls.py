"""TLS of all listeners and clients of a node: contexts from files, names in certificates, texts for failures.

Version 1.2 or later, no renegotiation, no session tickets: every connection presents its certificate. A node's
certificate names it by the URI isthmus://CLUSTER/NODE among its subject alternative names; addresses in it serve
programs that do not know such names. `tls_server` accepts connections; `repl.transport.dialer` and `repl.http` dial.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus.repl.model.errors import BadConfig
from isthmus.repl.security.watched_files import ReloadingFile, check_private

HANDSHAKE_TIMEOUT_S: Final = 10.0
"""Longest handshake, from the connection on: two round trips and some milliseconds of arithmetic."""

SHUTDOWN_TIMEOUT_S: Final = 2.0
"""How long a closed connection waits for the peer's close_notify before it is aborted."""

FIRST_BYTE: Final = 0x16
"""First byte of every TLS connection (a handshake record), and of no HTTP request or frame."""

SCHEME: Final = "isthmus://"

PEM_BYTES_MAX: Final = 1_000_000
"""Largest file of certificates or a key; a larger file was configured by mistake."""


class NodeName(NamedTuple):
    """A node as named by a certificate."""

    cluster: str
    node: str

    def uri(self) -> str:
        """The URI in the certificate."""
        return f"{SCHEME}{self.cluster}/{self.node}"


def names_of(certificate: Mapping[str, Any] | None) -> frozenset[NodeName]:
    """The nodes that a verified certificate (in the form of `ssl`) names; empty without a certificate."""
    found = set()
    for kind, value in (certificate or {}).get("subjectAltName", ()):
        if kind == "URI" and value.startswith(SCHEME):
            cluster, slash, node = value.removeprefix(SCHEME).partition("/")
            if cluster and slash and node and "/" not in node:
                found.add(NodeName(cluster, node))
    return frozenset(found)


def shown_names(certificate: Mapping[str, Any] | None) -> str:
    """The names in a certificate, for a message."""
    names = sorted(name.uri() for name in names_of(certificate))
    if names:
        return ", ".join(names[:4])
    others = [f"{kind} {value}" for kind, value in (certificate or {}).get("subjectAltName", ())]
    return (", ".join(others[:4]) or "nothing").replace("IP Address", "IP")


def shown_address(name: object) -> str:
    """HOST:PORT of a socket's peer name (a pair for IPv4, more for IPv6); "" where it has none."""
    if not isinstance(name, tuple | list) or len(name) < 2:
        return str(name or "")
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def shown_certificate(transport: asyncio.BaseTransport | None) -> dict[str, Any] | None:
    """The peer's verified certificate, in the form of `ssl`; None without TLS or without a certificate."""
    return None if transport is None else transport.get_extra_info("peercert") or None


def wrong_certificate(transport: asyncio.BaseTransport | None, cluster: str, node: str) -> str:
    """Why the peer is not `node` by its certificate; "" when it is, or without TLS."""
    if transport is None or transport.get_extra_info("sslcontext") is None:
        return ""
    wanted = NodeName(cluster, node)
    shown = shown_certificate(transport)
    if wanted in names_of(shown):
        return ""
    return f"the certificate of node {node} must name {wanted.uri()}; it names {shown_names(shown)}"


def expires_s(certificate: Mapping[str, Any] | None) -> float | None:
    """When the peer's certificate expires, in seconds since 1970; None without a certificate."""
    text = (certificate or {}).get("notAfter")
    return None if text is None else float(ssl.cert_time_to_seconds(text))


class TlsFiles(NamedTuple):
    """Own certificate and key (both or none), and trusted authorities (none: the system's)."""

    certificate: Path | None
    key: Path | None
    authorities: tuple[Path, ...]

    def all(self) -> tuple[Path, ...]:
        """All files."""
        own = (self.certificate, self.key)
        return (*(path for path in own if path is not None), *self.authorities)


def _accept_any() -> None:
    """Check nothing beyond what OpenSSL does."""


def server_contexts(
    files: TlsFiles, verify: ssl.VerifyMode, check: Callable[[], object] = _accept_any
) -> ReloadingFile[ssl.SSLContext]:
    """Contexts of a listener; `verify`: whether clients must present a certificate. `check` raises BadConfig for files
    that must not come into force, though OpenSSL can read them. Raises BadConfig."""

    def make() -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_SERVER, files, check)
        context.num_tickets = 0
        context.verify_mode = verify
        return context

    return ReloadingFile(files.all(), make)


def client_contexts(
    files: TlsFiles, *, check_host: bool, check: Callable[[], object] = _accept_any
) -> ReloadingFile[ssl.SSLContext]:
    """Contexts of a client; with `check_host` the server's certificate must name the dialled host. `check` as for
    `server_contexts`. Raises BadConfig."""

    def make() -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_CLIENT, files, check)
        context.check_hostname = check_host
        context.verify_mode = ssl.CERT_REQUIRED
        if not files.authorities:
            context.load_default_certs()
        return context

    return ReloadingFile(files.all(), make)


def _context(protocol: int, files: TlsFiles, check: Callable[[], object]) -> ssl.SSLContext:
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
    # Last: a file that is replaced after OpenSSL has read it is read again at the next check of its stamp. One replaced
    # between an earlier check and OpenSSL would be in force unchecked.
    check()
    return context


def _no_password() -> str:
    """Called by OpenSSL for an encrypted key; without it OpenSSL would ask the terminal."""
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
    """TLS between the nodes of a cluster; `take_plain` and `dial_plain` allow TLS to be enabled node by node."""

    server: ReloadingFile[ssl.SSLContext]
    client: ReloadingFile[ssl.SSLContext]
    take_plain: bool
    dial_plain: bool


class TlsFailure(NamedTuple):
    """Why a handshake failed: a stable code and a text."""

    code: str
    words: str


_FAILURES: Final[Mapping[str, TlsFailure]] = {
    "WRONG_VERSION_NUMBER": TlsFailure("plaintext", "the other end does not speak TLS"),
    "HTTP_REQUEST": TlsFailure("plaintext", "the other end does not speak TLS"),
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": TlsFailure("no-certificate", "the other end shows no certificate"),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": TlsFailure(
        "no-certificate", "the other end requires a certificate of this one"
    ),
    "TLSV1_ALERT_UNKNOWN_CA": TlsFailure(
        "unknown-authority", "the other end does not know the authority of what we show"
    ),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": TlsFailure("expired", "the other end reports that our certificate has expired"),
    "SSLV3_ALERT_BAD_CERTIFICATE": TlsFailure("refused", "the other end does not take our certificate"),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": TlsFailure("refused", "the other end does not take our certificate"),
    "SSLV3_ALERT_HANDSHAKE_FAILURE": TlsFailure("refused", "the other end agrees to no version or cipher"),
    "UNSUPPORTED_PROTOCOL": TlsFailure("old-version", "the other end speaks no TLS of version 1.2 or later"),
    "TLSV1_ALERT_PROTOCOL_VERSION": TlsFailure("old-version", "the other end speaks no TLS of version 1.2 or later"),
    "NO_SHARED_CIPHER": TlsFailure("no-cipher", "the two ends share no cipher"),
}
"""OpenSSL's name of an error -> the failure."""


def tls_failure(error: BaseException) -> TlsFailure:
    """The failure behind an error in a handshake, or of a connection that was closed just after it."""
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
        known = _FAILURES.get(error.reason or "")
        if known is not None:
            return known
        return TlsFailure(
            "malformed", f"no TLS as we know it: {(error.reason or str(error)).lower().replace('_', ' ')}"
        )
    return TlsFailure("broken", " ".join(str(error).split()) or type(error).__name__)
