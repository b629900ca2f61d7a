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
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from isthmus.node.cli.credentials import Endpoint, connection_options
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.node_listener import ANSWER_TIMEOUT_S, ListenerKind, NoAnswer, NodeListener
from isthmus.repl.http.client import OPEN, PeerCredentials

ADMIN: Final = ListenerKind("--admin", "ISTHMUS_ADMIN", "http://127.0.0.1:8099")

VIA: Final = "X-Isthmus-Via"
"""The header that marks acts of the command line in the audit log (`node.http.audit`)."""

ANSWER_BYTES_MAX: Final = 64_000_000
"""Largest answer read into memory; a listing of 1,024 partitions has less than one megabyte."""

Command = TypeVar("Command", bound=Callable[..., Any])


class AdminClient:
    """The admin listener of a cluster: one node's, or the first of several that answers.

    `urls` are http(s)://HOST:PORT, one or several with commas; raises CommandFailed (usage) when one is not. A request
    that only reads goes on to the next address where a node does not answer; one that changes something does so only
    where no connection was made, so that nothing is done twice.
    """

    def __init__(
        self, urls: str | Sequence[str], access: PeerCredentials = OPEN, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        self.urls = tuple(url.strip() for url in urls.split(",")) if isinstance(urls, str) else tuple(urls)
        self._listeners = [NodeListener(ADMIN, url, access, timeout_s) for url in self.urls]
        self._access = access
        self._at = 0
        self.token = access.token
        """Gives the token that is shown; None for none."""

    @property
    def url(self) -> str:
        """The address that answered last; at first the first one."""
        return self._listeners[self._at].url

    def with_timeout(self, timeout_s: float) -> AdminClient:
        """The same listeners, with another time-out and connections of their own."""
        return AdminClient(self.urls, self._access, timeout_s)

    def close(self) -> None:
        """Close the connections."""
        for listener in self._listeners:
            listener.close()

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`. Raises CommandFailed: UNAVAILABLE or REFUSED."""
        return self._exchange("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON object that answers `body`. Raises CommandFailed: UNAVAILABLE or REFUSED."""
        return self._exchange("POST", path, body)

    def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        failures = []
        for _ in self._listeners:
            try:
                return self._ask(self._listeners[self._at], method, path, body)
            except NoAnswer as error:
                if len(self._listeners) == 1 or (body is not None and error.reached):
                    raise
                failures.append(str(error))
                self._at = (self._at + 1) % len(self._listeners)
        raise NoAnswer(Exit.UNAVAILABLE, "unavailable", f"no node answers: {'; '.join(failures)}")

    @staticmethod
    def _ask(listener: NodeListener, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        headers = {} if data is None else {"Content-Type": "application/json", VIA: "cli"}
        with listener.request(method, path, data, headers) as response:
            status: int = response.status_code
            raw = b"".join(listener.pieces(response, ANSWER_BYTES_MAX))
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or (status >= 400 and not isinstance(answer.get("error"), str)):
            what = f"answers {status} without a JSON object of this API; is this a node's admin listener?"
            raise listener.unavailable(what)
        if status < 400:
            return answer
        reason = answer.get("reason")
        raise listener.refused(status, reason if isinstance(reason, str) else "unknown", answer["error"])


def client_of(endpoint: Endpoint) -> AdminClient:
    """The client of the admin listeners of an endpoint."""
    return AdminClient(endpoint.urls, endpoint.access)


def admin_option(command: Command) -> Command:
    """Add `--admin URL`, as the argument `admin` (an `AdminClient`), and the other connection options."""
    option = ADMIN.add_option("admin", client_of, "Admin listener of any node of the cluster.")
    return connection_options(option(command))


@functools.cache
def whoami() -> str:
    """USER@HOST, which the cluster stores with a change."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user id without an account
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"
