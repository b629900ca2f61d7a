"""A client of a cluster's HTTP faces, as small as a user's own would be: one connection a node, used by one thread.

Sorts what can go wrong by what the demo does about it: a `Transient` is tried again (the node is away,
refuses for now, or left the outcome unknown), a BadInput never is. The story goes on in
`node.demo.replay` and `node.demo.verify`; the formats are described in docs/http.md.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import quote, unquote_to_bytes, urlsplit

import msgpack

from isthmus.node.demo.verify import StoredValues
from isthmus.repl.model.errors import BadInput, PeerFault
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE

Result = TypeVar("Result")

REQUEST_TIMEOUT_S: Final = 75.0
"""Above the server's own limit for a write (60 s), so that the server is the one to say "unknown"."""

IDLE_LIMIT_S: Final = 2.0
"""A connection unused for longer is opened anew: servers close idle ones after a few seconds, and a request
that meets the close would look like a failure."""

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_LAST_S: Final = 1.0
"""Waits between attempts double from the first to the last; a restarting node is back in a few seconds."""

PATIENCE_S: Final = 180.0
"""How long one request is repeated before the demo gives up; a killed node with a full log is back long before."""

LISTING_CHUNK_BYTES: Final = 256 * 1024

REQUEST_ID_HEADER: Final = "X-Isthmus-Request-Id"


class Transient(Exception):
    """Worth another attempt. `kind` is "unreachable", "refused" or "unknown"; `unknown` says that a write may
    have taken effect all the same."""

    def __init__(self, kind: str, message: str, *, unknown: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.unknown = unknown


class RetryPolicy:
    """The waits between the attempts of one request; `stopping` ends them."""

    def __init__(self, stopping: threading.Event, limit_s: float = PATIENCE_S) -> None:
        self._stopping = stopping
        self._limit_s = limit_s
        self._delay_s = BACKOFF_FIRST_S
        self._since_s: float | None = None

    def wait(self, trouble: Transient) -> bool:
        """Wait before the next attempt; False when stopping. Raises PeerFault when it has lasted too long."""
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s > self._limit_s:
            raise PeerFault(f"no success for {self._limit_s:.0f} s; the last attempt: {trouble}") from trouble
        delay_s = self._delay_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        self._delay_s = min(self._delay_s * 2, BACKOFF_LAST_S)
        return not self._stopping.wait(delay_s)


class Answer(NamedTuple):
    """A response; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class ReadResult(NamedTuple):
    """What a read found: `sibling_count` is 0 when there is nothing or a tombstone, `clock` the text to hand back
    with the next write (None when the key was never written), `value` the value of a single sibling."""

    sibling_count: int
    clock: str | None
    value: bytes | None


class KeepAliveConnection:
    """One keep-alive connection to one listener."""

    def __init__(self, url: str, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._address = urlsplit(url).netloc
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._used_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request and its answer. Raises Trouble for a lost connection, 503 and 504."""
        response = self._open(method, path, body, headers or {})
        try:
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(method, error) from error
        return self._checked(method, response, content)

    def stream(self, method: str, path: str) -> Iterator[bytes]:
        """A response's body in pieces as they come. Raises as `request`, also in the middle."""
        response = self._open(method, path, None, {})
        try:
            if response.status != http.client.OK:
                self._checked(method, response, response.read())
                raise BadInput(f"{method} {path} was answered {response.status}")
            while chunk := response.read1(LISTING_CHUNK_BYTES):
                yield chunk
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(method, error) from error
        finally:
            if not response.isclosed():
                self.close()

    def _open(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        if time.monotonic() - self._used_s > IDLE_LIMIT_S:
            self.close()
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection(self._address, timeout=self._timeout_s)
                self._connection.connect()
        except OSError as error:
            self.close()
            raise Transient("unreachable", f"{self._address} does not answer: {error}") from error
        try:
            self._connection.request(method, path, body=body, headers=dict(headers))
            response = self._connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(method, error) from error
        self._used_s = time.monotonic()
        return response

    def _lost(self, method: str, error: Exception) -> Transient:
        self.close()
        message = f"{self._address} closed the connection: {error or type(error).__name__}"
        return Transient("unreachable", message, unknown=method != "GET")

    def _checked(self, method: str, response: http.client.HTTPResponse, content: bytes) -> Answer:
        headers = {name.lower(): value for name, value in response.getheaders()}
        said = content[:200].decode(errors="replace").strip()
        if response.status == http.client.SERVICE_UNAVAILABLE:
            raise Transient("refused", f"{self._address} refuses for now (503): {said}")
        if response.status == http.client.GATEWAY_TIMEOUT:
            raise Transient("unknown", f"{self._address} does not know the outcome (504): {said}", unknown=True)
        if response.status in (http.client.BAD_GATEWAY, http.client.INTERNAL_SERVER_ERROR):
            raise Transient("unknown", f"{self._address} failed ({response.status}): {said}", unknown=method != "GET")
        return Answer(response.status, headers, content)


class BucketClient:
    """Objects and listings of one cluster over the `http` listeners of its nodes, any of which answers for all keys.

    Asks one node until `turn` is called: whoever meets a Trouble goes on to the next node.
    """

    def __init__(self, urls: Sequence[str], first: int = 0) -> None:
        """`first` is the number of the node to begin with, modulo their count."""
        self._connections = [KeepAliveConnection(url) for url in urls]
        self._chosen = first % len(urls)

    @property
    def connection(self) -> KeepAliveConnection:
        """The connection to the node that is asked now."""
        return self._connections[self._chosen]

    def turn(self) -> None:
        """Ask the next node from now on."""
        self._chosen = (self._chosen + 1) % len(self._connections)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.close()

    def get(self, bucket: bytes, key: bytes) -> ReadResult:
        """Read a key with its causal context. Raises Trouble, BadInput."""
        answer = self.connection.request("GET", key_path(bucket, key))
        clock = answer.headers.get("x-riak-vclock")
        match answer.status:
            case http.client.OK:
                return ReadResult(1, clock, answer.body)
            case http.client.MULTIPLE_CHOICES:
                return ReadResult(len(answer.body.split()) - 1, clock, None)
            case http.client.NOT_FOUND:
                return ReadResult(0, clock, None)
        raise _unexpected("GET", answer)

    def put(self, bucket: bytes, key: bytes, value: bytes, clock: str | None, request_id: str) -> None:
        """Write a value over what `clock` has seen. Repeated under the same `request_id` it takes effect once. Raises
        Trouble, BadInput."""
        headers = {"Content-Type": "application/octet-stream", REQUEST_ID_HEADER: request_id, **_context(clock)}
        answer = self.connection.request("PUT", key_path(bucket, key), value, headers)
        if answer.status not in (http.client.OK, http.client.CREATED, http.client.NO_CONTENT):
            raise _unexpected("PUT", answer)

    def delete(self, bucket: bytes, key: bytes, clock: str | None, request_id: str) -> None:
        """Delete what `clock` has seen, under a `request_id` as `put`; a key that is not there is fine. Raises Trouble,
        BadInput."""
        headers = {REQUEST_ID_HEADER: request_id, **_context(clock)}
        answer = self.connection.request("DELETE", key_path(bucket, key), headers=headers)
        if answer.status not in (http.client.NO_CONTENT, http.client.NOT_FOUND):
            raise _unexpected("DELETE", answer)

    def list_keys(self, bucket: bytes) -> Iterator[bytes]:
        """Every live key, streamed. Raises Trouble, also in the middle."""
        path = f"/buckets/{quote(bucket, safe='')}/keys?keys=stream&encoding=percent"
        decoder = json.JSONDecoder()
        rest = ""
        for piece in self.connection.stream("GET", path):
            rest += piece.decode("ascii")
            while rest:
                try:
                    document, end = decoder.raw_decode(rest)
                except json.JSONDecodeError:
                    break  # the object goes on in the next piece
                rest = rest[end:]
                if "error" in document:
                    raise Transient("unreachable", f"the listing broke off: {document['error']}")
                yield from map(unquote_to_bytes, document["keys"])
        if rest:
            raise Transient("unreachable", f"the listing ended in the middle of {rest[:40]!r}")

    def batch_get(self, bucket: bytes, keys: Sequence[bytes]) -> list[tuple[bytes, ...]]:
        """The values of each key's siblings, in order of `keys`; none for a deleted or unknown key. Raises
        Trouble when the node cannot answer for one of them now, BadInput."""
        answers = self._batch("/batch/get", [(DEFAULT_BUCKET_TYPE, bucket, key) for key in keys])
        found: list[tuple[bytes, ...]] = []
        for key, (status, _, about) in zip(keys, answers, strict=True):
            if status in (http.client.OK, http.client.MULTIPLE_CHOICES):
                found.append(tuple(sibling[0] or b"" for sibling in about))
            elif status == http.client.NOT_FOUND:
                found.append(())
            elif status in (http.client.SERVICE_UNAVAILABLE, http.client.GATEWAY_TIMEOUT):
                raise Transient("refused", f"a read of {key!r} is refused for now: {about}")
            else:
                raise BadInput(f"a read of {key!r} was answered {status}: {about}")
        return found

    def _batch(self, path: str, items: Sequence[Any]) -> list[Any]:
        answer = self.connection.request("POST", path, msgpack.packb(items), {"Content-Type": "application/msgpack"})
        if answer.status != http.client.OK:
            raise _unexpected("POST", answer)
        answers: list[Any] = msgpack.unpackb(answer.body)
        return answers


class PatientReader:
    """A cluster as `node.demo.verify` reads it: what a restarting node makes fail is asked again, of the next node."""

    def __init__(self, urls: Sequence[str], stopping: threading.Event) -> None:
        self._client = BucketClient(urls)
        self._stopping = stopping

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def list_keys(self, bucket: bytes) -> list[bytes]:
        """Every live key. Raises PeerFault when the node stays away, BadInput."""
        return self._patiently(lambda: list(self._client.list_keys(bucket)))

    def read(self, bucket: bytes, keys: Sequence[bytes]) -> list[StoredValues]:
        """What is under each key, in order. Raises as `list_keys`."""
        return [StoredValues(values) for values in self._patiently(lambda: self._client.batch_get(bucket, keys))]

    def _patiently(self, ask: Callable[[], Result]) -> Result:
        patience = RetryPolicy(self._stopping)
        while True:
            try:
                return ask()
            except Transient as trouble:
                self._client.turn()
                if not patience.wait(trouble):
                    raise PeerFault(f"stopped while waiting: {trouble}") from trouble


class AdminReader:
    """JSON documents of one node's admin listener."""

    def __init__(self, url: str, timeout_s: float = 5.0) -> None:
        self._connection = KeepAliveConnection(url, timeout_s)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def document(self, path: str) -> Any:
        """GET `path` as JSON. Raises Trouble when the node is away, BadInput for any other answer than 200, or
        202: begun."""
        return self._judged("GET", self._connection.request("GET", path))

    def post(self, path: str, wish: Mapping[str, Any]) -> Any:
        """POST `wish` as JSON; the answer's document. Raises as `document`."""
        body = json.dumps(wish).encode()
        return self._judged("POST", self._connection.request("POST", path, body, {"Content-Type": "application/json"}))

    @staticmethod
    def _judged(method: str, answer: Answer) -> Any:
        if answer.status not in (http.client.OK, http.client.ACCEPTED):
            raise _unexpected(method, answer)
        return json.loads(answer.body)


def key_path(bucket: bytes, key: bytes) -> str:
    """The path of a key; every byte that could mean something in a URL is percent-encoded, slashes too."""
    return f"/buckets/{quote(bucket, safe='')}/keys/{quote(key, safe='')}"


def _context(clock: str | None) -> dict[str, str]:
    return {"X-Riak-Vclock": clock} if clock else {}


def _unexpected(method: str, answer: Answer) -> BadInput:
    said = answer.body[:200].decode(errors="replace").strip()
    return BadInput(f"{method} was answered {answer.status}: {said}")
