"""Wire format of the counters that two clusters send each other: one msgpack map, as request and as answer.

`POST /queues/NAME/counters`: the fetching cluster sends what it holds of the source's actors, and the answer what the
source holds of the fetching cluster's (docs/protocol.md R-ACTOR).

    v            1
    cluster      16 bytes: uuid of the cluster that sends it       name         its name, text
    counters     [[actor, counter], ...] of the other cluster's actors
    filter       in the answer: the queue's filter, text; absent in requests and from older sources

No lease, cursor or owner is concerned. An older source does not know the path, and sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from isthmus.queues.wire import NAME_MAX, UnknownFetchVersion
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.vclock import ACTOR_BYTES_MAX

VERSION: Final = 1

COUNTERS_MAX: Final = 16_384
"""Most counters of one message: 16 bucket types of 1,024 partitions. Of more, those with the highest actors are left
out; a loss that only they show is not noticed by this exchange."""

BYTES_MAX: Final = 1_000_000
"""Largest message: 16,384 counters of 40 bytes, and some to spare."""


FILTER_MAX: Final = 262_144
"""Longest filter, in characters: 256 rules of the longest bucket name, percent-encoded. A longer one is left out."""


class HeldCountersMessage(NamedTuple):
    """What the cluster `cluster`, named `name`, holds: actor -> highest counter. `filter`: that of the queue; ""
    where it is left out."""

    cluster: bytes
    name: str
    counters: Mapping[bytes, int]
    filter: str = ""


_Actor = Annotated[bytes, Meta(min_length=1, max_length=ACTOR_BYTES_MAX)]
_Counter = Annotated[int, Meta(ge=1)]


class _Form(Struct, omit_defaults=True):
    v: int
    cluster: Annotated[bytes, Meta(min_length=16, max_length=16)]
    name: Annotated[str, Meta(max_length=NAME_MAX)]
    counters: Annotated[list[tuple[_Actor, _Counter]], Meta(max_length=COUNTERS_MAX)]
    filter: Annotated[str, Meta(max_length=FILTER_MAX)] = ""


def encode_counters(message: HeldCountersMessage) -> bytes:
    """The message's body."""
    pairs = sorted(message.counters.items())[:COUNTERS_MAX]
    return msgspec.msgpack.encode(
        _Form(
            VERSION, message.cluster, message.name, pairs, message.filter if len(message.filter) <= FILTER_MAX else ""
        )
    )


def decode_counters(body: bytes) -> HeldCountersMessage:
    """Raises CodecError, UnknownFetchVersion."""
    try:
        form = msgspec.msgpack.decode(body, type=_Form)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not a message of counters: {error}") from error
    if form.v != VERSION:
        raise UnknownFetchVersion(f"counters of version {form.v!r:.40}, this program speaks {VERSION}")
    return HeldCountersMessage(form.cluster, form.name, dict(form.counters), form.filter)
