"""What the properties of a bucket come to: what a leader goes by when it takes a write, and what becomes of tombstones.

Which properties there are and how they are written is `config.bucket_properties`' affair, what is set
`repl.controller.bucket_properties`'; what they make of concurrent writes is `objects`'. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from isthmus.repl.model.errors import BadInput


class BadProperty(BadInput):
    """There is no such property, or it cannot have this value; the message says what would be right."""

    reason = "bad-property"


class Properties(NamedTuple):
    """What counts for the keys of one bucket. Limits of 0 are the node's own. `reap_after_ms` None: tombstones are
    kept; 0: reaped as soon as it is safe. `repl_reap`: other clusters are told first, and tell us."""

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
    """What counts for the buckets of one type: those with properties of their own, and all others."""

    default: Properties
    buckets: Mapping[bytes, Properties]

    def of(self, bucket: bytes) -> Properties:
        """One look-up: this is asked for every write."""
        return self.buckets.get(bucket, self.default)

    @cached_property
    def reaps(self) -> bool:
        """True when tombstones of some bucket may be reaped."""
        return any(each.reap_after_ms is not None or each.repl_reap for each in (self.default, *self.buckets.values()))


PLAIN: Final = TypeProperties(DEFAULTS, {})
"""Of a bucket type of which nothing is set."""
