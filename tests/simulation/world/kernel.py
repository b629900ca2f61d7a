"""The kernel of the simulated world: virtual time, one heap of events, one source of chance, blocking code.

Everything that happens is an event of this heap. An event belongs to a process of a machine, or to the world itself;
while it runs, its machine is installed as the product's (`isthmus.repl.machine`). Events of a process that was killed
are dropped, also once its machine has another one; those of a frozen machine wait until it is thawed. Code that blocks
runs in a greenlet and switches back here to wait.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from greenlet import getcurrent, greenlet

from isthmus.repl import machine as product_machine

if TYPE_CHECKING:
    from tests.simulation.world.machine import VirtualMachine

MS = 1_000_000
"""Nanoseconds in a millisecond."""

SECOND = 1_000 * MS


ENDS_MAX = 3
"""How often a greenlet is told to end: what it does at its end may wait again."""

_DIGEST_MASK = (1 << 64) - 1


class Stuck(AssertionError):
    """The world did more than it was given to do."""


class KernelEvent:
    """Something that will happen."""

    __slots__ = ("boots", "callback", "machine")

    def __init__(self, callback: Callable[[], object] | None, machine: VirtualMachine | None) -> None:
        self.callback = callback
        self.machine = machine
        self.boots = 0 if machine is None else machine.boots
        """Which process of its machine it belongs to."""

    def cancel(self) -> None:
        """It will not happen."""
        self.callback = None


class Kernel:
    """Runs the events of one world."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now_ns = 0
        self.events_run = 0
        self._digest = 0
        self._heap: list[tuple[int, int, KernelEvent]] = []
        """(time, number, event); numbers are in the order in which events were asked for."""
        self._numbers = 0
        self._hub = getcurrent()
        self._greenlets: set[greenlet] = set()

    def at(self, delay_ns: int, callback: Callable[[], object], machine: VirtualMachine | None = None) -> KernelEvent:
        """`callback` is called `delay_ns` from now, on `machine`."""
        event = KernelEvent(callback, machine)
        self.again(delay_ns, event)
        return event

    def again(self, delay_ns: int, event: KernelEvent) -> None:
        """`event`, which has happened or is new, happens `delay_ns` from now."""
        self._numbers = number = self._numbers + 1
        heappush(self._heap, (self.now_ns + (delay_ns if delay_ns > 0 else 0), number, event))

    def run(self, until_ns: int, *, unless: Callable[[], bool] | None = None, events_max: int = 50_000_000) -> bool:
        """Run events until the virtual time `until_ns`, or until `unless` is true, which is asked after each event.
        Returns whether `unless` was true. Raises Stuck after `events_max` events, and what an event raises."""
        heap = self._heap
        events_run = self.events_run
        last = events_run + events_max
        digest = self._digest
        install = product_machine.install
        installed = outside = product_machine.machine()
        try:
            while heap and heap[0][0] <= until_ns:
                at_ns, number, event = heappop(heap)
                callback = event.callback
                if callback is None:
                    continue
                event.callback = None
                machine = event.machine
                if machine is None:
                    if installed is not outside:
                        installed = outside
                        install(outside)
                else:
                    if not machine.alive or machine.boots != event.boots:
                        continue
                    if machine.frozen:
                        machine.parked.append(callback)
                        continue
                    if installed is not machine:
                        installed = machine
                        install(machine)
                self.now_ns = at_ns
                events_run += 1
                digest = (digest * 1_000_003 ^ at_ns ^ number) & _DIGEST_MASK
                callback()
                if unless is not None and unless():
                    return True
                if events_run >= last:
                    raise Stuck(f"{events_max} events, and it is only {self.now_ns / SECOND:.3f} s")
        finally:
            self.events_run, self._digest = events_run, digest
            install(outside)
        if not heap or heap[0][0] > until_ns:
            self.now_ns = max(self.now_ns, until_ns)
        return unless is not None and unless()

    def run_for(self, seconds: float, **more: object) -> bool:
        """`run` for some virtual seconds."""
        return self.run(self.now_ns + round(seconds * SECOND), **more)  # type: ignore[arg-type]

    @property
    def digest(self) -> str:
        """Of all events so far: of their times and their order."""
        return f"{self._digest:016x}"

    # Blocking code

    def spawn(self, run: Callable[[], None], machine: VirtualMachine | None, delay_ns: int = 0) -> greenlet:
        """Run `run`, which may block, in a greenlet of its own."""
        running = self._greenlets if machine is None else machine.greenlets

        def body() -> None:
            try:
                run()
            finally:
                running.discard(made)

        made = greenlet(body, parent=self._hub)
        running.add(made)
        self.at(delay_ns, made.switch, machine)
        return made

    def end(self, greenlets: set[greenlet]) -> None:
        """End greenlets that wait. The garbage collector does not see what a waiting greenlet refers to, so that its
        world would never be freed."""
        for each in list(greenlets):
            for _ in range(ENDS_MAX):
                if each.dead or not each:  # it has ended, or not begun
                    break
                each.throw()
        greenlets.clear()

    def may_wait(self) -> bool:
        """The running code is in a greenlet, and may wait."""
        return getcurrent() is not self._hub

    def waiter(self, machine: VirtualMachine | None) -> Waiter:
        """For the running greenlet to wait once."""
        return Waiter(self, machine)


class Waiter:
    """One wait of a greenlet."""

    __slots__ = ("_boots", "_done", "_greenlet", "_kernel", "_machine", "_woken")

    def __init__(self, kernel: Kernel, machine: VirtualMachine | None) -> None:
        self._kernel = kernel
        self._machine = machine
        self._boots = 0 if machine is None else machine.boots
        self._greenlet: greenlet | None = None
        self._woken = False
        self._done = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until `wake` was called, `timeout_s` at most; whether it was."""
        if self._woken:
            return True
        kernel = self._kernel
        running = getcurrent()
        if running is kernel._hub:
            raise Stuck("code that must not block waits: it runs on an event loop")
        self._greenlet = running
        timer = None
        if timeout_s is not None:
            timer = kernel.at(max(0, round(timeout_s * SECOND)), self._resume, self._machine)
        kernel._hub.switch()
        if timer is not None:
            timer.cancel()
        return self._woken

    def wake(self) -> None:
        """End the wait, from any machine."""
        machine = self._machine
        if self._woken or self._done or (machine is not None and machine.boots != self._boots):
            return
        self._woken = True
        if self._greenlet is not None:
            self._kernel.at(0, self._resume, self._machine)

    def _resume(self) -> None:
        if self._done or self._greenlet is None:
            return
        self._done = True
        self._greenlet.switch()
