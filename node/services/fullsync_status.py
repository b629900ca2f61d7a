"""This node's full-sync as operators and other nodes read it: checks, trees, and the times up to which it has proven
queues in sync."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from isthmus.aae.scheduling.last_comparison import last_comparisons
from isthmus.aae.scheduling.scheduler import PeerState
from isthmus.aae.service import FullSync
from isthmus.node.nouns.fullsync import DayOfNode, FullSyncOfNode, FullSyncPeerRow, PeerResultRow, TreeParts
from isthmus.node.services import fullsync_listing
from isthmus.node.services.queue_coverage import QueueCoverage
from isthmus.node.services.separate_rows import SeparateRows
from isthmus.queues.filters import Filter
from isthmus.repl.model.keys import Key
from isthmus.repl.model.ports import TimeSource


class FullSyncStatus:
    """Joins the state of full-sync with the queues that its comparisons prove."""

    def __init__(
        self,
        fullsync: FullSync,
        coverage: QueueCoverage,
        node: str,
        time: TimeSource,
        fetched: Callable[[bytes], Sequence[Filter | None]],
    ) -> None:
        """`fetched(cluster)`: the filters of the queues that this node fetches from the cluster of that uuid; None for
        one that is not known."""
        self._fullsync = fullsync
        self._coverage = coverage
        self._node = node
        self._time = time
        self._fetched = fetched

    def trees(self) -> TreeParts:
        """The trees of this node's replicas."""
        return fullsync_listing.tree_rows(self._fullsync.trees)

    def schedule(self) -> DayOfNode:
        """The rest of the day of each peer, and what was left out."""
        return DayOfNode(self._node, fullsync_listing.rest_of_day(self._fullsync.scheduler))

    def results(self, peer: str | None) -> list[PeerResultRow]:
        """The recorded results of one peer, or (None) of all."""
        return [
            fullsync_listing.result_of_peer(name, result)
            for name, state in self._fullsync.scheduler.peers.items()
            if peer in (None, name)
            for result in state.history.results
        ]

    def checks(self, results: int = 1) -> FullSyncOfNode:
        """The checks of each peer, each with its newest `results`."""
        manager, status, owners = self._fullsync.scheduler, self._fullsync.status(), self._coverage.owners()
        rows = SeparateRows({})

        def row(peer: PeerState) -> FullSyncPeerRow:
            return fullsync_listing.peer_row(
                manager,
                peer,
                self._fullsync.gap_healer,
                results,
                owners,
                compares=self.compared(peer),
                equal_types=self.equal_types(peer),
            )

        peers = [one for name, peer in manager.peers.items() for one in rows.make(name, row, peer)]
        return FullSyncOfNode(
            node=self._node,
            actor="full-sync",
            state=status["state"],
            reason=status["reason"],
            sent=self._coverage.sent(),
            running=fullsync_listing.running_check(manager, self._time.wall_ms()),
            peers=peers,
            removed=fullsync_listing.removed_peers(manager),
            left_out=fullsync_listing.peers_left_out(manager),
            failed=rows.shown(),
        )

    def equal_types(self, peer: PeerState) -> list[str]:
        """The bucket types of which both clusters are to have the same, since they replicate in both directions: this
        one asks the other one for repairs, or fetches a queue whose filter lets out all that is compared. A queue whose
        filter is not known lets out everything."""
        if peer.settings.bidirectional:
            return sorted(peer.bucket_types)
        cluster = peer.history.cluster
        fetched = self._fetched(bytes.fromhex(cluster)) if cluster else ()
        return sorted(
            bucket_type
            for bucket_type in peer.bucket_types
            if any(one is None or self._coverage.returns_all(peer.settings.queue, one, bucket_type) for one in fetched)
        )

    def proven(self) -> list[dict[str, Any]]:
        """The times as of which the other cluster is proven to have all that a queue offers: {"queue", "bucket_type",
        "at_ms"}. With "equal_at_ms" where the clusters are to be equal: when they were found so, None for never."""
        peers = [(peer, self.equal_types(peer)) for peer in self._fullsync.scheduler.peers.values()]
        return [
            {"queue": queue, "bucket_type": bucket_type, "at_ms": at_ms}
            | ({"equal_at_ms": peer.history.equal_ms.get(bucket_type)} if bucket_type in equal else {})
            for peer, equal in peers
            for queue, bucket_types in self.compared(peer).items()
            for bucket_type, at_ms in peer.history.proven_ms.items()
            if bucket_type in bucket_types
        ]

    def compared(self, peer: PeerState) -> dict[str, list[str]]:
        """Queue -> the bucket types that the checks of `peer` prove for it; see `QueueCoverage.compared`."""
        cluster = peer.history.cluster
        return self._coverage.compared(
            peer.settings.queue, bytes.fromhex(cluster) if cluster else None, peer.bucket_types
        )

    def comparisons_of(self, key: Key) -> list[dict[str, Any]]:
        """The last comparison of `key` with each peer, with the queues whose gaps of its bucket type it proves."""
        manager, name = self._fullsync.scheduler, key.bucket_type.decode(errors="replace")
        rows = last_comparisons(manager, key)
        for row in rows:
            compared = self.compared(manager.peers[row["fullsync"]])
            row["queues"] = sorted(queue for queue, bucket_types in compared.items() if name in bucket_types)
        return rows
