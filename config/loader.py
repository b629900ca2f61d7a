"""Reads a node's TOML file into `Settings`, and reports all faults at once, each with key path, line, and what would be
right.

The only place that reads a config file. The keys and their forms come from the dataclasses (`config.schema`), the rules
between them from `config.relations`, the lines from `config.toml_lines`.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus.config import relations
from isthmus.config.forms import PathForm
from isthmus.config.schema import DEFAULT, Section, SettingDefinition, keys_of, sections_of, settings_of
from isthmus.config.settings import Settings
from isthmus.config.text import shown, similar
from isthmus.config.toml_lines import KeyPath, line_of_keys

FILE_BYTES_MAX: Final = 1_000_000
"""A config file has some hundred lines; a larger file was named by mistake."""

KEYS_NAMED_MAX: Final = 10
"""Keys of a section that a message names beside a guess."""


class Fault(NamedTuple):
    """One fault: key path ("sink.peers[1].url", "" for the file itself), line (0: none), sentence."""

    path: str
    line: int
    message: str


class ConfigError(Exception):
    """A config file cannot be used. `faults` has all of its faults, in the order of lines."""

    def __init__(self, file: str, faults: list[Fault]) -> None:
        assert faults
        self.file = file
        self.faults = faults
        super().__init__("\n".join(self.sentences()))

    def sentences(self) -> list[str]:
        """One line for each fault: FILE:LINE: KEY PATH: MESSAGE."""
        return [
            f"{self.file}:{fault.line}: " * (fault.line > 0)
            + f"{self.file}: " * (fault.line == 0)
            + f"{fault.path}: " * bool(fault.path)
            + fault.message
            for fault in self.faults
        ]


class EffectiveSetting(NamedTuple):
    """One value in force: key path, value as a file would have it, "FILE:LINE" or "default"."""

    path: str
    text: str
    origin: str


def load_file(path: Path) -> Settings:
    """The settings of a file. Raises ConfigError, also when the file cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except IsADirectoryError:
        raise _file_fault(path, "is a directory; name the config file in it") from None
    except FileNotFoundError:
        raise _file_fault(path, "does not exist") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _file_fault(path, f"cannot be read: {reason}") from error
    if len(raw) > FILE_BYTES_MAX:
        raise _file_fault(path, f"has more than {FILE_BYTES_MAX} bytes, too many for a config file")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        fault = Fault("", line, f"byte {error.start} is not UTF-8; save the file as UTF-8")
        raise ConfigError(str(path), [fault]) from None
    return load_text(text, path)


def load_text(text: str, path: Path) -> Settings:
    """The settings of a text. `path` names it in origins and faults; relative paths begin at its folder."""
    text = text.replace("\r\n", "\n")
    try:
        values = tomllib.loads(text)
        lines = line_of_keys(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(path), [syntax_fault(text, str(error))]) from None
    except RecursionError:
        raise _file_fault(path, "is nested too deeply to be a config file") from None
    except ValueError:  # the only other one: Python refuses whole numbers of more than 4,300 digits
        raise _file_fault(path, "holds a number of thousands of digits") from None
    reader = _SettingsReader(path, lines)
    settings: Settings = reader.table(Settings, values, (), "")
    settings = dataclasses.replace(settings, origins=reader.origins)
    for broken in chain(*(rules(settings) for rules in relations.RULES)):
        reader.relation(broken)
    if reader.faults:
        raise ConfigError(str(path), sorted(reader.faults, key=lambda fault: (fault.line, fault.path)))
    return settings


def effective(settings: Settings) -> list[EffectiveSetting]:
    """Every value in force with its origin, in the order of the sections; an empty list is shown as []."""
    rows: list[EffectiveSetting] = []
    _collect(settings, "", settings.origins, rows)
    return rows


def _collect(section: Any, dotted: str, origins: dict[str, str], rows: list[EffectiveSetting]) -> None:
    kind: type = type(section)
    for key in keys_of(kind).values():
        path = _joined(dotted, key.name)
        value = getattr(section, key.field)
        if isinstance(key, SettingDefinition):
            rows.append(EffectiveSetting(path, key.form.text(value), origins.get(path, DEFAULT)))
        elif not key.many:
            _collect(value, path, origins, rows)
        else:
            if not value:
                rows.append(EffectiveSetting(path, "[]", origins.get(path, DEFAULT)))
            for number, element in enumerate(value):
                _collect(element, f"{path}[{number}]", origins, rows)


class _SettingsReader:
    """Walks the parsed TOML along the dataclasses; collects origins and faults, and goes on after each fault.

    A wrong or missing value is replaced by its default, or by an empty text where it has none, so that the rest can be
    checked; with a fault `load_text` returns no settings.
    """

    def __init__(self, path: Path, lines: dict[KeyPath, int]) -> None:
        self._path = path
        self._lines = lines
        self.faults: list[Fault] = []
        self.origins: dict[str, str] = {}

    def table(self, section: type, values: dict[str, Any], where: KeyPath, dotted: str) -> Any:
        """An instance of the dataclass `section`."""
        keys = keys_of(section)
        for name in values:
            if name not in keys:
                self._fault((*where, name), _joined(dotted, name), _unknown(section, name, values[name]))
        fields = {}
        for key in keys.values():
            here, path = (*where, key.name), _joined(dotted, key.name)
            if key.name not in values:
                fields[key.field] = self._missing(key, here, path)
                continue
            value = values[key.name]
            if isinstance(key, SettingDefinition):
                fields[key.field] = self._value(key, value, here, path)
            elif key.many:
                fields[key.field] = self._inner_tables(key, value, here, path)
            else:
                fields[key.field] = self._inner_table(key, value, here, path)
        return section(**fields)

    def relation(self, broken: relations.RelationViolation) -> None:
        """Report a broken relation at the first of its keys that is set, unless one of its values has a fault."""
        if any(
            path == fault.path or path.startswith(f"{fault.path}.") for path in broken.paths for fault in self.faults
        ):
            return
        path = next((path for path in broken.paths if path in self.origins), broken.paths[0])
        line = int(self.origins[path].rpartition(":")[2]) if path in self.origins else 0
        self.faults.append(Fault(path, line, broken.message))

    def _inner_table(self, section: Section, value: Any, where: KeyPath, path: str) -> Any:
        if isinstance(value, dict):
            return self.table(section.kind, value, where, path)
        self._fault(where, path, f"{section.name} is a section; write [{path}] and its keys below")
        return _placeholder_section(section)

    def _inner_tables(self, section: Section, value: Any, where: KeyPath, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            message = f"{section.name} is a list; write [[{path}]], in double brackets, before each of them"
            self._fault(where, path, message)
            return ()
        self.origins[path] = self._origin(where)
        elements = []
        for number, element in enumerate(value):
            if isinstance(element, dict):
                elements.append(self.table(section.kind, element, (*where, number), f"{path}[{number}]"))
            else:
                message = f"not a table; write [[{path}]] and its keys below"
                self._fault((*where, number), f"{path}[{number}]", message)
                elements.append(_placeholder_section(section))
        return tuple(elements)

    def _missing(self, key: SettingDefinition | Section, where: KeyPath, path: str) -> Any:
        if not key.required:
            return key.default
        if isinstance(key, Section):
            needed = ", ".join(inner.name for inner in keys_of(key.kind).values() if inner.required)
            self._fault(where, path, f"section [{path}] is missing; it must set {needed}")
            return _placeholder_section(key)
        self._fault(where, path, f"missing; this key has no default ({key.form.allowed})")
        return _placeholder(key)

    def _value(self, key: SettingDefinition, value: Any, where: KeyPath, path: str) -> Any:
        try:
            result = key.form.parse(value)
        except ValueError as error:
            self._fault(where, path, str(error))
            return _placeholder(key)
        self.origins[path] = self._origin(where)
        return (self._path.parent / result).absolute() if isinstance(result, Path) else result

    def _fault(self, where: KeyPath, path: str, message: str) -> None:
        self.faults.append(Fault(path, self._line(where), message))

    def _line(self, where: KeyPath) -> int:
        """Line of the key, or of the nearest table around it; 1 for a missing top-level key."""
        while where and where not in self._lines:
            where = where[:-1]
        return self._lines.get(where, 1)

    def _origin(self, where: KeyPath) -> str:
        return f"{self._path}:{self._line(where)}"


def _placeholder(key: SettingDefinition) -> Any:
    if not key.required:
        return key.default
    return Path() if isinstance(key.form, PathForm) else ""


def _placeholder_section(section: Section) -> Any:
    values = {key.field: _placeholder(key) for key in settings_of(section.kind).values()}
    return section.kind(**values, **{inner.field: inner.default for inner in sections_of(section.kind)})


def _unknown(section: type, name: str, value: Any) -> str:
    """Message for an unknown key, with the best guess."""
    keys = keys_of(section)
    noun = "section" if section is Settings and isinstance(value, dict | list) else "key"
    for key in settings_of(section).values():
        if key.field == name:
            whole = type(value) is int and 0 <= value < 1 << 63
            example = key.form.text(value if whole else key.default)
            return f"unknown key; in a file the unit is part of the value: {key.name} = {example}"
    close = similar(name, keys)
    if close:
        return f'unknown {noun}; did you mean "{close[0]}"?'
    for other in sections_of(Settings):
        if other.kind is not section and name in keys_of(other.kind):
            brackets = f"[[{other.name}]]" if other.many else f"[{other.name}]"
            few = f"; known here: {', '.join(keys)}" if len(keys) <= KEYS_NAMED_MAX else ""
            return f"unknown here; there is such a key in {brackets}{few}"
    return f"unknown {noun}; known here: {', '.join(keys)}"


_AT_POSITION = re.compile(r"(?P<what>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)")


_TWICE = re.compile(r"Cannot (?:declare|mutate immutable namespace|redefine namespace) (?P<keys>\(.*\))(?: twice)?")
_SECTION_AGAIN = "section [{0}] is there twice, or also as [[{0}]]; write it once, with all of its keys"

_CLEARER: Final = {
    "Cannot overwrite a value": "a key is set twice",
    "Invalid value": "Invalid value (texts are in quotes)",
}
"""Messages of tomllib, and clearer ones for them."""


def syntax_fault(text: str, message: str) -> Fault:
    """The fault for a message of tomllib, "... (at line 3, column 7)"."""
    found = _AT_POSITION.fullmatch(message)
    if found is None:
        return Fault("", 0, f"not TOML: {message}")
    if found["line"] is None:
        return Fault("", text.count("\n") + 1, f"not TOML: {found['what']}, at the end of the file")
    what = _CLEARER.get(found["what"], found["what"])
    if (twice := _TWICE.fullmatch(found["what"])) is not None:
        what = _SECTION_AGAIN.format(".".join(ast.literal_eval(twice["keys"])))
    return Fault("", int(found["line"]), f"not TOML: {what}, at column {found['column']}")


def _file_fault(path: Path, message: str) -> ConfigError:
    return ConfigError(str(path), [Fault("", 0, message)])


def _joined(dotted: str, name: str) -> str:
    plain = re.fullmatch(r"[A-Za-z0-9_-]+", name, re.ASCII) is not None
    return f"{dotted}." * bool(dotted) + (name if plain else shown(name))
