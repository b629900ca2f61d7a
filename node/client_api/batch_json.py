"""Batches in JSON: items and answers as objects. Pure but for one counter. docs/http.md has the form.

Nothing is decoded before its size is checked. A body becomes one struct for each item, whose members stay slices of it,
and items above the limit end that. A value is then decoded once it is known to fit, and metadata once its elements are
counted.
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from isthmus.config.settings import LimitSettings
from isthmus.node.client_api.batch_msgpack import ELEMENTS_PER_ITEM_MAX, write_request
from isthmus.node.client_api.json_form import (
    BASE64_VALUE,
    JSON_VALUE,
    TEXT_VALUE,
    base64_text,
    encoded,
    is_utf8,
    shown_siblings,
)
from isthmus.node.client_api.object_decoding import read_stored
from isthmus.node.http.object_query import parse_isolation
from isthmus.node.http.responses import JSON, RequestRefused, explanation, status_of
from isthmus.repl.model.errors import BadInput, IsthmusError, TooLarge
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE, Key
from isthmus.repl.model.requests import Isolation, WriteRequest, WriteResult

CONTENT_TYPES: Final = {
    JSON_VALUE: JSON,
    TEXT_VALUE: b"text/plain; charset=utf-8",
    BASE64_VALUE: b"application/octet-stream",
}
"""The content type of a value that comes without one, by its form."""

ESCAPE_BYTES: Final = 6
"""Most bytes of JSON text for one byte of UTF-8: an escape like \\u0041."""

_left = [0]
"""How many items the body that is being decoded may still have. Decoding is one call, so there is one such body."""

_Field = Raw | UnsetType


class _Item(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Base of items; counts them while a body is decoded."""

    type: _Field = UNSET
    bucket: _Field = UNSET
    key: _Field = UNSET

    def __post_init__(self) -> None:
        _left[0] -= 1
        if _left[0] < 0:
            raise _TooManyItems


class _PutItem(_Item, forbid_unknown_fields=True, kw_only=True):
    json: _Field = UNSET
    text: _Field = UNSET
    base64: _Field = UNSET
    delete: _Field = UNSET
    content_type: _Field = UNSET
    content_encoding: _Field = UNSET
    vclock: _Field = UNSET
    metadata: _Field = UNSET
    links: _Field = UNSET
    indexes: _Field = UNSET
    request_id: _Field = UNSET


class _GetItem(_Item, forbid_unknown_fields=True, kw_only=True):
    isolation: _Field = UNSET


class _Bytes(msgspec.Struct, forbid_unknown_fields=True):
    """A name that is not UTF-8."""

    base64: str


class _TooManyItems(Exception):
    """The body has more items than it may have."""


_NAME: Final = msgspec.json.Decoder(str | _Bytes)
_TEXT: Final = msgspec.json.Decoder(str)
_FLAG: Final = msgspec.json.Decoder(bool)
_ROWS: Final = msgspec.json.Decoder(list[list[str | _Bytes]])


class JsonForm:
    """See `batch.BatchForm`."""

    media_type = JSON

    def __init__(self, *, puts: bool) -> None:
        """`puts`: items are to be put."""
        self._decoder = _PUTS if puts else _GETS
        self._elements_left = 0

    def items(self, body: bytes, limits: LimitSettings) -> Sequence[Any]:
        """See BatchForm."""
        _left[0] = limits.batch_items
        self._elements_left = limits.batch_items * ELEMENTS_PER_ITEM_MAX
        try:
            return self._decoder.decode(body)
        except _TooManyItems:
            raise TooLarge(f"a batch of more items than limits.batch_items, {limits.batch_items}") from None
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise RequestRefused(
                400, "bad-json", f"the body is not a JSON list of items: {error}; members of an item: {self._members()}"
            ) from error

    def _members(self) -> str:
        return ", ".join((_PutItem if self._decoder is _PUTS else _GetItem).__struct_encode_fields__)

    def write_request(self, item: _PutItem, limit: int) -> WriteRequest:
        """See BatchForm."""
        name = _key(item)
        form, value = _value(item, limit)
        content_type = (
            CONTENT_TYPES.get(form) if item.content_type is UNSET else _text(item.content_type, "content_type")
        )
        clock = None if item.vclock is UNSET else _base64(_text(item.vclock, "vclock").decode(), "vclock")
        request_id = None if item.request_id is UNSET else _text(item.request_id, "request_id")
        return write_request([*name, value, content_type, clock, self._extras(item), request_id], limit)

    def _extras(self, item: _PutItem) -> list[Any] | None:
        """Encoding, metadata, links and indexes as an item in msgpack has them."""
        given = (item.content_encoding, item.metadata, item.links, item.indexes)
        if all(each is UNSET for each in given):
            return None
        encoding = b"" if item.content_encoding is UNSET else _text(item.content_encoding, "content_encoding")
        rows = [self._rows(raw, what) for raw, what in zip(given[1:], ("metadata", "links", "indexes"), strict=True)]
        return [encoding, *rows]

    def _rows(self, raw: _Field, what: str) -> list[list[bytes]]:
        if isinstance(raw, UnsetType):
            return []
        data = bytes(raw)
        self._elements_left -= data.count(b'"') // 2 + data.count(b"[")  # before they are made
        if self._elements_left < 0:
            raise TooLarge("more elements of metadata, links and indexes than a batch may have")
        rows = _decoded(_ROWS, raw, what, "a list of lists of texts")
        return [[_cell(cell, what) for cell in row] for row in rows]

    def key(self, item: _GetItem) -> tuple[Key, Isolation | None]:
        """See BatchForm."""
        key = _key(item)
        if item.isolation is UNSET:
            return key, None
        return key, parse_isolation(_text(item.isolation, "isolation").decode())

    def written(self, result: WriteResult) -> Any:
        """See BatchForm."""
        row: dict[str, Any] = {"status": 204} if result.created else _not_found()
        if result.clock:
            row["vclock"] = base64_text(result.clock)
        if result.repeated:
            row["repeated"] = True
        return encoded(row)

    def found(self, payload: bytes | None) -> Any:
        """See BatchForm."""
        if payload is None:
            return encoded(_not_found())
        stored = read_stored(payload)
        row = _not_found() if stored.deleted else {"status": 300 if len(stored.siblings) > 1 else 200}
        row |= {"vclock": base64_text(stored.clock), "siblings": shown_siblings(stored.siblings)}
        return encoded(row)

    def refused(self, error: IsthmusError) -> Any:
        """See BatchForm."""
        return encoded({"status": status_of(error), "reason": error.reason, "error": explanation(error)})

    def enlarges(self, answer: Any) -> int:
        """See BatchForm: escapes and base64 make an object larger than it is stored."""
        return len(answer)

    def encoded(self, answers: Sequence[Any]) -> bytes:
        """See BatchForm."""
        return b"[%b]\n" % b",".join(answers)


_PUTS: Final = msgspec.json.Decoder(list[_PutItem])
_GETS: Final = msgspec.json.Decoder(list[_GetItem])


def _not_found() -> dict[str, Any]:
    return {"status": 404, "reason": "not-found", "error": "not found"}


def _key(item: _Item) -> Key:
    """Raises BadInput."""
    bucket_type = DEFAULT_BUCKET_TYPE if item.type is UNSET else _name(item.type, "type")
    if item.bucket is UNSET or item.key is UNSET:
        raise BadInput("an item needs bucket and key")
    return Key(bucket_type, _name(item.bucket, "bucket"), _name(item.key, "key"))


def _value(item: _PutItem, limit: int) -> tuple[str, bytes | None]:
    """The form of an item's value and the value; None for a delete. Raises BadInput, TooLarge."""
    given = [form for form in (JSON_VALUE, TEXT_VALUE, BASE64_VALUE) if getattr(item, form) is not UNSET]
    deletes = item.delete is not UNSET and _decoded(_FLAG, item.delete, "delete", "true or false")
    if len(given) + deletes != 1:
        raise BadInput('an item has exactly one of json, text, base64 and "delete": true')
    if deletes:
        return "", None
    (form,) = given
    raw: Raw = getattr(item, form)
    size = memoryview(raw).nbytes
    if form == JSON_VALUE:
        _check_size(size, limit)
        value = bytes(raw)
        if not is_utf8(value):
            raise BadInput("json is not UTF-8")
        return form, value
    if form == TEXT_VALUE:
        _check_size((size - 2) // ESCAPE_BYTES, limit)
        return form, _text(raw, form)
    text = _text(raw, form).decode()
    _check_size(len(text) // 4 * 3 - 2, limit)
    return form, _base64(text, form)


def _check_size(size: int, limit: int) -> None:
    """Raises TooLarge for a value of at least `size` bytes, before it is decoded."""
    if size > limit:
        raise TooLarge(f"value of {size} bytes or more, limits.object_size is {limit}")


def _decoded(decoder: msgspec.json.Decoder[Any], raw: _Field, what: str, right: str) -> Any:
    try:
        return decoder.decode(raw)  # type: ignore[arg-type]
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise BadInput(f"{what} must be {right}") from None


def _text(raw: _Field, what: str) -> bytes:
    text: str = _decoded(_TEXT, raw, what, "a text")
    return text.encode()


def _name(raw: _Field, what: str) -> bytes:
    return _cell(_decoded(_NAME, raw, what, 'a text or {"base64": TEXT}'), what)


def _cell(cell: str | _Bytes, what: str) -> bytes:
    return cell.encode() if isinstance(cell, str) else _base64(cell.base64, what)


def _base64(text: str, what: str) -> bytes:
    try:
        return a2b_base64(text, strict_mode=True)
    except (Base64Error, ValueError) as error:
        raise BadInput(f"{what} is not base64: {error}") from None
