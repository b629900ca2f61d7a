"""Passes on what the controller reads of the cluster to the components of its node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import ParamSpec

from isthmus.node.services.cluster_routes import ClusterRoutes
from isthmus.node.services.downtimes import Downtimes
from isthmus.node.services.live_options import LiveOptions
from isthmus.repl.controller.dynamic_options import OptionSettings
from isthmus.repl.coordinator.coordinator import Coordinator
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.model.record import PartitionRecord, Registration
from isthmus.repl.runtime.registration import Registrar
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.unforeseen import unforeseen

Reading = ParamSpec("Reading")


class NodeObserver:
    """Implements `repl.controller.controller.ClusterObserver`. A component that raises keeps no other one from learning
    of a reading (R-ALONE); it learns of the next one itself."""

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
        _notify(self._runtime.registrations_seen, registrations)
        _notify(self._downtimes.learn, registrations, self._time.wall_ms())
        _notify(self._registrar.seen, registrations)
        _notify(self._routes.registrations_changed, registrations)
        _notify(self._dial, {} if self._registrar.taken else registrations)

    def _dial(self, registrations: Mapping[str, Registration]) -> None:
        """Dial these nodes; none while another process is registered as this node (docs/protocol.md H28)."""
        runtime = self._runtime
        others = [r for r in registrations.values() if r.node != runtime.node and r.cluster_address]
        runtime.links.set_nodes({r.node: r.cluster_address for r in others})

    def on_records(self, records: Mapping[int, PartitionRecord], unread: Collection[int]) -> None:
        """See ClusterObserver."""
        _notify(self._runtime.records_seen, records)
        _notify(self._coordinator.learn_records, records, unread)
        _notify(self._routes.records_changed, records)


def _notify(observe: Callable[Reading, None], *args: Reading.args, **kwargs: Reading.kwargs) -> None:
    try:
        observe(*args, **kwargs)
    except Exception as error:
        unforeseen.exception("node.observer_bug", error, component=getattr(observe, "__qualname__", ""))
