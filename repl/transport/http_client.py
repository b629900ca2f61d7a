"""The one door for outgoing HTTP: every request to another node is made from here.

Nothing else imports `requests`, so that what all of them need (proxies of the environment ignored, pools of a known
size, later certificates and tokens) comes in at one place. `session` serves programs that ask now and then;
`HttpPeer` serves the sinks: few large answers, read raw and bounded, from several threads, and cut off on demand.
What is sent is not known here.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import weakref
from typing import Any, Final

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError

from repl.model.errors import PeerFault

CONNECT_TIMEOUT_MS_MAX: Final = 5_000
"""Longest wait for a connection, whatever an answer may take: a machine that is there accepts within milliseconds,
and a stop must not wait for one that is not."""

REFUSAL_BYTES_MAX: Final = 2_000
"""How much of an answer with an error status is read: enough for the sentence that says why."""


def session(connections: int = 1) -> requests.Session:
    """A session with up to `connections` kept open per host; not for several threads at once.

    Raises `requests.RequestException`, an OSError, from every call; time-outs are given with each request.
    """
    made = requests.Session()
    made.trust_env = False
    adapter = HTTPAdapter(pool_connections=1, pool_maxsize=connections, max_retries=0)
    made.mount("http://", adapter)
    made.mount("https://", adapter)
    return made


class Refused(PeerFault):
    """The peer answered with an error status; `status` is it, `reason` its stable code when it named one."""

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class HttpPeer:
    """One other node's HTTP listener, under base `url`. Safe for several threads; up to `connections` are kept open.

    `cut` ends every request under way from any other thread; afterwards each call fails at once.
    """

    def __init__(self, url: str, connections: int) -> None:
        self.url = url.rstrip("/")
        self._session = session(connections)
        self._adapter = _CuttableAdapter(connections)
        self._session.mount("http://", self._adapter)
        self._session.mount("https://", self._adapter)
        self._prepared: dict[tuple[str, str], requests.PreparedRequest] = {}

    def post(self, path: str, body: bytes, *, media_type: str, timeout_ms: int, limit_bytes: int) -> bytes:
        """The body that answers a POST of `body`, of at most `limit_bytes`; a longer one is refused before it is
        read.

        `timeout_ms` bounds the wait for the first byte and for every further one. Raises PeerFault for everything
        that goes wrong on the way or at the other end (Refused when it answered with an error status).
        """
        request = self._request(path, media_type)
        request.body = body
        request.headers["Content-Length"] = str(len(body))
        connect_s = min(timeout_ms, CONNECT_TIMEOUT_MS_MAX) / 1000
        try:
            response = self._adapter.send(request, stream=True, timeout=(connect_s, timeout_ms / 1000))
            with contextlib.closing(response):
                status = response.status_code
                if status != 200:
                    raise self._refused(response, status)
                return self._read(response, limit_bytes)
        except (OSError, HTTPError) as error:  # requests' own errors are OSErrors
            raise PeerFault(f"{self.url}: {_cause(error)}") from error

    def _request(self, path: str, media_type: str) -> requests.PreparedRequest:
        """A prepared request of one's own: what never changes is prepared once."""
        prepared = self._prepared.get((path, media_type))
        if prepared is None:
            headers = {"Content-Type": media_type, "Accept-Encoding": "identity"}
            try:
                prepared = self._session.prepare_request(requests.Request("POST", self.url + path, headers=headers))
            except (OSError, ValueError) as error:
                raise PeerFault(f"{self.url}: {_cause(error)}") from error
            self._prepared[path, media_type] = prepared
        return prepared.copy()

    def _read(self, response: requests.Response, limit_bytes: int) -> bytes:
        declared = response.headers.get("Content-Length", "")
        if declared.isdecimal() and int(declared) > limit_bytes:
            raise PeerFault(f"{self.url}: an answer of {declared} bytes, at most {limit_bytes} are taken")
        body: bytes = response.raw.read(limit_bytes + 1 if not declared else None, decode_content=False)
        if len(body) > limit_bytes:
            raise PeerFault(f"{self.url}: an answer of more than {limit_bytes} bytes")
        return body

    def _refused(self, response: requests.Response, status: int) -> Refused:
        text: str = response.raw.read(REFUSAL_BYTES_MAX, decode_content=False).decode("utf-8", "replace")
        reason = response.headers.get("X-Isthmus-Reason", PeerFault.reason)
        return Refused(f"{self.url} answers {status}: {' '.join(text.split())}", status, reason)

    def cut(self) -> None:
        """End every request under way, in whatever thread, and refuse all further ones."""
        self._adapter.cut()
        self._session.close()


class _CuttableAdapter(HTTPAdapter):
    """Remembers the connections that it opened, so that another thread can end what waits on them."""

    def __init__(self, connections: int) -> None:
        super().__init__(pool_connections=1, pool_maxsize=connections, max_retries=0)
        self._lock = threading.Lock()
        self._opened: weakref.WeakSet[HTTPConnection] = weakref.WeakSet()
        self._is_cut = False

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        """The pool for a request, whose connections report here."""
        pool: Any = super().get_connection_with_tls_context(*args, **kwargs)
        if not hasattr(pool, "reports_to"):
            pool.reports_to = self
            pool.ConnectionCls = _reporting(pool.ConnectionCls, self)
        return pool

    def opened(self, connection: HTTPConnection) -> None:
        """A connection stands; when all is cut, it does not."""
        with self._lock:
            self._opened.add(connection)
            cut = self._is_cut
        if cut:
            connection.close()
            raise ConnectionAbortedError("the client was closed")

    def cut(self) -> None:
        """Shut every socket down: a thread that waits for an answer fails at once."""
        with self._lock:
            self._is_cut = True
            sockets = [connection.sock for connection in self._opened]
        for sock in sockets:
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


def _reporting(base: Any, adapter: _CuttableAdapter) -> type[HTTPConnection]:
    class ReportingConnection(base):  # type: ignore[misc]
        def connect(self) -> None:
            super().connect()
            adapter.opened(self)

    return ReportingConnection


def _cause(error: Exception) -> str:
    """The innermost reason, in one line: outer ones repeat it with addresses of objects."""
    inner: BaseException = error
    while (deeper := getattr(inner, "reason", None) or (inner.args[0] if inner.args else None)) is not None:
        if not isinstance(deeper, BaseException):
            break
        inner = deeper
    text = " ".join(str(inner).split())
    return text.rpartition(">: ")[2] or type(inner).__name__
