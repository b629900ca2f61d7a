"""`isthmus version`: the installation, without asking a node, and the versions of nodes."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from isthmus.node.cli.contexts import ClusterEntry, ContextEntry, ContextFile, save
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.main import main
from tests.support.cluster_answers import health_answer, respond_as
from tests.support.fake_admin_listener import FakeAdminListener
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


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, FakeAdminListener]]:
    """A context with two healthy clusters of three nodes."""
    found = {name: FakeAdminListener() for name in ("east", "west")}
    for name, listener in found.items():
        respond_as(listener, name)
    file = tmp_path / "contexts.toml"
    save(file, ContextFile({"prod": ContextEntry({name: ClusterEntry((at.url,)) for name, at in found.items()})}, ""))
    monkeypatch.setenv("ISTHMUS_CONTEXTS", str(file))
    monkeypatch.setenv("ISTHMUS_CONTEXT", "prod")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    yield found
    for listener in found.values():
        listener.close()


def upgraded(listener: FakeAdminListener, cluster: str, node: str, version: str | None) -> None:
    """Let a cluster answer with another version of a node; None: the node does not answer."""
    answer = health_answer(cluster)
    answer["nodes"] = {**answer["nodes"], node: None if version is None else {"version": version}}
    answer["unknown"] = {node: "it has no session"} if version is None else {}
    listener.respond("/admin/nodes/health", answer)


def test_every_node_of_the_context_has_a_row(
    context: dict[str, FakeAdminListener], capsys: pytest.CaptureFixture[str]
) -> None:
    """`--cluster` asks all clusters of the context, with a name one of them; without it no node is asked."""
    assert main(["version", "--cluster"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["CLUSTER", "NODE", "VERSION", "REASON"],
        ["east", "east-1", "0.1.0", "-"],
    ]
    assert len(lines) == 8
    assert lines[-1] == "6 nodes with 0.1.0"
    assert main(["version", "--cluster", "west", "-o", "json"]) == Exit.OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["versions"], shown["unknown"]) == (["0.1.0"], 0)
    assert [row["node"] for row in shown["nodes"]] == ["west-1", "west-2", "west-3"]
    assert main(["version", "--context", "prod", "-o", "json"]) == Exit.OK
    assert len(json.loads(capsys.readouterr().out)["nodes"]) == 6
    assert main(["version"]) == Exit.OK
    assert "east-1" not in capsys.readouterr().out
    assert main(["version", "--cluster", "north"]) == Exit.USAGE


def test_the_clusters_of_addresses_are_asked(
    context: dict[str, FakeAdminListener], capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `isthmus status`; a name of a cluster contradicts an address."""
    admin = context["east"].url
    for words in (["--admin", admin], ["--cluster", "--admin", admin]):
        assert main(["version", *words, "-o", "json"]) == Exit.OK
        assert [row["cluster"] for row in json.loads(capsys.readouterr().out)["nodes"]] == ["east"] * 3
    assert main(["version", "--cluster", "west", "--admin", admin]) == Exit.USAGE


def test_more_than_one_version_is_exit_code_1(
    context: dict[str, FakeAdminListener], capsys: pytest.CaptureFixture[str]
) -> None:
    """In the middle of an upgrade, also where another node does not answer."""
    upgraded(context["east"], "east", "east-2", "0.2.0")
    assert main(["version", "--cluster"]) == Exit.DIFFERS
    assert capsys.readouterr().out.endswith("\n2 versions: 5 nodes with 0.1.0, 1 node with 0.2.0\n")
    assert main(["version", "--cluster", "west"]) == Exit.OK
    capsys.readouterr()
    upgraded(context["west"], "west", "west-1", None)
    assert main(["version", "--cluster"]) == Exit.DIFFERS
    assert capsys.readouterr().out.endswith("1 node with 0.2.0; 1 unknown\n")


def test_an_unknown_version_is_exit_code_3(
    context: dict[str, FakeAdminListener], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a node that does not answer, and of a cluster of which none does."""
    upgraded(context["west"], "west", "west-1", None)
    assert main(["version", "--cluster", "-o", "json"]) == Exit.UNAVAILABLE
    shown = json.loads(capsys.readouterr().out)
    assert shown["unknown"] == 1
    assert shown["nodes"][3] == {"cluster": "west", "node": "west-1", "version": None, "reason": "it has no session"}
    context["west"].close()
    assert main(["version", "--cluster"]) == Exit.UNAVAILABLE
    shown_lines = capsys.readouterr().out.splitlines()
    assert shown_lines[4].split()[:3] == ["west", "unknown", "unknown"]
    assert shown_lines[-1] == "3 nodes with 0.1.0; 1 unknown"
