"""`isthmus version`: the installation, without asking a node."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path

import pytest

from isthmus.node.cli.main import main
from tests.support.hidden_packages import run_without


def test_the_version_is_that_of_the_metadata(capsys: pytest.CaptureFixture[str]) -> None:
    """Both spellings print the version; JSON has the packages and extras that a report of a defect needs."""
    assert main(["version"]) == 0
    assert f"isthmus: {version('isthmus')}\npython: {platform.python_version()}\n" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"isthmus {version('isthmus')}\n"
    assert main(["version", "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["packages"]["kazoo"] == version("kazoo")
    assert shown["extras"] == {"local": True, "spark": True, "traces": True}


def test_an_extra_that_is_not_there_is_shown_with_its_command(tmp_path: Path) -> None:
    """A base installation lists the missing extras with their install commands."""
    done = run_without(["pyspark", "pyarrow", "opentelemetry"], ["-m", "isthmus.node.cli.main", "version"], tmp_path)
    assert done.returncode == 0, done.stderr
    commands = [f"extra {extra}: pip install 'isthmus[{extra}]'\n" for extra in ("local", "spark", "traces")]
    assert done.stdout.endswith("".join(commands))
