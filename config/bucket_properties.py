"""Properties of bucket types and buckets: the closed table of names, defaults and allowed values.

They have Riak's names and meanings, with a few additions. Some have an effect (`repl.model.properties`). Some are only
stored and shown, because Riak's clients set and read them. Some have one fixed value.
`repl.controller.bucket_properties` stores them; docs/settings.md is generated from these tables. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from isthmus.config.forms import BYTES, MILLISECONDS, Flag, Form, WholeNumber, WordOrNumber
from isthmus.config.schema import SettingDefinition, SettingScope, Value
from isthmus.config.settings import Effect
from isthmus.config.text import no_such, shown, similar

NUMBER_MAX: Final = 1_000_000_000_000
"""Largest number: a terabyte, or 31 years in milliseconds. A larger one is a mistake about its unit."""

DELAY_MAX_MS: Final = 366 * 86_400_000
"""Longest `delete_mode` delay, a year; `keep` has no limit."""

KEEP: Final = "keep"
IMMEDIATE: Final = "immediate"

_FLAG: Final = Flag()
_COUNT: Final = WholeNumber(0, NUMBER_MAX)
_SIZE_LIMIT: Final = WholeNumber(0, NUMBER_MAX, BYTES, zero="the node's own limit")
_COUNT_LIMIT: Final = WholeNumber(0, NUMBER_MAX, zero="the node's own limit")
_QUORUM: Final = WordOrNumber(("one", "quorum", "all", "default"), _COUNT)
_DELAY: Final = WordOrNumber((KEEP, IMMEDIATE), WholeNumber(1, DELAY_MAX_MS, MILLISECONDS))
_NO_QUORUM: Final = "every in-sync replica has a write, a read names its isolation"
_NO_PRUNING: Final = "a clock has one entry per partition and is never pruned"


def _property(
    name: str, form: Form, default: Value, meaning: str, effect: Effect = Effect.AT_ONCE
) -> SettingDefinition:
    return SettingDefinition(name, form, default, (SettingScope.BUCKET, SettingScope.BUCKET_TYPE), effect, meaning)


def _stored(name: str, form: Form, default: Value, why: str) -> SettingDefinition:
    """A property without an effect, and why it needs none."""
    return _property(name, form, default, f"stored and shown without effect: {why}", Effect.NONE)


_TABLE: Final = (
    _property("allow_mult", _FLAG, True, "concurrent writes are kept as siblings; false: only the newest by "
              "last-modified is kept"),
    _property("last_write_wins", _FLAG, False, "a write replaces all siblings, whatever its vclock covers"),
    _property("dvv_enabled", _FLAG, True, "a write replaces exactly the siblings that its vclock covers; false: all of "
              "them if the vclock covers all, else none"),
    _property("delete_mode", _DELAY, KEEP, "when a tombstone may be reaped: never, as soon as it is safe, or after a "
              "delay"),
    _property("repl_reap", _FLAG, False, "other clusters are notified before a tombstone is reaped, and reap their own "
              "copy if the property is on there"),
    _property("max_object_size", _SIZE_LIMIT, 0, "largest value, within `limits.object_size`; above it 413"),
    _property("warn_object_size", _SIZE_LIMIT, 0, "larger values are logged and counted"),
    _property("max_siblings", _COUNT_LIMIT, 0, "most siblings, within `limits.siblings`; above it 422"),
    _property("warn_siblings", _COUNT_LIMIT, 0, "objects with more are logged and counted"),
    *(_stored(name, _QUORUM, "quorum", _NO_QUORUM) for name in ("r", "w", "dw", "rw")),
    *(_stored(name, _QUORUM, 0, _NO_QUORUM) for name in ("pr", "pw", "node_confirms")),
    _stored("basic_quorum", _FLAG, False, _NO_QUORUM),
    _stored("notfound_ok", _FLAG, True, _NO_QUORUM),
    _stored("small_vclock", _COUNT, 50, _NO_PRUNING),
    _stored("big_vclock", _COUNT, 50, _NO_PRUNING),
    _stored("young_vclock", _COUNT, 20, _NO_PRUNING),
    _stored("old_vclock", _COUNT, 86_400, _NO_PRUNING),
)  # fmt: skip

PROPERTIES: Final[Mapping[str, SettingDefinition]] = {each.name: each for each in _TABLE}
"""Properties that may be set, by name."""

_STORE: Final = "the only backend is LevelDB"
_HOOKS: Final = "commit hooks are not supported: check values before writing, feed other programs from a queue"
_ONE_HASH: Final = "the hash that assigns keys to partitions cannot be changed"


class Fixed(NamedTuple):
    """A property that can only have one value here, and why."""

    value: Any
    why: str


FIXED: Final[Mapping[str, Fixed]] = {
    "precommit": Fixed([], _HOOKS),
    "postcommit": Fixed([], _HOOKS),
    "chash_keyfun": Fixed({"mod": "riak_core_util", "fun": "chash_std_keyfun"}, _ONE_HASH),
    "linkfun": Fixed({"mod": "riak_kv_wm_link_walker", "fun": "mapreduce_linkfun"}, "link walking is not supported"),
    "sync_on_write": Fixed("all", "every in-sync replica has a write on its disk before it is acknowledged "
                           "(replication.durability)"),
    "write_once": Fixed(False, "there is no write-once path: write with If-None-Match: *"),
}  # fmt: skip
"""Shown as Riak shows them; any other value is refused."""

ABSENT: Final[Mapping[str, tuple[Any, str]]] = {
    "backend": ("leveldb", _STORE),
    "consistent": (False, "strong consistency is not a property: send a conditional write (If-Match, If-None-Match)"),
    "datatype": ("", "counters and data types are not supported: write values, merge siblings in the client"),
    "search": (False, "search is not supported: feed a search engine from a queue"),
    "search_index": ("", "search is not supported: feed a search engine from a queue"),
    "aae_tree_exclude": (False, "every key is in the trees: the scope of a full-sync selects the keys to compare"),
    "repl": ("both", "the filters of the queues decide what is replicated (docs/replication.md), not properties"),
    "ttl": (0, "objects do not expire"),
}
"""Not shown. The value that equals leaving the property out is accepted, any other is refused."""

DESCRIPTIVE: Final = frozenset({"name", "active", "claimant", "young", "bucket_type"})
"""Read-only fields of a listing; accepted and ignored, because clients write back the properties that they read."""


def parse_property(name: str, raw: Any, factor: int | None) -> Value | None:
    """The value to store for one property; None if `raw` is its fixed value and nothing is to be stored.

    `factor` is the replication factor of the bucket type, None when its partitions differ. Raises ValueError.
    """
    if name in PROPERTIES:
        value: Value = PROPERTIES[name].typed(raw)
        return value
    if name in DESCRIPTIVE:
        return None
    if name == "n_val":
        if factor is not None and raw not in (factor, str(factor)):
            raise ValueError(
                f"n_val: {_shown(raw)} is not the replication factor of the bucket type, {factor}; "
                "`isthmus bucket-type set-replication-factor` changes it"
            )
        return None
    if name in FIXED:
        value_here, why = FIXED[name]
    elif name in ABSENT:
        value_here, why = ABSENT[name]
    else:
        raise ValueError(_unknown(name))
    if raw != value_here and not (type(raw) is str and raw == _typed(value_here)):
        raise ValueError(f"{name}: {_shown(raw)} is not possible; {why}")
    return None


def check_settable(name: str) -> None:
    """Raises ValueError unless a property of that name may be set."""
    if name not in PROPERTIES:
        raise ValueError(_unknown(name))


def _unknown(name: str) -> str:
    return no_such("property", name, similar(name, [*PROPERTIES, *FIXED, *ABSENT, "n_val"]) or list(PROPERTIES))


def _typed(value: Any) -> str:
    return str(value).lower() if type(value) is bool else "" if value == [] else str(value)


def _shown(raw: Any) -> str:
    return shown(raw) if type(raw) is str else shown(str(raw).lower() if type(raw) is bool else repr(raw))


def value_of(name: str, chosen: Mapping[str, Value]) -> Value:
    """The value of a property in effect: the chosen one, else the default."""
    return chosen.get(name, PROPERTIES[name].default)


def shown_properties(chosen: Mapping[str, Value], factor: int | None) -> dict[str, Any]:
    """All properties by name, sorted, with the values as Riak shows them."""
    values: dict[str, Any] = {name: value_of(name, chosen) for name in PROPERTIES}
    values |= {name: fixed.value for name, fixed in FIXED.items()}
    values["n_val"] = factor
    return dict(sorted(values.items()))
