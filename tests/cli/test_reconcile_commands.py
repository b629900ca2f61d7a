"""Claims about `isthmus reconcile` seed, stats, export, import and trees: what is wrong is told before Spark starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aae.reconcile import sessions
from node.cli.exits import Exit
from node.cli.main import main

URL = ["--url", "http://127.0.0.1:1"]
SEED = ["seed", "--source", "http://127.0.0.1:1", "--target", "http://127.0.0.1:2", "--output", "runs"]


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing here starts it."""

    def started(*_: Any, **__: Any) -> Any:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(sessions, "session", started)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ISTHMUS_TOKEN", raising=False)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["stats", "--url", "ftp://n1"], "no URL of a node"),
        (["stats"], "Missing option '--url'"),
        (["stats", *URL, "--segments", "9-3"], "FIRST-END"),
        (["stats", *URL, "--prefix", "p"], "set the option bucket"),
        (["stats", *URL, "--bucket", "0xf"], "pairs of hexadecimal digits"),
        (["stats", *URL, "--modified-since", "soon"], "a time such as"),
        (["stats", *URL, "--rate", "0"], "--rate"),
        (["stats", *URL, "--give-up-after", "long"], "--give-up-after"),
        (["stats", *URL, "--cert", "c.pem"], "--cert and --key belong together"),
        (["export", "copy", *URL, "--consistency", "strong"], "committed"),
        (["export", "/", *URL], "is no export"),
        (["import", "nowhere", *URL], "there is no export"),
        (["import", "copy", *URL, "--run-id", "one"], "--run-id and --run-dir belong together"),
        (["import", "copy", *URL, "--origin", "ab"], "32 hexadecimal digits"),
        (["import", "copy", *URL, "--run-id", "../up", "--run-dir", "d"], "run id '../up'"),
        (["trees", *URL, "--segments", "x"], "FIRST-END"),
        ([*SEED, "--filter", "bucket:x", "--queue", "q"], "bucket:x"),
        ([*SEED, "--run-id", "a/b"], "run id 'a/b'"),
        ([*SEED, "--rate", "-1"], "--rate"),
        ([*SEED, "--key", "k.pem"], "--cert and --key belong together"),
    ],
)
def test_a_wrong_option_is_told_in_one_line(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, what would be right, and nothing was started or written."""
    assert main(["reconcile", *words]) == Exit.USAGE
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert not list(Path().iterdir())


def test_a_token_in_the_environment_is_of_no_use_to_workers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused with the remedy, rather than left out in silence."""
    monkeypatch.setenv("ISTHMUS_TOKEN", "t" * 32)
    assert main(["reconcile", "stats", *URL, "-o", "json"]) == Exit.USAGE
    assert "--token-file" in json.loads(capsys.readouterr().err)["error"]


@pytest.mark.parametrize("words", [[*SEED, "--dry-run"], SEED])
def test_a_seed_whose_cluster_is_not_there_is_unavailable(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 3, and nothing is on record: the plan comes first."""
    assert main(["reconcile", *words]) == Exit.UNAVAILABLE
    assert "no node says who holds what" in capsys.readouterr().err
    assert not list(Path().iterdir())
