"""What a queue reads from the store, in the read pool's threads: objects to be served.

Runs off the event loop and touches nothing but the store. The story goes back to `queues.registry`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from queues.rules import Item
from repl.model.objects import says_deleted
from repl.model.reference import ReferenceKind
from repl.store.port import Store

_LEAVING: Final = int(ReferenceKind.LEAVING)
_OBJECT: Final = int(ReferenceKind.OBJECT)
_TOMBSTONE: Final = int(ReferenceKind.TOMBSTONE)


def read_objects(store: Store, items: Sequence[Item], limit_bytes: int) -> list[Item | None]:
    """The first of `items` with their objects as they stand now, None for one that is there no more, until
    `limit_bytes` of payload would be passed (a single larger one still comes)."""
    resolved: list[Item | None] = []
    size = 0
    for item in items:
        if not item[8]:
            payload = store.object(item[1], item[4], item[5])
            if payload is None:
                resolved.append(None)
                continue
            kind = _OBJECT
            if says_deleted(payload):
                kind = _LEAVING if item[0] == _LEAVING else _TOMBSTONE
            item = (kind, item[1], item[2], item[3], item[4], item[5], item[6], item[7], payload)
        length = len(item[8])
        if size and size + length > limit_bytes:
            break
        size += length
        resolved.append(item)
    return resolved


def read_batch(store: Store, items: Sequence[Item], limit_bytes: int) -> tuple[list[Item | None], dict[int, int]]:
    """`read_objects`, and for each partition of `items` an offset below which all is that was read."""
    resolved = read_objects(store, items, limit_bytes)
    return resolved, {partition: store.reach(partition) for partition in {item[1] for item in items}}
