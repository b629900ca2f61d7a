"""Values and their bytes: encoding and decoding by content type. Pure.

`bytes` are stored as they are, whatever the content type. Other values are encoded by the codec of the content type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from isthmus.client.errors import BadRequest

JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/plain; charset=utf-8"
BYTES_TYPE: Final = "application/octet-stream"


class Codec(NamedTuple):
    """How values of one content type become bytes and back. Both functions raise ValueError or TypeError."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


Codecs = Mapping[str, Codec]
"""Content type without parameters, in lower case -> its codec."""


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


JSON: Final = Codec(_encode_json, json.loads)


def default_type(value: Any) -> str:
    """The content type of a value for which none was chosen."""
    if isinstance(value, bytes | bytearray | memoryview):
        return BYTES_TYPE
    return TEXT_TYPE if isinstance(value, str) else JSON_TYPE


def encode_value(value: Any, content_type: str | None, codecs: Codecs) -> tuple[bytes, str]:
    """(bytes, content type) of a value. Raises BadRequest for a value that the content type cannot hold."""
    content_type = content_type or default_type(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), content_type
    codec = codec_of(content_type, codecs)
    if codec is None:
        raise BadRequest(
            f"a value of type {type(value).__name__} cannot be stored as {content_type}: pass bytes, or a codec "
            "for this content type (codecs=)",
            reason="bad-value",
        )
    try:
        return codec.encode(value), content_type
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadRequest(
            f"a value of type {type(value).__name__} cannot be stored as {content_type}: {error}", reason="bad-value"
        ) from error


def decode_value(body: bytes, content_type: str, codecs: Codecs) -> Any:
    """The value of stored bytes; the bytes themselves for a content type without codec. Raises BadRequest when the
    bytes are not of their content type."""
    codec = codec_of(content_type, codecs)
    if codec is None:
        return body
    try:
        return codec.decode(body)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadRequest(
            f"the stored bytes are not {content_type}: {error}; `body` has them", reason="bad-value"
        ) from error


def keeps_type(value: Any, content_type: str, codecs: Codecs) -> bool:
    """True when an updated value can keep the content type of the one that it replaces."""
    if isinstance(value, bytes | bytearray | memoryview):
        return codec_of(content_type, codecs) is None
    codec = codec_of(content_type, codecs)
    return codec is not None and (isinstance(value, str) or not _is_text(content_type, codecs))


def codec_of(content_type: str, codecs: Codecs) -> Codec | None:
    """The codec of a content type; None for one whose values are bytes."""
    kind, _, parameters = content_type.partition(";")
    kind = kind.strip().lower()
    if kind in codecs:
        return codecs[kind]
    if kind == JSON_TYPE or kind.endswith("+json"):
        return JSON
    if kind.startswith("text/"):
        charset = _charset(parameters)
        return Codec(lambda text: _text_bytes(text, charset), lambda body: body.decode(charset))
    return None


def _is_text(content_type: str, codecs: Codecs) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") and kind not in codecs


def _text_bytes(text: Any, charset: str) -> bytes:
    if not isinstance(text, str):
        raise TypeError("text must be a str")
    return text.encode(charset)


def _charset(parameters: str) -> str:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            charset = value.strip().strip('"').lower()
            try:
                "".encode(charset)
            except (LookupError, ValueError):
                break  # an unknown charset: its bytes are most likely UTF-8
            return charset
    return "utf-8"
