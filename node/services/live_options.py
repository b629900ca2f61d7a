"""What the dynamic options come to on this node, and that its parts go by it.

A bucket type's setting comes before the cluster's, that before this node's file, that before the default. What is set
is read by the controller's room of every node (`repl.controller.controller`), which also sees to min-ISR, in the
records, and to the timers of elections; here all the others reach replicas, reads and connections. Which options there
are is `config.dynamic_options`' affair, what people see `node.services.option_status`'.
"""

from __future__ import annotations

from typing import NamedTuple

from isthmus.config.dynamic_options import (
    CATCH_UP_RATE,
    ELECTION_BACK_OFF_MAX,
    ELECTION_BACK_OFF_MIN,
    ELECTION_RESPONSE_MAX,
    ELECTION_RESPONSE_MIN,
    FAR_ROUNDS,
    MAX_NEAR_SYNC_LAG,
    MAX_RECORD_LAG,
    MAX_TIME_LAG,
    OPTIONS,
    READ_ISOLATION,
    Value,
)
from isthmus.config.schema import file_name
from isthmus.config.settings import Settings
from isthmus.repl.controller.controller import Controller
from isthmus.repl.controller.dynamic_options import OptionSettings
from isthmus.repl.coordinator.coordinator import Coordinator
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.requests import Isolation
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.transport.links import ClusterLinks


class EffectiveOption(NamedTuple):
    """A value in force and where it comes from: "bucket type", "cluster", "file" or "default"."""

    value: Value
    origin: str


class EffectiveOptions:
    """The options in force on one node; before anything was read, those of its file."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._chosen = OptionSettings()

    def effective(
        self, name: str, bucket_type: str | None = None, chosen: OptionSettings | None = None
    ) -> EffectiveOption:
        """What counts for a bucket type, or with None for all that have none of their own. Not for min-ISR, which
        depends on the partition. With `chosen` as if that were set."""
        chosen = self._chosen if chosen is None else chosen
        value, origin = self._found(name, bucket_type, chosen)
        floor = self._floor(name, chosen)
        return EffectiveOption(value if floor is None else max(int(value), floor), origin)

    def _floor(self, name: str, chosen: OptionSettings) -> int | None:
        """What another number makes the least that an option may come to; None for nothing."""
        if name == MAX_NEAR_SYNC_LAG:
            return self._settings.replication.window_entries
        least = {
            ELECTION_RESPONSE_MAX: ELECTION_RESPONSE_MIN,
            ELECTION_BACK_OFF_MAX: ELECTION_BACK_OFF_MIN,
        }.get(name)
        return None if least is None else int(self._found(least, None, chosen).value)

    def _found(self, name: str, bucket_type: str | None, chosen: OptionSettings) -> EffectiveOption:
        option, setting = OPTIONS[name], chosen.setting(name, bucket_type)
        if setting is not None:
            own = bucket_type is not None and chosen.of(bucket_type).get(name) == setting
            return EffectiveOption(setting.value, "bucket type" if own else "cluster")
        if option.setting:
            key = f"replication.{file_name(option.setting)}"
            origin = "file" if key in self._settings.origins else "default"
            return EffectiveOption(getattr(self._settings.replication, option.setting), origin)
        assert option.default is not None
        return EffectiveOption(option.default, "default")

    def core(self, bucket_type: str) -> ReplicaOptions:
        """The core's numbers for replicas of a bucket type."""

        def number(name: str) -> int:
            return int(self.effective(name, bucket_type).value)

        return ReplicaOptions(
            window_entries=self._settings.replication.window_entries,
            max_time_lag_ms=number(MAX_TIME_LAG),
            max_record_lag=number(MAX_RECORD_LAG),
            max_near_sync_message_lag=number(MAX_NEAR_SYNC_LAG),
            far_min_transfer_rounds=number(FAR_ROUNDS),
        )

    def attach(self, controller: Controller, runtime: Runtime, coordinator: Coordinator, links: ClusterLinks) -> None:
        """Let these parts go by what the controller's room reads, from now on."""

        def learn(chosen: OptionSettings) -> None:
            self._chosen = chosen
            numbers: dict[bytes, ReplicaOptions] = {}
            now_ms = runtime.time.now_ms()
            for partition in runtime.partitions.values():
                kind = partition.bucket_type
                wanted = numbers.get(kind) or numbers.setdefault(kind, self.core(kind.decode()))
                if partition.replica.options != wanted:
                    partition.replica.reconfigure(wanted, now_ms)
            runtime.dispatch_all(ev.Tick())
            coordinator.set_read_isolation(
                Isolation(str(self.effective(READ_ISOLATION).value)),
                {kind.encode(): Isolation(str(self.effective(READ_ISOLATION, kind).value)) for kind in chosen.types},
            )
            links.cap.set_rate(int(self.effective(CATCH_UP_RATE).value))

        controller.on_options = learn
