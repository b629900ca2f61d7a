"""A run's directory, totals and repairs, without Spark: finished work is not repeated, and unread keys never count as
equal."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isthmus.aae.exchange.compare import BehindSide, DifferenceKind, VerdictKind
from isthmus.aae.reconcile.findings import decode_candidates, encode_candidates, finding
from isthmus.aae.reconcile.repair import LEFT_TO_RIGHT, RIGHT_TO_LEFT, apply, plan, repairs_of
from isthmus.aae.reconcile.report import summarize
from isthmus.aae.reconcile.segment_plan import SegmentPlan
from isthmus.aae.reconcile.verdicts import CandidateKey, KeyVerdict, ObservedKey
from isthmus.aae.run_directory import (
    FIRST,
    SECOND,
    ChunkResult,
    RunDirectory,
    SegmentChunk,
    Wave,
    runs_of,
    standing,
)
from isthmus.repl.model.errors import BadInput, Corruption, PeerFault

FACTS = {"max_differences": 0}
CHUNKS = (SegmentChunk(0, ((0, 1 << 19),)), SegmentChunk(1, ((1 << 19, 1 << 20),)))
PLAN = SegmentPlan("full", "a full comparison was requested", 1 << 20, 1 << 20, ("aa", "bb"), CHUNKS, [])


def chunk_result(chunk: int, error: str = "", **counts: int) -> ChunkResult:
    """The counts of a look."""
    zero = dict.fromkeys(ChunkResult._fields[2:], 0)
    return ChunkResult(chunk, error, **{**zero, **counts})  # type: ignore[arg-type]


def outcome(directory: RunDirectory, *waves: Wave) -> tuple[str, int, list[list[int]]]:
    """The outcome of a run with these waves."""
    told = summarize(directory, PLAN, standing(waves), "", 1.0, FACTS)
    assert told["keys"] == sum(told["verdicts"].values())
    return told["outcome"], told["exit_code"], told["segments_open"]


def test_only_a_run_that_read_all_is_equal(tmp_path: Path) -> None:
    """A chunk that could not be read, was not begun, or had no second look makes a run incomplete and is named. A run
    without any readable chunk is an error. After the chunk is read later, the run is equal."""
    run = RunDirectory(str(tmp_path), "r")
    first = Wave(0, FIRST, 5, (chunk_result(0, match=3), chunk_result(1, "peer-fault: no answer")))
    later = Wave(1, FIRST, 6, (chunk_result(1, match=2),))
    assert outcome(run, first) == ("incomplete", 3, [[1 << 19, 1 << 20]])
    assert outcome(run, Wave(0, FIRST, 5, (chunk_result(0, match=3),))) == ("incomplete", 3, [[1 << 19, 1 << 20]])
    assert outcome(run, first, later) == ("equal", 0, [])
    assert outcome(run)[:2] == ("error", 2)
    assert outcome(run, Wave(0, FIRST, 5, (chunk_result(0, "x"), chunk_result(1, "x"))))[:2] == ("error", 2)
    differs = Wave(0, FIRST, 5, (chunk_result(0, match=3, candidates=2), chunk_result(1)))
    assert outcome(run, differs) == ("incomplete", 3, [[0, 1 << 19]])
    lost = Wave(1, SECOND, 9, (chunk_result(0, candidates=2, diverged=1, transient=1),))
    assert outcome(run, differs, lost) == ("differ", 1, [])
    unseen = Wave(1, SECOND, 9, (chunk_result(0, "no answer", candidates=2, unreachable=2),))
    assert outcome(run, differs, unseen) == ("incomplete", 3, [[0, 1 << 19]])
    assert outcome(run, differs, unseen, lost._replace(number=2)) == ("differ", 1, [])


@pytest.mark.parametrize(
    ("counts", "cut"),
    [
        ({"candidates": 3, "diverged": 3}, False),
        ({"candidates": 4, "diverged": 4}, True),
        ({"candidates": 5, "diverged": 3, "transient": 2, "filtered": 1}, False),
        ({"candidates": 2, "transient": 2, "filtered": 2}, True),
        ({"candidates": 4, "transient": 2, "unreachable": 2}, True),
        ({"candidates": 4, "unreachable": 4}, True),
    ],
)
def test_omitted_findings_are_reported(tmp_path: Path, counts: dict[str, int], cut: bool) -> None:
    """The same number is kept of findings that claim a loss and of all others together; if there were more, the summary
    says that some are missing."""
    run = RunDirectory(str(tmp_path), "r")
    first = chunk_result(0, candidates=counts["candidates"], filtered=counts.get("filtered", 0))
    waves = [Wave(0, FIRST, 5, (first, chunk_result(1))), Wave(1, SECOND, 9, (chunk_result(0, **counts),))]
    assert summarize(run, PLAN, standing(waves), "", 1.0, {"max_differences": 3})["findings_cut"] is cut
    assert summarize(run, PLAN, standing(waves), "", 1.0, FACTS)["findings_cut"] is False


def test_a_second_look_that_never_came_to_be_counts_nothing(tmp_path: Path) -> None:
    """A wave that Spark lost has no rows, so its keys stay unreachable and the counts add up."""
    run = RunDirectory(str(tmp_path), "r")
    differs = Wave(0, FIRST, 5, (chunk_result(0, match=3, candidates=2), chunk_result(1)))
    assert outcome(run, differs, Wave(1, SECOND, 6, (chunk_result(0, "spark: lost"),))) == (
        "incomplete",
        3,
        [[0, 1 << 19]],
    )


def test_verdicts_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    """Work files that were changed by hand make an error, not a result."""
    wrong = (
        Wave(0, FIRST, 5, (chunk_result(0, candidates=2), chunk_result(1))),
        Wave(1, SECOND, 6, (chunk_result(0, candidates=2, diverged=1),)),
    )
    with pytest.raises(Corruption, match="add up"):
        outcome(RunDirectory(str(tmp_path), "r"), *wrong)


def test_a_run_id_belongs_to_one_comparison(tmp_path: Path) -> None:
    """A run with the same question continues, and another one is refused with the differing option; waves are read back
    as they were written. The summary has the code's version and a hash that runs of the same question share."""
    run = RunDirectory(str(tmp_path), "r")
    assert not run.open({"left": "a", "full": True})
    assert run.open({"left": "a", "full": True})
    with pytest.raises(BadInput, match="different full"):
        run.open({"left": "a", "full": False})
    with pytest.raises(BadInput, match="run id"):
        RunDirectory(str(tmp_path), "../r")
    other = RunDirectory(str(tmp_path), "s")
    assert other.options_hash() == ""
    other.open({"full": True, "left": "a"})
    assert other.options_hash() == run.options_hash() != ""
    told = summarize(run, None, standing(()), "x", 1.0, FACTS)
    assert (told["options_hash"], told["version"]) == (run.options_hash(), version("isthmus"))
    wave = Wave(3, FIRST, 5, (chunk_result(0, match=3), chunk_result(1, "x")))
    run.add_wave(wave)
    assert run.waves() == [wave]
    assert standing(run.waves()).number == 4
    assert not list(run.path.rglob(".*"))


def test_plans_and_candidates_travel(tmp_path: Path) -> None:
    """Plans and candidates are read as they were written; segments become ranges."""
    run = RunDirectory(str(tmp_path), "r")
    run.write("plan.json", PLAN.to_json())
    kept = run.read("plan.json")
    assert kept is not None
    assert SegmentPlan.from_json(kept) == PLAN
    found = [CandidateKey(b"b", b"\xff", ObservedKey(b"c", (1 << 64) - 1, 5, False, 3, 1), None)]
    assert decode_candidates(encode_candidates(found, [], 7)) == (7, found, [])
    assert runs_of([1, 2, 3, 9, 11, 12]) == [(1, 4), (9, 10), (11, 13)]


class FakeQueue:
    """Takes a few at a time, and breaks once."""

    def __init__(self, breaks_after: int) -> None:
        self.taken: list[bytes] = []
        self.breaks_after = breaks_after

    def check(self, sender: str, receiver: str) -> int:
        """See Queue."""
        assert (sender, receiver) == ("aa", "bb")
        return 1

    def lost(self, since_ms: int) -> list[str]:
        """See Queue."""
        return []

    def push(self, bucket_type: bytes, names: list[tuple[bytes, bytes]]) -> int:
        """See Queue."""
        assert bucket_type == b"default"
        if len(self.taken) >= self.breaks_after:
            self.breaks_after = 1 << 30
            raise PeerFault("gone")
        self.taken += [key for _, key in names[:300]]
        return min(300, len(names))


def test_a_repair_is_resumed_and_leaves_alone_what_it_must(tmp_path: Path) -> None:
    """A plan counts the keys that one side can send, never corrupt ones or those ahead elsewhere. After an interruption
    it continues after the last recorded batch, and all keys are queued; when done, it queues nothing more."""
    run = RunDirectory(str(tmp_path), "r")
    seen = ObservedKey(b"\x90", 1, 5, False, 10, 1)
    rows = [
        finding("default", CandidateKey(b"b", b"k%05d" % number, seen, None), said, seen, None, 1, 2)
        for number, said in enumerate(
            [KeyVerdict(VerdictKind.DIVERGED, DifferenceKind.MISSING, BehindSide.SINK)] * 1_199
            + [KeyVerdict(VerdictKind.DIVERGED, DifferenceKind.CONCURRENT, BehindSide.BOTH)]
            + [
                KeyVerdict(VerdictKind.DIVERGED, DifferenceKind.CORRUPT, BehindSide.BOTH),
                KeyVerdict(VerdictKind.DIVERGED, DifferenceKind.MISSING, BehindSide.SOURCE),
            ]
        )
    ]
    path = run.path / "findings" / "verdict=diverged"
    path.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows).drop_columns(["verdict"]), path / "part.parquet")
    with pytest.raises(BadInput, match="has not ended"):
        plan(run, "q", LEFT_TO_RIGHT)
    run.write("summary.json", {"verdicts": {}, "seconds": 1, "findings_cut": False, "clusters": ["aa", "bb"]})
    made = plan(run, "q", LEFT_TO_RIGHT, 1_000_000)
    assert (made["objects"], made["bytes"], made["expected_siblings"]) == (1_200, 12_000, 1)
    assert sum(made["left_alone"].values()) == 2
    assert plan(run, "q", RIGHT_TO_LEFT)["objects"] == 2
    queue = FakeQueue(700)
    with pytest.raises(PeerFault):
        apply(run, made["plan"], queue)
    assert {one["plan"]: one["queued"] for one in repairs_of(run)}[made["plan"]] == 500
    assert apply(run, made["plan"], queue)["state"] == "done"
    assert set(queue.taken) == {b"k%05d" % number for number in range(1_200)}
    before = len(queue.taken)
    repeated = apply(run, made["plan"], queue)
    assert (repeated["queued"], repeated["queued_now"], repeated["state"]) == (1_200, 0, "already-done")
    assert len(queue.taken) == before
    with pytest.raises(BadInput, match="no plan"):
        apply(run, "other", queue)
