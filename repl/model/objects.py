"""Objects: siblings under one vector clock, and the rules by which they replace each other.

An object is a clock and the siblings that nothing seen so far has replaced. Each sibling carries
the dot of the write that made it, and the object's clock covers the dots of all its siblings. That is
a dotted version vector set; `merge` is commutative, associative and idempotent, loses no value
that was not seen by a later write, and keeps none that was (Preguica et al., "Dotted Version
Vectors").

A delete writes a tombstone, a sibling without a value, kept until it is reaped.

Encoded, an object is *canonical*: siblings sorted by dot, so equal objects have equal bytes and
equal hashes. These bytes, made once by the leader, are what the log holds, what the store
keeps and what a sink receives.

What a bucket's properties make of concurrent writes: all kept, the newest kept, or no look at what is there. Pure.

The leader decides when it makes the entry; the entry carries the object that came of it, so all replicas hold the same
whatever they have read of properties. Clocks are the same under every property: a write has a dot of its own, never
used before, and the object's clock covers all that was ever there. Who drops a sibling of a merge makes a dot for that,
too, or two clusters whose properties differ would hold different objects under equal clocks.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgpack
from xxhash import xxh64_hexdigest, xxh64_intdigest

from isthmus.repl.model.errors import CodecError, TooLarge
from isthmus.repl.model.properties import Properties
from isthmus.repl.model.vclock import (
    CLOCK_ENTRIES_MAX,
    Clock,
    Dot,
    check_clock,
    covers,
    decode_clock,
    descends,
    encode_clock,
    increment,
)
from isthmus.repl.model.vclock import merge as merge_clocks

OBJECT_VERSION: Final = 1

SIBLINGS_DECODED_MAX: Final = 65_535
"""Most siblings that a decoder accepts in one object; writes are refused far below it (settings)."""

METADATA_MAX: Final = 65_535
"""Most metadata, link or index pairs accepted in one sibling when decoding."""

Pairs = tuple[tuple[bytes, bytes], ...]
Links = tuple[tuple[bytes, bytes, bytes], ...]


_pack: Final = msgpack.Packer().pack  # one for all: see repl.model.vclock


class Sibling(NamedTuple):
    """One value of an object and the write that made it. Text fields are bytes as they came.

    `last_modified_ms` is the leader's wall clock in milliseconds since 1970: advisory, never used
    for order. `links` are (bucket, key, tag).
    """

    dot: Dot
    last_modified_ms: int
    tombstone: bool
    value: bytes
    content_type: bytes = b""
    content_encoding: bytes = b""
    metadata: Pairs = ()
    links: Links = ()
    indexes: Pairs = ()

    @property
    def vtag(self) -> str:
        """A short tag of this version, the same on every cluster: 16 hex digits over its dot."""
        actor, counter = self.dot
        return xxh64_hexdigest(actor + counter.to_bytes(8, "big"))


class Content(NamedTuple):
    """What a client writes: a sibling that has no dot yet. A delete has `tombstone` set."""

    value: bytes
    content_type: bytes = b"application/octet-stream"
    content_encoding: bytes = b""
    metadata: Pairs = ()
    links: Links = ()
    indexes: Pairs = ()
    tombstone: bool = False


TOMBSTONE: Final = Content(b"", b"", tombstone=True)


class Object(NamedTuple):
    """Siblings, sorted by dot, under the clock that has seen them all; never without a sibling."""

    clock: Clock
    siblings: tuple[Sibling, ...]

    @property
    def deleted(self) -> bool:
        """True when every sibling is a tombstone: the key reads as absent."""
        return all(s.tombstone for s in self.siblings)

    @property
    def live(self) -> tuple[Sibling, ...]:
        """The siblings that are values."""
        return tuple(s for s in self.siblings if not s.tombstone)


def write(current: Object | None, context: Clock, content: Content, dot: Dot, now_ms: int) -> Object:
    """The object after a client's write `content`, made with causal `context`, gets `dot`.

    Siblings that the context has seen are replaced; others stay beside the new one. A write
    without context over a tombstone takes the tombstone's clock as its context, so a
    deleted key can simply be written again (Riak's rule).
    """
    if current is not None and not context and current.deleted:
        context = current.clock
    new = Sibling(
        dot,
        now_ms,
        content.tombstone,
        content.value,
        content.content_type,
        content.content_encoding,
        content.metadata,
        content.links,
        content.indexes,
    )
    if current is None:
        return Object(increment(context, *dot, now_ms // 1000), (new,))
    kept = [s for s in current.siblings if not covers(context, s.dot)]
    clock = increment(merge_clocks(current.clock, context), *dot, now_ms // 1000)
    if not kept:
        return Object(clock, (new,))
    return Object(clock, tuple(sorted((*kept, new), key=_by_dot)))


def merge(a: Object, b: Object) -> Object:
    """The object that has seen all that `a` and `b` have: what a push does to a stored object.

    A sibling stays when both have it, or when the one that lacks it has not seen it.
    """
    if a == b:
        return a
    mine = {s.dot: s for s in a.siblings}
    theirs = {s.dot: s for s in b.siblings}
    kept: dict[Dot, Sibling] = {}
    for dot, sibling in mine.items():
        if dot in theirs:
            # One dot is one write; should two contents claim it, the greater is kept on
            # every replica, so that merge still commutes and full-sync sees equal bytes.
            kept[dot] = max(sibling, theirs[dot])
        elif not covers(b.clock, dot):
            kept[dot] = sibling
    kept.update({d: s for d, s in theirs.items() if d not in mine and not covers(a.clock, d)})
    siblings = tuple(sorted(kept.values(), key=_by_dot))
    return Object(merge_clocks(a.clock, b.clock), siblings)


def _by_dot(sibling: Sibling) -> Dot:
    return sibling.dot


class Summary(NamedTuple):
    """What a key row keeps of an object: enough to compare, list and count without its values.

    `clock` is in encoded form; `hash64` is xxh64 of the canonical object bytes; `size_bytes` is
    their length; `last_modified_ms` the latest of the siblings.
    """

    clock: bytes
    hash64: int
    last_modified_ms: int
    size_bytes: int
    sibling_count: int
    tombstone: bool


def encode_object(obj: Object) -> bytes:
    """Canonical bytes of `obj`: msgpack [version, clock bytes, [sibling, ...]]."""
    return _pack_object(encode_clock(obj.clock), obj.siblings)


def _pack_object(clock: bytes, siblings: tuple[Sibling, ...]) -> bytes:
    packed: bytes = _pack((OBJECT_VERSION, clock, [(*s[0], *s[1:]) for s in siblings]))
    return packed


def encode_with_summary(obj: Object) -> tuple[bytes, Summary]:
    """(canonical bytes, summary) of `obj`: what a leader makes of each object, once. Raises TooLarge for a clock that
    nobody could read again: contexts and merges bring in what others say that they have seen."""
    if len(obj.clock) > CLOCK_ENTRIES_MAX:
        raise TooLarge(f"the object's vector clock would have {len(obj.clock)} entries, at most {CLOCK_ENTRIES_MAX}")
    clock = encode_clock(obj.clock)
    siblings = obj.siblings
    encoded = _pack_object(clock, siblings)
    if len(siblings) == 1:
        only = siblings[0]
        return encoded, Summary(clock, xxh64_intdigest(encoded), only[1], len(encoded), 1, only[2])
    modified_ms = max(s.last_modified_ms for s in siblings)
    return encoded, Summary(clock, xxh64_intdigest(encoded), modified_ms, len(encoded), len(siblings), obj.deleted)


def decode_object(data: bytes) -> Object:
    """The object in `data`. Raises CodecError for anything that `encode_object` would not write.

    Every length is bounded by that of `data`, so hostile bytes cannot ask for more memory.
    """
    try:
        raw = msgpack.unpackb(data, use_list=False, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise CodecError(f"not an object: {error}") from error
    if type(raw) is not tuple or not raw:
        raise CodecError("not an object: no list at the top")
    if raw[0] != OBJECT_VERSION:
        raise CodecError(f"object of version {raw[0]!r}, this program reads version {OBJECT_VERSION}")
    if len(raw) != 3 or type(raw[1]) is not bytes or type(raw[2]) is not tuple:
        raise CodecError("not an object: expected [version, clock, siblings]")
    clock = decode_clock(raw[1])
    if not 0 < len(raw[2]) <= SIBLINGS_DECODED_MAX:
        raise CodecError(f"not an object: {len(raw[2])} siblings, 1..{SIBLINGS_DECODED_MAX} expected")
    siblings = tuple(_sibling(item) for item in raw[2])
    before: Dot = (b"", 0)
    for s in siblings:
        if s.dot <= before:
            raise CodecError("not an object: siblings are not in rising order of their dots")
        if not covers(clock, s.dot):
            raise CodecError("not an object: a sibling's dot is not covered by the clock")
        before = s.dot
    return Object(clock, siblings)


def says_deleted(data: bytes) -> bool:
    """True when the object in `data`, bytes of our own store, is a tombstone; a tenth of the cost of decoding it."""
    raw = msgpack.unpackb(data, use_list=False)
    return all(sibling[3] for sibling in raw[2])


_SIBLING_TYPES: Final = (bytes, int, int, bool, bytes, bytes, bytes, tuple, tuple, tuple)


def _sibling(item: object) -> Sibling:
    if type(item) is not tuple or tuple(type(x) for x in item) != _SIBLING_TYPES:
        raise CodecError("not an object: a sibling has a wrong shape")
    actor, counter, modified, tombstone, value, ctype, cenc, metadata, links, indexes = item
    check_clock(((actor, counter, 0),))
    if not 0 <= modified < 1 << 63:
        raise CodecError("not an object: a last-modified time is out of range")
    if tombstone and value:
        raise CodecError("not an object: a tombstone has a value")
    for pairs, width in ((metadata, 2), (links, 3), (indexes, 2)):
        if len(pairs) > METADATA_MAX:
            raise CodecError(f"not an object: more than {METADATA_MAX} metadata pairs")
        for pair in pairs:
            if type(pair) is not tuple or len(pair) != width:
                raise CodecError("not an object: a metadata pair has a wrong shape")
            if any(type(x) is not bytes for x in pair):
                raise CodecError("not an object: a metadata pair is not of bytes")
    return Sibling((actor, counter), modified, tombstone, value, ctype, cenc, metadata, links, indexes)


def peek_summary(data: bytes) -> tuple[bytes, Clock, int, int, bool] | None:
    """(encoded clock, clock, hash64, last modified in ms, tombstone) of an object of one sibling without metadata,
    links and indexes, as most are, checked without building it; None of any other, of bytes that are none, and of the
    same in another form than the canonical one."""
    try:
        _, encoded, (sibling,) = msgpack.unpackb(data, use_list=False, max_map_len=0, max_ext_len=0)
        actor, counter, modified_ms, tombstone, value, _, _, metadata, links, indexes = sibling
        if (
            not (metadata or links or indexes or (tombstone and value))
            and tuple(map(type, sibling)) == _SIBLING_TYPES
            and 0 <= modified_ms < 1 << 63
            and _pack((OBJECT_VERSION, encoded, (sibling,))) == data
        ):
            clock = decode_clock(encoded)
            if counter > 0 and covers(clock, (actor, counter)):
                return encoded, clock, xxh64_intdigest(data), modified_ms, tombstone
    except (ValueError, TypeError, CodecError, msgpack.exceptions.UnpackException, RecursionError):
        pass  # not the common shape: the full decoder accepts it or says what is wrong
    return None


def summarize_encoded(data: bytes) -> Summary:
    """The summary of an object of which only the bytes are at hand (a push). Raises CodecError as
    `decode_object` does; the common object of one sibling is checked without building it."""
    seen = peek_summary(data)
    if seen is not None:
        encoded, _, hash64, modified_ms, tombstone = seen
        return Summary(encoded, hash64, modified_ms, len(data), 1, tombstone)
    obj = decode_object(data)
    canonical, summary = encode_with_summary(obj)
    if canonical != data:
        raise CodecError("not an object in canonical form: its bytes would change")
    return summary


def written(
    current: Object | None, context: Clock, content: Content, dot: Dot, now_ms: int, properties: Properties
) -> Object:
    """The object after a client's write, as `repl.model.objects.write`, under the bucket's properties.

    `last_write_wins`: what is there is replaced, seen or not. Without `dvv_enabled` a context that has not seen
    everything replaces nothing. Without `allow_mult` the newest sibling by last-modified stays, of two of one moment
    the one that is no tombstone, then that of the greater dot (Riak's rule, but for its last step)."""
    if current is None:
        return write(None, context, content, dot, now_ms)
    if properties.last_write_wins:
        return write(Object(current.clock, ()), context or current.clock, content, dot, now_ms)
    if context and not properties.dvv_enabled and not descends(context, current.clock):
        made = write(Object(current.clock, ()), context, content, dot, now_ms)
        made = Object(made.clock, tuple(sorted((*current.siblings, *made.siblings))))
    else:
        made = write(current, context, content, dot, now_ms)
    return made if properties.allow_mult else _newest_alone(made)


def resolved(merged: Object, dot: Dot, now_ms: int, properties: Properties) -> Object:
    """What a merge of this cluster's object and another's comes to: itself, or its newest sibling, under a clock that
    `dot` tells from the merge's."""
    if properties.allow_mult and not properties.last_write_wins:
        return merged
    if len(merged.siblings) == 1:
        return merged
    return _newest_alone(Object(increment(merged.clock, *dot, now_ms // 1000), merged.siblings))


def _newest_alone(obj: Object) -> Object:
    return obj if len(obj.siblings) == 1 else Object(obj.clock, (max(obj.siblings, key=_age),))


def _age(sibling: Sibling) -> tuple[int, bool, Dot]:
    return sibling.last_modified_ms, not sibling.tombstone, sibling.dot
