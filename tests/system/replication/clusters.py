"""Clusters of real processes that replicate, each with a ZooKeeper of its own, and clients that write to all of them.

`Clusters.check` verifies at the end: every queue empty, every ledger closed, nothing lost, full-sync proves both ends
of every arrow equal, each key reads the same everywhere, and every acknowledged write is present. Each test defines
which gaps are expected, and which faults are injected.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import threading
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlencode

from tests.system.faults.cluster import PARTITIONS, ClusterNode, FaultCluster, Timeline
from tests.system.faults.load import Broken, Connection, NodeAddress, NotSent, values_of
from tests.system.faults.network import Network

BUCKET: Final = "b"
UP_TIMEOUT_S: Final = 90.0
CALM_TIMEOUT_S: Final = 120.0
"""How long a busy machine may take to make everything equal again."""

CHECK_TIMEOUT_S: Final = 60.0

LOOK_AGAIN_S: Final = 30.0
"""How long after a difference was found clusters are compared again, to tell whether the change was late or is lost."""

KEYS_EXPLAINED: Final = 20
"""Most keys that are explained once clusters differ."""

PATIENCE_S: Final = 30.0
"""How long a client retries one write before its outcome stays unknown."""

SHARED: Final = tuple(f"shared{number}" for number in range(12))
"""Keys that clients of all clusters write to."""

ONE_WAY_TYPE: Final = "feeds"
"""A bucket type that one direction replicates, and in which the receiver has keys of its own, too."""

DEFAULT_TYPE: Final = ("default",)
"""The bucket type that every cluster has."""

Arrow = tuple[str, str]
"""(source cluster, fetching cluster)."""


class OneWay(NamedTuple):
    """An arrow that alone replicates ONE_WAY_TYPE; the opposite one offers and compares `others`."""

    arrow: Arrow
    others: Sequence[str]


def queue_to(receiver: str) -> str:
    """The queue that a cluster fetches from, at each of its sources."""
    return f"to-{receiver}"


def repair_queue_to(receiver: str) -> str:
    """The queue that takes repairs alone, where real time and full-sync have a queue each."""
    return f"repair-{receiver}"


def eventually(claim: str, condition: Callable[[], object], timeout_s: float = CALM_TIMEOUT_S) -> Any:
    """Wait until the condition is true; returns its value."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {claim}"
        time.sleep(0.1)
    return found


def key_path(key: str, bucket: str = BUCKET, bucket_type: str = "") -> str:
    """The HTTP path of a key."""
    below = f"/types/{bucket_type}" if bucket_type else ""
    return f"{below}/buckets/{bucket}/keys/{key}"


def bucket_type_of(key: str, bucket_types: Sequence[str]) -> str:
    """The bucket type that a key of a load belongs to."""
    return bucket_types[zlib.crc32(key.encode()) % len(bucket_types)]


def ask(place: NodeAddress, method: str, path: str, wish: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """An admin answer. Raises NotSent, Broken; AssertionError for a refusal."""
    connection = Connection(place, 20.0)
    try:
        body = None if wish is None else json.dumps(wish).encode()
        reply = connection.request(method, path, {"Content-Type": "application/json"}, body)
    finally:
        connection.close()
    assert reply.status < 300, f"{method} {path} at {place.name}: {reply.status} {reply.body[:300]!r}"
    return dict(json.loads(reply.body))


def put(place: NodeAddress, key: str, value: bytes, bucket: str = BUCKET) -> None:
    """Write one object, which must be acknowledged."""
    connection = Connection(place)
    try:
        read = connection.request("GET", key_path(key, bucket), {})
        clock = read.headers.get("X-Riak-Vclock")
        headers = {"Content-Type": "text/plain"} | ({} if clock is None else {"X-Riak-Vclock": clock})
        reply = connection.request("PUT", key_path(key, bucket), headers, value)
    finally:
        connection.close()
    assert reply.status == 204, reply.reason


class Clusters:
    """`nodes` nodes in each cluster that an arrow names. Use as a context manager; entering starts them."""

    def __init__(
        self,
        directory: Path,
        arrows: Sequence[Arrow],
        *,
        nodes: int = 1,
        network: Network | None = None,
        queues: Mapping[str, str] | None = None,
        cascade: Sequence[str] = (),
        sinks: str = "",
        more_peers: Mapping[str, str] | None = None,
        repair_queues: bool = False,
        data_dirs: Mapping[str, Path] | None = None,
        replication: str = "",
        show: bool = False,
        movable_clocks: bool = False,
        one_way: OneWay | None = None,
    ) -> None:
        """`queues`: more lines of every queue of a cluster; `cascade`: clusters that also forward received changes;
        `sinks`: lines of every [sink]; `more_peers`: lines at the end of the files of a cluster; `repair_queues`:
        full-sync has a queue of its own (`block_rtq`) beside that of real time; `data_dirs`: by node, where not below
        `directory`; `replication`: lines of every [replication]; `movable_clocks`: see FaultCluster."""
        self.timeline = Timeline(show)
        self.repair_queues = repair_queues
        self.bucket_types: tuple[str, ...] = DEFAULT_TYPE
        self.one_way = one_way
        self.arrows = list(arrows)
        self.network = network
        self.by_name: dict[str, FaultCluster] = {}
        names = list(dict.fromkeys(name for arrow in arrows for name in arrow))
        for name in names:
            settings = {"sink": f'discovery_interval = "1s"\ndelay_max = "1s"\npoll = "2s"\n{sinks}'}
            if replication:
                settings["replication"] = replication
            self.by_name[name] = FaultCluster(
                directory / name,
                nodes,
                network=network,
                timeline=self.timeline,
                settings=settings,
                cluster=name,
                data_dirs=data_dirs,
                movable_clocks=movable_clocks,
            )
        for name, fault_cluster in self.by_name.items():
            for node in fault_cluster.nodes.values():
                self._join(name, node, (queues or {}).get(name, ""), name in cascade, (more_peers or {}).get(name, ""))

    def _join(self, name: str, node: ClusterNode, lines: str, cascade: bool, more: str) -> None:
        """Write a node's queues, peers and full-syncs into its file."""
        parts = [node.config.read_text()]
        for receiver in (receiver for source, receiver in self.arrows if source == name):
            left_out = self.one_way is not None and (receiver, name) == self.one_way.arrow
            filtered = f'filter = "!buckettype:{ONE_WAY_TYPE}"\n' if left_out else ""
            offered = f"cascade = {str(cascade).lower()}\n{filtered}{lines}"
            parts.append(f'[[queues]]\nname = "{queue_to(receiver)}"\n{offered}\n')
            if self.repair_queues:
                parts.append(f'[[queues]]\nname = "{repair_queue_to(receiver)}"\nfilter = "block_rtq"\n')
            urls = ",".join(url(place) for place in self.by_name[receiver].places)
            parts.append(
                f'[[fullsync]]\nname = "{receiver}"\nurls = "{urls}"\ncluster = "{receiver}"\n'
                f'queue = "{self.queues_to(receiver)[-1]}"\nauto = 0\npause = "500ms"\n'
                + (f'bucket_types = "{",".join(self.one_way.others)}"\n' if left_out and self.one_way else "")
            )
        for source in (source for source, receiver in self.arrows if receiver == name):
            parts += [
                f'[[sink.peers]]\nurl = "{url(place)}"\nqueue = "{queue}"\ncluster = "{source}"\n'
                for place in self.by_name[source].places
                for queue in self.queues_to(name)
            ]
        node.config.write_text("\n".join([*parts, more]))

    def queues_to(self, receiver: str) -> tuple[str, ...]:
        """All queues that a cluster fetches from at each source; the last one takes repairs."""
        return (queue_to(receiver), *([repair_queue_to(receiver)] if self.repair_queues else []))

    def __enter__(self) -> Self:
        try:
            for fault_cluster in self.by_name.values():
                fault_cluster.up()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for fault_cluster in self.by_name.values():
            fault_cluster.close()
        if error is not None:
            print("\n".join(self.timeline.lines))

    # -- acts -------------------------------------------------------------------------------------------------

    def node(self, cluster: str, number: int = 0) -> ClusterNode:
        """A node of a cluster."""
        return list(self.by_name[cluster].nodes.values())[number]

    def act(self, cluster: str, path: str, wish: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """An operator's act at the first node."""
        return ask(self.node(cluster).admin, "POST", path, {"by": "test", **(wish or {})})

    def see(self, cluster: str, path: str) -> dict[str, Any]:
        """The first node's answer to an operator."""
        return ask(self.node(cluster).admin, "GET", path)

    def suspend_sink(self, cluster: str) -> None:
        """Suspend the sinks of a cluster: no node fetches, and running fetches have ended."""
        self.act(cluster, "/admin/sink/suspend")

        def still() -> bool:
            links = [
                link
                for node in self.by_name[cluster].nodes.values()
                for link in ask(node.admin, "GET", "/admin/sink")["sinks"]
            ]
            return all(link["state"] in ("suspended", "ending") and not link["running"] for link in links)

        eventually("the sink rests", still)

    def resume_sink(self, cluster: str) -> None:
        """Resume the sinks of a cluster."""
        self.act(cluster, "/admin/sink/resume")

    def crash(self, node: ClusterNode, cluster: str, away_s: float = 1.0) -> None:
        """kill -9, and a new process a while later."""
        self.timeline.note(f"kill -9 {node.name}")
        node.kill()
        time.sleep(away_s)
        self.by_name[cluster].start(node)

    def make_bucket_type(self, cluster: str, name: str, props: Mapping[str, Any] | None = None) -> None:
        """Create one more bucket type, placed like the default one; loads and checks use it once all clusters have
        it."""
        wish: dict[str, Any] = {
            "partition_count": PARTITIONS,
            "replication_factor": len(self.by_name[cluster].nodes),
            "min_isr": 2,
        }
        if props:
            wish["props"] = dict(props)
        self.act(cluster, f"/admin/bucket-types/{name}", wish)
        self.by_name[cluster].partition_count += PARTITIONS

    # -- state --------------------------------------------------------------------------------------------

    def queue_rows(self, cluster: str, receiver: str) -> list[dict[str, Any]]:
        """The queue to a receiver as each node of its cluster lists it."""
        return [
            row
            for node in self.by_name[cluster].nodes.values()
            for row in ask(node.admin, "GET", "/admin/queues")["queues"]
            if row["name"] in self.queues_to(receiver)
        ]

    def total(self, cluster: str, receiver: str, word: str) -> int:
        """A counter of a queue, of all nodes."""
        return sum(row[word] for row in self.queue_rows(cluster, receiver))

    def gaps(self, cluster: str, receiver: str) -> list[dict[str, Any]]:
        """Gaps that are not closed."""
        gaps = []
        for queue in self.queues_to(receiver):
            found = self.see(cluster, f"/admin/gaps?queue={queue}")
            assert not found["unknown"]
            gaps += list(found["gaps"])
        return gaps

    def ledgers(self, cluster: str, receiver: str) -> list[dict[str, Any]]:
        """The ledger of each node."""
        return [
            row["ledger"]
            for queue in self.queues_to(receiver)
            for row in self.see(cluster, f"/admin/queues/{queue}/ledger")["nodes"]
        ]

    def drained(self, cluster: str, receiver: str) -> bool:
        """Whether nothing of any priority waits or is under way; False, too, while that is unknown."""
        try:
            rows = self.queue_rows(cluster, receiver)
        except (NotSent, Broken):
            return False
        each = [one for row in rows for one in row["priorities"].values()]
        # While a leadership moves, no node counts the backlog of that partition.
        partitions = self.by_name[cluster].partition_count * len(self.queues_to(receiver))
        counted = sum(row["partitions"] for row in rows) == partitions
        return counted and all(one["waiting"] == 0 and one["in_flight"] == 0 for one in each)

    def contents(
        self, cluster: str, bucket_types: Sequence[str] | None = None
    ) -> dict[str, tuple[int, str | None, list[str]]]:
        """key -> (status, clock, values) of each key that the cluster lists, of these bucket types (None: of all that
        go both ways). Raises AssertionError where a key is in a bucket type that no load put it into."""
        connection = Connection(self.node(cluster).place, 20.0)
        found: dict[str, tuple[int, str | None, list[str]]] = {}
        try:
            for kind in self.bucket_types if bucket_types is None else bucket_types:
                listed = connection.request("GET", f"/types/{kind}/buckets/{BUCKET}/keys?keys=true", {})
                assert listed.status == 200, listed.reason
                for key in json.loads(listed.body)["keys"]:
                    assert key not in found, f"{key} is in two bucket types of {cluster}"
                    reply = connection.request("GET", key_path(key, BUCKET, kind), {"Accept": "multipart/mixed"})
                    found[key] = reply.status, reply.headers.get("X-Riak-Vclock"), sorted(values_of(reply))
            return found
        finally:
            connection.close()

    def full_sync(self, cluster: str, receiver: str) -> dict[str, Any]:
        """A check of everything, once trees are there to be compared; the result of the bucket type that is worst."""
        deadline = time.monotonic() + CHECK_TIMEOUT_S
        while True:
            at_ms = eventually("no other check runs", lambda: self._begin_check(cluster, receiver), CHECK_TIMEOUT_S)

            def ended(since_ms: int = at_ms) -> list[dict[str, Any]]:
                fresh = [one for one in self._results(cluster, receiver) if one["began_ms"] >= since_ms]
                return fresh if {one["bucket_type"] for one in fresh} >= set(self.bucket_types) else []

            results = eventually("full-sync ends", ended, CHECK_TIMEOUT_S)
            worst: dict[str, Any] = next((one for one in results if not self.is_proven(one)), results[-1])
            if worst["verdict"] not in ("incomplete", "error") or time.monotonic() > deadline:
                return worst
            time.sleep(1.0)

    def _begin_check(self, cluster: str, receiver: str) -> int | None:
        """When a check of everything was begun; None while one that the schedule began runs."""
        try:
            began_ms: int = self.act(cluster, "/admin/fullsync/run", {"peer": receiver, "kind": "all"})["at_ms"]
        except AssertionError as refusal:
            if '"reason": "busy"' not in str(refusal):
                raise
            return None
        return began_ms

    def is_proven(self, result: dict[str, Any]) -> bool:
        """Whether a result is what is wanted: equality, or in the one-way bucket type that the receiver has all."""
        wanted = ("in-sync", "up-to-date") if result["bucket_type"] == ONE_WAY_TYPE else ("in-sync",)
        return result["verdict"] in wanted

    def _results(self, cluster: str, receiver: str) -> list[dict[str, Any]]:
        peers = self.see(cluster, "/admin/fullsync?results=100")["peers"]
        return list(next(peer for peer in peers if peer["name"] == receiver)["results"])

    # -- invariants ---------------------------------------------------------------------------------------

    def check(self, writers: Sequence[Writers] = (), gaps: bool = False) -> None:
        """See the top of the file. `gaps`: there may be some."""
        for fault_cluster in self.by_name.values():
            fault_cluster.wait_until_healthy(CALM_TIMEOUT_S)
        for source, receiver in self.arrows * 2:
            # Twice: changes from the second queue may have entered the first again.
            eventually(f"the queue of {source} to {receiver} is empty", lambda s=source, r=receiver: self.drained(s, r))
        for source, receiver in self.arrows:
            self.check_ledger(source, receiver)
            if not gaps:
                assert not self.gaps(source, receiver)
            result = self.full_sync(source, receiver)
            assert result["verdict"] == "in-sync", f"{source} to {receiver}: {result}"
        first, *others = self.by_name
        for other in others:
            wrong = self._differing(first, other)
            if wrong:
                kept = self._keep_evidence(list(wrong)[:KEYS_EXPLAINED])
                time.sleep(LOOK_AGAIN_S)
                left = self._differing(first, other)
                raise AssertionError(
                    f"{first} and {other} differ: {list(wrong.items())[:5]}; {LOOK_AGAIN_S:.0f} s later "
                    f"{f'still in {list(left.items())[:5]}' if left else 'no more'}; explained, with logs, in {kept}"
                )
        expected = self.contents(first)
        for writer in writers:
            writer.check(expected)
        ended = [one for fault_cluster in self.by_name.values() for one in fault_cluster.ended]
        assert not ended, f"ended by themselves: {ended}"

    def check_ledger(self, source: str, receiver: str) -> None:
        """Wait until each node's ledger is known and nothing waits: a change that another cluster sent on, or a
        tombstone that a reaper wrote again, may enter a queue that was empty a moment ago."""
        deadline = time.monotonic() + CALM_TIMEOUT_S
        while unsettled := self._unsettled_ledgers(source, receiver):
            told = f"the ledger of {source} to {receiver} is not settled after {CALM_TIMEOUT_S:.0f} s: {unsettled}"
            assert time.monotonic() < deadline, told
            time.sleep(0.1)

    def _differing(self, first: str, other: str) -> dict[str, tuple[object, object]]:
        """Key -> its object at each of two clusters, where these differ."""
        ours, theirs = self.contents(first), self.contents(other)
        return {
            key: (ours.get(key), theirs.get(key))
            for key in ours.keys() | theirs.keys()
            if ours.get(key) != theirs.get(key)
        }

    def _keep_evidence(self, keys: Sequence[str]) -> Path:
        """Save every cluster's explanation of these keys now, and the logs of its nodes; returns the directory, which
        outlives that of the test."""
        kept = Path(tempfile.mkdtemp(prefix="isthmus-differs-"))
        for name, fault_cluster in self.by_name.items():
            for number, node in enumerate(fault_cluster.nodes.values()):
                if node.log.exists():
                    shutil.copy(node.log, kept / f"{name}-{number}.log")
            said: dict[str, Any] = {}
            for kind, key in ((kind, key) for kind in self.bucket_types for key in keys):
                asked = urlencode({"type": kind, "bucket": BUCKET, "key": key})
                try:
                    said[f"{kind}/{key}"] = self.see(name, f"/admin/explain?{asked}")
                except (AssertionError, OSError, ValueError) as error:  # of one cluster: the others still answer
                    said[f"{kind}/{key}"] = repr(error)
            (kept / f"{name}-explain.json").write_text(json.dumps(said, indent=1))
        return kept

    def _unsettled_ledgers(self, source: str, receiver: str) -> list[dict[str, Any] | None]:
        """Rows of the ledger that are not known, or in which something waits. Raises AssertionError where a change is
        counted wrongly or lost, which no time mends."""
        rows: list[dict[str, Any] | None] = [*self.ledgers(source, receiver)]
        for row in rows:
            sound = row is None or (row["closes"] is not False and not any(row["lost"].values()))
            assert sound, f"the ledger of {source} to {receiver}: {row}"
        return [row for row in rows if row is None or row["closes"] is None or row["waiting"] or row["in_flight"]]


def url(place: NodeAddress) -> str:
    """The base URL of a listener."""
    return f"http://{place.host}:{place.port}"


class Writers:
    """A client at each of these places, from `start` to `stop`: fresh keys, deletes of some, and shared keys that are
    read and written over. Every write is tried until it is acknowledged."""

    def __init__(
        self,
        name: str,
        places: Sequence[NodeAddress],
        *,
        pause_s: float = 0.005,
        seed: int = 1,
        shared: bool = True,
        bucket_types: Sequence[str] = DEFAULT_TYPE,
    ) -> None:
        """`shared`: shared keys are written, too. `bucket_types`: keys are spread over these."""
        self._bucket_types = bucket_types
        self._stopping = threading.Event()
        self._pause_s = pause_s
        self._shared = shared
        self._places = list(places)
        self.present: dict[str, str] = {}
        """New keys whose last acknowledged state is this value."""
        self.deleted: set[str] = set()
        self.unknown: set[str] = set()
        """Keys whose last operation was not answered."""
        self.counts: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._run, args=(f"{name}{number}", number, random.Random(seed + number)))
            for number in range(len(self._places))
        ]

    def start(self) -> Self:
        """Begin."""
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Stop after the current operation."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(PATIENCE_S + 10)

    def check(self, contents: Mapping[str, tuple[int, str | None, list[str]]]) -> None:
        """Compare the clusters' contents with the acknowledged writes."""
        assert self.present, f"nothing was written: {self.counts}"
        missing = {
            key for key, value in self.present.items() if key not in self.unknown and _values(contents, key) != [value]
        }
        assert not missing, (
            f"{len(missing)} of {len(self.present)} acknowledged writes are not there: {list(missing)[:5]}"
        )
        back = {key for key in self.deleted - self.unknown if _values(contents, key)}
        assert not back, f"deleted, and there again: {list(back)[:5]}"

    def _run(self, name: str, at: int, chance: random.Random) -> None:
        # A client keeps to its own place first, so that load comes from all sides.
        places = [Connection(place) for place in self._places[at:] + self._places[:at]]
        count = 0
        try:
            while not self._stopping.wait(self._pause_s):
                count += 1
                if self._shared and count % 5 == 0:
                    self._write(places, chance.choice(SHARED), f"{name}-{count}", True)
                    continue
                key = f"{name}-{count}"
                if self._write(places, key, key, False):
                    self.present[key] = key
                    if count % 7 == 0 and self._delete(places, key):
                        del self.present[key]
                        self.deleted.add(key)
                else:
                    self.unknown.add(key)
        finally:
            for place in places:
                place.close()

    def _write(self, places: list[Connection], key: str, value: str, after_read: bool) -> bool:
        headers = {"Content-Type": "text/plain", "X-Isthmus-Request-Id": uuid.uuid4().hex}
        if after_read:
            read = self._tried(places, "GET", key, {}, None, (200, 300, 404))
            if read is None:
                return False
            clock = read.headers.get("X-Riak-Vclock")
            headers |= {} if clock is None else {"X-Riak-Vclock": clock}
        return self._tried(places, "PUT", key, headers, value.encode(), (204,)) is not None

    def _delete(self, places: list[Connection], key: str) -> bool:
        read = self._tried(places, "GET", key, {}, None, (200, 300, 404))
        clock = None if read is None else read.headers.get("X-Riak-Vclock")
        headers = {"X-Riak-Vclock": clock or "", "X-Isthmus-Request-Id": uuid.uuid4().hex}
        done = clock is not None and self._tried(places, "DELETE", key, headers, None, (204, 404)) is not None
        if not done:
            self.unknown.add(key)
        return done

    def _tried(
        self, places: list[Connection], method: str, key: str, headers: dict[str, str], body: bytes | None,
        right: tuple[int, ...],
    ) -> Any:  # fmt: skip
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                path = key_path(key, BUCKET, bucket_type_of(key, self._bucket_types))
                reply = places[0].request(method, path, headers, body)
                self.counts[f"{method} {reply.reason}"] += 1
                if reply.status in right:
                    return reply
            except (NotSent, Broken) as error:
                self.counts[f"{method} {type(error).__name__}"] += 1
            places.append(places.pop(0))
            time.sleep(0.05)
        return None


def _values(contents: Mapping[str, tuple[int, str | None, list[str]]], key: str) -> list[str]:
    found = contents.get(key)
    return [] if found is None else found[2]
