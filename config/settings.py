"""Typed settings of one node: frozen values, every default with its reason.

Parsed once, at the edge, by `config.loading`; nothing here reads a file. Units stand in the names;
texts such as "200KB" and "1s" exist in files only (`config.units`). `docs/config.md` lists the same
keys for operators.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from config.fullsync import FullSyncSettings
from config.security import NO_TLS, NO_TOKENS, TlsSettings, TokenSettings
from config.sinks import NO_SINK
from config.sinks import PeerSettings as PeerSettings
from config.sinks import SinkSettings as SinkSettings

KB = 1000
MB = 1000 * KB
GB = 1000 * MB


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """[node]: who this node is and where its data lies."""

    name: str
    """Unique in its cluster; part of the data directory's identity. Letters, digits, - _ . (1..64)."""

    cluster: str
    """The cluster's name, the same on all its nodes."""

    data_dir: Path
    """Log, store and identity. Relative paths are taken from the config file's folder."""

    id: int = 0
    """The node's number, unique in its cluster: placement files name nodes by it."""

    rack: str = ""
    """Where the node stands (a rack, a zone): replicas are spread over racks. Empty: none is named."""


@dataclass(frozen=True, slots=True)
class Address:
    """host:port; port 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """[listen]: loopback unless told otherwise, so that a new node is not open to the world."""

    http: Address = Address("127.0.0.1", 8098)
    """Clients and the sinks of other clusters. 8098 is the port that Riak's HTTP clients expect."""

    admin: Address = Address("127.0.0.1", 8099)
    """Operators and metrics."""

    cluster: Address = Address("127.0.0.1", 0)
    """The other nodes of the cluster. They learn the port from the metastore, so any free one will do unless a
    firewall wants to know it."""

    advertise: str = ""
    """Host under which others reach this node's listeners; empty: the host of each listener."""

    connections_limit: int = 4096
    """Open HTTP connections per listener; one more is answered 503. Each costs about 30 KB."""

    header_limit_bytes: int = 64 * KB
    """Request line and headers together; above it the request is answered 431 and closed."""

    request_timeout_ms: int = 60_000
    """How long a write may wait for its outcome before 504 `outcome=unknown`."""

    body_timeout_ms: int = 30_000
    """How long a request's body may take to arrive in full; then 408 and the connection is closed."""


@dataclass(frozen=True, slots=True)
class MetastoreSettings:
    """[metastore]: ZooKeeper. Without `hosts` an embedded one is started and owned by a supervisor."""

    hosts: str = ""
    """"zk1:2181,zk2:2181"; empty means embedded."""

    root: str = "/isthmus"
    """Everything of a cluster lies below ROOT/CLUSTER."""

    session_timeout_ms: int = 6_000
    """How long a silent node keeps its registration. Two cores under load want at least 4 s."""

    connect_timeout_ms: int = 20_000
    """How long a start waits for the metastore before it gives up in one line."""

    embedded_port: int = 0
    """Port of the embedded ZooKeeper on loopback; 0 means any free one, kept in the data directory."""

    linger_ms: int = 600_000
    """How long an embedded ZooKeeper outlives a node that was killed, so that the node finds it again."""


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """[replication]: log, store and the write path. (Dynamic options are not here.)"""

    durability: str = "fsync"
    """"fsync": acknowledged is on disk. "async": acknowledged is in the page cache; a power loss costs the
    gen: this copy is not believed any more (docs/protocol.md R-GEN)."""

    factor: int = 0
    """Replicas of each partition of the `default` bucket type when the cluster is created. 0: 3 where
    `metastore.hosts` names an ensemble, 1 with the embedded one, which is a single node's."""

    min_isr: int = 0
    """Replicas that must hold a write before it is acknowledged, clamped to 1 .. factor. 0: one less than the
    factor, at least 1."""

    placement: str = "computed"
    """How the `default` bucket type is placed: "computed", or "file": the cluster waits for an operator's."""

    ignore_rack_assignment: bool = False
    """Place without regard to racks. Without it, racks on some nodes only are refused."""

    max_time_lag_ms: int = 3_000
    """How long a member in sync may owe the acknowledgement of an entry before it is taken out of the ISR.
    Below the session's time-out, so that a node that hangs is out before it is declared dead."""

    max_record_lag_count: int = 10_000
    """How many records a member's applied state may be behind before it leaves the ISR, never below min-ISR."""

    max_near_sync_message_lag_count: int = 20_000
    """How many entries a follower may be behind and still catch up from the log."""

    catch_up_rate_limit_bytes: int = 100 * MB
    """Bytes a second that a node sends to followers out of sync, in all, so that they do not starve the others."""

    read_isolation: str = "committed"
    """What a read without `isolation` gets: "committed" (linearizable) or "uncommitted" (may be taken back)."""

    dedup_window_count: int = 10_000
    """How many of a partition's last log offsets are searched for a request id that was seen before."""

    handover_timeout_ms: int = 5_000
    """How long a leader may drain before a hand-over is given up and it leads on."""

    removed_copy_grace_ms: int = 600_000
    """How long a node keeps its copy of a partition after it has read that it is no replica of it any more, before it
    deletes it: time for an operator to take a move back without copying everything again. A guess."""

    tree_rebuild_ms: int = 604_800_000
    """How often each full-sync tree is built anew from the key store beside the one that serves, and compared with it;
    moments of partitions are spread. 0: only on demand. A week: a check of the disk that nobody notices."""

    balance: bool = True
    """Spread leaderships evenly by themselves; without it only `isthmus leader balance` does."""

    balance_delay_ms: int = 3_000
    """How long leaderships must have been uneven, with nobody coming, going or being elected, before they are moved: a
    node that has just come back is about to be followed by its sinks and clients. A guess."""

    balance_moves: int = 4
    """Leaderships that are handed over at the same time; then the plan is made anew. Each is a moment in which its
    partition's writes wait, so a few at a time."""

    balance_cool_down_ms: int = 10_000
    """A partition that got a new leader is not moved again for this long, and a hand-over that failed is not tried
    again: bounds what a node that comes and goes can cost."""

    partitions: int = 12
    """Partitions of the `default` bucket type when the cluster is created; 12 divides evenly by 2, 3, 4, 6."""

    log_size_bytes: int = 1 * GB
    """Size of the node's log above which its oldest file goes once the store has it durably, which a checkpoint sees
    to. Pins may cost as much again."""

    log_file_bytes: int = 64 * MB
    """Size at which a log file is closed and the next begun."""

    log_batch_bytes: int = 4 * MB
    """Largest group commit: bounds how long one fsync takes."""

    window_entries: int = 10_000
    """Appended but unapplied entries per partition before writes are refused as overloaded.
    Bounds the memory of a stalled partition, and what a new leader has to apply before it serves."""

    window_bytes: int = 64 * MB
    """The same in bytes, for the whole node: bounds the memory of unapplied entries."""

    write_buffer_bytes: int = 64 * MB
    """LevelDB's memtable; 64 MB wrote three times as fast as 4 MB."""

    block_cache_bytes: int = 32 * MB
    """LevelDB's cache of uncompressed blocks."""

    checkpoint_interval_ms: int = 30_000
    """How often the store's durable floor is moved, at the least; bounds replay after a power loss."""


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """[transport]: the connections between the nodes of one cluster."""

    ping_interval_ms: int = 1_000
    """How often the side that dialled checks that a silent connection still answers."""

    dead_after_ms: int = 4_000
    """A connection that was silent for this long is closed and dialled anew."""

    dial_delay_max_ms: int = 2_000
    """Longest pause between two tries to connect; the first is a twentieth of it."""

    live_limit_bytes: int = 64 * MB
    """Bytes that may wait for one node in the live lane. Above it the connection is closed: the node does not
    read, and what it missed it gets from the log."""

    catch_up_limit_bytes: int = 8 * MB
    """Bytes that may wait for one node in the catch-up lane; its sender waits then."""

    catch_up_share_percent: int = 20
    """Least share of a busy connection that the catch-up lane gets, so that it ends."""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """[limits]: sizes that a request may have; each has its status in docs/http.md."""

    object_bytes: int = 50 * MB
    """Largest value of one object, as in Riak; above it 413."""

    object_warn_bytes: int = 5 * MB
    """Larger values are taken, logged and counted, as in Riak; 0: none."""

    key_bytes: int = 4096
    """Longest bucket or key after percent-decoding; above it 400. Long keys bloat three rows each."""

    siblings: int = 100
    """Most siblings of one object; a write that would exceed it is refused with 422, a push is kept."""

    siblings_warn: int = 25
    """Objects with more siblings are logged and counted, as in Riak; 0: none."""

    listings: int = 8
    """Most listings that run at once on a node; one more is refused with 503. Each holds a snapshot of the store and
    reads every key row in its way. A guess: enough for people, too few to starve writers."""

    batch_items: int = 10_000
    """Most items of one /batch request; above it 413."""

    batch_bytes: int = 64 * MB
    """Largest /batch body; above it 413."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """[[queues]]: one source queue."""

    name: str
    """1..64 of letters, digits, - _ ."""

    filter: str = "any"
    """Which changes it offers: rules separated by commas, `!` before one that holds back (`queues.filters`)."""

    cascade: bool = False
    """Offer changes that came from another cluster, too (never back to it)."""

    object_size_limit_bytes: int = 200 * KB
    """Larger objects are held as references and read when they are served."""

    object_limit_count: int = 1_000
    """Whole objects held in memory per queue; beyond it references are read from the store."""

    queue_limit_count: int = 300_000
    """References held in memory per queue and priority; beyond it the window stops and refills from the store, and who
    offers more at a lower priority waits."""

    overflow: str = "replay"
    """What becomes of a change in real time when the queue is full: "replay", it waits in the store; "discard", it is
    given up, counted, and kept as a gap."""

    rate_limit_bytes: int = 0
    """Payload bytes a second that this node gives out; 0: no limit."""

    object_rate_limit_count: int = 0
    """Changes a second that this node gives out; 0: no limit."""

    lease_ms: int = 30_000
    """How long a sink may take to acknowledge a batch before it is served again."""

    riak_fetch: bool = False
    """The queue is for a Riak alone: GET /queuename/NAME hands its changes out at most once; no sink may fetch."""


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """[source]: all source queues of this node together."""

    enabled: bool = True
    """False: this node makes no reference and gives none out, whatever queues there are; what it leads meanwhile is a
    gap of each of them."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """[log]: structured events."""

    level: str = "info"
    """debug, info, warning or error."""

    format: str = "auto"
    """"json", "text", or "auto": text on a terminal, else json."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything one node is told."""

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
    fullsync: tuple[FullSyncSettings, ...] = ()
    log: LogSettings = LogSettings()
    origins: dict[str, str] = field(default_factory=dict, compare=False)
    """Key path -> "FILE:LINE" for every key that the file set; all others are defaults."""
