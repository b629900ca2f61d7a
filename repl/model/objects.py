"""Objects: siblings under one vector clock, and the rules by which writes and merges replace them. Pure.

An object is a clock and the siblings that no write seen so far has replaced. Each sibling carries the dot of the write
that made it, and the object's clock covers all these dots. This is a dotted version vector set: `merge` is commutative,
associative and idempotent; it loses no value that no later write has seen, and keeps none that one has (Preguica et
al., "Dotted Version Vectors"). A delete writes a tombstone, a sibling without a value, which stays until it is reaped.

Encoded, an object is canonical: siblings are sorted by dot, so equal objects have equal bytes and equal hashes. The
leader encodes an object once; the log and the store hold these bytes, and sinks receive them.

Bucket properties decide what concurrent writes leave: all siblings, or the newest. Only the leader applies them, and
the entry carries the result, so all replicas hold the same object whatever properties they know. Clocks do not depend
on properties: each write has its own dot, and the object's clock covers all earlier writes. A node that drops siblings
of a merge makes a dot for that, too, or two clusters with different properties would hold different objects under equal
clocks.
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
"""Maximum siblings of one object that the decoder accepts; writes are refused far below it (settings)."""

METADATA_MAX: Final = 65_535
"""Maximum metadata, link or index pairs of one sibling that the decoder accepts."""

HIDDEN_NAME: Final = b"\x00"
"""How names of metadata begin that no client is shown: no header can have such a name, so no client can write one."""

Pairs = tuple[tuple[bytes, bytes], ...]
Links = tuple[tuple[bytes, bytes, bytes], ...]


_pack: Final = msgpack.Packer().pack  # shared: see repl.model.vclock


class Sibling(NamedTuple):
    """One value of an object and the dot of its write. Text fields are bytes as received.

    `last_modified_ms` is the leader's wall clock in milliseconds since 1970: advisory, never used for order. `links`
    are (bucket, key, tag).
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
        """A short tag of this version, equal on all clusters: 16 hex digits over its dot."""
        actor, counter = self.dot
        return xxh64_hexdigest(actor + counter.to_bytes(8, "big"))

    @property
    def shown_metadata(self) -> Pairs:
        """The metadata that clients are shown: all but hidden ones, which an edge of the product keeps for itself."""
        if not self.metadata or not any(name.startswith(HIDDEN_NAME) for name, _ in self.metadata):
            return self.metadata
        return tuple(pair for pair in self.metadata if not pair[0].startswith(HIDDEN_NAME))


class Content(NamedTuple):
    """A client's value: a sibling that has no dot yet. A delete has `tombstone` set."""

    value: bytes
    content_type: bytes = b"application/octet-stream"
    content_encoding: bytes = b""
    metadata: Pairs = ()
    links: Links = ()
    indexes: Pairs = ()
    tombstone: bool = False


TOMBSTONE: Final = Content(b"", b"", tombstone=True)


class Object(NamedTuple):
    """Siblings, sorted by dot, under the clock that covers them all; at least one sibling."""

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
    """Return the object after a client's write of `content` with causal `context` and the new `dot`.

    Siblings that the context has seen are replaced; others stay beside the new one. A write without context over a
    tombstone takes the tombstone's clock as its context, so a deleted key can simply be written again (Riak's rule).
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
    """Return the object that has seen everything that `a` and `b` have: the effect of a push on a stored object.

    A sibling stays when both have it, or when the one that lacks it has not seen it. Where clusters keep the newest
    sibling alone, each may have dropped what the other kept: then none is left, and `pushed` chooses.
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
    """The part of an object that its key row keeps: enough to compare, list and count without the values.

    `clock` is encoded; `hash64` is xxh64 of the canonical object bytes, `size_bytes` their length; `last_modified_ms`
    the latest of the siblings.
    """

    clock: bytes
    hash64: int
    last_modified_ms: int
    size_bytes: int
    sibling_count: int
    tombstone: bool


def encode_object(obj: Object) -> bytes:
    """Return the canonical bytes of `obj`: msgpack [version, clock bytes, [sibling, ...]]."""
    return _pack_object(encode_clock(obj.clock), obj.siblings)


def _pack_object(clock: bytes, siblings: tuple[Sibling, ...]) -> bytes:
    packed: bytes = _pack((OBJECT_VERSION, clock, [(*s[0], *s[1:]) for s in siblings]))
    return packed


def encode_with_summary(obj: Object) -> tuple[bytes, Summary]:
    """Return (canonical bytes, summary) of `obj`; the leader does this once per object.

    Raises TooLarge for a clock above CLOCK_ENTRIES_MAX, which contexts and merges may produce and no decoder would
    accept.
    """
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
    """Return the object in `data`. Raises CodecError for anything that `encode_object` would not write.

    Every length is bounded by that of `data`, so hostile bytes cannot request more memory.
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


def is_deleted_object(data: bytes) -> bool:
    """True when the object in `data`, bytes of our own store, is a tombstone; costs a tenth of decoding it."""
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
    """Return (encoded clock, clock, hash64, last modified in ms, tombstone) of a common object without building it.

    Common: one sibling without metadata, links and indexes. None for any other object, for malformed bytes, and for
    bytes that are not canonical.
    """
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
    """Return the summary of an encoded object (a push). Raises CodecError as `decode_object` does.

    The common object with one sibling is checked without building it.
    """
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
    """Return the object after a client's write under the bucket's properties; without them see `write`.

    `last_write_wins`: the stored object is replaced, seen or not. Without `dvv_enabled`, a context that has not seen
    everything replaces nothing. Without `allow_mult`, only the newest sibling by last-modified stays; of equal times
    the one that is no tombstone, then the one with the greater dot (Riak's rule, except for the last step).
    """
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


def pushed(current: Object, theirs: Object, dot: Dot, now_ms: int, properties: Properties) -> Object:
    """Return the stored object after a push of another cluster's concurrent object, under the bucket's properties.

    It is their merge; without `allow_mult`, and with `last_write_wins`, only its newest sibling, under a clock with
    `dot` that differs from the merge's. It always has a sibling (R-KEEP): where each clock covers all siblings of the
    other object, the newest of them all stays, as a write of its own: `dot` is its dot.
    """
    merged = merge(current, theirs)
    if not merged.siblings:
        newest = max((*current.siblings, *theirs.siblings), key=_age)
        return Object(increment(merged.clock, *dot, now_ms // 1000), (newest._replace(dot=dot),))
    if len(merged.siblings) == 1 or (properties.allow_mult and not properties.last_write_wins):
        return merged
    return _newest_alone(Object(increment(merged.clock, *dot, now_ms // 1000), merged.siblings))


def _newest_alone(obj: Object) -> Object:
    return obj if len(obj.siblings) == 1 else Object(obj.clock, (max(obj.siblings, key=_age),))


def _age(sibling: Sibling) -> tuple[int, bool, Dot]:
    return sibling.last_modified_ms, not sibling.tombstone, sibling.dot
