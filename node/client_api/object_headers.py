"""Headers of objects: a sibling's metadata on the wire, both ways. Pure.

The names and forms are Riak's (X-Riak-Vclock, X-Riak-Meta-*, X-Riak-Index-*, Link with riaktag), so that programs
written for it keep working.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from email.utils import formatdate
from functools import lru_cache
from typing import Final, NamedTuple

from isthmus.node.client_api.conditional import (
    IF_MATCH,
    IF_NONE_MATCH,
    IF_NOT_MODIFIED,
    IF_UNMODIFIED_SINCE,
    write_condition,
)
from isthmus.node.http.accept import prefers
from isthmus.node.http.responses import Headers, RequestRefused
from isthmus.node.http.router import decode_segment, encode_segment
from isthmus.repl.model.conditions import Condition
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.objects import Links, Pairs, Sibling
from isthmus.repl.model.requests import REQUEST_ID_BYTES_MAX
from isthmus.repl.model.vclock import Clock, decode_clock

OCTETS: Final = b"application/octet-stream"

META_PREFIX: Final = b"x-riak-meta-"
INDEX_PREFIX: Final = b"x-riak-index-"

_CONTENT_LENGTH: Final = 1
_CONTENT_TYPE: Final = 2
_CONTENT_ENCODING: Final = 3
_VCLOCK: Final = 4
_LINK: Final = 5
_CONDITIONAL: Final = 6
_ACCEPT: Final = 7
_OTHER: Final = 8
_REQUEST_ID: Final = 9
_IF_NOT_MODIFIED: Final = 10

_KNOWN: Final = {
    b"content-length": _CONTENT_LENGTH,
    b"content-type": _CONTENT_TYPE,
    b"content-encoding": _CONTENT_ENCODING,
    b"x-riak-vclock": _VCLOCK,
    b"link": _LINK,
    IF_MATCH: _CONDITIONAL,
    IF_NONE_MATCH: _CONDITIONAL,
    IF_UNMODIFIED_SINCE: _CONDITIONAL,
    IF_NOT_MODIFIED: _IF_NOT_MODIFIED,
    b"accept": _ACCEPT,
    b"x-isthmus-request-id": _REQUEST_ID,
    # Most clients send these with every request: named here so that they cost one look-up.
    b"host": _OTHER,
    b"user-agent": _OTHER,
    b"accept-encoding": _OTHER,
    b"connection": _OTHER,
    b"x-riak-clientid": _OTHER,
}

_new: Final = tuple.__new__
"""Makes a named tuple of all its fields, in order, at half the cost of its own constructor."""

_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_LINK_VALUE: Final = re.compile(rb'\s*+<([^>]*+)>\s*+;\s*+(riaktag|rel)\s*+=\s*+(?:"([^",]*+)"|([^\s",]*+))\s*+(?:,|$)')
"""Possessive quantifiers (`*+`): no header can make it backtrack."""
_LINK_TARGET: Final = re.compile(rb"/(?:types/[^/]+/)?(?:buckets/([^/]+)/keys|riak/([^/]+))/([^/]+)")
_INTEGER: Final = re.compile(rb"-?[0-9]{1,39}")
_REQUEST_ID_VALUE: Final = re.compile(rb"[\x21-\x7e]{1,%d}" % REQUEST_ID_BYTES_MAX)


class ObjectHeaders(NamedTuple):
    """The headers of a request that writes or deletes an object."""

    declared_bytes: int
    context: Clock | None
    content_type: bytes
    content_encoding: bytes
    metadata: Pairs
    links: Links
    indexes: Pairs
    request_id: bytes
    condition: Condition | None


def parse_headers(headers: Headers) -> ObjectHeaders:
    """The object headers of a write.

    `declared_bytes` is -1 without Content-Length, `content_type` and `request_id` empty when missing; `condition` None
    without any. Raises RequestRefused (400).
    """
    declared = -1
    context: Clock | None = None
    content_type = content_encoding = request_id = b""
    metadata: list[tuple[bytes, bytes]] | None = None
    indexes: list[tuple[bytes, bytes]] | None = None
    links: list[tuple[bytes, bytes, bytes]] | None = None
    conditions: Headers | None = None
    unmodified: Clock | None = None
    known = _KNOWN.get
    for name, value in headers:
        kind = known(name)
        if kind is None:
            if name.startswith(META_PREFIX):
                if metadata is None:
                    metadata = []
                metadata.append((name[len(META_PREFIX) :], value))
            elif name.startswith(INDEX_PREFIX):
                if indexes is None:
                    indexes = []
                indexes += parse_index(name[len(INDEX_PREFIX) :], value)
        elif kind == _CONTENT_LENGTH:
            declared = _length(value)
        elif kind == _CONTENT_TYPE:
            content_type = value
        elif kind == _VCLOCK:
            context = parse_vclock(value)
        elif kind == _CONTENT_ENCODING:
            content_encoding = value
        elif kind == _LINK:
            if links is None:
                links = []
            links += parse_links(value)
        elif kind == _REQUEST_ID:
            request_id = parse_request_id(value)
        elif kind == _CONDITIONAL:
            if conditions is None:
                conditions = []
            conditions.append((name, value))
        elif kind == _IF_NOT_MODIFIED:
            unmodified = parse_vclock(value, "X-Riak-If-Not-Modified")
    condition: Condition | None = None
    if conditions is not None or unmodified is not None:
        condition = write_condition(conditions or [])._replace(clock=unmodified)
    return _new(
        ObjectHeaders,
        (
            declared,
            context,
            content_type,
            content_encoding,
            tuple(metadata) if metadata else (),
            tuple(links) if links else (),
            tuple(indexes) if indexes else (),
            request_id,
            condition,
        ),
    )


def parse_request_id(value: bytes) -> bytes:
    """A client's request id. Raises RequestRefused (400)."""
    if _REQUEST_ID_VALUE.fullmatch(value) is None:
        raise RequestRefused(
            400,
            "bad-request-id",
            f"a request id (X-Isthmus-Request-Id) has 1 to {REQUEST_ID_BYTES_MAX} printable ASCII bytes, no space",
        )
    return value


def _length(value: bytes) -> int:
    if not value.isdigit() or len(value) > 18:
        raise RequestRefused(400, "bad-header", "Content-Length is not a number of bytes")
    return int(value)


def parse_vclock(value: bytes, header: str = "X-Riak-Vclock") -> Clock:
    """The clock in an X-Riak-Vclock header. Raises RequestRefused (400)."""
    try:
        return decode_clock(a2b_base64(value, strict_mode=True))
    except Base64Error as error:
        raise _bad_vclock(header, f"not base64 ({error})") from error
    except CodecError as error:
        raise _bad_vclock(header, str(error)) from error


def _bad_vclock(header: str, fault: str) -> RequestRefused:
    return RequestRefused(400, "bad-vclock", f"{header} is {fault}: send it back as it was read")


def vclock_header(clock: bytes) -> tuple[bytes, bytes]:
    """The X-Riak-Vclock header of an encoded clock."""
    return b"x-riak-vclock", b2a_base64(clock, newline=False)


def parse_index(name: bytes, value: bytes) -> Pairs:
    """The index entries of one X-Riak-Index header: comma-separated values. Raises RequestRefused (400)."""
    values = [v.strip() for v in value.split(b",")]
    for each in values:
        check_index(name, each)
    return tuple((name, v) for v in values)


def check_index(name: bytes, value: bytes) -> None:
    """Check one index entry of a write. Raises RequestRefused (400).

    A header has the values of an index separated by commas, and without spaces at their ends: a value that has such
    itself would be read as another."""
    fault = ""
    if name.endswith(b"_int"):
        if _INTEGER.fullmatch(value) is None:
            fault = "has a value that is not an integer"
    elif not name.endswith(b"_bin"):
        fault = "ends neither in _bin nor in _int"
    elif b"," in value or value != value.strip():
        fault = "has a value with a comma, or with spaces at its ends, which a header cannot carry"
    if fault:
        raise RequestRefused(400, "bad-index", f"X-Riak-Index-{name.decode('latin-1')} {fault}")


def check_content_type(content_type: bytes) -> None:
    """Check the form of a write's content type. Raises RequestRefused (415)."""
    if b"/" not in content_type:
        raise RequestRefused(415, "bad-content-type", "Content-Type is not of the form TYPE/SUBTYPE")


def parse_links(value: bytes) -> Links:
    """The (bucket, key, tag) links of one Link header; links with `rel` are ignored. Raises RequestRefused (400)."""
    links: list[tuple[bytes, bytes, bytes]] = []
    at = 0
    while at < len(value):
        match = _LINK_VALUE.match(value, at)
        target = match and _LINK_TARGET.fullmatch(match[1])
        if match is None or (match[2] == b"riaktag" and target is None):
            raise RequestRefused(
                400, "bad-link", 'a Link header is not of the form </buckets/B/keys/K>; riaktag="T", comma-separated'
            )
        if target is not None and match[2] == b"riaktag":
            tag = match[3] if match[3] is not None else match[4]
            links.append((decode_segment(target[1] or target[2]), decode_segment(target[3]), decode_segment(tag)))
        at = match.end()
    return tuple(links)


_LAST_DATE_S: Final = 253_402_300_799
"""The end of year 9999: a date of HTTP has a year of four digits, an object of another cluster may have any time."""


@lru_cache(maxsize=1024)
def http_date(seconds: int) -> bytes:
    """`seconds` since 1970 as a date of HTTP, the end of year 9999 for any later time. The newest thousand are cached
    since neighbours share them."""
    return formatdate(min(seconds, _LAST_DATE_S), usegmt=True).encode()


def last_modified(modified_ms: int, now_s: int) -> bytes:
    """The Last-Modified of an object: never after the Date of its answer (RFC 9110, 8.8.2.1), though the clocks of the
    node that wrote it and of this one differ."""
    modified_s = modified_ms // 1000
    return http_date(modified_s if modified_s < now_s else now_s)


def is_header_value(value: bytes) -> bool:
    """True when `value` may be in a header: no control characters (a line end would forge a header)."""
    return _VALUE.fullmatch(value) is not None


def is_header_name(name: bytes) -> bool:
    """True when `name` may be part of a header's name (a token of RFC 9110 5.6.2)."""
    return _TOKEN.fullmatch(name) is not None


@lru_cache(maxsize=256)
def content_type_value(content_type: bytes) -> bytes:
    """The Content-Type of a stored value; objects of other clusters may have any bytes."""
    return content_type if content_type and is_header_value(content_type) else OCTETS


def sibling_headers(sibling: Sibling, now_s: int) -> Headers:
    """All headers of one sibling in an answer at `now_s`, without its length. Values that must not be in a header are
    left out."""
    headers: Headers = [
        (b"content-type", content_type_value(sibling.content_type)),
        (b"etag", f'"{sibling.vtag}"'.encode()),
        (b"last-modified", last_modified(sibling.last_modified_ms, now_s)),
    ]
    if sibling.content_encoding or sibling.metadata or sibling.links or sibling.indexes:
        headers += _rarer_headers(sibling)
    if sibling.tombstone:
        headers.append((b"x-riak-deleted", b"true"))
    return headers


def _rarer_headers(sibling: Sibling) -> Headers:
    """The headers that most objects do not have."""
    headers: Headers = []
    if sibling.content_encoding and is_header_value(sibling.content_encoding):
        headers.append((b"content-encoding", sibling.content_encoding))
    headers += [(META_PREFIX + n, v) for n, v in sibling.shown_metadata if is_header_name(n) and is_header_value(v)]
    by_name: dict[bytes, list[bytes]] = {}
    for name, value in sibling.indexes:
        if is_header_name(name) and is_header_value(value):
            by_name.setdefault(name, []).append(value)
    headers += [(INDEX_PREFIX + name, b", ".join(values)) for name, values in by_name.items()]
    if sibling.links:
        shown = [
            b'</buckets/%b/keys/%b>; riaktag="%b"' % (encode_segment(b), encode_segment(k), encode_segment(t))
            for b, k, t in sibling.links
        ]
        headers.append((b"link", b", ".join(shown)))
    return headers


def prefers_multipart(accept: bytes | None) -> bool:
    """True when an Accept header gives multipart/mixed a higher weight than text/plain, which wins ties and wildcards,
    as in Riak."""
    return prefers(accept, b"multipart/mixed", b"text/plain")
