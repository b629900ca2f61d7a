"""Batches in msgpack: items and answers as lists. Pure. docs/http.md has the form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgpack

from isthmus.config.settings import LimitSettings
from isthmus.node.client_api.object_decoding import read_stored
from isthmus.node.client_api.object_headers import (
    check_content_type,
    check_index,
    is_header_name,
    is_header_value,
    parse_request_id,
)
from isthmus.node.http.application import MSGPACK
from isthmus.node.http.object_query import parse_isolation
from isthmus.node.http.responses import RequestRefused, explanation, status_of
from isthmus.repl.model.errors import BadInput, IsthmusError, TooLarge
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import TOMBSTONE, Content
from isthmus.repl.model.requests import Isolation, WriteRequest, WriteResult
from isthmus.repl.model.vclock import Clock, decode_clock

ELEMENTS_PER_ITEM_MAX: Final = 64
"""Msgpack elements per item of the limit, summed over a request: 6 fields and a few dozen metadata. A one-byte element
takes 8 to 60 bytes once decoded, so without this limit a body of 64 MB could need gigabytes."""

CONTENT_TYPE: Final = b"application/octet-stream"

_BARE: Final = Content(b"", CONTENT_TYPE)[1:]
"""The fields of a content after its value, when the item has none."""

_new: Final = tuple.__new__
"""Makes a named tuple of all its fields, in order, at half the cost of its own constructor."""


class MsgpackForm:
    """See `batch.BatchForm`."""

    media_type = MSGPACK

    def items(self, body: bytes, limits: LimitSettings) -> Sequence[Any]:
        """See BatchForm."""
        count = _array_length(body)
        if count > limits.batch_items:
            raise TooLarge(f"a batch of {count} items, limits.batch_items is {limits.batch_items}")
        left = limits.batch_items * ELEMENTS_PER_ITEM_MAX

        def counted(elements: list[Any]) -> list[Any]:
            nonlocal left
            left -= len(elements)
            if left < 0:
                raise ValueError("more elements than a batch may have")
            return elements

        try:
            # raw: text and bytes both arrive as bytes, so a client may pack either.
            items: list[Any] = msgpack.unpackb(
                body,
                raw=True,
                list_hook=counted,
                max_array_len=max(limits.batch_items, ELEMENTS_PER_ITEM_MAX),
                max_map_len=0,
                max_ext_len=0,
            )
        except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
            raise RequestRefused(
                400, "bad-msgpack", f"the body is not a msgpack list of items: {str(error) or type(error).__name__}"
            ) from error
        return items

    def write_request(self, item: Any, limit: int) -> WriteRequest:
        """See BatchForm."""
        return write_request(item, limit)

    def key(self, item: Any) -> tuple[Key, Isolation | None]:
        """See BatchForm."""
        return _key(item), _isolation(item)

    def written(self, result: WriteResult) -> Any:
        """See BatchForm."""
        if result.created:
            return 204, result.clock or None, "repeated" if result.repeated else None
        return 404, result.clock or None, "not-found"

    def found(self, payload: bytes | None) -> Any:
        """See BatchForm."""
        return (404, None, "not-found") if payload is None else _found(payload)

    def refused(self, error: IsthmusError) -> Any:
        """See BatchForm."""
        return status_of(error), None, f"{error.reason}: {explanation(error)}"

    def enlarges(self, _answer: Any) -> int:
        """See BatchForm: objects are as large in the answer as they are stored."""
        return 0

    def encoded(self, answers: Sequence[Any]) -> bytes:
        """See BatchForm."""
        packed: bytes = msgpack.packb(answers)
        return packed


def _array_length(body: bytes) -> int:
    """The length of the list at the start of a msgpack body. Raises RequestRefused (400)."""
    mark = body[0] if body else 0
    if 0x90 <= mark <= 0x9F:
        return mark & 0x0F
    if mark == 0xDC:
        return int.from_bytes(body[1:3], "big")
    if mark == 0xDD:
        return int.from_bytes(body[1:5], "big")
    raise RequestRefused(400, "bad-msgpack", "the body is not a msgpack list of items")


def _key(item: Any) -> Key:
    """The key of an item: [type, bucket, key, ...]. Raises BadInput."""
    if type(item) is not list or len(item) < 3:
        raise BadInput("an item is a list of at least bucket type, bucket and key")
    bucket_type, bucket, key = name = item[:3]
    if type(bucket_type) is not bytes or type(bucket) is not bytes or type(key) is not bytes:
        raise BadInput("bucket type, bucket and key must be text or bytes")
    return _new(Key, name)


def _isolation(item: Any) -> Isolation | None:
    """The isolation of an item to get, [type, bucket, key, isolation]; None for the node's default. Raises BadInput."""
    if len(item) > 4:
        raise BadInput("an item to get has 3 or 4 elements: type, bucket, key, isolation")
    if len(item) < 4 or item[3] is None:
        return None
    if type(item[3]) is not bytes:
        raise BadInput("an isolation must be text or nil")
    return parse_isolation(item[3].decode("ascii", "backslashreplace"))


def write_request(item: Any, limit: int) -> WriteRequest:
    """[type, bucket, key, value, content type, vclock, extras, request id], all behind the value optional; a value of
    nil deletes. Raises BadInput."""
    key = _key(item)
    size = len(item)
    if size == 4 or (4 < size <= 6 and item[4] is None):
        # The usual item: a value without a content type.
        value = item[3]
        if type(value) is bytes and len(value) <= limit and (size < 6 or item[5] is None):
            return _new(WriteRequest, (key, _new(Content, (value, *_BARE)), None, b"", False, None))
    if not 4 <= size <= 8:
        raise BadInput(
            "an item to put has 4 to 8 elements: type, bucket, key, value, content type, vclock, extras, request id"
        )
    value = item[3]
    request_id = b""
    if size > 7 and item[7] is not None:
        if type(item[7]) is not bytes:
            raise BadInput("a request id must be text, bytes or nil")
        request_id = parse_request_id(item[7])
    context: Clock | None = None
    if size > 5 and item[5] is not None:
        if type(item[5]) is not bytes:
            raise BadInput("a vclock must be bytes or nil")
        context = decode_clock(item[5])
    if value is None:
        return WriteRequest(key, TOMBSTONE, context, request_id, False)
    if type(value) is not bytes:
        raise BadInput("a value must be bytes, or nil for a delete")
    if len(value) > limit:
        raise TooLarge(f"value of {len(value)} bytes, limits.object_size is {limit}")
    content_type = item[4] if size > 4 else None
    if content_type is None:
        content_type = CONTENT_TYPE
    elif type(content_type) is not bytes or not content_type or not is_header_value(content_type):
        raise BadInput("a content type must be non-empty text without control characters, or nil")
    else:
        check_content_type(content_type)
    if size < 7 or item[6] is None:
        return WriteRequest(key, Content(value, content_type), context, request_id, False)
    return WriteRequest(key, _with_extras(value, content_type, item[6]), context, request_id, False)


def _with_extras(value: bytes, content_type: bytes, extras: Any) -> Content:
    """Extras: [content encoding, [[name, value], ...] metadata, [[bucket, key, tag], ...] links,
    [[name, value], ...] indexes]. Raises BadInput."""
    if type(extras) is not list or len(extras) != 4:
        raise BadInput("extras are a list of content encoding, metadata, links and indexes")
    encoding, metadata, links, indexes = extras
    if type(encoding) is not bytes or not is_header_value(encoding):
        raise BadInput("a content encoding must be text without control characters")
    for rows, width in ((metadata, 2), (links, 3), (indexes, 2)):
        if type(rows) is not list or any(type(row) is not list or len(row) != width for row in rows):
            raise BadInput("metadata and indexes are lists of pairs, links of triples")
        if any(type(cell) is not bytes for row in rows for cell in row):
            raise BadInput("metadata, links and indexes must be text or bytes")
    for name, text in (*metadata, *indexes):
        if not is_header_name(name) or name != name.lower() or not is_header_value(text):
            raise BadInput("names must be lower-case header names, values free of control characters")
    for name, text in indexes:
        check_index(name, text)
    return Content(
        value,
        content_type,
        encoding,
        tuple((name, text) for name, text in metadata),
        tuple((bucket, key, tag) for bucket, key, tag in links),
        tuple((name, text) for name, text in indexes),
    )


def _found(payload: bytes) -> tuple[int, bytes, list[tuple[Any, ...]]]:
    """[status, vclock, siblings] of stored bytes; each sibling [value, content type, vtag, last-modified ms, extras],
    value nil for a tombstone. 404 when only tombstones are left."""
    stored = read_stored(payload)
    siblings = [
        (
            None if s.tombstone else s.value,
            s.content_type,
            s.vtag,
            s.last_modified_ms,
            (s.content_encoding, s.shown_metadata, s.links, s.indexes)
            if s.content_encoding or s.shown_metadata or s.links or s.indexes
            else None,
        )
        for s in stored.siblings
    ]
    return (404 if stored.deleted else 300 if len(siblings) > 1 else 200), stored.clock, siblings
