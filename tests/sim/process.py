"""One process of a node: it carries out what the core asks for, as the product's runtime does.

One log writer and one store writer a process, each doing one batch at a time for all partitions; what the core
asked for is answered by events, in order. A paused process takes nothing in until it goes on (disk
requests that were already made are finished by the machine). A killed one never speaks again; a
process that lost the directory's lock gets errors from the disk.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from repl.isr import effects as fx
from repl.isr import events as ev
from repl.isr.replica import Replica, Role
from repl.model.entry import Entry, EntryKind, make_entry
from repl.model.record import Incarnation, PartitionRecord
from tests.sim.session import Session

if TYPE_CHECKING:
    from tests.sim.clients import Client
    from tests.sim.nodes import Node
    from tests.sim.world import World

WINDOW_ENTRIES = 12
"""Small, so that slow disks fill it."""

ORIGIN = bytes(16)


class Process:
    """A running program on `node`."""

    def __init__(self, world: World, node: Node, number: int) -> None:
        self.world = world
        self.node = node
        self.name = f"{node.name}#{number}"
        self.alive = True
        self.paused = False
        self.stopping = False
        self.session = Session(self)
        self.replicas: dict[int, Replica] = {}
        self.undecided: dict[int, list[PartitionRecord]] = {}
        self.tails: dict[int, dict[int, Entry]] = {}
        """Entries by offset that this process appended and that are not applied."""
        self.waiting: dict[int, deque[tuple[int, bytes, Client]]] = {}
        """Appended requests that wait for their entry to be applied."""
        self._inbox: deque[tuple[int, ev.Event]] = deque()
        self._unwritten: list[tuple[int, tuple[Entry, ...]]] = []
        self._writing = False
        self._to_apply: dict[int, int] = {}
        self._applying: dict[int, int] | None = None
        self._epochs_in_flight: dict[int, int] = {}
        self._tick_at_ms: int | None = None

    # -- life -----------------------------------------------------------------------------------

    def boot(self) -> None:
        """Take the directory, recover, begin a session."""
        world, disk = self.world, self.node.disk
        assert disk.holder is None
        disk.holder = self
        for partition, log in disk.logs.items():
            store = disk.stores[partition]
            if world.plan.sync_on_open:
                log.synced = log.end
            if store.target:
                world.counts["replay"] += 1
            self.replicas[partition] = world.replica_class(
                partition=partition,
                node=self.node.name,
                gen=disk.gens[partition],
                leo=log.end,
                epoch_table=log.table(),
                applied=store.applied,
                epoch_seen=disk.epochs_seen[partition],
                window_entries=WINDOW_ENTRIES,
                durable=log.synced,
            )
            self.undecided[partition] = []
            self.tails[partition] = {}
            self.waiting[partition] = deque()
        world.checkers.booted(self)
        self.session.start()
        self._checkpoint()

    def holds_directory(self) -> bool:
        """True while the disk obeys this process."""
        return self.node.disk.holder is self

    def die(self, why: str) -> None:
        """Gone at once; what it had not handed to the machine is lost, its clients never get an answer."""
        if not self.alive:
            return
        self.alive = False
        self.world.tell(self.name, f"dies: {why}")
        if self.holds_directory():
            self._leave_behind()
            self.node.disk.holder = None
        for waiting in self.waiting.values():
            for _, _, client in waiting:
                client.unknown()
            waiting.clear()
        self.node.died(self)

    def _leave_behind(self) -> None:
        """What the process was amid when it ended is done, half done, or not."""
        rng, disk = self.world.rng, self.node.disk
        asked = [(partition, entry) for partition, entries in self._unwritten for entry in entries]
        for partition, entry in asked[: rng.randint(0, len(asked))]:
            disk.logs[partition].append((entry,))
        for partition, epoch in self._epochs_in_flight.items():
            if rng.random() < 0.5:
                disk.epochs_seen[partition] = max(epoch, disk.epochs_seen[partition])
        if self._applying is not None and rng.random() < 0.5:
            self._apply(self._applying)

    def resume(self) -> None:
        """Go on after a pause with all that came meanwhile."""
        self.paused = False
        self.world.tell(self.name, "goes on")
        while self._inbox and not self.paused and self.alive:
            self._step(*self._inbox.popleft())

    # -- events ---------------------------------------------------------------------------------

    def post(self, partition: int, event: ev.Event) -> None:
        """An event for a partition's core; waits while paused."""
        if not self.alive:
            return
        if self.paused:
            self._inbox.append((partition, event))
        else:
            self._step(partition, event)

    def post_all(self, event: ev.Event) -> None:
        """An event for every core."""
        for partition in self.replicas:
            self.post(partition, event)

    def see(self, record: PartitionRecord) -> None:
        """A record reaches this process, however late."""
        self.post(record.partition, ev.RecordSeen(record))

    def _step(self, partition: int, event: ev.Event) -> list[fx.Effect]:
        replica = self.replicas[partition]
        effects = replica.step(event, self.world.now_ms)
        self.world.tell(f"{self.name}.{partition}", event, effects)
        self.world.checkers.stepped(self, partition, event, effects)
        for effect in effects:
            self._perform(partition, effect)
        if isinstance(event, ev.AppliedTo):
            self._answer(partition, event.end)
        self._arm(replica)
        return effects

    def _perform(self, partition: int, effect: fx.Effect) -> None:
        world = self.world
        if self.node.ambush is type(effect) and self.holds_directory():
            world.faults.ambushed(self.node)
        match effect:
            case fx.Persist(entries):
                self._log(partition, entries)
            case fx.AppendBarrier(epoch, offset):
                barrier = make_entry(
                    EntryKind.BARRIER, epoch, offset, request_id=b"", origin=ORIGIN, time_ms=world.now_ms
                )
                self._log(partition, (barrier,))
            case fx.Apply(end):
                self._to_apply[partition] = max(end, self._to_apply.get(partition, 0))
                self._apply_next()
            case fx.PersistEpoch(epoch):
                self._epochs_in_flight[partition] = epoch
                world.after(self._disk_ms(4, 25), self._epoch_written, partition, epoch)
            case fx.WriteRecord(record):
                self.undecided[partition].append(record)
                self.session.write(record)
            case fx.Promoted():
                for controller in world.controllers:
                    if world.rng.random() >= world.plan.lost and not self.session.cut:
                        world.after(world.rng.randint(1, 30), controller.heard, partition, effect)
            case fx.SteppedDown(_, unknown_from, _):
                waiting = self.waiting[partition]
                while waiting and waiting[-1][0] >= unknown_from:
                    waiting.pop()[2].unknown()
                    world.counts["unknown"] += 1
            case fx.RoleChanged(role, _, _):
                if role is Role.FAILED:
                    world.after(30, self.die, "its disk failed")
            case fx.LeadershipReady() | fx.Refused():
                pass

    def _arm(self, replica: Replica) -> None:
        due_ms = replica.deadline_ms()
        if due_ms is not None and (self._tick_at_ms is None or due_ms < self._tick_at_ms):
            self._tick_at_ms = due_ms
            self.world.after(max(0, due_ms - self.world.now_ms), self._tick)

    def _tick(self) -> None:
        self._tick_at_ms = None
        self.post_all(ev.Tick())

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
                request_id=self.world.request_id(),
                origin=ORIGIN,
                time_ms=self.world.now_ms,
            )
            for step in range(count)
        )
        effects = self._step(partition, ev.Append(epoch, entries))
        refused = next((effect for effect in effects if isinstance(effect, fx.Refused)), None)
        if refused is not None:
            assert refused.count == count
            self.world.checkers.refused(partition, entries)
            return refused.reason
        self.waiting[partition].extend((entry.offset, entry.request_id, client) for entry in entries)
        return None

    def _answer(self, partition: int, end: int) -> None:
        waiting = self.waiting[partition]
        while waiting and waiting[0][0] < end:
            offset, request_id, client = waiting.popleft()
            self.world.checkers.acknowledged(self, partition, request_id, offset)
            client.acknowledged()

    # -- the log --------------------------------------------------------------------------------

    def _disk_ms(self, low: int, high: int) -> int:
        return self.world.rng.randint(low, high) * self.node.disk.slow

    def _log(self, partition: int, entries: tuple[Entry, ...]) -> None:
        self.world.checkers.appended(self, partition, entries)
        tail = self.tails[partition]
        for entry in entries:
            tail[entry.offset] = entry
        self._unwritten.append((partition, entries))
        if not self._writing:
            self._writing = True
            self.world.after(self._disk_ms(0, 3), self._write_log)

    def _write_log(self) -> None:
        if not self._obeyed():
            return
        batch, self._unwritten = self._unwritten, []
        logs = self.node.disk.logs
        for partition, entries in batch:
            logs[partition].append(entries)
        ends = {partition: logs[partition].end for partition, _ in batch}
        self.world.after(self._disk_ms(1, 25), self._sync_log, ends)

    def _sync_log(self, ends: dict[int, int]) -> None:
        disk = self.node.disk
        if not self._obeyed():
            return
        if disk.fails:
            disk.fails = False
            self.world.counts["sync_failed"] += 1
            self._disk_error("EIO")
            return
        for partition, end in ends.items():
            disk.logs[partition].synced = max(end, disk.logs[partition].synced)
        self._writing = bool(self._unwritten)
        if self._unwritten:
            self.world.after(self._disk_ms(0, 3), self._write_log)
        for partition, end in ends.items():
            self.post(partition, ev.Persisted(end))

    def _obeyed(self) -> bool:
        """True when the disk does what this process asked for; an error is told otherwise."""
        if self.alive and not self.holds_directory():
            self.world.counts["stale_handle"] += 1
            self._disk_error("the directory has another owner")
        return self.holds_directory()

    def _disk_error(self, what: str) -> None:
        self.post_all(ev.PersistFailed(what))

    def _epoch_written(self, partition: int, epoch: int) -> None:
        if not self._obeyed():
            return
        disk = self.node.disk
        self._epochs_in_flight.pop(partition, None)
        disk.epochs_seen[partition] = max(epoch, disk.epochs_seen[partition])
        self.post(partition, ev.EpochPersisted(epoch))

    # -- the store ------------------------------------------------------------------------------

    def _apply_next(self) -> None:
        if self._applying is None and self._to_apply:
            self._applying, self._to_apply = self._to_apply, {}
            self.world.after(self._disk_ms(0, 8), self._write_store)

    def _write_store(self) -> None:
        if not self._obeyed():
            return
        jobs, self._applying = self._applying, None
        assert jobs is not None
        self._apply(jobs)
        for partition, end in jobs.items():
            self.post(partition, ev.AppliedTo(end))
        self._apply_next()

    def _apply(self, jobs: dict[int, int]) -> None:
        for partition, end in jobs.items():
            store = self.node.disk.stores[partition]
            if end > store.applied:
                entries = [self.entry(partition, offset) for offset in range(store.applied, end)]
                self.world.checkers.applied(partition, entries)
                store.write(entries)
            tail = self.tails[partition]
            for offset in [offset for offset in tail if offset < end]:
                del tail[offset]

    def entry(self, partition: int, offset: int) -> Entry:
        """An entry that this process can see: one that it appended, or one in the log."""
        mine = self.tails[partition].get(offset)
        return mine if mine is not None else self.node.disk.logs[partition].read(offset, offset + 1)[0]

    def _checkpoint(self) -> None:
        if not self.alive:
            return
        if not self.paused and self.holds_directory():
            self.checkpoint()
        self.world.after(self.world.rng.randint(600, 2_500), self._checkpoint)

    def checkpoint(self) -> None:
        """Move the store's floors up to what is applied, then trim the log below them."""
        for partition, store in self.node.disk.stores.items():
            if not store.target:
                store.floor = store.applied
            log = self.node.disk.logs[partition]
            if self.world.rng.random() < self.world.plan.trims:
                self.world.counts["trim"] += 1
                log.trim(min(store.floor, log.synced, self.world.rng.randint(log.start, log.end)))

    def me(self) -> Incarnation | None:
        """Who this process is to the metastore."""
        inc = self.session.inc
        return None if inc is None else Incarnation(self.node.name, inc)
