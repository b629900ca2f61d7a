"""Typed settings of one node: frozen values, every default with its reason.

Parsed once by `config.loader`; nothing here reads a file. Units are in the names; texts such as "200KB" and "1s"
exist in files only (`config.units`). The annotation of a field is its form, its docstring is its text in
docs/settings.md (`config.schema`). No secret is a setting: certificates, keys and tokens lie in files, and settings are
their paths.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Annotated, Final

from isthmus.config.forms import (
    BUCKET_TYPES,
    COLLECTOR_URL,
    ENTRIES,
    FILTER,
    HOST,
    HOSTS,
    HOURS,
    METASTORE_PATH,
    NAME,
    NAME_OR_NONE,
    PEER_URL,
    PEER_URLS,
    USER,
    Choice,
    WholeNumber,
)
from isthmus.config.validation import ALL_TYPES as ALL_TYPES
from isthmus.config.validation import PORT_MAX
from isthmus.config.validation import Address as Address

KB: Final = 1000
MB: Final = 1000 * KB
GB: Final = 1000 * MB

SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE

SINK_WORKERS_MAX: Final = 256
"""Most workers of a node's sink: each waits for a connection of its own."""


class Effect(Enum):
    """When a new value of a setting, option or property takes effect."""

    START = auto()
    """At the node's next start."""

    CREATION = auto()
    """Never; the value that counts is the one when the cluster is created."""

    RELOAD = auto()
    """When the node gets SIGHUP."""

    AT_ONCE = auto()

    NONE = auto()
    """Never: it is stored and shown for Riak's clients."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """[tls]: this node's certificates and the authorities that it trusts. Without a certificate nothing is
    encrypted."""

    certificate: Path | None = None
    """This node's certificate, followed by those between it and its authority. Names the node:
    `URI:isthmus://CLUSTER/NODE`. Empty: nothing is encrypted."""

    key: Path | None = None
    """The certificate's private key, without a password."""

    authority: Path | None = None
    """Authorities of the certificates of this cluster's nodes; several certificates may follow each other."""

    peer_authority: Path | None = None
    """Authorities for nodes of other clusters and for clients. Empty: `authority`."""

    http_certificate: Path | None = None
    """The certificate of the `http` listener instead of `certificate`, such as one of a public authority."""

    http_key: Path | None = None
    """Its private key."""

    http: Annotated[str, Choice("require", "allow", "off")] = "require"
    """The `http` listener. `allow` accepts connections with and without TLS, on the same port."""

    admin: Annotated[str, Choice("require", "allow", "off")] = "require"
    """The `admin` listener."""

    cluster: Annotated[str, Choice("require", "prefer", "allow", "off")] = "require"
    """Between nodes of the cluster. `allow` accepts both and connects without, `prefer` accepts both and connects with
    TLS. These two are for turning it on node by node."""

    client_certificates: Annotated[str, Choice("optional", "required")] = "optional"
    """`required`: a connection to `http` or `admin` without a certificate is refused, whatever token it has."""

    metastore: bool = False
    """Use TLS with the ZooKeepers of `metastore.hosts`, whose certificates name their hosts. The node presents its own
    certificate and trusts `authority`."""

    expiry_warning_ms: Annotated[int, WholeNumber(1 * HOUR, 365 * 24 * HOUR)] = 1_209_600_000
    """How long before a certificate expires logs and `isthmus cluster status` warn. Two weeks leave time to act."""

    def mode(self, listener: str) -> str:
        """The TLS mode of `listener` ("http", "admin", "cluster"); "off" without a certificate."""
        assert listener in ("http", "admin", "cluster")
        found: str = getattr(self, listener)
        return "off" if self.certificate is None else found


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """[tokens]: files of bearer tokens, one for each role. Without any, every client that reaches a listener may do
    everything."""

    read: Path | None = None
    """May read everything and change nothing."""

    write: Path | None = None
    """May also write objects."""

    operate: Path | None = None
    """May also suspend, resume, balance, and set bucket properties."""

    replicate: Path | None = None
    """For sinks of other clusters: may fetch from queues, nothing else."""

    admin: Path | None = None
    """May do everything."""

    http_open: Annotated[str, Choice("nothing", "read", "write")] = "nothing"
    """Requests that the `http` listener answers without a token."""

    metrics_open: bool = False
    """Answer `/metrics` without a token. For a Prometheus that has none."""

    @property
    def files(self) -> dict[str, Path]:
        """Role -> its file, of those that are set."""
        found = {role: getattr(self, role) for role in ("read", "write", "operate", "replicate", "admin")}
        return {role: path for role, path in found.items() if path is not None}


NO_TLS: Final = TlsSettings()
NO_TOKENS: Final = TokenSettings()
"""Both stand for "not turned on": the defaults."""


UNENCRYPTED: Final = ": without one nothing is encrypted, and no certificate is requested"


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """[[sink.peers]]: one queue at one node of another cluster."""

    url: Annotated[str, PEER_URL]
    """The peer's `listen.http`."""

    queue: Annotated[str, NAME]
    """The queue's name there."""

    cluster: Annotated[str, NAME_OR_NONE] = ""
    """The cluster that must answer there, and that the peer's certificate must name. Empty: it must name the URL's
    host, and whichever cluster answers first counts until the node's next start."""

    token_file: Path | None = None
    """A file with the token to send there: its first line that is a token."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """[sink]: what this node fetches from other clusters. Without peers the sink is idle."""

    peers: tuple[PeerSettings, ...] = ()

    workers: Annotated[int, WholeNumber(1, SINK_WORKERS_MAX)] = 24
    """How many fetches and pushes may run at once; most of them wait for changes. Riak has as many threads. `isthmus
    sink set-workers` changes it live."""

    peer_limit_count: Annotated[int, WholeNumber(0, SINK_WORKERS_MAX)] = 0
    """Workers that may be busy with one peer; 0: an equal share for each peer. A peer that hangs holds no more."""

    batch_count: Annotated[int, WholeNumber(1, 100_000)] = 512
    """Changes asked for in one fetch."""

    batch_bytes: Annotated[int, WholeNumber(1 * KB, 1 * GB)] = 4 * MB
    """Bytes asked for in one fetch; a single larger object still comes."""

    poll_ms: Annotated[int, WholeNumber(0, 5 * MINUTE)] = 5_000
    """How long a fetch waits at the source when there is nothing."""

    delay_min_ms: Annotated[int, WholeNumber(1, 1 * HOUR)] = 10
    """First delay after an error; at most `delay_max`."""

    delay_max_ms: Annotated[int, WholeNumber(1, 1 * HOUR)] = 8_000
    """Longest delay after errors; the first success ends it."""

    # 1 never lengthens the delay; above 10 the second error reaches the longest delay anyway.
    delay_factor: Annotated[int, WholeNumber(1, 10)] = 2
    """By how much each further error or empty answer in a row lengthens the delay."""

    empty_delay_min_ms: Annotated[int, WholeNumber(1, 1 * MINUTE)] = 5
    """Delay that an empty answer adds that the source did not hold back; at most `empty_delay_max`."""

    empty_delay_max_ms: Annotated[int, WholeNumber(1, 1 * MINUTE)] = 250
    """Longest delay after empty answers. A suspended source is asked four times a second at most."""

    compression: Annotated[str, Choice("none", "zstd")] = "none"
    """Have sources compress what they send. For links that are narrower than the machines are fast."""

    rate_limit_bytes: Annotated[int, WholeNumber(0, 10 * GB)] = 0
    """Bytes a second that the node fetches in all; 0: no limit. `isthmus sink throttle` changes it live."""

    object_rate_limit_count: Annotated[int, WholeNumber(0, 10_000_000)] = 0
    """Changes a second that the node fetches in all; 0: no limit. `isthmus sink throttle` changes it live."""

    discover: bool = True
    """Fetch from every live node of a peer's cluster; `false`: only from those listed ([links](replication.md#links)).
    The second is for nodes behind a load balancer or NAT."""

    discovery_interval_ms: Annotated[int, WholeNumber(1 * SECOND, 1 * HOUR)] = 5_000
    """How often peers are asked which nodes live. A new node waits this long at most before it is fetched from."""

    conflicts_count: Annotated[int, WholeNumber(0, 100_000)] = 1_000
    """Newest changes kept that were concurrent with ours, for `isthmus sink conflicts`; what goes is counted. 0: none
    is kept. Each takes about 500 bytes."""

    dead_letters_count: Annotated[int, WholeNumber(1, 100_000)] = 1_000
    """Most dead letters kept: changes that were refused for good. A further one becomes a gap at its source."""

    dead_letters_bytes: Annotated[int, WholeNumber(0, 100 * GB)] = 256 * MB
    """Disk for their objects; beyond it the oldest objects go, and their names stay."""

    request_timeout_ms: Annotated[int, WholeNumber(100, 1 * HOUR)] = 30_000
    """How long a fetch may take beyond its `poll`."""


NO_SINK: Final = SinkSettings()
"""Without peers: the sink is idle."""


@dataclass(frozen=True, slots=True)
class RiakTreeSettings:
    """[[riak.trees]]: what a Riak's full-sync compares ([Riak's full-sync](http-between.md#riaks-full-sync)). The same
    in the files of all nodes."""

    # A Riak has 3 by default; more than a handful of copies are unheard of.
    n_val: Annotated[int, WholeNumber(1, 64)]
    """The `n_val` of these bucket types in the Riak, and that of its full-sync (`ttaaefs_localnval`)."""

    bucket_types: Annotated[str, BUCKET_TYPES]
    """Bucket types of this `n_val`, separated by commas; `"*"`: all. A Riak has a tree for each n_val, so those that it
    lacks do not belong here."""


@dataclass(frozen=True, slots=True)
class RiakPeerSettings:
    """[[riak.peers]]: a queue of a Riak cluster, 2.9.1 or later ([beside a Riak](riak.md))."""

    name: Annotated[str, NAME]
    """Its name for operators; unique in the file."""

    urls: Annotated[str, PEER_URLS]
    """Base URLs of the HTTP listeners of all of its nodes, separated by commas: each node of a Riak gives out the
    changes that it has coordinated itself."""

    queue: Annotated[str, NAME]
    """The queue's name there, from `replrtq_srcqueue`."""

    bucket_types: Annotated[str, BUCKET_TYPES] = ALL_TYPES
    """Bucket types that are taken, separated by commas; changes of others are dropped and counted. `"*"`: all, and a
    change of a type that this cluster lacks is a dead letter."""

    workers: Annotated[int, WholeNumber(0, SINK_WORKERS_MAX)] = 0
    """Workers of `[sink]` that may be busy with this queue at once; 0: no limit of its own. `isthmus sink set-workers
    --queue` changes it live."""

    rate_limit_bytes: Annotated[int, WholeNumber(0, 10 * GB)] = 0
    """Bytes a second that this node fetches from it; 0: no limit beside that of `[sink]`."""

    object_rate_limit_count: Annotated[int, WholeNumber(0, 10_000_000)] = 0
    """Changes a second that this node fetches from it; 0: no limit beside that of `[sink]`."""

    user: Annotated[str, USER] = ""
    """The name to send there by basic authentication. Empty: nothing is sent."""

    password_file: Path | None = None
    """A file with the password of `user`: its first line. It is read again when it changes."""

    authority: Path | None = None
    """Authorities for the certificates behind https:// URLs. Empty: those of the system."""


@dataclass(frozen=True, slots=True)
class RiakSettings:
    """[riak]: what this node does with Riak clusters: what it fetches from them, with the workers and limits of
    [sink], and what their full-syncs compare."""

    peers: tuple[RiakPeerSettings, ...] = ()

    trees: tuple[RiakTreeSettings, ...] = ()

    # Riak warns at 5 MB and refuses at 50 MB by default; siblings and a cluster with other limits make it larger.
    answer_bytes: Annotated[int, WholeNumber(1 * MB, 2 * GB)] = 256 * MB
    """Longest change that is taken. A longer one is lost, since the Riak has forgotten it: it is counted, and logged
    with its length."""

    # A queue of a Riak overflows at 100,000 and more references a node, by its settings (replrtq_overflow_limit), and
    # the clocks of as many keys come in one answer, some 200 bytes each.
    seed_slice_count: Annotated[int, WholeNumber(100, 1_000_000)] = 50_000
    """Most keys that a seed has the Riak put into its queues at once; a bucket with more is seeded in slices of
    last-modified times. Above what a node of the Riak holds in its queue, keys are lost there and sent again."""

    gather_ms: Annotated[int, WholeNumber(0, 1 * SECOND)] = 10
    """How long further changes are fetched before those that came are stored together. A Riak gives one a request."""


NO_RIAK: Final = RiakSettings()
"""Nothing is fetched from a Riak, and nothing is kept for one."""


@dataclass(frozen=True, slots=True)
class FullSyncSettings:
    """[[fullsync]]: one other cluster to compare with, and how often. Several nodes may have the same one: they share
    nothing, and their checks fall on different moments of a slot."""

    name: Annotated[str, NAME]
    """Its name for operators; unique in the file."""

    urls: Annotated[str, PEER_URLS]
    """Base URLs of the HTTP listeners of some of its nodes, separated by commas: when one fails, the next is asked."""

    queue: Annotated[str, NAME]
    """The queue of this cluster that repairs go into, at full-sync's priority; its filter selects what is compared."""

    cluster: Annotated[str, NAME_OR_NONE] = ""
    """The cluster that must answer there and that its certificates must name. Empty: as for [[sink.peers]]."""

    token_file: Path | None = None
    """A file with the token to send there: its first line that is a token."""

    bucket_types: Annotated[str, BUCKET_TYPES] = ALL_TYPES
    """Bucket types that are compared, separated by commas. `"*"`: all of this cluster that the queue's filter includes,
    also those made later; one that the other cluster lacks is skipped with a warning until it is made there."""

    # More than one check in six minutes is of no use; see `aae.scheduling.schedule`.
    all_count: Annotated[int, WholeNumber(0, 240)] = 0
    """Checks a day that look at everything. All counts 0: nothing is done by itself."""

    day_count: Annotated[int, WholeNumber(0, 240)] = 0
    """Checks a day of what changed in the last 24 hours."""

    hour_count: Annotated[int, WholeNumber(0, 240)] = 0
    """Checks a day of what changed in the last hour."""

    range_count: Annotated[int, WholeNumber(0, 240)] = 0
    """Checks a day of the learned range, or else of what changed since the last check that ended in sync."""

    auto_count: Annotated[int, WholeNumber(0, 240)] = 24
    """Checks a day that choose by what the last ones found. In sync they cost some hundredths of a second."""

    none_count: Annotated[int, WholeNumber(0, 240)] = 0
    """Slots a day in which nothing is done."""

    all_window: Annotated[str, HOURS] = "0-6"
    """Hours (UTC) in which `auto` may check everything: "FIRST-END", "always" or "never"."""

    cluster_slice: Annotated[int, WholeNumber(0, 4)] = 0
    """Which quarter of each slot the checks begin in, 1 to 4; 0: anywhere in it. Give another one to each of two
    clusters that compare with each other, and both as many checks a day, and their checks do not begin at the same
    time."""

    pause_ms: Annotated[int, WholeNumber(0, 1 * MINUTE)] = 1 * SECOND
    """Pause between two looks at what differs, half to one and a half of it: longer than the usual lag, or changes in
    transit are compared in vain."""

    timeout_ms: Annotated[int, WholeNumber(100, 1 * HOUR)] = 60 * SECOND
    """How long the other cluster may take for one answer."""

    run_timeout_ms: Annotated[int, WholeNumber(1 * SECOND, 24 * HOUR)] = 4 * HOUR
    """How long a check may take in all; then it ends as timed-out, with its progress."""

    repair_rate_limit_count: Annotated[int, WholeNumber(0, 10_000_000)] = 5_000
    """Repairs a second that a check queues, so that users' reads and writes keep their pace; 0: no limit."""

    segment_limit_count: Annotated[int, WholeNumber(0, 1 << 20)] = 0
    """Most differing segments of which a check compares the keys; the next check continues. It bounds the work of one
    check, which proves nothing if it leaves segments; 0: no limit."""

    auto_suppress_count: Annotated[int, WholeNumber(0, 240)] = 2
    """Checks of kind `auto` that are left out after one that found only what cannot be repaired from here."""

    compress: bool = False
    """Ask for answers compressed with zstd: hashes hardly shrink, keys and clocks to about a half; costs CPU there."""

    bidirectional: bool = False
    """Ask the other cluster to queue what is ahead there. Without it that is counted and left alone."""

    peer_queue: Annotated[str, NAME_OR_NONE] = ""
    """The other cluster's queue for that; needed with `bidirectional`."""

    repair_log: bool = False
    """Write every key that is queued for repair to the node's log."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """[node]: who this node is and where its data lies."""

    name: Annotated[str, NAME]
    """Unique in its cluster, and part of the identity of the data directory: the two cannot be mixed up later."""

    cluster: Annotated[str, NAME]
    """The cluster's name, the same on all its nodes."""

    data_dir: Path
    """Log, store and identity. A relative path begins at the config file's folder, wherever the node is started."""

    # Placement files of other systems have 32-bit numbers.
    id: Annotated[int, WholeNumber(0, 2**31 - 1)] = 0
    """The node's number, unique in its cluster; placement files name nodes by it. A node keeps it while it is down,
    until `isthmus node remove`."""

    rack: Annotated[str, NAME_OR_NONE] = ""
    """The rack or zone of the node. Replicas of a partition are spread over racks. Empty: none."""


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """[listen]: loopback by default, so that a new node is not open to the world."""

    http: Address = Address("127.0.0.1", 8098)  # noqa: RUF009 -- frozen
    """Clients, and the sinks of other clusters. 8098 is the port that Riak's HTTP clients expect."""

    admin: Address = Address("127.0.0.1", 8099)  # noqa: RUF009 -- frozen
    """Operators and metrics; must differ from `http`."""

    cluster: Address = Address("127.0.0.1", 0)  # noqa: RUF009 -- frozen
    """The other nodes of the cluster. They learn the port from the metastore; give one if a firewall must allow
    it."""

    advertise: Annotated[str, HOST] = ""
    """Host under which others reach this node's listeners. Empty: the host of each listener, or, where that is every
    address (`0.0.0.0`, `::`), this machine's name, which the others must be able to resolve."""

    # Below 1 no client connects; above 100,000 the usual limit of open files is exceeded.
    connections_limit: Annotated[int, WholeNumber(1, 100_000)] = 4096
    """Open connections per listener; one more is answered 503. Each costs about 30 KB. Where the limit of open files
    leaves no room for so many, fewer are accepted, and `isthmus status` says so."""

    # Below 1 no dashboard is live; each stream costs a write of some 10 KB each 2 s.
    live_streams_limit: Annotated[int, WholeNumber(1, 1_000)] = 64
    """Open streams of `/admin/live`, one for each page of a dashboard; one more is answered 503."""

    # From what clients' ordinary headers need to what a connection may cost in memory.
    header_limit_bytes: Annotated[int, WholeNumber(4 * KB, 1 * MB)] = 64 * KB
    """Request line and headers together; above it the request is answered 431 and the connection closed."""

    request_timeout_ms: Annotated[int, WholeNumber(100, 1 * HOUR)] = 60_000
    """How long a write may wait for its outcome; then 504, `outcome=unknown`."""

    body_timeout_ms: Annotated[int, WholeNumber(100, 1 * HOUR)] = 30_000
    """How long the body of a request may take to arrive; then 408 and the connection is closed."""


@dataclass(frozen=True, slots=True)
class MetastoreSettings:
    """[metastore]: ZooKeeper. Without `hosts` an embedded one is started and owned by a supervisor."""

    hosts: Annotated[str, HOSTS] = ""
    """The ensemble, `"zk1:2181,zk2:2181,zk3:2181"`. Empty: an embedded one, for a cluster of one node."""

    root: Annotated[str, METASTORE_PATH] = "/isthmus"
    """Everything of a cluster lies below ROOT/CLUSTER, so clusters may share an ensemble."""

    # ZooKeeper grants at least two of its ticks; over a minute a dead node would block its partitions too long.
    session_timeout_ms: Annotated[int, WholeNumber(1 * SECOND, 1 * MINUTE)] = 6_000
    """How long a silent node keeps its registration. Under 4 s a busy machine loses sessions without a fault."""

    connect_timeout_ms: Annotated[int, WholeNumber(100, 1 * HOUR)] = 20_000
    """How long a start waits for the metastore before it gives up."""

    embedded_port: Annotated[int, WholeNumber(0, PORT_MAX)] = 0
    """Port of the embedded one, on loopback. 0: any free one, kept in the data directory."""

    linger_ms: Annotated[int, WholeNumber(0, 24 * HOUR)] = 600_000
    """How long the embedded one outlives a node that was killed, so that the node finds it again."""


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """[replication]: log, store and the write path. (Dynamic options are not here.)"""

    durability: Annotated[str, Choice("fsync", "async")] = "fsync"
    """With `fsync`, what is acknowledged is on disk. With `async` it is in the page cache, and after a power loss this
    copy is not trusted any more: where it is the only one, its partitions stay offline."""

    # 0 is the default; more than seven replicas have no known use.
    factor: Annotated[int, WholeNumber(0, 7), Effect.CREATION] = 0
    """Replicas of each partition of the bucket type `default`. 0: 3 where `metastore.hosts` is set, 1 with the embedded
    metastore, which is for one node and has no more."""

    min_isr: Annotated[int, WholeNumber(0, 7), Effect.CREATION] = 0
    """Replicas that must hold a write before it is acknowledged, clamped to 1 .. factor: the first value of the
    [option](#dynamic-options) `replication.min.isr`. 0: one less than the factor, at least 1."""

    placement: Annotated[str, Choice("computed", "file"), Effect.CREATION] = "computed"
    """How `default` is placed. `file`: the cluster waits for `isthmus partition assign`."""

    ignore_rack_assignment: Annotated[bool, Effect.CREATION] = False
    """Place without regard to racks; without it, racks on some nodes only are refused."""

    max_time_lag_ms: Annotated[int, WholeNumber(100, 1 * HOUR)] = 3_000
    """How long an ISR member may take to acknowledge an entry before it leaves the ISR. Below the session's time-out,
    so that a node that hangs leaves before it is declared dead."""

    max_record_lag_count: Annotated[int, WholeNumber(10, 1_000_000, ENTRIES)] = 10_000
    """How many entries an ISR member's applied state may be behind before it leaves the ISR. The ISR never shrinks
    below min-ISR for this reason."""

    max_near_sync_message_lag_count: Annotated[int, WholeNumber(10, 10_000_000, ENTRIES)] = 20_000
    """How many entries a follower may be behind and still catch up from the log (near horizon). At least the node's
    `replication.window_entries`."""

    catch_up_rate_limit_bytes: Annotated[int, WholeNumber(64 * KB, 10 * GB)] = 100 * MB
    """Most bytes a second that each node sends to followers out of sync, all of them together. It keeps them from
    starving the others."""

    read_isolation: Annotated[str, Choice("committed", "uncommitted")] = "committed"
    """Isolation of a read that does not name one (`isolation`). `committed` is linearizable, `uncommitted` shows writes
    that may yet be undone. A batch is read `uncommitted` only if all of its bucket types have this default."""

    dedup_window_count: Annotated[int, WholeNumber(1, 1_000_000)] = 10_000
    """How many of a partition's last log offsets are searched for a request id that was seen before."""

    handover_timeout_ms: Annotated[int, WholeNumber(100, 1 * HOUR)] = 5_000
    """How long a leader may drain before a hand-over is given up and it continues to lead."""

    # Below a second a record that is corrected at once would cost a replica; above a month disk space is wasted. The
    # length of the default is a guess.
    removed_copy_grace_ms: Annotated[int, WholeNumber(1 * SECOND, 720 * HOUR)] = 600_000
    """How long a node keeps its copy of a partition after it is no longer a replica of it. A record that names it again
    within that time finds the copy as it was, so that an operator can revert a move without copying everything
    again."""

    tree_rebuild_ms: Annotated[int, WholeNumber(0, 8760 * HOUR)] = 604_800_000
    """How often each full-sync tree is rebuilt from the key store and compared with the one that serves, as a check of
    the disk; rebuilds of partitions are spread. 0: only on demand."""

    balance: bool = True
    """Move leaderships without an operator, as `balance_by` has it. `false`: only `isthmus leader balance` does, and
    spreads them over all nodes."""

    balance_by: Annotated[str, Choice("load", "count")] = "load"
    """Where leaders stand. `load`: on as few nodes as carry the load, since fewer and larger groups of writes cost less
    CPU, and on more as it grows; `count`: always evenly on all nodes."""

    # The length is a guess.
    balance_delay_ms: Annotated[int, WholeNumber(0, 1 * HOUR)] = 3_000
    """How long leaderships must have been uneven, without nodes joining or leaving or elections, before they are moved,
    so that sinks and clients can reconnect to a node that has come back."""

    # From one at a time to the largest number of partitions, which is no limit.
    balance_moves: Annotated[int, WholeNumber(1, 1024)] = 4
    """Leaderships that are handed over at the same time; then a new plan is made. During a hand-over the partition's
    writes wait."""

    balance_cool_down_ms: Annotated[int, WholeNumber(0, 1 * HOUR)] = 10_000
    """How long a partition that got a new leader is not moved, and a hand-over that failed is not tried again. It
    bounds the cost of a node that comes and goes."""

    # Each partition costs a metastore record and rows of its own; with 1,024 both stay small.
    partitions: Annotated[int, WholeNumber(1, 1024), Effect.CREATION] = 12
    """Partitions of the bucket type `default`. 12 divides evenly by 2, 3, 4 and 6."""

    log_size_bytes: Annotated[int, WholeNumber(1 * MB, 1000 * GB)] = 1 * GB
    """Size of the node's log above which its oldest file is deleted, once the store has it durably, and a full log file
    makes a checkpoint due at once. The log may be larger by two files and what is written during a checkpoint; by as
    much again while a follower takes rows; and by more while entries are not applied (a partition without enough in
    sync, a store slower than the log)."""

    log_file_bytes: Annotated[int, WholeNumber(64 * KB, 4 * GB)] = 64 * MB
    """Size at which a log file is closed and the next begun; smaller than `log_size`."""

    log_batch_bytes: Annotated[int, WholeNumber(4 * KB, 256 * MB)] = 4 * MB
    """Largest group commit, which bounds how long one fsync takes; at most `log_file_size`."""

    # The upper end is the default of max_near_sync_message_lag; see broken_relations for why.
    window_entries: Annotated[int, WholeNumber(1, 20_000)] = 10_000
    """Writes of one partition that may be in progress at once; more are refused as overloaded. It bounds the memory of
    a stalled partition, and what a new leader has to apply before it serves."""

    window_bytes: Annotated[int, WholeNumber(64 * KB, 16 * GB)] = 64 * MB
    """The same in bytes for the whole node: bounds memory. At least `limits.object_size`."""

    write_buffer_bytes: Annotated[int, WholeNumber(64 * KB, 1 * GB)] = 64 * MB
    """LevelDB's write buffer; smaller ones write slower. 64 MB wrote three times as fast as 4 MB."""

    block_cache_bytes: Annotated[int, WholeNumber(64 * KB, 64 * GB)] = 32 * MB
    """LevelDB's cache of blocks."""

    checkpoint_interval_ms: Annotated[int, WholeNumber(100, 1 * HOUR)] = 30_000
    """How often the store is made durable, at the least (see `log_size`); bounds what is replayed after a power
    loss."""


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """[transport]: the connections between the nodes of one cluster."""

    ping_interval_ms: Annotated[int, WholeNumber(50, 1 * MINUTE)] = 1_000
    """How often the side that dialled checks that a silent connection still answers; below `dead_after`."""

    dead_after_ms: Annotated[int, WholeNumber(100, 10 * MINUTE)] = 4_000
    """A connection silent for this long is closed and dialled again."""

    dial_delay_max_ms: Annotated[int, WholeNumber(20, 1 * MINUTE)] = 2_000
    """Longest pause between two tries to connect. The first pause is a twentieth of it."""

    suspect_refused: bool = True
    """Whether a node counts as dead once its connection has broken and its address refuses connections; otherwise its
    session must time out first (`metastore.session_timeout`). `false` where something between the nodes, such as a
    proxy, refuses connections to nodes that live."""

    live_limit_bytes: Annotated[int, WholeNumber(1 * MB, 16 * GB)] = 64 * MB
    """Bytes that may wait for one node in the live lane; above it the connection is closed, and the node gets from the
    log what it missed."""

    catch_up_limit_bytes: Annotated[int, WholeNumber(64 * KB, 1 * GB)] = 8 * MB
    """Bytes that may wait for one node in the catch-up lane; the sender waits then."""

    catch_up_share_percent: Annotated[int, WholeNumber(1, 90)] = 20
    """Least share of a busy connection that the catch-up lane gets."""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """[limits]: sizes that a request may have; each has its status in docs/http.md."""

    object_bytes: Annotated[int, WholeNumber(1 * KB, 1 * GB)] = 50 * MB
    """Largest value of one object; above it 413. An object with all its siblings may take twice that and 1 MB, where it
    is written or merged, and so in every cluster with the same setting. 50 MB is Riak's limit."""

    object_warn_bytes: Annotated[int, WholeNumber(0, 1 * GB)] = 5 * MB
    """Larger values are taken, logged and counted; 0: none."""

    # 64 KB is the limit of Riak's clients; each key is stored three times.
    key_bytes: Annotated[int, WholeNumber(16, 64 * KB)] = 4096
    """Longest bucket or key after percent-decoding; above it 400. A key is stored in three rows."""

    siblings: Annotated[int, WholeNumber(1, 10_000)] = 100
    """Most siblings of one object: a write that would make more is refused with 422; what comes from another cluster is
    kept."""

    siblings_warn: Annotated[int, WholeNumber(0, 10_000)] = 25
    """Objects with more siblings are logged and counted; 0: none."""

    # The default is a guess.
    listings: Annotated[int, WholeNumber(1, 1_000)] = 8
    """Most listings that run at once on a node; one more is refused with 503. Each holds a snapshot of the store and
    reads every key row in its range."""

    # The default is a guess: each has one page read at a time, and each node reads one page at a time.
    folds: Annotated[int, WholeNumber(1, 100)] = 4
    """Most of [Riak's folds](http-between.md#riaks-folds) that run at once on a node; one more is refused with 503."""

    fold_keys_count: Annotated[int, WholeNumber(1, 1_000_000)] = 50_000
    """Most keys or buckets in the answer of one of Riak's folds; above it 413. They wait in memory until the fold is
    done, some 500 bytes each."""

    # Riak's own limit, and that of its client for Erlang.
    fold_timeout_ms: Annotated[int, WholeNumber(1 * SECOND, 24 * HOUR)] = 1 * HOUR
    """How long one of Riak's folds may take, unless its `timeout` is shorter; then 503, or 504 if it has changed
    something."""

    batch_items: Annotated[int, WholeNumber(1, 100_000)] = 10_000
    """Most items of one `/batch` request; above it 413."""

    batch_bytes: Annotated[int, WholeNumber(1 * KB, 1 * GB)] = 64 * MB
    """Largest body of a `/batch` request; above it 413."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """[[queues]]: one source queue."""

    name: Annotated[str, NAME]
    """Unique in the file."""

    filter: Annotated[str, FILTER] = "any"
    """Which changes the queue offers, in rules separated by commas: see
    [filters](replication.md#what-a-queue-offers)."""

    cascade: bool = False
    """Offer also what came from another cluster (never back to that one)."""

    object_size_limit_bytes: Annotated[int, WholeNumber(0, 1 * GB)] = 200 * KB
    """Larger objects are read when they are served."""

    object_limit_count: Annotated[int, WholeNumber(0, 10_000_000)] = 1_000
    """Whole objects in memory per queue; beyond it they are read from the store."""

    queue_limit_count: Annotated[int, WholeNumber(1, 10_000_000)] = 300_000
    """References in memory per queue and priority; beyond it `overflow` applies to changes, and producers of bulk
    references wait."""

    overflow: Annotated[str, Choice("replay", "discard")] = "replay"
    """`replay`: beyond the limit, changes wait in the store and nothing is lost. `discard`: they are dropped, counted,
    and kept as a gap until a full-sync closes it."""

    rate_limit_bytes: Annotated[int, WholeNumber(0, 10 * GB)] = 0
    """Payload bytes a second that this node gives out; 0: no limit. `isthmus queue throttle` changes it live."""

    object_rate_limit_count: Annotated[int, WholeNumber(0, 10_000_000)] = 0
    """Changes a second that this node gives out; 0: no limit."""

    lease_ms: Annotated[int, WholeNumber(100, 1 * HOUR)] = 30_000
    """How long a sink may take to acknowledge a batch before it is served again."""

    riak_fetch: bool = False
    """The queue is for a Riak alone, which takes each change at most once by `GET /queuename/NAME`
    ([HTTP](http-between.md#riaks-fetch)); sinks of Isthmus are refused."""


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """[source]: all source queues of this node together."""

    enabled: bool = True
    """Whether this node is a source. `false`: it creates no references and serves none, not even those that wait
    already (Riak's switch stops only the creation; here that is `isthmus queue suspend NAME --publishing`); changes of
    the partitions that it leads meanwhile become a gap of each queue."""


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """[reconcile]: what a node shows of jobs on Spark, which run elsewhere."""

    runs_dir: Path | None = None
    """Directory in which `isthmus reconcile` keeps its runs (`--dir`); the node only reads there, for
    the dashboard. A relative path begins at the config file's folder. Empty: none."""


@dataclass(frozen=True, slots=True)
class TracesSettings:
    """[traces]: OpenTelemetry traces of writes. They need the extra `traces`; without an endpoint nothing is traced."""

    endpoint: Annotated[str, COLLECTOR_URL] = ""
    """Where a collector takes OTLP over HTTP, usually port 4318 and path `/v1/traces`. Empty: no traces."""

    sample_per_million: Annotated[int, WholeNumber(0, 1_000_000)] = 1_000
    """How many of a million writes are traced that no client asks to trace. One trace has 6 spans or more, of some 400
    bytes each."""

    from_clients: bool = True
    """Continue the trace of a write whose header `traceparent` says that it is sampled, and trace no write whose header
    says that it is not. Off: the header is ignored."""

    headers_file: Path | None = None
    """Holds headers for the collector, such as `Authorization: Bearer ...`, one a line."""

    authority: Path | None = None
    """Authorities of the collector's certificate. Empty: those of Python's package certifi."""

    queue_count: Annotated[int, WholeNumber(512, 100_000)] = 4_096
    """Spans that may wait for the collector, some 2 KB of memory each; with more, spans are dropped and counted."""

    timeout_ms: Annotated[int, WholeNumber(100, 1 * MINUTE)] = 5_000
    """How long the collector may take for a batch of spans, repeated requests included."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """[log]: structured events."""

    level: Annotated[str, Choice("debug", "info", "warning", "error"), Effect.RELOAD] = "info"
    """The least that is written."""

    format: Annotated[str, Choice("auto", "json", "text")] = "auto"
    """`auto` is text on a terminal, else JSON, one object a line."""

    audit_size_bytes: Annotated[int, WholeNumber(64 * KB, 1 * GB), Effect.RELOAD] = 8 * MB
    """Size at which a file of the [audit log](what-happened.md#acts) is closed and the next one is begun: some 10,000
    acts. A page of acts far back reads the files after it, so files are small."""

    audit_files_count: Annotated[int, WholeNumber(2, 1_000), Effect.RELOAD] = 8
    """Files of the audit log that are kept, the newest; older ones are deleted. The log takes `audit_size` times
    `audit_files` of the disk at most."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one node."""

    node: NodeSettings
    listen: ListenSettings = ListenSettings()
    metastore: MetastoreSettings = MetastoreSettings()
    replication: ReplicationSettings = ReplicationSettings()
    transport: TransportSettings = TransportSettings()
    tls: TlsSettings = NO_TLS
    tokens: TokenSettings = NO_TOKENS
    limits: LimitSettings = LimitSettings()
    source: SourceSettings = SourceSettings()
    queues: tuple[QueueSettings, ...] = ()
    sink: SinkSettings = NO_SINK
    riak: RiakSettings = NO_RIAK
    fullsync: tuple[FullSyncSettings, ...] = ()
    reconcile: ReconcileSettings = ReconcileSettings()
    traces: TracesSettings = TracesSettings()
    log: LogSettings = LogSettings()
    origins: dict[str, str] = field(default_factory=dict, compare=False)
    """Key path -> "FILE:LINE" for every key that the file set; all others are defaults."""
