"""Rules of the house that no other tool checks: docstrings of modules and tests, banned calls, words, links."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.xdist_group("conventions")
"""In one process: parsing all files takes longer than all checks of them."""

HOUSE: Final = Path(__file__).parents[2]
ROOMS: Final = ("config", "repl", "queues", "aae", "sink", "node")


@cache
def files_of_the_house() -> tuple[Path, ...]:
    """Every file that is or would be checked in, relative to the checkout; without git, all that is not hidden."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=HOUSE, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:
        found = [Path(line) for line in listed.stdout.splitlines()]
    else:
        found = [path.relative_to(HOUSE) for path in HOUSE.rglob("*")]
        found = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    return tuple(path for path in sorted(found) if (HOUSE / path).is_file())


def modules(*tops: str) -> Iterator[tuple[Path, ast.Module]]:
    """Parsed Python files below the folders `tops`."""
    for path in files_of_the_house():
        if path.suffix == ".py" and path.parts[0] in tops:
            yield path, parsed(path)


@cache
def parsed(path: Path) -> ast.Module:
    """A Python file of the checkout, parsed once for all checks."""
    return ast.parse((HOUSE / path).read_text(), str(path))


def test_every_module_has_a_sign_on_its_door() -> None:
    """Every module says in its first lines what it is for."""
    missing = [str(path) for path, module in modules(*ROOMS, "bench", "tests") if not ast.get_docstring(module)]
    assert not missing


def test_every_test_states_its_claim() -> None:
    """Every test function has a docstring: what holds as long as it passes."""
    missing = [
        f"{path}:{node.lineno} {node.name}"
        for path, module in modules("tests")
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert not missing


def test_no_bytes_become_code() -> None:
    """Nothing unpickles, evaluates or runs what it was sent: no such import or call anywhere."""
    found = []
    for path, module in modules(*ROOMS, "bench", "tests"):
        for node in ast.walk(module):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names = [node.func.id]
            found += [f"{path}:{name}" for name in names if name.split(".")[0] in BANNED]
    assert not found


BANNED: Final = ("pickle", "cPickle", "_pickle", "dill", "shelve", "marshal", "eval", "exec")


def test_nothing_is_left_to_do() -> None:
    """No file says that something is still to be done, and none names a place on one machine."""
    words = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3]) + r")\b")
    places = re.compile(r"(?<![\w.-])/(root|home/\w+|work|Users/\w+)/")
    found = []
    for path in files_of_the_house():
        try:
            text = (HOUSE / path).read_text()
        except UnicodeDecodeError:  # a picture, say
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if path != Path(__file__).relative_to(HOUSE) and (words.search(line) or places.search(line)):
                found.append(f"{path}:{number}: {line.strip()[:100]}")
    assert not found


def test_scripts_can_be_run() -> None:
    """Files of .ci are executable and say by what they are run."""
    scripts = [path for path in files_of_the_house() if path.parts[0] == ".ci"]
    for path in scripts:
        assert (HOUSE / path).stat().st_mode & 0o100, path
        assert (HOUSE / path).read_text().startswith("#!"), path


def test_the_lock_is_exact_and_names_no_host() -> None:
    """Every line of the lock pins one version, once, and no place to fetch it from."""
    lines = [line for line in (HOUSE / "requirements.lock").read_text().splitlines() if line and line[0] != "#"]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line) for line in lines)
    names = [line.partition("==")[0] for line in lines]
    assert len(set(names)) == len(names)


def test_the_lock_pins_all_that_the_project_asks_for() -> None:
    """What pyproject.toml depends on is in the lock, within the range that it asks for."""
    import tomllib

    from packaging.requirements import Requirement

    project = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]
    lines = (HOUSE / "requirements.lock").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    for text in project["dependencies"]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(pinned[wanted.name.lower()]), text


@pytest.mark.parametrize(
    "name", ["README.md", *(str(path) for path in files_of_the_house() if path.parts[0] == "docs")]
)
def test_documents_point_at_files_that_exist(name: str) -> None:
    """Links between documents, and to files of the house, lead somewhere."""
    document = HOUSE / name
    text = document.read_text() if document.exists() else ""
    for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
        assert (document.parent / target).exists(), target


RESERVED_FIELDS: Final = frozenset({"event", "exception", "level", "logger", "node", "timestamp"})
"""Fields of a log line that `node.observability.logs` sets: an event that passes one loses its value, or gives the line
another level."""


def logs_reserved_fields(module: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of reserved fields that are passed to `log`, to a method of it, or to a name of such a method, also
    in a dict that is unpacked in the call."""

    def is_logger(found: ast.expr) -> bool:
        parts = list(ast.walk(found))
        return not any(isinstance(part, ast.Call) for part in parts) and any(
            isinstance(part, ast.Name) and part.id in loggers for part in parts
        )

    loggers = {"log"}
    for node in ast.walk(module):
        if isinstance(node, ast.Assign) and is_logger(node.value):
            loggers |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and is_logger(node.func):
            names: list[object] = [keyword.arg for keyword in node.keywords]
            for keyword in node.keywords:
                if keyword.arg is None:
                    dicts = (part for part in ast.walk(keyword.value) if isinstance(part, ast.Dict))
                    names += [key.value for part in dicts for key in part.keys if isinstance(key, ast.Constant)]
            yield from ((node.lineno, str(name)) for name in names if name in RESERVED_FIELDS)


def test_no_event_overwrites_a_field_that_every_log_line_has() -> None:
    """No log call passes a field that the processors set; the check sees calls, conditional methods, names of methods
    and unpacked dicts."""
    sample = (
        "log.info('a', level=1)\n(log.info if x else log.error)('b', node=n)\nsay = log.error if x else log.info\n"
        "say('c', **{'event': 1})\nlog.bind(timestamp=1)\nlog.info('d', peer=n)\nother(level=1)\n"
    )
    assert list(logs_reserved_fields(ast.parse(sample))) == [(1, "level"), (2, "node"), (4, "event"), (5, "timestamp")]
    found = [f"{path}:{line} {name}" for path, module in modules(*ROOMS) for line, name in logs_reserved_fields(module)]
    assert not found
