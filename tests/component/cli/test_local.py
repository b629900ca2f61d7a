"""`isthmus local sample`: topologies for users without a checkout; `local status` on a terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from isthmus.node.cli import local
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


def process(name: str, **changed: Any) -> dict[str, Any]:
    """A process of the directory that runs."""
    about = {"name": name, "pid": 1_234_567, "state": "running", "restarts": 0, "reason": "", "last_words": ""}
    return {**about, **changed}


def test_the_status_of_local_clusters_fits_80_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process has a line, unless one has a reason to tell; `-o wide` has all columns."""
    nodes = [
        process(
            f"east-{number}", http=f"http://127.0.0.1:{18_098 + 10 * number}",
            admin=f"http://127.0.0.1:{18_099 + 10 * number}", online="12 of 12 online",
        )
        for number in range(3)
    ]  # fmt: skip
    found = {
        "clusters": {"east": {"nodes": nodes, "zookeepers": [process("zookeeper-east", address="127.0.0.1:18097")]}}
    }
    monkeypatch.setattr(local.local_directory, "status_of", lambda _directory: found)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback=(80, 24): os.terminal_size((80, 24)))
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["local", "status", "--dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert max(map(len, lines)) <= 80
    assert all(" 12 of 12 " in line for line in lines[1:4])
    assert "-o wide has more" in lines[-1]
    nodes[0] |= {"online": "0 of 12 online, not ready: 12 partitions are not served"}
    nodes[1] |= {"state": "stopped", "restarts": 3, "online": None, "pid": None,
                 "reason": "ended with code 5", "last_words": "another process has the port"}  # fmt: skip
    assert main(["local", "status", "--dir", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "ended with code 5" in shown
    assert main(["local", "status", "--dir", str(tmp_path), "-o", "wide"]) == 1
    wide = capsys.readouterr().out
    assert "RESTARTS" in wide
    assert "http://127.0.0.1:18099" in wide
