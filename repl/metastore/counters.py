"""The metastore's counters of ids that are never given twice: log ids and partition ids; and where placement begins.

A metastore that lost data has forgotten how far it counted. Whoever restores it raises the counters by `ID_MARGIN`
above all ids that are known (docs/protocol.md R-GEN, R-DOT).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from isthmus.repl.machine import machine
from isthmus.repl.metastore.port import Versioned
from isthmus.repl.metastore.watched_document import Document, decode_json
from isthmus.repl.model.vclock import INCARNATION_MAX

GEN_PATH: Final = "/gen"
"""The counter of log ids (gens), a decimal number."""

ID_MARGIN: Final = 1_000_000
"""Margin between the highest known id and a restored counter. It is larger than the number of ids that a cluster gives
between the last copy and the loss (a log id for each new replica, at most 1,024 partition ids for each new bucket
type), and far below the highest id, 2^32 - 1 for partitions."""


def new_incarnation() -> int:
    """An incarnation that no partition ever had (R-ACTOR). It is random: a counter may be what was lost."""
    return 1 + machine().random().randrange(INCARNATION_MAX)


class StoredCounter(NamedTuple):
    """A counter and its version in the metastore; None before it was ever written."""

    next: int
    version: int | None = None


class _CounterForm(Struct):
    v: Literal[1]
    next: Annotated[int, Meta(ge=0, lt=1 << 53)]


def counter_document(path: str) -> Document[StoredCounter]:
    """The document of the counter at `path`."""

    def decode(found: Versioned | None) -> StoredCounter:
        if found is None:
            return StoredCounter(0)
        return StoredCounter(decode_json(path, found.value, _CounterForm).next, found.version)

    return Document(path, decode, lambda counter: msgspec.json.encode(_CounterForm(1, counter.next)))


CHAIN_COUNTER: Final = counter_document("/placement/chain")
"""The index at which the next computed placement starts. A placement from a file does not move it."""

PARTITIONS_COUNTER: Final = counter_document("/placement/partitions")
"""The next partition id."""
