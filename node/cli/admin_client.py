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
from collections.abc import Callable
from typing import Any, Final, TypeVar

from isthmus.node.cli.credentials import credential_options
from isthmus.node.cli.node_listener import ANSWER_TIMEOUT_S, ListenerKind, NodeListener
from isthmus.repl.http.client import OPEN, PeerCredentials

ADMIN: Final = ListenerKind("--admin", "ISTHMUS_ADMIN", "http://127.0.0.1:8099")

VIA: Final = "X-Isthmus-Via"
"""The header that marks acts of the command line in the audit log (`node.http.audit`)."""

ANSWER_BYTES_MAX: Final = 64_000_000
"""Largest answer read into memory; a listing of 1,024 partitions has less than one megabyte."""

Command = TypeVar("Command", bound=Callable[..., Any])


class AdminClient:
    """One node's admin listener. `url` is http(s)://HOST:PORT; raises CommandFailed (usage) when it is not."""

    def __init__(self, url: str, access: PeerCredentials = OPEN, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._listener = NodeListener(ADMIN, url, access, timeout_s)
        self.url = self._listener.url

    def close(self) -> None:
        """Close the connections."""
        self._listener.close()

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`. Raises CommandFailed: UNAVAILABLE or REFUSED."""
        return self._exchange("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON object that answers `body`. Raises CommandFailed: UNAVAILABLE or REFUSED."""
        return self._exchange("POST", path, body)

    def _exchange(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        headers = {} if data is None else {"Content-Type": "application/json", VIA: "cli"}
        with self._listener.request(method, path, data, headers) as response:
            status: int = response.status_code
            raw = b"".join(self._listener.pieces(response, ANSWER_BYTES_MAX))
        try:
            answer = json.loads(raw)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or (status >= 400 and not isinstance(answer.get("error"), str)):
            what = f"answers {status} without an answer in JSON; is this a node's admin listener?"
            raise self._listener.unavailable(what)
        if status < 400:
            return answer
        reason = answer.get("reason")
        raise self._listener.refused(status, reason if isinstance(reason, str) else "unknown", answer["error"])


def admin_option(command: Command) -> Command:
    """Add `--admin URL`, as the argument `admin` (an `AdminClient`), and the credential options."""
    option = ADMIN.add_option("admin", AdminClient, "Admin listener of any node of the cluster.")
    return option(credential_options(command))


@functools.cache
def whoami() -> str:
    """USER@HOST, which the cluster stores with a change."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user id without an account
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"
