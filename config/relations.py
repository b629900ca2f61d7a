"""Relations between settings that must hold. Pure, over finished `Settings`; `config.loader` adds the lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from isthmus.config.settings import ALL_TYPES, UNENCRYPTED, Address, Settings, TlsSettings


class RelationViolation(NamedTuple):
    """A relation between settings that does not hold; `paths` are its keys, the likeliest cause first."""

    paths: tuple[str, ...]
    message: str


def broken_relations(settings: Settings) -> Iterator[RelationViolation]:
    """Every relation that does not hold between values that are each valid.

    Key paths are those of the file ("replication.log_file_size"), as `config.schema` derives them.
    """
    yield from _addresses_apart(settings)
    log = settings.replication
    if log.log_file_bytes >= log.log_size_bytes:
        yield RelationViolation(
            ("replication.log_file_size", "replication.log_size"),
            "a log file must be smaller than the whole log (log_file_size < log_size), or nothing could ever be freed",
        )
    if log.log_batch_bytes > log.log_file_bytes:
        yield RelationViolation(
            ("replication.log_batch_size", "replication.log_file_size"),
            "one group commit must fit into a log file (log_batch_size <= log_file_size)",
        )
    if log.window_entries > log.max_near_sync_message_lag_count:
        yield RelationViolation(
            ("replication.window_entries", "replication.max_near_sync_message_lag"),
            "a member in sync must be able to catch up from the log "
            "(window_entries <= max_near_sync_message_lag), or a stall would put it out of reach",
        )
    if settings.transport.ping_interval_ms >= settings.transport.dead_after_ms:
        yield RelationViolation(
            ("transport.ping_interval", "transport.dead_after"),
            "a connection must be checked before it counts as dead (ping_interval < dead_after)",
        )
    if log.factor and log.min_isr > log.factor:
        yield RelationViolation(
            ("replication.min_isr", "replication.factor"),
            f"no more than replication.factor ({log.factor}) replicas can hold a write",
        )
    if log.factor > 1 and not settings.metastore.hosts:
        yield RelationViolation(
            ("replication.factor", "metastore.hosts"),
            f"{log.factor} replicas need as many nodes, and the embedded metastore is for one node: name the ZooKeeper "
            "of all nodes in metastore.hosts, or leave replication.factor out",
        )
    if settings.limits.object_bytes > log.window_bytes:
        yield RelationViolation(
            ("limits.object_size", "replication.window_size"),
            "the largest object must fit into the window of unapplied writes "
            "(limits.object_size <= replication.window_size), or it could never be written",
        )
    sink = settings.sink
    if sink.delay_min_ms > sink.delay_max_ms:
        yield RelationViolation(
            ("sink.delay_min", "sink.delay_max"),
            "the first delay must not be longer than the longest (delay_min <= delay_max)",
        )
    if sink.empty_delay_min_ms > sink.empty_delay_max_ms:
        yield RelationViolation(
            ("sink.empty_delay_min", "sink.empty_delay_max"),
            "the first delay must not be longer than the longest (empty_delay_min <= empty_delay_max)",
        )
    yield from (
        RelationViolation(*each)
        for each in _tls_relations(settings.tls, named_metastore=bool(settings.metastore.hosts))
    )
    runs, data = settings.reconcile.runs_dir, settings.node.data_dir.absolute()
    if runs is not None and (runs == data or data in runs.parents or runs in data.parents):
        yield RelationViolation(
            ("reconcile.runs_dir", "node.data_dir"),
            "runs and the node's data need directories apart: neither may lie in the other",
        )
    yield from _lists(settings)


def _addresses_apart(settings: Settings) -> Iterator[RelationViolation]:
    http, admin, cluster = settings.listen.http, settings.listen.admin, settings.listen.cluster
    for key, other in (("listen.http", http), ("listen.admin", admin)):
        if cluster.port and cluster.port == other.port and _may_clash(cluster.host, other.host):
            yield RelationViolation(("listen.cluster", key), f"port {cluster.port} is given to {key} already")
    if http.port and http.port == admin.port and _may_clash(http.host, admin.host):
        yield RelationViolation(
            ("listen.admin", "listen.http"),
            f"clients and operators need listeners of their own, but both are given port {http.port}",
        )
    port = settings.metastore.embedded_port
    if port and not settings.metastore.hosts:
        for key, address in (("listen.http", http), ("listen.admin", admin), ("listen.cluster", cluster)):
            if address.port == port:
                yield RelationViolation(("metastore.embedded_port", key), f"port {port} is given to {key} already")


def _lists(settings: Settings) -> Iterator[RelationViolation]:
    first_queue: dict[str, int] = {}
    for number, queue in enumerate(settings.queues):
        if queue.name in first_queue:
            yield RelationViolation(
                (f"queues[{number}].name", f"queues[{first_queue[queue.name]}].name"),
                f'two queues are called "{queue.name}"; every queue needs a name of its own',
            )
        first_queue.setdefault(queue.name, number)
    first_peer: dict[tuple[str, str], int] = {}
    for number, peer in enumerate(settings.sink.peers):
        same = (peer.url, peer.queue)
        if same in first_peer:
            yield RelationViolation(
                (f"sink.peers[{number}].url", f"sink.peers[{first_peer[same]}].url"),
                f'queue "{peer.queue}" of {peer.url} is listed twice; once is enough for any number of workers',
            )
        first_peer.setdefault(same, number)
        own = settings.listen.http
        if own.port and is_own(peer.url, own):
            yield RelationViolation(
                (f"sink.peers[{number}].url", "listen.http"),
                f"{peer.url} is this node itself; a peer is a node of another cluster",
            )


def broken_riak_trees(settings: Settings) -> Iterator[RelationViolation]:
    """Every relation of [[riak.trees]] that does not hold."""
    first: dict[int, int] = {}
    places: dict[str, int] = {}
    for number, tree in enumerate(settings.riak.trees):
        path = f"riak.trees[{number}]"
        if tree.n_val in first:
            yield RelationViolation(
                (f"{path}.n_val", f"riak.trees[{first[tree.n_val]}].n_val"),
                f"n_val {tree.n_val} is there twice; list all of its bucket types once",
            )
        first.setdefault(tree.n_val, number)
        for name in tree.bucket_types.split(","):
            other = next((places[each] for each in (name, ALL_TYPES) if each in places), None)
            if other is None and name == ALL_TYPES and places:
                other = next(iter(places.values()))
            if other is not None and other != number:
                yield RelationViolation(
                    (f"{path}.bucket_types", f"riak.trees[{other}].bucket_types"),
                    f"{name} is in two trees; in a Riak a bucket type has one n_val",
                )
            places.setdefault(name, number)


def broken_riak(settings: Settings) -> Iterator[RelationViolation]:
    """Every relation of [[riak.peers]] that does not hold."""
    first_name: dict[str, int] = {}
    first_link: dict[tuple[str, str], str] = {(one.queue, one.url): "sink.peers" for one in settings.sink.peers}
    for number, peer in enumerate(settings.riak.peers):
        path = f"riak.peers[{number}]"
        if peer.name in first_name:
            yield RelationViolation(
                (f"{path}.name", f"riak.peers[{first_name[peer.name]}].name"),
                f'two Riaks are called "{peer.name}"; each needs a name of its own',
            )
        first_name.setdefault(peer.name, number)
        for url in peer.urls.split(","):
            if (peer.queue, url) in first_link:
                yield RelationViolation(
                    (f"{path}.urls",),
                    f'queue "{peer.queue}" of {url} is listed already in {first_link[peer.queue, url]}',
                )
            first_link.setdefault((peer.queue, url), path)
            if settings.listen.http.port and is_own(url, settings.listen.http):
                yield RelationViolation(
                    (f"{path}.urls", "listen.http"), f"{url} is this node itself; name nodes of a Riak"
                )
        if bool(peer.user) != (peer.password_file is not None):
            given, missing = ("user", "password_file") if peer.user else ("password_file", "user")
            yield RelationViolation((f"{path}.{given}",), f"a user and a password belong together: set {missing}, too")


def is_own(url: str, own: Address) -> bool:
    """True for the URL of the listener at `own`."""
    address = urlsplit(url)
    return (address.hostname, address.port) == (own.host.lower(), own.port)


def _may_clash(one: str, other: str) -> bool:
    anywhere = ("0.0.0.0", "::")  # noqa: S104 -- compared with, not bound to
    return one == other or one in anywhere or other in anywhere


def broken_fullsync(settings: Settings) -> Iterator[RelationViolation]:
    """Every relation of [[fullsync]] that does not hold."""
    first: dict[str, int] = {}
    for number, peer in enumerate(settings.fullsync):
        path = f"fullsync[{number}]"
        if peer.name in first:
            yield RelationViolation(
                (f"{path}.name", f"fullsync[{first[peer.name]}].name"),
                f'two full-syncs are called "{peer.name}"; each needs a name of its own',
            )
        first.setdefault(peer.name, number)
        own = settings.listen.http
        for url in peer.urls.split(",") if own.port else ():
            if is_own(url, own):
                yield RelationViolation(
                    (f"{path}.urls", "listen.http"),
                    f"{url} is this node itself; what it is compared with is another cluster",
                )
        if peer.bidirectional and not peer.peer_queue:
            yield RelationViolation(
                (f"{path}.bidirectional", f"{path}.peer_queue"),
                "the other cluster must know which of its queues to repair by; set peer_queue",
            )


def _tls_relations(tls: TlsSettings, *, named_metastore: bool) -> Iterator[tuple[tuple[str, ...], str]]:
    """Relations within [tls] that do not hold, as `RelationViolation`. `named_metastore`: the metastore is not the
    embedded one."""
    if tls.certificate is None:
        for key in ("http", "admin", "cluster"):
            if getattr(tls, key) in ("allow", "prefer"):
                yield (f"tls.{key}", "tls.certificate"), f'"{getattr(tls, key)}" needs tls.certificate{UNENCRYPTED}'
        if tls.client_certificates == "required":
            yield ("tls.client_certificates", "tls.certificate"), f'"required" needs tls.certificate{UNENCRYPTED}'
    for certificate, key in (("certificate", "key"), ("http_certificate", "http_key")):
        has = getattr(tls, certificate) is not None, getattr(tls, key) is not None
        if has[0] != has[1]:
            given, missing = (certificate, key) if has[0] else (key, certificate)
            yield (f"tls.{given}",), f"a certificate and its key belong together: set tls.{missing}, too"
    if tls.certificate is not None and tls.authority is None:
        yield ("tls.certificate",), "set tls.authority, too: who may sign for the other nodes"
    if tls.http_certificate is not None and tls.certificate is None:
        yield ("tls.http_certificate",), "set tls.certificate, too: it is what other nodes and clusters know"
    if tls.metastore and tls.authority is None:
        yield ("tls.metastore",), "set tls.authority, too: who may sign for the ZooKeepers"
    if tls.metastore and not named_metastore:
        yield ("tls.metastore",), "the embedded metastore listens on loopback without TLS; name metastore.hosts"


RULES: Final = (broken_relations, broken_fullsync, broken_riak, broken_riak_trees)
"""All relations of a file."""
