"""A node's credentials, from its settings: TLS of listeners and links, authorization guards, access to other clusters.

Built once, before anything is opened, so that an unusable file is reported before it can do harm; later the files are
read again when they change. Certificates that expire soon are reported in logs, metrics and the cluster's status.
`repl.security` implements TLS and tokens; `node.http.authorization` has the rules of roles.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from isthmus.config.settings import PeerSettings, RiakPeerSettings, Settings
from isthmus.config.warnings import ConfigWarning, warnings_of
from isthmus.node.http.authorization import guard_of
from isthmus.node.http.listener import ListenerTls
from isthmus.node.http.sessions import LoginSessions
from isthmus.node.observability.traces import read_headers
from isthmus.node.security import certificates
from isthmus.repl.http.client import PeerCredentials
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import BadConfig
from isthmus.repl.security.tls import LinkTls, NodeName, TlsFiles, client_contexts, server_contexts
from isthmus.repl.security.tokens import read_digests, read_password, read_token, watched_password, watched_token
from isthmus.repl.security.watched_files import ReloadingFile, check_private
from isthmus.repl.telemetry import Family, Sample

log = structlog.get_logger(__name__)

REPORT_EVERY_S: Final = 3600.0
"""How often the log repeats problems of certificates."""

URGENT_S: Final = 2 * 86_400
"""A certificate that expires within this time is critical, as for the alert IsthmusCertificateExpiresNow: then nodes,
clusters and clients refuse each other."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_tls_certificate_expiry_timestamp_seconds": Family(
        "When the first certificate of a file expires, by its key.", "seconds", "security", ("file",)
    ),
    "isthmus_tls_peer_certificate_expiry_timestamp_seconds": Family(
        "When a connected node's certificate expires, by node.", "seconds", "security", ("node",)
    ),
    "isthmus_secret_file_reloads_total": Family(
        "Times that changed files of certificates and tokens were read again, by outcome.",
        "reads",
        "security",
        ("outcome",),
    ),
}
"""Name -> metric definition (see repl.telemetry)."""


class NodeCredentials:
    """TLS contexts, tokens and authorization guards of this node. Raises BadConfig, all faults in one."""

    def __init__(self, settings: Settings) -> None:
        faults = list(file_faults(settings))
        if faults:
            raise BadConfig("; ".join(f"{path}: {message}" for path, message in faults))
        self._settings = settings
        self.trace_headers = read_headers(settings.traces.headers_file)
        """Headers for the collector of traces."""
        tls = settings.tls
        self._expiries = {
            key: ReloadingFile((path,), _expiry_of(path)) for key, path in _certificate_files(settings).items()
        }
        self._watched: list[ReloadingFile[Any]] = list(self._expiries.values())
        self._accesses: dict[tuple[bool, str, Path | None], PeerCredentials] = {}
        """By TLS or not, cluster and token file: no more entries than the settings have."""
        self._riak_accesses: dict[tuple[bool, str, Path | None, Path | None], PeerCredentials] = {}
        """By TLS or not, user, password file and authority."""
        self.listeners: dict[str, ListenerTls] = {}
        for name in ("http", "admin"):
            mode = tls.mode(name)
            if mode != "off":
                files = _files_of(settings, name)
                contexts = self._keep(server_contexts(files, _asked(settings), _own_check(settings, files)))
                self.listeners[name] = ListenerTls(contexts.current, mode == "allow")
        self.links: LinkTls | None = None
        self._shown = (0, 0)
        """How often the files of links were read, and when their certificate expires, in ms since 1970."""
        mode = tls.mode("cluster")
        if mode != "off":
            files = _files_of(settings, "cluster")
            check = _own_check(settings, files)
            server = server_contexts(files, ssl.CERT_REQUIRED, check)
            client = client_contexts(files, check_host=False, check=check)
            self.links = LinkTls(self._keep(server), self._keep(client), mode != "require", mode == "allow")
            if files.certificate is not None:
                self._shown = server.reloads, certificates.expires_ms(files.certificate)
        self.metastore: Callable[[], ssl.SSLContext] | None = None
        if tls.metastore:
            files = _files_of(settings, "cluster")
            session = client_contexts(files, check_host=True, check=_own_check(settings, files))
            self.metastore = self._keep(session).current
        logins = LoginSessions(f"isthmus-{settings.node.cluster}-{settings.node.name}")
        self.guards = {"http": guard_of("http", settings.tokens), "admin": guard_of("admin", settings.tokens, logins)}
        self._peers_expire_s: Callable[[], Mapping[str, float]] = dict
        self._reporting: asyncio.Task[None] | None = None

    @property
    def certified_sinks(self) -> bool:
        """Whether sinks must show certificates of their clusters: when all of `http` is TLS."""
        return self._settings.tls.mode("http") == "require"

    def access_to(self, peer: PeerSettings) -> PeerCredentials:
        """The credentials for a peer; the same object at each call, since its files are watched as long as the node
        runs."""
        way = (peer.url.startswith("https://"), peer.cluster, peer.token_file)
        found = self._accesses.get(way)
        if found is None:
            contexts = None
            if way[0]:
                files = _files_of(self._settings, "sink")
                check = _own_check(self._settings, files)
                contexts = self._keep(client_contexts(files, check_host=not peer.cluster, check=check)).current
            token = None if peer.token_file is None else self._keep(watched_token(peer.token_file)).current
            found = self._accesses[way] = PeerCredentials(contexts, peer.cluster, token)
        return found

    def access_to_riak(self, peer: RiakPeerSettings) -> PeerCredentials:
        """The credentials for a Riak; the same object at each call. Its certificates name its hosts."""
        way = ("https://" in peer.urls, peer.user, peer.password_file, peer.authority)
        found = self._riak_accesses.get(way)
        if found is None:
            contexts = None
            if way[0]:
                authorities = () if peer.authority is None else (peer.authority,)
                contexts = self._keep(client_contexts(TlsFiles(None, None, authorities), check_host=True)).current
            password = None if peer.password_file is None else self._keep(watched_password(peer.password_file)).current
            found = self._riak_accesses[way] = PeerCredentials(contexts, "", password, peer.user)
        return found

    def secrets(self) -> list[str]:
        """The tokens that this node shows to others, for removing them from texts. Its own files have digests alone."""
        accesses = [*self._accesses.values(), *self._riak_accesses.values()]
        tokens = [each.token() for each in accesses if each.token is not None]
        return [*tokens, *self.trace_headers.values()]

    def start(self, peers_expire_s: Callable[[], Mapping[str, float]]) -> None:
        """Begin to report problems. `peers_expire_s`: expiry of connected nodes' certificates, in s."""
        self._peers_expire_s = peers_expire_s
        for path, message in warnings_of(self._settings):
            log.warning("security.doubt", key=path, sentence=message)
        self._reporting = asyncio.get_running_loop().create_task(self._report_problems())

    async def stop(self) -> None:
        """Stop the reports."""
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)

    def reload(self) -> list[str]:
        """Read all files of certificates and tokens again; returns a sentence for each that could not be read, whose
        old content stays in use."""
        return sorted({why for each in self._all_watched() if (why := each.reload())})

    async def _report_problems(self) -> None:
        while True:
            for sentence in self.problems():
                log.warning("security.problem", sentence=sentence)
            await asyncio.sleep(REPORT_EVERY_S)

    def problems(self) -> list[str]:
        """Problems that an operator should fix soon, a sentence each."""
        name = self._settings.node.name
        found = self._expiring(self._settings.tls.expiry_warning_ms / 1000)
        for each in self._all_watched():
            each.current()  # so that a file which nothing has used since it changed is reported as it is now
        reasons = sorted({each.why for each in self._all_watched() if each.why})
        return [*found, *(f"a changed file of node {name} is not in force: {why}" for why in reasons)]

    def urgent(self) -> list[str]:
        """Those of `problems` that cannot wait: certificates that have expired, or are about to."""
        return self._expiring(min(URGENT_S, self._settings.tls.expiry_warning_ms / 1000))

    def _expiring(self, within_s: float) -> list[str]:
        """A sentence for each certificate that expires within this time, or has expired."""
        now_s = machine().wall_ns() / 1e9
        found = []
        for key, watched in self._expiries.items():
            at_s = watched.current() / 1000
            if at_s < now_s + within_s:
                found.append(f"{key} of node {self._settings.node.name} {_when(at_s, now_s)} ({watched.files[0]})")
        for node, at_s in self._peers_expire_s().items():
            if at_s < now_s + within_s:
                found.append(f"the certificate of node {node} {_when(at_s, now_s)}")
        return found

    def expiries_ms(self) -> dict[str, int]:
        """When the first certificate of each file expires, in ms since 1970, by the key of the file."""
        return {key: watched.current() for key, watched in self._expiries.items()}

    def certificate_expires_ms(self) -> int | None:
        """When the certificate that this node shows other nodes expires, in ms since 1970; None without one. A file
        that did not come into force does not count."""
        path = self._settings.tls.certificate
        if self.links is None or path is None:
            return None
        server = self.links.server
        server.current()  # reads the files when they have changed
        if server.reloads != self._shown[0]:
            with contextlib.suppress(BadConfig):  # it has just been replaced again: the next look finds it
                self._shown = server.reloads, certificates.expires_ms(path)
        return self._shown[1]

    def samples(self) -> Iterator[Sample]:
        """Samples for Prometheus."""
        for key, watched in self._expiries.items():
            yield "isthmus_tls_certificate_expiry_timestamp_seconds", {"file": key}, watched.current() / 1000
        for node, at_s in self._peers_expire_s().items():
            yield "isthmus_tls_peer_certificate_expiry_timestamp_seconds", {"node": node}, at_s
        watched_files = self._all_watched()
        if watched_files:
            outcomes = {
                "done": sum(each.reloads for each in watched_files),
                "failed": sum(each.failures for each in watched_files),
            }
            for outcome, count in outcomes.items():
                yield "isthmus_secret_file_reloads_total", {"outcome": outcome}, count
        for guard in self.guards.values():
            if guard is not None:
                yield from guard.samples()

    def _all_watched(self) -> list[ReloadingFile[Any]]:
        """All files that are read again: certificates, tokens for peers, and the token files of the guards."""
        guards = [guard for guard in self.guards.values() if guard is not None]
        return [*self._watched, *(each for guard in guards for each in guard.watched())]

    def _keep(self, watched: ReloadingFile[Any]) -> ReloadingFile[Any]:
        self._watched.append(watched)
        return watched


def file_faults(settings: Settings) -> Iterator[ConfigWarning]:
    """The faults of the files of [tls], [tokens], sink peers and full-sync, by key path. Reads the files."""
    for path, check in _checks(settings):
        try:
            check()
        except BadConfig as error:
            yield ConfigWarning(path, str(error))


def _checks(settings: Settings) -> Iterator[tuple[str, Callable[[], object]]]:
    tls = settings.tls
    keys = [("tls.key", tls.key), ("tls.http_key", tls.http_key)]
    private = [(key, path) for key, path in keys if path is not None]
    for key, path in private:
        yield key, lambda path=path: check_private(path)  # type: ignore[misc]
    for key, path in _certificate_files(settings).items():
        yield key, lambda path=path: certificates.certificates_in(path)  # type: ignore[misc]
    if tls.certificate is not None and tls.key is not None and tls.authority is not None:
        if tls.certificate.exists() and tls.authority.exists():
            yield "tls.certificate", lambda: _check_own(settings)
        if tls.certificate.exists() and tls.key.exists():
            yield "tls.key", lambda: server_contexts(TlsFiles(tls.certificate, tls.key, ()), ssl.CERT_NONE)
    for role, path in settings.tokens.files.items():
        yield f"tokens.{role}", lambda path=path: read_digests(path)  # type: ignore[misc]
    shown = [(f"sink.peers[{number}]", peer.token_file) for number, peer in enumerate(settings.sink.peers)]
    shown += [(f"fullsync[{number}]", peer.token_file) for number, peer in enumerate(settings.fullsync)]
    traces = settings.traces
    if traces.headers_file is not None:
        yield "traces.headers_file", lambda: read_headers(traces.headers_file)
    if traces.authority is not None:
        authority_file = traces.authority
        yield "traces.authority", lambda: certificates.certificates_in(authority_file)
    for number, riak in enumerate(settings.riak.peers):
        if riak.password_file is not None:
            yield f"riak.peers[{number}].password_file", lambda path=riak.password_file: read_password(path)  # type: ignore[misc]
        if riak.authority is not None:
            trusted = riak.authority
            yield (
                f"riak.peers[{number}].authority",
                lambda path=trusted: certificates.certificates_in(path),  # type: ignore[misc]
            )
    for entry, token in shown:
        if token is not None:
            yield f"{entry}.token_file", lambda path=token: read_token(path)  # type: ignore[misc]


def _own_check(settings: Settings, files: TlsFiles) -> Callable[[], None]:
    """The check of `files` before they come into force. A separate certificate for clients (`tls.http_certificate`)
    need not name the node, and may be of any authority."""

    def check() -> None:
        if files.certificate is not None and files.certificate == settings.tls.certificate:
            _check_own(settings)

    return check


def _check_own(settings: Settings) -> None:
    """Check that peers would take this node's certificate. Raises BadConfig."""
    own, authority = settings.tls.certificate, settings.tls.authority
    if own is not None and authority is not None:
        certificates.check_own(own, [authority], NodeName(settings.node.cluster, settings.node.name))


def _certificate_files(settings: Settings) -> dict[str, Path]:
    tls = settings.tls
    names = ("certificate", "authority", "peer_authority", "http_certificate")
    found = {f"tls.{name}": getattr(tls, name) for name in names}
    return {key: path for key, path in found.items() if path is not None}


def _expiry_of(path: Path) -> Callable[[], int]:
    return lambda: certificates.expires_ms(path)


def _authorities(settings: Settings, listener: str) -> tuple[Path, ...]:
    """The authorities that verify peers: nodes use their own authority, sinks that of peers, listeners for clients
    both."""
    tls = settings.tls
    own, peers = tls.authority, tls.peer_authority or tls.authority
    wanted = {"cluster": (own,), "sink": (peers,)}.get(listener, (own, peers))
    return tuple(dict.fromkeys(path for path in wanted if path is not None))


def _files_of(settings: Settings, listener: str) -> TlsFiles:
    tls = settings.tls
    pair = (tls.certificate, tls.key)
    if listener == "http" and tls.http_certificate is not None:
        pair = (tls.http_certificate, tls.http_key)
    return TlsFiles(*pair, _authorities(settings, listener))


def _asked(settings: Settings) -> ssl.VerifyMode:
    return ssl.CERT_REQUIRED if settings.tls.client_certificates == "required" else ssl.CERT_OPTIONAL


def _when(at_s: float, now_s: float) -> str:
    day = datetime.fromtimestamp(at_s, UTC)
    return f"{'has expired' if at_s <= now_s else 'expires'} on {day:%Y-%m-%d %H:%M}Z"
