"""The ports that this machine gives to outgoing connections: a listener should not have one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

EPHEMERAL_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def outgoing_ports() -> tuple[int, int]:
    """The first and the last port that this machine gives to outgoing connections; (0, -1) where it does not say."""
    try:
        first, last = map(int, EPHEMERAL_RANGE.read_text().split())
    except (OSError, ValueError):
        return 0, -1
    return first, last
