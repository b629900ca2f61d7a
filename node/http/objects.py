"""PUT, POST, GET, HEAD and DELETE of one object: the hot room of the client face.

A request costs one scan of its headers, one call of `KeyValue`, and one pair of sends. Forms and statuses are Riak's
(docs/http.md has the table). The story goes on in `repl.coordinator`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

from config.settings import LimitSettings
from node.http.asgi import Face, Receive, Request, Scope, Send, read_body
from node.http.object_headers import (
    ObjectHeaders,
    parse_headers,
    parse_isolation,
    prefers_multipart,
    sibling_headers,
    vclock_header,
)
from node.http.router import decode_segment, encode_segment, method_not_allowed, parse_query
from node.http.statuses import PLAIN, Headers, Refused, Reply
from node.http.stored import read_stored
from repl.model.keys import DEFAULT_BUCKET_TYPE, Key
from repl.model.objects import TOMBSTONE, Content, Sibling
from repl.model.ports import KeyValue
from repl.model.requests import Isolation, WriteRequest, Written

METHODS: Final = ("DELETE", "GET", "HEAD", "POST", "PUT")
ROUTE: Final = "object"

GENERATED_KEY_BYTES: Final = 18
"""Random bytes of a key that a POST makes: 144 bits, 24 characters; two never meet."""

_NOT_FOUND_HEADERS: Final[Headers] = [(b"content-type", PLAIN), (b"x-isthmus-reason", b"not-found")]
_NOT_FOUND: Final = Reply(404, _NOT_FOUND_HEADERS, b"not found\n")
_VARY: Final = (b"vary", b"Accept")
_REPEATED: Final = (b"x-isthmus-repeated", b"true")
_NO_PARAMETERS: Final[Mapping[str, str]] = {}


class ObjectRoutes:
    """The object routes of the client face."""

    def __init__(self, kv: KeyValue, limits: LimitSettings, face: Face) -> None:
        self._kv = kv
        self._object_limit = limits.object_bytes
        self._key_limit = limits.key_bytes
        self._face = face
        self._budget = face.budget
        self._counts = face.counts
        for prefix in ("", "/types/{type}"):
            face.router.add("POST", prefix + "/buckets/{bucket}/keys", self._create)

    async def answer(
        self, scope: Scope, receive: Receive, send: Send, bucket_type: bytes, bucket: bytes, key: bytes
    ) -> None:
        """One request for a key; bucket and key are as in the path, still encoded."""
        method: str = scope["method"]
        if b"%" in bucket:
            bucket = decode_segment(bucket)
        if b"%" in key:
            key = decode_segment(key)
        limit = self._key_limit
        if not 0 < len(bucket) <= limit or not 0 < len(key) <= limit:
            raise self._bad_key()
        place = Key(bucket_type, bucket, key)
        query = scope["query_string"]
        parameters = _checked(parse_query(query)) if query else _NO_PARAMETERS
        if method == "PUT" or method == "POST":
            headers = parse_headers(scope["headers"])
            if not headers.content_type:
                raise _no_content_type()
            value = await read_body(
                receive, headers.declared_bytes, self._object_limit, "limits.object_bytes", self._budget
            )
            wanted = bool(parameters) and parameters.get("returnbody") == "true"
            try:
                written = await self._kv.write(
                    WriteRequest(place, _content(value, headers), headers.context, headers.request_id, wanted)
                )
            finally:
                self._budget.used_bytes -= len(value)
            if not wanted:
                reply = Reply(204, _written_headers(written))
            else:
                reply = await self._returned(place, written, scope["headers"])
        elif method == "GET" or method == "HEAD":
            isolation = parameters.get("isolation")
            payload = await self._kv.get(place, None if isolation is None else Isolation(isolation))
            reply = _NOT_FOUND if payload is None else _shown(payload, parameters.get("vtag"), scope["headers"])
        elif method == "DELETE":
            headers = parse_headers(scope["headers"])
            reply = _deleted(
                await self._kv.write(WriteRequest(place, TOMBSTONE, headers.context, headers.request_id, False))
            )
        else:
            raise method_not_allowed(method, METHODS)
        await self._face.send_reply(scope, send, reply)
        self._counts.add(ROUTE, method, reply.status)

    async def _create(self, request: Request) -> Reply:
        """POST to .../keys: a write under a key made here; 201 and its Location."""
        _checked(request.query)
        bucket = request.params["bucket"]
        if not 0 < len(bucket) <= self._key_limit:
            raise self._bad_key()
        headers = parse_headers(request.headers)
        if not headers.content_type:
            raise _no_content_type()
        if headers.request_id:
            raise Refused(
                400,
                "bad-request-id",
                "each POST to .../keys makes a key of its own, so an id cannot tell a repeated one: PUT to a key",
            )
        key = secrets.token_urlsafe(GENERATED_KEY_BYTES).encode()
        place = Key(request.params.get("type", DEFAULT_BUCKET_TYPE), bucket, key)
        value = await request.body(self._object_limit, "limits.object_bytes")
        wanted = request.query.get("returnbody") == "true"
        written = await self._kv.write(
            WriteRequest(place, _content(value, headers), headers.context, payload_wanted=wanted)
        )
        location = (b"location", request.raw_path + b"/" + encode_segment(key))
        if not wanted:
            return Reply(201, [vclock_header(written.clock), location])
        shown = await self._returned(place, written, request.headers)
        return Reply(201, [*shown.headers, location], shown.body)

    async def _returned(self, place: Key, written: Written, request_headers: Headers) -> Reply:
        """The answer to a write with returnbody=true: as GET. What was too large to come with the write is read."""
        payload = written.payload or await self._kv.get(place, Isolation.COMMITTED)
        reply = _NOT_FOUND if payload is None else _shown(payload, None, request_headers)
        return Reply(reply.status, [*reply.headers, _REPEATED], reply.body) if written.repeated else reply

    def _bad_key(self) -> Refused:
        return Refused(400, "bad-key", f"bucket and key must have 1 to {self._key_limit} bytes (limits.key_bytes)")


def _no_content_type() -> Refused:
    return Refused(400, "no-content-type", "a write needs a Content-Type header")


def _content(value: bytes, headers: ObjectHeaders) -> Content:
    _, _, content_type, content_encoding, metadata, links, indexes, _ = headers
    return Content(value, content_type, content_encoding, metadata, links, indexes)


def _checked(parameters: Mapping[str, str]) -> Mapping[str, str]:
    """The parameters of an object request. Raises Refused for what is unknown where it matters."""
    isolation = parameters.get("isolation")
    if isolation is not None:
        parse_isolation(isolation)
    return parameters


def _written_headers(written: Written) -> Headers:
    clock = vclock_header(written.clock)
    return [clock, _REPEATED] if written.repeated else [clock]


def _deleted(written: Written) -> Reply:
    if written.created:
        return Reply(204, _written_headers(written))
    return _absent(written.clock)


def _absent(clock: bytes) -> Reply:
    """404 for a key that was deleted, with the tombstone's clock; plain when it was never there (no clock)."""
    if not clock:
        return _NOT_FOUND
    return Reply(404, [*_NOT_FOUND_HEADERS, (b"x-riak-deleted", b"true"), vclock_header(clock)], b"not found\n")


def _shown(payload: bytes, vtag: str | None, request_headers: Headers) -> Reply:
    """What a GET shows of stored bytes: 200, 300 for siblings, 404 for a tombstone. Raises Corruption."""
    clock, siblings = stored = read_stored(payload)
    if vtag is None and len(siblings) == 1:
        return _single(siblings[0], clock)
    if stored.deleted:
        return _absent(clock)
    if vtag is not None:
        for sibling in siblings:
            if sibling.vtag == vtag:
                return _single(sibling, clock)
        raise Refused(404, "unknown-vtag", "no sibling has this vtag: read the key again", [vclock_header(clock)])
    accept = next((v for n, v in request_headers if n == b"accept"), None)
    if prefers_multipart(accept):
        boundary = secrets.token_hex(16).encode()
        headers = [(b"content-type", b"multipart/mixed; boundary=" + boundary), vclock_header(clock), _VARY]
        return Reply(300, headers, _multipart(siblings, boundary))
    text = "Siblings:\n" + "".join(f"{s.vtag}\n" for s in siblings)
    return Reply(300, [(b"content-type", b"text/plain"), vclock_header(clock), _VARY], text.encode())


def _single(sibling: Sibling, clock: bytes) -> Reply:
    if sibling.tombstone:
        return _absent(clock)
    return Reply(200, [vclock_header(clock), *sibling_headers(sibling)], sibling.value)


def _multipart(siblings: tuple[Sibling, ...], boundary: bytes) -> bytes:
    """All siblings as the parts of a multipart/mixed body, each with its own headers."""
    parts: list[bytes] = []
    for sibling in siblings:
        parts.append(b"\r\n--" + boundary + b"\r\n")
        parts += [name.title() + b": " + value + b"\r\n" for name, value in sibling_headers(sibling)]
        parts += [b"\r\n", sibling.value]
    parts.append(b"\r\n--" + boundary + b"--\r\n")
    return b"".join(parts)
