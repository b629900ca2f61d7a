"""One partition, peer, connection or turn fails alone: a loop over many goes on, whatever one of them raises (R-ALONE).

Each test injects an exception that nobody foresaw at one step of a loop of a node, and names the event under which the
node's log has it. `test_every_catch_is_named_by_a_test` finds catches that no test causes.
"""

from __future__ import annotations

import ast
import asyncio
import re
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from isthmus.aae.trees.tree_cache import TreeCache
from isthmus.node.observability.metrics import Metrics
from isthmus.node.services.clock_watch import ClockWatch
from isthmus.repl.clock import SystemTime
from isthmus.repl.controller import controller as deciding
from isthmus.repl.controller.log_positions import LogPositions
from isthmus.repl.controller.node_loads import NodeLoads
from isthmus.repl.controller.promotions import Promotions
from isthmus.repl.coordinator.tombstone_reaper import Reaper
from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.effects import Promoted
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.ports import AppliedEntries
from isthmus.repl.model.requests import WriteRequest
from isthmus.repl.runtime.metastore_copy import CopyKeeper
from isthmus.repl.runtime.metastore_effects import MetastoreEffects
from isthmus.repl.runtime.replay import LogReplay
from isthmus.repl.runtime.replica_lifecycle import ReplicaOpener, ReplicaRemover
from isthmus.repl.runtime.replication_sender import ReplicationSender
from isthmus.repl.runtime.transfer_receiver import TransferReceiver
from isthmus.repl.runtime.transfer_sender import TransferSender
from isthmus.repl.telemetry import Family
from isthmus.repl.transport import links
from isthmus.repl.transport.dialer import Dialler
from isthmus.repl.unforeseen import unforeseen
from isthmus.sink.service import Sink
from isthmus.sink.worker_pool import WorkerPool
from tests.support.memory_metastore import MemoryEnsemble
from tests.support.runtime_cluster import Node, eventually

NodeFactory = Callable[..., AbstractAsyncContextManager[Node]]

CHECKOUT = Path(__file__).parents[3]


class Injected(RuntimeError):
    """Raised by the tests alone."""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No earlier test has used up the limit of log lines."""
    monkeypatch.setattr(unforeseen._limit, "due", lambda _subject: 0)


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    """What is logged meanwhile."""
    with structlog.testing.capture_logs() as lines:
        yield lines


def injected(lines: list[Any]) -> set[str]:
    """The events of the exceptions that were caught; no other error was logged."""
    errors = [line for line in lines if line["log_level"] in ("error", "critical")]
    assert all(isinstance(line.get("exc_info"), Injected) for line in errors), errors
    return {line["event"] for line in errors}


async def test_a_partition_whose_decision_fails_is_decided_alone_later(
    tmp_path: Path, start_node: NodeFactory, monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    """All other partitions get their leader; the failing one gets it as soon as its decision succeeds."""
    elect, broken = deciding.elect, True

    def fails(record: Any, *args: Any, **kwargs: Any) -> Any:
        if broken and record.partition == 2:
            raise Injected
        return elect(record, *args, **kwargs)

    monkeypatch.setattr(deciding, "elect", fails)
    async with start_node(tmp_path, MemoryEnsemble(), wait=False) as node:
        await eventually(lambda: {p for p, each in node.runtime.partitions.items() if each.serves} == {0, 1, 3})
        broken = False
        node.controller.wake()
        await eventually(lambda: node.partition(2).serves)
    assert injected(logged) == {"controller.partition_bug"}


async def test_an_observer_of_records_that_fails_learns_of_the_next_reading(
    tmp_path: Path, start_node: NodeFactory, monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    """Neither the registrations' observer nor the records' ends the controller's turn."""
    failures = {"runtime": 2, "links": 2}
    seen, learned = deciding.Controller._read, None
    del learned

    async def read(controller: Any) -> None:
        observer = controller._observer
        for name, left in (("on_records", "runtime"), ("on_registrations", "links")):
            function = getattr(type(observer), name)

            def fails(*given: Any, function: Any = function, left: str = left) -> None:
                if failures[left]:
                    failures[left] -= 1
                    raise Injected
                function(observer, *given)

            setattr(observer, name, fails)
        await seen(controller)

    monkeypatch.setattr(deciding.Controller, "_read", read)
    async with start_node(tmp_path, MemoryEnsemble()) as node:
        await node.coordinator.write(WriteRequest(Key(b"default", b"b", b"k"), Content(b"v")))
    assert failures == {"runtime": 0, "links": 0}
    assert injected(logged) == {"controller.observer_bug"}


async def test_a_move_or_a_balance_that_fails_elects_leaders_all_the_same(
    tmp_path: Path, start_node: NodeFactory, monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    """Orders and balancing have turns of their own."""

    async def fails(_controller: Any) -> Any:
        raise Injected

    def rests(*_args: Any, **_kwargs: Any) -> int:
        raise Injected

    monkeypatch.setattr(deciding.Controller, "_move", fails)
    async with start_node(tmp_path, MemoryEnsemble(), wait=False) as node:
        sound = node.controller._balancer
        node.controller._balancer = cast(Any, SimpleNamespace(look=rests, rest=lambda: None))
        await eventually(lambda: node.ready)
        node.controller.wake()
        await eventually(lambda: {"controller.moves_bug", "controller.balance_bug"} <= injected(logged))
        node.controller._balancer = sound
    assert injected(logged) == {"controller.moves_bug", "controller.balance_bug"}


@pytest.mark.parametrize("step", ["_end_rounds", "_check_copies", "_hand_over_full"])
async def test_a_step_of_each_second_that_fails_leaves_the_others_theirs(
    tmp_path: Path, start_node: NodeFactory, monkeypatch: pytest.MonkeyPatch, logged: list[Any], step: str
) -> None:
    """The other steps of the same second are carried out, and those of the next one."""
    async with start_node(tmp_path, MemoryEnsemble()) as node:
        runtime, done = node.runtime, []

        def fails() -> None:
            raise Injected

        fails.__name__ = step
        others = {"_end_rounds", "_check_copies", "_hand_over_full"} - {step}
        with monkeypatch.context() as patch:
            patch.setattr(runtime, step, fails)
            for name in others:

                def counted(name: str = name) -> None:
                    done.append(name)

                patch.setattr(runtime, name, counted)
            runtime._second.cancel()  # type: ignore[union-attr]
            runtime._each_second()
            assert set(done) == others
            assert runtime._second is not None
    assert injected(logged) == {"runtime.second_failed"}


async def test_a_listener_of_metrics_that_fails_costs_no_write(
    tmp_path: Path, start_node: NodeFactory, monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    """Latencies are looked at beside the write path."""
    async with start_node(tmp_path, MemoryEnsemble()) as node:

        def fails(*_args: Any) -> None:
            raise Injected

        with monkeypatch.context() as patch:
            patch.setattr(node.runtime.latency, "_add", fails)
            await node.coordinator.write(WriteRequest(Key(b"default", b"b", b"k"), Content(b"v")))
    assert injected(logged) == {"metrics.bug"}


async def test_soft_cursors_that_cannot_be_written_stop_no_partition(
    tmp_path: Path, start_node: NodeFactory, monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    """They are written again when they move; entries are applied meanwhile."""
    async with start_node(tmp_path, MemoryEnsemble()) as node:
        storage, store = node.runtime._storage, node.runtime.store
        prepare = store.prepare

        def fails(steps: Any) -> Any:
            if any(step.soft_cursors for step in steps) and not any(step.entries for step in steps):
                raise Injected
            return prepare(steps)

        with monkeypatch.context() as patch:
            patch.setattr(store, "prepare", fails)
            storage.soft_cursor(node.partition(0), b"q", b"state")
            storage.flush_soft_cursors()
            await node.coordinator.write(WriteRequest(Key(b"default", b"b", b"k"), Content(b"v")))
        storage.soft_cursor(node.partition(0), b"q", b"newer")
        storage.flush_soft_cursors()
        await eventually(lambda: store.cursor(0, b"q").soft == b"newer")
    assert injected(logged) == {"apply.cursors_failed"}


@pytest.mark.virtual_time
async def test_reports_and_questions_to_other_nodes_are_sent_again(logged: list[Any]) -> None:
    """A candidate's promotion, and the question how far a node's log reaches: elections wait for both."""
    sent: list[str] = []

    async def request(node: str, method: str, _body: bytes, _timeout_ms: int) -> bytes:
        sent.append(method)
        if sent.count(method) == 1:
            raise Injected
        return b"\x80"  # an empty map

    peer: Any = SimpleNamespace(request=request)
    promotions = Promotions(node="n1", links=peer, on_received=lambda: None)
    promotions.learn("n2", {3})
    promotions.announce(3, Promoted(epoch=1, node="n1", session_id=1, log_id=1))
    await asyncio.sleep(10)
    positions = LogPositions(node="n1", links=peer, own=cast(Any, None), on_answer=lambda: None)
    for _ in range(2):
        positions.want(3, ["n2"])
        positions.send()
        await asyncio.sleep(10)
    assert positions.of(3) == {"n2": (-1, -1)}
    assert len(sent) == 4
    assert injected(logged) == {"controller.promotion_unsent", "controller.position_bug"}


@pytest.mark.virtual_time
async def test_a_copy_of_the_metastore_that_fails_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    """The keeper goes on."""
    made = 0

    async def copy(_keeper: CopyKeeper) -> None:
        nonlocal made
        made += 1
        if made == 1:
            raise Injected

    monkeypatch.setattr(CopyKeeper, "copy", copy)
    metastore: Any = SimpleNamespace(watch=lambda _hint: None)
    keeper = CopyKeeper(metastore, tmp_path, b"u" * 16, cast(Any, None))
    keeper.start()
    await asyncio.sleep(3_600)
    await keeper.stop()
    assert made > 1
    assert injected(logged) == {"metastore.copy_failed"}


@pytest.mark.virtual_time
async def test_a_node_is_dialled_again_and_the_health_of_other_connections_is_watched(
    monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    """An unforeseen failure of one dial, or of one connection's check, is that one's alone."""
    dialler = Dialler("n2", "n2:1", cast(Any, None), timeout_ms=100, delay_max_ms=1_000, random=Random(1))
    dials = 0

    async def one() -> tuple[bool, str]:
        nonlocal dials
        dials += 1
        if dials == 1:
            raise Injected
        return False, "refused"

    monkeypatch.setattr(dialler, "_one_connection", one)
    dialling = asyncio.ensure_future(dialler.run())
    await asyncio.sleep(10)
    dialling.cancel()
    assert dials > 2

    async def elapsed(_interval_s: float) -> AsyncIterator[int]:
        for _ in range(3):
            yield 10

    def fails(_ms: int) -> None:
        raise Injected

    ticks: list[int] = []
    connections = [SimpleNamespace(node="n2", tick=fails), SimpleNamespace(node="n3", tick=ticks.append)]
    limits = SimpleNamespace(ping_interval_ms=10, dead_after_ms=100)
    monkeypatch.setattr(links, "lived_ms", elapsed)
    await links.ClusterLinks._tick(cast(Any, SimpleNamespace(limits=limits, _all=connections)))
    assert ticks == [10, 10, 10]
    assert injected(logged) == {"transport.dial_bug", "transport.tick_failed"}


class FakeEvents:
    """The runtime, as its parts see it: what it was told."""

    def __init__(self) -> None:
        self.dispatched: list[ev.Event] = []
        self.quarantined: list[int] = []
        self.fatal: list[Exception] = []

    def dispatch(self, _partition: Any, event: ev.Event) -> None:
        self.dispatched.append(event)

    def quarantine(self, partition: Any, _bug: Exception) -> None:
        self.quarantined.append(partition.id)

    def fail(self, error: Exception) -> None:
        self.fatal.append(error)


def once(answer: Any) -> Callable[..., Any]:
    """A function whose first call raises; later ones return `answer`."""
    calls = 0

    def called(*_args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise Injected
        return answer

    return called


def once_later(answer: Any) -> Callable[..., Awaitable[Any]]:
    """As `once`, to be awaited."""
    function = once(answer)

    async def called(*args: Any) -> Any:
        return function(*args)

    return called


@pytest.mark.virtual_time
async def test_round_trips_of_a_replica_that_fail_are_answered_or_repeated(logged: list[Any]) -> None:
    """A write of the record counts as one of unknown outcome, which the core repeats; a read is asked for again; a gen
    is allocated, and a withheld copy registered, in the end. Where nothing says whether an epoch is durable, the copy
    stops, and no other: its core would wait for ever."""
    record: Any = SimpleNamespace(version=5)
    metastore = SimpleNamespace(
        write_record=once_later(record), synced_record=once_later(record), allocate_log_id=once_later(7)
    )
    noted: list[dict[int, Any]] = []

    def note_epochs(epochs: dict[int, Any]) -> None:
        noted.append(epochs)
        if len(noted) == 1:
            raise Injected

    identity = SimpleNamespace(note_epochs=note_epochs, note_log_ids=lambda _ids: None)
    registrar = SimpleNamespace(register=once_later(None), withhold=lambda _partition: None)
    events, partition = FakeEvents(), cast(Any, SimpleNamespace(id=3))
    effects = MetastoreEffects(*cast(Any, (identity, metastore, registrar, events)))
    async with asyncio.timeout(60):
        for count in (1, 2):
            effects.perform(partition, fx.WriteRecord(record, frozenset()))
            effects.perform(partition, fx.ReadRecordSync(9))
            effects.perform(partition, fx.PersistEpoch(4, None))
            while len(noted) < count or effects.busy(3):
                await asyncio.sleep(0.01)
        effects.withhold(3)
        await asyncio.sleep(5)
        effects.perform(partition, fx.NewLogIdentity("its log is another"))
        while ev.LogIdentityRenewed(7) not in events.dispatched or ev.EpochPersisted(4) not in events.dispatched:
            await asyncio.sleep(0.01)
    assert ev.WriteOutcomeUnknown(5) in events.dispatched
    assert ev.WriteConfirmed(record) in events.dispatched
    assert ev.RecordSynced(9, record) in events.dispatched
    assert events.quarantined == [3]
    assert not effects.busy(3)
    effects.cancel()
    assert events.fatal == []
    assert injected(logged) == {"isr.write_bug", "isr.read_bug", "identity.gen_bug", "identity.withhold_bug"}


async def test_a_copy_that_cannot_be_opened_or_deleted_leaves_the_others(logged: list[Any]) -> None:
    """Copies are opened and deleted one by one; what failed is tried again by the next turn, each second."""
    started: list[Any] = []

    def opened(record: str) -> str:
        if record == "bad":
            raise Injected
        return record

    async def registered() -> None:
        pass

    opener = SimpleNamespace(
        _opening={1: "good", 2: "bad", 3: "fine"},
        _identity=SimpleNamespace(partition=lambda _partition: "known"),
        _registrar=SimpleNamespace(register=registered),
        open=opened,
        _start=started.extend,
    )
    await ReplicaOpener._open_copies(cast(Any, opener))
    assert started == ["good", "fine"]
    assert opener._opening == {}

    removed: list[int] = []
    events = FakeEvents()

    async def removes(partition: Any) -> None:
        number = partition if isinstance(partition, int) else partition.id
        if number in (1, 5):
            raise Injected
        removed.append(number)

    remover: Any = SimpleNamespace(
        _identity=SimpleNamespace(condemned=lambda: [5, 6]),
        condemning={},
        _confirm_and_condemn=removes,
        _delete=removes,
        _events=events,
    )
    remover._alone = partial(ReplicaRemover._alone, remover)
    await ReplicaRemover._remove(remover, cast(Any, [SimpleNamespace(id=1), SimpleNamespace(id=2)]))
    assert removed == [2, 6]
    assert events.fatal == []
    assert injected(logged) == {"attaching.copy_bug", "clearing.bug"}


@pytest.mark.virtual_time
async def test_entries_and_rows_for_one_follower_fail_alone(logged: list[Any]) -> None:
    """The sender of a partition's entries, and that of its rows, end as if the answer had been lost: the follower asks
    again. A copy that cannot take rows stops, and no other."""
    events, partition = FakeEvents(), cast(Any, SimpleNamespace(id=3))

    async def sent(_partition: Any, _effect: Any) -> None:
        raise Injected

    queue: Any = SimpleNamespace(waiting=deque(["one", "two"]), task=None)
    sender: Any = SimpleNamespace(_send_entries=sent, _events=events, dropped=0, _queues={(3, "n2"): queue})
    await ReplicationSender._run(sender, partition, (3, "n2"), queue)
    assert sender.dropped == 2
    assert sender._queues == {}
    dropped: list[str] = []
    drop = partial(dropped.append, "snapshot")
    round_: Any = SimpleNamespace(task="running", request=object(), drop_snapshot=drop)  # no request
    rows: Any = SimpleNamespace(_events=events)
    await TransferSender._run(rows, partition, "n2", round_)
    assert round_.task is None
    assert dropped == ["snapshot"]

    async def begins(*_args: Any, **_named: Any) -> None:
        raise Injected

    taker: Any = SimpleNamespace(_begin=begins, _events=events)
    await TransferReceiver._perform(taker, partition, fx.BeginTransfer(True, "far behind", False))
    assert events.quarantined == [3]
    assert events.fatal == []
    assert {line["event"] for line in logged if "exc_info" in line} == {"outbox.bug", "transfer.send_bug"}


@pytest.mark.virtual_time
async def test_a_round_of_clocks_that_fails_is_followed_by_the_next(logged: list[Any]) -> None:
    """Clocks are measured again after the pause."""
    watch = ClockWatch(cast(Any, None), once(()), SystemTime(), lambda: None)
    watch.start()
    await asyncio.sleep(12)
    await watch.stop()
    assert injected(logged) == {"clock.bug"}


@pytest.mark.virtual_time
async def test_a_node_whose_load_cannot_be_asked_for_leaves_that_of_the_others(logged: list[Any]) -> None:
    """Its load stays unknown, so that leaders stand on all nodes; the others' are known."""

    class Links:
        async def request(self, node: str, *_args: Any) -> bytes:
            if node == "n2":
                raise Injected
            return struct.pack("<d", 0.25)

    loads = NodeLoads("n1", Links(), lambda: None)
    loads.look(("n1", "n2", "n3"), 0)
    await asyncio.sleep(1)
    assert loads.known(("n2", "n3"), 1_000) == {"n2": None, "n3": 0.25}
    await loads.stop()
    assert injected(logged) == {"balancing.load_bug"}


def test_a_partition_that_a_listener_cannot_note_is_found_later(logged: list[Any]) -> None:
    """The tree of that partition is built again, and its tombstones are looked for; those of others are noted."""
    noted: list[int] = []

    def fails(partition: int, *_args: Any) -> None:
        if partition == 1:
            raise Injected
        noted.append(partition)

    entry: Any = SimpleNamespace(offset=6)
    applied = [AppliedEntries(partition, [entry], True) for partition in (0, 1, 2)]
    gaps: list[int] = []
    cached = {partition: SimpleNamespace(offset=6) for partition in (0, 1, 2)}
    trees: Any = SimpleNamespace(cached=cached, _applied=fails, _gap=lambda partition, _cached: gaps.append(partition))
    TreeCache.applied(trees, applied)
    led = {partition: SimpleNamespace(left_behind=False) for partition in (0, 1, 2)}
    Reaper.applied(cast(Any, SimpleNamespace(_led=led, _note_applied=fails)), applied)
    assert noted == [0, 2, 0, 2]
    assert gaps == [1]
    assert cached[1].offset == 7
    assert [one.left_behind for one in led.values()] == [False, True, False]
    assert injected(logged) == {"trees.apply_bug", "reap.note_bug"}


def test_a_pool_of_workers_that_cannot_choose_a_link_tries_again(logged: list[Any]) -> None:
    """The alarm is set: without it nothing would be fetched any more."""
    alarms: list[float] = []

    def fails(_now_ms: int) -> None:
        raise Injected

    pool: Any = SimpleNamespace(
        _running=True,
        _context=SimpleNamespace(stopping=asyncio.Event(), time=SimpleNamespace(now_ms=lambda: 1)),
        _cluster=SimpleNamespace(name_is_taken=lambda: False),
        _throttle=SimpleNamespace(wait_ms=lambda _now: 0),
        _alarm=SimpleNamespace(call_within=alarms.append),
        scheduler=SimpleNamespace(take=fails, next_due_ms=lambda: None),
    )
    assert WorkerPool._next_turn(pool) is None
    assert len(alarms) == 1
    assert injected(logged) == {"sink.turn_bug"}


async def test_a_store_that_cannot_note_the_end_of_a_replay_stays_open(logged: list[Any]) -> None:
    """The next start replays once more."""

    def fails() -> None:
        raise Injected

    store: Any = SimpleNamespace(needs_replay=lambda: True, replay_finished=fails)
    ended: list[Exception] = []
    replay = LogReplay(store, ended.append)
    replay.start()
    await eventually(lambda: bool(logged))
    assert not ended
    assert injected(logged) == {"store.replay_bug"}


@pytest.mark.virtual_time
async def test_a_sinks_maintenance_goes_on(logged: list[Any]) -> None:
    """Peers that operators set, the count of dead letters, and their settling fail alone."""
    settled = 0

    async def counts() -> None:
        raise Injected

    async def settles() -> None:
        nonlocal settled
        settled += 1

    def applies() -> None:
        raise Injected

    sink: Any = SimpleNamespace(
        _apply_peers=applies, _count_letters=counts, _settle_letters=settles, _finish_letters=settles
    )
    maintaining = asyncio.ensure_future(Sink._maintain(sink))
    await asyncio.sleep(600)
    maintaining.cancel()
    assert settled > 2
    assert injected(logged) == {"sink.peers_bug", "sink.dead_letters_bug"}


def test_a_source_of_metrics_that_fails_costs_its_own_samples(logged: list[Any]) -> None:
    """The others are shown, and the failure is counted."""

    def fails() -> Any:
        raise Injected

    families = {"isthmus_x": Family("x", "x", "x"), "isthmus_y": Family("y", "y", "y")}
    sources: Any = [lambda: [("isthmus_x", {}, 1)], fails, lambda: [("isthmus_y", {}, 2)]]
    shown = Metrics(sources, families).render()
    assert b"isthmus_x 1.0" in shown
    assert b"isthmus_y 2.0" in shown
    assert injected(logged) == {"metrics.source_failed"}


def events_of(source: str) -> Iterator[str]:
    """Events under which a module's unforeseen exceptions are logged."""
    if not re.search(r"unforeseen\.exception|\bobserves\(", source):
        return  # it takes long to parse all modules
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
            continue
        function = ast.unparse(node.func)
        if re.search(r"(^|\.)unforeseen\.exception$|^observes$", function):
            yield str(node.args[0].value)


def test_every_catch_is_named_by_a_test() -> None:
    """Each event of an unforeseen exception stands in a test."""
    packages = ("repl", "queues", "sink", "aae", "node")
    events = {
        event
        for package in packages
        for module in (CHECKOUT / package).rglob("*.py")
        for event in events_of(module.read_text())
    }
    told = "".join(test.read_text() for test in (CHECKOUT / "tests").rglob("test_*.py"))
    assert len(events) > 40
    assert sorted(event for event in events if f'"{event}"' not in told) == []
