"""Who owns a queue, as the metastore keeps it, and how its small values are read and changed.

JSON values under `/queues/NAME/`, each moved by conditional writes only; nothing here decides when. What else
stands there is `queues.decrees`'; `change_value` is also how the sink keeps its settings. The story goes on in
`queues.registry`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from repl.metastore.port import Ambiguous, Conflict, Metastore, Unavailable, Versioned
from repl.model.errors import CodecError, NotReady

log = structlog.get_logger(__name__)

CHANGE_ATTEMPTS: Final = 8
"""How often a conditional write is tried against other writers before it is refused as not ready."""

FORMER_WAITS_MS: Final = 60_000
"""For so long after a node heard of a release the cluster that had the queue does not get it back there: its sinks
still ask, many times a second, and the one that it was released for would come too late."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The sink cluster that a queue belongs to, since when (wall clock), and which node's fetch made it so; or, once
    it is released, an empty `cluster`, who did it, and whom it belonged to (`former`)."""

    cluster: bytes
    name: str
    version: int
    since_ms: int
    by: str
    former: bytes = b""


def next_version(before: int, stands: int, now_ms: int) -> int:
    """Of what follows on `before` in the metastore (0: nothing) where a partition was seen to stand under `stands`.
    When that is the later one, the metastore was restored from a copy of before: then the wall clock's number is taken,
    which none had that it has forgotten."""
    return before + 1 if stands <= before else max(stands + 1, now_ms)


class Release:
    """Since when a node knows that a queue was released. Told by its own time: the release is dated by the clock of the
    node that the operator asked, which may be hours off."""

    def __init__(self) -> None:
        self._version = 0
        self._since_ms = 0

    def seen(self, owner: Owner | None, now_ms: int) -> None:
        """This is who owns the queue, at `now_ms`."""
        if owner is not None and not owner.cluster and owner.version != self._version:
            self._version, self._since_ms = owner.version, now_ms

    def lets(self, mine: Owner, owner: Owner, now_ms: int) -> bool:
        """True when `mine` may become the owner after `owner`: nobody is, and it has not just been released from that
        cluster; or it is the same one, and partitions stand under the later version of `mine`."""
        if owner.cluster == mine.cluster:
            return owner.version < mine.version
        if owner.cluster or mine.cluster != owner.former:
            return not owner.cluster
        return owner.version == self._version and now_ms - self._since_ms >= FORMER_WAITS_MS


QUEUES_PATH: Final = "/queues"
"""Below it stands what is kept of each queue, by name."""


def owner_path(queue: str) -> str:
    """Where the owner of `queue` is kept."""
    return f"{QUEUES_PATH}/{queue}/owner"


def path_of(queue: str, what: str) -> str:
    """Where something else of `queue` is kept: "suspension", "decree", "rates", "lost", "held"."""
    return f"{QUEUES_PATH}/{queue}/{what}"


def encode_owner(owner: Owner) -> bytes:
    """JSON of an owner."""
    fields = {"owner": owner.cluster.hex(), "cluster": owner.name, "version": owner.version}
    former = {"former": owner.former.hex()} if owner.former else {}
    return json.dumps(fields | {"since_ms": owner.since_ms, "by": owner.by} | former).encode()


def decode_owner(value: bytes) -> Owner:
    """The owner in `value`. Raises CodecError when it is not one."""
    fields = json_object(value, "queue owner")
    try:
        owner = Owner(
            bytes.fromhex(fields["owner"]),
            fields["cluster"],
            fields["version"],
            fields["since_ms"],
            fields["by"],
            bytes.fromhex(fields.get("former", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"not a queue owner: {error}") from error
    if len(owner.cluster) not in (0, 16) or type(owner.version) is not int or owner.version < 1:
        raise CodecError("not a queue owner: cluster or version is out of range")
    return owner


async def read_value(metastore: Metastore, path: str) -> Versioned | None:
    """The value at `path`. Raises NotReady when the metastore cannot be reached."""
    try:
        return await metastore.get(path)
    except Unavailable as error:
        raise NotReady("the metastore cannot be reached") from error


async def remove_value(metastore: Metastore, path: str, found: Versioned | None) -> None:
    """Remove what was read as `found`, unless it changed since. Raises NotReady."""
    if found is not None:
        try:
            await metastore.delete(path, found.version)
        except (Conflict, Ambiguous):
            log.info("queue.value_kept", path=path)  # who changed it wants it; what is undecided is looked at again
        except Unavailable as error:
            raise NotReady("the metastore cannot be reached") from error


async def names_below(metastore: Metastore, path: str) -> list[str]:
    """The names of the values below `path`. Raises NotReady."""
    try:
        return await metastore.children(path)
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


async def take(metastore: Metastore, queue: str, mine: Owner, may: Callable[[Owner], bool]) -> Owner:
    """Make `mine` the owner, under the next version (`mine` has that which partitions stand under), unless it may not
    after the one who is; returns who is. Raises NotReady."""
    made: list[Owner] = []

    def changed(current: bytes | None) -> bytes | None:
        before = None if current is None else decode_owner(current)
        if before is not None and not may(before):
            return None
        made.append(replace(mine, version=next_version(before.version if before else 0, mine.version, mine.since_ms)))
        return encode_owner(made[-1])

    value = await change_value(metastore, owner_path(queue), changed)
    assert value is not None
    owner = decode_owner(value)
    if made and owner == made[-1]:
        log.info("queue.owned", queue=queue, cluster=owner.name, version=owner.version)
    return owner
