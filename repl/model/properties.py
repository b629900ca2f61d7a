"""Effective bucket properties: the rules for writes and tombstones of one bucket. Pure.

`config.bucket_properties` defines the properties and their forms, `repl.controller.bucket_properties` stores what
operators set, and `objects` applies them to concurrent writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, Protocol

from isthmus.repl.model.errors import BadInput


class BadProperty(BadInput):
    """Unknown property, or a value that it cannot have; the message names what would be right."""

    reason = "bad-property"


class Properties(NamedTuple):
    """Effective properties of one bucket. A limit of 0 means the limit of the node.

    `reap_after_ms`: None keeps tombstones, 0 reaps them as soon as it is safe. `repl_reap`: reaps are announced to
    other clusters first, and theirs are accepted.
    """

    allow_mult: bool = True
    last_write_wins: bool = False
    dvv_enabled: bool = True
    reap_after_ms: int | None = None
    max_object_bytes: int = 0
    warn_object_bytes: int = 0
    max_siblings: int = 0
    warn_siblings: int = 0
    repl_reap: bool = False


DEFAULTS: Final = Properties()


@dataclass(frozen=True)
class TypeProperties:
    """Effective properties of the buckets of one bucket type: `buckets` with their own, all others with `default`."""

    default: Properties
    buckets: Mapping[bytes, Properties]

    def of(self, bucket: bytes) -> Properties:
        """The properties of `bucket`; called for each write."""
        return self.buckets.get(bucket, self.default)

    @cached_property
    def reaps(self) -> bool:
        """True when tombstones of some bucket may be reaped."""
        return any(each.reap_after_ms is not None or each.repl_reap for each in (self.default, *self.buckets.values()))


PLAIN: Final = TypeProperties(DEFAULTS, {})
"""A bucket type without any setting."""


class PropertySource(Protocol):
    """The properties of all bucket types, as they are now."""

    def of_type(self, bucket_type: bytes) -> TypeProperties:
        """The properties of a bucket type's buckets."""


@dataclass(frozen=True)
class FixedProperties:
    """A PropertySource whose bucket types all have the same properties."""

    properties: TypeProperties = PLAIN

    def of_type(self, _bucket_type: bytes) -> TypeProperties:
        """See PropertySource."""
        return self.properties


NO_SETTINGS: Final = FixedProperties()
"""A cluster in which no bucket type has any setting."""
