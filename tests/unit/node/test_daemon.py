"""How a node's process is tuned."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PRINT_POLICY = """
import os
from isthmus.node import daemon  # before the policy is set: an idle one may wait long beside other tests
os.sched_setscheduler(0, {policy}, os.sched_param(0))
daemon.tune()
print(os.sched_getscheduler(0))
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
