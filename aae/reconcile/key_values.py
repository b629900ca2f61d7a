"""What both clusters have of a differing key now: clock, siblings, times and the first bytes of the values.

Read with POST /batch/get, one key a request, so that an object that is too large, or a key that a node refuses, is
named and spoils no other one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgpack
from xxhash import xxh64_hexdigest

from isthmus.aae.reconcile.client import Credentials, Pusher
from isthmus.aae.reconcile.row_writer import GET_PATH
from isthmus.repl.model.errors import CodecError, IsthmusError
from isthmus.repl.model.vclock import OFFSET_BITS, decode_clock, offset_of

VALUES_MAX: Final = 1_000
"""Most keys whose values are read: each is a request to both clusters, and pages of `--skip` have the others."""

ANSWER_BYTES_MAX: Final = 128 * 1024 * 1024
"""Largest answer that is read, as large as an object may be; a larger one is named in place of its value."""

VALUE_BYTES: Final = 4_096
"""First bytes of each value that are kept."""


def values_of(
    urls: Sequence[str], credentials: Credentials, names: Sequence[tuple[str, bytes, bytes]]
) -> Iterator[dict[str, Any]]:
    """What a cluster has of each (bucket type, bucket, key) now.

    `state`: present, deleted, absent or unknown, and `reason` of the last; `clock`: its entries (`actor` in
    hexadecimal, `epoch`, `offset`, `timestamp_s`); `siblings`: each with `deleted`, `content_type`, `last_modified_ms`,
    `bytes`, `xxh64` of the whole value, and its first VALUE_BYTES as `value`. Raises BadInput for credential files that
    cannot be read."""
    pusher = Pusher(urls, credentials)
    try:
        for bucket_type, bucket, key in names:
            body = msgpack.packb([[bucket_type, bucket, key, "committed"]])
            try:
                yield _side(pusher.post(GET_PATH, body, ANSWER_BYTES_MAX))
            except IsthmusError as error:
                yield _shown("unknown", str(error))
    finally:
        pusher.close()


def _side(answers: Sequence[Any]) -> dict[str, Any]:
    match answers:
        case [[404, None, "not-found"]]:
            return _shown("absent")
        case [[int(status), None, reason]] if status >= 400:
            return _shown("unknown", str(reason))
        case [[200 | 300 | 404 as status, bytes() as clock, list() as siblings]]:
            entries = [_entry(*one) for one in decode_clock(clock)]
            return _shown("deleted" if status == 404 else "present", "", entries, [_sibling(one) for one in siblings])
    raise CodecError(f"not an answer to a key: {answers!r:.100}")


def _entry(actor: bytes, counter: int, time_s: int) -> dict[str, Any]:
    return {
        "actor": actor.hex(),
        "epoch": counter >> OFFSET_BITS,
        "offset": offset_of(counter),
        "timestamp_s": time_s,
    }


def _sibling(row: Any) -> dict[str, Any]:
    match row:
        case [bytes() | None as value, str() | bytes() as kind, _, int(modified_ms), _]:
            return {
                "deleted": value is None,
                "content_type": kind.decode(errors="backslashreplace") if isinstance(kind, bytes) else kind,
                "last_modified_ms": modified_ms,
                "bytes": len(value or b""),
                "xxh64": xxh64_hexdigest(value or b""),
                "value": _beginning(value or b""),
            }
    raise CodecError(f"not a sibling: {row!r:.100}")


def _beginning(value: bytes) -> bytes:
    """The first VALUE_BYTES, without the begun character at their end where the value is UTF-8."""
    end = min(len(value), VALUE_BYTES)
    while VALUE_BYTES - 3 < end < len(value) and value[end] & 0xC0 == 0x80:
        end -= 1
    return value[:end]


def _shown(
    state: str,
    reason: str = "",
    clock: Sequence[dict[str, Any]] | None = None,
    siblings: Sequence[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    known = state == "absent"
    return {
        "state": state,
        "reason": reason,
        "clock": [] if known else clock,
        "siblings": [] if known else siblings,
    }
