"""Digests of the bucket properties that must agree between clusters, and their comparison. Pure.

Each bucket type has one digest of 8 bytes (`repl.controller.bucket_properties`), which detects a difference. Short
digests of each *scope* locate it: a scope is a bucket type, or a bucket whose values are not its bucket type's, and its
digest has some bytes for each property.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote_from_bytes

from xxhash import xxh64_digest

from isthmus.config.bucket_properties import value_of
from isthmus.config.schema import Value

MUST_AGREE: Final = ("allow_mult", "last_write_wins", "dvv_enabled", "delete_mode", "repl_reap")
"""Properties that must agree: otherwise two clusters that replicate to each other drop different siblings, or keep
different tombstones. The digests of a scope have this order; append new ones at the end."""

VALUE_BYTES: Final = 2
"""Length of one value's digest. Two values of `delete_mode` collide with a probability of 1 in 65,536; their difference
is then shown for the bucket type only, whose digest is longer."""

SCOPES_MAX: Final = 200
"""Most scopes whose digests are sent, with each fetch. Beyond it, or beyond SCOPES_BYTES_MAX, none are sent."""

SCOPES_BYTES_MAX: Final = 16_000
"""Most bytes of names and digests of scopes that are sent."""

SCOPE_DIGEST_BYTES_MAX: Final = 64
"""Longest digest of one scope: enough for 32 properties, since later versions may have more than this one."""

NAMED_MAX: Final = 5
"""Most differences in a reason text, which is one line; the JSON listing has all."""

OF_TYPE: Final = b""
"""In place of a bucket's name: the bucket type itself. No bucket has an empty name."""

ScopeDigests = Mapping[bytes, Mapping[bytes, bytes]]
"""Bucket type -> bucket, or OF_TYPE -> digests of VALUE_BYTES each, one for each property of MUST_AGREE, concatenated.
An absent bucket has its bucket type's values, an absent bucket type the defaults."""


class PropertyDifference(NamedTuple):
    """Properties of one scope that two clusters have set differently.

    `bucket` None: the bucket type itself. `properties` empty: unknown which, and they may be the bucket type's or those
    of one of its buckets."""

    bucket_type: bytes
    bucket: bytes | None = None
    properties: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        """The difference as JSON."""
        bucket = None if self.bucket is None else quote_from_bytes(self.bucket)
        return {"bucket_type": _text(self.bucket_type), "bucket": bucket, "properties": list(self.properties)}


def scope_digest(values: Mapping[str, Value]) -> bytes:
    """The digest of a scope with these values; the other properties have their defaults."""
    digests = (xxh64_digest(json.dumps([name, value_of(name, values)]).encode()) for name in MUST_AGREE)
    return b"".join(each[:VALUE_BYTES] for each in digests)


PLAIN_SCOPE: Final = scope_digest({})
"""Digest of a bucket type without any setting."""


def within_bounds(scopes: ScopeDigests) -> bool:
    """Whether the digests are within the limits of number and size."""
    count = sum(len(buckets) for buckets in scopes.values())
    size = sum(
        len(kind) + len(bucket) + len(each) for kind, buckets in scopes.items() for bucket, each in buckets.items()
    )
    return count <= SCOPES_MAX and size <= SCOPES_BYTES_MAX


def differences(
    ours: Mapping[bytes, bytes],
    theirs: Mapping[bytes, bytes],
    our_scopes: ScopeDigests | None,
    their_scopes: ScopeDigests | None,
) -> tuple[PropertyDifference, ...]:
    """The differences between two clusters, sorted.

    `ours` and `theirs`: digest of each bucket type, which decides whether it differs; an absent one has the defaults.
    If a side sent no scopes (None), a difference names the bucket type only."""
    if ours == theirs:
        return ()
    found: list[PropertyDifference] = []
    for kind in sorted(kind for kind in ours.keys() | theirs.keys() if ours.get(kind) != theirs.get(kind)):
        named: list[PropertyDifference] = []
        if our_scopes is not None and their_scopes is not None:
            named = _of_type(kind, our_scopes.get(kind, {}), their_scopes.get(kind, {}))
        found += named or [PropertyDifference(kind)]
    return tuple(found)


def _of_type(kind: bytes, ours: Mapping[bytes, bytes], theirs: Mapping[bytes, bytes]) -> list[PropertyDifference]:
    our_type, their_type = _values(ours.get(OF_TYPE, PLAIN_SCOPE)), _values(theirs.get(OF_TYPE, PLAIN_SCOPE))
    of_type = _names(our_type, their_type)
    found = [PropertyDifference(kind, None, of_type)] if of_type else []
    for bucket in sorted((ours.keys() | theirs.keys()) - {OF_TYPE}):
        mine = _values(ours[bucket]) if bucket in ours else our_type
        other = _values(theirs[bucket]) if bucket in theirs else their_type
        inherited = set(of_type) - set(_names(mine, our_type)) - set(_names(other, their_type))
        own = tuple(name for name in _names(mine, other) if name not in inherited)
        if own:
            found.append(PropertyDifference(kind, bucket, own))
    return found


def _values(digest: bytes) -> list[bytes]:
    return [digest[at : at + VALUE_BYTES] for at in range(0, len(digest), VALUE_BYTES)]


def _names(one: Sequence[bytes], other: Sequence[bytes]) -> tuple[str, ...]:
    """The properties whose digests differ, among those that both sides know."""
    return tuple(name for name, a, b in zip(MUST_AGREE, one, other, strict=False) if a != b)


def merged(found: Iterable[PropertyDifference]) -> list[PropertyDifference]:
    """Distinct differences, sorted; one without properties is left out if another of its bucket type names some."""
    every = set(found)
    precise = {one.bucket_type for one in every if one.properties}
    kept = (one for one in every if one.properties or one.bucket_type not in precise)
    return sorted(kept, key=lambda one: (one.bucket_type, one.bucket or b"", one.properties))


def types_of(found: Iterable[PropertyDifference]) -> list[str]:
    """The names of the bucket types, each once, sorted."""
    return [_text(kind) for kind in sorted({one.bucket_type for one in found})]


def differences_shown(found: Iterable[PropertyDifference]) -> str:
    """At most NAMED_MAX differences as text."""
    every = merged(found)
    named = every[:NAMED_MAX]
    parts = [f"{_scope(one)}: {', '.join(one.properties)}" for one in named if one.properties]
    if types := [_text(one.bucket_type) for one in named if not one.properties]:
        parts.append(f"{', '.join(types)}: of the bucket type or of one of its buckets")
    if more := len(every) - len(named):
        parts.append(f"and {more} more")
    return "; ".join(parts)


def _scope(one: PropertyDifference) -> str:
    kind = _text(one.bucket_type)
    return f"bucket type {kind}" if one.bucket is None else f"bucket {kind}/{quote_from_bytes(one.bucket)}"


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
