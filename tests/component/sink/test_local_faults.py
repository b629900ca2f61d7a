"""Claims about a sink whose own disk or program is at fault: the fault costs no more than it must."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from isthmus.queues.wire import BatchAck
from isthmus.repl.model.errors import LocalFault
from isthmus.sink import worker_pool
from isthmus.sink.dead_letters import BUSY_TIMEOUT_S
from isthmus.sink.worker import Slot
from tests.component.sink.test_operation import sink_of
from tests.support.sink_listings import overview
from tests.support.sink_pair import SinkPair
from tests.support.waiting import PATIENCE_S, eventually


@pytest.mark.timing
async def test_metrics_are_served_while_the_dead_letter_file_is_locked() -> None:
    """A backup that holds the file, or a disk that refuses it, blocks neither the loop nor the metrics, which show the
    last known values."""

    async with SinkPair() as pair:
        pair.cluster.rejecting = {b"a"}
        sink = await pair.sink()
        pair.source.put(b"a", b"b")
        await eventually(lambda: pair.source.served()[0].machine.counts.acknowledged == 2)
        other = sqlite3.connect(pair.folder / "letters.sqlite", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        assert overview(sink)["dead_letters"] == {"kept": 1, "given_up": 0}
        assert "dead letters: 1" in sink.status()["reason"]
        assert ("isthmus_sink_dead_letters", {}, 1) in sink.metrics()
        assert time.monotonic() - began < BUSY_TIMEOUT_S
        other.execute("ROLLBACK")
        other.close()


@pytest.mark.logs_errors("sink.dead_letters_unread")
async def test_dead_letters_that_cannot_be_counted_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be looked into at the start makes their number unknown, and nothing else; it is looked into
    again."""

    async with SinkPair() as pair:
        sink = await pair.sink(start=False)

        def refuse() -> None:
            raise LocalFault("the disk")

        with monkeypatch.context() as patched:
            patched.setattr(sink._letters, "count", refuse)
            await sink.start()
            assert overview(sink)["dead_letters"] == {"kept": None, "given_up": None}
            assert not [name for name, _, _ in sink.metrics() if "dead_letters" in name]
        await sink._count_letters()
        await eventually(lambda: overview(sink)["dead_letters"] == {"kept": 0, "given_up": 0})


@pytest.mark.logs_errors("sink.bug")
async def test_a_fault_while_a_suspended_link_acknowledges_costs_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that was suspended during its cycle sends its pending acknowledgement at once. After any fault there its
    worker and its slot are free again, and the link works again once it is resumed."""

    async with SinkPair() as pair:
        sink = await pair.sink("q")
        pair.cluster.stuck.clear()
        pair.source.put(b"a")
        await eventually(lambda: any(slot.pushing for slots in sink._pool._slots.values() for slot in slots))
        with monkeypatch.context() as patched:
            attempts: list[Slot] = []

            async def broken(slot: Slot) -> bool:
                attempts.append(slot)
                raise RuntimeError("a bug")

            patched.setattr(Slot, "acknowledge", broken)
            await sink.suspend("q", None, "ann", "")
            pair.cluster.stuck.set()
            await eventually(lambda: attempts)
        await eventually(lambda: overview(sink)["workers"]["busy"] == 0)
        await sink.resume("q", None)
        pair.source.put(b"b")
        await pair.equal()


@pytest.mark.timing
async def test_a_stop_waits_for_a_silent_source_no_longer_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many slots have an acknowledgement for a silent source, they send it at once, and the stop waits for a
    bounded time: a request may take an hour."""

    async with SinkPair() as pair:
        monkeypatch.setattr(worker_pool, "STOP_ACK_S", 0.7)
        sink = await pair.sink("q", peer_limit_count=8)
        told = 0

        async def silent(_slot: Slot) -> bool:
            nonlocal told
            told += 1
            await asyncio.sleep(60)
            return False

        monkeypatch.setattr(Slot, "acknowledge", silent)
        for slots in sink._pool._slots.values():
            for slot in slots:
                slot.fetcher.ack = BatchAck(b"batch", 1)
        began = time.monotonic()
        await sink.stop()
        assert time.monotonic() - began < 4, "one after the other would take 7 times 0.7 s"
        assert told >= 7


async def test_silent_seeds_block_nothing_else_on_the_node() -> None:
    """Requests to seeds wait in threads of their own: the loop's threads unpack the answers of healthy peers."""

    async with SinkPair() as pair:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(2))
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
            urls = [f"http://127.0.0.1:{each.getsockname()[1]}" for each in silent]
            await sink_of(pair, *urls, request_timeout_ms=100_000)
            await asyncio.sleep(0.1)
            await asyncio.wait_for(loop.run_in_executor(None, int), PATIENCE_S)
