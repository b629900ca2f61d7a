"""The simulator of one cluster: a virtual clock, one source of randomness, and all events in one heap.

A simulation depends on its seed alone, so a seed replays exactly. It has nodes, a network, a metastore, controllers and
clients; `faults.py` breaks them, `checkers.py` checks the invariants after every event. Nothing here sleeps or reads a
clock. Run it with `python -m tests.simulation.cluster --seeds A:B`.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, ClassVar

from isthmus.repl.controller.election import elect
from isthmus.repl.controller.placement import computed
from isthmus.repl.isr.membership import guard
from isthmus.repl.isr.replica import Replica
from isthmus.repl.model.record import Member, PartitionRecord
from tests.simulation.cluster.checkers import Checkers
from tests.simulation.cluster.clients import Client
from tests.simulation.cluster.controllers import Controller
from tests.simulation.cluster.disk import SimStore
from tests.simulation.cluster.faults import Faults
from tests.simulation.cluster.invariants import Violation
from tests.simulation.cluster.metastore import SimMetastore
from tests.simulation.cluster.network import Network
from tests.simulation.cluster.nodes import Node
from tests.simulation.cluster.plan import Plan
from tests.simulation.cluster.process import Process
from tests.simulation.cluster.trace import render_trace
from tests.simulation.cluster.unclean_election import UncleanElections

FAULT_PHASE_MS = 12_000
"""Virtual time with faults: several sessions, elections and restarts."""

LIVE_LIMIT_MS = 60_000
"""Virtual time within which a partition accepts writes again once enough nodes are permanently healthy: a session, the
longest pause and back-off of an election, a stall, and the back-off before a member rejoins."""

HEAL_LIMIT_MS = 120_000
"""Virtual time after the last fault within which everything must be healthy: LIVE_LIMIT_MS, and the longest pauses
between two attempts to follow."""

LOOK_EVERY_MS = 100
"""Interval between two checks whether the simulation is healthy."""

LATE_MS = 8_500
"""Virtual time after which even a held request to the metastore has arrived."""

SETTLE_MS = 16_000
"""Virtual time after LATE_MS within which late requests have taken effect: a reassignment that began late, with a
hand-over to a candidate that stays silent and a back-off before a member rejoins; two reads of records, one of which
may be stale; and the grace time of a replica that no record names. (Seed 2178 of `suspicions.py` takes 8,100.)"""

QUIET_MS = 3_000
"""Virtual time after SETTLE_MS in which no record may change."""

TRACE_LINES = 500
"""How many of the last events a failure prints."""


class ClusterSimulation:
    """One run.

    `replica_class`, `decide`, `shell` and `metastore_class` are the product's, or its doubles, unless a test inserts a
    defect; `new_store` and `new_client` create the stores and the clients.
    """

    option: ClassVar[str] = ""
    """The option that the command for replaying a seed of this class needs, with a space before it."""

    def __init__(
        self,
        seed: int,
        *,
        replica_class: type[Replica] = Replica,
        decide: Callable[..., Any] = elect,
        shell: type[Process] = Process,
        metastore_class: type[SimMetastore] = SimMetastore,
        new_store: Callable[[], SimStore] = SimStore,
        new_client: Callable[[ClusterSimulation, int], Client] = Client,
        plan: Plan | None = None,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.replica_class = replica_class
        self.decide = decide
        self.shell = shell
        self.new_store = new_store
        self.counts: Counter[str] = Counter()
        self.trace: deque[tuple[Any, ...]] = deque(maxlen=TRACE_LINES)
        self._heap: list[tuple[int, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._sequence = 0
        self._last_request = 0
        self._last_token = 0
        self.plan = plan if plan is not None else Plan.drawn(self.rng)
        self.checkers = Checkers(self)
        self.network = Network(self)
        self.metastore = metastore_class(self)
        names = [f"n{number + 1}" for number in range(self.plan.node_count)]
        placement = computed(self.plan.partition_count, self.plan.factor, names)
        self.nodes = {
            name: Node(self, name, [partition for partition, replicas in enumerate(placement) if name in replicas])
            for name in names
        }
        for partition, replicas in enumerate(placement):
            isr = frozenset(Member(name, self.nodes[name].disk.log_ids[partition]) for name in replicas)
            self.metastore.create(
                PartitionRecord(
                    partition,
                    "default",
                    partition,
                    self.plan.partition_count,
                    replicas,
                    isr=isr,
                    min_isr=self.plan.min_isr,
                    version=0,
                )
            )
        self.controllers = [Controller(self, name) for name in ("c1", "c2")]
        self.clients = [new_client(self, partition) for partition in range(self.plan.partition_count)]
        self.faults = Faults(self)
        self.operator = UncleanElections(self)

    # -- time -----------------------------------------------------------------------------------

    def after(self, delay_ms: int, function: Callable[..., Any], *args: Any) -> None:
        """Call `function(*args)` in `delay_ms`; calls due at the same time run in the order of scheduling."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._sequence, function, args))

    def log_event(self, actor: str, *what: object) -> None:
        """Append a line to the trace; it is rendered only on demand."""
        self.trace.append((self.now_ms, actor, *what))

    def sessions_as_read(self) -> dict[str, int]:
        """Node -> session id of its registration, as a node may have read it last: now and then outdated, or not."""
        found = {name: each.session_id for name, each in self.metastore.registrations.items()}
        match self.now_ms % 4:
            case 0:
                return {}
            case 1:
                return {name: session_id - 1 for name, session_id in found.items()}
            case _:
                return found

    def request_id(self) -> bytes:
        """Return a new request id."""
        self._last_request += 1
        return b"r%d" % self._last_request

    def token(self) -> int:
        """Return a new token for a read."""
        self._last_token += 1
        return self._last_token

    def run_until(self, until_ms: int) -> None:
        """Run events until `until_ms`."""
        heap, events = self._heap, 0
        while heap and heap[0][0] <= until_ms:
            self.now_ms, _, function, args = heapq.heappop(heap)
            function(*args)
            events += 1
        self.now_ms = until_ms
        self.counts["events"] += events

    def wait_for(self, limit_ms: int, done: Callable[[], object]) -> bool:
        """Run events until `done()`, at most for `limit_ms`; False at the limit."""
        until_ms = self.now_ms + limit_ms
        while not done():
            if self.now_ms >= until_ms:
                return False
            self.run_until(self.now_ms + LOOK_EVERY_MS)
        return True

    # -- the run --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start nodes, controllers, clients and faults."""
        for node in self.nodes.values():
            node.start()
        for controller in self.controllers:
            controller.start()
        for client in self.clients:
            client.start()
        self.faults.start()
        self.operator.start()

    def run(self) -> Counter[str]:
        """Run with faults, then with some nodes permanently healthy, then with all, then without writes; returns counts
        of events.

        Raises Violation.
        """
        self.start()
        self.run_until(FAULT_PHASE_MS)
        if self.plan.liveness:
            self.live()
        self.heal()
        self.quiet()
        self.checkers.final()
        return self.counts

    def live(self) -> None:
        """Keep some nodes and the metastore healthy from now on and the others broken: the former must accept
        writes."""
        core = self._core()
        rest = [name for name in self.nodes if name not in core]
        self.log_event(
            "world", f"from now on {', '.join(sorted(core))} are well; broken for good: {', '.join(rest) or 'none'}"
        )
        self.faults.end(core)
        self.faults.leave_broken(rest)
        for client in self.clients:
            client.begin()
        if not self.wait_for(LIVE_LIMIT_MS, lambda: all(self._serves(client, core) for client in self.clients)):
            partition = next(client.partition for client in self.clients if not self._serves(client, core))
            raise Violation(
                "I-CONVERGE",
                f"{sorted(core)} are well, and {LIVE_LIMIT_MS} ms later partition {partition} takes no write: "
                f"{self.checkers.not_in_sync()}",
            )
        self.counts["lived_without_some"] += bool(rest)

    def _core(self) -> frozenset[str]:
        """Draw as few nodes as suffice: enough replicas of each partition that can catch up from the log, one of them
        electable."""
        core = list(self.nodes)
        for name in self.rng.sample(core, len(core)):
            fewer = [other for other in core if other != name]
            if all(self._suffices(partition, fewer) for partition in self.metastore.records):
                core = fewer
        return frozenset(core)

    def _suffices(self, partition: int, names: list[str]) -> bool:
        record = self.metastore.records[partition]
        there = [name for name in record.replicas if name in names]
        electable = self.electable(record, there)
        return bool(electable) and len(there) >= record.effective_min_isr

    def electable(self, record: PartitionRecord, names: list[str]) -> list[str]:
        """The names that may be elected with the log that they have."""
        members = {m.node for m in guard(record) if self.nodes[m.node].disk.log_ids[record.partition] == m.log_id}
        return [name for name in names if name in members]

    def _serves(self, client: Client, core: frozenset[str]) -> bool:
        """True when writes succeed, or these nodes no longer suffice: a leader that is broken now may have removed the
        last electable one of them before, or a late write may have raised min-ISR."""
        if client.done or self._suffices(client.partition, sorted(core)):
            return client.done
        self.counts["core_not_enough"] += 1
        return True

    def heal(self) -> None:
        """End all faults: everything must become healthy, and every client must get a write through."""
        self.log_event("world", "the last fault is over")
        self.faults.end()
        for client in self.clients:
            client.begin()
        if not self.wait_for(HEAL_LIMIT_MS, self._all_in_sync):
            raise Violation("I-CONVERGE", f"not well {HEAL_LIMIT_MS} ms after the last fault: {self._not_in_sync()}")

    def quiet(self) -> None:
        """Without faults and writes the state must not change any more."""
        self.log_event("world", "nobody writes any more")
        for client in self.clients:
            client.stop()
        self.run_until(max(self.now_ms + LATE_MS, self.network.held_until_ms + 500))
        if not self.wait_for(SETTLE_MS, lambda: not self.checkers.not_in_sync()):
            raise Violation("I-CONVERGE", f"not well though nobody writes: {self.checkers.not_in_sync()}")
        before = {partition: record.version for partition, record in self.metastore.records.items()}
        self.run_until(self.now_ms + QUIET_MS)
        after = {partition: record.version for partition, record in self.metastore.records.items()}
        if before != after or self.checkers.not_in_sync():
            raise Violation("I-CONVERGE", f"not quiet: versions {before} -> {after}; {self.checkers.not_in_sync()}")

    def _all_in_sync(self) -> bool:
        return not self._not_in_sync()

    def _not_in_sync(self) -> str:
        """The reason why the simulation is not healthy while clients write: ISR membership, and writes."""
        for client in self.clients:
            if not client.done:
                return f"partition {client.partition} takes no write; {self.checkers.not_in_sync()}"
        return self.checkers.not_in_sync(writing=True)

    # -- logs -----------------------------------------------------------------------------------

    def holders(self, partition: int) -> list[Node]:
        """The nodes that have a replica of a partition."""
        return [node for node in self.nodes.values() if partition in node.partitions]

    def trim_limit(self, partition: int) -> int:
        """How far logs may be trimmed so that all replicas can still catch up from them.

        With `harsh_trims` only as many replicas as writes need can; the others need a state transfer.
        """
        named = self.metastore.records[partition].replicas
        agreed = sorted(
            (
                min(self.checkers.agreed(node, partition), node.disk.logs[partition].synced)
                for node in self.holders(partition)
                if node.name in named
            ),
            reverse=True,
        )
        if not agreed:
            return 0
        if self.plan.harsh_trims:
            return agreed[min(len(agreed), max(2, self.plan.min_isr)) - 1]
        return agreed[-1]

    # -- trace ----------------------------------------------------------------------------------

    def rendered_trace(self) -> str:
        """The last events, one per line."""
        return render_trace(self.trace)


def description(error: Exception) -> str:
    """The text of a seed's error; with its class if it is not a violation."""
    return str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"


def run_seed(
    seed: int,
    *,
    whole_trace: bool = False,
    simulation_class: type[ClusterSimulation] = ClusterSimulation,
    **options: Any,
) -> ClusterSimulation:
    """Run a seed to its end, in a `simulation_class` created with the other options.

    Every exception carries the seed and the trace: a Violation, a failed assertion, or an error of the simulator.
    """
    simulation = simulation_class(seed, **options)
    if whole_trace:
        simulation.trace = deque()
    try:
        simulation.run()
    except Exception as error:
        error.add_note(
            f"{simulation.rendered_trace()}\n\nseed {seed}: {description(error)}\n"
            f"replay: python -m tests.simulation.cluster --seeds {seed}:{seed + 1}{simulation_class.option} --trace"
        )
        raise
    return simulation
