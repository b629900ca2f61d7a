"""Runs `python -m tests.system.replication` for some minutes; by itself it runs for an hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.replication.endurance import endure

SECONDS = 120.0


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.network
@pytest.mark.disks
@pytest.mark.timeout(1800)
def test_harmed_clusters_become_equal_and_prove_it(tmp_path: Path) -> None:
    """Two clusters with three bucket types and a repair queue each, under load and faults: in the end every
    acknowledged write is on both sides, ledgers close, no gap is left, and full-sync and Spark find the clusters
    equal."""
    report = endure(tmp_path, SECONDS, seed=5, tell=print)
    assert report.acknowledged > 0
