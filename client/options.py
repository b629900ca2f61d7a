"""Options of a client: checked once, when it is made."""

from __future__ import annotations

import difflib
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypedDict
from urllib.parse import urlsplit

from isthmus.client.errors import BadRequest
from isthmus.client.exchange import Limits, checked_seconds
from isthmus.client.names import DEFAULT_TYPE, name_bytes
from isthmus.client.objects import Name, Resolver
from isthmus.client.steps import Endpoint
from isthmus.client.values import Codec

TIMEOUT_S: Final = 15.0
"""Time of a call: longer than the failure of a node lasts for its partitions (seconds)."""
CONNECT_TIMEOUT_S: Final = 2.0
ATTEMPTS: Final = 12
"""Their pauses, up to 2 s each, fill about the time of a call."""
UPDATE_ATTEMPTS: Final = 40
"""With eight clients that update one key without pause, about every fourth attempt succeeds: 40 are not used up."""
CONNECTIONS: Final = 16

TOKEN_CHECK_S: Final = 1.0
"""A token file is looked at once a second, as nodes do it."""
TOKEN_FILE_BYTES_MAX: Final = 64_000
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}", re.ASCII)


class Options(TypedDict, total=False):
    """Keyword arguments of `Client` and `AsyncClient`."""

    bucket_type: Name
    """Bucket type of all calls that do not name one. Default: `default`."""
    timeout_s: float
    """How long a call may take, with all attempts and pauses. Default: 15."""
    attempt_timeout_s: float
    """How long one attempt may take. Default: a third of the call's time."""
    connect_timeout_s: float
    """How long connecting to a node may take: all its addresses, and TLS. Default: 2."""
    attempts: int
    """How often a request is sent at most. Default: 12."""
    update_attempts: int
    """How often an update reads and writes while others change the key. Default: 40."""
    connections: int
    """Most connections at once, to all nodes together; further requests wait for one. Default: 16."""
    routing: bool
    """Send each request to the leader of its key, as far as it is known and reachable. Default: True."""
    token: str
    """A bearer token."""
    token_file: str | os.PathLike[str]
    """A file with the token, read again when it changes."""
    ca: str | os.PathLike[str]
    """Authorities of the nodes' certificates, PEM. Default: those of the system."""
    cert: str | os.PathLike[str]
    """A client certificate, PEM; with `key`."""
    key: str | os.PathLike[str]
    """Its private key, PEM."""
    ssl_context: ssl.SSLContext
    """In place of `ca`, `cert` and `key`."""
    codecs: Mapping[str, Codec]
    """Further content types: `{"application/msgpack": Codec(packb, unpackb)}`."""
    resolve: Resolver
    """Resolves siblings wherever a call has no resolver of its own."""


class Settings:
    """Checked options. Raises BadRequest, which names the option."""

    def __init__(self, urls: str | Sequence[str], options: Options) -> None:
        unknown = set(options) - set(Options.__annotations__)
        if unknown:
            name = sorted(unknown)[0]
            similar = difflib.get_close_matches(name, Options.__annotations__, 1)
            hint = f": did you mean {similar[0]!r}?" if similar else ""
            raise BadRequest(f"unknown option {name!r}{hint}", reason="bad-option")
        self.seeds = _endpoints([urls] if isinstance(urls, str) else list(urls))
        self.bucket_type = options.get("bucket_type", DEFAULT_TYPE)
        name_bytes(self.bucket_type, "bucket_type")
        attempt_s = options.get("attempt_timeout_s")
        self.limits = Limits(
            checked_seconds("timeout_s", options.get("timeout_s", TIMEOUT_S)),
            None if attempt_s is None else checked_seconds("attempt_timeout_s", attempt_s),
            checked_seconds("connect_timeout_s", options.get("connect_timeout_s", CONNECT_TIMEOUT_S)),
            _count("attempts", options.get("attempts", ATTEMPTS)),
        )
        self.update_attempts = _count("update_attempts", options.get("update_attempts", UPDATE_ATTEMPTS))
        self.connections = _count("connections", options.get("connections", CONNECTIONS))
        self.codecs = {kind.strip().lower(): codec for kind, codec in options.get("codecs", {}).items()}
        self.resolver = options.get("resolve")
        self.authorization = _authorization(options)
        self.secure = self.seeds[0].scheme == "https"
        self.ssl_context = _ssl_context(options, self.secure)
        self.certified = not self.secure or "cert" in options or "ssl_context" in options
        self.routing = options.get("routing", True)
        self.discover = self.secure or self.authorization is None
        """A token in plain text is sent to the given nodes only."""


def _endpoints(urls: Sequence[str]) -> list[Endpoint]:
    if not urls:
        raise BadRequest("urls is empty: give at least one node, such as http://127.0.0.1:8098", reason="bad-option")
    found = []
    for url in urls:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
            (parts.hostname or "").encode("idna")
        except ValueError:
            parts, port = urlsplit(""), None
        rest = parts.path.rstrip("/") + parts.query + parts.fragment + (parts.username or "")
        if parts.scheme not in ("http", "https") or not parts.hostname or port is None or rest:
            forms = "HOST:PORT, http://HOST:PORT or https://HOST:PORT"
            raise BadRequest(f"{url!r} is not of the form {forms}", reason="bad-option")
        found.append(Endpoint(parts.scheme, parts.hostname, port))
    if len({node.scheme for node in found}) > 1:
        raise BadRequest("urls has http:// and https://: all nodes need the same", reason="bad-option")
    return list(dict.fromkeys(found))


def _count(name: str, value: int) -> int:
    if not isinstance(value, int) or not 1 <= value <= 10_000:
        raise BadRequest(f"{name} is {value!r}: it must be 1 to 10000", reason="bad-option")
    return value


def _ssl_context(options: Options, secure: bool) -> ssl.SSLContext | None:
    given = [name for name in ("ca", "cert", "key", "ssl_context") if name in options]
    if not secure:
        if given:
            raise BadRequest(f"{given[0]} is given, but urls are http://: write https://", reason="bad-option")
        return None
    if "ssl_context" in options:
        if len(given) > 1:
            raise BadRequest("ssl_context excludes ca, cert and key", reason="bad-option")
        return options["ssl_context"]
    if ("cert" in options) != ("key" in options):
        raise BadRequest("cert and key belong together", reason="bad-option")
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
    except OSError as error:
        raise BadRequest(f"ca {options.get('ca')} cannot be read: {error}", reason="bad-option") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if "cert" in options:
        try:
            context.load_cert_chain(options["cert"], options["key"], password="")
        except OSError as error:
            raise BadRequest(
                f"cert {options['cert']} with its key cannot be read: {error}", reason="bad-option"
            ) from error
    return context


def _authorization(options: Options) -> Callable[[], bytes] | None:
    if "token_file" in options:
        if "token" in options:
            raise BadRequest("token and token_file exclude each other", reason="bad-option")
        return _TokenFile(Path(options["token_file"])).current
    if "token" not in options:
        return None
    token = options["token"]
    if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
        raise BadRequest("token has 16 to 512 of A-Z a-z 0-9 - . _ ~ + / =", reason="bad-option")
    value = f"Bearer {token}".encode()
    return lambda: value


class _TokenFile:
    """The first token of a file; the last good one while a changed file has none. May be used from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] | None = None
        self._checked_s = time.monotonic()
        self._value = b""
        self._read()
        if not self._value:
            raise BadRequest(
                f"token_file {path} has no token: 16 to 512 of A-Z a-z 0-9 - . _ ~ + / =", reason="bad-option"
            )

    def current(self) -> bytes:
        """The value of the header."""
        now_s = time.monotonic()
        if now_s - self._checked_s >= TOKEN_CHECK_S:
            with self._lock:
                if now_s - self._checked_s >= TOKEN_CHECK_S:
                    self._checked_s = now_s
                    self._read()
        return self._value

    def _read(self) -> None:
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamp:
                return
            with self._path.open("rb") as file:
                text = file.read(TOKEN_FILE_BYTES_MAX).decode("ascii", "replace")
        except OSError as error:
            if self._value:
                return  # it is being replaced
            raise BadRequest(f"token_file {self._path} cannot be read: {error}", reason="bad-option") from error
        for line in text.splitlines():
            token = line.partition("#")[0].strip()
            if _TOKEN.fullmatch(token) is not None:
                self._value, self._stamp = f"Bearer {token}".encode(), stamp
                return
