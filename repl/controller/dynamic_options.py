"""The settings of dynamic options: one small document in the metastore.

All settings lie in one znode, so one read returns one state, one watch reports every change, and a change is one
conditional write. Any node may write it. The controller applies min-ISR (`repl.controller.controller`), each node
applies the rest to its replicas (`node.services.live_options`). `config.dynamic_options` defines the options. Settings
of an unknown name are kept, and have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec
import structlog
from msgspec import UNSET, Struct, UnsetType

from isthmus.config.dynamic_options import MIN_ISR, OPTIONS
from isthmus.config.schema import SettingScope, Value
from isthmus.repl.controller.election import TIMERS, Timers
from isthmus.repl.controller.stored_setting import Setting, check_expected
from isthmus.repl.metastore.port import Metastore, Versioned
from isthmus.repl.metastore.watched_document import Document, decode_json
from isthmus.repl.model.record import PartitionRecord

log = structlog.get_logger(__name__)

OPTIONS_PATH: Final = "/options"

Chosen = Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class OptionSettings:
    """All settings: the cluster's, and those of bucket types by name. `version` is the document's; None before there is
    one."""

    cluster: Chosen = field(default_factory=dict)
    types: Mapping[str, Chosen] = field(default_factory=dict)
    version: int | None = None

    def of(self, bucket_type: str | None) -> Chosen:
        """The settings of one bucket type itself; None: the cluster's."""
        return self.cluster if bucket_type is None else self.types.get(bucket_type, {})

    def by_scope(self, name: str, bucket_type: str | None = None) -> dict[SettingScope, Setting]:
        """The settings of one option that concern a bucket type (None: the cluster's), without those whose value is not
        valid in this version."""
        of_type = {} if bucket_type is None else self.of(bucket_type)
        chosen = {SettingScope.BUCKET_TYPE: of_type, SettingScope.CLUSTER: self.cluster}
        return {at: own[name] for at, own in chosen.items() if name in own and _counts(name, own[name].value)}

    def setting(self, name: str, bucket_type: str | None = None) -> Setting | None:
        """The effective setting of a bucket type (None: of the cluster): its own, else the cluster's. None if neither
        is set, or the value is not valid in this version."""
        found = self.by_scope(name, bucket_type)
        return OPTIONS[name].preceding(found)[0] if found else None

    def with_setting(self, name: str, bucket_type: str | None, setting: Setting | None) -> OptionSettings:
        """A copy with the setting, or without it if `setting` is None."""
        chosen = {each: found for each, found in self.of(bucket_type).items() if each != name}
        if setting is not None:
            chosen[name] = setting
        if bucket_type is None:
            return OptionSettings(chosen, self.types, self.version)
        types = {each: found for each, found in self.types.items() if each != bucket_type}
        if chosen:
            types[bucket_type] = chosen
        return OptionSettings(self.cluster, types, self.version)

    def min_isr(self, bucket_type: str, replica_count: int) -> int:
        """The min-ISR for a partition's record, not clamped from above: as it is set, else one less than there are
        replicas."""
        found = self.setting(MIN_ISR, bucket_type)
        return max(1, replica_count - 1 if found is None else int(found.value))

    def timers(self) -> Timers:
        """The timers of elections."""
        return Timers(**{each: self.number(name) for each, name in _TIMERS.items()})

    def number(self, name: str) -> int:
        """The effective value of a cluster-wide number."""
        found = self.setting(name)
        return int(OPTIONS[name].default if found is None else found.value)


_TIMERS: Final = {each: f"election.{each.removesuffix('_ms').replace('_', '.')}.millis" for each in TIMERS._fields}


def _counts(name: str, value: Value) -> bool:
    try:
        OPTIONS[name].typed(value)
    except (KeyError, ValueError):
        return False
    return True


def effective_min_isr(record: PartitionRecord, settings: OptionSettings) -> int:
    """A partition's min-ISR once its record has the configured value."""
    wanted = settings.min_isr(record.bucket_type, record.factor)
    return min(wanted, len(record.replicas))


# -- the document ---------------------------------------------------------------------------------


class _OptionsForm(Struct):
    """The JSON of the document."""

    v: Literal[1]
    cluster: dict[str, Setting]
    types: dict[str, dict[str, Setting]]


def encode_options(settings: OptionSettings) -> bytes:
    """Canonical bytes of the document."""
    types = {name: dict(sorted(chosen.items())) for name, chosen in sorted(settings.types.items())}
    return msgspec.json.encode(_OptionsForm(1, dict(sorted(settings.cluster.items())), types))


def decode_options(found: Versioned | None) -> OptionSettings:
    """The settings in the document at OPTIONS_PATH. Raises Corruption."""
    if found is None:
        return OptionSettings()
    form = decode_json(OPTIONS_PATH, found.value, _OptionsForm)
    return OptionSettings(form.cluster, form.types, found.version)


# -- the metastore --------------------------------------------------------------------------------

OPTIONS_DOCUMENT: Final = Document(OPTIONS_PATH, decode_options, encode_options)


async def read_options(metastore: Metastore) -> OptionSettings:
    """The settings now. Raises Corruption, and what the metastore raises."""
    return await OPTIONS_DOCUMENT.read(metastore)


async def change_option(
    metastore: Metastore,
    name: str,
    bucket_type: str | None,
    setting: Setting | None,
    expected: Value | UnsetType | None = UNSET,
) -> OptionSettings:
    """Set an option, or unset it if `setting` is None; returns all settings after the change. `expected`: the value
    that must be set before, None for none. Raises ChangedMeanwhile and NotReady when nothing was changed,
    OutcomeUnknown, Corruption, TooLarge."""

    def changed(before: OptionSettings) -> OptionSettings:
        after = before.with_setting(name, bucket_type, setting)
        if expected is not UNSET and after != before:  # equal: made by an attempt whose answer was lost
            check_expected(name, expected, before.of(bucket_type).get(name))
        return after

    after, written = await OPTIONS_DOCUMENT.change(metastore, changed)
    if written:
        log.info(
            "options.changed",
            option=name,
            bucket_type=bucket_type,
            value=None if setting is None else setting.value,
            by=None if setting is None else setting.by,
        )
    return after
