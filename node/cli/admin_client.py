"""A node's admin listener, as commands use it: JSON over HTTP, with limits on time and size.

Any node answers for its cluster. A failure is one sentence: the node does not answer, or it refused. The requests are
those of `node.admin_api.application`.
"""

from __future__ import annotations

import functools
import getpass
import json
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import click

from isthmus.config.validation import check_peer_url
from isthmus.node.cli.credentials import access_from, credential_options
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.repl.http.client import OPEN, PeerCredentials, WrongPeer, session
from isthmus.repl.security.tls import trouble_of

DEFAULT_ADMIN: Final = "http://127.0.0.1:8099"
"""The default admin listener."""

CONNECT_TIMEOUT_S: Final = 5.0
"""A node on a reachable machine accepts in milliseconds; a guess with a margin for slow links."""

ANSWER_TIMEOUT_S: Final = 20.0
"""How long one answer may take; a suspension waits for the metastore, for which a start allows 20 s as well."""

ANSWER_BYTES_MAX: Final = 64_000_000
"""Largest answer read into memory; a listing of 1,024 partitions has less than one megabyte."""

TLS_WANTED: Final = "tls"
"""The reason that a listener with TLS gives to a plain connection."""

UNAUTHORIZED: Final = 401
TOKEN_HINT: Final = "; --token-file FILE or ISTHMUS_TOKEN gives one"  # noqa: S105 - a sentence

Command = TypeVar("Command", bound=Callable[..., Any])


def check_path(path: str) -> None:
    """Raise CommandFailed for a path with a "." or ".." segment, percent-encoded or not: an HTTP client removes these
    and would request another path."""
    for part in path.partition("?")[0].split("/"):
        if (name := unquote(part)) in (".", ".."):
            sentence = f"the name {name!r} cannot stand in the path of a request: to HTTP it is a step to another path"
            raise CommandFailed(Exit.USAGE, "bad-input", sentence)


class AdminClient:
    """One node's admin listener. `url` is http(s)://HOST:PORT; raises CommandFailed (usage) when it is not."""

    def __init__(self, url: str, access: PeerCredentials = OPEN, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        try:
            self.url = check_peer_url(url)
        except ValueError as error:
            raise CommandFailed(Exit.USAGE, "bad-input", f"--admin: {error}") from None
        self._session = session(access=access)

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`. Raises CommandFailed: UNAVAILABLE or REFUSED."""
        return self._exchange("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON object that answers `body`. Raises CommandFailed: UNAVAILABLE or REFUSED."""
        return self._exchange("POST", path, body)

    def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        check_path(path)
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        try:
            with self._session.request(
                method,
                self.url + path,
                data=data,
                headers={} if data is None else {"Content-Type": "application/json"},
                timeout=(min(CONNECT_TIMEOUT_S, self._timeout_s), self._timeout_s),
                allow_redirects=False,
                stream=True,
            ) as response:
                status, reason = response.status_code, response.headers.get("X-Isthmus-Reason", "")
                raw = bytearray()
                for chunk in response.iter_content(65_536):
                    raw += chunk
                    if len(raw) > ANSWER_BYTES_MAX:
                        raise self._unavailable(f"answers with more than {ANSWER_BYTES_MAX} bytes")
        except OSError as error:  # everything that requests raises is one
            raise self._unavailable(f"does not answer: {cause(error)}") from error
        if reason == TLS_WANTED:
            raise self._unavailable("speaks TLS: write https://")
        return self._answer_of(status, raw)

    def _answer_of(self, status: int, raw: bytearray) -> dict[str, Any]:
        """The JSON object of an answer. Raises CommandFailed for a refusal."""
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or (status >= 400 and not isinstance(answer.get("error"), str)):
            raise self._unavailable(f"answers {status} without an answer in JSON; is this a node's admin listener?")
        if status < 400:
            return answer
        reason = answer.get("reason")
        raise CommandFailed(
            Exit.REFUSED if status < 500 else Exit.UNAVAILABLE,
            reason if isinstance(reason, str) else "unknown",
            answer["error"] + (TOKEN_HINT if status == UNAUTHORIZED else ""),
        )

    def _unavailable(self, what: str) -> CommandFailed:
        hint = " (--admin URL or ISTHMUS_ADMIN names another node)"
        return CommandFailed(Exit.UNAVAILABLE, "unavailable", f"{self.url} {what}{hint}")


def admin_option(command: Command) -> Command:
    """Add `--admin URL`, as the argument `admin` (an `AdminClient`), and the credential options."""

    def client(context: click.Context, _parameter: click.Parameter, value: str) -> AdminClient:
        return AdminClient(value, access_from(context))

    option = click.option(
        "--admin",
        metavar="URL",
        envvar="ISTHMUS_ADMIN",
        default=DEFAULT_ADMIN,
        show_default=True,
        show_envvar=True,
        callback=client,
        help="Admin listener of any node of the cluster.",
    )
    return option(credential_options(command))


@functools.cache
def whoami() -> str:
    """USER@HOST, which the cluster stores with a change."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user id without an account
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def cause(error: BaseException) -> str:
    """The cause at the root of a chain of exceptions, as text."""
    words = "no valid answer"
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLError):
            failure = trouble_of(seen)
            return f"{failure.words}{'; write http://' if failure.code == 'plaintext' else ''}"
        if isinstance(seen, WrongPeer):
            return str(seen)
        if isinstance(seen, TimeoutError):
            return f"no answer within {ANSWER_TIMEOUT_S:.0f} s"
        if isinstance(seen, OSError) and seen.strerror:
            words = seen.strerror.lower()
        seen = seen.__cause__ or seen.__context__
    return words
