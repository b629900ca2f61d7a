"""What an operator has set of a sink's limits while it runs: workers, workers per peer, rates.

Kept in the metastore as one small JSON object, for all nodes ("*") or for one by its name, so that it survives
restarts and says who and when. A node takes, field by field, its own entry, else that of all nodes, else its file.
`settings_for` is pure; `change` writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, NamedTuple

import structlog

from isthmus.queues.queue_documents import change_value, json_object, read_value
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.model.errors import BadInput, CodecError
from isthmus.sink.suspensions import SinkSuspension

log = structlog.get_logger(__name__)

PATH: Final = "/sink/limits"

ALL_NODES: Final = "*"

ENTRIES_MAX: Final = 256
"""Most entries kept; a cluster has a handful of nodes."""

NUMBERS: Final = ("workers", "peer_limit", "bytes_per_second", "objects_per_second")


@dataclass(frozen=True, slots=True)
class SinkLimits:
    """One entry; None: not set here. 0 of a rate: no limit; 0 of `peer_limit`: an equal share for each peer."""

    workers: int | None = None
    peer_limit: int | None = None
    bytes_per_second: int | None = None
    objects_per_second: int | None = None
    by: str = ""
    at_ms: int = 0
    reason: str = ""


class EffectiveLimits(NamedTuple):
    """What counts at one node; `set_by` is the newest entry that any of it comes from."""

    workers: int
    peer_limit: int
    bytes_per_second: int
    objects_per_second: int
    set_by: SinkLimits | None


def settings_for(node: str, entries: Mapping[str, SinkLimits], default: EffectiveLimits) -> EffectiveLimits:
    """What counts at `node`."""
    found: dict[str, Any] = {}
    used: list[SinkLimits] = []
    for name in NUMBERS:
        for entry in (entries.get(node), entries.get(ALL_NODES)):
            if entry is not None and (value := getattr(entry, name)) is not None:
                found[name] = value
                used.append(entry)
                break
    return default._replace(**found, set_by=max(used, key=lambda entry: entry.at_ms, default=None))


def decode(value: bytes) -> dict[str, SinkLimits]:
    """The entries in a metastore value. Raises CodecError."""
    found = {}
    for node, row in json_object(value, "list of a sink's limits").items():
        if not isinstance(row, dict):
            raise CodecError(f"{PATH} in the metastore: {node!r} is no object")
        numbers = {name: row.get(name) for name in NUMBERS}
        if not all(value is None or (type(value) is int and value >= 0) for value in numbers.values()):
            raise CodecError(f"{PATH} in the metastore: a limit of {node!r} is no number from 0")
        texts = {"by": str(row.get("by", "")), "reason": str(row.get("reason", ""))}
        at_ms = row.get("at_ms")
        found[node] = SinkLimits(**numbers, **texts, at_ms=at_ms if type(at_ms) is int else 0)  # type: ignore[arg-type]
    return found


def encode(entries: Mapping[str, SinkLimits]) -> bytes:
    """A metastore value."""
    return json.dumps({node: asdict(entry) for node, entry in entries.items()}).encode()


async def read(metastore: Metastore) -> dict[str, SinkLimits]:
    """What is set now. Raises NotReady, CodecError."""
    found = await read_value(metastore, PATH)
    return {} if found is None else decode(found.value)


def unread(at_ms: int) -> SinkSuspension:
    """Stands, since `at_ms` (wall clock), where nobody could read yet which limits are set."""
    why = f"the limits that operators have set cannot be read (metastore: {PATH}): {_ANEW}"
    return SinkSuspension(None, None, "?", at_ms, why)


_ANEW: Final = "isthmus sink throttle --default, on all nodes, ends all that is set; then set what is to be set"


def _to_change(value: bytes | None, *, anew: bool) -> dict[str, SinkLimits]:
    """What stands there, for who changes it; with `anew` what cannot be read is nothing. Raises BadInput."""
    try:
        return {} if value is None else decode(value)
    except CodecError as error:
        if not anew:
            raise BadInput(f"the limits that are set cannot be read ({error}): {_ANEW}") from error
        log.warning("sink.unreadable_limits_ended", value=repr(value)[:200])
        return {}


async def change(metastore: Metastore, node: str, wish: SinkLimits, forget: bool = False) -> dict[str, SinkLimits]:
    """Set the fields of `wish` that are not None for `node` (or ALL_NODES), with `forget` instead unset them; returns
    what is set then. Raises NotReady, BadInput at the limit."""

    def changed(current: bytes | None) -> bytes:
        entries = _to_change(current, anew=forget and node == ALL_NODES)
        before = entries.get(node, SinkLimits())
        given = {name: None if forget else getattr(wish, name) for name in NUMBERS if getattr(wish, name) is not None}
        after = replace(before, **given, by=wish.by, at_ms=wish.at_ms, reason=wish.reason)
        if any(getattr(after, name) is not None for name in NUMBERS):
            entries[node] = after
        else:
            entries.pop(node, None)
        if len(entries) > ENTRIES_MAX:
            raise BadInput(f"limits are kept for {ENTRIES_MAX} nodes at most")
        return encode(entries)

    value = await change_value(metastore, PATH, changed)
    return {} if value is None else decode(value)


assert {f.name for f in fields(SinkLimits)} == {*NUMBERS, "by", "at_ms", "reason"}
