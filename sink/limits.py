"""Limits of a sink that operators set while it runs: workers, workers per peer, rates.

They are in the metastore (`sink.operator_settings`), with entries for all nodes ("*") or for one by its name, so that
limits outlast restarts and record who and when. Field by field, a node uses its own entry, else that of all nodes,
else its config file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

import structlog
from msgspec import Meta, Struct
from msgspec.structs import replace

from isthmus.queues.json_document import decode_json, encode_json, json_document
from isthmus.repl.metastore.watched_document import Document
from isthmus.repl.model.errors import BadInput, CodecError
from isthmus.sink.suspensions import SETTINGS_PATH, SinkSuspension

log = structlog.get_logger(__name__)

PATH: Final = "/sink/limits"

ALL_NODES: Final = "*"

ENTRIES_MAX: Final = 256
"""Most entries; a cluster has a handful of nodes."""

NUMBERS: Final = ("workers", "peer_limit", "bytes_per_second", "objects_per_second")

Limit = Annotated[int, Meta(ge=0)] | None


class SinkLimits(Struct, frozen=True):
    """One entry; None: not set here. 0 of a rate: no limit; 0 of `peer_limit`: an equal share for each peer."""

    workers: Limit = None
    peer_limit: Limit = None
    bytes_per_second: Limit = None
    objects_per_second: Limit = None
    by: str = ""
    at_ms: int = 0
    reason: str = ""


Entries = dict[str, SinkLimits]


class EffectiveLimits(NamedTuple):
    """The limits in effect at one node; `set_by` is the newest entry that any of them comes from."""

    workers: int
    peer_limit: int
    bytes_per_second: int
    objects_per_second: int
    set_by: SinkLimits | None


def limits_for(node: str, entries: Mapping[str, SinkLimits], default: EffectiveLimits) -> EffectiveLimits:
    """The limits in effect at `node`."""
    found: dict[str, Any] = {}
    used: list[SinkLimits] = []
    for name in NUMBERS:
        for entry in (entries.get(node), entries.get(ALL_NODES)):
            if entry is not None and (value := getattr(entry, name)) is not None:
                found[name] = value
                used.append(entry)
                break
    return default._replace(**found, set_by=max(used, key=lambda entry: entry.at_ms, default=None))


def decode(value: bytes) -> Entries:
    """The entries in a metastore value. Raises CodecError."""
    return decode_json(value, dict[str, SinkLimits], "list of a sink's limits")


DOCUMENT: Final[Document[Entries]] = json_document(PATH, decode, encode_json, {})

_REPAIR: Final = "isthmus sink throttle --default, on all nodes, ends all that is set; then set what is to be set"


def unread(at_ms: int) -> SinkSuspension:
    """Placeholder that suspends all links, since `at_ms` (wall clock), while the limits have not been read."""
    where = f"{PATH}, or limits in {SETTINGS_PATH}"
    why = f"the limits that operators have set cannot be read (metastore: {where}): {_REPAIR}"
    return SinkSuspension(None, None, "?", at_ms, why)


def changed(entries: Entries, node: str, new: SinkLimits, *, unset: bool) -> Entries:
    """`entries`, with the fields of `new` that are not None set for `node` (or ALL_NODES), or with `unset` removed.
    Raises BadInput at the limit."""
    before = entries.get(node, SinkLimits())
    given = {name: None if unset else getattr(new, name) for name in NUMBERS if getattr(new, name) is not None}
    after = replace(before, **given, by=new.by, at_ms=new.at_ms, reason=new.reason)
    found = dict(entries)
    if any(getattr(after, name) is not None for name in NUMBERS):
        found[node] = after
    else:
        found.pop(node, None)
    if len(found) > ENTRIES_MAX:
        raise BadInput(f"limits are kept for {ENTRIES_MAX} nodes at most")
    return found


def replace_unreadable(error: CodecError, *, all_unset: bool) -> Entries:
    """The value to change where the document cannot be decoded: none, if `all_unset`, else raises BadInput."""
    if not all_unset:
        raise BadInput(f"the limits that are set cannot be read ({error}): {_REPAIR}") from error
    log.warning("sink.unreadable_limits_ended", value=str(error)[:200])
    return {}
