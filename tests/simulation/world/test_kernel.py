"""Events belong to processes: what a killed one was about to do never happens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.simulation.world.kernel import Kernel
from tests.simulation.world.machine import VirtualMachine
from tests.simulation.world.network import Network


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualMachine]:
    """A machine with a process."""
    kernel = Kernel(1)
    made = VirtualMachine(kernel, Network(kernel), "a", "10.1.0.1")
    made.boot()
    yield made
    made.kill()


def test_a_killed_process_does_nothing_in_the_next_one(machine: VirtualMachine) -> None:
    """Neither timers, nor turns, nor threads of a killed process go on after its machine has begun another one, also
    when something from outside wakes them."""
    done: list[str] = []
    event, old_loop, kernel = machine.event(), machine.loop, machine.kernel
    old_loop.call_later(1, done.append, "timer")
    machine.thread(lambda: (machine.sleep(1), done.append("slept")), "sleeper")  # type: ignore[func-returns-value, arg-type, return-value]
    machine.thread(lambda: (event.wait(), done.append("woken")), "waiter")  # type: ignore[func-returns-value, arg-type, return-value]
    kernel.run_for(0.5)
    old_loop.call_soon(done.append, "turn")
    machine.kill()
    machine.boot()
    old_loop.call_soon(done.append, "late turn")
    event.set()
    machine.loop.call_soon(done.append, "new")
    kernel.run_for(10)
    assert done == ["new"]


def test_what_is_due_while_frozen_happens_after_the_thaw(machine: VirtualMachine) -> None:
    """A frozen process's timers are late, and none is lost."""
    done: list[float] = []
    loop, kernel = machine.loop, machine.kernel

    async def ticks() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            done.append(loop.time())

    task = loop.create_task(ticks())
    kernel.run_for(1.5)
    machine.freeze()
    kernel.run_for(10)
    assert len(done) == 1
    machine.thaw()
    kernel.run_for(2)
    assert task.done()
    assert done == [pytest.approx(each, abs=0.01) for each in (1, 11.5, 12.5)]
