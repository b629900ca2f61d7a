"""Values as a TOML document, for config files that a program makes (the standard library only reads TOML).

What was read with `tomllib` comes back equal. `node.local.topology` makes nodes' files with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from isthmus.config.text import toml_text


def toml_document(values: Mapping[str, Any]) -> str:
    """TOML of tables, lists and plain values; empty tables are left out."""
    return "\n".join(_lines(values, ())).strip("\n") + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, dict) or _is_tables(value)}
    for key, value in table.items():
        if key not in inner:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in inner.items():
        here = (*path, _key(key))
        for element in value if isinstance(value, list) else [value]:
            lines = list(_lines(element, here))
            if isinstance(value, list):
                yield f"\n[[{'.'.join(here)}]]"
            elif lines and not lines[0].startswith("\n"):  # a table of tables needs no header
                yield f"\n[{'.'.join(here)}]"
            yield from lines


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(element, dict) for element in value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key, re.ASCII) else toml_text(key)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return toml_text(value)
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            return "{" + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
        case _:
            return str(value)
