"""The script that creates the virtual environment: which Python it selects, and its message if there is none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).parents[2]
TOOLS: Final = ("cat", "cksum", "dirname", "sed", "rm", "tail", "cp", "grep", "sh")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with only what the script reads."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "venv", tmp_path / ".ci" / "venv")
    (tmp_path / "requirements.lock").write_text("# Build tools\nno-such-package==1\n")
    (tmp_path / "pyproject.toml").write_text("")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    return tmp_path


def made_of(checkout: Path) -> str:
    """The Python behind the environment that a run has made."""
    found = re.search(r"^executable = (.*)$", (checkout / ".venv" / "pyvenv.cfg").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def whole_python() -> str:
    """A Python that can create environments without another one: this one, or the one whose pip this one uses, which is
    on PATH or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.1[123]*/bin/python")
    named = filter(None, map(shutil.which, ("python3.11", "python3.12", "python3.13", "python3", "python")))
    for python in (sys.executable, *named, *map(str, pyenv)):
        asked = "import ensurepip, sys; print(sys._base_executable); assert (3, 11) <= sys.version_info[:2] <= (3, 13)"
        said = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False, timeout=20)
        if said.returncode == 0:
            return said.stdout.strip()  # the interpreter that the shim starts: without its home the shim does not work
    raise AssertionError("no Python here has its venv package: of what was this environment made?")


def program(path: Path, text: str) -> Path:
    """An executable script."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def run(checkout: Path, *folders: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a PATH of these folders and the plain tools."""
    path = os.pathsep.join(str(folder) for folder in (*folders, checkout / "tools"))
    return subprocess.run(
        [str(checkout / ".ci" / "venv")],
        env={"PATH": path, "HOME": str(checkout), **environ},
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )


def test_no_python_at_all_is_one_sentence(checkout: Path) -> None:
    """Without any Python, the script fails with one line that names the accepted versions."""
    done = run(checkout)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("make venv: no Python 3.11, 3.12 or 3.13 that works")


def test_shims_and_other_versions_are_passed_over(checkout: Path) -> None:
    """A shim that only errors, and a Python of another version, are not taken for one that works."""
    program(checkout / "shims" / "python3.11", "echo 'the command exists in these versions: 3.12.1' >&2; exit 127")
    program(checkout / "shims" / "python3", "exit 1")
    done = run(checkout, checkout / "shims")
    assert done.returncode == 1
    assert done.stderr.startswith("make venv: no Python 3.11, 3.12 or 3.13 that works")


def test_a_python_without_venv_is_named(checkout: Path) -> None:
    """If only the venv module is missing, the message names that Python and the package to install."""
    program(checkout / "bin" / "python3.11", "echo 'lacks venv'; exit 1")
    done = run(checkout, checkout / "bin")
    assert done.returncode == 1
    python = checkout / "bin" / "python3.11"
    assert (
        done.stderr == f"make venv: {python} lacks the venv module; install it (Debian: apt-get install python3-venv)\n"
    )


def test_an_unusable_python_named_by_the_user_is_reported(checkout: Path) -> None:
    """If PYTHON is set and unusable, the script fails; it does not search for another one."""
    (checkout / "bin").mkdir()
    (checkout / "bin" / "python3.11").symlink_to(sys.executable)
    other = program(checkout / "other" / "python", "exit 1")
    done = run(checkout, checkout / "bin", PYTHON=str(other))
    assert done.returncode == 1
    assert done.stderr == f"make venv: PYTHON={other} is not a Python 3.11, 3.12 or 3.13 that works\n"


def of_speed(path: Path, micros: int, version: str = "3.11", *, has_pip: bool = True) -> Path:
    """A program that behaves like a Python of this speed, and cannot create environments."""
    return program(
        path,
        f"""case "$2" in
*perf_counter*) echo {micros} ;;
*ensurepip*pathlib*) exit 1 ;;
*ensurepip*) echo "$0 {version}"; exit {0 if has_pip else 3} ;;
*platform*) echo {version}.9 ;;
*) exit 1 ;;
esac""",
    )


@pytest.mark.parametrize(
    ("micros", "taken"),
    [((5000, 3000), 1), ((5000, 4800), 0), ((3000, 5000), 0)],
    ids=["the second is quicker", "hardly", "the first is quicker"],
)
def test_of_two_of_one_version_the_quicker_is_taken(checkout: Path, micros: tuple[int, int], taken: int) -> None:
    """The first on PATH stays unless another one takes a tenth less; one of another version is not asked."""
    folders = [checkout / "first", checkout / "second", checkout / "third"]
    pythons = [of_speed(folder / "python3.11", us) for folder, us in zip(folders, micros, strict=False)]
    of_speed(folders[2] / "python3.12", 1000, "3.12")
    done = run(checkout, *folders)
    assert done.stdout == f"setting up .venv with Python 3.11.9 ({pythons[taken]}); later runs skip this\n"
    assert done.stderr == f"make venv: Python 3.11.9 could not make an environment in {checkout}/.venv\n"


def test_a_quicker_python_without_pip_is_given_that_of_another(checkout: Path) -> None:
    """A faster Python that has no pip of its own is used with another one's pip; if that fails, the other one is used.
    If there is no other one, the message names the missing module."""
    bare = of_speed(checkout / "bare" / "python3.11", 2000, has_pip=False)
    whole = of_speed(checkout / "whole" / "python3.11", 4000)
    done = run(checkout, checkout / "bare", checkout / "whole")
    assert done.stdout.splitlines() == [
        f"setting up .venv with Python 3.11.9 ({bare}); later runs skip this",
        f"  (it lacks its venv package, so {whole} is taken, which is slower)",
    ]
    alone = run(checkout, checkout / "bare")
    assert (
        alone.stderr == f"make venv: {bare} lacks the venv module; install it (Debian: apt-get install python3-venv)\n"
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_environment_is_made_again_only_when_it_must(checkout: Path) -> None:
    """A second run does nothing; a changed lock installs into the same environment; a moved checkout gets a new one."""
    (checkout / "requirements.lock").write_text("# Build tools\n")
    (checkout / "pyproject.toml").write_text(PROJECT)
    (checkout / "backend.py").write_text(BACKEND)
    first = run(checkout, PYTHON=whole_python())
    assert first.returncode == 0, first.stderr
    python = made_of(checkout)
    mark = checkout / ".venv" / "mark"
    mark.touch()
    again = run(checkout)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    (checkout / "requirements.lock").write_text("# Build tools\n# changed\n")
    changed = run(checkout)  # no Python is named or on PATH: the environment's own stays
    assert (changed.returncode, changed.stderr) == (0, "")
    assert changed.stdout.startswith("setting up")
    assert (made_of(checkout), mark.exists()) == (python, True)
    moved = checkout.rename(checkout.with_name("moved"))
    assert run(moved, PYTHON=whole_python()).returncode == 0
    assert not (moved / ".venv" / "mark").exists()


PROJECT: Final = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "x"
version = "1"
"""

BACKEND: Final = """
import zipfile

def build_editable(folder, settings=None, metadata=None):
    name = "x-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        wheel.writestr("x-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: x\\nVersion: 1\\n")
        wheel.writestr("x-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("x-1.dist-info/RECORD", "")
    return name
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_failed_step_shows_the_end_of_its_log_and_is_tried_again(checkout: Path) -> None:
    """If a package cannot be installed the script ends with pip's own message, and nothing counts as installed."""
    shim = checkout / "shims"
    program(shim / "python3.11", "exit 127")
    program(shim / "python3.12", f'exec "{whole_python()}" "$@"')
    for _ in range(2):
        done = run(checkout, shim, PIP_NO_INDEX="1")
        assert done.returncode == 1
        assert "no-such-package" in done.stderr
        assert "this step failed; the whole log is" in done.stderr
        assert done.stdout.startswith("setting up .venv with Python 3.1")
    assert not (checkout / ".venv" / ".installed").exists()
