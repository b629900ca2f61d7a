"""HTTP clients of the demo: writing objects with causal contexts, and reading whole clusters, with retries.

Failures are sorted by what the demo does: a `Transient` is retried at the next node (the node is away, refuses for now,
or left the outcome unknown), a BadInput never is.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, TypeVar
from urllib.parse import quote

from isthmus.node.cli.admin_client import CONNECT_TIMEOUT_S, cause
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.object_client import ObjectClient
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

RETRIED: Final[Mapping[int, str]] = {
    HTTPStatus.SERVICE_UNAVAILABLE: "refused",
    HTTPStatus.INTERNAL_SERVER_ERROR: "unknown",
    HTTPStatus.BAD_GATEWAY: "unknown",
    HTTPStatus.GATEWAY_TIMEOUT: "unknown",
}
"""Error statuses that are retried -> kind of the failure; after all but a 503 a write may have taken effect."""


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


class ObjectWriter:
    """Objects of one cluster, read and written one at a time over the `http` listeners of its nodes.

    Uses one node until `next_node` is called; any node serves all keys. For one thread.
    """

    def __init__(self, urls: Sequence[str], first: int = 0) -> None:
        """`first` is the number of the node to begin with, modulo their count."""
        self._urls = deque(urls)
        self._urls.rotate(-first)
        self._session = session()

    def next_node(self) -> None:
        """Use the next node from now on."""
        self._urls.rotate(-1)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def context(self, bucket: bytes, key: bytes) -> tuple[int, str | None]:
        """A key's number of siblings (0: absent or deleted), and the causal context for its next write (None: never
        written). Raises Transient, BadInput."""
        expected = (HTTPStatus.OK, HTTPStatus.MULTIPLE_CHOICES, HTTPStatus.NOT_FOUND)
        status, clock, body = self._request("GET", bucket, key, expected, {})
        counts: dict[int, int] = {HTTPStatus.OK: 1, HTTPStatus.NOT_FOUND: 0}
        return counts[status] if status in counts else len(body.split()) - 1, clock

    def write(self, bucket: bytes, key: bytes, value: bytes | None, clock: str | None, request_id: str) -> None:
        """Write a value, or delete with None, over what `clock` has seen. Repeated under the same `request_id` it takes
        effect once. Raises Transient, BadInput."""
        headers = {"X-Isthmus-Request-Id": request_id}
        if clock:
            headers["X-Riak-Vclock"] = clock
        if value is None:
            self._request("DELETE", bucket, key, (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND), headers)
        else:
            headers["Content-Type"] = "application/octet-stream"
            expected = (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT)
            self._request("PUT", bucket, key, expected, headers, value)

    def _request(
        self,
        method: str,
        bucket: bytes,
        key: bytes,
        expected: Sequence[int],
        headers: Mapping[str, str],
        body: bytes | None = None,
    ) -> tuple[int, str | None, bytes]:
        """Status, context and body of one answer. Raises Transient for a lost connection or a status of RETRIED,
        BadInput for any other that is not expected."""
        url, writes = self._urls[0], method != "GET"
        try:
            response = self._session.request(
                method,
                url + key_path(bucket, key),
                data=body,
                headers=headers,
                timeout=(CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S),
                allow_redirects=False,
            )
        except OSError as error:  # everything that requests raises is one
            raise Transient("unreachable", f"{url} does not answer: {cause(error)}", unknown=writes) from error
        status = response.status_code
        if status in expected:
            return status, response.headers.get("X-Riak-Vclock"), response.content
        failure = f"{method} was answered {status}: {response.content[:200].decode(errors='replace').strip()}"
        if status not in RETRIED:
            raise BadInput(failure)
        kind = RETRIED[status]
        raise Transient(kind, f"{url}: {failure}", unknown=writes and kind == "unknown")


class RetryingReader:
    """A cluster as `node.demo.verify` reads it; a read that fails is retried at the next node."""

    def __init__(self, urls: Sequence[str], stopping: threading.Event) -> None:
        self._clients = deque(ObjectClient(url) for url in urls)
        self._stopping = stopping

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()

    def list_keys(self, bucket: bytes) -> list[bytes]:
        """Every live key. Raises PeerFault when no node answers in time, BadInput."""
        path = f"/buckets/{quote(bucket, safe='')}/keys?keys=stream&encoding=percent"
        return self._retrying(lambda client: list(client.names(path, "keys")))

    def read(self, bucket: bytes, keys: Sequence[bytes]) -> list[list[bytes]]:
        """The values of each key's siblings, in order of `keys`. Raises as `list_keys`."""
        items = [(DEFAULT_BUCKET_TYPE, bucket, key) for key in keys]
        answers = self._retrying(lambda client: client.batch("/batch/get", items))
        return [
            [] if status == HTTPStatus.NOT_FOUND else [sibling[0] or b"" for sibling in siblings]
            for status, _, siblings in answers
        ]

    def _retrying(self, read: Callable[[ObjectClient], Result]) -> Result:
        policy = RetryPolicy(self._stopping)
        while True:
            try:
                return read(self._clients[0])
            except CommandFailed as error:
                if error.exit_code is not Exit.UNAVAILABLE:
                    raise BadInput(str(error)) from error
                self._clients.rotate(-1)
                if not policy.wait(Transient("unreachable", str(error))):
                    raise PeerFault(f"stopped while waiting: {error}") from error


def key_path(bucket: bytes, key: bytes) -> str:
    """The path of a key, with every byte percent-encoded that has a meaning in a URL, slashes too."""
    return f"/buckets/{quote(bucket, safe='')}/keys/{quote(key, safe='')}"
