"""What a source queue offers to a sink: a change, by reference or whole.

A reference names the key and the clock of the change, and carries one of: nothing (`to_fetch`: the
object is read when it is served), the whole object, or a whole tombstone (always whole).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class ReferenceKind(IntEnum):
    """What a reference carries."""

    TO_FETCH = 0
    OBJECT = 1
    TOMBSTONE = 2


class Reference(NamedTuple):
    """One change as offered: where it stands in its partition, whose it is, and what it carries.

    `origin` is the uuid of the cluster that made the change; `time_ms` the leader's wall clock when
    it was appended (for lag); `clock` the encoded clock; `payload` the canonical object bytes,
    empty for TO_FETCH.
    """

    kind: int
    partition: int
    offset: int
    bucket_type: bytes
    bucket: bytes
    key: bytes
    origin: bytes
    time_ms: int
    clock: bytes
    payload: bytes
