"""Plans of repairs, and the run that they are of: which keys are sent, and that none is passed over."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aae.reconcile import reconcile
from aae.reconcile.planning import Planned
from aae.reconcile.repair import LEFT_TO_RIGHT, apply, plan
from aae.reconcile.runs import RunDirectory
from repl.model.errors import BadInput, PeerFault


class Taking:
    """A queue that takes the first so many, and is gone then."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.keys: list[bytes] = []

    def push(self, _bucket_type: bytes, names: list[tuple[bytes, bytes]]) -> int:
        """See Queue."""
        if len(self.keys) + len(names) > self.count:
            raise PeerFault("the queue is gone")
        self.keys += [key for _, key in names]
        return len(names)


def found(directory: RunDirectory, keys: list[bytes]) -> None:
    """The findings are these, missing on the right."""
    path = directory.path / "findings"
    shutil.rmtree(path, ignore_errors=True)
    rows = [
        {
            "bucket_type": "default", "bucket": b"b", "key": key, "difference": "missing", "side": "sink",
            "left_size": 5, "right_size": 0, "left_siblings": 1, "right_siblings": 0, "verdict": "diverged",
        }
        for key in keys
    ]  # fmt: skip
    pq.write_to_dataset(pa.Table.from_pylist(rows), path, partition_cols=["verdict"])


def ended(directory: RunDirectory, keys: list[bytes], seconds: float) -> None:
    """The run has ended and found these."""
    found(directory, keys)
    summary = {"verdicts": {"diverged": len(keys)}, "seconds": seconds, "findings_cut": False}
    directory.write("summary.json", summary)


def test_a_plan_of_findings_that_are_others_now_passes_over_no_key(tmp_path: Path) -> None:
    """A run that could not look at all was planned, and the plan done in part; the run went on, and its findings have
    other keys in front. To go on behind the first so many would leave those out, and call the plan done: it is refused,
    and a new one has them all."""
    directory = RunDirectory(str(tmp_path), "r")
    later = [b"late-%04d" % number for number in range(600)]
    early = [b"early-%04d" % number for number in range(600)]
    ended(directory, later, 1.0)
    first = plan(directory, "q", LEFT_TO_RIGHT, 1_000_000)["plan"]
    with pytest.raises(PeerFault):
        apply(directory, first, Taking(500))

    ended(directory, early + later, 1.5)
    with pytest.raises(BadInput, match="plan anew"):
        apply(directory, first, Taking(9_999))
    queue = Taking(9_999)
    second = plan(directory, "q", LEFT_TO_RIGHT, 1_000_000)["plan"]
    assert apply(directory, second, queue)["queued"] == 1_200
    assert queue.keys == early + later


def test_a_run_that_is_killed_between_its_findings_and_its_summary_leaves_no_plan_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was planned of the findings before is not gone on with in those that are there now, and a new plan waits for
    the run's end; a plan that is being applied at that moment stops."""

    class Killed(BaseException):
        pass

    def die(*_args: object) -> None:
        raise Killed

    directory = RunDirectory(str(tmp_path), "r")
    keys = [b"later-%04d" % number for number in range(1_200)]
    ended(directory, keys, 1.0)
    made = plan(directory, "q", LEFT_TO_RIGHT, 1_000_000)["plan"]
    spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    options = reconcile.ReconcileOptions(str(tmp_path), "r")
    go = reconcile._Run(spark, directory, options, (("http://a",), ("http://b",)), lambda _line: None)  # type: ignore[arg-type]
    monkeypatch.setattr(go, "_write_findings", lambda _now: found(directory, [b"early", *keys]))
    monkeypatch.setattr(reconcile, "write_segments", die)

    class Meanwhile(Taking):
        def push(self, bucket_type: bytes, names: list[tuple[bytes, bytes]]) -> int:
            taken = super().push(bucket_type, names)
            if len(self.keys) == 500:
                with pytest.raises(Killed):
                    go._report(Planned("full", "", 1, 1, ("aa", "bb"), (), []))
            return taken

    queue = Meanwhile(9_999)
    for _ in range(2):
        with pytest.raises(BadInput, match="plan anew"):
            apply(directory, made, queue)
        assert queue.keys == keys[:500]
    with pytest.raises(BadInput, match="has not ended"):
        plan(directory, "q", LEFT_TO_RIGHT, 1_000_000)


def test_a_plan_that_was_cut_off_goes_on_behind_what_the_queue_has_taken(tmp_path: Path) -> None:
    """As long as the run is the same, every key goes once."""
    directory = RunDirectory(str(tmp_path), "r")
    keys = [b"k-%04d" % number for number in range(1_200)]
    ended(directory, keys, 1.0)
    made = plan(directory, "q", LEFT_TO_RIGHT, 1_000_000)["plan"]
    queue = Taking(1_000)
    with pytest.raises(PeerFault):
        apply(directory, made, queue)
    queue.count = 9_999
    assert plan(directory, "q", LEFT_TO_RIGHT, 1_000_000)["plan"] == made
    assert apply(directory, made, queue)["state"] == "done"
    assert queue.keys == keys
