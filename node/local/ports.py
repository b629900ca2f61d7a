"""Free ports on loopback, chosen once and stored in a directory, so that later starts use the same ports.

They lie below the kernel's range for outgoing connections: an outgoing connection could take the port of a server that
restarts. A port that was chosen stays reserved: others who choose at the same time, in this process or another one, do
not get it, though its server listens only seconds later.
"""

from __future__ import annotations

import atexit
import json
import random
import socket
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from isthmus.node.http.outgoing_ports import EPHEMERAL_RANGE
from isthmus.repl.metastore.embedded_zookeeper import HOST
from isthmus.repl.model.errors import LocalFault

RANGE_LOW: Final = 20_000
"""Above the well-known ports."""

RESERVATIONS_MAX: Final = 128
"""Ports that a process keeps reserved at once, a descriptor each; the servers of the oldest ones listen by then."""

_reservations: Final[deque[socket.socket]] = deque()


class PortAllocator:
    """The ports of one directory by purpose, stored in `ports.json`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "ports.json"
        try:
            raw = json.loads(self._path.read_bytes())
            self._ports = {str(purpose): int(port) for purpose, port in raw.items()}
        except FileNotFoundError:
            self._ports = {}
        except (ValueError, AttributeError, TypeError) as error:
            raise LocalFault(f"{self._path} is not a list of ports ({error}); remove it to have new ones") from error

    def ports(self, purposes: Iterable[str], in_use: Iterable[str] = (), taken: Iterable[int] = ()) -> dict[str, int]:
        """A port for each purpose: the stored one unless another program listens there, else a free one.

        Children of this directory listen on the ports of `in_use`, which stay; ports in `taken` are not given out.
        Raises LocalFault, OSError.
        """
        ours, given = set(in_use), set(taken)
        kept: dict[str, int] = {}
        for purpose in purposes:
            port = self._ports.get(purpose)
            if port is None or port in given or (purpose not in ours and not is_free(port)):
                port = free_port(given | set(self._ports.values()))
            kept[purpose] = port
            given.add(port)
        self._ports.update(kept)
        fresh = self._path.with_name(f"{self._path.name}.tmp")
        fresh.write_text(json.dumps(self._ports, indent=1))
        fresh.replace(self._path)
        return kept


@atexit.register
def _release() -> None:
    while _reservations:
        _reservations.pop().close()


def is_free(port: int) -> bool:
    """True when a server could listen on loopback `port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as servers do: closed connections that linger do not count
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
    return True


def _reserve(port: int) -> bool:
    """False when the port is not free. A server can listen on a reserved port, but nobody else can reserve it: the
    socket is bound while it shares the port with nobody, and shares it afterwards, as servers do."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.bind((HOST, port))
    except OSError:
        sock.close()
        return False
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _reservations.append(sock)
    if len(_reservations) > RESERVATIONS_MAX:
        _reservations.popleft().close()
    return True


def free_port(taken: set[int]) -> int:
    """A port that is free and not among `taken`, reserved for this process. Raises LocalFault when there is none."""
    high = _range_high()
    first = random.randrange(RANGE_LOW, high)  # noqa: S311 - spreads those who choose at the same time
    for offset in range(high - RANGE_LOW):
        port = RANGE_LOW + (first - RANGE_LOW + offset) % (high - RANGE_LOW)
        if port not in taken and _reserve(port):
            return port
    raise LocalFault(f"no free port on {HOST} from {RANGE_LOW} to {high - 1}")


def _range_high() -> int:
    try:
        lowest_outgoing = int(EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        lowest_outgoing = 32_768
    return lowest_outgoing if lowest_outgoing > RANGE_LOW + 1000 else 65_536
