"""The cost of keeping Riak's trees: per applied write, of a build, and of a node's writes with and without them.

    python -m bench.riak_trees [--json] [--keys 100000] [--pairs 5]

Updates and builds are measured in this process, with entries and key rows like those of a cluster beside a Riak: clocks
of two writers, one of them a Riak's vnode. A node's writes are those of two clusters of one node, which take turns; the
second has `[[riak.trees]]`.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import click

from bench.figures import CpuTime, Figure, Target, machine, report
from bench.loadgen import Phase, Result
from bench.nodes import BenchFailed, LoadProcess, Nodes
from isthmus.aae.ports import LedPartition, ReplicaSnapshot
from isthmus.aae.riak_trees.contents import ReplacedClocks
from isthmus.aae.riak_trees.groups import TreeGroups
from isthmus.aae.riak_trees.local import LocalRiakTrees, TreeRequest
from isthmus.config.settings import RiakTreeSettings
from isthmus.node.cli.exit_codes import CommandFailed
from isthmus.repl.clock import SystemTime
from isthmus.repl.model.entry import NO_OFFSET, Entry, EntryKind, encode_key_row, make_entry
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.keys import key_hash
from isthmus.repl.model.objects import Summary
from isthmus.repl.model.ports import AppliedEntries
from isthmus.repl.model.vclock import encode_clock
from isthmus.repl.runtime.apply_listeners import ApplyListeners
from isthmus.repl.store.leveldb import LevelStore
from isthmus.repl.store.port import PartitionStep
from tests.support.fullsync_fakes import FakeReplicas

UPDATE: Final = Target(30, "µs of CPU per applied write", at_least=False)
BUILD: Final = Target(100_000, "keys per second of CPU")
WRITE: Final = Target(30, "µs of node CPU more per PUT, median", at_least=False)

PARTITION: Final = 0
GROUPS: Final = TreeGroups([RiakTreeSettings(3, "default")])
STEP: Final = 2_000
CONNECTIONS: Final = 32
POLL_S: Final = 0.01
LIMIT_S: Final = 120.0

TOPOLOGY: Final = """\
[clusters.without]
[[clusters.without.nodes]]
name = "without"

[clusters.with]
[[clusters.with.nodes]]
name = "with"
[[clusters.with.riak.trees]]
n_val = 3
bucket_types = "*"
"""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--keys", default=100_000, show_default=True, help="Keys of each measurement in this process.")
@click.option("--pairs", default=5, show_default=True, help="Pairs of loads on nodes with and without trees; 0: none.")
@click.option("--puts", default=20_000, show_default=True, help="PUTs of each of these loads.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory of the data; its disk determines the cost of an fsync.",
)
def main(as_json: bool, keys: int, pairs: int, puts: int, directory: Path | None) -> None:
    """Measure updates and builds of Riak's trees."""
    try:
        where = machine()
        figures = asyncio.run(_trees(keys, directory))
        if pairs:
            with Nodes(TOPOLOGY, directory) as nodes:
                figures.append(_writes(nodes, pairs, puts))
        report("riak_trees", where, figures, as_json, [])
    except (BenchFailed, CommandFailed, IsthmusError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from error


class _Noted(ReplacedClocks):
    """The clocks that a leader notes while it makes its entries."""

    def __init__(self) -> None:
        self.clocks: dict[int, bytes] = {}

    def follow(self, partition: int, *, wanted: bool) -> None:
        """See ReplacedClocks."""

    def take(self, partition: int, end: int) -> Mapping[int, bytes]:  # noqa: ARG002
        """See ReplacedClocks; as `node.services.fullsync_ports` does it."""
        taken = {offset: clock for offset, clock in self.clocks.items() if offset < end}
        for offset in taken:
            del self.clocks[offset]
        return taken

    def bucket_type(self, partition: int) -> bytes:  # noqa: ARG002
        """See ReplacedClocks."""
        return b"default"


async def _trees(keys: int, directory: Path | None) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-", dir=directory) as path:
        store = LevelStore.open(
            Path(path), cluster_uuid=bytes(16), write_buffer_bytes=64 << 20, block_cache_bytes=64 << 20, boot_id="b"
        )
        try:
            return await _measured(store, keys)
        finally:
            store.close()


async def _measured(store: LevelStore, keys: int) -> list[Figure]:
    noted, applied = _Noted(), 0
    replicas = FakeReplicas(
        lambda: [ReplicaSnapshot(PARTITION, b"default", 1, applied, True)],
        led=lambda _: [LedPartition(PARTITION, 0, 1)],
    )
    trees = LocalRiakTrees(
        GROUPS, store, replicas=replicas, replaced=noted, changes=ApplyListeners(), time=SystemTime(), rebuild_ms=0
    )
    first = [_entry(at, at, NO_OFFSET) for at in range(keys)]
    for at in range(0, keys, STEP):
        store.write([PartitionStep(PARTITION, first[at : at + STEP])])
    applied = keys
    began_s = time.process_time()
    trees.start()
    trees.leadership(PARTITION, True, keys)
    while not trees.hashes(TreeRequest((b"default",))).readiness[0].ready:  # noqa: ASYNC110 - it is built in a thread
        await asyncio.sleep(POLL_S)
    seconds = time.process_time() - began_s
    figures = [_figure("tree built from key rows", f"{keys:,} keys", keys, seconds, BUILD, keys / seconds)]
    end = keys
    for count in (1, 20):
        entries = [_entry(end + at, at, at if count == 1 else keys + at) for at in range(keys)]
        parts = [[AppliedEntries(PARTITION, entries[at : at + count], True)] for at in range(0, keys, count)]
        began_s = time.process_time()
        for part in parts:
            for entry in part[0].entries:
                noted.clocks[entry.offset] = _clock(entry.previous_offset)
            trees.applied(part)
        seconds = time.process_time() - began_s
        end += keys
        work = f"overwritten, {count} entries at once"
        figures.append(_figure(work, f"{keys:,} keys", keys, seconds, UPDATE, 1e6 * seconds / keys))
    cache = trees.cache
    assert cache is not None
    assert cache.builds_total == 1
    await trees.stop_builds()
    await trees.stop()
    return figures


def _figure(work: str, key_space: str, count: int, seconds: float, target: Target, measured: float) -> Figure:
    figure = Figure(work, key_space, count, seconds, {"this process": CpuTime(seconds, 0.0)})
    figure.target, figure.measured = target, measured
    return figure


_RIAK: Final = bytes(range(8))
_OWN: Final = bytes(range(20, 40))


def _clock(offset: int) -> bytes:
    return encode_clock(((_RIAK, 1 + offset % 7, 63_900_000_000), (_OWN, 1 << 44 | offset + 1, 1_700_000_000)))


def _entry(offset: int, number: int, previous: int) -> Entry:
    key = b"key-%d" % number
    return make_entry(
        EntryKind.DATA,
        1,
        offset,
        request_id=b"",
        origin=bytes(16),
        time_ms=1_700_000_000_000,
        key_hash=key_hash(b"bench", key),
        previous_offset=previous,
        bucket=b"bench",
        key=key,
        row=encode_key_row(Summary(_clock(offset), offset, 1_700_000_000_000, 1_000, 1, False), offset),
        payload=b"x",
    )


def _run(load: LoadProcess, phase: Phase, results: list[Result]) -> None:
    results.append(load.run(phase))


def _writes(nodes: Nodes, pairs: int, puts: int) -> Figure:
    """The CPU of overwriting PUTs, which both nodes take in turns."""
    spent: dict[str, list[float]] = {"without": [], "with": []}
    failed: dict[str, int] = {}
    with LoadProcess(nodes.http["without"]) as one, LoadProcess(nodes.http["with"]) as other:
        loads = {"without": one, "with": other}
        for load in loads.values():
            load.run(Phase("batch", 0, puts, 0, 8, 100, limit_s=LIMIT_S))
        for number in range(pairs):
            order: Sequence[str] = ("without", "with") if number % 2 else ("with", "without")
            for name in order:
                phase = Phase("put", 0, puts, puts, CONNECTIONS, 1, limit_s=LIMIT_S, seed=number + 1)
                results: list[Result] = []
                cpu = nodes.measured(partial(_run, loads[name], phase, results))
                spent[name].append(1e6 * cpu[name].total / max(1, results[0].objects))
                failed.update(results[0].failed)
    more = [after - before for before, after in zip(spent["without"], spent["with"], strict=True)]
    figure = Figure(
        f"PUT, one object per request, {CONNECTIONS} connections", f"any of {puts:,} keys", 2 * pairs * puts
    )
    figure.values = {
        "without_us": statistics.median(spent["without"]),
        "with_us": statistics.median(spent["with"]),
        "tree_MB": nodes.metric("with", "isthmus_riak_tree_bytes") / 2**20,
    }
    figure.failed = failed
    figure.target, figure.measured = WRITE, statistics.median(more)
    return figure


if __name__ == "__main__":
    main()
