"""Paths of requests to a Riak's HTTP listener, and the forms of its answers. Pure.

The requests: Riak's `riak_kv_wm_aaefold`, `riak_kv_wm_queue`, `riak_kv_wm_keylist` and `riak_kv_wm_props`.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from isthmus.repl.model.errors import BadInput, CodecError
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE, Key


def segment_of(name: bytes | str) -> str:
    """A name as a segment of a path."""
    quoted = quote(name, safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def bucket_path(bucket_type: bytes, bucket: bytes) -> str:
    """[types/T/]buckets/B."""
    typed = "" if bucket_type == DEFAULT_BUCKET_TYPE else f"types/{segment_of(bucket_type)}/"
    return f"{typed}buckets/{segment_of(bucket)}"


def type_path(bucket_type: bytes) -> str:
    """[types/T/]buckets, for the listing of buckets."""
    return bucket_path(bucket_type, b"")[:-1]


def filter_text(found: Mapping[str, Any]) -> str:
    """The parameter `filter` of a fold."""
    return quote(b64encode(json.dumps(found).encode()).decode(), safe="")


def fold_path(what: str, bucket_type: bytes, bucket: bytes, after: str, found: Mapping[str, Any]) -> str:
    """A fold over a bucket: /WHAT/[types/T/]buckets/B/AFTER?filter=..."""
    return f"/{what}/{bucket_path(bucket_type, bucket)}{after}?filter={filter_text(found)}"


_LENGTHS: Final = re.compile(r"Queue \S+: (\d+) (\d+) (\d+)")


class QueueLengths(NamedTuple):
    """Changes that wait in the queue of one node of a Riak, by priority."""

    fold: int
    fullsync: int
    real_time: int


def queue_path(queue: str) -> str:
    """The queue of a node; a POST of keys answers with its lengths."""
    return f"/queuename/{segment_of(queue)}"


NO_KEYS: Final = b'{"keys-clocks": []}'
"""The body of a push that changes nothing: the answer has the queue's lengths."""


def lengths_in(answer: bytes) -> QueueLengths | None:
    """The lengths in the answer to a push; None if there is no such queue. Raises CodecError."""
    text = answer.decode("utf-8", "replace")
    found = _LENGTHS.search(text)
    if found is not None:
        return QueueLengths(int(found[1]), int(found[2]), int(found[3]))
    if text.startswith("No queue"):
        return None
    raise CodecError(f"another form than a Riak's: {text[:80]!r}")


def send_again_path(queue: str, key: Key) -> str:
    """Put one key into a queue once more. Raises BadInput for a key that Riak's JSON cannot name."""
    try:
        name = key.key.decode()
    except UnicodeDecodeError:
        raise BadInput(
            f"the key {key.key!r:.80} is not UTF-8, and a Riak names keys in JSON: write it there once more"
        ) from None
    return fold_path(
        "rangerepl", key.bucket_type, key.bucket, f"/queuename/{segment_of(queue)}",
        {"key_range": {"start": name, "end": name}},
    )  # fmt: skip
