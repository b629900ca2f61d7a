"""What the clients of a world did and were answered, and what its operators declared as lost.

It only records. `oracles_clients` judges it. Clocks are kept as {actor: counter}.
"""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

import msgpack

from isthmus.repl.model.properties import Properties

NEVER: Final = sys.maxsize

VectorClock = Mapping[bytes, int]
"""{actor: counter}: what somebody has seen."""


class Key(NamedTuple):
    """The full name of an object, as text."""

    bucket_type: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return "/".join(self)


class Kind(StrEnum):
    """The type of an operation on one key."""

    READ = "read"
    PUT = "put"
    DELETE = "delete"


class Outcome(StrEnum):
    """The outcome as its client knows it."""

    OK = "ok"
    """A read was answered; a write was acknowledged."""
    REFUSED = "refused"
    """It surely had no effect, and never will."""
    UNKNOWN = "unknown"
    """A write that may have taken effect, or still may."""


class Content(NamedTuple):
    """What is stored with a value, as far as clients check it."""

    content_type: str = "text/plain"
    indexes: tuple[tuple[str, str], ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()


PLAIN: Final = Content()


@dataclass(slots=True, eq=False)
class Operation:
    """One operation on one key. Times are of the kernel, in nanoseconds."""

    kind: Kind
    session: str
    cluster: str
    key: Key
    called_ns: int
    answered_ns: int = NEVER
    outcome: Outcome = Outcome.UNKNOWN
    value: str = ""
    """What a PUT wrote: no two write the same."""
    content: Content | None = PLAIN
    """What it stored with the value; None: whatever the value before had."""
    context: VectorClock | None = None
    """The clock that a write carried."""
    replaces_all: bool = False
    """A write that replaces whatever the key holds when it takes effect: a delete without a clock, a tag in If-Match,
    `update` and `overwrite` of the Python client."""
    if_absent: bool = False
    """A write with If-None-Match: *."""
    clock: VectorClock | None = None
    """The clock in the answer."""
    clock_hidden: bool = False
    """The client does not show the clock, although there may be one."""
    repeated: bool = False
    """The answer is that to a request which had taken effect before: its clock is the key's at the time of the
    answer, or before it."""
    values: tuple[str, ...] = ()
    """The values that a read returned."""
    contents: tuple[Content, ...] = ()
    """What was stored with each of them; empty if the read does not show it."""
    reason: str = ""
    """Why it was refused, or is unknown."""

    @property
    def writes(self) -> bool:
        """It is a PUT or a delete."""
        return self.kind is not Kind.READ

    def __str__(self) -> str:
        until = "?" if self.answered_ns == NEVER else f"{self.answered_ns / 1e9:.6f}"
        times = f"{self.called_ns / 1e9:.6f} to {until} s"
        who = f"{self.session} at {self.cluster} {self.key}"
        if self.kind is Kind.READ:
            return f"{times} {who} read {{{', '.join(self.values)}}} under {shown(self.clock)}"
        what = f"wrote {self.value}" if self.kind is Kind.PUT else "deleted"
        seen = "all" if self.replaces_all else shown(self.context)
        again = ", repeated" if self.repeated else ""
        return (
            f"{times} {who} {what} ({self.outcome} {self.reason}{again}), having seen {seen}, under {shown(self.clock)}"
        )


def clock_of(text: str | None) -> VectorClock | None:
    """The clock in an X-Riak-Vclock; None without one."""
    return None if text is None else clock_in(b64decode(text))


def clock_in(encoded: bytes) -> VectorClock:
    """The clock in its encoded form."""
    return {actor: counter for actor, counter, _ in msgpack.unpackb(encoded)}


def shown(clock: VectorClock | None) -> str:
    """A clock for people: the ends of its actors' names, and epoch.offset of each."""
    if clock is None:
        return "no clock"
    parts = [
        f"{actor[:2].hex()}/{int.from_bytes(actor[16:20], 'big')}"
        f"{'+' + actor[20:22].hex() if len(actor) > 20 else ''}:{counter >> 44}.{counter & (1 << 44) - 1}"
        for actor, counter in sorted(clock.items())
    ]
    return f"[{' '.join(parts)}]"


def descends(newer: VectorClock, older: VectorClock) -> bool:
    """Whether `newer` has seen everything that `older` has seen."""
    return all(newer.get(actor, 0) >= counter for actor, counter in older.items())


class Scope(StrEnum):
    """What a declared loss concerns."""

    CLUSTER = "cluster"
    """The state of a cluster went back: a forced leader, a restored backup, a directory put back or copied, a
    metastore that forgot: what was written there before may be gone, and the history of its keys begins again."""
    QUEUE = "queue"
    """A queue of a cluster offers less: it was cleared or delisted, its cursor moved forward, its filter excludes the
    bucket, its overflow discards."""


@dataclass(slots=True, eq=False)
class DeclaredLoss:
    """What an operator, or a machine on an operator's behalf, declared as possibly lost."""

    scope: Scope
    cluster: str
    what: str
    queue: str = ""
    """The queue; empty for all of the cluster's."""
    bucket_type: str = ""
    """The only bucket type that is concerned; empty: all."""
    from_ns: int = 0
    """When the act began."""
    until_ns: int = NEVER
    """When it was over: what is called later is not concerned."""


@dataclass(slots=True)
class Rules:
    """Which properties a bucket type has had, in any cluster, since the world was prepared."""

    single: bool = False
    """Concurrent writes were not kept as siblings: allow_mult = false or last_write_wins = true."""
    always_single: bool = False
    """So it was from the beginning on."""
    overwrites: bool = False
    """last_write_wins = true from the beginning on: each write replaces what it finds."""
    unseen: bool = False
    """dvv_enabled = false: a write may stay beside what it had seen."""
    reaps: bool = False
    """Tombstones may be removed."""

    def note(self, properties: Properties) -> None:
        """The bucket type has these properties in some cluster."""
        single = properties.last_write_wins or not properties.allow_mult
        self.single = self.single or single
        self.always_single = self.always_single and single
        self.overwrites = self.overwrites and properties.last_write_wins
        self.unseen = self.unseen or not properties.dvv_enabled
        self.reaps = self.reaps or properties.reap_after_ms is not None or properties.repl_reap


class Erasure(NamedTuple):
    """An operator let a cluster delete keys. Which ones it deleted, and when, is not known."""

    cluster: str
    called_ns: int

    def of(self, key: Key) -> Operation:
        """The delete of a key that may have taken effect."""
        return Operation(Kind.DELETE, "operator", self.cluster, key, self.called_ns, replaces_all=True)


class Surprise(NamedTuple):
    """An answer that a sound cluster does not give."""

    at_ns: int
    cluster: str
    reason: str
    """The code of the refusal."""
    what: str


class Listing(NamedTuple):
    """A complete list of a bucket's keys."""

    cluster: str
    bucket_type: str
    bucket: str
    called_ns: int
    answered_ns: int
    keys: frozenset[str]


@dataclass(slots=True)
class History:
    """Everything that clients did in one world."""

    keys: dict[Key, list[Operation]] = field(default_factory=dict)
    rules: dict[str, Rules] = field(default_factory=dict)
    """By bucket type."""
    losses: list[DeclaredLoss] = field(default_factory=list)
    erasures: list[Erasure] = field(default_factory=list)
    surprises: list[Surprise] = field(default_factory=list)
    """Answers that a sound cluster does not give."""
    listings: list[Listing] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    """Operations by kind and outcome, and attempts by answer."""

    def add(self, operation: Operation) -> Operation:
        """Record an operation that begins."""
        self.keys.setdefault(operation.key, []).append(operation)
        return operation

    def count(self, what: str) -> None:
        """Count something that happened."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def rules_of(self, bucket_type: str) -> Rules:
        """The rules of a bucket type."""
        return self.rules.setdefault(bucket_type, Rules())
