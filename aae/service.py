"""Full-sync of one node: composes the trees, checks, repairs and schedule, and starts and stops them.

It keeps trees of the node's replicas and serves them to other nodes and clusters. It starts exchanges only with the
peers of the settings and those that operators add.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

import structlog

from isthmus.aae import fullsync_metrics
from isthmus.aae.damaged_rows import DamagedRows
from isthmus.aae.exchange.cluster import ClusterTrees
from isthmus.aae.exchange.local import LocalTrees
from isthmus.aae.exchange.remote import PeerTrees
from isthmus.aae.ports import LocalReplicas, Members, NodeRpc, OtherClocks, PeerAccess, QueueTypes, RpcHandler
from isthmus.aae.riak_trees.cluster import ClusterRiakTrees
from isthmus.aae.riak_trees.contents import ReplacedClocks
from isthmus.aae.riak_trees.groups import TreeGroups
from isthmus.aae.riak_trees.local import LocalRiakTrees
from isthmus.aae.scheduling.alarm import SchedulerAlarm
from isthmus.aae.scheduling.check import PeerChecker, Repairs
from isthmus.aae.scheduling.gap_healing import GapHealer, Gaps
from isthmus.aae.scheduling.history import FullSyncHistory
from isthmus.aae.scheduling.operator_documents import OperatorDocuments
from isthmus.aae.scheduling.proofs import TreeProofs
from isthmus.aae.scheduling.scheduler import CheckCluster, Checkers, CheckScheduler
from isthmus.aae.scrub.replica_agreement import ReplicaTreeCheck
from isthmus.aae.scrub.row_audit import Scrubber
from isthmus.aae.scrub.row_repair import ForeignObjects, RowRepair, fetch_foreign_objects
from isthmus.aae.trees.tree_cache import TreeCache, TreeState
from isthmus.config.settings import FullSyncSettings, RiakTreeSettings
from isthmus.repl.machine import machine
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.ports import AppliedChanges, TimeSource
from isthmus.repl.store.port import Store
from isthmus.repl.telemetry import Sample

log = structlog.get_logger(__name__)


class FullSyncConfig(NamedTuple):
    """Identity and settings of the node. `directory`: its data directory, with the saved trees and the history."""

    node: str
    cluster_uuid: bytes
    directory: Path
    peers: Sequence[FullSyncSettings]
    tree_rebuild_ms: int
    riak_trees: Sequence[RiakTreeSettings]


@dataclass(frozen=True)
class LocalRows:
    """The rows of this node's replicas, and what happens to them."""

    store: Store
    replicas: LocalReplicas
    replaced: ReplacedClocks
    changes: AppliedChanges
    damaged: DamagedRows
    read_pool: Executor


@dataclass(frozen=True)
class FullSyncCluster:
    """What full-sync needs of its cluster, and the ways to other ones."""

    members: Members
    known_types: Callable[[], Collection[bytes] | None]
    """The bucket types; None while they are not known here."""
    queue_types: QueueTypes
    rpc: NodeRpc
    repairs: Repairs
    gaps: Gaps
    access: PeerAccess
    clocks: OtherClocks


class PeerCheckers(Checkers):
    """Opens the checkers of peers."""

    def __init__(self, config: FullSyncConfig, cluster: FullSyncCluster, source: ClusterTrees, random: Random) -> None:
        """`source`: the trees of this cluster."""
        self._config = config
        self._cluster = cluster
        self._source = source
        self._random = random

    def open(self, settings: FullSyncSettings) -> PeerChecker:
        """See Checkers."""
        trees = PeerTrees(
            settings.urls.split(","),
            own=self._config.cluster_uuid,
            cluster_name=settings.cluster,
            timeout_ms=settings.timeout_ms,
            access=self._cluster.access.credentials(settings),
            compress=settings.compress,
            clocks=self._cluster.clocks.peers,
        )
        return PeerChecker(
            settings,
            source=self._source,
            sink=trees,
            repairs=self._cluster.repairs,
            random=self._random,
            own=self._config.cluster_uuid,
        )


class PeerObjects(ForeignObjects):
    """Objects of the clusters that the scheduler's peers are."""

    def __init__(self, trees: TreeCache, scheduler: CheckScheduler, access: PeerAccess) -> None:
        self._trees = trees
        self._scheduler = scheduler
        self._access = access

    async def objects(self, partition: int, segment: int) -> Mapping[str, Mapping[bytes, bytes]]:
        """See ForeignObjects."""
        cached = self._trees.cached.get(partition)
        found: dict[str, Mapping[bytes, bytes]] = {}
        for peer in self._scheduler.peers.values():
            settings = peer.settings
            if cached is None or cached.bucket_type.decode() not in peer.bucket_types:
                continue
            try:
                found[settings.name] = await asyncio.to_thread(
                    fetch_foreign_objects,
                    settings.urls.split(","),
                    self._access.credentials(settings),
                    settings.timeout_ms,
                    cached.bucket_type,
                    segment,
                )
            except IsthmusError as error:
                log.info("trees.not_mended_from", fullsync=settings.name, partition=partition, error=str(error))
        return found


class FullSync:
    """All parts of full-sync. `trees` listens to applied entries; `cluster_trees` serves other clusters."""

    def __init__(
        self,
        config: FullSyncConfig,
        local: LocalRows,
        cluster: FullSyncCluster,
        *,
        metastore: Metastore,
        time: TimeSource,
    ) -> None:
        store, replicas, pool = local.store, local.replicas, local.read_pool
        self._access = cluster.access
        self._time = time
        self.trees = TreeCache(
            store,
            directory=config.directory / "trees",
            replicas=replicas,
            damaged=local.damaged,
            time=time,
            rebuild_ms=config.tree_rebuild_ms,
        )
        local.changes.add(self.trees)
        self.local_trees = LocalTrees(self.trees, store, replicas=replicas, read_pool=pool, damaged=local.damaged)
        self.cluster_trees = ClusterTrees(self.local_trees, cluster.members, cluster.rpc)
        groups = TreeGroups(config.riak_trees)
        self.riak_trees = LocalRiakTrees(
            groups,
            store,
            replicas=replicas,
            replaced=local.replaced,
            changes=local.changes,
            time=time,
            rebuild_ms=config.tree_rebuild_ms,
        )
        self.cluster_riak_trees = ClusterRiakTrees(
            groups, self.riak_trees, known_types=cluster.known_types, members=cluster.members, rpc=cluster.rpc
        )
        self.scheduler = CheckScheduler(
            config.peers,
            CheckCluster(config.node, cluster.members, cluster.queue_types, cluster.clocks.skew_ms),
            checkers=PeerCheckers(config, cluster, self.cluster_trees, machine().random()),
            history=FullSyncHistory(config.directory, time.wall_ms()),
            alarm=SchedulerAlarm(),
            proofs=TreeProofs(self.cluster_trees, cluster.gaps),
            time=time,
        )
        self.row_repair = RowRepair(
            store,
            replicas=replicas,
            rpc=cluster.rpc,
            trees=self.trees,
            foreign=PeerObjects(self.trees, self.scheduler, cluster.access),
            cluster_uuid=config.cluster_uuid,
            pool=pool,
        )
        self.scrubber = Scrubber(
            self.trees, store, repair=self.row_repair, replicas=replicas, damaged=local.damaged, pool=pool
        )
        self.replica_check = ReplicaTreeCheck(
            self.trees, store, repair=self.row_repair, replicas=replicas, rpc=cluster.rpc
        )
        self.gap_healer = GapHealer(self.scheduler, cluster.gaps, time)
        self.documents = OperatorDocuments(metastore, self._apply_documents)

    def _apply_documents(self) -> None:
        self.scheduler.apply_documents(self.documents, self._access)
        self.gap_healer.start()

    def request_handlers(self) -> dict[str, RpcHandler]:
        """Handlers of requests from other nodes, by method."""
        parts = (self.local_trees, self.riak_trees, self.replica_check, self.row_repair)
        return {method: handler for part in parts for method, handler in part.request_handlers().items()}

    def start(self) -> None:
        """Load the saved trees and begin to build others; call it before anything is applied. Raises LocalFault."""
        self.trees.start()
        self.riak_trees.start()
        self.replica_check.start()
        self.scrubber.start()

    async def start_checks(self) -> None:
        """Start the schedule of checks; call it once the node serves. Raises LocalFault."""
        self.scheduler.start()
        self.gap_healer.start()
        await self.documents.start()

    async def stop_checks(self) -> None:
        """Cancel the running check and start no other; call it before the node stops to serve."""
        await self.documents.stop()
        await self.gap_healer.stop()
        await self.scheduler.stop()

    async def stop_reads(self) -> None:
        """Stop all that reads the store; call it before the store is closed, which must not happen during a scan."""
        await self.replica_check.stop()
        await self.scrubber.stop()
        await self.riak_trees.stop_builds()
        await self.trees.stop_builds()

    async def stop(self, *, save: bool) -> None:
        """Stop all else; call it once nothing is applied any more. `save`: keep the trees for the next start."""
        await self.riak_trees.stop()
        await self.trees.stop(save=save)

    def metrics(self) -> list[Sample]:
        """For Prometheus."""
        scrubbed: Sample = ("isthmus_tree_rows_audited_total", {}, self.scrubber.rows_total)
        own = [*self.trees.metrics(), *self.riak_trees.metrics(), scrubbed, *self.row_repair.metrics()]
        return [*own, *fullsync_metrics.samples(self.scheduler, self._time.wall_ms())]

    def statuses(self) -> list[dict[str, str]]:
        """State and reason of full-sync, and of the trees for Riaks if there are any."""
        of_riak = self.riak_trees.status()
        return [self.status()] if of_riak is None else [self.status(), of_riak]

    def status(self) -> dict[str, str]:
        """State and reason, shown as `idle: not configured`."""
        states = [cached.state for cached in self.trees.cached.values()]
        ready = states.count(TreeState.READY)
        trees = f"{ready} of {len(states)} trees ready" if ready < len(states) else f"{ready} trees kept"
        scheduler = self.scheduler
        if scheduler.running is not None:
            state, reason = "running", f"compares {scheduler.running.bucket_type} with {scheduler.running.peer}"
        elif not scheduler.peers:
            state, reason = "idle", "not configured"
        elif all(peer.history.suspended is not None for peer in scheduler.peers.values()):
            state, reason = "suspended", "by operators"
        elif all(peer.plan is None for peer in scheduler.peers.values()):
            state, reason = "idle", "no checks are configured"
        else:
            state, reason = "scheduled", "compares with " + ", ".join(scheduler.peers)
        return {"actor": "full-sync", "state": state, "reason": f"{reason}; {trees}"}
