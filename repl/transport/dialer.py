"""Keeps one connection to one node: dials, waits until it ends, and dials again after a pause.

The pause doubles after each failed attempt and is drawn from its upper half, so that nodes do not dial in step; a
connection that was up for the longest pause resets it. After such a connection the first pause is REDIAL_S, since a
refused dial proves that the other process is gone (docs/protocol.md R-SUSPECT). A failure is logged when its reason
changes, not each time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from random import Random
from typing import Final

import structlog

from isthmus.repl.machine import machine
from isthmus.repl.security.tls import SHUTDOWN_TIMEOUT_S, tls_failure
from isthmus.repl.transport.connection import ConnectionOwner, PeerConnection
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

FIRST_PAUSE_PART: Final = 20
"""The first pause is the longest one divided by this."""

REDIAL_S: Final = 0.01
"""Pause after a connection that was up for the longest pause: a process that ends closes its sockets one after the
other, within a few milliseconds. At most one such dial in each longest pause."""

ADDRESSES_MAX: Final = 16
"""Most addresses of one name that are probed; a name with more is never taken for refused."""


def host_and_port(address: str) -> tuple[str, int]:
    """(host, port) of HOST:PORT, where HOST may be an IPv6 address in brackets. Raises ValueError."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is not HOST:PORT, with a port from 1 to 65535")
    return host, int(port)


class Dialler:
    """Dials `node` at `address` while `run` runs, for connections of `owner`. `context` returns the TLS context of each
    attempt (None: no TLS)."""

    def __init__(
        self,
        node: str,
        address: str,
        owner: ConnectionOwner,
        *,
        timeout_ms: int,
        delay_max_ms: int,
        random: Random,
        context: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self.node = node
        self.address = address
        self._owner = owner
        self._timeout_s = timeout_ms / 1000
        self._delay_max_s = delay_max_ms / 1000
        self._random = random
        self._context = context
        self._last_failure = ""

    async def run(self) -> None:
        """Run until cancelled, which closes the connection."""
        loop = asyncio.get_running_loop()
        first_s = self._delay_max_s / FIRST_PAUSE_PART
        delay_s = first_s
        while True:
            began_s = loop.time()
            try:
                was_up, why = await self._one_connection()
            except Exception as error:  # it is dialled again: a node that nobody dials is cut off
                unforeseen.exception("transport.dial_bug", error, peer=self.node)
                was_up, why = False, f"{type(error).__name__} in this program"
            if was_up:
                self._last_failure = ""
            elif why != self._last_failure:
                self._last_failure = why
                log.warning("transport.dial.failed", peer=self.node, address=self.address, reason=why)
            if loop.time() - began_s >= self._delay_max_s:
                delay_s = first_s
                if was_up:
                    await asyncio.sleep(REDIAL_S)
                    continue
            await asyncio.sleep(delay_s * self._random.uniform(0.5, 1.0))
            delay_s = min(self._delay_max_s, delay_s * 2)

    async def _one_connection(self) -> tuple[bool, str]:
        """Dial once; returns whether the connection was ever up, and why it failed or ended."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def on_lost() -> None:
            if not ended.done():
                ended.set_result(None)

        begun: list[PeerConnection] = []
        connection: PeerConnection | None = None

        def begin() -> PeerConnection:
            begun.append(PeerConnection(self._owner, self.node, on_lost))
            return begun[-1]

        try:
            host, port = host_and_port(self.address)
            async with asyncio.timeout(self._timeout_s):
                context = None if self._context is None else self._context()
                _, connection = await loop.create_connection(
                    begin,
                    host,
                    port,
                    ssl=context,
                    ssl_handshake_timeout=None if context is None else self._timeout_s + 1,  # asyncio.timeout is first
                    ssl_shutdown_timeout=None if context is None else SHUTDOWN_TIMEOUT_S,
                )
            await ended
            return connection.was_up, connection.why
        except TimeoutError:
            return False, f"no connection within {self._timeout_s:g} s"
        except ConnectionRefusedError as error:
            self._owner.refused(self.node)
            return False, str(error)
        except OSError as error:
            if error.errno is None and await self._refused_everywhere():
                self._owner.refused(self.node)
            in_handshake = self._context is not None and isinstance(error, ssl.SSLError | ConnectionError)
            return False, f"TLS: {tls_failure(error).words}" if in_handshake else str(error)
        except ValueError as error:
            return False, str(error)
        finally:
            for each in begun:
                each.close("no longer needed")
                if each is not connection:
                    each.abandoned()

    async def _refused_everywhere(self) -> bool:
        """True if every address of a name that has several refuses a connection: one error then stands for all."""
        loop = asyncio.get_running_loop()
        host, port = host_and_port(self.address)
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                for family, kind, protocol, _, address in found[:ADDRESSES_MAX]:
                    with machine().socket(family, kind, protocol) as probe:
                        probe.setblocking(False)
                        try:
                            await loop.sock_connect(probe, address)
                        except ConnectionRefusedError:
                            continue
                        return False
        except OSError:  # also TimeoutError
            return False
        return 0 < len(found) <= ADDRESSES_MAX
