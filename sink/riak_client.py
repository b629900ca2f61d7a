"""Requests to a node of a Riak beside the fetch: its queue's lengths, properties, buckets, counts, clocks and objects.

Blocking, for threads: a check by an operator, and seeds. Each answer is bounded, and one of another form than a Riak's
raises PeerFault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from isthmus.repl.http.client import HttpAnswer, HttpPeer, HttpRefused, PeerCredentials
from isthmus.repl.model.errors import CodecError, PeerFault
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE, Key
from isthmus.repl.model.objects import Links, Object, Sibling
from isthmus.repl.model.vclock import Clock
from isthmus.repl.riak.clocks import clock_text, parse_clock_text
from isthmus.repl.riak.objects import newest_write
from isthmus.sink.riak_answers import DotlessSiblings
from isthmus.sink.riak_requests import (
    QueueLengths,
    bucket_path,
    fold_path,
    lengths_in,
    queue_path,
    segment_of,
    type_path,
)

ANSWER_BYTES_MAX: Final = 10_000_000
"""Longest answer about a Riak, its types or its buckets; a list of 100,000 buckets fits."""

CLOCKS_BYTES_MAX: Final = 256_000_000
"""Longest answer with clocks of keys: those of a slice of a seed have some 200 bytes each."""

KEYS_SENT_MAX: Final = 1_000
"""Keys in one request that puts them into the queue."""

LIST_BYTES_MAX: Final = 1 << 20
"""Longest piece of a streamed list of keys: Riak sends a hundred or so at once."""


class KeyClock(NamedTuple):
    """A key of a Riak, and its clock."""

    key: Key
    clock: Clock


class RiakClient:
    """One node of a Riak. `timeout_ms` bounds each wait for bytes; folds get `fold_timeout_ms`."""

    def __init__(
        self, url: str, access: PeerCredentials, *, timeout_ms: int, fold_timeout_ms: int = 0, connections: int = 1
    ) -> None:
        self.url = url
        self._peer = HttpPeer(url, connections, access)
        self._timeout_ms = timeout_ms
        self._fold_timeout_ms = fold_timeout_ms or timeout_ms

    def abort(self) -> None:
        """End every request, from any thread."""
        self._peer.abort()

    def stats(self) -> dict[str, Any]:
        """What /stats tells."""
        return self._json("/stats")

    def live_nodes(self) -> list[str]:
        """HOST:PORT of the Riak's live nodes, as they see themselves."""
        found = self._json("/membership_request").get("up_nodes")
        if not isinstance(found, list):
            raise self._other("/membership_request", "no list of up_nodes")
        return [f"{one.get('ip')}:{one.get('port')}" for one in found if isinstance(one, dict)]

    def queue_lengths(self, queue: str) -> QueueLengths | None:
        """What waits in the node's queue; None if there is no such queue. An empty push changes nothing."""
        return self._pushed(queue, [])

    def send_keys(self, queue: str, keys: Sequence[KeyClock]) -> QueueLengths | None:
        """Put keys into the node's queue, those that Riak's JSON can name; see `queue_lengths`."""
        rows = []
        for key, clock in keys:
            try:
                named = {"bucket": key.bucket.decode(), "key": key.key.decode(), "clock": clock_text(clock)}
                typed = {"bucket-type": key.bucket_type.decode()} if key.bucket_type != DEFAULT_BUCKET_TYPE else {}
            except UnicodeDecodeError:
                continue
            rows.append({**typed, **named})
        return self._pushed(queue, rows)

    def _pushed(self, queue: str, rows: Sequence[Mapping[str, str]]) -> QueueLengths | None:
        body = json.dumps({"keys-clocks": rows}).encode()
        path = queue_path(queue)
        try:
            answer = self._peer.post(
                path, body, media_type="application/json", timeout_ms=self._timeout_ms, limit_bytes=ANSWER_BYTES_MAX
            )
        except HttpRefused as error:
            if error.status == 400 and "not defined" in str(error):
                return None  # a name that the Riak has never seen
            raise
        try:
            return lengths_in(answer)
        except CodecError as error:
            raise self._other(path, str(error)) from error

    def properties(self, bucket_type: bytes) -> dict[str, Any] | None:
        """The properties of a bucket type; None if there is no such type. Those of `default` are of a bucket that has
        none of its own."""
        default = bucket_type == DEFAULT_BUCKET_TYPE
        path = "/buckets/isthmus-check/props" if default else f"/types/{segment_of(bucket_type)}/props"
        try:
            found = self._json(path).get("props")
        except HttpRefused as error:
            if error.status == 404:
                return None
            raise
        if not isinstance(found, dict):
            raise self._other(path, "no props")
        return found

    # ---------------------------------------------------------------- folds

    def buckets(self) -> list[tuple[bytes, bytes]]:
        """(bucket type, bucket) of all buckets with keys, by a fold."""
        path = "/aaebucketlist"
        found = self._json(path, fold=True).get("results")
        if not isinstance(found, list):
            raise self._other(path, "no results")
        return sorted({self._place(path, one) for one in found})

    def count(self, bucket_type: bytes, bucket: bytes, wanted: Mapping[str, Any]) -> int:
        """Keys of a bucket within a filter."""
        return self._number(fold_path("objectstats", bucket_type, bucket, "", wanted), "total_count")

    def send_range(self, bucket_type: bytes, bucket: bytes, queue: str, wanted: Mapping[str, Any]) -> int:
        """Put the keys of a bucket within a filter into the nodes' queues; how many there were."""
        path = fold_path("rangerepl", bucket_type, bucket, f"/queuename/{segment_of(queue)}", wanted)
        return self._number(path, "dispatched_count")

    def clocks(self, bucket_type: bytes, bucket: bytes, wanted: Mapping[str, Any]) -> list[KeyClock]:
        """Keys of a bucket within a filter, with their clocks. A Riak answers an error if one of them is not UTF-8."""
        path = fold_path("rangetrees", bucket_type, bucket, "/keysclocks", wanted)
        rows = self._json(path, fold=True, limit_bytes=CLOCKS_BYTES_MAX).get("keys-clocks")
        if not isinstance(rows, list):
            raise self._other(path, "no keys-clocks")
        try:
            return [
                KeyClock(Key(*self._place(path, row), row["key"].encode()), parse_clock_text(row["clock"]))
                for row in rows
            ]
        except (AttributeError, KeyError, TypeError) as error:
            raise self._other(path, f"a row without {error}") from error
        except CodecError as error:
            raise PeerFault(f"{self.url}: {error}") from error

    # ---------------------------------------------------------------- listings and objects

    def listed_buckets(self, bucket_type: bytes) -> list[bytes]:
        """Buckets of a type, by a listing of all keys."""
        path = f"/{type_path(bucket_type)}?buckets=true"
        found = self._json(path, fold=True).get("buckets")
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise self._other(path, "no buckets")
        return sorted(unquote_to_bytes(one) if "%" in one else one.encode() for one in found)

    def listed_keys(self, bucket_type: bytes, bucket: bytes) -> Iterator[list[bytes]]:
        """Keys of a bucket in pieces, as the Riak streams them."""
        path = f"/{bucket_path(bucket_type, bucket)}/keys?keys=stream"
        decoder = json.JSONDecoder()
        with self._peer.reading(path, timeout_ms=self._fold_timeout_ms) as read:
            rest = b""
            while piece := read():
                rest += piece
                text, rest = _whole_part(rest)
                at = 0
                while at < len(text):
                    try:
                        found, at = decoder.raw_decode(text, at)
                    except ValueError:
                        break
                    keys = found.get("keys") if isinstance(found, dict) else None
                    if keys:
                        yield [one.encode() for one in keys if isinstance(one, str)]
                rest = text[at:].lstrip().encode() + rest
                if len(rest) > LIST_BYTES_MAX:
                    raise self._other(path, "a piece of the list that does not end")
            if rest.strip():
                raise self._other(path, "a list of keys that ends too early")

    def object(self, key: Key, limit_bytes: int) -> Object | None:
        """An object by its key, as HTTP shows it; None if there is none. Its sibling has the dot of the newest write.
        Raises DotlessSiblings for several, which HTTP shows without dots."""
        path = f"/{bucket_path(key.bucket_type, key.bucket)}/keys/{segment_of(key.key)}"
        answer = self._peer.get_with_headers(
            path, accepted=(200, 300, 404), timeout_ms=self._timeout_ms, limit_bytes=limit_bytes
        )
        try:
            return object_of(answer)
        except CodecError as error:
            if isinstance(error, DotlessSiblings):
                raise
            raise PeerFault(f"{self.url}{path}: {error}") from error

    # ---------------------------------------------------------------- answers

    def _json(self, path: str, *, fold: bool = False, limit_bytes: int = ANSWER_BYTES_MAX) -> dict[str, Any]:
        timeout_ms = self._fold_timeout_ms if fold else self._timeout_ms
        body = self._peer.get(path, timeout_ms=timeout_ms, limit_bytes=limit_bytes)
        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._other(path, f"no JSON ({error})") from error
        if not isinstance(found, dict):
            raise self._other(path, "no JSON object")
        return found

    def _number(self, path: str, name: str) -> int:
        found = self._json(path, fold=True).get(name)
        if type(found) is not int or found < 0:
            raise self._other(path, f"no {name}")
        return found

    def _place(self, path: str, row: Any) -> tuple[bytes, bytes]:
        """Bucket type and bucket of a row."""
        try:
            return row.get("bucket-type", DEFAULT_BUCKET_TYPE.decode()).encode(), row["bucket"].encode()
        except (AttributeError, KeyError, TypeError) as error:
            raise self._other(path, f"a row without {error}") from error

    def _other(self, path: str, what: str) -> PeerFault:
        return PeerFault(f"{self.url}{path.partition('?')[0]} answers another form than a Riak's: {what}")


def _whole_part(data: bytes) -> tuple[str, bytes]:
    """The beginning of a stream that is whole UTF-8, and the bytes of a character that is cut."""
    for cut in range(min(4, len(data) + 1)):
        try:
            end = len(data) - cut
            return data[:end].decode(), data[end:]
        except UnicodeDecodeError:
            continue
    return data.decode("utf-8", "replace"), b""


_META: Final = "x-riak-meta-"
_INDEX: Final = "x-riak-index-"
_LINK: Final = re.compile(r'<([^>]*)>; *riaktag="([^"]*)"')


def object_of(answer: HttpAnswer) -> Object | None:
    """The object in an answer to a GET of its key; None for a key that is not there. Raises CodecError."""
    headers = dict(answer.headers)
    text = headers.get("x-riak-vclock")
    if text is None:
        if answer.status == 404:
            return None
        raise CodecError("an object without a clock (X-Riak-Vclock)")
    clock = parse_clock_text(text)
    if answer.status == 300:
        raise DotlessSiblings(
            "it has siblings, which HTTP shows without dots: resolve them in the Riak, then seed the bucket again"
        )
    modified_ms = _modified_ms(headers.get("last-modified", ""))
    dot = newest_write(clock)
    if answer.status == 404:
        return Object(clock, (Sibling(dot, modified_ms, True, b""),))
    return Object(
        clock,
        (
            Sibling(
                dot,
                modified_ms,
                False,
                answer.body,
                headers.get("content-type", "").encode("latin-1"),
                headers.get("content-encoding", "").encode("latin-1"),
                tuple(_values(answer, _META)),
                _links(answer),
                tuple(_index_entries(answer)),
            ),
        ),
    )


def _modified_ms(text: str) -> int:
    try:
        return int(parsedate_to_datetime(text).timestamp() * 1000)
    except (ValueError, TypeError):
        return 0


def _values(answer: HttpAnswer, prefix: str) -> Iterator[tuple[bytes, bytes]]:
    for name, value in answer.headers:
        if name.startswith(prefix) and len(name) > len(prefix):
            yield name.removeprefix(prefix).encode("latin-1"), value.encode("latin-1")


def _index_entries(answer: HttpAnswer) -> Iterator[tuple[bytes, bytes]]:
    for name, values in _values(answer, _INDEX):
        for value in values.split(b","):
            yield name, unquote_to_bytes(value.strip())


def _links(answer: HttpAnswer) -> Links:
    """Links to keys; those to the bucket itself (`rel="up"`) are Riak's own."""
    found = []
    for name, value in answer.headers:
        if name == "link":
            for target, tag in _LINK.findall(value):
                segments = [unquote_to_bytes(one) for one in target.split("/") if one]
                if len(segments) >= 3:  # /buckets/B/keys/K, or /riak/B/K of old paths
                    bucket = segments[-3] if segments[-2] == b"keys" else segments[-2]
                    found.append((bucket, segments[-1], unquote_to_bytes(tag)))
    return tuple(found)
