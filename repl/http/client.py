"""Blocking HTTP clients; the only module that imports `requests`.

Proxies of the environment are ignored, pools have a fixed size, and certificates and tokens come from
`PeerCredentials`. `session` serves programs that send a request now and then; `HttpPeer` serves sinks: few large
answers, read raw and bounded, from several threads, and aborted on demand. Bodies are opaque here.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import socket
import ssl
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    LocationParseError,
    NameResolutionError,
    NewConnectionError,
)

from isthmus.repl.machine import machine
from isthmus.repl.model.errors import PeerFault
from isthmus.repl.security.tls import SCHEME, TlsFiles, client_contexts, names_of, shown_names, tls_failure

CONNECT_TIMEOUT_MS_MAX: Final = 5_000
"""Longest wait for a connection, whatever the timeout of an answer: a live machine accepts within milliseconds, and
shutdown must not wait for a dead one."""

READ_BYTES: Final = 1 << 20
"""Most bytes read from a connection at once."""

RATE_MIN_BYTES: Final = 1_000
"""Least bytes a second of an answer, once it has taken longer than the timeout for one byte; a slower answer is given
up, because it would occupy its thread for ever. An eighth of a link of 64 kbit/s."""

REFUSAL_BYTES_MAX: Final = 2_000
"""Bytes read of an answer with an error status: enough for its error message."""


class PeerCredentials(NamedTuple):
    """Credentials for another node, and its expected identity.

    `contexts` returns the TLS context of each new connection (None: the system's authorities, no own certificate). With
    `cluster` the peer's certificate must name a node of that cluster, otherwise the dialled host. `token` returns the
    bearer token of each request; with `contexts`, an `HttpPeer` sends it over TLS only. With `user` it is the password
    of that user, for basic authentication."""

    contexts: Callable[[], ssl.SSLContext] | None = None
    cluster: str = ""
    token: Callable[[], str] | None = None
    user: str = ""

    def authorization_for(self, url: str) -> Callable[[], str] | None:
        """The value of the header Authorization of requests of another node to `url`; None: none is sent."""
        plain = url.startswith("http://") and self.contexts is not None
        return None if plain or self.token is None else self._authorization

    def _authorization(self) -> str:
        assert self.token is not None
        secret = self.token()
        if not self.user:
            return f"Bearer {secret}"
        return f"Basic {base64.b64encode(f'{self.user}:{secret}'.encode()).decode()}"

    def check_certificate(self, certificate: Mapping[str, Any] | None) -> None:
        """Check the certificate of a node that was dialled. Raises WrongPeer."""
        if self.cluster and self.cluster not in {name.cluster for name in names_of(certificate)}:
            raise WrongPeer(
                f"its certificate must name {SCHEME}{self.cluster}/NODE; it names {shown_names(certificate)}"
            )


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


def exact_head(asking: requests.Session, url: str, timeout_s: float) -> requests.Response:
    """The answer to a HEAD at exactly this URL: a path segment such as `%2E%2E` stays, which `requests` would take for
    a step upwards. Redirects are not followed. Raises as `session` says."""
    prepared = asking.prepare_request(requests.Request("HEAD", url))
    prepared.url = url
    return asking.send(prepared, timeout=(timeout_s, timeout_s), allow_redirects=False, verify=True)


class _Bearer(requests.auth.AuthBase):
    """Sends the current token; none after a redirect."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token()}"
        return request


class _Adapter(HTTPAdapter):
    """Opens connections with the TLS of a PeerCredentials only, never with that of the environment or a bundle."""

    def __init__(self, connections: int, access: PeerCredentials) -> None:
        contexts = access.contexts
        if contexts is None:
            contexts = system_contexts
        self._contexts = contexts
        self._access = access
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
        """Configure a connection that is about to be opened."""
        if isinstance(connection, HTTPSConnection):
            connection.ssl_context = self._contexts()
            connection.assert_hostname = False if self._access.cluster else None

    def opened(self, connection: HTTPConnection) -> None:
        """Check the certificate of a connection that was opened. Raises WrongPeer."""
        if isinstance(connection, HTTPSConnection):
            sock: Any = connection.sock
            try:
                self._access.check_certificate(sock.getpeercert())
            except WrongPeer:
                connection.close()
                raise


class WrongPeer(ConnectionError):
    """The peer is not of the expected cluster."""


def as_protected(url: str, known_url: str) -> str:
    """`url`, which the node at `known_url` listed, as https:// if `known_url` is https://.

    A listener that accepts both is listed with http://, and a token must not be sent in plain text."""
    plain = known_url.startswith("https://") and url.startswith("http://")
    return f"https://{url.removeprefix('http://')}" if plain else url


def system_contexts() -> ssl.SSLContext:
    """The default TLS context of a new connection: the system's authorities, no client certificate."""
    return client_contexts(TlsFiles(None, None, ()), check_host=True).current()


class AnswerLost(PeerFault):
    """A request was sent, and its answer did not come whole: the peer may have carried it out."""


class HttpRefused(PeerFault):
    """The peer answered with an error `status`; `reason` is its stable code, if any."""

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class HttpAnswer(NamedTuple):
    """An answer: status, headers in their order with names in lower case, body."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes


class HttpPeer:
    """Another node's HTTP listener, under base `url`. Thread-safe; up to `connections` are kept open.

    `abort` ends every request under way from any other thread; afterwards each call fails at once.
    """

    def __init__(self, url: str, connections: int, access: PeerCredentials = OPEN) -> None:
        self.url = url.rstrip("/")
        self._session = session(connections)
        self._authorization = access.authorization_for(self.url)
        self._adapter = _AbortableAdapter(connections, access)
        self._session.mount("http://", self._adapter)
        self._session.mount("https://", self._adapter)
        self._prepared: dict[tuple[str, str], requests.PreparedRequest] = {}

    def post(self, path: str, body: bytes, *, media_type: str, timeout_ms: int, limit_bytes: int) -> bytes:
        """Send a POST and return the body of its answer, of at most `limit_bytes`; a longer one is not read.

        `timeout_ms` bounds the wait for the first byte and for every further one. Raises HttpRefused for an error
        status, PeerFault for every other failure of the connection or the peer.
        """
        return self._exchange(self._request("POST", path, media_type, body), timeout_ms, limit_bytes)

    @contextlib.contextmanager
    def streaming(self, path: str, body: bytes, *, media_type: str, timeout_ms: int) -> Iterator[Callable[[], bytes]]:
        """Send a POST and yield a function that reads its answer in pieces: each call returns some bytes, b"" at the
        end. Only the socket buffers hold unread bytes, so a slow reader slows the peer down.

        `timeout_ms` bounds the wait for each piece. Raises as `post` does, on entering and from every call.
        """
        with contextlib.closing(self._opened(self._request("POST", path, media_type, body), timeout_ms)) as response:
            yield lambda: self._take(response)

    @contextlib.contextmanager
    def reading(self, path: str, *, timeout_ms: int) -> Iterator[Callable[[], bytes]]:
        """As `streaming`, for a GET."""
        with contextlib.closing(self._opened(self._request("GET", path, ""), timeout_ms)) as response:
            yield lambda: self._take(response)

    def get(self, path: str, *, timeout_ms: int, limit_bytes: int) -> bytes:
        """Send a GET and return the body of its answer; limits and errors as for `post`."""
        return self._exchange(self._request("GET", path, ""), timeout_ms, limit_bytes)

    def get_with_headers(
        self, path: str, *, accepted: Collection[int], timeout_ms: int, limit_bytes: int
    ) -> HttpAnswer:
        """Send a GET to exactly this path (`requests` would take a segment such as `%2E%2E` for a step upwards) and
        return its answer if its status is among `accepted`; limits and errors as for `post`. The request is prepared
        for this call alone: paths of keys are many."""
        request = self._prepare("GET", path, {"Accept-Encoding": "identity", "Accept": "multipart/mixed, */*;q=0.5"})
        request.url = self.url + path
        with contextlib.closing(self._opened(request, timeout_ms, accepted)) as response:
            body = self._read(response, limit_bytes, timeout_ms / 1000)
            return HttpAnswer(response.status_code, [(n.lower(), v) for n, v in response.raw.headers.items()], body)

    def _exchange(self, request: requests.PreparedRequest, timeout_ms: int, limit_bytes: int) -> bytes:
        with contextlib.closing(self._opened(request, timeout_ms)) as response:
            return self._read(response, limit_bytes, timeout_ms / 1000)

    def _opened(
        self, request: requests.PreparedRequest, timeout_ms: int, accepted: Collection[int] = (200,)
    ) -> requests.Response:
        """The answer to a request, its body not read. Raises HttpRefused for a status that is not `accepted`,
        PeerFault."""
        if self._authorization is not None:
            request.headers["Authorization"] = self._authorization()
        connect_s = min(timeout_ms, CONNECT_TIMEOUT_MS_MAX) / 1000
        try:
            response = self._adapter.send(request, stream=True, timeout=(connect_s, timeout_ms / 1000))
            if response.status_code in accepted:
                return response
            with contextlib.closing(response):
                raise self._refused(response, response.status_code)
        except (OSError, HTTPError) as error:  # requests' own errors are OSErrors
            raise PeerFault(f"{self.url}: {cause_of(error)}") from error

    def _request(self, method: str, path: str, media_type: str, body: bytes | None = None) -> requests.PreparedRequest:
        """A prepared request, copied from one that is prepared once for its method, path and media type."""
        prepared = self._prepared.get((method, path))
        if prepared is None:
            headers = {"Accept-Encoding": "identity"}
            if media_type:
                headers["Content-Type"] = media_type
            prepared = self._prepared[method, path] = self._prepare(method, path, headers)
        request = prepared.copy()
        if body is not None:
            request.body = body
            request.headers["Content-Length"] = str(len(body))
        return request

    def _prepare(self, method: str, path: str, headers: Mapping[str, str]) -> requests.PreparedRequest:
        try:
            return self._session.prepare_request(requests.Request(method, self.url + path, headers=dict(headers)))
        except (OSError, ValueError) as error:
            raise PeerFault(f"{self.url}: {cause_of(error)}") from error

    def _take(self, response: requests.Response) -> bytes:
        """The next bytes of a body, b"" at its end. Raises PeerFault."""
        try:
            piece: bytes = response.raw.read1(READ_BYTES, decode_content=False)
        except (OSError, HTTPError) as error:
            raise PeerFault(f"{self.url}: {cause_of(error)}") from error
        return piece

    def _read(self, response: requests.Response, limit_bytes: int, timeout_s: float) -> bytes:
        declared = response.headers.get("Content-Length", "")
        if declared.isdecimal() and int(declared) > limit_bytes:
            raise PeerFault(f"{self.url}: an answer of {declared} bytes, at most {limit_bytes} are taken")
        began_s, size = machine().monotonic_s(), 0
        pieces: list[bytes] = []
        while piece := self._take(response):
            pieces.append(piece)
            size += len(piece)
            if size > limit_bytes:
                raise PeerFault(f"{self.url}: an answer of more than {limit_bytes} bytes")
            taken_s = machine().monotonic_s() - began_s
            if taken_s > timeout_s and size < taken_s * RATE_MIN_BYTES:
                raise PeerFault(f"{self.url}: an answer that trickles: {size} bytes in {taken_s:.0f} s")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _refused(self, response: requests.Response, status: int) -> HttpRefused:
        text: str = response.raw.read(REFUSAL_BYTES_MAX, decode_content=False).decode("utf-8", "replace")
        reason = response.headers.get("X-Isthmus-Reason", PeerFault.reason)
        return HttpRefused(f"{self.url} answers {status}: {refusal_words(text)}", status, reason)

    def abort(self) -> None:
        """End every request under way, in any thread, and refuse all further ones."""
        self._adapter.abort()
        self._session.close()


class _AbortableAdapter(_Adapter):
    """Keeps its open connections, so that another thread can abort them."""

    def __init__(self, connections: int, access: PeerCredentials) -> None:
        super().__init__(connections, access)
        self._lock = machine().lock()
        self._opened: weakref.WeakKeyDictionary[HTTPConnection, None] = weakref.WeakKeyDictionary()
        self._aborted = False

    def opened(self, connection: HTTPConnection) -> None:
        """Register a connection that was opened; after `abort` close it at once."""
        super().opened(connection)
        with self._lock:
            self._opened[connection] = None
            aborted = self._aborted
        if aborted:
            connection.close()
            raise ConnectionAbortedError("the client was closed")

    def abort(self) -> None:
        """Shut every socket down: a thread that waits for an answer fails at once."""
        with self._lock:
            self._aborted = True
            sockets = [connection.sock for connection in self._opened]
        for sock in sockets:
            if sock is not None:
                with contextlib.suppress(OSError):
                    if isinstance(sock, ssl.SSLSocket):  # its own drops the TLS state: the next read gets a ValueError
                        socket.socket.shutdown(sock, socket.SHUT_RDWR)
                    else:
                        sock.shutdown(socket.SHUT_RDWR)


class _Answer(http.client.HTTPResponse):
    """An answer with a least speed for its head, and for all of it if its status is an error.

    The reader of a normal body checks the speed itself."""

    def __init__(self, sock: socket.socket, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        self._reader = _PacedReader(self.fp.detach(), sock.gettimeout())
        self.fp = io.BufferedReader(self._reader)

    def begin(self) -> None:
        """Read the head."""
        super().begin()
        if self.status == 200:
            self._reader.timeout_s = None


class _PacedReader(io.RawIOBase):
    """A socket's input with a least speed, measured from the first byte on."""

    def __init__(self, raw: io.RawIOBase, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        """None: no limit."""
        self._raw = raw
        self._since_s: float | None = None
        self._size = 0

    def readable(self) -> bool:
        """See io."""
        return True

    def readinto(self, into: Any) -> int | None:
        """See io. Raises ConnectionError if the input is too slow."""
        count = self._raw.readinto(into)
        if self.timeout_s is None or not count:
            return count
        now_s = machine().monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
        self._size += count
        taken_s = now_s - self._since_s
        if taken_s > self.timeout_s and self._size < taken_s * RATE_MIN_BYTES:
            raise ConnectionError(f"an answer that trickles: {self._size} bytes in {taken_s:.0f} s")
        return count

    def close(self) -> None:
        """See io."""
        self._raw.close()
        super().close()


def _reporting(base: Any, adapter: _Adapter) -> type[HTTPConnection]:
    # Not the adapter itself: urllib3 registers idle connections for the end of the process, so that a session that
    # nobody closed would never be freed.
    reports_to = weakref.ref(adapter)

    class ReportingConnection(base):  # type: ignore[misc]
        response_class = _Answer

        def connect(self) -> None:
            adapter = reports_to()
            assert adapter is not None, "its adapter sends the request"
            adapter.prepare(self)
            super().connect()
            adapter.opened(self)

        def _new_conn(self) -> socket.socket:
            """As urllib3's, with its errors, but the machine opens the connection."""
            host: str = self._dns_host
            try:
                sock = machine().create_connection((host.strip("[]"), self.port), self.timeout)
                for option in self.socket_options or ():
                    sock.setsockopt(*option)
            except UnicodeError:
                raise LocationParseError(f"{host!r}, label empty or too long") from None
            except socket.gaierror as error:
                raise NameResolutionError(self.host, self, error) from error
            except TimeoutError as error:
                message = f"Connection to {self.host} timed out. (connect timeout={self.timeout})"
                raise ConnectTimeoutError(self, message) from error
            except OSError as error:
                raise NewConnectionError(self, f"Failed to establish a new connection: {error}") from error
            return sock

    return ReportingConnection


def refusal_words(text: str) -> str:
    """The error message in the body of an answer, in one line.

    Admin listeners answer in JSON: returns its message only, or a hint if an admin listener does not know the path."""
    words = " ".join(text.split())
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return words
    if not isinstance(found, dict) or not isinstance(found.get("error"), str):
        return words
    if found.get("reason") == "unknown-path":
        return "this seems to be an admin listener: use the peer's client address, listen.http"
    return " ".join(found["error"].split())


def cause_of(error: BaseException) -> str:
    """The innermost cause of a request's exception, in one line; outer ones repeat it with addresses of objects."""
    inner = error
    while True:
        if isinstance(inner, ssl.SSLError):
            return f"TLS: {tls_failure(inner).words}"
        deeper = getattr(inner, "reason", None) or (inner.args[0] if inner.args else None)
        if not isinstance(deeper, BaseException):
            break
        inner = deeper
    args = inner.args
    if len(args) == 2 and isinstance(args[1], str) and not isinstance(args[0], int | str):
        return " ".join(args[1].split())  # urllib3's first argument is its connection object
    text = " ".join(str(inner).split())
    if text.startswith(("HTTP", "Reporting")):
        text = text.partition("): ")[2] or text  # a connection that shows itself before what became of it
    return text.rpartition(">: ")[2] or type(inner).__name__
