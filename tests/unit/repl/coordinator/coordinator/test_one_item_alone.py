"""One item fails alone: an exception that nobody foresaw, at any point of a batch, ends one write, push or read
(R-ALONE)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import structlog

from isthmus.repl.coordinator.round_gate import RoundGate
from isthmus.repl.model.errors import InternalError, IsthmusError, OutcomeUnknown
from isthmus.repl.model.keys import Key, key_hash, partition_index
from isthmus.repl.model.objects import Content, decode_object, encode_object, write
from isthmus.repl.model.requests import PushItem, PushOutcome, WriteRequest, WriteResult
from isthmus.repl.model.vclock import actor_of, pack_counter
from isthmus.repl.unforeseen import unforeseen
from tests.support.coordinator_cluster import OTHER, PARTITIONS, cluster, key_of, keys_of

pytestmark = pytest.mark.virtual_time

VICTIM = b"the-item-that-fails"

OF_WRITES = [
    "write_batch:written",
    "write_batch:encode_with_summary",
    "write_batch:leaf",
    "write_batch:WriteBatch.write",
    "write_batch:WriteBatch._write_usual",
    "write_batch:WriteBatch.add_object",
    "write_batch:WriteBatch.add_object after",
    "write_batch:WriteBatch._add_entry",
    "write_batch:WriteBatch._add_entry after",
    "coordinator:key_hash",
]
OF_COMMON_WRITES = [
    "write_batch:WriteBatch.write after",
    "write_batch:_pack",
    "write_batch:xxh64_intdigest",
]
OF_PUSHES = [
    "write_batch:summarize_encoded",
    "write_batch:decode_object",
    "write_batch:pushed",
    "write_batch:encode_with_summary",
    "write_batch:WriteBatch.push",
    "write_batch:WriteBatch._push_usual",
    "write_batch:WriteBatch.add_object",
    "write_batch:WriteBatch.add_object after",
    "write_batch:WriteBatch._add_entry after",
    "write_batch:peek_summary",
    "coordinator:key_hash",
]
OF_READS = ["reads:Reads._read", "reads:key_hash"]


class Injected(RuntimeError):
    """Raised by the tests alone."""


def inject(patch: pytest.MonkeyPatch, point: str) -> None:
    """Let a function of the coordinator raise for the victim, and for it alone; `after`: once it has done its work."""
    place, _, after = point.partition(" ")
    module, _, name = place.partition(":")
    owner: Any = import_module(f"isthmus.repl.coordinator.{module}")
    *classes, name = name.split(".")
    for each in classes:
        owner = getattr(owner, each)
    function = getattr(owner, name)

    def fails(*args: Any, **kwargs: Any) -> Any:
        of_victim = VICTIM in b"".join(_bytes_of([*args, *kwargs.values()]))
        if of_victim and not after:
            raise Injected(point)
        result = function(*args, **kwargs)
        if of_victim:
            raise Injected(point)
        return result

    patch.setattr(owner, name, fails)


def _bytes_of(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _bytes_of(each)


def count(event: str) -> int:
    return sum(int(value) for _, labels, value in unforeseen.samples() if labels["event"] == event)


def victim(partition: int = 0) -> Key:
    """A key whose name has VICTIM in it."""
    names = (VICTIM + b"%d" % number for number in range(100))
    return next(Key(b"default", b"b", n) for n in names if partition_index(key_hash(b"b", n), PARTITIONS) == partition)


def checked(lines: list[Any], event: str, before: int) -> None:
    """One traceback in the log, the counter is one higher, and a finding names the place."""
    (line,) = [each for each in lines if each["event"] == event]
    assert isinstance(line["exc_info"], Injected)
    assert count(event) == before + 1
    assert any(each.event == event and each.kind == "Injected" for each in unforeseen.recent())


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No earlier test has used up the limit of log lines."""
    monkeypatch.setattr(unforeseen._limit, "due", lambda _subject: 0)


@pytest.mark.parametrize("node", ["n1", "n2"])
@pytest.mark.parametrize("point", [*OF_WRITES, *OF_COMMON_WRITES])
async def test_a_write_that_fails_anywhere_fails_alone(monkeypatch: pytest.MonkeyPatch, point: str, node: str) -> None:
    """In a batch of writes of one partition, at the leader and through another node: the others are applied, the victim
    is answered as `internal` and has left nothing, a later write of its key finds what was there."""
    async with cluster() as made:
        keys = [*keys_of(0, 3), victim(), *keys_of(0, 6)[3:]]
        if point.startswith("coordinator"):
            node = "n1"
        with structlog.testing.capture_logs() as lines, monkeypatch.context() as patch:
            before = count("write.bug") + count("request.bug")
            inject(patch, point)
            for number in (b"1", b"2"):
                request_id = b"" if point in OF_COMMON_WRITES else number  # with an id a write is not a common one
                requests = [WriteRequest(key, Content(number + key.key), request_id=request_id) for key in keys]
                results = await made.coordinators[node].write_batch(requests)
                failed = results.pop(3)
                assert all(isinstance(each, WriteResult) for each in results), results
                assert isinstance(failed, InternalError), failed
                assert failed.reason == "internal"
        assert count("write.bug") + count("request.bug") == before + 2
        assert {each["event"] for each in lines} <= {"write.bug", "request.bug"}
        assert await made.coordinators[node].get(victim()) is None
        written = await made.coordinators[node].write(WriteRequest(victim(), Content(b"3")))
        assert len(decode_object(written.payload).siblings) == 1
        offsets = [change.offset for change in made.store.changes(0, 0, 100)]
        assert len(offsets) == 7, "one row for each key: the victim's entries were taken back"


@pytest.mark.parametrize("point", OF_PUSHES)
async def test_a_push_that_fails_anywhere_is_rejected_alone(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Among pushes and writes of the same turn the victim is REJECTED, so that the sink keeps a dead letter; all others
    are applied."""

    def theirs(key: Key, number: int) -> PushItem:
        dot = (actor_of(OTHER, 0), pack_counter(1, number))
        return PushItem(key, OTHER, encode_object(write(None, (), Content(b"theirs" + key.key), dot, 5)))

    async with cluster() as made:
        n1 = made.coordinators["n1"]
        await n1.write(WriteRequest(victim(), Content(b"mine")))
        keys = [*keys_of(0, 3), victim(), *keys_of(0, 6)[3:]]
        with structlog.testing.capture_logs() as lines, monkeypatch.context() as patch:
            event = "request.bug" if point.startswith("coordinator") else "push.bug"
            before = count(event)
            inject(patch, point)
            pushing = n1.push([theirs(key, number) for number, key in enumerate(keys, 1)])
            results, written = await asyncio.gather(pushing, n1.write(WriteRequest(keys_of(0, 9)[8], Content(b"w"))))
        failed = results.pop(3)
        assert {each.outcome for each in results} == {PushOutcome.APPLIED}
        assert failed.outcome is PushOutcome.REJECTED
        assert isinstance(failed.error, InternalError)
        assert isinstance(written, WriteResult)
        checked(lines, event, before)
        assert [s.value for s in decode_object(await n1.get(victim()) or b"").siblings] == [b"mine"]


@pytest.mark.parametrize("node", ["n1", "n2"])
@pytest.mark.parametrize("point", OF_READS)
async def test_a_read_that_fails_anywhere_fails_alone(monkeypatch: pytest.MonkeyPatch, point: str, node: str) -> None:
    """In a batch of reads the victim has the error, every other key its value."""
    async with cluster() as made:
        keys = [*keys_of(0, 2), victim(), *keys_of(1, 2)]
        for key in keys:
            await made.coordinators["n1"].write(WriteRequest(key, Content(b"v")))
        with structlog.testing.capture_logs() as lines, monkeypatch.context() as patch:
            before = count("read.bug")
            inject(patch, point)
            results = await made.coordinators[node].get_batch(keys, None, 1_000_000)
        failed = results.pop(2)
        assert isinstance(failed, IsthmusError)
        assert failed.reason == "internal"
        assert all(isinstance(each, bytes) for each in results)
        checked(lines, "read.bug", before)


async def test_a_partition_whose_batch_fails_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is raised before a partition's batch is made, as by its properties, refuses the items of that partition; the
    other partitions of the turn are appended."""
    async with cluster() as made:
        n1, event = made.coordinators["n1"], "write.batch_bug"
        keys = [*keys_of(0, 2), *keys_of(1, 2)]

        def fails(partition: int, pusher: object) -> None:
            if partition == 0:
                raise Injected

        with structlog.testing.capture_logs() as lines, monkeypatch.context() as patch:
            before = count(event)
            make = type(n1)._append_batch

            def append(self: Any, partition: int, *args: Any) -> None:
                fails(partition, None)
                make(self, partition, *args)

            patch.setattr(type(n1), "_append_batch", append)
            results = await n1.write_batch([WriteRequest(key, Content(b"v")) for key in keys])
        assert [isinstance(each, InternalError) for each in results] == [True, True, False, False]
        checked(lines, event, before)


async def test_a_removed_copy_refuses_its_items_alone() -> None:
    """A partition whose copy is removed between the arrival of its items and their turn is refused as not led."""
    async with cluster() as made:
        n1 = made.coordinators["n1"]
        writing = asyncio.ensure_future(
            n1.write_batch([WriteRequest(key, Content(b"v")) for key in (key_of(0), key_of(1))])
        )
        asyncio.get_running_loop().call_soon(made.runtimes["n1"].partitions.pop, 0)
        refused, written = await writing
        assert isinstance(written, WriteResult)
        assert isinstance(refused, IsthmusError)
        assert not isinstance(refused, InternalError)


async def test_a_failure_while_entries_are_appended_stops_that_copy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing says what of the batch is in the log: its items are unknown, that copy stops, the other partitions of
    the turn go on."""
    async with cluster() as made:
        runtime, n1 = made.runtimes["n1"], made.coordinators["n1"]
        append = runtime.append

        def fails(place: Any, *args: Any) -> IsthmusError | None:
            if place.id == 0:
                raise Injected
            return append(place, *args)

        monkeypatch.setattr(runtime, "append", fails)
        lost, written = await n1.write_batch([WriteRequest(key, Content(b"v")) for key in (key_of(0), key_of(1))])
        assert isinstance(lost, OutcomeUnknown)
        assert isinstance(written, WriteResult)
        assert runtime.quarantined == [0]


async def test_a_gate_that_cannot_tell_the_round_takes_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure in the gate's decision costs the batching of one turn: no request waits for ever, now or later."""

    def fails(_gate: RoundGate) -> bool:
        raise Injected

    async with cluster() as made:
        with structlog.testing.capture_logs() as lines, monkeypatch.context() as patch:
            patch.setattr(RoundGate, "_waits", fails)
            before = count("write.gate_bug")
            await made.coordinators["n1"].write(WriteRequest(key_of(0), Content(b"v")))
        checked(lines, "write.gate_bug", before)
        await made.coordinators["n1"].write(WriteRequest(key_of(0), Content(b"v")))
