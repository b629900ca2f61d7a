"""Properties of bucket types and buckets for both HTTP APIs and the command line: read, check, change.

The properties are defined in `config.bucket_properties` and kept in the metastore by
`repl.controller.bucket_properties`. A change is in force on this node when its request is answered, and on the others
as soon as their watch fires.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, Protocol, cast

from isthmus.config.bucket_properties import PROPERTIES, check_settable, parse_property, shown_properties
from isthmus.config.schema import Value
from isthmus.config.settings import Effect
from isthmus.node.nouns.bucket_type import PropertyRow
from isthmus.repl.controller.bucket_properties import (
    PropertyCache,
    PropertyScope,
    PropertySettings,
    change_properties,
    check_own,
)
from isthmus.repl.controller.stored_setting import Setting
from isthmus.repl.coordinator.routing import UnknownBucketType
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.model.errors import BadInput
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.model.properties import BadProperty
from isthmus.repl.model.record import PartitionRecord

BUCKETS_NAMED: Final = 5
"""Buckets that a note names; of more it has the number."""


class PartitionRecords(Protocol):
    """The cluster's partitions, as this node last read them (`repl.controller.controller.Controller`)."""

    @property
    def records(self) -> Mapping[int, PartitionRecord]:
        """Partition -> its record."""


class PropertyService:
    """The properties in force on one node, and changes of them."""

    def __init__(
        self,
        cache: PropertyCache,
        metastore: Metastore,
        time: TimeSource,
        *,
        partitions: PartitionRecords,
        key_limit_bytes: int,
    ) -> None:
        self.cache = cache
        self._metastore = metastore
        self._time = time
        self._partitions = partitions
        self._key_limit = key_limit_bytes

    def scope(self, bucket_type: bytes, bucket: bytes | None) -> PropertyScope:
        """The scope of a bucket type or bucket. Raises UnknownBucketType, BadInput for an impossible bucket."""
        kinds = {record.bucket_type for record in self._partitions.records.values()}
        name = bucket_type.decode(errors="replace")
        if name not in kinds:
            raise UnknownBucketType(f"bucket type {name!r} does not exist: known are {', '.join(sorted(kinds))}")
        if bucket is not None and not 0 < len(bucket) <= self._key_limit:
            raise BadInput(f"a bucket has 1 to {self._key_limit} bytes (limits.key_size)")
        return PropertyScope(name, bucket)

    def shown(self, scope: PropertyScope) -> dict[str, Any]:
        """All properties in force for a scope, by Riak's names."""
        return shown_properties(self.cache.settings.values(scope), self.factor(scope))

    def own(self, scope: PropertyScope) -> dict[str, Value]:
        """The properties that are set for the scope itself, as this node knows them."""
        return {name: setting.value for name, setting in self.cache.settings.own(scope).items()}

    def rows(self, scope: PropertyScope, settings: PropertySettings | None = None) -> list[PropertyRow]:
        """A row for each property that may be set: value in force, origin ("bucket", "bucket type" or "default"), by
        whom, when and why, whether it has an effect, and its meaning. With `settings` as if these were set."""
        settings = self.cache.settings if settings is None else settings
        rows = []
        for name, known in sorted(PROPERTIES.items()):
            setting, origin = known.preceding(settings.by_scope(name, scope))
            rows.append(
                PropertyRow(
                    name,
                    value=known.default if setting is None else setting.value,
                    origin=cast('Literal["bucket", "bucket type", "default"]', origin),
                    by=None if setting is None else setting.by,
                    at_ms=None if setting is None else setting.at_ms,
                    reason=None if setting is None else setting.reason,
                    default=known.default,
                    acts=known.effect is not Effect.NONE,
                    right=known.form.allowed,
                    meaning=known.meaning,
                )
            )
        return rows

    def judged(self, wanted: Mapping[str, Any], factor: int | None) -> dict[str, Value]:
        """The values to keep for `wanted` properties of a bucket type of that replication factor, or of a bucket in it.
        Raises BadProperty for the first that is wrong."""
        try:
            found = {name: parse_property(name, raw, factor) for name, raw in wanted.items()}
        except ValueError as error:
            raise BadProperty(str(error)) from None
        return {name: value for name, value in found.items() if value is not None}

    async def set(
        self,
        scope: PropertyScope,
        wanted: Mapping[str, Any],
        by: str,
        reason: str = "",
        expected: Mapping[str, Value] | None = None,
    ) -> None:
        """Set properties. `expected`: the scope's own properties that the operator saw, None for whatever they are.
        Raises BadProperty, TooManyProperties, ChangedMeanwhile, NotReady, OutcomeUnknown."""
        if changes := self._wanted(scope, wanted, by, reason):
            self.cache.learn(await change_properties(self._metastore, scope, changes, expected=expected))

    async def unset(
        self, scope: PropertyScope, names: list[str], expected: Mapping[str, Value] | None = None
    ) -> list[str]:
        """Unset properties, all with no names; returns those that were set. Raises as `set`."""
        check_names(names)
        found = self._own_of(scope, names)
        self.cache.learn(
            await change_properties(self._metastore, scope, dict.fromkeys(names), alone=not names, expected=expected)
        )
        return found

    def as_if_set(
        self,
        scope: PropertyScope,
        wanted: Mapping[str, Any],
        by: str,
        reason: str,
        expected: Mapping[str, Value] | None,
    ) -> PropertySettings:
        """All settings as `set` would leave them, by what this node knows. Raises as `set`."""
        check_own(self.cache.settings, scope, wanted, alone=False, expected=expected)
        return self.cache.settings.changed(scope, self._wanted(scope, wanted, by, reason))

    def as_if_unset(
        self, scope: PropertyScope, names: list[str], expected: Mapping[str, Value] | None
    ) -> tuple[PropertySettings, list[str]]:
        """All settings as `unset` would leave them, and the properties that are set. Raises as `set`."""
        check_names(names)
        check_own(self.cache.settings, scope, names, alone=not names, expected=expected)
        return self.cache.settings.changed(scope, dict.fromkeys(names), alone=not names), self._own_of(scope, names)

    def notes(self, scope: PropertyScope, names: Iterable[str]) -> list[str]:
        """Notes for an operator on a change of these properties."""
        names = sorted(names)
        without_effect = [name for name in names if PROPERTIES[name].effect is Effect.NONE]
        found = [f"{name} is stored and shown, and has no effect" for name in without_effect]
        if scope.bucket is None:
            buckets = [
                each.shown
                for each, own in sorted(self.cache.settings.scopes.items(), key=lambda row: row[0].shown)
                if each.bucket_type == scope.bucket_type and each.bucket is not None and own.keys() & set(names)
            ]
            if buckets:
                more = f" and {len(buckets) - BUCKETS_NAMED} more" if len(buckets) > BUCKETS_NAMED else ""
                what = "their own values precede" if len(buckets) > 1 else "its own value precedes"
                found.append(f"{', '.join(buckets[:BUCKETS_NAMED])}{more}: {what} the bucket type's")
        return found

    def _own_of(self, scope: PropertyScope, names: list[str]) -> list[str]:
        """Those of `names`, or with none all, that are set for the scope itself."""
        return sorted(name for name in self.cache.settings.own(scope) if not names or name in names)

    def _wanted(self, scope: PropertyScope, wanted: Mapping[str, Any], by: str, reason: str) -> dict[str, Setting]:
        at_ms = self._time.wall_ms()
        values = self.judged(wanted, self.factor(scope))
        return {name: Setting.made(value, by, at_ms, reason) for name, value in values.items()}

    def factor(self, scope: PropertyScope) -> int | None:
        """The replication factor of a scope; None when its partitions differ."""
        factors = {r.factor for r in self._partitions.records.values() if r.bucket_type == scope.bucket_type}
        return factors.pop() if len(factors) == 1 else None


def check_names(names: list[str]) -> None:
    """Raises BadProperty for a name that cannot be set."""
    try:
        for name in names:
            check_settable(name)
    except ValueError as error:
        raise BadProperty(str(error)) from None
