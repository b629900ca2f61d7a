"""Documents of the metastore in JSON, as typed values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from isthmus.repl.metastore.watched_document import Document
from isthmus.repl.model.errors import CodecError

T = TypeVar("T")


def decode_json(value: bytes, type_: type[T], what: str) -> T:
    """The JSON in `value` as `type_`. Raises CodecError, which names `what` was expected and where it differs."""
    try:
        return msgspec.json.decode(value, type=type_)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not a {what}: {error}") from error


def encode_json(value: Any) -> bytes:
    """JSON in the form that all versions write."""
    return json.dumps(msgspec.to_builtins(value)).encode()


def json_document(path: str, decode: Callable[[bytes], T], encode: Callable[[T], bytes], none: T) -> Document[T]:
    """The document at `path`; `none` is its value while it does not exist."""
    return Document(path, lambda found: none if found is None else decode(found.value), encode)
