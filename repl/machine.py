"""What a process takes from the machine it runs on: clocks, random numbers, threads, sockets, its own end.

Every module that runs in a node takes them from `machine()`, never from `time`, `threading`, `random`, `secrets`,
`uuid` or `socket` itself (checked by tests/project). The one implementation of the product is `SystemMachine`; the
simulated world gives each of its nodes a machine of its own, in virtual time, and installs it for as long as that node
runs. Files have ports of their own (`repl.replog.files`, `repl.store.leveldb`), and so has the metastore.
"""

from __future__ import annotations

import os
import socket as sockets
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from random import Random, SystemRandom
from types import TracebackType
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar, cast

T = TypeVar("T")

MemoryLock = threading.Lock
"""A lock for a few lines over memory, the same on every machine: whoever holds it waits for nothing, neither a file nor
a store, thread, queue or clock. Else it is `Machine.lock`."""


class ThreadEvent(Protocol):
    """See threading.Event."""

    def is_set(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class ThreadLock(Protocol):
    """See threading.Lock."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ThreadQueue(Protocol[T]):
    """See queue.SimpleQueue; `get` raises queue.Empty when its timeout is over."""

    def put(self, item: T) -> None: ...
    def get(self, block: bool = True, timeout: float | None = None) -> T: ...
    def empty(self) -> bool: ...
    def qsize(self) -> int: ...


class RunningThread(Protocol):
    """A started thread."""

    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class Machine(Protocol):
    """A machine, as one process on it sees it."""

    process: dict[object, Any]
    """What exists once in a process (`ProcessWide`)."""

    # Clocks

    def boottime_ns(self) -> int:
        """Nanoseconds on a monotonic clock that counts suspend; only differences are meaningful."""

    def monotonic_s(self) -> float:
        """Seconds on a monotonic clock, the one of the event loop."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970."""

    def perf_s(self) -> float:
        """Seconds on the finest clock, for durations of a few microseconds."""

    def cpu_s(self) -> float:
        """Seconds of CPU that the running thread has taken."""

    def process_cpu_s(self) -> float:
        """Seconds of CPU that all threads of the process have taken."""

    def sleep(self, seconds: float) -> None:
        """Suspend the running thread. Not for the event loop's."""

    # Chance

    def random_bytes(self, count: int) -> bytes:
        """Bytes that nobody can foretell."""

    def random(self) -> Random:
        """Numbers that nobody can foretell."""

    # Threads

    def thread(self, run: Callable[[], None], name: str) -> RunningThread:
        """Start a daemon thread. What `run` raises goes to threading.excepthook."""

    def event(self) -> ThreadEvent: ...
    def lock(self) -> ThreadLock: ...
    def queue(self) -> ThreadQueue[Any]: ...

    # Network: as the functions of `socket` with these names

    def socket(self, family: int, kind: int, proto: int = 0) -> sockets.socket: ...
    def getaddrinfo(
        self, host: str | None, port: int, *, type: int = 0, flags: int = 0
    ) -> list[tuple[Any, Any, int, str, Any]]: ...
    def create_connection(self, address: tuple[str, int], timeout: float | None) -> sockets.socket: ...
    def gethostname(self) -> str: ...

    # The process

    def boot_id(self) -> str:
        """The kernel's id of this boot; after another boot unsynced data may be gone. "" if it has none."""

    def pid(self) -> int: ...

    def exit(self, code: int) -> NoReturn:
        """End the process at once, without cleaning up."""


class SystemMachine:
    """The real one."""

    def __init__(self) -> None:
        self.process: dict[object, Any] = {}
        self._random = SystemRandom()

    def boottime_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    monotonic_s = staticmethod(time.monotonic)
    wall_ns = staticmethod(time.time_ns)
    perf_s = staticmethod(time.perf_counter)
    cpu_s = staticmethod(time.thread_time)
    process_cpu_s = staticmethod(time.process_time)
    sleep = staticmethod(time.sleep)
    random_bytes = staticmethod(os.urandom)

    def random(self) -> Random:
        return self._random

    def thread(self, run: Callable[[], None], name: str) -> RunningThread:
        made = threading.Thread(target=run, name=name, daemon=True)
        made.start()
        return made

    event = staticmethod(threading.Event)
    lock = staticmethod(threading.Lock)

    def queue(self) -> ThreadQueue[Any]:
        return cast("ThreadQueue[Any]", SimpleQueue())

    def socket(self, family: int, kind: int, proto: int = 0) -> sockets.socket:
        return sockets.socket(family, kind, proto)

    def getaddrinfo(
        self, host: str | None, port: int, *, type: int = 0, flags: int = 0
    ) -> list[tuple[Any, Any, int, str, Any]]:
        return sockets.getaddrinfo(host, port, type=type, flags=flags)

    def create_connection(self, address: tuple[str, int], timeout: float | None) -> sockets.socket:
        return sockets.create_connection(address, timeout)

    gethostname = staticmethod(sockets.gethostname)

    def boot_id(self) -> str:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    pid = staticmethod(os.getpid)

    def exit(self, code: int) -> NoReturn:
        os._exit(code)


class _Current:
    """The machine of the code that runs now."""

    machine: Machine = SystemMachine()


_CURRENT: Final = _Current()


def machine() -> Machine:
    """The machine that the running code runs on."""
    return _CURRENT.machine


def install(made: Machine) -> Machine:
    """Make `made` the machine of the code that runs from now on; returns the one before."""
    before, _CURRENT.machine = _CURRENT.machine, made
    return before


class ProcessWide(Generic[T]):
    """Something that exists once in a process, made when it is first wanted."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    def __call__(self) -> T:
        """That of the running process."""
        process = machine().process
        found: T | None = process.get(self)
        if found is None:
            found = process[self] = self._make()
        return found


class _OnePerProcess:
    """Stands for what `found` returns at the time of each use."""

    __slots__ = ("_found_at_use",)

    def __init__(self, found: Callable[[], object]) -> None:
        object.__setattr__(self, "_found_at_use", found)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found_at_use(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._found_at_use(), name, value)


def one_per_process(make: Callable[[], T]) -> T:
    """A name for something that exists once in a process, such as a module's counters: every use of an attribute is one
    of the running process's own. Bind its methods nowhere: they belong to the process that bound them."""
    return cast("T", _OnePerProcess(ProcessWide(make)))


def random_text(count: int) -> str:
    """`count` random bytes as text for a URL, as secrets.token_urlsafe."""
    return urlsafe_b64encode(machine().random_bytes(count)).rstrip(b"=").decode()


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.fromtimestamp(machine().wall_ns() / 1e9, UTC)


def monotonic_s() -> float:
    """See `Machine.monotonic_s`; for what takes a clock, since it may be made on another machine than it is used on."""
    return machine().monotonic_s()
