"""Damaged documents of a run: one line names them, and all other runs are shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.aae import run_directory
from isthmus.aae.run_directory import SEED, RunDirectory
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.main import main
from isthmus.repl.model.errors import LocalFault

SUMMARY: dict[str, Any] = {
    "form": 1, "run_id": "one", "outcome": "differ", "exit_code": 1, "error": "", "mode": "full", "why": "", "keys": 3,
    "verdicts": {"match": 2, "transient": 0, "diverged": 1, "filtered": 0, "unreachable": 0}, "findings_cut": False,
    "coverage": {"segments": 9, "of": 9, "read": 9, "chunks_done": 1, "chunks": 1}, "segments_open": [],
    "segments_open_ranges": 0, "reasons": [], "bytes": 5, "seconds": 1.5, "looks": 1,
    "clusters": ["aa", "bb"],
}  # fmt: skip

DAMAGED = ["", "{", "[]", "[" * 100_000, "null", "{}", '{"outcome": "equal", "verdicts": 7}', "\x00\xff"]


def runs_of(root: Path) -> RunDirectory:
    """Make two runs and a seed; returns the first run."""
    for name in ("one", "two"):
        run = RunDirectory(str(root), name)
        run.write("run.json", {"form": 1})
        run.write("summary.json", SUMMARY | {"run_id": name})
    seed = RunDirectory(str(root), "fill", SEED)
    about = {"source": "east", "target": "west", "bucket_type": "t", "queue": "q"}
    seed.write("plan.json", about | {"chunks": [[0, 0, 0, 9]]})
    seed.write("work/00000.json", {"done": [{"chunk": 0, "rows": 7, "error": ""}]})
    return RunDirectory(str(root), "one")


@pytest.mark.parametrize("text", DAMAGED)
@pytest.mark.parametrize(
    "document", ["run_id=one/summary.json", "seed_id=fill/work/00000.json", "seed_id=fill/plan.json"]
)
def test_a_damaged_document_hides_no_other_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], document: str, text: str
) -> None:
    """The list has every run and seed, and names the damaged document."""
    runs_of(tmp_path)
    (tmp_path / document).write_text(text, encoding="latin-1")
    assert main(["reconcile", "show", "--dir", str(tmp_path), "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["run"]: row["outcome"] for row in told["runs"]}["two"] == "differ"
    assert [row["seed"] for row in told["seeds"]] == ["fill"]
    (hurt,) = [row for row in told["runs"] + told["seeds"] if row["outcome"] == "unreadable"]
    assert document in hurt["error"]
    assert main(["reconcile", "show", "--dir", str(tmp_path)]) == 0
    assert document in capsys.readouterr().err


@pytest.mark.parametrize("text", DAMAGED)
@pytest.mark.parametrize("words", [["show", "one"], ["repair", "one", "plan", "--queue", "q"]])
def test_a_damaged_summary_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    """Every command that needs the summary names it, with exit code 5 and without a traceback."""
    runs_of(tmp_path)
    (tmp_path / "run_id=one" / "summary.json").write_text(text, encoding="latin-1")
    assert main(["reconcile", *words, "--dir", str(tmp_path)]) == Exit.LOCAL_FAULT
    said = capsys.readouterr().err
    assert "run_id=one/summary.json" in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("text", [None, "", "{}", '{"queued": "many"}', "[" * 100_000])
def test_a_damaged_repair_is_named_and_one_without_progress_starts_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    """A process killed between writing a plan's two documents has queued nothing yet."""
    run = runs_of(tmp_path)
    base = ["reconcile", "repair", "one"]
    assert main([*base, "plan", "--queue", "q", "--dir", str(tmp_path), "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    progress = run.path / "repairs" / f"{plan}.progress.json"
    if text is None:
        progress.unlink()
    else:
        progress.write_text(text)
    code = main([*base, "apply", "--dir", str(tmp_path), "-o", "json"])
    said = capsys.readouterr()
    if text is None:
        assert (code, json.loads(said.out)["state"]) == (0, "nothing-to-queue")
    else:
        assert (code, progress.name in said.err) == (Exit.LOCAL_FAULT, True)


def test_an_enormous_document_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The document's size is checked before it is read."""
    monkeypatch.setattr(run_directory, "DOCUMENT_BYTES_MAX", 1_000)
    run = RunDirectory(str(tmp_path), "one")
    run.write("summary.json", {"text": "x" * 2_000})
    with pytest.raises(LocalFault, match="more than 1000"):
        run.read("summary.json")


@pytest.mark.parametrize(
    "row", [[], [0, "", 1, 1, 1, 0, 0, "5"], [0, None, 1, 1, 1, 0, 0, 5], [0, "", 1, 1, -1, 0, 0, 5]]
)
def test_a_wave_with_counts_that_are_none_is_named(tmp_path: Path, row: list[Any]) -> None:
    """Otherwise such counts would be added up, or end the run in a traceback."""
    run = RunDirectory(str(tmp_path), "one")
    run.write("work/00000.json", {"number": 0, "look": "first", "at_ms": 1, "done": [row]})
    with pytest.raises(LocalFault, match=r"work/00000\.json is not a valid wave of a run"):
        run.waves()
