"""Objects in JSON: siblings and values as answers show them, names and values as requests give them. Pure.

A value is under the name of its form: `json` (bytes that are JSON, unchanged), `text` (UTF-8) or `base64`. A name
is text, or `{"base64": ...}` if it is not UTF-8. docs/http.md has the forms.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from isthmus.repl.model.objects import Sibling

JSON_VALUE: Final = "json"
TEXT_VALUE: Final = "text"
BASE64_VALUE: Final = "base64"

_XML: Final = "application/xml"
_UTF8: Final = ("utf-8", "utf8", "us-ascii")


def shown_siblings(siblings: Sequence[Sibling]) -> list[dict[str, Any]]:
    """All siblings of an object, for `encoded`."""
    return [_shown_sibling(sibling) for sibling in siblings]


def encoded(document: Any) -> bytes:
    """A document as JSON text."""
    return msgspec.json.encode(document)


def base64_text(data: bytes) -> str:
    """Bytes in base64."""
    return b64encode(data).decode("ascii")


def shown_name(name: bytes) -> Any:
    """A name, or any other text that may have foreign bytes."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return {BASE64_VALUE: base64_text(name)}


def is_utf8(data: bytes) -> bool:
    """Whether bytes are UTF-8, which JSON is, too."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _shown_sibling(sibling: Sibling) -> dict[str, Any]:
    row: dict[str, Any] = {"vtag": sibling.vtag, "last_modified_ms": sibling.last_modified_ms}
    if sibling.tombstone:
        row["deleted"] = True
        return row
    row["content_type"] = shown_name(sibling.content_type)
    if sibling.content_encoding:
        row["content_encoding"] = shown_name(sibling.content_encoding)
    for name, rows in (("metadata", sibling.shown_metadata), ("indexes", sibling.indexes), ("links", sibling.links)):
        if rows:
            row[name] = [[shown_name(cell) for cell in cells] for cells in rows]
    form, value = _shown_value(sibling)
    row[form] = value
    return row


def _shown_value(sibling: Sibling) -> tuple[str, Any]:
    """The form of a value, and the value in it."""
    value = sibling.value
    kind, _, parameters = sibling.content_type.decode("latin-1").lower().partition(";")
    kind = kind.strip()
    charset = next((p.partition("=")[2] for p in map(str.strip, parameters.split(";")) if p.startswith("charset=")), "")
    if not sibling.content_encoding and charset.strip('" ') in ("", *_UTF8) and is_utf8(value):
        is_json = kind == "application/json" or kind.endswith("+json")
        if is_json:
            try:
                return JSON_VALUE, msgspec.json.decode(value, type=msgspec.Raw)
            except (msgspec.DecodeError, RecursionError):
                pass
        if is_json or kind.startswith("text/") or kind == _XML or kind.endswith("+xml"):
            return TEXT_VALUE, value.decode()
    return BASE64_VALUE, base64_text(value)
