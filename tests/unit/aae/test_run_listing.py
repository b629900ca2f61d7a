"""The runs of a directory as a node lists them: correct states, bounded reads, and damaged runs that hide no others."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from isthmus.aae import run_listing
from isthmus.aae.run_directory import IMPORT, SEED, ProgressFile, RunDirectory
from isthmus.aae.run_listing import QUIET_MS, RunKind, list_runs, show_run
from isthmus.repl.model.errors import LocalFault

NOW_MS = 1_000_000_000
URLS = {"left": "http://e1:1,http://e2:1", "right": "http://w1:1"}
SUMMARY: dict[str, Any] = {
    "form": 1, "outcome": "differ", "error": "", "seconds": 1.5, "at_ms": NOW_MS - 5, "mode": "trees", "keys": 9,
    "verdicts": {"match": 6, "diverged": 3}, "as_of": {"begin": [{"cluster": "east"}, {"cluster": "west"}], "end": []},
    "segments_open": [[1, 2]], "segments_open_ranges": 7, "reasons": ["a" * 9_000],
    "findings": {"groups": [{"verdict": "diverged", "difference": "missing", "side": "sink", "bucket": "<b>\\xff",
                             "count": 3}], "groups_left": 0, "findings_left": 0},
}  # fmt: skip


def comparison(root: Path, run_id: str = "one", **more: Any) -> RunDirectory:
    """A run that began."""
    run = RunDirectory(str(root), run_id)
    run.write("run.json", {"form": 1, "bucket_type": "default", "bucket": "", "settle_s": 0.5, **more})
    run.write("urls.json", URLS)
    return run


def progress(stage: str, at_ms: int, **more: Any) -> dict[str, Any]:
    """The progress of an attempt."""
    return {"stage": stage, "began_ms": NOW_MS - 9_000, "at_ms": at_ms, "reason": "", **more}


def only(root: Path) -> dict[str, Any]:
    """The one run of a directory."""
    (row,) = list_runs(root, NOW_MS).runs
    return row


def test_the_state_of_a_run_follows_from_its_progress_and_summary(tmp_path: Path) -> None:
    """The states are begun, running, silent for long, interrupted, and ended; and running again after an incomplete
    end."""
    run = comparison(tmp_path)
    assert (only(tmp_path)["state"], only(tmp_path)["counts"]) == ("unknown", None)
    counts = {"match": 4, "waiting": 2}
    run.write("progress.json", progress("first-look", NOW_MS - QUIET_MS, done=3, of=8, left_s=9.5, counts=counts))
    row = only(tmp_path)
    assert (row["state"], row["counts"], row["progress"]["left_s"]) == ("running", counts, 9.5)
    assert (row["progress"]["done"], row["progress"]["of"], row["urls"]) == (3, 8, list(URLS.values()))
    run.write("progress.json", progress("first-look", NOW_MS - QUIET_MS - 1))
    assert (only(tmp_path)["state"], "10 minutes" in only(tmp_path)["reason"]) == ("quiet", True)
    run.write("progress.json", progress("interrupted", NOW_MS) | {"reason": "KeyboardInterrupt: "})
    assert (only(tmp_path)["state"], only(tmp_path)["reason"]) == ("interrupted", "KeyboardInterrupt: ")
    run.write("summary.json", SUMMARY)
    run.write("progress.json", progress("report", NOW_MS - 6))
    row = only(tmp_path)
    assert (row["state"], row["outcome"], row["counts"]) == ("ended", "differ", SUMMARY["verdicts"])
    assert (row["clusters"], row["ended_ms"], row["progress"]) == (["east", "west"], NOW_MS - 5, None)
    run.write("progress.json", progress("plan", NOW_MS))
    assert (only(tmp_path)["state"], only(tmp_path)["outcome"]) == ("running", "differ")
    (run.path / "progress.json").unlink()
    assert only(tmp_path)["state"] == "ended", "of an earlier version"


def test_an_attempt_notes_its_stages_and_how_it_ended(tmp_path: Path) -> None:
    """The listing reads the progress that jobs write; an error's name is the reason, and counts stay."""
    run = comparison(tmp_path)
    file = ProgressFile(run)
    file.clusters = ["east", "west"]

    def read() -> dict[str, Any]:
        found = run.read("progress.json")
        assert found is not None
        row = list_runs(tmp_path, found["at_ms"]).runs[0]
        return {**row, "stage": None if row["progress"] is None else row["progress"]["stage"]}

    def broken() -> None:
        with file.attempt():
            assert read()["stage"] == "begun"
            file.note("copy", 1, 4, 2.04, {"objects": 7})
            assert (read()["state"], read()["stage"], read()["progress"]["left_s"]) == ("running", "copy", 2.0)
            file.note("verify")
            raise ValueError("of Spark")

    with pytest.raises(ValueError, match="of Spark"):
        broken()
    assert (read()["state"], read()["reason"]) == ("interrupted", "ValueError: of Spark")
    assert (read()["counts"], read()["clusters"]) == ({"objects": 7}, ["east", "west"])
    with file.attempt():
        pass
    assert read()["state"] == "ended"


@pytest.mark.parametrize("document", ["run.json", "urls.json", "progress.json", "summary.json"])
@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 60_000, "null", '{"outcome": 7, "stage": 7, "bucket": 7, "left": 7}', "\x00\xff"]
)
def test_a_damaged_document_makes_one_run_unreadable(tmp_path: Path, document: str, text: str) -> None:
    """The listing names the document and the reason, and has the other run; the run's page has what can be read."""
    for name in ("one", "two"):
        run = comparison(tmp_path, name)
        run.write("summary.json", SUMMARY)
        run.write("progress.json", progress("ended", NOW_MS))
    (tmp_path / "run_id=one" / document).write_bytes(text.encode("latin-1"))
    rows = {row["run"]: row for row in list_runs(tmp_path, NOW_MS).runs}
    assert (rows["two"]["state"], rows["one"]["state"]) == ("ended", "unreadable")
    assert rows["one"]["reason"].startswith(f"run_id=one/{document} is damaged")
    shown = show_run(tmp_path, RunKind.COMPARISON, "one", NOW_MS)
    assert shown is not None
    assert rows["one"]["started_ms"] is not None, "by the file system"
    assert [problem.split(" ")[0] for problem in shown["problems"]] == [f"run_id=one/{document}"]
    assert (shown["summary"] is None, shown["commands"]) == (document == "summary.json", [])


def test_large_files_pipes_and_folders_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe without a writer would block for ever; a file over the limit is named with the limit."""
    for name in ("large", "pipe", "folder"):
        comparison(tmp_path, name)
    monkeypatch.setattr(run_listing, "SUMMARY_BYTES", 100)
    (tmp_path / "run_id=large" / "summary.json").write_text(" " * 101)
    os.mkfifo(tmp_path / "run_id=pipe" / "summary.json")
    (tmp_path / "run_id=folder" / "summary.json").mkdir()
    reasons = {row["run"]: row["reason"] for row in list_runs(tmp_path, NOW_MS).runs}
    assert "at most 100 bytes" in reasons["large"]
    assert reasons["pipe"] == "run_id=pipe/summary.json is not a regular file"
    assert "run_id=folder/summary.json" in reasons["folder"]


def test_the_listing_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing has the newest runs, the number of the others, and whether there was more to read; other files and
    bad names are ignored. A missing directory is an error with its name."""
    for number in range(5):
        run = comparison(tmp_path, f"r{number}")
        os.utime(run.path, (number, number))
    (tmp_path / "run_id=..").mkdir()
    (tmp_path / "run_id=file").write_text("")
    (tmp_path / "mail").mkdir()
    monkeypatch.setattr(run_listing, "RUNS_MAX", 3)
    found = list_runs(tmp_path, NOW_MS)
    assert ([row["run"] for row in found.runs], found.left_out, found.cut) == (["r4", "r3", "r2"], 2, False)
    monkeypatch.setattr(run_listing, "ENTRIES_MAX", 4)
    assert list_runs(tmp_path, NOW_MS).cut
    with pytest.raises(LocalFault, match="nowhere cannot be read: No such file"):
        list_runs(tmp_path / "nowhere", NOW_MS)


@pytest.mark.parametrize("run_id", ["../one", "..", "", "a/b", "\x00"])
def test_a_name_is_never_a_path(tmp_path: Path, run_id: str) -> None:
    """For any run id, only a run of the directory is opened."""
    comparison(tmp_path / "inner")
    assert show_run(tmp_path / "inner", RunKind.COMPARISON, run_id, NOW_MS) is None


def test_a_run_is_shown_with_its_findings_repairs_and_commands(tmp_path: Path) -> None:
    """Long lists and texts are cut and counted; words of commands are quoted for a shell; a plan that is done, or has
    nothing, is not offered."""
    root = tmp_path / "the runs"
    run = comparison(
        root, bucket="ff00", filter="any, !bucketname:a b", modified_since_ms=1_500, sample=0.25, full=True
    )
    run.write("summary.json", SUMMARY)
    plan = {"plan": "p1", "queue": "q", "direction": "right-to-left", "objects": 3}
    run.write("repairs/p1.json", plan)
    run.write("repairs/p1.progress.json", {"queued": 1, "state": "running", "at_ms": 4})
    run.write("repairs/p2.json", {**plan, "plan": "p2"})
    run.write("repairs/p2.progress.json", {"queued": 3, "state": "done"})
    run.write("repairs/p3.json", {"plan": 1})
    shown = show_run(root, RunKind.COMPARISON, "one", NOW_MS)
    assert shown is not None
    summary = shown["summary"]
    assert (shown["urls"], shown["options"]["bucket"]) == (list(URLS.values()), "ff00")
    assert summary["findings"]["groups"][0]["bucket"] == "<b>\\xff"
    assert (summary["segments_open_count"], len(summary["reasons"][0])) == (7, run_listing.TEXT_CHARS_MAX)
    assert [(one["plan"], one["queued"], one["state"]) for one in shown["repairs"]] == [
        ("p1", 1, "running"), ("p2", 3, "done"),
    ]  # fmt: skip
    assert ["p3.json" in problem for problem in shown["problems"]] == [True]
    output = f"--dir '{root}'"
    assert [one["command"] for one in shown["commands"]] == [
        f"isthmus reconcile show one {output} --keys 20",
        f"isthmus reconcile repair one plan {output} --queue QUEUE",
        f"isthmus reconcile repair one plan {output} --queue QUEUE --to left",
        f"isthmus reconcile repair one apply {output} --plan p1 --admin URL",
    ]
    run.write("summary.json", {**SUMMARY, "outcome": "incomplete", "verdicts": {}})
    again = show_run(root, RunKind.COMPARISON, "one", NOW_MS)
    assert again is not None
    assert again["commands"][1]["command"] == (
        f"isthmus reconcile run --left {URLS['left']} --right {URLS['right']} --bucket 0xff00 "
        "--modified-since 1970-01-01T00:00:01.500Z --filter 'any, !bucketname:a b' --settle 500ms --full --sample 0.25 "
        f"{output} --run-id one"
    )
    run.write("progress.json", progress("first-look", NOW_MS))
    running = show_run(root, RunKind.COMPARISON, "one", NOW_MS)
    assert running is not None
    assert [one["command"].split()[2] for one in running["commands"]] == ["show"], "its driver would meet another one"


def test_seeds_and_imports_are_runs_too(tmp_path: Path) -> None:
    """A seed that ended and one that did not, an import that ended and one that was interrupted."""
    about = {"bucket_type": "t", "queue": "q", "filter": "any", "source": "http://e1:1", "target": "http://w1:1"}
    for name in ("done", "half"):
        RunDirectory(str(tmp_path), name, SEED).write("run.json", about)
    done = RunDirectory(str(tmp_path), "done", SEED)
    done.write("handover.json", {"queue": "q", "state": "handed over", "positions": {"0": 5}})
    outcomes = {"stored": 6, "rejected": 1}
    done.write("summary.json", {"outcome": "copied", "source": "east", "target": "west", "objects": 7, "damaged": 1,
                                "outcomes": outcomes, "at_ms": 8, "chunks": {"done": 1, "of": 1}})  # fmt: skip
    for name, stage in (("in", "ended"), ("broken", "interrupted")):
        run = RunDirectory(str(tmp_path), name, IMPORT)
        run.write("run.json", {"path": "/b a", "urls": "http://w1:1", "cluster": "aa", "prefix": "p"})
        run.write("progress.json", progress(stage, NOW_MS, done=2, of=3, counts={"objects": 4}, clusters=["west"]))
    rows = {(row["kind"], row["run"]): row for row in list_runs(tmp_path, NOW_MS).runs}
    seed = rows["seed", "done"]
    assert (seed["outcome"], seed["clusters"], seed["counts"]) == (
        "copied", ["east", "west"], {"objects": 7, **outcomes, "damaged": 1},
    )  # fmt: skip
    assert rows["seed", "half"]["state"] == "unknown"
    assert (rows["import", "in"]["outcome"], rows["import", "in"]["counts"]) == ("imported", {"objects": 4})
    assert rows["import", "broken"]["state"] == "interrupted"

    def commands(kind: RunKind, name: str) -> list[str]:
        shown = show_run(tmp_path, kind, name, NOW_MS)
        assert shown is not None
        return [one["command"] for one in shown["commands"]]

    assert len(commands(RunKind.SEED, "done")) == 1
    assert commands(RunKind.SEED, "half")[1] == (
        "isthmus reconcile seed --source http://e1:1 --target http://w1:1 --bucket-type t --queue q --admin URL "
        f"--dir {tmp_path} --run-id half"
    )
    assert commands(RunKind.IMPORT, "in") == []
    assert commands(RunKind.IMPORT, "broken") == [
        f"isthmus reconcile import '/b a' --url http://w1:1 --prefix p --run-id broken --dir {tmp_path}"
    ]
    json.dumps(show_run(tmp_path, RunKind.SEED, "done", NOW_MS))
