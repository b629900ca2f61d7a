"""Two processes that set up one directory at the same time, and a `down` right after."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.local import clusters, supervisor_client
from isthmus.node.local.clusters import LocalClusters
from isthmus.node.local.process_id import ProcessId
from isthmus.node.local.supervisor import LOCK_TIMEOUT_S, Spec, Supervisor
from isthmus.node.local.topology import load_topology
from isthmus.repl.model.errors import LocalFault
from tests.support.waiting import eventually

SAMPLE = Path(__file__).parents[3] / "config" / "samples" / "two-nodes.toml"


@pytest.mark.timing
async def test_no_supervisor_waits_for_the_end_of_one_that_serves(
    tmp_path: Path, supervised: Any, shell_child: Any
) -> None:
    """A waiting supervisor would start everything again after it was stopped: clusters that a user had taken down ran
    again unnoticed."""
    spec = Spec((shell_child(),))

    async with supervised(tmp_path, spec) as client:
        before = await client.pid("a")
        began = time.monotonic()
        with pytest.raises(OSError, match="temporarily unavailable"):
            await Supervisor(tmp_path, spec).run()
        assert time.monotonic() - began < LOCK_TIMEOUT_S / 2
        assert await client.pid("a") == before


async def test_a_supervisor_waits_for_one_that_ends(tmp_path: Path, supervised: Any, shell_child: Any) -> None:
    """`down` and then `up` at once: the next one waits for the lock, and starts."""
    spec = Spec((shell_child(line="trap 'touch told; sleep 0.5; exit 0' TERM; touch set; sleep 1000 & wait"),))

    async with supervised(tmp_path, spec) as client:
        before = await client.pid("a")
        await client.wait_for_path(tmp_path / "set")
        stopping = asyncio.create_task(asyncio.to_thread(supervisor_client.stop, tmp_path))
        await client.wait_for_path(tmp_path / "told")
        async with supervised(tmp_path, spec) as other:
            assert await stopping
            await eventually(lambda: asyncio.to_thread(supervisor_client.running_state, tmp_path))
            assert await other.pid("a") != before


def test_two_ups_at_once_start_one_of_each(directory: Path) -> None:
    """Both commands succeed with the same processes, and one `down` ends all of them for good."""

    def up() -> dict[str, Any]:
        return LocalClusters(load_topology(SAMPLE), directory).up(30)

    with ThreadPoolExecutor(2) as pool:
        one, other = [each.result() for each in [pool.submit(up), pool.submit(up)]]
    assert one == other
    processes = [ProcessId.of(node["pid"]) for cluster in one["clusters"].values() for node in cluster["nodes"]]
    assert supervisor_client.stop(directory)
    assert not any(process is not None and process.alive() for process in processes)
    time.sleep(0.2)
    assert supervisor_client.running_state(directory) is None


def test_an_endless_setup_is_not_awaited(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound, and a sentence."""
    monkeypatch.setattr(clusters, "SET_UP_TIMEOUT_S", 0.1)
    directory.mkdir()
    lock = os.open(directory / "supervisor.up", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LocalFault, match="another process is setting up"):
            LocalClusters(load_topology(SAMPLE), directory).up(30)
    finally:
        os.close(lock)
