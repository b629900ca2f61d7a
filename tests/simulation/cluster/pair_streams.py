"""Simulations of clusters that replicate by the product's pair streams, with several partitions.

`repl.runtime.pair_streams` runs in each process. Groups and acknowledgements cross as bytes, and are lost, repeated,
overtaken and held like other messages. A stream is asked for when a connection comes up; some nodes are of a version
that does not know streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, ClassVar, NamedTuple, cast

import msgpack

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.pair_stream import StreamAck, StreamGroup, StreamRun
from isthmus.repl.isr.replica import Replica, ReplicaRole
from isthmus.repl.model.entry import decode_entry
from isthmus.repl.replog.frames import RunKind, decode_runs, decode_wires, encode_entries
from isthmus.repl.replog.port import EncodedRun
from isthmus.repl.runtime.pair_streams import PairStreams
from isthmus.repl.runtime.rounds import Rounds
from isthmus.repl.transport.codec import Encoder, decode_item
from isthmus.repl.transport.port import LinkMessage
from tests.simulation.cluster.checkers import Checkers
from tests.simulation.cluster.invariants import Violation
from tests.simulation.cluster.plan import Plan
from tests.simulation.cluster.process import Process
from tests.simulation.cluster.simulator import ClusterSimulation

STREAM = -1
"""The partition under which messages of streams travel."""

PAUSED_CHECK_MS = 5


class StreamStep(NamedTuple):
    """In the trace, in place of an event: a replica was asked for the sake of a stream."""

    what: str


class SimPartition(NamedTuple):
    """A partition of a process, as the streams see it."""

    id: int
    replica: Replica


class StreamChecks:
    """I-STREAM-POSITION and I-STREAM-ACK: a group's number stands for the same entries at both ends, and is
    acknowledged only when the follower's disk holds them, but for partitions that are named as left."""

    def __init__(self, checkers: Checkers) -> None:
        self._checkers = checkers
        self._groups: dict[tuple[int, int], tuple[StreamRun, ...]] = {}
        """(stream, number) -> its runs."""
        self._acknowledged: dict[int, int] = {}

    def sent(self, group: StreamGroup) -> None:
        """A group leaves its sender."""
        if (group.stream, group.number) in self._groups:
            raise Violation("I-STREAM-POSITION", f"group {group.number} of stream {group.stream} was made twice")
        self._groups[group.stream, group.number] = group.runs

    def acknowledged(self, process: StreamProcess, ack: StreamAck) -> None:
        """An acknowledgement leaves its follower, which holds its directory."""
        if not ack.ack or not process.holds_directory():
            return
        before = self._acknowledged.get(ack.stream, 0)
        self._acknowledged[ack.stream] = max(before, ack.number)
        for number in range(before + 1, ack.number + 1):
            for run in self._groups.pop((ack.stream, number), ()):
                if run.partition not in ack.left:
                    self._check(process, run, number)

    def _check(self, process: StreamProcess, run: StreamRun, number: int) -> None:
        log = process.node.disk.logs[run.partition]
        end = run.start + run.entry_count
        if self._checkers.kept(log) < end:
            raise Violation(
                "I-STREAM-ACK", f"{process.name} acknowledges group {number}, and lacks {run.start} to {end}"
            )
        first = max(run.start, log.start)
        wires = decode_wires(run.encoded, decode_runs(run.encoded, 1)[0], first, end) if first < end else []
        if wires != [entry.wire for entry in log.read(first, end)]:
            raise Violation("I-STREAM-POSITION", f"{process.name} holds other entries for group {number}")


class SimPartitions:
    """The partitions of a process."""

    def __init__(self, process: StreamProcess) -> None:
        self._process = process

    def get(self, partition: int) -> SimPartition | None:
        """The partition; None when it is not here."""
        replica = self._process.replicas.get(partition)
        return None if replica is None else SimPartition(partition, replica)


class SimTimer:
    """A call that can be cancelled."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        """Do not make it."""
        self.cancelled = True


class ProcessShell:
    """What the streams of a process need of it: links, log, disk, clock, events and scheduler."""

    def __init__(self, process: StreamProcess) -> None:
        self._process = process

    def send(self, node: str, _partition: int, message: LinkMessage) -> bool:
        """A message on its way, as bytes."""
        process = self._process
        if isinstance(message, StreamGroup):
            process.simulation.stream_checks.sent(message)
        elif isinstance(message, StreamAck):
            process.simulation.stream_checks.acknowledged(process, message)
        item = b"".join(Encoder().item(0, message))
        (_, decoded, _) = decode_item(msgpack.unpackb(item, use_list=False))
        process.simulation.counts[f"sent_{type(message).__name__}"] += 1
        process.simulation.network.send(process, node, STREAM, cast(Any, decoded))
        return True

    def takes_stream(self, node: str) -> bool:
        """True after `node` asked for a stream, until a connection with it breaks."""
        return node in self._process.stream_nodes

    def persist_encoded(self, runs: Sequence[StreamRun]) -> None:
        """Append to the log what a stream brought."""
        for run in runs:
            self._process.append_streamed(run)

    def refuses(self, _partition: object, _size_bytes: int) -> bool:
        """The disk is never full."""
        return False

    def now_ms(self) -> int:
        """Virtual time."""
        return self._process.simulation.now_ms

    def dispatch_all(self, event: ev.Event) -> None:
        """An event for every core."""
        self._process.post_all(event)

    def carry_out(self, partition: SimPartition, rule: Callable[..., Sequence[fx.Effect]], *arguments: object) -> None:
        """Carry out what a core asked for."""
        self._process.stream_effects(partition.id, rule(*arguments))

    def fail(self, error: Exception) -> None:
        """A bug ends the simulation."""
        raise error

    def call_soon(self, function: Callable[[], object]) -> None:
        """In this or the next millisecond."""
        self.call_later(0, function)

    def call_later(self, delay_s: float, function: Callable[[], object]) -> SimTimer:
        """After `delay_s`, if the process lives; later if it is paused."""
        timer, process = SimTimer(), self._process

        def call() -> None:
            if timer.cancelled or not process.alive:
                return
            if process.paused:
                process.simulation.after(PAUSED_CHECK_MS, call)
            else:
                function()

        delay_ms = round(1000 * delay_s) or process.simulation.rng.randint(0, 1)
        process.simulation.after(delay_ms, call)
        return timer


class StreamProcess(Process):
    """A process that replicates by streams."""

    simulation: StreamSimulation

    def __init__(self, simulation: StreamSimulation, node: Any, number: int) -> None:
        super().__init__(simulation, node, number)
        shell = cast(Any, ProcessShell(self))
        self.stream_nodes: set[str] = set()
        """Nodes that asked for a stream."""
        self.streams = PairStreams(
            cast(Any, SimPartitions(self)),
            shell,
            shell,
            shell,
            shell,
            shell,
            shell,
            Rounds(),
            simulation.rng.getrandbits(50),
        )
        self._durable_due = False

    # -- connections ----------------------------------------------------------------------------

    def link_up(self, peer: str) -> None:
        """The connection dialled to `peer` stands: ask for a stream."""
        super().link_up(peer)
        simulation = self.simulation
        if self.node.name not in simulation.without_streams:
            simulation.after(2, self._want_stream, peer)

    def _want_stream(self, peer: str) -> None:
        other = self.simulation.nodes[peer].current
        if self.alive and isinstance(other, StreamProcess) and peer in self.links:
            other.stream_wanted(self.node.name)

    def stream_wanted(self, peer: str) -> None:
        """`peer` takes a stream."""
        simulation = self.simulation
        if not self.paused and self.node.name not in simulation.without_streams:
            self.stream_nodes.add(peer)
            self.streams.wanted(peer)

    def link_down(self, peer: str) -> None:
        """A connection with `peer` broke; at times nobody says so."""
        super().link_down(peer)
        if self.simulation.network.calm or self.simulation.rng.random() >= self.simulation.plan.link_silence:
            self.streams.link_lost(peer)

    # -- messages -------------------------------------------------------------------------------

    def receive(self, partition: int, event: ev.Received) -> None:
        """A message arrives, of a partition or of a stream."""
        if partition == STREAM:
            self.post(partition, event)
        else:
            super().receive(partition, event)

    def post(self, partition: int, event: ev.Event) -> None:
        """As of every process; messages of streams do not go to a core."""
        if partition != STREAM or not self.alive or self.paused:
            super().post(partition, event)
            return
        assert isinstance(event, ev.Received)
        message = cast(object, event.message)
        if isinstance(message, StreamGroup):
            self.streams.received(event.node, message)
        else:
            assert isinstance(message, StreamAck)
            self.streams.acknowledged(event.node, message)

    def _step(self, partition: int, event: ev.Event) -> list[fx.Effect]:
        """The shortest ways first, as the product's runtime takes them."""
        replica = self.replicas[partition]
        short = (isinstance(event, ev.Persisted) and replica.persisted_from_stream(event.end)) or (
            isinstance(event, ev.AppliedTo) and replica.applied_quietly(event.end)
        )
        if not short:
            return super()._step(partition, event)
        self.simulation.counts["short_ways"] += 1
        self.simulation.checkers.stepped(self, partition, event, [])
        self.stepped(partition, event)
        if isinstance(event, ev.AppliedTo):
            self._answer(partition, event.end)
        return []

    # -- effects --------------------------------------------------------------------------------

    def perform(self, partition: int, effect: fx.Effect, made_here: bool) -> None:
        """Streams take what was appended for their followers."""
        if isinstance(effect, fx.StreamEntries):
            self.simulation.counts["streamed"] += len(effect.to)
            entries = self.read_log(partition, effect.start, effect.end)
            wires = [entry.wire for entry in entries]
            buffers = encode_entries(
                RunKind.ENTRIES, partition, effect.epoch, effect.epoch, effect.start, wires, list(map(len, wires))
            )
            self.streams.add(effect, [EncodedRun(partition, effect.epoch, effect.start, len(entries), buffers)])
            return
        if isinstance(effect, fx.RoleChanged) and effect.role is ReplicaRole.LEADER:
            for node in self.streams.open_nodes:
                self.replicas[partition].step(ev.StreamOpened(node), self.simulation.now_ms)
        super().perform(partition, effect, made_here)

    def stream_effects(self, partition: int, effects: Sequence[fx.Effect]) -> None:
        """Carry out what a core asked for when a stream told it something."""
        simulation = self.simulation
        simulation.trace.append((simulation.now_ms, self.name, partition, StreamStep("stream"), effects))
        simulation.checkers.stepped(self, partition, cast(Any, StreamStep("stream")), effects)
        for effect in effects:
            self.perform(partition, effect, False)

    def append_streamed(self, run: StreamRun) -> None:
        """Append a run that a stream brought."""
        self.simulation.counts["stream_runs"] += 1
        self._append(run.partition, tuple(decode_entry(wire) for wire in run.wires), False)

    def stepped(self, partition: int, event: ev.Event) -> None:
        """What became durable is acknowledged once all cores know of it."""
        super().stepped(partition, event)
        if isinstance(event, ev.Persisted | ev.Truncated) and not self._durable_due:
            self._durable_due = True
            self.simulation.after(0, self._durable)

    def _durable(self) -> None:
        self._durable_due = False
        if self.alive and not self.paused:
            self.streams.durable()


class StreamSimulation(ClusterSimulation):
    """A simulation with streams."""

    option: ClassVar[str] = " --streams"

    def __init__(self, seed: int, *, plan: Plan | None = None, **options: Any) -> None:
        rng = Random(f"streams {seed}")
        if plan is None:
            plan = Plan.drawn(Random(seed))
            plan.partition_count = rng.choice((1, 2, 3, 3))
            # A lost message ends a stream: with few of them streams live long enough to meet other faults.
            plan.lost *= rng.choice((0, 0.1, 1))
            plan.overtaken *= rng.choice((0, 0.1, 1))
            plan.repeated *= rng.choice((0, 0.3, 1))
        self.without_streams: frozenset[str] = frozenset(("n1",)) if rng.random() < 0.15 else frozenset()
        """Nodes of a version that does not know streams."""
        options.setdefault("shell", StreamProcess)
        super().__init__(seed, plan=plan, **options)
        self.stream_checks = StreamChecks(self.checkers)
