"""The nodes and partitions of the cluster, as this node last read them from the metastore."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from isthmus.config.settings import Settings
from isthmus.repl.controller.controller import Controller
from isthmus.repl.coordinator.routing import UnknownBucketType
from isthmus.repl.model.errors import NotReady
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE
from isthmus.sink import discovery


def not_alive(nodes: Iterable[str]) -> dict[str, str]:
    """Why nothing is known of nodes that were not asked, since they are not registered."""
    return dict.fromkeys(sorted(nodes), "not alive")


class ClusterMembership:
    """Answers from the controller's records and registrations. Implements `aae.ports.Members`."""

    def __init__(self, controller: Controller, settings: Settings, cluster_uuid: bytes) -> None:
        self._controller = controller
        self._settings = settings
        self._cluster_uuid = cluster_uuid

    @property
    def node(self) -> str:
        """The name of this node."""
        return self._settings.node.name

    def nodes(self) -> Iterable[str]:
        """See Members: the other live nodes."""
        return [node for node in self._controller.registrations if node != self.node]

    def live_nodes(self) -> set[str]:
        """The live nodes, with this one even while it is not registered."""
        return {self.node, *self._controller.registrations}

    def known_nodes(self) -> set[str]:
        """The live nodes, and those that are down and have replicas."""
        held = {name for record in self._controller.records.values() for name in record.replicas}
        return held | self.live_nodes()

    def partitions(self, bucket_type: bytes) -> Sequence[int]:
        """See Members. Raises UnknownBucketType, NotReady."""
        records, waiting = self._controller.records, self._controller.waiting
        name = bucket_type.decode(errors="replace")
        found = [r for r in records.values() if r.bucket_type == name]
        if not found and (not records or bucket_type == DEFAULT_BUCKET_TYPE):
            why = f": {waiting}" if waiting else ""
            raise NotReady(f"the partitions of bucket type {name!r} are not known here yet{why}")
        if not found:
            raise UnknownBucketType(f"there is no bucket type {name!r}")
        if len(found) < found[0].partition_count:
            raise NotReady(f"bucket type {name!r}: {len(found)} of {found[0].partition_count} partitions are known yet")
        return [r.partition for r in found]

    def document(self) -> dict[str, Any]:
        """The live nodes for sinks of other clusters; the answer to GET /cluster/nodes (`node.client_api.members`)."""
        live = sorted((r for r in self._controller.registrations.values() if r.active and r.http_url), key=str)
        return {
            "v": discovery.VERSION,
            "cluster": self._settings.node.cluster,
            "cluster_uuid": self._cluster_uuid.hex(),
            "tls": self._settings.tls.mode("http"),
            "nodes": [{"node": r.node, "http": r.http_url} for r in live],
        }
