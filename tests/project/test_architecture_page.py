"""Every `file.py:name` that docs/architecture.md shows is defined in that file, and its table has every package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).parents[2]
PAGE: Final = CHECKOUT / "docs" / "architecture.md"
PLACE: Final = re.compile(r"`([\w/]+\.py)(?::([\w.]+))?`")
CONTENTS: Final = re.compile(r"\| package \| contents \|\n(?:\|.*\n)+")
DIVIDED: Final = ("aae", "node", "repl")
"""Packages whose parts have a row each, those of `repl` also where they are single modules."""


def defined(file: Path) -> set[str]:
    """Names of a module's functions, classes, constants and of the functions of its classes: `name`, `Class.name`."""
    found: set[str] = set()

    def take(body: Iterable[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    found.add(prefix + name)
                case ast.ClassDef(name=name, body=inner):
                    found.add(prefix + name)
                    take(inner, f"{prefix}{name}.")
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(prefix + name)

    take(ast.parse(file.read_text()).body, "")
    return found


def missing_places(text: str, checkout: Path) -> list[str]:
    """Paths and names in a page's text that the checkout does not have."""
    missing = []
    for path, name in PLACE.findall(text):
        file = checkout / path
        if not file.is_file() or (name and name not in defined(file)):
            missing.append(f"{path}:{name}" if name else path)
    return missing


def test_the_architecture_page_names_what_exists() -> None:
    """Each `file.py` and `file.py:name` of the page is a file, and a definition in it; and there are many."""
    text = PAGE.read_text()
    assert missing_places(text, CHECKOUT) == []
    assert len(PLACE.findall(text)) > 60


def test_the_table_of_packages_has_each_of_them() -> None:
    """A package of `aae`, `node` and `repl`, and a module beside the packages of `repl`, has a row."""
    table = CONTENTS.search(PAGE.read_text())
    assert table is not None
    rows = {name for row in table[0].splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    packages = {f"{name}/{init.parent.name}" for name in DIVIDED for init in (CHECKOUT / name).glob("*/__init__.py")}
    modules = {f"repl/{module.name}" for module in (CHECKOUT / "repl").glob("*.py")} - {"repl/__init__.py"}
    assert sorted((packages | modules) - rows) == []


def test_a_place_that_is_gone_is_found(tmp_path: Path) -> None:
    """A file, a function, and a method that are not there are each named."""
    (tmp_path / "a.py").write_text("class C:\n    async def f(self) -> None: ...\n\nX = 1\n")
    text = "`a.py:C.f` `a.py:X` `a.py` `b.py` `a.py:g` `a.py:C.g`"
    assert missing_places(text, tmp_path) == ["b.py", "a.py:g", "a.py:C.g"]
