"""Two clusters of three nodes under load and permanent faults for a chosen time, and the checks at the end.

Three bucket types in both directions, one of them without siblings, a fourth in one direction alone, in which the
receiver writes keys of its own; and on each side a real-time queue beside a repair queue (`block_rtq`) that full-sync
uses. Wall clocks are wrong by up to ten minutes. Acts kill nodes and ZooKeepers, cut links inside a cluster and between
clusters, fill disks, step clocks, and suspend and resume queues, sinks and full-sync. After each act both clusters must
be in sync again. In the end every acknowledged write is where it belongs, queues are empty, ledgers close, no gap is
left, full-sync proves both directions, and `isthmus reconcile run --full` confirms it for every bucket type that goes
both ways.

Needs root, and the requirements of `tests.system.faults.network` and `tests.system.faults.disks`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.system.faults.campaign import DISK_MB, WELL_TIMEOUT_S
from tests.system.faults.cluster import REPOSITORY, last_words
from tests.system.faults.disks import SmallDisk
from tests.system.faults.load import Broken, NotSent
from tests.system.faults.nemeses import NEMESES
from tests.system.faults.nemesis import FaultContext
from tests.system.faults.network import Network
from tests.system.replication.clusters import ONE_WAY_TYPE, Clusters, OneWay, Writers, ask, eventually, queue_to, url

SIDES: Final = ("east", "west")
BOTH_WAYS: Final = (("east", "west"), ("west", "east"))
NODES: Final = 3
BUCKET_TYPES: Final = ("default", "orders", "sessions")

NODE_ACTS: Final = (
    "kill", "kill-twice", "kill-most", "kill-all", "stop", "pause", "blink", "metastore-kill", "metastore-pause",
    "cut", "cut-one-way", "cut-metastore", "isolate", "lossy", "disk-full",
)  # fmt: skip
"""Faults of one cluster, by their names in `tests.system.faults.nemeses`."""

PROPERTIES: Final[dict[str, dict[str, Any]]] = {"sessions": {"allow_mult": False}}
"""Bucket type -> its properties, on both sides."""

ONE_WAY: Final = ("east", "west")

CLOCK_MAX_S: Final = 600
"""How far a node's wall clock is off at most."""

QUIET_S: Final = (1.0, 6.0)
"""Load between two acts."""

SETTLE_TIMEOUT_S: Final = 600.0
"""How long queues may take to empty, and both sides to become equal, once the load has ended."""

GAPS_TIMEOUT_S: Final = 180.0
"""How long gaps may take to close once checks have proven both sides: each node looks once a minute which gaps are
proven. No further check is begun, since none are configured."""

RECONCILE_TIMEOUT_S: Final = 900.0


@dataclass
class Report:
    """The result of a run."""

    acts: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    deleted: int = 0
    unknown: int = 0
    one_way: int = 0
    well_max_s: float = 0.0
    gaps_seen_max: int = 0
    settled_s: float = 0.0
    reconciled: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The results as lines of text."""
        acts = ", ".join(f"{name} {count}" for name, count in sorted(self.acts.items()))
        keys = f"{self.acknowledged} acknowledged writes of fresh keys, {self.deleted} of them deleted again"
        well = f"whole again after an act within {self.well_max_s:.1f} s; {self.gaps_seen_max} gaps open at the most"
        return [
            f"{sum(self.acts.values())} acts: {acts}",
            f"{keys}, {self.unknown} keys of unknown outcome; {self.one_way} keys of {ONE_WAY_TYPE}",
            f"{well}; all delivered, proven and closed {self.settled_s:.0f} s after the load",
            *(f"reconcile --full, {kind}: {words}" for kind, words in self.reconciled.items()),
        ]


class Endurance:
    """The acts, and the checks after all of them."""

    def __init__(self, clusters: Clusters, stages: dict[str, FaultContext], chance: random.Random) -> None:
        self.clusters = clusters
        self.report = Report()
        self._stages = stages
        self._chance = chance
        self._ended_seen = dict.fromkeys(clusters.by_name, 0)
        self._acts: dict[str, Callable[[str], None]] = {
            **{name: self._harm(name) for name in NODE_ACTS},
            "cut-clusters": self._cut_clusters,
            "cut-link": self._cut_link,
            "suspend-serving": self._suspend("queues", {"what": "serving"}),
            "suspend-publishing": self._suspend("queues", {"what": "publishing"}),
            "suspend-sink": self._suspend("sink", {}),
            "suspend-fullsync": self._suspend("fullsync", {}),
            "clock-step": self._step_clock,
        }

    def act(self) -> str:
        """Run one random act, and wait until both clusters are in sync again; returns the act. Raises
        AssertionError."""
        name, side = self._chance.choice(list(self._acts)), self._chance.choice(SIDES)
        self.clusters.timeline.note(f"act {sum(self.report.acts.values()) + 1}: {name} at {side}")
        self._acts[name](side)
        began_s = time.monotonic()
        for cluster in self.clusters.by_name.values():
            cluster.wait_until_healthy(WELL_TIMEOUT_S)
        self.report.well_max_s = max(self.report.well_max_s, time.monotonic() - began_s)
        self._judge_ends(name)
        self._count_gaps()
        self.report.acts[name] += 1
        return f"{name} at {side}"

    def rest(self) -> None:
        """Load alone, for a while that the seed draws like the acts."""
        time.sleep(self._chance.uniform(*QUIET_S))

    def settle(self, writers: list[Writers], directory: Path) -> None:
        """Check everything after the load has ended. Raises AssertionError."""
        clusters, began_s = self.clusters, time.monotonic()
        for source, receiver in BOTH_WAYS * 2:
            # Twice: changes from the second queue may have entered the first again.
            eventually(
                f"the queues of {source} to {receiver} are empty",
                lambda s=source, r=receiver: clusters.drained(s, r),
                SETTLE_TIMEOUT_S,
            )
        self._prove()
        for source, receiver in BOTH_WAYS:
            self._wait_until_no_gap_is_left(source, receiver)
            clusters.check_ledger(source, receiver)
        self.report.settled_s = time.monotonic() - began_s
        east, west = (clusters.contents(side) for side in SIDES)
        wrong = {key for key in east.keys() | west.keys() if east.get(key) != west.get(key)}
        assert not wrong, f"{len(wrong)} keys differ: {[(key, east.get(key), west.get(key)) for key in wrong][:5]}"
        feeds = {side: clusters.contents(side, [ONE_WAY_TYPE]) for side in SIDES}
        *both_ways, sent, kept = writers
        lacking = {key for key, found in feeds[ONE_WAY[0]].items() if feeds[ONE_WAY[1]].get(key) != found}
        assert not lacking, f"{len(lacking)} keys of {ONE_WAY_TYPE} are not at {ONE_WAY[1]}: {list(lacking)[:5]}"
        own = kept.present.keys() & feeds[ONE_WAY[0]].keys()
        assert not own, f"{len(own)} keys of {ONE_WAY[1]} alone went to {ONE_WAY[0]}: {list(own)[:5]}"
        for writer, contents in ((sent, feeds[ONE_WAY[0]]), (kept, feeds[ONE_WAY[1]])):
            writer.check(contents)
            self.report.one_way += len(writer.present) + len(writer.deleted)
        for writer in both_ways:
            writer.check(east)
            self.report.acknowledged += len(writer.present) + len(writer.deleted)
            self.report.deleted += len(writer.deleted)
            self.report.unknown += len(writer.unknown)
        for kind in BUCKET_TYPES:
            self.report.reconciled[kind] = self._reconcile(kind, directory)

    # -- acts ---------------------------------------------------------------------------------------------------

    def _harm(self, name: str) -> Callable[[str], None]:
        return lambda side: NEMESES[name].act(self._stages[side])

    def _step_clock(self, side: str) -> None:
        node = self._chance.choice(list(self.clusters.by_name[side].nodes.values()))
        offset_s = self._chance.randint(-CLOCK_MAX_S, CLOCK_MAX_S)
        self.clusters.by_name[side].set_clock(node, offset_s)
        self.clusters.timeline.note(f"the clock of {node.name} is {offset_s:+} s off")

    def _cut_clusters(self, _side: str) -> None:
        east, west = ([node.name for node in self.clusters.by_name[side].nodes.values()] for side in SIDES)
        self._cut([(one, other) for one in east for other in west], 5.0, 40.0)

    def _cut_link(self, side: str) -> None:
        other = next(name for name in SIDES if name != side)
        names = [self._chance.choice(list(self.clusters.by_name[where].nodes)) for where in (side, other)]
        self._cut([(names[0], names[1])], 5.0, 40.0)

    def _cut(self, pairs: list[tuple[str, str]], low_s: float, high_s: float) -> None:
        network = self.clusters.network
        assert network is not None
        for one, other in pairs:
            network.cut(one, other)
        time.sleep(self._chance.uniform(low_s, high_s))
        network.heal()

    def _suspend(self, what: str, wish: dict[str, Any]) -> Callable[[str], None]:
        def act(side: str) -> None:
            receiver = next(name for name in SIDES if name != side)
            base = f"/admin/queues/{queue_to(receiver)}" if what == "queues" else f"/admin/{what}"
            self._order(side, f"{base}/suspend", {**wish, "reason": "endurance"})
            time.sleep(self._chance.uniform(3.0, 20.0))
            self._order(side, f"{base}/resume", wish)

        return act

    def _order(self, side: str, path: str, wish: dict[str, Any]) -> None:
        """An operator's order, at any node that takes it, tried until one does."""

        def taken() -> bool:
            node = self._chance.choice(list(self.clusters.by_name[side].nodes.values()))
            try:
                ask(node.admin, "POST", path, {"by": "endurance", **wish})
            except (NotSent, Broken, AssertionError) as error:
                self.clusters.timeline.note(f"{path} at {node.name}: {error}")
                return False
            return True

        eventually(f"{side} takes {path}", taken, 60.0)

    def _judge_ends(self, name: str) -> None:
        allowed = NEMESES[name].exits if name in NEMESES else ()
        for side, cluster in self.clusters.by_name.items():
            fresh = cluster.ended[self._ended_seen[side] :]
            self._ended_seen[side] = len(cluster.ended)
            wrong = [ended for ended in fresh if ended.code not in allowed]
            assert not wrong, f"processes ended by themselves in {name}: {wrong}"

    def _count_gaps(self) -> None:
        try:
            found = sum(len(self.clusters.gaps(source, receiver)) for source, receiver in BOTH_WAYS)
        except (NotSent, Broken, AssertionError):
            return  # unknown for now
        self.report.gaps_seen_max = max(self.report.gaps_seen_max, found)

    # -- invariants ------------------------------------------------------------------------------------------

    def _prove(self) -> None:
        """Compare both directions until each is in sync: differences that one check queues for repair, or finds ahead
        on the other side, must be equal in the next ones. Raises AssertionError."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            verdicts = []
            for source, receiver in BOTH_WAYS:
                result = self._compare(source, receiver)
                words = f"{result['verdict']} {result.get('reason', '')}"
                self.clusters.timeline.note(f"full-sync {source} to {receiver}: {words}")
                verdicts.append((result["verdict"], self.clusters.is_proven(result)))
            if all(proven for _, proven in verdicts):
                return
            assert time.monotonic() < deadline, f"the clusters do not become equal: {verdicts}"
            for source, receiver in BOTH_WAYS:
                eventually(
                    "repairs have gone",
                    lambda s=source, r=receiver: self.clusters.drained(s, r),
                    SETTLE_TIMEOUT_S,
                )

    def _compare(self, source: str, receiver: str) -> dict[str, Any]:
        """A check of everything; waits while the node runs one of its own, as it does for gaps."""
        found: dict[str, Any] = {}

        def done() -> bool:
            try:
                found.update(self.clusters.full_sync(source, receiver))
            except AssertionError as error:
                if '"reason": "busy"' not in str(error):
                    raise
            return bool(found)

        eventually(f"a check of {source} to {receiver} may run", done, SETTLE_TIMEOUT_S)
        return found

    def _wait_until_no_gap_is_left(self, source: str, receiver: str) -> None:
        """Raises AssertionError that names the gaps that are left."""
        deadline = time.monotonic() + GAPS_TIMEOUT_S
        while left := self.clusters.gaps(source, receiver):
            assert time.monotonic() < deadline, f"gaps of {source} to {receiver} that no check has closed: {left[:5]}"
            time.sleep(1.0)

    def _reconcile(self, kind: str, directory: Path) -> str:
        """The verdict of Spark over all keys of a bucket type. Raises AssertionError unless it is "equal"."""
        left, right = (",".join(url(place) for place in self.clusters.by_name[side].places) for side in SIDES)
        words = ["--left", left, "--right", right, "--bucket-type", kind, "--full", "--settle", "2s"]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "isthmus.node.cli.main",
                "reconcile",
                "run",
                *words,
                "--dir",
                str(directory / kind),
            ],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=RECONCILE_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"reconcile of {kind}: {done.returncode}\n{done.stdout}\n{done.stderr[-2000:]}"
        return " ".join(done.stdout.split())[:300]


@contextmanager
def harmed_clusters(directory: Path, seed: int, show: bool = False) -> Iterator[Endurance]:
    """Both clusters, running, with their bucket types. An AssertionError carries the timeline."""
    chance = random.Random(seed)
    hosts = [f"{side}-{host}" for side in SIDES for host in ("zookeeper", *(f"n{n + 1}" for n in range(NODES)))]
    with ExitStack() as stack:
        network = stack.enter_context(Network(hosts))
        names = [host for host in hosts if not host.endswith("zookeeper")]
        disks = {name: stack.enter_context(SmallDisk(directory / f"disk-{name}", DISK_MB)) for name in names}
        clusters = Clusters(
            directory,
            BOTH_WAYS,
            nodes=NODES,
            network=network,
            repair_queues=True,
            data_dirs={name: disk.path / "data" for name, disk in disks.items()},
            replication='log_size = "200MB"',
            show=show,
            movable_clocks=True,
            one_way=OneWay(ONE_WAY, BUCKET_TYPES),
        )
        stack.enter_context(clusters)
        stages = {
            side: FaultContext(cluster, chance, network, {name: disks[name] for name in cluster.nodes})
            for side, cluster in clusters.by_name.items()
        }
        try:
            for side, cluster in clusters.by_name.items():
                for node in cluster.nodes.values():
                    cluster.set_clock(node, chance.randint(-CLOCK_MAX_S, CLOCK_MAX_S))
                for kind in (*BUCKET_TYPES[1:], ONE_WAY_TYPE):
                    clusters.make_bucket_type(side, kind, PROPERTIES.get(kind))
            clusters.bucket_types = BUCKET_TYPES
            for cluster in clusters.by_name.values():
                cluster.wait_until_healthy(WELL_TIMEOUT_S)
            yield Endurance(clusters, stages, chance)
        except AssertionError as error:
            error.add_note("\n".join(["the timeline:", *clusters.timeline.lines[-80:]]))
            for cluster in clusters.by_name.values():
                for process in cluster.processes:
                    error.add_note(f"{process.name} ({process.log}): {last_words(process)}")
            raise


def endure(
    directory: Path, seconds: float, seed: int, *, pause_s: float = 0.1, show: bool = False, tell: Callable[[str], None]
) -> Report:
    """Load and acts for so long, then everything that must hold. `pause_s`: between two writes of each of six clients.
    Raises AssertionError with the timeline of the run."""
    with harmed_clusters(directory, seed, show) as endurance:
        by_name = endurance.clusters.by_name
        writers = [
            Writers(side[0], by_name[side].places, pause_s=pause_s, seed=seed + at * 100, bucket_types=BUCKET_TYPES)
            for at, side in enumerate(SIDES)
        ]
        writers += [
            Writers(f"{side[0]}f", by_name[side].places[:1], pause_s=2 * pause_s, seed=seed + 500 + at, shared=False,
                    bucket_types=(ONE_WAY_TYPE,))
            for at, side in enumerate(ONE_WAY)
        ]  # fmt: skip
        for writer in writers:
            writer.start()
        began_s = time.monotonic()
        try:
            while (passed_s := time.monotonic() - began_s) < seconds:
                name = endurance.act()
                written = sum(len(writer.present) + len(writer.deleted) for writer in writers)
                tell(f"{passed_s:7.0f} s  {name:<28} {written:>8} written")
                endurance.rest()
        finally:
            for writer in writers:
                writer.stop()
        tell(f"{time.monotonic() - began_s:7.0f} s  the load has ended")
        endurance.settle(writers, directory / "reconcile")
        return endurance.report
