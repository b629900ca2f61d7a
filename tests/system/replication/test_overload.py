"""Fault matrix row 27, without folds: far more writes, reads and fetches at once than nodes can serve."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from bench.loadgen import Phase, Result
from bench.nodes import LoadProcess
from isthmus.queues.leases import Session
from isthmus.queues.wire import FetchRequest, encode_request
from tests.system.faults.cluster import ClusterNode
from tests.system.faults.load import Broken, Connection, NotSent
from tests.system.replication.clusters import Clusters, put, queue_to, url

OVERLOAD_S = 8.0
CONNECTIONS = 64
OBJECTS = 100
"""Bytes of a batch; with all connections many times the bytes that a node takes in at once."""

WINDOW_ENTRIES = 1_000
"""Writes of a partition that may be under way: a third of those that the load would have there."""

STRAYS = 48
"""Fetchers beside the sink's own, which acknowledge nothing."""

NEVER_ENDING = 10_000_000
MEMORY_MAX_BYTES = 900_000_000
RIGHT_ANSWERS = {"503", "504"}
"""Answers to a write or read that was not carried out: refused for now, or outcome unknown."""


def epochs(clusters: Clusters) -> dict[tuple[str, int], int]:
    """(cluster, partition) -> epoch, as the cluster's first node reports it."""
    return {
        (cluster, row["partition"]): row["epoch"]
        for cluster in clusters.by_name
        for row in clusters.see(cluster, "/admin/partitions")["partitions"]
    }


def fetch_without_acknowledging(
    node: ClusterNode, sink: bytes, number: int, until_s: float, seen: Counter[int]
) -> None:
    """Fetches one change at a time as the sink's cluster would, and lets its leases lie."""
    session = Session(sink, f"stray{number}", secrets.token_bytes(8), 0)
    body = encode_request(FetchRequest(session, "west", max_count=1, wait_ms=200))
    connection = Connection(node.place, 10.0)
    headers = {"Content-Type": "application/msgpack"}
    while time.monotonic() < until_s:
        try:
            seen[connection.request("POST", f"/queues/{queue_to('west')}/fetch", headers, body).status] += 1
        except (NotSent, Broken):
            seen[0] += 1
    connection.close()


def loaded(node: ClusterNode, phase: Phase, results: list[Result]) -> None:
    """A source of load of its own against a node."""
    with LoadProcess(url(node.place)) as load:
        results.append(load.run(phase))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_more_than_can_be_served_is_refused_and_nothing_else_happens(tmp_path: Path) -> None:
    """Batches over 64 connections, reads over 64, and 48 fetchers that never acknowledge, all as fast as they can, at
    both nodes of the source: requests beyond capacity are refused with the right status, memory stays bounded, no
    leadership changes and no process ends; then all acknowledged writes arrive, the ledger closes, and a write succeeds
    as usual."""
    clusters = Clusters(tmp_path, (("east", "west"),), nodes=2)
    east = list(clusters.by_name["east"].nodes.values())
    for node in east:
        text = node.config.read_text()
        node.config.write_text(text.replace("[replication]\n", f"[replication]\nwindow_entries = {WINDOW_ENTRIES}\n"))
    with clusters:
        put(east[0].place, "first", b"x")
        clusters.by_name["east"].wait_applied(60)
        (owner,) = {row["owner"]["uuid"] for row in clusters.queue_rows("east", "west") if row["owner"]}
        before = epochs(clusters)
        results: list[Result] = []
        seen: Counter[int] = Counter()
        until_s = time.monotonic() + OVERLOAD_S
        threads = [
            threading.Thread(
                target=fetch_without_acknowledging, args=(east[n % 2], bytes.fromhex(owner), n, until_s, seen)
            )
            for n in range(STRAYS)
        ]
        for number, node in enumerate(east):
            write = Phase("batch", number * NEVER_ENDING, NEVER_ENDING, 0, CONNECTIONS, OBJECTS, 0.0, OVERLOAD_S)
            read = Phase("get", 0, NEVER_ENDING, 1_000, CONNECTIONS, 1, 0.0, OVERLOAD_S)
            threads += [threading.Thread(target=loaded, args=(node, phase, results)) for phase in (write, read)]
        for thread in threads:
            thread.start()
        nodes = [node for fault_cluster in clusters.by_name.values() for node in fault_cluster.nodes.values()]
        largest = 0
        while any(thread.is_alive() for thread in threads):
            largest = max(largest, *(psutil.Process(node.pid).memory_info().rss for node in nodes))
            time.sleep(0.2)
        clusters.timeline.note(f"{largest // 1_000_000} MB at most; {results}; fetches by status {dict(seen)}")
        assert largest < MEMORY_MAX_BYTES
        assert len(results) == 2 * len(east)
        for result in results:
            assert {status for status in result.failed if status != "404"} <= RIGHT_ANSWERS, result
        refused = sum(count for result in results for status, count in result.failed.items() if status in RIGHT_ANSWERS)
        assert refused, "nothing was refused: this was no overload"
        assert seen[200]
        assert {*seen} <= {0, 200, 503}, seen
        assert epochs(clusters) == before
        clusters.check()
        put(east[1].place, "last", b"y")
