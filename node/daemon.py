"""The daemon: from settings to a serving node and back.

A start, in order:

    data directory  -> locked, and checked to be this node's
    listeners       -> bound, the cluster's too, so that a port in use is reported before anything is started
    metastore       -> an ensemble, or the embedded one that a supervisor owns
    store, log      -> opened and recovered
    log identities  -> verified: which replicas of this directory are complete (docs/protocol.md R-GEN)
    runtime, links, coordinator, source, sink, full-sync, controller
    registration    -> the metastore session shows the cluster that this process is alive
    HTTP APIs       -> the client API for programs and sinks, the admin API for operators

The controllers decide which partitions exist; replicas that they assign to this node are created while it runs. A stop
goes the other way: no new requests, sink and source stopped, leaders handed over, everything written and closed. A
failure of log or store ends the process at once with code 70 (H34).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import platform
import signal
import sys
import uuid
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, NoReturn

import structlog
import uvloop

from isthmus.aae import fullsync_metrics
from isthmus.aae.riak_trees import local as riak_trees
from isthmus.aae.row_stream import streams
from isthmus.aae.trees import tree_cache
from isthmus.config.loader import ConfigError, load_file
from isthmus.config.schema import reloaded
from isthmus.config.settings import Settings
from isthmus.config.text import quantity
from isthmus.node.admin_api import live
from isthmus.node.admin_api.application import AdminApi
from isthmus.node.client_api import application
from isthmus.node.client_api.application import ClientApi, ClientPorts
from isthmus.node.client_api.cluster_routes import add_cluster_routes
from isthmus.node.client_api.members import add_members
from isthmus.node.client_api.properties import PropertyRoutes
from isthmus.node.client_api.riak_folds import ClusterFoldsView
from isthmus.node.client_api.riak_info import RiakView
from isthmus.node.client_api.row_streams import RowRoutes
from isthmus.node.client_api.trees import TreeRoutes
from isthmus.node.dashboard.routes import Dashboard
from isthmus.node.http import authorization, durations, listener
from isthmus.node.http.application import AccessControl
from isthmus.node.http.audit import AuditTrail
from isthmus.node.http.listener import Listeners, bind
from isthmus.node.local import supervisor_client
from isthmus.node.observability import journal, logs, traces, version
from isthmus.node.observability.metrics import Metrics
from isthmus.node.observability.service_manager import ServiceManager
from isthmus.node.observability.traces import NodeTracer, check_traces, start_tracer
from isthmus.node.observability.version import program_version
from isthmus.node.security import credentials
from isthmus.node.security.credentials import NodeCredentials
from isthmus.node.services import finding_metrics, history_sampler, lag_metrics, write_traces
from isthmus.node.services.container import MetastoreSession, NodeResources, NodeServices
from isthmus.node.services.finding_metrics import FindingMetrics
from isthmus.node.services.readiness import replicas_not_ready
from isthmus.node.services.support_query import SUPPORT, SupportResponder
from isthmus.node.services.wiring import Outside
from isthmus.queues import status
from isthmus.repl import clock_offsets, telemetry, unforeseen
from isthmus.repl import traces as change_traces
from isthmus.repl.clock import SystemTime
from isthmus.repl.controller import suspicion
from isthmus.repl.machine import machine
from isthmus.repl.metastore.port import Ambiguous, Metastore, SessionState, Unavailable, VersionConflict
from isthmus.repl.model.errors import LocalFault, NotReady
from isthmus.repl.runtime import registration
from isthmus.repl.runtime.metastore_copy import UUID_PATH
from isthmus.repl.runtime.registration import verify_local_replicas
from isthmus.repl.security import tls_server
from isthmus.repl.shortage import (
    DESCRIPTORS,
    LEAST_LIMIT,
    WANTED_LIMIT,
    connections_that_fit,
    files_wanted,
    raise_file_limit,
    warnings_of,
)
from isthmus.repl.storage.identity import NodeIdentity
from isthmus.sink import status as sink_listing

SWITCH_INTERVAL_S: Final = 0.0005
"""How long one Python thread may delay others. The default of 5 ms is the p50 of a sync beside a busy loop; this brings
it under 1 ms."""

GC_THRESHOLDS: Final = (50_000, 20, 20)
"""Thresholds of the garbage collector. The hot path makes tuples by the thousand and no cycles: with Python's default
of 700 the collector took an eighth of the CPU time of a batch write, walking windows that reference counting was about
to free."""


def tune() -> None:
    """Set both for the whole process, exempt the objects that exist now from garbage collection, and be scheduled in
    batches."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _schedule_in_batches()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _schedule_in_batches() -> None:
    """Ask Linux for SCHED_BATCH, unless the process was started under a policy of somebody's choice: on a busy machine
    a message then no longer interrupts the process that sends it, so that more of them are handled at each turn. On an
    idle machine nothing changes. A system that refuses is left as it is."""
    if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def take_descriptors(settings: Settings) -> None:
    """Raise the limit of open files as far as both listeners need, and hold a reserve. Before LevelDB is opened, which
    looks at the limit once. Raises LocalFault for a limit with which no node can work."""
    limit = raise_file_limit(files_wanted(settings.listen.connections_limit))
    if limit.soft < LEAST_LIMIT:
        raise LocalFault(
            f"this process may open {limit.soft} files (hard limit {limit.hard}), a node needs {LEAST_LIMIT} at least, "
            f"{WANTED_LIMIT:,} are recommended: raise it by LimitNOFILE= of the systemd unit, or ulimit -n"
        )
    DESCRIPTORS.hold()
    log.info("node.open_files", limit=limit.soft, hard_limit=limit.hard, room=connections_that_fit(limit.soft))
    for warning in warnings_of(limit.soft, 0, settings.listen.connections_limit, None):
        log.warning("node.open_files_few", why=warning)


log = structlog.get_logger(__name__)

OUTSIDE: Final = Outside()
"""The real ones."""

EXIT_OK: Final = 0
EXIT_STORAGE: Final = 70
"""Log or store failed while running: an operator should look at the disk before the node is started again."""

STOP_TIMEOUT_S: Final = 20.0
"""How long each step of a graceful stop may take before the stop proceeds without it."""

READY_LOOK_S: Final = 0.2
"""How often a started node checks whether all its replicas serve, to log it."""


METRICS: Final = {
    **telemetry.HELP,
    **registration.HELP,
    **suspicion.HELP,
    **status.HELP,
    **sink_listing.HELP,
    **tree_cache.HELP,
    **riak_trees.HELP,
    **fullsync_metrics.HELP,
    **streams.HELP,
    **application.HELP,
    **durations.HELP,
    **version.HELP,
    **listener.HELP,
    **tls_server.HELP,
    **authorization.HELP,
    **credentials.HELP,
    **logs.HELP,
    **unforeseen.HELP,
    **journal.HELP,
    **history_sampler.HELP,
    **lag_metrics.HELP,
    **finding_metrics.HELP,
    **clock_offsets.HELP,
    **live.HELP,
    **change_traces.HELP,
    **write_traces.HELP,
    **traces.HELP,
}
"""Every metric of a node, by name."""


def run(settings: Settings, file: Path) -> int:
    """Run a node until it is asked to stop; returns the process's exit code. `file` is where the settings came from.
    Raises IsthmusError when the node cannot start: one line with the next step."""
    tune()
    logs.configure(settings.log, settings.node.name)
    log.info(
        "node.starting",
        version=program_version(),
        cluster=settings.node.cluster,
        file=str(file.absolute()),
        data_dir=str(settings.node.data_dir),
        python=platform.python_version(),
        pid=machine().pid(),
        platform=platform.platform(),
    )
    take_descriptors(settings)
    return uvloop.run(run_node(Node(settings, file, ServiceManager())))


async def run_node(node: Node) -> int:
    """One life of a node on the running loop; returns the process's exit code. Raises as `run` does."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, node.request_reload)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.request_stop, signal.Signals(number).name)
    try:
        await node.start()
    except StoppedEarly:
        await node.abandon()
        return EXIT_OK
    except (Unavailable, Ambiguous, VersionConflict) as error:
        await node.abandon()
        raise NotReady(f"the metastore was lost, or changed by others, while the node started: {error}") from error
    except BaseException:
        await node.abandon()
        raise
    return await node.serve()


class StoppedEarly(Exception):
    """A stop was requested while the node waited for its metastore, before anything was opened."""


class Node:
    """One node's life cycle: `start`, then `serve` until stopped. Implements `node.http.health.NodeStatus`."""

    metrics: Metrics
    client_api: ClientApi
    admin_api: AdminApi

    def __init__(self, settings: Settings, file: Path, manager: ServiceManager, outside: Outside = OUTSIDE) -> None:
        self.settings = settings
        self._outside = outside
        self._file = file
        self._manager = manager
        self._watchdog_task: asyncio.Task[None] | None = None
        self._level = settings.log.level
        self._time = SystemTime()
        self._started_ms = self._time.wall_ms()
        self._session = MetastoreSession()
        self._reload_task: asyncio.Task[None] | None = None
        self._reload_again = False
        """A reload was requested that has not begun yet."""
        self._ready_task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._stop_reason = ""
        self._fatal: Exception | None = None
        self._serving = False
        self._registers = False
        """Whether the node is kept registered: from the first registration until the stop."""
        self._identity: NodeIdentity | None = None
        self._metastore: Metastore | None = None
        self._services: NodeServices | None = None
        self._embedded = False
        self._tracer: NodeTracer | None = None

    @property
    def services(self) -> NodeServices:
        """The node's components; they exist once `start` has opened the metastore, the store and the log."""
        assert self._services is not None
        return self._services

    # -- coming up --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything in order. Raises IsthmusError in one line, StoppedEarly, and what the metastore raises when
        it is lost meanwhile."""
        settings = self.settings
        loop = asyncio.get_running_loop()
        self._credentials = NodeCredentials(settings)
        check_traces(settings.traces)
        identity = NodeIdentity.open(settings.node.data_dir)
        self._identity = identity
        identity.check_node(settings.node.name)
        self._listeners = Listeners(settings.listen, self._credentials.listeners)
        http_url, admin_url = self._listeners.bind()
        self._cluster_socket = bind("listen.cluster", settings.listen.cluster)
        metastore = await self._connect_metastore()
        if not identity.is_new:  # before a uuid is proposed, which would create another cluster in the metastore
            identity.check_metastore(settings.node.cluster, empty=await metastore.get(UUID_PATH) is None)
        cluster_uuid = await metastore.cluster_uuid(uuid.UUID(bytes=machine().random_bytes(16), version=4).bytes)
        identity.check_cluster(cluster_uuid, settings.node.cluster)
        boot = machine().boot_id()
        data_dir = settings.node.data_dir
        if identity.is_new:
            # Before log and store are created: data without an identity would be refused at the next start.
            identity.adopt(cluster_uuid, settings.node.name, boot, {})
        emptied = identity.emptied(data_dir / "log", data_dir / "store")
        if emptied:
            identity.note_doubt(emptied)  # opening creates them again, and then the loss could not be detected
        store = await loop.run_in_executor(None, self._outside.store, settings, cluster_uuid, boot)
        known_durable = {**dict.fromkeys(identity.partitions(), 0), **store.applied_offsets()}
        replog = await loop.run_in_executor(None, self._outside.log, settings, cluster_uuid, known_durable)
        records = await verify_local_replicas(
            metastore,
            identity,
            replog.recovered(),
            store,
            node=settings.node.name,
            cluster_uuid=cluster_uuid,
            boot_id=boot,
            durability=settings.replication.durability,
        )
        name, cluster = settings.node.name, settings.node.cluster
        self._tracer = start_tracer(settings.traces, self._credentials.trace_headers, node=name, cluster=cluster)
        resources = NodeResources(
            credentials=self._credentials,
            listeners=self._listeners,
            http_url=http_url,
            admin_url=admin_url,
            cluster_socket=self._cluster_socket,
            identity=identity,
            metastore=metastore,
            session=self._session,
            cluster_uuid=cluster_uuid,
            store=store,
            replog=replog,
            started_ms=self._started_ms,
            tracer=self._tracer,
        )
        services = NodeServices(settings, resources, self._time, self._on_fatal)
        self._services = services
        services.journal.start()
        self._build_apis()
        for record in sorted(records.values(), key=lambda r: r.partition):
            if identity.partition(record.partition) is not None:  # those to be removed, too: they may be assigned again
                services.runtime.attach(record)
        services.fullsync.start()
        services.runtime.start()
        await services.links.start(self._cluster_socket, services.runtime)
        self._credentials.start(services.clocks.certificates_expire_s)
        self._registers = True
        await services.registrar.register()
        services.registrar.start()
        services.controller.start()
        await services.property_cache.start()
        services.metastore_copy.start()
        services.witness.start()
        services.reaper.start()
        await services.queues.start()
        await services.sink.start()
        await services.fullsync.start_checks()
        services.clocks.start()
        services.history_sampler.start()
        await self._listeners.start(self.client_api, self.admin_api)
        self._serving = True
        log.info("node.up", http=http_url, admin=admin_url, cluster_uuid=cluster_uuid.hex())
        self._manager.ready(self._sentence())
        if self._manager.watchdog_interval_s:
            self._watchdog_task = loop.create_task(self._watchdog())
        self._ready_task = loop.create_task(self._log_when_ready(loop.time()))

    async def _connect_metastore(self) -> Metastore:
        settings = self.settings.metastore
        hosts = settings.hosts or await self._embedded_metastore()
        metastore = self._outside.metastore(self.settings, hosts, self._credentials.metastore)
        self._metastore = metastore
        await self._unless_stopped(metastore.start(self._on_session))
        return metastore

    async def _embedded_metastore(self) -> str:
        """The "host:port" of a running ZooKeeper that belongs to this node. Raises LocalFault, StoppedEarly."""
        settings, data_dir, pid = self.settings.metastore, self.settings.node.data_dir, machine().pid()
        try:
            hosts = await asyncio.get_running_loop().run_in_executor(
                None,
                lambda: supervisor_client.ensure_embedded(
                    data_dir, settings.embedded_port, settings.linger_ms, pid, lambda: not self._stop.is_set()
                ),
            )
        except LocalFault:
            if not self._stop.is_set():
                raise
            await self._stop_early()
        self._embedded = True
        return hosts

    async def _unless_stopped(self, step: Coroutine[Any, Any, None]) -> None:
        """Wait for `step`, and cancel it when a stop is requested meanwhile. Raises StoppedEarly then, or as `step`."""
        tasks = asyncio.create_task(step), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if tasks[0].cancelled():
            await self._stop_early()
        tasks[0].result()

    async def _stop_early(self) -> NoReturn:
        log.info("node.stopped_early", reason=self._stop_reason)
        self._cluster_socket.close()
        await self._listeners.stop(0)
        raise StoppedEarly

    def _build_apis(self) -> None:
        services, settings = self.services, self.settings
        guards, name = self._credentials.guards, settings.node.name
        self._audit = AuditTrail(name, services.journal, self._time, guards["admin"])
        client_audit = AuditTrail(name, services.journal, self._time, guards["http"])
        self.client_api = ClientApi(
            ClientPorts(
                kv=services.coordinator,
                queues=services.queues,
                acts=services.queue_acts,
                riak_info=RiakView(services),
                folds=ClusterFoldsView(services),
                riak_trees=services.fullsync.cluster_riak_trees,
                status=self,
                time=self._time,
                addresses=services.client_routes,
            ),
            settings.limits,
            certified_sinks=self._credentials.certified_sinks,
            traces=None if services.traces is None else services.traces.writes,
            access=AccessControl(guards["http"], client_audit),
            durations=services.client_durations,
        )
        add_members(self.client_api, services.membership)
        add_cluster_routes(self.client_api, services.client_routes)
        PropertyRoutes(services.properties, self.client_api)
        TreeRoutes(
            services.fullsync.cluster_trees,
            services.repairs,
            self.client_api,
            services.this,
            wall_ms=self._time.wall_ms,
        )
        RowRoutes(
            services.row_streams,
            services.row_plan,
            services.queue_positions,
            services.coordinator,
            settings.limits,
            self.client_api,
            services.this,
        )
        self.admin_api = AdminApi(services, self, AccessControl(guards["admin"], self._audit))
        self._findings = FindingMetrics(
            name, self.admin_api.findings.document, lambda: services.controller.registrations
        )
        Dashboard(self.admin_api, guards["admin"], settings.node.cluster, name)
        services.query.serve(SUPPORT, SupportResponder(settings, self._credentials, logs.lines, self.exposition))
        services.answer_queries()
        self.metrics = Metrics(
            [
                services.runtime.metrics,
                services.leader_balance.samples,
                services.controller.moving.samples,
                services.registrar.samples,
                services.witness.renewal.samples,
                services.controller.samples,
                self._session.samples,
                services.coordinator.metrics,
                services.links.metrics,
                services.queues.metrics,
                services.reaper.metrics,
                services.recall.metrics,
                services.sink.metrics,
                services.fullsync.metrics,
                services.row_streams.metrics,
                services.history_sampler.samples,
                services.lag_metrics.samples,
                self._findings.samples,
                services.clocks.samples,
                self.admin_api.live.samples,
                self._listeners.samples,
                self.client_api.samples,
                lambda: self.admin_api.durations.samples("admin"),
                version.samples,
                self._credentials.samples,
                logs.lines.samples,
                unforeseen.unforeseen.samples,
                services.journal.samples,
                *(() if services.traces is None else (services.traces.samples,)),
            ],
            METRICS,
        )

    # -- living ---------------------------------------------------------------------------------------

    def ready(self) -> tuple[bool, str]:
        """(True, "") when every assigned replica leads and serves, or follows; else (False, the reason)."""
        if self._stop.is_set():
            return False, "stopping"
        if not self._serving:
            return False, "starting"
        # A suspended session is no reason: leaders serve and followers follow without the metastore, and probes that
        # removed every node from the load balancer would stop the cluster.
        services = self.services
        if not services.registrar.session_id:
            return False, f"not registered in the metastore, this node takes no part: {services.registrar.why}"
        controller = services.controller
        name = self.settings.node.name
        why_not = replicas_not_ready(name, controller.records, services.runtime.partitions, controller.waiting)
        return not why_not, why_not

    async def exposition(self) -> bytes:
        """See NodeStatus."""
        await self._findings.measure()  # first: the other one makes do with the lags that this one has had read
        await self.services.lag_metrics.measure()
        return self.metrics.render()

    @property
    def stopping(self) -> bool:
        """See NodeStatus."""
        return self._stop.is_set()

    def _sentence(self) -> str:
        """One line for the service manager: whether the node is ready, or why not."""
        is_ready, why_not = self.ready()
        return f"node {self.settings.node.name} of cluster {self.settings.node.cluster}: " + (
            "ready" if is_ready else f"up, not ready: {why_not}"
        )

    async def _watchdog(self) -> None:
        """Tell the service manager, as often as it asks for, that the event loop turns, and the node's state."""
        while True:
            self._manager.alive()
            try:
                self._manager.status(self._sentence())
            except Exception as error:  # noqa: BLE001 -- the event loop turns; without these messages systemd ends the node
                log.warning("runtime.status_failed", error=repr(error))
            await asyncio.sleep(self._manager.watchdog_interval_s)

    async def _log_when_ready(self, began_s: float) -> None:
        """Log one line once all replicas of this node lead and serve, or follow."""
        while not self.ready()[0]:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READY_LOOK_S):
                    await self._stop.wait()
                    return
        served = [partition for partition in self.services.runtime.partitions.values() if not partition.removed]
        led = sum(partition.replica.ready for partition in served)
        seconds = round(asyncio.get_running_loop().time() - began_s, 1)
        sentence = f"ready: {quantity(len(served), 'partition')} served"
        log.info("node.ready", sentence=sentence, leads=led, seconds=seconds)
        self._manager.status(self._sentence())

    def request_reload(self) -> None:
        """Reload what may change while the node runs (SIGHUP): certificates, tokens, the log level. Requests during a
        reload are followed by one more, since it may have read a file before it was changed. Ignored while the node
        starts or stops."""
        if not self._serving:
            return
        self._reload_again = True
        if self._reload_task is None or self._reload_task.done():
            self._reload_task = asyncio.get_running_loop().create_task(self._reload())

    async def _reload(self) -> None:
        loop = asyncio.get_running_loop()
        while self._reload_again:
            self._reload_again = False
            self._manager.reloading()
            try:
                troubles = await self._reload_files(loop)
            finally:
                self._manager.ready(self._sentence())
            await self._audit.local("reload the node's files", "signal", "; ".join(troubles) or None)

    async def _reload_files(self, loop: asyncio.AbstractEventLoop) -> list[str]:
        """Reload; returns a sentence for each file that could not be read."""
        troubles = await loop.run_in_executor(None, self._credentials.reload)
        restart = False
        try:
            found = await loop.run_in_executor(None, load_file, self._file)
        except (ConfigError, LocalFault, OSError) as error:
            troubles.append(f"{self._file}: {error}")
        else:
            logs.set_level(found.log.level)
            self._level = found.log.level
            self.services.journal.limit(found.log.audit_size_bytes, found.log.audit_files_count)
            restart = found != reloaded(self.settings, found)
        report = log.warning if troubles else log.info
        report("node.reloaded", log_level=self._level, troubles=troubles, changed_settings_need_a_restart=restart)
        return troubles

    def request_stop(self, reason: str) -> None:
        """Begin a graceful stop; a second request changes nothing."""
        if not self._stop.is_set():
            self._stop_reason = reason
            self._stop.set()

    def _on_fatal(self, error: Exception) -> None:
        self._fatal = error
        self._stop.set()

    def _on_session(self, state: SessionState) -> None:
        self._session.state = state
        log.info("metastore.session", state=state.value)
        if state is SessionState.EXPIRED and self._registers:
            self.services.registrar.expired()
            self.services.runtime.session_expired()

    async def serve(self) -> int:
        """Run until asked to stop or until storage fails; returns the exit code."""
        await self._stop.wait()
        self._serving = self._registers = False
        services = self.services
        await services.registrar.stop()
        if self._fatal is not None:
            # After a failure of log or store the process's state cannot be trusted: no hand-over, no last writes.
            log.critical("node.failed", sentence=f"{self._fatal}; the node ends", exit_code=EXIT_STORAGE)
            await services.journal.stop()
            machine().exit(EXIT_STORAGE)
        log.info("node.stopping", reason=self._stop_reason)
        self._manager.stopping(self._stop_reason)
        for task in (self._ready_task, self._reload_task, self._watchdog_task):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self.client_api.stop()
        self.admin_api.stop()
        await services.history_sampler.stop()
        await services.clocks.stop()
        services.row_streams.stop()
        await self._listeners.drain()
        await services.fullsync.stop_checks()
        await services.sink.stop()
        await services.queues.stop()
        await services.reaper.stop()
        await services.property_cache.stop()
        await services.metastore_copy.stop()
        await services.witness.stop()
        await services.controller.resign()
        await services.runtime.resign(STOP_TIMEOUT_S)
        await services.links.drain()
        await services.controller.stop()
        await services.links.stop()
        await services.row_streams.close()
        await services.fullsync.stop_reads()
        await services.queue_acts.stop_lags()
        await self._end_reads()
        clean = await services.runtime.stop(STOP_TIMEOUT_S)
        await services.fullsync.stop(save=clean)
        await self._listeners.stop()
        await self._credentials.stop()
        try:
            await self._leave_metastore()
            log.info("node.stopped", clean=clean)  # the journal, which ends next, has it
        finally:
            await self._release(clean)
        return EXIT_OK

    async def _end_reads(self) -> None:
        """Wait until no thread of the read pool reads the store, which is closed next; STOP_TIMEOUT_S at most."""
        end = functools.partial(self.services.read_pool.shutdown, cancel_futures=True)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await asyncio.get_running_loop().run_in_executor(None, end)
        except TimeoutError:
            log.warning("node.reads_go_on", waited_s=STOP_TIMEOUT_S)

    async def abandon(self) -> None:
        """Free the resources of a start that failed."""
        try:
            await self._leave_metastore()
        finally:
            await self._release(clean=False)

    async def _leave_metastore(self) -> None:
        """A ZooKeeper that does not stop is an error; the node's own resources are released all the same."""
        if self._metastore is not None:
            await self._metastore.stop()
        if self._embedded:
            await asyncio.get_running_loop().run_in_executor(
                None, supervisor_client.release_embedded, self.settings.node.data_dir
            )

    async def _release(self, clean: bool) -> None:
        if self._services is not None:
            await self._services.journal.stop()  # before the lock on the data directory is released
        if self._identity is not None:
            self._identity.close(clean)
        if self._tracer is not None:
            await self._tracer.stop()
        if self._services is not None:
            self._services.read_pool.shutdown(wait=False, cancel_futures=True)
