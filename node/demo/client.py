"""HTTP clients of the demo: writing objects with causal contexts, and reading whole clusters, with retries.

Failures are sorted by what the demo does: a `Transient` is retried at the next node (the node is away, refuses for now,
or left the outcome unknown), a BadInput never is.
"""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from isthmus.node.cli.admin_client import CONNECT_TIMEOUT_S, cause
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.object_client import ObjectClient
from isthmus.node.demo.verify import StoredValues
from isthmus.repl.http.client import session
from isthmus.repl.model.errors import BadInput, PeerFault
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE

Result = TypeVar("Result")

REQUEST_TIMEOUT_S: Final = 75.0
"""Above the server's own limit for a write (60 s), so that the server answers "unknown" first."""

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_LAST_S: Final = 1.0
"""Waits between attempts double from the first to the last; a restarting node is back in a few seconds."""

RETRY_LIMIT_S: Final = 180.0
"""How long one request is retried before the demo gives up; a killed node with a full log is back long before."""

REQUEST_ID_HEADER: Final = "X-Isthmus-Request-Id"


class Transient(Exception):
    """A failure worth another attempt. `kind` is "unreachable", "refused" or "unknown"; `unknown`: a write may have
    taken effect all the same."""

    def __init__(self, kind: str, message: str, *, unknown: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.unknown = unknown


class RetryPolicy:
    """Waits between the attempts of one request, until `stopping` is set."""

    def __init__(self, stopping: threading.Event, limit_s: float = RETRY_LIMIT_S) -> None:
        self._stopping = stopping
        self._limit_s = limit_s
        self._delay_s = BACKOFF_FIRST_S
        self._since_s: float | None = None

    def wait(self, failure: Transient) -> bool:
        """Wait before the next attempt; False when stopping. Raises PeerFault after `limit_s` of failures."""
        now_s = time.monotonic()
        self._since_s = now_s if self._since_s is None else self._since_s
        if now_s - self._since_s > self._limit_s:
            raise PeerFault(f"no success for {self._limit_s:.0f} s; the last attempt: {failure}") from failure
        delay_s = self._delay_s * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        self._delay_s = min(self._delay_s * 2, BACKOFF_LAST_S)
        return not self._stopping.wait(delay_s)


class ReadResult(NamedTuple):
    """Result of a read: `sibling_count` is 0 for an absent key or a tombstone, `clock` the context for the next write
    (None when the key was never written), `value` the value of a single sibling."""

    sibling_count: int
    clock: str | None
    value: bytes | None


class Answer(NamedTuple):
    """A response; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ObjectWriter:
    """Objects of one cluster, read and written one at a time over the `http` listeners of its nodes.

    Uses one node until `next_node` is called; any node serves all keys. For one thread.
    """

    def __init__(self, urls: Sequence[str], first: int = 0) -> None:
        """`first` is the number of the node to begin with, modulo their count."""
        self._urls = urls
        self._chosen = first % len(urls)
        self._session = session()

    def next_node(self) -> None:
        """Use the next node from now on."""
        self._chosen = (self._chosen + 1) % len(self._urls)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def get(self, bucket: bytes, key: bytes) -> ReadResult:
        """Read a key with its causal context. Raises Transient, BadInput."""
        answer = self._request("GET", key_path(bucket, key), {})
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
        Transient, BadInput."""
        headers = {"Content-Type": "application/octet-stream", REQUEST_ID_HEADER: request_id, **_context(clock)}
        answer = self._request("PUT", key_path(bucket, key), headers, value)
        if answer.status not in (http.client.OK, http.client.CREATED, http.client.NO_CONTENT):
            raise _unexpected("PUT", answer)

    def delete(self, bucket: bytes, key: bytes, clock: str | None, request_id: str) -> None:
        """Delete what `clock` has seen, under a `request_id` as `put`; the key may be absent. Raises Transient,
        BadInput."""
        answer = self._request("DELETE", key_path(bucket, key), {REQUEST_ID_HEADER: request_id, **_context(clock)})
        if answer.status not in (http.client.NO_CONTENT, http.client.NOT_FOUND):
            raise _unexpected("DELETE", answer)

    def _request(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None) -> Answer:
        """One request. Raises Transient for a lost connection, 5xx: all but a 503 may have taken effect."""
        url, writes = self._urls[self._chosen], method != "GET"
        address = urlsplit(url).netloc
        try:
            response = self._session.request(
                method,
                url + path,
                data=body,
                headers=headers,
                timeout=(CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S),
                allow_redirects=False,
            )
        except OSError as error:  # everything that requests raises is one
            raise Transient("unreachable", f"{address} does not answer: {cause(error)}", unknown=writes) from error
        answer = Answer(
            response.status_code, {name.lower(): text for name, text in response.headers.items()}, response.content
        )
        if answer.status == http.client.SERVICE_UNAVAILABLE:
            raise Transient("refused", f"{address} refuses for now (503): {_reason(answer)}")
        if answer.status == http.client.GATEWAY_TIMEOUT:
            raise Transient("unknown", f"{address} does not know the outcome (504): {_reason(answer)}", unknown=True)
        if answer.status in (http.client.BAD_GATEWAY, http.client.INTERNAL_SERVER_ERROR):
            raise Transient("unknown", f"{address} failed ({answer.status}): {_reason(answer)}", unknown=writes)
        return answer


class RetryingReader:
    """A cluster as `node.demo.verify` reads it; a read that fails is retried at the next node."""

    def __init__(self, urls: Sequence[str], stopping: threading.Event) -> None:
        self._clients = [ObjectClient(url) for url in urls]
        self._chosen = 0
        self._stopping = stopping

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()

    def list_keys(self, bucket: bytes) -> list[bytes]:
        """Every live key. Raises PeerFault when no node answers in time, BadInput."""
        path = f"/buckets/{quote(bucket, safe='')}/keys?keys=stream&encoding=percent"
        return self._retrying(lambda client: list(client.names(path, "keys")))

    def read(self, bucket: bytes, keys: Sequence[bytes]) -> list[StoredValues]:
        """The values of each key's siblings, in order of `keys`. Raises as `list_keys`."""
        items = [(DEFAULT_BUCKET_TYPE, bucket, key) for key in keys]
        answers = self._retrying(lambda client: client.batch("/batch/get", items))
        return [
            StoredValues(() if status == http.client.NOT_FOUND else tuple(sibling[0] or b"" for sibling in siblings))
            for status, _, siblings in answers
        ]

    def _retrying(self, read: Callable[[ObjectClient], Result]) -> Result:
        policy = RetryPolicy(self._stopping)
        while True:
            try:
                return read(self._clients[self._chosen])
            except CommandFailed as error:
                if error.exit_code is not Exit.UNAVAILABLE:
                    raise BadInput(str(error)) from error
                self._chosen = (self._chosen + 1) % len(self._clients)
                if not policy.wait(Transient("unreachable", str(error))):
                    raise PeerFault(f"stopped while waiting: {error}") from error


def key_path(bucket: bytes, key: bytes) -> str:
    """The path of a key, with every byte percent-encoded that has a meaning in a URL, slashes too."""
    return f"/buckets/{quote(bucket, safe='')}/keys/{quote(key, safe='')}"


def _context(clock: str | None) -> dict[str, str]:
    return {"X-Riak-Vclock": clock} if clock else {}


def _reason(answer: Answer) -> str:
    return answer.body[:200].decode(errors="replace").strip()


def _unexpected(method: str, answer: Answer) -> BadInput:
    return BadInput(f"{method} was answered {answer.status}: {_reason(answer)}")
