"""The tuning of a node's process, and its reports to the service manager."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.node.daemon import Node

# Only the call in question runs under the policy: an idle process may wait minutes for its imports, or for its end, on
# a machine that other tests keep busy.
PRINT_POLICY = """
import os
from isthmus.node import daemon
os.sched_setscheduler(0, {policy}, os.sched_param(0))
daemon.tune()
kept = os.sched_getscheduler(0)
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
print(kept)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the policies are those of Linux")
@pytest.mark.parametrize("started_under", ["SCHED_OTHER", "SCHED_IDLE"])
def test_a_node_is_scheduled_in_batches_unless_somebody_chose_a_policy(started_under: str) -> None:
    """A process under the usual policy takes SCHED_BATCH; one that was started under another keeps that."""
    policy: int = getattr(os, started_under)
    answer = subprocess.run(
        [sys.executable, "-c", PRINT_POLICY.format(policy=policy)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert int(answer.stdout) == (os.SCHED_BATCH if policy == os.SCHED_OTHER else policy)


async def test_a_state_that_cannot_be_described_does_not_end_the_watchdog() -> None:
    """The event loop runs, which is what the service manager checks."""
    alive: list[int] = []

    def fail() -> str:
        raise KeyError("a replica that was removed meanwhile")

    manager = SimpleNamespace(alive=lambda: alive.append(1), status=lambda _: None, watchdog_interval_s=0.001)
    node: Any = SimpleNamespace(_manager=manager, _sentence=fail)
    task = asyncio.create_task(Node._watchdog(node))
    while len(alive) < 3:
        await asyncio.sleep(0.001)
        assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_reload_that_fails_ends_as_ready() -> None:
    """Otherwise the service manager would wait for the end of the reload, and end the node."""
    sent: list[str] = []
    manager = SimpleNamespace(reloading=lambda: sent.append("reloading"), ready=sent.append)

    async def fail(_loop: object) -> list[str]:
        raise RuntimeError("a fault that nobody foresaw")

    node: Any = SimpleNamespace(_manager=manager, _sentence=lambda: "ready", _reload_files=fail, _reload_again=True)
    with pytest.raises(RuntimeError):
        await Node._reload(node)
    assert sent == ["reloading", "ready"]
