"""Sockets of the simulated world, for blocking code in greenlets and for the event loop of their machine.

A VirtualSocket has what product code, `http.client` and `urllib3` use of `socket.socket`. A blocking call lets the
machine's other greenlets go on while it waits.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.world.tcp import End, Host, Listening, failure

if TYPE_CHECKING:
    from tests.simulation.world.kernel import Waiter
    from tests.simulation.world.machine import VirtualMachine
    from tests.simulation.world.network import Network

FIRST_DESCRIPTOR: Final = 64
"""Number of a process's first socket. Each gets the lowest number that is free, as on a real machine: limits of open
files are kept by it."""

BACKLOG_MAX: Final = 4_096
"""Most connections that wait to be accepted, whatever is asked for: Linux' somaxconn."""


class VirtualSocket:
    """A TCP socket of one process. See `socket.socket` for the methods."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM

    def __init__(self, network: Network, host: Host, end: End | None = None) -> None:
        if host.lacks_descriptors:
            raise failure(errno.EMFILE)
        self.proto = socket.IPPROTO_TCP
        self.network = network
        self.end = end
        self.listening: Listening | None = None
        self._host = host
        self._machine: VirtualMachine = host.machine
        self._timeout_s: float | None = None
        self._bound: tuple[str, int] | None = None
        self._failed = 0
        self._input_watches: list[Callable[[], object]] = []
        self._output_watches: list[Callable[[], object]] = []
        self._io_refs = 0
        self._released = False
        """Its owner closed it; files made of it may still be open."""
        self._closed = False
        number = FIRST_DESCRIPTOR
        while number in host.descriptors:
            number += 1
        self._number = number
        host.descriptors[number] = self
        if end is not None:
            end.watcher = self

    # Readiness

    @property
    def readable(self) -> bool:
        """A read or an accept would not block."""
        if self.listening is not None:
            return bool(self.listening.accepted)
        return self.end is None or self.end.readable

    @property
    def writable(self) -> bool:
        """A write would not block."""
        return bool(self._failed) or (self.end is not None and self.end.writable)

    def input_ready(self) -> None:
        """There is something to read or to accept."""
        if self._input_watches:
            watches, self._input_watches = self._input_watches, []
            for each in watches:
                each()

    def output_ready(self) -> None:
        """There is room to write."""
        if self._output_watches:
            watches, self._output_watches = self._output_watches, []
            for each in watches:
                each()

    def watch(self, callback: Callable[[], object], *, output: bool = False) -> None:
        """Call `callback` once, when the socket becomes readable, or writable."""
        (self._output_watches if output else self._input_watches).append(callback)
        if output and self.end is not None and self.end.established:
            self.end.outgoing.sender_waits = True

    def unwatch(self, callback: Callable[[], object], *, output: bool = False) -> None:
        """`callback` is not called any more."""
        watches = self._output_watches if output else self._input_watches
        if callback in watches:
            watches.remove(callback)

    def _wait(self, end_s: float | None, *, output: bool = False) -> None:
        """Suspend the greenlet until the socket is ready, or may be."""
        left_s = None if end_s is None else end_s - self._machine.monotonic_s()
        if left_s is not None and left_s <= 0:
            raise TimeoutError("timed out")
        waiter: Waiter = self._machine.waiter()
        self.watch(waiter.wake, output=output)
        woken = waiter.wait(left_s)
        self.unwatch(waiter.wake, output=output)
        if self._closed:
            raise failure(errno.EBADF)
        if not woken:
            raise TimeoutError("timed out")

    def _end_s(self) -> float | None:
        return None if self._timeout_s is None else self._machine.monotonic_s() + self._timeout_s

    def _open_end(self) -> End:
        if self._closed:
            raise failure(errno.EBADF)
        if self.end is None:
            raise failure(errno.ENOTCONN)
        return self.end

    # Names and options

    def fileno(self) -> int:
        """Its number, unique in its process; -1 once it is closed."""
        return -1 if self._closed else self._number

    def setsockopt(self, *_: Any) -> None:
        """Nothing depends on options."""
        if self._closed:
            raise failure(errno.EBADF)

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        """SO_TYPE and SO_ERROR; 0 for every other one."""
        if self._closed:
            raise failure(errno.EBADF)
        if level == socket.SOL_SOCKET and option == socket.SO_TYPE:
            return int(socket.SOCK_STREAM)
        if level == socket.SOL_SOCKET and option == socket.SO_ERROR:
            if self._failed:
                number, self._failed = self._failed, 0
                return number
            return 0 if self.end is None else self.end.take_error()
        return bytes(size) if size else 0

    def setblocking(self, flag: bool) -> None:
        self._timeout_s = None if flag else 0.0

    def getblocking(self) -> bool:
        return self._timeout_s != 0.0

    def settimeout(self, value: float | None) -> None:
        self._timeout_s = value

    def gettimeout(self) -> float | None:
        return self._timeout_s

    def getsockname(self) -> tuple[str, int]:
        if self._closed:
            raise failure(errno.EBADF)
        if self.end is not None:
            return self.end.local
        return self._bound or ("0.0.0.0", 0)

    def getpeername(self) -> tuple[str, int]:
        end = self._open_end()
        if not end.works:
            raise failure(errno.ENOTCONN)
        return end.remote

    # Listening

    def bind(self, address: tuple[str, int]) -> None:
        host, port = address[0], address[1]
        if host == "localhost":
            host = "127.0.0.1"
        if host == "":
            host = "0.0.0.0"
        if host not in ("0.0.0.0", self._host.address) and not host.startswith("127."):
            raise failure(errno.EADDRNOTAVAIL)
        if port in self._host.listeners:
            raise failure(errno.EADDRINUSE)
        self._bound = host, port or self._host.free_port()

    def listen(self, backlog: int = 128) -> None:
        if self._closed:
            raise failure(errno.EBADF)
        limit = min(max(1, backlog), BACKLOG_MAX)
        if self.listening is not None:
            self.listening.limit = limit
            return
        if self._bound is None:
            self.bind(("0.0.0.0", 0))
        assert self._bound is not None
        if self._bound[1] in self._host.listeners:
            raise failure(errno.EADDRINUSE)
        self.listening = self._host.listeners[self._bound[1]] = Listening(self._host, self._bound, limit)
        self.listening.watcher = self

    def accept(self) -> tuple[VirtualSocket, tuple[str, int]]:
        listening = self.listening
        if self._closed:
            raise failure(errno.EBADF)
        if listening is None:
            raise failure(errno.EINVAL)
        end_s = self._end_s()
        while not listening.accepted:
            if self._timeout_s == 0.0:
                raise failure(errno.EAGAIN)
            self._wait(end_s)
        if self._host.lacks_descriptors:
            raise failure(errno.EMFILE)
        end = listening.accepted.popleft()
        return VirtualSocket(self.network, self._host, end), end.remote

    # Connecting

    def connect(self, address: tuple[str, int]) -> None:
        end_s = self._end_s()
        self.dial(address)
        if self._timeout_s == 0.0:
            raise failure(errno.EINPROGRESS)
        end = self._open_end()
        while not end.established and not self._failed:
            self._wait(end_s, output=True)
        if self._failed:
            number, self._failed = self._failed, 0
            raise failure(number)

    def connect_ex(self, address: tuple[str, int]) -> int:
        try:
            self.connect(address)
        except OSError as error:
            if error.errno is None:
                return errno.EAGAIN
            return error.errno
        return 0

    def dial(self, address: tuple[str, int]) -> None:
        """Begin to connect: the socket becomes writable, or `take_failure` has an errno."""
        if self._closed:
            raise failure(errno.EBADF)
        if self.end is not None:
            raise failure(errno.EISCONN if self.end.established else errno.EALREADY)
        self.end = self.network.dial(self._host, self._bound, (address[0], address[1]), self._dialled)
        self.end.watcher = self

    def _dialled(self, number: int) -> None:
        if number:
            self._failed = number
            assert self.end is not None
            self.end.close()
            self.end = None
        self.output_ready()

    @property
    def connecting(self) -> bool:
        """A dial is under way."""
        return self.end is not None and not self.end.established

    def take_failure(self) -> int:
        """The errno of a dial that failed, once; else 0."""
        number, self._failed = self._failed, 0
        return number

    # Bytes

    def recv(self, size: int, flags: int = 0) -> bytes:
        end = self._open_end()
        if not end.readable:
            self._await_input(end)
        return end.read(size, bool(flags & socket.MSG_PEEK))

    def _await_input(self, end: End) -> None:
        if self._timeout_s == 0.0:
            return  # the read raises BlockingIOError
        end_s = self._end_s()
        while not end.readable:
            if not end.established:
                raise failure(errno.ENOTCONN)
            self._wait(end_s)

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        view = memoryview(buffer).cast("B")
        data = self.recv(size or len(view), flags)
        view[: len(data)] = data
        return len(data)

    def send(self, data: Any, flags: int = 0) -> int:
        end = self._open_end()
        view = data if isinstance(data, bytes) else memoryview(data).cast("B")
        end_s = self._end_s()
        while True:
            try:
                return end.write(view)
            except BlockingIOError:
                if self._timeout_s == 0.0:
                    raise
            self._wait(end_s, output=True)

    def sendall(self, data: Any, flags: int = 0) -> None:
        view = memoryview(data).cast("B")
        end_s = self._end_s()
        end = self._open_end()
        sent = 0
        while sent < len(view):
            try:
                sent += end.write(view[sent:] if sent else view)
            except BlockingIOError:
                if self._timeout_s == 0.0:
                    raise
                self._wait(end_s, output=True)

    # Ending

    def shutdown(self, how: int) -> None:
        end = self._open_end()
        if not end.works:
            raise failure(errno.ENOTCONN)
        if how in (socket.SHUT_WR, socket.SHUT_RDWR):
            end.shut_down()
        if how in (socket.SHUT_RD, socket.SHUT_RDWR):
            end.ended = True
            self.input_ready()

    def let_go(self) -> None:
        """Refer to nothing any more; the world is over. Closing it changes nothing then."""
        self.__dict__.clear()
        self._closed, self._io_refs = True, 1

    def close(self) -> None:
        self._released = True
        if self._io_refs <= 0:
            self._close()

    def _decref_socketios(self) -> None:
        if self._io_refs > 0:
            self._io_refs -= 1
        if self._released:
            self.close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._host.descriptors.get(self._number) is self:
            del self._host.descriptors[self._number]
        if self.listening is not None:
            self.listening.close()
        if self.end is not None:
            self.end.close()
        self.input_ready()
        self.output_ready()

    def detach(self) -> int:
        """The number; the connection stays open, and belongs to nobody."""
        number = self.fileno()
        self._closed = True
        return number

    makefile = socket.socket.makefile

    def __enter__(self) -> VirtualSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self._bound if self.end is None else f"{self.end.local} -> {self.end.remote}"
        return f"<VirtualSocket {self._number} of {self._machine.name}: {where}>"
