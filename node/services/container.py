"""The components of one node, built and wired to each other in one place.

Nothing here runs or decides: `node.daemon` opens the resources, builds `NodeServices` from them, starts and stops the
components. The HTTP APIs take `NodeServices`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from isthmus.aae.damaged_rows import DamagedRows
from isthmus.aae.folds.fold_rpc import FoldRouter
from isthmus.aae.folds.folds import Folds
from isthmus.aae.row_stream.plan import RowPlan
from isthmus.aae.row_stream.streams import RowStreams
from isthmus.aae.scheduling.last_comparison import ComparedDifferences
from isthmus.aae.service import FullSync, FullSyncCluster, FullSyncConfig, LocalRows
from isthmus.config.settings import Settings
from isthmus.node.http.durations import OBJECT, RequestDurations
from isthmus.node.http.listener import Listeners, published
from isthmus.node.observability.events import recent
from isthmus.node.observability.journal import Journal, NodeEvents
from isthmus.node.observability.traces import NodeTracer
from isthmus.node.security.credentials import NodeCredentials
from isthmus.node.services.clock_watch import ClockWatch
from isthmus.node.services.cluster_gaps import ClusterGaps
from isthmus.node.services.cluster_observer import NodeObserver
from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.cluster_routes import ClusterRoutes
from isthmus.node.services.dead_letter_query import DEAD_LETTERS, DeadLetterResponder
from isthmus.node.services.downtimes import Downtimes
from isthmus.node.services.explain_key import KeyExplainer
from isthmus.node.services.fullsync_ports import NodeLayout, NodePeerAccess, NodeReplacedClocks, NodeReplicas
from isthmus.node.services.fullsync_query import (
    FULLSYNC_ORDER,
    FULLSYNC_REFRESH,
    FULLSYNC_RESULTS,
    FULLSYNC_STATUS,
    FULLSYNC_SUSPEND,
    FullSyncOrderResponder,
    FullSyncRefreshResponder,
    FullSyncResultsResponder,
    FullSyncStatusResponder,
    FullSyncSuspendResponder,
)
from isthmus.node.services.fullsync_status import FullSyncStatus
from isthmus.node.services.history import History
from isthmus.node.services.history_query import NEWEST, PLACES, NewestResponder, PlacesResponder
from isthmus.node.services.history_sampler import DurationSource, HistorySampler, ProcessSource, node_sources
from isthmus.node.services.journal_query import AUDIT, EVENTS, AuditResponder, EventResponder
from isthmus.node.services.lag_metrics import LagMetrics
from isthmus.node.services.live_options import EffectiveOptions, LiveOptions
from isthmus.node.services.membership import ClusterMembership
from isthmus.node.services.node_query import NODE_HEALTH, NodeHealthResponder
from isthmus.node.services.properties import PropertyService
from isthmus.node.services.queue_coverage import QueueCoverage
from isthmus.node.services.queue_positions import ClusterQueuePositions
from isthmus.node.services.queue_query import QUEUES, QueueResponder
from isthmus.node.services.repairs import FoldActionsImpl, RepairQueue
from isthmus.node.services.replica_query import REPLICAS, ReplicaResponder
from isthmus.node.services.replication_facts import ReplicationFacts
from isthmus.node.services.run_query import RUN, RUNS, RunReader, RunResponder, RunsResponder
from isthmus.node.services.settings_query import SETTINGS, SettingsResponder
from isthmus.node.services.sink_query import SINK, SinkResponder
from isthmus.node.services.telemetry_query import TELEMETRY, TelemetryResponder
from isthmus.node.services.wiring import (
    RpcRegistry,
    balance_options_of,
    coordinator_settings_of,
    default_type_of,
    entry_limit_bytes,
    links_of,
    registration_template,
    write_limits_of,
)
from isthmus.node.services.write_traces import LeaderWatch, WriteTraces
from isthmus.queues.admin import QueueActs
from isthmus.queues.queue_table import QueueTable
from isthmus.queues.service import QueuePorts, QueueService
from isthmus.queues.tombstone_barrier import TombstoneBarrier
from isthmus.repl.clock import SystemTime
from isthmus.repl.controller.bucket_properties import PropertyCache
from isthmus.repl.controller.controller import Controller, OwnNode
from isthmus.repl.controller.inbox import ControllerInbox, PeerWatch, WakeUp
from isthmus.repl.controller.leader_balance_api import LeaderBalanceApi
from isthmus.repl.controller.leader_balancer import LeaderBalancer
from isthmus.repl.controller.promotions import Promotions
from isthmus.repl.controller.suspicion import Suspicions
from isthmus.repl.coordinator.coordinator import Coordinator
from isthmus.repl.coordinator.tombstone_reaper import Reaper
from isthmus.repl.coordinator.tombstone_recall import TombstoneRecall
from isthmus.repl.coordinator.tombstone_writes import TombstoneWrites
from isthmus.repl.machine import machine
from isthmus.repl.metastore.port import Metastore, SessionState
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.replog.log import FileLog
from isthmus.repl.runtime.actor_renewal import ClusterWitness
from isthmus.repl.runtime.handover import LeadershipTransfer
from isthmus.repl.runtime.metastore_copy import CopyKeeper
from isthmus.repl.runtime.node_data import NodeData, RuntimeSettings
from isthmus.repl.runtime.registration import Registrar
from isthmus.repl.runtime.runtime import Runtime, RuntimeListeners
from isthmus.repl.storage.identity import NodeIdentity
from isthmus.repl.store.leveldb import LevelStore
from isthmus.repl.telemetry import Sample
from isthmus.repl.traces import ChangeTraces
from isthmus.sink.conflicts import FILE_NAME as CONFLICTS_FILE_NAME
from isthmus.sink.conflicts import Conflicts
from isthmus.sink.counter_exchange import CounterExchange
from isthmus.sink.dead_letters import FILE_NAME, DeadLetters
from isthmus.sink.service import Sink, SinkPorts
from isthmus.sink.traces import SinkTraces

READ_THREADS: Final = 2
"""Threads for listings, backlog reads and counts. They share the machine with the loop."""


class MetastoreSession:
    """The state of this node's metastore session, as the last session event reported it."""

    def __init__(self) -> None:
        self.state = SessionState.SUSPENDED

    def samples(self) -> Iterator[Sample]:
        """For Prometheus."""
        yield "isthmus_metastore_connected", {}, self.state is SessionState.CONNECTED


@dataclass(frozen=True)
class NodeResources:
    """Everything that a node has opened, bound or locked before its services can be built."""

    credentials: NodeCredentials
    listeners: Listeners
    http_url: str
    admin_url: str
    cluster_socket: socket.socket
    identity: NodeIdentity
    metastore: Metastore
    session: MetastoreSession
    cluster_uuid: bytes
    store: LevelStore
    replog: FileLog
    started_ms: int
    tracer: NodeTracer | None = None
    """None: traces are off."""


class NodeTraces(NamedTuple):
    """The components that take part in traces."""

    tracer: NodeTracer
    changes: ChangeTraces
    watch: LeaderWatch
    writes: WriteTraces
    sink: SinkTraces

    def samples(self) -> Iterator[Sample]:
        """For Prometheus."""
        for each in (self.tracer, self.changes, self.writes):
            yield from each.samples()


class NodeServices:
    """The components of one node. Building them starts nothing; `on_fatal` ends the process."""

    def __init__(
        self, settings: Settings, resources: NodeResources, time: SystemTime, on_fatal: Callable[[Exception], None]
    ) -> None:
        self.settings = settings
        self.time = time
        self.downtimes = Downtimes()
        self.started_ms = resources.started_ms
        self.cluster_uuid = resources.cluster_uuid
        self.http_url, self.admin_url = resources.http_url, resources.admin_url
        self.credentials = resources.credentials
        limits = settings.log.audit_size_bytes, settings.log.audit_files_count
        events = NodeEvents(settings.node.name, recent, resources.credentials.secrets)
        self.journal = Journal(settings.node.data_dir, *limits, events)
        self.store = resources.store
        self.replog = resources.replog
        self.options = EffectiveOptions(settings)
        self.read_pool = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="read")
        self._session = resources.session
        metastore, identity = resources.metastore, resources.identity
        name = settings.node.name
        this = self.this = ThisNode(name, settings.node.cluster, self.cluster_uuid)
        address = published(resources.cluster_socket, settings.listen.cluster, settings.listen.advertise)
        damaged = DamagedRows()
        rpc = RpcRegistry()
        wake_up = WakeUp()
        suspicions = Suspicions(name) if settings.transport.suspect_refused else None
        peers = PeerWatch(name, self.time, wake_up, suspicions)
        self.links = links_of(
            settings,
            this,
            observer=peers,
            on_request=rpc.answer,
            direct=rpc.direct,
            tls=self.credentials.links,
        )
        inbox = ControllerInbox(wake_up, peers, Promotions(node=name, links=self.links, on_received=wake_up.decide))
        self.registrar = Registrar(
            metastore,
            identity,
            registration_template(
                settings,
                http_url=resources.http_url,
                admin_url=resources.admin_url,
                cluster_address=str(address),
            ),
            self.links,
        )
        self.runtime = Runtime(
            RuntimeSettings(
                node=name,
                cluster_uuid=self.cluster_uuid,
                window_bytes=settings.replication.window_bytes,
                entry_limit_bytes=entry_limit_bytes(settings),
                checkpoint_interval_ms=settings.replication.checkpoint_interval_ms,
                removed_grace_ms=settings.replication.removed_copy_grace_ms,
                options_of=self.options.core,
            ),
            NodeData(identity, self.store, self.replog),
            RuntimeListeners(record_watcher=inbox, damage_listener=damaged, on_fatal=on_fatal),
            metastore=metastore,
            registrar=self.registrar,
            links=self.links,
            time=self.time,
        )
        self.property_cache = PropertyCache(metastore)
        self.metastore_copy = CopyKeeper(metastore, settings.node.data_dir, self.cluster_uuid, self.time)
        self.witness = ClusterWitness(self.runtime, metastore, self.time, self.read_pool)
        queue_table = QueueTable(metastore, settings.queues)
        self.coordinator = Coordinator(
            self.runtime,
            coordinator_settings_of(settings),
            links=self.links,
            read_pool=self.read_pool,
            properties=self.property_cache,
            unreplicated=queue_table.is_unreplicated,
            on_ahead=self.witness.renewal.pushed,
        )
        self.client_routes = ClusterRoutes(settings, self.cluster_uuid)
        handing_over = LeadershipTransfer(self.runtime)
        balancer = LeaderBalancer(
            node=name, links=self.links, own=handing_over, options=balance_options_of(settings), wake=inbox.wake
        )
        self.controller = Controller(
            metastore,
            OwnNode(name, self.links, self.runtime, self.registrar),
            inbox,
            time=self.time,
            default_type=default_type_of(settings),
            observer=NodeObserver(
                self.runtime,
                self.coordinator,
                self.registrar,
                options=LiveOptions(self.options, self.runtime, self.coordinator, self.links.cap),
                routes=self.client_routes,
                downtimes=self.downtimes,
                time=self.time,
            ),
            balancer=balancer,
        )
        self.membership = ClusterMembership(self.controller, settings, self.cluster_uuid)
        self.query = ClusterQuery(name, self.links)
        self.properties = PropertyService(
            self.property_cache,
            metastore,
            self.time,
            partitions=self.controller,
            key_limit_bytes=settings.limits.key_bytes,
        )
        self.leader_balance = LeaderBalanceApi(self.controller, self.runtime, balancer, handing_over)
        facts = ReplicationFacts(
            self.runtime,
            self.controller,
            self.property_cache,
            self.coordinator.routes,
            self.membership,
            self.registrar,
        )
        self.traces = None if resources.tracer is None else self._build_traces(resources.tracer)
        self.queues = QueueService(
            queue_table,
            this,
            QueuePorts(
                store=self.store,
                changes=self.runtime.listeners,
                cursors=self.coordinator,
                kv=self.coordinator,
                metastore=metastore,
                cluster=facts,
                damage_listener=damaged,
                time=self.time,
                read_pool=self.read_pool,
            ),
            traces=None if self.traces is None else self.traces.changes,
            enabled=settings.source.enabled,
        )
        self.queue_acts = QueueActs(self.queues, self.store, self.read_pool, self.witness)
        self.queue_coverage = QueueCoverage(self.queues, self.controller)
        tombstones = TombstoneWrites(self.runtime, write_limits_of(settings), self.property_cache)
        self.recall = TombstoneRecall(
            self.runtime,
            tombstones,
            links=self.links,
            routes=self.coordinator.routes,
            request_timeout_ms=settings.listen.request_timeout_ms,
        )
        self.queue_positions = ClusterQueuePositions(
            self.query, self.membership, self.controller, self.queues, self.cluster_uuid
        )
        self.repairs = RepairQueue(self.queues, self.recall, self.time)
        self.clocks = ClockWatch(
            self.links,
            lambda: self.membership.live_nodes() - {name},
            self.time,
            self.credentials.certificate_expires_ms,
        )
        self.gaps = ClusterGaps(
            self.query,
            self.queue_coverage,
            self.membership,
            self.controller,
            self.queues,
            self.repairs,
            self.time,
        )
        self.replicas = NodeReplicas(self.runtime, self.store)
        self.fullsync = self._build_fullsync(metastore, damaged)
        self.reaper = Reaper(
            self.runtime,
            tombstones,
            links=self.links,
            routes=self.coordinator.routes,
            read_pool=self.read_pool,
            barrier=TombstoneBarrier(self.queues, self.store, self.coordinator),
            differences=ComparedDifferences(self.fullsync.scheduler),
            request_timeout_ms=settings.listen.request_timeout_ms,
        )
        letters_limits = settings.sink.dead_letters_count, settings.sink.dead_letters_bytes
        self.sink = Sink(
            settings.sink,
            this,
            SinkPorts(
                kv=self.coordinator,
                metastore=metastore,
                letters=DeadLetters(settings.node.data_dir / FILE_NAME, *letters_limits),
                conflicts=Conflicts(settings.node.data_dir / CONFLICTS_FILE_NAME, settings.sink.conflicts_count),
                credentials=self.credentials,
                cluster=facts,
                time=self.time,
                clocks=self.clocks.peers,
            ),
            traces=None if self.traces is None else self.traces.sink,
            counters=CounterExchange(
                self.witness.held_counters,
                self.witness.learn,
                (self.cluster_uuid, settings.node.cluster),
                self.time,
            ),
            riak=settings.riak,
        )
        self.fullsync_status = FullSyncStatus(
            self.fullsync, self.queue_coverage, name, self.time, self.sink.source_filters
        )
        self.folding = self._build_folding(damaged)
        self.row_streams = RowStreams(self.store, this, self.replicas)
        self.row_plan = RowPlan(
            self.row_streams,
            node=name,
            replicas=self.replicas,
            layout=NodeLayout(self.controller, self.membership),
            rpc=self.links,
        )
        self.key_explainer = KeyExplainer(
            runtime=self.runtime,
            routes=self.coordinator.routes,
            acts=self.queue_acts,
            reaper=self.reaper,
            pool=self.read_pool,
            fullsync=self.fullsync_status,
            sink=self.sink,
        )
        self.lag_metrics = LagMetrics(name, self.queue_acts, lambda: self.controller.records, self.sink.fetched_lags)
        self.history = History()
        process = ProcessSource(settings.node.data_dir, self.store, self.replog, self.time, self.read_pool)
        self.client_durations = RequestDurations()
        sources = (
            *node_sources(self.runtime, process, self.queues, self.sink.metrics, self.coordinator.metrics),
            DurationSource(self.client_durations, OBJECT),
        )
        self.history_sampler = HistorySampler(name, self.history, sources, self.time)
        self._serve_queries()
        for component in (
            self.coordinator,
            self.controller,
            self.leader_balance,
            self.reaper,
            self.recall,
            self.fullsync,
            self.folding,
            self.row_plan,
            self.clocks,
        ):
            rpc.add(component.request_handlers())
        self._rpc = rpc
        rpc.add_direct(self.coordinator.direct_handlers())
        if self.traces is not None:
            rpc.add(self.traces.watch.request_handlers())

    def answer_queries(self) -> None:
        """Answer the queries of other nodes, all that are served by now; those that need the APIs come last."""
        self._rpc.add(self.query.request_handlers())

    @property
    def session(self) -> SessionState:
        """The state of this node's metastore session."""
        return self._session.state

    def _undialled(self) -> dict[str, str]:
        """Registered nodes that this one cannot dial, with their addresses."""
        registrations = self.controller.registrations
        names = sorted(self.controller.unreached() & registrations.keys() - {self.settings.node.name})
        return {name: registrations[name].cluster_address for name in names}

    def _serve_queries(self) -> None:
        self.query.serve(REPLICAS, ReplicaResponder(self.runtime))
        self.query.serve(TELEMETRY, TelemetryResponder(self.runtime))
        self.query.serve(AUDIT, AuditResponder(self.settings.node.name, self.journal, self.time))
        secrets = self.credentials.secrets
        self.query.serve(
            EVENTS, EventResponder(self.settings.node.name, self.journal, self.fullsync_status, self.time, secrets)
        )
        self.query.serve(PLACES, PlacesResponder(self.history))
        self.query.serve(NEWEST, NewestResponder(self.history, self.time))
        self.query.serve(
            NODE_HEALTH,
            NodeHealthResponder(
                self.credentials,
                self.history,
                self.started_ms,
                self.settings.listen.connections_limit,
                lambda: self.replog.stats().free_inodes,
                self._undialled,
                lambda: self.witness.renewal.renewals,
                self.time,
                self.clocks,
            ),
        )
        self.query.serve(SETTINGS, SettingsResponder(self.options, self.properties))
        self.query.serve(SINK, SinkResponder(self.sink, self.settings.node.name))
        self.query.serve(DEAD_LETTERS, DeadLetterResponder(self.sink))
        self.query.serve(FULLSYNC_STATUS, FullSyncStatusResponder(self.fullsync_status))
        self.query.serve(FULLSYNC_RESULTS, FullSyncResultsResponder(self.fullsync_status))
        self.query.serve(FULLSYNC_ORDER, FullSyncOrderResponder(self.fullsync.scheduler, self.time))
        self.query.serve(FULLSYNC_REFRESH, FullSyncRefreshResponder(self.fullsync))
        self.query.serve(FULLSYNC_SUSPEND, FullSyncSuspendResponder(self.fullsync))
        runs = RunReader(self.settings.reconcile.runs_dir, self.time)
        self.query.serve(RUNS, RunsResponder(runs))
        self.query.serve(RUN, RunResponder(runs))
        self.query.serve(
            QUEUES,
            QueueResponder(
                self.queues, self.queue_acts, self.key_explainer, self.fullsync_status, self.replicas.history
            ),
        )

    def _build_fullsync(self, metastore: Metastore, damaged: DamagedRows) -> FullSync:
        settings = self.settings
        config = FullSyncConfig(
            settings.node.name,
            self.cluster_uuid,
            settings.node.data_dir,
            settings.fullsync,
            settings.replication.tree_rebuild_ms,
            settings.riak.trees,
        )
        local = LocalRows(
            store=self.store,
            replicas=self.replicas,
            replaced=NodeReplacedClocks(self.runtime),
            changes=self.runtime.listeners,
            damaged=damaged,
            read_pool=self.read_pool,
        )
        cluster = FullSyncCluster(
            members=self.membership,
            known_types=self.coordinator.routes.known_types,
            queue_types=self.queue_coverage,
            rpc=self.links,
            repairs=self.repairs,
            gaps=self.gaps,
            access=NodePeerAccess(settings, self.credentials),
            clocks=self.clocks,
        )
        return FullSync(config, local, cluster, metastore=metastore, time=self.time)

    def _build_traces(self, tracer: NodeTracer) -> NodeTraces:
        partitions = self.runtime.partitions

        def type_of(partition: int) -> bytes | None:
            return None if partition not in partitions else partitions[partition].bucket_type

        changes = ChangeTraces(tracer, type_of, self.runtime.listeners, self.time)
        watch = LeaderWatch(self.settings.node.name, changes, self.coordinator.routes, self.links)
        writes = WriteTraces(self.settings.traces, tracer, watch, machine().random())
        return NodeTraces(tracer, changes, watch, writes, SinkTraces(tracer, watch))

    def _build_folding(self, damaged: DamagedRows) -> FoldRouter:
        actions = FoldActionsImpl(self.repairs, self.reaper, self.coordinator, self.fullsync.row_repair)
        folds = Folds(
            self.store, replicas=self.replicas, actions=actions, damage_listener=damaged, read_pool=self.read_pool
        )
        return FoldRouter(folds, node=self.settings.node.name, leaders=self.coordinator.routes, rpc=self.links)
