"""One machine of the simulated world: the product's machine port in virtual time.

A machine has one process: an event loop, greenlets for threads, open sockets and files. `kill` ends the process at
once; what it was about to do never happens. `boot` begins another process on the same machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tests.simulation.world.kernel import SECOND, Kernel, Waiter
from tests.simulation.world.loop import VirtualLoop
from tests.simulation.world.threads import VirtualEvent, VirtualLock, VirtualQueue, VirtualThread

if TYPE_CHECKING:
    from greenlet import greenlet

    from tests.simulation.world.network import Network

EPOCH_NS = 1_800_000_000 * SECOND
"""The wall clock at the world's beginning."""


class ProcessExit(BaseException):
    """The process ended itself, with a code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class VirtualMachine:
    """Implements `isthmus.repl.machine.Machine`."""

    def __init__(self, kernel: Kernel, network: Network, name: str, address: str) -> None:
        self.kernel = kernel
        self.network = network
        self.name = name
        self.address = address
        self.directory: Path | None = None
        """Below it lie the files that its processes open."""
        self.on_uncaught: Callable[[VirtualMachine, str, BaseException | None], None] = _raise
        self.alive = False
        self.frozen = False
        self.parked: list[Callable[[], object]] = []
        """What is due, while it is frozen."""
        self.process: dict[object, Any] = {}
        self.greenlets: set[greenlet] = set()
        self.exit_code: int | None = None
        self.boots = 0
        self.wall_offset_ns = 0
        """How far its wall clock is ahead of the world's."""
        self.drift = 1.0
        """How fast its clocks run."""
        self._drift_since_ns = self._local_ns = kernel.now_ns
        self._busy, self._busy_since_s, self._cpu_s = 0.05, 0.0, 0.0
        self._chance = random.Random(f"{kernel.seed}/{name}")
        self._boot_id = ""
        self.ended: list[VirtualMachineProcess] = []
        self.power_on()

    # Life

    def power_on(self) -> None:
        """The machine starts, after which a process may."""
        self._boot_id = str(self._chance.getrandbits(64))

    def boot(self) -> VirtualLoop:
        """Begin a process; its loop."""
        assert not self.alive
        self.process = {}
        self.greenlets = set()
        self.alive, self.frozen, self.exit_code = True, False, None
        self.boots += 1
        self.loop = VirtualLoop(self)
        self.network.machine_up(self)
        return self.loop

    def kill(self) -> None:
        """End the process at once. What it holds is kept until the world ends, so that nothing of it runs any more."""
        if not self.alive:
            return
        self.alive = self.frozen = False
        self.parked = []
        self.loop._closed = True
        self.ended.append(VirtualMachineProcess(self.loop, self.greenlets, self.process))
        self.network.process_died(self)
        if self.directory is not None:
            _close_files(self.directory)

    def freeze(self) -> None:
        """The process stops, as by SIGSTOP or a suspended machine."""
        self.frozen = True

    def thaw(self) -> None:
        """It goes on."""
        self.frozen = False
        parked, self.parked = self.parked, []
        for callback in parked:
            self.kernel.at(0, callback, self)

    def uncaught(self, what: str, error: BaseException | None) -> None:
        """Nobody caught `error`."""
        self.on_uncaught(self, what, error)

    # Clocks

    def kernel_ns(self, seconds: float) -> int:
        """How long `seconds` by its clocks take."""
        return max(0, round(seconds * SECOND / self.drift))

    def boottime_ns(self) -> int:
        passed_ns = self.kernel.now_ns - self._drift_since_ns
        return self._local_ns + (passed_ns if self.drift == 1.0 else round(passed_ns * self.drift))

    def set_drift(self, drift: float) -> None:
        """Let its clocks run at another speed from now on."""
        self._local_ns, self._drift_since_ns = self.boottime_ns(), self.kernel.now_ns
        self.drift = drift

    def monotonic_s(self) -> float:
        return self.boottime_ns() / SECOND

    perf_s = process_cpu_s = monotonic_s

    def cpu_s(self) -> float:
        return self._cpu_s + self._busy * (self.monotonic_s() - self._busy_since_s)

    def set_busy(self, share: float) -> None:
        """Let the loop take this share of a core from now on. What its callbacks do takes no virtual time."""
        self._cpu_s, self._busy_since_s, self._busy = self.cpu_s(), self.monotonic_s(), share

    def wall_ns(self) -> int:
        return EPOCH_NS + self.boottime_ns() + self.wall_offset_ns

    def sleep(self, seconds: float) -> None:
        self.waiter().wait(seconds / self.drift)

    def wait_for_disk(self, ms: float) -> None:
        """The running thread waits for the disk. The event loop does not: what it does at once takes no time."""
        if self.kernel.may_wait():
            self.sleep(ms / 1000)

    # Chance

    def random_bytes(self, count: int) -> bytes:
        return self._chance.randbytes(count)

    def random(self) -> random.Random:
        return self._chance

    # Threads

    def waiter(self) -> Waiter:
        """For the running greenlet to wait once."""
        return Waiter(self.kernel, self)

    def thread(self, run: Callable[[], None], name: str) -> VirtualThread:
        return VirtualThread(self, run, name)

    def event(self) -> VirtualEvent:
        return VirtualEvent(self)

    def lock(self) -> VirtualLock:
        return VirtualLock(self)

    def queue(self) -> VirtualQueue:
        return VirtualQueue(self)

    # Network

    def socket(self, family: int, kind: int, proto: int = 0) -> Any:
        return self.network.socket(self, family, kind, proto)

    def getaddrinfo(self, host: str | None, port: int, *, type: int = 0, flags: int = 0) -> list[Any]:
        return self.network.getaddrinfo(self, host, port, type=type, flags=flags)

    def create_connection(self, address: tuple[str, int], timeout: float | None) -> Any:
        return self.network.create_connection(self, address, timeout)

    def gethostname(self) -> str:
        return self.name

    # The process

    def boot_id(self) -> str:
        return self._boot_id

    def pid(self) -> int:
        return 1000 + self.boots

    def exit(self, code: int) -> NoReturn:
        self.exit_code = code
        self.kernel.at(0, self.kill)
        raise ProcessExit(code)


class VirtualMachineProcess:
    """What a process that ended held. It is kept, since what lets go of it would run its `finally` blocks."""

    def __init__(self, loop: VirtualLoop, greenlets: set[greenlet], process: dict[object, Any]) -> None:
        self.held = [loop, process, asyncio.all_tasks(loop), list(loop._ready)]
        self.greenlets = greenlets

    def free(self) -> None:
        """End what waits, once the world is over, so that nothing of it keeps the rest."""
        loop, _, tasks, _ = self.held
        for task in tasks:
            task._log_destroy_pending = False
            with contextlib.suppress(BaseException):
                task.get_coro().close()
        loop._ready.clear()
        self.held.clear()


def _raise(machine: VirtualMachine, what: str, error: BaseException | None) -> None:
    raise AssertionError(f"{machine.name}: {what}") from error


def _close_files(directory: Path) -> None:
    """Close what this process has open below `directory`: locks end, and what is written later goes nowhere. The
    descriptors stay taken, since objects of the killed process still believe that they are theirs."""
    prefix = os.fspath(directory.resolve()) + "/"
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for name in os.listdir("/proc/self/fd"):
            try:
                where = os.readlink(f"/proc/self/fd/{name}")
            except OSError:
                continue
            if where.startswith(prefix):
                os.dup2(nowhere, int(name), inheritable=False)
    finally:
        os.close(nowhere)
