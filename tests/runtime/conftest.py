"""One node's runtime, controller and coordinator on real disk files, with the metastore's memory twin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.timesource import SystemTime
from repl.controller import Controller
from repl.coordinator import Coordinator
from repl.identity import Identity
from repl.isr import events as ev
from repl.isr.placement import computed
from repl.metastore.memory import MemoryEnsemble, MemoryMetastore
from repl.model.record import Member, PartitionRecord, Registration
from repl.model.vclock import actor_of
from repl.proposal import WriteLimits
from repl.replog.log import FileLog
from repl.runtime import Runtime
from repl.store.leveldb import LevelStore

UUID = b"east-cluster-016"
PARTITIONS = 4


@dataclass
class House:
    """What a test talks to."""

    runtime: Runtime
    coordinator: Coordinator
    controller: Controller
    metastore: MemoryMetastore
    failures: list[Exception]


@asynccontextmanager
async def opened(
    directory: Path,
    ensemble: MemoryEnsemble,
    *,
    boot_id: str = "boot-1",
    stop: bool = True,
    wait: bool = True,
    window_entries: int = 10_000,
    window_bytes: int = 64_000_000,
) -> AsyncIterator[House]:
    """A serving node on `directory`. With `stop` False it is left as a kill would: nothing is handed over."""
    metastore = MemoryMetastore(ensemble)
    await metastore.start(lambda _state: None)
    identity = Identity.open(directory)
    store = LevelStore.open(
        directory / "store",
        cluster_uuid=UUID,
        write_buffer_bytes=1_000_000,
        block_cache_bytes=1_000_000,
        boot_id=boot_id,
    )
    replog = FileLog.open(
        directory / "log",
        cluster_uuid=UUID,
        durability="fsync",
        size_limit_bytes=100_000_000,
        file_bytes=10_000_000,
        batch_bytes=1_000_000,
        known_durable=store.applied_offsets(),
    )
    records = await metastore.records()
    if not records:
        gen = await metastore.allocate_gen()
        identity.adopt(UUID, "n1", boot_id, dict.fromkeys(range(PARTITIONS), gen))
        await metastore.create_records(
            [
                PartitionRecord(index, "default", index, PARTITIONS, nodes, isr=frozenset({Member("n1", gen)}))
                for index, nodes in enumerate(computed(PARTITIONS, 1, ["n1"]))
            ]
        )
        records = await metastore.records()
    else:
        identity.adopt(UUID, "n1", boot_id, {})
    failures: list[Exception] = []
    runtime = Runtime(
        node="n1",
        cluster_uuid=UUID,
        store=store,
        replog=replog,
        metastore=metastore,
        identity=identity,
        time=SystemTime(),
        window_entries=window_entries,
        window_bytes=window_bytes,
        checkpoint_interval_ms=100_000,
        on_fatal=failures.append,
    )
    pool = ThreadPoolExecutor(1)
    coordinator = Coordinator(
        runtime,
        read_pool=pool,
        limits=WriteLimits(1_000_000, 5),
        key_limit_bytes=100,
        request_timeout_ms=10_000,
    )
    controller = Controller(metastore, time=SystemTime(), on_records=runtime.records_seen)
    runtime.on_promoted = controller.promoted
    for record in records.values():
        runtime.attach(record, actor_of(UUID, record.partition))
    coordinator.learn_partitions()
    runtime.start()
    metastore.watch(lambda _path: controller.wake())
    gens = {p: found.gen for p in records if (found := identity.partition(p)) is not None}
    inc = await metastore.register(Registration("n1", 0, True, gens=gens))
    runtime.dispatch_all(ev.SessionStarted(inc))
    controller.start()
    house = House(runtime, coordinator, controller, metastore, failures)
    try:
        if wait:
            await until(lambda: all(p.replica.ready for p in runtime.partitions.values()))
        yield house
    finally:
        await controller.stop()
        if stop:
            assert await runtime.stop(10.0)
        else:
            runtime._checkpointer.stop(10.0)
            await until(lambda: runtime._applier.idle or bool(failures))
            runtime._applier.stop(10.0)
            replog.close()
            store._db.close()
            if runtime._soft_timer is not None:
                runtime._soft_timer.cancel()
        await metastore.stop()
        identity.close(clean=stop)
        pool.shutdown()


async def until(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until `holds()`; fail after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.002)


@pytest.fixture
def house() -> Callable[..., AbstractAsyncContextManager[House]]:
    """`async with house(directory, ensemble) as h: ...`"""
    return opened
