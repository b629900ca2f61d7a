"""Some cores and a record in one place: every effect is carried out at once, in order, unless a test holds it back."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.replica import Replica, ReplicaRole
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus

NODES = ("n1", "n2", "n3")


class ReplicaGroup:
    """`logs` hold what each replica persisted; `mute` names nodes that can neither send nor receive; `slow` nodes whose
    log is written and not reported durable."""

    def __init__(
        self,
        min_isr: int = 2,
        options: ReplicaOptions | None = None,
        nodes: tuple[str, ...] = NODES,
        replicas: tuple[str, ...] = NODES,
    ) -> None:
        self.nodes = nodes
        self.now_ms = 0
        self.logs: dict[str, list[Entry]] = {node: [] for node in nodes}
        self.isolated: set[str] = set()
        self.slow_disks: set[str] = set()
        self.unregistered: set[str] = set()
        self.served: list[int] = []
        self.refused: list[int] = []
        self.replicas = {node: self.new_replica(node, options or ReplicaOptions()) for node in nodes}
        self.queue: deque[tuple[str, ev.Event]] = deque()
        self.record = PartitionRecord(
            0,
            "default",
            0,
            1,
            replicas,
            isr=frozenset(Member(node, 1) for node in replicas),
            min_isr=min_isr,
            version=0,
        )
        for number, node in enumerate(nodes):
            self.deliver(node, ev.SessionStarted(100 + number))

    def new_replica(self, node: str, options: ReplicaOptions, log_id: int = 1) -> Replica:
        """A replica opened on its log; all of the log is durable, nothing is applied."""
        log = self.logs[node]
        table: list[tuple[int, int]] = []
        for entry in log:
            if not table or table[-1][0] != entry.epoch:
                table.append((entry.epoch, entry.offset))
        last = table[-1][0] if table else 0
        base = hash(node) % 1000 + self.now_ms
        return Replica(0, node, log_id, len(log), tuple(table), 0, last, options, len(log), 0, base)

    def elect(self, node: str) -> Replica:
        """Make `node` the leader of the next epoch, as controllers do."""
        me = Incarnation(node, 100 + self.nodes.index(node))
        candidate = PartitionStatus.CANDIDATE_FOUND
        self.write(replace(self.record, epoch=self.record.epoch + 1, status=candidate, candidate=me, leader=None))
        self.write(replace(self.record, status=PartitionStatus.ONLINE, candidate=None, leader=me))
        return self.replicas[node]

    def write(self, record: PartitionRecord) -> None:
        """The metastore accepts `record`, and all connected nodes read it."""
        self.record = replace(record, version=self.record.version + 1)
        for node in self.nodes:
            if node not in self.isolated:
                self.deliver(node, ev.RecordSeen(self.record))

    def deliver(self, node: str, event: ev.Event) -> None:
        """Deliver one event, and carry out everything that follows from it."""
        self.queue.append((node, event))
        while self.queue:
            to, what = self.queue.popleft()
            for effect in self.replicas[to].step(what, self.now_ms):
                self.perform(to, effect)

    def advance_time(self, until_ms: int, step_ms: int = 50) -> None:
        """Advance time, ticking each replica that has a deadline due."""
        while self.now_ms < until_ms:
            self.now_ms += step_ms
            for node, replica in self.replicas.items():
                due_ms = replica.deadline_ms()
                if due_ms is not None and due_ms <= self.now_ms:
                    self.deliver(node, ev.Tick())

    def append(self, count: int = 1) -> list[fx.Effect]:
        """The leader takes `count` entries; its own effects are returned after all that follows is done."""
        leader = next(r for r in self.replicas.values() if r.role is ReplicaRole.LEADER)
        entries = tuple(
            make_entry(EntryKind.DATA, leader.epoch, leader.leo + i, request_id=b"", origin=b"", time_ms=0)
            for i in range(count)
        )
        effects = leader.step(ev.Append(leader.epoch, entries), self.now_ms)
        for effect in effects:
            self.perform(leader.member.node, effect)
        while self.queue:
            self.deliver(*self.queue.popleft())
        return effects

    def perform(self, node: str, effect: fx.Effect) -> None:
        log = self.logs[node]
        match effect:
            case fx.PersistEpoch(epoch):
                self.queue.append((node, ev.EpochPersisted(epoch)))
            case fx.AppendBarrier(epoch, offset):
                assert offset == len(log)
                log.append(make_entry(EntryKind.BARRIER, epoch, offset, request_id=b"", origin=b"", time_ms=0))
                self.durable(node)
            case fx.Persist(entries):
                assert entries[0].offset == len(log)
                log.extend(entries)
                self.durable(node)
            case fx.Truncate(to_offset):
                del log[to_offset:]
                self.queue.append((node, ev.Truncated(to_offset)))
            case fx.Apply(end):
                self.queue.append((node, ev.AppliedTo(end)))
            case fx.Send(to, message):
                self.carry(node, to, message)
            case fx.Replicate(to, head, end):
                self.carry(node, to, head._replace(entries=tuple(log[head.start : end])))
            case fx.WriteRecord(record, needs):
                self.conditional(node, record, needs)
            case fx.ReadReady(tokens):
                self.served += tokens
            case fx.ReadRefused(tokens):
                self.refused += tokens
            case fx.ReadRecordSync(nonce) if node not in self.isolated:
                self.queue.append((node, ev.RecordSynced(nonce, self.record)))
            case _:
                pass

    def durable(self, node: str) -> None:
        if node not in self.slow_disks:
            self.queue.append((node, ev.Persisted(len(self.logs[node]))))

    def carry(self, node: str, to: str, message: object) -> None:
        if not self.isolated & {node, to}:
            self.queue.append((to, ev.Received(node, message)))  # type: ignore[arg-type]

    def conditional(self, node: str, record: PartitionRecord, needs: tuple[Member, ...]) -> None:
        bad = any(member.node in self.unregistered for member in needs)
        if record.version != self.record.version or bad:
            self.queue.append((node, ev.WriteRefused(record.version, self.record)))
            return
        self.record = replace(record, version=record.version + 1)
        self.queue.append((node, ev.WriteConfirmed(self.record)))
        for other in self.nodes:
            if other not in self.isolated:
                self.queue.append((other, ev.RecordSeen(self.record)))
