"""Messages to the service manager: ready, reloading, stopping, alive.

The protocol is systemd's (sd_notify(3), sd_watchdog_enabled(3)): lines `NAME=VALUE` in one datagram to the socket that
NOTIFY_SOCKET names. Without that variable nothing is sent. A message that cannot be sent is dropped: the manager's own
time-outs decide then.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from typing import Final

from isthmus.repl.machine import machine

NOTIFY_SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG_USEC: Final = "WATCHDOG_USEC"
WATCHDOG_PID: Final = "WATCHDOG_PID"

STATUS_CHARS_MAX: Final = 200
"""Longest status that is sent; `systemctl status` shows one line."""


class ServiceManager:
    """Sends the state of this process to the service manager of `environment`, which it takes the variables from, so
    that child processes do not report in its place."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ, pid: int | None = None) -> None:
        address = environment.pop(NOTIFY_SOCKET, "")
        watchdog_us = environment.pop(WATCHDOG_USEC, "")
        watchdog_pid = environment.pop(WATCHDOG_PID, "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        own = not watchdog_pid or watchdog_pid == str(machine().pid() if pid is None else pid)
        self.watchdog_interval_s = (
            int(watchdog_us) / 2_000_000 if self._address and own and watchdog_us.isdigit() else 0.0
        )
        """How often `alive` is to be called: half of what the manager waits; 0 if it does not watch."""

    def ready(self, status: str) -> None:
        """The listeners answer; `status` is shown to people."""
        self._send("READY=1", _status(status))

    def status(self, status: str) -> None:
        """Change what is shown to people."""
        self._send(_status(status))

    def reloading(self) -> None:
        """A reload begins; it ends with `ready`."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={int(machine().monotonic_s() * 1e6)}")

    def stopping(self, reason: str) -> None:
        """A graceful stop begins."""
        self._send("STOPPING=1", _status(f"stopping: {reason}"))

    def alive(self) -> None:
        """The event loop turns."""
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with machine().socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as datagrams:
                datagrams.setblocking(False)
                datagrams.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return


def _status(text: str) -> str:
    return f"STATUS={' '.join(text.split())[:STATUS_CHARS_MAX]}"
