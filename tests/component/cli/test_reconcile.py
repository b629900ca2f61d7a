"""`isthmus reconcile` seed, stats, export, import and trees: faults are reported before Spark starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isthmus.aae import run_directory
from isthmus.aae.reconcile import job, options, segment_plan, spark_session
from isthmus.aae.reconcile.client import ReplicaDirectory
from isthmus.aae.reconcile.compare_range import SideSpec
from isthmus.node.cli import parameters
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.main import main
from isthmus.repl.model.errors import BadInput

ENDS = ["--left", "http://127.0.0.1:1", "--right", "http://127.0.0.1:2", "--dir", "runs"]
URL = ["--url", "http://127.0.0.1:1"]
SEED = ["seed", "--source", "http://127.0.0.1:1", "--target", "http://127.0.0.1:2", "--dir", "runs"]


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment in which no test starts Spark."""

    def started(*_: Any, **__: Any) -> Any:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(spark_session, "session", started)
    monkeypatch.chdir(tmp_path)
    for name in ("TOKEN", "TOKEN_FILE", "CA", "CERT", "KEY"):
        monkeypatch.delenv(f"ISTHMUS_{name}", raising=False)


@pytest.mark.parametrize(
    "text", ["2026-02-03", "2026-02-03T04:05+02:00", "2026-02-03 04:05:06.0005Z", "1" * 11, "1" * 18]
)
def test_times_are_the_same_everywhere(text: str) -> None:
    """A time on the command line means the same as in an option of a Spark job."""
    assert options.parse_time_ms(text) == parameters.time_of(text)


@pytest.mark.parametrize("text", ["1" * 10, "1" * 19, "1" * 10 + "\u0661", "20260203", "soon", "", "1969-12-31"])
def test_an_invalid_time_is_invalid_in_every_command(text: str) -> None:
    """Too few or too many digits, digits of another script, words, and times before 1970 are refused by both."""
    with pytest.raises(ValueError, match="is needed"):
        options.parse_time_ms(text)
    with pytest.raises(BadInput):
        parameters.time_of(text)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["stats", "--url", "ftp://n1"], "not the URL of a node"),
        (["stats"], "Missing option '--url'"),
        (["stats", *URL, "--segments", "9-3"], "FIRST-END"),
        (["stats", *URL, "--prefix", "p"], "set the option bucket"),
        (["stats", *URL, "--bucket", "0xf"], "pairs of hexadecimal digits"),
        (["stats", *URL, "--modified-since", "soon"], "a time such as"),
        (["stats", *URL, "--modified-since", "20260203"], "a time such as"),
        (["stats", *URL, "--modified-before", "1970-01-01"], "a time after 1970"),
        (["run", *ENDS, "--modified-before", "1970-01-01"], "a time after 1970"),
        (["run", *ENDS, "--modified-since", "20260203"], "--modified-since: '20260203' is not a time"),
        (["stats", *URL, "--rate", "0"], "--rate"),
        (["stats", *URL, "--give-up-after", "long"], "--give-up-after"),
        (["stats", *URL, "--cert", "c.pem"], "--cert and --key belong together"),
        (["export", "copy", *URL, "--consistency", "strong"], "committed"),
        (["export", "/", *URL], "is not an export"),
        (["import", "nowhere", *URL], "there is no export"),
        (["import", "copy", *URL, "--run-id", "one"], "--run-id and --dir belong together"),
        (["import", "copy", *URL, "--origin", "ab"], "32 hexadecimal digits"),
        (["import", "copy", *URL, "--run-id", "../up", "--run-dir", "d"], "run id '../up'"),
        (["trees", *URL, "--segments", "x"], "FIRST-END"),
        (["trees", *URL, "--export", "nowhere"], "there is no export"),
        ([*SEED, "--filter", "bucket:x", "--queue", "q"], "bucket:x"),
        ([*SEED, "--run-id", "a/b"], "run id 'a/b'"),
        ([*SEED, "--rate", "-1"], "--rate"),
        ([*SEED, "--key", "k.pem"], "--cert and --key belong together"),
    ],
)
def test_a_wrong_option_is_reported_in_one_line(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 2 with a valid form, and nothing was started or written."""
    assert main(["reconcile", *words]) == Exit.USAGE
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert not list(Path().iterdir())


@pytest.mark.parametrize("words", [["trees", "--export", "half", *URL], ["import", "half", *URL]])
def test_half_an_export_is_good_for_nothing(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Keys missing from an unfinished export would be taken for missing in the cluster."""
    half = {"asked": {"bucket_type": "default"}, "slices": 3, "done": [0], "cluster": "6565"}
    Path("half", "slice=0000").mkdir(parents=True)
    Path("half", "_export.json").write_text(json.dumps(half), encoding="utf-8")
    assert main(["reconcile", *words]) == Exit.USAGE
    assert "the export is not finished: 1 of 3 slices are" in capsys.readouterr().err


def test_a_token_in_the_environment_is_of_no_use_to_workers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The token is refused with the remedy, not silently ignored."""
    monkeypatch.setenv("ISTHMUS_TOKEN", "t" * 32)
    assert main(["reconcile", "stats", *URL, "-o", "json"]) == Exit.USAGE
    assert "--token-file" in json.loads(capsys.readouterr().err)["error"]


@pytest.mark.parametrize("words", [[*SEED, "--dry-run"], SEED])
def test_a_seed_whose_cluster_is_not_there_is_unavailable(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, and nothing is on record: the plan comes first."""
    assert main(["reconcile", *words]) == Exit.UNAVAILABLE
    assert "no node answers which nodes hold which partitions" in capsys.readouterr().err
    assert not list(Path().iterdir())


def test_a_seed_is_shown_beside_runs_with_its_hand_over(capsys: pytest.CaptureFixture[str]) -> None:
    """A seed shows the copied rows, counted once for each range, and the offsets at which its queue continues; a name
    that is neither a run's nor a seed's is reported as unknown."""
    directory = run_directory.RunDirectory("runs", "fill", run_directory.SEED)
    directory.write("plan.json", {"source": "east", "target": "west", "bucket_type": "default", "queue": "to-west",
                                  "chunks": [[0, 0, 0, 9], [1, 0, 9, 18], [2, 1, 18, 20]]})  # fmt: skip
    done = [{"chunk": 0, "rows": 7, "error": ""}, {"chunk": 1, "rows": 0, "error": "peer-fault: gone"}]
    directory.write("work/00000.json", {"done": done})
    directory.write("work/00001.json", {"done": [{"chunk": 1, "rows": 5, "error": ""}]})
    directory.write("handover.json", {"queue": "to-west", "state": "held", "positions": {"0": 12, "1": 0}})
    assert main(["reconcile", "show", "--dir", "runs", "-o", "json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["seeds"]
    assert (row["seed"], row["outcome"], row["objects"], row["ranges"], row["of"], row["hand_over"]) == (
        "fill", "not ended", 12, 2, 3, "held",
    )  # fmt: skip
    assert main(["reconcile", "show", "fill", "--dir", "runs"]) == 0
    said = capsys.readouterr().out
    assert "queue to-west is held from:" in said
    assert "seed fill has not ended" in said
    assert main(["reconcile", "show", "--dir", "runs"]) == 0
    assert "to-west" in capsys.readouterr().out
    assert main(["reconcile", "show", "other", "--dir", "runs"]) == Exit.USAGE
    assert "no run or seed other" in capsys.readouterr().err


def test_a_java_home_is_printed_for_sparks_own_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    """When Spark can start a Java as it is, its home is printed and nothing is written."""
    assert main(["reconcile", "java-home", "java"]) == 0
    home = Path(capsys.readouterr().out.strip())
    assert (home / "bin" / "java").exists()
    assert home == Path("java").absolute() or not list(Path().iterdir())


@pytest.mark.parametrize("module", ["pyspark", "pyarrow"])
def test_a_package_that_is_missing_is_one_sentence(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether a command imports it at once or before Spark starts, the sentence names the package, this interpreter and
    the command that installs it, without a traceback; a missing module of our own is a bug with a traceback."""
    missing = ModuleNotFoundError(f"No module named {module!r}", name=f"{module}.sql")

    def absent(*_: Any, **__: Any) -> Any:
        raise missing

    monkeypatch.setattr(spark_session, "session", absent)
    assert main(["reconcile", "stats", *URL]) == Exit.LOCAL_FAULT
    told = capsys.readouterr().err
    assert f"needs the package {module}, which {sys.executable} does not have: pip install 'isthmus[spark]'" in told
    assert [line.startswith("isthmus: ") for line in told.splitlines()] == [False, True], "Spark starts, and why not"
    missing.name = "isthmus.aae.reconcile.none"
    assert main(["reconcile", "stats", *URL]) == Exit.BROKEN
    assert "Traceback" in capsys.readouterr().err


def test_one_cluster_on_both_sides_is_refused_before_spark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same cluster is recognized by a URL given on both sides, whatever other URLs are given, or by the cluster
    that nodes at different URLs report. Nothing is written."""
    sides = ["--left", "http://n1:1,http://n2:1/", "--right", "http://n2:1", "--dir", "runs"]
    assert main(["reconcile", "run", *sides]) == Exit.USAGE
    assert "left and right are the same cluster: http://n2:1 is on both sides" in capsys.readouterr().err
    plan = ReplicaDirectory(b"e" * 16, "east", "default", ())
    monkeypatch.setattr(job, "plan_of", lambda _side: plan)
    assert main(["reconcile", "run", *ENDS]) == Exit.USAGE
    assert "left and right are the same cluster, east" in capsys.readouterr().err
    assert not list(Path().iterdir())


def test_equal_trees_are_an_answer_without_spark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with 0, and names the proof; the run is listed like any other."""

    def plan_of(side: SideSpec) -> ReplicaDirectory:
        uuid = side.urls[0][-1:].encode() * 16
        return ReplicaDirectory(uuid, f"c{side.urls[0][-1:]}", "default", ())

    for module in (job, segment_plan):
        monkeypatch.setattr(module, "plan_of", plan_of)
    monkeypatch.setattr(segment_plan, "roots_of", lambda _side: np.zeros(1024, np.uint64))
    assert main(["reconcile", "run", *ENDS, "--run-id", "r"]) == 0
    told = capsys.readouterr()
    assert "outcome: equal" in told.out
    assert "0: the trees of both clusters are equal" in told.out
    assert "Spark" not in told.err
    assert main(["reconcile", "show", "r", "--dir", "runs"]) == 0


def test_run_takes_its_files_from_the_environment_like_other_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ISTHMUS_TOKEN_FILE, ISTHMUS_CA, ISTHMUS_CERT and ISTHMUS_KEY count, as absolute paths; an option wins; --ca,
    --cert and --key are other names of its options; a token in the environment alone is refused."""
    seen: list[Any] = []

    def check(_left: str, _right: str, wanted: Any) -> None:
        seen.append(wanted)
        raise BadInput("enough")

    monkeypatch.setattr(job, "check", check)
    for name in ("TOKEN_FILE", "CA", "CERT", "KEY"):
        monkeypatch.setenv(f"ISTHMUS_{name}", f"files/{name}")
    assert main(["reconcile", "run", *ENDS]) == Exit.USAGE
    here = Path.cwd() / "files"
    [wanted] = seen
    files = (wanted.token_file, wanted.ca_file, wanted.certificate_file, wanted.key_file)
    assert files == tuple(str(here / name) for name in ("TOKEN_FILE", "CA", "CERT", "KEY"))
    main(["reconcile", "run", *ENDS, "--ca", "/other", "--cert", "/c", "--key-file", "/k"])
    assert (seen[-1].ca_file, seen[-1].certificate_file, seen[-1].key_file) == ("/other", "/c", "/k")
    assert seen[-1].token_file == str(here / "TOKEN_FILE")
    monkeypatch.delenv("ISTHMUS_TOKEN_FILE")
    monkeypatch.setenv("ISTHMUS_TOKEN", "t" * 32)
    capsys.readouterr()
    assert main(["reconcile", "run", *ENDS]) == Exit.USAGE
    assert "--token-file" in capsys.readouterr().err
    assert len(seen) == 2


def test_show_names_the_keys_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    """Keys reported lost come first; names that are not text are shown as bytes, sides by both clusters' names; as many
    as were requested, with the total; without a run the command reports that there is none."""
    directory = run_directory.RunDirectory("runs", "may")
    directory.write("run.json", {"form": 1})
    rows = [
        (b"k\xff", "diverged", "missing", "sink"),
        (b"late", "transient", None, None),
        (b"k2", "diverged", "behind", "source"),
    ]
    table = [
        {
            "bucket_type": "default", "bucket": b"b", "key": key, "verdict": verdict, "difference": kind, "side": side,
            "left_fault": None, "right_fault": None,
        }
        for key, verdict, kind, side in rows
    ]  # fmt: skip
    pq.write_to_dataset(pa.Table.from_pylist(table), directory.path / "findings", partition_cols=["verdict"])
    show = ["reconcile", "show", "may", "--dir", "runs"]
    assert main([*show, "--keys", "2", "-o", "json"]) == 0
    keys = json.loads(capsys.readouterr().out)["keys"]
    assert [(one["key"], one["difference"], one["side"]) for one in keys] == [
        ("k\\xff", "missing", "sink"), ("k2", "behind", "source")
    ]  # fmt: skip
    assert main([*show, "--keys", "2"]) == 0
    told = capsys.readouterr().out
    assert "sink (right)" in told
    assert "2 of 3 keys" in told
    assert "late" not in told
    assert [(one["key_hex"], one["bucket_hex"]) for one in keys] == [("6bff", "62"), ("6b32", "62")]
    assert main([*show, "--keys", "1", "--skip", "1"]) == 0
    told = capsys.readouterr().out
    assert "k2" in told
    assert "2 to 2 of 3 keys; --skip 2 for the next" in told
    assert main([*show, "--keys", "5", "--skip", "1", "--verdict", "diverged"]) == 0
    told = capsys.readouterr().out
    assert "2 to 2 of 2 keys\n" in told
    assert "late" not in told
    assert main([*show, "--keys", "5", "--skip", "9", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["keys"] == []
    assert main([*show, "--skip", "9"]) == Exit.USAGE
    capsys.readouterr()
    assert main([*show, "--keys", "9"]) == 0
    assert "late" in capsys.readouterr().out
    assert main([*show, "-o", "json"]) == 0
    assert "keys" not in json.loads(capsys.readouterr().out)
    assert main(["reconcile", "show", "--dir", "runs", "--keys", "1"]) == Exit.USAGE


def test_output_is_the_format_and_no_directory(capsys: pytest.CaptureFixture[str]) -> None:
    """`--output json` is `-o json`, as in every command; a directory is no format."""
    directory = run_directory.RunDirectory("runs", "fill", run_directory.SEED)
    directory.write("plan.json", {"source": "east", "target": "west", "bucket_type": "default", "queue": "",
                                  "chunks": []})  # fmt: skip
    for option in ("-o", "--output"):
        assert main(["reconcile", "show", "--dir", "runs", option, "json"]) == 0
        assert [seed["seed"] for seed in json.loads(capsys.readouterr().out)["seeds"]] == ["fill"]
    sides = ["--left", "http://127.0.0.1:1", "--right", "http://127.0.0.1:2"]
    for words in (["show"], ["run", *sides], ["repair", "fill", "plan"], [*SEED]):
        assert main(["reconcile", *words, "--dir", "runs", "--output", "runs"]) == Exit.USAGE
        assert "'--output': 'runs' is not one of 'table', 'wide', 'json'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["show"], ["show", "may"], ["repair", "may", "plan", "--queue", "q"]])
def test_a_directory_of_runs_that_is_not_there_is_no_empty_one(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped `--dir` is a fault of the command line, not a listing without rows; nor is a file a directory."""
    assert main(["reconcile", *words, "--dir", "rusn"]) == Exit.USAGE
    answer = capsys.readouterr()
    assert "--dir: rusn does not exist" in answer.err
    assert not answer.out
    Path("file").touch()
    assert main(["reconcile", *words, "--dir", "file"]) == Exit.USAGE
    assert "--dir: file is no directory" in capsys.readouterr().err


def test_a_job_that_is_terminated_leaves_nothing_behind(tmp_path: Path) -> None:
    """SIGTERM while Java starts ends the command as Ctrl-C does: no temporary folder and no log stays. It had said that
    Spark starts, also to a pipe."""
    home, scratch = tmp_path / "java", tmp_path / "scratch"
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    scratch.mkdir()
    started = tmp_path / "started"
    java.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "21"\' >&2 && exit\n: >{started}\nexec sleep 3\n'
    )
    java.chmod(0o755)
    env = {**os.environ, "JAVA_HOME": str(home), "TMPDIR": str(scratch)}
    env.pop("PYSPARK_GATEWAY_PORT", None)
    command = subprocess.Popen(
        [sys.executable, "-m", "isthmus.node.cli.main", "reconcile", "stats", *URL, "--master", "local[1]"],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert command.stderr is not None
        assert command.stderr.readline() == "starting Spark, at a lower priority (nice 10; --nice 0 turns that off)\n"
        until_s = time.monotonic() + 30
        while not started.exists():
            assert command.poll() is None
            assert time.monotonic() < until_s, "Java was not started"
            time.sleep(0.05)
        assert list(scratch.iterdir()) != []
        command.send_signal(signal.SIGTERM)
        command.communicate(timeout=30)
    finally:
        command.kill()
        command.wait()
    assert command.returncode == Exit.INTERRUPTED
    assert list(scratch.iterdir()) == []
