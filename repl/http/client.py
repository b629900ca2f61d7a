"""Outgoing HTTP: blocking clients; the only module that imports `requests`.

Proxies of the environment are ignored, pools have a fixed size, and certificates and tokens come from
`PeerCredentials`. `session` serves programs that send a request now and then; `HttpPeer` serves sinks: few large
answers, read raw and bounded, from several threads, and aborted on demand. Bodies are opaque here.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, Final, NamedTuple

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from isthmus.repl.model.errors import PeerFault
from isthmus.repl.security.tls import SCHEME, TlsFiles, client_contexts, names_of, shown_names, trouble_of

CONNECT_TIMEOUT_MS_MAX: Final = 5_000
"""Longest wait for a connection, whatever the timeout of an answer: a live machine accepts within milliseconds, and a
stop must not wait for a dead one."""

READ_BYTES: Final = 1 << 20
"""Most bytes read from a connection at once."""

RATE_MIN_BYTES: Final = 1_000
"""Bytes a second below which an answer is given up once it has taken longer than the wait for a byte: a peer that
trickles would hold its thread for ever. An eighth of a link of 64 kbit/s."""

REFUSAL_BYTES_MAX: Final = 2_000
"""How much of an answer with an error status is read: enough for the sentence that says why."""


class PeerCredentials(NamedTuple):
    """Credentials for another node, and its expected identity.

    `contexts` returns the TLS context of each new connection (None: the system's authorities, no own certificate). With
    `cluster` the peer's certificate must name a node of that cluster, otherwise the dialled host. `token` returns the
    bearer token of each request; with `contexts`, an `HttpPeer` sends it over TLS only."""

    contexts: Callable[[], ssl.SSLContext] | None = None
    cluster: str = ""
    token: Callable[[], str] | None = None


OPEN: Final = PeerCredentials()
"""No credentials."""


def session(connections: int = 1, access: PeerCredentials = OPEN) -> requests.Session:
    """A session with up to `connections` kept open per host; not for several threads at once.

    Raises `requests.RequestException`, an OSError, from every call; time-outs are given with each request.
    """
    made = requests.Session()
    made.trust_env = False
    adapter = _Adapter(connections, access)
    made.mount("http://", adapter)
    made.mount("https://", adapter)
    if access.token is not None:
        made.auth = _Bearer(access.token)
    return made


class _Bearer(requests.auth.AuthBase):
    """Sends the current token; none after a redirect."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token()}"
        return request


class _Adapter(HTTPAdapter):
    """Connections whose TLS is that of an Access, and no other: not of the environment, not of a bundle."""

    def __init__(self, connections: int, access: PeerCredentials) -> None:
        contexts = access.contexts
        if contexts is None:
            contexts = system_contexts
        self._contexts = contexts
        self._cluster = access.cluster
        super().__init__(pool_connections=1, pool_maxsize=connections, max_retries=0)

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """Do nothing: the context has the trusted authorities."""

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        """The pool for a request, whose connections call this adapter."""
        pool: Any = super().get_connection_with_tls_context(*args, **kwargs)
        if not hasattr(pool, "reports_to"):
            pool.reports_to = self
            pool.ConnectionCls = _reporting(pool.ConnectionCls, self)
        return pool

    def close(self) -> None:
        """Close idle connections now; urllib3 leaves them to the garbage collector."""
        pools: Any = self.poolmanager.pools
        for key in pools.keys():  # noqa: SIM118 -- not a mapping: it cannot be iterated
            pools[key].close()
        super().close()

    def prepare(self, connection: Any) -> None:
        """A connection is about to be opened."""
        if isinstance(connection, HTTPSConnection):
            connection.ssl_context = self._contexts()
            connection.assert_hostname = False if self._cluster else None

    def opened(self, connection: HTTPConnection) -> None:
        """A connection is open. Raises when its peer is not the expected one."""
        if self._cluster and isinstance(connection, HTTPSConnection):
            sock: Any = connection.sock
            certificate = sock.getpeercert()
            if self._cluster not in {name.cluster for name in names_of(certificate)}:
                connection.close()
                raise WrongPeer(
                    f"its certificate must name {SCHEME}{self._cluster}/NODE; it names {shown_names(certificate)}"
                )


class WrongPeer(ConnectionError):
    """The peer is not of the expected cluster."""


def as_protected(url: str, known_url: str) -> str:
    """`url`, which the node at `known_url` listed, with TLS where that one is dialled with it: no token is sent in
    plain text since a listener that takes both is listed with http://."""
    plain = known_url.startswith("https://") and url.startswith("http://")
    return f"https://{url.removeprefix('http://')}" if plain else url


def system_contexts() -> ssl.SSLContext:
    """The TLS of a new connection where an Access says nothing: the system's authorities, no certificate of ours."""
    return client_contexts(TlsFiles(None, None, ()), check_host=True).current()


class HttpRefused(PeerFault):
    """The peer answered with an error `status`; `reason` is its stable code, if any."""

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class HttpPeer:
    """Another node's HTTP listener, under base `url`. Thread-safe; up to `connections` are kept open.

    `abort` ends every request under way from any other thread; afterwards each call fails at once.
    """

    def __init__(self, url: str, connections: int, access: PeerCredentials = OPEN) -> None:
        self.url = url.rstrip("/")
        self._session = session(connections)
        in_clear = self.url.startswith("http://") and access.contexts is not None
        self._token = None if in_clear else access.token
        self._adapter = _CuttableAdapter(connections, access)
        self._session.mount("http://", self._adapter)
        self._session.mount("https://", self._adapter)
        self._prepared: dict[tuple[str, str], requests.PreparedRequest] = {}

    def post(self, path: str, body: bytes, *, media_type: str, timeout_ms: int, limit_bytes: int) -> bytes:
        """The body that answers a POST of `body`, of at most `limit_bytes`; a longer one is refused before it is
        read.

        `timeout_ms` bounds the wait for the first byte and for every further one. Raises PeerFault for everything
        that goes wrong on the way or at the other end (Refused when it answered with an error status).
        """
        request = self._request("POST", path, media_type)
        request.body = body
        request.headers["Content-Length"] = str(len(body))
        return self._exchange(request, timeout_ms, limit_bytes)

    @contextlib.contextmanager
    def streaming(self, path: str, body: bytes, *, media_type: str, timeout_ms: int) -> Iterator[Callable[[], bytes]]:
        """A POST whose answer is taken piece by piece, as it comes: each call gives some bytes, b"" at the end. As much
        of it is under way as the sockets hold, so whoever takes slowly slows the other end down.

        `timeout_ms` bounds the wait for each piece. Raises as `post` does, on entering and from every call.
        """
        request = self._request("POST", path, media_type)
        request.body = body
        request.headers["Content-Length"] = str(len(body))
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token()}"
        connect_s = min(timeout_ms, CONNECT_TIMEOUT_MS_MAX) / 1000
        try:
            response = self._adapter.send(request, stream=True, timeout=(connect_s, timeout_ms / 1000))
        except (OSError, HTTPError) as error:
            raise PeerFault(f"{self.url}: {cause_of(error)}") from error

        def take() -> bytes:
            try:
                piece: bytes = response.raw.read1(READ_BYTES, decode_content=False)
            except (OSError, HTTPError) as error:
                raise PeerFault(f"{self.url}: {cause_of(error)}") from error
            return piece

        with contextlib.closing(response):
            if response.status_code != 200:
                try:
                    raise self._refused(response, response.status_code)
                except (OSError, HTTPError) as error:
                    raise PeerFault(f"{self.url}: {cause_of(error)}") from error
            yield take

    def get(self, path: str, *, timeout_ms: int, limit_bytes: int) -> bytes:
        """The body of the answer to a GET; otherwise as `post`."""
        return self._exchange(self._request("GET", path, ""), timeout_ms, limit_bytes)

    def _exchange(self, request: requests.PreparedRequest, timeout_ms: int, limit_bytes: int) -> bytes:
        if self._token is not None:
            request.headers["Authorization"] = f"Bearer {self._token()}"
        connect_s = min(timeout_ms, CONNECT_TIMEOUT_MS_MAX) / 1000
        try:
            response = self._adapter.send(request, stream=True, timeout=(connect_s, timeout_ms / 1000))
            with contextlib.closing(response):
                status = response.status_code
                if status != 200:
                    raise self._refused(response, status)
                return self._read(response, limit_bytes, timeout_ms / 1000)
        except (OSError, HTTPError) as error:  # requests' own errors are OSErrors
            raise PeerFault(f"{self.url}: {cause_of(error)}") from error

    def _request(self, method: str, path: str, media_type: str) -> requests.PreparedRequest:
        """A prepared request of one's own: what never changes is prepared once."""
        prepared = self._prepared.get((method, path))
        if prepared is None:
            headers = {"Accept-Encoding": "identity"}
            if media_type:
                headers["Content-Type"] = media_type
            try:
                prepared = self._session.prepare_request(requests.Request(method, self.url + path, headers=headers))
            except (OSError, ValueError) as error:
                raise PeerFault(f"{self.url}: {cause_of(error)}") from error
            self._prepared[method, path] = prepared
        return prepared.copy()

    def _read(self, response: requests.Response, limit_bytes: int, patience_s: float) -> bytes:
        declared = response.headers.get("Content-Length", "")
        if declared.isdecimal() and int(declared) > limit_bytes:
            raise PeerFault(f"{self.url}: an answer of {declared} bytes, at most {limit_bytes} are taken")
        began_s, size = monotonic(), 0
        pieces: list[bytes] = []
        while piece := response.raw.read1(READ_BYTES, decode_content=False):
            pieces.append(piece)
            size += len(piece)
            if size > limit_bytes:
                raise PeerFault(f"{self.url}: an answer of more than {limit_bytes} bytes")
            taken_s = monotonic() - began_s
            if taken_s > patience_s and size < taken_s * RATE_MIN_BYTES:
                raise PeerFault(f"{self.url}: an answer that trickles: {size} bytes in {taken_s:.0f} s")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _refused(self, response: requests.Response, status: int) -> HttpRefused:
        text: str = response.raw.read(REFUSAL_BYTES_MAX, decode_content=False).decode("utf-8", "replace")
        reason = response.headers.get("X-Isthmus-Reason", PeerFault.reason)
        return HttpRefused(f"{self.url} answers {status}: {refusal_words(text)}", status, reason)

    def abort(self) -> None:
        """End every request under way, in whatever thread, and refuse all further ones."""
        self._adapter.abort()
        self._session.close()


class _CuttableAdapter(_Adapter):
    """Keeps its open connections, so that another thread can abort them."""

    def __init__(self, connections: int, access: PeerCredentials) -> None:
        super().__init__(connections, access)
        self._lock = threading.Lock()
        self._opened: weakref.WeakSet[HTTPConnection] = weakref.WeakSet()
        self._is_cut = False

    def opened(self, connection: HTTPConnection) -> None:
        """A connection is open; it is closed at once after `abort`."""
        super().opened(connection)
        with self._lock:
            self._opened.add(connection)
            cut = self._is_cut
        if cut:
            connection.close()
            raise ConnectionAbortedError("the client was closed")

    def abort(self) -> None:
        """Shut every socket down: a thread that waits for an answer fails at once."""
        with self._lock:
            self._is_cut = True
            sockets = [connection.sock for connection in self._opened]
        for sock in sockets:
            if sock is not None:
                with contextlib.suppress(OSError):
                    # That of TLS would also forget that there is any: whoever reads next would get a ValueError.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)


class _Answer(http.client.HTTPResponse):
    """An answer whose head, and all of it when it is a refusal, must not trickle; who takes a body sees to that."""

    def __init__(self, sock: socket.socket, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self._pace = _Pace(self.fp.detach(), sock.gettimeout())
        self.fp = io.BufferedReader(self._pace)

    def begin(self) -> None:
        """Read the head."""
        super().begin()
        if self.status == 200:
            self._pace.patience_s = None


class _Pace(io.RawIOBase):
    """What comes in from a socket. The wait for the first byte is not held against the speed of what follows."""

    def __init__(self, raw: io.RawIOBase, patience_s: float | None) -> None:
        self.patience_s = patience_s
        """None: no limit."""
        self._raw = raw
        self._since_s: float | None = None
        self._size = 0

    def readable(self) -> bool:
        """See io."""
        return True

    def readinto(self, into: Any) -> int | None:
        """See io. Raises ConnectionError where it trickles."""
        count = self._raw.readinto(into)
        if self.patience_s is None or not count:
            return count
        now_s = monotonic()
        if self._since_s is None:
            self._since_s = now_s
        self._size += count
        taken_s = now_s - self._since_s
        if taken_s > self.patience_s and self._size < taken_s * RATE_MIN_BYTES:
            raise ConnectionError(f"an answer that trickles: {self._size} bytes in {taken_s:.0f} s")
        return count

    def close(self) -> None:
        """See io."""
        self._raw.close()
        super().close()


def _reporting(base: Any, adapter: _Adapter) -> type[HTTPConnection]:
    class ReportingConnection(base):  # type: ignore[misc]
        response_class = _Answer

        def connect(self) -> None:
            adapter.prepare(self)
            super().connect()
            adapter.opened(self)

    return ReportingConnection


def refusal_words(text: str) -> str:
    """What the body of an answer with an error status says, in one line: of JSON, as admin listeners answer, the
    sentence alone; and that it is such a listener, where it does not know the path."""
    words = " ".join(text.split())
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return words
    if not isinstance(found, dict) or not isinstance(found.get("error"), str):
        return words
    if found.get("reason") == "unknown-path":
        return "an admin listener, it seems: of a peer the address for clients is asked, listen.http"
    return " ".join(found["error"].split())


def cause_of(error: BaseException) -> str:
    """The innermost reason of what a request raised, in one line: outer ones repeat it with addresses of objects."""
    inner = error
    while True:
        if isinstance(inner, ssl.SSLError):
            return f"TLS: {trouble_of(inner).words}"
        deeper = getattr(inner, "reason", None) or (inner.args[0] if inner.args else None)
        if not isinstance(deeper, BaseException):
            break
        inner = deeper
    args = inner.args
    if len(args) == 2 and isinstance(args[1], str) and not isinstance(args[0], int | str):
        return " ".join(args[1].split())  # urllib3 puts the object of its connection first
    text = " ".join(str(inner).split())
    if text.startswith(("HTTP", "Reporting")):
        text = text.partition("): ")[2] or text  # a connection that shows itself before what became of it
    return text.rpartition(">: ")[2] or type(inner).__name__
