"""Warnings about a config file: settings that are allowed and probably not meant, such as listeners without protection.

Pure, over finished `Settings`. `isthmus config check` prints them, and a node logs them at its start; nothing is
refused.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from isthmus.config.settings import UNENCRYPTED, Address, FullSyncSettings, PeerSettings, Settings
from isthmus.config.units import format_duration


class ConfigWarning(NamedTuple):
    """Key path in the file and one sentence."""

    path: str
    message: str


def warnings_of(settings: Settings) -> Iterator[ConfigWarning]:
    """Every warning, in the order of the file's sections."""
    yield from _listeners(settings)
    tokens = settings.tokens
    if tokens.files and "admin" not in tokens.files:
        yield ConfigWarning(
            "tokens", "no admin tokens: nothing that needs the role admin can be done, such as removing a node"
        )
    for number, peer in enumerate(settings.sink.peers):
        yield from _other_cluster(f"sink.peers[{number}]", "url", peer)
    for number, entry in enumerate(settings.fullsync):
        yield from _other_cluster(f"fullsync[{number}]", "urls", entry)
        queues = sorted(queue.name for queue in settings.queues)
        if queues and entry.queue not in queues:
            yield ConfigWarning(
                f"fullsync[{number}].queue",
                f'"{entry.queue}" is not a queue of this file; there are: {", ".join(queues)}. It is right if it is '
                "registered while the cluster runs (isthmus queue register); until then every check ends with an error",
            )
        others = [e for e in settings.fullsync[:number] if e.queue == entry.queue and e.cluster and entry.cluster]
        for other in (one for one in others if one.cluster != entry.cluster):
            yield ConfigWarning(
                f"fullsync[{number}].queue",
                f'"{entry.queue}" is the queue of "{other.name}" as well, which compares with {other.cluster}, not '
                f"{entry.cluster}: a queue belongs to one cluster, so the repairs of one of them go to the other",
            )
    for number, riak in enumerate(settings.riak.peers):
        if riak.user and not all(is_loopback(_host_of(url)) for url in _plain(riak.urls)):
            yield ConfigWarning(
                f"riak.peers[{number}].urls", "the password travels to this Riak in the clear; write https://"
            )
    traces = settings.traces
    if traces.headers_file is not None and traces.endpoint.startswith("http://"):
        host = urlsplit(traces.endpoint).hostname or ""
        if not is_loopback(host):
            yield ConfigWarning("traces.endpoint", "the headers travel to the collector in the clear; write https://")
    replication, session_ms = settings.replication, settings.metastore.session_timeout_ms
    if replication.max_time_lag_ms >= session_ms:
        yield ConfigWarning(
            "replication.max_time_lag",
            f"{format_duration(replication.max_time_lag_ms)} is not below metastore.session_timeout, "
            f"{format_duration(session_ms)}: a node that hangs is declared dead before it leaves the ISR, and writes "
            "wait for it until then",
        )
    sink = settings.sink
    if sink.peer_limit_count > sink.workers:
        yield ConfigWarning(
            "sink.peer_limit",
            f"never binds: there are {sink.workers} workers, so no peer gets {sink.peer_limit_count} of them",
        )


def _other_cluster(path: str, key: str, peer: PeerSettings | FullSyncSettings) -> Iterator[ConfigWarning]:
    """Warnings about a connection to another cluster without protection."""
    urls = peer.url if isinstance(peer, PeerSettings) else peer.urls
    plain = _plain(urls)
    if peer.token_file is not None and not all(is_loopback(_host_of(url)) for url in plain):
        yield ConfigWarning(f"{path}.{key}", "the token travels to this peer in the clear; write https://")
    if peer.cluster and plain:
        yield ConfigWarning(f"{path}.cluster", "is not checked over http://; only a certificate shows it")


def _plain(urls: str) -> list[str]:
    return [url for url in urls.split(",") if not url.startswith("https://")]


def _listeners(settings: Settings) -> Iterator[ConfigWarning]:
    """Warnings about listeners that other machines reach: `admin` without TLS and tokens, `http` with tokens and
    without TLS, `cluster` without required TLS."""
    tls, tokens, listen = settings.tls, settings.tokens, settings.listen
    for key in ("http", "admin", "cluster"):
        if tls.certificate is None and f"tls.{key}" in settings.origins and getattr(tls, key) == "require":
            yield ConfigWarning(f"tls.{key}", f'"require" comes to nothing without tls.certificate{UNENCRYPTED}')
    lacks = [name for name, there in (("TLS", tls.mode("admin") == "require"), ("tokens", tokens.files)) if not there]
    if lacks and not _own(listen.admin):
        yield ConfigWarning(
            "listen.admin",
            f"{listen.admin} can be reached from other machines without {' and '.join(lacks)}: any client reaching it "
            f"rules the cluster; turn on [tls] and [tokens], or listen on 127.0.0.1",
        )
    if tokens.files and tls.mode("http") != "require" and not _own(listen.http):
        yield ConfigWarning(
            "listen.http", f'tokens travel in the clear to {listen.http}: turn on [tls], with http = "require"'
        )
    if tls.certificate is not None and tls.cluster != "require" and not _own(listen.cluster):
        yield ConfigWarning("tls.cluster", f'"{tls.cluster}" lets nodes come without certificates; "require" ends that')


def is_loopback(host: str) -> bool:
    """True for a host that only this machine reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _own(address: Address) -> bool:
    return is_loopback(address.host)


def _host_of(url: str) -> str:
    return url.partition("://")[2].rpartition(":")[0].strip("[]")
