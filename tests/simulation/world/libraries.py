"""Libraries in the world: what they ask the system for past the product's ports.

`urllib3` and `httpcore2` ask `select.poll` whether an idle connection was closed, and `ssl.SSLContext.wrap_socket` for
TLS, both of which know descriptors of the real system only. Real sockets are passed on. APScheduler asks `datetime` for
the time, the Python client and the connections of `httpcore2` ask `time`.
"""

from __future__ import annotations

import select
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, tzinfo
from typing import Any
from unittest import mock

from apscheduler.executors import base as executors
from apscheduler.schedulers import base as schedulers
from httpcore2._async import http11 as connections
from urllib3.util.ssltransport import SSLTransport

from isthmus.client import options
from isthmus.repl.machine import machine as product_machine
from tests.simulation.world.sockets import VirtualSocket

_real_poll = select.poll
_real_wrap = ssl.SSLContext.wrap_socket


@contextmanager
def libraries_in_the_world() -> Iterator[None]:
    """Within it libraries work on virtual sockets, too, and read the clock of the machine that runs."""
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(select, "poll", _Poll))
        patches.enter_context(mock.patch.object(ssl.SSLContext, "wrap_socket", _wrap_socket))
        for timed in (options, connections):
            patches.enter_context(mock.patch.object(timed, "time", _MachineTime))
        for dated in (schedulers, executors):
            patches.enter_context(mock.patch.object(dated, "datetime", _MachineDatetime))
        yield


class _MachineTime:
    """`time` of the Python client's options, which look at a token's file once a second, and of its connections, which
    end when they were idle for long."""

    @staticmethod
    def monotonic() -> float:
        """The time by the machine's clock; 0 before it runs, when clients are made."""
        machine = product_machine()
        return machine.monotonic_s() if getattr(machine, "network", None) is not None else 0.0


class _MachineDatetime(datetime):
    """See datetime."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        """The time by the machine's wall clock."""
        return datetime.fromtimestamp(product_machine().wall_ns() / 1e9, tz)


class _Poll:
    """See select.poll; virtual sockets are asked without waiting."""

    def __init__(self) -> None:
        self._real = _real_poll()
        self._sockets: dict[VirtualSocket, int] = {}

    def register(self, of: Any, mask: int = select.POLLIN | select.POLLPRI | select.POLLOUT) -> None:
        found = _socket_of(of)
        if found is None:
            self._real.register(of, mask)
        else:
            self._sockets[found] = mask

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        if not self._sockets:
            return self._real.poll(timeout)
        found = []
        for sock, mask in self._sockets.items():
            events = (mask & select.POLLIN if sock.readable else 0) | (mask & select.POLLOUT if sock.writable else 0)
            if events:
                found.append((sock.fileno(), events))
        assert found or timeout == 0, "nobody waits for a virtual socket by polling"
        return found


def _socket_of(of: Any) -> VirtualSocket | None:
    """The virtual socket of a number, or of what has one, in the process that runs now."""
    if isinstance(of, VirtualSocket):
        return of
    machine: Any = product_machine()
    network = getattr(machine, "network", None)
    if network is None:
        return None
    found = network.host(machine).descriptors.get(of if isinstance(of, int) else of.fileno())
    return found if isinstance(found, VirtualSocket) else None


class VirtualTlsSocket(SSLTransport):
    """TLS over a virtual socket, for blocking code. What it does not have is the socket's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.socket, name)


def _wrap_socket(
    context: ssl.SSLContext,
    sock: Any,
    server_side: bool = False,
    do_handshake_on_connect: bool = True,
    suppress_ragged_eofs: bool = True,
    server_hostname: str | None = None,
    session: ssl.SSLSession | None = None,
) -> Any:
    """See ssl.SSLContext.wrap_socket; over a virtual socket for clients only."""
    if not isinstance(sock, VirtualSocket):
        return _real_wrap(
            context, sock, server_side, do_handshake_on_connect, suppress_ragged_eofs, server_hostname, session
        )
    assert not server_side
    assert do_handshake_on_connect
    return VirtualTlsSocket(sock, context, server_hostname, suppress_ragged_eofs)
