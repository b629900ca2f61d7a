"""Lines of keys in a TOML text: key path -> line, which `tomllib` does not give.

A scan of text that `tomllib` has accepted: it finds where keys, strings and brackets begin and end, and parses no
value. Other text gives undefined results.
"""

from __future__ import annotations

import tomllib
from typing import Final, TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]
"""Names of tables and keys, numbers of array elements."""

BARE_END: Final = "#,]}\n"
"""Characters that end a number, date or boolean."""


def line_of_keys(text: str) -> dict[KeyPath, int]:
    """Lines (from 1) by key path; tables have the line of their header or first mention.

    In paths an element of an array has its number, so `[[queues]]`'s second name is ("queues", 1, "name").
    `text` must have parsed with tomllib and use "\\n" line ends.
    """
    return _TomlScan(text).run()


class _TomlScan:
    """One pass; `at` is the position in the text, and lines are counted as it moves."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._counted_to = 0
        self._line = 1
        self._lines: dict[KeyPath, int] = {}
        self._elements: dict[KeyPath, int] = {}
        """Arrays made by [[headers]] -> number of their newest element."""

    def run(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        self._skip_blank()
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip_blank()
        return self._lines

    def _header(self) -> KeyPath:
        is_array = self._text.startswith("[[", self._at)
        line = self._line_here()
        self._at += 2 if is_array else 1
        names = self._key("]")
        self._at += 2 if is_array else 1
        path: KeyPath = ()
        for depth, name in enumerate(names):
            path = (*path, name)
            self._lines.setdefault(path, line)
            if is_array and depth == len(names) - 1:
                self._elements[path] = self._elements.get(path, -1) + 1
            if path in self._elements:
                path = (*path, self._elements[path])
                self._lines.setdefault(path, line)
        return path

    def _pair(self, table: KeyPath) -> None:
        """`key = value`, in a table or an inline table."""
        line = self._line_here()
        path = table
        for name in self._key("="):
            path = (*path, name)
            self._lines.setdefault(path, line)
        self._at += 1
        self._skip_blank()
        self._value(path)

    def _key(self, end: str) -> list[str]:
        """The parts of a dotted key up to `end`, which is not consumed; tomllib decodes the escapes."""
        start = self._at
        while self._text[self._at] != end:
            if self._text[self._at] in "\"'":
                self._string()
            else:
                self._at += 1
        parsed: object = tomllib.loads(f"{self._text[start : self._at].strip()} = 0")
        names = []
        while isinstance(parsed, dict):
            ((name, parsed),) = parsed.items()
            names.append(name)
        return names

    def _value(self, path: KeyPath) -> None:
        opening = self._text[self._at]
        if opening in "\"'":
            self._string()
        elif opening == "[":
            self._array(path)
        elif opening == "{":
            self._inline_table(path)
        else:
            while self._at < len(self._text) and self._text[self._at] not in BARE_END:
                self._at += 1

    def _array(self, path: KeyPath) -> None:
        self._at += 1
        number = 0
        while self._next_item("]"):
            self._lines.setdefault((*path, number), self._line_here())
            self._value((*path, number))
            number += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._at += 1
        while self._next_item("}"):
            self._pair(path)

    def _next_item(self, closing: str) -> bool:
        """Move to the next item of a bracket; False when `closing` came and was consumed."""
        self._skip_blank()
        if self._text[self._at] == ",":
            self._at += 1
            self._skip_blank()
        if self._text[self._at] == closing:
            self._at += 1
            return False
        return True

    def _string(self) -> None:
        quote = self._text[self._at]
        mark = quote * 3 if self._text.startswith(quote * 3, self._at) else quote
        self._at += len(mark)
        while not self._text.startswith(mark, self._at):
            self._at += 2 if quote == '"' and self._text[self._at] == "\\" else 1
        self._at += len(mark)
        if len(mark) == 3:  # up to two quotes may come before the closing three, and belong to the text
            while self._text.startswith(quote, self._at):
                self._at += 1

    def _skip_blank(self) -> None:
        """Spaces, line ends and comments."""
        while self._at < len(self._text):
            if self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif self._text[self._at] in " \t\n":
                self._at += 1
            else:
                return

    def _line_here(self) -> int:
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        return self._line
