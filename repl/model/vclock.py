"""Vector clocks with dots: which writes an object has seen, and which write made a value.

A clock is a tuple of entries (actor, counter, timestamp in seconds), sorted by actor, at most one entry per actor. An
actor is an incarnation of a partition of a cluster: 16 bytes of cluster uuid, 4 bytes of partition id, and 8 bytes of
incarnation unless that is 0, all big-endian. Its counter packs the (epoch, offset) of a log entry into 64 bits (20 +
44), so a dot (actor, counter) is never used twice, and clocks do not grow with restarts (docs/protocol.md R-DOT, H41).
A partition takes a new incarnation whenever its log may have lost entries that others have seen (R-ACTOR). The
timestamp belongs to its counter and decides nothing; it keeps Riak's clocks exact. Clocks are never pruned (H42).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgpack

from isthmus.repl.model.errors import CodecError

Clock = tuple[tuple[bytes, int, int], ...]
"""((actor, counter, timestamp_s), ...), sorted by actor."""

Dot = tuple[bytes, int]
"""(actor, counter): one write."""

EMPTY: Final[Clock] = ()

OFFSET_BITS: Final = 44
EPOCH_BITS: Final = 20
MAX_OFFSET: Final = (1 << OFFSET_BITS) - 1
MAX_EPOCH: Final = (1 << EPOCH_BITS) - 1

ACTOR_BYTES_MAX: Final = 255
"""Maximum length of an actor: Isthmus's have 20 or 28 bytes, Riak's vnode ids 4 to 24."""

PARTITION_BYTES: Final = 20
"""Length of what all actors of one partition begin with: 16 bytes of cluster uuid, 4 of partition id."""

INCARNATION_BYTES: Final = 8

INCARNATION_MAX: Final = (1 << 63) - 1
"""Largest incarnation: the metastore's record keeps it as a signed number of 64 bits."""

CLOCK_ENTRIES_MAX: Final = 4096
"""Maximum entries in one clock. Usual clocks have one per cluster and partition move, a handful. A longer clock is
refused before it is stored: as malformed on input, as too large where a write would create it."""


_pack: Final = msgpack.Packer().pack
"""One shared packer: it keeps no state between calls, and a call is one step of the interpreter. `packb` would create a
packer for each object, which costs as much as packing."""


def partition_prefix(cluster_uuid: bytes, partition: int) -> bytes:
    """Return the 20 bytes that the actors of all incarnations of a partition begin with."""
    assert len(cluster_uuid) == 16
    return cluster_uuid + partition.to_bytes(4, "big")


def actor_of(cluster_uuid: bytes, partition: int, incarnation: int = 0) -> bytes:
    """Return the actor of an incarnation of a partition: 20 bytes for incarnation 0, else 28."""
    prefix = partition_prefix(cluster_uuid, partition)
    return prefix + incarnation.to_bytes(INCARNATION_BYTES, "big") if incarnation else prefix


class ActorParts(NamedTuple):
    """What an actor of an Isthmus cluster names."""

    cluster_uuid: bytes
    partition: int
    incarnation: int


def parts_of(actor: bytes) -> ActorParts | None:
    """Return the parts of an actor; None for one that no Isthmus cluster makes."""
    if len(actor) not in (PARTITION_BYTES, PARTITION_BYTES + INCARNATION_BYTES):
        return None
    incarnation = int.from_bytes(actor[PARTITION_BYTES:], "big")
    return ActorParts(actor[:16], int.from_bytes(actor[16:PARTITION_BYTES], "big"), incarnation)


def pack_counter(epoch: int, offset: int) -> int:
    """(epoch, offset) -> one 64-bit counter that rises in log order."""
    assert 0 <= epoch <= MAX_EPOCH
    assert 0 <= offset <= MAX_OFFSET
    return (epoch << OFFSET_BITS) | offset


def offset_of(counter: int) -> int:
    """Return the log offset of the write in a counter."""
    return counter & MAX_OFFSET


def counter_of(clock: Clock, actor: bytes) -> int:
    """Return the greatest counter of `actor` in `clock`; 0 for none (counters start above 0)."""
    for a, c, _ in clock:
        if a == actor:
            return c
    return 0


def of_partition(clock: Clock, prefix: bytes) -> Clock:
    """Return the entries of `clock` by the partition whose actors begin with `prefix`, of all its incarnations."""
    return tuple(entry for entry in clock if entry[0].startswith(prefix))


def covers(clock: Clock, dot: Dot) -> bool:
    """True when `clock` has seen the write `dot`."""
    actor, counter = dot
    for a, c, _ in clock:
        if a == actor:
            return c >= counter
    return False


_ONE_WRITER_BYTES: Final = 38
_ONE_WRITER_HEAD: Final = b"\x91\x93\xc4\x14"
_LONG_WRITER_BYTES: Final = _ONE_WRITER_BYTES + INCARNATION_BYTES
_LONG_WRITER_HEAD: Final = b"\x91\x93\xc4\x1c"


def of_one_writer(older: bytes, newer: bytes) -> bool:
    """True when both encoded clocks have one entry, of the same actor of ours, and `newer` has the greater counter.

    False for any other clocks. Costs a fraction of decoding them. The encoding of such a clock: head, actor (20 or 28
    bytes), 0xCF, the counter in 8 bytes (big-endian, at least 2^32: epochs begin at 1), 0xCE, the time in 4 bytes (at
    least 2^16).
    """
    if len(newer) == _ONE_WRITER_BYTES:
        return (
            len(older) == _ONE_WRITER_BYTES
            and older[:25] == newer[:25]
            and newer.startswith(_ONE_WRITER_HEAD)
            and newer[24] == 0xCF
            and newer[33] == 0xCE
            and older[25:33] < newer[25:33]
        )
    return (
        len(older) == len(newer) == _LONG_WRITER_BYTES
        and older[:33] == newer[:33]
        and newer.startswith(_LONG_WRITER_HEAD)
        and newer[32] == 0xCF
        and newer[41] == 0xCE
        and older[33:41] < newer[33:41]
    )


def dot_of_one_writer(clock: bytes) -> tuple[bytes, int] | None:
    """Return (actor, counter) of an encoded clock with one entry, of an actor of ours; None for any other clock."""
    if len(clock) == _ONE_WRITER_BYTES and clock.startswith(_ONE_WRITER_HEAD) and clock[24] == 0xCF:
        return clock[4:24], int.from_bytes(clock[25:33], "big")
    if len(clock) == _LONG_WRITER_BYTES and clock.startswith(_LONG_WRITER_HEAD) and clock[32] == 0xCF:
        return clock[4:32], int.from_bytes(clock[33:41], "big")
    return None


def descends(a: Clock, b: Clock) -> bool:
    """True when `a` has seen everything that `b` has seen (equal clocks descend each other)."""
    if a == b or not b:
        return True
    if len(b) > len(a):
        return False
    seen = {actor: counter for actor, counter, _ in a}
    return all(seen.get(actor, -1) >= counter for actor, counter, _ in b)


def merge(a: Clock, b: Clock) -> Clock:
    """Return the least clock that descends both: the greater counter of each actor, with its timestamp.

    If one counter has two timestamps, the later is kept, so that merge commutes.
    """
    if a == b or not b:
        return a
    if not a:
        return b
    if len(a) == 1 and len(b) == 1 and a[0][0] == b[0][0]:
        return a if a[0][1:] >= b[0][1:] else b
    best = {actor: (counter, time_s) for actor, counter, time_s in a}
    for actor, counter, time_s in b:
        mine = best.get(actor)
        if mine is None or (counter, time_s) > mine:
            best[actor] = (counter, time_s)
    return tuple((actor, *best[actor]) for actor in sorted(best))


def increment(clock: Clock, actor: bytes, counter: int, time_s: int) -> Clock:
    """Return `clock` with the new write (actor, counter), made at `time_s`."""
    if not clock or (len(clock) == 1 and clock[0][0] == actor):
        return ((actor, counter, time_s),)
    entries = [e for e in clock if e[0] != actor]
    entries.append((actor, counter, time_s))
    entries.sort()
    return tuple(entries)


def encode_clock(clock: Clock) -> bytes:
    """Return canonical bytes: equal clocks have equal bytes."""
    packed: bytes = _pack(clock)
    return packed


def decode_clock(data: bytes) -> Clock:
    """Return the clock in `data`. Raises CodecError for anything that `encode_clock` would not write."""
    try:
        raw = msgpack.unpackb(
            data,
            use_list=False,
            max_array_len=CLOCK_ENTRIES_MAX,
            max_bin_len=ACTOR_BYTES_MAX,
            max_str_len=0,
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise CodecError(f"not a vector clock: {error}") from error
    check_clock(raw)
    clock: Clock = raw
    if _pack(clock) != data:
        raise CodecError("not a vector clock in canonical form: its bytes would change")
    return clock


def check_clock(raw: object) -> None:
    """Check the shape of a decoded clock. Raises CodecError."""
    if type(raw) is not tuple:
        raise CodecError("not a vector clock: no list of entries")
    if len(raw) > CLOCK_ENTRIES_MAX:
        raise CodecError(f"not a vector clock: more than {CLOCK_ENTRIES_MAX} entries")
    before = b""
    for entry in raw:
        if type(entry) is not tuple or len(entry) != 3:
            raise CodecError("not a vector clock: an entry is not (actor, counter, timestamp)")
        actor, counter, time_s = entry
        if type(actor) is not bytes or not 0 < len(actor) <= ACTOR_BYTES_MAX:
            raise CodecError("not a vector clock: an actor is empty, too long or no bytes")
        if type(counter) is not int or not 0 < counter < 1 << 64:
            raise CodecError("not a vector clock: a counter is outside 1 .. 2^64-1")
        if type(time_s) is not int or not 0 <= time_s < 1 << 64:
            raise CodecError("not a vector clock: a timestamp is outside 0 .. 2^64-1")
        if actor <= before:
            raise CodecError("not a vector clock: actors are not in rising order")
        before = actor
