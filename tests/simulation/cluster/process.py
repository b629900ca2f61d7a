"""One process of a node: it carries out the core's effects, as the product's runtime does.

Effects are answered by events, in order. Entries for followers are read when they are sent, not when that was
requested. A paused process receives nothing until it continues (the machine finishes disk requests that were already
made). A killed one sends nothing any more; a process that lost the directory's lock gets errors from the disk. A
subclass may carry a defect of the shell (`mutants.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr import messages as ms
from isthmus.repl.isr.replica import Replica, ReplicaRole
from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.model.record import Incarnation, PartitionRecord
from tests.simulation.cluster.declared_losses import DIVERGED
from tests.simulation.cluster.disk_writers import LogWriter, StoreWriter
from tests.simulation.cluster.replicas import ReplicaManager
from tests.simulation.cluster.session import Session
from tests.simulation.cluster.state_transfer import StateTransfers

if TYPE_CHECKING:
    from tests.simulation.cluster.clients import Client
    from tests.simulation.cluster.nodes import Node
    from tests.simulation.cluster.simulator import ClusterSimulation

INBOX_LIMIT = 600
"""Messages that a paused process's connections hold; further ones are lost."""

LEADING = (ReplicaRole.LEADER, ReplicaRole.RESIGNING)

ORIGIN = bytes(16)


class Process:
    """A running program on `node`."""

    def __init__(self, simulation: ClusterSimulation, node: Node, number: int) -> None:
        self.simulation = simulation
        self.node = node
        self.name = f"{node.name}#{number}"
        self.alive = True
        self.paused = False
        self.stopping = False
        self.session = Session(self)
        self.log = LogWriter(self)
        self.store = StoreWriter(self)
        self.transfers = StateTransfers(self)
        self.copies = ReplicaManager(self)
        self.links: set[str] = set()
        """Nodes with an established connection, as far as this process can know."""
        self.replicas: dict[int, Replica] = {}
        self.undecided: dict[int, list[PartitionRecord]] = {}
        """Conditional writes that this process sent, on versions that are not overtaken as far as it knows."""
        self.tails: dict[int, dict[int, Entry]] = {}
        """Entries by offset that this process appended and that are not applied."""
        self.waiting: dict[int, deque[tuple[int, bytes, Client]]] = {}
        """Appended requests that wait for their entry to be applied."""
        self.reads: dict[int, tuple[int, int]] = {}
        """token -> (partition, least offset that must be applied when it is served)."""
        self._inbox: deque[tuple[int, ev.Event]] = deque()
        self._untold_trims: set[int] = set()
        self._renewed: dict[int, int] = {}
        self._tick_at_ms: int | None = None

    # -- life -----------------------------------------------------------------------------------

    def boot(self) -> None:
        """Take the directory, recover, begin a session."""
        simulation, disk = self.simulation, self.node.disk
        assert disk.holder is None
        disk.holder = self
        unsynced = {}
        self.copies.boot()
        for partition in self.node.partitions:
            log, store = disk.logs[partition], disk.stores[partition]
            if log.synced < log.end:
                simulation.counts["unsynced_tail_found"] += 1
                if simulation.plan.sync_on_open:
                    log.sync()
                else:
                    unsynced[partition] = log.end
            if store.target:
                simulation.counts["replay"] += 1
            self.attach(partition)
        if unsynced:
            self.log.sync_recovered(unsynced)
        self.session.start()
        self._checkpoint()

    def attach(self, partition: int) -> None:
        """Create the replica from the disk's contents."""
        simulation, disk = self.simulation, self.node.disk
        log, store = disk.logs[partition], disk.stores[partition]
        self.replicas[partition] = simulation.replica_class(
            partition=partition,
            node=self.node.name,
            log_id=disk.log_ids[partition],
            leo=log.end,
            epoch_table=log.table(),
            applied=store.applied,
            epoch_seen=disk.epochs_seen[partition],
            epoch_owner=disk.owner_of(partition),
            options=simulation.plan.options,
            durable=log.end if simulation.plan.asynchronous else log.synced,
            log_start=log.start,
            nonce_base=self.nonce_base(),
            transfer=self.transfers.found(store),
            committed=0 if store.transfer is not None else min(disk.committed(partition), log.end),
        )
        if store.transfer is None and store.target > store.applied:
            self.replicas[partition].step(ev.RowsMissing(store.target_epoch, store.target), simulation.now_ms)
        self.replicas[partition].step(ev.NodesReached(frozenset(self.links)), simulation.now_ms)
        self._untold_trims.discard(partition)
        self.undecided[partition] = []
        self.tails[partition] = {}
        self.waiting[partition] = deque()
        simulation.checkers.attached(self, partition)

    def nonce_base(self) -> int:
        """The first of this process's nonces."""
        return self.simulation.rng.getrandbits(60)

    def holds_directory(self) -> bool:
        """True while the disk obeys this process."""
        return self.node.disk.holder is self

    def die(self, why: str) -> None:
        """End the process at once; data not handed to the machine is lost, its clients never get an answer."""
        if not self.alive:
            return
        self.alive = False
        self.simulation.log_event(self.name, f"dies: {why}")
        if self.holds_directory():
            self.log.leave_behind()
            self.store.leave_behind()
            self.node.disk.holder = None
        for waiting in self.waiting.values():
            for _, _, client in waiting:
                client.unknown()
            waiting.clear()
        self.reads.clear()
        self.node.died(self)

    def resume(self) -> None:
        """Continue after a pause with everything that arrived meanwhile."""
        self.paused = False
        self.simulation.log_event(self.name, "goes on")
        while self._inbox and not self.paused and self.alive:
            self.post(*self._inbox.popleft())

    # -- events ---------------------------------------------------------------------------------

    def post(self, partition: int, event: ev.Event) -> None:
        """An event for a partition's core; waits while paused."""
        if not self.alive:
            return
        if self.paused:
            self._inbox.append((partition, event))
        elif partition in self.replicas:
            self._step(partition, event)

    def post_all(self, event: ev.Event) -> None:
        """An event for every core."""
        for partition in list(self.replicas):
            self.post(partition, event)

    def see(self, record: PartitionRecord) -> None:
        """A record reaches this process, however late."""
        if record.partition in self.replicas:
            self.post(record.partition, ev.RecordSeen(record))
        self.copies.seen(record)

    def receive(self, partition: int, event: ev.Received) -> None:
        """A message arrives."""
        if partition in self.replicas and len(self._inbox) < INBOX_LIMIT:
            self.post(partition, event)

    def link_up(self, peer: str) -> None:
        """The connection dialled to `peer` is up; the notification may be missing."""
        self.links.add(peer)
        self._note_reached()
        if self.simulation.network.calm or self.simulation.rng.random() >= self.simulation.plan.link_silence:
            self.post_all(ev.LinkUp(peer))

    def link_down(self, peer: str) -> None:
        """A connection with `peer` broke."""
        self.links.discard(peer)
        self._note_reached()
        if self.simulation.network.calm or self.simulation.rng.random() >= self.simulation.plan.link_silence:
            self.simulation.counts["link_down"] += 1
            self.post_all(ev.LinkDown(peer))

    def _note_reached(self) -> None:
        for replica in self.replicas.values():
            replica.step(ev.NodesReached(frozenset(self.links)), self.simulation.now_ms)

    def _step(self, partition: int, event: ev.Event) -> list[fx.Effect]:
        replica = self.replicas[partition]
        simulation = self.simulation
        if partition in self._untold_trims and type(event) is ev.Received and type(event.message) is ms.FollowRequest:
            self.report_trimmed(partition)
        effects = self.step_core(replica, event)
        simulation.trace.append((simulation.now_ms, self.name, partition, event, effects))
        simulation.checkers.stepped(self, partition, event, effects)
        made_here = type(event) is ev.Append
        self.stepped(partition, event)
        for effect in effects:
            self.perform(partition, effect, made_here)
        if type(event) is ev.AppliedTo:
            self._answer(partition, event.end)
        due_ms = replica.deadline_ms()
        if due_ms is not None and (self._tick_at_ms is None or due_ms < self._tick_at_ms):
            self._tick_at_ms = due_ms
            simulation.after(max(1, due_ms - simulation.now_ms), self._tick, due_ms)
        return effects

    def step_core(self, replica: Replica, event: ev.Event) -> list[fx.Effect]:
        """Let a core take an event."""
        return replica.step(event, self.simulation.now_ms)

    def stepped(self, partition: int, event: ev.Event) -> None:
        """The core took an event; none of its effects is carried out yet."""

    def perform(self, partition: int, effect: fx.Effect, made_here: bool) -> None:
        """Carry out the core's effects."""
        simulation = self.simulation
        if self.node.ambush is type(effect) and self.holds_directory():
            simulation.faults.ambushed(self.node)
        match effect:
            case fx.Send(to, message):
                self.send(to, partition, message)
            case fx.Replicate():
                simulation.after(1 if effect.live else simulation.rng.randint(2, 12), self.replicate, partition, effect)
            case fx.Persist(entries):
                self._append(partition, entries, made_here)
            case fx.Apply(end):
                self.store.ask(partition, end)
            case fx.PersistEpoch(epoch, owner):
                self.log.note_epoch(partition, epoch, owner)
            case fx.AppendBarrier(epoch, offset):
                barrier = make_entry(
                    EntryKind.BARRIER, epoch, offset, request_id=b"", origin=ORIGIN, time_ms=simulation.now_ms
                )
                self._append(partition, (barrier,), True)
            case fx.Truncate(to_offset, _):
                self.truncate(partition, to_offset)
            case fx.WriteRecord(record, needs):
                self.undecided[partition].append(record)
                self.session.write(record, needs)
            case fx.ReadReady(tokens):
                for token in tokens:
                    self._read(token)
            case fx.ReadRefused(tokens, reason):
                for token in tokens:
                    del self.reads[token]
                    simulation.counts[f"read_refused_{reason}"] += 1
            case fx.ReadRecordSync(nonce):
                self.session.sync_record(partition, nonce)
            case fx.RefreshRecord():
                self.session.look()
            case fx.NewLogIdentity():
                simulation.counts["gen_renewed"] += 1
                simulation.after(self.log.disk_ms(2, 20), self._renew_log_id, partition)
            case fx.Promoted():
                for controller in simulation.controllers:
                    if simulation.rng.random() >= simulation.plan.lost and simulation.network.open(
                        self.node.name, controller.name
                    ):
                        simulation.after(simulation.rng.randint(1, 30), controller.on_promoted, partition, effect)
            case fx.SteppedDown(_, unknown_from, _):
                waiting = self.waiting[partition]
                while waiting and waiting[-1][0] >= unknown_from:
                    waiting.pop()[2].unknown()
                    simulation.counts["unknown"] += 1
            case fx.RoleChanged(role, _, reason):
                if role is ReplicaRole.FAILED and not reason.startswith(DIVERGED):
                    simulation.after(30, self.die, "its disk failed")
            case (
                fx.BeginTransfer()
                | fx.InstallRows()
                | fx.InstallMetadata()
                | fx.FinishTransfer()
                | fx.SendTransferChunk()
            ):
                self.transfers.perform(partition, effect)
            case fx.LeadershipReady() | fx.AppendRefused():
                pass
            case _:
                raise AssertionError(f"the shell does not know {effect}")

    def send(self, to: str, partition: int, message: ms.Message) -> None:
        """A message of the core on its way."""
        self.simulation.network.send(self, to, partition, message)

    def _tick(self, due_ms: int) -> None:
        if self._tick_at_ms != due_ms:
            return  # an earlier one was requested meanwhile, and has requested the next
        self._tick_at_ms = None
        now_ms = self.simulation.now_ms
        for partition, replica in list(self.replicas.items()):
            due = replica.deadline_ms()
            if due is None:
                continue
            if due <= now_ms:
                self.post(partition, ev.Tick())
            elif self._tick_at_ms is None or due < self._tick_at_ms:
                self._tick_at_ms = due
                self.simulation.after(due - now_ms, self._tick, due)

    def disk_error(self, what: str) -> None:
        """The disk failed; every core is notified."""
        self.post_all(ev.PersistFailed(what))

    def _renew_log_id(self, partition: int) -> None:
        if self.alive and self.holds_directory() and partition in self.replicas:
            log_id = self.simulation.metastore.new_log_id()
            self.node.disk.log_ids[partition] = log_id
            self._renewed[partition] = log_id
            self.session.register_again()

    def registered_again(self) -> None:
        """The metastore has stored the present contents of this process's directory."""
        renewed, self._renewed = self._renewed, {}
        for partition, log_id in renewed.items():
            self.post(partition, ev.LogIdentityRenewed(log_id))

    # -- clients --------------------------------------------------------------------------------

    def submit(self, client: Client, count: int, epoch_shift: int, offset_shift: int) -> str | None:
        """A client's batch at the partition's leader; the code of its refusal, or None when it was appended.
        The shifts make a batch that was built for another state."""
        partition = client.partition
        replica = self.replicas[partition]
        epoch, offset = replica.epoch + epoch_shift, replica.leo + offset_shift
        entries = tuple(
            make_entry(
                EntryKind.DATA,
                max(1, epoch),
                max(0, offset + step),
                request_id=self.simulation.request_id(),
                origin=ORIGIN,
                time_ms=self.simulation.now_ms,
            )
            for step in range(count)
        )
        effects = self._step(partition, ev.Append(epoch, entries))
        refused = next((effect for effect in effects if type(effect) is fx.AppendRefused), None)
        if refused is not None:
            assert refused.count == count
            self.simulation.checkers.refused(partition, entries)
            return refused.reason
        self.waiting[partition].extend((entry.offset, entry.request_id, client) for entry in entries)
        return None

    def _answer(self, partition: int, end: int) -> None:
        waiting = self.waiting[partition]
        while waiting and waiting[0][0] < end:
            offset, request_id, client = waiting.popleft()
            self.simulation.checkers.acknowledged(self, partition, request_id, offset)
            client.acknowledged()

    def read(self, partition: int) -> None:
        """A committed read at this process."""
        token = self.simulation.token()
        self.reads[token] = (partition, self.simulation.checkers.read_begins(partition))
        alone = self.replicas[partition].confirms_alone
        effects = self._step(partition, ev.ReadRequested(token))
        assert not alone or fx.ReadReady((token,)) in effects, "a read that was confirmed unasked would not have been"

    def _read(self, token: int) -> None:
        partition, least = self.reads.pop(token)
        self.simulation.checkers.read_served(self, partition, least)

    # -- the log --------------------------------------------------------------------------------

    def _append(self, partition: int, entries: tuple[Entry, ...], made_here: bool) -> None:
        self.simulation.checkers.appended(self, partition, entries, made_here)
        tail = self.tails[partition]
        for entry in entries:
            tail[entry.offset] = entry
        self.log.ask(partition, entries)

    def truncate(self, partition: int, to_offset: int) -> None:
        """Drop the log's end."""
        tail = self.tails[partition]
        for offset in [offset for offset in tail if offset >= to_offset]:
            del tail[offset]
        self.log.ask(partition, to_offset)

    def replicate(self, partition: int, effect: fx.Replicate) -> None:
        """Send the present entries, if the request is still valid."""
        head = effect.head
        if not self.may_replicate(partition, head):
            self.simulation.counts["replicate_dropped"] += 1
            return
        end = min(effect.end, head.start + self.simulation.plan.message_entries)
        entries = tuple(self.read_log(partition, head.start, end))
        self.send(effect.to, partition, head._replace(entries=entries))

    def may_replicate(self, partition: int, head: ms.AppendEntries) -> bool:
        """The check at the time of sending: it leads still in this epoch, and the log reaches back."""
        replica = self.replicas[partition]
        return (
            self.alive
            and not self.paused
            and replica.role in LEADING
            and replica.epoch == head.epoch
            and head.start >= self.node.disk.logs[partition].start
        )

    def read_log(self, partition: int, start: int, end: int) -> Sequence[Entry]:
        """Entries that this process can see: those that it appended, or those in the log."""
        tail = self.tails[partition]
        if start in tail:
            return [tail[offset] for offset in range(start, end)]
        log = self.node.disk.logs[partition]
        if end <= log.end and not tail:
            return log.read(start, end)
        found = []
        for offset in range(start, end):
            mine = tail.get(offset)
            found.append(mine if mine is not None else log.read(offset, offset + 1)[0])
        return found

    def forget_tail(self, partition: int, end: int) -> None:
        """Drop applied entries from memory; from now on they are read from the log."""
        tail = self.tails[partition]
        for offset in [offset for offset in tail if offset < end]:
            del tail[offset]

    def _checkpoint(self) -> None:
        if not self.alive:
            return
        if not self.paused and self.holds_directory():
            self.checkpoint()
        self.simulation.after(self.simulation.rng.randint(600, 2_500), self._checkpoint)

    def checkpoint(self) -> None:
        """Raise the store's floors to the applied offsets, then trim the log below them."""
        rng, plan = self.simulation.rng, self.simulation.plan
        for partition in self.replicas:
            store = self.node.disk.stores[partition]
            if plan.asynchronous:
                self.node.disk.logs[partition].sync()  # floors must not be above the synced log
            if not store.target and store.transfer is None:
                store.floor = store.applied
            log = self.node.disk.logs[partition]
            if rng.random() < plan.trims:
                limit = self.simulation.trim_limit(partition)
                pin = self.transfers.pin(partition)
                limit = limit if pin is None else min(limit, pin)
                to = min(store.floor, log.synced, limit, rng.randint(log.start, log.end))
                if to > log.start:
                    self.trim(partition, to)

    def trim(self, partition: int, to: int) -> None:
        """Free the log below `to`; the core is notified, at the latest before the next FollowRequest."""
        self.simulation.counts["trim"] += 1
        self.node.disk.logs[partition].trim(to)
        self._untold_trims.add(partition)
        self.simulation.after(self.simulation.rng.randint(0, 600), self.report_trimmed, partition)

    def report_trimmed(self, partition: int) -> None:
        """Notify the core of the log's start; a process that died notifies nobody, and its successor may have deleted
        the replica."""
        if self.alive and partition in self._untold_trims and partition in self.replicas:
            self._untold_trims.discard(partition)
            self.post(partition, ev.Trimmed(self.node.disk.logs[partition].start))

    def me(self) -> Incarnation | None:
        """The (node, session id) of this process in the metastore."""
        session_id = self.session.session_id
        return None if session_id is None else Incarnation(self.node.name, session_id)
