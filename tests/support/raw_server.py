"""A server on loopback that answers connections by functions of the test, byte by byte."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

Script = Callable[[socket.socket], None]
"""A script for one connection; the socket is closed afterwards."""


class RawServer:
    """The n-th connection runs the n-th script, further ones the last one. `heads` has the requests that `read_request`
    received."""

    def __init__(self, *scripts: Script) -> None:
        self.heads: list[bytes] = []
        self._scripts: Sequence[Script] = scripts
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.accepted = 0
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._accepting.join(10)
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            script = self._scripts[min(self.accepted, len(self._scripts) - 1)]
            self.accepted += 1
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(script, connection))
            self._threads.append(thread)
            thread.start()

    def _serve(self, script: Script, connection: socket.socket) -> None:
        connection.settimeout(20)
        with connection, contextlib.suppress(OSError):
            script(connection)

    def read_request(self, connection: socket.socket) -> bytes:
        """The bytes of one request as they arrive in one piece; empty at the end of the connection."""
        received = connection.recv(1 << 20)
        if received:
            self.heads.append(received)
        return received

    def serve(self, *answers: bytes) -> Script:
        """A script that answers each request with the next answer, the last one again and again."""

        def script(connection: socket.socket) -> None:
            count = 0
            while self.read_request(connection):
                connection.sendall(answers[min(count, len(answers) - 1)])
                count += 1

        return script

    def wait_for_end(self, connection: socket.socket) -> None:
        """Read until the client closes."""
        while connection.recv(1 << 16):
            pass


def reply(status: int, body: bytes = b"", *headers: str) -> bytes:
    """The bytes of an answer."""
    lines = [f"HTTP/1.1 {status} Some", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body
