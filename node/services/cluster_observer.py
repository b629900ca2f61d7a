"""Passes on what the controller reads of the cluster to the components of its node."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from isthmus.node.services.cluster_routes import ClusterRoutes
from isthmus.node.services.downtimes import Downtimes
from isthmus.node.services.live_options import LiveOptions
from isthmus.repl.controller.dynamic_options import OptionSettings
from isthmus.repl.coordinator.coordinator import Coordinator
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.model.record import PartitionRecord, Registration
from isthmus.repl.runtime.registration import Registrar
from isthmus.repl.runtime.runtime import Runtime


class NodeObserver:
    """Implements `repl.controller.controller.ClusterObserver`."""

    def __init__(
        self,
        runtime: Runtime,
        coordinator: Coordinator,
        registrar: Registrar,
        *,
        options: LiveOptions,
        routes: ClusterRoutes,
        downtimes: Downtimes,
        time: TimeSource,
    ) -> None:
        self._runtime = runtime
        self._coordinator = coordinator
        self._registrar = registrar
        self._options = options
        self._routes = routes
        self._downtimes = downtimes
        self._time = time

    def on_options(self, options: OptionSettings) -> None:
        """See ClusterObserver."""
        self._options.apply(options)

    def on_registrations(self, registrations: Mapping[str, Registration]) -> None:
        """See ClusterObserver."""
        self._runtime.registrations_seen(registrations)
        self._downtimes.learn(registrations, self._time.wall_ms())
        self._registrar.seen(registrations)
        self._routes.registrations_changed(registrations)
        self._dial({} if self._registrar.taken else registrations)

    def _dial(self, registrations: Mapping[str, Registration]) -> None:
        """Dial these nodes; none while another process is registered as this node (docs/protocol.md H28)."""
        runtime = self._runtime
        others = [r for r in registrations.values() if r.node != runtime.node and r.cluster_address]
        runtime.links.set_nodes({r.node: r.cluster_address for r in others})

    def on_records(self, records: Mapping[int, PartitionRecord], unread: Collection[int]) -> None:
        """See ClusterObserver."""
        self._runtime.records_seen(records)
        self._coordinator.learn_records(records, unread)
        self._routes.records_changed(records)
