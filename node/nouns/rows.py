"""Parts of rows that several nouns have. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UnsetType

from isthmus.node.nouns.description import means
from isthmus.repl.model.vclock import OFFSET_BITS, offset_of, parts_of

FailedRows = Annotated[
    dict[str, str] | UnsetType, means("What a defect of the program kept from being listed -> why; absent: nothing.")
]


class SignedAct(msgspec.Struct, frozen=True):
    """Who changed something, when, and why."""

    by: str
    at_ms: int
    reason: str


class RateLimits(msgspec.Struct, frozen=True):
    """Limits each second; null: no limit."""

    bytes_per_second: int | None
    objects_per_second: int | None


class AchievedRates(msgspec.Struct, frozen=True):
    """What was served each second, lately; null: a node's share is not known."""

    bytes_per_second: float | None
    objects_per_second: float | None


class ThrottleRow(msgspec.Struct, frozen=True):
    """Limits of a rate, and the rate that was reached."""

    configured: Annotated[RateLimits, means("In force.")]
    binding: Annotated[str | None, means("`bytes` or `objects`: the limit that binds now.")]
    achieved: AchievedRates
    throttled_seconds: Annotated[float, means("How long the limits held work back since the node began.")]


class DifferingProperties(msgspec.Struct, frozen=True):
    """Properties of a bucket type, or of a bucket, that differ in the other cluster."""

    bucket_type: str
    bucket: Annotated[str | None, means("Percent-encoded; null: the bucket type's own.")]
    properties: list[str]


class ClockDot(msgspec.Struct, frozen=True):
    """The cluster, partition and log position that accepted a write; null: its actor is another system's."""

    uuid: Annotated[str | None, means("The cluster.")]
    actor: str
    partition: int | None
    epoch: int | None
    offset: int | None


def dot_of(actor: bytes, counter: int) -> ClockDot:
    """The write of a clock's entry."""
    parts = parts_of(actor)
    if parts is None:
        return ClockDot(None, actor.hex(), None, None, None)
    return ClockDot(parts.cluster_uuid.hex(), actor.hex(), parts.partition, counter >> OFFSET_BITS, offset_of(counter))
