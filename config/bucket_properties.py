"""Properties of bucket types and buckets: the closed table of names, defaults and allowed values.

They have Riak's names and meanings, with a few additions. Some have an effect (`repl.model.properties`). Some are only
stored and shown, because Riak's clients set and read them. Some have one fixed value. A bucket's own setting precedes
its bucket type's, which precedes the default. `repl.controller.bucket_properties` stores them; docs/settings.md is
generated from these tables. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from isthmus.config.text import shown, similar
from isthmus.config.units import parse_duration, parse_size

Value = bool | int | str
"""A value of a property."""

NUMBER_MAX: Final = 1_000_000_000_000
"""Largest number: a terabyte, or 31 years in milliseconds. A larger one is a mistake about its unit."""

DELAY_MAX_MS: Final = 366 * 86_400_000
"""Longest `delete_mode` delay, a year; `keep` has no limit."""

KEEP: Final = "keep"
IMMEDIATE: Final = "immediate"

QUORUM_WORDS: Final = ("one", "quorum", "all", "default")


@dataclass(frozen=True, slots=True)
class Property:
    """A property that may be set.

    `parse` returns the value of a text or JSON value, or raises ValueError. `right` describes the allowed values.
    `acts`: the property has an effect; otherwise it is only stored and shown."""

    name: str
    default: Value
    right: str
    parse: Callable[[Any], Value]
    meaning: str
    acts: bool = True


def _flag(raw: Any) -> Value:
    if type(raw) is bool:
        return raw
    if type(raw) is str and raw.lower() in ("true", "false"):
        return raw.lower() == "true"
    raise ValueError


def _whole(raw: Any) -> int:
    if type(raw) is str and raw.isascii() and raw.isdigit() and len(raw) <= len(str(NUMBER_MAX)):
        raw = int(raw)
    if type(raw) is not int or not 0 <= raw <= NUMBER_MAX:
        raise ValueError
    return raw


def _size(raw: Any) -> Value:
    try:
        return _whole(raw)
    except ValueError:
        return _whole(parse_size(raw) if type(raw) is str else raw)


def _quorum(raw: Any) -> Value:
    return str(raw) if raw in QUORUM_WORDS else _whole(raw)


def _delete_mode(raw: Any) -> Value:
    if raw in (KEEP, IMMEDIATE):
        return str(raw)
    try:
        delay_ms = _whole(raw)
    except ValueError:
        delay_ms = parse_duration(raw) if type(raw) is str else -1
    if not 0 < delay_ms <= DELAY_MAX_MS:
        raise ValueError
    return delay_ms


_FLAG: Final = "true or false"
_NUMBER: Final = "a whole number from 0"
_SIZE: Final = 'a number of bytes or a size as "5MB"; 0: the node\'s own limit'
_COUNT: Final = "a whole number; 0: the node's own limit"
_QUORUM: Final = "a whole number from 0, one, quorum, all or default"
_NO_QUORUM: Final = "stored and shown without effect: every in-sync replica has a write, a read names its isolation"
_NO_PRUNING: Final = "stored and shown without effect: a clock has one entry per partition and is never pruned"

_TABLE: Final = (
    Property("allow_mult", True, _FLAG, _flag, "concurrent writes are kept as siblings; false: only the newest by "
             "last-modified is kept"),
    Property("last_write_wins", False, _FLAG, _flag, "a write replaces all siblings, whatever its vclock covers"),
    Property("dvv_enabled", True, _FLAG, _flag, "a write replaces exactly the siblings that its vclock covers; false: "
             "all of them if the vclock covers all, else none"),
    Property("delete_mode", KEEP, 'keep, immediate, or a delay in milliseconds or as "3s", up to 366d', _delete_mode,
             "when a tombstone may be reaped"),
    Property("repl_reap", False, _FLAG, _flag, "other clusters are notified before a tombstone is reaped, and reap "
             "their own copy if the property is on there"),
    Property("max_object_size", 0, _SIZE, _size, "largest value, within `limits.object_size`; above it 413"),
    Property("warn_object_size", 0, _SIZE, _size, "larger values are logged and counted"),
    Property("max_siblings", 0, _COUNT, _whole, "most siblings, within `limits.siblings`; above it 422"),
    Property("warn_siblings", 0, _COUNT, _whole, "objects with more are logged and counted"),
    *(Property(name, "quorum", _QUORUM, _quorum, _NO_QUORUM, acts=False) for name in ("r", "w", "dw", "rw")),
    *(Property(name, 0, _QUORUM, _quorum, _NO_QUORUM, acts=False) for name in ("pr", "pw", "node_confirms")),
    Property("basic_quorum", False, _FLAG, _flag, _NO_QUORUM, acts=False),
    Property("notfound_ok", True, _FLAG, _flag, _NO_QUORUM, acts=False),
    Property("small_vclock", 50, _NUMBER, _whole, _NO_PRUNING, acts=False),
    Property("big_vclock", 50, _NUMBER, _whole, _NO_PRUNING, acts=False),
    Property("young_vclock", 20, _NUMBER, _whole, _NO_PRUNING, acts=False),
    Property("old_vclock", 86_400, _NUMBER, _whole, _NO_PRUNING, acts=False),
)  # fmt: skip

PROPERTIES: Final[Mapping[str, Property]] = {each.name: each for each in _TABLE}
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
    found = PROPERTIES.get(name)
    if found is not None:
        try:
            value = found.parse(raw)
        except ValueError:
            raise ValueError(f"{name} is {found.right}, not {_shown(raw)}") from None
        return value
    if name in DESCRIPTIVE:
        return None
    if name == "n_val":
        if factor is not None and raw not in (factor, str(factor)):
            raise ValueError(
                f"n_val is the replication factor of the bucket type, {factor}: `isthmus bucket-type "
                "set-replication-factor` changes it"
            )
        return None
    if name in FIXED:
        value_here, why = FIXED[name]
    elif name in ABSENT:
        value_here, why = ABSENT[name]
    else:
        raise ValueError(_unknown(name))
    if raw != value_here and not (type(raw) is str and raw == _typed(value_here)):
        raise ValueError(f"{name} cannot be {_shown(raw)}: {why}")
    return None


def known_property(name: str) -> Property:
    """The property of that name that may be set. Raises ValueError."""
    if name not in PROPERTIES:
        raise ValueError(_unknown(name))
    return PROPERTIES[name]


def _unknown(name: str) -> str:
    close = similar(name, [*PROPERTIES, *FIXED, *ABSENT, "n_val"])
    hint = f'did you mean "{close[0]}"?' if close else f"known are {', '.join(PROPERTIES)}"
    return f"no such property: {_shown(name)}; {hint}"


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
