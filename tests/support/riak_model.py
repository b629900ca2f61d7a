"""One Riak as its peers see it: objects that it writes and merges, and a real-time queue. In memory, without a network.

Its rules, as a real one shows them: a write of a client takes the vnode's next counter; with `dvv_enabled` its sibling
has that as its dot, and replaces the siblings whose dots the context has seen; without, it replaces all or nothing. An
object of a peer is stored as it is: of two clocks of which one descends the other, that one's object is kept; else
both are merged, and two copies of a sibling are one only if all that is kept about them is equal. Without `allow_mult`
the sibling modified last stays. Only clients' writes are queued.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple
from zlib import crc32

from isthmus.repl.riak.terms import binary, integer, list_of, sized, text, tuple_of
from tests.support.riak_decoder import Reader, decode_tagged, decode_term

ACTOR: Final = b"riak-vnode-1"

Actor = bytes
Clock = dict[Actor, tuple[int, int]]
RiakDot = tuple[Actor, tuple[int, int]]


class Kept(NamedTuple):
    """A sibling as the Riak keeps it; two are equal if all is."""

    value: bytes
    about: bytes

    @property
    def deleted(self) -> bool:
        return self._read()[1]

    @property
    def modified(self) -> tuple[int, int, int]:
        return self._read()[0]

    @property
    def dot(self) -> RiakDot | None:
        found: RiakDot | None = self._read()[2]
        return found

    def _read(self) -> tuple[tuple[int, int, int], bool, RiakDot | None]:
        reader = Reader(self.about)
        modified = (reader.number(), reader.number(), reader.number())
        reader.take(reader.number(1))
        deleted, dot = reader.number(1) == 1, None
        while reader.at < len(reader.data):
            name, value = decode_tagged(reader.sized()), decode_tagged(reader.sized())
            if name == b"dot":
                dot = value
        return modified, deleted, dot


class RiakObject(NamedTuple):
    clock: Clock
    siblings: frozenset[Kept]

    @property
    def values(self) -> list[bytes]:
        """Values of siblings that are no tombstones, as clients see them."""
        return sorted(one.value[1:] for one in self.siblings if not one.deleted)


class Bucket(NamedTuple):
    """The properties of the only bucket."""

    allow_mult: bool = True
    dvv_enabled: bool = True


def descends(a: Clock, b: Clock) -> bool:
    return all(a.get(actor, (0, 0))[0] >= counter for actor, (counter, _) in b.items())


def merged_clocks(a: Clock, b: Clock) -> Clock:
    return {actor: max(a.get(actor, (0, 0)), b.get(actor, (0, 0))) for actor in a.keys() | b.keys()}


def term_of(clock: Clock) -> bytes:
    entries = (tuple_of(binary(a), tuple_of(integer(c), integer(t))) for a, (c, t) in sorted(clock.items()))
    return b"\x83" + list_of(entries)


def encoded(found: RiakObject) -> bytes:
    """The bytes of an object, version 1."""
    siblings = b"".join(sized(one.value) + sized(one.about) for one in sorted(found.siblings))
    return b"\x35\x01" + sized(term_of(found.clock)) + len(found.siblings).to_bytes(4, "big") + siblings


def decoded(data: bytes) -> RiakObject:
    """The object in `data`."""
    reader = Reader(data)
    assert reader.take(2) == b"\x35\x01"
    clock = dict(decode_term(reader.sized()))
    siblings = frozenset(Kept(reader.sized(), reader.sized()) for _ in range(reader.number()))
    assert not reader.rest()
    return RiakObject(clock, siblings)


def change_in(answer: bytes) -> tuple[bytes, bytes] | None:
    """(key, object) of an answer to a fetch, checked as a Riak does; None for an empty queue."""
    if answer == b"\0":
        return None
    reader = Reader(answer)
    assert reader.number(1) == 1
    deleted = reader.number(1)
    if deleted:
        reader.sized()
    checksum, change = reader.number(), reader.rest()
    assert crc32(change) == checksum
    reader = Reader(change)
    assert reader.number(1) == 0x10
    _, _, key, data = reader.sized(), reader.sized(), reader.sized(), reader.rest()
    assert all(one.deleted for one in decoded(data).siblings) == bool(deleted)
    return key, data


class RiakModel:
    """A Riak with one vnode and one bucket, `bucket_type` b"" for that of the default type."""

    def __init__(self, bucket: Bucket, bucket_type: bytes = b"", name: bytes = b"b") -> None:
        self.bucket = bucket
        self.bucket_type = bucket_type
        self.name = name
        self.objects: dict[bytes, RiakObject] = {}
        self.queue: deque[bytes] = deque()
        self._tags = 0

    def get(self, key: bytes) -> RiakObject | None:
        """The object of a key."""
        return self.objects.get(key)

    def put(self, key: bytes, value: bytes | None, context: Clock, now_us: int) -> None:
        """A client's write, or its delete; the change is queued."""
        current = self.objects.get(key)
        before: Clock = {} if current is None else current.clock
        if current is not None and not context and all(one.deleted for one in current.siblings):
            context = before
        clock = merged_clocks(before, context)
        counter = clock.get(ACTOR, (0, 0))[0] + 1
        dot = (ACTOR, (counter, 62_167_219_200 + now_us // 1_000_000))
        clock[ACTOR] = dot[1]
        new = Kept(b"\x01" + (value or b""), self._about(value is None, dot, now_us))
        kept = [] if current is None or descends(context, before) else list(current.siblings)
        if self.bucket.dvv_enabled:
            kept = [one for one in kept if one.dot is None or context.get(one.dot[0], (0, 0))[0] < one.dot[1][0]]
        self.objects[key] = self._alone(RiakObject(clock, frozenset((*kept, new))))
        self.queue.append(key)

    def push(self, key: bytes, data: bytes) -> None:
        """An object of a peer; nothing is queued."""
        theirs, current = decoded(data), self.objects.get(key)
        if current is None or descends(theirs.clock, current.clock):
            self.objects[key] = self._alone(theirs)
        elif not descends(current.clock, theirs.clock):
            self.objects[key] = self._alone(self._merged(current, theirs))

    def take(self, key: bytes | None = None) -> bytes:
        """The answer of a fetch: the object of the oldest queued key, or of `key`, as it is now."""
        if key is None:
            if not self.queue:
                return b"\0"
            key = self.queue.popleft()
        found = self.objects[key]
        change = b"\x10" + sized(self.bucket_type) + sized(self.name) + sized(key) + encoded(found)
        deleted = all(one.deleted for one in found.siblings)
        clock = sized(term_of(found.clock)) if deleted else b""
        return b"\x01" + bytes([deleted]) + clock + crc32(change).to_bytes(4, "big") + change

    def _merged(self, a: RiakObject, b: RiakObject) -> RiakObject:
        clock = merged_clocks(a.clock, b.clock)
        in_both = {one.dot for one in a.siblings} & {one.dot for one in b.siblings}
        kept = {
            one
            for mine, other in ((a, b), (b, a))
            for one in mine.siblings
            if one.dot is None or one.dot in in_both or other.clock.get(one.dot[0], (0, 0))[0] < one.dot[1][0]
        }
        if not kept:
            kept = set(a.siblings | b.siblings)
        return RiakObject(clock, frozenset(kept))

    def _alone(self, found: RiakObject) -> RiakObject:
        if self.bucket.allow_mult or len(found.siblings) == 1:
            return found
        newest = max(found.siblings, key=lambda one: (one.modified, not one.deleted, one))
        return RiakObject(found.clock, frozenset((newest,)))

    def _about(self, deleted: bool, dot: RiakDot, now_us: int) -> bytes:
        """What a Riak writes about a sibling: microseconds, a tag of its own, empty entries."""
        self._tags += 1
        seconds, micros = divmod(now_us, 1_000_000)
        mega, seconds = divmod(seconds, 1_000_000)
        tag = b"%022d" % self._tags
        nothing = b"\x83\x6a"
        terms = [(b"index", nothing)]
        if not deleted:
            terms = [(b"X-Riak-Meta", nothing), *terms, (b"content-type", b"\x83" + text(b"text/plain"))]
        if self.bucket.dvv_enabled:
            actor, (counter, time_s) = dot
            terms.append((b"dot", b"\x83" + tuple_of(binary(actor), tuple_of(integer(counter), integer(time_s)))))
        if not deleted:
            terms.append((b"Links", nothing))
        entries = b"".join(sized(b"\x01" + name) + sized(b"\x00" + term) for name, term in terms)
        times = b"".join(part.to_bytes(4, "big") for part in (mega, seconds, micros))
        return times + bytes([len(tag)]) + tag + bytes([deleted]) + entries
