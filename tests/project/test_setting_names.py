"""Settings that messages and documents name exist, so `isthmus config check` accepts what a reader copies from them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from isthmus.config.dynamic_options import OPTIONS
from isthmus.config.schema import keys_of, sections_of
from isthmus.config.settings import Settings
from isthmus.node.services.history_series import COLUMNS, SERIES

REPOSITORY: Final = Path(__file__).parents[2]
PACKAGES: Final = ("aae", "config", "node", "queues", "repl", "sink")


def settings_keys() -> set[str]:
    """Every `section.key` of a node's file, and the sections."""
    found: set[str] = set()

    def section(kind: type, path: str) -> None:
        found.update(f"{path}{name}" for name in keys_of(kind))
        for each in sections_of(kind):
            section(each.kind, f"{path}{each.name}.")

    section(Settings, "")
    return found


def _pattern(keys: set[str]) -> re.Pattern[str]:
    """`section.key` of any section but [node]: that is a package, too, and so are its modules' names."""
    sections = "|".join(sorted({key.partition(".")[0] for key in keys if "." in key} - {"node"}))
    return re.compile(rf"(?<![\w./-])((?:{sections})(?:\.[a-z_]+)+)(?![\w(])")


LOGGERS = ("log", "unforeseen")
"""Names of what writes log events: `log.info(...)`, `unforeseen.exception(...)`."""


def _texts(tree: ast.Module) -> tuple[list[tuple[int, str]], set[str]]:
    """(line, text) of what a module may say, without docstrings; and the names of its log events."""
    skipped: set[int] = set()
    events: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            skipped.add(id(node.value))
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            of = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            if isinstance(of, ast.Name) and (of.id in LOGGERS or of is node.func):  # log.info(...), or say = log.info
                of_document = isinstance(of, ast.Name) and of.id == "DocumentEvents"
                named = [*node.args, *(each.value for each in node.keywords)] if of_document else node.args[:1]
                events |= {str(each.value) for each in named if isinstance(each, ast.Constant)}
        if isinstance(node, ast.Assign) and [getattr(each, "id", "") for each in node.targets] == ["event"]:
            # log.info(event)
            events |= {str(n.value) for n in ast.walk(node.value) if isinstance(n, ast.Constant)}
    constants = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return [(each.lineno, str(each.value)) for each in constants if id(each) not in skipped], events


def unknown_names(modules: dict[str, str], documents: dict[str, str]) -> list[str]:
    """Places where a text names something that looks like a setting but is not a setting, an option, a log event, or a
    series of the history."""
    keys = settings_keys()
    pattern, known = _pattern(keys), {*keys, *OPTIONS, *COLUMNS, *SERIES}
    texts: list[tuple[str, str]] = []
    for path, source in modules.items():
        said, events = _texts(ast.parse(source))
        texts += [(f"{path}:{line}", text) for line, text in said]
        known |= events
    for path, text in documents.items():
        running = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        texts += [(path, code) for code in re.findall(r"`([^`\n]+)`", running)]
    methods = {f"fullsync.{act}" for act in ("act", "order", "refresh", "results")}  # what nodes ask of each other
    return [
        f"{where}: {name}"
        for where, text in texts
        for name in pattern.findall(text)
        if name not in known and name not in methods
    ]


def test_every_setting_that_is_named_exists() -> None:
    """This covers messages of all packages and all documents."""
    modules = {
        str(p.relative_to(REPOSITORY)): p.read_text() for name in PACKAGES for p in (REPOSITORY / name).rglob("*.py")
    }
    documents = {p.name: p.read_text() for p in [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]}
    assert unknown_names(modules, documents) == []


def test_a_name_that_no_setting_has_is_found() -> None:
    """In an f-string, in a plain one, and in a document; not in a docstring, as an event, or as an option."""
    source = (
        '"""limits.doc_string"""\nlog.info("sink.started")\nX = f"{1} over limits.object_bytes is"\n'
        'Y = "limits.object_size"\nsay("fullsync.checked", peer=1)\n'
    )
    text = "`replication.min.isr`, `limits.batch_bytes`, `sink.started`, `log.level`"
    found = unknown_names({"m.py": source}, {"d.md": text})
    assert found == ["m.py:3: limits.object_bytes", "d.md: limits.batch_bytes"]
