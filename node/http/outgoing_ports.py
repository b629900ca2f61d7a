"""The port range of this machine's outgoing connections, which listeners should avoid."""

from __future__ import annotations

from pathlib import Path
from typing import Final

EPHEMERAL_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def outgoing_ports() -> tuple[int, int]:
    """The first and last port of outgoing connections; (0, -1) if the kernel does not report them."""
    try:
        first, last = map(int, EPHEMERAL_RANGE.read_text().split())
    except (OSError, ValueError):
        return 0, -1
    return first, last
