"""What the metastore keeps of a queue beside its cursors: who owns it, and what an operator suspended.

Small JSON values under `/queues/NAME/`, each moved by conditional writes only; nothing here decides when.
`change_value` is also how the sink keeps its suspensions. The story goes on in `queues.registry`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from repl.metastore.port import Ambiguous, Conflict, Metastore, Unavailable, Versioned
from repl.model.errors import CodecError, NotReady

CHANGE_ATTEMPTS: Final = 8
"""How often a conditional write is tried against other writers before it is refused as not ready."""

SERVING_SUSPENDED: Final = "serving"
"""What of a queue may be suspended in this version: giving out (the cursor waits)."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The sink cluster that a queue belongs to, since when (wall clock), and which node's fetch made it so."""

    cluster: bytes
    name: str
    version: int
    since_ms: int
    by: str


@dataclass(frozen=True, slots=True)
class Suspension:
    """An operator's act: who, when (wall clock) and why."""

    by: str
    at_ms: int
    reason: str

    def shown(self) -> dict[str, Any]:
        """For listings."""
        return asdict(self)


def owner_path(queue: str) -> str:
    """Where the owner of `queue` is kept."""
    return f"/queues/{queue}/owner"


def suspension_path(queue: str) -> str:
    """Where the suspension of `queue` is kept."""
    return f"/queues/{queue}/suspension"


def encode_owner(owner: Owner) -> bytes:
    """JSON of an owner."""
    fields = {"owner": owner.cluster.hex(), "cluster": owner.name, "version": owner.version}
    return json.dumps(fields | {"since_ms": owner.since_ms, "by": owner.by}).encode()


def decode_owner(value: bytes) -> Owner:
    """The owner in `value`. Raises CodecError when it is not one."""
    fields = json_object(value, "queue owner")
    try:
        owner = Owner(
            bytes.fromhex(fields["owner"]), fields["cluster"], fields["version"], fields["since_ms"], fields["by"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"not a queue owner: {error}") from error
    if len(owner.cluster) != 16 or type(owner.version) is not int or owner.version < 1:
        raise CodecError("not a queue owner: cluster or version is out of range")
    return owner


def encode_suspension(what: str, suspension: Suspension | None) -> bytes:
    """JSON of a queue's suspension; an empty object when there is none."""
    return json.dumps({} if suspension is None else {"what": what, **asdict(suspension)}).encode()


def decode_suspension(value: bytes) -> Suspension | None:
    """The suspension in `value`. Raises CodecError when it is not one."""
    fields = json_object(value, "suspension")
    return suspension_of(fields) if fields else None


def suspension_of(fields: object) -> Suspension:
    """The suspension in decoded JSON. Raises CodecError when it is not one."""
    if not isinstance(fields, dict):
        raise CodecError("not a suspension")
    try:
        return Suspension(str(fields["by"]), int(fields["at_ms"]), str(fields["reason"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"not a suspension: {error}") from error


async def read_value(metastore: Metastore, path: str) -> Versioned | None:
    """The value at `path`. Raises NotReady when the metastore cannot be reached."""
    try:
        return await metastore.get(path)
    except Unavailable as error:
        raise NotReady("the metastore cannot be reached") from error


async def change_value(metastore: Metastore, path: str, change: Callable[[bytes | None], bytes | None]) -> bytes | None:
    """Conditional read and write: `change(current)` gives the new value, or None to leave things as they are.

    Returns what stands there afterwards. An undecided write is settled by reading again: `change` must be such that
    applying it to its own result changes nothing. Raises NotReady when the metastore cannot be reached or
    others keep winning; whatever `change` raises ends it.
    """
    for _ in range(CHANGE_ATTEMPTS):
        found = await read_value(metastore, path)
        current = None if found is None else found.value
        value = change(current)
        if value is None or value == current:
            return current
        try:
            await metastore.put(path, value, None if found is None else found.version)
        except (Conflict, Ambiguous):
            continue
        except Unavailable as error:
            raise NotReady("the metastore cannot be reached") from error
        return value
    raise NotReady(f"{path} in the metastore is being changed by others")


def json_object(value: bytes, what: str) -> dict[str, Any]:
    """The JSON object in `value`. Raises CodecError, which says `what` it is not."""
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not a {what}: {error}") from error
    if not isinstance(fields, dict):
        raise CodecError(f"not a {what}: no object at the top")
    return fields
