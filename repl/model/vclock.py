"""Vector clocks with dots: which writes an object has seen, and which write made a value.

A clock is a tuple of entries (actor, counter, timestamp in seconds), sorted by actor, at most one entry per actor. An
actor is a partition of a cluster (16 bytes of cluster uuid, 4 bytes of partition id, big-endian). Its counter packs the
(epoch, offset) of a log entry into 64 bits (20 + 44), so a dot (actor, counter) is never used twice, and clocks do not
grow with restarts (docs/protocol.md R-DOT, H41). The timestamp belongs to its counter and decides nothing; it keeps
Riak's clocks exact. Clocks are never pruned (H42).
"""

from __future__ import annotations

from typing import Final

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
"""Maximum length of an actor: Isthmus's have 20 bytes, Riak's vnode ids 4 to 24."""

CLOCK_ENTRIES_MAX: Final = 4096
"""Maximum entries in one clock. Usual clocks have one per cluster and partition move, a handful. A longer clock is
refused before it is stored: as malformed on input, as too large where a write would create it."""


_pack: Final = msgpack.Packer().pack
"""One shared packer: it keeps no state between calls, and a call is one step of the interpreter. `packb` would create a
packer for each object, which costs as much as packing."""


def actor_of(cluster_uuid: bytes, partition: int) -> bytes:
    """Return the 20-byte actor of a partition: 16 bytes of cluster uuid, 4 of partition id."""
    assert len(cluster_uuid) == 16
    return cluster_uuid + partition.to_bytes(4, "big")


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


def covers(clock: Clock, dot: Dot) -> bool:
    """True when `clock` has seen the write `dot`."""
    actor, counter = dot
    for a, c, _ in clock:
        if a == actor:
            return c >= counter
    return False


_ONE_WRITER_BYTES: Final = 38
_ONE_WRITER_HEAD: Final = b"\x91\x93\xc4\x14"


def of_one_writer(older: bytes, newer: bytes) -> bool:
    """True when both encoded clocks have one entry, of the same 20-byte actor, and `newer` has the greater counter.

    False for any other clocks. Costs a fraction of decoding them. The encoding of such a clock: head, actor, 0xCF, the
    counter in 8 bytes (big-endian, at least 2^32: epochs begin at 1), 0xCE, the time in 4 bytes (at least 2^16).
    """
    return (
        len(older) == len(newer) == _ONE_WRITER_BYTES
        and older[:25] == newer[:25]
        and newer.startswith(_ONE_WRITER_HEAD)
        and newer[24] == 0xCF
        and newer[33] == 0xCE
        and older[25:33] < newer[25:33]
    )


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
