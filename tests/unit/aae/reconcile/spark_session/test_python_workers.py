"""`register` reports workers that run another Python than the driver, without Java."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.aae.reconcile import register, spark_session
from isthmus.aae.run_directory import program_version
from isthmus.repl.model.errors import BadInput

OURS = f"{sys.version_info[0]}.{sys.version_info[1]}"


class Session:
    """A session of Spark with this interpreter for its workers."""

    def __init__(self, python: str, master: str = "local[2]") -> None:
        self._sc = SimpleNamespace(pythonExec=python, master=master, _python_includes=[])
        self.registered: list[Any] = []
        self.dataSource = SimpleNamespace(register=self.registered.append)

    @property
    def conf(self) -> Any:
        """Settings of others."""
        raise AssertionError("register changes no setting of a session")


def script(path: Path, text: str) -> str:
    """An interpreter that does this."""
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_workers_without_isthmus_are_reported_before_the_first_action(tmp_path: Path) -> None:
    """The message names both interpreters, the missing package, and the setting to change; nothing is registered
    then."""
    other = script(tmp_path / "python3", "echo \"ModuleNotFoundError: No module named 'isthmus'\" >&2; exit 1")
    session = Session(other)
    with pytest.raises(BadInput) as told:
        register(session)
    for part in (other, sys.executable, "No module named 'isthmus'", f"PYSPARK_PYTHON={sys.executable}"):
        assert part in str(told.value)
    assert session.registered == []
    with pytest.raises(BadInput, match=r"it is Python 2\.7, the driver's is"):
        register(Session(script(tmp_path / "older", "echo 2.7")))
    lacking = script(tmp_path / "lacking", "echo \"ModuleNotFoundError: No module named 'msgpack'\" >&2; exit 1")
    with pytest.raises(BadInput, match="it lacks the package msgpack, which Isthmus needs"):
        register(Session(lacking))
    with pytest.raises(BadInput, match=r"its Isthmus is 0\.0\.1, the driver's is"):
        register(Session(script(tmp_path / "other", f"echo {OURS} 0.0.1")))
    with pytest.raises(BadInput, match="nowhere is not there"):
        register(Session("nowhere"))


def test_workers_that_can_do_it_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's own interpreter is not started; another one that has Isthmus is accepted. Workers elsewhere, those
    that get their files from the driver, and a slow one are not checked."""
    sent = Session("nowhere")
    sent._sc._python_includes.append("isthmus.zip")
    monkeypatch.setattr(spark_session, "IMPORT_S", 0.2)
    for session in (
        Session(sys.executable),
        Session(script(tmp_path / "another", f"echo {OURS} {program_version()}")),
        Session("nowhere", "spark://host:7077"),
        Session(script(tmp_path / "slow", "exec sleep 5")),
        sent,
    ):
        register(session)
        assert len(session.registered) == 1


def test_workers_with_the_archive_of_the_driver_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an Isthmus from --py-files on the workers' path, its dependencies must be in their interpreter."""
    archive = tmp_path / "isthmus.zip"
    monkeypatch.setattr(spark_session.aae, "__file__", f"{archive}/isthmus/aae/__init__.py")
    seen = tmp_path / "seen"
    other = script(tmp_path / "bare", f'echo "$PYTHONPATH" > {seen}; echo "No module named \'xxhash\'" >&2; exit 1')
    session = Session(other)
    session._sc._python_includes.append("isthmus.zip")
    with pytest.raises(BadInput, match="it lacks the package xxhash"):
        register(session)
    assert seen.read_text().split(":")[0] == str(archive)


def test_a_driver_without_a_package_is_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where Isthmus came as one file: a sentence with the package and this interpreter, and nothing registered."""
    session = Session(sys.executable)
    monkeypatch.setattr("isthmus.repl.extras.is_installed", lambda package: package != "xxhash")
    with pytest.raises(ModuleNotFoundError, match=f"needs the package xxhash, which {sys.executable} does not have"):
        register(session)
    assert session.registered == []
