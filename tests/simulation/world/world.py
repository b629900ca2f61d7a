"""One world: clusters of shipped nodes in virtual time, decided by one seed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import shutil
import sys
import tempfile
import traceback
from asyncio.sslproto import _SSLProtocolTransport as SSLTransport
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.simulation.world import quiet, riak, workload
from tests.simulation.world.clusters import Shape, WorldCluster, make_clusters
from tests.simulation.world.history import History
from tests.simulation.world.kernel import SECOND, Kernel
from tests.simulation.world.libraries import libraries_in_the_world
from tests.simulation.world.machine import VirtualMachine
from tests.simulation.world.network import Network
from tests.simulation.world.node import WorldNode
from tests.simulation.world.riak import WorldRiak
from tests.simulation.world.sockets import VirtualSocket
from tests.simulation.world.steps import KINDS, Doing, StepKind, found
from tests.simulation.world.story import Story

if TYPE_CHECKING:
    from tests.simulation.world.oracle import Oracle
    from tests.simulation.world.plan import Step

READY_S = 60.0
"""Within this virtual time all nodes of a new world serve."""

HEALED_S = 120.0
"""Within this virtual time all nodes serve again once nothing is broken."""

STEP_S = 300.0
"""Longest virtual time that a step goes on after the last one began."""

LOOK_S = 1.0
"""Virtual time between two looks of the oracles."""


class World:
    """A world. Use it as a context manager."""

    def __init__(self, seed: int | str, shape: Shape | None = None) -> None:
        self.kernel = Kernel(seed)
        self.story = Story(self.kernel)
        self.network = Network(self.kernel)
        self.shape = Shape.drawn(self.kernel.random) if shape is None else shape
        self.directory = Path(tempfile.mkdtemp(prefix="isthmus-world-", dir=_memory()))
        self.story.directory = str(self.directory)
        self.clusters: dict[str, WorldCluster] = make_clusters(self.kernel, self.network, self.directory, self.shape)
        self.broken: list[tuple[str, Callable[[], object]]] = []
        """(what, how it is undone) of all that is broken at the moment."""
        self.disturbances = 0
        """How often something was broken."""
        self.changed: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        """What operators changed, and how they take it back."""
        self.recoveries: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        """What clusters need before that, since they lost something."""
        self.history = History()
        """What clients did."""
        self.oracles: Sequence[Oracle] = ()
        self.failures: list[str] = []
        """What oracles found while the world ran."""
        self._next_look_ns = 0
        self._steps: set[asyncio.Task[None]] = set()
        self._outside = contextlib.ExitStack()
        for node in self.nodes:
            node.machine.on_uncaught = self.story.uncaught
        self.operators = self.machine("operators", "10.200.0.1")
        self.clients = self.machine("clients", "10.201.0.1")
        self.riak: WorldRiak | None = None
        """The Riak beside the first cluster, if there is one."""
        if self.shape.riak:
            self.riak = WorldRiak(self.machine("riak", riak.ADDRESS), next(iter(self.clusters.values())))

    @property
    def nodes(self) -> list[WorldNode]:
        """All nodes of all clusters."""
        return [node for cluster in self.clusters.values() for node in cluster.nodes.values()]

    def machine(self, name: str, address: str) -> VirtualMachine:
        """A machine beside the nodes, for clients or operators, with a process."""
        made = VirtualMachine(self.kernel, self.network, name, address)
        made.on_uncaught = self.story.uncaught
        made.boot()
        return made

    def __enter__(self) -> World:
        self._outside.enter_context(self.story.listening())
        self._outside.enter_context(_no_collection())
        self._outside.enter_context(libraries_in_the_world())
        return self

    def __exit__(self, *_: object) -> None:
        with _quiet_end():
            people = [self.operators, self.clients, *([] if self.riak is None else [self.riak.machine])]
            for machine in (*(node.machine for node in self.nodes), *people):
                machine.kill()
                for process in machine.ended:
                    self.kernel.end(process.greenlets)
                    process.free()
            self._outside.close()
            self.clusters = {}
            for each in gc.get_objects():  # libraries keep some until this process ends
                if type(each) is VirtualSocket:
                    each.let_go()
                elif type(each) is SSLTransport:
                    each._closed = True
            gc.collect()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> None:
        """Start all nodes, and wait until they serve."""
        for node in self.nodes:
            node.start()
        self.run_until(self.all_ready, READY_S, "all nodes serve")

    def prepare(self) -> None:
        """Make what clients need: bucket types and sessions."""
        self.workload = workload.prepare(self)
        if self.riak is not None:
            self.riak.start()

    def all_ready(self) -> bool:
        """Every node has a process that is ready."""
        return all(_ready(node) for node in self.nodes)

    def perform(self, steps: Sequence[Step]) -> None:
        """Do all steps, each at its time, while the oracles look now and then."""
        for each in steps:
            doer = self.clients if each.name in KINDS[StepKind.OPERATION] else self.operators
            self.kernel.at(round(each.at_s * SECOND), functools.partial(self._begin, doer, each), doer)
        end_ns = self.kernel.now_ns + round((max((each.at_s for each in steps), default=0.0) + 1.0) * SECOND)
        while self.kernel.now_ns < end_ns:
            self.kernel.run(min(end_ns, self._next_look_ns))
            self._look_if_due()
        self.run_until(lambda: not self._steps, STEP_S, "every step ends")

    def _begin(self, doer: VirtualMachine, step: Step) -> None:
        doing = Doing(self, step.name, step.seed)
        task = doer.loop.create_task(found(step.name).perform(doing), name=step.name)
        self._steps.add(task)
        task.add_done_callback(self._step_ended)

    def _step_ended(self, task: asyncio.Task[None]) -> None:
        self._steps.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            text = "".join(traceback.format_exception(error))
            self.failures.append(f"step {task.get_name()}: {error!r}")
            self.story.tell("world", f"step {task.get_name()} raised {text}")

    def _look_if_due(self) -> None:
        if self.kernel.now_ns < self._next_look_ns:
            return
        self._next_look_ns = self.kernel.now_ns + round(LOOK_S * SECOND)
        for oracle in self.oracles:
            self.failures += [f"{oracle.name}: {what}" for what in oracle.look(self)]

    def heal(self) -> None:
        """Undo everything that is broken, start the nodes that do not run, and take back what operators changed; they
        may have to force leaders before all nodes are ready."""
        while self.broken:
            what, undo = self.broken.pop()
            self.story.tell("world", f"healed: {what}")
            undo()
        for node in self.nodes:
            if not node.running:
                node.start()
        self.run_until(lambda: all(map(_takes_part, self.nodes)), HEALED_S, "all nodes take part again")
        while self.recoveries or self.changed:
            what, take_back = (self.recoveries or self.changed).popitem()
            self.story.tell("world", f"taken back: {what}")
            task = self.operators.loop.create_task(take_back(), name=what)
            self.run_until(task.done, STEP_S, what)
            task.result()
        try:
            self.run_until(self.all_ready, HEALED_S, "all nodes serve again")
        except AssertionError as error:
            waits = [f"{each.name}: {each.node.ready()[1]}" for each in self.nodes if each.node and not _ready(each)]
            raise AssertionError(f"{error}; {'; '.join(waits)}") from error

    def wait_until_quiet(self, seconds: float) -> None:
        """Run until everything was delivered, compared and closed, and nothing changes any more (`quiet`); an
        AssertionError if that takes more than `seconds`."""
        quiet.wait_until_quiet(self, seconds)

    def run_until(self, condition: Callable[[], bool], seconds: float, claim: str, *, every_s: float = 0.05) -> None:
        """Run until the condition holds, while the oracles look; an AssertionError if that takes more than
        `seconds`."""
        end_ns = self.kernel.now_ns + round(seconds * SECOND)
        while not condition():
            if self.kernel.now_ns >= end_ns:
                raise AssertionError(f"not within {seconds:g} s: {claim}")
            self.kernel.run_for(every_s)
            self._look_if_due()


def _ready(node: WorldNode) -> bool:
    return node.running and node.node is not None and node.node.ready()[0]


def _takes_part(node: WorldNode) -> bool:
    """It is up and registered, whatever its partitions wait for."""
    if not node.running or node.node is None:
        return False
    why_not = node.node.ready()[1]
    return why_not not in ("starting", "stopping") and not why_not.startswith("not registered")


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """The collector runs between worlds, not within one: when it runs, `finally` blocks of processes that were killed
    would run."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextlib.contextmanager
def _quiet_end() -> Iterator[None]:
    """What processes that are gone say when they are freed is not said."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = hook
