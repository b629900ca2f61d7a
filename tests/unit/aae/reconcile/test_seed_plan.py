"""A seed's decisions, without Spark: its requests to the queue and their order, the ranges that tasks copy, and the new
cursors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from isthmus.aae.reconcile import seed, seed_plan, seed_tasks
from isthmus.aae.reconcile.client import PartitionPlan, ReplicaDirectory, ReplicaEndpoint
from isthmus.aae.reconcile.compare_range import SideSpec
from isthmus.aae.reconcile.row_reader import ReadRange
from isthmus.aae.reconcile.seed_plan import CHUNK_ROWS, QueueHandOver, QueueStatus, SeedOptions
from isthmus.aae.reconcile.seed_tasks import SeedChunk, SeedJob, copied
from isthmus.aae.row_stream.wire import Head, Rows
from isthmus.repl.model.entry import encode_key_row
from isthmus.repl.model.errors import BadInput, PeerFault
from isthmus.repl.model.keys import SEGMENT_COUNT
from isthmus.repl.model.objects import encode_with_summary
from isthmus.repl.store.rows import bucket_head
from tests.support.reconcile_pairs import made

EAST, WEST, NORTH = b"E" * 16, b"W" * 16, b"N" * 16


class FakeAdmin:
    """An admin listener that remembers what was asked of it."""

    def __init__(self, queues: list[dict[str, Any]], cluster: bytes = EAST) -> None:
        self.queues = queues
        self.cluster = cluster
        self.acts: list[tuple[str, dict[str, Any]]] = []
        self.unknown: list[int] = []
        self.more = self.gone = False

    def get(self, path: str) -> dict[str, Any]:
        """Answers of the admin listener."""
        if path == "/admin/cluster":
            return {"cluster": "east", "cluster_uuid": self.cluster.hex()}
        if path == "/admin/queues/nodes":
            silent = {"node": "n2", "queues": None, "gone": self.gone}
            return {"nodes": [{"node": "n1", "queues": self.queues}, *([silent] if self.more else [])]}
        if path == "/admin/lag":
            rows = [("q", "default", self.unknown), ("q", "notes", []), ("other", "default", [7])]
            return {"lag": [{"queue": q, "bucket_type": t, "unknown_partitions": parts} for q, t, parts in rows]}
        return {"queues": self.queues}

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """An act."""
        self.acts.append((path.rpartition("/")[2], body))
        return {}


def test_a_new_queue_is_registered_below_the_copy_and_suspended_before_reading() -> None:
    """Registered at the positions, then suspended; at the end placed, then resumed: nothing is given out in between."""
    admin = FakeAdmin([])
    queue = QueueHandOver(admin, "to-west", "ann", "!buckettype:t")
    assert queue.check(EAST, WEST) is None
    assert queue.hold(None, {1: 5, 2: 0}, "seed s") is False
    queue.place({1: 9, 2: 3}, "seed s", resume=True)
    assert [act for act, _ in admin.acts] == ["register", "suspend", "place", "resume"]
    assert admin.acts[0][1]["positions"] == {"1": 5, "2": 0}
    assert admin.acts[0][1]["filter"] == "!buckettype:t"
    assert admin.acts[2][1]["positions"] == {"1": 9, "2": 3}
    assert {body.get("what", "serving") for _, body in admin.acts} == {"serving"}


def test_a_queue_that_an_operator_has_suspended_stays_so() -> None:
    """It is suspended already, and only placed at the end; a queue that is suspended on one node alone is suspended on
    all."""
    whole = {"name": "q", "suspensions": [{"what": "serving", "node": None}]}
    admin = FakeAdmin([whole])
    queue = QueueHandOver(admin, "q", "ann")
    assert queue.hold(queue.check(EAST, WEST), {1: 5}, "seed s") is True
    queue.place({1: 9}, "seed s", resume=False)
    assert [act for act, _ in admin.acts] == ["place"]
    assert queue.hold({"suspensions": [{"what": "serving", "node": "n1"}]}, {1: 5}, "seed s") is False


def test_a_queue_suspended_by_a_killed_seed_is_resumed_at_the_end() -> None:
    """A seed was killed, or got no answer, between the suspension and its record: the next run sees that it suspended
    the queue itself, not an operator, and resumes it. A suspension by another seed stays."""
    mine = {"what": "serving", "node": None, "by": "ann", "at_ms": 5, "reason": "seed s"}
    admin = FakeAdmin([{"name": "q", "suspensions": [mine]}])
    queue = QueueHandOver(admin, "q", "ann")
    found = queue.check(EAST, WEST)
    assert queue.hold(found, {1: 5}, "seed s") is False
    assert admin.acts == [], "it is held as it is"
    assert queue.hold(found, {1: 5}, "seed t") is True


@pytest.mark.parametrize(
    ("admin", "words"),
    [
        (FakeAdmin([], cluster=WEST), "not the source"),
        (FakeAdmin([{"name": "q", "owner": {"cluster": "north", "uuid": NORTH.hex()}}]), "belongs to cluster north"),
    ],
)
def test_a_queue_of_others_is_refused(admin: FakeAdmin, words: str) -> None:
    """This covers an admin listener of another cluster, and a queue that another cluster owns."""
    with pytest.raises(BadInput, match=words):
        QueueHandOver(admin, "q", "ann").check(EAST, WEST)


def test_queue_status_covers_all_nodes_and_is_unknown_when_one_is_silent() -> None:
    """The status has sums, the oldest time, and None where a node does not answer. A gone node is ignored: others lead
    its partitions, or its partitions are reported as unknown."""
    row = {"name": "q", "owner": {"uuid": WEST.hex()}, "waiting": 3, "in_flight": 1, "oldest_age_ms": 70}
    admin = FakeAdmin([row])
    assert QueueHandOver(admin, "q", "ann").status() == QueueStatus(WEST.hex(), 4, 70)
    admin.more = admin.gone = True
    assert QueueHandOver(admin, "q", "ann").status() == QueueStatus(WEST.hex(), 4, 70)
    admin.gone = False
    assert QueueHandOver(admin, "q", "ann").status() == QueueStatus(WEST.hex(), None, None)
    admin.more = False
    admin.unknown = [3]
    assert QueueHandOver(admin, "q", "ann").status() == QueueStatus(WEST.hex(), None, None), (
        "a partition without a leader"
    )
    admin.queues = [{**row, "waiting": None}]
    assert QueueHandOver(admin, "q", "ann").status() == QueueStatus("", None, None)


def test_cursors_go_to_the_lowest_offset_at_which_anything_was_read() -> None:
    """The lowest is taken over all chunks of a partition and all pieces of a chunk, including those of broken
    streams."""
    done = [
        {"pieces": [[1, 1, 90, 5], [1, 2, 80, 5]]},
        {"pieces": [[1, 2, 85, 0]]},
        {"pieces": [[2, 1, 7, 1]]},
    ]
    assert seed.positions_of(done) == {1: 80, 2: 7}


# -------------------------------------------------------------------- planning


def plan_of_type(cluster: bytes, *rows: int | None) -> ReplicaDirectory:
    """Partitions with the given numbers of rows, each with a replica at two nodes, the second of which is behind."""
    count = len(rows)
    cuts = [SEGMENT_COUNT * at // count for at in range(count + 1)]
    parts = tuple(
        PartitionPlan(
            at,
            cuts[at],
            cuts[at + 1],
            number,
            (
                ReplicaEndpoint("n1", "http://n1", True, True, 1, 500),
                ReplicaEndpoint("n2", "http://n2", False, True, 1, 490),
            ),
        )
        for at, number in enumerate(rows)
    )
    return ReplicaDirectory(cluster, cluster[:1].decode(), "default", parts)


def planned_with(monkeypatch: pytest.MonkeyPatch, source: ReplicaDirectory, target: ReplicaDirectory) -> None:
    """Clusters that answer with these plans."""
    plans = {"http://s": source, "http://t": target}
    monkeypatch.setattr(seed_plan, "plan_of", lambda side: plans[side.urls[0]])
    monkeypatch.setattr(seed_plan, "_object_bytes", lambda *_: 100.0)
    monkeypatch.setattr(seed_plan, "_properties", lambda side: {"name": "default", "host": side.urls[0]})


def test_the_plan_covers_every_segment_once_and_begins_below_every_copy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each chunk is of one partition, and together they cover all; the queue begins at the slowest replica's offset."""
    planned_with(monkeypatch, plan_of_type(EAST, 3 * CHUNK_ROWS * 20, 10, None), plan_of_type(WEST, 0))
    options = SeedOptions(str(tmp_path), "s", rows_per_second=1_000)
    plan = seed_plan.planned("http://s", "http://t", options, None)
    chunks = sorted(SeedChunk(*one) for one in plan["chunks"])
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    spans = sorted((chunk.first, chunk.end) for chunk in chunks)
    assert [spans[0][0], *(end for _, end in spans)] == [*(first for first, _ in spans), SEGMENT_COUNT]
    assert len(chunks) > 60
    assert plan["begin"] == {"0": 490, "1": 490, "2": 490}
    assert (plan["objects"], plan["bytes"], plan["target_objects"]) == (None, None, 0)
    assert plan["properties_differing"] == {"host": ["http://s", "http://t"]}


def test_differing_properties_are_reported_before_anything_is_copied() -> None:
    """The warning has names and values of both sides, except the number of replicas; unknown properties are reported,
    too."""
    ours, theirs = {"n_val": 3, "allow_mult": True, "dvv_enabled": True}, {"n_val": 1, "allow_mult": False}
    differing = seed_plan.differing_properties(ours, theirs)
    assert differing == {"allow_mult": [True, False], "dvv_enabled": [True, None]}
    said = seed.properties_warning({"properties_differing": differing})
    assert "allow_mult True at the source, False at the target, dvv_enabled True" in said
    assert seed_plan.differing_properties(ours, None) is None
    assert "not known" in seed.properties_warning({"properties_differing": None})
    assert seed.properties_warning({"properties_differing": {}}) == ""


def test_a_target_with_objects_is_refused_without_the_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A target with objects, or with an unknown number, is refused and nothing is written. Two equal clusters are
    always refused, and a run id belongs to one seed."""
    options = SeedOptions(str(tmp_path), "s")
    for rows in (7, None):
        planned_with(monkeypatch, plan_of_type(EAST, 10), plan_of_type(WEST, rows))
        with pytest.raises(BadInput, match="--into-nonempty"):
            seed.open_seed("http://s", "http://t", options)
    assert not list(tmp_path.iterdir())
    seed.open_seed("http://s", "http://t", options._replace(into_nonempty=True))
    _, again = seed.open_seed("http://s", "http://t", options)
    assert again["objects"] == 10
    with pytest.raises(BadInput, match="different bucket_type"):
        seed.open_seed("http://s", "http://t", options._replace(bucket_type="other"))
    planned_with(monkeypatch, plan_of_type(EAST, 10), plan_of_type(EAST, 0))
    with pytest.raises(BadInput, match="the same cluster"):
        seed.open_seed("http://s", "http://t", options._replace(run_id="twice"))


@pytest.mark.parametrize(
    ("options", "queue", "words"),
    [
        (SeedOptions("d", "s", queue="q"), None, "give both a queue"),
        (SeedOptions("d", "s"), QueueHandOver(FakeAdmin([]), "q", "ann"), "give both a queue"),
        (SeedOptions("d", "s", settle_s=-1), None, "0 or more"),
        (SeedOptions("d", "s", key_file="k"), None, "go together"),
        (SeedOptions("d", "s", filter="bucket:x"), None, "bucket:x"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: SeedOptions, queue: QueueHandOver | None, words: str) -> None:
    """Each error says which value is valid."""
    with pytest.raises(Exception, match=words):
        seed.check(options, queue)


def test_a_seed_goes_on_between_the_clusters_that_it_began_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The progress of a seed refers to its target: a cluster recreated at the same address lacks the copied objects, so
    it is refused. A cluster that does not answer is detected later, by the copying tasks."""
    source, target = plan_of_type(EAST, 10), plan_of_type(WEST, 0)
    planned_with(monkeypatch, source, target)
    options = SeedOptions(str(tmp_path), "s")
    seed.open_seed("http://s", "http://t", options)
    assert seed.open_seed("http://s", "http://t", options)[1]["target"] == "W"
    for plans, words in (
        ((source, plan_of_type(NORTH, 0)), f"target.* was W.*{WEST.hex()}.*is N.*{NORTH.hex()}"),
        ((plan_of_type(NORTH, 0), target), "source.* was E.*is N"),
    ):
        planned_with(monkeypatch, *plans)
        with pytest.raises(BadInput, match=words):
            seed.open_seed("http://s", "http://t", options)

    def silent(_: SideSpec) -> ReplicaDirectory:
        raise PeerFault("connection refused")

    monkeypatch.setattr(seed_plan, "plan_of", silent)
    assert seed.open_seed("http://s", "http://t", options)[1]["target"] == "W"


# -------------------------------------------------------------------- tasks


class FakeStream:
    """A stream of these frames, which breaks at the end if it is to."""

    def __init__(self, frames: Sequence[Rows], broken: bool) -> None:
        self._frames = frames
        self._broken = broken
        self.pieces = [ReadRange(1, 0, 9, "", "n1", 1, 50, 3, not broken)]

    def frames(self) -> Iterator[tuple[Head, Rows]]:
        """All of them."""
        for rows in self._frames:
            yield Head(EAST, "east", "n1", 1, 0, 9, 1, 50), rows
        if self._broken:
            raise PeerFault("cut off")


def a_frame() -> Rows:
    """Two sound objects, one with the bytes of another, a missing one, and one whose key row is invalid."""
    names, key_rows, objects = [], [], []
    for n in range(5):
        data, summary = encode_with_summary(made(f"v{n}"))
        names.append(b"\0\0" + bytes([n]) + bucket_head(b"b\0" if n == 1 else b"b") + b"k%d" % n)
        key_rows.append(b"\xc1" if n == 4 else encode_key_row(summary, n))
        objects.append((data, data, b"other", b"", data)[n])
    return Rows(names, key_rows, objects)


def test_a_task_copies_what_is_sound_and_names_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sound objects are pushed unchanged, with the source as origin; damaged ones are counted, named, and not pushed; a
    broken stream is in the row, with the rows read and their offset."""
    sent: list[list[Any]] = []
    origins: set[bytes] = set()

    def pushed(_: Any, origin: bytes, items: Sequence[list[Any]]) -> list[tuple[str, str]]:
        sent.extend(items)
        origins.add(origin)
        return [("applied", "")] * len(items)

    monkeypatch.setattr(seed_tasks, "pushed", pushed)
    job = SeedJob(SideSpec(("http://s",), "t", cluster=EAST), SideSpec(("http://t",), "t"), 0, 5)
    rows = a_frame()
    for broken in (False, True):
        monkeypatch.setattr(seed_tasks, "_stream", lambda *_, broken=broken: FakeStream([rows], broken))
        sent.clear()
        told = copied(job, SeedChunk(4, 1, 0, 9))
        assert sent == [[b"t", b"b", b"k0", rows.objects[0]], [b"t", b"b\0", b"k1", rows.objects[1]]]
        assert (told["chunk"], told["rows"], told["damaged"], told["outcomes"]) == (4, 5, 3, {"applied": 2})
        assert [words in name for words, name in zip(("k2", "k3", "k4"), told["named"], strict=True)] == [True] * 3
        assert told["pieces"] == [[1, 1, 50, 3]]
        assert bool(told["error"]) == broken
    assert origins == {EAST}
