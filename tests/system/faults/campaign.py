"""Acts: a load, a fault in the cluster meanwhile, and then checks of all invariants.

After each act: the cluster recovers by itself within a bound, each key reads the same at every node, the history of
each key is linearizable with those reads in it, a fault explains every error that a client got, and only processes with
a fault have ended. After the last act every key of every act is read again, and the replicas of all nodes are compared.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from isthmus.repl.store.leveldb import plyvel
from isthmus.repl.store.rows import CHANGE_TAG, KEY_TAG, OBJECT_TAG
from tests.system.faults.cluster import FaultCluster, Timeline, last_words
from tests.system.faults.disks import SmallDisk
from tests.system.faults.linearizability import check
from tests.system.faults.load import History, Load, read_all
from tests.system.faults.nemeses import NEMESES
from tests.system.faults.nemesis import FaultContext, Nemesis
from tests.system.faults.network import Network

KEYS: Final = 12
"""Keys of one act: three a partition on average, few enough to be written many times each."""

CALM_S: Final = 0.7
"""Seconds of load before the fault and after its end."""

WELL_TIMEOUT_S: Final = 100.0
"""How long a cluster may take until all replicas are in sync again. An election, a restart and a catch-up take some 10
s; but a member that was too slow again and again is let back in only after a minute
(`repl.isr.lag_detector.REJOIN_MAX_MS`)."""

READ_TIMEOUT_S: Final = 20.0

COPIED: Final = (OBJECT_TAG, KEY_TAG, CHANGE_TAG)
"""Rows that are the same on every replica, byte by byte."""

DISK_MB: Final = 1_500
"""The size of a small disk: room for the log (below), its reserve, and the store. The file below it is sparse."""

LONG_LOG: Final = 'log_size = "800MB"'
"""Longer than any run makes it: a node with an emptied disk is caught up from the log, from its beginning on. (The
default may outgrow a small disk.)"""

SHORT_LOG: Final = (
    'log_size = "1MB"\nlog_file_size = "128KB"\nlog_batch_size = "128KB"\ncheckpoint_interval = "1s"\n'
    'write_buffer_size = "512KB"'
)
"""The shortest there is: a node that misses two megabytes is beyond it, and takes rows of its leaders' stores. These
have tables from the first megabyte on."""


@dataclass
class FaultResult:
    """The outcome of one nemesis under load."""

    number: int
    nemesis: str
    counts: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    unknown: int = 0
    reads: int = 0
    seconds: float = 0.0
    well_s: float = 0.0
    """Seconds from the end of the fault until everything was in sync."""
    gap_s: float = 0.0
    """The longest time in which no write at all was acknowledged."""
    key_gap_s: float = 0.0
    """The longest such time of a key."""

    def line(self) -> str:
        """The result in one line."""
        return (
            f"act {self.number:>4}  {self.nemesis:<22} {self.seconds:5.1f} s  {self.acknowledged:>6} written "
            f"{self.unknown:>4} unknown {self.reads:>6} read  no write for {self.gap_s:4.1f} s, "
            f"to a key {self.key_gap_s:4.1f} s  well after {self.well_s:4.1f} s"
        )


class Campaign:
    """Acts on one cluster."""

    def __init__(self, context: FaultContext, *, clients: int = 6, pause_s: float = 0.01) -> None:
        self.context = context
        self.cluster = context.cluster
        self.histories: list[History] = []
        self.results: list[FaultResult] = []
        self._clients = clients
        self._pause_s = pause_s

    def run_fault(self, name: str) -> FaultResult:
        """Run one act. Raises AssertionError (NotLinearizable is one) with the failed check."""
        cluster, chance = self.cluster, self.context.chance
        nemesis = NEMESES[name]
        result = FaultResult(len(self.results) + 1, name)
        self.results.append(result)
        history = History()
        self.histories.append(history)
        keys = [f"a{result.number}-{number}" for number in range(KEYS)]
        ended_before = len(cluster.ended)
        cluster.timeline.note(f"act {result.number}: {name}")
        load = Load(cluster.places, keys, history, chance, clients=self._clients, pause_s=self._pause_s)
        load.start()
        try:
            time.sleep(CALM_S)
            nemesis.act(self.context)
            result.well_s = cluster.wait_until_healthy(WELL_TIMEOUT_S)
            time.sleep(CALM_S)
        except AssertionError as error:
            load.stop()
            error.add_note(f"what clients saw until then: {self._verdict(history)}")
            raise
        finally:
            load.stop()
            self._measure(result, load)
        read_all(cluster.places, keys, history, chance, READ_TIMEOUT_S)
        self._judge(nemesis, history, ended_before)
        cluster.timeline.note(result.line())
        return result

    def finish(self) -> None:
        """Read every key of every act again; then compare the replicas. Raises AssertionError."""
        self.cluster.wait_until_healthy(WELL_TIMEOUT_S)
        for history in self.histories:
            read_all(self.cluster.places, list(history.keys), history, self.context.chance, READ_TIMEOUT_S)
            self._check(history)
        self.cluster.wait_applied(READ_TIMEOUT_S)
        for process in self.cluster.processes:
            process.kill()
        compare_copies(self.cluster)

    def _measure(self, result: FaultResult, load: Load) -> None:
        history = load.history
        result.counts = history.counts
        result.acknowledged = len(history.acknowledged)
        operations = [op for key in history.keys.values() for op in key]
        result.unknown = sum(op.outcome == "unknown" for op in operations)
        result.reads = sum(op.kind == "read" for op in operations)
        result.seconds = (load.ended_ns - load.began_ns) / 1e9
        result.gap_s = history.longest_gap_s(load.began_ns, load.ended_ns)
        result.key_gap_s = max(history.longest_gap_s(load.began_ns, load.ended_ns, key) for key in history.keys)

    def _judge(self, nemesis: Nemesis, history: History, ended_before: int) -> None:
        self._check(history)
        surprises = [line for line in history.surprises if not any(excuse in line for excuse in nemesis.excuses)]
        assert not surprises, "answers that nothing explains:\n" + "\n".join(surprises[:10])
        wrong = [ended for ended in self.cluster.ended[ended_before:] if ended.code not in nemesis.exits]
        assert not wrong, f"processes ended by themselves: {wrong}"

    def _verdict(self, history: History) -> str:
        try:
            self._check(history)
        except AssertionError as error:
            return f"NOT LINEARIZABLE\n{error}"
        return "linearizable"

    def _check(self, history: History) -> None:
        for key, operations in history.keys.items():
            try:
                check(operations)
            except AssertionError as error:
                error.add_note(f"key {key}")
                raise


def compare_copies(cluster: FaultCluster) -> int:
    """How many rows each node's store has, when all have the same objects, key rows and change rows. The nodes must be
    down. Raises AssertionError."""
    copies = {node.name: _rows(node.data_dir / "store" / "rows") for node in cluster.nodes.values()}
    first, *others = copies
    for other in others:
        different = sorted(copies[first].items() ^ copies[other].items())
        assert not different, f"{first} and {other} differ in {len(different)} rows, {different[0][0]!r} the first"
    return len(copies[first])


def _rows(directory: Path) -> dict[bytes, bytes]:
    database = plyvel.DB(str(directory))
    try:
        return {name: value for tag in COPIED for name, value in database.iterator(prefix=tag)}
    finally:
        database.close()


@contextmanager
def fault_context(
    directory: Path,
    names: Iterable[str],
    *,
    nodes: int = 3,
    seed: int = 0,
    show: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Iterator[FaultContext]:
    """A running cluster on which these nemeses can act, with a network and small disks where they need them. An
    AssertionError carries the timeline and the nodes' last words with it."""
    wanted = [NEMESES[name] for name in names]
    timeline = Timeline(show)
    with ExitStack() as stack:
        network = None
        members = [f"n{number}" for number in range(1, nodes + 1)]
        hosts = sorted({"zookeeper", *members, *(nemesis.spare for nemesis in wanted if nemesis.spare)})
        if any(nemesis.network for nemesis in wanted):
            network = stack.enter_context(Network(hosts))
        disks: dict[str, SmallDisk] = {}
        sections = dict(settings or {})
        if any(nemesis.disks for nemesis in wanted):
            disks = {name: SmallDisk(directory / f"disk-{name}", DISK_MB) for name in members}
            for disk in disks.values():
                stack.enter_context(disk)
        if "replication" not in sections and (disks or any(nemesis.far for nemesis in wanted)):
            sections["replication"] = SHORT_LOG if any(nemesis.far for nemesis in wanted) else LONG_LOG
        cluster = FaultCluster(
            directory,
            nodes,
            network=network,
            timeline=timeline,
            data_dirs={name: disk.path / "data" for name, disk in disks.items()},
            settings=sections,
            movable_clocks=any(nemesis.clocks for nemesis in wanted),
        )
        stack.enter_context(cluster)
        try:
            cluster.up()
            timeline.note(f"up, leaders {cluster.leaders()}")
            yield FaultContext(cluster, random.Random(seed), network, disks)
        except AssertionError as error:
            error.add_note("\n".join(["the timeline:", *timeline.lines[-60:]]))
            for process in cluster.processes:
                error.add_note(f"{process.name} ({process.log}): {last_words(process)}")
                process.kill()
            for name, disk in disks.items():
                shutil.copytree(disk.path / "data", cluster.nodes[name].directory / "data", dirs_exist_ok=True)
            raise
