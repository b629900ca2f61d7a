"""`isthmus node init` and `isthmus config sample`: config files that are right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.config.loader import load_file
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.main import main


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


def test_a_fault_is_told_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is as in `config check`: line, key, and a valid form."""
    file = tmp_path / "n.toml"
    assert main(["node", "init", str(file), "--name", "a b", "--cluster-name", "east"]) == Exit.USAGE
    assert "node.name" in capsys.readouterr().err
    assert not file.exists()
