"""`isthmus node init` and `isthmus config sample`: config files that are right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.config.loader import load_file
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.main import main
from isthmus.node.services.wiring import default_type_of


@pytest.mark.parametrize("form", ["--every", "--short"])
def test_a_sample_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    """`config check` finds no fault in the output of `config sample`."""
    assert main(["config", "sample", form]) == Exit.OK
    file = tmp_path / "node.toml"
    file.write_text(capsys.readouterr().out)
    assert main(["config", "check", str(file)]) == Exit.OK
    assert "no faults" in capsys.readouterr().out


def test_a_new_node_gets_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file has the given names, addresses, queues and peers; an existing file stays unchanged."""
    file = tmp_path / "east-2.toml"
    words = ["node", "init", str(file), "--name", "east-2", "--cluster-name", "east", "--host", "10.0.0.2"]
    words += ["--port", "7000", "--metastore", "zk1:2181,zk2:2181", "--factor", "3", "--queue", "to-west"]
    words += ["--peer", "http://10.1.0.1:8098", "to-east"]
    assert main([*words, "-o", "json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["data_dir"] == str(tmp_path / "data" / "east-2")
    settings = load_file(file)
    assert (settings.node.name, settings.node.cluster, settings.replication.factor) == ("east-2", "east", 3)
    assert [str(each) for each in (settings.listen.cluster, settings.listen.http, settings.listen.admin)] == [
        "10.0.0.2:7000", "10.0.0.2:7001", "10.0.0.2:7002",
    ]  # fmt: skip
    assert settings.queues[0].name == "to-west"
    assert settings.sink.peers[0].queue == "to-east"
    before = file.read_text()
    assert main(words) == Exit.USAGE
    assert f"{file} exists" in capsys.readouterr().err
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--name", "a b"], '--name: "a b" '),
        (["--data-dir", "~/data"], '--data-dir: "~/data"'),
        (["--host", "a b"], "--host: "),
        (["--metastore", "zk1"], "--metastore: "),
        (["--queue", "q", "--queue", "q"], '--queue: two queues are called "q"'),
        (["--peer", "west-1:8098", "q"], '--peer: "west-1:8098" is not the URL of a node; write http(s)://HOST:PORT'),
        (["--peer", "http://127.0.0.1:8098", "q"], "--peer: http://127.0.0.1:8098 is this node itself"),
        (["--factor", "3"], "--replication-factor: 3 replicas need as many nodes"),
    ],
)
def test_a_fault_is_reported_with_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    """The message has no line of the file, which is not written."""
    file = tmp_path / "n.toml"
    assert main(["node", "init", str(file), "--name", "east-1", "--cluster-name", "east", *words]) == Exit.USAGE
    error = capsys.readouterr().err
    assert f"isthmus: node init: {expected}" in error
    assert str(file) not in error
    assert not file.exists()


@pytest.mark.parametrize("form", ["--every", "--short"])
def test_a_node_of_an_ensemble_replicates_unless_told_otherwise(tmp_path: Path, form: str) -> None:
    """Without `--replication-factor` the key is not set, so that its default counts: 3 with an ensemble, 1 without."""
    for number, (more, factor) in enumerate((([], 1), (["--metastore", "zk1:2181,zk2:2181,zk3:2181"], 3))):
        file = tmp_path / f"{number}.toml"
        assert main(["node", "init", str(file), "--name", "east-1", "--cluster-name", "east", form, *more]) == Exit.OK
        settings = load_file(file)
        assert "replication.factor" not in settings.origins
        assert default_type_of(settings).factor == factor


def test_a_sample_sets_no_factor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An ensemble that is named later finds the default of a cluster, not a single copy."""
    assert main(["config", "sample", "--short"]) == Exit.OK
    assert "factor" not in capsys.readouterr().out


def test_a_single_copy_beside_an_ensemble_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`config check` warns of factor = 1 with metastore.hosts; neither alone is worth a warning."""
    file = tmp_path / "n.toml"
    words = ["node", "init", str(file), "--name", "east-1", "--cluster-name", "east", "--short"]
    for more, warned in (
        (["--factor", "1", "--metastore", "zk1:2181"], True),
        (["--factor", "2", "--metastore", "zk1:2181"], False),
        (["--factor", "1"], False),
        (["--metastore", "zk1:2181"], False),
    ):
        file.unlink(missing_ok=True)
        assert main([*words, *more]) == Exit.OK
        capsys.readouterr()
        assert main(["config", "check", str(file)]) == Exit.OK
        assert ("warning: replication.factor: 1 keeps a single copy" in capsys.readouterr().out) is warned
