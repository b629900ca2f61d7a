"""Riak's objects, version 1, both ways. Pure.

    object      53, 1, length, clock, count of siblings, siblings
    sibling     length, value, length, (last modified, vtag, deleted, metadata)

Lengths have four bytes, all integers are big-endian. A value, and each name and value of the metadata, begins with 1
when it is a binary and with 0 when it is any other term. Texts of the metadata are lists of characters, as Riak's HTTP
listener stores them, or binaries, as other clients do.

Two copies of a sibling are one to a Riak only if all that it keeps about them is equal: tag, microseconds, empty
entries. So what a Riak has about a sibling is carried beside what Isthmus understands of it, unseen by clients
(RIAK_METADATA), and goes back as it came while the sibling has the dot with which it came.

A sibling of a Riak has a dot where the bucket has `dvv_enabled`. One that has none, and is alone, gets that of the
newest write in the clock; of several, nothing says which write made which.

The formats: Riak's `riak_object`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.objects import HIDDEN_NAME, METADATA_MAX, SIBLINGS_DECODED_MAX, Links, Object, Pairs, Sibling
from isthmus.repl.model.vclock import Clock, Dot, covers, parts_of
from isthmus.repl.riak.clocks import clock_of, decode_clock_term, encode_clock_term, gregorian
from isthmus.repl.riak.terms import (
    VERSION,
    TermReader,
    binary,
    decode_term,
    integer,
    list_of,
    sized,
    text,
    tuple_of,
)

RIAK_METADATA: Final = HIDDEN_NAME + b"riak"
"""Name of the hidden metadata with all that a Riak has about a sibling: the first byte of its value, then the rest."""

_OBJECT_MAGIC: Final = b"\x35\x01"
_BINARY: Final = b"\x01"
_TERM: Final = b"\x00"

_DOT: Final = b"dot"
_CONTENT_TYPE: Final = b"content-type"
_CHARSET: Final = b"charset"
_CONTENT_ENCODING: Final = b"content-encoding"
_LINKS: Final = b"Links"
_INDEX: Final = b"index"
_META: Final = b"X-Riak-Meta"
_META_PREFIX: Final = b"X-Riak-Meta-"

_MEGA_MAX: Final = 0xFFFF_FFFF
"""Greatest number of millions of seconds in a last-modified time, the year 136 million; a later time is cut to it."""

_MODIFIED_MS_MAX: Final = (1 << 63) - 1

_INTEGER_INDEX: Final = re.compile(rb"0|-?[1-9][0-9]{0,38}")
"""Values of an index whose name ends in _int that an integer gives back as they are; others stay binaries."""

_TYPE_AND_CHARSET: Final = re.compile(rb"([^;\s]+); charset=([^;\s\"]+)")
"""A content type with a charset and no other parameter: Riak keeps the two apart, and they are put together so."""

_DATA_TYPE: Final = b"application/riak_"
"""How content types of Riak's data types begin: maps, sets, counters, sketches."""


class SiblingsWithoutDots(CodecError):
    """An object has several siblings, and nothing says which write made which."""


# ---------------------------------------------------------------- encoding


def encode_riak_object(stored: Object) -> bytes:
    """A Riak object, version 1."""
    siblings = [part for sibling in stored.siblings for part in _sibling_parts(sibling, stored)]
    clock = sized(encode_clock_term(stored.clock))
    return b"".join((_OBJECT_MAGIC, clock, len(stored.siblings).to_bytes(4, "big"), *siblings))


def _sibling_parts(sibling: Sibling, stored: Object) -> tuple[bytes, ...]:
    tag, about = _carried(sibling, stored) or (_BINARY, _about(sibling))
    return ((len(tag) + len(sibling.value)).to_bytes(4, "big"), tag, sibling.value, sized(about))


def _carried(sibling: Sibling, stored: Object) -> tuple[bytes, bytes] | None:
    """What a Riak had about the sibling; None if it came from none, or if its dot is no longer the one it came with.

    One that had no dot gets one once it is beside others: the Riak would keep it whatever it had seen. A data type
    never gets one: a Riak merges only those without.
    """
    for name, value in sibling.metadata:
        if name == RIAK_METADATA:
            entries = _read_about(value[1:]).entries
            if _DOT in entries:
                same = _dot_of(entries[_DOT]) == sibling.dot
            else:
                lone = len(stored.siblings) == 1 and newest_write(stored.clock) == sibling.dot
                same = lone or sibling.content_type.startswith(_DATA_TYPE)
            return (value[:1], value[1:]) if same else None
    return None


def _about(sibling: Sibling) -> bytes:
    seconds, ms = divmod(sibling.last_modified_ms, 1000)
    mega, seconds = divmod(seconds, 1_000_000)
    times = (min(mega, _MEGA_MAX), seconds, ms * 1000)
    vtag = sibling.vtag.encode()
    return b"".join(
        (
            *(number.to_bytes(4, "big") for number in times),
            bytes([len(vtag)]),
            vtag,
            bytes([sibling.tombstone]),
            *_metadata(sibling),
        )
    )


def _metadata(sibling: Sibling) -> Iterable[bytes]:
    """Names and values of the metadata of one sibling."""
    actor, counter = sibling.dot
    dot = tuple_of(binary(actor), tuple_of(integer(counter), integer(gregorian(sibling.last_modified_ms // 1000))))
    yield _entry(_DOT, dot)
    if sibling.content_type:
        parted = _TYPE_AND_CHARSET.fullmatch(sibling.content_type)
        yield _entry(_CONTENT_TYPE, text(sibling.content_type if parted is None else parted[1]))
        if parted is not None:
            yield _entry(_CHARSET, text(parted[2]))
    if sibling.content_encoding:
        yield _entry(_CONTENT_ENCODING, text(sibling.content_encoding))
    if sibling.links:
        links = (tuple_of(tuple_of(binary(bucket), binary(key)), binary(tag)) for bucket, key, tag in sibling.links)
        yield _entry(_LINKS, list_of(links))
    if sibling.indexes:
        yield _entry(_INDEX, list_of(tuple_of(binary(name), _index(name, value)) for name, value in sibling.indexes))
    if sibling.shown_metadata:
        pairs = (tuple_of(text(_META_PREFIX + name), text(value)) for name, value in sibling.shown_metadata)
        yield _entry(_META, list_of(pairs))


def _entry(name: bytes, term: bytes) -> bytes:
    return sized(_BINARY + name) + sized(_TERM + VERSION + term)


def _index(name: bytes, value: bytes) -> bytes:
    number = name.endswith(b"_int") and _INTEGER_INDEX.fullmatch(value) is not None
    return integer(int(value)) if number else binary(value)


# ---------------------------------------------------------------- decoding


def decode_riak_object(data: bytes) -> Object:
    """The object in `data`. Raises SiblingsWithoutDots, and CodecError for what is no object of a Riak.

    Entries of the metadata of a form that Isthmus does not know are carried, and not shown.
    """
    reader = TermReader(data, "an object")
    if reader.take(2) != _OBJECT_MAGIC:
        raise reader.refused("it is not of version 1")
    clock = decode_clock_term(reader.sized())
    count = reader.number()
    if not 0 < count <= SIBLINGS_DECODED_MAX or count > reader.left:
        raise reader.refused(f"{count} siblings, 1..{SIBLINGS_DECODED_MAX} expected, and their bytes")
    siblings = [_decoded(reader.sized(), reader.sized(), clock, count) for _ in range(count)]
    reader.end()
    by_dot = {sibling.dot: sibling for sibling in siblings}
    if len(by_dot) < count:
        raise reader.refused("two siblings have the same dot")
    return Object(clock, tuple(by_dot[dot] for dot in sorted(by_dot)))


class _About(NamedTuple):
    """What a Riak has about a sibling: of the entries of its metadata those that Isthmus knows, by name."""

    modified_ms: int
    deleted: bool
    entries: Mapping[bytes, Any]


def _decoded(value: bytes, about: bytes, clock: Clock, siblings: int) -> Sibling:
    modified_ms, deleted, entries = _read_about(about)
    if not value:
        raise CodecError("not an object of a Riak: a sibling has no value, not even an empty one")
    if _DOT in entries:
        dot = _dot_of(entries[_DOT])
    elif siblings > 1:
        raise SiblingsWithoutDots(
            f"{siblings} siblings without dots: nothing says which write made which value. Set dvv_enabled = true for "
            f"the bucket in the Riak, and write the key once more"
        )
    else:
        dot = newest_write(clock)
    if not covers(clock, dot):
        raise CodecError("not an object of a Riak: the clock has not seen a sibling's dot")
    if deleted and len(value) > 1:
        raise CodecError("not an object of a Riak: a tombstone has a value")
    sibling = Sibling(
        dot,
        modified_ms,
        deleted,
        value[1:],
        _content_type(entries),
        _text_of(entries.get(_CONTENT_ENCODING)) or b"",
        _shown(entries),
        _links(entries.get(_LINKS)),
        _indexes(entries.get(_INDEX)),
    )
    if value[:1] == _BINARY and _about(sibling) == about:
        return sibling  # a write of Isthmus that comes back is what it was
    return sibling._replace(metadata=((RIAK_METADATA, value[:1] + about), *sibling.metadata))


def newest_write(clock: Clock) -> Dot:
    """The dot of a lone sibling that has none: a vnode of a Riak made it, whose write is the newest in the clock.

    All siblings of Isthmus have dots, so its actors come last; of equal times, which are seconds, the greater counter
    wins. Raises CodecError for an empty clock.
    """
    if not clock:
        raise CodecError("not an object of a Riak: its clock is empty")
    actor, counter, _ = max(clock, key=lambda entry: (parts_of(entry[0]) is None, entry[2], entry[1], entry[0]))
    return actor, counter


def _read_about(data: bytes) -> _About:
    """Raises CodecError."""
    reader = TermReader(data, "metadata")
    mega, seconds, micros = reader.number(), reader.number(), reader.number()
    modified_ms = min((mega * 1_000_000 + seconds) * 1_000 + micros // 1_000, _MODIFIED_MS_MAX)
    reader.take(reader.number(1))  # the tag of the version
    deleted = reader.number(1) == 1
    entries: dict[bytes, Any] = {}
    count = 0
    while reader.left:
        count += 1
        if count > METADATA_MAX:
            raise reader.refused(f"more than {METADATA_MAX} entries")
        name, value = reader.sized(), reader.sized()
        if name[:1] == _BINARY and name[1:] in _KNOWN and value:
            entries[name[1:]] = value[1:] if value[:1] == _BINARY else decode_term(value[1:], "metadata")
    return _About(modified_ms, deleted, entries)


_KNOWN: Final = frozenset((_DOT, _CONTENT_TYPE, _CHARSET, _CONTENT_ENCODING, _LINKS, _INDEX, _META))


def _dot_of(term: Any) -> Dot:
    ((actor, counter, _),) = clock_of([term])
    return actor, counter


def _text_of(term: Any) -> bytes | None:
    """A text or a binary; None for anything else."""
    if isinstance(term, bytes):
        return bytes(term)
    return b"" if term == [] else None


def _content_type(entries: Mapping[bytes, Any]) -> bytes:
    found = _text_of(entries.get(_CONTENT_TYPE)) or b""
    charset = _text_of(entries.get(_CHARSET))
    return b"%b; charset=%b" % (found, charset) if found and charset else found


def _shown(entries: Mapping[bytes, Any]) -> Pairs:
    """Metadata of clients; names are in lower case, as those of headers."""
    found = []
    for pair in _list_of(entries.get(_META)):
        match pair:
            case (name, value) if type(pair) is tuple:
                shown_name, shown_value = _text_of(name), _text_of(value)
                if shown_name is not None and shown_value is not None:
                    lower = shown_name.lower()
                    found.append((lower.removeprefix(_META_PREFIX.lower()), shown_value))
    return tuple(pair for pair in found[:METADATA_MAX] if not pair[0].startswith(HIDDEN_NAME))


def _links(term: Any) -> Links:
    found = []
    for link in _list_of(term):
        match link:
            case ((bytes(bucket), bytes(key)), bytes(tag)) if type(link) is tuple:
                found.append((bytes(bucket), bytes(key), bytes(tag)))
    return tuple(found[:METADATA_MAX])


def _indexes(term: Any) -> Pairs:
    found = []
    for row in _list_of(term):
        match row:
            case (bytes(name), int(number)) if type(row) is tuple:
                found.append((bytes(name), b"%d" % number))
            case (bytes(name), bytes(value)) if type(row) is tuple:
                found.append((bytes(name), bytes(value)))
    return tuple(found[:METADATA_MAX])


def _list_of(term: Any) -> list[Any]:
    return term if type(term) is list else []
