"""Rules for settings: ranges, choices, forms of single values, and relations between settings.

Pure functions over values and finished `Settings`: no file, no line numbers. `config.loader` calls them and adds where
each value stands; docs/config.md shows the same ranges, generated from these tables. The meaning of a queue's filter is
`queues.filters`; its form is checked here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from isthmus.config.settings import (
    ALL_TYPES,
    GB,
    KB,
    MB,
    Address,
    FullSyncSettings,
    LimitSettings,
    ListenSettings,
    LogSettings,
    MetastoreSettings,
    NodeSettings,
    PeerSettings,
    QueueSettings,
    ReplicationSettings,
    Settings,
    SinkSettings,
    TlsSettings,
    TokenSettings,
    TransportSettings,
    broken_tls_relations,
)
from isthmus.config.text import shown

SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE


class ValueRange(NamedTuple):
    """Least and greatest value, both allowed, in the unit of the field's name."""

    least: int
    most: int


PORT_MAX: Final = 65_535

RANGES: Final[Mapping[tuple[type, str], ValueRange]] = {
    # Below 1 no client connects; above 100,000 the usual limit of open files is exceeded.
    (ListenSettings, "connections_limit"): ValueRange(1, 100_000),
    # From what clients' ordinary headers need to what a connection may cost in memory.
    (ListenSettings, "header_limit_bytes"): ValueRange(4 * KB, 1 * MB),
    (ListenSettings, "request_timeout_ms"): ValueRange(100, 1 * HOUR),
    (ListenSettings, "body_timeout_ms"): ValueRange(100, 1 * HOUR),
    # ZooKeeper grants at least two of its ticks; over a minute a dead node would block its partitions too long.
    (MetastoreSettings, "session_timeout_ms"): ValueRange(1 * SECOND, 1 * MINUTE),
    (MetastoreSettings, "connect_timeout_ms"): ValueRange(100, 1 * HOUR),
    (MetastoreSettings, "embedded_port"): ValueRange(0, PORT_MAX),
    (MetastoreSettings, "linger_ms"): ValueRange(0, 24 * HOUR),
    # Placement files of other systems have 32-bit numbers.
    (NodeSettings, "id"): ValueRange(0, 2**31 - 1),
    # 0 is the default; more than seven replicas have no known use.
    (ReplicationSettings, "factor"): ValueRange(0, 7),
    (ReplicationSettings, "min_isr"): ValueRange(0, 7),
    (ReplicationSettings, "max_time_lag_ms"): ValueRange(100, 1 * HOUR),
    (ReplicationSettings, "max_record_lag_count"): ValueRange(10, 1_000_000),
    (ReplicationSettings, "max_near_sync_message_lag_count"): ValueRange(10, 10_000_000),
    (ReplicationSettings, "catch_up_rate_limit_bytes"): ValueRange(64 * KB, 10 * GB),
    (ReplicationSettings, "dedup_window_count"): ValueRange(1, 1_000_000),
    (ReplicationSettings, "handover_timeout_ms"): ValueRange(100, 1 * HOUR),
    # Below a second a record that is corrected at once would cost a replica; above a month disk space is wasted.
    (ReplicationSettings, "removed_copy_grace_ms"): ValueRange(1 * SECOND, 720 * HOUR),
    (ReplicationSettings, "tree_rebuild_ms"): ValueRange(0, 8760 * HOUR),
    (ReplicationSettings, "balance_delay_ms"): ValueRange(0, 1 * HOUR),
    # From one at a time to the largest number of partitions, which is no limit.
    (ReplicationSettings, "balance_moves"): ValueRange(1, 1024),
    (ReplicationSettings, "balance_cool_down_ms"): ValueRange(0, 1 * HOUR),
    (TransportSettings, "ping_interval_ms"): ValueRange(50, 1 * MINUTE),
    (TransportSettings, "dead_after_ms"): ValueRange(100, 10 * MINUTE),
    (TransportSettings, "dial_delay_max_ms"): ValueRange(20, 1 * MINUTE),
    (TransportSettings, "live_limit_bytes"): ValueRange(1 * MB, 16 * GB),
    (TransportSettings, "catch_up_limit_bytes"): ValueRange(64 * KB, 1 * GB),
    (TransportSettings, "catch_up_share_percent"): ValueRange(1, 90),
    # Each partition costs a metastore record and rows of its own; with 1,024 both stay small.
    (ReplicationSettings, "partitions"): ValueRange(1, 1024),
    (ReplicationSettings, "log_size_bytes"): ValueRange(1 * MB, 1000 * GB),
    (ReplicationSettings, "log_file_bytes"): ValueRange(64 * KB, 4 * GB),
    (ReplicationSettings, "log_batch_bytes"): ValueRange(4 * KB, 256 * MB),
    # The upper end is the default of max_near_sync_message_lag; see broken_relations for why.
    (ReplicationSettings, "window_entries"): ValueRange(1, 20_000),
    (ReplicationSettings, "window_bytes"): ValueRange(64 * KB, 16 * GB),
    (ReplicationSettings, "write_buffer_bytes"): ValueRange(64 * KB, 1 * GB),
    (ReplicationSettings, "block_cache_bytes"): ValueRange(64 * KB, 64 * GB),
    (ReplicationSettings, "checkpoint_interval_ms"): ValueRange(100, 1 * HOUR),
    (TlsSettings, "expiry_warning_ms"): ValueRange(1 * HOUR, 365 * 24 * HOUR),
    (LimitSettings, "object_bytes"): ValueRange(1 * KB, 1 * GB),
    # 64 KB is the limit of Riak's clients; each key is stored three times.
    (LimitSettings, "key_bytes"): ValueRange(16, 64 * KB),
    (LimitSettings, "siblings"): ValueRange(1, 10_000),
    (LimitSettings, "object_warn_bytes"): ValueRange(0, 1 * GB),
    (LimitSettings, "siblings_warn"): ValueRange(0, 10_000),
    (LimitSettings, "listings"): ValueRange(1, 1_000),
    (LimitSettings, "batch_items"): ValueRange(1, 100_000),
    (LimitSettings, "batch_bytes"): ValueRange(1 * KB, 1 * GB),
    (QueueSettings, "object_size_limit_bytes"): ValueRange(0, 1 * GB),
    (QueueSettings, "object_limit_count"): ValueRange(0, 10_000_000),
    (QueueSettings, "queue_limit_count"): ValueRange(1, 10_000_000),
    (QueueSettings, "lease_ms"): ValueRange(100, 1 * HOUR),
    (QueueSettings, "rate_limit_bytes"): ValueRange(0, 10 * GB),
    (QueueSettings, "object_rate_limit_count"): ValueRange(0, 10_000_000),
    (SinkSettings, "workers"): ValueRange(1, 256),
    (SinkSettings, "peer_limit_count"): ValueRange(0, 256),
    (SinkSettings, "batch_count"): ValueRange(1, 100_000),
    (SinkSettings, "batch_bytes"): ValueRange(1 * KB, 1 * GB),
    (SinkSettings, "poll_ms"): ValueRange(0, 5 * MINUTE),
    (SinkSettings, "delay_min_ms"): ValueRange(1, 1 * HOUR),
    (SinkSettings, "delay_max_ms"): ValueRange(1, 1 * HOUR),
    # 1 never lengthens the delay; above 10 the second error reaches the longest delay anyway.
    (SinkSettings, "delay_factor"): ValueRange(1, 10),
    (SinkSettings, "empty_delay_min_ms"): ValueRange(1, 1 * MINUTE),
    (SinkSettings, "empty_delay_max_ms"): ValueRange(1, 1 * MINUTE),
    (SinkSettings, "rate_limit_bytes"): ValueRange(0, 10 * GB),
    (SinkSettings, "object_rate_limit_count"): ValueRange(0, 10_000_000),
    (SinkSettings, "discovery_interval_ms"): ValueRange(1 * SECOND, 1 * HOUR),
    (SinkSettings, "conflicts_count"): ValueRange(0, 100_000),
    (SinkSettings, "dead_letters_count"): ValueRange(1, 100_000),
    (SinkSettings, "dead_letters_bytes"): ValueRange(0, 100 * GB),
    (SinkSettings, "request_timeout_ms"): ValueRange(100, 1 * HOUR),
    # More than one check in six minutes is of no use; see `aae.scheduling.schedule`.
    (FullSyncSettings, "all_count"): ValueRange(0, 240),
    (FullSyncSettings, "day_count"): ValueRange(0, 240),
    (FullSyncSettings, "hour_count"): ValueRange(0, 240),
    (FullSyncSettings, "range_count"): ValueRange(0, 240),
    (FullSyncSettings, "auto_count"): ValueRange(0, 240),
    (FullSyncSettings, "none_count"): ValueRange(0, 240),
    (FullSyncSettings, "cluster_slice"): ValueRange(0, 4),
    (FullSyncSettings, "segment_limit_count"): ValueRange(0, 1 << 20),
    (FullSyncSettings, "auto_suppress_count"): ValueRange(0, 240),
    (FullSyncSettings, "pause_ms"): ValueRange(0, 1 * MINUTE),
    (FullSyncSettings, "timeout_ms"): ValueRange(100, 1 * HOUR),
    (FullSyncSettings, "run_timeout_ms"): ValueRange(1 * SECOND, 24 * HOUR),
    (FullSyncSettings, "repair_rate_limit_count"): ValueRange(0, 10_000_000),
}
"""Every whole number among the settings. Extremes serve tests (small) and large machines."""

CHOICES: Final[Mapping[tuple[type, str], tuple[str, ...]]] = {
    (ReplicationSettings, "durability"): ("fsync", "async"),
    (ReplicationSettings, "placement"): ("computed", "file"),
    (ReplicationSettings, "read_isolation"): ("committed", "uncommitted"),
    (TlsSettings, "http"): ("require", "allow", "off"),
    (TlsSettings, "admin"): ("require", "allow", "off"),
    (TlsSettings, "cluster"): ("require", "prefer", "allow", "off"),
    (TlsSettings, "client_certificates"): ("optional", "required"),
    (TokenSettings, "http_open"): ("nothing", "read", "write"),
    (QueueSettings, "overflow"): ("replay", "discard"),
    (SinkSettings, "compression"): ("none", "zstd"),
    (LogSettings, "level"): ("debug", "info", "warning", "error"),
    (LogSettings, "format"): ("auto", "json", "text"),
}

NAMES: Final = frozenset(
    [
        (NodeSettings, "name"),
        (NodeSettings, "cluster"),
        (QueueSettings, "name"),
        (PeerSettings, "queue"),
        (FullSyncSettings, "name"),
        (FullSyncSettings, "queue"),
    ]
)

NAME_RULE: Final = "1 to 64 letters, digits, - _ . and begins with a letter or digit"
"""Names become parts of metastore paths, file names and URLs, so "..", "/" and spaces must not occur."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,252})", re.ASCII)
_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9._-]+)?", re.ASCII)
_ROOT = re.compile(r"(/[A-Za-z0-9][A-Za-z0-9._-]*)+", re.ASCII)


def check_name(value: str) -> str:
    """The name; ValueError when it is not one."""
    if _NAME.fullmatch(value) is None:
        raise ValueError(f"{shown(value)} is not a name; a name is {NAME_RULE}")
    return value


def check_rack(value: str) -> str:
    """The name of a rack, or "" for none; ValueError otherwise."""
    return check_name(value) if value else value


def check_cluster(value: str) -> str:
    """The name of a cluster, or "" for any; ValueError otherwise."""
    return check_name(value) if value else value


def check_host(value: str) -> str:
    """A host name or an address without a port, or "" for none; ValueError otherwise."""
    if value and _HOST.fullmatch(value) is None and _IPV6.fullmatch(value) is None:
        raise ValueError(f'{shown(value)} is not a host; write a name or an address without a port, such as "10.0.0.7"')
    return value


def check_choice(value: str, choices: tuple[str, ...]) -> str:
    """One of `choices`; ValueError names them."""
    if value in choices:
        return value
    if len(choices) == 1:
        raise ValueError(f'{shown(value)} is not known; this version knows "{choices[0]}" only')
    raise ValueError(f"{shown(value)} is not known; choose one of " + ", ".join(f'"{each}"' for each in choices))


def parse_address(value: str) -> Address:
    """The address in HOST:PORT, an IPv6 host in brackets; ValueError with the reason."""
    host, colon, port_text = value.rpartition(":")
    form = 'write HOST:PORT, such as "127.0.0.1:8098" or "[::1]:8098"'
    if not colon or not host or not port_text:
        raise ValueError(f"{shown(value)} is not an address; {form}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if _IPV6.fullmatch(host) is None:
            raise ValueError(f"{shown(value)}: what stands in brackets is not an IPv6 address; {form}")
    elif ":" in host:
        raise ValueError(f"{shown(value)}: an IPv6 address stands in brackets; {form}")
    elif _HOST.fullmatch(host) is None:
        raise ValueError(f"{shown(value)}: {shown(host)} is not a host name; {form}")
    if not (port_text.isascii() and port_text.isdigit() and int(port_text[:9]) <= PORT_MAX and len(port_text) <= 5):
        raise ValueError(f"{shown(value)}: the port is a number from 0 to {PORT_MAX}; {form}")
    return Address(host, int(port_text))


def check_hosts(value: str) -> str:
    """ "zk1:2181,zk2:2181" without spaces, or "" for the embedded metastore; ValueError names the wrong part."""
    if not value.strip():
        return ""
    hosts = []
    for part in value.split(","):
        if "/" in part:
            raise ValueError(f"{shown(part)}: a path does not belong here; set metastore.root instead")
        address = parse_address(part.strip())
        if address.port == 0:
            raise ValueError(
                f"{shown(part)}: port 0 cannot be dialled; ZooKeeper listens on 2181 unless told otherwise"
            )
        hosts.append(str(address))
    return ",".join(hosts)


def check_root(value: str) -> str:
    """An absolute metastore path without an end slash."""
    if _ROOT.fullmatch(value) is None:
        raise ValueError(f'{shown(value)} is not a metastore path; write one such as "/isthmus", without an end slash')
    return value


def check_peer_url(value: str) -> str:
    """http(s)://HOST:PORT, given back without an end slash."""
    form = 'write http(s)://HOST:PORT, such as "http://10.0.0.7:8098"'
    scheme, separator, rest = value.partition("://")
    if not separator or scheme not in ("http", "https"):
        raise ValueError(f"{shown(_without_secrets(value))} is not the URL of a node; {form}")
    authority = rest.removesuffix("/")
    if any(sign in authority for sign in "/?#@"):
        raise ValueError(f"{shown(_without_secrets(value))}: scheme, host and port only, nothing else; {form}")
    address = parse_address(authority)
    if address.port == 0:
        raise ValueError(f"{shown(value)}: port 0 cannot be dialled; {form}")
    return f"{scheme}://{address}"


def _without_secrets(url: str) -> str:
    """The URL for a message: user and password, query and fragment as "***", since faults end up in logs and
    tickets."""
    scheme, separator, rest = url.rpartition("://")
    _, user, rest = rest.rpartition("@")
    return scheme + separator + ("***@" if user else "") + re.sub(r"([?#]).*", r"\1***", rest)


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
        for each in broken_tls_relations(settings.tls, named_metastore=bool(settings.metastore.hosts))
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


def is_own(url: str, own: Address) -> bool:
    """True for the URL of the listener at `own`."""
    address = urlsplit(url)
    return (address.hostname, address.port) == (own.host.lower(), own.port)


def _may_clash(one: str, other: str) -> bool:
    anywhere = ("0.0.0.0", "::")  # noqa: S104 -- compared with, not bound to
    return one == other or one in anywhere or other in anywhere


URLS_MAX: Final = 32
"""Most nodes of another cluster in a list; one that answers is enough."""

TYPES_MAX: Final = 256
"""Most bucket types in one entry."""

_HOURS = re.compile(r"(\d{1,2})-(\d{1,2})", re.ASCII)


def check_urls(value: str) -> str:
    """URL,URL,..., each once; ValueError otherwise."""
    urls = [check_peer_url(url.strip()) for url in value.split(",")]
    if len(set(urls)) != len(urls) or len(urls) > URLS_MAX:
        raise ValueError(f"{shown(value)}: list each of 1 to {URLS_MAX} nodes once")
    return ",".join(urls)


def check_types(value: str) -> str:
    """NAME,NAME,..., each once, or "*" for all; ValueError otherwise."""
    if value.strip() == ALL_TYPES:
        return ALL_TYPES
    names = [check_name(name.strip()) for name in value.split(",")]
    if len(set(names)) != len(names) or len(names) > TYPES_MAX:
        raise ValueError(f"{shown(value)}: list each of 1 to {TYPES_MAX} bucket types once")
    return ",".join(names)


def check_window(value: str) -> str:
    """FIRST-END in hours, "always" or "never"; ValueError otherwise."""
    found = _HOURS.fullmatch(value)
    hours = found is not None and int(found[1]) < 24 and int(found[2]) <= 24
    if not hours and value not in ("always", "never"):
        raise ValueError(f'{shown(value)}: write hours such as "22-6" (from 22:00 until 6:00 UTC), "always" or "never"')
    return value


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


FILTER_RULES: Final = "any, block_rtq, buckettype:T, bucketname:B, bucketprefix:P, or ! before one of the last three"

_FILTER_RULE = re.compile(r"any|block_rtq|!?\s*(buckettype|bucketname|bucketprefix):\S.*")
_SPACED = re.compile(r"(!?\s*(?:buckettype|bucketname|bucketprefix)):\s+(\S.*)")
_NAMELESS = re.compile(r"!?\s*(buckettype|bucketname|bucketprefix):?")
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


def check_filter(value: str) -> str:
    """The rules of a queue's filter, separated by commas. ValueError names every part that is not a rule, a stray
    percent sign, and rules that exclude each other."""
    parts = [part.strip() for part in value.split(",")]
    wrong = [part for part in parts if _FILTER_RULE.fullmatch(part) is None]
    if wrong:
        if (spaced := next(filter(None, map(_SPACED.fullmatch, wrong)), None)) is not None:
            rule, name = spaced.groups()
            raise ValueError(
                f"{shown(spaced.group())}: a space stands after the colon; write {shown(f'{rule}:{name}')}, or %20 for "
                "a space that the name begins with"
            )
        if (nameless := next(filter(None, map(_NAMELESS.fullmatch, wrong)), None)) is not None:
            raise ValueError(f"{shown(nameless.group())}: no name; write {nameless[1]}:NAME")
        what = "is no rule of a filter" if len(wrong) == 1 else "are no rules of a filter"
        raise ValueError(f"{', '.join(map(shown, wrong))} {what}; rules are {FILTER_RULES}")
    for part in parts:
        if _BAD_PERCENT.search(part) is not None:
            raise ValueError(f"{shown(part)}: names are percent-encoded in a filter; a percent sign is written as %25")
    if "block_rtq" in parts and len(parts) > 1:
        raise ValueError(f"{shown(value)}: block_rtq stands alone, it offers nothing in real time")
    if "any" in parts and any(part != "any" and not part.startswith("!") for part in parts):
        raise ValueError(f'{shown(value)}: "any" offers everything; beside it only negations (!...) change something')
    return value
