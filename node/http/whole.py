"""A request that arrived whole, in one piece and in the usual words: read at a glance, without the parser.

What is taken here is a small, strict part of HTTP/1.1 that can be read in one way only; the parser would take each such
request, too, and read the same in it (a test compares the two). All else is not refused here but left to the parser:
other framing, other versions, doubtful bytes, more or less than one request. Pure but for a memory of header lines. The
story goes on in `quick`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from node.http.origins import OF_BROWSERS
from node.http.statuses import Headers

_IN_TARGET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.~%+:@!$&'()*,;=/?-"
"""What a path and a query may be made of here: all but what has a meaning of its own or must be encoded."""

_LINE: Final = re.compile(rb"([!#$%&'*+.^`|~\w-]+): ?([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")

_FRAMING: Final = frozenset((b"connection", b"expect", b"proxy-connection", b"transfer-encoding", b"upgrade"))
"""Headers that decide how the connection goes on."""

_ELSEWHERE: Final = _FRAMING | OF_BROWSERS
"""With one of these the request is the parser's; one of a browser, because `Face` looks at where it is from."""

_USUAL_CONNECTION: Final = (b"connection", b"keep-alive")

_BODILESS: Final = frozenset(("DELETE", "GET", "HEAD"))

_METHODS: Final = {name.encode(): name for name in ("DELETE", "GET", "HEAD", "POST", "PUT")}

LINES_KEPT: Final = 1024
LINE_BYTES_MAX: Final = 128
"""Header lines whose meaning is kept, since a program sends the same few with every request, and the longest of them:
together a quarter of a megabyte. When there are more, all are forgotten and learned anew."""

_KEPT: Final = frozenset(
    (
        b"accept",
        b"accept-encoding",
        b"connection",
        b"content-length",
        b"content-type",
        b"host",
        b"user-agent",
        b"x-riak-clientid",
    )
)
"""Headers whose lines are worth keeping: they repeat, and are no secret."""


class Whole(NamedTuple):
    """A request as it was sent: path and query still encoded, header names in lower case."""

    method: str
    raw_path: bytes
    query_string: bytes
    headers: Headers
    body: bytes


_new: Final = tuple.__new__
"""Makes a named tuple of all its fields, in order, at half the price of its own constructor."""

_lines: dict[bytes, tuple[bytes, bytes]] = {}


def read_whole(data: bytes, head_limit_bytes: int) -> Whole | None:
    """The one request that `data` is; None when it is anything else, or when its head might be over the limit."""
    end = data.find(b"\r\n\r\n", 0, head_limit_bytes)
    if end < 0:
        return None
    lines = data[:end].split(b"\r\n")
    words = lines[0].split(b" ")
    if len(words) != 3:
        return None
    verb, target, version = words
    method = _METHODS.get(verb)
    if method is None or version != b"HTTP/1.1" or target[:1] != b"/" or target.translate(None, _IN_TARGET):
        return None
    headers: Headers = []
    hosts = 0
    length: bytes | None = None
    kept = _lines.get
    del lines[0]
    for line in lines:
        header = kept(line)
        if header is None:
            header = _read_line(line)
            if header is None:
                return None
        name = header[0]
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            if length is not None:
                return None
            length = header[1]
        headers.append(header)
    if hosts != 1:
        return None
    path, _, query = target.partition(b"?")
    at = end + 4
    if length is None:
        if len(data) != at or method not in _BODILESS:
            return None
        return _new(Whole, (method, path, query, headers, b""))
    if method in _BODILESS or len(data) - at != int(length):
        return None
    return _new(Whole, (method, path, query, headers, data[at:]))


def _read_line(line: bytes) -> tuple[bytes, bytes] | None:
    """Name and value of a header line, None of one that is not for here."""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    header = match[1].lower(), match[2]
    name, value = header
    if (name in _ELSEWHERE and header != _USUAL_CONNECTION) or (
        name == b"content-length" and _LENGTH.fullmatch(value) is None
    ):
        return None
    if name in _KEPT and len(line) <= LINE_BYTES_MAX:
        if len(_lines) >= LINES_KEPT:
            _lines.clear()
        _lines[line] = header
    return header
