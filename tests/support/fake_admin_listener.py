"""An admin listener with scripted answers, for tests of commands. It refuses query parameters as a node does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

from isthmus.node.admin_api.application import AdminApi
from isthmus.node.http.operations import parameters_of
from isthmus.node.http.responses import RequestRefused, refusal, refusal_in_json
from isthmus.node.http.router import Router, check_parameters, parse_query
from tests.support.node_status import FakeNodeStatus
from tests.support.open_access import EVERYBODY


@cache
def admin_router() -> Router[Any]:
    """The routes of the admin API; their handlers are not called."""
    return AdminApi(SimpleNamespace(), FakeNodeStatus(), EVERYBODY).router  # type: ignore[arg-type]


def refused_query(method: str, target: str) -> bytes | None:
    """The body of a node's 400 to a request with query parameters that its route does not have, or has twice."""
    path, _, query = target.partition("?")
    try:
        pattern = admin_router().match(method, path.encode()).pattern
    except RequestRefused:
        return None
    try:
        check_parameters(parse_query(query.encode()), parameters_of(method, pattern) or (), f"{method} {pattern}")
    except RequestRefused as error:
        return refusal_in_json(refusal(error)).body
    return None


class FakeAdminListener:
    """An admin listener with an answer for each path; records POST requests."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.posted: list[tuple[str, Any]] = []
        self.on_headers: Callable[[Mapping[str, str]], None] = lambda _headers: None
        """Is given the headers of each request."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                fake.posted.append((self.path, json.loads(body)))
                self._answer()

            def _answer(self) -> None:
                fake.on_headers(self.headers)
                refused = refused_query(self.command, self.path)
                absent = (404, b'{"error": "no such queue", "reason": "unknown-queue"}')
                status, body = fake.answers.get(self.path, absent) if refused is None else (400, refused)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def respond(self, path: str, answer: Any, status: int = 200) -> None:
        """Answer requests of `path` with a JSON value, or with unchanged bytes."""
        self.answers[path] = (status, answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def close(self) -> None:
        """Stop and wait."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
