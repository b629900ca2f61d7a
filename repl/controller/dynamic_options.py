"""What is set of the dynamic options: one small document in the metastore, and how it is read and changed.

All of it lies in one znode, so one read sees one state, one watch tells of every change, and a change is one
conditional write. Any node may make it; what it means is worked out where it is needed: min-ISR by whoever controls
(`repl.controller.controller`), the rest by each node for its replicas (`node.services.live_options`). Which options
there are is `config.dynamic_options`' affair; settings of a name that this version does not know are kept, and mean
nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec
import structlog
from msgspec import Struct

from isthmus.config.dynamic_options import MIN_ISR, OPTIONS, Value
from isthmus.repl.controller.election import TIMERS, Timers
from isthmus.repl.metastore.port import Metastore, Versioned
from isthmus.repl.metastore.watched_document import Document, decode_json
from isthmus.repl.model.record import PartitionRecord

log = structlog.get_logger(__name__)

OPTIONS_PATH: Final = "/options"

WHO_MAX: Final = 200
"""Characters of who set an option that are kept."""

Chosen = Mapping[str, "Setting"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One option as somebody set it. `at_ms` is wall-clock time, for people."""

    value: Value
    by: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class OptionSettings:
    """All that is set: for the cluster, and for bucket types by name. `version` is the document's, None when there is
    none yet."""

    cluster: Chosen = field(default_factory=dict)
    types: Mapping[str, Chosen] = field(default_factory=dict)
    version: int | None = None

    def of(self, bucket_type: str | None) -> Chosen:
        """What is set for one bucket type itself, or with None for the cluster."""
        return self.cluster if bucket_type is None else self.types.get(bucket_type, {})

    def setting(self, name: str, bucket_type: str | None = None) -> Setting | None:
        """What counts for a bucket type (or what has none of its own, with None): its own setting, else the cluster's;
        None when neither is set, or was written by another version and is none here."""
        for chosen in (self.of(bucket_type), self.cluster):
            found = chosen.get(name)
            if found is not None and _counts(name, found.value):
                return found
        return None

    def with_setting(self, name: str, bucket_type: str | None, setting: Setting | None) -> OptionSettings:
        """The same with one more setting, or with None for `setting` without it."""
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
        """The min-ISR that a partition's record is to have: as it is set, not yet clamped from above; when it is not
        set, one less than there are replicas."""
        found = self.setting(MIN_ISR, bucket_type)
        return max(1, replica_count - 1 if found is None else int(found.value))

    def timers(self) -> Timers:
        """The timers of elections."""
        return Timers(**{each: self.number(name) for each, name in _TIMERS.items()})

    def number(self, name: str) -> int:
        """What a cluster-wide number comes to."""
        found = self.setting(name)
        default = OPTIONS[name].default
        return int(default if found is None else found.value)  # type: ignore[arg-type]


_TIMERS: Final = {each: f"election.{each.removesuffix('_ms').replace('_', '.')}.millis" for each in TIMERS._fields}


def _counts(name: str, value: Value) -> bool:
    try:
        OPTIONS[name].parse(value)
    except (KeyError, ValueError):
        return False
    return True


def effective_min_isr(record: PartitionRecord, settings: OptionSettings) -> int:
    """What a partition's min-ISR is once its record says what is set."""
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
    metastore: Metastore, name: str, bucket_type: str | None, setting: Setting | None
) -> OptionSettings:
    """Set an option, or unset it if `setting` is None; returns all settings after the change. Raises NotReady when
    nothing was changed, OutcomeUnknown, Corruption, TooLarge."""
    after, written = await OPTIONS_DOCUMENT.change(
        metastore, lambda before: before.with_setting(name, bucket_type, setting)
    )
    if written:
        log.info(
            "options.changed",
            option=name,
            bucket_type=bucket_type,
            value=None if setting is None else setting.value,
            by=None if setting is None else setting.by,
        )
    return after
