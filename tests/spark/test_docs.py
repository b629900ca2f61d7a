"""Every line of docs/spark.md that is there to be copied is run, in its order, against two clusters."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.aae.exchange.compare import VerdictKind
from isthmus.aae.reconcile.arrow_rows import ENTRY_COLUMNS, KEY_COLUMNS, OBJECT_COLUMNS
from isthmus.aae.reconcile.findings import COLUMNS
from isthmus.aae.reconcile.options import _PARSERS
from isthmus.aae.reconcile.repair import repairs_of
from isthmus.aae.reconcile.report import SEGMENTS
from isthmus.aae.reconcile.spark_session import session
from isthmus.aae.run_directory import RunDirectory
from tests.spark.engine import REPOSITORY, environment
from tests.support.reconcile_pairs import ClusterPair, made, up

PAGE = (REPOSITORY / "docs" / "spark.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

TOPOLOGY = """
[clusters.east.replication]
factor = 2
partitions = 4
[[clusters.east.nodes]]
name = "east1"
[[clusters.east.nodes]]
name = "east2"
[[clusters.east.queues]]
name = "to-west"
filter = "block_rtq"
[clusters.west.replication]
partitions = 3
[[clusters.west.nodes]]
name = "west1"
[[clusters.west.sink.peers]]
cluster = "east"
queue = "to-west"
"""


def test_the_tables_name_every_option_column_and_verdict() -> None:
    """The page lists every option, column and verdict of the data source and of runs, and no unknown option."""
    for name in (*_PARSERS, *KEY_COLUMNS, *ENTRY_COLUMNS, *OBJECT_COLUMNS, *VerdictKind):
        if name != "path":
            assert f"`{name}`" in PAGE, name
    options = PAGE[PAGE.index("## Options") : PAGE.index("## Consistency of reads")]
    for line in options.splitlines():
        if line.startswith("| `"):
            for name in re.findall(r"`(\w+)`", line.split("|")[1]):
                assert name in _PARSERS, name
    assert {"left_as_of", "right_as_of"} <= set(SEGMENTS.names)
    assert len(COLUMNS) == len(set(COLUMNS))


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """East of two nodes, west of one."""
    with up(tmp_path, TOPOLOGY) as described:
        yield described["clusters"]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """The session that the cells find."""
    made_session = session("tests", "local[2]")
    yield made_session
    made_session.stop()


@pytest.mark.slow
@pytest.mark.timeout(1_500)
def test_the_documented_lines_have_the_documented_effect(spark: Any, clusters: dict[str, Any], tmp_path: Path) -> None:
    """Run each cell in one session and each command in one directory, then check their results."""
    node = {one["name"]: one for cluster in clusters.values() for one in cluster["nodes"]}
    ClusterPair.put(node["east1"]["http"], {b"u%d" % n: made("user", a=1 + n % 2) for n in range(200)}, b"users")
    (tmp_path / "dist").symlink_to(REPOSITORY / "dist")
    names = {
        "http://east1:8099": node["east1"]["admin"],
        **{f"http://{name}:8098": one["http"] for name, one in node.items()},
        **{f"/{place}": str(tmp_path / place) for place in ("backups", "lake", "shared")},
        "spark://host:7077": "local[2]",
        "local[*]": "local[2]",
        "make wheel": f"make -s -C {REPOSITORY} wheel",
    }

    def here(text: str) -> str:
        for name, ours in names.items():
            text = text.replace(name, ours)
        return text

    cells: dict[str, Any] = {}
    printed: list[str] = []
    for kind, text in BLOCKS:
        if kind == "python":
            cell = tmp_path / "cell.py"
            cell.write_text(here(text))
            cells |= runpy.run_path(str(cell), cells)
        elif kind == "sql":
            for statement in filter(str.strip, here(text).split(";")):
                spark.sql(statement)
        elif kind == "sh":
            printed.append(shell(here(text), tmp_path))
    runs = {name: RunDirectory(str(tmp_path / "shared" / "runs"), name) for name in ("may", "june", "july")}
    codes = {name: (run.read("summary.json") or {})["exit_code"] for name, run in runs.items()}
    assert codes["may"] == 1  # towns/delphi was written after the stream to west
    assert set(codes.values()) <= {0, 1}
    assert [repair["state"] for repair in repairs_of(runs["may"])] == ["done"]
    assert "75 73 65 72 73" in printed[0]  # users, as Spark shows bytes
    assert '"run_id": "july"' in printed[-1].splitlines()[-1]
    assert cells["keys"].count() == 202
    assert spark.table("users").count() == 200
    assert {row["key"]: row["value"] for row in spark.table("towns").collect()} == {
        "corinth": "on the isthmus", "delphi": "at the spring",
    }  # fmt: skip
    assert spark.read.parquet(str(tmp_path / "backups" / "users")).count() == 200
    assert spark.read.parquet(str(tmp_path / "lake" / "keys")).count() == 201
    assert cells["findings"].count() == cells["found"].count()
    west = spark.read.format("isthmus").options(urls=node["west1"]["http"], text="true")
    towns = sorted(row["key"] for row in west.options(bucket="towns").load().collect())
    assert towns == ["corinth", "delphi"], "the stream wrote the first, the repair of the run in May the second"


def shell(text: str, directory: Path) -> str:
    """The standard output of the lines. Differing clusters and a target that is not empty are accepted outcomes."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", text], cwd=directory, env=environment(PATH=path, PYTHONPATH=""), capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    fine = done.returncode in (0, 1) or "not empty" in done.stderr
    assert fine, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    return done.stdout
