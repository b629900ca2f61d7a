"""Schemas of the JSON documents of the client API, for OpenAPI. Pure. docs/http.md has the forms in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

REF: Final = "#/components/schemas/{name}"


def ref(name: str) -> dict[str, str]:
    """A reference to a schema of the document."""
    return {"$ref": REF.format(name=name)}


def list_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A list of such values."""
    return {"type": "array", "items": schema}


def _object(properties: Mapping[str, Any], required: Sequence[str] = (), *, closed: bool = True) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        **({"additionalProperties": False} if closed else {}),
    }


_TEXT: Final = {"type": "string"}
_BASE64: Final = {"type": "string", "contentEncoding": "base64"}
_TRUE: Final = {"const": True}
_STATUS: Final = {"type": "integer"}
_VALUES: Final = {
    "json": {"description": "The value, byte for byte."},
    "text": _TEXT,
    "base64": _BASE64,
}
_EXTRAS: Final = {
    "content_type": ref("Name"),
    "content_encoding": ref("Name"),
    "metadata": list_of(ref("Pair")),
    "indexes": list_of(ref("Pair")),
    "links": list_of(ref("Link")),
}
_KEY: Final = {"type": ref("Name"), "bucket": ref("Name"), "key": ref("Name")}
_REFUSED: Final = {"reason": _TEXT, "error": _TEXT}


def _names(kind: str) -> dict[str, Any]:
    return _object({kind: list_of(_TEXT), "continuation": _TEXT}, (kind,))


REFUSAL: Final = "Refusal"

REFUSALS: Final[Mapping[str, Any]] = {REFUSAL: _object({"error": _TEXT, "reason": _TEXT}, ("error", "reason"))}
"""The schema of a refusal, which both listeners send."""

DOCUMENTS: Final[Mapping[str, Any]] = {
    **REFUSALS,
    "Name": {"oneOf": [_TEXT, _object({"base64": _BASE64}, ("base64",))], "description": "Text, or any bytes."},
    "Pair": {"type": "array", "items": ref("Name"), "minItems": 2, "maxItems": 2},
    "Link": {"type": "array", "items": ref("Name"), "minItems": 3, "maxItems": 3},
    "Keys": _names("keys"),
    "Buckets": _names("buckets"),
    "Sibling": _object(
        {"vtag": _TEXT, "last_modified_ms": {"type": "integer"}, "deleted": _TRUE, **_EXTRAS, **_VALUES},
        ("vtag", "last_modified_ms"),
    ),
    "Siblings": _object(
        {"vclock": _BASE64, "etag": _TEXT, "siblings": list_of(ref("Sibling"))}, ("vclock", "etag", "siblings")
    ),
    "PutItem": _object(
        {**_KEY, **_VALUES, **_EXTRAS, "delete": _TRUE, "vclock": _BASE64, "request_id": _TEXT}, ("bucket", "key")
    ),
    "PutAnswer": _object({"status": _STATUS, "vclock": _BASE64, "repeated": _TRUE, **_REFUSED}, ("status",)),
    "GetItem": _object({**_KEY, "isolation": {"enum": ["committed", "uncommitted"]}}, ("bucket", "key")),
    "GetAnswer": _object(
        {"status": _STATUS, "vclock": _BASE64, "siblings": list_of(ref("Sibling")), **_REFUSED}, ("status",)
    ),
}
"""Name -> schema of everything that the client API sends and takes in JSON."""
