"""Lag of replication that is triggered at apply, compared with a trigger after the leader's own sync (Riak).

    python -m bench.firing [--json] [--rate 100] [--seconds 20]

Clients write fresh keys of 1 KB at a steady rate: first to a cluster of one node, then to one of three with min-ISR 2.
Another cluster of one node fetches. Measured are the time from append to apply at the leader
(`isthmus_replicate_duration_seconds`), the duration of the leader's syncs, and the lag from the append at A to the
apply at B, as the sink reports it. A queue that sends a change after the leader's own sync would be earlier by the
difference of the first two. Takes about a minute.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

import click

from bench.figures import Figure, machine, report
from bench.loadgen import VALUE_BYTES, Phase
from bench.nodes import TWO_CLUSTERS, BenchFailed, LoadProcess, Nodes
from isthmus.repl.model.errors import IsthmusError

CONNECTIONS: Final = 16
SETTLE_SECONDS: Final = 2.0
TIMEOUT_S: Final = 60.0

THREE_TO_ONE: Final = (
    "".join(f'[[clusters.a.nodes]]\nname = "a{number}"\n' for number in (1, 2, 3))
    + """
[clusters.a.replication]
factor = 3
min_isr = 2
[[clusters.a.queues]]
name = "to-b"
[[clusters.b.nodes]]
name = "b"
[[clusters.b.sink.peers]]
cluster = "a"
queue = "to-b"
"""
)

WRITES: Final = 'isthmus_replicate_duration_seconds_{}{{bucket_type="default",kind="write"}}'
SYNCS: Final = {"sum": "isthmus_replog_fsync_seconds_total", "count": "isthmus_replog_fsyncs_total"}

Sums = dict[str, float]
"""Name of a metric sample -> its value, summed over A's nodes."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--rate", default=100.0, show_default=True, help="PUTs per second.")
@click.option("--seconds", default=20.0, show_default=True, help="Duration of each measurement.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory of the data; its disk determines the cost of an fsync.",
)
def main(as_json: bool, rate: float, seconds: float, directory: Path | None) -> None:
    """Measure the lag that triggering at apply costs."""
    try:
        where = machine()
        figures = [
            _measured(TWO_CLUSTERS, "one node", None if directory is None else directory / "one", rate, seconds),
            _measured(THREE_TO_ONE, "three nodes", None if directory is None else directory / "three", rate, seconds),
        ]
        report("firing", where, figures, as_json, [])
    except (BenchFailed, IsthmusError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from error


def _measured(topology: str, source: str, directory: Path | None, rate: float, seconds: float) -> Figure:
    count = int(rate * seconds)
    with Nodes(topology, directory) as nodes:
        names = [name for name in nodes.http if name.startswith("a")]
        with LoadProcess(nodes.http[names[0]]) as load:
            time.sleep(SETTLE_SECONDS)
            before = _sums(nodes, names)
            result = load.run(Phase("put", 0, count, 0, CONNECTIONS, 1, rate, seconds + TIMEOUT_S))
            after = _sums(nodes, names)
            lag_ms, lag_p99_ms = _lag(nodes)
    spent = {name: after[name] - before[name] for name in after}
    writes, syncs = spent[WRITES.format("count")], spent[SYNCS["count"]]
    if not writes or not syncs:
        raise BenchFailed(f"{source}: {writes:.0f} writes and {syncs:.0f} syncs were counted")
    write_ms = 1_000 * spent[WRITES.format("sum")] / writes
    sync_ms = 1_000 * spent[SYNCS["sum"]] / syncs
    values = {
        "ms_append_to_applied_at_A": write_ms,
        "ms_of_a_sync": sync_ms,
        "ms_that_firing_at_apply_costs": max(0.0, write_ms - sync_ms),
        "ms_lag_p50": lag_ms,
        "ms_lag_p99": lag_p99_ms,
    }
    work = f"A has {source}: PUT at {rate:,.0f}/s, {VALUE_BYTES:,} bytes"
    return Figure(work, f"{count:,} fresh keys", result.objects, result.seconds, {}, values, failed=result.failed)


def _lag(nodes: Nodes) -> tuple[float, float]:
    """(p50, p99) in ms over all links of B: the median weighted by the number of changes, and the highest p99."""
    links = [link for link in nodes.admin["b"].get("/admin/sink")["sinks"] if link["applied"]]
    if not links:
        raise BenchFailed("no change arrived at B")
    applied = sum(link["applied"] for link in links)
    p50 = sum(float(link["lag_ms_p50"]) * link["applied"] for link in links) / applied
    return p50, max(float(link["lag_ms_p99"]) for link in links)


def _sums(nodes: Nodes, names: list[str]) -> Sums:
    wanted = [WRITES.format("sum"), WRITES.format("count"), *SYNCS.values()]
    found = dict.fromkeys(wanted, 0.0)
    for name in names:
        for line in nodes.metrics(name):
            sample, _, value = line.rpartition(" ")
            if sample in found:
                found[sample] += float(value)
    return found


if __name__ == "__main__":
    main()
