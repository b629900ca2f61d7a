"""The daemon: from settings to a serving node, in reading order, and back.

    data directory  -> locked, and checked to be this node's
    listeners       -> bound, so that an occupied port is told before anything is started
    metastore       -> an ensemble, or the embedded one that a supervisor owns
    store, log      -> opened and recovered
    partitions      -> created when the cluster is new; gens settled (docs/protocol.md R-GEN)
    runtime, coordinator, source, sink, full-sync, controller
    registration    -> the metastore session tells the cluster that this process lives
    faces           -> HTTP for clients and sinks, admin for operators

A stop goes the other way: no new requests, sink and source still, leaderships resigned, everything written and
closed. A failure of log or store ends the process at once with code 70 (H34).
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog
import uvloop

from aae.actor import FullSync
from config.settings import Settings
from node import logs, supervisor
from node.http import app, listeners
from node.http.admin import Admin
from node.http.app import HttpFace
from node.http.listeners import Listeners
from node.metrics import Metrics
from node.timesource import SystemTime
from queues import listing
from queues.registry import SourceQueues
from repl import telemetry
from repl.controller import Controller
from repl.coordinator import Coordinator
from repl.founding import settle
from repl.identity import Identity
from repl.isr import events as ev
from repl.metastore.port import Ambiguous, Conflict, Metastore, SessionState, Unavailable
from repl.metastore.zookeeper import ZooKeeperMetastore
from repl.model.record import Registration
from repl.model.vclock import actor_of
from repl.proposal import WriteLimits
from repl.replog.log import FileLog
from repl.runtime import Runtime
from repl.store.leveldb import LevelStore
from sink import listing as sink_listing
from sink.actor import Sink

log = structlog.get_logger(__name__)

EXIT_OK: Final = 0
EXIT_STORAGE: Final = 70
"""Log or store failed while running: an operator should look at the disk before the node is started again."""

SWITCH_INTERVAL_S: Final = 0.0005
"""How long one Python thread may keep others waiting. The default of 5 ms is the p50 of a sync beside a busy
loop; this brings it under 1 ms."""

GC_THRESHOLDS: Final = (50_000, 20, 20)
"""The hot path makes tuples by the thousand and no cycles: with Python's default of 700 the collector took an
eighth of the CPU time of a batch write, walking windows that were about to be freed by counting."""

STOP_TIMEOUT_S: Final = 20.0
"""How long a graceful stop may take in each of its steps before it goes on without."""

REGISTER_RETRY_MS: Final = 500
"""Pause before the next try to register after a session expired."""

READ_THREADS: Final = 2
"""Threads for listings, backlog reads and counts. They share the machine with the loop."""


def boot_id() -> str:
    """The kernel's id of this boot; another one means that unsynced data may be gone."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def run(settings: Settings) -> int:
    """Run a node until it is told to stop; returns the process's exit code. Raises IsthmusError when
    the node cannot come up: one line that says what to do."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    logs.configure(settings.log, settings.node.name)
    return uvloop.run(_run(settings))


async def _run(settings: Settings) -> int:
    node = Node(settings)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.request_stop, signal.Signals(number).name)
    try:
        await node.start()
    except BaseException:
        await node.abandon()
        raise
    return await node.serve()


class Node:
    """One node: all its parts, wired. `start`, then `serve` until stopped."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.time = SystemTime()
        self.started_ms = self.time.wall_ms()
        self.cluster_uuid = b""
        self.inc = 0
        self.session = SessionState.SUSPENDED
        self._stop = asyncio.Event()
        self._stop_reason = ""
        self._fatal: Exception | None = None
        self._serving = False
        self._identity: Identity | None = None
        self._metastore: Metastore | None = None
        self._embedded = False
        self._register_task: asyncio.Task[None] | None = None
        self._read_pool = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="read")

    # -- coming up --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring everything up in order. Raises IsthmusError in one line."""
        settings = self.settings
        loop = asyncio.get_running_loop()
        identity = Identity.open(settings.node.data_dir)
        self._identity = identity
        identity.check_node(settings.node.name)
        self.listeners = Listeners(settings.listen)
        self.http_url, self.admin_url = self.listeners.bind()
        metastore = await self._connect_metastore()
        self.cluster_uuid = await metastore.cluster_uuid(uuid.uuid4().bytes)
        identity.check_cluster(self.cluster_uuid, settings.node.cluster)
        boot = boot_id()
        data_dir = settings.node.data_dir
        if identity.is_new:
            # Before log and store are made: data without an identity would be refused at the next start.
            identity.adopt(self.cluster_uuid, settings.node.name, boot, {})
        emptied = identity.emptied(data_dir / "log", data_dir / "store")
        self.store = await loop.run_in_executor(None, self._open_store, boot)
        self.replog = await loop.run_in_executor(None, self._open_log, identity)
        records = await settle(
            metastore,
            identity,
            self.replog.recovered(),
            node=settings.node.name,
            cluster=settings.node.cluster,
            cluster_uuid=self.cluster_uuid,
            boot_id=boot,
            durability=settings.replication.durability,
            partition_count=settings.replication.partitions,
            emptied=emptied,
        )
        self._build(metastore, identity)
        for record in sorted(records.values(), key=lambda r: r.partition):
            self.runtime.attach(record, actor_of(self.cluster_uuid, record.partition))
        self.coordinator.learn_partitions()
        self.runtime.start()
        metastore.watch(lambda _path: self.controller.wake())
        await self._register()
        self.controller.start()
        await self.queues.start()
        await self.sink.start()
        await self.listeners.start(self.face, self.admin)
        self._serving = True
        log.info("node.up", http=self.http_url, admin=self.admin_url, cluster_uuid=self.cluster_uuid.hex())

    async def _connect_metastore(self) -> Metastore:
        settings = self.settings.metastore
        hosts = settings.hosts
        if not hosts:
            hosts = await asyncio.get_running_loop().run_in_executor(
                None,
                lambda: supervisor.ensure_embedded(
                    self.settings.node.data_dir, settings.embedded_port, settings.linger_ms, os.getpid()
                ),
            )
            self._embedded = True
        metastore = ZooKeeperMetastore(
            hosts,
            root=settings.root,
            cluster=self.settings.node.cluster,
            session_timeout_ms=settings.session_timeout_ms,
            connect_timeout_ms=settings.connect_timeout_ms,
        )
        self._metastore = metastore
        await metastore.start(self._on_session)
        return metastore

    def _open_store(self, boot: str) -> LevelStore:
        settings = self.settings.replication
        return LevelStore.open(
            self.settings.node.data_dir / "store",
            cluster_uuid=self.cluster_uuid,
            write_buffer_bytes=settings.write_buffer_bytes,
            block_cache_bytes=settings.block_cache_bytes,
            boot_id=boot,
        )

    def _open_log(self, identity: Identity) -> FileLog:
        settings = self.settings.replication
        return FileLog.open(
            self.settings.node.data_dir / "log",
            cluster_uuid=self.cluster_uuid,
            durability=settings.durability,
            size_limit_bytes=settings.log_size_bytes,
            file_bytes=settings.log_file_bytes,
            batch_bytes=settings.log_batch_bytes,
            known_durable={**dict.fromkeys(identity.partitions(), 0), **self.store.applied_offsets()},
        )

    def _build(self, metastore: Metastore, identity: Identity) -> None:
        settings = self.settings
        self.runtime = Runtime(
            node=settings.node.name,
            cluster_uuid=self.cluster_uuid,
            store=self.store,
            replog=self.replog,
            metastore=metastore,
            identity=identity,
            time=self.time,
            window_entries=settings.replication.window_entries,
            window_bytes=settings.replication.window_bytes,
            checkpoint_interval_ms=settings.replication.checkpoint_interval_ms,
            on_fatal=self._on_fatal,
        )
        self.coordinator = Coordinator(
            self.runtime,
            read_pool=self._read_pool,
            limits=WriteLimits(settings.limits.object_bytes, settings.limits.siblings),
            key_limit_bytes=settings.limits.key_bytes,
            request_timeout_ms=settings.listen.request_timeout_ms,
        )
        self.controller = Controller(metastore, time=self.time, on_records=self.runtime.records_seen)
        self.runtime.on_promoted = self.controller.promoted
        self.queues = SourceQueues(
            settings.queues,
            store=self.store,
            cursors=self.coordinator,
            metastore=metastore,
            cluster_uuid=self.cluster_uuid,
            cluster_name=settings.node.cluster,
            partitions=lambda: {p.id: p.bucket_type for p in self.runtime.partitions.values()},
            time=self.time,
            read_pool=self._read_pool,
        )
        self.runtime.hooks.append(self.queues)
        self.sink = Sink(
            settings.sink,
            kv=self.coordinator,
            loop=asyncio.get_running_loop(),
            cluster_uuid=self.cluster_uuid,
            cluster_name=settings.node.cluster,
            node_name=settings.node.name,
            metastore=metastore,
            time=self.time,
        )
        self.fullsync = FullSync()
        self.metrics = Metrics(
            [
                self.runtime.metrics,
                self.coordinator.metrics,
                self.queues.metrics,
                self.sink.metrics,
                self.listeners.samples,
                lambda: self.face.samples(),
            ],
            {**telemetry.HELP, **listing.HELP, **sink_listing.HELP, **app.HELP, **listeners.HELP},
        )
        self.face = HttpFace(
            self.coordinator,
            self.queues,
            limits=settings.limits,
            ready=self.ready,
            metrics=self.metrics.render,
        )
        self.admin = Admin(self)

    # -- living ---------------------------------------------------------------------------------------

    def ready(self) -> tuple[bool, str]:
        """(True, "") when every partition is served here, else why not."""
        if self._stop.is_set():
            return False, "stopping"
        if not self._serving:
            return False, "starting"
        waiting = [p for p in self.runtime.partitions.values() if not p.replica.ready]
        if waiting:
            first = waiting[0]
            return False, f"{len(waiting)} partitions are not served, partition {first.id}: {first.replica.reason}"
        return True, ""

    def request_stop(self, reason: str) -> None:
        """Begin a graceful stop; a second request changes nothing."""
        if not self._stop.is_set():
            self._stop_reason = reason
            self._stop.set()

    def _on_fatal(self, error: Exception) -> None:
        self._fatal = error
        self._stop.set()

    def _on_session(self, state: SessionState) -> None:
        self.session = state
        log.info("metastore.session", state=state.value)
        if state is SessionState.EXPIRED and self._serving:
            self.runtime.dispatch_all(ev.SessionExpired())
            self._register_task = asyncio.get_running_loop().create_task(self._register_again())

    async def _register(self) -> None:
        assert self._metastore is not None
        assert self._identity is not None
        gens = {p: found.gen for p in self.runtime.partitions if (found := self._identity.partition(p)) is not None}
        self.inc = await self._metastore.register(
            Registration(
                node=self.settings.node.name,
                inc=0,
                active=True,
                http_url=self.http_url,
                admin_url=self.admin_url,
                gens=gens,
            )
        )
        log.info("metastore.registered", inc=self.inc)
        self.runtime.dispatch_all(ev.SessionStarted(self.inc))

    async def _register_again(self) -> None:
        """After a session expired: register anew until it works or the node stops."""
        while not self._stop.is_set():
            try:
                await self._register()
            except (Unavailable, Ambiguous, Conflict) as error:
                log.warning("metastore.register_failed", error=str(error))
                await asyncio.sleep(REGISTER_RETRY_MS / 1000)
            else:
                self.controller.wake()
                return

    async def serve(self) -> int:
        """Run until asked to stop or until storage fails; returns the exit code."""
        await self._stop.wait()
        self._serving = False
        if self._fatal is not None:
            # Nothing of this process may be believed any more: no hand-over, no last writes.
            print(f"isthmus: {self._fatal}; the node ends, see its log", file=sys.stderr, flush=True)
            os._exit(EXIT_STORAGE)
        log.info("node.stopping", reason=self._stop_reason)
        self.face.stop()
        await self.listeners.drain()
        await self.sink.stop()
        await self.queues.stop()
        await self.controller.stop()
        clean = await self.runtime.stop(STOP_TIMEOUT_S)
        await self.listeners.stop()
        await self._release(clean)
        log.info("node.stopped", clean=clean)
        return EXIT_OK

    async def abandon(self) -> None:
        """Give up a start that failed: free what was taken."""
        await self._release(clean=False)

    async def _release(self, clean: bool) -> None:
        if self._metastore is not None:
            await self._metastore.stop()
        if self._embedded:
            await asyncio.get_running_loop().run_in_executor(
                None, supervisor.release_embedded, self.settings.node.data_dir
            )
        if self._identity is not None:
            self._identity.close(clean)
        self._read_pool.shutdown(wait=False, cancel_futures=True)
