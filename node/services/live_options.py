"""The values of dynamic options in force on this node, applied to its components.

`config.schema.SettingScope` has which setting precedes which. Every node's controller reads the settings
(`repl.controller.controller`); it also applies min-ISR, in the records, and the timers of elections. All other options
reach replicas, reads and connections here. The options are defined in `config.dynamic_options` and shown by
`node.services.option_status`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from isthmus.config.dynamic_options import (
    CATCH_UP_RATE,
    ELECTION_BACK_OFF_MAX,
    ELECTION_BACK_OFF_MIN,
    ELECTION_RESPONSE_MAX,
    ELECTION_RESPONSE_MIN,
    MAX_NEAR_SYNC_LAG,
    MAX_RECORD_LAG,
    MAX_TIME_LAG,
    MIN_ISR,
    MIN_TRANSFER_ROUNDS,
    OPTIONS,
    READ_ISOLATION,
)
from isthmus.config.schema import SettingScope, file_name
from isthmus.config.settings import Settings
from isthmus.repl.controller.dynamic_options import OptionSettings
from isthmus.repl.coordinator.coordinator import Coordinator
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.requests import Isolation
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.transport.lanes import RateCap


class EffectiveOption(NamedTuple):
    """A value in force and its origin: "bucket type", "cluster", "file" or "default"."""

    value: int | str
    origin: str


class EffectiveOptions:
    """The options in force on one node; before the first reading those of its file."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._chosen = OptionSettings()

    def effective(
        self, name: str, bucket_type: str | None = None, chosen: OptionSettings | None = None
    ) -> EffectiveOption:
        """The value for a bucket type; None: for bucket types without a setting of their own. Not for min-ISR, which
        depends on the partition. With `chosen` as if these were set."""
        chosen = self._chosen if chosen is None else chosen
        value, origin = self._found(name, bucket_type, chosen)
        floor = self._floor(name, chosen)
        return EffectiveOption(value if floor is None else max(int(value), floor), origin)

    def learn(self, chosen: OptionSettings) -> None:
        """These settings are in force from now on."""
        self._chosen = chosen

    @property
    def chosen(self) -> OptionSettings:
        """The settings that are applied here."""
        return self._chosen

    @staticmethod
    def scopes(chosen: OptionSettings) -> Iterator[tuple[str, str | None]]:
        """Each option but min-ISR, for bucket types without a setting of their own (None), and for each that has one in
        `chosen`."""
        for name, option in OPTIONS.items():
            if name != MIN_ISR:
                yield name, None
                kinds = sorted(chosen.types) if SettingScope.BUCKET_TYPE in option.scopes else ()
                yield from ((name, kind) for kind in kinds if name in chosen.of(kind))

    def _floor(self, name: str, chosen: OptionSettings) -> int | None:
        """The least value of an option that another setting implies; None for nothing."""
        if name == MAX_NEAR_SYNC_LAG:
            return self._settings.replication.window_entries
        least = {
            ELECTION_RESPONSE_MAX: ELECTION_RESPONSE_MIN,
            ELECTION_BACK_OFF_MAX: ELECTION_BACK_OFF_MIN,
        }.get(name)
        return None if least is None else int(self._found(least, None, chosen).value)

    def _found(self, name: str, bucket_type: str | None, chosen: OptionSettings) -> EffectiveOption:
        option = OPTIONS[name]
        found = {scope: setting.value for scope, setting in chosen.by_scope(name, bucket_type).items()}
        default: int | str = option.default
        if SettingScope.FILE in option.scopes:
            default = getattr(self._settings.replication, option.field)
            if f"replication.{file_name(option.field)}" in self._settings.origins:
                found[SettingScope.FILE] = default
        value, origin = option.preceding(found)
        return EffectiveOption(default if value is None else value, origin)

    def core(self, bucket_type: str) -> ReplicaOptions:
        """The options of replicas of a bucket type."""

        def number(name: str) -> int:
            return int(self.effective(name, bucket_type).value)

        return ReplicaOptions(
            window_entries=self._settings.replication.window_entries,
            max_time_lag_ms=number(MAX_TIME_LAG),
            max_record_lag=number(MAX_RECORD_LAG),
            max_near_sync_message_lag=number(MAX_NEAR_SYNC_LAG),
            min_transfer_rounds=number(MIN_TRANSFER_ROUNDS),
        )


class LiveOptions:
    """Applies the options that the controller reads to replicas, reads and connections."""

    def __init__(self, options: EffectiveOptions, runtime: Runtime, coordinator: Coordinator, cap: RateCap) -> None:
        self._options = options
        self._runtime = runtime
        self._coordinator = coordinator
        self._cap = cap

    def apply(self, chosen: OptionSettings) -> None:
        """The options after a read or change of them."""
        options, runtime = self._options, self._runtime
        options.learn(chosen)
        numbers: dict[bytes, ReplicaOptions] = {}
        for partition in runtime.partitions.values():
            kind = partition.bucket_type
            wanted = numbers.get(kind) or numbers.setdefault(kind, options.core(kind.decode()))
            if partition.replica.options != wanted:
                runtime.feed(partition, ev.OptionsChanged(wanted))
        runtime.dispatch_all(ev.Tick())
        self._coordinator.set_read_isolation(
            Isolation(str(options.effective(READ_ISOLATION).value)),
            {kind.encode(): Isolation(str(options.effective(READ_ISOLATION, kind).value)) for kind in chosen.types},
        )
        self._cap.set_rate(int(options.effective(CATCH_UP_RATE).value))
