"""Answers that show an object: 200 with its value, 300 for siblings, 404 for a tombstone; 304 and 412 by condition.

Pure but for the boundary of a multipart body. The forms are Riak's, and JSON for those who ask; `object_headers` makes
the headers.
"""

from __future__ import annotations

from binascii import b2a_base64
from typing import Final

from isthmus.node.client_api.conditional import unless_conditions
from isthmus.node.client_api.json_form import base64_text, encoded, shown_siblings
from isthmus.node.client_api.object_decoding import Stored, read_stored
from isthmus.node.client_api.object_headers import (
    content_type_value,
    last_modified,
    prefers_multipart,
    sibling_headers,
    vclock_header,
)
from isthmus.node.http.accept import accept_of, asks_for_json
from isthmus.node.http.responses import JSON, PLAIN, Headers, Reply, RequestRefused
from isthmus.repl.machine import machine
from isthmus.repl.model.conditions import Condition, ConditionState, object_tag
from isthmus.repl.model.objects import Sibling

_NOT_FOUND_HEADERS: Final[Headers] = [(b"content-type", PLAIN), (b"x-isthmus-reason", b"not-found")]
NOT_FOUND: Final = Reply(404, _NOT_FOUND_HEADERS, b"not found\n")
"""The answer for a key that was never written, or whose tombstone was reaped."""

_VARY: Final = (b"vary", b"Accept")


def render_tombstone(clock: bytes) -> Reply:
    """404 for a deleted key, with the tombstone's clock; without a clock the key was never there."""
    if not clock:
        return NOT_FOUND
    return Reply(404, [*_NOT_FOUND_HEADERS, (b"x-riak-deleted", b"true"), vclock_header(clock)], b"not found\n")


def render_object(payload: bytes, vtag: str | None, request_headers: Headers, now_s: int) -> Reply:
    """The answer to a GET at `now_s`. Raises Corruption, and RequestRefused (404) for a vtag of no sibling."""
    return render_stored(read_stored(payload), vtag, request_headers, now_s)


def render_plain(stored: Stored, now_s: int) -> tuple[bytes, bytes] | None:
    """The answer 200 to a GET of a common object, as `render_stored` makes it: its header lines, each with its line
    end, and its value. None for any other object. Common: one sibling, with no more than a value and its type."""
    clock, siblings = stored
    if len(siblings) != 1:
        return None
    sibling = siblings[0]
    _, modified_ms, tombstone, value, content_type, encoding, metadata, links, indexes = sibling
    if tombstone or encoding or metadata or links or indexes:
        return None
    lines = b'x-riak-vclock: %b\r\ncontent-type: %b\r\netag: "%b"\r\nlast-modified: %b\r\n' % (
        b2a_base64(clock, newline=False),
        content_type_value(content_type),
        sibling.vtag.encode(),
        last_modified(modified_ms, now_s),
    )
    return lines, value


def render_stored(stored: Stored, vtag: str | None, request_headers: Headers, now_s: int) -> Reply:
    """As `render_object`, of a decoded object."""
    clock, siblings = stored
    if vtag is None and len(siblings) == 1:
        return _single(siblings[0], clock, now_s)
    if stored.deleted:
        return render_tombstone(clock)
    if vtag is not None:
        return _single(_named(vtag, siblings, clock), clock, now_s)
    headers: Headers = [
        vclock_header(clock),
        (b"etag", f'"{object_tag(clock, siblings)}"'.encode()),
        (b"last-modified", last_modified(max(s.last_modified_ms for s in siblings), now_s)),
        _VARY,
    ]
    accept = accept_of(request_headers)
    if asks_for_json(accept):
        return Reply(300, [*headers, (b"content-type", JSON)], _document(clock, siblings))
    if prefers_multipart(accept):
        boundary = machine().random_bytes(16).hex().encode()
        headers.append((b"content-type", b"multipart/mixed; boundary=" + boundary))
        return Reply(300, headers, _multipart(siblings, boundary, now_s))
    text = "Siblings:\n" + "".join(f"{s.vtag}\n" for s in siblings)
    return Reply(300, [*headers, (b"content-type", b"text/plain")], text.encode())


def show_if(condition: Condition, payload: bytes, vtag: str | None, request_headers: Headers, now_s: int) -> Reply:
    """As `render_object`, when the request's condition holds. An absent key is 404 whatever the condition."""
    reply = render_object(payload, vtag, request_headers, now_s)
    if reply.status == 404:
        return reply
    clock, siblings = read_stored(payload)
    shown = siblings if vtag is None else (_named(vtag, siblings, clock),)
    standing = ConditionState(True, object_tag(clock, shown), max(s.last_modified_ms for s in shown) // 1000, ())
    return unless_conditions(condition, standing, now_s, reply.headers) or reply


def _named(vtag: str, siblings: tuple[Sibling, ...], clock: bytes) -> Sibling:
    for sibling in siblings:
        if sibling.vtag == vtag:
            return sibling
    raise RequestRefused(404, "unknown-vtag", "no sibling has this vtag: read the key again", [vclock_header(clock)])


def _single(sibling: Sibling, clock: bytes, now_s: int) -> Reply:
    if sibling.tombstone:
        return render_tombstone(clock)
    return Reply(200, [vclock_header(clock), *sibling_headers(sibling, now_s)], sibling.value)


def _document(clock: bytes, siblings: tuple[Sibling, ...]) -> bytes:
    """All siblings as a JSON document."""
    tag = object_tag(clock, siblings)
    return encoded({"vclock": base64_text(clock), "etag": tag, "siblings": shown_siblings(siblings)}) + b"\n"


def _multipart(siblings: tuple[Sibling, ...], boundary: bytes, now_s: int) -> bytes:
    """All siblings as the parts of a multipart/mixed body, each with its own headers."""
    parts: list[bytes] = []
    for sibling in siblings:
        parts.append(b"\r\n--" + boundary + b"\r\n")
        parts += [name.title() + b": " + value + b"\r\n" for name, value in sibling_headers(sibling, now_s)]
        parts += [b"\r\n", sibling.value]
    parts.append(b"\r\n--" + boundary + b"--\r\n")
    return b"".join(parts)
