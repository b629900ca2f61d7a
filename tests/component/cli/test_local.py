"""`isthmus local sample`: topologies for users without a checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.node.cli.local import SAMPLES, TOPOLOGIES
from isthmus.node.cli.main import main
from isthmus.node.local.topology import load_topology


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_each_topology_is_printed_as_its_file_and_can_be_started(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed text is a topology without faults."""
    assert main(["local", "sample", name]) == 0
    printed = capsys.readouterr().out
    assert printed == (SAMPLES / f"{name}.toml").read_text()
    (tmp_path / "topology.toml").write_text(printed)
    assert set(load_topology(tmp_path / "topology.toml").clusters) == {"east", "west"}


def test_no_topology_is_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    """Each file of the samples except the node's has a name; an unknown name is answered with the known ones."""
    assert {path.stem for path in SAMPLES.glob("*.toml")} == {*TOPOLOGIES, "node"}
    assert main(["local", "sample", "three"]) == 2
    err = capsys.readouterr().err
    assert all(name in err for name in TOPOLOGIES)
