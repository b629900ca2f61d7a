"""The full-sync actor of a node: the third that every node starts, beside the source and the sink.

It keeps the trees of this node's copies, answers other nodes and other clusters about them, and, where the settings
name clusters to compare with, runs the exchanges. Without such settings it answers only, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from random import Random

import structlog

from isthmus.aae import status as listing
from isthmus.aae.exchange.cluster import ClusterTrees, Members
from isthmus.aae.exchange.local import Handler, Led, LocalTrees
from isthmus.aae.exchange.remote import PeerTrees
from isthmus.aae.scheduling.alarm import SchedulerAlarm
from isthmus.aae.scheduling.check import PeerChecker, Repairs
from isthmus.aae.scheduling.gap_healing import GapHealer, Gaps
from isthmus.aae.scheduling.history import History
from isthmus.aae.scheduling.manager import Manager
from isthmus.aae.scheduling.operator_documents import OperatorDocuments
from isthmus.aae.scrub.replica_agreement import ReplicaTreeCheck
from isthmus.aae.scrub.row_audit import Scrubber
from isthmus.aae.scrub.row_repair import RowRepair, foreign_objects
from isthmus.aae.trees.tree_cache import ReplicaSnapshot, TreeCache, TreeState
from isthmus.config.settings import FullSyncSettings
from isthmus.repl.http.client import PeerCredentials
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.model.errors import BadInput, IsthmusError, NotReady
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.store.port import Store
from isthmus.repl.telemetry import Sample

log = structlog.get_logger(__name__)


class FullSync:
    """The actor. `trees` is an after-apply hook; `whole` answers for the cluster."""

    def __init__(
        self,
        *,
        store: Store,
        directory: Path,
        copies: Callable[[], Sequence[ReplicaSnapshot]],
        led: Callable[[bytes], Sequence[Led]],
        members: Members,
        followed: Callable[[], Iterable[tuple[int, tuple[str, ...]]]],
        in_sync: Callable[[int], Sequence[str]],
        request: Callable[[str, str, bytes, int], Awaitable[bytes]],
        mend: Callable[[int, bytes, bytes | None, int], Awaitable[bool]],
        drop_change: Callable[[int, int, bytes], Awaitable[bool]],
        time: TimeSource,
        read_pool: Executor,
        settings: Sequence[FullSyncSettings],
        metastore: Metastore,
        token_for: Callable[[str], Path | None],
        node: str,
        cluster_uuid: bytes,
        access_to: Callable[[FullSyncSettings], PeerCredentials],
        repairs: Repairs,
        gaps: Gaps,
        tree_rebuild_ms: int,
        all_types: Callable[[FullSyncSettings], Sequence[str]],
    ) -> None:
        """`directory` is the node's data directory: saved trees lie in a folder of it, and what is remembered of
        checks. `access_to` tells how to come in at another cluster, `token_for(urls)` which token is shown to a
        peer that operators add; the rest as `aae.trees.tree_cache`, `aae.exchange.local`,
        `aae.exchange.cluster`, `aae.scrub.row_repair` (`in_sync`, `mend`, `drop_change`) and `aae.scheduling.manager`
        want it."""
        self._time = time
        self._access_to = access_to
        self.trees = TreeCache(
            store, directory=directory / "trees", copies=copies, time=time, rebuild_ms=tree_rebuild_ms
        )
        self.mending = RowRepair(
            store,
            others=in_sync,
            request=request,
            mend=mend,
            drop_change=drop_change,
            own=cluster_uuid,
            leaf_of=self.trees.leaf,
            elsewhere=self._elsewhere,
            pool=read_pool,
        )
        self.mending.on_mended = self.trees.doubt
        self.audit = Scrubber(self.trees, store, mending=self.mending, copies=copies, pool=read_pool)
        self.trees.on_wrong = self.audit.wrong
        self.local = LocalTrees(self.trees, store, led=led, read_pool=read_pool, suspect=self.audit.suspect)
        self.whole = ClusterTrees(self.local, members, request)
        self.agreement = ReplicaTreeCheck(self.trees, store, mending=self.mending, led=followed, request=request)
        chance = Random()  # noqa: S311 - the order of checks is no secret

        def checker_of(peer: FullSyncSettings) -> PeerChecker:
            trees = PeerTrees(
                peer.urls.split(","),
                own=cluster_uuid,
                cluster_name=peer.cluster,
                timeout_ms=peer.timeout_ms,
                access=access_to(peer),
                compress=peer.compress,
            )
            return PeerChecker(peer, source=self.whole, sink=trees, repairs=repairs, chance=chance)

        self.manager = Manager(
            settings,
            node=node,
            checker_of=checker_of,
            memory=History(directory, time.wall_ms()),
            alarm_of=SchedulerAlarm,
            live=lambda: [node, *members.nodes()],
            time=time,
            unplaced=lambda peer: _unplaced(members, self.manager.types_of(peer)),
            all_types=all_types,
        )
        self.healing = GapHealer(self.manager, gaps, time)
        self._token_for = token_for
        self.documents = OperatorDocuments(metastore, self._follow)

    def _follow(self) -> None:
        self.manager.follow(self.documents, self._token_for)
        self.healing.start()

    def request_handlers(self) -> dict[str, Handler]:
        """What other nodes may ask of this one, by method."""
        parts = (self.local, self.agreement, self.mending)
        return {method: handler for part in parts for method, handler in part.request_handlers().items()}

    def start(self) -> None:
        """Before anything is applied: take the saved trees, begin to build the others. Raises LocalFault."""
        self.trees.start()
        self.agreement.start()
        self.audit.start()

    def damaged(self, partition: int, segment: int | None) -> None:
        """Have a row mended soon that could not be given to a follower; without a segment all that cannot be read."""
        if segment is None:
            self.audit.wrong(partition, {})
        else:
            self.audit.suspect(partition, [segment])

    def begin(self) -> None:
        """Once this node serves: let checks be due. Raises LocalFault."""
        self.manager.start()
        self.healing.start()
        self.documents.start()

    async def rest(self) -> None:
        """Begin no more checks, and end the one that runs: the node is about to stop."""
        await self.documents.stop()
        await self.healing.stop()
        await self.manager.stop()

    async def stop(self, *, save: bool) -> None:
        """After everything is applied; `save` when the stop is a clean one."""
        await self.agreement.stop()
        await self.audit.stop()
        await self.trees.stop(save=save)

    async def _elsewhere(self, partition: int, segment: int) -> Mapping[str, Mapping[bytes, bytes]]:
        """The objects of a segment as the clusters have them that are compared with; who does not answer has none."""
        kept = self.trees.kept.get(partition)
        found: dict[str, Mapping[bytes, bytes]] = {}
        for one in self.manager.peers.values():
            peer = one.settings
            if kept is None or kept.bucket_type.decode() not in one.bucket_types:
                continue
            try:
                found[peer.name] = await asyncio.to_thread(
                    foreign_objects,
                    peer.urls.split(","),
                    self._access_to(peer),
                    peer.timeout_ms,
                    kept.bucket_type,
                    segment,
                )
            except IsthmusError as error:
                log.info("trees.not_mended_from", fullsync=peer.name, partition=partition, error=str(error))
        return found

    def metrics(self) -> list[Sample]:
        """For Prometheus."""
        audited: Sample = ("isthmus_tree_rows_audited_total", {}, self.audit.rows_total)
        own = [*self.trees.metrics(), audited, *self.mending.metrics()]
        return [*own, *listing.samples(self.manager, self._time.wall_ms())]

    def status(self) -> dict[str, str]:
        """The actor's state and why: shown as `idle: not configured`."""
        states = [kept.state for kept in self.trees.kept.values()]
        ready = states.count(TreeState.READY)
        trees = f"{ready} of {len(states)} trees ready" if ready < len(states) else f"{ready} trees kept"
        manager = self.manager
        if manager.running is not None:
            state, reason = "running", f"compares {manager.running.bucket_type} with {manager.running.peer}"
        elif not manager.peers:
            state, reason = "idle", "not configured"
        elif all(peer.remembered.suspended is not None for peer in manager.peers.values()):
            state, reason = "suspended", "by operators"
        elif all(peer.plan is None for peer in manager.peers.values()):
            state, reason = "idle", "no checks are wanted"
        else:
            state, reason = "scheduled", "compares with " + ", ".join(manager.peers)
        return {"actor": "full-sync", "state": state, "reason": f"{reason}; {trees}"}


def _unplaced(members: Members, bucket_types: Sequence[str]) -> str:
    """Why one of the bucket types has no partitions yet. One that there is not is no reason to wait: the check says
    so."""
    try:
        for name in bucket_types:
            members.partitions(name.encode())
    except NotReady as error:
        return str(error)
    except BadInput:
        pass
    return ""
