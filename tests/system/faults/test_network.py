"""The network of namespaces that tests cut and slow."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Final

import pytest

from tests.system.faults.network import Network

ANNOUNCED_S: Final = 3.0
"""After this time the kernel has announced every address of a new device: an automatic one follows in 1 to 2
seconds."""


def addresses(pid: int) -> list[str]:
    """The addresses of this machine, without its namespaces, on devices that a process made."""
    known = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    return [line for line in known.splitlines() if f" isth{pid:x}" in line]


@pytest.mark.root
@pytest.mark.network
def test_addresses_come_and_go_with_the_network_alone() -> None:
    """No address appears after a network was made, when tests with pages may run, and none of its addresses is left."""
    with Network(["one", "two"]):
        made = addresses(os.getpid())
        time.sleep(ANNOUNCED_S)
        assert addresses(os.getpid()) == made
        assert len(made) == 1
    assert addresses(os.getpid()) == []
