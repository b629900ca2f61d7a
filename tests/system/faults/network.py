"""A network of hosts on this machine: a namespace each, joined by a bridge, that can be cut and slowed.

Needs root, and the system packages iproute2 and iptables. Names and addresses are this process's own; `close` removes
everything. A cut drops packets silently, as a broken cable does. `tests.system.faults.cluster` assigns processes to
hosts.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Iterable
from types import TracebackType
from typing import Final, NamedTuple, Self

from tests.support.machine_addresses import addresses_change

COMMAND_TIMEOUT_S: Final = 20.0


class Host(NamedTuple):
    """One namespace and its address."""

    name: str
    namespace: str
    address: str

    def command(self) -> list[str]:
        """Prefix of a command line that is to run on this host."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", "--"]


class Network:
    """Some hosts that reach each other and this process. Use as a context manager."""

    def __init__(self, names: Iterable[str]) -> None:
        self._prefix = f"isth{os.getpid():x}"
        self._bridge = f"{self._prefix}b"
        net = _free_network()
        self.address = f"{net}.1"
        """The address of this process, as seen from the hosts."""
        self.hosts = {
            name: Host(name, f"{self._prefix}n{number}", f"{net}.{10 + number}") for number, name in enumerate(names)
        }
        self._made: list[list[str]] = []
        """Commands that undo the set-up, in the order of set-up."""

    def __enter__(self) -> Self:
        try:
            with addresses_change():
                self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _make(self) -> None:
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        self._made.append(["ip", "link", "del", self._bridge])
        self._without_ipv6(self._bridge)
        _run("ip", "addr", "add", f"{self.address}/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        for number, host in enumerate(self.hosts.values()):
            _run("ip", "netns", "add", host.namespace)
            self._made.append(["ip", "netns", "del", host.namespace])
            wire = f"{self._prefix}v{number}"
            _run("ip", "link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
            self._made.append(["ip", "link", "del", wire])
            self._without_ipv6(wire)
            _run("ip", "link", "set", wire, "master", self._bridge, "up")
            _run("ip", "-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _run("ip", "-n", host.namespace, "link", "set", device, "up")

    @staticmethod
    def _without_ipv6(device: str) -> None:
        """Disable automatic addresses on a device that is not yet up.

        The kernel announces such an address more than a second after the device is up, since it first checks that no
        other host has it (RFC 4862, 5.4), long after `addresses_change` has ended.
        """
        _run("ip", "link", "set", device, "addrgenmode", "none")

    def close(self) -> None:
        """Remove everything; processes there must have ended."""
        with addresses_change():
            while self._made:
                subprocess.run(self._made.pop(), capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False)

    def readdress(self, name: str) -> None:
        """Let a host have another address; nothing of it may run."""
        host = self.hosts[name]
        net, _, number = host.address.rpartition(".")
        fresh = host._replace(address=f"{net}.{int(number) + 60 if int(number) < 130 else int(number) - 110}")
        device = ["-n", host.namespace, "addr"]
        # The old one first: where the kernel does not promote secondary addresses, the new one would go with it.
        _run("ip", *device, "del", f"{host.address}/24", "dev", "eth0")
        _run("ip", *device, "add", f"{fresh.address}/24", "dev", "eth0")
        self.hosts[name] = fresh

    def drop(self, source: str, target: str) -> None:
        """Drop everything that `source` sends to `target`; the other direction works."""
        self._iptables(self.hosts[target], "-A", "INPUT", "-s", self.hosts[source].address, "-j", "DROP")

    def lose(self, source: str, target: str, share: float) -> None:
        """This share of the packets from `source` to `target` is lost."""
        match = ["-m", "statistic", "--mode", "random", "--probability", f"{share:g}"]
        self._iptables(self.hosts[target], "-A", "INPUT", "-s", self.hosts[source].address, *match, "-j", "DROP")

    def cut(self, one: str, other: str) -> None:
        """Cut the two hosts from each other."""
        self.drop(one, other)
        self.drop(other, one)

    def slow(self, name: str, rate: str, latency: str = "500ms") -> None:
        """Limit this host's outgoing traffic to `rate` ("64kbit"); packets that would wait longer than `latency` are
        dropped."""
        device = ["-n", self.hosts[name].namespace, "qdisc", "replace", "dev", "eth0", "root"]
        _run("tc", *device, "tbf", "rate", rate, "burst", "16kb", "latency", latency)

    def heal(self) -> None:
        """End all cuts, losses and limits."""
        for host in self.hosts.values():
            self._iptables(host, "-F", "INPUT")
            slowed = ["tc", "-n", host.namespace, "qdisc", "del", "dev", "eth0", "root"]
            subprocess.run(slowed, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False)

    def _iptables(self, host: Host, *words: str) -> None:
        _run(*host.command(), "iptables", "-w", *words)


def _free_network() -> str:
    """The first three numbers of a network that this machine has no address in."""
    known = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    taken = set(re.findall(r"inet (\d+\.\d+\.\d+)\.", known))
    return random.choice([f"10.{a}.{b}" for a in range(200, 250) for b in range(250) if f"10.{a}.{b}" not in taken])


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
