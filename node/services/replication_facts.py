"""Facts of this node's cluster that source queues and the sink need and send to other clusters."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from isthmus.node.services.membership import ClusterMembership
from isthmus.queues.sink_shares import KeyRange, Share, TypeShare
from isthmus.repl.controller.bucket_properties import PropertyCache
from isthmus.repl.controller.controller import Controller
from isthmus.repl.coordinator.routing import RoutingTable
from isthmus.repl.property_digests import ScopeDigests
from isthmus.repl.runtime.registration import Registrar
from isthmus.repl.runtime.runtime import Runtime


class ReplicationFacts:
    """Implements `queues.service.QueueCluster` and `sink.service.SinkNodes`."""

    def __init__(
        self,
        runtime: Runtime,
        controller: Controller,
        properties: PropertyCache,
        routes: RoutingTable,
        membership: ClusterMembership,
        registrar: Registrar,
    ) -> None:
        self._runtime = runtime
        self._controller = controller
        self._properties = properties
        self._routes = routes
        self._membership = membership
        self._registrar = registrar

    def partition_types(self) -> Mapping[int, bytes]:
        """See QueueCluster."""
        return {partition.id: partition.bucket_type for partition in self._runtime.partitions.values()}

    def key_range(self, partition: int) -> KeyRange | None:
        """See QueueCluster."""
        found = self._runtime.partitions.get(partition)
        return None if found is None else KeyRange(found.index, found.partition_count)

    def led_share(self) -> Share:
        """See SinkNodes. A bucket type of which this node has no replica is left out."""
        led: dict[tuple[bytes, int], int] = {}
        for partition in self._runtime.partitions.values():
            of_type = partition.bucket_type, partition.partition_count
            led[of_type] = led.get(of_type, 0) | partition.replica.ready << partition.index
        return {bucket_type: TypeShare(total, bits) for (bucket_type, total), bits in led.items()}

    def name_is_taken(self) -> bool:
        """See SinkCluster."""
        return self._registrar.taken

    def bucket_types(self) -> Collection[bytes]:
        """See QueueCluster."""
        return {record.bucket_type.encode() for record in self._controller.records.values()}

    def known_types(self) -> frozenset[bytes] | None:
        """See SinkNodes."""
        return self._routes.known_types()

    def property_digests(self) -> dict[bytes, bytes]:
        """See both."""
        return self._properties.digests()

    def scope_digests(self) -> ScopeDigests | None:
        """See both."""
        return self._properties.scope_digests()

    def live_nodes(self) -> Collection[str]:
        """See QueueCluster."""
        return self._controller.registrations

    def known_nodes(self) -> Collection[str]:
        """See SinkNodes."""
        return self._membership.known_nodes()
