"""Conventions that no other tool checks: docstrings, places of tests, banned calls, words, links."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

CHECKOUT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("client", "config", "repl", "queues", "aae", "sink", "node")


@cache
def checked_in() -> tuple[Path, ...]:
    """Every file that is or would be checked in, relative to the checkout; without git, all that is not hidden."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:
        found = [Path(line) for line in listed.stdout.splitlines()]
    else:
        found = [path.relative_to(CHECKOUT) for path in CHECKOUT.rglob("*")]
        found = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    return tuple(path for path in sorted(found) if (CHECKOUT / path).is_file())


def modules(*tops: str) -> Iterator[tuple[Path, str]]:
    """Texts of the Python files below the folders `tops`."""
    for path in checked_in():
        if path.suffix == ".py" and path.parts[0] in tops:
            yield path, (CHECKOUT / path).read_text()


def test_every_module_has_a_docstring() -> None:
    """Every module begins with a docstring about its purpose."""
    begins = re.compile(r'(#.*\n|\s)*"""[^"\s]')
    missing = [str(path) for path, text in modules(*PACKAGES, "bench", "tests") if not begins.match(text)]
    assert not missing


def test_a_class_name_has_one_meaning() -> None:
    """A public class name is defined in one module of the product; the client, a distribution of its own, is apart."""
    defined: dict[str, list[str]] = {}
    for path, text in modules(*(package for package in PACKAGES if package != "client")):
        for found in re.finditer(r"^class ([^_\W]\w*)", text, re.MULTILINE):
            defined.setdefault(found[1], []).append(f"{path}:{text.count(chr(10), 0, found.start()) + 1}")
    twice = [f"class {name} is defined in {' and in '.join(places)}" for name, places in defined.items() if places[1:]]
    assert not twice, "\n".join(twice)


def test_every_test_states_its_claim() -> None:
    """Every test function has a docstring, which states what holds while the test passes."""
    missing = []
    for path, text in modules("tests"):
        if path.name.startswith("test_"):
            top = ast.parse(text).body
            inner = (node for outer in top if isinstance(outer, ast.ClassDef) for node in outer.body)
            missing += [
                f"{path}:{node.lineno} {node.name}"
                for node in (*top, *inner)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name.startswith("test_")
                and not ast.get_docstring(node)
            ]
    assert not missing


def test_tests_of_a_module_are_found_by_its_path() -> None:
    """A file of tests/unit is `test_MODULE.py` where the product has MODULE.py, or lies in a folder of that name."""
    lost = []
    for path in checked_in():
        if path.parts[:2] == ("tests", "unit") and path.name.startswith("test_"):
            folder = Path(*path.parts[2:-1])
            own = folder / path.name.removeprefix("test_")
            if not (CHECKOUT / own).is_file() and not (CHECKOUT / folder.parent / f"{folder.name}.py").is_file():
                lost.append(f"{path}: neither {own} nor {folder}.py")
    assert not lost


def test_imports_within_the_checkout_exist() -> None:
    """Every module and name that tests and benchmarks import from the product, or from each other, exists."""
    texts = dict(modules(*PACKAGES, "bench", "tests"))
    first_use: dict[tuple[str, str], str] = {}
    for path, text in texts.items():
        if path.parts[0] in ("bench", "tests"):
            for line, module, name in own_imports(ast.parse(text).body):
                first_use.setdefault((module, name), f"{path}:{line} {module}.{name}")
    missing = [where for (module, name), where in first_use.items() if not is_defined(module, name, texts)]
    assert not missing


def own_imports(statements: Iterable[ast.AST]) -> Iterator[tuple[int, str, str]]:
    """(line, module, name) of what statements, and those within them, import from modules of the checkout."""
    for node in statements:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("isthmus", "bench", "tests"):
            yield from ((node.lineno, str(node.module), alias.name) for alias in node.names)
        for inner in ("body", "orelse", "handlers", "finalbody", "cases"):
            yield from own_imports(getattr(node, inner, ()))


def is_defined(module: str, name: str, texts: Mapping[Path, str]) -> bool:
    """True if the module exists and mentions the name, or the package exists and has a module of that name."""
    parts = module.removeprefix("isthmus.").split(".")
    found = texts.get(Path(*parts).with_suffix(".py")) or texts.get(Path(*parts, "__init__.py"), "")
    submodule = Path(*parts, name)
    return bool(re.search(rf"\b{name}\b", found)) or submodule.with_suffix(".py") in texts or submodule in folders()


@cache
def folders() -> frozenset[Path]:
    """All folders of the checkout."""
    return frozenset(parent for path in checked_in() for parent in path.parents)


def test_no_bytes_become_code() -> None:
    """No import or call anywhere unpickles, evaluates or executes received data."""
    found = []
    banned = re.compile(rf"\b({'|'.join(BANNED)})\b")
    for path, text in modules(*PACKAGES, "bench", "tests"):
        for node in ast.walk(ast.parse(text)) if banned.search(text) else ():
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
    """No file of the project has a marker for unfinished work, and none names a path of one machine."""
    words = "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3])
    wrong = re.compile(rf"\b({words})\b|(?<![\w.-])/(root|home/\w+|work|Users/\w+)/")
    found = []
    for path in (each for each in checked_in() if "vendor" not in each.parts):
        try:
            text = (CHECKOUT / path).read_text()
        except UnicodeDecodeError:  # a picture, say
            continue
        if path != Path(__file__).relative_to(CHECKOUT) and wrong.search(text):
            lines = enumerate(text.splitlines(), 1)
            found += [f"{path}:{number}: {line.strip()[:100]}" for number, line in lines if wrong.search(line)]
    assert not found


RULE: Final = re.compile(r"\b(?:R-[A-Z][A-Z-]*[A-Z]|I-[A-Z][A-Z-]*[A-Z]|H\d+)\b")
"""The name of a rule, a hazard or an invariant."""


def test_rules_that_are_cited_are_on_the_page_of_the_protocol() -> None:
    """docs/protocol.md states every rule, or family of rules such as I-AAE, that code, tests and docs name."""
    page = Path("docs/protocol.md")
    known = set(RULE.findall((CHECKOUT / page).read_text()))
    known |= {name.rsplit("-", cut)[0] for name in known for cut in range(1, name.count("-"))}
    unknown = [
        f"{path}:{number}: {name}"
        for path in checked_in()
        if path.suffix in {".py", ".md", ".toml"} and path != page
        for number, line in enumerate((CHECKOUT / path).read_text().splitlines(), 1)
        for name in RULE.findall(line)
        if name not in known
    ]
    assert not unknown


def test_every_rule_of_the_page_of_the_protocol_is_named_by_a_test() -> None:
    """Each rule, hazard and invariant of docs/protocol.md is named in a file of tests/, so that searching for its name
    finds what shows it."""
    named = {name for _, text in modules("tests") for name in RULE.findall(text)}
    assert sorted(set(RULE.findall((CHECKOUT / "docs/protocol.md").read_text())) - named) == []


def test_scripts_can_be_run() -> None:
    """Files of .ci are executable and name their interpreter."""
    scripts = [path for path in checked_in() if path.parts[0] == ".ci"]
    for path in scripts:
        assert (CHECKOUT / path).stat().st_mode & 0o100, path
        assert (CHECKOUT / path).read_text().startswith("#!"), path


def test_the_lock_is_exact_and_names_no_host() -> None:
    """Every line of the lock pins one version, once, and no place to fetch it from; some are for some Pythons only."""
    lines = [line for line in (CHECKOUT / "requirements.lock").read_text().splitlines() if line and line[0] != "#"]
    assert all(re.fullmatch(r'[a-z0-9-]+==[0-9][0-9a-z.]*(; python_version (<|>=) "3\.\d+")?', line) for line in lines)
    names = [line.partition("==")[0] for line in lines]
    assert len(set(names)) == len(names)


def test_the_lock_pins_all_that_the_project_asks_for() -> None:
    """The lock pins every dependency of pyproject.toml, also those of extras and groups, to a version within its
    range."""
    import tomllib

    from packaging.requirements import Requirement

    wanted_by = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    lines = (CHECKOUT / "requirements.lock").read_text().splitlines()
    pinned = dict(line.partition(";")[0].split("==") for line in lines if "==" in line)
    extras, groups = wanted_by["project"]["optional-dependencies"], wanted_by["dependency-groups"]
    for text in (*wanted_by["project"]["dependencies"], *chain(*extras.values(), *groups.values())):
        wanted = Requirement(text)
        if wanted.name != "isthmus":
            assert wanted.specifier.contains(pinned[wanted.name.lower()]), text


@pytest.mark.parametrize(
    "name", ["README.md", *(str(path) for path in checked_in() if path.parts[0] == "docs" and path.suffix == ".md")]
)
def test_documents_point_at_files_that_exist(name: str) -> None:
    """Links between documents, and to files of the checkout, lead somewhere."""
    document = CHECKOUT / name
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
    reserved = re.compile(rf"\b({'|'.join(RESERVED_FIELDS)})\b")
    found = [
        f"{path}:{line} {name}"
        for path, text in modules(*PACKAGES)
        if re.search(r"\blog\b", text) and reserved.search(text)
        for line, name in logs_reserved_fields(ast.parse(text))
    ]
    assert not found
