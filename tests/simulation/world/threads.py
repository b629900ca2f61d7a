"""Threads, events, locks and queues of the product's machine port, in greenlets of the kernel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from queue import Empty
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tests.simulation.world.kernel import Waiter

if TYPE_CHECKING:
    from tests.simulation.world.machine import VirtualMachine


class VirtualEvent:
    """See threading.Event."""

    def __init__(self, machine: VirtualMachine) -> None:
        self._machine = machine
        self._set = False
        self._waiting: list[Waiter] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.wake()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._set:
            return True
        if timeout is not None and timeout <= 0:
            return False
        waiter = self._machine.waiter()
        self._waiting.append(waiter)
        waiter.wait(timeout)
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        return self._set


class VirtualLock:
    """See threading.Lock. Whoever holds it may wait for something else meanwhile."""

    def __init__(self, machine: VirtualMachine) -> None:
        self._machine = machine
        self._held = False
        self._waiting: deque[Waiter] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        while self._held:
            if not blocking:
                return False
            waiter = self._machine.waiter()
            self._waiting.append(waiter)
            if not waiter.wait(None if timeout < 0 else timeout):
                self._waiting.remove(waiter)
                return False
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        if self._waiting:
            self._waiting.popleft().wake()

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class VirtualQueue:
    """See queue.SimpleQueue."""

    def __init__(self, machine: VirtualMachine) -> None:
        self._machine = machine
        self._items: deque[Any] = deque()
        self._waiting: deque[Waiter] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting:
            self._waiting.popleft().wake()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while not self._items:
            if not block:
                raise Empty
            waiter = self._machine.waiter()
            self._waiting.append(waiter)
            if not waiter.wait(timeout):
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                if not self._items:
                    raise Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class VirtualThread:
    """A thread of a virtual machine."""

    def __init__(self, machine: VirtualMachine, run: Callable[[], None], name: str) -> None:
        self.name = name
        self._run = run
        self._machine = machine
        self._ended = VirtualEvent(machine)
        machine.kernel.spawn(self._body, machine)

    def _body(self) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - as threading.excepthook: the world reports it
            self._machine.uncaught(f"thread {self.name}", error)
        finally:
            self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return not self._ended.is_set()
