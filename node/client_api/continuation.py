"""Continuation tokens of listings: behind which name the next page begins. Pure.

A token is base64 (of URLs, without padding) of a version, a checksum, and the last name. The checksum covers what the
listing is of, so a token of another listing, or a damaged one, is refused instead of giving a wrong page. It is no
secret: a token says only where to go on in a listing that its sender may read anyway.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Sequence
from typing import Final

from xxhash import xxh64_digest

from isthmus.node.http.responses import RequestRefused

_VERSION: Final = b"\1"
_CHECK_BYTES: Final = 8


def continuation_token(listing: Sequence[bytes], last: bytes) -> str:
    """The token of the page after the name `last`. `listing` is what the listing is of: kind, bucket type, bucket,
    prefix."""
    return urlsafe_b64encode(_VERSION + _check(listing, last) + last).decode().rstrip("=")


def name_before(listing: Sequence[bytes], token: str) -> bytes:
    """The name behind which the page of a token begins. Raises RequestRefused (400)."""
    try:
        data = urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
    except (UnicodeEncodeError, Base64Error):
        raise _refused() from None
    check, last = data[1 : 1 + _CHECK_BYTES], data[1 + _CHECK_BYTES :]
    # Compared as text: base64 ignores foreign characters and the last bits, and each token has one spelling.
    if data[:1] != _VERSION or not last or check != _check(listing, last) or token != continuation_token(listing, last):
        raise _refused()
    return last


def _check(listing: Sequence[bytes], last: bytes) -> bytes:
    return xxh64_digest(b"".join(b"%d:%b" % (len(part), part) for part in (*listing, last)))


def _refused() -> RequestRefused:
    return RequestRefused(
        400,
        "bad-query",
        "continuation is not a token of this listing: send it as the page before had it, with the same bucket and "
        "prefix, or begin without it",
    )
