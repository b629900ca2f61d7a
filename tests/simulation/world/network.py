"""The network of the simulated world: hosts, the ways between them, and what breaks them.

Latency is drawn for each message: small between machines of one place (a cluster), larger between places. The modules
below: `tcp` (connections), `sockets` (what a process has of them), `transports` (what its event loop makes of them).
"""

from __future__ import annotations

import ipaddress
import socket as sockets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.world.sockets import VirtualSocket
from tests.simulation.world.tcp import MS, SECOND, Dial, End, Host, Way
from tests.simulation.world.transports import NetworkLoop, VirtualTransport

if TYPE_CHECKING:
    from tests.simulation.world.kernel import Kernel
    from tests.simulation.world.machine import VirtualMachine

__all__ = ["End", "Network", "NetworkLoop", "VirtualSocket", "VirtualTransport"]

SELF_NS: Final = (20_000, 60_000)
"""Latency of a machine's connections with itself."""

NEAR_NS: Final = (100_000, MS)
"""Latency within a place."""

FAR_NS: Final = (4 * MS, 40 * MS)
"""Latency between places: each pair of machines has its own part of this range."""

FAR_SPREAD: Final = 1.25
"""The longest latency between two machines of different places, as a multiple of the shortest."""

GIVE_UP_NS: Final = 924 * SECOND
"""A connection whose data are not acknowledged fails after this: Linux' 15 attempts (tcp_retries2)."""

RESOLUTION_S: Final = 0.001
"""Longest resolution of a name."""


def place_of(address: str) -> str:
    """Machines with the same first two numbers of their address are in one place."""
    return address.rpartition(".")[0].rpartition(".")[0]


class Network:
    """All machines' network."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        near_ns: tuple[int, int] = NEAR_NS,
        far_ns: tuple[int, int] = FAR_NS,
        give_up_ns: int = GIVE_UP_NS,
    ) -> None:
        self._kernel = kernel
        self._near_ns = near_ns
        self._far_ns = far_ns
        self._give_up_ns = give_up_ns
        self._hosts: dict[str, Host] = {}
        self._ways: dict[tuple[str, str], Way] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._loss = 0.0

    # Machines

    def host(self, machine: VirtualMachine) -> Host:
        """What a machine has of the network."""
        found = self._hosts.get(machine.address)
        if found is None:
            found = self._hosts[machine.address] = Host(machine)
            self._names.setdefault(machine.name, (machine.address,))
            for way in self._ways.values():
                if way.target is None and way.address == machine.address:
                    way.target = found
                    way.update()
        return found

    def machine_up(self, machine: VirtualMachine) -> None:
        """The machine has power, and a new process."""
        host = self.host(machine)
        host.machine = machine
        host.lacks_descriptors = False
        self._power(host, True)

    def process_died(self, machine: VirtualMachine) -> None:
        """Its kernel closes the connections of the process: those with unread bytes by a reset, the others by an end
        or a reset, as the seed says. Dials are refused from now on."""
        host = self.host(machine)
        for listening in list(host.listeners.values()):
            listening.close()
        for end in list(host.ends):
            end.close(reset=self._kernel.random.random() < 0.5)
        host.descriptors.clear()

    def power_lost(self, machine: VirtualMachine) -> None:
        """The machine answers nothing until it is up; then it answers what belongs to old connections with resets."""
        host = self.host(machine)
        self._power(host, False)
        for listening in list(host.listeners.values()):
            listening.watcher = None
            listening.accepted.clear()
        host.listeners.clear()
        for end in list(host.ends):
            end.lose_power()
        host.descriptors.clear()

    def _power(self, host: Host, up: bool) -> None:
        host.up = up
        for way in list(self._ways.values()):
            if way.target is host:
                way.update()

    def name(self, name: str, *addresses: str) -> None:
        """`name` resolves to these addresses from now on; without any it cannot be resolved."""
        self._names[name] = addresses

    # Ways

    def way(self, source: str, target: str) -> Way:
        """From one address to another."""
        found = self._ways.get((source, target))
        if found is None:
            if source == target:
                low_ns, high_ns = SELF_NS
            elif place_of(source) == place_of(target):
                low_ns, high_ns = self._near_ns
            else:
                low_ns, high_ns = self._far(source, target)
            found = self._ways[source, target] = Way(self._kernel, target, self._hosts.get(target), low_ns, high_ns)
            found.loss = self._loss if source != target else 0.0
        return found

    def _far(self, source: str, target: str) -> tuple[int, int]:
        back = self._ways.get((target, source))
        if back is not None:
            return back.latency_ns
        first_ns, last_ns = self._far_ns
        low_ns = first_ns + int(self._kernel.random.random() * (last_ns / FAR_SPREAD - first_ns))
        return low_ns, int(low_ns * FAR_SPREAD)

    def _between(self, one: VirtualMachine, other: VirtualMachine) -> tuple[Way, Way]:
        return self.way(one.address, other.address), self.way(other.address, one.address)

    # What breaks, and heals

    def cut(self, one: VirtualMachine, other: VirtualMachine) -> None:
        """Nothing passes between two machines."""
        for way in self._between(one, other):
            way.cut = True
            way.update()

    def cut_one_way(self, source: VirtualMachine, target: VirtualMachine) -> None:
        """Nothing passes from `source` to `target`, also no acknowledgement; the other direction is open."""
        way = self.way(source.address, target.address)
        way.cut = True
        way.update()

    def heal(self, one: VirtualMachine | None = None, other: VirtualMachine | None = None) -> None:
        """Two machines reach each other again as usual, in both directions; without arguments undo everything that
        this part of the class broke."""
        if one is not None and other is not None:
            ways = list(self._between(one, other))
        else:
            ways = list(self._ways.values())
            self._loss = 0.0
            for host in self._hosts.values():
                host.refused_ports.clear()
                host.dropped_ports.clear()
                host.lacks_descriptors = False
                for end in host.ends:
                    if end.established:
                        end.outgoing.bytes_per_s = None
        for way in ways:
            way.cut = False
            way.loss = self._loss
            way.speed_up()
            way.update()

    def refuse(self, machine: VirtualMachine, port: int | None = None, refused: bool = True) -> None:
        """Dials to a port (None: to any) of a machine are refused, or not any more."""
        _put(self.host(machine).refused_ports, port, refused)

    def drop_dials(self, machine: VirtualMachine, port: int | None = None, dropped: bool = True) -> None:
        """Dials to a port (None: to any) of a machine get no answer, or get one again."""
        _put(self.host(machine).dropped_ports, port, dropped)

    def slow_reader(self, end: End, bytes_per_s: float | None = 1_000.0) -> None:
        """This end of a connection takes what is sent to it from now on only so fast; None: at once again."""
        end.incoming.bytes_per_s = bytes_per_s
        if bytes_per_s is None:
            end.incoming.hurry()

    def lose(self, probability: float, one: VirtualMachine | None = None, other: VirtualMachine | None = None) -> None:
        """Packets get lost with this probability, below 1: between two machines, or between all."""
        if one is not None and other is not None:
            for way in self._between(one, other):
                way.loss = probability
            return
        self._loss = probability
        for (source, target), way in self._ways.items():
            way.loss = probability if source != target else 0.0

    def stall(self, one: VirtualMachine, other: VirtualMachine, seconds: float) -> None:
        """What is sent between two machines within this time arrives at its end."""
        for way in self._between(one, other):
            way.stalled_until_ns = self._kernel.now_ns + round(seconds * SECOND)

    def bandwidth(self, source: VirtualMachine, target: VirtualMachine, bytes_per_s: float | None) -> None:
        """Limit what all connections together send from `source` to `target`; None: no limit."""
        way = self.way(source.address, target.address)
        way.speed_up()
        way.bytes_per_s = bytes_per_s

    def reset(self, end: End) -> None:
        """Something between the two machines breaks a connection: both ends get a reset."""
        other = end.other
        for each in (end, other):
            each.reset_by_network()

    def lack_descriptors(self, machine: VirtualMachine, lacking: bool = True) -> None:
        """The process gets no descriptor for another socket (EMFILE), or gets them again."""
        self.host(machine).lacks_descriptors = lacking

    def connections(self) -> list[End]:
        """The dialling end of each established connection, in the order of their dials for each machine."""
        return [end for host in self._hosts.values() for end in host.ends if end.dialled and end.works]

    # The functions of `socket`

    def socket(
        self, machine: VirtualMachine, family: int = sockets.AF_INET, kind: int = sockets.SOCK_STREAM, proto: int = 0
    ) -> VirtualSocket:
        """A new socket. Raises OSError for anything but TCP over IPv4."""
        if family != sockets.AF_INET or kind & 0xF != sockets.SOCK_STREAM:
            raise OSError(97, f"the simulated network has TCP over IPv4 only, not {family}, {kind}")
        return VirtualSocket(self, self.host(machine))

    def socket_of(self, machine: VirtualMachine, of: Any) -> VirtualSocket:
        """A socket, or that of a number in the machine's process."""
        found = of if isinstance(of, VirtualSocket) else self.host(machine).descriptors.get(of)
        if not isinstance(found, VirtualSocket):
            raise OSError(9, f"no socket of {machine.name} has the number {of}")
        return found

    def dial(
        self, host: Host, bound: tuple[str, int] | None, address: tuple[str, int], done: Callable[[int], None]
    ) -> End:
        """Begin to connect; `done` gets the errno of a failure, or 0."""
        target = address[0]
        if target in ("localhost", "0.0.0.0"):
            target = "127.0.0.1"
        own = target.startswith("127.")
        if not self.is_address(target):
            target = self.resolve(host.machine, target)[0]
        port = bound[1] if bound is not None else host.free_port()
        end = End(host, ("127.0.0.1" if own else host.address, port), (target, address[1]), dialled=True)
        there = host.address if own else target
        way, back = self.way(host.address, there), self.way(there, host.address)
        Dial(self._kernel, end, way, back, self._give_up_ns, done)
        return end

    def create_connection(
        self, machine: VirtualMachine, address: tuple[str, int], timeout: float | None
    ) -> VirtualSocket:
        """See socket.create_connection; blocks."""
        failure: OSError | None = None
        for info in self.getaddrinfo(machine, address[0], address[1], type=sockets.SOCK_STREAM):
            sock = self.socket(machine)
            try:
                sock.settimeout(timeout)
                sock.connect(info[4])
            except OSError as error:
                failure = error
                sock.close()
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        assert failure is not None
        raise failure

    # Names

    @staticmethod
    def is_address(host: Any) -> bool:
        """It needs no resolution."""
        if host is None:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True

    def resolution_s(self) -> float:
        """How long a name takes."""
        return self._kernel.random.random() * RESOLUTION_S

    def resolve(self, machine: VirtualMachine, name: str) -> tuple[str, ...]:
        """The addresses of a name. Raises socket.gaierror."""
        if name == "localhost":
            return ("127.0.0.1",)
        found = self._names.get(name, ())
        if not found and name == machine.name:
            found = (machine.address,)
        if not found:
            raise sockets.gaierror(sockets.EAI_NONAME, "Name or service not known")
        return found

    def getaddrinfo(
        self, machine: VirtualMachine, host: Any, port: Any, *, type: int = 0, flags: int = 0
    ) -> list[tuple[Any, Any, int, str, Any]]:
        """See socket.getaddrinfo."""
        if isinstance(host, bytes):
            host = host.decode("idna")
        if not host:
            found: tuple[str, ...] = ("0.0.0.0" if flags & sockets.AI_PASSIVE else "127.0.0.1",)
        elif self.is_address(host):
            if ":" in host:
                raise sockets.gaierror(sockets.EAI_ADDRFAMILY, "Address family for hostname not supported")
            found = (host,)
        else:
            found = self.resolve(machine, host)
        number = int(port) if port else 0
        return [(sockets.AF_INET, sockets.SOCK_STREAM, sockets.IPPROTO_TCP, "", (each, number)) for each in found]


def _put(ports: set[int | None], port: int | None, there: bool) -> None:
    if there:
        ports.add(port)
    else:
        ports.discard(port)
