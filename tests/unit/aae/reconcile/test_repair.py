"""Plans of repairs and their runs: which keys are sent, and that none is skipped."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isthmus.aae.reconcile import job
from isthmus.aae.reconcile.repair import LEFT_TO_RIGHT, RIGHT_TO_LEFT, apply, plan
from isthmus.aae.reconcile.segment_plan import SegmentPlan
from isthmus.aae.run_directory import RunDirectory
from isthmus.repl.model.errors import BadInput, PeerFault

LEFT, RIGHT = "aa" * 16, "bb" * 16


class FakeQueue:
    """A queue of LEFT for RIGHT that accepts a number of references and then fails. `gone`: the times at which it lost
    references."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.keys: list[bytes] = []
        self.gone: list[int] = []
        self.now_ms = 1_000

    def check(self, sender: str, receiver: str) -> int:
        """See Queue."""
        if (sender, receiver) != (LEFT, RIGHT):
            raise BadInput("of another cluster")
        return self.now_ms

    def lost(self, since_ms: int) -> list[str]:
        """See Queue."""
        return [f"crashed at {at_ms}" for at_ms in self.gone if at_ms >= since_ms]

    def push(self, _bucket_type: bytes, names: list[tuple[bytes, bytes]]) -> int:
        """See Queue."""
        if len(self.keys) + len(names) > self.count:
            raise PeerFault("the queue is gone")
        self.keys += [key for _, key in names]
        return len(names)


def write_findings(directory: RunDirectory, keys: list[bytes], side: str = "sink") -> None:
    """The findings are these, missing on the right, or on another side."""
    path = directory.path / "findings"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    rows = [
        {
            "bucket_type": "default", "bucket": b"b", "key": key, "difference": "missing", "side": side,
            "left_size": 5, "right_size": 0, "left_siblings": 1, "right_siblings": 0, "verdict": "diverged",
        }
        for key in keys
    ]  # fmt: skip
    if rows:
        pq.write_to_dataset(pa.Table.from_pylist(rows), path, partition_cols=["verdict"])


def finish_run(directory: RunDirectory, keys: list[bytes], seconds: float, side: str = "sink") -> None:
    """The run has ended and found these."""
    write_findings(directory, keys, side)
    counts = {"diverged": len(keys)}
    summary = {"verdicts": counts, "seconds": seconds, "findings_cut": False, "clusters": [LEFT, RIGHT]}
    directory.write("summary.json", summary)


def test_a_plan_of_findings_that_are_others_now_passes_over_no_key(tmp_path: Path) -> None:
    """A run without access was planned, and the plan applied in part; the run continued, and its new findings have
    other keys first. Continuing by position would skip those keys and call the plan done, so it is refused; a new plan
    has them all."""
    directory = RunDirectory(str(tmp_path), "r")
    later = [b"late-%04d" % number for number in range(600)]
    early = [b"early-%04d" % number for number in range(600)]
    finish_run(directory, later, 1.0)
    first = plan(directory, "q", LEFT_TO_RIGHT, 1_000_000)["plan"]
    with pytest.raises(PeerFault):
        apply(directory, first, FakeQueue(500))

    finish_run(directory, early + later, 1.5)
    with pytest.raises(BadInput, match="make a new plan"):
        apply(directory, first, FakeQueue(9_999))
    queue = FakeQueue(9_999)
    second = plan(directory, "q", LEFT_TO_RIGHT, 1_000_000)["plan"]
    assert apply(directory, second, queue)["queued"] == 1_200
    assert queue.keys == early + later


def test_a_run_that_is_killed_between_its_findings_and_its_summary_leaves_no_plan_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan made from earlier findings does not continue with the current ones, and a new plan waits for the run's
    end; a plan that is being applied at that moment stops."""

    class Killed(BaseException):
        pass

    def die(*_args: object) -> None:
        raise Killed

    directory = RunDirectory(str(tmp_path), "r")
    keys = [b"later-%04d" % number for number in range(1_200)]
    finish_run(directory, keys, 1.0)
    made = plan(directory, "q", LEFT_TO_RIGHT, 1_000_000)["plan"]
    spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    options = job.ReconcileOptions(str(tmp_path), "r")
    go = job._Run(spark, directory, options, (("http://a",), ("http://b",)), lambda _line: None)  # type: ignore[arg-type]
    monkeypatch.setattr(go, "_write_findings", lambda _now: write_findings(directory, [b"early", *keys]))
    monkeypatch.setattr(job, "write_segments", die)

    class RacingQueue(FakeQueue):
        def push(self, bucket_type: bytes, names: list[tuple[bytes, bytes]]) -> int:
            taken = super().push(bucket_type, names)
            if len(self.keys) == 500:
                with pytest.raises(Killed):
                    go._report(SegmentPlan("full", "", 1, 1, ("aa", "bb"), (), []))
            return taken

    queue = RacingQueue(9_999)
    for _ in range(2):
        with pytest.raises(BadInput, match="make a new plan"):
            apply(directory, made, queue)
        assert queue.keys == keys[:500]
    with pytest.raises(BadInput, match="has not ended"):
        plan(directory, "q", LEFT_TO_RIGHT, 1_000_000)


def test_a_plan_that_was_cut_off_goes_on_behind_what_the_queue_has_taken(tmp_path: Path) -> None:
    """As long as the run is the same, every key is sent once."""
    directory = RunDirectory(str(tmp_path), "r")
    keys = [b"k-%04d" % number for number in range(1_200)]
    finish_run(directory, keys, 1.0)
    made = plan(directory, "q", LEFT_TO_RIGHT, 1_000_000)["plan"]
    queue = FakeQueue(1_000)
    with pytest.raises(PeerFault):
        apply(directory, made, queue)
    queue.count = 9_999
    assert plan(directory, "q", LEFT_TO_RIGHT, 1_000_000)["plan"] == made
    assert apply(directory, made, queue)["state"] == "done"
    assert queue.keys == keys


def test_a_plan_goes_into_no_queue_of_another_cluster(tmp_path: Path) -> None:
    """The plan has both uuids; a queue of the other cluster gets no reference, and the plan is unchanged."""
    directory = RunDirectory(str(tmp_path), "r")
    finish_run(directory, [b"k"], 1.0, "both")
    back = plan(directory, "q", RIGHT_TO_LEFT)
    assert (back["sending_cluster"], back["receiving_cluster"]) == (RIGHT, LEFT)
    queue = FakeQueue(9)
    with pytest.raises(BadInput, match="of another cluster"):
        apply(directory, back["plan"], queue)
    there = plan(directory, "q", LEFT_TO_RIGHT)
    assert (there["sending_cluster"], there["receiving_cluster"]) == (LEFT, RIGHT)
    assert queue.keys == []
    assert apply(directory, there["plan"], queue)["queued_now"] == 1


def test_an_apply_that_queues_nothing_is_not_done(tmp_path: Path) -> None:
    """The state distinguishes a plan that was queued before and one without objects; `again` queues all."""
    directory = RunDirectory(str(tmp_path), "r")
    finish_run(directory, [b"k-%d" % number for number in range(3)], 1.0)
    made = plan(directory, "q", LEFT_TO_RIGHT)["plan"]
    queue = FakeQueue(99)
    first, second = apply(directory, made, queue), apply(directory, made, queue)
    assert [(one["state"], one["queued"], one["queued_now"]) for one in (first, second)] == [
        ("done", 3, 3), ("already-done", 3, 0)
    ]  # fmt: skip
    third = apply(directory, made, queue, again=True)
    assert (third["state"], third["queued_now"], len(queue.keys)) == ("done", 3, 6)
    empty = RunDirectory(str(tmp_path), "empty")
    finish_run(empty, [], 1.0)
    none = plan(empty, "q", LEFT_TO_RIGHT)
    assert apply(empty, none["plan"], queue)["state"] == "nothing-to-queue"
    assert len(queue.keys) == 6


def test_references_that_were_lost_with_a_node_are_queued_again(tmp_path: Path) -> None:
    """If references may have been lost with a node since the plan began, it starts from the beginning again, whether it
    was done or interrupted; losses before it began do not count. A plan whose references are lost while it is applied
    is not done."""
    directory = RunDirectory(str(tmp_path), "r")
    keys = [b"k-%04d" % number for number in range(700)]
    finish_run(directory, keys, 1.0)
    made = plan(directory, "q", LEFT_TO_RIGHT, 1_000_000)["plan"]
    queue = FakeQueue(600)
    queue.gone = [999]
    with pytest.raises(PeerFault):
        apply(directory, made, queue)
    assert queue.keys == keys[:500]
    queue.count, queue.gone, queue.now_ms, queue.keys = 9_999, [999, 2_000], 3_000, []
    whole = apply(directory, made, queue)
    assert (whole["state"], whole["queued_now"], whole["lost"]) == ("done", 700, ["crashed at 2000"])
    assert queue.keys == keys
    assert apply(directory, made, queue)["state"] == "already-done"
    queue.gone.append(4_000)
    queue.now_ms = 5_000
    assert apply(directory, made, queue)["queued_now"] == 700

    class CrashingQueue(FakeQueue):
        def push(self, bucket_type: bytes, names: list[tuple[bytes, bytes]]) -> int:
            self.gone = [self.now_ms + 1]
            return super().push(bucket_type, names)

    lossy = CrashingQueue(9_999)
    lossy.now_ms = 6_000
    assert apply(directory, made, lossy, again=True)["state"] == "references-lost"
    queue.gone, queue.now_ms = lossy.gone, 7_000
    assert apply(directory, made, queue)["state"] == "done"
