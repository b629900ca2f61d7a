"""A blocking HTTP connection for probes that send one small request after the other."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """An answer that was read; with status 0 the connection failed, and the body says why."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class KeptConnection:
    """A connection to the listener at `url`. After a failure the next request opens it again."""

    def __init__(self, url: str, timeout_s: float) -> None:
        address = urlsplit(url)
        assert address.hostname is not None
        self._connection = http.client.HTTPConnection(address.hostname, address.port, timeout=timeout_s)

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request and read its answer."""
        try:
            self._connection.request(method, path, body, headers or {})
            answer = self._connection.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read())
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            return Answer(0, {}, repr(error).encode())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
