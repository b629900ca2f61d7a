"""Errors about full-sync in topology files that a node's own config file could not show."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.config.loader import ConfigError
from isthmus.node.local.topology import load_topology

TWO = """\
[clusters.east]
{0}
[[clusters.east.nodes]]
name = "a"
[[clusters.east.queues]]
name = "q"
{1}
[clusters.west]
[[clusters.west.nodes]]
name = "b"
"""


def faults(folder: Path, section: str = "", tables: str = "") -> list[str]:
    """The faults of two clusters of one node, with these lines in one of them."""
    file = folder / "t.toml"
    file.write_text(TWO.format(section, tables))
    try:
        load_topology(file)
    except ConfigError as error:
        return [f"{fault.path}: {fault.message}" for fault in error.faults]
    return []


@pytest.mark.parametrize("value", ["3", "1.5", "2026-01-01", "true", '"west"', "{}", "[3]", "[[]]"])
def test_a_full_sync_that_is_no_table_is_a_fault(tmp_path: Path, value: str) -> None:
    """Any other value is a fault at its key, without a traceback."""
    (fault,) = faults(tmp_path, f"fullsync = {value}")
    assert fault.startswith("clusters.east.fullsync")


@pytest.mark.parametrize("value", ["3", "[]", "true"])
def test_a_cluster_that_is_no_name_is_a_fault(tmp_path: Path, value: str) -> None:
    """A list, for example, cannot be looked up; it is a fault at its key."""
    found = faults(tmp_path, tables=f'[[clusters.east.fullsync]]\nqueue = "q"\ncluster = {value}')
    assert any(fault.startswith("clusters.east.fullsync[0].cluster: ") for fault in found)


def test_a_full_sync_with_no_cluster_of_the_file_is_reported_what_is_wrong(tmp_path: Path) -> None:
    """The fault is a mistyped name, not a missing name and URLs, which clusters of the same file do not need; a cluster
    elsewhere needs both. A cluster may not be compared with itself."""
    table = '[[clusters.east.fullsync]]\nqueue = "q"\ncluster = "{0}"\n'
    (fault,) = faults(tmp_path, tables=table.format("wset"))
    assert fault.startswith('clusters.east.fullsync[0]: no such cluster of this file: "wset"; did you mean "west"?')
    (fault,) = faults(tmp_path, tables=table.format("east"))
    assert fault == "clusters.east.fullsync[0]: a cluster is not compared with itself; name another one"
    assert not faults(tmp_path, tables=table.format("west"))
    assert not faults(tmp_path, tables=table.format("north") + 'name = "north"\nurls = "http://127.0.0.1:18198"')
