"""Simulations of clusters that replicate by the product's pair streams, with several partitions.

`repl.runtime.pair_streams` runs in each process. Groups and acknowledgements cross as bytes, and are lost, repeated,
overtaken and held like other messages. A stream is requested when a connection comes up; some nodes have a version
without streams.

Each leader moves the soft cursor of a queue now and then; `repl.runtime.replication_sender` and `replication_receiver`
bring it to the followers, which keep the newest. A cursor is the time at which it was made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from typing import Any, ClassVar, cast

import msgpack

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr import messages as ms
from isthmus.repl.isr.pair_stream import StreamAck, StreamGroup, StreamRun
from isthmus.repl.isr.replica import Replica, ReplicaRole
from isthmus.repl.model.entry import decode_entry
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.replog.frames import EntryRunKind, decode_runs, decode_wires, encode_entries
from isthmus.repl.replog.port import EncodedRun
from isthmus.repl.runtime.applier import SOFT_CURSOR_INTERVAL_MS
from isthmus.repl.runtime.cursor_gossip import SEND_INTERVAL_MS, CursorGossip
from isthmus.repl.runtime.pair_streams import PairStreams
from isthmus.repl.runtime.replication_receiver import ReplicationReceiver
from isthmus.repl.runtime.replication_sender import ReplicationSender
from isthmus.repl.runtime.rounds import Rounds
from isthmus.repl.transport.codec import Encoder, decode_item
from isthmus.repl.transport.port import NO_CURSORS, Delivery, LinkMessage
from tests.simulation.cluster.checkers import Checkers
from tests.simulation.cluster.invariants import Violation
from tests.simulation.cluster.loop import SimLoop
from tests.simulation.cluster.plan import Plan
from tests.simulation.cluster.process import LEADING, Process
from tests.simulation.cluster.simulator import ClusterSimulation

STREAM = -1
"""The partition under which messages of streams travel."""

PAUSED_CHECK_MS = 5

QUEUE = b"to-west"
"""The queue that has a soft cursor."""

CURSOR_MOVES = 0.5
"""How often a leader moves the cursor when it shares cursors."""

CURSOR_LIMIT_MS = SEND_INTERVAL_MS + SOFT_CURSOR_INTERVAL_MS + 500
"""Virtual time within which followers have a cursor without faults: the least time between two sent cursors, the
interval of sharing, and the way."""

RECONNECT_MS = 500
"""Virtual time after a connection broke within which it is up again, and the follower follows again."""

REPORT_DELAYS_MS = (0, 0, 30, 150)
"""By how much at most a process hears later from its log that something is durable, one of these for each seed. Then
one acknowledgement covers the groups of several turns, as on a loop that is busy."""

HAND_OVER_MS = 30_000
"""Virtual time within which a leader hands over: requests to the metastore and answers may still be lost or late."""


@dataclass(slots=True)
class SimPartition:
    """A partition of a process, as the streams and cursors see it."""

    id: int
    replica: Replica
    cursor_gossip: CursorGossip = field(default_factory=CursorGossip)


class StreamChecks:
    """I-STREAM-POSITION and I-STREAM-ACK: a group's number means the same entries at both ends, and is acknowledged
    only when the follower's disk holds them, except for partitions that are named as left."""

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
        counts = process.simulation.counts
        counts["acknowledged_at_once"] += ack.number > before + 1
        for number in range(before + 1, ack.number + 1):
            runs = self._groups.pop((ack.stream, number), ())
            counts["left_in_an_earlier_group"] += number < ack.number and any(r.partition in ack.left for r in runs)
            for run in runs:
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
        self._attached: dict[int, SimPartition] = {}

    def attached(self, partition: int) -> None:
        """A replica was created; it has no cursors."""
        self._attached[partition] = SimPartition(partition, self._process.replicas[partition])

    def get(self, partition: int) -> SimPartition | None:
        """The partition; None when it is not here."""
        found = self._attached.get(partition)
        return found if found is not None and self._process.replicas.get(partition) is found.replica else None

    def all(self) -> list[SimPartition]:
        """The partitions that are here."""
        return [found for partition in self._attached if (found := self.get(partition)) is not None]


class SimTimer:
    """A call that can be cancelled."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        """Do not make it."""
        self.cancelled = True


class ProcessShell:
    """A process as its streams, sender and receiver see it: links, log, disk, clock, events and scheduler."""

    def __init__(self, process: StreamProcess) -> None:
        self._process = process

    def send(
        self,
        node: str,
        partition: int,
        message: LinkMessage,
        *,
        live: bool = True,
        cursors: Mapping[bytes, bytes] = NO_CURSORS,
    ) -> bool:
        """Send a message; those of streams, and cursors with their carrier messages, as bytes. As the product's links
        it drops an AppendEntries without a connection, so that this is not the last one sent."""
        process = self._process
        if isinstance(message, ms.AppendEntries) and node not in process.links:
            return False
        counts, network = process.simulation.counts, process.simulation.network
        if isinstance(message, StreamGroup):
            process.simulation.stream_checks.sent(message)
        elif isinstance(message, StreamAck):
            process.simulation.stream_checks.acknowledged(process, message)
        elif not cursors:
            network.send(process, node, partition, message)
            return True
        item = b"".join(Encoder().item(0, message, cursors))
        decoded = decode_item(msgpack.unpackb(item, use_list=False))
        counts["cursors_sent" if cursors else f"sent_{type(message).__name__}"] += 1
        network.send(process, node, partition if cursors else STREAM, cast(Any, decoded))
        return True

    def takes_stream(self, node: str) -> bool:
        """True after `node` requested a stream, until a connection with it breaks."""
        return node in self._process.stream_nodes

    def persist_encoded(self, runs: Sequence[StreamRun]) -> None:
        """Append a stream's entries to the log."""
        for run in runs:
            self._process.append_streamed(run)

    def soft_cursor(self, partition: SimPartition, queue: bytes, payload: bytes) -> None:
        """A cursor from the leader that is followed."""
        self._process.simulation.counts["cursors_taken"] += 1
        self._process.keep_cursor(partition, queue, payload)

    def grouped(self) -> contextlib.AbstractContextManager[None]:
        """Each message is a frame of its own."""
        return contextlib.nullcontext()

    def feed(self, partition: SimPartition, event: ev.Event) -> None:
        """A message for a core."""
        self._process.feed(partition.id, event)

    def check_log_start(self, partition: SimPartition) -> None:
        """A FollowRequest arrived: the process handles it itself."""

    def has_space(self, _size_bytes: int) -> bool:
        """The disk is never full."""
        return True

    def refuses(self, _partition: object, _size_bytes: int) -> bool:
        """The disk is never full."""
        return False

    def refuses_entries(self, _partition: object, _entries: object) -> bool:
        """The disk is never full."""
        return False

    def now_ms(self) -> int:
        """Virtual time."""
        return self._process.simulation.now_ms

    def dispatch_all(self, event: ev.Event) -> None:
        """An event for every core."""
        self._process.post_all(event)

    def feed_at(self, partition: SimPartition, event: ev.Event, _now_ms: int) -> None:
        """An event for a core."""
        self._process._step(partition.id, event)

    def fail(self, error: Exception) -> None:
        """A bug ends the simulation."""
        raise error

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call in this or the next millisecond."""
        self.call_later(0, function)

    def call_later(self, delay_s: float, function: Callable[[], object]) -> SimTimer:
        """Call after `delay_s`, if the process lives; later if it is paused."""
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
        """Nodes that requested a stream."""
        self.cursors: dict[int, bytes] = {}
        """The newest soft cursor that this process has, by partition."""
        self.partitions = SimPartitions(self)
        self.streams = PairStreams(
            cast(Any, self.partitions),
            shell,
            shell,
            shell,
            shell,
            shell,
            shell,
            Rounds(),
            simulation.rng.getrandbits(50),
        )
        with SimLoop(self).entered():
            self.sender = ReplicationSender(shell, shell, shell, shell)
        self.receiver = ReplicationReceiver(
            cast(Any, self.partitions), shell, shell, shell, cast(Any, self.streams), shell
        )
        self._durable_due = False

    def boot(self) -> None:
        """Share cursors from now on."""
        super().boot()
        self.simulation.after(self.simulation.chance.randint(1, SOFT_CURSOR_INTERVAL_MS), self._each_second)

    def attach(self, partition: int) -> None:
        """Create the replica; the cursor of a deleted one was another replica's."""
        super().attach(partition)
        self.partitions.attached(partition)
        self.cursors.pop(partition, None)

    # -- connections ----------------------------------------------------------------------------

    def link_up(self, peer: str) -> None:
        """The connection dialled to `peer` is up: request a stream."""
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
        """A connection with `peer` broke; at times without a notification."""
        super().link_down(peer)
        if self.simulation.network.calm or self.simulation.rng.random() >= self.simulation.plan.link_silence:
            self.sender.link_lost(cast(Any, self.partitions.all()), peer)
            self.streams.link_lost(peer)

    # -- messages -------------------------------------------------------------------------------

    def receive(self, partition: int, event: ev.Received) -> None:
        """A message arrives, of a partition or of a stream."""
        if partition == STREAM:
            self.post(partition, event)
        else:
            super().receive(partition, event)

    def post(self, partition: int, event: ev.Event) -> None:
        """As in every process; messages of streams do not reach a core, cursors only the receiver."""
        delivery = cast(object, event.message) if isinstance(event, ev.Received) else None
        if not isinstance(delivery, Delivery) or not self.alive or self.paused:
            super().post(partition, event)
            return
        assert isinstance(event, ev.Received)
        self.receiver.received(event.node, (delivery._replace(partition=partition),))

    def feed(self, partition: int, event: ev.Event) -> None:
        """Pass an event of the receiver on to a core."""
        super().post(partition, event)

    def send(self, to: str, partition: int, message: ms.Message) -> None:
        """A message of the core on its way; an AppendEntries takes cursors along."""
        place = self.partitions.get(partition)
        assert place is not None
        self.sender.send(cast(Any, place), fx.Send(to, message))

    # -- cursors --------------------------------------------------------------------------------

    def keep_cursor(self, partition: SimPartition, queue: bytes, payload: bytes) -> None:
        """Keep a cursor if it is newer: messages overtake each other here, which connections do not allow."""
        if payload > self.cursors.get(partition.id, b""):
            self.cursors[partition.id] = payload
            partition.cursor_gossip.update(queue, payload)

    def move_cursor(self, partition: int) -> bytes:
        """Acknowledgements move the cursor at the leader; returns it."""
        place, payload = self.partitions.get(partition), self.simulation.now_ms.to_bytes(8, "big")
        assert place is not None
        self.keep_cursor(place, QUEUE, payload)
        return payload

    def _each_second(self) -> None:
        simulation = self.simulation
        if not self.alive:
            return
        for place in self.partitions.all() if not self.paused else ():
            if place.replica.ready and simulation.chance.random() < CURSOR_MOVES:
                self.move_cursor(place.id)
            if place.replica.role in LEADING:
                self.sender.share_cursors(cast(Any, place))
        simulation.after(SOFT_CURSOR_INTERVAL_MS, self._each_second)

    # -- effects --------------------------------------------------------------------------------

    def perform(self, partition: int, effect: fx.Effect, made_here: bool) -> None:
        """Pass appended entries on to their followers' streams."""
        if isinstance(effect, fx.StreamEntries):
            self.simulation.counts["streamed"] += len(effect.to)
            entries = self.read_log(partition, effect.start, effect.end)
            wires = [entry.wire for entry in entries]
            buffers = encode_entries(
                EntryRunKind.ENTRIES, partition, effect.epoch, effect.epoch, effect.start, wires, list(map(len, wires))
            )
            self.streams.add(effect, [EncodedRun(partition, effect.epoch, effect.start, len(entries), buffers)])
            return
        if isinstance(effect, fx.RoleChanged) and effect.role is ReplicaRole.LEADER:
            for node in self.streams.open_nodes:
                self.replicas[partition].step(ev.StreamOpened(node), self.simulation.now_ms)
        elif isinstance(effect, fx.RoleChanged) and effect.role is ReplicaRole.RESIGNING:
            place = self.partitions.get(partition)
            assert place is not None
            self.simulation.resigned[partition] = self.move_cursor(partition)
            self.sender.share_cursors(cast(Any, place), at_once=True)
        super().perform(partition, effect, made_here)

    def append_streamed(self, run: StreamRun) -> None:
        """Append a run that a stream brought."""
        self.simulation.counts["stream_runs"] += 1
        self._append(run.partition, tuple(decode_entry(wire) for wire in run.wires), False)

    def stepped(self, partition: int, event: ev.Event) -> None:
        """Acknowledge durable entries once all cores have processed the event."""
        super().stepped(partition, event)
        if isinstance(event, ev.Persisted | ev.Truncated) and not self._durable_due:
            self._durable_due = True
            late_ms = self.simulation.report_delay_ms
            self.simulation.after(self.simulation.reports.randint(0, late_ms) if late_ms else 0, self._durable)

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
        """Nodes whose version has no streams."""
        self.chance = rng
        """Random numbers for cursors."""
        self.reports = Random(f"reports {seed}")
        self.report_delay_ms = self.reports.choice(REPORT_DELAYS_MS)
        self.resigned: dict[int, bytes] = {}
        """partition -> the cursor of the last leader that resigned."""
        options.setdefault("shell", StreamProcess)
        super().__init__(seed, plan=plan, **options)
        self.stream_checks = StreamChecks(self.checkers)

    # -- cursors --------------------------------------------------------------------------------

    def quiet(self) -> None:
        """See ClusterSimulation; and without faults cursors reach the followers (I-CURSOR-ARRIVES): at rest, over new
        connections, where the stream takes the first write, and the next leader in time."""
        super().quiet()
        self._check_cursors("at rest")
        self._reconnect()
        self._check_cursors("over new connections")
        self._reconnect()
        for client in self.clients:
            refused = self._leader(client.partition).submit(client, 1, 0, 0)
            assert refused is None, f"a leader at rest takes no write: {refused}"
        self._settle(0)
        self._check_cursors("beside a stream")
        for partition in self.metastore.records:
            self._hand_over(partition)
        self._settle(0)
        self._check_cursors("from the next leader")

    def _reconnect(self) -> None:
        for one, other in combinations(self.nodes, 2):
            self.network.flap(one, other)
        self._settle(RECONNECT_MS)

    def _settle(self, pass_ms: int) -> None:
        self.run_until(self.now_ms + pass_ms)
        if not self.wait_for(HAND_OVER_MS, lambda: not self.checkers.not_in_sync()):
            raise Violation("I-CONVERGE", f"not well though nothing fails: {self.checkers.not_in_sync()}")

    def _process(self, node: str) -> StreamProcess:
        process = self.nodes[node].current
        assert isinstance(process, StreamProcess)
        return process

    def _leader(self, partition: int) -> StreamProcess:
        leader = self.metastore.records[partition].leader
        assert leader is not None
        return self._process(leader.node)

    def _check_cursors(self, when: str) -> None:
        moved = {partition: self._leader(partition).move_cursor(partition) for partition in self.metastore.records}
        self.run_until(self.now_ms + CURSOR_LIMIT_MS)
        for partition, payload in moved.items():
            for member in sorted(self.metastore.records[partition].isr):
                self._check_cursor(member.node, partition, payload, when)

    def _check_cursor(self, node: str, partition: int, payload: bytes, when: str) -> None:
        found = self._process(node).cursors.get(partition, b"")
        if found < payload:
            made = "none" if not found else f"that of {int.from_bytes(found)} ms"
            raise Violation(
                "I-CURSOR-ARRIVES",
                f"{when}: {node} has {made} in partition {partition} at {self.now_ms} ms, not that of "
                f"{int.from_bytes(payload)} ms",
            )

    def _hand_over(self, partition: int) -> None:
        """Hand over: the next leader has the cursor with which the one before resigned, also if another one is elected,
        since the record reached the target late."""
        record = self.metastore.records[partition]
        assert record.leader is not None
        others = sorted(member.node for member in record.isr if member.node != record.leader.node)
        if not others:
            return
        self.resigned.pop(partition, None)
        order = ev.TransferLeadership(self.chance.choice(others), self.now_ms + HAND_OVER_MS)
        self._process(record.leader.node).post(partition, order)
        if not self.wait_for(HAND_OVER_MS, lambda: self._led_since(record)):
            raise Violation("I-CONVERGE", f"partition {partition} is not handed over: {record}")
        leader = self._leader(partition).node.name
        self._check_cursor(leader, partition, self.resigned[partition], "after a hand-over")
        self.counts["cursor_handed_over"] += leader != record.leader.node

    def _led_since(self, record: PartitionRecord) -> bool:
        now = self.metastore.records[record.partition]
        if now.epoch == record.epoch or now.leader is None:
            return False
        return self._process(now.leader.node).replicas[record.partition].ready
