"""Names of buckets and keys: text or bytes for callers, bytes for the hash, percent-encoding in paths. Pure."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote_from_bytes

from isthmus.client.errors import BadRequest
from isthmus.client.objects import Name

DEFAULT_TYPE = "default"


class Key(NamedTuple):
    """The full name of an object, as bytes."""

    bucket_type: bytes
    bucket: bytes
    key: bytes

    @property
    def path(self) -> bytes:
        """The path of the object."""
        return b"%b/keys/%b" % (bucket_path(self.bucket_type, self.bucket), quoted(self.key))


def name_bytes(name: Name, what: str) -> bytes:
    """The bytes of a name. Raises BadRequest, which says `what` is wrong."""
    if isinstance(name, str):
        try:
            name = name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise BadRequest(f"{what} is not text that UTF-8 can hold: {error}", reason="bad-key") from error
    elif not isinstance(name, bytes):
        raise BadRequest(f"{what} is a {type(name).__name__}: it must be str or bytes", reason="bad-key")
    if not name:
        raise BadRequest(f"{what} must not be empty", reason="bad-key")
    return name


def name_text(name: bytes) -> str:
    """A name as text; `name_bytes` gives the same bytes back."""
    return name.decode("utf-8", "surrogateescape")


def quoted(name: bytes) -> bytes:
    """A name percent-encoded as one segment of a path, or a value of a query."""
    return quote_from_bytes(name, safe="").encode()


def type_path(bucket_type: bytes) -> bytes:
    """The path prefix of a bucket type."""
    return b"" if bucket_type == DEFAULT_TYPE.encode() else b"/types/" + quoted(bucket_type)


def bucket_path(bucket_type: bytes, bucket: bytes) -> bytes:
    """The path of a bucket."""
    return b"%b/buckets/%b" % (type_path(bucket_type), quoted(bucket))
