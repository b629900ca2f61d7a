"""A TCP proxy of our own for faults that this machine's network cannot inject: late bytes, and changed bytes. It
listens at another loopback address in front of a node's ports, and recognizes the connections to disturb by their first
bytes."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

READ_BYTES: Final = 65_536
FLIP_AFTER_BYTES: Final = 200_000
"""More bytes than are sent before the first rows."""

POLL_S: Final = 0.2
"""How soon a thread sees that the proxy is closed."""


class Proxy:
    """A proxy from `host` to `target`, with the same ports. Use as a context manager. On connections whose first bytes
    contain `named`, each byte is delayed by `delay_s` in both directions, and one bit of the target's bytes beyond the
    first FLIP_AFTER_BYTES of a connection is flipped, `flips_left` times in all."""

    def __init__(self, host: str, target: str, ports: Sequence[int], named: bytes) -> None:
        self.delay_s = 0.0
        self.flips_left = 0
        self.hurt_connections = 0
        self._named = named
        self._target = target
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._listeners = [socket.create_server((host, port)) for port in ports]

    def __enter__(self) -> Self:
        for listener in self._listeners:
            self._run(self._accept, listener)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._closing.set()
        for thread in self._threads:
            thread.join()
        for listener in self._listeners:
            listener.close()

    def _run(self, work: object, *arguments: object) -> None:
        assert callable(work)
        thread = threading.Thread(target=work, args=arguments, name="proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        listener.settimeout(POLL_S)
        while not self._closing.is_set():
            try:
                client, _ = listener.accept()
            except TimeoutError:
                continue
            self._run(self._connection, client, listener.getsockname()[1])

    def _connection(self, client: socket.socket, port: int) -> None:
        try:
            server = socket.create_connection((self._target, port), timeout=POLL_S)
        except OSError:
            client.close()
            return
        with client, server:
            client.settimeout(None)
            first = client.recv(READ_BYTES)
            hurt = self._named in first
            self.hurt_connections += hurt
            ended = threading.Event()
            server.sendall(first)
            back = threading.Thread(target=self._pump, args=(server, client, hurt, hurt, ended), daemon=True)
            back.start()
            self._pump(client, server, hurt, False, ended)
            back.join()

    def _pump(self, source: socket.socket, to: socket.socket, hurt: bool, flips: bool, ended: threading.Event) -> None:
        """Bytes of one direction, in order, each at its time."""
        waiting: deque[tuple[float, bytes]] = deque()
        passed = 0
        try:
            while not self._closing.is_set() and not ended.is_set():
                due_s = waiting[0][0] - time.monotonic() if waiting else POLL_S
                if waiting and due_s <= 0:
                    to.settimeout(None)
                    to.sendall(waiting.popleft()[1])
                    continue
                source.settimeout(max(0.001, min(due_s, POLL_S)))
                try:
                    data = source.recv(READ_BYTES)
                except TimeoutError:
                    continue
                if not data:
                    break
                if flips and self.flips_left and passed > FLIP_AFTER_BYTES:
                    changed = bytearray(data)
                    changed[len(data) // 2] ^= 1
                    data, self.flips_left = bytes(changed), self.flips_left - 1
                passed += len(data)
                waiting.append((time.monotonic() + (self.delay_s if hurt else 0.0), data))
        except OSError:
            pass
        ended.set()
