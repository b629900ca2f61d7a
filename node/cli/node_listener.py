"""One listener of a node, as commands use it over HTTP: its option, its connections, and its failures in a sentence."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import click

from isthmus.config.validation import check_peer_url
from isthmus.node.cli.credentials import ConnectionOption, Endpoint, endpoint_of, is_typed
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.http.patience import header_of
from isthmus.repl.http.client import OPEN, PeerCredentials, WrongPeer, session
from isthmus.repl.machine import machine
from isthmus.repl.security.tls import tls_failure

CONNECT_TIMEOUT_S: Final = 5.0
"""A node on a reachable machine accepts in milliseconds; a guess with a margin for slow links."""

ANSWER_TIMEOUT_S: Final = 20.0
"""How long one answer may take; a suspension waits for the metastore, for which a start allows 20 s as well."""

TLS_WANTED: Final = "tls"
"""The reason that a listener with TLS gives to a plain connection."""

UNAUTHORIZED: Final = 401
TOKEN_HINT: Final = "; --token-file FILE or ISTHMUS_TOKEN gives one"  # noqa: S105 - a sentence

TLS_REMEDIES: Final[Mapping[str, str]] = {
    "unknown-authority": "--ca FILE or ISTHMUS_CA names the authority of the nodes' certificates",
    "expired": "put a new certificate in the place of that file: nodes read it without a restart",
    "not-yet-valid": "set the clocks of both machines",
    "wrong-name": "use a name or an address for which its certificate is made",
    "no-certificate": "--cert FILE and --key FILE, or ISTHMUS_CERT and ISTHMUS_KEY, show one",
    "refused": "--cert FILE and --key FILE, or ISTHMUS_CERT and ISTHMUS_KEY, show another one",
    "plaintext": "this listener has no TLS",
    "old-version": "update the older of both ends",
    "no-cipher": "update the older of both ends",
}
"""Code of a TLS failure (`repl.security.tls`) -> what helps; for others, another node."""

Command = TypeVar("Command", bound=Callable[..., Any])


class ListenerKind(NamedTuple):
    """The option that names a listener, its environment variable, and its default."""

    option: str
    variable: str
    default: str

    def add_option(
        self, parameter: str, client: Callable[[Endpoint], Any], help_text: str
    ) -> Callable[[Command], Command]:
        """A decorator that adds the option to a command, which gets the client of the listener as `parameter`."""

        def made(context: click.Context, _parameter: click.Parameter, value: str | None) -> Any:
            typed = is_typed(context, parameter)
            return client(endpoint_of(context, self.option, value or "", self.default, typed=typed))

        return click.option(
            self.option,
            parameter,
            cls=ConnectionOption,
            metavar="URL",
            envvar=self.variable,
            show_default=self.default,
            show_envvar=True,
            callback=made,
            help=help_text,
        )


class NoAnswer(CommandFailed):
    """The node did not answer, or the connection broke before its whole answer came."""

    reached = False
    """The request may have been sent: what it asked for may have been done."""


class NodeListener:
    """A listener at `url`, http(s)://HOST:PORT; raises CommandFailed (usage) when it is not."""

    def __init__(
        self, kind: ListenerKind, url: str, access: PeerCredentials = OPEN, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        self._kind = kind
        self._timeout_s = timeout_s
        try:
            self.url = check_peer_url(with_scheme(url))
        except ValueError as error:
            raise CommandFailed(Exit.USAGE, "bad-input", f"{kind.option}: {error}") from None
        self._session = session(access=access)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    @contextmanager
    def request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[Any]:
        """The answer to a request (requests' Response), not read yet. `timeout_s`: instead of the listener's. Raises
        CommandFailed (UNAVAILABLE), NoAnswer among them, also from what reads it."""
        check_path(path)
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        connect_s = min(CONNECT_TIMEOUT_S, wait_s)
        began_s = machine().monotonic_s()
        try:
            with self._session.request(
                method,
                self.url + path,
                data=body,
                headers={**header_of(wait_s), **(headers or {})},
                timeout=(connect_s, wait_s),
                allow_redirects=False,
                stream=True,
            ) as response:
                if reason_of(response) == TLS_WANTED:
                    raise self.unavailable("speaks TLS: write https://")
                yield response
        except OSError as error:  # everything that requests raises is one
            # a TLS handshake waits `connect_s` too, and its time-out looks like that of an answer but for the time
            ran_out_s = connect_s if machine().monotonic_s() - began_s < wait_s else wait_s
            sentence = self._sentence(f"does not answer: {cause(error, ran_out_s)}", self._remedy(error))
            failure = NoAnswer(Exit.UNAVAILABLE, "unavailable", sentence)
            failure.reached = not was_refused(error)
            raise failure from error

    def pieces(self, response: Any, limit_bytes: int | None) -> Iterator[bytes]:
        """The body of an answer as it comes. Raises CommandFailed (UNAVAILABLE) above the limit."""
        size = 0
        for piece in response.iter_content(65_536):
            size += len(piece)
            if limit_bytes is not None and size > limit_bytes:
                raise self.unavailable(f"answers with more than {limit_bytes} bytes")
            yield piece

    def unavailable(self, what: str) -> CommandFailed:
        """The failure of a listener that does not answer as it should."""
        return CommandFailed(Exit.UNAVAILABLE, "unavailable", self._sentence(what))

    def _sentence(self, what: str, remedy: str | None = None) -> str:
        return f"{self.url} {what} ({self._other_node() if remedy is None else remedy})"

    def _other_node(self) -> str:
        return f"{self._kind.option} URL or {self._kind.variable} names another node"

    def _remedy(self, error: BaseException) -> str:
        """What helps against the cause at the root of a chain of exceptions."""
        seen: BaseException | None = error
        while seen is not None:
            if isinstance(seen, ssl.SSLError):
                return TLS_REMEDIES.get(tls_failure(seen).code, self._other_node())
            if isinstance(seen, TimeoutError):
                return "it is busy, frozen or cut off; " + self._other_node()
            seen = seen.__cause__ or seen.__context__
        return self._other_node()

    @staticmethod
    def refused(status: int, reason: str, sentence: str) -> CommandFailed:
        """The failure of a request that was answered with an error status."""
        hint = TOKEN_HINT if status == UNAUTHORIZED else ""
        return CommandFailed(Exit.REFUSED if status < 500 else Exit.UNAVAILABLE, reason, sentence + hint)


def with_scheme(url: str) -> str:
    """An address of a listener; HOST:PORT alone is http://HOST:PORT."""
    return url if "://" in url or ":" not in url else f"http://{url}"


PROBE_S: Final = 1.0
"""How long an address may take to accept where there is another one."""


def first_reachable(urls: Sequence[str]) -> str:
    """The first address that accepts a connection; the first one where none does, whose failure then names it."""
    for url in urls if len(urls) > 1 else ():
        parts = urlsplit(url)
        try:
            socket.create_connection((parts.hostname or "", parts.port or 0), PROBE_S).close()
        except OSError:
            continue
        return url
    return urls[0]


def reason_of(response: Any) -> str:
    """The stable reason code of an answer, "" for none."""
    found: str = response.headers.get("X-Isthmus-Reason", "")
    return found


def check_path(path: str) -> None:
    """Raise CommandFailed for a path with a "." or ".." segment, percent-encoded or not: an HTTP client removes these
    and would request another path."""
    for part in path.partition("?")[0].split("/"):
        if (name := unquote(part)) in (".", ".."):
            sentence = f"the name {name!r} cannot be in the path of a request: to HTTP it is a step to another path"
            raise CommandFailed(Exit.USAGE, "bad-input", sentence)


def was_refused(error: BaseException | None) -> bool:
    """True where no connection was made at all: refused, no route, no such host, or a handshake that failed."""
    while error is not None:
        if isinstance(error, ConnectionRefusedError | socket.gaierror | ssl.SSLError):
            return True
        if isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
            return True
        if type(error).__name__ in ("ConnectTimeout", "ConnectTimeoutError"):
            return True
        error = error.__cause__ or error.__context__
    return False


def cause(error: BaseException, timeout_s: float) -> str:
    """The cause at the root of a chain of exceptions, as text; `timeout_s` is what a time-out in it waited for."""
    words = "no valid answer"
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLError):
            failure = tls_failure(seen)
            return f"{failure.words}{'; write http://' if failure.code == 'plaintext' else ''}"
        if isinstance(seen, WrongPeer):
            return str(seen)
        if isinstance(seen, TimeoutError):
            return f"no answer within {timeout_s:g} s"
        if isinstance(seen, OSError) and seen.strerror:
            words = seen.strerror.lower()
        seen = seen.__cause__ or seen.__context__
    return words
